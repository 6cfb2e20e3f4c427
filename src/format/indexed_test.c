/* Token files: the bytes written, the round trip, and every kind of damage refused with both numbers. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "format/format.h"

static char folder[] = "/tmp/clv_indexed_XXXXXX";
static char prefix[64], bin[80], idx[80];

static void must(clv_status st)
{
    if (st.code != CLV_OK)
        fail_msg("%s", st.text);
}

static void refused(clv_status st, const char *a, const char *b)
{
    assert_int_equal(st.code, CLV_BAD_INPUT);
    if (strstr(st.text, a) == NULL || strstr(st.text, b) == NULL)
        fail_msg("'%s' lacks '%s' or '%s'", st.text, a, b);
}

/* One document a sequence; sequence i holds ids first, first + 1, ... */
static void write_set(int64_t vocab, const int64_t *lengths, int count, int32_t first)
{
    clv_indexed_writer *w;
    must(clv_indexed_writer_create(&w, prefix, vocab));
    for (int i = 0; i < count; i++) {
        int32_t ids[64];
        for (int k = 0; k < lengths[i]; k++)
            ids[k] = first++;
        must(clv_indexed_writer_add(w, ids, lengths[i]));
        must(clv_indexed_writer_end_document(w));
    }
    must(clv_indexed_writer_finish(w));
}

static void file_is(const char *path, const char *hex)
{
    clv_text file;
    must(clv_file_read(path, &file));
    assert_int_equal(file.length * 2, strlen(hex));
    for (size_t i = 0; i < file.length; i++) {
        char two[3];
        snprintf(two, sizeof two, "%02x", (unsigned char)file.data[i]);
        assert_memory_equal(two, hex + 2 * i, 2);
    }
    clv_text_free(&file);
}

static void known_bytes(void **state)
{
    (void)state;
    write_set(100, (int64_t[]){3, 2}, 2, 1);
    file_is(bin, "01000200030004000500");
    file_is(idx, "4d4d4944494458000001000000000000000802000000000000000300000000000000"
                 "0300000002000000"
                 "00000000000000000600000000000000"
                 "000000000000000001000000000000000200000000000000");
    write_set(100, (int64_t[]){3, 1, 2}, 3, 1);
    file_is(bin, "010002000300040005000600");
    file_is(idx, "4d4d4944494458000001000000000000000803000000000000000400000000000000"
                 "030000000100000002000000"
                 "000000000000000006000000000000000800000000000000"
                 "0000000000000000010000000000000002000000000000000300000000000000");
}

static void round_trip(void **state)
{
    (void)state;
    unlink(idx);
    clv_indexed_writer *w;
    must(clv_indexed_writer_create(&w, prefix, 50000));
    must(clv_indexed_writer_end_document(w)); /* an empty document */
    must(clv_indexed_writer_add(w, (int32_t[]){5, 6}, 2));
    must(clv_indexed_writer_add(w, (int32_t[]){49999}, 1));
    must(clv_indexed_writer_end_document(w));
    assert_false(clv_file_exists(idx));
    must(clv_indexed_writer_finish(w));

    clv_indexed *data;
    must(clv_indexed_open(&data, prefix));
    assert_int_equal(clv_indexed_sequences(data), 2);
    assert_int_equal(clv_indexed_documents(data), 2);
    assert_int_equal(clv_indexed_document_start(data, 1), 0);
    assert_int_equal(clv_indexed_document_start(data, 2), 2);
    assert_int_equal(clv_indexed_tokens(data), 3);
    int32_t got[2] = {-1, -1};
    must(clv_indexed_read(data, 0, 1, 1, got));
    assert_int_equal(got[0], 6);
    must(clv_indexed_read(data, 1, 0, 1, got));
    assert_int_equal(got[0], 49999);
    must(clv_indexed_check(data, 50000));
    refused(clv_indexed_check(data, 49999), "document 1, position 2", "49999");
    clv_indexed_close(data);
}

static int32_t last_of(int64_t sequence)
{
    clv_indexed *data;
    int32_t id = -1;
    must(clv_indexed_open(&data, prefix));
    must(clv_indexed_read(data, sequence, clv_indexed_length(data, sequence) - 1, 1, &id));
    clv_indexed_close(data);
    return id;
}

static void width_follows_vocabulary(void **state)
{
    (void)state;
    clv_text file;
    write_set(65536, (int64_t[]){1}, 1, 65535);
    must(clv_file_read(bin, &file));
    assert_int_equal(file.length, 2);
    clv_text_free(&file);
    assert_int_equal(last_of(0), 65535);

    write_set(65537, (int64_t[]){1}, 1, 65536); /* the first id that 16 bits cannot hold */
    assert_int_equal(last_of(0), 65536);
    write_set(65540, (int64_t[]){1}, 1, 65539);
    must(clv_file_read(bin, &file));
    assert_int_equal(file.length, 4);
    clv_text_free(&file);
    assert_int_equal(last_of(0), 65539);

    clv_indexed_writer *w;
    must(clv_indexed_writer_create(&w, prefix, 65536));
    refused(clv_indexed_writer_add(w, (int32_t[]){7, 65536}, 2), "position 1", "65536");
    refused(clv_indexed_writer_add(w, (int32_t[]){-1}, 1), "position 0", "-1");
    clv_indexed_writer_abandon(w);
    assert_int_equal(last_of(0), 65539); /* what was there before is untouched */
}

static void write_index(uint8_t code, uint64_t s, uint64_t d, const int32_t *lengths, const int64_t *rest)
{
    clv_text out = {0};
    const uint64_t version = 1;
    clv_text_add(&out, "MMIDIDX\0", 9);
    clv_text_add(&out, (const char *)&version, 8);
    clv_text_add(&out, (const char *)&code, 1);
    clv_text_add(&out, (const char *)&s, 8);
    clv_text_add(&out, (const char *)&d, 8);
    clv_text_add(&out, (const char *)lengths, 4 * s);
    clv_text_add(&out, (const char *)rest, 8 * (s + d));
    must(clv_file_write_atomic(idx, out.data, out.length));
    clv_text_free(&out);
}

/* 3.6e9 tokens in a sparse file. */
static void beyond_32_bits(void **state)
{
    (void)state;
    const int32_t n = 1200000000;
    write_index(8, 3, 4, (int32_t[]){n, n, n}, (int64_t[]){0, 2400000000, 4800000000, 0, 1, 2, 3});
    const int fd = open(bin, O_RDWR | O_CREAT | O_TRUNC, 0666);
    assert_int_equal(ftruncate(fd, 7200000000), 0);
    assert_int_equal(pwrite(fd, &(uint16_t){4242}, 2, 7199999998), 2);
    close(fd);
    clv_indexed *data;
    must(clv_indexed_open(&data, prefix));
    assert_int_equal(clv_indexed_tokens(data), 3600000000);
    int32_t ids[2];
    must(clv_indexed_read(data, 2, n - 2, 2, ids));
    assert_int_equal(ids[0], 0);
    assert_int_equal(ids[1], 4242);
    clv_indexed_close(data);
    unlink(bin);
}

static void eight_byte_ids(void **state)
{
    (void)state;
    const int64_t ids[] = {1, 2147483647, 2147483648};
    must(clv_file_write_atomic(bin, ids, sizeof ids));
    write_index(5, 2, 2, (int32_t[]){1, 2}, (int64_t[]){0, 8, 0, 2});
    clv_indexed *data;
    must(clv_indexed_open(&data, prefix));
    int32_t got[2];
    must(clv_indexed_read(data, 1, 0, 1, got));
    assert_int_equal(got[0], 2147483647);
    refused(clv_indexed_read(data, 1, 0, 2, got), "document 0, position 2", "2147483648");
    clv_indexed_close(data);
}

static void check_open(const char *a, const char *b)
{
    clv_indexed *data;
    refused(clv_indexed_open(&data, prefix), a, b);
    assert_null(data);
}

static void patch(const char *path, off_t at, const void *bytes, size_t n)
{
    write_set(100, (int64_t[]){3, 1, 2}, 3, 1);
    const int fd = open(path, O_RDWR);
    assert_int_equal(pwrite(fd, bytes, n, at), (ssize_t)n);
    close(fd);
}

static void damage_is_named(void **state)
{
    (void)state;
    patch(idx, 0, "X", 1);
    check_open(".idx", "MMIDIDX");
    patch(idx, 9, "\2", 1);
    check_open(".idx", "version 2, expected 1");
    patch(idx, 17, "\7", 1);
    check_open("7 (float32)", "8 (uint16)");
    patch(idx, 18, "\4", 1);
    check_open("has 102 bytes", "34 + 12 x 4 + 8 x 4");
    patch(idx, 18, "\377\377\377\377\377\377\377\377", 8);
    check_open("has 102 bytes", "18446744073709551615 sequences");
    patch(idx, 38, "\377\377\377\377", 4);
    check_open("sequence 1", "length -1");
    patch(idx, 46 + 8, "\5", 1);
    check_open("sequence 1 begins at byte 5", "expected 6");
    patch(idx, 42, "\3", 1);
    check_open("12 bytes", "ends at byte 14");
    patch(idx, 70 + 8, "\5", 1);
    check_open("document index 2 is 2", "at least 5");
    patch(idx, 70 + 24, "\2", 1);
    check_open("last document index is 2", "3 sequences");
    patch(idx, 102, "\0\0\0", 3); /* modes of a multimodal file */
    check_open("has 105 bytes", "12 x 3");
    patch(idx, 0, "M", 1);
    assert_int_equal(truncate(bin, 10), 0);
    check_open(".bin has 10 bytes", "ends at byte 12");
    unlink(bin);
    check_open(".bin", "No such file");
    must(clv_file_write_atomic(idx, "MMID", 4));
    check_open(".idx", "4 bytes");
}

static void truncated_while_open(void **state)
{
    (void)state;
    write_set(100, (int64_t[]){3, 1, 2}, 3, 1);
    clv_indexed *data;
    must(clv_indexed_open(&data, prefix));
    assert_int_equal(truncate(bin, 8), 0);
    int32_t ids[2];
    refused(clv_indexed_read(data, 2, 0, 2, ids), ".bin", "become shorter");
    clv_indexed_close(data);
}

static int setup(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL)
        return 1;
    snprintf(prefix, sizeof prefix, "%s/set", folder);
    snprintf(bin, sizeof bin, "%s.bin", prefix);
    snprintf(idx, sizeof idx, "%s.idx", prefix);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(bin);
    unlink(idx);
    return rmdir(folder); /* fails when a temporary file was left behind */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_bytes),
        cmocka_unit_test(round_trip),
        cmocka_unit_test(width_follows_vocabulary),
        cmocka_unit_test(beyond_32_bits),
        cmocka_unit_test(eight_byte_ids),
        cmocka_unit_test(damage_is_named),
        cmocka_unit_test(truncated_while_open),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
