"""An embedding whose gradient is that of one row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.words import percent
from gradient_flow.probes.embedding.stats import EmbeddingRows, EmbeddingStats
from gradient_flow.record.plain import from_plain

DOMINATES: Final = 0.5
"""Share of the squared norm from which a row is worth a remark; the most frequent word of a text has a tenth or so."""
LOOKS: Final = 3
USED: Final = 8
"""Rows in use below which one of them may well hold most, where it is not known how often it is asked for."""
NEARLY_ALL: Final = 0.7
"""Shares of the look-ups and of the gradient from which on a table is one row. Where all ids were one, nearly all of
them unknown, or padding trained, 78 % or more of the look-ups and 90 % or more of the gradient were of one row; of
tables that learn as they should no row has half of both."""
BUCKETS: Final = 8
"""Rows from which on a table of which one row is asked for is no table of types, of which a text may have one alone."""


def judge(found: Mapping[str, Any]) -> Iterator[Issue]:
    """The verdict on what the probe found."""
    return embedding_issues(from_plain(EmbeddingStats, found["stats"]))


def embedding_issues(stats: EmbeddingStats) -> Iterator[Issue]:
    """One issue for each table with a row that holds most of the gradient at most of the looks."""
    for table in stats.tables:
        row, share, asked = _dominating(table)
        if row is None or not share > DOMINATES:
            continue
        is_all = asked is not None and asked >= NEARLY_ALL and share >= NEARLY_ALL
        is_all = is_all and (max(table.used) > 1 or table.rows >= BUCKETS)
        often = f" {percent(asked)} of the look-ups ask for it." if asked is not None and is_all else ""
        yield Issue(
            issue_type=IssueType.LOOP,
            # Adam does not mind a row that is frequent, and the start of a game is a row like this.
            severity=IssueSeverity.MEDIUM if is_all else IssueSeverity.LOW,
            layer=table.name,
            message=f"row {row} of {table.rows:,} holds {percent(share)} of the squared norm of its gradient.{often}",
            evidence={
                "row": row,
                "share": share,
                "asked": asked,
                "rows_used": table.used[-1],
                "looks": len(table.top_row),
            },
            cause="one token, such as padding, a separator or an id for all that is unknown, is at most positions: the "
            "other rows learn next to nothing."
            if is_all
            else "one token, such as padding or a separator, is at most positions, and the loss counts it.",
            advice=[
                f"If row {row} is padding, pass `padding_idx={row}` to the embedding and leave it out of the loss "
                "(`ignore_index`).",
                *(
                    [
                        f"If it stands for whatever is unknown, print some ids of a batch beside what they were made "
                        f"of: {percent(asked or 0.0)} of them are {row}."
                    ]
                    if is_all
                    else []
                ),
                "Clip the embedding by itself: with one norm for all, this row decides how far all other weights move.",
            ],
            code="embedding_row",
        )


def _dominating(table: EmbeddingRows) -> tuple[int | None, float, float | None]:
    """The row that is on top at three quarters of the looks or more, and its middle shares there: of the gradient, and
    of the look-ups where these were seen."""
    if len(table.top_row) < LOOKS:
        return None, 0.0, None
    row, often = Counter(table.top_row).most_common(1)[0]
    at = [look for look, top in enumerate(table.top_row) if top == row]
    known = [asked for look in at if look < len(table.top_asked) and (asked := table.top_asked[look]) is not None]
    asked = _middle(known) if len(known) >= LOOKS else None
    if often < 0.75 * len(table.top_row) or (_middle(table.used) < USED and (asked or 0.0) < NEARLY_ALL):
        return None, 0.0, None
    return row, _middle([table.top_share[look] for look in at]), asked


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
