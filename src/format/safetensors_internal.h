/* safetensors_internal.h - element types and header of the format, for the files that read and write it. */
#ifndef CLV_SAFETENSORS_INTERNAL_H
#define CLV_SAFETENSORS_INTERNAL_H

#include "format/format.h"

#define CLV_ST_HEADER_MAX 100000000u /* bytes; the reference reader refuses more */

typedef struct clv_st_kind {
    char name[12];
    unsigned bits;
    clv_dtype dtype; /* CLV_DTYPES for one that we do not compute with */
} clv_st_kind;

/* By name in a file; NULL for an unknown one. */
const clv_st_kind *clv_st_kind_find(const char *name);
/* By our type. Kinds lie in one array, so a later address comes later in the order of the format ("wider"). */
const clv_st_kind *clv_st_kind_of(clv_dtype dtype);

typedef struct clv_st_pair {
    char *key, *value;
} clv_st_pair;

typedef struct clv_st_header {
    clv_st_tensor *tensors; /* by offset; `at` counts from the end of the header, names belong to this list */
    size_t count;
    clv_st_pair *metadata;
    size_t metadata_count;
} clv_st_header;

/* data: bytes after the header. Errors: the tensor, and what is wrong with it; nothing to free then. */
clv_status clv_st_header_parse(clv_st_header *out, const char *text, size_t n, uint64_t data);
void clv_st_header_free(clv_st_header *header);

#endif
