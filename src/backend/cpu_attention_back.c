/* cpu_attention_back.c - attention backward, tiles recomputed from lse (Dao et al. 2022).
 *
 *   p = e^{s - lse},  D_i = do_i o_i,  w what dropout multiplies by
 *   dv_j = sum_i w p do_i,  ds = p (w (do_i v_j) - D_i),  dq_i = scale sum_j ds k_j,  dk_j = sum_i ds (scale q_i)
 *
 * A job is one KV head of one sequence: its keys' gradients grow in the job's own buffer while tiles of queries pass,
 * each owning its dq. Where there are fewer heads than threads, a head's tiles of queries are dealt to several jobs,
 * whose buffers are added in order. No two threads ever write the same element.
 */
#include "cpu_attention_internal.h"

typedef struct backward {
    cpu_attn at;
    clv_tensor dqkv, dout, o, lse;
    int64_t units, parts; /* heads of KV x sequences; jobs of one unit */
} backward;

/* Scratch of a thread. */
typedef struct tiles {
    float *q, *qt, *d, *dt, *k, *v, *dq; /* [CPU_TILE][width], t: transposed; d: gradient of the output */
    float *p, *ds, *factor;              /* [keys][queries] */
    float delta[CPU_TILE], lse[CPU_TILE];
} tiles;

static tiles tiles_in(float *scratch, int64_t width)
{
    const int64_t tile = CPU_TILE * width;
    float *last = scratch + 7 * tile;
    return (tiles){.q = scratch,
                   .qt = scratch + tile,
                   .d = scratch + 2 * tile,
                   .dt = scratch + 3 * tile,
                   .k = scratch + 4 * tile,
                   .v = scratch + 5 * tile,
                   .dq = scratch + 6 * tile,
                   .p = last,
                   .ds = last + CPU_TILE * CPU_TILE,
                   .factor = last + 2 * CPU_TILE * CPU_TILE};
}

CPU_BODY void dot(float *out, const float *x, const void *y, int64_t n, clv_dtype type)
{
    float sum = 0.0f;
    CPU_SIMD_SUM(sum)
    for (int64_t j = 0; j < n; j++)
        sum += x[j] * cpu_get(y, j, type);
    *out = sum;
}

static void load_queries(const backward *b, const cpu_queries *qs, tiles *t)
{
    const cpu_attn *at = &b->at;
    const clv_attn *a = at->a;
    const clv_heads section = {0, a->q.count, a->q.dim};
    const cpu_vectors q = cpu_vectors_of(at->q, a->q, qs->first, qs->batch, qs->head);
    const cpu_vectors d = cpu_vectors_of(b->dout, section, qs->first, qs->batch, qs->head);
    const float *lse = (const float *)b->lse.data + (qs->batch * a->q.count + qs->head) * at->sq + qs->first;
    cpu_tile_load(t->q, at->width, q, qs->count, a->q.dim, a->scale);
    cpu_tile_transpose(t->qt, t->q, at->width);
    cpu_tile_load(t->d, at->width, d, qs->count, a->q.dim, 1.0f);
    cpu_tile_transpose(t->dt, t->d, at->width);
    memset(t->dq, 0, (size_t)(CPU_TILE * at->width) * sizeof(float));
    for (int64_t i = 0; i < CPU_TILE; i++) {
        t->delta[i] = 0.0f;
        if (i < qs->count)
            CPU_TYPED(b->o.dtype, dot, &t->delta[i], t->d + i * at->width,
                      cpu_head(b->o, section, qs->first + i, qs->batch, qs->head), a->q.dim);
        t->lse[i] = i < qs->count && lse[i] != -INFINITY ? lse[i] : 0.0f; /* sees nothing: its s are all -inf */
    }
}

/* p and ds of a tile from s and dp = v do; with dropout p becomes w p. */
static void probabilities(const backward *b, const cpu_queries *qs, int64_t key, tiles *t)
{
    const bool drops = cpu_drops(&b->at.a->drop);
    if (drops)
        CPU(tile_keep)(t->factor, &b->at, qs, key);
    for (int64_t r = 0; r < CPU_TILE; r++) {
        float *restrict p = t->p + r * CPU_TILE, *restrict ds = t->ds + r * CPU_TILE;
        const float *factor = t->factor + r * CPU_TILE;
        if (drops) {
            CPU_SIMD
            for (int i = 0; i < CPU_TILE; i++) {
                const float e = cpu_exp(p[i] - t->lse[i]);
                ds[i] = e * (factor[i] * ds[i] - t->delta[i]);
                p[i] = factor[i] * e;
            }
        } else {
            CPU_SIMD
            for (int i = 0; i < CPU_TILE; i++) {
                p[i] = cpu_exp(p[i] - t->lse[i]);
                ds[i] = p[i] * (ds[i] - t->delta[i]);
            }
        }
    }
}

/* dk, dv [keys rounded up to tiles][width] of the job grow by what these queries give. */
static void back_tile(const backward *b, const cpu_queries *qs, tiles *t, float *dk, float *dv)
{
    const cpu_attn *at = &b->at;
    const int64_t width = at->width, d = at->a->q.dim, kv_head = qs->head / at->group;
    const cpu_size square = {CPU_TILE, CPU_TILE, width}, flat = {CPU_TILE, width, CPU_TILE};
    for (int64_t key = qs->from; key < qs->to; key += CPU_TILE) {
        const cpu_vectors keys = cpu_vectors_of(at->kv, at->a->k, key, qs->batch, kv_head);
        const cpu_vectors values = cpu_vectors_of(at->kv, at->a->v, key, qs->batch, kv_head);
        cpu_tile_load(t->k, width, keys, at->sk - key, d, 1.0f);
        const cpu_view v = cpu_tile_rows(t->v, width, values, at->sk - key, d);
        const cpu_view p = cpu_rows_of(t->p, CPU_TILE), ds = cpu_rows_of(t->ds, CPU_TILE);
        const cpu_view ds_t = cpu_columns_of(t->ds, CPU_TILE);
        CPU(scores)(t->p, at, qs, key, cpu_rows_of(t->k, width), t->qt);
        CPU(tile_product)(ds, v, cpu_rows_of(t->dt, CPU_TILE), square, false);
        probabilities(b, qs, key, t);
        CPU(tile_product)(cpu_rows_of(dv + key * width, width), p, cpu_rows_of(t->d, width), flat, true);
        CPU(tile_product)(cpu_rows_of(dk + key * width, width), ds, cpu_rows_of(t->q, width), flat, true);
        CPU(tile_product)(cpu_rows_of(t->dq, width), ds_t, cpu_rows_of(t->k, width), flat, true);
    }
}

static void store_queries(const backward *b, const cpu_queries *qs, const tiles *t)
{
    const clv_heads section = b->at.a->q;
    const float scale = b->at.a->scale;
    for (int64_t i = 0; i < qs->count; i++) {
        void *to = cpu_head(b->dqkv, section, qs->first + i, qs->batch, qs->head);
        CPU_TYPED(b->dqkv.dtype, cpu_store_scaled, to, t->dq + i * b->at.width, scale, section.dim);
    }
}

/* dk and dv of a unit: the sum of its `parts` buffers, `floats` apart. */
static void store_keys(const backward *b, int64_t unit, float *buffers, int64_t parts, int64_t floats)
{
    const clv_heads section[2] = {b->at.a->k, b->at.a->v};
    const int64_t kv_heads = section[0].count;
    for (int64_t key = 0; key < b->at.sk; key++)
        for (int side = 0; side < 2; side++) {
            void *to = cpu_head(b->dqkv, section[side], key, unit / kv_heads, unit % kv_heads);
            float *sum = buffers + side * floats / 2 + key * b->at.width;
            for (int64_t part = 1; part < parts; part++) {
                CPU_SIMD
                for (int64_t j = 0; j < section[side].dim; j++)
                    sum[j] += sum[part * floats + j];
            }
            CPU_TYPED(b->dqkv.dtype, cpu_store_scaled, to, sum, 1.0f, section[side].dim);
        }
}

static void run_job(const backward *b, int64_t job, float *scratch, float *buffer, int64_t floats)
{
    const cpu_attn *at = &b->at;
    const int64_t unit = job / b->parts, part = job % b->parts, kv_heads = at->a->k.count;
    const int64_t count = CLV_CEIL_DIV(at->sq, CPU_TILE);
    tiles t = tiles_in(scratch, at->width);
    memset(buffer, 0, (size_t)floats * sizeof(float));
    for (int64_t tile = part; tile < count; tile += b->parts)
        for (int64_t h = 0; h < at->group; h++) {
            const int64_t head = unit % kv_heads * at->group + h;
            const cpu_queries qs = CPU(queries)(at, unit / kv_heads, head, tile * CPU_TILE);
            load_queries(b, &qs, &t);
            back_tile(b, &qs, &t, buffer, buffer + floats / 2);
            store_queries(b, &qs, &t);
        }
}

void CPU(attention_backward)(clv_ctx *cx, clv_tensor dqkv, clv_tensor dout, const clv_attn_saved *saved,
                             const clv_attn *a)
{
    backward b = {cpu_attn_of(saved->qkv, saved->qkv, a), dqkv, dout, saved->o, saved->lse, 0, 0};
    const clv_attn_plan plan = clv_attention_plan(saved->qkv, a);
    const int64_t floats = (int64_t)(plan.buffer / sizeof(float));
    b.units = plan.units;
    b.parts = plan.parts;
    const size_t mark = clv_arena_mark(cx->temp);
    const size_t each = clv_attention_tiles(a->q.dim);
    char *scratch = clv_arena_push(cx->temp, clv_scratch_attention_backward(saved->qkv, a));
    float *buffers = (float *)(scratch + (size_t)clv_backend_threads() * each);
#pragma omp parallel if (b.at.sq * b.at.sk > 4096)
    {
        const int64_t me = omp_get_thread_num();
#pragma omp for schedule(dynamic)
        for (int64_t job = 0; job < b.units * b.parts; job++) {
            float *buffer = buffers + (b.parts > 1 ? job : me) * floats;
            run_job(&b, job, (float *)(scratch + (size_t)me * each), buffer, floats);
            if (b.parts == 1)
                store_keys(&b, job, buffer, 1, floats);
        }
#pragma omp for schedule(static)
        for (int64_t unit = 0; unit < (b.parts > 1 ? b.units : 0); unit++)
            store_keys(&b, unit, buffers + unit * b.parts * floats, b.parts, floats);
    }
    clv_arena_release(cx->temp, mark);
}
