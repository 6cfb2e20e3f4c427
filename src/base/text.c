/* text.c - growing text, whole files, strict numbers, near names. */
#include "base.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void clv_text_add(clv_text *text, const char *bytes, size_t n)
{
    if (text->length + n + 1 > text->capacity) {
        text->capacity = CLV_MAX(text->capacity * 2, text->length + n + 64);
        text->data = clv_resize(text->data, text->capacity, 1);
    }
    if (n > 0)
        memcpy(text->data + text->length, bytes, n);
    text->length += n;
    text->data[text->length] = 0;
}

void clv_text_printf(clv_text *text, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    const int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    CLV_CHECK(n >= 0, "bad format '%s'", fmt);
    char *buffer = clv_alloc((size_t)n + 1, 1);
    vsnprintf(buffer, (size_t)n + 1, fmt, again);
    va_end(again);
    clv_text_add(text, buffer, (size_t)n);
    free(buffer);
}

void clv_text_free(clv_text *text)
{
    free(text->data);
    *text = (clv_text){0};
}

clv_status clv_file_read(const char *path, clv_text *out)
{
    *out = (clv_text){0};
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return clv_fail(CLV_BAD_INPUT, "cannot open %s: %s", path, strerror(errno));
    struct stat info;
    if (fstat(fileno(file), &info) == 0 && S_ISDIR(info.st_mode)) {
        fclose(file);
        return clv_fail(CLV_BAD_INPUT, "%s is a folder, not a file", path);
    }
    char chunk[65536];
    size_t n;
    while ((n = fread(chunk, 1, sizeof chunk, file)) > 0)
        clv_text_add(out, chunk, n);
    const bool bad = ferror(file) != 0;
    fclose(file);
    if (bad) {
        clv_text_free(out);
        return clv_fail(CLV_BAD_INPUT, "cannot read %s: %s", path, strerror(errno));
    }
    clv_text_add(out, "", 0);
    return clv_ok();
}

static bool write_all(int fd, const char *data, size_t n)
{
    while (n > 0) {
        const ssize_t wrote = write(fd, data, CLV_MIN(n, (size_t)1 << 30));
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return false;
        data += wrote;
        n -= (size_t)wrote;
    }
    return true;
}

clv_status clv_file_write_atomic(const char *path, const void *data, size_t n)
{
    char temporary[4096];
    snprintf(temporary, sizeof temporary, "%s.tmp.%ld", path, (long)getpid());
    const int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0)
        return clv_fail(CLV_BAD_INPUT, "cannot create %s: %s", temporary, strerror(errno));
    bool good = write_all(fd, data, n) && fsync(fd) == 0;
    int reason = errno;
    if (close(fd) != 0 && good) {
        good = false;
        reason = errno;
    }
    if (good && rename(temporary, path) != 0) {
        good = false;
        reason = errno;
    }
    if (good)
        return clv_ok();
    unlink(temporary);
    return clv_fail(CLV_BAD_INPUT, "cannot write %s (%zu bytes): %s", path, n, strerror(reason));
}

clv_status clv_make_dirs(const char *path)
{
    char part[4096];
    const int n = snprintf(part, sizeof part, "%s", path);
    if (n < 0 || (size_t)n >= sizeof part)
        return clv_fail(CLV_BAD_INPUT, "path too long: %s", path);
    for (char *at = part + 1;; at++) {
        if (*at != '/' && *at != 0)
            continue;
        const char keep = *at;
        *at = 0;
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return clv_fail(CLV_BAD_INPUT, "cannot create folder %s: %s", part, strerror(errno));
        *at = keep;
        if (keep == 0)
            break;
    }
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode))
        return clv_fail(CLV_BAD_INPUT, "%s exists and is not a folder", path);
    return clv_ok();
}

clv_status clv_make_parent(const char *path)
{
    char folder[4096];
    const char *end = strrchr(path, '/');
    if (end == NULL || end == path)
        return clv_ok();
    if ((size_t)(end - path) >= sizeof folder)
        return clv_fail(CLV_BAD_INPUT, "path too long: %s", path);
    snprintf(folder, sizeof folder, "%.*s", (int)(end - path), path);
    return clv_make_dirs(folder);
}

bool clv_file_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

void clv_path_join(char *out, size_t size, const char *folder, const char *name)
{
    const size_t n = strlen(folder);
    const char *slash = n > 0 && folder[n - 1] != '/' ? "/" : "";
    const int wrote = snprintf(out, size, "%s%s%s", folder, slash, name);
    CLV_CHECK(wrote >= 0 && (size_t)wrote < size, "path too long: %s/%s", folder, name);
}

bool clv_parse_i64(const char *text, int64_t *out)
{
    char *end;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (end == text || *end != 0 || errno != 0 || isspace((unsigned char)text[0]))
        return false;
    *out = value;
    return true;
}

bool clv_parse_f64(const char *text, double *out)
{
    char *end;
    errno = 0;
    const double value = strtod(text, &end);
    if (end == text || *end != 0 || isspace((unsigned char)text[0]) || !isfinite(value))
        return false;
    *out = value;
    return true;
}

size_t clv_edit_distance(const char *a, const char *b)
{
    const size_t m = strlen(a), n = strlen(b);
    size_t *row = clv_alloc(n + 1, sizeof *row);
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 1; i <= m; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            const size_t above = row[j];
            const size_t change = diagonal + (a[i - 1] != b[j - 1]);
            row[j] = CLV_MIN(CLV_MIN(above, row[j - 1]) + 1, change);
            diagonal = above;
        }
    }
    const size_t distance = row[n];
    free(row);
    return distance;
}

const char *clv_nearest(const char *name, const char *const *names, size_t count)
{
    const char *best = NULL;
    size_t best_distance = CLV_MAX(strlen(name) / 2, 2) + 1;
    for (size_t i = 0; i < count; i++) {
        const size_t distance = clv_edit_distance(name, names[i]);
        if (distance < best_distance) {
            best_distance = distance;
            best = names[i];
        }
    }
    return best;
}
