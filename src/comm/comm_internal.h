/* comm_internal.h - what a kind of world (self, MPI, fake) gives to comm.c and mesh.c.
 *
 * comm.c checks, counts and answers groups of one rank by itself; all else it hands to the table as one description of
 * the transfer. A world therefore needs `begin`, `end` and `progress`, and every blocking call is a begin and its end.
 */
#ifndef CLV_COMM_INTERNAL_H
#define CLV_COMM_INTERNAL_H

#include "comm/comm.h"

enum { CLV_BARRIER = CLV_TRAFFIC_KINDS }; /* a transfer without traffic */

typedef struct clv_transfer {
    int kind; /* clv_traffic_kind or CLV_BARRIER */
    void *out;
    const void *in;
    size_t count; /* elements, as the public function counts them */
    clv_dtype dtype;
    clv_reduction how;
    int peer; /* root of a broadcast, the other end of a message */
    int tag;
    const size_t *out_counts, *in_counts; /* all-to-all */
} clv_transfer;

typedef struct clv_comm_ops {
    /* Returns the slot to give to `end`, or -1 when nothing is left to wait for. */
    int (*begin)(clv_comm *comm, const clv_transfer *transfer);
    void (*end)(clv_comm *comm, int slot);
    void (*progress)(clv_comm *comm);
    /* The ranks of one color, ordered by key; this one is `rank` of `size`. Collective: parent. */
    clv_comm *(*split)(clv_comm *parent, int color, int key, int rank, int size);
    void (*close)(clv_comm *comm);
    void (*abort)(int code);
} clv_comm_ops;

struct clv_comm {
    const clv_comm_ops *ops;
    char name[32];
    int rank, size;
    int local_rank, local_size, hosts; /* of the world */
    size_t piece;                      /* bytes of one message at most */
    bool synchronous;                  /* a send is over only when its receive is posted */
    bool dry;                          /* planning: the pointers are no memory */
    const clv_watch *watch;            /* NULL: nobody */
    clv_traffic traffic[CLV_TRAFFIC_KINDS];
};

/* Fills the common part; pieces of 2^30 bytes, one host. */
void clv_comm_init(clv_comm *comm, const clv_comm_ops *ops, int rank, int size);

/* out = in[0] + in[1] + ... + in[n-1], added in this order (or their maximum, which keeps NaN). out may be one of them.
 */
void clv_reduce_in_order(void *out, const void *const *in, int n, size_t count, clv_dtype dtype, clv_reduction how);

/* launch.c: what the launcher's variables tell before MPI starts. The number of ranks that it says it started, 0
 * without a launcher; and its name. */
int clv_launched_size(const char **launcher);
/* More ranks than cores on this host, none bound: Open MPI is asked to yield while it waits, unless the user chose. */
void clv_launch_yield(void);
bool clv_launch_yields(void);      /* is that Open MPI's affair: chosen, asked for, or known to its mpirun? */
bool clv_launch_synchronous(void); /* see clv_comm_synchronize */

#endif
