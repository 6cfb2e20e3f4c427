/* options_test.c - the command line, the file, the help and the shapes that come from them. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "train/options_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PARSE(o, ...) clv_options_parse(o, (int)CLV_COUNT(((char *[]){__VA_ARGS__})), (char *[]){__VA_ARGS__}, NULL)

static void assert_fails(clv_status st, clv_code code, const char *const *parts, size_t count)
{
    if (st.code != code)
        fail_msg("code %d, not %d: %s", st.code, code, st.text);
    for (size_t i = 0; i < count; i++)
        if (strstr(st.text, parts[i]) == NULL)
            fail_msg("'%s' is not in: %s", parts[i], st.text);
}
#define ASSERT_FAILS(st, code, ...)                                                                                    \
    assert_fails(st, code, (const char *const[]){__VA_ARGS__}, CLV_COUNT(((const char *[]){__VA_ARGS__})))

static void assert_good(clv_status st)
{
    if (st.code != CLV_OK)
        fail_msg("%s", st.text);
}

static void write_file(char *path, const char *text)
{
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static void test_forms(void **state)
{
    (void)state;
    clv_options o;
    clv_options_default(&o, 'T');
    assert_int_equal(o.seed, 1234);
    assert_true(o.adam_eps == 1e-8 && o.calculate_per_token_loss && !o.is_set.seed && o.save == NULL);
    assert_string_equal(o.split, "969,30,1");
    assert_good(PARSE(&o, "--num-layers", "4", "--lr=3e-4", "--swiglu", "--no-calculate-per-token-loss", "--data-path",
                      "0.3", "a", "0.7", "b", "--save", "x", "--save=y", "--no-save-optim"));
    assert_int_equal(o.num_layers, 4);
    assert_true(o.lr == 3e-4 && strcmp(o.activation, "swiglu") == 0 && !o.calculate_per_token_loss && o.no_save_optim);
    assert_int_equal(o.data_path.count, 4);
    assert_string_equal(o.data_path.word[3], "b");
    assert_string_equal(o.save, "y"); /* the last one wins */
    assert_true(o.is_set.num_layers && o.is_set.data_path && !o.is_set.seed);
    clv_options_free(&o);
}

static void test_words(void **state)
{
    (void)state;
    clv_options o;
    clv_list words = {0};
    clv_options_default(&o, 'G');
    char *argv[] = {"first", "--prompt=--no", "-", "--", "--seed", "x"};
    assert_good(clv_options_parse(&o, (int)CLV_COUNT(argv), argv, &words));
    assert_string_equal(o.prompt, "--no");
    assert_int_equal(words.count, 4);
    assert_string_equal(words.word[1], "-");
    assert_string_equal(words.word[2], "--seed");
    clv_list_free(&words);
    clv_options_free(&o);
}

static void test_refusals(void **state)
{
    (void)state;
    clv_options o;
    clv_options_default(&o, 'T');
    ASSERT_FAILS(PARSE(&o, "--num-layer", "4"), CLV_BAD_USAGE, "--num-layer;", "--num-layers");
    ASSERT_FAILS(PARSE(&o, "--lr-war", "4"), CLV_BAD_USAGE, "--lr-warmup, --lr-warmup-init");
    ASSERT_FAILS(PARSE(&o, "--at-eod", "mask"), CLV_BAD_USAGE, "--at-eod mask", "mask_loss reset_positions");
    ASSERT_FAILS(PARSE(&o, "--activation", "silu"), CLV_BAD_USAGE, "silu", "gelu gelu_tanh relu swiglu");
    ASSERT_FAILS(PARSE(&o, "--qqqqqqqqqqqq"), CLV_BAD_USAGE, "--qqqqqqqqqqqq", "cleave train --help");
    ASSERT_FAILS(PARSE(&o, "--temperature", "1"), CLV_BAD_USAGE, "--temperature", "option of generate", "not of train");
    ASSERT_FAILS(PARSE(&o, "--micro-batch-size", "0"), CLV_BAD_USAGE, "--micro-batch-size 0", "1 to ");
    ASSERT_FAILS(PARSE(&o, "--hidden-size", "-64"), CLV_BAD_USAGE, "--hidden-size -64", "1 to ");
    ASSERT_FAILS(PARSE(&o, "--hidden-size", "99999999999999999999"), CLV_BAD_USAGE, "99999999999999999999", "whole");
    ASSERT_FAILS(PARSE(&o, "--hidden-size", "64.0"), CLV_BAD_USAGE, "64.0", "whole number");
    ASSERT_FAILS(PARSE(&o, "--lr", "1e-4x"), CLV_BAD_USAGE, "--lr 1e-4x", "number");
    ASSERT_FAILS(PARSE(&o, "--lr", "nan"), CLV_BAD_USAGE, "--lr nan");
    ASSERT_FAILS(PARSE(&o, "--lr", "-1"), CLV_BAD_USAGE, "--lr -1", "0 or more");
    ASSERT_FAILS(PARSE(&o, "--adam-beta1", "1"), CLV_BAD_USAGE, "at least 0, below 1");
    ASSERT_FAILS(PARSE(&o, "--norm-epsilon", "0"), CLV_BAD_USAGE, "above 0");
    ASSERT_FAILS(PARSE(&o, "--normalization", "rmsnorm"), CLV_BAD_USAGE, "rmsnorm", "LayerNorm RMSNorm");
    ASSERT_FAILS(PARSE(&o, "--save"), CLV_BAD_USAGE, "--save needs a value");
    ASSERT_FAILS(PARSE(&o, "--save", "--swiglu"), CLV_BAD_USAGE, "--save needs a value", "=");
    ASSERT_FAILS(PARSE(&o, "--data-path", "--swiglu"), CLV_BAD_USAGE, "--data-path needs a value");
    ASSERT_FAILS(PARSE(&o, "--mock-data=maybe"), CLV_BAD_USAGE, "--mock-data", "maybe");
    ASSERT_FAILS(PARSE(&o, "--no-lr", "1"), CLV_BAD_USAGE, "--no-lr", "flag");
    ASSERT_FAILS(PARSE(&o, "stray"), CLV_BAD_USAGE, "stray");
    ASSERT_FAILS(PARSE(&o, "-h"), CLV_BAD_USAGE, "-h");
    clv_options_free(&o);
}

static void test_megatron(void **state)
{
    (void)state;
    clv_options o;
    clv_options_default(&o, 'T');
    clv_log_setup(CLV_LOG_ERROR, 0, 1);
    assert_good(PARSE(&o, "--use-flash-attn", "--transformer-impl", "local", "--pipeline-model-parallel-size", "1",
                      "--use-mcore-models", "--optimizer", "adam", "--use-rotary-position-embeddings", "--num-workers",
                      "2", "--layernorm-epsilon", "1e-6", "--tokenizer-type", "HuggingFaceTokenizer"));
    assert_string_equal(o.position_embedding_type, "rope");
    assert_true(o.norm_epsilon == 1e-6);
    ASSERT_FAILS(PARSE(&o, "--fp8-format", "e4m3"), CLV_BAD_USAGE, "--fp8-format", "not in this version");
    ASSERT_FAILS(PARSE(&o, "--context-parallel-size", "2"), CLV_BAD_USAGE, "size 2", "not in this version");
    ASSERT_FAILS(PARSE(&o, "--optimizer", "sgd"), CLV_BAD_USAGE, "sgd", "adam");
    ASSERT_FAILS(PARSE(&o, "--num-experts", "8"), CLV_BAD_USAGE, "--num-experts", "not in this version");
    clv_log_setup(CLV_LOG_INFO, 0, 1);
    clv_options_free(&o);
}

/* Spellings of Megatron's that set part of an option, in any order. */
static void test_spellings(void **state)
{
    (void)state;
    clv_options o;
    clv_options_default(&o, 'T');
    assert_good(PARSE(&o, "--lr-warmup-fraction", "1", "--lr-decay-samples", "2000", "--lr-wsd-decay-iters", "7",
                      "--num-layers-per-virtual-pipeline-stage", "3", "--add-qkv-bias", "--disable-bias-linear",
                      "--num-query-groups", "2", "--group-query-attention", "--use-rope-scaling",
                      "--reset-position-ids", "--eod-mask-loss", "--eod-mask-loss"));
    assert_string_equal(o.lr_warmup, "1fraction");
    assert_string_equal(o.lr_decay, "2000samples");
    assert_string_equal(o.lr_wsd_decay, "7");
    assert_string_equal(o.pipeline_chunks, "3layers");
    assert_string_equal(o.bias, "qkv");
    assert_true(o.num_query_groups == 2 && o.rope_scaling_factor == 8);
    assert_true(o.at_eod.count == 2 && clv_list_has(&o.at_eod, "mask_loss") && o.is_set.at_eod);
    assert_good(PARSE(&o, "--lr-warmup-iters=9", "--at-eod", "reset_attention", "--bias", "all",
                      "--disable-bias-linear", "--rope-scaling-factor", "4", "--use-rope-scaling"));
    assert_string_equal(o.lr_warmup, "9");
    assert_string_equal(o.bias, "none");
    assert_true(o.at_eod.count == 1 && o.rope_scaling_factor == 4);
    clv_options_free(&o);
}

static clv_status parse_file(clv_options *o, const char *text)
{
    char path[] = "/tmp/cleave_options_XXXXXX";
    write_file(path, text);
    const clv_status st = PARSE(o, "--seed", "7", "--config", path);
    unlink(path);
    return st;
}

static void test_file(void **state)
{
    (void)state;
    clv_options o;
    clv_options_default(&o, 'T');
    assert_good(parse_file(&o, "# a run\nnum-layers: 2\nhidden_size: 64\nlr: 1e-3\nswiglu: true\nseed: 5\n"
                               "calculate-per-token-loss: false\ndata-path: [0.5, a b, '0.5', c]\nsave: null\n"
                               "no-save-optim: true\nload: \"\"\n"));
    assert_int_equal(o.num_layers, 2);
    assert_int_equal(o.hidden_size, 64);
    assert_int_equal(o.seed, 7); /* the command line wins, wherever --config stands */
    assert_true(o.lr == 1e-3 && strcmp(o.activation, "swiglu") == 0 && !o.calculate_per_token_loss && o.no_save_optim);
    assert_int_equal(o.data_path.count, 4);
    assert_string_equal(o.data_path.word[1], "a b");
    assert_false(o.is_set.save);
    assert_true(o.is_set.load && o.load[0] == 0);
    clv_options_free(&o);
    assert_good(parse_file(&o, ""));
    clv_options_free(&o);
}

static void test_file_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *text, *line, *part;
    } cases[] = {
        {"seed: 1\nnum_layer: 2\n", ":2: ", "--num-layers"},
        {"seed: 1\nfp8-format: e4m3\n", ":2: ", "not in this version"},
        {"lr: fast\n", ":1: ", "fast"},
        {"lr: {a: 1}\n", ":1: ", "one value: lr"},
        {"lr: [1, 2]\n", ":1: ", "one value: lr"},
        {"data-path: {a: 1}\n", ":1: ", "list"},
        {"data-path: [a, [b]]\n", ":1: ", "words only"},
        {"\n\nmock-data: yes\n", ":3: ", "true or false"},
        {"seed:\n", ":1: ", "no value for seed"},
        {"seed: 1\nlr: 1\nseed: 2\n", ":3: ", "twice: seed"},
        {"- a\n", ":1: ", "name: value"},
        {"seed: 1\n---\nseed: 2\n", ":2: ", "second document"},
        {"seed: \"1\n", ": ", "not YAML"},
        {"seed: *x\n", ":1: ", "one value"},
        {"config: other\n", ":1: ", "another one"},
    };
    for (size_t i = 0; i < CLV_COUNT(cases); i++) {
        clv_options o;
        clv_options_default(&o, 'T');
        ASSERT_FAILS(parse_file(&o, cases[i].text), CLV_BAD_USAGE, cases[i].line, cases[i].part);
        clv_options_free(&o);
    }
    clv_options o;
    clv_options_default(&o, 'T');
    ASSERT_FAILS(PARSE(&o, "--config", "/nowhere/run.yaml"), CLV_BAD_INPUT, "/nowhere/run.yaml");
    ASSERT_FAILS(PARSE(&o, "--config"), CLV_BAD_USAGE, "--config needs a value");
    clv_options_free(&o);
}

/* What is dumped reads back as the same options. */
static void test_dump(void **state)
{
    (void)state;
    clv_options o, again;
    clv_text first = {0}, second = {0};
    clv_options_default(&o, 'T');
    clv_options_default(&again, 'T');
    assert_good(PARSE(&o, "--lr", "0.0003", "--data-path", "a \"b\"", "null", "--swiglu", "--save", "x\\y\n"));
    clv_options_dump(&o, &first);
    clv_json *json;
    assert_good(clv_json_parse(&json, first.data, first.length, "dump"));
    assert_true(clv_json_is(json, clv_json_get(json, CLV_JSON_ROOT, "hidden-size"), CLV_JSON_NULL));
    assert_int_equal(clv_json_get(json, CLV_JSON_ROOT, "temperature"), CLV_NO_NODE);
    clv_json_free(json);
    assert_good(parse_file(&again, first.data));
    again.seed = 1234;
    clv_options_dump(&again, &second);
    assert_string_equal(first.data, second.data);
    clv_text_free(&first);
    clv_text_free(&second);
    clv_options_free(&o);
    clv_options_free(&again);
}

static void test_rows(void **state)
{
    (void)state;
    size_t count;
    const clv_option_row *rows = clv_option_rows(&count);
    assert_true(count <= 120);
    for (size_t i = 0; i < count; i++) {
        clv_option_match match;
        char name[CLV_OPTION_NAME];
        for (const char *letter = rows[i].commands; *letter != 0; letter++) {
            assert_good(clv_option_find(&match, *letter, clv_option_name(rows[i].field, name)));
            assert_ptr_equal(match.row, &rows[i]);
            assert_string_not_equal(clv_option_command_name(*letter), "");
        }
    }
}

static void test_help(void **state)
{
    (void)state;
    clv_text help = {0};
    clv_options_help('T', &help);
    for (const char *line = help.data; *line != 0; line += strcspn(line, "\n") + 1)
        assert_true(strcspn(line, "\n") <= 100);
    assert_non_null(strstr(help.data, "\nParallel:\n"));
    assert_non_null(strstr(help.data, "--[no-]calculate-per-token-loss"));
    assert_non_null(strstr(help.data, "[0 or more; default 0]"));
    assert_non_null(strstr(help.data, "--config FILE"));
    assert_null(strstr(help.data, "--temperature"));
    clv_text_free(&help);
}

/* ---- shapes -------------------------------------------------------------------------------------------------------
 */

#define SHAPE(c, vocab, ...) shape(c, vocab, (int)CLV_COUNT(((char *[]){__VA_ARGS__})), (char *[]){__VA_ARGS__})
#define SIZES                "--num-layers", "2", "--hidden-size", "96", "--num-attention-heads", "6"

static clv_status shape(clv_config *c, int64_t vocab, int count, char *const *argv)
{
    clv_options o;
    clv_options_default(&o, 'T');
    assert_good(clv_options_parse(&o, count, argv, NULL));
    const clv_status st = clv_options_config(&o, vocab, c);
    clv_options_free(&o);
    return st;
}

static void test_shape_defaults(void **state)
{
    (void)state;
    clv_config c;
    assert_good(SHAPE(&c, 300, SIZES));
    assert_true(c.vocab == 300 && c.layers == 2 && c.hidden == 96 && c.heads == 6 && c.kv_heads == 6);
    assert_true(c.head_dim == 16 && c.ffn == 384 && c.max_positions == 1024 && c.position == CLV_POS_LEARNED);
    assert_true(c.norm == CLV_LAYERNORM && c.act == CLV_GELU && c.tied && c.hidden_dropout == 0.1);
    assert_true(c.bias_qkv && c.bias_proj && c.bias_fc1 && c.bias_fc2 && !c.qk_norm && c.window == 0);
    assert_good(SHAPE(&c, 0, SIZES, "--vocab-size", "256", "--swiglu", "--normalization", "RMSNorm",
                      "--position-embedding-type", "rope", "--disable-bias-linear", "--group-query-attention",
                      "--num-query-groups", "2", "--untie-embeddings-and-output-weights", "--seq-length", "64",
                      "--use-rope-scaling", "--hidden-dropout", "0", "--attention-dropout", "0"));
    assert_true(c.ffn == 256 && c.kv_heads == 2 && !c.tied && c.max_positions == 64 && !c.bias_qkv && !c.bias_fc2);
    assert_true(c.rope_kind == CLV_ROPE_LLAMA3 && c.rope_factor == 8 && c.rope_original == 8192);
    assert_string_equal(c.model_type, "llama");
    assert_good(SHAPE(&c, 300, SIZES, "--disable-bias-linear", "--add-qkv-bias", "--kv-channels", "20",
                      "--group-query-attention"));
    assert_true(c.bias_qkv && !c.bias_proj && c.head_dim == 20 && c.kv_heads == 1);
}

static void test_shape_refusals(void **state)
{
    (void)state;
    clv_config c;
    ASSERT_FAILS(SHAPE(&c, 300, "--num-layers", "2"), CLV_BAD_USAGE, "no --hidden-size");
    ASSERT_FAILS(SHAPE(&c, 0, SIZES), CLV_BAD_USAGE, "--tokenizer-model", "--vocab-size");
    ASSERT_FAILS(SHAPE(&c, 300, SIZES, "--vocab-size", "256"), CLV_BAD_INPUT, "256", "299", "300");
    ASSERT_FAILS(SHAPE(&c, 300, SIZES, "--num-attention-heads", "7"), CLV_BAD_INPUT, "96", "7", "6 or 8");
    ASSERT_FAILS(SHAPE(&c, 300, SIZES, "--num-query-groups", "4"), CLV_BAD_INPUT, "6", "4");
    ASSERT_FAILS(SHAPE(&c, 300, SIZES, "--seq-length", "64", "--max-position-embeddings", "32"), CLV_BAD_INPUT, "64",
                 "32");
    ASSERT_FAILS(SHAPE(&c, 300, "--model-config", "/nowhere"), CLV_BAD_INPUT, "/nowhere");
}

static void test_model_config(void **state)
{
    (void)state;
    clv_config c;
    char *folder = CLEAVE_GOLDEN "/llama-gqa";
    assert_good(SHAPE(&c, 0, "--model-config", folder));
    char heads[32], other[32];
    snprintf(heads, sizeof heads, "%lld", (long long)c.heads);
    snprintf(other, sizeof other, "%lld", (long long)c.heads * 2);
    assert_good(SHAPE(&c, 0, "--model-config", folder, "--num-attention-heads", heads, "--swiglu"));
    ASSERT_FAILS(SHAPE(&c, 0, "--model-config", folder, "--num-attention-heads", other), CLV_BAD_INPUT, heads, other,
                 "--num-attention-heads");
    ASSERT_FAILS(SHAPE(&c, 0, "--model-config", folder, "--normalization", "LayerNorm"), CLV_BAD_INPUT, "LayerNorm",
                 "RMSNorm");
    ASSERT_FAILS(SHAPE(&c, 0, "--model-config", folder, "--relu"), CLV_BAD_INPUT, "relu", "swiglu");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),          cmocka_unit_test(test_words),
        cmocka_unit_test(test_refusals),       cmocka_unit_test(test_megatron),
        cmocka_unit_test(test_spellings),      cmocka_unit_test(test_file),
        cmocka_unit_test(test_file_refusals),  cmocka_unit_test(test_dump),
        cmocka_unit_test(test_rows),           cmocka_unit_test(test_help),
        cmocka_unit_test(test_shape_defaults), cmocka_unit_test(test_shape_refusals),
        cmocka_unit_test(test_model_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
