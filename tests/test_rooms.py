"""The import rules between rooms hold, and the lint that holds them fails when they do not."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def lint(folder):
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as lint; lint()", "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env={"PYTHONPATH": str(folder), "PATH": ""})


def test_rooms_import_downwards_only():
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout
    assert "0 broken" in result.stdout


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("debate/quote.py", "import peergrad.reward.tally"),
        ("reward/tally.py", "import peergrad.learn.losses"),
        ("learn/losses.py", "import peergrad.engines.base"),
        ("engines/tinker/connection.py", "import peergrad.engines.openai.requests"),
        ("engines/shared/servers.py", "import peergrad.engines.local"),
        ("measure/counts.py", "import peergrad.web.report"),
        ("learn/losses.py", "import torch"),
        ("debate/types.py", "import pydantic"),
        ("debate/sampler.py", "import openai"),
        ("engines/scripted.py", "import httpx2"),
    ],
)
def test_a_forbidden_import_fails_the_lint(tmp_path, room, line):
    shutil.copytree(ROOT / "peergrad", tmp_path / "peergrad")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    path = tmp_path / "peergrad" / room
    path.write_text(path.read_text() + f"\n{line}\n")
    result = lint(tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "0 broken" not in result.stdout


def test_the_map_in_the_readme_names_every_file():
    readme = (ROOT / "README.md").read_text()
    tree = readme.split("```\npeergrad/\n")[1].split("```")[0]
    rooms = re.split(r"^  (?=\S)", tree, flags=re.MULTILINE)
    for room in ("debate", "reward", "learn", "tasks", "measure", "runs"):
        lines = next(text for text in rooms if text.startswith(f"{room}/"))
        named = re.findall(r"(\w+\.py)", lines)
        there = [path.name for path in (ROOT / "peergrad" / room).glob("*.py") if path.name != "__init__.py"]
        assert sorted(named) == sorted(there), room
