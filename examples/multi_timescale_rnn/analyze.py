"""Plot the gradient variance of a run and judge its last gradient norm.

python analyze.py runs/mts --out variance.png
"""

import argparse
import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt


def load_statistics(path: Path) -> dict:
    """The content of gradient_statistics.json, given the file or the folder it lies in."""
    if path.is_dir():
        path = path / "gradient_statistics.json"
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except (OSError, ValueError) as error:
        raise SystemExit(f"error: cannot read {path}: {error}") from error


def plot_variance(stats: dict, out: Path | None) -> None:
    """On the screen, or into a file."""
    plt.figure(figsize=(10, 6))
    plt.plot(stats["step"], stats["grad_variance"])
    plt.xlabel("Training Step")
    plt.ylabel("Gradient Variance")
    plt.yscale("log")
    plt.title("Gradient Variance Throughout Training")
    plt.grid(True, alpha=0.3)
    if out is None:
        plt.show()
    else:
        plt.savefig(out)


def verdict(norms: list) -> str:
    """A sentence about the last recorded gradient norm."""
    if not norms:
        return "No gradients recorded: the training was shorter than grad_log_every_n_steps"
    final_norm = norms[-1]
    if final_norm is None:  # JSON has no NaN, the file says null
        return "⚠️  Warning: Gradients are NaN or infinite!"
    if final_norm < 1e-6:
        return "⚠️  Warning: Possible vanishing gradients!"
    if final_norm > 10:
        return "⚠️  Warning: Possible exploding gradients!"
    return "✓ Gradients appear healthy"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, help="a run's folder, or its gradient_statistics.json")
    parser.add_argument("--out", type=Path, metavar="PNG", help="save the figure there instead of showing it")
    arguments = parser.parse_args()
    # A terminal without these signs should get a question mark, not a traceback.
    sys.stdout.reconfigure(errors="replace")
    stats = load_statistics(arguments.path)
    plot_variance(stats, arguments.out)
    print(verdict(stats["grad_norm"]))


if __name__ == "__main__":
    main()
