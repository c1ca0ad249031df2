"""Notebooks: what cells show, live and afterwards, in a notebook that is really executed."""

import re
from html.parser import HTMLParser

import nbformat
import pytest
import torch
from nbclient import NotebookClient
from torch import nn

import gradient_flow as gf
from gradient_flow.diagnosis.issue import Diagnosis, Issue
from gradient_flow.errors import GradientFlowWarning, InputError
from gradient_flow.record.notebook import curve

HOSTILE = "<img src=x onerror=alert(1)>"
VOID = {"br", "img", "polyline"}


class Balanced(HTMLParser):
    """Reads HTML and knows whether all that was opened is closed, and which tags there are."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags = [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        assert all(not name.startswith("on") for name, _ in attributes)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def text_of(markup):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", markup))


def issue(name="0.weight"):
    return Issue(
        issue_type=gf.IssueType.VANISHING,
        severity=gf.IssueSeverity.HIGH,
        layer=name,
        message="gradients fade.",
        cause="sigmoids.",
        advice=["Use ReLU.", f"Look at `{name}`."],
        step=12,
    )


def trained(steps=20, show=None, **watch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x = torch.randn(16, 4)
    with gf.watch(model, optimizer, **watch) as flow:
        if show is not None:
            flow.show(every=show)
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), x[:, :1]).backward()
            optimizer.step()
    return flow


def test_an_issue_and_a_verdict_say_what_their_text_says():
    one = issue()
    shown = text_of(one._repr_html_())
    for part in ("high", "Gradients vanish in", "0.weight", "since step 12", "Gradients fade.", "sigmoids.", "ReLU."):
        assert part in shown
    verdict = Diagnosis([one, issue("2.weight")], steps=40)
    page = Balanced(verdict._repr_html_())
    assert page.tags.count("details") == 2
    assert "Not healthy (vanishing): 2 issues in 40 steps." in text_of(verdict._repr_html_())
    assert "Healthy: no issue found in 200 steps." in text_of(Diagnosis([], steps=200)._repr_html_())


def test_names_are_never_markup():
    shown = Diagnosis([issue(HOSTILE)], steps=9)._repr_html_()
    assert HOSTILE not in shown
    assert "img" not in Balanced(shown).tags


def test_run_and_flow_show_their_curves(tmp_path):
    flow = trained(run=tmp_path / "exp1")
    for shown in (flow._repr_html_(), gf.load_run(tmp_path / "exp1")._repr_html_()):
        page = Balanced(shown)
        assert page.tags.count("polyline") == 3  # norm, loss, learning rate
        assert "exp1" in shown
    assert flow.diagnose().message in text_of(flow._repr_html_())


def test_a_curve_has_a_gap_where_it_is_not_finite_and_its_ends_in_words():
    shown = curve("norm", [1, 2, 3, 4], [1.0, float("nan"), 100.0, 10.0], log=True)
    assert Balanced(shown).tags.count("polyline") == 2
    assert "1 to 100" in text_of(shown)
    points = re.findall(r'points="([^"]*)"', shown)[1]
    heights = [float(pair.split(",")[1]) for pair in points.split()]
    assert heights[1] - heights[0] == pytest.approx(19, abs=0.2)  # one of two decades of 38 pixels, downwards
    assert curve("nothing", [1], [float("nan")]) == ""


def test_gain_monitor_and_manager():
    model = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)])
    with gf.GradientGainMonitor.from_model(model) as monitor:
        assert "backward" in text_of(monitor._repr_html_())  # what to do, before there is anything to show
        model(torch.randn(2, 4)).sum().backward()
        shown = monitor._repr_html_()
    assert Balanced(shown).tags.count("tr") == 4  # three blocks and the gain over depth
    manager = gf.GradientManager(gf.GradientConfig(max_grad_norm=1e-3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    manager.step(model, optimizer, loss=model(torch.randn(2, 4)).sum())
    assert repr(manager) == "GradientManager(clip by norm, 1 steps, 1 clipped)"
    assert "clipped 1" in text_of(Balanced(manager._repr_html_()) and manager._repr_html_())


@pytest.mark.parametrize("every", [0, -1, float("nan"), float("inf"), "1", True])
def test_an_interval_that_is_none_is_refused(every):
    with gf.watch(nn.Linear(2, 1)) as flow, pytest.raises(InputError, match="`every` must be a positive number"):
        flow.show(every=every)


def test_a_view_that_fails_is_one_warning_and_training_is_the_same(monkeypatch):
    plain = trained()
    import IPython.display

    monkeypatch.setattr(IPython.display, "display", lambda *_, **__: 1 / 0)
    with pytest.warns(GradientFlowWarning, match="live view failed") as told:
        flow = trained(show=1e-6)
    assert len([each for each in told if "live view" in str(each.message)]) == 1
    assert flow.history["norm"].tolist() == plain.history["norm"].tolist()


CELLS = [
    "import torch, time\nfrom torch import nn\nimport gradient_flow as gf\n"
    "torch.manual_seed(0)\nmodel = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))\n"
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.05)",
    "flow = gf.watch(model, optimizer, run='exp1')\nflow.show(every=0.01)\n"
    "for _ in range(30):\n"
    "    optimizer.zero_grad()\n"
    "    x = torch.randn(32, 8)\n"
    "    nn.functional.mse_loss(model(x), x[:, :1]).backward()\n"
    "    optimizer.step()\n"
    "    time.sleep(0.03)\n"  # the view is drawn seldom enough to cost little
    "flow.close()",
    "flow",
    "flow.diagnose()",
    "gf.load_run('exp1')",
]


def test_a_notebook_is_executed_and_shows_the_run_live_and_afterwards(tmp_path):
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    updates = []
    client = NotebookClient(book, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}})
    seen = client.process_message

    def heard(message, cell, cell_index):
        if message["msg_type"] == "update_display_data":
            updates.append(message["content"]["data"]["text/html"])
        return seen(message, cell, cell_index)

    client.process_message = heard
    client.execute()
    shown = [[output.data.get("text/html") for output in cell.outputs if "data" in output] for cell in book.cells]
    [live], [flow], [verdict], [run] = shown[1:]
    assert len(updates) >= 2
    assert "Training, ended" in live  # the cell keeps the last of what it showed
    counts = [int(re.search(r"recorded steps (\d+)", text_of(each))[1]) for each in updates]
    assert counts == sorted(counts)
    assert counts[-1] == 30
    for each in (live, flow, verdict, run):
        Balanced(each)
    assert "Healthy" in text_of(verdict)
    assert "30 recorded steps, up to 30" in text_of(run)
