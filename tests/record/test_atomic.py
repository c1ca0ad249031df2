"""Files are there as a whole or not at all, and what a crash left behind goes with the next one."""

import os
import stat
import subprocess
import sys

import pytest

from gradient_flow.record.atomic import write_whole, written_whole
from gradient_flow.record.export import write_json
from gradient_flow.record.run_tables import write_table


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def dead_process():
    """The number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


WRITERS = {
    "bytes": lambda path: write_whole(path, b"new"),
    "json": lambda path: write_json(path, {"new": 1}),
    "table": lambda path: write_table([[{"step": 1}]], ["step"], "csv", path),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_what_a_crash_left_behind_is_removed(tmp_path, write):
    target = tmp_path / "report.html"
    for leftover in (
        ".report.html.unfinished",
        f".report.html.{int(dead_process())}.unfinished",
        ".report.html.a1b2_c3d",
    ):
        (tmp_path / leftover).write_bytes(b"half")
    write(target)
    assert names(tmp_path) == ["report.html"]


def test_what_is_not_ours_is_left_alone(tmp_path):
    others = [
        f".report.html.{os.getppid()}.0.unfinished",  # of a process that is at work
        ".report.html.swp",  # an editor has it open
        ".report.html.backup.old",
        ".report.md.unfinished",
        "report.html.unfinished",
    ]
    for name in others:
        (tmp_path / name).write_bytes(b"mine")
    write_whole(tmp_path / "report.html", b"new")
    assert names(tmp_path) == sorted([*others, "report.html"])


def half_written(target):
    with written_whole(target) as file:
        file.write(b"ne")
        raise ZeroDivisionError


def test_a_failure_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    target = tmp_path / "deep" / "file"
    write_whole(target, b"old")
    with pytest.raises(ZeroDivisionError):
        half_written(target)
    assert target.read_bytes() == b"old"
    assert names(target.parent) == ["file"]


@pytest.mark.skipif(os.name != "posix", reason="permissions as POSIX has them")
def test_others_may_read_it_as_far_as_the_umask_says(tmp_path):
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "file", b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640
