"""`PolicyStats`: what a stretch of steps shows of a policy, in the documented terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from gradient_flow.probes.policy.exploration import (
    UNIFORM,
    Adequacy,
    CollapseRisk,
    Trend,
    adequacy,
    continuous_risk,
    discrete_risk,
    entropy_trend,
    std_trend,
    worse,
)
from gradient_flow.probes.policy.step import PolicyStep
from gradient_flow.table.text import known_number, plain


@dataclass(frozen=True, kw_only=True)
class PolicyStats:
    """A policy's action distribution over the steps watched; numbers are those of the closing third of them.

    What belongs to a kind of action that the policy does not have is `None`.
    """

    discrete_entropy_normalized: float | None = None
    """Entropy / ln(valid actions): 0 certain, 1 uniform; states with a single valid action are left out."""
    continuous_std_mean: float | None = None
    """Mean standard deviation of continuous actions; of a squashed policy, before the squashing."""
    entropy_collapse_risk: CollapseRisk | None = None
    """`LOW`, `MEDIUM` or `HIGH`, from level and trend: it describes the distribution, whatever the returns are."""
    exploration_adequacy: Adequacy | None = None
    """`TOO_LOW`, `ADEQUATE` or `TOO_HIGH`, by the thresholds."""

    effective_actions: float | None = None
    """e to the entropy: among how many equally likely actions the policy chooses."""
    valid_actions: float | None = None
    certain_share: float | None = None
    """Share of states with an action of probability above 0.99."""
    mutual_information: float | None = None
    """I(S; A) in nats: how much the choice depends on the state."""
    mutual_information_at_most: float | None = None
    """The same at the step where it was largest: 0 where there is no state, as in a bandit."""
    marginal_entropy: float | None = None
    """Entropy of the actions over all states together: 0 when it is always the same one."""
    factor_entropies: tuple[float | None, ...] = ()
    """Normalised entropy of each factor of a multi-discrete action."""

    continuous_std_min: float | None = None
    """Of the action dimension with the least."""
    std_relative: float | None = None
    """Standard deviation of the action over half of its range; `None` where the range is not known."""
    std_relative_min: float | None = None
    mean_saturation: float | None = None
    """Share of mean actions at a bound."""
    mean_spread: float | None = None
    """Standard deviation of the mean action over the states."""
    squashed: bool = False
    mean_squashed: bool = False
    """Whether a bounded activation makes the mean, and nothing else of the action is squashed."""

    entropy_trend: Trend | None = None
    std_trend: Trend | None = None
    """Of the logarithm of the standard deviation."""
    value_mean: float | None = None
    steps: int = 0
    states: int = 0
    """Over all steps."""
    nonfinite_states: int = 0
    """States whose policy output was not finite, or had every action masked: in no other number."""
    first_step: int = 1
    entropy_history: tuple[float | None, ...] = field(default=(), repr=False)
    """Of each step, in the order of time."""
    std_history: tuple[float | None, ...] = field(default=(), repr=False)
    reason: str = ""
    """What could not be read, if anything."""

    @property
    def action_scale(self) -> float | None:
        """Standard deviation of the action in half action ranges; in its own units where the range is not known."""
        return self.continuous_std_mean if self.std_relative is None else self.std_relative

    @property
    def threshold_scale(self) -> float | None:
        """What the documented thresholds of 0.1 and 2.0 compare with: they are meant for actions within ±1.

        So that is the standard deviation in half ranges; of a squashed policy it is the one before the squashing, which
        is in those units already.
        """
        return self.continuous_std_mean if self.squashed else self.action_scale

    def __str__(self) -> str:
        lines = [f"Policy over {self.steps} steps, {self.states} states"]
        if self.discrete_entropy_normalized is not None:
            lines.append(
                f"  discrete    entropy {self.discrete_entropy_normalized:.3f} of 1{_course(self.entropy_trend)}, "
                f"{known_number(self.effective_actions)} of {known_number(self.valid_actions)} actions in effect, "
                f"certain in {_percent(self.certain_share)} of states, "
                f"I(S;A) {known_number(self.mutual_information)} nats"
            )
        if len(self.factor_entropies) > 1:
            lines.append(
                f"              by factor: {', '.join(known_number(value) for value in self.factor_entropies)}"
            )
        if self.continuous_std_mean is not None:
            relative = "" if self.std_relative is None else f", {plain(self.std_relative)} of half the action range"
            bound = "" if self.mean_saturation is None else f", mean at a bound {_percent(self.mean_saturation)}"
            least = known_number(self.continuous_std_min)
            lines.append(f"  continuous  std {plain(self.continuous_std_mean)} (least {least}){relative}{bound}")
        if self.nonfinite_states:
            lines.append(f"  not finite  in {self.nonfinite_states} states")
        lines.append(f"  entropy collapse risk {self.entropy_collapse_risk}, exploration {self.exploration_adequacy}")
        if self.reason:
            lines.append(f"  not read: {self.reason}")
        return "\n".join(lines)


def summarize_policy(
    steps: Sequence[PolicyStep],
    *,
    min_entropy_threshold: float = 0.5,
    min_std_threshold: float = 0.1,
    max_std_threshold: float = 2.0,
    first_step: int = 1,
    reason: str = "",
) -> PolicyStats:
    """The statistics of the steps in the order of time."""
    entropies, stds = entropy_trend(steps), std_trend(steps)
    closing = steps[-max(1, len(steps) // 3) :]
    plain = PolicyStats(
        discrete_entropy_normalized=entropies.level if entropies else None,
        continuous_std_mean=_level(closing, "std_mean"),
        effective_actions=_level(closing, "effective_actions"),
        valid_actions=_level(closing, "valid_actions"),
        certain_share=_level(closing, "certain_share"),
        mutual_information=_level(closing, "mutual_information"),
        mutual_information_at_most=max(
            (step.mutual_information for step in steps if step.mutual_information is not None), default=None
        ),
        marginal_entropy=_level(closing, "marginal_entropy"),
        factor_entropies=closing[-1].factor_entropies if closing else (),
        continuous_std_min=_level(closing, "std_min"),
        std_relative=_level(closing, "std_relative"),
        std_relative_min=_level(closing, "std_relative_min"),
        mean_saturation=_level(closing, "mean_saturation"),
        mean_spread=_level(closing, "mean_spread"),
        squashed=any(step.squashed for step in closing),
        entropy_trend=entropies,
        std_trend=stds,
        value_mean=_level(closing, "value_mean"),
        steps=len(steps),
        states=sum(step.states for step in steps),
        nonfinite_states=sum(step.nonfinite_states for step in steps),
        first_step=first_step,
        entropy_history=tuple(step.entropy for step in steps),
        std_history=tuple(step.std_mean for step in steps),
        reason=reason,
    )
    return _with_levels(plain, min_entropy_threshold, min_std_threshold, max_std_threshold)


def _with_levels(stats: PolicyStats, min_entropy: float, min_std: float, max_std: float) -> PolicyStats:
    """The documented levels, from the numbers."""
    risks, too_low, too_high = [], [], []
    entropy, std = stats.discrete_entropy_normalized, stats.threshold_scale
    if entropy is not None and stats.entropy_trend is not None:
        risks.append(discrete_risk(entropy, stats.entropy_trend))
        too_low.append(entropy < min_entropy)
        too_high.append(entropy > UNIFORM)
    if std is not None and stats.action_scale is not None and stats.std_trend is not None:
        risks.append(continuous_risk(stats.action_scale, stats.std_trend, std < min_std))
        too_low.append(std < min_std)
        too_high.append(std > max_std)
    return replace(stats, entropy_collapse_risk=worse(risks), exploration_adequacy=adequacy(too_low, too_high))


def _level(steps: Sequence[PolicyStep], name: str) -> float | None:
    values = [value for step in steps if (value := getattr(step, name)) is not None]
    return median(values) if values else None


def _course(trend: Trend | None) -> str:
    if trend is None or not trend.significant or trend.slope is None:
        return ""
    return f" (was {trend.start:.3f}, {'falling' if trend.slope < 0 else 'rising'})"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
