/* Projections onto balls in a metric: the factors s / (s + λ) that bring the lengths a of each block into the unit
   ball.

   λ solves ‖s a / (s + λ)‖ = 1, with scales s whose maximum is 1. The reciprocal of that norm is concave and increasing
   in λ, so that Newton's method ends up below the root from either side; domains/balls.py does the same in torch's
   operators. */

#include <float.h>
#include <math.h>
#include <stdint.h>

#include "kernels.h"
#include "threads.h"

enum {
    NEWTON_STEPS = 8,     /* at most, before bisection joins in */
    BISECTION_STEPS = 24, /* at most */
    RUN_ENTRIES = 4096,   /* entries that are summed together, by one thread */
    RUNS_PER_BATCH = 64,  /* runs whose sums are kept on the stack */
};
#define RELATIVE_TOLERANCE 1e-9 /* of the last step: Newton's method squares the error */

typedef struct {
    const double *a, *s;
    int64_t entries;
    double inverse_max; /* of the scales */
} block;

typedef struct {
    double square, slope; /* Σq² and Σq²/(s + λ), with q = s a / (s + λ) */
} sums;

typedef double lanes __attribute__((vector_size(4 * sizeof(double)), aligned(8))); /* independent accumulators */

static inline double greater(double x, double y) { return x > y ? x : y; } /* unlike fmax no call; y if x is NaN */

/* DBL_MIN keeps a scale positive, and is rounded away wherever the scale is larger. */
static inline double scale(const block *b, int64_t i) { return b->s[i] * b->inverse_max + DBL_MIN; }

static sums sum_run(const block *b, int64_t from, int64_t to, double lambda)
{
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
        s = s * b->inverse_max + DBL_MIN;
        lanes reciprocal = 1 / (s + lambda), q = s * a * reciprocal;
        square += q * q;
        slope += q * q * reciprocal;
    }
    return (sums){(square[0] + square[1]) + (square[2] + square[3]), (slope[0] + slope[1]) + (slope[2] + slope[3])};
}

/* Runs of a fixed length, reduced in order: the same bits for any number of threads. */
static sums sum_block(const block *b, double lambda, int64_t threads)
{
    sums total = {0, 0}, parts[RUNS_PER_BATCH];
    if (b->entries <= RUN_ENTRIES) return sum_run(b, 0, b->entries, lambda);
    for (int64_t start = 0; start < b->entries; start += (int64_t)RUNS_PER_BATCH * RUN_ENTRIES) {
        int64_t count = min(ceil_div(b->entries - start, RUN_ENTRIES), RUNS_PER_BATCH);
        PARALLEL_FOR(k, count, {
            parts[k] = sum_run(b, start + k * RUN_ENTRIES, min(start + (k + 1) * RUN_ENTRIES, b->entries), lambda);
        });
        for (int64_t k = 0; k < count; k++) {
            total.square += parts[k].square;
            total.slope += parts[k].slope;
        }
    }
    return total;
}

static double multiplier(const block *b, int64_t threads)
{
    /* An upper bound: the norm is at most ‖s a‖ / λ. Lower bounds: what a single entry needs, and what all would need
       if all scales were 1. */
    double square = 0, lower = 0;
    for (int64_t i = 0; i < b->entries; i++) {
        double s = scale(b, i), u = s * b->a[i];
        square += u * u;
        lower = greater(u - s, lower);
    }
    double upper = sqrt(square), lambda = lower = greater(upper - 1, lower);
    for (int k = 0; k < NEWTON_STEPS + BISECTION_STEPS; k++) {
        sums at_lambda = sum_block(b, lambda, threads);
        lower = greater(lambda + at_lambda.square * (sqrt(at_lambda.square) - 1) / at_lambda.slope, lower);
        if (fabs(lower - lambda) <= RELATIVE_TOLERANCE * lower) break;
        if (k >= NEWTON_STEPS && at_lambda.square < 1) upper = lambda < upper ? lambda : upper;
        /* Where scales spread over many orders of magnitude, bisect the logarithm of the interval first. */
        lambda = k >= NEWTON_STEPS && upper > 16 * lower ? sqrt(lower) * sqrt(upper) : lower;
    }
    return lower;
}

static void project(block b, double slack, double *factor, int64_t threads)
{
    double square = 0, largest = DBL_MIN;
    for (int64_t i = 0; i < b.entries; i++) {
        square += b.a[i] * b.a[i];
        largest = greater(b.s[i], largest);
    }
    b.inverse_max = 1 / largest;
    double lambda = sqrt(square) <= 1 + slack ? 0 : isnan(square) ? NAN : multiplier(&b, threads);
    for (int64_t i = 0; i < b.entries; i++) factor[i] = lambda == 0 ? 1 : scale(&b, i) / (scale(&b, i) + lambda);
}

/* `blocks` blocks of `entries` entries each, contiguous in a, s and factor. */
EXPORT void matrix_adagrad_shrink(const double *a, const double *s, int64_t blocks, int64_t entries, double slack,
                                  double *factor, int64_t threads)
{
    if (blocks * entries <= SERIAL_ENTRIES) threads = 1;
    int64_t threads_per_block = blocks < threads ? threads : 1;
    threads = threads_per_block == 1 ? threads : 1;
    PARALLEL_FOR(k, blocks, {
        project((block){a + k * entries, s + k * entries, entries, 0}, slack, factor + k * entries, threads_per_block);
    });
}
