/* micro.c - a micro-batch: samples on the host, [count][width], become tensors [s, b] in the arena of what is saved. */
#include "train/engine_internal.h"

#include <stdlib.h>

/* Columns 0 .. s - 1 of b samples of `width` entries; NULL gives the shape alone, for the counting run. */
static clv_tensor transposed(clv_ctx *cx, const int32_t *from, int64_t width, int64_t s, int64_t b)
{
    clv_tensor t = clv_new_as(cx->save, CLV_I32, s, b);
    if (from == NULL)
        return t;
    int32_t *host = clv_alloc((size_t)(s * b), sizeof *host);
    for (int64_t j = 0; j < b; j++)
        for (int64_t i = 0; i < s; i++)
            host[i * b + j] = from[j * width + i];
    clv_from_host(cx, t, host);
    free(host);
    return t;
}

static clv_tensor weights(clv_ctx *cx, const float *mask, int64_t s, int64_t b, double scale)
{
    clv_tensor t = clv_new_as(cx->save, CLV_F32, s, b);
    float *host = clv_alloc((size_t)(s * b), sizeof *host);
    for (int64_t j = 0; j < b; j++)
        for (int64_t i = 0; i < s; i++)
            host[i * b + j] = (float)(scale * (mask == NULL ? 1.0 : (double)mask[j * s + i]));
    clv_from_host(cx, t, host);
    free(host);
    return t;
}

static clv_tensor positions(clv_ctx *cx, const int32_t *from, int64_t s, int64_t b)
{
    if (from != NULL)
        return transposed(cx, from, s, s, b);
    int32_t *plain = clv_alloc((size_t)(s * b), sizeof *plain);
    for (int64_t i = 0; i < s * b; i++)
        plain[i] = (int32_t)(i % s);
    clv_tensor t = transposed(cx, plain, s, s, b);
    free(plain);
    return t;
}

void clv_micro_create(clv_engine *e, clv_slot *slot, const clv_pass *pass, int micro)
{
    clv_ctx *cx = &e->cx;
    const clv_samples *from = pass->samples;
    const int64_t s = e->spec.seq_length, b = e->spec.micro_batch, at = micro * b;
    const int32_t *tokens = from->tokens == NULL ? NULL : from->tokens + at * (s + 1);
    const double scale = pass->scale == NULL ? 1.0 : pass->scale[micro];
    slot->batch = (clv_batch){.tokens = transposed(cx, tokens, s + 1, s, b),
                              .target = transposed(cx, tokens == NULL ? NULL : tokens + 1, s + 1, s, b),
                              .pos = positions(cx, from->position == NULL ? NULL : from->position + at * s, s, b),
                              .weight = weights(cx, from->mask == NULL ? NULL : from->mask + at * s, s, b, scale)};
    if (e->spec.documents)
        slot->batch.doc = transposed(cx, from->document == NULL ? NULL : from->document + at * s, s, s, b);
    slot->sample = clv_new_as(cx->save, CLV_I64, b);
    if (from->index != NULL)
        clv_from_host(cx, slot->sample, from->index + at);
    e->rng.sample = slot->sample;
}
