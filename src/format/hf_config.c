/* hf_config.c - reading a model's shape from Hugging Face's config.json.
 *
 * hf_fields.c says which key is which field. What fits no row stands here: the defaults of a family, for keys that are
 * absent (files leave out what equals them); the rope settings, which moved between versions 4 and 5 of transformers;
 * the layers that use a sliding window; and what follows from other fields. What we cannot compute is refused by name.
 *
 * Rope: version 4 has "rope_theta" and "rope_scaling" at the top, version 5 one object "rope_parameters" with both. A
 * theta inside of the object counts before the one at the top.
 * Window: query i sees key j when i - window < j <= i. Qwen uses it in the layers from max_window_layers on.
 *
 * Source: transformers, configuration_*.py of the families, modeling_rope_utils.py.
 */
#include "format/hf_config_internal.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

typedef struct reader {
    clv_config *config;
    const clv_json *json;
    const char *where;
    const clv_hf_family *family;
} reader;

static bool is_of(const reader *r, unsigned families)
{
    return (r->family->bit & families) != 0;
}

/* ---- rows of the table ---- */

static clv_status read_integer(const reader *r, clv_node node, const clv_hf_field *f, int64_t *out)
{
    const int64_t most = (int64_t)1 << 40, least = f->type == CLV_HF_DERIVED ? 1 : 0;
    int64_t value;
    if (clv_json_is(r->json, node, CLV_JSON_NULL)) {
        *out = f->type == CLV_HF_DERIVED ? 0 : *out;
        return clv_ok();
    }
    if (!clv_json_i64(r->json, node, &value) || value < least || value > most)
        return clv_fail(CLV_BAD_INPUT, "%s: key \"%s\" must be an integer from %lld to 2^40", r->where, f->key,
                        (long long)least);
    *out = value;
    return clv_ok();
}

static clv_status read_token(const reader *r, clv_node node, const clv_hf_field *f, int64_t *out)
{
    *out = -1;
    if (clv_json_is(r->json, node, CLV_JSON_ARRAY))
        node = clv_json_first(r->json, node);
    if (node == CLV_NO_NODE || clv_json_is(r->json, node, CLV_JSON_NULL) || clv_json_i64(r->json, node, out))
        return clv_ok();
    return clv_fail(CLV_BAD_INPUT, "%s: key \"%s\" must be an integer, a list of integers or null", r->where, f->key);
}

static clv_status read_choice(const reader *r, clv_node node, const char *key, const clv_hf_choice *choices, int *out)
{
    const char *name = clv_json_string(r->json, node, NULL);
    char known[128] = "";
    for (const clv_hf_choice *c = choices; c->name != NULL; c++) {
        if (name != NULL && strcmp(c->name, name) == 0) {
            *out = c->value;
            return clv_ok();
        }
        const size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", used > 0 ? ", " : "", c->name);
    }
    return clv_fail(CLV_BAD_INPUT, "%s: %s \"%.60s\" is not supported for model_type %s; supported: %s", r->where, key,
                    name != NULL ? name : "(no string)", r->family->model_type, known);
}

static clv_status read_field(const reader *r, const clv_hf_field *f)
{
    const char *key = f->key;
    clv_node node = clv_json_get(r->json, CLV_JSON_ROOT, key);
    if (node == CLV_NO_NODE && f->alias != NULL)
        node = clv_json_get(r->json, CLV_JSON_ROOT, key = f->alias);
    if (node == CLV_NO_NODE)
        return clv_ok();
    char *at = (char *)r->config + f->offset;
    switch (f->type) {
    case CLV_HF_INTEGER:
    case CLV_HF_DERIVED:
        return read_integer(r, node, f, (int64_t *)(void *)at);
    case CLV_HF_TOKEN:
        return read_token(r, node, f, (int64_t *)(void *)at);
    case CLV_HF_REAL:
    case CLV_HF_SPARE:
        return clv_json_opt_f64(r->json, CLV_JSON_ROOT, key, (double *)(void *)at);
    case CLV_HF_FLAG:
        return clv_json_opt_bool(r->json, CLV_JSON_ROOT, key, (bool *)at);
    case CLV_HF_CHOICE:
        break;
    }
    if (clv_json_is(r->json, node, CLV_JSON_NULL))
        return clv_ok();
    return read_choice(r, node, key, f->choices, (int *)(void *)at);
}

static clv_status read_fields(const reader *r)
{
    for (size_t i = 0; i < clv_hf_field_count; i++)
        if (is_of(r, clv_hf_fields[i].families))
            CLV_TRY(read_field(r, &clv_hf_fields[i]));
    return clv_ok();
}

/* ---- rope ---- */

/* A non-empty object under `key`, or CLV_NO_NODE. */
static clv_status rope_object(const reader *r, const char *key, clv_node *out)
{
    const clv_node node = clv_json_get(r->json, CLV_JSON_ROOT, key);
    *out = CLV_NO_NODE;
    if (node == CLV_NO_NODE || clv_json_is(r->json, node, CLV_JSON_NULL))
        return clv_ok();
    if (!clv_json_is(r->json, node, CLV_JSON_OBJECT))
        return clv_fail(CLV_BAD_INPUT, "%s: key \"%s\" must be an object or null", r->where, key);
    if (clv_json_get(r->json, node, "full_attention") != CLV_NO_NODE ||
        clv_json_get(r->json, node, "sliding_attention") != CLV_NO_NODE)
        return clv_fail(CLV_BAD_INPUT, "%s: %s differ by kind of layer, which is not supported", r->where, key);
    if (clv_json_count(r->json, node) > 0)
        *out = node;
    return clv_ok();
}

static clv_status needed(const reader *r, clv_node rope, const char *key)
{
    const clv_node node = clv_json_get(r->json, rope, key);
    if (node == CLV_NO_NODE || clv_json_is(r->json, node, CLV_JSON_NULL))
        return clv_fail(CLV_BAD_INPUT, "%s: rope kind %s needs the key \"%s\"", r->where,
                        clv_rope_kind_name(r->config->rope_kind), key);
    return clv_ok();
}

static clv_status read_scaling(const reader *r, clv_node rope)
{
    clv_config *c = r->config;
    if (c->rope_kind == CLV_ROPE_DEFAULT)
        return clv_ok();
    CLV_TRY(needed(r, rope, "factor"));
    CLV_TRY(clv_json_opt_f64(r->json, rope, "factor", &c->rope_factor));
    if (c->rope_kind == CLV_ROPE_LINEAR)
        return clv_ok();
    CLV_TRY(needed(r, rope, "low_freq_factor"));
    CLV_TRY(needed(r, rope, "high_freq_factor"));
    CLV_TRY(needed(r, rope, "original_max_position_embeddings"));
    CLV_TRY(clv_json_opt_f64(r->json, rope, "low_freq_factor", &c->rope_low_freq));
    CLV_TRY(clv_json_opt_f64(r->json, rope, "high_freq_factor", &c->rope_high_freq));
    CLV_TRY(clv_json_opt_i64(r->json, rope, "original_max_position_embeddings", &c->rope_original));
    if (c->rope_low_freq > 0.0 && c->rope_original > 0)
        return clv_ok();
    return clv_fail(CLV_BAD_INPUT,
                    "%s: low_freq_factor %g and original_max_position_embeddings %lld must both be above 0", r->where,
                    c->rope_low_freq, (long long)c->rope_original);
}

static clv_status refuse_partial(const reader *r, clv_node object)
{
    double part = 1.0;
    CLV_TRY(clv_json_opt_f64(r->json, object, "partial_rotary_factor", &part));
    if (part == 1.0)
        return clv_ok();
    return clv_fail(CLV_BAD_INPUT, "%s: partial_rotary_factor %g is not supported for model_type %s", r->where, part,
                    r->family->model_type);
}

static clv_status read_rope(const reader *r)
{
    clv_node rope;
    CLV_TRY(clv_json_opt_f64(r->json, CLV_JSON_ROOT, "rope_theta", &r->config->rope_base));
    CLV_TRY(refuse_partial(r, CLV_JSON_ROOT));
    CLV_TRY(rope_object(r, "rope_parameters", &rope));
    if (rope == CLV_NO_NODE)
        CLV_TRY(rope_object(r, "rope_scaling", &rope));
    if (rope == CLV_NO_NODE)
        return clv_ok();
    CLV_TRY(clv_json_opt_f64(r->json, rope, "rope_theta", &r->config->rope_base));
    CLV_TRY(refuse_partial(r, rope));
    clv_node kind = clv_json_get(r->json, rope, "rope_type");
    if (kind == CLV_NO_NODE)
        kind = clv_json_get(r->json, rope, "type");
    int value = CLV_ROPE_DEFAULT;
    if (kind != CLV_NO_NODE)
        CLV_TRY(read_choice(r, kind, "rope kind", clv_hf_rope_kinds, &value));
    r->config->rope_kind = (clv_rope_kind)value;
    return read_scaling(r, rope);
}

/* ---- sliding window ---- */

/* "layer_types", where given, must say what the other keys say. */
static clv_status check_layer_types(const reader *r)
{
    const clv_node types = clv_json_get(r->json, CLV_JSON_ROOT, "layer_types");
    if (types == CLV_NO_NODE || clv_json_is(r->json, types, CLV_JSON_NULL) || r->config->window == 0)
        return clv_ok();
    int64_t layer = 0;
    for (clv_node at = clv_json_first(r->json, types); at != CLV_NO_NODE; at = clv_json_next(r->json, at), layer++) {
        const char *expected = layer >= r->config->window_first ? "sliding_attention" : "full_attention";
        const char *type = clv_json_string(r->json, at, NULL);
        if (type == NULL || strcmp(type, expected) != 0)
            return clv_fail(CLV_BAD_INPUT,
                            "%s: layer_types gives layer %lld \"%.40s\"; only windows from one layer on "
                            "are supported, here %s from max_window_layers %lld",
                            r->where, (long long)layer, type != NULL ? type : "(no string)", expected,
                            (long long)r->config->window_first);
    }
    return clv_ok();
}

static clv_status read_window(const reader *r)
{
    clv_config *c = r->config;
    if (is_of(r, CLV_HF_QWENS)) {
        bool used = false;
        CLV_TRY(clv_json_opt_bool(r->json, CLV_JSON_ROOT, "use_sliding_window", &used));
        c->window = used ? c->window : 0;
        CLV_TRY(check_layer_types(r));
    }
    if (c->window == 0 || c->window_first >= c->layers)
        c->window = c->window_first = 0;
    return clv_ok();
}

/* ---- the families ---- */

static clv_config gpt2_default(void)
{
    clv_config c = clv_config_default();
    c.vocab = 50257;
    c.hidden = 768;
    c.layers = 12;
    c.heads = 12;
    c.max_positions = 1024;
    c.act = CLV_GELU_TANH;
    c.bias_qkv = c.bias_proj = c.bias_fc1 = c.bias_fc2 = true;
    c.hidden_dropout = c.attention_dropout = 0.1;
    c.bos = c.eos = 50256;
    return c;
}

static clv_config llama_default(void)
{
    clv_config c = clv_config_default();
    c.vocab = 32000;
    c.hidden = 4096;
    c.layers = 32;
    c.heads = 32;
    c.ffn = 11008;
    c.max_positions = 2048;
    c.norm = CLV_RMSNORM;
    c.norm_eps = 1e-6;
    c.act = CLV_SWIGLU;
    c.position = CLV_POS_ROPE;
    c.tied = false;
    c.bos = 1;
    c.eos = 2;
    return c;
}

/* What the configuration class sets for absent keys; a size of 0 is derived later. */
static clv_config family_default(unsigned family)
{
    if (family == CLV_HF_CLEAVE)
        return clv_config_default();
    if (family == CLV_HF_GPT2)
        return gpt2_default();
    clv_config c = llama_default();
    if (family == CLV_HF_MISTRAL) {
        c.ffn = 14336;
        c.kv_heads = 8;
        c.max_positions = 131072;
        c.window = 4096;
    }
    if ((family & CLV_HF_QWENS) != 0) {
        c.vocab = 151936;
        c.ffn = 22016;
        c.kv_heads = 32;
        c.max_positions = 32768;
        c.window = 4096;
        c.window_first = 28;
        c.bos = c.eos = -1;
        c.bias_qkv = family == CLV_HF_QWEN2;
        c.qk_norm = family == CLV_HF_QWEN3;
        c.head_dim = family == CLV_HF_QWEN3 ? 128 : 0;
    }
    return c;
}

/* Flags that change the mathematics in a way that we do not compute. */
static clv_status refuse_flags(const reader *r)
{
    static const struct {
        unsigned families;
        const char *key;
        bool supported; /* the only value; also the default */
    } flags[] = {
        {CLV_HF_GPT2, "scale_attn_weights", true},          {CLV_HF_GPT2, "scale_attn_by_inverse_layer_idx", false},
        {CLV_HF_GPT2, "add_cross_attention", false},        {CLV_HF_MISTRAL, "attention_bias", false},
        {CLV_HF_MISTRAL | CLV_HF_QWENS, "mlp_bias", false}, {CLV_HF_QWENS, "use_mrope", false},
    };
    for (size_t i = 0; i < CLV_COUNT(flags); i++) {
        bool value = flags[i].supported;
        if (!is_of(r, flags[i].families))
            continue;
        CLV_TRY(clv_json_opt_bool(r->json, CLV_JSON_ROOT, flags[i].key, &value));
        if (value != flags[i].supported)
            return clv_fail(CLV_BAD_INPUT, "%s: key \"%s\" is %s, which is not supported", r->where, flags[i].key,
                            value ? "true" : "false");
    }
    const clv_node quantization = clv_json_get(r->json, CLV_JSON_ROOT, "quantization_config");
    if (quantization != CLV_NO_NODE && !clv_json_is(r->json, quantization, CLV_JSON_NULL))
        return clv_fail(CLV_BAD_INPUT,
                        "%s: quantized weights (key \"quantization_config\") are not supported; use the "
                        "original model",
                        r->where);
    return clv_ok();
}

/* GPT-2 has one key for the embedding's dropout and one for the blocks'; here both are one number. */
static clv_status check_gpt2_dropout(const reader *r)
{
    double embedding = 0.1;
    CLV_TRY(clv_json_opt_f64(r->json, CLV_JSON_ROOT, "embd_pdrop", &embedding));
    if (embedding == r->config->hidden_dropout)
        return clv_ok();
    return clv_fail(CLV_BAD_INPUT, "%s: embd_pdrop %g differs from resid_pdrop %g; set both to the same value",
                    r->where, embedding, r->config->hidden_dropout);
}

/* Fields that follow from others. */
static clv_status derive(const reader *r)
{
    clv_config *c = r->config;
    if (c->kv_heads == 0)
        c->kv_heads = c->heads;
    if (c->head_dim == 0 && c->heads > 0) {
        if (c->hidden % c->heads != 0)
            return clv_fail(CLV_BAD_INPUT, "%s: hidden size %lld does not divide into %lld heads; state head_dim",
                            r->where, (long long)c->hidden, (long long)c->heads);
        c->head_dim = c->hidden / c->heads;
    }
    if (is_of(r, CLV_HF_GPT2) && c->ffn == 0)
        c->ffn = 4 * c->hidden;
    if (is_of(r, CLV_HF_LLAMA | CLV_HF_QWEN3))
        c->bias_proj = c->bias_qkv;
    if (is_of(r, CLV_HF_LLAMA))
        c->bias_fc2 = c->bias_fc1;
    if (c->bos < 0 || c->bos >= c->vocab) /* the class's default in a file with a small vocabulary, say */
        c->bos = -1;
    if (c->eos < 0 || c->eos >= c->vocab)
        c->eos = -1;
    return clv_ok();
}

static clv_status read_family(reader *r)
{
    const clv_node node = clv_json_get(r->json, CLV_JSON_ROOT, "model_type");
    if (!clv_json_is(r->json, node, CLV_JSON_STRING))
        return clv_fail(CLV_BAD_INPUT, "%s: key \"model_type\" is missing or no string", r->where);
    const char *name = clv_json_string(r->json, node, NULL);
    r->family = clv_hf_family_find(name);
    if (r->family == NULL)
        return clv_fail(CLV_BAD_INPUT,
                        "%s: model_type \"%.60s\" is not supported; supported: gpt2, llama, mistral, qwen2, qwen3, "
                        "cleave",
                        r->where, name);
    *r->config = family_default(r->family->bit);
    snprintf(r->config->model_type, sizeof r->config->model_type, "%s", r->family->model_type);
    return clv_ok();
}

clv_status clv_hf_config_parse(clv_config *out, const clv_json *json, const char *where)
{
    reader r = {.config = out, .json = json, .where = where};
    CLV_TRY(read_family(&r));
    CLV_TRY(refuse_flags(&r));
    CLV_TRY(read_fields(&r));
    if (is_of(&r, CLV_HF_LLAMAS))
        CLV_TRY(read_rope(&r));
    if (is_of(&r, CLV_HF_GPT2))
        CLV_TRY(check_gpt2_dropout(&r));
    CLV_TRY(read_window(&r));
    CLV_TRY(derive(&r));
    return clv_within(clv_config_check(out), "%s", where);
}

clv_status clv_hf_config_read(clv_config *out, const char *folder)
{
    char path[PATH_MAX];
    if (strlen(folder) + 16 > sizeof path)
        return clv_fail(CLV_BAD_INPUT, "path too long: %.200s", folder);
    clv_path_join(path, sizeof path, folder, "config.json");
    clv_json *json;
    CLV_TRY(clv_json_load(&json, path));
    const clv_status status = clv_hf_config_parse(out, json, path);
    clv_json_free(json);
    return status;
}
