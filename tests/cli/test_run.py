"""`gradient-flow run` as a user starts it: the script sees what plain `python` shows it, and ends as it does there."""

import os
import signal
import subprocess
import sys
import zipfile

import pytest

import gradient_flow as gf
from warm import warm_python

SHOW = """
import sys
print(__name__, __file__, repr(__package__), repr(__doc__), type(__loader__).__name__, type(__builtins__).__name__)
print(getattr(__spec__, "name", None), sorted(name for name in globals() if name.startswith("__")))
print(sys.argv, sys.path[0], vars(sys.modules["__main__"]) is globals())
def fail():
    return 1 / 0
fail()
"""

TRAIN = """
import torch
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
"""


@pytest.fixture
def folder(tmp_path):
    for name in ("scripts/show.py", "app/__main__.py", "package/module.py", "package/__main__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(SHOW)
    (tmp_path / "link.py").symlink_to("scripts/show.py")
    (tmp_path / "empty").mkdir()
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.writestr("__main__.py", SHOW)
    return tmp_path


def started(folder, *command, **settings):
    """What came of `python <command>`, from nothing: here starts, ends and tracebacks are compared to the letter."""
    return subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=120, **settings
    )


def watched(folder, *command, options=("--out", "out"), **settings):
    return started(folder, "-m", "gradient_flow", "run", *options, *command, **settings)


def warm(folder, *command, options=("--out", "out")):
    """The same where something else is asked, without waiting for torch to be imported."""
    return warm_python("-m", "gradient_flow", "run", *options, *command, cwd=folder)


def script(folder, text, name="train.py"):
    (folder / name).write_text(text)
    return folder


def assert_as_plain_python(folder, *command):
    alone, ours = started(folder, *command), watched(folder, *command, options=("--quiet", "--out", "out"))
    assert ours.stdout == alone.stdout
    assert ours.stderr == alone.stderr
    assert ours.returncode == alone.returncode
    return alone


# ---- what the script sees, and its traceback ---------------------------------------------------------------------

STARTS = {
    "file": ("scripts/show.py", "--lr", "-m"),
    "unusual path": ("./scripts/../scripts/show.py",),
    "link": ("link.py",),
    "folder": ("./app/", "x"),
    "zip": ("app.zip", "x"),
    "module": ("-m", "package.module", "x"),
    "package": ("-m", "package"),
}
FAILED_STARTS = {"no such module": ("-m", "nowhere"), "folder without main": ("empty",)}


@pytest.mark.parametrize("command", STARTS.values(), ids=STARTS)
def test_names_arguments_path_and_traceback_are_those_of_plain_python(folder, command):
    alone = assert_as_plain_python(folder, *command)
    assert "ZeroDivisionError" in alone.stderr
    assert alone.stdout


@pytest.mark.parametrize("command", FAILED_STARTS.values(), ids=FAILED_STARTS)
def test_what_cannot_be_started_is_refused_in_the_words_of_python(folder, command):
    assert assert_as_plain_python(folder, *command).returncode == 1


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no -P")
def test_without_a_path_of_its_own_the_script_gets_none(folder):
    alone = started(folder, "-P", "scripts/show.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    ours = started(folder, "-P", "-m", "gradient_flow", "run", "--quiet", "scripts/show.py", env=environment)
    assert alone.stdout.splitlines()[:2] == ours.stdout.splitlines()[:2]
    assert str(folder / "scripts") not in ours.stdout.splitlines()[2]


# ---- how it ends -------------------------------------------------------------------------------------------------

ENDINGS = {
    "status": "import sys; sys.exit(3)",
    "text": "import sys; sys.exit('a reason')",
    "at once": "import os; print('out', flush=True); os._exit(4)",
    "syntax": "def f(:\n    pass",
    "chained": "try:\n    1 / 0\nexcept ZeroDivisionError as cause:\n    raise ValueError('outer') from cause",
    "exit handler": "import atexit\natexit.register(divmod, 1, 0)\natexit.register(print, 'handler')\nprint('end')",
    "interrupt": "import atexit\natexit.register(print, 'handler')\nprint('buffered')\nraise KeyboardInterrupt",
    "hook": "import sys\nsys.excepthook = lambda kind, error, trace: print(kind, error, trace.tb_lineno)\n1 / 0",
    "hook of an interrupt": (
        "import sys\nsys.excepthook = lambda kind, *_: print(kind, sys.exc_info())\nraise KeyboardInterrupt"
    ),
    "hook that fails": "import sys\ndef hook(*_):\n    raise ValueError('hook')\nsys.excepthook = hook\n1 / 0",
    "hook that exits": "import sys\nsys.excepthook = lambda *_: sys.exit(5)\n1 / 0",
    "after the end": (
        "import atexit, sys\n"
        "def last():\n"
        "    print(sys.argv, sys.path[0], sys.modules['__main__'].last is last, sys.last_type)\n"
        "atexit.register(last)\n"
        "1 / 0"
    ),
}
STATUS = {"exit handler": 0, "status": 3, "at once": 4, "hook that exits": 5}


@pytest.mark.parametrize("how", ENDINGS)
def test_it_ends_as_under_plain_python(folder, how):
    script(folder, ENDINGS[how])
    expected = -signal.SIGINT if "interrupt" in how else STATUS.get(how, 1)
    assert assert_as_plain_python(folder, "train.py").returncode == expected


def test_torch_is_as_it_was_when_the_script_has_failed(folder):
    """Exit handlers run after the watch has ended."""
    script(
        folder,
        TRAIN
        + "import atexit\n"
        + "from torch.nn.modules import module\n"
        + "from torch.optim import optimizer as base\n"
        + "from torch.nn.utils import clip_grad, clip_grad_value_\n"
        + "def look():\n"
        + "    print(len(module._global_forward_pre_hooks), len(base._global_optimizer_pre_hooks))\n"
        + "    print(len(optimizer._optimizer_step_pre_hooks), len(optimizer._optimizer_step_post_hooks))\n"
        + "    made = [base.Optimizer._patch_step_function, clip_grad._clip_grads_with_norm_]\n"
        + "    made += [cell.cell_contents for cell in clip_grad_value_.__closure__]\n"
        + "    print([function.__code__.co_filename for function in made])\n"
        + "atexit.register(look)\n"
        + "train(2)\n"
        + "raise ValueError\n",
    )
    alone, ours = warm_python("train.py", cwd=folder), warm(folder, "train.py")
    assert ours.stdout == alone.stdout
    assert "2 steps watched" in ours.stderr
    assert ours.returncode == alone.returncode == 1


# ---- where the run goes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [("--out", "out"), ()], ids=["named", "default"])
def test_a_script_that_changes_directory_keeps_its_run_and_finds_itself(folder, options):
    text = "import os\nos.makedirs('elsewhere'); os.chdir('elsewhere')\n"
    script(
        folder, text + TRAIN + "train(4)\nprint(open(__file__).read().count('ValueError'))\nraise ValueError('seen')"
    )
    ours = warm(folder, "train.py", options=options)
    assert ours.stdout == "2\n"
    assert "raise ValueError('seen')" in ours.stderr  # the source line in the traceback
    (run,) = [path.parent for path in folder.rglob("run.jsonl")]
    assert "elsewhere" not in str(run)
    assert len(gf.load_run(run)) == 4
    assert f"run folder: {run.relative_to(folder)}" in ours.stderr  # as seen from the shell


# ---- where it trains ---------------------------------------------------------------------------------------------


def test_training_in_a_thread_that_outlives_the_script_is_watched_to_its_end(folder):
    text = TRAIN + "import threading, time\ndef late():\n    time.sleep(0.5); train(5)\n"
    ours = warm(script(folder, text + "threading.Thread(target=late).start()"), "train.py")
    assert "5 steps watched" in ours.stderr
    assert len(gf.load_run(folder / "out")) == 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_leaves_the_run_to_its_parent(folder):
    text = TRAIN + "import os\ntrain(2)\nchild = os.fork()\ntrain(3)\n"
    ours = warm(script(folder, text + "child and os.waitpid(child, 0)"), "train.py")
    assert ours.stderr.count("steps watched") == 1
    assert len(gf.load_run(folder / "out")) == 5
    assert (folder / "out" / "run.jsonl").read_text().count('"kind":"end"') == 1


SPAWNED = TRAIN.replace("import torch", "import torch, torch.multiprocessing as mp", 1) + (
    "def child(rank):\n"
    "    train(3)\n"
    "    print('child', rank, 'trained', flush=True)\n"
    "if __name__ == '__main__':\n"
    "    mp.spawn(child, nprocs=2)\n"
)

UNWATCHED = {
    "children": (
        SPAWNED,
        ["It started child processes", "torchrun --nproc-per-node 2 -m gradient_flow run", "gf.watch(model, opt"],
    ),
    "nothing": (
        "print('evaluated')",
        ["It trains in child processes", "torch.optim.Optimizer", "flow.step()", "only evaluates"],
    ),
    "exception": ("{}['lr']", ["ended with KeyError before the first step"]),
    "usage": ("import argparse\nargparse.ArgumentParser().parse_args(['--lr'])", ["ended with status 2 before"]),
    "clipped, not stepped": (
        TRAIN + "model(torch.ones(1, 3)).sum().backward()\n"
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\nraise RuntimeError('early')\n",
        ["ended with RuntimeError before the first step"],
    ),
}


@pytest.mark.parametrize("how", UNWATCHED)
def test_without_a_step_the_message_names_the_reason_and_the_way_out(folder, how):
    text, expected = UNWATCHED[how]
    start = watched if how == "children" else warm  # a child of its own needs a start that it can repeat
    ours = start(script(folder, text), "train.py")
    message = ours.stderr[ours.stderr.index("gradient-flow: no optimizer took a step") :]
    for part in expected:
        assert part in message
    assert max(map(len, message.splitlines())) <= 80
    if how == "children":
        assert sorted(ours.stdout.splitlines()) == ["child 0 trained", "child 1 trained"]
    assert ("one of these is the reason" in message) == (how in ("children", "nothing"))


def test_warnings_as_errors_do_not_end_the_training(folder):
    """What cannot be watched is said in a warning, which the script's filter would turn into an exception."""
    text = TRAIN + "import warnings\nwarnings.simplefilter('error')\n"
    text += (
        "class Secret(torch.nn.Linear):\n    def named_parameters(self, *_, **__):\n        raise KeyError('secret')\n"
    )
    text += "model = Secret(3, 1)\noptimizer = torch.optim.SGD([model.weight], lr=0.1)\ntrain(3)\nprint('trained')"
    ours = warm(script(folder, text), "train.py")
    assert ours.stdout == "trained\n"
    assert ours.returncode == 0
    assert ours.stderr.startswith("This optimizer is not watched (KeyError: 'secret').")


# ---- how it ends, and what it tells meanwhile --------------------------------------------------------------------

SICK = f"{TRAIN}\nmodel.weight.data.fill_(float('nan'))\ntrain(30)\n"


def test_it_ends_with_the_verdict_where_the_run_lies_and_a_next_command_that_works(folder):
    sound = f"import torch; torch.manual_seed(0)\n{TRAIN}\ntrain(2)\n"
    for text, name, command in ((sound, "one", "report --open"), (SICK, "two", "diagnose")):
        ours = warm(script(folder, text), "train.py", options=("--out", f"my runs/{name}"))
        lines = ours.stderr.splitlines()
        assert any(line.startswith("  verdict: ") for line in lines)
        assert lines[-2:] == [
            f"  run folder: 'my runs/{name}'",
            f"  next: gradient-flow {command} 'my runs/{name}'",
        ]
    told = started(folder, "-m", "gradient_flow", "diagnose", "my runs/two")
    assert "NUMERICAL" in told.stdout


def test_a_script_that_is_not_there_is_named_with_what_may_have_been_meant(folder):
    script(folder, TRAIN)
    for command, told in (
        (("trian.py",), "Did you mean 'train.py'?"),
        (("nothing.py",), "The current folder is"),
        (("package.train",), "gradient-flow run -m package.train"),
        (("--lr", "3", "train.py"), "come after it: gradient-flow run train.py --lr"),
    ):
        refused = warm(folder, *command)
        assert refused.returncode == 2
        assert told in refused.stderr


CARRIED = f"""{TRAIN}
train(2)
state = model(torch.ones(2, 3))
state.sum().backward()
state.sum().backward()
"""


def test_an_error_of_autograd_looks_as_under_plain_python_and_says_what_to_do(folder):
    script(folder, CARRIED)
    alone, ours = started(folder, "train.py"), watched(folder, "train.py")
    assert ours.stderr.startswith(alone.stderr)
    told = " ".join(ours.stderr.removeprefix(alone.stderr).split())
    assert "The run failed at step 2 with RuntimeError: Trying to backward through the graph a second time" in told
    assert "`.detach()` what is carried from step to step" in told


def test_an_alert_reaches_a_command_and_the_script_ends_as_before(folder):
    (folder / "notify.py").write_text("import sys; open('told.txt', 'a').write(sys.argv[1] + '\\n')")
    alert = f"{sys.executable} notify.py"
    ours = warm(script(folder, SICK), "train.py", options=("--out", "out", "--alert", alert))
    assert ours.returncode == 0
    assert (folder / "told.txt").read_text().count("CRITICAL") == 1
    wrong = warm(folder, "train.py", options=("--alert", "ftp://host/secret"))
    assert wrong.returncode == 2
    assert "`alert` must be the address of a webhook" in wrong.stderr
    assert "secret" not in wrong.stderr
