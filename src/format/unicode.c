/* unicode.c - UTF-8 and classes of characters.
 *
 * Well-formed UTF-8 is table 3-7 of the Unicode standard. Ill-formed bytes are taken as maximal parts (the longest
 * beginning of a character, at least one byte), which is how decoders everywhere count their U+FFFD.
 */
#include "format/tokenizer_internal.h"

#include <string.h>

size_t clv_utf8_next(const char *text, size_t n, uint32_t *code)
{
    const uint8_t *byte = (const uint8_t *)text;
    const uint8_t lead = byte[0];
    *code = lead;
    if (lead < 0x80)
        return 1;
    *code = CLV_CHAR_BAD;
    if (lead < 0xC2 || lead > 0xF4)
        return 1;
    const size_t need = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    /* The second byte's range is narrower where the character would be overlong, a surrogate, or above U+10FFFF. */
    uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    uint32_t value = lead & (0x7FU >> need);
    for (size_t i = 1; i < need; i++) {
        if (i == n)
            *code = CLV_CHAR_CUT;
        if (i == n || byte[i] < low || byte[i] > high)
            return i;
        value = value << 6 | (byte[i] & 0x3FU);
        low = 0x80;
        high = 0xBF;
    }
    *code = value;
    return need;
}

size_t clv_utf8_put(char out[4], uint32_t code)
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    const size_t n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, code >>= 6)
        out[i] = (char)(0x80 | (code & 0x3F));
    out[0] = (char)((0xF00U >> n & 0xF0U) | code);
    return n;
}

size_t clv_utf8_valid_prefix(const char *text, size_t n)
{
    size_t at = 0;
    while (at < n) {
        uint64_t eight;
        if (n - at >= sizeof eight) {
            memcpy(&eight, text + at, sizeof eight);
            if ((eight & 0x8080808080808080U) == 0) {
                at += sizeof eight;
                continue;
            }
        }
        uint32_t code;
        const size_t length = clv_utf8_next(text + at, n - at, &code);
        if (code >= CLV_CHAR_BAD)
            return at;
        at += length;
    }
    return n;
}

static bool in_ranges(const clv_code_range *range, size_t count, uint32_t code)
{
    size_t low = 0, high = count; /* the first range that ends at or after code */
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (range[middle].last < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && range[low].first <= code;
}

/* White_Space: 25 code points, neither U+180E nor U+FEFF. */
static bool is_space(uint32_t code)
{
    if (code < 0x80)
        return code == ' ' || (code >= '\t' && code <= '\r');
    return code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
           code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

clv_char_class clv_char_class_of(uint32_t code)
{
    if (is_space(code))
        return CLV_CHAR_SPACE;
    if (code < 0x80) {
        if ((code | 0x20) >= 'a' && (code | 0x20) <= 'z')
            return CLV_CHAR_LETTER;
        return code >= '0' && code <= '9' ? CLV_CHAR_NUMBER : CLV_CHAR_OTHER;
    }
    if (in_ranges(clv_letter_ranges, clv_letter_range_count, code))
        return CLV_CHAR_LETTER;
    return in_ranges(clv_number_ranges, clv_number_range_count, code) ? CLV_CHAR_NUMBER : CLV_CHAR_OTHER;
}

bool clv_char_is_word(uint32_t code)
{
    return in_ranges(clv_word_ranges, clv_word_range_count, code);
}
