/* sample_order.c - in which order the sequences of one set are joined, and the samples of that stream read.
 *
 * The stream of T tokens gives M = (T - 1) div s samples of s + 1 tokens; sample j begins at token j s, so neighbours
 * share one token, and (T - 1) mod s tokens at the end stay unused.
 *
 *   stable     one epoch at a time: both permutations are drawn from (key, epoch).
 *   megatron   n = smallest number of epochs with n T >= samples s + 1. The sequences, repeated n times, are shuffled
 * as a whole, then the samples; when the run needs less than 80 % of the last epoch, that one is shuffled apart in
 * both. One generator serves all, so the order depends on the number of samples asked for.
 *
 * Source: Megatron-LM, megatron/core/datasets/gpt_dataset.py and helpers.cpp.
 */
#include "train/train_data.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- splits ------------------------------------------------------------------------------------------------------ */

static clv_status parse_split(const char *split, double share[3])
{
    double sum = 0;
    const char *at = split;
    for (int i = 0; i < 3; i++)
        share[i] = 0;
    for (int i = 0; i < 3; i++) {
        char *end;
        share[i] = strtod(at, &end);
        if (end == at || !isfinite(share[i]) || share[i] < 0)
            return clv_fail(CLV_BAD_USAGE, "split '%s': expected up to three numbers >= 0, as in 969,30,1", split);
        sum += share[i];
        at = end;
        if (*at != ',')
            break;
        at++;
    }
    if (*at != 0 || !(sum > 0) || !isfinite(sum))
        return clv_fail(CLV_BAD_USAGE, "split '%s': expected up to three numbers with a sum above 0, as in 969,30,1",
                        split);
    for (int i = 0; i < 3; i++)
        share[i] /= sum;
    return clv_ok();
}

clv_status clv_part_of(clv_part *out, const clv_indexed *data, const char *split, int which)
{
    CLV_CHECK(which >= 0 && which < 3, "part %d of a split", which);
    const int64_t sequences = clv_indexed_sequences(data);
    int64_t first = 0, end = sequences;
    if (split != NULL) {
        double share[3], begin = 0;
        CLV_TRY(parse_split(split, share));
        for (int i = 0; i < which; i++)
            begin += share[i];
        first = (int64_t)rint(begin * (double)sequences); /* half to even, as Python rounds */
        end = (int64_t)rint((begin + share[which]) * (double)sequences);
        end = CLV_MIN(end, sequences);
    }
    *out = (clv_part){.data = data, .first = first, .count = end - first};
    for (int64_t i = first; i < end; i++)
        out->tokens += clv_indexed_length(data, i);
    if (out->tokens > 0)
        return clv_ok();
    static const char *const names[] = {"train", "valid", "test"};
    return clv_fail(CLV_BAD_INPUT, "the %s part of split '%s' holds no tokens (%lld of %lld sequences)", names[which],
                    split != NULL ? split : "everything", (long long)out->count, (long long)sequences);
}

int64_t clv_part_samples(const clv_part *part, int64_t seq_length)
{
    return (part->tokens - 1) / seq_length;
}

/* ---- orders ------------------------------------------------------------------------------------------------------ */

/* Cuts the stream into samples: walk on until s + 1 tokens are together, and begin anew at the last of them. */
static void find_rows(clv_sample_order *order, const clv_indexed *data, int64_t seq_length)
{
    clv_row here = {0, 0};
    order->row[0] = here;
    for (int64_t j = 1; j <= order->samples; j++) {
        int64_t missing = seq_length + 1;
        int64_t left = clv_indexed_length(data, order->sequence[here.at]) - here.offset;
        while (left < missing) {
            missing -= left;
            here = (clv_row){here.at + 1, 0};
            left = clv_indexed_length(data, order->sequence[here.at]);
        }
        here.offset += missing - 1;
        order->row[j] = here;
    }
}

static clv_sample_order new_order(int64_t joined, int64_t samples)
{
    return (clv_sample_order){.sequence = clv_alloc((size_t)joined, sizeof(int64_t)),
                              .joined = joined,
                              .row = clv_alloc((size_t)samples + 1, sizeof(clv_row)),
                              .shuffle = clv_alloc((size_t)samples, sizeof(int64_t)),
                              .samples = samples};
}

void clv_order_stable(clv_sample_order *order, const clv_part *part, int64_t seq_length, uint64_t key, int64_t epoch)
{
    const int64_t samples = clv_part_samples(part, seq_length);
    if (order->joined != part->count || order->samples != samples) {
        clv_order_free(order);
        *order = new_order(part->count, samples);
    }
    char name[64];
    snprintf(name, sizeof name, "sequences of epoch %lld", (long long)epoch);
    clv_permutation(order->sequence, part->count, clv_hash_name(key, name));
    for (int64_t i = 0; i < part->count; i++)
        order->sequence[i] += part->first;
    find_rows(order, part->data, seq_length);
    snprintf(name, sizeof name, "samples of epoch %lld", (long long)epoch);
    clv_permutation(order->shuffle, samples, clv_hash_name(key, name));
}

/* The first `whole` elements among themselves, then the rest. */
static void shuffle_apart(clv_mt19937 *mt, int64_t *array, int64_t n, int64_t whole)
{
    clv_mt19937_shuffle(mt, array, whole);
    clv_mt19937_shuffle(mt, array + whole, n - whole);
}

clv_sample_order clv_order_megatron(const clv_part *part, int64_t seq_length, uint32_t seed, int64_t samples)
{
    const int64_t s = seq_length, t = part->tokens;
    const int64_t epochs = CLV_MAX(CLV_CEIL_DIV(samples * s + 1, t), 1);
    const int64_t all = (epochs * t - 1) / s;
    const int64_t before_last = ((epochs - 1) * t - 1) / s;
    const bool apart = epochs > 1 && samples - before_last < (int64_t)(0.80 * (double)((t - 1) / s));

    clv_sample_order order = new_order(epochs * part->count, all);
    clv_mt19937 mt;
    clv_mt19937_seed(&mt, seed);
    for (int64_t i = 0; i < order.joined; i++)
        order.sequence[i] = part->first + i % part->count;
    shuffle_apart(&mt, order.sequence, order.joined, apart ? (epochs - 1) * part->count : order.joined);
    find_rows(&order, part->data, s);
    for (int64_t i = 0; i < all; i++)
        order.shuffle[i] = i;
    shuffle_apart(&mt, order.shuffle, all, apart ? before_last : all);
    return order;
}

void clv_order_free(clv_sample_order *order)
{
    free(order->sequence);
    free(order->row);
    free(order->shuffle);
    *order = (clv_sample_order){0};
}
