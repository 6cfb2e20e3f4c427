/* checkpoint_gather.c - boxes of parameters travel to the rank that writes a tensor.
 *
 * Every rank walks the same list: entries, blocks of rows, pieces, ranks. Whoever speaks for a box that meets the rows
 * sends the common part, packed as it will stand in the file, and the owner puts it in place. Since all follow one
 * order, plain sends and receives cannot wait for each other in a circle.
 *
 * Copies of a box (over dp, over tp for norms) are sent by one rank alone. What the distributed optimizer has split
 * over the data-parallel ranks is first joined on that rank. Padding of the vocabulary is in no box.
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
    for (size_t i = 0; i < count; i++)
        mine[i] = (clv_claim){.box = clv_param_box(mesh, &params[i]),
                              .holds = params[i].here && !params[i].copy,
                              .speaks = clv_param_is_first(mesh, &params[i], CLV_WORLD),
                              .shared = clv_param_is_shared(&params[i])};
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

int64_t clv_entry_rows_per_piece(const clv_entry *e)
{
    return CLV_MAX(CLV_PIECE_BYTES / (e->dim[1] * (int64_t)sizeof(float)), 1);
}

static const clv_claim *claim_of(const clv_gather *g, int rank, const clv_piece *piece)
{
    return &g->claims[(size_t)rank * g->count + piece->number];
}

/* Who sends the box that `rank` speaks for: the owner, if it has a copy; -1 if `rank` does not speak. */
static int sender_of(const clv_gather *g, const clv_piece *piece, int rank, int owner)
{
    const clv_claim *first = claim_of(g, rank, piece), *there = claim_of(g, owner, piece);
    const bool same = there->holds && memcmp(&first->box, &there->box, sizeof first->box) == 0;
    if (!first->speaks)
        return -1;
    return same && !(piece->own && first->shared) ? owner : rank;
}

static bool sends(const clv_gather *g, const clv_piece *piece, int owner)
{
    bool found = false;
    for (int rank = 0; rank < clv_comm_size(g->world); rank++)
        found = found || sender_of(g, piece, rank, owner) == clv_comm_rank(g->world);
    return found;
}

/* The whole shard, from all data-parallel ranks, on the first of them; NULL on the others. */
static float *join(clv_gather *g, const clv_piece *piece, clv_buffer *buffer)
{
    const clv_param *p = piece->param;
    clv_comm *replicas = clv_mesh_comm(g->cx->mesh, CLV_REPLICAS);
    const int ranks = clv_comm_size(replicas), me = clv_comm_rank(replicas);
    const int64_t n = clv_numel(p->bucket->w);
    float *whole = clv_buffer_take(buffer, (size_t)clv_numel(p->w));
    clv_to_host(g->cx, whole + clv_param_own(p).first, piece->local);
    for (int r = 1; r < ranks; r++) {
        const clv_extent part = clv_param_within(p, clv_share(n, ranks, r));
        const size_t bytes = (size_t)part.count * sizeof *whole;
        if (part.count > 0 && r == me)
            clv_send(replicas, whole + part.first, bytes, 0, TAG);
        if (part.count > 0 && me == 0)
            clv_recv(replicas, whole + part.first, bytes, r, TAG);
    }
    return me == 0 ? whole : NULL;
}

/* A piece's elements on the host: where they are, or a copy. */
static float *local_of(clv_gather *g, const clv_piece *piece, clv_buffer *buffer)
{
    float *local = piece->local.dtype == CLV_F32 ? clv_host_memory(g->cx, piece->local) : NULL;
    if (local == NULL) {
        local = clv_buffer_take(buffer, (size_t)clv_numel(piece->local));
        clv_to_floats(g->cx, local, piece->local);
    }
    return local;
}

void clv_gather_begin(clv_gather *g, const clv_entry *e, int owner)
{
    for (int i = 0; i < e->pieces; i++) {
        const clv_piece *piece = &e->piece[i];
        g->local[i] = NULL;
        if (piece->own && clv_param_is_shared(piece->param)) {
            if (clv_param_is_first(g->cx->mesh, piece->param, CLV_WORLD & ~CLV_REPLICAS))
                g->local[i] = join(g, piece, &g->room->local[i]);
        } else if (sends(g, piece, owner)) {
            g->local[i] = local_of(g, piece, &g->room->local[i]);
        }
    }
}

/* Dense rows to where they stand in the file's. */
static void place_rows(float *to, int64_t stride, const float *from, int64_t width, int64_t rows)
{
    const int64_t step = CLV_MAX((1 << 18) / width, 1);
#pragma omp parallel for
    for (int64_t first = 0; first < rows; first += step) {
        const int64_t end = CLV_MIN(first + step, rows);
        if (width == stride)
            memcpy(to + first * stride, from + first * width, (size_t)((end - first) * width) * sizeof *to);
        for (int64_t i = first; i < end && width < stride; i++)
            memcpy(to + i * stride, from + i * width, (size_t)width * sizeof *to);
    }
}

/* What `from` has of the rows, to the owner and into place there. Rows that are whole in the file are received and
 * turned there at once, and no rows are packed that lie densely already. */
static void transfer(clv_gather *g, const clv_entry *e, int index, const int route[3], const int64_t rows[2],
                     float *rows_out)
{
    const int from = route[1], owner = route[2], me = clv_comm_rank(g->world);
    const clv_piece *piece = &e->piece[index];
    const clv_rect rect = clv_piece_rect(piece, claim_of(g, route[0], piece)->box);
    const int64_t first = CLV_MAX(rows[0], rect.at[0]), width = rect.n[1];
    const int64_t n = CLV_MIN(rows[0] + rows[1], rect.at[0] + rect.n[0]) - first;
    if (n <= 0 || width == 0 || (me != from && me != owner))
        return;
    float *place = me == owner ? rows_out + (first - rows[0]) * e->dim[1] + rect.at[1] : NULL;
    float *dense = place;
    if (me != owner || width < e->dim[1])
        dense = clv_buffer_take(&g->room->wire, (size_t)(n * width));
    const int64_t part[2] = {first - rect.at[0], n};
    if (me == from && piece->transposed)
        clv_piece_turn(rect, part, g->local[index], dense);
    else if (me == from)
        dense = g->local[index] + part[0] * width;
    if (me == from && me != owner)
        clv_send(g->world, dense, (size_t)(n * width) * sizeof *dense, owner, TAG);
    if (me == owner && me != from)
        clv_recv(g->world, dense, (size_t)(n * width) * sizeof *dense, from, TAG);
    if (me == owner && dense != place)
        place_rows(place, e->dim[1], dense, width, n);
}

void clv_gather_rows(clv_gather *g, const clv_entry *e, int owner, const int64_t rows[2], float *rows_out)
{
    for (int i = 0; i < e->pieces; i++)
        for (int rank = 0; rank < clv_comm_size(g->world); rank++) {
            const int from = sender_of(g, &e->piece[i], rank, owner);
            if (from >= 0)
                transfer(g, e, i, (int[]){rank, from, owner}, rows, rows_out);
        }
}

float *clv_param_gather(clv_ctx *cx, const clv_param *p, clv_tensor local, bool own)
{
    clv_gather g;
    clv_gather_open(&g, cx, p, 1, NULL);
    const clv_entry e = {.dim = {p->whole[0], p->ndim > 1 ? p->whole[1] : 1},
                         .ndim = p->ndim,
                         .piece = {{.param = p, .local = local, .own = own}},
                         .pieces = 1};
    const int64_t step = clv_entry_rows_per_piece(&e);
    float *whole = clv_comm_rank(g.world) == 0 ? clv_alloc((size_t)(e.dim[0] * e.dim[1]), sizeof *whole) : NULL;
    clv_gather_begin(&g, &e, 0);
    for (int64_t row = 0; row < e.dim[0]; row += step) {
        const int64_t rows[2] = {row, CLV_MIN(step, e.dim[0] - row)};
        clv_gather_rows(&g, &e, 0, rows, whole != NULL ? whole + row * e.dim[1] : NULL);
    }
    clv_gather_close(&g);
    return whole;
}
