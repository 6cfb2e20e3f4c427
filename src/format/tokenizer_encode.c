/* tokenizer_encode.c - text to ids: added tokens, normalizing, splitting, merging, the template.
 *
 * The order is the reference's: added tokens with `normalized: false` are cut out of the raw text, each piece between
 * them is normalized by itself, then those with `normalized: true` are cut out of it, and what remains is split and
 * merged. Split steps call each other piece by piece, so no list of pieces exists.
 */
#include "format/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

typedef struct encoding { /* what one call writes to */
    const clv_tokenizer *tok;
    clv_ids *out;
    clv_text normal[2], split[CLV_STEPS];
    clv_bpe_work bpe;
} encoding;

/* ---- normalizing ------------------------------------------------------------------------------------------------- */

void clv_replace(clv_text *out, clv_span text, clv_span from, clv_span to)
{
    const char *at = text.at, *end = text.at + text.n;
    for (const char *hit; (hit = memmem(at, (size_t)(end - at), from.at, from.n)) != NULL; at = hit + from.n) {
        clv_text_add(out, at, (size_t)(hit - at));
        clv_text_add(out, to.at, to.n);
    }
    clv_text_add(out, at, (size_t)(end - at));
}

static bool is_ascii(clv_span text)
{
    for (size_t i = 0; i < text.n; i++)
        if ((text.at[i] & 0x80) != 0)
            return false;
    return true;
}

static void compose(clv_text *out, clv_span text)
{
    utf8proc_uint8_t *composed = NULL;
    const utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)text.at, (utf8proc_ssize_t)text.n, &composed,
                                            UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    CLV_CHECK(n >= 0, "NFC of %zu bytes of valid text: %s", text.n, utf8proc_errmsg(n));
    clv_text_add(out, (const char *)composed, (size_t)n);
    free(composed);
}

clv_span clv_normalize(const clv_chain *chain, clv_span piece, clv_text work[2])
{
    for (int i = 0; i < chain->count; i++) {
        const clv_step *step = &chain->step[i];
        clv_text *out = &work[i % 2];
        if (piece.n == 0 || (step->kind == CLV_STEP_NFC && is_ascii(piece)))
            continue;
        out->length = 0;
        if (step->kind == CLV_STEP_NFC) {
            compose(out, piece);
        } else if (step->kind == CLV_STEP_PREPEND) {
            clv_text_add(out, step->from.at, step->from.n);
            clv_text_add(out, piece.at, piece.n);
        } else {
            clv_replace(out, piece, step->from, step->to);
        }
        piece = (clv_span){out->data, out->length};
    }
    return piece;
}

/* ---- added tokens ------------------------------------------------------------------------------------------------ */

typedef struct cutter { /* a walk over a text: plain piece, added token, plain piece, ... */
    const clv_tokenizer *tok;
    const clv_added_set *set;
    clv_span text;
    size_t search, from; /* where to look on, and where the next plain piece begins */
    clv_span plain;
    const clv_added *token; /* behind the plain piece; NULL at the end of the text */
    bool done;
} cutter;

static const struct clv_added_pattern *longest_at(const cutter *c, size_t at)
{
    const uint8_t first = (uint8_t)c->text.at[at];
    for (size_t i = c->set->start[first]; i < c->set->start[first + 1]; i++) {
        const clv_span want = c->set->pattern[i].text;
        if (want.n <= c->text.n - at && memcmp(want.at, c->text.at + at, want.n) == 0)
            return &c->set->pattern[i];
    }
    return NULL;
}

static size_t char_before(clv_span text, size_t at, uint32_t *code)
{
    size_t start = at - 1;
    while (start > 0 && (text.at[start] & 0xC0) == 0x80)
        start--;
    clv_utf8_next(text.at + start, at - start, code);
    return start;
}

static bool stands_alone(clv_span text, size_t start, size_t end)
{
    uint32_t left = ' ', right = ' ';
    if (start > 0)
        char_before(text, start, &left);
    if (end < text.n)
        clv_utf8_next(text.at + end, text.n - end, &right);
    return !clv_char_is_word(left) && !clv_char_is_word(right);
}

static void accept(cutter *c, const clv_added *token, size_t start, size_t end)
{
    uint32_t code;
    while (token->lstrip && start > c->from) {
        const size_t before = char_before(c->text, start, &code);
        if (clv_char_class_of(code) != CLV_CHAR_SPACE)
            break;
        start = before;
    }
    while (token->rstrip && end < c->text.n) {
        const size_t length = clv_utf8_next(c->text.at + end, c->text.n - end, &code);
        if (clv_char_class_of(code) != CLV_CHAR_SPACE)
            break;
        end += length;
    }
    c->plain = (clv_span){c->text.at + c->from, start > c->from ? start - c->from : 0};
    c->from = end;
    c->token = token;
}

static bool cut_next(cutter *c)
{
    if (c->done)
        return false;
    for (; c->search < c->text.n; c->search++) {
        const struct clv_added_pattern *found = longest_at(c, c->search);
        if (found == NULL)
            continue;
        const size_t start = c->search, end = start + found->text.n;
        const clv_added *token = &c->tok->added[found->index];
        c->search = end - 1; /* a match that does not stand alone is passed over whole */
        if (token->single_word && !stands_alone(c->text, start, end))
            continue;
        c->search = end;
        accept(c, token, start, end);
        return true;
    }
    c->plain = (clv_span){c->text.at + c->from, c->text.n > c->from ? c->text.n - c->from : 0};
    c->token = NULL;
    c->done = true;
    return true;
}

/* ---- splitting --------------------------------------------------------------------------------------------------- */

static void split_from(encoding *e, int index, clv_span piece, bool at_start);

static void split_by_pattern(encoding *e, int index, clv_span piece, bool at_start)
{
    const clv_pattern pattern = (clv_pattern)e->tok->split.step[index].number;
    for (size_t at = 0, length; at < piece.n; at += length) {
        length = clv_split_next(pattern, piece.at + at, piece.n - at);
        split_from(e, index + 1, (clv_span){piece.at + at, length}, at_start && at == 0);
    }
}

static void split_at_marks(encoding *e, int index, clv_span piece, bool at_start)
{
    const clv_span mark = e->tok->split.step[index].from;
    for (size_t at = 0, length; at < piece.n; at += length) {
        const char *start = piece.at + at;
        const size_t left = piece.n - at;
        const size_t skip = CLV_MIN(left, left >= mark.n && memcmp(start, mark.at, mark.n) == 0 ? mark.n : 1);
        const char *hit = memmem(start + skip, left - skip, mark.at, mark.n);
        length = hit == NULL ? left : (size_t)(hit - start);
        split_from(e, index + 1, (clv_span){start, length}, at_start && at == 0);
    }
}

static void add_marks(const clv_step *step, clv_text *out, clv_span piece, bool at_start)
{
    const clv_span mark = step->from;
    const bool has = piece.at[0] == ' ' || (piece.n >= mark.n && memcmp(piece.at, mark.at, mark.n) == 0);
    if (!has && (step->number == CLV_PREPEND_ALWAYS || (step->number == CLV_PREPEND_FIRST && at_start)))
        clv_text_add(out, mark.at, mark.n);
    clv_replace(out, piece, (clv_span){" ", 1}, mark);
}

static void add_alphabet(const clv_tokenizer *tok, clv_text *out, clv_span piece)
{
    for (size_t i = 0; i < piece.n; i++) {
        char character[4];
        clv_text_add(out, character, clv_utf8_put(character, tok->alphabet[(uint8_t)piece.at[i]]));
    }
}

/* The split steps from `index` on, then the merges. at_start: the piece begins where the whole text begins. */
static void split_from(encoding *e, int index, clv_span piece, bool at_start)
{
    if (piece.n == 0)
        return;
    if (index == e->tok->split.count) {
        clv_bpe_encode(e->tok, &e->bpe, piece, e->out);
        return;
    }
    const clv_step *step = &e->tok->split.step[index];
    if (step->kind == CLV_STEP_SPLIT) {
        split_by_pattern(e, index, piece, at_start);
        return;
    }
    if (step->kind == CLV_STEP_CUT) {
        split_at_marks(e, index, piece, at_start);
        return;
    }
    clv_text *out = &e->split[index];
    out->length = 0;
    if (step->kind == CLV_STEP_MARK) {
        add_marks(step, out, piece, at_start);
    } else if (step->kind == CLV_STEP_BYTES) {
        add_alphabet(e->tok, out, piece);
    } else {
        if (piece.at[0] != ' ')
            clv_text_add(out, " ", 1);
        clv_text_add(out, piece.at, piece.n);
    }
    split_from(e, index + 1, (clv_span){out->data, out->length}, at_start);
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static void encode_piece(encoding *e, clv_span piece, bool at_start)
{
    const clv_span normal = clv_normalize(&e->tok->normalize, piece, e->normal);
    cutter c = {.tok = e->tok, .set = &e->tok->normal, .text = normal};
    while (cut_next(&c)) {
        split_from(e, 0, c.plain, at_start && c.plain.at == normal.at);
        if (c.token != NULL)
            clv_ids_add(e->out, c.token->id);
    }
}

/* Does the text bring what the template would put in front? Twice would be wrong. */
static bool begins_with_template(const clv_tokenizer *tok, const clv_ids *body)
{
    const size_t n = tok->before.count;
    if (n == 0 || body->count < n || memcmp(body->id, tok->before.id, n * sizeof *body->id) != 0)
        return false;
    if (!atomic_flag_test_and_set(tok->warned))
        clv_log(CLV_LOG_WARN, "the text begins with %s itself; it is not put in front a second time",
                clv_tokenizer_token(tok, tok->before.id[0]));
    return true;
}

static void add_all(clv_ids *out, const clv_ids *ids)
{
    for (size_t i = 0; i < ids->count; i++)
        clv_ids_add(out, ids->id[i]);
}

clv_status clv_tokenizer_encode(const clv_tokenizer *tok, const char *text, size_t n, bool add_special, clv_ids *out)
{
    if (n > INT32_MAX / 4)
        return clv_fail(CLV_BAD_INPUT, "a text of %zu bytes is too long to encode at once; at most %d", n,
                        INT32_MAX / 4);
    text = n == 0 ? "" : text;
    const size_t valid = clv_utf8_valid_prefix(text, n);
    if (valid < n)
        return clv_fail(CLV_BAD_INPUT, "byte %zu of the text (0x%02X) is not UTF-8; convert the text first", valid,
                        (unsigned)(uint8_t)text[valid]);
    clv_ids body = {0};
    encoding e = {.tok = tok, .out = &body};
    cutter c = {.tok = tok, .set = &tok->raw, .text = {text, n}};
    while (cut_next(&c)) {
        encode_piece(&e, c.plain, c.plain.at == text);
        if (c.token != NULL)
            clv_ids_add(&body, c.token->id);
    }
    if (add_special && !begins_with_template(tok, &body))
        add_all(out, &tok->before);
    add_all(out, &body);
    if (add_special)
        add_all(out, &tok->after);
    clv_ids_free(&body);
    for (size_t i = 0; i < CLV_STEPS; i++)
        clv_text_free(&e.split[i]);
    clv_text_free(&e.normal[0]);
    clv_text_free(&e.normal[1]);
    clv_bpe_work_free(&e.bpe);
    return clv_ok();
}
