/* Records on their way from a mapped log file to a socket, without a copy of ours in between. */
#ifndef ORBITMQ_WRITE_PAGE_H
#define ORBITMQ_WRITE_PAGE_H

#include <sys/socket.h>
#include <sys/uio.h>

#include "store_loops.h"

#define DIRECT_LEAST (64 * 1024) /* less is cheaper joined with whatever else is answered */
#define RUN_LEAST 4096           /* bytes that lie side by side, on the mean */
#define MOST_RUNS 250
#define BEFORE_RUNS 2  /* the lengths, the header */
#define AT_ONCE 1024   /* parts that the kernel takes with one call */

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* Python ignores the signal */
#endif

typedef struct {
    struct iovec *part;
    int parts;
} Parts;

/* The records that `count` units point at, neighbours as one. 0 if they lie too scattered. */
static int add_runs(Parts *all, PyObject *units, Py_ssize_t count, const Py_buffer *map, long long base) {
    const unsigned char *u = (const unsigned char *)PyBytes_AS_STRING(units);
    unsigned char *end = NULL;
    for (; count; count--, u += UNIT_BYTES) {
        unsigned char *p = (unsigned char *)map->buf + ((int64_t)read64(u) - base);
        size_t size = read32(u + 8);
        if (p == end) {
            all->part[all->parts - 1].iov_len += size;
        } else {
            if (all->parts == BEFORE_RUNS + MOST_RUNS) return 0;
            all->part[all->parts++] = (struct iovec){p, size};
        }
        end = p + size;
    }
    return 1;
}

/* How much the socket takes now. Whatever is wrong with it, its owner will see when it writes the rest. */
static size_t write_now(int fd, const Parts *all) {
    size_t taken = 0;
    Py_BEGIN_ALLOW_THREADS
    for (int first = 0; first < all->parts; first += AT_ONCE) {
        int last = all->parts - first < AT_ONCE ? all->parts : first + AT_ONCE;
        size_t size = 0;
        for (int number = first; number < last; number++) size += all->part[number].iov_len;
        struct msghdr message = {0};
        message.msg_iov = all->part + first;
        message.msg_iovlen = (size_t)(last - first);
        ssize_t sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent > 0) taken += (size_t)sent;
        if (sent < 0 || (size_t)sent < size) break;
    }
    Py_END_ALLOW_THREADS
    return taken;
}

/* All of it behind the first `sent` bytes. */
static PyObject *rest_of(const Parts *all, size_t sent) {
    size_t size = 0;
    for (int number = 0; number < all->parts; number++) size += all->part[number].iov_len;
    PyObject *rest = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(size - sent));
    if (!rest) return NULL;
    char *to = PyBytes_AS_STRING(rest);
    for (int number = 0; number < all->parts; number++) {
        size_t n = all->part[number].iov_len, skipped = sent < n ? sent : n;
        memcpy(to, (const char *)all->part[number].iov_base + skipped, n - skipped);
        to += n - skipped;
        sent -= skipped;
    }
    return rest;
}

#endif
