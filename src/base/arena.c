/* arena.c - bump allocation, real or counting; the heap for set-up; what the process takes. */
#include "base.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

clv_arena clv_arena_counting(const char *name)
{
    return (clv_arena){.name = name};
}

clv_status clv_arena_create(clv_arena *arena, const char *name, size_t size)
{
    const size_t bytes = CLV_CEIL_DIV(CLV_MAX(size, 1), (size_t)CLV_ARENA_ALIGN) * CLV_ARENA_ALIGN;
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return clv_fail(CLV_BAD_INPUT, "cannot reserve %.1f MiB for %s: %s; use more ranks or a smaller micro-batch",
                        (double)bytes / 1048576.0, name, strerror(errno));
    /* A wish. The first touch is then seven times as fast, and no byte more becomes resident, since huge pages lie only
     * where they are wholly inside. */
    madvise(base, bytes, MADV_HUGEPAGE);
    *arena = (clv_arena){.name = name, .base = base, .size = bytes};
    return clv_ok();
}

void clv_arena_destroy(clv_arena *arena)
{
    if (arena->base != NULL)
        munmap(arena->base, arena->size);
    *arena = (clv_arena){.name = arena->name};
}

void *clv_arena_push(clv_arena *arena, size_t bytes)
{
    const size_t take = CLV_CEIL_DIV(bytes, (size_t)CLV_ARENA_ALIGN) * CLV_ARENA_ALIGN;
    CLV_CHECK(arena->base == NULL || take <= arena->size - arena->used,
              "arena %s is full: %zu of %zu bytes used, %zu more asked", arena->name, arena->used, arena->size, take);
    void *at = arena->base == NULL ? NULL : arena->base + arena->used;
    arena->used += take;
    arena->peak = CLV_MAX(arena->peak, arena->used);
    return at;
}

size_t clv_arena_mark(const clv_arena *arena)
{
    return arena->used;
}

void clv_arena_release(clv_arena *arena, size_t mark)
{
    CLV_CHECK(mark <= arena->used, "arena %s: release to %zu, but only %zu used", arena->name, mark, arena->used);
    arena->used = mark;
}

void *clv_alloc(size_t count, size_t size)
{
    void *at = calloc(CLV_MAX(count, 1), CLV_MAX(size, 1));
    CLV_CHECK(at != NULL, "out of memory: %zu x %zu bytes", count, size);
    return at;
}

void *clv_resize(void *old, size_t count, size_t size)
{
    CLV_CHECK(size == 0 || count <= SIZE_MAX / size, "size overflow: %zu x %zu", count, size);
    void *at = realloc(old, CLV_MAX(count * size, 1));
    CLV_CHECK(at != NULL, "out of memory: %zu x %zu bytes", count, size);
    return at;
}

char *clv_strdup(const char *text)
{
    const size_t n = strlen(text) + 1;
    return memcpy(clv_alloc(n, 1), text, n);
}

int64_t clv_memory_resident(void)
{
    long long pages = 0; /* the second number: resident ones */
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL)
        return 0;
    if (fscanf(file, "%*d %lld", &pages) != 1)
        pages = 0;
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}
