"""Debates as a person reads them: who said what, which votes counted, and what each turn earned."""

from __future__ import annotations

from dataclasses import asdict

from peergrad.debate.types import Debate
from peergrad.measure.grades import final_grades, turn_grades
from peergrad.reward.rewards import RewardRules, Scored, score
from peergrad.tasks.base import Grader
from peergrad.tasks.open import gradable
from peergrad.web.markup import Safe, clip, tag
from peergrad.web.samples import Samples

_TURNS = 24  # of a debate
_LONGEST = 1500  # characters of a section
_TITLE = 240  # of a question that stands as a title
_BUDGET = 200_000  # characters of model text on a page; escaped, one may take six bytes


def side_by_side(shown: Samples, rules: RewardRules, grade: Grader) -> Safe:
    """All debates of a report, before on the left and after on the right."""
    if not shown.rows:
        return tag("p", "No debate has been kept yet.", class_="empty")
    debates = [debate for row in shown.rows for debate in row if debate]
    texts = sum(len(turn.parsed.sections) or 1 for debate in debates for turn in debate.turns[:_TURNS])
    show = _Shower(rules, grade, min(_LONGEST, _BUDGET // max(1, texts)))
    about = (
        "The same questions, before and after. They are the first ones, not chosen."
        if shown.paired
        else "The first ones of each, not chosen; the questions differ."
        if shown.after
        else "There is nothing later to compare with yet."
    )
    after = (tag("b", "After: "), shown.after, ".") if shown.after else ()
    line = tag("p", about, " ", tag("b", "Before: "), shown.before, ". ", after, class_="about")
    rows = [_row(show, index, row, shown) for index, row in enumerate(shown.rows)]
    return tag("div", line, rows)


def _row(show: _Shower, index: int, row: tuple[Debate | None, Debate | None], shown: Samples) -> Safe:
    scored = [score(debate, show.rules) if debate else None for debate in row]
    question = next(debate.question for debate in row if debate)
    alike = shown.paired or not shown.after
    title = show.text(question.text, _TITLE) if alike else f"Debate {index + 1} of each"
    whole = not alike or len(question.text) > _TITLE
    outcome = " → ".join(show.outcome(one) for one in scored if one)
    columns = [
        tag("div", tag("h4", when), show.debate(one, question=whole) if one else tag("p", "none"), class_="debate")
        for when, one in zip(("Before", "After"), scored, strict=True)
        if one or shown.after
    ]
    return tag(
        "details",
        tag("summary", tag("span", title, class_="question"), " ", tag("small", outcome)),
        tag("div", columns, class_="pair"),
        open="" if index == 0 else None,
    )


class _Shower:
    """Shows debates under one set of rules, clipping every text to the same length."""

    def __init__(self, rules: RewardRules, grade: Grader, longest: int) -> None:
        self.rules, self.grade, self.longest = rules, grade, longest

    def text(self, raw: str, most: int = _LONGEST) -> Safe:
        """Model text, clipped with a notice."""
        beginning, notice = clip(raw, min(most, self.longest))
        return tag("bdi", beginning, tag("em", notice, class_="cut") if notice else None)

    def outcome(self, scored: Scored) -> str:
        """A debate in a few words."""
        debate, votes = scored.debate, len(scored.tally.votes)
        readable = sum(turn.parsed.error is None for turn in debate.turns)
        words = [f"{readable} of {len(debate.turns)} readable", f"{votes} vote{'s' * (votes != 1)}"]
        if gradable(debate.question):
            right = sum(grade.correct for grade in final_grades(debate, turn_grades([debate], self.grade)[0]))
            words.append(f"{right} of {debate.agents} right")
        return ", ".join(words)

    def debate(self, scored: Scored, *, question: bool) -> list[Safe | None]:
        debate = scored.debate
        answer = debate.question.answer
        counts = [f"{name.replace('_', ' ')} {count}" for name, count in asdict(scored.tally.counts).items() if count]
        left_out = len(debate.turns) - _TURNS
        by_agent = [
            tag(
                "p",
                f"{stream.name}: ",
                ", ".join(f"agent {a} {_signed(v)}" for a, v in enumerate(stream.values)),
                class_="counts",
            )
            for stream in scored.streams
            if stream.unit == "agent"
        ]
        return [
            tag("p", self.text(debate.question.text), class_="question") if question else None,
            None if answer is None else tag("p", "Right answer: ", self.text(answer), class_="counts"),
            *(self.turn(scored, index) for index in range(min(_TURNS, len(debate.turns)))),
            tag("p", f"… {left_out} more turns are not shown.", class_="cut") if left_out > 0 else None,
            *by_agent,
            tag("p", ", ".join(counts) or "no bad votes", class_="counts"),
        ]

    def turn(self, scored: Scored, index: int) -> Safe:
        debate = scored.debate
        turn = debate.turns[index]
        persona = debate.protocol.persona(turn.agent)
        head = (
            tag("b", f"Agent {turn.agent}"),
            tag("span", f"round {turn.round + 1}"),
            tag("span", tag("bdi", clip(persona.name, 60)[0])) if persona else None,
            self._grade(debate, index),
        )
        if turn.parsed.error:
            body = [
                tag("p", f"unreadable: {turn.parsed.error}", class_="error"),
                tag("div", self.text(turn.text), class_="raw"),
            ]
        else:
            sections: list[Safe] = []
            for name in (section.name for section in turn.parsed.sections):
                words = turn.section(name)
                sections += [tag("dt", name.replace("_", " ")), tag("dd", self.text(words) if words else "–")]
            body = [tag("dl", sections) if sections else tag("div", self.text(turn.text), class_="raw")]
        kind = "turn unreadable" if turn.parsed.error else "turn"
        return tag(
            "article",
            tag("header", head),
            body,
            tag("footer", self._votes(scored, index), _rewards(scored, index)),
            class_=kind,
        )

    def _grade(self, debate: Debate, index: int) -> Safe | None:
        turn = debate.turns[index]
        if not gradable(debate.question) or turn.solution is None:
            return None
        grade = self.grade(debate.question, turn.solution)
        if grade.timed_out:
            return tag("span", "○ not compared in time", class_="badge")
        if grade.answer is None:
            return tag("span", "○ no answer found", class_="badge")
        return (
            tag("span", "✓ right", class_="badge right") if grade.correct else tag("span", "✗ wrong", class_="badge wrong")
        )

    def _votes(self, scored: Scored, index: int) -> Safe:
        votes = [f"{vote.a} {vote.op} {vote.b}" for vote in scored.tally.votes if vote.turn == index]
        if votes:
            return tag("span", "votes: ", ", ".join(votes[:12]), " …" if len(votes) > 12 else None)
        return tag("span", "a vote was due, none is valid" if index in scored.tally.missing else "no votes")


def _rewards(scored: Scored, index: int) -> list[Safe]:
    return [
        tag("span", f"{stream.name} {_signed(stream.values[index])}", class_="reward")
        for stream in scored.streams
        if stream.unit == "turn"
    ]


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2f}".replace("-", "−")
