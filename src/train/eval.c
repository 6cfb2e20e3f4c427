/* eval.c - `cleave eval`: how well a model predicts a text.
 *
 *   loss = sum of nll / tokens      perplexity = exp(loss)      bits per byte = sum of nll / (ln 2 x UTF-8 bytes)
 *
 * nll is -log p of a token, without label smoothing. Bits per byte do not depend on the tokenizer, so that models can
 * be compared by them. windows.c says which tokens are predicted, and from what; data-parallel groups take turns with
 * the windows. stdout gets one line.
 */
#include "inference_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { DEFAULT_SEQ = 1024, DEFAULT_BATCH = 8 };

typedef struct clv_evaluation {
    clv_comm *world;
    const clv_options *options;
    clv_pretrained from;
    clv_runtime rt;
    clv_stages stages;
    clv_engine engine;
    clv_windows *windows;
    int64_t seq_length, batch;
    clv_eod_rules rules;
    int32_t *tokens, *position, *document, *other; /* [batch][s + 1], [batch][s] twice; [s + 1] of another group */
    float *mask;                                   /* [batch][s] */
    double begun, told;                            /* seconds */
} clv_evaluation;

/* ---- set-up --------------------------------------------------------------------------------------------------------
 */

static clv_status rules_read(clv_evaluation *e)
{
    const clv_options *o = e->options;
    e->rules = (clv_eod_rules){.eod = e->from.tokenizer != NULL ? clv_tokenizer_eod(e->from.tokenizer)
                                                                : (int32_t)e->from.config.eos,
                               .mask_loss = clv_list_has(&o->at_eod, "mask_loss"),
                               .reset_positions = clv_list_has(&o->at_eod, "reset_positions"),
                               .reset_attention = clv_list_has(&o->at_eod, "reset_attention")};
    if (e->rules.eod < 0 && o->at_eod.count > 0)
        return clv_fail(CLV_BAD_USAGE,
                        "eod-mask-loss, reset-position-ids and reset-attention-mask need an end-of-document "
                        "token, and %s has none",
                        e->from.folder);
    return clv_ok();
}

static clv_status files_open(clv_evaluation *e)
{
    const clv_options *o = e->options;
    CLV_TRY(clv_pretrained_open(&e->from, o));
    const clv_config *config = &e->from.config;
    e->seq_length = o->is_set.seq_length ? o->seq_length : CLV_MIN((int64_t)DEFAULT_SEQ, config->max_positions);
    e->batch = o->is_set.micro_batch_size ? o->micro_batch_size : DEFAULT_BATCH;
    const clv_layout layout = {.tp = (int)o->tensor_model_parallel_size, .pp = (int)o->pipeline_model_parallel_size};
    CLV_TRY(clv_gpt_check(config, &layout, o->sequence_parallel, e->seq_length));
    CLV_TRY(clv_stages_make(&e->stages, o, config->layers));
    CLV_TRY(rules_read(e));
    return clv_windows_open(&e->windows, &e->from, o, e->seq_length);
}

static clv_status model_open(clv_evaluation *e)
{
    const clv_options *o = e->options;
    CLV_TRY(clv_runtime_open(&e->rt, e->world, o, &e->from.config));
    const clv_engine_spec spec = {.config = &e->from.config,
                                  .stages = &e->stages,
                                  .sequence_parallel = o->sequence_parallel,
                                  .vocab_divisor = o->make_vocab_size_divisible_by,
                                  .micro_batch = e->batch,
                                  .seq_length = e->seq_length,
                                  .documents = e->rules.reset_attention,
                                  .backend = o->backend};
    CLV_TRY(clv_engine_create(&e->engine, e->rt.mesh, &spec));
    clv_engine_tables(&e->engine);
    return clv_pretrained_weights(&e->from, &e->engine.cx, e->engine.params, e->engine.param_count);
}

static clv_status evaluation_open(clv_evaluation *e)
{
    CLV_TRY(clv_comm_agree(e->world, files_open(e)));
    CLV_TRY(clv_pretrained_agree(&e->from, e->world));
    CLV_TRY(model_open(e));
    const size_t cells = (size_t)(e->batch * e->seq_length);
    e->tokens = clv_alloc(cells + (size_t)e->batch, sizeof *e->tokens);
    e->position = clv_alloc(cells, sizeof *e->position);
    e->document = clv_alloc(cells, sizeof *e->document);
    e->mask = clv_alloc(cells, sizeof *e->mask);
    e->other = clv_alloc((size_t)e->seq_length + 1, sizeof *e->other);
    e->begun = e->told = clv_seconds();
    return clv_ok();
}

static void evaluation_close(clv_evaluation *e)
{
    free(e->tokens);
    free(e->position);
    free(e->document);
    free(e->mask);
    free(e->other);
    clv_windows_close(e->windows);
    clv_engine_destroy(&e->engine);
    clv_stages_free(&e->stages);
    clv_runtime_close(&e->rt);
    clv_pretrained_close(&e->from);
}

/* ---- the run -------------------------------------------------------------------------------------------------------
 */

/* The next windows of all groups, batch for each; this group's are kept. Past the end they are empty. */
static clv_status batch_read(clv_evaluation *e, int64_t *targets)
{
    const int64_t s = e->seq_length, b = e->batch, mine = b * clv_mesh_coord(e->rt.mesh, CLV_DP);
    *targets = 0;
    for (int64_t i = 0; i < b * clv_mesh_size(e->rt.mesh, CLV_DP); i++) {
        const bool keep = i >= mine && i < mine + b;
        const int64_t at = i - mine;
        int32_t *tokens = keep ? e->tokens + at * (s + 1) : e->other;
        int64_t n;
        CLV_TRY(clv_windows_next(e->windows, tokens, &n));
        *targets += n;
        if (!keep)
            continue;
        for (int64_t k = 0; n == 0 && k <= s; k++)
            tokens[k] = 0;
        clv_eod_apply(&e->rules, tokens, s, e->mask + at * s, e->position + at * s, e->document + at * s);
        for (int64_t k = n; k < s; k++)
            e->mask[at * s + k] = 0.0f;
    }
    return clv_ok();
}

static void tell(clv_evaluation *e, const clv_eval_result *r)
{
    const double now = clv_seconds();
    if (now - e->told < 1.0)
        return;
    e->told = now;
    clv_log(CLV_LOG_INFO, "%3.0f %%  %lld tokens  loss %.4f  %.0f tokens/s", 100.0 * clv_windows_share(e->windows),
            (long long)r->tokens, r->nll / (double)CLV_MAX(r->tokens, 1), (double)r->tokens / (now - e->begun));
}

static clv_status evaluate(clv_evaluation *e, clv_eval_result *r)
{
    for (;;) {
        int64_t targets;
        CLV_TRY(clv_comm_agree(e->world, batch_read(e, &targets)));
        if (targets == 0)
            break;
        const clv_samples samples = {
            .count = e->batch, .tokens = e->tokens, .mask = e->mask, .position = e->position, .document = e->document};
        clv_engine_evaluate(&e->engine, &samples, &r->nll, &r->tokens);
        tell(e, r);
    }
    r->bytes = clv_windows_bytes(e->windows);
    if (r->tokens == 0)
        return clv_fail(CLV_BAD_INPUT, "%s holds no token that could be predicted",
                        e->options->input != NULL ? e->options->input : "the data");
    if (!isfinite(r->nll))
        return clv_fail(CLV_CHECK_FAILED, "the loss is not finite (%g): the weights of %s are damaged", r->nll,
                        e->from.folder);
    const double seconds = clv_seconds() - e->begun;
    clv_log(CLV_LOG_INFO, "%lld tokens in %.2f s, %.0f tokens/s", (long long)r->tokens, seconds,
            (double)r->tokens / CLV_MAX(seconds, 1e-9));
    return clv_ok();
}

clv_status clv_eval_run(clv_comm *world, const clv_options *options, clv_eval_result *result)
{
    clv_evaluation e = {.world = world, .options = options};
    *result = (clv_eval_result){0};
    clv_status st = evaluation_open(&e);
    if (st.code == CLV_OK)
        st = evaluate(&e, result);
    if (st.code == CLV_OK && options->log_comm) {
        clv_text text = {0};
        clv_mesh_traffic_print(e.rt.mesh, &text);
        clv_log(CLV_LOG_INFO, "traffic:\n%s", text.length > 0 ? text.data : "none");
        clv_text_free(&text);
    }
    evaluation_close(&e);
    return st;
}

/* ---- the command ---------------------------------------------------------------------------------------------------
 */

static double bits_per_byte(const clv_eval_result *r)
{
    return r->nll / (log(2.0) * (double)r->bytes);
}

static void result_print(const clv_eval_result *r)
{
    const double loss = r->nll / (double)r->tokens;
    printf("loss %.6f  perplexity %.6g", loss, exp(loss));
    if (r->bytes > 0)
        printf("  bits per byte %.6f  (tokens %lld, bytes %lld)\n", bits_per_byte(r), (long long)r->tokens,
               (long long)r->bytes);
    else
        printf("  (tokens %lld)\n", (long long)r->tokens);
    fflush(stdout);
}

static clv_status metrics_write(const clv_eval_result *r, const char *path)
{
    const double loss = r->nll / (double)r->tokens;
    clv_text json = {0};
    clv_text_printf(&json, "{\"loss\": ");
    clv_json_add_number(&json, loss);
    clv_text_printf(&json, ", \"perplexity\": ");
    clv_json_add_number(&json, exp(loss));
    clv_text_printf(&json, ", \"tokens\": %lld", (long long)r->tokens);
    if (r->bytes > 0) {
        clv_text_printf(&json, ", \"bytes\": %lld, \"bits_per_byte\": ", (long long)r->bytes);
        clv_json_add_number(&json, bits_per_byte(r));
    }
    clv_text_printf(&json, "}\n");
    const clv_status st = clv_file_write_atomic(path, json.data, json.length);
    clv_text_free(&json);
    return st;
}

clv_status clv_eval(clv_comm *world, const clv_options *options)
{
    clv_eval_result r;
    CLV_TRY(clv_eval_run(world, options, &r));
    clv_status st = clv_ok();
    if (clv_comm_rank(world) == 0) {
        result_print(&r);
        if (options->metrics != NULL)
            st = metrics_write(&r, options->metrics);
    }
    return clv_comm_agree(world, st);
}
