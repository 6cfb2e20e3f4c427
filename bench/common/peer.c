/* peer.c - a peer in another process, asked turn by turn.
 *
 * The command is started with the shell. It says its name, a line; then it answers each question, a line, with the
 * seconds of its fastest run, a line, or with 0 where it has nothing of that kind. It ends when it reads no more.
 */
#include "peer.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static bool line_read(FILE *from, char *line, size_t size)
{
    if (fgets(line, (int)size, from) == NULL)
        return false;
    line[strcspn(line, "\n")] = '\0';
    return true;
}

bool peer_open(peer *p, const char *command)
{
    int ask[2], answer[2];
    *p = (peer){0};
    if (pipe(ask) != 0 || pipe(answer) != 0)
        return false;
    signal(SIGPIPE, SIG_IGN);
    p->process = fork();
    if (p->process == 0) {
        dup2(ask[0], STDIN_FILENO);
        dup2(answer[1], STDOUT_FILENO);
        close(ask[1]);
        close(answer[0]);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    close(ask[0]);
    close(answer[1]);
    p->ask = fdopen(ask[1], "w");
    p->answer = fdopen(answer[0], "r");
    return p->process > 0 && line_read(p->answer, p->name, sizeof p->name);
}

double peer_seconds(peer *p, const char *question)
{
    char line[64];
    double seconds = 0.0;
    if (p->ask == NULL || fprintf(p->ask, "%s\n", question) < 0 || fflush(p->ask) != 0 ||
        !line_read(p->answer, line, sizeof line) || !clv_parse_f64(line, &seconds))
        return 0.0;
    return seconds;
}

void peer_close(peer *p)
{
    if (p->ask == NULL)
        return;
    fclose(p->ask);
    fclose(p->answer);
    waitpid(p->process, NULL, 0);
}
