/* What all kernels share: tensors as matrices, the settings of a step, and tiles, the units of work.

   Plain C with OpenMP and without torch's headers: pointers and strides come in. Shapes alone decide how work is split,
   and every reduction has a fixed order, so that the bits are the same for any number of threads. Nothing is contracted
   to fused multiply-adds (see the build flags), so that they are the same for any SIMD width. How a row is summed
   depends on its length alone, and so does a column: a matrix that is split between rows or columns keeps its bits.

   Names: t is a tensor, s the settings of its step, w the work of a step, i a row, j a column, k a row of a tile. */

#ifndef MATRIX_ADAGRAD_KERNELS_H
#define MATRIX_ADAGRAD_KERNELS_H

#include "update.h"

#include <stddef.h>
#include <stdint.h>

/* Every constant names its unit: bytes, entries of a matrix, rows or columns. docs/kernels.md has them in a table. */
enum {
    /* caches */
    CACHE_LINE_BYTES = 64,
    L1_BYTES = 1 << 14,       /* a working set that stays in the L1 cache between two passes */
    L1_COLUMNS = 2048,        /* columns whose sums or scales stay in the L1 cache */
    L3_BYTES = 1 << 22,       /* our share of the last-level cache */
    PREFETCH_BYTES = 1 << 11, /* how far ahead of the arithmetic a row is prefetched */
    PREFETCH_LINES = 8,       /* cache lines, at most, per prefetched row: the hardware prefetcher takes over then */
    PREFETCH_ROWS = 32,       /* rows, at most, that a gather prefetches */
    GATHER_BYTES = 1 << 15,   /* bytes, at most, that a gather has in flight */

    /* tiles */
    TILE_ROWS = 64,                         /* rows of a tile, at most */
    TILE_ENTRIES = 2048,                    /* entries of a tile that is a copy: a few copies fit the L1 cache */
    IN_PLACE_COLUMNS = 8 * TILE_ENTRIES,    /* columns, at most, of a tile that is not a copy */
    SEGMENT_ENTRIES = 4 * IN_PLACE_COLUMNS, /* entries of a long row that are summed together */
    STRIPE_COLUMNS = 8192,                  /* columns whose sums are accumulated together */
    ROW_GROUP_ENTRIES = 1024,               /* entries of short rows that are read before they are moved */
    INTERLEAVED_ROWS = 4,                   /* rows beyond L1_BYTES that are stepped in an interleaved loop */

    /* threads */
    SERIAL_ENTRIES = 1 << 15,    /* up to this size a single thread is faster than several */
    LARGE_ENTRIES = 1 << 18,     /* tensors from this size on are split among threads */
    MAX_PIECE_BYTES = 1 << 21,   /* of a piece, the work of one thread at a time */
    MIN_PIECE_ENTRIES = 1 << 14, /* of a piece */
    MIN_PIECES = 64,             /* pieces per tensor, unless they would be too small */
    MAX_ROW_CHUNKS = 16,         /* chunks of rows with column sums of their own */
    LEVEL_ROWS = 512,            /* rows whose column sums are accumulated before they are added to others */
    SCRATCH_BYTES = 1 << 19,     /* for partial sums that threads share */
};

/* Which entries of a matrix share a scale; PER_BOTH: none do, the scale comes from the row's V and the column's. */
enum kind { PER_OUTER, PER_INNER, PER_ENTRY, PER_TENSOR, PER_BOTH };
enum dtype { F32, F64, BF16, F16, DTYPES };

/* ---------------------------------------------------------------------------------------- what Python hands over */

/* Incremented with every change of an exported function; the fields below describe themselves. */
enum { INTERFACE = 5 };

typedef void *pointer;
typedef const int64_t *indices;

typedef struct {
    pointer data;
    int64_t batch, outer, inner; /* strides, in entries */
} array;

/* A tensor as a matrix of `outer` rows with `inner` entries each: X(type, name) for each field.

     x, g         parameter and gradient
     average      running average of gradients; data is NULL without momentum
     statistic    V
     kind, dtype  of the enums above
     step         the step count: float, or double if step_is_f64
     index        sparse gradient: the table rows of its nnz entries, in any order, with repetitions
     divisor      of the sum of squares over a block
     sums         step in two calls: the sums of squares of the blocks, laid out like the statistic
     stream       stochastic rounding: every tensor draws from a stream of its own
     offsets      sparse gradient by bags: entries from offsets[b] − offset on take row b of the values; else NULL
     offset       of the first entry, offsets[0]
     weights      sparse gradient by bags: what each entry multiplies its row of the values by, in REALs; or NULL
     touched      sparse gradient: takes the number of table rows that it touches, then these rows, in order; or NULL
     matrices     for PER_BOTH: how many there are, each for itself, `batch` entries apart
     columns      for PER_BOTH: V of the columns, while statistic is that of the rows
     whole        for PER_BOTH: V of the matrix, if `combine` (of enum combine) is PRODUCT
     columns_divisor, whole_divisor  of their sums of squares */
#define TENSOR_FIELDS(X)                                                                                               \
    X(array, x)                                                                                                        \
    X(array, g)                                                                                                        \
    X(array, average)                                                                                                  \
    X(array, statistic)                                                                                                \
    X(int64_t, outer)                                                                                                  \
    X(int64_t, inner)                                                                                                  \
    X(int64_t, kind)                                                                                                   \
    X(int64_t, dtype)                                                                                                  \
    X(pointer, step)                                                                                                   \
    X(int64_t, step_is_f64)                                                                                            \
    X(indices, index)                                                                                                  \
    X(int64_t, nnz)                                                                                                    \
    X(int64_t, divisor)                                                                                                \
    X(pointer, sums)                                                                                                   \
    X(uint64_t, stream)                                                                                                \
    X(indices, offsets)                                                                                                \
    X(int64_t, bags)                                                                                                   \
    X(int64_t, offset)                                                                                                 \
    X(pointer, weights)                                                                                                \
    X(pointer, touched)                                                                                                \
    X(int64_t, matrices)                                                                                               \
    X(array, columns)                                                                                                  \
    X(array, whole)                                                                                                    \
    X(int64_t, columns_divisor)                                                                                        \
    X(int64_t, whole_divisor)                                                                                          \
    X(int64_t, combine)

/* A feature of a batch: bags of rows of a table, whose sums are some columns of the output. X(type, name):

     table       with `rows` rows of `columns` entries each, `row_stride` entries apart
     column      of the output, the first
     is_mean     whether sums are divided by the lengths of their bags */
#define FEATURE_FIELDS(X)                                                                                              \
    X(pointer, table)                                                                                                  \
    X(int64_t, rows)                                                                                                   \
    X(int64_t, columns)                                                                                                \
    X(int64_t, row_stride)                                                                                             \
    X(int64_t, column)                                                                                                 \
    X(int64_t, is_mean)

/* Python packs words of 8 bytes: no field has another size, and there is no padding. */
#define FIELD_BYTES(type, name) +sizeof(type)
#define ASSERT_WORDS(type, name) _Static_assert(sizeof(type) % 8 == 0, #name " does not consist of words of 8 bytes");

typedef struct {
    TENSOR_FIELDS(FIELD)
} tensor;

typedef struct {
    FEATURE_FIELDS(FIELD)
} feature;

TENSOR_FIELDS(ASSERT_WORDS)
FEATURE_FIELDS(ASSERT_WORDS)
CONFIG_FIELDS(ASSERT_WORDS)
_Static_assert(sizeof(array) == 4 * 8, "array has padding");
_Static_assert(sizeof(tensor) == 0 TENSOR_FIELDS(FIELD_BYTES), "tensor has padding");
_Static_assert(sizeof(feature) == 0 FEATURE_FIELDS(FIELD_BYTES), "feature has padding");
_Static_assert(sizeof(config) == 0 CONFIG_FIELDS(FIELD_BYTES), "config has padding");

/* ------------------------------------------------------------------------------------------------------------ tiles */

/* Rows of a matrix, or parts of them, with contiguous entries: in place, or a copy. */
typedef struct {
    void *x, *g, *average, *v;                            /* v: with a scale per row or per entry */
    int64_t x_stride, g_stride, average_stride, v_stride; /* from row to row, in entries */
    const int64_t *row_index;                             /* the rows of x, average and v; NULL: consecutive rows */
    int64_t rows, columns;
} tile_view;

/* Sums of segments of rows of `values`. Entries order[starts[k]] to order[starts[k + 1] - 1] go into row k of the sums;
   the low 32 bits of an entry say which value it takes: a row of `values`, or, if there are value_rows, a number of
   theirs. With weights, by the same number, rows are multiplied by them. */
typedef struct {
    const void *values;
    int64_t row_stride, column_stride; /* of the values, in entries */
    const uint64_t *order;
    int64_t order_count; /* entries that may be prefetched: those of later segments too */
    const uint32_t *value_rows;
    const void *weights;   /* REALs */
    const int64_t *starts; /* of the segments, and the end of the last */
    int64_t rows, columns; /* of the sums */
    int64_t to_stride;     /* of the sums, in REALs */
} gather;

static inline uint32_t value_number(const gather *g, int64_t p) { return (uint32_t)g->order[p]; }
static inline int64_t value_row(const gather *g, int64_t p)
{
    return g->value_rows ? g->value_rows[value_number(g, p)] : value_number(g, p);
}

/* The arithmetic on tiles, for a dtype and a kind of momentum; sums and scales are reals: float, or double for F64. */
typedef struct {
    int64_t entry_bytes, real_bytes;
    void (*read_rows)(const tile_view *t, const settings *s, void *squares);    /* Σg² by row; g joins the average */
    void (*read_columns)(const tile_view *t, const settings *s, void *squares); /* by column, accumulated in squares */
    void (*move_rows)(const tile_view *t, const settings *s, const void *scales);
    void (*move_columns)(const tile_view *t, const settings *s, const void *scales);
    void (*read_both)(const tile_view *t, const settings *s, void *row_squares, void *squares); /* both of these */
    void (*move_both)(const tile_view *t, const settings *s, const void *row_factors, const void *factors);
    void (*step_rows)(const tile_view *t, const settings *s); /* fused: read, V, scale and move, with a scale per row */
    void (*step_entries)(const tile_view *t, const settings *s); /* fused, with a scale per entry */
    void (*compute_scales)(const settings *s, void *v, const int64_t *row_index, const void *squares, void *scales,
                           int64_t n);
    void (*accumulate)(const settings *s, void *v, const int64_t *row_index, const void *squares, int64_t n);
    void (*compute_factors)(const settings *s, const void *v, const int64_t *row_index, const void *whole,
                            void *factors, int64_t n); /* of the scales of rows, if whole is given, or of columns */
    void (*load)(const void *from, int64_t row_stride, int64_t column_stride, const int64_t *row_index, int64_t rows,
                 int64_t columns, void *to);
    void (*add_penalty)(void *g, const void *x, const settings *s, int64_t n);
    void (*store)(const void *from, void *to, int64_t row_stride, int64_t column_stride, const int64_t *row_index,
                  int64_t rows, int64_t columns, uint64_t seed, int64_t row, int64_t column);
    void (*gather_sums)(const gather *g, void *to);
    void (*add)(void *to, const void *from, int64_t n);
    void (*divide)(void *x, int64_t divisor, int64_t n);
} arithmetic;

/* For the CPU that runs this: on entries of this dtype, and on the reals that they are widened to. */
const arithmetic *arithmetic_of(int64_t dtype, enum momentum momentum);
const arithmetic *real_arithmetic_of(int64_t dtype, enum momentum momentum);

static inline int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline void *entry_at(const void *data, int64_t k, int64_t entry_bytes)
{
    return (char *)data + k * entry_bytes;
}
/* NULL for an array that is empty, or not there: what has no memory has no addresses either. */
static inline void *entry_if_any(const void *data, int64_t k, int64_t entry_bytes)
{
    return data ? entry_at(data, k, entry_bytes) : NULL;
}

/* Rows of a tile that is a copy. */
static inline int64_t copied_rows(int64_t columns) { return min(TILE_ROWS, max(1, TILE_ENTRIES / max(1, columns))); }

static inline int exceeds_l1(int64_t columns, int64_t entry_bytes) { return columns * entry_bytes > L1_BYTES; }

/* Into the L2 cache, which has more misses in flight than L1. */
static inline void prefetch_row(const void *row, int64_t bytes)
{
    for (int64_t line = 0; line < min(PREFETCH_LINES * CACHE_LINE_BYTES, bytes); line += CACHE_LINE_BYTES)
        __builtin_prefetch((const char *)row + line, 0, 2);
}

/* The passes of a step. One call makes both; or, where other processes hold parts of a block, a call with READ hands
   out `sums`, the caller adds them up into V, and a call with MOVE updates x. */
enum { READ = 1, MOVE = 2 };

#define EXPORT __attribute__((visibility("default")))

#endif
