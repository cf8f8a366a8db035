/* The step of `step/sparse.py`: gradients that list some rows of a table, in any order and with repetitions.

   The entries are sorted by row, the entries of each row are summed, and the touched rows of the table are updated: the
   cost depends on the gradient, not on the table. */

#include "step.h"
#include "threads.h"

#include <string.h>

/* --------------------------------------------------------------------------------------------------------- sorting */

enum {
    DIGIT_BITS = 11,
    BUCKETS = 1 << DIGIT_BITS,
    SERIAL_SORT_ENTRIES = 1 << 12, /* up to this size a single thread sorts faster than several */
    SPAN_ENTRIES = 1 << 11,        /* entries, roughly, that a thread takes at a time */
    TABLES_PER_THREAD = 4,         /* tables so small that each thread gets so many are stepped side by side */
};

static int bits_of(int64_t n)
{
    int bits = 0;
    while (n >> bits) bits++;
    return bits;
}

/* One pass of a radix sort. It is stable, so that the result does not depend on the number of threads. */
static void sort_by_digit(const uint64_t *from, uint64_t *to, int64_t n, int shift, int digit_bits, int64_t *counts,
                          int64_t threads)
{
    int64_t share = ceil_div(n, threads), mask = ((int64_t)1 << digit_bits) - 1;
    PARALLEL_FOR(c, threads, {
        memset(counts + c * BUCKETS, 0, (size_t)(mask + 1) * sizeof *counts);
        for (int64_t k = min(n, c * share); k < min(n, (c + 1) * share); k++)
            counts[c * BUCKETS + (int64_t)(from[k] >> shift & (uint64_t)mask)]++;
    });
    int64_t total = 0;
    for (int64_t b = 0; b <= mask; b++)
        for (int64_t c = 0; c < threads; c++) {
            int64_t count = counts[c * BUCKETS + b];
            counts[c * BUCKETS + b] = total;
            total += count;
        }
    PARALLEL_FOR(c, threads, {
        for (int64_t k = min(n, c * share); k < min(n, (c + 1) * share); k++)
            to[counts[c * BUCKETS + (int64_t)(from[k] >> shift & (uint64_t)mask)]++] = from[k];
    });
}

static int64_t table_row(uint64_t entry) { return (int64_t)(entry >> 32); }

/* From one offset to another. It wraps around, since others may have written to them. */
static int64_t distance(int64_t from, int64_t to) { return (int64_t)((uint64_t)to - (uint64_t)from); }

/* Writes the bag of each entry; returns whether the offsets ascend from `offset` on and cover all entries. */
static int assign_bags(const tensor *t, uint64_t *entries, int64_t threads)
{
    int64_t share = ceil_div(t->bags, threads), is_invalid = 0;
    PARALLEL_FOR(c, threads, {
        int64_t b = min(t->bags, c * share), last = min(t->bags, b + share);
        int64_t k = distance(t->offset, read_once(t->offsets + b)), end = k;
        int is_valid = k >= 0 && (b || k == 0);
        for (; is_valid && b < last; b++) {
            end = distance(t->offset, read_once(t->offsets + b + 1));
            is_valid = k <= end && end <= t->nnz;
            for (; is_valid && k < end; k++) entries[k] = (uint64_t)b;
        }
        if (!is_valid || (b == t->bags && end != t->nnz)) report(&is_invalid, 1);
    });
    return !is_invalid;
}

enum { SORTED, UNSORTED, REFUSED };

/* The entries of a table's gradient, row << 32 | value, where the value is the row of the gradient that it takes: the
   entry's bag if there are bags, else its place in the index. With weights it is the place, and bag_of has the bags. */
typedef struct {
    uint64_t *entries;
    uint32_t *bag_of; /* NULL without weights */
} entry_list;

/* Whoever else writes to the index, each row is read once; unless all lie in the table, the gradient is refused. */
static int read_range(const tensor *t, int64_t start, int64_t end, const entry_list *list)
{
    const int64_t *index = t->index;
    uint64_t max_row = 0, max_bag = 0, previous = 0, descends = 0, *entries = list->entries;
    int by_bags = t->offsets != NULL;
    for (int64_t k = start; k < end; k++) {
        uint64_t row = (uint64_t)read_once(index + k), value = (uint64_t)k;
        if (by_bags) value = entries[k], max_bag = value > max_bag ? value : max_bag;
        if (list->bag_of) list->bag_of[k] = (uint32_t)value, value = (uint64_t)k;
        max_row = row > max_row ? row : max_row;
        descends |= row - previous; /* its sign bit */
        entries[k] = row << 32 | value;
        previous = row;
    }
    int is_valid = start == end || (max_row < (uint64_t)t->outer && (!by_bags || max_bag < (uint64_t)t->bags));
    return !is_valid ? REFUSED : (int64_t)descends < 0 ? UNSORTED : SORTED;
}

static int read_entries(const tensor *t, const entry_list *list, int64_t threads)
{
    int64_t n = t->nnz, share = ceil_div(n, threads), is_invalid = 0, descends = 0;
    const uint64_t *entries = list->entries;
    if (t->offsets && !assign_bags(t, list->entries, threads)) return REFUSED;
    PARALLEL_FOR(c, threads, {
        int order = read_range(t, min(n, c * share), min(n, (c + 1) * share), list);
        if (order == REFUSED) report(&is_invalid, 1);
        if (order == UNSORTED) report(&descends, 1);
    });
    for (int64_t k = share; k < n; k += share) descends |= table_row(entries[k - 1]) > table_row(entries[k]);
    return is_invalid ? REFUSED : descends ? UNSORTED : SORTED;
}

/* Sorts the entries by row; returns which of the two arrays holds them. */
static const uint64_t *sort(const tensor *t, uint64_t *entries, uint64_t *sorted_entries, int64_t *counts,
                            int64_t threads)
{
    int bits = bits_of(t->outer - 1), passes = (int)ceil_div(bits, DIGIT_BITS);
    int digit_bits = passes ? (int)ceil_div(bits, passes) : 0;
    int64_t sorters = t->nnz < SERIAL_SORT_ENTRIES ? 1 : threads;
    for (int p = 0; p < passes; p++) {
        sort_by_digit(entries, sorted_entries, t->nnz, 32 + p * digit_bits, digit_bits, counts, sorters);
        uint64_t *sorted = sorted_entries;
        sorted_entries = entries, entries = sorted;
    }
    return entries;
}

/* ---------------------------------------------------------------------------------------------------- touched rows */

/* For callers who go on with these rows, such as projections: they need not sort again. */
static void hand_out_rows(const tensor *t, const uint64_t *order)
{
    int64_t count = 0, *touched = t->touched;
    if (!touched) return;
    for (int64_t k = 0; k < t->nnz; k++)
        if (k == 0 || table_row(order[k]) != touched[count]) touched[++count] = table_row(order[k]);
    touched[0] = count;
}

/* Some touched rows, each once; those of batch row k are order[starts[k]] to order[starts[k + 1] - 1]. */
typedef struct {
    int64_t count, rows[TILE_ROWS], starts[TILE_ROWS + 1];
} row_batch;

/* Walks through the batches of a range of entries. The next batch is prefetched while the current one is worked on. */
typedef struct {
    const work *w;
    int64_t end;
    int current;
    row_batch batches[2];
} batch_walk;

static void prefetch_rows(const array *a, const row_batch *batch, int64_t columns, int64_t entry_bytes)
{
    for (int64_t k = 0; a->data && k < batch->count; k++)
        prefetch_row(entry_at(a->data, batch->rows[k] * a->outer, entry_bytes), columns * entry_bytes);
}

/* Collects the next batch, from entry k on. */
static void read_batch(const batch_walk *walk, int64_t k, row_batch *next)
{
    const work *w = walk->w;
    const tensor *t = w->t;
    next->count = 0;
    while (k < walk->end && next->count < w->tile_rows) {
        int64_t row = table_row(w->order[k]);
        next->rows[next->count] = row, next->starts[next->count++] = k;
        while (k < walk->end && table_row(w->order[k]) == row) k++;
    }
    next->starts[next->count] = k;
    prefetch_rows(&t->x, next, t->inner, w->stored_ops->entry_bytes);
    prefetch_rows(&t->average, next, t->inner, w->ops->real_bytes);
    if (t->kind == PER_ENTRY || t->kind == PER_OUTER || t->kind == PER_BOTH)
        prefetch_rows(&t->statistic, next, t->kind == PER_ENTRY ? t->inner : 1, w->ops->real_bytes);
}

/* The first entry from k on that starts a row: entries of a row belong to the range in which the row starts. By
   bisection, for a row may have many entries. */
static int64_t next_row_start(const work *w, int64_t k)
{
    if (k == 0 || k == w->t->nnz) return k;
    int64_t row = table_row(w->order[k - 1]), end = w->t->nnz;
    while (k < end) {
        int64_t middle = k + (end - k) / 2;
        if (table_row(w->order[middle]) == row) k = middle + 1;
        else end = middle;
    }
    return k;
}

static batch_walk begin_walk(const work *w, int64_t from, int64_t to)
{
    batch_walk walk = {.w = w, .end = next_row_start(w, to)};
    read_batch(&walk, next_row_start(w, from), &walk.batches[0]);
    return walk;
}

/* The rows of the next tile, and whether there is one. */
static int next_tile(batch_walk *walk, span *at)
{
    const row_batch *batch = &walk->batches[walk->current];
    if (!batch->count) return 0;
    *at = (span){.rows = batch->count, .columns = walk->w->t->inner, .row_index = batch->rows, .starts = batch->starts};
    read_batch(walk, batch->starts[batch->count], &walk->batches[walk->current = !walk->current]);
    return 1;
}

/* ---------------------------------------------------------------------------------------------------------- tables */

/* A scale per row or per entry: rows are independent, and each is read and moved in one pass. */
static void step_rows(const work *w, int64_t threads)
{
    PARALLEL_FOR(s, ceil_div(w->t->nnz, SPAN_ENTRIES), {
        int64_t k = s * SPAN_ENTRIES;
        double squares[TILE_ROWS], scales[TILE_ROWS];
        tile_buffers buf = buffers_of_thread(w);
        span at;
        for (batch_walk walk = begin_walk(w, k, min(w->t->nnz, k + SPAN_ENTRIES)); next_tile(&walk, &at);) {
            tile_view tile;
            open_tile(w, &at, READ | MOVE, &buf, &tile);
            if (w->t->kind == PER_ENTRY) w->ops->step_entries(&tile, w->s);
            else {
                w->ops->read_rows(&tile, w->s, squares);
                w->ops->compute_scales(w->s, w->t->statistic.data, at.row_index, squares, scales, at.rows);
                w->ops->move_rows(&tile, w->s, scales);
            }
            close_tile(w, &tile, &at, READ | MOVE);
        }
    });
}

/* Scales that need column sums: per column, for the whole, or from rows and columns. Chunks of the gradient have column
   sums of their own, which are added in order. */
static void step_table(const work *w, int64_t threads, char *sums, int64_t chunks)
{
    const tensor *t = w->t;
    int64_t real_bytes = w->ops->real_bytes, width = t->inner, share = ceil_div(t->nnz, chunks);
    memset(sums, 0, (size_t)(chunks * width * real_bytes));
    PARALLEL_FOR(c, chunks, {
        double row_numbers[TILE_ROWS];
        tile_buffers buf = buffers_of_thread(w);
        span at;
        for (batch_walk walk = begin_walk(w, min(t->nnz, c * share), min(t->nnz, (c + 1) * share));
             next_tile(&walk, &at);) {
            tile_view tile;
            open_tile(w, &at, READ, &buf, &tile);
            memset(buf.v, 0, (size_t)(width * real_bytes));
            if (t->kind == PER_BOTH) {
                w->ops->read_both(&tile, w->s, row_numbers, buf.v);
                w->ops->accumulate(w->s, t->statistic.data, at.row_index, row_numbers, at.rows);
            } else w->ops->read_columns(&tile, w->s, buf.v);
            w->ops->add(entry_at(sums, c * width, real_bytes), buf.v, width);
            close_tile(w, &tile, &at, READ);
        }
    });
    for (int64_t c = 1; c < chunks; c++) w->ops->add(sums, entry_at(sums, c * width, real_bytes), width);
    if (t->kind == PER_TENSOR) {
        double sum = 0;
        for (int64_t j = 0; j < width; j++) sum += get_real(sums, j, real_bytes);
        set_real(sums, 0, real_bytes, sum);
        w->ops->compute_scales(w->s, t->statistic.data, NULL, sums, sums, 1);
        for (int64_t j = 1; j < width; j++) memcpy(entry_at(sums, j, real_bytes), sums, (size_t)real_bytes);
    } else if (t->kind == PER_BOTH) finish_columns(w, sums);
    else w->ops->compute_scales(w->s, t->statistic.data, NULL, sums, sums, width);
    PARALLEL_FOR(s, ceil_div(t->nnz, SPAN_ENTRIES), {
        int64_t k = s * SPAN_ENTRIES;
        double row_numbers[TILE_ROWS];
        tile_buffers buf = buffers_of_thread(w);
        span at;
        for (batch_walk walk = begin_walk(w, k, min(t->nnz, k + SPAN_ENTRIES)); next_tile(&walk, &at);) {
            tile_view tile;
            open_tile(w, &at, MOVE, &buf, &tile);
            if (t->kind == PER_BOTH) {
                factors_of_rows(w, 0, at.row_index, row_numbers, at.rows);
                w->ops->move_both(&tile, w->s, row_numbers, sums);
            } else w->ops->move_columns(&tile, w->s, sums);
            close_tile(w, &tile, &at, MOVE);
        }
    });
}

/* The workspace of a table: sizes of its parts in bytes. */
typedef struct {
    int64_t tile_rows, buffer_entries, chunks; /* of a tile; chunks of the gradient with column sums of their own */
    int64_t counts, tiles, sorted_entries, sums, total;
} workspace;

static int has_column_sums(const tensor *t) { return t->kind != PER_OUTER && t->kind != PER_ENTRY; }

static workspace workspace_of(const tensor *t, int64_t threads)
{
    int64_t width = max(1, t->inner), real_bytes = real_bytes_of(t);
    workspace sizes = {.buffer_entries = max(TILE_ENTRIES, width)};
    sizes.tile_rows = copied_rows(width);
    sizes.chunks =
        max(1, min(TILE_ROWS, min(SCRATCH_BYTES / real_bytes / width, ceil_div(t->nnz, 4 * sizes.tile_rows))));
    sizes.counts = threads * BUCKETS * (int64_t)sizeof(int64_t);
    sizes.tiles = threads * TILE_COPIES * sizes.buffer_entries * real_bytes;
    sizes.sorted_entries = t->nnz * (int64_t)sizeof(uint64_t);
    sizes.sums = has_column_sums(t) ? sizes.chunks * width * real_bytes : 0;
    sizes.total = sizes.counts + sizes.tiles + sizes.sorted_entries + sizes.sums;
    return sizes;
}

/* What is read of a table before any table is stepped. */
typedef struct {
    entry_list list;
    int64_t order; /* SORTED, UNSORTED or REFUSED */
} table_gradient;

static void step(const tensor *t, const config *c, const table_gradient *g, int64_t threads, char *data)
{
    if (!t->nnz) {
        begin_step(t, c, READ | MOVE), hand_out_rows(t, NULL);
        return;
    }
    workspace sizes = workspace_of(t, threads);
    char *counts = data, *tiles = counts + sizes.counts, *sorted_entries = tiles + sizes.tiles;
    char *sums = sorted_entries + sizes.sorted_entries;
    settings s = begin_step(t, c, READ | MOVE);
    const uint64_t *order = g->list.entries;
    if (g->order == UNSORTED) order = sort(t, g->list.entries, (uint64_t *)sorted_entries, (int64_t *)counts, threads);
    work w;
    plan_work(t, &s, READ | MOVE, order, &w);
    w.value_rows = g->list.bag_of;
    w.tile_rows = sizes.tile_rows, w.tile_columns = t->inner, w.buffer_entries = sizes.buffer_entries;
    w.thread_buffers = tiles;
    w.thread_bytes = threads == 1 ? 0 : TILE_COPIES * sizes.buffer_entries * real_bytes_of(t);
    if (has_column_sums(t)) step_table(&w, threads, sums, sizes.chunks);
    else step_rows(&w, threads);
    hand_out_rows(t, order);
}

/* Many tables are shared out among the threads, one table to a thread. What is large next to all of them is stepped by
   all threads together, as is a single table. The bits are the same. */
typedef struct {
    int64_t threads, all_entries;
} sharing;

static int64_t entries_moved(const tensor *t) { return t->nnz * t->inner; }

static int is_shared_out(const sharing *how, const tensor *t)
{
    return how->threads > 1 && entries_moved(t) <= how->all_entries / (TABLES_PER_THREAD * how->threads);
}

static int64_t threads_for(const sharing *how, const tensor *t)
{
    return entries_moved(t) <= SERIAL_ENTRIES || is_shared_out(how, t) ? 1 : how->threads;
}

static int64_t words(int64_t bytes) { return ceil_div(bytes, sizeof(uint64_t)) * (int64_t)sizeof(uint64_t); }

static int64_t bytes_of_entries(const tensor *t)
{
    return words(t->nnz * (int64_t)(sizeof(uint64_t) + (t->weights ? sizeof(uint32_t) : 0)));
}

/* One step of every table. Returns 0; or, if the workspace is too small, the bytes that are needed; or −1 − i if table
   i is the first whose gradient has an index out of range, or bags that do not cover its entries. Then nothing was
   done. */
EXPORT int64_t matrix_adagrad_sparse_step(const tensor *tensors, int64_t count, const config *c, int64_t all_threads,
                                          char *workspace_data, int64_t workspace_bytes)
{
    sharing how = {.threads = all_threads};
    for (int64_t i = 0; i < count; i++) how.all_entries += entries_moved(&tensors[i]);
    if (how.all_entries <= SERIAL_ENTRIES) how.threads = 1;
    int64_t largest = 0, largest_shared = 0, entry_bytes = 0, threads = how.threads;
    for (int64_t i = 0; i < count; i++) {
        const tensor *t = &tensors[i];
        int64_t *most = is_shared_out(&how, t) ? &largest_shared : &largest;
        *most = max(*most, words(workspace_of(t, threads_for(&how, t)).total));
        entry_bytes += bytes_of_entries(t);
    }
    int64_t room = max(largest, threads * largest_shared);
    int64_t needed = room + count * (int64_t)sizeof(table_gradient) + entry_bytes;
    if (needed > workspace_bytes) return needed;
    table_gradient *gradients = (table_gradient *)(workspace_data + room);
    char *entries = (char *)(gradients + count);
    for (int64_t i = 0; i < count; entries += bytes_of_entries(&tensors[i++])) {
        gradients[i].list.entries = (uint64_t *)entries;
        gradients[i].list.bag_of = tensors[i].weights ? (uint32_t *)(gradients[i].list.entries + tensors[i].nnz) : NULL;
    }
    threads = largest_shared ? how.threads : 1;
    PARALLEL_FOR(i, count, {
        if (is_shared_out(&how, &tensors[i])) gradients[i].order = read_entries(&tensors[i], &gradients[i].list, 1);
    });
    for (int64_t i = 0; i < count; i++)
        if (!is_shared_out(&how, &tensors[i]))
            gradients[i].order = read_entries(&tensors[i], &gradients[i].list, threads_for(&how, &tensors[i]));
    for (int64_t i = 0; i < count; i++)
        if (gradients[i].order == REFUSED) return -1 - i;
    PARALLEL_FOR(i, count, {
        if (is_shared_out(&how, &tensors[i]))
            step(&tensors[i], c, &gradients[i], 1, workspace_data + thread_number() * largest_shared);
    });
    for (int64_t i = 0; i < count; i++)
        if (!is_shared_out(&how, &tensors[i]))
            step(&tensors[i], c, &gradients[i], threads_for(&how, &tensors[i]), workspace_data);
    return 0;
}

/* Where the gradients of tables lie in a batch of bags: those of feature f are from offsets[f · bags] on, and their
   values, from some column on, in the rows of a matrix. */
typedef struct {
    const int64_t *index, *offsets;
    int64_t index_count, bags;
    char *weights; /* of each index, in REALs; or NULL */
    char *values;
    int64_t value_stride; /* in entries */
} bag_batch;

static int shares_memory(const tensor *t, const bag_batch *b)
{
    int64_t entry_bytes = arithmetic_of(t->dtype, NO_MOMENTUM)->entry_bytes;
    const char *x = t->x.data, *x_end = entry_if_any(x, (t->outer - 1) * t->x.outer + t->inner, entry_bytes);
    const char *values = b->values, *values_end = entry_if_any(values, b->bags * b->value_stride, entry_bytes);
    return values < x_end && x < values_end;
}

/* Returns whether the offsets of feature f, which other threads may write to, are within the index. */
static int point_at_feature(tensor *t, const bag_batch *b, int64_t f, int64_t column)
{
    int64_t first = read_once(b->offsets + f * b->bags), last = read_once(b->offsets + (f + 1) * b->bags);
    if (first < 0 || first > last || last > b->index_count) return 0;
    t->g = (array){
        .data = entry_if_any(b->values, column, arithmetic_of(t->dtype, NO_MOMENTUM)->entry_bytes),
        .outer = b->value_stride,
        .inner = 1,
    };
    t->index = entry_if_any(b->index, first, sizeof *b->index), t->nnz = last - first, t->offset = first;
    t->offsets = b->offsets + f * b->bags, t->bags = b->bags;
    t->weights = entry_if_any(b->weights, first, real_bytes_of(t));
    return 1;
}

/* One step of every table, with the gradients of a batch of bags: features has the number and the first column of the
   one that reads each table. Returns what matrix_adagrad_sparse_step does, or −1 − count if the values lie in the memory
   of a table. */
EXPORT int64_t matrix_adagrad_bags_step(tensor *tensors, int64_t count, const int64_t *features, const int64_t *index,
                                        int64_t index_count, const int64_t *offsets, int64_t bags, void *weights,
                                        void *values, int64_t value_stride, const config *c, int64_t threads,
                                        char *workspace_data, int64_t workspace_bytes)
{
    const bag_batch b = {index, offsets, index_count, bags, weights, values, value_stride};
    for (int64_t i = 0; i < count; i++) {
        if (shares_memory(&tensors[i], &b)) return -1 - count;
        if (!point_at_feature(&tensors[i], &b, features[2 * i], features[2 * i + 1])) return -1 - i;
    }
    return matrix_adagrad_sparse_step(tensors, count, c, threads, workspace_data, workspace_bytes);
}
