"""The scoring, on findings made by hand."""

import pytest
from validation.report import markdown
from validation.score import (
    CRASH,
    NOTHING,
    Finding,
    Record,
    confusion,
    crashes,
    false_alarms,
    is_near,
    layers_named,
    misplaced,
    misses,
    score_all,
    score_class,
    unexplained,
    wrong_types,
)

LAYERS = (("net.0", "net.1"), ("net.2", "net.3"), ("net.4", "net.5"), ("net.6", "net.7"), ("head",))
BLOCKS = tuple((f"blocks.{i}.{part}",) for i in range(6) for part in ("up", "down"))


def sick(*findings, fault="DEAD", label=("DEAD",), place=("net.4",), **more):
    known = {"case": "a/sick", "family": "mlp", "half": "holdout", "fault": fault, "label": frozenset(label)}
    return Record(**{**known, "place": place, "layers": LAYERS, "findings": findings, **more})


def healthy(*findings, **more):
    known = {"case": "a/healthy", "family": "mlp", "half": "holdout", "fault": "HEALTHY", "label": frozenset()}
    return Record(**{**known, "layers": LAYERS, "findings": findings, **more})


def finding(kind="DEAD", severity="HIGH", layer="net.4", cause=""):
    return Finding(kind, severity, layer, cause=cause)


def loop(*findings, **more):
    known = {"case": "loop/sick", "family": "loop", "label": ("zero_rate", "SLOW"), "cause": ("zero_rate",)}
    return sick(*findings, **{"fault": "zero_rate", **known, **more})


# --- found or not


@pytest.mark.parametrize(("severity", "found"), [("LOW", False), ("MEDIUM", True), ("HIGH", True), ("CRITICAL", True)])
def test_only_medium_and_above_count_as_found(severity, found):
    assert score_all([sick(finding(severity=severity))]).recall.hits == found


def test_any_acceptable_type_is_found_and_another_is_not():
    record = sick(finding("VANISHING"), label=("DEAD", "VANISHING"))
    assert record.answer is not None
    assert sick(finding("VANISHING")).answer is None


def test_a_type_that_is_also_true_is_neither_found_nor_wrong():
    record = sick(finding("VANISHING"), also=frozenset({"VANISHING"}))
    assert record.answer is None
    assert record.wrong == []


def test_the_answer_is_the_most_severe_acceptable_alarm():
    record = sick(finding(severity="MEDIUM", layer="net.0"), finding(severity="CRITICAL", layer="net.4"))
    assert record.answer.layer == "net.4"


# --- causes of programs


def test_a_program_is_found_by_its_cause_or_by_an_acceptable_type():
    named, found, missed = loop(finding("LOOP", cause="zero_rate")), loop(finding("SLOW")), loop(finding("DEAD"))
    assert [record.answer is not None for record in (named, found, missed)] == [True, True, False]
    assert [record.cause_named for record in (named, found, missed)] == [True, False, False]
    total = score_all([named, found, missed, sick(finding())])
    assert (total.causes.hits, total.causes.total) == (1, 3)  # a case of a set-up has no cause to name
    assert [failure.case for failure in unexplained([named, found, missed])] == ["loop/sick"]


def test_the_alarm_that_names_the_cause_is_the_answer_even_if_another_is_more_severe():
    record = loop(finding("SLOW", "CRITICAL", "net.0"), finding("LOOP", "MEDIUM", "net.4", "zero_rate"))
    assert record.answer.layer == "net.4"
    assert record.cause_named


def test_a_remark_names_no_cause():
    assert not loop(finding("LOOP", "LOW", cause="zero_rate")).cause_named


def test_a_cause_that_is_also_true_is_neither_found_nor_wrong():
    record = loop(finding("LOOP", cause="loss_stuck"), also=frozenset({"loss_stuck"}))
    assert record.answer is None
    assert record.wrong == []
    assert len(loop(finding("LOOP", cause="broadcast")).wrong) == 1


def test_the_confusion_matrix_of_programs_is_one_of_causes():
    records = [loop(finding("LOOP", cause="zero_rate")), loop(finding("SLOW")), loop()]
    assert confusion(records)["zero_rate"] == {"zero_rate": 1, "SLOW": 1, NOTHING: 1}


# --- where


@pytest.mark.parametrize("path", ["net.4", "net.4.weight", "net.5", "net.2", "net.3", "net.6.bias", "`net.4`"])
def test_the_layer_itself_its_parts_and_its_neighbours_are_near(path):
    assert is_near(path, ("net.4",), LAYERS)


@pytest.mark.parametrize("path", ["net.0", "head", "head.weight", "model", "", "net", "net.44", "elsewhere"])
def test_other_layers_the_whole_and_the_unknown_are_not_near(path):
    assert not is_near(path, ("net.4",), LAYERS)


def test_a_small_block_around_the_layer_will_do_and_a_large_one_not():
    assert is_near("blocks.3", ("blocks.3.down",), BLOCKS)
    assert not is_near("blocks", ("blocks.3.down",), BLOCKS)
    assert not is_near("blocks.0", ("blocks.3.down",), BLOCKS)


def test_in_a_model_of_three_layers_only_the_layer_itself_is_near():
    assert is_near("net.2", ("net.2",), LAYERS[:3])
    assert not is_near("net.4", ("net.2",), LAYERS[:3])


def test_any_of_several_labelled_layers_is_right():
    assert is_near("head", ("net.0", "head"), LAYERS)


def test_the_innermost_module_decides():
    nested = (("attention",), ("attention.out",), ("up",), ("head",))
    assert layers_named("attention.out.weight", nested) == range(1, 2)
    assert layers_named("attention.in_proj_weight", nested) == range(1)


def test_a_miss_is_not_located_and_a_case_without_a_place_is_not_asked():
    total = score_all([sick(finding()), sick(), sick(place=None)])
    assert (total.place.hits, total.place.total) == (1, 2)
    assert score_class([sick(finding()), sick()], "DEAD").place_if_found.total == 1


# --- false alarms, precision, confusion


def test_a_healthy_run_counts_once_however_many_alarms_it_raises():
    total = score_all([healthy(finding(), finding("SLOW")), healthy(), healthy(finding(severity="LOW"))])
    assert (total.false_alarms.hits, total.false_alarms.total) == (1, 3)


def test_precision_of_a_class_is_over_the_runs_that_raise_it():
    records = [sick(finding()), sick(finding("SLOW")), healthy(finding()), sick(finding(), also=frozenset({"SLOW"}))]
    score = score_class(records, "DEAD")
    assert (score.precision.hits, score.precision.total) == (2, 3)


def test_the_confusion_matrix_has_one_entry_per_run():
    records = [sick(finding()), sick(), sick(error="boom"), healthy(), healthy(finding("SLOW"))]
    matrix = confusion(records)
    assert matrix["DEAD"] == {"DEAD": 1, NOTHING: 1, CRASH: 1}
    assert matrix["HEALTHY"] == {NOTHING: 1, "SLOW": 1}


def test_among_alarms_of_equal_severity_the_right_one_is_what_was_said():
    assert confusion([sick(finding("SLOW"), finding("DEAD"))])["DEAD"] == {"DEAD": 1}
    assert confusion([sick(finding("SLOW", "CRITICAL"), finding("DEAD"))])["DEAD"] == {"SLOW": 1}


def test_a_crash_is_a_miss_that_is_named_as_a_crash():
    record = sick(error="Traceback\nValueError: boom")
    assert score_all([record]).recall.hits == 0
    assert misses([record]) == []
    assert crashes([record])[0].said == "ValueError: boom"


def test_failures_are_named_with_their_seeds():
    records = [sick(seed=3), sick(seed=1), sick(finding(layer="net.0"), seed=2)]
    assert [(f.case, f.seeds) for f in misses(records)] == [("a/sick", (1, 3))]
    assert [(f.case, f.seeds) for f in misplaced(records)] == [("a/sick", (2,))]
    assert false_alarms([healthy(finding(), seed=4)])[0].seeds == (4,)
    assert wrong_types([sick(finding("SLOW"), seed=5)])[0].seeds == (5,)


def test_nothing_to_count_gives_no_share_rather_than_an_error():
    assert str(score_all([healthy()]).recall) == "–"


def test_the_report_names_every_failure_and_holds_both_halves():
    records = [
        sick(finding()),
        sick(case="b/missed", half="tune"),
        healthy(finding("SLOW"), case="c/false"),
        healthy(error="ValueError: boom", case="d/crash", half="tune"),
        sick(finding(layer="net.0"), case="e/lost"),
        sick(finding(fault := "BOTTLENECK"), case="f/narrow", fault=fault, label=(fault,)),
    ]
    text = markdown(records, 60)
    for word in ("b/missed", "c/false", "d/crash", "e/lost", "## Holdout", "## Tune", "AUTOTRAINER", "80 %"):
        assert word in text
    assert text.index("## Holdout") < text.index("## Tune")
