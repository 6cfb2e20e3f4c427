/* mlp.c - the MLP cut over tensor-parallel ranks: first matrix by columns, second by rows, one g.
 *
 *   y = g( act( f(x) A_i^T + a_i ) B_i^T )        i: this rank's slice of the MLP width
 *
 * Gated: A holds gate and up below each other, act(u) = silu(gate) up. The row bias is added once, after g, by the
 * block. Source: Shoeybi et al. 2019, section 3.
 */
#include "model.h"

clv_mlp clv_mlp_create(clv_builder *b, const char *prefix)
{
    const clv_config *c = b->config;
    const bool gated = clv_config_has_gate(c);
    const double out_std = c->init_std / __builtin_sqrt(2.0 * (double)c->layers);
    const unsigned edge_sum = b->edge == CLV_S0 ? CLV_TP : 0;
    clv_mlp m = {.act = c->act, .ffn = c->ffn / clv_mesh_size(b->mesh, CLV_TP), .recompute = b->recompute};

    const char *const w_names[2] = {gated ? "mlp.linear_gate.weight" : "mlp.linear_fc1.weight", "mlp.linear_up.weight"};
    const char *const b_names[2] = {gated ? "mlp.linear_gate.bias" : "mlp.linear_fc1.bias", "mlp.linear_up.bias"};
    clv_param_spec w[2], bias[2];
    for (int i = 0; i < 2; i++) {
        w[i] = (clv_param_spec){.prefix = prefix,
                                .name = w_names[i],
                                .rows = c->ffn,
                                .columns = c->hidden,
                                .split_dim = 0,
                                .split_axes = CLV_TP,
                                .init_std = c->init_std};
        bias[i] = (clv_param_spec){.prefix = prefix,
                                   .name = b_names[i],
                                   .rows = c->ffn,
                                   .split_dim = 0,
                                   .split_axes = CLV_TP,
                                   .init = CLV_INIT_ZEROS};
    }
    m.a = clv_builder_add(b, w, gated ? 2 : 1);
    if (c->bias_fc1) {
        const clv_linear view = clv_builder_add(b, bias, gated ? 2 : 1);
        m.a.b = view.w;
        m.a.db = view.dw;
    }
    const clv_param_spec out = {.prefix = prefix,
                                .name = "mlp.linear_fc2.weight",
                                .rows = c->hidden,
                                .columns = c->ffn,
                                .split_dim = 1,
                                .split_axes = CLV_TP,
                                .init_std = out_std};
    m.b = clv_builder_add(b, &out, 1);
    if (c->bias_fc2) {
        const clv_param_spec out_bias = {.prefix = prefix,
                                         .name = "mlp.linear_fc2.bias",
                                         .rows = c->hidden,
                                         .split_dim = -1,
                                         .sum_axes = edge_sum,
                                         .init = CLV_INIT_ZEROS};
        const clv_linear view = clv_builder_add(b, &out_bias, 1);
        m.bias = view.w;
        m.dbias = view.dw;
    }
    return m;
}

static clv_tensor kept(const clv_ctx *cx, const clv_arena *arena, clv_tensor t)
{
    return arena == cx->save ? t : (clv_tensor){0};
}

void clv_mlp_forward(clv_ctx *cx, clv_tensor y, clv_tensor x, const clv_mlp *m, clv_mlp_saved *saved)
{
    const size_t mark = clv_arena_mark(cx->temp);
    clv_arena *keep_u = (m->recompute & CLV_RECOMPUTE_MLP) != 0 ? cx->temp : cx->save;
    clv_arena *keep_v = (m->recompute & (CLV_RECOMPUTE_MLP | CLV_RECOMPUTE_MLP_ACT)) != 0 ? cx->temp : cx->save;
    clv_tensor xf = clv_tp_gather(cx, cx->temp, x); /* f */
    const int64_t s = xf.dim[0], b = xf.dim[1], h = xf.dim[2];

    clv_tensor u = clv_new(keep_u, CLV_SL, s, b, m->a.w.dim[0]);
    clv_tensor v = clv_new(keep_v, CLV_SL, s, b, m->ffn);
    clv_tensor p = clv_new(cx->temp, CLV_P, s, b, h);

    clv_linear_forward(cx, u, xf, &m->a); /* u = f(x) A_i^T + a_i */
    clv_act_forward(cx, v, u, m->act);    /* v = act(u)           */
    clv_linear_forward(cx, p, v, &m->b);  /* p = v B_i^T          */
    clv_tp_reduce(cx, y, p);              /* y = g(p)             */

    *saved = (clv_mlp_saved){.x = x, .u = kept(cx, keep_u, u), .v = kept(cx, keep_v, v)};
    clv_forward_release(cx, mark);
}

/* u and v as the forward had them: kept, or computed again. */
static void restore(clv_ctx *cx, clv_tensor *u, clv_tensor *v, clv_tensor xf, const clv_mlp *m)
{
    const int64_t s = xf.dim[0], b = xf.dim[1];
    if (u->ndim == 0) {
        *u = clv_new(cx->temp, CLV_SL, s, b, m->a.w.dim[0]);
        clv_linear_forward(cx, *u, xf, &m->a); /* u = f(x) A_i^T + a_i, again */
    }
    if (v->ndim == 0) {
        *v = clv_new(cx->temp, CLV_SL, s, b, m->ffn);
        clv_act_forward(cx, *v, *u, m->act); /* v = act(u), again */
    }
}

void clv_mlp_backward(clv_ctx *cx, clv_tensor dx, clv_tensor dy, const clv_mlp *m, const clv_mlp_saved *saved)
{
    const size_t mark = clv_arena_mark(cx->temp);
    clv_tensor dyf = clv_tp_gather(cx, cx->temp, dy); /* g* */
    const int64_t s = dyf.dim[0], b = dyf.dim[1], h = dyf.dim[2];
    clv_tensor dv = clv_new(cx->temp, CLV_SL, s, b, m->ffn);
    clv_tensor du = clv_new(cx->temp, CLV_SL, s, b, m->a.w.dim[0]);
    clv_tensor dxf = clv_new(cx->temp, CLV_P, s, b, h);
    clv_tensor xf, u = saved->u, v = saved->v;

    clv_pending f = clv_tp_gather_begin(cx, cx->temp, &xf, saved->x); /* f again ...       */
    clv_linear_dgrad(cx, dv, dyf, &m->b);                             /* dv = dy B_i       */
    clv_pending_end(&f);                                              /* ... hidden        */
    restore(cx, &u, &v, xf, m);
    clv_linear_wgrad(cx, &m->b, dyf, v);                     /* dB_i += dy^T v    */
    clv_act_backward(cx, du, dv, u, m->act);                 /* du = act'(u) dv   */
    clv_linear_dgrad(cx, dxf, du, &m->a);                    /* dxf = du A_i      */
    clv_tp_pending fstar = clv_tp_reduce_begin(cx, dx, dxf); /* dx = f*(dxf) ...  */
    clv_linear_wgrad(cx, &m->a, du, xf);                     /* dA_i += du^T f(x) */
    clv_tp_reduce_end(cx, &fstar);                           /* ... hidden        */
    clv_arena_release(cx->temp, mark);
}
