/* The Python side of kernel.c: buffers in, buffer out, no torch or NumPy headers. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "kernel.h"

static int check(const Py_buffer *buffer, Py_ssize_t items, Py_ssize_t item_size, const char *name) {
    if (buffer->len == items * item_size) return 0;
    PyErr_Format(PyExc_ValueError, "`%s` must hold %zd items of %zd bytes, got %zd bytes", name, items, item_size,
                 buffer->len);
    return -1;
}

static int fill(const Py_buffer *addresses, const Py_buffer *counts, const Py_buffer *kinds, gf_limits limits,
                int threads, Py_buffer *rows) {
    const Py_ssize_t n = kinds->len;
    if (check(addresses, n, sizeof(int64_t), "addresses") || check(counts, n, sizeof(int64_t), "counts")
        || check(rows, n * GF_COLUMNS, sizeof(double), "rows"))
        return -1;
    gf_tensor *tensors = PyMem_Malloc((size_t)(n + 1) * sizeof *tensors);
    if (!tensors) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        const int64_t address = ((const int64_t *)addresses->buf)[i], count = ((const int64_t *)counts->buf)[i];
        const unsigned char kind = ((const unsigned char *)kinds->buf)[i];
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
    status = gf_measure(tensors, n, limits, threads, rows->buf);
    Py_END_ALLOW_THREADS
    PyMem_Free(tensors);
    if (status) PyErr_NoMemory();
    return status;
}

static PyObject *native_fill(PyObject *self, PyObject *args) {
    (void)self;
    Py_buffer addresses, counts, kinds, rows;
    gf_limits limits;
    int threads;
    if (!PyArg_ParseTuple(args, "y*y*y*ddiw*", &addresses, &counts, &kinds, &limits.near_zero, &limits.very_large,
                          &threads, &rows))
        return NULL;
    const int status = fill(&addresses, &counts, &kinds, limits, threads, &rows);
    PyBuffer_Release(&addresses);
    PyBuffer_Release(&counts);
    PyBuffer_Release(&kinds);
    PyBuffer_Release(&rows);
    if (status) return NULL;
    Py_RETURN_NONE;
}

static PyObject *native_describe(PyObject *self, PyObject *args) {
    (void)self;
    (void)args;
    return Py_BuildValue("(ss)", gf_instruction_set(), gf_thread_pool());
}

static PyMethodDef methods[] = {
    {"fill", native_fill, METH_VARARGS,
     "fill(addresses, counts, kinds, near_zero, very_large, threads, rows)\n"
     "Measure tensors given by address; the caller keeps them alive."},
    {"describe", native_describe, METH_NOARGS, "describe() -> (instruction set, thread pool)"},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module) { return PyModule_AddIntConstant(module, "COLUMN_COUNT", GF_COLUMNS); }

static PyModuleDef_Slot slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "One pass over gradients in C.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
