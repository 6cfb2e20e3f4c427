/* Orders: Megatron's golden values, and what the stable order promises. */
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

static char folder[] = "/tmp/clv_order_XXXXXX";
static char prefix[64];

static clv_indexed *set_of(const int64_t *lengths, int64_t count)
{
    static const int32_t zeros[1000];
    clv_indexed_writer *w;
    clv_indexed *data;
    assert_int_equal(clv_indexed_writer_create(&w, prefix, 100).code, CLV_OK);
    for (int64_t i = 0; i < count; i++) {
        assert_int_equal(clv_indexed_writer_add(w, zeros, lengths[i]).code, CLV_OK);
        clv_indexed_writer_end_document(w);
    }
    assert_int_equal(clv_indexed_writer_finish(w).code, CLV_OK);
    assert_int_equal(clv_indexed_open(&data, prefix).code, CLV_OK);
    return data;
}

static void is_permutation(const int64_t *array, int64_t n, int64_t first)
{
    char *seen = clv_alloc((size_t)n, 1);
    for (int64_t i = 0; i < n; i++) {
        assert_in_range(array[i], first, first + n - 1);
        assert_int_equal(seen[array[i] - first], 0);
        seen[array[i] - first] = 1;
    }
    free(seen);
}

static void megatron_golden(void **state)
{
    (void)state;
    static const int64_t documents[] = {0, 1, 2, 3, 1, 2, 3, 0}, shuffle[] = {0, 2, 3, 1, 4, 8, 7, 6, 5};
    static const clv_row rows[] = {{0, 0}, {0, 4}, {2, 0}, {2, 4}, {3, 1}, {4, 1}, {5, 2}, {5, 6}, {6, 3}, {7, 3}};
    clv_indexed *data = set_of((int64_t[]){5, 3, 7, 4}, 4);
    clv_part part;
    assert_int_equal(clv_part_of(&part, data, NULL, 0).code, CLV_OK);
    clv_sample_order order = clv_order_megatron(&part, 4, 1234, 6);
    assert_int_equal(order.joined, 8);
    assert_int_equal(order.samples, 9);
    assert_memory_equal(order.sequence, documents, sizeof documents);
    assert_memory_equal(order.row, rows, sizeof rows);
    assert_memory_equal(order.shuffle, shuffle, sizeof shuffle);
    clv_order_free(&order);

    order = clv_order_megatron(&part, 4, 1234, 8); /* needs 4 of the last epoch's 4: no part of its own */
    assert_int_equal(order.joined, 8);
    assert_memory_not_equal(order.sequence, documents, sizeof documents);
    clv_order_free(&order);
    clv_indexed_close(data);
}

/* 40 tokens, samples of 4: an epoch has 9, since the 40th token would have to be followed by one more. */
static void megatron_boundaries(void **state)
{
    (void)state;
    clv_indexed *data = set_of((int64_t[]){10, 20, 10}, 3);
    clv_part part;
    assert_int_equal(clv_part_of(&part, data, NULL, 0).code, CLV_OK);
    static const struct {
        int64_t samples, epochs, apart; /* apart: samples before a last epoch that is shuffled by itself */
    } cases[] = {{9, 1, 0}, {10, 2, 9}, {15, 2, 9}, {16, 2, 0}, {19, 2, 0}, {20, 3, 19}};
    for (size_t i = 0; i < CLV_COUNT(cases); i++) {
        clv_sample_order order = clv_order_megatron(&part, 4, 1234, cases[i].samples);
        assert_int_equal(order.joined, 3 * cases[i].epochs);
        assert_int_equal(order.samples, 10 * cases[i].epochs - 1);
        is_permutation(order.shuffle, order.samples, 0);
        int64_t early = 0; /* of the samples that would come first, how many do? */
        for (int64_t k = 0; k < cases[i].apart; k++)
            early += order.shuffle[k] < cases[i].apart;
        assert_int_equal(early, cases[i].apart);
        if (cases[i].apart == 0 && cases[i].epochs > 1) {
            for (int64_t k = 0; k < 9; k++)
                early += order.shuffle[k] < 9;
            assert_true(early < 9);
        }
        clv_order_free(&order);
    }
    clv_indexed_close(data);
}

static void splits(void **state)
{
    (void)state;
    int64_t lengths[1000];
    for (int i = 0; i < 1000; i++)
        lengths[i] = 1;
    clv_indexed *data = set_of(lengths, 1000);
    static const struct {
        const char *split;
        int which;
        int64_t first, count;
    } good[] = {{"969,30,1", 0, 0, 969}, {"969, 30, 1", 1, 969, 30}, {"969,30,1", 2, 999, 1}, {"98,2,0", 1, 980, 20},
                {"1", 0, 0, 1000},       {"1,1,1", 1, 333, 334},     {NULL, 2, 0, 1000}};
    clv_part part;
    for (size_t i = 0; i < CLV_COUNT(good); i++) {
        assert_int_equal(clv_part_of(&part, data, good[i].split, good[i].which).code, CLV_OK);
        assert_int_equal(part.first, good[i].first);
        assert_int_equal(part.count, good[i].count);
        assert_int_equal(part.tokens, good[i].count);
    }
    static const char *const bad[] = {"", "a", "1,2,3,4", "1;2", "-1,2", "0,0,0", "nan", "969,", "100,0,0"};
    for (size_t i = 0; i < CLV_COUNT(bad); i++)
        assert_int_not_equal(clv_part_of(&part, data, bad[i], 1).code, CLV_OK);
    clv_indexed_close(data);

    data = set_of(lengths, 5); /* 2.5 rounds to 2, as in Python */
    assert_int_equal(clv_part_of(&part, data, "1,1", 0).code, CLV_OK);
    assert_int_equal(part.count, 2);
    clv_indexed_close(data);
}

static void tail_is_counted(void **state)
{
    (void)state;
    clv_part part;
    clv_indexed *data = set_of((int64_t[]){40, 45}, 2);
    assert_int_equal(clv_part_of(&part, data, NULL, 0).code, CLV_OK);
    assert_int_equal(clv_part_samples(&part, 8), 10);
    clv_indexed_close(data);
    data = set_of((int64_t[]){40, 41}, 2);
    assert_int_equal(clv_part_of(&part, data, NULL, 0).code, CLV_OK);
    assert_int_equal(clv_part_samples(&part, 8), 10);
    clv_indexed_close(data);
    data = set_of((int64_t[]){40, 40}, 2);
    assert_int_equal(clv_part_of(&part, data, NULL, 0).code, CLV_OK);
    assert_int_equal(clv_part_samples(&part, 8), 9);
    clv_indexed_close(data);
}

/* Each epoch: every sequence joined once, every sample read once, rows s tokens apart; epochs and seeds differ. */
static void stable_epochs(void **state)
{
    (void)state;
    int64_t lengths[200];
    for (int i = 0; i < 200; i++)
        lengths[i] = i % 7 == 0 ? 0 : 1 + i % 13;
    clv_indexed *data = set_of(lengths, 200);
    clv_part part;
    assert_int_equal(clv_part_of(&part, data, "10,90", 1).code, CLV_OK);
    clv_sample_order e[3] = {0}, again = {0};
    clv_order_stable(&e[0], &part, 5, 1, 0);
    clv_order_stable(&e[1], &part, 5, 1, 1);
    clv_order_stable(&e[2], &part, 5, 2, 0);
    clv_order_stable(&again, &part, 5, 2, 1); /* and its memory used again */
    clv_order_stable(&again, &part, 5, 1, 0);
    assert_memory_equal(again.sequence, e[0].sequence, (size_t)part.count * 8);
    assert_memory_equal(again.row, e[0].row, (size_t)(e[0].samples + 1) * sizeof *again.row);
    assert_memory_equal(again.shuffle, e[0].shuffle, (size_t)e[0].samples * 8);
    clv_order_free(&again);
    for (int k = 0; k < 3; k++) {
        is_permutation(e[k].sequence, part.count, part.first);
        is_permutation(e[k].shuffle, e[k].samples, 0);
        int64_t before = 0, at = 0;
        for (int64_t j = 0; j <= e[k].samples; j++) {
            while (at < e[k].row[j].at)
                before += clv_indexed_length(data, e[k].sequence[at++]);
            assert_int_equal(before + e[k].row[j].offset, 5 * j);
        }
    }
    for (int k = 1; k < 3; k++) {
        assert_memory_not_equal(e[0].sequence, e[k].sequence, (size_t)part.count * 8);
        assert_memory_not_equal(e[0].shuffle, e[k].shuffle, (size_t)e[0].samples * 8);
    }
    for (int k = 0; k < 3; k++)
        clv_order_free(&e[k]);
    clv_indexed_close(data);
}

static int setup(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL)
        return 1;
    snprintf(prefix, sizeof prefix, "%s/set", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    char path[80];
    snprintf(path, sizeof path, "%s.bin", prefix);
    unlink(path);
    snprintf(path, sizeof path, "%s.idx", prefix);
    unlink(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(megatron_golden), cmocka_unit_test(megatron_boundaries),
                                       cmocka_unit_test(splits), cmocka_unit_test(tail_is_counted),
                                       cmocka_unit_test(stable_epochs)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
