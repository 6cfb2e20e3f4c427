/* tokenizer_decode.c - ids to text, all at once or as they arrive; the first is the second, so they cannot differ.
 *
 * Each decode step takes tokens one by one and hands on what it can. Two of them hold bytes back:
 *   byte level   characters map back to bytes (a token with a character outside the alphabet is its own UTF-8), and a
 *                character is handed on when it is complete; an invalid part becomes one U+FFFD as soon as it is known;
 *   byte tokens  a run of <0xHH> is one text, or, when it is not valid UTF-8 as a whole, one U+FFFD per byte. A later
 *                byte can thus change an earlier character, so that a run is handed on when it ends.
 */
#include "format/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

static const clv_span replacement = {"\xEF\xBF\xBD", 3}; /* U+FFFD */

struct clv_decoder {
    const clv_tokenizer *tok;
    bool skip_special;
    clv_text held[CLV_STEPS]; /* bytes a step waits with; or its output, while the next step reads it */
    int32_t
        left[CLV_STEPS]; /* STRIP: copies it may still take from the front; UNMARK, JOIN: 1 before the first token */
};

static void decode_from(clv_decoder *d, int index, clv_span token, clv_text *out);

/* The byte that <0xHH> names, or -1. */
static int byte_of_token(clv_span token)
{
    static const char digits[] = "0123456789ABCDEFabcdef";
    if (token.n != 6 || memcmp(token.at, "<0x", 3) != 0 || token.at[5] != '>')
        return -1;
    const char *high = memchr(digits, token.at[3], 22), *low = memchr(digits, token.at[4], 22);
    if (high == NULL || low == NULL)
        return -1;
    const int h = (int)(high - digits), l = (int)(low - digits);
    return 16 * (h > 15 ? h - 6 : h) + (l > 15 ? l - 6 : l);
}

static void end_byte_run(clv_decoder *d, int index, clv_text *out)
{
    clv_text *run = &d->held[index];
    if (run->length > 0 && clv_utf8_valid_prefix(run->data, run->length) == run->length) {
        decode_from(d, index + 1, (clv_span){run->data, run->length}, out);
    } else {
        for (size_t i = 0; i < run->length; i++)
            decode_from(d, index + 1, replacement, out);
    }
    run->length = 0;
}

static void decode_byte_tokens(clv_decoder *d, int index, clv_span token, clv_text *out)
{
    const int byte = byte_of_token(token);
    if (byte >= 0) {
        clv_text_add(&d->held[index], &(char){(char)byte}, 1);
        return;
    }
    end_byte_run(d, index, out);
    decode_from(d, index + 1, token, out);
}

static void add_alphabet_bytes(const clv_tokenizer *tok, clv_span token, clv_text *bytes)
{
    const size_t before = bytes->length;
    for (size_t at = 0; at < token.n;) {
        uint32_t code;
        at += clv_utf8_next(token.at + at, token.n - at, &code);
        if (code >= CLV_COUNT(tok->byte_of) || tok->byte_of[code] < 0) {
            bytes->length = before;
            clv_text_add(bytes, token.at, token.n);
            return;
        }
        clv_text_add(bytes, &(char){(char)tok->byte_of[code]}, 1);
    }
}

/* Hands on what is complete of the held bytes; at the end, all. */
static void release_bytes(clv_decoder *d, int index, bool at_end, clv_text *out)
{
    clv_text *held = &d->held[index];
    size_t at = 0;
    while (at < held->length) {
        const char *from = held->data + at;
        const size_t valid = clv_utf8_valid_prefix(from, held->length - at);
        if (valid > 0)
            decode_from(d, index + 1, (clv_span){from, valid}, out);
        at += valid;
        if (at == held->length)
            break;
        uint32_t code;
        const size_t part = clv_utf8_next(held->data + at, held->length - at, &code);
        if (code == CLV_CHAR_CUT && !at_end)
            break;
        decode_from(d, index + 1, replacement, out);
        at += part;
    }
    if (at > 0)
        memmove(held->data, held->data + at, held->length - at);
    held->length -= at;
}

static clv_span strip(clv_decoder *d, int index, clv_span token)
{
    const clv_step *step = &d->tok->decode.step[index];
    int32_t *left = step->fused ? &d->left[index] : &(int32_t){step->number};
    while (*left > 0 && token.n >= step->from.n && memcmp(token.at, step->from.at, step->from.n) == 0) {
        token = (clv_span){token.at + step->from.n, token.n - step->from.n};
        --*left;
    }
    if (token.n > 0)
        *left = 0;
    return token;
}

/* Steps that turn a token into another token. */
static clv_span rewrite(clv_decoder *d, int index, clv_span token)
{
    const clv_step *step = &d->tok->decode.step[index];
    clv_text *work = &d->held[index];
    if (step->kind == CLV_STEP_FUSE)
        return token;
    if (step->kind == CLV_STEP_STRIP)
        return strip(d, index, token);
    const bool first = d->left[index] > 0;
    d->left[index] = 0;
    work->length = 0;
    if (step->kind == CLV_STEP_REPLACE) {
        clv_replace(work, token, step->from, step->to);
    } else if (step->kind == CLV_STEP_UNMARK) {
        const bool drop = first && step->number != CLV_PREPEND_NEVER;
        clv_replace(work, token, step->from, drop ? (clv_span){"", 0} : (clv_span){" ", 1});
    } else { /* CLV_STEP_JOIN */
        clv_text_add(work, " ", first ? 0 : 1);
        clv_text_add(work, token.at, token.n);
    }
    return (clv_span){work->data, work->length};
}

static void decode_from(clv_decoder *d, int index, clv_span token, clv_text *out)
{
    for (; index < d->tok->decode.count; index++) {
        const clv_step_kind kind = d->tok->decode.step[index].kind;
        if (kind == CLV_STEP_BYTE_TOKENS) {
            decode_byte_tokens(d, index, token, out);
            return;
        }
        if (kind == CLV_STEP_UNBYTES) {
            add_alphabet_bytes(d->tok, token, &d->held[index]);
            release_bytes(d, index, false, out);
            return;
        }
        token = rewrite(d, index, token);
    }
    clv_text_add(out, token.at, token.n);
}

clv_decoder *clv_decoder_create(const clv_tokenizer *tok, bool skip_special)
{
    clv_decoder *d = clv_alloc(1, sizeof *d);
    d->tok = tok;
    d->skip_special = skip_special;
    for (int i = 0; i < tok->decode.count; i++)
        d->left[i] = tok->decode.step[i].kind == CLV_STEP_STRIP ? tok->decode.step[i].number : 1;
    return d;
}

clv_status clv_decoder_add(clv_decoder *decoder, int32_t id, clv_text *out)
{
    const clv_tokenizer *tok = decoder->tok;
    if (id < 0 || id >= tok->vocab || tok->token[id].at == NULL)
        return clv_fail(CLV_BAD_INPUT, "token id %d is not in the tokenizer's vocabulary (ids 0 to %d)", id,
                        tok->vocab - 1);
    if (!(decoder->skip_special && tok->special[id]))
        decode_from(decoder, 0, tok->token[id], out);
    return clv_ok();
}

clv_status clv_decoder_finish(clv_decoder *decoder, clv_text *out)
{
    for (int i = 0; i < decoder->tok->decode.count; i++) {
        const clv_step_kind kind = decoder->tok->decode.step[i].kind;
        if (kind == CLV_STEP_BYTE_TOKENS)
            end_byte_run(decoder, i, out);
        else if (kind == CLV_STEP_UNBYTES)
            release_bytes(decoder, i, true, out);
    }
    clv_text_add(out, "", 0); /* terminated, even when nothing came */
    return clv_ok();
}

void clv_decoder_free(clv_decoder *decoder)
{
    if (decoder == NULL)
        return;
    for (size_t i = 0; i < CLV_STEPS; i++)
        clv_text_free(&decoder->held[i]);
    free(decoder);
}

clv_status clv_tokenizer_decode(const clv_tokenizer *tok, const int32_t *ids, size_t n, bool skip_special,
                                clv_text *out)
{
    clv_decoder *decoder = clv_decoder_create(tok, skip_special);
    clv_status st = clv_ok();
    for (size_t i = 0; i < n && st.code == CLV_OK; i++)
        st = clv_decoder_add(decoder, ids[i], out);
    if (st.code == CLV_OK)
        st = clv_decoder_finish(decoder, out);
    clv_decoder_free(decoder);
    return st;
}
