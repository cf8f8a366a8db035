/* Prints a hash of what the kernels compute, for each kind of step: where two builds print the same, they have the same
   bits. Linked with the kernels, without Python and torch; `make test-platforms` compares compilers and processors.

   NaNs are hashed as one number: processors differ in the bits that are left of them. */

#include "kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void matrix_adagrad_use_at_most(int64_t simd);
int64_t matrix_adagrad_step(const tensor *tensors, int64_t count, const config *c, int64_t threads, int64_t passes,
                            char *workspace, int64_t workspace_bytes);
int64_t matrix_adagrad_sparse_step(const tensor *tensors, int64_t count, const config *c, int64_t threads,
                                   char *workspace, int64_t workspace_bytes);
int64_t matrix_adagrad_sum_bags(const feature *features, int64_t feature_count, int64_t dtype, const int64_t *index,
                                int64_t index_count, const void *weights, const int64_t *offsets, int64_t bags,
                                void *out, int64_t out_stride, int64_t threads);
void matrix_adagrad_shrink(const double *a, const double *s, int64_t blocks, int64_t entries, double slack,
                           double *factor, int64_t threads);

enum { KINDS = PER_BOTH + 1, STEPS = 3, PADDING = 3 };
static const char *const DTYPE_NAMES[] = {"float32", "float64", "bfloat16", "float16"};
static const char *const KIND_NAMES[] = {"row", "column", "entry", "whole", "factored"};

/* --------------------------------------------------------------------------------------------------- random numbers */

static uint64_t random_state;
static uint64_t draw(void) /* splitmix64 */
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t of_dtype(uint64_t f32, int64_t dtype) /* a float's bits; float16 has other exponents */
{
    return dtype == BF16 ? f32 >> 16 : dtype == F16 ? (f32 >> 16 & 0x8000) | (f32 >> 13 & 0x23ff) | 0x1800 : f32;
}

/* Numbers between 2⁻⁹ and 2⁷, some zeros; and, if asked for, denormals, infinities and NaNs. */
static void fill(void *data, int64_t n, int64_t dtype, int specials)
{
    static const uint32_t special[] = {0, 0x80000000u, 1, 0x007fffffu, 0x7f800000u, 0xff800000u, 0x7fc00000u};
    for (int64_t k = 0; k < n; k++) {
        uint64_t r = draw();
        uint32_t bits = (uint32_t)(r & 0x807fffffu) | (uint32_t)(118 + (r >> 32) % 16) << 23;
        if ((r >> 48) % 64 == 0) bits = special[specials ? (r >> 56) % 7 : 0];
        float value;
        memcpy(&value, &bits, sizeof value);
        if (dtype == F32) ((float *)data)[k] = value;
        else if (dtype == F64) ((double *)data)[k] = value * (1 + (double)(r >> 40) / (1 << 30));
        else ((uint16_t *)data)[k] = (uint16_t)of_dtype(bits, dtype);
    }
}

/* ------------------------------------------------------------------------------------------------------------ hashes */

static uint64_t hash;
static void add_to_hash(const void *data, int64_t n, int64_t dtype)
{
    for (int64_t k = 0; k < n; k++) {
        uint64_t bits = 0;
        int is_nan;
        if (dtype == F64) memcpy(&bits, (const double *)data + k, 8), is_nan = bits << 1 > 0x7ffull << 53;
        else if (dtype == F32) memcpy(&bits, (const float *)data + k, 4), is_nan = (bits & 0x7fffffff) > 0x7f800000;
        else {
            bits = ((const uint16_t *)data)[k];
            is_nan = (bits & 0x7fff) > (dtype == BF16 ? 0x7f80 : 0x7c00);
        }
        hash = (hash ^ (is_nan ? 0x7ff8u : bits)) * 0x100000001b3u; /* FNV-1a, by number */
        hash ^= hash >> 29;
    }
}

static void print_hash(const char *what, int64_t dtype, const char *kind, const char *options)
{
    printf("%-7s %-8s %-8s %-22s %016llx\n", what, DTYPE_NAMES[dtype], kind, options, (unsigned long long)hash);
    hash = 0;
}

/* -------------------------------------------------------------------------------------------------------------- cases */

static const struct {
    const char *name;
    config c;
} OPTIONS[] = {
    {"plain", {.lr = 0.1, .eps = 1e-10}},
    {"penalty", {.lr = 0.1, .eps = 1e-8, .weight_decay = 0.01, .maximize = 1}},
    {"decay", {.lr = 0.1, .eps = 1e-8, .weight_decay = 0.01, .decoupled_weight_decay = 1}},
    {"random", {.lr = 1e-3, .eps = 1e-8, .seed = 1}},
    {"averages", {.lr = 0.1, .eps = 1e-8, .beta1 = 0.9, .beta2 = 0.99, .momentum = 1}},
    {"averages-penalty", {.lr = 0.1, .eps = 1e-8, .weight_decay = 0.01, .beta1 = 0.3, .beta2 = 0.9, .momentum = 1}},
    {"averages-corrected", {.lr = 0.1, .eps = 1e-8, .beta1 = 0.9, .beta2 = 0.999, .momentum = 1, .bias_correction = 1}},
    {"averages-nesterov",
     {.lr = 0.1, .eps = 1e-8, .beta1 = 0.9, .beta2 = 0.99, .momentum = 1, .bias_correction = 1, .nesterov = 1}},
    {"steepest", {.lr = 0.1, .beta1 = 0.9, .momentum = 1, .nesterov = 1, .steepest = 0.2}},
};

enum { CONTIGUOUS, PADDED, TRANSPOSED, LAYOUTS };

static array array_of(void *data, int64_t rows, int64_t columns, int layout)
{
    if (layout == TRANSPOSED) return (array){.data = data, .outer = 1, .inner = rows};
    return (array){.data = data, .outer = columns + (layout == PADDED ? PADDING : 0), .inner = 1};
}

static array statistic_of(void *data, int64_t rows, int64_t columns, int64_t kind, int layout)
{
    if (kind == PER_ENTRY) return array_of(data, rows, columns, layout);
    return (array){.data = data, .outer = kind == PER_OUTER || kind == PER_BOTH, .inner = kind == PER_INNER};
}

static void *room(int64_t n, int64_t bytes)
{
    void *data = calloc((size_t)(n + 8), (size_t)bytes);
    if (!data) exit(2);
    return data;
}

static void step(const tensor *t, const config *c, int64_t threads)
{
    static char *workspace;
    static int64_t workspace_bytes;
    for (int64_t needed;; workspace_bytes = needed) {
        needed = t->index ? matrix_adagrad_sparse_step(t, 1, c, threads, workspace, workspace_bytes)
                          : matrix_adagrad_step(t, 1, c, threads, READ | MOVE, workspace, workspace_bytes);
        if (needed < 0) exit(3);
        if (!needed) return;
        workspace = realloc(workspace, (size_t)needed);
        if (!workspace) exit(2);
    }
}

/* Some steps of a matrix; with nnz, along sparse gradients, whose rows repeat. */
static void run(int64_t rows, int64_t columns, int64_t dtype, int64_t kind, const config *c, int layout, int64_t nnz,
                int64_t threads, int specials)
{
    int64_t n = rows * (columns + PADDING), g_rows = nnz ? nnz : rows, g_n = g_rows * (columns + PADDING);
    int64_t real = dtype == F64 ? F64 : F32, bytes = dtype == F64 ? 8 : dtype == F32 ? 4 : 2;
    int64_t real_bytes = real == F64 ? 8 : 4, index_of[64];
    float steps = 0;
    void *x = room(n, bytes), *g = room(g_n, bytes), *average = room(n, real_bytes), *v = room(n, 8);
    void *columns_v = room(columns, real_bytes), *whole = room(1, real_bytes);
    tensor t = {
        .x = array_of(x, rows, columns, layout),
        .g = array_of(g, g_rows, columns, nnz ? PADDED : layout),
        .statistic = statistic_of(v, rows, columns, kind, layout),
        .outer = rows,
        .inner = columns,
        .kind = kind,
        .dtype = dtype,
        .step = &steps,
        .index = nnz ? index_of : NULL,
        .nnz = nnz,
        .divisor = kind == PER_TENSOR  ? rows * columns
                   : kind == PER_ENTRY ? 1
                                       : columns,
        .sums = c->steepest != 0 ? v : NULL,
        .stream = 12345,
        .matrices = 1,
        .columns_divisor = rows,
        .whole_divisor = rows * columns,
        .combine = PRODUCT,
    };
    if (c->momentum && c->beta1 != 0) t.average = array_of(average, rows, columns, layout);
    if (kind == PER_BOTH) {
        t.columns = (array){.data = columns_v, .inner = 1};
        t.whole = (array){.data = whole};
    }
    fill(x, n, dtype, 0);
    for (int k = 0; k < STEPS; k++) {
        fill(g, g_n, dtype, specials);
        for (int64_t p = 0; p < nnz; p++) index_of[p] = (int64_t)(draw() % (uint64_t)rows);
        step(&t, c, threads);
    }
    add_to_hash(x, n, dtype), add_to_hash(average, n, real), add_to_hash(&steps, 1, F32);
    if (c->steepest == 0) add_to_hash(v, n, real), add_to_hash(columns_v, columns, real), add_to_hash(whole, 1, real);
    free(x), free(g), free(average), free(v), free(columns_v), free(whole);
}

static void run_shapes(int64_t dtype, int64_t kind, const config *c, int64_t threads)
{
    static const int64_t SHAPES[][2] = {{1, 1}, {3, 5}, {5, 64}, {70, 33}, {9, 300}, {130, 17}};
    for (size_t k = 0; k < sizeof SHAPES / sizeof *SHAPES; k++)
        for (int layout = 0; layout < LAYOUTS; layout++)
            run(SHAPES[k][0], SHAPES[k][1], dtype, kind, c, layout, 0, threads, k == 3);
    run(2, IN_PLACE_COLUMNS + 100, dtype, kind, c, CONTIGUOUS, 0, threads, 0);
    run(6, L1_BYTES / 2 + 40, dtype, kind, c, CONTIGUOUS, 0, threads, 0);
}

static void steps_of(int64_t dtype, int64_t kind, int64_t threads)
{
    for (size_t k = 0; k < sizeof OPTIONS / sizeof *OPTIONS; k++) {
        config c = OPTIONS[k].c;
        if (c.steepest != 0 && kind == PER_BOTH) continue;
        random_state = 1;
        run_shapes(dtype, kind, &c, threads);
        print_hash("dense", dtype, KIND_NAMES[kind], OPTIONS[k].name);
        if (c.steepest != 0 && kind != PER_OUTER && kind != PER_ENTRY) continue;
        run(40, 5, dtype, kind, &c, CONTIGUOUS, 50, threads, 0);
        run(7, 70, dtype, kind, &c, PADDED, 30, threads, 1);
        run(2000, 33, dtype, kind, &c, CONTIGUOUS, 64, threads, 0);
        print_hash("sparse", dtype, KIND_NAMES[kind], OPTIONS[k].name);
    }
    config plain = OPTIONS[0].c;
    run(530, 520, dtype, kind, &plain, CONTIGUOUS, 0, threads, 0); /* larger than LARGE_ENTRIES */
    print_hash("large", dtype, KIND_NAMES[kind], OPTIONS[0].name);
}

static void bags_of(int64_t dtype, int64_t threads)
{
    enum { ROWS = 50, COLUMNS = 37, BAGS = 90, INDICES = 400 };
    int64_t bytes = dtype == F64 ? 8 : dtype == F32 ? 4 : 2, index_of[INDICES], offsets[BAGS + 1] = {0};
    void *table = room(ROWS * COLUMNS, bytes), *out = room(BAGS * COLUMNS, bytes);
    void *weights = room(INDICES, dtype == F64 ? 8 : 4);
    random_state = 2;
    fill(table, ROWS * COLUMNS, dtype, 0), fill(weights, INDICES, dtype == F64 ? F64 : F32, 0);
    for (int64_t p = 0; p < INDICES; p++) index_of[p] = (int64_t)(draw() % ROWS);
    for (int64_t b = 1; b < BAGS; b++) offsets[b] = offsets[b - 1] + (int64_t)(draw() % 9);
    for (int64_t b = 1; b <= BAGS; b++)
        if (b == BAGS || offsets[b] > INDICES) offsets[b] = INDICES;
    for (int64_t is_mean = 0; is_mean < 2; is_mean++)
        for (int has_weights = 0; has_weights < 2; has_weights++) {
            feature f = {.table = table, .rows = ROWS, .columns = COLUMNS, .row_stride = COLUMNS, .is_mean = is_mean};
            if (matrix_adagrad_sum_bags(&f, 1, dtype, index_of, INDICES, has_weights ? weights : NULL, offsets, BAGS,
                                        out, COLUMNS, threads))
                exit(3);
            add_to_hash(out, BAGS * COLUMNS, dtype);
        }
    print_hash("bags", dtype, "-", "sum, mean, weighted");
    free(table), free(out), free(weights);
}

static void shrinkage(int64_t threads)
{
    enum { BLOCKS = 20, ENTRIES = 77 };
    double a[BLOCKS * ENTRIES], s[BLOCKS * ENTRIES], factor[BLOCKS * ENTRIES] = {0};
    random_state = 3;
    fill(a, BLOCKS * ENTRIES, F64, 0), fill(s, BLOCKS * ENTRIES, F64, 0);
    for (int64_t k = 0; k < BLOCKS * ENTRIES; k++) a[k] *= a[k], s[k] = s[k] * s[k] + 0.01;
    matrix_adagrad_shrink(a, s, BLOCKS, ENTRIES, 1.0, factor, threads);
    add_to_hash(factor, BLOCKS, F64);
    print_hash("balls", F64, "-", "shrink");
}

int main(int count, char **arguments)
{
    int64_t threads = count > 1 ? atoi(arguments[1]) : 1;
    if (count > 2) matrix_adagrad_use_at_most(atoi(arguments[2]));
    for (int64_t dtype = 0; dtype < DTYPES; dtype++) {
        for (int64_t kind = 0; kind < KINDS; kind++) steps_of(dtype, kind, threads);
        bags_of(dtype, threads);
    }
    shrinkage(threads);
    return 0;
}
