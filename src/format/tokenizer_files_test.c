/* tokenizer_files_test.c - folders and files, and the real tokenizers beside the repository: their ids are those of
 * Hugging Face's library. Tests that need a file which is not there say so and pass over it. */
#include "format/tokenizer_test_internal.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static clv_tokenizer *shared_tokenizer(const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", CLEAVE_SHARED, name);
    if (!clv_file_exists(path)) {
        print_message("skipped: %s is not there\n", path);
        skip();
    }
    clv_tokenizer *tok;
    const double start = clv_seconds();
    const clv_status st = clv_tokenizer_load(&tok, path);
    if (st.code != CLV_OK)
        fail_msg("%s", st.text);
    print_message("%s: %.3f s\n", name, clv_seconds() - start);
    assert_true(clv_seconds() - start < 5); /* about 0.2 s; sanitizers take longer */
    return tok;
}

static void assert_round_trip(const clv_tokenizer *tok, const char *text)
{
    clv_ids ids = {0};
    assert_int_equal(clv_tokenizer_encode(tok, text, strlen(text), false, &ids).code, CLV_OK);
    assert_decodes(tok, text, ids.id, ids.count);
    clv_ids_free(&ids);
}

static void assert_round_trips(const clv_tokenizer *tok)
{
    static const char *const texts[] = {"",
                                        "a",
                                        "Hello, world!",
                                        "x  y   z\t\ttab\n\n\nlines\r\n",
                                        "naïve café Ångström",
                                        "漢字かな 한국어",
                                        "🎉👨‍👩‍👧🇩🇪",
                                        "    indented\n        more",
                                        "'tis he'll WE'VE",
                                        "3.14159 1,000,000 ½ ² Ⅷ",
                                        "مرحبا שלום हिन्दी ไทย",
                                        "<|not a token|> <0x41> ▁",
                                        "int main(void)\n{\n    return 0;\n}\n"};
    for (size_t i = 0; i < CLV_COUNT(texts); i++)
        assert_round_trip(tok, texts[i]);
}

#define CODE_TEXT  "x = 12345;\r\n\r\n    return"
#define EMOJI_TEXT "\U0001F389\U0001F468\u200D\U0001F469"

static void test_gpt2(void **state)
{
    (void)state;
    clv_tokenizer *tok = shared_tokenizer("tokenizers/gpt2");
    assert_int_equal(clv_tokenizer_vocab_size(tok), 50257);
    assert_int_equal(clv_tokenizer_eod(tok), 50256);
    ENCODES(tok, "Hello world", 15496, 995);
    ENCODES(tok, "I'LL don't we\u2019ve", 40, 6, 3069, 836, 470, 356, 447, 247, 303);
    ENCODES(tok, CODE_TEXT, 87, 796, 17031, 2231, 26, 201, 198, 201, 198, 220, 220, 220, 1441);
    ENCODES(tok, "caf\u00E9 e\u0301cole", 66, 1878, 2634, 304, 136, 223, 1073, 293);
    ENCODES(tok, "\u4E2D\u6587 \u65E5\u672C\u8A9E", 40792, 23877, 229, 10545, 245, 98, 17312, 105, 45739, 252);
    ENCODES(tok, EMOJI_TEXT, 8582, 236, 231, 41840, 101, 447, 235, 41840, 102);
    ENCODES(tok, "a   b\t\tc \n d", 64, 220, 220, 275, 197, 197, 66, 220, 198, 288);
    ENCODES(tok, "a<|endoftext|> a", 64, 50256, 257);
    assert_round_trips(tok);
    clv_tokenizer_free(tok);
}

static void test_llama3(void **state)
{
    (void)state;
    clv_tokenizer *tok = shared_tokenizer("tokenizers/llama3");
    assert_int_equal(clv_tokenizer_vocab_size(tok), 128256);
    assert_int_equal(clv_tokenizer_id(tok, "<|begin_of_text|>"), 128000);
    assert_int_equal(clv_tokenizer_eod(tok), 128001);
    ENCODES(tok, "Hello world", 9906, 1917);
    ENCODES(tok, "I'LL don't we\u2019ve", 40, 6, 4178, 1541, 956, 584, 4070);
    ENCODES(tok, CODE_TEXT, 87, 284, 220, 4513, 1774, 1967, 262, 471);
    ENCODES(tok, "caf\u00E9 e\u0301cole", 936, 59958, 384, 54939, 56745);
    ENCODES(tok, "\u4E2D\u6587 \u65E5\u672C\u8A9E", 108891, 105180, 102158);
    ENCODES(tok, EMOJI_TEXT, 9468, 236, 231, 9468, 239, 101, 102470, 9468, 239, 102);
    ENCODES(tok, "a   b\t\tc \n d", 64, 256, 293, 197, 1470, 720, 294);
    assert_round_trips(tok);
    clv_tokenizer_free(tok);
}

static void test_mistral(void **state)
{
    (void)state;
    clv_tokenizer *tok = shared_tokenizer("tokenizers/mistral");
    assert_int_equal(clv_tokenizer_vocab_size(tok), 32000);
    assert_int_equal(clv_tokenizer_eod(tok), 2);
    ENCODES(tok, "Hello world", 22557, 1526);
    ENCODES(tok, "I'LL don't we\u2019ve", 315, 28742, 5292, 949, 28742, 28707, 478, 28809, 333);
    ENCODES(tok, CODE_TEXT, 1318, 327, 28705, 28740, 28750, 28770, 28781, 28782, 1271, 13, 28801, 13, 2287, 604);
    ENCODES(tok, "caf\u00E9 e\u0301cole", 28345, 317, 28949, 17973);
    ENCODES(tok, "\u4E2D\u6587 \u65E5\u672C\u8A9E", 28705, 28991, 29019, 28705, 29142, 29119, 30321);
    ENCODES(tok, EMOJI_TEXT, 28705, 31862, 243, 162, 148, 171, 29274, 243, 162, 148, 172);
    ENCODES(tok, "a   b\t\tc \n d", 264, 259, 287, 12, 12, 28717, 28705, 13, 281);
    assert_round_trip(tok, "naïve café 漢字 🎉\n");
    clv_tokenizer_free(tok);
}

static void test_qwen3(void **state)
{
    (void)state;
    clv_tokenizer *tok = shared_tokenizer("tokenizers/qwen3");
    assert_int_equal(clv_tokenizer_vocab_size(tok), 151669);
    assert_int_equal(clv_tokenizer_eod(tok), 151643);
    ENCODES(tok, "Hello world", 9707, 1879);
    ENCODES(tok, "I'LL don't we\u2019ve", 40, 6, 4086, 1513, 944, 582, 3982);
    ENCODES(tok, CODE_TEXT, 87, 284, 220, 16, 17, 18, 19, 20, 1926, 262, 470);
    ENCODES(tok, "caf\u00E9 e\u0301cole", 924, 58858, 3958, 55645);
    ENCODES(tok, "\u4E2D\u6587 \u65E5\u672C\u8A9E", 104811, 75402, 21894, 102819);
    ENCODES(tok, EMOJI_TEXT, 144841, 145367, 378, 235, 145233);
    ENCODES(tok, "a   b\t\tc \n d", 64, 256, 293, 197, 1444, 715, 294);
    assert_round_trips(tok);
    clv_tokenizer_free(tok);
}

/* ---- the small real model: its expected.json --------------------------------------------------------------------- */

static void expected_ids(const clv_json *json, const char *key, clv_ids *out)
{
    const clv_node list = clv_json_get(json, CLV_JSON_ROOT, key);
    for (clv_node node = clv_json_first(json, list); node != CLV_NO_NODE; node = clv_json_next(json, node)) {
        int64_t id;
        assert_true(clv_json_i64(json, node, &id));
        clv_ids_add(out, (int32_t)id);
    }
}

static void assert_text_and_ids(const clv_tokenizer *tok, const clv_json *json, const char *text_key,
                                const char *ids_key)
{
    size_t n;
    const char *text = clv_json_string(json, clv_json_get(json, CLV_JSON_ROOT, text_key), &n);
    clv_ids want = {0}, ids = {0};
    clv_text back = {0};
    expected_ids(json, ids_key, &want);
    assert_int_equal(clv_tokenizer_encode(tok, text, n, true, &ids).code, CLV_OK);
    assert_ids(&ids, 0, want.id, want.count);
    assert_int_equal(clv_tokenizer_decode(tok, want.id, want.count, true, &back).code, CLV_OK);
    assert_string_equal(back.data, text);
    clv_text_free(&back);
    clv_ids_free(&want);
    clv_ids_free(&ids);
}

static void test_stories(void **state)
{
    (void)state;
    clv_tokenizer *tok = shared_tokenizer("models/stories260k");
    clv_json *json;
    assert_int_equal(clv_json_load(&json, CLEAVE_SHARED "/models/stories260k/expected.json").code, CLV_OK);
    assert_text_and_ids(tok, json, "prompt", "prompt_ids");
    assert_text_and_ids(tok, json, "greedy_text", "greedy_ids");
    assert_int_equal(clv_tokenizer_eod(tok), 2);
    clv_json_free(json);
    clv_tokenizer_free(tok);
}

/* ---- threads, folders -------------------------------------------------------------------------------------------- */

typedef struct job {
    const clv_tokenizer *tok;
    const clv_text *text;
    clv_ids ids;
} job;

static void *encode_job(void *argument)
{
    job *j = argument;
    for (int round = 0; round < 20; round++) {
        j->ids.count = 0;
        clv_tokenizer_encode(j->tok, j->text->data, j->text->length, true, &j->ids);
    }
    return NULL;
}

static void test_threads_share_a_tokenizer(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    static const char *const specials[] = {"<|endoftext|>"};
    clv_text text = {0};
    for (int i = 0; i < 300; i++)
        clv_text_printf(&text, "line %d: %d é 漢字<|endoftext|>", i, i * i);
    clv_bpe_trainer *trainer = clv_bpe_trainer_create();
    clv_bpe_trainer_feed(trainer, text.data, text.length);
    clv_tokenizer *tok;
    assert_int_equal(clv_bpe_trainer_finish(trainer, 400, specials, 1, &tok).code, CLV_OK);
    pthread_t thread[THREADS];
    job jobs[THREADS];
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (job){.tok = tok, .text = &text};
        assert_int_equal(pthread_create(&thread[i], NULL, encode_job, &jobs[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < THREADS; i++) {
        assert_ids(&jobs[i].ids, 0, jobs[0].ids.id, jobs[0].ids.count);
        assert_decodes(tok, text.data, jobs[i].ids.id, jobs[i].ids.count);
    }
    for (int i = 0; i < THREADS; i++)
        clv_ids_free(&jobs[i].ids);
    clv_text_free(&text);
    clv_tokenizer_free(tok);
}

static void put_file(const char *folder, const char *name, const char *text)
{
    char path[256];
    clv_path_join(path, sizeof path, folder, name);
    if (text == NULL)
        assert_int_equal(remove(path), 0);
    else
        assert_string_equal(clv_file_write_atomic(path, text, strlen(text)).text, "");
}

static void assert_refused(const char *path, const char *first, const char *second)
{
    clv_tokenizer *tok;
    const clv_status st = clv_tokenizer_load(&tok, path);
    assert_int_equal(st.code, CLV_BAD_INPUT);
    assert_null(tok);
    if (strstr(st.text, first) == NULL || strstr(st.text, second) == NULL)
        fail_msg("'%s' does not say '%s' and '%s'", st.text, first, second);
}

static void test_folders(void **state)
{
    (void)state;
    char folder[] = "tokenizer-files-test-XXXXXX", vocab[64];
    clv_tokenizer *tok;
    assert_non_null(mkdtemp(folder));
    clv_path_join(vocab, sizeof vocab, folder, "vocab.json");
    assert_refused(folder, "tokenizer.json", "vocab.json");
    put_file(folder, "vocab.json", "{\"a\":0,\"b\":1,\"ab\":2,\"\\u0120\":3,\"<|endoftext|>\":4}");
    assert_refused(folder, "merges.txt", folder);
    put_file(folder, "merges.txt", "#version: 0.2\na b\n");
    for (int i = 0; i < 2; i++) {
        assert_string_equal(clv_tokenizer_load(&tok, i == 0 ? folder : vocab).text, "");
        ENCODES(tok, "ab a<|endoftext|>", 2, 3, 0, 4);
        assert_int_equal(clv_tokenizer_eod(tok), 4);
        clv_tokenizer_free(tok);
    }
    put_file(folder, "merges.txt", "#version: 0.2\na c\n");
    assert_refused(folder, "merge 0", "\"c\"");
    put_file(folder, "tokenizer.json", "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"z\":0},\"merges\":[]}}");
    assert_string_equal(clv_tokenizer_load(&tok, folder).text, ""); /* preferred */
    ENCODES(tok, "z", 0);
    assert_null(clv_tokenizer_token(tok, 1));
    clv_text told = {0};
    clv_tokenizer_describe(tok, &told);
    assert_non_null(strstr(told.data, "BPE, ids 0 to 0, 0 merges"));
    clv_text_free(&told);
    clv_tokenizer_free(tok);
    put_file(folder, "tokenizer.json", NULL);
    put_file(folder, "vocab.json", NULL);
    put_file(folder, "merges.txt", NULL);
    assert_int_equal(rmdir(folder), 0);
    assert_refused(folder, folder, "cannot open");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2),    cmocka_unit_test(test_llama3),
        cmocka_unit_test(test_mistral), cmocka_unit_test(test_qwen3),
        cmocka_unit_test(test_stories), cmocka_unit_test(test_threads_share_a_tokenizer),
        cmocka_unit_test(test_folders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
