/* json_value.c - what stands in a parsed document, and writing JSON.
 *
 * Written text is valid whatever it is made from: bytes that are no UTF-8 become U+FFFD, numbers that are not finite
 * become null, and doubles keep a point or an exponent, so that readers which tell 1 from 1.0 see what was meant.
 */
#include "format/json_internal.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void clv_json_free(clv_json *json)
{
    if (json == NULL)
        return;
    free(json->where);
    free(json->pool);
    free(json->nodes);
    free(json);
}

static const clv_json_node *node_at(const clv_json *json, clv_node node)
{
    CLV_CHECK(node >= 0 && (size_t)node < json->count, "%s: node %lld of %zu", json->where, (long long)node,
              json->count);
    return &json->nodes[node];
}

/* ---- walking ---- */

clv_json_kind clv_json_kind_of(const clv_json *json, clv_node node)
{
    return node_at(json, node)->kind;
}

int64_t clv_json_count(const clv_json *json, clv_node node)
{
    if (!clv_json_is(json, node, CLV_JSON_ARRAY) && !clv_json_is(json, node, CLV_JSON_OBJECT))
        return 0;
    return node_at(json, node)->length;
}

clv_node clv_json_first(const clv_json *json, clv_node node)
{
    return clv_json_count(json, node) > 0 ? node + 1 : CLV_NO_NODE;
}

clv_node clv_json_next(const clv_json *json, clv_node node)
{
    const uint32_t next = node != CLV_NO_NODE ? node_at(json, node)->next : 0;
    return next != 0 ? (clv_node)next : CLV_NO_NODE;
}

const char *clv_json_key(const clv_json *json, clv_node node, size_t *n)
{
    const clv_json_node *member = node != CLV_NO_NODE ? node_at(json, node) : NULL;
    const bool found = member != NULL && member->key != CLV_JSON_NO_KEY;
    if (n != NULL)
        *n = found ? member->key_length : 0;
    return found ? json->pool + member->key : NULL;
}

const char *clv_json_string(const clv_json *json, clv_node node, size_t *n)
{
    const clv_json_node *value = clv_json_is(json, node, CLV_JSON_STRING) ? node_at(json, node) : NULL;
    if (n != NULL)
        *n = value != NULL ? value->length : 0;
    return value != NULL ? json->pool + value->text : NULL;
}

clv_node clv_json_get(const clv_json *json, clv_node object, const char *key)
{
    if (!clv_json_is(json, object, CLV_JSON_OBJECT))
        return CLV_NO_NODE;
    const size_t wanted = strlen(key);
    for (clv_node at = clv_json_first(json, object); at != CLV_NO_NODE; at = clv_json_next(json, at)) {
        size_t n;
        const char *name = clv_json_key(json, at, &n);
        if (n == wanted && memcmp(name, key, n) == 0)
            return at;
    }
    return CLV_NO_NODE;
}

/* ---- values ---- */

bool clv_json_is(const clv_json *json, clv_node node, clv_json_kind kind)
{
    return node != CLV_NO_NODE && node_at(json, node)->kind == kind;
}

bool clv_json_bool(const clv_json *json, clv_node node, bool *out)
{
    if (!clv_json_is(json, node, CLV_JSON_BOOL))
        return false;
    *out = node_at(json, node)->length != 0;
    return true;
}

bool clv_json_i64(const clv_json *json, clv_node node, int64_t *out)
{
    return clv_json_is(json, node, CLV_JSON_NUMBER) && clv_parse_i64(json->pool + node_at(json, node)->text, out);
}

bool clv_json_f64(const clv_json *json, clv_node node, double *out)
{
    return clv_json_is(json, node, CLV_JSON_NUMBER) && clv_parse_f64(json->pool + node_at(json, node)->text, out);
}

/* "WHERE: key K is V; X was expected", with V cut to a readable length. */
static clv_status wrong_kind(const clv_json *json, clv_node node, const char *expected)
{
    static const char *const names[] = {"null", "", "", "", "an array", "an object"};
    const clv_json_node *n = node_at(json, node);
    const char *key = clv_json_key(json, node, NULL);
    const char *text = names[n->kind], *quote = "";
    if (n->kind == CLV_JSON_BOOL)
        text = n->length ? "true" : "false";
    if (n->kind == CLV_JSON_NUMBER || n->kind == CLV_JSON_STRING)
        text = json->pool + n->text;
    if (n->kind == CLV_JSON_STRING)
        quote = "\"";
    return clv_fail(CLV_BAD_INPUT, "%s: key \"%.100s\" is %s%.100s%s; %s was expected", json->where, key, quote, text,
                    quote, expected);
}

/* The member to read, or CLV_NO_NODE when the default stands. */
static clv_node present(const clv_json *json, clv_node object, const char *key)
{
    const clv_node node = clv_json_get(json, object, key);
    return clv_json_is(json, node, CLV_JSON_NULL) ? CLV_NO_NODE : node;
}

clv_status clv_json_opt_i64(const clv_json *json, clv_node object, const char *key, int64_t *out)
{
    const clv_node node = present(json, object, key);
    return node == CLV_NO_NODE || clv_json_i64(json, node, out) ? clv_ok() : wrong_kind(json, node, "an integer");
}

clv_status clv_json_opt_f64(const clv_json *json, clv_node object, const char *key, double *out)
{
    const clv_node node = present(json, object, key);
    return node == CLV_NO_NODE || clv_json_f64(json, node, out) ? clv_ok() : wrong_kind(json, node, "a number");
}

clv_status clv_json_opt_bool(const clv_json *json, clv_node object, const char *key, bool *out)
{
    const clv_node node = present(json, object, key);
    return node == CLV_NO_NODE || clv_json_bool(json, node, out) ? clv_ok() : wrong_kind(json, node, "true or false");
}

/* ---- writing ---- */

/* Overlong forms, surrogates and values above U+10FFFF are no characters: the range of the second byte depends on the
 * first (Unicode, table 3-7). */
size_t clv_json_character(const char *at, const char *end)
{
    const uint8_t lead = (uint8_t)*at;
    if (lead < 0x80)
        return 1;
    const size_t n = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
    if (n == 0 || (size_t)(end - at) < n)
        return 0;
    const uint8_t second = (uint8_t)at[1];
    const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (second < low || second > high)
        return 0;
    for (size_t i = 2; i < n; i++)
        if (((uint8_t)at[i] & 0xC0) != 0x80)
            return 0;
    return n;
}

static void add_escape(clv_text *out, char c)
{
    static const char names[] = "\"\\bfnrt", values[] = "\"\\\b\f\n\r\t";
    const char *found = c != 0 ? strchr(values, c) : NULL;
    if (found != NULL)
        clv_text_printf(out, "\\%c", names[found - values]);
    else
        clv_text_printf(out, "\\u%04x", (unsigned)(uint8_t)c);
}

void clv_json_add_string(clv_text *out, const char *text, size_t n)
{
    const char *end = text + n, *run = text; /* run: begin of what can be copied as it is */
    clv_text_add(out, "\"", 1);
    for (const char *at = text; at < end;) {
        const size_t length = clv_json_character(at, end);
        const bool plain = length > 1 || (length == 1 && (uint8_t)*at >= 0x20 && *at != '"' && *at != '\\');
        if (plain) {
            at += length;
            continue;
        }
        clv_text_add(out, run, (size_t)(at - run));
        if (length == 0)
            clv_text_add(out, "\xEF\xBF\xBD", 3);
        else
            add_escape(out, *at);
        run = ++at;
    }
    clv_text_add(out, run, (size_t)(end - run));
    clv_text_add(out, "\"", 1);
}

void clv_json_add_number(clv_text *out, double value)
{
    if (!isfinite(value)) {
        clv_text_add(out, "null", 4);
        return;
    }
    char text[40];
    if (fabs(value) < 1e15 && value == trunc(value)) {
        snprintf(text, sizeof text, "%.1f", value);
    } else {
        int digits = 1; /* 17 always suffice */
        do
            snprintf(text, sizeof text, "%.*g", digits, value);
        while (strtod(text, NULL) != value && ++digits <= 17);
    }
    clv_text_add(out, text, strlen(text));
}
