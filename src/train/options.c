/* options.c - the command line, from the rows of options.def.
 *
 *   --name value   --name=value   --flag   --no-flag   --list word word ...   --config FILE   -- (only words follow)
 *
 * '-' and '_' are one character in names. The file is read first, so the command line wins. Strings that were given are
 * copies and belong to the options; presets are literals.
 */
#include "train/options_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const clv_option_row rows[] = {
#define CLV_OPTION(kind, field, preset, limits, commands, group, sentence)                                             \
    {CLV_OPTION_##kind,                                                                                                \
     #field,                                                                                                           \
     preset,                                                                                                           \
     limits,                                                                                                           \
     commands,                                                                                                         \
     group,                                                                                                            \
     sentence,                                                                                                         \
     offsetof(clv_options, field),                                                                                     \
     offsetof(clv_options, is_set.field)},
#include "train/options.def"
#undef CLV_OPTION
};

static const struct {
    char letter;
    const char *name;
} commands[] = {{'T', "train"},     {'E', "eval"},   {'G', "generate"}, {'P', "preprocess"},
                {'K', "tokenizer"}, {'V', "verify"}, {'I', "inspect"}};

const clv_option_row *clv_option_rows(size_t *count)
{
    *count = CLV_COUNT(rows);
    return rows;
}

const char *clv_option_name(const char *field, char *out)
{
    snprintf(out, CLV_OPTION_NAME, "%s", field);
    for (char *at = out; *at != 0; at++)
        *at = *at == '_' ? '-' : *at;
    return out;
}

bool clv_option_is_of(const clv_option_row *row, char command)
{
    return strchr(row->commands, command) != NULL;
}

const char *clv_option_command_name(char command)
{
    for (size_t i = 0; i < CLV_COUNT(commands); i++)
        if (commands[i].letter == command)
            return commands[i].name;
    CLV_PANIC("no command has the letter '%c'", command);
}

char clv_options_command(const char *name)
{
    for (size_t i = 0; i < CLV_COUNT(commands); i++)
        if (strcmp(commands[i].name, name) == 0)
            return commands[i].letter;
    return 0;
}

static void *at(clv_options *options, size_t offset)
{
    return (char *)options + offset;
}

void clv_list_free(clv_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free((char *)(uintptr_t)list->word[i]);
    free(list->word);
    *list = (clv_list){0};
}

bool clv_list_has(const clv_list *list, const char *word)
{
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->word[i], word) == 0)
            return true;
    return false;
}

static void list_add(clv_list *list, const char *word)
{
    list->word = clv_resize(list->word, list->count + 1, sizeof *list->word);
    list->word[list->count++] = clv_strdup(word);
}

void clv_options_default(clv_options *options, char command)
{
    *options = (clv_options){.command = command};
    for (size_t i = 0; i < CLV_COUNT(rows); i++) {
        const clv_option_row *row = &rows[i];
        void *value = at(options, row->value);
        bool good = true;
        if (row->preset[0] == 0)
            continue;
        if (row->kind == CLV_OPTION_INT)
            good = clv_parse_i64(row->preset, value);
        else if (row->kind == CLV_OPTION_REAL)
            good = clv_parse_f64(row->preset, value);
        else if (row->kind == CLV_OPTION_FLAG)
            *(bool *)value = strcmp(row->preset, "true") == 0;
        else if (row->kind == CLV_OPTION_TEXT)
            *(const char **)value = row->preset;
        CLV_CHECK(good, "preset '%s' of %s", row->preset, row->field);
    }
}

/* Give back what a row holds, if it was given. */
static void forget(clv_options *options, const clv_option_row *row)
{
    bool *given = at(options, row->given);
    if (*given && row->kind == CLV_OPTION_TEXT)
        free((char *)(uintptr_t) * (const char **)at(options, row->value));
    if (*given && row->kind == CLV_OPTION_LIST)
        clv_list_free(at(options, row->value));
    *given = false;
}

void clv_options_free(clv_options *options)
{
    for (size_t i = 0; i < CLV_COUNT(rows); i++)
        forget(options, &rows[i]);
    clv_options_default(options, options->command);
}

const char *clv_options_text(const clv_options *options, const char *name)
{
    const clv_option_row *row = clv_option_row_named(name);
    CLV_CHECK(row != NULL && row->kind == CLV_OPTION_TEXT, "%s is no option that holds a text", name);
    return *(const char *const *)clv_option_at(options, row->value);
}

/* ---- values -------------------------------------------------------------------------------------------------------
 */

static bool is_number(const char *text)
{
    return text[0] != 0 && text[strspn(text, "0123456789+-.eE")] == 0;
}

/* Is the value within "low:high"? '>' before low and '<' before high leave the bound itself out. */
static bool in_range(const char *limits, double value)
{
    const char *colon = strchr(limits, ':');
    if (colon == NULL)
        return true;
    const bool above = limits[0] == '>', below = colon[1] == '<';
    const char *low = limits + above, *high = colon + 1 + below;
    const double bottom = strtod(low, NULL), top = strtod(high, NULL);
    const bool low_good = low == colon || value > bottom || (!above && !(value < bottom));
    return low_good && (*high == 0 || value < top || (!below && !(value > top)));
}

static bool has_word(const char *words, const char *word)
{
    const size_t n = strlen(word);
    for (const char *from = words; *from != 0; from += strspn(from, " ")) {
        const size_t length = strcspn(from, " ");
        if (length == n && strncmp(from, word, n) == 0)
            return true;
        from += length;
    }
    return false;
}

static clv_status set_number(clv_options *options, const clv_option_row *row, const char *text)
{
    char name[CLV_OPTION_NAME], range[64];
    clv_option_name(row->field, name);
    int64_t whole = 0;
    double real = 0;
    const bool is_int = row->kind == CLV_OPTION_INT;
    if (!is_number(text) || !(is_int ? clv_parse_i64(text, &whole) : clv_parse_f64(text, &real)))
        return clv_fail(CLV_BAD_USAGE, "--%s %.80s: not a %s", name, text, is_int ? "whole number" : "number");
    if (!in_range(row->limits, is_int ? (double)whole : real))
        return clv_fail(CLV_BAD_USAGE, "--%s %.80s is out of range: it must be %s", name, text,
                        clv_option_range(row->limits, range, sizeof range));
    if (is_int)
        *(int64_t *)at(options, row->value) = whole;
    else
        *(double *)at(options, row->value) = real;
    return clv_ok();
}

static clv_status set_text(clv_options *options, const clv_option_row *row, const char *text)
{
    char name[CLV_OPTION_NAME];
    if (row->limits[0] != 0 && !has_word(row->limits, text))
        return clv_fail(CLV_BAD_USAGE, "--%s %.80s: it must be one of: %s", clv_option_name(row->field, name), text,
                        row->limits);
    char *copy = clv_strdup(text);
    forget(options, row);
    *(const char **)at(options, row->value) = copy;
    return clv_ok();
}

static clv_status set_flag(clv_options *options, const clv_option_match *match, const char *word)
{
    char name[CLV_OPTION_NAME];
    const bool on = word == NULL || strcmp(word, "true") == 0;
    if (!on && strcmp(word, "false") != 0)
        return clv_fail(CLV_BAD_USAGE, "--%s is a flag: true or false, not '%.80s'",
                        clv_option_name(match->row->field, name), word);
    *(bool *)at(options, match->row->value) = on != match->negated;
    return clv_ok();
}

static clv_status set_list(clv_options *options, const clv_option_row *row, const char *const *words, size_t count)
{
    char name[CLV_OPTION_NAME];
    clv_list *list = at(options, row->value);
    for (size_t i = 0; i < count && row->limits[0] != 0; i++)
        if (!has_word(row->limits, words[i]))
            return clv_fail(CLV_BAD_USAGE, "--%s %.80s: each word must be one of: %s",
                            clv_option_name(row->field, name), words[i], row->limits);
    forget(options, row);
    *list = (clv_list){0};
    for (size_t i = 0; i < count; i++)
        list_add(list, words[i]);
    return clv_ok();
}

static clv_status set_nothing(const clv_megatron_row *megatron, const char *word)
{
    if (word != NULL && strcmp(word, "false") == 0)
        return clv_ok();
    if (megatron->form == CLV_MEGATRON_VALUE && megatron->detail[0] != 0 && !has_word(megatron->detail, word))
        return clv_fail(CLV_BAD_USAGE, "--%s %.80s: %s", megatron->name, word, megatron->sentence);
    if (megatron->detail[0] == 0)
        clv_log(CLV_LOG_WARN, "--%s has no effect: %s", megatron->name, megatron->sentence);
    return clv_ok();
}

static clv_status set_row(clv_options *options, const clv_option_match *match, const char *const *words, size_t count)
{
    const clv_option_row *row = match->row;
    const char *word = count > 0 ? words[0] : NULL;
    switch (row->kind) {
    case CLV_OPTION_INT:
    case CLV_OPTION_REAL:
        CLV_TRY(set_number(options, row, word));
        break;
    case CLV_OPTION_FLAG:
        CLV_TRY(set_flag(options, match, word));
        break;
    case CLV_OPTION_TEXT:
        CLV_TRY(set_text(options, row, word));
        break;
    case CLV_OPTION_LIST:
        CLV_TRY(set_list(options, row, words, count));
        break;
    }
    *(bool *)at(options, row->given) = true;
    return clv_ok();
}

static bool has_choice(clv_options *options, const clv_option_row *row)
{
    const bool given = *(const bool *)at(options, row->given);
    return given &&
           !(row->kind == CLV_OPTION_TEXT && strcmp(*(const char **)at(options, row->value), row->preset) == 0);
}

static clv_status set_alias(clv_options *options, const clv_option_match *match, const char *word)
{
    const clv_option_row *row = match->row;
    const char *hole = strchr(match->stands_for, '%');
    if (hole == NULL && word != NULL && strcmp(word, "false") == 0)
        return clv_ok();
    if (match->megatron->form == CLV_MEGATRON_PRESET && has_choice(options, row))
        return clv_ok();
    if (match->megatron->form == CLV_MEGATRON_ADD) {
        clv_list *list = at(options, row->value);
        if (!clv_list_has(list, match->stands_for))
            list_add(list, match->stands_for);
        *(bool *)at(options, row->given) = true;
        return clv_ok();
    }
    clv_text text = {0};
    clv_text_printf(&text, "%.*s", (int)strcspn(match->stands_for, "%"), match->stands_for);
    if (hole != NULL)
        clv_text_printf(&text, "%s%s", word, hole + 1);
    const clv_status st = set_row(options, match, &(const char *){text.data}, 1);
    clv_text_free(&text);
    return st;
}

clv_status clv_option_set(clv_options *options, const clv_option_match *match, const char *const *words, size_t count)
{
    if (match->row == NULL)
        return set_nothing(match->megatron, count > 0 ? words[0] : NULL);
    if (match->stands_for != NULL)
        return set_alias(options, match, count > 0 ? words[0] : NULL);
    return set_row(options, match, words, count);
}

/* ---- the command line ---------------------------------------------------------------------------------------------
 */

typedef struct cursor {
    int at, count;
    char *const *argv;
} cursor;

static bool is_option(const char *word)
{
    return strncmp(word, "--", 2) == 0 && word[2] != 0;
}

/* The words that belong to an option: what stands behind '=', or what follows. */
static size_t take_words(cursor *c, clv_option_takes takes, const char **inline_word, const char *const **words)
{
    if (*inline_word != NULL) {
        *words = inline_word;
        return 1;
    }
    const int first = c->at;
    const int most = takes == CLV_TAKES_NOTHING ? 0 : takes == CLV_TAKES_ONE ? 1 : c->count;
    while (c->at < c->count && c->at - first < most && strncmp(c->argv[c->at], "--", 2) != 0)
        c->at++;
    *words = (const char *const *)(c->argv + first);
    return (size_t)(c->at - first);
}

/* One option at the cursor. "config" is reported through *file and otherwise skipped; when options is NULL nothing else
 * is looked at. */
static clv_status parse_option(clv_options *options, char command, cursor *c, const char **file)
{
    const char *word = c->argv[c->at++] + 2;
    const char *equals = strchr(word, '='), *inline_word = equals == NULL ? NULL : equals + 1;
    char name[128];
    snprintf(name, sizeof name, "%.*s", equals == NULL ? 127 : (int)CLV_MIN(equals - word, 127), word);
    clv_option_match match = {.takes = CLV_TAKES_ONE};
    const bool is_file = clv_option_same_name(name, "config");
    if (!is_file)
        CLV_TRY(clv_option_find(&match, command, name));
    const char *const *words;
    const size_t count = take_words(c, match.takes, &inline_word, &words);
    if (match.takes != CLV_TAKES_NOTHING && count == 0)
        return clv_fail(CLV_BAD_USAGE, "--%s needs a value%s", name,
                        c->at < c->count ? "; one that begins with -- is written --name=value" : "");
    if (is_file)
        *file = words[0];
    else if (options != NULL)
        return clv_option_set(options, &match, words, count);
    return clv_ok();
}

static clv_status parse_files(clv_options *options, cursor c)
{
    while (c.at < c.count && strcmp(c.argv[c.at], "--") != 0) {
        const char *file = NULL;
        if (!is_option(c.argv[c.at])) {
            c.at++;
            continue;
        }
        CLV_TRY(parse_option(NULL, options->command, &c, &file));
        if (file != NULL)
            CLV_TRY(clv_options_read_file(options, file));
    }
    return clv_ok();
}

static clv_status parse_word(const char *word, clv_list *words)
{
    if (words == NULL)
        return clv_fail(CLV_BAD_USAGE, "'%.200s' is not an option; options begin with --", word);
    list_add(words, word);
    return clv_ok();
}

clv_status clv_options_parse(clv_options *options, int count, char *const *argv, clv_list *words)
{
    cursor c = {.count = count, .argv = argv};
    bool only_words = false;
    CLV_TRY(parse_files(options, c));
    while (c.at < count) {
        const char *file = NULL, *word = argv[c.at];
        if (!only_words && is_option(word))
            CLV_TRY(parse_option(options, options->command, &c, &file));
        else if (!only_words && strcmp(word, "--") == 0)
            only_words = c.at++ >= 0;
        else if (!only_words && word[0] == '-' && word[1] != 0)
            return clv_fail(CLV_BAD_USAGE, "'%.80s' is not an option; options begin with --", word);
        else
            CLV_TRY(parse_word(argv[c.at++], words));
    }
    return clv_ok();
}
