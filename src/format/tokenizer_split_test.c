/* tokenizer_split_test.c - the three patterns against pieces that Hugging Face's library cut, and the classes. */
#include "format/tokenizer_test_internal.h"

static void assert_splits(clv_pattern pattern, const char *text, const char *want)
{
    clv_text pieces = {0};
    const size_t n = strlen(text);
    for (size_t at = 0, length; at < n; at += length) {
        length = clv_split_next(pattern, text + at, n - at);
        assert_true(length > 0 && length <= n - at);
        clv_text_add(&pieces, "|", at > 0 ? 1 : 0);
        clv_text_add(&pieces, text + at, length);
    }
    assert_string_equal(pieces.data, want);
    clv_text_free(&pieces);
}

static void test_known_splits(void **state)
{
    (void)state;
    static const char *const cases[][4] = {
        {"he'S   done.\n\n  x = 12345;", "he|'|S|  | done|.|\n\n | x| =| 12345|;",
         "he|'S|  | done|.\n\n| | x| =| |123|45|;", "he|'S|  | done|.\n\n| | x| =| |1|2|3|4|5|;"},
        {"a  b\t\tc \n d", "a| | b|\t|\t|c| \n| d", "a| | b|\t|\tc| \n| d", "a| | b|\t|\tc| \n| d"},
        {"  \n\n  foo", "  \n\n | foo", "  \n\n| | foo", "  \n\n| | foo"},
        {"x\u00A0y", "x|\u00A0|y", "x|\u00A0y", "x|\u00A0y"},
        {"e\u0301cole", "e|\u0301|cole", "e|\u0301cole", "e|\u0301cole"},
        /* the long s folds to s, under (?i:) alone */
        {"I'\u017F 'LL", "I|'|\u017F| '|LL", "I|'\u017F| '|LL", "I|'\u017F| '|LL"},
        {"a'\u017Fb'Sb", "a|'|\u017Fb|'|Sb", "a|'\u017F|b|'S|b", "a|'\u017F|b|'S|b"},
        {"x  ", "x|  ", "x|  ", "x|  "},
        {"\r\n\r\nx\r", "\r\n\r|\n|x|\r", "\r\n\r\n|x|\r", "\r\n\r\n|x|\r"},
        {"'", "'", "'", "'"},
        {"we've''re", "we|'ve|''|re", "we|'ve|''|re", "we|'ve|''|re"},
        {"\u0661\u0662\u0663\u0664 \u4E2D1", "\u0661\u0662\u0663\u0664| \u4E2D|1",
         "\u0661\u0662\u0663|\u0664| \u4E2D|1", "\u0661|\u0662|\u0663|\u0664| \u4E2D|1"},
    };
    for (size_t i = 0; i < CLV_COUNT(cases); i++)
        for (int pattern = 0; pattern < CLV_PATTERNS; pattern++)
            assert_splits((clv_pattern)pattern, cases[i][0], cases[i][pattern + 1]);
}

static size_t points_of(const clv_code_range *range, size_t count)
{
    size_t points = 0;
    for (size_t i = 0; i < count; i++) {
        assert_true(range[i].first <= range[i].last && (i == 0 || range[i].first > range[i - 1].last + 1));
        points += range[i].last - range[i].first + 1;
    }
    return points;
}

static void test_classes(void **state)
{
    (void)state;
    assert_int_equal(clv_letter_range_count, 677);
    assert_int_equal(points_of(clv_letter_ranges, clv_letter_range_count), 141028);
    assert_int_equal(clv_number_range_count, 144);
    assert_int_equal(points_of(clv_number_ranges, clv_number_range_count), 1911);
    points_of(clv_word_ranges, clv_word_range_count);
    size_t count[4] = {0};
    for (uint32_t code = 0; code < 0x110000; code++)
        count[clv_char_class_of(code)]++;
    assert_int_equal(count[CLV_CHAR_LETTER], 141028);
    assert_int_equal(count[CLV_CHAR_NUMBER], 1911);
    assert_int_equal(count[CLV_CHAR_SPACE], 25);
    assert_int_equal(clv_char_class_of(0x180E), CLV_CHAR_OTHER);
    assert_int_equal(clv_char_class_of(0xFEFF), CLV_CHAR_OTHER);
    assert_true(clv_char_is_word('_') && clv_char_is_word(0x301) && clv_char_is_word(0x24B6) && !clv_char_is_word('-'));
}

static void test_utf8(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 0x110000; code++) {
        char bytes[4];
        uint32_t back;
        const size_t n = clv_utf8_put(bytes, code);
        const bool surrogate = code >= 0xD800 && code < 0xE000;
        const size_t took = clv_utf8_next(bytes, n, &back);
        assert_true(surrogate ? back == CLV_CHAR_BAD && took == 1 : back == code && took == n);
        assert_true(n == 1 || surrogate || (clv_utf8_next(bytes, n - 1, &back) == n - 1 && back == CLV_CHAR_CUT));
    }
    static const struct {
        const char *bytes;
        size_t n, took;
        uint32_t code;
    } bad[] = {
        {"\x80", 1, 1, CLV_CHAR_BAD},
        {"\xC0\x80", 2, 1, CLV_CHAR_BAD},
        {"\xE0\x80\x80", 3, 1, CLV_CHAR_BAD},
        {"\xE2\x82x", 3, 2, CLV_CHAR_BAD},
        {"\xF0\x80\x80\x80", 4, 1, CLV_CHAR_BAD},
        {"\xF4\x90\x80\x80", 4, 1, CLV_CHAR_BAD},
        {"\xF0\x9F\x8E", 3, 3, CLV_CHAR_CUT},
        {"\xF5\x80", 2, 1, CLV_CHAR_BAD},
        {"\xF0\x9F\x8E\xC3", 4, 3, CLV_CHAR_BAD},
    };
    for (size_t i = 0; i < CLV_COUNT(bad); i++) {
        uint32_t code;
        assert_int_equal(clv_utf8_next(bad[i].bytes, bad[i].n, &code), bad[i].took);
        assert_int_equal(code, bad[i].code);
    }
}

/* The byte-level alphabet at its corners. */
static void test_alphabet(void **state)
{
    (void)state;
    uint16_t alphabet[256];
    int16_t byte_of[0x144];
    clv_byte_alphabet(alphabet, byte_of);
    static const uint16_t known[][2] = {{0x00, 0x100}, {0x0A, 0x10A}, {0x20, 0x120}, {0x21, 0x21}, {0x7E, 0x7E},
                                        {0x7F, 0x121}, {0x80, 0x122}, {0xA0, 0x142}, {0xA1, 0xA1}, {0xAC, 0xAC},
                                        {0xAD, 0x143}, {0xAE, 0xAE},  {0xFF, 0xFF}};
    for (size_t i = 0; i < CLV_COUNT(known); i++)
        assert_int_equal(alphabet[known[i][0]], known[i][1]);
    for (int byte = 0; byte < 256; byte++)
        assert_int_equal(byte_of[alphabet[byte]], byte);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_splits),
        cmocka_unit_test(test_classes),
        cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_alphabet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
