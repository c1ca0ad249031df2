"""The settings of a run: read from a YAML file and checked before anything heavy is imported."""

import difflib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

LIMITS = {
    "grad_log_every_n_steps": (1, 1_000_000),
    "hidden_size": (1, 4096),
    "tau_min": (1, 1e6),
    "tau_max": (1, 1e6),
    "sequence_length": (1, 1000),
    "batch_size": (1, 100_000),
    "learning_rate": (1e-8, 1),
    "max_epochs": (1, 100_000),
    "train_size": (1, 100_000),
    "gradient_clip_val": (1e-6, 1e6),
    "seed": (0, 2**32 - 1),
}
TYPE_NAMES = {
    int: "a whole number",
    float: "a number",
    float | None: "a number or null",
    bool: "true or false",
    str: "a text",
}


class ConfigError(ValueError):
    """The configuration cannot be used. The message is one line that names the key or the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """All settings of one training run."""

    grad_log_every_n_steps: int = 100
    """Gradient statistics are taken every so many optimizer steps."""
    grad_track_per_weight_matrix: bool = True
    """Also for W_in, W_rec, W_out, W_h_init and the biases by themselves."""
    hidden_size: int = 64
    """Number of leaky units."""
    tau_min: float = 1.0
    """Shortest time constant, in steps. Below one step the leaky update would overshoot."""
    tau_max: float = 50.0
    """Longest time constant, in steps."""
    sequence_length: int = 50
    """Steps of a walk."""
    batch_size: int = 64
    """Walks in an optimizer step."""
    learning_rate: float = 3e-3
    """Of Adam."""
    max_epochs: int = 12
    """Passes over the training walks."""
    train_size: int = 3200
    """Number of training walks."""
    gradient_clip_val: float | None = 1.0
    """Largest gradient norm the optimizer sees. None: no clipping."""
    seed: int = 0
    """Of the walks and of the initial weights."""
    run_dir: str = "runs/mts"
    """Where all files of the run go."""
    wandb: bool | str = False
    """False, or "offline" for a Weights & Biases run on disk."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type in TYPE_NAMES and not fits(value, field.type):
                raise ConfigError(f"`{field.name}` must be {TYPE_NAMES[field.type]}, got {shown(value)}")
        for name, (low, high) in LIMITS.items():
            value = getattr(self, name)
            # This way round NaN fails too.
            if value is not None and not low <= value <= high:
                raise ConfigError(f"`{name}` must be from {low} to {high}, got {shown(value)}")
        if self.tau_max < self.tau_min:
            raise ConfigError(f"`tau_max` must be at least `tau_min` ({self.tau_min}), got {self.tau_max}")
        if not self.run_dir.strip():
            raise ConfigError("`run_dir` must name a folder, got an empty text")
        if self.wandb is not False and self.wandb != "offline":
            raise ConfigError(f"`wandb` must be false or offline, got {shown(self.wandb)}")


def fits(value: object, kind: Any) -> bool:
    """Whether a YAML value can stand for a field of this type."""
    # In Python True is a 1, in a configuration it is a slip.
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, kind) or (isinstance(value, int) and kind in (float, float | None))


def shown(value: object) -> str:
    """A value as it stands in a message, with the one thing about YAML numbers that surprises everybody."""
    if isinstance(value, str) and "e" in value.lower() and is_number(value):
        return f"the text {value!r} (YAML wants a point before the exponent: 1.0e-3)"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def is_number(text: str) -> bool:
    """Whether Python, unlike YAML, reads it as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def load_config(path: str | Path) -> RunConfig:
    """The settings in a YAML file, defaults for those it leaves out; `ConfigError` if anything is wrong with it."""
    try:
        settings = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{path}{where}: not valid YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # not UTF-8, a date such as 2024-13-45, [[[[…
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error

    if not isinstance(settings, dict):
        found = "an empty file" if settings is None else shown(settings)
        raise ConfigError(f"{path}: must be a mapping with lines such as `seed: 0`, got {found}")
    known = [field.name for field in fields(RunConfig)]
    for key in settings:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(known)}"
            raise ConfigError(f"{path}: unknown key {shown(key)}; {hint}")
    try:
        return RunConfig(**settings)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
