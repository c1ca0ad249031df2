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
int gf_measure(const gf_tensor *tensors, int64_t tensor_count, gf_limits limits, int threads, double *rows);

/* The widest instruction set that this processor and this build share. */
const char *gf_instruction_set(void);

/* Which thread pool serves gf_measure: "openmp" (the one torch already runs) or "pthreads". */
const char *gf_thread_pool(void);

#endif
