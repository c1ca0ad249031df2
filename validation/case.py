"""What the zoo is made of: a `Case` with its label, the `Setup` or `Program` that it builds, where its layers lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

FAMILIES = ("mlp", "cnn", "residual", "transformer", "rnn", "rl", "game", "loop", "state")
TRAINING = (
    "live",
    "fresh",
    "drill",
    "blind",
    "sealed",
    "veiled",
    "everyday",
    "common",
    "plain",
    "usual",
    "daily",
    "reported",
    "threads",
)
"""Halves whose set-ups train for real: each has an optimizer of its own. All but `drill` were scored once, unseen."""
HALVES = ("tune", "holdout", *TRAINING)
"""What the rules are tuned on, what was set aside, and the halves that train."""
ANALYZERS = ("general", "recurrent", "transformer", "policy", "game")
HEALTHY = "HEALTHY"
"""The class of a case that has no fault."""

CAUSES = (
    # what is trained
    "detached",
    "not_in_optimizer",
    "foreign_optimizer",
    "replaced_parameters",
    "never_moves",
    "only_decay",
    "lora_frozen",
    "hidden_layers",
    "frozen",
    # the loop
    "missing_zero_grad",
    "zero_grad_before_step",
    "partial_zero_grad",
    "step_before_backward",
    "detached_loss",
    "zero_rate",
    "schedule_ended",
    "clip_sets_step",
    "evaluation_mode",
    "weights_overwritten",
    "same_batch",
    "ranks_differ",
    # the size of its steps
    "rate_too_high",
    "rate_too_low",
    "summed_loss",
    "undivided_accumulation",
    # the loss and the data
    "loss_nonfinite",
    "loss_grows",
    "loss_stuck",
    "first_loss_high",
    "all_masked",
    "double_softmax",
    "broadcast",
    "input_scales",
    "constant_targets",
    "padding_labels",
    "no_reward_variance",
)
"""Codes of what is wrong with a program, in lower case; types of issues are in upper case, so a label may hold both."""

STATE_CAUSES = (
    "eps_rules",
    "lost_updates",
    "decay_dominates",
    "momentum_too_long",
    "state_reset",
    "second_moment_underflow",
    "bad_batch",
)
"""The same for the family `state`: programs whose optimizer is at fault, or one of their samples."""
LANGUAGE_CAUSES = (
    "stale_second_moment",
    "attention_logits",
    "router_collapse",
    "embedding_row",
    "batch_size",
    "policy_entropy_collapse",
    "kl_runaway",
    "clip_fraction_high",
)
"""And what goes wrong with language models and policies, by their own numbers or by those that their loop logs."""
LATER_CAUSES = ("softmax_dimension", "output_range", "betas_swapped")
"""Codes that came when halves had been written: a label may hold them, and no half has to."""
PROGRAMS = ("loop", "state")
"""Families that hold programs."""

Layers = tuple[tuple[str, ...], ...]
"""Layers in order; each is the path of its module, then those of the modules that belong to it."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What an analyzer gets: a model, its batches, its loss."""

    model: nn.Module
    input_fn: Callable[[], Any]
    loss_fn: Callable[[Any], torch.Tensor]
    optimizer: torch.optim.Optimizer | None = None
    steps: int = 20
    init: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the analyzer."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of `analyze`."""
    hints: Mapping[str, Any] = field(default_factory=dict)
    """What a user knows and may say, such as the lag that a task needs; passed on where the analyzer takes it."""


class Log:
    """The log that a loop keeps of its own: it prints nothing, and `to` is where its user sends it."""

    def __init__(self) -> None:
        self.lines: list[dict[str, float]] = []
        self.to: Callable[..., None] | None = None

    def __call__(self, **values: float) -> None:
        """Note values of the coming step."""
        self.lines.append(values)
        if self.to is not None:
            self.to(**values)


@dataclass(frozen=True, kw_only=True)
class Program:
    """A training loop as its user wrote it: the tool is put around `run`, which knows nothing of it."""

    model: nn.Module
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer]
    run: Callable[[], None]
    """The whole loop, with its own `zero_grad`, `backward` and `step`. To be called once."""
    scaler: torch.amp.GradScaler | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of `watch`."""
    losses: list[float] = field(default_factory=list)
    """What the loop notes of its loss, as a user prints it. For proofs."""
    log: Log | None = None
    """Further numbers that the loop logs, such as a policy's entropy; the adapter hands them to the watch."""
    score: Callable[[], float] | None = None
    """How bad the model is at what its user had in mind: the loss that was meant, on unseen data. For proofs."""


@dataclass(frozen=True)
class Evidence:
    """The outcome of an independent measurement."""

    holds: bool
    text: str


Build = Callable[[int], Setup | Program]
Proof = Callable[["Case", int], Evidence]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One set-up with what is known about it."""

    name: str
    family: str
    half: str
    build: Build
    """Seed → a fresh set-up or program. Call `make`, which fixes torch's seed first."""
    proof: Proof
    """Measures, without the tool, that the label is true for this seed."""
    fault: str = HEALTHY
    """The class it is counted under."""
    label: frozenset[str] = frozenset()
    """Names of the issue types and codes of the causes that count as found; empty for a healthy case."""
    also: frozenset[str] = frozenset()
    """Further types and causes that are true here: naming one is no error, and does not count as found either."""
    layer: tuple[str, ...] | None = None
    """Module paths where it begins, any of which is right; None when it concerns the whole model."""
    analyzer: str = "general"
    control: Case | None = None
    """The healthy twin that differs by the one fault."""

    def __post_init__(self) -> None:
        allowed = ((self.family, FAMILIES), (self.half, HALVES), (self.analyzer, ANALYZERS))
        for value, known in allowed:
            if value not in known:
                raise ValueError(f"{self.name}: {value!r} is none of {known}.")
        if (self.fault == HEALTHY) != (not self.label) or (self.label and self.fault not in self.label):
            raise ValueError(f"{self.name}: the fault {self.fault!r} must be one of its labels {sorted(self.label)}.")

    @property
    def costly(self) -> bool:
        """Whether its proof trains a model."""
        return getattr(self.proof, "costly", False)

    @property
    def sick(self) -> bool:
        """Whether something is to be found."""
        return bool(self.label)

    @property
    def cause(self) -> tuple[str, ...]:
        """Codes of the causes that name the fault of a program, its class first.

        None for a set-up: its label may hold codes that are as good an answer as a type, but is not asked for one.
        """
        if self.family not in PROGRAMS:
            return ()
        return tuple(
            sorted(
                self.label & {*CAUSES, *STATE_CAUSES, *LANGUAGE_CAUSES, *LATER_CAUSES},
                key=lambda code: (code != self.fault, code),
            )
        )

    def make(self, seed: int) -> Any:
        """Build the set-up or the program of one seed, the same each time."""
        torch.manual_seed(seed)
        return self.build(seed)


def costly(proof: Proof) -> Proof:
    """Mark a proof that trains a model, which quick tests do for some cases only."""
    proof.costly = True  # type: ignore[attr-defined]
    return proof


class Zoo:
    """Collects the cases of one family and one half; `analyzer` and `proof` stand for those that do not name theirs."""

    def __init__(self, family: str, half: str, analyzer: str = "general", proof: Proof | None = None) -> None:
        self.cases: list[Case] = []
        self.proof = proof
        self._shared = {"family": family, "half": half, "analyzer": analyzer}

    def healthy(self, name: str, build: Build, proof: Proof | None = None, **more: Any) -> Case:
        """Add a case that must raise no alarm."""
        return self._add(name, build=build, proof=proof or self.proof, **more)

    def sick(self, name: str, build: Build, proof: Proof, *types: str, **more: Any) -> Case:
        """Add a case with a fault: the first of `types` is its class, the others are as good an answer.

        The class of a program is a cause, and the others are causes or types of issues.
        """
        layer = more.pop("layer", None)
        more["layer"] = (layer,) if isinstance(layer, str) else layer
        more["also"] = frozenset(more.get("also", ()))
        return self._add(name, build=build, proof=proof, fault=types[0], label=frozenset(types), **more)

    def beside(
        self,
        sound: str,
        fault: str,
        build: Callable[[int, bool], Program],
        proof: Proof,
        *types: str,
        twin_proof: Proof | None = None,
        **more: Any,
    ) -> Case:
        """Add a sound program and the same with its fault; `build` is told the seed and whether it has the fault.

        Both names begin with that of the half.
        """
        half = self._shared["half"]
        twin = self.healthy(f"{half}-{sound}", lambda seed: build(seed, False), twin_proof)
        return self.sick(f"{half}-{fault}", lambda seed: build(seed, True), proof, *types, control=twin, **more)

    def _add(self, name: str, **fields: Any) -> Case:
        case = Case(**{**self._shared, "name": f"{self._shared['family']}/{name}", **fields})
        self.cases.append(case)
        return case


def call(model: nn.Module, batch: Any) -> Any:
    """Call the model the way the analyzers do: a tuple is spread, a mapping gives keywords."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)


def layers_of(model: nn.Module) -> Layers:
    """Layers in order of registration, by which "one layer off" is judged.

    A layer begins with a module that owns a matrix. Norms, activations and whatever else has no matrix belong to the
    layer before them, and modules inside a layer to that layer.
    """
    layers: list[list[str]] = []
    early: list[str] = []
    for path, module in model.named_modules():
        if layers and path.startswith(f"{layers[-1][0]}."):
            layers[-1].append(path)
            continue
        own = list(module.named_parameters(recurse=False))
        if not path:  # parameters of the model itself have no module that could stand for them
            layers += [[name] for name, _ in own]
        elif any(parameter.dim() >= 2 for _, parameter in own):
            layers.append([path])
        elif own or not any(module.children()):
            (layers[-1] if layers else early).append(path)
    if layers:
        layers[0] += early
    return tuple(tuple(layer) for layer in layers)
