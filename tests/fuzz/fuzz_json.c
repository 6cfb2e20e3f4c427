/* fuzz_json.c - libFuzzer on the JSON reader: any bytes; what is read is walked to the last node, and shape configs are
 * tried on it.
 *
 * Build: clang -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -Isrc, this file, and json, json_value, hf_config,
 * hf_config_write, hf_fields of src/format with all of src/base but the tests; -lxxhash -lm.
 */
#include "format/hf_config_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Visits a node, its siblings and all below them; nesting is bounded by the reader. */
static int64_t walk(const clv_json *json, clv_node node)
{
    int64_t seen = 0;
    for (clv_node at = node; at != CLV_NO_NODE; at = clv_json_next(json, at)) {
        size_t n = 0;
        const char *text = clv_json_string(json, at, &n);
        CLV_CHECK(text == NULL || text[n] == 0, "string of node %lld is not terminated", (long long)at);
        seen += 1 + walk(json, clv_json_first(json, at));
    }
    return seen;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    clv_json *json;
    if (clv_json_parse(&json, (const char *)data, size, "fuzz").code != CLV_OK)
        return 0;
    CLV_CHECK(walk(json, CLV_JSON_ROOT) >= 1, "no node");
    clv_config config;
    (void)clv_hf_config_parse(&config, json, "fuzz");
    clv_json_free(json);
    return 0;
}
