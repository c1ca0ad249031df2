"""Routers that have gone wrong: all tokens to a few experts, and experts that get none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.words import percent, plain
from gradient_flow.probes.routing.stats import Router, RoutingStats
from gradient_flow.record.plain import from_plain

COLLAPSED: Final = 1.25
"""Experts in effect, per expert that a token goes to; evenly it is experts / top."""
IDLE: Final = 0.5
"""Share of the experts without a token."""
LOOKS: Final = 4
"""Before this many a router has hardly been trained."""
TOKENS: Final = 20
"""Tokens per expert that a verdict rests on at least."""
ALL: Final = 0.95
"""Share of the tokens that one expert has, in the last look, at the end of a collapse that is under way."""
_RISES: Final = 0.3
"""By how much its share has grown by then, from look to look."""
_RECOVERS: Final = 0.1
"""Fall of the busiest expert's share that says that the router is on its way."""


def judge(found: Mapping[str, Any]) -> Iterator[Issue]:
    """The verdict on what the routing probe found."""
    return routing_issues(from_plain(RoutingStats, found["stats"]))


def routing_issues(stats: RoutingStats) -> Iterator[Issue]:
    """One issue for all routers, at the worst of them."""
    sick = [(severity, router) for router in stats.routers if (severity := _severity(router)) is not None]
    if not sick:
        return
    sick.sort(key=lambda each: (-each[0], each[1].effective / each[1].experts))
    severity, worst = sick[0]
    even = 1 / worst.experts
    busiest = max(worst.load)
    yield Issue(
        issue_type=IssueType.DEAD,
        severity=severity,
        layer=worst.name,
        message=f"{_in_effect(worst)}: the busiest gets {percent(busiest)} of what is routed ({percent(even)} would be "
        f"even), {len(worst.idle)} get nothing.",
        evidence={
            "busiest": busiest,
            "experts": worst.experts,
            "effective_experts": worst.effective,
            "idle_experts": worst.idle,
            "router_entropy": worst.entropy,
            "routers": [router.name for _, router in sick],
            "tokens": worst.tokens,
        },
        cause="the router collapsed: experts that get tokens learn, and so get more of them."
        if worst.entropy < 0.5
        else "nothing balances the load: the router's choice is unsteady, but always the same.",
        advice=[
            f"Add a load-balancing loss: 0.01 · {worst.experts} · Σ share of tokens × mean probability, over the "
            "experts (Switch Transformer), or a bias per expert that rises while it is idle.",
            f"Scale the initial weights of `{worst.name}` down (a standard deviation of 0.02), and lower its rate.",
            "Compute the router in float32, with a z-loss of 0.001 on its logits.",
        ],
        code="router_collapse",
        consequences=tuple(
            Issue(
                issue_type=IssueType.DEAD,
                severity=level,
                layer=router.name,
                message=f"{_in_effect(router)}.",
            )
            for level, router in sick[1:]
        ),
    )


def _in_effect(router: Router) -> str:
    return f"of {router.experts} experts {plain(router.effective, 2)} are used in effect"


def _severity(router: Router) -> IssueSeverity | None:
    shares = router.busiest_by_look
    if len(shares) < LOOKS or router.tokens < TOKENS * router.experts or router.experts <= router.top:
        return None
    if shares[-1] < shares[0] - _RECOVERS:
        return None
    if router.effective <= COLLAPSED * router.top:
        return IssueSeverity.HIGH
    if _collapses(router):
        return IssueSeverity.MEDIUM
    return IssueSeverity.MEDIUM if len(router.idle) >= max(2, IDLE * router.experts) else None


def _collapses(router: Router) -> bool:
    """Whether one expert took more and more, and all of it in the end: looks of before say otherwise of the mean."""
    shares = [share * router.top for share in router.busiest_by_look]
    steady = all(later >= earlier for earlier, later in pairwise(shares[-LOOKS:]))
    return steady and shares[-1] >= ALL and shares[-1] - shares[-LOOKS] >= _RISES
