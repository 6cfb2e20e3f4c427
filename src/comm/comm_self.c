/* comm_self.c - the world of one process. comm.c answers groups of one rank, so this table only opens and closes. */
#include "comm/comm_internal.h"

#include <stdlib.h>

static void self_close(clv_comm *comm)
{
    free(comm);
}

static clv_comm *self_split(clv_comm *parent, int color, int key, int rank, int size)
{
    (void)parent, (void)color, (void)key;
    CLV_CHECK(rank == 0 && size == 1, "one process cannot be rank %d of %d", rank, size);
    return clv_comm_self_open();
}

static const clv_comm_ops self_ops = {.split = self_split, .close = self_close, .abort = exit};

clv_comm *clv_comm_self_open(void)
{
    clv_comm *comm = clv_alloc(1, sizeof *comm);
    clv_comm_init(comm, &self_ops, 0, 1);
    return comm;
}
