/* What the steps for dense and for sparse gradients share: the work of a step, and its tiles. */

#ifndef MATRIX_ADAGRAD_STEP_H
#define MATRIX_ADAGRAD_STEP_H

#include "kernels.h"

#include <stddef.h>

/* The step of one tensor, or one of its passes. */
typedef struct {
    const tensor *t;
    const settings *s;
    int passes;                         /* READ, MOVE or both */
    const uint64_t *order;              /* the entries of a sparse gradient, sorted by row; NULL: it is dense */
    const uint32_t *value_rows;         /* weighted bags: the bag of each entry, in the order of the index; or NULL */
    const arithmetic *stored_ops, *ops; /* on entries as stored, and on entries of a tile */
    int staged;                      /* tiles are copies: entries are not contiguous, or change before they are used */
    int fused;                       /* a tile is read and moved in one pass */
    int64_t tile_rows, tile_columns; /* at most */
    char *thread_buffers;            /* of all threads, back to back */
    int64_t thread_bytes;            /* of each thread; 0 where only one thread uses them, whatever its number */
    int64_t buffer_entries;          /* of each copy in tile_buffers */
} work;

/* The buffers of a thread: copies of a tile, and column sums for dense gradients. */
typedef struct {
    void *x, *g, *average, *v, *column_sums;
} tile_buffers;

enum { TILE_COPIES = 4 }; /* x, g, average, v */

/* Which entries a tile holds. */
typedef struct {
    int64_t row, rows, column, columns; /* from (row, column) on */
    const int64_t *row_index;           /* sparse gradient: these rows, instead of consecutive ones */
    const int64_t *starts;              /* sparse gradient: row k has order[starts[k]] to order[starts[k + 1] - 1] */
} span;

/* Rows i0 to i1 and columns j0 to j1, ends excluded. */
typedef struct {
    int64_t i0, i1, j0, j1;
} region;

/* The tiles of an area, in the order of memory; `at` says which entries. */
#define FOR_TILES(w, area, at)                                                                                         \
    for (span at = {.row = (area).i0}; at.rows = min((w)->tile_rows, (area).i1 - at.row), at.row < (area).i1;          \
         at.row += at.rows)                                                                                            \
        for (at.column = (area).j0; at.columns = min((w)->tile_columns, (area).j1 - at.column), at.column < (area).j1; \
             at.column += at.columns)

/* The settings of this step; increments the step count if both passes are made. */
settings begin_step(const tensor *t, const config *c, int passes);

/* Fills in everything but sizes and buffers of tiles, which the caller adds. Through a pointer: a struct that is
   returned is copied by wide loads, which wait for the stores of its fields. */
void plan_work(const tensor *t, const settings *s, int passes, const uint64_t *order, work *w);

tile_buffers buffers_of_thread(const work *w);

/* A tile is opened for some passes: the entries that these need are there, gradients with their penalty. close_tile
   writes back what they have changed. */
void open_tile(const work *w, const span *at, int passes, const tile_buffers *buf, tile_view *tile);
void close_tile(const work *w, const tile_view *tile, const span *at, int passes);

/* So many rows are a piece of the tensor: small enough for the second pass to find it in cache. */
int64_t rows_per_piece(const work *w);

/* Dense steps of the kind PER_BOTH, and the scratch memory that they need. */
int64_t scratch_bytes_per_both(const tensor *t);
void step_per_both(const work *w, int64_t threads, char *scratch);
/* Of the same kind, for sparse gradients too: turns the column sums of squares, once the rows' are in V, into V and
   factors of the columns; and V of some rows, listed by index or from row i on, into their factors. */
void finish_columns(const work *w, void *sums);
void factors_of_rows(const work *w, int64_t i, const int64_t *row_index, void *factors, int64_t n);

static inline int64_t real_bytes_of(const tensor *t) { return t->dtype == F64 ? sizeof(double) : sizeof(float); }

static inline double get_real(const void *data, int64_t k, int64_t real_bytes)
{
    return real_bytes == sizeof(double) ? ((const double *)data)[k] : (double)((const float *)data)[k];
}

static inline void set_real(void *data, int64_t k, int64_t real_bytes, double r)
{
    if (real_bytes == sizeof(double)) ((double *)data)[k] = r;
    else ((float *)data)[k] = (float)r;
}

#endif
