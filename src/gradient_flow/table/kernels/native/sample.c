/* Some elements of many tensors in one call: what a look compares before and after a step. */
#include <math.h>
#include <string.h>

#include "kernel.h"

int64_t gf_sampled(int64_t count, int64_t most) { return count < most ? count : most; }

/* Widened by its bits: a processor that is told to take subnormal floats for zero would lose those. */
static double widened(uint64_t sign, uint64_t exponent, uint64_t fraction, int exponent_bits, int fraction_bits) {
    const uint64_t special = (1u << exponent_bits) - 1;
    const int bias = (int)(special >> 1);
    if (exponent == 0) { /* a whole number times the smallest one */
        const double size = (double)fraction * ldexp(1.0, 1 - bias - fraction_bits);
        return sign ? -size : size;
    }
    const uint64_t wide = exponent == special ? 2047 : exponent - (uint64_t)bias + 1023;
    const uint64_t bits = sign << 63 | wide << 52 | fraction << (52 - fraction_bits);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static double element(const gf_tensor *tensor, int64_t at) {
    double value;
    uint32_t single;
    uint16_t half;
    switch (tensor->kind) {
    case GF_FLOAT64:
        memcpy(&value, (const double *)tensor->data + at, sizeof value);
        return value;
    case GF_FLOAT32:
        memcpy(&single, (const uint32_t *)tensor->data + at, sizeof single);
        break;
    case GF_BFLOAT16:
        memcpy(&half, (const uint16_t *)tensor->data + at, sizeof half);
        single = (uint32_t)half << 16;
        break;
    default:
        memcpy(&half, (const uint16_t *)tensor->data + at, sizeof half);
        return widened(half >> 15, half >> 10 & 31, half & 1023, 5, 10);
    }
    return widened(single >> 31, single >> 23 & 255, single & 0x7fffff, 8, 23);
}

void gf_sample(const gf_tensor *tensors, int64_t tensor_count, int64_t most, int64_t run, double *values) {
    for (int64_t i = 0; i < tensor_count; i++) {
        const gf_tensor *tensor = &tensors[i];
        if (tensor->count <= most) {
            for (int64_t at = 0; at < tensor->count; at++) *values++ = element(tensor, at);
            continue;
        }
        const int64_t runs = most / run;
        const uint64_t stretch = (uint64_t)(tensor->count / runs), places = stretch - (uint64_t)run + 1;
        for (int64_t k = 0; k < runs; k++) {
            const uint64_t within = ((uint64_t)k * 2654435761u >> 7) % places;
            const int64_t first = k * (int64_t)stretch + (int64_t)within;
            for (int64_t at = first; at < first + run; at++) *values++ = element(tensor, at);
        }
    }
}

void gf_spread(const char *elements, int64_t count, int64_t size, int64_t taken, double step, char *values) {
    for (int64_t k = 0; k < taken; k++) {
        const double part = (double)k * step;
        const int64_t at = taken == count ? k : (int64_t)((part - floor(part)) * (double)count);
        memcpy(values + k * size, elements + at * size, (size_t)size);
    }
}

void gf_spaced(const char *elements, int64_t count, int64_t size, int64_t taken, char *values) {
    const int64_t stride = taken > 0 ? count / taken : 1; /* 1 where all are taken */
    for (int64_t k = 0; k < taken; k++) memcpy(values + k * size, elements + k * stride * size, (size_t)size);
}
