/* nsize: 2 4 */
/* pipeline_test.c - a pipeline does what one rank does: the same loss and, untied, bit-equal gradients, dropout
 * included, with fewer micro-batches than stages, with two neighbours that are one rank, with messages that are never
 * buffered, and with large ones; and its layers are numbered in the whole model.
 *
 * Each rank trains the same model alone beside the pipeline and compares what its stage holds.
 */
#include "train/checkpoint_test.h"

#include <math.h>

enum { S = 16, B = 2, VOCAB = 97, MICROS = 8 };

typedef struct setting {
    const char *name;
    clv_pipeline_kind schedule;
    int chunks, micros;
    bool tied;
    int64_t seq_length, hidden, batch, steps;
} setting;

static clv_config config_make(const setting *k)
{
    clv_config c = clv_config_default();
    c.vocab = VOCAB;
    c.hidden = k->hidden;
    c.layers = k->hidden < 1000 ? 8 : 4;
    c.heads = c.kv_heads = 2;
    c.head_dim = 8;
    c.ffn = 48;
    c.max_positions = k->seq_length;
    c.init_std = 0.1;
    c.hidden_dropout = c.attention_dropout = k->hidden < 1000 ? 0.1 : 0.0; /* drawing it takes long */
    c.bias_qkv = c.bias_proj = c.bias_fc1 = c.bias_fc2 = true;
    c.tied = k->tied;
    return c;
}

static clv_stages stages_make(int64_t layers, int stages, int chunks)
{
    const int parts = stages * chunks;
    clv_stages s = {.layers = clv_alloc((size_t)parts, sizeof(int64_t)), .parts = parts, .stages = stages};
    for (int i = 0; i < parts; i++)
        s.layers[i] = layers / parts;
    return s;
}

typedef struct runner { /* a model on some ranks */
    clv_config config;
    clv_stages stages;
    clv_mesh *mesh;
    clv_engine engine;
} runner;

static void runner_open(runner *r, clv_comm *world, const setting *k)
{
    const int stages = clv_comm_size(world);
    r->config = config_make(k);
    r->stages = stages_make(r->config.layers, stages, stages == 1 ? 1 : k->chunks);
    const clv_engine_spec spec = {.config = &r->config,
                                  .stages = &r->stages,
                                  .schedule = stages == 1 ? CLV_1F1B : k->schedule,
                                  .vocab_divisor = 1,
                                  .micro_batch = k->batch,
                                  .seq_length = k->seq_length,
                                  .micros = k->micros,
                                  .per_token_loss = true,
                                  .training = true,
                                  .backend = "cpu",
                                  .seed = 7,
                                  .beta1 = 0.9,
                                  .beta2 = 0.95,
                                  .eps = 1e-3,
                                  .clip_grad = 1.0};
    must(clv_mesh_create(&r->mesh, world, &(clv_layout){.pp = stages, .kv_heads = (int)r->config.kv_heads}));
    must(clv_engine_create(&r->engine, r->mesh, &spec));
    clv_engine_init(&r->engine, 5);
}

static void runner_close(runner *r)
{
    clv_engine_destroy(&r->engine);
    clv_mesh_destroy(r->mesh);
    clv_stages_free(&r->stages);
}

static clv_step step_of(runner *r, const setting *k, int64_t iteration)
{
    const int64_t count = k->micros * k->batch, width = k->seq_length + 1;
    int32_t *tokens = clv_alloc((size_t)(count * width), sizeof *tokens);
    float *mask = clv_alloc((size_t)(count * k->seq_length), sizeof *mask);
    int64_t *index = clv_alloc((size_t)count, sizeof *index);
    for (int64_t i = 0; i < count * width; i++)
        tokens[i] = (int32_t)(clv_uniform_at(11, (uint64_t)(iteration * 100000 + i)) * VOCAB);
    for (int64_t i = 0; i < count * k->seq_length; i++)
        mask[i] = clv_uniform_at(13, (uint64_t)(iteration * 100000 + i)) < 0.8f ? 1.0f : 0.0f;
    for (int64_t i = 0; i < count; i++)
        index[i] = iteration * count + i;
    const clv_samples samples = {.count = count, .tokens = tokens, .mask = mask, .index = index};
    const clv_step step = clv_engine_gradients(&r->engine, &samples, iteration + 1);
    free(tokens);
    free(mask);
    free(index);
    return step;
}

/* Largest difference of a gradient that this stage holds from the lone rank's, against its largest element. */
static double gradient_error(const clv_param *p, const clv_param *q)
{
    const float *x = p->dw.data, *y = q->dw.data;
    double worst = 0, largest = 1e-30;
    for (int64_t i = 0; i < clv_numel(p->dw); i++) {
        worst = fmax(worst, fabs((double)x[i] - (double)y[i]));
        largest = fmax(largest, fabs((double)y[i]));
    }
    return worst / largest;
}

static int pipeline_expect(clv_comm *world, const setting *k)
{
    int failed = 0;
    clv_comm *self = clv_comm_self_open();
    runner r, alone;
    runner_open(&r, world, k);
    runner_open(&alone, self, k);
    for (int64_t i = 0; i < k->steps; i++) {
        const clv_step a = step_of(&r, k, i), b = step_of(&alone, k, i);
        EXPECT(fabs(a.loss - b.loss) <= 2e-6 * b.loss, "%s, %d micro-batches: loss %.9f, alone %.9f", k->name,
               k->micros, a.loss, b.loss);
        EXPECT(fabs(a.grad_norm - b.grad_norm) <= 1e-5 * b.grad_norm, "%s: norm %.9f, alone %.9f", k->name, a.grad_norm,
               b.grad_norm);
        for (size_t n = 0; i == 0 && n < r.engine.param_count; n++) {
            const clv_param *p = &r.engine.params[n];
            const double error = p->here ? gradient_error(p, &alone.engine.params[n]) : 0;
            EXPECT(k->tied ? error < 1e-5 : error == 0, "%s, %d micro-batches: gradient of %s off by %.2e", k->name,
                   k->micros, p->name, error);
        }
        clv_engine_update(&r.engine, &a, 1e-3);
        clv_engine_update(&alone.engine, &b, 1e-3);
    }
    runner_close(&r);
    runner_close(&alone);
    clv_comm_world_close(self);
    return failed;
}

/* ---- named pitfalls ---------------------------------------------------------------------------------------------- */

/* Fewer micro-batches than stages, and a number that does not divide. */
static int few_micro_batches(clv_comm *world)
{
    static const int micros[] = {1, 2, 3, 5};
    int failed = 0;
    for (size_t i = 0; i < CLV_COUNT(micros); i++)
        for (int tied = 0; tied <= 1; tied++) {
            failed += pipeline_expect(world, &(setting){"1f1b", CLV_1F1B, 1, micros[i], tied == 1, S, 32, B, 3});
            failed += pipeline_expect(world, &(setting){"gpipe", CLV_GPIPE, 1, micros[i], tied == 1, S, 32, B, 3});
        }
    return failed;
}

/* With two stages the next and the one before are the same rank: only tags tell messages apart. */
static int chunks(clv_comm *world)
{
    int failed = 0;
    const int stages = clv_comm_size(world);
    for (int groups = 1; groups <= 3; groups++)
        failed += pipeline_expect(world, &(setting){"chunks", CLV_1F1B, 2, groups * stages, groups == 2, S, 32, B, 3});
    return failed;
}

/* No message is buffered on its way. */
static int synchronous_sends(clv_comm *world)
{
    clv_comm_synchronize(world, true);
    const int failed = few_micro_batches(world) + chunks(world);
    clv_comm_synchronize(world, false);
    return failed;
}

/* 256 x 4 x 2,048 numbers between stages, 8 MiB. */
static int large_messages(clv_comm *world)
{
    const setting k = {"8 MiB", CLV_1F1B, 1, clv_comm_size(world), false, 256, 2048, 4, 1};
    return pipeline_expect(world, &k);
}

/* ---- layer numbers ----------------------------------------------------------------------------------------------- */

static int layer_of(const clv_param *p)
{
    int layer = -1;
    return sscanf(p->name, "decoder.layers.%d.", &layer) == 1 ? layer : -1;
}

static void fill_by_layer(clv_engine *e)
{
    for (size_t i = 0; i < e->param_count; i++) {
        const clv_param *p = &e->params[i];
        float *w = p->here ? p->w.data : NULL;
        for (int64_t k = 0; w != NULL && k < clv_numel(p->w); k++)
            w[k] = (float)layer_of(p);
    }
}

/* Layers of the stage as their records say, and as dropout numbers them. */
static int owned_expect(clv_comm *world, const clv_engine *e, int64_t per_part)
{
    int failed = 0;
    const int stages = clv_comm_size(world);
    for (size_t i = 0; i < e->param_count; i++) {
        const int layer = layer_of(&e->params[i]);
        const int stage = layer < 0 ? e->params[i].stage : (int)(layer / per_part) % stages;
        EXPECT(e->params[i].stage == stage, "%s is on stage %d, not %d", e->params[i].name, e->params[i].stage, stage);
        EXPECT(layer < 0 || e->params[i].here == (stage == clv_comm_rank(world)), "%s", e->params[i].name);
    }
    for (int c = 0; c < e->chunks; c++)
        for (int64_t k = 0; k < per_part; k++) {
            const int64_t want = (c * stages + clv_comm_rank(world)) * per_part + k;
            const clv_block *block = &e->chunk[c].model.blocks[k];
            EXPECT(block->layer == want && block->attention.layer == want, "block %d of chunk %d is layer %d, not %d",
                   (int)k, c, (int)block->layer, (int)want);
        }
    return failed;
}

/* Every tensor of a layer holds its number, and each layer is there as often as the first. */
static int exported_expect(clv_comm *world, const char *folder)
{
    int failed = 0, found[8] = {0};
    clv_safetensors *st;
    must(clv_safetensors_open(&st, folder));
    for (size_t i = 0; i < clv_safetensors_count(st); i++) {
        const clv_st_tensor *t = clv_safetensors_at(st, i);
        const char *at = strstr(t->name, "h.");
        int layer = -1;
        if (at == NULL || sscanf(at, "h.%d.", &layer) != 1)
            continue;
        EXPECT(layer >= 0 && layer < 8, "%s", t->name);
        float *w = clv_alloc(t->bytes, 1);
        must(clv_safetensors_read(st, t, 0, w, t->bytes));
        for (size_t k = 0; k < t->bytes / sizeof *w; k++)
            failed += w[k] != (float)layer;
        free(w);
        found[layer & 7]++;
    }
    for (int i = 0; i < 8; i++)
        EXPECT(found[i] == found[0] && found[0] > 0, "layer %d has %d tensors, layer 0 %d", i, found[i], found[0]);
    clv_safetensors_close(st);
    return failed;
}

static int layer_numbers(clv_comm *world)
{
    int failed = 0;
    for (int v = 1; v <= 2; v++) {
        const setting k = {"numbers", CLV_1F1B, v, MICROS, true, S, 16, B, 0};
        char root[CLV_PATH], folder[CLV_PATH];
        bool resumable;
        runner r;
        scratch_open(world, root);
        runner_open(&r, world, &k);
        fill_by_layer(&r.engine);
        failed += owned_expect(world, &r.engine, r.config.layers / r.stages.parts);
        const clv_checkpoint c = {
            .cx = &r.engine.cx, .config = &r.config, .params = r.engine.params, .param_count = r.engine.param_count};
        must(clv_checkpoint_save(&c, root, 0));
        must(clv_checkpoint_find(root, folder, &resumable));
        failed += exported_expect(world, folder);
        runner_close(&r);
        scratch_close(world, root);
    }
    return failed;
}

int main(int argc, char **argv)
{
    return mpi_test_run(&argc, &argv,
                        (mpi_case[]){{"few micro-batches", few_micro_batches},
                                     {"chunks", chunks},
                                     {"synchronous sends", synchronous_sends},
                                     {"large messages", large_messages},
                                     {"layer numbers", layer_numbers},
                                     {0}});
}
