/* Steps of tensors with dense gradients: in one call, or in two, as where other processes hold parts of a block. */

#include "fuzz.h"
#include "steps.h"

enum { MAX_TENSORS = 3, MAX_ENTRIES = 300001 };

typedef struct {
    tensor tensors[MAX_TENSORS];
    int64_t count, in_parts;
    config c;
} arguments;

static int64_t blocks_of(const tensor *t)
{
    return t->kind == PER_OUTER ? t->outer : t->kind == PER_INNER ? t->inner : 1;
}

/* A statistic of its own, or, in steepest descent, memory for this step. */
static void new_statistic(input *in, tensor *t, enum values values, int is_steepest, int in_parts)
{
    int64_t real = real_dtype(t->dtype);
    if (t->kind == PER_ENTRY) {
        if (!is_steepest) t->statistic = new_matrix(in, real, t->outer, t->inner, values, 1);
        return;
    }
    t->statistic = new_vector(in, real, blocks_of(t), values);
    if (is_steepest) t->sums = t->statistic.data;
    else if (in_parts) t->sums = new_array(real, blocks_of(t));
}

static enum values new_tensor(input *in, tensor *t, const arguments *a)
{
    enum values values = pick_values(in);
    int64_t dtype = pick(in, 0, DTYPES - 1), outer = pick_size(in, MAX_ENTRIES), inner = pick_size(in, MAX_ENTRIES);
    int is_steepest = a->c.steepest != 0;
    *t = (tensor){.kind = pick(in, PER_OUTER, PER_TENSOR), .dtype = dtype, .matrices = 1};
    if (outer && inner > MAX_ENTRIES / outer) inner = MAX_ENTRIES / outer;
    if (a->in_parts) outer = max(1, outer), inner = max(1, inner);
    if (!outer || !inner) t->kind = PER_INNER, inner = max(outer, inner), outer = 0; /* its statistics fade */
    if (a->in_parts && t->kind == PER_ENTRY) t->kind = PER_OUTER, outer *= inner, inner = 1;
    t->outer = outer, t->inner = inner;
    t->divisor = pick_flag(in) ? 1 : max(1, outer * inner / max(1, blocks_of(t)));
    t->columns_divisor = t->whole_divisor = 1;
    t->x = new_matrix(in, dtype, outer, inner, values, 0);
    t->g = pick(in, 0, 15) == 15 ? t->x : new_gradient(in, dtype, outer, inner, values);
    if (a->c.momentum && a->c.beta1 > 0) t->average = new_matrix(in, real_dtype(dtype), outer, inner, values, 0);
    new_statistic(in, t, values, is_steepest, (int)a->in_parts);
    new_step_count(in, t, values);
    t->stream = random_bits(in) >> 2;
    return values;
}

/* What Python does between the two calls. */
static void add_up(const arguments *a)
{
    for (int64_t i = 0; i < a->count; i++) {
        const tensor *t = &a->tensors[i];
        if (t->step_is_f64) *(double *)t->step += 1;
        else *(float *)t->step += 1;
        for (int64_t b = 0; b < blocks_of(t) && t->sums != t->statistic.data; b++)
            if (t->dtype == F64) ((double *)t->statistic.data)[b] += ((const double *)t->sums)[b];
            else ((float *)t->statistic.data)[b] += ((const float *)t->sums)[b];
    }
}

static int64_t make(const void *data, int64_t threads)
{
    const arguments *a = data;
    if (!a->in_parts) return step_with_room(a->tensors, a->count, &a->c, threads, READ | MOVE);
    step_with_room(a->tensors, a->count, &a->c, threads, READ);
    add_up(a);
    return step_with_room(a->tensors, a->count, &a->c, threads, MOVE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = begin_input(data, size);
    int is_steepest = pick(&in, 0, 3) == 3;
    arguments a = {.c = pick_config(&in, is_steepest)};
    a.in_parts = pick(&in, 0, 3) == 3, a.count = pick(&in, 1, MAX_TENSORS);
    enum values values = TAME;
    for (int64_t i = 0; i < a.count; i++) values = new_tensor(&in, &a.tensors[i], &a);
    tensor *last = &a.tensors[a.count - 1];
    int has_reference = values == TAME && !a.in_parts && is_well_conditioned(&a.c) && last->g.data != last->x.data;
    reference *r = has_reference ? begin_dense_reference(last, &a.c) : NULL;
    CHECK(call_twice(&in, make, &a) == 0);
    if (r) expect_reference(r);
    return 0;
}
