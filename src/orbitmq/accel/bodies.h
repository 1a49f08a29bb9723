/* The bodies or properties of plain records, side by side as an Arrow array has them, and the records' heads likewise.
 *
 * Plain is a record of the first magic with IPv4 hosts whose body is neither compressed nor a batch. The twin is
 * spark.columns, which knows every form; whatever is not plain, or not what it is expected to be, is left to it. */
#ifndef ORBITMQ_BODIES_H
#define ORBITMQ_BODIES_H

#include "bytes.h"
#include "own_record.h"
#include "store_loops.h"

#define PLAIN_FLAGS 0xEu  /* several tags, and the two bits of a transaction */
#define BEHIND_BODY 3     /* the lengths of topic and properties */
#define ROWS_AHEAD 8      /* records lie far apart, and the processor does not see where the next ones are */

typedef struct {
    Py_buffer heads, texts, ends;
    int with_heads, properties; /* properties are taken instead of bodies */
    Py_ssize_t rows, bytes, most; /* taken so far; `most` rows have room in heads and ends */
} Taken;

static void release_taken(Taken *t) {
    if (t->heads.obj) PyBuffer_Release(&t->heads);
    if (t->texts.obj) PyBuffer_Release(&t->texts);
    if (t->ends.obj) PyBuffer_Release(&t->ends);
}

/* Ends are int32, one more than rows: the first is 0. Without heads, None is given for them. */
static int open_taken(Taken *t, PyObject *heads, PyObject *texts, PyObject *ends, int properties) {
    memset(t, 0, sizeof *t);
    t->properties = properties;
    t->with_heads = heads != Py_None;
    if ((t->with_heads && PyObject_GetBuffer(heads, &t->heads, PyBUF_WRITABLE) < 0)
        || PyObject_GetBuffer(texts, &t->texts, PyBUF_WRITABLE) < 0
        || PyObject_GetBuffer(ends, &t->ends, PyBUF_WRITABLE) < 0) {
        release_taken(t);
        return 0;
    }
    if (t->ends.len < 4) {
        PyErr_SetString(PyExc_ValueError, "there is no room for the first end");
        release_taken(t);
        return 0;
    }
    memset(t->ends.buf, 0, 4);
    t->most = t->ends.len / 4 - 1;
    if (t->with_heads && t->heads.len / RECORD_HEAD < t->most) t->most = t->heads.len / RECORD_HEAD;
    return 1;
}

/* Whether `size` bytes at p are a plain record with this number in its queue, and its body lies within. */
static int is_plain(const unsigned char *p, size_t size, uint64_t number) {
    if (size < RECORD_HEAD + BEHIND_BODY || read32(p) != size || read32(p + 4) != RECORD_MAGIC) return 0;
    if (read32(p + 36) & ~PLAIN_FLAGS || read64(p + 20) != number) return 0;
    return read32(p + 84) <= size - RECORD_HEAD - BEHIND_BODY;
}

typedef struct {
    const unsigned char *body, *properties; /* these with their length before them */
    size_t body_n, properties_n;
} Place;

/* Where things are in the record of `size` bytes at p, and properties only if they are wanted. 0 if it is not plain. */
static int find_parts(const unsigned char *p, size_t size, uint64_t number, int properties, Place *found) {
    if (!is_plain(p, size, number)) return 0;
    found->body = p + RECORD_HEAD;
    found->body_n = read32(p + 84);
    if (!properties) return 1;
    const unsigned char *topic = found->body + found->body_n + 1, *end = p + size;
    size_t topic_n = topic[-1];
    if (topic_n > INT8_MAX || (size_t)(end - topic) < topic_n + 2) return 0;
    found->properties = topic + topic_n;
    found->properties_n = (size_t)(end - found->properties);
    size_t length = (size_t)found->properties[0] << 8 | found->properties[1];
    return length <= INT16_MAX && length + 2 == found->properties_n;
}

/* Takes the record of `size` bytes at p if it is plain, has this number in its queue, and there is room for it. */
static int take_plain(Taken *t, const unsigned char *p, size_t size, uint64_t number) {
    Place at;
    if (t->rows >= t->most || !find_parts(p, size, number, t->properties, &at)) return 0;
    const unsigned char *text = t->properties ? at.properties : at.body;
    size_t n = t->properties ? at.properties_n : at.body_n, room = (size_t)(t->texts.len - t->bytes);
    if (n > room || (size_t)t->bytes + n > INT32_MAX) return 0;
    if (t->with_heads) memcpy((char *)t->heads.buf + t->rows * RECORD_HEAD, p, RECORD_HEAD);
    memcpy((char *)t->texts.buf + t->bytes, text, n);
    t->bytes += (Py_ssize_t)n;
    t->rows++;
    int32_t end = (int32_t)t->bytes;
    memcpy((char *)t->ends.buf + t->rows * 4, &end, 4);
    return 1;
}

/* The record that a unit points at, in a file of the log that begins at `base`, of which `len` bytes are there and those
 * before `limit` are wanted; NULL if another one lies there, of another queue, or none. */
static const unsigned char *record_of(const unsigned char *u, const Py_buffer *map, int64_t base, int64_t limit, int queue_id) {
    int64_t offset = (int64_t)read64(u), size = (int32_t)read32(u + 8);
    /* A damaged unit may hold any number: nothing is added to it. */
    if (offset < base || size < RECORD_HEAD || offset - base > map->len - size || size > limit - offset) return NULL;
    const unsigned char *p = (const unsigned char *)map->buf + (offset - base);
    return (int32_t)read32(p + 12) == queue_id && (int64_t)read64(p + 28) == offset ? p : NULL;
}

/* The record that a unit points at will be looked at soon. */
static void fetch_ahead(const unsigned char *u, const Py_buffer *map, int64_t base) {
    int64_t ahead = (int64_t)read64(u);
    if (ahead < base || ahead - base >= map->len - RECORD_HEAD) return;
    __builtin_prefetch((const unsigned char *)map->buf + (ahead - base));
    __builtin_prefetch((const unsigned char *)map->buf + (ahead - base) + 64);
}

static PyObject *unit_texts(PyObject *args, int properties) {
    Py_buffer units, map;
    Py_ssize_t row;
    long long number, base, limit;
    int queue_id;
    PyObject *heads, *texts, *ends, *result = NULL;
    Taken t;
    if (!PyArg_ParseTuple(args, "y*nLiy*LLOOO", &units, &row, &number, &queue_id, &map, &base, &limit, &heads, &texts, &ends))
        return NULL;
    if (open_taken(&t, heads, texts, ends, properties)) {
        Py_ssize_t count = units.len / UNIT_BYTES;
        if (row < 0 || base < 0 || limit < 0) count = 0;
        for (; row < count; row++) {
            const unsigned char *u = (const unsigned char *)units.buf + row * UNIT_BYTES;
            if (row + ROWS_AHEAD < count) fetch_ahead(u + ROWS_AHEAD * UNIT_BYTES, &map, base);
            const unsigned char *p = record_of(u, &map, base, limit, queue_id);
            if (!p || !take_plain(&t, p, read32(u + 8), (uint64_t)number + (uint64_t)t.rows)) break;
        }
        result = Py_BuildValue("(nn)", t.rows, t.bytes);
        release_taken(&t);
    }
    PyBuffer_Release(&units); PyBuffer_Release(&map);
    return result;
}

static PyObject *unit_bodies(PyObject *self, PyObject *args) {
    return unit_texts(args, 0);
}

static PyObject *unit_properties(PyObject *self, PyObject *args) {
    return unit_texts(args, 1);
}

/* The same, with the places of the bodies in the log (8 bytes each) and their sizes (4) instead of the bodies. */
static PyObject *unit_places(PyObject *self, PyObject *args) {
    Py_buffer units, map, heads = {0}, places, sizes;
    Py_ssize_t row, taken = 0;
    long long number, base, limit;
    int queue_id;
    PyObject *wanted;
    if (!PyArg_ParseTuple(args, "y*nLiy*LLOw*w*", &units, &row, &number, &queue_id, &map, &base, &limit, &wanted, &places, &sizes))
        return NULL;
    int with_heads = wanted != Py_None, ready = !with_heads || PyObject_GetBuffer(wanted, &heads, PyBUF_WRITABLE) == 0;
    if (ready) {
        Py_ssize_t count = units.len / UNIT_BYTES, room = places.len / 8 < sizes.len / 4 ? places.len / 8 : sizes.len / 4;
        if (with_heads && heads.len / RECORD_HEAD < room) room = heads.len / RECORD_HEAD;
        if (row < 0 || base < 0 || limit < 0) count = 0;
        for (; row < count && taken < room; row++, taken++) {
            const unsigned char *u = (const unsigned char *)units.buf + row * UNIT_BYTES;
            if (row + ROWS_AHEAD < count) fetch_ahead(u + ROWS_AHEAD * UNIT_BYTES, &map, base);
            const unsigned char *p = record_of(u, &map, base, limit, queue_id);
            if (!p || !is_plain(p, read32(u + 8), (uint64_t)number + (uint64_t)taken)) break;
            int64_t place = (int64_t)read64(u) + RECORD_HEAD;
            int32_t size = (int32_t)read32(p + 84);
            memcpy((char *)places.buf + taken * 8, &place, 8);
            memcpy((char *)sizes.buf + taken * 4, &size, 4);
            if (with_heads) memcpy((char *)heads.buf + taken * RECORD_HEAD, p, RECORD_HEAD);
        }
        if (with_heads) PyBuffer_Release(&heads);
    }
    PyBuffer_Release(&units); PyBuffer_Release(&map); PyBuffer_Release(&places); PyBuffer_Release(&sizes);
    return ready ? PyLong_FromSsize_t(taken) : NULL;
}

static PyObject *page_bodies(PyObject *self, PyObject *args) {
    Py_buffer page;
    long long number;
    PyObject *heads, *bodies, *ends, *result = NULL;
    Taken t;
    if (!PyArg_ParseTuple(args, "y*LOOO", &page, &number, &heads, &bodies, &ends)) return NULL;
    if (open_taken(&t, heads, bodies, ends, 0)) {
        const unsigned char *p = page.buf;
        size_t left = (size_t)page.len;
        while (left >= 4) {
            size_t size = read32(p);
            if (size > left || !take_plain(&t, p, size, (uint64_t)number + (uint64_t)t.rows)) break;
            p += size;
            left -= size;
        }
        result = Py_BuildValue("(nnn)", t.rows, t.bytes, (Py_ssize_t)left);
        release_taken(&t);
    }
    PyBuffer_Release(&page);
    return result;
}

#endif
