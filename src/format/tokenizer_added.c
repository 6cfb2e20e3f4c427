/* tokenizer_added.c - added tokens: reading them, and the tables that encoding looks them up in.
 *
 * An entry is {id, content, single_word, lstrip, rstrip, normalized, special}. The reference does not believe the id in
 * the file: content that the model's vocabulary knows has that id, any other the next free one. A file whose id says
 * something else means one thing to us and another to the reference, so it is refused.
 */
#include "format/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

static clv_status read_entry(const clv_json *json, clv_node node, clv_added *out, int64_t *id)
{
    *out = (clv_added){0};
    if (!clv_json_is(json, node, CLV_JSON_OBJECT))
        return clv_fail(CLV_BAD_INPUT, "not an object");
    CLV_TRY(clv_parse_string(json, node, "content", &out->content));
    if (!clv_json_i64(json, clv_json_get(json, node, "id"), id))
        return clv_fail(CLV_BAD_INPUT, "\"%s\" has no whole number as \"id\"", out->content.at);
    CLV_TRY(clv_json_opt_bool(json, node, "single_word", &out->single_word));
    CLV_TRY(clv_json_opt_bool(json, node, "lstrip", &out->lstrip));
    CLV_TRY(clv_json_opt_bool(json, node, "rstrip", &out->rstrip));
    CLV_TRY(clv_json_opt_bool(json, node, "special", &out->special));
    out->normalized = !out->special;
    return clv_json_opt_bool(json, node, "normalized", &out->normalized);
}

/* The reference's id for this content; `known` is the string map of the added tokens so far. */
static int32_t expected_id(const clv_tokenizer *tok, const clv_string_map *known, const clv_span *contents,
                           clv_span content, int32_t next)
{
    const int32_t model = clv_string_map_find(&tok->ids, tok->token, content);
    const int32_t earlier = clv_string_map_find(known, contents, content);
    return model >= 0 ? model : earlier >= 0 ? tok->added[earlier].id : next;
}

static clv_status add_entry(clv_tokenizer *tok, const clv_added *entry)
{
    if (entry->id >= tok->vocab) {
        tok->token = clv_resize(tok->token, (size_t)entry->id + 1, sizeof *tok->token);
        tok->special = clv_resize(tok->special, (size_t)entry->id + 1, 1);
        memset(tok->token + tok->vocab, 0, (size_t)(entry->id + 1 - tok->vocab) * sizeof *tok->token);
        memset(tok->special + tok->vocab, 0, (size_t)(entry->id + 1 - tok->vocab));
        tok->vocab = entry->id + 1;
    }
    clv_span *token = &tok->token[entry->id];
    if (token->at == NULL)
        *token = entry->content;
    else if (token->n != entry->content.n || memcmp(token->at, entry->content.at, token->n) != 0)
        return clv_fail(CLV_BAD_INPUT, "\"%s\" has the id %d, which already belongs to \"%s\"", entry->content.at,
                        entry->id, token->at);
    tok->special[entry->id] |= entry->special;
    tok->added[tok->added_count++] = *entry;
    return clv_ok();
}

static clv_status read_all(clv_tokenizer *tok, const clv_json *json, clv_node list, clv_string_map *known,
                           clv_span *contents)
{
    int32_t next = (int32_t)tok->ids.count; /* as the reference counts: entries of the vocabulary, not its highest id */
    for (clv_node node = clv_json_first(json, list); node != CLV_NO_NODE; node = clv_json_next(json, node)) {
        clv_added entry;
        int64_t id;
        CLV_TRY(clv_within(read_entry(json, node, &entry, &id), "entry %d", tok->added_count));
        if (entry.content.n == 0)
            continue;
        entry.content = clv_pool_add(&tok->pool, entry.content.at, entry.content.n);
        entry.id = expected_id(tok, known, contents, entry.content, next);
        if (id != entry.id)
            return clv_fail(CLV_BAD_INPUT, "\"%s\" has the id %lld, but by its place it is %d; correct one of them",
                            entry.content.at, (long long)id, entry.id);
        next = CLV_MAX(next, entry.id + 1);
        contents[tok->added_count] = entry.content;
        if (clv_string_map_find(known, contents, entry.content) < 0)
            clv_string_map_put(known, contents, tok->added_count);
        CLV_TRY(add_entry(tok, &entry));
    }
    return clv_ok();
}

static int by_first_then_longest(const void *left, const void *right)
{
    const struct clv_added_pattern *a = left, *b = right;
    const int first = (uint8_t)a->text.at[0] - (uint8_t)b->text.at[0];
    if (first != 0 || a->text.n != b->text.n)
        return first != 0 ? first : a->text.n < b->text.n ? 1 : -1;
    return a->index < b->index ? -1 : a->index > b->index; /* of equal ones the first in the file */
}

static void build_set(clv_tokenizer *tok, clv_added_set *set, bool normalized)
{
    clv_text work[2] = {0};
    size_t count = 0;
    set->pattern = clv_alloc((size_t)tok->added_count, sizeof *set->pattern);
    for (int32_t i = 0; i < tok->added_count; i++) {
        const clv_added *added = &tok->added[i];
        if (added->normalized != normalized)
            continue;
        const clv_span text = normalized ? clv_normalize(&tok->normalize, added->content, work) : added->content;
        if (text.n > 0)
            set->pattern[count++] =
                (struct clv_added_pattern){.text = clv_pool_add(&tok->pool, text.at, text.n), .index = i};
    }
    clv_text_free(&work[0]);
    clv_text_free(&work[1]);
    qsort(set->pattern, count, sizeof *set->pattern, by_first_then_longest);
    for (size_t byte = 0, i = 0; byte <= 256; byte++) {
        while (i < count && (uint8_t)set->pattern[i].text.at[0] < byte)
            i++;
        set->start[byte] = i;
    }
}

clv_status clv_parse_added(clv_tokenizer *tok, const clv_json *json, clv_node list)
{
    if (list != CLV_NO_NODE && !clv_json_is(json, list, CLV_JSON_NULL)) {
        if (!clv_json_is(json, list, CLV_JSON_ARRAY))
            return clv_fail(CLV_BAD_INPUT, "added_tokens is not a list");
        const size_t count = (size_t)clv_json_count(json, list);
        clv_string_map known = {0};
        clv_span *contents = clv_alloc(count, sizeof *contents);
        tok->added = clv_alloc(count, sizeof *tok->added);
        const clv_status st = read_all(tok, json, list, &known, contents);
        free(known.slot);
        free(contents);
        CLV_TRY(clv_within(st, "added_tokens"));
    }
    build_set(tok, &tok->raw, false);
    build_set(tok, &tok->normal, true);
    return clv_ok();
}
