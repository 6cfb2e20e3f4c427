/* checkpoint_load.c - every rank reads the boxes that it holds, whatever layout wrote them.
 *
 * Names come from the folder's own config.json. Each tensor of the files must find its place or be a buffer that the
 * family ignores, and each parameter must find its tensor, so that nothing is left as it was initialized. A tied
 * model's file may carry the head once more if it is equal.
 *
 * No rank waits for another until the end, where they agree.
 */
#include "train/checkpoint_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEGMENT = 4096 }; /* bytes: shorter pieces of rows are read with the rest of their rows */

typedef struct source { /* a catalog's files, opened */
    clv_safetensors **st;
    int count;
    const clv_st_tensor **tensor; /* of each entry */
    int *file;                    /* that it lies in, index of st */
} source;

static const char head_name[] = "lm_head.weight";

static void source_close(source *s)
{
    for (int i = 0; i < s->count; i++)
        clv_safetensors_close(s->st[i]);
    free(s->st);
    free(s->tensor);
    free(s->file);
}

/* ---- bytes to numbers ---- */

static float from_f16(uint16_t h)
{
    const int exponent = h >> 10 & 31, fraction = h & 1023;
    const float sign = (h & 0x8000) != 0 ? -1.0f : 1.0f;
    if (exponent == 31)
        return fraction != 0 ? (float)NAN : sign * (float)INFINITY;
    return sign * (exponent == 0 ? ldexpf((float)fraction, -24) : ldexpf((float)(1024 + fraction), exponent - 25));
}

static float number_at(const unsigned char *raw, size_t i, clv_dtype dtype)
{
    uint32_t bits;
    uint16_t half;
    double wide;
    float value;
    switch (dtype) {
    case CLV_BF16:
        memcpy(&half, raw + 2 * i, sizeof half);
        bits = (uint32_t)half << 16;
        memcpy(&value, &bits, sizeof value);
        return value;
    case CLV_F16:
        memcpy(&half, raw + 2 * i, sizeof half);
        return from_f16(half);
    case CLV_F64:
        memcpy(&wide, raw + 8 * i, sizeof wide);
        return (float)wide;
    default:
        memcpy(&value, raw + 4 * i, sizeof value);
        return value;
    }
}

static bool is_weight_type(clv_dtype dtype)
{
    return dtype == CLV_F32 || dtype == CLV_BF16 || dtype == CLV_F16 || dtype == CLV_F64;
}

/* ---- reading a rectangle ---- */

typedef struct reader {
    const clv_safetensors *st;
    const clv_st_tensor *tensor;
    int64_t columns; /* of the tensor */
    size_t width;    /* bytes of an element */
    unsigned char *raw;
    float *dense;
} reader;

static clv_status read_bytes(const reader *r, int64_t row, int64_t column, unsigned char *out, int64_t elements)
{
    return clv_safetensors_read(r->st, r->tensor, (uint64_t)(row * r->columns + column) * r->width, out,
                                (size_t)elements * r->width);
}

/* rows[1] rows of the rectangle from its row rows[0] on, dense, in r->raw. */
static clv_status read_rows(const reader *r, clv_rect rect, const int64_t rows[2])
{
    const int64_t top = rect.at[0] + rows[0], left = rect.at[1], n = rect.n[1];
    const size_t segment = (size_t)n * r->width;
    if (n == r->columns)
        return read_bytes(r, top, 0, r->raw, rows[1] * n);
    if (segment >= SEGMENT) {
        for (int64_t i = 0; i < rows[1]; i++)
            CLV_TRY(read_bytes(r, top + i, left, r->raw + (size_t)i * segment, n));
        return clv_ok();
    }
    CLV_TRY(read_bytes(r, top, 0, r->raw, rows[1] * r->columns));
    for (int64_t i = 0; i < rows[1]; i++)
        memmove(r->raw + (size_t)i * segment, r->raw + (size_t)(i * r->columns + left) * r->width, segment);
    return clv_ok();
}

static clv_status read_piece(const reader *r, const clv_piece *piece, clv_rect rect, int64_t step, float *local)
{
    for (int64_t row = 0; row < rect.n[0] && rect.n[1] > 0; row += step) {
        const int64_t rows[2] = {row, CLV_MIN(step, rect.n[0] - row)};
        CLV_TRY(read_rows(r, rect, rows));
        for (int64_t i = 0; i < rows[1] * rect.n[1]; i++)
            r->dense[i] = number_at(r->raw, (size_t)i, r->tensor->dtype);
        clv_piece_unpack(piece, rect, rows, local, r->dense);
    }
    return clv_ok();
}

static reader reader_open(const clv_safetensors *st, const clv_st_tensor *t, const clv_entry *e, int64_t step)
{
    reader r = {.st = st, .tensor = t, .columns = e->dim[1], .width = clv_dtype_size(t->dtype)};
    r.raw = clv_alloc((size_t)(step * r.columns), r.width);
    r.dense = clv_alloc((size_t)(step * r.columns), sizeof *r.dense);
    return r;
}

static void reader_close(reader *r)
{
    free(r->raw);
    free(r->dense);
}

/* A weight goes into its master too; of a moment this rank keeps what it owns. */
static void put(clv_ctx *cx, const clv_piece *piece, const float *shard)
{
    if (piece->own)
        clv_from_host(cx, piece->local, shard + clv_param_own(piece->param).first);
    else
        clv_param_write(cx, piece->param, shard);
}

static clv_status fill_entry(clv_ctx *cx, const clv_entry *e, const clv_safetensors *st, const clv_st_tensor *t)
{
    const int64_t step = CLV_MIN(clv_entry_rows_per_piece(e), e->dim[0]);
    reader r = reader_open(st, t, e, step);
    clv_status status = clv_ok();
    for (int i = 0; i < e->pieces && status.code == CLV_OK; i++) {
        const clv_piece *piece = &e->piece[i];
        if (!piece->param->here)
            continue;
        const clv_rect rect = clv_piece_rect(piece, clv_param_box(cx->mesh, piece->param));
        float *local = clv_alloc((size_t)clv_numel(piece->param->w), sizeof *local); /* zero where padding is */
        status = read_piece(&r, piece, rect, step, local);
        if (status.code == CLV_OK)
            put(cx, piece, local);
        free(local);
    }
    reader_close(&r);
    return status;
}

/* ---- a tensor for every parameter, a parameter for every tensor ---- */

static void shape_text(char *out, size_t size, int ndim, const int64_t *dim)
{
    int used = snprintf(out, size, "[");
    for (int i = 0; i < ndim && (size_t)used < size; i++)
        used += snprintf(out + used, size - (size_t)used, "%s%lld", i > 0 ? "," : "", (long long)dim[i]);
    if ((size_t)used < size)
        snprintf(out + used, size - (size_t)used, "]");
}

static clv_status check_tensor(const clv_entry *e, const clv_st_tensor *t)
{
    char has[128], needs[128];
    bool same = t->ndim == e->ndim;
    for (int i = 0; same && i < e->ndim; i++)
        same = t->dim[i] == e->dim[i];
    shape_text(has, sizeof has, t->ndim, t->dim);
    shape_text(needs, sizeof needs, e->ndim, e->dim);
    if (!same)
        return clv_fail(CLV_BAD_INPUT, "tensor %s has the shape %s, the model needs %s", e->name, has, needs);
    if (!is_weight_type(t->dtype))
        return clv_fail(CLV_BAD_INPUT, "tensor %s is of type %s; F32, BF16, F16 or F64 was expected", e->name, t->kind);
    return clv_ok();
}

/* A list of names for a message: the first few, and how many more. */
typedef struct name_list {
    char text[400];
    int used, count;
} name_list;

static void name_list_add(name_list *list, const char *name)
{
    if (list->count++ < 4)
        list->used += snprintf(list->text + list->used, sizeof list->text - (size_t)list->used, "%s%.80s",
                               list->used > 0 ? ", " : "", name);
    else
        snprintf(list->text + list->used, sizeof list->text - (size_t)list->used, " and %d more", list->count - 4);
}

static clv_status match_tensor(source *s, const clv_catalog *catalog, int file, const clv_st_tensor *t,
                               const clv_config *names, name_list *unknown)
{
    const char *name = names != NULL ? clv_family_strip(names, t->name) : t->name;
    const clv_entry *e = clv_catalog_find(catalog, name);
    if (e == NULL) {
        if (names == NULL || (!clv_family_ignores(names, name) && strcmp(name, head_name) != 0))
            name_list_add(unknown, t->name);
        return clv_ok();
    }
    const size_t at = (size_t)(e - catalog->entry);
    if (s->tensor[at] != NULL)
        return clv_fail(CLV_BAD_INPUT, "tensor %s is there twice, also as %s", t->name, s->tensor[at]->name);
    s->tensor[at] = t;
    s->file[at] = file;
    return check_tensor(e, t);
}

static clv_status match(source *s, const clv_catalog *catalog, const clv_config *names)
{
    name_list unknown = {.used = 0}, missing = {.used = 0};
    s->tensor = clv_alloc(catalog->count, sizeof *s->tensor);
    s->file = clv_alloc(catalog->count, sizeof *s->file);
    for (int f = 0; f < s->count; f++)
        for (size_t i = 0; i < clv_safetensors_count(s->st[f]); i++)
            CLV_TRY(match_tensor(s, catalog, f, clv_safetensors_at(s->st[f], i), names, &unknown));
    for (size_t i = 0; i < catalog->count; i++)
        if (s->tensor[i] == NULL)
            name_list_add(&missing, catalog->entry[i].name);
    if (missing.count > 0 && unknown.count > 0)
        return clv_fail(CLV_BAD_INPUT, "no tensor for %s; no place in the model for %s", missing.text, unknown.text);
    if (missing.count > 0)
        return clv_fail(CLV_BAD_INPUT, "no tensor for %s%s", missing.text,
                        strstr(missing.text, head_name) != NULL
                            ? "; if the head is the word embedding, config.json must say \"tie_word_embeddings\": true"
                            : "");
    if (unknown.count > 0)
        return clv_fail(CLV_BAD_INPUT, "the model has no place for %s", unknown.text);
    return clv_ok();
}

/* ---- a head beside a tied embedding ---- */

static clv_status compare_rows(const reader *a, const reader *b, const clv_entry *e, int64_t row, int64_t rows)
{
    const int64_t n = rows * e->dim[1];
    CLV_TRY(read_bytes(a, row, 0, a->raw, n));
    CLV_TRY(read_bytes(b, row, 0, b->raw, n));
    for (int64_t i = 0; i < n; i++) {
        const float x = number_at(a->raw, (size_t)i, a->tensor->dtype);
        const float y = number_at(b->raw, (size_t)i, b->tensor->dtype);
        if (memcmp(&x, &y, sizeof x) != 0)
            return clv_fail(CLV_BAD_INPUT,
                            "the model is tied, but %s differs from %s in row %lld (%g and %g); set "
                            "\"tie_word_embeddings\": false in config.json to use both",
                            head_name, e->name, (long long)(row + i / e->dim[1]), (double)x, (double)y);
    }
    return clv_ok();
}

/* Rank 0 alone compares, before weights are read. */
static clv_status check_spare_head(const source *s, const clv_catalog *catalog, const clv_mesh *mesh)
{
    const clv_st_tensor *head = clv_safetensors_find(s->st[0], head_name);
    const clv_entry *e = catalog->entry;
    while (e < catalog->entry + catalog->count && !e->piece[0].param->tied)
        e++;
    if (head == NULL || clv_catalog_find(catalog, head_name) != NULL || e == catalog->entry + catalog->count ||
        clv_comm_rank(clv_mesh_world(mesh)) > 0)
        return clv_ok();
    clv_entry like = *e;
    snprintf(like.name, sizeof like.name, "%s", head_name);
    CLV_TRY(check_tensor(&like, head));
    const int64_t step = CLV_MIN(clv_entry_rows_per_piece(e), e->dim[0]);
    reader a = reader_open(s->st[0], head, e, step);
    reader b = reader_open(s->st[0], s->tensor[e - catalog->entry], e, step);
    clv_status status = clv_ok();
    for (int64_t row = 0; row < e->dim[0] && status.code == CLV_OK; row += step)
        status = compare_rows(&a, &b, e, row, CLV_MIN(step, e->dim[0] - row));
    reader_close(&a);
    reader_close(&b);
    return status;
}

/* ---- the whole ---- */

static clv_status fill(clv_ctx *cx, source *s, const clv_catalog *catalog, const clv_config *names)
{
    CLV_TRY(match(s, catalog, names));
    if (names != NULL)
        CLV_TRY(check_spare_head(s, catalog, cx->mesh));
    for (size_t i = 0; i < catalog->count; i++)
        CLV_TRY(fill_entry(cx, &catalog->entry[i], s->st[s->file[i]], s->tensor[i]));
    return clv_ok();
}

static clv_status load_weights(const clv_checkpoint *c, const char *folder)
{
    clv_config names;
    CLV_TRY(clv_hf_config_read(&names, folder));
    clv_catalog catalog = clv_catalog_weights(c, &names);
    source s = {.st = clv_alloc(1, sizeof *s.st)};
    clv_status status = clv_safetensors_open(&s.st[0], folder);
    s.count = status.code == CLV_OK;
    if (status.code == CLV_OK)
        status = clv_within(fill(c->cx, &s, &catalog, &names), "%s", folder);
    source_close(&s);
    clv_catalog_free(&catalog);
    return status;
}

static bool holds_masters(const source *s, const clv_checkpoint *c)
{
    char name[CLV_ENTRY_NAME];
    snprintf(name, sizeof name, "fp32_param.%s", c->params[0].name);
    bool found = false;
    for (int i = 0; i < s->count; i++)
        found = found || clv_safetensors_find(s->st[i], name) != NULL;
    return found;
}

static clv_status load_moments(const clv_checkpoint *c, const char *folder, int files)
{
    char path[CLV_PATH];
    if (files == 0)
        return clv_fail(CLV_BAD_INPUT,
                        "%s holds no optimizer state; resume it with --no-load-optim, or take its weights with "
                        "--finetune",
                        folder);
    clv_catalog catalog = clv_catalog_moments(c);
    catalog.files = files;
    source s = {.st = clv_alloc((size_t)files, sizeof *s.st)};
    clv_status status = clv_ok();
    while (s.count < files && status.code == CLV_OK) {
        clv_catalog_path(&catalog, s.count, folder, path);
        status = clv_safetensors_open(&s.st[s.count], path);
        s.count += status.code == CLV_OK;
    }
    if (status.code == CLV_OK && holds_masters(&s, c))
        clv_catalog_masters(&catalog, c, false);
    if (status.code == CLV_OK)
        status = clv_within(fill(c->cx, &s, &catalog, NULL), "%s/training", folder);
    source_close(&s);
    clv_catalog_free(&catalog);
    return status;
}

static clv_status load_here(const clv_checkpoint *c, const char *folder)
{
    int files = 0;
    clv_progress progress = {0};
    if (strlen(folder) + 128 > CLV_PATH)
        return clv_fail(CLV_BAD_INPUT, "path too long: %.200s", folder);
    CLV_TRY(clv_sums_verify(clv_mesh_world(c->cx->mesh), folder, c->optimizer != NULL));
    if (c->optimizer != NULL || c->progress != NULL)
        CLV_TRY(clv_state_read(&progress, &files, folder));
    CLV_TRY(load_weights(c, folder));
    if (c->optimizer != NULL) {
        CLV_TRY(load_moments(c, folder, files));
        c->optimizer->step = progress.optimizer_step;
    }
    if (c->progress != NULL)
        *c->progress = progress;
    return clv_ok();
}

clv_status clv_checkpoint_load(const clv_checkpoint *c, const char *folder)
{
    return clv_comm_agree(clv_mesh_world(c->cx->mesh), load_here(c, folder));
}
