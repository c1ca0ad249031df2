"""Small synthetic tasks. Each remembers the targets of the batch it gave last, for the loss to read."""

from validation.tasks.rewards import bandit, chain, choices, moves, reach
from validation.tasks.sequences import ciphers, echo, markov, recall, token_loss
from validation.tasks.signals import grey, images, pictures, series, waves
from validation.tasks.task import Task, drawn_once, every
from validation.tasks.vectors import blobs, manifold, patches, regression, table, views

__all__ = [
    "Task",
    "bandit",
    "blobs",
    "chain",
    "choices",
    "ciphers",
    "drawn_once",
    "echo",
    "every",
    "grey",
    "images",
    "manifold",
    "markov",
    "moves",
    "patches",
    "pictures",
    "reach",
    "recall",
    "regression",
    "series",
    "table",
    "token_loss",
    "views",
    "waves",
]
