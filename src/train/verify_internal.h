/* verify_internal.h - how a comparison is judged and printed; shared by verify.c (against PyTorch's values) and
 * verify_layouts.c (against one rank). */
#ifndef CLV_VERIFY_INTERNAL_H
#define CLV_VERIFY_INTERNAL_H

#include "train/train.h"

typedef struct clv_verdict { /* of everything compared so far; the same on all ranks */
    bool print;
    int64_t checks, failed;
} clv_verdict;

/* Limits for fp32: room for another order of summation, and nothing more. */
typedef struct clv_limits {
    double logits, loss, gradient, norm, weight;
} clv_limits;
clv_limits clv_verify_limits(void);

void clv_judge(clv_verdict *v, const char *what, double error, double limit);

/* Layouts like "tp2,tp2sp,tp4" of the ranks of this run, each against one rank that trains the same samples alone. */
clv_status clv_verify_layouts(clv_comm *world, const clv_options *options, clv_verdict *v);

#endif
