/* attention.c - self-attention cut over tensor-parallel ranks by heads: q, k, v by columns, the projection by rows, one
 * g.
 *
 *   [q k v] = f(x) W_i^T + w_i         the heads of this rank; KV heads are copied when there are fewer than ranks
 *   q, k    = rope(norm(q)), rope(norm(k))          where the family has them
 *   o       = dropout(softmax(q k^T / sqrt(d))) v
 *   y       = g( o O_i^T )
 *
 * With t ranks and g < t KV heads, t/g ranks hold the same head (axis TPR): its gradient is summed over them.
 * Source: Shoeybi et al. 2019, section 3; Ainslie et al. 2023 (grouped heads); Su et al. 2021 (rope).
 */
#include "model.h"

static clv_linear qkv_create(clv_builder *b, const char *prefix)
{
    const clv_config *c = b->config;
    const int64_t n = c->heads * c->head_dim, g = c->kv_heads * c->head_dim;
    const unsigned axes[3] = {CLV_TP, CLV_TPK, CLV_TPK}, sums[3] = {0, CLV_TPR, CLV_TPR};
    const char *const w_names[3] = {"self_attention.linear_q.weight", "self_attention.linear_k.weight",
                                    "self_attention.linear_v.weight"};
    const char *const b_names[3] = {"self_attention.linear_q.bias", "self_attention.linear_k.bias",
                                    "self_attention.linear_v.bias"};
    clv_param_spec w[3], bias[3];
    for (int i = 0; i < 3; i++) {
        w[i] = (clv_param_spec){.prefix = prefix,
                                .name = w_names[i],
                                .rows = i == 0 ? n : g,
                                .columns = c->hidden,
                                .split_dim = 0,
                                .split_axes = axes[i],
                                .sum_axes = sums[i],
                                .init_std = c->init_std};
        bias[i] = w[i];
        bias[i].name = b_names[i];
        bias[i].columns = 0;
        bias[i].init = CLV_INIT_ZEROS;
    }
    clv_linear qkv = clv_builder_add(b, w, 3);
    if (c->bias_qkv) {
        const clv_linear view = clv_builder_add(b, bias, 3);
        qkv.b = view.w;
        qkv.db = view.dw;
    }
    return qkv;
}

static void proj_create(clv_builder *b, const char *prefix, clv_self_attention *a)
{
    const clv_config *c = b->config;
    const unsigned edge_sum = b->edge == CLV_S0 ? CLV_TP : 0;
    const clv_param_spec w = {.prefix = prefix,
                              .name = "self_attention.linear_proj.weight",
                              .rows = c->hidden,
                              .columns = c->heads * c->head_dim,
                              .split_dim = 1,
                              .split_axes = CLV_TP,
                              .init_std = c->init_std / __builtin_sqrt(2.0 * (double)c->layers)};
    a->proj = clv_builder_add(b, &w, 1);
    if (!c->bias_proj)
        return;
    const clv_param_spec bias = {.prefix = prefix,
                                 .name = "self_attention.linear_proj.bias",
                                 .rows = c->hidden,
                                 .split_dim = -1,
                                 .sum_axes = edge_sum,
                                 .init = CLV_INIT_ZEROS};
    const clv_linear view = clv_builder_add(b, &bias, 1);
    a->bias = view.w;
    a->dbias = view.dw;
}

clv_self_attention clv_self_attention_create(clv_builder *b, const char *prefix, int64_t layer)
{
    const clv_config *c = b->config;
    const int64_t n = c->heads / clv_mesh_size(b->mesh, CLV_TP), g = c->kv_heads / clv_mesh_size(b->mesh, CLV_TPK);
    const int64_t d = c->head_dim;
    clv_self_attention a = {.q = {0, n, d},
                            .k = {n * d, g, d},
                            .v = {(n + g) * d, g, d},
                            .scale = (float)(1.0 / __builtin_sqrt((double)d)),
                            .dropout = c->attention_dropout,
                            .layer = layer,
                            .recompute = b->recompute,
                            .windowed = c->window > 0 && layer >= c->window_first};
    a.qkv = qkv_create(b, prefix);
    if (c->qk_norm) { /* each rank sees its own heads only: always a partial sum over tp */
        a.q_norm = clv_builder_norm(b, CLV_RMSNORM, prefix, "self_attention.q_layernorm", d, CLV_TP);
        a.k_norm = clv_builder_norm(b, CLV_RMSNORM, prefix, "self_attention.k_layernorm", d, CLV_TP);
    }
    proj_create(b, prefix, &a);
    return a;
}

static clv_attn core_of(const clv_self_attention *a, const clv_scene *scene, clv_dropout drop)
{
    return (clv_attn){.q = a->q,
                      .k = a->k,
                      .v = a->v,
                      .scale = a->scale,
                      .range = a->windowed ? scene->window_range : scene->range,
                      .mask = scene->batch->mask,
                      .drop = drop};
}

/* q and k as attention sees them: normed per head and turned by their positions. `u` is kept where the norm needs it.
 */
static clv_tensor position_forward(clv_ctx *cx, clv_tensor u, const clv_self_attention *a, const clv_scene *scene,
                                   clv_self_attention_saved *saved)
{
    clv_tensor c = u;
    if (a->q_norm.g.ndim > 0) {
        const int64_t rows = clv_rows(u);
        c = clv_new(cx->save, CLV_SL, u.dim[0], u.dim[1], u.dim[2]);
        saved->u = u;
        saved->q_stat = clv_new_as(cx->save, CLV_F32, rows, a->q.count);
        saved->k_stat = clv_new_as(cx->save, CLV_F32, rows, a->k.count);
        clv_copy(cx, c, u);                                              /* v stays as it is */
        clv_headnorm_forward(cx, c, saved->q_stat, u, a->q, &a->q_norm); /* q = norm(q)      */
        clv_headnorm_forward(cx, c, saved->k_stat, u, a->k, &a->k_norm); /* k = norm(k)      */
    }
    if (scene->rope.ndim > 0) {
        clv_rope(cx, c, a->q, scene->rope, scene->batch->pos, 1); /* q = rope(q) */
        clv_rope(cx, c, a->k, scene->rope, scene->batch->pos, 1); /* k = rope(k) */
    }
    return c;
}

static void position_backward(clv_ctx *cx, clv_tensor du, const clv_self_attention *a, const clv_scene *scene,
                              const clv_self_attention_saved *saved)
{
    if (scene->rope.ndim > 0) {
        clv_rope(cx, du, a->q, scene->rope, scene->batch->pos, -1);
        clv_rope(cx, du, a->k, scene->rope, scene->batch->pos, -1);
    }
    if (a->q_norm.g.ndim > 0) {
        clv_headnorm_backward(cx, du, saved->u, saved->q_stat, a->q, &a->q_norm);
        clv_headnorm_backward(cx, du, saved->u, saved->k_stat, a->k, &a->k_norm);
    }
}

void clv_self_attention_forward(clv_ctx *cx, clv_tensor y, clv_tensor x, const clv_self_attention *a,
                                const clv_scene *scene, clv_self_attention_saved *saved)
{
    const size_t mark = clv_arena_mark(cx->temp);
    clv_arena *keep = (a->recompute & CLV_RECOMPUTE_CORE_ATTN) != 0 ? cx->temp : cx->save;
    clv_tensor xf = clv_tp_gather(cx, cx->temp, x); /* f */
    const int64_t s = xf.dim[0], b = xf.dim[1], h = xf.dim[2];
    clv_tensor u = clv_new(cx->save, CLV_SL, s, b, a->qkv.w.dim[0]);
    clv_tensor o = clv_new(keep, CLV_SL, s, b, a->q.count * a->q.dim);
    clv_tensor lse = clv_new_as(keep, CLV_F32, b, a->q.count, s);
    clv_tensor p = clv_new(cx->temp, CLV_P, s, b, h);
    *saved = (clv_self_attention_saved){.x = x};

    clv_rng_fork(cx->rng, CLV_RNG_MODEL); /* heads are shards: masks differ over tp */
    saved->drop = clv_rng_dropout(cx->rng, a->dropout, a->layer, CLV_SITE_SCORES, 0);
    clv_rng_join(cx->rng);
    const clv_attn core = core_of(a, scene, saved->drop);

    clv_linear_forward(cx, u, xf, &a->qkv);                  /* [q k v] = f(x) W_i^T + w_i    */
    clv_tensor c = position_forward(cx, u, a, scene, saved); /* q, k = rope(norm(q)), ...     */
    clv_attention_forward(cx, o, lse, c, c, &core);          /* o = softmax(q k^T / sqrt d) v */
    clv_linear_forward(cx, p, o, &a->proj);                  /* p = o O_i^T                   */
    clv_tp_reduce(cx, y, p);                                 /* y = g(p)                      */

    saved->core.qkv = c;
    if (keep == cx->save) {
        saved->core.o = o;
        saved->core.lse = lse;
    }
    clv_forward_release(cx, mark);
}

/* o and its log-sum-exp as the forward had them: kept, or computed again. */
static clv_attn_saved core_restore(clv_ctx *cx, const clv_self_attention *a, const clv_attn *core, clv_attn_saved kept)
{
    if (kept.o.ndim > 0)
        return kept;
    const int64_t s = kept.qkv.dim[0], b = kept.qkv.dim[1];
    kept.o = clv_new(cx->temp, CLV_SL, s, b, a->q.count * a->q.dim);
    kept.lse = clv_new_as(cx->temp, CLV_F32, b, a->q.count, s);
    clv_attention_forward(cx, kept.o, kept.lse, kept.qkv, kept.qkv, core);
    return kept;
}

void clv_self_attention_backward(clv_ctx *cx, clv_tensor dx, clv_tensor dy, const clv_self_attention *a,
                                 const clv_scene *scene, const clv_self_attention_saved *saved)
{
    const size_t mark = clv_arena_mark(cx->temp);
    clv_tensor dyf = clv_tp_gather(cx, cx->temp, dy); /* g* */
    const int64_t s = dyf.dim[0], b = dyf.dim[1], h = dyf.dim[2];
    clv_tensor d_o = clv_new(cx->temp, CLV_SL, s, b, a->q.count * a->q.dim);
    clv_tensor du = clv_new(cx->temp, CLV_SL, s, b, a->qkv.w.dim[0]);
    clv_tensor dxf = clv_new(cx->temp, CLV_P, s, b, h);
    const clv_attn core = core_of(a, scene, saved->drop); /* the same masks */
    const clv_attn_saved kept = core_restore(cx, a, &core, saved->core);
    clv_tensor xf;

    clv_pending f = clv_tp_gather_begin(cx, cx->temp, &xf, saved->x); /* f again ...            */
    clv_linear_dgrad(cx, d_o, dyf, &a->proj);                         /* do = dy O_i            */
    clv_linear_wgrad(cx, &a->proj, dyf, kept.o);                      /* dO_i += dy^T o         */
    clv_attention_backward(cx, du, d_o, &kept, &core);                /* dq, dk, dv             */
    position_backward(cx, du, a, scene, saved);                       /* rope*, norm*           */
    clv_linear_dgrad(cx, dxf, du, &a->qkv);                           /* dxf = [dq dk dv] W_i   */
    clv_pending_end(&f);                                              /* ... hidden             */
    clv_tp_pending fstar = clv_tp_reduce_begin(cx, dx, dxf);          /* dx = f*(dxf) ...       */
    clv_linear_wgrad(cx, &a->qkv, du, xf);                            /* dW_i += [..]^T f(x)    */
    clv_tp_reduce_end(cx, &fstar);                                    /* ... hidden             */
    clv_arena_release(cx->temp, mark);
}

void clv_self_attention_cached(clv_ctx *cx, clv_tensor y, clv_tensor x, const clv_self_attention *a,
                               const clv_scene *scene, clv_past past)
{
    const size_t mark = clv_arena_mark(cx->temp);
    clv_tensor xf = clv_tp_gather(cx, cx->temp, x); /* f */
    const int64_t s = xf.dim[0], b = xf.dim[1], h = xf.dim[2];
    clv_tensor rows = clv_placed(clv_slice(past.rows, past.at, s), CLV_SL); /* where this call's q, k, v are kept */
    clv_tensor all = clv_placed(clv_slice(past.rows, 0, past.at + s), CLV_SL);
    clv_tensor o = clv_new(cx->temp, CLV_SL, s, b, a->q.count * a->q.dim);
    clv_tensor lse = clv_new_as(cx->temp, CLV_F32, b, a->q.count, s);
    clv_tensor p = clv_new(cx->temp, CLV_P, s, b, h);
    const clv_attn core = core_of(a, scene, (clv_dropout){0});

    clv_ctx once = *cx; /* nothing is kept for a backward */
    once.save = cx->temp;
    clv_self_attention_saved unused = {0};
    if (a->q_norm.g.ndim > 0) {
        clv_tensor u = clv_new(cx->temp, CLV_SL, s, b, a->qkv.w.dim[0]);
        clv_linear_forward(cx, u, xf, &a->qkv);                            /* [q k v] = x W_i^T + w_i */
        clv_copy(cx, rows, position_forward(&once, u, a, scene, &unused)); /* normed and turned       */
    } else {
        clv_linear_forward(cx, rows, xf, &a->qkv);
        position_forward(&once, rows, a, scene, &unused);
    }
    clv_attention_forward(cx, o, lse, rows, all, &core); /* o = softmax(q K^T / sqrt d) V */
    clv_linear_forward(cx, p, o, &a->proj);              /* p = o O_i^T                   */
    clv_tp_reduce(cx, y, p);                             /* y = g(p)                      */
    clv_arena_release(cx->temp, mark);
}
