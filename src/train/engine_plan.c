/* engine_plan.c - what an engine needs, found by running it: the very code of a step over null kernels, arenas that
 * only count, and a world without peers. So a plan cannot differ from the run.
 */
#include "train/engine_internal.h"

#include <stdlib.h>

static clv_engine counting(const clv_engine_spec *spec)
{
    clv_engine e = {.spec = *spec,
                    .weights = clv_arena_counting("weights"),
                    .grads = clv_arena_counting("gradients"),
                    .moments = clv_arena_counting("optimizer"),
                    .save = clv_arena_counting("activations"),
                    .temp = clv_arena_counting("scratch")};
    e.spec.micros = CLV_MAX(spec->micros, 1);
    return e;
}

static void look_away(void *user, int64_t micro, clv_tensor logits)
{
    (void)user;
    (void)micro;
    (void)logits;
}

/* A step of a few micro-batches is enough to see the largest slot and the most scratch. */
static void rehearse(clv_engine *e)
{
    const int p = clv_mesh_size(e->cx.mesh, CLV_PP);
    const clv_samples few = {.count = e->spec.micro_batch * CLV_MIN(e->spec.micros, 2 * p)};
    if (e->spec.training) {
        clv_pipeline_run(e, &(clv_pass){.samples = &few, .training = true});
        clv_engine_finish(e);
    }
    if (!e->spec.no_evaluation)
        clv_pipeline_run(e, &(clv_pass){.samples = &few});
    if (e->spec.logits)
        clv_pipeline_run(e, &(clv_pass){.samples = &few, .visit = look_away});
}

/* Bytes of a slot of each chunk; the caller frees the list. */
static size_t *slots_bytes(const clv_engine *e, size_t *all)
{
    size_t *each = clv_alloc((size_t)e->chunks, sizeof *each);
    *all = 0;
    for (int c = 0; c < e->chunks; c++) {
        for (int i = 0; i < e->chunk[c].slots; i++)
            each[c] = CLV_MAX(each[c], e->chunk[c].slot[i].save.peak);
        *all += each[c] * (size_t)e->chunk[c].slots;
    }
    return each;
}

clv_engine_bytes clv_engine_count(const clv_engine_spec *spec, const clv_layout *layout, int rank, size_t **slots)
{
    const int size = CLV_MAX(layout->tp, 1) * CLV_MAX(layout->cp, 1) * CLV_MAX(layout->dp, 1) * CLV_MAX(layout->pp, 1);
    clv_comm *world = clv_comm_fake_open(rank, size);
    clv_mesh *mesh = NULL;
    const clv_status st = clv_mesh_create(&mesh, world, layout);
    CLV_CHECK(st.code == CLV_OK, "planning: %s", st.text);
    clv_engine e = counting(spec);
    clv_engine_build(&e, clv_backend_null(), mesh, NULL);
    rehearse(&e);
    clv_engine_bytes bytes = {e.weights.peak, e.grads.peak, e.moments.peak, 0, e.temp.peak};
    *slots = slots_bytes(&e, &bytes.save);
    clv_engine_unbuild(&e);
    clv_mesh_destroy(mesh);
    clv_comm_world_close(world);
    return bytes;
}

clv_engine_bytes clv_engine_plan(const clv_engine_spec *spec, const clv_layout *layout, int rank)
{
    size_t *slots;
    const clv_engine_bytes bytes = clv_engine_count(spec, layout, rank, &slots);
    free(slots);
    return bytes;
}

size_t clv_engine_total(const clv_engine_bytes *bytes)
{
    return bytes->weights + bytes->grads + bytes->moments + bytes->save + bytes->temp;
}
