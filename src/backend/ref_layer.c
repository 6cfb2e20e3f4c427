/* ref_layer.c - what stands between the products: dropout, activations, lookup, residual.
 *
 *   gelu(x) = x Phi(x)                    gelu'(x) = Phi(x) + x phi(x)                 Hendrycks and Gimpel 2016
 *   its tanh form: x (1 + t)/2, t = tanh(c (x + a x^3)), c = sqrt(2/pi), a = 0.044715
 *   silu(x) = x sigma(x)                  silu'(x) = sigma (1 + x (1 - sigma))         SwiGLU: Shazeer 2020
 */
#include "ref_internal.h"

#include <math.h>
#include <string.h>

/* ---- dropout ----------------------------------------------------------------------------------------------------- */

double clv_ref_keep(const clv_dropout *drop, int64_t column, int64_t element)
{
    if (drop == NULL || drop->p == 0.0f)
        return 1.0;
    const uint64_t key = clv_dropout_key(drop->key, ((const int64_t *)drop->sample.data)[column]);
    return clv_uniform_at(key, (uint64_t)element) >= drop->p ? 1.0 / (1.0 - (double)drop->p) : 0.0;
}

/* The factor of element e of [s, b, h], counted in memory order. */
static double keep_at(const clv_dropout *drop, clv_tensor t, int64_t e)
{
    const int64_t batches = t.dim[1], h = t.dim[2];
    const int64_t row = e / h / batches, column = e / h % batches, first = drop != NULL ? drop->first : 0;
    return clv_ref_keep(drop, column, (first + row) * h + e % h);
}

void clv_ref_dropout(clv_tensor y, clv_tensor x, const clv_dropout *drop)
{
    const float *X = clv_ref_f32(x);
    float *Y = clv_ref_f32(y);
    for (int64_t e = 0; e < clv_numel(x); e++)
        Y[e] = (float)((double)X[e] * keep_at(drop, x, e));
}

/* ---- activations ------------------------------------------------------------------------------------------------- */

static const double GELU_C = 0.79788456080286535588, GELU_A = 0.044715; /* sqrt(2/pi) */
static const double SQRT_HALF = 0.70710678118654752440, SQRT_1_2PI = 0.39894228040143267794;

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

/* Of the single-branch functions; for SwiGLU of its gate. */
static double activation(double x, clv_act act)
{
    switch (act) {
    case CLV_GELU:
        return 0.5 * x * (1.0 + erf(x * SQRT_HALF));
    case CLV_GELU_TANH:
        return 0.5 * x * (1.0 + tanh(GELU_C * (x + GELU_A * x * x * x)));
    case CLV_RELU:
        return x < 0.0 ? 0.0 : x;
    case CLV_SWIGLU:
        return x * sigmoid(x);
    }
    CLV_PANIC("no such activation: %d", (int)act);
}

static double derivative(double x, clv_act act)
{
    switch (act) {
    case CLV_GELU:
        return 0.5 * (1.0 + erf(x * SQRT_HALF)) + x * SQRT_1_2PI * exp(-0.5 * x * x);
    case CLV_GELU_TANH: {
        const double t = tanh(GELU_C * (x + GELU_A * x * x * x));
        return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * GELU_C * (1.0 + 3.0 * GELU_A * x * x);
    }
    case CLV_RELU:
        return x > 0.0 ? 1.0 : 0.0;
    case CLV_SWIGLU:
        return sigmoid(x) * (1.0 + x * (1.0 - sigmoid(x)));
    }
    CLV_PANIC("no such activation: %d", (int)act);
}

void clv_ref_act_forward(clv_tensor v, clv_tensor u, clv_act act)
{
    const int64_t f = clv_last(v), width = clv_last(u);
    for (int64_t i = 0; i < clv_rows(v); i++) {
        const float *gate = clv_ref_f32(u) + i * width, *up = gate + f;
        float *V = clv_ref_f32(v) + i * f;
        for (int64_t k = 0; k < f; k++) {
            const double y = activation((double)gate[k], act);
            V[k] = (float)(act == CLV_SWIGLU ? y * (double)up[k] : y);
        }
    }
}

void clv_ref_act_backward(clv_tensor du, clv_tensor dv, clv_tensor u, clv_act act)
{
    const int64_t f = clv_last(dv), width = clv_last(u);
    for (int64_t i = 0; i < clv_rows(dv); i++) {
        const float *gate = clv_ref_f32(u) + i * width, *up = gate + f, *DV = clv_ref_f32(dv) + i * f;
        float *dgate = clv_ref_f32(du) + i * width, *dup = dgate + f;
        for (int64_t k = 0; k < f; k++) {
            const double x = (double)gate[k], d = (double)DV[k];
            const double other = act == CLV_SWIGLU ? (double)up[k] : 1.0;
            dgate[k] = (float)(d * other * derivative(x, act));
            if (act == CLV_SWIGLU)
                dup[k] = (float)(d * activation(x, act));
        }
    }
}

/* ---- lookup ------------------------------------------------------------------------------------------------------ */

/* Row of the table for token i, or NULL where another rank owns it. */
static float *row_of(clv_tensor table, clv_tensor ids, int64_t i, int64_t first)
{
    const int64_t row = ((const int32_t *)ids.data)[i] - first;
    return row >= 0 && row < table.dim[0] ? clv_ref_f32(table) + row * table.dim[1] : NULL;
}

void clv_ref_embed_forward(clv_tensor y, clv_tensor ids, clv_tensor w, int64_t first)
{
    const size_t bytes = (size_t)clv_last(y) * sizeof(float);
    for (int64_t i = 0; i < clv_rows(y); i++) {
        const float *row = row_of(w, ids, i, first);
        float *out = clv_ref_f32(y) + i * clv_last(y);
        if (row != NULL)
            memcpy(out, row, bytes);
        else
            memset(out, 0, bytes);
    }
}

void clv_ref_embed_backward(clv_tensor dw, clv_tensor dy, clv_tensor ids, int64_t first)
{
    const int64_t h = clv_last(dy);
    for (int64_t i = 0; i < clv_rows(dy); i++) {
        float *row = row_of(dw, ids, i, first);
        for (int64_t k = 0; row != NULL && k < h; k++)
            row[k] += clv_ref_f32(dy)[i * h + k];
    }
}

void clv_ref_embed_add(clv_tensor y, clv_tensor ids, clv_tensor w)
{
    const int64_t h = clv_last(y);
    for (int64_t i = 0; i < clv_rows(y); i++) {
        const float *row = row_of(w, ids, i, 0);
        for (int64_t k = 0; row != NULL && k < h; k++)
            clv_ref_f32(y)[i * h + k] += row[k];
    }
}

/* ---- residual ---------------------------------------------------------------------------------------------------- */

void clv_ref_residual_forward(clv_tensor y, clv_tensor x, clv_tensor z, clv_tensor bias, const clv_dropout *drop)
{
    const int64_t h = clv_last(x);
    const float *X = clv_ref_f32(x), *Z = clv_ref_f32(z), *B = clv_ref_f32(bias);
    float *Y = clv_ref_f32(y);
    for (int64_t e = 0; e < clv_numel(x); e++) {
        const double branch = (double)Z[e] + (bias.ndim > 0 ? (double)B[e % h] : 0.0);
        Y[e] = (float)((double)X[e] + branch * keep_at(drop, x, e));
    }
}
