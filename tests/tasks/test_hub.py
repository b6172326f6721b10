"""Datasets from the hub, by the real library on folders that are laid out as the hub lays them out."""

import json
import subprocess
import sys

import pytest

from peergrad import EngineError
from peergrad.tasks.datasets import DATASETS
from peergrad.tasks.open import TaskConfig, open_task

ROWS = {
    "gsm8k": {"question": "1 + 1?", "answer": "One and one.\n#### 2"},
    "math": {
        "problem": "1 + 1?",
        "solution": r"\boxed{2}",
        "answer": "2",
        "subject": "Algebra",
        "level": 1,
        "unique_id": "a",
    },
    "aime": {"id": 60, "problem": "1 + 1?", "solution": "two", "answer": "2", "url": "u", "year": "2024"},
    "svamp": {"ID": "chal-1", "Body": "1 dog and 1 cat", "Question": "How many?", "Equation": "( 1 + 1 )", "Answer": "2.0"},
    "longwriter": {"messages": [{"role": "user", "content": "Write."}, {"role": "assistant", "content": "So be it."}]},
    "mt-bench": {"prompt": ["Write.", "Again."], "category": "writing", "prompt_id": 81, "reference": []},
}


def lay_out(folder, name, count=5):
    """A dataset as a repository of the hub has it: files of each split, and a card that lists them."""
    known = DATASETS[name]
    root = folder / known.hub / (known.config or "data")
    root.mkdir(parents=True)
    for split in filter(None, (known.train, known.test)):
        (root / f"{split}.jsonl").write_text("".join(json.dumps(ROWS[name]) + "\n" for _ in range(count)))
    splits = "\n".join(
        f"  - split: {split}\n    path: {root.name}/{split}.jsonl" for split in filter(None, (known.train, known.test))
    )
    card = f"---\nconfigs:\n- config_name: {known.config or 'default'}\n  data_files:\n{splits}\n---\n"
    (folder / known.hub / "README.md").write_text(card)


@pytest.mark.parametrize("name", DATASETS)
def test_every_known_dataset(name, tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    lay_out(tmp_path, name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    train, held_out = open_task(TaskConfig(task=name), held_out=2)
    known = DATASETS[name]
    assert (len(train), len(held_out)) == (5 if known.test else 3, 2)
    assert train[0].id == f"{name}-train-1"
    assert held_out[0].id == (f"{name}-test-1" if known.test else f"{name}-train-4")
    assert (train[0].dataset, train[0].style, train.known) == (name, known.style, known.style.name == "boxed")
    if train.known:
        assert train.grade(train[0], r"\boxed{2}").correct


def test_without_the_hub_there_is_a_sentence(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(EngineError, match=r"openai/gsm8k can't be had from the hub \(.*\); try again, or give its file"):
        open_task(TaskConfig(task="gsm8k"))


def test_without_the_library_there_is_a_sentence(tmp_path):
    """In a process of its own, which is kept from importing it."""
    code = "import sys; sys.modules['datasets'] = None; from peergrad.cli.main import main; main()"
    args = ["train", "--dry-run", "--task", "gsm8k"]
    done = subprocess.run([sys.executable, "-c", code, *args], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        "peergrad: task: to get gsm8k from the hub needs the library datasets; "
        "pip install 'datasets>=4', or give its file: gsm8k:PATH\n"
    )
