/* ref.c - the reference backend: whole-tensor operations, AdamW (Loshchilov and Hutter 2019).
 *
 * The oracle of all other backends: slow, and not to be made fast.
 */
#include "ref_internal.h"

#include <math.h>
#include <string.h>

/* ---- whole tensors ----------------------------------------------------------------------------------------------- */

void clv_ref_zero(clv_tensor t)
{
    if (clv_bytes(t) > 0)
        memset(t.data, 0, clv_bytes(t));
}

void clv_ref_copy(clv_tensor y, clv_tensor x)
{
    const size_t n = (size_t)clv_numel(y), x_size = clv_dtype_size(x.dtype), y_size = clv_dtype_size(y.dtype);
    if (y.dtype == x.dtype && n > 0)
        memmove(y.data, x.data, n * x_size);
    for (size_t i = 0; y.dtype != x.dtype && i < n; i++) {
        float value;
        clv_widen(&value, (const char *)x.data + i * x_size, x.dtype, 1);
        clv_narrow((char *)y.data + i * y_size, y.dtype, &value, 1);
    }
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
            clv_narrow((char *)to->half.data + (size_t)i * clv_dtype_size(to->half.dtype), to->half.dtype, &W[i], 1);
    }
}
