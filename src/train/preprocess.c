/* preprocess.c - text to token files: documents are read in batches, tokenized by several threads, written in order.
 *
 * Megatron's rules hold: the file is named PREFIX_KEY_document; the end-of-document token is the last token of a
 * document's last sequence and counted in its length; a document without tokens has no sequence, only an entry.
 */
#include "train/train_data.h"

#include <omp.h>
#include <stdlib.h>

enum { BATCH_DOCUMENTS = 2048, BATCH_BYTES = 8 << 20 };

typedef struct document {
    clv_text raw;
    int64_t line;
    clv_ids ids;     /* of all its sequences */
    clv_ids lengths; /* tokens of each */
    int64_t bytes;   /* of its texts */
    clv_status status;
} document;

typedef struct job {
    const clv_preprocess_spec *spec;
    clv_text_format format;
    const char *key;
    int workers;
    int32_t eod; /* -1: none is appended */
    clv_text_reader *reader;
    clv_indexed_writer *writer;
    document *batch;
    int count; /* documents in it */
    clv_preprocess_counts total;
    double begun, told; /* seconds */
} job;

static clv_status read_batch(job *j)
{
    size_t bytes = 0;
    bool more = true;
    for (j->count = 0; j->count < BATCH_DOCUMENTS && bytes < BATCH_BYTES; j->count++) {
        document *d = &j->batch[j->count];
        CLV_TRY(clv_text_reader_next(j->reader, &d->raw, &d->line, &more));
        if (!more)
            break;
        bytes += d->raw.length;
    }
    return clv_ok();
}

typedef struct target {
    const clv_tokenizer *tokenizer;
    document *document;
} target;

static clv_status encode_text(void *user, const char *text, size_t n)
{
    const target *to = user;
    document *d = to->document;
    const size_t before = d->ids.count;
    CLV_TRY(clv_tokenizer_encode(to->tokenizer, text, n, false, &d->ids));
    const size_t length = d->ids.count - before;
    if (length > INT32_MAX - 1)
        return clv_fail(CLV_BAD_INPUT, "a text of %zu tokens, the format ends at 2147483647", length);
    if (length > 0)
        clv_ids_add(&d->lengths, (int32_t)length);
    d->bytes += (int64_t)n;
    return clv_ok();
}

static void encode_document(const job *j, document *d)
{
    d->ids.count = d->lengths.count = 0;
    d->bytes = 0;
    d->status = clv_text_each(j->format, j->key, &d->raw, encode_text, &(target){j->spec->tokenizer, d});
    if (j->eod < 0 || d->lengths.count == 0)
        return;
    clv_ids_add(&d->ids, j->eod);
    d->lengths.id[d->lengths.count - 1]++;
}

static clv_status write_document(job *j, const document *d)
{
    CLV_TRY(clv_within(d->status, "%s, line %lld", j->spec->input, (long long)d->line));
    const int32_t *ids = d->ids.id;
    for (size_t i = 0; i < d->lengths.count; i++) {
        CLV_TRY(clv_indexed_writer_add(j->writer, ids, d->lengths.id[i]));
        ids += d->lengths.id[i];
    }
    j->total.documents++;
    j->total.sequences += (int64_t)d->lengths.count;
    j->total.tokens += (int64_t)d->ids.count;
    j->total.bytes += d->bytes;
    return clv_indexed_writer_end_document(j->writer);
}

static void tell(job *j, bool end)
{
    const double now = clv_seconds();
    if (!end && now - j->told < 1)
        return;
    j->told = now;
    int64_t all;
    const int64_t at = clv_text_reader_at(j->reader, &all);
    clv_log(CLV_LOG_INFO, "%s: %3.0f %%  %lld documents  %lld tokens  %.1f MB/s", j->spec->input,
            100.0 * (double)at / (double)CLV_MAX(all, 1), (long long)j->total.documents, (long long)j->total.tokens,
            (double)at * 1e-6 / (now - j->begun + 1e-9));
}

static clv_status run(job *j)
{
    do {
        CLV_TRY(read_batch(j));
#pragma omp parallel for schedule(dynamic, 1) num_threads(j->workers)
        for (int i = 0; i < j->count; i++)
            encode_document(j, &j->batch[i]);
        for (int i = 0; i < j->count; i++)
            CLV_TRY(write_document(j, &j->batch[i]));
        tell(j, j->count == 0);
    } while (j->count > 0);
    if (j->total.tokens == 0)
        return clv_fail(CLV_BAD_INPUT, "%s: %lld documents without a single token: there is nothing to write",
                        j->spec->input, (long long)j->total.documents);
    return clv_ok();
}

static clv_status open_job(job *j)
{
    const clv_preprocess_spec *spec = j->spec;
    if (spec->append_eod) {
        j->eod = clv_tokenizer_eod(spec->tokenizer);
        if (j->eod < 0)
            return clv_fail(CLV_BAD_INPUT, "the tokenizer has no end-of-document token that could be appended: leave "
                                           "out --append-eod, or take a tokenizer with <|endoftext|> or </s>");
    }
    CLV_TRY(clv_text_reader_open(&j->reader, spec->input, spec->format, spec->first, spec->last));
    clv_text prefix = {0};
    clv_text_printf(&prefix, "%s_%s_document", spec->output, j->key);
    const clv_status st = clv_indexed_writer_create(&j->writer, prefix.data, clv_tokenizer_vocab_size(spec->tokenizer));
    clv_text_free(&prefix);
    return st;
}

clv_status clv_preprocess(const clv_preprocess_spec *spec, clv_preprocess_counts *counts)
{
    job j = {.spec = spec,
             .format = clv_text_format_of(spec->input, spec->format),
             .key = spec->key != NULL ? spec->key : "text",
             .workers = spec->workers > 0 ? spec->workers : omp_get_max_threads(),
             .eod = -1,
             .batch = clv_alloc(BATCH_DOCUMENTS, sizeof *j.batch),
             .begun = clv_seconds(),
             .told = clv_seconds()};
    clv_status st = open_job(&j);
    if (st.code == CLV_OK)
        st = run(&j);
    if (st.code == CLV_OK)
        st = clv_indexed_writer_finish(j.writer);
    else
        clv_indexed_writer_abandon(j.writer);
    clv_text_reader_close(j.reader);
    for (int i = 0; i < BATCH_DOCUMENTS; i++) {
        clv_text_free(&j.batch[i].raw);
        clv_ids_free(&j.batch[i].ids);
        clv_ids_free(&j.batch[i].lengths);
    }
    free(j.batch);
    *counts = j.total;
    return st;
}
