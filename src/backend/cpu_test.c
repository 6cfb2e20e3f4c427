/* cpu_test.c - each instruction set's kernels against the reference, where tiles, tails and masks are at their edges.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "backend/cpu_internal.h"

#include <stdlib.h>

typedef void product(const cpu_product *x);

extern const clv_backend clv_cpu_backend_base;
product clv_cpu_product_base;
#if defined(__x86_64__)
extern const clv_backend clv_cpu_backend_avx2, clv_cpu_backend_avx512;
product clv_cpu_product_avx2, clv_cpu_product_avx512;
#endif

typedef struct fixture {
    clv_arena data, temp;
    clv_ctx cx;
    const clv_backend *tables[3];
    product *products[3];
    size_t count;
} fixture;

static void enable(fixture *f, const clv_backend *table, product *multiply)
{
    f->tables[f->count] = table;
    f->products[f->count++] = multiply;
}

static int setup(void **state)
{
    fixture *f = clv_alloc(1, sizeof *f);
    assert_int_equal(clv_arena_create(&f->data, "data", (size_t)1 << 28).code, CLV_OK);
    assert_int_equal(clv_arena_create(&f->temp, "temp", (size_t)1 << 28).code, CLV_OK);
    f->cx = (clv_ctx){.save = &f->data, .temp = &f->temp};
    enable(f, &clv_cpu_backend_base, clv_cpu_product_base);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        enable(f, &clv_cpu_backend_avx2, clv_cpu_product_avx2);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        enable(f, &clv_cpu_backend_avx512, clv_cpu_product_avx512);
#endif
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    clv_arena_destroy(&f->data);
    clv_arena_destroy(&f->temp);
    free(f);
    return 0;
}

static clv_tensor filled(fixture *f, uint64_t key, int64_t a, int64_t b, int64_t c)
{
    const clv_tensor t = clv_new_as(&f->data, CLV_F32, a, b, c);
    for (int64_t i = 0; i < clv_numel(t); i++)
        ((float *)t.data)[i] = (float)clv_normal_at(key, (uint64_t)i);
    return t;
}

static clv_tensor like(fixture *f, clv_tensor t)
{
    const clv_tensor copy = clv_tensor_typed(&f->data, t.dtype, t.ndim, t.dim);
    memcpy(copy.data, t.data, clv_bytes(t));
    return copy;
}

/* Largest difference over the largest value; infinities must be the same. */
static double deviation(clv_tensor x, clv_tensor y)
{
    const float *a = x.data, *b = y.data;
    double most = 0.0, size = 1e-30;
    for (int64_t i = 0; i < clv_numel(x); i++) {
        if (a[i] == b[i])
            continue;
        const double d = fabs((double)a[i] - (double)b[i]);
        most = d > most || isnan(d) ? d : most;
        if (isfinite(b[i]))
            size = fmax(size, fabs((double)b[i]));
    }
    return most / fmax(size, 1.0);
}

#define assert_close(x, y, limit)                                                                                      \
    do {                                                                                                               \
        const double d_ = deviation(x, y);                                                                             \
        if (!(d_ <= (limit)))                                                                                          \
            fail_msg("%s and %s differ by %g", #x, #y, d_);                                                            \
    } while (0)

/* ---- attention ----------------------------------------------------------------------------------------------- */

typedef struct attention_case {
    int64_t s, batch, heads, kv_heads, dim, window;
    bool causal, masked;
    float drop;
} attention_case;

static clv_attn attention_of(fixture *f, const attention_case *c)
{
    clv_attn a = {.q = {0, c->heads, c->dim},
                  .k = {c->heads * c->dim, c->kv_heads, c->dim},
                  .v = {(c->heads + c->kv_heads) * c->dim, c->kv_heads, c->dim},
                  .scale = 1.0f / sqrtf((float)c->dim),
                  .drop = {.p = c->drop, .key = 77}};
    a.range = clv_new_as(&f->data, CLV_I32, c->s, c->batch, 2);
    clv_backend_ref()->attention_range(a.range, (clv_tensor){0}, c->causal, c->window);
    if (c->masked) {
        a.mask = clv_new_as(&f->data, CLV_U8, c->batch, c->s, c->s);
        for (int64_t i = 0; i < clv_numel(a.mask); i++) /* every seventh query sees nothing */
            ((uint8_t *)a.mask.data)[i] = i / c->s % 7 != 3 && clv_uniform_at(5, (uint64_t)i) < 0.7f;
    }
    a.drop.sample = clv_new_as(&f->data, CLV_I64, c->batch);
    for (int64_t b = 0; b < c->batch; b++)
        ((int64_t *)a.drop.sample.data)[b] = 1000 + b;
    return a;
}

typedef struct attention_result {
    clv_tensor o, lse, dqkv;
} attention_result;

static attention_result attention_run(fixture *f, const clv_backend *be, const clv_attn *a, clv_tensor qkv,
                                      clv_tensor dout)
{
    attention_result r = {like(f, dout), clv_new_as(&f->data, CLV_F32, qkv.dim[1], a->q.count, qkv.dim[0]),
                          like(f, qkv)};
    be->attention_forward(&f->cx, r.o, r.lse, qkv, qkv, a);
    be->attention_backward(&f->cx, r.dqkv, dout, &(clv_attn_saved){qkv, r.o, r.lse}, a);
    return r;
}

static void test_attention(void **state)
{
    fixture *f = *state;
    static const attention_case cases[] = {
        {130, 2, 4, 4, 64, 0, true, false, 0.0f},  {65, 1, 6, 2, 24, 0, true, false, 0.0f},
        {200, 1, 4, 1, 16, 70, true, false, 0.0f}, {64, 2, 2, 2, 80, 0, false, false, 0.0f},
        {70, 2, 4, 2, 8, 0, false, true, 0.0f},    {97, 2, 3, 3, 32, 0, true, true, 0.2f},
        {3, 1, 2, 1, 8, 0, true, false, 0.1f},     {1, 1, 2, 1, 8, 0, true, false, 0.0f}};
    for (size_t i = 0; i < CLV_COUNT(cases); i++) {
        const attention_case *c = &cases[i];
        const size_t mark = clv_arena_mark(&f->data);
        const clv_attn a = attention_of(f, c);
        const clv_tensor qkv = filled(f, 1, c->s, c->batch, (c->heads + 2 * c->kv_heads) * c->dim);
        const clv_tensor dout = filled(f, 2, c->s, c->batch, c->heads * c->dim);
        const attention_result ref = attention_run(f, clv_backend_ref(), &a, qkv, dout);
        for (size_t t = 0; t < f->count; t++)
            for (int threads = 1; threads <= 5; threads += 2) {
                clv_backend_threads_set(threads);
                const attention_result cpu = attention_run(f, f->tables[t], &a, qkv, dout);
                assert_close(cpu.o, ref.o, 2e-6);
                assert_close(cpu.lse, ref.lse, 2e-6);
                assert_close(cpu.dqkv, ref.dqkv, 5e-6);
            }
        clv_arena_release(&f->data, mark);
    }
}

/* Few queries over many keys, as in decoding: the last query of a long sequence equals that of the whole. */
static void test_attention_decode(void **state)
{
    fixture *f = *state;
    const attention_case c = {150, 2, 6, 2, 40, 0, true, false, 0.2f};
    clv_attn a = attention_of(f, &c);
    const clv_tensor kv = filled(f, 1, c.s, c.batch, 10 * c.dim), q = filled(f, 2, 2, c.batch, 10 * c.dim);
    a.mask = clv_new_as(&f->data, CLV_U8, c.batch, 2, c.s);
    for (int64_t i = 0; i < clv_numel(a.mask); i++) /* the first sees nothing */
        ((uint8_t *)a.mask.data)[i] = i / c.s != 0 && i % 3 != 0;
    a.range = clv_slice(a.range, 120, 2);
    const clv_tensor o = filled(f, 3, 2, c.batch, 6 * c.dim), lse = filled(f, 3, c.batch, 6, 2);
    const clv_tensor ref_o = like(f, o), ref_lse = like(f, lse);
    clv_backend_ref()->attention_forward(&f->cx, ref_o, ref_lse, q, kv, &a);
    for (size_t t = 0; t < f->count; t++) {
        f->tables[t]->attention_forward(&f->cx, o, lse, q, kv, &a);
        assert_close(o, ref_o, 2e-6);
        assert_close(lse, ref_lse, 2e-6);
    }
}

/* ---- elementary functions -------------------------------------------------------------------------------------- */

/* Over the whole line, not only near 0: the functions are made of pieces. */
static void test_functions(void **state)
{
    fixture *f = *state;
    enum { N = 1 << 17 };
    const clv_tensor u = filled(f, 1, 1, 1, N), v = like(f, u), one = like(f, u), du = like(f, u);
    for (int i = 0; i < N; i++) {
        ((float *)u.data)[i] = -12.0f + 24.0f * (float)i / (float)N;
        ((float *)one.data)[i] = 1.0f;
    }
    for (size_t t = 0; t < f->count; t++)
        for (clv_act act = CLV_GELU; act <= CLV_RELU; act++) {
            const clv_tensor ref = like(f, u), ref_du = like(f, u);
            clv_backend_ref()->act_forward(ref, u, act);
            clv_backend_ref()->act_backward(ref_du, one, u, act);
            f->tables[t]->act_forward(v, u, act);
            f->tables[t]->act_backward(du, one, u, act);
            for (int i = 0; i < N; i++) {
                const double y = (double)((float *)ref.data)[i], d = (double)((float *)ref_du.data)[i];
                assert_true(fabs((double)((float *)v.data)[i] - y) <= 1e-7 + 1e-6 * fabs(y));
                assert_true(fabs((double)((float *)du.data)[i] - d) <= 1e-6);
            }
        }
}

/* exp to 3 ulp over all normal results, 0 and infinity beyond: seen through a softmax sum of one class. */
static void test_exp(void **state)
{
    fixture *f = *state;
    enum { N = 100000 };
    const clv_tensor x = clv_new_as(&f->data, CLV_F32, N, 1), row = clv_new_as(&f->data, CLV_F32, N);
    const clv_tensor sums = clv_new_as(&f->data, CLV_F32, 2, N), target = clv_new_as(&f->data, CLV_I32, N);
    const clv_tensor aim = clv_new_as(&f->data, CLV_F32, N);
    const clv_ce ce = {.target = target, .real = 1, .classes = 1};
    for (int i = 0; i < N; i++)
        ((float *)x.data)[i] = i == 0 ? -INFINITY : -86.9f + 174.8f * (float)i / (float)N;
    memset(row.data, 0, clv_bytes(row));
    memset(target.data, 0, clv_bytes(target));
    for (size_t t = 0; t < f->count; t++) {
        f->tables[t]->ce_sums(aim, sums, x, row, &ce);
        for (int i = 0; i < N; i++) {
            const double want = exp((double)((float *)x.data)[i]), have = (double)((float *)sums.data)[i];
            assert_true(fabs(have - want) <= 3.0 * 0x1p-24 * want);
        }
    }
}

/* All 65,536 codes there, and all of them with a perturbation back: ties, overflow, subnormal numbers, NaN. */
static void test_conversions(void **state)
{
    fixture *f = *state;
    enum { N = 1 << 16 };
    /* the lower half of an f32, on, below and above where bf16 (0x8000) and f16 (0x1000) have their ties */
    static const uint32_t lows[] = {0, 1, 0xFFF, 0x1000, 0x1001, 0x3000, 0x7FFF, 0x8000, 0x8001, 0x9000, 0xFFFF};
    for (size_t t = 0; t < f->count; t++)
        for (clv_dtype type = CLV_BF16; type <= CLV_F16; type++) {
            const clv_tensor half = clv_new_as(&f->data, type, N), wide = clv_new_as(&f->data, CLV_F32, N);
            const clv_tensor wide_ref = clv_new_as(&f->data, CLV_F32, N), half_ref = clv_new_as(&f->data, type, N);
            for (int i = 0; i < N; i++)
                ((uint16_t *)half.data)[i] = (uint16_t)i;
            f->tables[t]->copy(wide, half);
            clv_backend_ref()->copy(wide_ref, half);
            for (int i = 0; i < N; i++) {
                const float a = ((float *)wide.data)[i], b = ((float *)wide_ref.data)[i];
                assert_true(a == b || (isnan(a) && isnan(b)));
            }
            for (size_t l = 0; l < CLV_COUNT(lows); l++) {
                for (uint32_t i = 0; i < N; i++)
                    ((uint32_t *)wide.data)[i] = i << 16 | lows[l];
                f->tables[t]->copy(half, wide);
                clv_backend_ref()->copy(half_ref, wide);
                for (int i = 0; i < N; i++)
                    if (!isnan(((float *)wide.data)[i]))
                        assert_int_equal(((uint16_t *)half.data)[i], ((uint16_t *)half_ref.data)[i]);
            }
        }
}

static clv_tensor halved(fixture *f, clv_tensor t, clv_dtype type)
{
    const clv_tensor half = clv_tensor_typed(&f->data, type, t.ndim, t.dim);
    clv_narrow(half.data, type, t.data, (size_t)clv_numel(t));
    return half;
}

static clv_tensor widened(fixture *f, clv_tensor t)
{
    const clv_tensor wide = clv_tensor_typed(&f->data, CLV_F32, t.ndim, t.dim);
    clv_widen(wide.data, t.data, t.dtype, (size_t)clv_numel(t));
    return wide;
}

/* Far out the activations are x and 0, their slopes 1 and 0; what is no number stays none. */
static void test_far(void **state)
{
    fixture *f = *state;
    static const float far[] = {INFINITY, 1e15f, -1e15f, NAN};
    enum { N = CLV_COUNT(far) };
    const clv_tensor u = filled(f, 1, 1, 1, N), v = like(f, u), one = like(f, u), du = like(f, u);
    for (int i = 0; i < (int)N; i++) {
        ((float *)u.data)[i] = far[i];
        ((float *)one.data)[i] = 1.0f;
    }
    for (size_t t = 0; t < f->count; t++)
        for (clv_act act = CLV_GELU; act <= CLV_GELU_TANH; act++) {
            f->tables[t]->act_forward(v, u, act);
            f->tables[t]->act_backward(du, one, u, act);
            const float *y = v.data, *d = du.data;
            assert_true(y[0] == INFINITY && y[1] == 1e15f && y[2] == 0.0f && isnan(y[3]));
            assert_true(d[1] == 1.0f && d[2] == 0.0f && isnan(d[3]));
        }
}

/* ---- products -------------------------------------------------------------------------------------------------- */

static void compare_products(fixture *f, clv_gemm_kind kind, const int64_t *size, bool add, bool biased)
{
    const int64_t m = size[0], n = size[1], k = size[2];
    const clv_tensor a = kind == CLV_TN ? filled(f, 1, 1, k, m) : filled(f, 1, 1, m, k);
    const clv_tensor b = kind == CLV_NT ? filled(f, 2, 1, n, k) : filled(f, 2, 1, k, n);
    const clv_tensor c = filled(f, 3, 1, m, n), ref = like(f, c),
                     bias = biased ? filled(f, 4, 1, 1, n) : (clv_tensor){0};
    clv_backend_ref()->gemm(&f->cx, &(clv_gemm){kind, ref, a, b, bias, add});
    for (size_t t = 0; t < f->count; t++) {
        const clv_tensor cpu = like(f, c), own = like(f, c);
        f->tables[t]->gemm(&f->cx, &(clv_gemm){kind, cpu, a, b, bias, add});
        assert_close(cpu, ref, 1e-6);
        if (biased && add)
            continue;
        const float *row = biased ? bias.data : NULL;
        const size_t mark = clv_arena_mark(f->cx.temp);
        const cpu_view of_a = kind == CLV_TN ? (cpu_view){a.data, 1, m} : (cpu_view){a.data, k, 1};
        const cpu_view of_b = kind == CLV_NT ? (cpu_view){b.data, 1, k} : (cpu_view){b.data, n, 1};
        const int64_t floats = clv_product_plan_of((cpu_size){m, n, k}, kind == CLV_TN).floats;
        float *scratch = clv_arena_push(f->cx.temp, (size_t)(clv_backend_threads() * floats) * sizeof(float));
        f->products[t](&(cpu_product){{own.data, n, 1}, of_a, of_b, {m, n, k}, {.add = add, .bias = row}, scratch});
        clv_arena_release(f->cx.temp, mark);
        assert_close(own, ref, 1e-6);
    }
}

/* Few rows, edges of register tiles, more than one block in each direction, more threads than some sizes divide into.
 */
static void test_products(void **state)
{
    static const int64_t sizes[][3] = {{1, 7, 33},   {1, 64, 5},    {3, 130, 64},    {4, 9, 16},
                                       {17, 31, 29}, {70, 40, 300}, {140, 530, 790}, {5, 6, 0}};
    for (int threads = 1; threads <= 6; threads += 5) {
        clv_backend_threads_set(threads);
        for (size_t i = 0; i < CLV_COUNT(sizes); i++)
            for (clv_gemm_kind kind = CLV_NT; kind <= CLV_TN; kind++)
                for (int way = 0; way < 4; way++)
                    compare_products(*state, kind, sizes[i], way & 1, way & 2);
    }
}

/* Halves in more than one block in each direction: the blocks' sums are those of the whole. */
static void test_half_products(void **state)
{
    fixture *f = *state;
    static const int64_t sizes[][3] = {{1100, 9, 20}, {9, 1100, 20}, {20, 9, 2100}, {3, 70, 90}};
    clv_backend_threads_set(2);
    for (size_t i = 0; i < CLV_COUNT(sizes); i++)
        for (int way = 0; way < 12; way++) {
            const size_t mark = clv_arena_mark(&f->data);
            const int64_t m = sizes[i][0], n = sizes[i][1], k = sizes[i][2];
            const clv_gemm_kind kind = (clv_gemm_kind)(way % 3);
            const clv_dtype type = way % 2 == 0 ? CLV_BF16 : CLV_F16;
            clv_gemm g = {.kind = kind, .accumulate = kind == CLV_TN};
            g.a = halved(f, kind == CLV_TN ? filled(f, 1, 1, k, m) : filled(f, 1, 1, m, k), type);
            g.b = halved(f, kind == CLV_NT ? filled(f, 2, 1, n, k) : filled(f, 2, 1, k, n), type);
            if (kind == CLV_NT)
                g.bias = halved(f, filled(f, 4, 1, 1, n), type);
            const bool half = kind != CLV_TN && way < 6;
            const clv_tensor c = filled(f, 3, 1, m, n);
            const clv_tensor ref = half ? halved(f, c, type) : like(f, c), cpu = like(f, ref);
            g.c = ref;
            clv_backend_ref()->gemm(&f->cx, &g);
            g.c = cpu;
            for (size_t t = 0; t < f->count; t++) {
                memcpy(cpu.data, half ? halved(f, c, type).data : c.data, clv_bytes(cpu));
                f->tables[t]->gemm(&f->cx, &g);
                assert_close(widened(f, cpu), widened(f, ref), !half ? 1e-6 : type == CLV_BF16 ? 0x1p-7 : 0x1p-10);
            }
            assert_int_equal(f->temp.used, 0);
            clv_arena_release(&f->data, mark);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention), cmocka_unit_test(test_attention_decode),
        cmocka_unit_test(test_functions), cmocka_unit_test(test_far),
        cmocka_unit_test(test_exp),       cmocka_unit_test(test_conversions),
        cmocka_unit_test(test_products),  cmocka_unit_test(test_half_products),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
