/* reduce.c - the arithmetic of a reduction: the contributions of all ranks, taken in rank order.
 *
 * Floating addition does not associate, so the order is part of the result: ((x_0 + x_1) + x_2) + ... on every rank
 * gives every rank the same bits, whatever carried the summands there.
 */
#include "comm/comm_internal.h"

typedef void combine_fn(void *out, const void *a, const void *b, size_t n);

/* Element i depends on element i alone, also when out is a or b: that is what the pragma states. */
#define COMBINE(name, type, value)                                                                                     \
    static void name(void *out, const void *a, const void *b, size_t n)                                                \
    {                                                                                                                  \
        type *z = out;                                                                                                 \
        const type *xs = a, *ys = b;                                                                                   \
        _Pragma("omp simd") for (size_t i = 0; i < n; i++)                                                             \
        {                                                                                                              \
            const type x = xs[i], y = ys[i];                                                                           \
            z[i] = (value);                                                                                            \
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
    CLV_CHECK(combine != NULL && n >= 2, "no reduction of %d summands in %s", n, clv_dtype_name(dtype));

    _Alignas(64) char partial[4096]; /* stays in the first cache; out may be a summand that is still to come */
    const size_t size = clv_dtype_size(dtype), block = sizeof partial / size;
    for (size_t at = 0; at < count; at += block) {
        const size_t m = CLV_MIN(block, count - at), byte = at * size;
        const char *left = (const char *)in[0] + byte;
        for (int i = 1; i < n; i++) {
            char *to = i == n - 1 ? (char *)out + byte : partial;
            combine(to, left, (const char *)in[i] + byte, m);
            left = to;
        }
    }
}
