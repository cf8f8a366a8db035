/* Arithmetic on contiguous REALs, the same for all dtypes that are widened to them. Included once for each REAL, with
     REAL     the type, SQRT its square root and REAL_MAX its largest finite number
     NAME(f)  the name of function f for this type */

/* The settings in this type. */
typedef struct {
    SETTINGS(FIELD, REAL)
} NAME(settings);

INLINE NAME(settings) NAME(settings_of)(const settings *s)
{
#define CONVERT(real, name) .name = (real)s->name,
    return (NAME(settings)){SETTINGS(CONVERT, REAL)};
#undef CONVERT
}

INLINE REAL NAME(largest)(void) { return REAL_MAX; }

INLINE REAL NAME(scale)(NAME(settings) u, REAL v) /* 0 for 0/0, and never infinite */
{
    REAL root = ROOT(u, v), scale = u.lr / root;
    scale = scale > REAL_MAX ? REAL_MAX : scale;
    return root == 0 ? 0 : scale;
}

/* Accumulates the sums of squares in V, unless squares is NULL, and turns V into scales. Steepest descent keeps V for
   the move pass at most: without memory for it, it is not written. */
static void NAME(compute_scales)(const settings *s, void *v_, const int64_t *row_index, const void *squares_,
                                 void *scales, int64_t n)
{
    NAME(settings) u = NAME(settings_of)(s);
    REAL *restrict v = v_, *scale = scales;
    const REAL *squares = squares_;
    if (!squares)
        for (int64_t k = 0; k < n; k++) scale[k] = v[k];
    else if (s->steepest) {
        for (int64_t k = 0; k < n; k++) scale[k] = squares[k];
        for (int64_t k = 0; k < n && v; k++) v[k] = scale[k];
    } else if (row_index)
        for (int64_t k = 0; k < n; k++) scale[k] = v[row_index[k]] = ACCUMULATED(u, v[row_index[k]], squares[k]);
    else
        for (int64_t k = 0; k < n; k++) scale[k] = v[k] = ACCUMULATED(u, v[k], squares[k]);
    for (int64_t k = 0; k < n; k++) scale[k] = NAME(scale)(u, scale[k]);
}

static void NAME(accumulate)(const settings *s, void *v_, const int64_t *row_index, const void *squares_, int64_t n)
{
    NAME(settings) u = NAME(settings_of)(s);
    REAL *restrict v = v_;
    const REAL *restrict squares = squares_;
    for (int64_t k = 0; k < n; k++) {
        int64_t i = row_index ? row_index[k] : k;
        v[i] = ACCUMULATED(u, v[i], squares[k]);
    }
}

/* What rows, or columns, contribute to the scales of their entries: see enum combine. Only rows are divided by the
   whole, and of a quotient there is no bias to correct. */
static void NAME(compute_factors)(const settings *s, const void *v_, const int64_t *row_index, const void *whole_,
                                  void *factors, int64_t n)
{
    const REAL *restrict v = v_, *whole = whole_;
    int has_whole = whole && *whole != 0 && !isinf(*whole); /* after an overflow, scales are large and steps stop */
    REAL divisor = has_whole ? *whole : 1, correction = whole ? 1 : (REAL)s->v_correction;
    REAL *restrict factor = factors;
    for (int64_t k = 0; k < n; k++) factor[k] = SQRT(v[row_index ? row_index[k] : k] / divisor * correction);
    for (int64_t k = 0; s->combine == GEOMETRIC && k < n; k++) factor[k] = SQRT(factor[k]);
}

INLINE void NAME(step_entries_as)(const tile_view *t, const settings *s, enum momentum momentum, int steepest)
{
    NAME(settings) u = NAME(settings_of)(s);
    for (int64_t k = 0; k < t->rows; k++) {
        int64_t row = t->row_index ? t->row_index[k] : k;
        const REAL *restrict g = (const REAL *)t->g + k * t->g_stride;
        REAL *restrict x = (REAL *)t->x + row * t->x_stride;
        REAL *restrict v = steepest ? NULL : (REAL *)t->v + row * t->v_stride;
        REAL *restrict average = momentum ? (REAL *)t->average + row * t->average_stride : NULL;
        for (int64_t j = 0; j < t->columns; j++) {
            if (momentum) average[j] = AVERAGED(u, average[j], g[j]);
            REAL direction = DIRECTION(u, average[j], g[j], momentum), squares = direction * direction;
            if (!steepest) squares = v[j] = ACCUMULATED(u, v[j], g[j] * g[j]);
            x[j] = MOVED(u, x[j], SIGNED(u, NAME(scale)(u, squares), momentum), direction);
        }
    }
}

INLINE void NAME(step_entries)(const tile_view *t, const settings *s, enum momentum momentum)
{
    if (s->steepest) NAME(step_entries_as)(t, s, momentum, 1);
    else NAME(step_entries_as)(t, s, momentum, 0);
}
SPECIALIZE(step_entries, (const tile_view *t, const settings *s))

static void NAME(add_penalty)(void *g_, const void *x_, const settings *s, int64_t n)
{
    NAME(settings) u = NAME(settings_of)(s);
    REAL *restrict g = g_;
    const REAL *restrict x = x_;
    for (int64_t j = 0; j < n; j++) g[j] = PENALIZED(u, g[j], x[j]);
}

static void NAME(add)(void *to_, const void *from_, int64_t n)
{
    REAL *restrict to = to_;
    const REAL *restrict from = from_;
    for (int64_t j = 0; j < n; j++) to[j] += from[j];
}

static void NAME(divide)(void *x_, int64_t divisor, int64_t n)
{
    REAL *restrict x = x_;
    for (int64_t j = 0; j < n; j++) x[j] /= (REAL)divisor;
}

#undef REAL
#undef SQRT
#undef REAL_MAX
#undef NAME
