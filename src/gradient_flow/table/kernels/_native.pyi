from typing import Final

COLUMN_COUNT: Final[int]

def measure(
    addresses: bytes, counts: bytes, kinds: bytes, near_zero: float, very_large: float, threads: int
) -> bytearray: ...
def describe() -> tuple[str, str]: ...
