/* optimizer.c - AdamW over the records of the parameters (Loshchilov & Hutter 2019).
 *
 * Each rank updates its own shards with its own moments. Copies of a parameter on several ranks stay equal, since they
 * start equal and their gradients were made equal.
 */
#include "train/train.h"

#include <stdlib.h>

/* Both moments start at zero, which fresh pages of an arena are. */
void clv_optimizer_create(clv_optimizer *o, const clv_param *params, size_t count, clv_arena *arena)
{
    *o = (clv_optimizer){.count = count, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01};
    o->m = clv_alloc(count, sizeof *o->m);
    o->v = clv_alloc(count, sizeof *o->v);
    for (size_t i = 0; i < count; i++) {
        if (!params[i].here)
            continue;
        o->m[i] = clv_tensor_typed(arena, CLV_F32, params[i].w.ndim, params[i].w.dim);
        o->v[i] = clv_tensor_typed(arena, CLV_F32, params[i].w.ndim, params[i].w.dim);
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
        if (!params[i].here)
            continue;
        update.decay = params[i].decay ? (float)o->weight_decay : 0.0f;
        clv_adamw_step(cx, params[i].w, o->m[i], o->v[i], params[i].dw, &update);
    }
}
