/* runtime.c - this process and its place: threads, mesh, and what is said of them at the start. */
#include "train/trainer_internal.h"

#include <stdio.h>

static clv_status layout_of(const clv_options *options, const clv_config *config, int world, clv_layout *out)
{
    const int64_t tp = options->tensor_model_parallel_size, pp = options->pipeline_model_parallel_size, n = tp * pp;
    char shape[96] = "";
    if (pp > 1)
        snprintf(shape, sizeof shape, " x pipeline-model-parallel-size %lld = %lld", (long long)pp, (long long)n);
    if (world % n != 0)
        return clv_fail(
            CLV_BAD_INPUT,
            "tensor-model-parallel-size %lld%s does not divide %d rank%s; start %lld, or another multiple of %lld "
            "(mpirun -n %lld)",
            (long long)tp, shape, world, world == 1 ? "" : "s", (long long)(CLV_CEIL_DIV(world, n) * n), (long long)n,
            (long long)(CLV_CEIL_DIV(world, n) * n));
    *out = (clv_layout){.tp = (int)tp, .dp = (int)(world / n), .pp = (int)pp, .kv_heads = (int)config->kv_heads};
    return clv_ok();
}

static void report(const clv_runtime *rt, const clv_binding *b, bool sequence_parallel, clv_dtype dtype)
{
    const int n = clv_comm_size(rt->world), hosts = clv_comm_hosts(rt->world);
    char place[64];
    if (b->sharing == 1)
        snprintf(place, sizeof place, "on %d core%s of its own", b->cores, b->cores == 1 ? "" : "s");
    else
        snprintf(place, sizeof place, "%d ranks on the same %d core%s", b->sharing, b->cores, b->cores == 1 ? "" : "s");
    clv_log(CLV_LOG_INFO, "%d rank%s on %d host%s; rank 0: %d thread%s, %s; %s", n, n == 1 ? "" : "s", hosts,
            hosts == 1 ? "" : "s", rt->threads, rt->threads == 1 ? "" : "s", place, clv_backend_blas());
    clv_log(CLV_LOG_INFO, "layout: tp %d%s, pp %d, dp %d; measured peak of rank 0: %.0f GFLOP/s %s",
            clv_mesh_size(rt->mesh, CLV_TP), sequence_parallel ? " with sequence parallelism" : "",
            clv_mesh_size(rt->mesh, CLV_PP), clv_mesh_size(rt->mesh, CLV_DP), rt->peak * 1e-9, clv_dtype_name(dtype));
    clv_binding_warn(b, rt->threads);
}

clv_status clv_runtime_open(clv_runtime *rt, clv_comm *world, const clv_options *options, const clv_config *config)
{
    *rt = (clv_runtime){.world = world};
    clv_layout layout;
    CLV_TRY(layout_of(options, config, clv_comm_size(world), &layout));
    CLV_TRY(clv_mesh_create(&rt->mesh, world, &layout));
    clv_dtype dtype;
    CLV_TRY(clv_options_storage(options, &dtype));
    const clv_binding b = clv_binding_find(world);
    rt->threads = clv_binding_threads(&b, options->threads);
    clv_backend_threads_set(rt->threads);
    rt->peak = clv_backend_peak(dtype);
    report(rt, &b, options->sequence_parallel, dtype);
    return clv_ok();
}

void clv_runtime_close(clv_runtime *rt)
{
    if (rt->mesh != NULL)
        clv_mesh_destroy(rt->mesh);
    *rt = (clv_runtime){0};
}
