/* options.c - the command line of a benchmark. */
#include "peer.h"

#include <string.h>

static const bench_option *find(const bench_option *options, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(options[i].name, name) == 0)
            return &options[i];
    return NULL;
}

bool bench_options_read(const bench_option *options, size_t count, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const bench_option *o = find(options, count, argv[i]);
        if (o == NULL)
            return false;
        if (o->flag != NULL) {
            *o->flag = true;
            continue;
        }
        const char *value = ++i < argc ? argv[i] : "";
        if (*value == '\0' || (o->number != NULL && (!clv_parse_i64(value, o->number) || *o->number < 1)))
            return false;
        if (o->text != NULL)
            *o->text = value;
    }
    return true;
}
