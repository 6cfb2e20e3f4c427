/* cpu_attention.c - attention forward: tiles with a running maximum and sum (Dao et al. 2022; Milakov and
 * Gimelshein 2018).
 *
 * For a tile of queries, over the tiles of keys that any of them sees:
 *   m' = max(m, max s);  p = e^{s - m'};  l = l e^{m - m'} + sum p;  O = O e^{m - m'} + (p dropout) V
 * and at the end o = O / l, lse = m + log l. Tiles of queries are independent and dealt to threads.
 */
#include "cpu_attention_internal.h"

cpu_queries CPU(queries)(const cpu_attn *at, int64_t batch, int64_t head, int64_t first)
{
    cpu_queries qs = {.batch = batch, .head = head, .first = first, .count = CLV_MIN(CPU_TILE, at->sq - first)};
    const int32_t *range = (const int32_t *)at->a->range.data + (first * at->batches + batch) * 2;
    int64_t all_lo = 0, all_hi = at->sk, from = at->sk, to = 0;
    for (int64_t i = 0; i < CPU_TILE; i++) {
        qs.lo[i] = 0;
        qs.hi[i] = INT32_MAX; /* rows beyond the last query are zeros: what they see does not matter */
        if (i >= qs.count)
            continue;
        qs.lo[i] = range[i * at->batches * 2];
        qs.hi[i] = range[i * at->batches * 2 + 1];
        all_lo = CLV_MAX(all_lo, qs.lo[i]);
        all_hi = CLV_MIN(all_hi, qs.hi[i]);
        if (qs.lo[i] < qs.hi[i]) {
            from = CLV_MIN(from, qs.lo[i]);
            to = CLV_MAX(to, qs.hi[i]);
        }
    }
    qs.from = CLV_MAX(from, 0) / CPU_TILE * CPU_TILE;
    qs.to = CLV_MIN(to, at->sk);
    qs.all_lo = all_lo;
    qs.all_hi = all_hi;
    return qs;
}

static void hide_by_range(float *s, const cpu_queries *qs, int64_t key)
{
    for (int64_t r = 0; r < CPU_TILE; r++) {
        const int32_t at = (int32_t)(key + r);
        float *row = s + r * CPU_TILE;
        CPU_SIMD
        for (int i = 0; i < CPU_TILE; i++)
            row[i] = at >= qs->lo[i] && at < qs->hi[i] ? row[i] : -INFINITY;
    }
}

static void hide_by_mask(float *s, const cpu_attn *at, const cpu_queries *qs, int64_t key)
{
    const int64_t keys = CLV_MIN(CPU_TILE, at->sk - key);
    for (int64_t i = 0; i < qs->count; i++) {
        const uint8_t *mask = (const uint8_t *)at->a->mask.data + (qs->batch * at->sq + qs->first + i) * at->sk + key;
        for (int64_t r = 0; r < keys; r++)
            if (mask[r] == 0)
                s[r * CPU_TILE + i] = -INFINITY;
    }
}

void CPU(scores)(float *s, const cpu_attn *at, const cpu_queries *qs, int64_t key, cpu_view k, float *qt)
{
    const cpu_size size = {CPU_TILE, CPU_TILE, at->width};
    CPU(tile_product)(cpu_rows_of(s, CPU_TILE), k, cpu_rows_of(qt, CPU_TILE), size, false);
    if (key < qs->all_lo || key + CPU_TILE > qs->all_hi)
        hide_by_range(s, qs, key);
    if (at->a->mask.ndim > 0)
        hide_by_mask(s, at, qs, key);
}

void CPU(tile_keep)(float *factor, const cpu_attn *at, const cpu_queries *qs, int64_t key)
{
    float rows[4 * CPU_TILE];
    const int64_t head = at->a->drop.first + qs->head;
    for (int64_t i = 0; i < CPU_TILE; i += 4) {
        for (int64_t r = 0; r < 4; r++) {
            const int64_t element = (head * at->sq + qs->first + i + r) * at->sk + key;
            CPU(keep)(rows + r * CPU_TILE, CPU_TILE, &at->a->drop, qs->batch, (uint64_t)element);
        }
        for (int64_t j = 0; j < CPU_TILE; j += 4)
            cpu_transpose4(factor + j * CPU_TILE + i, CPU_TILE, rows + j, CPU_TILE);
    }
}

/* ---- one tile of queries ------------------------------------------------------------------------------------- */

typedef struct running {
    float max[CPU_TILE], sum[CPU_TILE], shrink[CPU_TILE]; /* m, l, e^{m - m'} */
} running;

/* s becomes p. A query that has seen nothing keeps m = -inf and is shifted by 0: its p are e^{-inf} = 0. */
static void softmax_step(float *restrict s, running *restrict run)
{
    float most[CPU_TILE], shift[CPU_TILE], sum[CPU_TILE] = {0};
    memcpy(most, run->max, sizeof most);
    for (int64_t r = 0; r < CPU_TILE; r++) {
        CPU_SIMD
        for (int i = 0; i < CPU_TILE; i++)
            most[i] = s[r * CPU_TILE + i] > most[i] ? s[r * CPU_TILE + i] : most[i];
    }
    CPU_SIMD
    for (int i = 0; i < CPU_TILE; i++) {
        shift[i] = most[i] == -INFINITY ? 0.0f : most[i];
        run->shrink[i] = cpu_exp(run->max[i] - shift[i]);
    }
    for (int64_t r = 0; r < CPU_TILE; r++) {
        CPU_SIMD
        for (int i = 0; i < CPU_TILE; i++) {
            const float p = cpu_exp(s[r * CPU_TILE + i] - shift[i]);
            s[r * CPU_TILE + i] = p;
            sum[i] += p;
        }
    }
    CPU_SIMD
    for (int i = 0; i < CPU_TILE; i++) {
        run->sum[i] = run->sum[i] * run->shrink[i] + sum[i];
        run->max[i] = most[i];
    }
}

static void scale_rows(float *o, const float *factor, int64_t width)
{
    for (int64_t i = 0; i < CPU_TILE; i++) {
        const float f = factor[i];
        if (f == 1.0f) /* no new maximum: most rows of later tiles */
            continue;
        CPU_SIMD
        for (int64_t j = 0; j < width; j++)
            o[i * width + j] *= f;
    }
}

typedef struct outputs {
    clv_tensor o, lse;
} outputs;

static void store(const outputs *out, const cpu_attn *at, const cpu_queries *qs, const float *o, const running *run)
{
    const clv_heads section = {0, at->a->q.count, at->a->q.dim};
    float *lse = (float *)out->lse.data + (qs->batch * at->a->q.count + qs->head) * at->sq + qs->first;
    for (int64_t i = 0; i < qs->count; i++) {
        void *to = cpu_head(out->o, section, qs->first + i, qs->batch, qs->head);
        const float f = run->sum[i] > 0.0f ? 1.0f / run->sum[i] : run->sum[i] * 0.0f; /* NaN stays NaN */
        CPU_TYPED(out->o.dtype, cpu_store_scaled, to, o + i * at->width, f, section.dim);
        lse[i] = run->max[i] + logf(run->sum[i]);
    }
}

static void attend(const outputs *out, const cpu_attn *at, const cpu_queries *qs, float *scratch)
{
    const int64_t width = at->width, tile = CPU_TILE * width, d = at->a->q.dim, kv_head = qs->head / at->group;
    float *qt = scratch, *k = qt + tile, *v = k + tile, *o = v + tile, *p = o + tile, *factor = p + CPU_TILE * CPU_TILE;
    running run = {{0}, {0}, {0}};
    for (int i = 0; i < CPU_TILE; i++)
        run.max[i] = -INFINITY;
    const cpu_vectors queries = cpu_vectors_of(at->q, at->a->q, qs->first, qs->batch, qs->head);
    cpu_tile_load(o, width, queries, qs->count, d, at->a->scale);
    cpu_tile_transpose(qt, o, width);
    memset(o, 0, (size_t)tile * sizeof(float));
    for (int64_t key = qs->from; key < qs->to; key += CPU_TILE) {
        const cpu_vectors keys = cpu_vectors_of(at->kv, at->a->k, key, qs->batch, kv_head);
        const cpu_vectors values = cpu_vectors_of(at->kv, at->a->v, key, qs->batch, kv_head);
        cpu_tile_load(v, width, values, at->sk - key, d, 1.0f);
        CPU(scores)(p, at, qs, key, cpu_tile_rows(k, width, keys, at->sk - key, d), qt);
        softmax_step(p, &run);
        scale_rows(o, run.shrink, width);
        if (cpu_drops(&at->a->drop)) {
            CPU(tile_keep)(factor, at, qs, key);
            CPU_SIMD
            for (int i = 0; i < CPU_TILE * CPU_TILE; i++)
                p[i] *= factor[i];
        }
        const cpu_size size = {CPU_TILE, width, CPU_TILE};
        CPU(tile_product)(cpu_rows_of(o, width), cpu_columns_of(p, CPU_TILE), cpu_rows_of(v, width), size, true);
    }
    store(out, at, qs, o, &run);
}

void CPU(attention_forward)(clv_ctx *cx, clv_tensor o, clv_tensor lse, clv_tensor q, clv_tensor kv, const clv_attn *a)
{
    const cpu_attn at = cpu_attn_of(q, kv, a);
    const outputs out = {o, lse};
    if (at.sq <= CPU_FEW) {
        CPU(attention_few)(cx, o, lse, &at);
        return;
    }
    const int64_t tiles = CLV_CEIL_DIV(at.sq, CPU_TILE), jobs = at.batches * a->q.count * tiles;
    const size_t mark = clv_arena_mark(cx->temp);
    const size_t each = clv_attention_tiles(a->q.dim);
    char *scratch = clv_arena_push(cx->temp, clv_scratch_attention(q, a));
#pragma omp parallel for schedule(dynamic) if (jobs > 1 && at.sq * at.sk > 4096)
    for (int64_t job = 0; job < jobs; job++) {
        /* the heads of a group meet the same keys one after the other; long rows of causal attention come first */
        const int64_t head = job / (tiles * at.group) * at.group + job % at.group;
        const int64_t first = (tiles - 1 - job / at.group % tiles) * CPU_TILE;
        const cpu_queries qs = CPU(queries)(&at, head / a->q.count, head % a->q.count, first);
        attend(&out, &at, &qs, (float *)(scratch + (size_t)omp_get_thread_num() * each));
    }
    clv_arena_release(cx->temp, mark);
}

void CPU(attention_range)(clv_tensor range, clv_tensor doc, bool causal, int64_t window)
{
    const int64_t s = range.dim[0], batches = range.dim[1];
    const int32_t *start = doc.ndim > 0 ? doc.data : NULL;
    int32_t *out = range.data;
    for (int64_t b = 0; b < batches; b++) {
        int64_t end = s;
        for (int64_t i = s - 1; i >= 0; i--) {
            const int64_t at = i * batches + b;
            if (start != NULL && i + 1 < s && start[at] != start[at + batches])
                end = i + 1; /* the next position opens another document */
            const int64_t hi = causal ? i + 1 : end, lo = start != NULL ? start[at] : 0;
            out[2 * at] = (int32_t)(window > 0 ? CLV_MAX(lo, hi - window) : lo);
            out[2 * at + 1] = (int32_t)hi;
        }
    }
}
