/* tokenizer_split.c - the three patterns that cut a text into words, by hand.
 *
 *   GPT-2    's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *   Llama 3  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*
 *            |\s*[\r\n]+|\s+(?!\S)|\s+
 *   Qwen 2   as Llama 3 with \p{N} in place of \p{N}{1,3}
 *
 * Alternatives are tried from left to right and each of the patterns matches at every position, so cutting is a walk:
 * the function below gives the piece at the front. `\s+(?!\S)` takes a run of spaces but leaves its last one to the
 * word that follows; `\s*[\r\n]+` backs up to the last line end of the run. Bytes that are no UTF-8 count as "other".
 */
#include "format/tokenizer_internal.h"

#include <string.h>

enum { LONG_S = 0x17F }; /* folds to s */

typedef struct glyph {
    uint32_t code;
    size_t length; /* 0 at the end of the text */
    clv_char_class class;
} glyph;

static glyph glyph_at(const char *text, size_t n, size_t at)
{
    glyph g = {.class = CLV_CHAR_OTHER};
    if (at < n) {
        g.length = clv_utf8_next(text + at, n - at, &g.code);
        g.class = clv_char_class_of(g.code);
    }
    return g;
}

static bool is_line_end(glyph g)
{
    return g.length > 0 && (g.code == '\r' || g.code == '\n');
}

/* End of the run of `class` that begins at `at`, of at most `limit` characters. */
static size_t run_end(const char *text, size_t n, size_t at, clv_char_class class, size_t limit)
{
    for (glyph g = glyph_at(text, n, at); limit > 0 && g.length > 0 && g.class == class; limit--) {
        at += g.length;
        g = glyph_at(text, n, at);
    }
    return at;
}

static uint32_t fold(uint32_t code)
{
    if (code >= 'A' && code <= 'Z')
        return code | 0x20;
    return code == LONG_S ? 's' : code;
}

/* 's|'t|'re|'ve|'m|'ll|'d; 0 when none is there. */
static size_t contraction(const char *text, size_t n, bool any_case)
{
    if (text[0] != '\'')
        return 0;
    const glyph one = glyph_at(text, n, 1), two = glyph_at(text, n, 1 + one.length);
    const uint32_t a = any_case ? fold(one.code) : one.code, b = any_case ? fold(two.code) : two.code;
    if (one.length == 0)
        return 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 1 + one.length;
    if (two.length > 0 && ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')))
        return 1 + one.length + two.length;
    return 0;
}

/* \s+(?!\S)|\s+ */
static size_t spaces(const char *text, size_t n)
{
    size_t at = 0, last = 0;
    glyph g = glyph_at(text, n, 0);
    while (g.length > 0 && g.class == CLV_CHAR_SPACE) {
        last = at;
        at += g.length;
        g = glyph_at(text, n, at);
    }
    return g.length > 0 && last > 0 ? last : at;
}

/* \s*[\r\n]+; 0 when the run of spaces holds no line end. */
static size_t spaces_to_line_end(const char *text, size_t n)
{
    size_t end = 0, at = 0;
    for (glyph g = glyph_at(text, n, 0); g.length > 0 && g.class == CLV_CHAR_SPACE; g = glyph_at(text, n, at)) {
        at += g.length;
        if (is_line_end(g))
            end = at;
    }
    return end;
}

static size_t next_gpt2(const char *text, size_t n)
{
    const size_t short_form = contraction(text, n, false);
    if (short_form > 0)
        return short_form;
    const size_t lead = text[0] == ' ' ? 1 : 0;
    const glyph g = glyph_at(text, n, lead);
    if (g.length > 0 && g.class != CLV_CHAR_SPACE)
        return run_end(text, n, lead, g.class, SIZE_MAX);
    return spaces(text, n);
}

static size_t next_llama3(const char *text, size_t n, size_t digits)
{
    const size_t short_form = contraction(text, n, true);
    if (short_form > 0)
        return short_form;
    const glyph g = glyph_at(text, n, 0), next = glyph_at(text, n, g.length);
    if (g.class == CLV_CHAR_LETTER)
        return run_end(text, n, 0, CLV_CHAR_LETTER, SIZE_MAX);
    if (g.class == CLV_CHAR_NUMBER)
        return run_end(text, n, 0, CLV_CHAR_NUMBER, digits);
    if (!is_line_end(g) && next.length > 0 && next.class == CLV_CHAR_LETTER)
        return run_end(text, n, g.length, CLV_CHAR_LETTER, SIZE_MAX);
    const size_t lead = g.code == ' ' && next.length > 0 ? 1 : 0;
    if ((lead > 0 ? next : g).class == CLV_CHAR_OTHER) {
        size_t at = run_end(text, n, lead, CLV_CHAR_OTHER, SIZE_MAX);
        while (at < n && (text[at] == '\r' || text[at] == '\n'))
            at++;
        return at;
    }
    const size_t lines = spaces_to_line_end(text, n);
    return lines > 0 ? lines : spaces(text, n);
}

size_t clv_split_next(clv_pattern pattern, const char *text, size_t n)
{
    if (pattern == CLV_PATTERN_GPT2)
        return next_gpt2(text, n);
    return next_llama3(text, n, pattern == CLV_PATTERN_LLAMA3 ? 3 : 1);
}

const char *clv_pattern_name(clv_pattern pattern)
{
    static const char *const name[CLV_PATTERNS] = {"GPT-2", "Llama 3", "Qwen 2"};
    return name[pattern];
}

const char *clv_pattern_regex(clv_pattern pattern)
{
    static const char *const regex[CLV_PATTERNS] = {
        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
        "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
        "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"};
    return regex[pattern];
}
