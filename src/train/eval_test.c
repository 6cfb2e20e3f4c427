/* nsize: 1 2 4 */
/* eval_test.c - every token is predicted once, whatever the window; a known model has its known loss on every layout.
 */
#include "comm/mpi_test.h"
#include "train/inference_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A file of this rank alone; the caller frees the name. */
static char *file_of(const char *text, const char *ending)
{
    clv_text path = {0};
    clv_text_printf(&path, "eval_test.%ld%s", (long)getpid(), ending);
    const clv_status st = clv_file_write_atomic(path.data, text, strlen(text));
    CLV_CHECK(st.code == CLV_OK, "%s", st.text);
    return path.data;
}

/* ---- windows -------------------------------------------------------------------------------------------------------
 */

enum { EOD = 256, S = 4 };

/* 256 bytes and an end of document. */
static clv_tokenizer *bytes_tokenizer(void)
{
    static const char *const specials[] = {"<|endoftext|>"};
    clv_tokenizer *tokenizer = NULL;
    const clv_status st = clv_bpe_trainer_finish(clv_bpe_trainer_create(), EOD + 1, specials, 1, &tokenizer);
    CLV_CHECK(st.code == CLV_OK, "%s", st.text);
    CLV_CHECK(clv_tokenizer_eod(tokenizer) == EOD, "%d", (int)clv_tokenizer_eod(tokenizer));
    return tokenizer;
}

typedef struct cut { /* all windows of something */
    clv_ids targets;
    int32_t context; /* of the first */
    int64_t bytes;
    bool joined; /* each window's context is the last target before it */
} cut;

static clv_status cut_all(cut *c, const clv_pretrained *from, const clv_options *o)
{
    *c = (cut){.joined = true};
    clv_windows *w;
    CLV_TRY(clv_windows_open(&w, from, o, S));
    clv_status st = clv_ok();
    int64_t n = 1;
    while (st.code == CLV_OK && n > 0) {
        int32_t tokens[S + 1];
        st = clv_windows_next(w, tokens, &n);
        if (c->targets.count == 0)
            c->context = tokens[0];
        else if (n > 0)
            c->joined = c->joined && tokens[0] == c->targets.id[c->targets.count - 1];
        for (int64_t i = 1; i <= n; i++)
            clv_ids_add(&c->targets, tokens[i]);
    }
    c->bytes = clv_windows_bytes(w);
    clv_windows_close(w);
    return st;
}

/* want: '|' stands for the end of a document. */
static int cut_is(clv_comm *world, const cut *c, const char *want, int64_t bytes)
{
    int failed = 0;
    EXPECT(c->targets.count == strlen(want), "%zu targets, not %zu", c->targets.count, strlen(want));
    for (size_t i = 0; i < CLV_MIN(c->targets.count, strlen(want)); i++) {
        clv_tokenizer *tokenizer = bytes_tokenizer();
        const char letter[] = {want[i], 0};
        const int32_t id = want[i] == '|' ? EOD : clv_tokenizer_id(tokenizer, letter);
        EXPECT(c->targets.id[i] == id, "target %zu is %d, not %d", i, c->targets.id[i], id);
        clv_tokenizer_free(tokenizer);
    }
    EXPECT(c->bytes == bytes, "%lld bytes, not %lld", (long long)c->bytes, (long long)bytes);
    return failed;
}

static int text_case(clv_comm *world, char *path, double holdout, const char *want, int64_t bytes)
{
    int failed = 0;
    clv_pretrained from = {.tokenizer = bytes_tokenizer(), .config = {.vocab = EOD + 1, .eos = -1}};
    clv_options o;
    clv_options_default(&o, 'E');
    o.input = path;
    o.holdout_percent = holdout;
    cut c;
    const clv_status st = cut_all(&c, &from, &o);
    EXPECT(st.code == CLV_OK, "%s", st.text);
    EXPECT(c.context == EOD && c.joined, "context %d", c.context);
    failed += cut_is(world, &c, want, bytes);
    clv_ids_free(&c.targets);
    clv_tokenizer_free(from.tokenizer);
    remove(path);
    free(path);
    return failed;
}

static int a_text_is_one_run(clv_comm *world)
{
    int failed = 0;
    failed += text_case(world, file_of("abcde\n\nfgh\n\n\ni\n", ".txt"), 0, "abcde|fgh|i|", 15);
    failed += text_case(world, file_of("abcde\n\nfgh\n\n\ni\n", ".txt"), 60, "fgh|i|", 8);
    failed += text_case(world, file_of("abc\n", ".txt"), 0, "abc|", 4); /* exactly a window */
    failed += text_case(world, file_of("{\"text\": \"abc\"}\n{\"text\": \"\"}\n{\"text\": \"de\"}\n", ".jsonl"), 0,
                        "abc|de|", 5);
    return failed;
}

static void indexed_write(const char *prefix, const int32_t *tokens, const int64_t *lengths, size_t count)
{
    clv_indexed_writer *w;
    clv_status st = clv_indexed_writer_create(&w, prefix, EOD + 1);
    for (size_t i = 0; st.code == CLV_OK && i < count; i++) {
        st = clv_indexed_writer_add(w, tokens, lengths[i]);
        tokens += lengths[i];
        if (st.code == CLV_OK)
            st = clv_indexed_writer_end_document(w);
    }
    if (st.code == CLV_OK)
        st = clv_indexed_writer_finish(w);
    CLV_CHECK(st.code == CLV_OK, "%s", st.text);
}

static int token_files_are_one_run(clv_comm *world)
{
    int failed = 0;
    const int32_t tokens[] = {1, 2, 3, 4, 5, EOD, 7, 8, EOD, 9, EOD};
    char prefix[64];
    snprintf(prefix, sizeof prefix, "eval_test.%ld", (long)getpid());
    indexed_write(prefix, tokens, (const int64_t[]){6, 3, 2}, 3);
    clv_pretrained from = {.config = {.vocab = EOD + 1, .eos = EOD}};
    clv_options o;
    clv_options_default(&o, 'E');
    const char *words[] = {"0.5", prefix};
    o.data_path = (clv_list){words, 2};
    cut c;
    clv_status st = cut_all(&c, &from, &o);
    EXPECT(st.code == CLV_OK, "%s", st.text);
    EXPECT(c.context == EOD && c.joined && c.bytes == -1, "context %d", c.context);
    EXPECT(c.targets.count == CLV_COUNT(tokens) && memcmp(c.targets.id, tokens, sizeof tokens) == 0, "%zu targets",
           c.targets.count);
    clv_ids_free(&c.targets);
    from.config.eos = -1; /* then the first token has no context */
    st = cut_all(&c, &from, &o);
    EXPECT(st.code == CLV_OK && c.context == 1 && c.targets.count == CLV_COUNT(tokens) - 1, "%zu targets",
           c.targets.count);
    clv_ids_free(&c.targets);
    from.config.vocab = EOD;
    st = cut_all(&c, &from, &o);
    EXPECT(st.code == CLV_BAD_INPUT, "an id outside the vocabulary is accepted");
    char path[96];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s.%s", prefix, i == 0 ? "bin" : "idx");
        remove(path);
    }
    return failed;
}

/* ---- a known model -------------------------------------------------------------------------------------------------
 */

typedef struct known { /* a text, and its loss */
    clv_json *json;
    char *path;
    int64_t tokens, bytes;
    double loss;
} known;

static bool known_open(known *k, clv_comm *world)
{
    static const char *const path = CLEAVE_SHARED "/models/stories260k/expected.json";
    if (!clv_file_exists(path)) {
        if (clv_comm_rank(world) == 0)
            printf("skipped: %s is not here\n", path);
        return false;
    }
    const clv_status st = clv_json_load(&k->json, path);
    CLV_CHECK(st.code == CLV_OK, "%s", st.text);
    const char *text = clv_json_string(k->json, clv_json_get(k->json, CLV_JSON_ROOT, "greedy_text"), NULL);
    k->path = file_of(text, ".txt");
    k->bytes = (int64_t)strlen(text);
    clv_json_f64(k->json, clv_json_get(k->json, CLV_JSON_ROOT, "mean_nll_of_text"), &k->loss);
    clv_json_i64(k->json, clv_json_get(k->json, CLV_JSON_ROOT, "tokens_scored"), &k->tokens);
    return true;
}

static void known_close(known *k)
{
    remove(k->path);
    free(k->path);
    clv_json_free(k->json);
}

static clv_options options_of(const known *k, int64_t tp, int64_t pp)
{
    clv_options o;
    clv_options_default(&o, 'E');
    o.load = CLEAVE_SHARED "/models/stories260k";
    o.input = k->path;
    o.threads = 1;
    o.tensor_model_parallel_size = tp;
    o.pipeline_model_parallel_size = pp;
    o.decoder_first_pipeline_num_layers = 3; /* of five */
    o.is_set.decoder_first_pipeline_num_layers = pp > 1;
    return o;
}

/* What tp and pp leave of the ranks is dp. */
static int the_loss_is_known(clv_comm *world)
{
    int failed = 0;
    known k;
    if (!known_open(&k, world))
        return 0;
    double first = 0.0;
    for (int64_t pp = 1; pp <= CLV_MIN(clv_comm_size(world), 2); pp++)
        for (int64_t tp = 1; tp * pp <= clv_comm_size(world); tp *= 2)
            for (int sequence_parallel = 0; sequence_parallel < 2; sequence_parallel++) {
                clv_options o = options_of(&k, tp, pp);
                o.sequence_parallel = sequence_parallel == 1;
                clv_eval_result r;
                const clv_status st = clv_eval_run(world, &o, &r);
                EXPECT(st.code == CLV_OK, "%s", st.text);
                EXPECT(r.tokens == k.tokens && r.bytes == k.bytes, "%lld tokens, %lld bytes", (long long)r.tokens,
                       (long long)r.bytes);
                const double loss = r.nll / (double)r.tokens;
                first = first == 0.0 ? loss : first;
                EXPECT(fabs(loss - k.loss) <= 1e-5, "tp %d, pp %d: loss %.8f, not %.8f", (int)tp, (int)pp, loss,
                       k.loss);
                EXPECT(fabs(loss - first) <= 1e-6, "tp %d, pp %d: loss %.8f, elsewhere %.8f", (int)tp, (int)pp, loss,
                       first);
            }
    known_close(&k);
    return failed;
}

/* Short windows, so that groups share them and the last turn is not full. */
static int groups_share_the_windows(clv_comm *world)
{
    int failed = 0;
    known k;
    if (!known_open(&k, world))
        return 0;
    double first = 0.0;
    for (int64_t pp = 1; pp <= CLV_MIN(clv_comm_size(world), 2); pp++)
        for (int64_t tp = 1; tp * pp <= clv_comm_size(world); tp *= 2)
            for (int64_t batch = 1; batch <= 3; batch += 2) {
                clv_options o = options_of(&k, tp, pp);
                o.seq_length = 40;
                o.micro_batch_size = batch;
                o.is_set.seq_length = o.is_set.micro_batch_size = true;
                clv_eval_result r;
                const clv_status st = clv_eval_run(world, &o, &r);
                EXPECT(st.code == CLV_OK, "%s", st.text);
                EXPECT(r.tokens == k.tokens, "%lld tokens", (long long)r.tokens);
                first = first == 0.0 ? r.nll : first;
                EXPECT(fabs(r.nll - first) <= 1e-6 * first, "tp %d, pp %d, batch %d: %.8f, not %.8f", (int)tp, (int)pp,
                       (int)batch, r.nll, first);
            }
    EXPECT(first > k.loss * (double)k.tokens, "less context, yet a smaller loss");
    known_close(&k);
    return failed;
}

static int what_does_not_fit_is_refused(clv_comm *world)
{
    int failed = 0;
    clv_options o;
    clv_options_default(&o, 'E');
    o.load = CLEAVE_GOLDEN "/gpt2-tiny";
    o.tensor_model_parallel_size = clv_comm_size(world);
    clv_eval_result r;
    clv_status st = clv_eval_run(world, &o, &r);
    EXPECT(st.code == CLV_BAD_USAGE && strstr(st.text, "--data-path") != NULL, "%s", st.text);
    o.input = CLEAVE_GOLDEN "/gpt2-tiny/config.json";
    st = clv_eval_run(world, &o, &r);
    EXPECT(st.code == CLV_BAD_USAGE && strstr(st.text, "--tokenizer-model") != NULL, "%s", st.text);
    o.seq_length = 33;
    o.is_set.seq_length = true;
    st = clv_eval_run(world, &o, &r);
    EXPECT(st.code == CLV_BAD_INPUT && strstr(st.text, "32") != NULL, "%s", st.text);
    return failed;
}

int main(int argc, char **argv)
{
    return mpi_test_run(&argc, &argv,
                        (mpi_case[]){{"a text is one run", a_text_is_one_run},
                                     {"token files are one run", token_files_are_one_run},
                                     {"the loss is known", the_loss_is_known},
                                     {"groups share the windows", groups_share_the_windows},
                                     {"what does not fit is refused", what_does_not_fit_is_refused},
                                     {0}});
}
