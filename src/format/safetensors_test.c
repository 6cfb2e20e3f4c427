/* safetensors_test.c - files as the reference writes them, every refusal, shards, several writers, damaged headers. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "format/format.h"

static char folder[64];

static int set_up(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/safetensors_test.XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int tear_down(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static const char *in_folder(const char *name)
{
    static char path[2][256];
    static int turn = 0;
    turn = 1 - turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

/* A file of the given header, as it is, and `data` bytes 0, 1, 2, ... */
static const char *make_file(const char *name, const char *header, size_t data)
{
    const size_t n = strlen(header);
    clv_text text = {0};
    for (int i = 0; i < 8; i++)
        clv_text_add(&text, &(char){(char)(n >> (8 * i))}, 1);
    clv_text_add(&text, header, n);
    for (size_t i = 0; i < data; i++)
        clv_text_add(&text, &(char){(char)i}, 1);
    const char *path = in_folder(name);
    assert_int_equal(clv_file_write_atomic(path, text.data, text.length).code, CLV_OK);
    clv_text_free(&text);
    return path;
}

static void refuse(const char *path, const char *message)
{
    clv_safetensors *st;
    const clv_status status = clv_safetensors_open(&st, path);
    assert_int_equal(status.code, CLV_BAD_INPUT);
    assert_null(st);
    if (strstr(status.text, message) == NULL || strstr(status.text, folder) == NULL)
        fail_msg("'%s' does not say '%s', or no path", status.text, message);
}

static clv_safetensors *open_good(const char *path)
{
    clv_safetensors *st;
    assert_string_equal(clv_safetensors_open(&st, path).text, "");
    return st;
}

static void test_smallest_file(void **state)
{
    (void)state;
    const char *header = "{\"test\":{\"dtype\":\"I32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}";
    assert_int_equal(strlen(header), 60); /* no multiple of 8, and still to be read */
    clv_safetensors *st = open_good(make_file("small", header, 16));
    assert_int_equal(clv_safetensors_count(st), 1);
    const clv_st_tensor *t = clv_safetensors_find(st, "test");
    assert_ptr_equal(t, clv_safetensors_at(st, 0));
    assert_int_equal(t->dtype, CLV_I32);
    assert_string_equal(t->kind, "I32");
    assert_true(t->ndim == 2 && t->dim[0] == 2 && t->dim[1] == 2 && t->bytes == 16 && t->at == 68);
    uint8_t got[7];
    assert_int_equal(clv_safetensors_read(st, t, 5, got, sizeof got).code, CLV_OK);
    for (int i = 0; i < 7; i++)
        assert_int_equal(got[i], 5 + i);
    assert_null(clv_safetensors_find(st, "tes"));
    assert_null(clv_safetensors_metadata(st, "format"));
    clv_safetensors_close(st);
}

static void test_odd_but_valid(void **state)
{
    (void)state;
    /* Any order in the header, an empty tensor, a scalar, unknown keys, types that we only carry, padding. */
    clv_safetensors *st =
        open_good(make_file("odd",
                            "{\"b\":{\"dtype\":\"F8_E4M3\",\"shape\":[3],\"data_offsets\":[4,7],\"more\":[{}]},"
                            "\"none\":{\"dtype\":\"F32\",\"shape\":[0,5],\"data_offsets\":[4,4]},"
                            "\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
                            "\"__metadata__\":{\"format\":\"pt\",\"by\":\"hand\"}}   ",
                            7));
    assert_int_equal(clv_safetensors_count(st), 3);
    assert_string_equal(clv_safetensors_at(st, 0)->name, "s");
    assert_int_equal(clv_safetensors_find(st, "b")->dtype, CLV_DTYPES);
    assert_string_equal(clv_safetensors_find(st, "b")->kind, "F8_E4M3");
    assert_true(clv_safetensors_find(st, "none")->bytes == 0);
    assert_string_equal(clv_safetensors_metadata(st, "by"), "hand");
    clv_safetensors_close(st);
    st = open_good(make_file("empty", "{}", 0));
    assert_int_equal(clv_safetensors_count(st), 0);
    assert_null(clv_safetensors_find(st, "x"));
    clv_safetensors_close(st);
}

#define ENTRY(dtype, shape, offsets)                                                                                   \
    "{\"x\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void test_refused_headers(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data;
        const char *message;
    } cases[] = {
        {ENTRY("F32", "[2]", "[0,8]"), 7, "truncated"},
        {ENTRY("F32", "[2]", "[0,8]"), 9, "1 bytes after the last tensor"},
        {ENTRY("F32", "[2]", "[4,12]"), 12, "a hole"},
        {ENTRY("F32", "[2]", "[8,0]"), 8, "0 <= begin <= end"},
        {ENTRY("F32", "[2]", "[0,4]"), 4, "dtype and shape need 8"},
        {ENTRY("F32", "[2]", "[0,8,9]"), 8, "array of two"},
        {ENTRY("F32", "[2]", "[0,8.0]"), 8, "two integers"},
        {ENTRY("F32", "[-2]", "[0,8]"), 8, "dimension 0"},
        {ENTRY("F32", "[2.0]", "[0,8]"), 8, "dimension 0"},
        {ENTRY("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]"), 8, "9 dimensions"},
        {ENTRY("F32", "[4294967296,4294967296]", "[0,0]"), 0, "2^64 bits"},
        {ENTRY("F32", "[9223372036854775808]", "[0,0]"), 0, "dimension 0"},
        {ENTRY("F4", "[3]", "[0,2]"), 2, "whole number of bytes"},
        {ENTRY("F31", "[2]", "[0,8]"), 8, "dtype \"F31\" is unknown"},
        {"{\"x\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "\"dtype\" is missing"},
        {"{\"x\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, "\"shape\" is missing"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "\"data_offsets\" is missing"},
        {"{\"x\":[]}", 0, "an object with dtype"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "must be a string"},
        {"{\"__metadata__\":[]}", 0, "must be an object"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
         3, "an overlap"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
         2, "\"a\" stands twice"},
        {"{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "zero byte"},
        {" {}", 0, "byte 0x20, not '{'"},
        {"{} x", 0, "column 4"},
        {"{\"\xFF\":1}", 0, "UTF-8"},
    };
    for (size_t i = 0; i < CLV_COUNT(cases); i++)
        refuse(make_file("bad", cases[i].header, cases[i].data), cases[i].message);
}

static void test_refused_files(void **state)
{
    (void)state;
    const char *path = in_folder("raw");
    const char *pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 548105171\n";
    clv_file_write_atomic(path, pointer, strlen(pointer));
    refuse(path, "Git LFS pointer");
    clv_file_write_atomic(path, "\x02\0\0", 3);
    refuse(path, "3 bytes are no safetensors file");
    clv_file_write_atomic(path, "\x01\xE1\xF5\x05\0\0\0\0{", 9);
    refuse(path, "100000001 bytes (at most 100000000)");
    clv_file_write_atomic(path, "\x10\0\0\0\0\0\0\0{}", 10);
    refuse(path, "truncated");
    refuse(in_folder("absent"), "No such file");
    refuse(folder, "neither model.safetensors nor");
}

static void put_index(const char *text)
{
    assert_int_equal(clv_file_write_atomic(in_folder("model.safetensors.index.json"), text, strlen(text)).code, CLV_OK);
}

#define BYTES(name, n) "{\"" name "\":{\"dtype\":\"U8\",\"shape\":[" #n "],\"data_offsets\":[0," #n "]}}"

static void test_shards(void **state)
{
    (void)state;
    make_file("one.safetensors", BYTES("x", 200), 200);
    make_file("two.safetensors", BYTES("y", 300), 300);
    const char *good = "{\"metadata\":{\"total_size\":500},"
                       "\"weight_map\":{\"y\":\"two.safetensors\",\"x\":\"one.safetensors\"}}";
    put_index(good);
    clv_safetensors *st = open_good(folder);
    assert_int_equal(clv_safetensors_count(st), 2);
    const clv_st_tensor *x = clv_safetensors_find(st, "x");
    assert_non_null(strstr(clv_safetensors_file(st, x->file), "one.safetensors"));
    uint8_t byte;
    assert_int_equal(clv_safetensors_read(st, clv_safetensors_find(st, "y"), 299, &byte, 1).code, CLV_OK);
    assert_int_equal(byte, 299 % 256);
    /* Cut while it is open: the read says so. */
    assert_int_equal(truncate(in_folder("one.safetensors"), 100), 0);
    uint8_t all[200];
    const clv_status cut = clv_safetensors_read(st, x, 0, all, sizeof all);
    assert_true(cut.code == CLV_BAD_INPUT && strstr(cut.text, "one.safetensors") != NULL);
    clv_safetensors_close(st);

    make_file("one.safetensors", BYTES("x", 200), 100); /* 100 bytes short: refused at once */
    refuse(folder, "truncated");
    unlink(in_folder("one.safetensors"));
    refuse(folder, "one.safetensors: No such file");
    make_file("one.safetensors", BYTES("y", 200), 200);
    refuse(folder, "in two files");
    make_file("one.safetensors", BYTES("z", 200), 200);
    refuse(folder, "says that \"x\" is in");
    make_file("one.safetensors", BYTES("x", 200), 200);
    put_index("{\"weight_map\":{\"x\":\"two.safetensors\",\"y\":\"one.safetensors\"}}");
    refuse(folder, "says that \"x\" is in");
    put_index("{\"weight_map\":{\"x\":\"../one.safetensors\"}}");
    refuse(folder, "a file of this folder");
    put_index("{\"weight_map\":{\"x\":1}}");
    refuse(folder, "is no string");
    put_index("{}");
    refuse(folder, "weight_map");
}

static void test_writer(void **state)
{
    (void)state;
    const clv_st_tensor list[] = {
        {.name = "b", .dtype = CLV_F32, .ndim = 2, .dim = {2, 3}},
        {.name = "half", .dtype = CLV_BF16, .ndim = 1, .dim = {5}},
        {.name = "a\"", .dtype = CLV_F32, .ndim = 0},
        {.name = "step", .dtype = CLV_I64, .ndim = 1, .dim = {1}},
        {.name = "none", .dtype = CLV_U8, .ndim = 2, .dim = {0, 4}},
    };
    const char *path = in_folder("written");
    clv_st_writer *w;
    assert_int_equal(clv_st_writer_create(&w, path, list, CLV_COUNT(list)).code, CLV_OK);
    const float b[6] = {1, 2, 3, 4, 5, 6};
    const int64_t step = -3;
    assert_int_equal(clv_st_writer_put(w, 0, 8, b + 2, 16).code, CLV_OK);
    assert_int_equal(clv_st_writer_put(w, 3, 0, &step, 8).code, CLV_OK);
    assert_int_equal(clv_st_writer_put(w, 0, 0, b, 8).code, CLV_OK);
    assert_int_equal(clv_st_writer_finish(w).code, CLV_OK);

    clv_text text;
    assert_int_equal(clv_file_read(path, &text).code, CLV_OK);
    const char *expected = "{\"__metadata__\":{\"format\":\"pt\"},"
                           "\"step\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]},"
                           "\"a\\\"\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[8,12]},"
                           "\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[12,36]},"
                           "\"half\":{\"dtype\":\"BF16\",\"shape\":[5],\"data_offsets\":[36,46]},"
                           "\"none\":{\"dtype\":\"U8\",\"shape\":[0,4],\"data_offsets\":[46,46]}}";
    const size_t n = strlen(expected), padded = (n + 7) / 8 * 8;
    assert_int_equal((uint8_t)text.data[0] + 256 * (uint8_t)text.data[1], padded);
    assert_memory_equal(text.data + 8, expected, n);
    for (size_t i = n; i < padded; i++)
        assert_int_equal(text.data[8 + i], ' ');
    assert_int_equal(text.length, 8 + padded + 46);
    clv_text_free(&text);

    clv_safetensors *st = open_good(path);
    float back[6];
    assert_int_equal(clv_safetensors_read(st, clv_safetensors_find(st, "b"), 0, back, sizeof back).code, CLV_OK);
    assert_memory_equal(back, b, sizeof b);
    assert_string_equal(clv_safetensors_metadata(st, "format"), "pt");
    clv_safetensors_close(st);
}

/* Whatever the length of the header, the data begins at a multiple of 8. */
static void test_padding(void **state)
{
    (void)state;
    for (int n = 1; n <= 8; n++) {
        char name[16];
        snprintf(name, sizeof name, "%.*s", n, "abcdefgh");
        const clv_st_tensor list = {.name = name, .dtype = CLV_F64, .ndim = 1, .dim = {1}};
        clv_st_writer *w;
        assert_int_equal(clv_st_writer_create(&w, in_folder("padded"), &list, 1).code, CLV_OK);
        assert_int_equal(clv_st_writer_finish(w).code, CLV_OK);
        clv_safetensors *st = open_good(in_folder("padded"));
        assert_int_equal(clv_safetensors_at(st, 0)->at % 8, 0);
        clv_safetensors_close(st);
    }
}

/* Four processes open one list, each fills its own tensors; whoever comes first or last, the file is whole. */
static void test_several_writers(void **state)
{
    (void)state;
    enum { RANKS = 4, TENSORS = 12, ELEMENTS = 5000 };
    static char names[TENSORS][16];
    clv_st_tensor list[TENSORS];
    for (int i = 0; i < TENSORS; i++) {
        snprintf(names[i], sizeof names[i], "t%d", i);
        list[i] = (clv_st_tensor){.name = names[i], .dtype = CLV_I32, .ndim = 1, .dim = {ELEMENTS}};
    }
    const char *path = in_folder("shared");
    clv_file_write_atomic(path, "what an earlier run left", 24);
    pid_t pid[RANKS];
    for (int rank = 0; rank < RANKS; rank++) {
        if ((pid[rank] = fork()) != 0)
            continue;
        static int32_t data[ELEMENTS];
        clv_st_writer *w;
        bool good = clv_st_writer_create(&w, path, list, TENSORS).code == CLV_OK;
        for (int i = rank; good && i < TENSORS; i += RANKS) {
            for (int e = 0; e < ELEMENTS; e++)
                data[e] = i * ELEMENTS + e;
            good = clv_st_writer_put(w, (size_t)i, 0, data, sizeof data).code == CLV_OK;
        }
        _exit(good && clv_st_writer_finish(w).code == CLV_OK ? 0 : 1);
    }
    for (int rank = 0; rank < RANKS; rank++) {
        int status = 1;
        assert_int_equal(waitpid(pid[rank], &status, 0), pid[rank]);
        assert_int_equal(status, 0);
    }
    clv_safetensors *st = open_good(path);
    static int32_t data[ELEMENTS];
    for (int i = 0; i < TENSORS; i++) {
        const clv_st_tensor *t = clv_safetensors_find(st, names[i]);
        assert_int_equal(clv_safetensors_read(st, t, 0, data, sizeof data).code, CLV_OK);
        for (int e = 0; e < ELEMENTS; e++)
            assert_int_equal(data[e], i * ELEMENTS + e);
    }
    clv_safetensors_close(st);
}

static void test_writer_failures(void **state)
{
    (void)state;
    const clv_st_tensor huge = {.name = "x", .dtype = CLV_F32, .ndim = 1, .dim = {(int64_t)1 << 52}};
    clv_st_writer *w;
    clv_status status = clv_st_writer_create(&w, in_folder("huge"), &huge, 1);
    assert_null(w);
    assert_non_null(strstr(status.text, "bytes needed"));
    assert_non_null(strstr(status.text, "free"));
    assert_non_null(strstr(status.text, "huge"));
    const clv_st_tensor small = {.name = "x", .dtype = CLV_F32, .ndim = 1, .dim = {1 << 20}};
    status = clv_st_writer_create(&w, in_folder("no/such/folder"), &small, 1);
    assert_non_null(strstr(status.text, "no/such/folder: No such file"));

    /* A write that the system refuses is reported, not lost. */
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit old;
    getrlimit(RLIMIT_FSIZE, &old);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){.rlim_cur = 65536, .rlim_max = old.rlim_max});
    status = clv_st_writer_create(&w, in_folder("limited"), &small, 1);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(status.code, CLV_BAD_INPUT);
    assert_non_null(strstr(status.text, "limited: File too large"));

    /* So is a file whose size another program changed. */
    const char *path = in_folder("changed");
    assert_int_equal(clv_st_writer_create(&w, path, &small, 1).code, CLV_OK);
    assert_int_equal(truncate(path, 1000), 0);
    assert_non_null(strstr(clv_st_writer_finish(w).text, "has 1000 bytes instead of"));
}

/* The golden files were laid out by another writer. */
static void test_golden(void **state)
{
    (void)state;
    clv_safetensors *st = open_good(CLEAVE_GOLDEN "/llama-gqa");
    const clv_st_tensor *t = clv_safetensors_find(st, "model.layers.3.self_attn.k_proj.weight");
    assert_true(t != NULL && t->ndim == 2 && t->dim[0] == 8 && t->dim[1] == 32 && t->dtype == CLV_F32);
    clv_safetensors_close(st);
    st = open_good(CLEAVE_GOLDEN "/gpt2-tiny/expected.safetensors");
    t = clv_safetensors_find(st, "tokens");
    assert_true(t != NULL && t->ndim == 3 && t->dtype == CLV_I32);
    int32_t token;
    assert_int_equal(clv_safetensors_read(st, t, t->bytes - 4, &token, 4).code, CLV_OK);
    assert_true(token >= 0 && token < 67);
    clv_safetensors_close(st);
}

/* Random damage to a valid file: refused or read, and what is read lies inside the file. */
static void test_damaged_files(void **state)
{
    (void)state;
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                                 "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
                                 "\"b\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[24,25]}}";
    static const char letters[] = "0123456789{}[]\",:-.eF8U\\ \0\xFF";
    clv_text good;
    assert_int_equal(clv_file_read(make_file("good", header, 25), &good).code, CLV_OK);
    const char *path = in_folder("damaged");
    const int fd = open(path, O_RDWR | O_CREAT, 0600);
    uint64_t draw = 0;
    for (int round = 0; round < 4000; round++) {
        assert_int_equal(pwrite(fd, good.data, good.length, 0), (ssize_t)good.length);
        size_t n = good.length;
        if (round % 6 == 0)
            n = (size_t)(clv_uniform_at(4, draw++) * (float)n);
        for (int c = 0; c < 1 + round % 3; c++) {
            const off_t at = (off_t)(clv_uniform_at(4, draw++) * (float)good.length);
            const char *letter = &letters[(size_t)(clv_uniform_at(4, draw++) * (float)(sizeof letters - 1))];
            assert_int_equal(pwrite(fd, letter, 1, at), 1);
        }
        assert_int_equal(ftruncate(fd, (off_t)n), 0);
        clv_safetensors *st;
        if (clv_safetensors_open(&st, path).code != CLV_OK)
            continue;
        for (size_t i = 0; i < clv_safetensors_count(st); i++) {
            const clv_st_tensor *t = clv_safetensors_at(st, i);
            assert_true(t->at + t->bytes <= n);
        }
        clv_safetensors_close(st);
    }
    close(fd);
    clv_text_free(&good);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_smallest_file, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_odd_but_valid, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refused_headers, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refused_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_shards, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_writer, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_padding, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_several_writers, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_writer_failures, set_up, tear_down),
        cmocka_unit_test(test_golden),
        cmocka_unit_test_setup_teardown(test_damaged_files, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
