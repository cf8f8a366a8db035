/* The arithmetic for the CPU that runs this. */

#include "kernels.h"

/* Of each dtype, one for each kind of momentum. */
extern const arithmetic *const ARITHMETIC_BASELINE[DTYPES];
extern const arithmetic *const ARITHMETIC_AVX2[DTYPES];
extern const arithmetic *const ARITHMETIC_AVX512[DTYPES];

enum { BASELINE, AVX2, AVX512 };
static int64_t max_simd = AVX512;

/* The bits do not depend on the SIMD width; tests compare them. */
EXPORT void matrix_adagrad_use_at_most(int64_t simd) { max_simd = simd; }

const arithmetic *arithmetic_of(int64_t dtype, enum momentum momentum)
{
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HAS(feature) __builtin_cpu_supports(feature)
    if (max_simd >= AVX2 && HAS("avx2") && HAS("bmi2") && HAS("fma") && HAS("f16c")) {
        int has_avx512 = HAS("avx512f") && HAS("avx512bw") && HAS("avx512dq") && HAS("avx512vl");
        return (max_simd >= AVX512 && has_avx512 ? ARITHMETIC_AVX512 : ARITHMETIC_AVX2)[dtype] + momentum;
    }
#undef HAS
#endif
    return ARITHMETIC_BASELINE[dtype] + momentum;
}

const arithmetic *real_arithmetic_of(int64_t dtype, enum momentum momentum)
{
    return arithmetic_of(dtype == F64 ? F64 : F32, momentum);
}
