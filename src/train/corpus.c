/* corpus.c - from a text to a tokenizer and to token files, as options say.
 *
 * Both cut the text at the same place: the last --holdout-percent of its bytes, moved on to the next document, is not
 * learned from.
 */
#include "train/train.h"

#include <stdlib.h>
#include <string.h>

static clv_status need(const char *value, const char *name, const char *what)
{
    return value != NULL ? clv_ok() : clv_fail(CLV_BAD_USAGE, "no --%s: %s", name, what);
}

/* The byte where the held-out part begins; 0 when there is none. */
static clv_status cut_of(const clv_options *o, int64_t *cut)
{
    *cut = 0;
    return o->holdout_percent > 0 ? clv_text_cut(o->input, CLV_TEXT_AUTO, o->holdout_percent, cut) : clv_ok();
}

/* ---- token files --------------------------------------------------------------------------------------------------
 */

static clv_status write_part(const clv_preprocess_spec *spec, const char *what, clv_text *out)
{
    clv_preprocess_counts counts;
    CLV_TRY(clv_preprocess(spec, &counts));
    clv_text_printf(out, "%s_%s_document: %lld documents, %lld tokens, %lld bytes (%s)\n", spec->output, spec->key,
                    (long long)counts.documents, (long long)counts.tokens, (long long)counts.bytes, what);
    return clv_ok();
}

static clv_status write_parts(const clv_options *o, const clv_tokenizer *tokenizer, clv_text *out)
{
    clv_preprocess_spec spec = {.input = o->input,
                                .key = o->json_key,
                                .tokenizer = tokenizer,
                                .append_eod = o->append_eod,
                                .workers = (int)o->threads,
                                .output = o->output_prefix};
    int64_t cut;
    CLV_TRY(cut_of(o, &cut));
    CLV_TRY(clv_make_parent(o->output_prefix));
    spec.last = cut;
    CLV_TRY(write_part(&spec, cut > 0 ? "to learn from" : "all of the input", out));
    if (cut == 0 || o->holdout_prefix == NULL)
        return clv_ok();
    spec.first = cut;
    spec.last = 0;
    spec.output = o->holdout_prefix;
    CLV_TRY(clv_make_parent(o->holdout_prefix));
    return write_part(&spec, "held out", out);
}

clv_status clv_corpus_preprocess(const clv_options *options, clv_text *out)
{
    CLV_TRY(need(options->input, "input", "the text to read"));
    CLV_TRY(need(options->tokenizer_model, "tokenizer-model", "a tokenizer.json, or a folder that holds one"));
    CLV_TRY(need(options->output_prefix, "output-prefix", "where the token files go"));
    if (options->holdout_prefix != NULL && options->holdout_percent == 0)
        return clv_fail(CLV_BAD_USAGE, "--holdout-prefix without --holdout-percent: say how much is held out");
    clv_tokenizer *tokenizer;
    CLV_TRY(clv_tokenizer_load(&tokenizer, options->tokenizer_model));
    const clv_status st = write_parts(options, tokenizer, out);
    clv_tokenizer_free(tokenizer);
    return st;
}

/* ---- a tokenizer --------------------------------------------------------------------------------------------------
 */

typedef struct feed {
    clv_bpe_trainer *trainer;
    int64_t bytes;
} feed;

static clv_status feed_text(void *user, const char *text, size_t n)
{
    feed *to = user;
    clv_bpe_trainer_feed(to->trainer, text, n);
    to->bytes += (int64_t)n;
    return clv_ok();
}

static clv_status feed_documents(const clv_options *o, clv_text_reader *reader, feed *to)
{
    const clv_text_format format = clv_text_format_of(o->input, CLV_TEXT_AUTO);
    clv_text raw = {0};
    clv_status st = clv_ok();
    bool more = true;
    while (st.code == CLV_OK) {
        int64_t line = 0;
        st = clv_text_reader_next(reader, &raw, &line, &more);
        if (st.code != CLV_OK || !more)
            break;
        st = clv_within(clv_text_each(format, o->json_key, &raw, feed_text, to), "%s:%lld", o->input, (long long)line);
    }
    clv_text_free(&raw);
    return st;
}

static clv_status feed_file(const clv_options *o, feed *to)
{
    int64_t cut;
    CLV_TRY(cut_of(o, &cut));
    clv_text_reader *reader;
    CLV_TRY(clv_text_reader_open(&reader, o->input, CLV_TEXT_AUTO, 0, cut));
    const clv_status st = feed_documents(o, reader, to);
    clv_text_reader_close(reader);
    return st;
}

clv_status clv_corpus_learn(const clv_options *options, clv_text *out)
{
    static const char *const specials[] = {"<|endoftext|>"};
    CLV_TRY(need(options->input, "input", "the text to learn from"));
    CLV_TRY(need(options->output, "output", "the tokenizer.json to write"));
    if (!options->is_set.vocab_size)
        return clv_fail(CLV_BAD_USAGE, "no --vocab-size: how many tokens to learn, the 256 bytes included");
    feed to = {.trainer = clv_bpe_trainer_create()};
    const clv_status fed = feed_file(options, &to);
    clv_tokenizer *tokenizer = NULL;
    clv_status st = clv_bpe_trainer_finish(to.trainer, options->vocab_size, specials, CLV_COUNT(specials), &tokenizer);
    if (fed.code != CLV_OK)
        st = fed;
    if (st.code == CLV_OK)
        st = clv_tokenizer_save(tokenizer, options->output);
    if (st.code == CLV_OK)
        clv_text_printf(out, "%s: %lld tokens, learned from %lld bytes\n", options->output,
                        (long long)clv_tokenizer_vocab_size(tokenizer), (long long)to.bytes);
    clv_tokenizer_free(tokenizer);
    return st;
}
