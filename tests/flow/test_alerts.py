"""Alerts: one message per issue, to a webhook, a command or a function, and never in the way of the training."""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from torch import nn

import gradient_flow as gf
from gradient_flow.errors import GradientFlowWarning
from gradient_flow.flow import alerts


class Hook:
    """A webhook on the loopback, and what it was sent."""

    def __init__(self, status=200, pause=0.0):
        self.bodies, hook = [], self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                time.sleep(pause)
                hook.bodies.append((self.headers["Content-Type"], json.loads(body)))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/services/T0/B0/secret"

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def hook():
    hook = Hook()
    yield hook
    hook.close()


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(alerts, "INTERVAL", 0.02)
    monkeypatch.setattr(alerts, "PATIENCE", 1.0)
    monkeypatch.setitem(alerts.Alerts.__init__.__kwdefaults__, "interval", 0.02)


def train(steps=60, nan_from=None, pause=0.0, **watch):
    """A small training; its loss is NaN from a step on. Returns the flow and the weights it ended with."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x = torch.randn(32, 8)
    with gf.watch(model, optimizer, looks=False, **watch) as flow:
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), x[:, :1])
            (loss * float("nan") if nan_from is not None and step >= nan_from else loss).backward()
            optimizer.step()
            time.sleep(pause)
    return flow, [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("with_file", [True, False])
def test_a_webhook_gets_one_message_per_issue_in_slacks_format(hook, tmp_path, with_file):
    flow, _ = train(nan_from=20, alert=hook.url, run=tmp_path / "exp1" if with_file else None)
    found = [issue for issue in flow.diagnose() if issue.severity >= gf.IssueSeverity.MEDIUM]
    assert len(found) == 1
    [(kind, body)] = hook.bodies
    assert kind == "application/json"
    assert body.keys() == {"text"}
    assert found[0].message in body["text"]
    assert "since step 20" in body["text"]
    assert body["text"].startswith(f"{'exp1' if with_file else 'training'}: [CRITICAL] NUMERICAL in `")


def test_the_message_comes_while_the_training_runs(hook, tmp_path):
    model, x = nn.Linear(4, 1), torch.randn(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gf.watch(model, optimizer, looks=False, alert=hook.url, run=tmp_path):
        until = time.monotonic() + 30
        while not hook.bodies and time.monotonic() < until:
            optimizer.zero_grad()
            (model(x).square().mean() * float("nan")).backward()
            optimizer.step()
            time.sleep(0.005)
        assert len(hook.bodies) == 1
    assert len(hook.bodies) == 1  # the end says it no second time


def test_a_healthy_training_is_silent(hook):
    train(alert=hook.url)
    assert hook.bodies == []


def test_a_training_that_fails_is_told_of(hook, tmp_path):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    flow = gf.watch(model, optimizer, alert=hook.url, run=tmp_path / "exp2")
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    flow.close(ZeroDivisionError("division by zero"))
    [(_, body)] = hook.bodies
    assert body["text"].startswith("exp2: ")
    assert "ZeroDivisionError" in body["text"]


def test_a_command_gets_the_message_as_its_last_argument_and_json_on_its_input(tmp_path):
    script, out = tmp_path / "notify.py", tmp_path / "told.json"
    script.write_text(
        f"import json, sys\nopen({str(out)!r}, 'w').write(json.dumps([sys.argv[1:], json.load(sys.stdin)]))\n"
    )
    train(nan_from=20, alert=[sys.executable, str(script), "--loud"])
    (loud, text), given = json.loads(out.read_text())
    assert loud == "--loud"
    assert text == given["text"]
    assert given["issue"]["issue_type"] == "NUMERICAL"


def test_a_function_gets_text_and_issue():
    told = []
    train(nan_from=20, alert=lambda text, issue: told.append((text, issue)))
    [(text, issue)] = told
    assert issue.issue_type is gf.IssueType.NUMERICAL
    assert issue.message in text


def test_a_webhook_that_hangs_does_not_hold_up_a_step(tmp_path):
    hook = Hook(pause=0.8)
    durations = []
    try:
        torch.manual_seed(0)
        model, x = nn.Linear(4, 1), torch.randn(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with gf.watch(model, optimizer, looks=False, alert=hook.url, run=tmp_path):
            for _ in range(200):
                optimizer.zero_grad()
                (model(x).square().mean() * float("nan")).backward()
                start = time.perf_counter()
                optimizer.step()
                durations.append(time.perf_counter() - start)
                time.sleep(0.002)
    finally:
        hook.close()
    assert len(hook.bodies) == 1
    assert max(durations) < 0.4  # half of what the webhook takes


def test_a_webhook_that_is_away_is_one_warning_without_its_address(tmp_path):
    hook = Hook()
    hook.close()  # nobody answers any more
    with pytest.warns(GradientFlowWarning, match="An alert could not be sent") as told:
        train(nan_from=20, alert=hook.url, run=tmp_path / "away")
    ours = [str(each.message) for each in told if "alert" in str(each.message)]
    assert len(ours) == 1
    assert "secret" not in ours[0]


def test_weights_are_bit_identical_with_and_without_alerts(hook):
    _, with_alerts = train(nan_from=50, steps=49, alert=hook.url)
    _, without = train(nan_from=50, steps=49)
    assert all(torch.equal(a, b) for a, b in zip(with_alerts, without, strict=True))


def test_no_thread_survives_and_the_address_is_not_in_the_file(hook, tmp_path):
    train(nan_from=20, alert=hook.url, run=tmp_path / "run")
    assert "secret" not in (tmp_path / "run" / "run.jsonl").read_text()
    assert [thread for thread in threading.enumerate() if thread.name == "gradient-flow-alerts"] == []


@pytest.mark.parametrize("wrong", [3, "", [], ["notify", 3], "ftp://host/secret"])
def test_what_cannot_be_an_alert_is_refused_without_being_shown(wrong):
    with pytest.raises(gf.InputError, match="`alert` must be the address of a webhook") as refused:
        gf.watch(nn.Linear(2, 1), alert=wrong)
    assert "secret" not in str(refused.value)
