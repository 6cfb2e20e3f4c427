/* start.c - what a run waits for before its first step; bench/start makes the files, runs this and judges.
 *
 *   bench_start make gpt2|llama ROOT        a checkpoint of about 1 GiB, weights only, fp32
 *   bench_start sums FOLDER                 adds the checksums that a checkpoint with training/ has
 *   bench_start load FOLDER [THREADS]       [mpirun -n N] seconds of a load, beside those of reading the same bytes
 *   bench_start documents N PREFIX          token files of N documents; their .bin is one hole
 *   bench_start index PREFIX                seconds until the first sample of an epoch can be read
 *
 * The yardstick of a load is pread() of the same files, which the page cache holds, by as many threads of as many
 * ranks, in pieces of 1 MiB: into memory that was written before, and into memory that is new, as a run's weights are.
 * Both kinds of memory come from an arena, so both may have huge pages. They take turns, and the fastest of each
 * counts. Everything is printed as NAME VALUE.
 */
#include "train/checkpoint_internal.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROUNDS = 5, PIECE = 1 << 20 };

static void must(clv_status status)
{
    if (status.code == CLV_OK)
        return;
    fprintf(stderr, "bench_start: %s\n", status.text);
    exit((int)status.code);
}

/* ---- a model ----------------------------------------------------------------------------------------------------- */

static clv_engine engine_open(const clv_config *config, const clv_mesh *mesh)
{
    const clv_engine_spec spec = {
        .config = config, .vocab_divisor = 1, .micro_batch = 1, .seq_length = 1, .backend = "cpu"};
    clv_engine engine;
    must(clv_engine_create(&engine, mesh, &spec));
    return engine;
}

static clv_checkpoint weights_of(clv_engine *engine, const clv_config *config)
{
    return (clv_checkpoint){
        .cx = &engine->cx, .config = config, .params = engine->params, .param_count = engine->param_count};
}

/* ---- make -------------------------------------------------------------------------------------------------------- */

static clv_config shape_of(const char *name)
{
    clv_options o;
    clv_options_default(&o, clv_options_command("train"));
    char gpt2[] = "--num-layers=18 --hidden-size=1024 --num-attention-heads=16 --vocab-size=50257 --openai-gelu";
    char llama[] = "--num-layers=18 --hidden-size=1024 --num-attention-heads=16 --num-query-groups=8 "
                   "--ffn-hidden-size=2816 --vocab-size=32000 --swiglu --normalization=RMSNorm "
                   "--position-embedding-type=rope --disable-bias-linear --untie-embeddings-and-output-weights";
    char *words[16], *rest = strcmp(name, "gpt2") == 0 ? gpt2 : llama;
    int count = 0;
    for (char *word = strtok(rest, " "); word != NULL; word = strtok(NULL, " "))
        words[count++] = word;
    must(clv_options_parse(&o, count, words, NULL));
    clv_config config;
    must(clv_options_config(&o, 0, &config));
    clv_options_free(&o);
    return config;
}

static void make(const clv_mesh *mesh, const char *name, const char *root)
{
    const clv_config config = shape_of(name);
    clv_engine engine = engine_open(&config, mesh);
    clv_engine_init(&engine, 1);
    const clv_checkpoint c = weights_of(&engine, &config);
    must(clv_checkpoint_save(&c, root, 0));
    clv_engine_destroy(&engine);
}

static void add_sums(const char *folder)
{
    const clv_disk disk = {0};
    clv_text sums = {0};
    clv_status status = clv_ok();
    char path[CLV_PATH];
    clv_path_join(path, sizeof path, folder, "training");
    must(clv_disk_make(&disk, path));
    clv_sums_add(&sums, &status, folder, "config.json");
    clv_sums_add(&sums, &status, folder, "model.safetensors");
    must(status);
    must(clv_sums_write(&sums, folder, &disk));
    clv_text_free(&sums);
}

/* ---- load -------------------------------------------------------------------------------------------------------- */

typedef struct file {
    int fd;
    int64_t bytes, at; /* at: in the buffer */
} file;

/* Every tensor file of the folder. */
static file *files_open(const char *folder, int *count, int64_t *bytes)
{
    clv_safetensors *st;
    must(clv_safetensors_open(&st, folder));
    int last = 0;
    for (size_t i = 0; i < clv_safetensors_count(st); i++)
        last = CLV_MAX(last, clv_safetensors_at(st, i)->file);
    file *files = clv_alloc((size_t)last + 1, sizeof *files);
    *bytes = 0;
    for (int i = 0; i <= last; i++) {
        struct stat info;
        files[i].fd = open(clv_safetensors_file(st, i), O_RDONLY);
        CLV_CHECK(files[i].fd >= 0 && fstat(files[i].fd, &info) == 0, "cannot open %s", clv_safetensors_file(st, i));
        files[i].bytes = info.st_size;
        files[i].at = *bytes;
        *bytes += info.st_size;
    }
    clv_safetensors_close(st);
    *count = last + 1;
    return files;
}

/* This rank's pieces of all, by all threads. */
static void read_share(clv_comm *world, const file *files, int count, char *out)
{
    const int64_t rank = clv_comm_rank(world), ranks = clv_comm_size(world);
    for (int f = 0; f < count; f++) {
#pragma omp parallel for schedule(static)
        for (int64_t i = rank; i < CLV_CEIL_DIV(files[f].bytes, PIECE); i += ranks) {
            const int64_t at = i * PIECE, n = CLV_MIN(PIECE, files[f].bytes - at);
            CLV_CHECK(pread(files[f].fd, out + files[f].at + at, (size_t)n, at) == n, "a short read");
        }
    }
}

/* Since `start`, on the slowest rank. */
static double since(clv_comm *world, double start)
{
    double time = clv_seconds() - start;
    clv_all_reduce(world, &time, &time, 1, CLV_F64, CLV_MAX);
    return time;
}

typedef struct times { /* into memory that is new, and once more */
    double new, written;
} times;

static void read_twice(clv_comm *world, const file *files, int count, int64_t bytes, times *best)
{
    clv_arena buffer;
    must(clv_arena_create(&buffer, "buffer", (size_t)bytes));
    double *const time[] = {&best->new, &best->written};
    for (int i = 0; i < 2; i++) {
        clv_barrier(world);
        const double start = clv_seconds();
        read_share(world, files, count, buffer.base);
        *time[i] = fmin(*time[i], since(world, start));
    }
    clv_arena_destroy(&buffer);
}

static void load_twice(const clv_mesh *mesh, const clv_config *config, const char *folder, times *best)
{
    clv_comm *world = clv_mesh_world(mesh);
    clv_engine engine = engine_open(config, mesh);
    const clv_checkpoint c = weights_of(&engine, config);
    double *const time[] = {&best->new, &best->written};
    for (int i = 0; i < 2; i++) {
        clv_barrier(world);
        const double start = clv_seconds();
        must(clv_checkpoint_load(&c, folder));
        *time[i] = fmin(*time[i], since(world, start));
    }
    clv_engine_destroy(&engine);
}

static void load(const clv_mesh *mesh, const char *folder)
{
    clv_comm *world = clv_mesh_world(mesh);
    clv_config config;
    int count;
    int64_t bytes;
    must(clv_hf_config_read(&config, folder));
    file *files = files_open(folder, &count, &bytes);
    times ours = {INFINITY, INFINITY}, plain = {INFINITY, INFINITY};
    for (int i = 0; i < ROUNDS; i++) {
        read_twice(world, files, count, bytes, &plain);
        load_twice(mesh, &config, folder, &ours);
    }
    if (clv_comm_rank(world) == 0)
        printf("bytes %lld\nread_written %.4f\nread_new %.4f\nload_written %.4f\nload_new %.4f\n", (long long)bytes,
               plain.written, plain.new, ours.written, ours.new);
    for (int i = 0; i < count; i++)
        close(files[i].fd);
    free(files);
}

/* ---- documents --------------------------------------------------------------------------------------------------- */

static void put(FILE *out, const void *data, size_t size)
{
    CLV_CHECK(fwrite(data, size, 1, out) == 1, "cannot write the index");
}

/* Of 1 to 1,000 tokens. The writer of the format would write 10 GB of tokens; here they are a hole in the file. */
static int32_t length_of(int64_t document)
{
    return 1 + (int32_t)((uint32_t)document * 2654435761u >> 8) % 1000;
}

static void documents(int64_t count, const char *prefix)
{
    const int64_t version = 1, bounds = count + 1;
    const uint8_t u16 = 8;
    char path[4096];
    snprintf(path, sizeof path, "%s.idx", prefix);
    FILE *out = fopen(path, "wb");
    CLV_CHECK(out != NULL, "cannot create %s", path);
    put(out, "MMIDIDX\0", 9);
    put(out, &version, 8);
    put(out, &u16, 1);
    put(out, &count, 8);
    put(out, &bounds, 8);
    int64_t bytes = 0;
    for (int64_t i = 0; i < count; i++)
        put(out, &(int32_t){length_of(i)}, 4);
    for (int64_t i = 0; i < count; bytes += 2 * length_of(i++))
        put(out, &bytes, 8);
    for (int64_t i = 0; i <= count; i++)
        put(out, &i, 8);
    CLV_CHECK(fclose(out) == 0, "cannot write %s", path);
    snprintf(path, sizeof path, "%s.bin", prefix);
    const int bin = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    CLV_CHECK(bin >= 0 && ftruncate(bin, bytes) == 0 && close(bin) == 0, "cannot make %s", path);
}

/* ---- index ------------------------------------------------------------------------------------------------------- */

static double open_index(const char *prefix, clv_data_order order)
{
    enum { LENGTH = 1024 };
    int32_t *tokens = clv_alloc(LENGTH + 1, sizeof *tokens);
    const clv_dataset_spec spec = {.prefix = &prefix,
                                   .count = 1,
                                   .seq_length = LENGTH,
                                   .vocab = 50257,
                                   .seed = 1234,
                                   .order = order,
                                   .samples = 1000000};
    clv_dataset *data;
    const double start = clv_seconds();
    must(clv_dataset_open(&data, &spec));
    must(clv_dataset_sample(data, 0, tokens));
    const double time = clv_seconds() - start;
    clv_dataset_close(data);
    free(tokens);
    return time;
}

static void index_of(const char *prefix)
{
    double stable = INFINITY, megatron = INFINITY, open = INFINITY;
    for (int i = 0; i < ROUNDS; i++) {
        clv_indexed *data;
        const double start = clv_seconds();
        must(clv_indexed_open(&data, prefix));
        open = fmin(open, clv_seconds() - start);
        clv_indexed_close(data);
        stable = fmin(stable, open_index(prefix, CLV_ORDER_STABLE));
        megatron = fmin(megatron, open_index(prefix, CLV_ORDER_MEGATRON));
    }
    printf("open %.4f\nstable %.4f\nmegatron %.4f\n", open, stable, megatron);
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static int usage(void)
{
    fprintf(stderr,
            "usage: bench_start make gpt2|llama ROOT | sums FOLDER | load FOLDER [THREADS] | documents N PREFIX | "
            "index PREFIX\n");
    return CLV_BAD_USAGE;
}

int main(int argc, char **argv)
{
    clv_comm *world;
    clv_mesh *mesh;
    int64_t number = clv_backend_threads();
    must(clv_comm_world_open(&world, &argc, &argv));
    must(clv_mesh_create(&mesh, world, &(clv_layout){.tp = clv_comm_size(world)}));
    const char *verb = argc > 2 ? argv[1] : "";
    if (strcmp(verb, "make") == 0 && argc == 4) {
        make(mesh, argv[2], argv[3]);
    } else if (strcmp(verb, "sums") == 0) {
        add_sums(argv[2]);
    } else if (strcmp(verb, "load") == 0 && (argc == 3 || clv_parse_i64(argv[3], &number)) && number > 0) {
        clv_backend_threads_set((int)number);
        load(mesh, argv[2]);
    } else if (strcmp(verb, "documents") == 0 && argc == 4 && clv_parse_i64(argv[2], &number) && number > 0) {
        documents(number, argv[3]);
    } else if (strcmp(verb, "index") == 0) {
        index_of(argv[2]);
    } else {
        return usage();
    }
    clv_mesh_destroy(mesh);
    clv_comm_world_close(world);
    return CLV_OK;
}
