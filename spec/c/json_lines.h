/* json_lines.h: fields of flat JSON objects, one a line, as the reference files of the specs hold them. */
#ifndef SPEC_JSON_LINES_H
#define SPEC_JSON_LINES_H

#include "../../core/lists.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- lines of JSON: the value of a field of a flat object ---- */

static const char *json_field(const char *line, const char *name) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":", name);
    const char *at = strstr(line, quoted); /* the names do not occur in texts: quotes are escaped */
    if (!at) return NULL;
    at += strlen(quoted);
    while (*at == ' ') at++;
    return at;
}

static bool json_bool(const char *line, const char *name) {
    const char *at = json_field(line, name);
    return at && *at == 't';
}

static void json_ids(const char *at, llm_ids *out) {
    out->n = 0;
    for (at++; *at && *at != ']';) {
        char *end;
        long id = strtol(at, &end, 10);
        if (end == at)
            at++;
        else
            llm_ids_push(out, (int32_t)id, NULL), at = end;
    }
}

static void put_code(llm_bytes *out, uint32_t c) {
    char s[4];
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    if (n == 1) s[0] = (char)c;
    for (size_t i = n - 1; n > 1 && i > 0; i--, c >>= 6) s[i] = (char)(0x80 | (c & 63));
    if (n > 1) s[0] = (char)((0xF00u >> n & 0xF0) | c);
    llm_bytes_append(out, s, n, NULL);
}

static void json_string(const char *at, llm_bytes *out) {
    out->n = 0;
    for (at++; *at && *at != '"'; at++) {
        if (*at != '\\') {
            llm_bytes_append(out, at, 1, NULL);
            continue;
        }
        const char *plain = "nrtbf\"\\/", *made = "\n\r\t\b\f\"\\/";
        const char *found = strchr(plain, *++at);
        if (found) {
            llm_bytes_append(out, made + (found - plain), 1, NULL);
            continue;
        }
        unsigned code = 0, low = 0;
        sscanf(at + 1, "%4x", &code);
        at += 4;
        if (code >= 0xD800 && code < 0xDC00 && sscanf(at + 1, "\\u%4x", &low) == 1) {
            code = 0x10000 + ((code & 0x3FF) << 10) + (low & 0x3FF);
            at += 6;
        }
        put_code(out, code);
    }
}

/* ---- cases of a file ---- */

#endif
