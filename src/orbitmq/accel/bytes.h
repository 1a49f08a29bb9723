/* Bytes for the accelerator: buffers that grow, big-endian numbers, Java's string hash. */
#ifndef ORBITMQ_BYTES_H
#define ORBITMQ_BYTES_H

#include <stdint.h>
#include <string.h>

typedef struct {
    unsigned char *at;
    size_t used, room;
} Buffer;

/* Makes room for so many bytes more. What lies in the buffer may move: take pointers into it afterwards. */
static int reserve(Buffer *b, size_t more) {
    if (b->room - b->used >= more) return 1;
    size_t room = b->room ? b->room : 4096;
    while (room - b->used < more) {
        if (room > SIZE_MAX / 2) return 0;
        room *= 2;
    }
    unsigned char *at = PyMem_Realloc(b->at, room);
    if (!at) return 0;
    b->at = at;
    b->room = room;
    return 1;
}

/* The caller has reserved the room. */
static void put(Buffer *b, const void *bytes, size_t n) {
    memcpy(b->at + b->used, bytes, n);
    b->used += n;
}

static void put_number(Buffer *b, int64_t value) {
    unsigned char digits[20], *end = digits + sizeof digits, *first = end;
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do *--first = (unsigned char)('0' + rest % 10);
    while (rest /= 10);
    if (value < 0) *--first = '-';
    put(b, first, (size_t)(end - first));
}

static unsigned char *be32(unsigned char *p, uint32_t v) {
    p[0] = (unsigned char)(v >> 24); p[1] = (unsigned char)(v >> 16); p[2] = (unsigned char)(v >> 8); p[3] = (unsigned char)v;
    return p + 4;
}

static unsigned char *be64(unsigned char *p, uint64_t v) { return be32(be32(p, (uint32_t)(v >> 32)), (uint32_t)v); }

static uint32_t read32(const unsigned char *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static uint64_t read64(const unsigned char *p) { return (uint64_t)read32(p) << 32 | read32(p + 4); }

/* Whether the word occurs anywhere in p[0:n]. */
static int holds(const unsigned char *p, size_t n, const char *word) {
    size_t word_n = strlen(word);
    if (n < word_n) return 0;
    const unsigned char *last = p + (n - word_n);
    while (p <= last && (p = memchr(p, word[0], (size_t)(last - p) + 1))) {
        if (memcmp(p, word, word_n) == 0) return 1;
        p++;
    }
    return 0;
}

static int ascii(const unsigned char *p, size_t n) {
    unsigned char all = 0;
    while (n--) all |= *p++;
    return all < 0x80;
}

/* String.hashCode of what hashed to h with the ASCII text p[0:n] behind it. Four characters a step: each would otherwise
 * wait for the product of the one before. */
static uint32_t hash_more(uint32_t h, const unsigned char *p, size_t n) {
    for (; n >= 4; n -= 4, p += 4)
        h = h * (31u * 31 * 31 * 31) + p[0] * (31u * 31 * 31) + p[1] * (31u * 31) + p[2] * 31u + p[3];
    for (; n; n--, p++) h = h * 31 + *p;
    return h;
}

/* As the key index keeps it: never negative, and 0 for the one number that has no absolute value. */
static uint32_t index_hash(uint32_t h) {
    if (!(h & 0x80000000u)) return h;
    return h == 0x80000000u ? 0 : 0u - h;
}

#endif
