/* hf_fields.c - the table of config.json: families, keys, fields. A new key is a new row.
 *
 * Family "cleave" is ours: it holds every field under its own name, for shapes that no other family can state.
 * Source: transformers, models/{gpt2,llama,mistral,qwen2,qwen3}/configuration_*.py.
 */
#include "format/hf_config_internal.h"

#include <string.h>

const clv_hf_family clv_hf_families[CLV_HF_FAMILIES] = {
    {CLV_HF_LLAMA, "llama", "LlamaForCausalLM"}, {CLV_HF_MISTRAL, "mistral", "MistralForCausalLM"},
    {CLV_HF_QWEN2, "qwen2", "Qwen2ForCausalLM"}, {CLV_HF_QWEN3, "qwen3", "Qwen3ForCausalLM"},
    {CLV_HF_GPT2, "gpt2", "GPT2LMHeadModel"},    {CLV_HF_CLEAVE, "cleave", "CleaveForCausalLM"},
};

const clv_hf_family *clv_hf_family_find(const char *model_type)
{
    for (size_t i = 0; i < CLV_HF_FAMILIES; i++)
        if (strcmp(clv_hf_families[i].model_type, model_type) == 0)
            return &clv_hf_families[i];
    return NULL;
}

static const clv_hf_choice gpt2_acts[] = {
    {"gelu_new", CLV_GELU_TANH}, {"gelu_pytorch_tanh", CLV_GELU_TANH}, {"gelu", CLV_GELU}, {"relu", CLV_RELU}, {0}};
static const clv_hf_choice llama_acts[] = {{"silu", CLV_SWIGLU}, {"swish", CLV_SWIGLU}, {0}};
static const clv_hf_choice acts[] = {
    {"gelu", CLV_GELU}, {"gelu_tanh", CLV_GELU_TANH}, {"relu", CLV_RELU}, {"swiglu", CLV_SWIGLU}, {0}};
static const clv_hf_choice norms[] = {{"LayerNorm", CLV_LAYERNORM}, {"RMSNorm", CLV_RMSNORM}, {0}};
static const clv_hf_choice positions[] = {
    {"none", CLV_POS_NONE}, {"learned_absolute", CLV_POS_LEARNED}, {"rope", CLV_POS_ROPE}, {0}};
const clv_hf_choice clv_hf_rope_kinds[] = {
    {"default", CLV_ROPE_DEFAULT}, {"linear", CLV_ROPE_LINEAR}, {"llama3", CLV_ROPE_LLAMA3}, {0}};

/* Short names for the columns of the table. */
enum {
    GPT2 = CLV_HF_GPT2,
    LLAMA = CLV_HF_LLAMA,
    MISTRAL = CLV_HF_MISTRAL,
    QWEN = CLV_HF_QWENS,
    QWEN3 = CLV_HF_QWEN3,
    LLAMAS = CLV_HF_LLAMAS,
    CLEAVE = CLV_HF_CLEAVE,
    ANY = CLV_HF_ALL
};

#define AT(member) offsetof(clv_config, member)

const clv_hf_field clv_hf_fields[] = {
    {ANY, "vocab_size", NULL, CLV_HF_INTEGER, AT(vocab), NULL},
    {GPT2, "n_embd", "hidden_size", CLV_HF_INTEGER, AT(hidden), NULL},
    {GPT2, "n_layer", "num_hidden_layers", CLV_HF_INTEGER, AT(layers), NULL},
    {GPT2, "n_head", "num_attention_heads", CLV_HF_INTEGER, AT(heads), NULL},
    {GPT2, "n_inner", NULL, CLV_HF_DERIVED, AT(ffn), NULL},
    {GPT2, "n_positions", "max_position_embeddings", CLV_HF_INTEGER, AT(max_positions), NULL},
    {GPT2, "layer_norm_epsilon", NULL, CLV_HF_REAL, AT(norm_eps), NULL},
    {GPT2, "activation_function", NULL, CLV_HF_CHOICE, AT(act), gpt2_acts},
    {GPT2, "resid_pdrop", NULL, CLV_HF_REAL, AT(hidden_dropout), NULL},
    {GPT2, "attn_pdrop", NULL, CLV_HF_REAL, AT(attention_dropout), NULL},
    {LLAMAS | CLEAVE, "hidden_size", NULL, CLV_HF_INTEGER, AT(hidden), NULL},
    {LLAMAS | CLEAVE, "num_hidden_layers", NULL, CLV_HF_INTEGER, AT(layers), NULL},
    {LLAMAS | CLEAVE, "num_attention_heads", NULL, CLV_HF_INTEGER, AT(heads), NULL},
    {LLAMAS | CLEAVE, "num_key_value_heads", NULL, CLV_HF_DERIVED, AT(kv_heads), NULL},
    {LLAMAS | CLEAVE, "head_dim", NULL, CLV_HF_DERIVED, AT(head_dim), NULL},
    {LLAMAS | CLEAVE, "intermediate_size", NULL, CLV_HF_INTEGER, AT(ffn), NULL},
    {LLAMAS | CLEAVE, "max_position_embeddings", NULL, CLV_HF_INTEGER, AT(max_positions), NULL},
    {LLAMAS | CLEAVE, "attention_dropout", NULL, CLV_HF_REAL, AT(attention_dropout), NULL},
    {LLAMAS, "hidden_dropout", NULL, CLV_HF_SPARE, AT(hidden_dropout), NULL},
    {LLAMAS, "rms_norm_eps", NULL, CLV_HF_REAL, AT(norm_eps), NULL},
    {LLAMAS, "hidden_act", NULL, CLV_HF_CHOICE, AT(act), llama_acts},
    {LLAMA | QWEN3, "attention_bias", NULL, CLV_HF_FLAG, AT(bias_qkv), NULL},
    {LLAMA, "mlp_bias", NULL, CLV_HF_FLAG, AT(bias_fc1), NULL},
    {CLEAVE, "hidden_dropout", NULL, CLV_HF_REAL, AT(hidden_dropout), NULL},
    {CLEAVE, "norm", NULL, CLV_HF_CHOICE, AT(norm), norms},
    {CLEAVE, "norm_eps", NULL, CLV_HF_REAL, AT(norm_eps), NULL},
    {CLEAVE, "activation", NULL, CLV_HF_CHOICE, AT(act), acts},
    {CLEAVE, "position", NULL, CLV_HF_CHOICE, AT(position), positions},
    {CLEAVE, "rope_base", NULL, CLV_HF_REAL, AT(rope_base), NULL},
    {CLEAVE, "rotary_percent", NULL, CLV_HF_REAL, AT(rotary_percent), NULL},
    {CLEAVE, "rope_kind", NULL, CLV_HF_CHOICE, AT(rope_kind), clv_hf_rope_kinds},
    {CLEAVE, "rope_factor", NULL, CLV_HF_REAL, AT(rope_factor), NULL},
    {CLEAVE, "rope_low_freq", NULL, CLV_HF_REAL, AT(rope_low_freq), NULL},
    {CLEAVE, "rope_high_freq", NULL, CLV_HF_REAL, AT(rope_high_freq), NULL},
    {CLEAVE, "rope_original", NULL, CLV_HF_INTEGER, AT(rope_original), NULL},
    {CLEAVE, "qk_norm", NULL, CLV_HF_FLAG, AT(qk_norm), NULL},
    {CLEAVE, "bias_qkv", NULL, CLV_HF_FLAG, AT(bias_qkv), NULL},
    {CLEAVE, "bias_proj", NULL, CLV_HF_FLAG, AT(bias_proj), NULL},
    {CLEAVE, "bias_fc1", NULL, CLV_HF_FLAG, AT(bias_fc1), NULL},
    {CLEAVE, "bias_fc2", NULL, CLV_HF_FLAG, AT(bias_fc2), NULL},
    {CLEAVE, "window", NULL, CLV_HF_INTEGER, AT(window), NULL},
    {CLEAVE, "window_first", NULL, CLV_HF_INTEGER, AT(window_first), NULL},
    {MISTRAL | QWEN, "sliding_window", NULL, CLV_HF_DERIVED, AT(window), NULL},
    {QWEN, "max_window_layers", NULL, CLV_HF_INTEGER, AT(window_first), NULL},
    {ANY, "initializer_range", NULL, CLV_HF_REAL, AT(init_std), NULL},
    {ANY, "tie_word_embeddings", NULL, CLV_HF_FLAG, AT(tied), NULL},
    {ANY, "bos_token_id", NULL, CLV_HF_TOKEN, AT(bos), NULL},
    {ANY, "eos_token_id", NULL, CLV_HF_TOKEN, AT(eos), NULL},
};

const size_t clv_hf_field_count = CLV_COUNT(clv_hf_fields);
