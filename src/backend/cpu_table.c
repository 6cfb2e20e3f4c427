/* cpu_table.c - the table of one instruction set, and the most that its units can do. */
#include "cpu_internal.h"

const clv_backend CPU(backend) = {
    .name = "cpu",
    .gemm = CPU(gemm),
    .column_sums = CPU(column_sums),
    .norm_forward = CPU(norm_forward),
    .norm_backward = CPU(norm_backward),
    .headnorm_forward = CPU(headnorm_forward),
    .headnorm_backward = CPU(headnorm_backward),
    .rope = CPU(rope),
    .dropout = CPU(dropout),
    .attention_forward = CPU(attention_forward),
    .attention_backward = CPU(attention_backward),
    .attention_range = CPU(attention_range),
    .act_forward = CPU(act_forward),
    .act_backward = CPU(act_backward),
    .embed_forward = CPU(embed_forward),
    .embed_backward = CPU(embed_backward),
    .embed_add = CPU(embed_add),
    .residual_forward = CPU(residual_forward),
    .residual_backward = CPU(residual_backward),
    .ce_max = CPU(ce_max),
    .ce_sums = CPU(ce_sums),
    .ce_loss = CPU(ce_loss),
    .ce_backward = CPU(ce_backward),
    .zero = CPU(zero),
    .copy = CPU(copy),
    .add = CPU(add),
    .scale = CPU(scale),
    .sum_squares = CPU(sum_squares),
    .dot = CPU(dot),
    .to_host = CPU(to_host),
    .from_host = CPU(from_host),
    .adamw = CPU(adamw),
};

/* Twelve independent chains hide the latency of two units; the result is used, so the loop stays. */
double CPU(peak_burst)(int64_t rounds)
{
    enum { CHAINS = 12 };
    volatile float seed = 0.999f;
    const cpu_vec factor = (cpu_vec){0} + seed, shift = (cpu_vec){0} + (1.0f - seed);
    cpu_vec chain[CHAINS];
    for (int i = 0; i < CHAINS; i++)
        chain[i] = factor + (float)i;
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < CHAINS; i++)
            chain[i] = chain[i] * factor + shift;
    for (int i = 1; i < CHAINS; i++)
        chain[0] += chain[i];
    seed = chain[0][0];
    return 2.0 * CHAINS * CPU_VEC * (double)rounds;
}
