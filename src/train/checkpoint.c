/* checkpoint.c - a checkpoint is a Hugging Face folder; with training/ beside the weights, a run can go on from it.
 *
 *   ROOT/iter_0000100/            config.json, generation_config.json, model*.safetensors, tokenizer files
 *   ROOT/iter_0000100/training/   optimizer*.safetensors, state.json, checksums.json
 *   ROOT/latest                   the name of the newest complete one
 *
 * Order of a save: everything into iter_0000100.tmp, every file and folder synced; all ranks agree; the folder gets its
 * name; ROOT synced; `latest` replaced; ROOT synced; then older ones are removed. Whatever ends in .tmp was never
 * complete, or is no more: the next save removes it.
 *
 * In the background the order is the same: each rank copies what it holds, the copies travel to their owners between
 * the iterations that follow, a thread of each rank writes and syncs what arrived, and when all have agreed that this
 * is done a thread of rank 0 publishes, and removes what is too old.
 */
#include "train/checkpoint_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* What an interrupted save leaves: iter_N.tmp, and latest.tmp.PID. */
static bool is_leftover(const char *name)
{
    return (strncmp(name, "iter_", 5) == 0 && clv_ends_with(name, CLV_TEMPORARY)) ||
           strncmp(name, "latest.tmp.", 11) == 0;
}

struct clv_saving {
    clv_checkpoint c; /* with copies of what the run goes on to change */
    clv_progress progress;
    clv_optimizer optimizer;
    clv_disk disk;
    clv_comm *world;
    char root[CLV_PATH], name[32];
    char temporary[CLV_PATH], final[CLV_PATH];
    int64_t keep_last;
    clv_config config;            /* with the model_type that config.json will state */
    clv_catalog weights, moments; /* moments.count 0: none */
    bool later;                   /* the thread writes the tensors, from memory */
    clv_output weights_out, moments_out;
    clv_gather gather; /* while something travels */
    clv_walk *weights_walks, *moments_walks;
    int64_t rounds, done; /* of the exchange */
    clv_text sums;        /* of the files that this rank wrote, as members of one object */
    clv_status status;    /* of this rank */
    clv_task *behind;     /* the part that is under way */
    bool finishing;       /* and it is the last one */
};
typedef struct clv_saving save;

static bool is_writer(const save *s)
{
    return clv_comm_rank(s->world) == 0;
}

/* Rank 0, in root: what crashes left goes, and there is room. */
static clv_status remove_leftovers(const save *s)
{
    char **names, path[CLV_PATH];
    const size_t count = clv_names_list(s->root, is_leftover, &names);
    clv_status status = clv_ok();
    for (size_t i = 0; i < count && status.code == CLV_OK; i++) {
        clv_path_join(path, sizeof path, s->root, names[i]);
        clv_log(CLV_LOG_WARN, "removing %s, which an interrupted save left", path);
        status = clv_disk_remove(&s->disk, path);
    }
    clv_names_free(names, count);
    return status;
}

static clv_status prepare(const save *s)
{
    char training[CLV_PATH];
    CLV_TRY(clv_disk_make(&s->disk, s->root));
    CLV_TRY(remove_leftovers(s));
    CLV_TRY(clv_disk_room(s->root, s->weights.bytes + s->moments.bytes + (1 << 20)));
    clv_path_join(training, sizeof training, s->temporary, s->c.progress != NULL ? "training" : "");
    return clv_disk_make(&s->disk, training);
}

static const char *const tokenizer_files[] = {"tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt",
                                              "special_tokens_map.json"};

/* Of a folder its tokenizer files; a file is a tokenizer.json whatever its name, or the vocab.json of a folder. */
static clv_status copy_tokenizer(const save *s)
{
    const char *path = s->c.tokenizer, *end = strrchr(path, '/');
    char folder[CLV_PATH], from[CLV_PATH], to[CLV_PATH];
    struct stat info;
    const bool is_file = stat(path, &info) == 0 && S_ISREG(info.st_mode);
    snprintf(folder, sizeof folder, "%s", path);
    if (is_file && strcmp(end == NULL ? path : end + 1, "vocab.json") != 0) {
        clv_path_join(to, sizeof to, s->temporary, "tokenizer.json");
        return clv_disk_copy(&s->disk, path, to);
    }
    if (is_file)
        snprintf(folder, sizeof folder, "%.*s", end == NULL ? 1 : (int)(end - path), end == NULL ? "." : path);
    for (size_t i = 0; i < CLV_COUNT(tokenizer_files); i++) {
        clv_path_join(from, sizeof from, folder, tokenizer_files[i]);
        clv_path_join(to, sizeof to, s->temporary, tokenizer_files[i]);
        CLV_TRY(clv_disk_copy(&s->disk, from, to));
    }
    return clv_ok();
}

static clv_status write_small_files(const save *s)
{
    const clv_checkpoint *c = &s->c;
    CLV_TRY(clv_disk_permit(&s->disk, "write", "config.json"));
    CLV_TRY(clv_hf_config_write(&s->config, s->temporary, c->params[0].w.dtype));
    CLV_TRY(clv_catalog_write_index(&s->weights, s->temporary, &s->disk));
    if (c->tokenizer != NULL)
        CLV_TRY(copy_tokenizer(s));
    return c->progress != NULL ? clv_state_write(c, s->temporary, s->moments.files, &s->disk) : clv_ok();
}

static void sum_shards(const save *s, const clv_catalog *catalog, clv_text *out, clv_status *status)
{
    for (int f = 0; f < catalog->files; f++) {
        char path[CLV_PATH];
        if (clv_catalog_owner(catalog, f) != clv_comm_rank(s->world))
            continue;
        clv_catalog_path(catalog, f, s->temporary, path);
        clv_sums_add(out, status, s->temporary, path + strlen(s->temporary) + 1);
    }
}

static void sum_image(save *s, const clv_output *o)
{
    if (o->image != NULL)
        clv_sums_add_image(&s->sums, o->path + strlen(s->temporary) + 1, o->image, o->size);
}

static clv_status find_sums(save *s)
{
    static const char *const others[] = {"config.json", "generation_config.json", "model.safetensors.index.json",
                                         "training/state.json"};
    clv_status status = clv_ok();
    if (!s->later) {
        sum_shards(s, &s->weights, &s->sums, &status);
        sum_shards(s, &s->moments, &s->sums, &status);
    }
    for (size_t i = 0; is_writer(s) && i < CLV_COUNT(others); i++)
        clv_sums_add(&s->sums, &status, s->temporary, others[i]);
    for (size_t i = 0; is_writer(s) && i < CLV_COUNT(tokenizer_files); i++)
        clv_sums_add(&s->sums, &status, s->temporary, tokenizer_files[i]);
    return status;
}

/* Rank 0: the complete folder gets its name, then `latest` names it. */
static clv_status publish(const save *s)
{
    char path[CLV_PATH], line[40];
    bool swapped;
    snprintf(line, sizeof line, "%s\n", s->name);
    if (s->c.progress != NULL) {
        clv_path_join(path, sizeof path, s->temporary, "training");
        CLV_TRY(clv_disk_sync(&s->disk, path));
    }
    CLV_TRY(clv_disk_sync(&s->disk, s->temporary));
    CLV_TRY(clv_disk_swap(&s->disk, s->temporary, s->final, &swapped));
    CLV_TRY(clv_disk_sync(&s->disk, s->root));
    clv_path_join(path, sizeof path, s->root, "latest");
    CLV_TRY(clv_disk_write(&s->disk, path, line, strlen(line)));
    CLV_TRY(clv_disk_sync(&s->disk, s->root));
    return swapped ? clv_disk_remove(&s->disk, s->temporary) : clv_ok();
}

static int newest_first(const void *a, const void *b)
{
    const int64_t x = clv_checkpoint_iteration(*(char *const *)a), y = clv_checkpoint_iteration(*(char *const *)b);
    return (x < y) - (x > y);
}

/* A folder loses its name first: a half-removed one must not look complete. */
static clv_status retire(const save *s, const char *name)
{
    char from[CLV_PATH], to[CLV_PATH], temporary[64];
    bool swapped;
    snprintf(temporary, sizeof temporary, "%.40s%s", name, CLV_TEMPORARY);
    clv_path_join(from, sizeof from, s->root, name);
    clv_path_join(to, sizeof to, s->root, temporary);
    CLV_TRY(clv_disk_swap(&s->disk, from, to, &swapped));
    return clv_disk_remove(&s->disk, to);
}

/* Of those older than the one just saved, the newest keep_last - 1 stay, and multiples of keep_every. The save itself
 * is done: trouble is only told. */
static void prune(const save *s)
{
    if (s->keep_last == 0)
        return;
    char **names;
    const size_t count = clv_names_list(s->root, clv_checkpoint_is_name, &names);
    const int64_t saved = clv_checkpoint_iteration(s->name);
    int64_t kept = 1;
    if (count > 0)
        qsort(names, count, sizeof *names, newest_first);
    for (size_t i = 0; i < count; i++) {
        const int64_t at = clv_checkpoint_iteration(names[i]);
        if (at >= saved || kept++ < s->keep_last || (s->c.keep_every > 0 && at % s->c.keep_every == 0))
            continue;
        const clv_status status = retire(s, names[i]);
        if (status.code != CLV_OK)
            clv_log(CLV_LOG_WARN, "an old checkpoint stays: %s", status.text);
    }
    clv_names_free(names, count);
}

/* ---- the parts of a save ----
 *
 * gather, the exchange and join communicate, and belong to the run's own thread; work and finish do not, and may have
 * one of their own. */

static clv_status reserve(const save *s, clv_room *room, const clv_gather *g)
{
    const clv_output *const outputs[] = {&s->weights_out, &s->moments_out};
    const size_t kept = clv_catalog_kept_bytes(&s->weights, g) + clv_catalog_kept_bytes(&s->moments, g);
    return clv_room_reserve(room, outputs, CLV_COUNT(outputs), kept);
}

/* Tensors into files, at once. */
static void gather_now(save *s)
{
    s->status = clv_catalog_write(&s->weights, &s->gather, &s->weights_out);
    const clv_status moments = clv_catalog_write(&s->moments, &s->gather, &s->moments_out);
    s->status = s->status.code != CLV_OK ? s->status : moments;
    clv_gather_close(&s->gather);
}

/* Into memory; some have yet to travel. */
static void gather_first(save *s)
{
    clv_output_place(&s->weights_out, s->c.room);
    clv_output_place(&s->moments_out, s->c.room);
    clv_catalog_take(&s->weights, &s->gather, &s->weights_out);
    clv_catalog_take(&s->moments, &s->gather, &s->moments_out);
    s->weights_walks = clv_catalog_walks(&s->weights);
    s->moments_walks = clv_catalog_walks(&s->moments);
    s->rounds = clv_catalog_rounds(&s->weights) + clv_catalog_rounds(&s->moments);
    s->status = s->weights_out.status.code != CLV_OK ? s->weights_out.status : s->moments_out.status;
}

static void gather_open(save *s, clv_room *room)
{
    clv_gather_open(&s->gather, s->c.cx, s->c.params, s->c.param_count, room);
    clv_gather_survey(&s->gather, &s->weights);
    clv_gather_survey(&s->gather, &s->moments);
}

static clv_status gather(save *s)
{
    gather_open(s, s->c.room);
    clv_status ready = is_writer(s) ? prepare(s) : clv_ok();
    if (s->later && ready.code == CLV_OK)
        ready = reserve(s, s->c.room, &s->gather);
    ready = clv_comm_agree(s->world, ready);
    if (ready.code != CLV_OK) {
        clv_gather_close(&s->gather);
        return ready;
    }
    if (s->later)
        gather_first(s);
    else
        gather_now(s);
    return clv_ok();
}

static void work(void *saving)
{
    save *s = saving;
    sum_image(s, &s->weights_out);
    if (s->status.code == CLV_OK)
        s->status = clv_output_write(&s->weights_out);
    sum_image(s, &s->moments_out);
    if (s->status.code == CLV_OK)
        s->status = clv_output_write(&s->moments_out);
    if (s->status.code == CLV_OK && is_writer(s))
        s->status = write_small_files(s);
    if (s->status.code == CLV_OK && s->c.progress != NULL)
        s->status = find_sums(s);
}

/* All ranks have worked, and all well: rank 0 may finish. */
static clv_status join(save *s)
{
    CLV_TRY(clv_comm_agree(s->world, s->status));
    if (s->c.progress != NULL)
        clv_sums_join(s->world, &s->sums);
    return clv_ok();
}

static void finish(void *saving)
{
    save *s = saving;
    if (!is_writer(s))
        return;
    if (s->c.progress != NULL)
        s->status = clv_sums_write(&s->sums, s->temporary, &s->disk);
    if (s->status.code == CLV_OK)
        s->status = publish(s);
    if (s->status.code == CLV_OK)
        prune(s);
}

static clv_status saving_open(save **out, const clv_checkpoint *c, const char *root, const clv_disk *disk)
{
    if (strlen(root) + 256 > CLV_PATH)
        return clv_fail(CLV_BAD_INPUT, "path too long: %.200s", root);
    save *s = *out = clv_alloc(1, sizeof *s);
    s->c = *c;
    s->disk = *disk;
    s->world = clv_mesh_world(c->cx->mesh);
    s->config = *c->config;
    s->status = clv_ok();
    snprintf(s->root, sizeof s->root, "%s", root);
    snprintf(s->config.model_type, sizeof s->config.model_type, "%s", clv_hf_family_of(c->config));
    snprintf(s->name, sizeof s->name, "iter_%07lld", (long long)(c->progress != NULL ? c->progress->iteration : 0));
    clv_path_join(s->final, sizeof s->final, root, s->name);
    snprintf(s->temporary, sizeof s->temporary, "%.*s%s", CLV_PATH - 8, s->final, CLV_TEMPORARY);
    const int ranks = clv_comm_size(s->world), rank = clv_comm_rank(s->world);
    s->weights = clv_catalog_weights(c, &s->config);
    clv_catalog_spread(&s->weights, ranks, disk->shard);
    clv_output_open(&s->weights_out, &s->weights, rank, s->temporary, &s->disk);
    if (c->optimizer != NULL && c->progress != NULL) {
        s->moments = clv_catalog_moments(c);
        if (clv_checkpoint_has_masters(c))
            clv_catalog_masters(&s->moments, c, true);
        clv_catalog_spread(&s->moments, ranks, disk->shard);
        clv_output_open(&s->moments_out, &s->moments, rank, s->temporary, &s->disk);
        s->optimizer = *c->optimizer;
        s->c.optimizer = &s->optimizer;
    }
    if (c->progress != NULL) {
        s->progress = *c->progress;
        s->c.progress = &s->progress;
    }
    return clv_ok();
}

static clv_status saving_close(save *s, clv_status status)
{
    const clv_status told = clv_within(status, "saving %s", s->final);
    clv_output_close(&s->weights_out);
    clv_output_close(&s->moments_out);
    clv_catalog_free(&s->weights);
    clv_catalog_free(&s->moments);
    clv_text_free(&s->sums);
    free(s->weights_walks);
    free(s->moments_walks);
    free(s);
    return told;
}

clv_status clv_checkpoint_save_on(const clv_checkpoint *c, const char *root, int64_t keep_last, const clv_disk *disk)
{
    save *s;
    CLV_TRY(saving_open(&s, c, root, disk));
    s->keep_last = keep_last;
    clv_status status = gather(s);
    if (status.code == CLV_OK) {
        work(s);
        status = join(s);
    }
    if (status.code == CLV_OK) {
        finish(s);
        status = clv_comm_agree(s->world, s->status);
    }
    return saving_close(s, status);
}

clv_status clv_checkpoint_save(const clv_checkpoint *c, const char *root, int64_t keep_last)
{
    return clv_checkpoint_save_on(c, root, keep_last, &(clv_disk){.shard = CLV_SHARD});
}

/* ---- in the background ---- */

clv_status clv_room_open(clv_room **out, const clv_checkpoint *c)
{
    save *s;
    CLV_TRY(saving_open(&s, c, "", &(clv_disk){.shard = CLV_SHARD}));
    *out = clv_alloc(1, sizeof **out);
    gather_open(s, *out);
    const clv_status status = clv_comm_agree(s->world, reserve(s, *out, &s->gather));
    clv_gather_close(&s->gather);
    saving_close(s, clv_ok());
    return status;
}

/* When all is here the thread takes over. */
static void exchange_round(save *s)
{
    if (clv_catalog_has_more(&s->weights, s->weights_walks))
        clv_catalog_round(&s->weights, &s->gather, &s->weights_out, s->weights_walks);
    else
        clv_catalog_round(&s->moments, &s->gather, &s->moments_out, s->moments_walks);
    s->done++;
    if (clv_catalog_has_more(&s->weights, s->weights_walks) || clv_catalog_has_more(&s->moments, s->moments_walks))
        return;
    clv_gather_close(&s->gather);
    s->behind = clv_task_start(work, s);
}

clv_status clv_checkpoint_begin_on(clv_saving **out, const clv_checkpoint *c, const char *root, int64_t keep_last,
                                   const clv_disk *disk)
{
    save *s;
    *out = NULL;
    CLV_TRY(saving_open(&s, c, root, disk));
    s->keep_last = keep_last;
    s->later = true;
    const clv_status status = gather(s);
    if (status.code != CLV_OK)
        return saving_close(s, status);
    *out = s;
    return clv_ok();
}

clv_status clv_checkpoint_begin(clv_saving **out, const clv_checkpoint *c, const char *root, int64_t keep_last)
{
    return clv_checkpoint_begin_on(out, c, root, keep_last, &(clv_disk){.shard = CLV_SHARD});
}

void clv_checkpoint_advance(clv_saving *saving, double seconds, double part)
{
    const double start = clv_seconds();
    bool on = true;
    while (saving->behind == NULL && on) {
        exchange_round(saving);
        on = (double)saving->done < part * (double)saving->rounds ||
             clv_comm_decide(saving->world, clv_seconds() - start < seconds ? 1.0 : 0.0) > 0.0;
    }
}

bool clv_checkpoint_waits(const clv_saving *saving)
{
    return saving->behind != NULL && clv_task_is_done(saving->behind);
}

clv_status clv_checkpoint_go_on(clv_saving **saving)
{
    save *s = *saving;
    clv_task_end(s->behind);
    const clv_status status = s->finishing ? clv_comm_agree(s->world, s->status) : join(s);
    if (status.code != CLV_OK || s->finishing) {
        *saving = NULL;
        return saving_close(s, status);
    }
    s->finishing = true;
    s->behind = clv_task_start(finish, s);
    return clv_ok();
}

clv_status clv_checkpoint_end(clv_saving **saving)
{
    while ((*saving)->behind == NULL)
        exchange_round(*saving);
    while (*saving != NULL)
        CLV_TRY(clv_checkpoint_go_on(saving));
    return clv_ok();
}
