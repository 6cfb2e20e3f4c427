/* options_file.c - options from a YAML file: one flat mapping of the command line's names.
 *
 *   num-layers: 4                 numbers, texts
 *   swiglu: true                  flags are true or false
 *   data_path: [0.3, a, 0.7, b]   lists are sequences; '-' and '_' are one character in names
 *   save: null                    as if the line were not there
 *
 * JSON is YAML, so that what clv_options_dump writes can be read here.
 */
#include "train/options_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum { MAX_WORDS = 4096 };

typedef struct reader {
    yaml_parser_t parser;
    yaml_event_t event; /* the current one */
    bool has_event;
    clv_options *options;
    const char *path;
    clv_text seen; /* "\nname\n..." of the keys so far */
} reader;

static clv_status fail_at(const reader *r, size_t line, const char *what, const char *name)
{
    return clv_fail(CLV_BAD_USAGE, "%s:%zu: %s%s", r->path, line + 1, what, name);
}

static clv_status fail_here(const reader *r, const char *what, const char *name)
{
    return fail_at(r, r->event.start_mark.line, what, name);
}

static clv_status next(reader *r)
{
    if (r->has_event)
        yaml_event_delete(&r->event);
    r->has_event = yaml_parser_parse(&r->parser, &r->event) == 1;
    if (r->has_event)
        return clv_ok();
    return fail_at(r, r->parser.problem_mark.line,
                   "not YAML: ", r->parser.problem != NULL ? r->parser.problem : "cannot be read");
}

static clv_status expect(reader *r, yaml_event_type_t type, const char *what)
{
    CLV_TRY(next(r));
    return r->event.type == type ? clv_ok() : fail_here(r, what, "");
}

static const char *scalar(const reader *r)
{
    return (const char *)r->event.data.scalar.value;
}

static bool is_scalar(const reader *r)
{
    return r->event.type == YAML_SCALAR_EVENT && strlen(scalar(r)) == r->event.data.scalar.length;
}

static bool is_null(const reader *r)
{
    if (!is_scalar(r) || r->event.data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
        return false;
    return strcmp(scalar(r), "null") == 0 || strcmp(scalar(r), "~") == 0;
}

/* A sequence's words, behind its start. */
static clv_status read_sequence(reader *r, clv_list *words)
{
    for (;;) {
        CLV_TRY(next(r));
        if (r->event.type == YAML_SEQUENCE_END_EVENT)
            return clv_ok();
        if (!is_scalar(r) || words->count == MAX_WORDS)
            return fail_here(r, "a list holds words only", "");
        words->word = clv_resize(words->word, words->count + 1, sizeof *words->word);
        words->word[words->count++] = clv_strdup(scalar(r));
    }
}

static clv_status read_value(reader *r, const clv_option_match *match, const char *name)
{
    const size_t line = r->event.start_mark.line;
    CLV_TRY(next(r));
    if (is_null(r))
        return clv_ok();
    clv_list words = {0};
    clv_status st = clv_ok();
    if (r->event.type == YAML_SEQUENCE_START_EVENT && match->takes == CLV_TAKES_MANY)
        st = read_sequence(r, &words);
    else if (!is_scalar(r))
        st = fail_at(r, line, match->takes == CLV_TAKES_MANY ? "this takes a list: " : "this takes one value: ", name);
    else if (scalar(r)[0] == 0 && r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE)
        st = fail_at(r, line, "no value for ", name);
    else {
        words.word = clv_alloc(1, sizeof *words.word);
        words.word[words.count++] = clv_strdup(scalar(r));
    }
    if (st.code == CLV_OK && words.count > 0)
        st = clv_within(clv_option_set(r->options, match, words.word, words.count), "%s:%zu", r->path, line + 1);
    clv_list_free(&words);
    return st;
}

static clv_status read_pair(reader *r)
{
    if (!is_scalar(r) || strlen(scalar(r)) >= CLV_OPTION_NAME)
        return fail_here(r, "expected an option's name", "");
    char name[CLV_OPTION_NAME], line[CLV_OPTION_NAME + 2];
    clv_option_name(scalar(r), name);
    if (strcmp(name, "config") == 0)
        return fail_here(r, "a file cannot name another one: ", name);
    clv_option_match match;
    CLV_TRY(clv_within(clv_option_find(&match, r->options->command, name), "%s:%zu", r->path,
                       r->event.start_mark.line + 1));
    snprintf(line, sizeof line, "\n%s\n", name);
    if (strstr(r->seen.data, line) != NULL)
        return fail_here(r, "given twice: ", name);
    clv_text_add(&r->seen, line + 1, strlen(line) - 1);
    return read_value(r, &match, name);
}

static clv_status read_document(reader *r)
{
    CLV_TRY(expect(r, YAML_STREAM_START_EVENT, "not YAML"));
    CLV_TRY(next(r));
    if (r->event.type == YAML_STREAM_END_EVENT)
        return clv_ok(); /* an empty file gives nothing */
    CLV_TRY(expect(r, YAML_MAPPING_START_EVENT, "expected lines of \"name: value\""));
    for (;;) {
        CLV_TRY(next(r));
        if (r->event.type == YAML_MAPPING_END_EVENT)
            break;
        CLV_TRY(read_pair(r));
    }
    CLV_TRY(next(r));
    return expect(r, YAML_STREAM_END_EVENT, "a second document; one is read");
}

clv_status clv_options_read_file(clv_options *options, const char *path)
{
    clv_text text;
    CLV_TRY(clv_within(clv_file_read(path, &text), "--config"));
    reader r = {.options = options, .path = path};
    clv_text_add(&r.seen, "\n", 1);
    CLV_CHECK(yaml_parser_initialize(&r.parser) == 1, "out of memory");
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text.data, text.length);
    const clv_status st = read_document(&r);
    if (r.has_event)
        yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    clv_text_free(&r.seen);
    clv_text_free(&text);
    return st;
}
