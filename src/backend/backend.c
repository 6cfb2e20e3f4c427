/* backend.c - the backends by name. */
#include "op/backend.h"

#include <string.h>

const clv_backend *clv_backend_find(const char *name)
{
    const clv_backend *const all[] = {clv_backend_ref(), clv_backend_null(), clv_backend_cpu()};
    for (size_t i = 0; i < CLV_COUNT(all); i++)
        if (strcmp(all[i]->name, name) == 0)
            return all[i];
    return NULL;
}
