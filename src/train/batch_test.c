/* Batches that grow: where the sizes change, how many samples and updates that makes, and what is refused. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "train/train.h"

#include <string.h>

#define MAKE(plan, global, seq, ...)                                                                                   \
    make(plan, global, seq, (const char *[]){__VA_ARGS__}, CLV_COUNT(((const char *[]){__VA_ARGS__})))

static clv_status make(clv_batch_plan *plan, int64_t global, int64_t seq, const char **words, size_t count)
{
    const clv_options o = {.rampup_batch_size = {.word = words, .count = count}};
    return clv_batch_plan_make(plan, &o, global, seq);
}

static void expect(const clv_batch_plan *plan, const int64_t (*rows)[2], size_t count)
{
    assert_int_equal(plan->count, count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(plan->step[i].from, rows[i][0]);
        assert_int_equal(plan->step[i].size, rows[i][1]);
    }
}

/* 4 + 4 floor(n / (30 / 3)) until n > 30, as the older rule has it. */
static void test_ramp(void **state)
{
    (void)state;
    clv_batch_plan plan;
    assert_int_equal(MAKE(&plan, 16, 8, "4", "4", "31").code, CLV_OK);
    expect(&plan, (const int64_t[][2]){{0, 4}, {11, 8}, {21, 12}, {31, 16}}, 4);
    for (int64_t n = 0; n < 50; n++)
        assert_int_equal(clv_batch_plan_at(&plan, n), n > 31 ? 16 : 4 + 4 * (int64_t)((double)n / (31.0 / 3.0)));
    clv_batch_plan_free(&plan);
    assert_int_equal(MAKE(&plan, 16, 8, "16", "4", "30").code, CLV_OK);
    expect(&plan, (const int64_t[][2]){{0, 16}}, 1);
    clv_batch_plan_free(&plan);
}

static void test_steps(void **state)
{
    (void)state;
    clv_batch_plan plan;
    assert_int_equal(MAKE(&plan, 1, 2048, "0:768 250B:1536").code, CLV_OK);
    expect(&plan, (const int64_t[][2]){{0, 768}, {122070312, 1536}}, 2);
    clv_batch_plan_free(&plan);
    assert_int_equal(MAKE(&plan, 1, 10, "0:8", "0.5K:4", "1M:2", "1T:6").code, CLV_OK);
    expect(&plan, (const int64_t[][2]){{0, 8}, {50, 4}, {100000, 2}, {100000000000, 6}}, 4);
    assert_int_equal(clv_batch_plan_largest(&plan), 8);
    assert_int_equal(clv_batch_plan_last(&plan), 6);
    clv_batch_plan_free(&plan);
}

/* Sums and counts against a run played update by update. */
static void test_counts(void **state)
{
    (void)state;
    clv_batch_plan plan;
    assert_int_equal(MAKE(&plan, 16, 8, "4", "4", "31").code, CLV_OK);
    int64_t n = 0, at[20];
    for (int64_t k = 0; k < 20; k++) {
        at[k] = n;
        assert_int_equal(clv_batch_plan_samples(&plan, k), n);
        assert_int_equal(clv_batch_plan_updates(&plan, 0, n), k);
        assert_int_equal(clv_batch_plan_updates(&plan, 0, n + 1), k + 1);
        assert_int_equal(clv_batch_plan_updates(&plan, at[k / 2], n), k - k / 2);
        n += clv_batch_plan_at(&plan, n);
    }
    assert_true(clv_batch_plan_samples(&plan, INT64_MAX / 2) == INT64_MAX);
    assert_int_equal(clv_batch_plan_updates(&plan, 100, 50), 0);
    clv_batch_plan_free(&plan);
}

static void refused(clv_status st, const char *part)
{
    assert_true(st.code == CLV_BAD_USAGE || st.code == CLV_BAD_INPUT);
    if (strstr(st.text, part) == NULL)
        fail_msg("'%s' is not in: %s", part, st.text);
}

static void test_refusals(void **state)
{
    (void)state;
    clv_batch_plan plan;
    refused(MAKE(&plan, 16, 8, "4", "4"), "START INCREMENT SAMPLES");
    refused(MAKE(&plan, 16, 8, "4", "0", "30"), "START INCREMENT SAMPLES");
    refused(MAKE(&plan, 16, 8, "4", "x", "30"), "START INCREMENT SAMPLES");
    refused(MAKE(&plan, 16, 8, "4", "5", "30"), "16 in steps of 5");
    refused(MAKE(&plan, 2, 8, "4", "4", "30"), "nearest global batch: 4");
    refused(MAKE(&plan, 16, 8, "8:4"), "begin at 0");
    refused(MAKE(&plan, 16, 8, "0:4", "80:8", "80:16"), "80:16");
    refused(MAKE(&plan, 16, 8, "0:4", "8"), "TOKENS:SIZE");
    refused(MAKE(&plan, 16, 8, "0:0"), "TOKENS:SIZE");
    refused(MAKE(&plan, 16, 8, "0:4 1Q:8"), "1Q:8");
    refused(MAKE(&plan, 16, 8, ":4"), ":4");
    refused(MAKE(&plan, 16, 8, "0:4 99999999999T:8"), "T:8");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ramp), cmocka_unit_test(test_steps),
                                       cmocka_unit_test(test_counts), cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
