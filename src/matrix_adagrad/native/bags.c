/* Sums of bags of rows: the forward pass of an embedding whose gradient sparse.c takes.

   Other threads may write to the index and the offsets meanwhile. Each number is read once and copied before it is
   checked, so that no row outside of the table is accessed. */

#include "kernels.h"
#include "threads.h"

#include <stddef.h>
#include <stdlib.h>

enum {
    BATCH_INDICES = 512, /* indices that are copied at a time, unless a single bag has more */
};

enum { SUMMED, OUT_OF_RANGE, NO_MEMORY };

typedef struct {
    const arithmetic *stored_ops, *real_ops;
    const void *table;
    int64_t rows, columns, row_stride; /* row_stride in entries */
    const int64_t *index, *offsets;
    int64_t index_count;
    void *out;
} bag_sum;

/* Copies the offsets of some bags from bag b on, and that of their end; returns whether they ascend and lie within the
   index. */
static int read_starts(const bag_sum *w, int64_t b, int64_t bags, int64_t *starts)
{
    int is_valid = 1;
    for (int64_t k = 0, before = 0; k <= bags; before = starts[k++]) {
        starts[k] = read_once(w->offsets + b + k);
        is_valid &= before <= starts[k] && starts[k] <= w->index_count;
    }
    return is_valid;
}

/* How many of the bags have at most BATCH_INDICES indices in all; at least one. */
static int64_t bags_per_batch(const int64_t *starts, int64_t bags)
{
    int64_t count = 1;
    while (count < bags && starts[count + 1] - starts[0] <= BATCH_INDICES) count++;
    return count;
}

/* Copies `listed` indices from `start` on; returns whether the first `count` are rows of the table. The others are only
   prefetched. */
static int read_rows(const bag_sum *w, int64_t start, int64_t count, int64_t listed, uint64_t *rows)
{
    const int64_t *index = w->index + start;
    uint64_t max_row = 0;
    for (int64_t k = 0; k < count; k++) {
        rows[k] = (uint64_t)read_once(index + k);
        max_row = rows[k] > max_row ? rows[k] : max_row;
    }
    for (int64_t k = count; k < listed; k++) rows[k] = (uint64_t)read_once(index + k);
    return !count || max_row < (uint64_t)w->rows;
}

static int sum_bags(const bag_sum *w, int64_t b, int64_t bags, const int64_t *starts)
{
    float real_sums[TILE_ENTRIES]; /* sums that are rounded to a narrower dtype afterwards */
    uint64_t on_stack[BATCH_INDICES + PREFETCH_ROWS];
    int64_t segment_starts[TILE_ROWS + 1], count = starts[bags] - starts[0];
    int64_t listed = min(count + PREFETCH_ROWS, w->index_count - starts[0]);
    int64_t max_columns = w->stored_ops == w->real_ops ? w->columns : min(w->columns, TILE_ENTRIES);
    uint64_t *rows = listed <= BATCH_INDICES + PREFETCH_ROWS ? on_stack : malloc((size_t)listed * sizeof *rows);
    if (!rows) return NO_MEMORY;
    for (int64_t k = 0; k <= bags; k++) segment_starts[k] = starts[k] - starts[0];
    int is_valid = read_rows(w, starts[0], count, listed, rows);
    for (int64_t j = 0, n; n = min(max_columns, w->columns - j), is_valid && j < w->columns; j += n) {
        const void *table = entry_at(w->table, j, w->stored_ops->entry_bytes);
        void *to = entry_at(w->out, b * w->columns + j, w->stored_ops->entry_bytes);
        void *sums = w->stored_ops == w->real_ops ? to : real_sums;
        w->stored_ops->gather_sums(table, w->row_stride, 1, rows, listed, segment_starts, bags, n, sums);
        if (sums == real_sums) w->stored_ops->store(real_sums, to, w->columns, 1, NULL, bags, n, 0, 0, 0);
    }
    if (rows != on_stack) free(rows);
    return is_valid ? SUMMED : OUT_OF_RANGE;
}

/* Row b of `out` is the sum of the table's rows that `index` lists from offsets[b] on. Returns SUMMED; or OUT_OF_RANGE,
   for an index that is not a row of the table or a bag that is not within the index; or NO_MEMORY. Some sums are
   missing then. */
EXPORT int64_t matrix_adagrad_sum_bags(const void *table, int64_t rows, int64_t columns, int64_t row_stride,
                                       int64_t dtype, const int64_t *index, int64_t index_count, const int64_t *offsets,
                                       int64_t bags, void *out, int64_t threads)
{
    const bag_sum w = {
        .stored_ops = arithmetic_of(dtype, NO_MOMENTUM),
        .real_ops = real_arithmetic_of(dtype, NO_MOMENTUM),
        .table = table,
        .rows = rows,
        .columns = columns,
        .row_stride = row_stride,
        .index = index,
        .offsets = offsets,
        .index_count = index_count,
        .out = out,
    };
    int64_t result = SUMMED, batch = copied_rows(columns);
    if (index_count * columns <= SERIAL_ENTRIES) threads = 1;
    PARALLEL_FOR_DYNAMIC
    for (int64_t b = 0; b < bags; b += batch) {
        int64_t starts[TILE_ROWS + 1], count = min(batch, bags - b);
        int status = read_starts(&w, b, count, starts) ? SUMMED : OUT_OF_RANGE;
        for (int64_t k = 0, n; status == SUMMED && k < count; k += n) {
            n = bags_per_batch(starts + k, count - k);
            status = sum_bags(&w, b + k, n, starts + k);
        }
        if (status != SUMMED) report(&result, status);
    }
    return result;
}
