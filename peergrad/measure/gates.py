"""Can self-play work here? The gates to pass before training (SPEC 9.4), from a sample of answers and debates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from peergrad.debate.settings import is_import_path
from peergrad.debate.types import Debate
from peergrad.learn.data import advantages, has_signal
from peergrad.learn.train import LearnRules
from peergrad.learn.trainer import RETRIED, StepStats, retried
from peergrad.measure.counts import Counts, final_answers, form_counts, share_right, shares, total, turn_grades, vote_counts
from peergrad.measure.statistics import Interval, difference, mean, ratio
from peergrad.reward.rewards import RewardRules, Scored, score
from peergrad.reward.streams import default_consensus
from peergrad.tasks.base import Task, truth_of

Verdict = Literal["pass", "warn", "fail", "unknown"]


@dataclass(frozen=True, slots=True)
class Gate:
    """One condition: what was measured, what is needed, and what to do about it. ``unsure``: chance could turn it."""

    name: str
    verdict: Verdict
    measured: str
    needed: str
    advice: str = ""
    interval: Interval | None = None
    unsure: bool = False


@dataclass(frozen=True)
class Sample:
    """What was played to find out: independent answers (several agents each, without debate), debates, and how many of these
    the engine could not play.
    """

    answers: Sequence[Debate]
    debates: Sequence[Debate]
    dropped: int
    max_tokens: int
    context: int | None


def gates(sample: Sample, task: Task, rules: LearnRules) -> list[Gate]:
    """Every gate, in the order in which it makes sense to mend things."""
    truth = truth_of(task.grade)
    scored = [score(debate, rules.reward, truth(debate)) for debate in sample.debates]
    solves = _solves(sample, task) if task.known else []
    about_votes = [_votes(scored), _copied(scored), *(_judgement(scored, task) if task.known else [])]
    if rules.reward.votes in ("majority", "none"):  # of no votes
        about_votes = []
    if not rules.reward.needs_votes:
        about_votes = [replace(gate, verdict="warn") if gate.verdict == "fail" else gate for gate in about_votes]
    return [_fits(sample), *solves, *about_votes, _judge_stream(scored, rules.reward), _signal(scored, rules)]


def finite(stats: StepStats | None) -> Gate:
    """Whether updates on the sample, ``joined``, could be made; ``None`` if nothing in it could be learned from."""
    name, needed = "update is finite", "loss and gradient finite"
    if stats is None:
        advice = "Ask more questions, or mend the gates before this one."
        return Gate(name, "unknown", "no debate with signal", needed, advice)
    measured = f"loss {stats.loss:.3g}, gradient norm {stats.grad_norm:.3g}"
    if again := round(stats.metrics.get(RETRIED, 0.0)):
        measured += f"; {retried(again)}"
    if not stats.faults:
        return Gate(name, "pass", measured, needed)
    advice = (
        f"An update was skipped: {stats.faults[-1].why}. A run would learn nothing from such updates: with the local engine "
        "try --dtype float32; the loss 'ppo' bounds ratios that are too large."
    )
    return Gate(name, "fail", measured, needed, advice)


_EASIER = "Take easier questions or a stronger model, or warm-start on right solutions (--warm-steps, --warm-from)."


def _solves(sample: Sample, task: Task) -> list[Gate]:
    """A model that is never right can't be shown what right looks like: alone, in debate against alone, and in the end."""
    alone, debated = _first_right(sample.answers, task), _first_right(sample.debates, task)
    both = [name for name in debated if name in alone]
    known = [debate for debate in sample.debates if debate.question.known]
    k = max((debate.agents for debate in known), default=0)
    once = mean([float(any(grade.correct for grade in answers)) for answers in final_answers(known, task.grade)])
    return [
        _share("solves alone", mean([*alone.values()]), 0.05, "at least 5 %", _EASIER, at_least=True),
        _points_lost(difference([debated[name] for name in both], [alone[name] for name in both])),
        _share(f"right at least once in {k} agents of a debate (pass@{k})", once, 0.2, "more than 20 %", _EASIER),
    ]


def _first_right(debates: Sequence[Debate], task: Task) -> dict[str, float | None]:
    """The share of right answers among the first of every agent, by question."""
    known = [debate for debate in debates if debate.question.known]
    first = final_answers(known, task.grade, rounds=1)
    return {debate.question.id: share_right(answers) for debate, answers in zip(known, first, strict=True)}


def _points_lost(lost: Interval | None) -> Gate:
    name, needed = "first answers in debate, against alone", "at most 5 points fewer right"
    if lost is None:
        return Gate(name, "unknown", "nothing to measure", needed, "Ask more questions.")
    measured = f"{100 * lost.value:+.0f} points ({100 * lost.low:+.0f} to {100 * lost.high:+.0f})"
    passed, unsure = lost.value >= -0.05, lost.low <= -0.05 <= lost.high
    advice = (
        "The form of a debate costs this model what it can do: take --protocol ballot, where answers are given alone, a "
        "larger --max-tokens, or prompts of your own (--prompts)."
    )
    return Gate(name, "pass" if passed else "fail", measured, needed, "" if passed else advice, lost, unsure)


def _copied(scored: Sequence[Scored]) -> Gate:
    """Votes that follow the prompt or the seats would be learned as the way to vote."""
    name, needed = "votes that are copied from the prompt or the seats", "at most 20 %"
    share = _ratio([form_counts(one)["votes/copied"] for one in scored])
    if share is None:
        return Gate(name, "pass", "no vote in words", needed)
    passed = share.value <= 0.2
    advice = "Such votes say nothing about answers: take --protocol ballot, or prompts of your own (--prompts)."
    return Gate(name, "pass" if passed else "fail", _percent(share), needed, "" if passed else advice, share)


def _votes(scored: Sequence[Scored]) -> Gate:
    """Votes are what the built-in rewards are made of: without them there is nothing to learn from."""
    name, needed = "turns with a valid vote, where one is due", "more than 80 %"
    share = _ratio([form_counts(one)["votes/due_turns_with_vote"] for one in scored])
    if share is None:
        advice = "Nobody ever sees two others: take at least 3 agents and, in parallel debates, 2 rounds."
        return Gate(name, "fail", "none is due", needed, advice)
    return _share(name, share, 0.8, needed, _about_form(scored))


def _about_form(scored: Sequence[Scored]) -> str:
    """Why votes are missing, going by what is wrong with the replies."""
    measured = shares(total(map(form_counts, scored)))
    readable, cut = measured.get("replies/readable", 0.0), measured.get("replies/truncated", 0.0)
    in_form = readable / (1 - cut) if cut < 1 else None  # of those that came to an end
    wrong: list[str] = []
    if cut > 0.1:
        wrong.append(f"{cut:.0%} of the replies are cut off: raise --max-tokens.")
    if in_form is not None and in_form < 0.8:
        which = "the others" if wrong else "the replies"
        wrong.append(
            f"Only {in_form:.0%} of {which} keep to the form: teach it first by a warm start (--warm-steps with "
            "--warm-from; the built-in arithmetic has a teacher), use --wording full, or take a stronger model."
        )
    if wrong:
        return " ".join(wrong)
    counts = [one.tally.counts for one in scored]
    bad, own = sum(count.malformed for count in counts), sum(count.self_votes for count in counts)
    return f"Replies can be read, but hold no valid votes ({bad} malformed, {own} for their author): a warm start shows how."


def _judgement(scored: Sequence[Scored], task: Task) -> list[Gate]:
    """Whether votes follow the truth, and whether more does than agreement with the voter."""
    name, needed = "votes for the right one of a right and a wrong solution", "more than 50 %"
    scored = [one for one in scored if one.debate.question.known]
    grades = turn_grades([one.debate for one in scored], task.grade)
    counts = [vote_counts(one, of) for one, of in zip(scored, grades, strict=True)]
    share, beyond = (_votes_right(counts, which) for which in ("votes/accuracy", "votes/accuracy_beyond_own"))
    if share is None:
        advice = "No vote is between a right and a wrong solution: mend the gates before this one, or ask more questions."
        return [Gate(name, "unknown", "no such vote", needed, advice)]
    advice = (
        "Votes no better than a coin teach noise: take easier questions or a stronger model, or mix in some truth "
        "(--truth-weight 0.3, or a fade such as '1.0 -> 0.3')."
    )
    found = [_share(name, share[0], 0.5, needed, advice)]
    if beyond:
        advice = (
            "These votes say no more than who agrees with the voter: where final values can be compared, --protocol direct "
            "--votes majority is as good for less."
        )
        gate = _share("the same, by voters whose own answer is neither", beyond[0], 0.5, needed, advice)
        found.append(replace(gate, verdict="warn") if gate.verdict == "fail" else gate)
    of = [share[1], beyond[1] if beyond else 0.0]
    return [replace(gate, measured=f"{gate.measured}, {votes:.0f} votes") for gate, votes in zip(found, of, strict=False)]


def _votes_right(counts: Sequence[Counts], name: str) -> tuple[Interval, float] | None:
    """The share of votes that are right, and of how many."""
    of = [one.get(name, (0.0, 0.0)) for one in counts]
    share = _ratio(of)
    return (share, sum(whole for _, whole in of)) if share else None


def _judge_stream(scored: Sequence[Scored], rules: RewardRules) -> Gate:
    """Whether a judge can be told that it is wrong (SPEC 4.8)."""
    name, needed = "judges are held to somebody else's votes", "4 agents or more"
    agents = max((one.debate.agents for one in scored), default=0)
    judging = [[stream for stream in one.streams if stream.follows == "votes" and stream.weight] for one in scored]
    if not any(judging):
        return Gate(name, "pass", "no judge stream", needed)
    if agents < 4 and not is_import_path(rules.reward):
        # The judge stream is then constant: it teaches nothing, but the other streams still do.
        all_votes = (rules.consensus or default_consensus(agents)) == "all"
        outcome = "agrees with itself" if all_votes else "has nobody to agree with"
        advice = (
            f"Only one agent can judge a pair, so it {outcome}, and judging is not learned: take --agents 4 or more, or "
            "--lambda-judge 0."
        )
        return Gate(name, "warn" if rules.lambda_gen else "fail", f"{agents} agents", needed, advice)
    varied = mean([float(any(len({*stream.values} - {None}) > 1 for stream in streams)) for streams in judging])
    if varied is None or varied.value == 0:
        advice = "In no debate do two judges fare differently: there are too few votes on the same pair, or all agree."
        verdict = "fail" if rules.needs_votes else "warn"
        return Gate(name, verdict, f"{agents} agents, no debate with differing judges", needed, advice, varied)
    return Gate(name, "pass", f"{agents} agents, judges differ in {varied.value:.0%} of the debates", needed, "", varied)


def _signal(scored: Sequence[Scored], rules: LearnRules) -> Gate:
    centred = advantages(scored, center=rules.center, divide_by_std=rules.divide_by_std)
    share = mean([float(has_signal(one.streams, values)) for one, values in zip(scored, centred, strict=True)])
    advice = (
        "Where all rewards of a debate are alike it teaches nothing: more agents, questions of middling difficulty, "
        "--center batch, or another reward (`peergrad rescore` compares them on saved debates)."
    )
    return _share("debates with signal", share, 0.25, "more than 25 %", advice)


def _fits(sample: Sample) -> Gate:
    name = "prompts fit the context"
    used = [turn.used for debate in sample.debates for turn in debate.turns]
    longest = max((one.prompt for one in used if one and one.sampled), default=None)  # choices are several prompts each
    if sample.dropped and not sample.debates:
        return Gate(name, "fail", "every debate was dropped", "all", "See why below; shorten what is said (--max-tokens).")
    if longest is None or sample.context is None:
        advice = "This engine does not say how long a prompt may be."
        return Gate(name, "unknown", "not known", "the model's context", advice)
    needed, measured = f"{sample.context:,} tokens", f"{longest:,} + {sample.max_tokens:,} for the reply"
    if longest + sample.max_tokens <= sample.context and not sample.dropped:
        return Gate(name, "pass", measured, needed)
    what = f"; {sample.dropped} debates were dropped" if sample.dropped else ""
    advice = "Fewer rounds or agents, a lower --max-tokens, or in sequential debates --history-rounds, make prompts shorter."
    return Gate(name, "fail", measured + what, needed, advice)


def _ratio(counts: Sequence[tuple[float, float]]) -> Interval | None:
    return ratio([part for part, _ in counts], [whole for _, whole in counts])


def _share(name: str, share: Interval | None, threshold: float, needed: str, advice: str, *, at_least: bool = False) -> Gate:
    if share is None:
        return Gate(name, "unknown", "nothing to measure", needed, "Ask more questions.")
    passed = share.value >= threshold if at_least else share.value > threshold
    unsure = share.low <= threshold <= share.high
    return Gate(name, "pass" if passed else "fail", _percent(share), needed, "" if passed else advice, share, unsure)


def _percent(share: Interval) -> str:
    return f"{share.value:.0%} ({100 * share.low:.0f}–{100 * share.high:.0f})"
