/* Bags of rows, summed: the forward pass of an embedding whose gradient sparse.c takes.

   Others may write to the lists of rows and of bags meanwhile: each number is read once, and copied before it is checked, so
   that no row is followed which the table has not. */

#include "kernels.h"
#include "threads.h"

#include <stddef.h>
#include <stdlib.h>

enum {
    LISTED = 512, /* rows that are copied at a time, unless one bag has more */
    SOON = 32,    /* rows after them, at most, that are fetched ahead */
};

enum { SUMMED, MISSING, NO_MEMORY };

typedef struct {
    const arithmetic *stored, *real;
    const void *table;
    int64_t rows, columns, row; /* `row`: from one row to the next */
    const int64_t *index, *offsets;
    int64_t length; /* of the index */
    void *out;
} work;

/* Where bags begin, from bag b on, and where the last one ends; whether that lies in the index and never falls. */
static int read_starts(const work *w, int64_t b, int64_t bags, int64_t *starts)
{
    int known = 1;
    for (int64_t k = 0, before = 0; k <= bags; before = starts[k++]) {
        starts[k] = read_once(w->offsets + b + k);
        known &= before <= starts[k] && starts[k] <= w->length;
    }
    return known;
}

/* How many of the bags have few rows together; at least one. */
static int64_t bags_at_a_time(const int64_t *starts, int64_t bags)
{
    int64_t count = 1;
    while (count < bags && starts[count + 1] - starts[0] <= LISTED) count++;
    return count;
}

/* Rows from `start` on, `count` of them; whether the table has them. Those after them, up to `end`, may be any. */
static int read_rows(const work *w, int64_t start, int64_t count, int64_t end, uint64_t *rows)
{
    const int64_t *index = w->index + start;
    uint64_t last = 0;
    for (int64_t k = 0; k < count; k++) {
        rows[k] = (uint64_t)read_once(index + k);
        last = rows[k] > last ? rows[k] : last;
    }
    for (int64_t k = count; k < end; k++) rows[k] = (uint64_t)read_once(index + k);
    return !count || last < (uint64_t)w->rows;
}

static int sum(const work *w, int64_t b, int64_t bags, const int64_t *starts)
{
    float wide[TILE]; /* where sums are rounded they are here first */
    uint64_t few[LISTED + SOON];
    int64_t places[ROWS + 1], count = starts[bags] - starts[0], end = least(count + SOON, w->length - starts[0]);
    int64_t longest = w->stored == w->real ? w->columns : least(w->columns, TILE);
    uint64_t *rows = end <= LISTED + SOON ? few : malloc((size_t)end * sizeof *rows);
    if (!rows) return NO_MEMORY;
    for (int64_t k = 0; k <= bags; k++) places[k] = starts[k] - starts[0];
    int known = read_rows(w, starts[0], count, end, rows);
    for (int64_t j = 0, n; n = least(longest, w->columns - j), known && j < w->columns; j += n) {
        const void *table = at(w->table, j, w->stored->size);
        void *to = at(w->out, b * w->columns + j, w->stored->size), *sums = w->stored == w->real ? to : wide;
        w->stored->gather(table, w->row, 1, rows, end, places, bags, n, sums);
        if (sums == wide) w->stored->store(wide, to, w->columns, 1, NULL, bags, n, 0, 0, 0);
    }
    if (rows != few) free(rows);
    return known ? SUMMED : MISSING;
}

/* Row b of `out` is the sum of the table's rows that `index` lists from offsets[b] on. Returns SUMMED, or what was wrong:
   a row that is not in the table or a bag that is not in the index, or no memory. Some sums are missing then. */
EXPORT int64_t matrix_adagrad_sum_bags(const void *table, int64_t rows, int64_t columns, int64_t row, int64_t dtype,
                                       const int64_t *index, int64_t length, const int64_t *offsets, int64_t bags,
                                       void *out, int64_t threads)
{
    const work w = {arithmetic_of(dtype), arithmetic_of(dtype == F64 ? F64 : F32),
                    table, rows, columns, row, index, offsets, length, out};
    int64_t result = SUMMED, batch = most(1, least(ROWS, TILE / most(1, columns)));
    if (length * columns <= SERIAL) threads = 1;
    PARALLEL_FOR
    for (int64_t b = 0; b < bags; b += batch) {
        int64_t starts[ROWS + 1], count = least(batch, bags - b);
        int here = read_starts(&w, b, count, starts) ? SUMMED : MISSING;
        for (int64_t k = 0, n; here == SUMMED && k < count; k += n) {
            n = bags_at_a_time(starts + k, count - k);
            here = sum(&w, b + k, n, starts + k);
        }
        if (here != SUMMED) tell(&result, here);
    }
    return result;
}
