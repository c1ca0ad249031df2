"""What may be set: `GradientConfig` for the management of gradients, and the switch that turns all watching off."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Final

from gradient_flow.errors import ConfigError, GradientFlowError, check_choice, check_flag, check_number, check_whole

DISABLE: Final = "GRADIENT_FLOW_DISABLE"
"""Set to 1 in the environment, nothing is watched: no hook, no file, no logger."""
CLIP_TYPES: Final = ("norm", "value", "adaptive", "agc", "zclip", "per_group")
NONFINITE_POLICIES: Final = ("replace", "raise", "skip", "zero", "observe", "rollback")


class Default(float):
    """The documented default of a setting: a number like any other, but not one that a user passes.

    As the default of a parameter it shows in the signature, and tells an argument that was left out from one of the
    same value that was passed.

    >>> Default(0.5) == 0.5, Default(0.5)
    (True, 0.5)
    """

    __slots__ = ()


def passed(**settings: float) -> tuple[str, ...]:
    """Names of the settings that were passed, also those that equal their default.

    >>> passed(low=Default(0.5), high=0.5)
    ('high',)
    """
    return tuple(name for name, value in settings.items() if not isinstance(value, Default))


def disabled() -> bool:
    """Whether the environment switches all watching off. What a user asked to act on gradients still acts."""
    return os.environ.get(DISABLE, "") not in ("", "0")


@dataclass
class GradientConfig:
    """How gradients are clipped, guarded and watched. A manager follows every change at its next step.

    >>> config = GradientConfig(max_grad_norm=1.0)
    >>> config.max_grad_norm *= 0.5
    >>> config.clip_type = "percentile"
    Traceback (most recent call last):
    gradient_flow.errors.ConfigError: `clip_type` must be one of 'norm', 'value', 'adaptive', 'agc', 'zclip', \
'per_group'; got 'percentile'.
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
    """Health and statistics are taken every Nth step. Guard and clipping act on every step."""
    nonfinite: str = "replace"
    """What happens to a step with NaN or Inf: `replace` its elements, `zero` them, `skip` the step, `raise`, `observe`
    (do nothing), or `rollback` (skip, and restore the last good state after `rollback_after` bad steps in a row)."""
    max_consecutive_skips: int = 10
    """Most steps in a row that may be skipped; the next bad one raises."""
    max_total_skips: int | None = 1000
    """Most steps of a run that may be skipped; `None` for no limit."""
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
    buffer_limit_mib: float = 64.0
    """Most memory for copies of the model's buffers, kept for `skip` and `rollback` to undo what a bad step did to them
    (running statistics). Above it the largest are left out, with a warning."""

    def __setattr__(self, name: str, value: Any) -> None:
        check_names([name])
        _RULES[name](name, value)
        object.__setattr__(self, name, value)

    @property
    def active_clip_type(self) -> str:
        """The strategy in force."""
        return "adaptive" if self.adaptive_clipping else self.clip_type

    @property
    def undoes_buffers(self) -> bool:
        """Whether a bad step's changes to buffers are put back."""
        return self.enable_nan_inf_check and self.nonfinite in ("skip", "rollback")

    def check(self) -> None:
        """Raise if any setting is out of its range."""
        for setting in fields(self):
            _RULES[setting.name](setting.name, getattr(self, setting.name))


Rule = Callable[[str, Any], object]


def check_names(names: Iterable[str], error: type[GradientFlowError] = ConfigError) -> None:
    """Raise `error` unless these are settings of `GradientConfig`, and say which one may have been meant."""
    for name in names:
        if name not in _RULES:
            near = get_close_matches(name, _RULES, n=1, cutoff=0.5)
            hint = f" Did you mean `{near[0]}`?" if near else ""
            raise error(f"GradientConfig has no setting `{name}`.{hint}")


def _whole(at_least: int) -> Rule:
    return lambda name, value: check_whole(name, value, at_least)


def _number(rule: str, lower: float, upper: float = math.inf, open_ends: str = "") -> Rule:
    return lambda name, value: check_number(name, value, rule, lower, upper, open_ends=open_ends)


def _choice(*choices: str) -> Rule:
    return lambda name, value: check_choice(name, value, choices)


def check_clip_limit(name: str, value: Any) -> None:
    """Raise unless it is a limit to clip at."""
    if not (isinstance(value, float) and value == math.inf):
        rule = "a number above 0 (inf for no limit; `enable_gradient_clipping=False` switches clipping off)"
        check_number(name, value, rule, 0, open_ends="l")


def _budget(name: str, value: Any) -> None:
    if value is not None:
        check_whole(name, value, 0)


def _patterns(name: str, value: Any) -> None:
    if not isinstance(value, (list, tuple)) or not all(isinstance(pattern, str) for pattern in value):
        raise ConfigError(f"`{name}` must be a list of patterns such as ['head.*'], got {value!r}.")


def _group_limits(name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise ConfigError(f"`{name}` must map patterns of parameter names to limits, got {value!r}.")
    for pattern, limit in value.items():
        check_clip_limit(f"{name}[{pattern!r}]", limit)


_positive = _number("a finite number above 0", 0, open_ends="l")
_finite = _number("a finite number", -math.inf)
_count = _whole(1)

_RULES: Final[dict[str, Rule]] = {
    "enable_gradient_clipping": check_flag,
    "max_grad_norm": check_clip_limit,
    "clip_type": _choice(*CLIP_TYPES),
    "enable_nan_inf_check": check_flag,
    "nan_inf_threshold": _number("a number from 0 to 1", 0, 1),
    "replace_nan_with": _finite,
    "replace_inf_with": _finite,
    "enable_gradient_monitoring": check_flag,
    "log_gradient_stats": check_flag,
    "save_gradient_plots": check_flag,
    "adaptive_clipping": check_flag,
    "adaptive_window_size": _count,
    "adaptive_percentile": _number("a number from 0 to 100", 0, 100),
    "debug_mode": check_flag,
    "verbose_logging": check_flag,
    "max_gradient_history": _count,
    "check_frequency": _count,
    "nonfinite": _choice(*NONFINITE_POLICIES),
    "max_consecutive_skips": _whole(0),
    "max_total_skips": _budget,
    "rollback_after": _count,
    "snapshot_every": _count,
    "adaptive_min_history": _count,
    "agc_clip_factor": _positive,
    "agc_eps": _positive,
    "agc_exclude": _patterns,
    "zclip_alpha": _number("a number from 0 to below 1", 0, 1, open_ends="u"),
    "zclip_threshold": _positive,
    "zclip_warmup": _whole(2),
    "group_max_norms": _group_limits,
    "buffer_limit_mib": _number("a finite number of at least 0", 0),
}
