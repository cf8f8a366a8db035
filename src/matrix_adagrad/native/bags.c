/* Bags of rows, summed: the forward pass of an embedding whose gradient sparse.c takes. */

#include "kernels.h"

#include <stddef.h>

static int64_t largest(const int64_t *index, int64_t start, int64_t end) /* what is negative is larger than all */
{
    uint64_t found = 0;
    for (int64_t k = start; k < end; k++) found = (uint64_t)index[k] > found ? (uint64_t)index[k] : found;
    return found > INT64_MAX ? INT64_MAX : (int64_t)found;
}

/* Row b of `out` is the sum of the table's rows that `index` lists from offsets[b] on. Returns whether the table has all of
   these rows; if not, some sums are missing. */
EXPORT int64_t matrix_adagrad_sum_bags(const void *table, int64_t rows, int64_t columns, int64_t row, int64_t dtype,
                                       const int64_t *index, int64_t length, const int64_t *offsets, int64_t bags,
                                       void *out, int64_t threads)
{
    const arithmetic *stored = arithmetic_of(dtype), *real = arithmetic_of(dtype == F64 ? F64 : F32);
    int64_t found = 1, batch = most(1, least(ROWS, TILE / most(1, columns)));
    int64_t longest = stored == real ? columns : least(columns, TILE); /* where sums are rounded they are in a tile first */
    if (length * columns <= SERIAL) threads = 1;
#pragma omp parallel for num_threads((int)threads) schedule(dynamic) reduction(&& : found)
    for (int64_t b = 0; b < bags; b += batch) {
        double wide[TILE];
        int64_t count = least(batch, bags - b), start = offsets[b], end = offsets[b + count];
        int known = start == end || largest(index, start, end) < rows;
        found = found && known;
        for (int64_t j = 0, n; n = least(longest, columns - j), known && j < columns; j += n) {
            void *to = at(out, b * columns + j, stored->size), *sums = stored == real ? to : wide;
            stored->gather(at(table, j, stored->size), row, 1, (const uint64_t *)index, length, offsets + b, count, n, sums);
            if (stored != real) stored->store(wide, to, columns, 1, NULL, count, n, 0, 0, 0);
        }
    }
    return found;
}
