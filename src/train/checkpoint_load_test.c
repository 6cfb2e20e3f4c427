/* nsize: 1 2 */
/* What a load refuses, and what it takes: damaged files, missing and unknown tensors, tied heads, other types. */
#include "train/checkpoint_test.h"

#include <unistd.h>

/* ---- folders made from a golden case with one thing changed ---- */

typedef struct change {
    const char *drop;   /* this tensor is left out */
    const char *copy;   /* this one ... */
    const char *as;     /* ... stands there once more under this name */
    float added;        /* with this added to its last element */
    clv_dtype dtype;    /* what all are converted to */
    const char *prefix; /* in front of all names */
} change;

static void convert(const float *in, size_t n, clv_dtype dtype, void *out)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &in[i], sizeof bits);
        if (dtype == CLV_F32)
            ((float *)out)[i] = in[i];
        else if (dtype == CLV_F64)
            ((double *)out)[i] = (double)in[i];
        else if (dtype == CLV_BF16)
            ((uint16_t *)out)[i] = (uint16_t)(bits >> 16);
        else /* F16, of values with an exponent that fits */
            ((uint16_t *)out)[i] =
                (uint16_t)((bits >> 16 & 0x8000) | (((bits >> 23 & 255) - 112) << 10) | (bits >> 13 & 1023));
    }
}

static void put(clv_st_writer *w, size_t slot, const clv_safetensors *st, const clv_st_tensor *t, const change *ch)
{
    const size_t n = (size_t)t->bytes / sizeof(float);
    float *values = clv_alloc(n, sizeof *values);
    void *out = clv_alloc(n, 8);
    must(clv_safetensors_read(st, t, 0, values, (size_t)t->bytes));
    for (size_t i = 0; i < n && ch->dtype == CLV_F16; i++) /* large enough for a plain exponent */
        values[i] += values[i] < 0 ? -1.0f : 1.0f;
    if (slot > 0 && ch->as != NULL && strcmp(t->name, ch->copy) == 0)
        values[n - 1] += ch->added;
    convert(values, n, ch->dtype, out);
    must(clv_st_writer_put(w, slot, 0, out, n * clv_dtype_size(ch->dtype)));
    free(values);
    free(out);
}

static void make_folder(const char *golden, const char *folder, const change *ch)
{
    char from[CLV_PATH], path[CLV_PATH];
    clv_safetensors *st;
    clv_st_writer *w;
    clv_path_join(from, sizeof from, CLEAVE_GOLDEN, golden);
    must(clv_safetensors_open(&st, from));
    const size_t n = clv_safetensors_count(st);
    clv_st_tensor *list = clv_alloc(n + 1, sizeof *list);
    const clv_st_tensor **origin = clv_alloc(n + 1, sizeof *origin);
    char(*names)[CLV_ENTRY_NAME] = clv_alloc(n + 1, sizeof *names);
    size_t count = 0;
    for (size_t i = 0; i <= n; i++) { /* the last one is the copy */
        const clv_st_tensor *t =
            i < n ? clv_safetensors_at(st, i) : (ch->as != NULL ? clv_safetensors_find(st, ch->copy) : NULL);
        if (t == NULL || (i < n && ch->drop != NULL && strcmp(t->name, ch->drop) == 0))
            continue;
        snprintf(names[count], sizeof names[count], "%s%s", ch->prefix != NULL ? ch->prefix : "",
                 i < n ? t->name : ch->as);
        list[count] = *t;
        list[count].name = names[count];
        list[count].dtype = ch->dtype;
        origin[count++] = t;
    }
    must(clv_make_dirs(folder));
    clv_path_join(path, sizeof path, folder, "model.safetensors");
    must(clv_st_writer_create(&w, path, list, count));
    for (size_t i = 0; i < count; i++) {
        const change plain = {.dtype = ch->dtype};
        put(w, i, st, origin[i], i + 1 == count && ch->as != NULL ? ch : &plain);
    }
    must(clv_st_writer_finish(w));
    char a[CLV_PATH], b[CLV_PATH];
    clv_path_join(a, sizeof a, from, "config.json");
    clv_path_join(b, sizeof b, folder, "config.json");
    must(clv_disk_copy(&(clv_disk){0}, a, b));
    clv_safetensors_close(st);
    free(list);
    free(origin);
    free(names);
}

/* Loads the changed folder into a model of the shape `config`. */
static clv_status load_changed(clv_comm *world, const char *golden, const clv_config *config, const change *ch,
                               model **out)
{
    char root[CLV_PATH];
    scratch_open(world, root);
    if (clv_comm_rank(world) == 0)
        make_folder(golden, root, ch);
    clv_barrier(world);
    model *m = model_open(world, config, (clv_layout){.tp = clv_comm_size(world)}, 1);
    const clv_checkpoint c = weights_of(m);
    const clv_status status = clv_checkpoint_load(&c, root);
    if (out != NULL)
        *out = m;
    else
        model_close(m);
    scratch_close(world, root);
    return status;
}

static int refuses(clv_comm *world, const char *golden, const change *ch, const char *a, const char *b)
{
    int failed = 0;
    const clv_config config = golden_config(golden);
    const clv_status status = load_changed(world, golden, &config, ch, NULL);
    EXPECT(status.code == CLV_BAD_INPUT && strstr(status.text, a) != NULL && strstr(status.text, b) != NULL,
           "'%s' does not mention %s and %s", status.text, a, b);
    return failed;
}

static int accepts(clv_comm *world, const char *golden, const change *ch)
{
    int failed = 0;
    const clv_config config = golden_config(golden);
    const clv_status status = load_changed(world, golden, &config, ch, NULL);
    EXPECT(status.code == CLV_OK, "%s", status.text);
    return failed;
}

static int names_and_shapes(clv_comm *world)
{
    int failed = 0;
    const char *key = "model.layers.1.self_attn.k_proj.weight", *norm = "model.norm.weight";
    failed += refuses(world, "llama-gqa", &(change){.drop = key}, key, "no tensor");
    failed += refuses(world, "llama-gqa", &(change){.copy = norm, .as = "model.extra.weight"}, "no place",
                      "model.extra.weight");
    failed += refuses(world, "llama-gqa", &(change){.drop = norm, .copy = norm, .as = "model.nrm.weight"}, norm,
                      "model.nrm.weight");
    failed +=
        refuses(world, "llama-gqa", &(change){.drop = key, .copy = "lm_head.weight", .as = key}, "[67,32]", "[8,32]");
    failed +=
        accepts(world, "llama-gqa", &(change){.copy = norm, .as = "model.layers.0.self_attn.rotary_emb.inv_freq"});
    failed += accepts(world, "gpt2-tiny", &(change){.prefix = "transformer."});
    failed += accepts(world, "gpt2-tiny", &(change){.copy = "ln_f.bias", .as = "h.0.attn.bias"});
    failed += refuses(world, "gpt2-tiny", &(change){.copy = "ln_f.bias", .as = "transformer.ln_f.bias"}, "twice",
                      "transformer.ln_f.bias");

    clv_config wider = golden_config("llama-gqa");
    wider.ffn = 64;
    const clv_status status = load_changed(world, "llama-gqa", &wider, &(change){0}, NULL);
    EXPECT(strstr(status.text, "[48,32]") != NULL || strstr(status.text, "[32,48]") != NULL, "%s", status.text);
    return failed;
}

static int heads(clv_comm *world)
{
    int failed = 0;
    const char *tied = "llama-mha-tied-smoothing", *embedding = "model.embed_tokens.weight", *head = "lm_head.weight";
    failed += accepts(world, tied, &(change){0});
    failed += accepts(world, tied, &(change){.copy = embedding, .as = head});
    failed += refuses(world, tied, &(change){.copy = embedding, .as = head, .added = 1.0f}, head, "row 66");
    failed += accepts(world, "llama-gqa", &(change){0});
    failed += refuses(world, "llama-gqa", &(change){.drop = head}, head, "tie_word_embeddings");
    failed += accepts(world, "gpt2-tiny", &(change){.copy = "wte.weight", .as = head});
    failed += refuses(world, "gpt2-tiny", &(change){.copy = "wte.weight", .as = head, .added = 1.0f}, head, "row 66");
    return failed;
}

static int compare_values(clv_comm *world, const model *m, const clv_param *a, const clv_param *b, clv_dtype dtype)
{
    int failed = 0;
    const clv_box box = clv_param_box(m->mesh, a);
    const float *x = a->w.data, *y = b->w.data;
    for (int64_t i = 0; i < box.count[0] * box.count[1] && failed == 0; i++) {
        double want = (double)x[i];
        if (dtype == CLV_F16)
            want += want < 0 ? -1.0 : 1.0;
        const double error = dtype == CLV_F64 ? 0.0 : dtype == CLV_F16 ? 1.0 / 256 : (want < 0 ? -want : want) / 128;
        const double difference = (double)y[i] - want;
        EXPECT(difference <= error && -difference <= error, "%s %s: %.9g instead of %.9g", a->name,
               clv_dtype_name(dtype), (double)y[i], want);
    }
    return failed;
}

/* Each type against the 32-bit file: exact for F64, to its fraction for the short ones. */
static int types(clv_comm *world)
{
    static const clv_dtype rows[] = {CLV_F64, CLV_BF16, CLV_F16};
    int failed = 0;
    const clv_config config = golden_config("gpt2-tiny");
    model *plain, *other;
    must(load_changed(world, "gpt2-tiny", &config, &(change){0}, &plain));
    for (size_t k = 0; k < CLV_COUNT(rows); k++) {
        const clv_status status = load_changed(world, "gpt2-tiny", &config, &(change){.dtype = rows[k]}, &other);
        EXPECT(status.code == CLV_OK, "%s", status.text);
        for (size_t i = 0; i < plain->gpt.param_count; i++)
            failed += compare_values(world, plain, &plain->gpt.params[i], &other->gpt.params[i], rows[k]);
        model_close(other);
    }
    model_close(plain);
    return failed;
}

/* Tensors that are read in several units and steps, none a multiple of a tile: weights and moments to the bit. */
static int large(clv_comm *world)
{
    int failed = 0;
    char root[CLV_PATH], folder[CLV_PATH];
    clv_config config = golden_config("gpt2-tiny");
    config.layers = 1;
    config.hidden = 66 * config.heads;
    config.head_dim = 66;
    config.ffn = 4 * config.hidden;
    config.vocab = (3 << 20) / config.hidden + 1;
    const clv_layout layout = {.tp = clv_comm_size(world)};
    model *from = model_open(world, &config, layout, 1), *to = model_open(world, &config, layout, 1);
    scratch_open(world, root);
    model_fill(from, 3);
    model_fill(to, 4);
    const clv_checkpoint c = checkpoint_of(from), d = checkpoint_of(to);
    must(clv_checkpoint_save(&c, root, 0));
    clv_path_join(folder, sizeof folder, root, "iter_0000003");
    const clv_status status = clv_checkpoint_load(&d, folder);
    EXPECT(status.code == CLV_OK, "%s", status.text);
    const int different = model_differences(to, 3, 3);
    EXPECT(different == 0, "%d tensors differ", different);
    scratch_close(world, root);
    model_close(from);
    model_close(to);
    return failed;
}

/* ---- damage ---- */

static void flip_byte(const char *folder, const char *name, long at)
{
    char path[CLV_PATH];
    clv_path_join(path, sizeof path, folder, name);
    FILE *file = fopen(path, "r+b");
    CLV_CHECK(file != NULL && fseek(file, at, SEEK_END) == 0, "%s", path);
    const int byte = fgetc(file);
    CLV_CHECK(fseek(file, -1, SEEK_CUR) == 0 && fputc(byte ^ 1, file) != EOF && fclose(file) == 0, "%s", path);
}

static void cut(const char *folder, const char *name, long bytes)
{
    char path[CLV_PATH];
    struct stat info;
    clv_path_join(path, sizeof path, folder, name);
    CLV_CHECK(stat(path, &info) == 0 && truncate(path, info.st_size - bytes) == 0, "%s", path);
}

static int damage(clv_comm *world)
{
    int failed = 0;
    char root[CLV_PATH], folder[CLV_PATH];
    bool resumable;
    const clv_config config = golden_config("llama-gqa");
    scratch_open(world, root);
    model *m = model_open(world, &config, (clv_layout){.tp = clv_comm_size(world)}, 1);
    model_fill(m, 1);
    const clv_checkpoint all = checkpoint_of(m), weights = weights_of(m);
    must(clv_checkpoint_save(&all, root, 0));
    must(clv_checkpoint_find(root, folder, &resumable));
    for (int step = 0; step < 3; step++) {
        static const char *const names[] = {"training/optimizer.safetensors", "model.safetensors", "config.json"};
        if (clv_comm_rank(world) == 0)
            flip_byte(folder, names[step], -10);
        clv_barrier(world);
        clv_status status = clv_checkpoint_load(&all, folder);
        EXPECT(status.code == CLV_BAD_INPUT && strstr(status.text, names[step]) != NULL &&
                   strstr(status.text, "block 0") != NULL,
               "%s", status.text);
        status = clv_checkpoint_load(&weights, folder);
        EXPECT((status.code == CLV_OK) == (step == 0), "weights alone: %s", status.text);
        clv_barrier(world);
        if (clv_comm_rank(world) == 0)
            flip_byte(folder, names[step], -10);
        clv_barrier(world);
    }
    must(clv_checkpoint_load(&all, folder));
    clv_barrier(world);
    if (clv_comm_rank(world) == 0)
        cut(folder, "model.safetensors", 100);
    clv_barrier(world);
    const clv_status status = clv_checkpoint_load(&all, folder);
    EXPECT(status.code == CLV_BAD_INPUT && strstr(status.text, "truncated") != NULL, "%s", status.text);
    model_close(m);
    scratch_close(world, root);
    return failed;
}

/* ---- finding ---- */

static void write_text(const char *folder, const char *name, const char *text)
{
    char path[CLV_PATH];
    clv_path_join(path, sizeof path, folder, name);
    must(clv_file_write_atomic(path, text, strlen(text)));
}

static int nothing_there(clv_comm *world)
{
    int failed = 0;
    char root[CLV_PATH], out[CLV_PATH], inside[CLV_PATH];
    bool resumable;
    scratch_open(world, root);
    clv_status status = clv_checkpoint_find(root, out, &resumable);
    EXPECT(status.code == CLV_BAD_INPUT && strstr(status.text, "holds no checkpoint") != NULL, "%s", status.text);
    clv_barrier(world);
    if (clv_comm_rank(world) == 0)
        write_text(root, "latest", "iter_0000009\n");
    clv_barrier(world);
    status = clv_checkpoint_find(root, out, &resumable);
    EXPECT(status.code == CLV_BAD_INPUT && strstr(status.text, "iter_0000009") != NULL, "%s", status.text);
    clv_barrier(world);
    if (clv_comm_rank(world) == 0)
        write_text(root, "latest", "../elsewhere");
    clv_barrier(world);
    status = clv_checkpoint_find(root, out, &resumable);
    EXPECT(status.code == CLV_BAD_INPUT && strstr(status.text, "no name") != NULL, "%s", status.text);
    clv_path_join(inside, sizeof inside, root, "absent");
    status = clv_checkpoint_find(inside, out, &resumable);
    EXPECT(status.code == CLV_BAD_INPUT && strstr(status.text, "absent") != NULL, "%s", status.text);
    clv_path_join(inside, sizeof inside, CLEAVE_GOLDEN, "gpt2-tiny");
    status = clv_checkpoint_find(inside, out, &resumable);
    EXPECT(status.code == CLV_OK && !resumable && strcmp(out, inside) == 0, "%s", status.text);
    scratch_close(world, root);
    return failed;
}

int main(int argc, char **argv)
{
    return mpi_test_run(&argc, &argv,
                        (mpi_case[]){{"names and shapes", names_and_shapes},
                                     {"heads", heads},
                                     {"types", types},
                                     {"large", large},
                                     {"damage", damage},
                                     {"nothing there", nothing_there},
                                     {0}});
}
