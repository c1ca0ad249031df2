"""Ways to run the same optimizer step in one process, each with the gradients that an fp64 copy of it gives.

A way is a function `way(face)`: it trains for a few steps, tells the face when backward is done (`face.ready`) and when
a step is about to be taken (`face.step`), and yields the reference gradients of each step by name. The usual loop over
some model is a `Setup`, which other loops than ours can run too.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

STEPS = 3


class Gradients(dict[str, torch.Tensor]):
    """By parameter; `outputs` has the norm of the gradient at the output of each block, `None` where none arrives."""

    outputs: list[float | None]


class Net(nn.Module):
    """Three blocks and a head, whose forward may be checkpointed."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.head = nn.Linear(6, 2)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = torch.tanh(block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant))
        return self.head(x)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


def batch(step: int, rows: int = 8) -> torch.Tensor:
    return torch.randn(rows, 6, generator=torch.Generator().manual_seed(step))


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Modules in the order of the forward pass, whose outputs a gain monitor can look at."""
    if hasattr(model, "blocks"):
        return list(model.blocks)
    return [child for _, child in model.named_modules() if not list(child.children())]


def in_fp64(model: nn.Module, loss: Callable[[nn.Module], torch.Tensor]) -> Gradients:
    """The gradients of a copy in double precision; parameters that get none are left out."""
    twin = copy.deepcopy(model).double()
    twin.zero_grad()
    return gradients_in(twin, loss)


def gradients_in(twin: nn.Module, loss: Callable[[nn.Module], torch.Tensor]) -> Gradients:
    outputs: dict[int, torch.Tensor] = {}

    def keep(module: nn.Module, _inputs, output: torch.Tensor) -> None:
        if output.requires_grad:
            outputs[id(module)] = output
            output.retain_grad()

    twin.reentrant = None  # a checkpoint computes outputs twice: the reference does without
    blocks = blocks_of(twin)
    for block in blocks:
        block.register_forward_hook(keep)
    loss(twin).backward()
    found = {name: p.grad.to_dense().clone() for name, p in twin.named_parameters() if p.grad is not None}
    gradients = Gradients(found)
    grads = [outputs[id(block)].grad if id(block) in outputs else None for block in blocks]
    gradients.outputs = [None if grad is None else grad.norm().item() for grad in grads]
    return gradients


def loop(
    face,
    model: nn.Module,
    loss: Callable[[nn.Module, int], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    *,
    trained: nn.Module | None = None,
    parts: int = 1,
    compiled_step: bool = False,
) -> Iterator[Gradients]:
    """The usual loop. `trained` is what is called, where that is another object than what holds the weights."""
    step_of = torch.compile(optimizer.step, backend="eager") if compiled_step else optimizer.step
    called = model if trained is None else trained
    with face.over(model, [optimizer]):
        for step in range(STEPS):
            expected = in_fp64(model, lambda twin, step=step: loss(twin, step))
            if parts > 1:  # each backward has output gradients of its own: those of the last are seen last
                expected.outputs = in_fp64(model, lambda twin, step=step: part_of(twin, step, parts, parts - 1)).outputs
            optimizer.zero_grad()
            for part in range(parts):
                (loss(called, step) if parts == 1 else part_of(called, step, parts, part)).backward()
            face.ready()
            face.step(model, optimizer)
            step_of()
            yield expected


def part_of(model: nn.Module, step: int, parts: int, part: int) -> torch.Tensor:
    x = batch(step).chunk(parts)[part].to(next(model.parameters()).dtype)
    return loss_of(model, x) / parts


def default(model: nn.Module, step: int) -> torch.Tensor:
    return loss_of(model, batch(step).to(next(model.parameters()).dtype))


def sgd(model: nn.Module, **settings) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, **settings)


@dataclass(frozen=True)
class Setup:
    """The usual loop: a model, its loss of a step, how many parts a step is accumulated from, what is compiled."""

    make: Callable[[], nn.Module]
    loss: Callable[[nn.Module, int], torch.Tensor] = default
    parts: int = 1
    compiled: bool = False
    compiled_step: bool = False
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd

    def __call__(self, face) -> Iterator[Gradients]:
        model = seeded(self.make)
        trained = torch.compile(model, backend="aot_eager") if self.compiled else None
        settings = {"parts": self.parts, "compiled_step": self.compiled_step}
        return loop(face, model, self.loss, self.optimizer(model), trained=trained, **settings)


def needing_inputs(model: nn.Module, step: int) -> torch.Tensor:
    """Checkpointing of the older kind needs an input that requires a gradient."""
    return loss_of(model, batch(step).to(next(model.parameters()).dtype).requires_grad_())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(9, 6), nn.Linear(6, 9, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.tokens(x))


def words(step: int) -> torch.Tensor:
    return torch.randint(9, (8, 4), generator=torch.Generator().manual_seed(step))


def next_words(model: nn.Module, step: int) -> torch.Tensor:
    return F.cross_entropy(model(words(step)).flatten(0, 1), words(step).flatten())


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(40, 6, sparse=True), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.tokens(x))


class LowRank(nn.Module):
    """A frozen layer with a trained low-rank addition whose second factor starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 2, bias=False), nn.Linear(2, 6, bias=False)
        self.frozen.requires_grad_(False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x) + self.b(self.a(x))


class Experts(nn.Module):
    """The expert of a step is the only one that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.experts, self.head = nn.ModuleList(nn.Linear(6, 6) for _ in range(3)), nn.Linear(6, 2)
        self.chosen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.experts[self.chosen](x)))


def chosen_in_turn(model: nn.Module, step: int) -> torch.Tensor:
    model.chosen = step % 2
    return default(model, step)


def in_bf16(model: nn.Module, step: int) -> torch.Tensor:
    if next(model.parameters()).dtype == torch.float64:
        return default(model, step)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return default(model, step)


SETUPS = {
    "plain": Setup(Net),
    "accumulation": Setup(Net, parts=4),
    "autocast": Setup(Net, in_bf16),
    "checkpointing": Setup(lambda: Net(reentrant=False)),
    "reentrant_checkpointing": Setup(lambda: Net(reentrant=True), needing_inputs),
    "compiled_model": Setup(Net, compiled=True),
    "compiled_step": Setup(Net, compiled_step=True),
    "tied_weights": Setup(Tied, next_words),
    "sparse_embedding": Setup(Sparse, lambda model, step: model(words(step)).square().mean()),
    "frozen_with_low_rank": Setup(LowRank),
    "idle_experts": Setup(Experts, chosen_in_turn),
}


def scaled(face, *, fused: bool, unscale: bool, overflow: int | None = None) -> Iterator[Gradients | None]:
    """With a GradScaler; `None` for the step whose gradients overflowed."""
    model = seeded(Net)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with face.over(model, [optimizer], scaler):
        for step in range(STEPS):
            expected = in_fp64(model, lambda twin, step=step: default(twin, step))
            optimizer.zero_grad()
            scaler.scale(default(model, step)).backward()
            if step == overflow:
                model.head.weight.grad[0, 0] = torch.inf
            face.ready()
            if unscale:
                scaler.unscale_(optimizer)
            face.step(model, optimizer, scaler)
            scaler.step(optimizer)
            scaler.update()
            yield None if step == overflow else expected


def optimizer_in_backward(face):
    """Each parameter has its own optimizer, which steps and frees the gradient within backward."""
    model = seeded(Net)
    named = dict(model.named_parameters())
    optimizers = {name: torch.optim.SGD([p], lr=0.1) for name, p in named.items()}

    def step_now(parameter: torch.Tensor) -> None:
        name = next(name for name, p in named.items() if p is parameter)
        face.step(model, optimizers[name])
        optimizers[name].step()
        face.collect()
        optimizers[name].zero_grad()

    handles = [p.register_post_accumulate_grad_hook(step_now) for p in named.values()]
    with face.over(model, list(optimizers.values())):
        for step in range(STEPS):
            expected = in_fp64_without_hooks(model, step)
            default(model, step).backward()
            face.ready()
            yield expected
    for handle in handles:
        handle.remove()


def in_fp64_without_hooks(model: nn.Module, step: int) -> Gradients:
    twin = seeded(Net).double()
    twin.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
    return gradients_in(twin, lambda net: default(net, step))


class Players(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = nn.Linear(6, 6), nn.Linear(6, 1)


def two_optimizers(face):
    """Critic and generator in turn; the backward of each leaves gradients in the other that are not of its step."""
    model = seeded(Players)
    makers = {"critic": sgd(model.critic), "generator": sgd(model.generator)}

    def loss(players: nn.Module, which: str, step: int) -> torch.Tensor:
        made = players.generator(batch(step).to(players.critic.weight.dtype))
        return players.critic(made).mean() * (1 if which == "critic" else -1)

    with face.over(model, list(makers.values())):
        for step in range(STEPS):
            for which, optimizer in makers.items():
                expected = in_fp64(model, lambda twin, w=which, s=step: loss(twin, w, s))
                model.zero_grad()
                loss(model, which, step).backward()
                face.ready()
                face.step(model, optimizer)
                optimizer.step()
                of_step = Gradients({name: g for name, g in expected.items() if name.startswith(which)})
                of_step.outputs = expected.outputs
                yield of_step


def closure(face):
    """LBFGS evaluates several times; the step starts from the first evaluation."""
    model = seeded(Net)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
    with face.over(model, [optimizer]):
        for step in range(STEPS):
            expected = in_fp64(model, lambda twin, step=step: default(twin, step))

            evaluated: list[int] = []

            def evaluate(step=step, evaluated=evaluated) -> torch.Tensor:
                optimizer.zero_grad()
                value = default(model, step)
                value.backward()
                if not evaluated:
                    face.ready()
                evaluated.append(step)
                return value

            optimizer.step(evaluate)
            yield expected


def functional(face):
    """Gradients as values, by `torch.func`; the step is told by hand."""
    model = seeded(Net)
    with face.over(model, []):
        for step in range(STEPS):
            expected = in_fp64(model, lambda twin, step=step: default(twin, step))
            weights = {name: p.detach() for name, p in model.named_parameters()}

            def loss(values: Gradients, step=step) -> torch.Tensor:
                return torch.func.functional_call(model, values, (batch(step),)).square().mean()

            gradients = torch.func.grad(loss)(weights)
            for name, p in model.named_parameters():
                p.grad = gradients[name]
            face.step(model, None)
            with torch.no_grad():
                for name, p in model.named_parameters():
                    p -= 0.1 * gradients[name]
            yield expected


def _scaler_ways() -> dict[str, Callable]:
    ways = {}
    for fused in (False, True):
        for unscale in (False, True):
            for overflow in (None, 1):
                name = f"scaler_{'fused' if fused else 'unfused'}"
                name += "_unscaled" * unscale + "_overflow" * (overflow is not None)
                ways[name] = lambda face, f=fused, u=unscale, o=overflow: scaled(face, fused=f, unscale=u, overflow=o)
    return ways


WAYS: dict[str, Callable] = (
    SETUPS
    | {way.__name__: way for way in (optimizer_in_backward, two_optimizers, closure, functional)}
    | _scaler_ways()
)
