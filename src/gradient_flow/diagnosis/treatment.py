"""`Treatment`: a fix by name and numbers, without torch. Text, code and deed of a fix come from the same numbers.

What is done to a model is in `gradient_flow.cures.treatments`, registered under the same `kind`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gradient_flow.diagnosis.treatment_code import Settings
from gradient_flow.diagnosis.treatment_words import WORDS, Words

__all__ = ["WORDS", "Advice", "Treatment", "Words", "set_words", "treatment_of"]

_WITHOUT_NUMBERS: Final = ("skip_nonfinite", "zero_nonfinite")
"""Kinds that have no numbers at all."""


@dataclass(frozen=True)
class Treatment:
    """One fix: what kind, and its numbers.

    >>> clip = Treatment("clip", {"norm": 0.5})
    >>> clip.name, clip.advice
    ('clip at 0.5', 'Clip the gradient norm at 0.5.')
    >>> print(clip.code)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # after backward(), before optimizer.step()
    """

    kind: str
    settings: Settings = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """Whether its numbers are still to be taken from the model: `Treatment("norm")` names no layer yet."""
        return not self.settings and self.kind not in _WITHOUT_NUMBERS

    @property
    def name(self) -> str:
        """A few words."""
        return self.kind.replace("_", " ") if self.is_open else _words(self.kind).name(self.settings)

    @property
    def advice(self) -> str:
        """The same as a sentence that tells what to do."""
        return f"Try: {self.name}." if self.is_open else _words(self.kind).advice(self.settings)

    @property
    def code(self) -> str:
        """The lines to write into a training script; nothing while its numbers are open."""
        return "" if self.is_open else _words(self.kind).code(self.settings)

    def covers(self, other: Treatment) -> bool:
        """Whether the other is this one, or this one with its numbers."""
        return self == other or (self.is_open and self.kind == other.kind)

    def to_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold."""
        return {"kind": self.kind, "name": self.name, "settings": dict(self.settings)}

    @classmethod
    def from_dict(cls, plain_values: Mapping[str, Any]) -> Treatment:
        """What `to_dict` made plain values of."""
        return cls(str(plain_values["kind"]), dict(plain_values.get("settings") or {}))


class Advice(str):
    """A sentence of advice; `treatment` is the same as a deed, where it can be done mechanically.

    >>> advice = Advice("Clip the norm at 0.5: that affects 10% of your steps.", Treatment("clip", {"norm": 0.5}))
    >>> advice.treatment.name
    'clip at 0.5'
    """

    treatment: Treatment | None

    def __new__(cls, text: str, treatment: Treatment | None = None) -> Advice:
        """The text as it is."""
        made = super().__new__(cls, text)
        made.treatment = treatment
        return made


def treatment_of(advice: str) -> Treatment | None:
    """The treatment that an advice carries; None for one that only a person can follow."""
    return getattr(advice, "treatment", None)


def set_words(kind: str, words: Words) -> None:
    """Give a kind of treatment its words, as a treatment of a user's own needs."""
    WORDS[kind] = words


def _words(kind: str) -> Words:
    return WORDS.get(kind) or Words(
        lambda _: kind,
        lambda settings: f"Apply `{kind}` ({dict(settings)}).",
        lambda settings: f"# {kind}: {dict(settings)}",
    )


def _parts(settings: Settings) -> list[Treatment]:
    return [Treatment.from_dict(part) for part in settings["parts"]]


set_words(
    "together",
    Words(
        lambda t: " and ".join(part.name for part in _parts(t)),
        lambda t: " ".join(part.advice for part in _parts(t)),
        lambda t: "\n".join(part.code for part in _parts(t)),
    ),
)
