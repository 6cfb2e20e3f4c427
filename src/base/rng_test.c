/* rng_test.c - Philox's published answers, pinned streams, moments, permutations. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/base.h"

/* The vectors that Random123 ships. */
static void test_known_answers(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], word[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < CLV_COUNT(cases); i++) {
        const clv_philox got = clv_philox_block(cases[i].counter, cases[i].key);
        for (int w = 0; w < 4; w++)
            assert_int_equal(got.word[w], cases[i].word[w]);
    }
}

/* Checkpoints and seeds of published runs depend on these: they may never change. Computed by a second program. */
static void test_pinned_streams(void **state)
{
    (void)state;
    static const struct {
        uint64_t index;
        double uniform, normal;
    } cases[] = {
        {0, 0.7199727296829224, -0.17545036183432788},
        {5, 0.3212593197822571, -0.9822763636619084},
        {((uint64_t)1 << 40) + 3, 0.3333020806312561, -0.32510009328931255},
    };
    const uint64_t key = 0x0123456789abcdef;
    for (size_t i = 0; i < CLV_COUNT(cases); i++) {
        assert_true((double)clv_uniform_at(key, cases[i].index) == cases[i].uniform);
        assert_true(fabs(clv_normal_at(key, cases[i].index) - cases[i].normal) < 1e-14);
    }
}

static void test_moments(void **state)
{
    (void)state;
    enum { N = 200000 };
    double u1 = 0.0, u2 = 0.0, n1 = 0.0, n2 = 0.0, n4 = 0.0, lag = 0.0;
    for (uint64_t i = 0; i < N; i++) {
        const double u = (double)clv_uniform_at(7, i), z = clv_normal_at(7, i);
        assert_true(u >= 0.0 && u < 1.0);
        u1 += u / N;
        u2 += u * u / N;
        n1 += z / N;
        n2 += z * z / N;
        n4 += z * z * z * z / N;
        lag += z * clv_normal_at(7, i + 1) / N;
    }
    assert_true(fabs(u1 - 0.5) < 0.003 && fabs(u2 - 1.0 / 3.0) < 0.003); /* more than four deviations */
    assert_true(fabs(n1) < 0.01 && fabs(n2 - 1.0) < 0.015 && fabs(n4 - 3.0) < 0.1 && fabs(lag) < 0.01);
}

static void test_names(void **state)
{
    (void)state;
    static const char *const names[] = {"", "a", "b", "ab", "ba", "layers.0.mlp", "layers.1.mlp", "layers.10.mlp"};
    for (size_t i = 0; i < CLV_COUNT(names); i++) {
        assert_true(clv_hash_name(1, names[i]) == clv_hash_name(1, names[i]));
        assert_true(clv_hash_name(1, names[i]) != clv_hash_name(2, names[i]));
        for (size_t j = 0; j < i; j++)
            assert_true(clv_hash_name(1, names[i]) != clv_hash_name(1, names[j]));
    }
}

static void test_permutations(void **state)
{
    (void)state;
    enum { N = 1000, ROUNDS = 6000 };
    int64_t order[N], other[N];
    bool seen[N] = {false};
    clv_permutation(order, N, 3);
    for (int i = 0; i < N; i++) {
        assert_true(order[i] >= 0 && order[i] < N && !seen[order[i]]);
        seen[order[i]] = true;
    }
    clv_permutation(other, N, 3);
    assert_memory_equal(order, other, sizeof order);
    clv_permutation(other, N, 4);
    assert_true(memcmp(order, other, sizeof order) != 0);
    clv_permutation(order, 0, 3);
    clv_permutation(order, 1, 3);
    assert_int_equal(order[0], 0);

    int count[6] = {0}; /* each order of three comes up equally often */
    for (uint64_t key = 0; key < ROUNDS; key++) {
        clv_permutation(order, 3, key);
        count[order[0] * 2 + (order[1] > order[2])]++;
    }
    for (int i = 0; i < 6; i++)
        assert_true(count[i] > 850 && count[i] < 1150); /* 1000, deviation 29 */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers), cmocka_unit_test(test_pinned_streams), cmocka_unit_test(test_moments),
        cmocka_unit_test(test_names),         cmocka_unit_test(test_permutations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
