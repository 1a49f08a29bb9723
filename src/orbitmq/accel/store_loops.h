/* Two loops over files that the caller has mapped: the records of a pull, and the entries of an index file. */
#ifndef ORBITMQ_STORE_LOOPS_H
#define ORBITMQ_STORE_LOOPS_H

#include "bytes.h"
#include "own_record.h"

#define UNIT_BYTES 20 /* log offset 8, record size 4, tag hash 8 */

/* How many of the units point at records that may be sent together, and how many bytes these have. */
static Py_ssize_t fitting(PyObject *units, const Py_buffer *map, long long base, long long log_end, Py_ssize_t max_count,
                          Py_ssize_t max_bytes, const Own *own, Py_ssize_t *bytes) {
    const unsigned char *from = map->buf, *u = (const unsigned char *)PyBytes_AS_STRING(units);
    Py_ssize_t most = PyBytes_GET_SIZE(units) / UNIT_BYTES, count = 0, total = 0;
    /* One message is always allowed, as the twin has it. */
    if (max_count < 1) max_count = 1;
    if (max_count < most) most = max_count;
    if (max_bytes < 0) max_bytes = 0;
    if (base < 0 || log_end < 0) most = 0;
    for (; count < most; count++, u += UNIT_BYTES) {
        int64_t offset = (int64_t)read64(u), size = (int32_t)read32(u + 8);
        /* A damaged unit may hold any number: nothing is added to it. */
        if (offset < base || size <= 0 || offset - base > map->len - size || size > log_end - offset) break;
        if (count && size > max_bytes - total) break;
        if (!is_own(own, count, from + (offset - base), (size_t)size, offset)) break;
        total += (Py_ssize_t)size;
    }
    *bytes = total;
    return count;
}

static void copy_records(unsigned char *to, PyObject *units, Py_ssize_t count, const Py_buffer *map, long long base) {
    const unsigned char *from = map->buf, *u = (const unsigned char *)PyBytes_AS_STRING(units);
    for (; count; count--, u += UNIT_BYTES) {
        size_t size = read32(u + 8);
        memcpy(to, from + ((int64_t)read64(u) - base), size);
        to += size;
    }
}

static PyObject *gather(PyObject *self, PyObject *args) {
    PyObject *units, *records, *described = NULL, *result = NULL;
    Py_buffer map;
    long long base, log_end;
    Py_ssize_t max_count, max_bytes, total;
    Own own;
    if (!PyArg_ParseTuple(args, "Sy*LLnn|O", &units, &map, &base, &log_end, &max_count, &max_bytes, &described)) return NULL;
    if (take_own(&own, described)) {
        Py_ssize_t count = fitting(units, &map, base, log_end, max_count, max_bytes, &own, &total);
        records = PyBytes_FromStringAndSize(NULL, total);
        if (records) {
            copy_records((unsigned char *)PyBytes_AS_STRING(records), units, count, &map, base);
            result = Py_BuildValue("(Nn)", records, count);
        }
    }
    PyBuffer_Release(&map);
    return result;
}

static int64_t native64(const Py_buffer *column, Py_ssize_t row) {
    int64_t value;
    memcpy(&value, (const char *)column->buf + row * 8, 8);
    return value;
}

static PyObject *put_index(PyObject *self, PyObject *args) {
    Py_buffer map, hashes, offsets, times;
    long long entries_at, slots, count, begin_ms;
    if (!PyArg_ParseTuple(args, "w*LLLLy*y*y*", &map, &entries_at, &slots, &count, &begin_ms, &hashes, &offsets, &times))
        return NULL;
    Py_ssize_t rows = hashes.len / 8;
    long long used = 0, most = map.len / 20;
    /* Each number by itself first, so that none of the products can overflow. */
    int bad = hashes.len != rows * 8 || offsets.len != rows * 8 || times.len != rows * 8 || slots < 1
              || slots > map.len / 4 || count < 1 || count > most || rows > most - count || entries_at < 40 + slots * 4
              || entries_at > map.len - (count + rows) * 20;
    for (Py_ssize_t k = 0; !bad && k < rows; k++) bad = native64(&hashes, k) < 0 || native64(&hashes, k) > INT32_MAX;
    for (Py_ssize_t k = 0; !bad && k < rows; k++, count++) {
        uint32_t hash = (uint32_t)native64(&hashes, k);
        int64_t ms = native64(&times, k);
        unsigned char *slot = (unsigned char *)map.buf + 40 + hash % slots * 4;
        int32_t previous = (int32_t)read32(slot);
        if (previous <= 0 || previous > count) { previous = 0; used++; }
        int64_t seconds = begin_ms > 0 && ms > begin_ms ? (ms - begin_ms) / 1000 : 0;
        if (seconds > INT32_MAX) seconds = INT32_MAX;
        unsigned char *entry = (unsigned char *)map.buf + entries_at + count * 20;
        entry = be64(be32(entry, hash), (uint64_t)native64(&offsets, k));
        be32(be32(entry, (uint32_t)seconds), (uint32_t)previous);
        be32(slot, (uint32_t)count);
    }
    PyBuffer_Release(&map); PyBuffer_Release(&hashes); PyBuffer_Release(&offsets); PyBuffer_Release(&times);
    if (bad) { PyErr_SetString(PyExc_ValueError, "the columns do not fit the index file"); return NULL; }
    return PyLong_FromLongLong(used);
}

#endif
