"""Train a MultiTimescaleRNN on path integration and watch its gradients.

python single_run.py --config configs/mts.yaml
"""

import argparse
import importlib.util
import logging
import math
import sys
import warnings
from pathlib import Path

from config import ConfigError, RunConfig, load_config

VALIDATION_WALKS = 500
OUTPUTS = (
    "gradient_statistics.json",
    "gradient_statistics_weight_matrices.json",
    "gradient_statistics.png",
    "metrics.csv",
)


def prepare_run_dir(config: RunConfig) -> Path:
    """The run's folder, without the files an earlier run left in it."""
    run_dir = Path(config.run_dir)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        # With tracking per matrix switched off since, an old file would pass for one of this run.
        for name in OUTPUTS:
            (run_dir / name).unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"`run_dir` cannot be used: {error}") from error
    return run_dir


def require_packages(config: RunConfig) -> None:
    """Fail before training, not after it, where an optional package is missing."""
    for package in ("lightning", "matplotlib", *(["wandb"] if config.wandb else [])):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"this run needs the package {package}: pip install {package}")


def make_logger(config: RunConfig, run_dir: Path):
    """Metrics as a CSV file, or as an offline Weights & Biases run."""
    from lightning.pytorch.loggers import CSVLogger, WandbLogger

    if config.wandb == "offline":
        return WandbLogger(project="multi_timescale_rnn", save_dir=run_dir, offline=True)
    return CSVLogger(run_dir, name="", version="")  # no subfolders: all files of a run lie together


def train(config: RunConfig, run_dir: Path) -> None:
    """Train, then print the error on new walks and what lies in the run's folder."""
    # Only here: these take seconds, and a mistake in the configuration should show at once.
    import lightning
    import torch
    from data import make_walks
    from model import MultiTimescaleRNN, PathIntegration, position_error
    from torch.utils.data import DataLoader, TensorDataset

    from gradient_flow import GradientStatisticsCallback

    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # after the import, which sets it to INFO
    # Matrices this small gain nothing from a second thread, and threads that wait for each other
    # make the run four times slower as soon as another process needs the core.
    torch.set_num_threads(1)
    lightning.seed_everything(config.seed, verbose=False)
    # Even and odd seeds: training walks of one run are never the validation walks of another.
    training = make_walks(config.train_size, config.sequence_length, 2 * config.seed)
    validation = make_walks(VALIDATION_WALKS, config.sequence_length, 2 * config.seed + 1)
    rnn = MultiTimescaleRNN(hidden_size=config.hidden_size, tau_min=config.tau_min, tau_max=config.tau_max)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=config.max_epochs,
        gradient_clip_val=config.gradient_clip_val,
        logger=make_logger(config, run_dir),
        log_every_n_steps=1,
        callbacks=[
            GradientStatisticsCallback(
                grad_log_every_n_steps=config.grad_log_every_n_steps,
                grad_track_per_weight_matrix=config.grad_track_per_weight_matrix,
                save_dir=run_dir,
            )
        ],
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(
        PathIntegration(rnn, config.learning_rate),
        DataLoader(TensorDataset(*training), config.batch_size, shuffle=True),
        DataLoader(TensorDataset(*validation), VALIDATION_WALKS),
    )

    rnn.eval()
    with torch.no_grad():
        predicted = rnn(validation.velocity, validation.start)
    stayed = validation.start[:, None].expand_as(validation.position)
    print(f"\n{'position error on new walks':<32}{'all steps':>10}{'last step':>11}")
    for name, guess in (("always the initial position", stayed), ("MultiTimescaleRNN", predicted)):
        errors = (position_error(guess, validation.position), position_error(guess[:, -1], validation.position[:, -1]))
        print(f"  {name:<30}{errors[0]:>10.3f}{errors[1]:>11.3f}")


def print_files(run_dir: Path) -> None:
    """What the run left, with a Weights & Biases folder as one line."""
    print(f"\nfiles in {run_dir}:")
    for path in sorted(run_dir.iterdir()):
        print(f"  {path}{'/' if path.is_dir() else ''}")


def main() -> int:
    """Exit status 0, or 2 where the configuration cannot be used."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--config", required=True, metavar="FILE", help="YAML file, for example configs/mts.yaml")
    arguments = parser.parse_args()
    try:
        config = load_config(arguments.config)
        require_packages(config)
        run_dir = prepare_run_dir(config)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2

    # The walks are in memory already: worker processes would only add to the time.
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # between Lightning and torch, nothing to do here
    steps = config.max_epochs * math.ceil(config.train_size / config.batch_size)
    if steps < config.grad_log_every_n_steps:
        print(
            f"note: {steps} steps in all, `grad_log_every_n_steps` is {config.grad_log_every_n_steps}: nothing to log"
        )
    train(config, run_dir)
    print_files(run_dir)
    return 0


if __name__ == "__main__":
    sys.exit(main())
