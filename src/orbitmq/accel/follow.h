/* Another broker's log on its way into queues and key index: what a slave does per message.
 *
 * The twin is store.follower with store.log_scan. Whatever it would do more than find the place of a whole, sound, plain
 * record in a queue that it knows is left to it: the walk ends in front of that record.
 */
#ifndef ORBITMQ_FOLLOW_H
#define ORBITMQ_FOLLOW_H

#include "bytes.h"
#include "crc32.h"
#include "own_record.h"
#include "pick.h"
#include "stage_run.h"

#define RECORD_MAGIC_V2 0xDAA320ABu
#define BLANK_MAGIC 0xCBD43194u

typedef struct {
    const unsigned char *at;
    size_t n;
} Value;

/* The last value of a name that is not empty counts. 0 when one of them is not ASCII. */
static int values_that_count(const unsigned char *p, size_t n, Value *id, Value *keys, Value *tags) {
    const unsigned char *end = p + n;
    while (p < end) {
        const unsigned char *stop = memchr(p, 2, (size_t)(end - p));
        if (!stop) stop = end;
        const unsigned char *middle = memchr(p, 1, (size_t)(stop - p));
        if (middle && middle + 1 < stop) {
            size_t name_n = (size_t)(middle - p);
            Value value = {middle + 1, (size_t)(stop - middle - 1)};
            if (name_n == 8 && !memcmp(p, "UNIQ_KEY", 8)) *id = value;
            else if (name_n == 4 && !memcmp(p, "KEYS", 4)) *keys = value;
            else if (name_n == 4 && !memcmp(p, "TAGS", 4)) *tags = value;
        }
        p = stop < end ? stop + 1 : end;
    }
    return ascii(id->at, id->n) && ascii(keys->at, keys->n) && ascii(tags->at, tags->n);
}

/* The record at p, of which `room` bytes may be read, when it is plain: its size. 0 leave it to the twin, -1 error. */
static int64_t follow_record(Run *r, const unsigned char *p, size_t room, int64_t offset) {
    if (room < RECORD_HEAD + 3) return 0;
    size_t size = read32(p);
    uint32_t sys_flag = read32(p + 36);
    size_t born_more = sys_flag & 0x10 ? HOST_V6_MORE : 0, head = RECORD_HEAD + born_more;
    if (sys_flag & 0x20) head += HOST_V6_MORE;
    if (size < head + 3 || size > room || read32(p + 4) != RECORD_MAGIC || (int64_t)read64(p + 28) != offset) return 0;
    if (sys_flag & 0x4) return 0; /* prepared or rolled back: not in the queue it names */
    size_t body_n = read32(p + head - 4);
    if (body_n > size - head - 3) return 0;
    const unsigned char *body = p + head, *name = body + body_n + 1;
    size_t name_n = name[-1];
    if (name_n > 127 || name_n > size - head - body_n - 3) return 0;
    const unsigned char *text = name + name_n + 2;
    size_t text_n = (size_t)text[-2] << 8 | text[-1];
    if (text_n > 32767 || text_n != size - (size_t)(text - p)) return 0;
    if (body_n && (crc32_of(body, body_n) & 0x7FFFFFFFu) != read32(p + 8)) return 0;
    int64_t store_ms = (int64_t)read64(p + 56 + born_more);
    if (r->unit_queue.used && store_ms != r->store_ms) return 0; /* what is staged together has one time */
    Value id = {0}, keys = {0}, tags = {0};
    if (!values_that_count(text, text_n, &id, &keys, &tags)) return 0;
    Text topic = {name, name_n, 0};
    Topic *t = find_topic(r, &topic);
    int q = t ? find_queue(r, t, (int32_t)read32(p + 12)) : -1;
    if (q < 0) return r->failed ? -1 : 0;
    if ((int64_t)read64(p + 20) != r->queue[q].next + r->queue[q].count) return 0;
    r->position = offset;
    r->store_ms = store_ms;
    if (!reserve(&r->units, UNIT_BYTES) || !reserve(&r->unit_queue, 1) || !add_keys(r, t, id.at, id.n, keys.at, keys.n)) {
        PyErr_NoMemory();
        return -1;
    }
    unsigned char *u = r->units.at + r->units.used, index = (unsigned char)q;
    be64(be32(be64(u, (uint64_t)offset), (uint32_t)size), (uint64_t)(int64_t)(int32_t)hash_more(0, tags.at, tags.n));
    r->units.used += UNIT_BYTES;
    put(&r->unit_queue, &index, 1);
    r->queue[q].count++;
    return (int64_t)size;
}

static PyObject *follow(PyObject *self, PyObject *args) {
    PyObject *topics, *result = NULL;
    Py_buffer map;
    long long base;
    Py_ssize_t pos, end;
    if (!PyArg_ParseTuple(args, "y*LnnO!", &map, &base, &pos, &end, &PyDict_Type, &topics)) return NULL;
    Run run, *r = &run;
    memset(r, 0, offsetof(Run, queue));
    r->topics = topics;
    if (pos < 0 || end < pos || end > map.len || base < 0 || base > INT64_MAX - end) {
        PyErr_SetString(PyExc_ValueError, "pos, end or base are out of range");
        goto out;
    }
    const unsigned char *bytes = map.buf;
    Py_ssize_t at = pos;
    for (;;) {
        int64_t size = follow_record(r, bytes + at, (size_t)(end - at), base + at);
        if (size < 0) goto out;
        if (!size) break;
        at += (Py_ssize_t)size;
    }
    if (at == pos) { result = Py_NewRef(Py_None); goto out; }
    PyObject *units = queue_units(r), *hashes = units ? bytes_of(&r->hashes) : NULL,
             *offsets = hashes ? bytes_of(&r->key_offsets) : NULL;
    if (offsets) result = Py_BuildValue("nLOOO", at, (long long)r->store_ms, units, hashes, offsets);
    Py_XDECREF(units); Py_XDECREF(hashes); Py_XDECREF(offsets);
out:
    for (int k = 0; k < r->topics_used; k++) Py_DECREF(r->topic[k].info);
    PyMem_Free(r->units.at); PyMem_Free(r->unit_queue.at); PyMem_Free(r->hashes.at); PyMem_Free(r->key_offsets.at);
    PyBuffer_Release(&map);
    return result;
}

/* How many of the bytes, which lie in the log from `offset` on, are whole records and blank ends of files; and whether a
 * record may follow there. */
static PyObject *whole_records(PyObject *self, PyObject *args) {
    Py_buffer data;
    long long offset, segment;
    if (!PyArg_ParseTuple(args, "y*LL", &data, &offset, &segment)) return NULL;
    if (offset < 0 || segment < 1) {
        PyBuffer_Release(&data);
        PyErr_SetString(PyExc_ValueError, "an offset is not negative, a file not empty");
        return NULL;
    }
    const unsigned char *p = data.buf;
    int64_t n = data.len, at = 0, left = segment - offset % segment;
    int sound = 1;
    while (n - at >= 8) {
        int64_t size = (int32_t)read32(p + at);
        uint32_t magic = read32(p + at + 4);
        if (magic == BLANK_MAGIC) size = left;
        else if (size <= 0 || size > left || (magic != RECORD_MAGIC && magic != RECORD_MAGIC_V2)) { sound = 0; break; }
        if (size > n - at) break;
        at += size;
        left -= size;
        if (!left) left = segment;
    }
    PyBuffer_Release(&data);
    return Py_BuildValue("LO", (long long)at, sound ? Py_True : Py_False);
}

#endif
