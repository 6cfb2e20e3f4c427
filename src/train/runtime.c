/* runtime.c - this process and its place: threads, mesh, and what is said of them at the start.
 *
 * Threads of a rank = allowed cores / ranks on this host, unless the user says otherwise, so that `mpirun -n 2` is
 * right with nothing set. What people get wrong is looked for: two ranks bound to one core, more threads than cores.
 */
#include "train.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

static int allowed_cores(cpu_set_t *set)
{
    CPU_ZERO(set);
    if (sched_getaffinity(0, sizeof *set, set) != 0)
        return 1;
    return CLV_MAX(CPU_COUNT(set), 1);
}

static int threads_wanted(const clv_options *options, int cores, int local_size, bool bound)
{
    if (options->threads > 0)
        return (int)options->threads;
    const char *omp = getenv("OMP_NUM_THREADS");
    int64_t from_user = 0;
    if (omp != NULL && clv_parse_i64(omp, &from_user) && from_user > 0)
        return (int)from_user;
    return bound ? cores : CLV_MAX(cores / CLV_MAX(local_size, 1), 1);
}

typedef struct clv_binding {
    int cores;     /* that this rank may use */
    int shared_by; /* ranks that may use exactly these cores */
    int overlap;   /* ranks that may use some of them, itself included */
} clv_binding;

/* How the cores of the ranks on this host lie to each other. Compared over the whole world: hosts look alike. */
static clv_binding binding_find(clv_comm *world)
{
    cpu_set_t mine;
    clv_binding b = {.cores = allowed_cores(&mine), .shared_by = 0, .overlap = 0};
    const int n = clv_comm_size(world), local = clv_comm_local_size(world);
    const int rank = clv_comm_rank(world), first = rank - clv_comm_local_rank(world);
    cpu_set_t *all = clv_alloc((size_t)n, sizeof *all);
    clv_all_gather(world, all, &mine, sizeof mine, CLV_U8);
    for (int r = CLV_MAX(first, 0); r < CLV_MIN(first + local, n); r++) {
        cpu_set_t both;
        CPU_AND(&both, &mine, &all[r]);
        b.shared_by += CPU_EQUAL(&mine, &all[r]) ? 1 : 0;
        b.overlap += CPU_COUNT(&both) > 0 ? 1 : 0;
    }
    free(all);
    return b;
}

static void binding_report(const clv_runtime *rt, const clv_binding *b, int local)
{
    if (local > b->cores * local / CLV_MAX(b->overlap, 1))
        clv_log(CLV_LOG_WARN, "%d ranks share %d core%s: they take turns, and the run is slow", b->overlap, b->cores,
                b->cores == 1 ? "" : "s");
    if (rt->threads > b->cores)
        clv_log(CLV_LOG_WARN,
                "%d threads are bound to %d core%s; start with --threads %d, or give ranks more cores "
                "(mpirun --bind-to none, or --map-by slot:PE=%d)",
                rt->threads, b->cores, b->cores == 1 ? "" : "s", b->cores, rt->threads);
}

static clv_status layout_of(const clv_options *options, const clv_config *config, int world, clv_layout *out)
{
    const int64_t tp = options->tensor_model_parallel_size;
    if (world % tp != 0)
        return clv_fail(
            CLV_BAD_INPUT, "tensor-model-parallel-size %lld does not divide %d rank%s; start %lld or %lld ranks",
            (long long)tp, world, world == 1 ? "" : "s", (long long)tp, (long long)(CLV_CEIL_DIV(world, tp) * tp));
    *out = (clv_layout){.tp = (int)tp, .dp = (int)(world / tp), .kv_heads = (int)config->kv_heads};
    return clv_ok();
}

clv_status clv_runtime_open(clv_runtime *rt, clv_comm *world, const clv_options *options, const clv_config *config)
{
    *rt = (clv_runtime){.world = world};
    clv_layout layout;
    CLV_TRY(layout_of(options, config, clv_comm_size(world), &layout));
    CLV_TRY(clv_mesh_create(&rt->mesh, world, &layout));

    const clv_binding b = binding_find(world);
    const int local = clv_comm_local_size(world);
    rt->threads = threads_wanted(options, b.cores, local, b.overlap == 1 && local > 1);
    clv_backend_threads_set(rt->threads);
    rt->peak = clv_backend_peak();
    clv_log(CLV_LOG_INFO, "%d rank%s on %d host%s, %d thread%s each (%d core%s allowed, %d rank%s share%s them); %s",
            clv_comm_size(world), clv_comm_size(world) == 1 ? "" : "s", clv_comm_hosts(world),
            clv_comm_hosts(world) == 1 ? "" : "s", rt->threads, rt->threads == 1 ? "" : "s", b.cores,
            b.cores == 1 ? "" : "s", b.overlap, b.overlap == 1 ? "" : "s", b.overlap == 1 ? "s" : "",
            clv_backend_blas());
    binding_report(rt, &b, local);
    clv_log(CLV_LOG_INFO, "layout: tp %d%s, dp %d; measured peak of rank 0: %.0f GFLOP/s fp32", layout.tp,
            options->sequence_parallel ? " with sequence parallelism" : "", layout.dp, rt->peak * 1e-9);
    return clv_ok();
}

void clv_runtime_close(clv_runtime *rt)
{
    clv_mesh_destroy(rt->mesh);
    *rt = (clv_runtime){0};
}
