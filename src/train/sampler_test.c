/* The content of a step depends on neither the data-parallel size nor the micro-batch. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "train/train_data.h"

static void step_is_covered_once(void **state)
{
    (void)state;
    for (int64_t dp = 1; dp <= 8; dp *= 2)
        for (int64_t m = 1; m * dp <= 8; m *= 2)
            for (int order = CLV_ORDER_STABLE; order <= CLV_ORDER_MEGATRON; order++) {
                char seen[8] = {0};
                clv_sampler s = {.global_batch = 8, .micro_batch = m, .dp_size = dp, .order = (clv_data_order)order};
                assert_int_equal(clv_sampler_check(&s).code, CLV_OK);
                for (s.dp_rank = 0; s.dp_rank < dp; s.dp_rank++)
                    for (int64_t i = 0; i < clv_sampler_micros(&s) * m; i++) {
                        const int64_t id = clv_sampler_first(&s, 5000000000, i / m) + i % m - 5000000000;
                        assert_in_range(id, 0, 7);
                        seen[id]++;
                    }
                assert_memory_equal(seen, "\1\1\1\1\1\1\1\1", 8);
            }
}

static void orders_of_ranks(void **state)
{
    (void)state;
    clv_sampler s = {.global_batch = 12, .micro_batch = 2, .dp_rank = 1, .dp_size = 3};
    assert_int_equal(clv_sampler_first(&s, 24, 0), 28);
    assert_int_equal(clv_sampler_first(&s, 24, 1), 30);
    s.order = CLV_ORDER_MEGATRON;
    assert_int_equal(clv_sampler_first(&s, 24, 0), 26);
    assert_int_equal(clv_sampler_first(&s, 24, 1), 32);
}

static void sizes_that_do_not_fit(void **state)
{
    (void)state;
    const clv_sampler bad = {.global_batch = 10, .micro_batch = 2, .dp_size = 3};
    assert_non_null(strstr(clv_sampler_check(&bad).text, "nearest: 6 or 12"));
    const clv_sampler small = {.global_batch = 3, .micro_batch = 2, .dp_size = 2};
    assert_non_null(strstr(clv_sampler_check(&small).text, "nearest: 4"));
    const clv_sampler none = {.global_batch = 0, .micro_batch = 1, .dp_size = 1};
    assert_int_not_equal(clv_sampler_check(&none).code, CLV_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(step_is_covered_once), cmocka_unit_test(orders_of_ranks),
                                       cmocka_unit_test(sizes_that_do_not_fit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
