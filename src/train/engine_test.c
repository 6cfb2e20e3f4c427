/* nsize: 1 2 */
/* engine_test.c - a step: dropout only in training, tokens that do not count, documents that do not see each other, and
 * micro-batches that add up.
 */
#include "comm/mpi_test.h"
#include "train/train.h"

#include <math.h>
#include <string.h>

enum { S = 12, N = 4, VOCAB = 41, CUT = 5 }; /* N samples; two documents, the second from CUT on */

typedef struct run {
    clv_config config;
    clv_mesh *mesh;
    clv_engine engine;
} run;

typedef struct run_spec {
    double dropout;
    bool documents, sequence_parallel, micro_means, data_parallel;
    int64_t micro_batch;
} run_spec;

static void run_open(run *r, clv_comm *world, run_spec asked)
{
    r->config = clv_config_default();
    clv_config *c = &r->config;
    c->vocab = VOCAB;
    c->hidden = 32;
    c->layers = 2;
    c->heads = c->kv_heads = 4;
    c->head_dim = 8;
    c->ffn = 48;
    c->max_positions = S;
    c->init_std = 0.2;
    c->hidden_dropout = c->attention_dropout = asked.dropout;
    const clv_engine_spec spec = {.config = c,
                                  .sequence_parallel = asked.sequence_parallel,
                                  .vocab_divisor = 1,
                                  .micro_batch = asked.micro_batch,
                                  .seq_length = S,
                                  .per_token_loss = !asked.micro_means,
                                  .training = true,
                                  .documents = asked.documents,
                                  .backend = "cpu",
                                  .seed = 3,
                                  .beta1 = 0.9,
                                  .beta2 = 0.95,
                                  .eps = 1e-8,
                                  .clip_grad = 1.0};
    const int ranks = clv_comm_size(world);
    const clv_layout layout = {.tp = asked.data_parallel ? 1 : ranks, .dp = asked.data_parallel ? ranks : 1};
    clv_status st = clv_mesh_create(&r->mesh, world, &layout);
    CLV_CHECK(st.code == CLV_OK, "%s", st.text);
    st = clv_engine_create(&r->engine, r->mesh, &spec);
    CLV_CHECK(st.code == CLV_OK, "%s", st.text);
    clv_engine_init(&r->engine, 5);
}

static void run_close(run *r)
{
    clv_engine_destroy(&r->engine);
    clv_mesh_destroy(r->mesh);
}

typedef struct data {
    int32_t tokens[N * (S + 1)], document[N * S], position[N * S];
    float mask[N * S];
    int64_t index[N];
} data;

static clv_samples data_make(data *d)
{
    for (int i = 0; i < N * (S + 1); i++)
        d->tokens[i] = (int32_t)(clv_uniform_at(8, (uint64_t)i) * VOCAB);
    for (int i = 0; i < N * S; i++) {
        d->document[i] = i % S < CUT ? 0 : CUT;
        d->position[i] = i % S - d->document[i];
        d->mask[i] = 1.0f;
    }
    for (int i = 0; i < N; i++)
        d->index[i] = i;
    return (clv_samples){N, d->tokens, d->mask, d->position, d->document, d->index};
}

static double evaluate(run *r, const clv_samples *samples)
{
    double nll = 0;
    int64_t counted = 0;
    clv_engine_evaluate(&r->engine, samples, &nll, &counted);
    return nll / (double)CLV_MAX(counted, 1);
}

/* The loss of an evaluation does not know how much is dropped in training. */
static int evaluation_without_dropout(clv_comm *world)
{
    int failed = 0;
    const double dropout[] = {0.0, 0.1, 0.5};
    double loss[3], trained[3];
    data d;
    const clv_samples samples = data_make(&d);
    for (int i = 0; i < 3; i++) {
        run r;
        run_open(&r, world, (run_spec){.dropout = dropout[i], .micro_batch = 2});
        loss[i] = evaluate(&r, &samples);
        trained[i] = clv_engine_gradients(&r.engine, &samples, 1).loss;
        run_close(&r);
    }
    EXPECT(loss[0] == loss[1] && loss[0] == loss[2], "%.9g, %.9g, %.9g", loss[0], loss[1], loss[2]);
    EXPECT(trained[0] != trained[1] && trained[1] != trained[2], "%.9g, %.9g, %.9g", trained[0], trained[1],
           trained[2]);
    EXPECT(fabs(trained[0] - loss[0]) < 1e-6 * loss[0], "without dropout %.9g, evaluated %.9g", trained[0], loss[0]);
    return failed;
}

/* An evaluation between two steps leaves the next step's loss and the weights as they would have been. */
static int evaluation_between(clv_comm *world)
{
    int failed = 0;
    data d;
    const clv_samples samples = data_make(&d);
    run r[2];
    double loss[2] = {0};
    for (int k = 0; k < 2; k++) {
        run_open(&r[k], world, (run_spec){.dropout = 0.2, .micro_batch = 2, .sequence_parallel = true});
        for (int64_t i = 1; i <= 3; i++) {
            const clv_step step = clv_engine_gradients(&r[k].engine, &samples, i);
            clv_engine_update(&r[k].engine, &step, 1e-2);
            loss[k] = step.loss;
            if (k == 1)
                evaluate(&r[k], &samples);
        }
    }
    EXPECT(loss[0] == loss[1], "third loss %.9g, with evaluations %.9g", loss[0], loss[1]);
    EXPECT(memcmp(r[0].engine.weights.base, r[1].engine.weights.base,
                  r[0].engine.planned.weights - 2 * CLV_ARENA_ALIGN) == 0,
           "weights differ"); /* the last two are the sums of the losses */
    run_close(&r[0]);
    run_close(&r[1]);
    return failed;
}

/* A sample without targets adds nothing: the loss is that of the others. A step without targets is 0, not NaN. */
static int masked_samples(clv_comm *world)
{
    int failed = 0;
    data d;
    for (int means = 0; means < 2; means++) {
        run r;
        run_open(&r, world, (run_spec){.micro_batch = 1, .micro_means = means});
        clv_samples samples = data_make(&d);
        for (int i = 0; i < S; i++)
            d.mask[i] = 0.0f;
        samples.count = 2;
        const clv_step step = clv_engine_gradients(&r.engine, &samples, 1);
        const clv_samples second = {1, d.tokens + S + 1, NULL, d.position + S, d.document + S, d.index + 1};
        const clv_step alone = clv_engine_gradients(&r.engine, &second, 1);
        const double share = means ? 0.5 : 1.0; /* a mean of micro-batch means counts the empty one as 0 */
        EXPECT(step.finite && step.counted == S && fabs(step.loss - share * alone.loss) < 1e-6 * alone.loss,
               "loss %.9g of %lld tokens, alone %.9g", step.loss, (long long)step.counted, alone.loss);
        memset(d.mask, 0, sizeof d.mask);
        const clv_step none = clv_engine_gradients(&r.engine, &samples, 1);
        EXPECT(none.finite && none.counted == 0 && none.loss == 0.0 && none.grad_norm == 0.0,
               "no targets: loss %g, norm %g, %lld tokens", none.loss, none.grad_norm, (long long)none.counted);
        run_close(&r);
    }
    return failed;
}

/* Only the second document's tokens count; the first document's then change. */
static double second_document(run *r, int32_t shift)
{
    data d;
    const clv_samples samples = data_make(&d);
    for (int i = 0; i < N * S; i++)
        d.mask[i] = i % S < CUT ? 0.0f : 1.0f;
    for (int i = 0; i < N * (S + 1); i++)
        if (i % (S + 1) < CUT)
            d.tokens[i] = (d.tokens[i] + shift) % VOCAB;
    return evaluate(r, &samples);
}

static int documents_apart(clv_comm *world)
{
    int failed = 0;
    for (int variant = 0; variant < 4; variant++) {
        const bool documents = variant & 1;
        run r;
        run_open(&r, world, (run_spec){.documents = documents, .sequence_parallel = variant & 2, .micro_batch = 2});
        const double a = second_document(&r, 0), b = second_document(&r, 7);
        EXPECT((a == b) == documents, "documents %d: loss %.9g, with another document before it %.9g", documents, a, b);
        run_close(&r);
    }
    return failed;
}

/* One micro-batch of four samples, two of two, four of one: the same step. */
static int micro_batches_add_up(clv_comm *world)
{
    int failed = 0;
    clv_step step[3];
    data d;
    const clv_samples samples = data_make(&d);
    for (int i = 0; i < N * S; i++)
        d.mask[i] = clv_uniform_at(2, (uint64_t)i) < 0.7f ? 1.0f : 0.0f;
    for (int i = 0; i < 3; i++) {
        run r;
        run_open(&r, world, (run_spec){.micro_batch = 1 << i, .dropout = 0.0});
        step[i] = clv_engine_gradients(&r.engine, &samples, 1);
        run_close(&r);
    }
    for (int i = 1; i < 3; i++)
        EXPECT(fabs(step[i].loss - step[0].loss) < 1e-6 * step[0].loss &&
                   fabs(step[i].grad_norm - step[0].grad_norm) < 1e-5 * step[0].grad_norm,
               "micro-batches of %d: loss %.9g and norm %.9g, of 1: %.9g and %.9g", 1 << i, step[i].loss,
               step[i].grad_norm, step[0].loss, step[0].grad_norm);
    return failed;
}

/* Four micro-batches of one sample, of which 4, 8, ... tokens count: by tokens the loss weighs each by its number, by
 * means (Megatron's default) all alike, however they are shared out over dp. */
static int means_of_means(clv_comm *world)
{
    enum { MICROS = 4 };
    int failed = 0;
    double alone[MICROS], expected[2] = {0};
    data d;
    run one;
    clv_comm *self = clv_comm_self_open();
    const clv_samples all = data_make(&d);
    for (int i = 0; i < MICROS * S; i++)
        d.mask[i] = i % S < S * (i / S + 1) / (MICROS + 1) ? 1.0f : 0.0f;
    run_open(&one, self, (run_spec){.micro_batch = 1});
    int64_t counted = 0;
    for (int i = 0; i < MICROS; i++) {
        const clv_samples sample = {1, d.tokens + i * (S + 1), d.mask + i * S, NULL, NULL, d.index + i};
        const clv_step step = clv_engine_gradients(&one.engine, &sample, 1);
        alone[i] = step.loss;
        expected[0] += step.loss * (double)step.counted;
        expected[1] += step.loss / MICROS;
        counted += step.counted;
    }
    expected[0] /= (double)counted;
    run_close(&one);
    EXPECT(fabs(expected[0] - expected[1]) > 1e-4, "the two means are too near, %.9g", expected[0]);
    for (int means = 0; means < 2; means++) {
        const int each = MICROS / clv_comm_size(world), first = each * clv_comm_rank(world);
        run whole, parts;
        run_open(&whole, self, (run_spec){.micro_batch = 1, .micro_means = means});
        run_open(&parts, world, (run_spec){.micro_batch = 1, .micro_means = means, .data_parallel = true});
        const clv_samples here = {each, d.tokens + first * (S + 1), d.mask + first * S, NULL, NULL, d.index + first};
        clv_samples four = all;
        four.count = MICROS;
        four.position = four.document = NULL;
        const clv_step a = clv_engine_gradients(&whole.engine, &four, 1);
        const clv_step b = clv_engine_gradients(&parts.engine, &here, 1);
        EXPECT(fabs(a.loss - expected[means]) < 1e-6 * a.loss && fabs(b.loss - expected[means]) < 1e-6 * b.loss,
               "%s: %.9g, over dp %.9g, should be %.9g (first alone %.9g)", means ? "means" : "tokens", a.loss, b.loss,
               expected[means], alone[0]);
        EXPECT(fabs(a.grad_norm - b.grad_norm) < 1e-5 * a.grad_norm, "norms %.9g, over dp %.9g", a.grad_norm,
               b.grad_norm);
        run_close(&whole);
        run_close(&parts);
    }
    clv_comm_world_close(self);
    return failed;
}

/* FLOP of a token by hand: 6 x 65,536 weights that multiply, and 6 x 2 x 32 x 64 of causal attention. */
static int flops_of_a_token(clv_comm *world)
{
    int failed = 0;
    clv_config c = clv_config_default();
    c.layers = 2;
    c.hidden = 64;
    c.heads = 8;
    c.kv_heads = 2;
    c.head_dim = 8;
    c.ffn = 96;
    c.vocab = 128;
    c.act = CLV_SWIGLU;
    EXPECT(clv_model_flops(&c, 32) == 417792.0, "%.1f FLOP a token", clv_model_flops(&c, 32));
    c.act = CLV_RELU; /* two matrices instead of three */
    EXPECT(clv_model_flops(&c, 32) == 417792.0 - 6.0 * 2 * 64 * 96, "%.1f FLOP a token", clv_model_flops(&c, 32));
    return failed;
}

int main(int argc, char **argv)
{
    return mpi_test_run(&argc, &argv,
                        (mpi_case[]){{"evaluation without dropout", evaluation_without_dropout},
                                     {"evaluation between steps", evaluation_between},
                                     {"masked samples", masked_samples},
                                     {"documents apart", documents_apart},
                                     {"micro-batches add up", micro_batches_add_up},
                                     {"means of means", means_of_means},
                                     {"FLOP of a token", flops_of_a_token},
                                     {0}});
}
