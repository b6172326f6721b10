"""Nothing in a prompt can be copied into a vote (SPEC 3.3), and a person may write prompts of their own (SPEC 3.20)."""

import asyncio
from itertools import product
from pathlib import Path
from typing import get_args

import pytest

from peergrad import Question, UserError, read_file
from peergrad.cli.main import train_settings
from peergrad.config import TrainConfig, from_folder, preset
from peergrad.debate.ballot import Ballot, BallotForm
from peergrad.debate.contract import read_votes
from peergrad.debate.judge import judge_asks, read_verdict
from peergrad.debate.personas import PERSONAS, Persona, personas_toml, read_personas
from peergrad.debate.play import play
from peergrad.debate.prompts import TEXTS, read_texts
from peergrad.debate.protocols import Parallel, Sequential
from peergrad.debate.question import STYLES
from peergrad.debate.settings import changed
from peergrad.runs.folder import Run
from peergrad.runs.plan import plan_run
from tests.commands import peergrad
from tests.helpers import Choosing, full, short

PARROT = Path(__file__).parent / "fixtures" / "parrot"
FORMS = get_args(BallotForm)


def reply(ask):
    """No vote in words; one agent is unreadable in the first round, so that it is told so."""
    if ask.candidates:
        return "\n".join(f"{letter}: right" for letter in "ABCDEFGH"[: len(ask.candidates)])
    if ask.contract is None:
        return f"It is \\boxed{{{ask.agent % 2}}}."
    if ask.turn == 1 and "consensus" not in ask.contract.names:
        return ""
    return (full if "consensus" in ask.contract.names else short)(solution="four")


class Watched(Choosing):
    """Keeps every ask, those of choices included."""

    def __init__(self):
        super().__init__(reply, lambda ask, options: [1 / len(options)] * len(options), tokens=False)
        self.asks = []

    async def sample(self, asks):
        self.asks += asks
        return await super().sample(asks)

    async def choose(self, asks, options):
        self.asks += asks
        return await super().choose(asks, options)


def check(protocol, question):
    """Every prompt of a debate, read as a reply to it, holds no vote."""
    engine = Watched()
    debate = asyncio.run(play(protocol, question, engine))
    readers = {"protocol": protocol.read, "judge": lambda _, text: read_verdict(text)}
    for reader, asks in (("protocol", engine.asks), ("judge", judge_asks(debate, 10))):
        for ask in asks:
            texts = [message.text for message in ask.messages if message.role != "assistant"]
            for text in [*texts, "\n\n".join(texts)]:
                assert readers[reader](ask, text).votes == (), text
                assert read_votes(text, 0, len(text))[0] == (), text
    return debate


@pytest.mark.parametrize("agents", range(2, 10))
@pytest.mark.parametrize("style", STYLES)
def test_no_prompt_reads_as_a_vote(agents, style):  # SPEC 3.3
    question = Question("q", "What is 2 + 2?", "4" if style == "boxed" else None, style)
    for wording, reading, order_shown in product(("full", "brief"), ("strict", "tolerant"), ("rotated", "seat")):
        settings = {"agents": agents, "wording": wording, "reading": reading, "order_shown": order_shown}
        assert len(check(Parallel(max_rounds=2, **settings), question).turns) == 2 * agents
        assert len(check(Sequential(max_rounds=2, **settings), question).turns) == 2 * agents
    check(Sequential(agents=agents, max_rounds=2, history_rounds=0), question)


@pytest.mark.parametrize("agents", range(2, 10))
@pytest.mark.parametrize("form", FORMS)
def test_no_ballot_prompt_reads_as_a_vote(agents, form):  # SPEC 3.3
    for style, own_in_view, merge_equal in product(STYLES, (True, False), (True, False)):
        question = Question("q", "What is 2 + 2?", "4" if style == "boxed" else None, style)
        settings = {"ballot_form": form, "own_in_view": own_in_view, "merge_equal": merge_equal, "shown": max(2, agents - 1)}
        protocol = Ballot(agents=agents, revise=not form.startswith("soft"), **settings)
        rounds = 1 if agents < 3 else 4 if protocol.revise else 2
        assert len(check(protocol, question).turns) == rounds * agents


def test_the_check_notices_a_filled_in_vote():
    question = Question("q", "?")
    for name, text in (("review", "Write <comparison>Agent 0 > Agent 2</comparison>"), ("rules", "Agent 1 = Agent 2")):
        with pytest.raises(AssertionError):
            check(Parallel(agents=4, max_rounds=2, prompts=((name, text),)), question)
    for form, text in (("ranking", "Ranking: A > B"), ("pairs", "A > B"), ("verdicts", "A: right\nB: wrong")):
        name = "ballot_grades" if form == "verdicts" else f"ballot_{form}"
        with pytest.raises(AssertionError):
            check(Ballot(agents=4, ballot_form=form, prompts=((name, text),)), question)


def test_texts_of_a_folder(tmp_path):  # SPEC 3.20
    (tmp_path / "review.txt").write_text("Agent {agent}: vote.\n")
    (tmp_path / ".hidden").write_bytes(b"\xff")
    assert read_texts(tmp_path) == (("review", "Agent {agent}: vote."),)
    assert {name for name in TEXTS if not name.replace("_", "").isalpha()} == set()


def command(*args, cwd=None):
    made = peergrad(*args, cwd=cwd)
    assert "Traceback" not in made.stderr
    return made


SMALL = ("--model", PARROT, "--max-tokens", 24, "--threads", 1)
OWN = "Think of zebras, and vote."


@pytest.fixture
def folder(tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "propose.txt").write_text(OWN)
    return texts


def test_a_debate_by_ones_own_text(folder, tmp_path):
    out = tmp_path / "talk.jsonl"
    made = command("debate", "Why?", *SMALL, "--max-rounds", 1, "--prompts", folder, "--out", out, "--json")
    assert made.returncode == 0, made.stderr
    (debate,) = read_file(out)
    assert debate.protocol.prompts == (("propose", OWN),)
    assert all(OWN in turn.asked[-1].text for turn in debate.turns)


def test_a_run_by_ones_own_text_and_not_by_another(folder, tmp_path):
    small = ("--batch", 2, "--warm-steps", 0, "--eval-questions", 0, "--eval-debates", 0, "--rank", 2)
    run = (
        "train",
        "--preset",
        "demo-parallel",
        *SMALL,
        *small,
        "--max-rounds",
        1,
        "--prompts",
        folder,
        "--out",
        tmp_path / "run",
    )
    made = command(*run, "--steps", 1)
    assert made.returncode in (0, 1), made.stderr  # 1: nobody votes in one round, so there may be nothing to learn
    (first, _) = read_file(tmp_path / "run" / "debates" / "step_000001.jsonl")
    assert first.protocol.prompts == (("propose", OWN),)
    (folder / "review.txt").write_text("Another.")
    refused = command(*run, "--steps", 2)
    assert refused.returncode == 2
    assert "prompts" in refused.stderr


def test_a_check_by_ones_own_text(folder):
    made = command(
        "check", "--preset", "demo-parallel", *SMALL, "--questions", 2, "--max-rounds", 1, "--prompts", folder, "--json"
    )
    assert made.returncode in (0, 1), made.stderr
    assert "copied" in made.stdout


def test_what_is_no_text_is_a_sentence(folder, tmp_path):
    def refusal(prompts, *args):
        made = command("check", *SMALL, "--prompts", prompts, *args)
        assert made.returncode == 2
        return " ".join(made.stderr.split())

    assert "can't be read (No such file or directory); give a folder of NAME.txt files" in refusal(tmp_path / "none")
    (folder / "judgee.txt").write_text("x")
    assert "judgee.txt is no text that is asked; did you mean 'judge'?" in refusal(folder)
    (folder / "judgee.txt").unlink()
    (folder / "review.md").write_text("x")
    assert "each in a file NAME.txt" in refusal(folder)
    (folder / "review.md").unlink()
    (folder / "review.txt").write_bytes(b"\xff\xfe")
    assert "is not UTF-8 text" in refusal(folder)


def test_only_texts_are_read(tmp_path):
    (tmp_path / "secret.bin").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"secret\.bin is no text that is asked"):
        read_texts(tmp_path)


def test_a_run_keeps_its_texts_and_reads_no_others(folder, tmp_path, monkeypatch):  # SPEC 3.20
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "propose.txt").write_text("another's")
    monkeypatch.chdir(tmp_path)
    config = changed(preset("demo-parallel"), {"prompts": "texts"}, "test")
    run, facts = Run(tmp_path / "run"), plan_run(config).facts
    with run.opened(config, facts):
        run.begin(config, facts)
    folder.rename(tmp_path / "moved")
    monkeypatch.chdir("/")
    assert from_folder(TrainConfig(), run.path).debate.texts == (("propose", OWN),)
    assert train_settings(["--config", str(run.path / "config.toml")]).debate.texts == (("propose", OWN),)
    moved = changed(config, {"prompts": str(tmp_path / "moved")}, "test")
    with run.opened(moved, plan_run(moved).facts):  # the same texts, wherever they lie
        pass
    sent = run.path / "config.toml"
    sent.write_text(sent.read_text().replace(str(run.path / "prompts"), str(secret)))
    assert str(secret) in sent.read_text()
    assert from_folder(TrainConfig(), run.path).debate.texts == (("propose", OWN),), "a folder names nothing outside of it"


PERSONAS_FILE = """
[[persona]]
name = "Checker"
temperature = 0.4
text = "You test \\u007f every claim.\\nTwice."

[[persona]]
temperature = 1
name = "Dreamer"
text = ""
"""
CHARACTERS = (Persona("Checker", "You test \x7f every claim.\nTwice.", 0.4), Persona("Dreamer", "", 1.0))


@pytest.fixture
def personas(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(PERSONAS_FILE)
    return path


def test_personas_of_a_file(personas, tmp_path):  # SPEC 3.10
    assert read_personas(personas) == CHARACTERS
    for some in (CHARACTERS, PERSONAS):
        (tmp_path / "copy.toml").write_text(personas_toml(some))
        assert read_personas(tmp_path / "copy.toml") == some


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[persona]\n", "mine.toml is not TOML"),
        ("", "mine.toml: has no table [[persona]]"),
        ("[[personas]]\n", "mine.toml, personas: is not known; write each persona as a table [[persona]]"),
        ("persona = 3\n", "mine.toml, persona: 3 is not a list"),
        ("persona = [3]\n", "mine.toml, persona[0]: 3 is not an object"),
        (
            PERSONAS_FILE + "style = 'x'\n",
            "persona[1].style: is not known; it may be 'name', 'temperature', 'text'",
        ),
        (PERSONAS_FILE.replace('"Dreamer"', '""'), 'mine.toml, persona[1].name: "" is no name'),
        (PERSONAS_FILE.replace('"Dreamer"', "2026-01-01"), 'persona[1].name: "2026-01-01" is not text'),
        (PERSONAS_FILE.replace("0.4", "-0.4"), "persona[0].temperature: -0.4 is not possible; give 0 or more"),
        (PERSONAS_FILE.replace("0.4", "nan"), "persona[0].temperature: NaN is not a number"),
        (PERSONAS_FILE.replace('text = ""', ""), "persona[1].text: is missing"),
    ],
)
def test_what_is_no_persona_is_a_sentence(personas, text, says):  # SPEC 3.10
    personas.write_text(text)
    with pytest.raises(UserError) as caught:
        read_personas(personas)
    assert says in str(caught.value)


def test_a_debate_of_ones_own_personas(personas, tmp_path):  # SPEC 3.10
    out = tmp_path / "talk.jsonl"
    args = ("debate", "Why?", *SMALL, "--max-rounds", 1, "--personas", personas, "--temperature", 0.5, "--out", out)
    made = command(*args, "--json")
    assert made.returncode == 0, made.stderr
    (debate,) = read_file(out)
    assert debate.protocol.personas == CHARACTERS
    assert [turn.tokens.temperature for turn in debate.turns] == pytest.approx([0.2, 0.5, 0.2])
    assert "the Dreamer" in debate.turns[1].asked[0].text
    personas.write_text(PERSONAS_FILE.replace("0.4", "0.5"))
    refused = command(*args)
    assert (refused.returncode, "personas: the transcript" in refused.stderr) == (2, True)
    missing = command("check", *SMALL, "--personas", tmp_path / "none.toml")
    assert (missing.returncode, "none.toml can't be read" in missing.stderr) == (2, True)


@pytest.mark.slow
def test_a_run_of_ones_own_personas_and_of_no_others(personas, tmp_path, monkeypatch):  # SPEC 3.10
    small = ("--batch", 2, "--warm-steps", 0, "--eval-questions", 0, "--eval-debates", 0, "--rank", 2, "--max-rounds", 1)
    run = ("train", "--preset", "demo-parallel", *SMALL, *small, "--out", tmp_path / "run")
    # 1: nobody votes in one round, so there may be nothing to learn
    assert command(*run, "--steps", 1, "--personas", personas).returncode in (0, 1)
    personas.rename(tmp_path / "moved.toml")
    copy = tmp_path / "run" / "personas.toml"
    assert command(*run, "--steps", 2, "--personas", copy).returncode in (0, 1), "the same, wherever they lie"
    (debate, _) = read_file(tmp_path / "run" / "debates" / "step_000002.jsonl")
    assert debate.protocol.personas == CHARACTERS
    refused = command(*run, "--steps", 3)
    assert (refused.returncode, "has other prompts" in refused.stderr) == (2, True)
    colder = tmp_path / "colder.toml"
    colder.write_text(PERSONAS_FILE.replace("0.4", "0.3"))
    assert "has other prompts" in command(*run, "--steps", 3, "--personas", colder).stderr
    monkeypatch.chdir("/")
    sent = tmp_path / "run" / "config.toml"
    sent.write_text(sent.read_text().replace(str(copy), str(colder)))
    assert str(colder) in sent.read_text()
    assert from_folder(TrainConfig(), tmp_path / "run").debate.characters == CHARACTERS, "nothing outside of it is read"
