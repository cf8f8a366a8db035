/* Decoding, arrays and calls: see fuzz.h. */

#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Noreturn void fail(const char *condition, const char *file, int line)
{
    fprintf(stderr, "%s:%d: it should hold that %s\n", file, line, condition);
    abort();
}

/* ------------------------------------------------------------------------------------------------------ arithmetic */

extern const arithmetic *const ARITHMETIC_BASELINE[DTYPES];
#ifdef __x86_64__
extern const arithmetic *const ARITHMETIC_AVX2[DTYPES];
extern const arithmetic *const ARITHMETIC_AVX512[DTYPES];
#endif

enum { BASELINE, AVX2, AVX512 };
static int64_t simd = BASELINE;

/* Instead of dispatch.c, which knows gcc's way of compiling for other CPUs. */
const arithmetic *arithmetic_of(int64_t dtype, enum momentum momentum)
{
#ifdef __x86_64__
#define HAS(feature) __builtin_cpu_supports(feature)
    int has_avx512 = HAS("avx512f") && HAS("avx512bw") && HAS("avx512dq") && HAS("avx512vl");
    if (simd >= AVX512 && has_avx512) return ARITHMETIC_AVX512[dtype] + momentum;
    if (simd >= AVX2 && HAS("avx2") && HAS("bmi2") &&
        HAS("fma")) /* and f16c, which clang cannot ask for, comes with avx2 */
        return ARITHMETIC_AVX2[dtype] + momentum;
#undef HAS
#endif
    return ARITHMETIC_BASELINE[dtype] + momentum;
}

const arithmetic *real_arithmetic_of(int64_t dtype, enum momentum momentum)
{
    return arithmetic_of(dtype == F64 ? F64 : F32, momentum);
}

/* -------------------------------------------------------------------------------------------------------- decoding */

static uint8_t next_byte(input *in) { return in->at < in->end ? *in->at++ : 0; }

int64_t pick(input *in, int64_t least, int64_t most)
{
    uint64_t span = (uint64_t)(most - least) + 1, number = next_byte(in);
    for (uint64_t reach = 256; reach < span; reach <<= 8) number = number << 8 | next_byte(in);
    return least + (int64_t)(number % span);
}

int pick_flag(input *in) { return (int)pick(in, 0, 1); }

double pick_of(input *in, const double *numbers, int64_t count) { return numbers[pick(in, 0, count - 1)]; }

int64_t pick_size(input *in, int64_t most)
{
    static const int64_t others[] = {128,   129,   255,    256,    257,    511,    512,    513,    1000,
                                     1023,  1025,  2047,   2048,   2049,   4095,   4096,   4097,   8191,
                                     8192,  8193,  10000,  16383,  16384,  16385,  20000,  32767,  32769,
                                     65535, 65537, 131072, 131073, 262143, 262144, 262145, 300001, 0};
    int64_t byte = next_byte(in), count = sizeof others / sizeof *others;
    if (byte < 250) return min(most, byte < 160 ? byte % 40 : byte - 100);
    return min(most, others[next_byte(in) % count]);
}

uint64_t random_bits(input *in) /* xorshift64* */
{
    in->random ^= in->random >> 12, in->random ^= in->random << 25, in->random ^= in->random >> 27;
    return in->random * 0x2545f4914f6cdd1du;
}

enum values pick_values(input *in)
{
    int64_t byte = next_byte(in);
    return byte < 128 ? TAME : byte < 160 ? SPREAD : byte < 192 ? ZEROS : WILD;
}

/* ---------------------------------------------------------------------------------------------------------- arrays */

typedef struct {
    char *memory, *before, *after;
    int64_t contents, count;
} held;

enum { MAX_ARRAYS = 256 };
static held arrays[MAX_ARRAYS];
static int array_count;

input begin_input(const uint8_t *data, size_t size)
{
    for (; array_count; array_count--) {
        held *a = &arrays[array_count - 1];
        free(a->memory), free(a->before), free(a->after);
    }
    input in = {data, data + size, 0x9e3779b97f4a7c15u};
    for (int k = 0; k < 4; k++) in.random = (in.random ^ next_byte(&in)) * 0x100000001b3u + 1;
    return in;
}

int64_t bytes_of(int64_t contents)
{
    return contents == F64 || contents == WORDS ? 8 : contents == BF16 || contents == F16 ? 2 : 4;
}

int64_t real_dtype(int64_t dtype) { return dtype == F64 ? F64 : F32; }

void *new_array(int64_t contents, int64_t count)
{
    if (count <= 0) return NULL;
    CHECK(array_count < MAX_ARRAYS);
    size_t bytes = (size_t)(count * bytes_of(contents));
    held a = {calloc(1, bytes), malloc(bytes), malloc(bytes), contents, count};
    CHECK(a.memory && a.before && a.after);
    arrays[array_count++] = a;
    return a.memory;
}

static uint64_t random_number(input *in, int64_t contents, enum values values, int not_negative)
{
    static const int exponent_bits[] = {8, 11, 8, 5}, mantissa_bits[] = {23, 52, 7, 10};
    int exponents = exponent_bits[contents], mantissas = mantissa_bits[contents];
    uint64_t bits = random_bits(in), bias = ((uint64_t)1 << (exponents - 1)) - 1, exponent = bias - 2 + (bits >> 63);
    if (values == ZEROS && (bits >> 60 & 1)) return 0;
    if (values == SPREAD) exponent = bias - bias / 3 + (bits >> 52 & 0x7ff) % (2 * bias / 3);
    if (values == WILD) exponent = (bits >> 52 & 0x7ff) & (2 * bias + 1);
    uint64_t sign = not_negative ? 0 : bits >> 62 & 1;
    return sign << (exponents + mantissas) | exponent << mantissas | (bits & (((uint64_t)1 << mantissas) - 1));
}

void fill(input *in, void *data, int64_t contents, int64_t count, enum values values, int not_negative)
{
    for (int64_t k = 0; k < count; k++) {
        uint64_t bits = random_number(in, contents, values, not_negative);
        memcpy((char *)data + k * bytes_of(contents), &bits, (size_t)bytes_of(contents)); /* little-endian */
    }
}

double get_number(const void *data, int64_t contents, int64_t k)
{
    if (contents == F64) return ((const double *)data)[k];
    if (contents == F32) return (double)((const float *)data)[k];
    uint32_t bits = ((const uint16_t *)data)[k];
    if (contents == BF16) {
        float number;
        bits <<= 16;
        memcpy(&number, &bits, sizeof number);
        return (double)number;
    }
    int exponent = (int)(bits >> 10 & 31);
    double magnitude = exponent == 31  ? (bits & 1023 ? NAN : INFINITY)
                       : exponent == 0 ? ldexp(bits & 1023, -24)
                                       : ldexp(1024 + (bits & 1023), exponent - 25);
    return bits >> 15 ? -magnitude : magnitude;
}

static array new_strided(input *in, int64_t contents, int64_t rows, int64_t columns, int64_t outer, int64_t inner,
                         enum values values, int not_negative)
{
    int64_t count = rows && columns ? 1 + (rows - 1) * outer + (columns - 1) * inner : 0;
    array a = {.data = new_array(contents, count), .outer = outer, .inner = inner};
    if (count) fill(in, a.data, contents, count, values, not_negative);
    return a;
}

array new_matrix(input *in, int64_t contents, int64_t rows, int64_t columns, enum values values, int not_negative)
{
    int64_t layout = pick(in, 0, 7), gap = pick(in, 0, 3), outer = max(1, columns) + gap, inner = 1;
    if (layout == 5) outer = 1, inner = max(1, rows) + gap;
    if (layout == 6) outer *= 2, inner = 2;
    if (layout == 7) outer = 2, inner = 2 * max(1, rows) + gap;
    return new_strided(in, contents, rows, columns, outer, inner, values, not_negative);
}

array new_gradient(input *in, int64_t contents, int64_t rows, int64_t columns, enum values values)
{
    int64_t how = pick(in, 0, 15);
    if (how == 13) return new_strided(in, contents, rows, columns, 0, 1, values, 0);
    if (how == 14) return new_strided(in, contents, rows, columns, 1, 0, values, 0);
    if (how == 15) return new_strided(in, contents, rows, columns, 0, 0, values, 0);
    return new_matrix(in, contents, rows, columns, values, 0);
}

array new_vector(input *in, int64_t contents, int64_t count, enum values values)
{
    return new_strided(in, contents, 1, count, 1, 1, values, 1);
}

/* ----------------------------------------------------------------------------------------------------------- calls */

config pick_config(input *in, int is_steepest)
{
    static const double rates[] = {0.1, 1e-3, 0, 1}, smallest[] = {1e-8, 0, 1e-3, 1e-30},
                        betas[] = {0.9, 0, 0.5, 0.999}, decays[] = {0, 0.01, 0.1};
    int has_averages = is_steepest || pick_flag(in);
    config c = {
        .lr = pick_of(in, rates, 4),
        .eps = is_steepest ? 0 : pick_of(in, smallest, 4),
        .weight_decay = pick_of(in, decays, 3),
        .beta1 = has_averages ? pick_of(in, betas, 4) : 0,
        .beta2 = has_averages ? pick_of(in, betas, 4) : 0,
        .momentum = has_averages,
        .decoupled_weight_decay = pick_flag(in),
        .maximize = pick_flag(in),
        .steepest = !is_steepest    ? 0
                    : pick_flag(in) ? 1
                                    : 0.2,
        .seed = (uint64_t)pick_flag(in),
    };
    if (has_averages) c.nesterov = pick_flag(in), c.bias_correction = !is_steepest && pick_flag(in);
    return c;
}

void new_step_count(input *in, tensor *t, enum values values)
{
    static const double counts[] = {0, 1, 9, 1000, 16777216};
    double count = pick_of(in, counts, 5);
    t->step_is_f64 = pick_flag(in);
    t->step = new_array(t->step_is_f64 ? F64 : F32, 1);
    if (values == WILD) fill(in, t->step, t->step_is_f64 ? F64 : F32, 1, WILD, 1);
    else if (t->step_is_f64) *(double *)t->step = count;
    else *(float *)t->step = (float)count;
}

static void save_arrays(void)
{
    for (int k = 0; k < array_count; k++)
        memcpy(arrays[k].before, arrays[k].memory, (size_t)(arrays[k].count * bytes_of(arrays[k].contents)));
}

void restore_arrays(void)
{
    for (int k = 0; k < array_count; k++)
        memcpy(arrays[k].memory, arrays[k].before, (size_t)(arrays[k].count * bytes_of(arrays[k].contents)));
}

/* The payload of a NaN is no result. */
static int same(const held *a, const char *other)
{
    if (!memcmp(a->memory, other, (size_t)(a->count * bytes_of(a->contents)))) return 1;
    if (a->contents >= DTYPES) return 0;
    for (int64_t k = 0; k < a->count; k++) {
        int64_t bytes = bytes_of(a->contents);
        if (memcmp(a->memory + k * bytes, other + k * bytes, (size_t)bytes) &&
            !(isnan(get_number(a->memory, a->contents, k)) && isnan(get_number(other, a->contents, k))))
            return 0;
    }
    return 1;
}

void expect_unchanged(void)
{
    for (int k = 0; k < array_count; k++) CHECK(same(&arrays[k], arrays[k].before));
}

int64_t call_twice(input *in, call *make, const void *arguments)
{
    int64_t wide = pick(in, BASELINE, AVX512), threads = pick(in, 1, 4), answer, again;
    save_arrays();
    simd = BASELINE, answer = make(arguments, 1);
    for (int k = 0; k < array_count; k++)
        memcpy(arrays[k].after, arrays[k].memory, (size_t)(arrays[k].count * bytes_of(arrays[k].contents)));
    restore_arrays();
    simd = wide, again = make(arguments, threads), simd = BASELINE;
    CHECK(answer == again);
    for (int k = 0; k < array_count; k++) CHECK(same(&arrays[k], arrays[k].after));
    return answer;
}
