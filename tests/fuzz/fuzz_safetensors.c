/* fuzz_safetensors.c - libFuzzer on a whole safetensors file: what is accepted must tile the file and be readable.
 *
 * Build: clang -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -Isrc, this file, and json, json_value, safetensors,
 * safetensors_header of src/format with all of src/base but the tests; -lxxhash -lm.
 */
#include "format/format.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_all(const clv_safetensors *st, size_t size)
{
    for (size_t i = 0; i < clv_safetensors_count(st); i++) {
        const clv_st_tensor *t = clv_safetensors_at(st, i);
        CLV_CHECK(t->at <= size && t->bytes <= size - t->at, "%s lies outside of the file", t->name);
        CLV_CHECK(clv_safetensors_find(st, t->name) == t, "%s is not found", t->name);
        char *bytes = clv_alloc((size_t)t->bytes, 1);
        CLV_CHECK(clv_safetensors_read(st, t, 0, bytes, (size_t)t->bytes).code == CLV_OK, "%s: not read", t->name);
        free(bytes);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const int fd = memfd_create("fuzz", 0);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (fd >= 0 && write(fd, data, size) == (ssize_t)size) {
        clv_safetensors *st;
        if (clv_safetensors_open(&st, path).code == CLV_OK) {
            read_all(st, size);
            clv_safetensors_close(st);
        }
    }
    close(fd);
    return 0;
}
