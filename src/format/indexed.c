/* indexed.c - Megatron's token files: PREFIX.bin, the tokens of all sequences joined, and PREFIX.idx, where they begin.
 *
 *   PREFIX.idx, little-endian; the arrays are not aligned, since the head has 34 bytes
 *     0          9 bytes   "MMIDIDX" 00 00
 *     9          u64       version, 1
 *     17         u8        type of a token in .bin: 8 uint16, 4 int32, 5 int64 (read only)
 *     18         u64       S, sequences
 *     26         u64       D, documents + 1
 *     34         i32 x S   length of each sequence in tokens
 *     34+4S      i64 x S   byte in .bin at which it begins
 *     34+12S     i64 x D   0, then the number of sequences up to and including each document
 *   and nothing behind that.
 *
 * The index is mapped and checked whole when it is opened, so that afterwards any sequence can be trusted; tokens are
 * read with pread, which turns a file cut short later into a message instead of a signal.
 * Source: Megatron-LM, megatron/core/datasets/indexed_dataset.py.
 */
#include "format/format.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are copied from and to little-endian files");

static const char magic[9] = "MMIDIDX\0";
enum { VERSION = 1, HEAD = 34, CODE_I32 = 4, CODE_I64 = 5, CODE_U16 = 8 };
enum { CHUNK = 1 << 16 }; /* bytes read at once */

struct clv_indexed {
    char *bin_path, *idx_path;
    int bin;                  /* file descriptor */
    const unsigned char *idx; /* the mapped index */
    size_t idx_bytes;
    int64_t bin_bytes;
    int64_t sequences, documents, tokens;
    int width;                                    /* bytes a token */
    const unsigned char *length, *start, *bounds; /* the three arrays */
};

static int64_t load_i64(const unsigned char *array, int64_t i)
{
    int64_t value;
    memcpy(&value, array + 8 * i, sizeof value);
    return value;
}

static int32_t load_i32(const unsigned char *array, int64_t i)
{
    int32_t value;
    memcpy(&value, array + 4 * i, sizeof value);
    return value;
}

static char *joined(const char *prefix, const char *suffix)
{
    clv_text path = {0};
    clv_text_printf(&path, "%s%s", prefix, suffix);
    return path.data;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static clv_status open_file(const char *path, int *fd, int64_t *bytes)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0)
        return clv_fail(CLV_BAD_INPUT, "cannot open %s: %s%s", path, strerror(errno),
                        errno == ENOENT ? "; cleave preprocess writes PREFIX.bin and PREFIX.idx, and PREFIX is given"
                                        : "");
    struct stat info;
    if (fstat(*fd, &info) != 0)
        return clv_fail(CLV_BAD_INPUT, "cannot read %s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return clv_fail(CLV_BAD_INPUT, "%s is not a file", path);
    *bytes = info.st_size;
    return clv_ok();
}

static clv_status map_index(clv_indexed *data)
{
    int fd;
    int64_t bytes = 0;
    clv_status st = open_file(data->idx_path, &fd, &bytes);
    if (st.code == CLV_OK && bytes < HEAD)
        st = clv_fail(CLV_BAD_INPUT, "%s has %lld bytes, its head alone needs %d", data->idx_path, (long long)bytes,
                      HEAD);
    if (st.code == CLV_OK) {
        void *map = mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED) {
            st = clv_fail(CLV_BAD_INPUT, "cannot map %s: %s", data->idx_path, strerror(errno));
        } else {
            data->idx = map;
            data->idx_bytes = (size_t)bytes;
        }
    }
    if (fd >= 0)
        close(fd);
    return st;
}

static clv_status check_type(clv_indexed *data, int code)
{
    static const char *const names[] = {"none",  "uint8",   "int8",    "int16", "int32",
                                        "int64", "float64", "float32", "uint16"};
    data->width = code == CODE_U16 ? 2 : code == CODE_I32 ? 4 : code == CODE_I64 ? 8 : 0;
    if (data->width != 0)
        return clv_ok();
    return clv_fail(CLV_BAD_INPUT,
                    "%s: type code %d (%s) is none of token ids; expected 8 (uint16), 4 (int32) or 5 "
                    "(int64)",
                    data->idx_path, code, code < (int)CLV_COUNT(names) ? names[code] : "unknown");
}

static clv_status check_head(clv_indexed *data)
{
    const unsigned char *idx = data->idx;
    if (memcmp(idx, magic, sizeof magic) != 0)
        return clv_fail(CLV_BAD_INPUT, "%s does not begin with MMIDIDX: it is no index of token data", data->idx_path);
    const int64_t version = load_i64(idx + 9, 0);
    if (version != VERSION)
        return clv_fail(CLV_BAD_INPUT, "%s has version %lld, expected %d", data->idx_path, (long long)version, VERSION);
    CLV_TRY(check_type(data, idx[17]));

    const uint64_t sequences = (uint64_t)load_i64(idx + 18, 0), bounds = (uint64_t)load_i64(idx + 26, 0);
    const uint64_t rest = data->idx_bytes - HEAD;
    if (bounds < 1)
        return clv_fail(CLV_BAD_INPUT, "%s has no document indices, expected at least one", data->idx_path);
    if (sequences > rest / 12 || bounds > rest / 8 || 12 * sequences + 8 * bounds != rest)
        return clv_fail(CLV_BAD_INPUT,
                        "%s has %zu bytes, but %llu sequences and %llu document indices need 34 + 12 x %llu + 8 x %llu",
                        data->idx_path, data->idx_bytes, (unsigned long long)sequences, (unsigned long long)bounds,
                        (unsigned long long)sequences, (unsigned long long)bounds);
    data->sequences = (int64_t)sequences;
    data->documents = (int64_t)bounds - 1;
    data->length = idx + HEAD;
    data->start = data->length + 4 * sequences;
    data->bounds = data->start + 8 * sequences;
    return clv_ok();
}

/* Each sequence begins where the one before it ends, and all lie in .bin. */
static clv_status check_sequences(clv_indexed *data)
{
    int64_t end = 0;
    for (int64_t i = 0; i < data->sequences; i++) {
        const int64_t start = load_i64(data->start, i);
        const int32_t length = load_i32(data->length, i);
        if (length < 0)
            return clv_fail(CLV_BAD_INPUT, "%s: sequence %lld has length %d", data->idx_path, (long long)i, length);
        if (start != end)
            return clv_fail(CLV_BAD_INPUT,
                            "%s: sequence %lld begins at byte %lld, expected %lld, where the one before "
                            "it ends",
                            data->idx_path, (long long)i, (long long)start, (long long)end);
        end += (int64_t)length * data->width;
        if (end > data->bin_bytes)
            return clv_fail(CLV_BAD_INPUT, "%s has %lld bytes, but sequence %lld of its index ends at byte %lld",
                            data->bin_path, (long long)data->bin_bytes, (long long)i, (long long)end);
    }
    data->tokens = end / data->width;
    if (end < data->bin_bytes)
        clv_log(CLV_LOG_WARN, "%s has %lld bytes, of which its index names only the first %lld", data->bin_path,
                (long long)data->bin_bytes, (long long)end);
    return clv_ok();
}

static clv_status check_documents(const clv_indexed *data)
{
    int64_t before = 0;
    for (int64_t d = 0; d <= data->documents; d++) {
        const int64_t bound = load_i64(data->bounds, d);
        if (d == 0 ? bound != 0 : bound < before)
            return clv_fail(CLV_BAD_INPUT, "%s: document index %lld is %lld, expected %s%lld", data->idx_path,
                            (long long)d, (long long)bound, d == 0 ? "" : "at least ", (long long)before);
        before = bound;
    }
    if (before != data->sequences)
        return clv_fail(CLV_BAD_INPUT, "%s: the last document index is %lld, but there are %lld sequences",
                        data->idx_path, (long long)before, (long long)data->sequences);
    return clv_ok();
}

static clv_status open_both(clv_indexed *data)
{
    CLV_TRY(map_index(data));
    CLV_TRY(check_head(data));
    CLV_TRY(open_file(data->bin_path, &data->bin, &data->bin_bytes));
    CLV_TRY(check_sequences(data));
    return check_documents(data);
}

clv_status clv_indexed_open(clv_indexed **out, const char *prefix)
{
    clv_indexed *data = clv_alloc(1, sizeof *data);
    data->bin_path = joined(prefix, ".bin");
    data->idx_path = joined(prefix, ".idx");
    data->bin = -1;
    const clv_status st = open_both(data);
    *out = data;
    if (st.code != CLV_OK) {
        clv_indexed_close(data);
        *out = NULL;
    }
    return st;
}

void clv_indexed_close(clv_indexed *data)
{
    if (data == NULL)
        return;
    if (data->bin >= 0)
        close(data->bin);
    if (data->idx != NULL)
        munmap((void *)(uintptr_t)data->idx, data->idx_bytes);
    free(data->bin_path);
    free(data->idx_path);
    free(data);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

int64_t clv_indexed_sequences(const clv_indexed *data)
{
    return data->sequences;
}

int64_t clv_indexed_documents(const clv_indexed *data)
{
    return data->documents;
}

int64_t clv_indexed_document_start(const clv_indexed *data, int64_t document)
{
    CLV_CHECK(document >= 0 && document <= data->documents, "document %lld of %lld", (long long)document,
              (long long)data->documents);
    return load_i64(data->bounds, document);
}

int64_t clv_indexed_length(const clv_indexed *data, int64_t sequence)
{
    CLV_CHECK(sequence >= 0 && sequence < data->sequences, "sequence %lld of %lld", (long long)sequence,
              (long long)data->sequences);
    return load_i32(data->length, sequence);
}

int64_t clv_indexed_tokens(const clv_indexed *data)
{
    return data->tokens;
}

/* The last i of [0, n) with array[i] <= value, for an ascending array that begins at or below value. */
static int64_t last_not_above(const unsigned char *array, int64_t n, int64_t value)
{
    int64_t low = 0, high = n;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (load_i64(array, middle) <= value)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static clv_status bad_token(const clv_indexed *data, int64_t at, int64_t id, int64_t vocab)
{
    const int64_t sequence = last_not_above(data->start, data->sequences, at * data->width);
    const int64_t document = last_not_above(data->bounds, data->documents, sequence);
    const int64_t begin = load_i64(data->start, load_i64(data->bounds, document)) / data->width;
    return clv_fail(CLV_BAD_INPUT,
                    "%s: document %lld, position %lld: token id %lld is outside the vocabulary, whose ids are 0 to "
                    "%lld; the data were made with another tokenizer",
                    data->bin_path, (long long)document, (long long)(at - begin), (long long)id, (long long)vocab - 1);
}

static clv_status read_bytes(const clv_indexed *data, int64_t at, unsigned char *out, size_t n)
{
    while (n > 0) {
        const ssize_t got = pread(data->bin, out, n, at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return clv_fail(CLV_BAD_INPUT, "cannot read %zu bytes at byte %lld of %s: %s", n, (long long)at,
                            data->bin_path, got == 0 ? "the file has become shorter" : strerror(errno));
        at += got;
        out += got;
        n -= (size_t)got;
    }
    return clv_ok();
}

static clv_status widen(const clv_indexed *data, int64_t at, const unsigned char *raw, int64_t n, int32_t *out)
{
    if (data->width == 4)
        memcpy(out, raw, (size_t)n * 4);
    for (int64_t i = 0; i < n && data->width == 2; i++) {
        uint16_t id;
        memcpy(&id, raw + 2 * i, sizeof id);
        out[i] = id;
    }
    for (int64_t i = 0; i < n && data->width == 8; i++) {
        const int64_t id = load_i64(raw, i);
        if (id < INT32_MIN || id > INT32_MAX)
            return bad_token(data, at + i, id, (int64_t)INT32_MAX + 1);
        out[i] = (int32_t)id;
    }
    return clv_ok();
}

/* n tokens from the at-th of the whole file. */
static clv_status read_tokens(const clv_indexed *data, int64_t at, int64_t n, int32_t *out)
{
    unsigned char raw[CHUNK];
    while (n > 0) {
        const int64_t count = CLV_MIN(n, CHUNK / data->width);
        CLV_TRY(read_bytes(data, at * data->width, raw, (size_t)(count * data->width)));
        CLV_TRY(widen(data, at, raw, count, out));
        at += count;
        out += count;
        n -= count;
    }
    return clv_ok();
}

clv_status clv_indexed_read(const clv_indexed *data, int64_t sequence, int64_t offset, int64_t n, int32_t *out)
{
    const int64_t length = clv_indexed_length(data, sequence);
    CLV_CHECK(offset >= 0 && n >= 0 && offset <= length && n <= length - offset,
              "tokens %lld to %lld of sequence %lld, which has %lld", (long long)offset, (long long)(offset + n),
              (long long)sequence, (long long)length);
    return read_tokens(data, load_i64(data->start, sequence) / data->width + offset, n, out);
}

clv_status clv_indexed_check(const clv_indexed *data, int64_t vocab)
{
    const uint32_t limit = (uint32_t)CLV_MIN(vocab, (int64_t)INT32_MAX + 1);
    int32_t ids[CHUNK / 4];
    for (int64_t at = 0; at < data->tokens; at += (int64_t)CLV_COUNT(ids)) {
        const int64_t n = CLV_MIN(data->tokens - at, (int64_t)CLV_COUNT(ids));
        CLV_TRY(read_tokens(data, at, n, ids));
        uint32_t highest = 0; /* a negative id becomes a large one */
        for (int64_t i = 0; i < n; i++)
            highest = CLV_MAX(highest, (uint32_t)ids[i]);
        for (int64_t i = 0; i < n && highest >= limit; i++)
            if ((uint32_t)ids[i] >= limit)
                return bad_token(data, at + i, ids[i], vocab);
    }
    return clv_ok();
}
