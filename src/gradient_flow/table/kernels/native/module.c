/* The Python side of kernel.c: bytes in, bytes out, no torch or NumPy headers. Only what is in the stable ABI of the
   lowest Python that is supported, so that one build serves every later one; it has bytes, but no buffers. */
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "kernel.h"

typedef struct {
    const char *data;
    Py_ssize_t size;
} view;

static int check(view given, Py_ssize_t items, Py_ssize_t item_size, const char *name) {
    if (given.size == items * item_size) return 0;
    PyErr_Format(PyExc_ValueError, "`%s` must hold %zd items of %zd bytes, got %zd bytes", name, items, item_size,
                 given.size);
    return -1;
}

/* What is to be done, with the tensors that it is done to: one of two calls. */
typedef struct {
    gf_limits limits;
    enum gf_what what;
    int shift, threads;
    double *rows;
    int64_t *bins; /* or NULL where rows are wanted */
} task;

static int fill(view addresses, view counts, view kinds, const task *asked) {
    const Py_ssize_t n = kinds.size;
    gf_tensor *tensors = PyMem_Malloc((size_t)(n + 1) * sizeof *tensors);
    if (!tensors) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        const int64_t address = ((const int64_t *)addresses.data)[i], count = ((const int64_t *)counts.data)[i];
        const unsigned char kind = ((const unsigned char *)kinds.data)[i];
        if (kind >= GF_KINDS || count < 0 || (address == 0 && count > 0)) {
            PyErr_Format(PyExc_ValueError, "tensor %zd is not readable: kind %d, count %lld", i, (int)kind,
                         (long long)count);
            PyMem_Free(tensors);
            return -1;
        }
        tensors[i] = (gf_tensor){(const void *)(uintptr_t)address, count, (enum gf_kind)kind};
    }
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = asked->bins ? gf_exponents(tensors, n, asked->shift, asked->threads, asked->bins)
                         : gf_measure(tensors, n, asked->limits, asked->what, asked->threads, asked->rows);
    Py_END_ALLOW_THREADS
    PyMem_Free(tensors);
    if (status) PyErr_NoMemory();
    return status;
}

/* A bytearray with the columns or bins of each tensor, filled as asked: its memory may be written to by whoever gets it. */
static PyObject *filled(view addresses, view counts, view kinds, task *asked, int bins) {
    const Py_ssize_t n = kinds.size;
    if (check(addresses, n, sizeof(int64_t), "addresses") || check(counts, n, sizeof(int64_t), "counts")) return NULL;
    PyObject *made = PyByteArray_FromStringAndSize(NULL, n * 8 * (Py_ssize_t)(bins ? GF_BINS : GF_COLUMNS));
    if (!made) return NULL;
    void *memory = PyByteArray_AsString(made);
    if (bins) asked->bins = memory;
    else asked->rows = memory;
    if (fill(addresses, counts, kinds, asked)) {
        Py_DECREF(made);
        return NULL;
    }
    return made;
}

static PyObject *native_measure(PyObject *self, PyObject *args) {
    (void)self;
    view addresses, counts, kinds;
    task asked = {.bins = NULL};
    int sizes_only = 0;
    if (!PyArg_ParseTuple(args, "y#y#y#ddi|p", &addresses.data, &addresses.size, &counts.data, &counts.size,
                          &kinds.data, &kinds.size, &asked.limits.near_zero, &asked.limits.very_large, &asked.threads,
                          &sizes_only))
        return NULL;
    asked.what = sizes_only ? GF_SIZES : GF_ALL;
    return filled(addresses, counts, kinds, &asked, 0);
}

static PyObject *native_exponents(PyObject *self, PyObject *args) {
    (void)self;
    view addresses, counts, kinds;
    task asked = {.rows = NULL};
    if (!PyArg_ParseTuple(args, "y#y#y#ii", &addresses.data, &addresses.size, &counts.data, &counts.size, &kinds.data,
                          &kinds.size, &asked.shift, &asked.threads))
        return NULL;
    return filled(addresses, counts, kinds, &asked, 1);
}

static PyObject *native_describe(PyObject *self, PyObject *args) {
    (void)self;
    (void)args;
    return Py_BuildValue("(ss)", gf_instruction_set(), gf_thread_pool());
}

static PyMethodDef methods[] = {
    {"measure", native_measure, METH_VARARGS,
     "measure(addresses, counts, kinds, near_zero, very_large, threads, sizes_only=False) -> bytearray\n"
     "Measure tensors given by address: rows of fp64. The caller keeps the tensors alive."},
    {"exponents", native_exponents, METH_VARARGS,
     "exponents(addresses, counts, kinds, shift, threads) -> bytearray\n"
     "Histograms of exponents of tensors given by address: 64 integers of 64 bits each."},
    {"describe", native_describe, METH_NOARGS, "describe() -> (instruction set, thread pool)"},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module) {
    if (PyModule_AddIntConstant(module, "COLUMN_COUNT", GF_COLUMNS)) return -1;
    return PyModule_AddIntConstant(module, "BIN_COUNT", GF_BINS);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "One pass over gradients in C.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
