/* The arithmetic on tiles, in every dtype.

   tiles_avx2.c and tiles_avx512.c include this file too, for CPUs with wider registers: one library runs on all. */

#include "kernels.h"

#include <float.h>
#include <math.h>
#include <string.h>

#ifdef __AVX2__
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

/* ------------------------------------------------------------------------------------------------ narrow numbers */

typedef float f32x8 __attribute__((vector_size(32)));
typedef uint32_t u32x8 __attribute__((vector_size(32)));
typedef uint16_t u16x8 __attribute__((vector_size(16)));

#define NUMBERS(u) ((f32x8)(u))
#define BITS(f) ((u32x8)(f))
#define EITHER(mask, yes, no) (((u32x8)(mask) & (yes)) | (~(u32x8)(mask) & (no)))

#ifdef __AVX2__
INLINE u32x8 wide(u16x8 h) { return (u32x8)_mm256_cvtepu16_epi32((__m128i)h); }
INLINE u16x8 narrow(u32x8 u) /* which fit */
{
    __m256i packed = _mm256_packus_epi32((__m256i)u, (__m256i)u);
    return (u16x8)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}
#else
INLINE u32x8 wide(u16x8 h) { return __builtin_convertvector(h, u32x8); }
INLINE u16x8 narrow(u32x8 u) { return __builtin_convertvector(u, u16x8); }
#endif

INLINE f32x8 from_bf16(u16x8 b) { return NUMBERS(wide(b) << 16); }

INLINE u16x8 to_bf16(f32x8 f) /* to the nearest, ties to even */
{
    u32x8 u = BITS(f), rounded = u + 0x7fff + (u >> 16 & 1);
    return narrow(EITHER(f != f, 0x7fc00000 + 0 * u, rounded) >> 16);
}

/* Two entries of bfloat16 to a word: the first is its lower half, shifted, the second its upper half. As many words as a
   register holds; HALVES of them make 32 entries. */
#ifdef __AVX512F__
enum { HALVES = 1 };
#else
enum { HALVES = 2 };
#endif
typedef float f32xn __attribute__((vector_size(64 / HALVES)));
typedef uint32_t u32xn __attribute__((vector_size(64 / HALVES)));
typedef uint32_t pairs __attribute__((vector_size(64 / HALVES), aligned(2), may_alias));

#define FIRST(u) ((f32xn)((u) << 16))
#define SECOND(u) ((f32xn)((u) & 0xffff0000u))

INLINE u32xn round_pair(f32xn first, f32xn second) /* to the nearest, ties to even; NaN stays */
{
    u32xn a = (u32xn)first, b = (u32xn)second, low = a + 0x7fff + (a >> 16 & 1), high = b + 0x7fff + (b >> 16 & 1);
    u32xn nan = (u32xn)(first != first), its_nan = (u32xn)(second != second);
    low = (nan & 0x7fc00000u) | (~nan & low), high = (its_nan & 0x7fc00000u) | (~its_nan & high);
    return low >> 16 | (high & 0xffff0000u);
}

/* The same, but where there is neither NaN nor, with wide registers, a tie, in fewer instructions. */
INLINE u32xn round_pair_fast(f32xn first, f32xn second)
{
    u32xn a = (u32xn)first, b = (u32xn)second;
#if defined(__AVX512F__)
    u32xn low = a + 0x8000, high = b + 0x8000, tail = 0xffff + 0 * a;
    __mmask16 rare = _mm512_cmp_ps_mask((__m512)first, (__m512)second, _CMP_UNORD_Q);
    rare |= _mm512_testn_epi32_mask((__m512i)low, (__m512i)tail) | _mm512_testn_epi32_mask((__m512i)high, (__m512i)tail);
#elif defined(__AVX2__)
    u32xn low = a + 0x7fff + (a >> 16 & 1), high = b + 0x7fff + (b >> 16 & 1);
    int rare = _mm256_movemask_ps(_mm256_cmp_ps((__m256)first, (__m256)second, _CMP_UNORD_Q));
#else
    u32xn low = a, high = b;
    int rare = 1;
#endif
    if (__builtin_expect(rare, 0)) return round_pair(first, second);
    return low >> 16 | (high & 0xffff0000u);
}

/* What tiles.h does to a block of 32 entries. */
typedef struct {
    f32xn first[HALVES], second[HALVES];
} pair_sums;

INLINE void read_pairs(const uint16_t *g, pair_sums *sums)
{
    for (int h = 0; h < HALVES; h++) {
        u32xn words = *(const pairs *)(g + h * 32 / HALVES);
        sums->first[h] += FIRST(words) * FIRST(words), sums->second[h] += SECOND(words) * SECOND(words);
    }
}

INLINE f32x8 sum_halves(const f32xn *a)
{
#ifdef __AVX512F__
    return (f32x8)_mm512_castps512_ps256((__m512)*a) + (f32x8)_mm512_extractf32x8_ps((__m512)*a, 1);
#else
    return a[0] + a[1];
#endif
}

INLINE void move_pairs(uint16_t *x, const uint16_t *g, float shrink, float scale)
{
    for (int h = 0; h < HALVES; h++, x += 32 / HALVES, g += 32 / HALVES) {
        u32xn xs = *(const pairs *)x, gs = *(const pairs *)g;
        f32xn first = FIRST(xs) * shrink - scale * FIRST(gs), second = SECOND(xs) * shrink - scale * SECOND(gs);
        *(pairs *)x = round_pair_fast(first, second);
    }
}

/* Up or down, so that the mean is f: noise below one unit of the upper half is added, and the lower half is cut off. */
INLINE u16x8 to_bf16_at_random(f32x8 f, uint32_t place)
{
    u32x8 z = place + (u32x8){0, 1, 2, 3, 4, 5, 6, 7}, u = BITS(f);
    z = (z ^ z >> 16) * 0x7feb352du;
    z = (z ^ z >> 15) * 0x846ca68bu;
    u32x8 rounded = EITHER((u & 0x7f800000u) == 0x7f800000u, u, u + (z >> 16)); /* infinity stays */
    return narrow(EITHER(f != f, 0x7fc00000 + 0 * u, rounded) >> 16);
}

INLINE uint32_t hash(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)(z >> 32);
}

#ifdef __F16C__
INLINE f32x8 from_f16(u16x8 h) { return (f32x8)_mm256_cvtph_ps((__m128i)h); }
INLINE u16x8 to_f16(f32x8 f) { return (u16x8)_mm256_cvtps_ph((__m256)f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
#else /* by integers, which every CPU does in parallel */
INLINE f32x8 from_f16(u16x8 h)
{
    u32x8 all = wide(h), shifted = (all & 0x7fff) << 13, exponent = shifted & 0x0f800000u;
    u32x8 normal = shifted + (112u << 23), infinite = shifted + (224u << 23);
    u32x8 small = BITS(NUMBERS(shifted + (113u << 23)) - 0x1p-14f);
    u32x8 u = EITHER(exponent == 0, small, EITHER(exponent == 0x0f800000u, infinite, normal));
    return NUMBERS(u | (all & 0x8000) << 16);
}

INLINE u16x8 to_f16(f32x8 f) /* to the nearest, ties to even */
{
    u32x8 u = BITS(f) & 0x7fffffffu, sign = BITS(f) >> 16 & 0x8000;
    u32x8 normal = (u - (112u << 23) + 0xfff + (u >> 13 & 1)) >> 13;
    u32x8 small = BITS(NUMBERS(u) + 0.5f) - (126u << 23); /* the sum is rounded where float16 would be */
    u32x8 h = EITHER(u < 113u << 23, small, normal);
    h = EITHER(u >= 143u << 23, 0x7c00 + 0 * u, h);
    h = EITHER(f != f, 0x7e00 + 0 * u, h);
    return narrow(h | sign);
}
#endif

/* The running average after g has joined it. Near β₁ = 0 that is g but for a little: the little is taken from g then, or
   a large average would swallow a small g. */
#define JOIN(before, g) (beta1 > 0.5 ? (before) + join * ((g) - (before)) : (g) - beta1 * ((g) - (before)))

/* ---------------------------------------------------------------------------------------------------- the dtypes */

#define REAL float
#define SQRT sqrtf
#define BIGGEST FLT_MAX
#define NAME(f) f##_float
#include "reals.h"

#define REAL double
#define SQRT sqrt
#define BIGGEST DBL_MAX
#define NAME(f) f##_double
#include "reals.h"

#define STORED float
#define REAL float
#define WIDEN(e) (e)
#define NARROW(r) (r)
#define NARROW_AT_RANDOM(r, place) ((void)(place), (r))
#define NAME(f) f##_f32
#define REALS_NAME(f) f##_float
#include "tiles.h"

#define STORED double
#define REAL double
#define WIDEN(e) (e)
#define NARROW(r) (r)
#define NARROW_AT_RANDOM(r, place) ((void)(place), (r))
#define NAME(f) f##_f64
#define REALS_NAME(f) f##_double
#include "tiles.h"

#define STORED uint16_t
#define REAL float
#define WIDEN(e) from_bf16(e)
#define NARROW(r) to_bf16(r)
#define NARROW_AT_RANDOM(r, place) to_bf16_at_random(r, place)
#define PAIRS
#define NAME(f) f##_bf16
#define REALS_NAME(f) f##_float
#include "tiles.h"

#define STORED uint16_t
#define REAL float
#define WIDEN(e) from_f16(e)
#define NARROW(r) to_f16(r)
#define NARROW_AT_RANDOM(r, place) ((void)(place), to_f16(r))
#define NAME(f) f##_f16
#define REALS_NAME(f) f##_float
#include "tiles.h"

#ifndef TILES
#define TILES ARITHMETIC_ANYWHERE
#endif

const arithmetic *const TILES[DTYPES] = {&arithmetic_f32, &arithmetic_f64, &arithmetic_bf16, &arithmetic_f16};
