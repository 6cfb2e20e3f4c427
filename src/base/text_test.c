/* text_test.c - growing text, files, folders, strict numbers, near names; and statuses that travel upward. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

static void test_status(void **state)
{
    (void)state;
    assert_int_equal(clv_ok().code, CLV_OK);
    const clv_status inner = clv_fail(CLV_BAD_USAGE, "value %d is odd", 3);
    const clv_status outer = clv_within(inner, "file %s", "x");
    assert_int_equal(outer.code, CLV_BAD_USAGE);
    assert_string_equal(outer.text, "file x: value 3 is odd");
    assert_int_equal(clv_within(clv_ok(), "file").code, CLV_OK);
    assert_string_equal(clv_within(clv_ok(), "file").text, "");

    char long_text[3000];
    memset(long_text, 'y', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = 0;
    const clv_status cut = clv_fail(CLV_BAD_INPUT, "%s", long_text);
    assert_int_equal(strlen(cut.text), sizeof cut.text - 1);
    const clv_status wrapped = clv_within(cut, "ab");
    assert_int_equal(strlen(wrapped.text), sizeof cut.text - 1);
    assert_memory_equal(wrapped.text, "ab: yyy", 7);
    assert_int_equal(strlen(clv_within(inner, "%s", long_text).text), sizeof cut.text - 1);
}

static void test_growing(void **state)
{
    (void)state;
    clv_text text = {0};
    clv_text_add(&text, "", 0);
    assert_string_equal(text.data, "");
    for (int i = 0; i < 1000; i++)
        clv_text_printf(&text, "%d,", i % 10);
    assert_int_equal(text.length, 2000);
    assert_int_equal(text.data[2000], 0);
    assert_memory_equal(text.data + 1994, "7,8,9,", 6);
    clv_text_add(&text, "a\0b", 3);
    assert_memory_equal(text.data + 2000, "a\0b", 4);
    clv_text_free(&text);
    assert_null(text.data);
    clv_text_free(&text);
}

static int entries_of(const char *folder)
{
    int count = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count - 2; /* . and .. */
}

static void test_files(void **state)
{
    (void)state;
    char folder[] = "/tmp/text_test.XXXXXX", path[256], deep[256], command[256];
    assert_non_null(mkdtemp(folder));
    clv_path_join(path, sizeof path, folder, "file");
    assert_false(clv_file_exists(path));
    clv_text text;
    clv_status status = clv_file_read(path, &text);
    assert_int_equal(status.code, CLV_BAD_INPUT);
    assert_non_null(strstr(status.text, path));
    assert_non_null(strstr(clv_file_read(folder, &text).text, "is a folder"));

    char *large = malloc(300000);
    for (int i = 0; i < 300000; i++)
        large[i] = (char)(i * 7 + i / 256);
    assert_int_equal(clv_file_write_atomic(path, "old", 3).code, CLV_OK);
    assert_int_equal(clv_file_write_atomic(path, large, 300000).code, CLV_OK);
    assert_int_equal(clv_file_read(path, &text).code, CLV_OK);
    assert_int_equal(text.length, 300000);
    assert_memory_equal(text.data, large, 300000);
    clv_text_free(&text);
    assert_int_equal(clv_file_write_atomic(path, "", 0).code, CLV_OK);
    assert_int_equal(clv_file_read(path, &text).code, CLV_OK);
    assert_string_equal(text.data, "");
    clv_text_free(&text);
    assert_int_equal(entries_of(folder), 1); /* no temporary file stays */

    clv_path_join(deep, sizeof deep, folder, "a/b//c/");
    assert_int_equal(clv_make_dirs(deep).code, CLV_OK);
    assert_int_equal(clv_make_dirs(deep).code, CLV_OK);
    assert_true(clv_file_exists(deep));
    assert_int_equal(clv_make_dirs(path).code, CLV_BAD_INPUT); /* a file is in the way */
    assert_int_equal(clv_file_write_atomic(deep, "x", 1).code, CLV_BAD_INPUT);
    clv_path_join(deep, sizeof deep, folder, "none/file");
    assert_non_null(strstr(clv_file_write_atomic(deep, "x", 1).text, "No such file"));
    free(large);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
}

static void test_paths(void **state)
{
    (void)state;
    char path[32];
    clv_path_join(path, sizeof path, "a", "b");
    assert_string_equal(path, "a/b");
    clv_path_join(path, sizeof path, "a/", "b");
    assert_string_equal(path, "a/b");
    clv_path_join(path, sizeof path, "", "b");
    assert_string_equal(path, "b");
}

static void test_numbers(void **state)
{
    (void)state;
    int64_t i = 0;
    double f = 0.0;
    assert_true(clv_parse_i64("-9223372036854775808", &i) && i == INT64_MIN);
    assert_true(clv_parse_i64("9223372036854775807", &i) && i == INT64_MAX);
    static const char *const no_integers[] = {"", " 1", "\t1", "1 ", "1.0", "1e3", "x", "9223372036854775808", "0x10"};
    for (size_t k = 0; k < CLV_COUNT(no_integers); k++)
        if (clv_parse_i64(no_integers[k], &i))
            fail_msg("'%s' is no integer", no_integers[k]);
    assert_int_equal(i, INT64_MAX);
    assert_true(clv_parse_f64("-1.5e-3", &f) && f == -1.5e-3);
    assert_true(clv_parse_f64("3", &f) && f == 3.0);
    static const char *const no_numbers[] = {"", " 1", "\n1", "1 ", "1,5", "nan", "inf", "1e999", "1.5x"};
    for (size_t k = 0; k < CLV_COUNT(no_numbers); k++)
        if (clv_parse_f64(no_numbers[k], &f))
            fail_msg("'%s' is no number", no_numbers[k]);
    assert_true(f == 3.0);
}

static void test_near_names(void **state)
{
    (void)state;
    assert_int_equal(clv_edit_distance("", ""), 0);
    assert_int_equal(clv_edit_distance("abc", ""), 3);
    assert_int_equal(clv_edit_distance("kitten", "sitting"), 3);
    assert_int_equal(clv_edit_distance("sitting", "kitten"), 3);
    static const char *const names[] = {"hidden-size", "num-layers", "seed"};
    assert_string_equal(clv_nearest("hiden-size", names, 3), "hidden-size");
    assert_string_equal(clv_nearest("n-layers", names, 3), "num-layers");
    assert_null(clv_nearest("completely-different", names, 3));
    assert_null(clv_nearest("x", names, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status), cmocka_unit_test(test_growing), cmocka_unit_test(test_files),
        cmocka_unit_test(test_paths),  cmocka_unit_test(test_numbers), cmocka_unit_test(test_near_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
