import asyncio
import functools
import math

import numpy as np
import pytest
import torch

from gradient_flow.errors import GradientFlowWarning, InputError
from gradient_flow.training.epoch_functions import OFFERED, EpochFunction

VALUES = {"model": "M", "optimizer": "O", "epoch": 3, "gradient_manager": "G"}


def received(function):
    return asyncio.run(EpochFunction("train_func", function).call(**VALUES))


def read(answer, name="train_func"):
    return asyncio.run(EpochFunction(name, lambda: answer).result(**VALUES))


class Trainer:
    def method(self, epoch, model):
        return epoch, model

    async def async_method(self, model):
        return model

    @staticmethod
    def static(optimizer):
        return optimizer

    @classmethod
    def of_class(cls, epoch):
        return cls, epoch

    def __call__(self, gradient_manager, epoch):
        return gradient_manager, epoch


class AsyncTrainer:
    async def __call__(self, epoch):
        await asyncio.sleep(0)
        return epoch


async def asynchronous(model, epoch):
    await asyncio.sleep(0)
    return model, epoch


def with_defaults(model=None, batch_size=32, epoch=None):
    return model, batch_size, epoch


def keyword_only(*, epoch, optimizer, shuffle=True):
    return epoch, optimizer, shuffle


def positional_only(model, epoch, /):
    return model, epoch


def positional_only_with_gap(model, steps=7, epoch=0, /, *, optimizer):
    return model, steps, epoch, optimizer


def anything(**everything):
    return everything


def some_and_anything(model, /, *more, epoch, **rest):
    return model, more, epoch, rest


def wrapped(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda: "nothing", "nothing"),
        (lambda epoch: epoch, 3),
        (
            lambda model, optimizer, epoch, gradient_manager: [model, optimizer, epoch, gradient_manager],
            ["M", "O", 3, "G"],
        ),
        (lambda gradient_manager, model: (gradient_manager, model), ("G", "M")),
        (asynchronous, ("M", 3)),
        (with_defaults, ("M", 32, 3)),
        (keyword_only, (3, "O", True)),
        (positional_only, ("M", 3)),
        (positional_only_with_gap, ("M", 7, 3, "O")),
        (anything, VALUES),
        (some_and_anything, ("M", (), 3, {"optimizer": "O", "gradient_manager": "G"})),
        (wrapped(positional_only), ("M", 3)),
        (wrapped(asynchronous), ("M", 3)),
        (Trainer().method, (3, "M")),
        (Trainer().async_method, "M"),
        (Trainer.static, "O"),
        (Trainer.of_class, (Trainer, 3)),
        (Trainer(), ("G", 3)),
        (AsyncTrainer(), 3),
        (functools.partial(with_defaults, batch_size=8), ("M", 8, 3)),
        (functools.partial(positional_only, "mine"), ("mine", 3)),
        (functools.partial(keyword_only, optimizer="mine"), (3, "mine", True)),
        (functools.partial(anything, epoch="mine"), {**VALUES, "epoch": "mine"}),
        (functools.partial(asynchronous, model="mine"), ("mine", 3)),
        (functools.partial(functools.partial(keyword_only, shuffle=1), optimizer=2), (3, 2, 1)),
    ],
)
def test_a_function_gets_what_its_signature_names(function, expected):
    assert received(function) == expected


@pytest.mark.parametrize(
    "function",
    [lambda loader: 0, lambda model, loader: 0, lambda loader, /: 0, lambda *, loader: 0],
)
def test_a_parameter_that_is_not_known_is_named_with_what_is_offered(function):
    with pytest.raises(InputError, match="`val_func` asks for `loader`") as refused:
        EpochFunction("val_func", function)
    assert all(name in str(refused.value) for name in OFFERED)


@pytest.mark.parametrize("not_a_function", [None, 3, "train"])
def test_what_cannot_be_called_is_refused(not_a_function):
    with pytest.raises(InputError, match="`train_func` must be a function"):
        EpochFunction("train_func", not_a_function)


def test_a_function_without_a_readable_signature_is_refused_with_a_way_out():
    with pytest.raises(InputError, match=r"signature of `train_func` cannot be read.*Wrap it"):
        EpochFunction("train_func", type)


@pytest.mark.parametrize(
    "answer",
    [
        0.5,
        np.float32(0.5),
        np.float64(0.5),
        np.array(0.5),
        torch.tensor(0.5),
        torch.tensor(0.5, requires_grad=True),
        torch.tensor([0.5], dtype=torch.float64),
        {"loss": 0.5},
        {"train_loss": 0.5},
        {"loss": 0.5, "train_loss": 9.0},
        {"loss": torch.tensor(0.5)},
        (0.5, {}),
        (torch.tensor(0.5), {"loss": 9.0}),
    ],
)
def test_a_loss_is_read_from_what_came(answer):
    assert read(answer).named("train")["train_loss"] == 0.5


@pytest.mark.parametrize("loss", [math.inf, -math.inf, 7])
def test_a_loss_is_read_as_it_is(loss):
    assert read(loss).loss == loss
    assert math.isnan(read(torch.tensor(math.nan)).loss)


def test_metrics_are_named_after_the_function():
    metrics = {"accuracy": torch.tensor(0.25), "val_auc": np.float32(0.5), "f1": None, 3: 1}
    for answer in ((2.0, metrics), {"loss": 2.0, **metrics}, {"val_loss": 2.0, **metrics}):
        result = read(answer, "val_func")
        assert result.metrics == {"accuracy": 0.25, "val_auc": 0.5, "f1": None, "3": 1.0}
        assert result.named("val") == {
            "val_loss": 2.0,
            "val_accuracy": 0.25,
            "val_auc": 0.5,
            "val_f1": None,
            "val_3": 1,
        }


def test_a_metric_that_is_no_number_is_left_out_with_one_warning():
    function = EpochFunction("val_func", lambda: {"loss": 1.0, "outputs": torch.zeros(3)})
    with pytest.warns(GradientFlowWarning, match=r"'outputs' as a Tensor of shape \(3,\)"):
        assert asyncio.run(function.result(**VALUES)).metrics == {}
    assert asyncio.run(function.result(**VALUES)).metrics == {}  # a second warning would be an error


@pytest.mark.parametrize(
    ("answer", "described"),
    [
        (None, "None"),
        (True, "True"),
        ("0.5", "'0.5'"),
        (1j, "1j"),
        ([0.5], "a list"),
        (torch.zeros(2), r"a Tensor of shape \(2,\)"),
        (torch.tensor(1j), r"a Tensor of shape \(\)"),
        (np.zeros((2, 1)), r"a ndarray of shape \(2, 1\)"),
        ({"accuracy": 1.0}, "a mapping with 'accuracy'"),
        ({"loss": None}, "a mapping with 'loss'"),
        ({}, "a mapping with nothing in it"),
        ((), "a tuple of nothing"),
        ((0.5, 0.9), "a tuple of float, float"),
        ((0.5, {}, {}), "a tuple of float, dict, dict"),
        ((None, {}), "a tuple of NoneType, dict"),
        ((number for number in [0.5]), "a generator"),
    ],
)
def test_anything_else_is_refused_with_what_came(answer, described):
    with pytest.raises(InputError, match=f"`val_func` returned {described}. Return the loss as a number.*'val_loss'"):
        read(answer, "val_func")
