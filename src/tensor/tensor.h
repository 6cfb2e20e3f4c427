/* tensor.h - a value: where it lies, its shape, its type, and how it is placed over the tensor-parallel ranks.
 *
 * A tensor owns nothing and is contiguous, row-major. Its placement is a claim that operations check:
 *
 *   R    the same on every tp rank                       S0   each rank has its rows of dim 0 (the sequence)
 *   SL   each rank has its part of the last dim          P    each rank has a summand; the value is the sum over tp
 *
 * At tp = 1 the four mean the same memory, yet the tags still flow and still check.
 */
#ifndef CLV_TENSOR_H
#define CLV_TENSOR_H

#include "base/base.h"

typedef enum clv_place { CLV_R, CLV_S0, CLV_SL, CLV_P } clv_place;

enum { CLV_DIMS = 4 };

typedef struct clv_tensor {
    void *data; /* NULL in a planning run; never read on the host except through the backend */
    int64_t dim[CLV_DIMS];
    int ndim; /* 0: no tensor */
    clv_dtype dtype;
    clv_place place;
} clv_tensor;

/* What one micro-batch runs in. */
typedef struct clv_ctx {
    const struct clv_backend *be;              /* op/backend.h */
    const struct clv_mesh *mesh;               /* comm/comm.h */
    clv_arena *save;                           /* lives until this micro-batch's backward */
    clv_arena *temp;                           /* lives until the enclosing mark */
    struct clv_rng *rng;                       /* parallel/parallel.h; NULL where nothing is random (evaluation) */
    void (*idle)(const struct clv_mesh *mesh); /* between panels of a long product; NULL: nothing is in flight */
} clv_ctx;

/* The end of a forward's scratch. Where save and temp are one arena (recomputation, evaluation) what was saved lies
 * among it, so nothing is released: the caller's mark does that. */
void clv_forward_release(const clv_ctx *cx, size_t mark);

size_t clv_dtype_size(clv_dtype dtype);
const char *clv_dtype_name(clv_dtype dtype);
/* dtype.c: n values in host memory, stored as f32, bf16 or f16, from and to floats. */
void clv_widen(float *out, const void *in, clv_dtype dtype, size_t n);
void clv_narrow(void *out, clv_dtype dtype, const float *in, size_t n);
const char *clv_place_name(clv_place place);

/* A tensor in an arena. Type: the arena's, but partial sums (P) are always fp32. */
#define clv_new(arena, place, ...)                                                                                     \
    clv_tensor_new(arena, place, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__})
clv_tensor clv_tensor_new(clv_arena *arena, clv_place place, int ndim, const int64_t *dims);
/* The same with a type of its own (statistics in fp32, tokens in i32). Replicated. */
#define clv_new_as(arena, type, ...)                                                                                   \
    clv_tensor_typed(arena, type, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__})
clv_tensor clv_tensor_typed(clv_arena *arena, clv_dtype dtype, int ndim, const int64_t *dims);

int64_t clv_numel(clv_tensor t);
size_t clv_bytes(clv_tensor t);
int64_t clv_last(clv_tensor t); /* its last dim */
int64_t clv_rows(clv_tensor t); /* elements / last dim */
bool clv_same_shape(clv_tensor a, clv_tensor b);
clv_tensor clv_slice(clv_tensor t, int64_t first, int64_t n); /* n entries of dim 0 */
clv_tensor clv_reshape2(clv_tensor t, int64_t rows, int64_t columns);
clv_tensor clv_placed(clv_tensor t, clv_place place); /* the same memory with another claim; say why where used */
/* "[24,2,32] f32 R", for messages; out holds at least 96 bytes. */
const char *clv_describe(clv_tensor t, char *out);

#endif
