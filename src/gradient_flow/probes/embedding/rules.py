"""An embedding whose gradient is that of one row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.words import percent
from gradient_flow.probes.embedding.stats import EmbeddingRows, EmbeddingStats
from gradient_flow.record.plain import from_plain

DOMINATES: Final = 0.5
"""Share of the squared norm from which a row is worth a remark; the most frequent word of a text has a tenth or so."""
LOOKS: Final = 3
USED: Final = 8
"""Rows in use below which one of them may well hold most."""


def judge(found: Mapping[str, Any]) -> Iterator[Issue]:
    """The verdict on what the probe found."""
    return embedding_issues(from_plain(EmbeddingStats, found["stats"]))


def embedding_issues(stats: EmbeddingStats) -> Iterator[Issue]:
    """One issue for each table with a row that holds most of the gradient at most of the looks."""
    for table in stats.tables:
        row, share = _dominating(table)
        if row is None or not share > DOMINATES:
            continue
        yield Issue(
            issue_type=IssueType.LOOP,
            severity=IssueSeverity.LOW,  # Adam does not mind, and the start of a game is a row like this
            layer=table.name,
            message=f"row {row} of {table.rows:,} holds {percent(share)} of the squared norm of its gradient.",
            evidence={"row": row, "share": share, "rows_used": table.used[-1], "looks": len(table.top_row)},
            cause="one token, such as padding or a separator, is at most positions, and the loss counts it.",
            advice=[
                f"If row {row} is padding, pass `padding_idx={row}` to the embedding and leave it out of the loss "
                "(`ignore_index`).",
                "Clip the embedding by itself: with one norm for all, this row decides how far all other weights move.",
            ],
            code="embedding_row",
        )


def _dominating(table: EmbeddingRows) -> tuple[int | None, float]:
    """The row that is on top at three quarters of the looks or more, and its middle share there."""
    if len(table.top_row) < LOOKS or min(table.used) < USED:
        return None, 0.0
    row, often = Counter(table.top_row).most_common(1)[0]
    shares = sorted(share for top, share in zip(table.top_row, table.top_share, strict=True) if top == row)
    return (row, shares[len(shares) // 2]) if often >= 0.75 * len(table.top_row) else (None, 0.0)
