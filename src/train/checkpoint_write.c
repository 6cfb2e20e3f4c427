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

static void output_create(clv_output *o)
{
    o->status = clv_disk_permit(o->disk, "create", o->path);
    if (o->status.code == CLV_OK)
        o->status = clv_st_writer_create(&o->writer, o->path, o->tensors, o->count);
}

static void output_open(clv_output *o, const clv_catalog *catalog, int file, const char *folder)
{
    const size_t first = first_of(catalog, file);
    o->count = first_of(catalog, file + 1) - first;
    o->tensors = clv_alloc(o->count, sizeof *o->tensors);
    for (size_t i = 0; i < o->count; i++) {
        const clv_entry *e = &catalog->entry[first + i];
        o->tensors[i] =
            (clv_st_tensor){.name = e->name, .dtype = e->dtype, .ndim = e->ndim, .dim = {e->dim[0], e->dim[1]}};
    }
    clv_catalog_path(catalog, file, folder, o->path);
    if (!o->later)
        output_create(o);
}

static void output_write(clv_output *o, const clv_waiting *block)
{
    if (o->status.code == CLV_OK)
        o->status = clv_disk_permit(o->disk, "write", o->path);
    if (o->status.code == CLV_OK)
        o->status = clv_st_writer_put(o->writer, block->slot, block->at, block->data, block->bytes);
}

static void output_put(clv_output *o, size_t slot, uint64_t at, const void *data, size_t bytes)
{
    clv_waiting block = {.slot = slot, .at = at, .data = data, .bytes = bytes};
    if (!o->later) {
        output_write(o, &block);
        return;
    }
    block.data = memcpy(clv_alloc(bytes, 1), data, bytes);
    o->block = clv_resize(o->block, o->blocks + 1, sizeof *o->block);
    o->block[o->blocks++] = block;
}

static void output_close(clv_output *o)
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

clv_status clv_output_write(clv_output *o)
{
    if (o->tensors == NULL)
        return clv_ok();
    output_create(o);
    for (size_t i = 0; i < o->blocks; i++)
        output_write(o, &o->block[i]);
    output_close(o);
    return o->status;
}

void clv_output_free(clv_output *o)
{
    for (size_t i = 0; i < o->blocks; i++)
        free((void *)(uintptr_t)o->block[i].data);
    free(o->block);
    free(o->tensors);
    *o = (clv_output){0};
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

static void write_entry(clv_output *o, clv_gather *g, const clv_catalog *catalog, const clv_entry *e)
{
    const int owner = clv_catalog_owner(catalog, e->file);
    const bool mine = owner == clv_comm_rank(g->world);
    const int64_t step = CLV_MIN(clv_entry_rows_per_piece(e), e->dim[0]);
    const size_t slot = (size_t)(e - catalog->entry) - first_of(catalog, e->file);
    float *block = mine ? clv_alloc((size_t)(step * e->dim[1]), sizeof *block) : NULL;
    clv_gather_begin(g, e);
    for (int64_t row = 0; row < e->dim[0]; row += step) {
        const int64_t rows[2] = {row, CLV_MIN(step, e->dim[0] - row)};
        const size_t width = (size_t)e->dim[1] * clv_dtype_size(e->dtype);
        clv_gather_rows(g, e, owner, rows, block);
        if (mine)
            narrow(g->cx, e->dtype, block, rows[1] * e->dim[1]);
        if (mine)
            output_put(o, slot, (uint64_t)row * width, block, (size_t)rows[1] * width);
    }
    clv_gather_end(g);
    free(block);
}

clv_status clv_catalog_write(const clv_catalog *catalog, clv_gather *g, const char *folder, const clv_disk *disk,
                             clv_output *later)
{
    clv_output o = {.disk = disk, .later = later != NULL, .status = clv_ok()};
    for (int f = 0; f < catalog->files; f++)
        if (clv_catalog_owner(catalog, f) == clv_comm_rank(g->world))
            output_open(&o, catalog, f, folder);
    for (size_t k = 0, wrote = 0; wrote < catalog->count; k++) {
        for (int f = 0; f < catalog->files; f++) {
            const size_t at = first_of(catalog, f) + k;
            if (at >= first_of(catalog, f + 1))
                continue;
            write_entry(&o, g, catalog, &catalog->entry[at]);
            wrote++;
        }
    }
    if (later != NULL) {
        *later = o;
        return clv_ok();
    }
    output_close(&o);
    const clv_status status = o.status;
    clv_output_free(&o);
    return status;
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
