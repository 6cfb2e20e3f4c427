/* task.c - work beside the run, on a thread that lets others go first.
 *
 * Ranks that wait for messages do not sleep, so there may be no idle core: the thread then gets about 3 % of one,
 * enough to come to an end and too little to be felt. Nobody joins the thread: with so low a priority it may take long
 * to end after its last word, which is the post. Where there is no thread to be had the work is done at once.
 */
#include "base.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/resource.h>

struct clv_task {
    void (*work)(void *state);
    void *state;
    sem_t done;
};

static void *run(void *task)
{
    enum { NICER = 15 };
    clv_task *t = task;
    setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + NICER); /* on Linux this thread's alone; a wish */
    t->work(t->state);
    sem_post(&t->done);
    return NULL;
}

clv_task *clv_task_start(void (*work)(void *state), void *state)
{
    pthread_t thread;
    clv_task *t = clv_alloc(1, sizeof *t);
    *t = (clv_task){.work = work, .state = state};
    sem_init(&t->done, 0, 0);
    if (pthread_create(&thread, NULL, run, t) == 0) {
        pthread_detach(thread);
    } else {
        work(state);
        sem_post(&t->done);
    }
    return t;
}

bool clv_task_is_done(clv_task *task)
{
    int posts = 0;
    sem_getvalue(&task->done, &posts);
    return posts > 0;
}

void clv_task_end(clv_task *task)
{
    if (task == NULL)
        return;
    while (sem_wait(&task->done) != 0)
        CLV_CHECK(errno == EINTR, "a task is lost");
    sem_destroy(&task->done);
    free(task);
}
