/* The arithmetic on tiles for CPUs with AVX2: registers of 32 bytes. */

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("avx2,bmi2,fma,f16c")
#define TABLE ARITHMETIC_AVX2
#include "tiles.c"
#endif
