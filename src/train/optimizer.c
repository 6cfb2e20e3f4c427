/* optimizer.c - AdamW over the records of the parameters (Loshchilov & Hutter 2019).
 *
 * Each rank updates what it owns of its own shards: all of them, or with the distributed optimizer its share of each
 * bucket. Moments, and the fp32 masters of 16-bit weights, exist for that alone. Copies of a parameter on several ranks
 * stay equal, since they start equal and their gradients were made equal.
 */
#include "train/train.h"

#include <stdlib.h>

/* The record's part of memory that its bucket has in one piece; with the shard's dims when it is all of that. */
static clv_tensor view(const clv_param *p, clv_tensor flat)
{
    const clv_extent own = clv_param_own(p);
    if (own.count == 0)
        return clv_slice(flat, 0, 0);
    const int64_t first = p->bucket != NULL ? p->at + own.first - p->bucket->own.first : 0;
    clv_tensor t = clv_slice(flat, first, own.count);
    for (int i = 0; i < p->ndim && own.count == clv_numel(p->w); i++) {
        t.ndim = p->ndim;
        t.dim[i] = p->w.dim[i];
    }
    return t;
}

/* Both moments start at zero, which fresh pages of an arena are. */
void clv_optimizer_create(clv_optimizer *o, clv_param *params, size_t count, clv_arena *arena)
{
    *o = (clv_optimizer){.count = count, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01};
    o->m = clv_alloc(count, sizeof *o->m);
    o->v = clv_alloc(count, sizeof *o->v);
    const clv_bucket *last = NULL;
    clv_tensor m = {0}, v = {0}, master = {0};
    for (size_t i = 0; i < count; i++) {
        clv_param *p = &params[i];
        if (!p->here)
            continue;
        if (p->bucket == NULL || p->bucket != last) {
            const int64_t n = p->bucket != NULL ? p->bucket->own.count : clv_numel(p->w);
            m = clv_new_as(arena, CLV_F32, n);
            v = clv_new_as(arena, CLV_F32, n);
            if (p->w.dtype != CLV_F32)
                master = clv_new_as(arena, CLV_F32, n);
        }
        last = p->bucket;
        o->m[i] = view(p, m);
        o->v[i] = view(p, v);
        if (p->w.dtype != CLV_F32)
            p->master = view(p, master);
    }
}

void clv_optimizer_destroy(clv_optimizer *o)
{
    free(o->m);
    free(o->v);
    *o = (clv_optimizer){0};
}

void clv_optimizer_step(clv_ctx *cx, clv_optimizer *o, const clv_param *params, double lr, double grad_scale)
{
    clv_adamw update = {.lr = (float)lr,
                        .beta1 = (float)o->beta1,
                        .beta2 = (float)o->beta2,
                        .eps = (float)o->eps,
                        .grad_scale = (float)grad_scale,
                        .step = ++o->step};
    for (size_t i = 0; i < o->count; i++) {
        const clv_param *p = &params[i];
        const clv_extent own = p->here ? clv_param_own(p) : (clv_extent){0, 0};
        if (own.count == 0)
            continue;
        clv_moving to = {.w = clv_elements(p->w, own), .m = o->m[i], .v = o->v[i]};
        if (p->master.ndim > 0) {
            to.half = to.w;
            to.w = p->master;
        }
        update.decay = p->decay ? (float)o->weight_decay : 0.0f;
        clv_adamw_step(cx, &to, clv_elements(p->dw, own), &update);
    }
}
