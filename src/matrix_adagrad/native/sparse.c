/* The step of `step/sparse.py`: gradients that hold a few rows of a table, in any order and any number of times.

   The rows are sorted, those that belong together are summed, and the touched rows of the table are updated: the cost
   depends on the gradient, not on the table. */

#include "kernels.h"

#include <stdlib.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
#endif

/* --------------------------------------------------------------------------------------------------------- sorting */

enum { DIGIT = 11, BUCKETS = 1 << DIGIT, ALONE = 1 << 12 }; /* ALONE: what one thread sorts sooner than several */

static int bits_of(int64_t n)
{
    int bits = 0;
    while (n >> bits) bits++;
    return bits;
}

/* One pass of a radix sort, which keeps the order of equals, so that it does not matter how many threads share it. */
static void sort_by_digit(const uint64_t *from, uint64_t *to, int64_t n, int shift, int digit, int64_t *counts,
                          int64_t threads)
{
    int64_t share = ceil_div(n, threads), mask = ((int64_t)1 << digit) - 1;
    memset(counts, 0, (size_t)threads * BUCKETS * sizeof *counts);
#pragma omp parallel for num_threads((int)threads) schedule(static, 1)
    for (int64_t c = 0; c < threads; c++)
        for (int64_t k = least(n, c * share); k < least(n, (c + 1) * share); k++)
            counts[c * BUCKETS + (int64_t)(from[k] >> shift & (uint64_t)mask)]++;
    int64_t before = 0;
    for (int64_t b = 0; b <= mask; b++)
        for (int64_t c = 0; c < threads; c++) {
            int64_t here = counts[c * BUCKETS + b];
            counts[c * BUCKETS + b] = before;
            before += here;
        }
#pragma omp parallel for num_threads((int)threads) schedule(static, 1)
    for (int64_t c = 0; c < threads; c++)
        for (int64_t k = least(n, c * share); k < least(n, (c + 1) * share); k++)
            to[counts[c * BUCKETS + (int64_t)(from[k] >> shift & (uint64_t)mask)]++] = from[k];
}

typedef struct {
    uint64_t *order; /* row << 32 | its position in the gradient, sorted */
    int64_t *rows;   /* the rows that are touched, each once */
    int64_t *starts; /* where they start in `order` */
    int64_t count;
} sorted_rows;

static sorted_rows sort(const tensor *t, uint64_t *room, int64_t *counts, int64_t threads)
{
    int64_t n = t->touched;
    uint64_t *from = room, *to = room + n, increasing = 1;
    for (int64_t k = 0; k < n; k++) {
        from[k] = (uint64_t)t->index[k] << 32 | (uint64_t)k;
        increasing &= k == 0 || from[k - 1] <= from[k];
    }
    int bits = increasing ? 0 : bits_of(t->outer - 1), passes = (int)ceil_div(bits, DIGIT);
    int digit = passes ? (int)ceil_div(bits, passes) : 0;
    for (int p = 0; p < passes; p++) {
        sort_by_digit(from, to, n, 32 + p * digit, digit, counts, n < ALONE ? 1 : threads);
        uint64_t *sorted = to;
        to = from, from = sorted;
    }
    sorted_rows s = {from, (int64_t *)room + 2 * n, (int64_t *)room + 3 * n, 0};
    for (int64_t k = 0; k < n; k++) {
        int64_t row = (int64_t)(from[k] >> 32);
        s.rows[s.count] = row; /* overwritten while the same row goes on */
        s.starts[s.count] = k == 0 || row != (int64_t)(from[k - 1] >> 32) ? k : s.starts[s.count];
        s.count += k + 1 == n || row != (int64_t)(from[k + 1] >> 32);
    }
    s.starts[s.count] = n;
    return s;
}

/* --------------------------------------------------------------------------------------------------------- batches */

typedef struct {
    const tensor *t;
    const settings *s;
    const arithmetic *stored, *f; /* of the table, and of the tiles */
    int staged;                   /* rows of the table are copied to a tile and back */
    sorted_rows rows;
    int64_t batch, capacity; /* rows, and entries, of a tile */
    char *room;              /* of all threads */
} work;

enum { G, X, AVERAGE, V, BUFFERS };

static void *buffer(const work *w, int which)
{
    return at(w->room, (BUFFERS * omp_get_thread_num() + which) * w->capacity, w->f->real);
}

static void prefetch(const array *a, const int64_t *rows, int64_t n, int64_t columns, int64_t size)
{
    enum { LINE = 64, LINES = 8 };
    for (int64_t k = 0; k < n; k++)
        for (int64_t line = 0; line < least(LINES, ceil_div(columns * size, LINE)); line++)
            __builtin_prefetch((char *)at(a->data, rows[k] * a->outer, size) + line * LINE);
}

/* The touched rows k to k + n, and the sum of the gradient there. */
static tile open_rows(const work *w, int64_t k, int64_t n)
{
    const tensor *t = w->t;
    const int64_t *places = w->rows.rows + k, columns = t->inner;
    prefetch(&t->x, places, n, columns, w->stored->size);
    tile e = {.rows = n, .columns = columns, .sign = w->s->sign, .g = buffer(w, G), .g_row = columns};
    w->stored->gather(t->g.data, t->g.outer, t->g.inner, w->rows.order, w->rows.starts + k, n, columns, e.g);
    if (!w->staged) {
        e.x = t->x.data, e.x_row = t->x.outer, e.average = t->average.data, e.average_row = t->average.outer;
        e.v = t->statistic.data, e.v_row = t->statistic.outer, e.places = places;
        return e;
    }
    e.x = buffer(w, X), e.average = buffer(w, AVERAGE), e.v = buffer(w, V);
    e.x_row = e.average_row = e.v_row = columns;
    w->stored->load(t->x.data, t->x.outer, t->x.inner, places, n, columns, e.x);
    if (w->s->momentum) w->f->load(t->average.data, t->average.outer, t->average.inner, places, n, columns, e.average);
    if (t->kind == PER_ENTRY) w->f->load(t->statistic.data, t->statistic.outer, t->statistic.inner, places, n, columns, e.v);
    if (w->s->l2 != 0) {
        w->f->penalize(e.g, e.x, w->s, n * columns);
        e.sign = 1;
    }
    return e;
}

static void close_rows(const work *w, const tile *e, int64_t k, int what)
{
    const tensor *t = w->t;
    const int64_t *places = w->rows.rows + k;
    if (!w->staged) return;
    if (what & MOVE)
        w->stored->store(e->x, t->x.data, t->x.outer, t->x.inner, places, e->rows, e->columns, w->s->seed, 0, 0);
    if (what & READ && w->s->momentum)
        w->f->store(e->average, t->average.data, t->average.outer, t->average.inner, places, e->rows, e->columns, 0, 0, 0);
    if (t->kind == PER_ENTRY)
        w->f->store(e->v, t->statistic.data, t->statistic.outer, t->statistic.inner, places, e->rows, e->columns, 0, 0, 0);
}

/* ---------------------------------------------------------------------------------------------------------- tables */

/* Rows that have scales of their own, for the row or for its entries: all is done at once. */
static void per_row(const work *w, int64_t threads)
{
    PARALLEL_FOR
    for (int64_t k = 0; k < w->rows.count; k += w->batch) {
        double squares[ROWS], scales[ROWS];
        tile e = open_rows(w, k, least(w->batch, w->rows.count - k));
        if (w->t->kind == PER_ENTRY) w->f->step_entries(&e, w->s);
        else {
            w->f->read_rows(&e, w->s, squares);
            w->f->scales(w->s, w->t->statistic.data, w->rows.rows + k, squares, scales, e.rows);
            w->f->move_rows(&e, w->s, scales);
        }
        close_rows(w, &e, k, READ | MOVE);
    }
}

/* Scales that all rows share, for a column or for the whole: chunks of rows have sums of their own, added in order. */
static void per_table(const work *w, int64_t threads, char *sums, int64_t chunks)
{
    const tensor *t = w->t;
    int64_t real = w->f->real, width = t->inner, share = ceil_div(ceil_div(w->rows.count, w->batch), chunks) * w->batch;
    memset(sums, 0, (size_t)(chunks * width * real));
    PARALLEL_FOR
    for (int64_t c = 0; c < chunks; c++)
        for (int64_t k = c * share; k < least(w->rows.count, (c + 1) * share); k += w->batch) {
            tile e = open_rows(w, k, least(w->batch, least(w->rows.count, (c + 1) * share) - k));
            void *level = buffer(w, V);
            memset(level, 0, (size_t)(width * real));
            w->f->read_columns(&e, w->s, level);
            w->f->add(at(sums, c * width, real), level, width);
            close_rows(w, &e, k, READ);
        }
    for (int64_t c = 1; c < chunks; c++) w->f->add(sums, at(sums, c * width, real), width);
    if (t->kind == PER_TENSOR) {
        double sum = 0;
        for (int64_t j = 0; j < width; j++) sum += real == 8 ? ((double *)sums)[j] : ((float *)sums)[j];
        if (real == 8) *(double *)sums = sum;
        else *(float *)sums = (float)sum;
        w->f->scales(w->s, t->statistic.data, NULL, sums, sums, 1);
        for (int64_t j = 1; j < width; j++) memcpy(at(sums, j, real), sums, (size_t)real);
    } else w->f->scales(w->s, t->statistic.data, NULL, sums, sums, width);
    PARALLEL_FOR
    for (int64_t k = 0; k < w->rows.count; k += w->batch) {
        tile e = open_rows(w, k, least(w->batch, w->rows.count - k));
        w->f->move_columns(&e, w->s, sums);
        close_rows(w, &e, k, MOVE);
    }
}

static int64_t step(const tensor *t, const rule *r, int64_t threads)
{
    const arithmetic *stored = arithmetic_of(t->dtype), *f = arithmetic_of(t->dtype == F64 ? F64 : F32);
    int64_t n = t->touched, width = t->inner, capacity = most(TILE, width);
    int64_t batch = least(ROWS, most(1, TILE / most(1, width)));
    int64_t chunks = most(1, least(ROWS, least(SCRATCH / f->real / most(1, width), ceil_div(n, 4 * batch))));
    uint64_t *order = malloc((size_t)(4 * n + 1) * sizeof *order);
    int64_t *counts = malloc((size_t)threads * BUCKETS * sizeof *counts);
    char *room = malloc((size_t)(threads * BUFFERS * capacity * f->real));
    char *sums = malloc((size_t)(chunks * most(1, width) * f->real));
    int64_t failed = !order || !counts || !room || !sums ? -1 : 0;
    if (!failed) {
        settings s = begin_step(t, r);
        int neighbours = t->x.inner == 1 && (!s.momentum || t->average.inner == 1) &&
                         (t->kind != PER_ENTRY || t->statistic.inner == 1);
        int staged = !neighbours || s.l2 != 0 || s.seed != 0 || stored != f;
        work w = {t, &s, stored, f, staged, sort(t, order, counts, threads), batch, capacity, room};
        if (t->kind == PER_INNER || t->kind == PER_TENSOR) per_table(&w, threads, sums, chunks);
        else per_row(&w, threads);
    }
    free(order), free(counts), free(room), free(sums);
    return failed;
}

/* One step of every table; whose rows are out of range must not come here. */
EXPORT int64_t matrix_adagrad_sparse_step(const tensor *tensors, int64_t count, const rule *r, int64_t threads)
{
    int64_t failed = 0;
    for (int64_t i = 0; i < count && !failed; i++)
        if (tensors[i].touched)
            failed = step(&tensors[i], r, tensors[i].touched * tensors[i].inner <= SERIAL ? 1 : threads);
        else begin_step(&tensors[i], r);
    return failed;
}
