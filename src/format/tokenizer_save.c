/* tokenizer_save.c - a tokenizer.json: the one that was loaded, or for a vocabulary of our own one of GPT-2's type. */
#include "format/tokenizer_internal.h"

#include <string.h>

void clv_tokenizer_compose(clv_text *out, const clv_text *vocab, const clv_text *merges,
                           const clv_special_token *specials, size_t count)
{
    static const char byte_level[] =
        "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true}";
    clv_text_printf(out, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[");
    for (size_t i = 0; i < count; i++) {
        clv_text_printf(out, "%s{\"id\":%lld,\"content\":", i > 0 ? "," : "", (long long)specials[i].id);
        clv_json_add_string(out, specials[i].content, strlen(specials[i].content));
        clv_text_printf(out, ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
                             "\"special\":true}");
    }
    clv_text_printf(out,
                    "],\n\"normalizer\":null,\"pre_tokenizer\":%s,\n\"post_processor\":%s,\n\"decoder\":%s,\n"
                    "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
                    "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,"
                    "\"byte_fallback\":false,\"ignore_merges\":false,\n\"vocab\":",
                    byte_level, byte_level, byte_level);
    clv_text_add(out, vocab->data, vocab->length);
    clv_text_printf(out, ",\n\"merges\":");
    clv_text_add(out, merges->data, merges->length);
    clv_text_printf(out, "}}\n");
}

clv_status clv_tokenizer_save(const clv_tokenizer *tok, const char *path)
{
    return clv_file_write_atomic(path, tok->json.data, tok->json.length);
}
