/* A page of which its reader wants parts only: heads, bodies or properties of the records, each kind side by side.
 *
 *   count 4, bytes of the records in the log 4,
 *   with bodies:      their ends, 4 each, from a first 0 on
 *   with properties:  their ends likewise
 *   with heads:       the first 88 bytes of each record
 *   with bodies:      the bodies
 *   with properties:  the properties, each behind its length as in the record
 *
 * Numbers of this layout are little-endian, as Arrow's. Only plain records can be cut: those of the first magic with IPv4
 * hosts whose body is neither compressed nor a batch. The twin is the ordinary page, which is sent wherever one is not. */
#ifndef ORBITMQ_PAGE_PARTS_H
#define ORBITMQ_PAGE_PARTS_H

#include "bodies.h"
#include "pull.h"

enum { PART_HEADS = 1, PART_BODIES = 2, PART_PROPERTIES = 4, ALL_PARTS = 7 };

#define BEFORE_BODIES 3  /* the lengths, the header, what stands before the bodies */
#define BODY_LEAST 384   /* bytes of a body on the mean, from which on it is cheaper not to copy it */

static unsigned char *le32(unsigned char *p, uint32_t v) {
    p[0] = (unsigned char)v; p[1] = (unsigned char)(v >> 8); p[2] = (unsigned char)(v >> 16); p[3] = (unsigned char)(v >> 24);
    return p + 4;
}

static PyObject *found_parts(PyObject *self, PyObject *args) {
    PyObject *units, *described, *texts, *frame = NULL, *result = NULL;
    Py_buffer map;
    long long base, log_end, low, high, offset, suggested, opaque;
    Py_ssize_t max_count, max_bytes, total;
    int fd, parts;
    Own own;
    Buffer head = {0}, front = {0};
    struct iovec *part = NULL;
    if (!PyArg_ParseTuple(args, "Sy*LLnnOO!LLLLLii", &units, &map, &base, &log_end, &max_count, &max_bytes, &described,
                          &PyTuple_Type, &texts, &high, &low, &offset, &suggested, &opaque, &fd, &parts))
        return NULL;
    if (!take_own(&own, described)) goto out;
    Py_ssize_t count = fitting(units, &map, base, log_end, max_count, max_bytes, &own, &total);
    if (parts & ~ALL_PARTS || !count || total > INT32_MAX) goto none;
    const unsigned char *u = (const unsigned char *)PyBytes_AS_STRING(units), *log = map.buf;
    size_t columns = (parts & PART_BODIES ? 1 : 0) + (parts & PART_PROPERTIES ? 1 : 0), rows = (size_t)count;
    size_t front_n = 8 + columns * 4 * (rows + 1) + (parts & PART_HEADS ? rows * RECORD_HEAD : 0);
    if (!reserve(&front, front_n)) { PyErr_NoMemory(); goto out; }
    unsigned char *body_end = le32(le32(front.at, (uint32_t)count), (uint32_t)total), *properties_end = body_end;
    if (parts & PART_BODIES) properties_end = body_end + 4 * (rows + 1), body_end = le32(body_end, 0);
    unsigned char *heads = properties_end;
    if (parts & PART_PROPERTIES) heads = properties_end + 4 * (rows + 1), properties_end = le32(properties_end, 0);
    size_t bodies_n = 0, properties_n = 0;
    Place at;
    for (size_t row = 0; row < rows; row++) {
        if (row + ROWS_AHEAD < rows) {
            const unsigned char *ahead = log + ((int64_t)read64(u + (row + ROWS_AHEAD) * UNIT_BYTES) - base);
            __builtin_prefetch(ahead);
            __builtin_prefetch(ahead + 64);
        }
        const unsigned char *p = log + ((int64_t)read64(u + row * UNIT_BYTES) - base);
        if (!find_parts(p, read32(u + row * UNIT_BYTES + 8), (uint64_t)offset + row, parts & PART_PROPERTIES, &at)) goto none;
        if (parts & PART_BODIES) body_end = le32(body_end, (uint32_t)(bodies_n += at.body_n));
        if (parts & PART_PROPERTIES) properties_end = le32(properties_end, (uint32_t)(properties_n += at.properties_n));
        if (parts & PART_HEADS) memcpy(heads + row * RECORD_HEAD, p, RECORD_HEAD);
    }
    long long next = (long long)((unsigned long long)offset + (unsigned long long)count);
    if (!put_answer_header(&head, texts, (long long[]){high, low, next, suggested, opaque})) goto out;
    unsigned char lengths[8];
    be32(be32(lengths, (uint32_t)(4 + head.used + front_n + bodies_n + properties_n)), (uint32_t)head.used);
    /* Properties are small: where they are wanted, too, all is copied. */
    if (fd >= 0 && parts & PART_BODIES && !(parts & PART_PROPERTIES) && bodies_n >= DIRECT_LEAST && bodies_n / rows >= BODY_LEAST) {
        if (!(part = PyMem_Malloc((BEFORE_BODIES + rows) * sizeof *part))) { PyErr_NoMemory(); goto out; }
        part[0] = (struct iovec){lengths, sizeof lengths};
        part[1] = (struct iovec){head.at, head.used};
        part[2] = (struct iovec){front.at, front_n};
        for (size_t row = 0; row < rows; row++) {
            unsigned char *p = (unsigned char *)log + ((int64_t)read64(u + row * UNIT_BYTES) - base);
            part[BEFORE_BODIES + row] = (struct iovec){p + RECORD_HEAD, read32(p + 84)};
        }
        Parts all = {part, BEFORE_BODIES + (int)rows};
        frame = rest_of(&all, write_now(fd, &all));
    } else if ((frame = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(sizeof lengths + head.used + front_n + bodies_n + properties_n)))) {
        unsigned char *to = (unsigned char *)PyBytes_AS_STRING(frame);
        memcpy(to, lengths, sizeof lengths);
        memcpy(to += sizeof lengths, head.at, head.used);
        memcpy(to += head.used, front.at, front_n);
        unsigned char *bodies = to + front_n, *properties = bodies + bodies_n;
        for (size_t row = 0; columns && row < rows; row++) {
            const unsigned char *p = log + ((int64_t)read64(u + row * UNIT_BYTES) - base);
            if (!find_parts(p, read32(u + row * UNIT_BYTES + 8), (uint64_t)offset + row, parts & PART_PROPERTIES, &at)) continue;
            if (parts & PART_BODIES) memcpy(bodies, at.body, at.body_n), bodies += at.body_n;
            if (parts & PART_PROPERTIES) memcpy(properties, at.properties, at.properties_n), properties += at.properties_n;
        }
    }
    if (frame) result = Py_BuildValue("(Nnn)", frame, count, total);
    goto out;
none:
    result = Py_BuildValue("(y#nn)", "", (Py_ssize_t)0, (Py_ssize_t)0, (Py_ssize_t)0);
out:
    PyMem_Free(part);
    PyMem_Free(head.at);
    PyMem_Free(front.at);
    PyBuffer_Release(&map);
    return result;
}

#endif
