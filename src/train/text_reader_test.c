/* Documents of text files: what parts them, what a range holds, where a held-out share begins. */
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

static char folder[] = "/tmp/clv_reader_XXXXXX";
static char path[64];

static void must(clv_status st)
{
    if (st.code != CLV_OK)
        fail_msg("%s", st.text);
}

static void write_text(const char *text)
{
    must(clv_file_write_atomic(path, text, strlen(text)));
}

/* The documents of a range, each as "line:text|". */
static void reads(clv_text_format format, int64_t first, int64_t last, const char *expected)
{
    clv_text_reader *reader;
    clv_text raw = {0}, all = {0};
    int64_t line;
    bool more;
    clv_text_add(&all, "", 0);
    must(clv_text_reader_open(&reader, path, format, first, last));
    for (;;) {
        must(clv_text_reader_next(reader, &raw, &line, &more));
        if (!more)
            break;
        clv_text_printf(&all, "%lld:%s|", (long long)line, raw.data);
    }
    int64_t total;
    const int64_t at = clv_text_reader_at(reader, &total);
    assert_int_equal(at, total);
    clv_text_reader_close(reader);
    assert_string_equal(all.data, expected);
    clv_text_free(&raw);
    clv_text_free(&all);
}

static void documents(void **state)
{
    (void)state;
    write_text("\n \t\none\ntwo\n\n\r\n  three  \n\nfour");
    reads(CLV_TEXT_BLOCKS, 0, 0, "3:one\ntwo|7:  three  |9:four|");
    reads(CLV_TEXT_AUTO, 0, 12, "3:one\ntwo|");
    reads(CLV_TEXT_WHOLE, 12, 0, "1:\n\r\n  three  \n\nfour|");
    reads(CLV_TEXT_LINES, 0, 0, "3:one|4:two|7:  three  |9:four|");
    write_text("a\r\nb\r\n\r\nc\r\n");
    reads(CLV_TEXT_BLOCKS, 0, 0, "1:a\r\nb|4:c|");
    write_text("");
    reads(CLV_TEXT_BLOCKS, 0, 0, "");
    reads(CLV_TEXT_WHOLE, 0, 0, "");
    assert_int_equal(clv_text_format_of("a.b/x.jsonl", CLV_TEXT_AUTO), CLV_TEXT_LINES);
    assert_int_equal(clv_text_format_of("x.txt", CLV_TEXT_AUTO), CLV_TEXT_BLOCKS);
    clv_text_reader *reader;
    assert_int_equal(clv_text_reader_open(&reader, "/nowhere.txt", CLV_TEXT_AUTO, 0, 0).code, CLV_BAD_INPUT);
    assert_int_equal(clv_text_reader_open(&reader, folder, CLV_TEXT_AUTO, 0, 0).code, CLV_BAD_INPUT);
}

static void cuts(void **state)
{
    (void)state;
    int64_t cut = -1;
    write_text("one\n\ntwo\nmore\n\nthree\n\nfour\n\n"); /* documents at 0, 5, 15, 22; 28 bytes */
    must(clv_text_cut(path, CLV_TEXT_BLOCKS, 50, &cut));
    assert_int_equal(cut, 15);
    reads(CLV_TEXT_BLOCKS, 0, cut, "1:one|3:two\nmore|");
    reads(CLV_TEXT_BLOCKS, cut, 0, "1:three|3:four|");
    must(clv_text_cut(path, CLV_TEXT_BLOCKS, 30, &cut));
    assert_int_equal(cut, 22);
    const clv_status st = clv_text_cut(path, CLV_TEXT_BLOCKS, 5, &cut);
    assert_int_equal(st.code, CLV_BAD_INPUT);
    assert_non_null(strstr(st.text, path));

    write_text("1111\n2222\n3333\n4444\n");
    must(clv_text_cut(path, CLV_TEXT_LINES, 50, &cut)); /* a line begins right there */
    assert_int_equal(cut, 10);
    must(clv_text_cut(path, CLV_TEXT_LINES, 49, &cut));
    assert_int_equal(cut, 15);
}

static clv_status append(void *user, const char *text, size_t n)
{
    clv_text_add(user, text, n);
    clv_text_add(user, "|", 1);
    return clv_ok();
}

static void texts(void **state)
{
    (void)state;
    static const struct {
        const char *raw, *texts, *error;
    } cases[] = {{"{\"text\": \"a\\nb\", \"other\": 1}", "a\nb|", NULL},
                 {"{\"text\": [\"a\", \"\", \"b\"]}", "a||b|", NULL},
                 {"{\"text\": []}", "", NULL},
                 {"{\"other\": 1}", NULL, "\"text\" is missing"},
                 {"{\"text\": 1}", NULL, "expected a string"},
                 {"{\"text\": [\"a\", 1]}", NULL, "not a string"},
                 {"[1]", NULL, "expected a JSON object"},
                 {"{\"text\": ", NULL, "JSON"}};
    for (size_t i = 0; i < CLV_COUNT(cases); i++) {
        clv_text raw = {0}, all = {0};
        clv_text_add(&raw, cases[i].raw, strlen(cases[i].raw));
        clv_text_add(&all, "", 0);
        const clv_status st = clv_text_each(CLV_TEXT_LINES, "text", &raw, append, &all);
        if (cases[i].error == NULL) {
            must(st);
            assert_string_equal(all.data, cases[i].texts);
        } else {
            assert_int_equal(st.code, CLV_BAD_INPUT);
            assert_non_null(strstr(st.text, cases[i].error));
        }
        clv_text_free(&raw);
        clv_text_free(&all);
    }
}

static int setup(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL)
        return 1;
    snprintf(path, sizeof path, "%s/in.txt", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(documents), cmocka_unit_test(cuts), cmocka_unit_test(texts)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
