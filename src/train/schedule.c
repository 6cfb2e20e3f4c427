/* schedule.c - pipeline schedules as plain lists of actions, one list a stage. Nothing here communicates or computes.
 *
 *   gpipe        all forwards, then all backwards
 *   1f1b         p - 1 - stage forwards to warm up, then one forward and one backward in turn, then the rest
 *   interleaved  1f1b over v chunks a stage: micro-batches go in groups of p, each group through all chunks
 *
 * Chunk c of stage i is the (c p + i)-th part of the model. Source: Huang et al. 2019 (gpipe), Narayanan et al. 2019
 * and 2021 (1F1B, interleaved).
 */
#include "train.h"

#include <stdlib.h>
#include <string.h>

static void add(clv_schedule *s, clv_action_kind kind, int chunk, int micro)
{
    s->action[s->count++] = (clv_action){.kind = kind, .chunk = chunk, .micro = micro};
}

static clv_schedule schedule_new(int chunks, int micros)
{
    return (clv_schedule){.action = clv_alloc((size_t)(2 * chunks * micros), sizeof(clv_action))};
}

static clv_schedule gpipe(int micros)
{
    clv_schedule s = schedule_new(1, micros);
    for (int i = 0; i < micros; i++)
        add(&s, CLV_FORWARD, 0, i);
    for (int i = 0; i < micros; i++)
        add(&s, CLV_BACKWARD, 0, i);
    return s;
}

/* The k-th forward in the order of groups; the k-th backward goes through the chunks from the last. */
static void add_kth(clv_schedule *s, clv_action_kind kind, int k, const clv_pipeline *p)
{
    const int group = p->stages * p->chunks;
    const int chunk = k % group / p->stages, micro = k / group * p->stages + k % p->stages;
    add(s, kind, kind == CLV_FORWARD ? chunk : p->chunks - 1 - chunk, micro);
}

static clv_schedule one_forward_one_backward(const clv_pipeline *p)
{
    clv_schedule s = schedule_new(p->chunks, p->micros);
    const int total = p->chunks * p->micros, behind = p->stages - 1 - p->stage;
    const int warm = CLV_MIN(total, p->chunks == 1 ? behind : 2 * behind + (p->chunks - 1) * p->stages);
    for (int k = 0; k < warm; k++)
        add_kth(&s, CLV_FORWARD, k, p);
    for (int k = 0; k < total - warm; k++) {
        add_kth(&s, CLV_FORWARD, warm + k, p);
        add_kth(&s, CLV_BACKWARD, k, p);
    }
    for (int k = total - warm; k < total; k++)
        add_kth(&s, CLV_BACKWARD, k, p);
    return s;
}

clv_pipeline_kind clv_options_schedule(const clv_options *options)
{
    return strcmp(options->pipeline_schedule, "gpipe") == 0 ? CLV_GPIPE : CLV_1F1B;
}

clv_status clv_pipeline_check(const clv_pipeline *p)
{
    if (p->chunks > 1 && p->stages < 2)
        return clv_fail(CLV_BAD_INPUT,
                        "virtual pipeline stages need pipeline-model-parallel-size of at least 2, not %d", p->stages);
    if (p->chunks > 1 && p->micros % p->stages != 0)
        return clv_fail(CLV_BAD_INPUT,
                        "the interleaved schedule needs a number of micro-batches that is a multiple of "
                        "pipeline-model-parallel-size: %d micro-batches, %d stages; nearest: %d and %d",
                        p->micros, p->stages, CLV_MAX(p->micros / p->stages, 1) * p->stages,
                        CLV_CEIL_DIV(p->micros, p->stages) * p->stages);
    if (p->chunks > 1 && p->kind == CLV_GPIPE)
        return clv_fail(CLV_BAD_INPUT, "gpipe has no interleaved form; use 1f1b with virtual stages");
    return clv_ok();
}

clv_schedule clv_schedule_create(const clv_pipeline *p)
{
    return p->kind == CLV_GPIPE ? gpipe(p->micros) : one_forward_one_backward(p);
}

clv_schedule clv_schedule_forward(const clv_pipeline *p)
{
    clv_schedule s = schedule_new(p->chunks, p->micros);
    if (p->micros % p->stages == 0)
        for (int k = 0; k < p->chunks * p->micros; k++)
            add_kth(&s, CLV_FORWARD, k, p);
    else /* a remainder that fills no group: one micro-batch after the other */
        for (int k = 0; k < p->chunks * p->micros; k++)
            add(&s, CLV_FORWARD, k % p->chunks, k / p->chunks);
    return s;
}

void clv_schedule_destroy(clv_schedule *s)
{
    free(s->action);
    *s = (clv_schedule){0};
}

int clv_schedule_in_flight(const clv_schedule *s, int chunk)
{
    int live = 0, most = 0;
    for (int i = 0; i < s->count; i++) {
        if (s->action[i].chunk != chunk)
            continue;
        live += s->action[i].kind == CLV_FORWARD ? 1 : -1;
        most = CLV_MAX(most, live);
    }
    return most;
}
