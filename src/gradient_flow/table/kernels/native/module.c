/* The Python side of kernel.c: bytes in, bytes out, no torch or NumPy headers. Only what is in the stable ABI of the
   lowest Python that is supported, so that one build serves every later one; it has bytes, but no buffers. */
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "dlpack.h"
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

/* A bytearray with the columns or bins of each tensor, filled as asked: its memory may be written to by whoever gets it. */
static PyObject *filled(const gf_tensor *tensors, Py_ssize_t n, task *asked, int bins) {
    PyObject *made = PyByteArray_FromStringAndSize(NULL, n * 8 * (Py_ssize_t)(bins ? GF_BINS : GF_COLUMNS));
    if (!made) return NULL;
    void *memory = PyByteArray_AsString(made);
    if (bins) asked->bins = memory;
    else asked->rows = memory;
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = asked->bins ? gf_exponents(tensors, n, asked->shift, asked->threads, asked->bins)
                         : gf_measure(tensors, n, asked->limits, asked->what, asked->threads, asked->rows);
    Py_END_ALLOW_THREADS
    if (!status) return made;
    Py_DECREF(made);
    return PyErr_NoMemory();
}

static gf_tensor *memory_for(Py_ssize_t n) {
    gf_tensor *tensors = PyMem_Malloc((size_t)(n + 1) * sizeof *tensors);
    if (!tensors) PyErr_NoMemory();
    return tensors;
}

/* Tensors that are given by address, to be freed; NULL with an exception where they cannot be read. */
static gf_tensor *given(view addresses, view counts, view kinds) {
    const Py_ssize_t n = kinds.size;
    if (check(addresses, n, sizeof(int64_t), "addresses") || check(counts, n, sizeof(int64_t), "counts")) return NULL;
    gf_tensor *tensors = memory_for(n);
    for (Py_ssize_t i = 0; tensors && i < n; i++) {
        const int64_t address = ((const int64_t *)addresses.data)[i], count = ((const int64_t *)counts.data)[i];
        const unsigned char kind = ((const unsigned char *)kinds.data)[i];
        if (kind >= GF_KINDS || count < 0 || (address == 0 && count > 0)) {
            PyErr_Format(PyExc_ValueError, "tensor %zd is not readable: kind %d, count %lld", i, (int)kind,
                         (long long)count);
            PyMem_Free(tensors);
            return NULL;
        }
        tensors[i] = (gf_tensor){(const void *)(uintptr_t)address, count, (enum gf_kind)kind};
    }
    return tensors;
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
    gf_tensor *tensors = given(addresses, counts, kinds);
    PyObject *made = tensors ? filled(tensors, kinds.size, &asked, 0) : NULL;
    PyMem_Free(tensors);
    return made;
}

static PyObject *native_exponents(PyObject *self, PyObject *args) {
    (void)self;
    view addresses, counts, kinds;
    task asked = {.rows = NULL};
    if (!PyArg_ParseTuple(args, "y#y#y#ii", &addresses.data, &addresses.size, &counts.data, &counts.size, &kinds.data,
                          &kinds.size, &asked.shift, &asked.threads))
        return NULL;
    gf_tensor *tensors = given(addresses, counts, kinds);
    PyObject *made = tensors ? filled(tensors, kinds.size, &asked, 1) : NULL;
    PyMem_Free(tensors);
    return made;
}

/* ---- tensors of a library that speaks DLPack ------------------------------------------------------------------ */

static int kind_of(const dlpack_tensor *tensor) {
    if (tensor->lanes != 1) return -1;
    if (tensor->code == DLPACK_BFLOAT) return tensor->bits == 16 ? GF_BFLOAT16 : -1;
    if (tensor->code != DLPACK_FLOAT) return -1;
    return tensor->bits == 32 ? GF_FLOAT32 : tensor->bits == 64 ? GF_FLOAT64 : tensor->bits == 16 ? GF_FLOAT16 : -1;
}

/* How many elements lie there one after the other, or -1 where they do not. */
static int64_t dense_count(const dlpack_tensor *tensor) {
    int64_t count = 1;
    int in_order = 1;
    for (int32_t d = tensor->dimensions - 1; d >= 0; d--) {
        in_order &= tensor->shape[d] == 1 || !tensor->strides || tensor->strides[d] == count;
        count *= tensor->shape[d];
    }
    return in_order || count == 0 ? count : -1;
}

static int is_of(PyObject *object, PyObject *types) {
    int known = 0;
    for (Py_ssize_t i = 0; i < PyTuple_Size(types); i++) known |= (PyObject *)Py_TYPE(object) == PyTuple_GetItem(types, i);
    return known;
}

/* 1 where the tensor can be read by its address, 0 where it cannot. */
static int locate(PyObject *object, PyObject *types, const dlpack_functions *library, gf_tensor *found) {
    if (!is_of(object, types)) return 0;
    dlpack_tensor tensor;
    if (library->describe(object, &tensor)) {
        PyErr_Clear(); /* a tensor without memory of its own */
        return 0;
    }
    const int kind = kind_of(&tensor);
    if (tensor.device_type != DLPACK_CPU || kind < 0) return 0;
    const int64_t count = dense_count(&tensor);
    const uintptr_t address = (uintptr_t)tensor.data + (uintptr_t)tensor.byte_offset;
    if (count < 0 || (count > 0 && !tensor.data) || address % (tensor.bits / 8)) return 0;
    *found = (gf_tensor){(const void *)address, count, (enum gf_kind)kind};
    return 1;
}

/* All tensors of a list, to be freed; NULL where one cannot be read, with an exception only where something is wrong. */
static gf_tensor *located(PyObject *list, PyObject *types, PyObject *capsule) {
    const dlpack_functions *library = PyCapsule_GetPointer(capsule, DLPACK_CAPSULE);
    if (!library || library->major != DLPACK_VERSION || !library->describe) return NULL;
    const Py_ssize_t n = PyList_Size(list);
    gf_tensor *tensors = memory_for(n);
    for (Py_ssize_t i = 0; tensors && i < n; i++)
        if (!locate(PyList_GetItem(list, i), types, library, &tensors[i])) {
            PyMem_Free(tensors);
            return NULL;
        }
    return tensors;
}

static PyObject *none_unless_wrong(void) {
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyObject *native_locate(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *list, *types, *capsule;
    if (!PyArg_ParseTuple(args, "O!O!O", &PyList_Type, &list, &PyTuple_Type, &types, &capsule)) return NULL;
    gf_tensor *tensors = located(list, types, capsule);
    if (!tensors) return none_unless_wrong();
    const Py_ssize_t n = PyList_Size(list);
    PyObject *addresses = PyBytes_FromStringAndSize(NULL, n * 8), *counts = PyBytes_FromStringAndSize(NULL, n * 8),
             *kinds = PyBytes_FromStringAndSize(NULL, n), *result = NULL;
    if (addresses && counts && kinds) {
        for (Py_ssize_t i = 0; i < n; i++) {
            ((int64_t *)PyBytes_AsString(addresses))[i] = (int64_t)(uintptr_t)tensors[i].data;
            ((int64_t *)PyBytes_AsString(counts))[i] = tensors[i].count;
            PyBytes_AsString(kinds)[i] = (char)tensors[i].kind;
        }
        result = PyTuple_Pack(3, addresses, counts, kinds);
    }
    Py_XDECREF(addresses);
    Py_XDECREF(counts);
    Py_XDECREF(kinds);
    PyMem_Free(tensors);
    return result;
}

static PyObject *native_measure_tensors(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *list, *types, *capsule;
    task asked = {.bins = NULL};
    int sizes_only = 0;
    if (!PyArg_ParseTuple(args, "O!O!Oddi|p", &PyList_Type, &list, &PyTuple_Type, &types, &capsule,
                          &asked.limits.near_zero, &asked.limits.very_large, &asked.threads, &sizes_only))
        return NULL;
    asked.what = sizes_only ? GF_SIZES : GF_ALL;
    gf_tensor *tensors = located(list, types, capsule);
    if (!tensors) return none_unless_wrong();
    PyObject *made = filled(tensors, PyList_Size(list), &asked, 0);
    PyMem_Free(tensors);
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

/* Evenly spaced elements of tensors of one kind, float or double, as they lie, and how many of each. */
static PyObject *native_spaced(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *list, *types, *capsule;
    long long most;
    if (!PyArg_ParseTuple(args, "O!O!OL", &PyList_Type, &list, &PyTuple_Type, &types, &capsule, &most)) return NULL;
    gf_tensor *tensors = most > 0 ? located(list, types, capsule) : NULL;
    if (!tensors) return none_unless_wrong();
    const Py_ssize_t n = PyList_Size(list);
    Py_ssize_t total = 0;
    int one_kind = n > 0 && (tensors[0].kind == GF_FLOAT32 || tensors[0].kind == GF_FLOAT64);
    for (Py_ssize_t i = 0; i < n; i++) {
        one_kind &= tensors[i].kind == tensors[0].kind;
        total += (Py_ssize_t)gf_sampled(tensors[i].count, most);
    }
    if (!one_kind) {
        PyMem_Free(tensors);
        Py_RETURN_NONE;
    }
    const int64_t size = tensors[0].kind == GF_FLOAT64 ? 8 : 4;
    PyObject *counts = PyList_New(n), *values = PyByteArray_FromStringAndSize(NULL, total * (Py_ssize_t)size);
    PyObject *result = NULL;
    char *here = values ? PyByteArray_AsString(values) : NULL;
    for (Py_ssize_t i = 0; here && counts && i < n; i++) {
        const int64_t taken = gf_sampled(tensors[i].count, most);
        gf_spaced(tensors[i].data, tensors[i].count, size, taken, here);
        here += taken * size;
        PyObject *number = PyLong_FromLongLong(taken);
        if (!number || PyList_SetItem(counts, i, number)) Py_CLEAR(counts);
    }
    if (counts && values) result = PyTuple_Pack(2, values, counts);
    Py_XDECREF(values);
    Py_XDECREF(counts);
    PyMem_Free(tensors);
    return result;
}

/* Elements of one tensor as they lie, spread over it by multiples of `step`, which is below 1; all of a small one. */
static PyObject *native_spread(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *object, *types, *capsule;
    long long most;
    double step;
    if (!PyArg_ParseTuple(args, "OO!OLd", &object, &PyTuple_Type, &types, &capsule, &most, &step)) return NULL;
    const dlpack_functions *library = PyCapsule_GetPointer(capsule, DLPACK_CAPSULE);
    if (!library || library->major != DLPACK_VERSION || !library->describe) return none_unless_wrong();
    dlpack_tensor tensor;
    if (!is_of(object, types)) Py_RETURN_NONE;
    if (library->describe(object, &tensor)) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    const int64_t count = dense_count(&tensor);
    /* Whole numbers and floats; complex ones may be conjugated as they are read. */
    if (tensor.device_type != DLPACK_CPU || tensor.lanes != 1 || tensor.code > DLPACK_FLOAT || tensor.bits % 8 ||
        count < 1 || !tensor.data)
        Py_RETURN_NONE;
    const int64_t taken = gf_sampled(count, most), size = tensor.bits / 8;
    const char *first = (const char *)tensor.data + tensor.byte_offset;
    PyObject *made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(taken * size));
    if (made) gf_spread(first, count, size, taken, step, PyBytes_AsString(made));
    return made;
}

/* Some elements of each tensor in fp64, and how many of each. */
static PyObject *native_sample_tensors(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *list, *types, *capsule;
    long long most, run;
    if (!PyArg_ParseTuple(args, "O!O!OLL", &PyList_Type, &list, &PyTuple_Type, &types, &capsule, &most, &run)) return NULL;
    if (run < 1 || most < run || most % run) {
        PyErr_Format(PyExc_ValueError, "`most` must be a multiple of `run`, got %lld and %lld", most, run);
        return NULL;
    }
    gf_tensor *tensors = located(list, types, capsule);
    if (!tensors) return none_unless_wrong();
    const Py_ssize_t n = PyList_Size(list);
    PyObject *counts = PyList_New(n), *values = NULL, *result = NULL;
    Py_ssize_t total = 0;
    for (Py_ssize_t i = 0; counts && i < n; i++) {
        const int64_t count = gf_sampled(tensors[i].count, most);
        PyObject *number = PyLong_FromLongLong(count);
        total += (Py_ssize_t)count;
        if (!number || PyList_SetItem(counts, i, number)) Py_CLEAR(counts);
    }
    if (counts) values = PyByteArray_FromStringAndSize(NULL, total * 8);
    if (values) {
        gf_sample(tensors, n, most, run, (double *)(void *)PyByteArray_AsString(values));
        result = PyTuple_Pack(2, values, counts);
    }
    Py_XDECREF(values);
    Py_XDECREF(counts);
    PyMem_Free(tensors);
    return result;
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
     "locate(tensors, types, exchange_api) -> (addresses, counts, kinds) or None\n"
     "Where tensors of these exact types lie, asked of their library through DLPack; None if one cannot be read there."},
    {"measure_tensors", native_measure_tensors, METH_VARARGS,
     "measure_tensors(tensors, types, exchange_api, near_zero, very_large, threads, sizes_only=False) -> bytearray or None\n"
     "Both in one call."},
    {"sample_tensors", native_sample_tensors, METH_VARARGS,
     "sample_tensors(tensors, types, exchange_api, most, run) -> (bytearray, list of int) or None\n"
     "Some elements of each tensor in fp64, one tensor after the other, and how many of each."},
    {"spaced", native_spaced, METH_VARARGS,
     "spaced(tensors, types, exchange_api, most) -> (bytearray, list of int) or None\n"
     "Evenly spaced elements of tensors that are all fp32 or all fp64, as they lie, and how many of each."},
    {"spread", native_spread, METH_VARARGS,
     "spread(tensor, types, exchange_api, most, step) -> bytes or None\n"
     "Elements of a tensor as they lie, spread over it by multiples of `step`."},
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
