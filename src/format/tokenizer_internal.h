/* tokenizer_internal.h - what the tokenizer's files share.
 *
 * A tokenizer is data: a vocabulary, ranked merges, added tokens, and three chains of steps. Encoding runs
 *
 *   text -> cut out raw added tokens -> normal steps -> cut out normalized added tokens -> split steps -> merges -> ids
 *
 * and decoding runs ids -> token strings -> decode steps -> text. The components of a tokenizer.json (which nest) are
 * flattened into the chains when it is loaded, so that every loop below is over an array. A loaded tokenizer never
 * changes: everything an encoding or decoding needs to write to belongs to that call.
 */
#ifndef CLV_TOKENIZER_INTERNAL_H
#define CLV_TOKENIZER_INTERNAL_H

#include "format/format.h"

#include <stdatomic.h>

/* ---- unicode.c, unicode_table.c: characters and their classes ---------------------------------------------------- */

enum {
    CLV_CHAR_BAD = 0x110000, /* bytes that begin no character: a maximal invalid part */
    CLV_CHAR_CUT = 0x110001  /* the beginning of a character that the end of the text cuts off */
};

typedef struct clv_code_range {
    uint32_t first, last;
} clv_code_range;

extern const clv_code_range clv_letter_ranges[], clv_number_ranges[], clv_word_ranges[];
extern const size_t clv_letter_range_count, clv_number_range_count, clv_word_range_count;

typedef enum clv_char_class { CLV_CHAR_LETTER, CLV_CHAR_NUMBER, CLV_CHAR_SPACE, CLV_CHAR_OTHER } clv_char_class;

/* The character at the front of n >= 1 bytes, or CLV_CHAR_BAD or _CUT. Returns the bytes it takes, at least 1. */
size_t clv_utf8_next(const char *text, size_t n, uint32_t *code);
size_t clv_utf8_put(char out[4], uint32_t code);
/* Bytes of the longest valid prefix: n when all is valid. */
size_t clv_utf8_valid_prefix(const char *text, size_t n);
clv_char_class clv_char_class_of(uint32_t code);
bool clv_char_is_word(uint32_t code); /* \w */

/* ---- tokenizer_table.c: strings that stay, two hash tables, a heap ------------------------------------------------
 */

typedef struct clv_span {
    const char *at; /* NULL: there is none */
    size_t n;
} clv_span;

typedef struct clv_pool { /* zero-initialise; strings keep their address until the pool is freed */
    struct clv_pool_block *last;
} clv_pool;
clv_span clv_pool_add(clv_pool *pool, const char *text, size_t n); /* a terminated copy */
void clv_pool_free(clv_pool *pool);

/* String -> index into an array of strings that the caller keeps. */
typedef struct clv_string_map {
    struct clv_string_slot *slot;
    size_t size, count;
} clv_string_map;
int32_t clv_string_map_find(const clv_string_map *map, const clv_span *strings, clv_span key); /* -1 when absent */
void clv_string_map_put(clv_string_map *map, const clv_span *strings, int32_t index); /* strings[index] is new */

/* Pair of ids -> number. */
typedef struct clv_pair_map {
    struct clv_pair_slot *slot;
    size_t size, count;
} clv_pair_map;
uint64_t clv_pair_of(int32_t left, int32_t right);
int32_t clv_pair_map_find(const clv_pair_map *map, uint64_t pair); /* -1 when absent */
void clv_pair_map_put(clv_pair_map *map, uint64_t pair, int32_t value);

typedef struct clv_heap_item { /* least key first, then least value */
    uint64_t key, value;
} clv_heap_item;
typedef struct clv_heap {
    clv_heap_item *item;
    size_t count, capacity;
} clv_heap;
void clv_heap_push(clv_heap *heap, clv_heap_item item);
clv_heap_item clv_heap_pop(clv_heap *heap); /* Contract: not empty */

/* ---- chains of steps --------------------------------------------------------------------------------------------- */

typedef enum clv_step_kind {
    CLV_STEP_NFC,
    CLV_STEP_PREPEND,     /* from: what to put in front of a piece that is not empty */
    CLV_STEP_REPLACE,     /* every `from` becomes `to`; also decodes */
    CLV_STEP_SPACE,       /* a space in front of a piece that lacks one */
    CLV_STEP_SPLIT,       /* number: a clv_pattern */
    CLV_STEP_BYTES,       /* each byte becomes its character of the byte-level alphabet */
    CLV_STEP_MARK,        /* spaces become the mark `from`; number: a clv_prepend */
    CLV_STEP_CUT,         /* a piece begins at each mark `from` */
    CLV_STEP_BYTE_TOKENS, /* decodes runs of <0xHH> */
    CLV_STEP_FUSE,        /* decodes: from here on the tokens are one text */
    CLV_STEP_STRIP,       /* decodes: up to `number` copies of `from` leave the front */
    CLV_STEP_UNBYTES,     /* decodes CLV_STEP_BYTES */
    CLV_STEP_UNMARK,      /* decodes CLV_STEP_MARK */
    CLV_STEP_JOIN,        /* decodes where the file has no decoder: tokens with spaces between */
    CLV_STEP_KINDS
} clv_step_kind;

typedef enum clv_pattern { CLV_PATTERN_GPT2, CLV_PATTERN_LLAMA3, CLV_PATTERN_QWEN2, CLV_PATTERNS } clv_pattern;
typedef enum clv_prepend { CLV_PREPEND_ALWAYS, CLV_PREPEND_FIRST, CLV_PREPEND_NEVER, CLV_PREPENDS } clv_prepend;

typedef struct clv_step {
    clv_step_kind kind;
    clv_span from, to;
    int32_t number;
    bool fused; /* decoding: what comes in is one text in parts, no longer a list of tokens */
} clv_step;

enum { CLV_STEPS = 16 };
typedef struct clv_chain {
    clv_step step[CLV_STEPS];
    int count;
} clv_chain;

typedef struct clv_added { /* an added token */
    clv_span content;
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
} clv_added;

typedef struct clv_added_set { /* those to look for at one point: sorted by first byte, then longest first */
    struct clv_added_pattern {
        clv_span text;
        int32_t index; /* of its clv_added */
    } * pattern;
    size_t start[257]; /* of the patterns of each first byte */
} clv_added_set;

struct clv_tokenizer {
    clv_text json; /* the tokenizer.json that states all of this */
    clv_pool pool;
    clv_span *token; /* by id; the holes have no string */
    uint8_t *special;
    int32_t vocab;      /* highest id + 1 */
    clv_string_map ids; /* of the model's vocabulary alone */

    clv_pair_map ranks;       /* pair -> rank */
    int32_t *merged;          /* rank -> id of the pair's concatenation */
    int32_t merge_count, unk; /* unk: -1 when none */
    bool ignore_merges, byte_fallback, fuse_unk;
    int32_t byte_token[256]; /* ids of <0x00> ... <0xFF>; -1 when absent */

    clv_added *added;
    int32_t added_count;
    clv_added_set raw, normal;
    clv_chain normalize, split, decode;
    clv_ids before, after; /* what the template puts around a text */

    uint16_t alphabet[256]; /* byte -> code point */
    int16_t byte_of[0x144]; /* code point -> byte; -1 when none */
    atomic_flag *warned;    /* about a text that brings its own first token */
};

clv_status clv_tokenizer_parse(clv_tokenizer **out, const char *text, size_t n, const char *where);
/* One component each (tokenizer_parse.c). Errors: what is not supported, by its name. */
clv_status clv_parse_normalizer(clv_tokenizer *tok, const clv_json *json, clv_node node);
clv_status clv_parse_pre_tokenizer(clv_tokenizer *tok, const clv_json *json, clv_node node);
clv_status clv_parse_post_processor(clv_tokenizer *tok, const clv_json *json, clv_node node);
clv_status clv_parse_decoder(clv_tokenizer *tok, const clv_json *json, clv_node node);
clv_status clv_parse_added(clv_tokenizer *tok, const clv_json *json, clv_node list); /* tokenizer_added.c */
/* The member's string. Errors: absent or of another kind. */
clv_status clv_parse_string(const clv_json *json, clv_node object, const char *key, clv_span *out);

/* ---- the parts of encoding and decoding, and of making a file
 * -------------------------------------------------------- */

/* A GPT-2 type tokenizer.json around a vocabulary (the text of a JSON object) and merges (of a JSON array). */
typedef struct clv_special_token {
    const char *content;
    int64_t id;
} clv_special_token;
void clv_tokenizer_compose(clv_text *out, const clv_text *vocab, const clv_text *merges,
                           const clv_special_token *specials, size_t count);

/* Bytes of the first piece of n >= 1 bytes. */
size_t clv_split_next(clv_pattern pattern, const char *text, size_t n);
const char *clv_pattern_regex(clv_pattern pattern);
const char *clv_pattern_name(clv_pattern pattern);

void clv_byte_alphabet(uint16_t alphabet[256], int16_t byte_of[0x144]);

/* One normalizer chain over a piece; the result lies in one of the two texts. */
clv_span clv_normalize(const clv_chain *chain, clv_span piece, clv_text work[2]);
void clv_replace(clv_text *out, clv_span text, clv_span from, clv_span to);

typedef struct clv_symbol clv_symbol;
typedef struct clv_bpe_work { /* zero-initialise; what one call's merging writes to */
    clv_symbol *symbol;
    int32_t count, capacity;
    clv_heap heap;
} clv_bpe_work;
void clv_bpe_encode(const clv_tokenizer *tok, clv_bpe_work *work, clv_span word, clv_ids *out);
void clv_bpe_work_free(clv_bpe_work *work);

#endif
