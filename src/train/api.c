/* api.c - include/cleave.h over the layers: handles, and statuses handed through. */
#include "train/api_internal.h"

#include <stdlib.h>
#include <string.h>

_Static_assert((int)CLEAVE_BAD_INPUT == (int)CLV_BAD_INPUT && (int)CLEAVE_BAD_USAGE == (int)CLV_BAD_USAGE &&
                   (int)CLEAVE_CHECK_FAILED == (int)CLV_CHECK_FAILED && (int)CLEAVE_INTERRUPTED == (int)CLV_INTERRUPTED,
               "the codes are the same");
_Static_assert(sizeof((cleave_status){0}.text) == sizeof((clv_status){0}.text), "the texts are the same");

cleave_status clv_api_status(clv_status st)
{
    cleave_status out = {.code = (int)st.code};
    memcpy(out.text, st.text, sizeof out.text);
    return out;
}

static clv_status inner_status(cleave_status st)
{
    clv_status out = {.code = (clv_code)st.code};
    memcpy(out.text, st.text, sizeof out.text);
    return out;
}

/* On success the text is the caller's, a string even when it is empty. */
static cleave_status report(clv_status st, clv_text *text, char **out)
{
    *out = NULL;
    if (st.code == CLV_OK) {
        clv_text_add(text, "", 0);
        *out = text->data;
    } else {
        clv_text_free(text);
    }
    return clv_api_status(st);
}

void clv_api_log(const clv_options *options, int rank, int size)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    for (size_t i = 0; i < CLV_COUNT(names); i++)
        if (strcmp(options->log_level, names[i]) == 0)
            clv_log_setup((clv_log_level)i, rank, size);
}

const char *cleave_version(void)
{
    return CLEAVE_VERSION;
}

void cleave_text_free(char *text)
{
    free(text);
}

/* ---- world --------------------------------------------------------------------------------------------------------
 */

int cleave_spin_count(void)
{
    return clv_launch_spins();
}

cleave_status cleave_world_open(cleave_world **out, int *argc, char ***argv)
{
    *out = NULL;
    clv_comm *comm;
    const clv_status st = clv_comm_world_open(&comm, argc, argv);
    if (st.code != CLV_OK)
        return clv_api_status(st);
    *out = clv_alloc(1, sizeof **out);
    (*out)->comm = comm;
    return clv_api_status(st);
}

void cleave_world_close(cleave_world *world)
{
    if (world == NULL)
        return;
    clv_comm_world_close(world->comm);
    free(world);
}

int cleave_world_rank(const cleave_world *world)
{
    return clv_comm_rank(world->comm);
}

int cleave_world_size(const cleave_world *world)
{
    return clv_comm_size(world->comm);
}

cleave_status cleave_world_agree(cleave_world *world, cleave_status mine)
{
    return clv_api_status(clv_comm_agree(world->comm, inner_status(mine)));
}

void cleave_world_abort(cleave_world *world, int code)
{
    clv_comm_abort(world->comm, code);
}

/* ---- options ------------------------------------------------------------------------------------------------------
 */

cleave_status cleave_options_create(cleave_options **out, const char *command)
{
    static const char *const names[] = {"train", "eval", "generate", "verify", "preprocess", "tokenizer", "inspect"};
    *out = NULL;
    const char letter = clv_options_command(command), *near = clv_nearest(command, names, CLV_COUNT(names));
    if (letter == 0 && near != NULL)
        return clv_api_status(clv_fail(CLV_BAD_USAGE, "unknown command '%.80s'; nearest: %s", command, near));
    if (letter == 0)
        return clv_api_status(clv_fail(CLV_BAD_USAGE, "unknown command '%.80s'; see cleave --help", command));
    *out = clv_alloc(1, sizeof **out);
    clv_options_default(&(*out)->inner, letter);
    return clv_api_status(clv_ok());
}

void cleave_options_free(cleave_options *options)
{
    if (options == NULL)
        return;
    clv_options_free(&options->inner);
    clv_list_free(&options->words);
    free(options);
}

cleave_status cleave_options_parse(cleave_options *options, int count, char *const *argv)
{
    return clv_api_status(clv_options_parse(&options->inner, count, argv, &options->words));
}

cleave_status cleave_options_set(cleave_options *options, const char *name, const char *value)
{
    clv_text word = {0};
    clv_text_printf(&word, value == NULL ? "--%s" : "--%s=%s", name, value);
    const clv_status st = clv_options_parse(&options->inner, 1, &word.data, NULL);
    clv_text_free(&word);
    return clv_api_status(st);
}

const char *cleave_options_text(const cleave_options *options, const char *name)
{
    return clv_options_text(&options->inner, name);
}

const char *cleave_options_word(const cleave_options *options, size_t i)
{
    return i < options->words.count ? options->words.word[i] : NULL;
}

char *cleave_options_help(const char *command)
{
    const char letter = clv_options_command(command);
    clv_text text = {0};
    if (letter != 0)
        clv_options_help(letter, &text);
    return text.data;
}

/* ---- data, tokenizers ---------------------------------------------------------------------------------------------
 */

cleave_status cleave_preprocess(const cleave_options *options, char **out)
{
    clv_text text = {0};
    clv_api_log(&options->inner, 0, 1);
    return report(clv_corpus_preprocess(&options->inner, &text), &text, out);
}

cleave_status cleave_tokenizer_train(const cleave_options *options, char **out)
{
    clv_text text = {0};
    clv_api_log(&options->inner, 0, 1);
    return report(clv_corpus_learn(&options->inner, &text), &text, out);
}

cleave_status cleave_inspect(const char *path, char **out)
{
    clv_text text = {0};
    return report(clv_inspect(path, &text), &text, out);
}

/* The handle is the inner tokenizer itself. */
static clv_tokenizer *inner_tokenizer(cleave_tokenizer *tokenizer)
{
    return (clv_tokenizer *)(void *)tokenizer;
}

static const clv_tokenizer *inner_const(const cleave_tokenizer *tokenizer)
{
    return (const clv_tokenizer *)(const void *)tokenizer;
}

cleave_status cleave_tokenizer_load(cleave_tokenizer **out, const char *path)
{
    clv_tokenizer *tokenizer = NULL;
    const clv_status st = clv_tokenizer_load(&tokenizer, path);
    *out = st.code == CLV_OK ? (cleave_tokenizer *)(void *)tokenizer : NULL;
    return clv_api_status(st);
}

void cleave_tokenizer_free(cleave_tokenizer *tokenizer)
{
    if (tokenizer != NULL)
        clv_tokenizer_free(inner_tokenizer(tokenizer));
}

int64_t cleave_tokenizer_vocab_size(const cleave_tokenizer *tokenizer)
{
    return clv_tokenizer_vocab_size(inner_const(tokenizer));
}

cleave_status cleave_tokenizer_encode(const cleave_tokenizer *tokenizer, const char *text, size_t n, int add_special,
                                      int32_t **ids, size_t *count)
{
    clv_ids found = {0};
    const clv_status st = clv_tokenizer_encode(inner_const(tokenizer), text, n, add_special != 0, &found);
    if (st.code != CLV_OK)
        clv_ids_free(&found);
    *ids = found.id;
    *count = found.count;
    return clv_api_status(st);
}

void cleave_ids_free(int32_t *ids)
{
    free(ids);
}

cleave_status cleave_tokenizer_decode(const cleave_tokenizer *tokenizer, const int32_t *ids, size_t count, char **text,
                                      size_t *n)
{
    clv_text out = {0};
    const clv_status st = clv_tokenizer_decode(inner_const(tokenizer), ids, count, false, &out);
    *n = st.code == CLV_OK ? out.length : 0;
    return report(st, &out, text);
}

char *cleave_tokenizer_describe(const cleave_tokenizer *tokenizer)
{
    clv_text out = {0};
    clv_tokenizer_describe(inner_const(tokenizer), &out);
    return out.data;
}
