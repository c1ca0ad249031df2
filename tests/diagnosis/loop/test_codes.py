"""Each cause on a tiny loop: the sick one is named by its code, the repaired one by none."""

import copy
import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gradient_flow as gf
from gradient_flow.diagnosis.issue import IssueSeverity
from gradient_flow.diagnosis.verdict import judge
from gradient_flow.record.evidence import RunRecord, Series

STEPS = 70


@dataclass
class Parts:
    """A loop in parts, each of which a fault changes."""

    model: nn.Module
    optimizer: Any = None
    loss: Any = None
    order: str = "ZFBS"
    data: Any = None
    steps: int = STEPS
    after_step: Any = None
    before: Any = None
    seen: list[float] = field(default_factory=list)

    def run(self):
        self.optimizer = self.optimizer or torch.optim.Adam(self.model.parameters(), lr=3e-3)
        random = torch.Generator().manual_seed(1)
        data = self.data or classified
        loss = None
        with gf.watch(self.model, self.optimizer, describe=False) as flow:
            for step in range(self.steps):
                if self.before is not None:
                    self.before(step)
                x, y = data(random)
                for line in self.order:
                    if line == "Z":
                        self.optimizer.zero_grad()
                    elif line == "F":
                        loss = (self.loss or F.cross_entropy)(self.model(x), y)
                    elif line == "B" and loss is not None:
                        loss.backward()
                    elif line == "S":
                        self.optimizer.step()
                if self.after_step is not None:
                    self.after_step()
        return flow.diagnose()


CODES = torch.randn(5, 12, generator=torch.Generator().manual_seed(7))


def classified(random, batch=64):
    x = torch.randn(batch, 12, generator=random)
    return x, (x @ CODES.T).argmax(1)


def valued(random):
    x = torch.randn(64, 12, generator=random)
    return x, (x[:, :1] + x[:, 1:2].sin())


def net(*more, out=5):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, out), *more)


def adam(parameters, lr=3e-3, **more):
    return torch.optim.Adam(parameters, lr=lr, **more)


class Cut(nn.Module):
    def __init__(self, cut):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head, self.cut = nn.Linear(12, 48), nn.Linear(48, 5), cut

    def forward(self, x):
        x = self.body(x).relu()
        return self.head(x.detach() if self.cut else x)


class Listed(nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.head = nn.Linear(12, 24), nn.Linear(24, 5)
        self.layers = kind([nn.Linear(24, 24), nn.Linear(24, 24)])

    def forward(self, x):
        x = self.stem(x).relu()
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(x)


class Adapter(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(base.in_features, 2, bias=False), nn.Linear(2, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def detached(sick):
    return Parts(Cut(sick))


def not_in_optimizer(sick):
    model = net()
    return Parts(model, adam([*model[0].parameters(), *model[4].parameters()] if sick else model.parameters()))


def criterion_not_in_optimizer(sick):
    model, scale = net(), nn.Parameter(torch.ones(()))
    parameters = [*model.parameters(), *([] if sick else [scale])]
    return Parts(model, adam(parameters), loss=lambda out, y: F.cross_entropy(out * scale, y))


criterion_not_in_optimizer.code = "not_in_optimizer"


def foreign_optimizer(sick):
    model = net()
    return Parts(model, adam((copy.deepcopy(model) if sick else model).parameters()))


def replaced_parameters(sick):
    model = net()
    optimizer = adam(model.parameters())
    model[4] = nn.Linear(48, 5)
    return Parts(model, optimizer if sick else adam(model.parameters()))


def hidden_layers(sick):
    return Parts(Listed(list if sick else nn.ModuleList))


def frozen(sick):
    model = net()
    model[2].requires_grad_(False)
    optimizer = adam([p for p in model.parameters() if p.requires_grad])

    def thaw(step):
        if step == 20:
            if sick:
                model[2].requires_grad = True
            else:
                model[2].requires_grad_(True)
            optimizer.add_param_group({"params": list(model[2].parameters())})

    return Parts(model, optimizer, before=thaw)


def lora_frozen(sick):
    model = net()
    model[0], model[2] = Adapter(model[0]), Adapter(model[2])
    model[4].requires_grad_(False)
    if sick:
        for adapter in (model[0], model[2]):
            adapter.up.requires_grad_(False)
    return Parts(model, adam([p for p in model.parameters() if p.requires_grad], 1e-2))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.main, self.aux = nn.Linear(12, 48), nn.Linear(48, 5), nn.Linear(48, 12)

    def forward(self, x):
        h = self.body(x).relu()
        return self.main(h), self.aux(h), x


def only_decay(sick):
    model = Two()
    weight = 0.0 if sick else 0.5

    def loss(out, y):
        return F.cross_entropy(out[0], y) + weight * F.mse_loss(out[1], out[2])

    return Parts(model, torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1), loss)


def never_moves(sick):
    model = net()
    if sick:
        for parameter in model[2].parameters():
            parameter.register_hook(torch.zeros_like)
    return Parts(model)


def missing_zero_grad(sick):
    return Parts(net(), order="FBS" if sick else "ZFBS")


def step_outside_the_loop_over_batches(sick):
    return Parts(net(), order="ZFB" * 4 + "S" if sick else "Z" + "FB" * 4 + "S", steps=40)


step_outside_the_loop_over_batches.code = "zero_grad_before_step"


def zero_grad_before_step(sick):
    return Parts(net(), order="FBZS" if sick else "FBSZ")


def step_before_backward(sick):
    return Parts(net(), order="ZFSB" if sick else "ZFBS")


def partial_zero_grad(sick):
    model = net()

    def clear(_step):
        model[0].zero_grad()
        model[2].zero_grad()

    return Parts(model, order="FBS" if sick else "ZFBS", before=clear)


def detached_loss(sick):
    def loss(out, y):
        loss = F.cross_entropy(out, y)
        return torch.tensor(loss.item(), requires_grad=True) if sick else loss

    return Parts(net(), loss=loss)


def scheduled(factor):
    model = net()
    optimizer = adam(model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    return Parts(model, optimizer, after_step=schedule.step)


def zero_rate(sick):
    return scheduled(lambda step: step // 1000 if sick else min(1.0, step / 10))


def schedule_ended(sick):
    return scheduled(lambda step: max(0.0, 1 - step / (8 if sick else STEPS)))


def rate_below_zero(sick):
    """A linear decay over as many steps as there are, or over a third of them."""
    return scheduled(lambda step: 1 - step / (STEPS // 3 if sick else STEPS))


rate_below_zero.code = "loss_grows"


def cosine_over_a_whole_half_wave(sick):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    wave = lambda step: math.cos(math.pi * step / STEPS)  # noqa: E731
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, wave if sick else lambda step: 0.5 * (1 + wave(step)))
    return Parts(model, optimizer, after_step=schedule.step)


cosine_over_a_whole_half_wave.code = "loss_grows"


def clip_sets_step(sick):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    limit = 1e-6 if sick else 1.0
    optimizer.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(model.parameters(), limit) and None)
    return Parts(model, optimizer)


def evaluation_mode(sick):
    model = net(nn.Dropout(0.1))
    return Parts(model, before=lambda _step: model.train(not sick))


def weights_overwritten(sick):
    model = net()
    start = copy.deepcopy(model.state_dict())
    return Parts(model, before=lambda step: model.load_state_dict(start) if sick or step == 0 else None)


def weights_loaded_in_each_epoch(sick):
    """A checkpoint that is loaded before the loop, or again every seven steps."""
    model = net()
    start = copy.deepcopy(model.state_dict())
    return Parts(model, before=lambda step: model.load_state_dict(start) if step % (7 if sick else 1000) == 0 else None)


weights_loaded_in_each_epoch.code = "weights_overwritten"


def weights_clamped(sick):
    """As in a Wasserstein critic, by a bound far below the weights or far above them."""
    model = net()
    limit = 0.01 if sick else 3.0

    @torch.no_grad()
    def clamp():
        for parameter in model.parameters():
            parameter.clamp_(-limit, limit)

    return Parts(model, after_step=clamp)


weights_clamped.code = "weights_overwritten"


def same_batch(sick):
    fixed = classified(torch.Generator().manual_seed(3), 16)
    # Made anew in each step, as an iterator that is made anew does; what a loop keeps is all of its data.
    again = lambda _random: tuple(part.clone() for part in fixed)  # noqa: E731
    return Parts(net(), data=again if sick else (lambda random: classified(random, 16)))


def rate_too_high(sick):
    model = net()
    return Parts(model, adam(model.parameters(), 10.0 if sick else 3e-3))


def rate_too_low(sick):
    model = net()
    return Parts(model, adam(model.parameters(), 1e-9 if sick else 3e-3))


def summed_loss(sick):
    model = net()
    criterion = nn.CrossEntropyLoss(reduction="sum" if sick else "mean")
    return Parts(model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9), criterion)


def undivided_accumulation(sick):
    model = net()
    order = "Z" + "FB" * 16 + "S"
    parts = Parts(model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9), order=order, steps=40)
    if not sick:
        parts.loss = lambda out, y: F.cross_entropy(out, y) / 16
    return parts


def loss_nonfinite(sick):
    return Parts(net(), loss=lambda out, y: F.cross_entropy(out, y) + torch.tensor(torch.nan if sick else 0.0))


def loss_grows(sick):
    model = net()
    return Parts(model, adam(model.parameters(), maximize=sick))


def loss_stuck(sick):
    def data(random):
        x, y = classified(random)
        return x, y[torch.randperm(len(y), generator=random)] if sick else y

    model = net()
    return Parts(model, adam(model.parameters(), 1e-3), data=data)


def first_loss_high(sick):
    model = net()
    with torch.no_grad():
        model[4].weight.mul_(400.0 if sick else 1.0)
    return Parts(model)


def first_loss_high_of_yes_or_no(sick):
    def data(random):
        x, y = classified(random)
        return x, F.one_hot(y, 5).float()

    model = net()
    with torch.no_grad():
        model[4].weight.mul_(600.0 if sick else 1.0)
    return Parts(model, data=data, loss=F.binary_cross_entropy_with_logits)


first_loss_high_of_yes_or_no.code = "first_loss_high"


def all_masked(sick):
    def data(random):
        x, y = classified(random)
        return x, torch.full_like(y, -100) if sick else y

    return Parts(net(), data=data)


def double_softmax(sick):
    return Parts(net(nn.Softmax(dim=1) if sick else nn.Identity()))


def softmax_dimension(sick):
    return Parts(net(nn.LogSoftmax(dim=0 if sick else -1)), loss=F.nll_loss)


def output_range(sick):
    """A tanh whose targets it can give, and the same thirty higher."""

    def data(random):
        x, y = valued(random)
        return x, 0.3 * y + 30 * sick

    return Parts(net(nn.Tanh(), out=1), data=data, loss=F.mse_loss)


def output_range_of_relu(sick):
    def data(random):
        x, y = valued(random)
        return x, -y.abs() if sick else y.abs()

    return Parts(net(nn.ReLU(), out=1), data=data, loss=F.mse_loss)


output_range_of_relu.code = "output_range"


def relu_on_logits(sick):
    def data(random):
        x = torch.randn(64, 12, generator=random)
        return x, torch.randint(5, (64,), generator=random) if sick else (x @ CODES.T).argmax(1)

    return Parts(net(nn.ReLU() if sick else nn.Identity()), data=data)


relu_on_logits.code = "output_range"


def sigmoid_twice(sick):
    def data(random):
        x, y = classified(random)
        return x, F.one_hot(y, 5).float()

    def loss(out, y):
        return F.binary_cross_entropy_with_logits(out.sigmoid() if sick else out, y)

    return Parts(net(), data=data, loss=loss)


sigmoid_twice.code = "double_softmax"


def broadcast(sick):
    return Parts(net(out=1), data=valued, loss=lambda out, y: F.mse_loss(out, y.squeeze(1) if sick else y))


def own_broadcast(sick):
    return Parts(net(out=1), data=valued, loss=lambda out, y: (out - (y.squeeze(1) if sick else y)).square().mean())


own_broadcast.code = "broadcast"


def targets_times_all_predictions(sick):
    def data(random):
        x, _ = classified(random)
        return x, (x[:, 0] > 0).float()

    def loss(out, y):
        p = (out if sick else out.squeeze(1)).sigmoid().clamp(1e-6, 1 - 1e-6)
        return -(y * p.log() + (1 - y) * (1 - p).log()).mean()

    return Parts(net(out=1), data=data, loss=loss)


targets_times_all_predictions.code = "broadcast"


def targets_in_euros(sick):
    def data(random):
        x, y = valued(random)
        return x, 200 * y + 1200 if sick else y

    model = net(out=1)
    return Parts(model, adam(model.parameters(), 5e-3), data=data, loss=F.mse_loss)


targets_in_euros.code = "first_loss_high"


def bad_batch(sick):
    """A missing value that was written as a number, in one sample of one batch in twelve."""
    at = iter(range(10 * STEPS))

    def data(random):
        x, y = valued(random)
        if next(at) % 12 == 11 and sick:
            y[3] = 32767.0
        return x, y

    model = net(out=1)
    return Parts(model, adam(model.parameters(), 1e-2), data=data, loss=F.mse_loss)


def input_scales(sick):
    units = 10 ** torch.linspace(-3, 6, 12)

    def data(random):
        x, y = classified(random)
        return x * units if sick else x, y

    return Parts(net(), data=data)


def constant_targets(sick):
    def data(random):
        x, y = valued(random)
        return x, torch.full_like(y, 0.7) if sick else y

    return Parts(net(out=1), data=data, loss=F.mse_loss)


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(9, 24), nn.Linear(24, 9)

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


def padding_labels(sick):
    def data(random):
        tokens = torch.randint(1, 9, (16, 12), generator=random)
        labels = tokens % 8 + 1
        tokens[:, 5:], labels[:, 5:] = 0, 0
        return tokens, labels

    def loss(out, y):
        return F.cross_entropy(out.flatten(0, 1), y.flatten(), ignore_index=-100 if sick else 0)

    return Parts(Tokens(), data=data, loss=loss)


def no_reward_variance(sick):
    random = torch.Generator().manual_seed(5)

    def loss(out, y):
        policy = torch.distributions.Categorical(logits=out)
        action = torch.multinomial(policy.probs.detach(), 1, generator=random).squeeze(1)
        reward = torch.ones(len(y)) if sick else (action == y).float()
        return -(policy.log_prob(action) * (reward - reward.mean())).mean()

    return Parts(net(), loss=loss)


def policy_without_reward_beside_a_value(sick):
    """As in PPO: the loss of the values goes on, so that the loss is not zero."""
    random = torch.Generator().manual_seed(5)
    torch.manual_seed(0)
    model = nn.ModuleDict({"policy": net(), "value": net(out=1)})

    def loss(_, x, y):
        policy = torch.distributions.Categorical(logits=model["policy"](x))
        action = torch.multinomial(policy.probs.detach(), 1, generator=random).squeeze(1)
        chosen = policy.log_prob(action)
        reward = torch.ones(len(y)) if sick else (action == y).float()
        gain = (chosen - chosen.detach()).exp() * (reward - reward.mean())
        return (model["value"](x).squeeze(1) - reward).square().mean() - gain.mean()

    model.forward = lambda x: x
    parts = Parts(model, data=lambda random: (lambda x, y: (x, (x, y)))(*classified(random)))
    parts.loss = lambda x, pair: loss(x, *pair)
    return parts


policy_without_reward_beside_a_value.code = "no_reward_variance"


def head_replaced_on_the_way(sick):
    model = net()
    optimizer = adam(model.parameters())

    def replace(step):
        if step == 10:
            model[4] = nn.Linear(48, 5)
            if not sick:
                optimizer.add_param_group({"params": list(model[4].parameters())})

    return Parts(model, optimizer, before=replace)


head_replaced_on_the_way.code = "replaced_parameters"


class Kept:
    def __init__(self):
        self.head = nn.Linear(24, 5)


class Keeping(nn.Module):
    def __init__(self, registered):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.kept = nn.Linear(12, 24), Kept()
        if registered:
            self.head = self.kept.head

    def forward(self, x):
        return self.kept.head(self.stem(x).relu())


def layer_in_an_object(sick):
    return Parts(Keeping(not sick))


layer_in_an_object.code = "hidden_layers"


def layer_beside_the_model(sick):
    model, own = net(out=24), nn.Linear(24, 5)
    parameters = [*model.parameters(), *([] if sick else own.parameters())]
    return Parts(model, adam(parameters), loss=lambda out, y: F.cross_entropy(own(out), y))


layer_beside_the_model.code = "hidden_layers"


class InForward(nn.Module):
    """A layer whose width is read from the data, made in every call or once."""

    def __init__(self, anew):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.between, self.head = nn.Linear(12, 24), None if anew else nn.Linear(24, 24), nn.Linear(24, 5)

    def forward(self, x):
        x = self.stem(x).relu()
        between = self.between or nn.Linear(x.shape[1], 24)
        return self.head(between(x).relu())


def layer_made_in_forward(sick):
    model = InForward(sick)
    return Parts(model, adam(model.parameters(), 1e-2))


layer_made_in_forward.code = "hidden_layers"


def deep_body():
    """Of a body of five layers as they were drawn next to nothing can be learned."""
    torch.manual_seed(0)
    body = [part for _ in range(4) for part in (nn.Linear(16, 16), nn.ReLU())]
    return nn.Sequential(nn.Sequential(nn.Linear(12, 16), nn.ReLU(), *body), nn.Linear(16, 5))


def frozen_before_it_learned(sick):
    model = deep_body()
    model[0].requires_grad_(not sick)
    return Parts(model, adam([p for p in model.parameters() if p.requires_grad], 1e-2))


frozen_before_it_learned.code = "frozen"


def head_alone_on_a_body_as_drawn(sick):
    model = deep_body()
    return Parts(model, adam((model[1] if sick else model).parameters(), 1e-2))


head_alone_on_a_body_as_drawn.code = "not_in_optimizer"


def factor_not_in_optimizer(sick):
    parts = lora_frozen(False)
    held = [p for name, p in parts.model.named_parameters() if p.requires_grad and not (sick and ".up." in name)]
    return Parts(parts.model, adam(held, 1e-2))


factor_not_in_optimizer.code = "lora_frozen"


def closure_without_zero_grad(sick):
    class Closure(Parts):
        def run(self):
            x, y = valued(torch.Generator().manual_seed(1))
            optimizer = torch.optim.LBFGS(self.model.parameters(), lr=0.1, max_iter=3)

            def closure():
                if not sick:
                    optimizer.zero_grad()
                loss = F.mse_loss(self.model(x), y)
                loss.backward()
                return loss

            with gf.watch(self.model, optimizer, describe=False) as flow:
                for _ in range(30):
                    optimizer.step(closure)
            return flow.diagnose()

    return Closure(net(out=1))


closure_without_zero_grad.code = "missing_zero_grad"


def uncleared_until_it_breaks(sick):
    model = net()
    return Parts(model, torch.optim.SGD(model.parameters(), lr=0.5), order="FBS" if sick else "ZFBS")


uncleared_until_it_breaks.code = "missing_zero_grad"


def gradients_switched_off(sick):
    model = net()

    def step(out, y):
        loss = F.cross_entropy(out, y)
        return loss if loss.requires_grad else loss.requires_grad_()

    def evaluate(at):
        torch.set_grad_enabled(not sick or at < 10)

    parts = Parts(model, loss=step, before=evaluate)
    run = parts.run

    def run_and_switch_on():
        try:
            return run()
        finally:
            torch.set_grad_enabled(True)

    parts.run = run_and_switch_on
    return parts


gradients_switched_off.code = "detached_loss"


class OwnLoss(nn.Module):
    """A model that computes its loss, as nanoGPT and the models of Hugging Face do."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.net = net()
        with torch.no_grad():
            self.net[4].weight.mul_(scale)

    def forward(self, pair):
        x, y = pair
        logits = self.net(x)
        return logits, F.cross_entropy(logits.view(-1, 5), y.view(-1))


def owned(data):
    return lambda random: (lambda x, y: ((x, y), y))(*data(random))


def first_loss_high_inside_the_model(sick):
    return Parts(OwnLoss(400.0 if sick else 1.0), data=owned(classified), loss=lambda out, _: out[1])


first_loss_high_inside_the_model.code = "first_loss_high"


def same_slice(sick):
    """A slice of the data, taken once before the loop."""
    x, y = classified(torch.Generator().manual_seed(2), 512)
    first, labels = x[:32], y[:32]

    def data(random):
        few = torch.randint(0, 512, (32,), generator=random)
        return (first, labels) if sick else (x[few], y[few])

    model = net()
    return Parts(model, adam(model.parameters(), 1e-2), data=data)


same_slice.code = "same_batch"


def softmax_of_a_softmax(sick):
    def loss(out, y):
        logs = (out.softmax(1) if sick else out).log_softmax(1)
        return -logs[torch.arange(len(y)), y].mean()

    return Parts(net(), loss=loss)


softmax_of_a_softmax.code = "double_softmax"


def mean_over_no_label(sick):
    """Every third batch, and somebody replaces the NaN of its gradients."""
    model = net()
    for parameter in model.parameters():
        parameter.register_hook(torch.nan_to_num)
    at = iter(range(STEPS))

    def loss(out, y):
        kept = ((y != 0) & (not sick or next(at) % 3 != 2)).float()
        return (F.cross_entropy(out, y, reduction="none") * kept).sum() / kept.sum()

    return Parts(model, loss=loss)


mean_over_no_label.code = "all_masked"


def input_scales_that_break_at_once(sick):
    """NaN before anything was seen inside of the network."""
    units = 10 ** torch.linspace(-3, 6, 12)

    def data(random):
        x, y = valued(random)
        return x * units if sick else x, y

    model = net(out=1)
    return Parts(model, torch.optim.SGD(model.parameters(), lr=0.05), data=data, loss=F.mse_loss)


input_scales_that_break_at_once.code = "input_scales"


CASES = [
    rate_below_zero,
    cosine_over_a_whole_half_wave,
    weights_clamped,
    targets_times_all_predictions,
    targets_in_euros,
    bad_batch,
    input_scales_that_break_at_once,
    policy_without_reward_beside_a_value,
    head_replaced_on_the_way,
    layer_in_an_object,
    layer_beside_the_model,
    layer_made_in_forward,
    frozen_before_it_learned,
    head_alone_on_a_body_as_drawn,
    factor_not_in_optimizer,
    closure_without_zero_grad,
    uncleared_until_it_breaks,
    gradients_switched_off,
    first_loss_high_inside_the_model,
    same_slice,
    softmax_of_a_softmax,
    mean_over_no_label,
    detached,
    not_in_optimizer,
    criterion_not_in_optimizer,
    foreign_optimizer,
    replaced_parameters,
    hidden_layers,
    frozen,
    lora_frozen,
    only_decay,
    never_moves,
    missing_zero_grad,
    partial_zero_grad,
    zero_grad_before_step,
    step_outside_the_loop_over_batches,
    step_before_backward,
    detached_loss,
    zero_rate,
    schedule_ended,
    clip_sets_step,
    evaluation_mode,
    weights_overwritten,
    weights_loaded_in_each_epoch,
    same_batch,
    rate_too_high,
    rate_too_low,
    summed_loss,
    undivided_accumulation,
    loss_nonfinite,
    loss_grows,
    loss_stuck,
    first_loss_high,
    first_loss_high_of_yes_or_no,
    all_masked,
    double_softmax,
    softmax_dimension,
    output_range,
    output_range_of_relu,
    relu_on_logits,
    sigmoid_twice,
    broadcast,
    own_broadcast,
    input_scales,
    constant_targets,
    padding_labels,
    no_reward_variance,
]


def alarms(diagnosis):
    return [issue.code or issue.issue_type.name for issue in diagnosis if issue.severity >= IssueSeverity.MEDIUM]


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_a_broken_loop_is_named_by_its_cause_alone_and_the_repaired_one_is_healthy(make):
    found = make(True).run()
    assert alarms(found) == [getattr(make, "code", make.__name__)], str(found)
    assert found[0].cause
    assert found[0].advice
    repaired = make(False).run()
    assert alarms(repaired) == [], str(repaired)


@pytest.mark.parametrize("freeze", [True, False])
def test_a_head_on_a_body_that_was_trained_is_no_alarm(freeze):
    model = deep_body()
    random = torch.Generator().manual_seed(4)
    optimizer = adam(model.parameters(), 1e-2)
    for _ in range(60):
        x, y = classified(random)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    model[0].requires_grad_(not freeze)
    model[1] = nn.Linear(16, 5)
    found = Parts(model, adam(model[1].parameters(), 1e-2)).run()
    assert alarms(found) == [], str(found)


def test_copies_that_an_inner_loop_makes_are_no_layers_made_in_forward():
    """As in meta-learning of first order: gradients of a new copy are given to the model."""
    model = net()
    optimizer = adam(model.parameters())
    random = torch.Generator().manual_seed(1)
    with gf.watch(model, optimizer, describe=False) as flow:
        for _ in range(STEPS):
            x, y = classified(random)
            inner = copy.deepcopy(model)
            inner.zero_grad()
            F.cross_entropy(inner(x), y).backward()
            for mine, its in zip(model.parameters(), inner.parameters(), strict=True):
                mine.grad = its.grad
            optimizer.step()
    assert "hidden_layers" not in [issue.code for issue in flow.diagnose()]


def test_a_rate_that_ends_next_to_zero_or_one_step_below_it_is_no_alarm():
    model = net()
    optimizer = adam(model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / (STEPS - 2))
    found = Parts(model, optimizer, after_step=schedule.step).run()
    assert [(issue.code, issue.severity) for issue in found] == [("loss_grows", IssueSeverity.LOW)]


def test_a_head_trained_on_a_body_that_is_not_frozen_is_a_remark():
    model = net()
    optimizer = torch.optim.Adam(model[4].parameters(), lr=0.1)
    found = Parts(model, optimizer, before=lambda _step: model.zero_grad()).run()
    assert [(issue.code, issue.severity) for issue in found] == [("not_in_optimizer", IssueSeverity.LOW)]


def test_two_players_of_a_game_and_their_constant_labels_are_no_fault():
    torch.manual_seed(0)
    maker, critic = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 12)), net(out=1)
    model = nn.ModuleList([maker, critic])
    first, second = (torch.optim.Adam(each.parameters(), lr=1e-3) for each in (maker, critic))
    loss = F.binary_cross_entropy_with_logits
    with gf.watch(model, [first, second], describe=False) as flow:
        for _ in range(40):
            made, real = maker(torch.randn(32, 4)), torch.randn(32, 12)
            second.zero_grad()
            (loss(critic(real), torch.ones(32, 1)) + loss(critic(made.detach()), torch.zeros(32, 1))).backward()
            second.step()
            first.zero_grad()
            loss(critic(made), torch.ones(32, 1)).backward()  # and leaves gradients in the critic, which clears them
            first.step()
    assert not [issue for issue in flow.diagnose() if issue.code]


def test_an_optimizer_that_never_steps_is_named():
    model = net()
    head, body = torch.optim.Adam(model[4].parameters()), torch.optim.Adam(model[:4].parameters())
    with gf.watch(model, [head, body], describe=False) as flow:
        for _ in range(40):
            x, y = classified(None)
            head.zero_grad()
            body.zero_grad()
            F.cross_entropy(model(x), y).backward()
            head.step()
    assert alarms(flow.diagnose()) == ["never_moves"]


def test_ranks_that_differ_reach_the_verdict():
    record = RunRecord(
        totals=[Series(name="model", steps=list(range(1, 31)), norms=[1.0] * 30)], ranks_differ=(11, 2, 3)
    )
    (found,) = judge(record)
    assert (found.code, found.step, found.evidence["steps"]) == ("ranks_differ", 11, 2)


@pytest.mark.parametrize("way", ["adversarial", "sharpness-aware", "by hand"])
def test_passes_that_are_cleared_on_purpose_are_not_called_lost(way):
    """An attack asks for the gradient of its input; SAM steps from another point; tasks are put together by hand."""
    model = net()
    optimizer = adam(model.parameters())
    random = torch.Generator().manual_seed(1)
    with gf.watch(model, optimizer, describe=False) as flow:
        for _ in range(30):
            x, y = classified(random)
            kept = []
            for _ in range({"adversarial": 4, "sharpness-aware": 1, "by hand": 3}[way]):
                optimizer.zero_grad()
                x = x.detach().requires_grad_(way == "adversarial")
                F.cross_entropy(model(x), y).backward()
                kept.append([p.grad.clone() for p in model.parameters()])
                if way == "adversarial":
                    x = x + 0.01 * x.grad.sign()
                x, y = (x.detach(), y) if way != "by hand" else classified(random)
            optimizer.zero_grad()
            F.cross_entropy(model(x.detach()), y).backward()
            if way == "by hand":
                for p, *others in zip(model.parameters(), *kept, strict=True):
                    p.grad = p.grad + sum(others)
            optimizer.step()
    assert "zero_grad_before_step" not in {issue.code for issue in flow.diagnose()}


@pytest.mark.parametrize("bends", [True, False])
def test_a_linear_model_that_learns_nothing_is_told_so(bends):
    def differs(random):
        x = torch.randint(2, (64, 2), generator=random).float()
        return x, (x[:, 0] != x[:, 1]).long()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh() if bends else nn.Identity(), nn.Linear(16, 2))
    found = Parts(model, adam(model.parameters(), 3e-2), data=differs, steps=120).run()
    assert any("no activation between" in issue.message for issue in found) is not bends


def codes_of(parts):
    return [issue.code for issue in parts.run() if issue.severity > IssueSeverity.LOW]


@pytest.mark.parametrize("apart", [True, False])
def test_a_loss_that_is_the_same_for_every_batch_has_collapsed(apart):
    """The hardest triplets of a batch: lowest, at the margin, where all samples lie at one point."""

    def hardest(out, y):
        out = F.normalize(out, dim=1) if apart else out
        far = torch.cdist(out, out)
        same = y[:, None] == y
        positive = (far * same).amax(1)
        negative = (far + 1e3 * same).amin(1)
        easy = (far + 1e3 * same).median(1).values if apart else negative
        return F.relu(positive - easy + 0.5).mean()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    found = codes_of(Parts(model, adam(model.parameters(), 5e-3), loss=hardest, steps=120))
    assert ("collapsed" in found) is not apart


def test_a_matrix_that_steps_alone_made_does_not_hide_that_all_others_rest():
    """Biases of users start at zero and are nothing but their steps: next to them those of a tiny rate look large."""

    class Factors(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.users, self.items = nn.Embedding(40, 16), nn.Embedding(40, 16)
            self.bias = nn.Embedding(40, 1)
            nn.init.zeros_(self.bias.weight)

        def forward(self, pair):
            return (self.users(pair[:, 0]) * self.items(pair[:, 1])).sum(1) + self.bias(pair[:, 0])[:, 0]

    def rated(random):
        pair = torch.randint(40, (64, 2), generator=random)
        return pair, torch.cos(pair.float()).sum(1)

    def rates(lr):
        model = Factors()
        return codes_of(Parts(model, adam(model.parameters(), lr), data=rated, loss=F.mse_loss, steps=100))

    assert "rate_too_low" in rates(1e-7)
    assert "rate_too_low" not in rates(3e-2)


@pytest.mark.parametrize("cut", [True, False])
def test_a_part_that_runs_under_no_grad_alone_is_told_where_the_model_is_a_mapping(cut):
    torch.manual_seed(0)
    model = nn.ModuleDict({"encoder": nn.Linear(12, 48), "head": nn.Linear(48, 5)})
    optimizer, random = adam(model.parameters()), torch.Generator().manual_seed(1)
    with gf.watch(model, optimizer, describe=False) as flow:
        for _ in range(40):
            x, y = classified(random)
            optimizer.zero_grad()
            with torch.set_grad_enabled(not cut):
                hidden = model["encoder"](x).relu()
            F.cross_entropy(model["head"](hidden), y).backward()
            optimizer.step()
    found = [(issue.code, issue.layer) for issue in flow.diagnose() if issue.severity > IssueSeverity.LOW]
    assert (("detached", "encoder") in found) is cut


@pytest.mark.parametrize("ignored", [True, False])
def test_padding_counts_as_a_label_also_where_tags_have_numbers_of_their_own(ignored):
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.words, self.tags = nn.Embedding(20, 16), nn.Linear(16, 5)

        def forward(self, x):
            return self.tags(self.words(x)).transpose(1, 2)

    def tagged(random):
        x = torch.randint(1, 20, (16, 12), generator=random)
        y = x % 4
        for row, length in enumerate(torch.randint(2, 7, (16,), generator=random).tolist()):
            x[row, length:], y[row, length:] = 0, -100 if ignored else 4
        return x, y

    assert ("padding_labels" in codes_of(Parts(Tagger(), data=tagged))) is not ignored


@pytest.mark.parametrize("kept", [True, False])
def test_a_cell_that_is_given_no_state_has_no_memory(kept):
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.cell, self.out = nn.GRUCell(4, 24), nn.Linear(24, 2)

        def forward(self, x):
            state = None
            for at in range(x.shape[1]):
                state = self.cell(x[:, at], state if kept else None)
            return self.out(state)

    def signs(random):
        x = torch.randn(64, 6, 4, generator=random)
        return x, (x.sum((1, 2)) > 0).long()

    model = Reader()
    found = Parts(model, adam(model.parameters(), 1e-2), data=signs, steps=80).run()
    memory = [issue for issue in found if "no memory at all" in issue.message]
    assert bool(memory) is not kept
    assert all(issue.layer == "cell" for issue in memory)
