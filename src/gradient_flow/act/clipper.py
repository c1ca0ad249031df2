"""`GradientClipper`: decides from the norms of a step what has to be scaled or cut, then does it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradient_flow.act.clip_factors import clip_factor_by_norm
from gradient_flow.act.in_place import clamp_gradients_, scale_gradients_
from gradient_flow.act.limits import PercentileLimit, SpikeLimit
from gradient_flow.act.unitwise import clip_by_unit_
from gradient_flow.capture.arrivals import Copy
from gradient_flow.capture.parameters import held_parameters
from gradient_flow.capture.sharding import is_sharded
from gradient_flow.config import GradientConfig, check_clip_limit
from gradient_flow.table import GradientStats, GradientTable
from gradient_flow.table.columns import INDEX, Rows, merge_rows, norm, scale_rows
from gradient_flow.table.row_parameters import Parameters, SharedParameters, measure_parameters, rows_now


@dataclass(frozen=True)
class ClipDecision:
    """What is to be done to the gradients of a step: a factor for each of them, or a cut for all."""

    total_norm: float
    """Of all gradients, before anything is done."""
    factors: NDArray[np.float64]
    threshold: float
    """The limit in force; infinite where there is none. Of several groups, the smallest."""
    cut_at: float | None = None
    """Clip by value."""
    by_unit: bool = False
    kind: str | None = None
    """The strategy that decided; None where clipping is off or the norm is not finite."""

    @property
    def uniform_factor(self) -> float | None:
        """The one factor for all gradients, where there is one."""
        if self.cut_at is not None or self.by_unit or not len(self.factors):
            return None
        first = float(self.factors[0])
        return first if (self.factors == first).all() else None


class GradientClipper:
    """Clips the gradients of a model in place, by the strategy that the configuration names.

    A non-finite norm is never clipped and never remembered. A gradient is only written if it has to change.

    >>> import torch
    >>> layer = torch.nn.Linear(1, 1, bias=False)
    >>> layer.weight.grad = torch.tensor([[4.0]])
    >>> GradientClipper(GradientConfig(max_grad_norm=1.0)).clip_gradients(layer)["clip_ratio"], layer.weight.grad.item()
    (0.25, 1.0)
    """

    def __init__(self, config: GradientConfig | None = None) -> None:
        self.config = config if config is not None else GradientConfig()
        self._percentile = PercentileLimit()
        self._spike = SpikeLimit()

    def clip_gradients(self, model: Any) -> dict[str, Any]:
        """Clip the gradients of a module, an optimizer or parameters, and tell what was done."""
        optimizer = model if isinstance(model, torch.optim.Optimizer) else None
        table, parameters = measure_parameters(held_parameters(model))
        return self.clip_measured(parameters, table, optimizer)

    def clip_measured(
        self, parameters: Parameters, table: GradientTable, optimizer: torch.optim.Optimizer | None = None
    ) -> dict[str, Any]:
        """The same for gradients that were measured already: one row of the table for each parameter."""
        decision = self.decide(parameters, table, optimizer)
        return self.apply(decision, parameters, table)

    def decide(
        self,
        parameters: Parameters,
        table: GradientTable,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        remember: bool = True,
    ) -> ClipDecision:
        """What to do, from the table; the norm is remembered for the steps to come."""
        config = self.config
        total = _norm_of(parameters, table)
        untouched = np.ones(len(parameters))
        if not config.enable_gradient_clipping or not math.isfinite(total):
            return ClipDecision(total, untouched, math.inf)
        kind = config.active_clip_type
        if kind == "value":
            decision = ClipDecision(total, untouched, config.max_grad_norm, cut_at=config.max_grad_norm, kind=kind)
        elif kind == "agc":
            decision = ClipDecision(total, untouched, math.inf, by_unit=True, kind=kind)
        elif kind == "per_group":
            decision = self._decide_by_group(total, parameters, table, optimizer)
        else:
            limit = self.limit(total)
            decision = ClipDecision(total, untouched * clip_factor_by_norm(total, limit), limit, kind=kind)
        if remember:
            self.remember(decision)
        return decision

    def remember(self, decision: ClipDecision) -> None:
        """Let the norm of a step count for the limits of later ones."""
        config, total = self.config, decision.total_norm
        if decision.kind is None or not len(decision.factors):
            return
        if decision.kind == "zclip":
            self._spike.observe(total, min(total, decision.threshold), config.zclip_alpha, config.zclip_warmup)
        self._percentile.observe(total, config.adaptive_window_size)

    def untouched(self, total_norm: float) -> dict[str, Any]:
        """What a step reports whose gradients are left alone."""
        return self.describe(ClipDecision(total_norm, np.ones(0), math.inf), [], total_norm)

    def apply(
        self, decision: ClipDecision, parameters: Parameters, table: GradientTable, *, scale: float = 1.0
    ) -> dict[str, Any]:
        """Change the gradients as decided. `scale` is a loss scale still in them that the table is free of."""
        changed: list[int] = []
        if decision.cut_at is not None:
            changed = np.flatnonzero(largest_parts(table) > decision.cut_at).tolist()
            clamp_gradients_([parameters[i][1] for i in changed], decision.cut_at * scale)
        elif decision.by_unit:
            changed = self._clip_by_unit(parameters, table, scale)
        else:
            for factor in set(decision.factors.tolist()):
                if factor != 1.0:
                    chosen = np.flatnonzero(decision.factors == factor).tolist()
                    scale_gradients_([parameters[i][1] for i in chosen], float(factor))
                    changed += chosen
        after = _norm_after(decision, changed, parameters, table, scale)
        return self.describe(decision, [parameters[i][0] for i in sorted(changed)], after)

    def _clip_by_unit(self, parameters: Parameters, table: GradientTable, scale: float) -> list[int]:
        """Which gradients were changed; the same answer on every rank."""
        config, excluded = self.config, self.config.agc_exclude
        chosen = [
            position
            for position, (name, _) in enumerate(parameters)
            if not any(fnmatchcase(name, pattern) for pattern in excluded)
        ]
        factor, eps = config.agc_clip_factor * scale, config.agc_eps
        sharded = [position for position in chosen if is_sharded(parameters[position][1])]
        if sharded:
            from gradient_flow.act.unitwise import clip_shards_by_unit_

            clip_shards_by_unit_([parameters[position][1] for position in sharded], factor, eps)
        plain = [i for i in chosen if parameters[i][1].grad is not None and not is_sharded(parameters[i][1])]
        above = [clip_by_unit_(parameters[position][1], factor, eps) for position in plain]
        changed = [position for position, was in zip(plain, _known(above), strict=True) if was]
        if not isinstance(parameters, SharedParameters):
            return changed
        # This rank may have seen only units that stayed as they were.
        squares = parameters.measure_again()[:, INDEX["sum_sq"]] / scale**2
        return [int(i) for i in np.flatnonzero(squares < table.column("sum_sq") * (1 - 1e-12))]

    def describe(self, decision: ClipDecision, changed: list[str], clipped_norm: float) -> dict[str, Any]:
        """What a step reports about clipping."""
        total_norm = decision.total_norm
        ratio = clipped_norm / total_norm if changed and total_norm > 0 else 1.0
        return {
            "clipped": bool(changed),
            "clip_type": decision.kind or self.config.active_clip_type,
            "total_norm": total_norm,
            "clipped_norm": clipped_norm,
            "clip_ratio": ratio,
            "threshold": decision.threshold if math.isfinite(decision.threshold) else None,
            "clipped_parameters": changed,
        }

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to clip like the uninterrupted one."""
        return {"percentile": self._percentile.state_dict(), "spike": self._spike.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._percentile.load_state_dict(state["percentile"])
        self._spike.load_state_dict(state["spike"])

    def limit(self, total: Any) -> Any:
        """The limit on the total norm: the one setting, or what past norms say. Tensors in, tensors out."""
        config, kind = self.config, self.config.active_clip_type
        if kind == "adaptive":
            return self._percentile.limit(
                config.adaptive_percentile, config.adaptive_window_size, config.adaptive_min_history
            )
        cap = config.max_grad_norm
        if kind != "zclip":
            return cap
        spike = self._spike.limit(total, config.zclip_threshold)
        return min(cap, spike) if isinstance(spike, float) else spike.clamp(max=cap)

    def _decide_by_group(
        self,
        total: float,
        parameters: Parameters,
        table: GradientTable,
        optimizer: torch.optim.Optimizer | None,
    ) -> ClipDecision:
        members = self.groups(parameters, optimizer)
        factors = np.ones(len(parameters))
        for limit, positions in members:
            factors[positions] = clip_factor_by_norm(_norm_of(parameters, table, positions), limit)
        smallest = min((limit for limit, _ in members), default=math.inf)
        return ClipDecision(total, factors, smallest, kind="per_group")

    def groups(self, parameters: Parameters, optimizer: torch.optim.Optimizer | None) -> list[tuple[float, list[int]]]:
        """For `per_group`: the limit of each group, and which of the parameters belong to it."""
        own = {id(p): group for group in (optimizer.param_groups if optimizer else ()) for p in group["params"]}
        members: dict[tuple[str, float], list[int]] = {}
        for position, (name, parameter) in enumerate(parameters):
            members.setdefault(self._group_of(name, own.get(id(parameter))), []).append(position)
        return [(limit, positions) for (_, limit), positions in members.items()]

    def _group_of(self, name: str, group: Mapping[str, Any] | None) -> tuple[str, float]:
        """Key and limit: by the first pattern that matches, else by the optimizer's group, else with the rest."""
        for pattern, limit in self.config.group_max_norms.items():
            if fnmatchcase(name, pattern):
                check_clip_limit(f"group_max_norms[{pattern!r}]", limit)
                return pattern, float(limit)
        if group is not None and group.get("max_grad_norm") is not None:
            check_clip_limit("max_grad_norm of an optimizer group", group["max_grad_norm"])
            return f"optimizer group {id(group)}", float(group["max_grad_norm"])
        return "", self.config.max_grad_norm


def _known(flags: list[bool | torch.Tensor]) -> list[bool]:
    """The flags, with one wait for all that a device has."""
    late = {at: flag for at, flag in enumerate(flags) if isinstance(flag, torch.Tensor)}
    if late:
        device = next(iter(late.values())).device
        come = Copy(torch.stack([flag.to(device) for flag in late.values()])).values() > 0
        known = dict(zip(late, come, strict=True))
        flags = [known.get(at, flag) for at, flag in enumerate(flags)]
    return [bool(flag) for flag in flags]


def largest_parts(table: GradientTable) -> NDArray[np.float64]:
    """Largest magnitude of a real or imaginary part in each gradient; 0 where there is no element."""
    return np.maximum(np.maximum(-table.column("min"), table.column("max")), 0.0)


def _norm_of(parameters: Parameters, table: GradientTable, positions: list[int] | None = None) -> float:
    """The norm of all gradients, or of some."""
    stats = table.total if positions is None else GradientStats("group", merge_rows(table.rows[positions]))
    value = stats.norm
    if 0 < value < math.inf or not stats.finite or stats.linf == 0:
        return value
    largest = stats.linf
    # Finite, and yet their squares are beyond what a double can hold: once more, relative to the largest.
    chosen = range(len(parameters)) if positions is None else positions
    return largest * float(norm(merge_rows(rows_now(parameters, chosen, divided_by=largest))))


def norm_after_factors(decision: ClipDecision, rows: Rows) -> float:
    """The norm of all gradients once each was multiplied by its factor; `rows` are those before."""
    if decision.uniform_factor is not None:
        return decision.total_norm * decision.uniform_factor
    return math.sqrt(float((rows[:, INDEX["sum_sq"]] * decision.factors**2).sum()))


def _norm_after(
    decision: ClipDecision, changed: list[int], parameters: Parameters, table: GradientTable, scale: float
) -> float:
    if not changed:
        return decision.total_norm
    if decision.cut_at is None and not decision.by_unit:
        after = norm_after_factors(decision, table.rows)
        if math.isfinite(after):
            return after
    rows: Rows = table.rows.copy()
    # Cut element by element or unit by unit: only a second look tells, and only at what was changed.
    rows[changed] = scale_rows(rows_now(parameters, changed), 1.0 / scale)
    return float(norm(merge_rows(rows)))
