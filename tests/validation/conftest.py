import sys
from pathlib import Path

import pytest
import torch

# The zoo lies beside `src`, not in it: it is no part of the package.
sys.path.insert(0, str(Path(__file__).parents[2]))


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    # Models this small only lose by sharing their work.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
