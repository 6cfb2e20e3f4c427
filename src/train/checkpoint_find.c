/* checkpoint_find.c - what a path means: a root with `latest`, a checkpoint in one, or any Hugging Face folder. */
#include "train/checkpoint_internal.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

bool clv_ends_with(const char *name, const char *end)
{
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

int64_t clv_checkpoint_iteration(const char *name)
{
    int64_t value;
    const bool is = strncmp(name, "iter_", 5) == 0 && strspn(name + 5, "0123456789") == strlen(name + 5);
    return is && clv_parse_i64(name + 5, &value) ? value : -1;
}

size_t clv_names_list(const char *folder, bool (*wanted)(const char *name), char ***out)
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

void clv_names_free(char **names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(names[i]);
    free(names);
}

bool clv_checkpoint_is_name(const char *name)
{
    return clv_checkpoint_iteration(name) >= 0;
}

static clv_status find_latest(const char *root, const char *pointer, char *out)
{
    clv_text name;
    CLV_TRY(clv_file_read(pointer, &name));
    while (name.length > 0 && strchr(" \r\n", name.data[name.length - 1]) != NULL)
        name.data[--name.length] = 0;
    clv_status status = clv_ok();
    if (clv_checkpoint_iteration(name.data) < 0 || name.length > 64)
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
    const size_t count = clv_names_list(path, clv_checkpoint_is_name, &names);
    const clv_status status =
        count > 0 ? clv_fail(CLV_BAD_INPUT, "%s holds %s but no file 'latest'; give the path of the checkpoint itself",
                             path, names[0])
                  : clv_fail(CLV_BAD_INPUT, "%s holds no checkpoint: neither 'latest' nor config.json is there", path);
    clv_names_free(names, count);
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
    if (clv_ends_with(path, CLV_TEMPORARY))
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

void clv_checkpoint_share(clv_comm *world, char *folder, bool *resumable)
{
    uint8_t flag = *resumable ? 1 : 0;
    clv_broadcast(world, folder, CLV_PATH, CLV_U8, 0);
    clv_broadcast(world, &flag, 1, CLV_U8, 0);
    *resumable = flag != 0;
}
