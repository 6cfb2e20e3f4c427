/* trainer_report.c - what people and files get to see of a run: a line an interval, a JSON object an iteration, a
 * picture. */
#include "train/trainer_internal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static bool speaks(const clv_trainer *t)
{
    return clv_comm_rank(t->world) == 0;
}

/* Lines of an earlier run that lie beyond the checkpoint are dropped, so that the file has each iteration once. */
static clv_status metrics_trim(const char *path, int64_t iteration)
{
    clv_text old;
    if (!clv_file_exists(path))
        return clv_ok();
    CLV_TRY(clv_file_read(path, &old));
    clv_text kept = {0};
    for (const char *line = old.data, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        long long at = 0;
        if (sscanf(line, "{\"iteration\":%lld", &at) == 1 && at <= iteration)
            clv_text_add(&kept, line, (size_t)(end - line) + 1);
    }
    const clv_status st = clv_file_write_atomic(path, kept.data, kept.length);
    clv_text_free(&kept);
    clv_text_free(&old);
    return st;
}

clv_status clv_report_open(clv_trainer *t)
{
    const char *path = t->options->metrics;
    t->report.first = clv_seconds();
    t->report.first_iteration = t->progress.iteration;
    if (t->options->trace != NULL)
        t->engine.trace = clv_trace_log_open(t->rt.mesh);
    if (!speaks(t) || path == NULL)
        return clv_ok();
    CLV_TRY(clv_make_parent(path));
    CLV_TRY(metrics_trim(path, t->progress.iteration));
    t->report.metrics = fopen(path, "a");
    if (t->report.metrics == NULL)
        return clv_fail(CLV_BAD_INPUT, "cannot open %s for the metrics: %s", path, strerror(errno));
    return clv_ok();
}

static void curve_add(clv_curve *curve, double x, double y)
{
    curve->x = clv_resize(curve->x, curve->count + 1, sizeof *curve->x);
    curve->y = clv_resize(curve->y, curve->count + 1, sizeof *curve->y);
    curve->x[curve->count] = x;
    curve->y[curve->count++] = y;
}

static int64_t peak_memory(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (int64_t)usage.ru_maxrss * 1024;
}

static void member(clv_text *out, const char *key, double value)
{
    clv_text_printf(out, out->length == 0 ? "{\"%s\":" : ",\"%s\":", key);
    clv_json_add_number(out, value);
}

static void metrics_add(clv_trainer *t, const clv_step *step, double lr, double seconds)
{
    const double tokens = (double)(t->batch * t->seq_length) / seconds;
    const double flops = tokens * clv_model_flops(&t->config, t->seq_length);
    clv_text line = {0};
    member(&line, "iteration", (double)t->progress.iteration);
    member(&line, "consumed_samples", (double)t->progress.samples);
    member(&line, "consumed_tokens", (double)t->progress.tokens);
    member(&line, "lm_loss", step->loss);
    member(&line, "grad_norm", step->grad_norm);
    member(&line, "learning_rate", lr);
    member(&line, "loss_scale", t->progress.scaler.scale > 0.0 ? t->progress.scaler.scale : 1.0);
    member(&line, "skipped", (double)t->progress.skipped);
    member(&line, "seconds", seconds);
    member(&line, "elapsed", clv_seconds() - t->report.first); /* evaluations and saves included */
    member(&line, "tokens_per_second", tokens);
    member(&line, "model_tflops", flops * 1e-12);
    member(&line, "mfu", flops / (t->rt.peak * clv_comm_size(t->world)));
    member(&line, "peak_memory_bytes", (double)peak_memory());
    clv_text_add(&line, "}\n", 2);
    fwrite(line.data, 1, line.length, t->report.metrics);
    fflush(t->report.metrics);
    clv_text_free(&line);
}

static void duration(double seconds, char *out, size_t size)
{
    const int64_t s = (int64_t)(seconds + 0.5);
    if (s >= 3600)
        snprintf(out, size, "%lld:%02lld:%02lld", (long long)(s / 3600), (long long)(s / 60 % 60), (long long)(s % 60));
    else
        snprintf(out, size, "%lld:%02lld", (long long)(s / 60), (long long)(s % 60));
}

/* " | loss scale 65536 | 2 skipped", as far as there is something to say. */
static void troubles(const clv_trainer *t, char *out, size_t size)
{
    const double scale = t->progress.scaler.scale;
    int used = 0;
    out[0] = 0;
    if (scale > 0.0)
        used = snprintf(out, size, " | loss scale %g", scale);
    if (t->progress.skipped > 0)
        snprintf(out + used, size - (size_t)used, " | %lld skipped", (long long)t->progress.skipped);
}

static void line_print(clv_trainer *t, const clv_step *step, double lr)
{
    clv_report *r = &t->report;
    const double tokens = r->seconds > 0 ? (double)r->tokens / r->seconds : 0.0;
    const double share = tokens * clv_model_flops(&t->config, t->seq_length) / (t->rt.peak * clv_comm_size(t->world));
    const int64_t done = t->progress.iteration - r->first_iteration, left = t->iterations - t->progress.iteration;
    char rest[32], loss[32] = "n/a", samples[64] = "", more[96];
    troubles(t, more, sizeof more);
    duration((clv_seconds() - r->first) / (double)CLV_MAX(done, 1) * (double)left, rest, sizeof rest);
    if (t->batches.count > 1 || t->options->is_set.train_samples)
        snprintf(samples, sizeof samples, " | %lld samples, batch %lld", (long long)t->progress.samples,
                 (long long)t->batch);
    if (r->updates > 0)
        snprintf(loss, sizeof loss, "%.4f", r->loss_sum / (double)r->updates);
    clv_log(CLV_LOG_INFO,
            "iteration %5lld/%lld%s | loss %s | grad norm %.3f | lr %.2e | %.0f tokens/s | %.1f %% of peak%s | %s left",
            (long long)t->progress.iteration, (long long)t->iterations, samples, loss, step->grad_norm, lr, tokens,
            100.0 * share, more, rest);
    r->seconds = 0;
    r->tokens = 0;
}

void clv_report_step(clv_trainer *t, const clv_step *step, double lr, double seconds)
{
    clv_report *r = &t->report;
    r->seconds += seconds;
    r->tokens += t->batch * t->seq_length;
    if (step->counted > 0 && isfinite(step->loss)) {
        r->loss_sum += step->loss;
        r->updates++;
    }
    if (!speaks(t))
        return;
    curve_add(&r->train, (double)t->progress.iteration, step->counted > 0 ? step->loss : NAN);
    if (r->metrics != NULL)
        metrics_add(t, step, lr, seconds);
    const bool whole = t->progress.iteration % t->options->log_interval == 0;
    if (whole || t->progress.iteration == t->iterations || t->progress.iteration == r->first_iteration + 1)
        line_print(t, step, lr);
    if (whole) { /* the first line, out of turn, takes no loss from the mean of the next */
        r->loss_sum = 0;
        r->updates = 0;
    }
}

void clv_report_valid(clv_trainer *t, double loss)
{
    if (!speaks(t))
        return;
    clv_log(CLV_LOG_INFO, "iteration %5lld | validation loss %.4f | perplexity %.2f", (long long)t->progress.iteration,
            loss, exp(loss));
    curve_add(&t->report.valid, (double)t->progress.iteration, loss);
    if (t->report.metrics == NULL)
        return;
    clv_text line = {0};
    member(&line, "iteration", (double)t->progress.iteration);
    member(&line, "validation_loss", loss);
    fprintf(t->report.metrics, "%s}\n", line.data);
    fflush(t->report.metrics);
    clv_text_free(&line);
}

clv_status clv_report_close(clv_trainer *t)
{
    clv_report *r = &t->report;
    clv_status st = t->engine.trace != NULL ? clv_trace_log_write(t->engine.trace, t->options->trace) : clv_ok();
    clv_trace_log_close(t->engine.trace);
    t->engine.trace = NULL;
    if (r->metrics != NULL && fclose(r->metrics) != 0)
        st = clv_fail(CLV_BAD_INPUT, "cannot write %s: %s", t->options->metrics, strerror(errno));
    if (st.code == CLV_OK && speaks(t) && t->options->loss_curve != NULL && r->train.count > 0) {
        const clv_series series[] = {{"training loss", r->train.x, r->train.y, r->train.count},
                                     {"validation loss", r->valid.x, r->valid.y, r->valid.count}};
        st = clv_make_parent(t->options->loss_curve);
        if (st.code == CLV_OK)
            st = clv_svg_chart(t->options->loss_curve, "Loss", "iteration", "nats per token", series,
                               r->valid.count > 0 ? 2 : 1);
    }
    free(r->train.x);
    free(r->train.y);
    free(r->valid.x);
    free(r->valid.y);
    *r = (clv_report){0};
    return st;
}
