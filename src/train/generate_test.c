/* nsize: 1 2 4 */
/* generate_test.c - a cache computes what a forward over everything computes; a known model writes its known text; a
 * batch writes what its prompts write alone. All ranks are tensor-parallel, or half of them in each of two stages.
 */
#include "comm/mpi_test.h"
#include "train/inference_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static clv_mesh *mesh_of(clv_comm *world, const clv_config *config, int pp)
{
    clv_mesh *mesh = NULL;
    const clv_layout layout = {.tp = clv_comm_size(world) / pp, .pp = pp, .kv_heads = (int)config->kv_heads};
    const clv_status st = clv_mesh_create(&mesh, world, &layout);
    CLV_CHECK(st.code == CLV_OK, "%s", st.text);
    return mesh;
}

/* One more layer on the first stage when they are odd. */
static clv_options options_of(clv_comm *world, const char *folder, int pp)
{
    clv_options o;
    clv_config config;
    clv_options_default(&o, 'G');
    o.load = folder;
    o.threads = 1;
    o.tensor_model_parallel_size = clv_comm_size(world) / pp;
    o.pipeline_model_parallel_size = pp;
    if (pp > 1 && folder != NULL && clv_hf_config_read(&config, folder).code == CLV_OK) {
        o.decoder_first_pipeline_num_layers = (config.layers + 1) / 2;
        o.is_set.decoder_first_pipeline_num_layers = true;
    }
    return o;
}

/* The numbers of stages that these ranks can make: 1, and 2. */
static int stages_most(clv_comm *world)
{
    return clv_comm_size(world) > 1 ? 2 : 1;
}

/* ---- the cache against the forward --------------------------------------------------------------------------------
 */

enum { SEQ = 32 };

typedef struct pair { /* one model twice: with a cache, and as evaluation runs it */
    clv_generator cached;
    clv_engine whole;
    float *logits; /* [SEQ, v] of the forward */
    int32_t tokens[SEQ + 1];
} pair;

static void keep_logits(void *user, int64_t micro, clv_tensor logits)
{
    pair *p = user;
    (void)micro;
    clv_to_host(&p->whole.cx, p->logits, logits);
}

static void forward(pair *p)
{
    const clv_samples sample = {.count = 1, .tokens = p->tokens};
    clv_engine_logits(&p->whole, &sample, keep_logits, p);
}

static clv_status pair_open(pair *p, const clv_mesh *mesh, const clv_pretrained *from, const clv_stages *stages)
{
    const clv_engine_spec whole = {.config = &from->config,
                                   .stages = stages,
                                   .vocab_divisor = 1,
                                   .micro_batch = 1,
                                   .seq_length = SEQ,
                                   .backend = "cpu"};
    const clv_generator_spec cached = {
        .config = &from->config, .stages = stages, .vocab_divisor = 1, .batch = 1, .rows = SEQ, .backend = "cpu"};
    CLV_TRY(clv_engine_create(&p->whole, mesh, &whole));
    CLV_TRY(clv_generator_create(&p->cached, mesh, &cached));
    CLV_TRY(clv_pretrained_weights(from, &p->whole.cx, p->whole.params, p->whole.param_count));
    clv_engine_tables(&p->whole);
    clv_engine *e = &p->cached.engine;
    clv_engine_tables(e);
    CLV_TRY(clv_pretrained_weights(from, &e->cx, e->params, e->param_count));
    if (p->cached.logits.ndim > 0)
        p->logits = clv_alloc((size_t)(SEQ * p->cached.logits.dim[1]), sizeof *p->logits);
    for (int i = 0; i < SEQ; i++)
        p->tokens[i] = (int32_t)(clv_uniform_at(3, (uint64_t)i) * (float)from->config.vocab);
    forward(p);
    return clv_ok();
}

static void pair_close(pair *p)
{
    free(p->logits);
    clv_generator_destroy(&p->cached);
    clv_engine_destroy(&p->whole);
}

/* Largest difference of this rank's logits in the row that was fed last; 0 before the last stage. */
static double row_error(pair *p)
{
    clv_generator *g = &p->cached;
    double worst = 0.0;
    if (g->logits.ndim == 0)
        return worst;
    const int64_t v = g->logits.dim[1], row = g->cache.used - 1;
    clv_to_host(&g->engine.cx, g->local, g->logits);
    for (int64_t i = 0; i < g->engine.chunk[0].model.head.output.real; i++)
        worst = fmax(worst, fabs((double)g->local[i] - (double)p->logits[row * v + i]));
    return worst;
}

/* A prompt of `length` tokens at once, then one by one to the end. */
static double cache_error(pair *p, int64_t length)
{
    const int32_t start = 0;
    p->cached.cache.used = 0;
    clv_generator_feed(&p->cached, p->tokens, length, &start);
    double worst = row_error(p);
    for (int64_t i = length; i < SEQ; i++) {
        clv_generator_feed(&p->cached, p->tokens + i, 1, &start);
        worst = fmax(worst, row_error(p));
    }
    return worst;
}

static int cache_case(clv_comm *world, const char *name, int pp)
{
    int failed = 0;
    clv_pretrained from;
    clv_stages stages;
    char folder[512];
    snprintf(folder, sizeof folder, CLEAVE_GOLDEN "/%s", name);
    const clv_options o = options_of(world, folder, pp);
    clv_status st = clv_pretrained_open(&from, &o);
    EXPECT(st.code == CLV_OK, "%s", st.text);
    st = clv_stages_make(&stages, &o, from.config.layers);
    EXPECT(st.code == CLV_OK, "%s", st.text);
    clv_mesh *mesh = mesh_of(world, &from.config, pp);
    pair p = {0};
    st = pair_open(&p, mesh, &from, &stages);
    EXPECT(st.code == CLV_OK, "%s", st.text);
    const int64_t lengths[] = {1, 2, 31, 32};
    for (size_t i = 0; i < CLV_COUNT(lengths) && st.code == CLV_OK; i++) {
        const double error = cache_error(&p, lengths[i]);
        EXPECT(error <= 1e-5, "%s, prompt of %d, pp %d: error %g", name, (int)lengths[i], pp, error);
    }
    pair_close(&p);
    clv_mesh_destroy(mesh);
    clv_stages_free(&stages);
    clv_pretrained_close(&from);
    return failed;
}

static int cache_equals_forward(clv_comm *world)
{
    static const char *const names[] = {"llama-gqa", "gpt2-tiny", "qwen3-tiny", "mistral-window"};
    int failed = 0;
    for (int pp = 1; pp <= stages_most(world); pp++)
        for (size_t i = 0; i < CLV_COUNT(names); i++)
            failed += cache_case(world, names[i], pp);
    return failed;
}

/* ---- batches and layouts ------------------------------------------------------------------------------------------
 */

enum { PROMPTS = 3, LONG = 300, ROOM = 20 };

typedef struct sheet {
    clv_ids line[PROMPTS];
} sheet;

static void write_down(void *user, size_t prompt, int32_t id)
{
    sheet *s = user;
    clv_ids_add(&s->line[prompt], id);
}

static void sheet_free(sheet *s)
{
    for (size_t i = 0; i < PROMPTS; i++)
        clv_ids_free(&s->line[i]);
}

static bool same_ids(const clv_ids *a, const clv_ids *b)
{
    return a->count == b->count && memcmp(a->id, b->id, a->count * sizeof *a->id) == 0;
}

typedef struct desk { /* a model, and prompts of some lengths */
    clv_pretrained from;
    clv_stages stages;
    clv_mesh *mesh;
    clv_ids prompt[PROMPTS];
} desk;

static clv_status desk_open(desk *d, clv_comm *world, const char *folder, const int64_t *lengths, int pp)
{
    const clv_options o = options_of(world, folder, pp);
    CLV_TRY(clv_pretrained_open(&d->from, &o));
    CLV_TRY(clv_stages_make(&d->stages, &o, d->from.config.layers));
    d->mesh = mesh_of(world, &d->from.config, pp);
    for (uint64_t i = 0; i < PROMPTS; i++)
        for (uint64_t k = 0; k < (uint64_t)lengths[i]; k++)
            clv_ids_add(&d->prompt[i], (int32_t)(clv_uniform_at(11 + i, k) * (float)d->from.config.vocab));
    return clv_ok();
}

static void desk_close(desk *d)
{
    for (size_t i = 0; i < PROMPTS; i++)
        clv_ids_free(&d->prompt[i]);
    clv_mesh_destroy(d->mesh);
    clv_stages_free(&d->stages);
    clv_pretrained_close(&d->from);
}

/* All prompts, `batch` at a time. */
static clv_status write_all(const desk *d, const clv_sampling *sampling, int64_t tokens, int64_t batch, sheet *out)
{
    const clv_writing how = {
        .sampling = *sampling, .key = 5, .max_new_tokens = tokens, .visit = write_down, .user = out};
    const clv_generator_spec spec = {.config = &d->from.config,
                                     .stages = &d->stages,
                                     .vocab_divisor = 128,
                                     .batch = batch,
                                     .rows = LONG + ROOM,
                                     .backend = "cpu"};
    clv_generator g;
    clv_status st = clv_generator_create(&g, d->mesh, &spec);
    clv_engine_tables(&g.engine);
    if (st.code == CLV_OK)
        st = clv_pretrained_weights(&d->from, &g.engine.cx, g.engine.params, g.engine.param_count);
    for (size_t first = 0; st.code == CLV_OK && first < PROMPTS; first += (size_t)batch)
        st = clv_generator_write(&g, &how, d->prompt, PROMPTS, first);
    clv_generator_destroy(&g);
    return st;
}

typedef struct job {
    const char *folder;
    int64_t lengths[PROMPTS];
    clv_sampling sampling;
    int64_t tokens;
} job;

static int batch_case(clv_comm *world, const job *j, int pp)
{
    int failed = 0;
    desk d = {0};
    clv_status st = desk_open(&d, world, j->folder, j->lengths, pp);
    EXPECT(st.code == CLV_OK, "%s", st.text);
    sheet all = {0}, single = {0}, two = {0};
    st = write_all(&d, &j->sampling, j->tokens, PROMPTS, &all);
    EXPECT(st.code == CLV_OK, "%s", st.text);
    EXPECT(write_all(&d, &j->sampling, j->tokens, 1, &single).code == CLV_OK, "one by one");
    EXPECT(write_all(&d, &j->sampling, j->tokens, 2, &two).code == CLV_OK, "two, then one beside an empty place");
    for (size_t i = 0; i < PROMPTS; i++) {
        const int64_t room = d.from.config.max_positions - j->lengths[i];
        EXPECT((int64_t)all.line[i].count == CLV_MIN(j->tokens, room), "%s: %zu tokens", j->folder, all.line[i].count);
        EXPECT(same_ids(&all.line[i], &single.line[i]), "%s: prompt %zu differs in its batch", j->folder, i);
        EXPECT(same_ids(&all.line[i], &two.line[i]), "%s: prompt %zu differs in a batch of 2", j->folder, i);
    }
    sheet_free(&all);
    sheet_free(&single);
    sheet_free(&two);
    desk_close(&d);
    return failed;
}

/* Of gpt2-tiny the second prompt is stopped by its 32 positions. */
static int a_batch_writes_what_its_prompts_write_alone(clv_comm *world)
{
    static const job jobs[] = {
        {CLEAVE_GOLDEN "/llama-gqa", {3, 5, 9}, {.top_p = 1.0}, ROOM},
        {CLEAVE_GOLDEN "/mistral-window", {3, 5, 9}, {.top_p = 1.0}, ROOM},
        {CLEAVE_GOLDEN "/qwen3-tiny", {3, 5, 9}, {.temperature = 0.8, .top_k = 20, .top_p = 0.95}, ROOM / 2},
        {CLEAVE_GOLDEN "/gpt2-tiny", {9, 30, 14}, {.top_p = 1.0}, ROOM}};
    int failed = 0;
    for (int pp = 1; pp <= stages_most(world); pp++)
        for (size_t i = 0; i < CLV_COUNT(jobs); i++)
            failed += batch_case(world, &jobs[i], pp);
    return failed;
}

/* ---- a known model -------------------------------------------------------------------------------------------------
 */

static const char *const stories = CLEAVE_SHARED "/models/stories260k";

static bool has_stories(clv_comm *world)
{
    const bool has = clv_file_exists(CLEAVE_SHARED "/models/stories260k/expected.json");
    if (!has && clv_comm_rank(world) == 0)
        printf("skipped: %s is not here\n", stories);
    return has;
}

static clv_ids expected_ids(const char *key)
{
    clv_ids ids = {0};
    clv_json *json;
    const clv_status st = clv_json_load(&json, CLEAVE_SHARED "/models/stories260k/expected.json");
    CLV_CHECK(st.code == CLV_OK, "%s", st.text);
    for (clv_node n = clv_json_first(json, clv_json_get(json, CLV_JSON_ROOT, key)); n != CLV_NO_NODE;
         n = clv_json_next(json, n)) {
        int64_t id = -1;
        clv_json_i64(json, n, &id);
        clv_ids_add(&ids, (int32_t)id);
    }
    clv_json_free(json);
    return ids;
}

/* What these options write after their prompt, which is in `want` too when `whole`. */
static int written_expect(clv_comm *world, const clv_options *o, const clv_ids *want, bool whole)
{
    int failed = 0;
    clv_generation g;
    clv_status st = clv_generation_open(&g, world, o);
    if (st.code == CLV_OK)
        st = clv_generation_batch(&g, 0);
    EXPECT(st.code == CLV_OK, "%s", st.text);
    clv_ids got = {0};
    for (size_t i = 0; st.code == CLV_OK && whole && i < g.prompt[0].count; i++)
        clv_ids_add(&got, g.prompt[0].id[i]);
    for (size_t i = 0; st.code == CLV_OK && i < g.written[0].count; i++)
        clv_ids_add(&got, g.written[0].id[i]);
    EXPECT(same_ids(&got, want), "tp %d, pp %d: %zu other tokens", (int)o->tensor_model_parallel_size,
           (int)o->pipeline_model_parallel_size, got.count);
    clv_ids_free(&got);
    clv_generation_close(&g);
    return failed;
}

/* Five layers: three of them on the first of two stages. */
static int stories_are_known(clv_comm *world)
{
    int failed = 0;
    if (!has_stories(world))
        return 0;
    clv_ids want = expected_ids("greedy_ids");
    for (int pp = 1; pp <= stages_most(world); pp++) {
        clv_options o = options_of(world, stories, pp);
        o.prompt = "Once upon a time";
        o.temperature = 0.0;
        o.max_new_tokens = 200;
        failed += written_expect(world, &o, &want, true);
    }
    clv_ids_free(&want);
    return failed;
}

/* Prompts longer than a piece, beside short ones. */
static int long_prompts_enter_in_pieces(clv_comm *world)
{
    const job j = {stories, {LONG, 4, 257}, {.top_p = 1.0}, 4};
    int failed = 0;
    for (int pp = 1; pp <= stages_most(world) && has_stories(world); pp++)
        failed += batch_case(world, &j, pp);
    return failed;
}

/* These ids were drawn once, on one rank. */
static int the_same_is_drawn_on_every_layout(clv_comm *world)
{
    static const int32_t drawn[] = {397, 441, 323, 407, 261, 378, 432, 383, 286, 261, 268, 347, 433, 335,
                                    284, 303, 422, 410, 309, 386, 400, 428, 419, 322, 265, 352, 412, 271,
                                    426, 338, 397, 355, 267, 280, 414, 421, 304, 261, 420, 277};
    int failed = 0;
    if (!has_stories(world))
        return 0;
    clv_ids want = {0};
    for (size_t i = 0; i < CLV_COUNT(drawn); i++)
        clv_ids_add(&want, drawn[i]);
    for (int pp = 1; pp <= stages_most(world); pp++) {
        clv_options o = options_of(world, stories, pp);
        o.prompt = "Lily";
        o.max_new_tokens = CLV_COUNT(drawn);
        o.seed = 1;
        failed += written_expect(world, &o, &want, false);
    }
    clv_ids_free(&want);
    return failed;
}

/* ---- what is printed -----------------------------------------------------------------------------------------------
 */

/* Everything that the command puts on this rank's stdout, in `out`. */
static clv_status printed(clv_comm *world, const clv_options *o, clv_text *out)
{
    char path[] = "generate_test.XXXXXX";
    const int file = mkstemp(path);
    fflush(stdout);
    const int kept = dup(STDOUT_FILENO);
    CLV_CHECK(file >= 0 && kept >= 0 && dup2(file, STDOUT_FILENO) >= 0, "no file to catch stdout in");
    const clv_status st = clv_generate(world, o);
    fflush(stdout);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    close(file);
    const clv_status read = clv_file_read(path, out);
    remove(path);
    return st.code != CLV_OK ? st : read;
}

static int print_case(clv_comm *world, const clv_options *o, const char *want)
{
    int failed = 0;
    clv_text out = {0};
    const clv_status st = printed(world, o, &out);
    EXPECT(st.code == CLV_OK, "%s", st.text);
    want = clv_comm_rank(world) == 0 ? want : "";
    EXPECT(out.length == strlen(want) && (out.length == 0 || strcmp(out.data, want) == 0), "printed: %s",
           out.length > 0 ? out.data : "nothing");
    clv_text_free(&out);
    return failed;
}

static int prompts_and_what_follows_are_printed(clv_comm *world)
{
    int failed = 0;
    if (!has_stories(world))
        return 0;
    clv_options o = options_of(world, stories, stages_most(world));
    o.temperature = 0.0;
    o.max_new_tokens = 8;
    o.prompt = "Once upon a time";
    failed += print_case(world, &o, "Once upon a time, there was a little girl\n");
    o.max_new_tokens = 0;
    failed += print_case(world, &o, "Once upon a time\n");
    o.max_new_tokens = 8;
    char path[64];
    snprintf(path, sizeof path, "generate_test.%ld.txt", (long)getpid());
    const char *lines = "Once upon a time\r\n\nOnce upon a";
    CLV_CHECK(clv_file_write_atomic(path, lines, strlen(lines)).code == CLV_OK, "%s", path);
    o.prompt = NULL;
    o.prompt_file = path;
    failed +=
        print_case(world, &o, "Once upon a time, there was a little girl\nOnce upon a time, there was a little gir\n");
    remove(path);
    return failed;
}

/* ---- refusals ------------------------------------------------------------------------------------------------------
 */

static int refused(clv_comm *world, const clv_options *o, clv_code code, const char *part)
{
    int failed = 0;
    clv_generation g;
    const clv_status st = clv_generation_open(&g, world, o);
    EXPECT(st.code == code && strstr(st.text, part) != NULL, "'%s' is not in %d: %s", part, (int)st.code, st.text);
    clv_generation_close(&g);
    return failed;
}

static int what_does_not_fit_is_refused(clv_comm *world)
{
    int failed = 0;
    clv_options o = options_of(world, CLEAVE_GOLDEN "/llama-gqa", 1);
    failed += refused(world, &o, CLV_BAD_USAGE, "--prompt TEXT");
    o.prompt = "a";
    failed += refused(world, &o, CLV_BAD_USAGE, "--tokenizer-model");
    o.load = NULL;
    failed += refused(world, &o, CLV_BAD_USAGE, "--load");
    if (!has_stories(world))
        return failed;
    o.load = CLEAVE_GOLDEN "/llama-gqa"; /* 67 rows */
    o.tokenizer_model = stories;
    failed += refused(world, &o, CLV_BAD_INPUT, "512 ids");
    char text[2048];
    for (size_t i = 0; i < sizeof text - 1; i++)
        text[i] = i % 2 == 0 ? 'Q' : 'Z';
    text[sizeof text - 1] = 0;
    o.load = stories;
    o.prompt = text;
    failed += refused(world, &o, CLV_BAD_INPUT, "512 positions");
    return failed;
}

int main(int argc, char **argv)
{
    return mpi_test_run(
        &argc, &argv,
        (mpi_case[]){{"cache equals forward", cache_equals_forward},
                     {"a batch writes what its prompts write alone", a_batch_writes_what_its_prompts_write_alone},
                     {"stories are known", stories_are_known},
                     {"long prompts enter in pieces", long_prompts_enter_in_pieces},
                     {"the same is drawn on every layout", the_same_is_drawn_on_every_layout},
                     {"prompts and what follows are printed", prompts_and_what_follows_are_printed},
                     {"what does not fit is refused", what_does_not_fit_is_refused},
                     {0}});
}
