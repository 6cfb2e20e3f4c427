/* nsize: 1 2 4 */
/* vocab_test.c - the vocabulary cut over ranks: lookup where the row lives, and a loss that ignores padding, keeps its
 * sums finite, costs three all-reduces, and equals the loss of one rank, gradient included.
 */
#include "comm/mpi_test.h"
#include "op/backend.h"
#include "parallel/parallel.h"

#include <math.h>

enum { ROWS = 6, H = 4, DIVISOR = 8 };

typedef struct bench {
    clv_mesh *mesh;
    clv_arena temp;
    clv_ctx cx;
    int tp;
} bench;

static void bench_open(bench *w, clv_comm *world)
{
    *w = (bench){.tp = clv_comm_size(world)};
    clv_mesh_create(&w->mesh, world, &(clv_layout){.tp = w->tp});
    clv_arena_create(&w->temp, "temp", 64 << 20);
    w->cx = (clv_ctx){.be = clv_backend_ref(), .mesh = w->mesh, .temp = &w->temp};
}

static void bench_close(bench *w)
{
    clv_mesh_destroy(w->mesh);
    clv_arena_destroy(&w->temp);
}

/* This rank's shard of `classes` real rows, padded to a multiple of divisor x tp. Row r is filled with r + 1. */
static clv_vocab vocab_make(bench *w, int64_t classes, int64_t divisor)
{
    const int64_t v = CLV_CEIL_DIV(classes, divisor * w->tp) * divisor;
    clv_vocab vocab = {.first = v * clv_mesh_coord(w->mesh, CLV_TP), .classes = classes};
    vocab.real = CLV_MAX(0, CLV_MIN(v, classes - vocab.first));
    vocab.l = (clv_linear){.w = clv_new(&w->temp, CLV_R, v, H), .dw = clv_new(&w->temp, CLV_R, v, H)};
    for (int64_t i = 0; i < v * H; i++)
        ((float *)vocab.l.w.data)[i] = i < vocab.real * H ? (float)(vocab.first + i / H + 1) : 0.0f;
    clv_zero(&w->cx, vocab.l.dw);
    return vocab;
}

/* ---- the loss ---------------------------------------------------------------------------------------------------- */

typedef float (*logit_of)(int64_t row, int64_t column);

typedef struct result {
    clv_tensor logits, loss, nll; /* logits hold their gradient */
} result;

static float weight_of(int64_t row)
{
    return (float)(row + 1);
}

static result loss_run(bench *w, const clv_vocab *vocab, logit_of at, const int32_t *target, float smoothing)
{
    const int64_t v = vocab->l.w.dim[0];
    result r = {.logits = clv_new(&w->temp, CLV_SL, ROWS, v),
                .loss = clv_new(&w->temp, CLV_R, ROWS),
                .nll = clv_new(&w->temp, CLV_R, ROWS)};
    clv_tensor ids = clv_new_as(&w->temp, CLV_I32, ROWS), weight = clv_new(&w->temp, CLV_R, ROWS);
    for (int64_t i = 0; i < ROWS; i++) {
        ((int32_t *)ids.data)[i] = target[i];
        ((float *)weight.data)[i] = weight_of(i);
        for (int64_t j = 0; j < v; j++) /* padding holds what must not count */
            ((float *)r.logits.data)[i * v + j] = j < vocab->real ? at(i, vocab->first + j) : 50.0f;
    }
    const clv_vocab_loss what = {.loss = r.loss, .nll = r.nll, .target = ids, .weight = weight, .smoothing = smoothing};
    clv_vocab_cross_entropy(&w->cx, r.logits, vocab, &what);
    return r;
}

/* With the row's weight taken out again. */
static float gradient_at(const result *r, int64_t row, int64_t column)
{
    return ((const float *)r->logits.data)[row * r->logits.dim[1] + column] / weight_of(row);
}

static float zero_logit(int64_t row, int64_t column)
{
    (void)row, (void)column;
    return 0.0f;
}

static float huge_logit(int64_t row, int64_t column)
{
    (void)row, (void)column;
    return 1e8f;
}

static float drawn_logit(int64_t row, int64_t column)
{
    return (float)(2.0 * clv_normal_at(5, (uint64_t)(row * 100 + column)));
}

static int padding_expect(clv_comm *world, const result *r, const clv_vocab *vocab)
{
    int failed = 0;
    for (int64_t i = 0; i < ROWS; i++)
        for (int64_t j = vocab->real; j < r->logits.dim[1]; j++)
            EXPECT(gradient_at(r, i, j) == 0.0f, "padded column %lld", (long long)(vocab->first + j));
    return failed;
}

/* Ten classes padded to 16 or 32 columns: ln 10, with and without smoothing, also where a rank owns padding alone. */
static int padding_ignored(clv_comm *world)
{
    int failed = 0;
    bench w;
    bench_open(&w, world);
    const clv_vocab vocab = vocab_make(&w, 10, DIVISOR);
    EXPECT(vocab.l.w.dim[0] * w.tp == (w.tp == 4 ? 32 : 16), "%lld rows", (long long)vocab.l.w.dim[0]);
    for (int smooth = 0; smooth < 2; smooth++) {
        const result r = loss_run(&w, &vocab, zero_logit, (const int32_t[ROWS]){0, 7, 8, 9, 3, 0}, smooth ? 0.1f : 0);
        for (int i = 0; i < ROWS; i++) {
            const double loss = ((float *)r.loss.data)[i], nll = ((float *)r.nll.data)[i];
            EXPECT(fabs(loss - log(10.0)) < 1e-6 && fabs(nll - log(10.0)) < 1e-6, "row %d: loss %.7f, nll %.7f", i,
                   loss, nll);
        }
        failed += padding_expect(world, &r, &vocab);
    }
    bench_close(&w);
    return failed;
}

/* Eight classes, all logits 0, target 1: an eighth everywhere, seven eighths less where the target is. */
static int gradient_everywhere(clv_comm *world)
{
    int failed = 0;
    bench w;
    bench_open(&w, world);
    const clv_vocab vocab = vocab_make(&w, 8, 1);
    const result r = loss_run(&w, &vocab, zero_logit, (const int32_t[ROWS]){1, 1, 1, 1, 1, 1}, 0);
    for (int64_t i = 0; i < ROWS; i++)
        for (int64_t j = 0; j < vocab.real; j++)
            EXPECT(gradient_at(&r, i, j) == (vocab.first + j == 1 ? -0.875f : 0.125f), "column %lld: %.9g",
                   (long long)(vocab.first + j), (double)gradient_at(&r, i, j));
    bench_close(&w);
    return failed;
}

static int huge_logits(clv_comm *world)
{
    int failed = 0;
    bench w;
    bench_open(&w, world);
    const clv_vocab vocab = vocab_make(&w, 2, 1);
    const result r = loss_run(&w, &vocab, huge_logit, (const int32_t[ROWS]){0}, 0);
    for (int64_t i = 0; i < ROWS; i++) {
        EXPECT(fabs((double)((float *)r.loss.data)[i] - log(2.0)) < 1e-6, "loss %.9g",
               (double)((float *)r.loss.data)[i]);
        for (int64_t j = 0; j < vocab.real; j++)
            EXPECT(gradient_at(&r, i, j) == (vocab.first + j == 0 ? -0.5f : 0.5f), "gradient %.9g",
                   (double)gradient_at(&r, i, j));
    }
    failed += padding_expect(world, &r, &vocab);
    bench_close(&w);
    return failed;
}

static int equals_one_rank_with(clv_comm *world, int64_t classes)
{
    int failed = 0;
    clv_comm *self = clv_comm_self_open();
    bench w, lone;
    bench_open(&w, world);
    bench_open(&lone, self);
    const clv_vocab vocab = vocab_make(&w, classes, DIVISOR), whole = vocab_make(&lone, classes, 1);
    const int32_t target[ROWS] = {9, 0, 4, 8, 7, 2};
    for (int smooth = 0; smooth < 2; smooth++) {
        const result r = loss_run(&w, &vocab, drawn_logit, target, smooth ? 0.2f : 0);
        const result q = loss_run(&lone, &whole, drawn_logit, target, smooth ? 0.2f : 0);
        for (int64_t i = 0; i < ROWS; i++) {
            const double a = ((float *)r.loss.data)[i], b = ((float *)q.loss.data)[i];
            EXPECT(fabs(a - b) < 1e-6 * b, "row %lld: loss %.8f, alone %.8f", (long long)i, a, b);
            for (int64_t j = 0; j < vocab.real; j++)
                EXPECT(fabsf(gradient_at(&r, i, j) - gradient_at(&q, i, vocab.first + j)) < 2e-7f,
                       "row %lld, class %lld", (long long)i, (long long)(vocab.first + j));
        }
        failed += padding_expect(world, &r, &vocab);
    }
    bench_close(&w);
    bench_close(&lone);
    clv_comm_world_close(self);
    return failed;
}

/* The second: rows of 1.6 MB, which one rank takes in groups. */
static int equals_one_rank(clv_comm *world)
{
    return equals_one_rank_with(world, 10) + equals_one_rank_with(world, 400000);
}

static int three_all_reduces(clv_comm *world)
{
    int failed = 0;
    bench w;
    bench_open(&w, world);
    const clv_vocab vocab = vocab_make(&w, 10, DIVISOR);
    for (int smooth = 0; smooth < 2; smooth++) {
        clv_mesh_traffic_reset(w.mesh);
        loss_run(&w, &vocab, zero_logit, (const int32_t[ROWS]){0}, smooth ? 0.1f : 0);
        const clv_traffic t = clv_comm_traffic(clv_mesh_comm(w.mesh, CLV_TP), CLV_ALL_REDUCE);
        EXPECT(t.calls == (w.tp > 1 ? 3 : 0) && t.bytes == (w.tp > 1 ? (3 + smooth) * ROWS * 4 : 0),
               "%lld calls, %lld bytes", (long long)t.calls, (long long)t.bytes);
    }
    bench_close(&w);
    return failed;
}

/* ---- the embedding ----------------------------------------------------------------------------------------------- */

/* s = 4, b = 2: every id lives on one rank, and every rank ends with its rows, to the bit. */
static int embedding(clv_comm *world)
{
    int failed = 0;
    bench w;
    bench_open(&w, world);
    const clv_vocab vocab = vocab_make(&w, 10, 1);
    const int32_t id[8] = {0, 9, 5, 5, 2, 9, 7, 9}, uses[10] = {1, 0, 1, 0, 0, 2, 0, 1, 0, 3};
    clv_tensor ids = clv_new_as(&w.temp, CLV_I32, 4, 2);
    clv_from_host(&w.cx, ids, id);
    for (int edge = CLV_R; edge <= CLV_S0; edge++) {
        const int64_t s = edge == CLV_S0 ? 4 / w.tp : 4, first = edge == CLV_S0 ? s * clv_comm_rank(world) : 0;
        clv_tensor y = clv_new(&w.temp, (clv_place)edge, s, 2, H);
        clv_vocab_embed_forward(&w.cx, y, ids, &vocab);
        for (int64_t i = 0; i < clv_numel(y); i++)
            EXPECT(((float *)y.data)[i] == (float)(id[first * 2 + i / H] + 1), "%s: element %lld is %.9g",
                   clv_place_name((clv_place)edge), (long long)i, (double)((float *)y.data)[i]);
        for (int64_t i = 0; i < clv_numel(y); i++)
            ((float *)y.data)[i] = 1.0f;
        clv_zero(&w.cx, vocab.l.dw);
        clv_vocab_embed_backward(&w.cx, y, ids, &vocab);
        for (int64_t i = 0; i < vocab.real * H; i++)
            EXPECT(((float *)vocab.l.dw.data)[i] == (float)uses[vocab.first + i / H], "gradient of row %lld: %.9g",
                   (long long)(vocab.first + i / H), (double)((float *)vocab.l.dw.data)[i]);
        for (int64_t i = vocab.real * H; i < clv_numel(vocab.l.dw); i++)
            EXPECT(((float *)vocab.l.dw.data)[i] == 0.0f, "gradient of padding: %.9g",
                   (double)((float *)vocab.l.dw.data)[i]);
    }
    bench_close(&w);
    return failed;
}

int main(int argc, char **argv)
{
    return mpi_test_run(&argc, &argv,
                        (mpi_case[]){{"padding ignored", padding_ignored},
                                     {"gradient on every shard", gradient_everywhere},
                                     {"huge logits", huge_logits},
                                     {"equals one rank", equals_one_rank},
                                     {"three all-reduces", three_all_reduces},
                                     {"embedding", embedding},
                                     {0}});
}
