/* checkpoint_read.c - tensors of files become what this rank holds of them, by all its threads.
 *
 * A rank's rectangle of a tensor is cut into units of rows, and threads take one after the other. Numbers that lie in
 * the file as they shall lie in memory are read into their place. Others go through buffers that stay in a core's
 * cache:
 *
 *   file --rows--> raw --convert--> dense --transpose--> place
 *
 * The place is the tensor itself, where the host reaches it and it is fp32; else a shard on the heap, handed on when it
 * is complete.
 */
#include "train/checkpoint_internal.h"

#include <stdlib.h>
#include <string.h>

enum {
    SEGMENT = 4096, /* bytes: shorter pieces of rows are read with the rest of their rows */
    UNIT_BYTES = 4 << 20,
    STEP_BYTES = 1 << 18, /* through the buffers at once */
    RUN = 64              /* rows, whose columns become runs of memory: whole lines of the cache, of one thread each */
};

/* ---- bytes to numbers ---- */

bool clv_is_weight_type(clv_dtype dtype)
{
    return dtype == CLV_F32 || dtype == CLV_BF16 || dtype == CLV_F16 || dtype == CLV_F64;
}

void clv_weights_convert(float *out, const void *raw, int64_t n, clv_dtype dtype)
{
    const double *wide = raw;
    if (dtype != CLV_F64)
        clv_widen(out, raw, dtype, (size_t)n);
    for (int64_t i = 0; i < n && dtype == CLV_F64; i++)
        out[i] = (float)wide[i];
}

clv_status clv_weights_read(const clv_found *from, clv_extent elements, void *raw)
{
    const size_t width = clv_dtype_size(from->tensor->dtype);
    return clv_safetensors_read(from->st, from->tensor, (uint64_t)elements.first * width, raw,
                                (size_t)elements.count * width);
}

/* ---- one unit ---- */

typedef struct target { /* a piece of an entry that this rank holds */
    clv_found from;
    const clv_piece *piece;
    clv_rect rect;
    int64_t columns; /* of the tensor */
    float *shard;
    bool staged; /* shard is ours */
} target;

typedef struct unit { /* of one target, or of several transposed ones that lie side by side in the same rows */
    const target *target;
    int targets;
    clv_rect rect;   /* of the file, around them */
    int64_t rows[2]; /* first of the rectangle, and how many */
} unit;

typedef struct buffers { /* of a thread */
    unsigned char *raw;
    float *dense;
} buffers;

/* The rows, dense, in `out`, which may be `raw`. */
static clv_status read_rows(const unit *u, const int64_t rows[2], unsigned char *raw, void *out)
{
    const target *t = u->target;
    const int64_t top = u->rect.at[0] + rows[0], left = u->rect.at[1], n = u->rect.n[1];
    const size_t width = clv_dtype_size(t->from.tensor->dtype), segment = (size_t)n * width;
    unsigned char *to = out;
    if (n == t->columns)
        return clv_weights_read(&t->from, (clv_extent){top * n, rows[1] * n}, out);
    if (segment >= SEGMENT) {
        for (int64_t i = 0; i < rows[1]; i++)
            CLV_TRY(
                clv_weights_read(&t->from, (clv_extent){(top + i) * t->columns + left, n}, to + (size_t)i * segment));
        return clv_ok();
    }
    CLV_TRY(clv_weights_read(&t->from, (clv_extent){top * t->columns, rows[1] * t->columns}, raw));
    for (int64_t i = 0; i < rows[1]; i++)
        memmove(to + (size_t)i * segment, raw + (size_t)(i * t->columns + left) * width, segment);
    return clv_ok();
}

static clv_status read_step(const unit *u, const int64_t rows[2], const buffers *b)
{
    const target *t = u->target;
    const int64_t n = u->rect.n[1];
    const clv_dtype dtype = t->from.tensor->dtype;
    const bool transposed = t->piece->transposed;
    float *to = transposed ? b->dense : t->shard + rows[0] * n;
    void *raw = dtype == CLV_F32 ? (void *)to : b->raw;
    CLV_TRY(read_rows(u, rows, b->raw, raw));
    clv_weights_convert(to, raw, rows[1] * n, dtype);
    for (int i = 0; transposed && i < u->targets; i++)
        clv_transpose(t[i].shard + rows[0], t[i].rect.n[0], to + t[i].rect.at[1] - u->rect.at[1], n,
                      (int64_t[]){rows[1], t[i].rect.n[1]});
    return clv_ok();
}

static bool goes_straight(const target *t)
{
    return t->from.tensor->dtype == CLV_F32 && !t->piece->transposed && t->rect.n[1] == t->columns;
}

static int64_t rows_within(const target *t, int64_t bytes)
{
    const int64_t row = t->columns * (int64_t)sizeof(double), rows = CLV_MAX(bytes / row, 1);
    return t->piece->transposed ? CLV_CEIL_DIV(rows, RUN) * RUN : rows;
}

static clv_status read_unit(const unit *u, const buffers *b)
{
    const int64_t step = goes_straight(u->target) ? u->rows[1] : rows_within(u->target, STEP_BYTES);
    for (int64_t done = 0; done < u->rows[1]; done += step)
        CLV_TRY(read_step(u, (int64_t[]){u->rows[0] + done, CLV_MIN(step, u->rows[1] - done)}, b));
    return clv_ok();
}

/* ---- all of them ---- */

typedef struct reading { /* what is to be read at once */
    clv_ctx *cx;
    target *target;
    unit *unit;
    size_t targets, units, capacity;
    int64_t step; /* elements of the buffers */
} reading;

static void unit_add(reading *r, unit u)
{
    if (r->units == r->capacity) {
        r->capacity = 2 * r->capacity + 16;
        r->unit = clv_resize(r->unit, r->capacity, sizeof *r->unit);
    }
    r->unit[r->units++] = u;
}

/* The tensor's own memory, where the numbers can lie as they are read. */
static float *straight_place(const clv_ctx *cx, const clv_piece *piece)
{
    const clv_param *p = piece->param;
    const bool whole = piece->own ? clv_param_own(p).count == clv_numel(p->w) : p->master.ndim == 0;
    return whole && piece->local.dtype == CLV_F32 ? clv_host_memory(cx, piece->local) : NULL;
}

static void piece_add(reading *r, const clv_entry *e, const clv_piece *piece, clv_found from)
{
    const clv_param *p = piece->param;
    target *t = &r->target[r->targets];
    *t = (target){.from = from,
                  .piece = piece,
                  .rect = clv_piece_rect(piece, clv_param_box(r->cx->mesh, p)),
                  .columns = e->dim[1],
                  .shard = straight_place(r->cx, piece)};
    const int64_t filled = t->rect.n[0] * t->rect.n[1], all = clv_numel(p->w);
    t->staged = t->shard == NULL;
    if (t->staged)
        t->shard = clv_alloc((size_t)all, sizeof *t->shard);
    memset(t->shard + filled, 0, (size_t)(all - filled) * sizeof *t->shard); /* the vocabulary's padding */
    if (!goes_straight(t))
        r->step = CLV_MAX(r->step, rows_within(t, STEP_BYTES) * t->columns);
    r->targets++;
}

static void units_add(reading *r, const target *t, int targets)
{
    unit u = {.target = t, .targets = targets, .rect = t->rect};
    for (int i = 1; i < targets; i++) {
        const int64_t left = CLV_MIN(u.rect.at[1], t[i].rect.at[1]);
        const int64_t right = CLV_MAX(u.rect.at[1] + u.rect.n[1], t[i].rect.at[1] + t[i].rect.n[1]);
        u.rect.at[1] = left;
        u.rect.n[1] = right - left;
    }
    const int64_t many = rows_within(t, UNIT_BYTES);
    for (int64_t row = 0; row < u.rect.n[0] && u.rect.n[1] > 0; row += many) {
        u.rows[0] = row;
        u.rows[1] = CLV_MIN(many, u.rect.n[0] - row);
        unit_add(r, u);
    }
}

/* What this rank holds of the entry: every transposed piece has all its rows. */
static void entry_add(reading *r, const clv_entry *e, clv_found from)
{
    const size_t first = r->targets;
    for (int k = 0; k < e->pieces; k++)
        if (e->piece[k].param->here)
            piece_add(r, e, &e->piece[k], from);
    for (size_t i = first, together; i < r->targets; i += together) {
        together = r->target[i].piece->transposed ? r->targets - i : 1;
        units_add(r, &r->target[i], (int)together);
    }
}

/* The error of the first unit that has one, whoever met it. */
static clv_status read_units(const reading *r)
{
    clv_status status = clv_ok();
    size_t failed = r->units;
#pragma omp parallel
    {
        const buffers b = {clv_alloc((size_t)r->step, sizeof(double)), clv_alloc((size_t)r->step, sizeof(float))};
#pragma omp for schedule(dynamic, 1)
        for (size_t i = 0; i < r->units; i++) {
            const clv_status st = read_unit(&r->unit[i], &b);
#pragma omp critical
            if (st.code != CLV_OK && i < failed) {
                failed = i;
                status = st;
            }
        }
        free(b.raw);
        free(b.dense);
    }
    return status;
}

/* A weight goes into its master too; of a moment this rank keeps what it owns. */
static void hand_on(clv_ctx *cx, const target *t)
{
    if (t->piece->own)
        clv_from_host(cx, t->piece->local, t->shard + clv_param_own(t->piece->param).first);
    else
        clv_param_write(cx, t->piece->param, t->shard);
}

static clv_status read_all(reading *r)
{
    const clv_status status = read_units(r);
    for (size_t i = 0; i < r->targets; i++) {
        if (!r->target[i].staged)
            continue;
        if (status.code == CLV_OK)
            hand_on(r->cx, &r->target[i]);
        free(r->target[i].shard);
    }
    r->targets = r->units = 0;
    return status;
}

clv_status clv_catalog_read(clv_ctx *cx, const clv_catalog *catalog, const clv_found *found)
{
    reading r = {.cx = cx, .target = clv_alloc(catalog->count * CLV_ENTRY_PIECES, sizeof *r.target)};
    clv_status status = clv_ok();
    for (size_t i = 0; i < catalog->count && status.code == CLV_OK; i++) {
        const size_t first = r.targets;
        entry_add(&r, &catalog->entry[i], found[i]);
        bool staged = false;
        for (size_t k = first; k < r.targets; k++)
            staged = staged || r.target[k].staged;
        if (staged) /* shards on the heap: not those of the whole model at once */
            status = read_all(&r);
    }
    if (status.code == CLV_OK)
        status = read_all(&r);
    free(r.target);
    free(r.unit);
    return status;
}
