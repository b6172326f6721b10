"""A protocol of one's own by its import path: in Python, in a run, on the command line; what does not fit is a sentence."""

import asyncio
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from peergrad import Parallel, Question, Scripted, UserError, dump, load, play, preset, score, train_run, with_protocol
from peergrad.config import from_folder
from peergrad.debate import protocol as protocols
from peergrad.debate.contract import read
from peergrad.debate.protocol import Recorded, own_protocol
from peergrad.debate.settings import flat, to_toml
from peergrad.debate.types import Contract, Parsed
from peergrad.learn.data import section_tokens
from peergrad.runs.folder import Run
from peergrad.web.report import report
from tests.commands import peergrad
from tests.helpers import parallel, played, short
from tests.runs.test_run import settings

ROOT = Path(__file__).parent.parent
PARROT = ROOT / "tests" / "fixtures" / "parrot"
PANEL = "my_protocol:Panel"
BALLOT = "<evaluation>both are short</evaluation><comparison>{}</comparison>"


@pytest.fixture
def panel(monkeypatch):
    """The example, named by a person."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "examples")])
    monkeypatch.setattr(protocols, "_own", {})
    return own_protocol(PANEL)


def debate(panel, agents=3):
    def script(ask):
        others = [agent for agent in range(agents) if agent != ask.agent]
        return (
            f"The answer is \\boxed{{{ask.agent}}}."
            if ask.round == 0
            else BALLOT.format("Agent {} > Agent {}".format(*others))
        )

    return asyncio.run(play(panel(agents=agents), Question("q", "What is 1 + 1?", "2", "boxed"), Scripted(script)))


def test_turns_may_have_different_contracts_or_none(panel):  # SPEC 3.13
    played = debate(panel)
    assert [(turn.round, turn.asked_to_answer, turn.asked_to_vote) for turn in played.turns] == [(0, True, False)] * 3 + [
        (1, False, True)
    ] * 3
    assert [turn.solution for turn in played.turns[:1]] == ["The answer is \\boxed{0}."]
    assert [turn.solution for turn in played.turns[3:]] == [None] * 3
    assert played.rounds == 2
    assert [played.final_turn(agent) for agent in range(3)] == [0, 1, 2]
    scored = score(played)
    assert [vote.judged for vote in scored.tally.votes] == [(1, 2), (0, 2), (0, 1)]
    gen = next(stream for stream in scored.streams if stream.name == "gen")
    assert gen.values == (1.0, 0.0, -1.0, None, None, None)
    assert section_tokens(played.turns[0], "solution") == slice(None), "without a contract all of a reply is its solution"
    assert not scored.tally.missing


def test_a_contract_without_votes_can_be_read():
    parsed = read("<solution>4</solution>", Contract(("solution",)))
    assert (parsed.error, parsed.votes, [section.name for section in parsed.sections]) == (None, (), ["solution"])


def test_a_transcript_loads_with_the_protocol_and_without_it(panel, monkeypatch):
    played = debate(panel)
    line = dump(played)
    assert load(line) == played
    monkeypatch.setattr(protocols, "_own", {})
    recorded = load(line)
    assert isinstance(recorded.protocol, Recorded)
    assert recorded.protocol.wave(recorded) == []
    assert [turn.parsed.votes for turn in recorded.turns] == [turn.parsed.votes for turn in played.turns]
    assert [(turn.round, turn.contract, turn.solution) for turn in recorded.turns] == [
        (turn.round, turn.contract, turn.solution) for turn in played.turns
    ]
    for before, after in zip(score(played).streams, score(recorded).streams, strict=True):
        assert before == after
    assert json.loads(dump(recorded)) == json.loads(line)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"votes": [[0, "<", 1]]}, "votes\\[0\\]\\[1\\]"),
        ({"votes": [[0, ">"]]}, "is no vote"),
        ({"votes": 7}, "is not a list"),
        ({"sections": {"evaluation": [0, 10**6]}}, "sections.evaluation"),
        ({"sections": {"evaluation": [5, 2]}}, "is no span"),
        ({"round": -1}, "round"),
        ({"contract": [7]}, "contract"),
        ({"consensus": "YES"}, "consensus"),
    ],
)
def test_a_damaged_transcript_of_an_unknown_protocol_is_a_sentence(panel, monkeypatch, change, why):
    line = json.loads(dump(debate(panel)))
    line["turns"][3] |= change
    monkeypatch.setattr(protocols, "_own", {})
    with pytest.raises(UserError, match=why):
        load(json.dumps(line))


def test_its_fields_are_settings(panel, tmp_path):
    config = with_protocol(preset("demo-parallel"), panel(heat=0.5))
    assert flat(config)["heat"] == 0.5
    assert config.debate.build() == panel(heat=0.5)
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert from_folder(preset("demo-parallel"), tmp_path) == config


def test_a_folder_imports_nothing(panel, tmp_path, monkeypatch):
    config = with_protocol(preset("demo-parallel"), panel(heat=0.5))
    (tmp_path / "config.toml").write_text(to_toml(config))
    monkeypatch.setattr(protocols, "_own", {})
    monkeypatch.setattr(protocols, "imported", lambda *_: pytest.fail("a folder named it"))
    sent = from_folder(preset("demo-parallel"), tmp_path)
    assert "heat" not in flat(sent)
    assert isinstance(sent.debate.build(), Recorded)


def test_a_run_trains_with_it_and_resumes(panel, tmp_path, monkeypatch):
    def config(steps, **more):
        base = settings(tmp_path / "run", steps=steps, eval_questions=2, eval_debates=2)
        return with_protocol(base, panel(max_tokens=24, **more))

    asyncio.run(train_run(config(1)))
    run = asyncio.run(train_run(config(2)))
    steps = [line for line in run.metrics() if line["phase"] == "train"]
    assert [line["step"] for line in steps] == [1, 2]
    assert all(line["round"] == 1.5 for line in steps)
    assert any(name.startswith("eval/debate/") for line in run.metrics() for name in line)
    with pytest.raises(UserError, match=r"heat: the run in .* has 1\.0, not 0\.5"):
        asyncio.run(train_run(config(3, heat=0.5)))
    monkeypatch.setattr(protocols, "_own", {})
    assert "Agent 0" in report(Run.open(run.path)), "shown by what was recorded"


def command(*args, cwd=ROOT / "examples"):
    made = peergrad(*args, cwd=cwd)
    assert "Traceback" not in made.stderr
    return made


SMALL = ("--model", PARROT, "--max-tokens", 24, "--threads", 1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("own") / "run"
    small = ("--batch", 2, "--steps", 1, "--warm-steps", 0, "--eval-questions", 2, "--eval-debates", 0, "--rank", 2)
    made = command("train", "--protocol", PANEL, *SMALL, "--heat", 0.8, *small, "--out", out)
    assert made.returncode == 0, made.stderr
    assert "heat = 0.8" in (out / "config.toml").read_text()
    return out


def test_a_run_is_scored_and_shown_where_the_module_is_not(trained, tmp_path):
    assert command("score", trained / "debates" / "step_000001.jsonl", "--json", cwd=tmp_path).returncode == 0
    assert command("report", trained, cwd=tmp_path).returncode == 0
    refused = command("eval", "--model", trained, "--questions", 2, cwd=tmp_path)
    assert refused.returncode == 2
    assert "give --protocol my_protocol:Panel to import it" in refused.stderr


def test_a_run_is_evaluated_where_a_person_names_it(trained, tmp_path):
    made = command("eval", "--model", trained, "--questions", 2, "--protocol", PANEL, "--out", tmp_path / "eval", "--json")
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["settings"]["heat"] == 0.8, "what is not given is the run's"


def test_it_debates_on_the_command_line(tmp_path):
    made = command("debate", "Why?", "--protocol", PANEL, *SMALL, "--json", "--out", tmp_path / "talk.jsonl")
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["protocol"] == PANEL


WRONG = {
    "P = 7": "is of type int, not a dataclass derived from peergrad.BaseProtocol",
    "class P: ...": "is the class P, not a dataclass derived",
    "": "has no 'P'",
    "from peergrad import BaseProtocol as P": "failed .NotImplementedError",
    "from dataclasses import dataclass\nfrom peergrad import BaseProtocol\n@dataclass(frozen=True, kw_only=True)\n"
    "class P(BaseProtocol):\n    more: int\n": "has no default for more; give it one",
    "from dataclasses import dataclass\nfrom peergrad import BaseProtocol\n@dataclass(frozen=True, kw_only=True)\n"
    "class P(BaseProtocol):\n    def wave(self, debate):\n        return 1 / 0\n": r"ZeroDivisionError: .*own.py, line 6",
}


@pytest.mark.parametrize("module", WRONG)
def test_what_does_not_fit_is_a_sentence(tmp_path, module):
    (tmp_path / "own.py").write_text(module)
    made = command(
        "debate", "Why?", "--protocol", "own:P", "--model", PARROT, "--max-tokens", 8, "--threads", 1, cwd=tmp_path
    )
    assert made.returncode == 2
    assert re.search(WRONG[module], made.stderr.replace("\n", " ")), made.stderr


def test_a_kind_of_a_built_in_one_keeps_its_own_name(tmp_path, monkeypatch):
    monkeypatch.setattr(protocols, "_own", {})
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "kinds_of.py").write_text(
        "from dataclasses import dataclass\nfrom peergrad import Parallel\n@dataclass(frozen=True, kw_only=True)\n"
        "class Louder(Parallel):\n    extra: int = 1\n"
    )
    louder = own_protocol("kinds_of:Louder")
    config = with_protocol(preset("demo-parallel"), louder(extra=5))
    assert config.debate.build() == louder(extra=5)
    assert louder().name == "kinds_of:Louder"
    played = asyncio.run(play(louder(max_rounds=2, extra=5), Question("q", "?"), Scripted(lambda _: short())))
    assert load(dump(played)) == played
    monkeypatch.setattr(protocols, "_own", {})
    recorded = load(dump(played))
    assert [turn.contract for turn in recorded.turns] == [turn.contract for turn in played.turns]
    assert [turn.solution for turn in recorded.turns] == ["42"] * 6
    assert score(recorded).streams == score(played).streams


def test_an_old_transcript_of_a_kind_of_a_built_in_one_is_read_strictly(tmp_path, monkeypatch):
    monkeypatch.setattr(protocols, "_own", {})
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "old_kinds.py").write_text(
        "from dataclasses import dataclass\nfrom peergrad import Parallel\nfrom peergrad.debate.ballot import Ballot\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Louder(Parallel):\n    extra: int = 1\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Panel(Ballot):\n    ballot_form: str = 'verdicts'\n"
    )
    louder, panel = own_protocol("old_kinds:Louder"), own_protocol("old_kinds:Panel")
    graded = "A: 4 (good)\nB: 2 (bad)"
    for protocol, words, added in (
        (louder(max_rounds=1), "42", ("reading", "order_shown")),
        (panel(agents=3), graded, ("reading",)),
    ):
        played = play(protocol, Question("q", "?"), Scripted(lambda _, words=words: words))
        line = json.loads(dump(asyncio.run(played)))
        assert not load(json.dumps(line)).turns[-1].parsed.error
        for name in added:
            del line["settings"][name]
        old = load(json.dumps(line))
        assert [getattr(old.protocol, name) for name in added] == ["strict", "seat"][: len(added)]
        assert old.turns[-1].parsed.error


@pytest.mark.parametrize("verdict", [float("nan"), 1.5, -3, "<", None])
def test_a_vote_that_is_none_is_a_sentence(verdict):
    with pytest.raises(UserError, match=r"protocol: a vote says .*; give '>', '=' or a number from -1 to 1"):
        Parsed(votes=((0, verdict, 1),))


def test_a_field_may_not_be_called_like_another_setting(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "taking.py").write_text(
        "from dataclasses import dataclass\nfrom peergrad import BaseProtocol\n@dataclass(frozen=True, kw_only=True)\n"
        "class P(BaseProtocol):\n    seed: int = 1\n    table: dict = None\n"
    )
    with pytest.raises(UserError, match="has a field seed, which is another setting already"):
        with_protocol(preset("demo-parallel"), "taking:P")


def test_a_turn_of_a_built_in_protocol_may_have_no_contract():
    line = json.loads(dump(parallel(3, ["N/A"] * 3)))
    line["turns"][0]["contract"] = None
    assert load(json.dumps(line)).turns[0].solution == line["turns"][0]["text"]


def test_an_unknown_name_is_refused():
    made = command("train", "--protocol", "paralel", "--dry-run")
    assert made.returncode == 2
    assert "did you mean 'parallel'?, or module:name of your own" in made.stderr


@dataclass(frozen=True, slots=True, kw_only=True)
class Biased(Parallel):
    """Reads a vote where there is none."""

    limit: object = 3

    def read(self, ask, text, truncated=False):
        return Parsed(votes=((1, ">", 2),)) if ask.agent == 0 and ask.round else Parallel.read(self, ask, text, truncated)


def test_a_protocol_derived_from_a_built_in_one_keeps_its_votes_in_a_transcript():  # SPEC 3.14
    debate = played(Biased(agents=3, max_rounds=2), lambda _: short())
    saved = load(dump(debate))
    assert saved.protocol.name == "tests.test_own_protocols:Biased"
    assert [turn.parsed.votes for turn in saved.turns] == [turn.parsed.votes for turn in debate.turns]
    assert score(saved).streams == score(debate).streams


def test_what_could_not_be_loaded_again_is_not_saved():  # SPEC 3.14, 8.5
    with pytest.raises(UserError, match=r"protocol: tests\.test_own_protocols:Biased has a setting that can't be saved"):
        dump(played(Biased(agents=2, max_rounds=1, limit=Path("x")), lambda _: short()))


def test_help_has_a_sentence_for_what_a_protocol_inherits(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom peergrad.debate.ballot import Ballot\n\n"
        "@dataclass(frozen=True, slots=True, kw_only=True)\nclass Mine(Ballot):\n"
        '    extra: int = 1\n    """What is extra."""\n'
    )
    said = peergrad("train", "--protocol", "mine:Mine", "--help-all", cwd=tmp_path).stdout
    assert re.search(r"--extra INT\s+What is extra", said)
    assert re.search(r"--shown INT\s+How many others' answers an agent judges", said)
