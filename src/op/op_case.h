/* op_case.h - a case of the operation table: what it is made of and how it is run.
 *
 * A case makes random inputs, runs its operation forward and, where it has one, backward. With L = sum of dout out, the
 * backward fills din = dL/din, added to what din holds for the tensors in `adds`.
 */
#ifndef CLV_OP_CASE_H
#define CLV_OP_CASE_H

#include "op/backend.h"

enum { OP_SLOTS = 4, OP_SIZE = 5 };

typedef struct op_run {
    clv_ctx cx;
    clv_arena values, temp;
    clv_dtype type; /* of values; gradients of weights, and what a case says, are f32 */
    uint64_t seed;  /* of the next random tensor */
    double flops;   /* of forward and backward together; 0 where memory sets the time */
    clv_tensor in[OP_SLOTS], din[OP_SLOTS], out[OP_SLOTS], dout[OP_SLOTS];
    clv_tensor aux[OP_SLOTS]; /* further results: compared between backends, not differentiated */
    int ins, outs, auxs;
    unsigned adds; /* bit i: the backward adds to din[i] */
    clv_linear linear;
    clv_norm norm;
    clv_heads at;
    clv_attn attn;
    clv_dropout drop;
    clv_ce ce;
    clv_act act;
    clv_tensor ids, table;
} op_run;

typedef struct op_case {
    const char *name;
    void (*make)(op_run *r, const struct op_case *c, const int64_t *size);
    void (*forward)(op_run *r);
    void (*backward)(op_run *r);
    const int64_t (*sizes)[OP_SIZE]; /* the first is small: central differences; ends with {0} */
    double tolerance;                /* between backends, as a share of the largest value */
    int kind;                        /* of activation, norm, mask: read by make */
    float p;                         /* dropout, or the smoothing of the loss */
} op_case;

/* ---- making values: nothing is written where there is no memory (planning) ----------------------------------------
 */

static clv_tensor op_noise(op_run *r, clv_dtype type, clv_place place, int ndim, const int64_t *dims)
{
    clv_tensor t = clv_placed(clv_tensor_typed(&r->values, type, ndim, dims), place);
    r->seed++;
    for (int64_t i = 0; t.data != NULL && i < clv_numel(t); i++) {
        float x = (float)clv_normal_at(r->seed, (uint64_t)i);
        const clv_tensor one = {.data = &x, .dim = {1}, .ndim = 1, .dtype = CLV_F32};
        clv_tensor to = {.data = (char *)t.data + (size_t)i * clv_dtype_size(type), .dim = {1}, .ndim = 1};
        to.dtype = type;
        clv_backend_ref()->copy(to, one);
    }
    return t;
}

static clv_tensor op_random(op_run *r, clv_place place, int ndim, const int64_t *dims)
{
    return op_noise(r, place == CLV_P ? CLV_F32 : r->type, place, ndim, dims);
}

#define OP_RANDOM(r, place, ...)                                                                                       \
    op_random(r, place, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__})

/* i32 tensors [n] of low .. high - 1. */
static clv_tensor op_integers(op_run *r, int64_t n, int64_t low, int64_t high)
{
    clv_tensor t = clv_new_as(&r->values, CLV_I32, n);
    r->seed++;
    for (int64_t i = 0; t.data != NULL && i < n; i++)
        ((int32_t *)t.data)[i] = (int32_t)(low + (int64_t)(clv_uniform_at(r->seed, (uint64_t)i) * (float)(high - low)));
    return t;
}

/* A gradient that starts as noise: what is written over it must not show, what is added to it must. */
static void op_in(op_run *r, clv_tensor t, clv_place gradient, bool adds)
{
    r->in[r->ins] = t;
    const bool weight = adds && gradient == CLV_R;
    r->din[r->ins] = op_noise(r, weight || gradient == CLV_P ? CLV_F32 : r->type, gradient, t.ndim, t.dim);
    r->adds |= adds ? 1u << r->ins : 0;
    r->ins++;
}

static void op_out(op_run *r, clv_place place, clv_place gradient, int ndim, const int64_t *dims)
{
    const clv_dtype type = place == CLV_P ? CLV_F32 : r->type;
    r->out[r->outs] = clv_placed(clv_tensor_typed(&r->values, type, ndim, dims), place);
    r->dout[r->outs] = op_random(r, gradient, ndim, dims);
    r->outs++;
}

static clv_dropout op_dropout(op_run *r, float p, int64_t batch)
{
    clv_dropout drop = {.p = p, .key = ++r->seed, .sample = clv_new_as(&r->values, CLV_I64, batch), .first = 3};
    for (int64_t j = 0; drop.sample.data != NULL && j < batch; j++)
        ((int64_t *)drop.sample.data)[j] = 1000 + 7 * j;
    return drop;
}

/* ---- running a case
 * ---------------------------------------------------------------------------------------------------- */

/* The arenas and the type of r are set; the same seed gives the same values on every backend. */
static void op_start(op_run *r, const op_case *c, const clv_backend *be, const int64_t *size)
{
    const clv_arena values = r->values, temp = r->temp;
    *r = (op_run){.values = values, .temp = temp, .type = r->type, .seed = 100};
    r->values.used = r->values.peak = r->temp.used = r->temp.peak = 0;
    r->values.dtype = r->temp.dtype = CLV_F32;
    r->cx = (clv_ctx){.be = be, .temp = &r->temp};
    c->make(r, c, size);
}

static void op_run_all(op_run *r, const op_case *c)
{
    c->forward(r);
    if (c->backward != NULL)
        c->backward(r);
}

#endif
