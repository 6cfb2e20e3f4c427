/* nsize: 1 2 4 8 */
/* resume_test.c - a run that was stopped and resumed on its layout ends in the bytes of the run that was not; and a
 * checkpoint that goes from layout to layout comes back as the bytes it began as: weights, both moments, progress.
 */
#include "train/checkpoint_test.h"

enum { WORDS = 64 };

typedef struct layout_row {
    int ranks;
    const char *options;
} layout_row;

/* Eight layers, vocabulary 97, dropout everywhere, on random tokens; and what else is asked for. */
CLV_PRINTF(2, 3)
static clv_status train(clv_comm *world, const char *fmt, ...)
{
    clv_text text = {0};
    char more[3 * CLV_PATH], *argv[WORDS], *rest = NULL;
    int count = 0;
    va_list args;
    va_start(args, fmt);
    vsnprintf(more, sizeof more, fmt, args);
    va_end(args);
    clv_text_printf(&text,
                    "--mock-data --vocab-size 97 --num-layers 8 --hidden-size 32 --num-attention-heads 4 "
                    "--seq-length 16 --global-batch-size 16 --lr 1e-2 --lr-decay-iters 6 --lr-decay-style cosine "
                    "--lr-warmup-iters 2 --check-decisions --weight-decay 0.1 --threads 1 --attention-dropout 0.1 "
                    "--hidden-dropout 0.1 %s",
                    more);
    for (char *word = strtok_r(text.data, " ", &rest); word != NULL && count < WORDS; word = strtok_r(NULL, " ", &rest))
        argv[count++] = word;
    clv_options options;
    clv_log_setup(CLV_LOG_ERROR, clv_comm_rank(world), clv_comm_size(world));
    clv_options_default(&options, 'T');
    clv_status st = clv_options_parse(&options, count, argv, NULL);
    if (st.code == CLV_OK)
        st = clv_train(world, &options);
    clv_options_free(&options);
    clv_text_free(&text);
    return st;
}

static bool same_file(const char *a, const char *b, const char *name)
{
    char path[CLV_PATH];
    clv_text x = {0}, y = {0};
    clv_path_join(path, sizeof path, a, name);
    must(clv_file_read(path, &x));
    clv_path_join(path, sizeof path, b, name);
    must(clv_file_read(path, &y));
    const bool same = x.length == y.length && memcmp(x.data, y.data, x.length) == 0;
    clv_text_free(&x);
    clv_text_free(&y);
    return same;
}

static clv_progress progress_of(const char *folder)
{
    clv_progress progress;
    int files;
    must(clv_state_read(&progress, &files, folder));
    return progress;
}

/* Are the two newest checkpoints the same, but for what the options say? */
static int same_expect(clv_comm *world, const char *a, const char *b, const char *what)
{
    int failed = 0;
    bool resumable;
    char x[CLV_PATH], y[CLV_PATH];
    clv_barrier(world);
    must(clv_checkpoint_find(a, x, &resumable));
    must(clv_checkpoint_find(b, y, &resumable));
    const clv_progress p = progress_of(x), q = progress_of(y);
    EXPECT(memcmp(&p, &q, sizeof p) == 0, "%s: progress differs: iterations %lld and %lld", what,
           (long long)p.iteration, (long long)q.iteration);
    EXPECT(same_file(x, y, "model.safetensors"), "%s: weights differ", what);
    EXPECT(same_file(x, y, "training/optimizer.safetensors"), "%s: moments differ", what);
    return failed;
}

/* ---- the same layout --------------------------------------------------------------------------------------------- */

static int resume_expect(clv_comm *world, const char *layout)
{
    int failed = 0;
    char root[CLV_PATH], whole[CLV_PATH], parts[CLV_PATH];
    scratch_open(world, root);
    clv_path_join(whole, sizeof whole, root, "whole");
    clv_path_join(parts, sizeof parts, root, "parts");
    clv_status st = train(world, "%s --train-iters 6 --save %s", layout, whole);
    EXPECT(st.code == CLV_OK, "%s: %s", layout, st.text);
    st = train(world, "%s --train-iters 6 --exit-interval 3 --save %s", layout, parts);
    EXPECT(st.code == CLV_OK, "%s: %s", layout, st.text);
    st = train(world, "%s --train-iters 6 --save %s --load %s", layout, parts, parts);
    EXPECT(st.code == CLV_OK, "%s: %s", layout, st.text);
    failed += same_expect(world, whole, parts, layout);
    scratch_close(world, root);
    return failed;
}

static int the_same_layout(clv_comm *world)
{
    static const layout_row rows[] = {
        {1, ""},
        {1, "--micro-batch-size 4 --recompute-granularity full --recompute-num-layers 3"},
        {1, "--rampup-batch-size 4 4 30"},
        {1, "--bf16"},
        {1, "--fp16 --initial-loss-scale 1048576 --loss-scale-window 2"},
        {2, ""},
        {2, "--bf16 --use-distributed-optimizer"},
        {2, "--fp16 --tensor-model-parallel-size 2 --sequence-parallel --initial-loss-scale 1048576"},
        {2, "--bf16 --pipeline-model-parallel-size 2"},
        {2, "--pipeline-model-parallel-size 2 --rampup-batch-size 0:4 160:8 320:16 --micro-batch-size 2"},
        {2, "--use-distributed-optimizer --overlap-grad-reduce"},
        {2, "--tensor-model-parallel-size 2"},
        {2, "--tensor-model-parallel-size 2 --sequence-parallel --micro-batch-size 2"},
        {2, "--pipeline-model-parallel-size 2 --untie-embeddings-and-output-weights"},
        {2, "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2"},
        {4, "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel"},
        {4, "--pipeline-model-parallel-size 4 --pipeline-schedule gpipe"},
        {8, "--pipeline-model-parallel-size 4 --use-distributed-optimizer"},
        {8, "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel"}};
    int failed = 0;
    for (size_t i = 0; i < CLV_COUNT(rows); i++)
        if (rows[i].ranks == clv_comm_size(world))
            failed += resume_expect(world, rows[i].options);
    return failed;
}

/* Evaluation draws no masks, and leaves those of the next iteration as they were. */
static int evaluation_changes_nothing(clv_comm *world)
{
    static const layout_row rows[] = {
        {1, ""},
        {2, "--pipeline-model-parallel-size 2 --pipeline-chunks 2"},
        {4, "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel"}};
    int failed = 0;
    for (size_t i = 0; i < CLV_COUNT(rows); i++) {
        char root[CLV_PATH], without[CLV_PATH], with[CLV_PATH];
        if (rows[i].ranks != clv_comm_size(world))
            continue;
        scratch_open(world, root);
        clv_path_join(without, sizeof without, root, "without");
        clv_path_join(with, sizeof with, root, "with");
        clv_status st = train(world, "%s --train-iters 4 --save %s", rows[i].options, without);
        EXPECT(st.code == CLV_OK, "%s", st.text);
        st = train(world, "%s --train-iters 4 --eval-interval 1 --eval-iters 2 --save %s", rows[i].options, with);
        EXPECT(st.code == CLV_OK, "%s", st.text);
        failed += same_expect(world, without, with, rows[i].options);
        scratch_close(world, root);
    }
    return failed;
}

/* ---- from layout to layout --------------------------------------------------------------------------------------- */

/* What the ranks have beyond a layout is dp. The padding of 97 classes is another one in each. */
static const char *const round_trip[] = {
    "--make-vocab-size-divisible-by 1",
    "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --make-vocab-size-divisible-by 5",
    "--tensor-model-parallel-size 4 --sequence-parallel --make-vocab-size-divisible-by 16",
    "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2 --use-distributed-optimizer",
    "--tensor-model-parallel-size 2 --make-vocab-size-divisible-by 1 --use-distributed-optimizer",
    "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout Et*3|t*2|t*2|tL",
    "--make-vocab-size-divisible-by 1"};

static bool fits_ranks(const char *layout, int ranks)
{
    int need = 1, n;
    const char *tp = strstr(layout, "--tensor-model-parallel-size "),
               *pp = strstr(layout, "--pipeline-model-parallel-size ");
    need *= tp != NULL && sscanf(tp, "%*s %d", &n) == 1 ? n : 1;
    need *= pp != NULL && sscanf(pp, "%*s %d", &n) == 1 ? n : 1;
    return ranks % need == 0;
}

/* Trained for two updates on the first layout, then only loaded and saved. */
static int travel(clv_comm *world, const char *shape)
{
    int failed = 0, steps = 0;
    char root[CLV_PATH], first[CLV_PATH], here[CLV_PATH], next[CLV_PATH], name[12];
    scratch_open(world, root);
    clv_path_join(first, sizeof first, root, "0");
    for (size_t i = 0; i < CLV_COUNT(round_trip); i++) {
        if (!fits_ranks(round_trip[i], clv_comm_size(world)))
            continue;
        snprintf(name, sizeof name, "%d", steps);
        clv_path_join(next, sizeof next, root, name);
        const clv_status st = train(world, "%s %s --train-iters 2 --save %s %s %s", shape, round_trip[i], next,
                                    steps > 0 ? "--load" : "", steps > 0 ? here : "");
        EXPECT(st.code == CLV_OK, "%s: %s", round_trip[i], st.text);
        failed += same_expect(world, first, next, round_trip[i]);
        memcpy(here, next, sizeof here);
        steps++;
    }
    EXPECT(steps >= 2, "%d layouts", steps);
    scratch_close(world, root);
    return failed;
}

static int from_layout_to_layout(clv_comm *world)
{
    return travel(world, "") +
           travel(world, "--swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope "
                         "--group-query-attention --num-query-groups 2 --untie-embeddings-and-output-weights");
}

int main(int argc, char **argv)
{
    return mpi_test_run(&argc, &argv,
                        (mpi_case[]){{"the same layout", the_same_layout},
                                     {"evaluation changes nothing", evaluation_changes_nothing},
                                     {"from layout to layout", from_layout_to_layout},
                                     {0}});
}
