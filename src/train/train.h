/* train.h - the trainer: options, schedules, optimizer, data order, checkpoints, evaluation, generation, verification.
 */
#ifndef CLV_TRAIN_H
#define CLV_TRAIN_H

#include "format/format.h"
#include "model/model.h"
#include "op/backend.h"

/* ---- options.c: one row of options.def = one field here -------------------------------------------------------------
 */

typedef struct clv_list {
    const char **word;
    size_t count;
} clv_list;

#define CLV_TYPE_INT  int64_t
#define CLV_TYPE_REAL double
#define CLV_TYPE_FLAG bool
#define CLV_TYPE_TEXT const char *
#define CLV_TYPE_LIST clv_list

typedef struct clv_options {
#define CLV_OPTION(kind, field, preset, limits, commands, group, sentence) CLV_TYPE_##kind field;
#include "train/options.def"
#undef CLV_OPTION
    struct { /* given by the user, on the command line or in the file */
#define CLV_OPTION(kind, field, preset, limits, commands, group, sentence) bool field;
#include "train/options.def"
#undef CLV_OPTION
    } is_set;
    char command; /* one of the letters in options.def */
} clv_options;

char clv_options_command(const char *name); /* the letter of "train", "eval", ...; 0 when there is no such command */
void clv_options_default(clv_options *options, char command);
void clv_options_free(clv_options *options);
void clv_list_free(clv_list *list);
bool clv_list_has(const clv_list *list, const char *word);
/* argv[0..count-1] are options, "--name value", "--name=value", "--flag", "--no-flag"; --config FILE is read first, in
 * YAML, and the command line wins. Words that are no options go to `words` (may be NULL: then they are refused). Errors
 * (CLV_BAD_USAGE): unknown option with the nearest names; a Megatron option that does not apply, with the reason; a
 * value of the wrong kind or out of range. */
clv_status clv_options_parse(clv_options *options, int count, char *const *argv, clv_list *words);
const char *clv_options_text(const clv_options *options, const char *name); /* by name; NULL when there is none */
void clv_options_help(char command, clv_text *out);
/* A JSON object of every option of the command, null where none was given; as YAML it is a file for --config. */
void clv_options_dump(const clv_options *options, clv_text *out);
/* The shape of a new model from these options (Megatron's rules for defaults). vocab: from the tokenizer, or 0. */
clv_status clv_options_config(const clv_options *options, int64_t vocab, clv_config *out);
/* A shape option that was given and contradicts `config` is refused with both values. */
clv_status clv_options_agree(const clv_options *options, const clv_config *config);

/* From --recompute-*: errors name a module that does not exist, or options that contradict each other. */
clv_status clv_options_recompute(const clv_options *options, clv_recompute *out);

/* ---- batch.c: samples of an update, as a function of the samples done
 * ------------------------------------------------
 */

typedef struct clv_batch_step {
    int64_t from, size; /* from so many samples on, updates of this size */
} clv_batch_step;
typedef struct clv_batch_plan {
    clv_batch_step *step; /* at least one; the first from 0 */
    size_t count;
} clv_batch_plan;
/* From --rampup-batch-size; without it, or where that ends, global_batch. Errors: words of another form, a ramp that
 * does not come out even. */
clv_status clv_batch_plan_make(clv_batch_plan *out, const clv_options *options, int64_t global_batch,
                               int64_t seq_length);
clv_batch_plan clv_batch_plan_one(int64_t size);
void clv_batch_plan_free(clv_batch_plan *plan);
int64_t clv_batch_plan_at(const clv_batch_plan *plan, int64_t samples); /* size of the update that begins there */
int64_t clv_batch_plan_last(const clv_batch_plan *plan);
int64_t clv_batch_plan_largest(const clv_batch_plan *plan);
int64_t clv_batch_plan_samples(const clv_batch_plan *plan, int64_t updates); /* of the first ones; INT64_MAX: or more */
/* Updates from `from` samples until at least `to` are done. */
int64_t clv_batch_plan_updates(const clv_batch_plan *plan, int64_t from, int64_t to);

/* ---- lr.c: Megatron's schedules, counted in samples
 * ------------------------------------------------------------------- */

typedef enum clv_lr_style {
    CLV_LR_CONSTANT,
    CLV_LR_LINEAR,
    CLV_LR_COSINE,
    CLV_LR_INVERSE_SQRT,
    CLV_LR_WSD
} clv_lr_style;
typedef enum clv_wsd_style { CLV_WSD_EXPONENTIAL, CLV_WSD_LINEAR, CLV_WSD_COSINE, CLV_WSD_MINUS_SQRT } clv_wsd_style;
typedef struct clv_lr_plan {
    clv_lr_style style;
    clv_wsd_style wsd_style;
    double max, min, init;
    int64_t warmup, decay, wsd_decay; /* samples */
} clv_lr_plan;
/* n: samples of the updates made so far (0 at the first).  Source: Megatron-LM, optimizer_param_scheduler. */
double clv_lr_at(const clv_lr_plan *plan, int64_t n);
const char *clv_lr_style_name(clv_lr_style style);
const char *clv_wsd_style_name(clv_wsd_style style);
bool clv_lr_styles_from(const char *style, const char *wsd_style, clv_lr_plan *out); /* false: an unknown name */
/* Lengths given in updates are the samples that so many first updates take; WSD's tail has updates of the last size. */
clv_status clv_lr_plan_make(clv_lr_plan *out, const clv_options *options, const clv_batch_plan *batches,
                            int64_t train_samples);

/* ---- optimizer.c: AdamW over what this rank owns of the records
 * -------------------------------------------------------------------------------- */

typedef struct clv_optimizer {
    clv_tensor *m, *v; /* one each a parameter: fp32, of the elements that this rank updates (clv_param_own) */
    size_t count;
    int64_t step; /* updates made */
    double beta1, beta2, eps, weight_decay;
} clv_optimizer;
/* Moments, and masters of 16-bit weights, which the records then name. */
void clv_optimizer_create(clv_optimizer *o, clv_param *params, size_t count, clv_arena *arena);
void clv_optimizer_destroy(clv_optimizer *o);
/* One update with gradients times grad_scale. No communication. */
void clv_optimizer_step(clv_ctx *cx, clv_optimizer *o, const clv_param *params, double lr, double grad_scale);

/* ---- clip.c: coefficient clip/(norm + 1e-6) when below 1; 1 when clip is 0 or the norm is not finite
 * ----------------------- */
double clv_clip_coefficient(double norm, double clip);

/* ---- scaler.c: the storage type of a run, and the loss scale of fp16
 * ---------------------------------------------------- */

typedef struct clv_scaler { /* saved and resumed */
    double scale;           /* of the next step; 0: the run needs none */
    int64_t good;           /* steps since the last overflow, or since the scale grew */
    int64_t hysteresis;     /* overflows that are forgiven before it falls */
    int64_t stuck;          /* overflows in a row at a scale that cannot fall */
} clv_scaler;
typedef struct clv_scaler_rules {
    bool dynamic;
    double initial, min; /* initial 0: no scale */
    int64_t window, hysteresis;
} clv_scaler_rules;
enum { CLV_SCALER_PATIENCE = 20 }; /* overflows in a row at the floor that end a run */

/* f32, bf16 or f16. Errors: options that exclude each other. */
clv_status clv_options_storage(const clv_options *options, clv_dtype *out);
clv_scaler_rules clv_options_scaler(const clv_options *options);
clv_scaler clv_scaler_start(const clv_scaler_rules *rules);
void clv_scaler_update(clv_scaler *scaler, const clv_scaler_rules *rules, bool overflow); /* after every step */

/* ---- checkpoint.c: a Hugging Face folder plus training/
 * --------------------------------------------------------------------- */

typedef struct clv_progress { /* what state.json holds besides the options */
    int64_t iteration, samples, tokens, skipped, optimizer_step;
    int64_t updated_samples; /* of the updates that were made: where the learning rate stands */
    clv_scaler scaler;
    clv_lr_plan plan;
    int64_t train_samples, seq_length, global_batch, seed;
    char data_order[16];
} clv_progress;

typedef struct clv_room clv_room;
typedef struct clv_checkpoint { /* what is saved and loaded; pointers are borrowed */
    clv_ctx *cx;
    const clv_config *config;
    clv_param *params;
    size_t param_count;
    clv_optimizer *optimizer; /* NULL: weights only */
    clv_progress *progress;   /* NULL: weights only */
    const clv_options *options;
    int64_t keep_every;    /* saves whose iteration is a multiple of it are never removed; 0: none */
    const char *tokenizer; /* file or folder whose tokenizer is copied beside the weights; NULL: none */
    clv_room *room;        /* of saves in the background, which need one */
} clv_checkpoint;

/* ROOT/iter_%07d, then ROOT/latest by rename; at any instant of a crash the one before stays usable. keep_last > 0
 * removes older ones afterwards. Collective: world. Errors: agreed on by all ranks. */
clv_status clv_checkpoint_save(const clv_checkpoint *c, const char *root, int64_t keep_last);
/* Memory for saves of this in the background: of the files that this rank will write, and of what it will send to
 * others'. Collective: world. */
clv_status clv_room_open(clv_room **out, const clv_checkpoint *c);
size_t clv_room_bytes(const clv_room *room);
void clv_room_close(clv_room *room);
/* The same in the background, in parts between which the run goes on, with config, options and names that stay:
 *
 *   _begin     copies what this rank holds
 *   _advance   lets the copies travel to the ranks that write them, until `seconds` have passed on rank 0 and `part` of
 *              all (0 to 1) has arrived; when all are there a thread writes, which calls no MPI
 *   _go_on     when all ranks wait: the first time lets rank 0's thread publish, and remove what is too old; the second
 *              time it is saved, and *saving becomes NULL
 *   _end       does what is left, and waits
 *
 * Until it is published the one before is `latest`. After an error *saving is NULL. Collective, but for _waits: world.
 */
typedef struct clv_saving clv_saving;
clv_status clv_checkpoint_begin(clv_saving **out, const clv_checkpoint *c, const char *root, int64_t keep_last);
void clv_checkpoint_advance(clv_saving *saving, double seconds, double part);
bool clv_checkpoint_waits(const clv_saving *saving); /* this rank's thread has done its part */
clv_status clv_checkpoint_go_on(clv_saving **saving);
clv_status clv_checkpoint_end(clv_saving **saving);
/* Finds what `path` means: a root with `latest`, an iter_ folder, or a plain Hugging Face folder. out holds 4096 bytes.
 * *resumable: has training/. */
clv_status clv_checkpoint_find(const char *path, char *out, bool *resumable);
/* All ranks take what rank 0 found: `latest` may move between two looks. Collective: world. */
void clv_checkpoint_share(clv_comm *world, char *folder, bool *resumable);
/* Each rank reads the boxes that it holds. Every tensor of the file is used, every parameter is filled, or it is an
 * error with names and shapes. Collective: world. */
clv_status clv_checkpoint_load(const clv_checkpoint *c, const char *folder);
/* The whole of a parameter, or of a tensor split like it (gradient, moment), without padding: on rank 0, freed by the
 * caller; NULL on others. own: `local` holds the elements that this rank updates, not its shard. Collective: world. */
float *clv_param_gather(clv_ctx *cx, const clv_param *p, clv_tensor local, bool own);

/* ---- dataset.c, sampler.c, preprocess.c
 * ------------------------------------------------------------------------------------------ */
#include "train/train_data.h"

/* ---- corpus.c, inspect.c: commands of one process; what is to be printed goes to `out` -----------------------------
 */

clv_status clv_corpus_preprocess(const clv_options *options, clv_text *out); /* text to token files */
clv_status clv_corpus_learn(const clv_options *options, clv_text *out);      /* text to a tokenizer.json */
/* What is in a safetensors file, a model folder, a checkpoint, a .idx or a tokenizer, each read with all its checks. */
clv_status clv_inspect(const char *path, clv_text *out);

/* ---- runtime.c: this process, its threads and its place ------------------------------------------------------------
 */

typedef struct clv_runtime {
    clv_comm *world; /* borrowed */
    clv_mesh *mesh;
    int threads;
    double peak; /* FLOP/s of this rank's threads, by a register-only FMA loop */
} clv_runtime;

/* Threads = allowed cores / local ranks, mesh, start-up lines (ranks, hosts, threads, BLAS, layout), warnings of a bad
 * binding. dp is what the world has left after tp. Collective: world. */
clv_status clv_runtime_open(clv_runtime *rt, clv_comm *world, const clv_options *options, const clv_config *config);
void clv_runtime_close(clv_runtime *rt);

/* ---- schedule.c: in which order a pipeline stage works
 * ------------------------------------------------------------------ */

typedef enum clv_pipeline_kind { CLV_1F1B, CLV_GPIPE } clv_pipeline_kind;
typedef struct clv_pipeline {
    clv_pipeline_kind kind;
    int stages, stage; /* p, and which of them */
    int chunks;        /* v, parts of the model a stage; more than 1: interleaved */
    int micros;        /* m */
} clv_pipeline;

typedef enum clv_action_kind { CLV_FORWARD, CLV_BACKWARD } clv_action_kind;
typedef struct clv_action {
    clv_action_kind kind;
    int chunk, micro;
} clv_action;
typedef struct clv_schedule {
    clv_action *action;
    int count;
} clv_schedule;

clv_status clv_pipeline_check(const clv_pipeline *p);
clv_pipeline_kind clv_options_schedule(const clv_options *options);
clv_schedule clv_schedule_create(const clv_pipeline *p);
clv_schedule clv_schedule_forward(const clv_pipeline *p); /* forwards alone, in the order of the groups */
void clv_schedule_destroy(clv_schedule *s);
int clv_schedule_in_flight(const clv_schedule *s,
                           int chunk); /* micro-batches of a chunk that wait for their backward */

/* ---- schedule_picture.c ---- */
void clv_schedule_text(const clv_pipeline *p, clv_text *out);          /* a line a stage: F0 F1 B0 ... */
clv_status clv_schedule_draw(const clv_pipeline *p, const char *path); /* an SVG, a row a stage */

/* ---- trace_log.c: what a rank does, and when
 * ---------------------------------------------------------------------------------------------------- */

typedef enum clv_work { CLV_WORK_FORWARD, CLV_WORK_BACKWARD, CLV_WORK_UPDATE } clv_work;
typedef struct clv_trace_log clv_trace_log;        /* NULL everywhere: nothing is recorded, and nothing is done */
clv_trace_log *clv_trace_log_open(clv_mesh *mesh); /* Collective: world. */
void clv_trace_log_close(clv_trace_log *log);      /* before the mesh */
double clv_trace_log_now(const clv_trace_log *log);
void clv_trace_log_iteration(clv_trace_log *log, int64_t iteration); /* what follows belongs to it */
void clv_trace_log_work(clv_trace_log *log, clv_work work, int part, int micro, double begin); /* which is over now */
/* One file of all ranks, for ui.perfetto.dev. Collective: world. */
clv_status clv_trace_log_write(clv_trace_log *log, const char *path);

/* ---- stages.c: which layers a pipeline stage holds
 * -------------------------------------------------------------------- */

typedef struct clv_stages {
    int64_t *layers; /* of each part of the model, in order; part i is on stage i % stages, as its chunk i / stages */
    int parts, stages;
} clv_stages;
/* Even, with other counts on the first and last stage, or as a layout text says. Errors: what does not divide, with the
 * choices that do; nothing is ever dropped. */
clv_status clv_stages_make(clv_stages *out, const clv_options *options, int64_t layers);
clv_stages clv_stages_one(int64_t layers); /* one stage with everything */
void clv_stages_free(clv_stages *stages);

/* ---- engine.c: a stage of the model in its arenas, and one step of training
 * -------------------------------------------- */

typedef struct clv_engine_spec {
    const clv_config *config;
    const clv_stages *stages; /* NULL: one stage */
    clv_pipeline_kind schedule;
    clv_recompute recompute;
    clv_dtype dtype; /* of weights and activations; gradients, sums and losses are fp32 */
    bool sequence_parallel;
    int64_t vocab_divisor, micro_batch, seq_length;
    int64_t micros; /* micro-batches of the largest step: with a pipeline, how many are in flight depends on it */
    double label_smoothing;
    bool per_token_loss; /* sum over the counted tokens of the step / their number; else mean of micro-batch means */
    bool training;       /* gradients, moments, activations for a backward */
    bool documents;      /* batches carry document starts */
    bool no_evaluation;  /* clv_engine_evaluate will not be called: no room for it */
    bool logits;         /* clv_engine_logits will be called: room for those of a whole micro-batch */
    bool distributed_optimizer; /* moments and masters are split over the data-parallel ranks */
    bool overlap_grad_reduce;   /* gradients are summed over them while the last backward goes on */
    const char *backend;
    uint64_t seed; /* of dropout */
    double beta1, beta2, eps, weight_decay, clip_grad;
} clv_engine_spec;

typedef struct clv_engine_bytes {
    size_t weights, grads, moments, save, temp;
} clv_engine_bytes;

typedef struct clv_slot { /* a micro-batch of a chunk between its forward and its backward */
    clv_arena save;
    clv_gpt_saved saved;
    clv_batch batch;
    clv_tensor sample; /* i64 [b], dropout's key */
} clv_slot;

typedef struct clv_chunk { /* a part of the model on this stage */
    clv_gpt model;
    int part;
    clv_gradients gradients;
    clv_slot *slot;
    int slots;         /* as many as the schedule has in flight */
    size_t slot_bytes; /* of one */
} clv_chunk;

typedef struct clv_engine {
    clv_engine_spec spec;
    clv_ctx cx;
    clv_arena weights, grads, moments, save, temp;
    clv_chunk *chunk;
    int chunks, parts;
    clv_param *params; /* of the whole model, the same list on every rank; `here` tells what this stage holds */
    size_t param_count;
    clv_optimizer optimizer;
    clv_rng rng;
    clv_losses losses;
    clv_trace_log *trace;               /* borrowed; NULL: none */
    double loss_scale;                  /* of the next step; 1 unless it is set */
    clv_tensor wire_in[2], wire_out[2]; /* what goes between stages; ndim 0 without a pipeline */
    clv_engine_bytes planned; /* counted beforehand by the same code over null kernels and peers that do not exist */
} clv_engine;

/* This rank's samples of a step, on the host: micro-batch i is samples i b .. i b + b - 1. */
typedef struct clv_samples {
    int64_t count;
    const int32_t *tokens;   /* [count][s + 1] */
    const float *mask;       /* [count][s], what counts in the loss; NULL: all */
    const int32_t *position; /* [count][s]; NULL: 0 .. s - 1 */
    const int32_t *document; /* [count][s]; used when spec.documents */
    const int64_t *index;    /* [count], number of the sample in the run: dropout's key */
} clv_samples;

typedef struct clv_step {
    double loss, nll; /* of the step; nll leaves label smoothing out */
    double grad_norm; /* before clipping, without the loss scale */
    double scale;     /* the loss scale that is still in the gradients */
    int64_t counted;  /* tokens in the loss, over all dp ranks */
    bool finite;      /* loss and norm; the same on all ranks */
} clv_step;

/* Counts the arenas, then makes them. Weights are uninitialized. Collective: world. */
clv_status clv_engine_create(clv_engine *engine, const clv_mesh *mesh, const clv_engine_spec *spec);
void clv_engine_destroy(clv_engine *engine);
void clv_engine_init(clv_engine *engine, uint64_t seed); /* draw this stage's weights */
void clv_engine_tables(clv_engine *engine);              /* what follows from the shape alone: the rope table */
/* What an engine needs on rank `rank` of `layout`, without making it. */
clv_engine_bytes clv_engine_plan(const clv_engine_spec *spec, const clv_layout *layout, int rank);
size_t clv_engine_total(const clv_engine_bytes *bytes);
int64_t clv_engine_parameters(const clv_engine *engine, bool decayed_only); /* of the whole model, each element once */
/* Forward and backward over all micro-batches, sums, norm: gradients are complete afterwards. Collective: world. */
clv_step clv_engine_gradients(clv_engine *engine, const clv_samples *samples, int64_t iteration);
/* Clip and update. Collective: dp, cp, with the distributed optimizer. */
void clv_engine_update(clv_engine *engine, const clv_step *step, double lr);
/* Forward without dropout; adds sums of nll and counted tokens over dp. Collective: world. */
void clv_engine_evaluate(clv_engine *engine, const clv_samples *samples, double *nll, int64_t *counted);
/* Forward only; on the last stage `visit` gets each micro-batch's logits, f32 [s b, v] SL. Collective: tp, pp. */
typedef void (*clv_logits_visit)(void *user, int64_t micro, clv_tensor logits);
void clv_engine_logits(clv_engine *engine, const clv_samples *samples, clv_logits_visit visit, void *user);
/* Model FLOP of one token, forward and backward: 6 N (without position table, a tied head once) + causal attention
 * 6 L s n d.  Source: performance of llm.c and MaxText are stated by the same formula. */
double clv_model_flops(const clv_config *config, int64_t seq_length);

/* ---- pipeline.c: the executor of a schedule
 * ------------------------------------------------------------------------------- */

typedef struct clv_pass {
    const clv_samples *samples;
    const double *scale;    /* of each micro-batch's token weights; NULL: 1 */
    bool training;          /* backward too */
    clv_logits_visit visit; /* logits instead of a loss */
    void *user;
} clv_pass;
/* Runs this stage's actions: receives posted one action ahead, sends that end when their buffer is needed again, so
 * that no size of message can deadlock. Collective: tp, pp. */
void clv_pipeline_run(clv_engine *engine, const clv_pass *pass);
clv_schedule clv_pipeline_schedule(const clv_engine *engine, int64_t micros, bool training);

/* ---- feed.c: samples of a dataset as a rank's step needs them
 * --------------------------------------------------------- */

typedef struct clv_feed {
    clv_dataset *data; /* owned */
    clv_sampler sampler;
    clv_eod_rules rules;
    int64_t seq_length;
    int64_t most;        /* samples that there is room for */
    clv_samples samples; /* the last step's; buffers owned */
} clv_feed;
void clv_feed_open(clv_feed *feed, clv_dataset *data, const clv_sampler *sampler, const clv_eod_rules *rules,
                   int64_t seq_length);
void clv_feed_close(clv_feed *feed);
/* The global_batch samples of the step that begins after `consumed`; no more than the sampler that the feed was opened
 * with. Errors: tokens outside the vocabulary, reading. */
clv_status clv_feed_step(clv_feed *feed, int64_t consumed, int64_t global_batch);

/* ---- sentinel.c: replicas that should be equal
 * --------------------------------------------------------------------------- */
/* Are the weights (and moments, when given) that several ranks hold bit-equal? Errors (CLV_CHECK_FAILED): the first
 * tensor that is not, and the ranks. Collective: world. */
clv_status clv_sentinel_check(clv_ctx *cx, const clv_param *params, size_t count, const clv_optimizer *optimizer);
/* A value that each rank decides by. Errors (CLV_CHECK_FAILED): the first that is not bit-equal on all ranks, and its
 * ends. Collective: world. */
typedef struct clv_decision {
    const char *name;
    double value;
} clv_decision;
clv_status clv_sentinel_decisions(clv_comm *world, const clv_decision *decisions, size_t count);

/* ---- the commands: trainer.c, eval.c, generate.c, verify.c
 * ------------------------------------------------------------------ */
clv_status clv_train(clv_comm *world, const clv_options *options);
clv_status clv_eval(clv_comm *world, const clv_options *options);
clv_status clv_generate(clv_comm *world, const clv_options *options);
clv_status clv_verify(clv_comm *world, const clv_options *options);

#endif
