/* decode.c - a stage's forward with a cache, for generation.
 *
 * The cache of a layer holds the fused activation [q k v] of every row so far, so a new row's product writes straight
 * into it. Sequences of a batch are aligned at their ends: sequence j begins at row start_j, its token in row i has
 * position i - start_j and sees rows start_j .. i. Edges are replicated: one token cannot be cut along the sequence.
 */
#include "model.h"

#include <stdlib.h>

clv_cache clv_cache_create(const clv_gpt *model, clv_arena *arena, int64_t rows, int64_t b)
{
    clv_cache cache = {.rows = rows, .layer = clv_alloc((size_t)model->options.layers, sizeof(clv_tensor))};
    for (int64_t i = 0; i < model->options.layers; i++)
        cache.layer[i] = clv_new(arena, CLV_SL, rows, b, model->blocks[i].attention.qkv.w.dim[0]);
    return cache;
}

void clv_cache_destroy(clv_cache *cache)
{
    free(cache->layer);
    *cache = (clv_cache){0};
}

/* pos i32 [sq, b] and range i32 [sq, b, 2] of the new rows, made on the host. Rows before a sequence's start see
 * nothing. */
static void place_rows(clv_ctx *cx, clv_tensor pos, clv_tensor range, const int32_t *start, int64_t used,
                       int64_t window)
{
    const int64_t sq = pos.dim[0], b = pos.dim[1];
    int32_t *p = clv_alloc((size_t)(sq * b), sizeof *p), *r = clv_alloc((size_t)(sq * b), 2 * sizeof *r);
    for (int64_t i = 0; i < sq; i++) {
        for (int64_t j = 0; j < b; j++) {
            const int32_t row = (int32_t)(used + i), first = start[j];
            const int32_t low = window > 0 ? row + 1 - (int32_t)window : first;
            p[i * b + j] = CLV_MAX(row - first, 0);
            r[(i * b + j) * 2] = CLV_MIN(CLV_MAX(low, first), row + 1);
            r[(i * b + j) * 2 + 1] = row + 1;
        }
    }
    clv_from_host(cx, pos, p);
    clv_from_host(cx, range, r);
    free(p);
    free(r);
}

/* x' = x + attention(norm1(x)) + bias;  y = x' + mlp(norm2(x')) + bias, in place. */
static void block_cached(clv_ctx *cx, clv_tensor x, const clv_block *block, const clv_scene *scene, clv_past past)
{
    const size_t mark = clv_arena_mark(cx->temp);
    clv_ctx once = *cx;
    once.save = cx->temp;
    const clv_dropout none = {0};
    clv_tensor n = clv_new(cx->temp, CLV_R, x.dim[0], x.dim[1], x.dim[2]);
    clv_tensor z = clv_new(cx->temp, CLV_R, x.dim[0], x.dim[1], x.dim[2]);
    clv_tensor stat = clv_new_as(cx->temp, CLV_F32, clv_rows(x), 2);
    clv_mlp_saved unused;

    clv_norm_forward(cx, n, stat, x, &block->norm1);
    clv_self_attention_cached(cx, z, n, &block->attention, scene, past);
    clv_residual_forward(cx, x, x, z, block->attention.bias, &none);
    clv_norm_forward(cx, n, stat, x, &block->norm2);
    clv_mlp_forward(&once, z, n, &block->mlp, &unused);
    clv_residual_forward(cx, x, x, z, block->mlp.bias, &none);
    clv_arena_release(cx->temp, mark);
}

void clv_gpt_decode(clv_ctx *cx, const clv_gpt *model, clv_cache *cache, const clv_fresh *rows)
{
    const size_t mark = clv_arena_mark(cx->temp);
    const int64_t sq = rows->tokens.dim[0], b = rows->tokens.dim[1];
    CLV_CHECK(model->edge == CLV_R, "decoding needs replicated edges");
    CLV_CHECK(cache->used + sq <= cache->rows, "cache of %lld rows: %lld used, %lld more", (long long)cache->rows,
              (long long)cache->used, (long long)sq);
    clv_batch batch = {.tokens = rows->tokens, .pos = clv_new_as(cx->temp, CLV_I32, sq, b)};
    clv_scene scene = {.batch = &batch,
                       .range = clv_new_as(cx->temp, CLV_I32, sq, b, 2),
                       .window_range = clv_new_as(cx->temp, CLV_I32, sq, b, 2),
                       .rope = model->rope,
                       .edge = CLV_R};
    place_rows(cx, batch.pos, scene.range, rows->start, cache->used, 0);
    place_rows(cx, batch.pos, scene.window_range, rows->start, cache->used, model->config.window);

    if (model->options.has_embedding)
        clv_embedding_forward(cx, rows->x, &model->embedding, &scene);
    for (int64_t i = 0; i < model->options.layers; i++)
        block_cached(cx, rows->x, &model->blocks[i], &scene, (clv_past){cache->layer[i], cache->used});
    if (model->options.has_head)
        clv_head_logits(cx, rows->logits, clv_slice(rows->x, sq - 1, 1), &model->head);
    cache->used += sq;
    clv_arena_release(cx->temp, mark);
}
