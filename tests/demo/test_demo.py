"""The demo: what is planted is what is found."""

import pytest
import torch
from click.testing import CliRunner

import gradient_flow as gf
from gradient_flow.cli.main import main
from gradient_flow.demo.cases import CASES, SHOWN
from gradient_flow.demo.performance import train
from gradient_flow.demo.setups import BUILD
from gradient_flow.diagnosis.issue import IssueType
from gradient_flow.record.event import FORENSICS
from recorded_runs import record


def demo(*arguments):
    return CliRunner().invoke(main, ["demo", *map(str, arguments)], env={"COLUMNS": "80"}, catch_exceptions=False)


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The whole demo once."""
    folder = tmp_path_factory.mktemp("demo")
    return folder, demo("--out", folder, "--steps", 60)


def test_the_four_verdicts_are_right(shown):
    folder, result = shown
    assert result.exit_code == 0
    assert "All 4 verdicts are correct." in result.output
    for name, word in zip(SHOWN, ("Healthy", "VANISHING", "NUMERICAL", "ENTROPY_COLLAPSE"), strict=True):
        _, mark, told = result.output.partition(f"✔ {name} ")
        assert mark
        assert word in told.partition("\n✔")[0]
    assert max(map(len, (line for line in result.output.splitlines() if str(folder) not in line))) <= 80


def test_the_planted_operation_is_named_with_its_line(shown):
    folder, result = shown
    source = (folder / "nan" / "standardise.py").read_text().splitlines()
    line = 1 + source.index("        return centred / spread")
    told = " ".join(result.output.split())
    assert f"standardise.py:{line}: `return centred / spread`" in told
    assert "`div` in `0` turned finite numbers into NaN" in told
    (issue,) = gf.diagnose(folder / "nan")
    found = {name: issue.evidence[name] for name in ("operation", "line", "code", "function")}
    assert found == {
        "operation": "div",
        "line": f"standardise.py:{line}",
        "code": "return centred / spread",
        "function": "forward",
    }


def test_every_run_is_kept_with_its_report(shown):
    folder, result = shown
    for name in SHOWN:
        assert str(folder / name / "report.html") in result.output
        assert "<html" in (folder / name / "report.html").read_text()[:500].lower()
        assert len(gf.load_run(folder / name)) == (36 if name == "nan" else 60)
    assert "entropy collapse" in (folder / "attention" / "report.html").read_text().lower()
    assert gf.diagnose(folder / "nan").step == 36


def test_a_second_demo_takes_the_place_of_the_first_but_of_nothing_else(shown, tmp_path):
    folder, _ = shown
    assert demo("--out", folder, "--fault", "vanishing", "--steps", 30).exit_code == 0
    assert len(gf.load_run(folder / "vanishing")) == 30
    mine = record(tmp_path / "vanishing", steps=3)
    before = (mine / "run.jsonl").read_bytes()
    result = demo("--out", tmp_path, "--fault", "vanishing")
    assert result.exit_code == 2
    assert "not of the demo" in result.output
    assert (mine / "run.jsonl").read_bytes() == before


def was_replayed(folder):
    return any(event.kind == FORENSICS for event in gf.load_run(folder).events)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", sorted(set(CASES) - {"healthy", "attention"}))
def test_other_seeds_and_other_faults(name, seed, tmp_path):
    outcome = train(CASES[name], tmp_path / name, seed=seed)
    assert outcome.right, list(outcome.diagnosis)
    assert was_replayed(tmp_path / name) == (name == "nan")


def test_a_repaired_fault_is_no_longer_found(tmp_path):
    """The verdict comes from what happens, not from the name of the case."""
    train(CASES["nan"], tmp_path, steps=30)
    file = tmp_path / "standardise.py"
    file.write_text(file.read_text().replace("centred / spread", "centred / (spread + 1e-5)"))
    (tmp_path / "run.jsonl").unlink()
    outcome = train(CASES["nan"], tmp_path, steps=30)
    assert IssueType.NUMERICAL not in {issue.issue_type for issue in list(outcome.diagnosis)}
    assert not was_replayed(tmp_path)
    assert not outcome.right


def test_training_leaves_the_process_as_it_was(tmp_path):
    torch.manual_seed(3)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    first = train(CASES["spike"], tmp_path / "a", seed=5, steps=30)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.get_num_threads() == threads
    assert train(CASES["spike"], tmp_path / "b", seed=5, steps=30).losses == first.losses


def test_the_list_names_every_case_and_each_can_be_built(tmp_path):
    output = demo("--list").output
    assert all(f" {name} " in output for name in CASES)
    assert set(BUILD) == set(CASES)
    assert demo("--fault", "nonsense").exit_code == 2
