/* status.c - a failure is a value: code and sentence, copied upward. */
#include "base.h"

#include <stdio.h>
#include <string.h>

clv_status clv_ok(void)
{
    return (clv_status){.code = CLV_OK};
}

clv_status clv_fail(clv_code code, const char *fmt, ...)
{
    clv_status st = {.code = code};
    va_list args;
    va_start(args, fmt);
    vsnprintf(st.text, sizeof st.text, fmt, args);
    va_end(args);
    return st;
}

clv_status clv_within(clv_status inner, const char *fmt, ...)
{
    if (inner.code == CLV_OK)
        return inner;
    clv_status st = {.code = inner.code};
    va_list args;
    va_start(args, fmt);
    vsnprintf(st.text, sizeof st.text, fmt, args);
    va_end(args);
    const size_t used = strlen(st.text);
    const size_t room = sizeof st.text - used;
    if (room > 3) {
        memcpy(st.text + used, ": ", 3);
        const size_t n = CLV_MIN(strlen(inner.text), room - 3);
        memcpy(st.text + used + 2, inner.text, n);
        st.text[used + 2 + n] = 0;
    }
    return st;
}
