/* vocab.c - the vocabulary cut over tensor-parallel ranks: embedding by masked lookup, and cross entropy on shards.
 *
 * Rank r owns rows first .. first + v - 1 of the padded matrix. A token is looked up where it lives and is zero
 * elsewhere, so the sum over ranks is the embedding. The loss of a token needs three numbers of its row of logits,
 * each a reduction over the shards: the maximum, the target's logit, and the sum of exponentials.
 * A rank may own nothing but padding; its maximum is then -inf and its sums are 0.
 * Source: Shoeybi et al. 2019, section 3 (embedding and output).
 */
#include "op/backend.h"
#include "parallel.h"

void clv_vocab_embed_forward(clv_ctx *cx, clv_tensor y, clv_tensor ids, const clv_vocab *vocab)
{
    const size_t mark = clv_arena_mark(cx->temp);
    clv_tensor p = clv_new(cx->temp, CLV_P, ids.dim[0], ids.dim[1], clv_last(y));
    clv_embed_forward(cx, p, ids, vocab->l.w, vocab->first); /* p = W_i[ids], zero where not here */
    clv_tp_reduce(cx, y, p);                                 /* y = g(p)                          */
    clv_arena_release(cx->temp, mark);
}

void clv_vocab_embed_backward(clv_ctx *cx, clv_tensor dy, clv_tensor ids, const clv_vocab *vocab)
{
    const size_t mark = clv_arena_mark(cx->temp);
    clv_tensor dyf = clv_tp_gather(cx, cx->temp, dy);            /* g*              */
    clv_embed_backward(cx, vocab->l.dw, dyf, ids, vocab->first); /* dW_i[ids] += dy */
    clv_arena_release(cx->temp, mark);
}

static void rows_cross_entropy(clv_ctx *cx, clv_tensor logits, const clv_vocab *vocab, const clv_vocab_loss *what)
{
    const size_t mark = clv_arena_mark(cx->temp);
    clv_comm *tp = clv_mesh_comm(cx->mesh, CLV_TP);
    const int64_t rows = logits.dim[0];
    const size_t n = (size_t)rows;
    const clv_ce ce = {.target = what->target,
                       .first = vocab->first,
                       .real = vocab->real,
                       .classes = vocab->classes,
                       .smoothing = what->smoothing};
    clv_tensor max = clv_new_as(cx->temp, CLV_F32, rows);
    clv_tensor target = clv_new_as(cx->temp, CLV_F32, rows);
    clv_tensor sums = clv_new_as(cx->temp, CLV_F32, 2, rows); /* sum of exp(x - max); sum of (x - max) */

    clv_ce_max(cx, max, logits, &ce);
    clv_all_reduce(tp, max.data, max.data, n, CLV_F32, CLV_MAX);
    clv_ce_sums(cx, target, sums, logits, max, &ce);
    clv_all_reduce(tp, target.data, target.data, n, CLV_F32, CLV_SUM);
    clv_all_reduce(tp, sums.data, sums.data, what->smoothing > 0 ? 2 * n : n, CLV_F32, CLV_SUM);
    clv_ce_loss(cx, what->loss, what->nll, target, sums, &ce); /* log sum - target, smoothed */
    if (what->weight.ndim > 0)
        clv_ce_backward(cx, logits, max, sums, what->weight, &ce); /* weight (softmax - onehot) */
    clv_arena_release(cx->temp, mark);
}

clv_vocab_loss clv_vocab_loss_rows(const clv_vocab_loss *what, int64_t first, int64_t n)
{
    clv_vocab_loss part = *what;
    part.loss = clv_slice(what->loss, first, n);
    part.nll = clv_slice(what->nll, first, n);
    part.target = clv_slice(what->target, first, n);
    if (what->weight.ndim > 0)
        part.weight = clv_slice(what->weight, first, n);
    return part;
}

enum { CACHED = 4 << 20 }; /* bytes of logits */

/* Where nothing is exchanged, rows go through in groups that stay in the caches from the maximum to the gradient. */
void clv_vocab_cross_entropy(clv_ctx *cx, clv_tensor logits, const clv_vocab *vocab, const clv_vocab_loss *what)
{
    const int64_t rows = logits.dim[0], row_bytes = 4 * clv_last(logits);
    const int64_t few = CLV_MAX(CACHED / CLV_MAX(row_bytes, 1), clv_backend_threads());
    const int64_t step = clv_mesh_size(cx->mesh, CLV_TP) == 1 ? few : rows;
    for (int64_t at = 0; at < rows; at += step) {
        const int64_t n = CLV_MIN(step, rows - at);
        const clv_vocab_loss part = clv_vocab_loss_rows(what, at, n);
        rows_cross_entropy(cx, clv_slice(logits, at, n), vocab, &part);
    }
}
