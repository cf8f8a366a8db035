/* The arithmetic on tiles once more, for CPUs with registers of 32 bytes. */

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("avx2,bmi2,fma,f16c")
#define TILES ARITHMETIC_AVX2
#include "tiles.c"
#endif
