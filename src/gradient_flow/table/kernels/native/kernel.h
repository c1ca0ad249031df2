/* One pass over gradients: every column of a table row from a single read of memory. */
#ifndef GRADIENT_FLOW_KERNEL_H
#define GRADIENT_FLOW_KERNEL_H

#include <stddef.h>
#include <stdint.h>

enum gf_kind { GF_FLOAT32, GF_FLOAT64, GF_BFLOAT16, GF_FLOAT16, GF_KINDS };

/* The order is that of COLUMNS in table/columns.py; a test holds the two together. */
enum gf_column {
    GF_COUNT, GF_PARTS, GF_SUM, GF_SUM_SQ, GF_SUM_ABS, GF_MIN, GF_MAX, GF_MAX_ABS,
    GF_ZEROS, GF_NEAR_ZERO, GF_VERY_LARGE, GF_NAN, GF_INF, GF_NEG_INF, GF_COLUMNS
};

/* GF_SIZES: only what follows from magnitudes (sums of squares and magnitudes, the largest, NaN and Inf) in half the time;
   the other columns are NaN, and sums of float32 and float16 are only as exact as a float. */
enum gf_what { GF_ALL, GF_SIZES };

/* Bins of a histogram of exponents; table/exponents.py says what each holds. */
#define GF_BINS 64

typedef struct {
    const void *data;
    int64_t count;
    enum gf_kind kind;
} gf_tensor;

typedef struct {
    double near_zero;   /* counted when abs(x) <  near_zero */
    double very_large;  /* counted when abs(x) >  very_large */
} gf_limits;

/* Fills rows[tensors][GF_COLUMNS]. The result does not depend on the number of threads.
   Returns 0, or -1 when memory for the partial results could not be had. */
int gf_measure(const gf_tensor *tensors, int64_t tensor_count, gf_limits limits, enum gf_what what, int threads,
               double *rows);

/* Merges rows[count][GF_COLUMNS] into one, as merge_rows in table/columns.py does. */
void gf_total(const double *rows, int64_t count, double *total);

/* Fills bins[tensors][GF_BINS] with how many elements have which exponent, divided by 2^shift. */
int gf_exponents(const gf_tensor *tensors, int64_t tensor_count, int shift, int threads, int64_t *bins);

/* How many elements gf_sample takes of a tensor: all of a small one, else `most`. */
int64_t gf_sampled(int64_t count, int64_t most);

/* Copies some elements of each tensor to `values`, one tensor after the other: `run` neighbours from each of many equal
   stretches, at another place in each, so that no column of a matrix stands for all of them. */
void gf_sample(const gf_tensor *tensors, int64_t tensor_count, int64_t most, int64_t run, double *values);

/* Copies `taken` of `count` elements of `size` bytes: the k-th is from where the fraction of k * step falls, or all of them. */
void gf_spread(const char *elements, int64_t count, int64_t size, int64_t taken, double step, char *values);

/* Copies `taken` of `count` elements of `size` bytes at equal distances. */
void gf_spaced(const char *elements, int64_t count, int64_t size, int64_t taken, char *values);

/* The widest instruction set that this processor and this build share. */
const char *gf_instruction_set(void);

/* Which thread pool serves gf_measure: "openmp" (the one torch already runs) or "pthreads". */
const char *gf_thread_pool(void);

#endif
