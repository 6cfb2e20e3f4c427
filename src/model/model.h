/* model.h - the equations: modules of a decoder-only transformer, each a forward and a backward written by hand, with
 * what is saved between them as a struct. Communication stands in the equations (clv_tp_gather, clv_tp_reduce).
 */
#ifndef CLV_MODEL_H
#define CLV_MODEL_H

#include "parallel/parallel.h"

/* ---- what is not kept for the backward but computed again (Megatron's selective modules, and whole layers)
 * ------------ */
enum clv_recompute_modules {
    CLV_RECOMPUTE_CORE_ATTN = 1, /* attention's output and log-sum-exp */
    CLV_RECOMPUTE_LAYERNORM = 2, /* outputs of the norms */
    CLV_RECOMPUTE_MLP_ACT = 4,   /* output of the activation */
    CLV_RECOMPUTE_MLP = 8        /* both products' inputs inside the MLP */
};
typedef enum clv_recompute_method {
    CLV_RECOMPUTE_NONE,
    CLV_RECOMPUTE_UNIFORM, /* all layers, in groups of `layers`; a group keeps its input */
    CLV_RECOMPUTE_BLOCK    /* the first `layers` of the stage, one by one */
} clv_recompute_method;
typedef struct clv_recompute {
    unsigned modules;
    clv_recompute_method method;
    int64_t layers;
} clv_recompute;

/* ---- param.c: modules are built from records
 * ---------------------------------------------------------------------------------- */
typedef struct clv_builder { /* what set-up of a model runs in */
    const clv_config *config;
    const clv_mesh *mesh;
    clv_place edge;             /* R, or S0 with sequence parallelism */
    int64_t vocab_divisor;      /* --make-vocab-size-divisible-by */
    unsigned recompute;         /* modules */
    bool distributed_optimizer; /* a rank owns its share of each bucket */
    clv_arena *weights, *grads; /* persistent */
    clv_param *params;          /* grows; in order of the forward */
    size_t count;
    clv_bucket *buckets; /* grows; the last takes what is added while it is open */
    size_t bucket_count;
    bool open;
} clv_builder;

typedef struct clv_param_spec {
    const char *prefix, *name; /* joined by nothing */
    int64_t rows, columns;     /* of the whole; columns 0 for 1-D */
    int split_dim;
    unsigned split_axes, sum_axes;
    clv_init init;
    double init_std;
} clv_param_spec;

/* `count` records that lie next to each other in memory: they share their columns, and one matrix product reads them
 * all. Returns the fused view (w, dw); its rows are the sum of the local rows. */
clv_linear clv_builder_add(clv_builder *b, const clv_param_spec *specs, size_t count);
clv_norm clv_builder_norm(clv_builder *b, clv_norm_kind kind, const char *prefix, const char *name, int64_t size,
                          unsigned sum_axes);
/* The bucket ends here: what is added next begins another. */
void clv_builder_cut(clv_builder *b);
/* No more is added: the records learn their buckets. */
void clv_builder_close(clv_builder *b);
/* The local shard's values, in fp32 on the host, into the weight, and into its master where there is one. */
void clv_param_write(clv_ctx *cx, const clv_param *p, const float *values);
/* Values drawn by global element index from (seed, name): the same on every layout, bit for bit. */
void clv_param_init(clv_ctx *cx, const clv_param *p, uint64_t seed);

/* ---- what one micro-batch brings
 * ------------------------------------------------------------------------------------------------- */
typedef struct clv_batch {
    clv_tensor tokens;  /* i32 [s, b] */
    clv_tensor target;  /* i32 [s, b] */
    clv_tensor pos;     /* i32 [s, b], position of each token in its document or sequence */
    clv_tensor weight;  /* f32 [s, b], d(loss)/d(token loss): loss mask / counted tokens; ndim 0: forward only */
    clv_tensor doc;     /* i32 [s, b], first position of the token's document; ndim 0: one document */
    clv_tensor mask;    /* u8 [b, s, s]; ndim 0: none */
    bool bidirectional; /* no causal mask */
} clv_batch;

/* Computed once a micro-batch and shared by the layers. */
typedef struct clv_scene {
    const clv_batch *batch;
    clv_tensor range, window_range; /* i32 [s, b, 2]: keys that each query sees */
    clv_tensor rope;                /* f32 [positions, r]; ndim 0 without rope */
    clv_place edge;
} clv_scene;

/* ---- mlp.c.  y = g(act(f(x) A^T + a)) B^T)
 * ------------------------------------------------------------------------------------------- */
typedef struct clv_mlp {
    clv_linear a, b;        /* column, row */
    clv_tensor bias, dbias; /* of the row linear: added once, after g, by the block */
    clv_act act;
    int64_t ffn; /* f / t */
    unsigned recompute;
} clv_mlp;
typedef struct clv_mlp_saved { /* ndim 0: computed again */
    clv_tensor x, u, v;
} clv_mlp_saved;
clv_mlp clv_mlp_create(clv_builder *b, const char *prefix);
void clv_mlp_forward(clv_ctx *cx, clv_tensor y, clv_tensor x, const clv_mlp *m, clv_mlp_saved *saved);
void clv_mlp_backward(clv_ctx *cx, clv_tensor dx, clv_tensor dy, const clv_mlp *m, const clv_mlp_saved *saved);

/* ---- attention.c.  y = g(attention(f(x) Q^T, f(x) K^T, f(x) V^T) O^T)
 * ------------------------------------------------------------------- */
typedef struct clv_self_attention {
    clv_linear qkv, proj;    /* column (fused), row */
    clv_tensor bias, dbias;  /* of proj, added after g by the block */
    clv_norm q_norm, k_norm; /* g.ndim 0 without qk norm */
    clv_heads q, k, v;       /* sections of the fused activation */
    float scale;
    double dropout;
    int64_t layer; /* global number, from 0 */
    bool windowed;
    unsigned recompute;
} clv_self_attention;
typedef struct clv_self_attention_saved {
    clv_tensor x, u; /* input; q, k, v before their norms (ndim 0 without) */
    clv_tensor q_stat, k_stat;
    clv_attn_saved core; /* q, k, v as attention saw them, its output, its log-sum-exp */
    clv_dropout drop;
} clv_self_attention_saved;
clv_self_attention clv_self_attention_create(clv_builder *b, const char *prefix, int64_t layer);
void clv_self_attention_forward(clv_ctx *cx, clv_tensor y, clv_tensor x, const clv_self_attention *a,
                                const clv_scene *scene, clv_self_attention_saved *saved);
void clv_self_attention_backward(clv_ctx *cx, clv_tensor dx, clv_tensor dy, const clv_self_attention *a,
                                 const clv_scene *scene, const clv_self_attention_saved *saved);
/* Decoding: x [sq, b, h] are the tokens from row `at` on; the cache keeps the fused activations of all rows. */
typedef struct clv_past {
    clv_tensor rows; /* [rows, b, width] */
    int64_t at;
} clv_past;
void clv_self_attention_cached(clv_ctx *cx, clv_tensor y, clv_tensor x, const clv_self_attention *a,
                               const clv_scene *scene, clv_past past);

/* ---- block.c.  x' = x + dropout(attention(norm(x)) + bias);  y = x' + dropout(mlp(norm(x')) + bias)
 * -------------------------------------- */
typedef struct clv_block {
    clv_norm norm1, norm2;
    clv_self_attention attention;
    clv_mlp mlp;
    double dropout;
    int64_t layer;
    unsigned recompute;
} clv_block;
typedef struct clv_block_saved {
    clv_tensor x, x1, stat1, stat2;
    clv_self_attention_saved attention;
    clv_mlp_saved mlp;
    clv_dropout drop1, drop2;
} clv_block_saved;
clv_block clv_block_create(clv_builder *b, int64_t layer);
void clv_block_forward(clv_ctx *cx, clv_tensor y, clv_tensor x, const clv_block *block, const clv_scene *scene,
                       clv_block_saved *saved);
/* dx holds dy on entry and the gradient of x on return: the residual stream passes through it. */
void clv_block_backward(clv_ctx *cx, clv_tensor dx, const clv_block *block, const clv_scene *scene,
                        const clv_block_saved *saved);

/* ---- embed.c.  x = dropout(word[tokens] + position[pos])
 * ------------------------------------------------------------------------------------ */
typedef struct clv_embedding {
    clv_vocab word;
    clv_tensor position, dposition; /* [positions, h]; ndim 0 without */
    double dropout;
} clv_embedding;
clv_vocab clv_vocab_create(clv_builder *b, const char *name); /* a padded matrix [v, h], cut over tp */
clv_embedding clv_embedding_create(clv_builder *b);
void clv_embedding_forward(clv_ctx *cx, clv_tensor y, const clv_embedding *e, const clv_scene *scene);
void clv_embedding_backward(clv_ctx *cx, clv_tensor dy, const clv_embedding *e, const clv_scene *scene);

/* ---- head.c.  logits = f(norm(x)) W^T, loss and its gradient chunk by chunk: at most a chunk of logits exists
 * ----------------------------------- */
typedef struct clv_head {
    clv_norm norm;
    clv_vocab output; /* the word embedding's matrix when tied */
    float smoothing;
} clv_head;
typedef struct clv_losses { /* f64 [1] each: sums of weight x loss, weight x nll; added to */
    clv_tensor loss, nll;
} clv_losses;
typedef struct clv_head_saved {
    clv_tensor x, stat, dxf; /* dxf P [s, b, h]: gradient of f(norm(x)), made in the forward */
} clv_head_saved;
/* embedding: this stage's, NULL when it is on another. A tied head uses its matrix, or holds a copy of its own. */
clv_head clv_head_create(clv_builder *b, const clv_embedding *embedding);
/* With saved (training) the gradients of the output matrix are added and dxf is made; without, only losses. */
void clv_head_forward(clv_ctx *cx, clv_tensor x, const clv_head *head, const clv_scene *scene, clv_losses losses,
                      clv_head_saved *saved);
void clv_head_backward(clv_ctx *cx, clv_tensor dx, const clv_head *head, const clv_head_saved *saved);
/* logits f32 [rows, v] SL of the last dim-0 entries of x: clv_rows(logits) = n b. */
void clv_head_logits(clv_ctx *cx, clv_tensor logits, clv_tensor x, const clv_head *head);

/* ---- gpt.c: a stage of the model: embedding (first), layers, head (last)
 * ------------------------------------------------------------------------- */
typedef struct clv_model_options {
    bool sequence_parallel;
    int64_t vocab_divisor;
    double label_smoothing;
    int64_t first_layer, layers; /* of this stage */
    bool has_embedding, has_head;
    clv_recompute recompute;
    bool distributed_optimizer;
} clv_model_options;

typedef struct clv_gpt {
    clv_config config;
    clv_model_options options;
    clv_place edge;
    clv_param *params;
    size_t param_count;
    clv_bucket *buckets; /* embedding, each layer, head; a tied matrix by itself where it has a copy elsewhere */
    size_t bucket_count, layer_bucket; /* of the first layer; the others follow */
    clv_embedding embedding;
    clv_block *blocks;
    clv_head head;
    clv_tensor rope; /* f32 [max_positions, r] */
} clv_gpt;

typedef struct clv_gpt_saved { /* of one micro-batch in flight */
    clv_scene scene;
    clv_block_saved *blocks;
    clv_head_saved head;
} clv_gpt_saved;

/* Records and views; memory from the arenas, which may be counting. Weights are not initialized. */
void clv_gpt_create(clv_gpt *model, const clv_config *config, const clv_model_options *options, const clv_mesh *mesh,
                    clv_arena *weights, clv_arena *grads);
void clv_gpt_destroy(clv_gpt *model);
void clv_gpt_init(clv_ctx *cx, clv_gpt *model, uint64_t seed); /* weights, and the rope table */
void clv_gpt_rope_fill(clv_ctx *cx, clv_gpt *model);           /* the rope table alone */
int64_t clv_gpt_parameters(const clv_gpt *model);              /* whole model, each logical element once */
clv_gpt_saved clv_gpt_saved_create(const clv_gpt *model);
void clv_gpt_saved_destroy(clv_gpt_saved *saved);

/* x: what the stage before sent (ndim 0 on the first). Returns what goes to the next (ndim 0 on the last, where losses
 * are added to). saved NULL: evaluation. Everything kept lies in cx->save. Collective: tp. */
clv_tensor clv_gpt_forward(clv_ctx *cx, const clv_gpt *model, const clv_batch *batch, clv_tensor x, clv_losses losses,
                           clv_gpt_saved *saved);
/* dy: what the stage after sent (ndim 0 on the last). Returns the gradient for the stage before (ndim 0 on the first).
 * complete: with the last micro-batch, told which gradients are; NULL with others. */
clv_tensor clv_gpt_backward(clv_ctx *cx, const clv_gpt *model, clv_tensor dy, const clv_gpt_saved *saved,
                            clv_gradients *complete);

/* Forward only: logits f32 [s b, v] SL of every token on the last stage, what goes to the next on the others; in
 * cx->temp. x as for clv_gpt_forward. Collective: tp. */
clv_tensor clv_gpt_logits(clv_ctx *cx, const clv_gpt *model, const clv_batch *batch, clv_tensor x);

/* ---- check.c ---- */
/* Every size against the layout, before anything is allocated; each refusal names the values and the nearest valid. */
clv_status clv_gpt_check(const clv_config *config, const clv_layout *layout, bool sequence_parallel,
                         int64_t seq_length);

/* ---- decode.c: forward with a cache
 * --------------------------------------------------------------------------------------------------------------------
 */
typedef struct clv_cache {
    clv_tensor *layer; /* [rows, b, fused width], one a layer */
    int64_t rows, used;
} clv_cache;
clv_cache clv_cache_create(const clv_gpt *model, clv_arena *arena, int64_t rows, int64_t b);
void clv_cache_destroy(clv_cache *cache);
typedef struct clv_fresh { /* rows that are not in the cache yet: used .. used + sq - 1 */
    clv_tensor tokens;     /* i32 [sq, b] */
    const int32_t *start;  /* [b] on the host: first row that belongs to the sequence (prompts are aligned at their
                              ends), so its position is row - start */
    clv_tensor x;          /* [sq, b, h] R: of the stage before, on return for the next; the first stage fills it */
    clv_tensor logits;     /* f32 [b, v] SL of the last row, on the last stage */
} clv_fresh;
/* The edge must be R. Collective: tp. */
void clv_gpt_decode(clv_ctx *cx, const clv_gpt *model, clv_cache *cache, const clv_fresh *rows);

/* ---- family.c: records <-> tensors of a Hugging Face folder
 * ----------------------------------------------------------------------------------------------- */
typedef struct clv_file_slot { /* where a parameter lies in a file: rows/columns of the file's tensor */
    char name[128];            /* "model.layers.3.self_attn.q_proj.weight" */
    int64_t dim[2];            /* the file's tensor */
    int ndim;
    bool transposed; /* file[i][j] = w[j][i] (GPT-2's Conv1D) */
    int64_t offset;  /* along w's dim 0 (its rows) inside the file's tensor: q, k, v in one c_attn */
} clv_file_slot;
clv_file_slot clv_family_slot(const clv_config *config, const clv_param *p);
/* Other names the same tensor goes by (a prefix "transformer."), and names that carry nothing (mask buffers). */
bool clv_family_ignores(const clv_config *config, const char *name);
const char *clv_family_strip(const clv_config *config, const char *name); /* without a prefix that some files carry */

#endif
