/* The accelerator: what the broker does per message when it appends and reads, in C.
 *
 * Optional. Each function has a plain Python twin that is the reference, and tests compare the two. Everything read here
 * comes from the network: every length is checked against the bytes that are there before it is used, and whatever is not
 * exactly as official clients write it is left to the twin (the function then stops in front of that frame).
 *
 * stage_frames(data, pos, end, topics, settings, position, room_end, store_ms, born_host)
 *     Takes consecutive plain SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE frames with JSON headers from data[pos:end].
 *     topics:   {name: (queues, topic part, hash of "name#", name as str)}
 *     settings: (largest body, largest frame, store host, CLUSTER pair, host in hex, answer parts 0..2)
 *     Returns None when the first frame is not one of them, else
 *     (new pos, new position, records, answers, [(queue, units)], key hashes, key offsets, [(topic, count, bytes)]).
 * gather(units, map, base, log_end, max_count, max_bytes) -> (records, count)
 *     The records that the first units point at, one after the other, as far as they lie in this mapped log file.
 * pick(units, first, map, base, log_end, max_count, max_bytes, count, bytes, codes, names, verdicts)
 *         -> (records, found, seen units, state, key)
 *     The records of a filtered pull, from the first unit on, with `count` and `bytes` found before: those whose unit has
 *     one of the 8-byte codes (None: any), and whose property pairs of these names (None: any) have the verdict True. See
 *     pick.h for the states; the key comes with PICK_UNDECIDED.
 * read_pull(data, start, stop)
 *         -> None | (key, opaque, queue offset, most messages, flags, offset to commit, wait ms, version, page bytes, parts)
 *     The header data[start:stop] of a plain pull; None is for the twin. See pull.h for the key.
 * found_page(units, map, base, log_end, max_count, max_bytes, own, texts, high, low, offset, suggested, opaque[, fd])
 *         -> (frame, count, bytes of records)
 *     As gather, with the answer's header in front: `texts` around five numbers, the third of which is that of the offset
 *     behind the last record. A large page whose records lie together goes right into the socket `fd`, as far as that
 *     takes it at once; the frame is then what is left of it.
 * found_parts(as found_page, with fd and parts) -> (frame, count, bytes of records)
 *     The same with heads, bodies and properties apart, and only those that are wanted. The count is 0 if that cannot be
 *     done with every record of this page. See page_parts.h.
 * follow(map, base, pos, end, topics) -> None | (new pos, store time, [(queue, units)], key hashes, key offsets)
 *     Walks over the consecutive plain records map[pos:end] of a log file that begins at log offset `base`, as far as they
 *     have the same store time and are the next ones of their queues. Topics as above; None in the place of a queue that
 *     is not known. See follow.h.
 * whole_records(data, offset, file size) -> (bytes, sound)
 *     How much of a piece of the log that lies at `offset` is whole records and blank ends of files.
 * unit_bodies(units, row, number, queue id, map, base, limit, heads, bodies, ends) -> (rows, bytes)
 *     The bodies of the records that the units from this row on point at, as far as they are plain, lie in this mapped log
 *     file before the offset `limit` and have the queue offsets from `number` on. See bodies.h.
 * unit_properties(as unit_bodies) -> (rows, bytes)
 *     The same with their properties, each behind its length, instead of the bodies.
 * unit_places(units, row, number, queue id, map, base, limit, heads, places, sizes) -> rows
 *     The same with the places of the bodies in the log, and their sizes, instead of the bodies.
 * page_bodies(page, number, heads, bodies, ends) -> (rows, bytes, bytes of the page that are left)
 *     The same for records that lie one behind the other.
 * put_index(map, entries_at, slots, count, begin_ms, hashes, offsets, times) -> used slots added
 *     Appends entries to a mapped index file; the caller has seen to room, begin_ms and the header.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>

#include "bytes.h"
#include "crc32.h"
#include "send_header.h"
#include "stage_run.h"
#include "store_loops.h"
#include "pick.h"
#include "pull.h"
#include "bodies.h"
#include "page_parts.h"

#define MAGIC 0xDAA320A7u
#define FIXED_BYTES 90 /* less the topic part (its length byte counts there), body and properties */
#define ITEM_BYTES 22  /* of a message in a batch, less body and properties */
#define MAX_PROPERTIES 32767
#define MAX_OUTER 512

static const struct { const char *name; size_t n; } special[] = {
    {"DELAY", 5}, {"TRAN_MSG", 8}, {"CLUSTER", 7}, {"TIMER_DELAY_SEC", 15}, {"TIMER_DELAY_MS", 14},
    {"TIMER_DELIVER_MS", 16}, {"TIMER_DEL_UNIQKEY", 17}, {"INNER_MULTI_DISPATCH", 20}, {"MSG_TYPE", 8},
};

/* Names that count for the batch as a whole when they stand in its header, and its right not to wait. */
static const char *const not_of_a_batch[] = {"WAIT\x01" "f", "CLUSTER\x01", "UNIQ_KEY\x01", "KEYS\x01", "TAGS\x01"};

static int add_key(Run *r, uint32_t prefix_hash, const unsigned char *key, size_t n) {
    if (!reserve(&r->hashes, 4) || !reserve(&r->key_offsets, 8)) return 0;
    uint32_t h = index_hash(hash_more(prefix_hash, key, n));
    put(&r->hashes, &h, 4);
    put(&r->key_offsets, &r->position, 8);
    return 1;
}

/* Keys in the order in which they are indexed: the unique id, then the user's. */
static int add_keys(Run *r, const Topic *t, const unsigned char *id, size_t id_n, const unsigned char *keys, size_t keys_n) {
    if (id_n && !add_key(r, t->prefix_hash, id, id_n)) return 0;
    while (keys_n) {
        const unsigned char *space = memchr(keys, ' ', keys_n);
        size_t n = space ? (size_t)(space - keys) : keys_n;
        if (n && !add_key(r, t->prefix_hash, keys, n)) return 0;
        keys += n;
        keys_n -= n;
        if (keys_n) { keys++; keys_n--; }
    }
    return 1;
}

/* Reads the property text p[0:n]; for a single send writes what is stored of it to scratch, for a message of a batch the
 * text as it is, in both cases with `more` behind it. Both texts may lie in scratch: the caller has reserved n + more_n + 2
 * bytes there, so that they stay where they are. 1 done, 0 not plain, -1 out of memory. */
static int properties(Run *r, const Topic *t, const unsigned char *p, size_t n, int single,
                      const unsigned char *more, size_t more_n) {
    const unsigned char *end = p + n, *id = NULL, *keys = NULL, *tags = NULL;
    size_t id_n = 0, keys_n = 0, tags_n = 0;
    Buffer *out = &r->scratch;
    r->properties_at = out->used;
    for (const unsigned char *pair = p; pair < end;) {
        const unsigned char *stop = memchr(pair, 2, (size_t)(end - pair));
        if (!stop) stop = end;
        const unsigned char *middle = memchr(pair, 1, (size_t)(stop - pair));
        if (middle && middle > pair && middle + 1 < stop) {
            size_t name_n = (size_t)(middle - pair), value_n = (size_t)(stop - middle - 1);
            const unsigned char *value = middle + 1;
            int kept = 1;
            if (name_n == 8 && memcmp(pair, "UNIQ_KEY", 8) == 0) {
                if (single && id) return 0;
                id = value; id_n = value_n;
            } else if (name_n == 4 && memcmp(pair, "KEYS", 4) == 0) {
                keys = value; keys_n = value_n;
            } else if (name_n == 4 && memcmp(pair, "TAGS", 4) == 0) {
                tags = value; tags_n = value_n;
            } else if (single) {
                if (name_n == 4 && memcmp(pair, "WAIT", 4) == 0) {
                    if (value_n != 4 || memcmp(value, "true", 4)) return 0;
                    kept = 0;
                } else {
                    for (size_t k = 0; k < sizeof special / sizeof *special; k++)
                        if (name_n == special[k].n && memcmp(pair, special[k].name, name_n) == 0) return 0;
                }
            }
            if (single && kept) {
                put(out, pair, (size_t)(stop - pair));
                put(out, "\x02", 1);
            }
        }
        pair = stop < end ? stop + 1 : end;
    }
    if (!single) {
        while (n && p[n - 1] == 2) n--;
        put(out, p, n);
        if (n && more_n) put(out, "\x02", 1);
    }
    put(out, more, more_n);
    r->properties_n = out->used - r->properties_at;
    if (r->properties_n > MAX_PROPERTIES) return 0;
    if (!ascii(keys, keys_n) || !ascii(id, id_n) || !ascii(tags, tags_n)) return 0;
    r->tags_code = (int64_t)(int32_t)hash_more(0, tags, tags_n);
    return add_keys(r, t, id, id_n, keys, keys_n) ? 1 : -1;
}

/* Packs one record; its properties lie in scratch. 1 done, 0 no room in the file, -1 out of memory. */
static int record(Run *r, const Topic *t, int queue_index, const unsigned char *body, size_t body_n, int64_t sys_flag,
                  int64_t flag, int64_t born_ms) {
    Queue *q = &r->queue[queue_index];
    size_t size = r->head_n + body_n + t->part_n + r->properties_n;
    if ((int64_t)size > r->room_end - r->position) return 0;
    if (!reserve_record(r, size) || !reserve(&r->units, UNIT_BYTES) || !reserve(&r->unit_queue, 1)) return -1;
    unsigned char *p = r->records.at + r->records.used;
    p = be32(p, (uint32_t)size);
    p = be32(p, MAGIC);
    p = be32(p, crc32_of(body, body_n) & 0x7FFFFFFFu);
    p = be32(p, (uint32_t)q->id);
    p = be32(p, (uint32_t)flag);
    p = be64(p, (uint64_t)(q->next + q->count));
    p = be64(p, (uint64_t)r->position);
    p = be32(p, (uint32_t)sys_flag | r->host_flags);
    p = be64(p, (uint64_t)born_ms);
    memcpy(p, r->born_host, r->born_n); p += r->born_n;
    p = be64(p, (uint64_t)r->store_ms);
    memcpy(p, r->store_host, r->store_n); p += r->store_n;
    memset(p, 0, 12); p += 12; /* reconsumeTimes, preparedTransactionOffset */
    p = be32(p, (uint32_t)body_n);
    memcpy(p, body, body_n); p += body_n;
    memcpy(p, t->part, t->part_n); p += t->part_n;
    *p++ = (unsigned char)(r->properties_n >> 8);
    *p++ = (unsigned char)r->properties_n;
    memcpy(p, r->scratch.at + r->properties_at, r->properties_n);
    r->records.used += size;
    unsigned char *u = r->units.at + r->units.used;
    be64(be32(be64(u, (uint64_t)r->position), (uint32_t)size), (uint64_t)r->tags_code);
    r->units.used += UNIT_BYTES;
    unsigned char index = (unsigned char)queue_index;
    put(&r->unit_queue, &index, 1);
    q->count++;
    r->position += (int64_t)size;
    return 1;
}

static int answer(Run *r, const Header *h, int64_t queue_id, int64_t queue_offset, size_t messages) {
    static const unsigned char hex[] = "0123456789ABCDEF";
    Buffer *b = &r->acks;
    size_t most = 8 + r->ack_n[0] + r->ack_n[1] + r->ack_n[2] + messages * (r->hex_n + 17) + 96;
    if (!reserve(b, most)) return 0;
    size_t start = b->used;
    b->used += 8;
    put(b, r->ack[0], r->ack_n[0]);
    const unsigned char *unit = r->units.at + r->units.used - messages * UNIT_BYTES;
    for (size_t k = 0; k < messages; k++, unit += UNIT_BYTES) {
        if (k) put(b, ",", 1);
        put(b, r->host_hex, r->hex_n);
        unsigned char *o = b->at + b->used;
        for (int i = 0; i < 8; i++) { *o++ = hex[unit[i] >> 4]; *o++ = hex[unit[i] & 15]; }
        b->used += 16;
    }
    put(b, "\",\"queueId\":\"", 13);
    put_number(b, queue_id);
    put(b, "\",\"queueOffset\":\"", 17);
    put_number(b, queue_offset);
    put(b, r->ack[1], r->ack_n[1]);
    put_number(b, h->command.opaque);
    put(b, r->ack[2], r->ack_n[2]);
    uint32_t header_n = (uint32_t)(b->used - start - 8);
    be32(be32(b->at + start, header_n + 4), header_n);
    return 1;
}

static int one_message(Run *r, const Header *h, Topic *t, int q, const unsigned char *body, size_t body_n,
                       int64_t sys_flag, int64_t flag, int64_t born_ms) {
    r->scratch.used = 0;
    if (has(h, 'i') && !unescape(field(h, 'i'), &r->scratch)) return 0;
    size_t n = r->scratch.used;
    if (!reserve(&r->scratch, n + r->cluster_n + 2)) return -1;
    int done = properties(r, t, r->scratch.at, n, 1, r->cluster, r->cluster_n);
    if (done == 1) done = record(r, t, q, body, body_n, sys_flag, flag, born_ms);
    if (done == 1) { t->count++; t->bytes += (int64_t)body_n; }
    return done;
}

/* What each message of a batch gets behind its own properties goes to the start of scratch. 1 done, 0 not plain, -1 out of
 * memory. */
static int batch_properties(Run *r, const Header *h) {
    r->scratch.used = 0;
    if (!reserve(&r->scratch, r->cluster_n + 1)) return -1;
    put(&r->scratch, r->cluster, r->cluster_n);
    if (!has(h, 'i') || !field(h, 'i')->n) return 1;
    put(&r->scratch, "\x02", 1);
    size_t outer_at = r->scratch.used;
    if (!unescape(field(h, 'i'), &r->scratch)) return 0;
    const unsigned char *outer = r->scratch.at + outer_at;
    size_t n = r->scratch.used - outer_at;
    if (n > MAX_OUTER || outer[0] == 2 || outer[n - 1] == 2) return 0;
    for (size_t k = 0; k < sizeof not_of_a_batch / sizeof *not_of_a_batch; k++)
        if (holds(outer, n, not_of_a_batch[k])) return 0;
    return 1;
}

static int batch_messages(Run *r, const Header *h, Topic *t, int q, const unsigned char *body, size_t body_n,
                          int64_t sys_flag, int64_t born_ms, size_t *messages) {
    int done = batch_properties(r, h);
    if (done != 1) return done;
    size_t more_n = r->scratch.used, at = 0;
    /* The twin keeps a batch in one file, and reckons its size like this before it packs anything: roll where it rolls. */
    int64_t room = r->room_end - r->position;
    for (*messages = 0; at < body_n; ++*messages) {
        if (body_n - at < ITEM_BYTES) return 0;
        const unsigned char *item = body + at;
        size_t left = body_n - at - ITEM_BYTES, total = read32(item), item_n = read32(item + 16);
        if (item_n > left) return 0;
        const unsigned char *text = item + ITEM_BYTES + item_n;
        size_t properties_n = (size_t)text[-2] << 8 | text[-1];
        if (properties_n > left - item_n || total != ITEM_BYTES + item_n + properties_n) return 0;
        room -= (int64_t)(r->head_n + t->part_n + total + more_n + 1);
        if (room < 0 || holds(text, properties_n, "DELAY\x01")) return 0;
        r->scratch.used = more_n;
        if (!reserve(&r->scratch, properties_n + more_n + 2)) return -1;
        done = properties(r, t, text, properties_n, 0, r->scratch.at, more_n);
        if (done == 1) done = record(r, t, q, item + 20, item_n, sys_flag, (int32_t)read32(item + 12), born_ms);
        if (done != 1) return done;
        at += total;
    }
    t->count += (int64_t)*messages;
    t->bytes += (int64_t)body_n;
    return 1;
}

/* One frame p[0:n], without its length. 1 taken, 0 not plain, -1 error. */
static int frame(Run *r, const unsigned char *p, size_t n) {
    if (n < 16 || p[0] != 0) return 0;
    int batch;
    if (memcmp(p + 4, "{\"code\":310,", 12) == 0) batch = 0;
    else if (memcmp(p + 4, "{\"code\":320,", 12) == 0) batch = 1;
    else return 0;
    size_t header_n = (size_t)p[1] << 16 | (size_t)p[2] << 8 | p[3];
    if (header_n > n - 4) return 0;
    Header h;
    if (!read_header(p + 4, p + 4 + header_n, &h) || h.command.flag & 1) return 0; /* an answer that looks like a request */
    const uint32_t needed = 0xFF; /* a to h */
    if ((h.seen & needed) != needed) return 0;
    int64_t queue_id, sys_flag, flag, born_ms, other;
    if (!text_int(field(&h, 'd'), INT32_MIN, INT32_MAX, &other) || !text_int(field(&h, 'e'), 0, INT32_MAX, &queue_id)
        || !text_int(field(&h, 'f'), 0, 0x703, &sys_flag) || sys_flag & ~(int64_t)0x703
        || !text_int(field(&h, 'g'), INT64_MIN, INT64_MAX, &born_ms) || !text_int(field(&h, 'h'), INT32_MIN, INT32_MAX, &flag))
        return 0;
    if (has(&h, 'j') && !IS(field(&h, 'j'), "0")) return 0;
    if (has(&h, 'k') && !IS(field(&h, 'k'), "false") && !IS(field(&h, 'k'), "true")) return 0;
    if (has(&h, 'l') && !text_int(field(&h, 'l'), INT32_MIN, INT32_MAX, &other)) return 0;
    if (has(&h, 'm') && !IS(field(&h, 'm'), "false") && !(batch && IS(field(&h, 'm'), "true"))) return 0;
    const unsigned char *body = p + 4 + header_n;
    size_t body_n = n - 4 - header_n, messages = 1;
    if ((int64_t)body_n > r->max_body || (batch && !body_n)) return 0;
    Topic *t = find_topic(r, field(&h, 'b'));
    if (!t) return r->failed ? -1 : 0;
    int q = find_queue(r, t, queue_id);
    if (q < 0) return r->failed ? -1 : 0;
    Mark before = mark(r);
    int64_t count = t->count, bytes = t->bytes, queue_offset = r->queue[q].next + r->queue[q].count;
    int done = batch ? batch_messages(r, &h, t, q, body, body_n, sys_flag, born_ms, &messages)
                     : one_message(r, &h, t, q, body, body_n, sys_flag, flag, born_ms);
    if (done == 1 && !(h.command.flag & 2) && !answer(r, &h, queue_id, queue_offset, messages)) done = -1;
    if (done != 1) {
        restore(r, &before);
        t->count = count;
        t->bytes = bytes;
        if (done < 0) PyErr_NoMemory();
    }
    return done;
}

static PyObject *bytes_of(const Buffer *b) {
    return PyBytes_FromStringAndSize((const char *)b->at, (Py_ssize_t)b->used);
}

static PyObject *queue_units(const Run *r) {
    PyObject *list = PyList_New(0);
    unsigned char *to[MAX_QUEUES] = {0};
    if (!list) return NULL;
    for (int k = 0; k < r->queues; k++) {
        if (!r->queue[k].count) continue;
        PyObject *units = PyBytes_FromStringAndSize(NULL, r->queue[k].count * UNIT_BYTES);
        PyObject *pair = units ? PyTuple_Pack(2, r->queue[k].queue, units) : NULL;
        if (units) to[k] = (unsigned char *)PyBytes_AS_STRING(units);
        Py_XDECREF(units); /* the pair holds it */
        if (!pair || PyList_Append(list, pair)) { Py_XDECREF(pair); Py_DECREF(list); return NULL; }
        Py_DECREF(pair);
    }
    for (size_t k = 0; k < r->unit_queue.used; k++) {
        int q = r->unit_queue.at[k];
        memcpy(to[q], r->units.at + k * UNIT_BYTES, UNIT_BYTES);
        to[q] += UNIT_BYTES;
    }
    return list;
}

static PyObject *topic_counts(const Run *r) {
    PyObject *list = PyList_New(0);
    for (int k = 0; list && k < r->topics_used; k++) {
        const Topic *t = &r->topic[k];
        if (!t->count) continue;
        PyObject *entry = Py_BuildValue("(OLL)", PyTuple_GET_ITEM(t->info, 3), (long long)t->count, (long long)t->bytes);
        if (!entry || PyList_Append(list, entry)) { Py_XDECREF(entry); Py_CLEAR(list); break; }
        Py_DECREF(entry);
    }
    return list;
}

static int take_bytes(PyObject *tuple, Py_ssize_t index, const unsigned char **at, size_t *n) {
    PyObject *item = PyTuple_GET_ITEM(tuple, index);
    if (!PyBytes_Check(item)) { PyErr_SetString(PyExc_TypeError, "settings hold bytes from item 2 on"); return 0; }
    *at = (const unsigned char *)PyBytes_AS_STRING(item);
    *n = (size_t)PyBytes_GET_SIZE(item);
    return 1;
}

/* Reads the settings, which outlive the run as arguments of the call. */
static int take_settings(Run *r, PyObject *settings, PyObject *born) {
    r->max_body = PyLong_AsLongLong(PyTuple_GET_ITEM(settings, 0));
    r->max_frame = PyLong_AsLongLong(PyTuple_GET_ITEM(settings, 1));
    r->born_host = (const unsigned char *)PyBytes_AS_STRING(born);
    r->born_n = (size_t)PyBytes_GET_SIZE(born);
    if (PyErr_Occurred() || !take_bytes(settings, 2, &r->store_host, &r->store_n)
        || !take_bytes(settings, 3, &r->cluster, &r->cluster_n) || !take_bytes(settings, 4, &r->host_hex, &r->hex_n)
        || !take_bytes(settings, 5, &r->ack[0], &r->ack_n[0]) || !take_bytes(settings, 6, &r->ack[1], &r->ack_n[1])
        || !take_bytes(settings, 7, &r->ack[2], &r->ack_n[2]))
        return 0;
    if ((r->born_n != 8 && r->born_n != 20) || (r->store_n != 8 && r->store_n != 20)) {
        PyErr_SetString(PyExc_ValueError, "a host has 8 or 20 bytes");
        return 0;
    }
    r->host_flags = (r->born_n == 20 ? 0x10u : 0) | (r->store_n == 20 ? 0x20u : 0);
    r->head_n = FIXED_BYTES + (r->born_n - 8) + (r->store_n - 8);
    return 1;
}

static PyObject *result_of(Run *r, Py_ssize_t at) {
    if (!r->record_bytes) r->record_bytes = PyBytes_FromStringAndSize(NULL, 0);
    if (!r->record_bytes || _PyBytes_Resize(&r->record_bytes, (Py_ssize_t)r->records.used) < 0) return NULL;
    PyObject *records = Py_NewRef(r->record_bytes), *acks = bytes_of(&r->acks),
             *units = acks ? queue_units(r) : NULL, *hashes = units ? bytes_of(&r->hashes) : NULL,
             *offsets = hashes ? bytes_of(&r->key_offsets) : NULL, *counts = offsets ? topic_counts(r) : NULL;
    PyObject *result = counts ? Py_BuildValue("nLOOOOOO", at, (long long)r->position, records, acks, units, hashes, offsets,
                                              counts) : NULL;
    Py_XDECREF(records); Py_XDECREF(acks); Py_XDECREF(units); Py_XDECREF(hashes); Py_XDECREF(offsets); Py_XDECREF(counts);
    return result;
}

static PyObject *stage_frames(PyObject *self, PyObject *args) {
    PyObject *data, *topics, *settings, *born, *result = NULL;
    Py_ssize_t pos, end;
    long long position, room_end, store_ms;
    if (!PyArg_ParseTuple(args, "SnnO!O!LLLS", &data, &pos, &end, &PyDict_Type, &topics, &PyTuple_Type, &settings,
                          &position, &room_end, &store_ms, &born))
        return NULL;
    if (pos < 0 || end < pos || end > PyBytes_GET_SIZE(data) || PyTuple_GET_SIZE(settings) != 8 || position < 0
        || room_end < 0) {
        PyErr_SetString(PyExc_ValueError, "pos, end, position, room_end or settings are out of range");
        return NULL;
    }
    Run run, *r = &run;
    memset(r, 0, offsetof(Run, queue));
    r->topics = topics;
    r->position = position;
    r->room_end = room_end;
    r->store_ms = store_ms;
    if (!take_settings(r, settings, born)) goto out;
    r->first_room = (size_t)(end - pos) + (size_t)(end - pos) / 4 + 512; /* heads and properties grow, headers go */
    const unsigned char *bytes = (const unsigned char *)PyBytes_AS_STRING(data);
    Py_ssize_t at = pos;
    while (end - at >= 4) {
        size_t size = read32(bytes + at);
        if (size < 4 || size > (size_t)(end - at - 4) || (int64_t)size > r->max_frame - 4) break;
        int done = frame(r, bytes + at + 4, size);
        if (done < 0) goto out;
        if (!done) break;
        at += 4 + (Py_ssize_t)size;
    }
    result = at == pos ? Py_NewRef(Py_None) : result_of(r, at);
out:
    for (int k = 0; k < r->topics_used; k++) Py_DECREF(r->topic[k].info);
    Py_XDECREF(r->record_bytes);
    PyMem_Free(r->acks.at); PyMem_Free(r->units.at); PyMem_Free(r->unit_queue.at);
    PyMem_Free(r->hashes.at); PyMem_Free(r->key_offsets.at); PyMem_Free(r->scratch.at);
    return result;
}

#include "follow.h" /* needs what is above */

static PyMethodDef methods[] = {
    {"stage_frames", stage_frames, METH_VARARGS, "Takes consecutive plain send frames; see the top of the source."},
    {"gather", gather, METH_VARARGS, "Records that units point at, from one mapped log file."},
    {"pick", pick, METH_VARARGS, "Records of a filtered pull, from one mapped log file."},
    {"read_pull", read_pull, METH_VARARGS, "The header of a plain pull."},
    {"found_page", found_page, METH_VARARGS, "The answer to a pull, with the records that units point at."},
    {"found_parts", found_parts, METH_VARARGS, "The answer to a pull, with parts of the records that units point at."},
    {"follow", follow, METH_VARARGS, "Walks over the plain records of another broker's log."},
    {"whole_records", whole_records, METH_VARARGS, "How much of a piece of a log is whole records."},
    {"unit_bodies", unit_bodies, METH_VARARGS, "Bodies of plain records that units point at, side by side."},
    {"unit_properties", unit_properties, METH_VARARGS, "Properties of plain records that units point at, side by side."},
    {"unit_places", unit_places, METH_VARARGS, "Where in the log bodies of plain records lie that units point at."},
    {"page_bodies", page_bodies, METH_VARARGS, "Bodies of the plain records of a page, side by side."},
    {"put_index", put_index, METH_VARARGS, "Appends entries to a mapped index file; returns how many slots were first used."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_accel", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__accel(void) {
    prepare_crc();
    next_offset_name = PyUnicode_InternFromString("next_offset");
    return next_offset_name ? PyModule_Create(&module) : NULL;
}
