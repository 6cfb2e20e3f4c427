/* options_shape.c - the shape of a model, from options or held against them.
 *
 *   f = 4 h, with swiglu 64 floor((8 h / 3) / 64)    d = h / n    g = n
 *
 * Source: Megatron-LM's argument checks for the defaults.
 */
#include "train/train.h"

#include <stdio.h>
#include <string.h>

typedef long long wide; /* for messages */

/* "2, 4": the divisors of h that lie nearest to n, below and above. */
static const char *near_divisors(int64_t h, int64_t n, char *out, size_t size)
{
    int64_t below = CLV_MIN(n, h), above = n;
    while (below > 1 && h % below != 0)
        below--;
    while (above < h && h % above != 0)
        above++;
    if (above >= h && h % n != 0 && n > h)
        snprintf(out, size, "%lld", (wide)below);
    else
        snprintf(out, size, "%lld or %lld", (wide)below, (wide)above);
    return out;
}

static clv_status need_sizes(const clv_options *o)
{
    const char *missing = !o->is_set.num_layers            ? "num-layers"
                          : !o->is_set.hidden_size         ? "hidden-size"
                          : !o->is_set.num_attention_heads ? "num-attention-heads"
                                                           : NULL;
    if (missing == NULL)
        return clv_ok();
    return clv_fail(CLV_BAD_USAGE,
                    "no --%s: a new model needs --num-layers, --hidden-size and --num-attention-heads, or "
                    "--model-config FOLDER",
                    missing);
}

static clv_status take_heads(const clv_options *o, clv_config *c)
{
    c->heads = o->num_attention_heads;
    c->kv_heads = o->is_set.num_query_groups ? o->num_query_groups : c->heads;
    c->head_dim = o->is_set.kv_channels ? o->kv_channels : c->hidden / c->heads;
    char near[64];
    if (!o->is_set.kv_channels && c->hidden % c->heads != 0)
        return clv_fail(CLV_BAD_INPUT,
                        "hidden-size %lld is not a multiple of num-attention-heads %lld; use %s heads, or give "
                        "--kv-channels",
                        (wide)c->hidden, (wide)c->heads, near_divisors(c->hidden, c->heads, near, sizeof near));
    return clv_ok();
}

static clv_status take_mlp(const clv_options *o, clv_config *c)
{
    const clv_act acts[] = {CLV_GELU, CLV_GELU_TANH, CLV_RELU, CLV_SWIGLU};
    for (size_t i = 0; i < CLV_COUNT(acts); i++)
        if (strcmp(o->activation, clv_act_name(acts[i])) == 0)
            c->act = acts[i];
    const int64_t preset = c->act == CLV_SWIGLU ? c->hidden * 8 / 3 / 64 * 64 : c->hidden * 4;
    c->ffn = o->is_set.ffn_hidden_size ? o->ffn_hidden_size : preset;
    if (c->ffn == 0)
        return clv_fail(CLV_BAD_INPUT,
                        "swiglu's default width, 8/3 of hidden-size %lld rounded down to a multiple of 64, is 0; give "
                        "--ffn-hidden-size",
                        (wide)c->hidden);
    return clv_ok();
}

static clv_status take_positions(const clv_options *o, clv_config *c)
{
    const char *type = o->position_embedding_type;
    c->position = strcmp(type, "rope") == 0 ? CLV_POS_ROPE : strcmp(type, "none") == 0 ? CLV_POS_NONE : CLV_POS_LEARNED;
    c->max_positions = o->is_set.max_position_embeddings ? o->max_position_embeddings
                       : o->is_set.seq_length            ? o->seq_length
                                                         : 1024;
    c->rope_base = o->rotary_base;
    c->rotary_percent = o->rotary_percent;
    const bool llama3 = o->is_set.rope_scaling_factor;
    if (llama3 && o->is_set.rotary_seq_len_interpolation_factor)
        return clv_fail(CLV_BAD_USAGE, "--rope-scaling-factor and --rotary-seq-len-interpolation-factor are two "
                                       "scalings of RoPE; keep one");
    if (llama3) {
        c->rope_kind = CLV_ROPE_LLAMA3;
        c->rope_factor = o->rope_scaling_factor;
    } else if (o->is_set.rotary_seq_len_interpolation_factor) {
        c->rope_kind = CLV_ROPE_LINEAR;
        c->rope_factor = o->rotary_seq_len_interpolation_factor;
    }
    return clv_ok();
}

static void take_rest(const clv_options *o, clv_config *c)
{
    c->norm = strcmp(o->normalization, "RMSNorm") == 0 ? CLV_RMSNORM : CLV_LAYERNORM;
    c->norm_eps = o->norm_epsilon;
    c->qk_norm = o->qk_layernorm;
    c->bias_proj = c->bias_fc1 = c->bias_fc2 = strcmp(o->bias, "all") == 0;
    c->bias_qkv = strcmp(o->bias, "none") != 0;
    c->tied = !o->untie_embeddings_and_output_weights;
    c->window = o->window_size;
}

static clv_status from_options(const clv_options *o, clv_config *c)
{
    CLV_TRY(need_sizes(o));
    *c = clv_config_default();
    c->layers = o->num_layers;
    c->hidden = o->hidden_size;
    CLV_TRY(take_heads(o, c));
    CLV_TRY(take_mlp(o, c));
    CLV_TRY(take_positions(o, c));
    take_rest(o, c);
    return clv_ok();
}

static clv_status take_vocab(const clv_options *o, int64_t vocab, clv_config *c)
{
    if (c->vocab == 0)
        c->vocab = o->is_set.vocab_size ? o->vocab_size : vocab;
    if (c->vocab == 0)
        return clv_fail(CLV_BAD_USAGE, "the size of the vocabulary is not known; give --tokenizer-model or "
                                       "--vocab-size");
    if (c->vocab < vocab)
        return clv_fail(CLV_BAD_INPUT,
                        "the model has a vocabulary of %lld, the tokenizer has ids up to %lld; give "
                        "--vocab-size %lld or another tokenizer",
                        (wide)c->vocab, (wide)vocab - 1, (wide)vocab);
    return clv_ok();
}

clv_status clv_options_config(const clv_options *options, int64_t vocab, clv_config *out)
{
    const bool has_file = options->model_config != NULL;
    CLV_TRY(has_file ? clv_hf_config_read(out, options->model_config) : from_options(options, out));
    if (has_file)
        CLV_TRY(clv_within(clv_options_agree(options, out), "%s", options->model_config));
    CLV_TRY(take_vocab(options, vocab, out));
    if (!has_file || options->is_set.hidden_dropout)
        out->hidden_dropout = options->hidden_dropout;
    if (!has_file || options->is_set.attention_dropout)
        out->attention_dropout = options->attention_dropout;
    if (!has_file || options->is_set.init_method_std)
        out->init_std = options->init_method_std;
    CLV_TRY(clv_config_check(out));
    if (!has_file)
        snprintf(out->model_type, sizeof out->model_type, "%s", clv_hf_family_of(out));
    return clv_options_agree(options, out);
}

/* ---- agreement ----------------------------------------------------------------------------------------------------
 */

static clv_status same_i64(bool is_set, const char *name, int64_t given, int64_t has)
{
    if (!is_set || given == has)
        return clv_ok();
    return clv_fail(CLV_BAD_INPUT, "--%s is %lld, but the model has %lld; drop the option", name, (wide)given,
                    (wide)has);
}

static clv_status same_f64(bool is_set, const char *name, double given, double has)
{
    if (!is_set || given == has)
        return clv_ok();
    return clv_fail(CLV_BAD_INPUT, "--%s is %.9g, but the model has %.9g; drop the option", name, given, has);
}

static clv_status same_text(bool is_set, const char *name, const char *given, const char *has)
{
    if (!is_set || strcmp(given, has) == 0)
        return clv_ok();
    return clv_fail(CLV_BAD_INPUT, "--%s is %s, but the model has %s; drop the option", name, given, has);
}

static clv_status same_flag(bool is_set, const char *name, bool given, bool has)
{
    return same_text(is_set, name, given ? "on" : "off", has ? "on" : "off");
}

static clv_status sizes_agree(const clv_options *o, const clv_config *c)
{
    CLV_TRY(same_i64(o->is_set.num_layers, "num-layers", o->num_layers, c->layers));
    CLV_TRY(same_i64(o->is_set.hidden_size, "hidden-size", o->hidden_size, c->hidden));
    CLV_TRY(same_i64(o->is_set.ffn_hidden_size, "ffn-hidden-size", o->ffn_hidden_size, c->ffn));
    CLV_TRY(same_i64(o->is_set.num_attention_heads, "num-attention-heads", o->num_attention_heads, c->heads));
    CLV_TRY(same_i64(o->is_set.num_query_groups, "num-query-groups", o->num_query_groups, c->kv_heads));
    CLV_TRY(same_i64(o->is_set.kv_channels, "kv-channels", o->kv_channels, c->head_dim));
    CLV_TRY(same_i64(o->is_set.vocab_size, "vocab-size", o->vocab_size, c->vocab));
    CLV_TRY(same_i64(o->is_set.window_size, "window-size", o->window_size, c->window));
    return same_i64(o->is_set.max_position_embeddings, "max-position-embeddings", o->max_position_embeddings,
                    c->max_positions);
}

static clv_status positions_agree(const clv_options *o, const clv_config *c)
{
    const bool is_rope = c->position == CLV_POS_ROPE;
    CLV_TRY(same_text(o->is_set.position_embedding_type, "position-embedding-type", o->position_embedding_type,
                      clv_position_name(c->position)));
    CLV_TRY(same_f64(o->is_set.rotary_base && is_rope, "rotary-base", o->rotary_base, c->rope_base));
    CLV_TRY(same_f64(o->is_set.rotary_percent && is_rope, "rotary-percent", o->rotary_percent, c->rotary_percent));
    CLV_TRY(same_f64(o->is_set.rope_scaling_factor, "rope-scaling-factor", o->rope_scaling_factor,
                     c->rope_kind == CLV_ROPE_LLAMA3 ? c->rope_factor : 1.0));
    CLV_TRY(same_f64(o->is_set.rotary_seq_len_interpolation_factor, "rotary-seq-len-interpolation-factor",
                     o->rotary_seq_len_interpolation_factor, c->rope_kind == CLV_ROPE_LINEAR ? c->rope_factor : 1.0));
    if (o->is_set.seq_length && c->position != CLV_POS_NONE && o->seq_length > c->max_positions)
        return clv_fail(CLV_BAD_INPUT, "--seq-length is %lld, but the model has positions for %lld; use at most that",
                        (wide)o->seq_length, (wide)c->max_positions);
    return clv_ok();
}

static clv_status parts_agree(const clv_options *o, const clv_config *c)
{
    const char *bias = c->bias_proj || c->bias_fc1 || c->bias_fc2 ? "all" : c->bias_qkv ? "qkv" : "none";
    CLV_TRY(same_text(o->is_set.normalization, "normalization", o->normalization, clv_norm_kind_name(c->norm)));
    CLV_TRY(same_f64(o->is_set.norm_epsilon, "norm-epsilon", o->norm_epsilon, c->norm_eps));
    CLV_TRY(same_flag(o->is_set.qk_layernorm, "qk-layernorm", o->qk_layernorm, c->qk_norm));
    CLV_TRY(same_text(o->is_set.bias, "bias", o->bias, bias));
    CLV_TRY(same_text(o->is_set.activation, "activation", o->activation, clv_act_name(c->act)));
    return same_flag(o->is_set.untie_embeddings_and_output_weights, "untie-embeddings-and-output-weights",
                     o->untie_embeddings_and_output_weights, !c->tied);
}

clv_status clv_options_agree(const clv_options *options, const clv_config *config)
{
    CLV_TRY(sizes_agree(options, config));
    CLV_TRY(positions_agree(options, config));
    return parts_agree(options, config);
}

clv_status clv_options_recompute(const clv_options *o, clv_recompute *out)
{
    static const struct {
        const char *name;
        unsigned module;
    } rows[] = {{"core_attn", CLV_RECOMPUTE_CORE_ATTN},
                {"layernorm", CLV_RECOMPUTE_LAYERNORM},
                {"mlp_act", CLV_RECOMPUTE_MLP_ACT},
                {"mlp", CLV_RECOMPUTE_MLP}};
    const bool full = o->recompute_granularity != NULL && strcmp(o->recompute_granularity, "full") == 0;
    *out = (clv_recompute){.layers = o->recompute_num_layers};
    if (o->recompute_granularity == NULL && (o->recompute_method != NULL || o->recompute_modules.count > 0))
        return clv_fail(CLV_BAD_USAGE, "--recompute-method and --recompute-modules need --recompute-granularity");
    if (full && o->recompute_modules.count > 0)
        return clv_fail(CLV_BAD_USAGE, "--recompute-modules is for --recompute-granularity selective");
    if (full)
        out->method = o->recompute_method != NULL && strcmp(o->recompute_method, "block") == 0 ? CLV_RECOMPUTE_BLOCK
                                                                                               : CLV_RECOMPUTE_UNIFORM;
    else if (o->recompute_method != NULL)
        return clv_fail(CLV_BAD_USAGE, "--recompute-method is for --recompute-granularity full");
    if (o->recompute_granularity != NULL && !full && o->recompute_modules.count == 0)
        out->modules = CLV_RECOMPUTE_CORE_ATTN;
    for (size_t i = 0; i < CLV_COUNT(rows); i++)
        if (clv_list_has(&o->recompute_modules, rows[i].name))
            out->modules |= rows[i].module;
    return clv_ok();
}
