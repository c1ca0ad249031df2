"""Draws the pictures of the documentation: `python docs/pictures.py` (a few minutes: it runs the examples)."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from PIL import Image
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait
from torch import nn

import gradient_flow as gf
from gradient_flow.report.figures import new_figure, plot_profile

IMAGES = Path(__file__).parent / "images"
EXAMPLES = Path(__file__).parents[1] / "examples"
DEPTH, WIDTH, CLASSES, FEATURES = 9, 64, 10, 32
MADE_BY_EXAMPLES = {
    "gradient_gain_monitor.py .": {"log_gains.png": "log_gains.png", "pre_ln_post_ln.png": "pre_ln_post_ln.png"},
    "gradient_management_example.py": {
        "training_curves.png": "training_curves.png",
        "gradient_stats.png": "gradient_stats.png",
    },
    "lightning_example.py": {"runs/lightning/gradient_statistics.png": "lightning_statistics.png"},
    "multi_timescale_rnn/single_run.py --config {examples}/multi_timescale_rnn/configs/mts.yaml": {
        "runs/mts/gradient_statistics.png": "mts_statistics.png"
    },
}
"""Command → what it leaves in the current folder → its name here."""


def deep(activation: type[nn.Module]) -> nn.Sequential:
    """A stack of linear layers with this activation, initialised as fits it."""
    layers: list[nn.Module] = []
    for depth in range(DEPTH):
        last = depth == DEPTH - 1
        linear = nn.Linear(WIDTH if depth else FEATURES, CLASSES if last else WIDTH)
        (nn.init.kaiming_normal_ if activation is nn.ReLU else nn.init.xavier_normal_)(linear.weight)
        nn.init.zeros_(linear.bias)
        layers += [linear] if last else [linear, activation()]
    return nn.Sequential(*layers)


def demo_picture() -> None:
    """Gradient norms over depth of a healthy and of a sick network, over 200 steps of training."""
    torch.manual_seed(0)
    centres = torch.randn(CLASSES, FEATURES)
    figure = new_figure(11, 3.6)
    titles = {"ReLU, He initialisation": nn.ReLU, "Sigmoid, Xavier": nn.Sigmoid}
    for axes, (title, activation) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        model = deep(activation)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        names = {f"{2 * depth}.weight": f"Layer {depth}" for depth in range(DEPTH)}
        whole = None
        for _ in range(200):
            target = torch.randint(CLASSES, (128,))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(centres[target] + 0.5 * torch.randn(128, FEATURES)), target).backward()
            table = gf.measure(model).group(names, rest=False)
            whole = table if whole is None else whole.merge(table)  # rows of all steps together
            optimizer.step()
        assert whole is not None
        profile = gf.visualize_layer_gradients({name: whole[name].norm for name in whole})
        plot_profile(profile, axes, title=title)
    figure.savefig(IMAGES / "demo.png", dpi=110)


def report_picture() -> None:
    """The top of the report that `gradient-flow demo --fault vanishing` writes, as Chromium shows it."""
    options = webdriver.ChromeOptions()
    with tempfile.TemporaryDirectory() as folder:
        for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}/u"):
            options.add_argument(flag)
        command = ["-m", "gradient_flow", "demo", "--fault", "vanishing", "--out", f"{folder}/demo"]
        subprocess.run([sys.executable, *command], check=True)
        page = next(Path(folder).rglob("report.html"))
        with webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver"))) as chromium:
            window = {"width": 1440, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", window)
            chromium.get(page.as_uri())
            drawn = "return document.documentElement.dataset.ready === 'yes'"
            WebDriverWait(chromium, 30).until(lambda driver: driver.execute_script(drawn))
            chromium.save_screenshot(f"{folder}/report.png")
        small(Path(folder) / "report.png", IMAGES / "report.png", colours=256)


def example_pictures() -> None:
    """What the examples draw, made small."""
    for command, pictures in MADE_BY_EXAMPLES.items():
        with tempfile.TemporaryDirectory() as folder:
            script, *arguments = command.format(examples=EXAMPLES).split()
            subprocess.run([sys.executable, str(EXAMPLES / script), *arguments], cwd=folder, check=True)
            for made, name in pictures.items():
                small(Path(folder) / made, IMAGES / name)


def small(source: Path, target: Path, colours: int = 64) -> None:
    """At most 1000 pixels wide and this many colours."""
    picture = Image.open(source).convert("RGB")
    width = min(1000, picture.width)
    size = width, round(picture.height * width / picture.width)
    picture.resize(size, Image.Resampling.LANCZOS).quantize(colours, dither=Image.Dither.NONE).save(
        target, optimize=True
    )


if __name__ == "__main__":
    report_picture()
    demo_picture()
    example_pictures()
