/* How threads share a loop: PARALLEL_FOR or PARALLEL_EVENLY before it, with the number of `threads` in scope.

   Which thread takes which turns never matters. All of them compute as the caller does: whether tiny numbers count as 0
   (torch.set_flush_denormal), and how numbers are rounded, is known to each thread for itself, and is lent to the others
   for as long as the loop takes.

   A thread may have a small stack (threading.stack_size, OMP_STACKSIZE): functions that call each other keep less than
   20 KB there, in all. What is larger is in the room that the caller brings, where each thread has a part: a step allocates
   nothing, and never ends half-way for want of memory. */

#ifndef MATRIX_ADAGRAD_THREADS_H
#define MATRIX_ADAGRAD_THREADS_H

#include <stdint.h>

#ifdef _OPENMP
#include <omp.h>
static inline int64_t thread_number(void) { return omp_get_thread_num(); }
#else
static inline int64_t thread_number(void) { return 0; }
#endif

#if defined(__SSE__)
#include <xmmintrin.h>
enum { MODES = 0xe040 }; /* of MXCSR: results flushed to 0, the rounding, operands that count as 0 */
static inline uint64_t control_word(void) { return _mm_getcsr(); }
static inline void set_control_word(uint64_t word) { _mm_setcsr((unsigned)word); }
#elif defined(__aarch64__)
enum { MODES = 0x1c80003 }; /* of FPCR: the same, with those of narrow numbers */
static inline uint64_t control_word(void)
{
    uint64_t word;
    __asm__ volatile("mrs %0, fpcr" : "=r"(word));
    return word;
}
static inline void set_control_word(uint64_t word) { __asm__ volatile("msr fpcr, %0" : : "r"(word)); }
#else
enum { MODES = 0 };
static inline uint64_t control_word(void) { return 0; }
static inline void set_control_word(uint64_t word) { (void)word; }
#endif

/* From now on this thread computes in these modes; returns its own, for later. */
static inline uint64_t compute_as(uint64_t modes)
{
    uint64_t own = control_word();
    if ((own ^ modes) & MODES) set_control_word((own & ~(uint64_t)MODES) | (modes & MODES));
    return own;
}

/* A number that others may write to meanwhile: what is checked is what is used. */
static inline int64_t read_once(const int64_t *number) { return __atomic_load_n(number, __ATOMIC_RELAXED); }
/* What went wrong, to the thread that waits for all. */
static inline void tell(int64_t *result, int64_t what) { __atomic_store_n(result, what, __ATOMIC_RELAXED); }

#define OMP(directive) _Pragma(#directive)
#define SHARE_OUT(how)                                                                                                   \
    for (uint64_t modes = control_word(), begin = 1; begin; begin = 0)                                                   \
        OMP(omp parallel num_threads((int)threads))                                                                      \
        for (uint64_t own_modes = compute_as(modes), enter = 1; enter; compute_as(own_modes), enter = 0)                 \
            OMP(omp for nowait schedule(how))
#define PARALLEL_FOR SHARE_OUT(dynamic)
#define PARALLEL_EVENLY SHARE_OUT(static)

#endif
