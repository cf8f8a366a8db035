/* The step of `step/reference.py` for a list of tensors with dense gradients. */

#include "kernels.h"
#include "threads.h"

#include <math.h>
#include <string.h>

extern const arithmetic *const ARITHMETIC_ANYWHERE[DTYPES], *const ARITHMETIC_AVX2[DTYPES],
    *const ARITHMETIC_AVX512[DTYPES];

enum { ANYWHERE, AVX2, AVX512 };
static int64_t widest = AVX512;

/* The bits are the same with wider registers and with narrower ones; tests look at both. */
EXPORT void matrix_adagrad_use_at_most(int64_t width) { widest = width; }

const arithmetic *arithmetic_of(int64_t dtype)
{
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HAS(feature) __builtin_cpu_supports(feature)
    if (widest >= AVX2 && HAS("avx2") && HAS("bmi2") && HAS("fma") && HAS("f16c")) {
        int is_wide = HAS("avx512f") && HAS("avx512bw") && HAS("avx512dq") && HAS("avx512vl");
        return (widest >= AVX512 && is_wide ? ARITHMETIC_AVX512 : ARITHMETIC_AVX2)[dtype];
    }
#undef HAS
#endif
    return ARITHMETIC_ANYWHERE[dtype];
}

static settings settings_at(double step, const tensor *t, const rule *r)
{
    int corrected = r->momentum && r->bias_correction;
    settings s = {
        .lr = corrected && r->beta1 > 0 ? r->lr / -expm1(step * log1p(r->beta1 - 1)) : r->lr,
        .variance = corrected && r->beta2 > 0 ? 1 / -expm1(step * log1p(r->beta2 - 1)) : 1,
        .eps = r->eps,
        .keep = r->momentum ? r->beta2 : 1,
        .fresh = (r->momentum ? 1 - r->beta2 : 1) / (double)t->members,
        .beta1 = r->beta1,
        .join = 1 - r->beta1,
        .sign = r->maximize ? -1 : 1,
        .l2 = r->decoupled ? 0 : r->weight_decay,
        .shrink = r->decoupled ? 1 - r->lr * r->weight_decay : 1,
        .momentum = r->momentum,
        .seed = t->dtype == BF16 && r->seed ? (r->seed + t->number * 0x9e3779b97f4a7c15u) | 1 : 0,
    };
    return s;
}

settings begin_step(const tensor *t, const rule *r)
{
    if (t->step_is_f64) return settings_at(*(double *)t->step += 1, t, r);
    return settings_at(*(float *)t->step += 1, t, r);
}

static settings settings_of(const tensor *t, const rule *r, int what)
{
    if (what == (READ | MOVE)) return begin_step(t, r);
    return settings_at(t->step_is_f64 ? *(double *)t->step : *(float *)t->step, t, r);
}

/* ---------------------------------------------------------------------------------------------------------- tiles */

typedef struct {
    const tensor *t;
    const settings *s;
    int what;                     /* READ, MOVE or both */
    const arithmetic *stored, *f; /* of the entries as they are in memory, and of those in a tile */
    int staged;                   /* tiles are copies, for entries are not neighbours, or not yet what the rule asks for */
    int at_once;                  /* rows are read and moved in one go */
    int64_t rows, columns;        /* of a tile, at most */
    char *rooms;                  /* of all threads, one behind the other */
    int64_t room_bytes;           /* from one of them to the next; 0 where one thread works alone, whatever its number */
} work;

/* What a thread has besides the tensors: copies of a tile, and sums by column, of a few rows and of all. */
typedef struct {
    void *x, *g, *average, *v, *level, *sums;
} buffers;

static int64_t room_bytes(const tensor *t)
{
    int64_t real = t->dtype == F64 ? sizeof(double) : sizeof(float);
    return (4 * TILE + (t->kind == PER_INNER ? 2 * STRIPE : 0)) * real;
}

static buffers room_here(const work *w)
{
    int64_t copy = TILE * w->f->real, stripe = STRIPE * w->f->real;
    char *x = w->rooms + thread_number() * w->room_bytes, *level = x + 4 * copy;
    return (buffers){x, x + copy, x + 2 * copy, x + 3 * copy, level, level + stripe};
}

static work plan(const tensor *t, const settings *s, int what, char *rooms, int64_t room_bytes)
{
    int neighbours = t->x.inner == 1 && t->g.inner == 1 && (!s->momentum || t->average.inner == 1) &&
                     (t->kind != PER_ENTRY || t->statistic.inner == 1);
    const arithmetic *stored = arithmetic_of(t->dtype), *real = arithmetic_of(t->dtype == F64 ? F64 : F32);
    int staged = !neighbours || s->l2 != 0 || s->seed != 0 || (t->kind == PER_ENTRY && stored != real);
    int by_column = t->kind == PER_INNER;
    int64_t longest = !staged ? (by_column ? STRIPE : LONG) : t->kind == PER_INNER ? TILE / 4 : TILE;
    int64_t columns = most(1, least(t->inner, longest));
    int64_t rows = staged ? least(ROWS, most(1, TILE / columns)) : ROWS;
    int at_once = t->kind == PER_OUTER && what == (READ | MOVE) && t->inner <= columns;
    if (at_once && !staged) rows = t->outer;
    return (work){t, s, what, stored, staged ? real : stored, staged, at_once, rows, columns, rooms, room_bytes};
}

static void load(const arithmetic *f, const array *a, int64_t i, int64_t j, const tile *t, void *to)
{
    f->load(at(a->data, i * a->outer + j * a->inner, f->size), a->outer, a->inner, NULL, t->rows, t->columns, to);
}

static void store(const arithmetic *f, const void *from, const array *a, int64_t i, int64_t j, const tile *t,
                  uint64_t seed)
{
    f->store(from, at(a->data, i * a->outer + j * a->inner, f->size), a->outer, a->inner, NULL, t->rows, t->columns, seed,
             i, j);
}

static void *entry(const array *a, int64_t i, int64_t j, int64_t size)
{
    return a->data ? at(a->data, i * a->outer + j, size) : NULL;
}

/* The entries from (i, j) on. */
static tile open_tile(const work *w, int64_t i, int64_t rows, int64_t j, int64_t columns, int what, buffers *b)
{
    const tensor *t = w->t;
    tile e = {.rows = rows, .columns = columns, .sign = w->s->sign};
    if (t->kind == PER_OUTER) e.v = at(t->statistic.data, i, w->f->real);
    if (!w->staged) {
        e.x = entry(&t->x, i, j, w->f->size), e.x_row = t->x.outer;
        e.g = entry(&t->g, i, j, w->f->size), e.g_row = t->g.outer;
        e.average = entry(&t->average, i, j, w->f->real), e.average_row = t->average.outer;
        if (t->kind == PER_ENTRY) e.v = entry(&t->statistic, i, j, w->f->real), e.v_row = t->statistic.outer;
        return e;
    }
    e.x = b->x, e.g = b->g, e.average = b->average;
    e.x_row = e.g_row = e.average_row = columns;
    if (what & MOVE || w->s->l2 != 0) load(w->stored, &t->x, i, j, &e, e.x);
    if (what & READ || !w->s->momentum) {
        load(w->stored, &t->g, i, j, &e, e.g);
        if (w->s->l2 != 0) {
            w->f->penalize(e.g, e.x, w->s, rows * columns);
            e.sign = 1;
        }
    }
    if (w->s->momentum) load(w->f, &t->average, i, j, &e, e.average);
    if (t->kind == PER_ENTRY) {
        e.v = b->v, e.v_row = columns;
        load(w->f, &t->statistic, i, j, &e, e.v);
    }
    return e;
}

static void close_tile(const work *w, const tile *e, int64_t i, int64_t j, int what)
{
    if (!w->staged) return;
    if (what & MOVE) store(w->stored, e->x, &w->t->x, i, j, e, w->s->seed);
    if (what & READ && w->s->momentum) store(w->f, e->average, &w->t->average, i, j, e, 0);
    if (w->t->kind == PER_ENTRY) store(w->f, e->v, &w->t->statistic, i, j, e, 0);
}

/* ---------------------------------------------------------------------------------------------------------- boxes */

typedef struct {
    int64_t i0, i1, j0, j1;
} box;

static double real_at(const void *data, int64_t k, int64_t size)
{
    return size == sizeof(double) ? ((const double *)data)[k] : (double)((const float *)data)[k];
}

static void put_real(void *data, int64_t k, int64_t size, double r)
{
    if (size == sizeof(double)) ((double *)data)[k] = r;
    else ((float *)data)[k] = (float)r;
}

#define FOR_TILES(w, b)                                                                                                  \
    for (int64_t i = (b).i0, j, m, n; m = least((w)->rows, (b).i1 - i), i < (b).i1; i += m)                                \
        for (j = (b).j0; n = least((w)->columns, (b).j1 - j), j < (b).j1; j += n)

static double sum_box(const work *w, box b, buffers *room)
{
    double squares[ROWS], sum = 0;
    FOR_TILES(w, b)
    {
        tile e = open_tile(w, i, m, j, n, READ, room);
        w->f->read_rows(&e, w->s, squares);
        for (int64_t k = 0; k < m; k++) sum += real_at(squares, k, w->f->real);
        close_tile(w, &e, i, j, READ);
    }
    return sum;
}

static void move_box(const work *w, box b, double scale, buffers *room)
{
    double scales[ROWS];
    for (int64_t k = 0; k < ROWS; k++) put_real(scales, k, w->f->real, scale);
    FOR_TILES(w, b)
    {
        tile e = open_tile(w, i, m, j, n, MOVE, room);
        w->f->move_rows(&e, w->s, scales);
        close_tile(w, &e, i, j, MOVE);
    }
}

/* V of n blocks from block k on, and their scales; or only what is known here of their sums. */
static void take_sums(const work *w, int64_t k, const void *squares, void *scales, int64_t n)
{
    if (w->what == READ) memcpy(at(w->t->sums, k, w->f->real), squares, (size_t)(n * w->f->real));
    else w->f->scales(w->s, at(w->t->statistic.data, k, w->f->real), NULL, squares, scales, n);
}

static void take_sum(const work *w, int64_t k, double sum)
{
    double square, scale;
    put_real(&square, 0, w->f->real, sum);
    take_sums(w, k, &square, &scale, 1);
}

/* Of block k, whose V is as it shall be. */
static double scale_of(const work *w, int64_t k)
{
    double scale;
    w->f->scales(w->s, at(w->t->statistic.data, k, w->f->real), NULL, NULL, &scale, 1);
    return real_at(&scale, 0, w->f->real);
}

/* A long row is summed by segments, and these by parts, of which there are never too many for the scratch. */
static int64_t segments_a_part(const work *w)
{
    int64_t room_for = SCRATCH / (int64_t)sizeof(double) / ROWS;
    return ceil_div(ceil_div(w->t->inner, SEGMENT), room_for);
}
static int64_t parts_a_row(const work *w) { return ceil_div(w->t->inner, SEGMENT * segments_a_part(w)); }

static box part_of_row(const work *w, int64_t i, int64_t part)
{
    int64_t length = SEGMENT * segments_a_part(w);
    return (box){i, i + 1, part * length, least(w->t->inner, (part + 1) * length)};
}

static double sum_part(const work *w, box b, buffers *room)
{
    double sum = 0;
    for (int64_t j = b.j0; j < b.j1; j += SEGMENT)
        sum += sum_box(w, (box){b.i0, b.i1, j, least(b.j1, j + SEGMENT)}, room);
    return sum;
}

/* Rows that are longer than a tile: each is first read, then moved. */
static void step_long_rows(const work *w, box b, buffers *room)
{
    for (int64_t i = b.i0; w->what & READ && i < b.i1; i++) {
        double sum = 0;
        for (int64_t part = 0; part < parts_a_row(w); part++) sum += sum_part(w, part_of_row(w, i, part), room);
        take_sum(w, i, sum);
    }
    for (int64_t i = b.i0; w->what & MOVE && i < b.i1; i++)
        move_box(w, (box){i, i + 1, b.j0, b.j1}, scale_of(w, i), room);
}

/* Rows of which one part of the step is asked for. */
static void step_rows_in_parts(const work *w, box b, buffers *room)
{
    double squares[ROWS], scales[ROWS];
    FOR_TILES(w, b)
    {
        tile e = open_tile(w, i, m, j, n, w->what, room);
        if (w->what & READ) {
            w->f->read_rows(&e, w->s, squares);
            take_sums(w, i, squares, scales, m);
        } else {
            w->f->scales(w->s, e.v, NULL, NULL, scales, m);
            w->f->move_rows(&e, w->s, scales);
        }
        close_tile(w, &e, i, j, w->what);
    }
}

/* All at once, where a tile holds all entries that share a scale. */
static void step_tiles(const work *w, box b, buffers *room)
{
    FOR_TILES(w, b)
    {
        tile e = open_tile(w, i, m, j, n, READ | MOVE, room);
        if (w->t->kind == PER_ENTRY) w->f->step_entries(&e, w->s);
        else w->f->step_rows(&e, w->s);
        close_tile(w, &e, i, j, READ | MOVE);
    }
}

/* Sums of at most LEVEL rows are added up among themselves: float would lose what is added to a long sum. */
static void sum_columns(const work *w, box b, void *sums, buffers *room)
{
    enum { LEVEL = 512 };
    void *level = room->level;
    int64_t bytes = (b.j1 - b.j0) * w->f->real;
    memset(sums, 0, (size_t)bytes);
    for (int64_t i0 = b.i0; i0 < b.i1; i0 += LEVEL) {
        box rows = {i0, least(b.i1, i0 + LEVEL), b.j0, b.j1};
        memset(level, 0, (size_t)bytes);
        FOR_TILES(w, rows)
        {
            tile e = open_tile(w, i, m, j, n, READ, room);
            w->f->read_columns(&e, w->s, at(level, j - b.j0, w->f->real));
            close_tile(w, &e, i, j, READ);
        }
        w->f->add(sums, level, b.j1 - b.j0);
    }
}

static void move_columns(const work *w, box b, const void *scales, buffers *room)
{
    FOR_TILES(w, b)
    {
        tile e = open_tile(w, i, m, j, n, MOVE, room);
        w->f->move_columns(&e, w->s, at(scales, j - b.j0, w->f->real));
        close_tile(w, &e, i, j, MOVE);
    }
}

/* --------------------------------------------------------------------------------------------------- whole tensors */

/* A tensor is cut into pieces: some rows, or a part of one. Large ones suit memory, for what is read twice has PIECE bytes
   then; small ones suit threads, and there are at least PIECES. */
static int64_t bytes_to_keep(const work *w) { return w->s->momentum ? w->f->real : w->stored->size; } /* of an entry */
static int64_t entries_a_piece(const work *w)
{
    return least(PIECE / bytes_to_keep(w), most(LEAST, w->t->outer * w->t->inner / PIECES));
}
static int64_t rows_a_piece(const work *w) { return most(1, entries_a_piece(w) / most(1, w->t->inner)); }
static int64_t pieces_a_row(const work *w) { return most(1, ceil_div(w->t->inner, entries_a_piece(w))); }
static int64_t pieces(const work *w) { return ceil_div(w->t->outer, rows_a_piece(w)) * pieces_a_row(w); }

static box piece(const work *w, int64_t p)
{
    int64_t across = pieces_a_row(w), rows = rows_a_piece(w), columns = ceil_div(w->t->inner, across);
    int64_t i = p / across * rows, j = least(w->t->inner, p % across * columns);
    return (box){i, least(w->t->outer, i + rows), j, least(w->t->inner, j + columns)};
}

static void per_outer(const work *w, int64_t threads)
{
    int64_t rows = rows_a_piece(w);
    if (w->at_once && are_long(w->t->inner, w->stored->size)) rows = ceil_div(rows, TOGETHER) * TOGETHER;
    PARALLEL_FOR
    for (int64_t i = 0; i < w->t->outer; i += rows) {
        buffers room = room_here(w);
        box b = {i, least(w->t->outer, i + rows), 0, w->t->inner};
        if (w->at_once) step_tiles(w, b, &room);
        else if (w->t->inner > w->columns) step_long_rows(w, b, &room);
        else step_rows_in_parts(w, b, &room);
    }
}

static void per_entry(const work *w, int64_t threads)
{
    PARALLEL_FOR
    for (int64_t p = 0; p < pieces(w); p++) {
        buffers room = room_here(w);
        step_tiles(w, piece(w, p), &room);
    }
}

/* A few long rows from row i on, each by several threads: its parts are summed, and the sums added in order. */
static void step_by_parts(const work *w, int64_t i, int64_t rows, int64_t threads, double *sums)
{
    int64_t parts = parts_a_row(w);
    if (w->what & READ) {
        PARALLEL_FOR
        for (int64_t q = 0; q < rows * parts; q++) {
            buffers room = room_here(w);
            sums[q] = sum_part(w, part_of_row(w, i + q / parts, q % parts), &room);
        }
        for (int64_t k = 0; k < rows; k++) {
            double sum = 0;
            for (int64_t part = 0; part < parts; part++) sum += sums[k * parts + part];
            take_sum(w, i + k, sum);
        }
    }
    if (!(w->what & MOVE)) return;
    PARALLEL_FOR
    for (int64_t q = 0; q < rows * parts; q++) {
        buffers room = room_here(w);
        move_box(w, part_of_row(w, i + q / parts, q % parts), scale_of(w, i + q / parts), &room);
    }
}

/* As many at a time as the last cache may hold until they are moved, but enough for all threads. */
static void per_long_row(const work *w, int64_t threads, double *sums)
{
    int64_t outer = w->t->outer, bytes = w->t->inner * bytes_to_keep(w);
    int64_t rows = w->what == (READ | MOVE) ? most(FAR / bytes, ceil_div(4 * threads, parts_a_row(w))) : outer;
    for (int64_t i = 0; i < outer; i += rows) step_by_parts(w, i, least(rows, outer - i), threads, sums);
}

/* The whole tensor as one block. */
static void per_tensor(const work *w, int64_t threads, double *sums)
{
    int64_t count = pieces(w), parts = least(count, SCRATCH / (int64_t)sizeof(double)), a_part = ceil_div(count, parts);
    if (w->what & READ) {
        PARALLEL_FOR
        for (int64_t q = 0; q < parts; q++) {
            buffers room = room_here(w);
            sums[q] = 0;
            for (int64_t p = q * a_part; p < least(count, (q + 1) * a_part); p++) sums[q] += sum_box(w, piece(w, p), &room);
        }
        double sum = 0;
        for (int64_t q = 0; q < parts; q++) sum += sums[q];
        take_sum(w, 0, sum);
    }
    if (!(w->what & MOVE)) return;
    PARALLEL_FOR
    for (int64_t p = 0; p < count; p++) {
        buffers room = room_here(w);
        move_box(w, piece(w, p), scale_of(w, 0), &room);
    }
}

static void per_small_tensor(const work *w)
{
    buffers room = room_here(w);
    box all = {0, w->t->outer, 0, w->t->inner};
    if (w->what & READ) take_sum(w, 0, sum_box(w, all, &room));
    if (w->what & MOVE) move_box(w, all, scale_of(w, 0), &room);
}

static int64_t chunks_of_rows(const tensor *t) { return most(1, least(CHUNKS, t->outer / ROWS)); }

/* Columns j0 to j1, walked row by row, in the order of memory. Rows are cut into chunks, each with sums of its own, which
   are then added in order. */
static void step_columns(const work *w, int64_t j0, int64_t j1, int64_t threads, char *sums)
{
    const tensor *t = w->t;
    int64_t real = w->f->real, n = j1 - j0, stripes = ceil_div(n, STRIPE), chunks = chunks_of_rows(t);
    int64_t rows = ceil_div(t->outer, chunks);
    if (w->what & READ) {
        PARALLEL_FOR
        for (int64_t q = 0; q < chunks * stripes; q++) {
            buffers room = room_here(w);
            int64_t i = least(t->outer, q / stripes * rows), j = j0 + q % stripes * STRIPE;
            box b = {i, least(t->outer, i + rows), j, least(j1, j + STRIPE)};
            sum_columns(w, b, at(sums, q / stripes * n + j - j0, real), &room);
        }
        for (int64_t c = 1; c < chunks; c++) w->f->add(sums, at(sums, c * n, real), n);
        take_sums(w, j0, sums, sums, n);
    } else w->f->scales(w->s, at(t->statistic.data, j0, real), NULL, NULL, sums, n);
    if (!(w->what & MOVE)) return;
    rows = most(ROWS, rows_a_piece(w));
    int64_t last = ceil_div(t->outer, rows) * stripes - 1; /* back from the end, whose gradient is still in a cache */
    PARALLEL_FOR
    for (int64_t q = 0; q <= last; q++) {
        buffers room = room_here(w);
        int64_t i = (last - q) / stripes * rows, j = j0 + (last - q) % stripes * STRIPE;
        box b = {i, least(t->outer, i + rows), j, least(j1, j + STRIPE)};
        move_columns(w, b, at(sums, j - j0, real), &room);
    }
}

/* Few rows: stripes of columns side by side. Many: as many columns at a time as there is room for the sums of chunks. */
static void per_inner(const work *w, int64_t threads, void *scratch)
{
    int64_t inner = w->t->inner, chunks = chunks_of_rows(w->t);
    if (chunks == 1) {
        PARALLEL_FOR
        for (int64_t j = 0; j < inner; j += STRIPE) {
            buffers room = room_here(w);
            work alone = *w;
            alone.rooms = room.x, alone.room_bytes = 0;
            step_columns(&alone, j, least(inner, j + STRIPE), 1, room.sums);
        }
        return;
    }
    int64_t columns = scratch ? SCRATCH / w->f->real / chunks : inner;
    for (int64_t j = 0; j < inner; j += columns)
        step_columns(w, j, least(inner, j + columns), threads, scratch ? scratch : room_here(w).sums);
}

/* The room of a step: sums that threads share, which small tensors do without, and a part for each thread. */
typedef struct {
    void *scratch;
    char *rooms;
    int64_t room_bytes;
} memory;

static void step(const tensor *t, const settings *s, int what, int64_t threads, memory m)
{
    work w = plan(t, s, what, m.rooms, m.room_bytes);
    if (t->kind == PER_INNER) per_inner(&w, threads, m.scratch);
    else if (t->kind == PER_ENTRY) per_entry(&w, threads);
    else if (t->kind == PER_TENSOR && m.scratch) per_tensor(&w, threads, m.scratch);
    else if (t->kind == PER_TENSOR) per_small_tensor(&w);
    else if (m.scratch && t->outer < ROWS && t->inner > SEGMENT) per_long_row(&w, threads, m.scratch);
    else per_outer(&w, threads);
}

/* What is handed over, and how, so that a library of another version is found out. */
EXPORT int64_t matrix_adagrad_layout(void)
{
    return (int64_t)INTERFACE << 48 | (int64_t)sizeof(tensor) << 32 | (int64_t)sizeof(rule);
}

static int is_large(const tensor *t) { return t->outer * t->inner >= LARGE; }

/* One step of every tensor, or the part of it that is asked for: small ones side by side, large ones one after the other,
   each by all threads. Returns 0; or, if there is not enough room, the bytes that are needed: then nothing was done. */
EXPORT int64_t matrix_adagrad_step(const tensor *tensors, int64_t count, const rule *r, int64_t threads, int64_t what,
                                   char *room, int64_t bytes)
{
    int64_t entries = 0, shared = 0, each = 0;
    for (int64_t i = 0; i < count; i++) {
        entries += tensors[i].outer * tensors[i].inner;
        each = most(each, room_bytes(&tensors[i]));
        if (is_large(&tensors[i])) shared = SCRATCH;
    }
    if (entries <= SERIAL) threads = 1;
    if (shared + threads * each > bytes) return shared + threads * each;
    char *rooms = room + shared;
    PARALLEL_FOR
    for (int64_t i = 0; i < count; i++)
        if (!is_large(&tensors[i])) {
            settings s = settings_of(&tensors[i], r, (int)what);
            step(&tensors[i], &s, (int)what, 1, (memory){NULL, rooms + thread_number() * each, 0});
        }
    for (int64_t i = 0; shared && i < count; i++)
        if (is_large(&tensors[i])) {
            settings s = settings_of(&tensors[i], r, (int)what);
            step(&tensors[i], &s, (int)what, threads, (memory){room, rooms, each});
        }
    return 0;
}
