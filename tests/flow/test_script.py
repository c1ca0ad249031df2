"""`gradient-flow run`: as the script alone, and watched."""

import os
import signal
import socket
import subprocess
import sys

import pytest

import gradient_flow as gf
from warm import warm_python

SCRIPT = """
import sys, torch
from torch import nn
import neighbour

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 1)
    def forward(self, x):
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.head(x)

if __name__ == "__main__":
    torch.manual_seed(0)
    print("arguments", sys.argv[1:])
    if "stdin" in sys.argv:
        print("read", sys.stdin.read())
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for step in range(100000 if "forever" in sys.argv else 30):
        optimizer.zero_grad()
        loss = net(torch.randn(16, 8)).square().mean()
        if step == 20 and "nan" in sys.argv:
            loss = loss * float("nan")
        loss.backward()
        optimizer.step()
        if "forever" in sys.argv:
            print("step", step, flush=True)
    print("weights", sum(p.double().sum().item() for p in net.parameters()))
    if "crash" in sys.argv:
        raise ValueError("from the script")
    if "exit" in sys.argv:
        sys.exit(7)
    if "message" in sys.argv:
        sys.exit("a message")
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "neighbour.py").write_text("")
    return tmp_path


def cold_python(*command, cwd):
    return subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=120)


def plain(folder, *arguments, python=warm_python):
    return python("train.py", *arguments, cwd=folder)


def watched(folder, *arguments, options=(), target=("train.py",), python=warm_python, **settings):
    command = ["-m", "gradient_flow", "run", "--out", "out", *options, *target, *arguments]
    return python(*command, cwd=folder, **settings)


def test_the_script_behaves_as_without_us_and_the_run_is_there(folder):
    alone, ours = (run(folder, "--lr", "3", "-m", "x", python=cold_python) for run in (plain, watched))
    assert ours.returncode == alone.returncode == 0
    assert ours.stdout == alone.stdout  # also the weights, to the last digit
    assert "30 steps watched" in ours.stderr
    assert "verdict: Healthy" in ours.stderr
    assert "run folder: out" in ours.stderr
    run = gf.load_run(folder / "out")
    assert len(run) == 30
    assert run.table(10).names[0] == "blocks.0.weight"
    assert run.header["groups"]["blocks.1.weight"] == "blocks.1"


@pytest.mark.parametrize("how", ["exit", "message", "crash"])
def test_exit_status_and_error_output_are_the_scripts_own(folder, how):
    alone, ours = plain(folder, how), watched(folder, how)
    assert ours.returncode == alone.returncode != 0
    assert "30 steps watched" in ours.stderr
    assert alone.stderr.strip().rpartition("\n")[2] in ours.stderr
    assert "runpy" not in ours.stderr
    assert "gradient_flow/" not in ours.stderr
    assert len(gf.load_run(folder / "out")) == 30


def test_a_nan_is_reported_with_layer_and_step(folder):
    ours = watched(folder, "nan")
    assert "NUMERICAL in `head.bias`, since step 21" in " ".join(ours.stderr.split())
    assert "  try first: " in ours.stderr
    assert max(map(len, ours.stderr.splitlines())) < 130


def test_standard_input_reaches_the_script(folder):
    assert "read hello" in watched(folder, "stdin", input="hello").stdout


def test_as_a_module_and_quietly_and_every_n(folder):
    ours = watched(folder, "x", options=("--quiet", "--every", "10", "-m"), target=("train",))
    assert "arguments ['x']" in ours.stdout
    assert ours.stderr == ""
    assert gf.load_run(folder / "out").series("step").tolist() == [10, 20, 30]


def hear_interrupts():
    """A shell without job control starts what runs in the background deaf to Ctrl-C, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_by_signal_after_the_summary(folder):
    command = [sys.executable, "-m", "gradient_flow", "run", "--out", "out", "train.py", "forever"]
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=hear_interrupts,
    )
    try:
        for line in process.stdout:
            if line.startswith("step 20"):
                break
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors
    assert "steps watched" in errors
    assert len(gf.load_run(folder / "out")) >= 20


def test_a_script_that_is_not_there_is_a_usage_error(folder):
    ours = watched(folder, target=("nothing.py",))
    assert ours.returncode == 2
    assert "There is no script 'nothing.py'" in ours.stderr


def test_a_script_without_training_says_so(folder):
    (folder / "empty.py").write_text("print('hello')")
    ours = watched(folder, target=("empty.py",))
    assert ours.returncode == 0
    assert "no optimizer took a step" in ours.stderr


LEFT_AS_IT_WAS = """
import sys
from pathlib import Path
import torch
from torch.nn.modules import module
from torch.optim import optimizer
from gradient_flow.flow.script import ScriptWatch

def what_torch_has():
    clip, make = torch.nn.utils.clip_grad._clip_grads_with_norm_, torch.optim.Optimizer._patch_step_function
    return clip, make, dict(optimizer._global_optimizer_pre_hooks), dict(module._global_forward_pre_hooks)

before = what_torch_has()
watch = ScriptWatch(Path("out"), every=1)
assert all(now != then for now, then in zip(what_torch_has(), before, strict=True))
try:
    torch.optim.SGD([], lr=0.1)  # half made: it must not be met
except ValueError as refused:
    assert "empty parameter list" in str(refused)
torch.nn.utils.clip_grad_norm_([torch.zeros(2, requires_grad=True)], 1.0)
watch.close()
assert what_torch_has() == before
assert not Path("out").exists()
"""


def test_closing_leaves_torch_as_it_was(tmp_path):
    # In a process of its own: a Flow that another test has not closed yet listens to clips too.
    ended = warm_python("-c", LEFT_AS_IT_WAS, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_without_out_the_folder_is_named_after_time_and_script(folder):
    warm_python("-m", "gradient_flow", "run", "train.py", cwd=folder).check_returncode()
    (made,) = (folder / "runs").iterdir()
    assert made.name.endswith("_train")


CLIPPED = """
import torch, sys
from torch import nn
{early}
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
{made}
for _ in range(3):
    model.zero_grad()
    (100 * model(torch.randn(16, 4)).square().mean()).backward()
    {clip}
    {step}
"""
ONE = "optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)"
TWO = "both = [torch.optim.SGD(part.parameters(), lr=0.001) for part in (model[0], model[2])]"
CLIPS = {
    "imported first": {
        "early": "from torch.nn.utils import clip_grad_norm_",
        "clip": "print(clip_grad_norm_(model.parameters(), 1.0).item())",
    },
    "imported late": {
        "clip": "from torch.nn.utils import clip_grad_norm_ as c; print(c(model.parameters(), 1.0).item())",
    },
    "one tensor at a time": {
        "clip": "n = [nn.utils.clip_grad_norm_(p, 0.1) for p in model.parameters()];"
        " print(torch.stack(n).norm().item())",
    },
    "clipped twice": {
        "clip": "print(nn.utils.clip_grad_norm_(model.parameters(), 1.0).item());"
        " nn.utils.clip_grad_value_(model.parameters(), 0.1)",
    },
    "a copied optimizer": {
        "made": "import copy\n" + ONE + "\nmodel, optimizer = copy.deepcopy((model, optimizer))",
        "clip": "print(nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())",
    },
    "by hand": {  # nobody can see that: recorded as the optimizer gets it
        "clip": "n = nn.utils.get_total_norm([p.grad for p in model.parameters()]);"
        " [p.grad.mul_(1 / n) for p in model.parameters()]; print(1.0)",
    },
}


@pytest.mark.parametrize("how", CLIPS)
def test_also_the_first_step_is_recorded_as_it_was_before_the_clip(folder, how):
    parts = {"early": "", "made": ONE, "step": "optimizer.step()", **CLIPS[how]}
    (folder / "train.py").write_text(CLIPPED.format(**parts))
    ours, alone = watched(folder), plain(folder)
    assert ours.stdout == alone.stdout
    run = gf.load_run(folder / "out")
    assert run.series("norm").tolist() == pytest.approx([float(line) for line in ours.stdout.split()], rel=1e-5)
    assert all("weight" in name or "bias" in name for name in run.table(1).names)


def test_of_several_optimizers_the_first_record_names_its_own(folder):
    clip = "print(*[nn.utils.clip_grad_norm_(part.parameters(), 1.0).item() for part in (model[0], model[2])])"
    step = "[optimizer.step() for optimizer in both]"
    (folder / "train.py").write_text(CLIPPED.format(early="", made=TWO, clip=clip, step=step))
    ours = watched(folder)
    run = gf.load_run(folder / "out")
    assert run.series("optimizer").tolist() == [0, 1] * 3
    assert run.series("norm").tolist() == pytest.approx([float(text) for text in ours.stdout.split()], rel=1e-5)
    assert run.table(1).names == ("0.weight", "0.bias")
    assert [parameter["name"] for parameter in run.parameters] == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_one_that_steps_later_is_counted_from_the_first_record_on(folder):
    """Its parameter belongs to no module, and it is still waiting when the other one takes its first steps."""
    made = "log_alpha = torch.zeros(1, requires_grad=True)\nalpha = torch.optim.Adam([log_alpha])\n" + ONE
    step = "optimizer.step(); _ == 2 and (log_alpha.exp().sum().backward(), alpha.step())"
    (folder / "train.py").write_text(CLIPPED.format(early="", made=made, clip="", step=step))
    watched(folder)
    assert gf.load_run(folder / "out").series("optimizer").tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("seen", [True, False])
def test_a_model_that_is_gone_before_the_step_leaves_names_or_positions(folder, seen):
    made = "weights = [model[0].weight, model[2].weight]\noptimizer = torch.optim.SGD(weights, lr=0.1)"
    clip = "model = None; nn.utils.clip_grad_norm_(weights, 1.0)"
    text = CLIPPED.format(early="", made=made, clip=clip, step="optimizer.step(); break")
    if not seen:  # an optimizer is met at its loss; not at a pass that may be of something else
        text = text.replace(".backward()", ".backward(inputs=weights)")
    (folder / "train.py").write_text(text)
    ours = watched(folder)
    assert "1 step watched" in ours.stderr
    run = gf.load_run(folder / "out")
    assert run.table(1).names == (("0.weight", "2.weight") if seen else ("optimizer0.0.0", "optimizer0.0.1"))
    assert run.series("norm")[0] > 1.5  # clipped it is 1


def test_under_torchrun_one_rank_writes(folder):
    (folder / "parallel.py").write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "torch.set_num_threads(1)\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(6):\n"
        "    optimizer.zero_grad(); model(torch.randn(3, 4)).sum().backward(); optimizer.step()\n"
        "print(f'rank {dist.get_rank()} trained\\n', end='', flush=True)\n"
        "dist.destroy_process_group()\n"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += [
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        port,
        "-m",
        "gradient_flow",
        "run",
        "--out",
        "out",
        "parallel.py",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=150, env=environment)
    # Not by its status: now and then gloo aborts while it is torn down, after the script has ended.
    assert sorted(done.stdout.splitlines()) == ["rank 0 trained", "rank 1 trained"], done.stderr
    assert done.stderr.count("6 steps watched") == 1
    run = gf.load_run(folder / "out")
    assert len(run) == 6
    assert [parameter["name"] for parameter in run.parameters] == ["weight", "bias"]


def test_the_summary_has_the_first_loss_and_the_last(folder):
    text = CLIPPED.format(early="", made=ONE, clip="", step="optimizer.step()")
    text = text.replace(
        "    (100 * model(torch.randn(16, 4)).square().mean()).backward()",
        """\
    loss = 100 * model(torch.randn(16, 4)).square().mean(); print(f"loss {loss.item():.3g}")
    loss.backward()""",
    )
    (folder / "train.py").write_text(text)
    ours = watched(folder)
    told = [line.split()[1] for line in ours.stdout.splitlines() if line.startswith("loss")]
    assert f"  loss: first {told[0]}, last {told[-1]}" in ours.stderr.splitlines()


def test_the_summary_has_a_loss_for_each_player(folder):
    (folder / "train.py").write_text("""
import torch
from torch import nn
torch.manual_seed(0)
generator, critic = nn.Linear(3, 3), nn.Linear(3, 1)
players = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (critic, generator)]
for _ in range(3):
    for at, player in enumerate(players):
        player.zero_grad()
        loss = critic(generator(torch.ones(2, 3))).mean() * (-1) ** at
        loss.backward()
        print(f"loss {at} {loss.item():.3g}")
        player.step()
""")
    ours = watched(folder)
    for at in "01":
        told = [line.split()[2] for line in ours.stdout.splitlines() if line.startswith(f"loss {at}")]
        assert f"  loss of optimizer {at}: first {told[0]}, last {told[-1]}" in ours.stderr.splitlines()
        assert f"  gradient norm of optimizer {at}: first " in ours.stderr


CLOSURE = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):

    def closure():
        optimizer.zero_grad()
        loss = model(torch.randn(16, 4)).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
"""


def test_a_model_that_is_first_called_in_the_closure_of_a_step_is_known_by_its_names(folder):
    (folder / "train.py").write_text(CLOSURE)
    assert watched(folder).returncode == 0
    run = gf.load_run(folder / "out")
    assert run.tensor_names == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert len(run) == 8
    assert run.look_steps
