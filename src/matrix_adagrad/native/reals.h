/* Arithmetic on contiguous REALs, the same for all dtypes that are widened to them. Included once for each REAL, with
     REAL     the type, SQRT its square root and REAL_MAX its largest finite number
     NAME(f)  the name of function f for this type */

INLINE REAL NAME(scale)(REAL v, REAL lr, REAL v_correction, REAL eps) /* 0 for 0/0, and never infinite */
{
    REAL root = SQRT(v * v_correction) + eps, scale = lr / root;
    scale = scale > REAL_MAX ? REAL_MAX : scale;
    return root == 0 ? 0 : scale;
}

/* Accumulates the sums of squares in V, unless squares is NULL, and turns V into scales. */
static void NAME(compute_scales)(const settings *s, void *v_, const int64_t *row_index, const void *squares_,
                                 void *scales, int64_t n)
{
    REAL lr = (REAL)s->lr, v_correction = (REAL)s->v_correction, eps = (REAL)s->eps, v_decay = (REAL)s->v_decay;
    REAL v_weight = (REAL)s->v_weight, *restrict v = v_, *scale = scales;
    const REAL *squares = squares_;
    if (!squares)
        for (int64_t k = 0; k < n; k++) scale[k] = v[k];
    else if (row_index)
        for (int64_t k = 0; k < n; k++) scale[k] = v[row_index[k]] = v_decay * v[row_index[k]] + v_weight * squares[k];
    else
        for (int64_t k = 0; k < n; k++) scale[k] = v[k] = v_decay * v[k] + v_weight * squares[k];
    for (int64_t k = 0; k < n; k++) scale[k] = NAME(scale)(scale[k], lr, v_correction, eps);
}

INLINE void NAME(step_entries_as)(const tile_view *t, const settings *s, int momentum)
{
    REAL lr = (REAL)s->lr, v_correction = (REAL)s->v_correction, eps = (REAL)s->eps, shrinkage = (REAL)s->shrinkage;
    REAL v_decay = (REAL)s->v_decay, v_weight = (REAL)s->v_weight, sign = (REAL)t->sign;
    REAL beta1 = (REAL)s->beta1, one_minus_beta1 = (REAL)s->one_minus_beta1, nesterov_weight = (REAL)s->nesterov_weight;
    for (int64_t k = 0; k < t->rows; k++) {
        int64_t row = t->row_index ? t->row_index[k] : k;
        const REAL *restrict g = (const REAL *)t->g + k * t->g_stride;
        REAL *restrict x = (REAL *)t->x + row * t->x_stride, *restrict v = (REAL *)t->v + row * t->v_stride;
        REAL *restrict average = momentum ? (REAL *)t->average + row * t->average_stride : NULL;
        for (int64_t j = 0; j < t->columns; j++) {
            REAL d = sign * g[j];
            v[j] = v_decay * v[j] + v_weight * (d * d);
            REAL new_average = momentum ? average[j] = LERP(average[j], d) : d;
            d = momentum == NESTEROV ? nesterov_weight * new_average + one_minus_beta1 * d : new_average;
            x[j] = x[j] * shrinkage - NAME(scale)(v[j], lr, v_correction, eps) * d;
        }
    }
}

NOINLINE void NAME(step_entries_nesterov)(const tile_view *t, const settings *s)
{
    NAME(step_entries_as)(t, s, NESTEROV);
}

static void NAME(step_entries)(const tile_view *t, const settings *s)
{
    if (s->momentum == NESTEROV) NAME(step_entries_nesterov)(t, s);
    else if (s->momentum) NAME(step_entries_as)(t, s, MOMENTUM);
    else NAME(step_entries_as)(t, s, NO_MOMENTUM);
}

static void NAME(add_penalty)(void *g_, const void *x_, const settings *s, int64_t n)
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
#undef REAL_MAX
#undef NAME
