"""Measurements by training, alone or beside a healthy twin."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from validation.case import Case, Evidence, Proof, Setup, call, costly
from validation.evidence.signal import judged, watching


@dataclass
class Run:
    """What training did."""

    losses: list[float]
    largest_update: float
    touched: set[str]
    finite: bool

    def fall(self) -> float:
        """How much of the first loss is gone at the end, each averaged over a few steps."""
        k = max(1, min(5, len(self.losses) // 4))
        first, last = sum(self.losses[:k]) / k, sum(self.losses[-k:]) / k
        return 1 - last / first if first > 0 else (first - last) / max(abs(first), 1e-12)


def train(setup: Setup, steps: int, optimizer: torch.optim.Optimizer) -> Run:
    """Train and watch the loss, the largest relative update of a matrix, and which parameters get a gradient."""
    run = Run([], 0.0, set(), True)
    waiting = {name: p for name, p in setup.model.named_parameters() if p.requires_grad}
    matrices = [p for p in waiting.values() if p.dim() >= 2 and p.norm() > 0]
    for _ in range(steps):
        optimizer.zero_grad()
        loss = setup.loss_fn(call(setup.model, setup.input_fn()))
        loss.backward()
        run.losses.append(loss.item())
        touched = {name for name, p in waiting.items() if has_gradient(p)}
        run.touched |= touched
        waiting = {name: p for name, p in waiting.items() if name not in touched}
        before = [p.detach().clone() for p in matrices]
        optimizer.step()
        if matrices:
            moved = torch._foreach_norm(torch._foreach_sub([p.detach() for p in matrices], before))
            shares = [(m / n.clamp_min(1e-12)).float() for m, n in zip(moved, torch._foreach_norm(before), strict=True)]
            run.largest_update = max(run.largest_update, torch.stack(shares).max().item())
        if not (math.isfinite(run.losses[-1]) and math.isfinite(run.largest_update)):
            run.finite = False
            break
    return run


def has_gradient(parameter: nn.Parameter) -> bool:
    """Whether a gradient came that is finite and not all zero."""
    gradient = parameter.grad
    if gradient is not None and gradient.is_sparse:
        gradient = gradient.coalesce().values()
    return gradient is not None and bool(gradient.isfinite().all() and gradient.any())


def adam(setup: Setup, lr: float) -> torch.optim.Optimizer:
    """Adam over what is trainable."""
    return torch.optim.Adam([p for p in setup.model.parameters() if p.requires_grad], lr=lr)


def trains(lr: float = 1e-3, steps: int = 40, fall: float = 0.1, sgd: bool = False, most_dead: float = 1 / 3) -> Proof:
    """Healthy: the loss falls, all stays finite, every trainable tensor gets a gradient, no ReLU layer is dead.

    Trains with the set-up's own optimizer if it has one. `most_dead=1` for what shows too few samples to call it dead.
    """

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        trainable = [p for p in setup.model.parameters() if p.requires_grad]
        dying = worst_dead_share(case.make(seed))
        optimizer = torch.optim.SGD(trainable, lr=lr) if sgd else adam(setup, lr)
        run = train(setup, steps, setup.optimizer or optimizer)
        names = {name for name, p in setup.model.named_parameters() if p.requires_grad}
        untouched = sorted(names - run.touched)
        holds = run.finite and run.fall() >= fall and not untouched and dying <= most_dead
        text = f"loss falls by {run.fall():.0%}, finite {run.finite}, up to {dying:.0%} dead"
        return Evidence(holds, text + (f", no gradient in {untouched}" if untouched else ""))

    return costly(proof)


def batch_size(batch: Any) -> int:
    """Samples in a batch."""
    while not isinstance(batch, Tensor):
        batch = next(iter(batch.values() if isinstance(batch, dict) else batch))
    return max(1, len(batch))


@torch.no_grad()
def worst_dead_share(setup: Setup, samples: int = 512) -> float:
    """Largest share of dead units over the ReLU modules of a model; channels count as units."""
    rectifiers = [(path, m) for path, m in setup.model.named_modules() if isinstance(m, (nn.ReLU, nn.ReLU6))]
    if not rectifiers:
        return 0.0
    fired: dict[str, Tensor] = {}

    def note(path: str, _module: nn.Module, _inputs: Any, output: Tensor) -> None:
        others = [0, 2, 3] if output.dim() == 4 else list(range(output.dim() - 1))
        active = (output > 0).any(dim=0) if len(others) == 1 else (output > 0).sum(dim=others) > 0
        fired[path] = active | fired.get(path, torch.zeros_like(active))

    with watching(rectifiers, note):
        for _ in range(1 + samples // batch_size(setup.input_fn())):
            call(setup.model, setup.input_fn())
    return max((1 - active.double().mean().item() for active in fired.values()), default=0.0)


def converged(below: float) -> Proof:
    """Healthy and finished: the loss is low and stays so under small further steps."""

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        run = train(setup, 20, adam(setup, 1e-4))
        loss = sum(run.losses[-5:]) / 5
        return judged(run.finite and loss < below, "loss {:.2e} and staying", loss)

    return costly(proof)


def diverges(factor: float = 3.0) -> Proof:
    """With its own optimizer the loss rises well above its start or stops being finite."""

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        run = train(setup, setup.steps, setup.optimizer)
        rise = max(run.losses[1:], default=math.inf) / run.losses[0]
        holds = not run.finite or rise > factor
        return judged(holds, "loss rises {:.1e} times, largest update {:.1e} of the weight", rise, run.largest_update)

    return proof


def does_not_move(update: float = 1e-5, steps: int = 20) -> Proof:
    """With its own optimizer neither weights nor loss change to speak of, though the twin's loss falls."""

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        run = train(setup, steps, setup.optimizer)
        # Batches differ, so a fall is only told from their noise on one batch: the weights say it more plainly.
        holds = run.largest_update < update and gradient_norm(case.make(seed)) > 0
        return judged(holds, "largest update {:.1e} of the weight", run.largest_update)

    return proof


def gradient_norm(setup: Setup) -> float:
    """Norm over all parameters on one batch."""
    setup.loss_fn(call(setup.model, setup.input_fn())).backward()
    return math.sqrt(sum(p.grad.double().square().sum().item() for p in setup.model.parameters() if p.grad is not None))


def learns_less(steps: int = 60, lr: float = 3e-3, by: float = 0.3) -> Proof:
    """Trained alike, the twin without the fault has less left of its first loss, by a good part of it."""

    def proof(case: Case, seed: int) -> Evidence:
        ends = []
        for each in (case, case.control):
            setup = each.make(seed)
            ends.append(1 - train(setup, steps, adam(setup, lr)).fall())
        text = "after {} steps {:.0%} of the first loss is left, of the twin's {:.0%}"
        return judged(ends[0] - ends[1] > by, text, steps, *ends)

    return costly(proof)


def gradient_norms_spread(times: float, steps: int | None = None) -> Proof:
    """Between batches, at the same weights or in training, the gradient norm spikes far above its median."""

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        norms = []
        for _ in range(steps or setup.steps):
            setup.model.zero_grad()
            norms.append(gradient_norm(setup))
            if setup.optimizer:
                setup.optimizer.step()
        norms = [n if math.isfinite(n) else math.inf for n in norms]
        ratio = max(norms) / sorted(norms)[len(norms) // 2]
        return judged(ratio > times, "largest / median gradient norm {:.1e}", ratio)

    return proof


def bounces(case: Case, seed: int) -> Evidence:
    """With its own optimizer each gradient points against the one before."""
    setup = case.make(seed)
    parameters = [p for p in setup.model.parameters() if p.requires_grad]
    angles, last = [], None
    for _ in range(setup.steps):
        setup.optimizer.zero_grad()
        setup.loss_fn(call(setup.model, setup.input_fn())).backward()
        now = torch.cat([p.grad.flatten() for p in parameters])
        if last is not None:
            angles.append(torch.cosine_similarity(now, last, dim=0).item())
        last = now
        setup.optimizer.step()
    late = angles[len(angles) // 2 :]
    return judged(sum(late) / len(late) < -0.3, "mean cosine of successive gradients {:.2f}", sum(late) / len(late))
