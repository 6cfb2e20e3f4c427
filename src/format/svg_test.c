/* Charts: what must be in the file, and that odd input still gives a picture. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "format/format.h"

static clv_text chart(const char *title, const clv_series *series, size_t count)
{
    char path[] = "/tmp/clv_svg_XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    const clv_status st = clv_svg_chart(path, title, "iteration", "loss", series, count);
    assert_int_equal(st.code, CLV_OK);
    clv_text out;
    assert_int_equal(clv_file_read(path, &out).code, CLV_OK);
    unlink(path);
    return out;
}

static int times(const char *text, const char *part)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, part)) != NULL; at++)
        n++;
    return n;
}

static void curves_and_ticks(void **state)
{
    (void)state;
    const double x[] = {0, 50, 100}, y[] = {8, 4, 2}, z[] = {7, NAN, 3};
    const clv_series series[] = {{"train", x, y, 3}, {"a < b", x, z, 3}};
    clv_text svg = chart("Loss & time", series, 2);
    assert_non_null(strstr(svg.data, ">Loss &amp; time<"));
    assert_non_null(strstr(svg.data, ">a &lt; b<"));
    assert_int_equal(times(svg.data, "<polyline"), 2);
    /* x: 76 to 856 for 0 to 100; y: 422 to 60 for 2 to 8 */
    assert_non_null(strstr(svg.data, "points=\"76.0,60.0 466.0,301.3 856.0,422.0\""));
    assert_non_null(strstr(svg.data, "points=\"76.0,120.3 856.0,361.7\"")); /* without the NaN */
    assert_non_null(strstr(svg.data, ">100<"));
    assert_non_null(strstr(svg.data, ">8<"));
    assert_null(strstr(svg.data, "nan"));
    clv_text_free(&svg);
}

static void odd_input(void **state)
{
    (void)state;
    const double one[] = {5}, same[] = {3, 3}, x[] = {1, 2}, bad[] = {NAN, INFINITY};
    clv_text svg = chart("empty", NULL, 0);
    assert_null(strstr(svg.data, "nan"));
    clv_text_free(&svg);
    svg = chart("bad", &(clv_series){"bad", x, bad, 2}, 1);
    assert_null(strstr(svg.data, "nan"));
    assert_null(strstr(svg.data, "inf"));
    clv_text_free(&svg);
    svg = chart("one", &(clv_series){"one", one, one, 1}, 1);
    assert_non_null(strstr(svg.data, "<circle"));
    clv_text_free(&svg);
    svg = chart("flat", &(clv_series){"flat", x, same, 2}, 1);
    assert_null(strstr(svg.data, "nan"));
    clv_text_free(&svg);
    svg = chart("tiny", &(clv_series){"tiny", (double[]){1e-9, 2e-9}, (double[]){-1e30, 1e30}, 2}, 1);
    assert_true(svg.length < 10000); /* a bounded number of ticks */
    clv_text_free(&svg);
}

static void long_run_stays_small(void **state)
{
    (void)state;
    enum { N = 1000000 };
    double *x = clv_alloc(N, sizeof *x), *y = clv_alloc(N, sizeof *y);
    for (int i = 0; i < N; i++) {
        x[i] = i;
        y[i] = 2 + 6 * exp(-i / 1e5);
    }
    clv_text svg = chart("long", &(clv_series){"smooth", x, y, N}, 1);
    assert_true(svg.length < 200000);
    clv_text_free(&svg);
    free(x);
    free(y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(curves_and_ticks), cmocka_unit_test(odd_input),
                                       cmocka_unit_test(long_run_stays_small)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
