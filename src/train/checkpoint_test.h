/* checkpoint_test.h - a model on some layout with values that are known, for the tests of checkpoints. */
#ifndef CLV_CHECKPOINT_TEST_H
#define CLV_CHECKPOINT_TEST_H

#include "comm/mpi_test.h"
#include "train/checkpoint_internal.h"

#include <ftw.h>
#include <string.h>

typedef struct model {
    clv_arena weights, grads, moments, temp;
    clv_mesh *mesh;
    clv_ctx cx;
    clv_gpt gpt;
    clv_optimizer optimizer;
    clv_progress progress;
    clv_room *room;
} model;

static inline void must(clv_status status)
{
    CLV_CHECK(status.code == CLV_OK, "%s", status.text);
}

static inline model *model_open_as(clv_comm *world, const clv_config *config, clv_layout layout, clv_dtype dtype,
                                   bool distributed, int64_t divisor)
{
    model *m = clv_alloc(1, sizeof *m);
    const clv_model_options options = {.vocab_divisor = divisor,
                                       .layers = config->layers,
                                       .has_embedding = true,
                                       .has_head = true,
                                       .distributed_optimizer = distributed};
    layout.kv_heads = (int)config->kv_heads;
    must(clv_mesh_create(&m->mesh, world, &layout));
    must(clv_arena_create(&m->weights, "weights", 32 << 20));
    m->weights.dtype = dtype;
    must(clv_arena_create(&m->grads, "grads", 32 << 20));
    must(clv_arena_create(&m->moments, "moments", 64 << 20));
    must(clv_arena_create(&m->temp, "temp", 16 << 20));
    m->cx = (clv_ctx){.be = clv_backend_ref(), .mesh = m->mesh, .temp = &m->temp};
    clv_gpt_create(&m->gpt, config, &options, m->mesh, &m->weights, &m->grads);
    clv_optimizer_create(&m->optimizer, m->gpt.params, m->gpt.param_count, &m->moments);
    m->room = clv_alloc(1, sizeof *m->room); /* grows with the first save */
    return m;
}

static inline model *model_open(clv_comm *world, const clv_config *config, clv_layout layout, int64_t divisor)
{
    return model_open_as(world, config, layout, CLV_F32, false, divisor);
}

static inline void model_close(model *m)
{
    clv_room_close(m->room);
    clv_optimizer_destroy(&m->optimizer);
    clv_gpt_destroy(&m->gpt);
    clv_mesh_destroy(m->mesh);
    clv_arena_destroy(&m->weights);
    clv_arena_destroy(&m->grads);
    clv_arena_destroy(&m->moments);
    clv_arena_destroy(&m->temp);
    free(m);
}

/* What the tensor `which` of a parameter (0 weight, 1 and 2 moments) is filled with: values drawn by global element
 * index, the whole shard, in scratch. */
static inline const float *model_drawn(model *m, size_t i, int which, uint64_t seed)
{
    clv_param p = m->gpt.params[i];
    p.w = clv_tensor_typed(&m->temp, CLV_F32, p.ndim, p.w.dim);
    p.master = (clv_tensor){0};
    p.init = CLV_INIT_NORMAL;
    p.init_std = 1.0;
    clv_param_init(&m->cx, &p, 3 * seed + (uint64_t)which);
    return p.w.data;
}

static inline clv_tensor model_moment(const model *m, size_t i, int which)
{
    return which == 1 ? m->optimizer.m[i] : m->optimizer.v[i];
}

static inline void model_fill(model *m, uint64_t seed)
{
    for (int which = 0; which < 3; which++)
        for (size_t i = 0; i < m->gpt.param_count; i++) {
            const size_t mark = clv_arena_mark(&m->temp);
            const clv_param *p = &m->gpt.params[i];
            const float *values = model_drawn(m, i, which, seed);
            if (which == 0)
                clv_param_write(&m->cx, p, values);
            else
                clv_from_host(&m->cx, model_moment(m, i, which), values + clv_param_own(p).first);
            clv_arena_release(&m->temp, mark);
        }
    m->optimizer.step = (int64_t)seed + 7;
    m->progress = (clv_progress){.iteration = (int64_t)seed,
                                 .samples = 11,
                                 .tokens = 1LL << 53,
                                 .plan = {.style = CLV_LR_WSD, .wsd_style = CLV_WSD_MINUS_SQRT, .max = 0.1},
                                 .seed = 1234,
                                 .data_order = "stable"};
}

/* Local fp32 tensors, padding included, that differ from what model_fill gives with this seed. */
static inline int model_differences(model *m, uint64_t seed, int kinds)
{
    int bad = 0;
    for (int which = 0; which < kinds; which++)
        for (size_t i = 0; i < m->gpt.param_count; i++) {
            const size_t mark = clv_arena_mark(&m->temp);
            const clv_param *p = &m->gpt.params[i];
            const clv_tensor loaded = which == 0 ? p->w : model_moment(m, i, which);
            const int64_t first = which == 0 ? 0 : clv_param_own(p).first;
            bad += clv_bytes(loaded) > 0 &&
                   memcmp(loaded.data, model_drawn(m, i, which, seed) + first, clv_bytes(loaded)) != 0;
            clv_arena_release(&m->temp, mark);
        }
    return bad;
}

static inline clv_checkpoint checkpoint_of(model *m)
{
    return (clv_checkpoint){.cx = &m->cx,
                            .config = &m->gpt.config,
                            .params = m->gpt.params,
                            .param_count = m->gpt.param_count,
                            .optimizer = &m->optimizer,
                            .progress = &m->progress,
                            .room = m->room};
}

static inline clv_checkpoint weights_of(model *m)
{
    clv_checkpoint c = checkpoint_of(m);
    c.optimizer = NULL;
    c.progress = NULL;
    return c;
}

static inline clv_config golden_config(const char *name)
{
    char folder[CLV_PATH];
    clv_config config;
    clv_path_join(folder, sizeof folder, CLEAVE_GOLDEN, name);
    must(clv_hf_config_read(&config, folder));
    return config;
}

/* ---- a folder of this test, the same on every rank ---- */

static inline void scratch_open(clv_comm *world, char out[CLV_PATH])
{
    const char *base = clv_file_exists("/dev/shm") ? "/dev/shm" : "/tmp"; /* in memory: a sync costs nothing */
    snprintf(out, CLV_PATH, "%s/cleave_checkpoint_XXXXXX", base);
    if (clv_comm_rank(world) == 0)
        CLV_CHECK(mkdtemp(out) != NULL, "no folder %s", out);
    clv_broadcast(world, out, CLV_PATH, CLV_U8, 0);
}

static inline int remove_one(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info, (void)kind, (void)walk;
    return remove(path);
}

static inline void scratch_close(clv_comm *world, const char *path)
{
    clv_barrier(world);
    if (clv_comm_rank(world) == 0)
        nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    clv_barrier(world);
}

static inline bool exists_in(const char *folder, const char *name)
{
    char path[CLV_PATH];
    clv_path_join(path, sizeof path, folder, name);
    return clv_file_exists(path);
}

#endif
