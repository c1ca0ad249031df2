"""The zoo keeps its promises: cases of every kind in every half, with labels that are true.

One seed, and the proofs of a part of the cases; `python -m validation --verify` does all of them.
"""

import importlib
import zlib
from collections import Counter
from pathlib import Path

import pytest
import torch
from validation.case import (
    CAUSES,
    FAMILIES,
    HALVES,
    LANGUAGE_CAUSES,
    LATER_CAUSES,
    PROGRAMS,
    STATE_CAUSES,
    TRAINING,
    Case,
    Evidence,
    Program,
    Setup,
    Zoo,
    call,
    layers_of,
)
from validation.evidence.loops import play
from validation.tasks import blobs
from validation.zoo import CASES

from gradient_flow import IssueType
from validation import cases as folder

SICK = [case for case in CASES.values() if case.sick]
HEALTHY = [case for case in CASES.values() if not case.sick]
BY_HASH = sorted(CASES.values(), key=lambda case: zlib.crc32(case.name.encode()))
PROVEN = [*[case for case in BY_HASH if case.costly][:90], *[case for case in BY_HASH if not case.costly][:40]]
"""Cases whose labels are proven here: as many however large the zoo grows; as good as drawn, but always the same."""
GROUPS = sorted({(case.half, case.family) for case in CASES.values()})


TWO_PROCESSES = "ranks_differ"
"""The one cause that no single process can show; the tests of the ranks have it."""


def named(cases):
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


# --- what it holds


def test_there_are_enough_cases_in_each_half():
    assert len(SICK) >= 64
    assert len(HEALTHY) >= 64
    for cases in (SICK, HEALTHY):
        by_half = Counter(case.half for case in cases)
        assert min(by_half.values()) >= 60  # each half alone is a zoo


def test_every_class_is_in_every_half():
    of_layers = [case for case in SICK if case.family not in PROGRAMS]
    for half in HALVES:
        # A training loop has one loss and names no players, so none of the programs that train can rotate.
        expected = set(IssueType.__members__) - {"LOOP", "OPTIMIZER"} - ({"ROTATION"} if half in TRAINING else set())
        expected -= {"SLOW", "SYMMETRY"} if half == "usual" else set()
        assert {case.fault for case in of_layers if case.half == half} == expected
    for half in ("tune", "holdout"):
        causes = {case.fault for case in SICK if case.family == "loop" and case.half == half}
        assert causes == set(CAUSES) - {TWO_PROCESSES}
        states = {case.fault for case in SICK if case.family == "state" and case.half == half}
        # A policy without reward variance is a loop's fault as well; the rest has one half so far.
        assert set(STATE_CAUSES) <= states <= {*STATE_CAUSES, *LANGUAGE_CAUSES, "no_reward_variance"}


def test_the_class_of_a_loop_is_a_cause_and_no_other_case_has_one():
    for case in CASES.values():
        assert bool(case.cause) == (case.sick and case.family in PROGRAMS), case.name
        assert not case.cause or case.cause[0] == case.fault, case.name


def test_there_are_enough_loops_and_enough_that_only_look_broken():
    loops = [case for case in CASES.values() if case.family == "loop"]
    twins = {case.control.name for case in loops if case.control}
    by_half = Counter(case.half for case in loops if case.sick)
    assert by_half["tune"] >= 50
    assert by_half["holdout"] >= 40
    assert sum(not case.sick and case.name not in twins for case in loops) >= 30


def test_every_family_has_sick_and_healthy_cases_in_every_half():
    for half in HALVES:
        programs = {"game", "state"}
        without = {"live": {"game", *PROGRAMS}, **dict.fromkeys(("fresh", "blind"), programs)}
        without |= {half: {"game"} for half in TRAINING if half not in ("live", "fresh", "blind")}
        expected = set(FAMILIES) - without.get(half, set())
        for cases in (SICK, HEALTHY):
            assert {case.family for case in cases if case.half == half} == expected


@pytest.mark.parametrize(
    ("half", "sick"),
    [
        ("live", 70),
        ("fresh", 55),
        ("drill", 70),
        ("blind", 75),
        ("sealed", 80),
        ("veiled", 60),
        ("everyday", 80),
        ("common", 80),
        ("plain", 60),
        ("usual", 60),
        ("daily", 50),
        ("reported", 100),
        ("threads", 70),
    ],
)
def test_there_are_enough_programs_that_train_of_each_kind(half, sick):
    faults = Counter(case.fault for case in SICK if case.half == half and case.family not in PROGRAMS)
    assert sum(faults.values()) >= sick
    assert sum(case.half == half and case.family not in PROGRAMS for case in HEALTHY) >= 80
    assert faults["BOTTLENECK"] >= 10
    assert sum(faults[fault] for fault in ("ENTROPY_COLLAPSE", "RANK_COLLAPSE", "HEAD_DIVERSITY")) >= 10
    assert sum(faults[fault] for fault in ("SHORT_MEMORY", "SPECTRAL_RADIUS")) >= 10


def test_a_file_holds_one_half_and_says_which():
    for path in sorted(Path(folder.__file__).parent.glob("[!_]*.py")):
        module = importlib.import_module(f"validation.cases.{path.stem}")
        (half,) = {case.half for case in module.zoo.cases}
        (family,) = {case.family for case in module.zoo.cases}
        assert f"\nHalf: {half}.\n" in module.__doc__, path.name
        begins = f"{half}_{family}" if half in TRAINING else family
        assert path.stem.startswith(f"state_{half}" if family == "state" and half in TRAINING else begins), path.name


def test_there_are_enough_bottlenecks_to_speak_of_a_rate():
    assert min(Counter(case.half for case in SICK if case.fault == "BOTTLENECK").values()) >= 5


def test_labels_are_types_that_exist():
    known = {*IssueType.__members__, *CAUSES, *STATE_CAUSES, *LANGUAGE_CAUSES, *LATER_CAUSES}
    assert {name for case in CASES.values() for name in case.label | case.also} <= known


def test_a_twin_is_healthy_and_in_the_same_half():
    for case in SICK:
        assert case.control is not None, case.name
        assert not case.control.sick, case.name
        assert case.control.half == case.half, case.name


# --- each case


@pytest.mark.parametrize(("half", "family"), GROUPS)
def test_every_case_can_be_made_and_takes_a_step(half, family):
    """Group by group: thousands of tests cost more to keep account of than these checks."""
    wrong = {}
    for case in CASES.values():
        if (case.half, case.family) == (half, family):
            try:
                assert_takes_a_step(case)
            except Exception as error:  # any of them is told with the name of its case
                wrong[case.name] = repr(error)
    assert not wrong


def assert_takes_a_step(case):
    setup = case.make(0)
    known = {path for layer in layers_of(setup.model) for path in layer} | dict(setup.model.named_modules()).keys()
    assert set(case.layer or ()) <= known
    if isinstance(setup, Program):  # to run it takes its whole loop; `test_the_label_is_true` does that for some
        assert setup.score is not None
        assert not setup.losses
        return
    if case.half in TRAINING:
        assert isinstance(setup.optimizer, torch.optim.Optimizer)
        assert 30 <= setup.steps <= 120  # enough to watch
        held = {id(p) for group in setup.optimizer.param_groups for p in group["params"]}
        assert held == {id(p) for p in setup.model.parameters() if p.requires_grad}
    loss = setup.loss_fn(call(setup.model, setup.input_fn()))
    assert loss.dim() == 0
    assert case.sick or loss.isfinite()


@named(PROVEN)
def test_the_label_is_true(case):
    evidence = case.proof(case, 1)
    assert evidence.holds, evidence.text


@named([CASES["mlp/dropout-0.5-3x128"], CASES["transformer/language-model-4x32"], CASES["rnn/default-lstm-every-step"]])
def test_a_case_is_the_same_each_time_it_is_made(case):
    def first_loss():
        setup = case.make(3)
        return setup.loss_fn(call(setup.model, setup.input_fn())).item()

    assert first_loss() == first_loss()


@named([CASES["loop/drop-path-0.4"], CASES["loop/gan-takes-turns"], CASES["loop/experts-one-in-reserve"]])
def test_a_program_is_the_same_each_time_it_is_run(case):
    def losses():
        program = case.make(2)
        program.run()
        return program.losses

    assert losses() == losses()


def test_a_program_runs_as_well_without_the_measurements_of_its_proof():
    case = CASES["loop/in-order-adam"]
    program = case.make(1)
    program.run()
    assert program.losses == play(case, 1).program.losses


def test_batches_differ_and_leave_the_global_generator_alone():
    task = blobs(0)
    before = torch.get_rng_state()
    assert not torch.equal(task.input_fn(), task.input_fn())
    assert torch.equal(before, torch.get_rng_state())


# --- the parts


def test_norms_and_activations_belong_to_the_layer_before_them():
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Linear(4, 2)
    )
    assert layers_of(model) == (("1", "2", "3", "0"), ("4",))


def test_what_lies_inside_a_layer_belongs_to_it():
    layers = layers_of(torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True))
    assert [layer[0] for layer in layers] == ["self_attn", "linear1", "linear2"]
    assert "self_attn.out_proj" in layers[0]


def test_a_fault_outside_its_labels_is_refused():
    with pytest.raises(ValueError, match="must be one of its labels"):
        Case(
            name="x", family="mlp", half="tune", fault="DEAD", label=frozenset({"SLOW"}), build=_nothing, proof=_nothing
        )
    with pytest.raises(ValueError, match="is none of"):
        Zoo("mlp", half="both").healthy("x", _nothing, _nothing)


def test_a_case_takes_from_its_zoo_what_it_does_not_name():
    zoo = Zoo("rl", half="holdout", analyzer="policy", proof=_nothing)
    plain = zoo.healthy("x", _nothing)
    own = zoo.sick("y", _nothing, _other, "SLOW", half="tune", analyzer="general", layer="head", control=plain)
    assert (plain.name, plain.half, plain.analyzer, plain.proof) == ("rl/x", "holdout", "policy", _nothing)
    assert (own.half, own.analyzer, own.proof, own.layer) == ("tune", "general", _other, ("head",))
    assert zoo.cases == [plain, own]


def _other(*_):
    return Evidence(False, "")


def _nothing(*_):
    return Evidence(True, "") or Setup


def test_a_proof_can_fail():
    healthy = CASES["mlp/relu-he-6x64"]
    for name in ("mlp/relu-6x64-third-bias-minus-10", "mlp/detach-behind-third-6x64", "mlp/sigmoid-default-12x64"):
        assert not CASES[name].proof(healthy, 0).holds


@named([CASES["loop/in-order-adam"], CASES["loop/no-zero-grad-adam"], CASES["loop/lora-only-first-factor-by-name"]])
def test_the_proof_of_a_loop_does_not_hold_for_another(case):
    other = "loop/step-before-backward" if case.sick else "loop/optimizer-then-copy"
    assert not case.proof(CASES[other], 0).holds
