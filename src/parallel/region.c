/* region.c - the conjugate operators f and g of tensor parallelism, with and without sequence parallelism.
 *
 *   f   gather(x): a replicated x is already whole; a sequence-split x is all-gathered along s
 *   g   reduce(y): into a replicated y an all-reduce; into a sequence-split y a reduce-scatter along s
 *
 * The backward of f is reduce, the backward of g is gather: the pair is adjoint, so nothing else is needed. Dim 0 is
 * the sequence, so a sequence shard is contiguous and no collective has to rearrange memory. Source: Shoeybi et al.
 * 2019, section 3; Korthikanti et al. 2022, section 4.
 */
#include "parallel.h"

clv_pending clv_tp_gather_begin(clv_ctx *cx, clv_arena *arena, clv_tensor *full, clv_tensor x)
{
    clv_comm *tp = clv_mesh_comm(cx->mesh, CLV_TP);
    CLV_CHECK(x.place == CLV_R || x.place == CLV_S0, "gather of a tensor placed %s", clv_place_name(x.place));
    if (x.place == CLV_R || clv_comm_size(tp) == 1) {
        *full = clv_placed(x, CLV_R);
        return (clv_pending){0};
    }
    int64_t dims[CLV_DIMS] = {x.dim[0] * clv_comm_size(tp), x.dim[1], x.dim[2], x.dim[3]};
    *full = clv_tensor_typed(arena, x.dtype, x.ndim, dims);
    return clv_all_gather_begin(tp, full->data, x.data, (size_t)clv_numel(x), x.dtype);
}

clv_tensor clv_tp_gather(clv_ctx *cx, clv_arena *arena, clv_tensor x)
{
    clv_tensor full;
    clv_pending wire = clv_tp_gather_begin(cx, arena, &full, x);
    clv_pending_end(&wire);
    return full;
}

clv_tp_pending clv_tp_reduce_begin(clv_ctx *cx, clv_tensor y, clv_tensor p)
{
    clv_comm *tp = clv_mesh_comm(cx->mesh, CLV_TP);
    const int64_t parts = y.place == CLV_S0 ? clv_comm_size(tp) : 1;
    char py[96], pp[96];
    CLV_CHECK(p.place == CLV_P && (y.place == CLV_R || y.place == CLV_S0) && y.dim[0] * parts == p.dim[0] &&
                  clv_numel(y) * parts == clv_numel(p),
              "reduce of %s into %s over %d ranks", clv_describe(p, pp), clv_describe(y, py), clv_comm_size(tp));
    clv_tp_pending pending = {.y = y};
    void *out = y.data;
    if (y.dtype != CLV_F32) { /* the sum is fp32 on the wire and rounded once, at the end */
        pending.sum = clv_placed(clv_slice(p, 0, y.dim[0]), y.place); /* the value, once it is summed */
        out = p.data;
    }
    const size_t n = (size_t)clv_numel(y);
    pending.wire = parts > 1 ? clv_reduce_scatter_begin(tp, out, p.data, n, CLV_F32)
                             : clv_all_reduce_begin(tp, out, p.data, n, CLV_F32);
    return pending;
}

void clv_tp_reduce_end(clv_ctx *cx, clv_tp_pending *pending)
{
    clv_pending_end(&pending->wire);
    if (pending->sum.ndim > 0)
        clv_copy(cx, pending->y, pending->sum);
}

void clv_tp_reduce(clv_ctx *cx, clv_tensor y, clv_tensor p)
{
    clv_tp_pending pending = clv_tp_reduce_begin(cx, y, p);
    clv_tp_reduce_end(cx, &pending);
}

clv_tensor clv_tp_rows(const clv_ctx *cx, clv_tensor t, clv_place edge)
{
    if (edge == CLV_R)
        return t;
    const int64_t rows = t.dim[0] / clv_mesh_size(cx->mesh, CLV_TP);
    return clv_placed(clv_slice(t, clv_mesh_coord(cx->mesh, CLV_TP) * rows, rows), CLV_S0);
}
