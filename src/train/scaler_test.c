/* scaler_test.c - the loss scale against sequences of overflows ('x') and clean steps ('.'), the options, the floor. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "train/train.h"

typedef struct row {
    const char *steps;
    double initial, min;
    int64_t window, hysteresis;
    const double scale[12]; /* after each step */
} row;

static const row ROWS[] = {
    /* the first overflow is forgiven; from then on each halves, since only growth gives the hysteresis back */
    {"xxxx", 4294967296.0, 1, 1000, 2, {4294967296.0, 2147483648.0, 1073741824.0, 536870912.0}},
    {"x.x.x", 65536, 1, 1000, 2, {65536, 65536, 32768, 32768, 16384}},
    {"xx...x", 65536, 1, 3, 2, {65536, 32768, 32768, 32768, 65536, 65536}}, /* grew: forgiven again */
    {"..x..", 8, 1, 3, 1, {8, 8, 4, 4, 4}},                                 /* an overflow counts anew */
    {"......", 8, 1, 2, 2, {8, 16, 16, 32, 32, 64}},
    {"xxxx", 8, 1, 1000, 1, {4, 2, 1, 1}},
    {"xxx", 8, 3, 1000, 1, {4, 3, 3}}, /* not below the floor, whatever the halves are */
    {"xx.", 8, 8, 1, 1, {8, 8, 16}},   /* from the floor it grows again */
};

static void test_sequences(void **state)
{
    (void)state;
    for (size_t i = 0; i < CLV_COUNT(ROWS); i++) {
        const row *r = &ROWS[i];
        const clv_scaler_rules rules = {true, r->initial, r->min, r->window, r->hysteresis};
        clv_scaler s = clv_scaler_start(&rules);
        for (size_t k = 0; k < strlen(r->steps); k++) {
            clv_scaler_update(&s, &rules, r->steps[k] == 'x');
            if (s.scale != r->scale[k])
                fail_msg("%s: scale %g after step %zu, not %g", r->steps, s.scale, k + 1, r->scale[k]);
        }
    }
}

/* Overflows at the floor are counted while they follow each other. */
static void test_floor(void **state)
{
    (void)state;
    const clv_scaler_rules rules = {true, 4, 1, 1000, 2};
    clv_scaler s = clv_scaler_start(&rules);
    for (int i = 0; i < 3; i++) /* forgiven, 2, 1 */
        clv_scaler_update(&s, &rules, true);
    assert_true(s.scale == 1.0 && s.stuck == 0);
    for (int i = 0; i < 5; i++)
        clv_scaler_update(&s, &rules, true);
    assert_true(s.scale == 1.0 && s.stuck == 5);
    clv_scaler_update(&s, &rules, false);
    assert_true(s.stuck == 0 && s.good == 1);
}

static void test_constant(void **state)
{
    (void)state;
    const clv_scaler_rules rules = {false, 128, 128, 0, 0};
    clv_scaler s = clv_scaler_start(&rules);
    for (int i = 0; i < 2000; i++)
        clv_scaler_update(&s, &rules, false);
    assert_true(s.scale == 128.0);
    for (int i = 0; i < CLV_SCALER_PATIENCE; i++)
        clv_scaler_update(&s, &rules, true);
    assert_true(s.scale == 128.0 && s.stuck == CLV_SCALER_PATIENCE);
}

static clv_status parse(clv_options *o, const char *const *words, int count, clv_dtype *dtype)
{
    clv_options_default(o, 'T');
    CLV_TRY(clv_options_parse(o, count, (char *const *)words, NULL));
    return clv_options_storage(o, dtype);
}

static void test_options(void **state)
{
    (void)state;
    clv_options o;
    clv_dtype dtype;
    assert_int_equal(parse(&o, (const char *[]){"--fp16"}, 1, &dtype).code, CLV_OK);
    const clv_scaler_rules rules = clv_options_scaler(&o);
    assert_true(dtype == CLV_F16 && rules.dynamic && rules.initial == 4294967296.0 && rules.min == 1.0);
    assert_true(rules.window == 1000 && rules.hysteresis == 2);
    clv_options_free(&o);

    assert_int_equal(parse(&o, (const char *[]){"--fp16", "--loss-scale", "128"}, 3, &dtype).code, CLV_OK);
    assert_true(!clv_options_scaler(&o).dynamic && clv_options_scaler(&o).initial == 128.0);
    clv_options_free(&o);

    assert_int_equal(parse(&o, (const char *[]){"--bf16"}, 1, &dtype).code, CLV_OK);
    assert_true(dtype == CLV_BF16 && clv_options_scaler(&o).initial == 0.0);
    clv_options_free(&o);

    static const struct {
        const char *words[5];
        int count;
        const char *part;
    } refused[] = {{{"--bf16", "--fp16"}, 2, "give one"},
                   {{"--bf16", "--loss-scale", "8"}, 3, "needs --fp16"},
                   {{"--fp16", "--initial-loss-scale", "8", "--min-loss-scale", "16"}, 5, "below"}};
    for (size_t i = 0; i < CLV_COUNT(refused); i++) {
        const clv_status st = parse(&o, refused[i].words, refused[i].count, &dtype);
        assert_int_equal(st.code, CLV_BAD_USAGE);
        assert_non_null(strstr(st.text, refused[i].part));
        clv_options_free(&o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sequences), cmocka_unit_test(test_floor),
                                       cmocka_unit_test(test_constant), cmocka_unit_test(test_options)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
