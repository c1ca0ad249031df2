"""What the sequence cases of the half `common` share: tasks that look like the usual ones, and some measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Case, Evidence, Proof, Setup, call, costly
from validation.evidence.signal import first_tensor, judged, slope_share, trace, watching
from validation.evidence.training import train
from validation.setups import live
from validation.tasks import Task, token_loss
from validation.tasks.task import drawn_once

# --- words

NOUNS, VERBS = 8, 6
WORDS = 4 + 2 * NOUNS + 2 * VERBS
"""Two articles, a full stop, "and", nouns and verbs of either number."""


def sentences(seed: int, length: int = 20, batch: int = 16) -> Task:
    """Article, noun, verb, article, noun, stop, over and over; article, noun and verb agree in number."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        count = length // 6 + 2
        many = torch.randint(2, (2, batch, count), generator=random)
        nouns = torch.randint(NOUNS, (2, batch, count), generator=random)
        verb = torch.randint(VERBS, (batch, count), generator=random)
        subject, thing = (4 + nouns[i] + NOUNS * many[i] for i in range(2))
        does = 4 + 2 * NOUNS + verb + VERBS * many[0]
        stop = 2 + torch.randint(2, (batch, count), generator=random)
        text = torch.stack([many[0], subject, does, many[1], thing, stop], dim=-1).flatten(1)
        start = torch.randint(6, (batch, 1), generator=random)
        window = text.gather(1, start + torch.arange(length + 1))
        return window[:, :-1], window[:, 1:]

    return Task(seed, draw, token_loss)


def invoices(seed: int, length: int = 24, kinds: int = 5, digits: int = 10, batch: int = 32) -> Task:
    """A currency, then digits, then a question mark: which currency was it? Needs a lag of length - 1."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        money = torch.randint(kinds, (batch,), generator=random)
        amount = kinds + torch.randint(digits, (batch, length - 2), generator=random)
        return torch.cat([money[:, None], amount, torch.full((batch, 1), kinds + digits)], dim=1), money

    return Task(seed, draw, F.cross_entropy)


INVOICE = 16
"""Tokens of an invoice: five currencies, ten digits, the question mark."""


def modes(seed: int, length: int = 20, kinds: int = 3, words: int = 8, labels: int = 4, batch: int = 32) -> Task:
    """A first token says by which table all the others are labelled; the last quarter counts."""
    table = torch.randint(labels, (kinds, words), generator=drawn_once(seed, 4000))
    ask = 3 * length // 4

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        mode = torch.randint(kinds, (batch, 1), generator=random)
        tokens = torch.randint(words, (batch, length - 1), generator=random)
        return torch.cat([words + mode, tokens], dim=1), torch.cat([mode, table[mode, tokens]], dim=1)

    return Task(seed, draw, lambda z, t: token_loss(z[:, ask:], t[:, ask:]))


def spam(seed: int, words: int = 30, length: int = 14, batch: int = 32, shortest: int = 4) -> Task:
    """Mails of unlike length, padded with 0; words above two thirds of the list are spam."""

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        lengths = torch.randint(shortest, length + 1, (batch,), generator=random)
        target = torch.randint(2, (batch,), generator=random)
        tokens = torch.randint(1, 2 * words // 3, (batch, length), generator=random)
        bad = torch.randint(2 * words // 3, words, (batch, 2), generator=random)
        tokens[:, :2] = torch.where(target[:, None] == 1, bad, tokens[:, :2])
        tokens = tokens.masked_fill(torch.arange(length) >= lengths[:, None], 0)
        return (tokens, lengths), target

    return Task(seed, draw, F.cross_entropy)


def entities(seed: int, words: int = 20, length: int = 14, batch: int = 24) -> Task:
    """Begin, inside, outside: a name begins at a title (a low word) and goes on while words are even."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(words, (batch, length), generator=random)
        label, inside = torch.zeros_like(tokens), torch.zeros(batch, dtype=torch.bool)
        for t in range(length):
            title, even = tokens[:, t] < 5, tokens[:, t] % 2 == 0
            label[:, t] = torch.where(title, 1, torch.where(inside & even, 2, 0))
            inside = title | (inside & even)
        return tokens, label

    return Task(seed, draw, token_loss)


def dates(seed: int, length: int = 5, words: int = 9, batch: int = 32) -> Task:
    """Rewrite a row of tokens: shifted by one place round the end and in another code, under teacher forcing."""
    code = torch.randperm(words, generator=drawn_once(seed, 4100))

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        source = torch.randint(words, (batch, length), generator=random)
        answer = code[source.roll(1, dims=1)]
        return (source, torch.cat([torch.full((batch, 1), words), answer[:, :-1]], dim=1)), answer

    return Task(seed, draw, token_loss)


def phonebook(seed: int, names: int = 8, pairs: int = 4, batch: int = 32) -> Task:
    """Names and numbers in turn, then a name: say its number. Tokens below `names` are names, above are numbers."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        who = torch.rand(batch, names, generator=random).argsort(dim=1)[:, :pairs]
        number = torch.randint(names, (batch, pairs), generator=random)
        asked = torch.randint(pairs, (batch, 1), generator=random)
        text = torch.stack([who, names + number], dim=2).flatten(1)
        return torch.cat([text, who.gather(1, asked)], dim=1), number.gather(1, asked)[:, 0]

    return Task(seed, draw, F.cross_entropy)


def questions(seed: int, kinds: int = 6, length: int = 8, dim: int = 12, batch: int = 32) -> Task:
    """Facts of a subject and a value each, and a question for a subject; inputs are the question and the facts."""
    fixed = drawn_once(seed, 4200)
    subjects, values = (torch.randn(n, dim, generator=fixed) for n in (length, kinds))

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        value = torch.randint(kinds, (batch, length), generator=random)
        order = torch.rand(batch, length, generator=random).argsort(dim=1)
        facts = torch.cat([subjects[order], values[value]], dim=-1)
        asked = torch.randint(length, (batch, 1), generator=random)
        question = subjects[order.gather(1, asked)]
        return (question, facts), value.gather(1, asked)[:, 0]

    return Task(seed, draw, F.cross_entropy)


# --- measurements over time


def motors(seed: int, length: int = 24, batch: int = 24) -> Task:
    """Two phases of a motor that speeds up; every step predicts the next."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        begin, pace, gain = torch.rand(3, batch, 1, generator=random)
        t = torch.arange(length + 1.0)
        angle = 6.3 * begin + (0.3 + 0.3 * pace) * t + 0.006 * gain * t * t
        x = torch.stack([angle.sin(), (angle + 2.1).sin()], dim=-1)
        x = x + 0.05 * torch.randn(x.shape, generator=random)
        return x[:, :-1], x[:, 1:]

    return Task(seed, draw, F.mse_loss)


def pulses(seed: int, length: int = 20, batch: int = 32, dim: int = 4) -> Task:
    """Two strengths are shown at the first step, noise follows; at the end, what were they?"""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randn(batch, 2, generator=random)
        x = 0.2 * torch.randn(batch, length, dim, generator=random)
        x[:, 0, :2] = target
        return x, target

    return Task(seed, draw, F.mse_loss)


def alarms(seed: int, kinds: int = 4, length: int = 18, batch: int = 32) -> Task:
    """Which of some machines makes this noise: each has a rhythm on two channels."""
    fixed = drawn_once(seed, 4300)
    tune = torch.randn(kinds, 6, 2, generator=fixed)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(kinds, (batch,), generator=random)
        place = (torch.arange(length) + torch.randint(6, (batch, 1), generator=random)) % 6
        x = tune[target[:, None], place]
        return x + 0.4 * torch.randn(x.shape, generator=random), target

    return Task(seed, draw, F.cross_entropy)


def visits(seed: int, length: int = 14, batch: int = 32) -> Task:
    """What is measured at the visits of a patient, and how long after the last one, in days; at the end, the first."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randn(batch, 2, generator=random)
        x = 0.2 * torch.randn(batch, length, 3, generator=random)
        x[:, 0, :2] = target
        x[..., 2] = 0.5 + torch.rand(batch, length, generator=random)
        return x, target

    return Task(seed, draw, F.mse_loss)


# --- pictures, sets, graphs


def segments(seed: int, batch: int = 24, size: int = 12, noise: float = 0.5, classes: int = 8) -> Task:
    """Pictures of the digits of a pocket calculator, brighter or darker, under noise."""
    lit = ["1110111", "0010010", "1011101", "1011011", "0111010", "1101011", "1101111", "1010010"]
    signs = torch.zeros(len(lit), 1, size, size)
    bars = [
        (slice(1, 3), slice(3, 9)),
        (slice(2, 6), slice(2, 4)),
        (slice(2, 6), slice(8, 10)),
        (slice(5, 7), slice(3, 9)),
        (slice(6, 10), slice(2, 4)),
        (slice(6, 10), slice(8, 10)),
        (slice(9, 11), slice(3, 9)),
    ]
    for i, which in enumerate(lit):
        for on, (row, column) in zip(which, bars, strict=True):
            signs[i, 0, row, column] += float(on)
    signs = signs.clamp(max=1.0)[:classes]

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=random)
        bright = 1.0 + 0.5 * torch.rand(batch, 1, 1, 1, generator=random)
        return signs[target] * bright + noise * torch.randn(batch, 1, size, size, generator=random), target

    return Task(seed, draw, F.cross_entropy)


def baskets(seed: int, items: int = 8, batch: int = 32, kinds: int = 10) -> Task:
    """What a basket costs: items by number, each with its price; one that is there twice counts half."""
    price = 0.5 * torch.randn(kinds, generator=drawn_once(seed, 4400))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randint(kinds, (batch, items), generator=random)
        twice = (x[:, :, None] == x[:, None]).sum(dim=-1) > 1
        return x, (price[x] * torch.where(twice, 0.5, 1.0)).sum(dim=1, keepdim=True)

    return Task(seed, draw, F.mse_loss)


def citations(seed: int, nodes: int = 16, dim: int = 12, classes: int = 4, batch: int = 8) -> Task:
    """Papers that cite mostly their own field, which each shows faintly. Inputs are features and who cites whom."""
    codes = torch.randn(classes, dim, generator=drawn_once(seed, 4500))

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        field = torch.randint(classes, (batch, nodes), generator=random)
        same = field[:, :, None] == field[:, None]
        chance = torch.where(same, 0.6, 0.08)
        link = torch.rand(batch, nodes, nodes, generator=random) < chance
        link = link | link.transpose(1, 2) | torch.eye(nodes).bool()
        return (codes[field] + 1.5 * torch.randn(batch, nodes, dim, generator=random), link), field

    return Task(seed, draw, token_loss)


def boxes(seed: int, batch: int = 24, size: int = 12) -> Task:
    """A picture with three bright spots, one in each third from the left; where is each, up or down?"""
    line = torch.arange(size).float()

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        high = torch.rand(batch, 3, generator=random)
        x = 0.2 * torch.randn(batch, 1, size, size, generator=random)
        for i in range(3):
            column = torch.exp(-((line - (1.5 + 4 * i)) ** 2))
            row = torch.exp(-((line - (1 + 9 * high[:, i : i + 1])) ** 2))
            x[:, 0] += 2 * row[:, :, None] * column
        return x, 2 * high - 1

    return Task(seed, draw, F.mse_loss)


# --- set-ups


def told(model: nn.Module, task: Task, lag: int, **more) -> Setup:
    """A user who knows how far back the answer lies."""
    return live(model, task, hints={"required_lag": lag}, **more)


class Last(nn.Module):
    """An embedding or a projection, a recurrent module of any kind, an answer from its last state."""

    def __init__(self, enter: nn.Module, rnn: nn.Module, features: int, out: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.enter, self.rnn = enter, rnn
        self.drop, self.head = nn.Dropout(dropout), nn.Linear(features, out)

    def forward(self, x: Tensor) -> Tensor:
        """Answer at the end."""
        states = self.rnn(self.enter(x))
        states = states[0] if isinstance(states, tuple) else states
        return self.head(self.drop(states[:, -1]))


class Each(Last):
    """The same with an answer at every step."""

    def forward(self, x: Tensor) -> Tensor:
        """Answer at every step."""
        states = self.rnn(self.enter(x))
        states = states[0] if isinstance(states, tuple) else states
        return self.head(self.drop(states))


# --- measurements


def ends_worse(times: float = 1.2) -> Proof:
    """Each under its own optimizer, the loss ends so many times above that of the twin, or is lost."""

    def proof(case: Case, seed: int) -> Evidence:
        ends = []
        for each in (case, case.control):
            setup = each.make(seed)
            losses = train(setup, setup.steps, setup.optimizer).losses
            ends.append(sum(losses[-8:]) / len(losses[-8:]))
        return judged(not ends[0] <= times * ends[1], "the loss ends at {:.3g}, that of the twin at {:.3g}", *ends)

    return costly(proof)


def through_time(path: str, *, below: float = 0, above: float = 0, first: int = 0) -> Proof:
    """The loss's gradient of what a module hands on, at its first step (or step `first`) by that at the last."""

    def proof(case: Case, seed: int) -> Evidence:
        setup, kept = case.make(seed), []

        def keep(_path: str, _module: nn.Module, _inputs: object, output: object) -> None:
            tensor = first_tensor(output)
            tensor.retain_grad()
            kept.append(tensor)

        with watching([(path, setup.model.get_submodule(path))], keep):
            setup.loss_fn(call(setup.model, setup.input_fn())).backward()
        early, late = (kept[0].grad[:, t].double().norm().item() for t in (first, -1))
        ratio = early / late if late else math.nan
        holds = ratio < below if below else not ratio <= above
        return judged(holds, "gradient at that step / the last {:.1e}", ratio)

    return proof


def grows(path: str, above: float) -> Proof:
    """What a recurrent module hands on is so many times larger at its last step."""

    def proof(case: Case, seed: int) -> Evidence:
        setup, kept = case.make(seed), []
        with watching([(path, setup.model.get_submodule(path))], lambda *seen: kept.append(first_tensor(seen[-1]))):
            call(setup.model, setup.input_fn())
        states = kept[0].detach().double()
        ratio = (states[:, -1].norm() / states[:, 0].norm()).item()
        return judged(not ratio <= above, "states at the last / first step {:.1e}", ratio)

    return proof


def alike(path: str, below: float = 0.1) -> Proof:
    """Behind a module the tokens of a sequence are nearly one vector; what it hands on the last time counts."""

    def proof(case: Case, seed: int) -> Evidence:
        setup, kept = case.make(seed), []
        with (
            torch.no_grad(),
            watching([(path, setup.model.get_submodule(path))], lambda *seen: kept.append(first_tensor(seen[-1]))),
        ):
            call(setup.model, setup.input_fn())
        x = kept[-1].double()
        rest = ((x - x.mean(dim=1, keepdim=True)).norm() / x.norm()).item()
        return judged(rest < below, "share of the tokens that is not common to all {:.1e}", rest)

    return proof


def weights_agree(*paths: str, below: float = 1e-4) -> Proof:
    """Several modules that should differ have the same parameters, however long they train."""

    def proof(case: Case, seed: int) -> Evidence:
        model = case.make(seed).model
        first, *others = (
            torch.cat([p.detach().flatten() for p in model.get_submodule(path).parameters()]) for path in paths
        )
        difference = max((other - first).abs().max().item() for other in others)
        return judged(difference < below, "parameters differ by {:.1e}", difference)

    return proof


def small_gradients(paths: Sequence[str], against: str, below: float) -> Proof:
    """The gradient of the parameters of some modules is small beside that of another module's."""

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        setup.loss_fn(call(setup.model, setup.input_fn())).backward()

        def norm(path: str) -> float:
            found = [p.grad.norm() for p in setup.model.get_submodule(path).parameters() if p.grad is not None]
            return torch.stack(found).norm().item() if found else 0.0

        ratio = max(norm(path) for path in paths) / max(norm(against), 1e-30)
        return judged(ratio < below, "gradient there / elsewhere {:.1e}", ratio)

    return proof


def flat(path: str, kind: str, at_least: float = 0.6) -> Proof:
    """What a module hands on, behind a sigmoid or tanh, lies where that is flat."""
    act = {"tanh": torch.tanh, "sigmoid": torch.sigmoid}[kind]

    def proof(case: Case, seed: int) -> Evidence:
        share = slope_share(act(trace(case.make(seed)).outputs[path]), kind)
        return judged(share >= at_least, "{:.0%} flat", share)

    return proof


# --- transformers


class Patches(nn.Module):
    """Cuts a picture into squares and projects each; `gain` multiplies the picture."""

    def __init__(self, width: int = 32, size: int = 3, gain: float = 1.0) -> None:
        super().__init__()
        self.proj, self.gain = nn.Conv2d(1, width, size, stride=size), gain

    def forward(self, x: Tensor) -> Tensor:
        """Give tokens (batch, places, width)."""
        return self.proj(self.gain * x).flatten(2).transpose(1, 2)


class Attend(nn.Module):
    """Attention of several heads, of itself or of a memory, by torch's fused function."""

    def __init__(self, width: int = 32, heads: int = 4, causal: bool = False, scale: float | None = None) -> None:
        super().__init__()
        self.heads, self.causal, self.scale = heads, causal, scale
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(width, width) for _ in range(4))

    def split(self, x: Tensor) -> Tensor:
        """Give (batch, heads, length, size)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """Mix."""
        memory = x if memory is None else memory
        q, k, v = self.split(self.wq(x)), self.split(self.wk(memory)), self.split(self.wv(memory))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=self.scale)
        return self.wo(mixed.transpose(1, 2).flatten(2))


class Feed(nn.Module):
    """The dense half of a block."""

    def __init__(self, width: int = 32, ratio: int = 2, drop: float = 0.0) -> None:
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(width, ratio * width), nn.Linear(ratio * width, width), drop

    def forward(self, x: Tensor) -> Tensor:
        """Widen and narrow."""
        return F.dropout(self.down(F.gelu(self.up(x))), self.drop, self.training)


class Pre(nn.Module):
    """Norm, attention, sum; norm, dense, sum."""

    def __init__(self, attn: nn.Module, width: int = 32, norm=nn.LayerNorm, drop: float = 0.0) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2, self.feed = norm(width), attn, norm(width), Feed(width, drop=drop)

    def forward(self, x: Tensor) -> Tensor:
        """Two sums."""
        x = x + self.attn(self.norm1(x))
        return x + self.feed(self.norm2(x))


class Post(nn.Module):
    """Attention, sum, norm; dense, sum, norm, as in 2017."""

    def __init__(self, attn: nn.Module, width: int = 32) -> None:
        super().__init__()
        self.attn, self.norm1, self.feed, self.norm2 = attn, nn.LayerNorm(width), Feed(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Two norms."""
        x = self.norm1(x + self.attn(x))
        return self.norm2(x + self.feed(x))


class Net(nn.Module):
    """What enters, learned places, blocks, a norm, and an answer for every token, the last or the mean."""

    def __init__(
        self, enter: nn.Module, blocks: Sequence[nn.Module], out: int, read: str = "each", width: int = 32, length=32
    ) -> None:
        super().__init__()
        self.enter, self.place = enter, nn.Parameter(0.3 * torch.randn(1, length, width)) if length else None
        self.blocks, self.norm, self.head = nn.ModuleList(blocks), nn.LayerNorm(width), nn.Linear(width, out)
        self.read = read

    def forward(self, x: Tensor) -> Tensor:
        """Answer."""
        h = self.enter(x)
        if self.place is not None:
            h = h + self.place[:, : h.shape[1]]
        for block in self.blocks:
            h = block(h)
        h = self.norm(h)
        return self.head(h if self.read == "each" else h[:, -1] if self.read == "last" else h.mean(dim=1))


def speaks(seed: int, blocks: Sequence[nn.Module], enter: nn.Module | None = None, width: int = 32, **more) -> Setup:
    """A small language model on sentences."""
    model = Net(enter or nn.Embedding(WORDS, width), blocks, WORDS, width=width)
    return live(model, sentences(seed), **{"lr": 3e-3, "steps": 60, **more})


def marks(seed: int, blocks: Sequence[nn.Module], width: int = 32, **more) -> Setup:
    """Mark the names in a text."""
    return live(
        Net(nn.Embedding(20, width), blocks, 3, width=width), entities(seed), **{"lr": 3e-3, "steps": 60, **more}
    )


def sees(seed: int, blocks: Sequence[nn.Module], enter: nn.Module | None = None, **more) -> Setup:
    """Read the digit of a picture."""
    return live(Net(enter or Patches(), blocks, 8, "mean"), segments(seed), **{"lr": 2e-3, "steps": 50, **more})
