"""The rules by themselves: numbers in, sentences out, no torch."""

import subprocess
import sys

import pytest

from gradient_flow.probes.nonfinite.advice import explain
from gradient_flow.probes.nonfinite.fault import Fault
from gradient_flow.probes.nonfinite.origin import NonFiniteOrigin
from gradient_flow.probes.nonfinite.tensor_range import TensorRange

INF, NAN = float("inf"), float("nan")


def fault(operator, phase="forward", made=INF, dtype="float32", **values):
    inputs = [
        TensorRange(name=name, shape=(2,), dtype=dtype, count=2, minimum=value, maximum=value, at_fault=value)
        for name, value in values.items()
    ]
    output = TensorRange(name="output", shape=(2,), dtype=dtype, count=2, nan=int(made != made), inf=int(made == made))
    return Fault(operator=operator, inner=operator, phase=phase, inputs=inputs, outputs=[output])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (fault("log", input=0.0), "of 0 is -Inf"),
        (fault("log", made=NAN, input=-1.0), "below 0 is NaN"),
        (fault("log1p", input=-1.0), "of -1 is -Inf"),
        (fault("div", made=NAN, input=0.0, other=0.0), "0 / 0 is NaN"),
        (fault("div", input=1.0, other=0.0), "A division by 0 is Inf"),
        (fault("div", input=1.0, other=1e-45), "A division by 1e-45 is beyond"),
        (fault("exp", input=89.0), "`exp` of 89 is beyond the largest float32; `exp` overflows above 88.7"),
        (fault("exp", dtype="float16", input=12.0), "overflows above 11.1"),
        (fault("pow", made=NAN, input=-2.0, exponent=0.5), "not whole"),
        (fault("pow", input=0.0, exponent=-1.0), "0 to a negative power"),
        (fault("sqrt", made=NAN, input=-1e-9), "negative number (-1e-09)"),
        (fault("rsqrt", input=0.0), "A division by 0"),
        (fault("rsqrt", made=NAN, input=-1.0), "negative number"),
        (fault("acos", made=NAN, input=1.5), "between -1 and 1; it was given 1.5"),
        (fault("mul", input=3e38, other=10.0), "larger than 3.403e+38, the largest float32"),
        (fault("mul", dtype="float16", input=300.0, other=300.0), "65504"),
        (fault("sqrt", phase="backward", input=1.0, other=0.0), "infinite at 0"),
        (fault("mul", phase="backward", dtype="float16", input=300.0, other=300.0), "gradient is larger than 65504"),
        (fault("unheard_of", made=NAN, input=1.0), "`unheard_of` has no finite result"),
    ],
)
def test_each_case_has_its_cause(given, words):
    found = explain(given)
    assert words in found.why
    assert found.advice


def test_the_rules_need_no_torch():
    code = "import sys, gradient_flow.probes.nonfinite.sentences; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_a_report_is_json_even_with_nan_in_it():
    extent = TensorRange(name="x", shape=(1,), dtype="float32", count=1, nan=1, first_bad_value=NAN, at_fault=-INF)
    plain = NonFiniteOrigin(found=True, kind="input", message="", inputs=(extent,)).to_dict()
    assert (plain["inputs"][0]["first_bad_value"], plain["inputs"][0]["at_fault"]) == ("NaN", "-Inf")
    assert plain["inputs"][0]["shape"] == [1]
