"""What must not be in a run file: secrets, home folders, the names of user and host."""

import argparse
import dataclasses
import socket
from pathlib import Path

import pytest
import torch

from gradient_flow.errors import InputError
from gradient_flow.record.redact import REDACTED, clean_command, clean_settings, clean_text

SECRETS = (
    "sk-proj-abc123def456ghi789",
    "hf_AbCdEfGhIjKlMnOp",
    "ghp_0123456789abcdef0123",
    "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    "0123456789abcdef0123456789abcdef01234567",  # as long as a key of W&B
    "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY1",
)
HARMLESS = (
    "runs/2026-01-31_12-00-00_train",
    "resnet50",
    "bert-base-uncased",
    "encoder.layers.0.self_attn.in_proj_weight",
    "max_tokens=512",
    "the tokenizer has 50257 tokens",
    "123e4567-e89b-12d3-a456-426614174000",
)


@pytest.mark.parametrize("secret", SECRETS)
def test_what_looks_like_a_secret_is_redacted_wherever_it_stands(secret):
    assert secret not in clean_text(f"refused: {secret} is not valid")
    assert secret not in clean_command(["train.py", secret, f"--x={secret}"])
    assert secret not in str(clean_settings({"x": secret, "deep": {"list": [secret]}}))


@pytest.mark.parametrize("text", HARMLESS)
def test_ordinary_values_stay_as_they_are(text):
    assert clean_text(text) == text
    assert clean_settings({"x": text}) == {"x": text}


@pytest.mark.parametrize("name", ["token", "api_key", "API-KEY", "apiKey", "db.password", "client_secret", "HF_TOKEN"])
def test_a_name_that_says_secret_hides_its_text(name):
    assert clean_settings({name: "open sesame"}) == {name: REDACTED}
    assert "sesame" not in clean_command([f"--{name}", "sesame"])
    assert "sesame" not in clean_command([f"--{name}=sesame"])
    assert "sesame" not in clean_text(f"cannot log in with {name}=sesame")


def test_numbers_stay_unless_they_are_a_password():
    assert clean_settings({"key_size": 64, "tokens": 512, "password": 1234}) == {
        "key_size": 64,
        "tokens": 512,
        "password": REDACTED,
    }


def test_a_flag_that_takes_no_value_hides_nothing_else():
    assert clean_command(["t.py", "--use-auth-token", "--lr", "0.1"]) == "t.py --use-auth-token --lr 0.1"


def test_a_login_in_an_address_is_cut_out():
    assert clean_text("see postgres://me:pass@db/x") == f"see postgres://{REDACTED}@db/x"


def test_homes_users_and_hosts_are_not_named(monkeypatch):
    monkeypatch.setenv("USER", "mrsmith")
    monkeypatch.setenv("HOME", "/mnt/people/mrsmith")
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu17.lab.example")
    text = "/mnt/people/mrsmith/data /home/other/x C:\\Users\\other\\y /scratch/mrsmith/z on gpu17.lab.example, gpu17"
    assert clean_text(text) == "~/data ~/x ~\\y /scratch/<user>/z on <host>, <host>"


def test_a_mapping_a_dataclass_and_a_namespace_are_settings():
    @dataclasses.dataclass
    class Settings:
        rate: float = 0.1
        sizes: tuple[int, ...] = (2, 3)

    assert clean_settings(Settings()) == {"rate": 0.1, "sizes": [2, 3]}
    assert clean_settings(argparse.Namespace(rate=0.1, where=Path("data"))) == {"rate": 0.1, "where": "data"}
    assert clean_settings({"a": {"b": float("inf")}, 3: torch.float16}) == {"a": {"b": "inf"}, "3": "float16"}
    assert clean_settings({"model": torch.nn.Linear(2, 2), "f": torch.relu, "x": torch.ones(3)}) == {
        "model": "Linear",
        "f": "relu",
        "x": "<Tensor>",
    }


def test_other_settings_are_refused_with_what_to_do():
    with pytest.raises(InputError, match=r"`config` must be a mapping.*got int.*vars"):
        clean_settings(3)


def test_very_many_and_very_deep_settings_are_bounded():
    deep: dict = {}
    for _ in range(50):
        deep = {"in": deep}
    found = clean_settings({"many": list(range(10_000)), "long": "x" * 10_000, "deep": deep})
    assert len(found["many"]) == 257
    assert len(found["long"]) == 500
    assert str(found["deep"]).count("in") < 10
