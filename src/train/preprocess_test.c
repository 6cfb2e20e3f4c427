/* Text to token files: Megatron's rules for empty documents and ends, the same files for any number of workers. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/train_data.h"

/* One token a letter, "ab" merged; 5 ends documents. */
#define VOCAB "\"a\":0,\"b\":1,\"c\":2,\"\u010a\":3,\"ab\":4"
#define MODEL                                                                                                          \
    "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"  \
    "\"use_regex\":true},\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,"       \
    "\"trim_offsets\":true,\"use_regex\":true},\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"       \
    "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,\"vocab\":{" VOCAB "},"         \
    "\"merges\":[\"a b\"]}}"
#define END                                                                                                            \
    "{\"id\":5,\"content\":\"<|endoftext|>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"                 \
    "\"normalized\":false,\"special\":true}"

static char folder[] = "/tmp/clv_preprocess_XXXXXX";
static char in[64], out[64], made[96];
static clv_tokenizer *tok;

static void must(clv_status st)
{
    if (st.code != CLV_OK)
        fail_msg("%s", st.text);
}

static clv_tokenizer *tokenizer_with(const char *added)
{
    clv_text json = {0};
    clv_tokenizer *t;
    char path[80];
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    clv_text_printf(&json, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[%s],%s", added,
                    MODEL);
    must(clv_file_write_atomic(path, json.data, json.length));
    must(clv_tokenizer_load(&t, path));
    clv_text_free(&json);
    unlink(path);
    return t;
}

static clv_status preprocess(const char *name, const char *text, bool eod, int workers, clv_preprocess_counts *counts)
{
    snprintf(in, sizeof in, "%s/%s", folder, name);
    must(clv_file_write_atomic(in, text, strlen(text)));
    const clv_status st = clv_preprocess(
        &(clv_preprocess_spec){.input = in, .tokenizer = tok, .append_eod = eod, .workers = workers, .output = out},
        counts);
    unlink(in);
    return st;
}

/* Documents in brackets, sequences parted by ';'. */
static void holds(const char *expected)
{
    clv_indexed *data;
    clv_text all = {0};
    must(clv_indexed_open(&data, made));
    for (int64_t d = 0; d < clv_indexed_documents(data); d++) {
        clv_text_printf(&all, "[");
        for (int64_t s = clv_indexed_document_start(data, d); s < clv_indexed_document_start(data, d + 1); s++) {
            int32_t ids[64];
            must(clv_indexed_read(data, s, 0, clv_indexed_length(data, s), ids));
            for (int64_t i = 0; i < clv_indexed_length(data, s); i++)
                clv_text_printf(&all, "%d", ids[i]);
            clv_text_printf(&all, ";");
        }
        clv_text_printf(&all, "]");
    }
    assert_string_equal(all.data, expected);
    clv_text_free(&all);
    clv_indexed_close(data);
}

static void json_lines(void **state)
{
    (void)state;
    clv_preprocess_counts counts;
    must(preprocess("in.jsonl", "{\"text\":\"\"}\n{\"text\":\"a\"}\n", true, 2, &counts));
    holds("[][05;]");
    assert_int_equal(counts.documents, 2);
    assert_int_equal(counts.sequences, 1);
    assert_int_equal(counts.tokens, 2);
    assert_int_equal(counts.bytes, 1);
    must(preprocess("in.jsonl", "{\"text\":[\"ab\",\"\",\"c\"]}\n\n{\"text\":[]}\n", true, 1, &counts));
    holds("[4;25;][]");
    must(preprocess("in.jsonl", "{\"text\":[\"ab\",\"\",\"c\"]}", false, 1, &counts));
    holds("[4;2;]");
}

static void plain_text(void **state)
{
    (void)state;
    clv_preprocess_counts counts;
    must(preprocess("in.txt", "ab\nc\n\n\nb\n", true, 2, &counts));
    holds("[4325;][15;]");
    assert_int_equal(counts.bytes, 5);
}

static void same_for_any_workers(void **state)
{
    (void)state;
    clv_text text = {0}, one, many;
    clv_preprocess_counts counts;
    char bin[112];
    snprintf(bin, sizeof bin, "%s.bin", made);
    for (int i = 0; i < 5000; i++) { /* more than two batches */
        for (int k = 0; k < i % 40; k++)
            clv_text_add(&text, k % 3 ? "ab" : "c\n", 2);
        clv_text_printf(&text, "a\n\n");
    }
    must(preprocess("in.txt", text.data, true, 1, &counts));
    assert_int_equal(counts.documents, 5000);
    must(clv_file_read(bin, &one));
    assert_int_equal(one.length, 2 * counts.tokens);
    must(preprocess("in.txt", text.data, true, 3, &counts));
    must(clv_file_read(bin, &many));
    assert_int_equal(one.length, many.length);
    assert_memory_equal(one.data, many.data, one.length);
    clv_text_free(&text);
    clv_text_free(&one);
    clv_text_free(&many);
}

static void what_is_refused(void **state)
{
    (void)state;
    clv_preprocess_counts counts;
    clv_status st = preprocess("in.jsonl", "{\"text\":\"a\"}\n\n{\"txt\":\"a\"}\n", true, 2, &counts);
    assert_int_equal(st.code, CLV_BAD_INPUT);
    assert_non_null(strstr(st.text, "in.jsonl, line 3: key \"text\" is missing"));
    st = preprocess("in.txt", "a\n\nb \xff", true, 2, &counts);
    assert_int_equal(st.code, CLV_BAD_INPUT);
    assert_non_null(strstr(st.text, "in.txt, line 3: "));
    st = preprocess("in.txt", "\n\n", true, 2, &counts);
    assert_non_null(strstr(st.text, "without a single token"));

    clv_tokenizer *with = tok;
    tok = tokenizer_with("");
    st = preprocess("in.txt", "a", true, 2, &counts);
    assert_int_equal(st.code, CLV_BAD_INPUT);
    assert_non_null(strstr(st.text, "--append-eod"));
    clv_tokenizer_free(tok);
    tok = with;
}

static int setup(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL)
        return 1;
    snprintf(out, sizeof out, "%s/out", folder);
    snprintf(made, sizeof made, "%s_text_document", out);
    tok = tokenizer_with(END);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    char path[112];
    snprintf(path, sizeof path, "%s.bin", made);
    unlink(path);
    snprintf(path, sizeof path, "%s.idx", made);
    unlink(path);
    clv_tokenizer_free(tok);
    return rmdir(folder); /* fails when a temporary file was left behind */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(json_lines), cmocka_unit_test(plain_text),
                                       cmocka_unit_test(same_for_any_workers), cmocka_unit_test(what_is_refused)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
