/* hf_config_write.c - a model's shape as config.json, and the family that can state it.
 *
 * Text as transformers writes it: sorted keys, indented by two. Versions 4 and 5 of it read different keys for rope and
 * for the type of the weights; both are written.
 *
 * Which family states a shape exactly is found by doing it: state the shape as this family, read it back, compare.
 */
#include "format/hf_config_internal.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- JSON objects with sorted keys ---- */

enum { MEMBERS_MAX = 64 };

typedef struct member {
    const char *key;
    clv_text value;
} member;

typedef struct object {
    member members[MEMBERS_MAX];
    size_t count;
} object;

/* A new member; the caller adds its value to the text. */
static clv_text *member_of(object *o, const char *key)
{
    CLV_CHECK(o->count < MEMBERS_MAX, "more than %d keys, at %s", MEMBERS_MAX, key);
    o->members[o->count] = (member){.key = key};
    return &o->members[o->count++].value;
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const member *)a)->key, ((const member *)b)->key);
}

/* Appends the object as text, its closing brace `indent` columns in, and frees its values. */
static void object_end(object *o, int indent, clv_text *out)
{
    qsort(o->members, o->count, sizeof o->members[0], by_key);
    clv_text_printf(out, "{");
    for (size_t i = 0; i < o->count; i++) {
        member *m = &o->members[i];
        clv_text_printf(out, "%s\n%*s\"%s\": %s", i > 0 ? "," : "", indent + 2, "", m->key, m->value.data);
        clv_text_free(&m->value);
    }
    clv_text_printf(out, "\n%*s}", indent, "");
}

/* ---- the members of a config ---- */

static const char *choice_name(const clv_hf_choice *choices, int value)
{
    for (const clv_hf_choice *c = choices; c->name != NULL; c++)
        if (c->value == value)
            return c->name;
    return NULL;
}

static void add_field(object *o, const clv_config *c, const clv_hf_field *f)
{
    const char *at = (const char *)c + f->offset;
    const int64_t integer = f->type <= CLV_HF_TOKEN ? *(const int64_t *)(const void *)at : 0;
    const bool null = (f->type == CLV_HF_DERIVED && integer == 0) || (f->type == CLV_HF_TOKEN && integer < 0);
    if (f->type == CLV_HF_SPARE && *(const double *)(const void *)at == 0.0)
        return;
    clv_text *value = member_of(o, f->key);
    if (f->type == CLV_HF_CHOICE) {
        const char *name = choice_name(f->choices, *(const int *)(const void *)at);
        if (name != NULL)
            clv_json_add_string(value, name, strlen(name));
        else
            clv_text_printf(value, "null"); /* not of this family: reading it back gives another shape */
    } else if (f->type == CLV_HF_FLAG) {
        clv_text_printf(value, "%s", *(const bool *)at ? "true" : "false");
    } else if (f->type == CLV_HF_REAL || f->type == CLV_HF_SPARE) {
        clv_json_add_number(value, *(const double *)(const void *)at);
    } else if (null) {
        clv_text_printf(value, "null");
    } else {
        clv_text_printf(value, "%lld", (long long)integer);
    }
}

/* The object of version 5, with the base, or of version 4, without. */
static void add_rope_object(object *o, const char *key, const clv_config *c, bool with_base)
{
    object rope = {.count = 0};
    if (with_base)
        clv_json_add_number(member_of(&rope, "rope_theta"), c->rope_base);
    clv_text_printf(member_of(&rope, "rope_type"), "\"%s\"", choice_name(clv_hf_rope_kinds, (int)c->rope_kind));
    if (c->rope_kind != CLV_ROPE_DEFAULT)
        clv_json_add_number(member_of(&rope, "factor"), c->rope_factor);
    if (c->rope_kind == CLV_ROPE_LLAMA3) {
        clv_json_add_number(member_of(&rope, "low_freq_factor"), c->rope_low_freq);
        clv_json_add_number(member_of(&rope, "high_freq_factor"), c->rope_high_freq);
        clv_text_printf(member_of(&rope, "original_max_position_embeddings"), "%lld", (long long)c->rope_original);
    }
    object_end(&rope, 2, member_of(o, key));
}

static void add_rope(object *o, const clv_config *c)
{
    clv_json_add_number(member_of(o, "rope_theta"), c->rope_base);
    add_rope_object(o, "rope_parameters", c, true);
    if (c->rope_kind == CLV_ROPE_DEFAULT)
        clv_text_printf(member_of(o, "rope_scaling"), "null");
    else
        add_rope_object(o, "rope_scaling", c, false);
}

static void add_shape(object *o, const clv_config *c, const clv_hf_family *family)
{
    clv_text_printf(member_of(o, "model_type"), "\"%s\"", family->model_type);
    clv_text_printf(member_of(o, "architectures"), "[\n    \"%s\"\n  ]", family->architecture);
    for (size_t i = 0; i < clv_hf_field_count; i++)
        if ((clv_hf_fields[i].families & family->bit) != 0)
            add_field(o, c, &clv_hf_fields[i]);
    if (family->bit == CLV_HF_GPT2)
        clv_json_add_number(member_of(o, "embd_pdrop"), c->hidden_dropout);
    if ((family->bit & CLV_HF_QWENS) != 0)
        clv_text_printf(member_of(o, "use_sliding_window"), "%s", c->window > 0 ? "true" : "false");
    if ((family->bit & CLV_HF_LLAMAS) != 0)
        add_rope(o, c);
}

/* ---- the family of a shape ---- */

/* The same shape with one value in each field that its other fields make irrelevant. */
static clv_config canonical(const clv_config *config)
{
    const clv_config standard = clv_config_default();
    clv_config c = *config;
    if (c.position != CLV_POS_ROPE) {
        c.rope_base = standard.rope_base;
        c.rotary_percent = standard.rotary_percent;
        c.rope_kind = CLV_ROPE_DEFAULT;
    }
    if (c.rope_kind == CLV_ROPE_DEFAULT)
        c.rope_factor = standard.rope_factor;
    if (c.rope_kind != CLV_ROPE_LLAMA3) {
        c.rope_low_freq = standard.rope_low_freq;
        c.rope_high_freq = standard.rope_high_freq;
        c.rope_original = standard.rope_original;
    }
    if (c.window == 0 || c.window_first >= c.layers)
        c.window = c.window_first = 0;
    c.bos = c.bos < c.vocab ? CLV_MAX(c.bos, -1) : -1;
    c.eos = c.eos < c.vocab ? CLV_MAX(c.eos, -1) : -1;
    return c;
}

static clv_text state_shape(const clv_config *config, const clv_hf_family *family)
{
    object o = {.count = 0};
    clv_text text = {0};
    add_shape(&o, config, family);
    object_end(&o, 0, &text);
    return text;
}

/* Every field is a key of family "cleave", and numbers are written exactly: equal texts are equal shapes. */
static bool same_shape(const clv_config *a, const clv_config *b)
{
    const clv_hf_family *plain = clv_hf_family_find("cleave");
    clv_text x = state_shape(a, plain), y = state_shape(b, plain);
    const bool same = strcmp(x.data, y.data) == 0;
    clv_text_free(&x);
    clv_text_free(&y);
    return same;
}

static bool family_states(const clv_hf_family *family, const clv_config *shape)
{
    clv_config back;
    clv_json *json = NULL;
    clv_text text = state_shape(shape, family);
    const bool read = clv_json_parse(&json, text.data, text.length, "shape").code == CLV_OK &&
                      clv_hf_config_parse(&back, json, "shape").code == CLV_OK;
    clv_json_free(json);
    clv_text_free(&text);
    return read && same_shape(&back, shape);
}

const char *clv_hf_family_of(const clv_config *config)
{
    const clv_config shape = canonical(config);
    const clv_hf_family *own = clv_hf_family_find(config->model_type);
    if (own != NULL && own->bit != CLV_HF_CLEAVE && family_states(own, &shape))
        return own->model_type;
    for (size_t i = 0; i < CLV_HF_FAMILIES; i++)
        if (family_states(&clv_hf_families[i], &shape))
            return clv_hf_families[i].model_type;
    return "cleave";
}

/* ---- files ---- */

static clv_status write_object(object *o, const char *folder, const char *name)
{
    char path[PATH_MAX];
    clv_text text = {0};
    object_end(o, 0, &text);
    clv_text_add(&text, "\n", 1);
    clv_path_join(path, sizeof path, folder, name);
    const clv_status status = clv_file_write_atomic(path, text.data, text.length);
    clv_text_free(&text);
    return status;
}

clv_status clv_hf_config_write(const clv_config *config, const char *folder, clv_dtype dtype)
{
    static const char *const dtypes[CLV_DTYPES] = {
        [CLV_F32] = "float32", [CLV_BF16] = "bfloat16", [CLV_F16] = "float16"};
    CLV_CHECK(dtype < CLV_DTYPES && dtypes[dtype] != NULL, "dtype %d is no type of weights", (int)dtype);
    object o = {.count = 0};
    add_shape(&o, config, clv_hf_family_find(clv_hf_family_of(config)));
    clv_text_printf(member_of(&o, "torch_dtype"), "\"%s\"", dtypes[dtype]);
    clv_text_printf(member_of(&o, "dtype"), "\"%s\"", dtypes[dtype]);
    CLV_TRY(write_object(&o, folder, "config.json"));

    object generation = {.count = 0};
    if (config->bos >= 0)
        clv_text_printf(member_of(&generation, "bos_token_id"), "%lld", (long long)config->bos);
    if (config->eos >= 0)
        clv_text_printf(member_of(&generation, "eos_token_id"), "%lld", (long long)config->eos);
    return generation.count > 0 ? write_object(&generation, folder, "generation_config.json") : clv_ok();
}
