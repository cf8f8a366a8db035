/* What the fuzz targets share: calls that are decoded from bytes, as Python makes them, and what has to hold of them.

   A target decodes a call, makes it with the plainest arithmetic and a single thread, and again with wider SIMD and more
   threads: the bits are the same. Where a plain reference is given, the results are also compared with it. Every array
   ends where its memory does, so that the address sanitizer sees each access beyond it.

   Without OpenMP, the threads of a call take their shares one after the other: a crash can be reproduced. */

#ifndef MATRIX_ADAGRAD_FUZZ_H
#define MATRIX_ADAGRAD_FUZZ_H

#include "kernels.h"

#include <stddef.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) fail(#condition, __FILE__, __LINE__);                                                        \
    } while (0)
_Noreturn void fail(const char *condition, const char *file, int line);

/* -------------------------------------------------------------------------------------------------------- decoding */

/* The bytes of an input; zeros after its end. */
typedef struct {
    const uint8_t *at, *end;
    uint64_t random; /* the state of the generator that fills arrays */
} input;

input begin_input(const uint8_t *data, size_t size);
int64_t pick(input *in, int64_t least, int64_t most);
int pick_flag(input *in);
double pick_of(input *in, const double *numbers, int64_t count);
int64_t pick_size(input *in, int64_t most); /* from 0 on: small ones, and those where the kernels change their ways */
uint64_t random_bits(input *in);

/* ---------------------------------------------------------------------------------------------------------- arrays */

enum { WORDS = DTYPES, HALF_WORDS }; /* of 8 and of 4 bytes: contents beside the dtypes of the kernels */

/* What numbers are like: of one magnitude, of many, often zero, or any bits. */
enum values { TAME, SPREAD, ZEROS, WILD };
enum values pick_values(input *in);

int64_t bytes_of(int64_t contents);
int64_t real_dtype(int64_t dtype); /* of the arithmetic */

/* Memory for a call, all of which begin_input frees. Its end is that of the last entry. */
void *new_array(int64_t contents, int64_t count);
void fill(input *in, void *data, int64_t contents, int64_t count, enum values values, int not_negative);
double get_number(const void *data, int64_t contents, int64_t k);

/* A matrix with strides, filled; an expanded one has rows, or columns, that share memory. */
array new_matrix(input *in, int64_t contents, int64_t rows, int64_t columns, enum values values, int not_negative);
array new_gradient(input *in, int64_t contents, int64_t rows, int64_t columns, enum values values);
array new_vector(input *in, int64_t contents, int64_t count, enum values values);

/* ----------------------------------------------------------------------------------------------------------- calls */

config pick_config(input *in, int is_steepest);
void new_step_count(input *in, tensor *t, enum values values);

/* Makes the call twice, as said above, from the same contents of all arrays, and compares these afterwards. */
typedef int64_t call(const void *arguments, int64_t threads);
int64_t call_twice(input *in, call *make, const void *arguments);

void restore_arrays(void); /* to what they held before the call */
void expect_unchanged(void);

/* --------------------------------------------------------------------------------------------------- the reference */

/* The step of a matrix, in double: g is dense, row by row, and only rows that are touched are stepped, if it says which.
   Made from the contents before the call, and compared with those after it. */
typedef struct reference reference;
reference *begin_reference(const tensor *t, const config *c, const double *g, const uint8_t *touched);
void expect_reference(const reference *r);

#endif
