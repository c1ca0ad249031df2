"""The row that holds most of an embedding's gradient, dense and sparse; a remark where it is always the same one."""

import pytest
import torch
from torch import nn

import gradient_flow as gf
from gradient_flow.probes.embedding.probe import EmbeddingProbe
from gradient_flow.probes.embedding.rules import embedding_issues
from gradient_flow.probes.embedding.stats import EmbeddingRows, EmbeddingStats


@pytest.mark.parametrize("sparse", [False, True])
def test_the_share_of_the_largest_row_is_exact(sparse):
    torch.manual_seed(0)
    table, words = nn.Embedding(40, 6, sparse=sparse), torch.tensor([3, 7, 7, 7, 12])
    target = torch.randn(5, 6)
    probe = EmbeddingProbe()
    probe.bind(nn.ModuleDict({"table": table}))
    (table(words) * target).sum().backward()
    probe.after_step(None, None)
    (found,) = probe.result().tables
    squares = {3: target[0], 7: target[1:4].sum(0), 12: target[4]}
    squares = {row: float(vector.double().square().sum()) for row, vector in squares.items()}
    assert (found.name, found.rows, list(found.used)) == ("table", 40, [3])
    assert found.top_row[0] == max(squares, key=squares.get)
    assert found.top_share[0] == pytest.approx(max(squares.values()) / sum(squares.values()), rel=1e-5)


@pytest.mark.parametrize("width", [65, 127, 128, 131, 770])
def test_of_long_rows_some_columns_tell(width):
    table, words = nn.Embedding(40, width), torch.arange(30)
    probe = EmbeddingProbe()
    probe.bind(nn.ModuleDict({"table": table}))
    (table(words) * torch.where(words == 9, 10.0, 1.0)[:, None]).sum().backward()
    probe.after_step(None, None)
    (found,) = probe.result().tables
    assert (list(found.used), list(found.top_row)) == ([30], [9])
    assert found.top_share[0] == pytest.approx(100 / 129, rel=1e-6)


@pytest.mark.parametrize(
    ("rows", "shares", "used", "row"),
    [
        ([0, 0, 0, 5], [0.9, 0.8, 0.7, 0.2], 20, 0),
        ([0, 1, 2, 3], [0.9, 0.9, 0.9, 0.9], 20, None),  # each time another one
        ([0, 0, 0, 0], [0.2, 0.2, 0.3, 0.2], 20, None),
        ([0, 0, 0, 0], [0.9, 0.9, 0.9, 0.9], 4, None),  # of four in use
        ([0, 0], [0.9, 0.9], 20, None),  # too early
    ],
)
def test_a_row_that_holds_most_is_a_remark(rows, shares, used, row):
    table = EmbeddingRows(name="words", rows=500, used=[used] * len(rows), top_row=rows, top_share=shares)
    issues = list(embedding_issues(EmbeddingStats(tables=[table])))
    assert [issue.evidence["row"] for issue in issues] == ([] if row is None else [row])
    assert all(issue.severity is gf.IssueSeverity.LOW and issue.code == "embedding_row" for issue in issues)
