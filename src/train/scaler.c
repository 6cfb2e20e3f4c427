/* scaler.c - the storage type of a run, and the loss scale of fp16.
 *
 * Gradients below 2^-24 are 0 in f16, so the loss is multiplied by a scale before the backward and the gradients are
 * divided by it before the update. A dynamic scale looks for the largest that does not overflow:
 *
 *   overflow   good = 0, hysteresis - 1; once hysteresis <= 0: scale = max(scale / 2, min), at every further overflow
 * too, since only growth sets the hysteresis back otherwise  good + 1; at good = window: scale = 2 scale, good = 0,
 * hysteresis as at the start
 *
 * The update of an overflow is skipped. A scale that can fall no further and still overflows CLV_SCALER_PATIENCE times
 * in a row ends the run: what is not finite then is the model. Source: Micikevicius et al. 2018; the rules and their
 * defaults are Megatron-LM's.
 */
#include "train/train.h"

clv_status clv_options_storage(const clv_options *o, clv_dtype *out)
{
    *out = o->bf16 ? CLV_BF16 : o->fp16 ? CLV_F16 : CLV_F32;
    if (o->bf16 && o->fp16)
        return clv_fail(CLV_BAD_USAGE, "--bf16 and --fp16 are two types for the same weights; give one");
    if (o->is_set.loss_scale && !o->fp16)
        return clv_fail(CLV_BAD_USAGE, "--loss-scale %g needs --fp16; %s keeps small gradients without one",
                        o->loss_scale, o->bf16 ? "bf16" : "fp32");
    if (o->initial_loss_scale < o->min_loss_scale)
        return clv_fail(CLV_BAD_USAGE, "--initial-loss-scale %g lies below --min-loss-scale %g", o->initial_loss_scale,
                        o->min_loss_scale);
    return clv_ok();
}

clv_scaler_rules clv_options_scaler(const clv_options *o)
{
    if (!o->fp16)
        return (clv_scaler_rules){.dynamic = false};
    if (o->is_set.loss_scale)
        return (clv_scaler_rules){.initial = o->loss_scale, .min = o->loss_scale};
    return (clv_scaler_rules){.dynamic = true,
                              .initial = o->initial_loss_scale,
                              .min = o->min_loss_scale,
                              .window = o->loss_scale_window,
                              .hysteresis = o->hysteresis};
}

clv_scaler clv_scaler_start(const clv_scaler_rules *rules)
{
    return (clv_scaler){.scale = rules->initial, .hysteresis = rules->hysteresis};
}

static void overflowed(clv_scaler *s, const clv_scaler_rules *rules)
{
    s->stuck = s->scale <= rules->min ? s->stuck + 1 : 0;
    s->good = 0;
    s->hysteresis -= rules->dynamic;
    if (rules->dynamic && s->hysteresis <= 0)
        s->scale = CLV_MAX(s->scale * 0.5, rules->min);
}

void clv_scaler_update(clv_scaler *s, const clv_scaler_rules *rules, bool overflow)
{
    if (overflow) {
        overflowed(s, rules);
        return;
    }
    s->stuck = 0;
    s->good += rules->dynamic;
    if (rules->dynamic && s->good == rules->window) {
        s->good = 0;
        s->hysteresis = rules->hysteresis;
        s->scale *= 2.0;
    }
}
