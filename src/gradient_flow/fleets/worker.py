"""A process that makes digests: names of files come in, digests go out, until there are no more."""

from __future__ import annotations

import os
import struct
import sys
from contextlib import suppress
from typing import IO, Final

import orjson

from gradient_flow.fleets.digest import Digest
from gradient_flow.fleets.sources import digest_of

_LENGTH: Final = struct.Struct("<Q")


def send(stream: IO[bytes], content: bytes) -> None:
    """One message: its length, then itself. A file's name may hold any byte but zero."""
    stream.write(_LENGTH.pack(len(content)) + content)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes | None:
    """The next message; None where the other end is gone."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    length = _LENGTH.unpack(head)[0]
    content = stream.read(length)
    return content if len(content) == length else None


def decode(content: bytes) -> Digest:
    """The digest in an answer."""
    found: Digest = orjson.loads(content)
    return found


def main() -> None:
    """Answer until the other end hangs up."""
    # What a rule or a library prints must not end up between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # Whoever asked may have stopped in the middle of an answer: a server that ends does.
    with suppress(BrokenPipeError):
        while (asked := receive(sys.stdin.buffer)) is not None:
            send(answers, orjson.dumps(digest_of(os.fsdecode(asked))))
