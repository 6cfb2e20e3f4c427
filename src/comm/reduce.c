/* reduce.c - the arithmetic of a reduction: the contributions of all ranks, taken in rank order.
 *
 * Floating addition does not associate, so the order is part of the result: ((x_0 + x_1) + x_2) + ... on every rank
 * gives every rank the same bits, whatever carried the summands there.
 */
#include "comm/comm_internal.h"

#include <string.h>

typedef void combine_fn(void *sum, const void *term, size_t n);

#define COMBINE(name, type, value)                                                                                     \
    static void name(void *sum, const void *term, size_t n)                                                            \
    {                                                                                                                  \
        type *restrict xs = sum;                                                                                       \
        const type *restrict ys = term;                                                                                \
        for (size_t i = 0; i < n; i++) {                                                                               \
            const type x = xs[i], y = ys[i];                                                                           \
            xs[i] = (value);                                                                                           \
        }                                                                                                              \
    }

COMBINE(sum_f32, float, x + y)
COMBINE(sum_f64, double, x + y)
COMBINE(sum_i32, int32_t, x + y)
COMBINE(sum_i64, int64_t, x + y)
COMBINE(max_f32, float, x > y || x != x ? x : y) /* a NaN wins, on either side */
COMBINE(max_f64, double, x > y || x != x ? x : y)
COMBINE(max_i32, int32_t, x > y ? x : y)
COMBINE(max_i64, int64_t, x > y ? x : y)

void clv_reduce_in_order(void *out, const void *const *in, int n, size_t count, clv_dtype dtype, clv_reduction how)
{
    static combine_fn *const table[CLV_DTYPES][2] = {
        [CLV_F32] = {sum_f32, max_f32},
        [CLV_F64] = {sum_f64, max_f64},
        [CLV_I32] = {sum_i32, max_i32},
        [CLV_I64] = {sum_i64, max_i64},
    };
    combine_fn *const combine = table[dtype][how];
    CLV_CHECK(combine != NULL, "no reduction of %s", clv_dtype_name(dtype));

    _Alignas(64) char sum[4096]; /* apart from out, which may be a summand that is still to come; stays in L1 */
    const size_t size = clv_dtype_size(dtype), total = count * size;
    for (size_t at = 0; at < total; at += sizeof sum) {
        const size_t bytes = CLV_MIN(sizeof sum, total - at);
        memcpy(sum, (const char *)in[0] + at, bytes);
        for (int i = 1; i < n; i++)
            combine(sum, (const char *)in[i] + at, bytes / size);
        memcpy((char *)out + at, sum, bytes);
    }
}
