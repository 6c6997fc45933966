/* test_random.c: random blocks are finite numbers of the wanted size, in every format. */
#include "check.h"
#include "random.h"

#include <math.h>
#include <string.h>

enum { N = 64 * 256 };

static void check_format(const kern_format *f) {
    static unsigned char blocks[N * 4 + 1], again[N * 4 + 1], other[N * 4 + 1];
    static float values[N];
    const size_t bytes = kern_format_bytes(f, N);
    blocks[bytes] = 77;
    kern_random_blocks(f, 1, blocks, N);
    kern_random_blocks(f, 1, again, N);
    kern_random_blocks(f, 2, other, N);
    CHECK(blocks[bytes] == 77, "%s: writes beyond its blocks", f->name);
    CHECK(memcmp(blocks, again, bytes) == 0, "%s: a seed makes other blocks", f->name);
    CHECK(memcmp(blocks, other, bytes) != 0, "%s: two seeds make the same blocks", f->name);
    f->dequantise(blocks, values, N);
    double sum = 0, squares = 0, most = 0;
    for (int i = 0; i < N; i++) {
        sum += values[i];
        squares += (double)values[i] * values[i];
        if (!(fabs((double)values[i]) <= most)) most = fabs((double)values[i]);
    }
    const double rms = sqrt(squares / N);
    CHECK(fabs(rms / KERN_RANDOM_RMS - 1) < 0.1, "%s: root mean square %g", f->name, rms);
    CHECK(fabs(sum / N) < 0.15 * rms, "%s: mean %g of %g", f->name, sum / N, rms);
    CHECK(most < 0.3, "%s: largest %g", f->name, most);
}

int main(void) {
    for (const kern_format *f = kern_formats; f->name; f++) check_format(f);
    return check_end();
}
