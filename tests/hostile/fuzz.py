"""Hostile replies by mutating valid ones, the rules every reading must keep, and the inputs that cost most to read.

A reply is built from pieces (tags, prose, votes), and the pieces are mutated: so most replies are nearly right, which is
where a reader goes wrong. The same seed gives the same replies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from peergrad.debate.ballot import BALLOT, Ballot, BallotForm, critique_of
from peergrad.debate.contract import FULL, SHORT, Contract, Order, read
from peergrad.debate.quote import MARK, harmless, quote
from peergrad.debate.types import Ask, Parsed, Turn

_PROSE = (
    *("The answer is 4.", "N/A", "", "Agent 1 adds wrongly.\nAgent 2 is right.", "x < y > z and a = b"),
    *("2 > 1\n- point\n- point", "\\boxed{4}", "Let me think again: 2+2=4.", "答えは四です。"),
    *("| solution: 5", "Agent 1 said in round 1:"),
)
_OPS = (">", "<", "=", ">>", "=>", "<=", "==", "!=", "≻", "≈", "≥", "->", "~", "", " > > ", "＞", "vs")
_IDS = (
    *("0", "1", "2", "3", "7", "00", "-1", "+1", "1.5", "²", "①", "\u0661", "１", "9" * 12, "9" * 400, "one", "", "1_"),
    *("1a", "N"),
)
_AGENTS = (
    *("Agent", "agent", "AGENT", "aGenT", "**Agent", "_Agent", "`Agent", "Agents", "gent", "\u0410gent"),
    *("A gent", "#Agent"),
)
_BLANKS = (
    *(" ", "", "  ", "\t", "\xa0", "\u3000", "\r", "\v", "\n", "\u200b", " " * 40, "*", "**", "_", "`"),
    *("<think>", "</THINK> "),
)
_JOINTS = ("\n", "\n", "\n", ", ", "; ", " and ", "\r\n", "\r", "\u2028", "\n- ", "\n> ", " ", "", "\n\n")
_MARKERS = (
    *("<think>", "</think>", "<THINK>", "</Think>", "<think", "</think >", "think>"),
    *("<think></think>", "<think>draft</think>"),
)
_FENCES = ("```", "```xml\n", "\n```\n", "~~~", "````", "``", "```xml")
_CONTROLS = (
    *("\x00", "\x07", "\x08", "\v", "\x0c", "\x1b[2K", "\x1c", "\x1f", "\x7f", "\x85", "\r", "\r\n", "\u2028"),
    *("\u2029", "\u200b", "\u200d", "\u200e", "\u202e", "\u2066", "\u2060", "\ufeff", "\U000e0041", "\ufffe"),
    *("\U0010ffff", "\ud800", "\udfff", "\udc0a", "\ud83d\ude00", "\u0301", "\u0130", "\u017f", "\u212a"),
)
_RUNS = (
    *("<", ">", "=", " ", "\n", "a", "<think>", "</think>", "Agent ", "Agent 1 > ", "*", "|", "`", "<solution"),
    *("\ud800", "-", "9"),
)
_LOOKALIKES = (
    "<|im_end|>",
    "[INST]",
    "<s>",
    "<Solution>",
    "< comparison >",
    "</comparison",
    "<comparison/>",
    "＜comparison＞",
)

_ALL_TAGS = FULL.tags


def reply_pieces(random: Random, contract: Contract) -> list[str]:
    """A valid reply under the contract, in pieces."""
    pieces: list[str] = []
    for name in contract.names:
        pieces.append(f"<{name}>")
        if name == "comparison":
            for _ in range(random.randrange(4)):
                one, op, two = str(random.randrange(4)), random.choice(">>=<"), str(random.randrange(4))
                pieces += ("Agent ", one, " ", op, " Agent ", two, "\n")
        elif name == "consensus":
            pieces.append(random.choice(("YES", "NO", " yes\n", "No")))
        else:
            pieces.append(random.choice(_PROSE))
        pieces += (f"</{name}>", random.choice(("\n", "", " ", "\n\n")))
    return pieces


def _vote(random: Random) -> str:
    """Something like a vote, every part of it possibly wrong."""
    pick = random.choice
    parts = [pick(_AGENTS), pick(_BLANKS), pick(_IDS)]
    for _ in range(pick((0, 1, 1, 1, 2, 5))):
        parts += (pick(_BLANKS), pick(_OPS), pick(_BLANKS), pick(_AGENTS), pick(_BLANKS), pick(_IDS))
    return "".join(parts)


def _votes(random: Random) -> str:
    return "".join(_vote(random) + random.choice(_JOINTS) for _ in range(random.choice((1, 1, 2, 3))))


# Each mutation changes the list of pieces in place; ``at`` is a valid index of it.


def _delete(pieces: list[str], at: int, _random: Random) -> None:
    del pieces[at]


def _duplicate(pieces: list[str], at: int, random: Random) -> None:
    pieces.insert(random.randrange(len(pieces) + 1), pieces[at])


def _swap(pieces: list[str], at: int, random: Random) -> None:
    other = random.randrange(len(pieces))
    pieces[at], pieces[other] = pieces[other], pieces[at]


def _nest(pieces: list[str], at: int, random: Random) -> None:
    name = random.choice(("think", *FULL.names))
    pieces[at] = f"<{name}>{pieces[at]}</{name}>"


def _truncate(pieces: list[str], at: int, random: Random) -> None:
    pieces[at] = pieces[at][: random.randrange(len(pieces[at]) + 1)]
    if random.random() < 0.5:
        del pieces[at + 1 :]


def _behead(pieces: list[str], at: int, random: Random) -> None:
    del pieces[: at if random.random() < 0.5 else 1]


def _case(pieces: list[str], at: int, random: Random) -> None:
    pieces[at] = random.choice((str.upper, str.title, str.swapcase, str.lower, str.casefold))(pieces[at])


def _space_inside(pieces: list[str], at: int, random: Random) -> None:
    piece, cut = pieces[at], random.randrange(len(pieces[at]) + 1)
    pieces[at] = piece[:cut] + random.choice(_BLANKS) + piece[cut:]


def _split(pieces: list[str], at: int, random: Random) -> None:
    # What is put in the middle would leave a whole tag behind if it were removed.
    piece, cut = pieces[at], random.randrange(len(pieces[at]) + 1)
    pieces[at] = piece[:cut] + random.choice((*_MARKERS, *_CONTROLS, piece)) + piece[cut:]


def _tag(pieces: list[str], at: int, random: Random) -> None:
    pieces.insert(at, random.choice(_ALL_TAGS))


def _retag(pieces: list[str], at: int, random: Random) -> None:
    pieces[at] = random.choice(_ALL_TAGS)


def _marker(pieces: list[str], at: int, random: Random) -> None:
    pieces.insert(at, random.choice(_MARKERS))


def _fence(pieces: list[str], at: int, random: Random) -> None:
    pieces.insert(at, random.choice(_FENCES))


def _control(pieces: list[str], at: int, random: Random) -> None:
    pieces.insert(at, random.choice(_CONTROLS))


def _run(pieces: list[str], at: int, random: Random) -> None:
    pieces.insert(at, random.choice(_RUNS) * random.choice((10, 70, 300)))


def _lookalike(pieces: list[str], at: int, random: Random) -> None:
    pieces.insert(at, random.choice(_LOOKALIKES))


def _insert_vote(pieces: list[str], at: int, random: Random) -> None:
    # Mostly where votes are read, sometimes anywhere.
    where = pieces.index("</comparison>") if "</comparison>" in pieces and random.random() < 0.8 else at
    pieces.insert(where, _votes(random))


def _many_votes(pieces: list[str], at: int, random: Random) -> None:
    where = pieces.index("</comparison>") if "</comparison>" in pieces else at
    pieces.insert(where, "Agent 1 > Agent 2\n" * random.choice((63, 64, 65, 200)))


def _splice(pieces: list[str], at: int, random: Random) -> None:
    other = reply_pieces(random, random.choice((FULL, SHORT)))
    pieces[at:] = other[random.randrange(len(other)) :]


def _draft(pieces: list[str], _at: int, random: Random) -> None:
    # A draft while thinking, then the reply: whole or not, closed or not (SPEC 1.5).
    draft = reply_pieces(random, random.choice((FULL, SHORT)))
    pieces[:0] = [
        random.choice(("<think>", "")),
        *draft[: random.randrange(len(draft) + 1)],
        random.choice(("</think>", "</THINK>", "")),
    ]


def _appendix(pieces: list[str], _at: int, random: Random) -> None:
    pieces += (random.choice(("</think>", "", "\n")), *reply_pieces(random, random.choice((FULL, SHORT))))


def _reverse(pieces: list[str], at: int, random: Random) -> None:
    end = random.randrange(at, len(pieces)) + 1
    pieces[at:end] = pieces[at:end][::-1]


Mutation = Callable[[list[str], int, Random], None]
# Votes are listed several times: there are many ways to get them wrong.
MUTATIONS: tuple[Mutation, ...] = (
    *(_insert_vote, _insert_vote, _insert_vote, _insert_vote, _insert_vote, _insert_vote, _many_votes),
    *(_delete, _duplicate, _swap, _nest, _truncate, _behead, _case, _space_inside, _split, _tag, _retag, _reverse),
    *(_marker, _marker, _fence, _control, _control, _run, _lookalike, _splice, _draft, _draft, _appendix),
)


def replies(seed: int, count: int) -> Iterator[str]:
    """``count`` hostile replies, the same ones for the same seed.

    Example: ``list(replies(7, 3)) == list(replies(7, 3))``
    """
    random = Random(seed)
    for _ in range(count):
        pieces = reply_pieces(random, FULL if random.random() < 0.5 else SHORT)
        for _ in range(random.choice((0, 1, 1, 1, 2, 2, 3, 5))):
            if pieces:
                random.choice(MUTATIONS)(pieces, random.randrange(len(pieces)), random)
        yield "".join(pieces)


_FENCED = ("```xml\n", "\n```")
_PREAMBLE = "Sure! Here is what I think of Agent 1 > Agent 2, then:\n"
_ORDERS: tuple[Order, ...] = ("strict", "any")


def check(text: str, max_votes: int = 64) -> None:
    """Read a reply in every way and assert what must hold of any input (SPEC 1.3 to 1.7)."""
    for contract in (FULL, SHORT):
        strict, any_order = (read(text, contract, order=order, max_votes=max_votes) for order in _ORDERS)
        _check_one(text, contract, "strict", strict, max_votes)
        if strict.error:
            _check_one(text, contract, "any", any_order, max_votes)
            if not any_order.error:  # a free order forgives the order only, be it of what follows a draft
                counts = text[any_order.sections[0].start :]
                assert strict.error.kind in ("order", "repeated")
                assert str(read(counts, contract).error).startswith("order")
        else:
            assert any_order == strict
        _check_tolerant(text, contract, strict, max_votes)
        cut = read(text, contract, truncated=True)
        assert cut.error is not None
        assert (cut.error.kind, cut.sections, cut.votes) == ("truncated", (), ())


def _check_tolerant(text: str, contract: Contract, strict: Parsed, max_votes: int) -> None:
    """What can be read strictly is read so; of the rest sections are spans that do not overlap (SPEC 1.8)."""
    parsed = read(text, contract, reading="tolerant", max_votes=max_votes)
    if not strict.error:
        assert parsed == strict
        return
    assert not (parsed.error and parsed.tolerated)
    assert len(parsed.votes) <= max_votes
    if parsed.error:
        assert (parsed.sections, parsed.votes, parsed.malformed, parsed.consensus) == ((), (), 0, None)
    at = 0
    for section in parsed.sections:
        assert at <= section.start <= section.inner[0] <= section.inner[1] <= section.end <= len(text)
        assert section.name in contract.names
        at = section.end


def _check_one(text: str, contract: Contract, order: Order, parsed: Parsed, max_votes: int) -> None:
    assert len(parsed.votes) <= max_votes
    assert all(a >= 0 and b >= 0 and op in (">", "=") for a, op, b in parsed.votes)
    _check_wrapped(text, contract, order, parsed, max_votes)
    if parsed.error:
        assert (parsed.sections, parsed.votes, parsed.malformed, parsed.consensus) == ((), (), 0, None)
        return
    names = [section.name for section in parsed.sections]
    assert sorted(names) == sorted(contract.names)
    assert order == "any" or names == list(contract.names)
    at = 0
    for section in parsed.sections:
        assert at <= section.start < section.end <= len(text)
        assert text.startswith(f"<{section.name}>", section.start)
        assert text.endswith(f"</{section.name}>", section.start, section.end)
        assert section.inner[0] <= section.inner[1]
        at = section.end
    assert (parsed.consensus is None) == ("consensus" not in names)
    start = parsed.sections[0].start
    again = read(text[start:at], contract, order=order, max_votes=max_votes)
    assert _meaning(text[start:at], again) == _meaning(text, parsed), "the sections alone must read the same"
    for section in parsed.sections:
        if section.name == "comparison":
            silent = read(text[: section.inner[0]] + text[section.inner[1] :], contract, order=order)
            assert (silent.error, silent.votes) == (None, ()), "votes must come from the comparison"
    shown = quote({name: Turn(0, 0, text, parsed).section(name) for name in names})
    assert all(line.startswith(MARK) for line in shown.splitlines())
    assert not any(tag in shown for tag in _ALL_TAGS)
    shown.encode()


def _check_wrapped(text: str, contract: Contract, order: Order, parsed: Parsed, max_votes: int) -> None:
    for before, after in (_FENCED, (_PREAMBLE, "")):
        wrapped = before + text + after
        assert _meaning(wrapped, read(wrapped, contract, order=order, max_votes=max_votes)) == _meaning(text, parsed)


def _meaning(text: str, parsed: Parsed) -> tuple[object, ...]:
    sections = [(section.name, text[section.start : section.end]) for section in parsed.sections]
    return sections, parsed.votes, parsed.malformed, parsed.consensus, parsed.error


@dataclass(frozen=True, slots=True)
class Family:
    """Inputs of one shape and any size, for something that must take time linear in it."""

    name: str
    run: Callable[[str], object]
    unit: str
    head: str = ""
    tail: str = ""

    def text(self, size: int) -> str:
        """About ``size`` bytes of UTF-8: the unit again and again between head and tail."""
        return self.head + self.unit * (size // len(self.unit.encode("utf-8", "surrogatepass"))) + self.tail


def _read_short(text: str) -> object:
    return read(text, SHORT)


def _read_full(text: str) -> object:
    return read(text, FULL, order="any")


def _tolerant(text: str) -> object:
    return read(text, FULL, reading="tolerant")


def _ballot(form: BallotForm) -> Callable[[str], object]:
    protocol = Ballot(agents=6, ballot_form=form)
    ask = Ask("", 0, 6, 6, (), (), 0, contract=BALLOT, candidates=((1,), (2,), (3,), (4,)))

    def run(text: str) -> object:
        parsed = protocol.read(ask, text)
        return [critique_of(Turn(0, 6, text, parsed, candidates=ask.candidates), agent) for agent in range(1, 5)]

    return run


def _quote(text: str) -> object:
    return quote({"solution": text})


_HEAD = "<solution>4</solution><evaluation>x</evaluation><comparison>"
_TAIL = "</comparison>"
_WHOLE = f"{_HEAD}{_TAIL}"
_WHOLE_FULL = f"{_WHOLE}<consensus>NO</consensus><consensus_reason></consensus_reason>"

# Units that are almost votes: each makes the reader begin, look ahead and give up as late as possible.
_IN_COMPARISON = (
    *("a", "A!", "=a", "a>a=", "<", ">", "=", " <", "> ", "*<", "\n>", "≈", "≈a", "<a", "-a", "_a", "~ agent\t1.2 "),
    *("Agent ", "agent-", "agent a ", "agent 1 ", "Agent 1.", "Agent 1_ ", "Agent -", "Agent \u3000", "=agent "),
    *(" =agent 1_", " = agent x_", "= agent", "> *_`", " <*a", "Agent 1 <think> ", "> <think>", "<think> "),
    *("</think>", "<think", "think> a", "=<think>", "Agent 1 *", "Agent 1 `_* ", "Agent 9", "\ud800", "Agent 1 > "),
    *("Agent 1 > Agent 2\n", "Agent 1 > Agent x ", "> Agent 1\n", "\n> Agent 1", "Agent 1 >>>> "),
)
# One long run behind one beginning, or between two: quadratic if the run were tried again from each of its characters.
_LONG_RUNS = (
    ("Agent 1", " ", ""),
    ("Agent 1", " ", "> Agent 2"),
    ("Agent 1 >", " ", "Agent 2"),
    ("Agent 1", "<think>", ""),
    ("Agent 1", "<think> ", ">"),
    ("> ", "<think>", "Agent"),
    ("Agent 1 ", "<", "Agent 2"),
    ("", "=", " Agent 2"),
    ("Agent ", "9", " > Agent 1"),
    ("Agent 1 > Agent ", "9", ""),
    ("Agent", " ", "1 > Agent 2"),
)
_WHOLE_TEXTS = (
    *("<", "</", "<s", "<solution", "</solution", "<consensus_reason", "</consensus_reason", "<consensus"),
    *("<solution>", "</solution><solution>", "<think>", "</think>", "</thin", _WHOLE, f"{_WHOLE}</think>"),
    *(f"<think>{_WHOLE_FULL}</think>", "<comparison></comparison>", "<solution><evaluation><comparison>"),
    *("</consensus_reason>", "`", "x", "\n", "😀"),
)
_QUOTED = (
    *("<", "</", "< ", "<<<s", "<s", "<s ", "<s>", "<s x", "<si<", "<consensus_reason", "<solution ", "<solution\n"),
    *("<solution>", "＜", "＜s＞", "<|", "<||>", "<|a", "<|s|>", "<｜a｜>", "[", "[INST", "[INST]", "[AVAILABLE_TOOLS"),
    *("<inst>", "\n", "\r", "\r\n", "\u2028", "\x00", "\u200b", "<\x00", "\ud800", "\U000e0041"),
    *("<solution " + "x" * 199, "<solution " + "x" * 200, "<solution" + " " * 201, "<|" + "x" * 79, "<|" + "x" * 81),
)
_QUOTED_RUNS = (("<", " ", ""), ("<s", " ", ""), ("<s ", "x", ">"), ("<|", "a", "|>"), ("</", "\n", "s>"), ("<s/", "/", ">"))

_ALL_BALLOTS = ("a", "A", "*", " ", "\n", "| ", "A\n", "Answer ", "A: ", "A :", "A" + "*" * 50, "\u2028A")
_BALLOT_UNITS: dict[BallotForm, tuple[str, ...]] = {
    "verdicts": (*_ALL_BALLOTS, "A: right\n", "A: righ", "A:::", "- A - ", "A = = ", "Answer A: 5 "),
    "ranking": (*_ALL_BALLOTS, "ranking", "ranking:", "Ranking: A > B\n", "A > ", "Ranking ***"),
    "pairs": (*_ALL_BALLOTS, "A > B\n", "A >", "A > B ", "A\t", "A = "),
    "soft-choice": (*_ALL_BALLOTS, "A 0.5", "0.500000 ", "A 0.500000 ", "A 0.50000"),
}
FAMILIES: list[Family] = [
    *(Family(f"comparison {unit!r}", _read_short, unit, _HEAD, _TAIL) for unit in _IN_COMPARISON),
    *(Family(f"comparison {a!r} {run!r} {b!r}", _read_short, run, _HEAD + a, b + _TAIL) for a, run, b in _LONG_RUNS),
    *(Family(f"text {unit!r}", _read_full, unit) for unit in _WHOLE_TEXTS),
    *(Family(f"text {unit!r} then a reply", _read_full, unit, "", f"</think>{_WHOLE_FULL}") for unit in _WHOLE_TEXTS[:9]),
    Family("text reply then '</think>' then reply", _read_full, "</think>", _WHOLE_FULL, _WHOLE_FULL),
    Family(
        "text consensus of '<think>'",
        _read_full,
        "<think>",
        f"{_WHOLE}<consensus>",
        "NO</consensus><consensus_reason></consensus_reason>",
    ),
    *(Family(f"quote {unit!r}", _quote, unit) for unit in _QUOTED),
    *(Family(f"quote {a!r} {run!r} {b!r}", _quote, run, a, b) for a, run, b in _QUOTED_RUNS),
    Family("harmless '<s>'", harmless, "<s>"),
    *(Family(f"tolerant {unit!r}", _tolerant, unit) for unit in _WHOLE_TEXTS),
    *(Family(f"{form} {unit!r}", _ballot(form), unit) for form in _BALLOT_UNITS for unit in _BALLOT_UNITS[form]),
]
