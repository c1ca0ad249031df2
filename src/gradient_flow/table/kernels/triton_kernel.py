# mypy: ignore-errors
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
"""The Triton kernel: all tensors of one dtype on one device in one launch, and one more to merge chunks into rows.

A program reads one chunk, tile by tile, and each element once: a tile stays in registers. Most tiles are *ordinary*:
every element is finite, none is very large, and the largest is neither so large nor so small that squares of fp32 would
leave its range. Those are summed in fp32 lanes of `STEPS` elements, which are then added up in fp64. All other tiles
(NaN, Inf, very large or vanishing elements, the end of a tensor) are summed in fp64 from the start.
"""

from __future__ import annotations

import triton
import triton.language as tl

FLOAT32 = tl.constexpr(0)
FLOAT64 = tl.constexpr(1)
BFLOAT16 = tl.constexpr(2)
FLOAT16 = tl.constexpr(3)
FLOAT8_E4M3 = tl.constexpr(4)
FLOAT8_E5M2 = tl.constexpr(5)
COMPLEX64 = tl.constexpr(6)
COMPLEX128 = tl.constexpr(7)

LARGEST_ORDINARY = tl.constexpr(2.0**55)
SMALLEST_ORDINARY = tl.constexpr(2.0**-40)
"""Between these the squares of a lane neither overflow in fp32 nor lose a digit that counts."""
PARTIALS = 12
"""Numbers that a chunk leaves: every column but `count` and `parts`, which follow from its length."""


@triton.jit
def _narrow(address, offsets, KIND: tl.constexpr):
    """A full tile in fp32, from memory that is aligned to 16 bytes.

    A thread loads four neighbours at once, of any kind: more lanes than four would take too many of its registers.
    """
    if KIND == FLOAT32:
        x = tl.load(tl.multiple_of(address.to(tl.pointer_type(tl.float32)), 16) + offsets)
    elif KIND == FLOAT16:
        x = tl.load(tl.multiple_of(address.to(tl.pointer_type(tl.float16)), 8) + offsets).to(tl.float32)
    elif KIND == BFLOAT16:
        x = _of_bfloat16(tl.load(tl.multiple_of(address.to(tl.pointer_type(tl.uint16)), 8) + offsets))
    else:
        x = _of_float8(tl.load(tl.multiple_of(address.to(tl.pointer_type(tl.uint8)), 4) + offsets), KIND)
    return x


@triton.jit
def _narrow_masked(address, offsets, mask, KIND: tl.constexpr):
    """A tile that the tensor does not fill: the rest is NaN, which `measure_chunks` takes off again."""
    if KIND == FLOAT32:
        x = tl.load(address.to(tl.pointer_type(tl.float32)) + offsets, mask=mask, other=float("nan"))
    elif KIND == FLOAT16:
        x = tl.load(address.to(tl.pointer_type(tl.float16)) + offsets, mask=mask, other=float("nan")).to(tl.float32)
    elif KIND == BFLOAT16:
        x = _of_bfloat16(tl.load(address.to(tl.pointer_type(tl.uint16)) + offsets, mask=mask, other=0x7FC0))
    else:
        x = _of_float8(tl.load(address.to(tl.pointer_type(tl.uint8)) + offsets, mask=mask, other=0x7F), KIND)
    return x


@triton.jit
def _of_bfloat16(raw):
    # From the bits: the interpreter has no bf16, and a shift is what the conversion is.
    return (raw.to(tl.uint32) << 16).to(tl.float32, bitcast=True)


@triton.jit
def _of_float8(raw, KIND: tl.constexpr):
    # From the bits, too: before sm_89 no instruction knows these formats.
    if KIND == FLOAT8_E5M2:
        x = (raw.to(tl.uint16) << 8).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        # The exponent of fp16 has another bias, which one exact multiplication mends, for subnormals too.
        sign = (raw.to(tl.uint16) & 0x80) << 8
        size = (raw.to(tl.uint16) & 0x7F) << 7
        x = (sign | size).to(tl.float16, bitcast=True).to(tl.float32) * 256.0
        x = tl.where((raw & 0x7F) == 0x7F, float("nan"), x)
    return x


@triton.jit
def _counted(size, near):
    """Zeros, and in the upper half elements near zero: a lane sees few elements, so one number counts both."""
    return tl.sum((size == 0).to(tl.int32) + ((size < near).to(tl.int32) << 16), axis=0)


@triton.jit
def _ordinary(x, size):
    """What a tile adds to each lane, in fp32: sum, sum of squares and of magnitudes, extremes."""
    return (
        tl.sum(x, axis=0).to(tl.float64),
        tl.sum(x * x, axis=0).to(tl.float64),
        tl.sum(size, axis=0).to(tl.float64),
        tl.min(x, axis=0),
        tl.max(x, axis=0),
    )


@triton.jit
def _careful(x, size):
    """The same in fp64, over the finite elements."""
    finite = size < float("inf")
    value = tl.where(finite, x, 0.0).to(tl.float64)
    return (
        tl.sum(value, axis=0),
        tl.sum(value * value, axis=0),
        tl.sum(tl.abs(value), axis=0),
        tl.min(tl.where(finite, x, float("inf")), axis=0),
        tl.max(tl.where(finite, x, float("-inf")), axis=0),
    )


@triton.jit
def _how_many(which):
    return tl.sum(tl.sum(which.to(tl.int32), axis=0), axis=0)


@triton.jit
def _complex_parts(address, offsets, mask, KIND: tl.constexpr):
    if KIND == COMPLEX64:
        pointer = address.to(tl.pointer_type(tl.float32)) + 2 * offsets
        real = tl.load(pointer, mask=mask, other=float("nan")).to(tl.float64)
        imaginary = tl.load(pointer + 1, mask=mask, other=float("nan")).to(tl.float64)
    else:
        pointer = address.to(tl.pointer_type(tl.float64)) + 2 * offsets
        real = tl.load(pointer, mask=mask, other=float("nan"))
        imaginary = tl.load(pointer + 1, mask=mask, other=float("nan"))
    return real, imaginary


@triton.jit
def _magnitude(real, imaginary):
    """Of finite complex elements; divided by the larger part, so that the squares of neither over- nor underflow."""
    longer = tl.maximum(tl.abs(real), tl.abs(imaginary))
    ratio = tl.minimum(tl.abs(real), tl.abs(imaginary)) / tl.where(longer > 0, longer, 1.0)
    return longer * tl.sqrt(1.0 + ratio * ratio)


@triton.jit(do_not_specialize=["chunk_count"])
def measure_chunks(table, limits, partials, chunk_count, KIND: tl.constexpr, STEPS: tl.constexpr, LANES: tl.constexpr):
    """One chunk per program. `table`: addresses of chunks, then their lengths; `limits`: both thresholds."""
    TILE: tl.constexpr = STEPS * LANES
    IS_COMPLEX: tl.constexpr = KIND >= COMPLEX64
    IS_NARROW: tl.constexpr = KIND != FLOAT64 and KIND < COMPLEX64
    EXTREMES: tl.constexpr = tl.float32 if IS_NARROW else tl.float64
    chunk = tl.program_id(0)
    near = tl.load(limits).to(EXTREMES)
    large = tl.load(limits + 1).to(EXTREMES)
    address = tl.load(table + chunk)
    length = tl.load(table + chunk_count + chunk).to(tl.int32)
    offsets = tl.arange(0, STEPS)[:, None] * LANES + tl.arange(0, LANES)[None, :]  # (steps, lanes)

    total = tl.zeros((LANES,), tl.float64)
    square = tl.zeros((LANES,), tl.float64)
    magnitude = tl.zeros((LANES,), tl.float64)
    low = tl.full((LANES,), float("inf"), EXTREMES)
    high = tl.full((LANES,), float("-inf"), EXTREMES)
    small = tl.zeros((LANES,), tl.int32)
    # What few tiles have is reduced there and then, and takes one register instead of one per lane.
    largest = tl.zeros((), tl.float64)
    huge = tl.zeros((), tl.int32)
    nan = tl.zeros((), tl.int32)
    infinite = tl.zeros((), tl.int32)
    downwards = tl.zeros((), tl.float64)

    for start in range(0, length, TILE):
        here = offsets + start
        if IS_COMPLEX:
            real, imaginary = _complex_parts(address, here, here < length, KIND)
            is_nan = (real != real) | (imaginary != imaginary)
            up = (real == float("inf")) | (imaginary == float("inf"))
            down = (real == float("-inf")) | (imaginary == float("-inf"))
            finite = (is_nan | up | down) == 0
            # Sums and extremes are over both parts, everything else goes by the magnitude.
            s, q, _, a, b = _careful(tl.where(finite, real, float("nan")), tl.where(finite, tl.abs(real), float("inf")))
            total, square = total + s, square + q
            low, high = tl.minimum(low, a), tl.maximum(high, b)
            part = tl.where(finite, imaginary, float("nan"))
            s, q, _, a, b = _careful(part, tl.where(finite, tl.abs(part), float("inf")))
            total, square = total + s, square + q
            low, high = tl.minimum(low, a), tl.maximum(high, b)
            size = _magnitude(tl.where(finite, real, 0.0), tl.where(finite, imaginary, 0.0))
            magnitude += tl.sum(size, axis=0)
            small += _counted(tl.where(finite, size, float("nan")), near)
            largest = tl.maximum(largest, tl.max(tl.max(size, axis=0), axis=0))
            huge += _how_many((size > large) & finite)
            nan += _how_many(is_nan)
            infinite += _how_many((up | down) & (is_nan == 0))
            both = _how_many(up & down & (is_nan == 0))
            downwards += _how_many(down & (is_nan == 0)).to(tl.float64) - 0.5 * both.to(tl.float64)
        else:
            if IS_NARROW:
                if start + TILE <= length:
                    x = _narrow(address, here, KIND)
                else:
                    x = _narrow_masked(address, here, here < length, KIND)
                bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
                size = bits.to(tl.float32, bitcast=True)
                # Magnitudes are in the order of their bits, and NaN comes last; a maximum of floats would lose it.
                most = tl.max(tl.max(bits, axis=0), axis=0).to(tl.float32, bitcast=True)
                fits = (most < LARGEST_ORDINARY) & ((most >= SMALLEST_ORDINARY) | (most == 0))
                ordinary = fits & (most <= large)
            else:
                if start + TILE <= length:
                    x = tl.load(tl.multiple_of(address.to(tl.pointer_type(tl.float64)), 16) + here)
                else:
                    pointer = address.to(tl.pointer_type(tl.float64)) + here
                    x = tl.load(pointer, mask=here < length, other=float("nan"))
                size = tl.abs(x)
                bits = x.to(tl.int64, bitcast=True) & 0x7FFFFFFFFFFFFFFF
                most = tl.max(tl.max(bits, axis=0), axis=0).to(tl.float64, bitcast=True)
                ordinary = most <= large
            small += _counted(size, near)
            if ordinary:
                s, q, m, a, b = _ordinary(x, size)
            else:
                s, q, m, a, b = _careful(x, size)
                huge += _how_many((size > large) & (size < float("inf")))
                nan += _how_many(x != x)
                infinite += _how_many(size == float("inf"))
                downwards += _how_many(x == float("-inf")).to(tl.float64)
            total, square, magnitude = total + s, square + q, magnitude + m
            low, high = tl.minimum(low, a), tl.maximum(high, b)

    padding = (length + TILE - 1) // TILE * TILE - length
    lowest, highest = tl.min(low, axis=0).to(tl.float64), tl.max(high, axis=0).to(tl.float64)
    if not IS_COMPLEX:
        largest = tl.maximum(highest, -lowest)
        largest = tl.where(largest > 0, largest, 0.0)
    tl.store(partials + chunk, tl.sum(total, axis=0))
    tl.store(partials + chunk_count + chunk, tl.sum(square, axis=0))
    tl.store(partials + 2 * chunk_count + chunk, tl.sum(magnitude, axis=0))
    tl.store(partials + 3 * chunk_count + chunk, lowest)
    tl.store(partials + 4 * chunk_count + chunk, highest)
    tl.store(partials + 5 * chunk_count + chunk, largest)
    tl.store(partials + 6 * chunk_count + chunk, tl.sum(small & 0xFFFF, axis=0).to(tl.float64))
    tl.store(partials + 7 * chunk_count + chunk, tl.sum(small >> 16, axis=0).to(tl.float64))
    tl.store(partials + 8 * chunk_count + chunk, huge.to(tl.float64))
    tl.store(partials + 9 * chunk_count + chunk, (nan - padding).to(tl.float64))
    tl.store(partials + 10 * chunk_count + chunk, infinite.to(tl.float64))
    tl.store(partials + 11 * chunk_count + chunk, downwards)


@triton.jit(do_not_specialize=["chunk_count", "row_count"])
def count_exponents(
    table, shift, bins, chunk_count, row_count, KIND: tl.constexpr, STEPS: tl.constexpr, LANES: tl.constexpr
):
    """One chunk per program, added to the 64 bins of its row. `shift`: a power of two that elements are divided by.

    The last part of `table` has the row of each chunk; `exponents.bins_of_fields` says what is in which bin.
    """
    TILE: tl.constexpr = STEPS * LANES
    IS_COMPLEX: tl.constexpr = KIND >= COMPLEX64
    chunk = tl.program_id(0)
    address = tl.load(table + chunk)
    length = tl.load(table + chunk_count + chunk).to(tl.int32)
    row = tl.load(table + 2 * chunk_count + 2 * row_count + 1 + chunk)
    divided_by = tl.load(shift).to(tl.int32)
    offsets = tl.arange(0, STEPS)[:, None] * LANES + tl.arange(0, LANES)[None, :]  # (steps, lanes)
    found = tl.zeros((64,), tl.int32)
    for start in range(0, length, TILE):
        here = offsets + start
        if KIND == FLOAT64 or IS_COMPLEX:
            if IS_COMPLEX:
                real, imaginary = _complex_parts(address, here, here < length, KIND)
                finite = (tl.abs(real) < float("inf")) & (tl.abs(imaginary) < float("inf"))
                size = _magnitude(tl.where(finite, real, 0.0), tl.where(finite, imaginary, 0.0))
            else:
                x = tl.load(address.to(tl.pointer_type(tl.float64)) + here, mask=here < length, other=0.0)
                size = tl.abs(x)
                finite = size < float("inf")
            wanted = finite & (size > 0)
            raw = ((size.to(tl.int64, bitcast=True) >> 52) & 2047).to(tl.int32)
            field = tl.minimum(tl.maximum(raw - 1023 + 127, 0), 254)
        else:
            if start + TILE <= length:
                x = _narrow(address, here, KIND)
            else:
                x = _narrow_masked(address, here, here < length, KIND)
            bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
            field = bits >> 23
            wanted = (field < 255) & (bits > 0)
        exponent = field - 127 - divided_by
        at = tl.minimum(tl.maximum(exponent + 47, 1), 63)
        at = tl.where((exponent < -126) | (field == 0), 0, at)
        found += tl.histogram(tl.reshape(at, (TILE,)), 64, mask=tl.reshape(wanted, (TILE,)))
    # Whole numbers: the order in which chunks are added does not matter.
    tl.atomic_add(bins + row * 64 + tl.arange(0, 64), found.to(tl.int64), mask=found > 0, sem="relaxed")


@triton.jit
def _column(partials, column: tl.constexpr, chunk_count, chunks, mask, neutral: tl.constexpr):
    return tl.load(partials + column * chunk_count + chunks, mask=mask, other=neutral)


@triton.jit(do_not_specialize=["chunk_count", "row_count"])
def merge_chunks(table, partials, rows, chunk_count, row_count, PARTS: tl.constexpr, WIDTH: tl.constexpr):
    """One row per program, in the order of `COLUMNS`. After the lengths, `table` has the first chunk of each row, and
    the end of the last; then the count of each row."""
    row = tl.program_id(0)
    bounds = table + 2 * chunk_count
    counts = bounds + row_count + 1
    first = tl.load(bounds + row).to(tl.int32)
    last = tl.load(bounds + row + 1).to(tl.int32)
    count = tl.load(counts + row).to(tl.float64)
    total = tl.zeros((WIDTH,), tl.float64)
    square = tl.zeros((WIDTH,), tl.float64)
    magnitude = tl.zeros((WIDTH,), tl.float64)
    low = tl.full((WIDTH,), float("inf"), tl.float64)
    high = tl.full((WIDTH,), float("-inf"), tl.float64)
    largest = tl.zeros((WIDTH,), tl.float64)
    zeros = tl.zeros((WIDTH,), tl.float64)
    tiny = tl.zeros((WIDTH,), tl.float64)
    huge = tl.zeros((WIDTH,), tl.float64)
    nan = tl.zeros((WIDTH,), tl.float64)
    infinite = tl.zeros((WIDTH,), tl.float64)
    downwards = tl.zeros((WIDTH,), tl.float64)
    for start in range(first, last, WIDTH):
        chunks = start + tl.arange(0, WIDTH)
        mask = chunks < last
        total += _column(partials, 0, chunk_count, chunks, mask, 0.0)
        square += _column(partials, 1, chunk_count, chunks, mask, 0.0)
        magnitude += _column(partials, 2, chunk_count, chunks, mask, 0.0)
        low = tl.minimum(low, _column(partials, 3, chunk_count, chunks, mask, float("inf")))
        high = tl.maximum(high, _column(partials, 4, chunk_count, chunks, mask, float("-inf")))
        largest = tl.maximum(largest, _column(partials, 5, chunk_count, chunks, mask, 0.0))
        zeros += _column(partials, 6, chunk_count, chunks, mask, 0.0)
        tiny += _column(partials, 7, chunk_count, chunks, mask, 0.0)
        huge += _column(partials, 8, chunk_count, chunks, mask, 0.0)
        nan += _column(partials, 9, chunk_count, chunks, mask, 0.0)
        infinite += _column(partials, 10, chunk_count, chunks, mask, 0.0)
        downwards += _column(partials, 11, chunk_count, chunks, mask, 0.0)
    bad = tl.sum(nan, axis=0), tl.sum(infinite, axis=0)
    at = rows + row * 14
    tl.store(at, count)
    tl.store(at + 1, (count - bad[0] - bad[1]) * PARTS)
    tl.store(at + 2, tl.sum(total, axis=0))
    tl.store(at + 3, tl.sum(square, axis=0))
    tl.store(at + 4, tl.sum(magnitude, axis=0))
    tl.store(at + 5, tl.min(low, axis=0))
    tl.store(at + 6, tl.max(high, axis=0))
    tl.store(at + 7, tl.max(largest, axis=0))
    tl.store(at + 8, tl.sum(zeros, axis=0))
    tl.store(at + 9, tl.sum(tiny, axis=0))
    tl.store(at + 10, tl.sum(huge, axis=0))
    tl.store(at + 11, bad[0])
    tl.store(at + 12, bad[1])
    tl.store(at + 13, tl.sum(downwards, axis=0))
