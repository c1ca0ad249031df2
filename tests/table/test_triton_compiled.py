"""The Triton kernel compiled for GPUs that are not here: it compiles, and its code is what it is meant to be."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gradient_flow.table.kernels import triton_ops

THREADS = 32 * triton_ops.WARPS
READ_CLOSELY = [
    (target, kind)
    for target in ("sm_80", "sm_90")
    for kind in ("float32", "bfloat16", "float16", "float64", "float8_e4m3fn")
]
OTHERS = [("sm_80", "float8_e5m2"), ("sm_80", "complex64"), ("sm_80", "merge"), ("sm_90", "complex128")]
HISTOGRAMS = [("sm_80", "exponents of float32"), ("sm_90", "exponents of bfloat16")]
OTHERS += [*HISTOGRAMS, ("sm_80", "exponents of float64"), ("sm_90", "exponents of complex64")]
REPLACED = [("sm_80", "replace in float32"), ("sm_90", "replace in bfloat16"), ("sm_80", "replace in float16")]
OTHERS += REPLACED
NEWER = [("sm_100", "float32"), ("sm_100", "bfloat16"), ("sm_100", "merge"), ("sm_100", "exponents of float8_e4m3fn")]
AMD = [("gfx942", "float32"), ("gfx942", "bfloat16"), ("gfx942", "merge"), ("gfx942", "exponents of float32")]
AMD += [("gfx942", "replace in bfloat16")]
TABLE_LOADS = 4
"""Both thresholds, address and length, of a histogram the shift, address, length and row: 64 bits each."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """All of them in one process, which has neither a driver nor the interpreter."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    environment.pop("TRITON_INTERPRET", None)
    wanted = [f"{target}:{kind}" for target, kind in (*READ_CLOSELY, *OTHERS, *NEWER, *AMD)]
    script = Path(__file__).with_name("compile_triton.py")
    run = subprocess.run([sys.executable, str(script), *wanted], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout)


@pytest.mark.parametrize(("target", "kind"), [*READ_CLOSELY, *HISTOGRAMS])
def test_each_element_is_loaded_once_and_several_at_a_time(compiled, target, kind):
    """A tile has two ways in, one for full tiles and one with a mask. Each loads all of its elements, once."""
    loads = [tuple(load) for load in compiled[f"{target}:{kind}"]["loads"]]
    dtype = getattr(torch, kind.removeprefix("exponents of "))
    bits = 8 * dtype.itemsize
    steps, lanes = triton_ops.SHAPES[triton_ops.KINDS[dtype]]
    tile_bits = steps * lanes * bits // THREADS  # of one thread
    for _ in range(TABLE_LOADS):
        loads.remove((1, 64))
    masked = [load for load in loads if load == (1, bits)]
    whole = [load for load in loads if load != (1, bits)]
    assert sum(vector * width for vector, width in masked) == tile_bits
    assert sum(vector * width for vector, width in whole) == tile_bits
    # Four neighbours at once, two of fp64: 16 bytes at most.
    assert {vector * width for vector, width in whole} == {min(128, 4 * bits)}


@pytest.mark.parametrize(("target", "kind"), [*READ_CLOSELY, *OTHERS, *NEWER])
def test_nothing_spills(compiled, target, kind):
    resources = compiled[f"{target}:{kind}"]["resources"]
    assert resources["STACK"] == resources["LOCAL"] == 0
    assert 16 < resources["REG"] < 255  # at 255 it would have wanted more


@pytest.mark.parametrize(("target", "kind"), [*READ_CLOSELY, *OTHERS, *NEWER])
def test_subnormal_numbers_are_kept(compiled, target, kind):
    assert compiled[f"{target}:{kind}"]["flushes"] == 0


@pytest.mark.parametrize(("target", "kind"), AMD)
def test_it_compiles_for_amd(compiled, target, kind):
    found = compiled[f"{target}:{kind}"]
    assert found["bytes"] > 1000
    assert found["spills"] == 0
    assert kind == "merge" or kind.startswith("replace") or found["wide_loads"] > 0
