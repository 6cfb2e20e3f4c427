/* tokenizer_test_internal.h - for the tokenizer's tests: tokenizers from short texts, and comparisons of ids. */
#ifndef CLV_TOKENIZER_TEST_INTERNAL_H
#define CLV_TOKENIZER_TEST_INTERNAL_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "format/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

/* JSON with ' in place of ", to be readable in C. */
static inline clv_status parse_quoted(clv_tokenizer **out, const char *quoted)
{
    char *json = clv_strdup(quoted);
    for (char *at = json; *at != 0; at++)
        if (*at == '\'')
            *at = '"';
    const clv_status st = clv_tokenizer_parse(out, json, strlen(json), "test.json");
    free(json);
    return st;
}

static inline clv_tokenizer *tokenizer_of(const char *quoted)
{
    clv_tokenizer *tok;
    const clv_status st = parse_quoted(&tok, quoted);
    if (st.code != CLV_OK)
        fail_msg("%s", st.text);
    return tok;
}

static inline void assert_ids(const clv_ids *ids, size_t from, const int32_t *want, size_t count)
{
    assert_int_equal(ids->count - from, count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(ids->id[from + i], want[i]);
}

static inline void assert_encodes(const clv_tokenizer *tok, const char *text, const int32_t *want, size_t count)
{
    clv_ids ids = {0};
    const clv_status st = clv_tokenizer_encode(tok, text, strlen(text), false, &ids);
    assert_string_equal(st.text, "");
    assert_ids(&ids, 0, want, count);
    clv_ids_free(&ids);
}
#define ENCODES(tok, text, ...)                                                                                        \
    assert_encodes(tok, text, (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

static inline void assert_decodes(const clv_tokenizer *tok, const char *want, const int32_t *ids, size_t count)
{
    clv_text text = {0};
    const clv_status st = clv_tokenizer_decode(tok, ids, count, false, &text);
    assert_string_equal(st.text, "");
    assert_string_equal(text.data, want);
    clv_text_free(&text);
}
#define DECODES(tok, want, ...)                                                                                        \
    assert_decodes(tok, want, (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

#endif
