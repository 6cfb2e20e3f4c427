/* parallel.h - where mathematics meets the wire: the regions f and g, the vocabulary cut over ranks, the random
 * streams, and the record of a parameter, from which everything that concerns it is derived.
 */
#ifndef CLV_PARALLEL_H
#define CLV_PARALLEL_H

#include "comm/comm.h"
#include "op/op.h"

/* ---- region.c: the conjugate operators f and g
 * -----------------------------------------------------------------------------
 *
 *                                        forward      backward
 *   f, entering the tensor-parallel part gather(x)    reduce(dx)       gather: R -> itself; S0 -> all-gather along s
 *   g, leaving it                        reduce(y)    gather(dy)       reduce: into R -> all-reduce; into S0 ->
 * reduce-scatter
 *
 * They are adjoint, so f* and g* need no code. What a block declares its edge to be (R or S0) selects the collective.
 */

/* x [s, b, h] R or [s/t, b, h] S0 -> [s, b, h] R; made in `arena` when anything moves.
 * Collective: tp.  Volume: (t-1)/t s b h elements when S0.  Source: Shoeybi et al. 2019 (f), Korthikanti et al. 2022.
 */
clv_tensor clv_tp_gather(clv_ctx *cx, clv_arena *arena, clv_tensor x);
clv_pending clv_tp_gather_begin(clv_ctx *cx, clv_arena *arena, clv_tensor *full, clv_tensor x);

/* y = g(p): sum the partial p over tp into y.
 *
 *   p  [s, b, h]            P        in
 *   y  [s, b, h]            R        out    all-reduce
 *   or [s/t, b, h]          S0       out    reduce-scatter along s
 *
 * Collective: tp.  Volume: 2 (t-1)/t s b h elements all-reduced, half of that scattered; fp32 on the wire.
 * Contract: p partial; y of one of the shapes above; p is destroyed when y is 16-bit.
 * Source: Shoeybi et al. 2019, sec. 3 (g); Korthikanti et al. 2022, sec. 4. */
void clv_tp_reduce(clv_ctx *cx, clv_tensor y, clv_tensor p);

typedef struct clv_tp_pending {
    clv_pending wire;
    clv_tensor y, sum; /* sum: fp32 on the wire, converted into y at the end; ndim 0 when y is fp32 itself */
} clv_tp_pending;
clv_tp_pending clv_tp_reduce_begin(clv_ctx *cx, clv_tensor y, clv_tensor p);
void clv_tp_reduce_end(clv_ctx *cx, clv_tp_pending *pending);

/* This rank's rows of dim 0 of a replicated tensor whose edge is `edge`: all of them for R, its sequence shard for S0.
 */
clv_tensor clv_tp_rows(const clv_ctx *cx, clv_tensor t, clv_place edge);

/* ---- vocab.c: the vocabulary cut over tp
 * --------------------------------------------------------------------------------------- */
typedef struct clv_vocab {
    clv_linear l;    /* w [v, h]: rows first .. first + v - 1 of the padded matrix; split 0 */
    int64_t first;   /* global number of local row 0 */
    int64_t real;    /* local rows that are real classes, 0 .. v; the rest is padding */
    int64_t classes; /* V, real classes over all ranks */
} clv_vocab;

/* y = sum over tp of each rank's masked lookup. ids i32 [s, b]; y R (all-reduce) or S0 (reduce-scatter). Collective:
 * tp. */
void clv_vocab_embed_forward(clv_ctx *cx, clv_tensor y, clv_tensor ids, const clv_vocab *vocab);
void clv_vocab_embed_backward(clv_ctx *cx, clv_tensor dy, clv_tensor ids, const clv_vocab *vocab);

/* Cross entropy that never gathers the logits. logits f32 [rows, v] SL; loss, nll f32 [rows] R.
 * weight f32 [rows]: d(total)/d(loss of the row); with it the logits become their gradient, without it (ndim 0) they
 * are left alone. Collective: tp, three all-reduces of [rows] (max; target's logit; sum of exp, with smoothing also the
 * sum of logits).  Source: Shoeybi et al. 2019, sec. 3. */
typedef struct clv_vocab_loss {
    clv_tensor loss, nll; /* f32 [rows], out */
    clv_tensor target;    /* i32 [rows] */
    clv_tensor weight;
    float smoothing;
} clv_vocab_loss;
clv_vocab_loss clv_vocab_loss_rows(const clv_vocab_loss *what, int64_t first, int64_t n); /* of these rows alone */
void clv_vocab_cross_entropy(clv_ctx *cx, clv_tensor logits, const clv_vocab *vocab, const clv_vocab_loss *what);

/* ---- rng_tracker.c: Megatron's three named streams
 * --------------------------------------------------------------------------------- */
typedef enum clv_stream {
    CLV_RNG_DATA,   /* "data-parallel": key seed; equal on all tp ranks: activations that are copies, or sequence shards
                     */
    CLV_RNG_MODEL,  /* "model-parallel": seed + 2718 + tp: activations that are shards (attention scores) */
    CLV_RNG_EXPERT, /* "expert-parallel": seed + 1024 + 100 ep + etp */
    CLV_RNG_STREAMS
} clv_stream;
enum { CLV_RNG_DEPTH = 8 };

typedef struct clv_rng {
    uint64_t seed[CLV_RNG_STREAMS];
    clv_stream stack[CLV_RNG_DEPTH]; /* the current stream on top */
    int depth;
    int64_t iteration;
    clv_tensor sample; /* i64 [b]: what the columns of the micro-batch are numbered in the whole run */
} clv_rng;

typedef enum clv_site { CLV_SITE_EMBEDDING, CLV_SITE_SCORES, CLV_SITE_ATTENTION, CLV_SITE_MLP } clv_site;

void clv_rng_init(clv_rng *rng, uint64_t seed, const clv_mesh *mesh);
const char *clv_stream_name(clv_stream stream);
/* Select a stream until the matching join; nests. A NULL tracker (evaluation) accepts both and does nothing. */
void clv_rng_fork(clv_rng *rng, clv_stream stream);
void clv_rng_join(clv_rng *rng);
/* What dropout at (layer, site) uses now: a pure function of (stream's seed, iteration, sample, layer, site, element).
 * first: number of dim 0's first row in the whole sequence (0 inside the region). p = 0 where rng is NULL. */
clv_dropout clv_rng_dropout(const clv_rng *rng, double p, int64_t layer, clv_site site, int64_t first);

/* ---- the record of a parameter: every fact about it, once
 * ----------------------------------------------------------------------------- */
typedef enum clv_init { CLV_INIT_NORMAL, CLV_INIT_ONES, CLV_INIT_ZEROS } clv_init;

typedef struct clv_extent { /* elements of something flat */
    int64_t first, count;
} clv_extent;

typedef struct clv_bucket { /* the parameters of a block, which lie next to each other: reduced and gathered as one */
    clv_tensor w, dw;       /* [n], all of it; n is a multiple of 64 for each data-parallel rank */
    size_t first, count;    /* its records in the list of its part of the model */
    clv_extent own;         /* what this rank updates: all, or its share with the distributed optimizer */
} clv_bucket;

typedef struct clv_param {
    char name[96];    /* canonical, Megatron's; family.c maps it to tensors of a file */
    clv_tensor w, dw; /* local shard and its gradient (fp32 main gradient) */
    int64_t whole[2]; /* the whole tensor without padding; whole[1] = 0 for 1-D */
    int ndim;
    int split_dim;       /* -1: not split */
    unsigned split_axes; /* mesh axes that split it */
    unsigned sum_axes;   /* mesh axes over which dw is still a partial sum after backward (before dp and cp) */
    clv_init init;
    double init_std;
    bool decay;               /* weight decay applies */
    bool tied;                /* the matrix serves embedding and output */
    bool copy;                /* the last stage's copy of a tied matrix: same values, not counted again */
    int stage;                /* pipeline stage that speaks for it */
    bool here;                /* this rank's stage holds it: w and dw are there; else they only say the shape */
    const clv_bucket *bucket; /* where it is here; NULL: in none */
    int64_t at;               /* its first element there */
    clv_tensor master;        /* fp32 copy of the own elements when w is 16-bit; else ndim 0 */
} clv_param;

/* The part of the whole tensor that this rank holds: elements first .. first + count - 1 of each dim, padding left out
 * (count may be 0). Local row i is global row first[0] + i. */
typedef struct clv_box {
    int64_t first[2], count[2];
} clv_box;
clv_box clv_param_box(const clv_mesh *mesh, const clv_param *p);
/* Is this rank the one that speaks for its box: of the stage that does, coordinate 0 on every other axis that does not
 * split it (within axes)? */
bool clv_param_is_first(const clv_mesh *mesh, const clv_param *p, unsigned axes);

/* ---- gradient.c: finishing the gradients of a step
 * ---------------------------------------------------------------------------------------- */
/* Sum every dw over its sum_axes; small ones are packed into one message a group. Collective: those axes. */
void clv_gradient_sum(clv_ctx *cx, const clv_param *params, size_t count);
/* sum over all logical elements, each once, of dw^2, in double; equal bits on every rank, and with either optimizer:
 * the data-parallel ranks take their shares of each bucket. Collective: world. */
double clv_gradient_square(clv_ctx *cx, const clv_param *params, size_t count);

/* ---- bucket.c: buckets over the ranks that hold the same parameters and see other tokens
 * ---------------------------------------------------------------------------------------- */
enum { CLV_REPLICAS = CLV_CP | CLV_DP };
/* The share of rank `rank` when n elements go to `ranks` ranks in equal parts. */
clv_extent clv_share(int64_t n, int ranks, int rank);
clv_tensor clv_elements(clv_tensor t, clv_extent elements); /* flat */
/* Of a record's local shard: the elements in an extent of its bucket; those that this rank updates. */
clv_extent clv_param_within(const clv_param *p, clv_extent extent);
clv_extent clv_param_own(const clv_param *p);
bool clv_param_is_shared(const clv_param *p); /* other replicas update some of its elements */

/* The gradients of a part of the model between its last backward and the update. */
typedef struct clv_gradients {
    const clv_param *params;
    const clv_bucket *bucket;
    size_t count;        /* buckets, in order of the forward */
    size_t begun, ended; /* those from here on are on their way; are complete */
    size_t limit;        /* as many at once; 0: each ends before the next begins */
    clv_pending *pending;
} clv_gradients;
clv_gradients clv_gradients_create(const clv_param *params, const clv_bucket *bucket, size_t count, size_t limit);
void clv_gradients_destroy(clv_gradients *g);
/* Buckets from number `from` on are whole on this rank: their sums begin, over the axes that their records ask for,
 * then over the replicas, all-reduced, or scattered to who owns them. g NULL: not yet. Collective: tp, dp, cp. */
void clv_gradients_ready(clv_ctx *cx, clv_gradients *g, size_t from);
/* All sums are complete afterwards, those of a tied matrix's two copies too. Collective: tp, dp, cp, pp. */
void clv_gradients_finish(clv_ctx *cx, clv_gradients *g);
/* Every rank gets the weights that others updated. Collective: dp, cp. */
void clv_weights_gather(clv_ctx *cx, const clv_bucket *bucket, size_t count);

#endif
