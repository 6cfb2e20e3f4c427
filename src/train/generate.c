/* generate.c - `cleave generate`: continue texts.
 *
 * stdout gets each prompt and what follows it, and nothing else: a single one as it is written, in whole characters;
 * several ones after the other. A text is over after --max-new-tokens, at the last position of the model, or at a
 * token that ends texts.
 */
#include "inference_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 16 }; /* prompts that are continued together */

/* ---- prompts -------------------------------------------------------------------------------------------------------
 */

static void prompt_add(clv_generation *g, const char *text, size_t n)
{
    g->text = clv_resize(g->text, g->count + 1, sizeof *g->text);
    g->text[g->count] = memcpy(clv_alloc(n + 1, 1), text, n);
    g->count++;
}

/* One a line; blank lines are none. */
static clv_status prompts_read(clv_generation *g, const char *path)
{
    clv_text file = {0};
    CLV_TRY(clv_file_read(path, &file));
    for (size_t at = 0; at < file.length;) {
        const char *line = file.data + at, *end = memchr(line, '\n', file.length - at);
        size_t n = end != NULL ? (size_t)(end - line) : file.length - at;
        at += n + 1;
        if (n > 0 && line[n - 1] == '\r')
            n--;
        if (n > 0)
            prompt_add(g, line, n);
    }
    clv_text_free(&file);
    if (g->count == 0)
        return clv_fail(CLV_BAD_INPUT, "%s: there is no prompt in it; a line is one", path);
    return clv_ok();
}

static clv_status prompts_encode(clv_generation *g)
{
    const int64_t positions = g->from.config.max_positions;
    g->prompt = clv_alloc(g->count, sizeof *g->prompt);
    g->written = clv_alloc(g->count, sizeof *g->written);
    for (size_t i = 0; i < g->count; i++) {
        CLV_TRY(clv_within(clv_tokenizer_encode(g->from.tokenizer, g->text[i], strlen(g->text[i]), true, &g->prompt[i]),
                           "prompt %zu", i + 1));
        const int64_t n = (int64_t)g->prompt[i].count;
        if (n == 0)
            return clv_fail(CLV_BAD_INPUT, "prompt %zu is empty: there is nothing to go on from", i + 1);
        if (n >= positions)
            return clv_fail(CLV_BAD_INPUT,
                            "prompt %zu has %lld tokens, the model %lld positions: no room is left to write; shorten "
                            "it to at most %lld tokens",
                            i + 1, (long long)n, (long long)positions, (long long)positions - 1);
    }
    return clv_ok();
}

static clv_status prompts_open(clv_generation *g, const clv_options *o)
{
    if ((o->prompt == NULL) == (o->prompt_file == NULL))
        return clv_fail(CLV_BAD_USAGE, "give --prompt TEXT or --prompt-file FILE, one of them");
    CLV_TRY(clv_pretrained_open(&g->from, o));
    CLV_TRY(clv_pretrained_need_tokenizer(&g->from));
    if (o->prompt != NULL)
        prompt_add(g, o->prompt, strlen(o->prompt));
    else
        CLV_TRY(prompts_read(g, o->prompt_file));
    if (!o->ignore_eos)
        CLV_TRY(clv_pretrained_stops(&g->from, &g->how.stop));
    return prompts_encode(g);
}

/* ---- a run ---------------------------------------------------------------------------------------------------------
 */

static void note(void *user, size_t prompt, int32_t id)
{
    clv_generation *g = user;
    clv_ids_add(&g->written[prompt], id);
    if (g->listen != NULL)
        g->listen(g->user, id);
}

static clv_status model_open(clv_generation *g, const clv_options *o)
{
    const clv_config *config = &g->from.config;
    int64_t longest = 0, shortest = INT64_MAX;
    for (size_t i = 0; i < g->count; i++) {
        longest = CLV_MAX(longest, (int64_t)g->prompt[i].count);
        shortest = CLV_MIN(shortest, (int64_t)g->prompt[i].count);
    }
    const clv_layout layout = {.tp = (int)o->tensor_model_parallel_size, .pp = (int)o->pipeline_model_parallel_size};
    CLV_TRY(clv_gpt_check(config, &layout, false, longest));
    CLV_TRY(clv_stages_make(&g->stages, o, config->layers));
    CLV_TRY(clv_runtime_open(&g->rt, g->world, o, config));
    const int dp = clv_mesh_size(g->rt.mesh, CLV_DP);
    if (dp > 1)
        clv_log(CLV_LOG_WARN, "%d groups of %d ranks all do the same; start %d, or split the model over more of them",
                dp, layout.tp * layout.pp, layout.tp * layout.pp);
    const clv_generator_spec spec = {.config = config,
                                     .stages = &g->stages,
                                     .vocab_divisor = o->make_vocab_size_divisible_by,
                                     .batch = CLV_MIN((int64_t)g->count, BATCH),
                                     .rows = longest + CLV_MIN(o->max_new_tokens, config->max_positions - shortest),
                                     .backend = o->backend};
    CLV_TRY(clv_generator_create(&g->generator, g->rt.mesh, &spec));
    clv_engine *e = &g->generator.engine;
    clv_engine_tables(e);
    return clv_pretrained_weights(&g->from, &e->cx, e->params, e->param_count);
}

clv_status clv_generation_open(clv_generation *g, clv_comm *world, const clv_options *o)
{
    *g = (clv_generation){.world = world};
    g->how = (clv_writing){
        .sampling = {.temperature = o->temperature, .top_k = o->top_k, .top_p = o->top_p},
        .key = clv_hash_name((uint64_t)o->seed, "sample"),
        .max_new_tokens = o->max_new_tokens,
        .visit = note,
        .user = g,
    };
    CLV_TRY(clv_comm_agree(world, prompts_open(g, o)));
    CLV_TRY(clv_pretrained_agree(&g->from, world));
    return model_open(g, o);
}

void clv_generation_close(clv_generation *g)
{
    for (size_t i = 0; i < g->count; i++) {
        free(g->text[i]);
        if (g->prompt != NULL)
            clv_ids_free(&g->prompt[i]);
        if (g->written != NULL)
            clv_ids_free(&g->written[i]);
    }
    free(g->text);
    free(g->prompt);
    free(g->written);
    clv_ids_free(&g->how.stop);
    clv_generator_destroy(&g->generator);
    clv_stages_free(&g->stages);
    clv_runtime_close(&g->rt);
    clv_pretrained_close(&g->from);
}

clv_status clv_generation_batch(clv_generation *g, size_t first)
{
    return clv_generator_write(&g->generator, &g->how, g->prompt, g->count, first);
}

/* ---- the command ---------------------------------------------------------------------------------------------------
 */

typedef struct clv_voice { /* text on stdout */
    clv_decoder *decoder;
    clv_text text;
    clv_status status; /* of the decoder */
} clv_voice;

static void speak(void *user, int32_t id)
{
    clv_voice *v = user;
    v->text.length = 0;
    if (v->status.code == CLV_OK)
        v->status = clv_decoder_add(v->decoder, id, &v->text);
    fwrite(v->text.data, 1, v->text.length, stdout);
    fflush(stdout);
}

/* The decoder hears the prompt too, since what a token means may depend on the one before; the prompt itself is printed
 * as it was given. */
static clv_voice voice_open(const clv_generation *g, size_t prompt)
{
    clv_voice v = {.decoder = clv_decoder_create(g->from.tokenizer, true)};
    for (size_t i = 0; v.status.code == CLV_OK && i < g->prompt[prompt].count; i++)
        v.status = clv_decoder_add(v.decoder, g->prompt[prompt].id[i], &v.text);
    printf("%s", g->text[prompt]);
    fflush(stdout);
    return v;
}

static clv_status voice_close(clv_voice *v)
{
    v->text.length = 0;
    if (v->status.code == CLV_OK)
        v->status = clv_decoder_finish(v->decoder, &v->text);
    fwrite(v->text.data, 1, v->text.length, stdout);
    printf("\n");
    clv_decoder_free(v->decoder);
    clv_text_free(&v->text);
    return v->status;
}

static clv_status write_single(clv_generation *g)
{
    if (clv_comm_rank(g->world) != 0)
        return clv_generation_batch(g, 0);
    clv_voice voice = voice_open(g, 0);
    g->listen = speak;
    g->user = &voice;
    const clv_status st = clv_generation_batch(g, 0);
    const clv_status spoken = voice_close(&voice);
    return st.code != CLV_OK ? st : spoken;
}

static clv_status write_several(clv_generation *g)
{
    for (size_t first = 0; first < g->count; first += BATCH) {
        CLV_TRY(clv_generation_batch(g, first));
        for (size_t i = first; clv_comm_rank(g->world) == 0 && i < CLV_MIN(first + BATCH, g->count); i++) {
            clv_voice voice = voice_open(g, i);
            for (size_t k = 0; k < g->written[i].count; k++)
                speak(&voice, g->written[i].id[k]);
            const clv_status spoken = voice_close(&voice);
            if (spoken.code != CLV_OK)
                clv_log(CLV_LOG_WARN, "prompt %zu: %s", i + 1, spoken.text);
        }
    }
    return clv_ok();
}

static void summary(const clv_generation *g, double seconds, bool log_comm)
{
    size_t tokens = 0;
    for (size_t i = 0; i < g->count; i++)
        tokens += g->written[i].count;
    clv_log(CLV_LOG_INFO, "%zu tokens in %.2f s, %.1f tokens/s", tokens, seconds,
            (double)tokens / CLV_MAX(seconds, 1e-9));
    if (!log_comm)
        return;
    clv_text text = {0};
    clv_mesh_traffic_print(g->rt.mesh, &text);
    clv_log(CLV_LOG_INFO, "traffic:\n%s", text.length > 0 ? text.data : "none");
    clv_text_free(&text);
}

clv_status clv_generate(clv_comm *world, const clv_options *options)
{
    clv_generation g;
    clv_status st = clv_generation_open(&g, world, options);
    if (st.code == CLV_OK) {
        const double begun = clv_seconds();
        st = g.count == 1 ? write_single(&g) : write_several(&g);
        summary(&g, clv_seconds() - begun, options->log_comm);
    }
    clv_generation_close(&g);
    return st;
}
