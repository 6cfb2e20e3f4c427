/* Datasets: every token once an epoch, orders that do not depend on the run's length, blends, ends of documents. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/train_data.h"

static char folder[] = "/tmp/clv_dataset_XXXXXX";

static void must(clv_status st)
{
    if (st.code != CLV_OK)
        fail_msg("%s", st.text);
}

static void refused(clv_status st, const char *part)
{
    assert_int_not_equal(st.code, CLV_OK);
    if (strstr(st.text, part) == NULL)
        fail_msg("'%s' lacks '%s'", st.text, part);
}

/* `count` documents of `length` tokens with ids first, first + 1, ... through the set. */
static const char *write_set(int name, int count, int length, int32_t first)
{
    static char prefixes[300][64];
    char *prefix = prefixes[name];
    snprintf(prefix, sizeof prefixes[0], "%s/%d", folder, name);
    clv_indexed_writer *w;
    must(clv_indexed_writer_create(&w, prefix, 100000));
    for (int d = 0; d < count; d++) {
        int32_t ids[256];
        for (int i = 0; i < length; i++)
            ids[i] = first++;
        must(clv_indexed_writer_add(w, ids, length));
        must(clv_indexed_writer_end_document(w));
    }
    must(clv_indexed_writer_finish(w));
    return prefix;
}

static clv_dataset *open_one(const char *prefix, clv_data_order order, int64_t samples)
{
    const clv_dataset_spec spec = {
        .prefix = &prefix, .count = 1, .seq_length = 8, .vocab = 100000, .seed = 7, .order = order, .samples = samples};
    clv_dataset *data;
    must(clv_dataset_open(&data, &spec));
    return data;
}

/* 5 x 17 = 85 tokens, samples of 8: 10 of them, 4 tokens unused. */
static void one_epoch(void **state)
{
    (void)state;
    clv_dataset *data = open_one(write_set(0, 5, 17, 0), CLV_ORDER_STABLE, 0);
    assert_int_equal(clv_dataset_samples_per_epoch(data), 10);
    clv_text text = {0};
    clv_dataset_describe(data, 20, &text);
    assert_non_null(strstr(text.data, "10 samples, 4 tokens unused"));
    clv_text_free(&text);
    int32_t orders[2][10];
    for (int epoch = 0; epoch < 2; epoch++) {
        char seen[85] = {0};
        for (int i = 0; i < 10; i++) {
            int32_t t[9];
            must(clv_dataset_sample(data, epoch * 10 + i, t));
            for (int k = 0; k < 8; k++) {
                assert_true(t[k + 1] == t[k] + 1 || t[k] % 17 == 16); /* goes on, or a document ended */
                assert_int_equal(seen[t[k]], 0);                      /* each input token at most once */
                seen[t[k]] = 1;
            }
            orders[epoch][i] = t[0];
        }
    }
    assert_memory_not_equal(orders[0], orders[1], sizeof orders[0]);
    clv_dataset_close(data);
}

/* An epoch that was drawn while the one before was read is the same as one that is asked for at once; and one drawn for
 * nothing does no harm. */
static void epoch_drawn_ahead(void **state)
{
    (void)state;
    const char *prefix = write_set(0, 400, 250, 0);
    clv_dataset *a = open_one(prefix, CLV_ORDER_STABLE, 0), *b = open_one(prefix, CLV_ORDER_STABLE, 0);
    const int64_t n = clv_dataset_samples_per_epoch(a);
    int32_t ta[9], tb[9];
    for (int64_t i = n - n / 8; i < n + 100; i++)
        must(clv_dataset_sample(a, i, ta));
    must(clv_dataset_sample(b, n + 99, tb));
    assert_memory_equal(ta, tb, sizeof ta);
    must(clv_dataset_sample(b, 2 * n - 1, tb));
    must(clv_dataset_sample(b, n - 1, tb));
    must(clv_dataset_sample(b, 3 * n, tb));
    must(clv_dataset_sample(a, 3 * n, ta));
    assert_memory_equal(ta, tb, sizeof ta);
    must(clv_dataset_sample(a, 4 * n - 1, ta)); /* closed while it is drawn */
    clv_dataset_close(a);
    clv_dataset_close(b);
}

static void order_and_length_of_run(void **state)
{
    (void)state;
    const char *prefix = write_set(0, 50, 17, 0);
    clv_dataset *a = open_one(prefix, CLV_ORDER_STABLE, 100), *b = open_one(prefix, CLV_ORDER_STABLE, 1000);
    clv_dataset *c = open_one(prefix, CLV_ORDER_MEGATRON, 100), *d = open_one(prefix, CLV_ORDER_MEGATRON, 1000);
    int32_t ta[9], tb[9];
    int differ = 0;
    for (int i = 0; i < 100; i++) {
        must(clv_dataset_sample(a, i, ta));
        must(clv_dataset_sample(b, i, tb));
        assert_memory_equal(ta, tb, sizeof ta);
        must(clv_dataset_sample(c, i, ta));
        must(clv_dataset_sample(d, i, tb));
        differ += memcmp(ta, tb, sizeof ta) != 0;
    }
    assert_true(differ > 50);
    must(clv_dataset_sample(a, 100000, ta));
    must(clv_dataset_sample(a, 3, ta)); /* and back */
    must(clv_dataset_sample(b, 3, tb));
    assert_memory_equal(ta, tb, sizeof ta);
    refused(clv_dataset_sample(c, 100000, ta), "length of the run");
    clv_dataset_close(a);
    clv_dataset_close(b);
    clv_dataset_close(c);
    clv_dataset_close(d);
}

/* Set i holds ids from 300 i on, so that a token tells its set. */
static void count_blend(const double *weight, size_t sets, int samples, clv_data_order order, int *taken)
{
    const char *prefix[300];
    for (size_t i = 0; i < sets; i++)
        prefix[i] = write_set((int)i, 6, 16, (int32_t)i * 300);
    const clv_dataset_spec spec = {.prefix = prefix,
                                   .weight = weight,
                                   .count = sets,
                                   .seq_length = 8,
                                   .vocab = 100000,
                                   .order = order,
                                   .samples = samples};
    clv_dataset *data;
    must(clv_dataset_open(&data, &spec));
    memset(taken, 0, sets * sizeof *taken);
    for (int i = 0; i < samples; i++) {
        int32_t t[9];
        must(clv_dataset_sample(data, i, t));
        taken[t[0] / 300]++;
    }
    clv_dataset_close(data);
}

static void blends(void **state)
{
    (void)state;
    int taken[300];
    double equal[300];
    for (int i = 0; i < 300; i++)
        equal[i] = 0.3;
    for (int order = CLV_ORDER_STABLE; order <= CLV_ORDER_MEGATRON; order++) {
        count_blend((double[]){.001, .999}, 2, 100, (clv_data_order)order, taken);
        assert_in_range(taken[0], 0, 1);
        assert_int_equal(taken[0] + taken[1], 100);
        count_blend((double[]){3, 1}, 2, 400, (clv_data_order)order, taken);
        assert_int_equal(taken[0], 300);
    }
    count_blend(equal, 300, 3000, CLV_ORDER_STABLE, taken);
    for (int i = 0; i < 300; i++)
        assert_int_equal(taken[i], 10);
    count_blend(NULL, 3, 30, CLV_ORDER_STABLE, taken); /* equal sizes */
    assert_int_equal(taken[2], 10);
}

/* Two sets of 96 tokens, 11 samples of 8 each an epoch. */
static void blend_by_the_rule(void **state)
{
    (void)state;
    const char *prefix[2] = {write_set(0, 6, 16, 0), write_set(1, 6, 16, 300)};
    clv_dataset_spec spec = {.prefix = prefix, .count = 2, .seq_length = 8, .vocab = 100000, .samples = 22};
    clv_dataset *data;
    int32_t t[9];
    spec.weight = (double[]){1, 1};
    must(clv_dataset_open(&data, &spec));
    for (int i = 0; i < 8; i++) { /* the first wins a tie */
        must(clv_dataset_sample(data, i, t));
        assert_int_equal(t[0] / 300, i % 2);
    }
    clv_dataset_close(data);
    spec.weight = (double[]){1, 3};
    must(clv_dataset_open(&data, &spec));
    for (int i = 0; i < 8; i++) {
        must(clv_dataset_sample(data, i, t));
        assert_int_equal(t[0] / 300, ((int[]){1, 0, 1, 1, 0, 1, 1, 1})[i]);
    }
    clv_dataset_close(data);
    spec.weight = (double[]){1, 1}; /* 11 of each, and with the surplus 12, for which a second epoch is drawn */
    spec.order = CLV_ORDER_MEGATRON;
    must(clv_dataset_open(&data, &spec));
    must(clv_dataset_sample(data, 22, t));
    clv_dataset_close(data);
}

static void what_is_refused(void **state)
{
    (void)state;
    const char *prefix = write_set(0, 10, 17, 0);
    clv_dataset_spec spec = {.prefix = &prefix, .count = 1, .seq_length = 8, .vocab = 100000};
    clv_dataset *data;
    spec.split = "98,1,1";
    spec.which = 1;
    refused(clv_dataset_open(&data, &spec), "the valid part of split '98,1,1' holds no tokens");
    assert_null(data);
    spec.split = NULL;
    spec.seq_length = 170;
    refused(clv_dataset_open(&data, &spec), "has 170 tokens, a sample needs 171");
    spec.seq_length = 8;
    spec.weight = (double[]){0};
    refused(clv_dataset_open(&data, &spec), "sum to 0");
    spec.weight = NULL;
    spec.prefix = (const char *[]){"/nowhere/set"};
    refused(clv_dataset_open(&data, &spec), "/nowhere/set.idx");
    spec.prefix = &prefix;
    spec.vocab = 100; /* ids go to 169; the first that does not fit is document 5, position 15 */
    must(clv_dataset_open(&data, &spec));
    refused(clv_dataset_check(data), "document 5, position 15: token id 100");
    int32_t t[9];
    int bad = 0;
    for (int i = 0; i < 21; i++)
        bad += clv_dataset_sample(data, i, t).code != CLV_OK;
    assert_in_range(bad, 8, 12);
    clv_dataset_close(data);
}

static void made_up_tokens(void **state)
{
    (void)state;
    clv_dataset_spec spec = {.seq_length = 1001, .vocab = 50, .seed = 3};
    clv_dataset *a, *b;
    must(clv_dataset_open(&a, &spec));
    spec.which = 1;
    must(clv_dataset_open(&b, &spec));
    int32_t t[1002], u[1002];
    int seen[50] = {0};
    must(clv_dataset_sample(a, 5, t));
    for (int i = 0; i < 1002; i++) {
        assert_in_range(t[i], 0, 49);
        seen[t[i]]++;
    }
    for (int i = 0; i < 50; i++)
        assert_in_range(seen[i], 1, 60);
    must(clv_dataset_sample(a, 6, u));
    assert_memory_not_equal(t, u, sizeof t);
    must(clv_dataset_sample(b, 5, u));
    assert_memory_not_equal(t, u, sizeof t);
    must(clv_dataset_sample(a, 5, u));
    assert_memory_equal(t, u, sizeof t);
    clv_dataset_close(a);
    clv_dataset_close(b);
}

static void ends_of_documents(void **state)
{
    (void)state;
    static const int32_t tokens[7] = {3, 3, 1, 3, 1, 1, 3};
    static const int32_t counts[7] = {1, 1, 0, 1, 0, 0, 1}, positions[7] = {0, 1, 2, 0, 1, 0, 0};
    static const int32_t starts[7] = {0, 0, 0, 3, 3, 5, 6};
    float mask[7];
    int32_t position[7], start[7];
    clv_eod_apply(&(clv_eod_rules){.eod = 1, .mask_loss = true, .reset_positions = true, .reset_attention = true},
                  tokens, 7, mask, position, start);
    for (int i = 0; i < 7; i++) {
        assert_int_equal(mask[i], counts[i]);
        assert_int_equal(position[i], positions[i]);
        assert_int_equal(start[i], starts[i]);
    }
    clv_eod_apply(&(clv_eod_rules){.eod = 1}, tokens, 7, mask, position, start);
    for (int i = 0; i < 7; i++)
        assert_true(mask[i] == 1 && position[i] == i && start[i] == 0);
}

static int setup(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < 300; i++) {
        char path[80];
        snprintf(path, sizeof path, "%s/%d.bin", folder, i);
        unlink(path);
        snprintf(path, sizeof path, "%s/%d.idx", folder, i);
        unlink(path);
    }
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_epoch),
        cmocka_unit_test(epoch_drawn_ahead),
        cmocka_unit_test(order_and_length_of_run),
        cmocka_unit_test(blends),
        cmocka_unit_test(blend_by_the_rule),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(made_up_tokens),
        cmocka_unit_test(ends_of_documents),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
