/* safetensors_write.c - writing a file that every safetensors reader takes.
 *
 * Layout as the reference writer's: tensors by width of their type, widest first, then by name, so that each is
 * aligned; compact JSON in the same order after "__metadata__":{"format":"pt"}; spaces until 8 + N is a multiple of 8.
 *
 * Header and offsets depend on the declared list alone. Every process that opens the same list therefore writes the
 * same header bytes, sets the same size, and may fill tensors without a word to the others. The file is written under
 * its own name: making it appear at once is up to the caller, who renames a whole folder.
 */
#include "format/safetensors_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

struct clv_st_writer {
    char *path;
    int fd;
    uint64_t size;
    size_t count;
    uint64_t *at, *bytes; /* of tensors, in the caller's order; at: from the start of the file */
};

static int by_layout(const void *a, const void *b)
{
    const clv_st_tensor *x = *(const clv_st_tensor *const *)a, *y = *(const clv_st_tensor *const *)b;
    const clv_st_kind *p = clv_st_kind_of(x->dtype), *q = clv_st_kind_of(y->dtype);
    if (p != q)
        return p > q ? -1 : 1;
    return strcmp(x->name, y->name);
}

static uint64_t byte_count(const clv_st_tensor *t)
{
    uint64_t bytes = clv_st_kind_of(t->dtype)->bits / 8;
    CLV_CHECK(t->ndim >= 0 && t->ndim <= CLV_ST_DIMS, "%s: %d dimensions", t->name, t->ndim);
    for (int i = 0; i < t->ndim; i++)
        CLV_CHECK(t->dim[i] >= 0 && !__builtin_mul_overflow(bytes, (uint64_t)t->dim[i], &bytes), "%s: dim %d is %lld",
                  t->name, i, (long long)t->dim[i]);
    return bytes;
}

static void add_entry(clv_text *header, const clv_st_tensor *t, uint64_t at)
{
    clv_text_add(header, ",", 1);
    clv_json_add_string(header, t->name, strlen(t->name));
    clv_text_printf(header, ":{\"dtype\":\"%s\",\"shape\":[", clv_dtype_st_name(t->dtype));
    for (int i = 0; i < t->ndim; i++)
        clv_text_printf(header, i > 0 ? ",%lld" : "%lld", (long long)t->dim[i]);
    clv_text_printf(header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                    (unsigned long long)(at + byte_count(t)));
}

/* 8 bytes for the length, which is known when the rest is; at counts from the end of the header. */
static void lay_out(clv_text *header, uint64_t *at, const clv_st_tensor **order, const clv_st_tensor *tensors,
                    size_t count)
{
    at[count] = 0;
    clv_text_printf(header, "%8s{\"__metadata__\":{\"format\":\"pt\"}", "");
    for (size_t i = 0; i < count; i++) {
        CLV_CHECK(i == 0 || by_layout(&order[i - 1], &order[i]) != 0, "tensor %s declared twice", order[i]->name);
        at[order[i] - tensors] = at[count];
        add_entry(header, order[i], at[count]);
        at[count] += byte_count(order[i]);
    }
    clv_text_add(header, "}", 1);
    while (header->length % 8 != 0)
        clv_text_add(header, " ", 1);
}

clv_status clv_st_header_make(clv_text *header, uint64_t *at, const clv_st_tensor *tensors, size_t count)
{
    const clv_st_tensor **order = clv_alloc(count, sizeof *order);
    for (size_t i = 0; i < count; i++)
        order[i] = &tensors[i];
    qsort(order, count, sizeof *order, by_layout);
    *header = (clv_text){0};
    lay_out(header, at, order, tensors, count);
    free(order);
    const uint64_t n = header->length - 8;
    for (int i = 0; i < 8; i++)
        header->data[i] = (char)(uint8_t)(n >> (8 * i));
    for (size_t i = 0; i <= count; i++)
        at[i] += header->length;
    if (n <= CLV_ST_HEADER_MAX)
        return clv_ok();
    clv_text_free(header);
    return clv_fail(CLV_BAD_INPUT, "the header needs %llu bytes, at most %u are allowed; use more shards",
                    (unsigned long long)n, CLV_ST_HEADER_MAX);
}

/* What the system says, and for a full disk also how much is needed and how much is left. */
static clv_status write_failed(const clv_st_writer *w, int reason, uint64_t need)
{
    struct statvfs disk;
    if (reason != ENOSPC || fstatvfs(w->fd, &disk) != 0)
        return clv_fail(CLV_BAD_INPUT, "cannot write %s: %s", w->path, strerror(reason));
    return clv_fail(CLV_BAD_INPUT,
                    "cannot write %s: no space left; %llu bytes needed, %llu free; make room or choose "
                    "another disk",
                    w->path, (unsigned long long)need, (unsigned long long)disk.f_bavail * disk.f_frsize);
}

/* Refuses at once what cannot fit. Blocks that the file already has (other processes write too) count as there. */
static clv_status check_space(const clv_st_writer *w)
{
    struct statvfs disk;
    struct stat info;
    if (fstatvfs(w->fd, &disk) != 0 || fstat(w->fd, &info) != 0)
        return write_failed(w, errno, w->size);
    const uint64_t have = (uint64_t)info.st_blocks * 512;
    const uint64_t need = w->size > have ? w->size - have : 0;
    return need / disk.f_frsize <= disk.f_bavail ? clv_ok() : write_failed(w, ENOSPC, need);
}

static clv_status write_at(const clv_st_writer *w, uint64_t at, const void *data, size_t n)
{
    const char *from = data;
    while (n > 0) {
        const ssize_t wrote = pwrite(w->fd, from, CLV_MIN(n, (size_t)1 << 30), (off_t)at);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return write_failed(w, wrote < 0 ? errno : EIO, n);
        from += wrote;
        at += (uint64_t)wrote;
        n -= (size_t)wrote;
    }
    return clv_ok();
}

/* Opens without truncating: another process may have begun to fill the file. */
static clv_status begin_file(clv_st_writer *w, const clv_text *header)
{
    w->fd = open(w->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (w->fd < 0)
        return clv_fail(CLV_BAD_INPUT, "cannot create %s: %s", w->path, strerror(errno));
    CLV_TRY(check_space(w));
    if (ftruncate(w->fd, (off_t)w->size) != 0)
        return write_failed(w, errno, w->size);
    return write_at(w, 0, header->data, header->length);
}

static clv_status destroy(clv_st_writer *w)
{
    clv_status status = clv_ok();
    if (w->fd >= 0 && close(w->fd) != 0)
        status = clv_fail(CLV_BAD_INPUT, "cannot close %s: %s", w->path, strerror(errno));
    free(w->path);
    free(w->at);
    free(w->bytes);
    free(w);
    return status;
}

clv_status clv_st_writer_create(clv_st_writer **out, const char *path, const clv_st_tensor *tensors, size_t count)
{
    clv_st_writer *w = clv_alloc(1, sizeof *w);
    *w = (clv_st_writer){.path = clv_strdup(path), .fd = -1, .count = count};
    w->at = clv_alloc(count + 1, sizeof *w->at);
    w->bytes = clv_alloc(count, sizeof *w->bytes);
    for (size_t i = 0; i < count; i++)
        w->bytes[i] = byte_count(&tensors[i]);
    clv_text header;
    clv_status status = clv_within(clv_st_header_make(&header, w->at, tensors, count), "%s", path);
    w->size = w->at[count];
    if (status.code == CLV_OK) {
        status = begin_file(w, &header);
        clv_text_free(&header);
    }
    if (status.code != CLV_OK)
        destroy(w);
    *out = status.code == CLV_OK ? w : NULL;
    return status;
}

clv_status clv_st_writer_put(clv_st_writer *w, size_t tensor, uint64_t offset, const void *data, size_t n)
{
    CLV_CHECK(tensor < w->count, "tensor %zu of %zu", tensor, w->count);
    const uint64_t bytes = w->bytes[tensor];
    CLV_CHECK(offset <= bytes && n <= bytes - offset, "tensor %zu: bytes %llu + %zu of %llu", tensor,
              (unsigned long long)offset, n, (unsigned long long)bytes);
    return write_at(w, w->at[tensor] + offset, data, n);
}

clv_status clv_st_writer_finish(clv_st_writer *w)
{
    struct stat info;
    clv_status status = clv_ok();
    if (fsync(w->fd) != 0 || fstat(w->fd, &info) != 0)
        status = write_failed(w, errno, w->size);
    else if ((uint64_t)info.st_size != w->size)
        status = clv_fail(CLV_BAD_INPUT, "%s has %lld bytes instead of %llu; is another program writing it?", w->path,
                          (long long)info.st_size, (unsigned long long)w->size);
    const clv_status closed = destroy(w);
    return status.code != CLV_OK ? status : closed;
}
