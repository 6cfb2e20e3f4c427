/* stream_test.c - every element at its place and nothing beside it written, for whole lines, tails and odd rows. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "op/backend.h"

enum { MOST = 96 };

static void check(float *to, int64_t to_row, int64_t from_row, const int64_t n[2])
{
    static const float nothing = -1.0f;
    float from[MOST * MOST];
    for (int64_t i = 0; i < n[0] * from_row; i++)
        from[i] = (float)i;
    for (int64_t i = 0; i < n[1] * to_row; i++)
        to[i] = nothing;
    clv_transpose(to, to_row, from, from_row, n);
    for (int64_t j = 0; j < n[1]; j++)
        for (int64_t i = 0; i < to_row; i++)
            assert_true(to[j * to_row + i] == (i < n[0] ? from[i * from_row + j] : nothing));
}

static void test_places(void **state)
{
    static const int64_t size[][2] = {{64, 48}, {16, 16}, {33, 17}, {17, 33}, {1, 5}, {5, 1}, {0, 3}, {3, 0}, {15, 64}};
    _Alignas(64) float to[MOST * MOST + 4];
    (void)state;
    for (size_t i = 0; i < CLV_COUNT(size); i++) {
        const int64_t *n = size[i];
        check(to, 64, 64, n);           /* whole lines */
        check(to, n[0], n[1], n);       /* dense */
        check(to + 4, 80, n[1] + 5, n); /* rows of whole lines that begin inside one */
        check(to, n[0] + 3, n[1] + 1, n);
    }
}

static void test_copies(void **state)
{
    enum { BYTES = 400 };
    (void)state;
    _Alignas(64) unsigned char from[BYTES], to[BYTES];
    for (int i = 0; i < BYTES; i++)
        from[i] = (unsigned char)(i % 255 + 1);
    for (size_t first = 0; first < 70; first += 3)
        for (size_t n = 0; first + n < BYTES - 8; n += n < 70 ? 1 : 61) {
            memset(to, 0, sizeof to);
            clv_copy_past(to + first, from + 5, n);
            assert_memory_equal(to + first, from + 5, n);
            for (size_t i = 0; i < BYTES; i++)
                assert_true((i >= first && i < first + n) || to[i] == 0);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_places), cmocka_unit_test(test_copies)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
