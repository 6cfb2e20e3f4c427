/* nsize: 2 4 */
/* trace_log_test.c - the trace of a run is JSON; it holds every forward, backward and update once; the slices of a
 * thread stand apart, a forward begins after the one it waits for, and the idle share of a step is that of the
 * schedule.
 */
#include "train/checkpoint_test.h"

#include <math.h>

enum { ITERATIONS = 4, MOST = 1 << 14 };

typedef struct slice {
    int process, thread, iteration, part, micro;
    char what; /* f, b, u, or c for the wire */
    double begin, end;
} slice;

static double number_in(const clv_json *json, clv_node object, const char *key)
{
    double value = -1;
    clv_json_f64(json, clv_json_get(json, object, key), &value);
    return value;
}

static int slices_read(slice *out, const char *path)
{
    int n = 0;
    clv_json *json;
    must(clv_json_load(&json, path));
    for (clv_node e = clv_json_first(json, clv_json_get(json, CLV_JSON_ROOT, "traceEvents")); e != CLV_NO_NODE;
         e = clv_json_next(json, e)) {
        const clv_node args = clv_json_get(json, e, "args");
        if (strcmp(clv_json_string(json, clv_json_get(json, e, "ph"), NULL), "X") != 0)
            continue;
        CLV_CHECK(n < MOST, "more than %d slices", MOST);
        slice *s = &out[n++];
        *s = (slice){(int)number_in(json, e, "pid"),
                     (int)number_in(json, e, "tid"),
                     (int)number_in(json, args, "iteration"),
                     (int)number_in(json, args, "part"),
                     (int)number_in(json, args, "micro"),
                     'c',
                     number_in(json, e, "ts"),
                     0};
        s->end = s->begin + number_in(json, e, "dur");
        if (s->thread == 0)
            s->what = clv_json_string(json, clv_json_get(json, e, "name"), NULL)[0];
    }
    clv_json_free(json);
    return n;
}

static int slices_of_run(clv_comm *world, slice *out, int chunks, int micros)
{
    char root[CLV_PATH], path[CLV_PATH], text[3 * CLV_PATH], *argv[64], *rest = NULL;
    int count = 0, n = 0;
    scratch_open(world, root);
    clv_path_join(path, sizeof path, root, "trace.json");
    snprintf(text, sizeof text,
             "--mock-data --vocab-size 97 --num-layers %d --hidden-size 256 --num-attention-heads 4 --seq-length 128 "
             "--lr 1e-3 --threads 1 --train-iters %d --global-batch-size %d --pipeline-model-parallel-size %d "
             "--pipeline-chunks %d --trace %s",
             2 * clv_comm_size(world), ITERATIONS, micros, clv_comm_size(world), chunks, path);
    for (char *word = strtok_r(text, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest))
        argv[count++] = word;
    clv_options options;
    clv_log_setup(CLV_LOG_ERROR, clv_comm_rank(world), clv_comm_size(world));
    clv_options_default(&options, 'T');
    must(clv_options_parse(&options, count, argv, NULL));
    must(clv_train(world, &options));
    clv_options_free(&options);
    clv_barrier(world);
    n = slices_read(out, path);
    scratch_close(world, root);
    return n;
}

/* Each part's forward and backward of each micro-batch once an iteration, and an update on each rank. */
static int counts_expect(clv_comm *world, const slice *s, int n, int parts, int micros)
{
    int failed = 0, forwards = 0, backwards = 0, updates = 0, waits = 0;
    for (int i = 0; i < n; i++) {
        forwards += s[i].what == 'f';
        backwards += s[i].what == 'b';
        updates += s[i].what == 'u';
        waits += s[i].what == 'c';
        EXPECT(s[i].process >= 0 && s[i].process < clv_comm_size(world), "rank %d", s[i].process);
        EXPECT(s[i].what == 'c' || s[i].what == 'u' || s[i].part % clv_comm_size(world) == s[i].process,
               "part %d on rank %d", s[i].part, s[i].process);
    }
    EXPECT(forwards == parts * micros * ITERATIONS && backwards == forwards, "%d forwards, %d backwards", forwards,
           backwards);
    EXPECT(updates == clv_comm_size(world) * ITERATIONS, "%d updates", updates);
    EXPECT(waits > 2 * micros * ITERATIONS, "%d waits", waits);
    return failed;
}

/* Times of the file are rounded to a nanosecond. */
static int apart_expect(clv_comm *world, const slice *s, int n)
{
    int failed = 0;
    double over[8][2] = {{0}};
    for (int i = 0; i < n; i++) {
        double *last = &over[s[i].process][s[i].thread];
        EXPECT(s[i].begin >= *last - 0.002, "rank %d, thread %d: a slice begins at %.3f, the one before ended at %.3f",
               s[i].process, s[i].thread, s[i].begin, *last);
        *last = s[i].end;
    }
    return failed;
}

static const slice *find(const slice *s, int n, slice want)
{
    for (int i = 0; i < n; i++)
        if (s[i].what == want.what && s[i].iteration == want.iteration && s[i].part == want.part &&
            s[i].micro == want.micro)
            return &s[i];
    return NULL;
}

/* Clocks of ranks meet in a barrier, which they leave at slightly different times. */
static int order_expect(clv_comm *world, const slice *s, int n, int parts, int micros)
{
    int failed = 0;
    for (int i = 1; i <= ITERATIONS; i++)
        for (int m = 0; m < micros; m++)
            for (int part = 0; part + 1 < parts; part++) {
                const slice *a = find(s, n, (slice){.what = 'f', .iteration = i, .part = part, .micro = m});
                const slice *b = find(s, n, (slice){.what = 'f', .iteration = i, .part = part + 1, .micro = m});
                EXPECT(a != NULL && b != NULL && b->begin > a->end - 20000,
                       "micro-batch %d of part %d begins too early", m, part + 1);
            }
    return failed;
}

/* The least idle share of an iteration, over all ranks, between its first forward and its last backward. */
static double idle_share(const slice *s, int n, int ranks)
{
    double least = 1.0;
    for (int k = 2; k <= ITERATIONS; k++) { /* the first one meets cold memory */
        double first = INFINITY, last = 0, busy = 0;
        for (int i = 0; i < n; i++) {
            if (s[i].iteration != k || (s[i].what != 'f' && s[i].what != 'b'))
                continue;
            first = fmin(first, s[i].begin);
            last = fmax(last, s[i].end);
            busy += s[i].end - s[i].begin;
        }
        least = fmin(least, 1.0 - busy / (ranks * (last - first)));
    }
    return least;
}

/* (p - 1) of m v + p - 1 slots are idle. Other work on the machine and uneven stages add to it, so the bounds are wide;
 * and where ranks share cores they are idle by turns, which says nothing. */
static int idle_as_scheduled(clv_comm *world)
{
    static slice s[MOST];
    static const int settings[][2] = {{1, 1}, {1, 4}, {1, 8}, {2, 8}}; /* chunks, micro-batches */
    const int p = clv_comm_size(world);
    int failed = 0;
    double idle[CLV_COUNT(settings)];
    for (size_t k = 0; k < CLV_COUNT(settings); k++) {
        const int v = settings[k][0], m = settings[k][1], n = slices_of_run(world, s, v, m);
        failed +=
            counts_expect(world, s, n, v * p, m) + apart_expect(world, s, n) + order_expect(world, s, n, v * p, m);
        const double formula = (double)(p - 1) / (m * v + p - 1);
        idle[k] = idle_share(s, n, p);
        if (clv_comm_rank(world) == 0)
            printf("%d stages, %d chunks, %d micro-batches: idle %.3f, by the formula %.3f\n", p, v, m, idle[k],
                   formula);
        EXPECT(p > 2 || (idle[k] > 0.7 * formula && idle[k] < 0.75), "idle %.3f, by the formula %.3f", idle[k],
               formula);
    }
    EXPECT(p > 2 || idle[0] > idle[2], "idle %.3f with one micro-batch, %.3f with many", idle[0], idle[2]);
    return failed;
}

int main(int argc, char **argv)
{
    return mpi_test_run(&argc, &argv, (mpi_case[]){{"idle as scheduled", idle_as_scheduled}, {0}});
}
