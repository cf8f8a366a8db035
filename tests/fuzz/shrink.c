/* Projections onto balls. */

#include "fuzz.h"

void matrix_adagrad_shrink(const double *a, const double *s, int64_t blocks, int64_t entries, double slack,
                           double *factor, int64_t threads);

enum { MAX_ENTRIES = 300001 };

typedef struct {
    double *a, *s, *factor;
    int64_t blocks, entries;
    double slack;
} arguments;

static int64_t make(const void *data, int64_t threads)
{
    const arguments *p = data;
    matrix_adagrad_shrink(p->a, p->s, p->blocks, p->entries, p->slack, p->factor, threads);
    return 0;
}

/* Factors shrink, and bring the lengths of a block into the unit ball; what lies inside stays. */
static void expect_in_ball(const arguments *p, int64_t block)
{
    double before = 0, after = 0;
    for (int64_t i = block * p->entries; i < (block + 1) * p->entries; i++) {
        CHECK(0 <= p->factor[i] && p->factor[i] <= 1);
        before += p->a[i] * p->a[i], after += p->a[i] * p->factor[i] * p->a[i] * p->factor[i];
    }
    if (sqrt(before) <= 1) CHECK(after == before);
    CHECK(sqrt(after) <= 1 + p->slack + 1e-6);
    CHECK(sqrt(before) <= 1 + p->slack || sqrt(after) >= 1 - 1e-6);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const double slacks[] = {1e-6, 0, 0.01}, sizes[] = {1, 1e-3, 1e3, 1e-6};
    input in = begin_input(data, size);
    enum values lengths = pick_values(&in), scales = pick_values(&in);
    arguments p = {.entries = max(1, pick_size(&in, MAX_ENTRIES)), .slack = pick_of(&in, slacks, 3)};
    p.blocks = max(1, min(pick_size(&in, MAX_ENTRIES), MAX_ENTRIES / p.entries));
    int64_t count = p.blocks * p.entries;
    double shorter = pick_of(&in, sizes, 4);
    p.a = new_array(F64, count), p.s = new_array(F64, count), p.factor = new_array(F64, count);
    fill(&in, p.a, F64, count, lengths, 1), fill(&in, p.s, F64, count, scales, 1);
    for (int64_t i = 0; i < count; i++) p.a[i] *= shorter;
    call_twice(&in, make, &p);
    for (int64_t b = 0; lengths == TAME && scales == TAME && b < p.blocks; b++) expect_in_ball(&p, b);
    return 0;
}
