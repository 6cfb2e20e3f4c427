/* format.h - bytes on disk: JSON, safetensors, Hugging Face's config, tokenizers, Megatron's indexed data, pictures.
 *
 * This layer knows no rank and no model code. Everything that it reads is untrusted: each length, offset and index is
 * checked before use, and a refusal names the file, the key or place, the value and what was expected.
 */
#ifndef CLV_FORMAT_H
#define CLV_FORMAT_H

#include "base/base.h"

/* ---- json*.c: a strict reader (RFC 8259, valid UTF-8, no duplicate keys, bounded depth), and writing helpers ------
 */

typedef enum clv_json_kind {
    CLV_JSON_NULL,
    CLV_JSON_BOOL,
    CLV_JSON_NUMBER,
    CLV_JSON_STRING,
    CLV_JSON_ARRAY,
    CLV_JSON_OBJECT
} clv_json_kind;

typedef struct clv_json clv_json; /* one parsed document: its nodes in one array */
typedef int64_t clv_node;         /* a value in it; CLV_NO_NODE when there is none */
enum { CLV_NO_NODE = -1, CLV_JSON_ROOT = 0 };

/* `where` names the document in messages. Errors: line and column, and what was expected. The text is copied. */
clv_status clv_json_parse(clv_json **out, const char *text, size_t n, const char *where);
clv_status clv_json_load(clv_json **out, const char *path);
void clv_json_free(clv_json *json);

clv_json_kind clv_json_kind_of(const clv_json *json, clv_node node);
clv_node clv_json_first(const clv_json *json, clv_node node);                /* first child of an array or object */
clv_node clv_json_next(const clv_json *json, clv_node node);                 /* next sibling */
int64_t clv_json_count(const clv_json *json, clv_node node);                 /* children */
const char *clv_json_key(const clv_json *json, clv_node node, size_t *n);    /* of a member of an object */
const char *clv_json_string(const clv_json *json, clv_node node, size_t *n); /* unescaped, terminated; n may be NULL */
clv_node clv_json_get(const clv_json *json, clv_node object, const char *key); /* linear */
/* Asking for what is not there, be it of another kind or CLV_NO_NODE, gives CLV_NO_NODE, 0, NULL or false. */
bool clv_json_is(const clv_json *json, clv_node node, clv_json_kind kind); /* false for CLV_NO_NODE */
bool clv_json_bool(const clv_json *json, clv_node node, bool *out);
bool clv_json_i64(const clv_json *json, clv_node node, int64_t *out); /* exact integers only */
bool clv_json_f64(const clv_json *json, clv_node node, double *out);

/* Members of an object with a default: absent or null leaves *out alone; a value of another kind is an error. */
clv_status clv_json_opt_i64(const clv_json *json, clv_node object, const char *key, int64_t *out);
clv_status clv_json_opt_f64(const clv_json *json, clv_node object, const char *key, double *out);
clv_status clv_json_opt_bool(const clv_json *json, clv_node object, const char *key, bool *out);

void clv_json_add_string(clv_text *out, const char *text, size_t n); /* quoted and escaped */
/* The fewest digits that read back, with a point or an exponent; null when not finite. */
void clv_json_add_number(clv_text *out, double value);

/* ---- safetensors*.c: one file, or a folder with an index ----------------------------------------------------------
 */

enum { CLV_ST_DIMS = 8 };

typedef struct clv_st_tensor {
    const char *name;
    clv_dtype dtype; /* CLV_DTYPES for one that we do not compute with; `kind` has its name */
    char kind[12];   /* as in the file: "F32", "BF16", ... */
    int ndim;
    int64_t dim[CLV_ST_DIMS];
    uint64_t bytes;
    uint64_t at; /* offset in its file, from the start of the file */
    int file;
} clv_st_tensor;

typedef struct clv_safetensors clv_safetensors;

/* path: a .safetensors file, or a folder holding model.safetensors or model.safetensors.index.json with its shards. */
clv_status clv_safetensors_open(clv_safetensors **out, const char *path);
void clv_safetensors_close(clv_safetensors *st);
size_t clv_safetensors_count(const clv_safetensors *st);
const clv_st_tensor *clv_safetensors_at(const clv_safetensors *st, size_t i);
const clv_st_tensor *clv_safetensors_find(const clv_safetensors *st, const char *name); /* NULL when absent */
const char *clv_safetensors_file(const clv_safetensors *st, int file);                  /* its path, for messages */
const char *clv_safetensors_metadata(const clv_safetensors *st, const char *key);       /* NULL when absent */
/* n bytes of a tensor's data, from `offset` in it. Errors: short read, with the file's name. */
clv_status clv_safetensors_read(const clv_safetensors *st, const clv_st_tensor *t, uint64_t offset, void *out,
                                size_t n);

/* Writing: declare every tensor (name, dtype, dims; no name twice), then fill them in any order and from any process
 * that opens the same list; the header depends on the list alone. finish checks that the size is right, and syncs. */
typedef struct clv_st_writer clv_st_writer;
clv_status clv_st_writer_create(clv_st_writer **out, const char *path, const clv_st_tensor *tensors, size_t count);
clv_status clv_st_writer_put(clv_st_writer *w, size_t tensor, uint64_t offset, const void *data, size_t n);
clv_status clv_st_writer_finish(clv_st_writer *w); /* also frees it, whatever happens */

/* The bytes of such a file in front of the data. at[i]: where tensor i begins in the file; at[count]: the file's size.
 * Errors: a header too long for the format. */
clv_status clv_st_header_make(clv_text *header, uint64_t *at, const clv_st_tensor *tensors, size_t count);

const char *clv_dtype_st_name(clv_dtype dtype);

/* ---- hf_*.c: config.json <-> clv_config ----------------------------------------------------------------------------
 */

/* folder/config.json. Missing keys mean the family's default; what we cannot compute is refused by name. */
clv_status clv_hf_config_read(clv_config *out, const char *folder);
/* The family that states this shape exactly ("llama", ...), or "cleave" when none does. */
const char *clv_hf_family_of(const clv_config *config);
clv_status clv_hf_config_write(const clv_config *config, const char *folder, clv_dtype dtype);

/* ---- tokenizer*.c: tokenizer.json, vocab.json + merges.txt
 * ------------------------------------------------------------- */

typedef struct clv_ids {
    int32_t *id;
    size_t count, capacity;
} clv_ids;
void clv_ids_add(clv_ids *ids, int32_t id);
void clv_ids_free(clv_ids *ids);

typedef struct clv_tokenizer clv_tokenizer;

/* path: tokenizer.json, a folder that holds it (or vocab.json + merges.txt), or vocab.json itself. */
clv_status clv_tokenizer_load(clv_tokenizer **out, const char *path);
void clv_tokenizer_free(clv_tokenizer *tok);
clv_status clv_tokenizer_save(const clv_tokenizer *tok, const char *path); /* a tokenizer.json */
int64_t clv_tokenizer_vocab_size(const clv_tokenizer *tok);                /* highest id + 1, added tokens included */
int32_t clv_tokenizer_id(const clv_tokenizer *tok, const char *token);     /* -1 when unknown */
const char *clv_tokenizer_token(const clv_tokenizer *tok, int32_t id);     /* NULL for a hole */
bool clv_tokenizer_is_special(const clv_tokenizer *tok, int32_t id);
int32_t clv_tokenizer_eod(const clv_tokenizer *tok); /* end of document: <|endoftext|>, </s>, ...; -1 when none */
/* Safe to call from several threads on one tokenizer. add_special: run the post-processor's template; a text that
 * begins with the template's own first tokens does not get them twice. Errors: text that is not UTF-8, with the byte's
 * place. */
clv_status clv_tokenizer_encode(const clv_tokenizer *tok, const char *text, size_t n, bool add_special, clv_ids *out);
clv_status clv_tokenizer_decode(const clv_tokenizer *tok, const int32_t *ids, size_t n, bool skip_special,
                                clv_text *out);
void clv_tokenizer_describe(const clv_tokenizer *tok, clv_text *out); /* its pipeline, for people */

/* Decoding as ids arrive: add appends only complete characters; finish flushes what is left (U+FFFD for a torn one).
 * All parts together are what clv_tokenizer_decode gives. A run of <0xHH> tokens (byte fallback) is handed out when it
 * ends: a later byte can spoil the whole run. Errors: an id that is not in the vocabulary. */
typedef struct clv_decoder clv_decoder;
clv_decoder *clv_decoder_create(const clv_tokenizer *tok, bool skip_special);
clv_status clv_decoder_add(clv_decoder *decoder, int32_t id, clv_text *out);
clv_status clv_decoder_finish(clv_decoder *decoder, clv_text *out);
void clv_decoder_free(clv_decoder *decoder);

/* Byte-level BPE from text: GPT-2's pattern, 256 bytes, then the most frequent pair again and again (ties: lowest
 * pair). specials take the ids after the merges' tokens. Reports progress through the log. */
typedef struct clv_bpe_trainer clv_bpe_trainer;
clv_bpe_trainer *clv_bpe_trainer_create(void);
void clv_bpe_trainer_feed(clv_bpe_trainer *trainer, const char *text, size_t n);
clv_status clv_bpe_trainer_finish(clv_bpe_trainer *trainer, int64_t vocab, const char *const *specials, size_t count,
                                  clv_tokenizer **out); /* frees the trainer */

/* ---- indexed.c: Megatron's .bin and .idx
 * ---------------------------------------------------------------------------------- */

typedef struct clv_indexed clv_indexed;
clv_status clv_indexed_open(clv_indexed **out, const char *prefix); /* prefix.bin and prefix.idx */
void clv_indexed_close(clv_indexed *data);
int64_t clv_indexed_sequences(const clv_indexed *data);
int64_t clv_indexed_documents(const clv_indexed *data);
int64_t clv_indexed_document_start(const clv_indexed *data, int64_t document); /* its first sequence */
int64_t clv_indexed_length(const clv_indexed *data, int64_t sequence);         /* tokens */
int64_t clv_indexed_tokens(const clv_indexed *data);                           /* all */
clv_status clv_indexed_read(const clv_indexed *data, int64_t sequence, int64_t offset, int64_t n, int32_t *out);
/* Every id below vocab? Errors: file, document, position and id of the first that is not. */
clv_status clv_indexed_check(const clv_indexed *data, int64_t vocab);

typedef struct clv_indexed_writer clv_indexed_writer;
/* uint16 when vocab <= 65,536, else int32. Both files appear under their names only when finish succeeds. */
clv_status clv_indexed_writer_create(clv_indexed_writer **out, const char *prefix, int64_t vocab);
clv_status clv_indexed_writer_add(clv_indexed_writer *w, const int32_t *tokens, int64_t n); /* one sequence */
clv_status clv_indexed_writer_end_document(clv_indexed_writer *w);
clv_status clv_indexed_writer_finish(clv_indexed_writer *w); /* also frees it */
void clv_indexed_writer_abandon(clv_indexed_writer *w);

/* ---- mt19937.c: NumPy's legacy generator, for Megatron's exact data order
 * -------------------------------------------------- */

typedef struct clv_mt19937 {
    uint32_t state[624];
    int at;
} clv_mt19937;
void clv_mt19937_seed(clv_mt19937 *mt, uint32_t seed);
uint32_t clv_mt19937_next(clv_mt19937 *mt);
void clv_mt19937_shuffle(clv_mt19937 *mt, int64_t *array, int64_t n); /* the draws do not depend on the type */

/* ---- svg.c: a line chart, and bars on rows
 * --------------------------------------------------------------------------------------------------- */

typedef struct clv_series {
    const char *name;
    const double *x, *y; /* points that are not finite are left out */
    size_t count;
} clv_series;
clv_status clv_svg_chart(const char *path, const char *title, const char *x_label, const char *y_label,
                         const clv_series *series, size_t count);

typedef struct clv_bar {
    int row;
    double from, to;
    const char *color;
    char label[12];
} clv_bar;
/* Row i is called "NAME i"; one unit of x is as wide as a label of two digits needs. */
clv_status clv_svg_bars(const char *path, const char *title, const char *name, const clv_bar *bars, size_t count);

/* ---- trace.c: Chrome's trace events, as Perfetto shows them
 * --------------------------------------------------------------------------------------------------- */

typedef struct clv_trace_event { /* of a thread of a process: slices of one thread nest or stand apart */
    int process, thread;
    const char *name, *category;
    double begin, end;  /* seconds */
    const char *key[4]; /* of args, NULL: no more */
    int64_t value[4];
} clv_trace_event;
/* A file is the head, names and slices in any order, the tail. */
void clv_trace_head(clv_text *out);
void clv_trace_process(clv_text *out, int process, const char *name);
void clv_trace_thread(clv_text *out, int process, int thread, const char *name);
void clv_trace_slice(clv_text *out, const clv_trace_event *slice);
void clv_trace_tail(clv_text *out);

#endif
