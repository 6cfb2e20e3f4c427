/* schedule_test.c - all stages played in one process: every action once, no deadlock even when a send waits for its
 * receiver, a backward after its forward, live micro-batches bounded, ticks as the formula says. */
#include "train.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

enum { P = 8, V = 4, M = 32 };

typedef struct play {
    clv_pipeline p;
    clv_schedule stage[P];
    int at[P], free_at[P]; /* next action; when the stage is idle again */
    int done[2][P * V][M]; /* when part x finished micro-batch m (forward, backward); 0: not yet */
} play;

/* When may this action start? -1: what it waits for is not done. Forward takes 1 tick, backward 2. */
static int ready_at(const play *g, int stage, clv_action a)
{
    const int part = a.chunk * g->p.stages + stage, last = g->p.stages * g->p.chunks - 1;
    if (a.kind == CLV_FORWARD)
        return part == 0 ? 0 : (g->done[0][part - 1][a.micro] > 0 ? g->done[0][part - 1][a.micro] : -1);
    const int own = g->done[0][part][a.micro], next = part == last ? own : g->done[1][part + 1][a.micro];
    return own > 0 && next > 0 ? (own > next ? own : next) : -1;
}

static bool step(play *g, int stage)
{
    if (g->at[stage] == g->stage[stage].count)
        return false;
    const clv_action a = g->stage[stage].action[g->at[stage]];
    const int ready = ready_at(g, stage, a), part = a.chunk * g->p.stages + stage;
    if (ready < 0)
        return false;
    const int start = ready > g->free_at[stage] ? ready : g->free_at[stage];
    g->free_at[stage] = start + (a.kind == CLV_FORWARD ? 1 : 2);
    assert_int_equal(g->done[a.kind][part][a.micro], 0); /* once */
    g->done[a.kind][part][a.micro] = g->free_at[stage];
    g->at[stage]++;
    return true;
}

static int play_all(play *g)
{
    bool moved = true;
    while (moved) {
        moved = false;
        for (int i = 0; i < g->p.stages; i++)
            while (step(g, i))
                moved = true;
    }
    int ticks = 0;
    for (int i = 0; i < g->p.stages; i++) {
        assert_int_equal(g->at[i], g->stage[i].count); /* no deadlock */
        assert_int_equal(g->stage[i].count, 2 * g->p.chunks * g->p.micros);
        ticks = g->free_at[i] > ticks ? g->free_at[i] : ticks;
    }
    return ticks;
}

static int play_one(clv_pipeline p)
{
    static play g;
    memset(&g, 0, sizeof g);
    g.p = p;
    for (int i = 0; i < p.stages; i++) {
        g.p.stage = i;
        g.stage[i] = clv_schedule_create(&g.p);
        for (int c = 0; c < p.chunks && p.kind == CLV_1F1B && p.chunks == 1; c++)
            assert_int_equal(clv_schedule_in_flight(&g.stage[i], c), CLV_MIN(p.micros, p.stages - i));
    }
    const int ticks = play_all(&g);
    for (int i = 0; i < p.stages; i++)
        clv_schedule_destroy(&g.stage[i]);
    return ticks;
}

static void test_every_pipeline(void **state)
{
    (void)state;
    int played = 0;
    for (int p = 1; p <= P; p++)
        for (int v = 1; v <= V; v++)
            for (int m = 1; m <= M; m++) {
                clv_pipeline a = {.kind = CLV_1F1B, .stages = p, .chunks = v, .micros = m};
                if (clv_pipeline_check(&a).code != CLV_OK)
                    continue;
                played++;
                const int ticks = play_one(a);
                if (m >= p) /* 3 m v of work, and (p - 1) forwards and backwards of one chunk to fill and drain */
                    assert_int_equal(ticks, 3 * m * v + 3 * (p - 1));
                if (v == 1) {
                    a.kind = CLV_GPIPE;
                    assert_int_equal(play_one(a), 3 * m + 3 * (p - 1));
                }
            }
    assert_true(played > 400);
}

static void test_refusals(void **state)
{
    (void)state;
    const clv_status few = clv_pipeline_check(&(clv_pipeline){CLV_1F1B, 4, 0, 2, 6});
    assert_int_equal(few.code, CLV_BAD_INPUT);
    assert_non_null(strstr(few.text, "6 micro-batches, 4 stages"));
    assert_non_null(strstr(few.text, "4 and 8"));
    assert_int_equal(clv_pipeline_check(&(clv_pipeline){CLV_1F1B, 1, 0, 2, 6}).code, CLV_BAD_INPUT);
    assert_int_equal(clv_pipeline_check(&(clv_pipeline){CLV_GPIPE, 2, 0, 2, 4}).code, CLV_BAD_INPUT);
    assert_int_equal(clv_pipeline_check(&(clv_pipeline){CLV_1F1B, 4, 0, 1, 1}).code, CLV_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_pipeline), cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
