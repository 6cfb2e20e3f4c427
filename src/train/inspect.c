/* inspect.c - what a path holds: tensors, a checkpoint's progress, token files, a tokenizer.
 *
 * Everything is opened by the reader that a run would use, so that damage is found here and named in the same words.
 */
#include "train/train.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { PATH_SIZE = 4096 };
typedef long long wide;

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static bool is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static bool holds(const char *folder, const char *name, char *path)
{
    clv_path_join(path, PATH_SIZE, folder, name);
    return clv_file_exists(path);
}

/* ---- tensors ------------------------------------------------------------------------------------------------------
 */

static void tensor_line(const clv_st_tensor *t, clv_text *out)
{
    clv_text_printf(out, "  %-5s [", t->kind);
    for (int i = 0; i < t->ndim; i++)
        clv_text_printf(out, "%s%lld", i == 0 ? "" : ", ", (wide)t->dim[i]);
    clv_text_printf(out, "]  %s\n", t->name);
}

static clv_status inspect_tensors(const char *path, clv_text *out)
{
    clv_safetensors *st;
    CLV_TRY(clv_safetensors_open(&st, path));
    uint64_t bytes = 0, elements = 0;
    const size_t count = clv_safetensors_count(st);
    for (size_t i = 0; i < count; i++) {
        const clv_st_tensor *t = clv_safetensors_at(st, i);
        uint64_t n = 1;
        for (int d = 0; d < t->ndim; d++)
            n *= (uint64_t)t->dim[d];
        elements += n;
        bytes += t->bytes;
        tensor_line(t, out);
    }
    clv_text_printf(out, "%zu tensors, %llu elements, %llu bytes\n", count, (unsigned long long)elements,
                    (unsigned long long)bytes);
    clv_safetensors_close(st);
    return clv_ok();
}

/* ---- a model folder, a checkpoint ---------------------------------------------------------------------------------
 */

static clv_status inspect_shape(const char *folder, clv_text *out)
{
    clv_config c;
    CLV_TRY(clv_hf_config_read(&c, folder));
    clv_text_printf(out, "%s: %lld layers, hidden %lld, ffn %lld (%s), %lld heads of %lld, %lld key/value heads\n",
                    c.model_type, (wide)c.layers, (wide)c.hidden, (wide)c.ffn, clv_act_name(c.act), (wide)c.heads,
                    (wide)c.head_dim, (wide)c.kv_heads);
    clv_text_printf(out, "  vocabulary %lld, positions %s up to %lld, %s, output matrix %s\n", (wide)c.vocab,
                    clv_position_name(c.position), (wide)c.max_positions, clv_norm_kind_name(c.norm),
                    c.tied ? "tied to the embedding" : "of its own");
    return clv_ok();
}

static clv_status inspect_progress(const char *path, clv_text *out)
{
    static const char *const keys[] = {"iteration", "samples", "tokens", "skipped"};
    clv_json *json;
    CLV_TRY(clv_json_load(&json, path));
    clv_text_printf(out, "training:");
    for (size_t i = 0; i < CLV_COUNT(keys); i++) {
        int64_t value;
        if (clv_json_i64(json, clv_json_get(json, CLV_JSON_ROOT, keys[i]), &value))
            clv_text_printf(out, " %s %lld", keys[i], (wide)value);
    }
    clv_text_printf(out, "\n");
    clv_json_free(json);
    return clv_ok();
}

static clv_status inspect_tokenizer(const char *path, clv_text *out)
{
    clv_tokenizer *tokenizer;
    CLV_TRY(clv_tokenizer_load(&tokenizer, path));
    clv_tokenizer_describe(tokenizer, out);
    clv_tokenizer_free(tokenizer);
    return clv_ok();
}

/* What stands in ROOT/latest, as a path. */
static clv_status newest(const char *root, const char *latest, char *out)
{
    clv_text name;
    CLV_TRY(clv_file_read(latest, &name));
    name.data[strcspn(name.data, "\r\n")] = 0;
    const bool good = name.data[0] != 0 && strchr(name.data, '/') == NULL && strlen(name.data) < 256;
    if (good)
        clv_path_join(out, PATH_SIZE, root, name.data);
    clv_text_free(&name);
    return good ? clv_ok() : clv_fail(CLV_BAD_INPUT, "%s does not name a checkpoint", latest);
}

static clv_status inspect_folder(const char *given, clv_text *out)
{
    char path[PATH_SIZE], folder[PATH_SIZE];
    clv_path_join(folder, sizeof folder, given, "");
    if (holds(given, "latest", path)) {
        CLV_TRY(newest(given, path, folder));
        clv_text_printf(out, "newest checkpoint: %s\n", folder);
    }
    bool known = false;
    if (holds(folder, "config.json", path)) {
        known = true;
        CLV_TRY(inspect_shape(folder, out));
    }
    if (holds(folder, "training/state.json", path))
        CLV_TRY(inspect_progress(path, out));
    if (holds(folder, "tokenizer.json", path) || holds(folder, "vocab.json", path)) {
        known = true;
        CLV_TRY(inspect_tokenizer(folder, out));
    }
    if (holds(folder, "model.safetensors", path) || holds(folder, "model.safetensors.index.json", path))
        return inspect_tensors(folder, out);
    return known ? clv_ok() : clv_fail(CLV_BAD_INPUT, "%s holds no model, checkpoint or tokenizer", folder);
}

/* ---- token files --------------------------------------------------------------------------------------------------
 */

static clv_status inspect_indexed(const char *prefix, clv_text *out)
{
    clv_indexed *data;
    CLV_TRY(clv_indexed_open(&data, prefix));
    const int64_t sequences = clv_indexed_sequences(data), tokens = clv_indexed_tokens(data);
    int64_t shortest = INT64_MAX, longest = 0;
    for (int64_t i = 0; i < sequences; i++) {
        shortest = CLV_MIN(shortest, clv_indexed_length(data, i));
        longest = CLV_MAX(longest, clv_indexed_length(data, i));
    }
    struct stat info;
    char bin[PATH_SIZE];
    const int wrote = snprintf(bin, sizeof bin, "%s.bin", prefix);
    const bool sized = wrote > 0 && (size_t)wrote < sizeof bin && stat(bin, &info) == 0 && tokens > 0;
    clv_text_printf(out, "%s: %lld documents, %lld sequences, %lld tokens", prefix, (wide)clv_indexed_documents(data),
                    (wide)sequences, (wide)tokens);
    if (sized)
        clv_text_printf(out, " of %lld bytes", (wide)info.st_size / (wide)tokens);
    if (sequences > 0)
        clv_text_printf(out, "; a sequence has %lld to %lld", (wide)shortest, (wide)longest);
    clv_text_printf(out, "\n");
    clv_indexed_close(data);
    return clv_ok();
}

clv_status clv_inspect(const char *path, clv_text *out)
{
    char prefix[PATH_SIZE], index[PATH_SIZE + 8];
    if (strlen(path) >= sizeof prefix - 300)
        return clv_fail(CLV_BAD_INPUT, "the path is too long (%zu bytes)", strlen(path));
    snprintf(prefix, sizeof prefix, "%s", path);
    if (ends_with(path, ".idx") || ends_with(path, ".bin"))
        prefix[strlen(prefix) - 4] = 0;
    snprintf(index, sizeof index, "%s.idx", prefix);
    if (is_folder(path))
        return inspect_folder(path, out);
    if (ends_with(path, ".safetensors"))
        return inspect_tensors(path, out);
    if (ends_with(path, ".json"))
        return inspect_tokenizer(path, out);
    if (clv_file_exists(index))
        return inspect_indexed(prefix, out);
    return clv_fail(CLV_BAD_INPUT,
                    "%s is no folder, .safetensors, tokenizer.json or prefix of a .idx file; those can be inspected",
                    path);
}
