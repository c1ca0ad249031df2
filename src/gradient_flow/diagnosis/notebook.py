"""Verdicts for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gradient_flow.diagnosis.titles import title_of
from gradient_flow.record.notebook import COLOURS, badge, box, prose

if TYPE_CHECKING:
    from gradient_flow.diagnosis.issue import Diagnosis, Issue

_OPEN: Final = 1
"""Issues whose advice is open; the others unfold."""


def issue_html(issue: Issue, *, unfolded: bool = True) -> str:
    """What, where, since when; the likely cause and ranked advice."""
    since = "" if issue.step is None else f' <span style="opacity:.75">since step {issue.step:,}</span>'
    title = f"{badge(str(issue.severity))} {prose(title_of(issue))}{since}"
    cause = f"<p style='margin:4px 0'>Likely cause: {prose(issue.cause)}</p>" if issue.cause else ""
    advice = "".join(f"<li>{prose(text)}</li>" for text in issue.advice)
    advice = f"<ol style='margin:4px 0'>{advice}</ol>" if advice else ""
    followers = issue.followers
    follows = f"<p style='margin:4px 0'>Follows from it: {prose(followers)}.</p>" if followers else ""
    opened = " open" if unfolded else ""
    details = f"<details{opened}><summary>Cause and advice</summary>{cause}{advice}{follows}</details>"
    message = f"<p style='margin:4px 0'>{prose(issue.message[:1].upper() + issue.message[1:])}</p>"
    return box(title, message, details if cause or advice or follows else "", colour=COLOURS[str(issue.severity)])


def diagnosis_html(found: Diagnosis) -> str:
    """The verdict, then each issue, the gravest open."""
    first = str(found[0].severity) if found else "unknown" if found.status == "insufficient_data" else "healthy"
    colour = COLOURS["CRITICAL"] if found.failed else COLOURS["healthy"] if found.healthy and found else COLOURS[first]
    sentence = found.with_ending(found.in_short) if found else found.message
    issues = "".join(issue_html(issue, unfolded=at < _OPEN) for at, issue in enumerate(found))
    return box(prose(sentence), issues, colour=colour)
