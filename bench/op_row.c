/* op_row.c - bench_op: what moves memory: norms, activations, residuals, rope, lookup, loss, and the update. */
#include "op_internal.h"

/* ---- rows ------------------------------------------------------------------------------------------------------ */

static void make_norm(work *w)
{
    w->norm = (clv_norm){.kind = CLV_LAYERNORM, .eps = 1e-5f};
    w->norm.g = random_tensor(w, 1, H);
    w->norm.b = random_tensor(w, 1, H);
    w->norm.dg = w->out[1] = random_tensor(w, 1, H);
    w->norm.db = w->out[2] = random_tensor(w, 1, H);
    w->in[0] = random_tensor(w, w->s, H);
    w->in[1] = random_tensor(w, w->s, H);
    w->in[2] = clv_new_as(&w->data, CLV_F32, w->s, 2);
    w->out[0] = random_tensor(w, w->s, H);
    w->bytes = 8.0 * H * (double)w->s;
    clv_backend_ref()->norm_forward(w->out[0], w->in[2], w->in[0], &w->norm);
}

static void make_rmsnorm(work *w)
{
    make_norm(w);
    w->norm.kind = CLV_RMSNORM;
    w->norm.b = w->norm.db = w->out[2] = (clv_tensor){0};
    clv_backend_ref()->norm_forward(w->out[0], w->in[2], w->in[0], &w->norm);
}

static void run_norm(work *w)
{
    w->be->norm_forward(w->out[0], w->in[2], w->in[0], &w->norm);
}

static void make_norm_back(work *w)
{
    make_norm(w);
    w->bytes *= 2.0;
}

static void make_rmsnorm_back(work *w)
{
    make_rmsnorm(w);
    w->bytes *= 2.0;
}

static void run_norm_back(work *w)
{
    w->be->norm_backward(&w->cx, w->out[0], w->in[1], w->in[0], w->in[2], &w->norm);
}

static void make_act(work *w)
{
    w->in[0] = random_tensor(w, w->s, F);
    w->in[1] = random_tensor(w, w->s, F);
    w->out[0] = random_tensor(w, w->s, F);
    w->bytes = 8.0 * F * (double)w->s;
}

static void make_act_back(work *w)
{
    make_act(w);
    w->bytes *= 1.5;
}

static void run_gelu(work *w)
{
    w->be->act_forward(w->out[0], w->in[0], CLV_GELU);
}

static void run_gelu_tanh(work *w)
{
    w->be->act_forward(w->out[0], w->in[0], CLV_GELU_TANH);
}

static void run_gelu_back(work *w)
{
    w->be->act_backward(w->out[0], w->in[1], w->in[0], CLV_GELU);
}

static void run_gelu_tanh_back(work *w)
{
    w->be->act_backward(w->out[0], w->in[1], w->in[0], CLV_GELU_TANH);
}

static void run_relu(work *w)
{
    w->be->act_forward(w->out[0], w->in[0], CLV_RELU);
}

static void run_relu_back(work *w)
{
    w->be->act_backward(w->out[0], w->in[1], w->in[0], CLV_RELU);
}

static void make_swiglu(work *w)
{
    w->in[0] = random_tensor(w, w->s, 2 * F);
    w->out[0] = random_tensor(w, w->s, F);
    w->bytes = 12.0 * F * (double)w->s;
}

static void make_swiglu_back(work *w)
{
    w->in[0] = random_tensor(w, w->s, 2 * F);
    w->in[1] = random_tensor(w, w->s, F);
    w->out[0] = random_tensor(w, w->s, 2 * F);
    w->bytes = 20.0 * F * (double)w->s;
}

static void run_swiglu(work *w)
{
    w->be->act_forward(w->out[0], w->in[0], CLV_SWIGLU);
}

static void run_swiglu_back(work *w)
{
    w->be->act_backward(w->out[0], w->in[1], w->in[0], CLV_SWIGLU);
}

static void make_residual(work *w)
{
    w->in[0] = random_tensor(w, w->s, H);
    w->in[1] = random_tensor(w, w->s, H);
    w->in[2] = random_tensor(w, 1, H);
    w->out[0] = random_tensor(w, w->s, H);
    w->bytes = 12.0 * H * (double)w->s;
    w->drop = (clv_dropout){.p = 0.0f};
}

static void make_residual_dropout(work *w)
{
    make_residual(w);
    make_dropout(w);
}

static void run_residual(work *w)
{
    w->be->residual_forward(w->out[0], w->in[0], w->in[1], w->in[2], &w->drop);
}

static void make_rope(work *w)
{
    w->table = clv_reshape2(random_tensor(w, w->s, D), w->s, D);
    w->ids = integers(w, w->s, w->s);
    w->out[0] = random_tensor(w, w->s, 3 * H);
    w->bytes = 8.0 * H * (double)w->s;
}

static void run_rope(work *w)
{
    w->be->rope(w->out[0], (clv_heads){0, N, D}, w->table, w->ids, 1);
}

static void make_column_sums(work *w)
{
    w->in[0] = random_tensor(w, w->s, F);
    w->out[0] = random_tensor(w, 1, F);
    w->bytes = 4.0 * F * (double)w->s;
}

static void run_column_sums(work *w)
{
    w->be->column_sums(w->out[0], w->in[0]);
}

/* ---- lookup and loss ------------------------------------------------------------------------------------------- */

static void make_embed(work *w)
{
    w->table = clv_reshape2(random_tensor(w, V, H), V, H);
    w->ids = integers(w, w->s, V);
    w->out[0] = random_tensor(w, w->s, H);
    w->bytes = 8.0 * H * (double)w->s;
}

static void run_embed(work *w)
{
    w->be->embed_forward(w->out[0], w->ids, w->table, 0);
}

static void make_embed_back(work *w)
{
    make_embed(w);
    w->in[0] = w->out[0];
    w->out[0] = w->table;
    w->bytes *= 1.5;
}

static void run_embed_back(work *w)
{
    w->be->embed_backward(w->out[0], w->in[0], w->ids, 0);
}

static void make_loss(work *w)
{
    w->ce = (clv_ce){.target = integers(w, w->s, V), .real = V - 47, .classes = V - 47};
    w->out[0] = random_tensor(w, w->s, V);
    w->in[0] = clv_new_as(&w->data, CLV_F32, w->s);
    w->in[1] = clv_new_as(&w->data, CLV_F32, w->s);
    w->in[2] = clv_new_as(&w->data, CLV_F32, 2, w->s);
    w->in[3] = clv_new_as(&w->data, CLV_F32, w->s);
    for (int64_t i = 0; i < w->s; i++)
        ((float *)w->in[3].data)[i] = 1.0f;
    w->bytes = 16.0 * V * (double)w->s;
}

static void run_loss(work *w)
{
    w->be->ce_max(w->in[0], w->out[0], &w->ce);
    w->be->ce_sums(w->in[1], w->in[2], w->out[0], w->in[0], &w->ce);
    w->be->ce_backward(w->out[0], w->in[0], w->in[2], w->in[3], &w->ce);
}

/* ---- parameters: w->s rows of the embedding --------------------------------------------------------------------- */

static void make_adamw(work *w)
{
    for (int i = 0; i < 3; i++)
        w->out[i] = random_tensor(w, 32 * w->s, H);
    w->in[0] = random_tensor(w, 32 * w->s, H);
    w->be->zero(w->out[1]);
    w->be->zero(w->out[2]);
    w->bytes = 28.0 * 32.0 * H * (double)w->s;
}

static void run_adamw(work *w)
{
    const clv_adamw a = {
        .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .decay = 0.1f, .grad_scale = 1.0f, .step = 3};
    w->be->adamw(&(clv_moving){.w = w->out[0], .m = w->out[1], .v = w->out[2]}, w->in[0], &a);
}

static void make_sum(work *w)
{
    w->in[0] = random_tensor(w, 32 * w->s, H);
    w->out[0] = clv_new_as(&w->data, CLV_F64, 1);
    w->be->zero(w->out[0]);
    w->bytes = 4.0 * 32.0 * H * (double)w->s;
}

static void run_sum(work *w)
{
    w->be->sum_squares(w->out[0], w->in[0]);
}

static void make_add(work *w)
{
    w->in[0] = random_tensor(w, 32 * w->s, H);
    w->out[0] = random_tensor(w, 32 * w->s, H);
    w->bytes = 12.0 * 32.0 * H * (double)w->s;
}

static void run_add(work *w)
{
    w->be->add(w->out[0], w->in[0]);
}

static void make_bf16(work *w)
{
    w->in[0] = random_tensor(w, 32 * w->s, H);
    w->out[0] = clv_new_as(&w->data, CLV_BF16, 32 * w->s, 1, H);
    w->bytes = 6.0 * 32.0 * H * (double)w->s;
}

static void run_bf16(work *w)
{
    w->be->copy(w->out[0], w->in[0]);
}

static const kernel kernels[] = {
    {"layernorm", make_norm, run_norm},
    {"layernorm backward", make_norm_back, run_norm_back},
    {"rmsnorm", make_rmsnorm, run_norm},
    {"rmsnorm backward", make_rmsnorm_back, run_norm_back},
    {"gelu", make_act, run_gelu},
    {"gelu backward", make_act_back, run_gelu_back},
    {"gelu tanh", make_act, run_gelu_tanh},
    {"gelu tanh backward", make_act_back, run_gelu_tanh_back},
    {"relu", make_act, run_relu},
    {"relu backward", make_act_back, run_relu_back},
    {"swiglu", make_swiglu, run_swiglu},
    {"swiglu backward", make_swiglu_back, run_swiglu_back},
    {"residual + bias", make_residual, run_residual},
    {"residual, dropout", make_residual_dropout, run_residual},
    {"rope", make_rope, run_rope},
    {"column sums", make_column_sums, run_column_sums},
    {"embed", make_embed, run_embed},
    {"embed backward", make_embed_back, run_embed_back},
    {"cross entropy", make_loss, run_loss},
    {"adamw", make_adamw, run_adamw},
    {"sum of squares", make_sum, run_sum},
    {"add", make_add, run_add},
    {"to bf16", make_bf16, run_bf16},
};

const group rows = {.kernels = kernels, .count = CLV_COUNT(kernels)};
