/* The arithmetic on tiles, in every dtype, for any CPU.

   tiles_avx2.c and tiles_avx512.c include this file too, compiled for wider SIMD: one library runs on all CPUs. */

#include "kernels.h"

#include <float.h>
#include <math.h>
#include <string.h>

#ifdef __AVX2__
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

/* A function f_MOMENTUM for each kind of momentum, of the function f of a tile, its settings, further arguments and the
   kind. Local copies of t and s tell the compiler that f writes to neither. */
#define SPECIALIZE(f, parameters, ...) FOR_EACH_MOMENTUM(SPECIALIZE_FOR, f, parameters, ##__VA_ARGS__)
#define SPECIALIZE_FOR(momentum, f, parameters, ...)                                                                   \
    static void NAME(f##_##momentum) parameters                                                                        \
    {                                                                                                                  \
        const tile_view tile = *t;                                                                                     \
        const settings constants = *s;                                                                                 \
        NAME(f)(&tile, &constants, ##__VA_ARGS__, momentum);                                                           \
    }

/* ------------------------------------------------------------------------------------------------ float and double */

#define REAL float
#define SQRT sqrtf
#define REAL_MAX FLT_MAX
#define NAME(f) f##_float
#include "reals.h"

#define REAL double
#define SQRT sqrt
#define REAL_MAX DBL_MAX
#define NAME(f) f##_double
#include "reals.h"

/* ---------------------------------------------------------------------------------------- bfloat16 and float16 */

typedef float f32x8 __attribute__((vector_size(32)));
typedef uint32_t u32x8 __attribute__((vector_size(32)));
typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef uint16_t u16x8 __attribute__((vector_size(16)));

#define AS_F32(u) ((f32x8)(u))
#define AS_U32(f) ((u32x8)(f))
#define SELECT(mask, yes, no) (((u32x8)(mask) & (yes)) | (~(u32x8)(mask) & (no)))

#ifdef __AVX2__
INLINE u32x8 widen_u16(u16x8 h) { return (u32x8)_mm256_cvtepu16_epi32((__m128i)h); }
INLINE u16x8 narrow_u32(u32x8 u) /* whose upper halves are 0 */
{
    __m256i packed = _mm256_packus_epi32((__m256i)u, (__m256i)u);
    return (u16x8)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}
#else
INLINE u32x8 widen_u16(u16x8 h) { return __builtin_convertvector(h, u32x8); }
INLINE u16x8 narrow_u32(u32x8 u) { return __builtin_convertvector(u, u16x8); }
#endif

INLINE f32x8 from_bf16(u16x8 b) { return AS_F32(widen_u16(b) << 16); }

INLINE u16x8 to_bf16(f32x8 f) /* to nearest, ties to even */
{
    u32x8 u = AS_U32(f), rounded = u + 0x7fff + (u >> 16 & 1);
    return narrow_u32(SELECT(f != f, 0x7fc00000 + 0 * u, rounded) >> 16);
}

/* Words of two bfloat16 entries, a register full of them: the lower entry is a float after a shift, the upper one after
   a mask. PAIR_VECTORS registers hold a block of 32 entries. */
#ifdef __AVX512F__
enum { PAIR_VECTORS = 1 };
#else
enum { PAIR_VECTORS = 2 };
#endif
typedef float f32xn __attribute__((vector_size(64 / PAIR_VECTORS)));
typedef uint32_t u32xn __attribute__((vector_size(64 / PAIR_VECTORS)));
typedef uint32_t u32xn_unaligned __attribute__((vector_size(64 / PAIR_VECTORS), aligned(2), may_alias));

#define LOWER_F32(u) ((f32xn)((u) << 16))
#define UPPER_F32(u) ((f32xn)((u) & 0xffff0000u))

INLINE u32xn round_pair(f32xn lower, f32xn upper) /* to nearest, ties to even; NaN stays NaN */
{
    u32xn a = (u32xn)lower, b = (u32xn)upper, low = a + 0x7fff + (a >> 16 & 1), high = b + 0x7fff + (b >> 16 & 1);
    u32xn lower_nan = (u32xn)(lower != lower), upper_nan = (u32xn)(upper != upper);
    low = (lower_nan & 0x7fc00000u) | (~lower_nan & low), high = (upper_nan & 0x7fc00000u) | (~upper_nan & high);
    return low >> 16 | (high & 0xffff0000u);
}

/* The same in fewer instructions, unless there is a NaN or, with AVX-512, a tie. */
INLINE u32xn round_pair_fast(f32xn lower, f32xn upper)
{
    u32xn a = (u32xn)lower, b = (u32xn)upper;
#if defined(__AVX512F__)
    u32xn low = a + 0x8000, high = b + 0x8000, tail = 0xffff + 0 * a;
    __mmask16 is_rare = _mm512_cmp_ps_mask((__m512)lower, (__m512)upper, _CMP_UNORD_Q);
    is_rare |=
        _mm512_testn_epi32_mask((__m512i)low, (__m512i)tail) | _mm512_testn_epi32_mask((__m512i)high, (__m512i)tail);
#elif defined(__AVX2__)
    u32xn low = a + 0x7fff + (a >> 16 & 1), high = b + 0x7fff + (b >> 16 & 1);
    int is_rare = _mm256_movemask_ps(_mm256_cmp_ps((__m256)lower, (__m256)upper, _CMP_UNORD_Q));
#else
    u32xn low = a, high = b;
    int is_rare = 1;
#endif
    if (__builtin_expect(is_rare, 0)) return round_pair(lower, upper);
    return low >> 16 | (high & 0xffff0000u);
}

/* Sums of squares of the lower and of the upper entries of a block of 32. */
typedef struct {
    f32xn lower[PAIR_VECTORS], upper[PAIR_VECTORS];
} pair_sums;

INLINE void square_pairs(const uint16_t *g, pair_sums *sums)
{
    for (int h = 0; h < PAIR_VECTORS; h++) {
        u32xn words = *(const u32xn_unaligned *)(g + h * 32 / PAIR_VECTORS);
        sums->lower[h] += LOWER_F32(words) * LOWER_F32(words), sums->upper[h] += UPPER_F32(words) * UPPER_F32(words);
    }
}

INLINE f32x8 add_pair_vectors(const f32xn *a)
{
#ifdef __AVX512F__
    return (f32x8)_mm512_castps512_ps256((__m512)*a) + (f32x8)_mm512_extractf32x8_ps((__m512)*a, 1);
#else
    return a[0] + a[1];
#endif
}

INLINE void move_pairs(uint16_t *x, const uint16_t *g, settings_float u, float scale)
{
    for (int h = 0; h < PAIR_VECTORS; h++, x += 32 / PAIR_VECTORS, g += 32 / PAIR_VECTORS) {
        u32xn xs = *(const u32xn_unaligned *)x, gs = *(const u32xn_unaligned *)g;
        f32xn lower = MOVED(u, LOWER_F32(xs), scale, LOWER_F32(gs)),
              upper = MOVED(u, UPPER_F32(xs), scale, UPPER_F32(gs));
        *(u32xn_unaligned *)x = round_pair_fast(lower, upper);
    }
}

/* A hash of a counter, whose upper bits are random. */
INLINE u32x8 noise_of(uint32_t counter)
{
    u32x8 z = counter + (u32x8){0, 1, 2, 3, 4, 5, 6, 7};
    z = (z ^ z >> 16) * 0x7feb352du;
    return (z ^ z >> 15) * 0x846ca68bu;
}

/* Up or down at random, with mean f: noise below one unit of the upper half is added, and the lower half is cut off. */
INLINE u16x8 to_bf16_stochastic(f32x8 f, uint32_t counter)
{
    u32x8 u = AS_U32(f), added = u + (noise_of(counter) >> 16);
    u32x8 rounded = SELECT((u & 0x7f800000u) == 0x7f800000u, u, added); /* infinity stays infinity */
    return narrow_u32(SELECT(f != f, 0x7fc00000 + 0 * u, rounded) >> 16);
}

INLINE uint32_t hash64(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)(z >> 32);
}

#ifdef __F16C__
INLINE f32x8 from_f16(u16x8 h) { return (f32x8)_mm256_cvtph_ps((__m128i)h); }
INLINE u16x8 to_f16(f32x8 f)
{
    return (u16x8)_mm256_cvtps_ph((__m256)f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#else /* in integer arithmetic, which every CPU vectorizes */
INLINE f32x8 from_f16(u16x8 h)
{
    u32x8 bits = widen_u16(h), shifted = (bits & 0x7fff) << 13, exponent = shifted & 0x0f800000u;
    u32x8 normal = shifted + (112u << 23), infinite = shifted + (224u << 23);
    u32x8 small = AS_U32(AS_F32(shifted + (113u << 23)) - 0x1p-14f);
    u32x8 u = SELECT(exponent == 0, small, SELECT(exponent == 0x0f800000u, infinite, normal));
    return AS_F32(u | (bits & 0x8000) << 16);
}

INLINE u16x8 to_f16(f32x8 f) /* to nearest, ties to even */
{
    u32x8 u = AS_U32(f) & 0x7fffffffu, sign = AS_U32(f) >> 16 & 0x8000;
    u32x8 normal = (u - (112u << 23) + 0xfff + (u >> 13 & 1)) >> 13;
    u32x8 small = AS_U32(AS_F32(u) + 0.5f) - (126u << 23); /* the sum is rounded to the precision of float16 */
    u32x8 h = SELECT(u < 113u << 23, small, normal);
    h = SELECT(u >= 143u << 23, 0x7c00 + 0 * u, h);
    h = SELECT(f != f, 0x7e00 + 0 * u, h);
    return narrow_u32(h | sign);
}
#endif

/* Up or down at random, with mean f. The last place is worth 13 bits of a float, or 2^-24 below 2^-14, where f is counted
   in units of 2^-44, cut off. Between the largest number and 2^16 there is nothing to round up to: f is rounded down. */
INLINE u16x8 to_f16_stochastic(f32x8 f, uint32_t counter)
{
    u32x8 noise = noise_of(counter) >> 12, u = AS_U32(f) & 0x7fffffffu, sign = AS_U32(f) >> 16 & 0x8000;
    u32x8 is_small = (u32x8)(u < 113u << 23), largest = 0x7bff + 0 * u;
    u32x8 normal = (u - (112u << 23) + (noise >> 7)) >> 13;
    i32x8 units = __builtin_convertvector(AS_F32(u & is_small) * 0x1p44f, i32x8);
    u32x8 h = SELECT(is_small, ((u32x8)units + noise) >> 20, SELECT(normal > largest, largest, normal));
    h = SELECT(u >= 143u << 23, 0x7c00 + 0 * u, h);
    h = SELECT(f != f, 0x7e00 + 0 * u, h);
    return narrow_u32(h | sign);
}

/* ---------------------------------------------------------------------------------------------------- the dtypes */

#define STORED float
#define REAL float
#define WIDEN(e) (e)
#define NARROW(r) (r)
#define NARROW_STOCHASTIC(r, counter) ((void)(counter), (r))
#define NAME(f) f##_f32
#define REALS_NAME(f) f##_float
#include "tiles.h"

#define STORED double
#define REAL double
#define WIDEN(e) (e)
#define NARROW(r) (r)
#define NARROW_STOCHASTIC(r, counter) ((void)(counter), (r))
#define NAME(f) f##_f64
#define REALS_NAME(f) f##_double
#include "tiles.h"

#define STORED uint16_t
#define REAL float
#define WIDEN(e) from_bf16(e)
#define NARROW(r) to_bf16(r)
#define NARROW_STOCHASTIC(r, counter) to_bf16_stochastic(r, counter)
#define BF16_PAIRS
#define NAME(f) f##_bf16
#define REALS_NAME(f) f##_float
#include "tiles.h"

#define STORED uint16_t
#define REAL float
#define WIDEN(e) from_f16(e)
#define NARROW(r) to_f16(r)
#define NARROW_STOCHASTIC(r, counter) to_f16_stochastic(r, counter)
#define NAME(f) f##_f16
#define REALS_NAME(f) f##_float
#include "tiles.h"

#ifndef TABLE
#define TABLE ARITHMETIC_BASELINE
#endif

const arithmetic *const TABLE[DTYPES] = {arithmetic_f32, arithmetic_f64, arithmetic_bf16, arithmetic_f16};
