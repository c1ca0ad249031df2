/* What is read of DLPack 1.x (dmlc.github.io/dlpack): the table of C functions that a library hangs on its tensor type
   under `__dlpack_c_exchange_api__`, and a tensor as such a function describes it. The layout is fixed within version 1. */
#ifndef GRADIENT_FLOW_DLPACK_H
#define GRADIENT_FLOW_DLPACK_H

#include <stdint.h>

#define DLPACK_CAPSULE "dlpack_exchange_api"
#define DLPACK_VERSION 1

enum { DLPACK_CPU = 1 };
enum { DLPACK_FLOAT = 2, DLPACK_BFLOAT = 4 };

typedef struct {
    void *data;
    int32_t device_type, device_id;
    int32_t dimensions;
    uint8_t code, bits; /* of an element: what it is, and how long */
    uint16_t lanes;
    int64_t *shape, *strides; /* counted in elements; no strides: in order */
    uint64_t byte_offset;
} dlpack_tensor;

typedef struct {
    uint32_t major, minor;
    const void *older;
    void (*allocate)(void);
    void (*managed_from_object)(void);
    void (*managed_to_object)(void);
    /* Describes a tensor of the library's own exact type, which lives on. 0, or -1 with an exception. May be NULL. */
    int (*describe)(void *object, dlpack_tensor *found);
} dlpack_functions;

#endif
