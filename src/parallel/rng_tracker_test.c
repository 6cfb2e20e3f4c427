/* rng_tracker_test.c - the named streams: their seeds, fork and join, and which masks are equal and which are not.
 *
 * A mask is a pure function, so worlds without peers are enough: rank r of t needs nobody to draw what it would draw.
 */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "op/backend.h"
#include "parallel/parallel.h"

enum { T = 4, S = 32, H = 32 }; /* 1,024 elements a sample */

typedef struct place { /* where a mask is drawn */
    int tp, rank;
    clv_stream stream;
    int64_t iteration, sample, layer;
    clv_site site;
    double p;
} place;

static const place here = {.tp = T, .stream = CLV_RNG_DATA, .iteration = 3, .sample = 17, .layer = 1, .p = 0.5};

static clv_mesh *mesh_of(int rank, int tp, clv_comm **world)
{
    clv_mesh *mesh = NULL;
    *world = clv_comm_fake_open(rank, tp);
    assert_int_equal(clv_mesh_create(&mesh, *world, &(clv_layout){.tp = tp}).code, CLV_OK);
    return mesh;
}

/* Dropout of ones, rows first .. first + rows - 1 of the sequence. */
static void mask_draw(float *out, place at, int64_t first, int64_t rows)
{
    clv_comm *world;
    clv_mesh *mesh = mesh_of(at.rank, at.tp, &world);
    clv_rng rng;
    clv_rng_init(&rng, 1234, mesh);
    rng.iteration = at.iteration;
    rng.sample = (clv_tensor){.data = &at.sample, .dim = {1}, .ndim = 1, .dtype = CLV_I64};
    clv_rng_fork(&rng, at.stream);
    const clv_dropout drop = clv_rng_dropout(&rng, at.p, at.layer, at.site, first);
    clv_rng_join(&rng);
    const clv_tensor x = {.data = out, .dim = {rows, 1, H}, .ndim = 3, .dtype = CLV_F32, .place = CLV_R};
    clv_ctx cx = {.be = clv_backend_ref(), .mesh = mesh};
    for (int64_t i = 0; i < rows * H; i++)
        out[i] = 1.0f;
    clv_dropout_apply(&cx, x, x, &drop);
    clv_mesh_destroy(mesh);
    clv_comm_world_close(world);
}

static double share_that_differs(place a, place b)
{
    float x[S * H], y[S * H];
    mask_draw(x, a, 0, S);
    mask_draw(y, b, 0, S);
    int n = 0;
    for (int i = 0; i < S * H; i++)
        n += x[i] != y[i];
    return (double)n / (S * H);
}

static void test_names_and_seeds(void **state)
{
    (void)state;
    assert_string_equal(clv_stream_name(CLV_RNG_DATA), "data-parallel");
    assert_string_equal(clv_stream_name(CLV_RNG_MODEL), "model-parallel");
    assert_string_equal(clv_stream_name(CLV_RNG_EXPERT), "expert-parallel");
    for (int r = 0; r < T; r++) {
        clv_comm *world;
        clv_mesh *mesh = mesh_of(r, T, &world);
        clv_rng rng;
        clv_rng_init(&rng, 1234, mesh);
        assert_int_equal(rng.seed[CLV_RNG_DATA], 1234);
        assert_int_equal(rng.seed[CLV_RNG_MODEL], 1234 + 2718 + r);
        assert_int_equal(rng.seed[CLV_RNG_EXPERT], 1234 + 1024 + r);
        clv_mesh_destroy(mesh);
        clv_comm_world_close(world);
    }
}

static uint64_t key_now(const clv_rng *rng)
{
    return clv_rng_dropout(rng, 0.5, 0, CLV_SITE_MLP, 0).key;
}

static void test_nesting(void **state)
{
    (void)state;
    clv_rng rng = {.seed = {1, 2, 3}};
    const uint64_t outside = key_now(&rng);
    clv_rng_fork(&rng, CLV_RNG_MODEL);
    const uint64_t inside = key_now(&rng);
    clv_rng_fork(&rng, CLV_RNG_EXPERT);
    const uint64_t deepest = key_now(&rng);
    clv_rng_fork(&rng, CLV_RNG_DATA);
    assert_int_equal(key_now(&rng), outside);
    clv_rng_join(&rng);
    assert_int_equal(key_now(&rng), deepest);
    clv_rng_join(&rng);
    assert_int_equal(key_now(&rng), inside);
    clv_rng_join(&rng);
    assert_int_equal(key_now(&rng), outside);
    assert_true(outside != inside && inside != deepest && outside != deepest);
}

/* Does `broken` end its process by a panic? In a child, which leaves no core and says nothing. */
static bool panics(void (*broken)(void))
{
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        signal(SIGABRT, SIG_DFL);
        if (freopen("/dev/null", "w", stderr) != NULL)
            broken();
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void join_unforked(void)
{
    clv_rng rng = {.depth = 0};
    clv_rng_join(&rng);
}

static void fork_too_deep(void)
{
    clv_rng rng = {.depth = 0};
    for (int i = 0; i < CLV_RNG_DEPTH; i++)
        clv_rng_fork(&rng, CLV_RNG_MODEL);
}

static void join_matched(void)
{
    clv_rng rng = {.depth = 0};
    clv_rng_fork(&rng, CLV_RNG_MODEL);
    clv_rng_join(&rng);
}

static void test_misuse_panics(void **state)
{
    (void)state;
    assert_true(panics(join_unforked));
    assert_true(panics(fork_too_deep));
    assert_false(panics(join_matched));
}

static void test_evaluation_draws_nothing(void **state)
{
    (void)state;
    clv_rng_fork(NULL, CLV_RNG_MODEL);
    assert_true(clv_rng_dropout(NULL, 0.5, 0, CLV_SITE_MLP, 0).p == 0.0f);
    clv_rng_join(NULL);
}

static void test_equal_outside_the_region(void **state)
{
    (void)state;
    for (int r = 1; r < T; r++) {
        place other = here;
        other.rank = r;
        assert_true(share_that_differs(here, other) == 0.0);
    }
    place alone = here;
    alone.tp = 1;
    assert_true(share_that_differs(here, alone) == 0.0);
}

/* Shards number their rows in the whole sequence: laid end to end they are the mask of one rank. */
static void test_sequence_shards(void **state)
{
    (void)state;
    float whole[S * H], part[S / T * H];
    mask_draw(whole, here, 0, S);
    for (int r = 0; r < T; r++) {
        place at = here;
        at.rank = r;
        mask_draw(part, at, r * S / T, S / T);
        assert_memory_equal(part, whole + r * S / T * H, sizeof part);
    }
}

static void test_different_inside_the_region(void **state)
{
    (void)state;
    for (int a = 0; a < T; a++)
        for (int b = a + 1; b < T; b++) {
            place x = here, y = here;
            x.stream = y.stream = CLV_RNG_MODEL;
            x.rank = a;
            y.rank = b;
            assert_true(share_that_differs(x, y) >= 0.4);
        }
}

static void test_different_elsewhere(void **state)
{
    (void)state;
    place other[5] = {here, here, here, here, here};
    other[0].sample++; /* another sample is another micro-batch, and another data-parallel rank */
    other[1].layer++;
    other[2].site = CLV_SITE_MLP;
    other[3].iteration++;
    other[4].stream = CLV_RNG_MODEL;
    for (size_t i = 0; i < CLV_COUNT(other); i++)
        assert_true(share_that_differs(here, other[i]) >= 0.4);
    assert_true(share_that_differs(here, here) == 0.0);
}

static void test_values(void **state)
{
    (void)state;
    const double ps[] = {0.5, 0.1, 0.25};
    for (size_t k = 0; k < CLV_COUNT(ps); k++) {
        place at = here;
        at.p = ps[k];
        float x[S * H];
        mask_draw(x, at, 0, S);
        int kept = 0;
        for (int i = 0; i < S * H; i++) {
            assert_true(x[i] == 0.0f || x[i] == 1.0f / (1.0f - (float)ps[k]));
            kept += x[i] != 0.0f;
        }
        assert_true(fabs((double)kept / (S * H) - (1.0 - ps[k])) < 0.05);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_names_and_seeds),
                                       cmocka_unit_test(test_nesting),
                                       cmocka_unit_test(test_misuse_panics),
                                       cmocka_unit_test(test_evaluation_draws_nothing),
                                       cmocka_unit_test(test_equal_outside_the_region),
                                       cmocka_unit_test(test_sequence_shards),
                                       cmocka_unit_test(test_different_inside_the_region),
                                       cmocka_unit_test(test_different_elsewhere),
                                       cmocka_unit_test(test_values)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
