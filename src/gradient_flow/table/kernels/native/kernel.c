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
/* Bytes from here to what is asked of memory: a page, at whose end the processor's own foresight stops. To ask for what lies
   beyond a tensor does no harm. */
#define AHEAD 4096
#define LINE 64
/* Below this many elements a thread costs more than it brings. */
#define ELEMENTS_PER_THREAD (1 << 15)
#define MOST_THREADS 64

typedef struct {
    double sum, sum_sq, sum_abs, min, max;
    int64_t zeros, near_zero, very_large, nan, inf, neg_inf;
} totals;

/* Thresholds as comparisons between floats: abs(x) < near_zero holds for a float x exactly when abs(x) < near32. */
typedef struct {
    float near32, large32;
    double near64, large64;
} limits;

static inline __attribute__((always_inline)) void ask_for(const void *here, int line) {
    __builtin_prefetch((const void *)((uintptr_t)here + AHEAD + (uintptr_t)line * LINE));
}

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

/* Not -0, which -0 alone would make of it. */
static double largest_of(const totals *t) {
    return t->min <= t->max ? (-t->min > t->max ? -t->min : t->max > 0 ? t->max : 0) : 0;
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

/* A pair of 16-bit numbers is read as one word: its halves become floats by a mask or a shift, without a shuffle. */
static inline __attribute__((always_inline)) float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
static inline __attribute__((always_inline)) float upper_half(uint32_t pair) { return float_of(pair & 0xffff0000u); }
static inline __attribute__((always_inline)) float lower_half(uint32_t pair) { return float_of(pair << 16); }
static inline __attribute__((always_inline)) uint32_t pair_at(const uint16_t *x, size_t i) {
    uint32_t pair;
    memcpy(&pair, x + 2 * i, sizeof pair);
    return pair;
}

/* A loop over a block; ONE(value) takes one number. */
#define EACH(CLAUSES, ONE)                                                        \
    do {                                                                          \
        _Pragma(CLAUSES)                                                          \
        for (size_t i = 0; i < n; i++) ONE(x[i])                                  \
    } while (0)

#define TAKE_ALL(VALUE)                                                           \
    {                                                                             \
        const number value = (VALUE), size = ABS_OF(value);                       \
        const double wide = value;                                                \
        sum += wide;                                                              \
        sum_sq += wide * wide;                                                    \
        sum_abs += fabs(wide);                                                    \
        low = value < low ? value : low;                                          \
        high = value > high ? value : high;                                       \
        smallest = size < smallest ? size : smallest;                             \
    }
#define TAKE_ZERO(VALUE) zeros += (VALUE) == 0;
#define TAKE_NEAR(VALUE) near_zero += ABS_OF(VALUE) < near_limit;
#define TAKE_LARGE(VALUE) very_large += ABS_OF(VALUE) > large_limit;
#define TAKE_SIZE(VALUE)                                                          \
    {                                                                             \
        const number size = ABS_OF(VALUE);                                        \
        const double wide = size;                                                 \
        sum_sq += wide * wide;                                                    \
        sum_abs += wide;                                                          \
        high = size > high ? size : high;                                         \
    }

/* What the first look at a block finds. A NaN or an Inf shows in `sum_abs`. */
typedef struct {
    double sum, sum_sq, sum_abs, low, high, smallest; /* `smallest`: of the magnitudes */
} look;

/* The hot loop. Sums are taken in double: float lanes drift when all elements are equal. */
#define FIRST_LOOK(NAME, TYPE)                                                                               \
    static inline __attribute__((always_inline)) look NAME(const TYPE *x, size_t n) {                        \
        typedef TYPE number;                                                                                 \
        double sum = 0, sum_sq = 0, sum_abs = 0;                                                             \
        TYPE low = INFINITY, high = -INFINITY, smallest = INFINITY;                                          \
        EACH("omp simd reduction(+:sum,sum_sq,sum_abs) reduction(min:low,smallest) reduction(max:high)", TAKE_ALL); \
        return (look){sum, sum_sq, sum_abs, low, high, smallest};                                            \
    }
#define ABS_OF fabsf
FIRST_LOOK(look_at_floats, float)
#undef ABS_OF
#define ABS_OF fabs
FIRST_LOOK(look_at_doubles, double)
#undef ABS_OF

#ifdef HAVE_X86
/* The same by hand, because every operation counts. Of two numbers, |a| + |b| is the larger of |a + b| and |a - b|, to the
   last bit: five operations for both sums of a pair. `range` gives the smaller or larger magnitude, without its sign. */
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma")))
#define SMALLER_MAGNITUDE 10
#define LARGER_MAGNITUDE 11
typedef struct {
    __m512d sum, sum_sq, more_sq, sum_abs;
} sums512;

AVX512 static inline void add_pair(sums512 *t, __m512d a, __m512d b) {
    const __m512d both = _mm512_add_pd(a, b), apart = _mm512_sub_pd(a, b);
    t->sum = _mm512_add_pd(t->sum, both);
    t->sum_abs = _mm512_add_pd(t->sum_abs, _mm512_range_pd(both, apart, LARGER_MAGNITUDE));
    t->sum_sq = _mm512_fmadd_pd(a, a, t->sum_sq);
    t->more_sq = _mm512_fmadd_pd(b, b, t->more_sq);
}

AVX512 static inline look found_by(const sums512 *t, double low, double high, double smallest) {
    return (look){_mm512_reduce_add_pd(t->sum), _mm512_reduce_add_pd(_mm512_add_pd(t->sum_sq, t->more_sq)),
                  _mm512_reduce_add_pd(t->sum_abs), low, high, smallest};
}

/* Two vectors at a time, and the rest behind a mask. */
#define LOOK_AVX512(NAME, TYPE, VECTOR, LANES_OF, MASK, SUFFIX, ADD_BOTH, ADD_LEFT)                           \
    AVX512 static look NAME(const TYPE *x, size_t n) {                                                       \
        VECTOR low = _mm512_set1_##SUFFIX(INFINITY), high = _mm512_set1_##SUFFIX(-INFINITY), smallest = low; \
        sums512 t = {_mm512_setzero_pd(), _mm512_setzero_pd(), _mm512_setzero_pd(), _mm512_setzero_pd()};    \
        size_t i = 0;                                                                                        \
        for (; i + 2 * LANES_OF <= n; i += 2 * LANES_OF) {                                                   \
            const VECTOR a = _mm512_loadu_##SUFFIX(x + i), b = _mm512_loadu_##SUFFIX(x + i + LANES_OF);      \
            low = _mm512_min_##SUFFIX(low, _mm512_min_##SUFFIX(a, b));                                       \
            high = _mm512_max_##SUFFIX(high, _mm512_max_##SUFFIX(a, b));                                     \
            const VECTOR smaller = _mm512_range_##SUFFIX(a, b, SMALLER_MAGNITUDE);                           \
            smallest = _mm512_min_##SUFFIX(smallest, smaller);                                               \
            ask_for(x + i, 0);                                                                               \
            ask_for(x + i, 1);                                                                               \
            ADD_BOTH(&t, x + i);                                                                             \
        }                                                                                                    \
        for (; i < n; i += LANES_OF) {                                                                       \
            const MASK left = (MASK)(n - i < LANES_OF ? (1u << (n - i)) - 1 : (1u << LANES_OF) - 1);         \
            const VECTOR a = _mm512_maskz_loadu_##SUFFIX(left, x + i);                                       \
            low = _mm512_mask_min_##SUFFIX(low, left, low, a);                                               \
            high = _mm512_mask_max_##SUFFIX(high, left, high, a);                                            \
            smallest = _mm512_mask_range_##SUFFIX(smallest, left, smallest, a, SMALLER_MAGNITUDE);           \
            ADD_LEFT(&t, a);                                                                                 \
        }                                                                                                    \
        return found_by(&t, _mm512_reduce_min_##SUFFIX(low), _mm512_reduce_max_##SUFFIX(high),               \
                        _mm512_reduce_min_##SUFFIX(smallest));                                               \
    }
/* Floats are read again, because they can be loaded wide, where a vector of them would have to be taken apart. */
AVX512 static inline void add_floats(sums512 *t, const float *x) {
    for (int i = 0; i < 32; i += 16)
        add_pair(t, _mm512_cvtps_pd(_mm256_loadu_ps(x + i)), _mm512_cvtps_pd(_mm256_loadu_ps(x + i + 8)));
}
AVX512 static inline void add_doubles(sums512 *t, const double *x) {
    add_pair(t, _mm512_loadu_pd(x), _mm512_loadu_pd(x + 8));
}
AVX512 static inline void add_floats_left(sums512 *t, __m512 a) {
    add_pair(t, _mm512_cvtps_pd(_mm512_castps512_ps256(a)), _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1)));
}
AVX512 static inline void add_doubles_left(sums512 *t, __m512d a) { add_pair(t, a, _mm512_setzero_pd()); }
LOOK_AVX512(look_at_floats_avx512, float, __m512, 16, __mmask16, ps, add_floats, add_floats_left)
LOOK_AVX512(look_at_doubles_avx512, double, __m512d, 8, __mmask8, pd, add_doubles, add_doubles_left)
#else
#define look_at_floats_avx512 look_at_floats
#define look_at_doubles_avx512 look_at_doubles
#endif

/* Elements that are small or very large are rare in most blocks: the first look takes only the extremes, and a block that
   has them is counted again. */
#define QUICK_BLOCK(NAME, TYPE, COUNTER, NEAR, LARGE, CAREFUL, LOOK)                                         \
    static inline __attribute__((always_inline)) totals NAME(                                                \
        const TYPE *x, size_t n, const limits *limit, int has_avx512                                         \
    ) {                                                                                                      \
        const TYPE near_limit = limit->NEAR, large_limit = limit->LARGE;                                     \
        const look found = has_avx512 ? LOOK##_avx512(x, n) : LOOK(x, n);                                    \
        /* So does a finite overflow show, which is merely counted again. */                                 \
        if (!(found.sum_abs <= DBL_MAX)) return CAREFUL(x, n, limit);                                        \
        totals t = nothing();                                                                                \
        t.sum = found.sum;                                                                                   \
        t.sum_sq = found.sum_sq;                                                                             \
        t.sum_abs = found.sum_abs;                                                                           \
        t.min = found.low;                                                                                   \
        t.max = found.high;                                                                                  \
        if (found.smallest == 0) {                                                                           \
            COUNTER zeros = 0;                                                                               \
            EACH("omp simd reduction(+:zeros)", TAKE_ZERO);                                                  \
            t.zeros = zeros;                                                                                 \
        }                                                                                                    \
        if (found.smallest < near_limit) {                                                                   \
            COUNTER near_zero = 0;                                                                           \
            EACH("omp simd reduction(+:near_zero)", TAKE_NEAR);                                              \
            t.near_zero = near_zero;                                                                         \
        }                                                                                                    \
        if (largest_of(&t) > large_limit) {                                                                  \
            COUNTER very_large = 0;                                                                          \
            EACH("omp simd reduction(+:very_large)", TAKE_LARGE);                                            \
            t.very_large = very_large;                                                                       \
        }                                                                                                    \
        return t;                                                                                            \
    }                                                                                                        \
    /* The same for magnitudes alone: half the work. The largest is in `max`. */                             \
    static inline __attribute__((always_inline)) totals NAME##_sizes(const TYPE *x, size_t n, const limits *limit) { \
        typedef TYPE number;                                                                                 \
        double sum_sq = 0, sum_abs = 0;                                                                      \
        TYPE high = 0;                                                                                       \
        EACH("omp simd reduction(+:sum_sq,sum_abs) reduction(max:high)", TAKE_SIZE);                         \
        totals t = nothing();                                                                                \
        if (!(sum_abs <= DBL_MAX)) {                                                                         \
            t = CAREFUL(x, n, limit);                                                                        \
            t.max = largest_of(&t);                                                                          \
            return t;                                                                                        \
        }                                                                                                    \
        t.sum_sq = sum_sq;                                                                                   \
        t.sum_abs = sum_abs;                                                                                 \
        t.max = high;                                                                                        \
        return t;                                                                                            \
    }

/* Of floats, eight magnitudes and eight squares are added as floats, in a tree of three levels, and these sums as
   doubles: a norm is off by at most 2^-23, which is what a float tells anyway, and most of the conversions are gone.
   Returns 0 where squares would leave the range of a float. The eight are neighbouring groups of lanes, so that memory is
   read in order. */
#define LARGEST_FOR_FLOATS 0x1p55f
#define SMALLEST_FOR_FLOATS 0x1p-40f
#define LANES 16
static inline __attribute__((always_inline)) int sizes_in_floats(const float *x, size_t n, totals *t) {
    double squares[LANES] = {0}, sizes[LANES] = {0};
    float most[LANES] = {0};
    size_t done = 0;
    for (; done + 8 * LANES <= n; done += 8 * LANES) {
        const float *here = x + done;
        for (int line = 0; line < 8; line++) ask_for(here, line);
#pragma omp simd
        for (int i = 0; i < LANES; i++) {
            const float a = fabsf(here[i]), b = fabsf(here[i + LANES]), c = fabsf(here[i + 2 * LANES]),
                        d = fabsf(here[i + 3 * LANES]), e = fabsf(here[i + 4 * LANES]), f = fabsf(here[i + 5 * LANES]),
                        g = fabsf(here[i + 6 * LANES]), h = fabsf(here[i + 7 * LANES]);
            squares[i] += (double)(((a * a + b * b) + (c * c + d * d)) + ((e * e + f * f) + (g * g + h * h)));
            sizes[i] += (double)(((a + b) + (c + d)) + ((e + f) + (g + h)));
            const float ab = a > b ? a : b, cd = c > d ? c : d, ef = e > f ? e : f, gh = g > h ? g : h;
            const float first = ab > cd ? ab : cd, second = ef > gh ? ef : gh, larger = first > second ? first : second;
            most[i] = larger > most[i] ? larger : most[i];
        }
    }
    double sum_sq = 0, sum_abs = 0;
    float high = 0;
    for (int i = 0; i < LANES; i++) {
        sum_sq += squares[i];
        sum_abs += sizes[i];
        high = most[i] > high ? most[i] : high;
    }
    for (; done < n; done++) {
        const float size = fabsf(x[done]);
        sum_sq += (double)size * size;
        sum_abs += size;
        high = size > high ? size : high;
    }
    /* A NaN may be lost in the maximum, never in the sum. */
    if (!(sum_abs < LARGEST_FOR_FLOATS && high < LARGEST_FOR_FLOATS) || (high < SMALLEST_FOR_FLOATS && sum_abs != 0))
        return 0;
    *t = nothing();
    t->sum_sq = sum_sq;
    t->sum_abs = sum_abs;
    t->max = high;
    return 1;
}

#define ABS_OF fabsf
QUICK_BLOCK(quick_block_float, float, int32_t, near32, large32, careful_block_float, look_at_floats)
#undef ABS_OF
#define ABS_OF fabs
QUICK_BLOCK(quick_block_double, double, int64_t, near64, large64, careful_block_double, look_at_doubles)
#undef ABS_OF

static totals careful_block_bfloat16(const uint16_t *x, size_t n, const limits *limit) {
    float wide[BLOCK];
    for (size_t i = 0; i < n; i++) wide[i] = lower_half(x[i]);
    return careful_block_float(wide, n, limit);
}

/* Bits of bfloat16 are ordered as whole numbers: magnitudes as they are, numbers once those below 0 are turned round,
   which also turns them back. Twice as many of them as of floats go through an instruction. */
static inline __attribute__((always_inline)) int16_t magnitude(int16_t bits) { return bits & 0x7fff; }
static inline __attribute__((always_inline)) int16_t ordered(int16_t bits) { return bits ^ ((bits >> 15) & 0x7fff); }

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* How many of at most BLOCK elements have a magnitude from `first` to `last`, as bits. */
static inline __attribute__((always_inline)) int64_t magnitudes_within(const int16_t *x, size_t n, int first, int last) {
    int16_t found = 0;
    const int16_t from = (int16_t)first, to = (int16_t)last;
#pragma omp simd reduction(+:found)
    for (size_t i = 0; i < n; i++) found += magnitude(x[i]) >= from && magnitude(x[i]) <= to;
    return found;
}

static inline __attribute__((always_inline)) totals quick_block_bfloat16(const uint16_t *x, size_t n, const limits *limit) {
    double sum = 0, sum_sq = 0, sum_abs = 0, upper_sum = 0, upper_sq = 0, upper_abs = 0;
#pragma omp simd reduction(+:sum,sum_sq,sum_abs,upper_sum,upper_sq,upper_abs)
    for (size_t i = 0; i < n / 2; i++) {
        const uint32_t pair = pair_at(x, i);
        const double lower = lower_half(pair), upper = upper_half(pair);
        sum += lower;
        sum_sq += lower * lower;
        sum_abs += fabs(lower);
        upper_sum += upper;
        upper_sq += upper * upper;
        upper_abs += fabs(upper);
    }
    const double last = n % 2 ? lower_half(x[n - 1]) : 0;
    totals t = nothing();
    t.sum = sum + upper_sum + last;
    t.sum_sq = sum_sq + upper_sq + last * last;
    t.sum_abs = sum_abs + upper_abs + fabs(last);
    if (!(t.sum_abs <= DBL_MAX)) return careful_block_bfloat16(x, n, limit);

    const int16_t *bits = (const int16_t *)x;
    int16_t low = INT16_MAX, high = INT16_MIN, smallest = INT16_MAX;
#pragma omp simd reduction(min:low,smallest) reduction(max:high)
    for (size_t i = 0; i < n; i++) {
        const int16_t size = magnitude(bits[i]), place = ordered(bits[i]);
        low = place < low ? place : low;
        high = place > high ? place : high;
        smallest = size < smallest ? size : smallest;
    }
    t.min = lower_half((uint16_t)ordered(low));
    t.max = lower_half((uint16_t)ordered(high));
    if (smallest == 0) t.zeros = magnitudes_within(bits, n, 0, 0);
    /* The largest magnitude that is near zero, and the smallest that is very large. */
    const int near = limit->near32 > 0 ? (int)((bits_of(limit->near32) + 0xffffu) >> 16) - 1 : -1;
    if (smallest <= near) t.near_zero = magnitudes_within(bits, n, 0, near);
    const int large = limit->large32 < 0 ? 0 : (int)(bits_of(fabsf(limit->large32)) >> 16) + 1;
    if (largest_of(&t) > limit->large32) t.very_large = magnitudes_within(bits, n, large, INT16_MAX);
    return t;
}

static inline __attribute__((always_inline)) totals quick_block_bfloat16_sizes(
    const uint16_t *x, size_t n, const limits *limit
) {
    double sum_sq = 0, sum_abs = 0, upper_sq = 0, upper_abs = 0;
#pragma omp simd reduction(+:sum_sq,sum_abs,upper_sq,upper_abs)
    for (size_t i = 0; i < n / 2; i++) {
        const uint32_t pair = pair_at(x, i) & 0x7fff7fffu;
        const double lower = lower_half(pair), upper = upper_half(pair);
        sum_sq += lower * lower;
        sum_abs += lower;
        upper_sq += upper * upper;
        upper_abs += upper;
    }
    const double last = n % 2 ? fabsf(lower_half(x[n - 1])) : 0;
    totals t = nothing();
    t.sum_sq = sum_sq + upper_sq + last * last;
    t.sum_abs = sum_abs + upper_abs + last;
    if (!(t.sum_abs <= DBL_MAX)) {
        t = careful_block_bfloat16(x, n, limit);
        t.max = largest_of(&t);
        return t;
    }
    int16_t high = 0;
#pragma omp simd reduction(max:high)
    for (size_t i = 0; i < n; i++) high = magnitude((int16_t)x[i]) > high ? magnitude((int16_t)x[i]) : high;
    t.max = lower_half((uint16_t)high);
    return t;
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

#ifdef HAVE_X86
/* The same in one instruction, where the processor has it. */
__attribute__((target("avx2,f16c")))
static void widen_float16_f16c(const uint16_t *x, size_t n, float *wide) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(wide + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(x + i))));
    for (; i < n; i++) wide[i] = _cvtsh_ss(x[i]);
}
#else
#define widen_float16_f16c widen_float16
#endif

static inline __attribute__((always_inline)) totals chunk_body(
    const void *data, enum gf_kind kind, size_t n, const limits *limit, enum gf_what what, int has_f16c,
    int has_avx512
) {
    totals t = nothing();
    float wide[BLOCK];
    const int sizes = what == GF_SIZES;
    for (size_t start = 0; start < n; start += BLOCK) {
        const size_t length = n - start < BLOCK ? n - start : BLOCK;
        totals block;
        if (kind == GF_FLOAT64) {
            const double *x = (const double *)data + start;
            block = sizes ? quick_block_double_sizes(x, length, limit) : quick_block_double(x, length, limit, has_avx512);
        } else if (kind == GF_BFLOAT16) {
            const uint16_t *x = (const uint16_t *)data + start;
            block = sizes ? quick_block_bfloat16_sizes(x, length, limit) : quick_block_bfloat16(x, length, limit);
        } else {
            const float *x = (const float *)data + start;
            if (kind == GF_FLOAT16) {
                const uint16_t *halves = (const uint16_t *)data + start;
                if (has_f16c) widen_float16_f16c(halves, length, wide);
                else widen_float16(halves, length, wide);
                x = wide;
            }
            if (!sizes) block = quick_block_float(x, length, limit, has_avx512);
            else if (!sizes_in_floats(x, length, &block)) block = quick_block_float_sizes(x, length, limit);
        }
        merge(&t, &block);
    }
    return t;
}

typedef totals (*chunk_function)(const void *, enum gf_kind, size_t, const limits *, enum gf_what);

static totals chunk_baseline(const void *data, enum gf_kind kind, size_t n, const limits *limit, enum gf_what what) {
    return chunk_body(data, kind, n, limit, what, 0, 0);
}
#ifdef HAVE_X86
__attribute__((target("avx2,fma")))
static totals chunk_avx2(const void *data, enum gf_kind kind, size_t n, const limits *limit, enum gf_what what) {
    return chunk_body(data, kind, n, limit, what, 1, 0);
}
AVX512 static totals chunk_avx512(const void *data, enum gf_kind kind, size_t n, const limits *limit, enum gf_what what) {
    return chunk_body(data, kind, n, limit, what, 1, 1);
}
#endif

/* ---- exponents ------------------------------------------------------------------------------------------------ */

/* Counts of all exponents that a float has; several tables, because a count must not wait for the one before it. */
#define EXPONENTS 256
#define TABLES 4

static int64_t zeros_among(const void *data, enum gf_kind kind, size_t n) {
    int64_t zeros = 0;
    if (kind == GF_FLOAT64) {
        const double *x = data;
        for (size_t i = 0; i < n; i++) zeros += x[i] == 0;
    } else if (kind == GF_FLOAT32) {
        const float *x = data;
        for (size_t i = 0; i < n; i++) zeros += x[i] == 0;
    } else {
        const uint16_t *x = data;
        for (size_t i = 0; i < n; i++) zeros += (x[i] & 0x7fff) == 0;
    }
    return zeros;
}

/* As of a float: 0 for what is smaller than any normal one, 254 for what is larger, 255 for NaN and Inf. */
static unsigned exponent_of_double(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    const int field = (int)(bits >> 52 & 2047), exponent = field - 1023 + 127;
    return field == 2047 ? 255 : exponent < 0 ? 0 : exponent > 254 ? 254 : (unsigned)exponent;
}

static unsigned exponent_of_float16(uint16_t x) {
    const unsigned field = x >> 10 & 31, fraction = x & 0x3ff;
    if (field == 31) return 255;
    if (field) return field + 112;
    return fraction ? 134 - (unsigned)__builtin_clz(fraction) : 0; /* a subnormal: fraction * 2^-24 */
}

static void count_exponents(const void *data, enum gf_kind kind, size_t n, int32_t found[EXPONENTS]) {
    int32_t tables[TABLES][EXPONENTS];
    memset(tables, 0, sizeof tables);
    if (kind == GF_FLOAT32) {
        const uint32_t *x = data;
        for (size_t i = 0; i < n; i++) tables[i % TABLES][x[i] >> 23 & 255]++;
    } else if (kind == GF_BFLOAT16) {
        const uint16_t *x = data;
        for (size_t i = 0; i < n; i++) tables[i % TABLES][x[i] >> 7 & 255]++;
    } else if (kind == GF_FLOAT16) {
        const uint16_t *x = data;
        for (size_t i = 0; i < n; i++) tables[i % TABLES][exponent_of_float16(x[i])]++;
    } else {
        const double *x = data;
        for (size_t i = 0; i < n; i++) tables[i % TABLES][exponent_of_double(x[i])]++;
    }
    for (int e = 0; e < EXPONENTS; e++) {
        found[e] = 0;
        for (int t = 0; t < TABLES; t++) found[e] += tables[t][e];
    }
    if (found[0]) found[0] -= (int32_t)zeros_among(data, kind, n);
}

/* The bins of table/exponents.py: one for what is below the normal floats, one up to 2^-45, then one for each power of
   two, and one from 2^16 on. What is below the normal floats stays there whatever scale it is divided by. */
static int bin_of(int field, int shift) {
    const int exponent = field - 127 - shift;
    if (field == 0 || exponent < -126) return 0;
    if (exponent < -45) return 1;
    return exponent > 15 ? GF_BINS - 1 : exponent + 47;
}

static void add_bins(const void *data, enum gf_kind kind, size_t n, int shift, int64_t *bins) {
    int32_t found[EXPONENTS];
    int64_t here[GF_BINS] = {0};
    count_exponents(data, kind, n, found);
    for (int field = 0; field < EXPONENTS - 1; field++) here[bin_of(field, shift)] += found[field];
    /* Whole numbers: the order in which threads add them does not matter. */
    for (int bin = 0; bin < GF_BINS; bin++)
        if (here[bin]) __atomic_fetch_add(&bins[bin], here[bin], __ATOMIC_RELAXED);
}

typedef struct {
    const char *name;
    chunk_function run;
} instruction_set;

static instruction_set best_instruction_set(void) {
#ifdef HAVE_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")
        && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("f16c"))
        return (instruction_set){"avx512", chunk_avx512};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
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
    int64_t at; /* of its result: results are in the order of the tensors */
} chunk;

/* The chunks of one thread, a cache line for itself. */
typedef struct {
    int64_t next; /* first chunk that nobody has taken */
    int64_t end;
    char rest[LINE - 2 * sizeof(int64_t)];
} queue;

typedef struct {
    const gf_tensor *tensors;
    chunk *chunks; /* ordered by queue */
    totals *results; /* one per chunk */
    int64_t chunk_count;
    int64_t grab; /* chunks to take at once */
    int threads, arrived;
    queue *queues; /* one per thread */
    limits limit;
    enum gf_what what;
    chunk_function run;
    int64_t *bins; /* GF_BINS per tensor, or NULL where columns are wanted */
    int shift;
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

static void work_off(job *j, queue *q) {
    for (;;) {
        const int64_t first = __atomic_fetch_add(&q->next, j->grab, __ATOMIC_RELAXED);
        if (first >= q->end) break;
        const int64_t last = first + j->grab < q->end ? first + j->grab : q->end;
        for (int64_t i = first; i < last; i++) {
            const chunk *c = &j->chunks[i];
            const gf_tensor *tensor = &j->tensors[c->row];
            const char *data = (const char *)tensor->data + (size_t)c->start * element_size(tensor->kind);
            const size_t n = (size_t)c->length;
            if (j->bins) add_bins(data, tensor->kind, n, j->shift, j->bins + c->row * GF_BINS);
            else j->results[c->at] = j->run(data, tensor->kind, n, &j->limit, j->what);
        }
    }
}

static int thread_number(job *j);

/* Each thread works off its own queue, and then what is left of the others. */
static void work(void *argument) {
    job *j = argument;
    const unsigned float_mode = keep_subnormals();
    const int me = thread_number(j);
    for (int i = 0; i < j->threads; i++) work_off(j, &j->queues[(me + i) % j->threads]);
    restore_float_mode(float_mode);
}

typedef void (*openmp_parallel)(void (*)(void *), void *, unsigned, unsigned);

/* torch's workers spin for a while after each operation. Threads of our own would share cores with them; running on
   torch's pool makes them work for us instead. It is found by name, so nothing is linked and nothing is required; looked
   for until it is there, because torch may be imported later than we are, and then kept: it takes longer than a small
   tensor. */
static void *found_by_name(void **known, const char *name) {
    void *address = __atomic_load_n(known, __ATOMIC_RELAXED);
    if (!address) {
        address = dlsym(RTLD_DEFAULT, name);
        __atomic_store_n(known, address, __ATOMIC_RELAXED);
    }
    return address;
}

static openmp_parallel torch_pool(void) {
    static void *known;
    union { void *address; openmp_parallel call; } symbol = {found_by_name(&known, "GOMP_parallel")};
    return symbol.call;
}

/* The number of this thread in torch's pool, or the next that is free. */
static int thread_number(job *j) {
    static void *known;
    union { void *address; int (*call)(void); } symbol = {found_by_name(&known, "omp_get_thread_num")};
    if (j->threads == 1) return 0;
    return (symbol.address ? symbol.call() : __atomic_fetch_add(&j->arrived, 1, __ATOMIC_RELAXED)) % j->threads;
}

const char *gf_thread_pool(void) { return torch_pool() ? "openmp" : "pthreads"; }

static void *work_thread(void *argument) {
    work(argument);
    return NULL;
}

static void run_on_threads(job *j) {
    if (j->threads == 1) {
        work(j);
        return;
    }
    const openmp_parallel parallel = torch_pool();
    if (parallel) {
        parallel(work, j, (unsigned)j->threads, 0);
        return;
    }
    pthread_t helpers[MOST_THREADS];
    int started = 0;
    for (; started < j->threads - 1; started++)
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

static void write_row(const totals *t, int64_t count, enum gf_what what, double *row) {
    const int all = what == GF_ALL;
    row[GF_COUNT] = (double)count;
    row[GF_PARTS] = (double)(count - t->nan - t->inf);
    row[GF_SUM] = all ? t->sum : NAN;
    row[GF_SUM_SQ] = t->sum_sq;
    row[GF_SUM_ABS] = t->sum_abs;
    row[GF_MIN] = all ? t->min : NAN;
    row[GF_MAX] = all ? t->max : NAN;
    row[GF_MAX_ABS] = all ? largest_of(t) : t->max > 0 ? t->max : 0;
    row[GF_ZEROS] = all ? (double)t->zeros : NAN;
    row[GF_NEAR_ZERO] = all ? (double)t->near_zero : NAN;
    row[GF_VERY_LARGE] = all ? (double)t->very_large : NAN;
    row[GF_NAN] = (double)t->nan;
    row[GF_INF] = (double)t->inf;
    row[GF_NEG_INF] = (double)t->neg_inf;
}

static int64_t chunks_in(const gf_tensor *tensors, int64_t tensor_count, int64_t *elements) {
    int64_t chunks = 0;
    *elements = 0;
    for (int64_t i = 0; i < tensor_count; i++) {
        chunks += (tensors[i].count + CHUNK - 1) / CHUNK;
        *elements += tensors[i].count;
    }
    return chunks;
}

/* Which thread is given a chunk, the `at`th of all. torch gives each thread a part of every large tensor, in order, so that
   it lies in the cache of that thread's core, which reads it fastest. Small tensors are handed out in order. */
static int queue_of(const job *j, int64_t number, int64_t of_tensor, int64_t at) {
    if (j->threads == 1) return 0;
    if (of_tensor >= j->threads) return (int)(number * j->threads / of_tensor);
    return (int)(at * j->threads / j->chunk_count);
}

/* Cuts the tensors into chunks: those of the first queue, then those of the second ... */
static void cut(job *j, int64_t tensor_count, int fill) {
    int64_t at = 0;
    for (int64_t i = 0; i < tensor_count; i++) {
        const int64_t count = j->tensors[i].count, chunks = (count + CHUNK - 1) / CHUNK;
        for (int64_t number = 0; number < chunks; number++, at++) {
            queue *q = &j->queues[queue_of(j, number, chunks, at)];
            const int64_t start = number * CHUNK, left = count - start;
            if (fill) j->chunks[q->end] = (chunk){i, start, left < CHUNK ? left : CHUNK, at};
            q->end++;
        }
    }
}

/* Works off the tensors of a job. -1 when memory for the chunks could not be had. */
static int run(job *j, int64_t tensor_count, int64_t elements, int threads) {
    j->chunks = malloc((size_t)(j->chunk_count + 1) * sizeof *j->chunks);
    if (!j->chunks) return -1;
    const int64_t useful = elements / ELEMENTS_PER_THREAD + 1;
    const int most = threads < MOST_THREADS ? threads : MOST_THREADS, used = most < useful ? most : (int)useful;
    j->threads = used > 0 ? used : 1;
    const int64_t share = j->chunk_count / (8 * j->threads) + 1;
    j->grab = share < MOST_CHUNKS_PER_GRAB ? share : MOST_CHUNKS_PER_GRAB;
    queue queues[MOST_THREADS];
    memset(queues, 0, (size_t)j->threads * sizeof *queues);
    j->queues = queues;
    cut(j, tensor_count, 0); /* how many are in each queue */
    int64_t before = 0;
    for (int i = 0; i < j->threads; i++) {
        queue *q = &j->queues[i];
        const int64_t length = q->end;
        q->next = q->end = before;
        before += length;
    }
    cut(j, tensor_count, 1);
    run_on_threads(j);
    free(j->chunks);
    return 0;
}

int gf_measure(const gf_tensor *tensors, int64_t tensor_count, gf_limits limit, enum gf_what what, int threads,
               double *rows) {
    int64_t elements;
    const int64_t chunk_count = chunks_in(tensors, tensor_count, &elements);
    totals *results = malloc((size_t)(chunk_count + 1) * sizeof *results);
    if (!results) return -1;
    const unsigned float_mode = keep_subnormals();
    job j = {
        .tensors = tensors, .results = results, .chunk_count = chunk_count, .what = what,
        .limit = {smallest_float_not_below(limit.near_zero), largest_float_not_above(limit.very_large),
                  limit.near_zero, limit.very_large},
        .run = best_instruction_set().run,
    };
    const int status = run(&j, tensor_count, elements, threads);
    int64_t at = 0;
    for (int64_t i = 0; i < tensor_count && !status; i++) {
        totals t = nothing();
        for (int64_t left = tensors[i].count; left > 0; left -= CHUNK) merge(&t, &results[at++]);
        write_row(&t, tensors[i].count, what, rows + i * GF_COLUMNS);
    }
    restore_float_mode(float_mode);
    free(results);
    return status;
}

int gf_exponents(const gf_tensor *tensors, int64_t tensor_count, int shift, int threads, int64_t *bins) {
    int64_t elements;
    memset(bins, 0, (size_t)tensor_count * GF_BINS * sizeof *bins);
    job j = {.tensors = tensors, .chunk_count = chunks_in(tensors, tensor_count, &elements), .bins = bins, .shift = shift};
    return run(&j, tensor_count, elements, threads);
}

/* Not reordered: NumPy, which serves where this kernel does not, adds row after row, and gives the same bits. */
__attribute__((optimize("no-associative-math")))
void gf_total(const double *rows, int64_t count, double *total) {
    for (int column = 0; column < GF_COLUMNS; column++) total[column] = 0;
    total[GF_MIN] = INFINITY;
    total[GF_MAX] = -INFINITY;
    for (int64_t i = 0; i < count; i++) {
        const double *row = rows + i * GF_COLUMNS;
        for (int column = 0; column < GF_COLUMNS; column++) {
            const double value = row[column];
            if (column == GF_MIN) total[column] = value < total[column] || value != value ? value : total[column];
            else if (column == GF_MAX || column == GF_MAX_ABS)
                total[column] = value > total[column] || value != value ? value : total[column];
            else total[column] += value;
        }
    }
}
