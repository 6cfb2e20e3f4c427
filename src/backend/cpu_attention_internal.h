/* cpu_attention_internal.h - tiles of attention, for the forward and the backward.
 *
 * A tile is CPU_TILE queries x CPU_TILE keys. Scores are held transposed, S^T[key][query]: a query is a lane, so the
 * softmax needs no sums across a register; S^T = K (scale Q)^T wants Q transposed (once per tile of queries) and takes
 * K as it lies. Rows of heads are copied into scratch, padded with zeros to whole tiles and to `width` columns.
 */
#ifndef CLV_CPU_ATTENTION_INTERNAL_H
#define CLV_CPU_ATTENTION_INTERNAL_H

#include "cpu_internal.h"

typedef struct cpu_attn {
    const clv_attn *a;
    clv_tensor q, kv;
    int64_t sq, sk, batches, group; /* group: query heads of a KV head */
    int64_t width;                  /* floats of a padded row */
} cpu_attn;

/* The queries of one tile: where they are, and which keys they see. */
typedef struct cpu_queries {
    int64_t batch, head, first, count;
    int32_t lo[CPU_TILE], hi[CPU_TILE];
    int64_t from, to;       /* keys that any of them sees */
    int64_t all_lo, all_hi; /* keys that all of them see */
} cpu_queries;

static inline cpu_attn cpu_attn_of(clv_tensor q, clv_tensor kv, const clv_attn *a)
{
    return (cpu_attn){a, q, kv, q.dim[0], kv.dim[0], q.dim[1], a->q.count / a->k.count, cpu_head_width(a->q.dim)};
}

/* The vector of head `head` in section `at` of row i. */
static inline void *cpu_head(clv_tensor t, clv_heads at, int64_t i, int64_t batch, int64_t head)
{
    return cpu_at(t, (i * t.dim[1] + batch) * clv_last(t) + at.off + head * at.dim);
}

/* The vectors of a head from row i on: element (r, j) lies r row + j elements behind the first. */
typedef struct cpu_vectors {
    void *at;
    int64_t row;
    clv_dtype type;
} cpu_vectors;

static inline cpu_vectors cpu_vectors_of(clv_tensor t, clv_heads at, int64_t i, int64_t batch, int64_t head)
{
    return (cpu_vectors){cpu_head(t, at, i, batch, head), t.dim[1] * clv_last(t), t.dtype};
}

typedef struct cpu_tile {
    float *at;
    int64_t width;
} cpu_tile;

CPU_BODY void cpu_tile_fill(cpu_tile tile, const cpu_vectors *from, int64_t count, int64_t d, float scale,
                            clv_dtype type)
{
    for (int64_t i = 0; i < CPU_TILE; i++) {
        float *to = tile.at + i * tile.width;
        const int64_t n = i < count ? d : 0, first = i * from->row;
        CPU_SIMD
        for (int64_t j = 0; j < n; j++)
            to[j] = scale * cpu_get(from->at, first + j, type);
        for (int64_t j = n; j < tile.width; j++)
            to[j] = 0.0f;
    }
}

/* A tile of rows into scratch: `count` rows of d values times scale, zeros around them. */
static inline void cpu_tile_load(float *tile, int64_t width, cpu_vectors from, int64_t count, int64_t d, float scale)
{
    const cpu_tile to = {tile, width};
    CPU_TYPED(from.type, cpu_tile_fill, to, &from, count, d, scale);
}

/* to = scale from, n values. */
CPU_BODY void cpu_store_scaled(void *to, const float *from, float scale, int64_t n, clv_dtype type)
{
    CPU_SIMD
    for (int64_t j = 0; j < n; j++)
        cpu_put(to, j, scale * from[j], type);
}

/* to[width][CPU_TILE] = tile[CPU_TILE][width]^T */
static inline void cpu_tile_transpose(float *to, const float *tile, int64_t width)
{
    for (int64_t j = 0; j < width; j += 4)
        for (int64_t i = 0; i < CPU_TILE; i += 4)
            cpu_transpose4(to + j * CPU_TILE + i, CPU_TILE, tile + i * width + j, width);
}

/* The same for an operand that is read along its rows, so that it may stay where it is if nothing needs padding. */
static inline cpu_view cpu_tile_rows(float *tile, int64_t width, cpu_vectors from, int64_t count, int64_t d)
{
    if (from.type == CLV_F32 && count >= CPU_TILE && d == width)
        return (cpu_view){from.at, from.row, 1};
    cpu_tile_load(tile, width, from, count, d, 1.0f);
    return (cpu_view){tile, width, 1};
}

static inline cpu_view cpu_rows_of(float *at, int64_t row)
{
    return (cpu_view){at, row, 1};
}

static inline cpu_view cpu_columns_of(float *at, int64_t row)
{
    return (cpu_view){at, 1, row};
}

/* cpu_attention_few.c: the forward for at most CPU_FEW queries. */
void CPU(attention_few)(clv_ctx *cx, clv_tensor o, clv_tensor lse, const cpu_attn *at);

cpu_queries CPU(queries)(const cpu_attn *at, int64_t batch, int64_t head, int64_t first);
/* s[CPU_TILE keys][CPU_TILE queries] of the keys from `key` on; -inf where a query does not see. */
void CPU(scores)(float *s, const cpu_attn *at, const cpu_queries *qs, int64_t key, cpu_view k, float *qt);
/* factor[keys][queries]: what dropout multiplies the probabilities of the tile by. */
void CPU(tile_keep)(float *factor, const cpu_attn *at, const cpu_queries *qs, int64_t key);

#endif
