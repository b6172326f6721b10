"""A turn of a transcript, read back from its JSON with errors that say where (docs/reference/transcript.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

from peergrad.debate.fields import Field
from peergrad.debate.judge import JUDGE, read_verdict
from peergrad.debate.prompts import LETTERS
from peergrad.debate.protocol import BaseProtocol, Recorded, call_protocol
from peergrad.debate.types import (
    Ask,
    Candidates,
    Contract,
    Message,
    Op,
    Parsed,
    ParseError,
    Reply,
    Section,
    Tokens,
    Turn,
    Usage,
    Verdict,
    only_text,
)

_ROLES = ("system", "user", "assistant")
_INT32 = 2**31 - 1


def load_turn(at: Field, earlier: list[Turn], agent: int, protocol: BaseProtocol, thin: bool) -> Turn:
    """A turn, or the judge's, whose seat is the one after the last."""
    text, truncated = only_text(at["text"].text()), at.get("truncated", False).flag()
    index, judge = len(earlier), agent == protocol.agents
    first, last = (0, index) if judge else call_protocol(protocol, protocol.window, index)
    seen = at.get("seen", last).whole(0, index, ": turns that existed when it was asked")
    since = at.get("since", min(seen, first)).whole(0, seen, ": the first turn it was shown")
    round_ = 0 if judge else at.get("round", index // protocol.agents).whole(0, index)
    contract = JUDGE if judge else _load_contract(at, protocol)
    candidates = _load_candidates(at.get("candidates", []), protocol.agents)
    asked = () if thin else tuple(_load_messages(at.get("asked", []), earlier))
    ask = Ask("", agent, index, seen, asked, (), 0, since=since, round=round_, contract=contract, candidates=candidates)
    if judge:
        parsed = read_verdict(text, truncated)
    else:
        recorded = isinstance(protocol, Recorded)
        parsed = _load_parsed(at, text) if recorded else call_protocol(protocol, protocol.read, ask, text, truncated)
    usage = at["usage"].object() if "usage" in at else None
    reply = Reply(
        text,
        truncated,
        tokens=_load_tokens(at["tokens"].object(), earlier, text) if "tokens" in at and not thin else None,
        usage=Usage(usage["prompt"].whole(0), usage["sampled"].whole(0)) if usage else None,
        by=only_text(at.get("by", "").text()),
    )
    chosen = not judge and at.get("chosen", protocol.chooses(contract)).flag()
    return replace(Turn.of(ask, reply, parsed), chosen=chosen)


def _load_candidates(at: Field, agents: int) -> Candidates:
    candidates = tuple(tuple(letter.wholes(0, agents - 1)) for letter in at)
    shown = [agent for letter in candidates for agent in letter]
    if len(candidates) > len(LETTERS) or len({*shown}) < len(shown):
        at.wrong(f"are at most {len(LETTERS)} letters, with every agent under one of them at most")
    return candidates


def _load_contract(at: Field, protocol: BaseProtocol) -> Contract | None:
    if "contract" not in at:
        return protocol.contract
    names = at["contract"]
    return None if names.value is None else Contract(tuple(name.text() for name in names))


def _load_parsed(at: Field, text: str) -> Parsed:
    """What was read in a reply when it was given, by a protocol that is not here."""
    if "error" in at:
        kind, _, tag = at["error"].text().partition(" ")
        return Parsed(error=ParseError(kind, tag.strip("<>") or None))
    sections: list[Section] = []
    spans = at.get("sections", {}).object()
    for name in spans.names():
        bounds = spans[name].wholes(0, len(text))
        if len(bounds) != 2 or bounds[0] > bounds[1]:
            spans[name].wrong("is no span; give where its text begins and ends")
        sections.append(Section(name, bounds[0], bounds[1], (bounds[0], bounds[1])))
    votes: list[tuple[int, Verdict, int]] = []
    for vote in at.get("votes", []):
        if len(vote.items()) != 3:
            vote.wrong("is no vote; give the two agents and between them '>' or '='")
        a, verdict, b = vote
        hard = isinstance(verdict.value, str)
        said = cast("Op", verdict.one_of((">", "="))) if hard else max(-1.0, min(1.0, verdict.number()))
        votes.append((a.whole(0), said, b.whole(0)))
    consensus = at.get("consensus", None)
    agreed = None if consensus.value is None else consensus.flag()
    malformed, tolerated = at.get("malformed", 0).whole(0), at.get("tolerated", False).flag()
    return Parsed(tuple(sections), tuple(votes), malformed, agreed, tolerated=tolerated)


def _load_messages(at: Field, earlier: list[Turn]) -> Iterator[Message]:
    for index, message in enumerate(at):
        if index == 0 and "continues" in message.object():
            shown = _continued(message["continues"], earlier).dialogue
            if not shown:
                message["continues"].wrong("that turn has no messages to continue")
            yield from shown
            continue
        role, text = message.object()["role"].one_of(_ROLES), message["text"].text()
        tokens = _load_tokens(message["tokens"].object(), earlier, text) if "tokens" in message else None
        yield Message(cast("Any", role), text, tokens)


def _continued(at: Field, earlier: list[Turn]) -> Turn:
    if not earlier:
        at.wrong("the first turn continues none; leave it out")
    return earlier[at.whole(0, len(earlier) - 1, ": an earlier turn")]


def _load_tokens(at: Field, earlier: list[Turn], text: str) -> Tokens:
    ids, prompt = at["ids"].wholes(0, _INT32), at["prompt"].wholes(0, _INT32)
    logprobs = at["logprobs"].numbers()
    starts = at["starts"].wholes(0, len(text.encode("utf-8", "surrogatepass")))
    if not len(ids) == len(logprobs) == len(starts):
        at.wrong(f"{len(ids)} ids, {len(logprobs)} logprobs and {len(starts)} starts; there must be one of each per token")
    if any(first > second for first, second in pairwise(starts)):
        at["starts"].wrong("must not decrease: they are byte offsets of the tokens in order")
    if "continues" in at:
        before = _continued(at["continues"], earlier).tokens
        if before is None:
            at["continues"].wrong("that turn has no tokens to continue")
        prompt = [*before.prompt_T.tolist(), *before.ids_T.tolist(), *prompt]
    elif not prompt:
        at["prompt"].wrong("is empty; a reply's tokens follow at least one prompt token")
    return Tokens.of(prompt, ids, logprobs, starts, at.get("temperature", 1.0).number(0))
