/* mesh.c - coordinates of the ranks, and the groups they form.
 *
 *   rank = tpr + TPR (tpk + TPK (cp + CP (dp + DP pp)))       bit i of a mask is the i-th axis of this order
 *
 * TPK = min(g, t) splits the KV heads, TPR = t / TPK holds the ranks that share one, so that the KV head of a rank is
 * tp / (t / g). An axis of size 1 drops out of every mask; what then remains names a group, and equal groups are one
 * communicator. Source: Megatron-LM, core/parallel_state.py, rank order tp-cp-ep-dp-pp.
 */
#include "comm/comm_internal.h"

#include <stdio.h>
#include <stdlib.h>

struct clv_mesh {
    clv_comm *world;
    int size[CLV_AXIS_COUNT], coord[CLV_AXIS_COUNT];
    unsigned live;                  /* the axes larger than 1 */
    clv_comm *group[CLV_WORLD + 1]; /* by mask, subsets of live; [0] is this rank alone */
    clv_comm *ends;                 /* first and last stage, or the stages between them; NULL without a pipeline */
};

static int mask_size(const clv_mesh *mesh, unsigned axes)
{
    int n = 1;
    for (int i = 0; i < CLV_AXIS_COUNT; i++)
        if (axes >> i & 1)
            n *= mesh->size[i];
    return n;
}

static int mask_coord(const clv_mesh *mesh, unsigned axes)
{
    int at = 0;
    for (int i = CLV_AXIS_COUNT - 1; i >= 0; i--)
        if (axes >> i & 1)
            at = at * mesh->size[i] + mesh->coord[i];
    return at;
}

/* "tp", "dp+cp", "world". The halves of tp get names of their own only where both exist. */
static void mask_name(unsigned axes, unsigned live, char *out, size_t size)
{
    const unsigned tp = live & CLV_TP;
    const struct {
        unsigned axes;
        const char *name;
    } rows[] = {{tp, "tp"},
                {tp == CLV_TP ? CLV_TPR : 0, "tpr"},
                {tp == CLV_TP ? CLV_TPK : 0, "tpk"},
                {CLV_DP, "dp"},
                {CLV_CP, "cp"},
                {CLV_PP, "pp"}};
    int used = 0;
    unsigned left = axes;
    for (size_t i = 0; i < CLV_COUNT(rows); i++) {
        if (rows[i].axes == 0 || (left & rows[i].axes) != rows[i].axes)
            continue;
        left &= ~rows[i].axes;
        used += snprintf(out + used, size - (size_t)used, "%s%s", used == 0 ? "" : "+", rows[i].name);
    }
    const bool one_axis = axes == tp || (axes & (axes - 1)) == 0;
    if (axes == live && (!one_axis || axes == 0))
        snprintf(out, size, "world");
    else if (axes == 0)
        snprintf(out, size, "self");
}

static clv_status check(const clv_layout *layout, int world)
{
    const int sizes[] = {layout->tp, layout->cp, layout->dp, layout->pp};
    static const char *const names[] = {"TP", "CP", "DP", "PP"};
    char shape[128] = "";
    int used = 0;
    int64_t product = 1;
    for (size_t i = 0; i < CLV_COUNT(sizes); i++) {
        if (sizes[i] < 0)
            return clv_fail(CLV_BAD_INPUT, "%s %d is not a size: use 1 or more", names[i], sizes[i]);
        if (sizes[i] > 1)
            used += snprintf(shape + used, sizeof shape - (size_t)used, "%s%s %d", used > 0 ? " x " : "", names[i],
                             sizes[i]);
        if (__builtin_mul_overflow(product, (int64_t)CLV_MAX(sizes[i], 1), &product))
            product = INT64_MAX;
    }
    if (product != world)
        return clv_fail(CLV_BAD_INPUT, "%s needs %lld rank%s, there %s %d: start as many, or change the sizes",
                        used > 0 ? shape : "TP 1", (long long)product, product == 1 ? "" : "s",
                        world == 1 ? "is" : "are", world);

    const int t = CLV_MAX(layout->tp, 1), g = layout->kv_heads;
    if (g < 0 || (g > 0 && g % t != 0 && t % g != 0))
        return clv_fail(CLV_BAD_INPUT, "%d KV heads do not fit TP %d: one must divide the other", g, t);
    return clv_ok();
}

static bool at_end(const clv_mesh *mesh)
{
    const int stage = mask_coord(mesh, CLV_PP);
    return stage == 0 || stage == mask_size(mesh, CLV_PP) - 1;
}

/* The two end stages of each pipeline hold the tied matrix; the stages between them get a group too, which nobody uses,
 * since splitting is collective. */
static clv_comm *ends_split(const clv_mesh *mesh)
{
    const int stage = mask_coord(mesh, CLV_PP), stages = mask_size(mesh, CLV_PP);
    const bool end = at_end(mesh);
    const int color = 2 * mask_coord(mesh, ~(unsigned)CLV_PP) + (end ? 0 : 1);
    const int rank = end ? stage != 0 : stage - 1, size = end ? 2 : stages - 2;
    clv_comm *group = mesh->world->ops->split(mesh->world, color, mesh->world->rank, rank, size);
    snprintf(group->name, sizeof group->name, "ends");
    return group;
}

clv_status clv_mesh_create(clv_mesh **out, clv_comm *world, const clv_layout *layout)
{
    *out = NULL;
    CLV_TRY(check(layout, world->size));
    const int t = CLV_MAX(layout->tp, 1);
    const int tpk = layout->kv_heads > 0 ? CLV_MIN(layout->kv_heads, t) : t;
    const int sizes[CLV_AXIS_COUNT] = {t / tpk, tpk, layout->cp, layout->dp, layout->pp};

    clv_mesh *mesh = clv_alloc(1, sizeof *mesh);
    mesh->world = world;
    for (int i = 0, rest = world->rank; i < CLV_AXIS_COUNT; i++) {
        mesh->size[i] = CLV_MAX(sizes[i], 1);
        mesh->coord[i] = rest % mesh->size[i];
        rest /= mesh->size[i];
        mesh->live |= mesh->size[i] > 1 ? 1u << i : 0;
    }
    /* Ascending masks: the same order on every rank, as creating a communicator is collective. */
    for (unsigned axes = 0; axes <= mesh->live; axes++) {
        if ((axes & ~mesh->live) != 0)
            continue;
        const int rank = mask_coord(mesh, axes), size = mask_size(mesh, axes);
        clv_comm *group =
            axes == mesh->live ? world : world->ops->split(world, mask_coord(mesh, ~axes), world->rank, rank, size);
        mask_name(axes, mesh->live, group->name, sizeof group->name);
        mesh->group[axes] = group;
    }
    if (clv_mesh_size(mesh, CLV_PP) > 1)
        mesh->ends = ends_split(mesh);
    *out = mesh;
    return clv_ok();
}

void clv_mesh_destroy(clv_mesh *mesh)
{
    if (mesh == NULL)
        return;
    for (unsigned axes = 0; axes < mesh->live; axes++)
        if (mesh->group[axes] != NULL)
            mesh->group[axes]->ops->close(mesh->group[axes]);
    if (mesh->ends != NULL)
        mesh->ends->ops->close(mesh->ends);
    snprintf(mesh->world->name, sizeof mesh->world->name, "world");
    free(mesh);
}

void clv_mesh_watch(clv_mesh *mesh, const clv_watch *watch)
{
    for (unsigned axes = 0; axes <= mesh->live; axes++)
        if (mesh->group[axes] != NULL)
            mesh->group[axes]->watch = watch;
    if (mesh->ends != NULL)
        mesh->ends->watch = watch;
}

clv_comm *clv_mesh_comm(const clv_mesh *mesh, unsigned axes)
{
    CLV_CHECK((axes & ~(unsigned)CLV_WORLD) == 0, "no such axes: %#x", axes);
    return mesh->group[axes & mesh->live];
}

clv_comm *clv_mesh_world(const clv_mesh *mesh)
{
    return mesh->world;
}

clv_comm *clv_mesh_ends(const clv_mesh *mesh)
{
    return mesh->ends != NULL && at_end(mesh) ? mesh->ends : NULL;
}

int clv_mesh_size(const clv_mesh *mesh, unsigned axes)
{
    return mask_size(mesh, axes);
}

int clv_mesh_coord(const clv_mesh *mesh, unsigned axes)
{
    return mask_coord(mesh, axes);
}

void clv_mesh_progress(const clv_mesh *mesh)
{
    clv_comm_progress(mesh->world);
}

static void traffic_reset(clv_comm *group)
{
    for (int kind = 0; group != NULL && kind < CLV_TRAFFIC_KINDS; kind++)
        group->traffic[kind] = (clv_traffic){0};
}

void clv_mesh_traffic_reset(clv_mesh *mesh)
{
    for (unsigned axes = 0; axes <= mesh->live; axes++)
        traffic_reset(mesh->group[axes]);
    traffic_reset(mesh->ends);
}

static void traffic_print(const clv_comm *group, clv_text *out)
{
    for (int kind = 0; group != NULL && kind < CLV_TRAFFIC_KINDS; kind++) {
        const clv_traffic t = group->traffic[kind];
        if (t.calls > 0)
            clv_text_printf(out, "%-5s  %-14s  %6lld calls  %9.2f MiB\n", group->name,
                            clv_traffic_kind_name((clv_traffic_kind)kind), (long long)t.calls,
                            (double)t.bytes / 1048576.0);
    }
}

void clv_mesh_traffic_print(const clv_mesh *mesh, clv_text *out)
{
    for (unsigned axes = 0; axes <= mesh->live; axes++)
        traffic_print(mesh->group[axes], out);
    traffic_print(mesh->ends, out);
}
