/* config.c - the shape of a model: defaults, names, and the rules that a shape must meet by itself. */
#include "base.h"

clv_config clv_config_default(void)
{
    return (clv_config){.model_type = "cleave",
                        .norm = CLV_LAYERNORM,
                        .norm_eps = 1e-5,
                        .act = CLV_GELU,
                        .position = CLV_POS_LEARNED,
                        .rope_base = 10000.0,
                        .rotary_percent = 1.0,
                        .rope_kind = CLV_ROPE_DEFAULT,
                        .rope_factor = 1.0,
                        .rope_low_freq = 1.0,
                        .rope_high_freq = 4.0,
                        .rope_original = 8192,
                        .tied = true,
                        .init_std = 0.02,
                        .bos = -1,
                        .eos = -1};
}

bool clv_config_has_gate(const clv_config *config)
{
    return config->act == CLV_SWIGLU;
}

const char *clv_norm_kind_name(clv_norm_kind kind)
{
    static const char *const names[] = {"LayerNorm", "RMSNorm"};
    return names[kind];
}

const char *clv_act_name(clv_act act)
{
    static const char *const names[] = {"gelu", "gelu_tanh", "relu", "swiglu"};
    return names[act];
}

const char *clv_position_name(clv_position position)
{
    static const char *const names[] = {"none", "learned_absolute", "rope"};
    return names[position];
}

const char *clv_rope_kind_name(clv_rope_kind kind)
{
    static const char *const names[] = {"default", "linear", "llama3"};
    return names[kind];
}

static clv_status positive(const char *what, int64_t value)
{
    if (value > 0)
        return clv_ok();
    return clv_fail(CLV_BAD_INPUT, "%s is %lld; it must be at least 1", what, (long long)value);
}

static clv_status probability(const char *what, double value)
{
    if (value >= 0.0 && value < 1.0)
        return clv_ok();
    return clv_fail(CLV_BAD_INPUT, "%s is %g; it must be at least 0 and below 1", what, value);
}

static clv_status rope_check(const clv_config *c)
{
    if (!(c->rotary_percent > 0.0 && c->rotary_percent <= 1.0))
        return clv_fail(CLV_BAD_INPUT, "rotary-percent is %g; it must be above 0 and at most 1", c->rotary_percent);
    const int64_t rotated = (int64_t)((double)c->head_dim * c->rotary_percent);
    if (rotated < 2 || rotated % 2 != 0)
        return clv_fail(CLV_BAD_INPUT, "rope turns %lld of %lld values of a head; that number must be even and not 0",
                        (long long)rotated, (long long)c->head_dim);
    if (c->rope_base <= 1.0)
        return clv_fail(CLV_BAD_INPUT, "rotary-base is %g; it must be above 1", c->rope_base);
    if (c->rope_factor <= 0.0)
        return clv_fail(CLV_BAD_INPUT, "the rope scaling factor is %g; it must be above 0", c->rope_factor);
    if (c->rope_kind == CLV_ROPE_LLAMA3 && c->rope_high_freq <= c->rope_low_freq)
        return clv_fail(CLV_BAD_INPUT, "rope scaling llama3: high_freq_factor %g must be above low_freq_factor %g",
                        c->rope_high_freq, c->rope_low_freq);
    return clv_ok();
}

clv_status clv_config_check(const clv_config *c)
{
    CLV_TRY(positive("vocab-size", c->vocab));
    CLV_TRY(positive("hidden-size", c->hidden));
    CLV_TRY(positive("num-layers", c->layers));
    CLV_TRY(positive("num-attention-heads", c->heads));
    CLV_TRY(positive("num-query-groups", c->kv_heads));
    CLV_TRY(positive("kv-channels", c->head_dim));
    CLV_TRY(positive("ffn-hidden-size", c->ffn));
    CLV_TRY(positive("max-position-embeddings", c->max_positions));
    CLV_TRY(probability("hidden-dropout", c->hidden_dropout));
    CLV_TRY(probability("attention-dropout", c->attention_dropout));
    if (c->heads % c->kv_heads != 0)
        return clv_fail(CLV_BAD_INPUT,
                        "%lld query heads do not divide into %lld query groups; use a divisor of %lld as "
                        "num-query-groups",
                        (long long)c->heads, (long long)c->kv_heads, (long long)c->heads);
    if (!(c->norm_eps > 0.0))
        return clv_fail(CLV_BAD_INPUT, "norm-epsilon is %g; it must be above 0", c->norm_eps);
    if (!(c->init_std > 0.0))
        return clv_fail(CLV_BAD_INPUT, "init-method-std is %g; it must be above 0", c->init_std);
    if (c->window < 0)
        return clv_fail(CLV_BAD_INPUT, "the sliding window is %lld keys; 0 means none", (long long)c->window);
    return c->position == CLV_POS_ROPE ? rope_check(c) : clv_ok();
}
