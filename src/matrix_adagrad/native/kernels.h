/* What the kernels share: tensors as matrices, the settings of an update, and tiles, the pieces that work is done in.

   Plain C with OpenMP and without torch's headers: pointers and strides come in. What is done together is decided by
   shapes alone and every sum has a fixed order, so that the bits are the same for any number of threads; and nothing is
   contracted to fused multiply-adds (see the build flags), so that they are the same for any width of registers. How a
   row is summed depends on its length alone, and so do columns: a matrix that is cut between them has the same bits. */

#ifndef MATRIX_ADAGRAD_KERNELS_H
#define MATRIX_ADAGRAD_KERNELS_H

#include <stdint.h>

enum {
    NEAR = 1 << 14,    /* bytes that stay in the nearest cache until they are needed again */
    FEW = 1024,        /* entries of short rows that are read before they are moved */
    TOGETHER = 4,      /* rows of more than NEAR bytes that are stepped side by side */
    AHEAD = 1 << 11,   /* bytes that memory is asked for before they are worked on */
    FAR = 1 << 22,     /* bytes that stay in the last cache, which others use too */
    ROWS = 64,         /* the most rows whose scales are taken together */
    TILE = 2048,       /* entries of a tile that is copied: a few such buffers stay in the nearest cache */
    LONG = 8 * TILE,   /* entries of a row that are read or moved in one go, where nothing is copied */
    SEGMENT = 4 * LONG, /* entries of a row that are summed together */
    CHUNKS = 16,       /* of a matrix's rows, at most, whose sums by column are taken apart */
    PIECE = 1 << 21,   /* bytes, at most, of a piece of work for one thread */
    LEAST = 1 << 14,   /* entries, at least, of a piece */
    PIECES = 64,       /* of a tensor, at least, if they are not too small then */
    LARGE = 1 << 18,   /* entries from which a tensor is worth cutting into pieces */
    STRIPE = 8192,     /* columns that are summed together */
    WIDE = 2048,       /* columns, at most, whose sums or scales stay in the nearest cache */
    SERIAL = 1 << 15,  /* entries up to which one thread is sooner done than several */
    SCRATCH = 1 << 19, /* bytes, at most, for partial sums */
};

enum { INTERFACE = 1 }; /* grows with every change of what is handed over, or of a function that is exported */
enum kind { PER_OUTER, PER_INNER, PER_ENTRY, PER_TENSOR }; /* which entries of a matrix share a scale */
enum dtype { F32, F64, BF16, F16, DTYPES };

typedef struct {
    void *data;
    int64_t outer, inner; /* strides, in entries */
} array;

/* A tensor as a matrix of `outer` rows with `inner` entries each. All fields have 8 bytes. */
typedef struct {
    array x, g, average, statistic;
    int64_t outer, inner, kind, dtype;
    void *step; /* the number of steps: float, or double if step_is_f64 */
    int64_t step_is_f64;
    const int64_t *index; /* of a sparse gradient: its rows, `touched` of them, in any order and any number of times */
    int64_t touched;
    int64_t members; /* what the sum of squares over a block is divided by */
    void *sums;      /* the sums of squares over the parts of blocks that lie here, laid out like the statistic */
    uint64_t number; /* of the parameter: each draws random numbers of its own */
    const int64_t *offsets; /* of a sparse gradient by bags: entries from offsets[b] on take row b of the values; or NULL */
    int64_t bags;
} tensor;

typedef struct {
    double lr, eps, weight_decay, beta1, beta2;
    int64_t momentum, bias_correction, decoupled, maximize;
    uint64_t seed; /* of the stochastic rounding to bfloat16; 0 rounds to the nearest */
} rule;

/* A rule for one tensor at one step. */
typedef struct {
    double lr, variance, eps; /* the scale: lr / (√(variance · V) + eps) */
    double keep, fresh;       /* V ← keep · V + fresh · Σg² */
    double beta1, join;       /* D ← D + join · (g − D), the running average; join is 1 − β₁ */
    double sign, l2, shrink;  /* g ← sign · g + l2 · x, and x ← shrink · x − scale · D */
    int64_t momentum;
    uint64_t seed;
} settings;

/* Some rows of a matrix, or parts of them, whose entries are neighbours in memory. */
typedef struct {
    void *x, *g, *average, *v;    /* v: of a scale per row, or per entry */
    int64_t x_row, g_row, average_row, v_row; /* from one row to the next */
    const int64_t *places;        /* the rows that x, average and v are taken from; NULL for all in turn */
    int64_t rows, columns;
    double sign;
} tile;

/* The arithmetic on tiles, for one dtype; sums and scales are float, or double for F64. */
typedef struct {
    int64_t size, real; /* bytes of an entry and of a sum */
    void (*read_rows)(const tile *t, const settings *s, void *squares);    /* Σg² of each row; g joins the average */
    void (*read_columns)(const tile *t, const settings *s, void *squares); /* the same by column, added to squares */
    void (*move_rows)(const tile *t, const settings *s, const void *scales);
    void (*move_columns)(const tile *t, const settings *s, const void *scales);
    void (*step_rows)(const tile *t, const settings *s);    /* V and scale of each row between reading and moving it */
    void (*step_entries)(const tile *t, const settings *s);
    void (*scales)(const settings *s, void *v, const int64_t *places, const void *squares, void *scales, int64_t n);
    void (*load)(const void *from, int64_t outer, int64_t inner, const int64_t *places, int64_t rows, int64_t columns,
                 void *to);
    void (*penalize)(void *g, const void *x, const settings *s, int64_t n);
    void (*store)(const void *from, void *to, int64_t outer, int64_t inner, const int64_t *places, int64_t rows,
                  int64_t columns, uint64_t seed, int64_t i, int64_t j);
    void (*gather)(const void *values, int64_t row, int64_t inner, const uint64_t *order, int64_t length,
                   const int64_t *starts, int64_t rows, int64_t columns, void *to);
    void (*add)(void *to, const void *from, int64_t n);
} arithmetic;

const arithmetic *arithmetic_of(int64_t dtype); /* for the CPU that runs this */

settings begin_step(const tensor *t, const rule *r); /* the rule for this tensor; counts the step */

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int are_long(int64_t columns, int64_t size) { return columns * size > NEAR; } /* rows, for side by side */
/* A row that is worked on soon, for the second cache: it has more lines under way than the first. The CPU goes on by itself. */
static inline void prefetch_row(const void *row, int64_t bytes)
{
    enum { LINE = 64, LINES = 8 };
    for (int64_t line = 0; line < least(LINES * LINE, bytes); line += LINE)
        __builtin_prefetch((const char *)row + line, 0, 2);
}
static inline void *at(const void *data, int64_t entries, int64_t size) { return (char *)data + entries * size; }

/* What is done to a tile; or to a tensor: a step is both. Where parts of a block lie on other machines, reading hands out
   `sums`, and moving finds V as it shall be. */
enum { READ = 1, MOVE = 2 };

#define EXPORT __attribute__((visibility("default")))

#endif
