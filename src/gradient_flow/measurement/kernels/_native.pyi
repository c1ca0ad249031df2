from typing import Final

from typing_extensions import Buffer

COLUMN_COUNT: Final[int]

def fill(
    addresses: Buffer,
    counts: Buffer,
    kinds: Buffer,
    near_zero: float,
    very_large: float,
    threads: int,
    rows: Buffer,
) -> None: ...
def describe() -> tuple[str, str]: ...
