/* gradient.c - the sums over tp that backward left open, and the global norm.
 *
 * Whether a gradient is still a partial sum stands in its record (sum_axes). Missing one lets replicas drift apart; one
 * too many counts it double. The norm takes every logical element once: of tp replicas, only the first rank's; of
 * data-parallel ones, each its share of a bucket, which is all that it has when gradients were scattered.
 */
#include "parallel.h"

clv_box clv_param_box(const clv_mesh *mesh, const clv_param *p)
{
    clv_box box = {.count = {p->whole[0], p->ndim > 1 ? p->whole[1] : 1}};
    if (p->split_dim < 0)
        return box;
    const int64_t local = p->w.dim[p->split_dim];
    const int64_t first = local * clv_mesh_coord(mesh, p->split_axes);
    const int64_t left = p->whole[p->split_dim] - first;
    box.first[p->split_dim] = CLV_MIN(first, p->whole[p->split_dim]);
    box.count[p->split_dim] = CLV_MAX(0, CLV_MIN(local, left));
    return box;
}

bool clv_param_is_first(const clv_mesh *mesh, const clv_param *p, unsigned axes)
{
    const bool stage = (axes & CLV_PP) == 0 || clv_mesh_coord(mesh, CLV_PP) == p->stage;
    return p->here && stage && clv_mesh_coord(mesh, axes & ~p->split_axes & ~(unsigned)CLV_PP) == 0;
}

enum { PACK_BYTES = 4 << 20, PACK_COUNT = 64 }; /* gradients up to this size share a message, up to this many */

/* Copy between the packed buffer and the gradients first .. last - 1 that are summed over `axes`. */
static void pack(clv_ctx *cx, clv_tensor buffer, const clv_param *const *list, size_t count, bool out)
{
    int64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        const clv_tensor dw = list[i]->dw;
        clv_tensor part = clv_slice(buffer, at, clv_numel(dw));
        clv_tensor flat = dw;
        flat.ndim = 1;
        flat.dim[0] = clv_numel(dw);
        clv_copy(cx, out ? flat : part, out ? part : flat);
        at += clv_numel(dw);
    }
}

static void sum_packed(clv_ctx *cx, clv_comm *comm, const clv_param *const *list, size_t count)
{
    int64_t n = 0;
    for (size_t i = 0; i < count; i++)
        n += clv_numel(list[i]->dw);
    if (n == 0)
        return;
    const size_t mark = clv_arena_mark(cx->temp);
    clv_tensor buffer = clv_new_as(cx->temp, CLV_F32, n);
    pack(cx, buffer, list, count, false);
    clv_all_reduce(comm, buffer.data, buffer.data, (size_t)n, CLV_F32, CLV_SUM);
    pack(cx, buffer, list, count, true);
    clv_arena_release(cx->temp, mark);
}

typedef struct clv_group { /* the gradients that are summed over one set of axes */
    const clv_param *params;
    size_t count;
    unsigned axes;
} clv_group;

/* In messages of up to PACK_BYTES; a larger gradient goes alone, without a copy. */
static void sum_group(clv_ctx *cx, const clv_group *group)
{
    clv_comm *comm = clv_mesh_comm(cx->mesh, group->axes);
    const clv_param *list[PACK_COUNT];
    size_t listed = 0, bytes = 0;
    for (size_t i = 0; i < group->count; i++) {
        const clv_param *p = &group->params[i];
        const size_t size = clv_bytes(p->dw);
        if (!p->here || p->sum_axes != group->axes)
            continue;
        if (size > PACK_BYTES) {
            clv_all_reduce(comm, p->dw.data, p->dw.data, (size_t)clv_numel(p->dw), CLV_F32, CLV_SUM);
            continue;
        }
        if (listed == PACK_COUNT || bytes + size > PACK_BYTES) {
            sum_packed(cx, comm, list, listed);
            listed = bytes = 0;
        }
        list[listed++] = p;
        bytes += size;
    }
    sum_packed(cx, comm, list, listed);
}

void clv_gradient_sum(clv_ctx *cx, const clv_param *params, size_t count)
{
    for (unsigned axes = 1; axes <= CLV_WORLD; axes++) { /* the same order of groups on every rank */
        const clv_group group = {.params = params, .count = count, .axes = axes};
        if (clv_mesh_size(cx->mesh, axes) > 1)
            sum_group(cx, &group);
    }
}

/* The elements of a record that this rank's square takes. */
static clv_extent counted_of(const clv_mesh *mesh, const clv_param *p)
{
    const int ranks = clv_mesh_size(mesh, CLV_REPLICAS), rank = clv_mesh_coord(mesh, CLV_REPLICAS);
    if (p->copy || !clv_param_is_first(mesh, p, CLV_TP))
        return (clv_extent){0, 0};
    if (p->bucket == NULL)
        return (clv_extent){0, rank == 0 ? clv_numel(p->dw) : 0};
    return clv_param_within(p, clv_share(clv_numel(p->bucket->dw), ranks, rank));
}

double clv_gradient_square(clv_ctx *cx, const clv_param *params, size_t count)
{
    const size_t mark = clv_arena_mark(cx->temp);
    clv_tensor sum = clv_new_as(cx->temp, CLV_F64, 1);
    clv_zero(cx, sum);
    for (size_t i = 0; i < count; i++) {
        const clv_extent mine = counted_of(cx->mesh, &params[i]);
        if (mine.count > 0)
            clv_sum_squares(cx, sum, clv_elements(params[i].dw, mine));
    }
    clv_comm *world = clv_mesh_world(cx->mesh);
    clv_all_reduce(world, sum.data, sum.data, 1, CLV_F64, CLV_SUM);
    double square = 0.0;
    clv_to_host(cx, &square, sum);
    clv_arena_release(cx->temp, mark);
    return clv_comm_decide(world, square);
}
