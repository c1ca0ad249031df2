from typing import Any, Final

COLUMN_COUNT: Final[int]
BIN_COUNT: Final[int]

def measure(
    addresses: bytes,
    counts: bytes,
    kinds: bytes,
    near_zero: float,
    very_large: float,
    threads: int,
    sizes_only: bool = False,
) -> bytearray: ...
def exponents(addresses: bytes, counts: bytes, kinds: bytes, shift: int, threads: int) -> bytearray: ...
def locate(tensors: list[Any], types: tuple[type, ...], exchange_api: Any) -> tuple[bytes, bytes, bytes] | None: ...
def measure_tensors(
    tensors: list[Any],
    types: tuple[type, ...],
    exchange_api: Any,
    near_zero: float,
    very_large: float,
    threads: int,
    sizes_only: bool = False,
) -> bytearray | None: ...
def sample_tensors(
    tensors: list[Any], types: tuple[type, ...], exchange_api: Any, most: int, run: int
) -> tuple[bytearray, list[int]] | None: ...
def spaced(
    tensors: list[Any], types: tuple[type, ...], exchange_api: Any, most: int
) -> tuple[bytearray, list[int]] | None: ...
def spread(tensor: Any, types: tuple[type, ...], exchange_api: Any, most: int, step: float) -> bytes | None: ...
def total(rows: bytearray) -> tuple[float, ...]: ...
def describe() -> tuple[str, str]: ...
