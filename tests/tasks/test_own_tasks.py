"""A task of one's own by its import path: in Python and by the commands; what does not fit is a sentence."""

import asyncio
import json
import shutil
import sys

import pytest

from peergrad import Debate, Parallel, Question, UserError, dump, load
from peergrad.cli import eval as eval_command
from peergrad.debate.settings import changed
from peergrad.debate.transcript import read_file
from peergrad.runs.folder import Run
from peergrad.runs.plan import plan_run
from peergrad.runs.training import train_run
from peergrad.tasks.base import UNANSWERED, Grade
from peergrad.tasks.open import TaskConfig, gradable, open_questions, open_task
from tests.bandit import Bandit
from tests.cli.answers import objects, peergrad, replying, said, seat
from tests.openai.server import Server
from tests.runs.test_run import PARROT, settings
from tests.test_own_rewards import EXAMPLES, here  # noqa: F401 (a fixture)

FENCE = "```python\n{}\n```"
DOUBLE = FENCE.format("def f(x):\n    return 2 * x")
HOSTILE = {
    "loops": "def f(x):\n    while True: pass",
    "takes all memory": "x = [0] * 10**12",
    "exits": "import sys; sys.exit(0)",
    "exits at once": "import os; os._exit(0)",
    "prints the answer": "print([2, -6], flush=True)\nimport os\nfor fd in (1, 2): os.write(fd, b'[2, -6]\\n')",
    "says that all is equal": "class Any(int):\n    def __eq__(self, other): return True\ndef f(x): return Any(0)",
}


@pytest.fixture
def example(here):  # noqa: F811
    """A folder, the current one, with the example in it."""
    shutil.copy(EXAMPLES / "my_task.py", here)
    yield here
    if "my_task" in sys.modules:
        sys.modules["my_task"].POOL.close()


@pytest.mark.usefixtures("example")
def test_the_example_in_python():
    task = open_questions(TaskConfig(task="my_task:Puzzles"))
    assert (task.name, task.known, len(task)) == ("puzzles", True, 3)
    double = task[0]
    assert (double.style.name, double.dataset, double.payload) == ("code", "my_task:Puzzles", (((1,), 2), ((-3,), -6)))
    assert task.grade(double, f"So:\n{DOUBLE}") == Grade(True, "[2, -6]")
    assert task.grade(double, FENCE.format("def f(x):\n    return x")) == Grade(False, "[1, -3]")
    assert task.grade(double, "return 2 * x") == UNANSWERED
    assert task.grade(task[2], FENCE.format("def f(x):\n    return x == x[::-1]")).correct
    assert not gradable(double)
    train, held_out = open_task(TaskConfig(task="my_task:Puzzles"), held_out=1)
    assert (len(train), len(held_out), held_out.grade(double, DOUBLE).correct) == (2, 1, True)


@pytest.mark.alone
@pytest.mark.usefixtures("example")
@pytest.mark.parametrize("what", HOSTILE)
def test_no_program_is_right_by_force(what):
    task = open_questions(TaskConfig(task="my_task:Puzzles"))
    assert not task.grade(task[0], FENCE.format(HOSTILE[what])).correct
    assert task.grade(task[0], DOUBLE).correct


def test_a_run_learns_from_programs_that_are_run(example):
    shutil.copy(EXAMPLES / "my_rewards.py", example)
    bandit = Bandit([DOUBLE, *(FENCE.format(HOSTILE[what]) for what in ("exits", "prints the answer"))], lambda ask: "N/A")
    (example / "easy.py").write_text(
        "import my_task\nclass Double(my_task.Puzzles):\n    name = 'double'\n    def __len__(self): return 1\n"
    )
    more = {"task": "easy:Double", "reward": "my_rewards:correctness", "eval_questions": 0, "eval_debates": 0}
    config = settings(example / "run", warm_steps=0, batch=1, steps=4, **more)
    run = asyncio.run(train_run(config, load=lambda *_: bandit))
    steps = [line for line in run.metrics() if line["phase"] == "train"]
    assert all(0 <= line["train_double/correct"] <= 1 for line in steps)
    assert bandit.logits.argmax() == 0  # what is right has become the likeliest
    debates = list(read_file(run.path / "debates" / "step_000001.jsonl"))
    assert debates[0].question.payload == (((1,), 2), ((-3,), -6))


SMALL = ("--preset", "demo-parallel", "--model", PARROT, "--warm-steps", 0, "--batch", 2, "--rank", 4, "--threads", 1)
SMALL += ("--device", "cpu", "--max-tokens", 16, "--eval-questions", 1, "--eval-debates", 1, "--steps", 1)


def test_the_commands(example):
    task = ("--task", "my_task:Puzzles")
    done = peergrad("train", *SMALL, *task, "--out", "run", cwd=example)
    assert (done.returncode, "nothing was learned" in done.stderr) == (1, True), done.stderr  # the parrot writes no programs
    metrics = objects((example / "run" / "metrics.jsonl").read_text())
    assert [line["train_puzzles/correct"] for line in metrics if line["phase"] == "train"] == [0.0]
    asked = next(read_file(example / "run" / "debates" / "step_000001.jsonl")).turns[0].asked
    assert "Give one Python function f in solution" in asked[-1].text

    small = ("--threads", 1, "--device", "cpu", "--mode", "direct", "--json")
    done = peergrad("eval", "--model", "run", *small, cwd=example)
    assert done.returncode == 2
    assert "if you trust it, repeat --task my_task:Puzzles" in done.stderr
    done = peergrad("eval", "--model", "run", *task, *small, cwd=example)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["task"] == "puzzles"

    (example / "my_task.py").write_text("raise SystemExit('it was run')\n")
    for command in (("report",), ("rescore", "--json"), ("score", "--json"), ("export", "--to", "adapter")):
        path = "run/debates/step_000001.jsonl" if command[0] == "score" else "run"
        done = peergrad(command[0], path, *command[1:], cwd=example)
        assert (done.returncode, "it was run" in done.stderr) == (0, False), (command, done.stderr)


@pytest.mark.alone
def test_debates_of_programs(example):
    programs = [DOUBLE, FENCE.format(HOSTILE["loops"]), "I do not know."]
    with Server(replying(lambda request: said(request, programs[seat(request)], best=0))) as server:
        args = ("--model", f"m@{server.url}", "--task", "my_task:Puzzles", "--questions", 1, "--rounds", 2)
        done = peergrad("debate", *args, "--out", "d.jsonl", "--json", cwd=example)
        assert done.returncode == 0, done.stderr
        assert objects(done.stdout)[0]["winner"] == 0
        assert not any("-6" in json.dumps(request.body["messages"]) for request in server.requests)  # it is in the tests
    done = peergrad("rescore", "d.jsonl", "--json", cwd=example)
    assert json.loads(done.stdout)["with_truth"] == 0
    done = peergrad("rescore", "d.jsonl", "--json", "--task", "my_task:Puzzles", cwd=example)
    assert (json.loads(done.stdout)["with_truth"], json.loads(done.stdout)["mixed"]) == (1, 1)


WRONG = {
    "import nowhere_to_be_found": "no module 'nowhere_to_be_found' is installed",
    "1 / 0": r"can't be imported \(ZeroDivisionError",
    "U = 1": "module 'wrong.*' has no 'T'",
    "T = 7": "int has no name; a task has a name",
    "class T(Fits): grade = property()": "T has no grade; a task has",
    "class T(Fits):\n    def __init__(self): 1 / 0": r"failed \(ZeroDivisionError: .*wrong\d+.py, line \d+",
    "class T(Fits):\n    def __len__(self): return -1": r"failed \(ValueError",
    "class T(Fits):\n    def __len__(self): return 0": "has no questions",
    "class T(Fits): name = 'a/b'": "name is 'a/b'; give letters",
    "class T(Fits): known = False": "known is False, but a question has an answer or a payload",
    "class T(Fits):\n    def __getitem__(self, i): return Question(str(i), '?')": "known is True, but no question has",
    "class T(Fits):\n    def __getitem__(self, i): return 'x'": "question 0: is str, not a Question",
    "class T(Fits):\n    def __getitem__(self, i): return Question('x', '?', '1')": "question 1: its id is 'x'; give each",
    "class T(Fits):\n    def __getitem__(self, i): return Question(str(i), '?', '1', Style('boxed'))": "built-in 'boxed'",
    "class T(Fits):\n    def __getitem__(self, i): return Question(str(i), '?', '1', 'box')": "style: 'box' is not known",
    "class T(Fits):\n    def grade(self, q, s): return 1 / 0": r"grade failed \(ZeroDivisionError: .*wrong\d+.py",
    "class T(Fits):\n    def grade(self, q, s): return True": "grade gave True; give a Grade",
    "class T(Fits):\n    def grade(self, q, s): return Grade(True, 3)": "give a Grade, its answer text or None",
}
FITS = """
from peergrad import Question
from peergrad import Style
from peergrad.tasks.base import Grade
class Fits:
    name, known = "fits", True
    def __len__(self): return 2
    def __getitem__(self, i): return Question(str(i), "?", "1")
    def grade(self, question, solution): return Grade(True, solution)
"""


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_what_does_not_fit_is_a_sentence(here, number):  # noqa: F811
    code, why = list(WRONG.items())[number]
    (here / f"wrong{number}.py").write_text(FITS + code)
    with pytest.raises(UserError, match=why):
        first_grade(f"wrong{number}:T")


def first_grade(name):
    task = open_questions(TaskConfig(task=name))
    return task.grade(task[0], "x")


def test_an_object_a_class_and_a_function_fit(here):  # noqa: F811
    (here / "forms.py").write_text(FITS + "made = Fits()\ndef make(): return made\n")
    for name in ("forms:Fits", "forms:made", "forms:make"):
        assert open_questions(TaskConfig(task=name))[1] == Question("1", "?", "1", dataset=name)


def test_datasets_and_files_go_before_modules(here):  # noqa: F811
    for name in ("gsm8k", "mine", "tasks"):
        (here / f"{name}.py").write_text("raise SystemExit('it was run')\n")
    (here / "x.jsonl").write_text('{"question": "a", "answer": "5"}\n')
    (here / "tasks:x").write_text("")
    assert open_questions(TaskConfig(task="gsm8k:x.jsonl"))[0].dataset == "gsm8k"
    for name, why in (("mine:x.jsonl", "'mine' in 'mine:x.jsonl' is no known dataset"), ("tasks:x", "of no kind that can")):
        with pytest.raises(UserError, match=why):
            open_questions(TaskConfig(task=name))
    with pytest.raises(UserError, match="'no_module:Task' can't be imported"):
        open_questions(TaskConfig(task="no_module:Task"))


def test_nothing_is_imported_that_a_folder_names(here):  # noqa: F811
    (here / "sent.py").write_text("raise SystemExit('it was run')\n")
    for names in ({"task": "sent:T"}, {"eval_task": "sent:T"}):
        run = Run(here / "-".join(names))
        run.begin(settings(run.path, warm_steps=0, **names), {})
        config = eval_command.base_settings(["--model", str(run.path)])
        with pytest.raises(UserError, match="not imported because a folder names it; if you trust it, repeat --task sent:T"):
            eval_command.command(changed(config, {"model": str(run.path)}, "test"))
    assert "sent" not in sys.modules
    with pytest.raises(UserError, match="it was run"):
        plan_run(settings(here / "run", task="sent:T"))


def test_a_style_of_ones_own_is_there_when_debates_are_loaded_again(here):  # noqa: F811
    (here / "styled.py").write_text(
        "from peergrad import Question\nfrom peergrad import Style\nfrom peergrad.tasks.base import Grade\n"
        "LAST = Style('last-line', find=lambda text: text.splitlines()[-1])\n"
        "class T:\n    name, known = 'styled', True\n    def __len__(self): return 1\n"
        "    def __getitem__(self, i):\n        if i: raise IndexError\n        return Question('q', '?', '4', style=LAST)\n"
        "    def grade(self, question, solution):\n"
        "        answer = question.style.answer(solution)\n        return Grade(answer == question.answer, answer)\n"
    )
    task = open_questions(TaskConfig(task="styled:T"))
    question = load(dump(Debate("d", task[0], Parallel()))).question
    assert task.grade(question, "2 + 2 =\n4").correct
