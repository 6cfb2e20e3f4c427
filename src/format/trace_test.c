/* trace_test.c - what is written is JSON, with names escaped, times in microseconds, and arguments as given. */
#include "format/format.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

static double number_of(const clv_json *json, clv_node object, const char *key)
{
    double value = NAN;
    assert_true(clv_json_f64(json, clv_json_get(json, object, key), &value));
    return value;
}

static const char *string_of(const clv_json *json, clv_node object, const char *key)
{
    return clv_json_string(json, clv_json_get(json, object, key), NULL);
}

static void test_events(void **state)
{
    (void)state;
    clv_text out = {0};
    clv_trace_head(&out);
    clv_trace_process(&out, 3, "rank \"3\"\n");
    clv_trace_thread(&out, 3, 1, "wire");
    clv_trace_slice(&out, &(clv_trace_event){.process = 3,
                                             .thread = 1,
                                             .name = "send",
                                             .category = "comm",
                                             .begin = 0.5,
                                             .end = 0.50025,
                                             .key = {"bytes", "micro"},
                                             .value = {1LL << 40, 7}});
    clv_trace_tail(&out);
    clv_json *json;
    assert_int_equal(clv_json_parse(&json, out.data, out.length, "trace").code, CLV_OK);
    const clv_node events = clv_json_get(json, CLV_JSON_ROOT, "traceEvents");
    assert_int_equal(clv_json_count(json, events), 4);
    clv_node n = clv_json_next(json, clv_json_first(json, events));
    assert_string_equal(string_of(json, n, "ph"), "M");
    assert_string_equal(string_of(json, clv_json_get(json, n, "args"), "name"), "rank \"3\"\n");
    n = clv_json_next(json, clv_json_next(json, n));
    assert_string_equal(string_of(json, n, "ph"), "X");
    assert_string_equal(string_of(json, n, "name"), "send");
    assert_true(number_of(json, n, "pid") == 3 && number_of(json, n, "tid") == 1);
    assert_true(fabs(number_of(json, n, "ts") - 500000) < 1e-3 && fabs(number_of(json, n, "dur") - 250) < 1e-2);
    const clv_node args = clv_json_get(json, n, "args");
    assert_int_equal(clv_json_count(json, args), 2);
    assert_true(number_of(json, args, "bytes") == 1099511627776.0 && number_of(json, args, "micro") == 7);
    clv_json_free(json);
    clv_text_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_events)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
