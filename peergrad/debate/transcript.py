"""The transcript format: one debate, one line of JSON (docs/reference/transcript.md).

Lossless: loading what was dumped gives an equal debate. What an agent was shown, and its prompt's tokens, are written once:
a dialogue that continues an earlier turn's names that turn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal, cast, get_args, get_origin

import numpy as np

from peergrad.debate.ballot import Ballot
from peergrad.debate.errors import UserError
from peergrad.debate.fields import Field, nearest, open_plain
from peergrad.debate.personas import Persona
from peergrad.debate.prompts import Texts
from peergrad.debate.protocol import MAX_AGENTS, BaseProtocol, Recorded, imported_protocol
from peergrad.debate.protocols import PROTOCOLS, Parallel
from peergrad.debate.question import OPEN, STYLES, Question, Style, frozen, own_styles
from peergrad.debate.saved_turn import load_turn
from peergrad.debate.settings import hints, is_import_path
from peergrad.debate.types import Debate, Message, Tokens, Turn

_TOKENS = b'"tokens": {'  # within text, quotes are escaped, so that no text can look like this


def dump(debate: Debate, *, thin: bool = False) -> str:
    """One line of JSON. ``thin`` leaves out prompts and tokens, but says how many there were; what rewards are computed
    from is always kept (SPEC 8.5).
    """
    question = debate.question
    line: dict[str, Any] = {"id": debate.id, "question": question.text}
    if question.id != debate.id:
        line["question_id"] = question.id
    if question.answer is not None:
        line["answer"] = question.answer
    if question.style != OPEN:
        line["style"] = question.style.name
    if question.dataset:
        line["dataset"] = question.dataset
    if question.payload is not None:
        line["payload"] = question.payload
    protocol = debate.protocol
    settings = asdict(cast("Any", protocol))
    line["agents"] = settings.pop("agents")
    line["protocol"] = protocol.name
    newer = ["temperature"] if isinstance(protocol, Parallel) else ["wording"] if isinstance(protocol, Ballot) else []
    for name in ("prompts", "end_early", "extra_rounds", "agents_min", *newer):  # as older lines, which do not have them
        if name in settings and settings[name] == protocol.__dataclass_fields__[name].default:
            settings.pop(name)
    line["settings"] = protocol.settings if isinstance(protocol, Recorded) else settings
    if protocol.name not in PROTOCOLS:
        try:
            frozen(settings)
        except UserError as error:
            why = str(error).removeprefix("payload: ")
            raise UserError(f"protocol: {protocol.name} has a setting that can't be saved: {why}") from None
    line["turns"] = [_dump_turn(debate, turn, index, thin) for index, turn in enumerate(debate.turns)]
    if debate.verdict:
        line["verdict"] = _dump_turn(debate, debate.verdict, len(debate.turns), thin)
    text = json.dumps(line, ensure_ascii=False, allow_nan=False, default=dict)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair in model text: escape, so that the file stays UTF-8
        text = json.dumps(line, ensure_ascii=True, allow_nan=False, default=dict)
    return text


def load(line: str | bytes, where: str = "transcript", *, thin: bool = False) -> Debate:
    """A debate from one line. Raises ``UserError`` naming ``where`` and the field. Unknown fields are passed over.

    ``thin`` passes over prompts and tokens too, which is many times faster; rewards need neither.
    """
    at = _parse_thin(line, where) if thin else Field.parse(line, where)
    protocol = at["protocol"]
    if not isinstance(protocol.value, str) or not is_import_path(protocol.value):
        protocol.one_of(tuple(PROTOCOLS))
    agents = at["agents"].whole(1, MAX_AGENTS)
    name = at["id"].text()
    question = _load_question(at, name)
    lines = list(at["turns"])
    # A line without settings says nothing of the limit: what was played is what there was to play.
    protocol = _load_protocol(at, agents, max_rounds=max(1, -(-len(lines) // agents)))
    turns: list[Turn] = []
    spoken: set[tuple[int, int]] = set()
    for line_ in lines:
        agent = line_.object()["agent"].whole(0, agents - 1, f": this debate has {agents} agents, counted from 0")
        turn = load_turn(line_, turns, agent, protocol, thin)
        if (turn.round, agent) in spoken:
            line_["agent"].wrong(f"agent {agent} has already spoken in round {turn.round + 1}; each speaks once a round")
        spoken.add((turn.round, agent))
        turns.append(turn)
    verdict = load_turn(at["verdict"].object(), turns, agents, protocol, thin) if "verdict" in at else None
    return Debate(name, question, protocol, tuple(turns), verdict)


def _load_question(at: Field, name: str) -> Question:
    style = at.get("style", OPEN.name).text()
    try:
        payload = frozen(at.get("payload", None).value)
    except UserError as error:
        raise UserError(f"{at.where}, {error}") from None
    return Question(
        id=at.get("question_id", name).text(),
        text=at["question"].text(),
        answer=None if at.get("answer", None).value is None else at["answer"].text(),
        style=STYLES.get(style) or own_styles.get(style) or Style(style),  # of nobody here: answers can't be compared
        dataset=at.get("dataset", "").text(),
        payload=payload,
    )


def read_file(path: Path | str, *, thin: bool = False) -> Iterator[Debate]:
    """The debates of a transcript file, one per line; blank lines are passed over. ``thin`` as for ``load``."""
    try:
        with open_plain(Path(path)) as file:
            for number, line in enumerate(file, 1):
                line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                if line and not line.isspace():
                    yield load(line, f"{path}, line {number}", thin=thin)
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror}); give the path of a transcript file") from None


def _parse_thin(line: str | bytes, where: str) -> Field:
    try:
        if isinstance(line, bytes) and b'"payload"' not in line:  # where tokens may be anything
            return Field.parse(replace_tokens(line, lambda _: b""), where)
        return Field.parse(line, where)
    except UserError:
        return Field.parse(line, where)  # says where in the line as it is


def replace_tokens(line: bytes, by: Callable[[bytes], bytes | None]) -> bytes:
    """The line with something else in place of what its tokens hold, where ``by`` gives it: most of the line would only be
    read to be thrown away. Linear in its length.
    """
    parts: list[bytes] = []
    done = at = 0
    while (start := line.find(_TOKENS, at)) >= 0 and (end := line.find(b"}", start)) >= 0:
        held = line[start + len(_TOKENS) : end]
        # Then the bracket is in no text and closes what was opened.
        whole = b"{" not in held and b"\\" not in held and held.count(b'"') % 2 == 0
        if whole and (new := by(held)) is not None:
            parts += [line[done : start + len(_TOKENS)], new]
            done = end
        at = end
    return b"".join([*parts, line[done:]])


def _dump_turn(debate: Debate, turn: Turn, index: int, thin: bool) -> dict[str, Any]:
    line: dict[str, Any] = {"agent": turn.agent, "text": turn.text, "seen": turn.seen}
    line["since"] = turn.since
    if turn.truncated:
        line["truncated"] = True
    if turn.parsed.error:
        line["error"] = str(turn.parsed.error)
    else:
        line["sections"] = {section.name: section.inner for section in turn.parsed.sections}
    if turn.by:
        line["by"] = turn.by
    line |= _dump_asked(debate, turn, index)
    usage = turn.used if thin else turn.usage
    if usage:
        line["usage"] = asdict(usage)
    if thin:
        return line
    before = next((i for i in range(index - 1, -1, -1) if debate.turns[i].agent == turn.agent), None)
    if turn.asked:
        line["asked"] = _dump_messages(debate, turn.asked, before)
    if turn.tokens:
        line["tokens"] = _dump_tokens(debate, turn.tokens, before)
    return line


def _dump_asked(debate: Debate, turn: Turn, index: int) -> dict[str, Any]:
    """What does not follow from the protocol's name: of a built-in one little, of others all that was read."""
    if turn.agent == debate.protocol.agents:  # a judge
        return {}
    line: dict[str, Any] = {}
    if turn.round != index // debate.protocol.agents:
        line["round"] = turn.round
    if turn.candidates:
        line["candidates"] = turn.candidates
    if turn.chosen != debate.protocol.chooses(turn.contract):
        line["chosen"] = turn.chosen
    built_in = debate.protocol.name in PROTOCOLS
    if not built_in or turn.contract != debate.protocol.contract:
        line["contract"] = turn.contract and turn.contract.names
    if not built_in and not turn.parsed.error:
        line |= {"votes": turn.parsed.votes, "malformed": turn.parsed.malformed, "consensus": turn.parsed.consensus}
        line |= {"tolerated": True} if turn.parsed.tolerated else {}
    return line


def _dump_messages(debate: Debate, asked: tuple[Message, ...], before: int | None) -> list[dict[str, Any]]:
    if before is not None and (shown := debate.turns[before].dialogue) and asked[: len(shown)] == shown:
        return [{"continues": before}, *_dump_messages(debate, asked[len(shown) :], None)]
    return [
        {"role": message.role, "text": message.text}
        | ({"tokens": _dump_tokens(debate, message.tokens, None)} if message.tokens else {})
        for message in asked
    ]


def _dump_tokens(debate: Debate, tokens: Tokens, before: int | None) -> dict[str, Any]:
    earlier = debate.turns[before].tokens if before is not None else None
    prompt_T = tokens.prompt_T
    line: dict[str, Any] = {}
    if earlier is not None:
        held_T = np.concatenate((earlier.prompt_T, earlier.ids_T))
        if len(held_T) <= len(prompt_T) and np.array_equal(prompt_T[: len(held_T)], held_T):
            line["continues"] = before
            prompt_T = prompt_T[len(held_T) :]
    return line | {
        "prompt": prompt_T.tolist(),
        "ids": tokens.ids_T.tolist(),
        "logprobs": [float(str(logprob)) for logprob in tokens.logprobs_T],  # the shortest text that is this float32
        "starts": tokens.starts_T.tolist(),
        "temperature": tokens.temperature,
    }


def _load_protocol(at: Field, agents: int, max_rounds: int) -> BaseProtocol:
    name, settings = at["protocol"].value, at.get("settings", {})
    if name in PROTOCOLS:
        return _built_in(settings, PROTOCOLS[name], agents, max_rounds)
    raw: dict[str, Any] = {one: settings[one].value for one in settings.names()}
    kind = imported_protocol(name)
    if kind is None:
        return Recorded(agents=agents, protocol=name, settings=raw)
    values = _before(kind, max_rounds) | {one: _frozen(value) for one, value in raw.items()}
    if issubclass(kind, Parallel) and "personas" in settings:
        values["personas"] = _load_personas(settings["personas"])
    try:
        return cast("Any", kind)(agents=agents, **values)
    except Exception as error:  # it is somebody's code
        settings.wrong(f"do not fit the protocol {name} ({error})")


def _before(kind: type[BaseProtocol], max_rounds: int) -> dict[str, Any]:
    """What a line means that was written before there were such settings, or by hand."""
    built_in = next((one for one in PROTOCOLS.values() if issubclass(kind, one)), BaseProtocol)
    known = {field.name for field in fields(built_in)}
    before = {"max_rounds": max_rounds, "reading": "strict", "order_shown": "seat"}
    return {name: value for name, value in before.items() if name in known}


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, cast("list[Any]", value))) if isinstance(value, list) else value


def _built_in(at: Field, kind: type[BaseProtocol], agents: int, max_rounds: int) -> BaseProtocol:
    known = tuple(field.name for field in fields(kind) if field.name != "agents")
    settings = _before(kind, max_rounds)
    types = hints(kind)
    for name in at.names():
        if name not in known:
            at[name].wrong(f"no such setting; {nearest(name, known)}")
        settings[name] = _load_setting(at[name], types[name])
    try:
        return kind(agents=agents, **settings)
    except UserError as error:
        raise UserError(f"{at.where}, {at.path}.{error}") from None


def _load_setting(at: Field, kind: Any) -> Any:
    if get_origin(kind) is Literal:
        return at.one_of(get_args(kind))
    if kind is float:
        return at.number(0)
    if kind in (int, bool):
        return at.flag() if kind is bool else at.whole(-1)
    if kind == Texts:
        if any(len(pair.items()) != 2 for pair in at):
            at.wrong("are pairs of a name and a text")
        return tuple((name.text(), text.text()) for name, text in map(tuple, at))
    return _load_personas(at)


def _load_personas(at: Field) -> tuple[Persona, ...]:
    personas = tuple(Persona(p.object()["name"].text(), p["style"].text(), p["temperature"].number(0)) for p in at)
    return personas or at.wrong("at least one is needed; leave it out for the five built-in ones")
