/* windows.c - a text cut so that each of its tokens is predicted once.
 *
 *   tokens    c a b d e f g h i      s = 4, c is context
 *   windows   c a b d e              predict a b d e
 *                     e f g h i      predict f g h i: the one shared token is context again
 *
 * What is one run of tokens depends on how the model was trained:
 *
 *   the tokenizer puts a token in front (<s>)    each document is a run by itself, that token its context
 *   it has an end-of-document token              all documents are one run, as in training data made with --append-eod:
 *                                                eod a b eod d e f eod; each eod but the first is predicted too, for it
 *                                                stands for what parts the documents in the file
 *   neither                                      each document is a run; its first token has no context, so no loss
 *
 * Token files (--data-path) are one run; when they end with eod, one is put in front. So nothing is left out: the last
 * window of a run is short. Weights before prefixes mean nothing here, each token counts once; --split, when given,
 * chooses the validation part.
 *
 * Bytes are those that the predicted tokens stand for: of all of the text where eod is among them, else of the
 * documents alone. The texts in JSON lines are counted, not the JSON around them.
 */
#include "inference_internal.h"

#include <stdlib.h>
#include <string.h>

struct clv_windows {
    const clv_tokenizer *tokenizer;
    const char *input, *key;
    clv_text_format format;
    clv_text_reader *reader; /* NULL: token files are read */
    clv_text document;
    clv_indexed **set; /* token files */
    clv_part *part;
    size_t sets;
    size_t set_at;       /* the set that is read, */
    int64_t sequence_at; /* and how many of its sequences were */
    int64_t all_tokens, read_tokens;

    int64_t seq_length;
    int32_t eod;   /* between documents; -1: each is a run by itself */
    bool template; /* the tokenizer puts a token in front */
    clv_ids run;   /* tokens from `at` on are still to be handed out */
    size_t at;
    bool complete; /* nothing follows in this run */
    bool ended;    /* nothing follows at all */
    int64_t bytes; /* of texts */
};

/* ---- text ----------------------------------------------------------------------------------------------------------
 */

static clv_status has_template(const clv_tokenizer *tokenizer, bool *out)
{
    clv_ids with = {0}, without = {0};
    clv_status st = clv_tokenizer_encode(tokenizer, "a", 1, true, &with);
    if (st.code == CLV_OK)
        st = clv_tokenizer_encode(tokenizer, "a", 1, false, &without);
    *out = with.count > without.count && (without.count == 0 || with.id[0] != without.id[0]);
    clv_ids_free(&with);
    clv_ids_free(&without);
    return st;
}

static clv_status text_open(clv_windows *w, const clv_pretrained *from, const clv_options *o)
{
    CLV_TRY(clv_pretrained_need_tokenizer(from));
    CLV_TRY(has_template(w->tokenizer, &w->template));
    w->eod = w->template ? -1 : clv_tokenizer_eod(w->tokenizer);
    w->input = o->input;
    w->key = o->json_key;
    w->format = clv_text_format_of(o->input, CLV_TEXT_AUTO);
    int64_t cut = 0;
    if (o->holdout_percent > 0)
        CLV_TRY(clv_text_cut(o->input, CLV_TEXT_AUTO, o->holdout_percent, &cut));
    if (w->eod >= 0)
        clv_ids_add(&w->run, w->eod);
    return clv_text_reader_open(&w->reader, o->input, CLV_TEXT_AUTO, cut, 0);
}

static clv_status encode_text(void *user, const char *text, size_t n)
{
    clv_windows *w = user;
    w->bytes += (int64_t)n;
    const bool begins = w->template && w->run.count == 0;
    return clv_tokenizer_encode(w->tokenizer, text, n, begins, &w->run);
}

static clv_status document_read(clv_windows *w)
{
    int64_t line = 0;
    bool more = false;
    CLV_TRY(clv_text_reader_next(w->reader, &w->document, &line, &more));
    w->ended = !more;
    w->complete = w->ended || w->eod < 0;
    if (w->ended)
        return clv_ok();
    const size_t before = w->run.count;
    CLV_TRY(clv_within(clv_text_each(w->format, w->key, &w->document, encode_text, w), "%s, line %lld", w->input,
                       (long long)line));
    if (w->eod >= 0 && w->run.count > before)
        clv_ids_add(&w->run, w->eod);
    return clv_ok();
}

/* ---- token files ---------------------------------------------------------------------------------------------------
 */

static clv_status set_open(clv_windows *w, const char *prefix, const clv_options *o, int64_t vocab)
{
    w->set = clv_resize(w->set, w->sets + 1, sizeof *w->set);
    w->part = clv_resize(w->part, w->sets + 1, sizeof *w->part);
    CLV_TRY(clv_indexed_open(&w->set[w->sets], prefix));
    w->sets++;
    CLV_TRY(clv_indexed_check(w->set[w->sets - 1], vocab));
    clv_part *part = &w->part[w->sets - 1];
    *part = (clv_part){.data = w->set[w->sets - 1]};
    CLV_TRY(clv_within(clv_part_of(part, part->data, o->is_set.split ? o->split : NULL, 1), "%s", prefix));
    w->all_tokens += part->tokens;
    return clv_ok();
}

static clv_status eod_in_front(clv_windows *w, int32_t eod)
{
    const clv_part *last = &w->part[w->sets - 1];
    const int64_t sequence = last->first + last->count - 1, length = clv_indexed_length(last->data, sequence);
    int32_t token = -1;
    if (length > 0)
        CLV_TRY(clv_indexed_read(last->data, sequence, length - 1, 1, &token));
    if (eod >= 0 && token == eod)
        clv_ids_add(&w->run, eod);
    return clv_ok();
}

static clv_status sets_open(clv_windows *w, const clv_pretrained *from, const clv_options *o)
{
    for (size_t i = 0; i < o->data_path.count; i++) {
        double weight;
        if (!clv_parse_f64(o->data_path.word[i], &weight))
            CLV_TRY(set_open(w, o->data_path.word[i], o, from->config.vocab));
    }
    if (w->sets == 0)
        return clv_fail(CLV_BAD_USAGE, "--data-path: there is no prefix, only weights");
    w->eod = w->tokenizer != NULL ? clv_tokenizer_eod(w->tokenizer) : (int32_t)from->config.eos;
    return eod_in_front(w, w->eod);
}

static clv_status sequence_read(clv_windows *w)
{
    while (w->set_at < w->sets && w->sequence_at == w->part[w->set_at].count) {
        w->set_at++;
        w->sequence_at = 0;
    }
    w->ended = w->complete = w->set_at == w->sets;
    if (w->ended)
        return clv_ok();
    const clv_part *part = &w->part[w->set_at];
    const int64_t sequence = part->first + w->sequence_at++, n = clv_indexed_length(part->data, sequence);
    int32_t *tokens = clv_alloc((size_t)n, sizeof *tokens);
    const clv_status st = clv_indexed_read(part->data, sequence, 0, n, tokens);
    for (int64_t i = 0; st.code == CLV_OK && i < n; i++)
        clv_ids_add(&w->run, tokens[i]);
    w->read_tokens += n;
    free(tokens);
    return st;
}

/* ---- windows -------------------------------------------------------------------------------------------------------
 */

clv_status clv_windows_open(clv_windows **out, const clv_pretrained *from, const clv_options *options,
                            int64_t seq_length)
{
    *out = NULL;
    if ((options->input == NULL) == (options->data_path.count == 0))
        return clv_fail(CLV_BAD_USAGE, "give --input FILE or --data-path PREFIX, one of them");
    clv_windows *w = clv_alloc(1, sizeof *w);
    *w = (clv_windows){.tokenizer = from->tokenizer, .seq_length = seq_length, .eod = -1};
    const clv_status st = options->input != NULL ? text_open(w, from, options) : sets_open(w, from, options);
    if (st.code == CLV_OK)
        *out = w;
    else
        clv_windows_close(w);
    return st;
}

void clv_windows_close(clv_windows *w)
{
    if (w == NULL)
        return;
    clv_text_reader_close(w->reader);
    clv_text_free(&w->document);
    for (size_t i = 0; i < w->sets; i++)
        clv_indexed_close(w->set[i]);
    free(w->set);
    free(w->part);
    clv_ids_free(&w->run);
    free(w);
}

/* What was handed out leaves the buffer; a run that is over leaves it empty. */
static void compact(clv_windows *w)
{
    const size_t left = w->complete ? 0 : w->run.count - w->at;
    if (left > 0)
        memmove(w->run.id, w->run.id + w->at, left * sizeof *w->run.id);
    w->run.count = left;
    w->at = 0;
    w->complete = false;
}

clv_status clv_windows_next(clv_windows *w, int32_t *tokens, int64_t *targets)
{
    *targets = 0;
    for (;;) {
        const int64_t ready = (int64_t)(w->run.count - w->at) - 1; /* the first is context */
        if (ready >= w->seq_length || (w->complete && ready > 0)) {
            *targets = CLV_MIN(ready, w->seq_length);
            memset(tokens, 0, (size_t)(w->seq_length + 1) * sizeof *tokens);
            memcpy(tokens, w->run.id + w->at, (size_t)(*targets + 1) * sizeof *tokens);
            w->at += (size_t)*targets;
            return clv_ok();
        }
        if (w->ended)
            return clv_ok();
        compact(w);
        CLV_TRY(w->reader != NULL ? document_read(w) : sequence_read(w));
    }
}

int64_t clv_windows_bytes(const clv_windows *w)
{
    int64_t all;
    if (w->reader == NULL)
        return -1;
    const int64_t at = clv_text_reader_at(w->reader, &all);
    return w->eod >= 0 && w->format != CLV_TEXT_LINES ? at : w->bytes;
}

double clv_windows_share(const clv_windows *w)
{
    int64_t all = w->all_tokens;
    const int64_t at = w->reader != NULL ? clv_text_reader_at(w->reader, &all) : w->read_tokens;
    return (double)at / (double)CLV_MAX(all, 1);
}
