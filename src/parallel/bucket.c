/* bucket.c - gradients over the ranks that see other tokens, a block's at a time.
 *
 *   plain                    all-reduce of dw                                      every rank updates everything
 *   distributed optimizer    reduce-scatter of dw, update of a share, all-gather of w      (Rajbhandari et al. 2020)
 *
 * A bucket is cut into equal shares without regard to the parameters in it, so the shares of all ranks weigh the same.
 * An element is added up in rank order either way, so both give the same bits. The backward completes buckets from the
 * last to the first; begun while it goes on or all at its end, they go in this order on every rank.
 */
#include "parallel.h"

#include <stdlib.h>

clv_extent clv_share(int64_t n, int ranks, int rank)
{
    CLV_CHECK(n % ranks == 0, "%lld elements do not go to %d ranks in equal parts", (long long)n, ranks);
    return (clv_extent){n / ranks * rank, n / ranks};
}

clv_tensor clv_elements(clv_tensor t, clv_extent elements)
{
    t.dim[0] = clv_numel(t);
    t.ndim = 1;
    return clv_slice(t, elements.first, elements.count);
}

clv_extent clv_param_within(const clv_param *p, clv_extent extent)
{
    const int64_t n = clv_numel(p->w), first = CLV_MAX(extent.first - p->at, 0);
    const int64_t end = CLV_MIN(extent.first + extent.count - p->at, n);
    return first < end ? (clv_extent){first, end - first} : (clv_extent){0, 0};
}

clv_extent clv_param_own(const clv_param *p)
{
    return p->bucket != NULL ? clv_param_within(p, p->bucket->own) : (clv_extent){0, clv_numel(p->w)};
}

static bool is_shared(const clv_bucket *b)
{
    return b->own.count < clv_numel(b->w);
}

bool clv_param_is_shared(const clv_param *p)
{
    return p->bucket != NULL && is_shared(p->bucket);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

clv_gradients clv_gradients_create(const clv_param *params, const clv_bucket *bucket, size_t count, size_t limit)
{
    return (clv_gradients){.params = params,
                           .bucket = bucket,
                           .count = count,
                           .begun = count,
                           .ended = count,
                           .limit = limit,
                           .pending = clv_alloc(count, sizeof(clv_pending))};
}

void clv_gradients_destroy(clv_gradients *g)
{
    free(g->pending);
    *g = (clv_gradients){0};
}

static clv_pending reduce_begin(clv_ctx *cx, const clv_param *params, const clv_bucket *b)
{
    clv_comm *replicas = clv_mesh_comm(cx->mesh, CLV_REPLICAS);
    clv_gradient_sum(cx, params + b->first, b->count);
    if (is_shared(b))
        return clv_reduce_scatter_begin(replicas, clv_elements(b->dw, b->own).data, b->dw.data, (size_t)b->own.count,
                                        CLV_F32);
    return clv_all_reduce_begin(replicas, b->dw.data, b->dw.data, (size_t)clv_numel(b->dw), CLV_F32);
}

void clv_gradients_ready(clv_ctx *cx, clv_gradients *g, size_t from)
{
    while (g != NULL && g->begun > from) {
        if (g->limit > 0 && g->ended - g->begun == g->limit)
            clv_pending_end(&g->pending[--g->ended]);
        g->begun--;
        g->pending[g->begun] = reduce_begin(cx, g->params, &g->bucket[g->begun]);
        if (g->limit == 0)
            clv_pending_end(&g->pending[--g->ended]);
    }
}

/* With a pipeline the tied matrix lies on both end stages: one gave the gradient of the lookup, one that of the logits.
 * It has a bucket of its own there. */
static void tied_sum(clv_ctx *cx, const clv_gradients *g)
{
    clv_comm *ends = clv_mesh_ends(cx->mesh);
    for (size_t i = 0; ends != NULL && i < g->count; i++) {
        const clv_bucket *b = &g->bucket[i];
        const clv_tensor own = clv_elements(b->dw, b->own);
        if (g->params[b->first].tied)
            clv_all_reduce(ends, own.data, own.data, (size_t)clv_numel(own), CLV_F32, CLV_SUM);
    }
}

void clv_gradients_finish(clv_ctx *cx, clv_gradients *g)
{
    clv_gradients_ready(cx, g, 0);
    while (g->ended > 0)
        clv_pending_end(&g->pending[--g->ended]);
    tied_sum(cx, g);
    g->begun = g->ended = g->count; /* of the next step */
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

void clv_weights_gather(clv_ctx *cx, const clv_bucket *bucket, size_t count)
{
    clv_comm *replicas = clv_mesh_comm(cx->mesh, CLV_REPLICAS);
    clv_pending pending[4] = {{0}};
    for (size_t i = 0; i < count; i++) {
        const clv_bucket *b = &bucket[i];
        clv_pending *slot = &pending[i % CLV_COUNT(pending)];
        clv_pending_end(slot);
        if (is_shared(b))
            *slot = clv_all_gather_begin(replicas, b->w.data, clv_elements(b->w, b->own).data, (size_t)b->own.count,
                                         b->w.dtype);
    }
    for (size_t i = 0; i < CLV_COUNT(pending); i++)
        clv_pending_end(&pending[i]);
}
