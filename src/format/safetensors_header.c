/* safetensors_header.c - what the header of a safetensors file states, and whether it can be true.
 *
 *   name -> {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, offsets in the data after the header
 *   "__metadata__" -> strings (optional)
 *
 * Each span must have the size that dtype and shape need, and together, sorted, they must tile the data: no hole, no
 * overlap, nothing after the last. With the exact size of the file this finds a truncated download. The format forbids
 * a name given twice; the strict JSON reader refuses it. Unknown keys of an entry are ignored, as the reference does.
 */
#include "format/safetensors_internal.h"

#include <stdlib.h>
#include <string.h>

/* In the order of the reference, which is the order of alignment. */
static const clv_st_kind kinds[] = {
    {"BOOL", 8, CLV_DTYPES},
    {"F4", 4, CLV_DTYPES},
    {"F6_E2M3", 6, CLV_DTYPES},
    {"F6_E3M2", 6, CLV_DTYPES},
    {"U8", 8, CLV_U8},
    {"I8", 8, CLV_DTYPES},
    {"F8_E5M2", 8, CLV_DTYPES},
    {"F8_E4M3", 8, CLV_DTYPES},
    {"F8_E8M0", 8, CLV_DTYPES},
    {"F8_E4M3FNUZ", 8, CLV_DTYPES},
    {"F8_E5M2FNUZ", 8, CLV_DTYPES},
    {"I16", 16, CLV_DTYPES},
    {"U16", 16, CLV_DTYPES},
    {"F16", 16, CLV_F16},
    {"BF16", 16, CLV_BF16},
    {"I32", 32, CLV_I32},
    {"U32", 32, CLV_DTYPES},
    {"F32", 32, CLV_F32},
    {"C64", 64, CLV_DTYPES},
    {"F64", 64, CLV_F64},
    {"I64", 64, CLV_I64},
    {"U64", 64, CLV_DTYPES},
};

const clv_st_kind *clv_st_kind_find(const char *name)
{
    for (size_t i = 0; i < CLV_COUNT(kinds); i++)
        if (strcmp(kinds[i].name, name) == 0)
            return &kinds[i];
    return NULL;
}

const clv_st_kind *clv_st_kind_of(clv_dtype dtype)
{
    for (size_t i = 0; i < CLV_COUNT(kinds); i++)
        if (kinds[i].dtype == dtype && dtype != CLV_DTYPES)
            return &kinds[i];
    CLV_PANIC("no safetensors type for dtype %d", (int)dtype);
}

const char *clv_dtype_st_name(clv_dtype dtype)
{
    return clv_st_kind_of(dtype)->name;
}

/* ---- one entry of a header ---- */

static clv_status read_dtype(clv_st_tensor *t, const clv_json *header, clv_node entry)
{
    const clv_node node = clv_json_get(header, entry, "dtype");
    if (!clv_json_is(header, node, CLV_JSON_STRING))
        return clv_fail(CLV_BAD_INPUT, "\"dtype\" is missing or no string");
    const char *name = clv_json_string(header, node, NULL);
    const clv_st_kind *kind = clv_st_kind_find(name);
    if (kind == NULL)
        return clv_fail(CLV_BAD_INPUT, "dtype \"%.40s\" is unknown", name);
    memcpy(t->kind, kind->name, sizeof t->kind);
    t->dtype = kind->dtype;
    return clv_ok();
}

/* Dims, and from them the size that the offsets must confirm. */
static clv_status read_shape(clv_st_tensor *t, const clv_json *header, clv_node entry)
{
    const clv_node shape = clv_json_get(header, entry, "shape");
    if (!clv_json_is(header, shape, CLV_JSON_ARRAY))
        return clv_fail(CLV_BAD_INPUT, "\"shape\" is missing or no array");
    const int64_t ndim = clv_json_count(header, shape);
    if (ndim > CLV_ST_DIMS)
        return clv_fail(CLV_BAD_INPUT, "%lld dimensions; at most %d can be read", (long long)ndim, CLV_ST_DIMS);
    uint64_t bits = clv_st_kind_find(t->kind)->bits;
    for (clv_node at = clv_json_first(header, shape); at != CLV_NO_NODE; at = clv_json_next(header, at)) {
        int64_t dim;
        if (!clv_json_i64(header, at, &dim) || dim < 0)
            return clv_fail(CLV_BAD_INPUT, "dimension %d of the shape is no integer from 0", t->ndim);
        if (__builtin_mul_overflow(bits, (uint64_t)dim, &bits))
            return clv_fail(CLV_BAD_INPUT, "the shape has more than 2^64 bits");
        t->dim[t->ndim++] = dim;
    }
    if (bits % 8 != 0)
        return clv_fail(CLV_BAD_INPUT, "%llu bits of %s are no whole number of bytes", (unsigned long long)bits,
                        t->kind);
    t->bytes = bits / 8;
    return clv_ok();
}

static clv_status read_offsets(clv_st_tensor *t, const clv_json *header, clv_node entry)
{
    const clv_node offsets = clv_json_get(header, entry, "data_offsets");
    int64_t begin, end;
    if (!clv_json_is(header, offsets, CLV_JSON_ARRAY) || clv_json_count(header, offsets) != 2)
        return clv_fail(CLV_BAD_INPUT, "\"data_offsets\" is missing or no array of two");
    const clv_node first = clv_json_first(header, offsets);
    if (!clv_json_i64(header, first, &begin) || !clv_json_i64(header, clv_json_next(header, first), &end) ||
        begin < 0 || end < begin)
        return clv_fail(CLV_BAD_INPUT, "\"data_offsets\" must be two integers, 0 <= begin <= end");
    if ((uint64_t)(end - begin) != t->bytes)
        return clv_fail(CLV_BAD_INPUT, "data_offsets [%lld, %lld] span %lld bytes; dtype and shape need %llu",
                        (long long)begin, (long long)end, (long long)(end - begin), (unsigned long long)t->bytes);
    t->at = (uint64_t)begin;
    return clv_ok();
}

static clv_status read_entry(clv_st_tensor *t, const clv_json *header, clv_node entry)
{
    if (!clv_json_is(header, entry, CLV_JSON_OBJECT))
        return clv_fail(CLV_BAD_INPUT, "an object with dtype, shape and data_offsets was expected");
    CLV_TRY(read_dtype(t, header, entry));
    CLV_TRY(read_shape(t, header, entry));
    return read_offsets(t, header, entry);
}

static clv_status read_metadata(clv_st_header *out, const clv_json *header, clv_node metadata)
{
    if (!clv_json_is(header, metadata, CLV_JSON_OBJECT))
        return clv_fail(CLV_BAD_INPUT, "__metadata__ must be an object");
    out->metadata = clv_alloc((size_t)clv_json_count(header, metadata), sizeof *out->metadata);
    for (clv_node at = clv_json_first(header, metadata); at != CLV_NO_NODE; at = clv_json_next(header, at)) {
        const char *key = clv_json_key(header, at, NULL), *value = clv_json_string(header, at, NULL);
        if (value == NULL)
            return clv_fail(CLV_BAD_INPUT, "__metadata__ \"%.100s\" must be a string", key);
        out->metadata[out->metadata_count++] = (clv_st_pair){clv_strdup(key), clv_strdup(value)};
    }
    return clv_ok();
}

static int by_offset(const void *a, const void *b)
{
    const clv_st_tensor *x = a, *y = b;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* The tensors, sorted, must tile its `size` bytes of data. */
static clv_status check_tiling(const clv_st_tensor *t, size_t count, uint64_t size)
{
    uint64_t end = 0;
    for (size_t i = 0; i < count; i++) {
        if (t[i].at != end)
            return clv_fail(CLV_BAD_INPUT, "tensor \"%.100s\" begins at byte %llu of the data; %llu was expected (%s)",
                            t[i].name, (unsigned long long)t[i].at, (unsigned long long)end,
                            t[i].at > end ? "a hole" : "an overlap");
        end += t[i].bytes;
        if (end > size)
            return clv_fail(CLV_BAD_INPUT,
                            "tensor \"%.100s\" ends at byte %llu of the data, but the file holds only %llu; it is "
                            "truncated, fetch it again",
                            t[i].name, (unsigned long long)end, (unsigned long long)size);
    }
    if (end != size)
        return clv_fail(CLV_BAD_INPUT, "%llu bytes after the last tensor", (unsigned long long)(size - end));
    return clv_ok();
}

static clv_status read_tensors(clv_st_header *out, const clv_json *header)
{
    const size_t most = (size_t)clv_json_count(header, CLV_JSON_ROOT);
    out->tensors = clv_alloc(most, sizeof *out->tensors);
    for (clv_node at = clv_json_first(header, CLV_JSON_ROOT); at != CLV_NO_NODE; at = clv_json_next(header, at)) {
        size_t n;
        const char *name = clv_json_key(header, at, &n);
        if (strcmp(name, "__metadata__") == 0) {
            CLV_TRY(read_metadata(out, header, at));
            continue;
        }
        clv_st_tensor t = {0};
        if (strlen(name) != n)
            return clv_fail(CLV_BAD_INPUT, "the tensor name \"%.100s\" holds a zero byte", name);
        CLV_TRY(clv_within(read_entry(&t, header, at), "tensor \"%.100s\"", name));
        t.name = clv_strdup(name);
        out->tensors[out->count++] = t;
    }
    return clv_ok();
}

clv_status clv_st_header_parse(clv_st_header *out, const char *text, size_t n, uint64_t data)
{
    *out = (clv_st_header){0};
    clv_json *header;
    CLV_TRY(clv_json_parse(&header, text, n, "header"));
    clv_status status = clv_json_is(header, CLV_JSON_ROOT, CLV_JSON_OBJECT)
                            ? read_tensors(out, header)
                            : clv_fail(CLV_BAD_INPUT, "the header is no JSON object");
    clv_json_free(header);
    if (status.code == CLV_OK) {
        qsort(out->tensors, out->count, sizeof *out->tensors, by_offset);
        status = check_tiling(out->tensors, out->count, data);
    }
    if (status.code != CLV_OK)
        clv_st_header_free(out);
    return status;
}

void clv_st_header_free(clv_st_header *header)
{
    for (size_t i = 0; i < header->count; i++)
        free((char *)(uintptr_t)header->tensors[i].name);
    for (size_t i = 0; i < header->metadata_count; i++) {
        free(header->metadata[i].key);
        free(header->metadata[i].value);
    }
    free(header->tensors);
    free(header->metadata);
    *header = (clv_st_header){0};
}
