/* sample.c - the choice of a token from logits x_i.
 *
 *   p_i ~ exp((x_i - max x) / T) over the k largest x_i, and of these over the fewest largest whose sum reaches p
 *
 * Equal logits are ranked by id, lowest first; T = 0 takes the first. The draw walks the tokens in order of their ids,
 * not of their probabilities: layouts differ in the last bits of logits, and neighbours that change ranks must not
 * change what is drawn. Source: Fan et al. 2018 (top k); Holtzman et al. 2020 (top p).
 */
#include "inference_internal.h"

#include <math.h>
#include <stdlib.h>

typedef struct candidate {
    double x; /* logit, then weight */
    int32_t id;
} candidate;

/* -1 when a logit is NaN or the largest one is not finite. */
static int32_t most_likely(const float *logits, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(logits[i]))
            return -1;
        if (logits[i] > logits[best])
            best = i;
    }
    return n > 0 && isfinite(logits[best]) ? (int32_t)best : -1;
}

static int by_rank(const void *a, const void *b)
{
    const candidate *l = a, *r = b;
    if (l->x != r->x)
        return l->x > r->x ? -1 : 1;
    return l->id < r->id ? -1 : 1;
}

static int by_id(const void *a, const void *b)
{
    const candidate *l = a, *r = b;
    return l->id < r->id ? -1 : 1;
}

/* How many of the first n candidates, in order of rank, make up the share p of their sum. */
static int64_t nucleus(const candidate *c, int64_t n, double p)
{
    double all = 0.0, sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        all += c[i].x;
    int64_t kept = 0;
    while (kept < n && (kept == 0 || sum < p * all))
        sum += c[kept++].x;
    return kept;
}

/* Where the running sum first exceeds u times the whole; a weight of zero is never hit. */
static int32_t draw(const candidate *c, int64_t n, double u)
{
    double all = 0.0, sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        all += c[i].x;
    int32_t last = c[0].id;
    for (int64_t i = 0; i < n; i++) {
        sum += c[i].x;
        if (c[i].x > 0.0)
            last = c[i].id;
        if (u * all < sum)
            break;
    }
    return last;
}

int32_t clv_sample(const clv_sampling *how, const float *logits, int64_t n, double u)
{
    const int32_t best = most_likely(logits, n);
    if (best < 0 || how->temperature == 0.0)
        return best;
    candidate *c = clv_alloc((size_t)n, sizeof *c);
    for (int64_t i = 0; i < n; i++)
        c[i] = (candidate){logits[i], (int32_t)i};
    const bool some = (how->top_k > 0 && how->top_k < n) || how->top_p < 1.0;
    if (some)
        qsort(c, (size_t)n, sizeof *c, by_rank);
    int64_t kept = how->top_k > 0 ? CLV_MIN(how->top_k, n) : n;
    for (int64_t i = 0; i < kept; i++)
        c[i].x = exp((c[i].x - (double)logits[best]) / how->temperature);
    if (how->top_p < 1.0)
        kept = nucleus(c, kept, how->top_p);
    if (some)
        qsort(c, (size_t)kept, sizeof *c, by_id);
    const int32_t id = draw(c, kept, u);
    free(c);
    return id;
}
