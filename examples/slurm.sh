#!/bin/bash
#SBATCH --job-name=cleave
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=16
#SBATCH --time=12:00:00
#SBATCH --signal=TERM@300
#SBATCH --requeue
#SBATCH --output=%x-%j.log
#
# A run on a cluster: one rank a socket, eight in all. The two ranks of a node share each layer, since they exchange
# activations all the time; the four nodes share the batch, and exchange gradients once an update.
#
#   sbatch examples/slurm.sh [options of cleave train]
#
# Five minutes before the time is up Slurm sends SIGTERM to the ranks: cleave saves and leaves with exit code 4. The configuration
# loads what it saved, so the job puts itself into the queue again until the run is complete.
#
# Build on a node of the kind that computes, with the MPI of the cluster: cmake -B build && cmake --build build
set -u
cd "${SLURM_SUBMIT_DIR:-.}" || exit 1
mkdir -p runs

# srun starts the ranks through PMIx, which Open MPI speaks, and binds each to its cores; cleave takes a thread for each
# core that it is allowed to use. `srun --mpi=list` tells whether this Slurm has pmix.
srun --mpi=pmix --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 \
    build/cleave train --config examples/gpt2-124m.yaml \
    --tensor-model-parallel-size "$SLURM_NTASKS_PER_NODE" --sequence-parallel "$@"
code=$?
[ $code -eq 4 ] && scontrol requeue "$SLURM_JOB_ID"
exit $code
