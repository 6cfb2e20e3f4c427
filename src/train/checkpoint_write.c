/* checkpoint_write.c - a catalog's tensors into their files, each file by one rank.
 *
 * The files advance together (the first tensor of each, the second of each, ...; in the background the first block of
 * each, ...), so that owners write side by side. All ranks keep this order, and leave out what does not concern them.
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

/* Bytes of a tensor from `offset` on; in an image they stand already. */
static void output_put(clv_output *o, size_t slot, uint64_t offset, const void *data, size_t bytes)
{
    if (o->image != NULL)
        return;
    if (o->status.code == CLV_OK)
        o->status = clv_disk_permit(o->disk, "write", o->path);
    if (o->status.code == CLV_OK)
        o->status = clv_st_writer_put(o->writer, slot, offset, data, bytes);
}

/* Where the owner collects rows: in the image itself, if there is one. */
static void *rows_place(const clv_output *o, clv_gather *g, size_t slot, size_t offset, size_t bytes)
{
    return o->image != NULL ? o->image + o->at[slot] + offset : clv_buffer_take(&g->room->block, bytes);
}

/* Rows of a tensor, at most `most` of them. */
static void write_rows(clv_output *o, clv_gather *g, const clv_catalog *catalog, const clv_entry *e, int64_t row,
                       int64_t most)
{
    const int owner = clv_catalog_owner(catalog, e->file);
    const int64_t rows[2] = {row, CLV_MIN(most, e->dim[0] - row)};
    const size_t slot = (size_t)(e - catalog->entry) - first_of(catalog, e->file);
    const size_t width = (size_t)e->dim[1] * clv_dtype_size(e->dtype), bytes = (size_t)rows[1] * width;
    const bool mine = owner == clv_comm_rank(g->world);
    void *place = mine ? rows_place(o, g, slot, (size_t)row * width, bytes) : NULL;
    clv_gather_rows(g, e, owner, rows, place);
    if (mine)
        output_put(o, slot, (uint64_t)row * width, place, bytes);
}

/* ---- the walk ---- */

clv_walk *clv_catalog_walks(const clv_catalog *catalog)
{
    clv_walk *walks = clv_alloc((size_t)catalog->files, sizeof *walks);
    for (size_t i = 0; i < catalog->count; i++) {
        clv_walk *walk = &walks[catalog->entry[i].file];
        walk->at = walk->end == 0 ? i : walk->at;
        walk->end = i + 1;
    }
    return walks;
}

/* The entry at which a walk stands; NULL at the end. */
static const clv_entry *entry_of(const clv_catalog *catalog, clv_walk *walk)
{
    while (walk->at < walk->end && catalog->entry[walk->at].done)
        walk->at++;
    return walk->at < walk->end ? &catalog->entry[walk->at] : NULL;
}

static bool concerns(const clv_catalog *catalog, const clv_gather *g, const clv_entry *e)
{
    return e->sends || clv_catalog_owner(catalog, e->file) == clv_comm_rank(g->world);
}

static void write_entry(const clv_catalog *catalog, clv_gather *g, clv_output *o, const clv_entry *e)
{
    const int64_t most = clv_entry_rows_in(e, CLV_PIECE_BYTES);
    clv_gather_begin(g, e, clv_catalog_owner(catalog, e->file));
    for (int64_t row = 0; row < e->dim[0]; row += most)
        write_rows(o, g, catalog, e, row, most);
}

bool clv_catalog_has_more(const clv_catalog *catalog, clv_walk *walks)
{
    bool more = false;
    for (int f = 0; f < catalog->files; f++)
        more = more || entry_of(catalog, &walks[f]) != NULL;
    return more;
}

clv_status clv_catalog_write(const clv_catalog *catalog, clv_gather *g, clv_output *o)
{
    clv_walk *walks = clv_catalog_walks(catalog);
    if (o->tensors != NULL && o->status.code == CLV_OK)
        file_create(o);
    while (clv_catalog_has_more(catalog, walks))
        for (int f = 0; f < catalog->files; f++) {
            const clv_entry *e = entry_of(catalog, &walks[f]);
            if (e != NULL && concerns(catalog, g, e))
                write_entry(catalog, g, o, e);
            walks[f].at++;
        }
    if (o->tensors != NULL)
        file_close(o);
    free(walks);
    return o->status;
}

void clv_catalog_take(clv_catalog *catalog, clv_gather *g, clv_output *o)
{
    for (size_t i = 0; i < catalog->count; i++) {
        clv_entry *e = &catalog->entry[i];
        const int owner = clv_catalog_owner(catalog, e->file);
        if (e->straight && owner == clv_comm_rank(g->world))
            write_entry(catalog, g, o, e);
        if (!e->straight)
            clv_gather_keep(g, e, owner);
        e->done = e->straight;
    }
}

static int64_t rounds_of(const clv_entry *e)
{
    return e->done ? 0 : CLV_CEIL_DIV(e->dim[0], clv_entry_rows_in(e, CLV_ROUND_BYTES));
}

int64_t clv_catalog_rounds(const clv_catalog *catalog)
{
    int64_t most = 0, sum = 0;
    for (size_t i = 0; i < catalog->count; i++) {
        const bool first = i == 0 || catalog->entry[i].file != catalog->entry[i - 1].file;
        sum = (first ? 0 : sum) + rounds_of(&catalog->entry[i]);
        most = CLV_MAX(most, sum);
    }
    return most;
}

void clv_catalog_round(const clv_catalog *catalog, clv_gather *g, clv_output *o, clv_walk *walks)
{
    for (int f = 0; f < catalog->files; f++) {
        clv_walk *walk = &walks[f];
        const clv_entry *e = entry_of(catalog, walk);
        if (e == NULL)
            continue;
        const int64_t most = clv_entry_rows_in(e, CLV_ROUND_BYTES);
        if (concerns(catalog, g, e))
            write_rows(o, g, catalog, e, walk->row, most);
        walk->row += most;
        if (walk->row >= e->dim[0])
            *walk = (clv_walk){.at = walk->at + 1, .end = walk->end};
    }
}

size_t clv_catalog_kept_bytes(const clv_catalog *catalog, const clv_gather *g)
{
    size_t bytes = 0;
    for (size_t i = 0; i < catalog->count; i++) {
        const clv_entry *e = &catalog->entry[i];
        if (!e->straight)
            bytes += clv_gather_kept_bytes(g, e, clv_catalog_owner(catalog, e->file));
    }
    return bytes;
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
