/* train_data.h - from token files to the samples of a step.
 *
 *   indexed sets --split--> sequences --order--> samples of seq_length + 1 tokens --blend--> dataset --sampler--> rank
 *
 * A sample's first seq_length tokens are the input, its last seq_length the labels; neighbouring samples of one stream
 * share the token between them.
 */
#ifndef CLV_TRAIN_DATA_H
#define CLV_TRAIN_DATA_H

#include "format/format.h"

/* ---- sample_order.c: in which order the sequences of one set are joined and its samples read ----------------------
 */

typedef enum clv_data_order { CLV_ORDER_STABLE, CLV_ORDER_MEGATRON } clv_data_order;

typedef struct clv_part { /* the part of a set that a split owns */
    const clv_indexed *data;
    int64_t first, count; /* sequences */
    int64_t tokens;
} clv_part;

typedef struct clv_row { /* where a sample begins */
    int64_t at;          /* index into clv_sample_order.sequence */
    int64_t offset;      /* token in that sequence */
} clv_row;

typedef struct clv_sample_order {
    int64_t *sequence; /* the stream: ids of sequences, joined in this order */
    int64_t joined;    /* their number */
    clv_row *row;      /* samples + 1 */
    int64_t *shuffle;  /* the x-th sample to be read begins at row[shuffle[x]] */
    int64_t samples;
} clv_sample_order;

/* Part `which` (0 train, 1 valid, 2 test) of `data`: split is "969,30,1", weights of up to three parts in sequences,
 * rounded as Megatron does; NULL gives all to each. Errors: a split that is not numbers, or a part without tokens. */
clv_status clv_part_of(clv_part *out, const clv_indexed *data, const char *split, int which);
int64_t clv_part_samples(const clv_part *part, int64_t seq_length); /* whole samples of one epoch */

/* Epoch `epoch` alone: a pure function of (key, epoch), so that no run's length enters. order: zero, or one whose
 * memory may be used again. */
void clv_order_stable(clv_sample_order *order, const clv_part *part, int64_t seq_length, uint64_t key, int64_t epoch);
/* Megatron's order of a run of `samples` samples: NumPy's legacy shuffle over all epochs at once. */
clv_sample_order clv_order_megatron(const clv_part *part, int64_t seq_length, uint32_t seed, int64_t samples);
void clv_order_free(clv_sample_order *order);

/* ---- dataset.c: one or several sets, blended, or made-up tokens, behind one handle ---------------------------------
 */

typedef struct clv_dataset_spec {
    const char *const *prefix; /* of the sets; NULL with count 0: made-up tokens below vocab (--mock-data) */
    const double *weight;      /* of the sets, any scale; NULL: by their samples per epoch */
    size_t count;
    const char *split; /* see clv_part_of */
    int which;
    int64_t seq_length;
    int64_t vocab; /* ids must lie below it */
    uint64_t seed;
    clv_data_order order;
    int64_t samples; /* asked for by the whole run; Megatron's order depends on it */
} clv_dataset_spec;

typedef struct clv_dataset clv_dataset;
/* Reads the indexes, builds no order yet (Megatron's: builds it). Errors: files, split, part shorter than a sample. */
clv_status clv_dataset_open(clv_dataset **out, const clv_dataset_spec *spec);
void clv_dataset_close(clv_dataset *data);
int64_t clv_dataset_samples_per_epoch(const clv_dataset *data); /* of all sets together; INT64_MAX for mock data */
/* seq_length + 1 tokens. The index is unbounded for the stable order; reading forward is fastest. Not thread-safe: the
 * order of an epoch is built when it is reached. Errors: token outside the vocabulary (file, document, position); index
 * beyond what Megatron's order was built for. */
clv_status clv_dataset_sample(clv_dataset *data, int64_t index, int32_t *tokens);
/* Every id below spec.vocab? Scans all files. Errors: file, document, position and id. */
clv_status clv_dataset_check(const clv_dataset *data);
/* For the start of a run of `samples` samples: per set its sequences, tokens, samples, unused tokens, weight, epochs.
 */
void clv_dataset_describe(const clv_dataset *data, int64_t samples, clv_text *out);

/* What the ends of documents mean within a sample. */
typedef struct clv_eod_rules {
    int32_t eod;          /* -1: there is none */
    bool mask_loss;       /* --eod-mask-loss: no loss where the input is eod */
    bool reset_positions; /* --reset-position-ids: count again from 0 behind each eod */
    bool reset_attention; /* --reset-attention-mask: nothing behind an eod sees it or what lies before it */
} clv_eod_rules;
/* For each of n input tokens: 1 or 0 as it counts in the loss; its position id; the first token that it may see. */
void clv_eod_apply(const clv_eod_rules *rules, const int32_t *tokens, int64_t n, float *loss_mask, int32_t *position,
                   int32_t *document_start);

/* ---- sampler.c: which samples a rank reads -------------------------------------------------------------------------
 *
 * A global batch is the next global_batch samples of the dataset, whatever dp and the micro-batch are. */

typedef struct clv_sampler {
    int64_t global_batch, micro_batch;
    int64_t dp_rank, dp_size;
    clv_data_order order;
} clv_sampler;

/* Errors: sizes that do not divide, with the nearest global batches that do. */
clv_status clv_sampler_check(const clv_sampler *sampler);
int64_t clv_sampler_micros(const clv_sampler *sampler); /* micro-batches per rank and step */
/* Micro-batch `micro` of the step that begins after `consumed` samples reads this sample and the micro_batch - 1 that
 * follow. Stable: a rank's micro-batches are one contiguous run of the global batch. Megatron: they take turns. */
int64_t clv_sampler_first(const clv_sampler *sampler, int64_t consumed, int64_t micro);

/* ---- text_reader.c: documents of a text file, one after the other, with bounded memory ------------------------------
 */

typedef enum clv_text_format {
    CLV_TEXT_AUTO,   /* .jsonl and .json: lines; anything else: blocks */
    CLV_TEXT_LINES,  /* one JSON object a line */
    CLV_TEXT_BLOCKS, /* plain text; blank lines part documents and belong to none */
    CLV_TEXT_WHOLE   /* plain text; the file is one document */
} clv_text_format;

clv_text_format clv_text_format_of(const char *path, clv_text_format format); /* decides AUTO by the name */
/* Where the last `percent` of a file's bytes begin, moved on to the first byte of the next document: what lies before
 * is to learn from, what lies behind to be held out. Errors: no document begins there. */
clv_status clv_text_cut(const char *path, clv_text_format format, double percent, int64_t *cut);

typedef struct clv_text_reader clv_text_reader;
/* Documents in bytes [first, last) of the file, both 0 or from clv_text_cut; last 0 means its end. */
clv_status clv_text_reader_open(clv_text_reader **out, const char *path, clv_text_format format, int64_t first,
                                int64_t last);
void clv_text_reader_close(clv_text_reader *reader);
/* The next document replaces `raw`; *more is false when there is none. *line: its first line, counted from 1. */
clv_status clv_text_reader_next(clv_text_reader *reader, clv_text *raw, int64_t *line, bool *more);
int64_t clv_text_reader_at(const clv_text_reader *reader, int64_t *total); /* bytes read, of how many */

/* The texts of a document that was read as `format`: plain text is one; in a JSON line the value of `key` is one, or a
 * list of them. Safe from several threads. Errors: what is wrong with the line. */
typedef clv_status (*clv_text_visit)(void *user, const char *text, size_t n);
clv_status clv_text_each(clv_text_format format, const char *key, const clv_text *raw, clv_text_visit visit,
                         void *user);

/* ---- preprocess.c: text or JSON lines to token files ---------------------------------------------------------------
 */

typedef struct clv_preprocess_spec {
    const char *input;
    clv_text_format format;
    const char *key;     /* of JSON lines; NULL means "text" */
    int64_t first, last; /* see clv_text_reader_open */
    const clv_tokenizer *tokenizer;
    bool append_eod;
    int workers;        /* threads; 0 means as many as OpenMP gives */
    const char *output; /* writes output_KEY_document.bin and .idx, as Megatron names them */
} clv_preprocess_spec;

typedef struct clv_preprocess_counts {
    int64_t documents, sequences, tokens;
    int64_t bytes; /* of the documents' texts, without what parts them */
} clv_preprocess_counts;

/* Each text is a sequence, without the tokenizer's own template around it; the end-of-document token ends the last one.
 * A document without tokens has no sequence, but counts as a document, as in Megatron. Reports progress through the
 * log. Memory is bounded by the longest document. Errors: file, line and reason; append_eod without such a token. */
clv_status clv_preprocess(const clv_preprocess_spec *spec, clv_preprocess_counts *counts);

#endif
