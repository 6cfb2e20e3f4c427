/* cpu_act.c - activations and their gradients.
 *
 * gelu       x Phi(x);            derivative Phi(x) + x phi(x), phi the normal density
 * gelu tanh  x s(2 t);            t = sqrt(2/pi) (x + 0.044715 x^3), since (1 + tanh t)/2 = s(2 t), s the sigmoid:
 *                                 no cancellation where tanh is near -1. Derivative s + x s (1 - s) 2 t'
 * relu       max(x, 0)
 * swiglu     gate s(gate) up      u = [gate, up]
 */
#include "cpu_internal.h"

/* What falls to 0 as a = |x| grows, as (6 - a)^4 p(a - 1), and 0 beyond 6: the fourth power makes the tail small
 * without cancellation. p has degree 15, fitted on [0, 5.58] to least maximal error of the product; its even and odd
 * powers are summed apart, so that twice as many multiplications are under way. */
typedef struct tail {
    float a, fourth, at; /* |x|, at most 6: infinity times 0 is no number; (6 - a)^4, a - 1 */
} tail;

static inline tail tail_of(float x)
{
    const float size = fabsf(x), rest = cpu_max(clv_cpu_limits.zero, 6.0f - size);
    return (tail){size < 6.0f ? size : 6.0f, (rest * rest) * (rest * rest), 5.0f - rest};
}

enum { POWERS = 16 };

/* Phi(-a) = (6 - a)^4 times this; the error of gelu is 5e-9 before rounding. */
static const float above[POWERS] = {
    2.538484114e-04f,  -1.840744662e-04f, -1.460688509e-05f, 4.061618893e-05f,  -2.559451332e-06f, -5.519392289e-06f,
    7.476286896e-07f,  5.536882099e-07f,  -1.054985788e-07f, -4.731046133e-08f, 1.308227393e-08f,  3.469070364e-09f,
    -2.168261792e-09f, 4.332651460e-10f,  -4.118582558e-11f, 1.578953656e-12f,
};

/* Phi(-a) - a phi(a) = (6 - a)^4 times this; error 4e-8. */
static const float slope[POWERS] = {
    -1.333047694e-04f, -4.937974736e-04f, 2.176859562e-04f,  1.593502820e-04f,  -6.941449828e-05f, -2.796968693e-05f,
    1.305767000e-05f,  3.332483175e-06f,  -1.783175321e-06f, -3.009695035e-07f, 2.169547884e-07f,  9.343570362e-09f,
    -2.460419068e-08f, 6.340886483e-09f,  -7.074597019e-10f, 3.072525914e-11f,
};

CPU_BODY float polynomial(const float *p, float t)
{
    const float square = t * t;
    float even = p[POWERS - 2], odd = p[POWERS - 1];
    CPU_DO_(GCC unroll 8)
    for (int i = POWERS - 4; i >= 0; i -= 2) {
        even = even * square + p[i];
        odd = odd * square + p[i + 1];
    }
    return odd * t + even;
}

static inline float gelu(float x)
{
    const tail t = tail_of(x);
    return cpu_max(clv_cpu_limits.zero, x) - t.a * t.fourth * polynomial(above, t.at);
}

static inline float gelu_slope(float x)
{
    const tail t = tail_of(x);
    const float below = t.fourth * polynomial(slope, t.at);
    return x < 0.0f ? below : 1.0f - below;
}

static inline float gelu_tanh(float x)
{
    const float z = x * (1.59576912f + 0.07135482f * x * x);
    return x / (1.0f + cpu_exp(-z));
}

/* s (1 - s) as e/(1 + e)^2, e = e^{-|2t|}: 1 - s would lose its digits, and x t' is large there. */
static inline float gelu_tanh_slope(float x)
{
    const float square = x * x, z = x * (1.59576912f + 0.07135482f * square);
    const float e = cpu_exp(-fabsf(z)), r = 1.0f / (1.0f + e), rest = e * r;
    return (z < 0.0f ? rest : r) + (rest * r * x) * (1.59576912f + 0.21406445f * square);
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
            cpu_put(v, i, gate / (1.0f + cpu_exp(-gate)) * cpu_get(u, f + i, type), type);
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
