/* tokenizer_table.c - strings that stay, two open-addressed hash tables (XXH3, linear probing, at most half full), and
 * a binary heap. */
#include "format/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { BLOCK_BYTES = 1 << 18 };

struct clv_pool_block {
    struct clv_pool_block *before;
    size_t used, size;
    char data[];
};

clv_span clv_pool_add(clv_pool *pool, const char *text, size_t n)
{
    struct clv_pool_block *block = pool->last;
    if (block == NULL || block->size - block->used <= n) {
        const size_t size = CLV_MAX(n + 1, (size_t)BLOCK_BYTES);
        block = clv_resize(NULL, sizeof *block + size, 1);
        block->before = pool->last;
        block->used = 0;
        block->size = size;
        pool->last = block;
    }
    char *at = block->data + block->used;
    if (n > 0)
        memcpy(at, text, n);
    at[n] = 0;
    block->used += n + 1;
    return (clv_span){at, n};
}

void clv_pool_free(clv_pool *pool)
{
    while (pool->last != NULL) {
        struct clv_pool_block *block = pool->last;
        pool->last = block->before;
        free(block);
    }
}

struct clv_string_slot {
    uint32_t tag;  /* the hash's upper half: most strings that differ are told apart without looking at them */
    int32_t index; /* + 1; 0 is an empty slot */
};

/* The key's slot, or the empty one where it belongs. */
static struct clv_string_slot *string_slot(const clv_string_map *map, const clv_span *strings, clv_span key,
                                           uint64_t hash)
{
    size_t i = hash & (map->size - 1);
    for (; map->slot[i].index != 0; i = (i + 1) & (map->size - 1)) {
        const clv_span other = strings[map->slot[i].index - 1];
        if (map->slot[i].tag == hash >> 32 && other.n == key.n && memcmp(other.at, key.at, key.n) == 0)
            break;
    }
    return &map->slot[i];
}

int32_t clv_string_map_find(const clv_string_map *map, const clv_span *strings, clv_span key)
{
    return map->size == 0 ? -1 : string_slot(map, strings, key, XXH3_64bits(key.at, key.n))->index - 1;
}

static void string_put(clv_string_map *map, const clv_span *strings, int32_t index)
{
    const uint64_t hash = XXH3_64bits(strings[index].at, strings[index].n);
    *string_slot(map, strings, strings[index], hash) = (struct clv_string_slot){(uint32_t)(hash >> 32), index + 1};
}

void clv_string_map_put(clv_string_map *map, const clv_span *strings, int32_t index)
{
    if (2 * (map->count + 1) > map->size) {
        const clv_string_map old = *map;
        map->size = CLV_MAX(2 * old.size, 1024);
        map->slot = clv_alloc(map->size, sizeof *map->slot);
        for (size_t i = 0; i < old.size; i++)
            if (old.slot[i].index > 0)
                string_put(map, strings, old.slot[i].index - 1);
        free(old.slot);
    }
    string_put(map, strings, index);
    map->count++;
}

struct clv_pair_slot {
    uint64_t pair;
    int32_t value; /* + 1; 0 is an empty slot */
};

uint64_t clv_pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static struct clv_pair_slot *pair_slot(const clv_pair_map *map, uint64_t pair)
{
    size_t i = XXH3_64bits(&pair, sizeof pair) & (map->size - 1);
    while (map->slot[i].value != 0 && map->slot[i].pair != pair)
        i = (i + 1) & (map->size - 1);
    return &map->slot[i];
}

int32_t clv_pair_map_find(const clv_pair_map *map, uint64_t pair)
{
    return map->size == 0 ? -1 : pair_slot(map, pair)->value - 1;
}

void clv_pair_map_put(clv_pair_map *map, uint64_t pair, int32_t value)
{
    if (2 * (map->count + 1) > map->size) {
        const clv_pair_map old = *map;
        map->size = CLV_MAX(2 * old.size, 1024);
        map->slot = clv_alloc(map->size, sizeof *map->slot);
        for (size_t i = 0; i < old.size; i++)
            if (old.slot[i].value > 0)
                *pair_slot(map, old.slot[i].pair) = old.slot[i];
        free(old.slot);
    }
    *pair_slot(map, pair) = (struct clv_pair_slot){pair, value + 1};
    map->count++;
}

static bool before(clv_heap_item a, clv_heap_item b)
{
    return a.key < b.key || (a.key == b.key && a.value < b.value);
}

void clv_heap_push(clv_heap *heap, clv_heap_item item)
{
    if (heap->count == heap->capacity) {
        heap->capacity = CLV_MAX(2 * heap->capacity, 64);
        heap->item = clv_resize(heap->item, heap->capacity, sizeof *heap->item);
    }
    size_t at = heap->count++;
    for (; at > 0 && before(item, heap->item[(at - 1) / 2]); at = (at - 1) / 2)
        heap->item[at] = heap->item[(at - 1) / 2];
    heap->item[at] = item;
}

clv_heap_item clv_heap_pop(clv_heap *heap)
{
    const clv_heap_item top = heap->item[0], last = heap->item[--heap->count];
    size_t at = 0;
    for (size_t child = 1; child < heap->count; child = 2 * at + 1) {
        if (child + 1 < heap->count && before(heap->item[child + 1], heap->item[child]))
            child++;
        if (!before(heap->item[child], last))
            break;
        heap->item[at] = heap->item[child];
        at = child;
    }
    heap->item[at] = last;
    return top;
}
