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
                     .weights = weights,
                     .grads = grads};
    if (options->has_embedding)
        model->embedding = clv_embedding_create(&b);
    for (int64_t i = 0; i < options->layers; i++)
        model->blocks[i] = clv_block_create(&b, options->first_layer + i);
    if (options->has_head) {
        model->head = clv_head_create(&b, config->tied ? &model->embedding : NULL);
        model->head.smoothing = (float)options->label_smoothing;
    }
    if (config->position == CLV_POS_ROPE) {
        const int64_t r = (int64_t)((double)config->head_dim * config->rotary_percent);
        model->rope = clv_new_as(weights, CLV_F32, config->max_positions, r);
    }
    model->params = b.params;
    model->param_count = b.count;
}

void clv_gpt_destroy(clv_gpt *model)
{
    free(model->params);
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

/* Evaluation keeps one layer's activations at a time: the layer's input and output swap places in two buffers. */
static clv_tensor layers_evaluate(clv_ctx *cx, const clv_gpt *model, const clv_scene *scene, clv_tensor x)
{
    clv_tensor other = edge_new(cx, model, cx->temp, scene->batch);
    clv_ctx once = *cx;
    once.save = cx->temp;
    for (int64_t i = 0; i < model->options.layers; i++) {
        const size_t mark = clv_arena_mark(cx->temp);
        clv_block_saved unused;
        clv_block_forward(&once, other, x, &model->blocks[i], scene, &unused);
        const clv_tensor swap = x;
        x = other;
        other = swap;
        clv_arena_release(cx->temp, mark);
    }
    return x;
}

clv_tensor clv_gpt_forward(clv_ctx *cx, const clv_gpt *model, const clv_batch *batch, clv_tensor x, clv_losses losses,
                           clv_gpt_saved *saved)
{
    clv_arena *keep = saved != NULL ? cx->save : cx->temp;
    const clv_scene scene = scene_create(cx, model, batch, keep);
    if (model->options.has_embedding) {
        x = edge_new(cx, model, keep, batch);
        clv_embedding_forward(cx, x, &model->embedding, &scene);
    }
    if (saved == NULL) {
        x = layers_evaluate(cx, model, &scene, x);
    } else {
        saved->scene = scene;
        for (int64_t i = 0; i < model->options.layers; i++) {
            clv_tensor y = edge_new(cx, model, keep, batch);
            clv_block_forward(cx, y, x, &model->blocks[i], &scene, &saved->blocks[i]);
            x = y;
        }
    }
    if (!model->options.has_head)
        return x;
    clv_head_forward(cx, x, &model->head, &scene, losses, saved != NULL ? &saved->head : NULL);
    return (clv_tensor){0};
}

clv_tensor clv_gpt_backward(clv_ctx *cx, const clv_gpt *model, clv_tensor dy, const clv_gpt_saved *saved)
{
    const clv_batch *batch = saved->scene.batch;
    clv_tensor dx = dy;
    if (model->options.has_head) {
        dx = edge_new(cx, model, cx->temp, batch);
        clv_head_backward(cx, dx, &model->head, &saved->head);
    }
    for (int64_t i = model->options.layers - 1; i >= 0; i--)
        clv_block_backward(cx, dx, &model->blocks[i], &saved->scene, &saved->blocks[i]);
    if (!model->options.has_embedding)
        return dx;
    clv_embedding_backward(cx, dx, &model->embedding, &saved->scene);
    return (clv_tensor){0};
}

clv_tensor clv_gpt_logits(clv_ctx *cx, const clv_gpt *model, const clv_batch *batch)
{
    const clv_scene scene = scene_create(cx, model, batch, cx->temp);
    clv_tensor x = edge_new(cx, model, cx->temp, batch);
    clv_embedding_forward(cx, x, &model->embedding, &scene);
    x = layers_evaluate(cx, model, &scene, x);
    clv_tensor logits =
        clv_tensor_typed(cx->temp, CLV_F32, 2, (int64_t[]){clv_numel(batch->tokens), model->head.output.l.w.dim[0]});
    logits.place = CLV_SL;
    clv_head_logits(cx, logits, x, &model->head);
    return logits;
}
