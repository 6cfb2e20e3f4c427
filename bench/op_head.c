/* op_head.c - bench_op: the vocabulary's head with its loss, forward and backward, as the model calls it.
 *
 *   logits = norm(x) W^T,  loss = cross entropy,  dnorm = dlogits W,  dW += dlogits^T norm(x),  dx = norm*(dnorm)
 *
 * The peer is its three products alone, each over all tokens at once, which needs memory for all logits.
 */
#include "model/model.h"
#include "op_internal.h"

static clv_tensor vector(work *w)
{
    clv_tensor t = random_tensor(w, 1, H);
    t.dim[0] = H;
    t.ndim = 1;
    return t;
}

static void make_head(work *w)
{
    w->norm = (clv_norm){
        .kind = CLV_LAYERNORM, .eps = 1e-5f, .g = vector(w), .dg = vector(w), .b = vector(w), .db = vector(w)};
    w->table = clv_reshape2(random_tensor(w, V, H), V, H);
    w->be->scale(w->table, 0.05f); /* logits of a size at which many classes count */
    w->in[0] = random_tensor(w, w->s, H);
    w->in[1] = clv_new_as(&w->data, CLV_F32, w->s, V); /* logits of the peer */
    w->in[2] = clv_new_as(&w->data, CLV_F32, w->s, 1); /* weights of the tokens */
    w->ids = clv_reshape2(integers(w, w->s, V - 47), w->s, 1);
    w->out[0] = random_tensor(w, w->s, H);
    w->out[1] = clv_new_as(&w->data, CLV_F32, V, H);
    w->be->zero(w->out[1]);
    for (int64_t i = 0; i < w->s; i++)
        ((float *)w->in[2].data)[i] = 1.0f;
    w->flops = 6.0 * (double)w->s * V * H;
}

static void run_head(work *w)
{
    const size_t mark = clv_arena_mark(&w->data);
    const clv_vocab output = {.l = {.w = w->table, .dw = w->out[1]}, .real = V - 47, .classes = V - 47};
    const clv_head head = {.norm = w->norm, .output = output};
    const clv_batch batch = {.tokens = w->ids, .target = w->ids, .weight = w->in[2]};
    const clv_scene scene = {.batch = &batch};
    const clv_losses losses = {clv_new_as(&w->data, CLV_F64, 1), clv_new_as(&w->data, CLV_F64, 1)};
    clv_head_saved saved;
    w->be->zero(losses.loss);
    w->be->zero(losses.nll);
    clv_head_forward(&w->cx, w->in[0], &head, &scene, losses, &saved);
    clv_head_backward(&w->cx, w->out[0], &head, &saved);
    clv_arena_release(&w->data, mark);
}

static void run_products(work *w)
{
    const clv_tensor x = w->in[0], logits = w->in[1];
    w->be->gemm(&w->cx, &(clv_gemm){.kind = CLV_NT, .c = logits, .a = x, .b = w->table});
    w->be->gemm(&w->cx, &(clv_gemm){.kind = CLV_NN, .c = w->out[0], .a = logits, .b = w->table});
    w->be->gemm(&w->cx, &(clv_gemm){.kind = CLV_TN, .c = w->out[1], .a = logits, .b = x, .accumulate = true});
}

static const kernel kernels[] = {{"head with loss", make_head, run_head}};

const group heads = {.kernels = kernels, .count = CLV_COUNT(kernels), .peer = "products", .run_peer = run_products};
