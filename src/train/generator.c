/* generator.c - a model with its cache: prompts go in, token after token comes out.
 *
 * Prompts of a batch are aligned at their ends, so that the next token of all of them stands in one row:
 *
 *   row       0 1 2 3 4 | 5 6
 *   prompt 0  a b c d e | f g     starts in row 0
 *   prompt 1      h i j | k l     starts in row 2, where its position is 0
 *
 * A sequence that is over goes on as a token that sees only itself, at position 0, until the last one is over. The
 * cache has a row for each token that is fed. Long prompts enter in pieces, which bounds the scratch memory.
 *
 * Stages hand the new rows on. Each rank of the last one has the logits of its own classes; they are gathered without
 * the padding, its first rank chooses, and the choice is sent to all. A random number belongs to (seed, prompt,
 * position), so batches and layouts do not move it.
 */
#include "inference_internal.h"

#include <stdlib.h>

enum { PIECE = 256 }; /* rows of a prompt that enter at once */

/* ---- a model in its arenas -----------------------------------------------------------------------------------------
 */

enum { TAG = 11 };

static void build(clv_generator *g, const clv_backend *backend, const clv_mesh *mesh)
{
    const clv_generator_spec *spec = &g->spec;
    clv_engine *e = &g->engine;
    clv_stages one = clv_stages_one(spec->config->layers);
    e->cx = (clv_ctx){.be = backend, .mesh = mesh, .save = &e->save, .temp = &e->temp};
    e->grads = clv_arena_counting("gradients");
    clv_engine_parts(e, mesh, spec->stages != NULL ? spec->stages : &one);
    clv_stages_free(&one);
    CLV_CHECK(e->chunks == 1, "a stage of generation has %d parts", e->chunks);
    const clv_gpt *model = &e->chunk[0].model;
    g->cache = clv_cache_create(model, &e->save, spec->rows, spec->batch);
    if (!model->options.has_head)
        return;
    g->logits = clv_new_as(&e->save, CLV_F32, spec->batch, model->head.output.l.w.dim[0]);
    g->logits.place = CLV_SL;
}

static void unbuild(clv_generator *g)
{
    clv_cache_destroy(&g->cache);
    clv_engine_unbuild(&g->engine);
}

/* A token's way through the stages is a chain, so plain messages cannot wait for each other in a circle. */
void clv_generator_feed(clv_generator *g, const int32_t *tokens, int64_t sq, const int32_t *start)
{
    clv_ctx *cx = &g->engine.cx;
    clv_comm *pp = clv_mesh_comm(cx->mesh, CLV_PP);
    const size_t mark = clv_arena_mark(cx->temp);
    const int stage = clv_comm_rank(pp);
    const clv_fresh rows = {.tokens = clv_new_as(cx->temp, CLV_I32, sq, g->spec.batch),
                            .start = start,
                            .x = clv_new(cx->temp, CLV_R, sq, g->spec.batch, g->spec.config->hidden),
                            .logits = g->logits};
    clv_from_host(cx, rows.tokens, tokens);
    if (stage > 0)
        clv_recv(pp, rows.x.data, clv_bytes(rows.x), stage - 1, TAG);
    clv_gpt_decode(cx, &g->engine.chunk[0].model, &g->cache, &rows);
    if (stage < clv_comm_size(pp) - 1)
        clv_send(pp, rows.x.data, clv_bytes(rows.x), stage + 1, TAG);
    clv_arena_release(cx->temp, mark);
}

/* The sizes of the arenas, into `counted`: the longest piece and a single row, each at the end of the cache. */
static void plan(clv_generator *counted, const clv_mesh *mesh)
{
    clv_comm *world = clv_comm_fake_open(clv_comm_rank(clv_mesh_world(mesh)), clv_comm_size(clv_mesh_world(mesh)));
    const clv_layout layout = {.tp = clv_mesh_size(mesh, CLV_TP),
                               .dp = clv_mesh_size(mesh, CLV_DP),
                               .pp = clv_mesh_size(mesh, CLV_PP),
                               .kv_heads = (int)counted->spec.config->kv_heads};
    clv_mesh *fake = NULL;
    const clv_status st = clv_mesh_create(&fake, world, &layout);
    CLV_CHECK(st.code == CLV_OK, "planning: %s", st.text);
    counted->engine.weights = clv_arena_counting("weights");
    counted->engine.save = clv_arena_counting("cache");
    counted->engine.temp = clv_arena_counting("scratch");
    build(counted, clv_backend_null(), fake);
    const int64_t rows = counted->spec.rows, sizes[] = {CLV_MIN(PIECE, rows), 1};
    int32_t *zeros = clv_alloc((size_t)(sizes[0] * counted->spec.batch), sizeof *zeros);
    for (size_t i = 0; i < CLV_COUNT(sizes); i++) {
        counted->cache.used = rows - sizes[i];
        clv_generator_feed(counted, zeros, sizes[i], zeros);
    }
    free(zeros);
    unbuild(counted);
    clv_mesh_destroy(fake);
    clv_comm_world_close(world);
}

static clv_status arenas_create(clv_engine *e, const clv_engine *counted)
{
    CLV_TRY(clv_arena_create(&e->weights, "weights", counted->weights.peak));
    CLV_TRY(clv_arena_create(&e->save, "the cache of keys and values", counted->save.peak));
    /* weights pass through scratch one by one when they are read; pages that are never touched cost nothing */
    return clv_arena_create(&e->temp, "scratch", CLV_MAX(counted->temp.peak, counted->weights.peak));
}

clv_status clv_generator_create(clv_generator *g, const clv_mesh *mesh, const clv_generator_spec *spec)
{
    *g = (clv_generator){.spec = *spec, .engine.spec = {.config = spec->config, .vocab_divisor = spec->vocab_divisor}};
    const clv_backend *backend = clv_backend_find(spec->backend);
    if (backend == NULL)
        return clv_fail(CLV_BAD_USAGE, "no backend is called '%s'; there are cpu and ref", spec->backend);
    clv_generator counted = *g;
    plan(&counted, mesh);
    CLV_TRY(clv_comm_agree(clv_mesh_world(mesh), arenas_create(&g->engine, &counted.engine)));
    build(g, backend, mesh);
    if (g->logits.ndim == 0)
        return clv_ok();
    const size_t v = (size_t)g->logits.dim[1], b = (size_t)spec->batch;
    g->local = clv_alloc(b * v, sizeof(float));
    g->gathered = clv_alloc(b * v * (size_t)clv_mesh_size(mesh, CLV_TP), sizeof(float));
    g->whole = clv_alloc((size_t)spec->config->vocab, sizeof(float));
    return clv_ok();
}

void clv_generator_destroy(clv_generator *g)
{
    clv_cache_destroy(&g->cache);
    clv_engine_destroy(&g->engine);
    free(g->local);
    free(g->gathered);
    free(g->whole);
    *g = (clv_generator){0};
}

/* ---- logits --------------------------------------------------------------------------------------------------------
 */

void clv_generator_gather(clv_generator *g)
{
    if (g->logits.ndim == 0)
        return;
    clv_to_host(&g->engine.cx, g->local, g->logits);
    clv_all_gather(clv_mesh_comm(g->engine.cx.mesh, CLV_TP), g->gathered, g->local, (size_t)clv_numel(g->logits),
                   CLV_F32);
}

const float *clv_generator_logits(clv_generator *g, int64_t sequence)
{
    const int64_t v = g->logits.dim[1], b = g->spec.batch;
    for (int64_t i = 0; i < g->spec.config->vocab; i++) /* class i is column i % v of rank i / v */
        g->whole[i] = g->gathered[(i / v * b + sequence) * v + i % v];
    return g->whole;
}

/* ---- a batch of prompts under way ----------------------------------------------------------------------------------
 */

typedef struct clv_flight {
    const clv_writing *how;
    const clv_ids *prompt; /* the first of the batch */
    size_t first;          /* its number */
    int64_t count, longest;
    int32_t *start, *next; /* [batch] */
    int64_t *left;         /* [batch], tokens that may still be written; 0: it is over */
} clv_flight;

static void prompts_feed(clv_generator *g, const clv_flight *f)
{
    const int64_t b = g->spec.batch;
    int32_t *tokens = clv_alloc((size_t)(PIECE * b), sizeof *tokens);
    for (int64_t at = 0; at < f->longest; at += PIECE) {
        const int64_t sq = CLV_MIN(PIECE, f->longest - at);
        for (int64_t i = 0; i < sq; i++)
            for (int64_t j = 0; j < b; j++)
                tokens[i * b + j] = j < f->count && at + i >= f->start[j] ? f->prompt[j].id[at + i - f->start[j]] : 0;
        clv_generator_feed(g, tokens, sq, f->start);
    }
    free(tokens);
}

static bool under_way(const clv_flight *f)
{
    for (int64_t j = 0; j < f->count; j++)
        if (f->left[j] > 0)
            return true;
    return false;
}

/* The next token of each sequence, the same on every rank; row: where it will stand. */
static void choose(clv_generator *g, clv_flight *f, int64_t row)
{
    clv_comm *world = clv_mesh_world(g->engine.cx.mesh);
    const int stages = clv_mesh_size(g->engine.cx.mesh, CLV_PP);
    const int chooser = clv_comm_size(world) / stages * (stages - 1); /* the first rank of the last stage */
    clv_generator_gather(g);
    for (int64_t j = 0; clv_comm_rank(world) == chooser && j < f->count; j++) {
        const uint64_t sequence = f->first + (uint64_t)j, position = (uint64_t)(row - f->start[j]);
        const double u = (double)clv_uniform_at(f->how->key, (sequence << 32) + position);
        if (f->left[j] > 0)
            f->next[j] = clv_sample(&f->how->sampling, clv_generator_logits(g, j), g->spec.config->vocab, u);
    }
    clv_broadcast(world, f->next, (size_t)f->count, CLV_I32, chooser);
}

static bool is_stop(const clv_ids *stop, int32_t id)
{
    for (size_t i = 0; i < stop->count; i++)
        if (stop->id[i] == id)
            return true;
    return false;
}

static clv_status report(clv_flight *f, int64_t row)
{
    for (int64_t j = 0; j < f->count; j++) {
        if (f->left[j] == 0)
            continue;
        const size_t prompt = f->first + (size_t)j;
        if (f->next[j] < 0)
            return clv_fail(CLV_CHECK_FAILED,
                            "prompt %zu, position %lld: the logits are not finite; the weights are damaged", prompt + 1,
                            (long long)(row - f->start[j]));
        f->left[j]--;
        if (is_stop(&f->how->stop, f->next[j]))
            f->left[j] = 0;
        else
            f->how->visit(f->how->user, prompt, f->next[j]);
    }
    return clv_ok();
}

static clv_status fly(clv_generator *g, clv_flight *f)
{
    g->cache.used = 0;
    prompts_feed(g, f);
    while (under_way(f)) {
        const int64_t row = g->cache.used;
        choose(g, f, row);
        CLV_TRY(report(f, row));
        if (!under_way(f))
            break;
        for (int64_t j = 0; j < g->spec.batch; j++) {
            if (f->left[j] > 0)
                continue;
            f->start[j] = (int32_t)row;
            f->next[j] = 0;
        }
        clv_generator_feed(g, f->next, 1, f->start);
    }
    return clv_ok();
}

clv_status clv_generator_write(clv_generator *g, const clv_writing *how, const clv_ids *prompts, size_t count,
                               size_t first)
{
    const int64_t b = g->spec.batch;
    clv_flight f = {.how = how,
                    .prompt = prompts + first,
                    .first = first,
                    .count = CLV_MIN(b, (int64_t)(count - first)),
                    .start = clv_alloc((size_t)b, sizeof(int32_t)),
                    .next = clv_alloc((size_t)b, sizeof(int32_t)),
                    .left = clv_alloc((size_t)b, sizeof(int64_t))};
    for (int64_t j = 0; j < f.count; j++)
        f.longest = CLV_MAX(f.longest, (int64_t)f.prompt[j].count);
    for (int64_t j = 0; j < b; j++) {
        const int64_t length = j < f.count ? (int64_t)f.prompt[j].count : 1;
        f.start[j] = (int32_t)(f.longest - length);
        if (j < f.count)
            f.left[j] = CLV_MIN(how->max_new_tokens, g->spec.config->max_positions - length);
    }
    const clv_status st = fly(g, &f);
    free(f.start);
    free(f.next);
    free(f.left);
    return st;
}
