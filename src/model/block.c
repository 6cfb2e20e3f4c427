/* block.c - a transformer layer, pre-norm:
 *
 *   x1 = x  + dropout( attention(norm1(x)) + bias )
 *   y  = x1 + dropout( mlp(norm2(x1)) + bias )
 *
 * Norms, residuals and dropout work on the edge: whole sequences (R) or sequence shards (S0), with equal masks, since
 * rows are numbered in the whole sequence. The row biases are added here, once, after g.
 */
#include "model.h"

#include <stdio.h>

clv_block clv_block_create(clv_builder *b, int64_t layer)
{
    const unsigned edge_sum = b->edge == CLV_S0 ? CLV_TP : 0;
    char prefix[48];
    snprintf(prefix, sizeof prefix, "decoder.layers.%lld.", (long long)layer);
    clv_block block = {.dropout = b->config->hidden_dropout, .layer = layer, .recompute = b->recompute};
    block.norm1 = clv_builder_norm(b, b->config->norm, prefix, "input_layernorm", b->config->hidden, edge_sum);
    block.attention = clv_self_attention_create(b, prefix, layer);
    block.norm2 = clv_builder_norm(b, b->config->norm, prefix, "pre_mlp_layernorm", b->config->hidden, edge_sum);
    block.mlp = clv_mlp_create(b, prefix);
    return block;
}

static int64_t first_row(const clv_ctx *cx, clv_tensor x)
{
    return x.place == CLV_S0 ? x.dim[0] * clv_mesh_coord(cx->mesh, CLV_TP) : 0;
}

void clv_block_forward(clv_ctx *cx, clv_tensor y, clv_tensor x, const clv_block *block, const clv_scene *scene,
                       clv_block_saved *saved)
{
    const size_t mark = clv_arena_mark(cx->temp);
    clv_arena *keep = (block->recompute & CLV_RECOMPUTE_LAYERNORM) != 0 ? cx->temp : cx->save;
    const int64_t s = x.dim[0], b = x.dim[1], h = x.dim[2], first = first_row(cx, x);
    clv_tensor n1 = clv_new(keep, x.place, s, b, h), n2 = clv_new(keep, x.place, s, b, h);
    clv_tensor x1 = clv_new(cx->save, x.place, s, b, h), z = clv_new(cx->temp, x.place, s, b, h);
    *saved =
        (clv_block_saved){.x = x,
                          .x1 = x1,
                          .stat1 = clv_new_as(cx->save, CLV_F32, s * b, 2),
                          .stat2 = clv_new_as(cx->save, CLV_F32, s * b, 2),
                          .drop1 = clv_rng_dropout(cx->rng, block->dropout, block->layer, CLV_SITE_ATTENTION, first),
                          .drop2 = clv_rng_dropout(cx->rng, block->dropout, block->layer, CLV_SITE_MLP, first)};

    clv_norm_forward(cx, n1, saved->stat1, x, &block->norm1);                           /* n1 = norm1(x)      */
    clv_self_attention_forward(cx, z, n1, &block->attention, scene, &saved->attention); /* z = attention(n1)  */
    clv_residual_forward(cx, x1, x, z, block->attention.bias, &saved->drop1);           /* x1 = x + drop(z+b) */
    clv_norm_forward(cx, n2, saved->stat2, x1, &block->norm2);                          /* n2 = norm2(x1)     */
    clv_mlp_forward(cx, z, n2, &block->mlp, &saved->mlp);                               /* z = mlp(n2)        */
    clv_residual_forward(cx, y, x1, z, block->mlp.bias, &saved->drop2);                 /* y = x1 + drop(z+b) */
    if (keep != cx->save)
        saved->attention.x.ndim = saved->mlp.x.ndim = 0; /* computed again */
    clv_forward_release(cx, mark);
}

/* A norm's output as the forward had it: kept, or computed again. */
static clv_tensor norm_restore(clv_ctx *cx, clv_tensor kept, clv_tensor x, clv_tensor stat, const clv_norm *norm)
{
    if (kept.ndim > 0)
        return kept;
    clv_tensor n = clv_new(cx->temp, x.place, x.dim[0], x.dim[1], x.dim[2]);
    clv_norm_forward(cx, n, stat, x, norm);
    return n;
}

void clv_block_backward(clv_ctx *cx, clv_tensor dx, const clv_block *block, const clv_scene *scene,
                        const clv_block_saved *saved)
{
    const size_t mark = clv_arena_mark(cx->temp);
    const int64_t s = dx.dim[0], b = dx.dim[1], h = dx.dim[2];
    clv_tensor dn = clv_new(cx->temp, dx.place, s, b, h);
    clv_tensor dz = block->dropout > 0 ? clv_new(cx->temp, dx.place, s, b, h) : dx; /* without a mask dz is dx */
    clv_mlp_saved mlp = saved->mlp;
    clv_self_attention_saved attention = saved->attention;

    mlp.x = norm_restore(cx, mlp.x, saved->x1, saved->stat2, &block->norm2);            /* n2                  */
    clv_residual_backward(cx, dz, block->mlp.dbias, dx, &saved->drop2);                 /* dz = drop*(dy)      */
    clv_mlp_backward(cx, dn, dz, &block->mlp, &mlp);                                    /* dn2 = mlp*(dz)      */
    clv_norm_backward(cx, dx, dn, saved->x1, saved->stat2, &block->norm2);              /* dx1 = dy + norm2*   */
    attention.x = norm_restore(cx, attention.x, saved->x, saved->stat1, &block->norm1); /* n1               */
    clv_residual_backward(cx, dz, block->attention.dbias, dx, &saved->drop1);           /* dz = drop*(dx1)     */
    clv_self_attention_backward(cx, dn, dz, &block->attention, scene, &attention);      /* dn1 = attention*(dz) */
    clv_norm_backward(cx, dx, dn, saved->x, saved->stat1, &block->norm1);               /* dx = dx1 + norm1*   */
    clv_arena_release(cx->temp, mark);
}
