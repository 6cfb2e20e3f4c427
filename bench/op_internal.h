/* op_internal.h - a case of bench_op: operands, the kernel that runs on them, what it costs, and who else can do it.
 *
 * A kernel that is added is a function that makes its operands, one that runs it, and a row in the table of its file.
 */
#ifndef BENCH_OP_INTERNAL_H
#define BENCH_OP_INTERNAL_H

#include "comm/comm.h"
#include "op/backend.h"

enum { H = 768, N = 12, D = 64, F = 3072, V = 50304 };

typedef struct work {
    clv_arena data, temp;
    clv_ctx cx;
    const clv_mesh *mesh; /* of one rank */
    const clv_backend *be;
    int64_t s;                /* tokens */
    clv_tensor in[4], out[3]; /* out: what is compared */
    clv_tensor ids, table;
    clv_gemm gemm, wide; /* wide: of bf16 operands, in fp32 */
    clv_norm norm;
    clv_attn attn;
    clv_dropout drop;
    clv_ce ce;
    double flops, bytes; /* one of them */
} work;

typedef struct kernel {
    const char *name;
    void (*make)(work *w); /* operands for w->s tokens */
    void (*run)(work *w);
} kernel;

typedef struct group {
    const kernel *kernels;
    size_t count;
    const char *peer; /* who does the same in this process, on the same operands; NULL: nobody */
    void (*run_peer)(work *w);
} group;

extern const group products, heads, attentions, rows, halves;

/* op_operands.c */
clv_tensor random_tensor(work *w, int64_t height, int64_t columns); /* [height, 1, columns] in -1 .. 1 */
clv_tensor integers(work *w, int64_t n, int64_t below);
void make_dropout(work *w);

#endif
