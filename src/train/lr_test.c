/* The schedules at their boundaries against numbers worked out by hand, and options turned into samples. */
#include "train/train.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

/* max 1, min 0.1, warm-up from 0.2 over 100 samples, decay over by sample 1100 */
static clv_lr_plan plan_of(clv_lr_style style)
{
    return (clv_lr_plan){.style = style, .max = 1.0, .min = 0.1, .init = 0.2, .warmup = 100, .decay = 1100};
}

static void expect(const clv_lr_plan *plan, int64_t n, double value)
{
    const double got = clv_lr_at(plan, n);
    if (fabs(got - value) > 1e-12)
        fail_msg("%s at %lld: %.17g instead of %.17g", clv_lr_style_name(plan->style), (long long)n, got, value);
}

static void warm_up(void **state)
{
    (void)state;
    for (int style = CLV_LR_CONSTANT; style <= CLV_LR_WSD; style++) {
        clv_lr_plan plan = plan_of((clv_lr_style)style);
        plan.wsd_decay = 200;
        expect(&plan, 0, 0.2);
        expect(&plan, 50, 0.6);
        expect(&plan, 100, 1.0); /* n = W is still warm-up, whatever follows */
        plan.init = 0.0;
        expect(&plan, 0, 0.0);
    }
}

static void constant(void **state)
{
    (void)state;
    clv_lr_plan plan = plan_of(CLV_LR_CONSTANT);
    expect(&plan, 101, 1.0);
    expect(&plan, 1101, 1.0); /* never falls to min */
    plan.warmup = 0;
    expect(&plan, 0, 1.0);
}

static void linear(void **state)
{
    (void)state;
    const clv_lr_plan plan = plan_of(CLV_LR_LINEAR);
    expect(&plan, 101, 0.1 + 0.9 * 0.999);
    expect(&plan, 600, 0.55);
    expect(&plan, 1099, 0.1 + 0.9 * 0.001);
    expect(&plan, 1100, 0.1);
    expect(&plan, 1101, 0.1);
}

static void cosine(void **state)
{
    (void)state;
    const clv_lr_plan plan = plan_of(CLV_LR_COSINE);
    expect(&plan, 101, 0.1 + 0.45 * (1.0 + cos(3.14159265358979323846 / 1000)));
    expect(&plan, 350, 0.1 + 0.45 * (1.0 + sqrt(0.5)));
    expect(&plan, 600, 0.55);
    expect(&plan, 1100, 0.1);
    expect(&plan, 1101, 0.1);
}

static void inverse_square_root(void **state)
{
    (void)state;
    clv_lr_plan plan = plan_of(CLV_LR_INVERSE_SQRT);
    expect(&plan, 101, 10.0 / sqrt(101.0));
    expect(&plan, 400, 0.5);
    expect(&plan, 1100, 10.0 / sqrt(1100.0)); /* n = D has not fallen yet ... */
    expect(&plan, 1101, 0.1);                 /* ... and then falls at once */
    plan.min = 0.6;
    expect(&plan, 400, 0.6);
    plan.warmup = 0;
    plan.min = 0.0;
    expect(&plan, 0, 1.0);
    expect(&plan, 4, 0.5);
}

static void wsd(void **state)
{
    (void)state;
    const double halfway[] = {2.0 * sqrt(0.5) - 1.0, 0.5, 0.5, 1.0 - sqrt(0.5)};
    const double quarter[] = {2.0 * pow(0.5, 0.25) - 1.0, 0.75, 0.5 * (1.0 + sqrt(0.5)), 0.5};
    for (int tail = CLV_WSD_EXPONENTIAL; tail <= CLV_WSD_MINUS_SQRT; tail++) {
        clv_lr_plan plan = plan_of(CLV_LR_WSD);
        plan.wsd_style = (clv_wsd_style)tail;
        plan.wsd_decay = 200;
        expect(&plan, 101, 1.0);
        expect(&plan, 900, 1.0); /* the tail's start still has the highest rate */
        assert_true(clv_lr_at(&plan, 901) < 1.0);
        expect(&plan, 950, 0.1 + 0.9 * quarter[tail]);
        expect(&plan, 1000, 0.1 + 0.9 * halfway[tail]);
        expect(&plan, 1100, 0.1);
        expect(&plan, 1101, 0.1);
    }
}

/* ---- options ---- */

static const clv_batch_plan four = {.step = &(clv_batch_step){.size = 4}, .count = 1};

static clv_options options_of(void)
{
    clv_options o = {.lr = 1e-3, .lr_decay_style = "linear", .lr_wsd_decay_style = "exponential", .lr_warmup = "0"};
    o.is_set.lr = true;
    return o;
}

static void from_options(void **state)
{
    (void)state;
    clv_lr_plan plan;
    clv_options o = options_of();
    assert_int_equal(clv_lr_plan_make(&plan, &o, &four, 400).code, CLV_OK);
    assert_int_equal(plan.decay, 400);
    assert_int_equal(plan.warmup, 0);

    o.lr_warmup = "10";
    o.lr_decay = "50";
    assert_int_equal(clv_lr_plan_make(&plan, &o, &four, 400).code, CLV_OK);
    assert_int_equal(plan.decay, 200);
    assert_int_equal(plan.warmup, 40);

    o = options_of();
    o.lr_warmup = "0.25";
    o.lr_wsd_decay = "80samples";
    o.lr_decay_style = "WSD";
    o.lr_wsd_decay_style = "minus_sqrt";
    assert_int_equal(clv_lr_plan_make(&plan, &o, &four, 400).code, CLV_OK);
    assert_int_equal(plan.warmup, 100);
    assert_int_equal(plan.wsd_decay, 80);
    assert_int_equal(plan.style, CLV_LR_WSD);
    assert_int_equal(plan.wsd_style, CLV_WSD_MINUS_SQRT);
}

static void expect_refusal(const clv_options *o, const char *word)
{
    clv_lr_plan plan;
    const clv_status status = clv_lr_plan_make(&plan, o, &four, 400);
    assert_int_equal(status.code, CLV_BAD_USAGE);
    if (strstr(status.text, word) == NULL)
        fail_msg("'%s' does not mention '%s'", status.text, word);
}

static void refusals(void **state)
{
    (void)state;
    clv_options o = options_of();
    o.is_set.lr = false;
    expect_refusal(&o, "--lr is not given");

    o = options_of();
    o.min_lr = 0.5;
    expect_refusal(&o, "--min-lr 0.5");

    static const char *const bad[] = {"ten", "", "10 samples", "-1", "1.5", "3fraction", "1e3samples", "0x10"};
    for (size_t i = 0; i < CLV_COUNT(bad); i++) {
        o = options_of();
        o.lr_warmup = bad[i];
        expect_refusal(&o, "or a fraction");
    }

    o = options_of();
    o.lr_decay = "0.5";
    expect_refusal(&o, "--lr-decay 0.5");

    o = options_of();
    o.lr_warmup = "400samples";
    expect_refusal(&o, "400 samples");

    o = options_of();
    o.lr_decay = "4611686018427387903";
    expect_refusal(&o, "too large");

    o = options_of();
    o.lr_decay_style = "WSD";
    expect_refusal(&o, "--lr-wsd-decay");
    o.lr_warmup = "100samples";
    o.lr_wsd_decay = "301samples";
    expect_refusal(&o, "301 samples");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warm_up),
        cmocka_unit_test(constant),
        cmocka_unit_test(linear),
        cmocka_unit_test(cosine),
        cmocka_unit_test(inverse_square_root),
        cmocka_unit_test(wsd),
        cmocka_unit_test(from_options),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
