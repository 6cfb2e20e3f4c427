/* comm.h - groups of ranks and what crosses the wire.
 *
 * A mesh gives every rank a coordinate on each axis; a set of axes is a bit mask, and the ranks that differ only on
 * those axes form a group. There are no global groups: the mesh is an object that is passed.
 *
 * Rank order is Megatron's, tp-cp-dp-pp with tp fastest. The tp axis is two bits: TPK splits the KV heads (size
 * min(g, t)), TPR (the faster bit) holds the ranks that share one; together they are TP.
 */
#ifndef CLV_COMM_H
#define CLV_COMM_H

#include "tensor/tensor.h"

enum clv_axes {
    CLV_TPR = 1,
    CLV_TPK = 2,
    CLV_CP = 4,
    CLV_DP = 8,
    CLV_PP = 16,
    CLV_TP = CLV_TPR | CLV_TPK,
    CLV_WORLD = 31
};
enum { CLV_AXIS_COUNT = 5 };

typedef enum clv_reduction { CLV_SUM, CLV_MAX } clv_reduction;
typedef enum clv_traffic_kind {
    CLV_ALL_REDUCE,
    CLV_REDUCE_SCATTER,
    CLV_ALL_GATHER,
    CLV_ALL_TO_ALL,
    CLV_BROADCAST,
    CLV_SEND,
    CLV_RECV,
    CLV_TRAFFIC_KINDS
} clv_traffic_kind;

typedef struct clv_comm clv_comm; /* a group, and this process's place in it */
typedef struct clv_mesh clv_mesh;

typedef struct clv_pending { /* a collective in flight; zero means nothing to wait for */
    clv_comm *comm;
    int slot;
    int kind; /* clv_traffic_kind, or that of a barrier */
} clv_pending;

typedef struct clv_watch { /* somebody who is told of each wait for a transfer, when it is over */
    void (*seen)(void *user, const clv_comm *comm, clv_traffic_kind kind, double begin);
    void *user;
} clv_watch;

/* ---- worlds: comm_self.c one process; comm_mpi.c MPI; comm_fake.c rank r of n without peers (planning)
 * -------------------- */
clv_comm *clv_comm_self_open(void);
clv_comm *clv_comm_fake_open(int rank, int size);
/* Under a launcher (its variables are set) this is MPI's world, else one process without MPI. Errors: n single
 * processes started by a launcher of another MPI. Sets log rank and the panic hook. */
clv_status clv_comm_world_open(clv_comm **out, int *argc, char ***argv);
void clv_comm_world_close(clv_comm *world);
int clv_launch_spins(void); /* turns that a waiting thread spins before it sleeps; before or after the world is open */
void clv_comm_abort(clv_comm *world, int code); /* brings every rank down at once */
/* For tests: in groups made from now on no message is buffered on its way; a send ends when its receive is posted, as
 * large ones always do. CLEAVE_SYNCHRONOUS_SENDS=1 in the environment is the same from the start. */
void clv_comm_synchronize(clv_comm *world, bool on);

int clv_comm_rank(const clv_comm *comm);
int clv_comm_size(const clv_comm *comm);
const char *clv_comm_name(const clv_comm *comm); /* "tp", "dp+cp", "world" */
int clv_comm_local_rank(const clv_comm *world);  /* among the ranks of this host */
int clv_comm_local_size(const clv_comm *world);
int clv_comm_hosts(const clv_comm *world);

/* ---- collectives. Collective: the comm's ranks. Counts are elements and may exceed 2^31. Sums of f32, f64, i32, i64.
 * Every rank of the group gets the same bits. Order of the sum: rank 0, 1, 2, ...
 * ------------------------------------------- */
void clv_all_reduce(clv_comm *comm, void *out, const void *in, size_t count, clv_dtype dtype,
                    clv_reduction how); /* out may be in */
void clv_reduce_scatter(clv_comm *comm, void *out, const void *in, size_t count,
                        clv_dtype dtype); /* count: of one part; sums */
void clv_all_gather(clv_comm *comm, void *out, const void *in, size_t count, clv_dtype dtype); /* count: of one part */
void clv_all_to_all_v(clv_comm *comm, void *out, const size_t *out_counts, const void *in, const size_t *in_counts,
                      clv_dtype dtype);
void clv_broadcast(clv_comm *comm, void *data, size_t count, clv_dtype dtype, int root);
/* Messages of one tag (0 .. 16383) arrive in the order sent; both sides know the size. */
void clv_send(clv_comm *comm, const void *data, size_t bytes, int to, int tag);
void clv_recv(clv_comm *comm, void *data, size_t bytes, int from, int tag);
void clv_barrier(clv_comm *comm);

clv_pending clv_all_reduce_begin(clv_comm *comm, void *out, const void *in, size_t count, clv_dtype dtype);
clv_pending clv_reduce_scatter_begin(clv_comm *comm, void *out, const void *in, size_t count, clv_dtype dtype);
clv_pending clv_all_gather_begin(clv_comm *comm, void *out, const void *in, size_t count, clv_dtype dtype);
clv_pending clv_send_begin(clv_comm *comm, const void *data, size_t bytes, int to, int tag);
clv_pending clv_recv_begin(clv_comm *comm, void *data, size_t bytes, int from, int tag);
void clv_pending_end(clv_pending *pending); /* buffers are the caller's again */
void clv_comm_progress(clv_comm *comm);     /* let what is in flight move; cheap when nothing is */

/* The worst status of the group: every rank returns the failure of its lowest failing rank. Collective. */
clv_status clv_comm_agree(clv_comm *comm, clv_status mine);
/* A value that decides something, made equal: rank 0's bits. Collective. */
double clv_comm_decide(clv_comm *comm, double mine);

/* ---- mesh
 * ----------------------------------------------------------------------------------------------------------------------
 */
typedef struct clv_layout { /* sizes of the axes; zero-initialised members mean 1 */
    int tp, cp, dp, pp;
    int kv_heads; /* g: decides how tp is cut into TPK and TPR; 0 means g = tp */
} clv_layout;

/* Errors: sizes that do not multiply to the world, with both numbers. Collective: world. */
clv_status clv_mesh_create(clv_mesh **out, clv_comm *world, const clv_layout *layout);
void clv_mesh_destroy(clv_mesh *mesh);
clv_comm *clv_mesh_comm(const clv_mesh *mesh, unsigned axes); /* the group on which exactly these axes vary; equal
                                                             groups are one; a world of one axis bears its name */
clv_comm *clv_mesh_world(const clv_mesh *mesh);
clv_comm *
clv_mesh_ends(const clv_mesh *mesh); /* first and last stage of the pipeline; NULL elsewhere, or without one */
int clv_mesh_size(const clv_mesh *mesh, unsigned axes);
int clv_mesh_coord(const clv_mesh *mesh, unsigned axes);     /* this rank's number in that group */
void clv_mesh_progress(const clv_mesh *mesh);                /* for the idle hook of clv_ctx */
void clv_mesh_watch(clv_mesh *mesh, const clv_watch *watch); /* over all its groups; borrowed; NULL: nobody */

/* ---- the ledger: calls and payload bytes (what one rank hands in; for a gather, what it gets) per group and kind
 * ----------------- */
typedef struct clv_traffic {
    int64_t calls, bytes;
} clv_traffic;
clv_traffic clv_comm_traffic(const clv_comm *comm, clv_traffic_kind kind);
void clv_mesh_traffic_reset(clv_mesh *mesh);
void clv_mesh_traffic_print(const clv_mesh *mesh, clv_text *out); /* one line a group and kind that was used */
const char *clv_traffic_kind_name(clv_traffic_kind kind);

#endif
