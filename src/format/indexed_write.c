/* indexed_write.c - writing Megatron's token files; their layout stands in indexed.c.
 *
 * Tokens go to a temporary file as they come, the three arrays of the index are kept until the end. Source:
 * Megatron-LM, megatron/core/datasets/indexed_dataset.py; its limit for 16 bits, 65,500, is a rule of thumb, ours is
 * what fits.
 */
#include "format/format.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char magic[9] = "MMIDIDX\0";
enum { VERSION = 1, CODE_I32 = 4, CODE_U16 = 8, CHUNK = 1 << 16 };

struct clv_indexed_writer {
    clv_text bin_path, idx_path, temporary;
    FILE *bin;
    int64_t vocab, bytes;
    int width;
    clv_text lengths, starts, bounds; /* the three arrays as they go to the file */
    int64_t sequences, documents;
};

clv_status clv_indexed_writer_create(clv_indexed_writer **out, const char *prefix, int64_t vocab)
{
    *out = NULL;
    if (vocab < 1 || vocab > (int64_t)INT32_MAX + 1)
        return clv_fail(CLV_BAD_INPUT, "a vocabulary of %lld: token files hold 1 to 2147483648 ids", (long long)vocab);
    clv_indexed_writer *w = clv_alloc(1, sizeof *w);
    clv_text_printf(&w->bin_path, "%s.bin", prefix);
    clv_text_printf(&w->idx_path, "%s.idx", prefix);
    clv_text_printf(&w->temporary, "%s.bin.tmp.%ld", prefix, (long)getpid());
    w->vocab = vocab;
    w->width = vocab <= 65536 ? 2 : 4;
    clv_text_add(&w->bounds, (const char *)&w->sequences, 8);
    w->bin = fopen(w->temporary.data, "wb");
    if (w->bin == NULL) {
        const clv_status st = clv_fail(CLV_BAD_INPUT, "cannot create %s: %s", w->temporary.data, strerror(errno));
        clv_indexed_writer_abandon(w);
        return st;
    }
    *out = w;
    return clv_ok();
}

clv_status clv_indexed_writer_add(clv_indexed_writer *w, const int32_t *tokens, int64_t n)
{
    if (n > INT32_MAX)
        return clv_fail(CLV_BAD_INPUT, "%s: sequence %lld has %lld tokens, the format ends at 2147483647",
                        w->bin_path.data, (long long)w->sequences, (long long)n);
    unsigned char raw[CHUNK];
    for (int64_t at = 0; at < n;) {
        const int64_t count = CLV_MIN(n - at, CHUNK / w->width);
        for (int64_t i = 0; i < count; i++) {
            const int32_t id = tokens[at + i];
            if (id < 0 || id >= w->vocab)
                return clv_fail(CLV_BAD_INPUT,
                                "%s: sequence %lld, position %lld: token id %d does not fit a vocabulary "
                                "of %lld",
                                w->bin_path.data, (long long)w->sequences, (long long)(at + i), id,
                                (long long)w->vocab);
            memcpy(raw + i * w->width, &id, (size_t)w->width); /* little-endian: the low bytes come first */
        }
        if (fwrite(raw, (size_t)w->width, (size_t)count, w->bin) != (size_t)count)
            return clv_fail(CLV_BAD_INPUT, "cannot write %s: %s", w->temporary.data, strerror(errno));
        at += count;
    }
    const int32_t length = (int32_t)n;
    clv_text_add(&w->lengths, (const char *)&length, 4);
    clv_text_add(&w->starts, (const char *)&w->bytes, 8);
    w->bytes += n * w->width;
    w->sequences++;
    return clv_ok();
}

clv_status clv_indexed_writer_end_document(clv_indexed_writer *w)
{
    clv_text_add(&w->bounds, (const char *)&w->sequences, 8);
    w->documents++;
    return clv_ok();
}

/* The old index goes first and the new one comes last: whoever finds an index finds the tokens that belong to it. */
static clv_status put_in_place(clv_indexed_writer *w)
{
    if (unlink(w->idx_path.data) != 0 && errno != ENOENT)
        return clv_fail(CLV_BAD_INPUT, "cannot replace %s: %s", w->idx_path.data, strerror(errno));
    if (rename(w->temporary.data, w->bin_path.data) != 0)
        return clv_fail(CLV_BAD_INPUT, "cannot create %s: %s", w->bin_path.data, strerror(errno));
    const uint64_t version = VERSION, bounds = (uint64_t)w->documents + 1;
    const char code = w->width == 2 ? CODE_U16 : CODE_I32;
    clv_text idx = {0};
    clv_text_add(&idx, magic, sizeof magic);
    clv_text_add(&idx, (const char *)&version, 8);
    clv_text_add(&idx, &code, 1);
    clv_text_add(&idx, (const char *)&w->sequences, 8);
    clv_text_add(&idx, (const char *)&bounds, 8);
    clv_text_add(&idx, w->lengths.data, w->lengths.length);
    clv_text_add(&idx, w->starts.data, w->starts.length);
    clv_text_add(&idx, w->bounds.data, w->bounds.length);
    const clv_status st = clv_file_write_atomic(w->idx_path.data, idx.data, idx.length);
    clv_text_free(&idx);
    return st;
}

clv_status clv_indexed_writer_finish(clv_indexed_writer *w)
{
    clv_status st = clv_ok();
    if (fflush(w->bin) != 0 || fsync(fileno(w->bin)) != 0)
        st = clv_fail(CLV_BAD_INPUT, "cannot write %s: %s", w->temporary.data, strerror(errno));
    else
        st = put_in_place(w);
    clv_indexed_writer_abandon(w);
    return st;
}

void clv_indexed_writer_abandon(clv_indexed_writer *w)
{
    if (w == NULL)
        return;
    if (w->bin != NULL)
        fclose(w->bin);
    unlink(w->temporary.data); /* absent once it has its final name */
    clv_text_free(&w->bin_path);
    clv_text_free(&w->idx_path);
    clv_text_free(&w->temporary);
    clv_text_free(&w->lengths);
    clv_text_free(&w->starts);
    clv_text_free(&w->bounds);
    free(w);
}
