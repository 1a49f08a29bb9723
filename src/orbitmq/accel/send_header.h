/* The header of a send request: its extFields are called by letters. */
#ifndef ORBITMQ_SEND_HEADER_H
#define ORBITMQ_SEND_HEADER_H

#include "command_json.h"

#define LETTERS 14 /* a to n */

typedef struct {
    Command command;
    uint32_t seen; /* bit per letter of extFields */
    Text field[LETTERS];
} Header;

static int has(const Header *h, char letter) { return (h->seen >> (letter - 'a') & 1) != 0; }

static const Text *field(const Header *h, char letter) { return &h->field[letter - 'a']; }

static int read_send_ext(const unsigned char **p, const unsigned char *end, void *into) {
    Header *h = into;
    const unsigned char *q = *p;
    if (q >= end || *q++ != '{') return 0;
    for (;;) {
        Text key;
        if (!read_string(&q, end, &key) || key.n != 1 || *key.at < 'a' || *key.at >= 'a' + LETTERS) return 0;
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
    h->seen = 0;
    return read_command(p, end, &h->command, read_send_ext, h);
}

#endif
