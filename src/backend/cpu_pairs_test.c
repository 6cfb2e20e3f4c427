/* cpu_pairs_test.c - products of bf16 in pairs, packed by each instruction set's code and multiplied by each tile that
 * there is: plain ones, that of AMX on a model of its instructions, and the processor's. All values are small integers,
 * so every sum is exact in f32 and the results must be those of the reference, bit for bit.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "backend/cpu_internal.h"

#include <stdlib.h>

typedef void pair_product(clv_ctx *cx, const clv_gemm *g, const cpu_pair_kernel *kernel);

pair_product clv_cpu_pair_product_base;
#if defined(__x86_64__)
pair_product clv_cpu_pair_product_avx2, clv_cpu_pair_product_avx512;
const cpu_pair_kernel *clv_cpu_pair_kernel_dot_avx512(void), *clv_cpu_pair_kernel_amx_avx512(void);
#endif

typedef struct way { /* to calculate a product */
    pair_product *product;
    const cpu_pair_kernel *kernel;
} way;

typedef struct fixture {
    clv_arena data, temp;
    clv_ctx cx;
    way ways[8];
    int count;
} fixture;

/* ---- the tile's definition --------------------------------------------------------------------------------------- */

static float part_of(uint32_t pair, int64_t which)
{
    return cpu_from_bf16((uint16_t)(pair >> 16 * which));
}

static void plain_tile(float *tile, const uint32_t *a, const uint32_t *b, int64_t chunks, bool add, int64_t rows)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < CPU_PAIR_N; j++) {
            float sum = add ? tile[i * CPU_PAIR_N + j] : 0.0f;
            for (int64_t p = 0; p < chunks * CPU_CHUNK; p++) {
                const int64_t chunk = p / CPU_CHUNK, q = p % CPU_CHUNK / 2;
                const uint32_t x = a[(chunk * rows + i) * CPU_CHUNK / 2 + q];
                const uint32_t y = b[(chunk * CPU_CHUNK / 2 + q) * CPU_PAIR_N + j];
                sum += part_of(x, p % 2) * part_of(y, p % 2);
            }
            tile[i * CPU_PAIR_N + j] = sum;
        }
}

static void plain_12(float *tile, const uint32_t *a, const uint32_t *b, int64_t chunks, bool add)
{
    plain_tile(tile, a, b, chunks, add, 12);
}

static void plain_32(float *tile, const uint32_t *a, const uint32_t *b, int64_t chunks, bool add)
{
    plain_tile(tile, a, b, chunks, add, 32);
}

/* ---- a model of AMX: one thread's tile registers ------------------------------------------------------------------
 */

typedef union tile_register {
    uint32_t pair[16][16];
    float sum[16][16];
} tile_register;

typedef struct model {
    bool configured;
    tile_register tile[8];
} model;

static model *model_of_thread(bool configured)
{
    static _Thread_local model m;
    CLV_CHECK(m.configured == configured, "tiles used before they are configured, or configured twice");
    return &m;
}

/* Shapes of all eight registers; what stands beside them would be a fault. */
static void model_configure(const void *shapes)
{
    uint8_t want[64] = {1}, got[64];
    for (int t = 0; t < 8; t++)
        want[16 + 2 * t] = 64, want[48 + t] = 16;
    memcpy(got, shapes, sizeof got);
    CLV_CHECK(memcmp(got, want, sizeof got) == 0, "tiles of other shapes");
    *model_of_thread(false) = (model){.configured = true};
}

static void model_release(void)
{
    model_of_thread(true)->configured = false;
}

static void model_zero(int t)
{
    memset(&model_of_thread(true)->tile[t], 0, sizeof(tile_register));
}

static void model_load(int t, const void *from, int64_t bytes)
{
    tile_register *to = &model_of_thread(true)->tile[t];
    for (int r = 0; r < 16; r++)
        memcpy(to->pair[r], (const char *)from + r * bytes, sizeof to->pair[r]);
}

static void model_store(int t, void *to, int64_t bytes)
{
    const tile_register *from = &model_of_thread(true)->tile[t];
    for (int r = 0; r < 16; r++)
        memcpy((char *)to + r * bytes, from->pair[r], sizeof from->pair[r]);
}

static float flushed(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x;
}

/* Products of even and of odd k are summed apart, from 0, then added to each other and to what there is. */
static void model_multiply(int to, int x, int y)
{
    tile_register *c = &model_of_thread(true)->tile[to];
    const tile_register *a = &model_of_thread(true)->tile[x], *b = &model_of_thread(true)->tile[y];
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 16; n++) {
            float sum[2] = {0.0f, 0.0f};
            for (int k = 0; k < 32; k++) {
                const float left = flushed(part_of(a->pair[m][k / 2], k % 2));
                sum[k % 2] = flushed(fmaf(left, flushed(part_of(b->pair[k / 2][n], k % 2)), sum[k % 2]));
            }
            c->sum[m][n] = flushed(flushed(c->sum[m][n]) + flushed(sum[0] + sum[1]));
        }
}

#define AMX_CODE
#define AMX_CONFIGURE(shapes)    model_configure(shapes)
#define AMX_RELEASE()            model_release()
#define AMX_ZERO(t)              model_zero(t)
#define AMX_LOAD(t, from, bytes) model_load(t, from, bytes)
#define AMX_STORE(t, to, bytes)  model_store(t, to, bytes)
#define AMX_MULTIPLY(c, a, b)    model_multiply(c, a, b)
#include "backend/cpu_pairs_amx.h"

/* ---- fixture -------------------------------------------------------------------------------------------------------
 */

static int setup(void **state)
{
    static const cpu_pair_kernel twelve = {.rows = 12, .multiply = plain_12},
                                 square = {.rows = 32, .multiply = plain_32};
    fixture *f = clv_alloc(1, sizeof *f);
    assert_int_equal(clv_arena_create(&f->data, "data", (size_t)1 << 27).code, CLV_OK);
    assert_int_equal(clv_arena_create(&f->temp, "temp", (size_t)1 << 24).code, CLV_OK);
    f->cx.temp = &f->temp;
    f->ways[f->count++] = (way){clv_cpu_pair_product_base, &twelve};
    f->ways[f->count++] = (way){clv_cpu_pair_product_base, &square};
    f->ways[f->count++] = (way){clv_cpu_pair_product_base, &amx_kernel};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2"))
        f->ways[f->count++] = (way){clv_cpu_pair_product_avx2, &square};
    if (__builtin_cpu_supports("avx512bf16")) {
        f->ways[f->count++] = (way){clv_cpu_pair_product_base, clv_cpu_pair_kernel_dot_avx512()};
        f->ways[f->count++] = (way){clv_cpu_pair_product_avx512, clv_cpu_pair_kernel_dot_avx512()};
    } else
        print_message("[  NOTE    ] no avx512bf16 here: its tile is not tested\n");
    if (__builtin_cpu_supports("avx512f") && clv_cpu_pair_kernel_amx_avx512() != NULL)
        f->ways[f->count++] = (way){clv_cpu_pair_product_avx512, clv_cpu_pair_kernel_amx_avx512()};
    else
        print_message("[  NOTE    ] no AMX here: its tile is tested against a model of the instructions only\n");
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

/* Rows x columns of integers from -4 to 4. They begin an odd number of elements behind a cache line. */
static clv_tensor integers(fixture *f, clv_dtype type, uint64_t key, int64_t rows, int64_t columns)
{
    clv_tensor t = clv_new_as(&f->data, type, rows * columns + 1);
    for (int64_t i = 0; i <= rows * columns; i++) {
        const float x = (float)(int)(clv_uniform_at(key, (uint64_t)i) * 9.0f) - 4.0f;
        clv_narrow((char *)t.data + (size_t)i * clv_dtype_size(type), type, &x, 1);
    }
    t.data = (char *)t.data + clv_dtype_size(type);
    t.ndim = 2;
    t.dim[0] = rows;
    t.dim[1] = columns;
    return t;
}

static clv_tensor like(fixture *f, clv_tensor t)
{
    const clv_tensor copy = clv_tensor_typed(&f->data, t.dtype, t.ndim, t.dim);
    memcpy(copy.data, t.data, clv_bytes(t));
    return copy;
}

/* ---- products ------------------------------------------------------------------------------------------------------
 */

typedef struct product_case {
    clv_gemm_kind kind;
    clv_dtype a, b, c;
    bool biased, add;
} product_case;

static void compare(fixture *f, const product_case *what, const int64_t *size)
{
    const int64_t m = size[0], n = size[1], k = size[2];
    clv_gemm g = {.kind = what->kind, .accumulate = what->add};
    g.a = what->kind == CLV_TN ? integers(f, what->a, 1, k, m) : integers(f, what->a, 1, m, k);
    g.b = what->kind == CLV_NT ? integers(f, what->b, 2, n, k) : integers(f, what->b, 2, k, n);
    if (what->biased)
        g.bias = integers(f, CLV_BF16, 3, 1, n);
    const clv_tensor old = integers(f, what->c, 4, m, n), ref = like(f, old);
    g.c = ref;
    clv_backend_ref()->gemm(&f->cx, &g);
    for (int i = 0; i < f->count; i++)
        for (int threads = 1; threads <= 5; threads += 2) {
            const clv_tensor c = like(f, old);
            clv_backend_threads_set(threads);
            g.c = c;
            f->ways[i].product(&f->cx, &g, f->ways[i].kernel);
            assert_int_equal(f->temp.used, 0);
            if (memcmp(c.data, ref.data, clv_bytes(c)) != 0)
                fail_msg("kind %d, %lld x %lld x %lld, way %d, %d threads: not as the reference", (int)what->kind,
                         (long long)m, (long long)n, (long long)k, i, threads);
        }
}

/* Odd k, one row, column or step, edges of tiles, panels and strips; more than one step and block of k and of rows. */
static void test_products(void **state)
{
    fixture *f = *state;
    static const product_case cases[] = {
        {CLV_NT, CLV_BF16, CLV_BF16, CLV_BF16, true, false},  {CLV_NT, CLV_BF16, CLV_BF16, CLV_F32, true, false},
        {CLV_NN, CLV_BF16, CLV_BF16, CLV_BF16, false, false}, {CLV_NN, CLV_F32, CLV_BF16, CLV_F32, false, false},
        {CLV_TN, CLV_BF16, CLV_BF16, CLV_F32, false, true},   {CLV_TN, CLV_F32, CLV_BF16, CLV_F32, false, true},
        {CLV_NT, CLV_BF16, CLV_F32, CLV_BF16, true, true},
    };
    static const int64_t sizes[][3] = {{1, 1, 1},    {1, 33, 2},   {5, 7, 31},      {12, 32, 32},   {13, 65, 33},
                                       {97, 31, 63}, {40, 130, 5}, {100, 70, 1100}, {1060, 3, 100}, {7, 40, 4201}};
    for (size_t i = 0; i < CLV_COUNT(cases); i++)
        for (size_t s = 0; s < CLV_COUNT(sizes); s++) {
            const size_t mark = clv_arena_mark(&f->data);
            compare(f, &cases[i], sizes[s]);
            clv_arena_release(&f->data, mark);
        }
}

/* What is not finite stays so, in its row and column of C only: nothing beside a matrix is multiplied. */
static void test_not_finite(void **state)
{
    fixture *f = *state;
    enum { M = 13, N = 35, K = 37 };
    clv_gemm g = {.kind = CLV_NT, .c = clv_new_as(&f->data, CLV_F32, M, N)};
    g.a = integers(f, CLV_BF16, 1, M, K);
    const clv_tensor around = integers(f, CLV_BF16, 2, N + 2, K);
    g.b = clv_slice(around, 1, N);
    ((uint16_t *)g.a.data)[12 * K + 36] = 0x7FC0;
    for (int64_t i = 0; i < K; i++)
        ((uint16_t *)around.data)[i] = ((uint16_t *)around.data)[(N + 1) * K + i] = 0x7FC0;
    for (int i = 0; i < f->count; i++) {
        f->ways[i].product(&f->cx, &g, f->ways[i].kernel);
        for (int64_t e = 0; e < M * N; e++)
            assert_int_equal(isnan(((float *)g.c.data)[e]) != 0, e / N == 12);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_products), cmocka_unit_test(test_not_finite)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
