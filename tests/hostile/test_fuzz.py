"""The reader on replies that are nearly right, and on the ones that cost most (SPEC 1.7)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest

from peergrad.debate import contract
from peergrad.debate.contract import FULL, SHORT, read
from tests.hostile.corpus import ATTEMPTS
from tests.hostile.fuzz import FAMILIES, Family, check, replies

COUNT = 10_000  # benchmarks/read_hostile.py has a million
SEED = 20_240


def test_the_same_seed_gives_the_same_replies():
    assert list(replies(7, 200)) == list(replies(7, 200))
    assert list(replies(7, 200)) != list(replies(8, 200))


def test_the_fuzz_reaches_every_outcome():
    """Mutated replies must neither all fail nor all pass, or the rest of this file would say little."""
    kinds: Counter[str] = Counter()
    for text in replies(SEED, 2_000):
        for form in (FULL, SHORT):
            parsed = read(text, form)
            kinds[parsed.error.kind if parsed.error else "readable"] += 1
            kinds["votes"] += bool(parsed.votes)
            kinds["malformed"] += bool(parsed.malformed)
    assert kinds["readable"] >= 1_000
    least = {"missing": 100, "unclosed": 50, "repeated": 100, "order": 20, "consensus": 10, "votes": 500, "malformed": 200}
    assert not {kind: kinds[kind] for kind, count in least.items() if kinds[kind] < count}


def test_mutated_replies_keep_the_rules():
    for index, text in enumerate(replies(SEED, COUNT)):
        try:
            check(text, max_votes=64 if index % 2 else 3)
        except Exception as error:
            raise AssertionError(f"reply {index}: {text!r}") from error


def test_the_corpus_keeps_the_rules():
    for text in (*(attempt.text for attempt in ATTEMPTS), *(attempt.short for attempt in ATTEMPTS)):
        check(text)


def test_every_cut_of_a_reply_keeps_the_rules():
    text = next(text for text in replies(SEED, 1_000) if not read(text, FULL).error and read(text, FULL).votes)
    for at in range(len(text) + 1):
        check(text[:at])
        check(text[at:])


@pytest.mark.parametrize("broken", ["votes from everywhere", "a fence is text", "sections without tags", "no limit"])
def test_the_check_can_fail(monkeypatch, broken):
    votes, sections = contract.read_votes, contract._sections
    if broken == "votes from everywhere":
        monkeypatch.setattr(contract, "read_votes", lambda text, start, end, **kw: votes(text, 0, len(text), **kw))
    elif broken == "no limit":
        monkeypatch.setattr(contract, "read_votes", lambda text, start, end, max_votes: votes(text, start, end, max_votes=9))
    elif broken == "a fence is text":
        fail = contract.ParseError("missing", "solution")
        monkeypatch.setattr(contract, "_sections", lambda text, *rest: fail if text[:1] == "`" else sections(text, *rest))
    else:
        monkeypatch.setattr(contract, "_sections", lambda *args: _shifted(sections(*args)))
    with pytest.raises(AssertionError):
        _check_all(500)


def _check_all(count: int) -> None:
    for text in replies(SEED, count):
        check(text, max_votes=3)


def _shifted(found: object) -> object:
    if isinstance(found, contract.ParseError):
        return found
    return tuple(contract.Section(section.name, section.start, section.end - 1) for section in found)  # type: ignore[attr-defined]


def seconds(run: Callable[[str], object], text: str, times: int) -> float:
    """The least processor time of several runs: noise only ever adds."""
    best = float("inf")
    for _ in range(times):
        start = time.process_time()
        run(text)
        best = min(best, time.process_time() - start)
    return best


def ratio(family: Family, small: int = 250_000, large: int = 500_000) -> float:
    """How much longer twice the text takes: 2 when linear, 4 when quadratic."""
    texts = family.text(small), family.text(large)
    least = [float("inf"), float("inf")]
    for attempt in range(6):  # more runs only while the clock disagrees
        least = [min(was, seconds(family.run, text, 1 + attempt)) for was, text in zip(least, texts, strict=True)]
        if least[1] <= 2.5 * max(least[0], 5e-4):
            break
    return least[1] / max(least[0], 5e-4)  # what takes next to no time cannot be timed


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: ascii(family.name)[:60])
def test_time_is_linear(family):  # SPEC 1.7
    assert ratio(family) <= 3


def test_the_clock_notices_a_quadratic_reader():
    def quadratic(text: str) -> None:
        for at in range(0, len(text), 500):
            text[at:].count("<solution>")

    assert ratio(Family("quadratic", quadratic, "x")) > 3
