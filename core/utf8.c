/* utf8.c: owns nothing. */
#include "utf8.h"

#include <stdio.h>
#include <string.h>

size_t utf8_length(const char *text, size_t n, uint32_t *code) {
    if (n == 0) return 0;
    const unsigned char *s = (const unsigned char *)text;
    uint32_t c = s[0];
    size_t length = c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
    if (length == 0 || length > n) return 0;
    if (length > 1) c &= 0xFFu >> (length + 1);
    for (size_t i = 1; i < length; i++) {
        if ((s[i] & 0xC0) != 0x80) return 0;
        c = c << 6 | (s[i] & 0x3F);
    }
    if ((length == 3 && (c < 0x800 || (c >= 0xD800 && c < 0xE000))) ||
        (length == 4 && (c < 0x10000 || c > 0x10FFFF)))
        return 0;
    if (code) *code = c;
    return length;
}

size_t utf8_write(char out[4], uint32_t code) {
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    size_t length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = length - 1; i > 0; i--, code >>= 6) out[i] = (char)(0x80 | (code & 0x3F));
    out[0] = (char)((0xF00u >> length & 0xF0) | code);
    return length;
}

/* Appends what of text[0, n) fits into at most `room` bytes of out; returns the bytes written and,
 * in *used, how much of the text they show. */
static size_t show_some(char *out, size_t room, const char *text, size_t n, size_t *used) {
    size_t written = 0, i = 0;
    while (i < n) {
        uint32_t code = 0;
        size_t length = utf8_length(text + i, n - i, &code);
        char piece[8];
        size_t piece_bytes = length;
        if (length == 0 || code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x2028 ||
            code == 0x2029) {
            length = length ? length : 1;
            const char *format = code < 0x80 ? "\\x%02X" : "\\u%04X";
            unsigned number = code < 0x80 ? (unsigned char)text[i] : code;
            piece_bytes = (size_t)snprintf(piece, sizeof piece, format, number);
        } else {
            memcpy(piece, text + i, length);
        }
        if (written + piece_bytes > room) break;
        memcpy(out + written, piece, piece_bytes);
        written += piece_bytes;
        i += length;
    }
    *used = i;
    return written;
}

utf8_shown utf8_show(const char *text, size_t n) {
    utf8_shown shown;
    size_t used, room = sizeof shown.text - 1;
    size_t written = show_some(shown.text, room, text, n, &used);
    if (used < n) { /* keep the beginning and the end */
        const size_t half = room / 2 - 4, tail = half / 4;
        written = show_some(shown.text, half, text, n, &used);
        memcpy(shown.text + written, "…", 3);
        written += 3;
        size_t from = n - tail; /* n > tail: all of it did not fit */
        while (from < n && ((unsigned char)text[from] & 0xC0) == 0x80) from++;
        written += show_some(shown.text + written, room - written, text + from, n - from, &used);
    }
    shown.text[written] = 0;
    return shown;
}
