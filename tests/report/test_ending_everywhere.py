"""How a run ended and what it was: the same sentence on every surface."""

import html
import json
import os
import re

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import gradient_flow as gf
from gradient_flow.cli.main import main
from gradient_flow.report.data import page_data
from gradient_flow.report.serve.live_runs import LiveRuns
from gradient_flow.report.serve.run_ids import RunFolder
from warm import warm_python

SENTENCE = "The run failed at step 12 with ValueError: bad batch. No other problem found in 12 steps and 2 looks."
SCRIPT = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(12):
    optimizer.zero_grad(); model(torch.randn(32, 4)).square().mean().backward(); optimizer.step()
{last}
"""


@pytest.fixture(scope="module")
def crashed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "crashed"

    def crash():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with gf.watch(model, optimizer, run=folder):
            for _ in range(12):
                optimizer.zero_grad()
                model(torch.randn(32, 4)).square().mean().backward()
                optimizer.step()
            raise ValueError("bad batch")

    with pytest.raises(ValueError, match="bad batch"):
        crash()
    return folder


def command(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)), env={"COLUMNS": "200"}, catch_exceptions=False)


def plain(text):
    return " ".join(text.split())


def test_verdict_and_run(crashed):
    found = gf.diagnose(crashed)
    assert found.message == SENTENCE
    assert not found.healthy
    assert found.to_dict()["ending"] == {"state": "failed", "error": "ValueError", "message": "bad batch", "step": 12}
    assert "failed" in repr(gf.load_run(crashed))


def test_diagnose_tail_and_their_status(crashed):
    result = command("diagnose", crashed)
    assert (plain(result.output), result.exit_code) == (SENTENCE, 1)
    assert command("diagnose", crashed, "--fail-on", "never").exit_code == 0
    told = json.loads(command("diagnose", crashed, "--json").output)
    assert (told["status"], told["ending"]["state"], told["message"]) == ("failed", "failed", SENTENCE)
    shown = plain(command("tail", "--once", crashed).output)
    assert SENTENCE in shown
    assert "failed" in shown
    assert SENTENCE in plain(command("tail", crashed).output)


@pytest.mark.parametrize("format", ["html", "md", "txt", "json"])
def test_reports(crashed, tmp_path, format):
    text = gf.write_report(crashed, tmp_path / f"report.{format}", format=format).read_text()
    shown = plain(html.unescape(re.sub(r"<[^>]*>", " ", text)) if format == "html" else text.replace("\\", ""))
    assert SENTENCE in shown
    assert "Healthy" not in shown.partition("const ")[0]
    if format == "json":
        data = json.loads(text)
        assert data["run"]["status"] == "failed"
        assert data["verdict"]["level"] == "failed"
        assert dict(data["run"]["about"])["optimizer"].startswith("SGD (lr 0.01")
    else:
        assert "What this run was" in shown
        assert "SGD (lr 0.01" in shown


def test_the_page_lists_the_end_once(crashed):
    (end,) = [event for event in page_data(crashed)["events"] if event["kind"] == "end"]
    assert end["text"] == "The run failed at step 12 with ValueError: bad batch."


def test_the_list_of_runs(crashed):
    ((entry,), _) = LiveRuns(RunFolder(crashed.parent)).facts()
    assert (entry["status"], entry["message"]) == ("failed", "The run failed at step 12 with ValueError: bad batch.")


def test_a_run_that_falls_silent_is_said_to_be_silent_without_any_news(crashed, tmp_path):
    from gradient_flow.report.live_run import LiveRun

    lines = (crashed / "run.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "run.jsonl").write_bytes(b"".join(lines[:-1]))
    live = LiveRun(tmp_path)
    assert page_data(live, live=True)["run"]["status"] == "running"
    assert live.diagnosis(at_once=True).message == "Healthy so far: no issue found in 12 steps and 2 looks."
    os.utime(tmp_path / "run.jsonl", (1e9, 1e9))
    page = page_data(live, live=True)
    assert page["run"]["status"] == "silent"
    assert page["verdict"]["sentence"].endswith(page["run"]["message"])
    assert "ealthy" not in page["verdict"]["sentence"] + page["verdict"]["level"]
    assert "Silent since 2001-09-09 01:46 UTC" in page["run"]["message"]


@pytest.mark.parametrize(
    ("last", "state", "words"),
    [
        ("", "finished", "Healthy: no issue found in 12 steps and 2 looks."),
        ("raise ValueError('bad batch')", "failed", SENTENCE),
        ("sys.exit(3)", "failed", SENTENCE.replace("ValueError: bad batch", "SystemExit: 3")),
        ("sys.exit('no data')", "failed", SENTENCE.replace("ValueError: bad batch", "SystemExit: no data")),
        ("raise KeyboardInterrupt", "interrupted", "The run was interrupted at step 12."),
    ],
)
def test_gradient_flow_run_says_how_the_script_ended(tmp_path, last, state, words):
    (tmp_path / "train.py").write_text(SCRIPT.format(last=last))
    arguments = ["-m", "gradient_flow", "run", "--out", "out", "train.py", "--api-key", "sesame"]
    done = warm_python(*arguments, cwd=tmp_path)
    assert words in plain(done.stderr.partition("gradient-flow:")[2])
    run = gf.load_run(tmp_path / "out")
    assert run.ending.state == state
    assert words in gf.diagnose(tmp_path / "out").message
    assert run.about["command"] == "train.py --api-key '<redacted>'"
    assert run.about["optimizers"][0]["class"] == "SGD"
