/* utf8.h: UTF-8, character by character, and names from files made fit to be shown. */
#ifndef LLM_CORE_UTF8_H
#define LLM_CORE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* The length of the character that begins the text (1…4), or 0 if that is no valid UTF-8 (overlong,
 * a surrogate, beyond U+10FFFF, cut short) or n is 0. *code, if not NULL, is its code point. */
size_t utf8_length(const char *text, size_t n, uint32_t *code);

/* Writes a code point (≤ U+10FFFF, no surrogate); returns its length. */
size_t utf8_write(char out[4], uint32_t code);

/* Text that fits into a one-line message: control characters and invalid bytes become \xNN, what
 * is long is cut in the middle. */
typedef struct utf8_shown {
    char text[200];
} utf8_shown;
utf8_shown utf8_show(const char *text, size_t n);

#endif
