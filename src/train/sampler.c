/* sampler.c - which samples a rank reads. The global batch of a step is `global_batch` consecutive samples B + 0, 1,
 * ...
 *
 *   stable     rank r reads B + r G/dp + [0, G/dp), micro-batch by micro-batch
 *   megatron   micro-batch j of rank r reads B + j m dp + r m + [0, m)
 *
 * Either way the set of samples of a step depends on neither dp nor m.
 * Source of the second: Megatron-LM, megatron/training/datasets/data_samplers.py.
 */
#include "train/train_data.h"

clv_status clv_sampler_check(const clv_sampler *sampler)
{
    const int64_t g = sampler->global_batch, m = sampler->micro_batch, dp = sampler->dp_size;
    if (g < 1 || m < 1)
        return clv_fail(CLV_BAD_USAGE, "global batch size %lld, micro-batch size %lld: expected at least 1",
                        (long long)g, (long long)m);
    const int64_t unit = m * dp, below = g / unit * unit;
    if (g == below)
        return clv_ok();
    clv_text near = {0};
    if (below > 0)
        clv_text_printf(&near, "%lld or ", (long long)below);
    clv_text_printf(&near, "%lld", (long long)(below + unit));
    const clv_status st = clv_fail(CLV_BAD_INPUT,
                                   "global batch size %lld is no multiple of micro-batch size %lld x data-parallel "
                                   "size %lld = %lld; nearest: %s",
                                   (long long)g, (long long)m, (long long)dp, (long long)unit, near.data);
    clv_text_free(&near);
    return st;
}

int64_t clv_sampler_micros(const clv_sampler *sampler)
{
    return sampler->global_batch / (sampler->micro_batch * sampler->dp_size);
}

int64_t clv_sampler_first(const clv_sampler *sampler, int64_t consumed, int64_t micro)
{
    CLV_CHECK(micro >= 0 && micro < clv_sampler_micros(sampler), "micro-batch %lld of %lld", (long long)micro,
              (long long)clv_sampler_micros(sampler));
    const int64_t m = sampler->micro_batch;
    if (sampler->order == CLV_ORDER_MEGATRON)
        return consumed + (micro * sampler->dp_size + sampler->dp_rank) * m;
    return consumed + sampler->dp_rank * (sampler->global_batch / sampler->dp_size) + micro * m;
}
