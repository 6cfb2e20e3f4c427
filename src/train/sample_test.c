/* sample_test.c - the choice of a token. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "train/inference_internal.h"

#include <math.h>

static const clv_sampling plain = {.temperature = 1.0, .top_p = 1.0};

enum { DRAWS = 20000 };

/* Shares of DRAWS draws. */
static void shares(const clv_sampling *how, const float *logits, int64_t n, double *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = 0.0;
    for (uint64_t i = 0; i < DRAWS; i++) {
        const int32_t id = clv_sample(how, logits, n, clv_uniform_at(7, i));
        assert_in_range(id, 0, n - 1);
        out[id] += 1.0 / DRAWS;
    }
}

static void assert_share(double got, double want)
{
    if (fabs(got - want) > 0.015)
        fail_msg("%.4f of the draws, not %.4f", got, want);
}

static void test_greedy_takes_the_lowest_of_equals(void **state)
{
    (void)state;
    const clv_sampling greedy = {.temperature = 0.0, .top_p = 1.0};
    assert_int_equal(clv_sample(&greedy, (float[]){1, 3, 2, 3}, 4, 0.99), 1);
    assert_int_equal(clv_sample(&greedy, (float[]){-INFINITY, -5}, 2, 0.0), 1);
}

static void test_probabilities(void **state)
{
    (void)state;
    const float logits[] = {logf(1), logf(2), logf(5), -INFINITY};
    double p[4];
    shares(&plain, logits, 4, p);
    assert_share(p[0], 0.125);
    assert_share(p[1], 0.25);
    assert_share(p[2], 0.625);
    assert_true(p[3] == 0.0);
    shares(&(clv_sampling){.temperature = 0.5, .top_p = 1.0}, logits, 4, p); /* squares: 1, 4, 25 */
    assert_share(p[0], 1.0 / 30);
    assert_share(p[1], 4.0 / 30);
    assert_share(p[2], 25.0 / 30);
}

static void test_top_k(void **state)
{
    (void)state;
    const float logits[] = {0, 2, 2, 2, 1}; /* of three equals the two lowest ids are in */
    double p[5];
    shares(&(clv_sampling){.temperature = 1.0, .top_k = 2, .top_p = 1.0}, logits, 5, p);
    assert_share(p[1], 0.5);
    assert_share(p[2], 0.5);
    assert_true(p[0] + p[3] + p[4] == 0.0);
    shares(&(clv_sampling){.temperature = 1.0, .top_k = 99, .top_p = 1.0}, (float[]){1, 1}, 2, p);
    assert_share(p[0], 0.5);
}

static void test_top_p(void **state)
{
    (void)state;
    const float logits[] = {logf(1), logf(5), logf(2), logf(2)};
    double p[4];
    shares(&(clv_sampling){.temperature = 1.0, .top_p = 0.45}, logits, 4, p); /* one reaches it */
    assert_true(fabs(p[1] - 1.0) < 1e-9);
    shares(&(clv_sampling){.temperature = 1.0, .top_p = 0.6}, logits, 4, p); /* 0.5 + 0.2, the lower id */
    assert_share(p[1], 5.0 / 7);
    assert_share(p[2], 2.0 / 7);
    assert_true(p[0] + p[3] == 0.0);
    shares(&(clv_sampling){.temperature = 1.0, .top_p = 1e-9}, logits, 4, p); /* at least one */
    assert_true(fabs(p[1] - 1.0) < 1e-9);
    shares(&(clv_sampling){.temperature = 1.0, .top_k = 2, .top_p = 0.7}, logits, 4, p); /* of the two that k left */
    assert_true(fabs(p[1] - 1.0) < 1e-9);
}

static void test_the_ends_of_u(void **state)
{
    (void)state;
    const float logits[] = {-INFINITY, 0, 0, -INFINITY};
    assert_int_equal(clv_sample(&plain, logits, 4, 0.0), 1);
    assert_int_equal(clv_sample(&plain, logits, 4, 1.0 - 0x1p-24), 2);
    assert_int_equal(clv_sample(&plain, (float[]){0, -1e30f}, 2, 1.0 - 0x1p-53), 0);
    assert_int_equal(clv_sample(&(clv_sampling){.temperature = 1e-300, .top_p = 1}, (float[]){1, 2, 1}, 3, 0.5), 1);
}

static void test_nothing_to_draw(void **state)
{
    (void)state;
    assert_int_equal(clv_sample(&plain, (float[]){0, NAN}, 2, 0.5), -1);
    assert_int_equal(clv_sample(&plain, (float[]){NAN, 0}, 2, 0.5), -1);
    assert_int_equal(clv_sample(&plain, (float[]){-INFINITY, -INFINITY}, 2, 0.5), -1);
    assert_int_equal(clv_sample(&plain, (float[]){0, INFINITY}, 2, 0.5), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy_takes_the_lowest_of_equals),
        cmocka_unit_test(test_probabilities),
        cmocka_unit_test(test_top_k),
        cmocka_unit_test(test_top_p),
        cmocka_unit_test(test_the_ends_of_u),
        cmocka_unit_test(test_nothing_to_draw),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
