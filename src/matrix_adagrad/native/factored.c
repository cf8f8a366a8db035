/* Dense steps with a scale for each entry, from the V of its row and that of its column: the kind PER_BOTH.

   One pass reads the gradient and sums rows and columns together, one moves. Chunks of rows × stripes of columns are
   summed in parallel: each chunk has column sums of its own, and each stripe row sums of its own. Both are then added
   in order. */

#include "step.h"
#include "threads.h"

#include <string.h>

static int64_t stripe_count(const tensor *t) { return max(1, ceil_div(t->inner, STRIPE_COLUMNS)); }

/* As few as fit the scratch memory, if columns are many: there are stripes to share then. */
static int64_t chunk_count(const tensor *t)
{
    int64_t fitting = SCRATCH_BYTES / real_bytes_of(t) / max(1, t->inner);
    return max(1, min(fitting, min(MAX_ROW_CHUNKS, t->outer / TILE_ROWS)));
}

/* The scratch memory: column sums, then row sums, unless there is one stripe. */
static int64_t column_sum_bytes(const tensor *t)
{
    int64_t words = ceil_div(chunk_count(t) * t->inner * real_bytes_of(t), sizeof(double));
    return words * (int64_t)sizeof(double);
}

int64_t scratch_bytes_per_both(const tensor *t)
{
    int64_t stripes = stripe_count(t);
    return column_sum_bytes(t) + (stripes > 1 ? stripes * t->outer * (int64_t)sizeof(double) : 0);
}

/* ------------------------------------------------------------------------------------------------------ statistics */

static settings with_divisor(const work *w, int64_t divisor)
{
    settings s = *w->s;
    s.v_weight *= (double)w->t->divisor / (double)divisor;
    return s;
}

static void accumulate_rows(const work *w, int64_t i, const double *sums, int64_t n)
{
    double squares[TILE_ROWS];
    for (int64_t k = 0; k < n; k++) set_real(squares, k, w->ops->real_bytes, sums[k]);
    w->ops->accumulate(w->s, entry_at(w->t->statistic.data, i, w->ops->real_bytes), NULL, squares, n);
}

void finish_columns(const work *w, void *sums)
{
    const tensor *t = w->t;
    settings s = with_divisor(w, t->columns_divisor);
    double whole = 0, square;
    for (int64_t j = 0; j < t->inner; j++) whole += get_real(sums, j, w->ops->real_bytes);
    w->ops->accumulate(&s, t->columns.data, NULL, sums, t->inner);
    w->ops->compute_factors(&s, t->columns.data, NULL, NULL, sums, t->inner);
    if (!t->whole.data) return;
    s = with_divisor(w, t->whole_divisor);
    set_real(&square, 0, w->ops->real_bytes, whole);
    w->ops->accumulate(&s, t->whole.data, NULL, &square, 1);
}

void factors_of_rows(const work *w, int64_t i, const int64_t *row_index, void *factors, int64_t n)
{
    const void *v = entry_at(w->t->statistic.data, i, w->ops->real_bytes);
    w->ops->compute_factors(w->s, v, row_index, w->t->whole.data, factors, n);
}

/* ---------------------------------------------------------------------------------------------------------- passes */

/* An area that spans all columns updates V of its rows; otherwise their sums are handed out in row_sums. */
static void read_area(const work *w, region area, void *column_sums, double *row_sums, const tile_buffers *buf)
{
    double squares[TILE_ROWS], sums[TILE_ROWS];
    int64_t real_bytes = w->ops->real_bytes, n = area.j1 - area.j0;
    memset(column_sums, 0, (size_t)(n * real_bytes));
    for (int64_t i0 = area.i0; i0 < area.i1; i0 += LEVEL_ROWS) {
        region level = {i0, min(area.i1, i0 + LEVEL_ROWS), area.j0, area.j1};
        memset(buf->column_sums, 0, (size_t)(n * real_bytes));
        FOR_TILES(w, level, at) {
            tile_view tile;
            if (at.column == area.j0) memset(sums, 0, sizeof sums);
            open_tile(w, &at, READ, buf, &tile);
            w->ops->read_both(&tile, w->s, squares, entry_at(buf->column_sums, at.column - area.j0, real_bytes));
            close_tile(w, &tile, &at, READ);
            for (int64_t k = 0; k < at.rows; k++) sums[k] += get_real(squares, k, real_bytes);
            if (at.column + at.columns < area.j1) continue;
            if (row_sums) memcpy(row_sums + at.row, sums, (size_t)at.rows * sizeof *sums);
            else accumulate_rows(w, at.row, sums, at.rows);
        }
        w->ops->add(column_sums, buf->column_sums, n);
    }
}

static void move_area(const work *w, region area, const void *column_factors, const tile_buffers *buf)
{
    double row_factors[TILE_ROWS];
    FOR_TILES(w, area, at) {
        tile_view tile;
        factors_of_rows(w, at.row, NULL, row_factors, at.rows);
        open_tile(w, &at, MOVE, buf, &tile);
        w->ops->move_both(&tile, w->s, row_factors, entry_at(column_factors, at.column, w->ops->real_bytes));
        close_tile(w, &tile, &at, MOVE);
    }
}

static void add_row_sums(const work *w, const double *parts, int64_t count)
{
    int64_t outer = w->t->outer;
    for (int64_t i = 0; i < outer; i += TILE_ROWS) {
        double sums[TILE_ROWS] = {0};
        for (int64_t p = 0; p < count; p++)
            for (int64_t k = 0; k < min(TILE_ROWS, outer - i); k++) sums[k] += parts[p * outer + i + k];
        accumulate_rows(w, i, sums, min(TILE_ROWS, outer - i));
    }
}

static region area_of(const tensor *t, int64_t rows, int64_t stripes, int64_t q)
{
    int64_t i = min(t->outer, q / stripes * rows), j = q % stripes * STRIPE_COLUMNS;
    return (region){i, min(t->outer, i + rows), j, min(t->inner, j + STRIPE_COLUMNS)};
}

void step_per_both(const work *w, int64_t threads, char *scratch)
{
    const tensor *t = w->t;
    int64_t real_bytes = w->ops->real_bytes, stripes = stripe_count(t), chunks = chunk_count(t);
    int64_t rows = ceil_div(t->outer, chunks);
    double *row_sums = stripes > 1 ? (double *)(scratch + column_sum_bytes(t)) : NULL;
    PARALLEL_FOR(q, chunks * stripes, {
        tile_buffers buf = buffers_of_thread(w);
        region area = area_of(t, rows, stripes, q);
        read_area(w, area, entry_at(scratch, q / stripes * t->inner + area.j0, real_bytes),
                  row_sums ? row_sums + q % stripes * t->outer : NULL, &buf);
    });
    if (row_sums) add_row_sums(w, row_sums, stripes);
    for (int64_t c = 1; c < chunks; c++) w->ops->add(scratch, entry_at(scratch, c * t->inner, real_bytes), t->inner);
    finish_columns(w, scratch);
    rows = max(TILE_ROWS, rows_per_piece(w));
    /* Backwards: the end of the gradient is still in cache. */
    PARALLEL_FOR_BACKWARDS(q, ceil_div(t->outer, rows) * stripes, {
        tile_buffers buf = buffers_of_thread(w);
        move_area(w, area_of(t, rows, stripes, q), scratch, &buf);
    });
}
