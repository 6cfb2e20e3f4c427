/* Work beside the run: done when its end was waited for, and not before. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/base.h"

#include <pthread.h>
#include <sys/resource.h>

typedef struct gate {
    pthread_mutex_t closed;
    int value, priority;
} gate;

static void set(void *state)
{
    gate *g = state;
    pthread_mutex_lock(&g->closed);
    g->value++;
    g->priority = getpriority(PRIO_PROCESS, 0);
    pthread_mutex_unlock(&g->closed);
}

static void test_task(void **state)
{
    (void)state;
    gate g = {.closed = PTHREAD_MUTEX_INITIALIZER};
    const int own = getpriority(PRIO_PROCESS, 0);
    pthread_mutex_lock(&g.closed);
    clv_task *task = clv_task_start(set, &g);
    assert_false(clv_task_is_done(task));
    assert_int_equal(g.value, 0);
    pthread_mutex_unlock(&g.closed);
    clv_task_end(task);
    assert_int_equal(g.value, 1);
    assert_int_equal(g.priority, CLV_MIN(own + 15, 19));
    assert_int_equal(getpriority(PRIO_PROCESS, 0), own);
    clv_task_end(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_task)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
