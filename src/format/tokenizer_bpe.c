/* tokenizer_bpe.c - one word to ids: characters, then merges.
 *
 * Each character becomes its token. Where it has none: the tokens of its bytes (byte_fallback), else the unknown token
 * (a run of them is one with fuse_unk), else nothing, and its neighbours meet. Then the adjacent pair of the lowest
 * rank is merged, the leftmost first among equals, until no pair has a rank. A heap of (rank, position) makes this
 * O(n log n): a word may be as long as the text. A pair that a merge destroyed stays in the heap; it is known by the
 * rank that its position has now.
 *
 * Source: Sennrich et al. 2016, "Neural machine translation of rare words with subword units".
 */
#include "format/tokenizer_internal.h"

#include <stdlib.h>

struct clv_symbol {
    int32_t id, previous, next; /* positions; -1 at the ends */
    int32_t rank;               /* of the pair that this one forms with the next; -1 when none */
};

static void add_symbol(clv_bpe_work *work, int32_t id)
{
    if (work->count == work->capacity) {
        work->capacity = CLV_MAX(2 * work->capacity, 256);
        work->symbol = clv_resize(work->symbol, (size_t)work->capacity, sizeof *work->symbol);
    }
    work->symbol[work->count] = (clv_symbol){.id = id, .previous = work->count - 1, .next = work->count + 1};
    work->count++;
}

static bool add_bytes(const clv_tokenizer *tok, clv_bpe_work *work, clv_span character)
{
    if (!tok->byte_fallback)
        return false;
    for (size_t i = 0; i < character.n; i++)
        if (tok->byte_token[(uint8_t)character.at[i]] < 0)
            return false;
    for (size_t i = 0; i < character.n; i++)
        add_symbol(work, tok->byte_token[(uint8_t)character.at[i]]);
    return true;
}

/* The unknown token waits until a known character or the end: byte tokens overtake it, as in the reference. */
static void add_characters(const clv_tokenizer *tok, clv_bpe_work *work, clv_span word)
{
    bool unknown = false;
    work->count = 0;
    for (size_t at = 0, length; at < word.n; at += length) {
        uint32_t code;
        length = clv_utf8_next(word.at + at, word.n - at, &code);
        const clv_span character = {word.at + at, length};
        const int32_t id = clv_string_map_find(&tok->ids, tok->token, character);
        if (id < 0 && (add_bytes(tok, work, character) || tok->unk < 0))
            continue;
        if (unknown && !(id < 0 && tok->fuse_unk))
            add_symbol(work, tok->unk);
        unknown = id < 0;
        if (id >= 0)
            add_symbol(work, id);
    }
    if (unknown)
        add_symbol(work, tok->unk);
    if (work->count > 0)
        work->symbol[work->count - 1].next = -1;
}

static void offer(const clv_tokenizer *tok, clv_bpe_work *work, int32_t position)
{
    clv_symbol *s = &work->symbol[position];
    s->rank = s->next < 0 ? -1 : clv_pair_map_find(&tok->ranks, clv_pair_of(s->id, work->symbol[s->next].id));
    if (s->rank >= 0)
        clv_heap_push(&work->heap, (clv_heap_item){(uint64_t)s->rank, (uint64_t)position});
}

static void merge_all(const clv_tokenizer *tok, clv_bpe_work *work)
{
    clv_symbol *symbol = work->symbol;
    for (int32_t i = 0; i < work->count; i++)
        offer(tok, work, i);
    while (work->heap.count > 0) {
        const clv_heap_item best = clv_heap_pop(&work->heap);
        clv_symbol *left = &symbol[best.value];
        if (left->rank != (int32_t)best.key)
            continue;
        clv_symbol *right = &symbol[left->next];
        left->id = tok->merged[left->rank];
        left->next = right->next;
        right->rank = -1;
        if (left->next >= 0)
            symbol[left->next].previous = (int32_t)best.value;
        offer(tok, work, (int32_t)best.value);
        if (left->previous >= 0)
            offer(tok, work, left->previous);
    }
}

void clv_bpe_encode(const clv_tokenizer *tok, clv_bpe_work *work, clv_span word, clv_ids *out)
{
    if (tok->ignore_merges) {
        const int32_t whole = clv_string_map_find(&tok->ids, tok->token, word);
        if (whole >= 0) {
            clv_ids_add(out, whole);
            return;
        }
    }
    add_characters(tok, work, word);
    merge_all(tok, work);
    for (int32_t i = work->count > 0 ? 0 : -1; i >= 0; i = work->symbol[i].next)
        clv_ids_add(out, work->symbol[i].id);
}

void clv_bpe_work_free(clv_bpe_work *work)
{
    free(work->symbol);
    free(work->heap.item);
}
