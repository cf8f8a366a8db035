/* The catch-up of rows, and the marking of rows as up to date. */

#include "fuzz.h"

#include <stdlib.h>

/* The struct of lazy.c. */
typedef struct {
    indices index;
    int64_t ids, rows;
    int32_t *last_step;
    int64_t now;
    pointer last_decay;
    double total;
    int64_t is_f64;
    pointer x;
    int64_t x_stride, width, dtype;
    uint64_t stream;
    pointer average;
    int64_t average_stride;
    pointer statistic;
    int64_t statistic_stride, statistic_width;
    double beta1, beta2;
} lag;

int64_t matrix_adagrad_catch_up(const lag *lags, int64_t count, int64_t threads);

enum { MAX_ROWS = 3000, MAX_WIDTH = 1025, MAX_ENTRIES = 1 << 16 };

static int64_t make(const void *l, int64_t threads) { return matrix_adagrad_catch_up(l, 1, threads); }

/* Rows, each in one piece of memory; returns their stride. */
static int64_t new_rows(input *in, pointer *data, int64_t contents, int64_t rows, int64_t width, enum values values)
{
    int64_t stride = max(1, width) + pick(in, 0, 2), count = rows && width ? (rows - 1) * stride + width : 0;
    *data = new_array(contents, count);
    fill(in, *data, contents, count, values, 1);
    return stride;
}

static void new_counters(input *in, lag *l, enum values values)
{
    int64_t real = l->is_f64 ? F64 : F32, which = pick(in, 1, 3), some[] = {0, 1, 1000, INT32_MAX};
    l->now = some[pick(in, 0, 3)], l->total = 1 + (double)pick(in, 0, 3);
    if (!l->is_f64) l->total = (double)(float)l->total;
    if (which & 1) {
        l->last_step = new_array(HALF_WORDS, l->rows);
        for (int64_t i = 0; i < l->rows; i++)
            l->last_step[i] = (int32_t)(pick_flag(in) ? l->now : (int64_t)(random_bits(in) % (uint64_t)(l->now + 1)));
    }
    if (which & 2) {
        l->last_decay = new_array(real, l->rows);
        fill(in, l->last_decay, real, l->rows, values, 1);
    }
}

/* Some rows, or all; returns whether one is out of range. */
static int new_index(input *in, lag *l)
{
    l->ids = l->rows;
    if (pick(in, 0, 3) == 3) return 0;
    l->ids = pick_size(in, 5000);
    int64_t *index = new_array(WORDS, max(1, l->ids)), is_bad = l->ids && !l->rows; /* NULL would mean all rows */
    for (int64_t k = 0; k < l->ids && l->rows; k++) index[k] = (int64_t)(random_bits(in) % (uint64_t)l->rows);
    l->index = index;
    if (!l->ids || pick(in, 0, 15) < 15) return (int)is_bad;
    const int64_t bad[] = {-1, l->rows, INT64_MIN, INT64_MAX};
    index[random_bits(in) % (uint64_t)l->ids] = bad[pick(in, 0, 3)];
    return 1;
}

/* What is expected of a row. */
typedef struct {
    double decay, beta1, beta2;
} factors;

static factors *new_expected(const lag *l, double **numbers)
{
    factors *expected = malloc((size_t)max(1, l->rows) * sizeof *expected);
    int64_t real = l->is_f64 ? F64 : F32;
    *numbers = malloc((size_t)max(1, l->rows) * 3 * sizeof **numbers); /* the first entry of each row */
    CHECK(expected && *numbers);
    for (int64_t i = 0; i < l->rows; i++) {
        double steps = l->last_step ? (double)(l->now - l->last_step[i]) : 0, *first = *numbers + 3 * i;
        expected[i] = (factors){1, 1, 1};
        if (l->x && l->last_decay) expected[i].decay = exp(get_number(l->last_decay, real, i) - l->total);
        if (l->average) expected[i].beta1 = pow(l->beta1, steps);
        if (l->statistic) expected[i].beta2 = pow(l->beta2, steps);
        first[0] = l->x && l->width ? get_number(l->x, l->dtype, i * l->x_stride) : 0;
        first[1] = l->average ? get_number(l->average, real, i * l->average_stride) : 0;
        first[2] = l->statistic ? get_number(l->statistic, real, i * l->statistic_stride) : 0;
    }
    return expected;
}

static void expect_close(double found, double expected, double unit)
{
    CHECK(fabs(found - expected) <= unit * fabs(expected) + 1e-30);
}

static void expect_caught_up(const lag *l, const factors *expected, const double *before)
{
    int64_t real = l->is_f64 ? F64 : F32;
    double close = l->is_f64 ? 1e-9 : 1e-4;
    double unit = l->dtype == BF16 ? 0x1p-6 : l->dtype == F16 ? 0x1p-9 : close;
    for (int64_t k = 0; k < l->ids; k++) {
        int64_t i = l->index ? l->index[k] : k;
        if (l->last_step) CHECK(l->last_step[i] == l->now);
        if (l->last_decay) CHECK(get_number(l->last_decay, real, i) == l->total);
        const double *first = before + 3 * i;
        if (l->x && l->width)
            expect_close(get_number(l->x, l->dtype, i * l->x_stride), first[0] * expected[i].decay, unit);
        if (l->average)
            expect_close(get_number(l->average, real, i * l->average_stride), first[1] * expected[i].beta1, close);
        if (l->statistic)
            expect_close(get_number(l->statistic, real, i * l->statistic_stride), first[2] * expected[i].beta2, close);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const double betas[] = {0.9, 0, 0.5, 0.999};
    input in = begin_input(data, size);
    enum values values = pick_values(&in);
    int64_t dtype = pick(&in, 0, DTYPES - 1), real = real_dtype(dtype), only_marks = pick(&in, 0, 7) == 7;
    lag l = {.rows = pick_size(&in, MAX_ROWS), .is_f64 = dtype == F64};
    new_counters(&in, &l, values);
    if (!only_marks) {
        l.width = l.rows ? min(pick_size(&in, MAX_WIDTH), MAX_ENTRIES / l.rows) : 0, l.dtype = dtype;
        l.stream = pick_flag(&in) ? random_bits(&in) >> 2 : 0;
        l.beta1 = pick_of(&in, betas, 4), l.beta2 = pick_of(&in, betas, 4);
        if (l.last_decay) l.x_stride = new_rows(&in, &l.x, dtype, l.rows, l.width, values);
        if (l.last_step && pick_flag(&in)) l.average_stride = new_rows(&in, &l.average, real, l.rows, l.width, values);
        if (l.last_step && pick_flag(&in)) {
            l.statistic_width = pick_flag(&in) ? l.width : l.rows ? 1 : 0;
            l.statistic_stride = new_rows(&in, &l.statistic, real, l.rows, l.statistic_width, values);
        }
    }
    int is_bad = new_index(&in, &l);
    double *numbers;
    factors *expected = new_expected(&l, &numbers);
    int64_t behind = call_twice(&in, make, &l);
    CHECK(is_bad ? behind == -1 : behind >= 0 && behind <= l.ids);
    if (is_bad) expect_unchanged();
    else if (values == TAME) expect_caught_up(&l, expected, numbers);
    free(expected), free(numbers);
    return 0;
}
