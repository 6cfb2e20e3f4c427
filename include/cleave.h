/* cleave.h - the library from outside: train, evaluate, sample and verify transformers split over MPI ranks.
 *
 * Self-contained, plain C99, usable from C++. Handles are opaque; what a function hands out is given back with the
 * _free or _close beside it. Whatever can fail returns a cleave_status by value; nothing in it is freed.
 *
 *   cleave_world *world;
 *   cleave_options *options;
 *   cleave_status st = cleave_world_open(&world, &argc, &argv);
 *   if (st.code == CLEAVE_OK)
 *       st = cleave_options_create(&options, "train");
 *   if (st.code == CLEAVE_OK)
 *       st = cleave_options_set(options, "config", "run.yaml");
 *   if (st.code == CLEAVE_OK)
 *       st = cleave_train(world, options);
 *
 * "Collective: world" means that every rank calls the function, in the same order, and that all get the same status.
 * Messages for people go to stderr, from rank 0. A bug in the library ends every rank with a message.
 */
#ifndef CLEAVE_H
#define CLEAVE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status --------------------------------------------------------------------------------------------------------
 */

enum cleave_code { /* also the program's exit codes */
                   CLEAVE_OK = 0,
                   CLEAVE_BAD_INPUT = 1, /* a file, value or size that cannot be used */
                   CLEAVE_BAD_USAGE = 2, /* an option that does not exist or is not well formed */
                   CLEAVE_CHECK_FAILED =
                       3, /* a check of the run itself: drift, a loss that is not finite, verification */
                   CLEAVE_INTERRUPTED = 4 /* stopped by a signal after saving */
};

typedef struct cleave_status {
    int code;        /* enum cleave_code */
    char text[1020]; /* what is wrong and what to change; empty when all is well */
} cleave_status;

const char *cleave_version(void); /* "0.1.0" */

/* ---- world: the processes of a run ---------------------------------------------------------------------------------
 */

typedef struct cleave_world cleave_world;

/* For how many turns a thread that waits should spin before it sleeps: few where other ranks may use the same cores,
 * else more. libgomp reads it from GOMP_SPINCOUNT before main begins, so a program that sets it starts itself again;
 * its own 300,000 turns make runs that share cores several times slower. */
int cleave_spin_count(void);
/* Under mpirun this is MPI's world (MPI is initialised), else one process without MPI. Collective: all processes.
 * Errors: processes that were started by the launcher of another MPI. */
cleave_status cleave_world_open(cleave_world **out, int *argc, char ***argv);
/* Collective: world. */
void cleave_world_close(cleave_world *world);
int cleave_world_rank(const cleave_world *world);
int cleave_world_size(const cleave_world *world);
/* Every rank gets the failure of the lowest rank that failed, or CLEAVE_OK. Collective: world. */
cleave_status cleave_world_agree(cleave_world *world, cleave_status mine);
/* Ends every rank at once with this exit code. Not collective. */
void cleave_world_abort(cleave_world *world, int code);

/* ---- options: what the command line and its YAML file say ----------------------------------------------------------
 */

typedef struct cleave_options cleave_options;

/* command: train, eval, generate, verify, preprocess, tokenizer, inspect. Errors: no such command, with the nearest. */
cleave_status cleave_options_create(cleave_options **out, const char *command);
void cleave_options_free(cleave_options *options);
/* "--name value", "--name=value", "--flag", "--no-flag", "--config FILE"; strings are copied. Errors: unknown names
 * with the nearest ones, values out of range. */
cleave_status cleave_options_parse(cleave_options *options, int count, char *const *argv);
/* One option by its name without dashes; value NULL for a flag; "config" reads a YAML file. */
cleave_status cleave_options_set(cleave_options *options, const char *name, const char *value);
/* The value of a text option, or NULL when it was not given and has no default. Valid until the option changes. */
const char *cleave_options_text(const cleave_options *options, const char *name);
/* Arguments that are no options, in order; NULL from the last one on. */
const char *cleave_options_word(const cleave_options *options, size_t i);
/* Every option of a command, 100 columns wide; give back with cleave_text_free. NULL when there is no such command. */
char *cleave_options_help(const char *command);
void cleave_text_free(char *text);

/* ---- runs. Collective: world. Results go to stdout. ----------------------------------------------------------------
 */

cleave_status cleave_train(cleave_world *world, const cleave_options *options);
/* Loss, perplexity and bits per byte of a model on token files or on a text. */
cleave_status cleave_eval(cleave_world *world, const cleave_options *options);
cleave_status cleave_generate(cleave_world *world, const cleave_options *options);
/* A layout against one rank, or against expected values. CLEAVE_CHECK_FAILED when they differ. */
cleave_status cleave_verify(cleave_world *world, const cleave_options *options);

/* ---- data and tokenizers. One process. -----------------------------------------------------------------------------
 */

/* Text to token files. A summary for stdout is put into *report; give back with cleave_text_free. */
cleave_status cleave_preprocess(const cleave_options *options, char **report);
/* Byte-level BPE from a text; options of "tokenizer": input, vocab-size, output, holdout-percent. */
cleave_status cleave_tokenizer_train(const cleave_options *options, char **report);
/* What is in a safetensors file, model folder, checkpoint, .idx or tokenizer. Errors: what is not sound in it. */
cleave_status cleave_inspect(const char *path, char **report);

typedef struct cleave_tokenizer cleave_tokenizer;

/* path: tokenizer.json, or a folder that holds it or vocab.json and merges.txt. */
cleave_status cleave_tokenizer_load(cleave_tokenizer **out, const char *path);
void cleave_tokenizer_free(cleave_tokenizer *tokenizer);
int64_t cleave_tokenizer_vocab_size(const cleave_tokenizer *tokenizer); /* highest id + 1 */
/* n bytes of UTF-8 to ids; add_special: with the tokens that its template puts around a text. Give the ids back with
 * cleave_ids_free. Safe from several threads. */
cleave_status cleave_tokenizer_encode(const cleave_tokenizer *tokenizer, const char *text, size_t n, int add_special,
                                      int32_t **ids, size_t *count);
void cleave_ids_free(int32_t *ids);
/* Ids to text, terminated, n bytes; give back with cleave_text_free. Errors: an id that is no token. */
cleave_status cleave_tokenizer_decode(const cleave_tokenizer *tokenizer, const int32_t *ids, size_t count, char **text,
                                      size_t *n);
char *cleave_tokenizer_describe(const cleave_tokenizer *tokenizer); /* its pipeline; cleave_text_free */

#ifdef __cplusplus
}
#endif

#endif
