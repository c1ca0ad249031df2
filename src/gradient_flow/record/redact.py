"""Keeping out of a run file what must not be in it: secrets, the user's name, the host's, the path of a home folder.

A wrong guess towards "secret" costs a reader one value; towards "harmless" it costs a user a key. So in doubt a value
is redacted.
"""

from __future__ import annotations

import dataclasses
import getpass
import math
import numbers
import os
import re
import shlex
import socket
from argparse import Namespace
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any, Final

from gradient_flow.errors import InputError

REDACTED: Final = "<redacted>"
LONGEST: Final = 500
"""Letters of a text that are kept."""
_MOST: Final = 256
"""Entries of a mapping or list that are kept."""
_DEEPEST: Final = 6

_SECRET_WORDS: Final = frozenset(
    ("token", "key", "password", "passwd", "passphrase", "pwd", "secret", "credential", "credentials", "auth", "apikey")
)
"""As a word of a name: `api_key`, `HF_TOKEN`; not `tokenizer` or `max_tokens`."""
_ALWAYS_SECRET: Final = frozenset(("password", "passwd", "passphrase", "pwd", "secret"))
"""Here a number is a secret too; `key_size=64` is none."""
_SECRET_TEXT: Final = re.compile(
    r"sk-[\w-]{8,}|hf_\w{8,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{12,}|xox[abpr]-[\w-]{8,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{12,}|AIza[\w-]{20,}|ya29\.[\w-]{16,}|eyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]+)?"
    r"|-----BEGIN[^-]*PRIVATE KEY-----.*|(?<=[Bb]earer )\S+",
    re.DOTALL,
)
_URL_LOGIN: Final = re.compile(r"(?<=://)[^/\s@]+(?=@)")
_ASSIGNED: Final = re.compile(r"([A-Za-z_][\w.-]*)(\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s,;&\"')\]}]+)")
"""`api_key=…` and `token: …` within a text."""
_RUN: Final = re.compile(r"[A-Za-z0-9]{20,}")
_HEX: Final = re.compile(r"[0-9a-fA-F]{32,}")
_HOMES: Final = re.compile(r"(?:/home|/Users|/export/home|[A-Za-z]:[\\/]Users)[\\/][^\\/\s:'\",;]+")
_NOBODY: Final = frozenset(("root", "user", "users", "admin", "ubuntu", "runner", "localhost", "home", "data", "train"))
"""User names that identify no one and may well be ordinary words in a text."""


def clean_text(text: str) -> str:
    """A text without secrets, home folders, the name of the user and of the host; at most `LONGEST` letters.

    >>> clean_text("cannot open s3://me:abc@bucket, HF_TOKEN=hf_abcdefgh1234")
    'cannot open s3://<redacted>@bucket, HF_TOKEN=<redacted>'
    """
    text = text[: 8 * LONGEST]  # a repr of a whole data set; what follows is linear, but need not be long
    text = _URL_LOGIN.sub(REDACTED, text)
    text = _SECRET_TEXT.sub(REDACTED, text)
    text = _ASSIGNED.sub(_assignment, text)
    text = _RUN.sub(lambda found: REDACTED if _looks_random(found[0]) else found[0], text)
    text = without_names(text)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def without_names(text: str) -> str:
    """A text in which a home folder is `~`, and the names of user and host do not appear."""
    for home in _homes():
        text = re.sub(rf"{re.escape(home)}(?=$|[\\/\s:'\",;)\]])", "~", text)
    text = _HOMES.sub("~", text)
    for mark, names in (("<user>", _users()), ("<host>", _hosts())):
        for name in names:
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", mark, text, flags=re.IGNORECASE)
    return text


def clean_command(arguments: Sequence[str]) -> str:
    """A command line as one text, the values of options that hold secrets left out.

    >>> clean_command(["train.py", "--api-key", "12345", "--lr", "0.1"])
    "train.py --api-key '<redacted>' --lr 0.1"
    """
    shown: list[str] = []
    hidden = False
    for argument in arguments[:_MOST]:
        name, equals, value = argument.partition("=")
        if hidden and not argument.startswith("-"):
            shown.append(_value_of("key", argument, certain=True))
            hidden = False
            continue
        hidden = argument.startswith("-") and not equals and _is_secret(name)
        secret = bool(equals) and _is_secret(name)
        shown.append(f"{name}={_value_of(name, value)}" if secret else clean_text(argument))
    command = shlex.join(shown)
    return command if len(command) <= 4 * LONGEST else command[: 4 * LONGEST - 1] + "…"


def clean_settings(settings: Any) -> dict[str, Any]:
    """A user's settings as plain values: of a mapping, a dataclass or an `argparse.Namespace`.

    >>> clean_settings({"lr": 0.1, "wandb_token": "abc", "layers": (2, 2)})
    {'lr': 0.1, 'wandb_token': '<redacted>', 'layers': [2, 2]}
    """
    if dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        settings = _fields(settings)
    elif isinstance(settings, Namespace):
        settings = vars(settings)
    if not isinstance(settings, Mapping):
        raise InputError(
            f"`config` must be a mapping, a dataclass or an argparse.Namespace, got {type(settings).__name__}. For "
            "another object pass vars(it)."
        )
    return _mapping(settings, 0)


def plain_setting(value: Any, name: str = "", depth: int = 0) -> Any:
    """One setting as a plain value; what is none is named by its type, never by a text that could say anything."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        value = float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, (numbers.Integral, float)):
        number = value if isinstance(value, float) else int(value)
        return REDACTED if _words(name) & _ALWAYS_SECRET else number
    if isinstance(value, (str, PurePath)):
        return _value_of(name, str(value))
    if depth >= _DEEPEST:
        return "…"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _mapping(_fields(value), depth + 1)
    if isinstance(value, Namespace):
        return _mapping(vars(value), depth + 1)
    if isinstance(value, Mapping):
        return _mapping(value, depth + 1)
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value, key=str) if isinstance(value, (set, frozenset)) else list(value)
        kept = [plain_setting(item, name, depth + 1) for item in items[:_MOST]]
        return [*kept, f"and {len(items) - _MOST} more"] if len(items) > _MOST else kept
    if type(value).__module__ == "torch" and type(value).__name__ in ("dtype", "device"):
        return str(value).removeprefix("torch.")
    if isinstance(value, type) or callable(value):
        return clean_text(getattr(value, "__name__", type(value).__name__))
    return f"<{type(value).__name__}>"


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}


def _mapping(settings: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    kept = list(settings.items())[:_MOST]
    found = {clean_text(str(name)): plain_setting(value, str(name), depth) for name, value in kept}
    return found | ({"…": f"and {len(settings) - _MOST} more"} if len(settings) > _MOST else {})


def _value_of(name: str, text: str, *, certain: bool = False) -> str:
    """The text of a setting; nothing of it where its name says that it is a secret."""
    if certain or _is_secret(name):
        harmless = not _words(name) & _ALWAYS_SECRET and (not text or _is_number_or_flag(text))
        return text if harmless and not certain else REDACTED
    return clean_text(text)


def _is_number_or_flag(text: str) -> bool:
    if text.lower() in ("true", "false", "none", "null"):
        return True
    return len(text) < 8 and re.fullmatch(r"[-+]?[0-9.]+(e[-+]?\d+)?", text) is not None


def _is_secret(name: str) -> bool:
    return bool(_words(name) & _SECRET_WORDS)


def _words(name: str) -> set[str]:
    """`apiKey`, `API_KEY` and `--api-key` are the words api and key."""
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    return {word.lower() for word in re.split(r"[^A-Za-z0-9]+", spaced) if word}


def _assignment(found: re.Match[str]) -> str:
    name, between, value = found.groups()
    if not _is_secret(name) or value == REDACTED:
        return found[0]
    return f"{name}{between}{_value_of(name, value)}"


def _looks_random(run: str) -> bool:
    """Whether a long run of letters and digits changes between small, capital and digit as no name does."""
    if not (any(letter.isdigit() for letter in run) and any(letter.isalpha() for letter in run)):
        return False
    if _HEX.fullmatch(run):
        return True
    kinds = ["0" if letter.isdigit() else "A" if letter.isupper() else "a" for letter in run]
    changes = sum(one != other for one, other in pairwise(kinds))
    return changes >= 0.35 * len(run)


@cache
def _asked(_environment: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Home folders, names of the user, names of the host: asked once, unless the environment changes."""
    homes = {os.path.expanduser("~"), *_environment[-1:]}
    users = set(_environment[:-1])
    for ask in (getpass.getuser, lambda: Path.home().name):
        try:
            users.add(ask())
        except (OSError, KeyError, RuntimeError, ImportError):  # a user without an entry, as in a container
            continue
    try:
        host = socket.gethostname()
    except OSError:
        host = ""
    return (
        tuple(sorted((home for home in homes if len(home) > 1), key=len, reverse=True)),
        tuple(sorted(name for name in users if _tells(name))),
        tuple(sorted({name for name in (host, host.partition(".")[0]) if _tells(name)}, key=len, reverse=True)),
    )


def _tells(name: str) -> bool:
    return len(name) > 2 and name.lower() not in _NOBODY and not name.isdigit()


def _names() -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    return _asked(tuple(os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "HOME")))


def _homes() -> tuple[str, ...]:
    return _names()[0]


def _users() -> tuple[str, ...]:
    return _names()[1]


def _hosts() -> tuple[str, ...]:
    return _names()[2]
