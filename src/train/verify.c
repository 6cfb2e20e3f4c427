/* verify.c - hold a layout against PyTorch's values, tensor by tensor.
 *
 * The folder holds a Hugging Face model and expected.safetensors + expected.json beside it: tokens and loss mask of
 * some steps, logits and gradients of the first, weights after the last, loss and gradient norm of each. The steps are
 * trained with the trainer's own engine in the layout of this run, and every value is compared with what was expected.
 */
#include "train/verify_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct clv_case {
    clv_safetensors *expected;
    clv_json *json;
    clv_config config;
    clv_stages stages;
    clv_recompute recompute;
    int64_t steps, batch, seq_length;
    int32_t *tokens; /* [steps, B, s + 1] */
    float *mask;     /* [steps, B, s] */
    double lr, beta1, beta2, eps, weight_decay, clip_grad, smoothing;
} clv_case;

clv_limits clv_verify_limits(void)
{
    return (clv_limits){.logits = 1e-5, .loss = 5e-6, .gradient = 2e-5, .norm = 1e-5, .weight = 5e-6};
}

void clv_judge(clv_verdict *v, const char *what, double error, double limit)
{
    const bool good = error <= limit; /* NaN fails */
    v->checks++;
    v->failed += good ? 0 : 1;
    if (v->print)
        printf("%-68s error %9.2e  limit %7.0e  %s\n", what, error, limit, good ? "ok" : "WRONG");
}

/* ---- the case ---------------------------------------------------------------------------------------------------- */

/* The whole of a tensor that must have `count` elements. */
static clv_status read_whole(const clv_safetensors *st, const char *name, clv_dtype dtype, int64_t count, void **out)
{
    const clv_st_tensor *t = clv_safetensors_find(st, name);
    if (t == NULL || t->dtype != dtype)
        return clv_fail(CLV_BAD_INPUT, "%s: tensor %s (%s) is missing", clv_safetensors_file(st, 0), name,
                        clv_dtype_st_name(dtype));
    if (t->bytes != (uint64_t)count * clv_dtype_size(dtype))
        return clv_fail(CLV_BAD_INPUT, "%s: tensor %s has %llu bytes, %lld elements were expected",
                        clv_safetensors_file(st, 0), name, (unsigned long long)t->bytes, (long long)count);
    *out = clv_alloc(t->bytes, 1);
    return clv_safetensors_read(st, t, 0, *out, t->bytes);
}

static clv_status numbers_read(clv_case *c)
{
    const clv_node root = CLV_JSON_ROOT, h = clv_json_get(c->json, root, "hyperparameters");
    const struct {
        const char *key;
        double *out;
    } rows[] = {{"lr", &c->lr},
                {"adam_beta1", &c->beta1},
                {"adam_beta2", &c->beta2},
                {"adam_eps", &c->eps},
                {"clip_grad", &c->clip_grad},
                {"weight_decay", &c->weight_decay},
                {"label_smoothing", &c->smoothing}};
    for (size_t i = 0; i < CLV_COUNT(rows); i++)
        if (!clv_json_f64(c->json, clv_json_get(c->json, h, rows[i].key), rows[i].out))
            return clv_fail(CLV_BAD_INPUT, "expected.json: hyperparameters.%s is not a number", rows[i].key);
    c->steps = clv_json_count(c->json, clv_json_get(c->json, root, "steps"));
    const clv_st_tensor *t = clv_safetensors_find(c->expected, "tokens");
    if (t == NULL || t->ndim != 3 || t->dim[0] != c->steps || t->dim[2] < 2)
        return clv_fail(CLV_BAD_INPUT, "expected.safetensors: tokens must be [steps, B, T+1] with %lld steps",
                        (long long)c->steps);
    c->batch = t->dim[1];
    c->seq_length = t->dim[2] - 1;
    const clv_st_tensor *m = clv_safetensors_find(c->expected, "loss_mask");
    if (m == NULL || m->ndim != 3 || m->dim[0] != c->steps || m->dim[1] != c->batch || m->dim[2] != c->seq_length)
        return clv_fail(CLV_BAD_INPUT, "expected.safetensors: loss_mask must be [steps, B, T]");
    return clv_ok();
}

static clv_status case_open(clv_case *c, const char *folder)
{
    char path[4096];
    *c = (clv_case){0};
    CLV_TRY(clv_hf_config_read(&c->config, folder));
    clv_path_join(path, sizeof path, folder, "expected.json");
    CLV_TRY(clv_json_load(&c->json, path));
    clv_path_join(path, sizeof path, folder, "expected.safetensors");
    CLV_TRY(clv_safetensors_open(&c->expected, path));
    CLV_TRY(clv_within(numbers_read(c), "%s", folder));
    CLV_TRY(read_whole(c->expected, "tokens", CLV_I32, c->steps * c->batch * (c->seq_length + 1), (void **)&c->tokens));
    CLV_TRY(read_whole(c->expected, "loss_mask", CLV_F32, c->steps * c->batch * c->seq_length, (void **)&c->mask));
    for (int64_t i = 0; i < c->steps * c->batch * (c->seq_length + 1); i++)
        if (c->tokens[i] < 0 || c->tokens[i] >= c->config.vocab)
            return clv_fail(CLV_BAD_INPUT, "%s: token %d at %lld is not below the vocabulary of %lld", path,
                            (int)c->tokens[i], (long long)i, (long long)c->config.vocab);
    return clv_ok();
}

static void case_close(clv_case *c)
{
    free(c->tokens);
    free(c->mask);
    clv_stages_free(&c->stages);
    clv_json_free(c->json);
    clv_safetensors_close(c->expected);
}

/* Step `step` as this dp rank sees it. */
static clv_samples samples_of(const clv_case *c, const clv_mesh *mesh, int64_t step, int64_t *index)
{
    const int64_t mine = c->batch / clv_mesh_size(mesh, CLV_DP);
    const int64_t first = step * c->batch + mine * clv_mesh_coord(mesh, CLV_DP);
    for (int64_t i = 0; i < mine; i++)
        index[i] = first + i;
    return (clv_samples){.count = mine,
                         .tokens = c->tokens + first * (c->seq_length + 1),
                         .mask = c->mask + first * c->seq_length,
                         .index = index};
}

/* ---- comparisons ---------------------------------------------------------------------------------------------------
 */

/* Largest error of a parameter's box of one file tensor against the expected one, and that tensor's largest element. */
typedef struct clv_span {
    double error, largest;
} clv_span;

static clv_span span_of(const clv_case *c, const char *lead, const clv_file_slot *slot, const clv_param *p,
                        const float *got)
{
    char name[160];
    snprintf(name, sizeof name, "%s%s", lead, slot->name);
    float *want = NULL;
    const int64_t all = slot->dim[0] * (slot->ndim > 1 ? slot->dim[1] : 1);
    if (read_whole(c->expected, name, CLV_F32, all, (void **)&want).code != CLV_OK) {
        free(want);
        return (clv_span){NAN, NAN};
    }
    clv_span span = {0, 0};
    const int64_t rows = p->whole[0], columns = p->ndim > 1 ? p->whole[1] : 1;
    for (int64_t i = 0; i < all; i++)
        span.largest = fmax(span.largest, fabs((double)want[i]));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            const int64_t row = slot->offset + i;
            const int64_t at = slot->transposed ? j * slot->dim[1] + row : row * columns + j;
            const double error = fabs((double)got[i * columns + j] - (double)want[at]);
            span.error = isnan(error) ? NAN : fmax(span.error, error);
        }
    free(want);
    return span;
}

/* Every parameter's gradient (relative to the largest element of its file tensor) or weight (absolute). */
static void params_compare(const clv_case *c, clv_engine *e, bool gradients, clv_verdict *v)
{
    for (size_t i = 0; i < e->param_count; i++) {
        const clv_param *p = &e->params[i];
        float *got = gradients ? clv_param_gather(&e->cx, p, clv_elements(p->dw, clv_param_own(p)), true)
                               : clv_param_gather(&e->cx, p, p->w, false);
        const clv_file_slot slot = clv_family_slot(&c->config, p);
        double error = 0.0;
        if (got != NULL) {
            const clv_span span = span_of(c, gradients ? "grad." : "final.", &slot, p, got);
            error = gradients ? span.error / fmax(span.largest, 1e-30) : span.error;
        }
        free(got);
        char what[200];
        snprintf(what, sizeof what, "%s %s", gradients ? "gradient" : "weight", p->name);
        clv_judge(v, what, clv_comm_decide(clv_mesh_world(e->cx.mesh), error),
                  gradients ? clv_verify_limits().gradient : clv_verify_limits().weight);
    }
}

/* Logits of one micro-batch against the expected ones of its samples. */
typedef struct clv_logits_check {
    const clv_case *c;
    clv_engine *e;
    const float *want; /* [B, T, V] */
    int64_t first;     /* sample of micro-batch 0 */
    double worst;
} clv_logits_check;

static void logits_visit(void *user, int64_t micro, clv_tensor logits)
{
    clv_logits_check *k = user;
    const clv_vocab *vocab = &k->e->chunk[k->e->chunks - 1].model.head.output;
    const int64_t v = clv_last(logits), b = k->e->spec.micro_batch, s = k->c->seq_length, classes = k->c->config.vocab;
    float *got = clv_alloc((size_t)clv_numel(logits), sizeof *got);
    clv_to_host(&k->e->cx, got, logits);
    for (int64_t row = 0; row < s * b; row++) {
        const int64_t sample = k->first + micro * b + row % b;
        const float *want = k->want + (sample * s + row / b) * classes + vocab->first;
        for (int64_t j = 0; j < vocab->real; j++) {
            const double error = fabs((double)got[row * v + j] - (double)want[j]);
            k->worst = isnan(error) ? INFINITY : fmax(k->worst, error);
        }
    }
    free(got);
}

static clv_status logits_compare(const clv_case *c, clv_engine *e, clv_verdict *verdict)
{
    clv_logits_check k = {.c = c, .e = e};
    float *want = NULL;
    CLV_TRY(clv_comm_agree(
        clv_mesh_world(e->cx.mesh),
        read_whole(c->expected, "logits", CLV_F32, c->batch * c->seq_length * c->config.vocab, (void **)&want)));
    int64_t *index = clv_alloc((size_t)c->batch, sizeof *index);
    const clv_samples samples = samples_of(c, e->cx.mesh, 0, index);
    k.want = want;
    k.first = index[0];
    clv_engine_logits(e, &samples, logits_visit, &k);
    clv_all_reduce(clv_mesh_world(e->cx.mesh), &k.worst, &k.worst, 1, CLV_F64, CLV_MAX);
    clv_judge(verdict, "logits", k.worst, clv_verify_limits().logits);
    free(index);
    free(want);
    return clv_ok();
}

static void step_compare(const clv_case *c, int64_t i, const clv_step *step, clv_verdict *v)
{
    clv_node node = clv_json_first(c->json, clv_json_get(c->json, CLV_JSON_ROOT, "steps"));
    for (int64_t k = 0; k < i; k++)
        node = clv_json_next(c->json, node);
    double loss = NAN, norm = NAN;
    clv_json_f64(c->json, clv_json_get(c->json, node, "lm_loss"), &loss);
    clv_json_f64(c->json, clv_json_get(c->json, node, "grad_norm"), &norm);
    char what[64];
    snprintf(what, sizeof what, "step %lld: loss", (long long)(i + 1));
    clv_judge(v, what, fabs(step->loss - loss), clv_verify_limits().loss);
    snprintf(what, sizeof what, "step %lld: gradient norm", (long long)(i + 1));
    clv_judge(v, what, fabs(step->grad_norm - norm) / norm, clv_verify_limits().norm);
}

/* ---- the run
 * ---------------------------------------------------------------------------------------------------------- */

static clv_status steps_run(const clv_case *c, clv_engine *e, const clv_options *options, clv_verdict *v)
{
    const clv_checkpoint weights = {
        .cx = &e->cx, .config = &c->config, .params = e->params, .param_count = e->param_count};
    CLV_TRY(clv_checkpoint_load(&weights, options->reference));
    clv_engine_tables(e);
    CLV_TRY(logits_compare(c, e, v));
    int64_t *index = clv_alloc((size_t)c->batch, sizeof *index);
    for (int64_t i = 0; i < c->steps; i++) {
        const clv_samples samples = samples_of(c, e->cx.mesh, i, index);
        const clv_step step = clv_engine_gradients(e, &samples, i + 1);
        step_compare(c, i, &step, v);
        if (i == 0)
            params_compare(c, e, true, v);
        clv_engine_update(e, &step, c->lr);
    }
    params_compare(c, e, false, v);
    free(index);
    return clv_sentinel_check(&e->cx, e->params, e->param_count, &e->optimizer);
}

static clv_engine_spec spec_of(const clv_case *c, const clv_options *options, const clv_mesh *mesh)
{
    return (clv_engine_spec){.config = &c->config,
                             .stages = &c->stages,
                             .schedule = clv_options_schedule(options),
                             .recompute = c->recompute,
                             .micros = c->batch / clv_mesh_size(mesh, CLV_DP) / options->micro_batch_size,
                             .sequence_parallel = options->sequence_parallel,
                             .vocab_divisor = options->is_set.make_vocab_size_divisible_by
                                                  ? options->make_vocab_size_divisible_by
                                                  : 1, /* so that small vocabularies are really split */
                             .micro_batch = options->micro_batch_size,
                             .seq_length = c->seq_length,
                             .label_smoothing = c->smoothing,
                             .per_token_loss = true,
                             .training = true,
                             .logits = true,
                             .distributed_optimizer = options->use_distributed_optimizer,
                             .overlap_grad_reduce = options->overlap_grad_reduce,
                             .backend = options->backend,
                             .beta1 = c->beta1,
                             .beta2 = c->beta2,
                             .eps = c->eps,
                             .weight_decay = c->weight_decay,
                             .clip_grad = c->clip_grad};
}

static clv_status verify_in(clv_runtime *rt, const clv_case *c, const clv_options *options, clv_verdict *v)
{
    const int64_t dp = clv_mesh_size(rt->mesh, CLV_DP), b = options->micro_batch_size;
    if (c->batch % (dp * b) != 0)
        return clv_fail(CLV_BAD_INPUT,
                        "the case has %lld samples a step; micro-batch-size %lld x dp %lld does not divide them",
                        (long long)c->batch, (long long)b, (long long)dp);
    const clv_pipeline pipeline = {.kind = clv_options_schedule(options),
                                   .stages = c->stages.stages,
                                   .chunks = c->stages.parts / c->stages.stages,
                                   .micros = (int)(c->batch / (dp * b))};
    CLV_TRY(clv_pipeline_check(&pipeline));
    const clv_engine_spec spec = spec_of(c, options, rt->mesh);
    clv_engine engine;
    CLV_TRY(clv_engine_create(&engine, rt->mesh, &spec));
    const clv_status st = steps_run(c, &engine, options, v);
    if (options->log_comm && v->print) {
        clv_text text = {0};
        clv_mesh_traffic_print(rt->mesh, &text);
        printf("%s", text.data);
        clv_text_free(&text);
    }
    clv_engine_destroy(&engine);
    return st;
}

static clv_status verify_reference(clv_comm *world, const clv_options *options, clv_verdict *v)
{
    clv_case c;
    clv_status st = clv_comm_agree(world, case_open(&c, options->reference));
    const clv_layout layout = {.tp = (int)options->tensor_model_parallel_size,
                               .pp = (int)options->pipeline_model_parallel_size};
    if (st.code == CLV_OK)
        st = clv_stages_make(&c.stages, options, c.config.layers);
    if (st.code == CLV_OK)
        st = clv_options_recompute(options, &c.recompute);
    if (st.code == CLV_OK)
        st = clv_gpt_check(&c.config, &layout, options->sequence_parallel, c.seq_length);
    clv_runtime rt = {0};
    if (st.code == CLV_OK)
        st = clv_runtime_open(&rt, world, options, &c.config);
    if (st.code == CLV_OK)
        st = verify_in(&rt, &c, options, v);
    clv_runtime_close(&rt);
    case_close(&c);
    return st;
}

clv_status clv_verify(clv_comm *world, const clv_options *options)
{
    if (options->reference == NULL)
        return clv_fail(CLV_BAD_USAGE, "verify needs --reference DIR: a model folder, with expected.safetensors and "
                                       "expected.json beside it unless --layouts is given");
    clv_verdict v = {.print = clv_comm_rank(world) == 0};
    CLV_TRY(options->layouts != NULL ? clv_verify_layouts(world, options, &v) : verify_reference(world, options, &v));
    if (v.print)
        printf("%s: %lld of %lld values within their limits\n", v.failed == 0 ? "equal" : "DIFFERENT",
               (long long)(v.checks - v.failed), (long long)v.checks);
    if (v.failed > 0)
        return clv_fail(CLV_CHECK_FAILED, "%lld of %lld values differ from the reference", (long long)v.failed,
                        (long long)v.checks);
    return clv_ok();
}
