"""What one step shows of a policy: plain numbers, so that a verdict on them needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PolicyStep:
    """The action distribution over the states of one batch. What the policy does not have is `None`."""

    states: int = 0
    """Rows of the batch, those that could not be used included."""
    nonfinite_states: int = 0
    """Rows with NaN, with +Inf, or with every action masked: counted here and in no other number."""

    # Discrete actions: over the states that leave a choice, since one with a single valid action has no entropy.
    choices: int = 0
    """States with at least two valid actions."""
    entropy: float | None = None
    """Mean of H / ln(valid actions), from 0 (certain) to 1 (uniform); several factors count as one joint action."""
    entropy_nats: float | None = None
    """Mean of H."""
    valid_actions: float | None = None
    """Geometric mean of the number of valid joint actions."""
    effective_actions: float | None = None
    """e to the mean entropy: among how many equally likely actions the policy chooses."""
    certain_share: float | None = None
    """Share of states in which one action has a probability above 0.99."""
    mutual_information: float | None = None
    """I(S; A) in nats over the states of this batch: near 0 when the state does not matter to the choice.
    `None` for fewer than two."""
    marginal_entropy: float | None = None
    """Entropy of the actions over all states together, from 0 (always the same one) to 1 (all alike)."""
    factor_entropies: tuple[float | None, ...] = ()
    """The normalised entropy of each action factor, such as each head of a multi-discrete policy."""

    # Continuous actions.
    std_mean: float | None = None
    """Mean standard deviation; of a squashed policy, before the squashing."""
    std_min: float | None = None
    """The same for the action dimension where it is smallest."""
    std_relative: float | None = None
    """Mean standard deviation of the action itself (after squashing) over half of its range; `None` without a range."""
    std_relative_min: float | None = None
    """The same for the action dimension where it is smallest."""
    mean_saturation: float | None = None
    """Share of mean actions within 1 % of a bound, or beyond it; `None` without a range."""
    mean_spread: float | None = None
    """Standard deviation of the mean action over the states: 0 when the state does not matter."""
    squashed: bool = False
    """Whether a bounded transform, such as tanh, makes the action."""

    value_mean: float | None = None
    """Mean of the critic's values."""
    value_std: float | None = None
    """Standard deviation of the critic's values over the states."""
