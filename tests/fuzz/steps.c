/* What the targets for steps share. */

#include "steps.h"

#include <stdlib.h>
#include <string.h>

char *new_room(int64_t bytes)
{
    static char *room;
    static int contents;
    free(room);
    room = malloc((size_t)bytes);
    CHECK(room);
    memset(room, contents = (contents + 85) & 0xff, (size_t)bytes);
    return room;
}

int64_t step_with_room(const tensor *tensors, int64_t count, const config *c, int64_t threads, int64_t passes)
{
    int64_t needed = matrix_adagrad_step(tensors, count, c, threads, passes, NULL, 0);
    return needed > 0 ? matrix_adagrad_step(tensors, count, c, threads, passes, new_room(needed), needed) : needed;
}

int64_t sparse_step_with_room(const tensor *tensors, int64_t count, const config *c, int64_t threads)
{
    int64_t needed = matrix_adagrad_sparse_step(tensors, count, c, threads, NULL, 0);
    return needed > 0 ? matrix_adagrad_sparse_step(tensors, count, c, threads, new_room(needed), needed) : needed;
}

int is_well_conditioned(const config *c) { return c->steepest == 0 && (!c->momentum || c->beta2 > 0); }

reference *begin_dense_reference(const tensor *t, const config *c)
{
    double *g = malloc((size_t)max(1, t->outer * t->inner) * sizeof *g);
    CHECK(g);
    for (int64_t i = 0; i < t->outer; i++)
        for (int64_t j = 0; j < t->inner; j++)
            g[i * t->inner + j] = get_number(t->g.data, t->dtype, i * t->g.outer + j * t->g.inner);
    reference *r = begin_reference(t, c, g, NULL);
    free(g);
    return r;
}
