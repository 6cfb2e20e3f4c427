/* pretrained.c - a model as it lies in a folder: shape, tokenizer, weights, and the tokens that end a text. */
#include "inference_internal.h"

static bool has_tokenizer(const char *folder)
{
    static const char *const names[] = {"tokenizer.json", "vocab.json"};
    char path[4352];
    for (size_t i = 0; i < CLV_COUNT(names); i++) {
        clv_path_join(path, sizeof path, folder, names[i]);
        if (clv_file_exists(path))
            return true;
    }
    return false;
}

static clv_status tokenizer_open(clv_pretrained *from, const char *given)
{
    if (given == NULL && !has_tokenizer(from->folder))
        return clv_ok();
    const char *path = given != NULL ? given : from->folder;
    CLV_TRY(clv_tokenizer_load(&from->tokenizer, path));
    const int64_t ids = clv_tokenizer_vocab_size(from->tokenizer);
    if (ids > from->config.vocab)
        return clv_fail(CLV_BAD_INPUT,
                        "%s: the tokenizer has %lld ids, the model in %s only %lld; they do not belong together", path,
                        (long long)ids, from->folder, (long long)from->config.vocab);
    return clv_ok();
}

clv_status clv_pretrained_open(clv_pretrained *from, const clv_options *options)
{
    *from = (clv_pretrained){0};
    if (options->load == NULL)
        return clv_fail(CLV_BAD_USAGE, "no --load: a checkpoint, or a folder with config.json and model.safetensors");
    bool resumable;
    CLV_TRY(clv_checkpoint_find(options->load, from->folder, &resumable));
    CLV_TRY(clv_hf_config_read(&from->config, from->folder));
    return tokenizer_open(from, options->tokenizer_model);
}

clv_status clv_pretrained_agree(const clv_pretrained *from, clv_comm *world)
{
    const clv_decision name = {"folder of the checkpoint (its hash)", (double)(clv_hash_name(0, from->folder) >> 12)};
    return clv_sentinel_decisions(world, &name, 1);
}

void clv_pretrained_close(clv_pretrained *from)
{
    clv_tokenizer_free(from->tokenizer);
    *from = (clv_pretrained){0};
}

clv_status clv_pretrained_need_tokenizer(const clv_pretrained *from)
{
    if (from->tokenizer == NULL)
        return clv_fail(CLV_BAD_USAGE, "%s holds no tokenizer.json: name one with --tokenizer-model", from->folder);
    return clv_ok();
}

clv_status clv_pretrained_weights(const clv_pretrained *from, clv_ctx *cx, clv_param *params, size_t count)
{
    const clv_checkpoint weights = {.cx = cx, .config = &from->config, .params = params, .param_count = count};
    return clv_checkpoint_load(&weights, from->folder);
}

/* ---- ends ----------------------------------------------------------------------------------------------------------
 */

static void stop_add(clv_ids *stops, int64_t id)
{
    if (id >= 0 && id <= INT32_MAX)
        clv_ids_add(stops, (int32_t)id);
}

clv_status clv_pretrained_stops(const clv_pretrained *from, clv_ids *stops)
{
    stop_add(stops, from->config.eos);
    if (from->tokenizer != NULL)
        stop_add(stops, clv_tokenizer_eod(from->tokenizer));
    char path[4352];
    clv_path_join(path, sizeof path, from->folder, "generation_config.json");
    if (!clv_file_exists(path))
        return clv_ok();
    clv_json *json;
    CLV_TRY(clv_json_load(&json, path));
    const clv_node eos = clv_json_get(json, CLV_JSON_ROOT, "eos_token_id");
    const bool list = clv_json_is(json, eos, CLV_JSON_ARRAY); /* one id, or several */
    for (clv_node one = list ? clv_json_first(json, eos) : eos; one != CLV_NO_NODE;
         one = list ? clv_json_next(json, one) : CLV_NO_NODE) {
        int64_t id = -1;
        clv_json_i64(json, one, &id);
        stop_add(stops, id);
    }
    clv_json_free(json);
    return clv_ok();
}
