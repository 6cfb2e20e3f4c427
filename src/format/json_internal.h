/* json_internal.h - what a parsed document is made of; shared by the reader (json.c) and the access to it
 * (json_value.c).
 */
#ifndef CLV_JSON_INTERNAL_H
#define CLV_JSON_INTERNAL_H

#include "format/format.h"

#define CLV_JSON_NO_KEY UINT32_MAX

typedef struct clv_json_node {
    clv_json_kind kind;
    uint32_t key, key_length; /* in the pool; CLV_JSON_NO_KEY outside of objects */
    uint32_t text;            /* in the pool, for strings and numbers */
    uint32_t length;          /* bytes of a string or number; children of a container; 1 for true */
    uint32_t next;            /* sibling; 0 (the root) for none */
} clv_json_node;

struct clv_json {
    char *where;
    char *pool;           /* unescaped strings and the digits of numbers, each terminated by a zero */
    clv_json_node *nodes; /* in the order of the text: the first child is the node after its parent */
    size_t count, capacity;
};

/* Bytes of the UTF-8 character at `at` (at < end), 0 if none stands there. */
size_t clv_json_character(const char *at, const char *end);

#endif
