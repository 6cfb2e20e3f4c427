/* cpu_attention_few.c - attention forward for few queries, as in decoding.
 *
 * Every key and value is used once, so all that counts is to read them as they lie: a key's heads side by side. A job
 * takes several heads through the keys together, a block of keys at a time, with a running maximum and sum each.
 */
#include "cpu_attention_internal.h"

enum { HEADS = CPU_FEW_HEADS, AHEAD = 4 /* keys */ };

/* One query, heads [first, first + count) of one sequence. */
typedef struct few {
    const cpu_attn *at;
    float *o; /* [HEADS][at->width], sums */
    int64_t batch, query, first, count;
    float max[HEADS], sum[HEADS], shrink[HEADS];
    float p[HEADS][CPU_TILE];
} few;

/* The processor's own prefetching loses its way in rows that are longer than pages. */
CPU_BODY void fetch(const void *row, int64_t first, int64_t n, clv_dtype type)
{
    for (int64_t c = 0; c < n; c += CPU_LINE)
        __builtin_prefetch((const char *)row + (first + c) * (type == CLV_F32 ? 4 : 2));
}

/* Scores of a block of keys; its values come meanwhile. */
CPU_BODY void scores(few *f, int64_t key, int64_t n, clv_dtype type)
{
    const cpu_attn *at = f->at;
    const int64_t d = at->a->q.dim, next = at->batches * clv_last(at->kv);
    const uint8_t *mask = at->a->mask.ndim > 0 ? at->a->mask.data : NULL;
    for (int64_t j = 0; j < n; j++) {
        const bool hidden = mask != NULL && mask[(f->batch * at->sq + f->query) * at->sk + key + j] == 0;
        for (int64_t h = 0; h < f->count; h++) {
            const void *q = cpu_head(at->q, at->a->q, f->query, f->batch, f->first + h);
            const void *k = cpu_head(at->kv, at->a->k, key + j, f->batch, (f->first + h) / at->group);
            fetch(k, AHEAD * next, d, type);
            fetch(cpu_head(at->kv, at->a->v, key + j, f->batch, (f->first + h) / at->group), 0, d, type);
            float dot = 0.0f;
            CPU_SIMD_SUM(dot)
            for (int64_t c = 0; c < d; c++)
                dot += cpu_get(q, c, type) * cpu_get(k, c, type);
            f->p[h][j] = hidden ? -INFINITY : at->a->scale * dot;
        }
    }
}

/* Scores become probabilities against the new maximum, with dropout. */
static void softmax_step(few *f, int64_t h, int64_t key, int64_t n)
{
    const clv_dropout *drop = &f->at->a->drop;
    float *p = f->p[h], most = f->max[h], sum = 0.0f, factor[CPU_TILE];
    for (int64_t j = 0; j < n; j++)
        most = p[j] > most ? p[j] : most;
    const float shift = most == -INFINITY ? 0.0f : most;
    f->shrink[h] = cpu_exp(f->max[h] - shift);
    f->max[h] = most;
    CPU_SIMD_SUM(sum)
    for (int64_t j = 0; j < n; j++) {
        p[j] = cpu_exp(p[j] - shift);
        sum += p[j];
    }
    f->sum[h] = f->sum[h] * f->shrink[h] + sum;
    if (!cpu_drops(drop))
        return;
    const int64_t head = drop->first + f->first + h;
    CPU(keep)(factor, n, drop, f->batch, (uint64_t)((head * f->at->sq + f->query) * f->at->sk + key));
    CPU_SIMD
    for (int64_t j = 0; j < n; j++)
        p[j] *= factor[j];
}

CPU_BODY void add_values(few *f, int64_t key, int64_t n, clv_dtype type)
{
    const cpu_attn *at = f->at;
    const int64_t d = at->a->q.dim;
    for (int64_t j = 0; j < n; j++)
        for (int64_t h = 0; h < f->count; h++) {
            float *o = f->o + h * at->width;
            const void *v = cpu_head(at->kv, at->a->v, key + j, f->batch, (f->first + h) / at->group);
            const float p = f->p[h][j], old = j == 0 ? f->shrink[h] : 1.0f;
            CPU_SIMD
            for (int64_t c = 0; c < d; c++)
                o[c] = old * o[c] + p * cpu_get(v, c, type);
        }
}

static void attend(few *f, clv_tensor out, clv_tensor lse)
{
    const cpu_attn *at = f->at;
    const clv_heads section = {0, at->a->q.count, at->a->q.dim};
    const int32_t *range = (const int32_t *)at->a->range.data + (f->query * at->batches + f->batch) * 2;
    const int64_t to = CLV_MIN(range[1], at->sk);
    memset(f->o, 0, (size_t)(f->count * at->width) * sizeof(float));
    for (int64_t h = 0; h < f->count; h++) {
        f->max[h] = -INFINITY;
        f->sum[h] = 0.0f;
    }
    for (int64_t key = CLV_MAX(range[0], 0); key < to; key += CPU_TILE) {
        const int64_t n = CLV_MIN(CPU_TILE, to - key);
        CPU_TYPED(at->kv.dtype, scores, f, key, n);
        for (int64_t h = 0; h < f->count; h++)
            softmax_step(f, h, key, n);
        CPU_TYPED(at->kv.dtype, add_values, f, key, n);
    }
    for (int64_t h = 0; h < f->count; h++) {
        void *o = cpu_head(out, section, f->query, f->batch, f->first + h);
        const float sum = f->sum[h], factor = sum != 0.0f ? 1.0f / sum : 0.0f;
        CPU_TYPED(out.dtype, cpu_store_scaled, o, f->o + h * at->width, factor, section.dim);
        ((float *)lse.data)[(f->batch * section.count + f->first + h) * at->sq + f->query] = f->max[h] + logf(sum);
    }
}

void CPU(attention_few)(clv_ctx *cx, clv_tensor o, clv_tensor lse, const cpu_attn *at)
{
    const size_t mark = clv_arena_mark(cx->temp);
    float *sums = clv_arena_push(cx->temp, clv_scratch_attention(at->q, at->a));
    const int64_t n = at->a->q.count, threads = clv_backend_threads();
    const int64_t each = CLV_MIN(HEADS, CLV_CEIL_DIV(n, CLV_CEIL_DIV(threads, at->batches * at->sq)));
    const int64_t chunks = CLV_CEIL_DIV(n, each), jobs = at->batches * at->sq * chunks;
    CPU_PARALLEL(at->batches * at->sq * at->sk * n * at->a->q.dim)
    for (int64_t job = 0; job < jobs; job++) {
        const int64_t row = job / chunks, first = job % chunks * each;
        few f = {.at = at, .batch = row % at->batches, .query = row / at->batches};
        f.o = sums + omp_get_thread_num() * CPU_FEW_HEADS * at->width;
        f.first = first;
        f.count = CLV_MIN(each, n - first);
        attend(&f, o, lse);
    }
    clv_arena_release(cx->temp, mark);
}
