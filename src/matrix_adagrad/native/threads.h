/* How threads share a loop over i < n: PARALLEL_FOR(i, n, {body}), with the number of `threads` in scope, or
   PARALLEL_FOR_BACKWARDS, which begins with the last iteration. A single thread opens no OpenMP region: within another
   one, that would take half a microsecond.

   Each thread begins with its own range of the iterations, the same in every loop over as many: its core's caches may
   still hold the memory, and where cores share no cache, fetching it from another one costs more than the work. Threads
   that are done take over what is left of the others' ranges, since a thread's core may be busy with another process.

   No result depends on which thread runs which iteration. All threads compute in the caller's floating-point modes:
   flushing denormals to zero (torch.set_flush_denormal) and rounding are modes of each thread, and the others adopt the
   caller's for the loop.

   A thread may have a small stack (threading.stack_size, OMP_STACKSIZE): a chain of calls keeps less than 20 KB there.
   What is larger is in the workspace that the caller provides, where each thread has its own part. A step allocates
   nothing, and never fails half-way for want of memory. */

#ifndef MATRIX_ADAGRAD_THREADS_H
#define MATRIX_ADAGRAD_THREADS_H

#include "kernels.h"

#include <limits.h>
#include <stdint.h>
#include <stdlib.h>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

enum { MAX_SPINS = 2000 }; /* some tens of microseconds: longer than a share that is a little larger than the others */

#ifdef _OPENMP
#include <omp.h>
static inline int64_t thread_number(void) { return omp_get_thread_num(); }
#else
static inline int64_t thread_number(void) { return 0; }
#endif

#if defined(__SSE__)
#include <xmmintrin.h>
enum { MODE_BITS = 0xe040 }; /* of MXCSR: flush to zero, rounding, denormals are zero */
static inline uint64_t control_word(void) { return _mm_getcsr(); }
static inline void set_control_word(uint64_t word) { _mm_setcsr((unsigned)word); }
#elif defined(__aarch64__)
enum { MODE_BITS = 0x1c80003 }; /* of FPCR: the same, also for float16 */
static inline uint64_t control_word(void)
{
    uint64_t word;
    __asm__ volatile("mrs %0, fpcr" : "=r"(word));
    return word;
}
static inline void set_control_word(uint64_t word) { __asm__ volatile("msr fpcr, %0" : : "r"(word)); }
#else
enum { MODE_BITS = 0 };
static inline uint64_t control_word(void) { return 0; }
static inline void set_control_word(uint64_t word) { (void)word; }
#endif

/* Switches this thread to these modes; returns its own, to be restored later. */
static inline uint64_t adopt_modes(uint64_t modes)
{
    uint64_t own = control_word();
    if ((own ^ modes) & MODE_BITS) set_control_word((own & ~(uint64_t)MODE_BITS) | (modes & MODE_BITS));
    return own;
}

/* A number that other threads may write to meanwhile: what is checked is what is used. */
static inline int64_t read_once(const int64_t *number) { return __atomic_load_n(number, __ATOMIC_RELAXED); }
/* Reports a status to the thread that joins the others. */
static inline void report(int64_t *result, int64_t status) { __atomic_store_n(result, status, __ATOMIC_RELAXED); }

enum { MAX_RANGES = 32 }; /* with more threads than ranges, some share one */

/* What the threads of a loop share. */
typedef struct {
    uint64_t modes;
    int64_t iterations, ranges;
    int backwards;
    uint32_t arrived, sleepers; /* threads that have finished their share, and those that sleep since */
    struct {
        _Alignas(CACHE_LINE_BYTES) int64_t taken; /* iterations, from the side where its thread begins */
    } range[MAX_RANGES];
} loop_state;

/* The next iteration for a thread, or −1 if none are left. It begins with range `at`, its own, and ends one round later. */
static inline int64_t next_iteration(loop_state *loop, int64_t own, int64_t *at)
{
    for (; *at < own + loop->ranges; ++*at) {
        int64_t r = *at % loop->ranges;
        int64_t first = loop->iterations * r / loop->ranges, end = loop->iterations * (r + 1) / loop->ranges;
        int64_t taken = __atomic_fetch_add(&loop->range[r].taken, 1, __ATOMIC_RELAXED);
        if (first + taken < end) return loop->backwards ? end - 1 - taken : first + taken;
    }
    return -1;
}

#ifdef __linux__
static inline void sleep_until_changed(const uint32_t *number, uint32_t from)
{
    syscall(SYS_futex, number, FUTEX_WAIT_PRIVATE, from, NULL, NULL, 0);
}
static inline void wake_all(const uint32_t *number)
{
    syscall(SYS_futex, number, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}
#else
static inline void sleep_until_changed(const uint32_t *number, uint32_t from) { (void)number, (void)from; }
static inline void wake_all(const uint32_t *number) { (void)number; }
#endif

static inline void pause_briefly(void)
{
#if defined(__SSE__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Waits for the others at the end of a loop. OpenMP's own barrier spins for milliseconds: if another process has the core
   of a thread that is still at work, that thread would get none of the cores that wait for it. So wait asleep. */
static inline void meet(loop_state *loop)
{
#ifdef _OPENMP
    uint32_t team = (uint32_t)omp_get_num_threads(), now = __atomic_add_fetch(&loop->arrived, 1, __ATOMIC_SEQ_CST);
    if (now == team && __atomic_load_n(&loop->sleepers, __ATOMIC_SEQ_CST)) wake_all(&loop->arrived);
    for (int64_t spins = 0; (now = __atomic_load_n(&loop->arrived, __ATOMIC_SEQ_CST)) < team; spins++) {
        if (spins < MAX_SPINS) pause_briefly();
        else if (spins == MAX_SPINS) __atomic_fetch_add(&loop->sleepers, 1, __ATOMIC_SEQ_CST);
        else sleep_until_changed(&loop->arrived, now);
    }
#else
    (void)loop;
#endif
}

#define PRAGMA(directive) _Pragma(#directive)
/* clang-format off */
#define PARALLEL_LOOP(is_backwards, i, n, ...)                                                                         \
    do {                                                                                                               \
        int64_t iterations = (n);                                                                                      \
        if (threads == 1 || iterations <= 1) {                                                                         \
            for (int64_t nth = 0; nth < iterations; nth++) {                                                           \
                int64_t i = (is_backwards) ? iterations - 1 - nth : nth;                                               \
                __VA_ARGS__                                                                                            \
            }                                                                                                          \
        } else {                                                                                                       \
            loop_state loop = {control_word(), iterations, min(threads, MAX_RANGES), is_backwards, 0, 0, {{0}}};       \
            PRAGMA(omp parallel num_threads((int)threads))                                                             \
            {                                                                                                          \
                uint64_t own_modes = adopt_modes(loop.modes);                                                          \
                int64_t own_range = thread_number() % loop.ranges, range = own_range;                                  \
                for (int64_t i; (i = next_iteration(&loop, own_range, &range)) >= 0;) __VA_ARGS__                      \
                adopt_modes(own_modes);                                                                                \
                meet(&loop);                                                                                           \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)
/* clang-format on */
#define PARALLEL_FOR(i, n, ...) PARALLEL_LOOP(0, i, n, __VA_ARGS__)
#define PARALLEL_FOR_BACKWARDS(i, n, ...) PARALLEL_LOOP(1, i, n, __VA_ARGS__)

#endif
