/* What this library is handed, in its own words, so that Python can tell whether it is of the same version. */

#include "kernels.h"

#include <stddef.h>

#define DESCRIBE_double(name) " " #name ":double"
#define DESCRIBE_int64_t(name) " " #name ":int64_t"
#define DESCRIBE_uint64_t(name) " " #name ":uint64_t"
#define DESCRIBE_pointer(name) " " #name ":pointer"
#define DESCRIBE_indices(name) " " #name ":pointer"
#define DESCRIBE_array(name)                                                                                           \
    " " #name ".data:pointer " #name ".batch:int64_t " #name ".outer:int64_t " #name ".inner:int64_t"
#define DESCRIBE(type, name) DESCRIBE_##type(name)

/* The fields of config (0), tensor (1) or feature (2), in order: "name:type name:type …"; NULL for any other number. */
EXPORT const char *matrix_adagrad_fields(int64_t which)
{
    static const char *const fields[] = {CONFIG_FIELDS(DESCRIBE), TENSOR_FIELDS(DESCRIBE), FEATURE_FIELDS(DESCRIBE)};
    return 0 <= which && which < 3 ? fields[which] + 1 : NULL;
}

EXPORT int64_t matrix_adagrad_interface(void) { return INTERFACE; }
