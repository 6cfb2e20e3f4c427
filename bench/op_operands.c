/* op_operands.c - bench_op: operands, the same in every run. */
#include "op_internal.h"

clv_tensor random_tensor(work *w, int64_t height, int64_t columns)
{
    const clv_tensor t = clv_new_as(&w->data, CLV_F32, height, 1, columns);
    float *x = t.data;
    uint32_t bits = (uint32_t)(height + columns) | 1u;
    for (int64_t i = 0; i < height * columns; i++) {
        bits = bits * 1664525u + 1013904223u;
        x[i] = ((float)(bits >> 8) * 0x1p-24f - 0.5f) * 2.0f;
    }
    return t;
}

clv_tensor integers(work *w, int64_t n, int64_t below)
{
    const clv_tensor t = clv_new_as(&w->data, CLV_I32, n);
    for (int64_t i = 0; i < n; i++)
        ((int32_t *)t.data)[i] = (int32_t)(i * 7919 % below);
    return t;
}

void make_dropout(work *w)
{
    w->drop = (clv_dropout){.p = 0.1f, .key = 1, .sample = clv_new_as(&w->data, CLV_I64, 1)};
    *(int64_t *)w->drop.sample.data = 5;
}
