/* The step of a matrix, as plainly as it can be written. */

#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

struct reference {
    tensor t;
    double *x, *average, *v, *columns, whole, step, *slack; /* slack: the magnitude of what an entry is computed from */
};

static struct reference kept;

static void *zeros(double **numbers, int64_t count)
{
    free(*numbers);
    *numbers = calloc((size_t)max(1, count), sizeof(double));
    CHECK(*numbers);
    return *numbers;
}

static double entry(const array *a, int64_t contents, int64_t i, int64_t j)
{
    return get_number(a->data, contents, i * a->outer + j * a->inner);
}

/* Which V an entry belongs to. */
static int64_t block_of(const tensor *t, int64_t i, int64_t j)
{
    return t->kind == PER_INNER ? j : t->kind == PER_ENTRY ? i * t->inner + j : t->kind == PER_TENSOR ? 0 : i;
}

static double root_of(const tensor *t, const reference *r, double correction, int64_t i, int64_t j)
{
    double v = r->v[block_of(t, i, j)];
    if (t->kind != PER_BOTH) return sqrt(v * correction);
    double column = r->columns[j] * correction;
    if (t->combine == PRODUCT) return sqrt(v / r->whole * column);
    v *= correction;
    return t->combine == MINIMUM ? fmin(sqrt(v), sqrt(column)) : sqrt(sqrt(v)) * sqrt(sqrt(column));
}

reference *begin_reference(const tensor *t, const config *c, const double *g, const uint8_t *touched)
{
    reference *r = &kept;
    int64_t m = t->outer, n = t->inner, real = real_dtype(t->dtype);
    int has_average = c->momentum && c->beta1 > 0, corrects = c->momentum && c->bias_correction;
    double step = r->step = get_number(t->step, t->step_is_f64 ? F64 : F32, 0) + 1, decay = c->momentum ? c->beta2 : 1;
    if (!t->step_is_f64) step = r->step = (double)(float)step;
    double sign = c->maximize ? -1 : 1, weight = c->momentum ? 1 - c->beta2 : 1;
    double first = corrects ? 1 - pow(c->beta1, step) : 1, second = corrects ? 1 - pow(c->beta2, step) : 1;
    double next = corrects ? 1 - pow(c->beta1, step + 1) : 1;
    r->t = *t;
    zeros(&r->x, m * n), zeros(&r->average, m * n), zeros(&r->slack, m * n), zeros(&r->columns, n);
    zeros(&r->v, t->kind == PER_ENTRY ? m * n : max(m, n));
    double *squares = zeros(&(double *){NULL}, t->kind == PER_ENTRY ? m * n : max(m, n)),
           *column_squares = zeros(&(double *){NULL}, n), *gradient = zeros(&(double *){NULL}, m * n), all = 0;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            int64_t at = i * n + j;
            r->x[at] = entry(&t->x, t->dtype, i, j);
            if (has_average) r->average[at] = entry(&t->average, real, i, j);
            if (touched && !touched[i]) continue;
            gradient[at] = sign * g[at] + (c->decoupled_weight_decay ? 0 : c->weight_decay * r->x[at]);
            squares[block_of(t, i, j)] += gradient[at] * gradient[at];
            column_squares[j] += gradient[at] * gradient[at], all += gradient[at] * gradient[at];
            if (has_average) r->average[at] = c->beta1 * r->average[at] + (1 - c->beta1) * gradient[at];
        }
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            int64_t b = block_of(t, i, j), by_rows = t->kind == PER_OUTER || t->kind == PER_BOTH;
            double v = t->kind == PER_ENTRY ? entry(&t->statistic, real, i, j) : get_number(t->statistic.data, real, b);
            int is_kept = touched && !touched[i] && (by_rows || t->kind == PER_ENTRY);
            r->v[b] = is_kept ? v : decay * v + weight * squares[b] / (double)t->divisor;
        }
    for (int64_t j = 0; t->kind == PER_BOTH && j < n; j++)
        r->columns[j] =
            decay * get_number(t->columns.data, real, j) + weight * column_squares[j] / (double)t->columns_divisor;
    if (t->whole.data) r->whole = decay * get_number(t->whole.data, real, 0) + weight * all / (double)t->whole_divisor;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            int64_t at = i * n + j;
            if (touched && !touched[i]) continue;
            double d = has_average ? r->average[at] : gradient[at];
            if (has_average && c->nesterov) d = c->beta1 * first / next * d + (1 - c->beta1) * gradient[at];
            double root = root_of(t, r, 1 / second, i, j) + c->eps, move = root > 0 ? c->lr / first / root * d : 0;
            r->slack[at] = fabs(r->x[at]) + fabs(move) + (root > 0 ? c->lr / first / root : 0) * (fabs(d) + 1);
            r->x[at] = r->x[at] * (c->decoupled_weight_decay ? 1 - c->lr * c->weight_decay : 1) - move;
        }
    free(squares), free(column_squares), free(gradient);
    return r;
}

static void expect_close(double found, double expected, double magnitude, double tolerance)
{
    CHECK(fabs(found - expected) <= tolerance * (fabs(expected) + magnitude));
}

void expect_reference(const reference *r)
{
    const tensor *t = &r->t;
    int64_t real = real_dtype(t->dtype);
    double close = real == F64 ? 1e-10 : 5e-4, unit = t->dtype == BF16 ? 0x1p-7 : t->dtype == F16 ? 0x1p-10 : 0;
    CHECK(get_number(t->step, t->step_is_f64 ? F64 : F32, 0) == r->step);
    for (int64_t i = 0; i < t->outer; i++)
        for (int64_t j = 0; j < t->inner; j++) {
            int64_t at = i * t->inner + j;
            double x = entry(&t->x, t->dtype, i, j);
            if (t->dtype != F16 || fabs(r->x[at]) < 60000)
                CHECK(fabs(x - r->x[at]) <= unit * (fabs(r->x[at]) + 0x1p-14) + close * r->slack[at]);
            if (t->average.data) expect_close(entry(&t->average, real, i, j), r->average[at], 1, close);
            double v = t->kind == PER_ENTRY ? entry(&t->statistic, real, i, j)
                                            : get_number(t->statistic.data, real, block_of(t, i, j));
            expect_close(v, r->v[block_of(t, i, j)], 0, close);
        }
    for (int64_t j = 0; t->kind == PER_BOTH && t->outer && j < t->inner; j++)
        expect_close(get_number(t->columns.data, real, j), r->columns[j], 0, close);
    if (t->kind == PER_BOTH && t->whole.data) expect_close(get_number(t->whole.data, real, 0), r->whole, 0, close);
}
