/* tokenizer_parse.c - a tokenizer.json's components to chains of steps.
 *
 *   normalizer      NFC, Prepend, Replace {String}, Sequence
 *   pre_tokenizer   ByteLevel, Split by one of the three known patterns, Metaspace, Sequence
 *   post_processor  ByteLevel (no effect on ids), TemplateProcessing, Sequence
 *   decoder         ByteLevel, Replace {String}, ByteFallback, Fuse, Strip, Metaspace, Sequence
 *
 * Whatever else a file names is refused by that name: encoding without it would give other ids without a word.
 * Source: Hugging Face's tokenizers 0.22, formats of normalizers, pre_tokenizers, processors, decoders.
 */
#include "format/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

clv_status clv_parse_string(const clv_json *json, clv_node object, const char *key, clv_span *out)
{
    const clv_node node = clv_json_get(json, object, key);
    if (!clv_json_is(json, node, CLV_JSON_STRING))
        return clv_fail(CLV_BAD_INPUT, "\"%s\" is missing or not a string", key);
    out->at = clv_json_string(json, node, &out->n);
    return clv_ok();
}

/* A string of at least one byte, copied to stay. */
static clv_status keep_string(clv_tokenizer *tok, const clv_json *json, clv_node object, const char *key, clv_span *out)
{
    clv_span text;
    CLV_TRY(clv_parse_string(json, object, key, &text));
    if (text.n == 0)
        return clv_fail(CLV_BAD_INPUT, "\"%s\" is an empty string", key);
    *out = clv_pool_add(&tok->pool, text.at, text.n);
    return clv_ok();
}

static clv_status add_step(clv_chain *chain, clv_step step)
{
    if (chain->count == CLV_STEPS)
        return clv_fail(CLV_BAD_INPUT, "more than %d steps in a row", CLV_STEPS);
    chain->step[chain->count++] = step;
    return clv_ok();
}

static clv_status refuse(const char *what, const char *type)
{
    return clv_fail(CLV_BAD_INPUT, "%s \"%s\" is not supported; text would get other ids without it", what, type);
}

static clv_status type_of(const clv_json *json, clv_node node, const char **type)
{
    clv_span text;
    if (!clv_json_is(json, node, CLV_JSON_OBJECT))
        return clv_fail(CLV_BAD_INPUT, "neither null nor an object");
    CLV_TRY(clv_parse_string(json, node, "type", &text));
    *type = text.at;
    return clv_ok();
}

typedef clv_status parse_fn(clv_tokenizer *tok, const clv_json *json, clv_node node, const char *type);

/* Null, or an object with a type; a Sequence (its members under `list`) goes through `parse` one by one. */
static clv_status parse_component(clv_tokenizer *tok, const clv_json *json, clv_node node, const char *list,
                                  parse_fn *parse)
{
    if (node == CLV_NO_NODE || clv_json_is(json, node, CLV_JSON_NULL))
        return clv_ok();
    const char *type = "";
    CLV_TRY(type_of(json, node, &type));
    if (strcmp(type, "Sequence") != 0)
        return parse(tok, json, node, type);
    const clv_node members = clv_json_get(json, node, list);
    if (!clv_json_is(json, members, CLV_JSON_ARRAY))
        return clv_fail(CLV_BAD_INPUT, "a Sequence without a list of \"%s\"", list);
    for (clv_node m = clv_json_first(json, members); m != CLV_NO_NODE; m = clv_json_next(json, m))
        CLV_TRY(parse_component(tok, json, m, list, parse));
    return clv_ok();
}

static clv_status parse_replace(clv_tokenizer *tok, const clv_json *json, clv_node node, clv_step *step)
{
    const clv_node pattern = clv_json_get(json, node, "pattern");
    clv_span content, regex;
    if (clv_json_get(json, pattern, "Regex") != CLV_NO_NODE) {
        CLV_TRY(clv_parse_string(json, pattern, "Regex", &regex));
        return refuse("Replace with the pattern", regex.at);
    }
    CLV_TRY(keep_string(tok, json, pattern, "String", &step->from));
    CLV_TRY(clv_parse_string(json, node, "content", &content));
    step->to = clv_pool_add(&tok->pool, content.at, content.n);
    step->kind = CLV_STEP_REPLACE;
    return clv_ok();
}

static clv_status parse_normal(clv_tokenizer *tok, const clv_json *json, clv_node node, const char *type)
{
    clv_step step = {.kind = CLV_STEP_NFC};
    if (strcmp(type, "Prepend") == 0) {
        step.kind = CLV_STEP_PREPEND;
        CLV_TRY(keep_string(tok, json, node, "prepend", &step.from));
    } else if (strcmp(type, "Replace") == 0) {
        CLV_TRY(parse_replace(tok, json, node, &step));
    } else if (strcmp(type, "NFC") != 0) {
        return refuse("the normalizer", type);
    }
    return add_step(&tok->normalize, step);
}

static clv_status parse_byte_level(clv_tokenizer *tok, const clv_json *json, clv_node node)
{
    bool prefix = false, regex = true;
    CLV_TRY(clv_json_opt_bool(json, node, "add_prefix_space", &prefix));
    CLV_TRY(clv_json_opt_bool(json, node, "use_regex", &regex));
    if (prefix)
        CLV_TRY(add_step(&tok->split, (clv_step){.kind = CLV_STEP_SPACE}));
    if (regex)
        CLV_TRY(add_step(&tok->split, (clv_step){.kind = CLV_STEP_SPLIT, .number = CLV_PATTERN_GPT2}));
    return add_step(&tok->split, (clv_step){.kind = CLV_STEP_BYTES});
}

static clv_status parse_split(clv_tokenizer *tok, const clv_json *json, clv_node node)
{
    const clv_node pattern = clv_json_get(json, node, "pattern");
    clv_span regex, behavior;
    bool invert = false;
    if (clv_json_get(json, pattern, "Regex") == CLV_NO_NODE)
        return clv_fail(CLV_BAD_INPUT, "a Split is supported only with a pattern {\"Regex\": ...}");
    CLV_TRY(clv_parse_string(json, pattern, "Regex", &regex));
    CLV_TRY(clv_parse_string(json, node, "behavior", &behavior));
    CLV_TRY(clv_json_opt_bool(json, node, "invert", &invert));
    int32_t known = 0;
    while (known < CLV_PATTERNS && strcmp(regex.at, clv_pattern_regex((clv_pattern)known)) != 0)
        known++;
    if (known == CLV_PATTERNS)
        return refuse("Split with the pattern", regex.at);
    if (invert || strcmp(behavior.at, "Isolated") != 0)
        return refuse(invert ? "inverted Split with the behavior" : "Split with the behavior", behavior.at);
    return add_step(&tok->split, (clv_step){.kind = CLV_STEP_SPLIT, .number = known});
}

/* The mark and when it is put in front; files before 0.15 say add_prefix_space in place of prepend_scheme. */
static clv_status parse_mark(clv_tokenizer *tok, const clv_json *json, clv_node node, clv_step *step)
{
    static const char *const schemes[CLV_PREPENDS] = {"always", "first", "never"};
    bool prefix = true;
    CLV_TRY(keep_string(tok, json, node, "replacement", &step->from));
    CLV_TRY(clv_json_opt_bool(json, node, "add_prefix_space", &prefix));
    step->number = prefix ? CLV_PREPEND_ALWAYS : CLV_PREPEND_NEVER;
    if (clv_json_get(json, node, "prepend_scheme") == CLV_NO_NODE)
        return clv_ok();
    clv_span scheme;
    CLV_TRY(clv_parse_string(json, node, "prepend_scheme", &scheme));
    for (int32_t i = 0; i < CLV_PREPENDS; i++) {
        if (strcmp(scheme.at, schemes[i]) == 0) {
            step->number = i;
            return clv_ok();
        }
    }
    return refuse("Metaspace with the prepend_scheme", scheme.at);
}

static clv_status parse_metaspace(clv_tokenizer *tok, const clv_json *json, clv_node node)
{
    clv_step step = {.kind = CLV_STEP_MARK};
    bool split = true;
    CLV_TRY(parse_mark(tok, json, node, &step));
    CLV_TRY(clv_json_opt_bool(json, node, "split", &split));
    CLV_TRY(add_step(&tok->split, step));
    return split ? add_step(&tok->split, (clv_step){.kind = CLV_STEP_CUT, .from = step.from}) : clv_ok();
}

static clv_status parse_pre(clv_tokenizer *tok, const clv_json *json, clv_node node, const char *type)
{
    if (strcmp(type, "ByteLevel") == 0)
        return parse_byte_level(tok, json, node);
    if (strcmp(type, "Split") == 0)
        return parse_split(tok, json, node);
    if (strcmp(type, "Metaspace") == 0)
        return parse_metaspace(tok, json, node);
    return refuse("the pre-tokenizer", type);
}

static clv_status parse_strip(clv_tokenizer *tok, const clv_json *json, clv_node node, clv_step *step)
{
    int64_t start = 0, stop = 0;
    step->kind = CLV_STEP_STRIP;
    CLV_TRY(keep_string(tok, json, node, "content", &step->from));
    CLV_TRY(clv_json_opt_i64(json, node, "start", &start));
    CLV_TRY(clv_json_opt_i64(json, node, "stop", &stop));
    if (start < 0 || start > INT32_MAX || stop != 0)
        return clv_fail(CLV_BAD_INPUT, "a Strip decoder with start %lld, stop %lld; only stop 0 is supported",
                        (long long)start, (long long)stop);
    step->number = (int32_t)start;
    return clv_ok();
}

/* Behind Fuse and ByteLevel the tokens are one text, which arrives in parts: only Strip can work on that. */
static clv_status parse_decode(clv_tokenizer *tok, const clv_json *json, clv_node node, const char *type)
{
    const clv_step *last = tok->decode.count > 0 ? &tok->decode.step[tok->decode.count - 1] : NULL;
    clv_step step = {.kind = CLV_STEP_UNBYTES};
    step.fused = last != NULL && (last->fused || last->kind == CLV_STEP_UNBYTES);
    if (strcmp(type, "Replace") == 0) {
        CLV_TRY(parse_replace(tok, json, node, &step));
    } else if (strcmp(type, "ByteFallback") == 0) {
        step.kind = CLV_STEP_BYTE_TOKENS;
    } else if (strcmp(type, "Fuse") == 0) {
        step.kind = CLV_STEP_FUSE;
        step.fused = true;
        return add_step(&tok->decode, step);
    } else if (strcmp(type, "Strip") == 0) {
        CLV_TRY(parse_strip(tok, json, node, &step));
    } else if (strcmp(type, "Metaspace") == 0) {
        step.kind = CLV_STEP_UNMARK;
        CLV_TRY(parse_mark(tok, json, node, &step));
    } else if (strcmp(type, "ByteLevel") != 0) {
        return refuse("the decoder", type);
    }
    if (step.fused && step.kind != CLV_STEP_STRIP)
        return refuse("behind Fuse or ByteLevel, the decoder", type);
    return add_step(&tok->decode, step);
}

/* ---- the template: what stands before and after the text --------------------------------------------------------- */

static clv_status add_special_ids(clv_tokenizer *tok, const clv_json *json, clv_node processor, clv_node piece,
                                  clv_ids *out)
{
    clv_span name;
    CLV_TRY(clv_parse_string(json, piece, "id", &name));
    const clv_node entry = clv_json_get(json, clv_json_get(json, processor, "special_tokens"), name.at);
    const clv_node ids = clv_json_get(json, entry, "ids");
    if (!clv_json_is(json, ids, CLV_JSON_ARRAY))
        return clv_fail(CLV_BAD_INPUT, "the template's token \"%s\" has no ids in special_tokens", name.at);
    for (clv_node node = clv_json_first(json, ids); node != CLV_NO_NODE; node = clv_json_next(json, node)) {
        int64_t id;
        if (!clv_json_i64(json, node, &id) || id < 0 || id >= tok->vocab || tok->token[id].at == NULL)
            return clv_fail(CLV_BAD_INPUT, "the template's token \"%s\" has an id that is not in the vocabulary",
                            name.at);
        clv_ids_add(out, (int32_t)id);
    }
    return clv_ok();
}

/* Splits `single` at the text "A" into ids before and after. */
static clv_status read_template(clv_tokenizer *tok, const clv_json *json, clv_node processor, clv_ids *before,
                                clv_ids *after)
{
    const clv_node single = clv_json_get(json, processor, "single");
    int texts = 0;
    if (!clv_json_is(json, single, CLV_JSON_ARRAY))
        return clv_fail(CLV_BAD_INPUT, "a template without a list \"single\"");
    for (clv_node piece = clv_json_first(json, single); piece != CLV_NO_NODE; piece = clv_json_next(json, piece)) {
        const clv_node special = clv_json_get(json, piece, "SpecialToken");
        if (clv_json_is(json, special, CLV_JSON_OBJECT))
            CLV_TRY(add_special_ids(tok, json, processor, special, texts == 0 ? before : after));
        else if (clv_json_get(json, piece, "Sequence") != CLV_NO_NODE)
            texts++;
        else
            return clv_fail(CLV_BAD_INPUT, "a piece of the template is neither SpecialToken nor Sequence");
    }
    return texts == 1 ? clv_ok() : clv_fail(CLV_BAD_INPUT, "the template holds the text %d times, not once", texts);
}

/* A further template goes around what is there. */
static clv_status parse_post(clv_tokenizer *tok, const clv_json *json, clv_node node, const char *type)
{
    if (strcmp(type, "ByteLevel") == 0)
        return clv_ok();
    if (strcmp(type, "TemplateProcessing") != 0)
        return refuse("the post-processor", type);
    clv_ids before = {0}, after = {0};
    const clv_status st = read_template(tok, json, node, &before, &after);
    for (size_t i = 0; st.code == CLV_OK && i < tok->before.count; i++)
        clv_ids_add(&before, tok->before.id[i]);
    for (size_t i = 0; st.code == CLV_OK && i < after.count; i++)
        clv_ids_add(&tok->after, after.id[i]);
    clv_ids_free(&after);
    clv_ids_free(st.code == CLV_OK ? &tok->before : &before);
    if (st.code == CLV_OK)
        tok->before = before;
    return st;
}

clv_status clv_parse_normalizer(clv_tokenizer *tok, const clv_json *json, clv_node node)
{
    return clv_within(parse_component(tok, json, node, "normalizers", parse_normal), "normalizer");
}

clv_status clv_parse_pre_tokenizer(clv_tokenizer *tok, const clv_json *json, clv_node node)
{
    return clv_within(parse_component(tok, json, node, "pretokenizers", parse_pre), "pre_tokenizer");
}

clv_status clv_parse_post_processor(clv_tokenizer *tok, const clv_json *json, clv_node node)
{
    return clv_within(parse_component(tok, json, node, "processors", parse_post), "post_processor");
}

clv_status clv_parse_decoder(clv_tokenizer *tok, const clv_json *json, clv_node node)
{
    CLV_TRY(clv_within(parse_component(tok, json, node, "decoders", parse_decode), "decoder"));
    if (node == CLV_NO_NODE || clv_json_is(json, node, CLV_JSON_NULL))
        return add_step(&tok->decode, (clv_step){.kind = CLV_STEP_JOIN});
    return clv_ok();
}
