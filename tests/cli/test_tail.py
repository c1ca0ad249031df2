"""`gradient-flow tail`: in a real terminal that changes its size, in a pipe, and drawn from plain numbers."""

import fcntl
import math
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from dataclasses import replace

import pytest
from click.testing import CliRunner

from gradient_flow.cli.main import main
from gradient_flow.diagnosis.issue import Diagnosis, Issue, IssueSeverity, IssueType
from gradient_flow.report.live_run import LiveRun
from gradient_flow.report.tail_data import RunView, view_of
from gradient_flow.report.tail_view import fitting, view_text
from gradient_flow.report.terminal import sparkline
from recorded_runs import record

TAIL = [sys.executable, "-m", "gradient_flow", "tail", "--interval", "0.2"]
PATIENCE = 60.0


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return record(tmp_path_factory.mktemp("tail") / "run", bad_at=30)


@pytest.fixture
def unfinished(run, tmp_path):
    """The same run, before its end was written."""
    lines = (run / "run.jsonl").read_bytes().splitlines(keepends=True)
    assert b'"kind":"end"' in lines[-1]
    (tmp_path / "live").mkdir()
    (tmp_path / "live" / "run.jsonl").write_bytes(b"".join(lines[:-1]))
    return tmp_path / "live", lines[-1]


class Terminal:
    """A process in a pseudo-terminal, and what it wrote."""

    def __init__(self, command, columns, rows):
        master, slave = pty.openpty()
        self.master, self.data = master, b""
        self.resize(columns, rows)
        environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**environment, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"},
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        os.close(slave)

    def resize(self, columns, rows):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    @property
    def text(self):
        return self.data.decode(errors="ignore")  # a letter may have come by half

    def until(self, condition):
        """Read until what was written satisfies the condition."""
        end = time.monotonic() + PATIENCE
        while not condition(self.text):
            assert time.monotonic() < end, self.text[-2000:]
            if select.select([self.master], [], [], 0.2)[0]:
                try:
                    self.data += os.read(self.master, 65536)
                except OSError:  # the process closed its side
                    assert condition(self.text), self.text[-2000:]
        return self.text

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.master)


def widths(text):
    """Widths of the lines that were drawn as a whole."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.replace("\x1b[H", "\n"))
    return {len(line) for line in re.split(r"[\r\n]+", plain)[:-1]}


def test_the_live_view_follows_the_size_of_the_terminal_and_ends_with_the_run(unfinished):
    folder, last_line = unfinished
    with Terminal([*TAIL, str(folder)], 100, 30) as terminal:
        first = terminal.until(lambda text: "NUMERICAL" in text and "live" in text)
        assert "\x1b[?1049h" in first  # the alternate screen
        assert max(widths(first)) == 100
        terminal.data = b""
        terminal.resize(60, 20)
        terminal.until(lambda text: 60 in widths(text) and "layer2" in text)
        again = terminal.until(lambda text: text.count("layer2") > 3)
        assert max(widths(again[again.rindex("\x1b[H", 0, again.rindex("layer2")) :])) == 60
        with (folder / "run.jsonl").open("ab") as file:
            file.write(last_line)
        final = terminal.until(lambda text: "finished" in text.rpartition("\x1b[?1049l")[2])
        assert terminal.process.wait(PATIENCE) == 0
    assert "\x1b[?25h" in final  # the cursor is back


def test_ctrl_c_leaves_the_terminal_as_it_was(unfinished):
    with Terminal([*TAIL, str(unfinished[0])], 80, 24) as terminal:
        terminal.until(lambda text: "live" in text)
        terminal.process.send_signal(signal.SIGINT)
        terminal.until(lambda text: "\x1b[?1049l" in text and "\x1b[?25h" in text)
        assert terminal.process.wait(PATIENCE) == 130
    assert "Traceback" not in terminal.text


def test_in_a_pipe_each_new_step_is_a_line_until_the_end(unfinished):
    folder, last_line = unfinished
    text = (folder / "run.jsonl").read_text()
    cut = text.index('{"kind":"step","step":25')
    (folder / "run.jsonl").write_text(text[:cut])
    process = subprocess.Popen([*TAIL, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        for line in process.stdout:
            if line.startswith("step 24"):
                break
        with (folder / "run.jsonl").open("a") as file:
            file.write(text[cut:] + last_line.decode())
        rest, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 0
    assert errors == ""
    steps = [int(step) for step in re.findall(r"^step (\d+) ", rest, re.MULTILINE)]
    assert steps == list(range(25, 41))
    assert re.search(r"^step 30 +norm NaN/Inf", rest, re.MULTILINE)
    assert "[CRITICAL] NUMERICAL in `head.bias`, since step 30" in rest
    assert "\x1b" not in rest


def test_once_shows_everything_in_eighty_columns(run):
    output = CliRunner().invoke(main, ["tail", "--once", str(run)], env={"COLUMNS": "80"}).output
    assert max(map(len, output.splitlines())) <= 80
    for words in ("norm ", "loss ", "lr ", "layer0", "layer2", "biases", "×", "finished", "NUMERICAL"):
        assert words in output


@pytest.mark.parametrize("parameters", [True, False])
def test_a_run_that_has_just_begun_can_be_shown(run, tmp_path, parameters):
    header = (run / "run.jsonl").read_text().partition("\n")[0]
    if not parameters:
        header = re.sub(r'"parameters":\[.*?\}\]', '"parameters":[]', header)
    (tmp_path / "run.jsonl").write_text(header + "\n")
    result = CliRunner().invoke(main, ["tail", "--once", str(tmp_path)], env={"COLUMNS": "80"}, catch_exceptions=False)
    assert result.exit_code == 0
    assert "No step has been recorded yet." in result.output


def test_a_run_that_is_removed_ends_the_view_with_a_message(unfinished):
    folder, _ = unfinished
    process = subprocess.Popen([*TAIL, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        for line in process.stdout:
            if line.startswith("step 40"):
                break
        (folder / "run.jsonl").unlink()
        _, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 2
    assert "cannot be read" in errors
    assert "Traceback" not in errors


def test_an_ascii_terminal_gets_ascii(run):
    done = subprocess.run(
        [*TAIL, "--once", str(run)], capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, timeout=60
    )
    assert done.returncode == 0
    done.stdout.decode("ascii")
    assert b"x" in done.stdout


def test_groups_are_the_exact_norms_of_their_tensors(run):
    import gradient_flow as gf

    monitor, recorded = LiveRun(run), gf.load_run(run)
    monitor.update()
    groups = view_of(monitor, "").groups
    roles = recorded.header["groups"]
    for at, step in enumerate(recorded.table_steps):
        merged = recorded.table(step).group(lambda name: roles[name])
        for name in merged.names:
            expected = merged[name].norm
            assert groups[name][at] == (pytest.approx(expected, rel=1e-6) if math.isfinite(expected) else math.inf)


def view(groups=40, issues=6):
    found = [
        Issue(issue_type=IssueType.DEAD, severity=IssueSeverity.HIGH, layer=f"block.{k}", message="no gradient " * 20)
        for k in range(issues)
    ]
    return RunView(
        name="runs/" + "long" * 60,
        step=12345,
        steps_per_second=3.3,
        steps=list(range(500)),
        series={name: [1.0 + k % 7 for k in range(500)] for name in ("norm", "loss", "lr")},
        groups={f"encoder.layer.{k}": [0.5 ** (k % 9)] * 30 for k in range(groups)},
        diagnosis=Diagnosis(found, steps=500),
    )


@pytest.mark.parametrize("size", [(40, 10), (80, 24), (80, 50), (200, 60)])
@pytest.mark.parametrize("groups", [0, 1, 5, 1000])
def test_a_view_fits_whatever_the_size(size, groups):
    width, height = size
    lines = view_text(view(groups), width, height).plain.split("\n")
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert any("DEAD in `block.0`" in line for line in lines)
    assert any(line.startswith("norm") for line in lines)


def test_a_group_without_a_gradient_says_so_and_long_names_are_whole():
    seen = replace(view(0, 0), groups={"backbone.layers.0.mlp": [math.nan] * 30, "head": [1.0] * 30})
    lines = view_text(seen, 80, 24).plain.split("\n")
    silent = next(line for line in lines if line.startswith("backbone.layers.0.mlp "))
    assert silent.endswith(" no gradient")
    assert next(line for line in lines if line.startswith("head ")).endswith(" 1")


def test_groups_that_share_a_row_show_the_largest():
    merged = fitting({name: [value, math.nan] for name, value in zip("abcdef", range(6), strict=True)}, 3)
    assert list(merged) == ["a … b", "c … d", "e … f"]
    assert [values[0] for values in merged.values()] == [1, 3, 5]
    assert all(math.isnan(values[1]) for values in merged.values())


@pytest.mark.parametrize("place", [0, 137, 999])
def test_a_spike_of_one_step_stays_visible(place):
    values = [1.0] * 1000
    values[place] = 1000.0
    line = sparkline(values, 50)
    assert len(line) == 50
    assert [at for at, letter in enumerate(line) if letter == "█"] == [place // 20]


def test_a_scale_changes_no_sparkline():
    values = [1.0, 5.0, 2.0, 8.0, math.nan, 3.0]
    assert sparkline(values, 6) == sparkline([1e-9 * value for value in values], 6)
    assert sparkline([0.0, 1.0, 10.0], 3)[0] == "▁"
    assert sparkline([], 10) == ""
