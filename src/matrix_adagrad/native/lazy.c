/* The catch-up of `step/lazy.py`: what steps without gradient do to a row, done at once.

   The ids come as they are, unsorted and repeated. A row belongs to whoever exchanges its counter first: all others find
   it up to date. Rows do not depend on each other, so that the bits are the same for any number of threads. */

#include <math.h>
#include <string.h>

#include "kernels.h"
#include "threads.h"

enum {
    SPAN_IDS = 1 << 10,    /* ids that a thread takes at a time */
    AHEAD_IDS = 16,        /* ids whose counters are prefetched */
    CHUNK_ENTRIES = 1 << 8 /* entries of a narrow row that are widened together */
};

/* The rows of a parameter, their state and their counters. Python packs words of 8 bytes. */
typedef struct {
    indices index; /* NULL: all rows */
    int64_t ids, rows;
    int32_t *last_step; /* NULL: no averages by row */
    int64_t now;
    pointer last_decay; /* of reals; NULL: no decay */
    double total;
    int64_t is_f64; /* reals are double, not float */
    pointer x;      /* NULL, here and below: counters alone */
    int64_t x_stride, width, dtype;
    uint64_t stream;
    pointer average; /* of reals, like the statistic */
    int64_t average_stride;
    pointer statistic;
    int64_t statistic_stride, statistic_width;
    double beta1, beta2;
} lag;

_Static_assert(sizeof(lag) == 20 * 8, "lag has padding");

/* A row that this thread has claimed, and the factors of what it missed. */
typedef struct {
    int64_t row;
    double decay, beta1, beta2;
} claim;

/* Of the functions of libm, glibc gave exp and pow a new version that older systems lack. */
static double decayed(double log_factor) { return 1 + expm1(log_factor); }

static double power(double base, int64_t exponent)
{
    double result = 1;
    for (; exponent; exponent >>= 1, base *= base)
        if (exponent & 1) result *= base;
    return result;
}

static double missed_decay(const lag *l, int64_t row)
{
    if (l->is_f64) {
        uint64_t now, then, *at = (uint64_t *)l->last_decay + row;
        double last;
        memcpy(&now, &l->total, sizeof now);
        if (__atomic_load_n(at, __ATOMIC_RELAXED) == now) return 1;
        then = __atomic_exchange_n(at, now, __ATOMIC_RELAXED);
        memcpy(&last, &then, sizeof last);
        return l->x ? decayed(last - l->total) : 1;
    }
    uint32_t now, then, *at = (uint32_t *)l->last_decay + row;
    float last, total = (float)l->total;
    memcpy(&now, &total, sizeof now);
    if (__atomic_load_n(at, __ATOMIC_RELAXED) == now) return 1;
    then = __atomic_exchange_n(at, now, __ATOMIC_RELAXED);
    memcpy(&last, &then, sizeof last);
    return l->x ? decayed((double)last - (double)total) : 1;
}

static int64_t missed_steps(const lag *l, int64_t row)
{
    int32_t now = (int32_t)l->now, *at = l->last_step + row;
    if (__atomic_load_n(at, __ATOMIC_RELAXED) == now) return 0;
    return l->now - __atomic_exchange_n(at, now, __ATOMIC_RELAXED);
}

/* Claims a row; returns whether it is behind. */
static int claim_row(const lag *l, int64_t row, claim *own)
{
    *own = (claim){row, 1, 1, 1};
    if (l->last_decay) own->decay = missed_decay(l, row);
    if (l->last_step) {
        int64_t steps = missed_steps(l, row);
        if (steps > 0 && l->average) own->beta1 = power(l->beta1, steps);
        if (steps > 0 && l->statistic) own->beta2 = power(l->beta2, steps);
    }
    return own->decay != 1 || own->beta1 != 1 || own->beta2 != 1;
}

static void scale(void *row, int64_t n, int64_t is_f64, double factor)
{
    if (factor == 1) return;
    if (is_f64)
        for (int64_t j = 0; j < n; j++) ((double *)row)[j] *= factor;
    else
        for (int64_t j = 0; j < n; j++) ((float *)row)[j] *= (float)factor;
}

/* A row that is narrower than the arithmetic is rounded once. */
static void scale_narrow(const lag *l, int64_t row, double factor)
{
    const arithmetic *ops = arithmetic_of(l->dtype, 0);
    float chunk[CHUNK_ENTRIES];
    for (int64_t j = 0; j < l->width; j += CHUNK_ENTRIES) {
        int64_t n = min(CHUNK_ENTRIES, l->width - j);
        void *at = entry_at(l->x, row * l->x_stride + j, ops->entry_bytes);
        ops->load(at, 0, 1, NULL, 1, n, chunk);
        scale(chunk, n, 0, factor);
        ops->store(chunk, at, 0, 1, NULL, 1, n, l->stream, row, j);
    }
}

static void catch_up(const lag *l, const claim *own)
{
    int64_t bytes = l->is_f64 ? sizeof(double) : sizeof(float);
    if (l->average) scale(entry_at(l->average, own->row * l->average_stride, bytes), l->width, l->is_f64, own->beta1);
    if (l->statistic)
        scale(entry_at(l->statistic, own->row * l->statistic_stride, bytes), l->statistic_width, l->is_f64, own->beta2);
    if (!l->x || own->decay == 1) return;
    if (l->dtype == F32 || l->dtype == F64)
        scale(entry_at(l->x, own->row * l->x_stride, bytes), l->width, l->is_f64, own->decay);
    else scale_narrow(l, own->row, own->decay);
}

static int64_t id_at(const lag *l, int64_t k) { return l->index ? read_once(l->index + k) : k; }
static int is_row(const lag *l, int64_t row) { return (uint64_t)row < (uint64_t)l->rows; }

static void prefetch_counters(const lag *l, int64_t row)
{
    if (!is_row(l, row)) return;
    if (l->last_step) __builtin_prefetch(l->last_step + row, 1);
    if (l->last_decay) __builtin_prefetch((char *)l->last_decay + row * (l->is_f64 ? 8 : 4), 1);
}

static void prefetch_claimed(const lag *l, const claim *own)
{
    int64_t bytes = l->is_f64 ? sizeof(double) : sizeof(float),
            x_bytes = l->dtype == BF16 || l->dtype == F16 ? 2 : bytes;
    if (l->x && own->decay != 1) prefetch_row(entry_at(l->x, own->row * l->x_stride, x_bytes), l->width * x_bytes);
    if (l->average) prefetch_row(entry_at(l->average, own->row * l->average_stride, bytes), l->width * bytes);
    if (l->statistic)
        prefetch_row(entry_at(l->statistic, own->row * l->statistic_stride, bytes), l->statistic_width * bytes);
}

/* Ids from k to end; returns how many rows were behind. */
static int64_t catch_up_span(const lag *l, int64_t k, int64_t end)
{
    int64_t behind = 0;
    claim claims[TILE_ROWS];
    while (k < end) {
        int64_t count = 0;
        for (; k < end && count < TILE_ROWS; k++) {
            if (l->index && k + AHEAD_IDS < end) prefetch_counters(l, id_at(l, k + AHEAD_IDS));
            int64_t row = id_at(l, k);
            if (!is_row(l, row) || !claim_row(l, row, &claims[count])) continue;
            prefetch_claimed(l, &claims[count++]);
        }
        for (int64_t c = 0; c < count; c++) catch_up(l, &claims[c]);
        behind += count;
    }
    return behind;
}

static int is_in_range(const lag *l)
{
    uint64_t largest = 0;
    for (int64_t k = 0; l->index && k < l->ids; k++) {
        uint64_t row = (uint64_t)read_once(l->index + k);
        largest = row > largest ? row : largest;
    }
    return !l->index || !l->ids || largest < (uint64_t)l->rows;
}

/* Brings the rows of each parameter up to date. Returns how many were behind, or −1 − i if parameter i is the first that
   has an id out of range: then nothing was done. */
EXPORT int64_t matrix_adagrad_catch_up(const lag *lags, int64_t count, int64_t most_threads)
{
    int64_t behind = 0;
    for (int64_t i = 0; i < count; i++)
        if (!is_in_range(&lags[i])) return -1 - i;
    for (int64_t i = 0; i < count; i++) {
        const lag *l = &lags[i];
        int64_t threads = l->ids * max(1, l->x || l->average ? l->width : 1) <= SERIAL_ENTRIES ? 1 : most_threads;
        PARALLEL_FOR(s, ceil_div(l->ids, SPAN_IDS), {
            int64_t k = s * SPAN_IDS;
            int64_t own = catch_up_span(l, k, min(l->ids, k + SPAN_IDS));
            if (own) __atomic_fetch_add(&behind, own, __ATOMIC_RELAXED);
        });
    }
    return behind;
}
