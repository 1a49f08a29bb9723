/* CRC-32 as in zlib: by tables, eight bytes a step; on x86-64 processors that multiply polynomials, 64 bytes a step. */
#ifndef ORBITMQ_CRC32_H
#define ORBITMQ_CRC32_H

#include <stddef.h>
#include <stdint.h>

static uint32_t crc_table[8][256];

static uint32_t crc_by_tables(uint32_t c, const unsigned char *p, size_t n) {
    for (; n >= 8; n -= 8, p += 8) {
        uint32_t a = c ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        c = crc_table[7][a & 0xFF] ^ crc_table[6][a >> 8 & 0xFF] ^ crc_table[5][a >> 16 & 0xFF] ^ crc_table[4][a >> 24]
            ^ crc_table[3][p[4]] ^ crc_table[2][p[5]] ^ crc_table[1][p[6]] ^ crc_table[0][p[7]];
    }
    for (; n; n--, p++) c = crc_table[0][(c ^ *p) & 0xFF] ^ (c >> 8);
    return c;
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define CAN_FOLD __attribute__((target("pclmul")))
#define LANES 4

static int folds;

/* 16 bytes moved forward by the distance that `powers` stand for: other bytes with the same remainder. */
CAN_FOLD static __m128i moved(__m128i bytes, __m128i powers) {
    return _mm_xor_si128(_mm_clmulepi64_si128(bytes, powers, 0x00), _mm_clmulepi64_si128(bytes, powers, 0x11));
}

static __m128i load16(const unsigned char *p) { return _mm_loadu_si128((const __m128i *)p); }

/* For 64 bytes or more. What is left after folding are 16 bytes with the checksum of all: these go through the tables. */
CAN_FOLD static uint32_t crc_folded(uint32_t c, const unsigned char *p, size_t n) {
    /* Powers of x, modulo the polynomial, for 64 and for 16 bytes (Intel, "Fast CRC Computation Using PCLMULQDQ"). */
    const __m128i by_64 = _mm_set_epi64x(0x01C6E41596, 0x0154442BD4), by_16 = _mm_set_epi64x(0x00CCAA009E, 0x01751997D0);
    __m128i lane[LANES];
    unsigned char rest[16];
    for (int k = 0; k < LANES; k++) lane[k] = load16(p + 16 * k);
    lane[0] = _mm_xor_si128(lane[0], _mm_cvtsi32_si128((int)c));
    for (p += 64, n -= 64; n >= 64; p += 64, n -= 64)
        for (int k = 0; k < LANES; k++) lane[k] = _mm_xor_si128(moved(lane[k], by_64), load16(p + 16 * k));
    for (int k = 1; k < LANES; k++) lane[k] = _mm_xor_si128(moved(lane[k - 1], by_16), lane[k]);
    for (; n >= 16; p += 16, n -= 16) lane[LANES - 1] = _mm_xor_si128(moved(lane[LANES - 1], by_16), load16(p));
    _mm_storeu_si128((__m128i *)rest, lane[LANES - 1]);
    return crc_by_tables(crc_by_tables(0, rest, sizeof rest), p, n);
}
#endif

static uint32_t crc32_of(const unsigned char *p, size_t n) {
#ifdef CAN_FOLD
    if (folds && n >= 64) return ~crc_folded(0xFFFFFFFFu, p, n);
#endif
    return ~crc_by_tables(0xFFFFFFFFu, p, n);
}

/* Once, before anything else here. */
static void prepare_crc(void) {
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t c = n;
        for (int k = 0; k < 8; k++) c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
        crc_table[0][n] = c;
    }
    for (uint32_t n = 0; n < 256; n++)
        for (int t = 1; t < 8; t++)
            crc_table[t][n] = crc_table[0][crc_table[t - 1][n] & 0xFF] ^ (crc_table[t - 1][n] >> 8);
#ifdef CAN_FOLD
    __builtin_cpu_init();
    folds = __builtin_cpu_supports("pclmul") != 0;
#endif
}

#endif
