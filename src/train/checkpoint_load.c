/* checkpoint_load.c - every rank reads the boxes that it holds, whatever layout wrote them (checkpoint_read.c).
 *
 * Names come from the folder's own config.json. Each tensor of the files must find its place or be a buffer that the
 * family ignores, and each parameter must find its tensor, so that nothing is left as it was initialized. A tied
 * model's file may carry the head once more if it is equal.
 *
 * No rank waits for another until the end, where they agree.
 */
#include "train/checkpoint_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct source { /* a catalog's files, opened */
    clv_safetensors **st;
    int count;
    clv_found *found; /* of each entry */
} source;

static const char head_name[] = "lm_head.weight";

static void source_close(source *s)
{
    for (int i = 0; i < s->count; i++)
        clv_safetensors_close(s->st[i]);
    free(s->st);
    free(s->found);
}

/* ---- a tensor for every parameter, a parameter for every tensor ---- */

static void shape_text(char *out, size_t size, int ndim, const int64_t *dim)
{
    int used = snprintf(out, size, "[");
    for (int i = 0; i < ndim && (size_t)used < size; i++)
        used += snprintf(out + used, size - (size_t)used, "%s%lld", i > 0 ? "," : "", (long long)dim[i]);
    if ((size_t)used < size)
        snprintf(out + used, size - (size_t)used, "]");
}

static clv_status check_tensor(const clv_entry *e, const clv_st_tensor *t)
{
    char has[128], needs[128];
    bool same = t->ndim == e->ndim;
    for (int i = 0; same && i < e->ndim; i++)
        same = t->dim[i] == e->dim[i];
    shape_text(has, sizeof has, t->ndim, t->dim);
    shape_text(needs, sizeof needs, e->ndim, e->dim);
    if (!same)
        return clv_fail(CLV_BAD_INPUT, "tensor %s has the shape %s, the model needs %s", e->name, has, needs);
    if (!clv_is_weight_type(t->dtype))
        return clv_fail(CLV_BAD_INPUT, "tensor %s is of type %s; F32, BF16, F16 or F64 was expected", e->name, t->kind);
    return clv_ok();
}

/* A list of names for a message: the first few, and how many more. */
typedef struct name_list {
    char text[400];
    int used, count;
} name_list;

static void name_list_add(name_list *list, const char *name)
{
    if (list->count++ < 4)
        list->used += snprintf(list->text + list->used, sizeof list->text - (size_t)list->used, "%s%.80s",
                               list->used > 0 ? ", " : "", name);
    else
        snprintf(list->text + list->used, sizeof list->text - (size_t)list->used, " and %d more", list->count - 4);
}

static clv_status match_tensor(source *s, const clv_catalog *catalog, int file, const clv_st_tensor *t,
                               const clv_config *names, name_list *unknown)
{
    const char *name = names != NULL ? clv_family_strip(names, t->name) : t->name;
    const clv_entry *e = clv_catalog_find(catalog, name);
    if (e == NULL) {
        if (names == NULL || (!clv_family_ignores(names, name) && strcmp(name, head_name) != 0))
            name_list_add(unknown, t->name);
        return clv_ok();
    }
    const size_t at = (size_t)(e - catalog->entry);
    if (s->found[at].tensor != NULL)
        return clv_fail(CLV_BAD_INPUT, "tensor %s is there twice, also as %s", t->name, s->found[at].tensor->name);
    s->found[at] = (clv_found){s->st[file], t};
    return check_tensor(e, t);
}

static clv_status match(source *s, const clv_catalog *catalog, const clv_config *names)
{
    name_list unknown = {.used = 0}, missing = {.used = 0};
    s->found = clv_alloc(catalog->count, sizeof *s->found);
    for (int f = 0; f < s->count; f++)
        for (size_t i = 0; i < clv_safetensors_count(s->st[f]); i++)
            CLV_TRY(match_tensor(s, catalog, f, clv_safetensors_at(s->st[f], i), names, &unknown));
    for (size_t i = 0; i < catalog->count; i++)
        if (s->found[i].tensor == NULL)
            name_list_add(&missing, catalog->entry[i].name);
    if (missing.count > 0 && unknown.count > 0)
        return clv_fail(CLV_BAD_INPUT, "no tensor for %s; no place in the model for %s", missing.text, unknown.text);
    if (missing.count > 0)
        return clv_fail(CLV_BAD_INPUT, "no tensor for %s%s", missing.text,
                        strstr(missing.text, head_name) != NULL
                            ? "; if the head is the word embedding, config.json must say \"tie_word_embeddings\": true"
                            : "");
    if (unknown.count > 0)
        return clv_fail(CLV_BAD_INPUT, "the model has no place for %s", unknown.text);
    return clv_ok();
}

/* ---- a head beside a tied embedding ---- */

typedef struct spare { /* a piece of both, as in the files and as numbers */
    clv_found from[2];
    void *raw;
    float *number[2];
} spare;

static clv_status compare(const spare *sp, const clv_entry *e, clv_extent elements)
{
    for (int i = 0; i < 2; i++) {
        CLV_TRY(clv_weights_read(&sp->from[i], elements, sp->raw));
        clv_weights_convert(sp->number[i], sp->raw, elements.count, sp->from[i].tensor->dtype);
    }
    for (int64_t i = 0; i < elements.count; i++)
        if (memcmp(&sp->number[0][i], &sp->number[1][i], sizeof(float)) != 0)
            return clv_fail(CLV_BAD_INPUT,
                            "the model is tied, but %s differs from %s in row %lld (%g and %g); set "
                            "\"tie_word_embeddings\": false in config.json to use both",
                            head_name, e->name, (long long)((elements.first + i) / e->dim[1]), (double)sp->number[0][i],
                            (double)sp->number[1][i]);
    return clv_ok();
}

static clv_status compare_all(spare *sp, const clv_entry *e)
{
    enum { PIECE = 1 << 18 };
    const int64_t n = e->dim[0] * e->dim[1];
    clv_status status = clv_ok();
    sp->raw = clv_alloc(PIECE, sizeof(double));
    for (int i = 0; i < 2; i++)
        sp->number[i] = clv_alloc(PIECE, sizeof(float));
    for (int64_t at = 0; at < n && status.code == CLV_OK; at += PIECE)
        status = compare(sp, e, (clv_extent){at, CLV_MIN(PIECE, n - at)});
    for (int i = 0; i < 2; i++)
        free(sp->number[i]);
    free(sp->raw);
    return status;
}

/* Rank 0 alone compares, before weights are read. */
static clv_status check_spare_head(const source *s, const clv_catalog *catalog, const clv_mesh *mesh)
{
    const clv_st_tensor *head = clv_safetensors_find(s->st[0], head_name);
    const clv_entry *e = catalog->entry;
    while (e < catalog->entry + catalog->count && !e->piece[0].param->tied)
        e++;
    if (head == NULL || clv_catalog_find(catalog, head_name) != NULL || e == catalog->entry + catalog->count ||
        clv_comm_rank(clv_mesh_world(mesh)) > 0)
        return clv_ok();
    clv_entry like = *e;
    snprintf(like.name, sizeof like.name, "%s", head_name);
    CLV_TRY(check_tensor(&like, head));
    spare sp = {.from = {{s->st[0], head}, s->found[e - catalog->entry]}};
    return compare_all(&sp, e);
}

/* ---- the whole ---- */

static clv_status fill(clv_ctx *cx, source *s, const clv_catalog *catalog, const clv_config *names)
{
    CLV_TRY(match(s, catalog, names));
    if (names != NULL)
        CLV_TRY(check_spare_head(s, catalog, cx->mesh));
    return clv_catalog_read(cx, catalog, s->found);
}

static clv_status load_weights(const clv_checkpoint *c, const char *folder)
{
    clv_config names;
    CLV_TRY(clv_hf_config_read(&names, folder));
    clv_catalog catalog = clv_catalog_weights(c, &names);
    source s = {.st = clv_alloc(1, sizeof *s.st)};
    clv_status status = clv_safetensors_open(&s.st[0], folder);
    s.count = status.code == CLV_OK;
    if (status.code == CLV_OK)
        status = clv_within(fill(c->cx, &s, &catalog, &names), "%s", folder);
    source_close(&s);
    clv_catalog_free(&catalog);
    return status;
}

static bool holds_masters(const source *s, const clv_checkpoint *c)
{
    char name[CLV_ENTRY_NAME];
    snprintf(name, sizeof name, "fp32_param.%s", c->params[0].name);
    bool found = false;
    for (int i = 0; i < s->count; i++)
        found = found || clv_safetensors_find(s->st[i], name) != NULL;
    return found;
}

static clv_status load_moments(const clv_checkpoint *c, const char *folder, int files)
{
    char path[CLV_PATH];
    if (files == 0)
        return clv_fail(CLV_BAD_INPUT,
                        "%s holds no optimizer state; resume it with --no-load-optim, or take its weights with "
                        "--finetune",
                        folder);
    clv_catalog catalog = clv_catalog_moments(c);
    catalog.files = files;
    source s = {.st = clv_alloc((size_t)files, sizeof *s.st)};
    clv_status status = clv_ok();
    while (s.count < files && status.code == CLV_OK) {
        clv_catalog_path(&catalog, s.count, folder, path);
        status = clv_safetensors_open(&s.st[s.count], path);
        s.count += status.code == CLV_OK;
    }
    if (status.code == CLV_OK && holds_masters(&s, c))
        clv_catalog_masters(&catalog, c, false);
    if (status.code == CLV_OK)
        status = clv_within(fill(c->cx, &s, &catalog, NULL), "%s/training", folder);
    source_close(&s);
    clv_catalog_free(&catalog);
    return status;
}

static clv_status load_here(const clv_checkpoint *c, const char *folder)
{
    int files = 0;
    clv_progress progress = {0};
    if (strlen(folder) + 128 > CLV_PATH)
        return clv_fail(CLV_BAD_INPUT, "path too long: %.200s", folder);
    CLV_TRY(clv_sums_verify(clv_mesh_world(c->cx->mesh), folder, c->optimizer != NULL));
    if (c->optimizer != NULL || c->progress != NULL)
        CLV_TRY(clv_state_read(&progress, &files, folder));
    CLV_TRY(load_weights(c, folder));
    if (c->optimizer != NULL) {
        CLV_TRY(load_moments(c, folder, files));
        c->optimizer->step = progress.optimizer_step;
    }
    if (c->progress != NULL)
        *c->progress = progress;
    return clv_ok();
}

clv_status clv_checkpoint_load(const clv_checkpoint *c, const char *folder)
{
    return clv_comm_agree(clv_mesh_world(c->cx->mesh), load_here(c, folder));
}
