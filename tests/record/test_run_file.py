import errno
import getpass
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import textwrap
import warnings

import numpy as np
import pytest
import torch

import gradient_flow as gf
from gradient_flow.record.look import table_line
from gradient_flow.record.run_lines import FILE_NAME, FORMAT_VERSION, encode
from gradient_flow.record.run_writer import RunWriter
from gradient_flow.table.columns import COLUMNS

NONFINITE = [math.nan, math.inf, -math.inf]
GRADIENTS = {
    "random": torch.randn(40, 25, generator=torch.Generator().manual_seed(0)),
    "large and small": torch.tensor([1e30, -1e-30, 0.0, 5e3]),
    "zeros": torch.zeros(7),
    "empty": torch.zeros(0, 3),
    "nan": torch.tensor([1.0, math.nan, -3.0]),
    "only nan": torch.full((4,), math.nan),
    "inf": torch.tensor([1.0, math.inf]),
    "negative inf": torch.tensor([-math.inf, 2.0]),
    "both infs": torch.tensor([-math.inf, 2.0, math.inf]),
    "positive": torch.rand(9, generator=torch.Generator().manual_seed(1)) + 1,
    "complex": torch.complex(torch.tensor([3.0, -1.0]), torch.tensor([4.0, 2.0])),
    "complex infs": torch.complex(torch.tensor([math.inf, 1.0]), torch.tensor([-math.inf, 2.0])),
    "float64": torch.tensor([1e-20, 1 / 3], dtype=torch.float64),
}


def described(gradients):
    return [
        {"name": name, "shape": list(g.shape), "dtype": str(g.dtype).removeprefix("torch.")}
        for name, g in gradients.items()
    ]


def write_steps(folder, steps, start=1, parameters=()):
    """A writer of a run with some steps, still open."""
    writer = RunWriter(folder, {"parameters": list(parameters), "settings": {}})
    for step in range(start, start + steps):
        writer.write({"kind": "step", "step": step, "norm": 1.0 / step})
    return writer


def finished(folder, steps):
    writer = write_steps(folder, steps)
    writer.close()
    return writer.path


def strict(line):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(line, parse_constant=refuse)


def trained(folder, steps=12, **settings):
    """A small model under watch, and the tables its flow had after each step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    tables, ratios = {}, {}
    with gf.watch(model, optimizer, run=folder, **settings) as flow:
        for step in range(1, steps + 1):
            before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
            optimizer.zero_grad()
            loss = model(torch.randn(16, 4)).square().mean()
            loss.backward()
            if step % 2:
                flow.log(loss=loss, metrics={"accuracy": step / 100})
            optimizer.step()
            tables[step] = flow.table
            ratios[step] = [
                ((parameter.detach() - before[name]).norm() / before[name].norm()).item()
                for name, parameter in model.named_parameters()
            ]
    return model, tables, ratios


# ---- round trip -------------------------------------------------------------------------------------------------


def test_a_watched_run_reads_back_as_it_was(tmp_path):
    model, tables, ratios = trained(tmp_path / "run", layers_every=5)
    run = gf.load_run(tmp_path / "run")
    assert run.notes == []
    assert len(run) == 12
    assert run.header["format"] == FORMAT_VERSION
    assert [(p["name"], p["shape"]) for p in run.parameters] == [
        (n, list(p.shape)) for n, p in model.named_parameters()
    ]
    assert run.series("step").tolist() == list(range(1, 13))
    assert run.series("norm").tolist() == [table.total.norm for table in tables.values()]
    assert run.table_steps == [1, 5, 10]
    for step in run.table_steps:
        assert run.table(step).names == tables[step].names
        np.testing.assert_allclose(run.table(step).rows, tables[step].rows, rtol=2e-7)
        np.testing.assert_allclose(run.layers(step)["update_ratio"], ratios[step], rtol=1e-5)
    assert [event.kind for event in run.events if event.kind != "looked"] == ["end"]


def test_records_come_in_the_order_they_were_written(tmp_path):
    trained(tmp_path, steps=3, layers_every=2)
    records = [record for record in gf.load_run(tmp_path).records if record["kind"] not in ("seen", "looked")]
    kinds = [(record["kind"], record.get("step")) for record in records]
    written = [
        ("header", None),
        ("about", None),
        ("step", 1),
        ("look", 1),
        ("step", 2),
        ("look", 2),
        ("step", 3),
        ("end", None),
    ]
    assert kinds == written


def test_the_folder_and_the_file_are_the_same_run(tmp_path):
    path = finished(tmp_path, 3)
    assert list(gf.load_run(tmp_path).records) == list(gf.load_run(str(path)).records)


def test_series_have_one_value_per_step_and_nan_where_there_is_none(tmp_path):
    trained(tmp_path, steps=4)
    run = gf.load_run(tmp_path)
    assert not np.isnan(run.series("loss")).any()  # those that are not logged are heard from the backward pass
    np.testing.assert_array_equal(run.series("metrics/accuracy"), [0.01, math.nan, 0.03, math.nan])
    assert run.series("lr").tolist() == [0.25] * 4
    assert {"loss", "metrics/accuracy", "lr", "norm", "time"} <= set(run.names)
    assert all(run.series(name).shape == (4,) for name in run.names)


def test_learning_rates_of_several_groups_are_numbered_as_in_the_history(tmp_path):
    model = torch.nn.Linear(2, 1)
    groups = [{"params": [model.weight], "lr": 0.5}, {"params": [model.bias], "lr": 0.125}]
    optimizer = torch.optim.SGD(groups)
    with gf.watch(model, optimizer, run=tmp_path) as flow:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    run = gf.load_run(tmp_path)
    for name in ("lr", "lr/1"):
        assert run.series(name).tolist() == flow.history[name].tolist()


def test_a_value_that_is_always_null_is_a_series_all_the_same(tmp_path):
    writer = write_steps(tmp_path, 0)
    writer.write({"kind": "step", "step": 1, "norm": math.nan})
    writer.close()
    assert np.isnan(gf.load_run(tmp_path).series("norm")).tolist() == [True]


def test_an_unknown_series_or_table_is_answered_with_what_exists(tmp_path):
    trained(tmp_path, steps=3)
    run = gf.load_run(tmp_path)
    with pytest.raises(KeyError, match=r"no series 'nrom' in .* it has step, time, norm"):
        run.series("nrom")
    with pytest.raises(KeyError, match="step 2 has no table of tensors: there are 1, from 1 to 1"):
        run.table(2)


def test_a_run_without_steps_yet_is_a_run(tmp_path):
    finished(tmp_path, 0)
    run = gf.load_run(tmp_path)
    assert len(run) == 0
    assert run.table_steps == []
    with pytest.raises(KeyError, match="no steps yet"):
        run.series("norm")


@pytest.mark.parametrize("name", GRADIENTS)
def test_every_statistic_of_a_table_survives_the_file(tmp_path, name):
    gradients = {"a": GRADIENTS["random"], name: GRADIENTS[name]}
    table = gf.measure(gradients)
    writer = RunWriter(tmp_path, {"parameters": described(gradients)})
    writer.write(table_line(1, table, list(gradients), None))
    writer.close()
    back = gf.load_run(tmp_path).table(1)
    np.testing.assert_allclose(back.rows, table.rows, rtol=2e-7, atol=1e-37, err_msg=str(COLUMNS))
    expected = table.total.to_dict()
    assert back.total.to_dict() == pytest.approx(expected, rel=1e-6, nan_ok=True)
    assert back.total.finite_part.linf == pytest.approx(table.total.finite_part.linf, rel=1e-6)


def test_parameters_without_a_gradient_are_missing_in_the_table(tmp_path):
    gradients = {name: GRADIENTS[name] for name in ("random", "zeros", "positive")}
    table = gf.measure({**gradients, "zeros": None})
    writer = RunWriter(tmp_path, {"parameters": described(gradients)})
    writer.write(table_line(1, table, list(gradients), np.array([0.5, math.nan])))
    writer.close()
    run = gf.load_run(tmp_path)
    assert run.table(1).names == ("random", "positive")
    assert run.table(1).missing == ("zeros",)
    assert run.layers(1)["update_ratio"] == [0.5, None]


def test_each_table_has_the_parameters_that_were_known_when_it_was_written(tmp_path):
    first = {name: GRADIENTS[name] for name in ("random", "zeros")}
    later = {"positive": GRADIENTS["positive"]}
    writer = RunWriter(tmp_path, {"parameters": described(first)})
    writer.write(table_line(1, gf.measure(first), list(first), None))
    writer.write({"kind": "parameters", "parameters": described(later)})
    writer.write(table_line(2, gf.measure(first | later), list(first | later), None))
    writer.close()
    resumed = RunWriter(tmp_path, {"parameters": described(later)})
    resumed.write(table_line(3, gf.measure(later), list(later), None))
    resumed.close()
    run = gf.load_run(tmp_path)
    assert [run.table(step).names for step in (1, 2, 3)] == [tuple(first), (*first, *later), tuple(later)]
    assert run.table(3)["positive"].norm == pytest.approx(later["positive"].norm().item())
    assert [parameter["name"] for parameter in run.parameters] == [*first, *later]


def test_thresholds_are_those_of_the_run(tmp_path):
    trained(tmp_path, steps=1, near_zero=1e-3, very_large=10.0)
    assert gf.load_run(tmp_path).table(1).thresholds == (1e-3, 10.0)


# ---- strict JSON ------------------------------------------------------------------------------------------------


def test_every_line_is_strict_json_and_nonfinite_is_null(tmp_path):
    table = gf.measure(GRADIENTS)
    writer = RunWriter(tmp_path, {"parameters": described(GRADIENTS)})
    writer.write({"kind": "step", "step": 1, "values": NONFINITE, "deep": {"x": math.nan}, "number": np.float32("inf")})
    writer.write(table_line(1, table, list(GRADIENTS), np.full(len(GRADIENTS), math.inf)))
    writer.close()
    _, step, layers = map(strict, writer.path.read_text().splitlines())
    assert step == {"kind": "step", "step": 1, "values": [None] * 3, "deep": {"x": None}, "number": None}
    assert layers["update_ratio"] == [None] * len(GRADIENTS)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (np.arange(6.0)[::2], [0.0, 2.0, 4.0]),
        (np.array(3.0), 3.0),
        (np.array([1.0, math.nan], dtype=np.float16), [1.0, None]),
        (np.float64(2.0), 2.0),
        (np.bool_(True), True),
        (torch.float32, "torch.float32"),
        ({1: (2, 3)}, {"1": [2, 3]}),
        (2**70, str(2**70)),
        ("\udc80", r"'\udc80'"),
    ],
    ids=ascii,
)
def test_whatever_a_record_holds_becomes_json(value, written):
    assert strict(encode({"x": value, "norm": 1.5})) == {"x": written, "norm": 1.5}


# ---- without torch ----------------------------------------------------------------------------------------------


def test_reading_needs_no_torch(tmp_path):
    trained(tmp_path, steps=2)
    code = """
        import sys
        import gradient_flow as gf
        run = gf.load_run(sys.argv[1])
        assert len(run) == len(run.series("norm")) == 2 and run.table(1).total.norm > 0 and len(list(run.records)) == 6
        assert "torch" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), tmp_path], check=True)


# ---- torn lines -------------------------------------------------------------------------------------------------


def test_wherever_the_last_line_is_torn_the_rest_is_read_and_the_tear_noted(tmp_path):
    path = finished(tmp_path, 3)
    content = path.read_bytes()
    last = content[:-1].rindex(b"\n") + 1
    for end in range(last + 1, len(content)):
        path.write_bytes(content[:end])
        run = gf.load_run(tmp_path)
        assert len(run) == 2
        assert len(run.notes) == 1
        assert f"torn ({end - last} bytes)" in run.notes[0]


@pytest.mark.parametrize("torn", ["header", "step", "layers"])
def test_a_resumed_run_is_not_glued_to_a_torn_line(tmp_path, torn):
    gradients = {name: GRADIENTS[name] for name in ("random", "zeros")}
    writer = write_steps(tmp_path / "whole", 0, parameters=described(gradients))
    if torn == "layers":
        writer.write(table_line(1, gf.measure(gradients), list(gradients), None))
    else:  # torn behind an inner brace, a line looks whole at both ends
        writer.write({"kind": "step", "step": 1, "metrics": {"a": {"b": 1}}, "norm": 1.0})
    writer.close()
    content = writer.path.read_bytes()
    header_ends = content.index(b"\n") + 1
    begin, stop = (1, header_ends) if torn == "header" else (header_ends + 1, len(content))
    for end in range(begin, stop):
        folder = tmp_path / str(end)
        folder.mkdir()
        (folder / FILE_NAME).write_bytes(content[:end])
        write_steps(folder, 2, start=2).close()
        run = gf.load_run(folder)
        whole = end == stop - 1  # only the line break was missing, which the resumed writer has added
        assert run.series("step").tolist()[-2:] == [2, 3]
        assert len(run) == 2 + (whole and torn == "step")
        assert run.table_steps == ([1] if whole and torn == "layers" else [])
        assert [note.split(" ", 1)[1][:22] for note in run.notes] == ([] if whole else ["torn or damaged line w"])
        assert len(list(run.records)) == len(run) + len(run.table_steps) + 1 + (torn != "header" or whole)


def test_a_resumed_run_goes_on_in_the_same_file(tmp_path):
    finished(tmp_path, 3)
    write_steps(tmp_path, 2, start=4).close()
    run = gf.load_run(tmp_path)
    assert run.series("step").tolist() == [1, 2, 3, 4, 5]
    assert run.headers == 2


def test_an_event_of_a_repeated_step_that_stands_before_it_is_kept(tmp_path):
    writer = write_steps(tmp_path, 3)
    writer.write({"kind": "spiked", "step": 2, "of": "the first branch"})
    writer.close()
    header = {"version": "0", "parameters": [], "groups": {}}
    writer = RunWriter(tmp_path, header)
    writer.write({"kind": "spiked", "step": 2, "of": "the second"})
    writer.write({"kind": "step", "step": 2, "norm": 1.0})
    writer.close()
    run = gf.load_run(tmp_path)
    assert run.series("step").tolist() == [1, 2]
    assert [event.data["of"] for event in run.events if event.kind == "spiked"] == ["the second"]


def test_a_run_can_be_read_while_it_is_written(tmp_path):
    writer = write_steps(tmp_path, 3)
    first = gf.load_run(tmp_path)
    writer.write({"kind": "step", "step": 4, "norm": 1.0})
    assert len(first) == len(list(first.records)) - 1 == 3
    assert len(gf.load_run(tmp_path)) == 4
    writer.close()


KILLED = """
import os, sys, time
import numpy as np
from gradient_flow.record.run_writer import RunWriter

random = np.random.default_rng(0)
values = random.standard_normal(2000).astype(np.float32)
assert "torch" not in sys.modules

for life in range(int(sys.argv[2])):
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        writer = RunWriter(f"{sys.argv[1]}/{life // 2}", {"parameters": [], "settings": {}})
        for step in range(1, 1000):
            deep = {"values": values[: 997 * step % 2000]}
            writer.write({"kind": "step", "step": step, "life": life, "deep": deep, "last": step})
            os.write(tell, b"%d " % step)
        os._exit(1)
    os.close(tell)
    acknowledged = os.read(told, 1 << 16) if life % 3 else b""  # every third may die before its first record
    time.sleep(random.uniform(0, 0.003))
    os.kill(child, 9)
    assert os.waitpid(child, 0)[1] == 9
    while more := os.read(told, 1 << 16):
        acknowledged += more
    os.close(told)
    print(life, *acknowledged.decode().split()[-1:], flush=True)
"""


def test_every_acknowledged_record_survives_sigkill(tmp_path):
    """200 processes killed at random points of their writing; every second one resumes the file of the one before."""
    kills = 200
    helper = [sys.executable, "-c", KILLED, tmp_path, str(kills)]
    output = subprocess.run(helper, check=True, capture_output=True, text=True).stdout
    acknowledged = {int(life): int(rest[0]) if rest else 0 for life, *rest in map(str.split, output.splitlines())}
    assert len(acknowledged) == kills
    assert sum(count > 0 for count in acknowledged.values()) > kills / 2
    read_back = dict.fromkeys(acknowledged, 0)
    for folder in {life // 2 for life in acknowledged}:
        file = tmp_path / str(folder) / FILE_NAME
        content = file.read_bytes() if file.exists() else b""
        if content.count(b"\n") == 0:  # both were killed before their header was out
            assert acknowledged[2 * folder] == acknowledged[2 * folder + 1] == 0
            continue
        run = gf.load_run(file)
        assert bool(run.notes) == (not content.endswith(b"\n") or len(list(run.records)) < content.count(b"\n"))
        for life in (2 * folder, 2 * folder + 1):
            steps = [record for record in run.records if record["kind"] == "step" and record["life"] == life]
            assert [record["step"] for record in steps] == [record["last"] for record in steps]
            assert [record["step"] for record in steps] == list(range(1, len(steps) + 1))
            read_back[life] = len(steps)
    # The last one may have been written and killed before it could acknowledge.
    assert all(acknowledged[life] <= read_back[life] <= acknowledged[life] + 1 for life in acknowledged)
    shutil.rmtree(tmp_path)


# ---- trouble with the disk --------------------------------------------------------------------------------------


def one_warning(action):
    """The message of the only warning that an action gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    assert [each.category for each in caught] == [gf.GradientFlowWarning]
    return str(caught[0].message)


def write_through_trouble(writer):
    for step in range(1, 6):
        writer.write({"kind": "step", "step": step, "padding": "x" * 500})
    writer.close()
    assert not writer.active


def test_a_full_disk_costs_one_warning_and_the_rest_of_the_record(tmp_path):
    code = """
        import resource, signal, sys, warnings
        from gradient_flow.errors import GradientFlowWarning
        from gradient_flow.record.run_writer import RunWriter
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            writer = RunWriter(sys.argv[1], {"parameters": []})
            active = []
            for step in range(1, 9):
                writer.write({"kind": "step", "step": step, "padding": "x" * 500})
                active.append(writer.active)
            writer.close()
        assert active == [True] * 3 + [False] * 5, active
        assert [each.category for each in caught] == [GradientFlowWarning], caught
        print(caught[0].message)
    """
    helper = [sys.executable, "-c", textwrap.dedent(code), tmp_path]
    message = subprocess.run(helper, check=True, capture_output=True, text=True).stdout
    assert str(tmp_path / FILE_NAME) in message
    assert os.strerror(errno.EFBIG) in message
    assert "training continues" in message
    run = gf.load_run(tmp_path)
    assert run.series("step").tolist() == [1, 2, 3]
    assert "torn" in run.notes[0]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_disk_that_is_full_from_the_start_costs_one_warning(tmp_path):
    (tmp_path / FILE_NAME).symlink_to("/dev/full")
    message = one_warning(lambda: write_through_trouble(RunWriter(tmp_path, {"parameters": []})))
    assert os.strerror(errno.ENOSPC) in message


def test_a_folder_removed_under_way_costs_one_warning(tmp_path):
    writer = write_steps(tmp_path / "run", 2)
    assert writer.active
    shutil.rmtree(tmp_path / "run")
    assert "was removed" in one_warning(lambda: write_through_trouble(writer))
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_made_costs_one_warning(tmp_path):
    (tmp_path / "file").write_text("in the way")
    folder = tmp_path / "file" / "run"
    assert str(folder) in one_warning(lambda: write_through_trouble(RunWriter(folder, {"parameters": []})))


def test_a_disk_that_fails_again_on_closing_does_not_raise(tmp_path, monkeypatch):
    def failing(*_):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    writer = write_steps(tmp_path, 2)
    descriptor = writer._file
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing)
        patch.setattr(os, "close", failing)
        message = one_warning(lambda: write_through_trouble(writer))
    os.close(descriptor)
    assert os.strerror(errno.EDQUOT) in message


def test_training_goes_on_when_the_folder_is_removed(tmp_path):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    flow = gf.watch(model, optimizer, run=tmp_path / "run")

    def train():
        for step in range(6):
            if step == 3:
                shutil.rmtree(tmp_path / "run")
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        flow.close()

    assert "was removed" in one_warning(train)
    assert len(flow.history) == 6


def test_after_close_nothing_is_written_and_nothing_said(tmp_path):
    writer = write_steps(tmp_path, 1)
    writer.close()
    size = writer.path.stat().st_size
    write_through_trouble(writer)  # warnings are errors here
    assert writer.path.stat().st_size == size


# ---- what is not a run ------------------------------------------------------------------------------------------

HEADER = {"kind": "header", "format": FORMAT_VERSION, "parameters": []}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (encode({**HEADER, "format": FORMAT_VERSION + 1}) + b"\n", "Upgrade gradient-flow"),
        (encode(HEADER) + b"\n" + encode({**HEADER, "format": FORMAT_VERSION + 1}) + b"\n", "Upgrade gradient-flow"),
        (b"", "no complete record yet"),
        (b'{"ki', "no complete record yet"),
        (encode(HEADER), "no complete record yet"),
        (b"step,loss\n1,2\n", "not a run file"),
        (b"hello", "not a run file"),
        (b'{"loss":1}\n', "not a run file"),
        (b'{\n  "loss": 1\n}\n', "not a run file"),
        (b'{"kind":"step","step":1}\n', "not a run file"),
        (b'{"kind":"header"}\n', "not a run file"),
        (b'{"kind":"header","format":"new"}\n', "not a run file"),
        (bytes(range(256)) * 20, "not a run file"),
    ],
    ids=lambda value: repr(value[:24]),
)
def test_what_is_not_a_readable_run_is_said_with_the_path(tmp_path, content, message):
    file = tmp_path / FILE_NAME
    file.write_bytes(content)
    for path in (tmp_path, file):
        with pytest.raises(gf.RunFileError, match=message) as caught:
            gf.load_run(path)
        assert str(file) in str(caught.value)


@pytest.mark.parametrize("place", ["absent", "."])
def test_a_path_without_a_run_is_said(tmp_path, place):
    with pytest.raises(gf.RunFileError, match=r"`path` must be a run folder .* cannot be read \(No such file"):
        gf.load_run(tmp_path / place)


def test_a_table_of_a_run_that_was_removed_since_is_a_run_file_error(tmp_path):
    trained(tmp_path, steps=1)
    run = gf.load_run(tmp_path)
    run.path.unlink()
    assert len(run.series("norm")) == 1
    with pytest.raises(gf.RunFileError, match="cannot be read any more"):
        run.table(1)


# ---- what the header tells --------------------------------------------------------------------------------------


def all_strings(value):
    """Every key and every text in a JSON value."""
    if isinstance(value, dict):
        return set(value) | {text for inner in value.values() for text in all_strings(inner)}
    if isinstance(value, list):
        return {text for inner in value for text in all_strings(inner)}
    return {value} if isinstance(value, str) else set()


def test_the_header_tells_the_versions_and_the_model_but_no_host_and_no_user(tmp_path):
    trained(tmp_path, steps=1)
    header = strict((tmp_path / FILE_NAME).read_text().splitlines()[0])
    assert {"format", "version", "torch", "settings", "parameters", "groups"} <= header.keys()
    texts = all_strings(header)
    assert not texts & {socket.gethostname(), socket.getfqdn(), getpass.getuser(), "hostname", "host", "user"}
    assert not any(os.path.expanduser("~") in text for text in texts)


@pytest.mark.parametrize("damage", ['"shape":[-1]', '"shape":["a"]', '"shape":5'])
def test_a_damaged_description_of_a_tensor_is_refused_in_words(tmp_path, damage):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer, run=tmp_path):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    file = tmp_path / "run.jsonl"
    file.write_text(file.read_text().replace('"shape":[2,3]', damage, 1))
    with pytest.raises(gf.GradientFlowError, match="damaged"):
        gf.diagnose(tmp_path)
