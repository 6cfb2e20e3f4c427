/* tokenizer_train_test.c - training against the plain method (count all pairs, take the best, rewrite, again). */
#include "format/tokenizer_test_internal.h"

#include <stdio.h>
#include <unistd.h>

enum { WORDS = 400, LETTERS = 24, MERGES = 60 };

typedef struct plain_word {
    int32_t id[LETTERS], length;
} plain_word;

static int64_t count_of(const plain_word *word, int32_t left, int32_t right)
{
    int64_t count = 0;
    for (int w = 0; w < WORDS; w++)
        for (int32_t i = 1; i < word[w].length; i++)
            count += word[w].id[i - 1] == left && word[w].id[i] == right;
    return count;
}

static void rewrite(plain_word *word, int32_t left, int32_t right, int32_t id)
{
    int32_t to = 0;
    for (int32_t i = 0; i < word->length; i++, to++) {
        const bool hit = i + 1 < word->length && word->id[i] == left && word->id[i + 1] == right;
        word->id[to] = hit ? id : word->id[i];
        i += hit;
    }
    word->length = to;
}

/* The next merge, by looking at every pair; false when none occurs twice. */
static bool plain_merge(plain_word *word, int32_t tokens, int32_t out[2])
{
    int64_t best = 1;
    for (int32_t left = 0; left < tokens; left++) {
        for (int32_t right = 0; right < tokens; right++) {
            const bool byte_unused = (left < 256 && (left < 'a' - '!' || left > 'd' - '!')) ||
                                     (right < 256 && (right < 'a' - '!' || right > 'd' - '!'));
            const int64_t count = byte_unused ? 0 : count_of(word, left, right);
            if (count > best) {
                best = count;
                out[0] = left;
                out[1] = right;
            }
        }
    }
    return best > 1;
}

/* Words of the letters a to d, one a text, so that runs of a letter and ties are frequent. */
static void draw_word(plain_word *word, char *text, uint64_t key, uint64_t index)
{
    word->length = 1 + (int32_t)(clv_uniform_at(key, index * 64) * LETTERS);
    word->length = CLV_MIN(word->length, LETTERS);
    for (int32_t i = 0; i < word->length; i++) {
        const int letter = (int)(clv_uniform_at(key, index * 64 + 1 + (uint64_t)i) * 4);
        text[i] = (char)('a' + letter);
        word->id[i] = text[i] - '!';
    }
}

static void test_equals_plain_training(void **state)
{
    (void)state;
    plain_word *word = clv_alloc(WORDS, sizeof *word);
    clv_bpe_trainer *trainer = clv_bpe_trainer_create();
    for (int w = 0; w < WORDS; w++) {
        char text[LETTERS];
        draw_word(&word[w], text, 11, (uint64_t)w);
        clv_bpe_trainer_feed(trainer, text, (size_t)word[w].length);
    }
    clv_tokenizer *tok;
    assert_int_equal(clv_bpe_trainer_finish(trainer, 256 + MERGES, NULL, 0, &tok).code, CLV_OK);
    assert_int_equal(tok->merge_count, MERGES);
    for (int32_t m = 0; m < MERGES; m++) {
        int32_t pair[2] = {0};
        assert_true(plain_merge(word, 256 + m, pair));
        assert_int_equal(clv_pair_map_find(&tok->ranks, clv_pair_of(pair[0], pair[1])), m);
        for (int w = 0; w < WORDS; w++)
            rewrite(&word[w], pair[0], pair[1], 256 + m);
    }
    clv_tokenizer_free(tok);
    free(word);
}

static void test_small_text(void **state)
{
    (void)state;
    static const char *const specials[] = {"<|endoftext|>", "\"quoted\""};
    const char text[] = "low low low lower newest newest";
    clv_tokenizer *tok;
    clv_bpe_trainer *trainer = clv_bpe_trainer_create();
    clv_bpe_trainer_feed(trainer, text, strlen(text));
    assert_string_equal(clv_bpe_trainer_finish(trainer, 262, specials, 2, &tok).text, "");
    assert_int_equal(clv_tokenizer_vocab_size(tok), 262);
    assert_string_equal(clv_tokenizer_token(tok, 0), "!");
    assert_string_equal(clv_tokenizer_token(tok, 256), "lo"); /* 4 times, as ow; l comes first */
    assert_string_equal(clv_tokenizer_token(tok, 257), "low");
    assert_string_equal(clv_tokenizer_token(tok, 258), "Ġlow");
    assert_string_equal(clv_tokenizer_token(tok, 260), "<|endoftext|>");
    assert_int_equal(clv_tokenizer_eod(tok), 260);
    assert_true(clv_tokenizer_is_special(tok, 261));
    ENCODES(tok, "low<|endoftext|>\"quoted\"", 257, 260, 261);
    clv_tokenizer_free(tok);
}

static void test_limits(void **state)
{
    (void)state;
    static const char *const specials[] = {"<|endoftext|>"};
    clv_tokenizer *tok;
    const clv_status st = clv_bpe_trainer_finish(clv_bpe_trainer_create(), 256, specials, 1, &tok);
    assert_int_equal(st.code, CLV_BAD_INPUT);
    assert_non_null(strstr(st.text, "256"));
    /* No pair occurs twice: fewer tokens than asked, and every byte can still be written. */
    clv_bpe_trainer *trainer = clv_bpe_trainer_create();
    clv_bpe_trainer_feed(trainer, "abc\xFF", 4);
    assert_int_equal(clv_bpe_trainer_finish(trainer, 1000, specials, 1, &tok).code, CLV_OK);
    assert_int_equal(clv_tokenizer_vocab_size(tok), 257);
    ENCODES(tok, "!~", 0, 93);
    clv_tokenizer_free(tok);
}

/* Saved and read again it is the same tokenizer. */
static void test_save(void **state)
{
    (void)state;
    static const char *const specials[] = {"<|endoftext|>"};
    const char text[] = "It was the best of times, it was the worst of times; naïve café, 漢字 🎉\n\t\"quoted\\\"\n";
    char path[] = "tokenizer-train-test-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    clv_tokenizer *tok, *again;
    clv_bpe_trainer *trainer = clv_bpe_trainer_create();
    for (int i = 0; i < 3; i++)
        clv_bpe_trainer_feed(trainer, text, strlen(text));
    assert_int_equal(clv_bpe_trainer_finish(trainer, 300, specials, 1, &tok).code, CLV_OK);
    assert_int_equal(clv_tokenizer_save(tok, path).code, CLV_OK);
    assert_string_equal(clv_tokenizer_load(&again, path).text, "");
    clv_ids one = {0}, two = {0};
    assert_int_equal(clv_tokenizer_encode(tok, text, strlen(text), false, &one).code, CLV_OK);
    assert_int_equal(clv_tokenizer_encode(again, text, strlen(text), false, &two).code, CLV_OK);
    assert_ids(&one, 0, two.id, two.count);
    assert_decodes(again, text, one.id, one.count);
    assert_true(one.count < strlen(text) / 2);
    clv_ids_free(&one);
    clv_ids_free(&two);
    clv_tokenizer_free(tok);
    clv_tokenizer_free(again);
    remove(path);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_plain_training),
        cmocka_unit_test(test_small_text),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_save),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
