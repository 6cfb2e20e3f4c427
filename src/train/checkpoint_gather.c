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

void clv_gather_open(clv_gather *g, clv_ctx *cx, const clv_param *params, size_t count)
{
    const clv_mesh *mesh = cx->mesh;
    *g = (clv_gather){.cx = cx, .world = clv_mesh_world(mesh), .count = count};
    const size_t ranks = (size_t)clv_comm_size(g->world), words = sizeof(clv_claim) / sizeof(int64_t);
    clv_claim *mine = clv_alloc(count, sizeof *mine);
    for (size_t i = 0; i < count; i++)
        mine[i] = (clv_claim){clv_param_box(mesh, &params[i]), clv_param_is_first(mesh, &params[i], CLV_WORLD)};
    g->claims = clv_alloc(ranks * count, sizeof *g->claims);
    clv_all_gather(g->world, g->claims, mine, count * words, CLV_I64);
    free(mine);
}

void clv_gather_close(clv_gather *g)
{
    free(g->claims);
    free(g->wire);
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

/* The whole shard, from all data-parallel ranks, on the first of them; NULL on the others. */
static float *join(clv_gather *g, const clv_piece *piece)
{
    const clv_param *p = piece->param;
    clv_comm *replicas = clv_mesh_comm(g->cx->mesh, CLV_REPLICAS);
    const int ranks = clv_comm_size(replicas), me = clv_comm_rank(replicas);
    const int64_t n = clv_numel(p->bucket->w);
    float *whole = clv_alloc((size_t)clv_numel(p->w), sizeof *whole);
    clv_to_host(g->cx, whole + clv_param_own(p).first, piece->local);
    for (int r = 1; r < ranks; r++) {
        const clv_extent part = clv_param_within(p, clv_share(n, ranks, r));
        const size_t bytes = (size_t)part.count * sizeof *whole;
        if (part.count > 0 && r == me)
            clv_send(replicas, whole + part.first, bytes, 0, TAG);
        if (part.count > 0 && me == 0)
            clv_recv(replicas, whole + part.first, bytes, r, TAG);
    }
    if (me == 0)
        return whole;
    free(whole);
    return NULL;
}

void clv_gather_begin(clv_gather *g, const clv_entry *e)
{
    for (int i = 0; i < e->pieces; i++) {
        const clv_piece *piece = &e->piece[i];
        if (piece->own && clv_param_is_shared(piece->param)) {
            if (clv_param_is_first(g->cx->mesh, piece->param, CLV_WORLD & ~CLV_REPLICAS))
                g->local[i] = join(g, piece);
        } else if (claim_of(g, clv_comm_rank(g->world), piece)->speaks) {
            g->local[i] = clv_alloc((size_t)clv_numel(piece->local), sizeof(float));
            clv_to_floats(g->cx, g->local[i], piece->local);
        }
    }
    const int64_t rows = CLV_MIN(clv_entry_rows_per_piece(e), e->dim[0]);
    g->wire = clv_alloc((size_t)(rows * e->dim[1]), sizeof(float));
}

void clv_gather_end(clv_gather *g)
{
    for (int i = 0; i < CLV_ENTRY_PIECES; i++) {
        free(g->local[i]);
        g->local[i] = NULL;
    }
    free(g->wire);
    g->wire = NULL;
}

/* What `from` has of the rows, to the owner and into place there. */
static void transfer(clv_gather *g, const clv_entry *e, int index, const int route[2], const int64_t rows[2],
                     float *rows_out)
{
    const int from = route[0], owner = route[1], me = clv_comm_rank(g->world);
    const clv_piece *piece = &e->piece[index];
    const clv_rect rect = clv_piece_rect(piece, claim_of(g, from, piece)->box);
    const int64_t first = CLV_MAX(rows[0], rect.at[0]);
    const int64_t n = CLV_MIN(rows[0] + rows[1], rect.at[0] + rect.n[0]) - first;
    if (n <= 0 || rect.n[1] == 0 || (me != from && me != owner))
        return;
    const size_t bytes = (size_t)(n * rect.n[1]) * sizeof(float);
    if (me == from)
        clv_piece_pack(piece, rect, (int64_t[]){first - rect.at[0], n}, g->local[index], g->wire);
    if (me == from && me != owner)
        clv_send(g->world, g->wire, bytes, owner, TAG);
    if (me == owner && me != from)
        clv_recv(g->world, g->wire, bytes, from, TAG);
    for (int64_t i = 0; me == owner && i < n; i++)
        memcpy(rows_out + (first - rows[0] + i) * e->dim[1] + rect.at[1], g->wire + i * rect.n[1],
               (size_t)rect.n[1] * sizeof(float));
}

void clv_gather_rows(clv_gather *g, const clv_entry *e, int owner, const int64_t rows[2], float *rows_out)
{
    for (int i = 0; i < e->pieces; i++)
        for (int rank = 0; rank < clv_comm_size(g->world); rank++)
            if (claim_of(g, rank, &e->piece[i])->speaks)
                transfer(g, e, i, (int[]){rank, owner}, rows, rows_out);
}

float *clv_param_gather(clv_ctx *cx, const clv_param *p, clv_tensor local, bool own)
{
    clv_gather g;
    clv_gather_open(&g, cx, p, 1);
    const clv_entry e = {.dim = {p->whole[0], p->ndim > 1 ? p->whole[1] : 1},
                         .ndim = p->ndim,
                         .piece = {{.param = p, .local = local, .own = own}},
                         .pieces = 1};
    const int64_t step = clv_entry_rows_per_piece(&e);
    float *whole = clv_comm_rank(g.world) == 0 ? clv_alloc((size_t)(e.dim[0] * e.dim[1]), sizeof *whole) : NULL;
    clv_gather_begin(&g, &e);
    for (int64_t row = 0; row < e.dim[0]; row += step) {
        const int64_t rows[2] = {row, CLV_MIN(step, e.dim[0] - row)};
        clv_gather_rows(&g, &e, 0, rows, whole != NULL ? whole + row * e.dim[1] : NULL);
    }
    clv_gather_end(&g);
    clv_gather_close(&g);
    return whole;
}
