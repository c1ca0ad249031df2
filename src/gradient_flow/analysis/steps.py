"""The steps of an analysis: batch, model, loss, backward, and the optimizer where there is one."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.utils._pytree import tree_map

from gradient_flow.capture.autograd_graph import graph_behind
from gradient_flow.capture.model_state import gradients_kept, nothing_changed
from gradient_flow.capture.module_calls import tensors_in
from gradient_flow.diagnosis.network.record import AnalysisRecord
from gradient_flow.errors import InputError
from gradient_flow.looks.observer import Observer
from gradient_flow.looks.probe import Probe
from gradient_flow.table import measure, samples

if TYPE_CHECKING:
    from gradient_flow.probes.field.coherence import FlowCoherence
    from gradient_flow.probes.field.jacobian import JacobianStats
    from gradient_flow.probes.field.stats import FieldStats

_BAD_STEPS: Final = 3
"""Non-finite steps after which an analysis stops: more show nothing new."""
_LEAST_LOOKS: Final = 3
_ONE_IN: Final = 7
"""Steps watched: the first ones, then every Nth of a longer analysis."""


def run_steps(
    model: nn.Module,
    input_fn: Callable[[], Any],
    loss_fn: Callable[[Any], torch.Tensor],
    *,
    steps: int,
    optimizer: torch.optim.Optimizer | None,
    in_place: bool,
    thresholds: Mapping[str, float],
    passed: Sequence[str] = (),
    make_probe: Callable[[nn.Module], Probe] | None = None,
    coherence: FlowCoherence | None = None,
    progress: bool = False,
) -> tuple[AnalysisRecord, Probe | None]:
    """Run the steps and record what was seen. Without an optimizer, or on a copy, everything is left as found."""
    with ExitStack() as stack:
        model = stack.enter_context(uncompiled(model))
        if optimizer is None or not in_place:
            stack.enter_context(nothing_changed(model))
        else:
            stack.enter_context(gradients_kept(model))
        if optimizer is not None and not in_place:
            model, optimizer = copy.deepcopy((model, optimizer))  # together, so that one holds the other's weights
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        seen = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
        probe = make_probe(seen) if make_probe is not None else None
        if probe is not None:
            stack.enter_context(probe)
        observer, when = Observer(seen, optimizer), _Schedule(steps, trains=optimizer is not None)
        others = stack.enter_context(OtherGradients(model, optimizer))
        bad_steps = 0
        for index in _shown(steps, progress):
            finite = _one_step(index, model, input_fn, loss_fn, observer, when, others, probe)
            if coherence is not None:
                coherence.add(parameter.grad for parameter in seen.parameters())
            bad_steps += not finite
            if not finite:
                when.looks.add(index + 1)
                if optimizer is not None or bad_steps == _BAD_STEPS:
                    break  # an update from here would only spread it over all weights
            if optimizer is not None:
                if index in when.looks:
                    observer.before_update()
                take_step(optimizer)
                observer.after_update()
        return observer.record(thresholds, passed), probe


def _one_step(
    index: int,
    model: nn.Module,
    input_fn: Any,
    loss_fn: Any,
    observer: Observer,
    when: _Schedule,
    others: OtherGradients,
    probe: Probe | None,
) -> bool:
    parameters = observer.parameters
    for _, parameter in parameters:
        parameter.grad = None
    looks = index in when.looks
    with observer.looking(index, close=index in when.close) if looks else nullcontext():
        inputs = input_fn()
        observer.on_inputs(tensors_in(inputs))
        output = call_model(model, inputs)
        loss = checked_loss(loss_fn(output))
        observer.on_loss(loss)
        others.set_aside(loss, look=index == 0)
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it
        gradients = {name: parameter.grad for name, parameter in parameters}
        if looks:
            table = measure(gradients)
            norm = table.total.norm
            observer.on_backward(table, gradients)
        else:
            norm = samples.quick_norm([g for g in gradients.values() if g is not None])
            observer.note_graded(name for name, gradient in gradients.items() if gradient is not None)
        value = float(loss.detach())
        observer.note_step(index, value, norm)
        if when.trains:
            observer.note_direction(gradients)
        if probe is not None:
            probe.after_step(inputs, output)
    return math.isfinite(norm) and math.isfinite(value)


class _Schedule:
    """Which steps of an analysis are looked at, and which of them closely: the first, one in the middle, the last."""

    def __init__(self, steps: int, *, trains: bool) -> None:
        self.trains = trains
        self.close = {0, steps // 2, steps - 1}
        looks = max(_LEAST_LOOKS, steps // _ONE_IN)
        self.looks = {round(k * (steps - 1) / (looks - 1)) for k in range(looks)} | self.close


class OtherGradients:
    """Gradients of what the loss reaches beside the model: a head in `loss_fn`, a batch that needs gradients.

    They are set aside at every step, so that none adds up over the steps, and are afterwards the same tensors.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        self._model = {id(parameter) for parameter in model.parameters()}
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
        for group in [] if optimizer is None else optimizer.param_groups:
            self._keep(group["params"])

    def __enter__(self) -> OtherGradients:
        return self

    def __exit__(self, *_: object) -> None:
        for tensor, gradient in self._kept.values():
            tensor.grad = gradient

    def set_aside(self, loss: torch.Tensor, look: bool) -> None:
        """Just before backward; `look` also searches the graph behind the loss."""
        if look and loss.grad_fn is not None:
            found = (getattr(node, "variable", None) for node in graph_behind([loss.grad_fn]))
            self._keep(leaf for leaf in found if isinstance(leaf, torch.Tensor) and leaf.is_leaf)
        for tensor, _ in self._kept.values():
            tensor.grad = None

    def _keep(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            if id(tensor) not in self._model:
                self._kept.setdefault(id(tensor), (tensor, tensor.grad))


def gradient_field(
    model: nn.Module, input_fn: Any, loss_fn: Any, players: Any, coherence: float | None = None
) -> FieldStats:
    """Divergence and rotation at the model's present weights, on one batch. A player is `(loss_fn, parameters)`."""
    from gradient_flow.probes.field.field import field_stats

    if players is None:
        players = [(loss_fn, [parameter for parameter in model.parameters() if parameter.requires_grad])]
    with uncompiled(model) as model, nothing_changed(model), torch.inference_mode(False), torch.enable_grad():
        inputs = input_fn()
        losses = [(_loss_of(model, inputs, loss), list(parameters)) for loss, parameters in players]
        return field_stats(losses, coherence=coherence)


def input_jacobian(model: nn.Module, input_fn: Any) -> tuple[JacobianStats | None, str]:
    """The Jacobian of the model's output by its input, for one sample of a batch and in evaluation mode.

    With the reason in place of the statistics where there is none: words have no neighbours.
    """
    from gradient_flow.probes.field.jacobian import jacobian_stats
    from gradient_flow.probes.field.linearization import function_of_tensor

    with nothing_changed(model), torch.enable_grad():
        inputs = input_fn()
        given = [tensor for tensor in tensors_in(inputs) if tensor.is_floating_point() and tensor.dim() > 0]
        if not given:
            return None, "the model takes no real numbers: its input has no Jacobian."
        model.eval()  # one sample has no statistics of a batch
        x = given[0].detach()

        def output_of(sample: torch.Tensor) -> torch.Tensor:
            first = tree_map(lambda leaf: sample if leaf is given[0] else _first_sample(leaf, len(x)), inputs)
            return tensors_in(call_model(model, first))[0]

        try:
            return jacobian_stats(function_of_tensor(model, output_of), x[:1]), ""
        except Exception as problem:  # an operation without a derivative; the rest of the analysis stands
            return None, f"the Jacobian could not be taken: {type(problem).__name__}: {problem}"


def _first_sample(leaf: Any, batch: int) -> Any:
    has_batch = isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and len(leaf) == batch
    return leaf[:1] if has_batch else leaf


def _loss_of(model: nn.Module, inputs: Any, loss_fn: Any) -> Callable[[], torch.Tensor]:
    return lambda: checked_loss(loss_fn(call_model(model, inputs)))


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[nn.Module]:
    """The model without `torch.compile`, as a whole and in its parts, which computes the same.

    Compiled parts hide their modules behind a wrapper, and allow no second derivative.
    """
    if _is_compiled(model):
        model = model._orig_mod  # type: ignore[assignment]
    wrapped: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for module in list(model.modules()):
            wrapped += [(module._modules, name, part) for name, part in module._modules.items() if _is_compiled(part)]
            call = vars(module).pop("_compiled_call_impl", None)  # what `module.compile()` leaves
            if call is not None:
                wrapped.append((vars(module), "_compiled_call_impl", call))
        for parts, name, part in wrapped:
            if _is_compiled(part):
                parts[name] = part._orig_mod
        yield model
    finally:
        for parts, name, part in wrapped:
            parts[name] = part


def _is_compiled(part: Any) -> bool:
    # Not by `getattr`: a wrapper that passes on attributes of what it wraps is not itself compiled.
    return isinstance(part, nn.Module) and "_orig_mod" in part._modules


def call_model(model: nn.Module, inputs: Any) -> Any:
    """A tuple or list is spread over the arguments, a mapping over the keywords, anything else is the argument."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


def checked_loss(loss: Any) -> torch.Tensor:
    """The loss, if it is one real number; raise otherwise."""
    if not isinstance(loss, torch.Tensor):
        raise InputError(
            f"`loss_fn` must return a tensor of one element, got {type(loss).__name__}. {_how_to_return(loss)}"
        )
    if loss.numel() != 1 or loss.is_complex():
        raise InputError(
            f"`loss_fn` must return a tensor of one real element, got shape {tuple(loss.shape)} and {loss.dtype}. "
            'Reduce it to one number, as `reduction="mean"` does.'
        )
    return loss.reshape(())


def _how_to_return(loss: Any) -> str:
    if loss is None:
        return "Return the loss; `output.loss` of a Hugging Face model is None unless `input_fn` also gives `labels`."
    return "Return the loss itself: `.item()` cuts it off from the model."


def take_step(optimizer: torch.optim.Optimizer) -> None:
    """One step of the optimizer; one that needs a closure is refused."""
    try:
        optimizer.step()
    except TypeError as problem:
        if "closure" not in str(problem):
            raise
        raise InputError(
            f"`optimizer` ({type(optimizer).__name__}) needs a closure, which an analysis does not have. Analyze "
            "without an optimizer, or with another one."
        ) from problem


def _shown(steps: int, progress: bool) -> Iterator[int] | Sequence[int]:
    return _with_bar(steps) if progress else range(steps)


def _with_bar(steps: int) -> Iterator[int]:
    from rich.console import Console
    from rich.progress import track

    yield from track(range(steps), "Analyzing", console=Console(stderr=True), transient=True)
