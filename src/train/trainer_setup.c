/* trainer_setup.c - from options to a trainer: shape, batch arithmetic, data, memory, weights or a checkpoint.
 *
 * Everything that can be refused is refused here, before memory is taken: first what the options say by themselves,
 * then the shape against the layout, the batch against dp, the data, and last the checkpoint.
 */
#include "train/trainer_internal.h"

#include <stdlib.h>
#include <string.h>

static clv_status length_check(const clv_options *o)
{
    if (o->is_set.train_iters == o->is_set.train_samples)
        return clv_fail(CLV_BAD_USAGE, "give one of --train-iters and --train-samples");
    if (!o->is_set.lr)
        return clv_fail(CLV_BAD_USAGE, "give --lr, the highest learning rate");
    if (!o->mock_data && o->data_path.count == 0)
        return clv_fail(CLV_BAD_USAGE, "give --data-path PREFIX (made by `cleave preprocess`), or --mock-data");
    if (o->is_set.save_interval && o->save == NULL)
        return clv_fail(CLV_BAD_USAGE, "--save-interval needs --save DIR");
    return clv_ok();
}

static clv_status tokenizer_open(clv_trainer *t)
{
    const clv_options *o = t->options;
    if (o->tokenizer_model != NULL)
        return clv_tokenizer_load(&t->tokenizer, o->tokenizer_model);
    if (o->at_eod.count > 0)
        return clv_fail(CLV_BAD_USAGE, "end-of-document options need --tokenizer-model, which says what that token is");
    return clv_ok();
}

/* The shape: of the folder that is loaded, or from options; the vocabulary from the tokenizer unless given. */
static clv_status shape_find(clv_trainer *t, const char *folder)
{
    const clv_options *o = t->options;
    const int64_t from_tokenizer = t->tokenizer == NULL ? 0 : clv_tokenizer_vocab_size(t->tokenizer);
    if (folder[0] != 0) {
        CLV_TRY(clv_hf_config_read(&t->config, folder));
        CLV_TRY(clv_options_agree(o, &t->config));
        if (o->is_set.hidden_dropout)
            t->config.hidden_dropout = o->hidden_dropout;
        if (o->is_set.attention_dropout)
            t->config.attention_dropout = o->attention_dropout;
    } else {
        CLV_TRY(clv_options_config(o, from_tokenizer, &t->config));
    }
    if (from_tokenizer > t->config.vocab)
        return clv_fail(CLV_BAD_INPUT,
                        "the tokenizer has %lld ids, but the model's vocabulary is %lld; raise --vocab-size",
                        (long long)from_tokenizer, (long long)t->config.vocab);
    if (t->tokenizer != NULL && folder[0] == 0 && t->config.eos < 0)
        t->config.eos = clv_tokenizer_eod(t->tokenizer);
    return clv_ok();
}

/* Every size of a ramp against dp, the micro-batch and the schedule. */
static clv_status batches_check(const clv_trainer *t, int64_t dp)
{
    const clv_options *o = t->options;
    for (size_t i = 0; i < t->batches.count; i++) {
        const clv_sampler sampler = {
            .global_batch = t->batches.step[i].size, .micro_batch = o->micro_batch_size, .dp_size = dp};
        clv_status st = clv_sampler_check(&sampler);
        const clv_pipeline pipeline = {.kind = clv_options_schedule(o),
                                       .stages = t->stages.stages,
                                       .chunks = t->stages.parts / t->stages.stages,
                                       .micros = (int)clv_sampler_micros(&sampler)};
        if (st.code == CLV_OK)
            st = clv_pipeline_check(&pipeline);
        if (st.code != CLV_OK && t->batches.count > 1)
            return clv_within(st, "rampup-batch-size from %lld samples on", (long long)t->batches.step[i].from);
        CLV_TRY(st);
    }
    return clv_ok();
}

static clv_status sizes_find(clv_trainer *t)
{
    const clv_options *o = t->options;
    const int64_t tp = o->tensor_model_parallel_size, pp = o->pipeline_model_parallel_size;
    const int64_t dp = CLV_MAX(clv_comm_size(t->world) / (tp * pp), 1);
    t->seq_length = o->is_set.seq_length ? o->seq_length : CLV_MIN(1024, t->config.max_positions);
    t->global_batch = o->is_set.global_batch_size ? o->global_batch_size : o->micro_batch_size * dp;
    CLV_TRY(clv_batch_plan_make(&t->batches, o, t->global_batch, t->seq_length));
    t->global_batch = clv_batch_plan_last(&t->batches);
    t->train_samples = o->is_set.train_samples ? o->train_samples : clv_batch_plan_samples(&t->batches, o->train_iters);
    if (t->train_samples == INT64_MAX)
        return clv_fail(CLV_BAD_USAGE, "--train-iters or --train-samples is too large a number");
    const clv_layout layout = {.tp = (int)tp, .dp = (int)dp, .pp = (int)pp, .kv_heads = (int)t->config.kv_heads};
    CLV_TRY(clv_gpt_check(&t->config, &layout, o->sequence_parallel, t->seq_length));
    CLV_TRY(clv_stages_make(&t->stages, o, t->config.layers));
    CLV_TRY(batches_check(t, dp));
    return clv_lr_plan_make(&t->plan, o, &t->batches, t->train_samples);
}

static clv_status prefixes_parse(const clv_list *list, const char **prefix, double *weight, size_t *count,
                                 bool *weighted)
{
    double number;
    *weighted = list->count >= 2 && clv_parse_f64(list->word[0], &number);
    if (!*weighted) {
        *count = list->count;
        for (size_t i = 0; i < list->count; i++)
            prefix[i] = list->word[i];
        return clv_ok();
    }
    if (list->count % 2 != 0)
        return clv_fail(CLV_BAD_USAGE, "data-path: weights and prefixes must alternate, but there are %zu words",
                        list->count);
    for (size_t i = 0; i < list->count; i += 2) {
        if (!clv_parse_f64(list->word[i], &weight[i / 2]) || weight[i / 2] <= 0)
            return clv_fail(CLV_BAD_USAGE, "data-path: weight '%s' is not a number above 0", list->word[i]);
        prefix[i / 2] = list->word[i + 1];
    }
    *count = list->count / 2;
    return clv_ok();
}

typedef struct clv_source { /* which data, and how much of it the run will read */
    const clv_list *list;
    const char *split;
    int which; /* part of the split */
    int64_t samples;
} clv_source;

static clv_status dataset_open(clv_trainer *t, const clv_source *from, clv_dataset **out)
{
    const clv_list *list = from->list;
    const clv_options *o = t->options;
    const char **prefix = clv_alloc(list->count, sizeof *prefix);
    double *weight = clv_alloc(list->count, sizeof *weight);
    size_t count = 0;
    bool weighted = false;
    clv_status st = o->mock_data ? clv_ok() : prefixes_parse(list, prefix, weight, &count, &weighted);
    const clv_dataset_spec spec = {.prefix = prefix,
                                   .weight = weighted ? weight : NULL,
                                   .count = count,
                                   .split = from->split,
                                   .which = from->which,
                                   .seq_length = t->seq_length,
                                   .vocab = t->config.vocab,
                                   .seed = (uint64_t)o->seed,
                                   .order =
                                       strcmp(o->data_order, "megatron") == 0 ? CLV_ORDER_MEGATRON : CLV_ORDER_STABLE,
                                   .samples = from->samples};
    if (st.code == CLV_OK)
        st = clv_within(clv_dataset_open(out, &spec), list == &o->data_path ? "--data-path" : "--valid-data-path");
    free(prefix);
    free(weight);
    return st;
}

static void feed_open(clv_trainer *t, clv_feed *feed, clv_dataset *data)
{
    const clv_options *o = t->options;
    const clv_sampler sampler = {.global_batch = clv_batch_plan_largest(&t->batches),
                                 .micro_batch = o->micro_batch_size,
                                 .dp_rank = clv_mesh_coord(t->rt.mesh, CLV_DP),
                                 .dp_size = clv_mesh_size(t->rt.mesh, CLV_DP),
                                 .order =
                                     strcmp(o->data_order, "megatron") == 0 ? CLV_ORDER_MEGATRON : CLV_ORDER_STABLE};
    const clv_eod_rules rules = {.eod = t->tokenizer == NULL ? -1 : clv_tokenizer_eod(t->tokenizer),
                                 .mask_loss = clv_list_has(&o->at_eod, "mask_loss"),
                                 .reset_positions = clv_list_has(&o->at_eod, "reset_positions"),
                                 .reset_attention = clv_list_has(&o->at_eod, "reset_attention")};
    clv_feed_open(feed, data, &sampler, &rules, t->seq_length);
}

/* Validation data of its own, or a part of the training data's split. That a split leaves nothing for it is no error,
 * and every rank must come to the same answer. */
static clv_status valid_open(clv_trainer *t)
{
    const clv_options *o = t->options;
    const bool own = o->valid_data_path.count > 0;
    const clv_source from = {.list = own ? &o->valid_data_path : &o->data_path,
                             .split = own ? NULL : o->split,
                             .which = own ? 0 : 1,
                             .samples = o->eval_iters * t->global_batch};
    clv_dataset *data = NULL;
    const clv_status mine = dataset_open(t, &from, &data), st = clv_comm_agree(t->world, mine);
    if (st.code == CLV_OK) {
        feed_open(t, &t->valid, data);
        return clv_ok();
    }
    if (mine.code == CLV_OK)
        clv_dataset_close(data);
    if (own)
        return st;
    clv_log(CLV_LOG_WARN, "no evaluation: %s", st.text);
    return clv_ok();
}

static clv_status train_open(clv_trainer *t)
{
    const clv_options *o = t->options;
    const int64_t updates = clv_batch_plan_updates(&t->batches, 0, t->train_samples);
    const clv_source from = {.list = &o->data_path,
                             .split = o->valid_data_path.count > 0 ? NULL : o->split,
                             .samples =
                                 clv_batch_plan_samples(&t->batches, updates)}; /* the last update is a whole one */
    clv_dataset *data;
    CLV_TRY(dataset_open(t, &from, &data));
    feed_open(t, &t->train, data);
    clv_text text = {0};
    clv_dataset_describe(data, t->train_samples, &text);
    if (text.length > 0)
        clv_log(CLV_LOG_INFO, "%s", text.data);
    clv_text_free(&text);
    return clv_ok();
}

static clv_status engine_open(clv_trainer *t)
{
    const clv_options *o = t->options;
    clv_recompute recompute;
    clv_dtype dtype;
    CLV_TRY(clv_options_recompute(o, &recompute));
    CLV_TRY(clv_options_storage(o, &dtype));
    const clv_engine_spec spec = {.config = &t->config,
                                  .stages = &t->stages,
                                  .schedule = clv_options_schedule(o),
                                  .recompute = recompute,
                                  .dtype = dtype,
                                  .micros = clv_sampler_micros(&t->train.sampler),
                                  .sequence_parallel = o->sequence_parallel,
                                  .vocab_divisor = o->make_vocab_size_divisible_by,
                                  .micro_batch = o->micro_batch_size,
                                  .seq_length = t->seq_length,
                                  .label_smoothing = o->label_smoothing,
                                  .per_token_loss = o->calculate_per_token_loss,
                                  .training = true,
                                  .no_evaluation = t->valid.data == NULL,
                                  .documents = clv_list_has(&o->at_eod, "reset_attention"),
                                  .distributed_optimizer = o->use_distributed_optimizer,
                                  .overlap_grad_reduce = o->overlap_grad_reduce,
                                  .backend = o->backend,
                                  .seed = (uint64_t)o->seed,
                                  .beta1 = o->adam_beta1,
                                  .beta2 = o->adam_beta2,
                                  .eps = o->adam_eps,
                                  .weight_decay = o->weight_decay,
                                  .clip_grad = o->clip_grad};
    t->process = clv_memory_resident();
    CLV_TRY(clv_engine_create(&t->engine, t->rt.mesh, &spec));
    t->engine_made = true;
    return clv_ok();
}

/* What the checkpoint says of the schedule and of the data order, against what this run asks for. */
static clv_status resume_check(const clv_trainer *t, const clv_progress *saved)
{
    const clv_options *o = t->options;
    const clv_lr_plan *a = &saved->plan, *b = &t->plan;
    const bool same = a->style == b->style && a->max == b->max && a->init == b->init && a->warmup == b->warmup &&
                      (a->style == CLV_LR_CONSTANT || (a->min == b->min && a->decay == b->decay)) &&
                      (a->style != CLV_LR_WSD || (a->wsd_style == b->wsd_style && a->wsd_decay == b->wsd_decay));
    if (!same && !o->override_opt_param_scheduler)
        return clv_fail(
            CLV_BAD_INPUT,
            "the learning-rate schedule differs from the checkpoint's: lr %g, min-lr %g, warm-up %lld, decay %lld "
            "samples there, lr %g, min-lr %g, warm-up %lld, decay %lld here; give the same options (with "
            "--lr-decay to keep the decay when --train-iters grows), or --override-opt-param-scheduler",
            a->max, a->min, (long long)a->warmup, (long long)a->decay, b->max, b->min, (long long)b->warmup,
            (long long)b->decay);
    if (strcmp(saved->data_order, o->data_order) != 0)
        return clv_fail(CLV_BAD_INPUT,
                        "the checkpoint's data-order is %s, here it is %s; samples would repeat or be missed",
                        saved->data_order, o->data_order);
    if (strcmp(o->data_order, "megatron") == 0 && saved->train_samples != t->train_samples)
        return clv_fail(
            CLV_BAD_INPUT,
            "data-order megatron depends on the length of the run: %lld samples in the checkpoint, %lld here; "
            "keep the length, or start with --data-order stable",
            (long long)saved->train_samples, (long long)t->train_samples);
    if (saved->seq_length != t->seq_length)
        return clv_fail(CLV_BAD_INPUT,
                        "seq-length is %lld in the checkpoint, %lld here; with --finetune a new run starts",
                        (long long)saved->seq_length, (long long)t->seq_length);
    if (saved->seed != o->seed)
        return clv_fail(CLV_BAD_INPUT, "seed is %lld in the checkpoint, %lld here; the order of samples would change",
                        (long long)saved->seed, (long long)o->seed);
    return clv_ok();
}

static clv_status weights_open(clv_trainer *t, const char *folder, bool resumable)
{
    clv_engine *e = &t->engine;
    const clv_options *o = t->options;
    if (folder[0] == 0) {
        clv_engine_init(e, (uint64_t)o->seed);
        return clv_ok();
    }
    const bool resume = resumable && !o->finetune;
    clv_progress saved = {0};
    const clv_checkpoint c = {.cx = &e->cx,
                              .config = &t->config,
                              .params = e->params,
                              .param_count = e->param_count,
                              .optimizer = resume && !o->no_load_optim ? &e->optimizer : NULL,
                              .progress = resume ? &saved : NULL,
                              .options = o};
    CLV_TRY(clv_checkpoint_load(&c, folder));
    clv_engine_tables(e);
    if (!resume) {
        clv_log(CLV_LOG_INFO, "weights from %s; iteration 0, new optimizer", folder);
        return clv_ok();
    }
    CLV_TRY(resume_check(t, &saved));
    t->progress.iteration = saved.iteration;
    t->progress.samples = saved.samples;
    t->progress.tokens = saved.tokens;
    t->progress.skipped = saved.skipped;
    t->progress.optimizer_step = saved.optimizer_step;
    t->progress.updated_samples = saved.updated_samples;
    if (t->scaling.dynamic && saved.scaler.scale > 0.0)
        t->progress.scaler = saved.scaler;
    e->optimizer.step = o->no_load_optim ? 0 : saved.optimizer_step;
    clv_log(CLV_LOG_INFO, "resumed %s at iteration %lld (%lld samples)", folder, (long long)saved.iteration,
            (long long)saved.samples);
    return clv_ok();
}

static void memory_report(const clv_trainer *t)
{
    const clv_engine_bytes *p = &t->engine.planned;
    const double mib = 1048576.0, saves = t->room != NULL ? (double)clv_room_bytes(t->room) : 0.0;
    char behind[64] = "";
    if (t->room != NULL)
        snprintf(behind, sizeof behind, " + saves in the background %.1f", saves / mib);
    clv_log(CLV_LOG_INFO,
            "memory a rank: %.1f MiB = weights %.1f + gradients %.1f + optimizer %.1f + activations %.1f + "
            "scratch %.1f + program and data %.1f%s",
            ((double)clv_engine_total(p) + (double)t->process + saves) / mib, (double)p->weights / mib,
            (double)p->grads / mib, (double)p->moments / mib, (double)p->save / mib, (double)p->temp / mib,
            (double)t->process / mib, behind);
}

static void start_report(const clv_trainer *t)
{
    const int64_t b = t->options->micro_batch_size, dp = clv_mesh_size(t->rt.mesh, CLV_DP);
    const int64_t all = clv_engine_parameters(&t->engine, false), decayed = clv_engine_parameters(&t->engine, true);
    clv_log(CLV_LOG_INFO,
            "model: %s, %lld layers, hidden %lld, %lld heads (%lld key/value), vocabulary %lld: %.2f M "
            "parameters, %.2f M with weight decay, %.2f M without",
            t->config.model_type, (long long)t->config.layers, (long long)t->config.hidden, (long long)t->config.heads,
            (long long)t->config.kv_heads, (long long)t->config.vocab, 1e-6 * (double)all, 1e-6 * (double)decayed,
            1e-6 * (double)(all - decayed));
    if (strcmp(t->config.model_type, "cleave") == 0)
        clv_log(CLV_LOG_INFO,
                "no Hugging Face family states this shape: checkpoints are written with model_type cleave");
    clv_log(CLV_LOG_INFO,
            "batch: %lld samples an iteration = micro-batch %lld x %lld accumulated x dp %lld; sequence %lld; %lld "
            "iterations, "
            "%.2f M tokens",
            (long long)t->global_batch, (long long)b, (long long)(t->global_batch / (b * dp)), (long long)dp,
            (long long)t->seq_length, (long long)t->iterations,
            1e-6 * (double)t->train_samples * (double)t->seq_length);
    if (t->batches.count > 1)
        clv_log(CLV_LOG_INFO, "the batch grows: %lld samples an iteration at first, %lld from %lld samples on",
                (long long)t->batches.step[0].size, (long long)t->global_batch,
                (long long)t->batches.step[t->batches.count - 1].from);
    memory_report(t);
}

static clv_status schedule_report(const clv_trainer *t)
{
    const char *path = t->options->log_schedule;
    if (path == NULL || clv_comm_rank(t->world) > 0)
        return clv_ok();
    const clv_pipeline p = {.kind = clv_options_schedule(t->options),
                            .stages = t->stages.stages,
                            .chunks = t->stages.parts / t->stages.stages,
                            .micros = (int)t->engine.spec.micros};
    clv_text text = {0};
    clv_schedule_text(&p, &text);
    clv_log(CLV_LOG_INFO, "schedule of %d micro-batches:\n%s", p.micros, text.data);
    clv_text_free(&text);
    return strcmp(path, "-") == 0 ? clv_ok() : clv_schedule_draw(&p, path);
}

/* What every rank finds for itself, the same on all, before anything is shared. */
static clv_status options_open(clv_trainer *t, char *folder, bool *resumable)
{
    const clv_options *o = t->options;
    clv_dtype dtype;
    CLV_TRY(length_check(o));
    CLV_TRY(clv_options_storage(o, &dtype));
    CLV_TRY(tokenizer_open(t));
    t->scaling = clv_options_scaler(o);
    t->progress.scaler = clv_scaler_start(&t->scaling);
    if (o->load == NULL)
        return clv_ok();
    const clv_status st = clv_checkpoint_find(o->load, folder, resumable);
    if (st.code == CLV_OK || clv_comm_rank(t->world) > 0) /* rank 0 chooses */
        return clv_ok();
    if (!o->allow_missing_checkpoint)
        return clv_within(st, "--load (with --allow-missing-checkpoint a run starts fresh)");
    clv_log(CLV_LOG_WARN, "%s; starting fresh", st.text);
    folder[0] = 0;
    return clv_ok();
}

static clv_status shape_open(clv_trainer *t, const char *folder)
{
    CLV_TRY(shape_find(t, folder));
    return sizes_find(t);
}

/* Hosts may see different files under one name: what was read must be the same everywhere. */
static clv_status progress_agree(const clv_trainer *t)
{
    const clv_decision read[] = {{"iteration of the checkpoint", (double)t->progress.iteration},
                                 {"number of samples in the checkpoint", (double)t->progress.samples},
                                 {"optimizer step of the checkpoint", (double)t->progress.optimizer_step}};
    return clv_sentinel_decisions(t->world, read, CLV_COUNT(read));
}

clv_checkpoint clv_trainer_checkpoint(clv_trainer *t)
{
    const clv_options *o = t->options;
    return (clv_checkpoint){.cx = &t->engine.cx,
                            .config = &t->config,
                            .params = t->engine.params,
                            .param_count = t->engine.param_count,
                            .optimizer = o->no_save_optim ? NULL : &t->engine.optimizer,
                            .progress = &t->progress,
                            .options = o,
                            .keep_every = o->keep_every,
                            .tokenizer = o->tokenizer_model,
                            .room = t->room};
}

static clv_status room_open(clv_trainer *t)
{
    const clv_checkpoint c = clv_trainer_checkpoint(t);
    return t->options->save != NULL && t->options->async_save ? clv_room_open(&t->room, &c) : clv_ok();
}

clv_status clv_trainer_open(clv_trainer *t, clv_comm *world, const clv_options *options)
{
    char folder[4096] = "";
    bool resumable = false;
    *t = (clv_trainer){.options = options, .world = world};
    CLV_TRY(clv_comm_agree(world, options_open(t, folder, &resumable)));
    clv_checkpoint_share(world, folder, &resumable);
    CLV_TRY(clv_comm_agree(world, shape_open(t, folder)));
    CLV_TRY(clv_runtime_open(&t->rt, world, options, &t->config));
    CLV_TRY(clv_comm_agree(world, train_open(t)));
    if (options->is_set.eval_interval)
        CLV_TRY(valid_open(t));
    CLV_TRY(engine_open(t));
    CLV_TRY(clv_comm_agree(world, weights_open(t, folder, resumable)));
    CLV_TRY(progress_agree(t));
    t->iterations =
        options->is_set.train_iters
            ? options->train_iters
            : t->progress.iteration + clv_batch_plan_updates(&t->batches, t->progress.samples, t->train_samples);
    t->progress.plan = t->plan;
    t->progress.train_samples = t->train_samples;
    t->progress.seq_length = t->seq_length;
    t->progress.global_batch = t->global_batch;
    t->progress.seed = options->seed;
    memcpy(t->progress.data_order, options->data_order, strlen(options->data_order) + 1);
    CLV_TRY(room_open(t));
    start_report(t);
    CLV_TRY(clv_comm_agree(world, schedule_report(t)));
    return clv_comm_agree(world, clv_report_open(t));
}

void clv_trainer_close(clv_trainer *t)
{
    clv_room_close(t->room);
    if (t->engine_made)
        clv_engine_destroy(&t->engine);
    if (t->train.data != NULL)
        clv_feed_close(&t->train);
    if (t->valid.data != NULL)
        clv_feed_close(&t->valid);
    if (t->rt.mesh != NULL)
        clv_runtime_close(&t->rt);
    clv_stages_free(&t->stages);
    clv_batch_plan_free(&t->batches);
    clv_tokenizer_free(t->tokenizer);
}
