/* trainer_test.c - the loop as its metrics show it: the schedule advances once an update, however many micro-batches an
 * update has, and a run of the same options is the same run.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "train/train.h"

enum { ITERATIONS = 12 };

typedef struct line { /* of --metrics */
    double lr, loss, norm;
    int64_t samples;
} line;

static double number_of(const clv_json *json, const char *key)
{
    double value = NAN;
    assert_true(clv_json_f64(json, clv_json_get(json, CLV_JSON_ROOT, key), &value));
    return value;
}

static void lines_read(line *out, const char *path)
{
    clv_text text = {0};
    assert_int_equal(clv_file_read(path, &text).code, CLV_OK);
    int n = 0;
    for (char *rest = text.data, *row; (row = strsep(&rest, "\n")) != NULL && *row != 0; n++) {
        clv_json *json;
        assert_true(n < ITERATIONS);
        assert_int_equal(clv_json_parse(&json, row, strlen(row), path).code, CLV_OK);
        out[n] = (line){number_of(json, "learning_rate"), number_of(json, "lm_loss"), number_of(json, "grad_norm"),
                        (int64_t)number_of(json, "consumed_samples")};
        clv_json_free(json);
    }
    assert_int_equal(n, ITERATIONS);
    clv_text_free(&text);
}

/* Twelve updates on random tokens, warm-up over ten, with what else is asked for. */
static void train(line *out, const char *more)
{
    enum { WORDS = 64 };
    char path[] = "/tmp/cleave_trainer_XXXXXX", *argv[WORDS], *rest = NULL;
    int count = 0;
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    clv_text text = {0};
    clv_text_printf(
        &text,
        "--mock-data --vocab-size 32 --num-layers 1 --hidden-size 16 --num-attention-heads 2 --seq-length 16 "
        "--hidden-dropout 0 --attention-dropout 0 --train-iters 12 --lr 1e-3 --lr-warmup 10 --check-decisions "
        "--metrics %s %s",
        path, more);
    for (char *word = strtok_r(text.data, " ", &rest); word != NULL && count < WORDS; word = strtok_r(NULL, " ", &rest))
        argv[count++] = word;
    clv_options options;
    clv_options_default(&options, 'T');
    clv_status st = clv_options_parse(&options, count, argv, NULL);
    clv_comm *world = clv_comm_self_open();
    if (st.code == CLV_OK)
        st = clv_train(world, &options);
    if (st.code != CLV_OK)
        fail_msg("%s", st.text);
    lines_read(out, path);
    clv_comm_world_close(world);
    clv_options_free(&options);
    clv_text_free(&text);
    unlink(path);
}

static void test_schedule_counts_updates(void **state)
{
    (void)state;
    line one[ITERATIONS], four[ITERATIONS];
    train(one, "--global-batch-size 4");
    train(four, "--global-batch-size 4 --micro-batch-size 4");
    for (int i = 0; i < ITERATIONS; i++) {
        assert_true(one[i].lr == four[i].lr);
        assert_int_equal(one[i].samples, 4 * (i + 1));
        assert_int_equal(four[i].samples, 4 * (i + 1));
        assert_true(fabs(one[i].loss - four[i].loss) < 1e-4 * four[i].loss);
    }
    assert_true(fabs(one[4].lr - 4e-4) < 1e-12); /* four updates of ten were made */
}

static void test_same_run(void **state)
{
    (void)state;
    line a[ITERATIONS], b[ITERATIONS];
    train(a, "--global-batch-size 4 --micro-batch-size 2");
    train(b, "--global-batch-size 4 --micro-batch-size 2");
    assert_memory_equal(a, b, sizeof a);
    assert_true(a[0].loss != a[ITERATIONS - 1].loss);
}

/* 4, then 8, then 12 samples: the warm-up over ten updates is one over their samples, and the rate is a straight line
 * in them. */
static void test_ramp(void **state)
{
    (void)state;
    line ramp[ITERATIONS];
    static const int64_t at[] = {0, 4, 8, 12, 20, 32, 44, 56, 68, 80, 92, 104, 116}; /* sizes change at 10 and 20 */
    train(ramp, "--global-batch-size 12 --micro-batch-size 2 --rampup-batch-size 4 4 20");
    for (int i = 0; i < ITERATIONS; i++) {
        assert_int_equal(ramp[i].samples, at[i + 1]);
        assert_true(i > 10 || fabs(ramp[i].lr - 1e-3 * (double)at[i] / (double)at[10]) < 1e-15);
    }
}

int main(void)
{
    clv_log_setup(CLV_LOG_ERROR, 0, 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_schedule_counts_updates), cmocka_unit_test(test_same_run),
                                       cmocka_unit_test(test_ramp)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
