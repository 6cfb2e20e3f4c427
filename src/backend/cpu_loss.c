/* cpu_loss.c - cross entropy over a vocabulary shard, a row at a time.
 *
 * Rows are long (tens of thousands of classes): sums of a block are kept in f32 registers, sums of blocks in f64.
 */
#include "cpu_internal.h"

enum { BLOCK = 2048 };

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

static float row_max(const float *x, int64_t n)
{
    enum { LANES = 4 * CPU_VEC };
    float lane[LANES], most = -INFINITY;
    for (int i = 0; i < LANES; i++)
        lane[i] = -INFINITY;
    int64_t c = 0;
    for (; c + LANES <= n; c += LANES) {
        CPU_SIMD
        for (int i = 0; i < LANES; i++)
            lane[i] = x[c + i] > lane[i] ? x[c + i] : lane[i];
    }
    for (int i = 0; i < LANES; i++)
        most = lane[i] > most ? lane[i] : most;
    for (; c < n; c++)
        most = x[c] > most ? x[c] : most;
    return most;
}

void CPU(ce_max)(clv_tensor max, clv_tensor logits, const clv_ce *ce)
{
    const int64_t rows = clv_rows(logits), real = ce->real;
    CPU_PARALLEL(rows * real)
    for (int64_t r = 0; r < rows; r++)
        ((float *)max.data)[r] = row_max(cpu_row(logits, r), real);
}

typedef struct pair {
    double exps, shifted; /* sum of exp(x - max), sum of x - max */
} pair;

static pair row_sums(const float *x, int64_t n, float max)
{
    pair sum = {0.0, 0.0};
    for (int64_t from = 0; from < n; from += BLOCK) {
        const float *block = x + from;
        const int64_t count = CLV_MIN(BLOCK, n - from);
        float exps = 0.0f, shifted = 0.0f;
        CPU_SUM(exps, count, i, cpu_exp(block[i] - max));
        CPU_SUM(shifted, count, i, block[i] - max);
        sum.exps += (double)exps;
        sum.shifted += (double)shifted;
    }
    return sum;
}

void CPU(ce_sums)(clv_tensor target_logit, clv_tensor sums, clv_tensor logits, clv_tensor max, const clv_ce *ce)
{
    const int64_t rows = clv_rows(logits);
    float *out = sums.data;
    CPU_PARALLEL(rows * ce->real)
    for (int64_t r = 0; r < rows; r++) {
        const float *x = cpu_row(logits, r), most = ((const float *)max.data)[r];
        const int64_t target = target_column(ce, r);
        const pair sum = row_sums(x, ce->real, most);
        ((float *)target_logit.data)[r] = target >= 0 ? x[target] - most : 0.0f;
        out[r] = (float)sum.exps;
        out[rows + r] = (float)sum.shifted;
    }
}

void CPU(ce_loss)(clv_tensor loss, clv_tensor nll, clv_tensor target_logit, clv_tensor sums, const clv_ce *ce)
{
    const int64_t rows = clv_numel(ce->target);
    const double a = smoothing(ce);
    const float *exps = sums.data, *shifted = exps + rows, *aim = target_logit.data;
    for (int64_t r = 0; r < rows; r++) {
        const double log_sum = log((double)exps[r]), plain = log_sum - (double)aim[r];
        const double mean_log_p = (double)shifted[r] / (double)ce->classes - log_sum;
        ((float *)nll.data)[r] = (float)plain;
        ((float *)loss.data)[r] = (float)(a > 0.0 ? (1.0 - a) * plain - a * mean_log_p : plain);
    }
}

void CPU(ce_backward)(clv_tensor logits, clv_tensor max, clv_tensor sums, clv_tensor weight, const clv_ce *ce)
{
    const int64_t rows = clv_rows(logits), v = clv_last(logits), real = ce->real;
    const double a = smoothing(ce);
    CPU_PARALLEL(rows * real)
    for (int64_t r = 0; r < rows; r++) {
        float *x = cpu_row(logits, r);
        const int64_t target = target_column(ce, r);
        const float most = ((const float *)max.data)[r], w = ((const float *)weight.data)[r];
        const float each = w * (float)(a / (double)ce->classes), factor = w / ((const float *)sums.data)[r];
        CPU_SIMD
        for (int64_t c = 0; c < real; c++)
            x[c] = cpu_exp(x[c] - most) * factor - each;
        if (target >= 0)
            x[target] -= w * (float)(1.0 - a);
        memset(x + real, 0, (size_t)(v - real) * sizeof(float));
    }
}
