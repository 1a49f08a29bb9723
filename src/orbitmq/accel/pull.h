/* The two ends of a plain pull: its header, and the answer with what was found. What happens in between, the checks, the
 * limits and where the units come from, is Python's (broker.pull, store.reading). */
#ifndef ORBITMQ_PULL_H
#define ORBITMQ_PULL_H

#include "command_json.h"
#include "store_loops.h"
#include "write_page.h"

#define PULL_KEY_BYTES 1024
#define PULL_NUMBERS 5 /* of the answer */

enum {
    GROUP, TOPIC, QUEUE_ID, SUBSCRIPTION, EXPRESSION_TYPE, /* these make the key */
    QUEUE_OFFSET, MAX_MSG_NUMS, SYS_FLAG, COMMIT_OFFSET, SUSPEND_MS, SUB_VERSION, PAGE_BYTES, PAGE_PARTS,
    PULL_FIELDS
};

#define NAME(text) {text, sizeof text - 1}
static const struct { const char *text; size_t n; } pull_names[PULL_FIELDS] = {
    NAME("consumerGroup"), NAME("topic"), NAME("queueId"), NAME("subscription"), NAME("expressionType"),
    NAME("queueOffset"), NAME("maxMsgNums"), NAME("sysFlag"), NAME("commitOffset"), NAME("suspendTimeoutMillis"),
    NAME("subVersion"), NAME("pageBytes"), NAME("pageParts"),
};
#define OPTIONAL (1u << SUBSCRIPTION | 1u << EXPRESSION_TYPE | 1u << PAGE_BYTES | 1u << PAGE_PARTS)

typedef struct {
    uint32_t seen;
    Text field[PULL_FIELDS];
} PullExt;

static int read_pull_ext(const unsigned char **p, const unsigned char *end, void *into) {
    PullExt *ext = into;
    const unsigned char *q = *p;
    if (q >= end || *q++ != '{') return 0;
    for (;;) {
        Text key, value;
        if (!read_string(&q, end, &key) || key.escaped || q >= end || *q++ != ':') return 0;
        if (!read_string(&q, end, &value) || q >= end) return 0;
        int number = 0;
        while (number < PULL_FIELDS && (pull_names[number].n != key.n || memcmp(pull_names[number].text, key.at, key.n)))
            number++;
        if (number < PULL_FIELDS) { /* other names are of newer clients, and not for us */
            if (ext->seen & 1u << number || value.escaped) return 0;
            ext->seen |= 1u << number;
            ext->field[number] = value;
        }
        if (*q == ',') { q++; continue; }
        if (*q++ != '}') return 0;
        *p = q;
        return 1;
    }
}

/* What tells one consumer's pulls of a queue from all others: texts with a zero behind each, 1 for one that is absent. */
static Py_ssize_t pull_key(const PullExt *ext, unsigned char *key) {
    size_t used = 0;
    for (int number = GROUP; number <= EXPRESSION_TYPE; number++) {
        const Text *text = &ext->field[number];
        if (ext->seen >> number & 1) {
            if (text->n > PULL_KEY_BYTES - 2 - used) return -1;
            memcpy(key + used, text->at, text->n);
            used += text->n;
        } else {
            if (used > PULL_KEY_BYTES - 2) return -1;
            key[used++] = 1;
        }
        key[used++] = 0;
        if (used > PULL_KEY_BYTES - 2) return -1;
    }
    return (Py_ssize_t)used;
}

static PyObject *read_pull(PyObject *self, PyObject *args) {
    PyObject *data;
    Py_ssize_t start, stop;
    if (!PyArg_ParseTuple(args, "Snn", &data, &start, &stop)) return NULL;
    if (start < 0 || stop < start || stop > PyBytes_GET_SIZE(data)) Py_RETURN_NONE;
    const unsigned char *p = (const unsigned char *)PyBytes_AS_STRING(data);
    Command command;
    PullExt ext = {0};
    unsigned char key[PULL_KEY_BYTES];
    if (!read_command(p + start, p + stop, &command, read_pull_ext, &ext)) Py_RETURN_NONE;
    /* An answer that looks like a request, one-way, or incomplete: not for us. */
    if (command.flag & 3 || (ext.seen | OPTIONAL) != (1u << PULL_FIELDS) - 1) Py_RETURN_NONE;
    int64_t queue_id, offset, most, flags, commit, suspend, version, page = 0, parts = -1;
    const Text *f = ext.field;
    if (!text_int(&f[QUEUE_ID], INT32_MIN, INT32_MAX, &queue_id) || !text_int(&f[QUEUE_OFFSET], INT64_MIN, INT64_MAX, &offset)
        || !text_int(&f[MAX_MSG_NUMS], INT32_MIN, INT32_MAX, &most) || !text_int(&f[SYS_FLAG], INT32_MIN, INT32_MAX, &flags)
        || !text_int(&f[COMMIT_OFFSET], INT64_MIN, INT64_MAX, &commit)
        || !text_int(&f[SUSPEND_MS], INT64_MIN, INT64_MAX, &suspend)
        || !text_int(&f[SUB_VERSION], INT64_MIN, INT64_MAX, &version)
        || (ext.seen >> PAGE_BYTES & 1 && !text_int(&f[PAGE_BYTES], INT32_MIN, INT32_MAX, &page))
        || (ext.seen >> PAGE_PARTS & 1 && !text_int(&f[PAGE_PARTS], INT32_MIN, INT32_MAX, &parts)))
        Py_RETURN_NONE;
    Py_ssize_t key_n = pull_key(&ext, key);
    if (key_n < 0) Py_RETURN_NONE;
    return Py_BuildValue("(y#LLLLLLLLL)", key, key_n, (long long)command.opaque, (long long)offset, (long long)most,
                         (long long)flags, (long long)commit, (long long)suspend, (long long)version, (long long)page,
                         (long long)parts);
}

/* The header of an answer, from the texts around its numbers. 0 with an error set. */
static int put_answer_header(Buffer *head, PyObject *texts, const long long numbers[PULL_NUMBERS]) {
    if (PyTuple_GET_SIZE(texts) != PULL_NUMBERS + 1) {
        PyErr_SetString(PyExc_ValueError, "an answer has six texts");
        return 0;
    }
    for (int number = 0; number <= PULL_NUMBERS; number++) {
        PyObject *text = PyTuple_GET_ITEM(texts, number);
        if (!PyBytes_Check(text)) {
            PyErr_SetString(PyExc_TypeError, "an answer's texts are bytes");
            return 0;
        }
        if (!reserve(head, (size_t)PyBytes_GET_SIZE(text) + 20)) {
            PyErr_NoMemory();
            return 0;
        }
        put(head, PyBytes_AS_STRING(text), (size_t)PyBytes_GET_SIZE(text));
        if (number < PULL_NUMBERS) put_number(head, numbers[number]);
    }
    return 1;
}

static PyObject *found_page(PyObject *self, PyObject *args) {
    PyObject *units, *described, *texts, *frame, *result = NULL;
    Py_buffer map;
    long long base, log_end, low, high, offset, suggested, opaque;
    Py_ssize_t max_count, max_bytes, total;
    int fd = -1;
    Own own;
    Buffer head = {0};
    if (!PyArg_ParseTuple(args, "Sy*LLnnOO!LLLLL|i", &units, &map, &base, &log_end, &max_count, &max_bytes, &described,
                          &PyTuple_Type, &texts, &high, &low, &offset, &suggested, &opaque, &fd))
        return NULL;
    if (!take_own(&own, described)) goto out;
    Py_ssize_t count = fitting(units, &map, base, log_end, max_count, max_bytes, &own, &total);
    long long next = (long long)((unsigned long long)offset + (unsigned long long)count);
    if (!put_answer_header(&head, texts, (long long[]){high, low, next, suggested, opaque})) goto out;
    unsigned char lengths[8];
    be32(be32(lengths, (uint32_t)(4 + head.used + (size_t)total)), (uint32_t)head.used);
    struct iovec part[BEFORE_RUNS + MOST_RUNS] = {{lengths, sizeof lengths}, {head.at, head.used}};
    Parts all = {part, BEFORE_RUNS};
    if (fd >= 0 && total >= DIRECT_LEAST && add_runs(&all, units, count, &map, base)
        && total / (all.parts - BEFORE_RUNS) >= RUN_LEAST) {
        frame = rest_of(&all, write_now(fd, &all));
    } else if ((frame = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(sizeof lengths + head.used) + total))) {
        unsigned char *to = (unsigned char *)PyBytes_AS_STRING(frame);
        memcpy(to, lengths, sizeof lengths);
        memcpy(to + sizeof lengths, head.at, head.used);
        copy_records(to + sizeof lengths + head.used, units, count, &map, base);
    }
    if (frame) result = Py_BuildValue("(Nnn)", frame, count, total);
out:
    PyMem_Free(head.at);
    PyBuffer_Release(&map);
    return result;
}

#endif
