"""The folder examples/multi_timescale_rnn, run as a user would run it."""

import dataclasses
import importlib.util
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("lightning")
plt = pytest.importorskip("matplotlib.pyplot")
yaml = pytest.importorskip("yaml")

FOLDER = Path(__file__).parents[2] / "examples" / "multi_timescale_rnn"
MATRICES = {"W_in", "W_rec", "W_out", "W_h_init", "biases"}

DOCUMENT_000 = """
import json
import matplotlib.pyplot as plt

# Load gradient statistics
with open('path/to/run/gradient_statistics.json', 'r') as f:
    stats = json.load(f)

# Plot gradient variance
plt.figure(figsize=(10, 6))
plt.plot(stats['step'], stats['grad_variance'])
plt.xlabel('Training Step')
plt.ylabel('Gradient Variance')
plt.yscale('log')
plt.title('Gradient Variance Throughout Training')
plt.grid(True, alpha=0.3)
plt.show()

# Check for gradient issues
final_norm = stats['grad_norm'][-1]
if final_norm < 1e-6:
    print("⚠️  Warning: Possible vanishing gradients!")
elif final_norm > 10:
    print("⚠️  Warning: Possible exploding gradients!")
else:
    print("✓ Gradients appear healthy")
"""


def load(name):
    """A file of the folder as a module; the folder is not on the import path, and its file names are common ones."""
    spec = importlib.util.spec_from_file_location(f"multi_timescale_rnn_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(script, *arguments):
    command = [sys.executable, "-B", script, *map(str, arguments)]
    return subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, encoding="utf-8", timeout=600)


# The model


def numpy_rnn(rnn, x, start):
    """The leaky update, one walk and one step at a time."""
    weights = {name: p.detach().double().numpy() for name, p in rnn.named_parameters()}
    tau = np.geomspace(2.0, 30.0, 7)
    out = np.zeros((*x.shape[:2], 2))
    for walk in range(x.shape[0]):
        h = np.tanh(weights["W_h_init.weight"] @ start[walk] + weights["W_h_init.bias"])
        for t in range(x.shape[1]):
            drive = weights["W_in.weight"] @ x[walk, t] + weights["W_rec.weight"] @ h + weights["W_rec.bias"]
            h = (1 - 0.5 / tau) * h + (0.5 / tau) * np.tanh(drive)
            out[walk, t] = weights["W_out.weight"] @ h + weights["W_out.bias"]
    return out


def test_the_network_is_the_leaky_update_step_by_step():
    torch.manual_seed(0)
    rnn = load("model").MultiTimescaleRNN(hidden_size=7, tau_min=2.0, tau_max=30.0, dt=0.5).double()
    x, start = torch.randn(3, 11, 2).double(), torch.randn(3, 2).double()
    # The time constants are built in single precision.
    np.testing.assert_allclose(rnn(x, start).detach(), numpy_rnn(rnn, x.numpy(), start.numpy()), rtol=1e-5, atol=1e-6)


def test_the_parameters_have_the_documented_names():
    names = {name for name, _ in load("model").MultiTimescaleRNN().named_parameters()}
    with_bias = {f"{matrix}.{kind}" for matrix in ("W_rec", "W_out", "W_h_init") for kind in ("weight", "bias")}
    assert names == {"W_in.weight"} | with_bias


# The walks


def test_walks_depend_on_the_seed_alone():
    make_walks = load("data").make_walks
    first = make_walks(20, 30, seed=3)
    torch.randn(5)
    before = torch.get_rng_state()
    again, other = make_walks(20, 30, seed=3), make_walks(20, 30, seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first.position, other.position)


def test_walks_stay_in_the_box_and_are_the_sum_of_their_velocities():
    data = load("data")
    walks = data.make_walks(200, 100, seed=0)
    assert walks.position.abs().max() <= data.BOX
    assert walks.start.abs().max() <= data.BOX
    torch.testing.assert_close(walks.start[:, None] + walks.velocity.cumsum(1), walks.position, rtol=0, atol=1e-5)


def test_walks_turn_smoothly():
    data = load("data")
    walks = data.make_walks(200, 100, seed=0)
    inside = walks.position.abs().amax(-1) < data.BOX - 0.3  # no wall within reach of two steps
    clear = inside[:, 1:] & inside[:, :-1]
    turned = torch.nn.functional.cosine_similarity(walks.velocity[:, 1:], walks.velocity[:, :-1], dim=-1)
    assert clear.float().mean() > 0.2
    assert turned[clear].mean() > 0.95


# The configuration


def test_the_shipped_configuration_names_every_setting_and_logs_often_enough():
    config = load("config")
    written = yaml.safe_load((FOLDER / "configs" / "mts.yaml").read_text(encoding="utf-8"))
    assert set(written) == {field.name for field in dataclasses.fields(config.RunConfig)}
    steps = written["max_epochs"] * math.ceil(written["train_size"] / written["batch_size"])
    assert steps // written["grad_log_every_n_steps"] >= 20


def test_the_documented_defaults():
    config = load("config").RunConfig()
    assert config.grad_log_every_n_steps == 100
    assert config.grad_track_per_weight_matrix is True
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 1


BAD_CONFIGS = {
    "unknown key with its neighbour": ("grad_log_every_n_step: 5", "did you mean `grad_log_every_n_steps`?"),
    "unknown key far from all": ("zzz: 5", "'zzz'"),
    "key that is a number": ("1: 5", "unknown key 1"),
    "text for a whole number": ("hidden_size: many", "`hidden_size`"),
    "fraction for a whole number": ("batch_size: 2.5", "`batch_size`"),
    "truth value for a whole number": ("max_epochs: true", "`max_epochs`"),
    "whole number for a truth value": ("grad_track_per_weight_matrix: 1", "`grad_track_per_weight_matrix`"),
    "exponent without a point": ("learning_rate: 1e-3", "`learning_rate`"),
    "nothing": ("sequence_length:", "`sequence_length`"),
    "list for a text": ("run_dir: [a]", "`run_dir`"),
    "empty text": ("run_dir: ''", "`run_dir`"),
    "zero steps": ("grad_log_every_n_steps: 0", "`grad_log_every_n_steps`"),
    "negative rate": ("learning_rate: -0.1", "`learning_rate`"),
    "not a number": ("learning_rate: .nan", "`learning_rate`"),
    "infinite": ("gradient_clip_val: .inf", "`gradient_clip_val`"),
    "negative clipping": ("gradient_clip_val: -1", "`gradient_clip_val`"),
    "overshooting unit": ("tau_min: 0.5", "`tau_min`"),
    "slowest below fastest": ("tau_min: 9\ntau_max: 3", "`tau_max`"),
    "empty training": ("train_size: 0", "`train_size`"),
    "negative seed": ("seed: -1", "`seed`"),
    "other logger": ("wandb: online", "`wandb`"),
    "logger on": ("wandb: true", "`wandb`"),
    "malformed": ("seed: [1,\nhidden_size: 3", "line 2"),
    "tab": ("seed:\n\t- 1", "line 2"),
    "impossible date": ("seed: 2024-13-45", "not valid YAML"),
    "python object": ("seed: !!python/object/apply:os.getcwd []", "not valid YAML"),
    "a list": ("- seed", "mapping"),
    "empty": ("", "empty file"),
}


def assert_refused(result, *named):
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    for text in named:
        assert text in result.stderr


@pytest.mark.parametrize(("text", "named"), BAD_CONFIGS.values(), ids=BAD_CONFIGS)
def test_a_bad_configuration_is_one_line_and_status_2(text, named, tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text(text, encoding="utf-8")
    assert_refused(run("single_run.py", "--config", path), "bad.yaml", named)


def test_a_file_that_cannot_be_read_is_one_line_and_status_2(tmp_path):
    assert_refused(run("single_run.py", "--config", tmp_path / "absent.yaml"), "absent.yaml")
    assert_refused(run("single_run.py", "--config", tmp_path), str(tmp_path))
    (tmp_path / "latin.yaml").write_bytes(b"run_dir: caf\xe9")
    assert_refused(run("single_run.py", "--config", tmp_path / "latin.yaml"), "latin.yaml")


def test_a_run_dir_that_is_a_file_is_refused_and_kept(tmp_path):
    taken, path = tmp_path / "taken", tmp_path / "config.yaml"
    taken.write_text("mine")
    path.write_text(yaml.safe_dump({"run_dir": str(taken)}))
    assert_refused(run("single_run.py", "--config", path), "`run_dir`", "taken")
    assert taken.read_text() == "mine"


def test_help_and_a_missing_option():
    shown = run("single_run.py", "--help")
    assert shown.returncode == 0
    assert "--config" in shown.stdout
    assert run("single_run.py").returncode == 2


# A run from the command line to the figure


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The run's folder and what it printed: 80 steps, every 10 of them recorded."""
    folder = tmp_path_factory.mktemp("run")
    config = folder / "small.yaml"
    settings = {"grad_log_every_n_steps": 10, "hidden_size": 32, "tau_max": 20, "sequence_length": 20}
    settings |= {"train_size": 1280, "max_epochs": 4, "run_dir": str(folder / "out")}
    config.write_text(yaml.safe_dump(settings))
    result = run("single_run.py", "--config", config)
    assert result.returncode == 0, result.stderr
    return folder / "out", result.stdout


def read_strict(path):
    def refuse(token):
        raise AssertionError(f"{token} is not JSON")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def test_the_run_learns(finished):
    stayed, learned = (
        float(re.search(rf"{name} +[\d.]+ +([\d.]+)", finished[1])[1])
        for name in ("always the initial position", "MultiTimescaleRNN")
    )
    assert learned < 0.7 * stayed


def test_the_run_says_what_it_left(finished):
    run_dir, printed = finished
    assert len(list(run_dir.iterdir())) >= 4
    for path in run_dir.iterdir():
        assert str(path) in printed


def test_the_global_statistics_have_the_documented_keys_and_parallel_lists(finished):
    stats = read_strict(finished[0] / "gradient_statistics.json")
    keys = {"step", "epoch", "grad_variance", "grad_mean", "grad_norm", "grad_max", "grad_min"}
    assert keys <= set(stats)
    assert stats["step"] == list(range(10, 81, 10))
    assert all(len(stats[key]) == 8 for key in keys)
    assert all(norm > 0 for norm in stats["grad_norm"])


def test_the_statistics_per_matrix_have_the_documented_keys_and_parallel_lists(finished):
    stats = read_strict(finished[0] / "gradient_statistics_weight_matrices.json")
    assert set(stats) >= MATRICES
    for matrix in MATRICES:
        assert {"step", "variance", "norm", "mean"} <= set(stats[matrix])
        assert stats[matrix]["step"] == list(range(10, 81, 10))
        assert all(len(stats[matrix][key]) == 8 for key in ("variance", "norm", "mean"))


def test_the_figure_is_a_picture(finished):
    picture = plt.imread(finished[0] / "gradient_statistics.png")
    assert min(picture.shape[:2]) > 200
    assert picture.std() > 0


def test_the_metrics_hold_the_gradient_norm(finished):
    header = (finished[0] / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"train/loss", "val/error", "train/grad_norm", "train/grad_variance/W_rec"} <= set(header)


def test_the_documents_analysis_runs_on_the_run(finished, monkeypatch, capsys):
    plt.switch_backend("Agg")
    monkeypatch.setattr(plt, "show", lambda: None)
    exec(DOCUMENT_000.replace("path/to/run", finished[0].as_posix()), {})
    plt.close("all")
    assert "Gradients appear healthy" in capsys.readouterr().out


def test_analyze_saves_its_figure(finished, tmp_path):
    for path in (finished[0], finished[0] / "gradient_statistics.json"):
        result = run("analyze.py", path, "--out", tmp_path / "variance.png")
        assert result.returncode == 0, result.stderr
        assert "Gradients appear healthy" in result.stdout
    assert plt.imread(tmp_path / "variance.png").std() > 0


@pytest.mark.parametrize(
    ("norms", "said"),
    [([], "No gradients recorded"), ([1.0, None], "NaN"), ([1e-7], "vanishing"), ([11.0], "exploding"), ([1], "✓")],
)
def test_analyze_judges_the_last_norm(norms, said):
    assert said in load("analyze").verdict(norms)


def test_analyze_names_a_file_that_is_absent(tmp_path):
    result = run("analyze.py", tmp_path, "--out", tmp_path / "x.png")
    assert result.returncode != 0
    assert "gradient_statistics.json" in result.stderr
    assert "Traceback" not in result.stderr
