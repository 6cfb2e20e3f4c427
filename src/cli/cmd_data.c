/* cmd_data.c - the commands that read and write files on one process. */
#include "cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

cleave_status cli_preprocess(cleave_world *world, const cleave_options *options)
{
    (void)world;
    char *report;
    const cleave_status st = cleave_preprocess(options, &report);
    return cli_print(st, report);
}

cleave_status cli_inspect(cleave_world *world, const cleave_options *options)
{
    (void)world;
    const char *path = cleave_options_word(options, 0);
    if (path == NULL)
        return cli_fail(CLEAVE_BAD_USAGE, "no PATH: the file or folder to look into");
    char *report;
    const cleave_status st = cleave_inspect(path, &report);
    return cli_print(st, report);
}

cleave_status cli_tokenizer_train(cleave_world *world, const cleave_options *options)
{
    (void)world;
    char *report;
    const cleave_status st = cleave_tokenizer_train(options, &report);
    return cli_print(st, report);
}

/* ---- a tokenizer at work ------------------------------------------------------------------------------------------
 */

static cleave_status load_tokenizer(cleave_tokenizer **out, const cleave_options *options)
{
    const char *path = cleave_options_text(options, "tokenizer-model");
    *out = NULL;
    if (path == NULL)
        return cli_fail(CLEAVE_BAD_USAGE, "no --tokenizer-model: a tokenizer.json, or a folder that holds one");
    return cleave_tokenizer_load(out, path);
}

/* Everything of --input, or of stdin. The caller frees *text, which is terminated. */
static cleave_status read_input(const cleave_options *options, char **text, size_t *n)
{
    const char *path = cleave_options_text(options, "input");
    FILE *file = path == NULL ? stdin : fopen(path, "rb");
    *text = NULL;
    *n = 0;
    if (file == NULL)
        return cli_fail(CLEAVE_BAD_INPUT, "cannot open %s: %s", path, strerror(errno));
    size_t room = 0;
    do {
        room = room * 2 + 65536;
        char *more = realloc(*text, room + 1);
        if (more == NULL)
            break;
        *text = more;
        *n += fread(*text + *n, 1, room - *n, file);
    } while (*n == room);
    const int good = feof(file) && !ferror(file);
    if (file != stdin)
        fclose(file);
    if (!good)
        return cli_fail(CLEAVE_BAD_INPUT, "cannot read %s", path == NULL ? "stdin" : path);
    (*text)[*n] = 0;
    return cli_ok();
}

static cleave_status print_ids(const cleave_tokenizer *tokenizer, const char *text, size_t n)
{
    int32_t *ids;
    size_t count;
    const cleave_status st = cleave_tokenizer_encode(tokenizer, text, n, 1, &ids, &count);
    for (size_t i = 0; i < count; i++)
        printf(i == 0 ? "%ld" : " %ld", (long)ids[i]);
    if (st.code == CLEAVE_OK)
        putchar('\n');
    cleave_ids_free(ids);
    return st;
}

/* Ids between white space. The caller frees *ids. */
static cleave_status parse_ids(char *text, int32_t **ids, size_t *count)
{
    *count = 0;
    *ids = calloc(strlen(text) / 2 + 1, sizeof **ids);
    if (*ids == NULL)
        return cli_fail(CLEAVE_BAD_INPUT, "not enough memory for the ids");
    for (char *rest, *word = strtok_r(text, " \t\r\n", &rest); word != NULL; word = strtok_r(NULL, " \t\r\n", &rest)) {
        const long id = strspn(word, "0123456789") == strlen(word) ? strtol(word, NULL, 10) : -1;
        if (id < 0 || id > INT32_MAX)
            return cli_fail(CLEAVE_BAD_INPUT, "id %zu is '%.40s', not a number from 0 on", *count + 1, word);
        (*ids)[(*count)++] = (int32_t)id;
    }
    return cli_ok();
}

static cleave_status print_text(const cleave_tokenizer *tokenizer, char *input)
{
    int32_t *ids;
    char *text = NULL;
    size_t count, n = 0;
    cleave_status st = parse_ids(input, &ids, &count);
    if (st.code == CLEAVE_OK)
        st = cleave_tokenizer_decode(tokenizer, ids, count, &text, &n);
    if (st.code == CLEAVE_OK)
        fwrite(text, 1, n, stdout);
    cleave_text_free(text);
    free(ids);
    return st;
}

cleave_status cli_tokenizer_encode(cleave_world *world, const cleave_options *options)
{
    (void)world;
    cleave_tokenizer *tokenizer;
    char *text = NULL;
    size_t n = 0;
    cleave_status st = load_tokenizer(&tokenizer, options);
    if (st.code == CLEAVE_OK)
        st = read_input(options, &text, &n);
    if (st.code == CLEAVE_OK)
        st = print_ids(tokenizer, text, n);
    free(text);
    cleave_tokenizer_free(tokenizer);
    return st;
}

cleave_status cli_tokenizer_decode(cleave_world *world, const cleave_options *options)
{
    (void)world;
    cleave_tokenizer *tokenizer;
    char *text = NULL;
    size_t n = 0;
    cleave_status st = load_tokenizer(&tokenizer, options);
    if (st.code == CLEAVE_OK)
        st = read_input(options, &text, &n);
    if (st.code == CLEAVE_OK)
        st = print_text(tokenizer, text);
    free(text);
    cleave_tokenizer_free(tokenizer);
    return st;
}

cleave_status cli_tokenizer_inspect(cleave_world *world, const cleave_options *options)
{
    (void)world;
    cleave_tokenizer *tokenizer;
    const cleave_status st = load_tokenizer(&tokenizer, options);
    if (st.code == CLEAVE_OK)
        cli_print(st, cleave_tokenizer_describe(tokenizer));
    cleave_tokenizer_free(tokenizer);
    return st;
}
