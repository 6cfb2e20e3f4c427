/* dataset.c - one or several token sets behind one handle: sample i -> seq_length + 1 tokens.
 *
 * Blend: sample x comes from the set with the largest  weight max(x, 1) - taken  (the first wins a tie), weights
 * summing to 1. The rule looks at nothing behind x, so a blend's order does not depend on the run's length either. It
 * is played forward as samples are asked for; an index before the last one starts it again. Source: Megatron-LM,
 * megatron/core/datasets/blended_dataset.py and helpers.cpp.
 */
#include "train/train_data.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct drawing { /* the order of an epoch to come */
    clv_task *task;      /* NULL: none; `order` is memory for the next one */
    const clv_part *part;
    int64_t seq_length, epoch;
    uint64_t key;
    clv_sample_order order;
} drawing;

typedef struct token_set {
    char *prefix;
    clv_indexed *data;
    clv_part part;
    double weight;     /* of all sets together: 1 */
    int64_t per_epoch; /* samples */
    int64_t epoch;     /* which `order` holds, -1 for none yet; always 0 in Megatron's, whose epochs are one */
    clv_sample_order order;
    drawing next;
    int64_t taken; /* samples of the blend before `next` that are from here */
} token_set;

struct clv_dataset {
    token_set *set;
    size_t count;
    int64_t next; /* sample of the blend that comes next */
    int64_t seq_length, vocab;
    uint64_t seed;
    clv_data_order kind;
    int which;
};

/* ---- epochs --------------------------------------------------------------------------------------------------- */

enum { FEW = 4096 }; /* samples that are drawn in no time */

static void draw(void *next)
{
    drawing *d = next;
    clv_order_stable(&d->order, d->part, d->seq_length, d->key, d->epoch);
}

/* In the memory of the epoch before last: giving hundreds of megabytes back, and touching fresh ones, takes as long as
 * a small step. */
static void drawing_begin(const clv_dataset *data, token_set *set, int64_t epoch)
{
    char name[64];
    snprintf(name, sizeof name, "data set %td", set - data->set);
    set->next = (drawing){.part = &set->part,
                          .seq_length = data->seq_length,
                          .epoch = epoch,
                          .key = clv_hash_name(data->seed, name),
                          .order = set->next.order};
}

static void epoch_enter(const clv_dataset *data, token_set *set, int64_t epoch)
{
    const bool drawn = set->next.task != NULL && set->next.epoch == epoch;
    clv_task_end(set->next.task);
    set->next.task = NULL;
    if (!drawn) {
        drawing_begin(data, set, epoch);
        draw(&set->next);
    }
    const clv_sample_order spent = set->order;
    set->order = set->next.order;
    set->next.order = spent;
    set->epoch = epoch;
}

/* Ten million samples take seconds: while the last eighth of an epoch is read, the next one is drawn. */
static void draw_ahead(const clv_dataset *data, token_set *set, int64_t within)
{
    if (set->per_epoch < FEW || set->next.task != NULL || within < set->per_epoch - set->per_epoch / 8)
        return;
    drawing_begin(data, set, set->epoch + 1);
    set->next.task = clv_task_start(draw, &set->next);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static clv_status open_set(token_set *set, const clv_dataset_spec *spec)
{
    CLV_TRY(clv_indexed_open(&set->data, set->prefix));
    CLV_TRY(clv_within(clv_part_of(&set->part, set->data, spec->split, spec->which), "%s", set->prefix));
    set->per_epoch = clv_part_samples(&set->part, spec->seq_length);
    if (set->per_epoch == 0 && spec->order == CLV_ORDER_STABLE)
        return clv_fail(CLV_BAD_INPUT,
                        "%s: its part of the split has %lld tokens, a sample needs %lld; lower the sequence length or "
                        "give this part more",
                        set->prefix, (long long)set->part.tokens, (long long)spec->seq_length + 1);
    return clv_ok();
}

static clv_status find_weights(clv_dataset *data, const clv_dataset_spec *spec)
{
    double sum = 0;
    for (size_t i = 0; i < data->count; i++) {
        token_set *set = &data->set[i];
        set->weight = spec->weight != NULL ? spec->weight[i] : (double)set->per_epoch;
        if (!isfinite(set->weight) || set->weight < 0)
            return clv_fail(CLV_BAD_USAGE, "weight %g of data set %s: expected a number >= 0", set->weight,
                            set->prefix);
        sum += set->weight;
    }
    if (!(sum > 0))
        return clv_fail(CLV_BAD_USAGE, "the weights of the %zu data sets sum to %g, expected more than 0", data->count,
                        sum);
    for (size_t i = 0; i < data->count; i++)
        data->set[i].weight /= sum;
    return clv_ok();
}

/* How many samples Megatron asks of a set: the blend's, with a surplus of half a percent against rounding. */
static int64_t samples_of_set(const clv_dataset *data, size_t i, int64_t samples)
{
    if (data->count == 1)
        return samples;
    return (int64_t)ceil(ceil((double)samples * data->set[i].weight) * 1.005);
}

static clv_status draw_megatron(clv_dataset *data, const clv_dataset_spec *spec)
{
    if (spec->samples < 1 || spec->seed > UINT32_MAX)
        return clv_fail(CLV_BAD_USAGE,
                        "Megatron's data order with %lld samples and seed %llu: expected at least one "
                        "sample and a seed below 2^32",
                        (long long)spec->samples, (unsigned long long)spec->seed);
    if (spec->weight == NULL && data->count > 1)
        return clv_fail(CLV_BAD_USAGE, "Megatron's data order blends %zu data sets only by weights: give each one",
                        data->count);
    for (size_t i = 0; i < data->count; i++) {
        token_set *set = &data->set[i];
        set->order = clv_order_megatron(&set->part, data->seq_length, (uint32_t)data->seed,
                                        samples_of_set(data, i, spec->samples));
        set->epoch = 0;
    }
    return clv_ok();
}

static clv_status open_all(clv_dataset *data, const clv_dataset_spec *spec)
{
    for (size_t i = 0; i < data->count; i++) {
        data->set[i].prefix = clv_strdup(spec->prefix[i]);
        data->set[i].epoch = -1;
    }
    for (size_t i = 0; i < data->count; i++)
        CLV_TRY(open_set(&data->set[i], spec));
    if (data->count > 0)
        CLV_TRY(find_weights(data, spec));
    return data->count > 0 && data->kind == CLV_ORDER_MEGATRON ? draw_megatron(data, spec) : clv_ok();
}

clv_status clv_dataset_open(clv_dataset **out, const clv_dataset_spec *spec)
{
    CLV_CHECK(spec->seq_length > 0 && spec->vocab > 0, "sequence length %lld, vocabulary %lld",
              (long long)spec->seq_length, (long long)spec->vocab);
    clv_dataset *data = clv_alloc(1, sizeof *data);
    *data = (clv_dataset){.count = spec->count,
                          .seq_length = spec->seq_length,
                          .vocab = spec->vocab,
                          .seed = spec->seed,
                          .kind = spec->order,
                          .which = spec->which};
    data->set = clv_alloc(CLV_MAX(spec->count, 1), sizeof *data->set);
    const clv_status st = open_all(data, spec);
    *out = data;
    if (st.code != CLV_OK) {
        clv_dataset_close(data);
        *out = NULL;
    }
    return st;
}

void clv_dataset_close(clv_dataset *data)
{
    if (data == NULL)
        return;
    for (size_t i = 0; i < data->count; i++) {
        clv_task_end(data->set[i].next.task);
        clv_order_free(&data->set[i].next.order);
        clv_order_free(&data->set[i].order);
        clv_indexed_close(data->set[i].data);
        free(data->set[i].prefix);
    }
    free(data->set);
    free(data);
}

/* ---- samples ----------------------------------------------------------------------------------------------------- */

/* Which set gives sample `index` of the blend, and which of that set's samples it is. */
static token_set *locate(clv_dataset *data, int64_t index, int64_t *within)
{
    if (data->count == 1) {
        *within = index;
        return data->set;
    }
    if (index < data->next) {
        data->next = 0;
        for (size_t i = 0; i < data->count; i++)
            data->set[i].taken = 0;
    }
    token_set *chosen = NULL;
    for (; data->next <= index; data->next++) {
        const double x = (double)CLV_MAX(data->next, 1);
        double most = -INFINITY;
        for (size_t i = 0; i < data->count; i++) {
            const double due = data->set[i].weight * x - (double)data->set[i].taken;
            if (due > most) {
                most = due;
                chosen = &data->set[i];
            }
        }
        chosen->taken++;
    }
    *within = chosen->taken - 1;
    return chosen;
}

/* The order that holds the set's sample `within`, which becomes an index into it. */
static clv_status turn_to(const clv_dataset *data, token_set *set, int64_t *within)
{
    if (data->kind == CLV_ORDER_MEGATRON) {
        if (*within < set->order.samples)
            return clv_ok();
        return clv_fail(CLV_BAD_INPUT,
                        "%s: sample %lld, but Megatron's data order was drawn for a run that needs %lld; "
                        "it depends on the length of the run, the stable order does not",
                        set->prefix, (long long)*within, (long long)set->order.samples);
    }
    const int64_t epoch = *within / set->per_epoch;
    *within %= set->per_epoch;
    if (epoch != set->epoch)
        epoch_enter(data, set, epoch);
    draw_ahead(data, set, *within);
    return clv_ok();
}

static clv_status read_sample(const clv_dataset *data, const token_set *set, int64_t within, int32_t *tokens)
{
    clv_row here = set->order.row[set->order.shuffle[within]];
    for (int64_t got = 0; got <= data->seq_length; here = (clv_row){here.at + 1, 0}) {
        const int64_t sequence = set->order.sequence[here.at];
        const int64_t left = clv_indexed_length(set->data, sequence) - here.offset;
        const int64_t n = CLV_MIN(left, data->seq_length + 1 - got);
        CLV_TRY(clv_indexed_read(set->data, sequence, here.offset, n, tokens + got));
        got += n;
    }
    uint32_t highest = 0; /* a negative id becomes a large one */
    for (int64_t i = 0; i <= data->seq_length; i++)
        highest = CLV_MAX(highest, (uint32_t)tokens[i]);
    return highest < (uint64_t)data->vocab ? clv_ok() : clv_indexed_check(set->data, data->vocab);
}

/* Uniform below vocab, a function of (seed, part, index, position). */
static void make_up(const clv_dataset *data, int64_t index, int32_t *tokens)
{
    static const char *const names[] = {"mock train", "mock valid", "mock test"};
    const uint64_t key = clv_hash_name(data->seed, names[data->which]);
    const uint32_t k[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    for (int64_t i = 0; i <= data->seq_length; i += 4) {
        const uint32_t counter[4] = {(uint32_t)index, (uint32_t)((uint64_t)index >> 32), (uint32_t)(i / 4), 0};
        const clv_philox r = clv_philox_block(counter, k);
        for (int64_t j = i; j <= CLV_MIN(i + 3, data->seq_length); j++)
            tokens[j] = (int32_t)(((uint64_t)r.word[j - i] * (uint64_t)data->vocab) >> 32);
    }
}

clv_status clv_dataset_sample(clv_dataset *data, int64_t index, int32_t *tokens)
{
    CLV_CHECK(index >= 0, "sample %lld", (long long)index);
    if (data->count == 0) {
        make_up(data, index, tokens);
        return clv_ok();
    }
    int64_t within;
    token_set *set = locate(data, index, &within);
    CLV_TRY(turn_to(data, set, &within));
    return read_sample(data, set, within, tokens);
}

/* ---- what it is -------------------------------------------------------------------------------------------------- */

int64_t clv_dataset_samples_per_epoch(const clv_dataset *data)
{
    int64_t sum = data->count == 0 ? INT64_MAX : 0;
    for (size_t i = 0; i < data->count; i++)
        sum += data->set[i].per_epoch;
    return sum;
}

clv_status clv_dataset_check(const clv_dataset *data)
{
    for (size_t i = 0; i < data->count; i++)
        CLV_TRY(clv_indexed_check(data->set[i].data, data->vocab));
    return clv_ok();
}

void clv_dataset_describe(const clv_dataset *data, int64_t samples, clv_text *out)
{
    if (data->count == 0)
        clv_text_printf(out, "made-up tokens below %lld\n", (long long)data->vocab);
    for (size_t i = 0; i < data->count; i++) {
        const token_set *set = &data->set[i];
        const int64_t unused = set->part.tokens - 1 - set->per_epoch * data->seq_length;
        const double asked = (double)samples * set->weight;
        clv_text_printf(out, "%s: %lld sequences, %lld tokens; an epoch: %lld samples, %lld tokens unused; ",
                        set->prefix, (long long)set->part.count, (long long)set->part.tokens, (long long)set->per_epoch,
                        (long long)unused);
        clv_text_printf(out, "weight %.4g, %.0f samples, %.3g epochs\n", set->weight, asked,
                        asked * (double)data->seq_length / (double)set->part.tokens);
    }
}

/* ---- ends of documents ------------------------------------------------------------------------------------------- */

void clv_eod_apply(const clv_eod_rules *rules, const int32_t *tokens, int64_t n, float *loss_mask, int32_t *position,
                   int32_t *document_start)
{
    int64_t start = 0;
    for (int64_t i = 0; i < n; i++) {
        const bool end = rules->eod >= 0 && tokens[i] == rules->eod;
        loss_mask[i] = end && rules->mask_loss ? 0 : 1;
        position[i] = (int32_t)(rules->reset_positions ? i - start : i);
        document_start[i] = (int32_t)(rules->reset_attention ? start : 0);
        if (end)
            start = i + 1; /* the mark itself still belongs to the document that it ends */
    }
}
