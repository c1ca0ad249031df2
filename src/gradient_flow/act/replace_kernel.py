# mypy: ignore-errors
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
"""A Triton kernel that replaces NaN and Inf in all gradients of one dtype, in one launch.

Most steps have nothing to replace. The rows of the table say so, and then no gradient is read, let alone written.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["chunk_count", "row_count"])
def replace_nonfinite(
    table, bad, instead, chunk_count, row_count, BITS: tl.constexpr, EXPONENT: tl.constexpr, TILE: tl.constexpr
):
    """One chunk per program. `bad`: how many elements of each row are not finite. `instead`: for NaN, Inf and -Inf.

    By their bits: a number whose exponent is all ones is not finite, and a NaN if anything else of it is set.
    """
    chunk = tl.program_id(0)
    row = tl.load(table + 2 * chunk_count + 2 * row_count + 1 + chunk)
    if tl.load(bad + row) > 0:
        address = tl.load(table + chunk)
        length = tl.load(table + chunk_count + chunk).to(tl.int32)
        nan, up, down = tl.load(instead), tl.load(instead + 1), tl.load(instead + 2)
        gradient = address.to(tl.pointer_type(tl.int32)) if BITS == 32 else address.to(tl.pointer_type(tl.int16))
        for start in range(0, length, TILE):
            here = start + tl.arange(0, TILE)
            inside = here < length
            bits = tl.load(gradient + here, mask=inside, other=0)
            size = bits.to(tl.int32) & (0x7FFFFFFF if BITS == 32 else 0x7FFF)
            fixed = tl.where(size > EXPONENT, nan, tl.where(bits < 0, down, up))
            tl.store(gradient + here, fixed.to(bits.dtype), mask=inside & (size >= EXPONENT))
