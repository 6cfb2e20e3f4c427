/* base.h - what every layer may use: status, panic, log, arena, random bits, text, and the shape of a model.
 *
 * Two kinds of error exist. A broken contract (a bug) panics: file, line, values, and every rank is brought down.
 * Bad input (a user's file, option, size) is a clv_status that travels up and on which ranks agree.
 */
#ifndef CLV_BASE_H
#define CLV_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CLV_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define CLV_COUNT(array)      (sizeof(array) / sizeof((array)[0]))
#define CLV_MIN(a, b)         ((a) < (b) ? (a) : (b))
#define CLV_MAX(a, b)         ((a) > (b) ? (a) : (b))
#define CLV_CEIL_DIV(a, b)    (((a) + (b)-1) / (b))

/* ---- status.c: what can fail returns one of these, by value; nothing to free ------------------------------------ */

typedef enum clv_code { /* the program's exit codes */
                        CLV_OK = 0,
                        CLV_BAD_INPUT = 1,    /* a file, value or size that cannot be used */
                        CLV_BAD_USAGE = 2,    /* an option that does not exist or is not well formed */
                        CLV_CHECK_FAILED = 3, /* a check of the run itself: drift, NaN, verification */
                        CLV_INTERRUPTED = 4   /* stopped by a signal after saving */
} clv_code;

typedef struct clv_status {
    clv_code code;
    char text[1020]; /* what is wrong, with the value, and what to change; empty when code is CLV_OK */
} clv_status;

clv_status clv_ok(void);
clv_status clv_fail(clv_code code, const char *fmt, ...) CLV_PRINTF(2, 3);
/* Put "prefix: " in front of a failure's text (a file name, say); an OK status passes through. */
clv_status clv_within(clv_status inner, const char *fmt, ...) CLV_PRINTF(2, 3);

#define CLV_TRY(call)                                                                                                  \
    do {                                                                                                               \
        const clv_status clv_try_ = (call);                                                                            \
        if (clv_try_.code != CLV_OK)                                                                                   \
            return clv_try_;                                                                                           \
    } while (0)

/* ---- log.c: stderr for people, panic for bugs -------------------------------------------------------------------- */

typedef enum clv_log_level { CLV_LOG_ERROR, CLV_LOG_WARN, CLV_LOG_INFO, CLV_LOG_DEBUG } clv_log_level;

/* Messages above `level` are dropped; ranks other than 0 print only errors, with their rank in front. */
void clv_log_setup(clv_log_level level, int rank, int size);
void clv_log(clv_log_level level, const char *fmt, ...) CLV_PRINTF(2, 3);

/* The hook brings the other ranks down (MPI_Abort); it need not return. */
void clv_panic_hook_set(void (*hook)(int exit_code));
_Noreturn void clv_panic(const char *file, int line, const char *fmt, ...) CLV_PRINTF(3, 4);

#define CLV_PANIC(...) clv_panic(__FILE__, __LINE__, __VA_ARGS__)
#define CLV_CHECK(condition, ...)                                                                                      \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            clv_panic(__FILE__, __LINE__, __VA_ARGS__);                                                                \
    } while (0)

double clv_seconds(void); /* monotonic, in seconds */

/* ---- signal.c: SIGTERM, SIGINT, SIGUSR1 ask for a save and an orderly end ---- */
void clv_signals_catch(void);
int clv_signal_caught(void); /* its number, 0 when none came */

/* ---- arena.c: memory by lifetime ----------------------------------------------------------------------------------
 */

typedef enum clv_dtype { CLV_F32, CLV_BF16, CLV_F16, CLV_I32, CLV_U8, CLV_F64, CLV_I64, CLV_DTYPES } clv_dtype;

/* A bump allocator. Without memory behind it (base == NULL) it only counts: pushes return NULL, `peak` tells what a run
 * of the same code needs. That is how `plan` works, and how a trainer sizes its arenas. */
typedef struct clv_arena {
    const char *name;
    char *base;
    size_t size, used, peak; /* bytes */
    clv_dtype dtype;         /* storage type of activations made here */
} clv_arena;

enum { CLV_ARENA_ALIGN = 64 };

clv_arena clv_arena_counting(const char *name);
/* Pages are reserved and touched lazily, huge where the system allows. Errors: not enough memory, with the size. */
clv_status clv_arena_create(clv_arena *arena, const char *name, size_t size);
void clv_arena_destroy(clv_arena *arena);
/* Contract: bytes fits; a real arena that overflows panics, since its size was counted beforehand. */
void *clv_arena_push(clv_arena *arena, size_t bytes);
size_t clv_arena_mark(const clv_arena *arena);
void clv_arena_release(clv_arena *arena, size_t mark);

/* Heap memory for set-up and host-side tables; running out of it panics. Free with free(). */
void *clv_alloc(size_t count, size_t size); /* zeroed */
void *clv_resize(void *old, size_t count, size_t size);
char *clv_strdup(const char *text);
int64_t clv_memory_resident(void); /* bytes of this process in memory now; 0 where the system does not say */

/* ---- task.c: work beside the run, on a thread that lets others go first --------------------------------------------
 */

typedef struct clv_task clv_task;
clv_task *clv_task_start(void (*work)(void *state), void *state);
bool clv_task_is_done(clv_task *task);
void clv_task_end(clv_task *task); /* waits for it; NULL: nothing */

/* ---- rng.c: Philox4x32-10, the only source of random bits ----------------------------------------------------------
 */

typedef struct clv_philox {
    uint32_t word[4];
} clv_philox;

/* Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3". */
clv_philox clv_philox_block(const uint32_t counter[4], const uint32_t key[2]);
/* Element `index` of the stream `key`: uniform in [0, 1) with 24 bits; normal(0, 1) by Box-Muller in double. */
float clv_uniform_at(uint64_t key, uint64_t index);
double clv_normal_at(uint64_t key, uint64_t index);
uint64_t clv_hash_name(uint64_t seed, const char *name); /* a key for a named thing */
/* A permutation of 0 .. n-1 drawn from key (Fisher-Yates). */
void clv_permutation(int64_t *out, int64_t n, uint64_t key);

/* ---- text.c: growing text, whole files, strict numbers, near names -------------------------------------------------
 */

typedef struct clv_text { /* zero-initialise; data is always terminated once something was added */
    char *data;
    size_t length, capacity;
} clv_text;

void clv_text_add(clv_text *text, const char *bytes, size_t n);
void clv_text_printf(clv_text *text, const char *fmt, ...) CLV_PRINTF(2, 3);
void clv_text_free(clv_text *text);

/* Whole file into memory (terminated by a zero that is not counted). Errors: path and the system's reason. */
clv_status clv_file_read(const char *path, clv_text *out);
/* Write through a temporary name, fsync, rename: a reader sees the old or the new file, never half of one. */
clv_status clv_file_write_atomic(const char *path, const void *data, size_t n);
clv_status clv_make_dirs(const char *path);   /* like mkdir -p */
clv_status clv_make_parent(const char *path); /* the folder that the file `path` will lie in */
bool clv_file_exists(const char *path);
void clv_path_join(char *out, size_t size, const char *folder, const char *name);

/* The whole of text must be the number, in range. */
bool clv_parse_i64(const char *text, int64_t *out);
bool clv_parse_f64(const char *text, double *out);
size_t clv_edit_distance(const char *a, const char *b);
/* The closest of `count` names by edit distance, or NULL when none is near. */
const char *clv_nearest(const char *name, const char *const *names, size_t count);

/* ---- config.c: the shape of a model, plain data ---------------------------------------------------------------------
 */

typedef enum clv_norm_kind { CLV_LAYERNORM, CLV_RMSNORM } clv_norm_kind;
typedef enum clv_act { CLV_GELU, CLV_GELU_TANH, CLV_RELU, CLV_SWIGLU } clv_act; /* CLV_GELU is the erf form */
typedef enum clv_position { CLV_POS_NONE, CLV_POS_LEARNED, CLV_POS_ROPE } clv_position;
typedef enum clv_rope_kind { CLV_ROPE_DEFAULT, CLV_ROPE_LINEAR, CLV_ROPE_LLAMA3 } clv_rope_kind;

typedef struct clv_config {
    char model_type[16];   /* gpt2 llama mistral qwen2 qwen3, or cleave for a shape that none of them can state */
    int64_t vocab;         /* V, real classes, without padding */
    int64_t hidden;        /* h */
    int64_t layers;        /* l */
    int64_t heads;         /* n, query heads */
    int64_t kv_heads;      /* g */
    int64_t head_dim;      /* d; n d need not equal h */
    int64_t ffn;           /* f, of one branch when gated */
    int64_t max_positions; /* rows of a learned table; the longest context otherwise */
    clv_norm_kind norm;
    double norm_eps;
    clv_act act;
    clv_position position;
    double rope_base, rotary_percent;
    clv_rope_kind rope_kind;
    double rope_factor, rope_low_freq, rope_high_freq;
    int64_t rope_original; /* original_max_position_embeddings */
    bool qk_norm;
    bool bias_qkv, bias_proj, bias_fc1, bias_fc2;
    bool tied;            /* output layer uses the word embedding */
    int64_t window;       /* keys a query sees, itself included; 0 = all */
    int64_t window_first; /* first layer that uses the window */
    double init_std;
    double hidden_dropout, attention_dropout;
    int64_t bos, eos; /* -1 = none */
} clv_config;

clv_config clv_config_default(void);
/* Every rule that a shape must meet by itself, each with value and remedy. */
clv_status clv_config_check(const clv_config *config);
bool clv_config_has_gate(const clv_config *config);
/* Names for messages, files and options; the _from ones return false for an unknown name. */
const char *clv_norm_kind_name(clv_norm_kind kind);
const char *clv_act_name(clv_act act);
const char *clv_position_name(clv_position position);
const char *clv_rope_kind_name(clv_rope_kind kind);

#endif
