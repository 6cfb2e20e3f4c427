/* schedule_test.c - all stages played in one process as pipeline.c runs them: a receive is posted one action ahead, and
 * a send is over only when its receiver has posted (rendezvous: no message is ever buffered on the way). Every action
 * once, no deadlock, live micro-batches bounded, ticks as the formula says.
 */
#include "train.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { P = 8, V = 4, M = 32 };

typedef struct message { /* about one border and micro-batch, one way; times, 0: not yet */
    int posted, sent;
} message;

typedef struct stage { /* how far one is in its list, and what it waits for */
    clv_schedule list;
    int at, now; /* next action; ticks */
    bool posts;  /* the receive after it is posted */
    message *out[2];
    int sends;
    int live, most;
    bool full[V][M]; /* slots: a micro-batch lies in slot micro % slots of its chunk */
    bool done[2][V][M];
} stage;

typedef struct play {
    clv_pipeline p;
    int buffers; /* that a stage sends from; 0: it waits for each send */
    int ahead;   /* how many actions a receive is posted before its own */
    bool forward_only;
    stage stage[P];
    message message[2][P * V][M];
} play;

static int part_of(const play *g, int me, const clv_action *a)
{
    return a->chunk * g->p.stages + me;
}

/* What the action waits for, and what it makes; NULL: nothing. */
static message *message_in(play *g, int me, const clv_action *a)
{
    const int part = part_of(g, me, a), last = g->p.stages * g->p.chunks - 1;
    if (a->kind == CLV_FORWARD)
        return part > 0 ? &g->message[0][part - 1][a->micro] : NULL;
    return part < last ? &g->message[1][part][a->micro] : NULL;
}

static message *message_out(play *g, int me, const clv_action *a)
{
    const int part = part_of(g, me, a), last = g->p.stages * g->p.chunks - 1;
    if (a->kind == CLV_FORWARD)
        return part < last ? &g->message[0][part][a->micro] : NULL;
    return part > 0 ? &g->message[1][part - 1][a->micro] : NULL;
}

static void post(play *g, int me, int i)
{
    stage *s = &g->stage[me];
    message *in = i < s->list.count ? message_in(g, me, &s->list.action[i]) : NULL;
    if (in != NULL)
        in->posted = s->now;
}

/* Once each, a backward after its forward, and never two micro-batches in one slot. */
static void account(stage *s, const clv_action *a)
{
    const int slots = clv_schedule_in_flight(&s->list, a->chunk);
    bool *slot = &s->full[a->chunk][a->micro % slots], forward = a->kind == CLV_FORWARD;
    assert_true(!s->done[a->kind][a->chunk][a->micro]);
    assert_true(forward || s->done[CLV_FORWARD][a->chunk][a->micro]);
    assert_true(*slot != forward);
    s->done[a->kind][a->chunk][a->micro] = true;
    *slot = forward;
    s->live += forward ? 1 : -1;
    s->most = CLV_MAX(s->most, s->live);
}

/* Is the buffer of the k-th send free again? Then the stage's time is at least when that was. */
static bool buffer_free(stage *s, int k)
{
    message *busy = s->out[k & 1];
    if (busy == NULL || busy->posted > 0)
        s->now = CLV_MAX(s->now, busy != NULL ? busy->posted : 0);
    return busy == NULL || busy->posted > 0;
}

/* One action, if nothing holds it up. Forward takes 1 tick, backward 2. */
static bool step(play *g, int me)
{
    stage *s = &g->stage[me];
    if (s->at == s->list.count)
        return false;
    const clv_action *a = &s->list.action[s->at];
    if (g->buffers == 0 && !(buffer_free(s, 0) && buffer_free(s, 1)))
        return false;
    if (!s->posts)
        post(g, me, s->at + g->ahead);
    s->posts = true;
    message *in = message_in(g, me, a), *out = message_out(g, me, a);
    if (in != NULL && in->sent == 0)
        return false;
    if (out != NULL && g->buffers > 0 && !buffer_free(s, s->sends))
        return false;
    s->now = CLV_MAX(s->now, in != NULL ? in->sent : 0) + (a->kind == CLV_FORWARD ? 1 : 2);
    if (!g->forward_only)
        account(s, a);
    if (out != NULL) {
        out->sent = s->now;
        s->out[s->sends++ & 1] = out;
    }
    s->at++;
    s->posts = false;
    return true;
}

/* Ticks, or -1 when the stages wait for each other for ever. */
static int play_all(play *g)
{
    bool moved = true, over = true;
    int ticks = 0;
    for (int i = 0; i < g->p.stages; i++) {
        g->stage[i].now = 1; /* 0 means not yet */
        for (int k = 0; k < g->ahead; k++)
            post(g, i, k);
    }
    while (moved) {
        moved = false;
        for (int i = 0; i < g->p.stages; i++)
            while (step(g, i))
                moved = true;
    }
    for (int i = 0; i < g->p.stages; i++) {
        stage *s = &g->stage[i];
        assert_int_equal(s->list.count, (g->forward_only ? 1 : 2) * g->p.chunks * g->p.micros);
        over = over && s->at == s->list.count && buffer_free(s, 0) && buffer_free(s, 1);
        ticks = CLV_MAX(ticks, g->stage[i].now - 1);
    }
    return over ? ticks : -1;
}

/* Micro-batches that wait for a backward on a stage, over its chunks. */
static int most_live(const clv_pipeline *p)
{
    const int behind = p->stages - 1 - p->stage, all = p->micros * p->chunks;
    if (p->kind == CLV_GPIPE)
        return all;
    return CLV_MIN(all, 1 + (p->chunks == 1 ? behind : 2 * behind + (p->chunks - 1) * p->stages));
}

static int play_one(clv_pipeline p, int buffers, int ahead)
{
    static play g;
    memset(&g, 0, sizeof g);
    g.p = p;
    g.buffers = buffers;
    g.ahead = ahead;
    for (int i = 0; i < p.stages; i++) {
        g.p.stage = i;
        g.stage[i].list = clv_schedule_create(&g.p);
    }
    const int ticks = play_all(&g);
    for (int i = 0; i < p.stages; i++) {
        g.p.stage = i;
        if (ticks > 0)
            assert_int_equal(g.stage[i].most, most_live(&g.p));
        clv_schedule_destroy(&g.stage[i].list);
    }
    return ticks;
}

/* The executor has two buffers. One would do; plain schedules need none, each send waiting for its receiver. */
static void pipeline_expect(clv_pipeline p)
{
    for (int buffers = p.chunks == 1 ? 0 : 1; buffers <= 2; buffers++) {
        const int ticks = play_one(p, buffers, 1);
        assert_true(ticks > 0);
        if (p.micros >= p.stages) /* 3 m v of work; p - 1 forwards and backwards of one chunk to fill and drain */
            assert_int_equal(ticks, 3 * p.micros * p.chunks + 3 * (p.stages - 1));
    }
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
                pipeline_expect(a);
                a.kind = CLV_GPIPE;
                if (v == 1)
                    pipeline_expect(a);
            }
    assert_true(played > 400);
}

/* Evaluation: forwards alone, of any number of micro-batches. Each once, since a message is sent once. */
static void test_forwards_alone(void **state)
{
    (void)state;
    for (int p = 1; p <= P; p++)
        for (int v = 1; v <= (p == 1 ? 1 : V); v++)
            for (int m = 1; m <= M; m++) {
                static play g;
                memset(&g, 0, sizeof g);
                g.p = (clv_pipeline){.kind = CLV_1F1B, .stages = p, .chunks = v, .micros = m};
                g.buffers = 2;
                g.ahead = 1;
                g.forward_only = true;
                for (int i = 0; i < p; i++) {
                    g.p.stage = i;
                    g.stage[i].list = clv_schedule_forward(&g.p);
                }
                const int ticks = play_all(&g);
                assert_true(ticks > 0);
                if (m % p == 0)
                    assert_int_equal(ticks, m * v + p - 1);
                for (int i = 0; i < p; i++)
                    clv_schedule_destroy(&g.stage[i].list);
            }
}

/* The game can be lost: by receives that are posted only when they are wanted, and by interleaved chunks that send
 * without a buffer. */
static void test_a_deadlock_is_seen(void **state)
{
    (void)state;
    const clv_pipeline plain = {CLV_1F1B, 2, 0, 1, 4}, interleaved = {CLV_1F1B, 2, 0, 2, 4};
    assert_int_equal(play_one(plain, 0, 0), -1);
    assert_true(play_one(plain, 0, 1) > 0);
    assert_int_equal(play_one(interleaved, 0, 1), -1);
    assert_true(play_one(interleaved, 1, 1) > 0);
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

static int count_of(const char *text, const char *part)
{
    int n = 0;
    for (; (text = strstr(text, part)) != NULL; text++)
        n++;
    return n;
}

/* The lines of a schedule, and its picture: a box an action, and the idle share in its title. */
static void test_picture(void **state)
{
    (void)state;
    clv_text text = {0};
    clv_schedule_text(&(clv_pipeline){CLV_1F1B, 2, 0, 1, 3}, &text);
    assert_string_equal(text.data, "stage 0: F0 F1 B0 F2 B1 B2\nstage 1: F0 B0 F1 B1 F2 B2");
    text.length = 0;
    clv_schedule_text(&(clv_pipeline){CLV_1F1B, 2, 0, 2, 2}, &text);
    assert_string_equal(text.data, "stage 0: F0.0 F1.0 F0.1 F1.1 B0.1 B1.1 B0.0 B1.0\n"
                                   "stage 1: F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 B0.0 B1.0");
    clv_text_free(&text);
    char path[] = "/tmp/cleave_schedule_XXXXXX";
    close(mkstemp(path));
    assert_int_equal(clv_schedule_draw(&(clv_pipeline){CLV_1F1B, 4, 0, 2, 8}, path).code, CLV_OK);
    assert_int_equal(clv_file_read(path, &text).code, CLV_OK);
    assert_int_equal(count_of(text.data, "<rect "), 1 + 2 * 4 * 2 * 8);
    assert_int_equal(count_of(text.data, ">stage 3<"), 1);
    assert_int_equal(count_of(text.data, ": 15.8 % idle<"), 1); /* 9 of 57 ticks */
    clv_text_free(&text);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_pipeline), cmocka_unit_test(test_forwards_alone),
                                       cmocka_unit_test(test_a_deadlock_is_seen), cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_picture)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
