"""Debates from before and after, as a person reads them: who said what, which votes counted, and what each turn earned."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from itertools import islice, zip_longest

from peergrad.debate.types import Debate
from peergrad.measure.counts import final_answers
from peergrad.reward.rewards import RewardRules, Scored, score
from peergrad.runs.folder import Run
from peergrad.tasks.base import truth_of
from peergrad.tasks.open import gradable, regrade
from peergrad.web.markup import Safe, clip, tag

_SHOWN = 5
_SCANNED = 64  # debates of a file that are looked through for the same questions
_TURNS = 24  # of a debate
_LONGEST = 1500  # characters of a section
_TITLE = 240  # of a question that stands as a title
_BUDGET = 200_000  # characters of model text on a page; escaped, one may take six bytes


@dataclass(frozen=True, slots=True)
class _Samples:
    """Debates side by side; ``None`` where there is none. ``paired``: both sides of a row are about the same question."""

    rows: tuple[tuple[Debate | None, Debate | None], ...] = ()
    before: str = ""
    after: str = ""
    paired: bool = False


def side_by_side(run: Run, rules: RewardRules) -> Safe:
    """Some debates of a run, before on the left and after on the right."""
    shown = _samples(run)
    if not shown.rows:
        return tag("p", "No debate has been kept yet.", class_="empty")
    debates = [debate for row in shown.rows for debate in row if debate]
    texts = sum(len(turn.parsed.sections) or 1 for debate in debates for turn in debate.turns[:_TURNS])
    longest = min(_LONGEST, _BUDGET // max(1, texts))
    about = (
        "The same questions, before and after. They are the first ones, not chosen."
        if shown.paired
        else "The first ones of each, not chosen; the questions differ."
        if shown.after
        else "There is nothing later to compare with yet."
    )
    after = (tag("b", "After: "), shown.after, ".") if shown.after else ()
    line = tag("p", about, " ", tag("b", "Before: "), shown.before, ". ", after, class_="about")
    truth = truth_of(regrade, gradable)
    rows = [[score(debate, rules, truth(debate)) if debate else None for debate in row] for row in shown.rows]
    return tag("div", line, [_row(index, row, shown, longest) for index, row in enumerate(rows)])


def _samples(run: Run) -> _Samples:
    """The first and the last evaluation's debates on the same questions; else the first and the last step's."""
    evaluated = _ends(run, "eval")
    if evaluated:
        (before, first), (after, last) = evaluated
        later = {(debate.question.id, debate.question.text): debate for debate in last}
        rows = [(debate, later.get((debate.question.id, debate.question.text))) for debate in first]
        both = tuple((one, other) for one, other in rows if other)[:_SHOWN]
        if before != after and both:
            return _Samples(both, _when(before), _when(after), paired=True)
    ends = _ends(run, "step") or evaluated
    if not ends:
        return _Samples()
    (before, first), (after, last) = ends
    if before == after:
        return _Samples(tuple((debate, None) for debate in first[:_SHOWN]), _when(before))
    return _Samples(tuple(zip_longest(first[:_SHOWN], last[:_SHOWN])), _when(before), _when(after))


def _ends(run: Run, kind: str) -> tuple[tuple[str, list[Debate]], tuple[str, list[Debate]]] | None:
    """The first and the last file of a kind that has debates, with some of them."""
    names = {
        (0, int(match[2])) if match[1] else (int(match[2]), 0): path.stem
        for path in (run.path / "debates").glob(f"{kind}_*.jsonl")
        if (match := re.fullmatch(rf"{kind}_(warm_)?(\d{{1,9}})", path.stem))
    }
    steps = sorted(names)
    files = [
        ((names[step], [debate for _, debate in islice(run.debates(names[step]), _SCANNED)]) for step in order)
        for order in (steps, reversed(steps))
    ]
    first, last = (next((file for file in from_one_end if file[1]), None) for from_one_end in files)
    return (first, last) if first and last else None


def _when(name: str) -> str:
    kind, _, number = name.partition("_")
    if number.startswith("warm_"):
        return "held-out questions after the warm start"
    if kind == "eval":
        return "held-out questions before training" if int(number) == 0 else f"held-out questions after step {int(number)}"
    return f"self-play, step {int(number)}"


def _row(index: int, row: list[Scored | None], shown: _Samples, longest: int) -> Safe:
    question = next(scored.debate.question for scored in row if scored)
    alike = shown.paired or not shown.after
    title = _text(question.text, min(_TITLE, longest)) if alike else f"Debate {index + 1} of each"
    whole = not alike or len(question.text) > _TITLE
    columns = [
        tag("div", tag("h4", when), _debate(one, longest, question=whole) if one else tag("p", "none"), class_="debate")
        for when, one in zip(("Before", "After"), row, strict=True)
        if one or shown.after
    ]
    outcome = " → ".join(_outcome(scored) for scored in row if scored)
    return tag(
        "details",
        tag("summary", tag("span", title, class_="question"), " ", tag("small", outcome)),
        tag("div", columns, class_="pair"),
        open="" if index == 0 else None,
    )


def _outcome(scored: Scored) -> str:
    """A debate in a few words."""
    debate, votes = scored.debate, len(scored.tally.votes)
    readable = sum(turn.parsed.error is None for turn in debate.turns)
    words = [f"{readable} of {len(debate.turns)} readable", f"{votes} vote{'s' * (votes != 1)}"]
    if gradable(debate.question):
        right = sum(grade.correct for grade in final_answers([debate], regrade)[0])
        words.append(f"{right} of {debate.agents} right")
    return ", ".join(words)


def _debate(scored: Scored, longest: int, *, question: bool) -> list[Safe | None]:
    debate, answer = scored.debate, scored.debate.question.answer
    counts = [f"{name.replace('_', ' ')} {count}" for name, count in asdict(scored.tally.counts).items() if count]
    left_out = len(debate.turns) - _TURNS
    by_agent = [
        f"{stream.name}: " + ", ".join(f"agent {agent} {_signed(value)}" for agent, value in enumerate(stream.values))
        for stream in scored.streams
        if stream.unit == "agent"
    ]
    return [
        tag("p", _text(debate.question.text, longest), class_="question") if question else None,
        None if answer is None else tag("p", "Right answer: ", _text(answer, longest), class_="counts"),
        *(_turn(scored, index, longest) for index in range(min(_TURNS, len(debate.turns)))),
        tag("p", f"… {left_out} more turns are not shown.", class_="cut") if left_out > 0 else None,
        *(tag("p", line, class_="counts") for line in (*by_agent, ", ".join(counts) or "no bad votes")),
    ]


def _turn(scored: Scored, index: int, longest: int) -> Safe:
    debate, turn = scored.debate, scored.debate.turns[index]
    persona = debate.protocol.persona(turn.agent)
    head = (
        tag("b", f"Agent {turn.agent}"),
        tag("span", f"round {turn.round + 1}"),
        tag("span", tag("bdi", clip(persona.name, 60)[0])) if persona else None,
        _grade(debate, index),
    )
    by_turn = [stream for stream in scored.streams if stream.unit == "turn"]
    rewards = [tag("span", f"{stream.name} {_signed(stream.values[index])}", class_="reward") for stream in by_turn]
    error, sections = turn.parsed.error, list[Safe]()
    for name in [] if error else [section.name for section in turn.parsed.sections]:
        words = turn.section(name)
        sections += [tag("dt", name.replace("_", " ")), tag("dd", _text(words, longest) if words else "–")]
    return tag(
        "article",
        tag("header", head),
        tag("p", f"unreadable: {error}", class_="error") if error else None,
        tag("dl", sections) if sections else tag("div", _text(turn.text, longest), class_="raw"),
        tag("footer", _votes(scored, index), rewards),
        class_="turn unreadable" if error else "turn",
    )


def _text(raw: str, most: int) -> Safe:
    """Model text, clipped with a notice."""
    beginning, notice = clip(raw, most)
    return tag("bdi", beginning, tag("em", notice, class_="cut") if notice else None)


def _grade(debate: Debate, index: int) -> Safe | None:
    solution = debate.turns[index].solution
    if not gradable(debate.question) or solution is None:
        return None
    grade = regrade(debate.question, solution)
    if grade.timed_out or grade.answer is None:
        return tag("span", "○ not compared in time" if grade.timed_out else "○ no answer found", class_="badge")
    return tag("span", "✓ right" if grade.correct else "✗ wrong", class_=f"badge {'right' if grade.correct else 'wrong'}")


def _votes(scored: Scored, index: int) -> Safe:
    votes = [f"{vote.a} {vote.op} {vote.b}" for vote in scored.tally.votes if vote.turn == index]
    if votes:
        return tag("span", "votes: ", ", ".join(votes[:12]), " …" if len(votes) > 12 else None)
    return tag("span", "a vote was due, none is valid" if index in scored.tally.missing else "no votes")


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2f}".replace("-", "−")
