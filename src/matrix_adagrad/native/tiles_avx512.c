/* The arithmetic on tiles once more, for CPUs with registers of 64 bytes: numbers of 16 bits fill them. */

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("avx2,bmi2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
#define TILES ARITHMETIC_AVX512
#include "tiles.c"
#endif
