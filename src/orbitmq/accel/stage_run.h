/* The state of one stage_frames call: what it was given, what it has made so far, and how a frame is taken back. */
#ifndef ORBITMQ_STAGE_RUN_H
#define ORBITMQ_STAGE_RUN_H

#include "bytes.h"
#include "send_header.h"

#define MAX_QUEUES 256 /* of one call; their numbers fit into a byte */
#define MAX_TOPICS 64

typedef struct {
    PyObject *queue; /* held by its topic's info */
    int64_t next;
    int32_t id;
    Py_ssize_t count;
} Queue;

typedef struct {
    PyObject *info; /* our reference: (queues, topic part, prefix hash, name) */
    const unsigned char *part, *name;
    size_t part_n, name_n;
    uint32_t prefix_hash;
    int64_t count, bytes;
} Topic;

typedef struct {
    /* settings */
    int64_t max_body, max_frame;
    const unsigned char *store_host, *born_host, *cluster, *host_hex, *ack[3];
    size_t store_n, born_n, cluster_n, hex_n, ack_n[3];
    size_t head_n; /* of a record, less topic part, body and properties */
    PyObject *topics;
    int64_t room_end, store_ms, position;
    uint32_t host_flags;
    /* results */
    PyObject *record_bytes; /* where `records` lies: handed over as it is, since it is as large as the whole read */
    size_t first_room;      /* a guess at its size */
    Buffer records, acks, units, unit_queue, hashes, key_offsets, scratch;
    int queues, topics_used;
    int failed; /* a Python error is set */
    /* of the message being looked at */
    size_t properties_at, properties_n; /* in scratch */
    int64_t tags_code;
    /* From here on not cleared for each call: what is used of it has been written. */
    Queue queue[MAX_QUEUES];
    Topic topic[MAX_TOPICS];
} Run;

typedef struct {
    size_t records, acks, units, unit_queue, hashes, key_offsets;
    int64_t position;
} Mark;

static PyObject *next_offset_name;

/* NULL when the call should end here. The topic's queues and bytes live as long as this run holds its info. */
static Topic *find_topic(Run *r, const Text *name) {
    if (name->escaped) return NULL;
    for (int k = 0; k < r->topics_used; k++)
        if (r->topic[k].name_n == name->n && memcmp(r->topic[k].name, name->at, name->n) == 0) return &r->topic[k];
    if (r->topics_used == MAX_TOPICS) return NULL;
    PyObject *key = PyBytes_FromStringAndSize((const char *)name->at, (Py_ssize_t)name->n);
    if (!key) { r->failed = 1; return NULL; }
    PyObject *info = PyDict_GetItemWithError(r->topics, key);
    Py_DECREF(key);
    if (!info) { r->failed = PyErr_Occurred() != NULL; return NULL; }
    PyObject *part;
    if (!PyTuple_Check(info) || PyTuple_GET_SIZE(info) != 4 || !PyTuple_Check(PyTuple_GET_ITEM(info, 0))
        || !PyBytes_Check(part = PyTuple_GET_ITEM(info, 1)) || PyBytes_GET_SIZE(part) < 1
        || !PyLong_Check(PyTuple_GET_ITEM(info, 2))) {
        PyErr_SetString(PyExc_TypeError, "a topic is (queues, topic part, hash, name)");
        r->failed = 1;
        return NULL;
    }
    Topic *t = &r->topic[r->topics_used++];
    t->info = Py_NewRef(info);
    t->part = (const unsigned char *)PyBytes_AS_STRING(part);
    t->part_n = (size_t)PyBytes_GET_SIZE(part);
    t->name = t->part + 1; /* behind its length byte */
    t->name_n = t->part_n - 1;
    t->prefix_hash = (uint32_t)PyLong_AsUnsignedLongMask(PyTuple_GET_ITEM(info, 2));
    t->count = t->bytes = 0;
    return t;
}

/* Index of the queue's entry; -1 when the call should end here. */
static int find_queue(Run *r, const Topic *t, int64_t id) {
    PyObject *queues = PyTuple_GET_ITEM(t->info, 0);
    if (id < 0 || id >= PyTuple_GET_SIZE(queues)) return -1;
    PyObject *queue = PyTuple_GET_ITEM(queues, (Py_ssize_t)id);
    if (queue == Py_None) return -1;
    for (int k = 0; k < r->queues; k++)
        if (r->queue[k].queue == queue) return k;
    if (r->queues == MAX_QUEUES) return -1;
    PyObject *next = PyObject_GetAttr(queue, next_offset_name);
    if (!next) { r->failed = 1; return -1; }
    Queue *q = &r->queue[r->queues];
    q->queue = queue;
    q->id = (int32_t)id;
    q->count = 0;
    q->next = PyLong_AsLongLong(next);
    Py_DECREF(next);
    if (q->next == -1 && PyErr_Occurred()) { r->failed = 1; return -1; }
    return r->queues++;
}

/* Makes room for a record of this size. */
static int reserve_record(Run *r, size_t size) {
    Buffer *b = &r->records;
    if (b->room - b->used >= size) return 1;
    size_t room = b->room ? b->room : r->first_room;
    while (room - b->used < size) {
        if (room > PY_SSIZE_T_MAX / 2) return 0;
        room *= 2;
    }
    if (!r->record_bytes) r->record_bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)room);
    else (void)_PyBytes_Resize(&r->record_bytes, (Py_ssize_t)room); /* leaves NULL behind when it fails */
    b->room = r->record_bytes ? room : 0;
    b->at = r->record_bytes ? (unsigned char *)PyBytes_AS_STRING(r->record_bytes) : NULL;
    return r->record_bytes != NULL;
}

static Mark mark(const Run *r) {
    Mark m = {r->records.used, r->acks.used, r->units.used, r->unit_queue.used, r->hashes.used, r->key_offsets.used,
              r->position};
    return m;
}

/* Takes back what a frame that turned out not to be plain has left. */
static void restore(Run *r, const Mark *m) {
    while (r->unit_queue.used > m->unit_queue) r->queue[r->unit_queue.at[--r->unit_queue.used]].count--;
    r->records.used = m->records;
    r->acks.used = m->acks;
    r->units.used = m->units;
    r->hashes.used = m->hashes;
    r->key_offsets.used = m->key_offsets;
    r->position = m->position;
}

#endif
