/* checkpoint_catalog.c - which tensors the files of a checkpoint hold, from which parameters, in which file.
 *
 * The weights are a Hugging Face model: names and places come from family.c, and several parameters can lie in one
 * tensor. The moments are the optimizer's, whole tensors under canonical names: "exp_avg.NAME", "exp_avg_sq.NAME", and
 * where weights are 16-bit their masters, "fp32_param.NAME".
 * Nothing here depends on the layout of the ranks except in which file a tensor lies.
 */
#include "op/backend.h"
#include "train/checkpoint_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t entry_bytes(const clv_entry *e)
{
    return e->dim[0] * e->dim[1] * (int64_t)clv_dtype_size(e->dtype);
}

static void entry_add(clv_catalog *catalog, const clv_file_slot *slot, const clv_piece *piece, const char *prefix)
{
    char name[CLV_ENTRY_NAME];
    snprintf(name, sizeof name, "%s%s", prefix, slot->name);
    clv_entry *e = clv_catalog_find(catalog, name);
    if (e == NULL) {
        e = &catalog->entry[catalog->count++];
        *e = (clv_entry){.dim = {slot->dim[0], slot->ndim > 1 ? slot->dim[1] : 1},
                         .ndim = slot->ndim,
                         .dtype = prefix[0] == 0 ? piece->local.dtype : CLV_F32};
        memcpy(e->name, name, sizeof name);
        catalog->bytes += entry_bytes(e);
    }
    CLV_CHECK(e->pieces < CLV_ENTRY_PIECES, "%s: a fourth parameter, %s", name, piece->param->name);
    e->piece[e->pieces++] = *piece;
}

clv_catalog clv_catalog_weights(const clv_checkpoint *c, const clv_config *names)
{
    clv_catalog catalog = {.stem = "model", .entry = clv_alloc(c->param_count, sizeof *catalog.entry)};
    for (size_t i = 0; i < c->param_count; i++) {
        const clv_param *p = &c->params[i];
        const clv_file_slot slot = clv_family_slot(names, p);
        const clv_piece piece = {
            .param = p, .number = i, .local = p->w, .transposed = slot.transposed, .offset = slot.offset};
        entry_add(&catalog, &slot, &piece, "");
    }
    return catalog;
}

/* A tensor of its own under the canonical name. */
static clv_file_slot own_slot(const clv_param *p)
{
    clv_file_slot slot = {.dim = {p->whole[0], p->whole[1]}, .ndim = p->ndim};
    snprintf(slot.name, sizeof slot.name, "%s", p->name);
    return slot;
}

clv_catalog clv_catalog_moments(const clv_checkpoint *c)
{
    clv_catalog catalog = {.stem = "training/optimizer", .entry = clv_alloc(3 * c->param_count, sizeof *catalog.entry)};
    for (size_t i = 0; i < c->param_count; i++) {
        const clv_param *p = &c->params[i];
        const clv_file_slot slot = own_slot(p);
        clv_piece piece = {.param = p, .number = i, .local = c->optimizer->m[i], .own = true};
        entry_add(&catalog, &slot, &piece, "exp_avg.");
        piece.local = c->optimizer->v[i];
        entry_add(&catalog, &slot, &piece, "exp_avg_sq.");
    }
    return catalog;
}

bool clv_checkpoint_has_masters(const clv_checkpoint *c)
{
    return c->param_count > 0 && c->params[0].w.dtype != CLV_F32;
}

void clv_catalog_masters(clv_catalog *catalog, const clv_checkpoint *c, bool saving)
{
    for (size_t i = 0; i < c->param_count; i++) {
        const clv_param *p = &c->params[i];
        const clv_file_slot slot = own_slot(p);
        const clv_piece piece = {.param = p, .number = i, .local = saving ? p->master : p->w, .own = saving};
        entry_add(catalog, &slot, &piece, "fp32_param.");
    }
}

void clv_catalog_free(clv_catalog *catalog)
{
    free(catalog->entry);
    *catalog = (clv_catalog){0};
}

clv_entry *clv_catalog_find(const clv_catalog *catalog, const char *name)
{
    for (size_t i = catalog->count; i-- > 0;) /* the parts of a tensor come one after the other */
        if (strcmp(catalog->entry[i].name, name) == 0)
            return &catalog->entry[i];
    return NULL;
}

void clv_catalog_spread(clv_catalog *catalog, int ranks, int64_t shard)
{
    const int64_t wanted = catalog->bytes < shard ? 1 : CLV_MIN(CLV_CEIL_DIV(catalog->bytes, shard), ranks);
    int64_t before = 0, last = -1;
    catalog->files = 0;
    catalog->ranks = ranks;
    for (size_t i = 0; i < catalog->count; i++) {
        clv_entry *e = &catalog->entry[i];
        const double middle = (double)before + 0.5 * (double)entry_bytes(e);
        const int64_t share = CLV_MIN((int64_t)(middle * (double)wanted / (double)catalog->bytes), wanted - 1);
        catalog->files += share != last; /* a large tensor may skip a share: no file stays empty */
        e->file = catalog->files - 1;
        before += entry_bytes(e);
        last = share;
    }
}

int clv_catalog_owner(const clv_catalog *catalog, int file)
{
    return (int)((int64_t)file * catalog->ranks / catalog->files);
}

void clv_catalog_path(const clv_catalog *catalog, int file, const char *folder, char *out)
{
    char name[96];
    if (catalog->files == 1)
        snprintf(name, sizeof name, "%s.safetensors", catalog->stem);
    else
        snprintf(name, sizeof name, "%s-%05d-of-%05d.safetensors", catalog->stem, file + 1, catalog->files);
    clv_path_join(out, CLV_PATH, folder, name);
}

/* ---- places ---- */

clv_rect clv_piece_rect(const clv_piece *piece, clv_box box)
{
    clv_rect rect = {{box.first[0] + piece->offset, box.first[1]}, {box.count[0], box.count[1]}};
    if (piece->transposed)
        rect = (clv_rect){{rect.at[1], rect.at[0]}, {rect.n[1], rect.n[0]}};
    return rect;
}

enum { STRIPE = 16 }; /* rows that a thread writes at once */

/* Element (i, j) of the rectangle is local element (j, i). Local rows may be more than the rectangle's only where the
 * vocabulary is padded, which adds rows at the end. */
void clv_piece_turn(clv_rect rect, const int64_t rows[2], size_t size, const void *local, void *dense)
{
    const int64_t height = rect.n[0], width = rect.n[1];
#pragma omp parallel for
    for (int64_t i = 0; i < rows[1]; i += STRIPE) {
        const int64_t n = CLV_MIN(STRIPE, rows[1] - i), from = rows[0] + i, to = i * width;
        const uint16_t *halves = (const uint16_t *)local + from;
        if (size == sizeof(float)) {
            clv_transpose((float *)dense + to, width, (const float *)local + from, height, (int64_t[]){width, n});
            continue;
        }
        for (int64_t j = 0; j < width; j++)
            for (int64_t k = 0; k < n; k++)
                ((uint16_t *)dense)[to + k * width + j] = halves[j * height + k];
    }
}
