/* gpt.c - a stage of the model: embedding on the first, some layers, head on the last.
 *
 * Sequence parallelism is one line here: the placement of the edge between the parallel parts. Everything else follows
 * from it (region.c picks the collectives, the records say which gradients are partial).
 */
#include "model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void clv_gpt_create(clv_gpt *model, const clv_config *config, const clv_model_options *options, const clv_mesh *mesh,
                    clv_arena *weights, clv_arena *grads)
{
    *model = (clv_gpt){.config = *config,
                       .options = *options,
                       .edge = options->sequence_parallel ? CLV_S0 : CLV_R,
                       .blocks = clv_alloc((size_t)options->layers, sizeof *model->blocks)};
    clv_builder b = {.config = &model->config,
                     .mesh = mesh,
                     .edge = model->edge,
                     .vocab_divisor = options->vocab_divisor,
                     .recompute = options->recompute.modules,
                     .distributed_optimizer = options->distributed_optimizer,
                     .weights = weights,
                     .grads = grads};
    if (options->has_embedding)
        model->embedding = clv_embedding_create(&b);
    clv_builder_cut(&b);
    model->layer_bucket = b.bucket_count;
    for (int64_t i = 0; i < options->layers; i++) {
        model->blocks[i] = clv_block_create(&b, options->first_layer + i);
        clv_builder_cut(&b);
    }
    if (options->has_head) {
        model->head = clv_head_create(&b, options->has_embedding ? &model->embedding : NULL);
        model->head.smoothing = (float)options->label_smoothing;
    }
    clv_builder_close(&b);
    if (config->position == CLV_POS_ROPE) {
        const int64_t r = (int64_t)((double)config->head_dim * config->rotary_percent);
        model->rope = clv_new_as(weights, CLV_F32, config->max_positions, r);
    }
    model->params = b.params;
    model->param_count = b.count;
    model->buckets = b.buckets;
    model->bucket_count = b.bucket_count;
}

void clv_gpt_destroy(clv_gpt *model)
{
    free(model->params);
    free(model->buckets);
    free(model->blocks);
    *model = (clv_gpt){0};
}

/* Llama 3's scaling: long waves are slowed by the factor, short ones stay, and between them it is blended. */
static double llama3_scaled(const clv_config *c, double inverse)
{
    const double wave = 2.0 * 3.14159265358979323846 / inverse, original = (double)c->rope_original;
    if (wave < original / c->rope_high_freq)
        return inverse;
    if (wave > original / c->rope_low_freq)
        return inverse / c->rope_factor;
    const double s = (original / wave - c->rope_low_freq) / (c->rope_high_freq - c->rope_low_freq);
    return (1.0 - s) * inverse / c->rope_factor + s * inverse;
}

void clv_gpt_rope_fill(clv_ctx *cx, clv_gpt *model)
{
    const clv_config *c = &model->config;
    if (model->rope.ndim == 0)
        return;
    const int64_t positions = model->rope.dim[0], r = model->rope.dim[1];
    float *table = clv_alloc((size_t)(positions * r), sizeof *table);
    for (int64_t i = 0; i < r / 2; i++) {
        double inverse = pow(c->rope_base, -2.0 * (double)i / (double)r);
        if (c->rope_kind == CLV_ROPE_LINEAR)
            inverse /= c->rope_factor;
        if (c->rope_kind == CLV_ROPE_LLAMA3)
            inverse = llama3_scaled(c, inverse);
        for (int64_t t = 0; t < positions; t++) {
            table[t * r + i] = (float)cos((double)t * inverse);
            table[t * r + r / 2 + i] = (float)sin((double)t * inverse);
        }
    }
    clv_from_host(cx, model->rope, table);
    free(table);
}

void clv_gpt_init(clv_ctx *cx, clv_gpt *model, uint64_t seed)
{
    for (size_t i = 0; i < model->param_count; i++)
        clv_param_init(cx, &model->params[i], seed);
    clv_gpt_rope_fill(cx, model);
}

int64_t clv_gpt_parameters(const clv_gpt *model)
{
    int64_t n = 0;
    for (size_t i = 0; i < model->param_count; i++)
        n += model->params[i].whole[0] * (model->params[i].ndim > 1 ? model->params[i].whole[1] : 1);
    return n;
}

clv_gpt_saved clv_gpt_saved_create(const clv_gpt *model)
{
    return (clv_gpt_saved){.blocks = clv_alloc((size_t)model->options.layers, sizeof(clv_block_saved))};
}

void clv_gpt_saved_destroy(clv_gpt_saved *saved)
{
    free(saved->blocks);
    *saved = (clv_gpt_saved){0};
}

typedef struct clv_range { /* layers first .. last - 1 of the stage */
    int64_t first, last;
} clv_range;

static clv_scene scene_create(clv_ctx *cx, const clv_gpt *model, const clv_batch *batch, clv_arena *arena)
{
    const int64_t s = batch->tokens.dim[0], b = batch->tokens.dim[1];
    clv_scene scene = {.batch = batch, .rope = model->rope, .edge = model->edge};
    scene.range = clv_new_as(arena, CLV_I32, s, b, 2);
    clv_attention_range(cx, scene.range, batch->doc, !batch->bidirectional, 0);
    if (model->config.window > 0) {
        scene.window_range = clv_new_as(arena, CLV_I32, s, b, 2);
        clv_attention_range(cx, scene.window_range, batch->doc, !batch->bidirectional, model->config.window);
    }
    return scene;
}

/* The edge's shape: [s, b, h], or [s/t, b, h] with sequence parallelism. */
static clv_tensor edge_new(const clv_ctx *cx, const clv_gpt *model, clv_arena *arena, const clv_batch *batch)
{
    const int64_t parts = model->edge == CLV_S0 ? clv_mesh_size(cx->mesh, CLV_TP) : 1;
    return clv_new(arena, model->edge, batch->tokens.dim[0] / parts, batch->tokens.dim[1], model->config.hidden);
}

/* Layers first .. last - 1 with nothing kept but y: a layer's input and output swap places in two buffers. */
static void layers_pass(clv_ctx *cx, const clv_gpt *model, const clv_scene *scene, clv_tensor y, clv_tensor x,
                        const clv_range range)
{
    const size_t mark = clv_arena_mark(cx->temp);
    clv_tensor swap[2] = {edge_new(cx, model, cx->temp, scene->batch), edge_new(cx, model, cx->temp, scene->batch)};
    clv_ctx once = *cx;
    once.save = cx->temp;
    for (int64_t i = range.first; i < range.last; i++) {
        const size_t layer = clv_arena_mark(cx->temp);
        clv_tensor out = i + 1 == range.last ? y : swap[i & 1];
        clv_block_saved unused;
        clv_block_forward(&once, out, x, &model->blocks[i], scene, &unused);
        x = out;
        clv_arena_release(cx->temp, layer);
    }
    if (range.first == range.last)
        clv_copy(cx, y, x);
    clv_arena_release(cx->temp, mark);
}

/* The layers from i on that are treated alike: one that is kept, or a group that is computed again from its input. */
static clv_range group_at(const clv_gpt *model, int64_t i, bool *again)
{
    const clv_recompute *r = &model->options.recompute;
    *again = r->method == CLV_RECOMPUTE_UNIFORM || (r->method == CLV_RECOMPUTE_BLOCK && i < r->layers);
    const int64_t step = r->method == CLV_RECOMPUTE_UNIFORM ? r->layers : 1;
    const int64_t first = i / step * step;
    return (clv_range){first, CLV_MIN(first + step, model->options.layers)};
}

static clv_tensor layers_forward(clv_ctx *cx, const clv_gpt *model, const clv_scene *scene, clv_tensor x,
                                 clv_block_saved *saved)
{
    bool again;
    for (clv_range group = {0, 0}; group.last < model->options.layers;) {
        group = group_at(model, group.last, &again);
        clv_tensor y = edge_new(cx, model, cx->save, scene->batch);
        if (again) {
            layers_pass(cx, model, scene, y, x, group);
            saved[group.first].x = x; /* all that is kept of the group */
        } else {
            clv_block_forward(cx, y, x, &model->blocks[group.first], scene, &saved[group.first]);
        }
        x = y;
    }
    return x;
}

/* The forward of a group again, this time kept until its backward: the arenas swap. */
static void group_again(clv_ctx *cx, const clv_gpt *model, const clv_scene *scene, clv_block_saved *saved,
                        clv_range group)
{
    clv_ctx once = *cx;
    once.save = cx->temp;
    clv_tensor x = saved[group.first].x;
    for (int64_t i = group.first; i < group.last; i++) {
        clv_tensor y = edge_new(cx, model, cx->temp, scene->batch);
        clv_block_forward(&once, y, x, &model->blocks[i], scene, &saved[i]);
        x = y;
    }
}

static void layers_backward(clv_ctx *cx, const clv_gpt *model, clv_tensor dx, const clv_gpt_saved *saved,
                            clv_gradients *complete)
{
    bool again;
    for (int64_t last = model->options.layers; last > 0;) {
        const size_t mark = clv_arena_mark(cx->temp);
        const clv_range group = group_at(model, last - 1, &again);
        if (again)
            group_again(cx, model, &saved->scene, saved->blocks, group);
        for (int64_t i = group.last - 1; i >= group.first; i--) {
            clv_block_backward(cx, dx, &model->blocks[i], &saved->scene, &saved->blocks[i]);
            clv_gradients_ready(cx, complete, model->layer_bucket + (size_t)i);
        }
        last = group.first;
        clv_arena_release(cx->temp, mark);
    }
}

/* Embedding and layers: what goes into the head, or to the next stage. */
static clv_tensor body_forward(clv_ctx *cx, const clv_gpt *model, const clv_scene *scene, clv_tensor x,
                               clv_gpt_saved *saved)
{
    clv_arena *keep = saved != NULL ? cx->save : cx->temp;
    if (model->options.has_embedding) {
        x = edge_new(cx, model, keep, scene->batch);
        clv_embedding_forward(cx, x, &model->embedding, scene);
    }
    if (saved != NULL)
        return layers_forward(cx, model, scene, x, saved->blocks);
    clv_tensor y = edge_new(cx, model, cx->temp, scene->batch);
    layers_pass(cx, model, scene, y, x, (clv_range){0, model->options.layers});
    return y;
}

clv_tensor clv_gpt_forward(clv_ctx *cx, const clv_gpt *model, const clv_batch *batch, clv_tensor x, clv_losses losses,
                           clv_gpt_saved *saved)
{
    const clv_scene scene = scene_create(cx, model, batch, saved != NULL ? cx->save : cx->temp);
    if (saved != NULL)
        saved->scene = scene;
    x = body_forward(cx, model, &scene, x, saved);
    if (!model->options.has_head)
        return x;
    clv_head_forward(cx, x, &model->head, &scene, losses, saved != NULL ? &saved->head : NULL);
    return (clv_tensor){0};
}

clv_tensor clv_gpt_backward(clv_ctx *cx, const clv_gpt *model, clv_tensor dy, const clv_gpt_saved *saved,
                            clv_gradients *complete)
{
    const clv_batch *batch = saved->scene.batch;
    clv_tensor dx = dy;
    if (model->options.has_head) {
        dx = edge_new(cx, model, cx->temp, batch);
        clv_head_backward(cx, dx, &model->head, &saved->head);
        clv_gradients_ready(cx, complete, model->layer_bucket + (size_t)model->options.layers);
    }
    layers_backward(cx, model, dx, saved, complete);
    if (!model->options.has_embedding)
        return dx;
    clv_embedding_backward(cx, dx, &model->embedding, &saved->scene);
    clv_gradients_ready(cx, complete, 0);
    return (clv_tensor){0};
}

clv_tensor clv_gpt_logits(clv_ctx *cx, const clv_gpt *model, const clv_batch *batch, clv_tensor x)
{
    const clv_scene scene = scene_create(cx, model, batch, cx->temp);
    x = body_forward(cx, model, &scene, x, NULL);
    if (!model->options.has_head)
        return x;
    clv_tensor logits =
        clv_tensor_typed(cx->temp, CLV_F32, 2, (int64_t[]){clv_numel(batch->tokens), model->head.output.l.w.dim[0]});
    logits.place = CLV_SL;
    clv_head_logits(cx, logits, x, &model->head);
    return logits;
}
