"""Draws the pictures of the README: `python docs/pictures.py`."""

from pathlib import Path

from rich.console import Console

from gradient_flow.demo import run
from gradient_flow.show.plots import new_figure, plot_profile

IMAGES = Path(__file__).parent / "images"


def demo_picture() -> None:
    """Both profiles of `gradient-flow demo`."""
    patients = run(steps=200, seed=0, console=Console(quiet=True))
    figure = new_figure(11, 3.6)
    for axes, patient in zip(figure.subplots(1, 2), patients, strict=True):
        plot_profile(patient.profile, axes, title=patient.name)
    figure.savefig(IMAGES / "demo.png", dpi=110)


if __name__ == "__main__":
    demo_picture()
