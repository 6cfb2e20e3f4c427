/* inference_internal.h - what evaluation and generation share: a model as it lies in a folder, the windows of a text,
 * the choice of a token, and a model with its cache.
 */
#ifndef CLV_INFERENCE_INTERNAL_H
#define CLV_INFERENCE_INTERNAL_H

#include "train/engine_internal.h"

/* ---- pretrained.c: a folder with a model ---------------------------------------------------------------------------
 */

typedef struct clv_pretrained {
    char folder[4096];
    clv_config config;
    clv_tokenizer *tokenizer; /* NULL: neither the folder nor --tokenizer-model has one */
} clv_pretrained;

/* What --load means, its shape, its tokenizer. Errors: also a tokenizer with more ids than the model has rows. */
clv_status clv_pretrained_open(clv_pretrained *from, const clv_options *options);
/* Did all ranks find the same folder? `latest` may move between two looks. Collective: world. */
clv_status clv_pretrained_agree(const clv_pretrained *from, clv_comm *world);
void clv_pretrained_close(clv_pretrained *from);
clv_status clv_pretrained_need_tokenizer(const clv_pretrained *from);
/* Fills the parameters. Collective: world. */
clv_status clv_pretrained_weights(const clv_pretrained *from, clv_ctx *cx, clv_param *params, size_t count);
/* The ids after which a text is over: of config.json, generation_config.json and the tokenizer. */
clv_status clv_pretrained_stops(const clv_pretrained *from, clv_ids *stops);

/* ---- windows.c: a text cut so that each token is predicted once ----------------------------------------------------
 */

typedef struct clv_windows clv_windows;
/* Of --input or --data-path. */
clv_status clv_windows_open(clv_windows **out, const clv_pretrained *from, const clv_options *options,
                            int64_t seq_length);
void clv_windows_close(clv_windows *w);
/* tokens [seq_length + 1]: a token of context, `targets` that are predicted, and zeros; no targets at the end. */
clv_status clv_windows_next(clv_windows *w, int32_t *tokens, int64_t *targets);
int64_t clv_windows_bytes(const clv_windows *w); /* UTF-8 bytes that the targets so far stand for; -1: not known */
double clv_windows_share(const clv_windows *w);  /* of the text that was read, 0 to 1 */

/* ---- eval.c --------------------------------------------------------------------------------------------------------
 */

typedef struct clv_eval_result {
    double nll; /* sum over the tokens, in nats */
    int64_t tokens, bytes;
} clv_eval_result;
clv_status clv_eval_run(clv_comm *world, const clv_options *options, clv_eval_result *result);

/* ---- sample.c: the choice of a token -------------------------------------------------------------------------------
 */

typedef struct clv_sampling {
    double temperature; /* 0: the most likely */
    int64_t top_k;      /* 0: all */
    double top_p;       /* 1: all */
} clv_sampling;

/* A token of n by their logits; u is uniform in [0, 1). -1 when there is none: a NaN, or no finite logit. */
int32_t clv_sample(const clv_sampling *how, const float *logits, int64_t n, double u);

/* ---- generator.c: a model with its cache ---------------------------------------------------------------------------
 */

typedef struct clv_generator_spec {
    const clv_config *config;
    const clv_stages *stages; /* a part each; NULL: one stage */
    int64_t vocab_divisor;
    int64_t batch, rows; /* of the cache */
    const char *backend;
} clv_generator_spec;

typedef struct clv_generator {
    clv_generator_spec spec;
    clv_engine engine; /* holds this stage's layers; its gradients only count, what it saves is the cache */
    clv_cache cache;
    clv_tensor logits;               /* last stage: f32 [batch, v] SL, after the last row that was fed */
    float *local, *gathered, *whole; /* on the host: [batch, v], [tp, batch, v], [V] */
} clv_generator;

/* Counts the arenas, then makes them. Weights are uninitialized. Collective: world. */
clv_status clv_generator_create(clv_generator *g, const clv_mesh *mesh, const clv_generator_spec *spec);
void clv_generator_destroy(clv_generator *g);
/* tokens [sq][batch]; start: see clv_fresh. Collective: tp, pp. */
void clv_generator_feed(clv_generator *g, const int32_t *tokens, int64_t sq, const int32_t *start);
/* Last stage: the logits of every rank, to be looked at sequence by sequence. Collective: tp. */
void clv_generator_gather(clv_generator *g);
const float *clv_generator_logits(clv_generator *g, int64_t sequence); /* [V], no padding; until the next call */

typedef struct clv_writing { /* how a batch of prompts is continued */
    clv_sampling sampling;
    uint64_t key; /* of the random numbers */
    int64_t max_new_tokens;
    clv_ids stop;                                         /* a token of these is the last one and is not reported */
    void (*visit)(void *user, size_t prompt, int32_t id); /* each new token, on every rank */
    void *user;
} clv_writing;

/* Continues prompts first .. first + batch - 1 of `count`. Collective: world. */
clv_status clv_generator_write(clv_generator *g, const clv_writing *how, const clv_ids *prompts, size_t count,
                               size_t first);

/* ---- generate.c ----------------------------------------------------------------------------------------------------
 */

typedef struct clv_generation { /* one run of the command */
    clv_comm *world;
    clv_pretrained from;
    clv_stages stages;
    clv_runtime rt;
    clv_generator generator;
    clv_writing how;
    size_t count; /* of prompts, and of each array below */
    char **text;
    clv_ids *prompt, *written;
    void (*listen)(void *user, int32_t id); /* told of each token of a single prompt; NULL: nobody */
    void *user;
} clv_generation;

clv_status clv_generation_open(clv_generation *g, clv_comm *world, const clv_options *options);
void clv_generation_close(clv_generation *g);
/* Writes what follows the prompts from `first` on, as many as one batch holds. Collective: world. */
clv_status clv_generation_batch(clv_generation *g, size_t first);

#endif
