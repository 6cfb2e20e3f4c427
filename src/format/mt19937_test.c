/* Known answers of NumPy's RandomState. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "format/format.h"

static void first_outputs(void **state)
{
    (void)state;
    static const struct {
        uint32_t seed, out[3];
    } known[] = {{0, {2357136044u, 2546248239u, 3071714933u}},
                 {42, {1608637542u, 3421126067u, 4083286876u}},
                 {1234, {822569775u, 2137449171u, 2671936806u}}};
    clv_mt19937 mt;
    for (size_t i = 0; i < CLV_COUNT(known); i++) {
        clv_mt19937_seed(&mt, known[i].seed);
        for (int k = 0; k < 3; k++)
            assert_int_equal(clv_mt19937_next(&mt), known[i].out[k]);
    }
    clv_mt19937_seed(&mt, 5489);
    assert_int_equal(clv_mt19937_next(&mt), 3499211612u);
    for (int i = 2; i < 10000; i++)
        clv_mt19937_next(&mt);
    assert_int_equal(clv_mt19937_next(&mt), 4123659995u); /* the C++ standard's 10,000th value, 16 blocks on */
}

static void shuffles(void **state)
{
    (void)state;
    static const struct {
        uint32_t seed;
        int64_t order[10];
    } known[] = {{1234, {7, 2, 9, 1, 0, 8, 4, 5, 6, 3}},
                 {42, {8, 1, 5, 0, 7, 2, 9, 4, 3, 6}},
                 {0, {2, 8, 4, 9, 1, 6, 7, 3, 0, 5}}};
    for (size_t i = 0; i < CLV_COUNT(known); i++) {
        int64_t array[10];
        for (int k = 0; k < 10; k++)
            array[k] = k;
        clv_mt19937 mt;
        clv_mt19937_seed(&mt, known[i].seed);
        clv_mt19937_shuffle(&mt, array, 10);
        assert_memory_equal(array, known[i].order, sizeof array);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(first_outputs), cmocka_unit_test(shuffles)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
