from typing import Final

import numpy as np
from numpy.typing import NDArray

COLUMN_COUNT: Final[int]

def fill(
    addresses: NDArray[np.int64] | bytes,
    counts: NDArray[np.int64] | bytes,
    kinds: bytes,
    near_zero: float,
    very_large: float,
    threads: int,
    rows: NDArray[np.float64],
) -> None: ...
def describe() -> tuple[str, str]: ...
