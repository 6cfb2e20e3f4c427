/* checkpoint_disk.c - the disk as a save sees it. Nothing is done that `permit` did not allow; whoever refuses the k-th
 * change, or all from the k-th on, has the state of a full disk or of a crash at that instant.
 */
#include "train/checkpoint_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

clv_status clv_disk_permit(const clv_disk *disk, const char *what, const char *path)
{
    return disk->permit != NULL ? disk->permit(disk->state, what, path) : clv_ok();
}

static clv_status failed(const char *what, const char *path)
{
    return clv_fail(CLV_BAD_INPUT, "cannot %s %s: %s", what, path, strerror(errno));
}

clv_status clv_disk_write(const clv_disk *disk, const char *path, const void *data, size_t n)
{
    CLV_TRY(clv_disk_permit(disk, "write", path));
    return clv_file_write_atomic(path, data, n);
}

/* A file system may know no writes past the page cache, or want larger pages than ours: then through it. */
static int stream_open(const char *path)
{
    const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, fd = open(path, flags | O_DIRECT, 0666);
    return fd < 0 && errno == EINVAL ? open(path, flags, 0666) : fd;
}

static clv_status stream_write(int fd, const char *path, const char *image, int64_t at, int64_t end)
{
    while (at < end) {
        const ssize_t wrote = pwrite(fd, image + at, (size_t)(end - at), (off_t)at);
        const int flags = wrote < 0 && errno == EINVAL ? fcntl(fd, F_GETFL) : 0;
        if (wrote < 0 && errno == EINTR)
            continue;
        if ((flags & O_DIRECT) != 0 && fcntl(fd, F_SETFL, flags & ~O_DIRECT) == 0)
            continue;
        if (wrote <= 0)
            return failed("write", path);
        at += wrote;
    }
    return clv_ok();
}

static clv_status stream(const clv_disk *disk, int fd, const char *path, const char *image, int64_t size)
{
    enum { PAGE = 4096, STEP = 16 << 20 };
    const int64_t whole = CLV_CEIL_DIV(size, PAGE) * PAGE;
    for (int64_t at = 0; at < whole; at += STEP) {
        CLV_TRY(clv_disk_permit(disk, "write", path));
        CLV_TRY(stream_write(fd, path, image, at, CLV_MIN(at + STEP, whole)));
    }
    CLV_TRY(clv_disk_permit(disk, "sync", path));
    return ftruncate(fd, (off_t)size) == 0 && fsync(fd) == 0 ? clv_ok() : failed("write", path);
}

clv_status clv_disk_stream(const clv_disk *disk, const char *path, const char *image, int64_t size)
{
    CLV_TRY(clv_disk_permit(disk, "create", path));
    const int fd = stream_open(path);
    if (fd < 0)
        return failed("create", path);
    const clv_status status = stream(disk, fd, path, image, size);
    return close(fd) == 0 || status.code != CLV_OK ? status : failed("close", path);
}

clv_status clv_disk_copy(const clv_disk *disk, const char *from, const char *to)
{
    if (!clv_file_exists(from))
        return clv_ok();
    clv_text text;
    CLV_TRY(clv_file_read(from, &text));
    const clv_status status = clv_disk_write(disk, to, text.data, text.length);
    clv_text_free(&text);
    return status;
}

clv_status clv_disk_make(const clv_disk *disk, const char *folder)
{
    CLV_TRY(clv_disk_permit(disk, "create folder", folder));
    return clv_make_dirs(folder);
}

clv_status clv_disk_sync(const clv_disk *disk, const char *folder)
{
    CLV_TRY(clv_disk_permit(disk, "sync", folder));
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return failed("open", folder);
    const clv_status status = fsync(fd) == 0 ? clv_ok() : failed("sync", folder);
    close(fd);
    return status;
}

clv_status clv_disk_swap(const clv_disk *disk, const char *from, const char *to, bool *swapped)
{
    CLV_TRY(clv_disk_permit(disk, "rename", to));
    *swapped = clv_file_exists(to);
    if (!*swapped)
        return rename(from, to) == 0 ? clv_ok() : failed("rename", from);
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0)
        return clv_ok();
    return clv_fail(CLV_BAD_INPUT, "%s exists, and this file system cannot replace it at once (%s); move it away", to,
                    strerror(errno));
}

/* Checkpoints are two folders deep; what lies deeper is not ours, and stays. */
static clv_status remove_level(const clv_disk *disk, const char *folder, int depth)
{
    DIR *dir = opendir(folder);
    if (dir == NULL)
        return failed("open", folder);
    clv_status status = clv_ok();
    for (struct dirent *at = readdir(dir); at != NULL && status.code == CLV_OK; at = readdir(dir)) {
        char path[CLV_PATH];
        struct stat info;
        if (strcmp(at->d_name, ".") == 0 || strcmp(at->d_name, "..") == 0)
            continue;
        clv_path_join(path, sizeof path, folder, at->d_name);
        if (lstat(path, &info) == 0 && S_ISDIR(info.st_mode) && depth > 0) {
            status = remove_level(disk, path, depth - 1);
            continue;
        }
        status = clv_disk_permit(disk, "remove", path);
        if (status.code == CLV_OK && unlink(path) != 0)
            status = failed("remove", path);
    }
    closedir(dir);
    CLV_TRY(status);
    CLV_TRY(clv_disk_permit(disk, "remove", folder));
    return rmdir(folder) == 0 ? clv_ok() : failed("remove", folder);
}

clv_status clv_disk_remove(const clv_disk *disk, const char *path)
{
    struct stat info;
    if (lstat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return remove_level(disk, path, 1);
    CLV_TRY(clv_disk_permit(disk, "remove", path));
    return unlink(path) == 0 ? clv_ok() : failed("remove", path);
}

clv_status clv_disk_room(const char *folder, int64_t bytes)
{
    struct statvfs info;
    if (statvfs(folder, &info) != 0)
        return failed("examine", folder);
    const double free_bytes = (double)info.f_bavail * (double)info.f_frsize;
    if ((double)bytes <= free_bytes)
        return clv_ok();
    return clv_fail(CLV_BAD_INPUT,
                    "%s: a checkpoint needs %lld bytes, %.0f are free; make room or choose another --save", folder,
                    (long long)bytes, free_bytes);
}
