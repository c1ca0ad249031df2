import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS, ids=[f"block {i}" for i in range(len(BLOCKS))])
def test_the_code_of_the_readme_runs(code, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})


def test_the_readme_has_code_and_is_short():
    assert len(BLOCKS) >= 2
    assert len(README.splitlines()) < 150


def test_the_two_commands_do_all_the_set_up():
    assert "pip install -c constraints.txt -e . && gradient-flow demo" in README
    assert 'pip install -c constraints.txt -e ".[dev]" && pytest' in README


def test_pictures_and_links_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target
