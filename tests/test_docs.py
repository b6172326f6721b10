"""Every command and every line of Python that README and docs show: the parser takes it, and the cheap ones run."""

import ast
import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from peergrad.cli import main as cli
from peergrad.debate import protocol as protocols
from peergrad.debate.settings import imported

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").glob("*.py"))]
PAGES = [page for page in PAGES if page.name != "log.md" and page.parent.name != "design"]  # what was tried, and rejected


def blocks(page: Path, *languages: str) -> list[str]:
    found = re.finditer(r"^```(\w*)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return [match[2] for match in found if match[1] in languages]


def commands() -> list[tuple[str, str]]:
    """Lines that call peergrad, continued ones joined; those in running text too, where they are whole."""
    found = []
    for page in PAGES:
        text = "\n".join(blocks(page, "", "bash", "sh", "console")).replace("\\\n", " ")
        lines = [line.partition("  #")[0].rpartition("| ")[2].strip() for line in text.splitlines()]
        lines += re.findall(r"`(peergrad [a-z]+ (?![^`\n]*--[a-z-]+`)[^`\n]*)`", page.read_text())
        name = str(page.relative_to(ROOT))
        found += [(name, line.removeprefix("$ ")) for line in lines if re.match(r"(\$ )?peergrad [a-z]", line)]
    return sorted(set(found))


def concrete(line: str) -> list[str] | None:
    """A command line with something for each placeholder; None for a line that only shows the form of one."""
    if re.search(r"[\[\]|]|\.\.\.", re.sub(r'"[^"]*"', "", line)):
        return None
    words = [word for word in shlex.split(line.partition(" #")[0].partition(" > ")[0]) if word not in ("…", "&")]
    return [word.replace("…", "x") for word in words[1:]]


COMMANDS = commands()
PARSED = [(page, line) for page, line in COMMANDS if concrete(line)]


def test_most_of_what_is_shown_is_a_whole_command():
    assert len(PARSED) >= 60
    assert len(PARSED) > 0.7 * len(COMMANDS)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with what the commands name: examples, texts, a file of settings."""
    for example in (ROOT / "examples").glob("*.py"):
        shutil.copy(example, tmp_path)
    (tmp_path / "texts").mkdir()
    (tmp_path / "mine.toml").write_text("steps = 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(protocols, "_own", {})
    forget_modules()
    yield tmp_path
    forget_modules()  # those of other tests have the same names


def forget_modules():
    imported.cache_clear()
    for module in [name for name in sys.modules if name.startswith("my_")]:
        sys.modules.pop(module)


@pytest.mark.parametrize("page", sorted({page for page, _ in PARSED}))
def test_the_parser_takes_every_command(page, folder):
    for block in blocks(ROOT / page, "python"):  # a page that writes modules names them, as the tutorial does
        if named := re.match(r"# (my_\w+\.py)\n", block):
            (folder / named[1]).write_text(block)
    refused = []
    for line in (line for where, line in PARSED if where == page):
        name, *args = concrete(line)
        args = ["mine.toml" if word.endswith(".toml") else word for word in args]
        assert name in cli.COMMANDS, line
        with contextlib.suppress(SystemExit):  # it asks for help
            try:
                cli.parsed(name, args)
            except cli.UserError as error:
                refused.append(f"{line}: {error}")
    assert not refused


@pytest.mark.parametrize("page", [page for page in PAGES if page.suffix == ".md" and blocks(page, "python")], ids=str)
def test_python_that_is_shown_can_be_compiled_and_imports_what_there_is(page, monkeypatch):
    monkeypatch.chdir(ROOT / "examples")
    for block in blocks(page, "python"):
        tree = ast.parse(block)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("peergrad"):
                exec(compile(ast.Module([node], []), str(page), "exec"), {})


def test_links_lead_somewhere():
    for page in (page for page in PAGES if page.suffix == ".md"):
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page}: {link}"


def test_the_tables_of_scores_are_those_that_are_printed(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")
    shown = [block for block in blocks(ROOT / "docs/reference/score.md", "") if "debates 2, of them" in block]
    assert len(shown) == 3
    for block in shown:
        command, _, table = block.removeprefix("$ peergrad ").partition("\n")
        monkeypatch.setattr(sys, "argv", ["peergrad", *shlex.split(command)])
        with contextlib.suppress(SystemExit):
            cli.main()
        printed = "".join(f"{line.rstrip()}\n" for line in capsys.readouterr().out.splitlines())
        assert printed.endswith(table.removeprefix("…\n")), command


SMALL = ["--steps=1", "--eval-every=0", "--eval-questions=0", "--eval-debates=0", "--batch=2", "--max-tokens=64"]
PARROT = ROOT / "tests" / "fixtures" / "parrot"


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["demo", "demo-parallel"])
def test_what_a_run_says_comes_next_can_be_typed(tmp_path, preset):
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "peergrad", "train", "--preset", preset, "--model", str(PARROT), *SMALL]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environ, timeout=300)
    assert made.returncode == 0, made.stderr
    lines = made.stdout.partition("next:\n")[2].splitlines()
    assert len(lines) == 3
    for line in lines:
        done = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, text=True, env=environ, timeout=300)
        assert done.returncode == 0, f"{line}: {done.stderr}"


@pytest.mark.slow
def test_the_python_of_the_readme_runs_and_says_how_it_goes(tmp_path):
    (block,) = blocks(ROOT / "README.md", "python")
    small = {one.removeprefix("--").split("=")[0].replace("-", "_"): int(one.split("=")[1]) for one in SMALL}
    block = block.replace("smollm2", str(PARROT))
    block = block.replace('preset("demo")', f"changed(preset('demo'), {small | {'model': str(PARROT)}}, 'test')")
    code = "from peergrad.debate.settings import changed\n" + block
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env=environ, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "step 1/1: readable" in done.stderr
    assert (tmp_path / "runs" / "demo" / "config.toml").exists(), "where the command would resume it"
