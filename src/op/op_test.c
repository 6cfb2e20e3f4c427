/* Every case of the table: gradients against central differences, cpu against ref in every storage type, and a plan
 * that touches nothing. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "op/op_cases.h"

static op_run with_memory(void)
{
    op_run r = {.seed = 0};
    assert_int_equal(clv_arena_create(&r.values, "values", (size_t)64 << 20).code, CLV_OK);
    assert_int_equal(clv_arena_create(&r.temp, "temp", (size_t)64 << 20).code, CLV_OK);
    return r;
}

static void without_memory(op_run *r)
{
    clv_arena_destroy(&r->values);
    clv_arena_destroy(&r->temp);
}

static double at(clv_tensor t, int64_t i)
{
    return t.dtype == CLV_F64 ? ((const double *)t.data)[i] : (double)((const float *)t.data)[i];
}

static double largest(clv_tensor t)
{
    double most = 0.0;
    for (int64_t i = 0; i < clv_numel(t); i++)
        most = isfinite(at(t, i)) ? fmax(most, fabs(at(t, i))) : most;
    return most;
}

/* ---- gradients ------------------------------------------------------------------------------------------------- */

static double loss(op_run *r, const op_case *c)
{
    double sum = 0.0;
    c->forward(r);
    for (int k = 0; k < r->outs; k++)
        for (int64_t i = 0; i < clv_numel(r->out[k]); i++)
            sum += at(r->out[k], i) * at(r->dout[k], i);
    return sum;
}

static double loss_beside(op_run *r, const op_case *c, float *x, float step)
{
    const float old = *x;
    *x = old + step;
    const double value = loss(r, c);
    *x = old;
    return value;
}

/* dL/dx by differences of fourth order: (8 (L(h) - L(-h)) - (L(2h) - L(-2h))) / 12 h. */
static double difference(op_run *r, const op_case *c, float *x)
{
    const float h = 0x1p-6f;
    const double near = loss_beside(r, c, x, h) - loss_beside(r, c, x, -h);
    const double far = loss_beside(r, c, x, 2 * h) - loss_beside(r, c, x, -2 * h);
    return (8.0 * near - far) / (12.0 * (double)h);
}

static void check_gradient(op_run *r, const op_case *c, int k, const float *before)
{
    const double bound = 5e-4 * fmax(1.0, largest(r->din[k]));
    for (int64_t i = 0; i < clv_numel(r->in[k]); i++) {
        const double base = r->adds >> k & 1 ? (double)before[i] : 0.0;
        const double found = at(r->din[k], i) - base;
        const double expected = difference(r, c, (float *)r->in[k].data + i);
        if (!(fabs(found - expected) <= bound))
            fail_msg("%s: gradient of input %d at %lld is %.7g, by differences %.7g", c->name, k, (long long)i, found,
                     expected);
    }
}

static void test_gradient(void **state)
{
    const op_case *c = *state;
    if (c->backward == NULL)
        skip();
    op_run r = with_memory();
    op_start(&r, c, clv_backend_ref(), c->sizes[0]);
    float *before[OP_SLOTS] = {NULL};
    for (int k = 0; k < r.ins; k++) {
        before[k] = clv_alloc((size_t)clv_numel(r.din[k]), sizeof(float));
        clv_to_host(&r.cx, before[k], r.din[k]);
    }
    op_run_all(&r, c);
    for (int k = 0; k < r.ins; k++) {
        check_gradient(&r, c, k, before[k]);
        free(before[k]);
    }
    without_memory(&r);
}

/* ---- cpu equals ref ---------------------------------------------------------------------------------------------- */

/* Largest distance of two neighbours of a type, as a share of them. */
static double step_of(clv_dtype type)
{
    return type == CLV_BF16 ? 0x1p-7 : type == CLV_F16 ? 0x1p-10 : 0.0;
}

/* Halves as floats; other types as they are. */
static clv_tensor widened(clv_tensor t)
{
    clv_tensor wide = t;
    if (step_of(t.dtype) == 0.0)
        return t;
    wide.dtype = CLV_F32;
    wide.data = clv_alloc((size_t)clv_numel(t), sizeof(float));
    clv_backend_ref()->copy(wide, t);
    return wide;
}

/* What rounds to a half may do so to either side; `steps` tells how often it is rounded. */
static void check_equal(const op_case *c, const char *what, int k, clv_tensor cpu_half, clv_tensor ref_half, int steps)
{
    const clv_tensor cpu = widened(cpu_half), ref = widened(ref_half);
    const double noise = c->tolerance * largest(ref), step = steps * step_of(ref_half.dtype);
    for (int64_t i = 0; i < clv_numel(ref); i++) {
        const double x = at(cpu, i), y = at(ref, i), bound = noise + step * fabs(y);
        if (!(x == y || fabs(x - y) <= bound)) {
            char text[96];
            fail_msg("%s: %s %d %s at %lld is %.9g, ref has %.9g, bound %.3g", c->name, what, k,
                     clv_describe(ref_half, text), (long long)i, x, y, bound);
        }
    }
    if (cpu.data != cpu_half.data) {
        free(cpu.data);
        free(ref.data);
    }
}

/* a's results become b's, so that both backwards start from the same values. */
static void same_results(op_run *a, const op_run *b)
{
    for (int k = 0; k < a->outs; k++)
        clv_from_host(&a->cx, a->out[k], b->out[k].data);
    for (int k = 0; k < a->auxs; k++)
        clv_from_host(&a->cx, a->aux[k], b->aux[k].data);
}

static void compare(const op_case *c, op_run *a, op_run *b)
{
    const int steps = a->norm.g.ndim > 0 && a->norm.kind == CLV_RMSNORM ? 2 : 1;
    c->forward(a);
    c->forward(b);
    for (int k = 0; k < a->outs; k++)
        check_equal(c, "output", k, a->out[k], b->out[k], steps);
    for (int k = 0; k < a->auxs; k++)
        check_equal(c, "further result", k, a->aux[k], b->aux[k], 1);
    assert_int_equal(a->temp.used, 0);
    if (c->backward == NULL)
        return;
    same_results(a, b);
    c->backward(a);
    c->backward(b);
    for (int k = 0; k < a->ins; k++)
        check_equal(c, "gradient", k, a->din[k], b->din[k], 1);
    assert_int_equal(a->temp.used, 0);
}

static void test_cpu(void **state)
{
    const op_case *c = *state;
    const clv_backend *cpu = clv_backend_find("cpu");
    op_run a = with_memory(), b = with_memory();
    for (clv_dtype type = CLV_F32; type <= CLV_F16; type++)
        for (const int64_t *size = c->sizes[0]; size[0] > 0; size += OP_SIZE) {
            a.type = b.type = type;
            op_start(&a, c, cpu, size);
            op_start(&b, c, clv_backend_ref(), size);
            compare(c, &a, &b);
        }
    without_memory(&a);
    without_memory(&b);
}

/* ---- a plan ------------------------------------------------------------------------------------------------------ */

/* Without memory every pointer is NULL: whoever reads through one crashes here. What was counted is what a run takes.
 */
static void test_plan(void **state)
{
    const op_case *c = *state;
    const clv_backend *cpu = clv_backend_find("cpu");
    op_run real = with_memory(), plan = {.values = clv_arena_counting("values"), .temp = clv_arena_counting("temp")};
    for (clv_dtype type = CLV_F32; type <= CLV_F16; type++)
        for (const int64_t *size = c->sizes[0]; size[0] > 0; size += OP_SIZE) {
            plan.type = real.type = type;
            op_start(&plan, c, clv_backend_null(), size);
            op_run_all(&plan, c);
            op_start(&real, c, cpu, size);
            op_run_all(&real, c);
            assert_int_equal(plan.values.peak, real.values.peak);
            assert_in_range(plan.temp.peak, real.temp.peak, real.temp.peak + CLV_ARENA_ALIGN); /* two pieces, rounded */
            assert_int_equal(plan.temp.used, 0);
        }
    without_memory(&real);
}

static int run(const char *group, CMUnitTestFunction test)
{
    struct CMUnitTest tests[CLV_COUNT(OP_CASES)];
    for (size_t i = 0; i < CLV_COUNT(OP_CASES); i++)
        tests[i] = (struct CMUnitTest){OP_CASES[i].name, test, NULL, NULL, (void *)&OP_CASES[i]};
    return cmocka_run_group_tests_name(group, tests, NULL, NULL);
}

int main(void)
{
    return run("gradients by central differences", test_gradient) + run("cpu equals ref", test_cpu) +
           run("a plan touches nothing", test_plan);
}
