/* The arithmetic on tiles for CPUs with AVX-512: registers of 64 bytes, used for pairs of bfloat16. */

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("avx2,bmi2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
#define TABLE ARITHMETIC_AVX512
#include "tiles.c"
#endif
