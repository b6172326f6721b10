"""One debate with all that is known of it: every turn and what it was shown, every vote and what became of it, every reward
and the votes that made it, and the credit of every word.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any, cast

import numpy as np

from peergrad.debate.ballot import Ballot
from peergrad.debate.prompts import LETTERS
from peergrad.debate.types import Debate, Turn
from peergrad.learn.data import Values, section_tokens
from peergrad.measure.counts import vote_right
from peergrad.measure.ending import ending, seat_name
from peergrad.reward.pairwise import step_rewards
from peergrad.reward.streams import Stream
from peergrad.reward.tally import Vote, cast_verdict, cast_votes, pairs_due
from peergrad.tasks.base import Grade
from peergrad.web.app_files import plain
from peergrad.web.scoring import Rules, ScoredDebate, short


def debate_page(one: ScoredDebate, advantages: Sequence[Values], rules: Rules, step: int | None) -> dict[str, Any]:
    """All of it but where it is. ``advantages`` are those within its batch."""
    debate, tallied, streams = one.debate, one.scored.tally, one.scored.streams
    question, end = debate.question, ending(debate)
    protocol = asdict(cast("Any", debate.protocol))
    turns = [_turn(debate, index, turn) for index, turn in enumerate(debate.turns)]
    rewards = step_rewards(debate, rules.at(step).form)
    for index, (about, turn) in enumerate(zip(turns, debate.turns, strict=True)):
        about |= {"pairs_due": pairs_due(debate, turn), "unvoted": tallied.unvoted[index], "step_reward": rewards[index]}
        about["grade"] = _grade(one, index)
        about["credit"] = _credit(debate, index, streams, advantages)
    return {
        "question": {
            "id": question.id,
            "text": question.text,
            "answer": question.answer,
            "style": question.style.name,
            "dataset": question.dataset,
        },
        "protocol": {"name": debate.protocol.name, "size": debate.protocol.size, "settings": plain(protocol)},
        "seats": [
            {"agent": agent, "name": seat_name(debate.protocol, agent), "by": _opponent(debate, agent)}
            for agent in range(debate.agents)
        ],
        "turns": turns,
        "verdict": _turn(debate, len(debate.turns), debate.verdict) if debate.verdict else None,
        "votes": _votes(one, rules, step),
        "counts": asdict(tallied.counts),
        "streams": [
            {"name": stream.name, "unit": stream.unit, "weight": stream.weight, "sections": stream.sections}
            | {"values": stream.values, "advantages": values, "votes": stream.votes}
            for stream, values in zip(streams, advantages, strict=True)
        ],
        "ending": {
            "winner": end.winner,
            "winners": end.winners,
            "decided_by": end.by,
            "agents": [
                {"agent": final.agent, "round": final.round, "answer": short(final.answer), "last": final.last}
                | {"won": final.won, "tied": final.tied, "lost": final.lost, "win_rate": final.win_rate}
                for final in end.finals
            ],
        },
        "rules": rules.as_object(),
    }


def _turn(debate: Debate, index: int, turn: Turn) -> dict[str, Any]:
    parsed, used, at = turn.parsed, turn.used, _units(turn.text)
    return {
        "turn": index,
        "agent": turn.agent,
        "round": turn.round,
        "seen": turn.seen,
        "by": turn.by,
        "chosen": turn.chosen,
        "text": turn.text,
        "truncated": turn.truncated,
        "error": str(parsed.error) if parsed.error else None,
        "tolerated": parsed.tolerated,
        "malformed": parsed.malformed,
        "consensus": parsed.consensus,
        "sections": [
            {"name": one.name, "start": at(one.start), "end": at(one.end), "inner": [at(one.inner[0]), at(one.inner[1])]}
            for one in parsed.sections
        ],
        "candidates": [[LETTERS[place], agents] for place, agents in enumerate(turn.candidates)],
        "shares": _shares(debate, index, turn),
        "asked": _asked(debate, index, turn),
        "prompt_tokens": used and used.prompt,
        "sampled_tokens": used and used.sampled,
        "temperature": turn.tokens.temperature if turn.tokens else None,
        "tokens": {
            "starts": _unit_starts(turn),
            "logprobs": [round(float(logprob), 4) for logprob in turn.tokens.logprobs_T],
        }
        if turn.tokens
        else None,
    }


def _asked(debate: Debate, index: int, turn: Turn) -> list[dict[str, Any]] | None:
    """The prompt; what goes on from an earlier turn of the agent names it."""
    if not turn.asked:
        return None
    asked = [(message.role, message.text) for message in turn.asked]
    for before in range(index - 1, -1, -1):
        earlier = debate.turns[before]
        if earlier.agent == turn.agent and earlier.asked:
            shown = [*((message.role, message.text) for message in earlier.asked), ("assistant", earlier.text)]
            if asked[: len(shown)] == shown:
                rest = [{"role": role, "text": text} for role, text in asked[len(shown) :]]
                return [{"continues": before}, *rest]
            break
    return [{"role": role, "text": text} for role, text in asked]


def _shares(debate: Debate, index: int, turn: Turn) -> list[dict[str, Any]] | None:
    """How likely a voter found each candidate right, or best, where it was asked for no words; and the value it saw."""
    form = debate.protocol.ballot_form if isinstance(debate.protocol, Ballot) else ""
    if not turn.chosen or turn.parsed.error or form not in ("soft-verdict", "soft-choice"):
        return None
    rows = [re.findall(r"\S+ ([01]\.\d{6})", line) for line in turn.text.split("\n")]
    shares = rows[0] if form == "soft-choice" else [row[0] for row in rows]
    found: list[dict[str, Any]] = []
    for agents, share in zip(turn.candidates, shares, strict=True):
        said = next(
            (before for before in debate.turns[index - 1 :: -1] if before.agent == agents[0] and before.asked_to_answer),
            None,
        )
        value = short(debate.question.style.answer(said.text)) if said else None
        found.append({"agents": agents, "value": value, "share": float(share)})
    return found


def _votes(one: ScoredDebate, rules: Rules, step: int | None) -> list[dict[str, Any]]:
    """Every vote that was written, in order, and its place among those that count."""
    debate, tallied, reward = one.debate, one.scored.tally, rules.at(step)
    right = [grade.right for grade in one.grades] if one.grades else [None] * len(debate.turns)
    written: list[tuple[Vote, str | None]] = []
    for index in range(len(debate.turns)):
        written += cast_votes(debate, index, self_votes=reward.self_votes, ballots=reward.ballots)
    for vote, why in cast_verdict(debate):
        written.append((vote, why or (None if tallied.judge_weight else "no_weight")))
    votes: list[dict[str, Any]] = []
    counted, again = 0, Counter[str]()
    for vote, why in written:
        key = f"{vote.turn}-{vote.a}{vote.op}{vote.b}"
        again[key] += 1
        key += f"-{again[key]}" if again[key] > 1 else ""
        index = None if why else counted
        counted += why is None
        about = {"key": key} | asdict(vote) | {"index": index, "counts": why is None, "why": why}
        votes.append(about | {"copied": index in one.copied, "right": None if why else vote_right(vote, right)})
    assert counted == len(tallied.all_votes)
    return votes


def _grade(one: ScoredDebate, index: int) -> dict[str, Any]:
    question, turn = one.debate.question, one.debate.turns[index]
    if one.grades is None:
        why = "its task is not here to grade it" if question.known else "nobody knows the answer to this question"
        return {"right": None, "answer": None, "reason": why}
    grade = one.grades[index]
    return {"right": grade.right, "answer": short(grade.answer), "reason": _reason(grade, turn, question.answer)}


def _reason(grade: Grade, turn: Turn, gold: str | None) -> str:
    if not grade.asked:
        return "it was not asked for an answer"
    if grade.timed_out:
        return "comparing it with the answer took too long"
    if turn.parsed.error:
        return f"the reply can't be read: {turn.parsed.error}"
    if grade.answer is None:
        return "no final answer was found in it"
    return f"{short(grade.answer)} {'is' if grade.correct else 'is not'} the answer, {short(gold)}"


# Credit


def _credit(debate: Debate, index: int, streams: Sequence[Stream], advantages: Sequence[Values]) -> list[list[Any]]:
    """Stretches of a reply with the same credit, and how much by each stream; ``None`` where a stream says nothing."""
    turn = debate.turns[index]
    if turn.tokens is None:
        starts, slices = _by_sections(turn)
    else:
        starts, slices = _unit_starts(turn), lambda name: section_tokens(turn, name)
    by_stream_T = np.full((len(streams), len(starts)), np.nan)
    for row_T, stream, values in zip(by_stream_T, streams, advantages, strict=True):
        value = values[turn.agent if stream.unit == "agent" else index]
        for part in [slice(None)] if stream.sections is None else map(slices, stream.sections):
            if value is not None:
                row_T[part] = stream.weight * value
    ends = [*starts[1:], _units(turn.text)(len(turn.text))]
    columns = [tuple(None if np.isnan(value) else float(value) for value in column) for column in by_stream_T.T]
    stretches: list[list[Any]] = []
    for column, group in groupby(range(len(starts)), key=lambda at: columns[at]):
        tokens = list(group)
        known = [value for value in column if value is not None]
        count = len(tokens) if turn.tokens else None
        stretches.append([starts[tokens[0]], ends[tokens[-1]], count, sum(known) if known else None, column])
    return stretches


def _by_sections(turn: Turn) -> tuple[list[int], Callable[[str], slice]]:
    """Where a reply whose tokens were not kept changes from one section to the next, and which pieces are of a section."""
    spans = {section.name: (section.start, section.end) for section in turn.parsed.sections}
    if turn.contract is None:
        spans["solution"] = (0, len(turn.text))
    cuts = sorted({0, *(at for span in spans.values() for at in span if at < len(turn.text))})
    at = _units(turn.text)

    def pieces(name: str) -> slice:
        start, end = spans.get(name, (0, 0))
        inside = [place for place, cut in enumerate(cuts) if start <= cut < end]
        return slice(inside[0], inside[-1] + 1) if inside else slice(0, 0)

    return [at(cut) for cut in cuts] if turn.text else [], pieces


def _unit_starts(turn: Turn) -> list[int]:
    """Where each token starts, in UTF-16 units; one that starts within a character starts where the character does."""
    assert turn.tokens
    if turn.text.isascii():
        return turn.tokens.starts_T.tolist()
    codes = _codes(turn.text)
    bytes_T = np.concatenate(([0], np.cumsum(1 + (codes > 0x7F) + (codes > 0x7FF) + (codes > 0xFFFF))))
    units_T = np.concatenate(([0], np.cumsum(1 + (codes > 0xFFFF))))
    chars = np.searchsorted(bytes_T, turn.tokens.starts_T, side="right") - 1
    return units_T[chars].tolist()


def _units(text: str) -> Callable[[int], int]:
    """From places in a text to places in UTF-16 units, as browsers count."""
    if text.isascii():
        return lambda at: at
    units_T = np.concatenate(([0], np.cumsum(1 + (_codes(text) > 0xFFFF))))
    return lambda at: int(units_T[at])


def _codes(text: str) -> Any:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


def _opponent(debate: Debate, agent: int) -> str:
    return next((turn.by for turn in debate.turns if turn.agent == agent and turn.by), "")
