/* comm_fake.c - rank r of n without peers, for planning: what would cross the wire is counted (comm.c), and nothing
 * moves. Buffers are left as they are; no pointer to data is followed, since a planning run has none (the counts of
 * an all-to-all are real).
 */
#include "comm/comm_internal.h"

#include <stdlib.h>

static int fake_begin(clv_comm *comm, const clv_transfer *transfer)
{
    (void)comm, (void)transfer;
    return -1;
}

static void fake_progress(clv_comm *comm)
{
    (void)comm;
}

static clv_comm *fake_split(clv_comm *parent, int color, int key, int rank, int size)
{
    (void)parent, (void)color, (void)key;
    return clv_comm_fake_open(rank, size);
}

static void fake_close(clv_comm *comm)
{
    free(comm);
}

static const clv_comm_ops fake_ops = {
    .begin = fake_begin, .progress = fake_progress, .split = fake_split, .close = fake_close, .abort = exit};

clv_comm *clv_comm_fake_open(int rank, int size)
{
    clv_comm *comm = clv_alloc(1, sizeof *comm);
    clv_comm_init(comm, &fake_ops, rank, size);
    comm->dry = true;
    return comm;
}
