/* checkpoint_internal.h - what the files of the checkpoint share: the catalog of what lies in its files, boxes on their
 * way to the rank that writes them, its state and checksums, and the disk.
 */
#ifndef CLV_CHECKPOINT_INTERNAL_H
#define CLV_CHECKPOINT_INTERNAL_H

#include "train/train.h"

enum {
    CLV_PIECE_BYTES = 64 << 20, /* bytes of a message, of a write, of a checksum's block */
    CLV_ROUND_BYTES = 1 << 20,  /* of a file, that travel at once while a run goes on */
    CLV_SHARD = 256 << 20,      /* a catalog of fewer bytes is one file */
    CLV_FORMAT = 2,             /* of training/state.json */
    CLV_ENTRY_PIECES = 3,       /* q, k, v in one tensor */
    CLV_ENTRY_NAME = 128 + 16,  /* a parameter's or file tensor's name, and "exp_avg_sq." or "fp32_param." */
    CLV_PATH = 4096
};

/* ---- checkpoint_catalog.c: the tensors of one safetensors file, or of its shards ---- */

typedef struct clv_piece { /* a parameter inside a file's tensor */
    const clv_param *param;
    size_t number;    /* of the parameter */
    clv_tensor local; /* what is saved and loaded: its weight, its master or a moment */
    const void *kept; /* what `local` held when the save began; NULL: what it holds now */
    bool own;         /* local holds the elements that this rank updates, not the whole shard */
    bool transposed;
    int64_t offset; /* of the parameter's dim 0 */
} clv_piece;

typedef struct clv_entry { /* a file's tensor */
    char name[CLV_ENTRY_NAME];
    int64_t dim[2]; /* dim[1] is 1 for a vector */
    int ndim;
    clv_dtype dtype; /* when saved; what is read may be of any */
    clv_piece piece[CLV_ENTRY_PIECES];
    int pieces;
    int file;
    /* clv_gather_survey: */
    bool straight; /* the rank that writes it has all of it, as it lies in the file */
    bool sends;    /* this rank sends some of it, perhaps to itself */
    bool done;     /* it stands in its image */
} clv_entry;

typedef struct clv_catalog {
    const char *stem; /* "model", "training/optimizer" */
    clv_entry *entry; /* those of a file stand together */
    size_t count;
    int files, ranks; /* clv_catalog_spread */
    int64_t bytes;
} clv_catalog;

clv_catalog clv_catalog_weights(const clv_checkpoint *c, const clv_config *names);
clv_catalog clv_catalog_moments(const clv_checkpoint *c);
/* Masters of 16-bit weights, after the moments. When loaded they go where the weights go: a run may have none. */
bool clv_checkpoint_has_masters(const clv_checkpoint *c);
void clv_catalog_masters(clv_catalog *catalog, const clv_checkpoint *c, bool saving);
/* Over files of about `shard` bytes, at most one a rank. */
void clv_catalog_spread(clv_catalog *catalog, int ranks, int64_t shard);
void clv_catalog_free(clv_catalog *catalog);
int clv_catalog_owner(const clv_catalog *catalog, int file); /* the rank that writes it */
/* out holds CLV_PATH bytes: FOLDER/STEM.safetensors, or FOLDER/STEM-00002-of-00005.safetensors. */
void clv_catalog_path(const clv_catalog *catalog, int file, const char *folder, char *out);
clv_entry *clv_catalog_find(const clv_catalog *catalog, const char *name);

typedef struct clv_rect { /* rows and columns of a file's tensor */
    int64_t at[2], n[2];
} clv_rect;
clv_rect clv_piece_rect(const clv_piece *piece, clv_box box);
/* rows[1] rows from rows[0] on of the rectangle, dense, out of a transposed local tensor's elements of `size` bytes, 4
 * or 2. */
void clv_piece_turn(clv_rect rect, const int64_t rows[2], size_t size, const void *local, void *dense);

/* ---- checkpoint_read.c: tensors of files become what this rank holds, by all its threads ---- */

typedef struct clv_found { /* where an entry lies */
    const clv_safetensors *st;
    const clv_st_tensor *tensor;
} clv_found;

bool clv_is_weight_type(clv_dtype dtype); /* f32, bf16, f16, f64 */
void clv_weights_convert(float *out, const void *raw, int64_t n, clv_dtype dtype);
/* Elements of the tensor; raw holds as many of the file's type. */
clv_status clv_weights_read(const clv_found *from, clv_extent elements, void *raw);
/* Every entry from its place in `found`. What this rank holds of them has undefined values after an error. */
clv_status clv_catalog_read(clv_ctx *cx, const clv_catalog *catalog, const clv_found *found);

/* ---- checkpoint_gather.c: boxes travel to the owner, as the bytes that they are ---- */

typedef struct clv_buffer { /* grows, and is used again */
    char *data;
    size_t bytes;
} clv_buffer;
void *clv_buffer_take(clv_buffer *buffer, size_t bytes); /* at least so many; what was in it is lost */

struct clv_room {
    clv_arena images;                                /* of the files that this rank writes */
    clv_arena kept;                                  /* what it has yet to send */
    clv_buffer local[CLV_ENTRY_PIECES], wire, block; /* on the way; local: what a device has of an entry */
};

typedef struct clv_claim { /* what a rank holds of a parameter */
    clv_box box;
    clv_extent part; /* of a box whose elements several replicas update: those that this rank sends */
    int64_t holds;   /* 0: nothing, or not for sure what the first rank of the box has */
    int64_t speaks;  /* 0: another rank sends the same box */
    int64_t shared;  /* several replicas update it, each a part */
} clv_claim;

typedef struct clv_gather {
    clv_ctx *cx;
    clv_comm *world;
    clv_claim *claims; /* [rank][parameter] */
    size_t count;
    clv_room *room;
    bool own_room;
} clv_gather;

/* room: buffers that are kept; NULL: until _close. Collective: world */
void clv_gather_open(clv_gather *g, clv_ctx *cx, const clv_param *params, size_t count, clv_room *room);
void clv_gather_close(clv_gather *g);
void clv_gather_survey(const clv_gather *g, clv_catalog *catalog); /* who sends what */
/* What this rank will send of the entry is copied to the room, and later sent from there; the bytes that takes. */
void clv_gather_keep(clv_gather *g, clv_entry *e, int owner);
size_t clv_gather_kept_bytes(const clv_gather *g, const clv_entry *e, int owner);
/* Before the first rows of an entry that is not kept. */
void clv_gather_begin(clv_gather *g, const clv_entry *e, int owner);
/* Rows of the entry's tensor into `rows_out` on the owner. Collective: the owner and the ranks that send. */
void clv_gather_rows(clv_gather *g, const clv_entry *e, int owner, const int64_t rows[2], void *rows_out);
int64_t clv_entry_rows_in(const clv_entry *e, int64_t bytes); /* at least one */
void clv_copy_wide(void *to, const void *from, size_t bytes); /* by all threads */

/* ---- checkpoint_disk.c: every change of the disk asks first, so that a test can refuse the k-th, or all from the k-th
 * on, as a crash would ---- */

typedef struct clv_disk {
    clv_status (*permit)(void *state, const char *what, const char *path); /* NULL: everything is permitted */
    void *state;
    int64_t shard; /* CLV_SHARD, or less in tests */
} clv_disk;

clv_status clv_disk_permit(const clv_disk *disk, const char *what, const char *path);
clv_status clv_disk_write(const clv_disk *disk, const char *path, const void *data, size_t n); /* whole file, synced */
clv_status clv_disk_copy(const clv_disk *disk, const char *from, const char *to);              /* absent: nothing */
/* A large file from memory, past the page cache where that goes, synced. The image begins at a page, and its last one
 * is whole. */
clv_status clv_disk_stream(const clv_disk *disk, const char *path, const char *image, int64_t size);
clv_status clv_disk_make(const clv_disk *disk, const char *folder);
clv_status clv_disk_sync(const clv_disk *disk, const char *folder); /* the names in it */
/* `from` becomes `to`; a folder that stands there becomes `from`, in the same instant. */
clv_status clv_disk_swap(const clv_disk *disk, const char *from, const char *to, bool *swapped);
clv_status clv_disk_remove(const clv_disk *disk, const char *folder); /* with what is in it */
clv_status clv_disk_room(const char *folder, int64_t bytes);          /* Errors: path, needed and free bytes */

/* ---- checkpoint_write.c ---- */

typedef struct clv_output { /* the file that a rank owns; without tensors: none */
    char path[CLV_PATH];
    clv_st_tensor *tensors;
    size_t count;
    clv_text header;
    uint64_t *at; /* of each tensor in the file */
    int64_t size; /* of the file */
    const clv_disk *disk;
    clv_st_writer *writer; /* into the file at once; */
    char *image;           /* or into memory */
    clv_status status;
} clv_output;

/* What of a catalog this rank will write; the disk is not touched. */
void clv_output_open(clv_output *o, const clv_catalog *catalog, int rank, const char *folder, const clv_disk *disk);
void clv_output_close(clv_output *o);
/* The tensors of a catalog into their files. Every rank takes part to the end, whatever fails; the status is this
 * rank's own. Collective: world. */
clv_status clv_catalog_write(const clv_catalog *catalog, clv_gather *g, clv_output *o);

/* The same into images, in parts. _take: tensors of which a copy is all, and copies of what has yet to be turned or
 * sent; after it the parameters may change. Then the others follow in rounds, a block of each file: `walks` say how far
 * each file is. _has_more: is something left? Collective: world, _round. */
typedef struct clv_walk {
    size_t at, end; /* entries of the file that are left */
    int64_t row;
} clv_walk;
clv_walk *clv_catalog_walks(const clv_catalog *catalog); /* to be freed */
void clv_catalog_take(clv_catalog *catalog, clv_gather *g, clv_output *o);
int64_t clv_catalog_rounds(const clv_catalog *catalog); /* after _take */
bool clv_catalog_has_more(const clv_catalog *catalog, clv_walk *walks);
void clv_catalog_round(const clv_catalog *catalog, clv_gather *g, clv_output *o, clv_walk *walks);
size_t clv_catalog_kept_bytes(const clv_catalog *catalog, const clv_gather *g);
clv_status clv_catalog_write_index(const clv_catalog *catalog, const char *folder, const clv_disk *disk);

/* ---- checkpoint_image.c ---- */

clv_status clv_room_reserve(clv_room *room, const clv_output *const outputs[], size_t count, size_t kept);
void clv_output_place(clv_output *o, clv_room *room);
clv_status clv_output_write(const clv_output *o); /* the image, if there is one; nothing communicates */

/* ---- checkpoint_state.c: training/state.json ---- */

clv_status clv_state_write(const clv_checkpoint *c, const char *folder, int optimizer_files, const clv_disk *disk);
clv_status clv_state_read(clv_progress *out, int *optimizer_files, const char *folder);

/* ---- checkpoint_sums.c: training/checksums.json ---- */

void clv_sums_add(clv_text *out, clv_status *status, const char *folder,
                  const char *name); /* one member, if it exists */
void clv_sums_add_image(clv_text *out, const char *name, const char *image, int64_t size);
void clv_sums_join(clv_comm *world, clv_text *sums); /* rank 0 gets what all ranks have. Collective: world. */
clv_status clv_sums_write(const clv_text *sums, const char *folder, const clv_disk *disk);
/* This rank's share of the blocks. Nothing to check is well. Files under training/optimizer only when asked for. */
clv_status clv_sums_verify(clv_comm *world, const char *folder, bool optimizer);

/* ---- checkpoint_find.c ---- */

#define CLV_TEMPORARY ".tmp"
bool clv_ends_with(const char *name, const char *end);
int64_t clv_checkpoint_iteration(const char *name); /* iter_ and digits; -1 for any other name */
bool clv_checkpoint_is_name(const char *name);
/* Names in a folder that `wanted` takes. */
size_t clv_names_list(const char *folder, bool (*wanted)(const char *name), char ***out);
void clv_names_free(char **names, size_t count);

/* ---- checkpoint.c ---- */

clv_status clv_checkpoint_save_on(const clv_checkpoint *c, const char *root, int64_t keep_last, const clv_disk *disk);
clv_status clv_checkpoint_begin_on(clv_saving **out, const clv_checkpoint *c, const char *root, int64_t keep_last,
                                   const clv_disk *disk);

#endif
