/* The arithmetic on tiles in one dtype. Included once for each, with
     STORED   the type of an entry of x and g in memory, and REAL that of the arithmetic
     WIDEN    lanes of entries as lanes of REALs, NARROW back to the nearest, NARROW_AT_RANDOM up or down
     NAME(f)  a name of its own for each function, REALS_NAME(f) that of a function of reals.h
     PAIRS    where blocks have functions of their own, on two entries to a word */

/* As many REALs as are worked on together: a register or two, whatever the CPU. */
enum { NAME(LANES) = 32 / sizeof(REAL) };
#define LANES NAME(LANES)
typedef REAL NAME(lanes) __attribute__((vector_size(32), aligned(sizeof(REAL)), may_alias));
typedef STORED NAME(entries)
    __attribute__((vector_size(32 / sizeof(REAL) * sizeof(STORED)), aligned(sizeof(STORED)), may_alias));
#define REALS NAME(lanes)

/* The functions on lanes take the number m of them that count: all, or one at a time at the end of a row. The compiler knows
   which: a copy of unknown length, through memory, would hold up the CPU. */
#define EACH_LANES(n, work)                                                                                              \
    do {                                                                                                                 \
        {                                                                                                                \
            enum { m = LANES };                                                                                          \
            for (; j + m <= (n); j += m) work;                                                                           \
        }                                                                                                                \
        enum { m = 1 };                                                                                                  \
        for (; j < (n); j += m) work;                                                                                    \
    } while (0)

INLINE REALS NAME(get)(const STORED *e, int m)
{
    if (m == LANES) return WIDEN(*(const NAME(entries) *)e);
    return WIDEN((NAME(entries)){*e});
}

INLINE void NAME(put)(STORED *e, REALS r, int m)
{
    NAME(entries) all = NARROW(r);
    if (m == LANES) *(NAME(entries) *)e = all;
    else *e = all[0];
}

INLINE REALS NAME(get_real)(const REAL *e, int m)
{
    if (m == LANES) return *(const REALS *)e;
    return (REALS){*e};
}

INLINE void NAME(put_real)(REAL *e, REALS r, int m)
{
    if (m == LANES) *(REALS *)e = r;
    else *e = r[0];
}

#define GET(e) NAME(get)(e, m)
#define PUT(e, r) NAME(put)(e, r, m)
#define GET_REAL(e) NAME(get_real)(e, m)
#define PUT_REAL(e, r) NAME(put_real)(e, r, m)

/* By pairs: lane l and lane l + LANES / 2, and so on with the half that is left. */
INLINE REAL NAME(sum)(REALS r)
{
    REAL sums[LANES];
    memcpy(sums, &r, sizeof r);
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++) sums[l] += sums[l + half];
    return sums[0];
}

/* The entries of a row of x, and of what belongs to it, start at the row's place. */
#define PLACE(k) (t->places ? t->places[k] : (k))
#define X_ROW(k) ((STORED *)t->x + PLACE(k) * t->x_row)
#define G_ROW(k) ((const STORED *)t->g + (k) * t->g_row)
#define AVERAGE_ROW(k) ((REAL *)t->average + PLACE(k) * t->average_row)

/* ------------------------------------------------------------------------------------------------ reading and moving */

/* Made twice, with momentum and without; on copies of what is plainly not written to. */
#define ON_COPIES(f, ...)                                                                                                \
    const tile own = *t;                                                                                                 \
    const settings rule = *s;                                                                                            \
    if (s->momentum) NAME(f)(&own, &rule, ##__VA_ARGS__, 1);                                                             \
    else NAME(f)(&own, &rule, ##__VA_ARGS__, 0)

INLINE REALS NAME(square)(const STORED *g, REAL *average, REAL sign, REAL beta1, REAL join,
                         int momentum, int m)
{
    REALS e = GET(g);
    if (momentum) PUT_REAL(average, JOIN(GET_REAL(average), sign * e));
    return e * e;
}

INLINE REALS NAME(direction)(const STORED *g, const REAL *average, REAL sign, int momentum, int m)
{
    if (momentum) return GET_REAL(average);
    return sign * GET(g);
}

/* Rows from row k on, `together` of them, are walked through side by side. */
typedef struct {
    STORED *x;
    const STORED *g;
    REAL *average;
} NAME(row);

INLINE void NAME(find)(const tile *t, int64_t k, int together, NAME(row) *rows, int momentum)
{
    for (int i = 0; i < together; i++)
        rows[i] = (NAME(row)){X_ROW(k + i), G_ROW(k + i), momentum ? AVERAGE_ROW(k + i) : NULL};
}

#define BLOCK (4 * LANES)
#define EACH_BLOCK(work)                                                                                                 \
    for (; j + BLOCK <= n; j += BLOCK)                                                                                   \
        for (int i = 0; i < together; i++) {                                                                             \
            NAME(row) r = rows[i];                                                                                       \
            work;                                                                                                        \
        }

/* Of rows side by side memory is asked for what is worked on soon: further on in the row, or where the walk goes on `then`.
   Each in its turn: a compiler would ask for those of all rows at once, and the memory take longer. */
#define FETCH(row, then)                                                                                                 \
    if (together > 1) {                                                                                                  \
        int64_t soon = j + AHEAD / (int64_t)sizeof *(row);                                                               \
        prefetch_row(soon < n ? (row) + soon : (then) + (soon - n), BLOCK * sizeof *(row));                              \
        __asm__ volatile("" ::: "memory");                                                                               \
    }

/* Σg² of each row; g joins the average. Lanes add up independently, then in pairs: a fixed order that registers of any width
   can follow. */
INLINE void NAME(read)(const tile *t, const settings *s, int64_t k, int together, REAL *squares, int momentum)
{
    REAL sign = (REAL)t->sign, beta1 = (REAL)s->beta1, join = (REAL)s->join;
    NAME(row) rows[TOGETHER];
    REALS sums[TOGETHER][4] = {{{0}}};
    int64_t n = t->columns, j = 0;
    NAME(find)(t, k, together, rows, momentum);
#ifdef PAIRS
    if (!momentum) {
        pair_sums by_pairs[TOGETHER] = {{.first = {{0}}}};
        EACH_BLOCK(FETCH(r.g, r.x) read_pairs(r.g + j, &by_pairs[i]));
        for (int i = 0; i < together; i++) sums[i][0] = sum_halves(by_pairs[i].first) + sum_halves(by_pairs[i].second);
    }
#endif
#define SQUARE(j, m) NAME(square)(r.g + (j), momentum ? r.average + (j) : NULL, sign, beta1, join, momentum, m)
#define FETCH_AVERAGE if (momentum) FETCH(r.average, r.average)
    EACH_BLOCK(FETCH(r.g, r.x) FETCH_AVERAGE for (int l = 0; l < 4; l++) sums[i][l] += SQUARE(j + l * LANES, LANES))
    for (int64_t i = 0, first = j; i < together; i++, j = first) {
        NAME(row) r = rows[i];
        EACH_LANES(n, sums[i][0] += SQUARE(j, m));
        squares[i] = NAME(sum)((sums[i][0] + sums[i][2]) + (sums[i][1] + sums[i][3]));
    }
#undef FETCH_AVERAGE
#undef SQUARE
}

INLINE void NAME(move)(const tile *t, const settings *s, int64_t k, int together, const REAL *scales, int momentum)
{
    REAL shrink = (REAL)s->shrink, scale[TOGETHER];
    NAME(row) rows[TOGETHER];
    int64_t n = t->columns, j = 0, next = k + 2 * together <= t->rows ? together * t->g_row : 0;
    NAME(find)(t, k, together, rows, momentum);
    for (int i = 0; i < together; i++) scale[i] = momentum ? scales[i] : scales[i] * (REAL)t->sign;
#ifdef PAIRS
    if (!momentum) EACH_BLOCK(FETCH(r.x, r.g + next) move_pairs(r.x + j, r.g + j, shrink, scale[i]))
#endif
#define DIRECTION(j, m) NAME(direction)(r.g + (j), momentum ? r.average + (j) : NULL, 1, momentum, m)
#define STEP(j, m) NAME(put)(r.x + (j), NAME(get)(r.x + (j), m) * shrink - scale[i] * DIRECTION(j, m), m)
    EACH_BLOCK(FETCH(r.x, r.g + next) for (int l = 0; l < 4; l++) STEP(j + l * LANES, LANES))
    for (int64_t i = 0, first = j; i < together; i++, j = first) {
        NAME(row) r = rows[i];
        EACH_LANES(n, STEP(j, m));
    }
#undef STEP
#undef DIRECTION
}

INLINE void NAME(read_rows_as)(const tile *t, const settings *s, REAL *squares, int momentum)
{
    for (int64_t k = 0; k < t->rows; k++) NAME(read)(t, s, k, 1, squares + k, momentum);
}

INLINE void NAME(move_rows_as)(const tile *t, const settings *s, const REAL *scales, int momentum)
{
    for (int64_t k = 0; k < t->rows; k++) NAME(move)(t, s, k, 1, scales + k, momentum);
}

/* A row is moved when it has been read: memory is walked through as SGD walks, and the gradient is found in the nearest cache.
   Of short rows a few are taken together, for a root and a quotient take their time. Those that are too long for that cache
   are taken side by side, for memory is faster at several places than at one. */
INLINE void NAME(step_rows_as)(const tile *t, const settings *s, int momentum)
{
    REAL *v = t->v, scales[ROWS];
    int64_t columns = most(1, t->columns), k = 0;
    if (are_long(columns, sizeof(STORED)))
        for (; k + TOGETHER <= t->rows; k += TOGETHER) {
            NAME(read)(t, s, k, TOGETHER, scales, momentum);
            REALS_NAME(scales)(s, v + k, NULL, scales, scales, TOGETHER);
            NAME(move)(t, s, k, TOGETHER, scales, momentum);
        }
    int64_t few = least(ROWS, most(1, FEW / columns));
    for (int64_t n; (n = least(few, t->rows - k)); k += n) {
        for (int64_t i = 0; i < n; i++) NAME(read)(t, s, k + i, 1, scales + i, momentum);
        REALS_NAME(scales)(s, v + k, NULL, scales, scales, n);
        for (int64_t i = 0; i < n; i++) NAME(move)(t, s, k + i, 1, scales + i, momentum);
    }
}

static void NAME(read_rows)(const tile *t, const settings *s, void *squares)
{
    ON_COPIES(read_rows_as, squares);
}

static void NAME(move_rows)(const tile *t, const settings *s, const void *scales)
{
    ON_COPIES(move_rows_as, scales);
}

static void NAME(step_rows)(const tile *t, const settings *s)
{
    ON_COPIES(step_rows_as);
}

/* Rows are added to the sums in their order, one after the other. Where there are too many sums for the nearest cache, each is
   fetched once for eight rows, or for four where averages are walked through besides. */
INLINE void NAME(read_columns_as)(const tile *t, const settings *s, REAL *restrict sums, int momentum)
{
    REAL sign = (REAL)t->sign, beta1 = (REAL)s->beta1, join = (REAL)s->join;
    int64_t n = t->columns, k = 0, j;
#define SQUARE(k) NAME(square)(G_ROW(k) + j, momentum ? AVERAGE_ROW(k) + j : NULL, sign, beta1, join, momentum, m)
#define ADD_FOUR(k) + SQUARE(k) + SQUARE((k) + 1) + SQUARE((k) + 2) + SQUARE((k) + 3)
    for (; k + 8 <= t->rows && n > WIDE && !momentum; k += 8)
        for (j = 0; j < n;) EACH_LANES(n, PUT_REAL(sums + j, GET_REAL(sums + j) ADD_FOUR(k) ADD_FOUR(k + 4)));
    for (; k + 4 <= t->rows && n > WIDE; k += 4)
        for (j = 0; j < n;) EACH_LANES(n, PUT_REAL(sums + j, GET_REAL(sums + j) ADD_FOUR(k)));
    for (; k < t->rows; k++)
        for (j = 0; j < n;) EACH_LANES(n, PUT_REAL(sums + j, GET_REAL(sums + j) + SQUARE(k)));
#undef ADD_FOUR
#undef SQUARE
}

static void NAME(read_columns)(const tile *t, const settings *s, void *squares)
{
    ON_COPIES(read_columns_as, squares);
}

/* Where there are too many scales for that cache, each is fetched once for four rows. */
INLINE void NAME(move_columns_as)(const tile *t, const settings *s, const REAL *restrict scale, int momentum)
{
    REAL shrink = (REAL)s->shrink, sign = (REAL)t->sign;
    int64_t n = t->columns, k = 0, j;
#define DIRECTION(k) NAME(direction)(G_ROW(k) + j, momentum ? AVERAGE_ROW(k) + j : NULL, sign, momentum, m)
#define STEP(k, scales) PUT(X_ROW(k) + j, GET(X_ROW(k) + j) * shrink - (scales) * DIRECTION(k))
#define STEP_FOUR                                                                                                        \
    {                                                                                                                    \
        REALS scales = GET_REAL(scale + j);                                                                              \
        STEP(k, scales), STEP(k + 1, scales), STEP(k + 2, scales), STEP(k + 3, scales);                                  \
    }
    for (; k + 4 <= t->rows && n > WIDE; k += 4)
        for (j = 0; j < n;) EACH_LANES(n, STEP_FOUR);
    for (; k < t->rows; k++)
        for (j = 0; j < n;) EACH_LANES(n, STEP(k, GET_REAL(scale + j)));
#undef STEP_FOUR
#undef STEP
#undef DIRECTION
}

static void NAME(move_columns)(const tile *t, const settings *s, const void *scales)
{
    ON_COPIES(move_columns_as, scales);
}

/* ----------------------------------------------------------------- entries that are not neighbours, or need care */

INLINE NAME(entries) NAME(pick)(const STORED *e, int64_t inner, int m)
{
    NAME(entries) all = {0};
    for (int l = 0; l < m; l++) all[l] = e[l * inner];
    return all;
}

INLINE void NAME(spread)(STORED *e, int64_t inner, NAME(entries) all, int m)
{
    for (int l = 0; l < m; l++) e[l * inner] = all[l];
}

static void NAME(load)(const void *from, int64_t outer, int64_t inner, const int64_t *places, int64_t rows,
                            int64_t columns, void *to)
{
    for (int64_t k = 0; k < rows; k++) {
        const STORED *e = (const STORED *)from + (places ? places[k] : k) * outer;
        REAL *r = (REAL *)to + k * columns;
        int64_t j = 0;
        if (inner == 1) EACH_LANES(columns, PUT_REAL(r + j, GET(e + j)));
        else EACH_LANES(columns, PUT_REAL(r + j, WIDEN(NAME(pick)(e + j * inner, inner, m))));
    }
}

static void NAME(store)(const void *from, void *to, int64_t outer, int64_t inner, const int64_t *places,
                             int64_t rows, int64_t columns, uint64_t seed, int64_t i, int64_t j0)
{
    for (int64_t k = 0; k < rows; k++) {
        const REAL *r = (const REAL *)from + k * columns;
        STORED *e = (STORED *)to + (places ? places[k] : k) * outer;
        int64_t j = 0;
        uint32_t key = seed ? hash(seed + (uint64_t)(places ? places[k] : i + k)) + (uint32_t)j0 : 0;
#define AT_RANDOM NARROW_AT_RANDOM(GET_REAL(r + j), key + (uint32_t)j)
        if (seed) EACH_LANES(columns, NAME(spread)(e + j * inner, inner, AT_RANDOM, m));
        else if (inner == 1) EACH_LANES(columns, PUT(e + j, GET_REAL(r + j)));
        else EACH_LANES(columns, NAME(spread)(e + j * inner, inner, NARROW(GET_REAL(r + j)), m));
#undef AT_RANDOM
    }
}

/* Columns from j on of the sum of some rows of values, in registers; rows that `order` lists later on are fetched. */
INLINE void NAME(sum_listed)(const STORED *values, int64_t row, const uint64_t *order, int64_t start, int64_t end,
                             int64_t length, int64_t soon, REAL *sum, int64_t j, int count, int m)
{
#define VALUES(p) (values + (int64_t)(uint32_t)order[p] * row + j)
    REALS sums[8] = {{0}};
    for (int64_t p = start; p < end; p++) {
        const STORED *e = VALUES(p);
        if (p + soon < length) prefetch_row(VALUES(p + soon), count * LANES * (int64_t)sizeof(STORED));
        for (int c = 0; c < count; c++) sums[c] += NAME(get)(e + c * LANES, m);
    }
    for (int c = 0; c < count; c++) NAME(put_real)(sum + j + c * LANES, sums[c], m);
#undef VALUES
}

/* Row k of the result is the sum of the rows of values that `order` (its lower halves) lists from starts[k] on; the whole
   list has this length. */
static void NAME(gather)(const void *values, int64_t row, int64_t inner, const uint64_t *order, int64_t length,
                         const int64_t *starts, int64_t rows, int64_t columns, void *to)
{
    int64_t soon = most(1, least(32, (1 << 15) / most(1, columns * (int64_t)sizeof(STORED))));
    for (int64_t k = 0; k < rows; k++) {
        REAL *sum = (REAL *)to + k * columns;
        int64_t j = 0;
        if (inner != 1) {
            memset(sum, 0, (size_t)columns * sizeof(REAL));
            for (int64_t p = starts[k]; p < starts[k + 1]; p++, j = 0) {
                const STORED *e = (const STORED *)values + (int64_t)(uint32_t)order[p] * row;
                EACH_LANES(columns, PUT_REAL(sum + j, GET_REAL(sum + j) + WIDEN(NAME(pick)(e + j * inner, inner, m))));
            }
            continue;
        }
#define SUM(count, m) NAME(sum_listed)(values, row, order, starts[k], starts[k + 1], length, soon, sum, j, count, m)
        for (; j + 8 * LANES <= columns; j += 8 * LANES) SUM(8, LANES);
        if (j + 4 * LANES <= columns) SUM(4, LANES), j += 4 * LANES;
        for (; j + LANES <= columns; j += LANES) SUM(1, LANES);
        if (j < columns && j) j = columns - LANES, SUM(1, LANES), j = columns; /* some sums once more, the same */
        for (; j < columns; j++) SUM(1, 1);
#undef SUM
    }
}

static const arithmetic NAME(arithmetic) = {
    .size = sizeof(STORED),
    .real = sizeof(REAL),
    .read_rows = NAME(read_rows),
    .read_columns = NAME(read_columns),
    .move_rows = NAME(move_rows),
    .move_columns = NAME(move_columns),
    .step_rows = NAME(step_rows),
    .load = NAME(load),
    .store = NAME(store),
    .gather = NAME(gather),
    .step_entries = REALS_NAME(step_entries),
    .scales = REALS_NAME(scales),
    .penalize = REALS_NAME(penalize),
    .add = REALS_NAME(add),
};

#undef LANES
#undef REALS
#undef REALS_NAME
#undef EACH_LANES
#undef GET
#undef PUT
#undef GET_REAL
#undef PUT_REAL
#undef PLACE
#undef ON_COPIES
#undef X_ROW
#undef G_ROW
#undef AVERAGE_ROW
#undef BLOCK
#undef EACH_BLOCK
#undef FETCH
#undef STORED
#undef PAIRS
#undef REAL
#undef WIDEN
#undef NARROW
#undef NARROW_AT_RANDOM
#undef NAME
