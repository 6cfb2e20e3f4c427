/* options_internal.h - the rows behind clv_options, shared by the parser, the file reader and the help. */
#ifndef CLV_OPTIONS_INTERNAL_H
#define CLV_OPTIONS_INTERNAL_H

#include "train/train.h"

typedef enum clv_option_kind {
    CLV_OPTION_INT,
    CLV_OPTION_REAL,
    CLV_OPTION_FLAG,
    CLV_OPTION_TEXT,
    CLV_OPTION_LIST
} clv_option_kind;

typedef struct clv_option_row {
    clv_option_kind kind;
    const char *field, *preset, *limits, *commands, *group, *sentence;
    size_t value, given; /* offsets in clv_options */
} clv_option_row;

/* Rows of options.def, and their number. */
const clv_option_row *clv_option_rows(size_t *count);
enum { CLV_OPTION_NAME = 64 };
/* The name as it is typed, with '-'; out holds CLV_OPTION_NAME bytes. Returns out. */
const char *clv_option_name(const char *field, char *out);
bool clv_option_is_of(const clv_option_row *row, char command);
const char *clv_option_command_name(char command);

static inline const void *clv_option_at(const clv_options *options, size_t offset)
{
    return (const char *)options + offset;
}
/* Limits in words: "1 or more", "1 to 64", "at least 0, below 1". Returns out. */
const char *clv_option_range(const char *limits, char *out, size_t size);

typedef enum clv_megatron_form {
    CLV_MEGATRON_ALIAS,
    CLV_MEGATRON_PRESET,
    CLV_MEGATRON_ADD,
    CLV_MEGATRON_FLAG,
    CLV_MEGATRON_VALUE,
    CLV_MEGATRON_REFUSED
} clv_megatron_form;
typedef struct clv_megatron_row { /* of options_megatron.def */
    clv_megatron_form form;
    const char *name, *detail, *sentence;
} clv_megatron_row;

bool clv_option_same_name(const char *a, const char *b); /* '-' and '_' are one character */
const clv_option_row *clv_option_row_named(const char *name);

/* What a name means: a row, or a Megatron option that is accepted and does nothing. */
typedef enum clv_option_takes { CLV_TAKES_NOTHING, CLV_TAKES_ONE, CLV_TAKES_MANY } clv_option_takes;
typedef struct clv_option_match {
    const clv_option_row *row;        /* NULL: accepted and without effect */
    const clv_megatron_row *megatron; /* the row that led here, or NULL */
    bool negated;                     /* --no-NAME */
    const char *stands_for;           /* the value, with % for the word that follows; NULL: the words themselves */
    clv_option_takes takes;
} clv_option_match;

/* options_match.c. Errors: unknown, with the nearest names; of another command; Megatron's and refused, with the
 * reason. */
clv_status clv_option_find(clv_option_match *out, char command, const char *name);
/* Errors: a value of the wrong kind or out of range. */
clv_status clv_option_set(clv_options *options, const clv_option_match *match, const char *const *words, size_t count);

/* options_file.c: every key of a YAML file. Errors: file, line and reason. */
clv_status clv_options_read_file(clv_options *options, const char *path);

#endif
