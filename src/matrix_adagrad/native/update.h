/* The update: its options, the settings of a step that follow from them, and what they do to an entry.

   The kernels ask for nothing else: an option is added here. */

#ifndef MATRIX_ADAGRAD_UPDATE_H
#define MATRIX_ADAGRAD_UPDATE_H

#include <math.h>
#include <stdint.h>

#define FIELD(type, name) type name;

/* The options, for all tensors of a call: X(type, name) for each. The names are those of the Python options; momentum
   says whether there are running averages, steepest is the size of a step of steepest descent at lr = 1, or 0 for other
   updates, and seed is that of the stochastic rounding of 16-bit parameters: 0 rounds to nearest. */
#define CONFIG_FIELDS(X)                                                                                               \
    X(double, lr)                                                                                                      \
    X(double, eps)                                                                                                     \
    X(double, weight_decay)                                                                                            \
    X(double, beta1)                                                                                                   \
    X(double, beta2)                                                                                                   \
    X(int64_t, momentum)                                                                                               \
    X(int64_t, bias_correction)                                                                                        \
    X(int64_t, nesterov)                                                                                               \
    X(int64_t, decoupled_weight_decay)                                                                                 \
    X(int64_t, maximize)                                                                                               \
    X(double, steepest)                                                                                                \
    X(uint64_t, seed)

typedef struct {
    CONFIG_FIELDS(FIELD)
} config;

/* What x moves along: g, its running average, or a weighted sum of both. The kernels are compiled for each kind. */
#define FOR_EACH_MOMENTUM(X, ...) X(NO_MOMENTUM, ##__VA_ARGS__) X(MOMENTUM, ##__VA_ARGS__) X(NESTEROV, ##__VA_ARGS__)
#define ENUMERATOR(momentum) momentum,
enum momentum { FOR_EACH_MOMENTUM(ENUMERATOR) };

/* How the scale of an entry follows from r and c, the V of its row and of its column, and w, that of the whole matrix:
   √(r / w) · √c, ∜r · ∜c or min(√r, √c). */
enum combine { PRODUCT, GEOMETRIC, MINIMUM };

/* -------------------------------------------------------------------------------------------------------- settings */

/* A configuration for one tensor at one step, in double or in the type of the arithmetic: X(real, name) for each.

     sign, l2                g ← sign · g + l2 · x, if l2 is not 0
     g_sign                  of g after that
     beta1, one_minus_beta1  D ← β₁ · D + (1 − β₁) · g, the running average
     nesterov_weight         x moves along nesterov_weight · D + (1 − β₁) · g, for NESTEROV
     v_decay, v_weight       V ← v_decay · V + v_weight · Σg²
     lr, v_correction, eps   scale = lr / (√(v_correction · V) + eps)
     shrinkage               x ← shrinkage · x − scale · direction */
#define SETTINGS(X, real)                                                                                              \
    X(real, sign)                                                                                                      \
    X(real, l2)                                                                                                        \
    X(real, g_sign)                                                                                                    \
    X(real, beta1)                                                                                                     \
    X(real, one_minus_beta1)                                                                                           \
    X(real, nesterov_weight)                                                                                           \
    X(real, v_decay)                                                                                                   \
    X(real, v_weight)                                                                                                  \
    X(real, lr)                                                                                                        \
    X(real, v_correction)                                                                                              \
    X(real, eps)                                                                                                       \
    X(real, shrinkage)

typedef struct {
    SETTINGS(FIELD, double)
    enum momentum momentum;
    enum combine combine;
    int steepest; /* V is Σ(direction²) of this step alone: nothing is kept of the last one */
    uint64_t seed;
} settings;

/* 1 − βᵗ, with all its digits. */
static inline double one_minus_power(double beta, double t) { return beta > 0 ? -expm1(t * log1p(beta - 1)) : 1; }

/* β₁; or, since lr has the correction of this step and not of the next one, β₁ · (1 − β₁ᵗ) / (1 − β₁ᵗ⁺¹). */
static inline double nesterov_weight(double step, const config *c)
{
    if (!c->bias_correction) return c->beta1;
    return c->beta1 * one_minus_power(c->beta1, step) / one_minus_power(c->beta1, step + 1);
}

static inline settings settings_at(double step, int64_t divisor, const config *c)
{
    int bias_corrected = c->momentum && c->bias_correction;
    double sign = c->maximize ? -1 : 1, l2 = c->decoupled_weight_decay ? 0 : c->weight_decay;
    double steepest_lr = c->lr * c->steepest * sqrt((double)divisor); /* a block of that many entries has length 1 */
    return (settings){
        .sign = sign,
        .l2 = l2,
        .g_sign = l2 != 0 ? 1 : sign,
        .beta1 = c->beta1,
        .one_minus_beta1 = 1 - c->beta1,
        .nesterov_weight = c->nesterov ? nesterov_weight(step, c) : 0,
        .v_decay = c->momentum ? c->beta2 : 1,
        .v_weight = (c->momentum ? 1 - c->beta2 : 1) / (double)divisor,
        .lr = c->steepest      ? steepest_lr
              : bias_corrected ? c->lr / one_minus_power(c->beta1, step)
                               : c->lr,
        .v_correction = bias_corrected ? 1 / one_minus_power(c->beta2, step) : 1,
        .eps = c->eps,
        .shrinkage = c->decoupled_weight_decay ? 1 - c->lr * c->weight_decay : 1,
        .momentum = !c->momentum || c->beta1 == 0 ? NO_MOMENTUM
                    : c->nesterov                 ? NESTEROV
                                                  : MOMENTUM,
        .steepest = c->steepest != 0,
    };
}

/* Whether x moves along the average alone: then g is not needed any more. */
static inline int moves_without_g(const settings *s) { return s->momentum == MOMENTUM; }

/* -------------------------------------------------------------------------------------------------------- an entry */

/* Macros: an entry is a float, a double or a vector of them, and is loaded only if it matters. u are the settings in
   its type, and momentum is a compile-time constant. */

/* The gradient with its penalty. */
#define PENALIZED(u, g, x) ((u).sign * (g) + (u).l2 * (x))

/* The running average after g. For small β₁ the correction is taken from g, or a large average would swallow a small
   g. */
#define AVERAGED(u, average, g) LERP(u, average, (g) * (u).g_sign)
#define LERP(u, average, g)                                                                                            \
    ((u).beta1 > 0.5 ? (average) + (u).one_minus_beta1 * ((g) - (average)) : (g) - (u).beta1 * ((g) - (average)))

/* V after the sum of squares of a block, and what its step is divided by; SQRT is that of the type. */
#define ACCUMULATED(u, v, squares) ((u).v_decay * (v) + (u).v_weight * (squares))
#define ROOT(u, v) (SQRT((v) * (u).v_correction) + (u).eps)

/* What x moves along, up to a sign that is left to the scale: it is the same for a whole row. */
#define DIRECTION(u, average, g, momentum)                                                                             \
    ((momentum) == NESTEROV ? (u).nesterov_weight * (average) + (u).one_minus_beta1 * (u).g_sign * (g)                 \
     : (momentum)           ? (average)                                                                                \
                            : (g))
#define SIGNED(u, scale, momentum) ((momentum) ? (scale) : (scale) * (u).g_sign)

/* What the squares are of: for steepest descent, what x moves along. */
#define MEASURED(u, average, g, momentum, steepest) ((steepest) ? DIRECTION(u, average, g, momentum) : (g))

#define MOVED(u, x, scale, direction) ((x) * (u).shrinkage - (scale) * (direction))

#endif
