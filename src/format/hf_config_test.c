/* hf_config_test.c - every family's defaults, both places of the rope settings, windows, refusals, and round trips. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/format.h"

static char folder[64];

static int set_up(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/hf_config_test.XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int tear_down(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static clv_status read_text(clv_config *out, const char *text)
{
    char path[128];
    clv_path_join(path, sizeof path, folder, "config.json");
    assert_int_equal(clv_file_write_atomic(path, text, strlen(text)).code, CLV_OK);
    return clv_hf_config_read(out, folder);
}

static clv_config read_good(const char *text)
{
    clv_config c;
    assert_string_equal(read_text(&c, text).text, "");
    return c;
}

static void refuse(const char *text, const char *message)
{
    clv_config c;
    const clv_status status = read_text(&c, text);
    assert_int_equal(status.code, CLV_BAD_INPUT);
    if (strstr(status.text, message) == NULL || strstr(status.text, "/config.json: ") == NULL)
        fail_msg("'%s' does not say '%s', or no file", status.text, message);
}

#define SAME(field) assert_true(a->field == b->field)

static void assert_same(const clv_config *a, const clv_config *b)
{
    assert_string_equal(a->model_type, b->model_type);
    SAME(vocab), SAME(hidden), SAME(layers), SAME(heads), SAME(kv_heads), SAME(head_dim), SAME(ffn);
    SAME(max_positions), SAME(norm), SAME(norm_eps), SAME(act), SAME(position), SAME(rope_base);
    SAME(rotary_percent), SAME(rope_kind), SAME(rope_factor), SAME(rope_low_freq), SAME(rope_high_freq);
    SAME(rope_original), SAME(qk_norm), SAME(bias_qkv), SAME(bias_proj), SAME(bias_fc1), SAME(bias_fc2);
    SAME(tied), SAME(window), SAME(window_first), SAME(init_std), SAME(hidden_dropout);
    SAME(attention_dropout), SAME(bos), SAME(eos);
}

static void round_trip(const clv_config *c, const char *family)
{
    clv_config back;
    assert_string_equal(clv_hf_family_of(c), family);
    assert_string_equal(clv_hf_config_write(c, folder, CLV_F32).text, "");
    assert_string_equal(clv_hf_config_read(&back, folder).text, "");
    assert_same(c, &back);
}

static void test_defaults(void **state)
{
    (void)state;
    clv_config c = read_good("{\"model_type\":\"gpt2\"}");
    assert_true(c.vocab == 50257 && c.hidden == 768 && c.layers == 12 && c.heads == 12 && c.kv_heads == 12);
    assert_true(c.head_dim == 64 && c.ffn == 3072 && c.max_positions == 1024 && c.norm == CLV_LAYERNORM);
    assert_true(c.norm_eps == 1e-5 && c.act == CLV_GELU_TANH && c.position == CLV_POS_LEARNED && c.tied);
    assert_true(c.bias_qkv && c.bias_proj && c.bias_fc1 && c.bias_fc2 && !c.qk_norm && c.window == 0);
    assert_true(c.hidden_dropout == 0.1 && c.attention_dropout == 0.1 && c.bos == 50256 && c.eos == 50256);

    c = read_good("{\"model_type\":\"llama\"}");
    assert_true(c.vocab == 32000 && c.hidden == 4096 && c.layers == 32 && c.heads == 32 && c.kv_heads == 32);
    assert_true(c.head_dim == 128 && c.ffn == 11008 && c.max_positions == 2048 && c.norm == CLV_RMSNORM);
    assert_true(c.norm_eps == 1e-6 && c.act == CLV_SWIGLU && c.position == CLV_POS_ROPE && !c.tied);
    assert_true(!c.bias_qkv && !c.bias_proj && !c.bias_fc1 && !c.bias_fc2 && c.rope_base == 10000.0);
    assert_true(c.init_std == 0.02 && c.hidden_dropout == 0.0 && c.bos == 1 && c.eos == 2 && c.window == 0);

    c = read_good("{\"model_type\":\"mistral\"}");
    assert_true(c.ffn == 14336 && c.kv_heads == 8 && c.max_positions == 131072 && c.window == 4096);

    c = read_good("{\"model_type\":\"qwen2\"}");
    assert_true(c.vocab == 151936 && c.ffn == 22016 && c.max_positions == 32768 && c.head_dim == 128);
    assert_true(c.bias_qkv && !c.bias_proj && !c.qk_norm && c.window == 0 && c.bos == -1 && c.eos == -1);

    c = read_good("{\"model_type\":\"qwen3\",\"hidden_size\":1024,\"num_attention_heads\":16,"
                  "\"num_key_value_heads\":8}");
    assert_true(c.head_dim == 128 && c.qk_norm && !c.bias_qkv && c.norm_eps == 1e-6);
}

static void test_null_and_lists(void **state)
{
    (void)state;
    clv_config c = read_good("{\"model_type\":\"gpt2\",\"n_embd\":48,\"n_inner\":null,\"eos_token_id\":[7,9]}");
    assert_true(c.ffn == 192 && c.eos == 7);
    c = read_good("{\"model_type\":\"mistral\",\"num_key_value_heads\":null,\"sliding_window\":null,"
                  "\"bos_token_id\":null,\"eos_token_id\":[]}");
    assert_true(c.kv_heads == 32 && c.window == 0 && c.bos == -1 && c.eos == -1);
    c = read_good("{\"model_type\":\"gpt2\",\"hidden_size\":24,\"num_hidden_layers\":3,\"num_attention_heads\":2,"
                  "\"max_position_embeddings\":9,\"vocab_size\":67}");
    assert_true(c.hidden == 24 && c.layers == 3 && c.heads == 2 && c.max_positions == 9);
    assert_int_equal(c.eos, -1); /* the class's 50256 is no token of this vocabulary */
}

static void test_rope(void **state)
{
    (void)state;
    clv_config c = read_good("{\"model_type\":\"llama\",\"rope_theta\":500000}");
    assert_true(c.rope_base == 500000.0 && c.rope_kind == CLV_ROPE_DEFAULT);
    c = read_good("{\"model_type\":\"llama\",\"rope_theta\":2e4,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}");
    assert_true(c.rope_base == 2e4 && c.rope_kind == CLV_ROPE_LINEAR && c.rope_factor == 2.0);
    c = read_good("{\"model_type\":\"llama\",\"rope_theta\":2e4,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},"
                  "\"rope_parameters\":{\"rope_theta\":3e4,\"rope_type\":\"llama3\",\"factor\":32.0,"
                  "\"low_freq_factor\":2.0,\"high_freq_factor\":5.0,\"original_max_position_embeddings\":4096}}");
    assert_true(c.rope_base == 3e4 && c.rope_kind == CLV_ROPE_LLAMA3 && c.rope_factor == 32.0);
    assert_true(c.rope_low_freq == 2.0 && c.rope_high_freq == 5.0 && c.rope_original == 4096);
    c = read_good("{\"model_type\":\"llama\",\"rope_parameters\":{\"rope_theta\":7e4}}");
    assert_true(c.rope_base == 7e4 && c.rope_kind == CLV_ROPE_DEFAULT);
    c = read_good("{\"model_type\":\"llama\",\"rope_theta\":2e4,\"rope_parameters\":{}}");
    assert_true(c.rope_base == 2e4);
}

static void test_windows(void **state)
{
    (void)state;
    clv_config c = read_good("{\"model_type\":\"mistral\",\"sliding_window\":12}");
    assert_true(c.window == 12 && c.window_first == 0);
    c = read_good("{\"model_type\":\"qwen2\",\"sliding_window\":12}");
    assert_true(c.window == 0 && c.window_first == 0);
    c = read_good("{\"model_type\":\"qwen3\",\"sliding_window\":12,\"use_sliding_window\":true}");
    assert_true(c.window == 12 && c.window_first == 28);
    c = read_good("{\"model_type\":\"qwen2\",\"num_hidden_layers\":28,\"use_sliding_window\":true}");
    assert_true(c.window == 0);
    c = read_good("{\"model_type\":\"qwen2\",\"num_hidden_layers\":2,\"use_sliding_window\":true,"
                  "\"max_window_layers\":1,\"layer_types\":[\"full_attention\",\"sliding_attention\"]}");
    assert_true(c.window == 4096 && c.window_first == 1);
    refuse("{\"model_type\":\"qwen2\",\"num_hidden_layers\":2,\"use_sliding_window\":true,\"max_window_layers\":1,"
           "\"layer_types\":[\"sliding_attention\",\"full_attention\"]}",
           "layer_types gives layer 0 \"sliding_attention\"");
}

static void test_activations(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        clv_act act;
    } cases[] = {
        {"gelu_new", CLV_GELU_TANH}, {"gelu_pytorch_tanh", CLV_GELU_TANH}, {"gelu", CLV_GELU}, {"relu", CLV_RELU}};
    for (size_t i = 0; i < CLV_COUNT(cases); i++) {
        char text[128];
        snprintf(text, sizeof text, "{\"model_type\":\"gpt2\",\"activation_function\":\"%s\"}", cases[i].name);
        const clv_config c = read_good(text);
        assert_int_equal(c.act, cases[i].act);
        round_trip(&c, "gpt2");
    }
}

static void test_refusals(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"{}", "\"model_type\" is missing"},
        {"[]", "\"model_type\" is missing"},
        {"{", "line 1, column 2"},
        {"{\"model_type\":\"mixtral\"}", "\"mixtral\" is not supported; supported: gpt2, llama, mistral, qwen2, qwen3"},
        {"{\"model_type\":\"gpt2\",\"n_head\":7}", "768 does not divide into 7 heads"},
        {"{\"model_type\":\"gpt2\",\"n_head\":0}", "num-attention-heads is 0"},
        {"{\"model_type\":\"gpt2\",\"n_layer\":1.5}", "\"n_layer\" must be an integer"},
        {"{\"model_type\":\"gpt2\",\"n_layer\":-1}", "\"n_layer\" must be an integer from 0"},
        {"{\"model_type\":\"gpt2\",\"n_embd\":9000000000000000000}", "to 2^40"},
        {"{\"model_type\":\"gpt2\",\"n_inner\":0}", "from 1"},
        {"{\"model_type\":\"gpt2\",\"layer_norm_epsilon\":\"1\"}", "a number was expected"},
        {"{\"model_type\":\"gpt2\",\"scale_attn_by_inverse_layer_idx\":true}", "scale_attn_by_inverse_layer_idx"},
        {"{\"model_type\":\"gpt2\",\"scale_attn_weights\":false}", "scale_attn_weights"},
        {"{\"model_type\":\"gpt2\",\"activation_function\":\"silu\"}", "\"silu\" is not supported"},
        {"{\"model_type\":\"gpt2\",\"embd_pdrop\":0.2}", "embd_pdrop 0.2 differs from resid_pdrop 0.1"},
        {"{\"model_type\":\"gpt2\",\"eos_token_id\":\"end\"}", "\"eos_token_id\" must be"},
        {"{\"model_type\":\"llama\",\"hidden_act\":\"gelu\"}", "\"gelu\" is not supported"},
        {"{\"model_type\":\"llama\",\"hidden_act\":1}", "hidden_act"},
        {"{\"model_type\":\"llama\",\"num_key_value_heads\":5}", "do not divide into 5 query groups"},
        {"{\"model_type\":\"llama\",\"quantization_config\":{}}", "quantized"},
        {"{\"model_type\":\"llama\",\"partial_rotary_factor\":0.5}", "partial_rotary_factor 0.5"},
        {"{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0}}", "\"yarn\""},
        {"{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":4.0}}", "\"dynamic\""},
        {"{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"linear\"}}", "needs the key \"factor\""},
        {"{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8}}", "\"low_freq_factor\""},
        {"{\"model_type\":\"llama\",\"rope_scaling\":\"linear\"}", "must be an object or null"},
        {"{\"model_type\":\"llama\",\"rope_parameters\":{\"full_attention\":{}}}", "differ by kind of layer"},
        {"{\"model_type\":\"llama\",\"attention_dropout\":1.5}", "attention-dropout is 1.5"},
        {"{\"model_type\":\"qwen2\",\"use_sliding_window\":1}", "true or false was expected"},
    };
    for (size_t i = 0; i < CLV_COUNT(cases); i++)
        refuse(cases[i][0], cases[i][1]);
    clv_config c;
    assert_non_null(strstr(clv_hf_config_read(&c, "/no/such/folder").text, "/no/such/folder/config.json"));
}

static void test_golden_round_trips(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"gpt2-tiny", "gpt2"},   {"gpt2-deep-tied", "gpt2"}, {"llama-gqa", "llama"},
        {"llama-deep", "llama"}, {"llama3-rope", "llama"},   {"llama-mha-tied-smoothing", "llama"},
        {"qwen2-tiny", "qwen2"}, {"qwen3-tiny", "qwen3"},    {"mistral-window", "mistral"},
    };
    for (size_t i = 0; i < CLV_COUNT(cases); i++) {
        char path[1024];
        clv_config c;
        clv_path_join(path, sizeof path, CLEAVE_GOLDEN, cases[i][0]);
        assert_string_equal(clv_hf_config_read(&c, path).text, "");
        assert_string_equal(c.model_type, cases[i][1]);
        assert_true(c.vocab == 67 && c.hidden == 32);
        round_trip(&c, cases[i][1]);
    }
    clv_config c;
    clv_hf_config_read(&c, CLEAVE_GOLDEN "/qwen3-tiny");
    assert_true(c.head_dim == 8 && c.heads == 8 && c.qk_norm);
    clv_hf_config_read(&c, CLEAVE_GOLDEN "/llama3-rope");
    assert_true(c.rope_base == 500000.0 && c.rope_kind == CLV_ROPE_LLAMA3 && c.rope_original == 16);
    clv_hf_config_read(&c, CLEAVE_GOLDEN "/mistral-window");
    assert_int_equal(c.window, 12);
}

static void test_head_size_is_exported(void **state)
{
    (void)state;
    const clv_config c = read_good("{\"model_type\":\"llama\",\"hidden_size\":20,\"num_attention_heads\":4,"
                                   "\"head_dim\":8,\"rope_theta\":500000.0}");
    round_trip(&c, "llama");
    char path[128];
    clv_text text;
    clv_path_join(path, sizeof path, folder, "config.json");
    clv_file_read(path, &text);
    assert_non_null(strstr(text.data, "\n  \"head_dim\": 8,\n"));
    assert_non_null(strstr(text.data, "\n  \"rope_theta\": 500000.0,\n"));
    assert_non_null(strstr(text.data, "\n  \"torch_dtype\": \"float32\",\n"));
    assert_non_null(strstr(text.data, "\n  \"dtype\": \"float32\",\n"));
    assert_non_null(strstr(text.data, "\"architectures\": [\n    \"LlamaForCausalLM\"\n  ]"));
    clv_text_free(&text);
}

/* Real shapes, and shapes that one field moves from one family to another or out of all. */
static void test_families(void **state)
{
    (void)state;
    clv_config c = read_good("{\"model_type\":\"mistral\"}");
    c.window = 0; /* a Llama now, but it keeps its name */
    round_trip(&c, "mistral");
    snprintf(c.model_type, sizeof c.model_type, "cleave");
    assert_string_equal(clv_hf_family_of(&c), "llama");
    c.window_first = 3; /* of no effect without a window */
    assert_string_equal(clv_hf_family_of(&c), "llama");
    c.window_first = 0;
    c.window = 100;
    assert_string_equal(clv_hf_family_of(&c), "mistral");
    c.bias_qkv = true;
    c.window_first = 3;
    assert_string_equal(clv_hf_family_of(&c), "qwen2");
    c.bias_qkv = false;
    c.qk_norm = true;
    assert_string_equal(clv_hf_family_of(&c), "qwen3");
    c.hidden_dropout = 0.25;
    assert_string_equal(clv_hf_family_of(&c), "qwen3");
    c.bias_fc2 = true;
    assert_string_equal(clv_hf_family_of(&c), "cleave");
    round_trip(&c, "cleave");

    c = read_good("{\"model_type\":\"llama\",\"attention_bias\":true,\"mlp_bias\":true}");
    assert_true(c.bias_qkv && c.bias_proj && c.bias_fc1 && c.bias_fc2);
    round_trip(&c, "llama");
    c = read_good("{\"model_type\":\"gpt2\"}");
    c.rope_base = 5e5; /* of no effect without rope */
    assert_string_equal(clv_hf_family_of(&c), "gpt2");
}

/* Every field at a value of its own. */
static void test_any_shape(void **state)
{
    (void)state;
    const clv_config c = {.model_type = "cleave",
                          .vocab = 101,
                          .hidden = 30,
                          .layers = 7,
                          .heads = 6,
                          .kv_heads = 3,
                          .head_dim = 8,
                          .ffn = 55,
                          .max_positions = 77,
                          .norm = CLV_RMSNORM,
                          .norm_eps = 0.03,
                          .act = CLV_RELU,
                          .position = CLV_POS_ROPE,
                          .rope_base = 12345.678,
                          .rotary_percent = 0.5,
                          .rope_kind = CLV_ROPE_LLAMA3,
                          .rope_factor = 3.5,
                          .rope_low_freq = 1.25,
                          .rope_high_freq = 4.75,
                          .rope_original = 33,
                          .qk_norm = true,
                          .bias_qkv = true,
                          .bias_proj = false,
                          .bias_fc1 = true,
                          .bias_fc2 = false,
                          .tied = true,
                          .window = 9,
                          .window_first = 2,
                          .init_std = 0.1 + 0.2,
                          .hidden_dropout = 0.125,
                          .attention_dropout = 0.0625,
                          .bos = 5,
                          .eos = 100};
    round_trip(&c, "cleave");
    char path[128];
    clv_text text;
    clv_path_join(path, sizeof path, folder, "generation_config.json");
    assert_int_equal(clv_file_read(path, &text).code, CLV_OK);
    assert_string_equal(text.data, "{\n  \"bos_token_id\": 5,\n  \"eos_token_id\": 100\n}\n");
    clv_text_free(&text);
    clv_config none = c;
    none.position = CLV_POS_NONE;
    none.act = CLV_GELU;
    none.norm = CLV_LAYERNORM;
    none.window = 0;
    none.window_first = 0;
    none.bos = none.eos = -1;
    round_trip(&none, "cleave");
}

static void test_public_model(void **state)
{
    (void)state;
    if (!clv_file_exists(CLEAVE_SHARED "/models/stories260k/config.json")) {
        print_message("skipped: %s is absent\n", CLEAVE_SHARED "/models/stories260k");
        skip();
    }
    clv_config c;
    assert_string_equal(clv_hf_config_read(&c, CLEAVE_SHARED "/models/stories260k").text, "");
    assert_true(c.vocab == 512 && c.heads == 8 && c.kv_heads == 4 && c.ffn == 172 && c.tied && c.bos == 1);
    round_trip(&c, "llama");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_null_and_lists),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_activations),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_golden_round_trips),
        cmocka_unit_test(test_head_size_is_exported),
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_any_shape),
        cmocka_unit_test(test_public_model),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
