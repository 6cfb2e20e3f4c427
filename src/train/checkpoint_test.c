/* nsize: 1 2 4 */
/* Saves that are complete or not there: any layout to any other, files of others unchanged, and a disk that fails at
 * every single step. */
#include "train/checkpoint_test.h"

#include <unistd.h>

static const clv_layout whole[] = {{.tp = 1}, {.tp = 2}, {.tp = 4}, {.dp = 2}, {.dp = 4}, {.tp = 2, .dp = 2}};

static bool fits(clv_comm *world, clv_layout l)
{
    return CLV_MAX(l.tp, 1) * CLV_MAX(l.dp, 1) == clv_comm_size(world);
}

/* In the background nothing that the run does meanwhile is saved, and until the end nothing is published. */
static clv_status save_behind(model *m, const char *root, int64_t keep_last, const clv_disk *disk)
{
    const clv_checkpoint c = checkpoint_of(m);
    clv_saving *saving;
    char folder[CLV_PATH];
    bool resumable;
    CLV_TRY(clv_checkpoint_begin_on(&saving, &c, root, keep_last, disk));
    const int64_t iteration = m->progress.iteration;
    model_fill(m, 99);
    clv_checkpoint_advance(saving, 0.0, 0.5);
    model_fill(m, 98);
    clv_checkpoint_advance(saving, 0.0, 1.0);
    while (!clv_checkpoint_waits(saving))
        usleep(1000);
    const bool early = clv_checkpoint_find(root, folder, &resumable).code == CLV_OK &&
                       clv_checkpoint_iteration(strrchr(folder, '/') + 1) == iteration;
    clv_barrier(clv_mesh_world(m->mesh)); /* or a faster rank would publish while this one looks */
    clv_status status = clv_checkpoint_go_on(&saving);
    if (saving != NULL)
        status = clv_checkpoint_end(&saving);
    return early ? clv_fail(CLV_CHECK_FAILED, "published before the end") : status;
}

typedef struct move { /* save on one layout, load on another */
    clv_layout from, to;
    bool background, distributed;
} move;

/* With other padding of the vocabulary, in one file or in many. */
static int move_layout(clv_comm *world, const clv_config *config, move how)
{
    int failed = 0;
    char root[CLV_PATH], folder[CLV_PATH];
    bool resumable;
    const clv_disk disk = {.shard = 16 << 10};
    scratch_open(world, root);
    model *from = model_open_as(world, config, how.from, CLV_F32, how.distributed, 1);
    model_fill(from, 5);
    clv_checkpoint c = checkpoint_of(from);
    clv_status status = how.background ? save_behind(from, root, 0, &disk) : clv_checkpoint_save_on(&c, root, 0, &disk);
    EXPECT(status.code == CLV_OK, "%s", status.text);
    model_close(from);

    status = clv_checkpoint_find(root, folder, &resumable);
    EXPECT(status.code == CLV_OK && resumable, "%s", status.text);
    const bool parts = clv_comm_size(world) > 1;
    EXPECT(exists_in(folder, "model.safetensors.index.json") == parts, "%s", folder);
    model *to = model_open_as(world, config, how.to, CLV_F32, how.distributed, 128);
    c = checkpoint_of(to);
    status = clv_checkpoint_load(&c, folder);
    EXPECT(status.code == CLV_OK, "%s", status.text);
    const int different = model_differences(to, 5, 3);
    EXPECT(different == 0, "%d tensors of %s differ", different, config->model_type);
    EXPECT(to->optimizer.step == 12 && to->progress.iteration == 5, "step %lld", (long long)to->optimizer.step);
    EXPECT(to->progress.tokens == 1LL << 53 && to->progress.plan.max == 0.1, "tokens, max");
    EXPECT(to->progress.plan.style == CLV_LR_WSD && to->progress.plan.wsd_style == CLV_WSD_MINUS_SQRT, "style");
    EXPECT(strcmp(to->progress.data_order, "stable") == 0, "order %s", to->progress.data_order);
    model_close(to);
    scratch_close(world, root);
    return failed;
}

static int layouts(clv_comm *world)
{
    static const char *const names[] = {"gpt2-tiny", "llama-gqa", "qwen2-tiny"};
    int failed = 0;
    for (size_t k = 0; k < CLV_COUNT(names); k++) {
        clv_config config = golden_config(names[k]);
        config.layers = 1;
        if (k == 1)
            config.ffn = 4096; /* columns of a shard fill pages, and are read by themselves */
        for (size_t i = 0; i < CLV_COUNT(whole); i++)
            for (size_t j = 0; j < CLV_COUNT(whole); j++)
                for (int how = 0; how < 4 && fits(world, whole[i]) && fits(world, whole[j]); how++)
                    failed += move_layout(world, &config, (move){whole[i], whole[j], how % 2 > 0, how / 2 > 0});
    }
    return failed;
}

static int compare_files(clv_comm *world, const char *a, const char *b)
{
    int failed = 0;
    clv_safetensors *x, *y;
    must(clv_safetensors_open(&x, a));
    must(clv_safetensors_open(&y, b));
    EXPECT(clv_safetensors_count(x) == clv_safetensors_count(y), "%s and %s", a, b);
    for (size_t i = 0; i < clv_safetensors_count(x); i++) {
        const clv_st_tensor *t = clv_safetensors_at(x, i), *u = clv_safetensors_find(y, t->name);
        EXPECT(u != NULL && u->bytes == t->bytes && u->ndim == t->ndim, "%s", t->name);
        if (u == NULL || u->bytes != t->bytes)
            continue;
        void *p = clv_alloc((size_t)t->bytes, 1), *q = clv_alloc((size_t)t->bytes, 1);
        must(clv_safetensors_read(x, t, 0, p, (size_t)t->bytes));
        must(clv_safetensors_read(y, u, 0, q, (size_t)t->bytes));
        EXPECT(memcmp(p, q, (size_t)t->bytes) == 0, "%s differs", t->name);
        free(p);
        free(q);
    }
    clv_safetensors_close(x);
    clv_safetensors_close(y);
    return failed;
}

/* What PyTorch wrote, read on all ranks and written again, is the same tensor for tensor. */
static int there_and_back(clv_comm *world)
{
    static const char *const names[] = {"gpt2-tiny",  "llama-gqa",  "llama-mha-tied-smoothing",
                                        "qwen2-tiny", "qwen3-tiny", "mistral-window"};
    int failed = 0;
    for (size_t k = 0; k < CLV_COUNT(names); k++) {
        char root[CLV_PATH], golden[CLV_PATH], folder[CLV_PATH];
        bool resumable = true;
        const clv_config config = golden_config(names[k]);
        clv_path_join(golden, sizeof golden, CLEAVE_GOLDEN, names[k]);
        scratch_open(world, root);
        model *m = model_open(world, &config, (clv_layout){.tp = clv_comm_size(world)}, 1);
        const clv_checkpoint c = weights_of(m);
        clv_status status = clv_checkpoint_load(&c, golden);
        EXPECT(status.code == CLV_OK, "%s", status.text);
        status = clv_checkpoint_save(&c, root, 0);
        EXPECT(status.code == CLV_OK, "%s", status.text);
        must(clv_checkpoint_find(root, folder, &resumable));
        EXPECT(!resumable, "%s has no state", folder);
        if (clv_comm_rank(world) == 0)
            failed += compare_files(world, golden, folder);
        model_close(m);
        scratch_close(world, root);
    }
    return failed;
}

static int gathered(clv_comm *world)
{
    int failed = 0;
    const clv_config config = golden_config("llama-gqa");
    model *m = model_open(world, &config, (clv_layout){.tp = clv_comm_size(world)}, 128);
    model_fill(m, 1);
    for (size_t i = 0; i < m->gpt.param_count; i++) {
        const clv_param *p = &m->gpt.params[i];
        float *values = clv_param_gather(&m->cx, p, p->w, false);
        EXPECT((values != NULL) == (clv_comm_rank(world) == 0), "%s", p->name);
        const int64_t n = p->whole[0] * (p->ndim > 1 ? p->whole[1] : 1);
        const uint64_t key = clv_hash_name(3, p->name);
        for (int64_t k = 0; values != NULL && k < n; k++)
            if (values[k] != (float)clv_normal_at(key, (uint64_t)k)) {
                EXPECT(false, "%s at %lld", p->name, (long long)k);
                break;
            }
        free(values);
    }
    model_close(m);
    return failed;
}

/* One matrix of more than a piece, stored as it is and transposed. */
static int large(clv_comm *world, const char *family, const char *name)
{
    enum { ROWS = 264000, COLUMNS = 64 };
    int failed = 0;
    char root[CLV_PATH], folder[CLV_PATH];
    bool resumable;
    const clv_config config = golden_config(family);
    const int64_t ranks = clv_comm_size(world), rows = ROWS / ranks, first = rows * clv_comm_rank(world);
    float *values = clv_alloc((size_t)(rows * COLUMNS), sizeof *values);
    for (int64_t i = 0; i < rows * COLUMNS; i++)
        values[i] = (float)((first * COLUMNS + i) % 16777213); /* exact, and no two rows alike */
    clv_mesh *mesh;
    must(clv_mesh_create(&mesh, world, &(clv_layout){.tp = (int)ranks}));
    clv_ctx cx = {.be = clv_backend_ref(), .mesh = mesh};
    clv_param p = {.here = true,
                   .w = {.data = values, .dim = {rows, COLUMNS}, .ndim = 2},
                   .whole = {ROWS, COLUMNS},
                   .ndim = 2,
                   .split_axes = CLV_TP};
    snprintf(p.name, sizeof p.name, "%s", name);
    const clv_checkpoint c = {.cx = &cx, .config = &config, .params = &p, .param_count = 1};
    scratch_open(world, root);
    must(clv_checkpoint_save(&c, root, 0));
    must(clv_checkpoint_find(root, folder, &resumable));
    memset(values, 0, clv_bytes(p.w));
    must(clv_checkpoint_load(&c, folder));
    int64_t bad = 0;
    for (int64_t i = 0; i < rows * COLUMNS; i++)
        bad += values[i] != (float)((first * COLUMNS + i) % 16777213);
    EXPECT(bad == 0, "%s: %lld elements differ", name, (long long)bad);
    clv_mesh_destroy(mesh);
    free(values);
    scratch_close(world, root);
    return failed;
}

static int pieces(clv_comm *world)
{
    return large(world, "llama-gqa", "embedding.word_embeddings.weight") +
           large(world, "gpt2-tiny", "decoder.layers.0.mlp.linear_fc1.weight");
}

/* ---- a disk that fails ---- */

typedef struct fault {
    int64_t at, count; /* refuse change number `at`; -1: none */
    bool for_good;     /* and all after it */
    bool background;   /* of the save */
} fault;

static clv_status refuse(void *state, const char *what, const char *path)
{
    fault *f = state;
    const int64_t now = f->count++;
    if (f->at >= 0 && (now == f->at || (f->for_good && now > f->at)))
        return clv_fail(CLV_BAD_INPUT, "cannot %s %s: refused by the test", what, path);
    return clv_ok();
}

/* Checkpoint 1 is there; saving 2 fails on `rank` at its k-th change. Returns whether the save went through. */
static bool save_with_fault(clv_comm *world, model *m, const char *root, int rank, fault *f, int *failed_out)
{
    int failed = 0;
    char folder[CLV_PATH];
    bool resumable;
    fault none = {.at = -1};
    clv_checkpoint c = checkpoint_of(m);
    model_fill(m, 2);
    const clv_disk disk = {refuse, clv_comm_rank(world) == rank ? f : &none, 8 << 10};
    const clv_status saved =
        f->background ? save_behind(m, root, 1, &disk) : clv_checkpoint_save_on(&c, root, 1, &disk);
    EXPECT(saved.code != CLV_CHECK_FAILED, "%s", saved.text);
    const double worst = clv_comm_decide(world, (double)saved.code);
    EXPECT((double)saved.code == worst, "ranks disagree: %s", saved.text);

    clv_status status = clv_checkpoint_find(root, folder, &resumable);
    EXPECT(status.code == CLV_OK && resumable, "%s", status.text);
    model_fill(m, 9);
    status = clv_checkpoint_load(&c, folder);
    EXPECT(status.code == CLV_OK, "after '%s': %s", saved.text, status.text);
    const uint64_t found = (uint64_t)m->progress.iteration;
    EXPECT(found == 2 || (found == 1 && saved.code != CLV_OK), "iteration %d", (int)found);
    const int different = model_differences(m, found, 3);
    EXPECT(different == 0, "%d tensors differ", different);
    *failed_out += failed;
    return saved.code == CLV_OK;
}

/* Refuse the k-th change for every k; then a clean save finds its way and leaves nothing half-made. */
static int faults_on(clv_comm *world, model *m, int rank, fault kind)
{
    int failed = 0, steps = 0;
    for (bool through = false; !through; steps++) {
        char root[CLV_PATH];
        scratch_open(world, root);
        clv_checkpoint c = checkpoint_of(m);
        model_fill(m, 1);
        must(clv_checkpoint_save(&c, root, 1));
        fault f = kind;
        f.at = steps;
        save_with_fault(world, m, root, rank, &f, &failed);
        int32_t more = clv_comm_rank(world) == rank && f.count > f.at;
        clv_all_reduce(world, &more, &more, 1, CLV_I32, CLV_MAX);
        through = more == 0;

        model_fill(m, 3);
        const clv_status status = clv_checkpoint_save(&c, root, 1);
        EXPECT(status.code == CLV_OK, "%s", status.text);
        clv_barrier(world);
        EXPECT(exists_in(root, "iter_0000003") && !exists_in(root, "iter_0000002"), "%s", root);
        EXPECT(!exists_in(root, "iter_0000001.tmp") && !exists_in(root, "iter_0000002.tmp"), "%s", root);
        scratch_close(world, root);
    }
    EXPECT(steps > (rank == 0 ? 20 : 2), "only %d changes were refused", steps);
    return failed;
}

static int faults(clv_comm *world)
{
    int failed = 0;
    clv_config config = golden_config("llama-mha-tied-smoothing");
    config.layers = 1;
    model *m = model_open(world, &config, (clv_layout){.tp = clv_comm_size(world)}, 1);
    clv_log_setup(CLV_LOG_ERROR, clv_comm_rank(world), clv_comm_size(world));
    if (clv_comm_size(world) < 4)
        failed +=
            faults_on(world, m, 0, (fault){.for_good = true}) + faults_on(world, m, 0, (fault){.background = true});
    failed += faults_on(world, m, clv_comm_size(world) - 1, (fault){0});
    failed += faults_on(world, m, clv_comm_size(world) - 1, (fault){.for_good = true, .background = true});
    model_close(m);
    return failed;
}

static int retention(clv_comm *world)
{
    int failed = 0;
    char root[CLV_PATH], folder[CLV_PATH];
    bool resumable;
    const clv_config config = golden_config("llama-gqa");
    scratch_open(world, root);
    model *m = model_open(world, &config, (clv_layout){.tp = clv_comm_size(world)}, 1);
    clv_checkpoint c = checkpoint_of(m);
    c.keep_every = 4;
    for (uint64_t i = 2; i <= 10; i += 2) {
        model_fill(m, CLV_MIN(i, 8)); /* the last one replaces iteration 8 */
        const clv_status status = clv_checkpoint_save(&c, root, 2);
        EXPECT(status.code == CLV_OK, "%s", status.text);
    }
    clv_barrier(world);
    EXPECT(!exists_in(root, "iter_0000002") && exists_in(root, "iter_0000004"), "%s", root);
    EXPECT(exists_in(root, "iter_0000006") && exists_in(root, "iter_0000008"), "%s", root);
    EXPECT(!exists_in(root, "iter_0000008.tmp"), "%s", root);
    must(clv_checkpoint_find(root, folder, &resumable));
    EXPECT(strcmp(strrchr(folder, '/'), "/iter_0000008") == 0, "%s", folder);
    model_close(m);
    scratch_close(world, root);
    return failed;
}

static int halves_expect(clv_comm *world, const model *a, const model *b, bool masters)
{
    int failed = 0;
    for (size_t i = 0; i < a->gpt.param_count; i++) {
        const clv_param *p = &a->gpt.params[i], *q = &b->gpt.params[i];
        EXPECT(memcmp(p->w.data, q->w.data, clv_bytes(p->w)) == 0, "weight %s", p->name);
        if (masters && clv_bytes(p->master) > 0)
            EXPECT(memcmp(p->master.data, q->master.data, clv_bytes(p->master)) == 0, "master of %s", p->name);
    }
    return failed;
}

/* Masters are whole tensors of the file: the weights of a run in fp32, and masters again from its weights. Without them
 * a master begins as the 16-bit weight. */
static int masters_of(clv_comm *world, clv_layout layout, bool background)
{
    int failed = 0;
    enum { SEED = 7, STEP = 3 };
    const int ranks = clv_comm_size(world);
    const clv_disk disk = {.shard = 16 << 10};
    char root[CLV_PATH], first[CLV_PATH], second[CLV_PATH];
    scratch_open(world, root);
    clv_config config = golden_config("gpt2-tiny");
    config.layers = 1;
    model *half = model_open_as(world, &config, layout, CLV_BF16, true, 1);
    model_fill(half, SEED);
    half->progress = (clv_progress){.iteration = STEP, .data_order = "stable"};
    clv_checkpoint c = checkpoint_of(half);
    must(background ? save_behind(half, root, 0, &disk) : clv_checkpoint_save(&c, root, 0));
    model_fill(half, SEED);
    clv_path_join(first, sizeof first, root, "iter_0000003");

    model *single = model_open(world, &config, (clv_layout){.tp = ranks}, 1);
    c = checkpoint_of(single);
    must(clv_checkpoint_load(&c, first));
    EXPECT(model_differences(single, SEED, 3) == 0, "fp32 weights are not the masters");
    single->progress.iteration = STEP + 1;
    must(clv_checkpoint_save(&c, root, 0));
    clv_path_join(second, sizeof second, root, "iter_0000004");

    model *again = model_open_as(world, &config, layout, CLV_BF16, true, 1);
    c = checkpoint_of(again);
    must(clv_checkpoint_load(&c, second));
    failed += halves_expect(world, half, again, true);
    model *weights = model_open_as(world, &config, layout, CLV_BF16, true, 1);
    c = weights_of(weights);
    must(clv_checkpoint_load(&c, first));
    failed += halves_expect(world, half, weights, false);
    const clv_param *p = &weights->gpt.params[0];
    float *wide = clv_alloc((size_t)clv_numel(p->w), sizeof *wide);
    clv_to_floats(&weights->cx, wide, p->w);
    EXPECT(memcmp(wide + clv_param_own(p).first, p->master.data, clv_bytes(p->master)) == 0, "master of a weight");
    free(wide);
    model_close(half);
    model_close(single);
    model_close(again);
    model_close(weights);
    scratch_close(world, root);
    return failed;
}

static int masters(clv_comm *world)
{
    const int ranks = clv_comm_size(world);
    return masters_of(world, (clv_layout){.dp = ranks}, false) + masters_of(world, (clv_layout){.tp = ranks}, true);
}

int main(int argc, char **argv)
{
    return mpi_test_run(&argc, &argv,
                        (mpi_case[]){{"layouts", layouts},
                                     {"there and back", there_and_back},
                                     {"gathered", gathered},
                                     {"pieces", pieces},
                                     {"masters", masters},
                                     {"faults", faults},
                                     {"retention", retention},
                                     {0}});
}
