/* The accelerator: what the broker's append path does per message, in C.
 *
 * Optional. Each function has a plain Python twin that is the reference, and tests compare the two. Everything read here
 * comes from the network: every length is checked against the bytes that are there before it is used, and whatever is not
 * exactly as official clients write it is left to the twin (the function then stops in front of that frame).
 *
 * stage_frames(data, pos, end, topics, settings, position, room_end, store_ms, born_host)
 *     Takes consecutive plain SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE frames with JSON headers from data[pos:end].
 *     topics:   {name: (queues, topic part, hash of "name#", name as str)}
 *     settings: (largest body, store host, CLUSTER pair, host in hex, answer parts 0..2)
 *     Returns None when the first frame is not one of them, else
 *     (new pos, new position, records, answers, [(queue, units)], key hashes, key offsets, [(topic, count, bytes)]).
 * gather(units, map, base, log_end, max_count, max_bytes) -> (records, count)
 *     The records that the first units point at, one after the other, as far as they lie in this mapped log file.
 * put_index(map, entries_at, slots, count, begin_ms, hashes, offsets, times) -> used slots added
 *     Appends entries to a mapped index file; the caller has seen to room, begin_ms and the header.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define MAGIC 0xDAA320A7u
#define FIXED_BYTES 90 /* less the topic part (its length byte counts there), body and properties */
#define MAX_PROPERTIES 32767
#define MAX_QUEUES 64
#define MAX_TOPICS 16
#define UNIT_BYTES 20

/* ---- growing buffers ------------------------------------------------------------------------------------------- */

typedef struct {
    unsigned char *at;
    size_t used, room;
} Buffer;

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

static void put(Buffer *b, const void *bytes, size_t n) {
    memcpy(b->at + b->used, bytes, n);
    b->used += n;
}

static void put_number(Buffer *b, int64_t value) {
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%lld", (long long)value);
    put(b, digits, (size_t)n);
}

static unsigned char *be32(unsigned char *p, uint32_t v) {
    p[0] = v >> 24; p[1] = v >> 16; p[2] = v >> 8; p[3] = v;
    return p + 4;
}

static unsigned char *be64(unsigned char *p, uint64_t v) { return be32(be32(p, v >> 32), (uint32_t)v); }

static uint32_t read32(const unsigned char *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* ---- CRC-32, eight bytes a step ---------------------------------------------------------------------------------- */

static uint32_t crc_table[8][256];

static void make_crc_table(void) {
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t c = n;
        for (int k = 0; k < 8; k++) c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
        crc_table[0][n] = c;
    }
    for (uint32_t n = 0; n < 256; n++)
        for (int t = 1; t < 8; t++)
            crc_table[t][n] = crc_table[0][crc_table[t - 1][n] & 0xFF] ^ (crc_table[t - 1][n] >> 8);
}

static uint32_t crc32_of(const unsigned char *p, size_t n) {
    uint32_t c = 0xFFFFFFFFu;
    for (; n >= 8; n -= 8, p += 8) {
        uint32_t a = c ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        c = crc_table[7][a & 0xFF] ^ crc_table[6][a >> 8 & 0xFF] ^ crc_table[5][a >> 16 & 0xFF] ^ crc_table[4][a >> 24]
            ^ crc_table[3][p[4]] ^ crc_table[2][p[5]] ^ crc_table[1][p[6]] ^ crc_table[0][p[7]];
    }
    for (; n; n--, p++) c = crc_table[0][(c ^ *p) & 0xFF] ^ (c >> 8);
    return ~c;
}

/* ---- Java's String.hashCode, for ASCII ---------------------------------------------------------------------------- */

static uint32_t hash_more(uint32_t h, const unsigned char *p, size_t n) {
    while (n--) h = h * 31 + *p++;
    return h;
}

static uint32_t index_hash(uint32_t h) {
    if (!(h & 0x80000000u)) return h;
    return h == 0x80000000u ? 0 : 0u - h;
}

/* ---- the JSON header ------------------------------------------------------------------------------------------------ */

typedef struct {
    const unsigned char *at;
    size_t n;
    int escaped;
} Text;

typedef struct {
    int64_t code, flag, opaque;
    uint32_t seen; /* bit per letter of extFields */
    Text field[26];
} Header;

/* The string whose opening quote is at *p. 0 when it is not plain ASCII JSON. */
static int read_string(const unsigned char **p, const unsigned char *end, Text *out) {
    const unsigned char *q = *p;
    if (q >= end || *q != '"') return 0;
    out->at = ++q;
    out->escaped = 0;
    while (q < end && *q != '"') {
        if (*q < 0x20 || *q >= 0x80) return 0;
        if (*q == '\\') {
            out->escaped = 1;
            if (++q >= end) return 0;
        }
        q++;
    }
    if (q >= end) return 0;
    out->n = (size_t)(q - out->at);
    *p = q + 1;
    return 1;
}

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

static int is(const Text *t, const char *word, size_t n) { return t->n == n && memcmp(t->at, word, n) == 0; }

static int read_ext(const unsigned char **p, const unsigned char *end, Header *h) {
    const unsigned char *q = *p;
    if (q >= end || *q++ != '{') return 0;
    for (;;) {
        Text key;
        if (!read_string(&q, end, &key) || key.n != 1 || *key.at < 'a' || *key.at > 'n') return 0;
        int letter = *key.at - 'a';
        if (h->seen & 1u << letter) return 0;
        h->seen |= 1u << letter;
        if (q >= end || *q++ != ':' || !read_string(&q, end, &h->field[letter]) || q >= end) return 0;
        if (*q == ',') { q++; continue; }
        if (*q++ != '}') return 0;
        *p = q;
        return 1;
    }
}

static int read_header(const unsigned char *p, const unsigned char *end, Header *h) {
    int ext = 0, code = 0, opaque = 0, flag = 0;
    h->seen = 0;
    h->flag = 0;
    if (p >= end || *p++ != '{') return 0;
    for (;;) {
        Text key, skipped;
        int64_t number;
        if (!read_string(&p, end, &key) || key.escaped || p >= end || *p++ != ':') return 0;
        if (is(&key, "extFields", 9)) {
            if (ext++ || !read_ext(&p, end, h)) return 0;
        } else if (p < end && *p == '"') {
            if (is(&key, "code", 4) || is(&key, "flag", 4) || is(&key, "opaque", 6)) return 0;
            if (!read_string(&p, end, &skipped)) return 0;
        } else {
            if (!read_int(&p, end, &number) || number < INT32_MIN || number > INT32_MAX) return 0;
            if (is(&key, "code", 4)) { if (code++) return 0; h->code = number; }
            else if (is(&key, "opaque", 6)) { if (opaque++) return 0; h->opaque = number; }
            else if (is(&key, "flag", 4)) { if (flag++) return 0; h->flag = number; }
        }
        if (p >= end) return 0;
        if (*p == ',') { p++; continue; }
        return *p == '}' && p + 1 == end && ext && code && opaque;
    }
}

/* Writes the text without its escapes; 0 for an escape that stands for something else than an ASCII character. */
static int unescape(const Text *t, Buffer *out) {
    if (!reserve(out, t->n + 1)) return 0;
    const unsigned char *p = t->at, *end = t->at + t->n;
    unsigned char *o = out->at + out->used;
    while (p < end) {
        if (*p != '\\') { *o++ = *p++; continue; }
        if (++p >= end) return 0;
        unsigned char c = *p++;
        switch (c) {
        case '"': case '\\': case '/': *o++ = c; break;
        case 'b': *o++ = '\b'; break;
        case 'f': *o++ = '\f'; break;
        case 'n': *o++ = '\n'; break;
        case 'r': *o++ = '\r'; break;
        case 't': *o++ = '\t'; break;
        case 'u': {
            if (end - p < 4) return 0;
            unsigned v = 0;
            for (int i = 0; i < 4; i++) {
                unsigned char d = *p++;
                if (d >= '0' && d <= '9') d -= '0';
                else if (d >= 'a' && d <= 'f') d -= 'a' - 10;
                else if (d >= 'A' && d <= 'F') d -= 'A' - 10;
                else return 0;
                v = v << 4 | d;
            }
            if (v >= 0x80) return 0;
            *o++ = (unsigned char)v;
            break;
        }
        default: return 0;
        }
    }
    out->used = (size_t)(o - out->at);
    return 1;
}

/* ---- one call --------------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject *queue; /* borrowed */
    int64_t next;
    int32_t id;
    Py_ssize_t count;
} Queue;

typedef struct {
    PyObject *info; /* borrowed: (queues, topic part, prefix hash, name) */
    const unsigned char *part, *name;
    size_t part_n, name_n;
    uint32_t prefix_hash;
    int64_t count, bytes;
} Topic;

typedef struct {
    /* settings */
    int64_t max_body;
    const unsigned char *store_host, *born_host, *cluster, *host_hex, *ack[3];
    size_t store_n, born_n, cluster_n, hex_n, ack_n[3];
    PyObject *topics, *next_offset_name;
    int64_t room_end, store_ms, position;
    uint32_t host_flags;
    /* results */
    Buffer records, acks, units, unit_queue, hashes, key_offsets, scratch;
    Queue queue[MAX_QUEUES];
    int queues;
    Topic topic[MAX_TOPICS];
    int topics_used;
    /* of the message being looked at */
    size_t properties_at, properties_n; /* in scratch */
    int64_t tags_code;
    int failed; /* a Python error is set */
} Run;

typedef struct {
    size_t records, acks, units, unit_queue, hashes, key_offsets;
    int64_t position;
} Mark;

static const struct { const char *name; size_t n; } special[] = {
    {"DELAY", 5}, {"TRAN_MSG", 8}, {"CLUSTER", 7}, {"TIMER_DELAY_SEC", 15}, {"TIMER_DELAY_MS", 14},
    {"TIMER_DELIVER_MS", 16}, {"TIMER_DEL_UNIQKEY", 17}, {"INNER_MULTI_DISPATCH", 20}, {"MSG_TYPE", 8},
};

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
 * text as it is and `more` behind it. 1 done, 0 not plain, -1 out of memory. */
static int properties(Run *r, const Topic *t, const unsigned char *p, size_t n, int single,
                      const unsigned char *more, size_t more_n) {
    const unsigned char *end = p + n, *id = NULL, *keys = NULL, *tags = NULL;
    size_t id_n = 0, keys_n = 0, tags_n = 0;
    Buffer *out = &r->scratch;
    if (!reserve(out, n + more_n + 2)) return -1;
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
        pair = stop + 1;
    }
    if (!single) {
        while (n && p[n - 1] == 2) n--;
        put(out, p, n);
        if (n && more_n) put(out, "\x02", 1);
    }
    put(out, more, more_n);
    r->properties_n = out->used - r->properties_at;
    if (r->properties_n > MAX_PROPERTIES) return 0;
    r->tags_code = tags_n ? (int64_t)(int32_t)hash_more(0, tags, tags_n) : 0;
    for (size_t k = 0; k < keys_n; k++) if (keys[k] >= 0x80) return 0;
    for (size_t k = 0; k < id_n; k++) if (id[k] >= 0x80) return 0;
    for (size_t k = 0; k < tags_n; k++) if (tags[k] >= 0x80) return 0;
    return add_keys(r, t, id, id_n, keys, keys_n) ? 1 : -1;
}

static Topic *find_topic(Run *r, const Text *name) {
    for (int k = 0; k < r->topics_used; k++)
        if (r->topic[k].name_n == name->n && memcmp(r->topic[k].name, name->at, name->n) == 0) return &r->topic[k];
    if (r->topics_used == MAX_TOPICS || name->escaped) return NULL;
    PyObject *key = PyBytes_FromStringAndSize((const char *)name->at, (Py_ssize_t)name->n);
    if (!key) { r->failed = 1; return NULL; }
    PyObject *info = PyDict_GetItemWithError(r->topics, key);
    Py_DECREF(key);
    if (!info) { r->failed = PyErr_Occurred() != NULL; return NULL; }
    Topic *t = &r->topic[r->topics_used];
    PyObject *part = PyTuple_GET_ITEM(info, 1);
    t->info = info;
    t->part = (const unsigned char *)PyBytes_AS_STRING(part);
    t->part_n = (size_t)PyBytes_GET_SIZE(part);
    t->name = t->part + 1; /* behind its length byte */
    t->name_n = t->part_n - 1;
    t->prefix_hash = (uint32_t)PyLong_AsUnsignedLongMask(PyTuple_GET_ITEM(info, 2));
    t->count = t->bytes = 0;
    r->topics_used++;
    return t;
}

/* Index of the queue's entry; -1 when the call should end here. */
static int find_queue(Run *r, const Topic *t, int64_t id) {
    PyObject *queues = PyTuple_GET_ITEM(t->info, 0);
    if (id < 0 || id >= PyTuple_GET_SIZE(queues)) return -1;
    PyObject *queue = PyTuple_GET_ITEM(queues, (Py_ssize_t)id);
    for (int k = 0; k < r->queues; k++)
        if (r->queue[k].queue == queue) return k;
    if (r->queues == MAX_QUEUES) return -1;
    PyObject *next = PyObject_GetAttr(queue, r->next_offset_name);
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

/* Packs one record; its properties lie in scratch. 1 done, 0 no room in the file, -1 out of memory. */
static int record(Run *r, const Topic *t, int queue_index, const unsigned char *body, size_t body_n, int64_t sys_flag,
                  int64_t flag, int64_t born_ms) {
    Queue *q = &r->queue[queue_index];
    size_t size = FIXED_BYTES + (r->born_n - 8) + (r->store_n - 8) + body_n + t->part_n + r->properties_n;
    if (r->position + (int64_t)size > r->room_end) return 0;
    if (!reserve(&r->records, size) || !reserve(&r->units, UNIT_BYTES) || !reserve(&r->unit_queue, 1)) return -1;
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
    p[0] = r->properties_n >> 8; p[1] = (unsigned char)r->properties_n; p += 2;
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
    static const char hex[] = "0123456789ABCDEF";
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
    put_number(b, h->opaque);
    put(b, r->ack[2], r->ack_n[2]);
    uint32_t header_n = (uint32_t)(b->used - start - 8);
    be32(be32(b->at + start, header_n + 4), header_n);
    return 1;
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

static int one_message(Run *r, const Header *h, Topic *t, int q, const unsigned char *body, size_t body_n,
                       int64_t sys_flag, int64_t flag, int64_t born_ms) {
    const Text *text = &h->field['i' - 'a'];
    static const Text none = {(const unsigned char *)"", 0, 0};
    if (!(h->seen & 1u << ('i' - 'a'))) text = &none;
    r->scratch.used = 0;
    if (!unescape(text, &r->scratch)) return 0;
    size_t n = r->scratch.used;
    /* The stored text is made behind the unescaped one: make the room first, so that it does not move. */
    if (!reserve(&r->scratch, n + r->cluster_n + 4)) return -1;
    int done = properties(r, t, r->scratch.at, n, 1, r->cluster, r->cluster_n);
    if (done == 1) done = record(r, t, q, body, body_n, sys_flag, flag, born_ms);
    if (done == 1) { t->count++; t->bytes += (int64_t)body_n; }
    return done;
}

static int batch_messages(Run *r, const Header *h, Topic *t, int q, const unsigned char *body, size_t body_n,
                          int64_t sys_flag, int64_t born_ms, size_t *messages) {
    const Text *outer = &h->field['i' - 'a'];
    static const Text none = {(const unsigned char *)"", 0, 0};
    if (!(h->seen & 1u << ('i' - 'a'))) outer = &none;
    r->scratch.used = 0;
    if (!reserve(&r->scratch, r->cluster_n + 1)) return -1;
    put(&r->scratch, r->cluster, r->cluster_n);
    if (outer->n) {
        put(&r->scratch, "\x02", 1);
        size_t outer_at = r->scratch.used;
        if (!unescape(outer, &r->scratch)) return 0;
        const unsigned char *o = r->scratch.at + outer_at;
        size_t n = r->scratch.used - outer_at;
        /* A batch that need not wait, or brings what would count for each message, is for the twin; so are odd separators. */
        if (n == 0 || n > 512 || o[0] == 2 || o[n - 1] == 2) return 0;
        for (size_t k = 0; k < n; k++)
            if ((n - k >= 8 && memcmp(o + k, "CLUSTER\x01", 8) == 0) || (n - k >= 6 && memcmp(o + k, "WAIT\x01" "f", 6) == 0)
                || (n - k >= 9 && memcmp(o + k, "UNIQ_KEY\x01", 9) == 0)
                || (n - k >= 5 && (memcmp(o + k, "KEYS\x01", 5) == 0 || memcmp(o + k, "TAGS\x01", 5) == 0)))
                return 0;
    }
    size_t more_n = r->scratch.used, at = 0;
    *messages = 0;
    while (at < body_n) {
        if (body_n - at < 22) return 0;
        const unsigned char *item = body + at;
        uint32_t total = read32(item), item_body = read32(item + 16);
        if (item_body > body_n - at - 22) return 0;
        size_t properties_n = (size_t)item[20 + item_body] << 8 | item[21 + item_body];
        if (properties_n > body_n - at - 22 - item_body || total != 22 + item_body + properties_n) return 0;
        const unsigned char *text = item + 22 + item_body;
        for (size_t k = 0; k + 6 <= properties_n; k++)
            if (text[k] == 'D' && memcmp(text + k, "DELAY\x01", 6) == 0) return 0;
        r->scratch.used = more_n;
        if (!reserve(&r->scratch, properties_n + more_n + 2)) return -1;
        int done = properties(r, t, text, properties_n, 0, r->scratch.at, more_n);
        if (done == 1) done = record(r, t, q, item + 20, item_body, sys_flag, (int32_t)read32(item + 12), born_ms);
        if (done != 1) return done;
        at += total;
        ++*messages;
    }
    if (!*messages) return 0;
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
    if (!read_header(p + 4, p + 4 + header_n, &h)) return 0;
    const uint32_t needed = 0xFF; /* a to h */
    if ((h.seen & needed) != needed) return 0;
    int64_t queue_id, sys_flag, flag, born_ms, other;
    const Text *f = h.field;
    if (!text_int(&f[3], INT32_MIN, INT32_MAX, &other) || !text_int(&f[4], 0, INT32_MAX, &queue_id)
        || !text_int(&f[5], 0, 0x703, &sys_flag) || !text_int(&f[7], INT32_MIN, INT32_MAX, &flag)
        || !text_int(&f[6], INT64_MIN, INT64_MAX, &born_ms) || sys_flag & ~(int64_t)0x703)
        return 0;
    if (h.seen & 1u << 9 && !is(&f[9], "0", 1)) return 0;
    if (h.seen & 1u << 10 && !is(&f[10], "false", 5) && !is(&f[10], "true", 4)) return 0;
    if (h.seen & 1u << 11 && !text_int(&f[11], INT32_MIN, INT32_MAX, &other)) return 0;
    if (h.seen & 1u << 12 && !is(&f[12], "false", 5) && !(batch && is(&f[12], "true", 4))) return 0;
    const unsigned char *body = p + 4 + header_n;
    size_t body_n = n - 4 - header_n, messages = 1;
    if ((int64_t)body_n > r->max_body || (batch && !body_n)) return 0;
    Topic *t = find_topic(r, &f[1]);
    if (!t) return r->failed ? -1 : 0;
    int q = find_queue(r, t, queue_id);
    if (q < 0) return r->failed ? -1 : 0;
    Mark before = mark(r);
    int64_t count = t->count, bytes = t->bytes, queue_offset = r->queue[q].next + r->queue[q].count;
    int done = batch ? batch_messages(r, &h, t, q, body, body_n, sys_flag, born_ms, &messages)
                     : one_message(r, &h, t, q, body, body_n, sys_flag, flag, born_ms);
    if (done == 1 && !(h.flag & 2) && !answer(r, &h, queue_id, queue_offset, messages)) done = -1;
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
    if (!PyBytes_Check(item)) { PyErr_SetString(PyExc_TypeError, "settings hold bytes from item 1 on"); return 0; }
    *at = (const unsigned char *)PyBytes_AS_STRING(item);
    *n = (size_t)PyBytes_GET_SIZE(item);
    return 1;
}

static PyObject *next_offset_name;

static PyObject *stage_frames(PyObject *self, PyObject *args) {
    PyObject *data, *topics, *settings, *born;
    Py_ssize_t pos, end;
    long long position, room_end, store_ms;
    if (!PyArg_ParseTuple(args, "SnnO!O!LLLS", &data, &pos, &end, &PyDict_Type, &topics, &PyTuple_Type, &settings,
                          &position, &room_end, &store_ms, &born))
        return NULL;
    if (pos < 0 || end > PyBytes_GET_SIZE(data) || PyTuple_GET_SIZE(settings) != 7) {
        PyErr_SetString(PyExc_ValueError, "pos, end or settings are out of range");
        return NULL;
    }
    Run *r = PyMem_Calloc(1, sizeof *r);
    if (!r) return PyErr_NoMemory();
    PyObject *result = NULL;
    r->max_body = PyLong_AsLongLong(PyTuple_GET_ITEM(settings, 0));
    r->topics = topics;
    r->next_offset_name = next_offset_name;
    r->position = position;
    r->room_end = room_end;
    r->store_ms = store_ms;
    r->born_host = (const unsigned char *)PyBytes_AS_STRING(born);
    r->born_n = (size_t)PyBytes_GET_SIZE(born);
    if (PyErr_Occurred() || !take_bytes(settings, 1, &r->store_host, &r->store_n)
        || !take_bytes(settings, 2, &r->cluster, &r->cluster_n) || !take_bytes(settings, 3, &r->host_hex, &r->hex_n)
        || !take_bytes(settings, 4, &r->ack[0], &r->ack_n[0]) || !take_bytes(settings, 5, &r->ack[1], &r->ack_n[1])
        || !take_bytes(settings, 6, &r->ack[2], &r->ack_n[2]))
        goto out;
    if ((r->born_n != 8 && r->born_n != 20) || (r->store_n != 8 && r->store_n != 20)) {
        PyErr_SetString(PyExc_ValueError, "a host has 8 or 20 bytes");
        goto out;
    }
    r->host_flags = (r->born_n == 20 ? 0x10u : 0) | (r->store_n == 20 ? 0x20u : 0);
    const unsigned char *bytes = (const unsigned char *)PyBytes_AS_STRING(data);
    Py_ssize_t at = pos;
    while (end - at >= 4) {
        uint32_t size = read32(bytes + at);
        if (size < 4 || (Py_ssize_t)size > end - at - 4) break;
        int done = frame(r, bytes + at + 4, size);
        if (done < 0) goto out;
        if (!done) break;
        at += 4 + (Py_ssize_t)size;
    }
    if (at == pos) {
        result = Py_NewRef(Py_None);
        goto out;
    }
    PyObject *records = bytes_of(&r->records), *acks = bytes_of(&r->acks), *units = queue_units(r),
             *hashes = bytes_of(&r->hashes), *offsets = bytes_of(&r->key_offsets), *counts = topic_counts(r);
    if (records && acks && units && hashes && offsets && counts)
        result = Py_BuildValue("nLOOOOOO", at, (long long)r->position, records, acks, units, hashes, offsets, counts);
    Py_XDECREF(records); Py_XDECREF(acks); Py_XDECREF(units); Py_XDECREF(hashes); Py_XDECREF(offsets); Py_XDECREF(counts);
out:
    PyMem_Free(r->records.at); PyMem_Free(r->acks.at); PyMem_Free(r->units.at); PyMem_Free(r->unit_queue.at);
    PyMem_Free(r->hashes.at); PyMem_Free(r->key_offsets.at); PyMem_Free(r->scratch.at);
    PyMem_Free(r);
    return result;
}

static uint64_t read64(const unsigned char *p) { return (uint64_t)read32(p) << 32 | read32(p + 4); }

static PyObject *gather(PyObject *self, PyObject *args) {
    PyObject *units, *result = NULL;
    Py_buffer map;
    long long base, log_end;
    Py_ssize_t max_count, max_bytes, count = 0, total = 0;
    if (!PyArg_ParseTuple(args, "Sy*LLnn", &units, &map, &base, &log_end, &max_count, &max_bytes)) return NULL;
    const unsigned char *first = (const unsigned char *)PyBytes_AS_STRING(units), *u = first;
    Py_ssize_t most = PyBytes_GET_SIZE(units) / UNIT_BYTES;
    if (max_count < most) most = max_count;
    for (; count < most; count++, u += UNIT_BYTES) {
        int64_t offset = (int64_t)read64(u), size = (int32_t)read32(u + 8);
        if (offset < base || size <= 0 || offset - base > map.len - size || offset + size > log_end) break;
        if (count && total + size > max_bytes) break;
        total += (Py_ssize_t)size;
    }
    PyObject *records = PyBytes_FromStringAndSize(NULL, total);
    if (records) {
        unsigned char *to = (unsigned char *)PyBytes_AS_STRING(records);
        const unsigned char *from = map.buf;
        u = first;
        for (Py_ssize_t k = 0; k < count; k++, u += UNIT_BYTES) {
            size_t size = read32(u + 8);
            memcpy(to, from + ((int64_t)read64(u) - base), size);
            to += size;
        }
        result = Py_BuildValue("(Nn)", records, count);
    }
    PyBuffer_Release(&map);
    return result;
}

static PyObject *put_index(PyObject *self, PyObject *args) {
    Py_buffer map, hashes, offsets, times;
    long long entries_at, slots, count, begin_ms;
    if (!PyArg_ParseTuple(args, "w*LLLLy*y*y*", &map, &entries_at, &slots, &count, &begin_ms, &hashes, &offsets, &times))
        return NULL;
    Py_ssize_t rows = hashes.len / 8;
    long long used = 0;
    int bad = hashes.len != rows * 8 || offsets.len != rows * 8 || times.len != rows * 8 || slots < 1 || count < 1
              || entries_at < 40 + slots * 4 || entries_at + (count + rows) * 20 > map.len;
    if (!bad) {
        unsigned char *base = map.buf;
        const int64_t *hash = hashes.buf, *offset = offsets.buf, *ms = times.buf;
        for (Py_ssize_t k = 0; k < rows; k++, count++) {
            if (hash[k] < 0) { bad = 1; break; }
            unsigned char *slot = base + 40 + hash[k] % slots * 4;
            int32_t previous = (int32_t)read32(slot);
            if (previous <= 0 || previous > count) { previous = 0; used++; }
            int64_t seconds = begin_ms > 0 ? (ms[k] - begin_ms) / 1000 : 0;
            if (ms[k] < begin_ms || seconds < 0) seconds = 0;
            if (seconds > INT32_MAX) seconds = INT32_MAX;
            unsigned char *entry = base + entries_at + count * 20;
            be32(be32(be64(be32(entry, (uint32_t)hash[k]), (uint64_t)offset[k]), (uint32_t)seconds), (uint32_t)previous);
            be32(slot, (uint32_t)count);
        }
    }
    PyBuffer_Release(&map); PyBuffer_Release(&hashes); PyBuffer_Release(&offsets); PyBuffer_Release(&times);
    if (bad) { PyErr_SetString(PyExc_ValueError, "the columns do not fit the index file"); return NULL; }
    return PyLong_FromLongLong(used);
}

static PyMethodDef methods[] = {
    {"stage_frames", stage_frames, METH_VARARGS, "Takes consecutive plain send frames; see the top of the source."},
    {"gather", gather, METH_VARARGS, "Records that units point at, from one mapped log file."},
    {"put_index", put_index, METH_VARARGS, "Appends entries to a mapped index file; returns how many slots were first used."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_accel", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__accel(void) {
    make_crc_table();
    next_offset_name = PyUnicode_InternFromString("next_offset");
    return next_offset_name ? PyModule_Create(&module) : NULL;
}
