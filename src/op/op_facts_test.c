/* Facts that stand without another backend: closed forms, shards against the whole, statistics, broken contracts. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "op/backend.h"

/* Every test runs once on each backend that computes. */
typedef struct lab {
    clv_ctx cx;
    clv_arena memory, temp;
} lab;

static int set_up(void **state)
{
    lab *t = clv_alloc(1, sizeof *t);
    const clv_status a = clv_arena_create(&t->memory, "values", (size_t)32 << 20);
    const clv_status b = clv_arena_create(&t->temp, "temp", (size_t)32 << 20);
    t->cx.be = *state;
    t->cx.temp = &t->temp;
    *state = t;
    return a.code != CLV_OK || b.code != CLV_OK;
}

static int tear_down(void **state)
{
    lab *t = *state;
    clv_arena_destroy(&t->memory);
    clv_arena_destroy(&t->temp);
    free(t);
    return 0;
}

#define NEW(t, place, ...) clv_new(&(t)->memory, place, __VA_ARGS__)

static clv_tensor filled(clv_tensor t, float value)
{
    for (int64_t i = 0; i < clv_numel(t); i++)
        ((float *)t.data)[i] = value;
    return t;
}

static clv_tensor noise(clv_tensor t, uint64_t seed)
{
    for (int64_t i = 0; i < clv_numel(t); i++)
        ((float *)t.data)[i] = (float)clv_normal_at(seed, (uint64_t)i);
    return t;
}

static float at(clv_tensor t, int64_t i)
{
    return ((const float *)t.data)[i];
}

static void assert_close(double found, double expected, double bound)
{
    if (!(fabs(found - expected) <= bound))
        fail_msg("%.9g is not %.9g within %.3g", found, expected, bound);
}

/* ---- closed forms ---------------------------------------------------------------------------------------------- */

static void test_gelu_of_one(void **state)
{
    lab *t = *state;
    clv_tensor x = filled(NEW(t, CLV_SL, 3, 1), 1.0f), y = NEW(t, CLV_SL, 3, 1);
    clv_act_forward(&t->cx, y, x, CLV_GELU);
    assert_close((double)at(y, 0), 0.841345, 1e-6);
    clv_act_forward(&t->cx, y, x, CLV_GELU_TANH);
    assert_close((double)at(y, 0), 0.841192, 1e-6);
}

static void test_activations_far_out(void **state)
{
    lab *t = *state;
    clv_tensor x = NEW(t, CLV_SL, 1, 2), y = NEW(t, CLV_SL, 1, 2), dy = filled(NEW(t, CLV_SL, 1, 2), 1.0f);
    ((float *)x.data)[0] = -1000.0f;
    ((float *)x.data)[1] = 1000.0f;
    for (clv_act act = CLV_GELU; act <= CLV_RELU; act++) {
        clv_act_forward(&t->cx, y, x, act);
        assert_close((double)at(y, 0), 0.0, 0.0);
        assert_close((double)at(y, 1), 1000.0, 0.0);
        clv_act_backward(&t->cx, y, dy, x, act);
        assert_close((double)at(y, 0), 0.0, 0.0);
        assert_close((double)at(y, 1), 1.0, 0.0);
    }
}

/* eps counts: with variance 0, or mean square 0.01 and eps 0.03, y = 0.1/sqrt(0.04). */
static void test_norm_of_equal_values(void **state)
{
    lab *t = *state;
    clv_tensor x = filled(NEW(t, CLV_R, 2, 8), 0.1f), y = NEW(t, CLV_R, 2, 8), stat = NEW(t, CLV_R, 2, 2);
    const clv_norm rms = {.kind = CLV_RMSNORM, .eps = 0.03f, .g = filled(NEW(t, CLV_R, 8), 1.0f)};
    clv_norm_forward(&t->cx, y, stat, x, &rms);
    for (int64_t i = 0; i < 16; i++)
        assert_close((double)at(y, i), 0.5, 1e-6);
    const clv_norm layer = {.kind = CLV_LAYERNORM, .eps = 0.03f, .g = rms.g, .b = filled(NEW(t, CLV_R, 8), 0.25f)};
    clv_norm_forward(&t->cx, y, stat, x, &layer);
    assert_close((double)at(y, 3), 0.25, 1e-6);
}

static void test_rope_turns_back(void **state)
{
    lab *t = *state;
    clv_tensor u = noise(NEW(t, CLV_SL, 9, 2, 32), 1), old = noise(NEW(t, CLV_SL, 9, 2, 32), 1);
    clv_tensor table = NEW(t, CLV_R, 9, 8), pos = clv_new_as(&t->memory, CLV_I32, 9, 2);
    for (int64_t i = 0; i < 9 * 4; i++) {
        ((float *)table.data)[i / 4 * 8 + i % 4] = (float)cos((double)i);
        ((float *)table.data)[i / 4 * 8 + i % 4 + 4] = (float)sin((double)i);
    }
    for (int64_t i = 0; i < 18; i++)
        ((int32_t *)pos.data)[i] = (int32_t)(i / 2);
    clv_rope(&t->cx, u, (clv_heads){8, 2, 8}, table, pos, 1);
    assert_true(fabsf(at(u, 64 + 8) - at(old, 64 + 8)) > 1e-3f); /* position 1 did turn */
    clv_rope(&t->cx, u, (clv_heads){8, 2, 8}, table, pos, -1);
    for (int64_t i = 0; i < clv_numel(u); i++)
        assert_close((double)at(u, i), (double)at(old, i), 1e-6);
}

static void test_attention_ranges(void **state)
{
    lab *t = *state;
    static const int32_t starts[6] = {0, 0, 0, 3, 3, 3};
    static const int32_t causal[12] = {0, 1, 0, 2, 1, 3, 3, 4, 3, 5, 4, 6}; /* window 2, documents */
    static const int32_t both[12] = {0, 3, 0, 3, 0, 3, 3, 6, 3, 6, 3, 6};
    clv_tensor doc = clv_new_as(&t->memory, CLV_I32, 6, 1), range = clv_new_as(&t->memory, CLV_I32, 6, 1, 2);
    clv_from_host(&t->cx, doc, starts);
    clv_attention_range(&t->cx, range, doc, true, 2);
    assert_memory_equal(range.data, causal, sizeof causal);
    clv_attention_range(&t->cx, range, doc, false, 0);
    assert_memory_equal(range.data, both, sizeof both);
}

static void test_blind_query(void **state)
{
    lab *t = *state;
    const int64_t s = 5, width = 3 * 8;
    clv_tensor qkv = noise(NEW(t, CLV_SL, s, 1, width), 3), dqkv = noise(NEW(t, CLV_SL, s, 1, width), 4);
    clv_tensor o = NEW(t, CLV_SL, s, 1, 8), lse = NEW(t, CLV_R, 1, 1, s), dout = noise(NEW(t, CLV_SL, s, 1, 8), 5);
    clv_attn a = {.q = {0, 1, 8}, .k = {8, 1, 8}, .v = {16, 1, 8}, .scale = 1.0f};
    a.range = clv_new_as(&t->memory, CLV_I32, s, 1, 2);
    clv_zero(&t->cx, a.range); /* nobody sees anything */
    clv_attention_forward(&t->cx, o, lse, qkv, qkv, &a);
    clv_attention_backward(&t->cx, dqkv, dout, &(clv_attn_saved){qkv, o, lse}, &a);
    for (int64_t i = 0; i < clv_numel(o); i++)
        assert_close((double)at(o, i), 0.0, 0.0);
    for (int64_t i = 0; i < clv_numel(dqkv); i++)
        assert_close((double)at(dqkv, i), 0.0, 0.0);
    assert_true(at(lse, 2) < 0 && isinf(at(lse, 2)));
}

static void test_adamw_decay_only(void **state)
{
    lab *t = *state;
    clv_tensor w = filled(NEW(t, CLV_R, 5), 1.0f), zero = NEW(t, CLV_R, 5), m = NEW(t, CLV_R, 5), v = NEW(t, CLV_R, 5);
    const clv_adamw a = {0.1f, 0.9f, 0.999f, 1e-8f, 0.1f, 1.0f, 1};
    const clv_moving to = {.w = w, .m = m, .v = v};
    clv_adamw_step(&t->cx, &to, zero, &a);
    for (int64_t i = 0; i < 5; i++)
        assert_close((double)at(w, i), 0.99, 1e-7);
    const clv_adamw plain = {0.1f, 0.9f, 0.999f, 0.0f, 0.0f, 1.0f, 1};
    clv_tensor g = filled(NEW(t, CLV_R, 5), -7.0f);
    filled(w, 1.0f);
    clv_adamw_step(&t->cx, &to, g, &plain); /* the first step is lr sign(g), whatever g */
    assert_close((double)at(w, 4), 1.1, 1e-6);
}

static void test_sums_do_not_overflow(void **state)
{
    lab *t = *state;
    clv_tensor x = filled(NEW(t, CLV_R, 4), 3e19f), sum = clv_new_as(&t->memory, CLV_F64, 1);
    clv_sum_squares(&t->cx, sum, x);
    assert_close(sqrt(*(double *)sum.data) / 6e19, 1.0, 1e-6);
    ((float *)x.data)[2] = INFINITY;
    clv_sum_squares(&t->cx, sum, x);
    assert_true(isinf(*(double *)sum.data));
    ((float *)x.data)[1] = NAN;
    clv_sum_squares(&t->cx, sum, x);
    assert_true(isnan(*(double *)sum.data));
}

static void test_conversion(void **state)
{
    lab *t = *state;
    static const struct {
        float value;
        uint16_t bf16, f16;
    } known[] = {
        {1.0f, 0x3F80, 0x3C00},         {-2.5f, 0xC020, 0xC100},      {65504.0f, 0x4780, 0x7BFF},
        {65520.0f, 0x4780, 0x7C00},     {0x1p-24f, 0x3380, 0x0001},   {0x1p-25f, 0x3300, 0x0000},
        {0x1.8p-24f, 0x33C0, 0x0002},   {0x1.01p0f, 0x3F80, 0x3C04},  {0x1.03p0f, 0x3F82, 0x3C0C},
        {-0.0f, 0x8000, 0x8000},        {INFINITY, 0x7F80, 0x7C00},   {0x1.ff8p-15f, 0x3880, 0x03FF},
        {0x1.ffcp-15f, 0x3880, 0x0400}, {0x1.006p0f, 0x3F80, 0x3C02},
    };
    clv_tensor x = NEW(t, CLV_R, 1), bf16 = clv_new_as(&t->memory, CLV_BF16, 1);
    clv_tensor f16 = clv_new_as(&t->memory, CLV_F16, 1), back = NEW(t, CLV_R, 1);
    for (size_t i = 0; i < CLV_COUNT(known); i++) {
        clv_copy(&t->cx, bf16, filled(x, known[i].value));
        clv_copy(&t->cx, f16, x);
        assert_int_equal(*(uint16_t *)bf16.data, known[i].bf16);
        assert_int_equal(*(uint16_t *)f16.data, known[i].f16);
    }
    for (uint32_t bits = 0; bits < 65536; bits++) { /* there and back is the same, but for the payloads of NaN */
        *(uint16_t *)f16.data = (uint16_t)bits;
        clv_copy(&t->cx, back, f16);
        clv_copy(&t->cx, f16, back);
        assert_true(*(uint16_t *)f16.data == bits || (isnan(at(back, 0)) && (bits & 0x7C00) == 0x7C00));
    }
}

/* ---- dropout --------------------------------------------------------------------------------------------------- */

static clv_dropout drop_of(lab *t, float p, int64_t first)
{
    clv_dropout drop = {.p = p, .key = 77, .sample = clv_new_as(&t->memory, CLV_I64, 2), .first = first};
    ((int64_t *)drop.sample.data)[0] = 5;
    ((int64_t *)drop.sample.data)[1] = 900000000000;
    return drop;
}

static void test_dropout_statistics(void **state)
{
    lab *t = *state;
    const float p = 0.3f;
    clv_tensor x = filled(NEW(t, CLV_R, 128, 2, 256), 1.0f), y = NEW(t, CLV_R, 128, 2, 256);
    const clv_dropout drop = drop_of(t, p, 0);
    clv_dropout_apply(&t->cx, y, x, &drop);
    int64_t kept = 0, equal = 0;
    const int64_t n = clv_numel(x), h = 256;
    for (int64_t i = 0; i < n; i++) {
        assert_true(at(y, i) == 0.0f || fabsf(at(y, i) - 1.0f / (1.0f - p)) <= 1.2e-7f);
        kept += at(y, i) != 0.0f;
        equal += i / h % 2 == 0 && at(y, i) == at(y, i + h); /* the two columns are different samples */
    }
    assert_close((double)kept, 0.7 * (double)n, 3.0 * sqrt(0.21 * (double)n));
    assert_close((double)equal, 0.58 * (double)n / 2, 3.0 * sqrt(0.25 * (double)n / 2));
    const clv_dropout half = drop_of(t, 0.5f, 0);
    clv_dropout_apply(&t->cx, y, x, &half);
    for (int64_t i = 0; i < n; i++)
        assert_true(at(y, i) == 0.0f || at(y, i) == 2.0f);
}

/* An element's fate hangs on its number in the whole sequence, not on the rows that are at hand. */
static void test_dropout_in_parts(void **state)
{
    lab *t = *state;
    clv_tensor x = noise(NEW(t, CLV_S0, 13, 2, 37), 1), whole = NEW(t, CLV_S0, 13, 2, 37);
    clv_tensor parts = NEW(t, CLV_S0, 13, 2, 37);
    clv_dropout drop = drop_of(t, 0.4f, 0);
    clv_dropout_apply(&t->cx, whole, x, &drop);
    clv_dropout_apply(&t->cx, clv_slice(parts, 0, 6), clv_slice(x, 0, 6), &drop);
    drop.first = 6;
    clv_dropout_apply(&t->cx, clv_slice(parts, 6, 7), clv_slice(x, 6, 7), &drop);
    assert_memory_equal(parts.data, whole.data, clv_bytes(whole));
    clv_dropout_apply(&t->cx, parts, x, NULL);
    assert_memory_equal(parts.data, x.data, clv_bytes(x));
}

/* ---- cross entropy over shards ----------------------------------------------------------------------------------- */

typedef struct ce_result {
    clv_tensor loss, nll, gradient; /* gradient [rows, shards width] */
} ce_result;

enum { SHARDS = 4 };

/* The classes of x [rows, classes] over `shards` ranks of `width` columns; the sums over ranks are made by hand. */
static ce_result ce_in_shards(lab *t, clv_tensor x, clv_tensor target, int shards, int64_t width, float smoothing)
{
    const int64_t rows = x.dim[0], classes = x.dim[1];
    clv_tensor part[SHARDS], max[SHARDS], logit[SHARDS], sums[SHARDS];
    clv_ce ce[SHARDS];
    for (int k = 0; k < shards; k++) {
        const int64_t first = k * width, real = CLV_MIN(width, CLV_MAX(classes - first, 0));
        ce[k] = (clv_ce){target, first, real, classes, smoothing};
        part[k] = filled(NEW(t, CLV_SL, rows, width), 1e30f); /* padding must not be looked at */
        for (int64_t i = 0; i < rows * real; i++)
            ((float *)part[k].data)[i / real * width + i % real] = at(x, i / real * classes + first + i % real);
        max[k] = NEW(t, CLV_R, rows), logit[k] = NEW(t, CLV_R, rows), sums[k] = NEW(t, CLV_R, 2, rows);
        clv_ce_max(&t->cx, max[k], part[k], &ce[k]);
        for (int64_t i = 0; i < rows; i++)
            ((float *)max[0].data)[i] = fmaxf(at(max[0], i), at(max[k], i));
    }
    for (int k = 0; k < shards; k++) {
        clv_ce_sums(&t->cx, logit[k], sums[k], part[k], max[0], &ce[k]);
        if (k > 0)
            clv_add(&t->cx, logit[0], logit[k]), clv_add(&t->cx, sums[0], sums[k]);
    }
    const ce_result result = {NEW(t, CLV_R, rows), NEW(t, CLV_R, rows), NEW(t, CLV_R, rows, shards * width)};
    clv_ce_loss(&t->cx, result.loss, result.nll, logit[0], sums[0], &ce[0]);
    for (int k = 0; k < shards; k++) {
        clv_ce_backward(&t->cx, part[k], max[0], sums[0], filled(NEW(t, CLV_R, rows), 1.0f), &ce[k]);
        for (int64_t i = 0; i < rows * width; i++)
            ((float *)result.gradient.data)[i / width * shards * width + k * width + i % width] = at(part[k], i);
    }
    return result;
}

static clv_tensor targets(lab *t, int64_t rows, int64_t classes)
{
    clv_tensor target = clv_new_as(&t->memory, CLV_I32, rows);
    for (int64_t i = 0; i < rows; i++)
        ((int32_t *)target.data)[i] = (int32_t)(3 * i % classes);
    return target;
}

static void test_ce_shards(void **state)
{
    lab *t = *state;
    static const struct {
        int shards;
        int64_t width;
    } cuts[] = {{1, 12}, {2, 5}, {2, 8}, {3, 4}, {4, 4}}; /* 10 classes: {4, 4} leaves a rank with padding only */
    clv_tensor x = noise(NEW(t, CLV_SL, 9, 10), 8), target = targets(t, 9, 10);
    for (int s = 0; s < 2; s++) {
        const float smoothing = s == 0 ? 0.0f : 0.1f;
        const ce_result whole = ce_in_shards(t, x, target, 1, 10, smoothing);
        for (size_t c = 0; c < CLV_COUNT(cuts); c++) {
            const int64_t all = cuts[c].shards * cuts[c].width;
            const ce_result cut = ce_in_shards(t, x, target, cuts[c].shards, cuts[c].width, smoothing);
            for (int64_t i = 0; i < 9 * all; i++) {
                const double expected = i % all < 10 ? (double)at(whole.gradient, i / all * 10 + i % all) : 0.0;
                assert_close((double)at(cut.gradient, i), expected, i % all < 10 ? 1e-6 : 0.0);
            }
            for (int64_t i = 0; i < 9; i++) {
                assert_close((double)at(cut.loss, i), (double)at(whole.loss, i), 1e-6);
                assert_close((double)at(cut.nll, i), (double)at(whole.nll, i), 1e-6);
            }
        }
    }
}

static void test_ce_known_values(void **state)
{
    lab *t = *state;
    clv_tensor target = targets(t, 1, 2); /* class 0 */
    const ce_result huge = ce_in_shards(t, filled(NEW(t, CLV_SL, 1, 2), 1e8f), target, 2, 1, 0.0f);
    assert_close((double)at(huge.loss, 0), 0.693147, 1e-6);
    assert_close((double)at(huge.gradient, 0), -0.5, 1e-6);
    assert_close((double)at(huge.gradient, 1), 0.5, 1e-6);

    ((int32_t *)target.data)[0] = 1;
    const ce_result flat = ce_in_shards(t, filled(NEW(t, CLV_SL, 1, 8), 0.0f), target, 2, 4, 0.0f);
    for (int64_t i = 0; i < 8; i++)
        assert_close((double)at(flat.gradient, i), i == 1 ? -0.875 : 0.125, 1e-7);

    const ce_result padded = ce_in_shards(t, filled(NEW(t, CLV_SL, 1, 10), 0.0f), target, 4, 8, 0.0f);
    assert_close((double)at(padded.loss, 0), 2.302585, 1e-6);
    clv_tensor odds = filled(NEW(t, CLV_SL, 1, 2), 0.0f); /* p = 1/4, 3/4; a' = 0.2 */
    ((float *)odds.data)[1] = logf(3.0f);
    const ce_result uneven = ce_in_shards(t, odds, target, 2, 1, 0.1f);
    assert_close((double)at(uneven.loss, 0), 0.8 * -log(0.75) + 0.2 * -log(0.25 * 0.75) / 2, 1e-6);
    assert_close((double)at(uneven.nll, 0), -log(0.75), 1e-6);
    const ce_result smooth = ce_in_shards(t, filled(NEW(t, CLV_SL, 1, 10), 0.0f), target, 4, 8, 0.1f);
    assert_close((double)at(smooth.loss, 0), 2.302585, 1e-6);
}

/* ---- the front -------------------------------------------------------------------------------------------------- */

static int polls(int more)
{
    static int count;
    return count += more;
}

static void poll_once(const struct clv_mesh *mesh)
{
    (void)mesh;
    polls(1);
}

static void test_panels_of_a_long_product(void **state)
{
    lab *t = *state;
    clv_tensor x = noise(NEW(t, CLV_R, 65, 2, 7), 1), dy = noise(NEW(t, CLV_SL, 65, 2, 5), 2);
    clv_linear once = {.dw = NEW(t, CLV_R, 5, 7)}, panels = {.dw = NEW(t, CLV_R, 5, 7)};
    clv_linear_wgrad(&t->cx, &once, dy, x);
    const int before = polls(0);
    t->cx.idle = poll_once;
    clv_linear_wgrad(&t->cx, &panels, dy, x);
    assert_int_equal(polls(0) - before, 3);
    for (int64_t i = 0; i < 35; i++)
        assert_close((double)at(panels.dw, i), (double)at(once.dw, i), 2e-5);
}

/* Each of these is a mistake that tags or shapes must catch. */
static void mistake(lab *t, int which)
{
    clv_tensor r = NEW(t, CLV_R, 4, 1, 8), sl = NEW(t, CLV_SL, 4, 1, 8), p = NEW(t, CLV_P, 4, 1, 8);
    clv_tensor shard = NEW(t, CLV_S0, 2, 1, 8), w = NEW(t, CLV_R, 8, 8), stat = NEW(t, CLV_R, 4, 2);
    clv_linear column = {.w = w, .dw = w, .split = 0}, row = {.w = w, .dw = w, .split = 1};
    const clv_norm norm = {.kind = CLV_RMSNORM, .g = NEW(t, CLV_R, 8)};
    switch (which) {
    case 0:
        clv_linear_forward(&t->cx, r, sl, &row); /* the reduction left out */
        break;
    case 1:
        clv_linear_forward(&t->cx, sl, shard, &column); /* the gather left out */
        break;
    case 2:
        clv_linear_dgrad(&t->cx, r, sl, &column); /* a partial gradient taken for the whole */
        break;
    case 3:
        clv_linear_wgrad(&t->cx, &column, sl, shard); /* the wrong rows */
        break;
    case 4:
        clv_norm_forward(&t->cx, p, stat, p, &norm); /* a norm of partial sums */
        break;
    default:
        clv_residual_forward(&t->cx, r, r, p, (clv_tensor){0}, NULL); /* a partial sum added as it is */
    }
}

static void test_mistakes_panic(void **state)
{
    for (int which = 0; which < 6; which++) {
        const pid_t child = fork();
        if (child == 0) {
            dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
            mistake(*state, which);
            _exit(0);
        }
        int how = 0;
        assert_int_equal(waitpid(child, &how, 0), child);
        if (WIFEXITED(how) && WEXITSTATUS(how) == 0)
            fail_msg("mistake %d went unnoticed", which);
    }
}

#define FACT(test)                                                                                                     \
    {                                                                                                                  \
#test, test, set_up, tear_down, NULL                                                                           \
    }

static int run_on(const char *name)
{
    const clv_backend *be = clv_backend_find(name);
    struct CMUnitTest tests[] = {
        FACT(test_gelu_of_one),        FACT(test_activations_far_out),      FACT(test_norm_of_equal_values),
        FACT(test_rope_turns_back),    FACT(test_attention_ranges),         FACT(test_blind_query),
        FACT(test_adamw_decay_only),   FACT(test_sums_do_not_overflow),     FACT(test_conversion),
        FACT(test_dropout_statistics), FACT(test_dropout_in_parts),         FACT(test_ce_shards),
        FACT(test_ce_known_values),    FACT(test_panels_of_a_long_product), FACT(test_mistakes_panic),
    };
    for (size_t i = 0; i < CLV_COUNT(tests); i++)
        tests[i].initial_state = (void *)be;
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}

int main(void)
{
    return run_on("ref") + run_on("cpu");
}
