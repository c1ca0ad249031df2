"""Compiles the Triton kernel for GPUs that are not here and prints what came of it, as JSON.

A process of its own: the tests run Triton's interpreter, which is chosen when Triton is imported.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":  # tests that collect this file keep their interpreter
    os.environ.pop("TRITON_INTERPRET", None)

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gradient_flow.act import device_replace, replace_kernel
from gradient_flow.table.kernels import triton_kernel, triton_ops

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
KINDS = {str(dtype).removeprefix("torch."): kind for dtype, kind in triton_ops.KINDS.items()}


def compiled(function, signature, constants, target):
    aligned = {(place,): [["tt.divisibility", 16]] for place, kind in enumerate(signature.values()) if "*" in kind}
    source = ASTSource(
        function, {**signature, **dict.fromkeys(constants, "constexpr")}, constexprs=constants, attrs=aligned
    )
    return triton.compile(source, target=target, options=triton_ops.OPTIONS)


def measure_chunks(kind, target):
    signature = {"table": "*i64", "limits": "*fp64", "partials": "*fp64", "chunk_count": "i32"}
    steps, lanes = triton_ops.SHAPES[kind]
    return compiled(
        triton_kernel.measure_chunks, signature, {"KIND": kind, "STEPS": steps, "LANES": lanes}, TARGETS[target]
    )


def count_exponents(kind, target):
    signature = {"table": "*i64", "shift": "*i64", "bins": "*i64", "chunk_count": "i32", "row_count": "i32"}
    steps, lanes = triton_ops.SHAPES[kind]
    return compiled(
        triton_kernel.count_exponents, signature, {"KIND": kind, "STEPS": steps, "LANES": lanes}, TARGETS[target]
    )


def replace_nonfinite(name, target):
    signature = {"table": "*i64", "bad": "*fp64", "instead": "*i32", "chunk_count": "i32", "row_count": "i32"}
    dtype = getattr(torch, name)
    constants = {"BITS": 8 * dtype.itemsize, "EXPONENT": device_replace._EXPONENTS[dtype], "TILE": device_replace._TILE}
    return compiled(replace_kernel.replace_nonfinite, signature, constants, TARGETS[target])


def merge_chunks(target):
    signature = {"table": "*i64", "partials": "*fp64", "rows": "*fp64", "chunk_count": "i32", "row_count": "i32"}
    return compiled(triton_kernel.merge_chunks, signature, {"PARTS": 1, "WIDTH": 128}, TARGETS[target])


def resources(cubin):
    """Registers, stack and local memory: where a kernel spills, the last two are not 0."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        told = subprocess.run([tool, "-res-usage", file.name], check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", told)}


def described(kernel):
    if "ptx" in kernel.asm:
        ptx = kernel.asm["ptx"]
        loads = re.findall(r"\bld\.global(?:\.\w+)*?(?:\.(v\d))?\.b(\d+)\b", ptx)
        return {
            "loads": [[int(vector[1:] or 1) if vector else 1, int(bits)] for vector, bits in loads],
            "flushes": len(re.findall(r"\.ftz\b", ptx)),
            "resources": resources(kernel.asm["cubin"]),
        }
    assembly = kernel.asm["amdgcn"]
    return {
        "wide_loads": len(re.findall(r"global_load_dwordx[24]", assembly)),
        "spills": sum(map(int, re.findall(r"[sv]gpr_spill_count: *(\d+)", assembly))),
        "bytes": len(kernel.asm["hsaco"]),
    }


if __name__ == "__main__":
    wanted = [pair.split(":", 1) for pair in sys.argv[1:]]
    found = {}
    for target, kind in wanted:
        if kind == "merge":
            kernel = merge_chunks(target)
        elif kind.startswith("replace in "):
            kernel = replace_nonfinite(kind.removeprefix("replace in "), target)
        elif kind.startswith("exponents of "):
            kernel = count_exponents(KINDS[kind.removeprefix("exponents of ")], target)
        else:
            kernel = measure_chunks(KINDS[kind], target)
        found[f"{target}:{kind}"] = described(kernel)
    print(json.dumps(found))
