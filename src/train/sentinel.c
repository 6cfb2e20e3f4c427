/* sentinel.c - weights that several ranks hold must be bit-equal; when they drift, a sum is missing or a machine is
 * ill.
 *
 * Each rank hashes what it holds of a parameter; ranks that hold the same box must have the same hash. The largest and
 * the smallest hash of a group are compared (the maximum of h and of ~h), so any number of ranks costs one small
 * message.
 */
#include "train.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static uint64_t hash_of(clv_ctx *cx, clv_tensor t)
{
    void *host = clv_alloc(clv_bytes(t), 1);
    clv_to_host(cx, host, t);
    const uint64_t hash = XXH3_64bits(host, clv_bytes(t));
    free(host);
    return hash >> 12; /* exact as a double, whose maximum is taken */
}

static bool equal_over(clv_ctx *cx, clv_comm *comm, clv_tensor t)
{
    const double top = (double)(UINT64_C(1) << 52), mine = (double)hash_of(cx, t);
    double ends[2] = {mine, top - mine};
    clv_all_reduce(comm, ends, ends, 2, CLV_F64, CLV_MAX);
    return ends[0] == top - ends[1];
}

/* own: t holds the elements that this rank updates. */
static clv_status tensor_check(clv_ctx *cx, const clv_param *p, const char *what, clv_tensor t, bool own)
{
    const bool shared = own && clv_param_is_shared(p); /* then each data-parallel rank has other elements */
    const unsigned replicas = (CLV_TP | (shared ? 0u : (unsigned)CLV_REPLICAS)) & ~p->split_axes;
    clv_comm *ends = p->tied ? clv_mesh_ends(cx->mesh) : NULL;
    const bool same = clv_mesh_size(cx->mesh, replicas) == 1 || equal_over(cx, clv_mesh_comm(cx->mesh, replicas), t);
    if (ends != NULL && !equal_over(cx, ends, t))
        return clv_fail(CLV_CHECK_FAILED, "%s of %s differs between the first and the last pipeline stage", what,
                        p->name);
    if (same)
        return clv_ok();
    return clv_fail(CLV_CHECK_FAILED,
                    "%s of %s differs between the %d ranks that hold copies of it: a gradient sum is missing, or a "
                    "machine computes wrongly",
                    what, p->name, clv_mesh_size(cx->mesh, replicas));
}

static clv_status first_of(clv_status a, clv_status b)
{
    return a.code != CLV_OK ? a : b;
}

clv_status clv_sentinel_check(clv_ctx *cx, const clv_param *params, size_t count, const clv_optimizer *optimizer)
{
    clv_status worst = clv_ok();
    for (size_t i = 0; i < count; i++) { /* every rank goes through all: the checks communicate */
        if (!params[i].here)
            continue;
        const clv_param *p = &params[i];
        worst = first_of(worst, tensor_check(cx, p, "the weight", p->w, false));
        if (optimizer != NULL && optimizer->count > 0) {
            worst = first_of(worst, tensor_check(cx, p, "the first moment", optimizer->m[i], true));
            worst = first_of(worst, tensor_check(cx, p, "the second moment", optimizer->v[i], true));
        }
        if (p->master.ndim > 0)
            worst = first_of(worst, tensor_check(cx, p, "the master", p->master, true));
    }
    return clv_comm_agree(clv_mesh_world(cx->mesh), worst);
}

clv_status clv_sentinel_decisions(clv_comm *world, const clv_decision *decisions, size_t count)
{
    int64_t *ends = clv_alloc(2 * count, sizeof *ends); /* bits, and their complement: the maximum of both */
    for (size_t i = 0; i < count; i++) {
        memcpy(&ends[2 * i], &decisions[i].value, sizeof *ends);
        ends[2 * i + 1] = ~ends[2 * i];
    }
    clv_all_reduce(world, ends, ends, 2 * count, CLV_I64, CLV_MAX);
    clv_status st = clv_ok();
    for (size_t i = 0; i < count && st.code == CLV_OK; i++) {
        const int64_t high = ends[2 * i], low = ~ends[2 * i + 1];
        double a, b;
        memcpy(&a, &low, sizeof a);
        memcpy(&b, &high, sizeof b);
        if (low != high)
            st =
                clv_fail(CLV_CHECK_FAILED, "the %s differs between ranks: %.17g and %.17g; they would go separate ways",
                         decisions[i].name, a, b);
    }
    free(ends);
    return st;
}
