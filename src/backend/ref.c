/* ref.c - the reference backend: storage types, whole-tensor operations, AdamW (Loshchilov and Hutter 2019).
 *
 * The oracle of all other backends: slow, and not to be made fast.
 */
#include "ref_internal.h"

#include <math.h>
#include <string.h>

/* ---- conversion between the storage types ------------------------------------------------------------------------ */

/* bf16 is the upper half of an f32; ties go to even, and a NaN stays one. */
static uint16_t bf16_from(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (isnan(x))
        return (uint16_t)((bits >> 16) | 0x40);
    return (uint16_t)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

/* f16: 1 sign, 5 exponent (bias 15), 10 fraction bits; below 2^-14 steps of 2^-24. lrint rounds ties to even. */
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

static float float_at(clv_tensor t, int64_t i)
{
    if (t.dtype == CLV_F32)
        return ((const float *)t.data)[i];
    const uint16_t half = ((const uint16_t *)t.data)[i];
    if (t.dtype == CLV_BF16) {
        const uint32_t bits = (uint32_t)half << 16;
        float x;
        memcpy(&x, &bits, sizeof x);
        return x;
    }
    const int exponent = half >> 10 & 31, fraction = half & 1023;
    double size = ldexp(exponent > 0 ? 1024 + fraction : fraction, CLV_MAX(exponent, 1) - 25);
    if (exponent == 31)
        size = fraction > 0 ? (double)NAN : (double)INFINITY;
    return (float)(half & 0x8000 ? -size : size);
}

static void float_set(clv_tensor t, int64_t i, float x)
{
    if (t.dtype == CLV_F32)
        ((float *)t.data)[i] = x;
    else
        ((uint16_t *)t.data)[i] = t.dtype == CLV_BF16 ? bf16_from(x) : f16_from(x);
}

/* ---- whole tensors ----------------------------------------------------------------------------------------------- */

void clv_ref_zero(clv_tensor t)
{
    if (clv_bytes(t) > 0)
        memset(t.data, 0, clv_bytes(t));
}

void clv_ref_copy(clv_tensor y, clv_tensor x)
{
    if (y.dtype == x.dtype && clv_bytes(y) > 0)
        memmove(y.data, x.data, clv_bytes(y));
    else
        for (int64_t i = 0; i < clv_numel(y); i++)
            float_set(y, i, float_at(x, i));
}

void clv_ref_add(clv_tensor y, clv_tensor x)
{
    for (int64_t i = 0; i < clv_numel(y); i++)
        clv_ref_f32(y)[i] += clv_ref_f32(x)[i];
}

void clv_ref_scale(clv_tensor y, float a)
{
    for (int64_t i = 0; i < clv_numel(y); i++)
        clv_ref_f32(y)[i] *= a;
}

void clv_ref_sum_squares(clv_tensor sum, clv_tensor x)
{
    double total = 0.0;
    for (int64_t i = 0; i < clv_numel(x); i++)
        total += (double)clv_ref_f32(x)[i] * (double)clv_ref_f32(x)[i];
    *(double *)sum.data += total;
}

void clv_ref_dot(clv_tensor sum, clv_tensor w, clv_tensor x)
{
    double total = 0.0;
    for (int64_t i = 0; i < clv_numel(x); i++)
        total += (double)clv_ref_f32(w)[i] * (double)clv_ref_f32(x)[i];
    *(double *)sum.data += total;
}

void clv_ref_to_host(void *out, clv_tensor t)
{
    if (clv_bytes(t) > 0)
        memcpy(out, t.data, clv_bytes(t));
}

void clv_ref_from_host(clv_tensor t, const void *in)
{
    if (clv_bytes(t) > 0)
        memcpy(t.data, in, clv_bytes(t));
}

void clv_ref_adamw(const clv_moving *to, clv_tensor g, const clv_adamw *a)
{
    const double b1 = (double)a->beta1, b2 = (double)a->beta2;
    const double correct1 = 1.0 - pow(b1, (double)a->step), correct2 = 1.0 - pow(b2, (double)a->step);
    float *W = clv_ref_f32(to->w), *M = clv_ref_f32(to->m), *V = clv_ref_f32(to->v);
    for (int64_t i = 0; i < clv_numel(to->w); i++) {
        const double d = (double)a->grad_scale * (double)clv_ref_f32(g)[i];
        const double m1 = b1 * (double)M[i] + (1.0 - b1) * d;
        const double v1 = b2 * (double)V[i] + (1.0 - b2) * d * d;
        const double step = m1 / correct1 / (sqrt(v1 / correct2) + (double)a->eps);
        W[i] = (float)((double)W[i] - (double)a->lr * (step + (double)a->decay * (double)W[i]));
        M[i] = (float)m1;
        V[i] = (float)v1;
        if (to->half.ndim > 0)
            float_set(to->half, i, W[i]);
    }
}
