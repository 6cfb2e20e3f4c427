/* trainer.c - the loop: samples, gradients, decision, update, report, and now and then an evaluation or a checkpoint.
 *
 * Every decision (stop, skip, save) is made from values that are bit-equal on all ranks.
 */
#include "train/trainer_internal.h"

#include <math.h>

typedef enum clv_end { CLV_GO_ON, CLV_END_DURATION, CLV_END_INTERVAL, CLV_END_SIGNAL } clv_end; /* stronger last */

static void saved_report(const clv_trainer *t, int64_t iteration, double seconds, const char *how)
{
    clv_log(CLV_LOG_INFO, "iteration %5lld | saved in %s (%.2f s%s)", (long long)iteration, t->options->save, seconds,
            how);
}

/* The checkpoint that is being written, if there is one: on to its next part, or to its end. */
static clv_status save_go_on(clv_trainer *t, clv_status (*go)(clv_saving **saving))
{
    if (t->saving == NULL)
        return clv_ok();
    const double start = clv_seconds();
    CLV_TRY(go(&t->saving));
    t->waited += clv_seconds() - start;
    if (t->saving == NULL)
        saved_report(t, t->saving_iteration, t->waited, " of the run, the rest in the background");
    return clv_ok();
}

static clv_status save_end(clv_trainer *t)
{
    return save_go_on(t, clv_checkpoint_end);
}

static clv_status save(clv_trainer *t)
{
    const clv_options *o = t->options;
    if (o->save == NULL)
        return clv_ok();
    CLV_TRY(save_end(t));
    const double start = clv_seconds();
    const clv_checkpoint c = clv_trainer_checkpoint(t);
    if (o->async_save) {
        t->saving_iteration = t->progress.iteration;
        CLV_TRY(clv_checkpoint_begin(&t->saving, &c, o->save, o->keep_last));
        t->waited = clv_seconds() - start;
        return clv_ok();
    }
    CLV_TRY(clv_checkpoint_save(&c, o->save, o->keep_last));
    saved_report(t, t->progress.iteration, clv_seconds() - start, "");
    return clv_ok();
}

static clv_status evaluate(clv_trainer *t)
{
    double nll = 0.0;
    int64_t counted = 0;
    for (int64_t i = 0; i < t->options->eval_iters; i++) {
        CLV_TRY(clv_comm_agree(t->world, clv_feed_step(&t->valid, i * t->global_batch, t->global_batch)));
        clv_engine_evaluate(&t->engine, &t->valid.samples, &nll, &counted);
    }
    clv_report_valid(t, nll / (double)CLV_MAX(counted, 1));
    return clv_ok();
}

/* A checkpoint that was begun goes on, in so much of an iteration's time that it is not felt; in more where the next
 * one comes soon, and would have to wait. */
static void save_advance(clv_trainer *t)
{
    static const double share = 0.03;
    const int64_t passed = t->progress.iteration - t->saving_iteration, interval = t->options->save_interval;
    if (t->saving == NULL || passed == 0)
        return;
    const double start = clv_seconds();
    clv_checkpoint_advance(t->saving, share * t->took, interval > 0 ? 2.0 * (double)passed / (double)interval : 0.0);
    t->waited += clv_seconds() - start;
}

/* What all ranks do after this iteration: end, by the strongest reason of any; go on with a checkpoint, when all have
 * done their part. */
static clv_status settle(clv_trainer *t, clv_end *end)
{
    const clv_options *o = t->options;
    save_advance(t);
    int32_t all[2] = {CLV_GO_ON, t->saving != NULL && !clv_checkpoint_waits(t->saving)};
    if (o->is_set.exit_duration_in_mins && clv_seconds() - t->report.first > 60.0 * o->exit_duration_in_mins)
        all[0] = CLV_END_DURATION;
    if (o->is_set.exit_interval && t->progress.iteration % o->exit_interval == 0)
        all[0] = CLV_END_INTERVAL;
    if (clv_signal_caught() != 0)
        all[0] = CLV_END_SIGNAL;
    clv_all_reduce(t->world, all, all, CLV_COUNT(all), CLV_I32, CLV_MAX);
    *end = (clv_end)all[0];
    return all[1] == 0 ? save_go_on(t, clv_checkpoint_go_on) : clv_ok();
}

/* fp16: the scale has moved already; the update is skipped and counted. */
static clv_status overflow(clv_trainer *t)
{
    t->progress.skipped++;
    if (t->progress.scaler.stuck < CLV_SCALER_PATIENCE)
        return clv_ok();
    return clv_fail(CLV_CHECK_FAILED,
                    "iteration %lld: gradients overflowed %d times in a row at a loss scale of %g, which %s; the last "
                    "checkpoint is untouched. Lower --lr, look at the data, or train with --bf16",
                    (long long)t->progress.iteration + 1, CLV_SCALER_PATIENCE, t->progress.scaler.scale,
                    t->scaling.dynamic ? "is --min-loss-scale" : "is constant");
}

/* A loss or gradient that is not finite: stop before the update, or skip it and count. */
static clv_status update(clv_trainer *t, const clv_step *step, double lr)
{
    if (step->counted == 0) {
        clv_log(CLV_LOG_WARN, "iteration %lld: no token counts in the loss; no update",
                (long long)t->progress.iteration + 1);
        return clv_ok();
    }
    if (t->progress.scaler.scale > 0.0)
        clv_scaler_update(&t->progress.scaler, &t->scaling, !step->finite);
    if (step->finite) {
        clv_engine_update(&t->engine, step, lr);
        t->progress.optimizer_step++;
        t->progress.updated_samples += t->batch;
        return clv_ok();
    }
    if (t->progress.scaler.scale > 0.0)
        return overflow(t);
    if (t->options->check_for_nan_in_loss_and_grad)
        return clv_fail(
            CLV_CHECK_FAILED,
            "iteration %lld: loss %g, gradient norm %g: not finite; weights were not updated and the last "
            "checkpoint is untouched. Lower --lr or look at the data; --no-check-for-nan-in-loss-and-grad skips "
            "such updates",
            (long long)t->progress.iteration + 1, step->loss, step->grad_norm);
    t->progress.skipped++;
    return clv_ok();
}

static void comm_report(const clv_trainer *t)
{
    clv_text text = {0};
    clv_mesh_traffic_print(t->rt.mesh, &text);
    if (text.length > 0)
        clv_log(CLV_LOG_INFO, "collectives of iteration %lld:\n%s", (long long)t->progress.iteration, text.data);
    clv_text_free(&text);
}

static clv_status decisions_check(const clv_trainer *t, const clv_step *step, double lr)
{
    const clv_decision all[] = {{"loss", step->loss},
                                {"gradient norm", step->grad_norm},
                                {"clip factor", clv_clip_coefficient(step->grad_norm, t->options->clip_grad)},
                                {"choice to skip", step->finite ? 0.0 : 1.0},
                                {"loss scale", step->scale},
                                {"number of counted tokens", (double)step->counted},
                                {"batch", (double)t->batch},
                                {"learning rate", lr}};
    if (!t->options->check_decisions)
        return clv_ok();
    return clv_within(clv_sentinel_decisions(t->world, all, CLV_COUNT(all)), "iteration %lld",
                      (long long)t->progress.iteration + 1);
}

static clv_status iterate(clv_trainer *t)
{
    const double start = clv_seconds();
    const bool ledger = t->options->log_comm && t->progress.iteration == t->report.first_iteration;
    const double lr = clv_lr_at(&t->plan, t->progress.updated_samples);
    t->batch = clv_batch_plan_at(&t->batches, t->progress.samples);
    CLV_TRY(clv_comm_agree(t->world, clv_feed_step(&t->train, t->progress.samples, t->batch)));
    if (ledger)
        clv_mesh_traffic_reset(t->rt.mesh);
    t->engine.loss_scale = t->progress.scaler.scale > 0.0 ? t->progress.scaler.scale : 1.0;
    const clv_step step = clv_engine_gradients(&t->engine, &t->train.samples, t->progress.iteration + 1);
    CLV_TRY(decisions_check(t, &step, lr));
    CLV_TRY(update(t, &step, lr));
    t->progress.iteration++;
    t->progress.samples += t->batch;
    t->progress.tokens += t->batch * t->seq_length;
    if (ledger)
        comm_report(t);
    t->took = clv_seconds() - start;
    clv_report_step(t, &step, lr, t->took);
    const int64_t every = t->options->check_replicas_interval;
    if (every > 0 && t->progress.iteration % every == 0)
        CLV_TRY(clv_sentinel_check(&t->engine.cx, t->engine.params, t->engine.param_count, NULL));
    return clv_ok();
}

static clv_status loop(clv_trainer *t)
{
    const clv_options *o = t->options;
    int64_t saved_at = -1;
    clv_end end = CLV_GO_ON;
    if (t->progress.iteration >= t->iterations)
        clv_log(CLV_LOG_INFO, "nothing to do: iteration %lld of %lld", (long long)t->progress.iteration,
                (long long)t->iterations);
    while (t->progress.iteration < t->iterations && end == CLV_GO_ON) {
        CLV_TRY(iterate(t));
        if (t->valid.data != NULL && t->progress.iteration % o->eval_interval == 0)
            CLV_TRY(evaluate(t));
        if (o->is_set.save_interval && t->progress.iteration % o->save_interval == 0) {
            CLV_TRY(save(t));
            saved_at = t->progress.iteration;
        }
        CLV_TRY(settle(t, &end));
    }
    if (saved_at != t->progress.iteration)
        CLV_TRY(save(t));
    CLV_TRY(save_end(t));
    if (end == CLV_END_SIGNAL)
        return clv_fail(CLV_INTERRUPTED, "stopped by a signal after iteration %lld%s", (long long)t->progress.iteration,
                        o->save != NULL ? ", saved" : "; nothing was saved, since there is no --save");
    return clv_ok();
}

clv_status clv_train(clv_comm *world, const clv_options *options)
{
    clv_trainer t;
    clv_signals_catch();
    clv_status st = clv_trainer_open(&t, world, options);
    if (st.code == CLV_OK) {
        st = loop(&t);
        const clv_status saved = save_end(&t); /* also when the run failed: what was good is kept */
        st = st.code != CLV_OK ? st : saved;
        const clv_status closed = clv_comm_agree(world, clv_report_close(&t));
        st = st.code != CLV_OK ? st : closed;
    }
    clv_trainer_close(&t);
    return st;
}
