#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* RTLD_DEFAULT */
#endif
#include "kernel.h"

#include <dlfcn.h>
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define HAVE_X86 1
#include <immintrin.h>
#endif

/* A block stays in the first-level cache, so that looking at it twice reads memory once. */
#define BLOCK 2048
/* The unit of work of a thread. Fixed, so that sums are added in the same order for any number of threads. */
#define CHUNK (1 << 14)
/* Chunks that a thread takes at once: many when there are many, so that tiny tensors do not queue for the counter. */
#define MOST_CHUNKS_PER_GRAB 16
/* Below this many elements a thread costs more than it brings. */
#define ELEMENTS_PER_THREAD (1 << 15)

typedef struct {
    double sum, sum_sq, sum_abs, min, max;
    int64_t zeros, near_zero, very_large, nan, inf, neg_inf;
} totals;

/* Thresholds as comparisons between floats: abs(x) < near_zero holds for a float x exactly when abs(x) < near32. */
typedef struct {
    float near32, large32;
    double near64, large64;
} limits;

static size_t element_size(enum gf_kind kind) {
    return kind == GF_FLOAT64 ? 8 : kind == GF_FLOAT32 ? 4 : 2;
}

static totals nothing(void) {
    totals t;
    memset(&t, 0, sizeof t);
    t.min = INFINITY;
    t.max = -INFINITY;
    return t;
}

static void merge(totals *into, const totals *other) {
    into->sum += other->sum;
    into->sum_sq += other->sum_sq;
    into->sum_abs += other->sum_abs;
    if (other->min < into->min) into->min = other->min;
    if (other->max > into->max) into->max = other->max;
    into->zeros += other->zeros;
    into->near_zero += other->near_zero;
    into->very_large += other->very_large;
    into->nan += other->nan;
    into->inf += other->inf;
    into->neg_inf += other->neg_inf;
}

/* Element by element: for blocks that hold a NaN or an Inf. Sums are over the finite elements. */
#define CAREFUL_BLOCK(NAME, TYPE, NEAR, LARGE)                                   \
    static totals NAME(const TYPE *x, size_t n, const limits *limit) {           \
        totals t = nothing();                                                    \
        for (size_t i = 0; i < n; i++) {                                         \
            const double value = x[i], size = fabs(value);                       \
            if (value != value) { t.nan++; continue; }                           \
            if (size > DBL_MAX) { t.inf++; t.neg_inf += value < 0; continue; }   \
            t.sum += value;                                                      \
            t.sum_sq += value * value;                                           \
            t.sum_abs += size;                                                   \
            if (value < t.min) t.min = value;                                    \
            if (value > t.max) t.max = value;                                    \
            t.zeros += value == 0;                                               \
            t.near_zero += size < limit->NEAR;                                   \
            t.very_large += size > limit->LARGE;                                 \
        }                                                                        \
        return t;                                                                \
    }
CAREFUL_BLOCK(careful_block_float, float, near32, large32)
CAREFUL_BLOCK(careful_block_double, double, near64, large64)

/* The hot loop. Sums are taken in double: float lanes drift when all elements are equal. Zeros and very large
   elements are rare in most blocks, so the loop only tracks the extremes and a block that has them is counted again. */
#define QUICK_BLOCK(NAME, TYPE, ABS, COUNTER, NEAR, LARGE, CAREFUL)                                       \
    static inline __attribute__((always_inline)) totals NAME(const TYPE *x, size_t n, const limits *limit) { \
        const TYPE near_limit = limit->NEAR, large_limit = limit->LARGE;                                  \
        double sum = 0, sum_sq = 0, sum_abs = 0;                                                          \
        TYPE low = INFINITY, high = -INFINITY, smallest = INFINITY;                                       \
        COUNTER near_zero = 0;                                                                            \
        _Pragma("omp simd reduction(+:sum,sum_sq,sum_abs,near_zero) reduction(min:low,smallest) reduction(max:high)") \
        for (size_t i = 0; i < n; i++) {                                                                  \
            const TYPE value = x[i], size = ABS(value);                                                   \
            const double wide = value;                                                                    \
            sum += wide;                                                                                  \
            sum_sq += wide * wide;                                                                        \
            sum_abs += fabs(wide);                                                                        \
            low = value < low ? value : low;                                                              \
            high = value > high ? value : high;                                                           \
            smallest = size < smallest ? size : smallest;                                                 \
            near_zero += size < near_limit;                                                               \
        }                                                                                                 \
        /* A NaN or an Inf shows in this sum; so does a finite overflow, which is merely counted again. */ \
        if (!(sum_abs <= DBL_MAX)) return CAREFUL(x, n, limit);                                           \
        totals t = nothing();                                                                             \
        t.sum = sum;                                                                                      \
        t.sum_sq = sum_sq;                                                                                \
        t.sum_abs = sum_abs;                                                                              \
        t.min = low;                                                                                      \
        t.max = high;                                                                                     \
        t.near_zero = near_zero;                                                                          \
        if (smallest == 0) {                                                                              \
            COUNTER zeros = 0;                                                                            \
            _Pragma("omp simd reduction(+:zeros)")                                                        \
            for (size_t i = 0; i < n; i++) zeros += x[i] == 0;                                            \
            t.zeros = zeros;                                                                              \
        }                                                                                                 \
        if (high > large_limit || -low > large_limit) {                                                   \
            COUNTER very_large = 0;                                                                       \
            _Pragma("omp simd reduction(+:very_large)")                                                   \
            for (size_t i = 0; i < n; i++) very_large += ABS(x[i]) > large_limit;                         \
            t.very_large = very_large;                                                                    \
        }                                                                                                 \
        return t;                                                                                         \
    }
QUICK_BLOCK(quick_block_float, float, fabsf, int32_t, near32, large32, careful_block_float)
QUICK_BLOCK(quick_block_double, double, fabs, int64_t, near64, large64, careful_block_double)

static inline __attribute__((always_inline)) void widen_bfloat16(const uint16_t *x, size_t n, float *wide) {
    uint32_t bits[BLOCK];
#pragma omp simd
    for (size_t i = 0; i < n; i++) bits[i] = (uint32_t)x[i] << 16;
    memcpy(wide, bits, n * sizeof *wide);
}

/* Shifting a half's bits into a float leaves its exponent 112 too small; one exact multiplication mends normal and
   subnormal numbers alike. NaN and Inf get the float's own all-ones exponent. */
static inline __attribute__((always_inline)) void widen_float16(const uint16_t *x, size_t n, float *wide) {
    uint32_t bits[BLOCK];
#pragma omp simd
    for (size_t i = 0; i < n; i++) bits[i] = (uint32_t)(x[i] & 0x7fff) << 13;
    memcpy(wide, bits, n * sizeof *wide);
#pragma omp simd
    for (size_t i = 0; i < n; i++) wide[i] *= 0x1p112f;
    memcpy(bits, wide, n * sizeof *wide);
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        const uint32_t sign = (uint32_t)(x[i] & 0x8000) << 16;
        const uint32_t special = (x[i] & 0x7c00) == 0x7c00 ? 0x7f800000u : 0;
        bits[i] |= sign | special;
    }
    memcpy(wide, bits, n * sizeof *wide);
}

static inline __attribute__((always_inline)) totals chunk_body(
    const void *data, enum gf_kind kind, size_t n, const limits *limit
) {
    totals t = nothing();
    float wide[BLOCK];
    for (size_t start = 0; start < n; start += BLOCK) {
        const size_t length = n - start < BLOCK ? n - start : BLOCK;
        totals block;
        if (kind == GF_FLOAT64) {
            block = quick_block_double((const double *)data + start, length, limit);
        } else if (kind == GF_FLOAT32) {
            block = quick_block_float((const float *)data + start, length, limit);
        } else {
            if (kind == GF_BFLOAT16) widen_bfloat16((const uint16_t *)data + start, length, wide);
            else widen_float16((const uint16_t *)data + start, length, wide);
            block = quick_block_float(wide, length, limit);
        }
        merge(&t, &block);
    }
    return t;
}

typedef totals (*chunk_function)(const void *, enum gf_kind, size_t, const limits *);

static totals chunk_baseline(const void *data, enum gf_kind kind, size_t n, const limits *limit) {
    return chunk_body(data, kind, n, limit);
}
#ifdef HAVE_X86
__attribute__((target("avx2,fma")))
static totals chunk_avx2(const void *data, enum gf_kind kind, size_t n, const limits *limit) {
    return chunk_body(data, kind, n, limit);
}
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma")))
static totals chunk_avx512(const void *data, enum gf_kind kind, size_t n, const limits *limit) {
    return chunk_body(data, kind, n, limit);
}
#endif

typedef struct {
    const char *name;
    chunk_function run;
} instruction_set;

static instruction_set best_instruction_set(void) {
#ifdef HAVE_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")
        && __builtin_cpu_supports("avx512vl"))
        return (instruction_set){"avx512", chunk_avx512};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return (instruction_set){"avx2", chunk_avx2};
#endif
    return (instruction_set){"baseline", chunk_baseline};
}

const char *gf_instruction_set(void) { return best_instruction_set().name; }

/* ---- threads -------------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t row;
    int64_t start;
    int64_t length;
} chunk;

typedef struct {
    const gf_tensor *tensors;
    const chunk *chunks;
    totals *results; /* one per chunk */
    int64_t chunk_count;
    int64_t next; /* first chunk that nobody has taken */
    int64_t grab; /* chunks to take at once */
    limits limit;
    chunk_function run;
} job;

/* A caller that flushes subnormals (torch.set_flush_denormal) must not change what we count. Each thread has a mode of
   its own: set on entry, given back on leaving. */
static unsigned keep_subnormals(void) {
#ifdef HAVE_X86
    const unsigned float_mode = _mm_getcsr();
    _mm_setcsr(float_mode & ~0x8040u);
    return float_mode;
#else
    return 0;
#endif
}

static void restore_float_mode(unsigned float_mode) {
#ifdef HAVE_X86
    _mm_setcsr(float_mode);
#else
    (void)float_mode;
#endif
}

static void work(void *argument) {
    job *j = argument;
    const unsigned float_mode = keep_subnormals();
    for (;;) {
        const int64_t first = __atomic_fetch_add(&j->next, j->grab, __ATOMIC_RELAXED);
        if (first >= j->chunk_count) break;
        const int64_t last = first + j->grab < j->chunk_count ? first + j->grab : j->chunk_count;
        for (int64_t i = first; i < last; i++) {
            const chunk *c = &j->chunks[i];
            const gf_tensor *tensor = &j->tensors[c->row];
            const char *data = (const char *)tensor->data + (size_t)c->start * element_size(tensor->kind);
            j->results[i] = j->run(data, tensor->kind, (size_t)c->length, &j->limit);
        }
    }
    restore_float_mode(float_mode);
}

typedef void (*openmp_parallel)(void (*)(void *), void *, unsigned, unsigned);

/* torch's workers spin for a while after each operation. Threads of our own would share cores with them; running on
   torch's pool makes them work for us instead. It is found by name, so nothing is linked and nothing is required. */
static openmp_parallel torch_pool(void) {
    union { void *address; openmp_parallel call; } symbol;
    symbol.address = dlsym(RTLD_DEFAULT, "GOMP_parallel");
    return symbol.call;
}

const char *gf_thread_pool(void) { return torch_pool() ? "openmp" : "pthreads"; }

static void *work_thread(void *argument) {
    work(argument);
    return NULL;
}

static void run_on_threads(job *j, int threads) {
    if (threads <= 1) {
        work(j);
        return;
    }
    const openmp_parallel parallel = torch_pool();
    if (parallel) {
        parallel(work, j, (unsigned)threads, 0);
        return;
    }
    pthread_t helpers[64];
    int started = 0;
    for (int wanted = threads - 1 < 64 ? threads - 1 : 64; started < wanted; started++)
        if (pthread_create(&helpers[started], NULL, work_thread, j) != 0) break;
    work(j);
    while (started > 0) pthread_join(helpers[--started], NULL);
}

/* ---- the call ------------------------------------------------------------------------------------------------- */

static float smallest_float_not_below(double limit) {
    float f = (float)limit;
    return (double)f < limit ? nextafterf(f, INFINITY) : f;
}

static float largest_float_not_above(double limit) {
    float f = (float)limit;
    return (double)f > limit ? nextafterf(f, -INFINITY) : f;
}

static void write_row(const totals *t, int64_t count, double *row) {
    row[GF_COUNT] = (double)count;
    row[GF_PARTS] = (double)(count - t->nan - t->inf);
    row[GF_SUM] = t->sum;
    row[GF_SUM_SQ] = t->sum_sq;
    row[GF_SUM_ABS] = t->sum_abs;
    row[GF_MIN] = t->min;
    row[GF_MAX] = t->max;
    row[GF_MAX_ABS] = t->min <= t->max ? (-t->min > t->max ? -t->min : t->max) : 0;
    row[GF_ZEROS] = (double)t->zeros;
    row[GF_NEAR_ZERO] = (double)t->near_zero;
    row[GF_VERY_LARGE] = (double)t->very_large;
    row[GF_NAN] = (double)t->nan;
    row[GF_INF] = (double)t->inf;
    row[GF_NEG_INF] = (double)t->neg_inf;
}

int gf_measure(const gf_tensor *tensors, int64_t tensor_count, gf_limits limit, int threads, double *rows) {
    int64_t chunk_count = 0, elements = 0;
    for (int64_t i = 0; i < tensor_count; i++) {
        chunk_count += (tensors[i].count + CHUNK - 1) / CHUNK;
        elements += tensors[i].count;
    }
    chunk *chunks = malloc((size_t)(chunk_count + 1) * sizeof *chunks);
    totals *results = malloc((size_t)(chunk_count + 1) * sizeof *results);
    if (!chunks || !results) {
        free(chunks);
        free(results);
        return -1;
    }
    int64_t made = 0;
    for (int64_t i = 0; i < tensor_count; i++)
        for (int64_t start = 0; start < tensors[i].count; start += CHUNK) {
            const int64_t left = tensors[i].count - start;
            chunks[made++] = (chunk){i, start, left < CHUNK ? left : CHUNK};
        }

    const unsigned float_mode = keep_subnormals();
    job j = {
        .tensors = tensors, .chunks = chunks, .results = results, .chunk_count = chunk_count, .next = 0,
        .limit = {smallest_float_not_below(limit.near_zero), largest_float_not_above(limit.very_large),
                  limit.near_zero, limit.very_large},
        .run = best_instruction_set().run,
    };
    const int64_t useful = elements / ELEMENTS_PER_THREAD + 1;
    const int used = threads < useful ? threads : (int)useful;
    const int64_t share = chunk_count / (8 * (used > 0 ? used : 1)) + 1;
    j.grab = share < MOST_CHUNKS_PER_GRAB ? share : MOST_CHUNKS_PER_GRAB;
    run_on_threads(&j, used);

    int64_t at = 0;
    for (int64_t i = 0; i < tensor_count; i++) {
        totals t = nothing();
        for (; at < chunk_count && chunks[at].row == i; at++) merge(&t, &results[at]);
        write_row(&t, tensors[i].count, rows + i * GF_COLUMNS);
    }
    restore_float_mode(float_mode);
    free(chunks);
    free(results);
    return 0;
}
