/* launch.c - what the variables of launchers tell before MPI starts.
 *
 *   Open MPI's mpirun   OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_SIZE, PMIX_RANK
 *   MPICH, Intel MPI    PMI_SIZE, MPI_LOCALNRANKS
 *   srun                SLURM_STEP_NUM_TASKS, with --mpi also PMI_SIZE or PMIX_RANK
 *
 *   for tests           CLEAVE_SYNCHRONOUS_SENDS=1: messages are never buffered on their way
 *
 * A batch script of Slurm is no launch, so SLURM_NTASKS, which it sees too, says nothing.
 */
#include "comm/comm_internal.h"

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

static int number_in(const char *variable)
{
    const char *text = getenv(variable);
    int64_t value = 0;
    return text != NULL && clv_parse_i64(text, &value) && value > 0 && value <= INT32_MAX ? (int)value : 0;
}

int clv_launched_size(const char **launcher)
{
    static const struct {
        const char *variable, *launcher;
    } rows[] = {{"OMPI_COMM_WORLD_SIZE", "Open MPI's mpirun"},
                {"PMI_SIZE", "MPICH's mpiexec"},
                {"SLURM_STEP_NUM_TASKS", "srun"}};
    for (size_t i = 0; i < CLV_COUNT(rows); i++) {
        const int size = number_in(rows[i].variable);
        *launcher = rows[i].launcher;
        if (size > 0)
            return size;
    }
    *launcher = "a PMIx launcher";
    return getenv("PMIX_RANK") != NULL ? 1 : 0;
}

bool clv_launch_synchronous(void)
{
    return number_in("CLEAVE_SYNCHRONOUS_SENDS") > 0;
}

static int local_ranks(void)
{
    return CLV_MAX(number_in("OMPI_COMM_WORLD_LOCAL_SIZE"), number_in("MPI_LOCALNRANKS"));
}

static int cores_allowed(void)
{
    cpu_set_t cores;
    return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : CPU_SETSIZE;
}

/* A rank that mpirun has bound to some of the cores cannot tell which the others have: comm_mpi.c asks them later. */
void clv_launch_yield(void)
{
    const int cores = cores_allowed();
    const bool bound = getenv("OMPI_MCA_orte_bound_at_launch") != NULL && cores < sysconf(_SC_NPROCESSORS_ONLN);
    if (!bound && number_in("OMPI_COMM_WORLD_LOCAL_SIZE") > cores)
        setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
}

bool clv_launch_yields(void)
{
    return getenv("OMPI_MCA_mpi_yield_when_idle") != NULL || number_in("OMPI_MCA_mpi_oversubscribe") > 0;
}

/* A turn takes 10 to 50 ns. 2,000 bridge what one thread does between two parallel loops; longer waits mean that
 * another one has lost its core. */
int clv_launch_spins(void)
{
    enum { OWN = 2000, SHARED = 300 };
    const int ranks = local_ranks();
    const bool shared = ranks > 1 && (long)cores_allowed() * ranks > sysconf(_SC_NPROCESSORS_ONLN);
    return shared ? SHARED : OWN;
}
