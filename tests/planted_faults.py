"""A small network with exact values, and faults to plant into it, each with what has to be found.

The network's first layer is the identity and its input is 1 to 6, so every fault has a closed form: the part called
`encoder.1` is given exactly [[1, 2, 3], [4, 5, 6]].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

INF, NAN = float("inf"), float("nan")


def batch() -> torch.Tensor:
    return torch.arange(1.0, 7.0).reshape(2, 3)


class Part(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Net(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        first = nn.Linear(3, 3)
        self.encoder = nn.Sequential(first, part)
        self.head = nn.Linear(3, 1)
        with torch.no_grad():
            first.weight.copy_(torch.eye(3))
            first.bias.zero_()
            self.head.weight.fill_(1.0)
            self.head.bias.zero_()

    def forward(self, x, scale=None):
        hidden = self.encoder(x)
        hidden = hidden if scale is None else hidden * scale
        return self.head(hidden)


class Checkpointed(Net):
    def __init__(self, part: nn.Module, reentrant: bool) -> None:
        super().__init__(part)
        self.reentrant = reentrant

    def forward(self, x):
        return self.head(checkpoint(self.encoder, x, use_reentrant=self.reentrant))


class Statistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.tensor([0.0, NAN, 0.0]))

    def forward(self, x):
        return x - self.offset


class Squash(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x / (x - 1)

    @staticmethod
    def backward(ctx, grad):
        return grad


class SquashGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x - 1

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad / (x - 1)


class InNumPy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        with np.errstate(divide="ignore"):
            return torch.from_numpy(np.log(x.numpy() - 1))

    @staticmethod
    def backward(ctx, grad):
        return grad


class BehindTorchsBack(torch.autograd.Function):
    """As a kernel of one's own does: writes where torch does not see it."""

    @staticmethod
    def forward(ctx, x):
        result = torch.empty_like(x)
        with np.errstate(divide="ignore"):
            result.numpy()[:] = np.log(x.numpy() - 1)
        return result

    @staticmethod
    def backward(ctx, grad):
        return grad


class GradientBehindTorchsBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        result = grad.clone()
        result.numpy()[:] = INF
        return result


class GradientInNumPy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        with np.errstate(divide="ignore"):
            return torch.from_numpy(1 / np.zeros((2, 3), dtype=np.float32))


# Forward: operations -------------------------------------------------------------------------------------------------
def log_of_zero(x):
    return torch.log(x - 1)


def log_of_negative(x):
    return (x - 2).log()


def log_of_underflow(x):
    return torch.log(1 - torch.sigmoid(100 * x))


def log1p_of_minus_one(x):
    return torch.log1p(-x)


def one_over_zero(x):
    return x / (x - 1)


def zero_over_zero(x):
    return (x - 1) / (x - 1)


def over_the_number_zero(x):
    return x / 0


def direction_of_nothing(x):
    nothing = x * 0
    return nothing / nothing.norm()


def reciprocal_of_zero(x):
    return (x - 1).reciprocal()


def rsqrt_of_zero(x):
    return (x - 1).rsqrt()


def exp_overflow(x):
    return torch.exp(40 * x)


def softmax_by_hand(x):
    weights = torch.exp(40 * x)
    return weights / weights.sum(-1, keepdim=True)


def difference_of_overflows(x):
    huge = torch.cosh(100 * x)
    return huge - huge


def root_of_negative(x):
    return torch.sqrt(x - 2)


def fractional_power_of_negative(x):
    return (x - 2) ** 0.5


def negative_power_of_zero(x):
    return (x - 1) ** -1


def power_overflow(x):
    return x**80


def acos_beyond_one(x):
    return torch.acos(x)


def atanh_at_one(x):
    return torch.atanh(x / 6)


def mean_of_nothing(x):
    return x + x[x > 100].mean()


def std_of_one(x):
    return x + x[:1].std(dim=0)


def sum_overflow(x):
    return x + (x * 5e37).sum()


def half_product(x):
    return (x.half() * 20000).float()


def half_cast(x):
    return (30000 * x).half().float()


def half_matmul(x):
    wide = (x * 100).half()
    return (wide @ wide.T @ torch.ones(2, 3).half()).float()


def half_autocast(x):
    with torch.autocast("cpu", dtype=torch.float16):
        return F.linear(100 * x, 200 * torch.eye(3)).float()


def masked_then_times_zero(x):
    masked = x.masked_fill(x < 2, -INF)
    return masked * 0


def overflow_beside_a_mask(x):
    masked = x.masked_fill(x < 2, -INF)
    return masked * 1e38


def all_of_a_row_masked(x):
    scores = x.masked_fill(x < 4, -INF)
    return scores.softmax(-1)


def attention_overflow(x):
    q = x[None, None] * 1e30
    return F.scaled_dot_product_attention(q, q, q)[0, 0]


def log_in_place(x):
    y = x - 1
    y.log_()
    return y


def division_in_place(x):
    y = x - 1
    y /= x - 1
    return y


def written_into_a_slice(x):
    y = torch.zeros_like(x)
    y[0] = torch.log(x[0] - 1)
    return y * 2


def custom_forward(x):
    return Squash.apply(x)


def custom_forward_in_numpy(x):
    return InNumPy.apply(x)


def custom_forward_unseen(x):
    return BehindTorchsBack.apply(x)


# Forward: constants --------------------------------------------------------------------------------------------------
def times_nan(x):
    return x * NAN


def nan_tensor(x):
    shift = torch.tensor([0.0, NAN, 0.0])
    return x + shift


def inf_filled(x):
    start = torch.full_like(x, INF)
    return torch.maximum(x, start)


# Backward ------------------------------------------------------------------------------------------------------------
def root_at_zero(x):
    return torch.sqrt(x - 1)


def power_at_zero(x):
    return (x - 1).pow(0.5)


def acos_at_one(x):
    return torch.acos(x / 6)


def root_behind_where(x):
    root = torch.sqrt(x - 1)
    return torch.where(x > 1, root, torch.zeros_like(x))


def log_behind_where(x):
    safe_only_forward = torch.log(x - 1)
    return torch.where(x > 1, safe_only_forward, 0.0)


def division_behind_where(x):
    ratio = x / (x - 1)
    return torch.where(x > 1, ratio, 0.0)


def exp_behind_where(x):
    grown = torch.exp(40 * x)
    return torch.where(x < 3, grown, 0.0)


def equal_eigenvalues(x):
    _, vectors = torch.linalg.eigh(torch.eye(3) * x[0, 0])
    return x + vectors.pow(3).sum()


def custom_backward(x):
    return SquashGradient.apply(x)


def custom_backward_in_numpy(x):
    return GradientInNumPy.apply(x) + 1


def custom_backward_unseen(x):
    return GradientBehindTorchsBack.apply(x)


def root_in_place_on_a_slice(x):
    y = x - 1
    y[0].sqrt_()
    flag = y > 0
    return y + 0 * flag


def saturated(x):
    grown = torch.exp(40 * x)
    return torch.tanh(grown)


def hook_divides(x):
    y = x * 2
    if y.requires_grad:
        y.register_hook(lambda grad: grad / 0)
    return y


def half_gradient(x):
    return (x.half() * 256).float() * 65536


# Healthy -------------------------------------------------------------------------------------------------------------
def double_where(x):
    safe = torch.where(x > 1, x - 1, 1.0)
    return torch.where(x > 1, safe.sqrt(), 0.0)


def causal_attention(x):
    scores = x @ x.T
    future = torch.ones(2, 2).triu(1).bool()
    return scores.masked_fill(future, -INF).softmax(-1) @ x


def additive_mask(x):
    mask = torch.full((2, 2), -INF).triu(1)
    return (x @ x.T + mask).softmax(-1) @ x


def fused_causal_attention(x):
    q = x[None, None]
    return F.scaled_dot_product_attention(q, q, q, is_causal=True)[0, 0]


def maximum_from_minus_inf(x):
    best = torch.full((2,), -INF)
    for column in x.unbind(1):
        best = torch.maximum(best, column)
    return x - best[:, None]


def nan_replaced(x):
    return torch.nan_to_num(x.detach() / 0, posinf=1.0) * x


def unused_nan(x):
    torch.log(-x)
    return x


def empty_then_filled(x):
    y = torch.empty_like(x).fill_(NAN)
    y[:] = x
    return y


HEALTHY = [
    double_where,
    causal_attention,
    additive_mask,
    fused_causal_attention,
    maximum_from_minus_inf,
    nan_replaced,
    unused_nan,
    empty_then_filled,
]


@dataclass(frozen=True)
class Planted:
    """A fault and what has to be found: phase, operator, the line's text, and in what is made the first bad index and
    how many NaN and Inf."""

    function: Any
    phase: str
    operator: str
    code: str
    first_bad: tuple[int, ...]
    nan: int
    inf: int
    kind: str = "operation"

    def __str__(self) -> str:
        return self.function.__name__


F_, B_ = "forward", "backward"
FAULTS = [
    Planted(log_of_zero, F_, "log", "return torch.log(x - 1)", (0, 0), 0, 1),
    Planted(log_of_negative, F_, "log", "return (x - 2).log()", (0, 0), 1, 1),
    Planted(log_of_underflow, F_, "log", "return torch.log(1 - torch.sigmoid(100 * x))", (0, 0), 0, 6),
    Planted(log1p_of_minus_one, F_, "log1p", "return torch.log1p(-x)", (0, 0), 5, 1),
    Planted(one_over_zero, F_, "div", "return x / (x - 1)", (0, 0), 0, 1),
    Planted(zero_over_zero, F_, "div", "return (x - 1) / (x - 1)", (0, 0), 1, 0),
    Planted(over_the_number_zero, F_, "div", "return x / 0", (0, 0), 0, 6),
    Planted(direction_of_nothing, F_, "div", "return nothing / nothing.norm()", (0, 0), 6, 0),
    Planted(reciprocal_of_zero, F_, "reciprocal", "return (x - 1).reciprocal()", (0, 0), 0, 1),
    Planted(rsqrt_of_zero, F_, "rsqrt", "return (x - 1).rsqrt()", (0, 0), 0, 1),
    # exp overflows float32 from 88.72 on: of 40, 80, 120, ... four.
    Planted(exp_overflow, F_, "exp", "return torch.exp(40 * x)", (0, 2), 0, 4),
    Planted(softmax_by_hand, F_, "exp", "weights = torch.exp(40 * x)", (0, 2), 0, 4),
    Planted(difference_of_overflows, F_, "cosh", "huge = torch.cosh(100 * x)", (0, 0), 0, 6),
    Planted(root_of_negative, F_, "sqrt", "return torch.sqrt(x - 2)", (0, 0), 1, 0),
    Planted(fractional_power_of_negative, F_, "pow", "return (x - 2) ** 0.5", (0, 0), 1, 0),
    Planted(negative_power_of_zero, F_, "pow", "return (x - 1) ** -1", (0, 0), 0, 1),
    # 3 ** 80 is 1.5e38, 4 ** 80 is 1.5e48.
    Planted(power_overflow, F_, "pow", "return x**80", (1, 0), 0, 3),
    Planted(acos_beyond_one, F_, "acos", "return torch.acos(x)", (0, 1), 5, 0),
    Planted(atanh_at_one, F_, "atanh", "return torch.atanh(x / 6)", (1, 2), 0, 1),
    Planted(mean_of_nothing, F_, "mean", "return x + x[x > 100].mean()", (), 1, 0),
    Planted(std_of_one, F_, "std", "return x + x[:1].std(dim=0)", (0,), 3, 0),
    # 21 * 5e37
    Planted(sum_overflow, F_, "sum", "return x + (x * 5e37).sum()", (), 0, 1),
    Planted(half_product, F_, "mul", "return (x.half() * 20000).float()", (1, 0), 0, 3),
    Planted(half_cast, F_, "to", "return (30000 * x).half().float()", (0, 2), 0, 4),
    # The rows' products are 140000, 320000 and 770000.
    Planted(half_matmul, F_, "matmul", "return (wide @ wide.T @ torch.ones(2, 3).half()).float()", (0, 0), 0, 4),
    # 20000 times 4 is beyond 65504.
    Planted(half_autocast, F_, "matmul", "return F.linear(100 * x, 200 * torch.eye(3)).float()", (1, 0), 0, 3),
    Planted(masked_then_times_zero, F_, "mul", "return masked * 0", (0, 0), 1, 0),
    # 4e38, 5e38 and 6e38, beside the mask.
    Planted(overflow_beside_a_mask, F_, "mul", "return masked * 1e38", (0, 0), 0, 4),
    Planted(all_of_a_row_masked, F_, "softmax", "return scores.softmax(-1)", (0, 0), 3, 0),
    Planted(
        attention_overflow,
        F_,
        "scaled_dot_product_attention",
        "return F.scaled_dot_product_attention(q, q, q)[0, 0]",
        (0, 0, 0, 0),
        6,
        0,
    ),
    Planted(log_in_place, F_, "log_", "y.log_()", (0, 0), 0, 1),
    Planted(division_in_place, F_, "div_", "y /= x - 1", (0, 0), 1, 0),
    Planted(written_into_a_slice, F_, "log", "y[0] = torch.log(x[0] - 1)", (0,), 0, 1),
    Planted(custom_forward, F_, "Squash", "return x / (x - 1)", (0, 0), 0, 1),
    Planted(custom_forward_in_numpy, F_, "InNumPy", "return torch.from_numpy(np.log(x.numpy() - 1))", (0, 0), 0, 1),
    Planted(custom_forward_unseen, F_, "BehindTorchsBack", "result = torch.empty_like(x)", (0, 0), 0, 1),
    Planted(times_nan, F_, "mul", "return x * NAN", (0, 0), 6, 0, "constant"),
    Planted(nan_tensor, F_, "tensor", "shift = torch.tensor([0.0, NAN, 0.0])", (1,), 1, 0, "constant"),
    Planted(inf_filled, F_, "full_like", "start = torch.full_like(x, INF)", (0, 0), 0, 6, "constant"),
    Planted(root_at_zero, B_, "sqrt backward", "return torch.sqrt(x - 1)", (0, 0), 0, 1),
    Planted(power_at_zero, B_, "pow backward", "return (x - 1).pow(0.5)", (0, 0), 0, 1),
    Planted(acos_at_one, B_, "acos backward", "return torch.acos(x / 6)", (1, 2), 0, 1),
    Planted(root_behind_where, B_, "sqrt backward", "root = torch.sqrt(x - 1)", (0, 0), 1, 0),
    Planted(log_behind_where, B_, "log backward", "safe_only_forward = torch.log(x - 1)", (0, 0), 1, 0),
    Planted(division_behind_where, B_, "div backward", "ratio = x / (x - 1)", (0, 0), 0, 1),
    Planted(exp_behind_where, F_, "exp", "grown = torch.exp(40 * x)", (0, 2), 0, 4),
    # All but the diagonal of the differences of eigenvalues.
    Planted(
        equal_eigenvalues, B_, "eigh backward", "_, vectors = torch.linalg.eigh(torch.eye(3) * x[0, 0])", (0, 1), 6, 0
    ),
    Planted(custom_backward, B_, "SquashGradient backward", "return grad / (x - 1)", (0, 0), 0, 1),
    Planted(
        custom_backward_in_numpy,
        B_,
        "GradientInNumPy backward",
        "return torch.from_numpy(1 / np.zeros((2, 3), dtype=np.float32))",
        (0, 0),
        0,
        6,
    ),
    Planted(
        custom_backward_unseen,
        B_,
        "GradientBehindTorchsBack backward",
        "return x * 1",
        (0, 0),
        0,
        6,
    ),
    Planted(root_in_place_on_a_slice, B_, "sqrt_ backward", "y[0].sqrt_()", (0,), 0, 1),
    # tanh is 1 there, its slope 0, and the slope of the exponential Inf.
    Planted(saturated, F_, "exp", "grown = torch.exp(40 * x)", (0, 2), 0, 4),
    Planted(hook_divides, B_, "div", "y.register_hook(lambda grad: grad / 0)", (0, 0), 0, 6),
    # The gradient is 65536 / 2 at the head, which float16 holds, and 256 times that after the product.
    Planted(half_gradient, B_, "mul backward", "return (x.half() * 256).float() * 65536", (0, 0), 0, 6),
]
