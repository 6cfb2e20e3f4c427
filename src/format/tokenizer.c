/* tokenizer.c - what a loaded tokenizer says about itself, and its end. */
#include "format/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

void clv_ids_add(clv_ids *ids, int32_t id)
{
    if (ids->count == ids->capacity) {
        ids->capacity = CLV_MAX(2 * ids->capacity, 64);
        ids->id = clv_resize(ids->id, ids->capacity, sizeof *ids->id);
    }
    ids->id[ids->count++] = id;
}

void clv_ids_free(clv_ids *ids)
{
    free(ids->id);
    *ids = (clv_ids){0};
}

/* Bytes 0x21-0x7E, 0xA1-0xAC and 0xAE-0xFF stand for themselves, the 68 others in order for U+0100, U+0101, ... */
void clv_byte_alphabet(uint16_t alphabet[256], int16_t byte_of[0x144])
{
    uint16_t next = 0x100;
    for (size_t code = 0; code < 0x144; code++)
        byte_of[code] = -1;
    for (uint16_t byte = 0; byte < 256; byte++) {
        const bool itself = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
        alphabet[byte] = itself ? byte : next++;
        byte_of[alphabet[byte]] = (int16_t)byte;
    }
}

void clv_tokenizer_free(clv_tokenizer *tok)
{
    if (tok == NULL)
        return;
    clv_text_free(&tok->json);
    clv_pool_free(&tok->pool);
    clv_ids_free(&tok->before);
    clv_ids_free(&tok->after);
    free(tok->token);
    free(tok->special);
    free(tok->ids.slot);
    free(tok->ranks.slot);
    free(tok->merged);
    free(tok->added);
    free(tok->raw.pattern);
    free(tok->normal.pattern);
    free(tok->warned);
    free(tok);
}

int64_t clv_tokenizer_vocab_size(const clv_tokenizer *tok)
{
    return tok->vocab;
}

int32_t clv_tokenizer_id(const clv_tokenizer *tok, const char *token)
{
    const clv_span key = {token, strlen(token)};
    for (int32_t i = 0; i < tok->added_count; i++)
        if (tok->added[i].content.n == key.n && memcmp(tok->added[i].content.at, token, key.n) == 0)
            return tok->added[i].id;
    return clv_string_map_find(&tok->ids, tok->token, key);
}

const char *clv_tokenizer_token(const clv_tokenizer *tok, int32_t id)
{
    return id >= 0 && id < tok->vocab ? tok->token[id].at : NULL;
}

bool clv_tokenizer_is_special(const clv_tokenizer *tok, int32_t id)
{
    return id >= 0 && id < tok->vocab && tok->special[id];
}

int32_t clv_tokenizer_eod(const clv_tokenizer *tok)
{
    static const char *const names[] = {"<|endoftext|>", "</s>",    "<|end_of_text|>", "<|im_end|>",
                                        "<|eot_id|>",    "<|eos|>", "<eos>",           "<|end|>"};
    for (size_t i = 0; i < CLV_COUNT(names); i++) {
        const int32_t id = clv_tokenizer_id(tok, names[i]);
        if (clv_tokenizer_is_special(tok, id))
            return id;
    }
    return -1;
}

static void describe_chain(const char *title, const clv_chain *chain, clv_text *out)
{
    static const char *const name[CLV_STEP_KINDS] = {
        [CLV_STEP_NFC] = "NFC",
        [CLV_STEP_PREPEND] = "prepend",
        [CLV_STEP_REPLACE] = "replace",
        [CLV_STEP_SPACE] = "prefix space",
        [CLV_STEP_SPLIT] = "split",
        [CLV_STEP_BYTES] = "byte level",
        [CLV_STEP_MARK] = "metaspace",
        [CLV_STEP_CUT] = "cut before",
        [CLV_STEP_BYTE_TOKENS] = "byte fallback",
        [CLV_STEP_FUSE] = "fuse",
        [CLV_STEP_STRIP] = "strip",
        [CLV_STEP_UNBYTES] = "byte level",
        [CLV_STEP_UNMARK] = "metaspace",
        [CLV_STEP_JOIN] = "join with spaces",
    };
    clv_text_printf(out, "%s", title);
    for (int i = 0; i < chain->count; i++) {
        const clv_step *step = &chain->step[i];
        clv_text_printf(out, "%s%s", i > 0 ? ", " : " ", name[step->kind]);
        if (step->kind == CLV_STEP_SPLIT)
            clv_text_printf(out, " by the %s pattern", clv_pattern_name((clv_pattern)step->number));
        if (step->from.at != NULL)
            clv_text_printf(out, " \"%s\"", step->from.at);
        if (step->to.at != NULL)
            clv_text_printf(out, " by \"%s\"", step->to.at);
    }
    clv_text_printf(out, "%s\n", chain->count == 0 ? " nothing" : "");
}

void clv_tokenizer_describe(const clv_tokenizer *tok, clv_text *out)
{
    int32_t special = 0;
    for (int32_t i = 0; i < tok->vocab; i++)
        special += tok->special[i];
    clv_text_printf(out, "model      BPE, ids 0 to %d, %d merges%s%s%s\n", tok->vocab - 1, tok->merge_count,
                    tok->byte_fallback ? ", byte fallback" : "", tok->ignore_merges ? ", whole words first" : "",
                    tok->fuse_unk ? ", unknown fused" : "");
    clv_text_printf(out, "added      %d tokens, %d of the vocabulary special\n", tok->added_count, special);
    describe_chain("normalize ", &tok->normalize, out);
    describe_chain("split     ", &tok->split, out);
    describe_chain("decode    ", &tok->decode, out);
    clv_text_printf(out, "template  ");
    for (size_t i = 0; i < tok->before.count; i++)
        clv_text_printf(out, " %s", tok->token[tok->before.id[i]].at);
    clv_text_printf(out, " (text)");
    for (size_t i = 0; i < tok->after.count; i++)
        clv_text_printf(out, " %s", tok->token[tok->after.id[i]].at);
    const int32_t eod = clv_tokenizer_eod(tok);
    clv_text_printf(out, "\nend        %s\n", eod < 0 ? "none" : tok->token[eod].at);
}
