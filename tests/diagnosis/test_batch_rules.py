"""Spikes and NaN name their batches, and the sample that all of them share."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import gradient_flow as gf
from gradient_flow.diagnosis.batches import with_batches
from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.record.event import Event
from gradient_flow.record.evidence import RunRecord, Series


class Data(Dataset):
    def __init__(self, bad, value):
        self.bad, self.value = bad, value

    def __len__(self):
        return 240

    def __getitem__(self, at):
        numbers = torch.Generator().manual_seed(at)
        x, y = torch.randn(6, generator=numbers), torch.randn(1, generator=numbers)
        return x, self.value if at == self.bad else y


def trained(bad=None, value=None, epochs=4, run=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with gf.watch(model, optimizer, describe=False, run=run) as flow:
        for _ in range(epochs):
            for x, y in DataLoader(Data(bad, value), batch_size=8, shuffle=True):
                optimizer.zero_grad()
                (model(x) - y).square().mean().backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
    return flow


def spiking(steps):
    return Issue(
        issue_type=IssueType.UNSTABLE,
        severity=IssueSeverity.MEDIUM,
        layer="model",
        message="spikes.",
        evidence={"spikes": steps},
        step=steps[0],
    )


def named(issues, events):
    """With a run whose norm spikes where the issue says so."""
    norms = [100.0 if step in issues[0].evidence["spikes"] else 1.0 for step in range(1, 60)]
    series = Series(name="model", steps=list(range(1, 60)), norms=norms)
    return with_batches(issues, RunRecord(totals=[series], events=events))


def batch_at(step, **data):
    return Event(kind="batch", step=step, data=data)


def test_the_sample_that_every_spike_has_is_named(tmp_path):
    flow = trained(bad=123, value=torch.tensor([3000.0]), run=tmp_path / "run")
    (issue,) = [issue for issue in flow.diagnose() if issue.issue_type is IssueType.UNSTABLE]
    assert issue.code == "bad_batch"
    assert issue.evidence["samples"] == [123]
    assert "123" in issue.advice[0]
    assert [each.to_dict() for each in gf.diagnose(tmp_path / "run")] == [each.to_dict() for each in flow.diagnose()]


def test_its_repaired_twin_says_nothing():
    assert trained().diagnose().healthy


def test_nan_names_the_batch_it_came_with():
    flow = trained(bad=50, value=torch.tensor([math.nan]), epochs=1)
    issue = next(issue for issue in flow.diagnose() if issue.issue_type is IssueType.NUMERICAL)
    step = issue.step
    event = next(event for event in flow.run.events if event.kind == "batch")
    assert event.step == step
    assert 50 in event.data["indices"]
    assert event.data["batch"] in issue.message


def test_a_batch_that_comes_again_and_spikes_again_is_the_cause():
    events = [batch_at(35, batch="aa"), batch_at(45, batch="aa"), batch_at(50, batch="bb")]
    (issue,) = named([spiking([35, 45, 50])], events)
    assert issue.code == "bad_batch"
    assert "aa" in issue.cause
    (other,) = named([spiking([35, 50])], events)
    assert other.code == ""
    assert "Step 35 used batch aa" in other.message


def test_samples_that_batches_share_by_chance_are_not_blamed():
    events = [batch_at(35, batch="aa", indices=[0, 1, 2]), batch_at(39, batch="bb", indices=[2, 3, 1])]
    assert "samples" not in named([spiking([35, 39])], events)[0].evidence
    events = [batch_at(35, batch="aa", indices=[0, 900, 2]), batch_at(39, batch="bb", indices=[800, 3, 0])]
    assert named([spiking([35, 39])], events)[0].evidence["samples"] == [0]


def test_the_micro_batch_is_named():
    (issue,) = named([spiking([35])], [batch_at(35, batch="aa", micro_batches=["b", "c"], micro_batch=1)])
    assert "micro-batch 2 of 2" in issue.message


def test_damaged_events_count_as_not_there():
    for data in ({"batch": 3}, {"batch": "a", "indices": "x", "micro_batch": "y"}, {}):
        assert named([spiking([35])], [batch_at(35, **data)])[0].severity == IssueSeverity.MEDIUM


def test_a_rule_that_counts_fewer_spikes_names_the_batches_of_those():
    issue = spiking([30, 31])
    issue.evidence["spikes_at"] = [31]
    (found,) = named([issue], [batch_at(30, batch="aa"), batch_at(31, batch="bb")])
    assert found.evidence["batches"] == {"31": "bb"}
    assert "Step 31 used batch bb." in found.message


def test_one_more_spike_is_one():
    (found,) = named([spiking([30, 31])], [batch_at(30, batch="aa"), batch_at(31, batch="bb")])
    assert found.message.endswith("Step 30 used batch aa; the evidence lists that of one more spike.")
