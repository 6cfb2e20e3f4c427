/* dtype.c - the types of elements, and halves on the host.
 *
 *   bf16  1 sign, 8 exponent bits (bias 127), 7 of the fraction: the upper half of an f32
 *   f16   1 sign, 5 exponent bits (bias 15), 10 of the fraction; below 2^-14 steps of 2^-24, above 65504 infinity
 *
 * A float becomes the nearest half, ties to even; a NaN stays one.
 */
#include "tensor.h"

#include <math.h>
#include <string.h>

size_t clv_dtype_size(clv_dtype dtype)
{
    static const size_t sizes[CLV_DTYPES] = {4, 2, 2, 4, 1, 8, 8};
    CLV_CHECK(dtype >= 0 && dtype < CLV_DTYPES, "no such type: %d", (int)dtype);
    return sizes[dtype];
}

const char *clv_dtype_name(clv_dtype dtype)
{
    static const char *const names[CLV_DTYPES] = {"f32", "bf16", "f16", "i32", "u8", "f64", "i64"};
    return names[dtype];
}

static uint16_t bf16_from(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (isnan(x))
        return (uint16_t)((bits >> 16) | 0x40);
    return (uint16_t)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

static uint16_t f16_from(float x)
{
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    const double size = fabs((double)x);
    if (isnan(x))
        return sign | 0x7E00;
    if (size >= 65520.0) /* half a step above the largest, 65504 */
        return sign | 0x7C00;
    int exponent = size > 0.0 ? ilogb(size) : -14;
    exponent = CLV_MAX(exponent, -14);
    const long steps = lrint(ldexp(size, 10 - exponent)); /* a carry into the exponent is right as it is */
    return (uint16_t)(sign + ((exponent + 14) << 10) + steps);
}

static float from_bf16(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Without branches, so that long rows are converted by vectors: the exponent moves from bias 15 to 127. */
static float from_f16(uint16_t half)
{
    const uint32_t sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
    const uint32_t bits = sign | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13;
    const float small = (float)fraction * 0x1p-24f;
    float value;
    memcpy(&value, &bits, sizeof value);
    return exponent > 0 ? value : sign != 0 ? -small : small;
}

void clv_widen(float *out, const void *in, clv_dtype dtype, size_t n)
{
    const uint16_t *half = in;
    if (dtype == CLV_F32) {
        if (n > 0 && out != in)
            memcpy(out, in, n * sizeof *out);
        return;
    }
    CLV_CHECK(dtype == CLV_BF16 || dtype == CLV_F16, "%s does not widen", clv_dtype_name(dtype));
    for (size_t i = 0; i < n && dtype == CLV_BF16; i++)
        out[i] = from_bf16(half[i]);
    for (size_t i = 0; i < n && dtype == CLV_F16; i++)
        out[i] = from_f16(half[i]);
}

void clv_narrow(void *out, clv_dtype dtype, const float *in, size_t n)
{
    if (dtype == CLV_F32) {
        if (n > 0)
            memcpy(out, in, n * sizeof *in);
        return;
    }
    CLV_CHECK(dtype == CLV_BF16 || dtype == CLV_F16, "nothing narrows to %s", clv_dtype_name(dtype));
    for (size_t i = 0; i < n; i++) {
        const uint16_t half = dtype == CLV_BF16 ? bf16_from(in[i]) : f16_from(in[i]);
        memcpy((char *)out + i * sizeof half, &half, sizeof half);
    }
}
