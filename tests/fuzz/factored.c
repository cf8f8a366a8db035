/* Dense steps of batches of matrices whose scales come from statistics of rows and of columns. */

#include "fuzz.h"
#include "steps.h"

enum { MAX_TENSORS = 2, MAX_MATRICES = 5, MAX_ENTRIES = 300001 };

typedef struct {
    tensor tensors[MAX_TENSORS];
    int64_t count;
    config c;
} arguments;

/* The matrices of a batch lie below each other, or, where columns are contiguous, beside. */
static array new_batch(input *in, const tensor *t, int64_t contents, enum values values, int is_gradient)
{
    int64_t rows = t->matrices * t->outer;
    array a = is_gradient ? new_gradient(in, contents, rows, t->inner, values)
                          : new_matrix(in, contents, rows, t->inner, values, 0);
    a.batch = t->outer * a.outer;
    return a;
}

static array new_statistics(input *in, const tensor *t, int64_t count, enum values values)
{
    int64_t apart = count + pick(in, 0, 2);
    array a =
        new_vector(in, real_dtype(t->dtype), t->matrices && count ? (t->matrices - 1) * apart + count : 0, values);
    a.batch = apart;
    return a;
}

static enum values new_tensor(input *in, tensor *t, const config *c)
{
    enum values values = pick_values(in);
    int64_t dtype = pick(in, 0, DTYPES - 1), outer = pick_size(in, MAX_ENTRIES), inner = pick_size(in, MAX_ENTRIES);
    *t = (tensor){.kind = PER_BOTH, .dtype = dtype, .combine = pick(in, PRODUCT, MINIMUM)};
    t->matrices = pick(in, 0, 3) ? 1 : pick(in, 0, MAX_MATRICES);
    if (!inner) inner = outer, outer = 0; /* its statistics fade */
    int64_t fitting = MAX_ENTRIES / max(1, t->matrices);
    if (outer && inner > fitting / outer) inner = max(1, fitting / outer);
    if (inner && outer > fitting / inner) outer = fitting / inner;
    t->outer = outer, t->inner = inner;
    int is_mean = pick_flag(in);
    t->divisor = is_mean ? max(1, inner) : 1, t->columns_divisor = is_mean ? max(1, outer) : 1;
    t->whole_divisor = is_mean ? max(1, outer * inner) : 1;
    t->x = new_batch(in, t, dtype, values, 0), t->g = new_batch(in, t, dtype, values, 1);
    if (c->momentum && c->beta1 > 0) t->average = new_batch(in, t, real_dtype(dtype), values, 0);
    t->statistic = new_statistics(in, t, outer, values), t->columns = new_statistics(in, t, inner, values);
    if (t->combine == PRODUCT) t->whole = new_statistics(in, t, 1, values);
    new_step_count(in, t, values);
    t->stream = random_bits(in) >> 2;
    return values;
}

static int64_t make(const void *data, int64_t threads)
{
    const arguments *a = data;
    return step_with_room(a->tensors, a->count, &a->c, threads, READ | MOVE);
}

/* The last matrix of a batch. */
static tensor last_matrix(tensor t)
{
    array *entries[] = {&t.x, &t.g}, *reals[] = {&t.average, &t.statistic, &t.columns, &t.whole};
    int64_t b = t.matrices - 1, real_bytes = bytes_of(real_dtype(t.dtype));
    for (int k = 0; k < 2; k++) entries[k]->data = entry_at(entries[k]->data, b * entries[k]->batch, bytes_of(t.dtype));
    for (int k = 0; k < 4; k++)
        if (reals[k]->data) reals[k]->data = entry_at(reals[k]->data, b * reals[k]->batch, real_bytes);
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = begin_input(data, size);
    arguments a = {.c = pick_config(&in, 0)};
    a.count = pick(&in, 1, MAX_TENSORS);
    enum values values = TAME;
    for (int64_t i = 0; i < a.count; i++) values = new_tensor(&in, &a.tensors[i], &a.c);
    const tensor *last = &a.tensors[a.count - 1];
    reference *r = NULL;
    if (values == TAME && is_well_conditioned(&a.c) && last->matrices && last->outer) {
        tensor matrix = last_matrix(*last);
        r = begin_dense_reference(&matrix, &a.c);
    }
    CHECK(call_twice(&in, make, &a) == 0);
    if (r) expect_reference(r);
    return 0;
}
