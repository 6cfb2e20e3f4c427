/* tokenizer_test.c - the semantics of encoding and decoding, what is refused, decoding as ids arrive. Ids and texts are
 * those of Hugging Face's library, but for two differences on purpose: a template's first token is not doubled, and an
 * added token whose id disagrees with its place is refused. */
#include "format/tokenizer_test_internal.h"

#include <stdio.h>
#include <time.h>

#define MODEL(flags, vocab, merges) "'model':{'type':'BPE'" flags ",'vocab':{" vocab "},'merges':[" merges "]}}"
#define ADDED(id, content, flags)   "{'id':" #id ",'content':'" content "'" flags "}"

/* <unk> 0, a 1, <0x00> 2 ... <0xFF> 257, then `more`. */
static clv_tokenizer *byte_fallback_tokenizer(const char *more, const char *decoder)
{
    clv_text json = {0};
    clv_text_printf(&json,
                    "{'decoder':%s,'model':{'type':'BPE','byte_fallback':true,'unk_token':'<unk>','merges':[],"
                    "'vocab':{'<unk>':0,'a':1%s",
                    decoder, more);
    for (unsigned byte = 0; byte < 256; byte++)
        clv_text_printf(&json, ",'<0x%02X>':%u", byte, byte + 2);
    clv_text_printf(&json, "}}}");
    clv_tokenizer *tok = tokenizer_of(json.data);
    clv_text_free(&json);
    return tok;
}

static const char fallback_decoder[] =
    "{'type':'Sequence','decoders':[{'type':'Replace','pattern':{'String':'▁'},'content':' '},"
    "{'type':'ByteFallback'},{'type':'Fuse'},{'type':'Strip','content':' ','start':1,'stop':0}]}";

/* The 256 bytes of the alphabet by code point, `!` 0 to `~` 93, and merges of a few. */
static clv_tokenizer *byte_level_tokenizer(void)
{
    static const char *const special[] = {"<|endoftext|>"};
    clv_bpe_trainer *trainer = clv_bpe_trainer_create();
    clv_bpe_trainer_feed(trainer, "hello hello low low", 19);
    clv_tokenizer *tok;
    assert_string_equal(clv_bpe_trainer_finish(trainer, 262, special, 1, &tok).text, "");
    return tok;
}

static void test_unknown_characters(void **state)
{
    (void)state;
    clv_tokenizer *tok = tokenizer_of("{" MODEL("", "'a':0,'b':1,'ab':2", "'a b'"));
    ENCODES(tok, "axb ab", 2, 2); /* x and the space vanish, and a meets b */
    clv_tokenizer_free(tok);
    tok = tokenizer_of("{" MODEL(",'unk_token':'<unk>','fuse_unk':true", "'<unk>':0,'a':1", ""));
    ENCODES(tok, "axyza", 1, 0, 1);
    clv_tokenizer_free(tok);
    tok = tokenizer_of("{" MODEL(",'unk_token':'<unk>','fuse_unk':false", "'<unk>':0,'a':1", ""));
    ENCODES(tok, "axyza", 1, 0, 0, 0, 1);
    clv_tokenizer_free(tok);
    tok = byte_fallback_tokenizer("", "null");
    ENCODES(tok, "aé\n", 1, 197, 171, 12);
    clv_tokenizer_free(tok);
}

static void test_merges(void **state)
{
    (void)state;
    clv_tokenizer *tok = tokenizer_of("{" MODEL(",'ignore_merges':true", "'a':0,'b':1,'c':2,'abc':3", ""));
    ENCODES(tok, "abc", 3);
    clv_tokenizer_free(tok);
    tok = tokenizer_of("{" MODEL("", "'a':0,'b':1,'c':2,'abc':3", ""));
    ENCODES(tok, "abc", 0, 1, 2);
    clv_tokenizer_free(tok);
    tok = tokenizer_of("{" MODEL("", "'a':0,'aa':1", "'a a'"));
    ENCODES(tok, "aaa", 1, 0);
    clv_tokenizer_free(tok);
    /* Both forms of merges; in the second a token may hold a space. The lower rank wins, wherever it stands. */
    tok = tokenizer_of("{" MODEL("", "'a':0,'b':1,' ':2,' a':3,'ab':4,' ab':5", "[' ','a'],['a','b'],[' a','b']"));
    ENCODES(tok, "ab ab", 4, 5);
    clv_tokenizer_free(tok);
    tok = tokenizer_of("{" MODEL("", "'a':0,'b':1,'c':2,'ab':3,'bc':4", "'#version: 0.2','b c','a b'"));
    ENCODES(tok, "abc", 0, 4);
    clv_tokenizer_free(tok);
}

static void test_added_tokens(void **state)
{
    (void)state;
    clv_tokenizer *tok = tokenizer_of(
        "{'added_tokens':[" ADDED(3, "<x>", ",'lstrip':true,'rstrip':true") "]," MODEL("", "'a':0,'b':1,' ':2", ""));
    ENCODES(tok, "a  <x>  b", 0, 3, 1);
    ENCODES(tok, " <x> <x> ", 3, 3);
    clv_tokenizer_free(tok);
    tok = tokenizer_of(
        "{'added_tokens':[" ADDED(5, "xy", ",'single_word':true") "]," MODEL("", "'a':0,'b':1,' ':2,'x':3,'y':4", ""));
    ENCODES(tok, "axy xy", 0, 3, 4, 2, 5);
    ENCODES(tok, "xy", 5);
    ENCODES(tok, "éxy", 3, 4); /* é is a word character, and itself unknown */
    clv_tokenizer_free(tok);
    tok = tokenizer_of("{'added_tokens':[" ADDED(1, "<x>", "") "," ADDED(2, "<x><y>", "") "]," MODEL("", "'a':0", ""));
    ENCODES(tok, "a<x><y>a", 0, 2, 0);
    clv_tokenizer_free(tok);
}

static void test_normalized_added_tokens(void **state)
{
    (void)state;
    clv_tokenizer *tok =
        tokenizer_of("{'normalizer':{'type':'NFC'},'added_tokens':["
                     "{'id':2,'content':'e\u0301x','normalized':true},"
                     "{'id':3,'content':'e\u0301y','normalized':false}]," MODEL("", "'é':0,'y':1", ""));
    ENCODES(tok, "éx", 2);
    ENCODES(tok, "éy", 0, 1);
    ENCODES(tok, "e\u0301x", 2);
    ENCODES(tok, "e\u0301y", 3);
    clv_tokenizer_free(tok);
}

static void test_sentencepiece_marks(void **state)
{
    (void)state;
#define SP_VOCAB "'▁':0,'a':1,'b':2"
    static const char added[] = "'added_tokens':[{'id':3,'content':'<s>','special':true}],";
    clv_text json = {0};
    clv_text_printf(
        &json,
        "{%s'normalizer':{'type':'Sequence','normalizers':[{'type':'Prepend','prepend':'▁'},{'type':'Replace',"
        "'pattern':{'String':' '},'content':'▁'}]}," MODEL("", SP_VOCAB, ""),
        added);
    clv_tokenizer *tok = tokenizer_of(json.data);
    ENCODES(tok, "a<s>b a", 0, 1, 3, 0, 2, 0, 1);
    clv_tokenizer_free(tok);
    json.length = 0;
    clv_text_printf(
        &json,
        "{%s'pre_tokenizer':{'type':'Metaspace','replacement':'▁','prepend_scheme':'first','split':false}," MODEL(
            "", SP_VOCAB, ""),
        added);
    tok = tokenizer_of(json.data);
    ENCODES(tok, "a<s>b a", 0, 1, 3, 2, 0, 1);
    ENCODES(tok, " a", 0, 1);
    clv_tokenizer_free(tok);
    json.length = 0;
    clv_text_printf(&json,
                    "{'pre_tokenizer':{'type':'Metaspace','replacement':'▁','add_prefix_space':false},'decoder':{"
                    "'type':'Metaspace','replacement':'▁'}," MODEL("", SP_VOCAB ",'a▁':3", "'a ▁'"));
    tok = tokenizer_of(json.data);
    ENCODES(tok, "a b", 1, 0, 2); /* split before the mark: a and ▁ cannot merge */
    DECODES(tok, "a b", 0, 1, 0, 2);
    clv_tokenizer_free(tok);
    clv_text_free(&json);
}

static void test_template(void **state)
{
    (void)state;
    clv_tokenizer *tok = tokenizer_of("{'added_tokens':[" ADDED(1, "<s>", ",'special':true") "," ADDED(
        2, "</s>", ",'special':true") "],"
                                      "'post_processor':{'type':'TemplateProcessing','single':[{'SpecialToken':{'id':'<"
                                      "s>','type_id':0}},"
                                      "{'Sequence':{'id':'A','type_id':0}},{'SpecialToken':{'id':'end','type_id':0}}],'"
                                      "special_tokens':{"
                                      "'<s>':{'id':'<s>','ids':[1],'tokens':['<s>']},'end':{'id':'end','ids':[2,2],'"
                                      "tokens':['</s>','</s>']}}}," MODEL("", "'a':0", ""));
    clv_ids ids = {0};
    assert_int_equal(clv_tokenizer_encode(tok, "a", 1, true, &ids).code, CLV_OK);
    assert_ids(&ids, 0, (const int32_t[]){1, 0, 2, 2}, 4);
    /* A text that brings its <s> gets no second one. */
    assert_int_equal(clv_tokenizer_encode(tok, "<s>a", 4, true, &ids).code, CLV_OK);
    assert_ids(&ids, 4, (const int32_t[]){1, 0, 2, 2}, 4);
    assert_int_equal(clv_tokenizer_eod(tok), 2);
    assert_true(clv_tokenizer_is_special(tok, 1));
    assert_false(clv_tokenizer_is_special(tok, 0));
    clv_text text = {0};
    assert_int_equal(clv_tokenizer_decode(tok, ids.id, ids.count, true, &text).code, CLV_OK);
    assert_string_equal(text.data, "a a"); /* no decoder: tokens with spaces between */
    clv_text_free(&text);
    clv_ids_free(&ids);
    clv_tokenizer_free(tok);
}

/* The text around an added token is what it would be alone, and comes back byte for byte. */
static void test_text_around_special(void **state)
{
    (void)state;
    clv_tokenizer *tok = byte_level_tokenizer();
    const int32_t end = clv_tokenizer_eod(tok);
    clv_ids whole = {0}, parts = {0};
    const char text[] = "hello<|endoftext|> low\n<|endoftext|><|endoftext|>  x";
    clv_tokenizer_encode(tok, text, strlen(text), true, &whole);
    clv_tokenizer_encode(tok, "hello", 5, true, &parts);
    clv_ids_add(&parts, end);
    clv_tokenizer_encode(tok, " low\n", 5, true, &parts);
    clv_ids_add(&parts, end);
    clv_ids_add(&parts, end);
    clv_tokenizer_encode(tok, "  x", 3, true, &parts);
    assert_ids(&whole, 0, parts.id, parts.count);
    assert_decodes(tok, text, whole.id, whole.count);
    clv_ids_free(&whole);
    clv_ids_free(&parts);
    clv_tokenizer_free(tok);
}

static void test_digits_and_nfc(void **state)
{
    (void)state;
    char json[2048];
    clv_tokenizer *tok;
    for (int pattern = CLV_PATTERN_LLAMA3; pattern <= CLV_PATTERN_QWEN2; pattern++) {
        clv_text regex = {0};
        clv_json_add_string(&regex, clv_pattern_regex((clv_pattern)pattern),
                            strlen(clv_pattern_regex((clv_pattern)pattern)));
        const int n =
            snprintf(json, sizeof json,
                     "{\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers"
                     "\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":%s},\"behavior\":\"Isolated\",\"invert\":"
                     "false},{\"type\":\"ByteLevel\",\"use_regex\":false}]},\"model\":{\"type\":\"BPE\","
                     "\"vocab\":{\"1\":0,\"2\":1,\"3\":2,\"12\":3,\"123\":4,\"\u00C3\":5,\"\u00A9\":6},"
                     "\"merges\":[\"1 2\",\"12 3\"]}}",
                     regex.data);
        clv_text_free(&regex);
        assert_string_equal(clv_tokenizer_parse(&tok, json, (size_t)n, "test.json").text, "");
        if (pattern == CLV_PATTERN_LLAMA3)
            ENCODES(tok, "12312", 4, 3);
        else
            ENCODES(tok, "12312", 0, 1, 2, 0, 1);
        ENCODES(tok, "\u00E9", 5, 6);
        ENCODES(tok, "e\u0301", 5, 6); /* normalized: the ids of U+00E9 */
        clv_tokenizer_free(tok);
    }
}

/* ---- decoding ---------------------------------------------------------------------------------------------------- */

static void test_byte_fallback_decoding(void **state)
{
    (void)state;
    clv_tokenizer *tok = byte_fallback_tokenizer(",'▁':258", fallback_decoder);
    DECODES(tok, "aéa\uFFFD\uFFFDa", 1, 197, 171, 1, 228, 132, 1);
    DECODES(tok, "\uFFFD\uFFFD\uFFFDa", 197, 171, 228, 1); /* a run is valid as a whole or not at all */
    DECODES(tok, " a", 258, 258, 1);
    DECODES(tok, "a ", 1, 258);
    clv_tokenizer_free(tok);
}

static void test_stream_of_one_character(void **state)
{
    (void)state;
    clv_tokenizer *tok = byte_level_tokenizer();
    const int32_t bytes[] = {clv_tokenizer_id(tok, "ä"), clv_tokenizer_id(tok, "¾"), clv_tokenizer_id(tok, "\u0128")};
    clv_text out = {0};
    clv_decoder *d = clv_decoder_create(tok, true);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(out.length, 0);
        assert_int_equal(clv_decoder_add(d, bytes[i], &out).code, CLV_OK);
    }
    assert_string_equal(out.data, "\u4F86");
    assert_int_equal(clv_decoder_add(d, bytes[0], &out).code, CLV_OK);
    assert_string_equal(out.data, "\u4F86");
    /* What cannot become a character any more is known at once. */
    assert_int_equal(clv_decoder_add(d, clv_tokenizer_id(tok, "a"), &out).code, CLV_OK);
    assert_string_equal(out.data, "\u4F86\uFFFDa");
    assert_int_equal(clv_decoder_add(d, bytes[0], &out).code, CLV_OK);
    assert_int_equal(clv_decoder_finish(d, &out).code, CLV_OK);
    assert_string_equal(out.data, "\u4F86\uFFFDa\uFFFD");
    assert_int_equal(clv_decoder_add(d, 262, &out).code, CLV_BAD_INPUT);
    clv_decoder_free(d);
    clv_text_free(&out);
    DECODES(tok, "\uFFFD\uFFFD", clv_tokenizer_id(tok, "ÿ"), clv_tokenizer_id(tok, "â"),
            clv_tokenizer_id(tok, "\u0124"));
    clv_tokenizer_free(tok);
}

/* For any ids: each part that is handed out is whole characters, and all parts together are the decoding at once. */
static void stream_equals_batch(const clv_tokenizer *tok, uint64_t key)
{
    for (uint64_t round = 0; round < 2000; round++) {
        int32_t ids[24];
        clv_text parts = {0}, whole = {0};
        clv_decoder *d = clv_decoder_create(tok, round % 2 == 0);
        for (size_t i = 0; i < CLV_COUNT(ids); i++) {
            const size_t before = parts.length;
            ids[i] = (int32_t)(clv_uniform_at(key, round * 64 + i) * (float)clv_tokenizer_vocab_size(tok));
            assert_int_equal(clv_decoder_add(d, ids[i], &parts).code, CLV_OK);
            const size_t n = parts.length - before;
            assert_true(n == 0 || clv_utf8_valid_prefix(parts.data + before, n) == n);
        }
        assert_int_equal(clv_decoder_finish(d, &parts).code, CLV_OK);
        assert_int_equal(clv_tokenizer_decode(tok, ids, CLV_COUNT(ids), round % 2 == 0, &whole).code, CLV_OK);
        assert_string_equal(parts.data, whole.data);
        assert_int_equal(clv_utf8_valid_prefix(whole.data, whole.length), whole.length);
        clv_decoder_free(d);
        clv_text_free(&parts);
        clv_text_free(&whole);
    }
}

static void test_stream_equals_batch(void **state)
{
    (void)state;
    clv_tokenizer *bytes = byte_level_tokenizer(), *pieces = byte_fallback_tokenizer(",'▁':258", fallback_decoder);
    stream_equals_batch(bytes, 1);
    stream_equals_batch(pieces, 2);
    clv_tokenizer_free(bytes);
    clv_tokenizer_free(pieces);
}

/* ---- what cannot be encoded, and time ---------------------------------------------------------------------------- */

static void test_invalid_text(void **state)
{
    (void)state;
    clv_tokenizer *tok = byte_level_tokenizer();
    clv_ids ids = {0};
    const clv_status st = clv_tokenizer_encode(tok, "ab\xFFz", 4, false, &ids);
    assert_int_equal(st.code, CLV_BAD_INPUT);
    assert_non_null(strstr(st.text, "byte 2"));
    assert_int_equal(clv_tokenizer_encode(tok, NULL, 0, false, &ids).code, CLV_OK);
    assert_int_equal(ids.count, 0);
    clv_ids_free(&ids);
    clv_tokenizer_free(tok);
}

/* Of this process: other work on the machine does not count. */
static double cpu_seconds(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

static double seconds_to_encode(const clv_tokenizer *tok, const char *text, size_t n)
{
    double best = 1e9;
    for (int round = 0; round < 3; round++) {
        clv_ids ids = {0};
        const double start = cpu_seconds();
        assert_int_equal(clv_tokenizer_encode(tok, text, n, false, &ids).code, CLV_OK);
        best = CLV_MIN(best, cpu_seconds() - start);
        assert_int_equal(ids.count, n / 4);
        clv_ids_free(&ids);
    }
    return best;
}

static void test_one_long_word(void **state)
{
    (void)state;
    enum { LONG = 200000 };
    clv_tokenizer *tok = tokenizer_of("{" MODEL("", "'a':0,'aa':1,'aaaa':2", "'a a','aa aa'"));
    char *text = clv_alloc(LONG, 1);
    memset(text, 'a', LONG);
    const double half = seconds_to_encode(tok, text, LONG / 2), whole = seconds_to_encode(tok, text, LONG);
    assert_true(half < 1);
    assert_true(whole < 2.5 * half + 0.02); /* some room for a busy machine: quadratic would be four times */
    free(text);
    clv_tokenizer_free(tok);
}

static void test_refusals(void **state)
{
    (void)state;
#define OK_MODEL MODEL("", "'a':0", "")
    static const struct {
        const char *json, *say;
    } bad[] = {
        {"{'model':{'type':'WordPiece','vocab':{},'merges':[]}}", "WordPiece"},
        {"{'model':{'type':'Unigram','vocab':[]}}", "Unigram"},
        {"{'model':{'vocab':{}}}", "BPE"},
        {"{}", "model"},
        {"[1]", "object"},
        {"{" MODEL(",'dropout':0.1", "'a':0", ""), "dropout"},
        {"{" MODEL(",'end_of_word_suffix':'</w>'", "'a':0", ""), "</w>"},
        {"{" MODEL(",'continuing_subword_prefix':'##'", "'a':0", ""), "##"},
        {"{" MODEL(",'unk_token':'<unk>'", "'a':0", ""), "<unk>"},
        {"{" MODEL("", "'a':0,'b':0", ""), "'b'"},
        {"{" MODEL("", "'a':-1", ""), "'a'"},
        {"{" MODEL("", "'a':2147483648", ""), "16777215"},
        {"{" MODEL("", "'a':0,'b':1", "'a b'"), "'ab'"},
        {"{" MODEL("", "'a':0,'b':1,'ab':2", "'a  b'"), "merge 0"},
        {"{'normalizer':{'type':'Precompiled','precompiled_charsmap':''}," OK_MODEL, "Precompiled"},
        {"{'normalizer':{'type':'Sequence','normalizers':[{'type':'Lowercase'}]}," OK_MODEL, "Lowercase"},
        {"{'normalizer':{'type':'Replace','pattern':{'Regex':' {2,}'},'content':''}," OK_MODEL, " {2,}"},
        {"{'pre_tokenizer':{'type':'Whitespace'}," OK_MODEL, "Whitespace"},
        {"{'pre_tokenizer':{'type':'Split','pattern':{'Regex':'\\\\w+'},'behavior':'Isolated'}," OK_MODEL, "\\w+"},
        {"{'post_processor':{'type':'BertProcessing'}," OK_MODEL, "BertProcessing"},
        {"{'decoder':{'type':'CTC'}," OK_MODEL, "CTC"},
        {"{'decoder':{'type':'Sequence','decoders':[{'type':'Fuse'},{'type':'ByteFallback'}]}," OK_MODEL,
         "ByteFallback"},
        {"{'added_tokens':[" ADDED(77, "<x>", "") "]," OK_MODEL, "77"},
        {"{'added_tokens':[{'id':1}]," OK_MODEL, "content"},
    };
    for (size_t i = 0; i < CLV_COUNT(bad); i++) {
        clv_tokenizer *tok;
        const clv_status st = parse_quoted(&tok, bad[i].json);
        char say[64];
        size_t n = 0;
        for (; bad[i].say[n] != 0; n++)
            say[n] = bad[i].say[n] == '\'' ? '"' : bad[i].say[n];
        say[n] = 0;
        assert_null(tok);
        assert_int_equal(st.code, CLV_BAD_INPUT);
        assert_non_null(strstr(st.text, "test.json"));
        if (strstr(st.text, say) == NULL)
            fail_msg("case %zu: '%s' does not say '%s'", i, st.text, say);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unknown_characters),     cmocka_unit_test(test_merges),
        cmocka_unit_test(test_added_tokens),           cmocka_unit_test(test_normalized_added_tokens),
        cmocka_unit_test(test_sentencepiece_marks),    cmocka_unit_test(test_template),
        cmocka_unit_test(test_text_around_special),    cmocka_unit_test(test_digits_and_nfc),
        cmocka_unit_test(test_byte_fallback_decoding), cmocka_unit_test(test_stream_of_one_character),
        cmocka_unit_test(test_stream_equals_batch),    cmocka_unit_test(test_invalid_text),
        cmocka_unit_test(test_one_long_word),          cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
