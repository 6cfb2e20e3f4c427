/* safetensors.c - reading tensors from a file, or from the shards of a folder.
 *
 *   bytes 0..7       N, unsigned little-endian: length of the header
 *   bytes 8..8+N     the header: a JSON object, padded with spaces (safetensors_header.c)
 *   bytes 8+N..end   the elements, little-endian and row-major
 *
 * Everything is checked when a file is opened, before anything is allocated for its tensors; files stay open.
 *
 * A sharded model is a folder whose model.safetensors.index.json maps each tensor's name to its file ("weight_map").
 *
 * Source: the format's own description and reader (github.com/huggingface/safetensors).
 */
#include "format/safetensors_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct st_file {
    char *path;
    int fd;
    uint64_t size;
} st_file;

struct clv_safetensors {
    st_file *files;
    int file_count;
    clv_st_tensor *tensors; /* by file, then by offset */
    size_t count;
    size_t *by_name;       /* indices of tensors, sorted by name */
    clv_st_pair *metadata; /* of all files, the first one's first */
    size_t metadata_count;
};

/* ---- one file ---- */

static clv_status read_at(const st_file *file, uint64_t at, void *out, size_t n)
{
    char *to = out;
    while (n > 0) {
        const ssize_t got = pread(file->fd, to, CLV_MIN(n, (size_t)1 << 30), (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return clv_fail(CLV_BAD_INPUT, "cannot read %zu bytes at %llu: %s", n, (unsigned long long)at,
                            strerror(errno));
        if (got == 0)
            return clv_fail(CLV_BAD_INPUT, "ends at byte %llu, %zu bytes early; it was cut while in use",
                            (unsigned long long)at, n);
        to += got;
        at += (uint64_t)got;
        n -= (size_t)got;
    }
    return clv_ok();
}

/* The length of the header, after all that can be said of a file by its first bytes. */
static clv_status read_header_size(const st_file *file, uint64_t *out)
{
    static const char pointer[] = "version https://git-lfs";
    char head[sizeof pointer - 1];
    const size_t n = (size_t)CLV_MIN(file->size, sizeof head);
    CLV_TRY(read_at(file, 0, head, n));
    if (n == sizeof head && memcmp(head, pointer, n) == 0)
        return clv_fail(CLV_BAD_INPUT, "a Git LFS pointer, not the file itself; fetch it with 'git lfs pull'");
    if (n < 9)
        return clv_fail(CLV_BAD_INPUT, "%zu bytes are no safetensors file", n);
    uint64_t size = 0;
    for (int i = 7; i >= 0; i--)
        size = size << 8 | (uint8_t)head[i];
    if (size > CLV_ST_HEADER_MAX)
        return clv_fail(CLV_BAD_INPUT, "no safetensors file: its header would have %llu bytes (at most %u)",
                        (unsigned long long)size, CLV_ST_HEADER_MAX);
    if (size > file->size - 8)
        return clv_fail(CLV_BAD_INPUT, "the header has %llu bytes, the file only %llu after the first 8; truncated?",
                        (unsigned long long)size, (unsigned long long)(file->size - 8));
    if (head[8] != '{')
        return clv_fail(CLV_BAD_INPUT, "no safetensors file: its header begins with byte 0x%02x, not '{'",
                        (unsigned)(uint8_t)head[8]);
    *out = size;
    return clv_ok();
}

/* Takes over what the header of the newest file states. */
static void adopt(clv_safetensors *st, clv_st_header *header, uint64_t data)
{
    st->tensors = clv_resize(st->tensors, st->count + header->count, sizeof *st->tensors);
    for (size_t i = 0; i < header->count; i++) {
        clv_st_tensor t = header->tensors[i];
        t.file = st->file_count - 1;
        t.at += data;
        st->tensors[st->count++] = t;
    }
    st->metadata = clv_resize(st->metadata, st->metadata_count + header->metadata_count, sizeof *st->metadata);
    for (size_t i = 0; i < header->metadata_count; i++)
        st->metadata[st->metadata_count++] = header->metadata[i];
    free(header->tensors);
    free(header->metadata);
}

static clv_status read_header(clv_safetensors *st)
{
    const st_file *file = &st->files[st->file_count - 1];
    uint64_t size = 0;
    CLV_TRY(read_header_size(file, &size));
    char *text = clv_alloc((size_t)size, 1);
    clv_st_header header = {0};
    clv_status status = read_at(file, 8, text, (size_t)size);
    if (status.code == CLV_OK)
        status = clv_st_header_parse(&header, text, (size_t)size, file->size - 8 - size);
    if (status.code == CLV_OK)
        adopt(st, &header, 8 + size);
    free(text);
    return status;
}

static clv_status add_file(clv_safetensors *st, const char *path)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return clv_fail(CLV_BAD_INPUT, "cannot open %s: %s", path, strerror(errno));
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        close(fd);
        return clv_fail(CLV_BAD_INPUT, "%s is no ordinary file", path);
    }
    st->files = clv_resize(st->files, (size_t)st->file_count + 1, sizeof *st->files);
    st->files[st->file_count++] = (st_file){clv_strdup(path), fd, (uint64_t)info.st_size};
    return clv_within(read_header(st), "%s", path);
}

/* ---- names ---- */

static int by_name(const void *a, const void *b, void *tensors)
{
    const clv_st_tensor *t = tensors;
    return strcmp(t[*(const size_t *)a].name, t[*(const size_t *)b].name);
}

static clv_status sort_names(clv_safetensors *st)
{
    st->by_name = clv_alloc(st->count, sizeof *st->by_name);
    for (size_t i = 0; i < st->count; i++)
        st->by_name[i] = i;
    if (st->count > 0)
        qsort_r(st->by_name, st->count, sizeof *st->by_name, by_name, st->tensors);
    for (size_t i = 1; i < st->count; i++) {
        const clv_st_tensor *a = &st->tensors[st->by_name[i - 1]], *b = &st->tensors[st->by_name[i]];
        if (strcmp(a->name, b->name) == 0)
            return clv_fail(CLV_BAD_INPUT, "tensor \"%.100s\" is in two files, %s and %s", a->name,
                            st->files[a->file].path, st->files[b->file].path);
    }
    return clv_ok();
}

/* ---- a folder ---- */

static clv_status add_shard(clv_safetensors *st, const char *folder, const char *name)
{
    char path[PATH_MAX];
    if (strchr(name, '/') != NULL || strlen(folder) + strlen(name) + 2 > sizeof path)
        return clv_fail(CLV_BAD_INPUT, "weight_map names \"%.100s\"; a file of this folder was expected", name);
    clv_path_join(path, sizeof path, folder, name);
    return add_file(st, path);
}

/* The number of the shard `name`, opened when it is new. */
static clv_status shard_of(clv_safetensors *st, const char *folder, const char *name, int *out)
{
    for (int i = st->file_count - 1; i >= 0; i--) {
        if (strcmp(strrchr(st->files[i].path, '/') + 1, name) == 0) {
            *out = i;
            return clv_ok();
        }
    }
    CLV_TRY(add_shard(st, folder, name));
    *out = st->file_count - 1;
    return clv_ok();
}

static clv_status check_map(clv_safetensors *st, const clv_json *index, clv_node map, const int *shard)
{
    size_t i = 0;
    for (clv_node at = clv_json_first(index, map); at != CLV_NO_NODE; at = clv_json_next(index, at), i++) {
        const char *name = clv_json_key(index, at, NULL);
        const clv_st_tensor *t = clv_safetensors_find(st, name);
        if (t == NULL || t->file != shard[i])
            return clv_fail(CLV_BAD_INPUT, "weight_map says that \"%.100s\" is in %s, but it is not", name,
                            st->files[shard[i]].path);
    }
    return clv_ok();
}

static clv_status add_shards(clv_safetensors *st, const char *folder, const clv_json *index)
{
    const clv_node map = clv_json_get(index, CLV_JSON_ROOT, "weight_map");
    if (!clv_json_is(index, map, CLV_JSON_OBJECT) || clv_json_count(index, map) == 0)
        return clv_fail(CLV_BAD_INPUT, "\"weight_map\" is missing, empty or no object");
    int *shard = clv_alloc((size_t)clv_json_count(index, map), sizeof *shard);
    size_t i = 0;
    clv_status status = clv_ok();
    for (clv_node at = clv_json_first(index, map); at != CLV_NO_NODE; at = clv_json_next(index, at), i++) {
        const char *name = clv_json_string(index, at, NULL);
        status = name != NULL
                     ? shard_of(st, folder, name, &shard[i])
                     : clv_fail(CLV_BAD_INPUT, "weight_map \"%.100s\" is no string", clv_json_key(index, at, NULL));
        if (status.code != CLV_OK)
            break;
    }
    if (status.code == CLV_OK)
        status = sort_names(st);
    if (status.code == CLV_OK)
        status = check_map(st, index, map, shard);
    free(shard);
    return status;
}

static clv_status open_folder(clv_safetensors *st, const char *folder)
{
    char path[PATH_MAX];
    if (strlen(folder) + 64 > sizeof path)
        return clv_fail(CLV_BAD_INPUT, "path too long: %.200s", folder);
    clv_path_join(path, sizeof path, folder, "model.safetensors");
    if (clv_file_exists(path)) {
        CLV_TRY(add_file(st, path));
        return sort_names(st);
    }
    clv_path_join(path, sizeof path, folder, "model.safetensors.index.json");
    if (!clv_file_exists(path))
        return clv_fail(CLV_BAD_INPUT, "%s holds neither model.safetensors nor model.safetensors.index.json", folder);
    clv_json *index;
    CLV_TRY(clv_json_load(&index, path));
    const clv_status status = add_shards(st, folder, index);
    clv_json_free(index);
    return clv_within(status, "%s", path);
}

/* ---- the whole ---- */

clv_status clv_safetensors_open(clv_safetensors **out, const char *path)
{
    struct stat info;
    *out = NULL;
    if (stat(path, &info) != 0)
        return clv_fail(CLV_BAD_INPUT, "cannot open %s: %s", path, strerror(errno));
    clv_safetensors *st = clv_alloc(1, sizeof *st);
    clv_status status;
    if (S_ISDIR(info.st_mode)) {
        status = open_folder(st, path);
    } else {
        status = add_file(st, path);
        if (status.code == CLV_OK)
            status = sort_names(st);
    }
    if (status.code != CLV_OK)
        clv_safetensors_close(st);
    else
        *out = st;
    return status;
}

void clv_safetensors_close(clv_safetensors *st)
{
    if (st == NULL)
        return;
    for (int i = 0; i < st->file_count; i++) {
        close(st->files[i].fd);
        free(st->files[i].path);
    }
    for (size_t i = 0; i < st->count; i++)
        free((char *)(uintptr_t)st->tensors[i].name); /* ours since the header was parsed */
    for (size_t i = 0; i < st->metadata_count; i++) {
        free(st->metadata[i].key);
        free(st->metadata[i].value);
    }
    free(st->files);
    free(st->tensors);
    free(st->by_name);
    free(st->metadata);
    free(st);
}

size_t clv_safetensors_count(const clv_safetensors *st)
{
    return st->count;
}

const clv_st_tensor *clv_safetensors_at(const clv_safetensors *st, size_t i)
{
    CLV_CHECK(i < st->count, "tensor %zu of %zu", i, st->count);
    return &st->tensors[i];
}

const clv_st_tensor *clv_safetensors_find(const clv_safetensors *st, const char *name)
{
    size_t low = 0, high = st->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const clv_st_tensor *t = &st->tensors[st->by_name[middle]];
        const int order = strcmp(name, t->name);
        if (order == 0)
            return t;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

const char *clv_safetensors_file(const clv_safetensors *st, int file)
{
    CLV_CHECK(file >= 0 && file < st->file_count, "file %d of %d", file, st->file_count);
    return st->files[file].path;
}

const char *clv_safetensors_metadata(const clv_safetensors *st, const char *key)
{
    for (size_t i = 0; i < st->metadata_count; i++)
        if (strcmp(st->metadata[i].key, key) == 0)
            return st->metadata[i].value;
    return NULL;
}

clv_status clv_safetensors_read(const clv_safetensors *st, const clv_st_tensor *t, uint64_t offset, void *out, size_t n)
{
    CLV_CHECK(offset <= t->bytes && n <= t->bytes - offset, "%s: bytes %llu + %zu of %llu", t->name,
              (unsigned long long)offset, n, (unsigned long long)t->bytes);
    const st_file *file = &st->files[t->file];
    return clv_within(read_at(file, t->at + offset, out, n), "%s: tensor \"%.100s\"", file->path, t->name);
}
