"""Answer alone, then vote on the others' answers under letters (SPEC 3.16 to 3.19)."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import ClassVar, Literal

from peergrad.debate import prompts
from peergrad.debate.contract import MAX_VOTES, Reading
from peergrad.debate.errors import UserError
from peergrad.debate.prompts import LETTERS, Wording
from peergrad.debate.protocol import BaseProtocol, answers_agree, seats_taken
from peergrad.debate.quote import MARK, clip, harmless
from peergrad.debate.types import (
    Ask,
    Candidates,
    Choice,
    Contract,
    Debate,
    Message,
    Parsed,
    ParseError,
    Section,
    Turn,
    Verdict,
)

BallotForm = Literal["soft-verdict", "soft-choice", "soft", "verdicts", "ranking", "pairs"]
BALLOT = Contract(("evaluation", "comparison"))
NO_BALLOT = Parsed(error=ParseError("missing", "comparison"))

# Lines of a ballot. Every repeat is possessive, and what follows it begins with another character: no input backtracks.
# Case is ignored among ASCII letters alone: there are others that are an I or a K in another case.
# What is quoted, behind a mark, is not the voter's.
_HEAD = r"^[^\w\n|]*+(?:[aA]nswer )?([A-Z])\b"
_WORD = r"((?ai:right|wrong|correct|incorrect)\b|[1-5](?=[^\w\n]*+$))"  # a number may begin a critique, too
_VERDICT = re.compile(rf"{_HEAD}[^\w\n:=–-]*+[:=–-][^\w\n]*+{_WORD}", re.M)
# A grade with a reason behind it, or alone on the line after its letter. A number that goes on in any other way ("3 errors",
# "4.5", "2 - 3") may be a value, and so may one of which is said that it is right.
_REASON = r"[*_]*+[ \t]*+(?:[.:–—-][ \t]++|\()[*_]*+[^\W\d_](?![^\n]*\b(?ai:right|wrong|correct|incorrect)\b)"
_BEHIND = rf"[^\w\n]*+(?:(?ai:grade)\b[^\w\n]*+)?+([1-5])(?:/5)?+(?={_REASON}|[^\w\n]*+$)"
_BELOW = r"[^\w\n]*+\n[^\w\n|]*+([1-5])(?=[^\w\n]*+$)"
_GRADE = re.compile(rf"{_HEAD}[^\w\n:：=–-]*+[:：=–-](?:{_BEHIND}|{_BELOW})", re.M)
_RANKING = re.compile(r"^[^\w\n|]*+(?ai:ranking)[^\w\n:]*+:((?:[^\w\n]|\b(?:[aA]nswer|[A-Z])\b)*+)", re.M)
_PAIR = re.compile(r"^[^\w\n|]*+([A-Z])[ \t]*+([<>=])[ \t]*+([A-Z])(?![^\W_])", re.M)
_HEADING = re.compile(rf"{_HEAD}(?=[ \t]*+(?:[:.)*–-]|$))", re.M)
_SHARE = re.compile(r"(?<!\S)\S++ (0\.[0-9]{6}|1\.000000)")
_WORTH = {"right": 1.0, "correct": 1.0, "wrong": 0.0, "incorrect": 0.0} | {str(grade): float(grade) for grade in range(1, 6)}

Points = Mapping[int, float]
_NO_SURER = 1e-3  # than this a voter is taken to be: probabilities near 0 and 1 differ by noise alone
_MOST_SHOWN = 11  # of whom all pairs are no more votes than are read in a turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Ballot(BaseProtocol):
    """Every agent answers alone, by the prompt of direct answering, and then judges some of the others' answers; with
    ``revise`` it then answers again, with the critiques of its answer, and judges again.
    """

    reward: ClassVar[str] = "borda"
    agents: int = 8
    temperature: float = 1.0
    wording: Wording = "full"
    """Brief: a final value is asked about in three words, which models of 135M parameters follow better."""
    reading: Reading = "tolerant"
    """Whether grades with words behind them are read, too."""
    shown: int = 4
    """How many others' answers an agent judges."""
    ballot_form: BallotForm = "soft-verdict"
    """How it is asked to: in words (verdicts, ranking, pairs), or by how likely it is to say Yes or a letter (soft)."""
    own_in_view: bool = True
    """Whether an agent sees its own answer when it judges, as what it said before."""
    merge_equal: bool = False
    """Show answers with the same final value once."""
    revise: bool = False
    """Answer once more with the critiques one got, and judge the new answers."""
    max_chars_per_field: int = 4000
    """Longer answers are clipped to this many characters where others see them."""
    end_early: bool = False
    extra_rounds: int = 0
    agents_min: int = 0
    """How many answer first; the others only if these do not agree (SPEC 3.22). 0: all at once."""

    def __post_init__(self) -> None:
        BaseProtocol.__post_init__(self)
        self.check_first(self.agents_min)
        self.at_least(1, "max_chars_per_field")
        if not 2 <= self.shown <= _MOST_SHOWN:
            raise UserError(f"shown: {self.shown} is not possible; give a whole number from 2 to {_MOST_SHOWN}")
        self.at_least(0, "temperature", "extra_rounds")
        if self.revise and self.soft:
            raise UserError(
                f"revise: votes by {self.ballot_form!r} come without critiques to revise by; take --ballot-form verdicts, "
                "ranking or pairs"
            )
        if self.extra_rounds and not self.revise:
            raise UserError(f"extra_rounds: {self.extra_rounds} is not possible where nobody answers again; give --revise")

    @property
    def soft(self) -> bool:
        """Whether votes are probabilities, and not words."""
        return self.ballot_form.startswith("soft")

    def chooses(self, contract: Contract | None) -> bool:
        return self.soft and contract == BALLOT

    @property
    def rounds(self) -> int:
        return 1 if self.agents < 3 else 4 + 2 * self.extra_rounds if self.revise else 2  # a vote compares two others

    def seats(self, debate: Debate) -> int:
        return seats_taken(debate, self.agents_min, self.agents)

    def alone(self, agent: int) -> BaseProtocol:  # noqa: ARG002
        return replace(self, agents=1, agents_min=0)

    def wave(self, debate: Debate) -> list[Ask]:
        round_, speakers = self.speakers(debate)
        if round_ and debate.agents < 3:
            return []
        votes = round_ % 2 == 1
        may_end = self.end_early if votes else round_ >= 4
        if round_ >= self.rounds or (may_end and answers_agree(debate, round_ - 1 if votes else round_ - 2)):
            return []
        step = self._ballot if votes else self._revision if round_ else self._answer
        return [step(debate, agent, round_, place) for place, agent in enumerate(speakers)]

    def _answer(self, debate: Debate, agent: int, round_: int, place: int) -> Ask:
        messages = (Message("user", prompts.question(debate.question, own=self.prompts)),)
        return self.ask(debate, agent, messages, round=round_, shown=(0, 0), place=place, temperature=self.temperature)

    def _ballot(self, debate: Debate, agent: int, round_: int, place: int) -> Ask:
        candidates = self._candidates(debate, debate.in_round(round_ - 1)[1], agent, round_)
        return self.ballot_ask(debate, agent, candidates, round=round_, answered_in=round_ - 1, place=place)

    def ballot_ask(
        self, debate: Debate, agent: int, candidates: Candidates, *, round: int, answered_in: int, place: int
    ) -> Ask:
        """The ask for a ballot on the answers that the candidates gave in a round."""
        shown, answers = debate.in_round(answered_in)
        choices = self._choices(debate, answers, agent, candidates) if self.soft else ()
        messages = choices[0].messages if choices else self._ask_in_words(debate, answers, agent, candidates)
        ask = self.ask(
            debate,
            agent,
            messages,
            round=round,
            shown=shown,
            place=place,
            contract=BALLOT,
            temperature=self.temperature,
        )
        return replace(ask, stop=(), candidates=candidates, choices=choices)

    def _revision(self, debate: Debate, agent: int, round_: int, place: int) -> Ask:
        own = debate.in_round(round_ - 2)[1][agent]
        shown, ballots = debate.in_round(round_ - 1)
        critiques = [critique for turn in ballots.values() if (critique := critique_of(turn, agent))]
        quoted = "\n\n".join(MARK + harmless(critique).replace("\n", f"\n{MARK}") for critique in critiques)
        name, instruction = "revise" if critiques else "no_critiques", debate.question.style.instruction
        task = prompts.text(name, self.prompts, critiques=quoted, instruction=instruction).rstrip()
        messages = (*self._own_answer(debate, own), Message("user", task))
        return self.ask(debate, agent, messages, round=round_, shown=shown, place=place, temperature=self.temperature)

    def _own_answer(self, debate: Debate, own: Turn) -> tuple[Message, ...]:
        asked = own.asked or (Message("user", prompts.question(debate.question, own=self.prompts)),)
        return *asked, Message("assistant", own.text, own.tokens)

    def _candidates(self, debate: Debate, answers: Mapping[int, Turn], agent: int, round_: int) -> Candidates:
        """The answers a voter judges, in order: the same steps from every voter, so that every answer stands at every place
        equally often (SPEC 3.16).
        """
        steps = random.Random(f"{debate.id}/{round_}").sample(range(1, debate.agents), debate.agents - 1)
        others = [(agent + step) % debate.agents for step in steps]
        if not self.merge_equal:
            return tuple((other,) for other in others[: self.shown])
        same: dict[str | int, list[int]] = {}
        for other in others:
            value = debate.question.style.value(answers[other].text)
            same.setdefault(other if value is None else value, []).append(other)
        merged = list(same.values()) if len(same) > 1 else [[other] for other in others]  # a vote compares two
        return tuple(map(tuple, merged[: self.shown]))

    def _shown_answers(self, answers: Mapping[int, Turn], candidates: Candidates) -> list[str]:
        texts = prompts.lettered([clip(answers[agents[0]].text, self.max_chars_per_field) for agents in candidates])
        if not self.merge_equal:
            return texts
        return [text.replace(":", f" (given by {len(agents)}):", 1) for text, agents in zip(texts, candidates, strict=True)]

    def _asked(
        self, debate: Debate, answers: Mapping[int, Turn], agent: int, shown: list[str], task: str
    ) -> tuple[Message, ...]:
        """The prompt of a voter: its own answer, if it is in view, as what it said before in the same dialogue."""
        own = self.own_in_view
        opening = [prompts.text("others_answered" if own else "was_answered", self.prompts)] if shown else []
        ballot = "\n\n".join([*opening, *shown, task])
        if own:
            return *self._own_answer(debate, answers[agent]), Message("user", ballot)
        return (Message("user", f"{prompts.judged_question(debate.question, self.prompts)}\n\n{ballot}"),)

    def _ask_in_words(
        self, debate: Debate, answers: Mapping[int, Turn], agent: int, candidates: Candidates
    ) -> tuple[Message, ...]:
        graded = self.ballot_form == "verdicts" and debate.question.answer is None and debate.question.style.name == "open"
        task = prompts.text("ballot_grades" if graded else f"ballot_{self.ballot_form}", self.prompts)
        letters = LETTERS[: len(candidates)]
        task = re.sub(r"\{lines:(\w+)\}", lambda m: "\n".join(f"{letter}: <{m[1]}>" for letter in letters), task)
        return self._asked(debate, answers, agent, self._shown_answers(answers, candidates), task)

    def _choices(
        self, debate: Debate, answers: Mapping[int, Turn], agent: int, candidates: Candidates
    ) -> tuple[Choice, ...]:
        if self.ballot_form == "soft-verdict":
            return tuple(self._verdict_choice(debate, answers, agent, group) for group in candidates)
        if self.ballot_form == "soft-choice":
            groups, name = [candidates], "choose_best"
        else:
            groups = [pair for both in combinations(candidates, 2) for pair in (both, both[::-1])]
            name = "choose_better"
        task = prompts.text(name, self.prompts)
        return tuple(
            Choice(
                self._asked(debate, answers, agent, self._shown_answers(answers, group), task),
                tuple(LETTERS[: len(group)]),
            )
            for group in groups
        )

    def _verdict_choice(self, debate: Debate, answers: Mapping[int, Turn], agent: int, group: tuple[int, ...]) -> Choice:
        """Yes or No to one answer: to its final value alone, which is judged better than its words, or to all of it where
        nobody gives a final value. One without a value gets no other question than the rest, which it would answer better.
        """
        values = {author: debate.question.style.answer(turn.text) for author, turn in answers.items()}
        if any(values.values()):
            value = values[group[0]] or prompts.text("no_value", self.prompts)
            shown, task = [], self._value_task(value)
        else:
            shown, task = self._shown_answers(answers, (group,)), prompts.text("choose_verdict", self.prompts)
        return Choice(self._asked(debate, answers, agent, shown, task), ("Yes", "No"))

    def _value_task(self, value: str) -> str:
        """The value is somebody else's words without a mark in front: on one line it can't look like the referee's."""
        name = "brief_value" if self.wording == "brief" else "choose_value"
        return prompts.text(name, self.prompts, value=clip(harmless(" ".join(value.split())), 200))

    def read(self, ask: Ask, text: str, truncated: bool = False) -> Parsed:
        if truncated:  # an answer too: else those that never come to an end would cost nothing
            return Parsed(error=ParseError("truncated"))
        if ask.contract is None:
            return Parsed()
        letters = len(ask.candidates)
        if self.soft:
            soft = self._read_soft(text, letters)
            return Parsed(votes=_by_agent(ask, soft)) if soft else NO_BALLOT
        start, verdicts, tolerated = self._read_words(text, letters)
        if not verdicts:
            return NO_BALLOT
        sections = (Section("evaluation", 0, start, (0, start)), Section("comparison", start, len(text), (start, len(text))))
        return Parsed(sections, _by_agent(ask, verdicts), tolerated=tolerated)

    def _read_soft(self, text: str, letters: int) -> list[tuple[int, Verdict, int]] | None:
        rows = [[float(share) for share in _SHARE.findall(line)] for line in text.split("\n", 4 * letters**2)]
        pairs = list(combinations(range(letters), 2))
        width = letters if self.ballot_form == "soft-choice" else 2
        count = {"soft-choice": 1, "soft-verdict": letters, "soft": 2 * len(pairs)}[self.ballot_form]
        if len(rows) != count or any(len(row) != width for row in rows):
            return None
        if self.ballot_form == "soft":
            leads = [(row[0] - row[1] - back[0] + back[1]) / 2 for row, back in zip(rows[::2], rows[1::2], strict=True)]
            return [(x, round(lead, 6), y) for (x, y), lead in zip(pairs, leads, strict=True)]
        if self.ballot_form == "soft-verdict":
            return [(x, round(_lead(rows[x][0], rows[y][0]), 6), y) for x, y in pairs]
        return [(x, round(rows[0][x] - rows[0][y], 6), y) for x, y in pairs]

    def _read_words(self, text: str, letters: int) -> tuple[int, list[tuple[int, Verdict, int]], bool]:
        """Where the ballot begins, what it says of each two letters, and whether its form was only tolerated."""
        if self.ballot_form == "pairs":
            found = [(m, LETTERS.find(m[1]), LETTERS.find(m[3])) for m in _PAIR.finditer(text)]
            lines = [(m, x, y) for m, x, y in found if x != y and max(x, y) < letters]
            verdicts: list[tuple[int, Verdict, int]] = [
                (y, ">", x) if m[2] == "<" else (x, ">" if m[2] == ">" else "=", y) for m, x, y in lines
            ]
            return lines[0][0].start() if lines else 0, list(dict.fromkeys(verdicts))[:MAX_VOTES], False
        start, points = (_read_verdicts if self.ballot_form == "verdicts" else _read_ranking)(text, letters)
        tolerated = self.ballot_form == "verdicts" and self.reading == "tolerant" and len(points) < 2
        if tolerated:
            start, points = _read_grades(text, letters)
        both = [(x, y, points[x] - points[y]) for x, y in combinations(sorted(points), 2)]
        return start, [(x, ">", y) if lead > 0 else (y, ">", x) if lead else (x, "=", y) for x, y, lead in both], tolerated


def _by_agent(ask: Ask, verdicts: Sequence[tuple[int, Verdict, int]]) -> tuple[tuple[int, Verdict, int], ...]:
    """Votes on letters as votes on the agents that stand under them."""
    letters = ask.candidates
    return tuple((a, verdict, b) for x, verdict, y in verdicts for a in letters[x] for b in letters[y] if a != b)


def _lead(a: float, b: float) -> float:
    """How much likelier one answer is than another to be the right one, if one of the two is, by how likely each is."""
    a, b = (min(max(share, _NO_SURER), 1 - _NO_SURER) for share in (a, b))
    first, second = a * (1 - b), b * (1 - a)
    return (first - second) / (first + second)


def _read_verdicts(text: str, letters: int) -> tuple[int, Points]:
    """The last word on each letter; where the last is a grade, only grades count, and else only right and wrong."""
    last: dict[bool, dict[int, re.Match[str]]] = {False: {}, True: {}}
    graded = False
    for match in _VERDICT.finditer(text):
        if (place := LETTERS.find(match[1])) < letters:
            graded = match[2].isdigit()
            last[graded][place] = match
    points = {place: _WORTH[match[2].lower()] for place, match in last[graded].items()}
    return min((match.start() for match in last[graded].values()), default=0), points


def _read_grades(text: str, letters: int) -> tuple[int, Points]:
    """The last grade of each letter, with whatever is behind it."""
    last = {place: match for match in _GRADE.finditer(text) if (place := LETTERS.find(match[1])) < letters}
    points = {place: float(match[2] or match[3]) for place, match in last.items()}
    return min((match.start() for match in last.values()), default=0), points


def _read_ranking(text: str, letters: int) -> tuple[int, Points]:
    """The last line that ranks letters, the best first. One with < says nothing: it is not the form asked for."""
    lines = list(_RANKING.finditer(text))
    points: dict[int, float] = {}
    ranks = re.split("[>,]", lines[-1][1]) if lines and "<" not in lines[-1][1] else ()
    for place, rank in enumerate(ranks):
        for letter in re.findall(r"\b[A-Z]\b", rank):
            if (index := LETTERS.find(letter)) < letters:
                points.setdefault(index, -float(place))
    return lines[-1].start() if lines else 0, points


def critique_of(turn: Turn, agent: int) -> str | None:
    """What a ballot says in words about the answer of an agent; ``None`` if it says nothing."""
    place = next((place for place, agents in enumerate(turn.candidates) if agent in agents), None)
    if place is None or not turn.parsed.sections:
        return None
    said = turn.section("evaluation")
    headings = list(_HEADING.finditer(said))
    for heading, after in zip(headings, [*headings[1:], None], strict=False):  # without headings there is nothing
        if heading[1] == LETTERS[place]:
            words = said[heading.end() : after.start() if after else None].lstrip(" :.)*#–-\n").strip()
            return words or None
    return None
