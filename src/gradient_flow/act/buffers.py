"""`BufferKeeper`: a model's buffers as they were after its last good step, to put back what a bad step did to them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gradient_flow.capture.model_state import same_bits
from gradient_flow.errors import warn
from gradient_flow.table import measure

LOOK_EVERY: Final = 100
"""Good steps between two looks at all buffers, also those that show no sign of a change."""


class BufferReport(NamedTuple):
    """What is wrong with the buffers at a step, and what was done about it."""

    bad: Mapping[str, int] = {}
    """Non-finite elements by buffer."""
    done: str = ""
    """`put back` or `left`, with the reason; empty where nothing was the matter."""

    @property
    def put_back(self) -> bool:
        """Whether they are again what they were after the last good step."""
        return self.done == "put back"


class BufferKeeper:
    """Copies of the buffers of a model, renewed after each good step. It keeps no model alive.

    Only buffers that changed are copied again. An object in the place of another and the version counter tell of most
    changes, but not of all: batch norm writes its running statistics, and `.data` anything, past the counter. So a
    buffer that is found changed though its counter stands still is copied each time from then on.
    """

    def __init__(self, model: nn.Module, limit_mib: float, *, trusted: bool = True) -> None:
        self._model = weakref.ref(model)
        self._limit = limit_mib * 2**20
        self._homes: list[_Home] = []
        self._rounds = 0
        self._looks = 0
        self._told = False
        self._suspects: frozenset[str] = frozenset()
        self._infinite: frozenset[str] = frozenset()
        if trusted:
            # Attention masks hold -Inf and observers start at Inf: non-finite values from before a step are intended.
            self._infinite = frozenset(infinite_buffers(model))

    @property
    def has_copies(self) -> bool:
        """Whether there is anything to go back to."""
        return self._rounds > 0

    @property
    def meant_infinite(self) -> frozenset[str]:
        """Buffers that held Inf when they were first seen."""
        return self._infinite

    def look(self, *, closely: bool = False) -> dict[str, int]:
        """The buffers that are not finite: among all if `closely` and once in a while, else in modules that changed."""
        return self.start_look(closely=closely).bad()

    def start_look(self, *, closely: bool = False) -> BufferLook:
        """The same, where a device may still have to tell."""
        model = self._model()
        closely = closely or self._looks % LOOK_EVERY == 0
        self._looks += 1
        if model is None:
            return BufferLook({}, (), lambda _: None)
        if closely:
            self._list_homes(model)
        # Every module is asked, so that each remembers what it has now.
        asked = [home for home in self._homes if home.has_moved() or closely or home.prefix in self._suspects]
        found = {home: {home.path(name): now for name, now in home.buffers() if now is not None} for home in asked}
        names = {home.prefix: frozenset(buffers) for home, buffers in found.items()}

        def suspect(bad: Mapping[str, int]) -> None:
            self._suspects = frozenset(prefix for prefix, own in names.items() if not own.isdisjoint(bad))

        among = {name: now for buffers in found.values() for name, now in buffers.items()}
        return BufferLook(among, self._infinite, suspect)

    def is_still(self) -> bool:
        """Whether nothing shows that a buffer changed since `refresh`: then a step can be skipped without undoing any.

        Counts as a round; once in a while all buffers are to be compared, and the answer is no.
        """
        if self._rounds < 2 or self._rounds % LOOK_EVERY < 2:
            model = self._model()
            return model is None or next(model.buffers(), None) is None
        still = not any(home.shows_change() for home in self._homes)
        self._rounds += still
        return still

    def refresh(self) -> dict[str, int]:
        """Renew the copies after a good step. Modules with a non-finite buffer are left out and reported."""
        with_all = self._rounds % LOOK_EVERY < 2  # the second time is the first with something to compare
        self._rounds += 1
        if with_all:
            self._find_homes()
        changed = [(home, *each) for home in self._homes for each in home.changed(self._rounds, with_all)]
        bad = _nonfinite({home.path(name): now for home, name, now in changed if now is not None}, self._infinite)
        if bad:
            spoilt = {id(home) for home, name, _ in changed if home.path(name) in bad}
            changed = [each for each in changed if id(each[0]) not in spoilt]
        _copy_all(changed, self._rounds)
        return bad

    def put_back(self, only: Collection[str] | None = None) -> None:
        """Undo what happened to the buffers since `refresh`; with `only`, to the modules of these buffers."""
        with torch.no_grad():
            for home in self._homes:
                if only is None or any(home.path(name) in only for name in home.kept):
                    home.put_back(self._rounds)

    def _find_homes(self) -> None:
        model = self._model()
        if model is not None:
            self._list_homes(model)
            self._leave_out_the_largest()

    def _list_homes(self, model: nn.Module) -> None:
        known = {id(module): home for home in self._homes if (module := home.module()) is not None}
        self._homes = [
            known.get(id(module)) or _Home(prefix, weakref.ref(module))
            for prefix, module in model.named_modules()
            if module._buffers
        ]

    def _leave_out_the_largest(self) -> None:
        sizes = sorted(
            ((_bytes(now), home, name) for home in self._homes for name, now in home.buffers()),
            key=lambda item: item[0],
        )
        total, left_out = 0, []
        for size, home, name in sizes:
            total += size
            if total > self._limit:
                home.left_out.add(name)
                left_out.append(home.path(name))
        if left_out and not self._told:
            self._told = True
            more = f" and {len(left_out) - 1} more" if len(left_out) > 1 else ""
            warn(
                f"The buffers of the model take {total / 2**20:.0f} MiB, more than `buffer_limit_mib` "
                f"({self._limit / 2**20:g}). A skipped step does not undo `{left_out[-1]}`{more}.",
                stacklevel=2,
            )


_Buffer = tuple[str, "torch.Tensor | None"]
"""A buffer's own name in its module, and what is there now."""


@dataclass
class _Kept:
    """One buffer as it was: which object, in which version, holding what."""

    original: weakref.ref[torch.Tensor] | None
    """`None` where the buffer was `None`."""
    version: int
    copy: torch.Tensor | None
    round: int
    """When it was last seen to be equal to the copy."""
    silent: bool = False
    """Whether it changes without its version counter."""

    def is_in(self, now: torch.Tensor | None) -> bool:
        """Whether this is the object, and its counter stands where it stood."""
        if now is None or self.original is None:
            return now is None and self.original is None
        return self.original() is now and self.version == _version(now)


@dataclass(eq=False)
class _Home:
    """A module that has buffers."""

    prefix: str
    module: weakref.ref[nn.Module]
    kept: dict[str, _Kept] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)
    moving: bool = False
    """Whether one of its buffers changed in the last round."""
    marks: list[tuple[int, int]] = field(default_factory=list)
    """Object and version of each buffer, at the last look."""

    def path(self, name: str) -> str:
        """The full name of a buffer."""
        return f"{self.prefix}.{name}" if self.prefix else name

    def buffers(self) -> Iterator[_Buffer]:
        """The buffers that can be copied."""
        module = self.module()
        for name, now in list(module._buffers.items()) if module is not None else ():
            if now is None or not (is_lazy(now) or now.is_meta):
                yield name, now

    def has_moved(self) -> bool:
        """Whether a buffer changed since this was last asked. Of batch norm, the count of batches tells."""
        before = self.marks
        self.marks = [(0, 0) if now is None else (id(now), _version(now)) for _, now in self.buffers()]
        return self.marks != before

    def shows_change(self) -> bool:
        """Whether a buffer that is kept is new, another object or in another version, or changes without a sign."""
        kept = ((self.kept.get(name), now) for name, now in self.buffers() if name not in self.left_out)
        return any(known is None or known.silent or not known.is_in(now) for known, now in kept)

    def changed(self, this_round: int, with_all: bool) -> list[_Buffer]:
        """The buffers that have to be copied again."""
        new: list[_Buffer] = []
        changed: list[_Buffer] = []
        quiet: list[_Buffer] = []
        for name, now in self.buffers():
            kept = self.kept.get(name)
            if name not in self.left_out:
                (new if kept is None else quiet if kept.is_in(now) and not kept.silent else changed).append((name, now))
        # When a module begins to move is the moment to look at its other buffers: see `BufferKeeper`.
        begins, self.moving = bool(changed) and not self.moving, bool(changed)
        for name, now in quiet if with_all or begins else ():
            kept = self.kept[name]
            if now is None or kept.copy is None or same_bits(now.detach(), kept.copy):
                kept.round = this_round
            else:
                kept.silent = True
                changed.append((name, now))
        return new + changed

    def put_back(self, this_round: int) -> None:
        """Every buffer as it was, in place where it is still the same object."""
        module = self.module()
        if module is None:
            return
        for name, kept in self.kept.items():
            if name not in module._buffers:
                continue  # the user removed it
            now = module._buffers[name]
            if kept.copy is None:
                module._buffers[name] = None
                continue
            original = None if kept.original is None else kept.original()
            if now is None or now is not original:
                # Not written into what is there now: it may be a batch of the user's.
                module._buffers[name] = now = _usable(original, now, kept.copy)
            elif kept.is_in(now) and not kept.silent:
                if same_bits(now.detach(), kept.copy):
                    continue
                kept.silent = True
                # It changed unseen, perhaps long ago: the copy is old, and only better than what is not finite.
                if kept.round < this_round and not _nonfinite({name: now}):
                    continue
            _write(now, kept.copy)
            kept.original, kept.version = weakref.ref(now), _version(now)


def bad_buffers(model: Any, *, meant: Collection[str] = (), among: Collection[str] | None = None) -> dict[str, int]:
    """Non-finite elements by buffer. Inf beside nothing but zeros is a mask; so is what is `meant`."""
    if not isinstance(model, nn.Module):
        return {}
    return _nonfinite({n: b for n, b in model.named_buffers() if among is None or n in among}, meant)


def infinite_buffers(model: nn.Module) -> list[str]:
    """The buffers that hold Inf or -Inf, and no NaN."""
    table = measure(_measurable(dict(model.named_buffers())))
    found = zip(table.names, table.nan_count.tolist(), table.inf_count.tolist(), strict=True)
    return [name for name, nan, inf in found if inf and not nan]


class BufferLook:
    """Buffers that were measured; on a device their numbers may still be on their way."""

    def __init__(
        self,
        buffers: Mapping[str, torch.Tensor],
        meant: Collection[str] = (),
        told: Callable[[Mapping[str, int]], object] = lambda _: None,
    ) -> None:
        self._table, self._meant, self._told = measure(_measurable(buffers)), meant, told

    def ready(self) -> bool:
        """Whether the numbers have come."""
        return self._table.ready

    def wait(self) -> None:
        """Wait for them."""
        self._table.wait()

    def bad(self) -> dict[str, int]:
        """Non-finite elements by buffer; waits for them."""
        table, found = self._table, {}
        if not table.total.finite:
            masks = table.column("zeros") + table.inf_count == table.count
            counts = zip(table.names, table.nan_count.tolist(), table.inf_count.tolist(), masks.tolist(), strict=True)
            bad = {n: int(nan + (0 if mask or n in self._meant else inf)) for n, nan, inf, mask in counts}
            found = {name: count for name, count in bad.items() if count}
        self._told(found)
        return found


def _nonfinite(buffers: Mapping[str, torch.Tensor], meant: Collection[str] = ()) -> dict[str, int]:
    return BufferLook(buffers, meant).bad()


def _measurable(buffers: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Real and complex numbers; of a sharded buffer the part that is here, so that no rank waits for another."""
    return {
        name: getattr(buffer, "_local_tensor", buffer)
        for name, buffer in buffers.items()
        if (buffer.is_floating_point() or buffer.is_complex())
        and not (is_lazy(buffer) or buffer.is_meta or buffer.layout != torch.strided)
    }


def _copy_all(buffers: list[tuple[_Home, str, torch.Tensor | None]], this_round: int) -> None:
    targets, sources = [], []
    with torch.no_grad():
        for home, name, now in buffers:
            kept = home.kept.get(name)
            if now is None:
                home.kept[name] = _Kept(None, 0, None, this_round)
                continue
            now_version = _version(now)
            if kept is None or kept.copy is None or not _alike(kept.copy, now):
                copy = now.detach().clone()
                silent = kept is not None and kept.silent
                home.kept[name] = _Kept(weakref.ref(now), now_version, copy, this_round, silent)
                continue
            targets.append(kept.copy)
            sources.append(now)
            if kept.original is None or kept.original() is not now:
                kept.original = weakref.ref(now)
            kept.version, kept.round = now_version, this_round
        if targets:
            torch._foreach_copy_(targets, sources)  # one call for all, as in the optimizers


def _usable(original: torch.Tensor | None, now: torch.Tensor | None, copy: torch.Tensor) -> torch.Tensor:
    """The object that was there before, if it still fits: the model may have moved to another device or dtype."""
    wanted = copy if now is None else now
    if original is not None and original.device == wanted.device and original.dtype == wanted.dtype:
        return original
    return copy.to(device=wanted.device, dtype=wanted.dtype, copy=True)


def _write(tensor: torch.Tensor, copy: torch.Tensor) -> None:
    # Through `.data` the version counter stays: a graph that the caller still holds remains usable.
    if tensor.shape == copy.shape:
        tensor.data.copy_(copy)
    else:
        tensor.data = copy.clone()


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.device == other.device


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version  # inference tensors do not count


def _bytes(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.numel() * tensor.element_size()
