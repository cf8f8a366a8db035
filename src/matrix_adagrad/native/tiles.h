/* The arithmetic on tiles in one dtype. Included once for each dtype, with
     STORED      the type of an entry of x and g in memory, and REAL that of the arithmetic
     WIDEN       a vector of STORED to a vector of REAL; NARROW back, to nearest; NARROW_STOCHASTIC up or down at random
     NAME(f)     the name of function f for this dtype, REALS_NAME(f) that of a function of reals.h
     BF16_PAIRS  if defined: blocks are worked on as words of two entries */

/* A vector of REALs: one or two registers, whatever the CPU. */
enum { NAME(LANES) = 32 / sizeof(REAL) };
#define LANES NAME(LANES)
typedef REAL NAME(reals) __attribute__((vector_size(32)));
typedef __typeof__((NAME(reals)){0} < (NAME(reals)){0}) NAME(mask); /* all bits of a lane, or none */
typedef REAL NAME(reals_unaligned) __attribute__((vector_size(32), aligned(sizeof(REAL)), may_alias));
typedef STORED NAME(entries)
    __attribute__((vector_size(32 / sizeof(REAL) * sizeof(STORED)), aligned(sizeof(STORED)), may_alias));
#define REALS NAME(reals)
#define REALS_UNALIGNED NAME(reals_unaligned)
#define ENTRIES NAME(entries)

/* Functions on vectors take their width: LANES, or 1 for the entries at the end of a row, one at a time. It is a
   compile-time constant: a copy of variable length would go through memory and stall. */
#define FOR_LANES(n, work)                                                                                             \
    do {                                                                                                               \
        {                                                                                                              \
            enum { width = LANES };                                                                                    \
            for (; j + width <= (n); j += width) work;                                                                 \
        }                                                                                                              \
        enum { width = 1 };                                                                                            \
        for (; j < (n); j += width) work;                                                                              \
    } while (0)

INLINE REALS NAME(get)(const STORED *e, int width)
{
    if (width == LANES) return WIDEN(*(const ENTRIES *)e);
    return WIDEN((ENTRIES){*e});
}

INLINE void NAME(put)(STORED *e, REALS r, int width)
{
    ENTRIES entries = NARROW(r);
    if (width == LANES) *(ENTRIES *)e = entries;
    else *e = entries[0];
}

INLINE REALS NAME(get_real)(const REAL *e, int width)
{
    if (width == LANES) return *(const REALS_UNALIGNED *)e;
    return (REALS){*e};
}

INLINE void NAME(put_real)(REAL *e, REALS r, int width)
{
    if (width == LANES) *(REALS_UNALIGNED *)e = r;
    else *e = r[0];
}

#define GET(e) NAME(get)(e, width)
#define PUT(e, r) NAME(put)(e, r, width)
#define GET_REAL(e) NAME(get_real)(e, width)
#define PUT_REAL(e, r) NAME(put_real)(e, r, width)

/* A tree: lane l is added to lane l + LANES / 2, and so on with the lower half. */
INLINE REAL NAME(sum_lanes)(REALS r)
{
    REAL sums[LANES];
    memcpy(sums, &r, sizeof r);
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++) sums[l] += sums[l + half];
    return sums[0];
}

/* Rows of x and of its state may be listed by index; rows of g are consecutive. */
#define ROW(k) (t->row_index ? t->row_index[k] : (k))
#define X_ROW(k) ((STORED *)t->x + ROW(k) * t->x_stride)
#define G_ROW(k) ((const STORED *)t->g + (k) * t->g_stride)
#define AVERAGE_ROW(k) ((REAL *)t->average + ROW(k) * t->average_stride)

/* ----------------------------------------------------------------------------------------------- reading and moving */

INLINE REALS NAME(square_and_accumulate)(const STORED *g, REAL *average, REALS_NAME(settings) u, enum momentum momentum,
                                         int steepest, int width)
{
    REALS e = GET(g);
    if (!momentum) return e * e;
    REALS averaged = AVERAGED(u, GET_REAL(average), e), measured = MEASURED(u, averaged, e, momentum, steepest);
    PUT_REAL(average, averaged);
    return measured * measured;
}

#define MOVE_ENTRIES(x, g, average, scale)                                                                             \
    PUT(x, MOVED(u, GET(x), scale, DIRECTION(u, GET_REAL(average), GET(g), momentum)))

/* Rows k to k + interleaved, which are stepped in an interleaved loop. */
typedef struct {
    STORED *x;
    const STORED *g;
    REAL *average;
} NAME(row);
#define ROW_VIEW NAME(row)

INLINE void NAME(locate_rows)(const tile_view *t, int64_t k, int interleaved, ROW_VIEW *rows, enum momentum momentum)
{
    for (int i = 0; i < interleaved; i++)
        rows[i] = (ROW_VIEW){X_ROW(k + i), G_ROW(k + i), momentum ? AVERAGE_ROW(k + i) : NULL};
}

#define BLOCK (4 * LANES)
#define FOR_BLOCKS(j, i)                                                                                               \
    for (; j + BLOCK <= n; j += BLOCK)                                                                                 \
        for (int i = 0; i < interleaved; i++)

/* Interleaved rows are prefetched: PREFETCH_BYTES ahead in the row, or the start of the row that is next. The barrier
   keeps the compiler from issuing the prefetches of all rows at once, which the memory serves more slowly. */
#define PREFETCH(row, next_row)                                                                                        \
    do {                                                                                                               \
        if (interleaved > 1) {                                                                                         \
            int64_t ahead = j + PREFETCH_BYTES / (int64_t)sizeof *(row);                                               \
            prefetch_row(ahead < n ? (row) + ahead : (next_row) + (ahead - n), BLOCK * sizeof *(row));                 \
            __asm__ volatile("" ::: "memory");                                                                         \
        }                                                                                                              \
    } while (0)

/* Σg² of each row, or of what x moves along; g joins the average. Lanes accumulate independently and are then reduced
   by a tree: a fixed order, for any SIMD width. */
INLINE void NAME(read_as)(const tile_view *t, const settings *s, int64_t k, int interleaved, REAL *squares,
                          enum momentum momentum, int steepest)
{
    REALS_NAME(settings) u = REALS_NAME(settings_of)(s);
    ROW_VIEW rows[INTERLEAVED_ROWS];
    REALS sums[INTERLEAVED_ROWS][4] = {{{0}}};
    int64_t n = t->columns, j = 0;
    NAME(locate_rows)(t, k, interleaved, rows, momentum);
#ifdef BF16_PAIRS
    if (!momentum) {
        pair_sums pair_totals[INTERLEAVED_ROWS] = {{.lower = {{0}}}};
        FOR_BLOCKS(j, i) {
            ROW_VIEW r = rows[i];
            PREFETCH(r.g, r.x);
            square_pairs(r.g + j, &pair_totals[i]);
        }
        for (int i = 0; i < interleaved; i++)
            sums[i][0] = add_pair_vectors(pair_totals[i].lower) + add_pair_vectors(pair_totals[i].upper);
    }
#endif
#define SQUARE(j, width)                                                                                               \
    NAME(square_and_accumulate)(r.g + (j), momentum ? r.average + (j) : NULL, u, momentum, steepest, width)
    FOR_BLOCKS(j, i) {
        ROW_VIEW r = rows[i];
        PREFETCH(r.g, r.x);
        if (momentum) PREFETCH(r.average, r.average);
        for (int l = 0; l < 4; l++) sums[i][l] += SQUARE(j + l * LANES, LANES);
    }
    for (int64_t i = 0, first = j; i < interleaved; i++, j = first) {
        ROW_VIEW r = rows[i];
        FOR_LANES(n, sums[i][0] += SQUARE(j, width));
        squares[i] = NAME(sum_lanes)((sums[i][0] + sums[i][2]) + (sums[i][1] + sums[i][3]));
    }
#undef SQUARE
}

INLINE void NAME(read)(const tile_view *t, const settings *s, int64_t k, int interleaved, REAL *squares,
                       enum momentum momentum)
{
    if (momentum && s->steepest) NAME(read_as)(t, s, k, interleaved, squares, momentum, 1);
    else NAME(read_as)(t, s, k, interleaved, squares, momentum, 0); /* without momentum, x moves along g */
}

INLINE void NAME(move)(const tile_view *t, const settings *s, int64_t k, int interleaved, const REAL *scales,
                       enum momentum momentum)
{
    REALS_NAME(settings) u = REALS_NAME(settings_of)(s);
    REAL scale[INTERLEAVED_ROWS];
    ROW_VIEW rows[INTERLEAVED_ROWS];
    int64_t n = t->columns, j = 0, next = k + 2 * interleaved <= t->rows ? interleaved * t->g_stride : 0;
    NAME(locate_rows)(t, k, interleaved, rows, momentum);
    for (int i = 0; i < interleaved; i++) scale[i] = SIGNED(u, scales[i], momentum);
#ifdef BF16_PAIRS
    if (!momentum)
        FOR_BLOCKS(j, i) {
            ROW_VIEW r = rows[i];
            PREFETCH(r.x, r.g + next);
            move_pairs(r.x + j, r.g + j, u, scale[i]);
        }
#endif
#define STEP(j) MOVE_ENTRIES(r.x + (j), r.g + (j), r.average + (j), scale[i])
    FOR_BLOCKS(j, i) {
        ROW_VIEW r = rows[i];
        PREFETCH(r.x, r.g + next);
        enum { width = LANES };
        for (int l = 0; l < 4; l++) STEP(j + l * width);
    }
    for (int64_t i = 0, first = j; i < interleaved; i++, j = first) {
        ROW_VIEW r = rows[i];
        FOR_LANES(n, STEP(j));
    }
#undef STEP
}

INLINE void NAME(read_rows)(const tile_view *t, const settings *s, REAL *squares, enum momentum momentum)
{
    for (int64_t k = 0; k < t->rows; k++) NAME(read)(t, s, k, 1, squares + k, momentum);
}

INLINE void NAME(move_rows)(const tile_view *t, const settings *s, const REAL *scales, enum momentum momentum)
{
    for (int64_t k = 0; k < t->rows; k++) NAME(move)(t, s, k, 1, scales + k, momentum);
}

/* A row is moved as soon as it has been read: memory is streamed once, as by SGD, and the gradient is still in the L1
   cache. Short rows are grouped, to hide the latency of square root and division. Rows beyond the L1 cache are
   interleaved, since several streams get more memory bandwidth than one. */
INLINE void NAME(step_rows)(const tile_view *t, const settings *s, enum momentum momentum)
{
    REAL *v = t->v, scales[TILE_ROWS];
    int64_t columns = max(1, t->columns), k = 0;
    if (exceeds_l1(columns, sizeof(STORED)))
        for (; k + INTERLEAVED_ROWS <= t->rows; k += INTERLEAVED_ROWS) {
            NAME(read)(t, s, k, INTERLEAVED_ROWS, scales, momentum);
            REALS_NAME(compute_scales)(s, v + k, NULL, scales, scales, INTERLEAVED_ROWS);
            NAME(move)(t, s, k, INTERLEAVED_ROWS, scales, momentum);
        }
    int64_t group = min(TILE_ROWS, max(1, ROW_GROUP_ENTRIES / columns));
    for (int64_t n; (n = min(group, t->rows - k)); k += n) {
        for (int64_t i = 0; i < n; i++) NAME(read)(t, s, k + i, 1, scales + i, momentum);
        REALS_NAME(compute_scales)(s, v + k, NULL, scales, scales, n);
        for (int64_t i = 0; i < n; i++) NAME(move)(t, s, k + i, 1, scales + i, momentum);
    }
}

SPECIALIZE(read_rows, (const tile_view *t, const settings *s, void *squares), squares)
SPECIALIZE(move_rows, (const tile_view *t, const settings *s, const void *scales), scales)
SPECIALIZE(step_rows, (const tile_view *t, const settings *s))

/* Rows are accumulated in order. Where the sums exceed the L1 cache, each is loaded once for eight rows, or for four
   where averages are streamed besides. */
INLINE void NAME(read_columns_as)(const tile_view *t, const settings *s, REAL *restrict sums, enum momentum momentum,
                                  int steepest)
{
    REALS_NAME(settings) u = REALS_NAME(settings_of)(s);
    int64_t n = t->columns, k = 0, j;
#define SQUARE(k)                                                                                                      \
    NAME(square_and_accumulate)(G_ROW(k) + j, momentum ? AVERAGE_ROW(k) + j : NULL, u, momentum, steepest, width)
#define ADD_FOUR(sum, k) ((sum) + SQUARE(k) + SQUARE((k) + 1) + SQUARE((k) + 2) + SQUARE((k) + 3))
    for (; k + 8 <= t->rows && n > L1_COLUMNS && !momentum; k += 8)
        for (j = 0; j < n;) FOR_LANES(n, PUT_REAL(sums + j, ADD_FOUR(ADD_FOUR(GET_REAL(sums + j), k), k + 4)));
    for (; k + 4 <= t->rows && n > L1_COLUMNS; k += 4)
        for (j = 0; j < n;) FOR_LANES(n, PUT_REAL(sums + j, ADD_FOUR(GET_REAL(sums + j), k)));
    for (; k < t->rows; k++)
        for (j = 0; j < n;) FOR_LANES(n, PUT_REAL(sums + j, GET_REAL(sums + j) + SQUARE(k)));
#undef ADD_FOUR
#undef SQUARE
}

INLINE void NAME(read_columns)(const tile_view *t, const settings *s, REAL *sums, enum momentum momentum)
{
    if (momentum && s->steepest) NAME(read_columns_as)(t, s, sums, momentum, 1);
    else NAME(read_columns_as)(t, s, sums, momentum, 0);
}
SPECIALIZE(read_columns, (const tile_view *t, const settings *s, void *squares), squares)

/* Where the scales exceed the L1 cache, each is loaded once for four rows. */
INLINE void NAME(move_columns)(const tile_view *t, const settings *s, const REAL *restrict scale,
                               enum momentum momentum)
{
    REALS_NAME(settings) u = REALS_NAME(settings_of)(s);
    int64_t n = t->columns, k = 0, j;
#define SCALES SIGNED(u, GET_REAL(scale + j), momentum)
#define STEP(k, scales) MOVE_ENTRIES(X_ROW(k) + j, G_ROW(k) + j, AVERAGE_ROW(k) + j, scales)
#define STEP_FOUR                                                                                                      \
    {                                                                                                                  \
        REALS scales = SCALES;                                                                                         \
        STEP(k, scales), STEP(k + 1, scales), STEP(k + 2, scales), STEP(k + 3, scales);                                \
    }
    for (; k + 4 <= t->rows && n > L1_COLUMNS; k += 4)
        for (j = 0; j < n;) FOR_LANES(n, STEP_FOUR);
    for (; k < t->rows; k++)
        for (j = 0; j < n;) FOR_LANES(n, STEP(k, SCALES));
#undef STEP_FOUR
#undef STEP
#undef SCALES
}
SPECIALIZE(move_columns, (const tile_view *t, const settings *s, const void *scales), scales)

/* Rows k to k + interleaved: each is summed as by `read`, and the columns as by `read_columns`. */
INLINE void NAME(read_both_of)(const tile_view *t, const settings *s, int64_t k, int interleaved, REAL *row_sums,
                               REAL *restrict column_sums, enum momentum momentum)
{
    REALS_NAME(settings) u = REALS_NAME(settings_of)(s);
    ROW_VIEW rows[INTERLEAVED_ROWS];
    REALS sums[INTERLEAVED_ROWS][4] = {{{0}}};
    int64_t n = t->columns, j = 0, next = k + 2 * interleaved <= t->rows ? interleaved * t->g_stride : 0;
    NAME(locate_rows)(t, k, interleaved, rows, momentum);
#define SQUARE(r, j)                                                                                                   \
    NAME(square_and_accumulate)((r).g + (j), momentum ? (r).average + (j) : NULL, u, momentum, 0, width)
#define ADD_SQUARES(l, j)                                                                                              \
    {                                                                                                                  \
        REALS column_sum = GET_REAL(column_sums + (j));                                                                \
        for (int i = 0; i < interleaved; i++) {                                                                        \
            REALS squares = SQUARE(rows[i], j);                                                                        \
            sums[i][l] += squares, column_sum += squares;                                                              \
        }                                                                                                              \
        PUT_REAL(column_sums + (j), column_sum);                                                                       \
    }
    for (; j + BLOCK <= n; j += BLOCK) {
        enum { width = LANES };
        for (int i = 0; i < interleaved; i++) PREFETCH(rows[i].g, rows[i].g + next);
        for (int l = 0; l < 4; l++) ADD_SQUARES(l, j + l * width);
    }
    FOR_LANES(n, ADD_SQUARES(0, j));
    for (int i = 0; i < interleaved; i++)
        row_sums[i] = NAME(sum_lanes)((sums[i][0] + sums[i][2]) + (sums[i][1] + sums[i][3]));
#undef ADD_SQUARES
#undef SQUARE
}

/* Where column sums, or factors, exceed the L1 cache, each is loaded once for several rows. */
#define FOR_ROWS(work)                                                                                                 \
    do {                                                                                                               \
        int64_t k = 0;                                                                                                 \
        {                                                                                                              \
            enum { interleaved = INTERLEAVED_ROWS };                                                                   \
            for (; k + interleaved <= t->rows && t->columns > L1_COLUMNS; k += interleaved) work;                      \
        }                                                                                                              \
        enum { interleaved = 1 };                                                                                      \
        for (; k < t->rows; k++) work;                                                                                 \
    } while (0)

INLINE void NAME(read_both)(const tile_view *t, const settings *s, REAL *row_sums, REAL *column_sums,
                            enum momentum momentum)
{
    FOR_ROWS(NAME(read_both_of)(t, s, k, interleaved, row_sums + k, column_sums, momentum));
}
SPECIALIZE(read_both, (const tile_view *t, const settings *s, void *row_squares, void *squares), row_squares, squares)

INLINE REALS NAME(select)(NAME(mask) is_yes, REALS yes, REALS no)
{
    return (REALS)((is_yes & (NAME(mask))yes) | (~is_yes & (NAME(mask))no));
}

/* `scale` of reals.h for entries whose row and columns have these factors; it is bounded if eps alone keeps it finite.
   */
INLINE REALS NAME(scale_of_both)(REALS_NAME(settings) u, REAL row_factor, REALS factors, int by_minimum, int is_bounded)
{
    REALS zero = {0}, row_factors = row_factor + zero, largest = REALS_NAME(largest)() + zero;
    REALS roots = row_factors * factors;
    if (by_minimum) roots = NAME(select)((row_factors < factors) | (row_factors != row_factors), row_factors, factors);
    roots += u.eps;
    REALS scales = u.lr / roots;
    if (is_bounded) return scales;
    scales = NAME(select)(scales > largest, largest, scales);
    return NAME(select)(roots == zero, zero, scales);
}

INLINE void NAME(move_both_of)(const tile_view *t, const settings *s, int64_t k, int interleaved,
                               const REAL *row_factors, const REAL *restrict factors, enum momentum momentum,
                               int by_minimum, int is_bounded)
{
    REALS_NAME(settings) u = REALS_NAME(settings_of)(s);
    ROW_VIEW rows[INTERLEAVED_ROWS];
    int64_t n = t->columns, j = 0;
    NAME(locate_rows)(t, k, interleaved, rows, momentum);
#define STEP(j)                                                                                                        \
    {                                                                                                                  \
        REALS column_factors = GET_REAL(factors + (j));                                                                \
        for (int i = 0; i < interleaved; i++) {                                                                        \
            REALS scales = NAME(scale_of_both)(u, row_factors[i], column_factors, by_minimum, is_bounded);             \
            ROW_VIEW r = rows[i];                                                                                      \
            MOVE_ENTRIES(r.x + (j), r.g + (j), r.average + (j), SIGNED(u, scales, momentum));                          \
        }                                                                                                              \
    }
    for (; j + BLOCK <= n; j += BLOCK) {
        enum { width = LANES };
        for (int l = 0; l < 4; l++) STEP(j + l * width);
    }
    FOR_LANES(n, STEP(j));
#undef STEP
}

INLINE void NAME(move_both)(const tile_view *t, const settings *s, const REAL *row_factors, const REAL *factors,
                            enum momentum momentum)
{
    int is_bounded = (REAL)s->lr / (REAL)s->eps <= REALS_NAME(largest)(), by_minimum = s->combine == MINIMUM;
    if (is_bounded && !by_minimum)
        FOR_ROWS(NAME(move_both_of)(t, s, k, interleaved, row_factors + k, factors, momentum, 0, 1));
    else
        for (int64_t k = 0; k < t->rows; k++)
            NAME(move_both_of)(t, s, k, 1, row_factors + k, factors, momentum, by_minimum, 0);
}
SPECIALIZE(move_both, (const tile_view *t, const settings *s, const void *row_factors, const void *factors),
           row_factors, factors)

/* ---------------------------------------------------------------------------------------- copies, and sums of rows */

INLINE ENTRIES NAME(gather_strided)(const STORED *e, int64_t column_stride, int width)
{
    ENTRIES entries = {0};
    for (int l = 0; l < width; l++) entries[l] = e[l * column_stride];
    return entries;
}

INLINE void NAME(scatter_strided)(STORED *e, int64_t column_stride, ENTRIES entries, int width)
{
    for (int l = 0; l < width; l++) e[l * column_stride] = entries[l];
}

static void NAME(load)(const void *from, int64_t row_stride, int64_t column_stride, const int64_t *row_index,
                       int64_t rows, int64_t columns, void *to)
{
    for (int64_t k = 0; k < rows; k++) {
        const STORED *e = (const STORED *)from + (row_index ? row_index[k] : k) * row_stride;
        REAL *r = (REAL *)to + k * columns;
        int64_t j = 0;
        if (column_stride == 1) FOR_LANES(columns, PUT_REAL(r + j, GET(e + j)));
        else
            FOR_LANES(columns,
                      PUT_REAL(r + j, WIDEN(NAME(gather_strided)(e + j * column_stride, column_stride, width))));
    }
}

static void NAME(store)(const void *from, void *to, int64_t row_stride, int64_t column_stride, const int64_t *row_index,
                        int64_t rows, int64_t columns, uint64_t seed, int64_t row, int64_t column)
{
    for (int64_t k = 0; k < rows; k++) {
        const REAL *r = (const REAL *)from + k * columns;
        STORED *e = (STORED *)to + (row_index ? row_index[k] : k) * row_stride;
        int64_t j = 0;
        uint32_t key = seed ? hash64(seed + (uint64_t)(row_index ? row_index[k] : row + k)) + (uint32_t)column : 0;
#define STOCHASTIC NARROW_STOCHASTIC(GET_REAL(r + j), key + (uint32_t)j)
        if (seed) FOR_LANES(columns, NAME(scatter_strided)(e + j * column_stride, column_stride, STOCHASTIC, width));
        else if (column_stride == 1) FOR_LANES(columns, PUT(e + j, GET_REAL(r + j)));
        else
            FOR_LANES(columns,
                      NAME(scatter_strided)(e + j * column_stride, column_stride, NARROW(GET_REAL(r + j)), width));
#undef STOCHASTIC
    }
}

/* Columns from j on of the sum of a segment of rows, in registers; the rows of later segments are prefetched. */
INLINE void NAME(sum_segment)(const gather *g, int64_t k, int64_t ahead, REAL *sum, int64_t j, int count, int width,
                              int weighted)
{
#define VALUES_ROW(p) ((const STORED *)g->values + value_row(g, p) * g->row_stride + j)
    REALS sums[8] = {{0}};
    for (int64_t p = g->starts[k]; p < g->starts[k + 1]; p++) {
        const STORED *e = VALUES_ROW(p);
        if (p + ahead < g->order_count) prefetch_row(VALUES_ROW(p + ahead), count * LANES * (int64_t)sizeof(STORED));
        if (weighted) {
            REAL weight = ((const REAL *)g->weights)[value_number(g, p)];
            for (int c = 0; c < count; c++) sums[c] += NAME(get)(e + c * LANES, width) * weight;
        } else
            for (int c = 0; c < count; c++) sums[c] += NAME(get)(e + c * LANES, width);
    }
    for (int c = 0; c < count; c++) NAME(put_real)(sum + j + c * LANES, sums[c], width);
#undef VALUES_ROW
}

/* The same for values with gaps between their columns. */
INLINE void NAME(sum_strided)(const gather *g, int64_t k, REAL *sum, int weighted)
{
    memset(sum, 0, (size_t)g->columns * sizeof(REAL));
    for (int64_t p = g->starts[k]; p < g->starts[k + 1]; p++) {
        const STORED *e = (const STORED *)g->values + value_row(g, p) * g->row_stride;
        REAL weight = weighted ? ((const REAL *)g->weights)[value_number(g, p)] : 1;
        int64_t j = 0;
        FOR_LANES(g->columns,
                  PUT_REAL(sum + j, GET_REAL(sum + j) + weight * WIDEN(NAME(gather_strided)(e + j * g->column_stride,
                                                                                            g->column_stride, width))));
    }
}

INLINE void NAME(gather_all)(const gather *g, void *to, int weighted)
{
    int64_t columns = g->columns;
    int64_t ahead = max(1, min(PREFETCH_ROWS, GATHER_BYTES / max(1, columns * (int64_t)sizeof(STORED))));
    for (int64_t k = 0; k < g->rows; k++) {
        REAL *sum = (REAL *)to + k * g->to_stride;
        int64_t j = 0;
        if (g->column_stride != 1) {
            NAME(sum_strided)(g, k, sum, weighted);
            continue;
        }
#define SUM(count, width) NAME(sum_segment)(g, k, ahead, sum, j, count, width, weighted)
        for (; j + 8 * LANES <= columns; j += 8 * LANES) SUM(8, LANES);
        if (j + 4 * LANES <= columns) SUM(4, LANES), j += 4 * LANES;
        for (; j + LANES <= columns; j += LANES) SUM(1, LANES);
        if (j < columns && j)
            j = columns - LANES, SUM(1, LANES), j = columns; /* overlaps: some sums are computed twice, the same */
        for (; j < columns; j++) SUM(1, 1);
#undef SUM
    }
}

static void NAME(gather_sums)(const gather *g, void *to)
{
    if (g->weights) NAME(gather_all)(g, to, 1);
    else NAME(gather_all)(g, to, 0);
}

#define ARITHMETIC_OF(momentum)                                                                                        \
    [momentum] = {                                                                                                     \
        .entry_bytes = sizeof(STORED),                                                                                 \
        .real_bytes = sizeof(REAL),                                                                                    \
        .read_rows = NAME(read_rows_##momentum),                                                                       \
        .read_columns = NAME(read_columns_##momentum),                                                                 \
        .move_rows = NAME(move_rows_##momentum),                                                                       \
        .move_columns = NAME(move_columns_##momentum),                                                                 \
        .read_both = NAME(read_both_##momentum),                                                                       \
        .move_both = NAME(move_both_##momentum),                                                                       \
        .step_rows = NAME(step_rows_##momentum),                                                                       \
        .load = NAME(load),                                                                                            \
        .store = NAME(store),                                                                                          \
        .gather_sums = NAME(gather_sums),                                                                              \
        .step_entries = REALS_NAME(step_entries_##momentum),                                                           \
        .compute_scales = REALS_NAME(compute_scales),                                                                  \
        .accumulate = REALS_NAME(accumulate),                                                                          \
        .compute_factors = REALS_NAME(compute_factors),                                                                \
        .add_penalty = REALS_NAME(add_penalty),                                                                        \
        .add = REALS_NAME(add),                                                                                        \
        .divide = REALS_NAME(divide),                                                                                  \
    },
static const arithmetic NAME(arithmetic)[] = {FOR_EACH_MOMENTUM(ARITHMETIC_OF)};

#undef ARITHMETIC_OF
#undef LANES
#undef REALS
#undef REALS_UNALIGNED
#undef REALS_NAME
#undef FOR_LANES
#undef GET
#undef PUT
#undef GET_REAL
#undef PUT_REAL
#undef ROW
#undef X_ROW
#undef G_ROW
#undef AVERAGE_ROW
#undef MOVE_ENTRIES
#undef BLOCK
#undef ROW_VIEW
#undef ENTRIES
#undef FOR_BLOCKS
#undef PREFETCH
#undef FOR_ROWS
#undef STORED
#undef BF16_PAIRS
#undef REAL
#undef WIDEN
#undef NARROW
#undef NARROW_STOCHASTIC
#undef NAME
