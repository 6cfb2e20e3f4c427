/* mpi_test.h - the runner of tests that need several ranks.
 *
 * cmocka leaves a failed test by a jump, and the other ranks would wait for ever. Here a case goes on after a failed
 * check and returns their number; all ranks run every case, and rank 0 prints the sum over the ranks.
 *
 *   static int sums(clv_comm *world)
 *   {
 *       int failed = 0;
 *       EXPECT(value == 3, "value is %d", value);
 *       return failed;
 *   }
 *   int main(int argc, char **argv)
 *   {
 *       return mpi_test_run(&argc, &argv, (mpi_case[]){{"sums", sums}, {0}});
 *   }
 */
#ifndef CLV_MPI_TEST_H
#define CLV_MPI_TEST_H

#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MPI_TEST_SECONDS = 230 }; /* then the alarm ends this rank, and the launcher the others */

typedef struct mpi_case {
    const char *name;
    int (*run)(clv_comm *world); /* the number of failed checks on this rank */
} mpi_case;

/* Needs `world` and `int failed` in scope. */
#define EXPECT(condition, ...)                                                                                         \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            failed++;                                                                                                  \
            mpi_test_complain(clv_comm_rank(world), __FILE__, __LINE__, #condition, __VA_ARGS__);                      \
        }                                                                                                              \
    } while (0)

CLV_PRINTF(5, 6)
static inline void mpi_test_complain(int rank, const char *file, int line, const char *condition, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    fprintf(stderr, "[rank %d] %s:%d: %s: %s\n", rank, file, line, condition, text);
}

/* The cases end with a zero row. Returns the exit code of main. */
static inline int mpi_test_run(int *argc, char ***argv, const mpi_case *cases)
{
    alarm(MPI_TEST_SECONDS);
    clv_comm *world;
    const clv_status opened = clv_comm_world_open(&world, argc, argv);
    if (opened.code != CLV_OK) {
        fprintf(stderr, "%s\n", opened.text);
        return EXIT_FAILURE;
    }
    const bool speaks = clv_comm_rank(world) == 0;
    int passed = 0, failed = 0;
    for (const mpi_case *c = cases; c->run != NULL; c++) {
        int32_t bad = c->run(world);
        clv_all_reduce(world, &bad, &bad, 1, CLV_I32, CLV_SUM);
        *(bad == 0 ? &passed : &failed) += 1;
        if (speaks && bad > 0)
            printf("FAILED %s: %d checks\n", c->name, bad);
    }
    if (speaks)
        printf("%d passed, %d failed\n", passed, failed);
    clv_comm_world_close(world);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#endif
