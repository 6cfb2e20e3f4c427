/* tokenizer_fuzz_test.c - random damage to a tokenizer.json: it loads or is refused with a sentence, and what loads
 * encodes and decodes, never more. Meant to be run with sanitizers too. */
#include "format/tokenizer_test_internal.h"

static const char seed[] =
    "{'version':'1.0','truncation':null,'padding':null,'added_tokens':[{'id':14,'content':'<s>','single_word':false,"
    "'lstrip':true,'rstrip':true,'normalized':false,'special':true},{'id':15,'content':'xy','single_word':true,"
    "'lstrip':false,'rstrip':false,'normalized':true,'special':false}],'normalizer':{'type':'Sequence','normalizers':["
    "{'type':'NFC'},{'type':'Prepend','prepend':'▁'},{'type':'Replace','pattern':{'String':' '},'content':'▁'}]},"
    "'pre_tokenizer':{'type':'Sequence','pretokenizers':[{'type':'Metaspace','replacement':'▁','prepend_scheme':'first'"
    ","
    "'split':true},{'type':'ByteLevel','add_prefix_space':true,'trim_offsets':true,'use_regex':true}]},"
    "'post_processor':{'type':'TemplateProcessing','single':[{'SpecialToken':{'id':'<s>','type_id':0}},{'Sequence':{"
    "'id':'A','type_id':0}}],'pair':[],'special_tokens':{'<s>':{'id':'<s>','ids':[14],'tokens':['<s>']}}},'decoder':{"
    "'type':'Sequence','decoders':[{'type':'Replace','pattern':{'String':'▁'},'content':' '},{'type':'ByteFallback'},"
    "{'type':'Fuse'},{'type':'Strip','content':' ','start':1,'stop':0}]},'model':{'type':'BPE','dropout':null,"
    "'unk_token':'<unk>','fuse_unk':true,'byte_fallback':true,'ignore_merges':false,'vocab':{'<unk>':0,'a':1,'b':2,"
    "'ab':3,'â':4,'ĸ':5,'ģ':6,'<0x41>':7,'<0x0A>':8,'<0xC3>':9,'<0xA9>':10,'Ġ':11,'aba':12,'x':13},'merges':["
    "'a b',['ab','a']]}}";

typedef struct dice {
    uint64_t key, count;
} dice;

static size_t roll(dice *d, size_t sides)
{
    const size_t value = (size_t)(clv_uniform_at(d->key, d->count++) * (float)sides);
    return CLV_MIN(value, sides - 1);
}

/* Change a byte, insert one, remove a run, copy a run elsewhere, or put in a token of the grammar. */
static void damage(dice *d, clv_text *text)
{
    static const char *const grammar[] = {"null", "true", "-1",         "1e999",   "{}",   "[]",
                                          "\"\"", ",",    "4294967296", "\\u0000", "\"a\""};
    const size_t at = roll(d, text->length), run = roll(d, 12), n = CLV_MIN(run, text->length - at);
    clv_text out = {0};
    clv_text_add(&out, text->data, at);
    const size_t what = roll(d, 5);
    if (what == 0) {
        clv_text_add(&out, &(char){(char)roll(d, 256)}, 1);
    } else if (what == 1) {
        const char *word = grammar[roll(d, CLV_COUNT(grammar))];
        clv_text_add(&out, word, strlen(word));
    } else if (what == 2) {
        const size_t from = roll(d, text->length), length = roll(d, 40);
        clv_text_add(&out, text->data + from, CLV_MIN(length, text->length - from));
    }
    const size_t skip = what == 0 ? CLV_MIN(text->length - at, 1) : what == 4 ? 0 : n;
    clv_text_add(&out, text->data + at + skip, text->length - at - skip);
    clv_text_free(text);
    *text = out;
}

static void use(const clv_tokenizer *tok)
{
    static const char text[] = "ab a<s> éxy xy\nA漢\u0301 aba  b";
    clv_ids ids = {0};
    clv_text back = {0}, told = {0};
    assert_int_equal(clv_tokenizer_encode(tok, text, strlen(text), true, &ids).code, CLV_OK);
    assert_int_equal(clv_tokenizer_decode(tok, ids.id, ids.count, false, &back).code, CLV_OK);
    for (int32_t id = -1; id < 20; id++)
        (void)clv_tokenizer_decode(tok, &id, 1, true, &back);
    clv_tokenizer_describe(tok, &told);
    clv_ids_free(&ids);
    clv_text_free(&back);
    clv_text_free(&told);
}

static void test_damaged_files(void **state)
{
    (void)state;
    dice d = {.key = 5};
    int loaded = 0;
    for (int round = 0; round < 6000; round++) {
        clv_text json = {0};
        clv_tokenizer *tok;
        clv_text_add(&json, seed, strlen(seed));
        for (size_t i = 0; i < json.length; i++)
            json.data[i] = json.data[i] == '\'' ? '"' : json.data[i];
        for (size_t times = round == 0 ? 0 : 1 + roll(&d, 3); times > 0; times--)
            damage(&d, &json);
        const clv_status st = clv_tokenizer_parse(&tok, json.data, json.length, "damaged.json");
        assert_true((st.code == CLV_OK) == (tok != NULL) && (st.code == CLV_OK) == (st.text[0] == 0));
        assert_true(round > 0 || tok != NULL);
        if (tok != NULL) {
            use(tok);
            loaded++;
        }
        clv_tokenizer_free(tok);
        clv_text_free(&json);
    }
    assert_true(loaded > 100); /* the damage is light enough to come far */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_damaged_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
