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

static int fill(view addresses, view counts, view kinds, gf_limits limits, int threads, double *rows) {
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
    status = gf_measure(tensors, n, limits, threads, rows);
    Py_END_ALLOW_THREADS
    PyMem_Free(tensors);
    if (status) PyErr_NoMemory();
    return status;
}

static PyObject *native_measure(PyObject *self, PyObject *args) {
    (void)self;
    view addresses, counts, kinds;
    gf_limits limits;
    int threads;
    if (!PyArg_ParseTuple(args, "y#y#y#ddi", &addresses.data, &addresses.size, &counts.data, &counts.size,
                          &kinds.data, &kinds.size, &limits.near_zero, &limits.very_large, &threads))
        return NULL;
    const Py_ssize_t n = kinds.size;
    if (check(addresses, n, sizeof(int64_t), "addresses") || check(counts, n, sizeof(int64_t), "counts")) return NULL;
    /* A bytearray, because its memory may be written to by whoever gets it; nobody else has it yet. */
    PyObject *rows = PyByteArray_FromStringAndSize(NULL, n * (Py_ssize_t)(GF_COLUMNS * sizeof(double)));
    if (!rows) return NULL;
    if (fill(addresses, counts, kinds, limits, threads, (double *)(void *)PyByteArray_AsString(rows))) {
        Py_DECREF(rows);
        return NULL;
    }
    return rows;
}

static PyObject *native_describe(PyObject *self, PyObject *args) {
    (void)self;
    (void)args;
    return Py_BuildValue("(ss)", gf_instruction_set(), gf_thread_pool());
}

static PyMethodDef methods[] = {
    {"measure", native_measure, METH_VARARGS,
     "measure(addresses, counts, kinds, near_zero, very_large, threads) -> bytearray\n"
     "Measure tensors given by address: rows of fp64. The caller keeps the tensors alive."},
    {"describe", native_describe, METH_NOARGS, "describe() -> (instruction set, thread pool)"},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module) { return PyModule_AddIntConstant(module, "COLUMN_COUNT", GF_COLUMNS); }

static PyModuleDef_Slot slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "One pass over gradients in C.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
