/* signal.c - a signal only leaves its number here; the trainer looks between two iterations.
 *
 * A handler gets no argument, so this is one of the few file-scope variables of the project. The first signal asks for
 * a save and an orderly end; the handler then steps back, so that a second one ends the process at once.
 */
#include "base.h"

#include <signal.h>

static volatile sig_atomic_t caught = 0;

static void note(int number)
{
    caught = number;
}

void clv_signals_catch(void)
{
    struct sigaction action = {.sa_handler = note, .sa_flags = (int)(SA_RESETHAND | SA_RESTART)};
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
}

int clv_signal_caught(void)
{
    return (int)caught;
}
