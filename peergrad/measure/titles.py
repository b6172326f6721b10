"""What is measured of an evaluation, in words, and in which order it is shown."""

from __future__ import annotations

from collections.abc import Iterable

_TITLES = {
    "direct/correct": "direct, one answer",
    "direct/avg@1": "direct, one sampled answer",
    "direct/format": "a final value is given",
    "direct/majority": "majority vote, equal cost",
    "alone/majority": "self-correction, equal cost",
    "debate/correct": "debate: an agent at the end",
    "debate/winner": "debate: winner by peer votes",
    "role-averaged/correct": "policy, over all seats",
    "role-averaged/opponents": "its opponents",
    "role-averaged/win_rate": "votes of the opponents about the policy",
    "head-to-head/votes": "their own votes",
    "head-to-head/votes_of_model": "votes of the model",
    "head-to-head/votes_of_opponent": "votes of the opponent",
    "head-to-head/judge": "the judge",
}
_SHARES = {
    "replies/readable": "replies that can be read",
    "replies/truncated": "replies cut off by the token limit",
    "votes/due_turns_with_vote": "turns with a valid vote, where one was due",
    "votes/debates_with_vote": "debates with a valid vote",
    "votes/accuracy": "votes for the right one of a right and a wrong solution",
    "votes/accuracy_beyond_own": "the same, by a voter whose own answer is neither",
    "votes/winner_is_right": "winner is right, where there are votes",
    "flips/right_to_wrong": "right → wrong from one round to the next",
    "flips/wrong_to_right": "wrong → right from one round to the next",
    "alone/flips/right_to_wrong": "right → wrong, seeing only itself",
    "alone/flips/wrong_to_right": "wrong → right, seeing only itself",
    "role-averaged/votes_won": "votes about the policy that it wins",
    "votes/read": "ballots that can be read",
    "votes/order_decided": "verdicts that change with the order of the answers",
    "bias/first": "votes won by the answer shown first",
    "bias/longer": "votes won by the longer solution",
    "bias/own": "verdicts of the two models for their own answer",
    "diversity/pair": "distance of the two answers",
    "diversity/direct": "distance of two independent answers",
    "diversity/debate": "distance of two agents' final answers",
}
_ORDER = ("direct/correct", "direct/", "alone/", "debate/vote_after", "debate/", "role-averaged/", "head-to-head/v")


def title(name: str) -> str:
    """A way of answering, such as ``debate/winner``."""
    way, _, what = name.partition("/")
    if what.startswith("vote_after_round_"):
        return f"debate: vote after round {what.removeprefix('vote_after_round_')}"
    if what.startswith("strict_cons@"):
        return f"{'' if way == 'direct' else f'{way}: '}most of {what.removeprefix('strict_cons@')} are right"
    return _TITLES.get(name, what if way == "direct" else f"{way}: {what}")


def in_order(names: Iterable[str]) -> list[str]:
    """Ways of answering, as they are shown. Of one sample pass and cons are left out: they are avg@1 once more."""
    return sorted((name for name in names if not name.endswith(("/pass@1", "cons@1"))), key=_place)


def _place(name: str) -> tuple[int, str]:
    return next((at for at, start in enumerate(_ORDER) if name.startswith(start)), len(_ORDER)), name


def share_titles(names: Iterable[str]) -> dict[str, str]:
    """Those of these shares that have a title, in order."""
    ordered = sorted(names, key=lambda name: (name.rpartition("/")[0], len(name), name))  # seat 10 after seat 2
    whose = (("", ""), ("judge/", ": the judge"))
    titles = {at + name: words + of for at, of in whose for name, words in _SHARES.items() if at + name in ordered}
    biases = [name for name in ordered if name.startswith(("bias/seat", "bias/persona"))]
    return titles | {name: "votes won by " + name.removeprefix("bias/").replace("/", " ") for name in biases}
