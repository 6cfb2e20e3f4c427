/* cli.h - the program around the library: a table of commands, and what they share. */
#ifndef CLEAVE_CLI_H
#define CLEAVE_CLI_H

#include "cleave.h"

typedef struct cli_command {
    const char *name;     /* "tokenizer train" */
    const char *options;  /* whose options it takes, for cleave_options_create */
    const char *usage;    /* what follows the name */
    const char *sentence; /* for --help */
    size_t words;         /* arguments that are no options, at most */
    int is_single;        /* runs on rank 0 alone; the others wait */
    cleave_status (*run)(cleave_world *world, const cleave_options *options);
} cli_command;

cleave_status cli_preprocess(cleave_world *world, const cleave_options *options);
cleave_status cli_inspect(cleave_world *world, const cleave_options *options);
cleave_status cli_tokenizer_train(cleave_world *world, const cleave_options *options);
cleave_status cli_tokenizer_encode(cleave_world *world, const cleave_options *options);
cleave_status cli_tokenizer_decode(cleave_world *world, const cleave_options *options);
cleave_status cli_tokenizer_inspect(cleave_world *world, const cleave_options *options);

cleave_status cli_ok(void);
cleave_status cli_fail(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Prints a report of the library and frees it. */
cleave_status cli_print(cleave_status st, char *report);

#endif
