"""`GradientConfig`: the settings of gradient management. They may change during a run; each change is checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, Final

from gradient_flow.errors import ConfigError

CLIP_TYPES: Final = ("norm", "value", "adaptive", "agc", "zclip", "per_group")
NONFINITE_POLICIES: Final = ("replace", "raise", "skip", "zero", "observe", "rollback")


@dataclass
class GradientConfig:
    """How gradients are clipped, guarded and watched. A manager follows every change at its next step.

    >>> config = GradientConfig(max_grad_norm=1.0)
    >>> config.max_grad_norm *= 0.5
    >>> config.clip_type = "percentile"
    Traceback (most recent call last):
    gradient_flow.errors.ConfigError: `clip_type` must be one of norm, value, adaptive, agc, zclip, per_group; got \
'percentile'.
    """

    enable_gradient_clipping: bool = True
    max_grad_norm: float = 1.0
    """Largest total L2 norm let through (`norm`), largest magnitude of an element (`value`), cap on the limit found by
    `zclip`, limit of the parameters that match no pattern (`per_group`). `adaptive` and `agc` do not use it."""
    clip_type: str = "norm"
    """`norm`, `value`, `adaptive`, `agc`, `zclip` or `per_group`."""

    enable_nan_inf_check: bool = True
    nan_inf_threshold: float = 1e-6
    """Share of non-finite elements above which a report calls them widespread instead of isolated."""
    replace_nan_with: float = 0.0
    replace_inf_with: float = 1e6
    """-Inf becomes the negative of it. Never more than the dtype can hold."""

    enable_gradient_monitoring: bool = True
    log_gradient_stats: bool = True
    """Send the statistics of each step to the `gradient_flow` logger: level INFO if verbose, else DEBUG."""
    save_gradient_plots: bool = True
    """Write the files that `plot_…(save_path=…)` names; if not, figures are only returned."""

    adaptive_clipping: bool = False
    """The same as `clip_type="adaptive"`."""
    adaptive_window_size: int = 100
    """How many past norms, before clipping, the percentile is taken of."""
    adaptive_percentile: float = 95.0

    debug_mode: bool = False
    """Add the statistics of every layer to what a step returns."""
    verbose_logging: bool = False

    max_gradient_history: int = 1000
    """Steps that are remembered."""
    check_frequency: int = 1
    """Health and statistics are taken every so many steps. Guard and clipping act on every step."""
    nonfinite: str = "replace"
    """What happens to a step with NaN or Inf: `replace` its elements, `zero` them, `skip` the step, `raise`, `observe`
    (do nothing), or `rollback` (skip, and restore the last good state after `rollback_after` bad steps in a row)."""
    max_consecutive_skips: int = 10
    """So many steps in a row may be skipped; the next bad one raises."""
    max_total_skips: int | None = 1000
    """So many steps of a run may be skipped; `None` for no limit."""
    rollback_after: int = 3
    snapshot_every: int = 100
    """Steps between copies of weights and optimizer state, kept for `rollback` only."""
    adaptive_min_history: int = 10
    """With fewer norms remembered (or than the window holds) adaptive clipping waits."""
    agc_clip_factor: float = 0.01
    """Largest norm of a unit's gradient as a share of the norm of its weights (NFNets, arXiv 2102.06171)."""
    agc_eps: float = 1e-3
    """Weights count as at least this large, so that a unit initialised with zeros can leave zero."""
    agc_exclude: Sequence[str] = ()
    """Patterns (`"head.*"`) of parameters that `agc` leaves alone; the paper excludes the last linear layer."""
    zclip_alpha: float = 0.97
    """Smoothing of mean and variance of the norm (ZClip, arXiv 2504.02507)."""
    zclip_threshold: float = 2.5
    """Standard deviations above the mean from which a norm is a spike."""
    zclip_warmup: int = 25
    """Norms that are collected before spikes are looked for."""
    group_max_norms: Mapping[str, float] = field(default_factory=dict)
    """For `per_group`: pattern of parameter names → own limit. The optimizer's groups may carry `max_grad_norm` too."""

    def __setattr__(self, name: str, value: Any) -> None:
        rule = _RULES.get(name)
        if rule is None:
            near = get_close_matches(name, _RULES, n=1)
            hint = f" Did you mean `{near[0]}`?" if near else ""
            raise ConfigError(f"GradientConfig has no setting `{name}`.{hint}")
        rule(name, value)
        object.__setattr__(self, name, value)

    @property
    def active_clip_type(self) -> str:
        """The strategy in force."""
        return "adaptive" if self.adaptive_clipping else self.clip_type

    def check(self) -> None:
        """Raise if any setting is out of its range."""
        for setting in fields(self):
            _RULES[setting.name](setting.name, getattr(self, setting.name))


Rule = Callable[[str, Any], None]


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and not math.isnan(value)


def _require(holds: Callable[[Any], bool], rule: str) -> Rule:
    def check(name: str, value: Any) -> None:
        if not holds(value):
            raise ConfigError(f"`{name}` must be {rule}; got {value!r}.")

    return check


def _switch(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"`{name}` must be True or False; got {value!r}.")


def _choice(*choices: str) -> Rule:
    return _require(lambda value: isinstance(value, str) and value in choices, f"one of {', '.join(choices)}")


def _is_count(value: Any, least: int) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least


def _patterns(name: str, value: Any) -> None:
    if isinstance(value, str) or not all(isinstance(pattern, str) for pattern in value):
        raise ConfigError(f"`{name}` must be a list of patterns such as ['head.*']; got {value!r}.")


def _group_limits(name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise ConfigError(f"`{name}` must map patterns of parameter names to limits; got {value!r}.")
    for pattern, limit in value.items():
        _limit(f"{name}[{pattern!r}]", limit)


_limit = _require(
    lambda value: _is_number(value) and value > 0,
    "a number above 0 (float('inf') for no limit; `enable_gradient_clipping=False` switches clipping off)",
)
_positive = _require(lambda value: _is_number(value) and 0 < value < math.inf, "a finite number above 0")
_finite = _require(lambda value: _is_number(value) and math.isfinite(value), "a finite number")
_share = _require(lambda value: _is_number(value) and 0 <= value <= 1, "a number from 0 to 1")
_below_one = _require(lambda value: _is_number(value) and 0 <= value < 1, "a number from 0 to below 1")
_percentage = _require(lambda value: _is_number(value) and 0 <= value <= 100, "a number from 0 to 100")
_count = _require(lambda value: _is_count(value, 1), "a whole number of at least 1")
_budget = _require(lambda value: value is None or _is_count(value, 0), "a whole number of at least 0, or None")

_RULES: Final[dict[str, Rule]] = {
    "enable_gradient_clipping": _switch,
    "max_grad_norm": _limit,
    "clip_type": _choice(*CLIP_TYPES),
    "enable_nan_inf_check": _switch,
    "nan_inf_threshold": _share,
    "replace_nan_with": _finite,
    "replace_inf_with": _finite,
    "enable_gradient_monitoring": _switch,
    "log_gradient_stats": _switch,
    "save_gradient_plots": _switch,
    "adaptive_clipping": _switch,
    "adaptive_window_size": _count,
    "adaptive_percentile": _percentage,
    "debug_mode": _switch,
    "verbose_logging": _switch,
    "max_gradient_history": _count,
    "check_frequency": _count,
    "nonfinite": _choice(*NONFINITE_POLICIES),
    "max_consecutive_skips": _require(lambda value: _is_count(value, 0), "a whole number of at least 0"),
    "max_total_skips": _budget,
    "rollback_after": _count,
    "snapshot_every": _count,
    "adaptive_min_history": _count,
    "agc_clip_factor": _positive,
    "agc_eps": _positive,
    "agc_exclude": _patterns,
    "zclip_alpha": _below_one,
    "zclip_threshold": _positive,
    "zclip_warmup": _require(lambda value: _is_count(value, 2), "a whole number of at least 2"),
    "group_max_norms": _group_limits,
}
