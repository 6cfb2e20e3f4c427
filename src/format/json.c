/* json.c - JSON text, read strictly.
 *
 * The reader accepts what RFC 8259 allows and nothing else: valid UTF-8 without a byte order mark, escapes with whole
 * surrogate pairs, no trailing comma, no text after the value. It is stricter in two points where the RFC leaves the
 * choice to the reader: a key given twice in one object is refused, and so is nesting beyond MAX_DEPTH.
 *
 * A document is one array of nodes in the order of the text (so the first child of a node, if any, is the node after
 * it) and one pool of characters that holds unescaped strings and the digits of numbers, each terminated by a zero.
 * Unescaping never lengthens a token, so the pool is never larger than the text. Numbers stay text until somebody asks,
 * so that 64-bit integers are exact. The stack of open containers is an array: deep nesting cannot exhaust the C stack.
 */
#include "format/json_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { MAX_DEPTH = 512 };

/* The keys seen so far, of all objects: an entry's owner is the object that it stands in. Open addressing. */
typedef struct seen_key {
    uint64_t hash;
    uint32_t member, owner; /* member 0 (the root) marks a free entry */
} seen_key;

typedef struct key_set {
    seen_key *entries;
    size_t count, capacity; /* capacity is 0 or a power of two */
} key_set;

typedef struct level {
    uint32_t container, last; /* last child so far, 0 for none */
} level;

typedef struct parser {
    const char *begin, *at, *end;
    clv_json *json;
    uint32_t used; /* of the pool */
    uint32_t key, key_length;
    level stack[MAX_DEPTH];
    int depth;
    key_set keys;
    clv_status status;
} parser;

/* ---- errors ---- */

static bool fail(parser *p, const char *at, const char *fmt, ...) CLV_PRINTF(3, 4);

static bool fail(parser *p, const char *at, const char *fmt, ...)
{
    size_t line = 1, column = 1;
    for (const char *c = p->begin; c < at; c++) {
        if (*c == '\n') {
            line++;
            column = 1;
        } else if (((uint8_t)*c & 0xC0) != 0x80) {
            column++; /* characters, not bytes */
        }
    }
    char text[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    p->status = clv_fail(CLV_BAD_INPUT, "%s: line %zu, column %zu: %s", p->json->where, line, column, text);
    return false;
}

static bool fail_expected(parser *p, const char *what)
{
    if (p->at == p->end)
        return fail(p, p->at, "the text ends where %s was expected", what);
    const unsigned c = (uint8_t)*p->at;
    if (c > 0x20 && c < 0x7F)
        return fail(p, p->at, "'%c' where %s was expected", (int)c, what);
    return fail(p, p->at, "byte 0x%02x where %s was expected", c, what);
}

/* ---- characters ---- */

static void put_byte(parser *p, uint32_t byte)
{
    p->json->pool[p->used++] = (char)byte;
}

static void put_character(parser *p, uint32_t c)
{
    if (c < 0x80) {
        put_byte(p, c);
    } else if (c < 0x800) {
        put_byte(p, 0xC0 | c >> 6);
        put_byte(p, 0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
        put_byte(p, 0xE0 | c >> 12);
        put_byte(p, 0x80 | (c >> 6 & 0x3F));
        put_byte(p, 0x80 | (c & 0x3F));
    } else {
        put_byte(p, 0xF0 | c >> 18);
        put_byte(p, 0x80 | (c >> 12 & 0x3F));
        put_byte(p, 0x80 | (c >> 6 & 0x3F));
        put_byte(p, 0x80 | (c & 0x3F));
    }
}

/* The four digits of \uXXXX; `at` stands on the backslash. */
static bool hex4(parser *p, uint32_t *out)
{
    if (p->end - p->at < 6 || p->at[0] != '\\' || p->at[1] != 'u')
        return false;
    *out = 0;
    for (int i = 2; i < 6; i++) {
        const char c = p->at[i];
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0)
            return false;
        *out = *out << 4 | (uint32_t)digit;
    }
    p->at += 6;
    return true;
}

static bool unicode_escape(parser *p)
{
    const char *start = p->at;
    uint32_t c, low;
    if (!hex4(p, &c))
        return fail(p, start, "\\u needs four hexadecimal digits");
    if (c >= 0xDC00 && c <= 0xDFFF)
        return fail(p, start, "\\u%04x is the second half of a surrogate pair without the first", (unsigned)c);
    if (c >= 0xD800 && c <= 0xDBFF) {
        if (!hex4(p, &low) || low < 0xDC00 || low > 0xDFFF)
            return fail(p, start, "\\u%04x is the first half of a surrogate pair without the second", (unsigned)c);
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    }
    put_character(p, c);
    return true;
}

static bool escape(parser *p)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (p->end - p->at >= 2 && p->at[1] == 'u')
        return unicode_escape(p);
    const char *found = p->end - p->at >= 2 && p->at[1] != 0 ? strchr(names, p->at[1]) : NULL;
    if (found == NULL)
        return fail(p, p->at, "a backslash must be followed by one of \" \\ / b f n r t u");
    put_byte(p, (uint8_t)values[found - names]);
    p->at += 2;
    return true;
}

static bool is_plain(char c)
{
    return (uint8_t)c >= 0x20 && (uint8_t)c < 0x80 && c != '"' && c != '\\';
}

/* Anything in a string but plain ASCII: an escape, a longer character, or an error. */
static bool special_character(parser *p)
{
    if (*p->at == '\\')
        return escape(p);
    if ((uint8_t)*p->at < 0x20)
        return fail(p, p->at, "control character 0x%02x in a string; it must be escaped", (unsigned)(uint8_t)*p->at);
    const size_t n = clv_json_character(p->at, p->end);
    if (n == 0)
        return fail(p, p->at, "byte 0x%02x begins no valid UTF-8 character", (unsigned)(uint8_t)*p->at);
    for (size_t i = 0; i < n; i++)
        put_byte(p, (uint8_t)*p->at++);
    return true;
}

/* ---- tokens ---- */

static void skip_space(parser *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\n' || *p->at == '\r' || *p->at == '\t'))
        p->at++;
}

static bool read_string(parser *p, uint32_t *text, uint32_t *length)
{
    const char *open = p->at++;
    *text = p->used;
    for (;;) {
        while (p->at < p->end && is_plain(*p->at))
            p->json->pool[p->used++] = *p->at++;
        if (p->at == p->end)
            return fail(p, open, "this string is never closed");
        if (*p->at == '"')
            break;
        if (!special_character(p))
            return false;
    }
    p->at++;
    *length = p->used - *text;
    put_byte(p, 0);
    return true;
}

static bool skip_digits(parser *p)
{
    const char *start = p->at;
    while (p->at < p->end && *p->at >= '0' && *p->at <= '9')
        p->at++;
    return p->at > start;
}

static bool skip_one_of(parser *p, const char *set)
{
    if (p->at == p->end || *p->at == 0 || strchr(set, *p->at) == NULL)
        return false;
    p->at++;
    return true;
}

static bool read_number(parser *p, uint32_t *text, uint32_t *length)
{
    const char *start = p->at;
    skip_one_of(p, "-");
    const char *first = p->at;
    if (!skip_digits(p))
        return fail_expected(p, "a digit");
    if (*first == '0' && p->at > first + 1)
        return fail(p, first, "a number must not begin with 0");
    if (skip_one_of(p, ".") && !skip_digits(p))
        return fail_expected(p, "a digit");
    if (skip_one_of(p, "eE")) {
        skip_one_of(p, "+-");
        if (!skip_digits(p))
            return fail_expected(p, "a digit");
    }
    *text = p->used;
    *length = (uint32_t)(p->at - start);
    memcpy(p->json->pool + p->used, start, *length);
    p->used += *length;
    put_byte(p, 0);
    return true;
}

static bool read_word(parser *p, const char *word)
{
    const size_t n = strlen(word);
    if ((size_t)(p->end - p->at) < n || memcmp(p->at, word, n) != 0)
        return fail_expected(p, "a value");
    p->at += n;
    return true;
}

/* ---- nodes ---- */

static void key_set_place(key_set *set, seen_key entry)
{
    size_t i = entry.hash & (set->capacity - 1);
    while (set->entries[i].member != 0)
        i = (i + 1) & (set->capacity - 1);
    set->entries[i] = entry;
    set->count++;
}

static void key_set_grow(key_set *set)
{
    const key_set old = *set;
    set->capacity = CLV_MAX(old.capacity * 2, 64);
    set->entries = clv_alloc(set->capacity, sizeof *set->entries);
    set->count = 0;
    for (size_t i = 0; i < old.capacity; i++)
        if (old.entries[i].member != 0)
            key_set_place(set, old.entries[i]);
    free(old.entries);
}

/* Is this key new in its object? The hash is seeded with the object, so equal keys of many objects do not collide. */
static bool key_is_new(parser *p, uint32_t member, uint32_t owner)
{
    key_set *set = &p->keys;
    if (set->count * 2 >= set->capacity)
        key_set_grow(set);
    const char *key = p->json->pool + p->key;
    const seen_key entry = {XXH3_64bits_withSeed(key, p->key_length, owner), member, owner};
    for (size_t i = entry.hash & (set->capacity - 1); set->entries[i].member != 0; i = (i + 1) & (set->capacity - 1)) {
        const seen_key *other = &set->entries[i];
        const clv_json_node *n = &p->json->nodes[other->member];
        if (other->hash == entry.hash && other->owner == owner && n->key_length == p->key_length &&
            memcmp(p->json->pool + n->key, key, p->key_length) == 0)
            return false;
    }
    key_set_place(set, entry);
    return true;
}

/* Appends a node and links it to the innermost open container. */
static uint32_t add_node(parser *p)
{
    clv_json *json = p->json;
    if (json->count == json->capacity) {
        json->capacity = CLV_MAX(json->capacity * 2, 16);
        json->nodes = clv_resize(json->nodes, json->capacity, sizeof *json->nodes);
    }
    const uint32_t at = (uint32_t)json->count++;
    json->nodes[at] = (clv_json_node){.key = p->key, .key_length = p->key_length};
    if (p->depth > 0) {
        level *top = &p->stack[p->depth - 1];
        if (top->last != 0)
            json->nodes[top->last].next = at;
        top->last = at;
        json->nodes[top->container].length++;
    }
    return at;
}

static bool in_object(const parser *p)
{
    return p->depth > 0 && p->json->nodes[p->stack[p->depth - 1].container].kind == CLV_JSON_OBJECT;
}

/* "key" : of the next member; in an array, and at the root, nothing. */
static bool read_key(parser *p)
{
    p->key = CLV_JSON_NO_KEY;
    p->key_length = 0;
    if (!in_object(p))
        return true;
    skip_space(p);
    const char *start = p->at;
    if (p->at == p->end || *p->at != '"')
        return fail_expected(p, "a key in double quotes");
    if (!read_string(p, &p->key, &p->key_length))
        return false;
    if (!key_is_new(p, (uint32_t)p->json->count, p->stack[p->depth - 1].container))
        return fail(p, start, "the key \"%.100s\" stands twice in one object", p->json->pool + p->key);
    skip_space(p);
    if (p->at == p->end || *p->at != ':')
        return fail_expected(p, "':'");
    p->at++;
    return true;
}

static bool open_container(parser *p, uint32_t at)
{
    if (p->depth == MAX_DEPTH)
        return fail(p, p->at, "nested more than %d deep", MAX_DEPTH);
    p->stack[p->depth++] = (level){.container = at};
    p->at++;
    skip_space(p);
    return true;
}

/* One scalar, or the opening bracket of a container. */
static bool read_value(parser *p)
{
    skip_space(p);
    const char c = p->at < p->end ? *p->at : 0;
    const uint32_t at = add_node(p);
    clv_json_node *n = &p->json->nodes[at];
    switch (c) {
    case '{':
        n->kind = CLV_JSON_OBJECT;
        return open_container(p, at);
    case '[':
        n->kind = CLV_JSON_ARRAY;
        return open_container(p, at);
    case '"':
        n->kind = CLV_JSON_STRING;
        return read_string(p, &n->text, &n->length);
    case 't':
    case 'f':
        n->kind = CLV_JSON_BOOL;
        n->length = c == 't';
        return read_word(p, c == 't' ? "true" : "false");
    case 'n':
        n->kind = CLV_JSON_NULL;
        return read_word(p, "null");
    default:
        if (c != '-' && (c < '0' || c > '9'))
            return fail_expected(p, "a value");
        n->kind = CLV_JSON_NUMBER;
        return read_number(p, &n->text, &n->length);
    }
}

static bool closes(const parser *p)
{
    return p->depth > 0 && p->at < p->end && *p->at == (in_object(p) ? '}' : ']');
}

/* What may follow a value: closing brackets, then a comma; or the end. */
static bool read_separator(parser *p, bool *done)
{
    skip_space(p);
    while (closes(p)) {
        p->depth--;
        p->at++;
        skip_space(p);
    }
    *done = p->depth == 0;
    if (*done)
        return p->at == p->end || fail_expected(p, "the end of the text");
    if (p->at == p->end || *p->at != ',')
        return fail_expected(p, in_object(p) ? "',' or '}'" : "',' or ']'");
    p->at++;
    return true;
}

static bool read_document(parser *p)
{
    bool done = false;
    while (!done) {
        const int depth = p->depth;
        if (!read_key(p) || !read_value(p))
            return false;
        const bool descend = p->depth > depth && !closes(p); /* into a container that is not empty */
        if (!descend && !read_separator(p, &done))
            return false;
    }
    return true;
}

clv_status clv_json_parse(clv_json **out, const char *text, size_t n, const char *where)
{
    *out = NULL;
    if (n >= INT32_MAX)
        return clv_fail(CLV_BAD_INPUT, "%s: %zu bytes of JSON; at most %d can be read", where, n, INT32_MAX - 1);
    clv_json *json = clv_alloc(1, sizeof *json);
    json->where = clv_strdup(where);
    json->pool = clv_resize(NULL, n + 1, 1);
    parser p = {.begin = text, .at = text, .end = text + n, .json = json};
    const bool good = read_document(&p);
    free(p.keys.entries);
    if (!good) {
        clv_json_free(json);
        return p.status;
    }
    *out = json;
    return clv_ok();
}

clv_status clv_json_load(clv_json **out, const char *path)
{
    *out = NULL;
    clv_text text;
    CLV_TRY(clv_file_read(path, &text));
    const clv_status status = clv_json_parse(out, text.data, text.length, path);
    clv_text_free(&text);
    return status;
}
