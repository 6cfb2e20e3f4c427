/* checkpoint_write.c - a catalog's tensors into their files, each file by one rank.
 *
 * The files advance together (the first tensor of each, the second of each, ...), so that owners write side by side.
 * A rank whose disk fails goes on receiving: the others must not wait for it.
 */
#include "train/checkpoint_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t first_of(const clv_catalog *catalog, int file)
{
    size_t i = 0;
    while (i < catalog->count && catalog->entry[i].file < file)
        i++;
    return i;
}

void clv_output_open(clv_output *o, const clv_catalog *catalog, int rank, const char *folder, const clv_disk *disk)
{
    int file = 0;
    *o = (clv_output){.disk = disk, .status = clv_ok()};
    while (file < catalog->files && clv_catalog_owner(catalog, file) != rank)
        file++;
    if (file == catalog->files)
        return;
    const size_t first = first_of(catalog, file);
    o->count = first_of(catalog, file + 1) - first;
    o->tensors = clv_alloc(o->count, sizeof *o->tensors);
    o->at = clv_alloc(o->count + 1, sizeof *o->at);
    for (size_t i = 0; i < o->count; i++) {
        const clv_entry *e = &catalog->entry[first + i];
        o->tensors[i] =
            (clv_st_tensor){.name = e->name, .dtype = e->dtype, .ndim = e->ndim, .dim = {e->dim[0], e->dim[1]}};
    }
    clv_catalog_path(catalog, file, folder, o->path);
    o->status = clv_st_header_make(&o->header, o->at, o->tensors, o->count);
    o->size = (int64_t)o->at[o->count];
}

void clv_output_close(clv_output *o)
{
    free(o->tensors);
    free(o->at);
    clv_text_free(&o->header);
    *o = (clv_output){0};
}

static void file_create(clv_output *o)
{
    o->status = clv_disk_permit(o->disk, "create", o->path);
    if (o->status.code == CLV_OK)
        o->status = clv_st_writer_create(&o->writer, o->path, o->tensors, o->count);
}

static void file_close(clv_output *o)
{
    if (o->status.code == CLV_OK)
        o->status = clv_disk_permit(o->disk, "sync", o->path);
    if (o->writer == NULL)
        return;
    const clv_status finished = clv_st_writer_finish(o->writer);
    o->writer = NULL;
    if (o->status.code == CLV_OK)
        o->status = finished;
}

/* Bytes of a tensor from `offset` on; in an image they may stand there already. */
static void output_put(clv_output *o, size_t slot, uint64_t offset, const void *data, size_t bytes)
{
    if (o->image != NULL) {
        char *to = o->image + o->at[slot] + offset;
        if (to != data)
            memcpy(to, data, bytes);
        return;
    }
    if (o->status.code == CLV_OK)
        o->status = clv_disk_permit(o->disk, "write", o->path);
    if (o->status.code == CLV_OK)
        o->status = clv_st_writer_put(o->writer, slot, offset, data, bytes);
}

/* Rounded to the type of the file, which is the type that the values came from: exact. In place: the result is no
 * longer.
 */
static void narrow(clv_ctx *cx, clv_dtype dtype, float *values, int64_t n)
{
    enum { AT_ONCE = 4096 };
    for (int64_t at = 0; dtype != CLV_F32 && at < n; at += AT_ONCE) {
        const size_t mark = clv_arena_mark(cx->temp);
        const clv_tensor part = clv_new_as(cx->temp, dtype, CLV_MIN(AT_ONCE, n - at));
        clv_from_floats(cx, part, values + at);
        clv_to_host(cx, (char *)values + (size_t)at * clv_dtype_size(dtype), part);
        clv_arena_release(cx->temp, mark);
    }
}

/* Where the owner collects rows: in the image itself, when that holds them as they come. */
static float *rows_place(const clv_output *o, clv_gather *g, const clv_entry *e, size_t slot, const int64_t rows[2])
{
    if (o->image == NULL || e->dtype != CLV_F32)
        return clv_buffer_take(&g->room->block, (size_t)(rows[1] * e->dim[1]));
    return (float *)(void *)(o->image + o->at[slot]) + rows[0] * e->dim[1];
}

static void write_entry(clv_output *o, clv_gather *g, const clv_catalog *catalog, const clv_entry *e)
{
    const int owner = clv_catalog_owner(catalog, e->file);
    const bool mine = owner == clv_comm_rank(g->world);
    const int64_t step = clv_entry_rows_per_piece(e);
    const size_t slot = (size_t)(e - catalog->entry) - first_of(catalog, e->file);
    const size_t width = (size_t)e->dim[1] * clv_dtype_size(e->dtype);
    clv_gather_begin(g, e, owner);
    for (int64_t row = 0; row < e->dim[0]; row += step) {
        const int64_t rows[2] = {row, CLV_MIN(step, e->dim[0] - row)};
        float *place = mine ? rows_place(o, g, e, slot, rows) : NULL;
        clv_gather_rows(g, e, owner, rows, place);
        if (mine)
            narrow(g->cx, e->dtype, place, rows[1] * e->dim[1]);
        if (mine)
            output_put(o, slot, (uint64_t)row * width, place, (size_t)rows[1] * width);
    }
}

clv_status clv_catalog_write(const clv_catalog *catalog, clv_gather *g, clv_output *o)
{
    const bool file = o->tensors != NULL && o->image == NULL;
    if (file && o->status.code == CLV_OK)
        file_create(o);
    for (size_t k = 0, wrote = 0; wrote < catalog->count; k++) {
        for (int f = 0; f < catalog->files; f++) {
            const size_t at = first_of(catalog, f) + k;
            if (at >= first_of(catalog, f + 1))
                continue;
            write_entry(o, g, catalog, &catalog->entry[at]);
            wrote++;
        }
    }
    if (file)
        file_close(o);
    return o->status;
}

/* Only a catalog of several files has one: {"metadata":{"total_size":...},"weight_map":{"NAME":"FILE",...}} */
clv_status clv_catalog_write_index(const clv_catalog *catalog, const char *folder, const clv_disk *disk)
{
    if (catalog->files == 1)
        return clv_ok();
    clv_text text = {0};
    char path[CLV_PATH], name[CLV_PATH];
    clv_text_printf(&text, "{\"metadata\":{\"total_size\":%lld},\"weight_map\":{", (long long)catalog->bytes);
    for (size_t i = 0; i < catalog->count; i++) {
        const clv_entry *e = &catalog->entry[i];
        clv_catalog_path(catalog, e->file, folder, path);
        clv_text_printf(&text, "%s\n", i > 0 ? "," : "");
        clv_json_add_string(&text, e->name, strlen(e->name));
        clv_text_add(&text, ":", 1);
        clv_json_add_string(&text, strrchr(path, '/') + 1, strlen(strrchr(path, '/') + 1));
    }
    clv_text_printf(&text, "\n}}\n");
    snprintf(name, sizeof name, "%s.safetensors.index.json", catalog->stem);
    clv_path_join(path, sizeof path, folder, name);
    const clv_status status = clv_disk_write(disk, path, text.data, text.length);
    clv_text_free(&text);
    return status;
}
