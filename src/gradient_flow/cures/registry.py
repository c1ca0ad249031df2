"""The treatments that a cure tries: ours and those that users add. One that fails is left out with its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import torch
from torch import nn

from gradient_flow.diagnosis.issue import IssueType
from gradient_flow.diagnosis.treatment import Treatment, Words, set_words
from gradient_flow.errors import InputError, warn

if TYPE_CHECKING:
    from gradient_flow.cures.patient import Patient

Deed = Callable[..., torch.optim.Optimizer | None]
"""`deed(model, optimizer, **settings)`: changes both in place; returns an optimizer where another takes its place."""
AnyDeed = TypeVar("AnyDeed", bound=Deed)
Proposal = Callable[["Patient"], Iterable[Treatment]]


class _Registered(NamedTuple):
    deed: Deed
    proposed_by: Proposal
    fresh: bool
    against: frozenset[str]


_TREATMENTS: Final[dict[str, _Registered]] = {}


def register_treatment(
    kind: str,
    *,
    proposed_by: Proposal,
    fresh: bool = False,
    against: Iterable[str] = (),
    words: Words | None = None,
) -> Callable[[AnyDeed], AnyDeed]:
    """Add a treatment: a decorator for `deed(model, optimizer, **settings)`.

    `proposed_by(patient)` yields the treatments of this kind that are worth a trial. With `fresh=True` it is tried only
    where the user says that no weight is worth keeping. `against` names the types of issue that it is meant for
    (`"VANISHING"`): it then stays in the race for longer. `words` say what it does, with its
    settings. One of the same kind takes the place of the earlier one.

    >>> def halve(patient):
    ...     yield Treatment("halve_momentum", {"momentum": 0.45})
    >>> @register_treatment("halve_momentum", proposed_by=halve)
    ... def _halve(model, optimizer, momentum):
    ...     for group in optimizer.param_groups:
    ...         group["momentum"] = momentum
    >>> unregister_treatment("halve_momentum")
    """
    if not isinstance(kind, str) or not kind:
        raise InputError(f"`kind` must be a name, got {kind!r}.")
    if not callable(proposed_by):
        raise InputError(f"`proposed_by` must be a function of a patient, got {type(proposed_by).__name__}.")
    types = frozenset((against,) if isinstance(against, str) else against)
    unknown = types - set(IssueType.__members__)
    if unknown:
        raise InputError(f"`against` must name types of issue ({', '.join(IssueType.__members__)}); got {unknown}.")

    def register(deed: AnyDeed) -> AnyDeed:
        if not callable(deed):
            raise InputError(f"A treatment must be a function of model and optimizer, got {type(deed).__name__}.")
        _TREATMENTS[kind] = _Registered(deed, proposed_by, fresh, types)
        if words is not None:
            set_words(kind, words)
        return deed

    return register


def unregister_treatment(kind: str) -> None:
    """Take the treatment of this `kind` out again."""
    if kind not in _TREATMENTS:
        raise InputError(f"`kind` must be that of a registered treatment ({', '.join(_TREATMENTS)}); got {kind!r}.")
    del _TREATMENTS[kind]


def can_be_done(treatment: Treatment, *, fresh: bool) -> bool:
    """Whether there is a deed for it, and it may be done to weights like these."""
    found = _TREATMENTS.get(treatment.kind)
    return found is not None and (fresh or not found.fresh)


def meant_for(kind: str) -> frozenset[str]:
    """Types of issue that a kind of treatment is against."""
    found = _TREATMENTS.get(kind)
    return frozenset() if found is None else found.against


def proposals(patient: Patient) -> Iterator[Treatment]:
    """Everything worth a trial; a proposal that fails is named once and left out."""
    for kind, found in list(_TREATMENTS.items()):
        if found.fresh and not patient.fresh:
            continue
        try:
            yield from list(found.proposed_by(patient))
        except Exception as problem:  # one of many; the others are tried
            warn(f"Treatment {kind!r} could not be planned ({type(problem).__name__}: {problem}).", stacklevel=4)


def do(treatment: Treatment, model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Apply a treatment to model and optimizer, in place; the optimizer to go on with."""
    found = _TREATMENTS.get(treatment.kind)
    if found is None:
        raise InputError(
            f"There is no treatment {treatment.kind!r} (there are {', '.join(_TREATMENTS)}). Register it first."
        )
    settings: dict[str, Any] = dict(treatment.settings)
    return found.deed(model, optimizer, **settings) or optimizer
