/* What the targets for steps share. */

#ifndef MATRIX_ADAGRAD_FUZZ_STEPS_H
#define MATRIX_ADAGRAD_FUZZ_STEPS_H

#include "fuzz.h"

int64_t matrix_adagrad_step(const tensor *tensors, int64_t count, const config *c, int64_t threads, int64_t passes,
                            char *workspace, int64_t bytes);
int64_t matrix_adagrad_sparse_step(const tensor *tensors, int64_t count, const config *c, int64_t threads,
                                   char *workspace, int64_t bytes);

/* A workspace of so many bytes, with anything in it. The last one is freed. */
char *new_room(int64_t bytes);

/* As Python: the first answer says how much room is needed. */
int64_t step_with_room(const tensor *tensors, int64_t count, const config *c, int64_t threads, int64_t passes);
int64_t sparse_step_with_room(const tensor *tensors, int64_t count, const config *c, int64_t threads);

/* Whether rounding stays small: V is not the square of a single sum, which may be close to 0. */
int is_well_conditioned(const config *c);

reference *begin_dense_reference(const tensor *t, const config *c);

#endif
