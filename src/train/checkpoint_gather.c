/* checkpoint_gather.c - boxes of parameters travel to the rank that writes a tensor.
 *
 * Every rank walks the same list: entries, blocks of rows, pieces, ranks. Whoever speaks for elements among the rows
 * sends them in the file's order, and the owner puts them in place. Since all follow one order, plain sends and
 * receives cannot wait for each other in a circle.
 *
 * Copies of a box (over dp, over tp for norms) are sent by one rank alone. What the distributed optimizer has split
 * over the data-parallel ranks comes from each of them, a run of the box's elements. Padding of the vocabulary is in
 * no box.
 */
#include "train/checkpoint_internal.h"

#include <stdlib.h>
#include <string.h>

enum { TAG = 7 };

void clv_gather_open(clv_gather *g, clv_ctx *cx, const clv_param *params, size_t count, clv_room *room)
{
    const clv_mesh *mesh = cx->mesh;
    *g = (clv_gather){.cx = cx, .world = clv_mesh_world(mesh), .count = count, .room = room, .own_room = room == NULL};
    if (g->own_room)
        g->room = clv_alloc(1, sizeof *g->room);
    const size_t ranks = (size_t)clv_comm_size(g->world), words = sizeof(clv_claim) / sizeof(int64_t);
    clv_claim *mine = clv_alloc(count, sizeof *mine);
    for (size_t i = 0; i < count; i++) {
        const clv_param *p = &params[i];
        mine[i] = (clv_claim){.box = clv_param_box(mesh, p),
                              .holds = p->here && !p->copy,
                              .speaks = clv_param_is_first(mesh, p, CLV_WORLD),
                              .shared = clv_param_is_shared(p)};
        if (mine[i].shared && clv_param_is_first(mesh, p, CLV_WORLD & ~CLV_REPLICAS))
            mine[i].part = clv_param_own(p);
    }
    g->claims = clv_alloc(ranks * count, sizeof *g->claims);
    clv_all_gather(g->world, g->claims, mine, count * words, CLV_I64);
    free(mine);
}

void clv_gather_close(clv_gather *g)
{
    free(g->claims);
    if (g->own_room)
        clv_room_close(g->room);
    *g = (clv_gather){0};
}

int64_t clv_entry_rows_in(const clv_entry *e, int64_t bytes)
{
    return CLV_MAX(bytes / (e->dim[1] * (int64_t)clv_dtype_size(e->dtype)), 1);
}

void clv_copy_wide(void *to, const void *from, size_t bytes)
{
    const size_t step = 1 << 16;
#pragma omp parallel for
    for (size_t at = 0; at < bytes; at += step)
        clv_copy_past((char *)to + at, (const char *)from + at, CLV_MIN(step, bytes - at));
}

/* ---- who sends what ---- */

static const clv_claim *claim_of(const clv_gather *g, int rank, const clv_piece *piece)
{
    return &g->claims[(size_t)rank * g->count + piece->number];
}

/* The elements of its box that `rank` speaks for. */
static clv_extent spoken(const clv_gather *g, const clv_piece *piece, int rank)
{
    const clv_claim *c = claim_of(g, rank, piece);
    if (piece->own && c->shared)
        return c->part;
    return (clv_extent){0, c->speaks ? c->box.count[0] * c->box.count[1] : 0};
}

/* Who sends what `rank` speaks for: the owner, if it has a copy. */
static int sender_of(const clv_gather *g, const clv_piece *piece, int rank, int owner)
{
    const clv_claim *first = claim_of(g, rank, piece), *there = claim_of(g, owner, piece);
    const bool same = there->holds && memcmp(&first->box, &there->box, sizeof first->box) == 0;
    return same && !(piece->own && first->shared) ? owner : rank;
}

static bool sends(const clv_gather *g, const clv_piece *piece, int owner)
{
    bool found = false;
    for (int rank = 0; rank < clv_comm_size(g->world); rank++)
        found =
            found || (spoken(g, piece, rank).count > 0 && sender_of(g, piece, rank, owner) == clv_comm_rank(g->world));
    return found;
}

static bool is_straight(const clv_gather *g, const clv_entry *e, int owner)
{
    bool straight = true;
    for (int i = 0; i < e->pieces; i++) {
        const clv_piece *piece = &e->piece[i];
        straight = straight && !piece->transposed;
        for (int rank = 0; rank < clv_comm_size(g->world); rank++)
            straight = straight && (spoken(g, piece, rank).count == 0 || sender_of(g, piece, rank, owner) == owner);
    }
    return straight;
}

void clv_gather_survey(const clv_gather *g, clv_catalog *catalog)
{
    for (size_t i = 0; i < catalog->count; i++) {
        clv_entry *e = &catalog->entry[i];
        const int owner = clv_catalog_owner(catalog, e->file);
        e->straight = is_straight(g, e, owner);
        e->sends = false;
        for (int k = 0; k < e->pieces; k++)
            e->sends = e->sends || sends(g, &e->piece[k], owner);
    }
}

/* ---- before they travel ---- */

size_t clv_gather_kept_bytes(const clv_gather *g, const clv_entry *e, int owner)
{
    clv_arena sum = clv_arena_counting("");
    for (int i = 0; i < e->pieces; i++)
        if (sends(g, &e->piece[i], owner))
            clv_arena_push(&sum, clv_bytes(e->piece[i].local));
    return sum.used;
}

void clv_gather_keep(clv_gather *g, clv_entry *e, int owner)
{
    for (int i = 0; i < e->pieces; i++) {
        clv_piece *piece = &e->piece[i];
        if (!sends(g, piece, owner))
            continue;
        const void *host = clv_host_memory(g->cx, piece->local);
        void *kept = clv_arena_push(&g->room->kept, clv_bytes(piece->local));
        if (host != NULL)
            clv_copy_wide(kept, host, clv_bytes(piece->local));
        else
            clv_to_host(g->cx, kept, piece->local);
        piece->kept = kept;
    }
}

void clv_gather_begin(clv_gather *g, const clv_entry *e, int owner)
{
    for (int i = 0; i < e->pieces; i++) {
        const clv_piece *piece = &e->piece[i];
        if (sends(g, piece, owner) && clv_host_memory(g->cx, piece->local) == NULL)
            clv_to_host(g->cx, clv_buffer_take(&g->room->local[i], clv_bytes(piece->local)), piece->local);
    }
}

/* A piece's elements on the host: what was kept of them, where they are, or the copy that _begin has made. */
static const char *local_of(const clv_gather *g, const clv_entry *e, int index)
{
    const clv_piece *piece = &e->piece[index];
    const void *local = piece->kept != NULL ? piece->kept : clv_host_memory(g->cx, piece->local);
    CLV_CHECK(piece->local.dtype == e->dtype, "%s: %s in a tensor of %s", e->name, clv_dtype_name(piece->local.dtype),
              clv_dtype_name(e->dtype));
    return local != NULL ? local : g->room->local[index].data;
}

/* ---- one transfer ---- */

typedef struct route {
    int speaker, from, owner;
} route;

/* Elements of a rectangle, in its order, that lie dense, to their places in rows of the file's tensor, from row
 * `top` on. */
static void place(const clv_entry *e, clv_rect rect, clv_extent part, const char *dense, int64_t top, char *rows_out)
{
    const int64_t width = rect.n[1], first = part.first / width, end = CLV_CEIL_DIV(part.first + part.count, width);
    const size_t size = clv_dtype_size(e->dtype);
#pragma omp parallel for if (part.count > 1 << 16)
    for (int64_t i = first; i < end; i++) {
        const int64_t begin = CLV_MAX(i * width, part.first), stop = CLV_MIN((i + 1) * width, part.first + part.count);
        const int64_t to = (rect.at[0] + i - top) * e->dim[1] + rect.at[1] + begin - i * width;
        memcpy(rows_out + (size_t)to * size, dense + (size_t)(begin - part.first) * size,
               (size_t)(stop - begin) * size);
    }
}

/* What a rank speaks for among the rows, to the owner and into place there. What is dense in the file as well is
 * received, or turned, where it shall stand, and nothing is packed that lies densely already. */
static void transfer(clv_gather *g, const clv_entry *e, int index, route way, const int64_t rows[2], char *rows_out)
{
    const int me = clv_comm_rank(g->world);
    const clv_piece *piece = &e->piece[index];
    const clv_rect rect = clv_piece_rect(piece, claim_of(g, way.speaker, piece)->box);
    const clv_extent all = spoken(g, piece, way.speaker);
    const int64_t width = rect.n[1], row = CLV_MAX(rows[0], rect.at[0]) - rect.at[0];
    const int64_t first = CLV_MAX(row * width, all.first);
    const int64_t end =
        CLV_MIN((CLV_MIN(rows[0] + rows[1], rect.at[0] + rect.n[0]) - rect.at[0]) * width, all.first + all.count);
    if (first >= end || (me != way.from && me != way.owner))
        return;
    const size_t size = clv_dtype_size(e->dtype), bytes = (size_t)(end - first) * size;
    const bool dense = width == e->dim[1];
    char *to = me == way.owner && dense ? rows_out + (size_t)((rect.at[0] - rows[0]) * width + first) * size : NULL;
    const char *from = to;
    if (to == NULL && (me != way.from || piece->transposed))
        from = to = clv_buffer_take(&g->room->wire, bytes);
    if (me == way.from && piece->transposed)
        clv_piece_turn(rect, (int64_t[]){row, (end - first) / width}, size, local_of(g, e, index), to);
    else if (me == way.from)
        from = local_of(g, e, index) + (size_t)(first - all.first) * size;
    if (me == way.from && me != way.owner)
        clv_send(g->world, from, bytes, way.owner, TAG);
    if (me == way.owner && me != way.from)
        clv_recv(g->world, to, bytes, way.from, TAG);
    if (me == way.owner && dense && from != to)
        clv_copy_wide(to, from, bytes);
    else if (me == way.owner && !dense)
        place(e, rect, (clv_extent){first, end - first}, from, rows[0], rows_out);
}

void clv_gather_rows(clv_gather *g, const clv_entry *e, int owner, const int64_t rows[2], void *rows_out)
{
    for (int i = 0; i < e->pieces; i++)
        for (int rank = 0; rank < clv_comm_size(g->world); rank++)
            if (spoken(g, &e->piece[i], rank).count > 0)
                transfer(g, e, i, (route){rank, sender_of(g, &e->piece[i], rank, owner), owner}, rows, rows_out);
}

float *clv_param_gather(clv_ctx *cx, const clv_param *p, clv_tensor local, bool own)
{
    clv_gather g;
    clv_gather_open(&g, cx, p, 1, NULL);
    const clv_entry e = {.dim = {p->whole[0], p->ndim > 1 ? p->whole[1] : 1},
                         .ndim = p->ndim,
                         .dtype = local.dtype,
                         .piece = {{.param = p, .local = local, .own = own}},
                         .pieces = 1};
    const int64_t step = clv_entry_rows_in(&e, CLV_PIECE_BYTES), n = e.dim[0] * e.dim[1];
    const size_t size = clv_dtype_size(e.dtype);
    char *whole = clv_comm_rank(g.world) == 0 ? clv_alloc((size_t)n, size) : NULL;
    clv_gather_begin(&g, &e, 0);
    for (int64_t row = 0; row < e.dim[0]; row += step) {
        const int64_t rows[2] = {row, CLV_MIN(step, e.dim[0] - row)};
        clv_gather_rows(&g, &e, 0, rows, whole != NULL ? whole + (size_t)(row * e.dim[1]) * size : NULL);
    }
    clv_gather_close(&g);
    if (whole == NULL || e.dtype == CLV_F32)
        return (float *)(void *)whole;
    float *wide = clv_alloc((size_t)n, sizeof *wide);
    clv_widen(wide, whole, e.dtype, (size_t)n);
    free(whole);
    return wide;
}
