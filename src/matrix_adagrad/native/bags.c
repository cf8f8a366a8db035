/* Sums of bags of rows: the forward pass of embeddings whose gradient sparse.c takes.

   Other threads may write to the index and the offsets meanwhile. Each number is read once and copied before it is
   checked, so that no row outside of the table is accessed. */

#include "kernels.h"
#include "threads.h"

#include <stddef.h>
#include <stdlib.h>

enum {
    BATCH_INDICES = 512, /* indices that are copied at a time, unless a single bag has more */
    PIECE_BAGS = 64,     /* bags of a feature that a thread takes at a time */
};

enum { SUMMED = 0, OUT_OF_RANGE = 1, NO_MEMORY = -1 };

/* The bags of a feature. */
typedef struct {
    const arithmetic *stored_ops, *real_ops;
    const feature *table;
    const int64_t *index, *offsets; /* offsets into the index */
    int64_t index_count;
    const void *weights; /* of each index, in REALs; or NULL */
    void *out;
    int64_t out_stride;
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
    const int64_t *index = entry_if_any(w->index, start, sizeof *index);
    uint64_t max_row = 0;
    for (int64_t k = 0; k < count; k++) {
        rows[k] = (uint64_t)read_once(index + k);
        max_row = rows[k] > max_row ? rows[k] : max_row;
    }
    for (int64_t k = count; k < listed; k++) rows[k] = (uint64_t)read_once(index + k);
    return !count || max_row < (uint64_t)w->table->rows;
}

/* With weights, entry k takes value k: the row value_rows[k], and its weight. */
static void number_values(int64_t listed, uint64_t *rows, uint32_t *value_rows)
{
    for (int64_t k = 0; k < listed; k++) value_rows[k] = (uint32_t)rows[k], rows[k] = (uint64_t)k;
}

static int sum_bags(const bag_sum *w, int64_t b, int64_t bags, const int64_t *starts)
{
    float real_sums[TILE_ENTRIES]; /* sums that are rounded to a narrower dtype afterwards */
    uint64_t on_stack[BATCH_INDICES + PREFETCH_ROWS];
    uint32_t values_on_stack[BATCH_INDICES + PREFETCH_ROWS];
    int64_t segment_starts[TILE_ROWS + 1], count = starts[bags] - starts[0], columns = w->table->columns;
    int64_t real_bytes = w->real_ops->real_bytes, entry_bytes = w->stored_ops->entry_bytes;
    int64_t listed = w->weights ? count : min(count + PREFETCH_ROWS, w->index_count - starts[0]);
    int is_narrow = w->stored_ops != w->real_ops;
    int64_t max_columns = is_narrow ? min(columns, TILE_ENTRIES) : columns;
    int is_short = listed <= BATCH_INDICES + PREFETCH_ROWS;
    uint64_t *rows = is_short ? on_stack : malloc((size_t)listed * (sizeof(uint64_t) + sizeof(uint32_t)));
    uint32_t *value_rows = is_short ? values_on_stack : (uint32_t *)(rows + listed);
    if (!rows) return NO_MEMORY;
    for (int64_t k = 0; k <= bags; k++) segment_starts[k] = starts[k] - starts[0];
    int is_valid = read_rows(w, starts[0], count, listed, rows);
    if (w->weights && is_valid) number_values(listed, rows, value_rows);
    for (int64_t j = 0, n; n = min(max_columns, columns - j), is_valid && j < columns; j += n) {
        void *to = entry_at(w->out, b * w->out_stride + w->table->column + j, entry_bytes);
        void *sums = is_narrow ? real_sums : to;
        const gather g = {
            .values = entry_at(w->table->table, j, entry_bytes),
            .row_stride = w->table->row_stride,
            .column_stride = 1,
            .order = rows,
            .order_count = listed,
            .value_rows = w->weights ? value_rows : NULL,
            .weights = entry_if_any(w->weights, starts[0], real_bytes),
            .starts = segment_starts,
            .rows = bags,
            .columns = n,
            .to_stride = is_narrow ? n : w->out_stride,
        };
        w->stored_ops->gather_sums(&g, sums);
        for (int64_t k = 0; w->table->is_mean && k < bags; k++)
            w->real_ops->divide(entry_at(sums, k * g.to_stride, real_bytes), max(1, starts[k + 1] - starts[k]), n);
        if (is_narrow) w->stored_ops->store(real_sums, to, w->out_stride, 1, NULL, bags, n, 0, 0, 0);
    }
    if (rows != on_stack) free(rows);
    return is_valid ? SUMMED : OUT_OF_RANGE;
}

static int sum_all(const bag_sum *w, int64_t b, int64_t bags)
{
    int64_t starts[TILE_ROWS + 1];
    int status = read_starts(w, b, bags, starts) ? SUMMED : OUT_OF_RANGE;
    for (int64_t k = 0, n; status == SUMMED && k < bags; k += n) {
        n = bags_per_batch(starts + k, bags - k);
        status = sum_bags(w, b + k, n, starts + k);
    }
    return status;
}

/* `bags` bags of each feature: those of feature f start at offsets[f · bags]. Row b of a feature's columns of `out` is
   the sum, or the mean, of the rows that `index` lists from offsets[f · bags + b] on, times their weights if there are
   any. Returns 0; or 1 + f for a feature with an index that is not a row of its table, or with a bag that is not within
   the index; or −1 without memory. Some sums are missing then. */
EXPORT int64_t matrix_adagrad_sum_bags(const feature *features, int64_t feature_count, int64_t dtype,
                                       const int64_t *index, int64_t index_count, const void *weights,
                                       const int64_t *offsets, int64_t bags, void *out, int64_t out_stride,
                                       int64_t threads)
{
    int64_t result = 0, pieces = ceil_div(bags, PIECE_BAGS), columns = 1;
    for (int64_t f = 0; f < feature_count; f++) columns = max(columns, features[f].columns);
    if (index_count * columns <= SERIAL_ENTRIES) threads = 1;
    PARALLEL_FOR(k, feature_count * pieces, {
        int64_t f = k / pieces, first = k % pieces * PIECE_BAGS, end = min(bags, first + PIECE_BAGS);
        const bag_sum w = {
            .stored_ops = arithmetic_of(dtype, NO_MOMENTUM),
            .real_ops = real_arithmetic_of(dtype, NO_MOMENTUM),
            .table = &features[f],
            .index = index,
            .offsets = offsets + f * bags,
            .index_count = index_count,
            .weights = weights,
            .out = out,
            .out_stride = out_stride,
        };
        int64_t batch = copied_rows(features[f].columns);
        int status = SUMMED;
        for (int64_t b = first; status == SUMMED && b < end; b += batch) status = sum_all(&w, b, min(batch, end - b));
        if (status != SUMMED) report(&result, status == NO_MEMORY ? -1 : 1 + f);
    });
    return result;
}

/* Whether bags `first` to `end` of a feature ascend and have rows of its table alone. */
static int are_bags(const feature *table, const int64_t *index, int64_t index_count, const int64_t *offsets,
                    int64_t first, int64_t end)
{
    int64_t start = read_once(offsets + first), before = start, is_valid = start >= 0;
    for (int64_t b = first; b < end; b++) {
        int64_t next = read_once(offsets + b + 1);
        is_valid &= before <= next;
        before = next;
    }
    if (!is_valid || before > index_count) return 0;
    uint64_t max_row = 0;
    for (int64_t k = start; k < before; k++) {
        uint64_t row = (uint64_t)read_once(index + k);
        max_row = row > max_row ? row : max_row;
    }
    return start == before || max_row < (uint64_t)table->rows;
}

/* Returns 0; or 1 + f for a feature that matrix_adagrad_sum_bags would refuse. */
EXPORT int64_t matrix_adagrad_check_bags(const feature *features, int64_t feature_count, const int64_t *index,
                                         int64_t index_count, const int64_t *offsets, int64_t bags, int64_t threads)
{
    int64_t result = 0;
    if (index_count + feature_count * bags <= SERIAL_ENTRIES) threads = 1;
    PARALLEL_FOR(k, feature_count * ceil_div(bags, TILE_ENTRIES), {
        int64_t f = k % feature_count, first = k / feature_count * TILE_ENTRIES, end = min(bags, first + TILE_ENTRIES);
        if (!are_bags(&features[f], index, index_count, offsets + f * bags, first, end)) report(&result, 1 + f);
    });
    return result;
}
