/* head.c - final norm, output matrix cut over the vocabulary, and the loss.
 *
 *   logits_i = f(norm(x)) W_i^T          loss = cross entropy over all shards, never gathered
 *
 * Rows go through in chunks: logits, loss, gradient of the logits in the same memory, gradient of the input and of W at
 * once. So at most a chunk of logits exists, and the backward of the head has only f* and the norm left to do. This
 * works because the weight of every token in the loss is known before the forward. Source: Shoeybi et al. 2019, section
 * 3; the chunking after Hsu et al. 2024 (Liger).
 */
#include "model.h"

/* Each chunk reads W and its gradient anew: below so many rows that would cost more than the products. */
enum { CHUNK_BYTES = 64 << 20, CHUNK_ROWS = 512 };

clv_head clv_head_create(clv_builder *b, const clv_embedding *embedding)
{
    const unsigned edge_sum = b->edge == CLV_S0 ? CLV_TP : 0;
    clv_head head = {
        .norm = clv_builder_norm(b, b->config->norm, "", "decoder.final_layernorm", b->config->hidden, edge_sum)};
    const bool tied = b->config->tied;
    if (tied && embedding != NULL) {
        head.output = embedding->word;
        return head;
    }
    if (tied)
        clv_builder_cut(b); /* the first stage has the same bucket */
    head.output = clv_vocab_create(b, tied ? "embedding.word_embeddings.weight" : "output_layer.weight");
    b->params[b->count - 1].tied = b->params[b->count - 1].copy = tied; /* drawn by name: equal to the first stage's */
    return head;
}

static int64_t chunk_rows(int64_t rows, int64_t columns)
{
    const int64_t most = CLV_MAX(CHUNK_BYTES / (4 * CLV_MAX(columns, 1)), CHUNK_ROWS);
    return CLV_CEIL_DIV(rows, CLV_MAX(CLV_CEIL_DIV(rows, most), 1));
}

/* One chunk: rows of f(norm(x)) -> losses; with dxf also the gradients. */
static void chunk_forward(clv_ctx *cx, clv_tensor xf, clv_tensor dxf, const clv_head *head, const clv_vocab_loss *what)
{
    const size_t mark = clv_arena_mark(cx->temp);
    clv_tensor logits = clv_tensor_typed(cx->temp, CLV_F32, 2, (int64_t[]){xf.dim[0], head->output.l.w.dim[0]});
    logits.place = CLV_SL;
    clv_linear_forward(cx, logits, xf, &head->output.l);      /* logits = f(norm(x)) W_i^T        */
    clv_vocab_cross_entropy(cx, logits, &head->output, what); /* loss; logits become dlogits      */
    if (dxf.ndim > 0) {
        clv_linear_dgrad(cx, dxf, logits, &head->output.l); /* dxf = dlogits W_i                */
        clv_linear_wgrad(cx, &head->output.l, logits, xf);  /* dW_i += dlogits^T f(norm(x))     */
    }
    clv_arena_release(cx->temp, mark);
}

/* All rows, chunk by chunk; loss and nll [rows] are filled. saved->dxf is written when saved is given. */
static void rows_forward(clv_ctx *cx, clv_tensor xf, const clv_head *head, const clv_vocab_loss *what,
                         clv_head_saved *saved)
{
    const int64_t rows = xf.dim[0], step = chunk_rows(rows, head->output.l.w.dim[0]);
    for (int64_t at = 0; at < rows; at += step) {
        const int64_t n = CLV_MIN(step, rows - at);
        clv_vocab_loss part = clv_vocab_loss_rows(what, at, n);
        clv_tensor dxf = {0};
        if (saved != NULL)
            dxf = clv_slice(clv_reshape2(saved->dxf, rows, clv_last(xf)), at, n);
        else
            part.weight = dxf; /* no gradient */
        chunk_forward(cx, clv_slice(xf, at, n), dxf, head, &part);
    }
}

static clv_tensor flat(clv_tensor t)
{
    t.dim[0] = clv_numel(t);
    t.ndim = 1;
    return t;
}

void clv_head_forward(clv_ctx *cx, clv_tensor x, const clv_head *head, const clv_scene *scene, clv_losses losses,
                      clv_head_saved *saved)
{
    clv_arena *keep = saved != NULL ? cx->save : cx->temp;
    const clv_batch *batch = scene->batch;
    const int64_t rows = clv_numel(batch->tokens), h = clv_last(x);
    clv_tensor stat = clv_new_as(keep, CLV_F32, clv_rows(x), 2);
    if (saved != NULL)
        *saved = (clv_head_saved){
            .x = x, .stat = stat, .dxf = clv_new(keep, CLV_P, batch->tokens.dim[0], batch->tokens.dim[1], h)};

    const size_t mark = clv_arena_mark(cx->temp);
    clv_tensor n = clv_new(cx->temp, x.place, x.dim[0], x.dim[1], h);
    clv_norm_forward(cx, n, stat, x, &head->norm);                         /* n = norm(x) */
    clv_tensor xf = clv_reshape2(clv_tp_gather(cx, cx->temp, n), rows, h); /* f           */
    const clv_vocab_loss what = {.loss = clv_new_as(cx->temp, CLV_F32, rows),
                                 .nll = clv_new_as(cx->temp, CLV_F32, rows),
                                 .target = flat(batch->target),
                                 .weight = flat(batch->weight),
                                 .smoothing = head->smoothing};
    rows_forward(cx, xf, head, &what, saved);
    clv_dot(cx, losses.loss, what.weight, what.loss); /* sum of weight x loss over the tokens */
    clv_dot(cx, losses.nll, what.weight, what.nll);
    clv_arena_release(cx->temp, mark);
}

void clv_head_backward(clv_ctx *cx, clv_tensor dx, const clv_head *head, const clv_head_saved *saved)
{
    const size_t mark = clv_arena_mark(cx->temp);
    clv_tensor dn = clv_new(cx->temp, dx.place, dx.dim[0], dx.dim[1], dx.dim[2]);
    clv_tp_reduce(cx, dn, saved->dxf); /* dn = f*(dxf)   */
    clv_zero(cx, dx);
    clv_norm_backward(cx, dx, dn, saved->x, saved->stat, &head->norm); /* dx = norm*(dn) */
    clv_arena_release(cx->temp, mark);
}

void clv_head_logits(clv_ctx *cx, clv_tensor logits, clv_tensor x, const clv_head *head)
{
    const size_t mark = clv_arena_mark(cx->temp);
    clv_tensor stat = clv_new_as(cx->temp, CLV_F32, clv_rows(x), 2);
    clv_tensor n = clv_new(cx->temp, x.place, x.dim[0], x.dim[1], x.dim[2]);
    clv_norm_forward(cx, n, stat, x, &head->norm);  /* n = norm(x)            */
    clv_tensor xf = clv_tp_gather(cx, cx->temp, n); /* f                      */
    clv_linear_forward(cx, logits, clv_reshape2(xf, clv_rows(xf), clv_last(xf)), &head->output.l);
    clv_arena_release(cx->temp, mark);
}
