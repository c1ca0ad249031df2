"""The matrices of the page's data, unpacked again for what is drawn here and not in a browser."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def matrix_of(layers: Mapping[str, Any], name: str) -> NDArray[np.float32]:
    """Tensors × columns of one statistic; NaN where there is no record.

    >>> packed = base64.b64encode(np.array([1, 2], "<f4").tobytes()).decode()
    >>> matrix_of({"names": ["a"], "step": [1, 2], "matrix": {"norm": {"shape": [1, 2], "data": packed}}}, "norm")
    array([[1., 2.]], dtype=float32)
    """
    packed = (layers.get("matrix") or {}).get(name)
    if packed is None:
        return np.full((len(layers["names"]), len(layers["step"])), np.nan, dtype=np.float32)
    values = np.frombuffer(base64.b64decode(packed["data"]), dtype="<f4")
    return values.reshape(packed["shape"]).astype(np.float32)
