/* tokenizer_train.c - byte-level BPE from text.
 *
 * The text is cut into words by GPT-2's pattern and each different word is counted once. The vocabulary begins with the
 * 256 bytes in the order of their characters; then the most frequent adjacent pair, weighted by its words' counts,
 * becomes a token, again and again, while it occurs at least twice; ties go to the lowest pair of ids. A merge changes
 * only the words that hold the pair: each pair keeps a list of them. Counts of existing pairs only sink, so an outdated
 * heap entry overstates its pair, and is put back with the true count when it comes up.
 *
 * Source: Sennrich et al. 2016, "Neural machine translation of rare words with subword units"; Radford et al. 2019.
 */
#include "format/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

enum { MIN_COUNT = 2, BYTES = 256, LONGEST_WORD = 1 << 20 };

typedef struct pair_record {
    uint64_t pair;
    int64_t count;
    int32_t *word; /* where it occurs, or occurred */
    int32_t words, capacity;
} pair_record;

typedef struct word_record {
    int64_t count;
    int32_t *id;
    int32_t length;
} word_record;

struct clv_bpe_trainer {
    clv_pool pool;
    clv_string_map index;
    clv_span *text; /* of each word */
    word_record *word;
    int32_t words, word_capacity;
    clv_pair_map pair_index;
    pair_record *pair;
    int32_t pairs, pair_capacity;
    clv_heap heap; /* key: ~count, value: pair */
    int32_t *ids;  /* of all words, behind each other */
    uint64_t *merge;
    int32_t merges;
};

clv_bpe_trainer *clv_bpe_trainer_create(void)
{
    return clv_alloc(1, sizeof(clv_bpe_trainer));
}

static void trainer_free(clv_bpe_trainer *t)
{
    for (int32_t i = 0; i < t->pairs; i++)
        free(t->pair[i].word);
    clv_pool_free(&t->pool);
    free(t->index.slot);
    free(t->text);
    free(t->word);
    free(t->pair_index.slot);
    free(t->pair);
    free(t->heap.item);
    free(t->ids);
    free(t->merge);
    free(t);
}

static void count_word(clv_bpe_trainer *t, clv_span text)
{
    int32_t index = clv_string_map_find(&t->index, t->text, text);
    if (index < 0) {
        if (t->words == t->word_capacity) {
            t->word_capacity = CLV_MAX(2 * t->word_capacity, 1024);
            t->text = clv_resize(t->text, (size_t)t->word_capacity, sizeof *t->text);
            t->word = clv_resize(t->word, (size_t)t->word_capacity, sizeof *t->word);
        }
        index = t->words++;
        t->text[index] = clv_pool_add(&t->pool, text.at, text.n);
        t->word[index] = (word_record){0};
        clv_string_map_put(&t->index, t->text, index);
    }
    t->word[index].count++;
}

void clv_bpe_trainer_feed(clv_bpe_trainer *trainer, const char *text, size_t n)
{
    for (size_t at = 0, length; at < n; at += length) {
        length = CLV_MIN(clv_split_next(CLV_PATTERN_GPT2, text + at, n - at), (size_t)LONGEST_WORD);
        count_word(trainer, (clv_span){text + at, length});
    }
}

/* ---- pairs ------------------------------------------------------------------------------------------------------- */

static pair_record *pair_at(clv_bpe_trainer *t, uint64_t pair)
{
    int32_t index = clv_pair_map_find(&t->pair_index, pair);
    if (index < 0) {
        if (t->pairs == t->pair_capacity) {
            t->pair_capacity = CLV_MAX(2 * t->pair_capacity, 1024);
            t->pair = clv_resize(t->pair, (size_t)t->pair_capacity, sizeof *t->pair);
        }
        index = t->pairs++;
        t->pair[index] = (pair_record){.pair = pair};
        clv_pair_map_put(&t->pair_index, pair, index);
    }
    return &t->pair[index];
}

static void change_pair(clv_bpe_trainer *t, int32_t left, int32_t right, int32_t word, int64_t by)
{
    pair_record *p = pair_at(t, clv_pair_of(left, right));
    p->count += by;
    if (by < 0 || (p->words > 0 && p->word[p->words - 1] == word))
        return;
    if (p->words == p->capacity) {
        p->capacity = CLV_MAX(2 * p->capacity, 4);
        p->word = clv_resize(p->word, (size_t)p->capacity, sizeof *p->word);
    }
    p->word[p->words++] = word;
}

static void offer(clv_bpe_trainer *t, const pair_record *p)
{
    if (p->count >= MIN_COUNT)
        clv_heap_push(&t->heap, (clv_heap_item){~(uint64_t)p->count, p->pair});
}

static void start_words(clv_bpe_trainer *t, const int32_t byte_id[BYTES])
{
    size_t total = 0;
    for (int32_t w = 0; w < t->words; w++)
        total += t->text[w].n;
    t->ids = clv_alloc(total, sizeof *t->ids);
    int32_t *next = t->ids;
    for (int32_t w = 0; w < t->words; w++) {
        t->word[w].id = next;
        t->word[w].length = (int32_t)t->text[w].n;
        for (int32_t i = 0; i < t->word[w].length; i++)
            next[i] = byte_id[(uint8_t)t->text[w].at[i]];
        for (int32_t i = 1; i < t->word[w].length; i++)
            change_pair(t, next[i - 1], next[i], w, t->word[w].count);
        next += t->word[w].length;
    }
    for (int32_t i = 0; i < t->pairs; i++)
        offer(t, &t->pair[i]);
}

/* Every left right in the word becomes `id`; what stood beside it now stands beside id. */
static void merge_in_word(clv_bpe_trainer *t, int32_t w, uint64_t pair, int32_t id)
{
    word_record *word = &t->word[w];
    const int32_t left = (int32_t)(pair >> 32), right = (int32_t)(uint32_t)pair;
    int32_t to = 0;
    for (int32_t from = 0; from < word->length; from++) {
        if (from + 1 == word->length || word->id[from] != left || word->id[from + 1] != right) {
            word->id[to++] = word->id[from];
            continue;
        }
        change_pair(t, left, right, w, -word->count);
        if (to > 0) {
            change_pair(t, word->id[to - 1], left, w, -word->count);
            change_pair(t, word->id[to - 1], id, w, word->count);
        }
        if (from + 2 < word->length) {
            change_pair(t, right, word->id[from + 2], w, -word->count);
            change_pair(t, id, word->id[from + 2], w, word->count);
        }
        word->id[to++] = id;
        from++;
    }
    word->length = to;
}

static void merge_pair(clv_bpe_trainer *t, uint64_t pair, int32_t id)
{
    pair_record *p = pair_at(t, pair);
    int32_t *words = p->word; /* taken away: the records move when pairs are added */
    const int32_t count = p->words, first_new = t->pairs;
    p->word = NULL;
    p->words = p->capacity = 0;
    for (int32_t i = 0; i < count; i++)
        merge_in_word(t, words[i], pair, id);
    free(words);
    for (int32_t i = first_new; i < t->pairs; i++)
        offer(t, &t->pair[i]);
}

/* The most frequent pair, or false when none occurs often enough. */
static bool best_pair(clv_bpe_trainer *t, uint64_t *pair)
{
    while (t->heap.count > 0) {
        const clv_heap_item top = clv_heap_pop(&t->heap);
        const pair_record *p = pair_at(t, top.value);
        if (~top.key == (uint64_t)p->count) {
            *pair = top.value;
            return true;
        }
        offer(t, p);
    }
    return false;
}

static void learn(clv_bpe_trainer *t, int64_t merges)
{
    double last = clv_seconds();
    t->merge = clv_alloc((size_t)merges, sizeof *t->merge);
    for (uint64_t pair; t->merges < merges && best_pair(t, &pair); t->merges++) {
        t->merge[t->merges] = pair;
        merge_pair(t, pair, BYTES + t->merges);
        if (clv_seconds() - last < 1)
            continue;
        last = clv_seconds();
        clv_log(CLV_LOG_INFO, "tokenizer: %d of %lld merges", t->merges + 1, (long long)merges);
    }
    if (t->merges < merges)
        clv_log(CLV_LOG_WARN, "tokenizer: the text has no pair left that occurs twice; %d merges instead of %lld",
                t->merges, (long long)merges);
}

/* ---- the result -------------------------------------------------------------------------------------------------- */

/* The tokens' spellings in the byte-level alphabet; the 256 bytes come in the order of their characters. */
static clv_span *spell_tokens(clv_bpe_trainer *t, const uint16_t alphabet[256], const int32_t byte_id[BYTES])
{
    clv_span *token = clv_alloc((size_t)(BYTES + t->merges), sizeof *token);
    clv_text both = {0};
    for (int byte = 0; byte < BYTES; byte++) {
        char character[4];
        token[byte_id[byte]] = clv_pool_add(&t->pool, character, clv_utf8_put(character, alphabet[byte]));
    }
    for (int32_t i = 0; i < t->merges; i++) {
        const clv_span left = token[t->merge[i] >> 32], right = token[(uint32_t)t->merge[i]];
        both.length = 0;
        clv_text_add(&both, left.at, left.n);
        clv_text_add(&both, right.at, right.n);
        token[BYTES + i] = clv_pool_add(&t->pool, both.data, both.length);
    }
    clv_text_free(&both);
    return token;
}

static void add_entry(clv_text *vocab, clv_span token, int64_t id)
{
    clv_text_add(vocab, id == 0 ? "{" : ",", 1);
    clv_json_add_string(vocab, token.at, token.n);
    clv_text_printf(vocab, ":%lld", (long long)id);
}

static void compose(clv_bpe_trainer *t, const clv_span *token, clv_special_token *specials, size_t count, clv_text *out)
{
    clv_text vocab = {0}, merges = {0};
    const int32_t tokens = BYTES + t->merges;
    for (int32_t i = 0; i < tokens; i++)
        add_entry(&vocab, token[i], i);
    for (size_t i = 0; i < count; i++) {
        specials[i].id = tokens + (int64_t)i;
        add_entry(&vocab, (clv_span){specials[i].content, strlen(specials[i].content)}, specials[i].id);
    }
    clv_text_add(&vocab, "}", 1);
    clv_text_add(&merges, "[", 1);
    for (int32_t i = 0; i < t->merges; i++) {
        const clv_span left = token[t->merge[i] >> 32], right = token[(uint32_t)t->merge[i]];
        clv_text_add(&merges, i == 0 ? "[" : ",[", i == 0 ? 1 : 2);
        clv_json_add_string(&merges, left.at, left.n);
        clv_text_add(&merges, ",", 1);
        clv_json_add_string(&merges, right.at, right.n);
        clv_text_add(&merges, "]", 1);
    }
    clv_text_add(&merges, "]", 1);
    clv_tokenizer_compose(out, &vocab, &merges, specials, count);
    clv_text_free(&vocab);
    clv_text_free(&merges);
}

clv_status clv_bpe_trainer_finish(clv_bpe_trainer *trainer, int64_t vocab, const char *const *specials, size_t count,
                                  clv_tokenizer **out)
{
    const int64_t merges = vocab - BYTES - (int64_t)count;
    *out = NULL;
    if (merges < 0 || vocab > INT32_MAX / 2) {
        trainer_free(trainer);
        return clv_fail(CLV_BAD_INPUT, "a vocabulary of %lld tokens cannot hold %d bytes and %zu special tokens",
                        (long long)vocab, BYTES, count);
    }
    uint16_t alphabet[256];
    int16_t byte_of[0x144];
    int32_t byte_id[BYTES];
    clv_byte_alphabet(alphabet, byte_of);
    for (int32_t code = 0, next = 0; code < 0x144; code++)
        if (byte_of[code] >= 0)
            byte_id[byte_of[code]] = next++;
    start_words(trainer, byte_id);
    learn(trainer, merges);
    clv_span *token = spell_tokens(trainer, alphabet, byte_id);
    clv_special_token *special = clv_alloc(count, sizeof *special);
    for (size_t i = 0; i < count; i++)
        special[i].content = specials[i];
    clv_text json = {0};
    compose(trainer, token, special, count, &json);
    const clv_status st = clv_tokenizer_parse(out, json.data, json.length, "the trained tokenizer");
    clv_text_free(&json);
    free(special);
    free(token);
    trainer_free(trainer);
    return st;
}
