/* check_test.c - shapes that do not fit a layout are refused with the values and with what would fit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "model/model.h"

typedef struct shape {
    int64_t heads, kv_heads, ffn;
    int tp;
    bool sequence_parallel;
    int64_t seq_length;
} shape;

static clv_status check(shape s)
{
    clv_config c = clv_config_default();
    c.vocab = 96;
    c.hidden = 64;
    c.layers = 2;
    c.heads = s.heads;
    c.kv_heads = s.kv_heads;
    c.head_dim = 8;
    c.ffn = s.ffn;
    c.max_positions = 64;
    return clv_gpt_check(&c, &(clv_layout){.tp = s.tp}, s.sequence_parallel, s.seq_length);
}

static void refuse(shape s, const char *const *parts)
{
    const clv_status st = check(s);
    assert_int_equal(st.code, CLV_BAD_INPUT);
    for (; *parts != NULL; parts++)
        if (strstr(st.text, *parts) == NULL)
            fail_msg("no '%s' in: %s", *parts, st.text);
}

#define REFUSE(s, ...) refuse(s, (const char *const[]){__VA_ARGS__, NULL})

static void test_heads(void **state)
{
    (void)state;
    REFUSE(((shape){52, 52, 52 * 64, 8, false, 32}), "52 attention heads", "size 8", "1, 2, 4, 13, 26, 52");
}

static void test_kv_heads(void **state)
{
    (void)state;
    REFUSE(((shape){12, 6, 96, 4, false, 32}), "6 key/value heads", "size 4", "1, 2, 3, 6, 12");
    assert_int_equal(check((shape){12, 6, 96, 12, false, 32}).code, CLV_OK); /* two ranks share a head */
}

static void test_ffn(void **state)
{
    (void)state;
    REFUSE(((shape){8, 8, 36, 8, false, 32}), "ffn-hidden-size 36", "size 8", "valid: 1, 2, 4");
}

static void test_sequence(void **state)
{
    (void)state;
    REFUSE(((shape){8, 8, 96, 2, true, 33}), "seq-length 33", "size 2", "32 and 34", "leave sequence-parallel out");
    assert_int_equal(check((shape){8, 8, 96, 2, false, 33}).code, CLV_OK);
    REFUSE(((shape){8, 8, 96, 1, false, 65}), "seq-length 65", "64");
    REFUSE(((shape){8, 8, 96, 1, false, 0}), "seq-length is 0");
}

static void test_shape_itself(void **state)
{
    (void)state;
    REFUSE(((shape){12, 5, 96, 1, false, 32}), "12 query heads", "5 query groups");
    REFUSE(((shape){0, 1, 96, 1, false, 32}), "num-attention-heads is 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_heads), cmocka_unit_test(test_kv_heads),
                                       cmocka_unit_test(test_ffn), cmocka_unit_test(test_sequence),
                                       cmocka_unit_test(test_shape_itself)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
