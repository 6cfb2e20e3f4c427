/* pipeline.c - the one executor of every schedule: a list of forwards and backwards, and what goes between stages.
 *
 * Before an action runs, the receive of the next one is posted; a result is copied into one of two buffers and sent
 * from there, and the buffer is waited for only when it is needed again. So two neighbours that send to each other at
 * the same time both find a receive that waits for them, whatever the size of the message.
 *
 * Part q of the model lies on stage q % p. Forward results go to part q + 1, gradients to part q - 1; a message is told
 * from others of the same pair of ranks by direction, part and micro-batch.
 */
#include "train/engine_internal.h"

#include <stdlib.h>

enum { TAGS = 1 << 14 };

typedef struct run {
    clv_engine *e;
    const clv_pass *pass;
    clv_schedule list;
    clv_comm *pp;
    clv_pending in[2], out[2];
    int sent;
} run;

static int part_of(const run *r, const clv_action *a)
{
    return r->e->chunk[a->chunk].part;
}

/* Does the action wait for a neighbour, and does its result go to one? */
static bool receives(const run *r, const clv_action *a)
{
    return a->kind == CLV_FORWARD ? part_of(r, a) > 0 : part_of(r, a) < r->e->parts - 1;
}

static bool sends(const run *r, const clv_action *a)
{
    return a->kind == CLV_FORWARD ? part_of(r, a) < r->e->parts - 1 : part_of(r, a) > 0;
}

/* Of a message about the border between part `border` and the next. */
static int tag_of(const run *r, clv_action_kind kind, int border, int micro)
{
    return (2 * (border + r->e->parts * micro) + (int)kind) % TAGS;
}

static void post(run *r, int i)
{
    if (i >= r->list.count || !receives(r, &r->list.action[i]))
        return;
    const clv_action *a = &r->list.action[i];
    const int p = clv_comm_size(r->pp), me = clv_comm_rank(r->pp), forward = a->kind == CLV_FORWARD;
    const int from = forward ? (me + p - 1) % p : (me + 1) % p, border = part_of(r, a) - (forward ? 1 : 0);
    const clv_tensor to = r->e->wire_in[i & 1];
    r->in[i & 1] = clv_recv_begin(r->pp, to.data, clv_bytes(to), from, tag_of(r, a->kind, border, a->micro));
}

static void send_on(run *r, const clv_action *a, clv_tensor result)
{
    const int p = clv_comm_size(r->pp), me = clv_comm_rank(r->pp), forward = a->kind == CLV_FORWARD;
    const int to = forward ? (me + 1) % p : (me + p - 1) % p, border = part_of(r, a) - (forward ? 0 : 1);
    const int k = r->sent++ & 1;
    clv_pending_end(&r->out[k]);
    clv_copy(&r->e->cx, r->e->wire_out[k], result);
    r->out[k] =
        clv_send_begin(r->pp, r->e->wire_out[k].data, clv_bytes(result), to, tag_of(r, a->kind, border, a->micro));
}

/* x [s, b, h] of the part before, kept in the slot until the backward. */
static clv_tensor input_of(run *r, const clv_action *a, clv_tensor received)
{
    if (part_of(r, a) == 0)
        return (clv_tensor){0};
    clv_tensor x = clv_tensor_new(r->e->cx.save, received.place, received.ndim, received.dim);
    clv_copy(&r->e->cx, x, received);
    return x;
}

static clv_tensor forward(run *r, const clv_action *a, clv_tensor received)
{
    clv_engine *e = r->e;
    const clv_pass *pass = r->pass;
    clv_chunk *c = &e->chunk[a->chunk];
    clv_slot *slot = &c->slot[pass->training ? a->micro % c->slots : 0];
    clv_arena_release(&slot->save, 0);
    e->cx.save = &slot->save;
    clv_micro_create(e, slot, pass, a->micro);
    const clv_tensor x = input_of(r, a, received);
    if (pass->visit == NULL)
        return clv_gpt_forward(&e->cx, &c->model, &slot->batch, x, e->losses, pass->training ? &slot->saved : NULL);
    const clv_tensor y = clv_gpt_logits(&e->cx, &c->model, &slot->batch, x);
    if (!c->model.options.has_head)
        return y;
    pass->visit(pass->user, a->micro, y);
    return (clv_tensor){0};
}

static clv_tensor backward(run *r, const clv_action *a, clv_tensor received)
{
    clv_engine *e = r->e;
    clv_chunk *c = &e->chunk[a->chunk];
    clv_slot *slot = &c->slot[a->micro % c->slots];
    e->cx.save = &slot->save;
    e->rng.sample = slot->sample;
    const bool last = (a->micro + 1) * e->spec.micro_batch == r->pass->samples->count;
    return clv_gpt_backward(&e->cx, &c->model, part_of(r, a) < e->parts - 1 ? received : (clv_tensor){0}, &slot->saved,
                            last && e->spec.overlap_grad_reduce ? &c->gradients : NULL);
}

void clv_pipeline_run(clv_engine *e, const clv_pass *pass)
{
    const int64_t micros = pass->samples->count / e->spec.micro_batch;
    run r = {.e = e, .pass = pass, .pp = clv_mesh_comm(e->cx.mesh, CLV_PP)};
    r.list = clv_pipeline_schedule(e, micros, pass->training);
    for (int c = 0; pass->training && c < e->chunks; c++)
        CLV_CHECK(clv_schedule_in_flight(&r.list, c) <= e->chunk[c].slots, "%lld micro-batches need more than %d slots",
                  (long long)micros, e->chunk[c].slots);
    e->cx.rng = pass->training ? &e->rng : NULL;
    post(&r, 0);
    for (int i = 0; i < r.list.count; i++) {
        const clv_action *a = &r.list.action[i];
        const size_t mark = clv_arena_mark(&e->temp);
        post(&r, i + 1);
        clv_pending_end(&r.in[i & 1]);
        const clv_tensor received = e->wire_in[i & 1];
        const double begin = clv_trace_log_now(e->trace);
        const clv_tensor result = a->kind == CLV_FORWARD ? forward(&r, a, received) : backward(&r, a, received);
        clv_trace_log_work(e->trace, a->kind == CLV_FORWARD ? CLV_WORK_FORWARD : CLV_WORK_BACKWARD, part_of(&r, a),
                           a->micro, begin);
        if (sends(&r, a))
            send_on(&r, a, result);
        clv_arena_release(&e->temp, mark);
    }
    clv_pending_end(&r.out[0]);
    clv_pending_end(&r.out[1]);
    e->cx.rng = NULL;
    clv_schedule_destroy(&r.list);
}

clv_schedule clv_pipeline_schedule(const clv_engine *e, int64_t micros, bool training)
{
    const clv_pipeline p = {.kind = e->spec.schedule,
                            .stages = clv_mesh_size(e->cx.mesh, CLV_PP),
                            .stage = clv_mesh_coord(e->cx.mesh, CLV_PP),
                            .chunks = e->chunks,
                            .micros = (int)micros};
    return training ? clv_schedule_create(&p) : clv_schedule_forward(&p);
}
