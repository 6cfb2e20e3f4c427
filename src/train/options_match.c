/* options_match.c - what a typed name means: a row of options.def, another spelling of one, or one of Megatron's that
 * is accepted or refused (options_megatron.def); and which names were perhaps meant by one that is none of these.
 */
#include "train/options_internal.h"

#include <stdio.h>
#include <string.h>

static const clv_megatron_row megatron_rows[] = {
#define CLV_MEGATRON(form, name, detail, sentence) {CLV_MEGATRON_##form, name, detail, sentence},
#include "train/options_megatron.def"
#undef CLV_MEGATRON
};

bool clv_option_same_name(const char *a, const char *b)
{
    for (; *a != 0 && *b != 0; a++, b++)
        if (*a != *b && !((*a == '-' || *a == '_') && (*b == '-' || *b == '_')))
            return false;
    return *a == *b;
}

const clv_option_row *clv_option_row_named(const char *name)
{
    size_t count;
    const clv_option_row *rows = clv_option_rows(&count);
    for (size_t i = 0; i < count; i++)
        if (clv_option_same_name(rows[i].field, name))
            return &rows[i];
    return NULL;
}

/* How far a typed name is from a row's: its edit distance, or less when it is the beginning of it. */
static size_t distance(const char *typed, const clv_option_row *row)
{
    char name[CLV_OPTION_NAME], wanted[CLV_OPTION_NAME];
    clv_option_name(row->field, name);
    clv_option_name(typed, wanted);
    const size_t edits = clv_edit_distance(wanted, name), n = strlen(wanted);
    return n >= 2 && strncmp(wanted, name, n) == 0 ? CLV_MIN(edits, 2) : edits;
}

static clv_status unknown(char command, const char *name)
{
    enum { NEAR = 3 };
    const clv_option_row *near[NEAR + 1];
    size_t apart[NEAR + 1], found = 0;
    const size_t limit = CLV_MAX(strlen(name) / 2, 2);
    size_t count;
    const clv_option_row *rows = clv_option_rows(&count);
    for (size_t i = 0; i < count; i++) {
        const size_t d = distance(name, &rows[i]);
        if (d > limit || !clv_option_is_of(&rows[i], command))
            continue;
        size_t place = found;
        for (; place > 0 && apart[place - 1] > d; place--) {
            near[place] = near[place - 1];
            apart[place] = apart[place - 1];
        }
        near[place] = &rows[i];
        apart[place] = d;
        found = CLV_MIN(found + 1, NEAR);
    }
    char names[NEAR * (CLV_OPTION_NAME + 8)] = "", spelled[CLV_OPTION_NAME];
    size_t used = 0;
    for (size_t i = 0; i < found && apart[i] <= apart[0] + 3; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s--%s", i == 0 ? "; nearest: " : ", ",
                                 clv_option_name(near[i]->field, spelled));
    if (found == 0)
        snprintf(names, sizeof names, "; see cleave %s --help", clv_option_command_name(command));
    return clv_fail(CLV_BAD_USAGE, "unknown option --%.80s%s", name, names);
}

static clv_status of_another_command(const clv_option_row *row, char command)
{
    char list[160] = "", name[CLV_OPTION_NAME];
    size_t used = 0;
    for (const char *letter = row->commands; *letter != 0; letter++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", used == 0 ? "" : ", ",
                                 clv_option_command_name(*letter));
    return clv_fail(CLV_BAD_USAGE, "--%s is an option of %s, not of %s", clv_option_name(row->field, name), list,
                    clv_option_command_name(command));
}

static clv_status match_row(clv_option_match *out, char command, const char *name)
{
    out->row = clv_option_row_named(name);
    if (out->row == NULL && strncmp(name, "no-", 3) == 0 && clv_option_row_named(name + 3) != NULL) {
        out->row = clv_option_row_named(name + 3);
        out->negated = true;
        if (out->row->kind != CLV_OPTION_FLAG)
            return clv_fail(CLV_BAD_USAGE, "--%s: only a flag can be turned off; --%s takes a value", name, name + 3);
    }
    if (out->row == NULL)
        return unknown(command, name);
    if (!clv_option_is_of(out->row, command))
        return of_another_command(out->row, command);
    out->takes = out->row->kind == CLV_OPTION_FLAG   ? CLV_TAKES_NOTHING
                 : out->row->kind == CLV_OPTION_LIST ? CLV_TAKES_MANY
                                                     : CLV_TAKES_ONE;
    return clv_ok();
}

static clv_status match_megatron(clv_option_match *out, char command, const clv_megatron_row *megatron)
{
    out->megatron = megatron;
    if (megatron->form == CLV_MEGATRON_REFUSED)
        return clv_fail(CLV_BAD_USAGE, "--%s: %s", megatron->name, megatron->sentence);
    if (megatron->form == CLV_MEGATRON_VALUE || megatron->form == CLV_MEGATRON_FLAG) {
        out->takes = megatron->form == CLV_MEGATRON_VALUE ? CLV_TAKES_ONE : CLV_TAKES_NOTHING;
        return clv_ok();
    }
    const char *equals = strchr(megatron->detail, '=');
    char target[CLV_OPTION_NAME];
    snprintf(target, sizeof target, "%.*s", (int)strcspn(megatron->detail, "="), megatron->detail);
    CLV_TRY(match_row(out, command, target));
    if (equals != NULL) {
        out->stands_for = equals + 1;
        out->takes = strchr(equals, '%') != NULL ? CLV_TAKES_ONE : CLV_TAKES_NOTHING;
    }
    return clv_ok();
}

clv_status clv_option_find(clv_option_match *out, char command, const char *name)
{
    *out = (clv_option_match){0};
    if (clv_option_row_named(name) == NULL)
        for (size_t i = 0; i < CLV_COUNT(megatron_rows); i++)
            if (clv_option_same_name(megatron_rows[i].name, name))
                return match_megatron(out, command, &megatron_rows[i]);
    return match_row(out, command, name);
}
