/* tokenizer.c - encoding and decoding a text, one thread, beside a peer that is asked in turn.
 *
 *   bench_tokenizer --tokenizer FILE --text FILE [--runs N] [--json] [--peer COMMAND]
 *
 * Documents are what stands between blank lines, each encoded and decoded by itself, without the template's tokens.
 * Speed is text, in MB a second, of the fastest run. What a run gives must agree: `differing` counts the ids that are
 * not the peer's, and of decoding the bytes that are not the text's. The peer answers "encode" and "decode" as peer.c
 * says, and "ids" with their number, a line, and then the ids of all documents, 4 bytes each.
 */
#include "common/peer.h"
#include "format/format.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct document {
    const char *text;
    size_t n, first, count; /* its ids */
} document;

typedef struct bench {
    const char *tokenizer_path, *text_path, *command;
    int64_t runs;
    bool json;
    clv_tokenizer *tok;
    clv_text text, decoded;
    document *docs;
    size_t doc_count, bytes; /* of the documents */
    clv_ids ids;
    peer other;
} bench;

static void cut(bench *b)
{
    const char *at = b->text.data, *end = at + b->text.length;
    b->docs = clv_alloc(b->text.length / 2 + 1, sizeof *b->docs);
    while (at < end) {
        const char *blank = memmem(at, (size_t)(end - at), "\n\n", 2);
        const size_t n = (size_t)((blank != NULL ? blank : end) - at);
        if (n > 0)
            b->docs[b->doc_count++] = (document){.text = at, .n = n};
        b->bytes += n;
        at = blank != NULL ? blank + 2 : end;
    }
}

static clv_status encode(bench *b)
{
    b->ids.count = 0;
    for (size_t i = 0; i < b->doc_count; i++) {
        document *d = &b->docs[i];
        d->first = b->ids.count;
        CLV_TRY(clv_tokenizer_encode(b->tok, d->text, d->n, false, &b->ids));
        d->count = b->ids.count - d->first;
    }
    return clv_ok();
}

static clv_status decode(bench *b)
{
    b->decoded.length = 0;
    for (size_t i = 0; i < b->doc_count; i++)
        CLV_TRY(clv_tokenizer_decode(b->tok, b->ids.id + b->docs[i].first, b->docs[i].count, false, &b->decoded));
    return clv_ok();
}

/* Ids that the peer does not give, or -1 when there is no peer. */
static int64_t differing_ids(bench *b)
{
    const size_t theirs = (size_t)peer_seconds(&b->other, "ids");
    if (theirs == 0)
        return -1;
    int32_t *id = clv_alloc(theirs, sizeof *id);
    const size_t got = fread(id, sizeof *id, theirs, b->other.answer), common = CLV_MIN(got, b->ids.count);
    int64_t differing = (int64_t)(CLV_MAX(theirs, b->ids.count) - common);
    for (size_t i = 0; i < common; i++)
        differing += id[i] != b->ids.id[i];
    free(id);
    return differing;
}

static int64_t differing_bytes(const bench *b)
{
    const char *at = b->decoded.data, *end = at + b->decoded.length;
    int64_t differing = 0;
    for (size_t i = 0; i < b->doc_count; i++) {
        const size_t n = CLV_MIN(b->docs[i].n, (size_t)(end - at));
        differing += (int64_t)(b->docs[i].n - n) + (n > 0 && memcmp(at, b->docs[i].text, n) != 0);
        at += n;
    }
    return differing + (end - at);
}

static void print(const bench *b, const char *what, double time, double theirs, int64_t differing)
{
    const double speed = (double)b->bytes / time;
    if (b->json)
        printf("{\"what\": \"%s\", \"tokenizer\": \"%s\", \"bytes\": %zu, \"ids\": %zu, \"seconds\": %.6g, "
               "\"bytes_per_second\": %.6g, \"differing\": %lld",
               what, b->tokenizer_path, b->bytes, b->ids.count, time, speed, (long long)differing);
    else
        printf("%-7s %8.2f MB/s", what, speed * 1e-6);
    if (theirs > 0.0)
        printf(b->json ? ", \"peer\": \"%s\", \"peer_seconds\": %.6g, \"ratio\": %.4f" : "   %s %.4f s, ratio %.2f",
               b->other.name, theirs, theirs / time);
    if (b->json)
        printf("}\n");
    else if (differing < 0)
        printf("   nothing to compare with\n");
    else
        printf("   %lld differ\n", (long long)differing);
    fflush(stdout);
}

static clv_status fastest(bench *b, clv_status (*call)(bench *b), double *best)
{
    *best = INFINITY;
    for (int64_t i = -1; i < b->runs; i++) { /* one run warms up */
        const double start = clv_seconds();
        CLV_TRY(call(b));
        *best = i < 0 ? INFINITY : fmin(*best, clv_seconds() - start);
    }
    return clv_ok();
}

static clv_status run(bench *b)
{
    double time, theirs;
    CLV_TRY(clv_tokenizer_load(&b->tok, b->tokenizer_path));
    CLV_TRY(clv_file_read(b->text_path, &b->text));
    if (b->command != NULL && !peer_open(&b->other, b->command))
        return clv_fail(CLV_BAD_INPUT, "the peer '%s' did not start", b->command);
    cut(b);
    if (!b->json)
        printf("%s, vocabulary %lld; %zu documents, %zu bytes\n", b->tokenizer_path,
               (long long)clv_tokenizer_vocab_size(b->tok), b->doc_count, b->bytes);
    CLV_TRY(fastest(b, encode, &time));
    theirs = peer_seconds(&b->other, "encode");
    print(b, "encode", time, theirs, differing_ids(b));
    CLV_TRY(fastest(b, decode, &time));
    theirs = peer_seconds(&b->other, "decode");
    print(b, "decode", time, theirs, differing_bytes(b));
    return clv_ok();
}

int main(int argc, char **argv)
{
    bench b = {.runs = 5};
    const bench_option options[] = {
        {.name = "--tokenizer", .text = &b.tokenizer_path},
        {.name = "--text", .text = &b.text_path},
        {.name = "--runs", .number = &b.runs},
        {.name = "--json", .flag = &b.json},
        {.name = "--peer", .text = &b.command},
    };
    if (!bench_options_read(options, CLV_COUNT(options), argc, argv) || b.tokenizer_path == NULL ||
        b.text_path == NULL) {
        fprintf(stderr, "usage: bench_tokenizer --tokenizer FILE --text FILE [--runs N] [--json] [--peer COMMAND]\n");
        return CLV_BAD_USAGE;
    }
    const clv_status st = run(&b);
    if (st.code != CLV_OK)
        fprintf(stderr, "%s\n", st.text);
    peer_close(&b.other);
    clv_tokenizer_free(b.tok);
    clv_text_free(&b.text);
    clv_text_free(&b.decoded);
    clv_ids_free(&b.ids);
    free(b.docs);
    return (int)st.code;
}
