"""The report as a file: every format, replaced as a whole or not at all, and the command that writes it."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from report_runs import HOSTILE, empty_run, hostile_run, sick_run
from torch import nn

from gradient_flow.cli.diagnose import diagnose
from gradient_flow.cli.report import report
from gradient_flow.diagnosis.issue import RULE_SET
from gradient_flow.errors import InputError, RunFileError
from gradient_flow.flow.watch import watch
from gradient_flow.record.run import load_run
from gradient_flow.report.data import page_data
from gradient_flow.report.report_figure import report_figure
from gradient_flow.report.write import FORMATS, write_report


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {
        "sick": sick_run(folder / "sick"),
        "hostile": hostile_run(folder / "$x$ <b>"),
        "empty": empty_run(folder / "empty"),
    }


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("run", ["sick", "hostile", "empty"])
def test_every_format_of_every_run_lies_in_the_run_folder(runs, run, kind):
    path = write_report(runs[run], format=kind)
    assert path == Path(runs[run]) / f"report.{kind}"
    assert path.stat().st_size > 100


@pytest.mark.parametrize("run", ["sick", "hostile", "empty"])
def test_the_text_fits_eighty_columns_and_says_it_all(runs, run):
    text = write_report(runs[run], format="txt").read_text()
    data = page_data(runs[run])
    assert max(map(len, text.splitlines())) <= 80
    words = "".join(text.split())  # a name of 200 letters is broken over lines
    assert "".join(data["verdict"]["sentence"].split()) in words
    for issue in data["verdict"]["issues"]:
        assert f"[{issue['severity']}]" in text
        assert all("".join(advice["text"].split()) in words for advice in issue["advice"])


def test_the_table_of_layers_has_the_last_norms(runs):
    text = write_report(runs["sick"], format="txt").read_text()
    run = load_run(runs["sick"])
    table = run.table(run.table_steps[-1])
    shown = dict(re.findall(r"^(\d+\.\w+)\s+(\S+)", text, re.MULTILINE))
    assert list(shown) == list(table.names)
    assert [float(value) for value in shown.values()] == pytest.approx(table.norm.tolist(), rel=0.06)


def test_markdown_escapes_names(runs):
    text = write_report(runs["hostile"], format="md").read_text()
    assert "<img" not in text.replace("\\<img", "")
    assert "<script" not in text.replace("\\<script", "")
    rows = [line for line in text.splitlines() if line.startswith("| tensors")]
    assert len(rows) == len(HOSTILE)
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 7 for row in rows)


def test_json_is_the_data_of_the_page_and_strict(runs):
    def refuse(token):
        raise AssertionError(f"{token} is not JSON")

    told = json.loads(write_report(runs["sick"], format="json").read_text(), parse_constant=refuse)
    assert told == page_data(runs["sick"])


def test_the_picture_is_drawn(runs):
    with Image.open(write_report(runs["sick"], format="png")) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(np.uint32)
    assert pixels.shape[0] > 800
    assert len(np.unique(pixels @ np.array([65536, 256, 1], dtype=np.uint32))) > 200


class Attentive(nn.Module):
    """Long names beside the map, and three panels of what looks saw."""

    def __init__(self):
        super().__init__()
        self.token_embedding = nn.Embedding(16, 8)
        layers = [nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True) for _ in range(3)]
        self.transformer_encoder_layers = nn.ModuleList(layers)
        self.output_projection = nn.Linear(8, 16)

    def forward(self, x):
        x = self.token_embedding(x)
        for layer in self.transformer_encoder_layers:
            x = layer(x)
        return self.output_projection(x)


def test_panels_of_a_transformer_do_not_overlap(tmp_path):
    torch.manual_seed(0)
    model = Attentive()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with watch(model, optimizer, run=tmp_path / "run", looks=2):
        for _ in range(8):
            x = torch.randint(16, (4, 6))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
            optimizer.step()
    data = page_data(tmp_path / "run")
    assert len(data["looks"]["curves"]) >= 3
    figure = report_figure(data)
    figure.canvas.draw()
    panels = [axes.get_tightbbox() for axes in figure.axes if axes.get_title(loc="left")]
    overlaps = [(a, b) for at, a in enumerate(panels) for b in panels[:at] if _shared(a, b) > 100]  # in pixels squared
    assert len(panels) == 7
    assert not overlaps


def _shared(a, b):
    width, height = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
    return max(0.0, width) * max(0.0, height)


def test_the_title_of_the_picture_says_what_to_try_and_leaves_room(runs):
    data = page_data(runs["sick"])
    first = data["verdict"]["issues"][0]["advice"][0]["text"]
    title = report_figure(data).get_suptitle()
    assert f"Try first: {first[:30]}".replace("`", "") in " ".join(title.split())
    data["verdict"]["sentence"] = "a long sentence, " * 200
    assert report_figure(data).get_suptitle().count("\n") <= 6


def test_a_single_step_is_drawn_as_a_point(runs):
    data = page_data(runs["sick"])
    series = data["series"]
    for name in ("step", "first", "nonfinite"):
        series[name] = series[name][:1]
    for line in series["lines"].values():
        line["min"], line["max"] = line["min"][:1], line["max"][:1]
    curves = report_figure(data).axes[0]
    assert {line.get_marker() for line in curves.lines if len(line.get_xdata())} == {"o"}


WHERE = {"operation": "sqrt", "line": "train.py:12", "code": "return x.sqrt() / 0.00001234", "function": "forward"}


@pytest.fixture(scope="module")
def replayed(runs, tmp_path_factory):
    """The sick run, with what forensics found about its NaN."""
    folder = tmp_path_factory.mktemp("replayed")
    origin = {"found": True, "message": "`sqrt` in `7` made NaN.", "why": "The root of a negative number is NaN."}
    origin |= {"operator": "sqrt", "module": "7", "file": "/home/me/train.py", "line": 12}
    line = {"kind": "forensics", "step": 31, "origin": origin | {name: WHERE[name] for name in ("code", "function")}}
    data = (runs["sick"] / "run.jsonl").read_bytes()
    (folder / "run.jsonl").write_bytes(data + json.dumps(line).encode() + b"\n")
    return folder


@pytest.mark.parametrize("kind", ["txt", "md", "json"])
def test_every_format_says_where_a_nan_was_made(replayed, kind):
    text = write_report(replayed, format=kind).read_text().replace("\\", "")
    for name, value in WHERE.items():
        assert {
            "txt": f"- {name.capitalize()}: {value}",
            "md": f"- {name.capitalize()}: {value}",
            "json": f'"{value}"',
        }[kind] in text
    assert "`sqrt` in `7` made NaN. train.py:12: `return x.sqrt() / 0.00001234`." in " ".join(text.split())


def test_what_other_rules_said_at_the_time_is_a_line_of_the_report(runs, tmp_path):
    data = (runs["sick"] / "run.jsonl").read_bytes()
    data = data.replace(b'"rule_set":%d' % RULE_SET, b'"rule_set":1')
    (tmp_path / "run.jsonl").write_bytes(data)
    assert page_data(tmp_path)["verdict"]["then"] is None  # the rules have changed, the words have not
    (tmp_path / "run.jsonl").write_bytes(data.replace(b"gradients became NaN", b"gradients turned NaN"))
    said = "At the time, rule set 1 said: NUMERICAL in `16.bias`, since step 31: gradients turned NaN"
    assert page_data(runs["sick"])["verdict"]["then"] is None
    for kind in ("txt", "md", "json"):
        text = write_report(tmp_path, format=kind).read_text().replace("\\", "")
        assert said in " ".join(text.split())
    told = CliRunner().invoke(diagnose, [str(tmp_path)])
    assert said in " ".join(told.output.split())


def test_of_the_first_format_the_sentence_of_the_end_is_what_was_said(tmp_path):
    lines = [
        {"kind": "header", "format": 1, "settings": {}, "parameters": []},
        *({"kind": "step", "step": step, "norm": 1.0} for step in range(1, 20)),
        {"kind": "end", "steps": 19, "status": "stable", "message": "All is well."},
    ]
    (tmp_path / "run.jsonl").write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    assert page_data(tmp_path)["verdict"]["then"] == "At the time, rule set 1 said: All is well."


def test_a_failure_leaves_the_old_report_and_nothing_beside_it(runs, tmp_path, monkeypatch):
    target = write_report(runs["sick"], tmp_path / "kept.html")
    before = target.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunFileError, match="No space left"):
        write_report(runs["sick"], target)
    assert target.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["kept.html"]


def test_out_may_be_a_folder_or_a_place_that_does_not_exist_yet(runs, tmp_path):
    assert write_report(runs["sick"], tmp_path) == tmp_path / "report.html"
    assert write_report(runs["sick"], tmp_path / "a" / "b.txt", "txt").read_text()


def test_an_unknown_format_is_refused_by_name(runs):
    with pytest.raises(InputError, match=r"`format` must be one of html, md, json, png, txt; got 'pdf'"):
        write_report(runs["sick"], format="pdf")


def test_a_path_without_a_run_is_refused(tmp_path):
    with pytest.raises(RunFileError):
        write_report(tmp_path)


def test_the_command_writes_and_names_the_file(runs, tmp_path):
    done = CliRunner().invoke(report, [str(runs["sick"]), "--out", str(tmp_path / "r.html")])
    assert done.exit_code == 0, done.output
    assert done.output.strip() == str(tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")


def test_the_command_takes_the_format_from_the_name_or_the_option(runs, tmp_path):
    CliRunner().invoke(report, [str(runs["sick"]), "--out", str(tmp_path / "r.md")])
    assert (tmp_path / "r.md").read_text().startswith("# ")
    CliRunner().invoke(report, [str(runs["sick"]), "--out", str(tmp_path / "odd.name"), "--format", "txt"])
    assert max(map(len, (tmp_path / "odd.name").read_text().splitlines())) <= 80


def test_the_command_refuses_an_ending_that_is_no_format(runs, tmp_path):
    refused = CliRunner().invoke(report, [str(runs["sick"]), "--out", str(tmp_path / "x.pdf")])
    assert refused.exit_code == 2
    assert "must end in .html, .md, .json, .png, .txt" in refused.output
    assert not list(tmp_path.iterdir())
    told = CliRunner().invoke(report, [str(runs["sick"]), "--out", str(tmp_path / "v1.2"), "--format", "txt"])
    assert told.exit_code == 0


def test_the_command_refuses_what_is_no_run(tmp_path):
    done = CliRunner().invoke(report, [str(tmp_path)])
    assert done.exit_code == 2
    assert "run.jsonl" in done.output
