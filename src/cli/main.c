/* main.c - cleave COMMAND OPTIONS: finds the command, opens the world, runs, and leaves with the status's code.
 *
 * Results go to stdout, everything else to stderr. Every rank parses the same words; the ranks agree on the status
 * before rank 0 prints it, so that an error stands there once and all leave together with one code.
 */
#include "cli/cli.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

static const cli_command commands[] = {
    {"train", "train", "[options]", "train a model", 0, 0, cleave_train},
    {"eval", "eval", "[options]", "loss, perplexity and bits per byte of a model on a text or on token files", 0, 0,
     cleave_eval},
    {"generate", "generate", "[options]", "continue a prompt", 0, 0, cleave_generate},
    {"verify", "verify", "[options]", "hold a layout against one rank, or against expected values", 0, 0,
     cleave_verify},
    {"preprocess", "preprocess", "[options]", "text or JSON lines to token files", 0, 1, cli_preprocess},
    {"tokenizer train", "tokenizer", "--input FILE --vocab-size N --output tokenizer.json", "learn a byte-level BPE", 0,
     1, cli_tokenizer_train},
    {"tokenizer encode", "tokenizer", "--tokenizer-model PATH [--input FILE]", "text, or stdin, to ids", 0, 1,
     cli_tokenizer_encode},
    {"tokenizer decode", "tokenizer", "--tokenizer-model PATH [--input FILE]", "ids, or stdin, to text", 0, 1,
     cli_tokenizer_decode},
    {"tokenizer inspect", "tokenizer", "--tokenizer-model PATH", "what a tokenizer does, step by step", 0, 1,
     cli_tokenizer_inspect},
    {"inspect", "inspect", "PATH", "what is in a safetensors file, model, checkpoint, .idx or tokenizer", 1, 1,
     cli_inspect},
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

cleave_status cli_ok(void)
{
    return (cleave_status){.code = CLEAVE_OK};
}

cleave_status cli_fail(int code, const char *fmt, ...)
{
    cleave_status st = {.code = code};
    va_list args;
    va_start(args, fmt);
    vsnprintf(st.text, sizeof st.text, fmt, args);
    va_end(args);
    return st;
}

cleave_status cli_print(cleave_status st, char *report)
{
    if (report != NULL)
        fputs(report, stdout);
    cleave_text_free(report);
    return st;
}

static void print_help(FILE *to)
{
    fprintf(to, "cleave %s: train transformers split over MPI ranks\n\n", cleave_version());
    for (int i = 0; i < COMMANDS; i++)
        fprintf(to, "  cleave %-18s %s\n", commands[i].name, commands[i].sentence);
    fprintf(to,
            "\n"
            "cleave COMMAND --help lists the options of a command. On several ranks: mpirun -n N cleave COMMAND ...\n"
            "Exit codes: 0 done, 1 bad input, 2 bad usage, 3 a check of the run failed, 4 stopped by a signal.\n");
}

static int print_command_help(const cli_command *command)
{
    char *options = cleave_options_help(command->options);
    printf("cleave %s %s\n\n%s.\n\n%s", command->name, command->usage, command->sentence, options);
    cleave_text_free(options);
    return CLEAVE_OK;
}

/* Does the command line ask for help before a "--"? */
static int wants_help(int count, char **argv)
{
    for (int i = 0; i < count && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return 1;
    return 0;
}

/* The command that argv begins with; *used counts its words. */
static const cli_command *find_command(int count, char **argv, int *used)
{
    char two[64] = "";
    if (count > 1)
        snprintf(two, sizeof two, "%s %s", argv[0], argv[1]);
    for (int i = 0; i < COMMANDS; i++) {
        const int is_two = strchr(commands[i].name, ' ') != NULL;
        *used = 1 + is_two;
        if (count > 0 && strcmp(commands[i].name, is_two ? two : argv[0]) == 0)
            return &commands[i];
    }
    return NULL;
}

static cleave_status unknown_command(int count, char **argv)
{
    if (count == 0)
        return cli_fail(CLEAVE_BAD_USAGE, "no command; see cleave --help");
    if (strcmp(argv[0], "tokenizer") == 0)
        return cli_fail(CLEAVE_BAD_USAGE, "tokenizer train, encode, decode or inspect, not '%.80s'",
                        count > 1 ? argv[1] : "");
    cleave_options *options;
    const cleave_status st = cleave_options_create(&options, argv[0]);
    cleave_options_free(options);
    return st;
}

static cleave_status run_command(cleave_world *world, const cli_command *command, int count, char **argv)
{
    cleave_options *options;
    cleave_status st = cleave_options_create(&options, command->options);
    if (st.code == CLEAVE_OK)
        st = cleave_options_parse(options, count, argv);
    if (st.code == CLEAVE_OK && cleave_options_word(options, command->words) != NULL)
        st = cli_fail(CLEAVE_BAD_USAGE, "'%.200s' is not an option; options begin with --",
                      cleave_options_word(options, command->words));
    st = cleave_world_agree(world, st);
    if (st.code == CLEAVE_OK && (!command->is_single || cleave_world_rank(world) == 0))
        st = command->run(world, options);
    if (fflush(stdout) != 0 && st.code == CLEAVE_OK)
        st = cli_fail(CLEAVE_BAD_INPUT, "cannot write to stdout");
    cleave_options_free(options);
    return cleave_world_agree(world, st);
}

/* Set before libgomp starts, which is before main: so this program starts once more, unless the user chose, or started
 * the loader by hand (no base address): then the loader is what would start. By its path, which names the process. */
static void wait_briefly(char **argv)
{
    char turns[16], path[4096];
    if (getenv("GOMP_SPINCOUNT") != NULL || getenv("OMP_WAIT_POLICY") != NULL || getauxval(AT_BASE) == 0)
        return;
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0 || length >= (ssize_t)sizeof path - 1)
        return;
    path[length] = '\0';
    snprintf(turns, sizeof turns, "%d", cleave_spin_count());
    if (setenv("GOMP_SPINCOUNT", turns, 1) == 0)
        execv(path, argv); /* comes back only where it fails; the run is well without */
}

int main(int argc, char **argv)
{
    int used = 0;
    const cli_command *command = find_command(argc - 1, argv + 1, &used);
    if (command != NULL && wants_help(argc - 1 - used, argv + 1 + used))
        return print_command_help(command);
    if (command == NULL && argc > 1 && wants_help(argc - 1, argv + 1))
        return print_help(stdout), CLEAVE_OK;
    if (argc > 1 && strcmp(argv[1], "--version") == 0)
        return printf("cleave %s\n", cleave_version()) < 0;

    if (command != NULL && !command->is_single)
        wait_briefly(argv);
    cleave_world *world;
    cleave_status st = cleave_world_open(&world, &argc, &argv);
    if (st.code == CLEAVE_OK)
        st = command == NULL ? unknown_command(argc - 1, argv + 1)
                             : run_command(world, command, argc - 1 - used, argv + 1 + used);
    if (st.code != CLEAVE_OK && (world == NULL || cleave_world_rank(world) == 0))
        fprintf(stderr, "cleave%s%s: %s\n", command != NULL ? " " : "", command != NULL ? command->name : "", st.text);
    cleave_world_close(world);
    return st.code;
}
