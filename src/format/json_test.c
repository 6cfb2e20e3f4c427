/* json_test.c - what the reader takes and refuses, exactness of numbers, speed on a large vocabulary, damaged input. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/format.h"

static clv_json *parse(const char *text)
{
    clv_json *json;
    const clv_status st = clv_json_parse(&json, text, strlen(text), "t");
    assert_string_equal(st.text, "");
    return json;
}

static void refuse(const char *text, size_t n, const char *message)
{
    clv_json *json;
    const clv_status st = clv_json_parse(&json, text, n, "t");
    assert_int_equal(st.code, CLV_BAD_INPUT);
    assert_null(json);
    if (strstr(st.text, message) == NULL)
        fail_msg("%.40s: '%s' does not say '%s'", text, st.text, message);
}

static void test_walk(void **state)
{
    (void)state;
    clv_json *json = parse(" {\"a\" : [1, [], {}, \"x\", null], \"b\":{\"c\":true},\"d\":false}\n");
    assert_int_equal(clv_json_count(json, CLV_JSON_ROOT), 3);
    const clv_node a = clv_json_get(json, CLV_JSON_ROOT, "a");
    assert_int_equal(clv_json_count(json, a), 5);
    static const clv_json_kind kinds[] = {CLV_JSON_NUMBER, CLV_JSON_ARRAY, CLV_JSON_OBJECT, CLV_JSON_STRING,
                                          CLV_JSON_NULL};
    clv_node at = clv_json_first(json, a);
    for (size_t i = 0; i < CLV_COUNT(kinds); i++, at = clv_json_next(json, at)) {
        assert_int_equal(clv_json_kind_of(json, at), kinds[i]);
        assert_null(clv_json_key(json, at, NULL));
        if (i == 1 || i == 2)
            assert_int_equal(clv_json_first(json, at), CLV_NO_NODE);
    }
    assert_int_equal(at, CLV_NO_NODE);
    const clv_node b = clv_json_next(json, a);
    assert_string_equal(clv_json_key(json, b, NULL), "b");
    bool flag = false;
    assert_true(clv_json_bool(json, clv_json_get(json, b, "c"), &flag) && flag);
    assert_true(clv_json_bool(json, clv_json_get(json, CLV_JSON_ROOT, "d"), &flag) && !flag);
    assert_int_equal(clv_json_get(json, CLV_JSON_ROOT, "e"), CLV_NO_NODE);
    assert_int_equal(clv_json_get(json, a, "c"), CLV_NO_NODE);
    assert_null(clv_json_string(json, a, NULL));
    const clv_node none = clv_json_get(json, CLV_NO_NODE, "e"); /* chains of questions need no checks in between */
    assert_true(none == CLV_NO_NODE && clv_json_first(json, none) == none && clv_json_next(json, none) == none);
    assert_true(clv_json_string(json, none, NULL) == NULL && clv_json_count(json, none) == 0);
    clv_json_free(json);
}

static void test_strings(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"\"\"", ""},
        {"\"a\\\"\\\\\\/\\b\\f\\n\\r\\tz\"", "a\"\\/\b\f\n\r\tz"},
        {"\"\\u0041\\u00e9\\u20AC\"", "A\xC3\xA9\xE2\x82\xAC"},
        {"\"\\ud83d\\uDE00\"", "\xF0\x9F\x98\x80"},
        {"\"\\uDBFF\\uDFFF\"", "\xF4\x8F\xBF\xBF"},
        {"\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\x7F\"", "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\x7F"},
    };
    for (size_t i = 0; i < CLV_COUNT(cases); i++) {
        clv_json *json = parse(cases[i][0]);
        size_t n;
        assert_string_equal(clv_json_string(json, CLV_JSON_ROOT, &n), cases[i][1]);
        assert_int_equal(n, strlen(cases[i][1]));
        clv_text back = {0};
        clv_json_add_string(&back, cases[i][1], n);
        clv_json *again = parse(back.data);
        assert_string_equal(clv_json_string(again, CLV_JSON_ROOT, NULL), cases[i][1]);
        clv_text_free(&back);
        clv_json_free(again);
        clv_json_free(json);
    }
    clv_json *json = parse("{\"a\\u0000b\":\"\\u0000\"}"); /* a zero is a character like others */
    assert_int_equal(clv_json_get(json, CLV_JSON_ROOT, "a"), CLV_NO_NODE);
    size_t n;
    clv_json_string(json, clv_json_first(json, CLV_JSON_ROOT), &n);
    assert_int_equal(n, 1);
    clv_json_free(json);
}

static void test_numbers(void **state)
{
    (void)state;
    clv_json *json = parse("[9223372036854775807,-9223372036854775808,9223372036854775808,1.0,1e2,-0,9007199254740993,"
                           "1e999,0.1,-2.5E-3]");
    const bool whole[] = {true, true, false, false, false, true, true, false, false, false};
    const int64_t value[] = {INT64_MAX, INT64_MIN, 0, 0, 0, 0, 9007199254740993, 0, 0, 0};
    clv_node at = clv_json_first(json, CLV_JSON_ROOT);
    for (size_t i = 0; i < CLV_COUNT(whole); i++, at = clv_json_next(json, at)) {
        int64_t got = -7;
        double f = 0.0;
        assert_int_equal(clv_json_i64(json, at, &got), whole[i]);
        assert_true(got == (whole[i] ? value[i] : -7));
        assert_int_equal(clv_json_f64(json, at, &f), i != 7);
        if (i == 8)
            assert_true(f == 0.1);
        if (i == 9)
            assert_true(f == -2.5e-3);
    }
    clv_json_free(json);
}

static void test_refusals(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"", "line 1, column 1: the text ends where a value was expected"},
        {" ", "column 2"},
        {"[1,]", "column 4: ']' where a value was expected"},
        {"[1 2]", "',' or ']'"},
        {"[,1]", "a value"},
        {"{\"a\":1,}", "'}' where a key in double quotes"},
        {"{\"a\" 1}", "':'"},
        {"{a:1}", "a key in double quotes"},
        {"{\"a\":1]", "',' or '}'"},
        {"[1}", "',' or ']'"},
        {"[1", "the text ends"},
        {"{", "the text ends"},
        {"1 1", "column 3: '1' where the end of the text"},
        {"]", "a value"},
        {"nul", "a value"},
        {"True", "a value"},
        {"NaN", "a value"},
        {"01", "begin with 0"},
        {"-", "a digit"},
        {"+1", "a value"},
        {".5", "a value"},
        {"1.", "a digit"},
        {"1e", "a digit"},
        {"1e+", "a digit"},
        {"0x10", "the end of the text"},
        {"\"a", "column 1: this string is never closed"},
        {"\"a\nb\"", "column 3: control character 0x0a"},
        {"\"\\x\"", "a backslash must be followed"},
        {"\"\\", "a backslash must be followed"},
        {"\"\\u12g4\"", "four hexadecimal digits"},
        {"\"\\u12", "four hexadecimal digits"},
        {"\"\\ud800\"", "first half of a surrogate pair"},
        {"\"\\ud800\\u0041\"", "first half of a surrogate pair"},
        {"\"\\udc00\"", "second half of a surrogate pair"},
        {"\"\xC0\x80\"", "byte 0xc0"},
        {"\"\xED\xA0\x80\"", "byte 0xed"},
        {"\"\xF4\x90\x80\x80\"", "byte 0xf4"},
        {"\"\xE2\x82\"", "byte 0xe2"},
        {"\"\x80\"", "byte 0x80"},
        {"\xEF\xBB\xBF{}", "byte 0xef where a value"},
        {"{\"a\":1,\n \"\\u0061\":2}", "line 2, column 2: the key \"a\" stands twice"},
        {"{\"x\":{},\"y\":[{\"a\":1}],\"x\":0}", "the key \"x\" stands twice"},
        {"[\"\xC3\xA9\", ?]", "column 7: '?'"}, /* columns count characters */
    };
    for (size_t i = 0; i < CLV_COUNT(cases); i++)
        refuse(cases[i][0], strlen(cases[i][0]), cases[i][1]);
    refuse("1\0", 2, "byte 0x00");
    refuse("\"\\\0\"", 4, "a backslash must be followed");
}

static void test_depth(void **state)
{
    (void)state;
    enum { DEEP = 100000 };
    char *text = malloc(DEEP + 1);
    memset(text, '[', DEEP);
    refuse(text, DEEP, "nested more than 512 deep");
    memset(text, '[', 512);
    memset(text + 512, ']', 512);
    text[1024] = 0;
    clv_json_free(parse(text));
    free(text);
}

/* The members of a large object stay nearly linear in time, also when the last key is a duplicate. */
static void test_large_object(void **state)
{
    (void)state;
    enum { MEMBERS = 150000 };
    clv_text text = {0};
    clv_text_add(&text, "{", 1);
    for (int i = 0; i < MEMBERS; i++)
        clv_text_printf(&text, "\"token %d\":%d,", i, i);
    clv_text twice = {0};
    clv_text_add(&twice, text.data, text.length);
    clv_text_printf(&text, "\"last\":0}");
    clv_text_printf(&twice, "\"token 77\":0}");
    const double begin = clv_seconds();
    clv_json *json = parse(text.data);
    assert_true(clv_seconds() - begin < 2.0); /* 0.03 s; quadratic would be minutes */
    assert_int_equal(clv_json_count(json, CLV_JSON_ROOT), MEMBERS + 1);
    refuse(twice.data, twice.length, "\"token 77\" stands twice");
    clv_json_free(json);
    clv_text_free(&text);
    clv_text_free(&twice);
}

static void test_optional_members(void **state)
{
    (void)state;
    clv_json *json = parse("{\"i\":3,\"f\":1.5,\"b\":true,\"none\":null,\"s\":\"word\",\"o\":{}}");
    int64_t i = 7;
    double f = 7.0;
    bool b = false;
    assert_int_equal(clv_json_opt_i64(json, CLV_JSON_ROOT, "absent", &i).code, CLV_OK);
    assert_int_equal(clv_json_opt_i64(json, CLV_JSON_ROOT, "none", &i).code, CLV_OK);
    assert_int_equal(i, 7);
    assert_int_equal(clv_json_opt_i64(json, CLV_JSON_ROOT, "i", &i).code, CLV_OK);
    assert_int_equal(i, 3);
    assert_int_equal(clv_json_opt_f64(json, CLV_JSON_ROOT, "f", &f).code, CLV_OK);
    assert_true(f == 1.5);
    assert_int_equal(clv_json_opt_bool(json, CLV_JSON_ROOT, "b", &b).code, CLV_OK);
    assert_true(b);
    assert_string_equal(clv_json_opt_i64(json, CLV_JSON_ROOT, "f", &i).text,
                        "t: key \"f\" is 1.5; an integer was expected");
    assert_string_equal(clv_json_opt_f64(json, CLV_JSON_ROOT, "s", &f).text,
                        "t: key \"s\" is \"word\"; a number was expected");
    assert_string_equal(clv_json_opt_bool(json, CLV_JSON_ROOT, "o", &b).text,
                        "t: key \"o\" is an object; true or false was expected");
    clv_json_free(json);
}

static void test_writing(void **state)
{
    (void)state;
    clv_text out = {0};
    clv_json_add_string(&out, "a\"\\\n\x01\xFFz\0\xC3", 9);
    assert_string_equal(out.data, "\"a\\\"\\\\\\n\\u0001\xEF\xBF\xBDz\\u0000\xEF\xBF\xBD\"");
    static const struct {
        double value;
        const char *text;
    } cases[] = {{1.0, "1.0"},         {-0.5, "-0.5"},     {1e-5, "1e-05"},
                 {10000.0, "10000.0"}, {0.1, "0.1"},       {1e300, "1e+300"},
                 {NAN, "null"},        {INFINITY, "null"}, {0.1 + 0.2, "0.30000000000000004"}};
    for (size_t i = 0; i < CLV_COUNT(cases); i++) {
        clv_text number = {0};
        clv_json_add_number(&number, cases[i].value);
        assert_string_equal(number.data, cases[i].text);
        clv_text_free(&number);
    }
    for (uint64_t i = 0; i < 2000; i++) { /* any double comes back */
        clv_text number = {0};
        const double value = ldexp(clv_normal_at(1, i), (int)(clv_uniform_at(2, i) * 1900.0f) - 950);
        clv_json_add_number(&number, i == 0 ? DBL_MAX : value);
        clv_json *json = parse(number.data);
        double back = 0.0;
        assert_true(clv_json_f64(json, CLV_JSON_ROOT, &back) && back == (i == 0 ? DBL_MAX : value));
        clv_json_free(json);
        clv_text_free(&number);
    }
    clv_text_free(&out);
}

/* Random damage to a valid text: refused or read, never a crash or a wild read. The copy has exactly n bytes, so that a
 * sanitizer sees one byte too far. */
static void test_damaged_text(void **state)
{
    (void)state;
    static const char valid[] =
        "{\"a\":[1,-2.5e3,true,false,null],\"\\ud83d\\ude00\":{\"b\":\"x\\n\xE2\x82\xAC\"},\"c\":[[[]]]}";
    static const char letters[] = "{}[]\",:\\u0dtfn-+.eE1 \xE2\x80\xFF";
    uint64_t draw = 0;
    for (int round = 0; round < 20000; round++) {
        size_t n = sizeof valid - 1;
        char *text = malloc(n);
        memcpy(text, valid, n);
        const int changes = 1 + round % 4;
        for (int c = 0; c < changes; c++) {
            const size_t at = (size_t)(clv_uniform_at(3, draw++) * (float)n);
            text[at] = letters[(size_t)(clv_uniform_at(3, draw++) * (float)(sizeof letters - 1))];
        }
        if (round % 5 == 0)
            n = (size_t)(clv_uniform_at(3, draw++) * (float)n);
        char *exact = realloc(text, n > 0 ? n : 1);
        clv_json *json;
        const clv_status st = clv_json_parse(&json, exact, n, "t");
        assert_true((st.code == CLV_OK) == (json != NULL));
        clv_json_free(json);
        free(exact);
    }
}

static void test_large_tokenizer(void **state)
{
    (void)state;
    const char *path = CLEAVE_SHARED "/tokenizers/qwen3/tokenizer.json";
    if (!clv_file_exists(path)) {
        print_message("skipped: %s is absent\n", path);
        skip();
    }
    clv_json *json;
    const double begin = clv_seconds();
    assert_string_equal(clv_json_load(&json, path).text, "");
    print_message("11 MB in %.3f s\n", clv_seconds() - begin);
    const clv_node model = clv_json_get(json, CLV_JSON_ROOT, "model");
    assert_int_equal(clv_json_count(json, clv_json_get(json, model, "vocab")), 151643);
    clv_json_free(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_walk),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_large_object),
        cmocka_unit_test(test_optional_members),
        cmocka_unit_test(test_writing),
        cmocka_unit_test(test_damaged_text),
        cmocka_unit_test(test_large_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
