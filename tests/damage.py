"""Runs that are damaged in every way we could think of, and everybody who reads one.

`mutations(data, seed)` gives damaged copies without end; `read_by_all(folder, other)` hands a run folder to every
reader and says how each took it. Shared by `tests/record/test_damaged_files.py` and `benchmarks/fuzz_run_file.py`.
"""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from click.testing import CliRunner
from starlette.testclient import TestClient
from torch import nn

import gradient_flow as gf
from gradient_flow.cli.main import main
from gradient_flow.errors import GradientFlowWarning
from gradient_flow.report.compare_text import comparison_tables
from gradient_flow.report.data import page_data
from gradient_flow.report.html import render_page
from gradient_flow.report.serve.access import Access
from gradient_flow.report.serve.app import application
from gradient_flow.report.serve.live_runs import LiveRuns
from gradient_flow.report.serve.run_ids import RunFolder
from gradient_flow.report.text import markdown_report, plain_report

NUMBERS = ("0", "-1", "1e308", "-1e308", "1e-320", "9007199254740993", "18446744073709551615", "9" * 400, "1e999")
TOKENS = ("NaN", "Infinity", "-Infinity", "nan", "None", "undefined", "0x1", "1.", "--1")
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    "",
    "text",
    "\ud83d\ude00\x1b[31m\n=1+1",
    [],
    {},
    [[]],
    [None],
    {"a": {"b": [1, "x"]}},
    ["a", 1, None],
    [1e300] * 3,
    -1,
    0,
    1.5,
    1e300,
    -1e300,
    2**53,
    2**64 - 1,
    "NaN",
    [0] * 5000,
)


def small_run(folder: Path) -> Path:
    """A real run with all kinds of lines: steps, looks, what a probe saw, events, parameters that join, and an end."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    manager = gf.GradientManager(gf.GradientConfig(max_grad_norm=0.05))
    inputs = torch.randn(16, 4)

    def batch() -> torch.Tensor:
        return inputs

    def loss_of(output: torch.Tensor) -> torch.Tensor:
        return output.square().mean()

    analyzer = gf.GradientFlowAnalyzer(model)
    analyzer.analyze(batch, loss_of, steps=4)
    with gf.watch(model, optimizer, run=folder, layers_every=4, manager=manager) as flow:
        for step in range(1, 21):
            optimizer.zero_grad()
            loss = loss_of(model(batch())) * (float("nan") if step == 17 else 1.0)
            flow.log(loss=loss.item(), metrics={"accuracy": step / 20}, many=[1.0, 2.0])
            loss.backward()
            optimizer.step()
        flow.add_origin(gf.find_nonfinite(lambda: loss_of(model(batch()).sub(float("inf")).mul(0.0)), model))
        flow.add_look(analyzer.seen)
    return folder


# ---- damage -----------------------------------------------------------------------------------------------------


def mutations(data: bytes, seed: int) -> Iterator[tuple[str, bytes]]:
    """Damaged copies without end, each with the name of what was done to it."""
    for count in range(1 << 62):
        chance = random.Random(f"{seed} {count}")
        kind = KINDS[count % len(KINDS)]
        damaged = kind(data, chance)
        if chance.random() < 0.15:  # two things may go wrong
            damaged = chance.choice(KINDS)(damaged, chance)
        yield kind.__name__.strip("_"), damaged


def _bits_flipped(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 3, 30))):
        if changed:
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _cut_off(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _beginning_lost(data: bytes, chance: random.Random) -> bytes:
    return data[chance.randrange(len(data) + 1) :]


def _bytes_deleted(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + data[at + chance.choice((1, 2, 10, 500)) :]


def _bytes_inserted(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    rubbish = chance.choice((chance.randbytes(chance.choice((1, 5, 200))), b"\n", b"\x00" * 64, b'"', b"}", b"{", b"]"))
    return data[:at] + rubbish + data[at:]


def _binary_line(data: bytes, chance: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    lines.insert(chance.randrange(len(lines) + 1), chance.randbytes(300) + b"\n")
    return b"".join(lines)


def _lines_swapped(data: bytes, chance: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    if len(lines) > 1:
        a, b = chance.sample(range(len(lines)), 2)
        lines[a], lines[b] = lines[b], lines[a]
    return b"".join(lines)


def _lines_repeated(data: bytes, chance: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    if lines:
        lines[chance.randrange(len(lines)) : 0] = [chance.choice(lines)] * chance.choice((1, 3, 40))
    return b"".join(lines)


def _header_in_the_middle(data: bytes, chance: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    if lines:
        lines.insert(chance.randrange(len(lines) + 1), _line_changed(lines[0], chance))
    return b"".join(lines)


def _wrong_type(data: bytes, chance: random.Random) -> bytes:
    """Another value in some field of some line, at any depth."""
    lines = data.splitlines(keepends=True)
    if lines:
        at = chance.randrange(len(lines)) if chance.random() < 0.8 else 0
        lines[at] = _line_changed(lines[at], chance)
    return b"".join(lines)


def _wrong_type_everywhere(data: bytes, chance: random.Random) -> bytes:
    return b"".join(_line_changed(line, chance) for line in data.splitlines(keepends=True))


def _wrong_token(data: bytes, chance: random.Random) -> bytes:
    """A huge number, or one that JSON does not know, in place of another."""
    lines = data.splitlines(keepends=True)
    if not lines:
        return data
    at = chance.randrange(len(lines))
    digits = [place for place, byte in enumerate(lines[at]) if chr(byte).isdigit()]
    if digits:
        low = high = chance.choice(digits)
        while high < len(lines[at]) and chr(lines[at][high]) in "0123456789.e-+":
            high += 1
        while low > 0 and chr(lines[at][low - 1]) in "0123456789.e-+":
            low -= 1
        lines[at] = lines[at][:low] + chance.choice(NUMBERS + TOKENS).encode() + lines[at][high:]
    return b"".join(lines)


def _deep_nesting(data: bytes, chance: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    if not lines:
        return data
    deep = chance.choice((20, 40, 300, 1000, 100_000))
    opening, closing = chance.choice((("[", "]"), ('{"a":', "}")))
    at, name = chance.randrange(len(lines)), chance.choice(_NAMES)
    nested = f',"{name}":{opening * deep}1{closing * deep}}}\n'
    lines[at] = lines[at].rstrip(b"\n")[:-1] + nested.encode()
    return b"".join(lines)


def _names_twice(data: bytes, chance: random.Random) -> bytes:
    """The same name for two tensors, or a key that stands twice in a line."""
    lines = data.splitlines(keepends=True)
    if not lines:
        return data
    if chance.random() < 0.5:
        return data.replace(b'"0.weight"', b'"0.bias"', chance.choice((1, -1)))
    at, name = chance.randrange(len(lines)), chance.choice(_NAMES)
    value = json.dumps(chance.choice(VALUES))
    lines[at] = lines[at].rstrip(b"\n")[:-1] + f',"{name}":{value}}}\n'.encode()
    return b"".join(lines)


def _huge_shape(data: bytes, chance: random.Random) -> bytes:
    sizes = chance.choice(([10**9] * 20, [2**62, 2**62], [0, 10**18], [1] * 5000, [2**40], [-1, -1], [3.5], [True]))
    return data.replace(b'"shape":[6,4]', f'"shape":{json.dumps(sizes)}'.encode(), 1)


def _many_names(data: bytes, chance: random.Random) -> bytes:
    """Every step logs names of its own."""
    lines, many = data.splitlines(keepends=True), chance.choice((3, 3, 3, 3, 3, 3, 3, 300))
    for at, line in enumerate(lines):
        if line.startswith(b'{"kind":"step"'):
            more = "".join(f',"n{at}_{k}":{k}' for k in range(many))
            lines[at] = line.rstrip(b"\n")[:-1] + more.encode() + b"}\n"
    return b"".join(lines)


_NAMES = (
    *("kind", "step", "time", "norm", "loss", "lr", "nan_count", "nonfinite_layers", "guard", "rows", "sum", "zeros"),
    *(
        "found",
        "probe",
        "verdict",
        "settings",
        "parameters",
        "groups",
        "format",
        "origin",
        "skipped_steps",
        "optimizer",
    ),
)
KINDS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _wrong_type,
    _bits_flipped,
    _wrong_token,
    _cut_off,
    _bytes_deleted,
    _bytes_inserted,
    _wrong_type,
    _beginning_lost,
    _binary_line,
    _lines_swapped,
    _lines_repeated,
    _header_in_the_middle,
    _wrong_type_everywhere,
    _deep_nesting,
    _names_twice,
    _huge_shape,
    _many_names,
)


def _line_changed(line: bytes, chance: random.Random) -> bytes:
    try:
        record = json.loads(line)
    except ValueError:
        return line
    holder, key = record, None
    while isinstance(holder, (dict, list)) and holder:
        key = chance.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        if not isinstance(holder[key], (dict, list)) or not holder[key] or chance.random() < 0.4:
            break
        holder = holder[key]
    if key is None:
        return line
    if chance.random() < 0.15:
        del holder[key]
    else:
        holder[key] = chance.choice(VALUES)
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


# ---- readers ----------------------------------------------------------------------------------------------------


class Misread(AssertionError):
    """A damaged file was not taken as it should be."""


def read_by_all(folder: Path, other: Path) -> dict[str, str]:
    """What each reader makes of the run: `read` or `refused`. Anything else that happens is a `Misread`.

    `other` is a sound run to compare with.
    """
    outcomes = {}
    for name, read in READERS.items():
        with warnings.catch_warnings():
            # A rule that fails on what nobody could have recorded is left out with a warning.
            warnings.simplefilter("ignore", GradientFlowWarning)
            try:
                read(folder, other)
                outcomes[name] = "read"
            except gf.RunFileError:
                outcomes[name] = "refused"
            except Exception as problem:
                raise Misread(f"{name}: {type(problem).__name__}: {problem}") from problem
    return outcomes


def _run(folder: Path, _other: Path) -> None:
    run = gf.load_run(folder)
    for name in run.names:
        assert len(run.series(name)) == len(run)
    for step in run.table_steps:
        try:
            str(run.table(step)), run.layers(step)
        except gf.RunFileError:
            continue  # one table is damaged: that one is refused when it is asked for
    assert all(isinstance(record, dict) for record in run.records)
    assert len(list(run.steps)) == len(run)
    assert all(isinstance(note, str) for note in run.notes)
    json.dumps([event.to_line() for event in run.events], allow_nan=False)


def _diagnosis(folder: Path, _other: Path) -> None:
    found = gf.diagnose(folder)
    str(found), json.dumps(found.to_dict(), allow_nan=False)


def _page(folder: Path, _other: Path) -> None:
    data = page_data(folder)
    json.dumps(data, allow_nan=False)
    render_page(data), markdown_report(data), plain_report(data)


def _compared(folder: Path, other: Path) -> None:
    found = gf.compare(folder, other)
    json.dumps(found.to_dict(), allow_nan=False)
    list(comparison_tables(found, 80, 8))


def _command(*arguments: str, statuses: tuple[int, ...] = (0,)) -> Callable[[Path, Path], None]:
    def run(folder: Path, other: Path) -> None:
        places = {"RUN": str(folder), "OTHER": str(other), "OUT": str(folder / "out")}
        done = CliRunner().invoke(main, [places.get(each, each) for each in arguments], env={"COLUMNS": "80"})
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        if done.exit_code == 2 and done.output.strip():
            raise gf.RunFileError(done.output)
        assert done.exit_code in statuses, f"exit status {done.exit_code}: {done.output}"

    return run


def _diagnose_command(folder: Path, other: Path) -> None:
    """Exit status 1 means that there are issues, and nothing else does."""
    done = CliRunner().invoke(main, ["diagnose", "--json", str(folder)])
    if done.exit_code == 2:
        raise gf.RunFileError(done.output)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    told = json.loads(done.stdout)
    assert done.exit_code == int(bool(told["failed"]))
    _command("diagnose", "RUN", statuses=(0, 1))(folder, other)


def _server(folder: Path, _other: Path) -> None:
    live = LiveRuns(RunFolder(folder))
    live._start = lambda work: work()  # type: ignore[method-assign]  # what goes wrong beside a request counts too
    app = Access(application(live), host="127.0.0.1", token=None)
    refused = False
    live.prepare()
    client = TestClient(app, base_url="http://localhost")
    for path in ("/api/runs", "/api/run/-?columns=3&cells=9", "/api/run/-/layer?name=0.weight"):
        answer = client.get(path)
        assert answer.status_code in (200, 404, 422), f"{path}: {answer.status_code} {answer.text}"
        json.loads(answer.text)
        refused |= answer.status_code == 422
    if refused:
        raise gf.RunFileError("by the server")


READERS: dict[str, Callable[[Path, Path], None]] = {
    "load_run": _run,
    "diagnose": _diagnosis,
    "page": _page,
    "compare": _compared,
    "gradient-flow diagnose": _diagnose_command,
    "gradient-flow report": _command("report", "RUN", "--format", "json", "--out", "OUT"),
    "gradient-flow compare": _command("compare", "OTHER", "RUN"),
    "gradient-flow export": _command("export", "RUN", "--to", "csv", "--out", "OUT"),
    "gradient-flow export layers": _command("export", "RUN", "--to", "json", "--what", "layers", "--out", "OUT"),
    "gradient-flow tail": _command("tail", "--once", "RUN"),
    "server": _server,
}
