/* schedule_picture.c - a schedule for the eyes: a line of text a stage, and boxes over time as papers draw them.
 *
 *   stage 0: F0 F1 B0 F2 B1 B2          F forward, B backward, the number of the micro-batch
 *   stage 1: F0.0 F1.0 F0.1 ...         with chunks: micro-batch.chunk
 *
 * The picture lets a forward take one tick, a backward two and a message none. Forwards are blue and backwards green, a
 * later chunk is darker.
 */
#include "train/train.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct game { /* all stages played at once */
    clv_pipeline p;
    clv_schedule *stage;
    int *at, *now; /* of each stage: its next action, and when it is free */
    int *done[2];  /* [part, micro]: when a forward, a backward was over; 0: not yet */
    clv_bar *bar;
    size_t bars;
} game;

static game game_open(const clv_pipeline *p)
{
    const size_t stages = (size_t)p->stages, cells = stages * (size_t)(p->chunks * p->micros);
    game g = {.p = *p,
              .stage = clv_alloc(stages, sizeof *g.stage),
              .at = clv_alloc(stages, sizeof(int)),
              .now = clv_alloc(stages, sizeof(int)),
              .done = {clv_alloc(cells, sizeof(int)), clv_alloc(cells, sizeof(int))},
              .bar = clv_alloc(2 * cells, sizeof *g.bar)};
    for (int i = 0; i < p->stages; i++) {
        g.p.stage = i;
        g.stage[i] = clv_schedule_create(&g.p);
    }
    return g;
}

static void game_close(game *g)
{
    for (int i = 0; i < g->p.stages; i++)
        clv_schedule_destroy(&g->stage[i]);
    free(g->stage);
    free(g->at);
    free(g->now);
    free(g->done[0]);
    free(g->done[1]);
    free(g->bar);
}

static int *done_at(const game *g, clv_action_kind kind, int part, int micro)
{
    return &g->done[kind][part * g->p.micros + micro];
}

/* When what the action waits for is there; -1: not yet. The first forward waits for nothing, the last part's backward
 * for its own forward. */
static int ready_at(const game *g, const clv_action *a, int part)
{
    const int last = g->p.stages * g->p.chunks - 1;
    const int *wait;
    if (a->kind == CLV_FORWARD && part == 0)
        return 0;
    if (a->kind == CLV_FORWARD)
        wait = done_at(g, CLV_FORWARD, part - 1, a->micro);
    else
        wait = part == last ? done_at(g, CLV_FORWARD, part, a->micro) : done_at(g, CLV_BACKWARD, part + 1, a->micro);
    return *wait > 0 ? *wait : -1;
}

static bool play(game *g, int stage)
{
    static const char *const colors[2][4] = {{"#bfdbfe", "#93c5fd", "#60a5fa", "#3b82f6"},
                                             {"#bbf7d0", "#86efac", "#4ade80", "#22c55e"}};
    if (g->at[stage] == g->stage[stage].count)
        return false;
    const clv_action *a = &g->stage[stage].action[g->at[stage]];
    const int part = a->chunk * g->p.stages + stage, ready = ready_at(g, a, part);
    if (ready < 0)
        return false;
    const int begin = CLV_MAX(ready, g->now[stage]);
    g->now[stage] = begin + (a->kind == CLV_FORWARD ? 1 : 2);
    *done_at(g, a->kind, part, a->micro) = g->now[stage];
    clv_bar *bar = &g->bar[g->bars++];
    *bar = (clv_bar){.row = stage, .from = begin, .to = g->now[stage], .color = colors[a->kind][a->chunk % 4]};
    snprintf(bar->label, sizeof bar->label, "%d", a->micro);
    g->at[stage]++;
    return true;
}

/* Ticks until all are done. */
static int play_all(game *g)
{
    int ticks = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < g->p.stages; i++)
            while (play(g, i))
                moved = true;
    }
    for (int i = 0; i < g->p.stages; i++) {
        CLV_CHECK(g->at[i] == g->stage[i].count, "stage %d stands still at action %d", i, g->at[i]);
        ticks = CLV_MAX(ticks, g->now[i]);
    }
    return ticks;
}

void clv_schedule_text(const clv_pipeline *p, clv_text *out)
{
    for (int i = 0; i < p->stages; i++) {
        clv_pipeline mine = *p;
        mine.stage = i;
        clv_schedule list = clv_schedule_create(&mine);
        clv_text_printf(out, "%sstage %d:", i > 0 ? "\n" : "", i);
        for (int k = 0; k < list.count; k++) {
            const clv_action *a = &list.action[k];
            clv_text_printf(out, " %c%d", a->kind == CLV_FORWARD ? 'F' : 'B', a->micro);
            if (p->chunks > 1)
                clv_text_printf(out, ".%d", a->chunk);
        }
        clv_schedule_destroy(&list);
    }
}

clv_status clv_schedule_draw(const clv_pipeline *p, const char *path)
{
    char title[160];
    game g = game_open(p);
    const int ticks = play_all(&g), work = 3 * p->micros * p->chunks;
    snprintf(title, sizeof title, "%s, %d stages, %d chunk%s each, %d micro-batches: %.1f %% idle",
             p->kind == CLV_GPIPE ? "gpipe" : "1F1B", p->stages, p->chunks, p->chunks == 1 ? "" : "s", p->micros,
             100.0 * (ticks - work) / ticks);
    clv_status st = clv_make_parent(path);
    if (st.code == CLV_OK)
        st = clv_svg_bars(path, title, "stage", g.bar, g.bars);
    game_close(&g);
    return st;
}
