"""One question, one answer: every surface gives the same verdict on the same run, word for word."""

import json
import re
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from starlette.testclient import TestClient
from torch import nn

import gradient_flow as gf
from gradient_flow.cli.main import main
from gradient_flow.demo import show
from gradient_flow.demo.cases import CASES
from gradient_flow.demo.performance import train
from gradient_flow.report.data import page_data
from gradient_flow.report.headline import verdict_data
from gradient_flow.report.serve.app import application
from gradient_flow.report.serve.live_runs import LiveRuns
from gradient_flow.report.serve.run_ids import RunFolder

# ---- runs with a planted fault, as plain loops that a user would write -----------------------------------------------


def net(width=24, depth=3, activation=nn.ReLU):
    layers = [nn.Linear(8, width), activation()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), activation()]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def loop(model, optimizer, flow, steps=60, spoil=None, log_loss=True):
    for step in range(1, steps + 1):
        x = torch.randn(32, 8)
        y = x.sum(1, keepdim=True)
        if spoil is not None:
            x = spoil(x, step)
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        if log_loss:
            flow.log(loss=loss)
        optimizer.step()


def a_nan_batch(x, step):
    return x * torch.nan if step == 40 else x


def a_large_batch(x, step):
    return x * 1000 if step == 40 else x


FAULTS = {
    "healthy": {"lr": 0.02},
    "rate of 1e-9": {"lr": 1e-9, "steps": 200},
    "rate of 10": {"lr": 10.0, "steps": 200},
    "rate of 1e-9, no loss": {"lr": 1e-9, "log_loss": False},
    "vanishing": {"lr": 0.01, "model": lambda: net(depth=9, activation=nn.Sigmoid)},
    "nan": {"lr": 0.01, "spoil": a_nan_batch},
    "spike": {"lr": 1e-4, "spoil": a_large_batch},
    "one step": {"lr": 0.01, "steps": 1},
    "rare looks": {"lr": 1e-9, "steps": 120, "layers_every": 25},
    "every third": {"lr": 1e-9, "steps": 120, "every": 3},
}


@pytest.fixture(scope="module", params=FAULTS)
def watched(request, tmp_path_factory):
    """The same training under two watches: one with a file, one without. Both are closed; the first was also open."""
    fault = dict(FAULTS[request.param])
    torch.manual_seed(0)
    model = fault.pop("model", net)()
    optimizer = torch.optim.SGD(model.parameters(), lr=fault.pop("lr"))
    folder = tmp_path_factory.mktemp("runs") / "run"
    settings = {name: fault.pop(name) for name in ("every", "layers_every") if name in fault}
    settings = {"budget": 1.0, **settings}  # the clock must not decide which of them looks
    with gf.watch(model, optimizer, run=folder, **settings) as flow, gf.watch(model, optimizer, **settings) as fileless:
        both = Both(flow, fileless)
        loop(model, optimizer, both, **fault)
        while_open = flow.diagnose()
    return flow, fileless, while_open, folder


class Both:
    def __init__(self, *flows):
        self.flows = flows

    def log(self, **values):
        for flow in self.flows:
            flow.log(**values)


@pytest.fixture(scope="module", params=CASES)
def demonstrated(request, tmp_path_factory):
    return train(CASES[request.param], tmp_path_factory.mktemp("demo") / request.param, steps=40)


# ---- the comparison --------------------------------------------------------------------------------------------------


def plain(diagnosis):
    """Everything that a verdict says, as JSON has it."""
    return json.loads(json.dumps(diagnosis.to_dict()))


def words(text):
    """The words of a text that was wrapped and marked up."""
    return re.sub(r"[^\w.]+", " ", text).lower()  # a sentence of its own begins with a capital


def assert_every_surface_says(expected, folder):
    """`expected` is the verdict of `gf.diagnose(folder)`."""
    run = gf.load_run(folder)
    assert plain(gf.diagnose(run)) == plain(expected)
    assert plain(gf.diagnose(folder / "run.jsonl")) == plain(expected)

    command = CliRunner().invoke(main, ["diagnose", str(folder), "--json", "--fail-on", "never"])
    assert command.exit_code == 0, command.output
    told = json.loads(command.output)
    assert {name: told[name] for name in plain(expected)} == plain(expected)
    assert told["message"] == expected.message

    page = json.loads(json.dumps(verdict_data(expected)))
    assert json.loads(gf.write_report(folder, format="json").read_text())["verdict"] == page
    assert json.loads(json.dumps(page_data(folder)))["verdict"] == page
    assert page["sentence"] in gf.write_report(folder, format="html").read_text().replace("\\u0060", "`")
    for kind in ("md", "txt"):
        text = words(gf.write_report(folder, format=kind).read_text())
        assert words(page["sentence"]) in text
        for issue in expected:
            assert words(issue.message) in text, kind
            assert words(issue.followers) in text, kind

    with TestClient(application(LiveRuns(RunFolder(folder.parent)))) as client:
        (entry,) = [each for each in client.get("/api/runs").json()["runs"] if each["name"].endswith(folder.name)]
        assert client.get(f"/api/run/{entry['id']}").json()["verdict"] == page

    tail = CliRunner().invoke(main, ["tail", "--once", str(folder)], env={"COLUMNS": "200"})
    assert tail.exit_code == 0, tail.output
    for issue in expected[:4]:
        assert f"[{issue.severity}] {issue.heading}: " in " ".join(tail.output.split())
    looks = re.search(r"inside the model, (\d+) look", tail.output)
    assert looks is None or int(looks[1]) == expected.looks

    compared = gf.compare(folder, run)
    assert [plain(each) for each in compared.verdicts] == [plain(expected)] * 2


def test_a_watched_loop_gets_one_verdict_everywhere(watched):
    flow, fileless, while_open, folder = watched
    expected = gf.diagnose(folder)
    assert plain(flow.diagnose()) == plain(expected)
    assert plain(gf.diagnose(flow)) == plain(expected)
    assert plain(while_open) == plain(expected)
    assert plain(fileless.diagnose()) == plain(expected)
    assert str(flow.diagnose()) == str(expected)
    assert_every_surface_says(expected, folder)
    assert flow.run.end.data["verdict"] == plain(expected)


def test_the_demo_says_what_its_runs_say(demonstrated):
    assert_every_surface_says(demonstrated.diagnosis, demonstrated.folder)
    shown = " ".join(show.verdict(demonstrated, 400).plain.split())
    for issue in demonstrated.diagnosis if demonstrated.main is not None else ():
        assert f"[{issue.severity}] {issue.heading}: " in shown


def test_the_table_of_the_issue():
    """What started this: a rate of 1e-9 and of 10 are sick on every surface, not healthy on one of them."""
    for rate, kind in ((1e-9, gf.IssueType.SLOW), (10.0, gf.IssueType.EXPLODING)):
        torch.manual_seed(0)
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        with gf.watch(model, optimizer, budget=1.0) as flow:
            loop(model, optimizer, flow, steps=200)
        assert flow.diagnose()[0].issue_type is kind


def test_a_nan_run_names_operation_file_line_and_code_on_its_page(tmp_path):
    outcome = train(CASES["nan"], tmp_path / "nan")
    (issue,) = [each for each in outcome.diagnosis if each.issue_type is gf.IssueType.NUMERICAL]
    assert (issue.layer, issue.step) == ("0", 72)
    assert issue.evidence["operation"] == "div"
    assert issue.evidence["line"] == "standardise.py:13"
    assert issue.evidence["code"] == "return centred / spread"
    page = gf.write_report(outcome.folder).read_text()
    for text in ("standardise.py:13", "return centred / spread", "div"):
        assert text in page


# ---- rules of users, rule sets --------------------------------------------------------------------------------------


def small_run(folder, steps=5):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gf.watch(model, optimizer, run=folder) as flow:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(4, 2)).square().mean().backward()
            optimizer.step()
    return flow


def test_what_a_rule_of_the_user_found_is_kept_with_its_origin(tmp_path):
    @gf.register_rule(of="run", name="always")
    def always(record):
        yield gf.Issue(
            issue_type=gf.IssueType.UNSTABLE, severity=gf.IssueSeverity.HIGH, layer="model", message="says the user."
        )

    try:
        small_run(tmp_path / "run")
        (here,) = gf.diagnose(tmp_path / "run")
    finally:
        gf.unregister_rule("always")
    (elsewhere,) = gf.diagnose(tmp_path / "run")  # where the rule is not registered, as on another machine
    assert here.origin == elsewhere.origin == "always"
    assert str(here) == str(elsewhere)
    assert list(gf.diagnose(gf.load_run(tmp_path / "run"))) == [elsewhere]


def test_a_verdict_by_another_rule_set_is_shown_beside_the_present_one(tmp_path):
    small_run(tmp_path)
    file = tmp_path / "run.jsonl"
    present = gf.diagnose(tmp_path)
    assert present.stored is None
    old = file.read_text().replace(f'"rule_set":{present.rule_set}', '"rule_set":1')
    assert old != file.read_text()
    file.write_text(old)
    found = gf.diagnose(tmp_path)
    assert found.rule_set == present.rule_set
    assert found.stored["rule_set"] == 1
    assert found.to_dict()["stored"]["rule_set"] == 1


def test_a_verdict_needs_no_torch(tmp_path):
    import subprocess
    import sys

    outcome = train(CASES["attention"], tmp_path / "attention", steps=30)
    code = (
        "import sys, gradient_flow as gf\n"
        f"found = gf.diagnose({str(outcome.folder)!r})\n"
        f"gf.write_report({str(outcome.folder)!r})\n"
        "assert 'torch' not in sys.modules\n"
        "print(found.message)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == outcome.diagnosis.message


# ---- callbacks -------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # Lightning's own deprecations and hints
def test_the_lightning_callback_says_what_its_files_say(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net(depth=9, activation=nn.Sigmoid)

        def training_step(self, batch, _):
            return (self.net(batch) - 1).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    torch.manual_seed(0)
    callback = gf.GradientStatisticsCallback(grad_log_every_n_steps=1, save_dir=tmp_path)
    loader = torch.utils.data.DataLoader(torch.randn(128, 8), batch_size=8)
    trainer = lightning.Trainer(
        max_epochs=2,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        accelerator="cpu",
    )
    trainer.fit(Module(), loader)
    assert plain(callback.diagnose()) == plain(gf.diagnose(tmp_path)) == plain(gf.diagnose(callback))
    assert callback.diagnose().steps == 32


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # those of transformers
def test_the_hugging_face_callback_says_what_its_run_says(tmp_path):
    pytest.importorskip("transformers")
    from transformers import Trainer, TrainingArguments

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x, labels=None):
            return {"loss": (self.net(x) - x.sum(1, keepdim=True)).square().mean()}

    data = [{"x": torch.randn(8), "labels": torch.zeros(1)} for _ in range(160)]
    arguments = TrainingArguments(
        str(tmp_path / "out"),
        learning_rate=1e-9,
        per_device_train_batch_size=4,
        num_train_epochs=1,
        report_to=[],
        logging_steps=5,
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    callback = gf.GradientFlowCallback(run=tmp_path / "run", say=False)
    Trainer(Model(), arguments, train_dataset=data, callbacks=[callback]).train()
    expected = gf.diagnose(tmp_path / "run")
    assert plain(callback.diagnose()) == plain(callback.flow.diagnose()) == plain(expected)
    assert expected[0].issue_type is gf.IssueType.SLOW
    assert expected.message in callback.summary()


def test_this_comparison_can_fail(tmp_path):
    small_run(tmp_path / "run")
    with pytest.raises(AssertionError):
        assert_every_surface_says(gf.Diagnosis([], steps=99), Path(tmp_path / "run"))
