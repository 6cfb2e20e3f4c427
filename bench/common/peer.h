/* peer.h - a peer in another process, asked turn by turn: see peer.c for what is said. */
#ifndef BENCH_PEER_H
#define BENCH_PEER_H

#include "base/base.h"

#include <stdio.h>
#include <sys/types.h>

typedef struct peer {
    char name[64];
    pid_t process;
    FILE *ask, *answer; /* NULL: no peer */
} peer;

bool peer_open(peer *p, const char *command);       /* false: it did not start */
double peer_seconds(peer *p, const char *question); /* of its fastest run; 0: it cannot do that */
void peer_close(peer *p);

/* "--name value" and "--flag" of a benchmark's command line. */
typedef struct bench_option {
    const char *name;
    int64_t *number;   /* at least 1 */
    const char **text; /* not empty */
    bool *flag;
} bench_option;

bool bench_options_read(const bench_option *options, size_t count, int argc, char **argv);

#endif
