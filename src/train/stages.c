/* stages.c - which layers a pipeline stage holds.
 *
 * The model is cut into p v parts; part i is on stage i % p, as its chunk i / p. The counts of layers are even, or the
 * first and last stage have counts of their own, or a text states them:
 *
 *   E t*3 | t*4 | t*4 | t L        E embedding, t a layer, L the loss, | between parts, x*k and (...)*k repeat
 *
 * Source: Megatron-LM, --decoder-first-pipeline-num-layers and --pipeline-model-parallel-layout.
 */
#include "train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

clv_stages clv_stages_one(int64_t layers)
{
    clv_stages s = {.layers = clv_alloc(1, sizeof(int64_t)), .parts = 1, .stages = 1};
    s.layers[0] = layers;
    return s;
}

void clv_stages_free(clv_stages *stages)
{
    free(stages->layers);
    *stages = (clv_stages){0};
}

/* ---- a layout text
 * ------------------------------------------------------------------------------------------------------ */

static int64_t times(const char **at)
{
    if (**at != '*')
        return 1;
    char *end;
    const long long n = strtoll(*at + 1, &end, 10);
    const bool good = end != *at + 1 && n >= 1 && n <= 65536;
    *at = end;
    return good ? n : -1;
}

/* Write out repeats: "t*3|t" -> "ttt|t". False: what stands at `at` is not understood. */
static bool expand(const char **at, bool inside, clv_text *out)
{
    for (; **at != 0;) {
        clv_text one = {0};
        const char c = **at;
        ++*at;
        if (c == ')' && inside)
            return true;
        if (c == ' ')
            continue;
        bool good = strchr("EtL|", c) != NULL;
        if (good)
            clv_text_add(&one, &c, 1);
        else if (c == '(' && !inside) /* one level is enough, and no text can nest without bound */
            good = expand(at, true, &one);
        const int64_t n = good ? times(at) : -1;
        for (int64_t i = 0; i < n && out->length + one.length <= 1 << 20; i++)
            clv_text_add(out, one.data, one.length);
        clv_text_free(&one);
        if (n < 0)
            return false;
    }
    return !inside;
}

static clv_status layout_count(const char *text, const clv_text *flat, int64_t layers, clv_stages *out)
{
    int part = 0;
    int64_t all = 0;
    for (size_t i = 0; i < flat->length; i++) {
        const char c = flat->data[i];
        if (c == '|' && ++part == out->parts)
            break;
        if (c == 't') {
            out->layers[part]++;
            all++;
        }
        if ((c == 'E' && i != 0) || (c == 'L' && i + 1 != flat->length))
            return clv_fail(CLV_BAD_INPUT, "pipeline-model-parallel-layout '%s': E stands first and L last", text);
    }
    if (part + 1 != out->parts)
        return clv_fail(CLV_BAD_INPUT,
                        "pipeline-model-parallel-layout '%s' has %s%d parts; %d stages with %d chunks need %d", text,
                        part == out->parts ? "more than " : "", part == out->parts ? part : part + 1, out->stages,
                        out->parts / out->stages, out->parts);
    if (all != layers)
        return clv_fail(CLV_BAD_INPUT, "pipeline-model-parallel-layout '%s' places %lld layers, the model has %lld",
                        text, (long long)all, (long long)layers);
    return clv_ok();
}

static clv_status from_text(const char *text, int64_t layers, clv_stages *out)
{
    clv_text flat = {0};
    const char *at = text;
    clv_status st;
    if (expand(&at, false, &flat) && flat.length > 0)
        st = layout_count(text, &flat, layers, out);
    else
        st = clv_fail(CLV_BAD_INPUT,
                      "pipeline-model-parallel-layout '%s' is not understood near '%s'; write E t*3 | t*4 L", text, at);
    clv_text_free(&flat);
    return st;
}

/* ---- counts
 * --------------------------------------------------------------------------------------------------------------- */

/* "1, 2, 4": the numbers of stages that cut this many layers evenly. */
static void valid_stages(int64_t layers, int64_t chunks, clv_text *out)
{
    for (int64_t p = 1; p <= layers; p++)
        if (layers % (p * chunks) == 0)
            clv_text_printf(out, out->length == 0 ? "%lld" : ", %lld", (long long)p);
    if (out->length == 0)
        clv_text_printf(out, "none");
}

static clv_status even(int64_t layers, clv_stages *out)
{
    if (layers % out->parts != 0) {
        clv_text valid = {0};
        valid_stages(layers, out->parts / out->stages, &valid);
        const clv_status st = clv_fail(
            CLV_BAD_INPUT,
            "%lld layers do not divide over %d pipeline stages with %d chunk%s each; valid "
            "pipeline-model-parallel-size: %s; "
            "or give --decoder-first-pipeline-num-layers, --decoder-last-pipeline-num-layers or "
            "--pipeline-model-parallel-layout",
            (long long)layers, out->stages, out->parts / out->stages, out->parts == out->stages ? "" : "s", valid.data);
        clv_text_free(&valid);
        return st;
    }
    for (int i = 0; i < out->parts; i++)
        out->layers[i] = layers / out->parts;
    return clv_ok();
}

/* The first and the last stage as asked for, the rest evenly; a stage's layers are spread over its chunks. */
static clv_status uneven(const clv_options *o, int64_t layers, clv_stages *out)
{
    const int p = out->stages, v = out->parts / p;
    const bool first = o->is_set.decoder_first_pipeline_num_layers, last = o->is_set.decoder_last_pipeline_num_layers;
    const int64_t a = first ? o->decoder_first_pipeline_num_layers : 0,
                  z = last ? o->decoder_last_pipeline_num_layers : 0;
    const int64_t others = p - (first ? 1 : 0) - (last ? 1 : 0), rest = layers - a - z;
    const bool fits = others == 0 ? rest == 0 : rest > 0 && rest % (others * v) == 0;
    if (others < 0 || !fits || a % v != 0 || z % v != 0)
        return clv_fail(
            CLV_BAD_INPUT,
            "%lld layers with %lld on the first and %lld on the last of %d stages leave %lld for %lld stages with "
            "%d chunk%s each; every count must divide",
            (long long)layers, (long long)a, (long long)z, p, (long long)rest, (long long)others, v, v == 1 ? "" : "s");
    for (int i = 0; i < out->parts; i++) {
        const int stage = i % p;
        const int64_t of_stage = stage == 0 && first ? a : stage == p - 1 && last ? z : rest / CLV_MAX(others, 1);
        out->layers[i] = of_stage / v;
    }
    return clv_ok();
}

/* "2" chunks a stage, or "3layers" in each. */
static clv_status chunks_find(const clv_options *o, int64_t layers, int p, int *chunks)
{
    static const char unit[] = "layers";
    char digits[24];
    const size_t n = strspn(o->pipeline_chunks, "0123456789");
    const bool by_layers = strcmp(o->pipeline_chunks + n, unit) == 0;
    int64_t value;
    snprintf(digits, sizeof digits, "%.*s", (int)CLV_MIN(n, sizeof digits - 1), o->pipeline_chunks);
    if (!clv_parse_i64(digits, &value) || value < 1 || value > 65536 || (o->pipeline_chunks[n] != 0 && !by_layers))
        return clv_fail(CLV_BAD_USAGE,
                        "--pipeline-chunks %.40s: it must be a number of chunks from 1 to 65536, such as 2, or of "
                        "layers in a chunk, such as 3layers",
                        o->pipeline_chunks);
    if (by_layers && layers % (p * value) != 0)
        return clv_fail(CLV_BAD_INPUT,
                        "%lld layers do not divide into chunks of %lld on %d stages (--pipeline-chunks %s)",
                        (long long)layers, (long long)value, p, o->pipeline_chunks);
    *chunks = (int)(by_layers ? layers / (p * value) : value);
    return clv_ok();
}

clv_status clv_stages_make(clv_stages *out, const clv_options *o, int64_t layers)
{
    const int p = (int)o->pipeline_model_parallel_size;
    const bool ends = o->is_set.decoder_first_pipeline_num_layers || o->is_set.decoder_last_pipeline_num_layers;
    int chunks = 1;
    *out = (clv_stages){0};
    CLV_TRY(chunks_find(o, layers, p, &chunks));
    if (chunks > 1 && p < 2)
        return clv_fail(CLV_BAD_INPUT,
                        "--pipeline-chunks: several chunks a stage need pipeline-model-parallel-size of at "
                        "least 2, not %d",
                        p);
    if (o->pipeline_model_parallel_layout != NULL && ends)
        return clv_fail(CLV_BAD_USAGE, "give a pipeline layout, or counts for the first and last stage, not both");
    clv_stages s = {.layers = clv_alloc((size_t)(p * chunks), sizeof(int64_t)), .parts = p * chunks, .stages = p};
    const clv_status st = o->pipeline_model_parallel_layout != NULL
                              ? from_text(o->pipeline_model_parallel_layout, layers, &s)
                          : ends ? uneven(o, layers, &s)
                                 : even(layers, &s);
    if (st.code == CLV_OK)
        *out = s;
    else
        clv_stages_free(&s);
    return st;
}
