"""`RecurrentProbe`: the recurrent parts of a model through all stages, from hooks to `RecurrentDynamics`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final

import torch
from torch import nn

from gradient_flow.capture.random_state import kept_random_state
from gradient_flow.probes.recurrent.capture import RecurrentRecorder, Sequence
from gradient_flow.probes.recurrent.cells import Transitions
from gradient_flow.probes.recurrent.dynamics import carried_back, lyapunov_exponents, product_norms, spectral_radius
from gradient_flow.probes.recurrent.early_inputs import EarlyDependence
from gradient_flow.probes.recurrent.rules import ModuleDynamics, RecurrentDynamics
from gradient_flow.probes.recurrent.stats import CRITICAL_BAND, OPTIMAL_RADIUS, decay_per_step
from gradient_flow.probes.recurrent.walk import Walk, loops_of, rank_along, rank_between_samples, walks_of
from gradient_flow.table import samples

__all__ = ["RecurrentProbe"]

_NOTHING_SEEN: Final = (
    "no recurrent part was seen: no nn.RNN, nn.GRU, nn.LSTM or cell of these ran, no module was given the state that "
    "it had returned, and no square matrix multiplies a state time and again. Name a cell of yours with `cells=[...]`."
)


class RecurrentProbe:
    """Watches the recurrent parts of a model while it is entered; hooks exist only inside.

    Measured are the steps 1, 2, 4, 8, … and the last one. Weights, buffers, gradients, modes and random state stay as
    they are: everything is computed on copies.

    Args:
        model: the model whose forward and backward passes run while the probe is entered.
        cells: modules of it, by name or themselves, that are cells although they do not look like one.
        track_hidden_states: measure the effective rank of the states.
        enable_jacobian: measure spectral radius, Lyapunov exponents and norms of products.
        written_out: search a model without such parts for a recurrence written out in its `forward`, which takes one
            more forward pass, of a copy.

    >>> rnn = nn.RNN(3, 8)
    >>> with RecurrentProbe(rnn) as probe:
    ...     output, _ = rnn(torch.ones(20, 2, 3))
    ...     output[-1].sum().backward()
    ...     probe.after_step(None, output)
    >>> probe.result().criticality == "SUBCRITICAL"
    True
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        cells: Iterable[str | nn.Module] | None = None,
        track_hidden_states: bool = True,
        enable_jacobian: bool = True,
        written_out: bool = True,
    ) -> None:
        self._cells = list(cells or ())
        self.bind(model)
        self._ranks, self._jacobian = track_hidden_states, enable_jacobian
        self._steps, self._no_loops = 0, not written_out
        self._pending: tuple[list[Sequence], tuple[Any, Any] | None] | None = None
        self._modules: dict[str, ModuleDynamics] = {}
        self._course: list[tuple[int, float]] = []
        self._notes: dict[str, None] = {}
        self._early = EarlyDependence()
        self.reason = "no step was analysed."
        """Why `result` is None."""

    def bind(self, model: nn.Module) -> None:
        """Take up the model, until `release`."""
        self._model, self._recorder = model, RecurrentRecorder(model, self._cells)
        self._device = next((tensor.device for tensor in model.parameters()), None)

    def release(self) -> None:
        """Hold on to nothing of the model. What is pending is measured first."""
        self._measure_pending()
        self._model = nn.Module()
        self._recorder = RecurrentRecorder(self._model)

    def __enter__(self) -> RecurrentProbe:
        try:
            self._recorder.attach()
            self._early.attach(self._model)
        except BaseException:
            self._recorder.detach()
            self._early.detach()
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._recorder.detach()
        self._early.detach()

    def listen(self, listening: bool) -> None:
        """Whether the forwards that come are of interest."""
        self._recorder.listening = self._early.listening = listening

    def after_step(self, inputs: Any = None, output: Any = None) -> None:
        """Take in one forward, and its backward if there was one."""
        self._steps += 1
        sequences, call = self._recorder.take(), self._recorder.take_call()
        if sequences or self._modules or not self._no_loops:  # nobody asks it of a model without a memory
            with self._unharmed("model"):
                self._early.add(inputs)
        self._pending = sequences, call
        if self._steps & (self._steps - 1) == 0:
            self._measure_pending()

    def result(
        self, *, optimal_radius: float = OPTIMAL_RADIUS, critical_band: float = CRITICAL_BAND
    ) -> RecurrentDynamics | None:
        """The dynamics at the last step; None, with the reason in `reason`, where nothing recurrent was seen."""
        self._measure_pending()
        if not self._modules:
            return None
        return RecurrentDynamics(
            modules=dict(self._modules),
            optimal_radius=optimal_radius,
            critical_band=critical_band,
            course=tuple(self._course),
            notes=tuple(self._notes),
            early_inputs=self._early.result(),
        )

    def _measure_pending(self) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        self._notes = {}
        sequences, call = pending
        found = {unit.name: unit for unit in self._of_modules(sequences)}
        if not sequences and call is not None and not self._no_loops:
            found = {unit.name: unit for unit in self._of_loops(call)}
            self._no_loops = not found  # then one look was enough
        self._modules = found or self._modules
        radii = [unit.spectral_radius for unit in found.values() if unit.spectral_radius is not None]
        if radii:
            self._course.append((self._steps, max(radii)))
        problems = [f"`{path or 'model'}` could not be read: {why}" for path, why in self._recorder.problems.items()]
        self.reason = "" if self._modules else "; ".join([*self._notes, *problems]) or _NOTHING_SEEN

    def _of_modules(self, sequences: list[Sequence]) -> list[ModuleDynamics]:
        units = []
        for sequence in sequences:
            path, module = sequence.path or "model", sequence.module
            with self._unharmed(path):
                walks = walks_of(sequence)
                for walk in walks:
                    name = path if len(walks) == 1 else f"{path}[{walk.suffix.removeprefix('_')}]"
                    known: dict[str, Any] = {"name": name, "module": path, "kind": type(module).__name__}
                    known["cut_share"] = sequence.cuts / sequence.links if sequence.links else 0.0
                    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
                        known["recurrent_weight"] = f"{path}.weight_hh{walk.suffix}"
                    units.append(self._unit(walk, sequence_length=sequence.length, **known))
        return units

    def _of_loops(self, call: tuple[Any, Any]) -> list[ModuleDynamics]:
        units, kind = [], type(self._model).__name__
        with self._unharmed("model"):
            for loop, walk in loops_of(self._model, *call):
                known = {"name": loop.path, "module": loop.path, "kind": kind, "recurrent_weight": loop.path}
                units.append(self._unit(walk, sequence_length=loop.length, **known))
        return units

    @contextmanager
    def _unharmed(self, path: str) -> Iterator[None]:
        """Nothing is drawn from the user's generators; a cell that cannot be measured does not stop the analysis."""
        try:
            with torch.no_grad(), kept_random_state(self._device):
                yield
        except Exception as problem:
            self._notes[f"`{path}` could not be measured: {problem}"] = None

    def _unit(self, walk: Walk, **known: Any) -> ModuleDynamics:
        steps, nonfinite_at = walk.finite_steps()
        known |= {"state_size": walk.states.shape[-1], "steps": steps, "nonfinite_at": nonfinite_at}
        if walk.note:
            self._notes[f"`{known['name']}`: {walk.note}"] = None
        if steps and self._ranks:
            seen = walk.states[1 : steps + 1, :, : walk.width]
            known["effective_rank"], known["sample_rank"] = rank_along(seen), rank_between_samples(seen)
            known["input_rank"] = rank_between_samples(walk.inputs[:steps])
        slopes = walk.slopes(steps) if steps else None
        if slopes is not None:
            known["flat_gates"] = samples.share_below(slopes, samples.FLAT)
        return ModuleDynamics(**known, **(self._dynamics(walk.jacobians(steps), walk.cotangents) if steps else {}))

    def _dynamics(self, transitions: Transitions, cotangents: torch.Tensor | None) -> dict[str, Any]:
        numbers: dict[str, Any] = {}
        if self._jacobian:
            numbers["spectral_radius"] = spectral_radius(transitions)
            numbers["lyapunov_exponents"] = lyapunov_exponents(transitions)
            numbers["product_norms"] = product_norms(transitions)
        decay = decay_per_step(carried_back(transitions, cotangents))
        if decay is not None:
            numbers["temporal_decay_rate"], numbers["decay_error"] = decay
            numbers["true_gradient"] = cotangents is not None
        return numbers
