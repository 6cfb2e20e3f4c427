/* tokenizer_load.c - a tokenizer.json, or GPT-2's vocab.json and merges.txt, to a clv_tokenizer.
 *
 * tokenizer.json: {version, truncation, padding, added_tokens, normalizer, pre_tokenizer, post_processor, decoder,
 * model}; model: {type: "BPE", unk_token, fuse_unk, byte_fallback, ignore_merges, vocab: {token: id}, merges}. Merges
 * are "left right" strings or [left, right] pairs, most frequent first. vocab.json is the vocab alone, merges.txt one
 * merge a line behind a line `#version: 0.2`; from them the tokenizer.json that says the same is made first.
 * Source: Hugging Face's tokenizers 0.22, models/bpe and tokenizer/serialization.
 */
#include "format/tokenizer_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_ID = (1 << 24) - 1 };

/* ---- the model --------------------------------------------------------------------------------------------------- */

static clv_status highest_id(const clv_json *json, clv_node vocab, int64_t *highest)
{
    *highest = -1;
    for (clv_node node = clv_json_first(json, vocab); node != CLV_NO_NODE; node = clv_json_next(json, node)) {
        int64_t id;
        if (!clv_json_i64(json, node, &id) || id < 0 || id > MAX_ID)
            return clv_fail(CLV_BAD_INPUT, "the id of \"%s\" is not a whole number from 0 to %d",
                            clv_json_key(json, node, NULL), MAX_ID);
        *highest = CLV_MAX(*highest, id);
    }
    return clv_ok();
}

static clv_status read_vocab(clv_tokenizer *tok, const clv_json *json, clv_node vocab)
{
    if (!clv_json_is(json, vocab, CLV_JSON_OBJECT))
        return clv_fail(CLV_BAD_INPUT, "missing or not an object");
    int64_t highest;
    CLV_TRY(highest_id(json, vocab, &highest));
    tok->vocab = (int32_t)highest + 1;
    tok->token = clv_alloc((size_t)tok->vocab, sizeof *tok->token);
    tok->special = clv_alloc((size_t)tok->vocab, 1);
    for (clv_node node = clv_json_first(json, vocab); node != CLV_NO_NODE; node = clv_json_next(json, node)) {
        int64_t id = 0;
        clv_span key;
        clv_json_i64(json, node, &id);
        key.at = clv_json_key(json, node, &key.n);
        if (tok->token[id].at != NULL)
            return clv_fail(CLV_BAD_INPUT, "\"%s\" and \"%s\" both have the id %d", tok->token[id].at, key.at, (int)id);
        tok->token[id] = clv_pool_add(&tok->pool, key.at, key.n);
        clv_string_map_put(&tok->ids, tok->token, (int32_t)id);
    }
    return clv_ok();
}

/* Both halves of a merge: "left right" with exactly one space, or [left, right]. */
static bool read_halves(const clv_json *json, clv_node node, clv_span half[2])
{
    if (clv_json_is(json, node, CLV_JSON_STRING)) {
        clv_span text;
        text.at = clv_json_string(json, node, &text.n);
        const char *space = memchr(text.at, ' ', text.n);
        if (space == NULL)
            return false;
        const size_t left = (size_t)(space - text.at), right = text.n - left - 1;
        half[0] = (clv_span){text.at, left};
        half[1] = (clv_span){space + 1, right};
        return memchr(space + 1, ' ', right) == NULL;
    }
    if (!clv_json_is(json, node, CLV_JSON_ARRAY) || clv_json_count(json, node) != 2)
        return false;
    clv_node side = clv_json_first(json, node);
    for (int i = 0; i < 2; i++, side = clv_json_next(json, side)) {
        if (!clv_json_is(json, side, CLV_JSON_STRING))
            return false;
        half[i].at = clv_json_string(json, side, &half[i].n);
    }
    return true;
}

static clv_status add_merge(clv_tokenizer *tok, const clv_span half[2], clv_text *work)
{
    work->length = 0;
    clv_text_add(work, half[0].at, half[0].n);
    clv_text_add(work, half[1].at, half[1].n);
    const clv_span want[3] = {half[0], half[1], {work->data, work->length}};
    int32_t id[3];
    for (int i = 0; i < 3; i++) {
        id[i] = clv_string_map_find(&tok->ids, tok->token, want[i]);
        if (id[i] < 0)
            return clv_fail(CLV_BAD_INPUT, "merge %d needs the token \"%.*s\", which is not in the vocabulary",
                            tok->merge_count, (int)CLV_MIN(want[i].n, 100), want[i].at);
    }
    clv_pair_map_put(&tok->ranks, clv_pair_of(id[0], id[1]), tok->merge_count);
    tok->merged[tok->merge_count++] = id[2];
    return clv_ok();
}

static clv_status read_merges(clv_tokenizer *tok, const clv_json *json, clv_node merges)
{
    if (!clv_json_is(json, merges, CLV_JSON_ARRAY))
        return clv_fail(CLV_BAD_INPUT, "missing or not a list");
    tok->merged = clv_alloc((size_t)clv_json_count(json, merges), sizeof *tok->merged);
    clv_text work = {0};
    clv_status st = clv_ok();
    for (clv_node node = clv_json_first(json, merges); node != CLV_NO_NODE && st.code == CLV_OK;
         node = clv_json_next(json, node)) {
        clv_span half[2];
        if (clv_json_is(json, node, CLV_JSON_STRING) && strncmp(clv_json_string(json, node, NULL), "#version", 8) == 0)
            continue;
        st = read_halves(json, node, half)
                 ? add_merge(tok, half, &work)
                 : clv_fail(CLV_BAD_INPUT, "merge %d is neither \"left right\" nor [\"left\", \"right\"]",
                            tok->merge_count);
    }
    clv_text_free(&work);
    return st;
}

static clv_status check_model(const clv_json *json, clv_node model)
{
    static const char *const affix[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const clv_node type = clv_json_get(json, model, "type");
    if (clv_json_is(json, type, CLV_JSON_STRING) && strcmp(clv_json_string(json, type, NULL), "BPE") != 0)
        return clv_fail(CLV_BAD_INPUT, "the type \"%s\" is not supported; only BPE is",
                        clv_json_string(json, type, NULL));
    if (type == CLV_NO_NODE && clv_json_get(json, model, "merges") == CLV_NO_NODE)
        return clv_fail(CLV_BAD_INPUT, "neither \"type\" nor \"merges\"; only BPE is supported");
    double dropout = 0;
    CLV_TRY(clv_json_opt_f64(json, model, "dropout", &dropout));
    if (dropout != 0)
        return clv_fail(CLV_BAD_INPUT, "dropout %g is not supported: encoding must not depend on chance", dropout);
    for (size_t i = 0; i < CLV_COUNT(affix); i++) {
        const clv_node node = clv_json_get(json, model, affix[i]);
        if (clv_json_is(json, node, CLV_JSON_STRING) && clv_json_string(json, node, NULL)[0] != 0)
            return clv_fail(CLV_BAD_INPUT, "%s \"%s\" is not supported", affix[i], clv_json_string(json, node, NULL));
    }
    return clv_ok();
}

static clv_status read_model(clv_tokenizer *tok, const clv_json *json, clv_node model)
{
    if (!clv_json_is(json, model, CLV_JSON_OBJECT))
        return clv_fail(CLV_BAD_INPUT, "missing or not an object");
    CLV_TRY(check_model(json, model));
    CLV_TRY(clv_json_opt_bool(json, model, "fuse_unk", &tok->fuse_unk));
    CLV_TRY(clv_json_opt_bool(json, model, "byte_fallback", &tok->byte_fallback));
    CLV_TRY(clv_json_opt_bool(json, model, "ignore_merges", &tok->ignore_merges));
    CLV_TRY(clv_within(read_vocab(tok, json, clv_json_get(json, model, "vocab")), "vocab"));
    CLV_TRY(clv_within(read_merges(tok, json, clv_json_get(json, model, "merges")), "merges"));
    const clv_node unk = clv_json_get(json, model, "unk_token");
    tok->unk = -1;
    if (clv_json_is(json, unk, CLV_JSON_STRING)) {
        clv_span text;
        CLV_TRY(clv_parse_string(json, model, "unk_token", &text));
        tok->unk = clv_string_map_find(&tok->ids, tok->token, text);
        if (tok->unk < 0)
            return clv_fail(CLV_BAD_INPUT, "unk_token \"%s\" is not in the vocabulary", text.at);
    }
    for (int byte = 0; byte < 256; byte++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)byte);
        tok->byte_token[byte] = clv_string_map_find(&tok->ids, tok->token, (clv_span){name, 6});
    }
    return clv_ok();
}

static clv_status read_document(clv_tokenizer *tok, const clv_json *json)
{
    if (!clv_json_is(json, CLV_JSON_ROOT, CLV_JSON_OBJECT))
        return clv_fail(CLV_BAD_INPUT, "not a JSON object");
    CLV_TRY(clv_within(read_model(tok, json, clv_json_get(json, CLV_JSON_ROOT, "model")), "model"));
    CLV_TRY(clv_parse_normalizer(tok, json, clv_json_get(json, CLV_JSON_ROOT, "normalizer")));
    CLV_TRY(clv_parse_added(tok, json, clv_json_get(json, CLV_JSON_ROOT, "added_tokens")));
    CLV_TRY(clv_parse_pre_tokenizer(tok, json, clv_json_get(json, CLV_JSON_ROOT, "pre_tokenizer")));
    CLV_TRY(clv_parse_post_processor(tok, json, clv_json_get(json, CLV_JSON_ROOT, "post_processor")));
    return clv_parse_decoder(tok, json, clv_json_get(json, CLV_JSON_ROOT, "decoder"));
}

clv_status clv_tokenizer_parse(clv_tokenizer **out, const char *text, size_t n, const char *where)
{
    clv_json *json;
    *out = NULL;
    CLV_TRY(clv_within(clv_json_parse(&json, text, n, "JSON"), "%s", where));
    clv_tokenizer *tok = clv_alloc(1, sizeof *tok);
    tok->warned = clv_alloc(1, sizeof *tok->warned);
    atomic_flag_clear(tok->warned);
    clv_byte_alphabet(tok->alphabet, tok->byte_of);
    clv_text_add(&tok->json, text, n);
    const clv_status st = clv_within(read_document(tok, json), "%s", where);
    clv_json_free(json);
    if (st.code == CLV_OK)
        *out = tok;
    else
        clv_tokenizer_free(tok);
    return st;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static clv_status load_json(clv_tokenizer **out, const char *path)
{
    clv_text text;
    CLV_TRY(clv_file_read(path, &text));
    const clv_status st = clv_tokenizer_parse(out, text.data, text.length, path);
    clv_text_free(&text);
    return st;
}

/* merges.txt to a JSON array of its lines. */
static void merges_array(clv_text *out, const clv_text *lines)
{
    const char *separator = "[";
    for (size_t at = 0; at < lines->length;) {
        const char *line = lines->data + at, *end = memchr(line, '\n', lines->length - at);
        const size_t n = end == NULL ? lines->length - at : (size_t)(end - line);
        at += n + 1;
        if (n == 0)
            continue;
        clv_text_printf(out, "%s", separator);
        clv_json_add_string(out, line, n);
        separator = ",";
    }
    clv_text_printf(out, "%s]", separator[0] == '[' ? "[" : "");
}

static clv_status compose_gpt2(clv_text *out, const char *vocab_path, const clv_text *vocab, const clv_text *lines)
{
    clv_json *json;
    CLV_TRY(clv_json_parse(&json, vocab->data, vocab->length, vocab_path));
    clv_special_token end = {"<|endoftext|>", -1};
    clv_json_i64(json, clv_json_get(json, CLV_JSON_ROOT, end.content), &end.id);
    clv_json_free(json);
    clv_text merges = {0};
    merges_array(&merges, lines);
    clv_tokenizer_compose(out, vocab, &merges, &end, end.id >= 0 ? 1 : 0);
    clv_text_free(&merges);
    return clv_ok();
}

static clv_status load_gpt2(clv_tokenizer **out, const char *folder)
{
    char vocab_path[4096], merges_path[4096];
    clv_text vocab = {0}, lines = {0}, composed = {0};
    clv_path_join(vocab_path, sizeof vocab_path, folder, "vocab.json");
    clv_path_join(merges_path, sizeof merges_path, folder, "merges.txt");
    clv_status st = clv_file_read(vocab_path, &vocab);
    if (st.code == CLV_OK)
        st = clv_file_read(merges_path, &lines);
    if (st.code == CLV_OK && clv_utf8_valid_prefix(lines.data, lines.length) < lines.length)
        st = clv_fail(CLV_BAD_INPUT, "%s: byte %zu is not UTF-8", merges_path,
                      clv_utf8_valid_prefix(lines.data, lines.length));
    if (st.code == CLV_OK)
        st = compose_gpt2(&composed, vocab_path, &vocab, &lines);
    if (st.code == CLV_OK)
        st = clv_within(clv_tokenizer_parse(out, composed.data, composed.length, "vocab.json with merges.txt"), "%s",
                        folder);
    clv_text_free(&vocab);
    clv_text_free(&lines);
    clv_text_free(&composed);
    return st;
}

static clv_status load_folder(clv_tokenizer **out, const char *folder)
{
    char path[4096];
    clv_path_join(path, sizeof path, folder, "tokenizer.json");
    if (clv_file_exists(path))
        return load_json(out, path);
    clv_path_join(path, sizeof path, folder, "vocab.json");
    if (clv_file_exists(path))
        return load_gpt2(out, folder);
    return clv_fail(CLV_BAD_INPUT, "%s holds neither tokenizer.json nor vocab.json with merges.txt", folder);
}

clv_status clv_tokenizer_load(clv_tokenizer **out, const char *path)
{
    struct stat info;
    const char *slash = strrchr(path, '/'), *name = slash == NULL ? path : slash + 1;
    *out = NULL;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return load_folder(out, path);
    if (strcmp(name, "vocab.json") != 0)
        return load_json(out, path);
    char folder[4096];
    snprintf(folder, sizeof folder, "%.*s", (int)(slash == NULL ? 0 : slash - path), path);
    return load_gpt2(out, slash == NULL ? "." : slash == path ? "/" : folder);
}
