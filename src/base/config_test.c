/* config_test.c - each rule of a shape, broken alone, is named with its value; names of the choices. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/base.h"

static clv_config good(void)
{
    clv_config c = clv_config_default();
    c.vocab = 67;
    c.hidden = 32;
    c.layers = 2;
    c.heads = 4;
    c.kv_heads = 2;
    c.head_dim = 8;
    c.ffn = 48;
    c.max_positions = 32;
    c.position = CLV_POS_ROPE;
    return c;
}

static void refuse(clv_config c, const char *message)
{
    const clv_status status = clv_config_check(&c);
    assert_int_equal(status.code, CLV_BAD_INPUT);
    if (strstr(status.text, message) == NULL)
        fail_msg("'%s' does not say '%s'", status.text, message);
}

#define REFUSE(member, value, message)                                                                                 \
    do {                                                                                                               \
        clv_config broken_ = good();                                                                                   \
        broken_.member = value;                                                                                        \
        refuse(broken_, message);                                                                                      \
    } while (0)

static void test_rules(void **state)
{
    (void)state;
    const clv_config c = good();
    assert_string_equal(clv_config_check(&c).text, "");
    REFUSE(vocab, 0, "vocab-size is 0");
    REFUSE(hidden, -1, "hidden-size is -1");
    REFUSE(layers, 0, "num-layers is 0");
    REFUSE(heads, 0, "num-attention-heads is 0");
    REFUSE(kv_heads, 0, "num-query-groups is 0");
    REFUSE(head_dim, 0, "kv-channels is 0");
    REFUSE(ffn, 0, "ffn-hidden-size is 0");
    REFUSE(max_positions, 0, "max-position-embeddings is 0");
    REFUSE(kv_heads, 3, "4 query heads do not divide into 3");
    REFUSE(norm_eps, 0.0, "norm-epsilon is 0");
    REFUSE(norm_eps, NAN, "norm-epsilon");
    REFUSE(init_std, -1.0, "init-method-std is -1");
    REFUSE(hidden_dropout, 1.0, "hidden-dropout is 1");
    REFUSE(attention_dropout, NAN, "attention-dropout");
    REFUSE(window, -5, "-5 keys");
}

static void test_rope_rules(void **state)
{
    (void)state;
    REFUSE(rotary_percent, 0.0, "rotary-percent is 0");
    REFUSE(rotary_percent, 1.5, "rotary-percent is 1.5");
    REFUSE(rotary_percent, 1e300, "rotary-percent is 1e+300");
    REFUSE(rotary_percent, 0.375, "3 of 8");
    REFUSE(rotary_percent, 0.1, "0 of 8");
    REFUSE(head_dim, 7, "7 of 7");
    REFUSE(rope_base, 1.0, "rotary-base is 1");
    REFUSE(rope_factor, 0.0, "scaling factor is 0");
    clv_config c = good();
    c.rope_kind = CLV_ROPE_LLAMA3;
    c.rope_low_freq = c.rope_high_freq;
    refuse(c, "high_freq_factor 4");
    c = good();
    c.head_dim = 7; /* of no effect without rope */
    c.position = CLV_POS_LEARNED;
    assert_int_equal(clv_config_check(&c).code, CLV_OK);
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(clv_norm_kind_name(CLV_LAYERNORM), "LayerNorm");
    assert_string_equal(clv_norm_kind_name(CLV_RMSNORM), "RMSNorm");
    assert_string_equal(clv_act_name(CLV_GELU), "gelu");
    assert_string_equal(clv_act_name(CLV_SWIGLU), "swiglu");
    assert_string_equal(clv_position_name(CLV_POS_NONE), "none");
    assert_string_equal(clv_position_name(CLV_POS_ROPE), "rope");
    assert_string_equal(clv_rope_kind_name(CLV_ROPE_LLAMA3), "llama3");
    clv_config c = good();
    assert_false(clv_config_has_gate(&c));
    c.act = CLV_SWIGLU;
    assert_true(clv_config_has_gate(&c));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_rope_rules),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
