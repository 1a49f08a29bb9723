/* A command's JSON header, read as official clients write it: no white space, ASCII only, every escape checked, no name
 * twice. Never more lenient than the twin (wire.header_json), which decides about whatever is not plain. */
#ifndef ORBITMQ_COMMAND_JSON_H
#define ORBITMQ_COMMAND_JSON_H

#include "bytes.h"

typedef struct {
    const unsigned char *at;
    size_t n;
    int escaped;
} Text;

/* Characters that stand for themselves in a JSON string. */
static const unsigned char plain[256] = {[0x20 ... 0x21] = 1, [0x23 ... 0x5B] = 1, [0x5D ... 0x7F] = 1};

/* What the escape whose backslash is in front of *p stands for; -1 when that is not ASCII, or no escape. */
static int read_escape(const unsigned char **p, const unsigned char *end) {
    const unsigned char *q = *p;
    if (q >= end) return -1;
    unsigned char c = *q++;
    *p = q;
    switch (c) {
    case '"': case '\\': case '/': return c;
    case 'b': return '\b';
    case 'f': return '\f';
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    case 'u': break;
    default: return -1;
    }
    if (end - q < 4 || q[0] != '0' || q[1] != '0' || q[2] < '0' || q[2] > '7') return -1;
    int low = q[3] >= '0' && q[3] <= '9' ? q[3] - '0'
              : q[3] >= 'a' && q[3] <= 'f' ? q[3] - 'a' + 10
              : q[3] >= 'A' && q[3] <= 'F' ? q[3] - 'A' + 10 : -1;
    if (low < 0) return -1;
    *p = q + 4;
    return (q[2] - '0') << 4 | low;
}

/* The string whose opening quote is at *p. */
static int read_string(const unsigned char **p, const unsigned char *end, Text *out) {
    const unsigned char *q = *p;
    if (q >= end || *q != '"') return 0;
    out->at = ++q;
    out->escaped = 0;
    for (;;) {
        while (q < end && plain[*q]) q++;
        if (q >= end) return 0;
        if (*q == '"') break;
        if (*q++ != '\\' || read_escape(&q, end) < 0) return 0;
        out->escaped = 1;
    }
    out->n = (size_t)(q - out->at);
    *p = q + 1;
    return 1;
}

/* A whole number without leading zeros; one of more than 18 digits is for the twin. */
static int read_int(const unsigned char **p, const unsigned char *end, int64_t *out) {
    const unsigned char *q = *p;
    int negative = q < end && *q == '-';
    if (negative) q++;
    const unsigned char *first = q;
    int64_t v = 0;
    while (q < end && *q >= '0' && *q <= '9' && q - first < 18) v = v * 10 + (*q++ - '0');
    if (q == first || (q - first > 1 && *first == '0') || (q < end && *q >= '0' && *q <= '9')) return 0;
    *out = negative ? -v : v;
    *p = q;
    return 1;
}

static int text_int(const Text *t, int64_t low, int64_t high, int64_t *out) {
    const unsigned char *p = t->at, *end = t->at + t->n;
    return !t->escaped && read_int(&p, end, out) && p == end && *out >= low && *out <= high;
}

#define IS(text, word) ((text)->n == sizeof word - 1 && memcmp((text)->at, word, sizeof word - 1) == 0)

/* Reads a command's extFields, whose opening brace is at *p. */
typedef int (*ReadExt)(const unsigned char **p, const unsigned char *end, void *into);

typedef struct {
    int64_t flag, opaque;
} Command;

/* Reads the header p[0:end], whose code the caller knows. */
static int read_command(const unsigned char *p, const unsigned char *end, Command *c, ReadExt read_ext, void *into) {
    int ext = 0, code = 0, opaque = 0, flag = 0;
    c->flag = c->opaque = 0;
    if (p >= end || *p++ != '{') return 0;
    for (;;) {
        Text key, skipped;
        int64_t number;
        if (!read_string(&p, end, &key) || key.escaped || p >= end || *p++ != ':') return 0;
        if (IS(&key, "extFields")) {
            if (ext++ || !read_ext(&p, end, into)) return 0;
        } else if (p < end && *p == '"') {
            /* The twin takes numbers in quotes, and refuses other texts in their place. */
            if (IS(&key, "code") || IS(&key, "flag") || IS(&key, "opaque") || IS(&key, "version")) return 0;
            if (!read_string(&p, end, &skipped)) return 0;
        } else {
            if (!read_int(&p, end, &number) || number < INT32_MIN || number > INT32_MAX) return 0;
            if (IS(&key, "code")) { if (code++) return 0; }
            else if (IS(&key, "opaque")) { if (opaque++) return 0; c->opaque = number; }
            else if (IS(&key, "flag")) { if (flag++) return 0; c->flag = number; }
        }
        if (p >= end) return 0;
        if (*p == ',') { p++; continue; }
        return *p == '}' && p + 1 == end && ext && code && opaque;
    }
}

/* Appends the text without its escapes. */
static int unescape(const Text *t, Buffer *out) {
    if (!reserve(out, t->n + 1)) return 0;
    if (!t->escaped) { put(out, t->at, t->n); return 1; }
    const unsigned char *p = t->at, *end = t->at + t->n;
    unsigned char *o = out->at + out->used;
    while (p < end) {
        if (*p != '\\') { *o++ = *p++; continue; }
        p++;
        int c = read_escape(&p, end);
        if (c < 0) return 0;
        *o++ = (unsigned char)c;
    }
    out->used = (size_t)(o - out->at);
    return 1;
}

#endif
