/* Names and shapes against the golden cases' files: every tensor of a file is stated by the records, and no other. */
#include "format/format.h"
#include "model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

typedef struct fixture { /* the records of a model; no memory behind them */
    clv_arena weights, grads;
    clv_comm *world;
    clv_mesh *mesh;
    clv_gpt model;
} fixture;

static fixture fixture_open(const clv_config *config)
{
    fixture f = {.weights = clv_arena_counting("weights"), .grads = clv_arena_counting("grads")};
    const clv_model_options options = {
        .vocab_divisor = 128, .layers = config->layers, .has_embedding = true, .has_head = true};
    f.world = clv_comm_self_open();
    assert_int_equal(clv_mesh_create(&f.mesh, f.world, &(clv_layout){.tp = 1}).code, CLV_OK);
    clv_gpt_create(&f.model, config, &options, f.mesh, &f.weights, &f.grads);
    return f;
}

static void fixture_close(fixture *f)
{
    clv_gpt_destroy(&f->model);
    clv_mesh_destroy(f->mesh);
    clv_comm_world_close(f->world);
}

static int64_t elements(const clv_file_slot *slot)
{
    return slot->dim[0] * (slot->ndim > 1 ? slot->dim[1] : 1);
}

static void compare(const char *name)
{
    char folder[512];
    clv_config config;
    clv_safetensors *st;
    snprintf(folder, sizeof folder, "%s/%s", CLEAVE_GOLDEN, name);
    assert_int_equal(clv_hf_config_read(&config, folder).code, CLV_OK);
    assert_int_equal(clv_safetensors_open(&st, folder).code, CLV_OK);
    fixture f = fixture_open(&config);

    int64_t stated = 0, held = 0;
    for (size_t i = 0; i < f.model.param_count; i++) {
        const clv_param *p = &f.model.params[i];
        const clv_file_slot slot = clv_family_slot(&config, p);
        const clv_st_tensor *t = clv_safetensors_find(st, slot.name);
        if (t == NULL)
            fail_msg("%s: no tensor %s for %s", name, slot.name, p->name);
        assert_int_equal(t->ndim, slot.ndim);
        for (int k = 0; k < t->ndim; k++)
            assert_int_equal(t->dim[k], slot.dim[k]);
        assert_false(clv_family_ignores(&config, slot.name));
        stated += p->whole[0] * (p->ndim > 1 ? p->whole[1] : 1);
        assert_true(slot.offset + p->whole[0] <= slot.dim[slot.transposed ? 1 : 0]);
        if (slot.offset == 0)
            held += elements(&slot);
    }
    int64_t in_file = 0;
    for (size_t i = 0; i < clv_safetensors_count(st); i++)
        in_file += (int64_t)clv_safetensors_at(st, i)->bytes / 4;
    assert_int_equal(stated, in_file); /* every element once: nothing is left over in the file */
    assert_int_equal(held, in_file);
    fixture_close(&f);
    clv_safetensors_close(st);
}

static void golden(void **state)
{
    (void)state;
    static const char *const cases[] = {"gpt2-tiny",  "gpt2-deep-tied", "llama-gqa",
                                        "llama-deep", "llama3-rope",    "llama-mha-tied-smoothing",
                                        "qwen2-tiny", "qwen3-tiny",     "mistral-window"};
    for (size_t i = 0; i < CLV_COUNT(cases); i++)
        compare(cases[i]);
}

static clv_file_slot slot_of(const clv_config *config, const char *name, int64_t rows, int64_t columns)
{
    clv_param p = {.whole = {rows, columns}, .ndim = columns > 0 ? 2 : 1};
    snprintf(p.name, sizeof p.name, "%s", name);
    return clv_family_slot(config, &p);
}

static void expect(clv_file_slot slot, const char *name, int64_t rows, int64_t columns, int64_t offset)
{
    assert_string_equal(slot.name, name);
    assert_int_equal(slot.dim[0], rows);
    assert_int_equal(slot.dim[1], columns);
    assert_int_equal(slot.offset, offset);
}

static void conv1d(void **state)
{
    (void)state;
    clv_config c = clv_config_default();
    snprintf(c.model_type, sizeof c.model_type, "gpt2");
    clv_file_slot slot = slot_of(&c, "decoder.layers.11.self_attention.linear_v.weight", 8, 8);
    expect(slot, "h.11.attn.c_attn.weight", 8, 24, 16);
    assert_true(slot.transposed);
    slot = slot_of(&c, "decoder.layers.11.self_attention.linear_k.bias", 8, 0);
    expect(slot, "h.11.attn.c_attn.bias", 24, 0, 8);
    assert_false(slot.transposed);
    slot = slot_of(&c, "decoder.layers.0.self_attention.linear_proj.weight", 8, 8);
    expect(slot, "h.0.attn.c_proj.weight", 8, 8, 0);
    assert_true(slot.transposed); /* square: no shape would tell */
    slot = slot_of(&c, "decoder.layers.0.mlp.linear_fc2.weight", 8, 32);
    expect(slot, "h.0.mlp.c_proj.weight", 32, 8, 0);
    slot = slot_of(&c, "embedding.word_embeddings.weight", 67, 8);
    expect(slot, "wte.weight", 67, 8, 0);
    assert_false(slot.transposed);
}

static void any_shape(void **state)
{
    (void)state;
    clv_config c = clv_config_default();
    expect(slot_of(&c, "embedding.position_embeddings.weight", 16, 8), "model.embed_positions.weight", 16, 8, 0);
    expect(slot_of(&c, "decoder.layers.3.input_layernorm.bias", 8, 0), "model.layers.3.input_layernorm.bias", 8, 0, 0);
    expect(slot_of(&c, "decoder.layers.3.mlp.linear_fc1.bias", 32, 0), "model.layers.3.mlp.fc1.bias", 32, 0, 0);
    expect(slot_of(&c, "decoder.layers.3.mlp.linear_fc2.weight", 8, 32), "model.layers.3.mlp.fc2.weight", 8, 32, 0);
    c.act = CLV_SWIGLU;
    expect(slot_of(&c, "decoder.layers.3.mlp.linear_up.bias", 32, 0), "model.layers.3.mlp.up_proj.bias", 32, 0, 0);
    expect(slot_of(&c, "decoder.layers.3.mlp.linear_fc2.weight", 8, 32), "model.layers.3.mlp.down_proj.weight", 8, 32,
           0);
}

static void other_names(void **state)
{
    (void)state;
    clv_config c = clv_config_default();
    snprintf(c.model_type, sizeof c.model_type, "gpt2");
    assert_string_equal(clv_family_strip(&c, "transformer.h.0.ln_1.bias"), "h.0.ln_1.bias");
    assert_string_equal(clv_family_strip(&c, "h.0.ln_1.bias"), "h.0.ln_1.bias");
    assert_true(clv_family_ignores(&c, "h.0.attn.bias"));
    assert_true(clv_family_ignores(&c, "transformer.h.0.attn.masked_bias"));
    assert_false(clv_family_ignores(&c, "h.0.attn.c_attn.bias"));
    snprintf(c.model_type, sizeof c.model_type, "llama");
    assert_true(clv_family_ignores(&c, "model.layers.0.self_attn.rotary_emb.inv_freq"));
    assert_false(clv_family_ignores(&c, "model.layers.0.self_attn.q_proj.bias"));
    assert_string_equal(clv_family_strip(&c, "transformer.wte.weight"), "transformer.wte.weight");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden),
        cmocka_unit_test(conv1d),
        cmocka_unit_test(any_shape),
        cmocka_unit_test(other_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
