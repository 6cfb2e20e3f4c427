/* mesh_test.c - coordinates and groups of 16 ranks without their peers: every rank is asked in turn. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "comm/comm_internal.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS = 16 };

typedef struct place { /* what a rank knows of one group */
    int rank, size;
    char name[32];
} place;

static place place_of(int rank, clv_layout layout, unsigned axes)
{
    clv_comm *world = clv_comm_fake_open(rank, RANKS);
    clv_mesh *mesh;
    const clv_status st = clv_mesh_create(&mesh, world, &layout);
    assert_string_equal(st.text, "");
    const clv_comm *group = clv_mesh_comm(mesh, axes);
    place p = {.rank = clv_comm_rank(group), .size = clv_comm_size(group)};
    assert_int_equal(p.rank, clv_mesh_coord(mesh, axes));
    assert_int_equal(p.size, clv_mesh_size(mesh, axes));
    strcpy(p.name, clv_comm_name(group));
    clv_mesh_destroy(mesh);
    clv_comm_world_close(world);
    return p;
}

/* tp 2, cp 2, dp 2, pp 2: the four bits of the rank. */
static void coordinates_are_the_digits_of_the_rank(void **state)
{
    (void)state;
    const clv_layout all = {.tp = 2, .cp = 2, .dp = 2, .pp = 2};
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(place_of(r, all, CLV_TP).rank, r & 1);
        assert_int_equal(place_of(r, all, CLV_CP).rank, r >> 1 & 1);
        assert_int_equal(place_of(r, all, CLV_DP).rank, r >> 2 & 1);
        assert_int_equal(place_of(r, all, CLV_PP).rank, r >> 3);
        assert_int_equal(place_of(r, all, CLV_DP | CLV_CP).rank, r >> 1 & 3);
        assert_int_equal(place_of(r, all, CLV_TP | CLV_PP).rank, (r & 1) + 2 * (r >> 3));
        assert_int_equal(place_of(r, all, CLV_WORLD).rank, r);
    }
}

/* The example of Megatron's documentation: 16 ranks, tp 2, pp 4. */
static void groups_of_tp2_dp2_pp4(void **state)
{
    (void)state;
    const clv_layout layout = {.tp = 2, .dp = 2, .pp = 4};
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(place_of(r, layout, CLV_TP).rank, r % 2);
        assert_int_equal(place_of(r, layout, CLV_DP).rank, r / 2 % 2);
        assert_int_equal(place_of(r, layout, CLV_PP).rank, r / 4);
        assert_int_equal(place_of(r, layout, CLV_PP).size, 4);
        assert_int_equal(place_of(r, layout, CLV_CP).size, 1);
    }
}

/* t = 8, g = 2: the KV head of a tp rank is tp / (t/g); the four ranks that share it are neighbours. */
static void kv_heads_cut_tp(void **state)
{
    (void)state;
    const clv_layout layout = {.tp = 8, .dp = 2, .kv_heads = 2};
    for (int r = 0; r < RANKS; r++) {
        const place kv = place_of(r, layout, CLV_TPK), same = place_of(r, layout, CLV_TPR);
        const place tp = place_of(r, layout, CLV_TP);
        assert_int_equal(kv.size, 2);
        assert_int_equal(kv.rank, r % 8 / 4);
        assert_int_equal(same.size, 4);
        assert_int_equal(same.rank, r % 4);
        assert_int_equal(tp.size, 8);
        assert_int_equal(tp.rank, r % 8);
    }
    assert_int_equal(place_of(3, (clv_layout){.tp = 8, .dp = 2, .kv_heads = 32}, CLV_TPK).size, 8);
    assert_int_equal(place_of(3, (clv_layout){.tp = 8, .dp = 2}, CLV_TPR).size, 1);
}

static void names(void **state)
{
    (void)state;
    const clv_layout split = {.tp = 4, .cp = 2, .dp = 2, .kv_heads = 2}, one = {.tp = 16},
                     mqa = {.tp = 16, .kv_heads = 1};
    const struct {
        clv_layout layout;
        unsigned axes;
        const char *name;
    } rows[] = {{split, CLV_TP, "tp"},
                {split, CLV_TPK, "tpk"},
                {split, CLV_TPR, "tpr"},
                {split, CLV_DP | CLV_CP, "dp+cp"},
                {split, CLV_TP | CLV_DP, "tp+dp"},
                {split, CLV_TPR | CLV_DP, "tpr+dp"},
                {split, CLV_DP | CLV_PP, "dp"},
                {split, CLV_PP, "self"},
                {split, CLV_WORLD, "world"},
                {one, CLV_WORLD, "tp"},
                {one, CLV_TPK, "tp"},
                {mqa, CLV_TPR, "tp"}};
    for (size_t i = 0; i < CLV_COUNT(rows); i++)
        assert_string_equal(place_of(5, rows[i].layout, rows[i].axes).name, rows[i].name);
}

static void equal_groups_are_one(void **state)
{
    (void)state;
    clv_comm *world = clv_comm_fake_open(7, RANKS);
    clv_mesh *mesh;
    assert_int_equal(clv_mesh_create(&mesh, world, &(clv_layout){.tp = 4, .dp = 4}).code, CLV_OK);
    assert_ptr_equal(clv_mesh_comm(mesh, CLV_TP), clv_mesh_comm(mesh, CLV_TPK | CLV_PP));
    assert_ptr_equal(clv_mesh_comm(mesh, CLV_DP), clv_mesh_comm(mesh, CLV_DP | CLV_CP | CLV_TPR));
    assert_ptr_equal(clv_mesh_comm(mesh, CLV_WORLD), world);
    assert_ptr_equal(clv_mesh_comm(mesh, CLV_TP | CLV_DP), world);
    assert_ptr_equal(clv_mesh_world(mesh), world);
    clv_mesh_destroy(mesh);
    clv_comm_world_close(world);
}

static void wrong_sizes_are_refused(void **state)
{
    (void)state;
    const struct {
        int ranks;
        clv_layout layout;
        const char *says;
    } rows[] = {{6, {.tp = 2, .dp = 2, .pp = 2}, "TP 2 x DP 2 x PP 2 needs 8 ranks, there are 6"},
                {1, {.tp = 2}, "TP 2 needs 2 ranks, there is 1"},
                {2, {0}, "TP 1 needs 1 rank, there are 2"},
                {2, {.tp = -2}, "TP -2"},
                {4, {.tp = 4, .kv_heads = 6}, "6 KV heads do not fit TP 4"},
                {4, {.tp = 1 << 30, .cp = 1 << 30, .dp = 1 << 30, .pp = 4}, "there are 4"}};
    for (size_t i = 0; i < CLV_COUNT(rows); i++) {
        clv_comm *world = clv_comm_fake_open(0, rows[i].ranks);
        clv_mesh *mesh = NULL;
        const clv_status st = clv_mesh_create(&mesh, world, &rows[i].layout);
        assert_int_equal(st.code, CLV_BAD_INPUT);
        assert_null(mesh);
        if (strstr(st.text, rows[i].says) == NULL)
            fail_msg("\"%s\" does not say \"%s\"", st.text, rows[i].says);
        clv_comm_world_close(world);
    }
}

/* A planning run has no memory: all pointers are NULL, or offsets from it. */
static void fake_counts_and_touches_nothing(void **state)
{
    (void)state;
    clv_comm *world = clv_comm_fake_open(3, RANKS);
    clv_mesh *mesh;
    assert_int_equal(clv_mesh_create(&mesh, world, &(clv_layout){.tp = 4, .dp = 4}).code, CLV_OK);
    clv_comm *tp = clv_mesh_comm(mesh, CLV_TP), *dp = clv_mesh_comm(mesh, CLV_DP), *pp = clv_mesh_comm(mesh, CLV_PP);
    void *const offset = (void *)(uintptr_t)64;
    for (int i = 0; i < 24; i++)
        clv_all_reduce(tp, NULL, offset, 16384, CLV_F32, CLV_SUM);
    clv_pending p = clv_reduce_scatter_begin(dp, NULL, offset, 1000, CLV_F32);
    clv_comm_progress(world);
    clv_pending_end(&p);
    clv_all_gather(dp, offset, NULL, 1000, CLV_F32);
    clv_all_reduce(pp, NULL, offset, 1000, CLV_F32, CLV_SUM);
    clv_send(dp, NULL, 100, 1, 0);
    clv_barrier(world);
    assert_int_equal(clv_comm_traffic(tp, CLV_ALL_REDUCE).calls, 24);
    assert_int_equal(clv_comm_traffic(tp, CLV_ALL_REDUCE).bytes, 24 * 65536);
    assert_int_equal(clv_comm_traffic(dp, CLV_REDUCE_SCATTER).bytes, 16000);
    assert_int_equal(clv_comm_traffic(dp, CLV_ALL_GATHER).bytes, 16000);
    assert_int_equal(clv_comm_traffic(pp, CLV_ALL_REDUCE).calls, 0);

    clv_text text = {0};
    clv_mesh_traffic_print(mesh, &text);
    assert_string_equal(text.data, "tp     all-reduce          24 calls       1.50 MiB\n"
                                   "dp     reduce-scatter       1 calls       0.02 MiB\n"
                                   "dp     all-gather           1 calls       0.02 MiB\n"
                                   "dp     send                 1 calls       0.00 MiB\n");
    clv_mesh_traffic_reset(mesh);
    assert_int_equal(clv_comm_traffic(tp, CLV_ALL_REDUCE).calls, 0);
    clv_text_free(&text);

    const clv_status mine = clv_comm_agree(world, clv_fail(CLV_BAD_INPUT, "mine"));
    assert_string_equal(mine.text, "mine");
    assert_true(clv_comm_decide(world, 0.5) == 0.5);
    clv_mesh_destroy(mesh);
    clv_comm_world_close(world);
}

static void one_process_copies(void **state)
{
    (void)state;
    clv_comm *world = clv_comm_self_open();
    clv_mesh *mesh;
    assert_int_equal(clv_mesh_create(&mesh, world, &(clv_layout){.kv_heads = 2}).code, CLV_OK);
    clv_comm *tp = clv_mesh_comm(mesh, CLV_TP);
    const float in[] = {1, 2, 3};
    float out[4][3] = {{0}};
    const size_t counts[] = {3};
    clv_all_reduce(tp, out[0], in, 3, CLV_F32, CLV_SUM);
    clv_reduce_scatter(tp, out[1], in, 3, CLV_F32);
    clv_all_gather(tp, out[2], in, 3, CLV_F32);
    clv_all_to_all_v(tp, out[3], counts, in, counts, CLV_F32);
    for (int i = 0; i < 4; i++)
        assert_memory_equal(out[i], in, sizeof in);
    assert_int_equal(clv_comm_traffic(tp, CLV_ALL_REDUCE).calls, 0);
    clv_mesh_destroy(mesh);
    clv_comm_world_close(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(coordinates_are_the_digits_of_the_rank),
        cmocka_unit_test(groups_of_tp2_dp2_pp4),
        cmocka_unit_test(kv_heads_cut_tp),
        cmocka_unit_test(names),
        cmocka_unit_test(equal_groups_are_one),
        cmocka_unit_test(wrong_sizes_are_refused),
        cmocka_unit_test(fake_counts_and_touches_nothing),
        cmocka_unit_test(one_process_copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
