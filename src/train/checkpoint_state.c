/* checkpoint_state.c - training/state.json: how far the run is, its schedule, and the options it was started with.
 *
 *   {"format":1, "iteration":..., "samples":..., ..., "data_order":"stable",
 *    "schedule":{"style":"cosine","wsd_style":"exponential","max":...,"min":...,"init":...,"warmup":...,...},
 *    "scaler":{"scale":65536,"good":...,"hysteresis":...,"stuck":...}, "optimizer_files":1, "options":{...}}
 *
 * A run without a loss scale has no scaler. Lengths of the schedule are samples. Numbers are written so that they read
 * back to the same bits.
 */
#include "train/checkpoint_internal.h"

#include <stdio.h>
#include <string.h>

typedef struct count_row { /* an integer of clv_progress */
    const char *key;
    size_t offset;
} count_row;

#define COUNT(field)                                                                                                   \
    {                                                                                                                  \
#field, offsetof(clv_progress, field)                                                                          \
    }
static const count_row counts[] = {
    COUNT(iteration),       COUNT(samples),       COUNT(tokens),     COUNT(skipped),      COUNT(optimizer_step),
    COUNT(updated_samples), COUNT(train_samples), COUNT(seq_length), COUNT(global_batch), COUNT(seed),
};
#define LENGTH(field)                                                                                                  \
    {                                                                                                                  \
#field, offsetof(clv_lr_plan, field)                                                                           \
    }
static const count_row lengths[] = {LENGTH(warmup), LENGTH(decay), LENGTH(wsd_decay)};
static const count_row rates[] = {LENGTH(max), LENGTH(min), LENGTH(init)}; /* doubles */

/* ---- writing ---- */

static void add_string(clv_text *out, const char *key, const char *value)
{
    clv_text_printf(out, "\"%s\":", key);
    clv_json_add_string(out, value, strlen(value));
}

static void add_counts(clv_text *out, const void *from, const count_row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++)
        clv_text_printf(out, "\"%s\":%lld,\n", rows[i].key,
                        (long long)*(const int64_t *)(const void *)((const char *)from + rows[i].offset));
}

static void add_schedule(clv_text *out, const clv_lr_plan *plan)
{
    clv_text_printf(out, "\"schedule\":{");
    add_counts(out, plan, lengths, CLV_COUNT(lengths));
    for (size_t i = 0; i < CLV_COUNT(rates); i++) {
        clv_text_printf(out, "\"%s\":", rates[i].key);
        clv_json_add_number(out, *(const double *)(const void *)((const char *)plan + rates[i].offset));
        clv_text_add(out, ",\n", 2);
    }
    add_string(out, "style", clv_lr_style_name(plan->style));
    clv_text_add(out, ",", 1);
    add_string(out, "wsd_style", clv_wsd_style_name(plan->wsd_style));
    clv_text_add(out, "},\n", 3);
}

static void add_scaler(clv_text *out, const clv_scaler *s)
{
    if (s->scale == 0.0)
        return;
    clv_text_printf(out, "\"scaler\":{\"scale\":");
    clv_json_add_number(out, s->scale);
    clv_text_printf(out, ",\"good\":%lld,\"hysteresis\":%lld,\"stuck\":%lld},\n", (long long)s->good,
                    (long long)s->hysteresis, (long long)s->stuck);
}

clv_status clv_state_write(const clv_checkpoint *c, const char *folder, int optimizer_files, const clv_disk *disk)
{
    char path[CLV_PATH];
    clv_text text = {0};
    clv_progress progress = *c->progress;
    if (c->optimizer != NULL)
        progress.optimizer_step = c->optimizer->step;
    clv_text_printf(&text, "{\"format\":%d,\n", CLV_FORMAT);
    add_counts(&text, &progress, counts, CLV_COUNT(counts));
    add_string(&text, "data_order", progress.data_order);
    clv_text_add(&text, ",\n", 2);
    add_schedule(&text, &progress.plan);
    add_scaler(&text, &progress.scaler);
    clv_text_printf(&text, "\"optimizer_files\":%d", optimizer_files);
    if (c->options != NULL) {
        clv_text_printf(&text, ",\n\"options\":");
        clv_options_dump(c->options, &text);
    }
    clv_text_printf(&text, "}\n");
    clv_path_join(path, sizeof path, folder, "training/state.json");
    const clv_status status = clv_disk_write(disk, path, text.data, text.length);
    clv_text_free(&text);
    return status;
}

/* ---- reading ---- */

static clv_status bad_key(const char *key)
{
    return clv_fail(CLV_BAD_INPUT, "\"%s\" is missing or not of its kind", key);
}

static clv_status get_counts(const clv_json *json, clv_node object, void *to, const count_row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const clv_node node = clv_json_get(json, object, rows[i].key);
        int64_t *value = (int64_t *)(void *)((char *)to + rows[i].offset);
        if (node == CLV_NO_NODE || !clv_json_i64(json, node, value) || *value < 0)
            return bad_key(rows[i].key);
    }
    return clv_ok();
}

static const char *get_string(const clv_json *json, clv_node object, const char *key)
{
    const clv_node node = clv_json_get(json, object, key);
    return clv_json_is(json, node, CLV_JSON_STRING) ? clv_json_string(json, node, NULL) : "";
}

static clv_status get_schedule(const clv_json *json, clv_node object, clv_lr_plan *plan)
{
    if (!clv_json_is(json, object, CLV_JSON_OBJECT))
        return bad_key("schedule");
    CLV_TRY(get_counts(json, object, plan, lengths, CLV_COUNT(lengths)));
    for (size_t i = 0; i < CLV_COUNT(rates); i++) {
        const clv_node node = clv_json_get(json, object, rates[i].key);
        if (node == CLV_NO_NODE || !clv_json_f64(json, node, (double *)(void *)((char *)plan + rates[i].offset)))
            return bad_key(rates[i].key);
    }
    return clv_lr_styles_from(get_string(json, object, "style"), get_string(json, object, "wsd_style"), plan)
               ? clv_ok()
               : bad_key("style");
}

/* Hysteresis may be below 0. */
static clv_status get_scaler(const clv_json *json, clv_node object, clv_scaler *s)
{
    if (object == CLV_NO_NODE)
        return clv_ok();
    if (!clv_json_is(json, object, CLV_JSON_OBJECT))
        return bad_key("scaler");
    const clv_node scale = clv_json_get(json, object, "scale"), good = clv_json_get(json, object, "good"),
                   hysteresis = clv_json_get(json, object, "hysteresis"), stuck = clv_json_get(json, object, "stuck");
    if (!clv_json_f64(json, scale, &s->scale) || !(s->scale > 0.0) || !clv_json_i64(json, good, &s->good) ||
        !clv_json_i64(json, hysteresis, &s->hysteresis) || !clv_json_i64(json, stuck, &s->stuck))
        return bad_key("scaler");
    return clv_ok();
}

static clv_status get_state(const clv_json *json, clv_progress *out, int *optimizer_files)
{
    int64_t format = 0, files = 0;
    const clv_node root = CLV_JSON_ROOT;
    const count_row head[] = {{"format", 0}}, tail[] = {{"optimizer_files", 0}};
    if (!clv_json_is(json, root, CLV_JSON_OBJECT))
        return clv_fail(CLV_BAD_INPUT, "an object was expected");
    CLV_TRY(get_counts(json, root, &format, head, 1));
    if (format != CLV_FORMAT)
        return clv_fail(CLV_BAD_INPUT, "format %lld was written by another version; this one reads format %d",
                        (long long)format, CLV_FORMAT);
    CLV_TRY(get_counts(json, root, out, counts, CLV_COUNT(counts)));
    CLV_TRY(get_schedule(json, clv_json_get(json, root, "schedule"), &out->plan));
    CLV_TRY(get_scaler(json, clv_json_get(json, root, "scaler"), &out->scaler));
    CLV_TRY(get_counts(json, root, &files, tail, 1));
    if (files > 99999)
        return bad_key("optimizer_files");
    *optimizer_files = (int)files;
    const char *order = get_string(json, root, "data_order");
    if (strlen(order) >= sizeof out->data_order)
        return bad_key("data_order");
    snprintf(out->data_order, sizeof out->data_order, "%s", order);
    return clv_ok();
}

clv_status clv_state_read(clv_progress *out, int *optimizer_files, const char *folder)
{
    char path[CLV_PATH];
    clv_json *json;
    clv_progress progress = {0};
    clv_path_join(path, sizeof path, folder, "training/state.json");
    CLV_TRY(clv_json_load(&json, path));
    const clv_status status = clv_within(get_state(json, &progress, optimizer_files), "%s", path);
    clv_json_free(json);
    if (status.code == CLV_OK)
        *out = progress;
    return status;
}
