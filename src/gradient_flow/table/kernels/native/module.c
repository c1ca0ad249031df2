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

/* Where the elements of a tensor lie. The attributes of torch are asked for by name, one after the other: the same from
   Python costs a small model as much as reading its gradients. Returns 1 where the tensor is no dense block in host memory
   of a known kind, -1 with an exception. */
typedef struct {
    PyObject *types, *dtypes, *strided; /* exact types; dtypes in the order of enum gf_kind */
    PyObject *is_contiguous, *is_neg, *data_ptr, *numel;
} questions;

static int answers(PyObject *tensor, const char *attribute, PyObject *wanted) {
    PyObject *found = PyObject_GetAttrString(tensor, attribute);
    if (!found) return -1;
    Py_DECREF(found); /* compared by identity only */
    return found == wanted;
}

static int says(PyObject *method, PyObject *tensor, PyObject *wanted) {
    PyObject *found = PyObject_CallFunctionObjArgs(method, tensor, NULL);
    if (!found) return -1;
    Py_DECREF(found);
    return found == wanted;
}

static int number(PyObject *method, PyObject *tensor, int64_t *into) {
    PyObject *found = PyObject_CallFunctionObjArgs(method, tensor, NULL);
    if (!found) return -1;
    *into = PyLong_AsLongLong(found);
    Py_DECREF(found);
    return *into == -1 && PyErr_Occurred() ? -1 : 0;
}

static int locate_one(PyObject *tensor, const questions *ask, int64_t *address, int64_t *count, char *kind) {
    static const int sizes[GF_KINDS] = {4, 8, 2, 2};
    PyObject *type = (PyObject *)Py_TYPE(tensor);
    Py_ssize_t at, n = PyTuple_Size(ask->types);
    for (at = 0; at < n && PyTuple_GetItem(ask->types, at) != type; at++) continue;
    if (at == n) return 1;
    PyObject *dtype = PyObject_GetAttrString(tensor, "dtype");
    if (!dtype) return -1;
    n = PyTuple_Size(ask->dtypes);
    for (at = 0; at < n && PyTuple_GetItem(ask->dtypes, at) != dtype; at++) continue;
    Py_DECREF(dtype);
    if (at == n) return 1;
    *kind = (char)at;
    int yes;
    if ((yes = answers(tensor, "layout", ask->strided)) != 1) return yes < 0 ? -1 : 1;
    if ((yes = answers(tensor, "is_cpu", Py_True)) != 1) return yes < 0 ? -1 : 1;
    if ((yes = says(ask->is_contiguous, tensor, Py_True)) != 1) return yes < 0 ? -1 : 1;
    if ((yes = says(ask->is_neg, tensor, Py_False)) != 1) return yes < 0 ? -1 : 1;
    if (number(ask->data_ptr, tensor, address) || number(ask->numel, tensor, count)) return -1;
    return (*address == 0 && *count > 0) || *address % sizes[at] != 0; /* without memory, or misaligned */
}

static PyObject *native_locate(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *tensors;
    questions ask;
    if (!PyArg_ParseTuple(args, "O!(O!O!OOOOO)", &PyList_Type, &tensors, &PyTuple_Type, &ask.types, &PyTuple_Type,
                          &ask.dtypes, &ask.strided, &ask.is_contiguous, &ask.is_neg, &ask.data_ptr, &ask.numel))
        return NULL;
    const Py_ssize_t n = PyList_Size(tensors);
    PyObject *addresses = PyBytes_FromStringAndSize(NULL, 8 * n), *counts = PyBytes_FromStringAndSize(NULL, 8 * n),
             *kinds = PyBytes_FromStringAndSize(NULL, n), *made = NULL;
    if (addresses && counts && kinds && PyTuple_Size(ask.dtypes) == GF_KINDS) {
        int64_t *address = (int64_t *)(void *)PyBytes_AsString(addresses);
        int64_t *count = (int64_t *)(void *)PyBytes_AsString(counts);
        char *kind = PyBytes_AsString(kinds);
        int status = 0;
        for (Py_ssize_t i = 0; i < n && !status && i < PyList_Size(tensors); i++)
            status = locate_one(PyList_GetItem(tensors, i), &ask, address + i, count + i, kind + i);
        if (status == 0) made = Py_BuildValue("(OOO)", addresses, counts, kinds);
        else if (status == 1) made = Py_NewRef(Py_None);
    }
    Py_XDECREF(addresses);
    Py_XDECREF(counts);
    Py_XDECREF(kinds);
    return made;
}

/* The row of all elements together, as plain numbers. In the order of the rows, as NumPy adds them. */
static PyObject *native_total(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *filled;
    if (!PyArg_ParseTuple(args, "O!", &PyByteArray_Type, &filled)) return NULL;
    double total[GF_COLUMNS];
    gf_total((const double *)(const void *)PyByteArray_AsString(filled),
             PyByteArray_Size(filled) / (8 * (Py_ssize_t)GF_COLUMNS), total);
    PyObject *made = PyTuple_New(GF_COLUMNS);
    for (int column = 0; made && column < GF_COLUMNS; column++) {
        PyObject *value = PyFloat_FromDouble(total[column]);
        if (!value || PyTuple_SetItem(made, column, value)) Py_CLEAR(made);
    }
    return made;
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
    {"locate", native_locate, METH_VARARGS,
     "locate(tensors, questions) -> (addresses, counts, kinds), or None\n"
     "Where the elements of torch tensors lie, if all of them are dense, in host memory and of a known kind."},
    {"total", native_total, METH_VARARGS, "total(rows) -> tuple\nThe row of all elements together, from rows of fp64."},
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
