"""`PolicyProbe`: the action distribution of a policy, watched step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final

import torch
from torch import Tensor, nn

from gradient_flow.capture.random_state import kept_random_state
from gradient_flow.errors import InputError
from gradient_flow.probes.policy.distributions import distributions_in
from gradient_flow.probes.policy.extraction import ALSO, NAMES, checked_action_range
from gradient_flow.probes.policy.measure_step import policy_step
from gradient_flow.probes.policy.stats import PolicyStats, summarize_policy
from gradient_flow.probes.policy.step import PolicyStep

__all__ = ["PolicyProbe"]

MEMORY: Final = 4096
"""Latest steps kept; statistics and trends cover these."""


class PolicyProbe:
    """Measures the action distribution once per step; reads the model's output and changes nothing.

    Without an `action_extractor` an output is understood if it is a `torch.distributions` object, holds some (a tuple,
    list or mapping, or `.distribution` as in Stable-Baselines3), or is a mapping with `logits`, `std` or `log_std`. A
    bare tensor is not: it may be logits, Q-values or mean actions. Then `result()` is `None` and `reason` says why.

    Args:
        model: the policy; named in messages.
        action_extractor: takes the model's output and returns `(logits, std, mean, value)`, any of which may be `None`;
            a mapping with these names (and `log_std`, `mask`); or a distribution.
        track_distributions: `False` measures nothing.
        action_range: `(low, high)` of continuous actions, or a Gymnasium `Box`: their scale.

    >>> import torch
    >>> policy = torch.nn.Linear(3, 4)
    >>> with PolicyProbe(policy, action_extractor=lambda output: (output, None, None, None)) as probe:
    ...     observation = torch.zeros(2, 3)
    ...     probe.after_step(observation, policy(observation) * 0)
    >>> probe.result().discrete_entropy_normalized
    1.0
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        action_extractor: Callable[[Any], Any] | None = None,
        track_distributions: bool = True,
        action_range: Any = None,
    ) -> None:
        if action_extractor is not None and not callable(action_extractor):
            raise InputError(f"`action_extractor` must be a function, got {type(action_extractor).__name__}.")
        if not isinstance(model, nn.Module):
            raise InputError(f"`model` must be a module, got {type(model).__name__}.")
        self.bind(model)
        self.action_extractor = action_extractor
        self.track_distributions = track_distributions
        self.action_range = checked_action_range(action_range)
        self.reason = "No step was watched yet." if track_distributions else "`track_distributions` is False."
        """Why there is no result, or what of the policy could not be read."""
        self._steps: deque[PolicyStep] = deque(maxlen=MEMORY)
        self._seen = 0

    def bind(self, model: nn.Module) -> None:
        """Take up the model, until `release`."""
        self._of = type(model).__name__
        parameter = next(model.parameters(), None)
        self._device = None if parameter is None else parameter.device

    def release(self) -> None:
        """Nothing of the model is held."""

    def __enter__(self) -> PolicyProbe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to undo: the probe hooks nothing."""

    def listen(self, listening: bool) -> None:
        """Nothing to stop: it reads what it is given."""

    def after_step(self, inputs: Any, output: Any) -> None:
        """Measure the policy's `output` for a batch of states; `inputs` are what it was given."""
        if not self.track_distributions:
            return
        # The extractor is the user's code and may sample: neither that nor our own work moves the random state.
        with torch.no_grad(), kept_random_state(self._device):
            extracted = _understood(output) if self.action_extractor is None else self.action_extractor(output)
            if extracted is None and self.action_extractor is None:
                self.reason = _not_understood(self._of, output)
                return
            step, self.reason = policy_step(extracted, self.action_range)
        self._seen += 1
        if step is not None:
            self._steps.append(step)

    def result(
        self,
        *,
        min_entropy_threshold: float = 0.5,
        min_std_threshold: float = 0.1,
        max_std_threshold: float = 2.0,
    ) -> PolicyStats | None:
        """The statistics of the steps so far, with levels by these thresholds; `None` (see `reason`) without any."""
        if not self._steps:
            return None
        return summarize_policy(
            list(self._steps),
            min_entropy_threshold=min_entropy_threshold,
            min_std_threshold=min_std_threshold,
            max_std_threshold=max_std_threshold,
            first_step=self._seen - len(self._steps) + 1,
            reason=self.reason,
        )


def _understood(output: Any) -> Any:
    """What says by itself that it is an action distribution, or `None`."""
    distributions = list(distributions_in(output))
    if distributions:
        return distributions
    if isinstance(output, Mapping) and any(output.get(name) is not None for name in ("logits", "std", "log_std")):
        return {name: output[name] for name in (*NAMES, *ALSO) if name in output}
    return None


def _not_understood(model: str, output: Any) -> str:
    what = f"a tensor of shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
    return (
        f"The output of {model} is {what}, which does not say what its actions are. Pass "
        "`action_extractor`, such as `lambda output: (output, None, None, None)` for logits."
    )
