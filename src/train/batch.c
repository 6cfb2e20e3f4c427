/* batch.c - how many samples an update takes: one number, or one that grows with the samples that are done.
 *
 *   --rampup-batch-size START INCREMENT SAMPLES     with G the global batch and n = (G - START) / INCREMENT:
 *                                                   START + k INCREMENT from ceil(k SAMPLES / n) samples on, k = 0 .. n
 *   --rampup-batch-size 0:32 1M:64 ...              SIZE from floor(TOKENS / s) samples on, s tokens a sample
 *
 * Either is a list of steps. A batch is a function of the samples done, never of the iteration, so that a resume needs
 * no more than their number.  Source: Megatron-LM, core/num_microbatches_calculator.py, and its older ramp-up rule.
 */
#include "train/train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_STEPS = 65536, RAMP_WORDS = 3 };

static void step_add(clv_batch_plan *plan, int64_t from, int64_t size)
{
    plan->step = clv_resize(plan->step, plan->count + 1, sizeof *plan->step);
    plan->step[plan->count++] = (clv_batch_step){from, size};
}

clv_batch_plan clv_batch_plan_one(int64_t size)
{
    clv_batch_plan plan = {0};
    step_add(&plan, 0, size);
    return plan;
}

void clv_batch_plan_free(clv_batch_plan *plan)
{
    free(plan->step);
    *plan = (clv_batch_plan){0};
}

/* ---- from words ---- */

static clv_status ramp(clv_batch_plan *plan, const clv_list *words, int64_t global_batch)
{
    int64_t start = 0, increment = 0, samples = 0;
    const bool numbers = words->count == RAMP_WORDS && clv_parse_i64(words->word[0], &start) &&
                         clv_parse_i64(words->word[1], &increment) && clv_parse_i64(words->word[2], &samples);
    if (!numbers || start < 1 || increment < 1 || samples < 0 || samples > INT64_MAX / MOST_STEPS)
        return clv_fail(CLV_BAD_USAGE,
                        "--rampup-batch-size takes three numbers, START INCREMENT SAMPLES, such as 16 16 "
                        "5000, or steps TOKENS:SIZE, such as 0:32 1M:64");
    const int64_t grow = global_batch - start, steps = grow / increment;
    if (grow < 0 || grow % increment != 0 || steps > MOST_STEPS)
        return clv_fail(
            CLV_BAD_INPUT,
            "rampup-batch-size: from %lld to the global batch %lld in steps of %lld does not come out even; "
            "nearest global batch: %lld",
            (long long)start, (long long)global_batch, (long long)increment,
            (long long)(start + CLV_MAX(grow + increment / 2, 0) / increment * increment));
    for (int64_t k = 0; k <= steps; k++)
        step_add(plan, steps == 0 ? 0 : CLV_CEIL_DIV(k * samples, steps), start + k * increment);
    return clv_ok();
}

/* "250B" tokens: a number with or without one of K M B T. */
static bool tokens_parse(const char *text, size_t length, double *out)
{
    static const char suffix[] = "KMBT";
    char number[32];
    if (length == 0 || length >= sizeof number)
        return false;
    snprintf(number, sizeof number, "%.*s", (int)length, text);
    const char *unit = strchr(suffix, number[length - 1]);
    if (unit != NULL)
        number[length - 1] = 0;
    if (!clv_parse_f64(number, out) || !(*out >= 0))
        return false;
    for (; unit != NULL && unit >= suffix; unit--)
        *out *= 1e3;
    return *out < 0x1p62;
}

static clv_status step_parse(clv_batch_plan *plan, const char *word, size_t length, int64_t seq_length)
{
    const char *colon = memchr(word, ':', length);
    double tokens;
    int64_t size;
    char number[24] = "";
    if (colon != NULL)
        snprintf(number, sizeof number, "%.*s", (int)(length - (size_t)(colon - word) - 1), colon + 1);
    if (colon == NULL || !tokens_parse(word, (size_t)(colon - word), &tokens) || !clv_parse_i64(number, &size) ||
        size < 1 || size > INT32_MAX)
        return clv_fail(CLV_BAD_USAGE, "--rampup-batch-size %.*s: a step is TOKENS:SIZE, such as 250B:1536",
                        (int)CLV_MIN(length, 80), word);
    const int64_t from = (int64_t)tokens / seq_length;
    if (plan->count == 0 ? from != 0 : from <= plan->step[plan->count - 1].from)
        return clv_fail(CLV_BAD_USAGE,
                        "--rampup-batch-size %.*s: steps begin at 0 tokens, and each at more than the one "
                        "before",
                        (int)CLV_MIN(length, 80), word);
    step_add(plan, from, size);
    return clv_ok();
}

static clv_status steps(clv_batch_plan *plan, const clv_list *words, int64_t seq_length)
{
    for (size_t i = 0; i < words->count; i++) /* Megatron's spelling is one word with blanks in it */
        for (const char *at = words->word[i]; *at != 0; at += strspn(at, " ")) {
            const size_t length = strcspn(at, " ");
            if (length > 0)
                CLV_TRY(step_parse(plan, at, length, seq_length));
            at += length;
        }
    return plan->count > 0 ? clv_ok() : clv_fail(CLV_BAD_USAGE, "--rampup-batch-size holds no step");
}

clv_status clv_batch_plan_make(clv_batch_plan *out, const clv_options *o, int64_t global_batch, int64_t seq_length)
{
    const clv_list *words = &o->rampup_batch_size;
    *out = (clv_batch_plan){0};
    if (words->count == 0) {
        *out = clv_batch_plan_one(global_batch);
        return clv_ok();
    }
    const bool by_tokens = strchr(words->word[0], ':') != NULL;
    clv_status st = by_tokens ? steps(out, words, seq_length) : ramp(out, words, global_batch);
    if (st.code == CLV_OK && o->is_set.global_batch_size && clv_batch_plan_last(out) != global_batch)
        st = clv_fail(CLV_BAD_USAGE, "rampup-batch-size ends at %lld, global-batch-size is %lld; drop the latter",
                      (long long)clv_batch_plan_last(out), (long long)global_batch);
    if (st.code != CLV_OK)
        clv_batch_plan_free(out);
    return st;
}

/* ---- what it says ---- */

int64_t clv_batch_plan_last(const clv_batch_plan *plan)
{
    return plan->step[plan->count - 1].size;
}

int64_t clv_batch_plan_largest(const clv_batch_plan *plan)
{
    int64_t most = 0;
    for (size_t i = 0; i < plan->count; i++)
        most = CLV_MAX(most, plan->step[i].size);
    return most;
}

int64_t clv_batch_plan_at(const clv_batch_plan *plan, int64_t samples)
{
    size_t i = plan->count - 1;
    while (plan->step[i].from > samples)
        i--;
    return plan->step[i].size;
}

/* Goes on from *samples until `updates` more are made or `samples_end` is reached; returns those not made. */
static int64_t walk(const clv_batch_plan *plan, int64_t *samples, int64_t updates, int64_t samples_end)
{
    for (size_t i = 0; i < plan->count && updates > 0; i++) {
        const int64_t end = i + 1 < plan->count ? CLV_MIN(plan->step[i + 1].from, samples_end) : samples_end;
        if (*samples >= end)
            continue;
        const int64_t size = plan->step[i].size, left = end - *samples;
        const int64_t n = CLV_MIN(updates, left / size + (left % size != 0));
        if (__builtin_mul_overflow(n, size, &(int64_t){0}) || n * size > INT64_MAX - *samples) {
            *samples = INT64_MAX;
            return updates;
        }
        *samples += n * size;
        updates -= n;
    }
    return updates;
}

int64_t clv_batch_plan_samples(const clv_batch_plan *plan, int64_t updates)
{
    int64_t samples = 0;
    return walk(plan, &samples, updates, INT64_MAX) > 0 ? INT64_MAX : samples;
}

int64_t clv_batch_plan_updates(const clv_batch_plan *plan, int64_t from, int64_t to)
{
    return INT64_MAX - walk(plan, &from, INT64_MAX, to);
}
