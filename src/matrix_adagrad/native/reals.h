/* The arithmetic on plain rows of REALs, the same for all dtypes that are widened to them. Included once for each, with
     REAL     the type, SQRT its root and BIGGEST its largest finite number
     NAME(f)  a name of its own for each function */

INLINE REAL NAME(scale)(REAL v, REAL lr, REAL variance, REAL eps) /* 0 for 0/0, and never infinite */
{
    REAL root = SQRT(v * variance) + eps, scale = lr / root;
    scale = scale > BIGGEST ? BIGGEST : scale;
    return root == 0 ? 0 : scale;
}

/* V from sums of squares, unless there are none, and the scales from V. */
static void NAME(scales)(const settings *s, void *v_, const int64_t *places, const void *squares_, void *scales,
                              int64_t n)
{
    REAL lr = (REAL)s->lr, variance = (REAL)s->variance, eps = (REAL)s->eps, keep = (REAL)s->keep;
    REAL fresh = (REAL)s->fresh, *restrict v = v_, *scale = scales;
    const REAL *squares = squares_;
    if (!squares)
        for (int64_t k = 0; k < n; k++) scale[k] = v[k];
    else if (places)
        for (int64_t k = 0; k < n; k++) scale[k] = v[places[k]] = keep * v[places[k]] + fresh * squares[k];
    else
        for (int64_t k = 0; k < n; k++) scale[k] = v[k] = keep * v[k] + fresh * squares[k];
    for (int64_t k = 0; k < n; k++) scale[k] = NAME(scale)(scale[k], lr, variance, eps);
}

INLINE void NAME(step_entries_as)(const tile *t, const settings *s, int momentum)
{
    REAL lr = (REAL)s->lr, variance = (REAL)s->variance, eps = (REAL)s->eps, shrink = (REAL)s->shrink;
    REAL keep = (REAL)s->keep, fresh = (REAL)s->fresh, sign = (REAL)t->sign;
    REAL beta1 = (REAL)s->beta1, join = (REAL)s->join;
    for (int64_t k = 0; k < t->rows; k++) {
        int64_t place = t->places ? t->places[k] : k;
        const REAL *restrict g = (const REAL *)t->g + k * t->g_row;
        REAL *restrict x = (REAL *)t->x + place * t->x_row, *restrict v = (REAL *)t->v + place * t->v_row;
        REAL *restrict average = momentum ? (REAL *)t->average + place * t->average_row : NULL;
        for (int64_t j = 0; j < t->columns; j++) {
            REAL d = sign * g[j];
            v[j] = keep * v[j] + fresh * (d * d);
            if (momentum) d = average[j] = JOIN(average[j], d);
            x[j] = x[j] * shrink - NAME(scale)(v[j], lr, variance, eps) * d;
        }
    }
}

static void NAME(step_entries)(const tile *t, const settings *s)
{
    if (s->momentum) NAME(step_entries_as)(t, s, 1);
    else NAME(step_entries_as)(t, s, 0);
}

static void NAME(penalize)(void *g_, const void *x_, const settings *s, int64_t n)
{
    REAL *restrict g = g_, sign = (REAL)s->sign, l2 = (REAL)s->l2;
    const REAL *restrict x = x_;
    for (int64_t j = 0; j < n; j++) g[j] = sign * g[j] + l2 * x[j];
}

static void NAME(add)(void *to_, const void *from_, int64_t n)
{
    REAL *restrict to = to_;
    const REAL *restrict from = from_;
    for (int64_t j = 0; j < n; j++) to[j] += from[j];
}

#undef REAL
#undef SQRT
#undef BIGGEST
#undef NAME
