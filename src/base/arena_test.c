/* arena_test.c - real and counting arenas agree; marks; a broken contract ends the process with a message. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"

static void work(clv_arena *arena, void **first, void **again)
{
    *first = clv_arena_push(arena, 100);
    const size_t mark = clv_arena_mark(arena);
    clv_arena_push(arena, 1);
    clv_arena_push(arena, 5000);
    clv_arena_release(arena, mark);
    *again = clv_arena_push(arena, 64);
    clv_arena_push(arena, 0);
}

static void test_counting_equals_real(void **state)
{
    (void)state;
    clv_arena counting = clv_arena_counting("save"), real;
    void *first, *again;
    work(&counting, &first, &again);
    assert_null(first);
    assert_null(again);
    assert_int_equal(counting.used, 128 + 64);
    assert_int_equal(counting.peak, 128 + 64 + 5056);

    assert_int_equal(clv_arena_create(&real, "save", counting.peak).code, CLV_OK);
    work(&real, &first, &again);
    assert_int_equal(real.used, counting.used);
    assert_int_equal(real.peak, counting.peak);
    assert_int_equal((uintptr_t)first % CLV_ARENA_ALIGN, 0);
    assert_int_equal((char *)again - (char *)first, 128);
    memset(first, 0xAB, 100);
    clv_arena_destroy(&real);
    assert_null(real.base);
    clv_arena_destroy(&real); /* a second time is harmless */
}

static void test_reserving_is_lazy(void **state)
{
    (void)state;
    clv_arena arena;
    assert_int_equal(clv_arena_create(&arena, "large", (size_t)1 << 40).code, CLV_OK);
    char *end = (char *)clv_arena_push(&arena, (size_t)1 << 40) + ((size_t)1 << 40) - 1;
    *end = 1;
    clv_arena_destroy(&arena);
    const clv_status status = clv_arena_create(&arena, "activations", (size_t)1 << 60);
    assert_int_equal(status.code, CLV_BAD_INPUT);
    assert_non_null(strstr(status.text, "MiB for activations"));
}

/* Runs `broken` in a child; it must abort, and say `message` on stderr. */
static void assert_panics(void (*broken)(void), const char *message)
{
    int ends[2], status;
    char said[1024] = "";
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(ends[1], STDERR_FILENO);
        broken();
        _exit(0);
    }
    close(ends[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(read(ends[0], said, sizeof said - 1) >= 0);
    close(ends[0]);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    if (strstr(said, message) == NULL)
        fail_msg("'%s' does not say '%s'", said, message);
}

static void overfill(void)
{
    clv_arena arena;
    clv_arena_create(&arena, "small", 1);
    clv_arena_push(&arena, arena.size);
    clv_arena_push(&arena, 1);
}

static void release_ahead(void)
{
    clv_arena arena = clv_arena_counting("save");
    clv_arena_release(&arena, 64);
}

static void resize_too_much(void)
{
    free(clv_resize(NULL, SIZE_MAX / 4, 8));
}

static void test_broken_contracts(void **state)
{
    (void)state;
    assert_panics(overfill, "arena small is full");
    assert_panics(release_ahead, "arena save: release to 64, but only 0 used");
    assert_panics(resize_too_much, "size overflow");
}

static void test_heap(void **state)
{
    (void)state;
    char *zeroed = clv_alloc(10, 3);
    for (int i = 0; i < 30; i++)
        assert_int_equal(zeroed[i], 0);
    zeroed = clv_resize(zeroed, 100, 3);
    assert_int_equal(zeroed[29], 0);
    free(zeroed);
    free(clv_alloc(0, 8)); /* nothing is still something to free */
    char *copy = clv_strdup("text");
    assert_string_equal(copy, "text");
    free(copy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counting_equals_real),
        cmocka_unit_test(test_reserving_is_lazy),
        cmocka_unit_test(test_broken_contracts),
        cmocka_unit_test(test_heap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
