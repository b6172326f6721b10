"""SPEC 1: the contract an agent's text must meet."""

import time

import pytest

from peergrad.config import preset
from peergrad.debate.contract import FULL, SHORT, read
from peergrad.debate.protocols import Parallel, Sequential
from peergrad.debate.types import Turn
from tests.helpers import full, short


def said(text, parsed, name):
    return Turn(0, 0, text, parsed).section(name)


def kind(text, contract=SHORT, **options):
    error = read(text, contract, **options).error
    return error and error.kind


def test_1_1_full_contract():  # SPEC 1.1
    parsed = read(full("Agent 0 > Agent 1", consensus="YES"), FULL)
    assert [section.name for section in parsed.sections] == list(FULL.names)
    assert parsed.consensus is True
    assert parsed.votes == ((0, ">", 1),)
    assert read(full("N/A"), FULL).votes == read(full(""), FULL).votes == ()
    assert kind(short(), FULL) == "missing"


def test_1_2_short_contract():  # SPEC 1.2
    parsed = read(short(), SHORT)
    assert [section.name for section in parsed.sections] == ["solution", "evaluation", "comparison"]
    assert parsed.consensus is None


@pytest.mark.parametrize(
    "wrap",
    [
        "```xml\n{}\n```",
        "```\n{}\n```",
        "Sure! Here is my answer:\n\n{}",
        "<think>let me see</think>\n{}",
        "<THINK>{}</Think>",
        "<think>{}",
        "{}</think>",
        "{}\nHope that helps.",
    ],
)
def test_1_3_wrappers_are_ignored(wrap):  # SPEC 1.3
    text = wrap.format(short("Agent 0 > Agent 1", "a <think>b</think> c"))
    parsed = read(text, SHORT)
    assert parsed.error is None
    assert said(text, parsed, "solution") == "a b c"
    assert parsed.votes == ((0, ">", 1),)
    inside = full("<think>Agent 0 > Agent 1</think>", consensus="<think></think> yes ")
    assert read(inside, FULL).votes == ((0, ">", 1),)
    assert read(inside, FULL).consensus is True


def test_1_4_sections_are_spans_of_the_raw_reply():  # SPEC 1.4
    text = "```xml\n<think>é</think>" + full("Agent 0 > Agent 1")
    for section in read(text, FULL).sections:
        raw, (start, end) = text[section.start : section.end], section.inner
        assert raw == f"<{section.name}>{text[start:end]}</{section.name}>"


def test_1_5_contract_after_thinking_counts():  # SPEC 1.5
    draft, final = short("Agent 0 > Agent 1", "draft"), short("Agent 1 > Agent 0", "final")
    text = f"<think>{draft}\nNo.</think>\n{final}"
    parsed = read(text, SHORT)
    assert said(text, parsed, "solution") == "final"
    assert parsed.votes == ((1, ">", 0),)
    # A chat template may have opened the block outside the reply.
    assert said(f"{draft}</think>{final}", read(f"{draft}</think>{final}", SHORT), "solution") == "final"
    # A half draft counts as little as a whole one, and only a whole contract after it replaces it.
    assert kind(f"<think><solution>draft</think>{final}") is None
    assert kind(f"<think><solution></think>{final}") is None
    assert said(f"<think>{draft}</think>", read(f"<think>{draft}</think>", SHORT), "solution") == "draft"
    assert kind(f"<think>{draft}</think><solution>4</solution>") == "repeated"
    assert kind(f"{draft}{final}") == "repeated"
    assert kind(f"<think>x</think>{draft}{final}") == "repeated"


def test_1_6_errors_have_a_kind():  # SPEC 1.6
    text = short()
    assert kind("no tags") == "missing"
    assert kind("") == "missing"
    assert kind(text.replace("<evaluation>", "")) == "missing"
    assert kind(text.replace("</evaluation>", "")) == "unclosed"
    assert kind(text + "<solution>again</solution>") == "repeated"
    assert kind(text.replace("</solution>", "</solution></solution>")) == "repeated"
    swapped = short().replace("solution", "X").replace("evaluation", "solution").replace("X", "evaluation")
    assert kind(swapped) == "order"
    assert kind(swapped, order="any") is None
    nested = "<solution><evaluation></solution></evaluation><comparison></comparison>"
    assert kind(nested) == kind(nested, order="any") == "order"
    assert kind("</solution><solution><evaluation></evaluation><comparison></comparison>", order="any") == "order"
    assert kind(full(consensus="MAYBE"), FULL) == "consensus"
    assert kind(text, truncated=True) == "truncated"
    assert str(read(text.replace("</evaluation>", ""), SHORT).error) == "unclosed <evaluation>"


def test_1_7_reading_is_linear_bounded_and_never_raises():  # SPEC 1.7
    lines = "\n".join(f"Agent {i} > Agent {i + 1}" for i in range(100))
    assert len(read(short(lines), SHORT).votes) == 64
    assert len(read(short(lines), SHORT, max_votes=5).votes) == 5
    stuffed = "Agent 0 > Agent 1\n" * 900 + "Agent 0 > Agent 2\n" + "Agent 1 >> Agent 2\n" * 50 + "Agent 2 > Agent 1"
    votes = read(short(stuffed), SHORT).votes  # said again gives way to said first
    assert (len(votes), votes[-2:]) == (64, ((0, ">", 2), (2, ">", 1)))
    for text in ["\ud800", "\x00" * 9, "Agent 1 > Agent " + "9" * 5000, "<solution>" * 999]:
        read(short(text), SHORT)
        read(text, FULL)

    def seconds(text):
        def once():
            start = time.process_time()
            read(text, SHORT)
            return time.process_time() - start

        return min(once() for _ in range(5))

    for piece in ["> ", "<think> ", "Agent 0 ", "</solution>", "Agent 0 >"]:
        one, two = (seconds(short(piece * n)) for n in (20_000, 40_000))
        assert two < 4 * one + 0.002, piece


def tolerant(text, contract=SHORT, **options):
    return read(text, contract, reading="tolerant", **options)


def sections(text, parsed):
    return {section.name: text[slice(*section.inner)] for section in parsed.sections}


def test_1_8_tolerant_reading():  # SPEC 1.8
    for text in (short("Agent 0 > Agent 1"), "```xml\n" + short() + "\n```"):
        assert tolerant(text) == read(text, SHORT)
        assert not tolerant(text).tolerated
    # A section ends where the next tag begins, or the reply.
    open_ended = "Hm. <solution>4 <evaluation>fine</evaluation> so <comparison>Agent 0 &gt; Agent 1, Agent 2 &lt; Agent 1"
    parsed = tolerant(open_ended)
    assert parsed.tolerated
    assert sections(open_ended, parsed) == {
        "solution": "4 ",
        "evaluation": "fine",
        "comparison": "Agent 0 &gt; Agent 1, Agent 2 &lt; Agent 1",
    }
    assert parsed.votes == ((0, ">", 1), (1, ">", 2))
    assert read(open_ended, SHORT).error.kind == "unclosed"
    # Text before the first tag is the solution, if there is none.
    for text, solution in (("It is 4.", "It is 4."), ("It is 4.\n<evaluation>x", "It is 4.\n")):
        assert sections(text, tolerant(text))["solution"] == solution
        assert tolerant(text).tolerated
    # With the other sections whole and in order that is the form asked for.
    alone = "It is 4.\n<evaluation>N/A</evaluation><comparison>Agent 0 > Agent 1</comparison>"
    assert (tolerant(alone).tolerated, tolerant(alone).votes) == (False, ((0, ">", 1),))
    # Any order; what is said again is not read; tags in thinking are none.
    turned = "<comparison>Agent 0 = Agent 1</comparison><solution>4</solution><solution>5</solution>"
    assert sections(turned, tolerant(turned)) == {"comparison": "Agent 0 = Agent 1", "solution": "4"}
    thought = "<think><solution>5<comparison>Agent 1 > Agent 0</think><solution>4"
    assert sections(thought, tolerant(thought)) == {"solution": "4"}
    assert tolerant(thought).votes == ()
    # A consensus other than YES is none.
    assert [tolerant(f"4 <consensus>{said}", FULL).consensus for said in ("YES", " yes ", "maybe", "NO")] == [
        True,
        True,
        False,
        False,
    ]
    for unreadable in ("", " \n", "<evaluation>x</evaluation>", "  <comparison>Agent 0 > Agent 1"):
        assert (tolerant(unreadable).error.kind, tolerant(unreadable).sections) == ("missing", ())
    assert tolerant(short(), truncated=True).error.kind == "truncated"
    assert read("It is 4.", SHORT).error.kind == "missing"  # strict
    assert (Parallel().reading, Sequential().reading) == ("tolerant", "tolerant")
    assert preset("classic").debate.reading == "strict"
    assert preset("open-ended").debate.reading == "tolerant"
