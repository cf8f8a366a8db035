/* Projections onto balls in a metric: the factors s / (s + λ) that bring the lengths a of each block into the unit ball.

   λ solves ‖s a / (s + λ)‖ = 1, with scales s whose largest is 1. The reciprocal of that norm is concave and rises with λ,
   so that Newton's method lands below the root from either side; domains/balls.py has the same in torch's operators. */

#include <float.h>
#include <math.h>
#include <stdint.h>

#include "kernels.h"
#include "threads.h"

enum { NEWTON = 8, BISECTION = 24, RUN = 4096, AT_ONCE = 64 };
#define CLOSE 1e-9 /* a step so short, relatively, is the last: Newton's method squares the error */

typedef struct {
    const double *a, *s;
    int64_t entries;
    double unit; /* the reciprocal of the largest scale */
} block;

typedef struct {
    double square, slope; /* Σq² and Σq²/(s + λ), with q = s a / (s + λ) */
} sums;

typedef double lanes __attribute__((vector_size(4 * sizeof(double)), aligned(8))); /* sums that need not wait */

static inline double larger(double x, double y) { return x > y ? x : y; } /* no call, unlike fmax; y if x is NaN */

/* DBL_MIN keeps a scale positive, and is lost in the rounding of any that does not need it. */
static inline double scale(const block *b, int64_t i) { return b->s[i] * b->unit + DBL_MIN; }

static sums sum_run(const block *b, int64_t from, int64_t to, double lambda) {
    lanes square = {0}, slope = {0};
    for (int64_t i = from; i < to; i += 4) {
        lanes s = {0}, a = {0};
        if (i + 4 <= to) {
            s = *(const lanes *)(b->s + i);
            a = *(const lanes *)(b->a + i);
        } else
            for (int64_t l = 0; i + l < to; l++) {
                s[l] = b->s[i + l];
                a[l] = b->a[i + l];
            }
        s = s * b->unit + DBL_MIN;
        lanes reciprocal = 1 / (s + lambda), q = s * a * reciprocal;
        square += q * q;
        slope += q * q * reciprocal;
    }
    return (sums){(square[0] + square[1]) + (square[2] + square[3]), (slope[0] + slope[1]) + (slope[2] + slope[3])};
}

/* Runs of a fixed length, added in their order: the same bits for any number of threads. */
static sums sum_block(const block *b, double lambda, int64_t threads) {
    sums total = {0, 0}, parts[AT_ONCE];
    if (b->entries <= RUN)
        return sum_run(b, 0, b->entries, lambda);
    for (int64_t start = 0; start < b->entries; start += (int64_t)AT_ONCE * RUN) {
        int64_t count = least(ceil_div(b->entries - start, RUN), AT_ONCE);
        PARALLEL_EVENLY
        for (int64_t k = 0; k < count; k++)
            parts[k] = sum_run(b, start + k * RUN, least(start + (k + 1) * RUN, b->entries), lambda);
        for (int64_t k = 0; k < count; k++) {
            total.square += parts[k].square;
            total.slope += parts[k].slope;
        }
    }
    return total;
}

static double multiplier(const block *b, int64_t threads) {
    /* An upper bound: the norm is at most ‖s a‖ / λ. Lower ones: what one entry needs by itself, and what all would need
       if all scales were 1. */
    double square = 0, lower = 0;
    for (int64_t i = 0; i < b->entries; i++) {
        double s = scale(b, i), u = s * b->a[i];
        square += u * u;
        lower = larger(u - s, lower);
    }
    double upper = sqrt(square), at = lower = larger(upper - 1, lower);
    for (int k = 0; k < NEWTON + BISECTION; k++) {
        sums here = sum_block(b, at, threads);
        lower = larger(at + here.square * (sqrt(here.square) - 1) / here.slope, lower);
        if (fabs(lower - at) <= CLOSE * lower)
            break;
        if (k >= NEWTON && here.square < 1)
            upper = at < upper ? at : upper;
        /* Where scales spread over many orders of magnitude, halve the logarithm of the interval first. */
        at = k >= NEWTON && upper > 16 * lower ? sqrt(lower) * sqrt(upper) : lower;
    }
    return lower;
}

static void shrink(block b, double slack, double *factor, int64_t threads) {
    double square = 0, largest = DBL_MIN;
    for (int64_t i = 0; i < b.entries; i++) {
        square += b.a[i] * b.a[i];
        largest = larger(b.s[i], largest);
    }
    b.unit = 1 / largest;
    double lambda = sqrt(square) <= 1 + slack ? 0 : isnan(square) ? NAN : multiplier(&b, threads);
    for (int64_t i = 0; i < b.entries; i++)
        factor[i] = lambda == 0 ? 1 : scale(&b, i) / (scale(&b, i) + lambda);
}

/* Blocks of so many entries, one behind the other, in a, s and factor. */
EXPORT void matrix_adagrad_shrink(const double *a, const double *s, int64_t blocks, int64_t entries, double slack,
                                  double *factor, int64_t threads) {
    if (blocks * entries <= SERIAL)
        threads = 1;
    int64_t inside = blocks < threads ? threads : 1;
    threads = inside == 1 ? threads : 1;
    PARALLEL_EVENLY
    for (int64_t k = 0; k < blocks; k++)
        shrink((block){a + k * entries, s + k * entries, entries, 0}, slack, factor + k * entries, inside);
}
