/* cpu_act.c - activations and their gradients.
 *
 * gelu       x Phi(x);            derivative Phi(x) + x phi(x), phi the normal density
 * gelu tanh  x s(2 t);            t = sqrt(2/pi) (x + 0.044715 x^3), since (1 + tanh t)/2 = s(2 t), s the sigmoid:
 *                                 no cancellation where tanh is near -1. Derivative s + x s (1 - s) 2 t'
 * relu       max(x, 0)
 * swiglu     gate s(gate) up      u = [gate, up]
 */
#include "cpu_internal.h"

/* Phi(-|x|) e^{x^2/2}, the scaled tail: a polynomial in t = 1/(1 + z/2), z = |x|/sqrt 2, through erfc(z) e^{z^2} / t at
 * nine Chebyshev nodes of z in [0, 10]; relative error 6e-8. */
static inline float scaled_tail(float x)
{
    const float t = 1.0f / (1.0f + 0.35355339f * fabsf(x));
    float p = -5.971491896e-02f;
    p = p * t + 2.877683095e-01f;
    p = p * t - 4.938636487e-01f;
    p = p * t + 2.856977102e-01f;
    p = p * t - 3.184175736e-02f;
    p = p * t + 2.048536551e-01f;
    p = p * t + 2.425728930e-01f;
    p = p * t + 2.824450420e-01f;
    p = p * t + 2.820826737e-01f;
    return 0.5f * t * p;
}

static inline float normal_cdf(float x)
{
    const float tail = scaled_tail(x) * cpu_exp(-0.5f * x * x);
    return x < 0.0f ? tail : 1.0f - tail;
}

static inline float gelu(float x)
{
    return x * normal_cdf(x);
}

static inline float gelu_slope(float x)
{
    return normal_cdf(x) + x * 0.39894228f * cpu_exp(-0.5f * x * x);
}

static inline float gelu_tanh(float x)
{
    return x * cpu_sigmoid(1.59576912f * (x + 0.044715f * x * x * x));
}

/* s (1 - s) as e/(1 + e)^2, e = e^{-|2t|}: 1 - s would lose its digits, and x t' is large there. */
static inline float gelu_tanh_slope(float x)
{
    const float z = 1.59576912f * (x + 0.044715f * x * x * x);
    const float e = cpu_exp(-fabsf(z)), r = 1.0f / (1.0f + e);
    return (z < 0.0f ? e * r : r) + x * e * r * r * 1.59576912f * (1.0f + 0.134145f * x * x);
}

CPU_BODY void row_forward(void *v, const void *u, int64_t f, clv_act act, clv_dtype type)
{
    switch (act) {
    case CLV_GELU:
        CPU_SIMD
        for (int64_t i = 0; i < f; i++)
            cpu_put(v, i, gelu(cpu_get(u, i, type)), type);
        break;
    case CLV_GELU_TANH:
        CPU_SIMD
        for (int64_t i = 0; i < f; i++)
            cpu_put(v, i, gelu_tanh(cpu_get(u, i, type)), type);
        break;
    case CLV_RELU:
        CPU_SIMD
        for (int64_t i = 0; i < f; i++) {
            const float x = cpu_get(u, i, type);
            cpu_put(v, i, x > 0.0f ? x : 0.0f, type);
        }
        break;
    case CLV_SWIGLU:
        CPU_SIMD
        for (int64_t i = 0; i < f; i++) {
            const float gate = cpu_get(u, i, type);
            cpu_put(v, i, gate * cpu_sigmoid(gate) * cpu_get(u, f + i, type), type);
        }
        break;
    }
}

CPU_BODY void row_backward(void *du, const void *dv, const void *u, int64_t f, clv_act act, clv_dtype type)
{
    switch (act) {
    case CLV_GELU:
        CPU_SIMD
        for (int64_t i = 0; i < f; i++)
            cpu_put(du, i, cpu_get(dv, i, type) * gelu_slope(cpu_get(u, i, type)), type);
        break;
    case CLV_GELU_TANH:
        CPU_SIMD
        for (int64_t i = 0; i < f; i++)
            cpu_put(du, i, cpu_get(dv, i, type) * gelu_tanh_slope(cpu_get(u, i, type)), type);
        break;
    case CLV_RELU:
        CPU_SIMD
        for (int64_t i = 0; i < f; i++)
            cpu_put(du, i, cpu_get(u, i, type) > 0.0f ? cpu_get(dv, i, type) : 0.0f, type);
        break;
    case CLV_SWIGLU:
        CPU_SIMD
        for (int64_t i = 0; i < f; i++) {
            const float gate = cpu_get(u, i, type), up = cpu_get(u, f + i, type), d = cpu_get(dv, i, type);
            const float s = cpu_sigmoid(gate);
            cpu_put(du, i, d * up * s * (1.0f + gate * (1.0f - s)), type);
            cpu_put(du, f + i, d * gate * s, type);
        }
        break;
    }
}

void CPU(act_forward)(clv_tensor v, clv_tensor u, clv_act act)
{
    const int64_t rows = clv_rows(v), f = clv_last(v);
    CPU_PARALLEL(rows * f)
    for (int64_t r = 0; r < rows; r++)
        CPU_TYPED(v.dtype, row_forward, cpu_row_at(v, r), cpu_row_at(u, r), f, act);
}

void CPU(act_backward)(clv_tensor du, clv_tensor dv, clv_tensor u, clv_act act)
{
    const int64_t rows = clv_rows(dv), f = clv_last(dv);
    CPU_PARALLEL(rows * f)
    for (int64_t r = 0; r < rows; r++)
        CPU_TYPED(u.dtype, row_backward, cpu_row_at(du, r), cpu_row_at(dv, r), cpu_row_at(u, r), f, act);
}
