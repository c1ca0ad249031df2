"""What goes into a loss, reduced to plain numbers: labels, targets, batches."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from typing import Any, Final

import torch

from gradient_flow.capture.autograd_graph import dimension_of, is_softmax
from gradient_flow.diagnosis.loop.record import LossCall

_MOST_LABELS: Final = 1 << 16
_MOST_VALUES: Final = 4096
_FEWEST_VALUES, _MOST_COMPARED = 256, 1 << 21
"""Predictions that are compared with their labels, and logits of all of them."""
_MOST_ENTRIES, _FEWEST_ROWS = 1 << 15, 128
"""Of a table of numbers: entries that deviations are computed of, and rows at least."""
_MOST_LOGITS, _MOST_THERE = 1 << 18, 1 << 26
"""Logits in hand at a time: on the host as many as stay in the cache, on a device as many as are no burden."""
_FINGERPRINT: Final = 256
"""Elements of each tensor of a batch that its fingerprint is made of."""
_WANT_LOGITS: Final = ("cross_entropy", "binary_cross_entropy_with_logits")
_OF_CLASSES: Final = ("cross_entropy", "nll_loss")
_SQUASHING: Final = ("SoftmaxBackward0", "SigmoidBackward0")
SHAPING: Final = (
    "View",
    "Squeeze",
    "Unsqueeze",
    "Reshape",
    "Transpose",
    "Permute",
    "Alias",
    "Expand",
    "ToCopy",
    "UnsafeView",
    "Slice",
    "Select",
    "Clone",
    "Gather",
)
"""Operations that change no more than the shape of what they are given, or choose from it."""
_BOUNDS: Final = {
    "ReluBackward0": "relu",
    "TanhBackward0": "tanh",
    "SigmoidBackward0": "sigmoid",
    "SoftmaxBackward0": "softmax",
}
_REACH: Final = {"relu": (0.0, math.inf), "tanh": (-1.0, 1.0), "sigmoid": (0.0, 1.0), "softmax": (0.0, 1.0)}
_LEAST_ROWS: Final = 4
_LEAST_ENTRIES: Final = 16
_NUMBER: Final = 1
_SLICED: Final = 4
"""Times a batch that the data has at least of which it is a slice."""


def loss_call(
    function: str,
    predicted: torch.Tensor,
    target: torch.Tensor,
    settings: dict[str, Any],
    result: Any,
    outputs: set[Any],
) -> LossCall:
    """A call of a loss function as plain numbers. `outputs` are the operations that made the model's outputs."""
    call = LossCall(function=function, reduction=str(settings.get("reduction", "mean")))
    call.of_output = made_by(predicted.grad_fn, outputs)
    if isinstance(result, torch.Tensor) and result.numel() == _NUMBER:
        call.value = float(result.detach())
    with torch.no_grad():
        call.squashed = _is_squashed(function, predicted)
        call.summed_over = _wrong_dimension(function, predicted)
        call.bound = _bound(predicted.grad_fn)
        if function in _OF_CLASSES:
            _note_labels(call, predicted, target, settings)
        elif target.numel() and target.is_floating_point():
            _note_target(call, target)
        call.agreement = _agreement(function, predicted.detach(), target, settings)
    if function not in _OF_CLASSES:
        call.shapes = _spread_shapes(predicted, target)
    return call


def made_by(node: Any, outputs: set[Any]) -> bool:
    """Whether a tensor is an output of the model, but for its shape."""
    for _ in range(_LEAST_ROWS):
        if node is None or node in outputs:
            return node is not None
        if not node.name().startswith(SHAPING):
            return False
        node = node.next_functions[0][0] if node.next_functions else None
    return False


def _is_squashed(function: str, predicted: torch.Tensor) -> bool:
    """Whether logits are asked for and probabilities given; or logarithms of them, and the probabilities themselves."""
    if function not in (*_WANT_LOGITS, "nll_loss") or (predicted.dim() < 2 and function != _WANT_LOGITS[1]):
        return False
    few = predicted.detach()[:64].float()
    if few.numel() < _LEAST_ENTRIES or bool((few[0] < 0).any()):  # nearly all logits are known by the first row
        return False
    if bool((few < 0).any()) or bool((few > 1).any()):
        return False
    node, squashed = predicted.grad_fn, False
    for _ in range(_LEAST_ROWS):
        if node is None:
            break
        squashed = squashed or node.name() in _SQUASHING
        node = node.next_functions[0][0] if node.next_functions and node.name().startswith(SHAPING) else None
    if function == _WANT_LOGITS[1]:
        return squashed
    return squashed or (few.shape[1] > 1 and bool(((few.sum(1) - 1).abs() < 1e-3).all()))


def _bound(node: Any) -> str:
    """The activation that bounds a tensor, by the operation that made it, but for its shape."""
    for _ in range(_LEAST_ROWS):
        if node is None or node.name() in _BOUNDS or not node.name().startswith(SHAPING):
            break
        node = node.next_functions[0][0] if node.next_functions else None
    return "" if node is None else _BOUNDS.get(node.name(), "")


def _wrong_dimension(function: str, predicted: torch.Tensor) -> int | None:
    """Over which dimension the probabilities of a loss were normalised, if not over the classes: those are the second
    of (N, C, …)."""
    node = predicted.grad_fn
    if node is not None and node.name() == "LogBackward0":
        node = node.next_functions[0][0]
    if function not in _OF_CLASSES or predicted.dim() < 2 or min(predicted.shape[:2]) < 2 or not is_softmax(node):
        return None
    over = dimension_of(node) % predicted.dim()
    return None if over == 1 else over


def _note_labels(call: LossCall, predicted: torch.Tensor, target: torch.Tensor, settings: dict[str, Any]) -> None:
    call.classes = int(predicted.shape[1 if predicted.dim() > 1 else 0])
    if target.is_floating_point() or not target.numel():
        return  # probabilities instead of labels
    labels = target.detach().reshape(-1)
    call.labels = labels.numel()
    kept = labels[labels != settings.get("ignore_index", -100)]
    call.ignored = 1 - kept.numel() / labels.numel()
    if not kept.numel():
        return
    few = kept[:: -(-kept.numel() // _MOST_LABELS)].cpu()
    values, counts = torch.unique(few, return_counts=True)
    shares = counts.double() / counts.sum()
    call.distinct, most = len(values), int(counts.argmax())
    call.common, call.common_share = int(values[most]), float(shares[most])
    # Frequencies in a sample have too little entropy, by this much (Miller and Madow).
    bias = (len(values) - 1) / (2 * int(counts.sum()))
    most_entropy = math.log(max(call.classes, len(values)))  # a small batch of even labels would be above it
    call.entropy = min(max(0.0, float(-(shares * shares.log()).sum())) + bias, most_entropy)


def _note_target(call: LossCall, target: torch.Tensor) -> None:
    flat = target.detach().reshape(-1)
    few = flat[:: -(-flat.numel() // _MOST_VALUES)].float().cpu()
    call.distinct = int(torch.unique(few).numel())
    if call.bound:
        beyond = few - few.clamp(*_REACH[call.bound])
        call.outside = float((beyond != 0).float().mean())
        # Of a constant target all deviations are zero.
        call.unreachable = float(beyond.square().mean() / few.var(correction=0).clamp(min=1e-12))
    if target.dim() > 1 and target.shape[-1] > 1:  # per column: several targets have a mean each
        rows = target.detach().flatten(0, -2)[:_MOST_VALUES].float().cpu()
        call.variance = float(rows.var(dim=0, correction=0).mean())
    else:
        call.variance = float(few.var(correction=0))
    if call.function.startswith("binary") and bool(((few >= 0) & (few <= 1)).all()):
        means = target.detach().double().flatten(0, -2).mean(0).cpu() if target.dim() > 1 else few.double().mean()[None]
        inside = means.clamp(1e-12, 1 - 1e-12)
        call.entropy = float(-(inside * inside.log() + (1 - inside) * (1 - inside).log()).mean())


def _agreement(function: str, predicted: torch.Tensor, target: torch.Tensor, settings: dict[str, Any]) -> float | None:
    """Whether predictions go with their own targets rather than with those of other samples, in standard errors.

    About a normal number where they have nothing to do with each other, however large the noise of the targets.
    """
    if function in _OF_CLASSES:
        if (
            predicted.dim() < 2
            or target.is_floating_point()
            or target.numel() * predicted.shape[1] != predicted.numel()
        ):
            return None
        most = min(_MOST_VALUES, max(_FEWEST_VALUES, _MOST_COMPARED // max(1, predicted.shape[1])))
        rows = predicted.movedim(1, -1).reshape(-1, predicted.shape[1])[:_MOST_VALUES]
        labels = target.reshape(-1)[:_MOST_VALUES]
        apart = -(-len(labels) // most) or 1  # of a vocabulary some positions tell enough
        rows, labels = rows[::apart], labels[::apart]
        kept = (labels != settings.get("ignore_index", -100)) & (labels >= 0) & (labels < rows.shape[1])
        each = _likelihoods(*((rows, labels) if bool(kept.all()) else (rows[kept], labels[kept])))
    elif predicted.shape == target.shape and predicted.dim() and predicted.numel() > 1:
        ours, theirs = (part.reshape(len(part), -1)[:_MOST_VALUES].float() for part in (predicted, target))
        each = ((ours - ours.mean(0)) * (theirs - theirs.mean(0))).sum(1)
    else:
        return None
    size = float(each.square().sum().sqrt())
    return float(each.sum()) / size if len(each) >= _LEAST_ENTRIES and 0 < size < float("inf") else None


def _likelihoods(rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The logarithm of the probability that each row of logits gives to its label, less the mean that all rows give.

    Part by part: with a vocabulary, those of all classes at once are as large as the largest tensor of the model.
    """
    # The mean is asked of labels alone, which may be few beside a vocabulary.
    asked = labels if len(labels) < rows.shape[1] else None
    own, everything = [], rows.new_zeros(rows.shape[1] if asked is None else len(asked), dtype=torch.float32)
    few = max(1, (_MOST_LOGITS if rows.is_cpu else _MOST_THERE) // max(1, rows.shape[1]))
    for part, theirs in zip(torch.split(rows, few), torch.split(labels, few), strict=True):
        logs = part.float().log_softmax(1)
        own.append(logs.gather(1, theirs[:, None])[:, 0])
        everything += (logs if asked is None else logs.index_select(1, asked)).sum(0)
    mean = everything / max(1, len(rows))
    return torch.cat(own) - (mean[labels] if asked is None else mean)


def _spread_shapes(predicted: torch.Tensor, target: torch.Tensor) -> list[list[int]]:
    """Both shapes as they were given, where their difference has more elements than either: (N, 1) against (N,).

    Or where the target has been spread before: (N, 1) against (N, N). What broadcasting spread has a stride of 0 there.
    """
    if predicted.dim() != target.dim():
        return []
    given = [
        [1 if stride == 0 else size for size, stride in zip(t.shape, t.stride(), strict=True)]
        for t in (predicted, target)
    ]
    both = [max(pair) for pair in zip(*given, strict=True)]
    rows = both[0] if both else 0
    spread_before = given == [[rows, 1], [rows, rows]] and rows > _LEAST_ROWS
    return given if spread_before or all(each != both for each in given) else []


def is_slice(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a small part of another one, as `data[:32]` is."""
    if tensor._base is None or tensor.layout is not torch.strided:
        return False
    return tensor._base.numel() >= _SLICED * max(1, tensor.numel())


def fingerprint(tensors: Iterable[torch.Tensor]) -> tuple[int | None, int]:
    """A number that tells batches apart, and how many samples the batch has. None for a batch without tensors."""
    value, samples, known = 0, 0, False
    for tensor in tensors:
        if tensor.dim() == 0 or not tensor.numel() or tensor.layout is not torch.strided or tensor.is_complex():
            continue
        flat = tensor.detach().reshape(-1)
        few = flat[:: max(1, flat.numel() // _FINGERPRINT)][:_FINGERPRINT].double().cpu()
        value = zlib.crc32(few.numpy().tobytes(), value)
        samples, known = max(samples, tensor.shape[0]), True
    return (value if known else None), samples


def padding(tensors: Iterable[torch.Tensor]) -> tuple[int | None, float]:
    """Of a batch of tokens, the one that ends most rows, and the share of tokens in runs of it at the end of rows."""
    most: tuple[int | None, float] = (None, 0.0)
    for tensor in tensors:
        if tensor.dim() == 2 and not tensor.is_floating_point() and tensor.dtype is not torch.bool:
            rows = tensor.detach()[:256].cpu()
            if rows.shape[1] < _LEAST_ROWS or not len(rows):
                continue
            last = int(rows[:, -1].mode().values)
            run = (rows == last).flip(1).long().cumprod(1).sum(1)
            share = float(run.sum()) / rows.numel()
            if (
                float((run >= 2).float().mean()) >= 0.5
                and share > most[1]
                and (last not in (0, 1) or not _is_mask(rows))
            ):
                most = last, share
    return most


def _is_mask(rows: torch.Tensor) -> bool:
    return bool(((rows == 0) | (rows == 1)).all())


def column_spread(tensors: Iterable[torch.Tensor]) -> float | None:
    """Of the first table of numbers: the largest deviation of a column over a small one (the tenth percentile)."""
    for tensor in tensors:
        if tensor.is_floating_point() and tensor.dim() == 2 and tensor.layout is torch.strided:
            rows = min(1024, max(_FEWEST_ROWS, _MOST_ENTRIES // max(1, tensor.shape[1])))
            few = tensor.detach()[:rows].double().cpu()
            deviations = few.std(dim=0, correction=0) if len(few) >= _LEAST_ENTRIES else few.new_empty(0)
            known = deviations[deviations > 0].sort().values
            return float(known[-1] / known[len(known) // 10]) if len(known) >= 2 else None
    return None
