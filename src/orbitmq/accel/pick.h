/* The records of a filtered pull: by the tag hash of the unit, and by what is known of the properties that count. */
#ifndef ORBITMQ_PICK_H
#define ORBITMQ_PICK_H

#include "bytes.h"
#include "own_record.h"
#include "store_loops.h"

#define PICK_DONE 0      /* a limit is reached, or all units are seen */
#define PICK_UNDECIDED 1 /* the caller has to look at this record and to remember what it found under the key */
#define PICK_ODD 2       /* not in this file, damaged, or of a rarer form: the twin knows what to do */

/* The property text of a record with IPv4 hosts; 0 when it has another form, or lengths that do not fit. */
static int property_text(const unsigned char *record, size_t size, const unsigned char **text, size_t *text_n) {
    if (size < RECORD_HEAD + 3 || read32(record + 4) != RECORD_MAGIC || record[39] & 0x30) return 0;
    size_t body_n = read32(record + RECORD_HEAD - 4);
    if (body_n > size - RECORD_HEAD - 3) return 0;
    size_t at = RECORD_HEAD + body_n;
    size_t topic_n = record[at];
    if (topic_n > size - at - 3) return 0;
    at += 1 + topic_n;
    size_t n = (size_t)record[at] << 8 | record[at + 1];
    at += 2;
    if (n != size - at) return 0;
    *text = record + at;
    *text_n = n;
    return 1;
}

/* All pairs whose name is one of these, as they stand: the same pairs always give the same verdict. */
static int pairs_that_count(Buffer *key, const unsigned char *text, size_t n, PyObject *names) {
    key->used = 0;
    Py_ssize_t count = PyTuple_GET_SIZE(names);
    while (n) {
        const unsigned char *mark = memchr(text, 2, n);
        size_t pair_n = mark ? (size_t)(mark - text) : n;
        for (Py_ssize_t k = 0; k < count; k++) {
            PyObject *name = PyTuple_GET_ITEM(names, k);
            size_t name_n = (size_t)PyBytes_GET_SIZE(name);
            if (pair_n > name_n && text[name_n] == 1 && !memcmp(text, PyBytes_AS_STRING(name), name_n)) {
                if (!reserve(key, pair_n + 1)) return 0;
                put(key, text, pair_n);
                key->at[key->used++] = 2;
                break;
            }
        }
        text += pair_n;
        n -= pair_n;
        if (n) { text++; n--; }
    }
    return 1;
}

static int has_code(const unsigned char *codes, Py_ssize_t n, const unsigned char *code) {
    for (Py_ssize_t k = 0; k + 8 <= n; k += 8)
        if (!memcmp(codes + k, code, 8)) return 1;
    return 0;
}

static PyObject *pick(PyObject *self, PyObject *args) {
    PyObject *units, *codes, *names, *verdicts, *described = NULL, *result = NULL, *unknown = NULL;
    Py_buffer map;
    long long base, log_end;
    Py_ssize_t from, max_count, max_bytes, count, total;
    if (!PyArg_ParseTuple(args, "Sny*LLnnnnOOO!|O", &units, &from, &map, &base, &log_end, &max_count, &max_bytes, &count,
                          &total, &codes, &names, &PyDict_Type, &verdicts, &described))
        return NULL;
    Own own;
    Py_ssize_t most = PyBytes_GET_SIZE(units) / UNIT_BYTES, scanned = from, found = 0;
    int by_code = codes != Py_None, by_name = names != Py_None, state = PICK_DONE;
    Buffer chosen = {0}, key = {0};
    size_t bytes = 0;
    if (!take_own(&own, described)) goto out;
    if ((by_code && !PyBytes_Check(codes)) || (by_name && !PyTuple_Check(names)) || from < 0 || base < 0 || log_end < 0) {
        PyErr_SetString(PyExc_ValueError, "codes are bytes, names a tuple of bytes, places not negative");
        goto out;
    }
    for (Py_ssize_t k = 0; by_name && k < PyTuple_GET_SIZE(names); k++)
        if (!PyBytes_Check(PyTuple_GET_ITEM(names, k))) {
            PyErr_SetString(PyExc_ValueError, "names are bytes");
            goto out;
        }
    const unsigned char *log = map.buf;
    for (; scanned < most; scanned++) {
        const unsigned char *u = (const unsigned char *)PyBytes_AS_STRING(units) + scanned * UNIT_BYTES;
        int64_t offset = (int64_t)read64(u), size = (int32_t)read32(u + 8);
        if (count >= max_count || (count && size > max_bytes - total)) break;
        if (by_code && !has_code((const unsigned char *)PyBytes_AS_STRING(codes), PyBytes_GET_SIZE(codes), u + 12)) continue;
        if (offset < base || size <= 0 || offset - base > map.len - size || size > log_end - offset) { state = PICK_ODD; break; }
        if (!is_own(&own, scanned, log + (offset - base), (size_t)size, offset)) { state = PICK_ODD; break; }
        if (by_name) {
            const unsigned char *text;
            size_t text_n;
            if (!property_text(log + (offset - base), (size_t)size, &text, &text_n)) { state = PICK_ODD; break; }
            if (!pairs_that_count(&key, text, text_n, names)) { PyErr_NoMemory(); goto out; }
            PyObject *known = PyBytes_FromStringAndSize((const char *)key.at, (Py_ssize_t)key.used);
            if (!known) goto out;
            PyObject *verdict = PyDict_GetItemWithError(verdicts, known);
            if (!verdict) {
                if (PyErr_Occurred()) { Py_DECREF(known); goto out; }
                unknown = known;
                state = PICK_UNDECIDED;
                break;
            }
            Py_DECREF(known);
            if (verdict != Py_True) continue;
        }
        if (!reserve(&chosen, UNIT_BYTES)) { PyErr_NoMemory(); goto out; }
        put(&chosen, u, UNIT_BYTES);
        bytes += (size_t)size;
        total += (Py_ssize_t)size;
        count++;
        found++;
    }
    PyObject *records = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes);
    if (!records) goto out;
    unsigned char *to = (unsigned char *)PyBytes_AS_STRING(records);
    for (Py_ssize_t k = 0; k < found; k++) {
        const unsigned char *u = chosen.at + k * UNIT_BYTES;
        size_t size = read32(u + 8);
        memcpy(to, log + ((int64_t)read64(u) - base), size);
        to += size;
    }
    result = Py_BuildValue("(NnniO)", records, found, scanned, state, unknown ? unknown : Py_None);
out:
    Py_XDECREF(unknown);
    PyMem_Free(chosen.at);
    PyMem_Free(key.at);
    PyBuffer_Release(&map);
    return result;
}

#endif
