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
        cmocka_unit_test(clipping),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
