/* binding.c - which cores this rank may use, and how many threads it should have.
 *
 * Threads of a rank = allowed cores / ranks on this host. Open MPI binds two ranks to one core each when nothing is
 * asked for, however many cores the host has; such a default is widened here to the rank's even share of the host,
 * while a binding that the user or the batch system chose is kept. Of two hardware threads of a core only one is
 * counted.
 */
#include "train/trainer_internal.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

/* Is this CPU the first hardware thread of its core? Yes when the system does not say. */
static bool first_of_core(int cpu)
{
    char path[96];
    int first = cpu;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return true;
    if (fscanf(file, "%d", &first) != 1)
        first = cpu;
    fclose(file);
    return first == cpu;
}

static int cores_of(const cpu_set_t *set, int *list)
{
    int n = 0;
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, set) && first_of_core((int)cpu))
            list[n++] = (int)cpu;
    return n;
}

/* Bound by Open MPI without having been asked to? */
static bool bound_by_default(void)
{
    return getenv("OMPI_MCA_orte_bound_at_launch") != NULL && getenv("OMPI_MCA_hwloc_base_binding_policy") == NULL &&
           getenv("OMPI_MCA_rmaps_base_mapping_policy") == NULL;
}

/* Give this rank its even share of the host's cores. */
static void widen(clv_comm *world)
{
    const int local = clv_comm_local_size(world), me = clv_comm_local_rank(world);
    cpu_set_t before, all;
    if (sched_getaffinity(0, sizeof before, &before) != 0)
        return;
    CPU_ZERO(&all);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
        CPU_SET(cpu, &all);
    int list[CPU_SETSIZE];
    if (sched_setaffinity(0, sizeof all, &all) != 0 || sched_getaffinity(0, sizeof all, &all) != 0)
        return;
    const int cores = cores_of(&all, list), share = cores / local;
    cpu_set_t mine;
    CPU_ZERO(&mine);
    for (int i = me * share; i < (me + 1) * share; i++)
        CPU_SET((size_t)list[i], &mine);
    if (share <= CPU_COUNT(&before) || sched_setaffinity(0, sizeof mine, &mine) != 0)
        sched_setaffinity(0, sizeof before, &before);
}

clv_binding clv_binding_find(clv_comm *world)
{
    if (bound_by_default())
        widen(world);
    cpu_set_t mine;
    CPU_ZERO(&mine);
    sched_getaffinity(0, sizeof mine, &mine);
    int list[CPU_SETSIZE];
    clv_binding b = {.cores = CLV_MAX(cores_of(&mine, list), 1)};
    const int n = clv_comm_size(world), local = clv_comm_local_size(world);
    const int first = clv_comm_rank(world) - clv_comm_local_rank(world);
    cpu_set_t *all = clv_alloc((size_t)n, sizeof *all);
    clv_all_gather(world, all, &mine, sizeof mine, CLV_U8);
    for (int r = CLV_MAX(first, 0); r < CLV_MIN(first + local, n); r++) { /* ranks of a host follow each other */
        cpu_set_t both;
        CPU_AND(&both, &mine, &all[r]);
        b.sharing += CPU_COUNT(&both) > 0 ? 1 : 0;
    }
    free(all);
    b.sharing = CLV_MAX(b.sharing, 1);
    return b;
}

int clv_binding_threads(const clv_binding *b, int64_t wanted)
{
    const char *user = getenv("OMP_NUM_THREADS");
    int64_t given = 0;
    if (wanted > 0)
        return (int)wanted;
    if (user != NULL && clv_parse_i64(user, &given) && given > 0 && given < 4096)
        return (int)given;
    return CLV_MAX(b->cores / b->sharing, 1);
}

void clv_binding_warn(const clv_binding *b, int threads)
{
    if (b->sharing > b->cores)
        clv_log(CLV_LOG_WARN, "%d ranks share %d core%s: they take turns, and the run is slow", b->sharing, b->cores,
                b->cores == 1 ? "" : "s");
    else if (threads * b->sharing > b->cores)
        clv_log(CLV_LOG_WARN,
                "%d threads of %d rank%s are bound to %d core%s; use --threads %d, or give ranks more cores "
                "(mpirun --map-by slot:PE=%d --bind-to core)",
                threads * b->sharing, b->sharing, b->sharing == 1 ? "" : "s", b->cores, b->cores == 1 ? "" : "s",
                CLV_MAX(b->cores / b->sharing, 1), threads);
}
