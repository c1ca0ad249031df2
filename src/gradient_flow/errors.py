"""Every exception of the package: one tree, each message with the argument, the rule, what came and what to do."""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "GradientFlowError",
    "GradientFlowWarning",
    "InputError",
    "KernelError",
    "MissingExtraError",
    "MonitorStateError",
    "NonFiniteGradientError",
    "RunFileError",
]


class GradientFlowError(Exception):
    """Base of everything this package raises on purpose."""


class InputError(GradientFlowError, ValueError, TypeError):
    """An argument has a type, shape or value that cannot be worked with."""


class ConfigError(GradientFlowError, ValueError):
    """A setting is out of its range."""


class NonFiniteGradientError(GradientFlowError, ArithmeticError):
    """A gradient holds NaN or Inf where a finite one is needed."""


class MonitorStateError(GradientFlowError, RuntimeError):
    """A monitor was used in a state that does not allow it: closed, without records, or a second backward."""


class RunFileError(GradientFlowError, ValueError):
    """A run folder cannot be read."""


class KernelError(GradientFlowError, RuntimeError):
    """A measuring kernel was asked for that this installation does not have."""


class MissingExtraError(GradientFlowError, ImportError):
    """An optional package is needed and not installed."""

    def __init__(self, extra: str) -> None:
        super().__init__(f"This needs the `{extra}` extra. Install it with: pip install 'gradient-flow[{extra}]'")


class GradientFlowWarning(UserWarning):
    """Something was noticed that does not stop the work."""
