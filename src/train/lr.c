/* lr.c - the learning rate as a function of the samples that the updates so far have used.
 *
 * With W samples of warm-up, D the sample after which the decay is over, n samples done:
 *
 *   n <= W, W > 0         init + (max - init) n / W
 *   constant              max
 *   n > D                 min
 *   inverse-square-root   max(min, max sqrt(max(W, 1)) / sqrt(max(n, 1)))
 *   otherwise             min + c (max - min), with r = (n - W) / (D - W):
 *     linear              c = 1 - r
 *     cosine              c = (cos(pi r) + 1) / 2
 *     WSD                 c = 1 up to D - T, then with q = (n - (D - T)) / T, T its tail:
 *                         linear 1 - q, cosine (cos(pi q) + 1) / 2, exponential 2 / 2^q - 1, minus_sqrt 1 - sqrt(q)
 *
 * Source: Megatron-LM, core/optimizer_param_scheduler.py; WSD: Hu et al. 2024 (MiniCPM).
 */
#include "train/train.h"

#include <math.h>
#include <string.h>

static const char *const style_names[] = {"constant", "linear", "cosine", "inverse-square-root", "WSD"};
static const char *const wsd_style_names[] = {"exponential", "linear", "cosine", "minus_sqrt"};

const char *clv_lr_style_name(clv_lr_style style)
{
    return style_names[style];
}

const char *clv_wsd_style_name(clv_wsd_style style)
{
    return wsd_style_names[style];
}

static bool find(const char *const *names, size_t count, const char *name, size_t *out)
{
    for (*out = 0; *out < count; ++*out)
        if (strcmp(names[*out], name) == 0)
            return true;
    return false;
}

bool clv_lr_styles_from(const char *style, const char *wsd_style, clv_lr_plan *out)
{
    size_t a, b;
    if (!find(style_names, CLV_COUNT(style_names), style, &a) ||
        !find(wsd_style_names, CLV_COUNT(wsd_style_names), wsd_style, &b))
        return false;
    out->style = (clv_lr_style)a;
    out->wsd_style = (clv_wsd_style)b;
    return true;
}

/* ---- the value ---- */

static double cosine(double r)
{
    return 0.5 * (cos(3.14159265358979323846 * r) + 1.0);
}

static double wsd_coefficient(const clv_lr_plan *plan, int64_t n)
{
    const int64_t start = plan->decay - plan->wsd_decay;
    if (n <= start)
        return 1.0;
    const double q = (double)(n - start) / (double)plan->wsd_decay;
    switch (plan->wsd_style) {
    case CLV_WSD_LINEAR:
        return 1.0 - q;
    case CLV_WSD_COSINE:
        return cosine(q);
    case CLV_WSD_MINUS_SQRT:
        return 1.0 - sqrt(q);
    case CLV_WSD_EXPONENTIAL:
        break;
    }
    return 2.0 * pow(0.5, q) - 1.0;
}

static double coefficient(const clv_lr_plan *plan, int64_t n)
{
    if (plan->style == CLV_LR_WSD)
        return wsd_coefficient(plan, n);
    const double r = (double)(n - plan->warmup) / (double)(plan->decay - plan->warmup);
    return plan->style == CLV_LR_COSINE ? cosine(r) : 1.0 - r;
}

double clv_lr_at(const clv_lr_plan *plan, int64_t n)
{
    if (plan->warmup > 0 && n <= plan->warmup)
        return plan->init + (plan->max - plan->init) * (double)n / (double)plan->warmup;
    if (plan->style == CLV_LR_CONSTANT)
        return plan->max;
    if (n > plan->decay)
        return plan->min;
    if (plan->style == CLV_LR_INVERSE_SQRT) {
        const double w = (double)CLV_MAX(plan->warmup, 1), k = (double)CLV_MAX(n, 1);
        return fmax(plan->min, plan->max * sqrt(w) / sqrt(k));
    }
    return plan->min + coefficient(plan, n) * (plan->max - plan->min);
}

/* ---- from options ---- */

typedef struct length { /* one length that may be given in updates or in samples */
    const char *name;   /* "lr-decay" */
    bool has_iters, has_samples;
    int64_t iters, samples;
} length;

/* Samples of it; *out is left alone when the option was not given. */
static clv_status in_samples(int64_t *out, const length *l, int64_t global_batch)
{
    if (l->has_iters && l->has_samples)
        return clv_fail(CLV_BAD_USAGE, "--%s-iters %lld and --%s-samples %lld are both given; keep one of them",
                        l->name, (long long)l->iters, l->name, (long long)l->samples);
    if (l->has_samples)
        *out = l->samples;
    if (l->has_iters && __builtin_mul_overflow(l->iters, global_batch, out))
        return clv_fail(CLV_BAD_USAGE, "--%s-iters %lld times the global batch of %lld is too large a number", l->name,
                        (long long)l->iters, (long long)global_batch);
    return clv_ok();
}

static clv_status check_rates(const clv_lr_plan *plan)
{
    if (plan->min > plan->max)
        return clv_fail(CLV_BAD_USAGE, "--min-lr %g is above --lr %g", plan->min, plan->max);
    if (plan->init > plan->max)
        return clv_fail(CLV_BAD_USAGE, "--lr-warmup-init %g is above --lr %g", plan->init, plan->max);
    return clv_ok();
}

static clv_status check_lengths(const clv_lr_plan *plan, bool has_tail)
{
    if (plan->warmup >= plan->decay)
        return clv_fail(CLV_BAD_USAGE,
                        "the warm-up takes %lld samples, the whole decay only %lld; shorten the warm-up, or "
                        "lengthen the run or --lr-decay-iters",
                        (long long)plan->warmup, (long long)plan->decay);
    if (plan->style != CLV_LR_WSD)
        return clv_ok();
    if (!has_tail)
        return clv_fail(CLV_BAD_USAGE, "--lr-decay-style WSD needs --lr-wsd-decay-iters or --lr-wsd-decay-samples");
    if (plan->wsd_decay > plan->decay - plan->warmup)
        return clv_fail(CLV_BAD_USAGE,
                        "the tail of WSD takes %lld samples, but only %lld of the decay's %lld are left after "
                        "the warm-up; shorten it",
                        (long long)plan->wsd_decay, (long long)(plan->decay - plan->warmup), (long long)plan->decay);
    return clv_ok();
}

clv_status clv_lr_plan_make(clv_lr_plan *out, const clv_options *o, int64_t global_batch, int64_t train_samples)
{
    if (!o->is_set.lr)
        return clv_fail(CLV_BAD_USAGE, "--lr is not given; say the highest learning rate, such as --lr 3e-4");
    clv_lr_plan plan = {.max = o->lr, .min = o->min_lr, .init = o->lr_warmup_init};
    if (!clv_lr_styles_from(o->lr_decay_style, o->lr_wsd_decay_style, &plan))
        return clv_fail(CLV_BAD_USAGE, "--lr-decay-style %s with --lr-wsd-decay-style %s is not known",
                        o->lr_decay_style, o->lr_wsd_decay_style);
    CLV_TRY(check_rates(&plan));

    const bool has_fraction = o->is_set.lr_warmup_fraction;
    const length decay = {"lr-decay", o->is_set.lr_decay_iters, o->is_set.lr_decay_samples, o->lr_decay_iters,
                          o->lr_decay_samples};
    const length warmup = {"lr-warmup", o->is_set.lr_warmup_iters, o->is_set.lr_warmup_samples, o->lr_warmup_iters,
                           o->lr_warmup_samples};
    const length tail = {"lr-wsd-decay", o->is_set.lr_wsd_decay_iters, o->is_set.lr_wsd_decay_samples,
                         o->lr_wsd_decay_iters, o->lr_wsd_decay_samples};
    if (has_fraction && (warmup.has_iters || warmup.has_samples))
        return clv_fail(CLV_BAD_USAGE, "--lr-warmup-fraction and --%s are both given; keep one of them",
                        warmup.has_iters ? "lr-warmup-iters" : "lr-warmup-samples");

    plan.decay = CLV_MAX(train_samples, 1);
    CLV_TRY(in_samples(&plan.decay, &decay, global_batch));
    CLV_TRY(in_samples(&plan.warmup, &warmup, global_batch));
    CLV_TRY(in_samples(&plan.wsd_decay, &tail, global_batch));
    if (has_fraction)
        plan.warmup = (int64_t)(o->lr_warmup_fraction * (double)plan.decay);
    CLV_TRY(check_lengths(&plan, tail.has_iters || tail.has_samples));
    *out = plan;
    return clv_ok();
}
