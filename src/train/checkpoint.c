/* checkpoint.c - a checkpoint is a Hugging Face folder; with training/ beside the weights, a run can go on from it.
 *
 *   ROOT/iter_0000100/            config.json, generation_config.json, model*.safetensors, tokenizer files
 *   ROOT/iter_0000100/training/   optimizer*.safetensors, state.json, checksums.json
 *   ROOT/latest                   the name of the newest complete one
 *
 * Order of a save: everything into iter_0000100.tmp, every file and folder synced; all ranks agree; the folder gets its
 * name; ROOT synced; `latest` replaced; ROOT synced; then older ones are removed. Whatever ends in .tmp was never
 * complete, or is no more: the next save removes it.
 */
#include "train/checkpoint_internal.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char temporary_end[] = ".tmp";

static bool is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static bool ends_with(const char *name, const char *end)
{
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* iter_ and digits; -1 for any other name. */
static int64_t iteration_of(const char *name)
{
    int64_t value;
    const bool is = strncmp(name, "iter_", 5) == 0 && strspn(name + 5, "0123456789") == strlen(name + 5);
    return is && clv_parse_i64(name + 5, &value) ? value : -1;
}

/* What an interrupted save leaves: iter_N.tmp, and latest.tmp.PID. */
static bool is_leftover(const char *name)
{
    return (strncmp(name, "iter_", 5) == 0 && ends_with(name, temporary_end)) || strncmp(name, "latest.tmp.", 11) == 0;
}

/* Names in a folder that `wanted` takes; freed by the caller, each and all. */
static size_t list_names(const char *folder, bool (*wanted)(const char *name), char ***out)
{
    size_t count = 0;
    DIR *dir = opendir(folder);
    *out = NULL;
    for (struct dirent *at = dir != NULL ? readdir(dir) : NULL; at != NULL; at = readdir(dir)) {
        if (!wanted(at->d_name))
            continue;
        *out = clv_resize(*out, count + 1, sizeof **out);
        (*out)[count++] = clv_strdup(at->d_name);
    }
    if (dir != NULL)
        closedir(dir);
    return count;
}

static void free_names(char **names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(names[i]);
    free(names);
}

static bool is_checkpoint_name(const char *name)
{
    return iteration_of(name) >= 0;
}

/* ---- finding ---- */

static clv_status find_latest(const char *root, const char *pointer, char *out)
{
    clv_text name;
    CLV_TRY(clv_file_read(pointer, &name));
    while (name.length > 0 && strchr(" \r\n", name.data[name.length - 1]) != NULL)
        name.data[--name.length] = 0;
    clv_status status = clv_ok();
    if (iteration_of(name.data) < 0 || name.length > 64)
        status = clv_fail(CLV_BAD_INPUT, "%s says \"%.64s\", which is no name of a checkpoint", pointer, name.data);
    else
        clv_path_join(out, CLV_PATH, root, name.data);
    if (status.code == CLV_OK && !is_folder(out))
        status = clv_fail(CLV_BAD_INPUT, "%s names %s, which is not there; give the path of another checkpoint",
                          pointer, name.data);
    clv_text_free(&name);
    return status;
}

static clv_status find_nothing(const char *path)
{
    char **names;
    const size_t count = list_names(path, is_checkpoint_name, &names);
    const clv_status status =
        count > 0 ? clv_fail(CLV_BAD_INPUT, "%s holds %s but no file 'latest'; give the path of the checkpoint itself",
                             path, names[0])
                  : clv_fail(CLV_BAD_INPUT, "%s holds no checkpoint: neither 'latest' nor config.json is there", path);
    free_names(names, count);
    return status;
}

clv_status clv_checkpoint_find(const char *path, char *out, bool *resumable)
{
    char inside[CLV_PATH];
    *resumable = false;
    if (strlen(path) + 128 > CLV_PATH)
        return clv_fail(CLV_BAD_INPUT, "path too long: %.200s", path);
    if (!is_folder(path))
        return clv_fail(CLV_BAD_INPUT, "%s is no folder; a checkpoint or a Hugging Face folder was expected", path);
    if (ends_with(path, temporary_end))
        return clv_fail(CLV_BAD_INPUT, "%s is an unfinished save; take a complete checkpoint", path);
    clv_path_join(inside, sizeof inside, path, "latest");
    if (clv_file_exists(inside))
        CLV_TRY(find_latest(path, inside, out));
    else
        snprintf(out, CLV_PATH, "%s", path);
    clv_path_join(inside, sizeof inside, out, "config.json");
    if (!clv_file_exists(inside))
        return find_nothing(out);
    clv_path_join(inside, sizeof inside, out, "training/state.json");
    *resumable = clv_file_exists(inside);
    return clv_ok();
}

/* ---- saving ---- */

typedef struct save {
    const clv_checkpoint *c;
    const clv_disk *disk;
    clv_comm *world;
    const char *root;
    char name[32];
    char temporary[CLV_PATH], final[CLV_PATH];
    clv_config config;            /* with the model_type that config.json will state */
    clv_catalog weights, moments; /* moments.count 0: none */
} save;

static bool is_writer(const save *s)
{
    return clv_comm_rank(s->world) == 0;
}

/* Rank 0, in root: what crashes left goes, and there is room. */
static clv_status remove_leftovers(const save *s)
{
    char **names, path[CLV_PATH];
    const size_t count = list_names(s->root, is_leftover, &names);
    clv_status status = clv_ok();
    for (size_t i = 0; i < count && status.code == CLV_OK; i++) {
        clv_path_join(path, sizeof path, s->root, names[i]);
        clv_log(CLV_LOG_WARN, "removing %s, which an interrupted save left", path);
        status = clv_disk_remove(s->disk, path);
    }
    free_names(names, count);
    return status;
}

static clv_status prepare(const save *s)
{
    char training[CLV_PATH];
    CLV_TRY(clv_disk_make(s->disk, s->root));
    CLV_TRY(remove_leftovers(s));
    CLV_TRY(clv_disk_room(s->root, s->weights.bytes + s->moments.bytes + (1 << 20)));
    clv_path_join(training, sizeof training, s->temporary, s->c->progress != NULL ? "training" : "");
    return clv_disk_make(s->disk, training);
}

static const char *const tokenizer_files[] = {"tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt",
                                              "special_tokens_map.json"};

/* Of a folder its tokenizer files; a file is a tokenizer.json whatever its name, or the vocab.json of a folder. */
static clv_status copy_tokenizer(const save *s)
{
    const char *path = s->c->tokenizer, *end = strrchr(path, '/');
    char folder[CLV_PATH], from[CLV_PATH], to[CLV_PATH];
    struct stat info;
    const bool is_file = stat(path, &info) == 0 && S_ISREG(info.st_mode);
    snprintf(folder, sizeof folder, "%s", path);
    if (is_file && strcmp(end == NULL ? path : end + 1, "vocab.json") != 0) {
        clv_path_join(to, sizeof to, s->temporary, "tokenizer.json");
        return clv_disk_copy(s->disk, path, to);
    }
    if (is_file)
        snprintf(folder, sizeof folder, "%.*s", end == NULL ? 1 : (int)(end - path), end == NULL ? "." : path);
    for (size_t i = 0; i < CLV_COUNT(tokenizer_files); i++) {
        clv_path_join(from, sizeof from, folder, tokenizer_files[i]);
        clv_path_join(to, sizeof to, s->temporary, tokenizer_files[i]);
        CLV_TRY(clv_disk_copy(s->disk, from, to));
    }
    return clv_ok();
}

static clv_status write_small_files(const save *s)
{
    const clv_checkpoint *c = s->c;
    CLV_TRY(clv_disk_permit(s->disk, "write", "config.json"));
    CLV_TRY(clv_hf_config_write(&s->config, s->temporary, CLV_F32));
    CLV_TRY(clv_catalog_write_index(&s->weights, s->temporary, s->disk));
    if (c->tokenizer != NULL)
        CLV_TRY(copy_tokenizer(s));
    return c->progress != NULL ? clv_state_write(c, s->temporary, s->moments.files, s->disk) : clv_ok();
}

/* Checksums of the files that this rank wrote, as members of one object. */
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

static clv_status write_sums(const save *s)
{
    static const char *const others[] = {"config.json", "generation_config.json", "model.safetensors.index.json",
                                         "training/state.json"};
    clv_text mine = {0};
    clv_status status = clv_ok();
    sum_shards(s, &s->weights, &mine, &status);
    sum_shards(s, &s->moments, &mine, &status);
    for (size_t i = 0; is_writer(s) && i < CLV_COUNT(others); i++)
        clv_sums_add(&mine, &status, s->temporary, others[i]);
    for (size_t i = 0; is_writer(s) && i < CLV_COUNT(tokenizer_files); i++)
        clv_sums_add(&mine, &status, s->temporary, tokenizer_files[i]);
    const clv_status wrote = clv_sums_write(s->world, &mine, s->temporary, s->disk);
    clv_text_free(&mine);
    return status.code != CLV_OK ? status : wrote;
}

static clv_status write_tensors(const save *s)
{
    clv_gather g;
    clv_gather_open(&g, s->c->cx, s->c->params, s->c->param_count);
    clv_status status = clv_catalog_write(&s->weights, &g, s->temporary, s->disk);
    if (s->moments.count > 0) {
        const clv_status moments = clv_catalog_write(&s->moments, &g, s->temporary, s->disk);
        status = status.code != CLV_OK ? status : moments;
    }
    clv_gather_close(&g);
    return status;
}

/* Rank 0: the complete folder gets its name, then `latest` names it. */
static clv_status publish(const save *s)
{
    char path[CLV_PATH], line[40];
    bool swapped;
    snprintf(line, sizeof line, "%s\n", s->name);
    if (s->c->progress != NULL) {
        clv_path_join(path, sizeof path, s->temporary, "training");
        CLV_TRY(clv_disk_sync(s->disk, path));
    }
    CLV_TRY(clv_disk_sync(s->disk, s->temporary));
    CLV_TRY(clv_disk_swap(s->disk, s->temporary, s->final, &swapped));
    CLV_TRY(clv_disk_sync(s->disk, s->root));
    clv_path_join(path, sizeof path, s->root, "latest");
    CLV_TRY(clv_disk_write(s->disk, path, line, strlen(line)));
    CLV_TRY(clv_disk_sync(s->disk, s->root));
    return swapped ? clv_disk_remove(s->disk, s->temporary) : clv_ok();
}

static int newest_first(const void *a, const void *b)
{
    const int64_t x = iteration_of(*(char *const *)a), y = iteration_of(*(char *const *)b);
    return (x < y) - (x > y);
}

/* A folder loses its name first: a half-removed one must not look complete. */
static clv_status retire(const save *s, const char *name)
{
    char from[CLV_PATH], to[CLV_PATH], temporary[64];
    bool swapped;
    snprintf(temporary, sizeof temporary, "%.40s%s", name, temporary_end);
    clv_path_join(from, sizeof from, s->root, name);
    clv_path_join(to, sizeof to, s->root, temporary);
    CLV_TRY(clv_disk_swap(s->disk, from, to, &swapped));
    return clv_disk_remove(s->disk, to);
}

/* Of those older than the one just saved, the newest keep_last - 1 stay. The save itself is done: trouble is only told.
 */
static void prune(const save *s, int64_t keep_last)
{
    char **names;
    const size_t count = list_names(s->root, is_checkpoint_name, &names);
    const int64_t saved = iteration_of(s->name);
    int64_t kept = 1;
    if (count > 0)
        qsort(names, count, sizeof *names, newest_first);
    for (size_t i = 0; i < count; i++) {
        if (iteration_of(names[i]) >= saved || kept++ < keep_last)
            continue;
        const clv_status status = retire(s, names[i]);
        if (status.code != CLV_OK)
            clv_log(CLV_LOG_WARN, "an old checkpoint stays: %s", status.text);
    }
    free_names(names, count);
}

static clv_status write_all(const save *s, int64_t keep_last)
{
    clv_comm *world = s->world;
    CLV_TRY(clv_comm_agree(world, is_writer(s) ? prepare(s) : clv_ok()));
    clv_status mine = write_tensors(s);
    if (mine.code == CLV_OK && is_writer(s))
        mine = write_small_files(s);
    CLV_TRY(clv_comm_agree(world, mine));
    if (s->c->progress != NULL)
        CLV_TRY(clv_comm_agree(world, write_sums(s)));
    CLV_TRY(clv_comm_agree(world, is_writer(s) ? publish(s) : clv_ok()));
    if (is_writer(s) && keep_last > 0)
        prune(s, keep_last);
    return clv_ok();
}

clv_status clv_checkpoint_save_on(const clv_checkpoint *c, const char *root, int64_t keep_last, const clv_disk *disk)
{
    save s = {.c = c, .disk = disk, .world = clv_mesh_world(c->cx->mesh), .root = root, .config = *c->config};
    if (strlen(root) + 256 > CLV_PATH)
        return clv_fail(CLV_BAD_INPUT, "path too long: %.200s", root);
    snprintf(s.config.model_type, sizeof s.config.model_type, "%s", clv_hf_family_of(c->config));
    snprintf(s.name, sizeof s.name, "iter_%07lld", (long long)(c->progress != NULL ? c->progress->iteration : 0));
    clv_path_join(s.final, sizeof s.final, root, s.name);
    snprintf(s.temporary, sizeof s.temporary, "%.*s%s", CLV_PATH - 8, s.final, temporary_end);

    const int ranks = clv_comm_size(s.world);
    s.weights = clv_catalog_weights(c, &s.config);
    clv_catalog_spread(&s.weights, ranks, disk->shard);
    if (c->optimizer != NULL && c->progress != NULL) {
        s.moments = clv_catalog_moments(c);
        if (clv_checkpoint_has_masters(c))
            clv_catalog_masters(&s.moments, c, true);
        clv_catalog_spread(&s.moments, ranks, disk->shard);
    }
    const clv_status status = write_all(&s, keep_last);
    clv_catalog_free(&s.weights);
    clv_catalog_free(&s.moments);
    return clv_within(status, "saving %s", s.final);
}

clv_status clv_checkpoint_save(const clv_checkpoint *c, const char *root, int64_t keep_last)
{
    return clv_checkpoint_save_on(c, root, keep_last, &(clv_disk){.shard = CLV_SHARD});
}
