/* Steps of tables whose gradients list rows: in any order and with repetitions, or by bags, or out of range. */

#include "fuzz.h"
#include "steps.h"

#include <stdlib.h>

enum { MAX_TABLES = 3, MAX_ENTRIES = 1 << 17, MAX_INDICES = 5000 };

typedef struct {
    tensor tables[MAX_TABLES];
    int64_t count;
    config c;
} arguments;

/* Rows of the table; returns whether one of them is out of range. */
static int new_index(input *in, tensor *t)
{
    int64_t *index = new_array(WORDS, t->nnz), distinct = pick_flag(in) ? t->outer : min(t->outer, 3);
    int ascends = pick(in, 0, 3) == 3, is_bad = !t->outer && t->nnz;
    for (int64_t k = 0; k < t->nnz; k++)
        index[k] = !distinct ? 0 : ascends ? k * distinct / t->nnz : (int64_t)(random_bits(in) % (uint64_t)distinct);
    if (t->nnz && pick(in, 0, 15) == 15) {
        const int64_t bad[] = {-1, t->outer, INT64_MIN, INT64_MAX, (int64_t)1 << 32};
        index[random_bits(in) % (uint64_t)t->nnz] = bad[pick(in, 0, 4)], is_bad = 1;
    }
    t->index = index;
    return is_bad;
}

/* Where the bags begin; returns whether they do not ascend or do not cover the entries. */
static int new_offsets(input *in, tensor *t)
{
    int64_t *offsets = new_array(WORDS, t->bags + 1), is_bad = !t->bags && t->nnz;
    for (int64_t b = 1, left = t->nnz; b <= t->bags; b++) {
        int64_t length = b == t->bags ? left : pick_flag(in) ? left / (t->bags - b + 1) : min(left, pick(in, 0, 7));
        offsets[b] = offsets[b - 1] + length, left -= length;
    }
    t->offsets = offsets;
    if (pick(in, 0, 15) < 15) return (int)is_bad;
    const int64_t bad[] = {-1, t->nnz + 1, INT64_MIN, INT64_MAX};
    offsets[pick(in, 0, t->bags)] = bad[pick(in, 0, 3)];
    return 1;
}

static int new_entries(input *in, tensor *t, enum values values)
{
    int is_bad = 0;
    t->nnz = min(pick_size(in, MAX_INDICES), 4 * MAX_ENTRIES / max(1, t->inner));
    is_bad |= new_index(in, t);
    if (pick_flag(in)) {
        t->bags = pick_size(in, 1000);
        is_bad |= new_offsets(in, t);
        if (pick_flag(in)) {
            t->weights = new_array(real_dtype(t->dtype), t->nnz);
            fill(in, t->weights, real_dtype(t->dtype), t->nnz, values, 0);
        }
    }
    t->g = new_gradient(in, t->dtype, t->offsets ? t->bags : t->nnz, t->inner, values);
    if (pick(in, 0, 3) == 3) t->touched = new_array(WORDS, 1 + t->nnz);
    return is_bad;
}

static void new_state(input *in, tensor *t, const config *c, enum values values)
{
    int64_t real = real_dtype(t->dtype), outer = t->outer, inner = t->inner;
    if (c->momentum && c->beta1 > 0) t->average = new_matrix(in, real, outer, inner, values, 0);
    if (c->steepest == 0 && t->kind == PER_ENTRY) t->statistic = new_matrix(in, real, outer, inner, values, 1);
    else if (c->steepest == 0)
        t->statistic = new_vector(in, real, t->kind == PER_INNER ? inner : t->kind == PER_TENSOR ? 1 : outer, values);
    if (t->kind == PER_BOTH) t->columns = new_vector(in, real, inner, values);
    if (t->kind == PER_BOTH && t->combine == PRODUCT) t->whole = new_vector(in, real, 1, values);
    new_step_count(in, t, values);
}

/* Returns whether its gradient is to be refused. */
static int new_table(input *in, tensor *t, const config *c, enum values *values)
{
    *values = pick_values(in);
    *t = (tensor){.dtype = pick(in, 0, DTYPES - 1), .kind = pick(in, PER_OUTER, PER_BOTH), .matrices = 1};
    if (c->steepest != 0) t->kind = pick_flag(in) ? PER_OUTER : PER_ENTRY;
    t->outer = max(1, pick_size(in, MAX_ENTRIES));
    t->inner = max(1, min(pick_size(in, MAX_ENTRIES), MAX_ENTRIES / t->outer));
    if (t->kind == PER_BOTH) t->combine = pick(in, PRODUCT, MINIMUM);
    int is_mean = pick_flag(in);
    t->divisor = is_mean ? max(1, t->inner) : 1, t->columns_divisor = is_mean ? max(1, t->outer) : 1;
    t->whole_divisor = is_mean ? max(1, t->outer * t->inner) : 1;
    t->x = new_matrix(in, t->dtype, t->outer, t->inner, *values, 0);
    t->stream = random_bits(in) >> 2;
    new_state(in, t, c, *values);
    return new_entries(in, t, *values);
}

static int64_t make(const void *data, int64_t threads)
{
    const arguments *a = data;
    return sparse_step_with_room(a->tables, a->count, &a->c, threads);
}

/* The reference for a gradient that is written out. */
static reference *begin_table_reference(const tensor *t, const config *c)
{
    double *g = calloc((size_t)max(1, t->outer * t->inner), sizeof *g);
    uint8_t *touched = calloc((size_t)max(1, t->outer), 1);
    CHECK(g && touched);
    for (int64_t k = 0, bag = 0; k < t->nnz; k++) {
        while (t->offsets && t->offsets[bag + 1] <= k) bag++;
        double weight = t->weights ? get_number(t->weights, real_dtype(t->dtype), k) : 1;
        for (int64_t j = 0; j < t->inner; j++)
            g[t->index[k] * t->inner + j] +=
                weight * get_number(t->g.data, t->dtype, (t->offsets ? bag : k) * t->g.outer + j * t->g.inner);
        touched[t->index[k]] = 1;
    }
    reference *r = begin_reference(t, c, g, touched);
    free(g), free(touched);
    return r;
}

static void expect_touched(const tensor *t)
{
    const int64_t *touched = t->touched;
    int64_t count = 0;
    uint8_t *is_touched = calloc((size_t)max(1, t->outer), 1);
    CHECK(is_touched);
    for (int64_t k = 0; k < t->nnz; k++) count += !is_touched[t->index[k]], is_touched[t->index[k]] = 1;
    CHECK(touched[0] == count);
    for (int64_t k = 1; k <= count; k++) CHECK(is_touched[touched[k]] && (k == 1 || touched[k - 1] < touched[k]));
    free(is_touched);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = begin_input(data, size);
    arguments a = {.c = pick_config(&in, pick(&in, 0, 3) == 3)};
    enum { NOT_USED = MAX_TABLES };
    int64_t refused = NOT_USED;
    a.count = pick(&in, 1, MAX_TABLES);
    enum values values = TAME;
    for (int64_t i = 0; i < a.count; i++)
        if (new_table(&in, &a.tables[i], &a.c, &values)) refused = min(refused, i);
    const tensor *last = &a.tables[a.count - 1];
    int has_reference =
        refused == NOT_USED && values == TAME && is_well_conditioned(&a.c) && 0 < last->nnz && last->nnz < 512;
    reference *r = has_reference ? begin_table_reference(last, &a.c) : NULL;
    int64_t answer = call_twice(&in, make, &a);
    CHECK(answer == (refused == NOT_USED ? 0 : -1 - refused));
    if (answer) expect_unchanged();
    if (r) expect_reference(r);
    for (int64_t i = 0; !answer && i < a.count; i++)
        if (a.tables[i].touched) expect_touched(&a.tables[i]);
    return 0;
}
