/* checkpoint_sums.c - training/checksums.json: what each file's bytes were.
 *
 *   {"algorithm":"xxh3-64","block":67108864,"files":{"NAME":{"size":BYTES,"blocks":["16 hex digits",...]},...}}
 *
 * Every file of the folder but this one is in it. Blocks are shared out over the ranks, and over their threads, when
 * they are verified.
 */
#include "train/checkpoint_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static const char sums_name[] = "training/checksums.json";
enum { TAG = 8, CHUNK = 1 << 18 }; /* CHUNK: stays in a core's cache until it is hashed */

/* Hash of the block that begins at `at`: what is there, up to CLV_PIECE_BYTES. */
static clv_status hash_block(int fd, int64_t at, const char *path, uint64_t *out)
{
    XXH3_state_t *state = XXH3_createState();
    char *buffer = clv_alloc(CHUNK, 1);
    CLV_CHECK(state != NULL, "out of memory");
    XXH3_64bits_reset(state);
    clv_status status = clv_ok();
    for (int64_t done = 0; done < CLV_PIECE_BYTES;) {
        const ssize_t got = pread(fd, buffer, (size_t)CLV_MIN(CHUNK, CLV_PIECE_BYTES - done), (off_t)(at + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            status = clv_fail(CLV_BAD_INPUT, "cannot read %s: %s", path, strerror(errno));
        if (got <= 0)
            break;
        XXH3_64bits_update(state, buffer, (size_t)got);
        done += got;
    }
    *out = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    free(buffer);
    return status;
}

/* ---- making ---- */

static void member_begin(clv_text *out, const char *name, int64_t size)
{
    if (out->length > 0)
        clv_text_add(out, ",\n", 2);
    clv_json_add_string(out, name, strlen(name));
    clv_text_printf(out, ":{\"size\":%lld,\"blocks\":[", (long long)size);
}

static void block_add(clv_text *out, int64_t at, uint64_t hash)
{
    clv_text_printf(out, "%s\"%016llx\"", at > 0 ? "," : "", (unsigned long long)hash);
}

static clv_status add_file(clv_text *out, int fd, const char *path, const char *name)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return clv_fail(CLV_BAD_INPUT, "cannot examine %s: %s", path, strerror(errno));
    member_begin(out, name, info.st_size);
    for (int64_t at = 0; at < info.st_size; at += CLV_PIECE_BYTES) {
        uint64_t hash;
        CLV_TRY(hash_block(fd, at, path, &hash));
        block_add(out, at, hash);
    }
    clv_text_printf(out, "]}");
    return clv_ok();
}

void clv_sums_add_image(clv_text *out, const char *name, const char *image, int64_t size)
{
    member_begin(out, name, size);
    for (int64_t at = 0; at < size; at += CLV_PIECE_BYTES)
        block_add(out, at, XXH3_64bits(image + at, (size_t)CLV_MIN(CLV_PIECE_BYTES, size - at)));
    clv_text_printf(out, "]}");
}

void clv_sums_add(clv_text *out, clv_status *status, const char *folder, const char *name)
{
    char path[CLV_PATH];
    clv_path_join(path, sizeof path, folder, name);
    if (status->code != CLV_OK || !clv_file_exists(path))
        return;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    *status =
        fd < 0 ? clv_fail(CLV_BAD_INPUT, "cannot open %s: %s", path, strerror(errno)) : add_file(out, fd, path, name);
    if (fd >= 0)
        close(fd);
}

static void add_from(clv_comm *world, int rank, clv_text *all)
{
    uint64_t length = 0;
    clv_recv(world, &length, sizeof length, rank, TAG);
    if (length == 0)
        return;
    char *text = clv_alloc((size_t)length, 1);
    clv_recv(world, text, (size_t)length, rank, TAG);
    clv_text_printf(all, "%s", all->length > 0 ? ",\n" : "");
    clv_text_add(all, text, (size_t)length);
    free(text);
}

void clv_sums_join(clv_comm *world, clv_text *sums)
{
    const uint64_t length = sums->length;
    if (clv_comm_rank(world) > 0) {
        clv_send(world, &length, sizeof length, 0, TAG);
        if (length > 0)
            clv_send(world, sums->data, sums->length, 0, TAG);
        return;
    }
    for (int rank = 1; rank < clv_comm_size(world); rank++)
        add_from(world, rank, sums);
}

clv_status clv_sums_write(const clv_text *sums, const char *folder, const clv_disk *disk)
{
    clv_text text = {0};
    char path[CLV_PATH];
    clv_text_printf(&text, "{\"algorithm\":\"xxh3-64\",\"block\":%d,\"files\":{\n%s\n}}\n", CLV_PIECE_BYTES,
                    sums->data);
    clv_path_join(path, sizeof path, folder, sums_name);
    const clv_status status = clv_disk_write(disk, path, text.data, text.length);
    clv_text_free(&text);
    return status;
}

/* ---- verifying ---- */

typedef struct share { /* of all blocks, this rank's: those whose number is `rank` modulo `size` */
    int64_t block, rank, size;
} share;

static clv_status verify_block(int fd, const char *path, int64_t number, const char *expected)
{
    uint64_t hash;
    char text[17];
    CLV_TRY(hash_block(fd, number * CLV_PIECE_BYTES, path, &hash));
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    if (expected != NULL && strcmp(text, expected) == 0)
        return clv_ok();
    return clv_fail(CLV_BAD_INPUT,
                    "%s is damaged in block %lld (bytes %lld and on): checksum %s instead of %s; take another "
                    "checkpoint, or remove %s if the file was edited on purpose",
                    path, (long long)number, (long long)number * CLV_PIECE_BYTES, text,
                    expected != NULL ? expected : "none", sums_name);
}

typedef struct sum { /* of a block */
    int64_t number;
    const char *expected;
} sum;

/* The error of the first block that is damaged, whoever met it. */
static clv_status verify_sums(int fd, const char *path, const sum *sums, int64_t count)
{
    clv_status status = clv_ok();
    int64_t damaged = count;
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t i = 0; i < count; i++) {
        const clv_status st = verify_block(fd, path, sums[i].number, sums[i].expected);
#pragma omp critical
        if (st.code != CLV_OK && i < damaged) {
            damaged = i;
            status = st;
        }
    }
    return status;
}

static clv_status verify_blocks(const clv_json *json, clv_node blocks, int fd, const char *path, share *s)
{
    sum *mine = clv_alloc((size_t)clv_json_count(json, blocks), sizeof *mine);
    int64_t number = 0, count = 0;
    for (clv_node at = clv_json_first(json, blocks); at != CLV_NO_NODE; at = clv_json_next(json, at), number++)
        if (s->block++ % s->size == s->rank)
            mine[count++] = (sum){number, clv_json_string(json, at, NULL)};
    const clv_status status = verify_sums(fd, path, mine, count);
    free(mine);
    return status;
}

static clv_status verify_file(const clv_json *json, clv_node file, const char *path, share *s)
{
    struct stat info;
    int64_t size = -1;
    const clv_node blocks = clv_json_get(json, file, "blocks"), bytes = clv_json_get(json, file, "size");
    if (!clv_json_is(json, blocks, CLV_JSON_ARRAY) || bytes == CLV_NO_NODE || !clv_json_i64(json, bytes, &size))
        return clv_fail(CLV_BAD_INPUT, "%s has no \"size\" and \"blocks\" in %s", path, sums_name);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info) != 0)
        return clv_fail(CLV_BAD_INPUT, "cannot open %s: %s", path, strerror(errno));
    clv_status status = clv_ok();
    if (info.st_size != size || clv_json_count(json, blocks) != CLV_CEIL_DIV(size, CLV_PIECE_BYTES))
        status = clv_fail(CLV_BAD_INPUT, "%s has %lld bytes instead of %lld: it is truncated or another file", path,
                          (long long)info.st_size, (long long)size);
    if (status.code == CLV_OK)
        status = verify_blocks(json, blocks, fd, path, s);
    close(fd);
    return status;
}

static bool is_plain(const char *name)
{
    return strlen(name) < 256 && name[0] != '/' && strstr(name, "..") == NULL;
}

static clv_status verify_all(const clv_json *json, const char *folder, bool optimizer, share *s)
{
    static const char moments[] = "training/optimizer";
    int64_t block = 0;
    const clv_node files = clv_json_get(json, CLV_JSON_ROOT, "files");
    const clv_node size = clv_json_get(json, CLV_JSON_ROOT, "block");
    if (!clv_json_is(json, files, CLV_JSON_OBJECT) || size == CLV_NO_NODE || !clv_json_i64(json, size, &block) ||
        block != CLV_PIECE_BYTES)
        return clv_fail(CLV_BAD_INPUT, "%s/%s is not of the form that this version writes", folder, sums_name);
    for (clv_node at = clv_json_first(json, files); at != CLV_NO_NODE; at = clv_json_next(json, at)) {
        char path[CLV_PATH];
        const char *name = clv_json_key(json, at, NULL);
        if (!is_plain(name))
            return clv_fail(CLV_BAD_INPUT, "%s/%s names \"%.100s\", which is no file of the folder", folder, sums_name,
                            name);
        if (!optimizer && strncmp(name, moments, sizeof moments - 1) == 0)
            continue;
        clv_path_join(path, sizeof path, folder, name);
        CLV_TRY(verify_file(json, at, path, s));
    }
    return clv_ok();
}

clv_status clv_sums_verify(clv_comm *world, const char *folder, bool optimizer)
{
    char path[CLV_PATH];
    clv_json *json;
    share s = {.rank = clv_comm_rank(world), .size = clv_comm_size(world)};
    clv_path_join(path, sizeof path, folder, sums_name);
    if (!clv_file_exists(path))
        return clv_ok();
    CLV_TRY(clv_json_load(&json, path));
    const clv_status status = clv_json_is(json, CLV_JSON_ROOT, CLV_JSON_OBJECT)
                                  ? verify_all(json, folder, optimizer, &s)
                                  : clv_fail(CLV_BAD_INPUT, "%s: an object was expected", path);
    clv_json_free(json);
    return status;
}
