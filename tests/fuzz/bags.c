/* Sums of bags of many features, and the step of their tables from the gradients of a batch. */

#include "fuzz.h"
#include "steps.h"

#include <stdlib.h>

int64_t matrix_adagrad_sum_bags(const feature *features, int64_t feature_count, int64_t dtype, const int64_t *index,
                                int64_t index_count, const void *weights, const int64_t *offsets, int64_t bags,
                                void *out, int64_t out_stride, int64_t threads);
int64_t matrix_adagrad_bags_step(tensor *tensors, int64_t count, const int64_t *features, const int64_t *index,
                                 int64_t index_count, const int64_t *offsets, int64_t bags, void *weights, void *values,
                                 int64_t value_stride, const config *c, int64_t threads, char *workspace,
                                 int64_t bytes);

enum { MAX_FEATURES = 4, MAX_ENTRIES = 1 << 16, MAX_INDICES = 3000 };

typedef struct {
    feature features[MAX_FEATURES];
    tensor tables[MAX_FEATURES];
    int64_t numbers[2 * MAX_FEATURES]; /* of the feature that reads a table, and its first column */
    int64_t count, dtype, width, bags, index_count;
    int64_t *index, *offsets;
    void *weights, *out, *values;
    config c;
} arguments;

static void new_feature(input *in, arguments *a, int64_t f, enum values values)
{
    int64_t rows = max(1, pick_size(in, MAX_ENTRIES)), columns = max(1, pick_size(in, MAX_ENTRIES)),
            gap = pick(in, 0, 2);
    columns = max(1, min(columns, MAX_ENTRIES / rows));
    int64_t real = real_dtype(a->dtype), stride = columns + gap;
    void *table = new_array(a->dtype, (rows - 1) * stride + columns);
    fill(in, table, a->dtype, (rows - 1) * stride + columns, values, 0);
    a->features[f] = (feature){table, rows, columns, stride, a->width, pick_flag(in)};
    a->numbers[2 * f] = f, a->numbers[2 * f + 1] = a->width;
    a->width += columns;
    tensor *t = &a->tables[f];
    *t = (tensor){
        .x = {table, 0, stride, 1},
        .outer = rows,
        .inner = columns,
        .kind = pick(in, PER_OUTER, PER_TENSOR),
        .dtype = a->dtype,
        .divisor = 1,
        .columns_divisor = 1,
        .whole_divisor = 1,
        .matrices = 1,
        .stream = random_bits(in) >> 2,
    };
    if (a->c.momentum && a->c.beta1 > 0) t->average = new_matrix(in, real, rows, columns, values, 0);
    if (t->kind == PER_ENTRY) t->statistic = new_matrix(in, real, rows, columns, values, 1);
    else t->statistic = new_vector(in, real, t->kind == PER_OUTER ? rows : t->kind == PER_INNER ? columns : 1, values);
    new_step_count(in, t, values);
}

/* The bags of all features; returns the first feature whose bags or rows are out of range, or their count. */
static int64_t new_bags(input *in, arguments *a)
{
    int64_t f = 0, refused = a->count, total = a->count * a->bags;
    for (int64_t k = 0; k < total; k++) {
        int64_t length = pick_flag(in) ? pick(in, 0, 5) : pick(in, 0, 31) == 31 ? pick_size(in, 1000) : 1;
        a->offsets[k + 1] = min(a->offsets[k] + length, MAX_INDICES);
    }
    a->index_count = a->offsets[total];
    a->index = new_array(WORDS, a->index_count);
    for (int64_t k = 0; k < a->index_count; k++) {
        while (a->offsets[(f + 1) * a->bags] <= k) f++;
        a->index[k] = (int64_t)(random_bits(in) % (uint64_t)a->features[f].rows);
    }
    if (a->index_count && pick(in, 0, 15) == 15) {
        int64_t k = (int64_t)(random_bits(in) % (uint64_t)a->index_count);
        for (f = 0; a->offsets[(f + 1) * a->bags] <= k;) f++;
        const int64_t bad[] = {-1, a->features[f].rows, INT64_MIN, INT64_MAX, (int64_t)1 << 32};
        a->index[k] = bad[pick(in, 0, 4)];
        refused = f;
    }
    if (total && pick(in, 0, 15) == 15) {
        const int64_t bad[] = {-1, a->index_count + 1, INT64_MIN, INT64_MAX};
        int64_t k = pick(in, 0, total);
        a->offsets[k] = bad[pick(in, 0, 3)];
        refused = min(refused, max(0, k - 1) / a->bags);
    }
    return refused;
}

static int64_t sum(const void *data, int64_t threads)
{
    const arguments *a = data;
    int64_t answer = matrix_adagrad_sum_bags(a->features, a->count, a->dtype, a->index, a->index_count, a->weights,
                                             a->offsets, a->bags, a->out, a->width, threads);
    CHECK(answer >= 0 && answer <= a->count);
    if (!answer) return 0;
    restore_arrays(); /* which sums are missing then depends on the threads */
    return 1;
}

static int64_t step(const void *data, int64_t threads)
{
    const arguments *a = data;
    tensor tables[MAX_FEATURES];
    int64_t needed = 0, answer;
    char *room = NULL;
    do {
        for (int64_t f = 0; f < a->count; f++) tables[f] = a->tables[f];
        if (needed) room = new_room(needed);
        answer = matrix_adagrad_bags_step(tables, a->count, a->numbers, a->index, a->index_count, a->offsets, a->bags,
                                          a->weights, a->values, a->width, &a->c, threads, room, needed);
        CHECK(!needed || answer <= 0);
        needed = answer;
    } while (answer > 0);
    return answer;
}

static void expect_sums(const arguments *a)
{
    int64_t real = real_dtype(a->dtype);
    double unit = a->dtype == BF16 ? 0x1p-8 : a->dtype == F16 ? 0x1p-10 : a->dtype == F64 ? 1e-12 : 1e-5;
    for (int64_t f = 0; f < a->count; f++)
        for (int64_t b = 0; b < a->bags; b++) {
            int64_t from = a->offsets[f * a->bags + b], to = a->offsets[f * a->bags + b + 1];
            double length = a->features[f].is_mean && to > from ? (double)(to - from) : 1;
            for (int64_t j = 0; j < a->features[f].columns; j++) {
                double total = 0, size = 0;
                for (int64_t k = from; k < to; k++) {
                    double x = get_number(a->features[f].table, a->dtype, a->index[k] * a->features[f].row_stride + j);
                    if (a->weights) x *= get_number(a->weights, real, k);
                    total += x / length, size += fabs(x) / length;
                }
                double found = get_number(a->out, a->dtype, b * a->width + a->features[f].column + j);
                CHECK(fabs(found - total) <= unit * (fabs(total) + 0x1p-14) + 1e-5 * size);
            }
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = begin_input(data, size);
    arguments a = {.c = pick_config(&in, 0), .dtype = pick(&in, 0, DTYPES - 1), .count = pick(&in, 1, MAX_FEATURES)};
    enum values values = pick_values(&in);
    for (int64_t f = 0; f < a.count; f++) new_feature(&in, &a, f, values);
    a.bags = pick_size(&in, max(1, min(300, MAX_ENTRIES / a.width)));
    a.offsets = new_array(WORDS, a.count * a.bags + 1);
    int64_t refused = new_bags(&in, &a);
    if (pick_flag(&in)) {
        a.weights = new_array(real_dtype(a.dtype), a.index_count);
        fill(&in, a.weights, real_dtype(a.dtype), a.index_count, values, 0);
    }
    a.out = new_array(a.dtype, a.bags * a.width), a.values = new_array(a.dtype, a.bags * a.width);
    fill(&in, a.values, a.dtype, a.bags * a.width, values, 0);
    int64_t was_refused = call_twice(&in, sum, &a);
    CHECK(was_refused == (a.bags && refused < a.count));
    if (!was_refused && values == TAME) expect_sums(&a);
    int64_t answer = call_twice(&in, step, &a);
    if (answer) expect_unchanged();
    CHECK(refused < a.count ? answer < 0 : answer == 0);
    return 0;
}
