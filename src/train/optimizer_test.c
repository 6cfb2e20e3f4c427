/* AdamW over records and clipping: which parameters decay, the first steps by hand, and the edges of clipping. */
#include "train/train.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

typedef struct fixture {
    clv_arena arena;
    clv_ctx cx;
    clv_param params[3]; /* a matrix, a norm's gain, a bias */
    clv_optimizer o;
} fixture;

static void fill(fixture *f, clv_tensor t, float value)
{
    float values[8];
    for (int i = 0; i < 8; i++)
        values[i] = value;
    clv_from_host(&f->cx, t, values);
}

static void expect(fixture *f, clv_tensor t, double value, double tolerance)
{
    float values[8];
    clv_to_host(&f->cx, values, t);
    for (int64_t i = 0; i < clv_numel(t); i++)
        if (!(fabs((double)values[i] - value) <= tolerance))
            fail_msg("element %d is %.9g instead of %.9g", (int)i, (double)values[i], value);
}

static fixture fixture_open(float weight, float gradient)
{
    fixture f = {.cx.be = clv_backend_ref()};
    assert_int_equal(clv_arena_create(&f.arena, "test", 1 << 16).code, CLV_OK);
    for (int i = 0; i < 3; i++) {
        clv_param *p = &f.params[i];
        *p = (clv_param){.here = true, .ndim = i == 0 ? 2 : 1, .split_dim = -1, .decay = i == 0};
        p->w = clv_tensor_typed(&f.arena, CLV_F32, p->ndim, (int64_t[]){4, 2});
        p->dw = clv_tensor_typed(&f.arena, CLV_F32, p->ndim, (int64_t[]){4, 2});
        fill(&f, p->w, weight);
        fill(&f, p->dw, gradient);
    }
    clv_optimizer_create(&f.o, f.params, 3, &f.arena);
    return f;
}

static void fixture_close(fixture *f)
{
    clv_optimizer_destroy(&f->o);
    clv_arena_destroy(&f->arena);
}

static void decay_groups(void **state)
{
    (void)state;
    fixture f = fixture_open(1.0f, 0.0f);
    f.o.weight_decay = 0.1;
    clv_optimizer_step(&f.cx, &f.o, f.params, 0.1, 1.0);
    expect(&f, f.params[0].w, 0.99, 1e-7);
    expect(&f, f.params[1].w, 1.0, 0.0);
    expect(&f, f.params[2].w, 1.0, 0.0);
    assert_int_equal(f.o.step, 1);
    fixture_close(&f);
}

/* With a constant gradient g both corrected moments are g and g^2 at every step, so each update is lr g/(|g| + eps). */
static void constant_gradient(void **state)
{
    (void)state;
    fixture f = fixture_open(1.0f, 4.0f);
    f.o.weight_decay = 0.0;
    for (int i = 1; i <= 3; i++) {
        clv_optimizer_step(&f.cx, &f.o, f.params, 0.01, 0.5); /* g = 2 */
        for (int k = 0; k < 3; k++)
            expect(&f, f.params[k].w, 1.0 - 0.01 * i, 1e-6);
    }
    expect(&f, f.o.m[0], 2.0 * (1.0 - pow(0.9, 3)), 1e-6);
    expect(&f, f.o.v[2], 4.0 * (1.0 - pow(0.999, 3)), 1e-6);
    fixture_close(&f);
}

/* An update of 1e-4 is lost between 1 and the next bf16 number below; in the master it is kept, and after enough of
 * them the 16-bit weight follows. */
static void masters(void **state)
{
    (void)state;
    const clv_backend *const backends[] = {clv_backend_ref(), clv_backend_cpu()};
    for (size_t k = 0; k < CLV_COUNT(backends); k++) {
        clv_arena arena, temp;
        float one[8] = {1, 1, 1, 1, 1, 1, 1, 1}, wide[8];
        assert_int_equal(clv_arena_create(&arena, "test", 1 << 16).code, CLV_OK);
        assert_int_equal(clv_arena_create(&temp, "temp", 1 << 16).code, CLV_OK);
        clv_ctx cx = {.be = backends[k], .temp = &temp};
        clv_param p = {.here = true, .ndim = 1, .split_dim = -1};
        p.w = clv_new_as(&arena, CLV_BF16, 8);
        p.dw = clv_new_as(&arena, CLV_F32, 8);
        clv_optimizer o;
        clv_optimizer_create(&o, &p, 1, &arena);
        clv_param_write(&cx, &p, one);
        clv_from_host(&cx, p.dw, one);
        for (int i = 1; i <= 40; i++) {
            clv_optimizer_step(&cx, &o, &p, 1e-4, 1.0);
            clv_to_floats(&cx, wide, p.w);
            const double exact = 1.0 - 1e-4 * i;
            for (int e = 0; e < 8; e++) {
                assert_true(fabs((double)((float *)p.master.data)[e] - exact) < 1e-6);
                assert_true(fabs((double)wide[e] - exact) <= 0x1p-9 + 1e-6); /* half of bf16's step below 1 */
                assert_true(i > 19 || (double)wide[e] == 1.0);
            }
        }
        assert_true((double)wide[0] < 1.0);
        clv_optimizer_destroy(&o);
        clv_arena_destroy(&arena);
        clv_arena_destroy(&temp);
    }
}

static void clipping(void **state)
{
    (void)state;
    assert_true(clv_clip_coefficient(0.5, 1.0) == 1.0);
    assert_true(clv_clip_coefficient(0.0, 1.0) == 1.0);
    assert_true(clv_clip_coefficient(5.0, 0.0) == 1.0);
    assert_true(clv_clip_coefficient(4.0, 1.0) == 1.0 / (4.0 + 1e-6));
    assert_true(clv_clip_coefficient((double)INFINITY, 1.0) == 1.0);
    assert_true(clv_clip_coefficient((double)NAN, 1.0) == 1.0);
    const float big = 3e19f; /* four of them: their squares overflow in single precision */
    assert_true(fabs((double)big * clv_clip_coefficient(6e19, 1.0) - 0.5) < 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decay_groups),
        cmocka_unit_test(constant_gradient),
        cmocka_unit_test(masters),
        cmocka_unit_test(clipping),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
