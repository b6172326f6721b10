"""Can self-play work here? The gates to pass before training (SPEC 9.4), from a sample of answers and debates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from peergrad.debate.imports import is_import_path
from peergrad.debate.types import Debate
from peergrad.learn.advantages import advantages, has_signal
from peergrad.learn.train import LearnRules
from peergrad.learn.trainer import RETRIED, StepStats
from peergrad.measure.counts import form_counts, shares, total, vote_counts
from peergrad.measure.grades import share_right, truth_of, turn_grades
from peergrad.measure.history import retried
from peergrad.measure.statistics import Interval, mean, ratio
from peergrad.reward.rewards import RewardRules, Scored, score
from peergrad.reward.streams import default_consensus
from peergrad.tasks.base import Task

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
    truth = truth_of(task)
    scored = [score(debate, rules.reward, truth(debate)) for debate in sample.debates]
    solves = _solves(sample.answers, task) if task.known else []
    about_votes = [_votes(scored), *([_judgement(scored, task)] if task.known else [])]
    if is_import_path(rules.reward.reward):  # it need not ask for votes
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


def _solves(answers: Sequence[Debate], task: Task) -> list[Gate]:
    """A model that is never right can't be shown what right looks like, one that always is has nothing to learn."""
    answers = [debate for debate in answers if debate.question.known]
    grades = turn_grades(answers, task.grade)
    k = max((debate.agents for debate in answers), default=0)
    alone = mean([share for of_one in grades if (share := share_right(of_one)) is not None])
    once = mean([float(any(grade.correct for grade in of_one)) for of_one in grades])
    harder = "Take easier questions or a stronger model, or warm-start on right solutions (--warm-steps, --warm-from)."
    return [
        _share("solves alone", alone, 0.05, "at least 5 %", harder, at_least=True),
        _share(f"right at least once in {k} answers (pass@{k})", once, 0.2, "more than 20 %", harder),
    ]


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


def _judgement(scored: Sequence[Scored], task: Task) -> Gate:
    name, needed = "votes for the right one of a right and a wrong solution", "more than 50 %"
    scored = [one for one in scored if one.debate.question.known]
    grades = turn_grades([one.debate for one in scored], task.grade)
    counts = [vote_counts(one, of).get("votes/accuracy", (0.0, 0.0)) for one, of in zip(scored, grades, strict=True)]
    share = _ratio(counts)
    if share is None:
        advice = "No vote is between a right and a wrong solution: mend the gates before this one, or ask more questions."
        return Gate(name, "unknown", "no such vote", needed, advice)
    advice = (
        "Votes no better than a coin teach noise: take easier questions or a stronger model, or train on its reward with "
        "some truth first."
    )
    gate = _share(name, share, 0.5, needed, advice)
    return replace(gate, measured=f"{gate.measured}, {sum(whole for _, whole in counts):.0f} votes")


def _judge_stream(scored: Sequence[Scored], rules: RewardRules) -> Gate:
    """Whether a judge can be told that it is wrong (SPEC 4.8)."""
    name, needed = "judges are held to somebody else's votes", "4 agents or more"
    agents = max((one.debate.agents for one in scored), default=0)
    judging = [[stream for stream in one.streams if stream.follows == "votes" and stream.weight] for one in scored]
    if not any(judging):
        return Gate(name, "pass", "no judge stream", needed)
    own = is_import_path(rules.reward)  # it need not go by a consensus
    if agents < 4 and not own:  # the judge stream is then constant: it teaches nothing, but the other streams still do
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
        verdict = "warn" if own else "fail"
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
    longest = max((turn.used.prompt for debate in sample.debates for turn in debate.turns if turn.used), default=None)
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
    measured = f"{share.value:.0%} ({100 * share.low:.0f}–{100 * share.high:.0f})"
    unsure = share.low <= threshold <= share.high
    return Gate(name, "pass" if passed else "fail", measured, needed, "" if passed else advice, share, unsure)
