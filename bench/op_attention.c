/* op_attention.c - bench_op: causal attention, counting the scores that the mask leaves. */
#include "op_internal.h"

static void make_attention(work *w)
{
    const float scale = 0.125f;
    w->attn = (clv_attn){.q = {0, N, D}, .k = {N * D, N, D}, .v = {2 * N * D, N, D}, .scale = scale};
    w->attn.range = clv_new_as(&w->data, CLV_I32, w->s, 1, 2);
    clv_backend_ref()->attention_range(w->attn.range, (clv_tensor){0}, true, 0);
    w->in[0] = random_tensor(w, w->s, 3 * N * D);
    w->in[1] = random_tensor(w, w->s, N * D);
    w->in[2] = random_tensor(w, w->s, N * D);
    w->in[3] = clv_new_as(&w->data, CLV_F32, 1, N, w->s);
    w->flops = 4.0 * N * D * (double)w->s * (double)(w->s + 1) / 2.0;
    w->out[0] = w->in[1];
    w->out[1] = w->in[3];
}

static void run_attention(work *w)
{
    w->be->attention_forward(&w->cx, w->in[1], w->in[3], w->in[0], w->in[0], &w->attn);
}

static void make_attention_dropout(work *w)
{
    make_attention(w);
    make_dropout(w);
    w->attn.drop = w->drop;
}

static void make_attention_back(work *w)
{
    make_attention(w);
    run_attention(w);
    w->out[0] = random_tensor(w, w->s, 3 * N * D);
    w->out[1] = (clv_tensor){0};
    w->flops *= 2.5;
}

static void run_attention_back(work *w)
{
    const clv_attn_saved saved = {w->in[0], w->in[1], w->in[3]};
    w->be->attention_backward(&w->cx, w->out[0], w->in[2], &saved, &w->attn);
}

/* One query over the keys of all tokens. */
static void make_decode(work *w)
{
    make_attention(w);
    w->attn.range = clv_slice(w->attn.range, w->s - 1, 1);
    w->in[2] = random_tensor(w, 1, 3 * N * D);
    w->out[0] = w->in[1] = random_tensor(w, 1, N * D);
    w->out[1] = w->in[3] = clv_new_as(&w->data, CLV_F32, 1, N, 1);
    w->flops = 0.0;
    w->bytes = 8.0 * N * D * (double)w->s;
}

static void run_decode(work *w)
{
    w->be->attention_forward(&w->cx, w->in[1], w->in[3], w->in[2], w->in[0], &w->attn);
}

static const kernel kernels[] = {
    {"attention", make_attention, run_attention},
    {"attention, dropout", make_attention_dropout, run_attention},
    {"attention backward", make_attention_back, run_attention_back},
    {"attention, 1 query", make_decode, run_decode},
};

const group attentions = {.kernels = kernels, .count = CLV_COUNT(kernels)};
