/* nsize: 1 2 4 8 */
/* verify_test.c - PyTorch's values on every dense golden case that the number of ranks allows: with and without
 * sequence parallelism, vocabulary divisor 1, and once each with 128 and with the whole batch as a micro-batch; the two
 * deep cases on every mix of tp, pp, chunks and dp, plain and computed again. */
#include "comm/mpi_test.h"
#include "train.h"

#include <string.h>

static const char *const cases[] = {"gpt2-tiny",      "llama-gqa",  "llama-mha-tied-smoothing",
                                    "llama3-rope",    "qwen2-tiny", "qwen3-tiny",
                                    "mistral-window", "llama-deep", "gpt2-deep-tied"};

static int verify_expect(clv_comm *world, const char *name, int tp, char **more, int count)
{
    int failed = 0;
    char folder[512], size[16], all[256] = "";
    snprintf(folder, sizeof folder, "%s/%s", CLEAVE_GOLDEN, name);
    snprintf(size, sizeof size, "%d", tp);
    char *argv[20] = {"--reference", folder, "--tensor-model-parallel-size", size};
    for (int i = 0; i < count; i++) {
        argv[4 + i] = more[i];
        snprintf(all + strlen(all), sizeof all - strlen(all), " %s", more[i]);
    }
    clv_options options;
    clv_options_default(&options, 'V');
    clv_status st = clv_options_parse(&options, 4 + count, argv, NULL);
    if (st.code == CLV_OK)
        st = clv_verify(world, &options);
    EXPECT(st.code == CLV_OK, "%s at tp %d%s: %s", name, tp, all, st.text);
    clv_options_free(&options);
    return failed;
}

/* Does the case have heads for this many ranks? */
static bool fits(const char *name, int tp)
{
    char folder[512];
    clv_config config;
    snprintf(folder, sizeof folder, "%s/%s", CLEAVE_GOLDEN, name);
    const clv_layout layout = {.tp = tp};
    return clv_hf_config_read(&config, folder).code == CLV_OK &&
           clv_gpt_check(&config, &layout, false, 24).code == CLV_OK;
}

static int each_case(clv_comm *world, char **more, int count)
{
    int failed = 0, run = 0;
    const int tp = clv_comm_size(world);
    for (size_t i = 0; i < CLV_COUNT(cases); i++) {
        if (!fits(cases[i], tp))
            continue;
        failed += verify_expect(world, cases[i], tp, more, count);
        run++;
    }
    EXPECT(run >= 3, "only %d cases fit tp %d", run, tp);
    return failed;
}

static int replicated_edges(clv_comm *world)
{
    return each_case(world, NULL, 0);
}

static int sequence_edges(clv_comm *world)
{
    return each_case(world, (char *[]){"--sequence-parallel"}, 1);
}

static int padded_vocabulary(clv_comm *world)
{
    return each_case(world, (char *[]){"--make-vocab-size-divisible-by", "128"}, 2);
}

static int whole_batch(clv_comm *world)
{
    return verify_expect(world, "llama-gqa", clv_comm_size(world),
                         (char *[]){"--micro-batch-size", "2", "--sequence-parallel"}, 3);
}

static int reference_kernels(clv_comm *world)
{
    return verify_expect(world, "qwen3-tiny", clv_comm_size(world), (char *[]){"--backend", "ref"}, 2);
}

/* Without PyTorch's values: the layouts of these ranks against one of them that trains alone. */
static int against_one_rank(clv_comm *world)
{
    const int tp = clv_comm_size(world);
    char layouts[64];
    snprintf(layouts, sizeof layouts, tp > 1 ? "tp%d,tp%dsp,tp%d" : "tp%d", tp, tp, tp / 2);
    return verify_expect(world, "llama-gqa", tp, (char *[]){"--layouts", layouts}, 2);
}

/* What is left out of tp and pp is dp. */
static const struct {
    int ranks, tp;
    const char *options;
} layouts[] = {{1, 1, ""},
               {2, 2, ""},
               {2, 2, "--sequence-parallel"},
               {2, 1, ""},
               {2, 1, "--pipeline-model-parallel-size 2"},
               {2, 1, "--pipeline-model-parallel-size 2 --pipeline-schedule gpipe"},
               {2, 1, "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2"},
               {2, 1, "--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 3"},
               {2, 1, "--pipeline-model-parallel-size 2 --micro-batch-size 8"},
               {2, 1, "--overlap-grad-reduce"},
               {2, 1, "--use-distributed-optimizer"},
               {4, 2, ""},
               {4, 2, "--pipeline-model-parallel-size 2"},
               {4, 2, "--pipeline-model-parallel-size 2 --sequence-parallel"},
               {4, 1, "--pipeline-model-parallel-size 4"},
               {4, 1, "--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2"},
               {4, 1, "--pipeline-model-parallel-size 4 --micro-batch-size 4 --pipeline-schedule gpipe"},
               {4, 1, "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout Et|t*3|t*2|ttL"},
               {4, 1, "--pipeline-model-parallel-size 2"},
               {4, 2, "--use-distributed-optimizer --overlap-grad-reduce --sequence-parallel"},
               {4, 1, "--use-distributed-optimizer"},
               {4, 1, "--pipeline-model-parallel-size 2 --use-distributed-optimizer --overlap-grad-reduce"},
               {8, 1, "--pipeline-model-parallel-size 4 --use-distributed-optimizer"},
               {8, 1, "--pipeline-model-parallel-size 4 --use-distributed-optimizer --overlap-grad-reduce"},
               {8, 2, "--pipeline-model-parallel-size 4 --sequence-parallel"},
               {8, 1, "--pipeline-model-parallel-size 4"},
               {8, 2, "--pipeline-model-parallel-size 2 --sequence-parallel"}};

/* Every layout of these ranks, on the two deep cases, with more options; or the pipelines alone. */
static int each_layout(clv_comm *world, const char *more, bool pipelines_only)
{
    int failed = 0;
    for (size_t i = 0; i < CLV_COUNT(layouts); i++) {
        const bool pipeline = strstr(layouts[i].options, "pipeline") != NULL;
        if (layouts[i].ranks != clv_comm_size(world) || (pipelines_only && !pipeline))
            continue;
        char text[256], *words[16], *rest = NULL;
        int count = 0;
        snprintf(text, sizeof text, "%s %s", layouts[i].options, more);
        for (char *word = strtok_r(text, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest))
            words[count++] = word;
        failed += verify_expect(world, "llama-deep", layouts[i].tp, words, count);
        failed += verify_expect(world, "gpt2-deep-tied", layouts[i].tp, words, count);
    }
    return failed;
}

static int deep_cases(clv_comm *world)
{
    return each_layout(world, "", false);
}

static int whole_layers_again(clv_comm *world)
{
    return each_layout(world, "--recompute-granularity full --recompute-num-layers 3", false);
}

/* What is computed again does not depend on the layout; two ranks have seen every kind of it. */
static int parts_again(clv_comm *world)
{
    static const char *const parts[] = {
        "--recompute-granularity full --recompute-method block --recompute-num-layers 1",
        "--recompute-granularity selective --recompute-modules core_attn layernorm mlp_act",
        "--recompute-granularity selective --recompute-modules mlp"};
    int failed = 0;
    for (size_t i = 0; i < CLV_COUNT(parts) && clv_comm_size(world) <= 2; i++)
        failed += each_layout(world, parts[i], false);
    return failed;
}

/* No message is buffered on its way. */
static int synchronous_pipelines(clv_comm *world)
{
    clv_comm_synchronize(world, true);
    const int failed = each_layout(world, "", true);
    clv_comm_synchronize(world, false);
    return failed;
}

int main(int argc, char **argv)
{
    return mpi_test_run(&argc, &argv,
                        (mpi_case[]){{"replicated edges", replicated_edges},
                                     {"sequence-parallel edges", sequence_edges},
                                     {"vocabulary padded to 128", padded_vocabulary},
                                     {"whole batch as micro-batch", whole_batch},
                                     {"reference kernels", reference_kernels},
                                     {"against one rank", against_one_rank},
                                     {"deep cases on every layout", deep_cases},
                                     {"whole layers computed again", whole_layers_again},
                                     {"parts computed again", parts_again},
                                     {"pipelines that wait in sends", synchronous_pipelines},
                                     {0}});
}
