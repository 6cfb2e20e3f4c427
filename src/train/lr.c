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
#include <stdio.h>
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

/* A length as it is typed, in samples: "100" updates, "2000samples", or, of `whole` when that is given, a fraction,
 * "0.05". */
static clv_status in_samples(const char *name, const char *text, const clv_batch_plan *batches, int64_t whole,
                             int64_t *out)
{
    const size_t digits = strspn(text, "0123456789"), number = strspn(text, "0123456789.eE+-");
    const char *unit = text + number;
    const bool fraction = strcmp(unit, "fraction") == 0 || (unit[0] == 0 && digits < number);
    const bool samples = strcmp(unit, "samples") == 0;
    char amount[40];
    double share = -1.0;
    snprintf(amount, sizeof amount, "%.*s", (int)CLV_MIN(number, sizeof amount - 1), text);
    if (fraction && whole > 0 && clv_parse_f64(amount, &share) && share >= 0.0 && share <= 1.0) {
        *out = (int64_t)(share * (double)whole);
        return clv_ok();
    }
    if (fraction || (unit[0] != 0 && !samples) || digits != number || !clv_parse_i64(amount, out))
        return clv_fail(CLV_BAD_USAGE,
                        "--%s %.60s: it must be a number of updates, such as 100, or of samples, such as "
                        "2000samples%s",
                        name, text, whole > 0 ? ", or a fraction of the decay from 0.0 to 1.0" : "");
    if (!samples)
        *out = clv_batch_plan_samples(batches, *out);
    if (*out == INT64_MAX)
        return clv_fail(CLV_BAD_USAGE, "--%s %s is too large a number", name, text);
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
                        "lengthen the run or --lr-decay",
                        (long long)plan->warmup, (long long)plan->decay);
    if (plan->style != CLV_LR_WSD)
        return clv_ok();
    if (!has_tail)
        return clv_fail(CLV_BAD_USAGE, "--lr-decay-style WSD needs --lr-wsd-decay");
    if (plan->wsd_decay > plan->decay - plan->warmup)
        return clv_fail(CLV_BAD_USAGE,
                        "the tail of WSD takes %lld samples, but only %lld of the decay's %lld are left after "
                        "the warm-up; shorten it",
                        (long long)plan->wsd_decay, (long long)(plan->decay - plan->warmup), (long long)plan->decay);
    return clv_ok();
}

clv_status clv_lr_plan_make(clv_lr_plan *out, const clv_options *o, const clv_batch_plan *batches,
                            int64_t train_samples)
{
    const clv_batch_plan last = {.step = &(clv_batch_step){.size = clv_batch_plan_last(batches)}, .count = 1};
    if (!o->is_set.lr)
        return clv_fail(CLV_BAD_USAGE, "--lr is not given; say the highest learning rate, such as --lr 3e-4");
    clv_lr_plan plan = {.max = o->lr, .min = o->min_lr, .init = o->lr_warmup_init};
    if (!clv_lr_styles_from(o->lr_decay_style, o->lr_wsd_decay_style, &plan))
        return clv_fail(CLV_BAD_USAGE, "--lr-decay-style %s with --lr-wsd-decay-style %s is not known",
                        o->lr_decay_style, o->lr_wsd_decay_style);
    CLV_TRY(check_rates(&plan));

    plan.decay = CLV_MAX(train_samples, 1);
    if (o->lr_decay != NULL)
        CLV_TRY(in_samples("lr-decay", o->lr_decay, batches, 0, &plan.decay));
    CLV_TRY(in_samples("lr-warmup", o->lr_warmup, batches, plan.decay, &plan.warmup));
    if (o->lr_wsd_decay != NULL)
        CLV_TRY(in_samples("lr-wsd-decay", o->lr_wsd_decay, &last, 0, &plan.wsd_decay));
    CLV_TRY(check_lengths(&plan, plan.wsd_decay > 0));
    *out = plan;
    return clv_ok();
}
