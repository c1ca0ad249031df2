"""One rule per fault of recurrent dynamics, each a function of one layer's numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from gradient_flow.diagnosis.advice import by_itself
from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.words import percent, plain, times
from gradient_flow.probes.recurrent.advice import advice_for_forgetting, advice_for_growth, advice_for_rank
from gradient_flow.probes.recurrent.stats import ModuleDynamics, memory_length

SHORT_MEMORY: Final = 10.0
"""Timesteps below which a memory is documented as short."""
SHARE_OF_LAG: Final = 0.25
"""A memory below this share of the required lag leaves exp(-4) of the gradient over the lag."""
CHAOTIC: Final = 0.05
"""Largest Lyapunov exponent above which growth is not an accident of a finite sequence."""
FLAT_GATES: Final = 0.8
"""Gates that keep are flat by design, which is a quarter of an LSTM's and a third of a GRU's."""
_VARIED, _ONE_DIRECTION = 2.5, 1.5
"""Effective ranks: of inputs that differ in more than two directions, and of states that differ in hardly two."""
_LOWEST_OF_NEW: Final = 0.4
"""torch's own initialisation gives at least this radius."""
_PART: Final = 0.75
"""Share of the lag that a call takes in at most, where the lag is the whole sequence."""
_DECADES_CRITICAL: Final = 4.0
_TRANSIENT: Final = {10.0: IssueSeverity.LOW, 1e2: IssueSeverity.MEDIUM, 1e4: IssueSeverity.HIGH}


@dataclass(frozen=True)
class Limits:
    """What a rule measures by."""

    optimal: float
    """Spectral radius aimed at."""
    band: float
    """Deviation from it that is accepted."""
    lag: float | None = None
    """Steps back that the task reaches, where the user says so."""
    radius_is_explicit: bool = False
    lag_is_explicit: bool = False
    lag_is_measured: bool = False
    """By what the loss depends on, as far as the whole sequence of the model goes."""

    @property
    def low(self) -> float:
        """The lower edge of the band."""
        return self.optimal - self.band

    @property
    def high(self) -> float:
        """The upper edge of the band."""
        return self.optimal + self.band


def exploding_states(unit: ModuleDynamics, limits: Limits) -> Issue | None:
    """A radius above the band; how bad that is, the growth over the whole sequence says."""
    radius = unit.spectral_radius
    if unit.nonfinite_at is not None:
        kind, severity = IssueType.EXPLODING, IssueSeverity.CRITICAL
        message = f"exploding states: the state is NaN or Inf from step {unit.nonfinite_at} of the sequence onwards"
    elif radius is not None and radius > limits.high:
        kind, growth = IssueType.SPECTRAL_RADIUS, _growth_per_step(unit)
        decades = growth * unit.sequence_length / math.log(10)
        severity = _severity_of_growth(growth, decades, radius, limits)
        message = (f"spectral radius too high (exploding states): {plain(radius)}, above {plain(limits.high)}; ") + (
            f"gradients grow {plain(math.exp(growth))}-fold with each step back, "
            f"{times(10 ** min(decades, 300.0), 2)} over "
            f"{unit.sequence_length:,} steps"
            if growth > CHAOTIC
            else "over the whole sequence nothing grows"
        )
    else:
        return None
    return _issue(
        kind,
        severity,
        unit,
        message,
        "the recurrent weights amplify the state at every step",
        advice_for_growth(unit, limits.optimal),
        lyapunov_exponent=unit.lyapunov_exponent,
        product_norms=dict(unit.product_norms),
    )


def _severity_of_growth(growth: float, decades: float, radius: float, limits: Limits) -> IssueSeverity:
    if growth > CHAOTIC and radius > 1 + limits.band and decades >= 1:
        return IssueSeverity.CRITICAL if decades >= _DECADES_CRITICAL else IssueSeverity.HIGH
    if limits.radius_is_explicit:
        return IssueSeverity.HIGH
    # An LSTM with open gates adds up what it sees: its radius is a little above 1, and it trains well.
    return IssueSeverity.MEDIUM if growth > CHAOTIC and decades >= 1 else IssueSeverity.LOW


def transient_growth(unit: ModuleDynamics, limits: Limits) -> Issue | None:
    """Growth that the radius does not show: of a non-normal Jacobian, or from changing ones."""
    radius = unit.spectral_radius
    if not unit.product_norms or unit.nonfinite_at is not None or (radius is not None and radius > limits.high):
        return None
    # A network at the edge of chaos, as an LSTM with open forget gates, may grow this much and train well.
    excess = {factors: norm / math.exp(CHAOTIC * (factors - 1)) for factors, norm in unit.product_norms.items()}
    factors = max(excess, key=lambda count: excess[count])
    norm = unit.product_norms[factors]
    severity = max((level for least, level in _TRANSIENT.items() if excess[factors] >= least), default=None)
    if severity is None:
        return None
    return _issue(
        IssueType.EXPLODING,
        severity,
        unit,
        f"gradients grow up to {times(norm)} over {factors} steps before they fade, "
        f"{'' if radius is None else f'at a spectral radius of only {plain(radius)} '}(norm of the product)",
        "a non-normal transition: some directions grow many times, although all of them fade in the end",
        [
            "Clip the gradient norm: expect spikes of this size.",
            "Use an orthogonal init or a penalty on ||WᵀW − I|| for the recurrent weight: both keep directions apart.",
        ],
        lyapunov_exponent=unit.lyapunov_exponent,
        product_norms=dict(unit.product_norms),
    )


def fast_forgetting(unit: ModuleDynamics, limits: Limits) -> Issue | None:
    """A radius below the band."""
    radius = unit.spectral_radius
    if radius is None or radius >= limits.low:
        return None
    severity = IssueSeverity.LOW
    if limits.lag is not None and _is_short(unit, limits):
        severity = IssueSeverity.HIGH
    severity = max(severity, IssueSeverity.HIGH) if limits.radius_is_explicit else severity
    usual = "normal for a new network; " if radius > _LOWEST_OF_NEW else ""
    harmless = f" ({usual}it matters only if the task needs a longer memory)"
    return _issue(
        IssueType.SPECTRAL_RADIUS,
        severity,
        unit,
        f"spectral radius too low (fast forgetting): {plain(radius)}, below {plain(limits.low)}"
        f"{_memory_words(unit, limits.lag)}{harmless if severity is IssueSeverity.LOW else ''}",
        "the recurrent weights, or gates that are mostly closed, shrink the state at every step",
        advice_for_forgetting(unit, limits.optimal, limits.lag),
        effective_memory_length=unit.effective_memory_length,
        required_lag=limits.lag,
    )


def short_memory(unit: ModuleDynamics, limits: Limits) -> Issue | None:
    """A gradient that fades within a few steps, or within a part of the lag."""
    memory = unit.effective_memory_length
    if memory is None or not _is_short(unit, limits):
        return None
    severity = IssueSeverity.LOW
    if limits.lag is not None:
        too_low = unit.spectral_radius is not None and unit.spectral_radius < limits.low
        severity = IssueSeverity.HIGH if too_low or limits.lag_is_explicit else IssueSeverity.MEDIUM
    least = f"under {SHORT_MEMORY:g}" if limits.lag is None else f"under {SHARE_OF_LAG:g} × the required {limits.lag:g}"
    return _issue(
        IssueType.SHORT_MEMORY,
        severity,
        unit,
        f"short effective memory: {plain(memory)} timesteps, {least}; with each step back the gradient shrinks to "
        f"{percent(unit.temporal_decay_rate or 0.0)}",
        "gradients from earlier timesteps hardly reach the weights",
        advice_for_forgetting(unit, limits.optimal, limits.lag),
        effective_memory_length=memory,
        temporal_decay_rate=unit.temporal_decay_rate,
        required_lag=limits.lag,
    )


def low_rank(unit: ModuleDynamics, limits: Limits) -> Issue | None:
    """States that vary in far fewer directions than what they are fed: a healthy new cell keeps at least half."""
    rank, fed = unit.sample_rank, unit.input_rank
    if not rank or fed is None or fed < 2:
        return None  # no rank at all is a dead state
    possible = min(fed, float(unit.state_size))
    if rank >= 0.4 * possible:
        return None
    # The slow mode of a network that has learnt to integrate comes down to two directions, not to one.
    severity = IssueSeverity.MEDIUM if possible >= _VARIED and rank < _ONE_DIRECTION else IssueSeverity.LOW
    return _issue(
        IssueType.LOW_RANK,
        severity,
        unit,
        f"low effective rank (insufficient capacity): the states differ in {plain(rank)} directions between samples, "
        f"the inputs in {plain(fed)}",
        "units are saturated, or the weights map everything to a few directions",
        advice_for_rank(unit),
        effective_rank=unit.effective_rank,
        sample_rank=rank,
        input_rank=fed,
        state_size=unit.state_size,
    )


def dead_state(unit: ModuleDynamics, limits: Limits) -> Issue | None:
    """Whatever goes in, the state is the same for every sample."""
    if unit.sample_rank != 0 or unit.input_rank is None or unit.input_rank < 1:
        return None
    return _issue(
        IssueType.DEAD,
        IssueSeverity.CRITICAL,
        unit,
        f"its state is the same for every sample, although the inputs differ in {plain(unit.input_rank)} directions",
        "units never fire or gates let nothing in: a bias outweighs every input",
        [
            "Start its biases at 0.",
            "Standardise its input.",
            *(["If its activation is ReLU, use tanh, or gates."] if "RNN" in unit.kind else []),
        ],
        sample_rank=unit.sample_rank,
        input_rank=unit.input_rank,
    )


def flat_gates(unit: ModuleDynamics, limits: Limits) -> Issue | None:
    """Nearly all gates stand at an end of their range: neither the input nor the state can be learnt from."""
    share = unit.flat_gates
    if share is None or share <= FLAT_GATES:
        return None
    return _issue(
        IssueType.SATURATION,
        IssueSeverity.CRITICAL if share > 0.95 else IssueSeverity.HIGH,
        unit,
        f"{percent(share)} of its gate values, over steps and samples, are in the flat part",
        "inputs or weights are far too large",
        [
            by_itself("Standardise its input.", "standardise"),
            "Scale its weights down: a standard deviation of 1/sqrt(hidden size) is usual.",
        ],
        flat_gates=share,
    )


def cut_between_steps(unit: ModuleDynamics, limits: Limits) -> Issue | None:
    """The state is detached on its way from step to step; now and then is truncation, always is no memory.

    Truncation is a fault where the task reaches back beyond it: nothing learns to keep what is needed later.
    """
    if unit.cut_share == 0:
        return None
    always, attached = unit.cut_share > 0.9, 1.0 / unit.cut_share
    beyond = limits.lag is not None and attached < limits.lag
    return _issue(
        IssueType.DISCONNECTED if always else IssueType.SHORT_MEMORY,
        IssueSeverity.HIGH if always or beyond else IssueSeverity.LOW,
        unit,
        f"the state is detached before {percent(unit.cut_share)} of its {unit.sequence_length:,} steps: no gradient "
        f"flows {'from one step to the one before' if always else 'past those'}"
        + (f", and the task needs {limits.lag:g} in a row" if beyond else ""),
        "`.detach()`, `.data` or `no_grad` on the state inside the loop",
        [
            by_itself("Keep the state attached within a sequence, and detach it once between sequences.", "reattach")
            if always or beyond
            else "If this truncation is intended, do nothing; otherwise detach between sequences only."
        ],
        cut_share=unit.cut_share,
        **({"required_lag": limits.lag} if beyond else {}),
    )


def in_parts(unit: ModuleDynamics, limits: Limits) -> Issue | None:
    """It is called on parts of the sequence, shorter than what the loss depends on: its state has to be handed on."""
    if limits.lag is None or not limits.lag_is_measured or unit.sequence_length > _PART * limits.lag:
        return None
    return _issue(
        IssueType.SHORT_MEMORY,
        IssueSeverity.LOW,
        unit,
        f"short effective memory: each of its calls takes in {unit.sequence_length:,} steps, and the loss depends on "
        f"inputs {limits.lag:g} steps back",
        "the state is reset in every part of a sequence",
        [
            f"Pass the state that `{unit.module}` returns to its next call.",
            "Or call it once, on the whole sequence.",
        ],
        steps_per_call=unit.sequence_length,
        required_lag=limits.lag,
    )


def _is_short(unit: ModuleDynamics, limits: Limits) -> bool:
    """Whether the memory is short for the lag, and surely falling; without a lag, under ten steps or the sequence."""
    rate, error, memory = unit.temporal_decay_rate, unit.decay_error, unit.effective_memory_length
    if rate is None or memory is None:
        return False
    if limits.lag is None:
        least = min(SHORT_MEMORY, unit.sequence_length)
        if unit.spectral_radius is not None and limits.low <= unit.spectral_radius <= limits.high:
            # The documented optimal radius of 0.9 means 9.5 steps: what the band allows is not called short.
            least = min(least, memory_length(limits.low))
        return memory < least
    falls = rate == 0 or (error is not None and math.log(rate) + 2 * error < 0)
    return memory < SHARE_OF_LAG * limits.lag and falls


def _growth_per_step(unit: ModuleDynamics) -> float:
    """The Lyapunov exponent, or what the norm of the longest product says for certain, whichever is larger."""
    longest = max(unit.product_norms, default=0)
    by_product = math.log(max(unit.product_norms[longest], 1e-300)) / longest if longest >= 4 else -math.inf
    # A norm holds the growth of the first few steps too, so it is taken for a little less.
    return max(-math.inf if unit.lyapunov_exponent is None else unit.lyapunov_exponent, by_product - CHAOTIC)


def _memory_words(unit: ModuleDynamics, lag: float | None) -> str:
    memory = unit.effective_memory_length
    if memory is None:
        return ""
    return f", effective memory {plain(memory)} timesteps" + ("" if lag is None else f" of the {lag:g} required")


def _issue(
    issue_type: IssueType,
    severity: IssueSeverity,
    unit: ModuleDynamics,
    message: str,
    cause: str,
    advice: list[str],
    **evidence: Any,
) -> Issue:
    numbers = {"spectral_radius": unit.spectral_radius, "sequence_length": unit.sequence_length, **evidence}
    return Issue(
        issue_type=issue_type,
        severity=severity,
        layer=unit.name,
        message=f"{message}.",
        evidence={name: value for name, value in numbers.items() if value is not None},
        cause=f"{cause}.",
        advice=advice,
    )
