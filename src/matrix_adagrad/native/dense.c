/* The step of `step/reference.py` for a list of tensors with dense gradients. */

#include "step.h"
#include "threads.h"

#include <string.h>

static int is_large(const tensor *t) { return t->outer * t->inner >= LARGE_ENTRIES; }
static int64_t entries_of(const tensor *t) { return t->matrices * t->outer * t->inner; }
static int sums_columns(const tensor *t) { return t->kind == PER_INNER || t->kind == PER_BOTH; }

/* The buffers of a thread: copies of a tile, two stripes of column sums, and the scratch memory of a small tensor. */
static int64_t bytes_per_thread(const tensor *t)
{
    int64_t entries = TILE_COPIES * TILE_ENTRIES + (sums_columns(t) ? 2 * STRIPE_COLUMNS : 0);
    return entries * real_bytes_of(t) + (t->kind == PER_BOTH && !is_large(t) ? scratch_bytes_per_both(t) : 0);
}

/* The scratch memory that all threads share, for a large tensor. */
static int64_t shared_bytes(const tensor *t)
{
    return !is_large(t) ? 0 : t->kind == PER_BOTH ? scratch_bytes_per_both(t) : SCRATCH_BYTES;
}

static void plan_dense(const tensor *t, const settings *s, int passes, work *w)
{
    plan_work(t, s, passes, NULL, w);
    int64_t in_place = sums_columns(t) ? STRIPE_COLUMNS : IN_PLACE_COLUMNS;
    int64_t copied = sums_columns(t) ? TILE_ENTRIES / 4 : TILE_ENTRIES;
    w->tile_columns = max(1, min(t->inner, w->staged ? copied : in_place));
    w->fused = t->kind == PER_OUTER && passes == (READ | MOVE) && t->inner <= w->tile_columns;
    w->tile_rows = w->staged ? copied_rows(w->tile_columns) : w->fused ? t->outer : TILE_ROWS;
    w->buffer_entries = TILE_ENTRIES;
}

/* -------------------------------------------------------------------------------------------------------- regions */

static double sum_region(const work *w, region area, tile_buffers *buf)
{
    double squares[TILE_ROWS], sum = 0;
    FOR_TILES(w, area, at) {
        tile_view tile;
        open_tile(w, &at, READ, buf, &tile);
        w->ops->read_rows(&tile, w->s, squares);
        for (int64_t k = 0; k < at.rows; k++) sum += get_real(squares, k, w->ops->real_bytes);
        close_tile(w, &tile, &at, READ);
    }
    return sum;
}

static void move_region(const work *w, region area, double scale, tile_buffers *buf)
{
    double scales[TILE_ROWS];
    for (int64_t k = 0; k < TILE_ROWS; k++) set_real(scales, k, w->ops->real_bytes, scale);
    FOR_TILES(w, area, at) {
        tile_view tile;
        open_tile(w, &at, MOVE, buf, &tile);
        w->ops->move_rows(&tile, w->s, scales);
        close_tile(w, &tile, &at, MOVE);
    }
}

/* Accumulates the sums of n blocks from block k on in V and turns it into scales; or hands out the sums, if the call
   makes the READ pass alone. */
static void finish_sums(const work *w, int64_t k, const void *squares, void *scales, int64_t n)
{
    if (w->passes == READ)
        memcpy(entry_at(w->t->sums, k, w->ops->real_bytes), squares, (size_t)(n * w->ops->real_bytes));
    else w->ops->compute_scales(w->s, entry_at(w->t->statistic.data, k, w->ops->real_bytes), NULL, squares, scales, n);
}

static void finish_sum(const work *w, int64_t k, double sum)
{
    double square, scale;
    set_real(&square, 0, w->ops->real_bytes, sum);
    finish_sums(w, k, &square, &scale, 1);
}

/* The scale of block k, whose V is up to date. */
static double scale_of_block(const work *w, int64_t k)
{
    double scale;
    w->ops->compute_scales(w->s, entry_at(w->t->statistic.data, k, w->ops->real_bytes), NULL, NULL, &scale, 1);
    return get_real(&scale, 0, w->ops->real_bytes);
}

/* A long row is summed by segments, and their sums by parts. A row has few enough parts for the scratch memory. */
static int64_t segments_per_part(const work *w)
{
    int64_t max_parts = SCRATCH_BYTES / (int64_t)sizeof(double) / TILE_ROWS;
    return ceil_div(ceil_div(w->t->inner, SEGMENT_ENTRIES), max_parts);
}
static int64_t parts_per_row(const work *w) { return ceil_div(w->t->inner, SEGMENT_ENTRIES * segments_per_part(w)); }

static region part_of_row(const work *w, int64_t i, int64_t part)
{
    int64_t length = SEGMENT_ENTRIES * segments_per_part(w);
    return (region){i, i + 1, part * length, min(w->t->inner, (part + 1) * length)};
}

static double sum_part(const work *w, region area, tile_buffers *buf)
{
    double sum = 0;
    for (int64_t j = area.j0; j < area.j1; j += SEGMENT_ENTRIES)
        sum += sum_region(w, (region){area.i0, area.i1, j, min(area.j1, j + SEGMENT_ENTRIES)}, buf);
    return sum;
}

/* Rows that exceed a tile: each is read, then moved. */
static void step_long_rows_serially(const work *w, region area, tile_buffers *buf)
{
    for (int64_t i = area.i0; w->passes & READ && i < area.i1; i++) {
        double sum = 0;
        for (int64_t part = 0; part < parts_per_row(w); part++) sum += sum_part(w, part_of_row(w, i, part), buf);
        finish_sum(w, i, sum);
    }
    for (int64_t i = area.i0; w->passes & MOVE && i < area.i1; i++)
        move_region(w, (region){i, i + 1, area.j0, area.j1}, scale_of_block(w, i), buf);
}

/* Short rows, in a call that makes one pass alone. */
static void step_rows_in_one_pass(const work *w, region area, tile_buffers *buf)
{
    double squares[TILE_ROWS], scales[TILE_ROWS];
    FOR_TILES(w, area, at) {
        tile_view tile;
        open_tile(w, &at, w->passes, buf, &tile);
        if (w->passes & READ) {
            w->ops->read_rows(&tile, w->s, squares);
            finish_sums(w, at.row, squares, scales, at.rows);
        } else {
            w->ops->compute_scales(w->s, tile.v, NULL, NULL, scales, at.rows);
            w->ops->move_rows(&tile, w->s, scales);
        }
        close_tile(w, &tile, &at, w->passes);
    }
}

/* Both passes fused: a tile holds all entries that share a scale. */
static void step_tiles_fused(const work *w, region area, tile_buffers *buf)
{
    FOR_TILES(w, area, at) {
        tile_view tile;
        open_tile(w, &at, READ | MOVE, buf, &tile);
        if (w->t->kind == PER_ENTRY) w->ops->step_entries(&tile, w->s);
        else w->ops->step_rows(&tile, w->s);
        close_tile(w, &tile, &at, READ | MOVE);
    }
}

/* Sums of LEVEL_ROWS rows are accumulated separately and then added: a long running sum in float would lose small
   terms. */
static void sum_columns(const work *w, region area, void *sums, tile_buffers *buf)
{
    void *level_sums = buf->column_sums;
    int64_t bytes = (area.j1 - area.j0) * w->ops->real_bytes;
    memset(sums, 0, (size_t)bytes);
    for (int64_t i0 = area.i0; i0 < area.i1; i0 += LEVEL_ROWS) {
        region level = {i0, min(area.i1, i0 + LEVEL_ROWS), area.j0, area.j1};
        memset(level_sums, 0, (size_t)bytes);
        FOR_TILES(w, level, at) {
            tile_view tile;
            open_tile(w, &at, READ, buf, &tile);
            w->ops->read_columns(&tile, w->s, entry_at(level_sums, at.column - area.j0, w->ops->real_bytes));
            close_tile(w, &tile, &at, READ);
        }
        w->ops->add(sums, level_sums, area.j1 - area.j0);
    }
}

static void move_columns(const work *w, region area, const void *scales, tile_buffers *buf)
{
    FOR_TILES(w, area, at) {
        tile_view tile;
        open_tile(w, &at, MOVE, buf, &tile);
        w->ops->move_columns(&tile, w->s, entry_at(scales, at.column - area.j0, w->ops->real_bytes));
        close_tile(w, &tile, &at, MOVE);
    }
}

/* --------------------------------------------------------------------------------------------------- whole tensors */

/* A tensor is split into pieces: some rows, or a part of one row. A piece has at most MAX_PIECE_BYTES, so that the
   second pass finds it in cache; a tensor has at least MIN_PIECES, so that all threads have work. */

/* What the second pass reads of an entry. */
static int64_t bytes_kept_per_entry(const work *w)
{
    return w->s->momentum ? w->ops->real_bytes : w->stored_ops->entry_bytes;
}
static int64_t entries_per_piece(const work *w)
{
    return min(MAX_PIECE_BYTES / bytes_kept_per_entry(w),
               max(MIN_PIECE_ENTRIES, w->t->outer * w->t->inner / MIN_PIECES));
}
int64_t rows_per_piece(const work *w) { return max(1, entries_per_piece(w) / max(1, w->t->inner)); }
static int64_t pieces_per_row(const work *w) { return max(1, ceil_div(w->t->inner, entries_per_piece(w))); }
static int64_t piece_count(const work *w) { return ceil_div(w->t->outer, rows_per_piece(w)) * pieces_per_row(w); }

static region piece_region(const work *w, int64_t p)
{
    int64_t pieces_across = pieces_per_row(w), rows = rows_per_piece(w), columns = ceil_div(w->t->inner, pieces_across);
    int64_t i = p / pieces_across * rows, j = min(w->t->inner, p % pieces_across * columns);
    return (region){i, min(w->t->outer, i + rows), j, min(w->t->inner, j + columns)};
}

static void step_per_outer(const work *w, int64_t threads)
{
    int64_t rows = rows_per_piece(w);
    if (w->fused && exceeds_l1(w->t->inner, w->stored_ops->entry_bytes))
        rows = ceil_div(rows, INTERLEAVED_ROWS) * INTERLEAVED_ROWS;
    PARALLEL_FOR(p, ceil_div(w->t->outer, rows), {
        tile_buffers buf = buffers_of_thread(w);
        region area = {p * rows, min(w->t->outer, (p + 1) * rows), 0, w->t->inner};
        if (w->fused) step_tiles_fused(w, area, &buf);
        else if (w->t->inner > w->tile_columns) step_long_rows_serially(w, area, &buf);
        else step_rows_in_one_pass(w, area, &buf);
    });
}

static void step_per_entry(const work *w, int64_t threads)
{
    PARALLEL_FOR(p, piece_count(w), {
        tile_buffers buf = buffers_of_thread(w);
        step_tiles_fused(w, piece_region(w, p), &buf);
    });
}

/* A few long rows from row i on, by several threads: parts are summed in parallel, and their sums added in order. */
static void step_long_rows_in_parallel(const work *w, int64_t i, int64_t rows, int64_t threads, double *sums)
{
    int64_t parts = parts_per_row(w);
    if (w->passes & READ) {
        PARALLEL_FOR(q, rows * parts, {
            tile_buffers buf = buffers_of_thread(w);
            sums[q] = sum_part(w, part_of_row(w, i + q / parts, q % parts), &buf);
        });
        for (int64_t k = 0; k < rows; k++) {
            double sum = 0;
            for (int64_t part = 0; part < parts; part++) sum += sums[k * parts + part];
            finish_sum(w, i + k, sum);
        }
    }
    if (!(w->passes & MOVE)) return;
    PARALLEL_FOR(q, rows * parts, {
        tile_buffers buf = buffers_of_thread(w);
        move_region(w, part_of_row(w, i + q / parts, q % parts), scale_of_block(w, i + q / parts), &buf);
    });
}

/* As many rows at a time as stay in the last-level cache until they are moved, but enough for all threads. */
static void step_long_rows(const work *w, int64_t threads, double *sums)
{
    int64_t outer = w->t->outer, bytes = w->t->inner * bytes_kept_per_entry(w);
    int64_t rows = w->passes == (READ | MOVE) ? max(L3_BYTES / bytes, ceil_div(4 * threads, parts_per_row(w))) : outer;
    for (int64_t i = 0; i < outer; i += rows) step_long_rows_in_parallel(w, i, min(rows, outer - i), threads, sums);
}

/* The whole tensor is one block. */
static void step_per_tensor(const work *w, int64_t threads, double *sums)
{
    int64_t count = piece_count(w), parts = min(count, SCRATCH_BYTES / (int64_t)sizeof(double));
    int64_t pieces_per_part = ceil_div(count, parts);
    if (w->passes & READ) {
        PARALLEL_FOR(q, parts, {
            tile_buffers buf = buffers_of_thread(w);
            sums[q] = 0;
            for (int64_t p = q * pieces_per_part; p < min(count, (q + 1) * pieces_per_part); p++)
                sums[q] += sum_region(w, piece_region(w, p), &buf);
        });
        double sum = 0;
        for (int64_t q = 0; q < parts; q++) sum += sums[q];
        finish_sum(w, 0, sum);
    }
    if (!(w->passes & MOVE)) return;
    PARALLEL_FOR_BACKWARDS(p, count, {
        tile_buffers buf = buffers_of_thread(w);
        move_region(w, piece_region(w, p), scale_of_block(w, 0), &buf);
    });
}

static void step_small_tensor(const work *w)
{
    tile_buffers buf = buffers_of_thread(w);
    region all = {0, w->t->outer, 0, w->t->inner};
    if (w->passes & READ) finish_sum(w, 0, sum_region(w, all, &buf));
    if (w->passes & MOVE) move_region(w, all, scale_of_block(w, 0), &buf);
}

static int64_t row_chunks(const tensor *t) { return max(1, min(MAX_ROW_CHUNKS, t->outer / TILE_ROWS)); }

/* Columns j0 to j1, row by row, in the order of memory. Each chunk of rows has column sums of its own, which are then
   added in order. */
static void step_columns(const work *w, int64_t j0, int64_t j1, int64_t threads, char *sums)
{
    const tensor *t = w->t;
    int64_t real_bytes = w->ops->real_bytes, n = j1 - j0, stripes = ceil_div(n, STRIPE_COLUMNS), chunks = row_chunks(t);
    int64_t rows = ceil_div(t->outer, chunks);
    if (w->passes & READ) {
        PARALLEL_FOR(q, chunks * stripes, {
            tile_buffers buf = buffers_of_thread(w);
            int64_t i = min(t->outer, q / stripes * rows), j = j0 + q % stripes * STRIPE_COLUMNS;
            region area = {i, min(t->outer, i + rows), j, min(j1, j + STRIPE_COLUMNS)};
            sum_columns(w, area, entry_at(sums, q / stripes * n + j - j0, real_bytes), &buf);
        });
        for (int64_t c = 1; c < chunks; c++) w->ops->add(sums, entry_at(sums, c * n, real_bytes), n);
        finish_sums(w, j0, sums, sums, n);
    } else w->ops->compute_scales(w->s, entry_at(t->statistic.data, j0, real_bytes), NULL, NULL, sums, n);
    if (!(w->passes & MOVE)) return;
    rows = max(TILE_ROWS, rows_per_piece(w));
    /* Backwards: the end of the gradient is still in cache. */
    PARALLEL_FOR_BACKWARDS(q, ceil_div(t->outer, rows) * stripes, {
        tile_buffers buf = buffers_of_thread(w);
        int64_t i = q / stripes * rows, j = j0 + q % stripes * STRIPE_COLUMNS;
        region area = {i, min(t->outer, i + rows), j, min(j1, j + STRIPE_COLUMNS)};
        move_columns(w, area, entry_at(sums, j - j0, real_bytes), &buf);
    });
}

static char *second_stripe(const work *w, const tile_buffers *buf)
{
    return entry_at(buf->column_sums, STRIPE_COLUMNS, w->ops->real_bytes);
}

/* Few rows: stripes of columns in parallel. Many rows: as many columns at a time as the scratch memory holds sums for.
   */
static void step_per_inner(const work *w, int64_t threads, void *scratch)
{
    int64_t inner = w->t->inner, chunks = row_chunks(w->t);
    if (chunks == 1) {
        PARALLEL_FOR(stripe, ceil_div(inner, STRIPE_COLUMNS), {
            int64_t j = stripe * STRIPE_COLUMNS;
            tile_buffers buf = buffers_of_thread(w);
            work serial = *w;
            serial.thread_buffers = buf.x, serial.thread_bytes = 0;
            step_columns(&serial, j, min(inner, j + STRIPE_COLUMNS), 1, second_stripe(w, &buf));
        });
        return;
    }
    tile_buffers buf = buffers_of_thread(w);
    int64_t columns = scratch ? SCRATCH_BYTES / w->ops->real_bytes / chunks : inner;
    char *sums = scratch ? scratch : second_stripe(w, &buf);
    for (int64_t j = 0; j < inner; j += columns) step_columns(w, j, min(inner, j + columns), threads, sums);
}

static char *scratch_of_thread(const work *w)
{
    tile_buffers buf = buffers_of_thread(w);
    return second_stripe(w, &buf);
}

/* The workspace of a step: partial sums that threads share, which small tensors do without, and the buffers of each
   thread. */
typedef struct {
    void *scratch;
    char *thread_buffers;
    int64_t thread_bytes;
} workspace;

static void step(const tensor *t, const settings *s, int passes, int64_t threads, workspace mine)
{
    work w;
    plan_dense(t, s, passes, &w);
    w.thread_buffers = mine.thread_buffers, w.thread_bytes = mine.thread_bytes;
    if (t->kind == PER_INNER) step_per_inner(&w, threads, mine.scratch);
    else if (t->kind == PER_BOTH) step_per_both(&w, threads, mine.scratch ? mine.scratch : scratch_of_thread(&w));
    else if (t->kind == PER_ENTRY) step_per_entry(&w, threads);
    else if (t->kind == PER_TENSOR && mine.scratch) step_per_tensor(&w, threads, mine.scratch);
    else if (t->kind == PER_TENSOR) step_small_tensor(&w);
    else if (mine.scratch && t->outer < TILE_ROWS && t->inner > SEGMENT_ENTRIES)
        step_long_rows(&w, threads, mine.scratch);
    else step_per_outer(&w, threads);
}

/* One of the matrices of a batch, with settings of its own: those of its rows among all rows. */
static void step_matrix(const tensor *t, settings s, int64_t b, int passes, int64_t threads, workspace mine)
{
    tensor matrix = *t;
    int64_t entry_bytes = arithmetic_of(t->dtype, s.momentum)->entry_bytes, real_bytes = real_bytes_of(t);
    array *entries[] = {&matrix.x, &matrix.g},
          *reals[] = {&matrix.average, &matrix.statistic, &matrix.columns, &matrix.whole};
    for (int k = 0; k < 2; k++) entries[k]->data = entry_if_any(entries[k]->data, b * entries[k]->batch, entry_bytes);
    for (int k = 0; k < 4; k++) reals[k]->data = entry_if_any(reals[k]->data, b * reals[k]->batch, real_bytes);
    if (s.seed) s.seed += (uint64_t)(b * t->outer);
    step(&matrix, &s, passes, threads, mine);
}

/* Large matrices one by one, as is a single one, each by all threads; small ones in parallel. */
static void step_batch(const tensor *t, const config *c, int passes, int64_t threads, workspace all)
{
    settings s = begin_step(t, c, passes);
    if (is_large(t) || t->matrices == 1) {
        if (!is_large(t)) all.scratch = NULL;
        for (int64_t b = 0; b < t->matrices; b++) step_matrix(t, s, b, passes, threads, all);
        return;
    }
    PARALLEL_FOR(b, t->matrices, {
        char *buffers = all.thread_buffers + thread_number() * all.thread_bytes;
        step_matrix(t, s, b, passes, 1, (workspace){NULL, buffers, 0});
    });
}

/* Which tensors are stepped by all threads together, one after the other: batches, large tensors, and those that exceed
   the share of a thread. The bits are the same. */
typedef struct {
    int64_t threads, all_entries;
} sharing;

static int is_for_all_threads(const sharing *how, const tensor *t)
{
    return is_large(t) || t->matrices != 1 || entries_of(t) * how->threads > how->all_entries;
}

/* One step of every tensor, or one of its passes: small tensors in parallel, one per thread, then those for all
   threads. Returns 0; or, if the workspace is too small, the bytes that are needed. Then nothing was done. */
EXPORT int64_t matrix_adagrad_step(const tensor *tensors, int64_t count, const config *c, int64_t all_threads,
                                   int64_t passes, char *workspace_data, int64_t workspace_bytes)
{
    sharing how = {.threads = all_threads};
    for (int64_t i = 0; i < count; i++) how.all_entries += entries_of(&tensors[i]);
    if (how.all_entries <= SERIAL_ENTRIES) how.threads = 1;
    int64_t shared = 0, per_thread = 0, small_entries = 0, left = 0;
    for (int64_t i = 0; i < count; i++) {
        const tensor *t = &tensors[i];
        per_thread = max(per_thread, bytes_per_thread(t));
        shared = max(shared, shared_bytes(t));
        if (is_for_all_threads(&how, t)) left++;
        else small_entries += entries_of(t);
    }
    if (shared + how.threads * per_thread > workspace_bytes) return shared + how.threads * per_thread;
    char *thread_buffers = workspace_data + shared;
    int64_t threads = small_entries <= SERIAL_ENTRIES ? 1 : how.threads;
    if (left < count)
        PARALLEL_FOR(i, count, {
            const tensor *t = &tensors[i];
            if (is_for_all_threads(&how, t)) continue;
            settings s = begin_step(t, c, (int)passes);
            step(t, &s, (int)passes, 1, (workspace){NULL, thread_buffers + thread_number() * per_thread, 0});
        });
    for (int64_t i = 0; left && i < count; i++)
        if (is_for_all_threads(&how, &tensors[i]))
            step_batch(&tensors[i], c, (int)passes, how.threads,
                       (workspace){workspace_data, thread_buffers, per_thread});
    return 0;
}
