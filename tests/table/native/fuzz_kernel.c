/* Holds gf_measure, gf_exponents and gf_sample to a reference that is slow and plain: one element at a time, decoded with ldexp, compared in
   double, summed in long double. Every tensor has memory of its exact size, so that a read past its end is seen: by the
   address sanitizer or, for vector code, which sanitizers do not let the compiler make, by a page that may not be read.

   Usage: fuzz_kernel [seed] [all|threads|flushed]
     all      every count up to 3000, counts around a thread's unit of work, every 16-bit pattern, many small tensors
     threads  only calls large enough to be shared between threads
     flushed  many small tensors, while the caller has the processor flush subnormals to zero (x86 only) */
#include "kernel.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __SSE2__
#include <immintrin.h>
#endif

_Static_assert(LDBL_MAX_EXP > DBL_MAX_EXP, "sums of doubles may overflow: the reference needs a wider long double");

#ifdef __SANITIZE_ADDRESS__
#define ADDRESS_SANITIZER 1
#else
#define ADDRESS_SANITIZER 0
#endif

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

static const char *const COLUMN_NAMES[GF_COLUMNS] = {
    "count", "parts", "sum", "sum_sq", "sum_abs", "min", "max", "max_abs",
    "zeros", "near_zero", "very_large", "nan", "inf", "neg_inf",
};
/* 0 means the caller alone; 200 is more than the kernel has room for. */
static const int THREADS[] = {1, 2, 3, 8, 0, 200};
/* Calls with fewer elements are many: they are tried with two of these numbers instead of all. */
#define SMALL_CALL (1 << 14)
static const double NEAR_ZERO[] = {
    1e-7, 0, 0x1p-1074, 1e-320, 0x1p-149, 1e-40, 0x1p-24, 1e3, FLT_MAX, 1e300, INFINITY, NAN, -1,
};
static const double VERY_LARGE[] = {
    1e3, 0, 0x1p-1074, 1e-320, 1e-40, 1e-7, 65504, FLT_MAX, 1e300, DBL_MAX, INFINITY, NAN, -1,
};

static uint64_t seed = 1;
static int flush_subnormals = 0;
static int64_t calls = 0, elements = 0;

/* ---- random numbers (splitmix64) ------------------------------------------------------------------------------- */

static uint64_t random_state;

static uint64_t random_bits(void) {
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int64_t random_below(int64_t limit) { return (int64_t)(random_bits() % (uint64_t)limit); }

/* Between -1 and 1. */
static double random_number(void) { return ldexp((double)(random_bits() >> 11), -52) - 1; }

/* ---- the four kinds as bits ------------------------------------------------------------------------------------ */

typedef struct {
    const char *name;
    int bytes, exponent_bits, fraction_bits;
} layout;

static const layout LAYOUTS[GF_KINDS] = {
    [GF_FLOAT32] = {"float32", 4, 8, 23},
    [GF_FLOAT64] = {"float64", 8, 11, 52},
    [GF_BFLOAT16] = {"bfloat16", 2, 8, 7},
    [GF_FLOAT16] = {"float16", 2, 5, 10},
};

static uint64_t ones(int bits) { return ((uint64_t)1 << bits) - 1; }

static int bias(const layout *kind) { return (int)ones(kind->exponent_bits - 1); }

/* One bit more is a NaN, one less the largest finite number. */
static uint64_t infinity_bits(const layout *kind) { return ones(kind->exponent_bits) << kind->fraction_bits; }

static uint64_t sign_bit(const layout *kind) { return (uint64_t)1 << (8 * kind->bytes - 1); }

static double decode(const layout *kind, uint64_t bits) {
    const uint64_t fraction = bits & ones(kind->fraction_bits), leading_one = ones(kind->fraction_bits) + 1;
    const int exponent = (int)(bits >> kind->fraction_bits & ones(kind->exponent_bits));
    const int shift = bias(kind) + kind->fraction_bits;
    double size;
    if (exponent == (int)ones(kind->exponent_bits)) size = fraction ? NAN : INFINITY;
    else if (exponent == 0) size = ldexp((double)fraction, 1 - shift);
    else size = ldexp((double)(leading_one + fraction), exponent - shift);
    return bits & sign_bit(kind) ? -size : size;
}

/* Rounds towards zero. */
static uint64_t encode(const layout *kind, double value) {
    const uint64_t sign = signbit(value) ? sign_bit(kind) : 0, infinity = infinity_bits(kind);
    if (isnan(value)) return sign | (infinity + 1);
    if (isinf(value)) return sign | infinity;
    if (value == 0) return sign;
    int exponent;
    const double half_to_one = frexp(fabs(value), &exponent);
    const int field = exponent - 1 + bias(kind);
    if (field >= (int)ones(kind->exponent_bits)) return sign | (infinity - 1);
    if (field <= 0) return sign | (uint64_t)ldexp(fabs(value), bias(kind) - 1 + kind->fraction_bits);
    return sign | (uint64_t)field << kind->fraction_bits | (uint64_t)ldexp(2 * half_to_one - 1, kind->fraction_bits);
}

static uint64_t get(const gf_tensor *tensor, int64_t i) {
    switch (LAYOUTS[tensor->kind].bytes) {
    case 2: return ((const uint16_t *)tensor->data)[i];
    case 4: return ((const uint32_t *)tensor->data)[i];
    default: return ((const uint64_t *)tensor->data)[i];
    }
}

static void set(gf_tensor *tensor, int64_t i, uint64_t bits) {
    switch (LAYOUTS[tensor->kind].bytes) {
    case 2: ((uint16_t *)tensor->data)[i] = (uint16_t)bits; break;
    case 4: ((uint32_t *)tensor->data)[i] = (uint32_t)bits; break;
    default: ((uint64_t *)tensor->data)[i] = bits;
    }
}

/* ---- the reference --------------------------------------------------------------------------------------------- */

typedef struct {
    double exact[GF_COLUMNS]; /* all columns but the sums */
    long double sum, sum_sq, sum_abs;
} expectation;

static expectation expect(const gf_tensor *tensor, gf_limits limits) {
    expectation e;
    memset(&e, 0, sizeof e);
    double *row = e.exact;
    row[GF_MIN] = INFINITY;
    row[GF_MAX] = -INFINITY;
    for (int64_t i = 0; i < tensor->count; i++) {
        const double value = decode(&LAYOUTS[tensor->kind], get(tensor, i)), size = fabs(value);
        row[GF_COUNT] += 1;
        if (isnan(value)) {
            row[GF_NAN] += 1;
        } else if (isinf(value)) {
            row[GF_INF] += 1;
            row[GF_NEG_INF] += value < 0;
        } else {
            row[GF_PARTS] += 1;
            e.sum += value;
            e.sum_sq += (long double)value * value;
            e.sum_abs += size;
            if (value < row[GF_MIN]) row[GF_MIN] = value;
            if (value > row[GF_MAX]) row[GF_MAX] = value;
            if (size > row[GF_MAX_ABS]) row[GF_MAX_ABS] = size;
            row[GF_ZEROS] += value == 0;
            row[GF_NEAR_ZERO] += size < limits.near_zero;
            row[GF_VERY_LARGE] += size > limits.very_large;
        }
    }
    return e;
}

/* A sum that a double cannot hold must be infinite. */
static int close_enough(double found, long double expected, long double allowed) {
    if (isinf(found)) return fabsl(expected) + allowed > DBL_MAX && (found > 0) == (expected > 0);
    return fabsl(found - expected) <= allowed;
}

static long double expected_value(const expectation *e, int column) {
    switch (column) {
    case GF_SUM: return e->sum;
    case GF_SUM_SQ: return e->sum_sq;
    case GF_SUM_ABS: return e->sum_abs;
    default: return e->exact[column];
    }
}

static const long double IN_DOUBLES = 1e-12L;
/* A square, and three levels of a tree of sums, each rounded to a float. */
static const long double IN_FLOATS = 4 * 0x1p-24L;

static int agrees(const expectation *e, int column, double found, long double tolerance) {
    switch (column) {
    case GF_SUM:
        /* Where magnitudes overflow, terms of both signs may meet as inf - inf: only their order decides. */
        if (e->sum_abs * (1 + tolerance) > DBL_MAX && fabsl(e->sum) < e->sum_abs) return 1;
        return close_enough(found, e->sum, tolerance * e->sum_abs);
    case GF_SUM_SQ:
        /* Squares below the smallest double are lost one by one. */
        return close_enough(found, e->sum_sq, tolerance * e->sum_sq + (long double)e->exact[GF_PARTS] * 0x1p-1074L);
    case GF_SUM_ABS:
        return close_enough(found, e->sum_abs, tolerance * e->sum_abs);
    default:
        return found == e->exact[column];
    }
}

/* ---- one call and its check ------------------------------------------------------------------------------------ */

static void *allocate(size_t bytes) {
    void *memory = calloc(1, bytes);
    if (!memory && bytes) {
        fprintf(stderr, "fuzz_kernel: no memory for %zu bytes\n", bytes);
        exit(2);
    }
    return memory;
}

static void fail(const gf_tensor *tensors, int64_t tensor, gf_limits limits, int threads, int column, double found,
                 long double expected) {
    fprintf(stderr,
            "fuzz_kernel: seed %" PRIu64 ", call %" PRId64 ", %s, %d threads%s: tensor %" PRId64 " (%s, %" PRId64
            " elements), near_zero %.17g, very_large %.17g: %s is %.17g, should be %.21Lg\n",
            seed, calls, gf_instruction_set(), threads, flush_subnormals ? ", subnormals flushed" : "", tensor,
            LAYOUTS[tensors[tensor].kind].name, tensors[tensor].count, limits.near_zero, limits.very_large,
            COLUMN_NAMES[column], found, expected);
    exit(1);
}

static double *measure(const gf_tensor *tensors, int64_t count, gf_limits limits, enum gf_what what, int threads) {
    const size_t bytes = (size_t)count * GF_COLUMNS * sizeof(double);
    double *rows = allocate(bytes);
    if (bytes) memset(rows, 0xa5, bytes);
#ifdef __SSE2__
    const unsigned float_mode = _mm_getcsr();
    if (flush_subnormals) _mm_setcsr(float_mode | 0x8040u);
#endif
    const int status = gf_measure(tensors, count, limits, what, threads, rows);
#ifdef __SSE2__
    _mm_setcsr(float_mode);
#endif
    calls++;
    for (int64_t i = 0; i < count; i++) elements += tensors[i].count;
    if (status) {
        fprintf(stderr, "fuzz_kernel: seed %" PRIu64 ", call %" PRId64 ": returned %d\n", seed, calls, status);
        exit(1);
    }
    return rows;
}

/* Magnitudes alone: what does not follow from them is NaN. */
static void check_sizes(const gf_tensor *tensors, int64_t count, gf_limits limits, int threads) {
    double *rows = measure(tensors, count, limits, GF_SIZES, threads);
    for (int64_t i = 0; i < count; i++) {
        const expectation e = expect(&tensors[i], limits);
        const int wide = tensors[i].kind == GF_FLOAT64 || tensors[i].kind == GF_BFLOAT16;
        const long double tolerance = wide ? IN_DOUBLES : IN_FLOATS;
        for (int column = 0; column < GF_COLUMNS; column++) {
            const double found = rows[i * GF_COLUMNS + column];
            const int left_out = column == GF_SUM || column == GF_MIN || column == GF_MAX || column == GF_ZEROS
                                 || column == GF_NEAR_ZERO || column == GF_VERY_LARGE;
            if (left_out ? !isnan(found) : !agrees(&e, column, found, tolerance))
                fail(tensors, i, limits, threads, column, found, left_out ? NAN : expected_value(&e, column));
        }
    }
    free(rows);
}

static int expected_bin(double size, int shift) {
    int exponent;
    if (size < FLT_MIN) return 0; /* whatever it is divided by */
    if (size > FLT_MAX) size = FLT_MAX;
    frexp(size, &exponent);
    exponent -= 1 + shift;
    return exponent < -126 ? 0 : exponent < -45 ? 1 : exponent > 15 ? GF_BINS - 1 : exponent + 47;
}

static void check_exponents(const gf_tensor *tensors, int64_t count, int threads) {
    const int shift = (int)random_below(41) - 20;
    int64_t *bins = allocate((size_t)(count + 1) * GF_BINS * sizeof *bins);
#ifdef __SSE2__
    const unsigned float_mode = _mm_getcsr();
    if (flush_subnormals) _mm_setcsr(float_mode | 0x8040u);
#endif
    const int status = gf_exponents(tensors, count, shift, threads, bins);
#ifdef __SSE2__
    _mm_setcsr(float_mode);
#endif
    calls++;
    for (int64_t i = 0; i < count; i++) {
        int64_t expected[GF_BINS] = {0};
        for (int64_t at = 0; at < tensors[i].count; at++) {
            const double size = fabs(decode(&LAYOUTS[tensors[i].kind], get(&tensors[i], at)));
            if (isfinite(size) && size > 0) expected[expected_bin(size, shift)]++;
        }
        for (int bin = 0; bin < GF_BINS; bin++)
            if (status || bins[i * GF_BINS + bin] != expected[bin]) {
                fprintf(stderr,
                        "fuzz_kernel: seed %" PRIu64 ", call %" PRId64 ", %d threads, shift %d: tensor %" PRId64
                        " (%s, %" PRId64 " elements): bin %d has %" PRId64 ", should have %" PRId64 "\n",
                        seed, calls, threads, shift, i, LAYOUTS[tensors[i].kind].name, tensors[i].count, bin,
                        bins[i * GF_BINS + bin], expected[bin]);
                exit(1);
            }
    }
    free(bins);
}

/* Whether `run` values are those of as many neighbours, the first of them at `first`. */
static int is_run_at(const gf_tensor *tensor, int64_t first, int64_t run, const double *values) {
    for (int64_t i = 0; i < run; i++) {
        const double expected = decode(&LAYOUTS[tensor->kind], get(tensor, first + i));
        if (isnan(expected) ? !isnan(values[i]) : values[i] != expected) return 0;
    }
    return 1;
}

/* All elements of a small tensor; of a larger one a run of neighbours from somewhere in each of its equal stretches. */
static void check_samples(const gf_tensor *tensors, int64_t count) {
    const int64_t run = 1 + random_below(8), most = run * (1 + random_below(40));
    int64_t room = 0;
    for (int64_t i = 0; i < count; i++) room += gf_sampled(tensors[i].count, most);
    double *values = allocate((size_t)room * sizeof *values);
#ifdef __SSE2__
    const unsigned float_mode = _mm_getcsr();
    if (flush_subnormals) _mm_setcsr(float_mode | 0x8040u);
#endif
    gf_sample(tensors, count, most, run, values);
#ifdef __SSE2__
    _mm_setcsr(float_mode);
#endif
    calls++;
    const double *here = values;
    for (int64_t i = 0; i < count; i++) {
        const gf_tensor *tensor = &tensors[i];
        const int whole = tensor->count <= most;
        const int64_t runs = whole ? 1 : most / run, length = whole ? tensor->count : run, stretch = tensor->count / runs;
        for (int64_t k = 0; k < runs; k++, here += length) {
            int64_t first = k * stretch;
            while (first + length <= (k + 1) * stretch && !is_run_at(tensor, first, length, here)) first++;
            if (first + length <= (k + 1) * stretch) continue;
            fprintf(stderr,
                    "fuzz_kernel: seed %" PRIu64 ", call %" PRId64 "%s: tensor %" PRId64 " (%s, %" PRId64
                    " elements): run %" PRId64 " of %" PRId64 " samples is not in its stretch\n",
                    seed, calls, flush_subnormals ? ", subnormals flushed" : "", i, LAYOUTS[tensor->kind].name,
                    tensor->count, k, most);
            exit(1);
        }
    }
    free(values);
}

static void check(const gf_tensor *tensors, int64_t count, gf_limits limits) {
    double *rows = measure(tensors, count, limits, GF_ALL, THREADS[0]);
    for (int64_t i = 0; i < count; i++) {
        const expectation e = expect(&tensors[i], limits);
        for (int column = 0; column < GF_COLUMNS; column++) {
            const double found = rows[i * GF_COLUMNS + column];
            if (!agrees(&e, column, found, IN_DOUBLES))
                fail(tensors, i, limits, THREADS[0], column, found, expected_value(&e, column));
        }
    }
    int64_t size = 0;
    for (int64_t i = 0; i < count; i++) size += tensors[i].count;
    const int turn = 1 + (int)random_below(LENGTH(THREADS) - 1);
    if (random_below(2)) check_sizes(tensors, count, limits, THREADS[turn]);
    else check_exponents(tensors, count, THREADS[turn]);
    check_samples(tensors, count);
    for (int t = 1; t < LENGTH(THREADS); t++) {
        if (size < SMALL_CALL && t != turn) continue;
        double *again = measure(tensors, count, limits, GF_ALL, THREADS[t]);
        for (int64_t at = 0; at < count * GF_COLUMNS; at++)
            if (memcmp(&rows[at], &again[at], sizeof *rows) != 0)
                fail(tensors, at / GF_COLUMNS, limits, THREADS[t], (int)(at % GF_COLUMNS), again[at], rows[at]);
        free(again);
    }
    free(rows);
}

/* ---- made-up tensors ------------------------------------------------------------------------------------------- */

enum style { ORDINARY, CONSTANT, SPARSE, ANY_BITS, PLANTED, AT_LIMITS, SUBNORMAL, HUGE_NUMBERS, NOT_FINITE, STYLES };

static uint64_t random_sign(const layout *kind) { return random_bits() & sign_bit(kind); }

/* Zero, the ends of the subnormal, normal and infinite ranges, a signalling and a quiet NaN. */
static uint64_t special_bits(const layout *kind) {
    const uint64_t infinity = infinity_bits(kind), smallest_normal = ones(kind->fraction_bits) + 1;
    const uint64_t all[] = {0, 1, smallest_normal - 1, smallest_normal, infinity - 1, infinity, infinity + 1,
                            infinity + smallest_normal / 2};
    return random_sign(kind) | all[random_below(LENGTH(all))];
}

/* A limit, or the number next to it. Next to nothing is below zero: those bits wrap around to a NaN. */
static uint64_t bits_at_limit(const layout *kind, gf_limits limits) {
    const double limit = random_below(2) ? limits.near_zero : limits.very_large;
    return random_sign(kind) ^ (encode(kind, limit) + (uint64_t)random_below(3) - 1);
}

static uint64_t element(const layout *kind, enum style style, double scale, gf_limits limits) {
    const uint64_t infinity = infinity_bits(kind), fraction = random_bits() & ones(kind->fraction_bits);
    switch (style) {
    case CONSTANT: return encode(kind, scale);
    case SPARSE: return random_below(8) ? random_sign(kind) : encode(kind, scale * random_number());
    case ANY_BITS: return random_bits();
    case PLANTED: return random_below(200) ? encode(kind, scale * random_number()) : special_bits(kind);
    case AT_LIMITS: return bits_at_limit(kind, limits);
    case SUBNORMAL: return random_sign(kind) | fraction;
    case HUGE_NUMBERS: return random_sign(kind) | (infinity - 1 - fraction);
    case NOT_FINITE: return random_sign(kind) | infinity | (random_below(2) ? fraction : 0);
    default: return encode(kind, scale * random_number());
    }
}

static gf_tensor allocate_tensor(enum gf_kind kind, int64_t count) {
    /* Tensors without elements come with and without an address. */
    void *data = count || random_below(2) ? allocate((size_t)count * (size_t)LAYOUTS[kind].bytes) : NULL;
    return (gf_tensor){data, count, kind};
}

static gf_tensor make_tensor(enum gf_kind kind, int64_t count, enum style style, gf_limits limits) {
    gf_tensor tensor = allocate_tensor(kind, count);
    const double scale = random_number() * ldexp(1, (int)random_below(60) - 40);
    for (int64_t i = 0; i < count; i++) set(&tensor, i, element(&LAYOUTS[kind], style, scale, limits));
    if (style == PLANTED && count) {
        set(&tensor, 0, special_bits(&LAYOUTS[kind]));
        set(&tensor, count - 1, special_bits(&LAYOUTS[kind]));
    }
    return tensor;
}

static void free_tensors(gf_tensor *tensors, int64_t count) {
    for (int64_t i = 0; i < count; i++) free((void *)tensors[i].data);
    free(tensors);
}

static gf_limits random_limits(void) {
    return (gf_limits){NEAR_ZERO[random_below(LENGTH(NEAR_ZERO))], VERY_LARGE[random_below(LENGTH(VERY_LARGE))]};
}

static enum style random_style(void) { return (enum style)random_below(STYLES); }

/* The magnitude of some element, or the double next to it, which is no float: the sharpest limit there is. */
static double limit_from(const gf_tensor *tensor, double otherwise) {
    if (!tensor->count || random_below(2)) return otherwise;
    const double size = fabs(decode(&LAYOUTS[tensor->kind], get(tensor, random_below(tensor->count))));
    switch (random_below(3)) {
    case 0: return nextafter(size, INFINITY);
    case 1: return nextafter(size, -INFINITY);
    default: return size;
    }
}

/* The same elements, so placed that the first byte after them may not be read. Serves one tensor at a time. */
static gf_tensor before_a_guard_page(const gf_tensor *tensor) {
    static char *end = NULL;
    if (!end) {
        const size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (size_t)1 << 25;
        char *start = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (start == MAP_FAILED || mprotect(start + room, page, PROT_NONE) != 0) {
            fprintf(stderr, "fuzz_kernel: no memory for a guard page\n");
            exit(2);
        }
        end = start + room;
    }
    const size_t bytes = (size_t)tensor->count * (size_t)LAYOUTS[tensor->kind].bytes;
    if (bytes) memcpy(end - bytes, tensor->data, bytes);
    return (gf_tensor){end - bytes, tensor->count, tensor->kind};
}

static void check_one(enum gf_kind kind, int64_t count, enum style style) {
    gf_limits limits = random_limits();
    gf_tensor tensor = make_tensor(kind, count, style, limits);
    limits.near_zero = limit_from(&tensor, limits.near_zero);
    limits.very_large = limit_from(&tensor, limits.very_large);
    const gf_tensor guarded = before_a_guard_page(&tensor);
    check(ADDRESS_SANITIZER ? &tensor : &guarded, 1, limits);
    free((void *)tensor.data);
}

/* ---- the passes ------------------------------------------------------------------------------------------------ */

/* Each pattern alone, then often enough to fill vector registers and leave a rest, then all in one tensor. */
static void every_16_bit_pattern(enum gf_kind kind) {
    const int64_t patterns = 1 << 16;
    const int64_t copies[] = {1, 35};
    for (int c = 0; c < LENGTH(copies); c++) {
        gf_tensor *tensors = allocate((size_t)patterns * sizeof *tensors);
        for (int64_t bits = 0; bits < patterns; bits++) {
            tensors[bits] = allocate_tensor(kind, copies[c]);
            for (int64_t i = 0; i < copies[c]; i++) set(&tensors[bits], i, (uint64_t)bits);
        }
        check(tensors, patterns, (gf_limits){1e-7, 1e3});
        free_tensors(tensors, patterns);
    }
    gf_tensor all = allocate_tensor(kind, patterns);
    for (int64_t bits = 0; bits < patterns; bits++) set(&all, bits, (uint64_t)bits);
    for (int near = 0; near < LENGTH(NEAR_ZERO); near++)
        check(&all, 1, (gf_limits){NEAR_ZERO[near], VERY_LARGE[near]});
    free((void *)all.data);
}

static void many_small_tensors(int64_t tensor_count, int64_t largest) {
    gf_limits limits = random_limits();
    gf_tensor *tensors = allocate((size_t)tensor_count * sizeof *tensors);
    for (int64_t i = 0; i < tensor_count; i++) {
        const int64_t count = random_below(4) ? random_below(largest + 1) : 0;
        tensors[i] = make_tensor((enum gf_kind)random_below(GF_KINDS), count, random_style(), limits);
    }
    if (tensor_count) {
        limits.near_zero = limit_from(&tensors[random_below(tensor_count)], limits.near_zero);
        limits.very_large = limit_from(&tensors[random_below(tensor_count)], limits.very_large);
    }
    check(tensors, tensor_count, limits);
    free_tensors(tensors, tensor_count);
}

static void every_count(int64_t up_to) {
    for (int kind = 0; kind < GF_KINDS; kind++)
        for (int64_t count = 0; count <= up_to; count++) check_one((enum gf_kind)kind, count, random_style());
}

static void counts_around_a_unit_of_work(void) {
    const int64_t counts[] = {65535, 65536, 65537, 131071, 131072, 131073};
    for (int kind = 0; kind < GF_KINDS; kind++)
        for (int style = 0; style < STYLES; style++)
            check_one((enum gf_kind)kind, counts[(kind + style) % LENGTH(counts)], (enum style)style);
}

static void shared_between_threads(int rounds) {
    for (int round = 0; round < rounds; round++) {
        many_small_tensors(500, 2000);
        /* Enough for every thread there may be. */
        check_one((enum gf_kind)(round % GF_KINDS), 66 * 32768 + random_below(3000), random_style());
    }
}

int main(int argument_count, char **arguments) {
    const char *pass = argument_count > 2 ? arguments[2] : "all";
    if (argument_count > 1) seed = strtoull(arguments[1], NULL, 10);
    random_state = seed;
    if (strcmp(pass, "all") == 0) {
        every_16_bit_pattern(GF_BFLOAT16);
        every_16_bit_pattern(GF_FLOAT16);
        every_count(3000);
        counts_around_a_unit_of_work();
        for (int64_t tensor_count = 0; tensor_count <= 500; tensor_count++) many_small_tensors(tensor_count, 40);
        shared_between_threads(2);
    } else if (strcmp(pass, "threads") == 0) {
        shared_between_threads(4);
    } else if (strcmp(pass, "flushed") == 0) {
        flush_subnormals = 1;
        for (int64_t tensor_count = 0; tensor_count <= 500; tensor_count++) many_small_tensors(tensor_count, 40);
    } else {
        fprintf(stderr, "fuzz_kernel: the pass must be all, threads or flushed, got %s\n", pass);
        return 2;
    }
    printf("fuzz_kernel: %" PRId64 " calls, %" PRId64 " elements: ok\n", calls, elements);
    return 0;
}
