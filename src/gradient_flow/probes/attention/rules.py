"""Attention that has gone wrong: entropy collapse, growing logits, rank collapse, redundant heads.

One issue for each cause.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, Final

from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.words import percent, plain
from gradient_flow.probes.attention.advice import diversity_advice, entropy_advice, logit_advice, rank_advice
from gradient_flow.probes.attention.collapse import COLLAPSED_SPREAD, Collapse, find_collapse, one_position
from gradient_flow.probes.attention.evidence import (
    IDENTICAL,
    diversity_severity,
    entropy_severity,
    falls,
    is_far_beyond,
    since,
)
from gradient_flow.probes.attention.growth import CODE, HOT, NOT_TINY, Growth, growth_course, growth_of, growth_words
from gradient_flow.probes.attention.stats import STANDS_OUT, AttentionStats, LayerAttention, RankCollapseRisk
from gradient_flow.record.plain import from_plain

__all__ = ["AttentionStats", "LayerAttention", "RankCollapseRisk", "attention_issues"]

_ENTROPY: Final = "min_entropy_threshold"
_DIVERSITY: Final = "min_diversity_threshold"

Found = tuple[IssueSeverity, LayerAttention]


def judge(found: Mapping[str, Any]) -> Iterator[Issue]:
    """The verdict on what the attention probe found, with the settings it was asked with."""
    return attention_issues(from_plain(AttentionStats, found["stats"]), **found.get("settings", {}))


def attention_issues(
    stats: AttentionStats,
    *,
    min_entropy_threshold: float = 0.5,
    min_diversity_threshold: float = 0.3,
    trend: Mapping[str, Sequence[float]] | None = None,
    explicit: Collection[str] = frozenset(),
) -> Iterator[Issue]:
    """What is wrong with a model's attention: at most one issue of each kind, at the layer where it begins.

    `trend` maps layers to their mean entropy step by step, instead of what `stats` remembers. Thresholds named in
    `explicit` were set by the user and are taken at their word.
    """
    layers = stats.layers
    histories = {layer.name: layer.entropy_by_step if trend is None else trend.get(layer.name, ()) for layer in layers}
    yield from _numerical(layers)
    yield from _one_key(layers)
    growths = {layer.name: growth for layer in layers if (growth := growth_of(layer, stats.at_steps)) is not None}
    collapsed = list(_entropy_collapse(layers, min_entropy_threshold, histories, _ENTROPY in explicit))
    if collapsed and collapsed[0].severity > IssueSeverity.LOW:  # the same cause: it tells what the logits came to
        yield from (_with_growth(issue, layers, growths) for issue in collapsed)
    else:
        yield from collapsed
        yield from _logits(layers, growths)
    yield from _rank_collapse(stats)
    yield from _low_diversity(layers, min_diversity_threshold, _DIVERSITY in explicit)


def _numerical(layers: Sequence[LayerAttention]) -> Iterator[Issue]:
    found = [(IssueSeverity.CRITICAL, layer) for layer in layers if layer.nonfinite]
    if found:
        first = found[0][1]
        message = f"{percent(first.nonfinite)} of the rows of the attention logits contain NaN or Inf."
        advice = (
            "Check the input of this layer: it is the first attention layer with NaN or Inf.",
            "In fp16, compute the product of queries and keys in fp32 or bf16: fp16 overflows above 65,504.",
        )
        yield _issue(IssueType.NUMERICAL, found, message, {"nonfinite_rows": first.nonfinite}, advice=advice)


def _one_key(layers: Sequence[LayerAttention]) -> Iterator[Issue]:
    """A mask that leaves every query a single key: the softmax is 1 whatever is asked, and passes no gradient."""
    found = [(IssueSeverity.HIGH, layer) for layer in layers if layer.without_choice == 1]
    if found:
        yield _issue(
            IssueType.ENTROPY_COLLAPSE,
            found,
            "The mask leaves each query a single one of several positions to look at: its weight is 1 whatever queries "
            "and keys are, and they get no gradient.",
            {"without_choice": 1.0, "layers": sorted({path for _, layer in found for path in layer.projections})},
            cause="A mask of the wrong length or sense: lengths that are 1 (of a list of one, say), a mask turned "
            "around, or one that bars all but a position from itself.",
            advice=(
                "Print how many keys the mask leaves each query (`mask.sum(-1)`): as many as the sequence has.",
                "For `scaled_dot_product_attention` True means attended, for `key_padding_mask` it means left out.",
            ),
            step=1,
        )


def _entropy_collapse(
    layers: Sequence[LayerAttention], threshold: float, histories: Mapping[str, Sequence[float]], explicit: bool
) -> Iterator[Issue]:
    found = []
    for layer in layers:
        severity = entropy_severity(layer, threshold, falls(histories[layer.name]), explicit)
        if severity is not None:
            found.append((severity, layer))
    if not found:
        return
    worst = _begins(found)
    history = histories[worst.name]
    known = (value for value in (worst.entropy_mean, worst.entropy_lately) if value is not None)
    entropy, collapsed, logit = min(known, default=0.0), worst.collapsed_heads, worst.largest_logit
    course = f", down from {history[0]:.2f}" if falls(history) else ""
    message = (
        f"Low attention entropy (entropy collapse), attending to few positions: {entropy:.2f} of ln(keys) on average "
        f"(limit {threshold:g}){course}; {percent(collapsed)} of the {len(worst.entropy)} heads look at a single "
        f"position; largest logit {plain(logit)}"
        f"{'; high rank collapse risk (sparse attention)' if one_position([worst]) else ''}."
    )
    yield _issue(
        IssueType.ENTROPY_COLLAPSE,
        found,
        message,
        {
            "entropy": entropy,
            "entropy_at_start": history[0] if history else entropy,
            "threshold": threshold,
            "collapsed_heads": collapsed,
            "falling": falls(history),
            "max_logit": logit,
            "max_logit_at_start": next(iter(worst.max_logit_by_step), logit),
            "far_beyond": is_far_beyond(worst),
            "frozen_heads": worst.frozen_heads,
            "entropy_by_head": [round(value, 4) for value in worst.entropy],
        },
        cause=(
            "The weights of queries and keys have grown until the softmax picks single positions and passes almost no "
            "gradient."
            if _worst(found) > IssueSeverity.LOW
            else "Some heads look at single positions, as heads of trained models often do."
        ),
        advice=entropy_advice(worst, _worst(found), falls(history)),
        step=since(history, threshold),
    )


def _with_growth(issue: Issue, layers: Sequence[LayerAttention], growths: Mapping[str, Growth]) -> Issue:
    """Entropy collapse, with its cause where logits are large: they grow, and how fast, or began so."""
    by_place = {layer.place: growths[layer.name] for layer in layers if layer.name in growths}
    places = (issue.layer, *(consequence.layer for consequence in issue.consequences))
    growth = next((by_place[place] for place in places if place in by_place), None)
    if growth is None:
        return replace(issue, code=CODE) if issue.evidence.get("max_logit", 0.0) >= NOT_TINY else issue
    evidence = {**issue.evidence, **growth.evidence}
    message = f"{issue.message} {growth_course(growth)}."  # what such logits do, the message says already
    return replace(issue, message=message, evidence=evidence, code=CODE, step=issue.step or growth.since)


def _logits(layers: Sequence[LayerAttention], growths: Mapping[str, Growth]) -> Iterator[Issue]:
    """Logits that grow without bound; large ones that do not are a remark."""
    found = [(growths[layer.name].severity, layer) for layer in layers if layer.name in growths]
    if found:
        first = min((growths[layer.name] for _, layer in found), key=lambda g: (-g.severity, g.steps_left))
        worst = next(layer for layer in layers if growths.get(layer.name) is first)
        found = [(first.severity, worst), *(each for each in found if each[1] is not worst)]
        yield _issue(
            IssueType.UNSTABLE,
            found,
            growth_words(first),
            first.evidence,
            cause="The weights of queries and keys grow and nothing bounds their product.",
            advice=logit_advice(worst, first),
            step=first.since,
            code=CODE,
        )
        return
    # One head that looks at single positions is what trained models have.
    large = [(IssueSeverity.LOW, layer) for layer in layers if layer.max_logit and median(layer.max_logit) > HOT]
    if large:
        worst = max((layer for _, layer in large), key=lambda layer: layer.largest_logit)
        yield _issue(
            IssueType.UNSTABLE,
            [(IssueSeverity.LOW, worst), *(each for each in large if each[1] is not worst)],
            f"The largest attention logit is {plain(worst.largest_logit)} (below 10 is usual); it does not grow at "
            "present.",
            {"max_logit": worst.largest_logit},
            cause="Queries and keys are long: a softmax of such logits looks at single positions.",
            advice=logit_advice(worst, None),
            code=CODE,
        )


def _rank_collapse(stats: AttentionStats) -> Iterator[Issue]:
    collapse = find_collapse(stats.layers)
    if collapse is not None:
        severity = IssueSeverity.LOW if collapse.harmless else IssueSeverity.HIGH
        yield _rank_issue(collapse, severity, stats.rank_collapse_risk)


def _rank_issue(collapse: Collapse, severity: IssueSeverity, risk: RankCollapseRisk) -> Issue:
    first = collapse.layers[0]
    similarity = "" if first.token_similarity is None else f", mean cosine {first.token_similarity:.4f}"
    alike = collapse.start < COLLAPSED_SPREAD
    course = (
        "tokens are indistinguishable from the start of the stack on. Their spread is "
        f"{plain(collapse.start, 2)} there and {plain(collapse.spread, 2)} at its end"
        if alike
        else f"tokens become indistinguishable. Their spread falls from {plain(collapse.start, 2)} at the start of the "
        f"stack to {plain(collapse.spread, 2)} after `{first.block}`"
    )
    message = (
        f"{str(risk).capitalize()} rank collapse risk: {course}{similarity} "
        f"(1 = all different, 0 = all equal, limit {COLLAPSED_SPREAD})."
    )
    evidence = {
        "token_spread": collapse.spread,
        "token_spread_at_start": collapse.start,
        "token_similarity": first.token_similarity,
        "spread_by_block": {layer.block: layer.token_spread for layer in collapse.layers},
    }
    cause = (
        "What all tokens share (a type, a large bias, inputs far from zero) is much larger than what they differ in."
        if alike
        else "Attention averages tokens: without a skip connection each layer makes them more alike."
        if not collapse.harmless
        else "Tokens are alike at the output, where no further attention has to tell them apart."
    )
    found = [(severity, layer) for layer in collapse.layers]
    return _issue(IssueType.RANK_COLLAPSE, found, message, evidence, cause=cause, advice=rank_advice(first))


def _low_diversity(layers: Sequence[LayerAttention], threshold: float, explicit: bool) -> Iterator[Issue]:
    found = []
    for layer in layers:
        severity = diversity_severity(layer, threshold, explicit)
        if severity is not None:
            found.append((severity, layer))
    if not found:
        return
    worst = _begins(found)
    diversity = worst.head_diversity or 0.0
    message = (
        f"Low head diversity, redundant heads: the {len(worst.entropy)} heads differ {percent(diversity)} as much as "
        f"independent heads would (limit {percent(threshold)})."
    )
    if worst.copies > 1:
        message = (
            f"Low head diversity, redundant heads: the {worst.copies} heads of the list are one and the same module, "
            "and look at the same positions."
        )
    evidence = {
        "heads": max(worst.copies, len(worst.entropy)),
        "head_diversity": diversity,
        "threshold": threshold,
        "head_divergence": worst.head_divergence,
        "entropy": worst.entropy_mean,
    }
    identical = diversity < IDENTICAL
    cause = (
        "One module was put into the list several times, as `[head] * 4` does, instead of one for each head."
        if worst.copies > 1
        else "The heads compute the same attention: their slices of W_q and W_k are equal, tied or copied."
        if identical
        else "The heads of this layer look at nearly the same positions."
    )
    advice = diversity_advice(worst, _worst(found), identical)
    yield _issue(IssueType.HEAD_DIVERSITY, found, message, evidence, cause=cause, advice=advice)


def _begins(found: Sequence[Found]) -> LayerAttention:
    """The first layer with the strongest evidence."""
    return next(layer for severity, layer in found if severity == _worst(found))


def _worst(found: Sequence[Found]) -> IssueSeverity:
    return max(severity for severity, _ in found)


def _issue(kind: IssueType, found: Sequence[Found], message: str, evidence: Mapping[str, Any], **more: Any) -> Issue:
    """One issue for all layers found; those other than the one where it begins are its consequences."""
    first = _begins(found)
    others = tuple(
        Issue(issue_type=kind, severity=severity, layer=_place(kind, layer), message=_brief(kind, layer))
        for severity, layer in found
        if layer is not first
    )
    place = _place(kind, first)
    if place != first.name:
        evidence = {**evidence, "attention": first.name, "projections": list(first.projections)}
        message = f"{message} {_made_by(first)}"
    return Issue(
        issue_type=kind,
        severity=_worst(found),
        layer=place,
        message=message,
        evidence=evidence,
        consequences=others,
        **more,
    )


_BY_SCORES: Final = (IssueType.ENTROPY_COLLAPSE, IssueType.HEAD_DIVERSITY, IssueType.UNSTABLE)
"""What the weights of queries and keys bring about; tokens that become alike have other causes."""


def _place(kind: IssueType, layer: LayerAttention) -> str:
    return layer.place if kind in _BY_SCORES else layer.name


def _made_by(layer: LayerAttention) -> str:
    """Where the scores of an attention come from."""
    paths = [f"`{path}`" for path in layer.projections]
    those = " and ".join([", ".join(paths[:-1]), paths[-1]] if len(paths) > 1 else paths)
    gains = layer.projections
    others = [gain for path, gain in gains.items() if path != layer.place and gain > 0]
    times = gains[layer.place] / max(others) if others else 0.0
    larger = f"; the weights of `{layer.place}` are {times:,.0f} times as large" if times > STANDS_OUT else ""
    return f"The scores of `{layer.name}` come from {those}{larger}."


def _brief(kind: IssueType, layer: LayerAttention) -> str:
    value = {
        IssueType.ENTROPY_COLLAPSE: ("entropy", layer.entropy_mean),
        IssueType.UNSTABLE: ("largest logit", layer.largest_logit),
        IssueType.RANK_COLLAPSE: ("token spread", layer.token_spread),
        IssueType.HEAD_DIVERSITY: ("head diversity", layer.head_diversity),
    }.get(kind, ("non-finite share", layer.nonfinite))
    return f"{value[0]} {plain(value[1])}" if value[1] is not None else value[0]
