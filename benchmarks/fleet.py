"""Very many runs at once: `python benchmarks/fleet.py [--save | --small] [--runs N] [--keep FOLDER]`.

Some real trainings, healthy and sick of known causes, are watched; the fleet is made of them, each copy with settings
of its own, so that every run is judged as a real one is. `wc -l` over the same files is what it costs to read them.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import orjson
import torch
from torch import nn

import gradient_flow as gf
from gradient_flow.fleets.fleet import Fleet
from timing import Report

SMALL = "--small" in sys.argv
"""A tiny fleet: does the script work? Its figures mean nothing."""


def option(name: str, default: str) -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


RUNS = int(option("--runs", "40" if SMALL else "10000"))
STEPS = 150 if SMALL else 1_000
HEALTHY, SEEDS = (2, 1) if SMALL else (12, 3)
"""Trainings that are watched: healthy ones, and of each fault."""
SICK_SHARE = 0.05
FAULTS = {
    "missing_zero_grad": "missing_zero_grad",
    "nan": "loss_nonfinite",
    "rate": "rate_too_high",
    "vanish": "vanishing",
}
"""What is planted → the cause that has to be told."""
TOO_HIGH = 30.0


def train(folder: Path, fault: str, seed: int) -> None:
    torch.manual_seed(seed)
    depth, part = (10, nn.Sigmoid) if fault == "vanish" else (4, nn.Tanh)
    hidden = [layer for _ in range(depth) for layer in (nn.Linear(32, 32), part())]
    model = nn.Sequential(nn.Linear(16, 32), part(), *hidden, nn.Linear(32, 4))
    for layer in model if fault != "vanish" else ():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_normal_(layer.weight, gain=1.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=TOO_HIGH if fault == "rate" else 0.02)
    with gf.watch(model, optimizer, run=folder):
        for step in range(STEPS):
            x = torch.randn(64, 16)
            loss = nn.functional.mse_loss(model(x), x[:, :4] + 0.5 * x[:, 4:8])
            loss = loss * float("nan") if fault == "nan" and step == STEPS * 2 // 3 else loss
            if fault != "missing_zero_grad":
                optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def watched(folder: Path) -> dict[str, list[bytes]]:
    """The files of the trainings that all others are copies of, by what was planted."""
    found: dict[str, list[bytes]] = {}
    for fault, count in {"": HEALTHY, **dict.fromkeys(FAULTS, SEEDS)}.items():
        for seed in range(count):
            file = folder / f"{fault or 'healthy'}{seed}" / "run.jsonl"
            if not file.exists():  # with --keep they may be there from before
                train(file.parent, fault, seed)
            found.setdefault(fault, []).append(file.read_bytes())
    return found


def write(file: Path, content: bytes, settings: dict[str, object], rate: float | None, seed: int) -> None:
    """A copy that was started with other settings."""
    lines = content.split(b"\n", 2)
    about = orjson.loads(lines[1])
    assert about["kind"] == "about"
    about |= {"config": settings, "seed": seed}
    if rate is not None:
        about["optimizers"]["0"]["groups"][0]["lr"] = rate
    file.parent.mkdir(parents=True)
    file.write_bytes(b"\n".join((lines[0], orjson.dumps(about), lines[2])))


def write_fleet(folder: Path, models: dict[str, list[bytes]], count: int, first: int = 0) -> dict[str, str]:
    """So many runs, one in twenty sick; name → what is planted. Whose rate is too high says so in its settings."""
    chance, planted = random.Random(first), {}
    for at in range(first, first + count):
        fault = chance.choice(list(FAULTS)) if at % round(1 / SICK_SHARE) == 0 else ""
        settings = {"width": chance.choice((64, 128, 256)), "data": chance.choice("abc"), "dropout": chance.random()}
        rate = None if fault == "rate" else 10 ** chance.uniform(-4, -1)
        name = f"sweep{at // 100:04}/run{at:06}"
        write(folder / name / "run.jsonl", chance.choice(models[fault]), settings, rate, seed=at)
        planted[name] = fault
    return planted


@contextmanager
def peak_memory() -> Iterator[list[float]]:
    """The largest memory of this process and its children together while the block lasts, in GB."""
    code = (
        "import sys, time, pathlib\n"
        "def mine(pid):\n"
        "    try: return sum(int(v) for v in pathlib.Path(f'/proc/{pid}/statm').read_text().split()[1:2]) * 4096\n"
        "    except OSError: return 0\n"
        "def family(pid):\n"
        "    try: inner = pathlib.Path(f'/proc/{pid}/task/{pid}/children').read_text().split()\n"
        "    except OSError: return []\n"
        "    threads = pathlib.Path(f'/proc/{pid}/task')\n"
        "    try: inner += [c for t in threads.iterdir() for c in (t / 'children').read_text().split()]\n"
        "    except OSError: pass\n"
        "    return sorted({c for c in inner} - {str(__import__('os').getpid())})\n"
        "root, most = sys.argv[1], 0\n"
        "while not sys.stdin.closed and pathlib.Path(sys.argv[2]).exists():\n"
        "    most = max(most, mine(root) + sum(mine(c) for c in family(root)))\n"
        "    time.sleep(0.1)\n"
        "print(most / 1e9)"
    )
    found: list[float] = []
    with tempfile.NamedTemporaryFile() as mark:
        watcher = subprocess.Popen([sys.executable, "-c", code, str(os.getpid()), mark.name], stdout=subprocess.PIPE)
        yield found
    output, _ = watcher.communicate(timeout=60)
    found.append(float(output))


def timed_fleet(folder: Path, **settings: object) -> tuple[float, Fleet]:
    start = time.perf_counter()
    found = gf.fleet(folder, **settings)  # type: ignore[arg-type]
    return time.perf_counter() - start, found


def rows(fleet: Fleet, table: str) -> list[dict[str, object]]:
    order = "run" if table == "runs" else "run, place"
    kept = fleet.sql(f"SELECT * FROM {table} ORDER BY {order}").to_pylist()
    return [{name: value for name, value in row.items() if name not in ("digested", "part")} for row in kept]


def figures(folder: Path, report: Report) -> None:
    start = time.perf_counter()
    models = watched(folder / "watched")
    fleet_folder = folder / "runs"
    planted = write_fleet(fleet_folder, models, RUNS)
    files = [fleet_folder / name / "run.jsonl" for name in planted]
    size = sum(file.stat().st_size for file in files) / 1e9
    report.say(f"\n{RUNS:,} runs of {STEPS:,} steps, {size:.2f} GB, written in {time.perf_counter() - start:.0f} s")
    report.say(f"load of the machine as it begins: {os.getloadavg()[0]:.1f}")

    with peak_memory() as memory:
        cpu = time_of_children()
        seconds, fleet = timed_fleet(fleet_folder, workers=2)
        cpu = time_of_children() - cpu
    report.figure("first digest, per run, two processes", 1e3 * seconds / RUNS, 20, unit=" ms")
    report.say(f"  {'processor time of the processes that read, per run':<66} {1e3 * cpu / RUNS:>10.3g} ms")
    report.figure("memory of all processes together, at its highest", memory[0], 1.0, unit=" GB")
    lines = time_of_wc(fleet_folder)
    report.say(f"  {'reference: wc -l over the same files':<66} {1e3 * lines / RUNS:>10.3g} ms per run")
    report.say(f"  {'first digest / that reference':<66} {seconds / lines:>10.3g}")

    correct(fleet, planted, report)
    queries(fleet, report)
    fleet.close()

    planted |= write_fleet(fleet_folder, models, 10, first=RUNS)
    seconds, fleet = timed_fleet(fleet_folder)
    report.figure("again after ten new runs", seconds, 2.0, unit=" s")
    assert len(fleet) == RUNS + 10
    with fleet:
        on_ray(fleet, fleet_folder, folder, report)
    listed(fleet_folder, report)


def correct(fleet: Fleet, planted: dict[str, str], report: Report) -> None:
    """Every planted run is told with its cause, and groups hold what they should."""
    told = {row["run"]: row["cause"] for row in fleet.runs(find="healthy=false")}
    sick = {run: FAULTS[fault] for run, fault in planted.items() if fault}
    right = sum(told.get(run) == cause for run, cause in sick.items())
    report.figure("planted sick runs that are listed with their cause", right / len(sick), 1.0, at_least=True)
    report.say(f"  {'healthy ones listed as sick':<66} {len(told.keys() - sick.keys()):>10}")
    purities = []
    for cause in fleet.causes:
        kinds = Counter(planted[run] for run, each in told.items() if each == cause.cause)
        purities.append(kinds.most_common(1)[0][1] / sum(kinds.values()))
    report.figure("least pure group of runs with one cause", min(purities), 0.95, at_least=True)
    first = next((each for each in fleet.settings if each.cause == "rate_too_high"), None)
    report.say(f"  rate_too_high: {'nothing goes with it' if first is None else first.sentence}")
    told_by_chance = sum(each.significant and each.name.startswith("config") for each in fleet.settings)
    report.say(f"  {'settings that were drawn by chance and told as beyond it':<66} {told_by_chance:>10}")


QUERIES = {
    "sick runs by cause": "SELECT cause, count(*) FROM runs WHERE NOT healthy GROUP BY cause",
    "quietest layers": "SELECT layer, median(norm_median) FROM layers GROUP BY layer ORDER BY 2 LIMIT 10",
    "sickness by a setting": "SELECT value, avg((NOT r.healthy)::INT) FROM runs r JOIN settings s USING (run) "
    "WHERE s.name = 'config width' GROUP BY value",
}


def queries(fleet: Fleet, report: Report) -> None:
    slowest = 0.0
    for name, query in QUERIES.items():
        start = time.perf_counter()
        fleet.sql(query)
        slowest = max(slowest, time.perf_counter() - start)
        report.say(f"  {f'SQL: {name}':<66} {time.perf_counter() - start:>10.3g} s")
    for name, ask in {
        "settings that go with sickness": lambda: (fleet.__dict__.pop("settings", None), fleet.settings),
        "a thousand runs with their issues": lambda: fleet.runs(limit=1000),
        "runs found by a word": lambda: fleet.runs(find="vanish"),
    }.items():
        start = time.perf_counter()
        ask()
        slowest = max(slowest, time.perf_counter() - start)
        report.say(f"  {name:<66} {time.perf_counter() - start:>10.3g} s")
    report.figure("slowest query", slowest, 1.0, unit=" s")


def on_ray(fleet: Fleet, fleet_folder: Path, folder: Path, report: Report) -> None:
    """A share of the runs on a local Ray with two workers: the same rows."""
    share = "1/1" if SMALL else f"1/{max(1, RUNS // 500)}"
    seconds, by_ray = timed_fleet(fleet_folder, ray=True, workers=2, shard=share, digests=folder / "ray")
    with by_ray:
        names = {row["run"] for row in rows(by_ray, "runs")}
        same = all(
            rows(by_ray, table) == [row for row in rows(fleet, table) if row["run"] in names]
            for table in ("runs", "issues", "layers")
        )
    report.say(f"  {f'{len(names):,} runs on a local Ray with two workers':<66} {seconds:>10.3g} s, with its start")
    report.figure("rows that are the same as without Ray", float(same), 1.0, at_least=True)


def listed(folder: Path, report: Report) -> None:
    """The list of `serve` in Chromium, where there is one."""
    driver = chromium()
    if driver is None:
        report.say("  the list in Chromium: not measured, there is no Chromium here")
        return
    command = [sys.executable, "-u", "-m", "gradient_flow", "serve", str(folder), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        url = next(line.strip() for line in process.stdout if "http://" in line)
        start = time.perf_counter()
        driver.get(url)
        while not driver.execute_script("return document.querySelectorAll('#runs-table tbody tr').length > 5"):
            time.sleep(0.02)
        report.figure("the list of runs, asked for and drawn in Chromium", time.perf_counter() - start, 2.0, unit=" s")
    finally:
        driver.quit()
        process.terminate()
        process.wait()


def chromium() -> Any:
    try:
        from selenium import webdriver
        from selenium.common.exceptions import WebDriverException

        options = webdriver.ChromeOptions()
        for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(flag)
        service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
        return webdriver.Chrome(options=options, service=service)
    except (ImportError, WebDriverException):
        return None


def time_of_children() -> float:
    used = os.times()
    return used.children_user + used.children_system


def time_of_wc(folder: Path) -> float:
    start = time.perf_counter()
    subprocess.run(
        "find . -name run.jsonl -print0 | xargs -0 wc -l", shell=True, cwd=folder, check=True, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - start


if __name__ == "__main__":
    report = Report("fleet")
    keep = option("--keep", "")
    with nullcontext(keep) if keep else tempfile.TemporaryDirectory() as temporary:
        figures(Path(temporary), report)
    report.close()
