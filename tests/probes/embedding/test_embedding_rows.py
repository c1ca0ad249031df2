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


@pytest.mark.parametrize("sparse", [False, True])
def test_look_ups_of_the_largest_row_are_counted(sparse):
    table, words = nn.Embedding(40, 6, sparse=sparse), torch.tensor([[3, 7, 7], [7, 12, 7]])
    probe = EmbeddingProbe()
    probe.bind(nn.ModuleDict({"table": table}))
    with probe:
        table(words).sum().backward()
        probe.after_step(None, None)
    table.zero_grad()
    table(words).sum().backward()
    probe.after_step(None, None)
    (found,) = probe.result().tables
    assert (list(found.top_row), found.top_asked) == ([7, 7], [4 / 6, None])  # the second was not listened to


@pytest.mark.parametrize(("used", "found"), [([10, 13, 14, 7], 1), ([7, 5, 14, 6], 0)])
def test_one_look_at_few_rows_does_not_hide_the_row_that_holds_most(used, found):
    table = EmbeddingRows(name="words", rows=40, used=used, top_row=[1] * 4, top_share=[0.99] * 4, top_asked=[0.65] * 4)
    assert len(list(embedding_issues(EmbeddingStats(tables=[table])))) == found


@pytest.mark.parametrize(
    ("asked", "share", "used", "severity"),
    [
        (1.0, 1.0, 1, gf.IssueSeverity.MEDIUM),  # all ids are one
        (0.78, 0.96, 7, gf.IssueSeverity.MEDIUM),  # padding that is trained
        (0.25, 0.9, 20, gf.IssueSeverity.LOW),  # a frequent word
        (0.8, 0.6, 20, gf.IssueSeverity.LOW),  # padding that hardly counts
        (0.5, 0.9, 2, None),  # of two in use
    ],
)
def test_a_table_that_is_one_row_is_more_than_a_remark(asked, share, used, severity):
    table = EmbeddingRows(
        name="words", rows=500, used=[used] * 4, top_row=[3] * 4, top_share=[share] * 4, top_asked=[asked] * 4
    )
    issues = list(embedding_issues(EmbeddingStats(tables=[table])))
    assert [issue.severity for issue in issues] == ([] if severity is None else [severity])


@pytest.mark.parametrize("sick", [True, False])
def test_ids_that_all_fall_into_one_bucket_are_found_in_a_training(sick):
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.kinds, self.out = nn.Embedding(15, 8), nn.Linear(12, 1)

        def forward(self, kinds, x):
            return self.out(torch.cat([self.kinds(kinds), x], 1))

    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with gf.watch(model, optimizer) as flow:
        for _ in range(60):
            kinds, x = torch.randint(15, (64,)), torch.randn(64, 4)
            y = x.sum(1, keepdim=True) + kinds[:, None] / 5
            optimizer.zero_grad()
            nn.functional.mse_loss(model(kinds % 1 if sick else kinds, x), y).backward()
            optimizer.step()
    serious = {issue.code for issue in flow.diagnose() if issue.severity >= gf.IssueSeverity.MEDIUM}
    assert serious == ({"embedding_row"} if sick else set())


def test_a_table_of_types_of_which_there_is_one_is_a_remark():
    table = EmbeddingRows(name="types", rows=4, used=[1] * 4, top_row=[0] * 4, top_share=[1.0] * 4, top_asked=[1.0] * 4)
    assert [issue.severity for issue in embedding_issues(EmbeddingStats(tables=[table]))] == [gf.IssueSeverity.LOW]
