/* checkpoint_image.c - the files of a background save as they will stand on the disk, in memory.
 *
 * All ranks wait while what they hold is copied, so this must cost no more than one pass over it. Fresh pages would
 * cost ten times that (each is zeroed, on a virtual machine also fetched from its host): the room is taken before the
 * first iteration, touched, and kept. An image is then hashed and written as it lies, past the page cache, which would
 * copy it into fresh pages again; the thread that does so takes next to no time from those that compute.
 */
#include "train/checkpoint_internal.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096 }; /* what a write past the page cache begins and ends at */

void *clv_buffer_take(clv_buffer *buffer, size_t bytes)
{
    if (bytes > buffer->bytes) {
        free(buffer->data);
        *buffer = (clv_buffer){clv_alloc(bytes, 1), bytes};
    }
    return buffer->data;
}

static size_t image_bytes(const clv_output *o)
{
    return (size_t)CLV_CEIL_DIV(o->size, PAGE) * PAGE;
}

/* Touched, all of it. */
static clv_status reserve(clv_arena *arena, const char *name, size_t bytes)
{
    if (bytes > arena->size) {
        clv_arena_destroy(arena);
        CLV_TRY(clv_arena_create(arena, name, bytes));
        memset(arena->base, 0, bytes);
    }
    clv_arena_release(arena, 0);
    return clv_ok();
}

clv_status clv_room_reserve(clv_room *room, const clv_output *const outputs[], size_t count, size_t kept)
{
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += image_bytes(outputs[i]);
    CLV_TRY(reserve(&room->images, "files of a save in the background", bytes));
    return reserve(&room->kept, "what a save in the background has yet to send", kept);
}

size_t clv_room_bytes(const clv_room *room)
{
    return room->images.size + room->kept.size;
}

void clv_room_close(clv_room *room)
{
    if (room == NULL)
        return;
    clv_arena_destroy(&room->images);
    clv_arena_destroy(&room->kept);
    for (int i = 0; i < CLV_ENTRY_PIECES; i++)
        free(room->local[i].data);
    free(room->wire.data);
    free(room->block.data);
    free(room);
}

void clv_output_place(clv_output *o, clv_room *room)
{
    if (o->tensors == NULL || o->status.code != CLV_OK)
        return;
    o->image = clv_arena_push(&room->images, image_bytes(o));
    memcpy(o->image, o->header.data, o->header.length);
}

clv_status clv_output_write(const clv_output *o)
{
    return o->image != NULL ? clv_disk_stream(o->disk, o->path, o->image, o->size) : clv_ok();
}
