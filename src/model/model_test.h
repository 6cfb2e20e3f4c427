/* model_test.h - a small model on some layout with one micro-batch, for the tests of modules. */
#ifndef CLV_MODEL_TEST_H
#define CLV_MODEL_TEST_H

#include "comm/mpi_test.h"
#include "model/model.h"
#include "op/backend.h"

#include <math.h>
#include <string.h>

enum { RIG_S = 8, RIG_B = 2, RIG_VOCAB = 13 };

typedef struct rig {
    clv_arena weights, grads, save, temp, data;
    clv_mesh *mesh;
    clv_ctx cx;
    clv_config config;
    clv_gpt model;
    clv_gpt_saved saved;
    clv_rng rng;
    clv_losses losses;
    clv_batch batch;
} rig;

typedef struct rig_spec {
    const char *name;
    clv_config config;
    clv_model_options options;
    bool documents, mask, bidirectional;
} rig_spec;

static inline void rig_must(clv_status status)
{
    CLV_CHECK(status.code == CLV_OK, "%s", status.text);
}

/* Every bias, learned positions, tied; weights large enough that each part of the model matters. */
static inline clv_config rig_gpt(void)
{
    clv_config c = clv_config_default();
    c.vocab = RIG_VOCAB;
    c.hidden = 8;
    c.layers = 2;
    c.heads = c.kv_heads = 4;
    c.head_dim = 4;
    c.ffn = 8;
    c.max_positions = RIG_S;
    c.init_std = 0.4;
    c.bias_qkv = c.bias_proj = c.bias_fc1 = c.bias_fc2 = true;
    return c;
}

static inline clv_config rig_llama(int64_t kv_heads)
{
    clv_config c = rig_gpt();
    c.bias_qkv = c.bias_proj = c.bias_fc1 = c.bias_fc2 = c.tied = false;
    c.kv_heads = kv_heads;
    c.norm = CLV_RMSNORM;
    c.act = CLV_SWIGLU;
    c.position = CLV_POS_ROPE;
    return c;
}

static inline clv_model_options rig_options(const clv_config *c, bool sequence_parallel)
{
    return (clv_model_options){.sequence_parallel = sequence_parallel,
                               .vocab_divisor = 1,
                               .layers = c->layers,
                               .has_embedding = true,
                               .has_head = true};
}

static inline clv_tensor rig_ids(rig *r, uint64_t key, int64_t bound)
{
    clv_tensor t = clv_new_as(&r->data, CLV_I32, RIG_S, RIG_B);
    for (int i = 0; i < RIG_S * RIG_B; i++)
        ((int32_t *)t.data)[i] = (int32_t)(clv_uniform_at(key, (uint64_t)i) * (float)bound);
    return t;
}

/* Two documents a sample, of 3 and 5 tokens; every fifth token is not in the loss; masks let a query see itself. */
static inline void rig_batch(rig *r, const rig_spec *spec)
{
    r->batch = (clv_batch){.tokens = rig_ids(r, 21, spec->config.vocab),
                           .target = rig_ids(r, 22, spec->config.vocab),
                           .pos = rig_ids(r, 0, 1),
                           .weight = clv_new_as(&r->data, CLV_F32, RIG_S, RIG_B),
                           .bidirectional = spec->bidirectional};
    if (spec->documents)
        r->batch.doc = rig_ids(r, 0, 1);
    if (spec->mask)
        r->batch.mask = clv_new_as(&r->data, CLV_U8, RIG_B, RIG_S, RIG_S);
    for (int i = 0; i < RIG_S * RIG_B; i++) {
        const int row = i / RIG_B, start = spec->documents && row >= 3 ? 3 : 0;
        ((int32_t *)r->batch.pos.data)[i] = row - start;
        ((float *)r->batch.weight.data)[i] = i % 5 == 4 ? 0.0f : 1.0f;
        if (spec->documents)
            ((int32_t *)r->batch.doc.data)[i] = start;
    }
    for (int i = 0; spec->mask && i < RIG_B * RIG_S * RIG_S; i++)
        ((uint8_t *)r->batch.mask.data)[i] = i / RIG_S % RIG_S == i % RIG_S || clv_uniform_at(23, (uint64_t)i) < 0.6f;
}

/* Everything that starts as ones or zeros is moved off, so that no gradient is special. */
static inline void rig_init(rig *r)
{
    clv_gpt_init(&r->cx, &r->model, 5);
    for (size_t i = 0; i < r->model.param_count; i++) {
        const clv_param *p = &r->model.params[i];
        for (int64_t j = 0; p->init != CLV_INIT_NORMAL && j < p->w.dim[0]; j++) {
            const uint64_t at = (uint64_t)(clv_param_box(r->mesh, p).first[0] + j);
            ((float *)p->w.data)[j] += (float)(0.2 * clv_normal_at(clv_hash_name(6, p->name), at));
        }
    }
}

static inline rig *rig_open(clv_comm *world, const rig_spec *spec)
{
    rig *r = clv_alloc(1, sizeof *r);
    const clv_layout layout = {.tp = clv_comm_size(world), .kv_heads = (int)spec->config.kv_heads};
    rig_must(clv_gpt_check(&spec->config, &layout, spec->options.sequence_parallel, RIG_S));
    rig_must(clv_mesh_create(&r->mesh, world, &layout));
    clv_arena *const arenas[] = {&r->weights, &r->grads, &r->save, &r->temp, &r->data};
    for (size_t i = 0; i < CLV_COUNT(arenas); i++)
        rig_must(clv_arena_create(arenas[i], "test", 16 << 20));
    r->config = spec->config;
    r->cx = (clv_ctx){.be = clv_backend_ref(), .mesh = r->mesh, .save = &r->save, .temp = &r->temp, .rng = &r->rng};
    clv_gpt_create(&r->model, &r->config, &spec->options, r->mesh, &r->weights, &r->grads);
    r->saved = clv_gpt_saved_create(&r->model);
    r->losses = (clv_losses){clv_new_as(&r->data, CLV_F64, 1), clv_new_as(&r->data, CLV_F64, 1)};
    clv_rng_init(&r->rng, 99, r->mesh);
    r->rng.sample = clv_new_as(&r->data, CLV_I64, RIG_B);
    for (int64_t i = 0; i < RIG_B; i++)
        ((int64_t *)r->rng.sample.data)[i] = 40 + i;
    rig_batch(r, spec);
    rig_init(r);
    return r;
}

static inline void rig_close(rig *r)
{
    clv_gpt_saved_destroy(&r->saved);
    clv_gpt_destroy(&r->model);
    clv_mesh_destroy(r->mesh);
    clv_arena *const arenas[] = {&r->weights, &r->grads, &r->save, &r->temp, &r->data};
    for (size_t i = 0; i < CLV_COUNT(arenas); i++)
        clv_arena_destroy(arenas[i]);
    free(r);
}

/* The loss alone. `saved` NULL takes the way of an evaluation, though with this rig's masks. */
static inline double rig_forward(rig *r, clv_gpt_saved *saved)
{
    clv_arena_release(&r->save, 0);
    clv_arena_release(&r->temp, 0);
    clv_zero(&r->cx, r->losses.loss);
    clv_zero(&r->cx, r->losses.nll);
    clv_gpt_forward(&r->cx, &r->model, &r->batch, (clv_tensor){0}, r->losses, saved);
    return *(const double *)r->losses.loss.data;
}

/* Loss, and complete gradients in the records. */
static inline double rig_gradients(rig *r)
{
    for (size_t i = 0; i < r->model.param_count; i++)
        clv_zero(&r->cx, r->model.params[i].dw);
    const double loss = rig_forward(r, &r->saved);
    clv_gpt_backward(&r->cx, &r->model, (clv_tensor){0}, &r->saved, NULL);
    clv_arena_release(&r->temp, 0);
    clv_gradient_sum(&r->cx, r->model.params, r->model.param_count);
    return loss;
}

/* The record of a name's end; it must exist. */
static inline const clv_param *rig_param(const rig *r, const char *end)
{
    for (size_t i = 0; i < r->model.param_count; i++) {
        const char *name = r->model.params[i].name;
        const size_t n = strlen(name), m = strlen(end);
        if (n >= m && strcmp(name + n - m, end) == 0)
            return &r->model.params[i];
    }
    CLV_PANIC("no parameter %s", end);
}

#endif
