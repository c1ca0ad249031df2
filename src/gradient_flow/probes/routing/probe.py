"""`RoutingProbe`: where the routers of a mixture of experts send tokens, watched step by step."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from gradient_flow.capture.module_stack import ModuleHook
from gradient_flow.probes.routing.stats import Router, RoutingStats

MEMORY: Final = 64
"""Latest looks kept."""
_EXPERTS: Final = re.compile(r"expert", re.IGNORECASE)
_SCORES: Final = re.compile(r"rout|gat(e|ing)|switch|wg$|scorer", re.IGNORECASE)
_TOP: Final = (
    "top_k",
    "topk",
    "k",
    "top",
    "num_experts_per_tok",
    "num_selected_experts",
    "n_activated_experts",
    "moe_top_k",
)


class _Found(NamedTuple):
    """A router of the model."""

    name: str
    module: nn.Module
    experts: int
    top: int


class _Seen(NamedTuple):
    """One look at one router."""

    load: list[float]
    entropy: float
    tokens: int
    top: int


class RoutingProbe:
    """Reads what routers score in each forward, and changes nothing.

    A router is a linear layer with as many outputs as its block has experts: modules in a list, or one module whose
    weights have them as their first axis. One of the two has to be called so (`experts`, `router`, `gate`). Others are
    named by their paths in `routers`; what such a module returns has a score per expert in its last axis.
    """

    def __init__(self, routers: Sequence[str] = ()) -> None:
        self._named = tuple(routers)
        self._seen: dict[str, deque[_Seen]] = {}
        self._now: dict[str, list[tuple[torch.Tensor, torch.Tensor, int]]] = {}
        self._handles: list[Any] = []
        self._found: list[_Found] = []
        self._listening = False
        self._steps = 0

    def bind(self, model: nn.Module) -> None:
        """Take up the model, until `release`."""
        self._found = list(find_routers(model, self._named))

    def release(self) -> None:
        """Hold on to nothing of it."""
        self._found = []

    def __enter__(self) -> RoutingProbe:
        self._now, self._listening = {}, True
        for router in self._found:
            hook = ModuleHook(router.module, self._hook(router))
            self._handles.append(router.module.register_forward_hook(hook))
        return self

    def __exit__(self, *_: object) -> None:
        """Without hooks again."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def listen(self, listening: bool) -> None:
        """Whether the forwards that come are of interest."""
        self._listening = listening

    def _hook(self, router: _Found) -> Any:
        def note(_module: nn.Module, _inputs: Any, output: Any) -> None:
            scores = _scores(output)
            if self._listening and scores is not None and scores.shape[-1] > 1 and scores.numel():
                with suppress(RuntimeError):  # the user's forward goes on whatever happens here
                    self._now.setdefault(router.name, []).append(_routed(scores, router.top))

        return note

    def after_step(self, inputs: Any, output: Any) -> None:
        """Once per step, after backward."""
        self._steps += 1
        top = {router.name: router.top for router in self._found}
        for name, calls in self._now.items():
            tokens = sum(count for _, _, count in calls)
            load = torch.stack([each for each, _, _ in calls]).sum(0)
            entropy = sum(float(each) * count for _, each, count in calls) / tokens
            total = float(load.sum())
            if math.isfinite(entropy) and total > 0:
                shares = (load / total).tolist()
                seen = _Seen(shares, entropy / math.log(len(shares)), tokens, top.get(name, 1))
                self._seen.setdefault(name, deque(maxlen=MEMORY)).append(seen)
        self._now = {}

    def result(self) -> RoutingStats | None:
        """What was found so far; None without a router."""
        if not self._seen:
            return None
        return RoutingStats(
            routers=[_summary(name, list(looks)) for name, looks in self._seen.items()], steps=self._steps
        )


def _routed(scores: torch.Tensor, top: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Tokens by expert, the mean entropy of a token in nats, and how many tokens there are; on the device."""
    with torch.no_grad():
        flat = scores.detach().flatten(0, -2).float()  # (tokens, experts)
        experts = flat.shape[-1]
        chosen = flat.topk(min(top, experts), dim=-1).indices.flatten()
        # Not `bincount`: it fails where deterministic algorithms are asked for.
        load = (chosen[:, None] == torch.arange(experts, device=flat.device)).sum(0).float()
        logs = torch.log_softmax(flat, dim=-1)
        return load, -(logs.exp() * logs).sum(-1).mean(), len(flat)


def _summary(name: str, looks: Sequence[_Seen]) -> Router:
    later = [look for look in looks[len(looks) // 2 :] if len(look.load) == len(looks[-1].load)]
    load = [math.fsum(look.load[at] for look in later) / len(later) for at in range(len(later[-1].load))]
    return Router(
        name=name,
        experts=len(load),
        top=later[-1].top,
        load=load,
        entropy=math.fsum(look.entropy for look in later) / len(later),
        busiest_by_look=[max(look.load) for look in looks],
        tokens=sum(look.tokens for look in later),
    )


def _scores(output: Any) -> torch.Tensor | None:
    leaves = (leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor))
    return next((leaf for leaf in leaves if leaf.is_floating_point() and leaf.dim() > 1), None)


def find_routers(model: nn.Module, named: Sequence[str] = ()) -> Iterator[_Found]:
    """The routers of a model, by structure and by name.

    >>> block = nn.ModuleDict({"gate": nn.Linear(8, 4), "experts": nn.ModuleList(nn.Linear(8, 8) for _ in range(4))})
    >>> [(router.name, router.experts) for router in find_routers(block)]
    [('gate', 4)]
    """
    modules = dict(model.named_modules())
    for path in named:
        if path in modules:  # else it is of another model
            around = modules.get(path.rpartition(".")[0], model)
            yield _Found(path, modules[path], int(getattr(modules[path], "out_features", 0)), _top_of(around))
    taken = set(named)
    for path, block in modules.items():
        for name, child in block.named_children():
            count = _experts_in(child)
            for other, layer in block.named_modules() if count else ():
                inside = f"{other}.".startswith(f"{name}.")
                fits = isinstance(layer, nn.Linear) and layer.out_features == count and not inside
                full = f"{path}.{other}" if path else other
                if fits and (_EXPERTS.search(name) or _SCORES.search(other)) and full not in taken:
                    taken.add(full)
                    yield _Found(full, layer, count, _top_of(block))
                    break


def _experts_in(module: nn.Module) -> int:
    """How many experts there may be in it: equal modules in a list, or weights with one more axis."""
    if isinstance(module, nn.ModuleList):
        kinds = {(type(each), sum(p.numel() for p in each.parameters())) for each in module}
        return len(module) if len(module) > 1 and len(kinds) == 1 and next(iter(kinds))[1] else 0
    counts = {len(tensor) for tensor in module.parameters(recurse=False) if tensor.dim() == 3}
    return counts.pop() if len(counts) == 1 else 0


def _top_of(block: nn.Module) -> int:
    found = (getattr(block, name, None) for name in _TOP)
    return next((each for each in found if type(each) is int and each > 0), 1)
