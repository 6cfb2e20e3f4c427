/* text_reader.c - the documents of a text file, one after the other.
 *
 *   lines    each line that is not blank is a document: a JSON object
 *   blocks   lines up to the next blank one are a document; neither the blank lines nor the last line's end belong to
 * it whole    the file is one document
 *
 * A line is blank when it holds nothing but spaces, tabs and its end. Lines may have any length.
 */
#include "train/train_data.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct clv_text_reader {
    FILE *file;
    char *path;
    clv_text_format format;
    int64_t first, at, last; /* bytes */
    int64_t line;            /* lines read */
    char *buffer;            /* of getline */
    size_t capacity;
};

clv_text_format clv_text_format_of(const char *path, clv_text_format format)
{
    if (format != CLV_TEXT_AUTO)
        return format;
    const char *dot = strrchr(path, '.');
    const bool json = dot != NULL && (strcmp(dot, ".jsonl") == 0 || strcmp(dot, ".json") == 0);
    return json ? CLV_TEXT_LINES : CLV_TEXT_BLOCKS;
}

clv_status clv_text_reader_open(clv_text_reader **out, const char *path, clv_text_format format, int64_t first,
                                int64_t last)
{
    *out = NULL;
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return clv_fail(CLV_BAD_INPUT, "cannot open %s: %s", path, strerror(errno));
    int64_t size = -1;
    if (fseeko(file, 0, SEEK_END) == 0)
        size = ftello(file);
    if (size < 0 || size == INT64_MAX || fseeko(file, first, SEEK_SET) != 0) { /* a folder reports the largest size */
        fclose(file);
        return clv_fail(CLV_BAD_INPUT, "%s is no ordinary file: its length is not known", path);
    }
    CLV_CHECK(first >= 0 && first <= size && last <= size, "bytes %lld to %lld of %s, which has %lld", (long long)first,
              (long long)last, path, (long long)size);
    clv_text_reader *reader = clv_alloc(1, sizeof *reader);
    *reader = (clv_text_reader){.file = file,
                                .path = clv_strdup(path),
                                .format = clv_text_format_of(path, format),
                                .first = first,
                                .at = first,
                                .last = last > 0 ? last : size};
    *out = reader;
    return clv_ok();
}

void clv_text_reader_close(clv_text_reader *reader)
{
    if (reader == NULL)
        return;
    fclose(reader->file);
    free(reader->path);
    free(reader->buffer);
    free(reader);
}

int64_t clv_text_reader_at(const clv_text_reader *reader, int64_t *total)
{
    *total = reader->last - reader->first;
    return reader->at - reader->first;
}

/* The next line with its end, in reader->buffer; n = 0 when there is none. */
static clv_status read_line(clv_text_reader *reader, size_t *n)
{
    *n = 0;
    if (reader->at >= reader->last)
        return clv_ok();
    errno = 0;
    const ssize_t got = getline(&reader->buffer, &reader->capacity, reader->file);
    if (got < 0 && ferror(reader->file))
        return clv_fail(CLV_BAD_INPUT, "cannot read %s: %s", reader->path, strerror(errno));
    CLV_CHECK(got >= 0 || errno != ENOMEM, "out of memory: line %lld of %s", (long long)reader->line + 1, reader->path);
    if (got > 0) {
        *n = (size_t)got;
        reader->at += got;
        reader->line++;
    }
    return clv_ok();
}

static bool is_blank(const char *line, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r' && line[i] != '\n')
            return false;
    return true;
}

clv_status clv_text_reader_next(clv_text_reader *reader, clv_text *raw, int64_t *line, bool *more)
{
    size_t n;
    raw->length = 0;
    *more = false;
    do
        CLV_TRY(read_line(reader, &n));
    while (n > 0 && is_blank(reader->buffer, n) && reader->format != CLV_TEXT_WHOLE);
    *line = reader->line;
    *more = n > 0;
    while (n > 0 && (reader->format == CLV_TEXT_WHOLE || !is_blank(reader->buffer, n))) {
        clv_text_add(raw, reader->buffer, n);
        if (reader->format == CLV_TEXT_LINES)
            break;
        CLV_TRY(read_line(reader, &n));
    }
    if (reader->format == CLV_TEXT_WHOLE)
        return clv_ok();
    for (int i = 0; i < 2; i++) /* the last line's end, \n or \r\n */
        if (raw->length > 0 && raw->data[raw->length - 1] == "\n\r"[i])
            raw->data[--raw->length] = 0;
    return clv_ok();
}

static clv_status find_start(clv_text_reader *reader, int64_t *start)
{
    size_t n;
    bool parted = reader->format == CLV_TEXT_LINES;
    CLV_TRY(read_line(reader, &n)); /* the rest of the line in which the share begins */
    while (n > 0) {
        *start = reader->at;
        CLV_TRY(read_line(reader, &n));
        const bool blank = is_blank(reader->buffer, n);
        if (n > 0 && parted && !blank)
            return clv_ok();
        parted = parted || blank;
    }
    return clv_fail(CLV_BAD_INPUT,
                    "%s: no document begins in its bytes %lld to %lld, of which some are to be held out; "
                    "documents of plain text end at blank lines",
                    reader->path, (long long)reader->first + 1, (long long)reader->last);
}

clv_status clv_text_cut(const char *path, clv_text_format format, double percent, int64_t *cut)
{
    CLV_CHECK(percent > 0 && percent < 100, "%g percent", percent);
    clv_text_reader *reader;
    CLV_TRY(clv_text_reader_open(&reader, path, format, 0, 0));
    const int64_t share = (int64_t)((double)reader->last * percent / 100);
    reader->first = reader->at = CLV_MAX(reader->last - share - 1, 0); /* one before: a line may begin right here */
    clv_status st = clv_ok();
    if (fseeko(reader->file, reader->at, SEEK_SET) != 0)
        st = clv_fail(CLV_BAD_INPUT, "cannot read %s: %s", path, strerror(errno));
    if (st.code == CLV_OK)
        st = find_start(reader, cut);
    clv_text_reader_close(reader);
    return st;
}

/* ---- texts of a document ----------------------------------------------------------------------------------------- */

static clv_status visit_value(const clv_json *json, const char *key, clv_text_visit visit, void *user)
{
    const clv_node value = clv_json_get(json, CLV_JSON_ROOT, key);
    const bool list = clv_json_is(json, value, CLV_JSON_ARRAY);
    if (!list && !clv_json_is(json, value, CLV_JSON_STRING))
        return clv_fail(CLV_BAD_INPUT, "key \"%s\" is %s, expected a string or a list of strings", key,
                        value == CLV_NO_NODE ? "missing" : "something else");
    for (clv_node one = list ? clv_json_first(json, value) : value; one != CLV_NO_NODE;
         one = list ? clv_json_next(json, one) : CLV_NO_NODE) {
        if (!clv_json_is(json, one, CLV_JSON_STRING))
            return clv_fail(CLV_BAD_INPUT, "the list of key \"%s\" holds something that is not a string", key);
        size_t n;
        const char *text = clv_json_string(json, one, &n);
        CLV_TRY(visit(user, text, n));
    }
    return clv_ok();
}

clv_status clv_text_each(clv_text_format format, const char *key, const clv_text *raw, clv_text_visit visit, void *user)
{
    if (format != CLV_TEXT_LINES)
        return visit(user, raw->data, raw->length);
    clv_json *json;
    CLV_TRY(clv_json_parse(&json, raw->data, raw->length, "JSON"));
    clv_status st = clv_ok();
    if (clv_json_is(json, CLV_JSON_ROOT, CLV_JSON_OBJECT))
        st = visit_value(json, key, visit, user);
    else
        st = clv_fail(CLV_BAD_INPUT, "expected a JSON object, as in {\"%s\": \"...\"}", key);
    clv_json_free(json);
    return st;
}
