/* The step of `step/sparse.py`: gradients that hold a few rows of a table, in any order and any number of times.

   The rows are sorted, those that belong together are summed, and the touched rows of the table are updated: the cost
   depends on the gradient, not on the table. */

#include "kernels.h"
#include "threads.h"

#include <stddef.h>
#include <string.h>

/* --------------------------------------------------------------------------------------------------------- sorting */

enum {
    DIGIT = 11,
    BUCKETS = 1 << DIGIT,
    ALONE = 1 << 12, /* entries that one thread sorts sooner than several */
    SPAN = 1 << 11,  /* entries, about, that a thread takes at a time */
};

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
    PARALLEL_EVENLY
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
    PARALLEL_EVENLY
    for (int64_t c = 0; c < threads; c++)
        for (int64_t k = least(n, c * share); k < least(n, (c + 1) * share); k++)
            to[counts[c * BUCKETS + (int64_t)(from[k] >> shift & (uint64_t)mask)]++] = from[k];
}

static int64_t row_of(uint64_t entry) { return (int64_t)(entry >> 32); }

/* The number of its bag, for each entry; whether bags go through all entries in their order. */
static int number_bags(const tensor *t, uint64_t *entries, int64_t threads)
{
    int64_t share = ceil_div(t->bags, threads), lost = 0;
    PARALLEL_EVENLY
    for (int64_t c = 0; c < threads; c++) {
        int64_t b = least(t->bags, c * share), last = least(t->bags, b + share), k = read_once(t->offsets + b), end = k;
        int known = k >= 0 && (b || k == 0);
        for (; known && b < last; b++) {
            end = read_once(t->offsets + b + 1);
            known = k <= end && end <= t->touched;
            for (; known && k < end; k++) entries[k] = (uint64_t)b;
        }
        if (!known || (b == t->bags && end != t->touched)) tell(&lost, 1);
    }
    return !lost;
}

enum { SORTED, UNSORTED, REFUSED };

/* Of each entry of the gradient: row << 32 | the row of the values that it takes. Whoever else writes to the index, each row
   is read once, and is one of the table's, or the whole is refused. */
static int read_some(const tensor *t, int64_t start, int64_t end, uint64_t *entries)
{
    const int64_t *index = t->index;
    uint64_t last = 0, last_bag = 0, before = 0, falls = 0;
    int by_bags = t->offsets != NULL;
    for (int64_t k = start; k < end; k++) {
        uint64_t row = (uint64_t)read_once(index + k), value = (uint64_t)k;
        if (by_bags) value = entries[k], last_bag = value > last_bag ? value : last_bag;
        last = row > last ? row : last;
        falls |= row - before; /* its topmost bit */
        entries[k] = row << 32 | value;
        before = row;
    }
    int known = start == end || (last < (uint64_t)t->outer && (!by_bags || last_bag < (uint64_t)t->bags));
    return !known ? REFUSED : (int64_t)falls < 0 ? UNSORTED : SORTED;
}

static int read_entries(const tensor *t, uint64_t *entries, int64_t threads)
{
    int64_t n = t->touched, share = ceil_div(n, threads), lost = 0, falls = 0;
    if (t->offsets && !number_bags(t, entries, threads)) return REFUSED;
    PARALLEL_EVENLY
    for (int64_t c = 0; c < threads; c++) {
        int order = read_some(t, least(n, c * share), least(n, (c + 1) * share), entries);
        if (order == REFUSED) tell(&lost, 1);
        if (order == UNSORTED) tell(&falls, 1);
    }
    for (int64_t k = share; k < n; k += share) falls |= row_of(entries[k - 1]) > row_of(entries[k]);
    return lost ? REFUSED : falls ? UNSORTED : SORTED;
}

/* The entries by their rows; they or `spare` hold them then. */
static const uint64_t *sort(const tensor *t, uint64_t *entries, uint64_t *spare, int64_t *counts, int64_t threads)
{
    int bits = bits_of(t->outer - 1), passes = (int)ceil_div(bits, DIGIT);
    int digit = passes ? (int)ceil_div(bits, passes) : 0;
    for (int p = 0; p < passes; p++) {
        sort_by_digit(entries, spare, t->touched, 32 + p * digit, digit, counts, t->touched < ALONE ? 1 : threads);
        uint64_t *sorted = spare;
        spare = entries, entries = sorted;
    }
    return entries;
}

/* ---------------------------------------------------------------------------------------------------- touched rows */

typedef struct {
    const tensor *t;
    const settings *s;
    const arithmetic *stored, *f; /* of the table, and of the tiles */
    int staged;                   /* rows of the table are copied to a tile and back */
    const uint64_t *order;        /* the gradient's entries, sorted */
    int64_t batch, capacity;      /* rows, and entries, of a tile */
    char *room;                   /* of all threads */
} work;

/* Some touched rows, each once, and where their entries start in `order`. */
typedef struct {
    int64_t count, rows[ROWS], starts[ROWS + 1];
} touched;

/* A walk through the touched rows whose entries lie between two places: the rows that come next are fetched meanwhile. */
typedef struct {
    const work *w;
    int64_t end;
    int turn;
    touched rows[2];
} walk;

static void fetch(const array *a, const touched *rows, int64_t columns, int64_t size)
{
    for (int64_t k = 0; a->data && k < rows->count; k++) prefetch_row(at(a->data, rows->rows[k] * a->outer, size), columns * size);
}

/* The next rows, from entry k on. */
static void take(const walk *v, int64_t k, touched *next)
{
    const work *w = v->w;
    const tensor *t = w->t;
    next->count = 0;
    while (k < v->end && next->count < w->batch) {
        int64_t row = row_of(w->order[k]);
        next->rows[next->count] = row, next->starts[next->count++] = k;
        while (k < v->end && row_of(w->order[k]) == row) k++;
    }
    next->starts[next->count] = k;
    fetch(&t->x, next, t->inner, w->stored->size);
    fetch(&t->average, next, t->inner, w->f->real);
    if (t->kind == PER_ENTRY || t->kind == PER_OUTER)
        fetch(&t->statistic, next, t->kind == PER_ENTRY ? t->inner : 1, w->f->real);
}

/* The first entry of a row, from k on: a row belongs to where it starts. It may be long, and is not walked through. */
static int64_t where_a_row_starts(const work *w, int64_t k)
{
    if (k == 0 || k == w->t->touched) return k;
    int64_t row = row_of(w->order[k - 1]), end = w->t->touched;
    while (k < end) {
        int64_t middle = k + (end - k) / 2;
        if (row_of(w->order[middle]) == row) k = middle + 1;
        else end = middle;
    }
    return k;
}

static walk start(const work *w, int64_t from, int64_t to)
{
    walk v = {.w = w, .end = where_a_row_starts(w, to)};
    take(&v, where_a_row_starts(w, from), &v.rows[0]);
    return v;
}

/* The rows that are next in a walk, or NULL at its end. */
static const touched *next(walk *v)
{
    const touched *now = &v->rows[v->turn];
    if (!now->count) return NULL;
    take(v, now->starts[now->count], &v->rows[v->turn = !v->turn]);
    return now;
}

/* ----------------------------------------------------------------------------------------------------------- tiles */

enum { G, X, AVERAGE, V, BUFFERS };

static void *buffer(const work *w, int which)
{
    return at(w->room, (BUFFERS * thread_number() + which) * w->capacity, w->f->real);
}

/* Rows of the table, and the sum of the gradient there. */
static tile open_rows(const work *w, const touched *rows)
{
    const tensor *t = w->t;
    const int64_t *places = rows->rows, columns = t->inner, n = rows->count;
    tile e = {.rows = n, .columns = columns, .sign = w->s->sign, .g = buffer(w, G), .g_row = columns};
    w->stored->gather(t->g.data, t->g.outer, t->g.inner, w->order, t->touched, rows->starts, n, columns, e.g);
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

static void close_rows(const work *w, const tile *e, const touched *rows, int what)
{
    const tensor *t = w->t;
    const int64_t *places = rows->rows;
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
    for (int64_t k = 0; k < w->t->touched; k += SPAN) {
        double squares[ROWS], scales[ROWS];
        const touched *rows;
        for (walk v = start(w, k, least(w->t->touched, k + SPAN)); (rows = next(&v));) {
            tile e = open_rows(w, rows);
            if (w->t->kind == PER_ENTRY) w->f->step_entries(&e, w->s);
            else {
                w->f->read_rows(&e, w->s, squares);
                w->f->scales(w->s, w->t->statistic.data, rows->rows, squares, scales, e.rows);
                w->f->move_rows(&e, w->s, scales);
            }
            close_rows(w, &e, rows, READ | MOVE);
        }
    }
}

/* Scales that all rows share, for a column or for the whole: chunks of the gradient have sums of their own, added in order. */
static void per_table(const work *w, int64_t threads, char *sums, int64_t chunks)
{
    const tensor *t = w->t;
    int64_t real = w->f->real, width = t->inner, share = ceil_div(t->touched, chunks);
    memset(sums, 0, (size_t)(chunks * width * real));
    PARALLEL_FOR
    for (int64_t c = 0; c < chunks; c++) {
        const touched *rows;
        for (walk v = start(w, least(t->touched, c * share), least(t->touched, (c + 1) * share)); (rows = next(&v));) {
            tile e = open_rows(w, rows);
            void *level = buffer(w, V);
            memset(level, 0, (size_t)(width * real));
            w->f->read_columns(&e, w->s, level);
            w->f->add(at(sums, c * width, real), level, width);
            close_rows(w, &e, rows, READ);
        }
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
    for (int64_t k = 0; k < t->touched; k += SPAN) {
        const touched *rows;
        for (walk v = start(w, k, least(t->touched, k + SPAN)); (rows = next(&v));) {
            tile e = open_rows(w, rows);
            w->f->move_columns(&e, w->s, sums);
            close_rows(w, &e, rows, MOVE);
        }
    }
}

/* What a table needs besides, in bytes: counts of entries, tiles, entries being sorted, and sums by column. */
typedef struct {
    int64_t batch, capacity, chunks; /* rows and entries of a tile; chunks of the gradient with sums of their own */
    int64_t counts, tiles, spare, sums, all;
} needs;

static int all_rows_share(const tensor *t) { return t->kind == PER_INNER || t->kind == PER_TENSOR; }

static needs needs_of(const tensor *t, int64_t threads)
{
    int64_t width = most(1, t->inner), real = t->dtype == F64 ? sizeof(double) : sizeof(float);
    needs n = {.batch = least(ROWS, most(1, TILE / width)), .capacity = most(TILE, width)};
    n.chunks = most(1, least(ROWS, least(SCRATCH / real / width, ceil_div(t->touched, 4 * n.batch))));
    n.counts = threads * BUCKETS * (int64_t)sizeof(int64_t);
    n.tiles = threads * BUFFERS * n.capacity * real;
    n.spare = t->touched * (int64_t)sizeof(uint64_t);
    n.sums = all_rows_share(t) ? n.chunks * width * real : 0;
    n.all = n.counts + n.tiles + n.spare + n.sums;
    return n;
}

static void step(const tensor *t, const rule *r, uint64_t *entries, int is_sorted, int64_t threads, char *room)
{
    const arithmetic *stored = arithmetic_of(t->dtype), *f = arithmetic_of(t->dtype == F64 ? F64 : F32);
    needs n = needs_of(t, threads);
    char *counts = room, *tiles = counts + n.counts, *spare = tiles + n.tiles, *sums = spare + n.spare;
    settings s = begin_step(t, r);
    int neighbours = t->x.inner == 1 && (!s.momentum || t->average.inner == 1) &&
                     (t->kind != PER_ENTRY || t->statistic.inner == 1);
    int staged = !neighbours || s.l2 != 0 || s.seed != 0 || stored != f;
    const uint64_t *order = is_sorted ? entries : sort(t, entries, (uint64_t *)spare, (int64_t *)counts, threads);
    work w = {t, &s, stored, f, staged, order, n.batch, n.capacity, tiles};
    if (all_rows_share(t)) per_table(&w, threads, sums, n.chunks);
    else per_row(&w, threads);
}

static int64_t threads_for(const tensor *t, int64_t threads) { return t->touched * t->inner <= SERIAL ? 1 : threads; }

/* One step of every table. Returns 0; or, if there is not enough room, the bytes that are needed; or −1 − i if table i is the
   first whose gradient has a row that the table has not, or bags that do not go through its rows: then nothing was done. */
EXPORT int64_t matrix_adagrad_sparse_step(const tensor *tensors, int64_t count, const rule *r, int64_t threads, char *room,
                                          int64_t bytes)
{
    int64_t largest = 0, needed = 0;
    for (int64_t i = 0; i < count; i++) {
        largest = most(largest, needs_of(&tensors[i], threads_for(&tensors[i], threads)).all);
        needed += (tensors[i].touched + 1) * (int64_t)sizeof(uint64_t);
    }
    largest = ceil_div(largest, sizeof(uint64_t)) * (int64_t)sizeof(uint64_t);
    if (largest + needed > bytes) return largest + needed;
    int64_t *order = (int64_t *)(room + largest); /* of each table's entries, which follow */
    uint64_t *entries = (uint64_t *)(order + count);
    for (int64_t i = 0; i < count; entries += tensors[i++].touched) {
        order[i] = read_entries(&tensors[i], entries, threads_for(&tensors[i], threads));
        if (order[i] == REFUSED) return -1 - i;
    }
    entries = (uint64_t *)(order + count);
    for (int64_t i = 0; i < count; entries += tensors[i++].touched)
        if (!tensors[i].touched) begin_step(&tensors[i], r);
        else step(&tensors[i], r, entries, order[i] == SORTED, threads_for(&tensors[i], threads), room);
    return 0;
}
