/* hf_config_internal.h - which key of config.json holds which field of clv_config; for its reader and its writer. */
#ifndef CLV_HF_CONFIG_INTERNAL_H
#define CLV_HF_CONFIG_INTERNAL_H

#include "format/format.h"

enum { /* families, as a mask */
       CLV_HF_LLAMA = 1,
       CLV_HF_MISTRAL = 2,
       CLV_HF_QWEN2 = 4,
       CLV_HF_QWEN3 = 8,
       CLV_HF_GPT2 = 16,
       CLV_HF_CLEAVE = 32,
       CLV_HF_QWENS = CLV_HF_QWEN2 | CLV_HF_QWEN3,
       CLV_HF_LLAMAS = CLV_HF_LLAMA | CLV_HF_MISTRAL | CLV_HF_QWENS,
       CLV_HF_ALL = CLV_HF_LLAMAS | CLV_HF_GPT2 | CLV_HF_CLEAVE
};

enum { CLV_HF_FAMILIES = 6 };

typedef struct clv_hf_family {
    unsigned bit;
    const char *model_type, *architecture;
} clv_hf_family;

typedef struct clv_hf_choice {
    const char *name; /* of equal values, the first one is written */
    int value;
} clv_hf_choice;

typedef enum clv_hf_type {
    CLV_HF_INTEGER,
    CLV_HF_DERIVED, /* an integer; null: it follows from others or, for a window, there is none */
    CLV_HF_TOKEN,   /* an integer, a list of them (the first counts), or null: -1 */
    CLV_HF_REAL,
    CLV_HF_SPARE, /* a number that the family itself does not know: written only when it is not 0 */
    CLV_HF_FLAG,
    CLV_HF_CHOICE
} clv_hf_type;

typedef struct clv_hf_field {
    unsigned families;
    const char *key;
    const char *alias; /* another name of the key, read but not written */
    clv_hf_type type;
    size_t offset;                /* in clv_config */
    const clv_hf_choice *choices; /* ended by a name that is NULL */
} clv_hf_field;

extern const clv_hf_family clv_hf_families[CLV_HF_FAMILIES]; /* in the order in which a shape is offered to them */
extern const clv_hf_field clv_hf_fields[];
extern const size_t clv_hf_field_count;
extern const clv_hf_choice clv_hf_rope_kinds[];

const clv_hf_family *clv_hf_family_find(const char *model_type); /* NULL when unknown */

/* The shape that a parsed config.json states; `where` is for messages. */
clv_status clv_hf_config_parse(clv_config *out, const clv_json *json, const char *where);

#endif
