"""What a run was: gathered without harm, the same in file and memory, without names and secrets, to be switched off."""

import getpass
import json
import os
import socket
import subprocess
import sys

import pytest
import torch
from torch import nn

import gradient_flow as gf
from gradient_flow.errors import InputError
from gradient_flow.flow import describe
from gradient_flow.record.about import about_facts, about_rows


def net():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))


def train(flow, model, optimizer, steps=3, *, clip=None, scheduler=None):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return flow


@pytest.mark.parametrize("where", ["file", "memory"])
def test_optimizer_clip_schedule_seed_and_settings_are_told(tmp_path, where):
    model = net()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.2}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    run = tmp_path / "run" if where == "file" else None
    with gf.watch(model, optimizer, run=run, config={"data": {"size": 3}}) as flow:
        train(flow, model, optimizer, clip=0.5, scheduler=scheduler)
    about = flow.run.about
    (told,) = about["optimizers"]
    assert told["class"] == "SGD"
    assert [(group["lr"], group["momentum"], group["tensors"]) for group in told["groups"]] == [
        (0.1, 0.9, 2),
        (0.2, 0.9, 2),
    ]
    assert "params" not in told["groups"][0]
    assert told["scheduler"] == describe.SOME_SCHEDULER
    assert about["clipping"] == {"by": "norm", "limit": 0.5}
    assert about["seed"] == 7
    assert about["config"] == {"data": {"size": 3}}
    assert about["versions"]["torch"] == str(torch.__version__)
    assert about["device"] == "cpu"
    assert about["dtypes"] == {"float32": 4}
    assert about["command"]
    if run is not None:
        assert gf.load_run(run).about == about
    facts = about_facts(about)
    assert facts["lr"] == [0.1, 0.2]
    assert facts["config data/size"] == 3
    assert dict(about_rows(about))["optimizer"].startswith("SGD (lr (0.1, 0.2), momentum 0.9")


def test_file_and_memory_tell_the_same(tmp_path):
    told = []
    for run in (tmp_path / "run", None):
        model = net()
        optimizers = [torch.optim.Adam(model[0].parameters()), torch.optim.SGD(model[2].parameters(), lr=0.1)]
        with gf.watch(model, optimizers[0], run=run) as flow:
            flow.add_optimizer(optimizers[1])
            for optimizer in optimizers:
                train(flow, model, optimizer, clip=1.0)
        told.append(flow.run.about)
    assert [each["class"] for each in told[0]["optimizers"]] == ["Adam", "SGD"]
    assert told[0] == told[1]


def test_a_clip_with_a_limit_that_changes_says_so_once(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer, run=tmp_path) as flow:
        for limit in (float("inf"), 1.0, 2.0, 3.0, 4.0):
            train(flow, model, optimizer, 1, clip=limit)
    assert gf.load_run(tmp_path).about["clipping"] == {"by": "norm", "limit": 1.0, "limit_varies": True}
    assert sum(record["kind"] == "about" for record in gf.load_run(tmp_path).records) == 3


def test_a_clip_by_value_and_a_manager_are_told():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer) as flow:
        model(torch.randn(8, 4)).square().mean().backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.25)
        optimizer.step()
    assert flow.run.about["clipping"] == {"by": "value", "limit": 0.25}
    manager = gf.GradientManager(gf.GradientConfig(max_grad_norm=0.5))
    with gf.watch(model, optimizer, manager=manager) as flow:
        train(flow, model, optimizer)
    assert flow.run.about["clipping"] == {"by": "manager", "type": "norm", "limit": 0.5}


def test_a_scaler_and_an_autocast_around_the_step_are_told():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    with gf.watch(model, optimizer, scaler=scaler) as flow, torch.autocast("cpu", torch.bfloat16):
        scaler.scale(model(torch.randn(8, 4)).square().mean()).backward()
        scaler.step(optimizer)
    assert flow.run.about["amp"] == {"scaler": "GradScaler", "autocast": "bfloat16"}


def test_a_parameter_group_that_joins_is_told():
    model = net()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with gf.watch(model, optimizer) as flow:
        train(flow, model, optimizer)
        optimizer.param_groups[0]["lr"] = 0.01  # the record of each step has it
        optimizer.add_param_group({"params": model[2].parameters(), "lr": 0.5})
        train(flow, model, optimizer)
    groups = flow.run.about["optimizers"][0]["groups"]
    assert [group["lr"] for group in groups] == [0.1, 0.5]


def test_no_user_host_home_or_secret_is_anywhere_in_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("USER", "mrsmith")
    monkeypatch.setenv("HOME", "/mnt/people/mrsmith")
    monkeypatch.setattr(getpass, "getuser", lambda: "mrsmith")
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu17.lab.example")
    arguments = [
        "/mnt/people/mrsmith/train.py",
        "--data",
        "/scratch/mrsmith",
        "--node=gpu17",
        "--hf-token",
        "hf_abcdefgh12",
    ]
    monkeypatch.setattr(sys, "argv", arguments)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"out": "/mnt/people/mrsmith/out", "api_key": "open sesame", "url": "https://me:pw123@x.org"}

    def crash():
        with gf.watch(model, optimizer, run=tmp_path, config=config) as flow:
            train(flow, model, optimizer)
            raise OSError("gpu17: cannot read /mnt/people/mrsmith/data, token=hf_abcdefgh12")

    with pytest.raises(OSError, match="mrsmith"):
        crash()
    text = (tmp_path / "run.jsonl").read_text()
    for hidden in ("mrsmith", "gpu17", "sesame", "pw123", "hf_abcdefgh12"):
        assert hidden not in text
    about = gf.load_run(tmp_path).about
    assert about["command"] == "'~/train.py' --data '/scratch/<user>' '--node=<host>' --hf-token '<redacted>'"
    assert "<host>: cannot read ~/data" in gf.diagnose(tmp_path).message


@pytest.mark.parametrize("way", ["argument", "environment"])
def test_the_description_can_be_switched_off(tmp_path, monkeypatch, way):
    if way == "environment":
        monkeypatch.setenv(describe.SWITCH, "0")
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = {} if way == "environment" else {"describe": False}
    with gf.watch(model, optimizer, run=tmp_path, config={"mine": 1}, **settings) as flow:
        train(flow, model, optimizer, clip=1.0)
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert "about" not in kinds
    assert gf.load_run(tmp_path).about == {}


def test_settings_that_are_none_are_refused():
    model = net()
    with pytest.raises(InputError, match="`config` must be a mapping"):
        gf.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), config=[1, 2])


def test_describing_changes_neither_weights_nor_random_state():
    def trained(**settings):
        model = net()
        optimizer = torch.optim.Adam(model.parameters())
        with gf.watch(model, optimizer, **settings) as flow:
            train(flow, model, optimizer, clip=1.0)
        return [parameter.detach().clone() for parameter in model.parameters()], torch.get_rng_state()

    described, state = trained(config={"a": 1})
    plain, other = trained(describe=False)
    assert all(torch.equal(one, two) for one, two in zip(described, plain, strict=True))
    assert torch.equal(state, other)


def git(folder, *words):
    who = ["-c", "user.name=x", "-c", "user.email=x@x"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def test_the_commit_and_whether_files_were_changed(tmp_path):
    assert describe._git(str(tmp_path)) == {}
    git(tmp_path, "init")
    (tmp_path / "train.py").write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "x")
    (tmp_path / "sub").mkdir()
    answer = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tmp_path, capture_output=True, text=True, check=True)
    describe._git.cache_clear()
    assert describe._git(str(tmp_path / "sub")) == {"git": {"commit": answer.stdout.strip(), "dirty": False}}
    (tmp_path / "train.py").write_text("2")
    describe._git.cache_clear()
    assert describe._git(str(tmp_path))["git"]["dirty"] is True


@pytest.mark.parametrize("git_is", ["missing", "slow"])
def test_a_git_that_does_not_answer_costs_nothing_but_the_commit(tmp_path, monkeypatch, git_is):
    (tmp_path / ".git").mkdir()
    (tmp_path / "bin").mkdir()
    if git_is == "slow":
        script = tmp_path / "bin" / "git"
        script.write_text("#!/bin/sh\nexec sleep 30\n")
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}" + ("" if git_is == "missing" else f":{os.environ['PATH']}"))
    describe._git.cache_clear()
    assert describe._git(str(tmp_path)) == {}
