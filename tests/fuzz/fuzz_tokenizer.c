/* fuzz_tokenizer.c - libFuzzer's entry: any bytes as a tokenizer.json; what loads must encode and decode.
 *
 * clang -fsanitize=fuzzer,address,undefined -std=c11 -D_GNU_SOURCE -Isrc tests/fuzz/fuzz_tokenizer.c \
 *     $(ls src/base/[a-z]*.c src/format/{json,tokenizer,unicode}*.c | grep -v _test) -lutf8proc -lxxhash -lm
 * Begin with a small tokenizer.json in the corpus folder. The input's last 64 bytes are also the text to encode.
 */
#include "format/tokenizer_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    clv_tokenizer *tok;
    clv_ids ids = {0};
    clv_text text = {0};
    const size_t n = CLV_MIN(size, 64);
    clv_log_setup(CLV_LOG_ERROR, 0, 1);
    if (clv_tokenizer_parse(&tok, (const char *)data, size, "input").code != CLV_OK)
        return 0;
    if (clv_tokenizer_encode(tok, (const char *)data + size - n, n, true, &ids).code == CLV_OK)
        CLV_CHECK(clv_tokenizer_decode(tok, ids.id, ids.count, true, &text).code == CLV_OK,
                  "an id of our own is unknown");
    clv_ids_free(&ids);
    clv_text_free(&text);
    clv_tokenizer_free(tok);
    return 0;
}
