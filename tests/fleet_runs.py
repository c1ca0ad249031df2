"""Folders of small runs for tests of fleets, written without a training: healthy ones, and sick of known causes."""

import math

import numpy as np

from gradient_flow.record.run_lines import FILE_NAME, FORMAT_VERSION, encode

LAYERS = [f"block.{at}.weight" for at in range(6)]
NAN_AT = 31
SICK = {"nan": ("NUMERICAL", NAN_AT), "vanish": ("VANISHING", None)}
"""Kind of run → the type of its gravest issue, and since when where the file says so."""


def write_run(folder, kind="healthy", *, seed=0, steps=60, end=True, lr=0.01, error=None, **config):
    """A run of a stack of six matrices. `kind`: healthy, nan (from step 31 on), vanish (little gets to the first)."""
    random = np.random.default_rng(seed)
    parameters = [{"name": name, "shape": [32, 32], "dtype": "float32"} for name in LAYERS]
    header = {"kind": "header", "format": FORMAT_VERSION, "started": "2026-01-01T00:00:00+00:00", "settings": {}}
    lines = [header | {"parameters": parameters}]
    optimizer = {"class": "SGD", "groups": [{"lr": lr, "momentum": 0.9}]}
    lines.append({"kind": "about", "optimizers": [optimizer], "seed": seed, "config": config})
    for step in range(1, steps + 1):
        bad = kind == "nan" and step >= NAN_AT
        norms = np.exp(random.normal(0, 0.05, len(LAYERS)))
        if kind == "vanish":
            norms *= 10.0 ** np.arange(-10, 2, 2)
        total = None if bad else math.sqrt((norms**2).sum())
        loss = None if bad else (2.0 if kind == "vanish" else 2 * 0.97**step) + 0.01 * random.uniform()
        counts = {"nan_count": 32 * 32 if bad else 0, "inf_count": 0}
        lines.append(
            {"kind": "step", "step": step, "time": step / 10, "norm": total, **counts, "loss": loss, "lr": [lr]}
        )
        if step % 5 == 0:
            lines.append(_look(step, norms, bad))
    if end:
        ending = {"state": "failed", "error": error, "message": "no memory"} if error else {"state": "finished"}
        lines.append({"kind": "end", "steps": steps, "ending": ending})
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / FILE_NAME).open("ab") as file:
        file.write(b"".join(encode(line) + b"\n" for line in lines))
    return folder


def _look(step, norms, bad):
    zeros = [0.0] * len(norms)
    ratios = (1e-3 * norms / norms.max()).tolist()
    line = {"kind": "look", "step": step, "rows": None, "norm": norms.tolist(), "sum": zeros, "sum_abs": norms.tolist()}
    line |= {"min": (-norms).tolist(), "max": norms.tolist(), "update_ratio": ratios}
    counts = dict.fromkeys(("zeros", "near_zero", "very_large", "nan", "inf", "neg_inf"), 0)
    return line | counts | ({"nan": [1024] * len(norms)} if bad else {})


def write_fleet(root, count=40, *, rate=lambda at: 10.0 ** -(1 + at % 4), kind=None):
    """So many runs. `kind(at)` says what each is; by default the tenth is NaN and the twentieth vanishes."""
    kinds = {}
    for at in range(count):
        one = kind(at) if kind else {0: "vanish", 10: "nan"}.get(at % 20, "healthy")
        name = f"sweep{at % 3}/run{at:03}"
        write_run(root / name, one, seed=at, lr=rate(at), width=2 ** (5 + at % 2))
        kinds[name] = one
    return kinds
