/* ref_loss.c - cross entropy over one shard of the vocabulary; the ranks combine max, target logit and sums.
 *
 *   nll_i  = log sum_c exp(x_ic - max_i) - (x_it - max_i)
 *   loss_i = (1 - a') nll_i - a' mean_c log p_ic,   a' = alpha V/(V - 1),  mean over the V real classes
 *   dx_ic  = weight_i (p_ic - (1 - a') [c = t] - a'/V)
 *
 * Sources: Shoeybi et al. 2019 (shards); Szegedy et al. 2016 (smoothing).
 */
#include "ref_internal.h"

#include <math.h>

static double smoothing(const clv_ce *ce)
{
    const double classes = (double)ce->classes;
    return ce->smoothing > 0.0f ? (double)ce->smoothing * classes / (classes - 1.0) : 0.0;
}

/* Column of row i's target in this shard, or -1. */
static int64_t target_column(const clv_ce *ce, int64_t i)
{
    const int64_t column = ((const int32_t *)ce->target.data)[i] - ce->first;
    return column >= 0 && column < ce->real ? column : -1;
}

void clv_ref_ce_max(clv_tensor max, clv_tensor logits, const clv_ce *ce)
{
    for (int64_t i = 0; i < clv_rows(logits); i++) {
        const float *x = clv_ref_f32(logits) + i * clv_last(logits);
        float most = -INFINITY;
        for (int64_t c = 0; c < ce->real; c++)
            most = x[c] > most ? x[c] : most;
        clv_ref_f32(max)[i] = most;
    }
}

void clv_ref_ce_sums(clv_tensor target_logit, clv_tensor sums, clv_tensor logits, clv_tensor max, const clv_ce *ce)
{
    const int64_t rows = clv_rows(logits);
    for (int64_t i = 0; i < rows; i++) {
        const float *x = clv_ref_f32(logits) + i * clv_last(logits);
        const double most = (double)clv_ref_f32(max)[i];
        const int64_t target = target_column(ce, i);
        double exps = 0.0, sum = 0.0;
        for (int64_t c = 0; c < ce->real; c++) {
            exps += exp((double)x[c] - most);
            sum += (double)x[c] - most;
        }
        clv_ref_f32(target_logit)[i] = target >= 0 ? (float)((double)x[target] - most) : 0.0f;
        clv_ref_f32(sums)[i] = (float)exps;
        clv_ref_f32(sums)[rows + i] = (float)sum;
    }
}

void clv_ref_ce_loss(clv_tensor loss, clv_tensor nll, clv_tensor target_logit, clv_tensor sums, const clv_ce *ce)
{
    const int64_t rows = clv_numel(ce->target);
    const double a = smoothing(ce);
    for (int64_t i = 0; i < rows; i++) {
        const double log_sum = log((double)clv_ref_f32(sums)[i]);
        const double mean_log_p = (double)clv_ref_f32(sums)[rows + i] / (double)ce->classes - log_sum;
        const double plain = log_sum - (double)clv_ref_f32(target_logit)[i];
        clv_ref_f32(nll)[i] = (float)plain;
        clv_ref_f32(loss)[i] = (float)(a > 0.0 ? (1.0 - a) * plain - a * mean_log_p : plain);
    }
}

void clv_ref_ce_backward(clv_tensor logits, clv_tensor max, clv_tensor sums, clv_tensor weight, const clv_ce *ce)
{
    const double a = smoothing(ce);
    for (int64_t i = 0; i < clv_rows(logits); i++) {
        float *x = clv_ref_f32(logits) + i * clv_last(logits);
        const double most = (double)clv_ref_f32(max)[i], total = (double)clv_ref_f32(sums)[i];
        const int64_t target = target_column(ce, i);
        for (int64_t c = 0; c < clv_last(logits); c++) {
            const double p = exp((double)x[c] - most) / total;
            const double aim = (c == target ? 1.0 - a : 0.0) + a / (double)ce->classes;
            x[c] = c < ce->real ? (float)((double)clv_ref_f32(weight)[i] * (p - aim)) : 0.0f;
        }
    }
}
