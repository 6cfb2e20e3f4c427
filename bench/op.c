/* op.c - speed of each main kernel at the shapes of GPT-2 124M, one sequence of 1024 tokens, beside its error and,
 * turn by turn in the same run, the speed of a peer.
 *
 *   bench_op [--json | --once] [--threads N] [--tokens N] [--runs N] [--only TEXT] [--peer COMMAND]
 *
 * Kernels that calculate are given as GFLOP/s and as a share of the peak measured for their type; attention
 * counts the scores that a causal mask leaves. Kernels that move memory are given as GB/s, each operand counted once
 * for each time it is read or written, and as a share of the measured triad a = b + c x; shares above 100 % come from
 * operands that stay in the cache. Times are the fastest of several runs, as the two peaks are. The error is the
 * largest difference from the reference backend over the largest value, on as many tokens as the reference can do in
 * a moment. A ratio is a peer's time over ours. --peer asks a second peer, a program (common/peer.c); bench/op does
 * that. --once runs each kernel in fp32 one time, on few tokens, for scripts/counts, whose processor has no products of
 * bf16.
 */
#include "common/peer.h"
#include "op_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct settings {
    bool json, once;
    int64_t threads, tokens, runs;
    const char *only, *command; /* part of a name; a peer. NULL: all; none */
    double peak, peak_bf16, triad;
} settings;

typedef struct rival {
    const char *name;
    double seconds; /* 0: none */
} rival;

typedef struct result {
    double seconds, error;
    rival rivals[2]; /* in this process, in another */
} result;

static void prepare(work *w, const kernel *k, int64_t s, const clv_backend *be)
{
    clv_arena_release(&w->data, 0);
    *w = (work){.data = w->data, .temp = w->temp, .mesh = w->mesh, .be = be, .s = s};
    w->cx = (clv_ctx){.be = be, .mesh = w->mesh, .save = &w->data, .temp = &w->temp};
    k->make(w);
}

static double seconds(void (*run)(work *w), work *w)
{
    const double start = clv_seconds();
    run(w);
    return clv_seconds() - start;
}

/* Seconds of the fastest runs, ours and the group's peer's by turns, after one each that warms the caches. */
static result measure(work *w, const group *g, const kernel *k, const settings *how)
{
    result r = {.seconds = INFINITY, .rivals[0] = {g->peer, g->run_peer != NULL ? INFINITY : 0.0}};
    prepare(w, k, how->tokens, clv_backend_cpu());
    for (int64_t i = -1; i < how->runs; i++) {
        const double ours = seconds(k->run, w), theirs = g->run_peer != NULL ? seconds(g->run_peer, w) : 0.0;
        if (i < 0)
            continue;
        r.seconds = fmin(r.seconds, ours);
        r.rivals[0].seconds = fmin(r.rivals[0].seconds, theirs);
    }
    return r;
}

static double value(const void *data, clv_dtype dtype, int64_t i)
{
    float x;
    if (dtype == CLV_F64)
        return ((const double *)data)[i];
    clv_widen(&x, (const char *)data + (size_t)i * clv_dtype_size(dtype), dtype, 1);
    return (double)x;
}

static double difference(clv_tensor t, const void *expected)
{
    double most = 0.0, size = 0.0;
    for (int64_t i = 0; i < clv_numel(t); i++) {
        const double x = value(t.data, t.dtype, i), y = value(expected, t.dtype, i);
        most = fmax(most, fabs(x - y));
        size = fmax(size, fabs(y));
    }
    return size > 0.0 ? most / size : most;
}

/* Largest error of any output, with few enough tokens for the reference. Equal inputs: both runs make them anew. */
static double error(work *w, const kernel *k, int64_t tokens)
{
    const double affordable = 2e8;
    int64_t s = tokens;
    for (prepare(w, k, s, clv_backend_ref()); s > 4 && fmax(w->flops, w->bytes) > affordable; s /= 2)
        prepare(w, k, s / 2, clv_backend_ref());
    k->run(w);
    void *kept[3] = {NULL};
    for (int i = 0; i < 3; i++)
        if (w->out[i].ndim > 0)
            kept[i] = memcpy(clv_alloc(clv_bytes(w->out[i]), 1), w->out[i].data, clv_bytes(w->out[i]));
    prepare(w, k, s, clv_backend_cpu());
    k->run(w);
    double most = 0.0;
    for (int i = 0; i < 3; i++) {
        if (kept[i] != NULL)
            most = fmax(most, difference(w->out[i], kept[i]));
        free(kept[i]);
    }
    return most;
}

/* Bytes/s of a = b + c x on arrays that no cache holds. */
static double triad(clv_arena *arena, int64_t runs)
{
    const int64_t n = (int64_t)1 << 24;
    clv_arena_release(arena, 0);
    enum { APART = 341 }; /* a third of a page, so that the three do not lie at the same places of theirs */
    float *a = clv_new_as(arena, CLV_F32, n + APART).data, *b = clv_new_as(arena, CLV_F32, n + APART).data;
    float *c = clv_new_as(arena, CLV_F32, n).data;
    double best = 0.0;
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n; i++) { /* pages that nobody wrote are all one page, which the cache holds */
        b[i] = 1.0f;
        c[i] = (float)i;
    }
    for (int64_t run = 0; run < runs; run++) {
        const double start = clv_seconds();
#pragma omp parallel for simd schedule(static)
        for (int64_t i = 0; i < n; i++)
            a[i] = b[i] + 0.5f * c[i];
        best = fmax(best, 12.0 * (double)n / (clv_seconds() - start));
    }
    return best;
}

static void print_json(const work *w, const kernel *k, const result *r, double share)
{
    const bool calculates = w->flops > 0.0;
    const char *comma = "";
    printf("{\"kernel\": \"%s\", \"seconds\": %.6g, \"%s\": %.6g, \"share\": %.4f, \"error\": %.3g, \"peers\": [",
           k->name, r->seconds, calculates ? "flops" : "bytes_per_second",
           (calculates ? w->flops : w->bytes) / r->seconds, share, r->error);
    for (size_t i = 0; i < CLV_COUNT(r->rivals); i++) {
        const rival *v = &r->rivals[i];
        if (v->seconds <= 0.0)
            continue;
        printf("%s{\"peer\": \"%s\", \"peer_seconds\": %.6g, \"ratio\": %.4f}", comma, v->name, v->seconds,
               v->seconds / r->seconds);
        comma = ", ";
    }
    printf("]}\n");
}

static void print_row(const work *w, const kernel *k, const result *r, double share)
{
    const bool calculates = w->flops > 0.0;
    printf("%-22s %9.3f ms %7.1f %s %5.0f %%   %7.1e", k->name, r->seconds * 1e3,
           (calculates ? w->flops : w->bytes) / r->seconds * 1e-9, calculates ? "GFLOP/s" : "GB/s   ", share * 100.0,
           r->error);
    for (size_t i = 0; i < CLV_COUNT(r->rivals); i++)
        if (r->rivals[i].seconds > 0.0)
            printf("   %s %.3f ms, ratio %.2f", r->rivals[i].name, r->rivals[i].seconds * 1e3,
                   r->rivals[i].seconds / r->seconds);
    printf("\n");
}

static bool is_wanted(const kernel *k, const settings *how)
{
    return how->only == NULL || strstr(k->name, how->only) != NULL;
}

static void report(work *w, const group *g, const settings *how, peer *other)
{
    for (size_t i = 0; i < g->count; i++) {
        const kernel *k = &g->kernels[i];
        if (!is_wanted(k, how))
            continue;
        const double wrong = error(w, k, how->tokens);
        result r = measure(w, g, k, how);
        r.error = wrong;
        r.rivals[1] = (rival){other->name, peer_seconds(other, k->name)};
        const double peak = w->gemm.a.dtype == CLV_BF16 ? how->peak_bf16 : how->peak;
        const double share = w->flops > 0.0 ? w->flops / r.seconds / peak : w->bytes / r.seconds / how->triad;
        (how->json ? print_json : print_row)(w, k, &r, share);
        fflush(stdout);
    }
}

/* Callgrind counts what happens in here, by this name. */
__attribute__((noinline)) void bench_op_counted(work *w, const kernel *k)
{
    k->run(w);
}

/* On as many tokens as an emulated processor does in a few seconds; what is too much at the fewest is left out. */
static void run_once(work *w, const group *g, const settings *how)
{
    const double affordable = 3.2e8;
    enum { MOST = 256, FEWEST = 64 };
    for (size_t i = 0; i < g->count; i++) {
        const kernel *k = &g->kernels[i];
        if (!is_wanted(k, how))
            continue;
        int64_t s = MOST;
        for (prepare(w, k, s, clv_backend_cpu()); s > FEWEST && w->flops > affordable; s /= 2)
            prepare(w, k, s / 2, clv_backend_cpu());
        if (w->flops > affordable)
            continue;
        bench_op_counted(w, k);
        printf("%s\n", k->name);
    }
}

static bool settings_read(settings *how, int argc, char **argv)
{
    const bench_option options[] = {
        {.name = "--json", .flag = &how->json},         {.name = "--once", .flag = &how->once},
        {.name = "--threads", .number = &how->threads}, {.name = "--tokens", .number = &how->tokens},
        {.name = "--runs", .number = &how->runs},       {.name = "--only", .text = &how->only},
        {.name = "--peer", .text = &how->command},
    };
    return bench_options_read(options, CLV_COUNT(options), argc, argv);
}

static clv_status memory_open(work *w)
{
    clv_status st = clv_arena_create(&w->data, "operands", (size_t)3 << 30);
    if (st.code == CLV_OK)
        st = clv_arena_create(&w->temp, "scratch", (size_t)1 << 30);
    return st;
}

int main(int argc, char **argv)
{
    settings how = {.threads = clv_backend_threads(), .tokens = 1024, .runs = 15};
    if (!settings_read(&how, argc, argv)) {
        fprintf(
            stderr,
            "usage: bench_op [--json | --once] [--threads N] [--tokens N] [--runs N] [--only TEXT] [--peer COMMAND]\n");
        return CLV_BAD_USAGE;
    }
    work w = {.s = how.tokens};
    clv_mesh *mesh;
    clv_comm *self = clv_comm_self_open();
    clv_status st = memory_open(&w);
    if (st.code == CLV_OK)
        st = clv_mesh_create(&mesh, self, &(clv_layout){0});
    peer other = {0};
    if (st.code == CLV_OK && how.command != NULL && !peer_open(&other, how.command))
        st = clv_fail(CLV_BAD_INPUT, "the peer '%s' did not start", how.command);
    if (st.code != CLV_OK) {
        fprintf(stderr, "%s\n", st.text);
        return (int)st.code;
    }
    w.mesh = mesh;
    clv_backend_threads_set((int)how.threads);
    const group *const groups[] = {&products, &heads, &attentions, &rows, &halves};
    if (how.once) {
        printf("compiled by %s\n", __VERSION__);
        for (size_t i = 0; groups[i] != &halves; i++)
            run_once(&w, groups[i], &how);
        return CLV_OK;
    }
    how.peak = clv_backend_peak(CLV_F32);
    how.peak_bf16 = clv_backend_peak(CLV_BF16);
    how.triad = triad(&w.data, how.runs);
    printf(how.json ? "{\"threads\": %d, \"blas\": \"%s\", \"peak_flops\": %.6g, \"peak_flops_bf16\": %.6g, "
                      "\"triad_bytes_per_second\": %.6g}\n"
                    : "%d threads, %s: peak %.3g FLOP/s, of bf16 %.3g, triad %.3g bytes/s\n",
           clv_backend_threads(), clv_backend_blas(), how.peak, how.peak_bf16, how.triad);
    for (size_t i = 0; i < CLV_COUNT(groups); i++)
        report(&w, groups[i], &how, &other);
    peer_close(&other);
    return CLV_OK;
}
