/* options_help.c - the rows of options.def for people (--help) and for machines (a JSON object). */
#include "train/options_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { HELP_WIDTH = 100, HELP_INDENT = 2, HELP_COLUMN = 40 };

const char *clv_option_range(const char *limits, char *out, size_t size)
{
    const char *colon = strchr(limits, ':');
    if (colon == NULL || strcmp(limits, ":") == 0) {
        snprintf(out, size, "%s", colon == NULL ? limits : "any number");
        return out;
    }
    const bool above = limits[0] == '>', below = colon[1] == '<';
    const char *low = limits + above, *high = colon + 1 + below;
    const int n = (int)(colon - low);
    if (*high == 0)
        snprintf(out, size, above ? "above %.*s" : "%.*s or more", n, low);
    else if (n == 0)
        snprintf(out, size, below ? "below %s" : "%s or less", high);
    else if (!above && !below)
        snprintf(out, size, "%.*s to %s", n, low, high);
    else
        snprintf(out, size, "%s %.*s, %s %s", above ? "above" : "at least", n, low, below ? "below" : "at most", high);
    return out;
}

/* ---- help ---------------------------------------------------------------------------------------------------------
 */

static void spaces(clv_text *out, size_t n)
{
    clv_text_printf(out, "%*s", (int)n, "");
}

/* Words from `text` into the right column, broken at HELP_WIDTH; the cursor stands at `column`. */
static void wrap(clv_text *out, const char *text, size_t column)
{
    bool first = true;
    while (*text != 0) {
        const size_t n = strcspn(text, " ");
        if (!first && column + 1 + n > HELP_WIDTH) {
            clv_text_add(out, "\n", 1);
            spaces(out, HELP_COLUMN);
            column = HELP_COLUMN;
            first = true;
        }
        if (!first)
            clv_text_add(out, " ", 1);
        clv_text_add(out, text, n);
        column += n + !first;
        first = false;
        text += n;
        text += strspn(text, " ");
    }
    clv_text_add(out, "\n", 1);
}

/* Default and limits, as the end of the sentence. */
static void limits(clv_text *out, const clv_option_row *row)
{
    char range[64];
    const bool is_number = row->kind == CLV_OPTION_INT || row->kind == CLV_OPTION_REAL;
    const bool has_preset = row->preset[0] != 0 && row->kind != CLV_OPTION_FLAG;
    if (is_number)
        clv_text_printf(out, " [%s", clv_option_range(row->limits, range, sizeof range));
    else if (row->limits[0] != 0)
        clv_text_printf(out, " [%s", row->limits);
    else if (has_preset)
        clv_text_printf(out, " [default %s]", row->preset);
    else if (row->kind == CLV_OPTION_FLAG && strcmp(row->preset, "true") == 0)
        clv_text_printf(out, " [default on]");
    if (is_number || row->limits[0] != 0)
        clv_text_printf(out, has_preset ? "; default %s]" : "]", row->preset);
}

static void help_row(clv_text *out, const clv_option_row *row)
{
    static const char *const operands[] = {" N", " X", "", " TEXT", " WORD..."};
    char name[CLV_OPTION_NAME], left[CLV_OPTION_NAME + 16];
    const bool is_on = row->kind == CLV_OPTION_FLAG && strcmp(row->preset, "true") == 0;
    const int n = snprintf(left, sizeof left, "%*s--%s%s%s", HELP_INDENT, "", is_on ? "[no-]" : "",
                           clv_option_name(row->field, name), operands[row->kind]);
    clv_text_add(out, left, (size_t)n);
    if (n + 1 > HELP_COLUMN) {
        clv_text_add(out, "\n", 1);
        spaces(out, HELP_COLUMN);
    } else {
        spaces(out, (size_t)(HELP_COLUMN - n));
    }
    clv_text sentence = {0};
    clv_text_printf(&sentence, "%s", row->sentence);
    limits(&sentence, row);
    wrap(out, sentence.data, HELP_COLUMN);
    clv_text_free(&sentence);
}

void clv_options_help(char command, clv_text *out)
{
    size_t count;
    const clv_option_row *rows = clv_option_rows(&count);
    const char *group = "";
    for (size_t i = 0; i < count; i++) {
        if (!clv_option_is_of(&rows[i], command))
            continue;
        if (strcmp(group, rows[i].group) != 0) {
            group = rows[i].group;
            clv_text_printf(out, "%s%c%s:\n", out->length > 0 ? "\n" : "", toupper((unsigned char)group[0]), group + 1);
        }
        help_row(out, &rows[i]);
    }
    clv_text_printf(out, "\nFile:\n  --config FILE");
    spaces(out, HELP_COLUMN - strlen("  --config FILE"));
    wrap(out, "YAML file of the same names (name: value); the command line wins", HELP_COLUMN);
}

/* ---- dump ---------------------------------------------------------------------------------------------------------
 */

static void add_text(clv_text *out, const char *text)
{
    if (text == NULL)
        clv_text_printf(out, "null");
    else
        clv_json_add_string(out, text, strlen(text));
}

static void dump_value(const clv_options *options, const clv_option_row *row, clv_text *out)
{
    const void *value = clv_option_at(options, row->value);
    const bool given = *(const bool *)clv_option_at(options, row->given) || row->preset[0] != 0;
    if (!given && row->kind != CLV_OPTION_TEXT)
        clv_text_printf(out, "null");
    else if (row->kind == CLV_OPTION_INT)
        clv_text_printf(out, "%lld", (long long)*(const int64_t *)value);
    else if (row->kind == CLV_OPTION_REAL)
        clv_json_add_number(out, *(const double *)value);
    else if (row->kind == CLV_OPTION_FLAG)
        clv_text_printf(out, *(const bool *)value ? "true" : "false");
    else if (row->kind == CLV_OPTION_TEXT)
        add_text(out, *(const char *const *)value);
    else {
        const clv_list *list = value;
        for (size_t i = 0; i < list->count; i++) {
            clv_text_printf(out, i == 0 ? "[" : ", ");
            add_text(out, list->word[i]);
        }
        clv_text_printf(out, list->count == 0 ? "[]" : "]");
    }
}

void clv_options_dump(const clv_options *options, clv_text *out)
{
    size_t count;
    const clv_option_row *rows = clv_option_rows(&count);
    char name[CLV_OPTION_NAME];
    bool first = true;
    clv_text_printf(out, "{");
    for (size_t i = 0; i < count; i++) {
        if (!clv_option_is_of(&rows[i], options->command))
            continue;
        clv_text_printf(out, "%s\n  \"%s\": ", first ? "" : ",", clv_option_name(rows[i].field, name));
        dump_value(options, &rows[i], out);
        first = false;
    }
    clv_text_printf(out, "\n}\n");
}
