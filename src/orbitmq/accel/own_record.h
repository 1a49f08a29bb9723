/* Whether the record that a unit points at is the one it stands for: what was not written by this process may be
 * damaged. The twin is `_mismatch` of store.reading, which also knows the rarer forms and what to report. */
#ifndef ORBITMQ_OWN_RECORD_H
#define ORBITMQ_OWN_RECORD_H

#include "bytes.h"
#include "crc32.h"

#define RECORD_HEAD 88   /* up to the body, with IPv4 hosts */
#define RECORD_MAGIC 0xDAA320A7u
#define HOST_V6_MORE 12 /* bytes that an IPv6 host takes more */

typedef struct {
    const char *topic_part; /* its length and its name, as in a record */
    Py_ssize_t topic_part_n;
    int queue_id;
    long long queue_offset; /* of the first unit */
    Py_ssize_t unchecked;   /* so many units from the first on */
} Own;

/* From None, or from a tuple of these. 0 with an error set. */
static int take_own(Own *own, PyObject *given) {
    own->unchecked = 0;
    if (!given || given == Py_None) return 1;
    if (!PyTuple_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "a queue's own records are described by a tuple");
        return 0;
    }
    return PyArg_ParseTuple(given, "y#iLn", &own->topic_part, &own->topic_part_n, &own->queue_id, &own->queue_offset,
                            &own->unchecked);
}

/* The record of the unit with this number, `size` bytes at p. */
static int is_own(const Own *own, Py_ssize_t number, const unsigned char *p, size_t size, int64_t position) {
    if (number >= own->unchecked) return 1;
    size_t head = RECORD_HEAD;
    if (size < head + 3 || read32(p) != size || read32(p + 4) != RECORD_MAGIC) return 0;
    if (p[39] & 0x10) head += HOST_V6_MORE;
    if (p[39] & 0x20) head += HOST_V6_MORE;
    if ((int32_t)read32(p + 12) != own->queue_id || (int64_t)read64(p + 28) != position) return 0;
    if (read64(p + 20) != (uint64_t)own->queue_offset + (uint64_t)number) return 0;
    size_t topic_n = (size_t)own->topic_part_n;
    if (size < head + topic_n + 2) return 0;
    size_t body_n = read32(p + head - 4), spare = size - head - topic_n - 2;
    if (body_n > spare) return 0;
    const unsigned char *body = p + head, *topic = body + body_n, *text_n = topic + topic_n;
    if (memcmp(topic, own->topic_part, topic_n) || ((size_t)text_n[0] << 8 | text_n[1]) != spare - body_n) return 0;
    return !body_n || (crc32_of(body, body_n) & 0x7FFFFFFFu) == read32(p + 8);
}

#endif
