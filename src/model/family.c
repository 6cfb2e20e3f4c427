/* family.c - where each parameter lies in a Hugging Face folder: one table a family, a row a module.
 *
 * Canonical names are Megatron-LM's with q, k, v and gate, up as separate modules. A name is MODULE.weight or
 * MODULE.bias; a module of a layer stands behind "decoder.layers.N.". GPT-2 differs from all others in two ways: its
 * matrices are stored input x output ("Conv1D"), and q, k and v are the thirds of one tensor.
 *
 * A shape that no family can state ("cleave") has Llama's names, with biases where they exist, a position table and,
 * without a gate, fc1 and fc2.
 *
 * Source: huggingface/transformers, the models' modeling files; Megatron-LM, core/models/gpt.
 */
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct family_row {
    const char *module; /* canonical */
    const char *file;
    bool conv1d;     /* its matrix is stored transposed */
    int part, parts; /* this is part `part` of `parts` equal ones; parts 0: all */
} family_row;

typedef struct family {
    const char *layer;  /* in front of a layer's number in a file */
    const char *prefix; /* in front of all names of some files; NULL: none */
    const family_row *rows;
    size_t count;
    const char *const *buffers; /* ends of names that carry nothing; NULL ends the list */
} family;

static const family_row gpt2_rows[] = {
    {"embedding.word_embeddings", "wte", false, 0, 0},
    {"embedding.position_embeddings", "wpe", false, 0, 0},
    {"input_layernorm", "ln_1", false, 0, 0},
    {"self_attention.linear_q", "attn.c_attn", true, 0, 3},
    {"self_attention.linear_k", "attn.c_attn", true, 1, 3},
    {"self_attention.linear_v", "attn.c_attn", true, 2, 3},
    {"self_attention.linear_proj", "attn.c_proj", true, 0, 0},
    {"pre_mlp_layernorm", "ln_2", false, 0, 0},
    {"mlp.linear_fc1", "mlp.c_fc", true, 0, 0},
    {"mlp.linear_fc2", "mlp.c_proj", true, 0, 0},
    {"decoder.final_layernorm", "ln_f", false, 0, 0},
    {"output_layer", "lm_head", false, 0, 0},
};

static const family_row llama_rows[] = {
    {"embedding.word_embeddings", "model.embed_tokens", false, 0, 0},
    {"embedding.position_embeddings", "model.embed_positions", false, 0, 0},
    {"input_layernorm", "input_layernorm", false, 0, 0},
    {"self_attention.linear_q", "self_attn.q_proj", false, 0, 0},
    {"self_attention.linear_k", "self_attn.k_proj", false, 0, 0},
    {"self_attention.linear_v", "self_attn.v_proj", false, 0, 0},
    {"self_attention.q_layernorm", "self_attn.q_norm", false, 0, 0},
    {"self_attention.k_layernorm", "self_attn.k_norm", false, 0, 0},
    {"self_attention.linear_proj", "self_attn.o_proj", false, 0, 0},
    {"pre_mlp_layernorm", "post_attention_layernorm", false, 0, 0},
    {"mlp.linear_gate", "mlp.gate_proj", false, 0, 0},
    {"mlp.linear_up", "mlp.up_proj", false, 0, 0},
    {"mlp.linear_fc2", "mlp.down_proj", false, 0, 0},
    {"decoder.final_layernorm", "model.norm", false, 0, 0},
    {"output_layer", "lm_head", false, 0, 0},
};

/* An MLP without a gate; only "cleave" has one under Llama's names. */
static const family_row plain_mlp_rows[] = {
    {"mlp.linear_fc1", "mlp.fc1", false, 0, 0},
    {"mlp.linear_fc2", "mlp.fc2", false, 0, 0},
};

/* Causal masks of old GPT-2 files, rope frequencies of old Llama files. */
static const char *const gpt2_buffers[] = {".attn.bias", ".attn.masked_bias", NULL};
static const char *const llama_buffers[] = {".rotary_emb.inv_freq", NULL};

static const family gpt2 = {"h.", "transformer.", gpt2_rows, CLV_COUNT(gpt2_rows), gpt2_buffers};
static const family llama = {"model.layers.", NULL, llama_rows, CLV_COUNT(llama_rows), llama_buffers};

static const family *family_of(const clv_config *config)
{
    return strcmp(config->model_type, "gpt2") == 0 ? &gpt2 : &llama;
}

static const family_row *row_among(const family_row *rows, size_t count, const char *module, size_t length)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(rows[i].module) == length && memcmp(rows[i].module, module, length) == 0)
            return &rows[i];
    return NULL;
}

static const family_row *row_of(const clv_config *config, const char *module, size_t length)
{
    const family *f = family_of(config);
    const family_row *row = NULL;
    if (f == &llama && !clv_config_has_gate(config))
        row = row_among(plain_mlp_rows, CLV_COUNT(plain_mlp_rows), module, length);
    return row != NULL ? row : row_among(f->rows, f->count, module, length);
}

/* "decoder.layers.12.mlp.linear_fc1.weight" -> the number's text, and what follows it; NULL outside the layers. */
static const char *split_layer(const char *name, const char **number, int *digits)
{
    static const char start[] = "decoder.layers.";
    if (strncmp(name, start, sizeof start - 1) != 0)
        return NULL;
    *number = name + sizeof start - 1;
    *digits = (int)strspn(*number, "0123456789");
    return *number + *digits + 1;
}

clv_file_slot clv_family_slot(const clv_config *config, const clv_param *p)
{
    const char *number = "";
    int digits = 0;
    const char *in_layer = split_layer(p->name, &number, &digits);
    const char *module = in_layer != NULL ? in_layer : p->name;
    const char *kind = strrchr(module, '.'); /* ".weight" or ".bias" */
    CLV_CHECK(kind != NULL, "%s has no module", p->name);
    const family_row *row = row_of(config, module, (size_t)(kind - module));
    CLV_CHECK(row != NULL, "a model of type %s has no place for %s", config->model_type, p->name);

    const int64_t rows = p->whole[0] * CLV_MAX(row->parts, 1);
    clv_file_slot slot = {.dim = {rows, p->ndim > 1 ? p->whole[1] : 0},
                          .ndim = p->ndim,
                          .transposed = row->conv1d && p->ndim > 1,
                          .offset = row->part * p->whole[0]};
    if (slot.transposed) {
        slot.dim[0] = p->whole[1];
        slot.dim[1] = rows;
    }
    const int n =
        snprintf(slot.name, sizeof slot.name, "%s%.*s%s%s%s", in_layer != NULL ? family_of(config)->layer : "", digits,
                 number, in_layer != NULL ? "." : "", row->file, kind);
    CLV_CHECK(n > 0 && (size_t)n < sizeof slot.name, "the name of %s in a file is too long", p->name);
    return slot;
}

bool clv_family_ignores(const clv_config *config, const char *name)
{
    const size_t length = strlen(name);
    for (const char *const *end = family_of(config)->buffers; *end != NULL; end++)
        if (length > strlen(*end) && strcmp(name + length - strlen(*end), *end) == 0)
            return true;
    return false;
}

const char *clv_family_strip(const clv_config *config, const char *name)
{
    const char *prefix = family_of(config)->prefix;
    const size_t n = prefix != NULL ? strlen(prefix) : 0;
    return n > 0 && strncmp(name, prefix, n) == 0 ? name + n : name;
}
