"""Reading what a server answers (SPEC 1, 3.11, 6.7). The body is the world's: nothing in it is taken on trust."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from peergrad.debate.types import Ask, Reply, Tokens, Usage, only_text
from peergrad.engines.openai.errors import ErrorResponse, RetryableError
from peergrad.engines.shared.decode import decode

_BROKEN = ("error", "abort")  # finish reasons of a server that gave up


@dataclass
class Completion:
    """What came of one request, gathered from its body or from the pieces of a stream."""

    content: list[str] = field(default_factory=list)
    refusal: list[str] = field(default_factory=list)
    answered: bool = False
    finish: str | None = None
    stop_text: str | None = None
    """The stop text that ended it, from servers that say so: vLLM and SGLang."""
    names_stop: bool = False
    """Whether the server would say so."""
    reasoned: bool = False
    """Whether reasoning was given apart."""
    usage: Usage | None = None
    prompt: list[int] | None = None
    ids: list[int] = field(default_factory=list)
    sampled: list[tuple[float, bytes]] = field(default_factory=list)
    """Log-probability and bytes of each token."""

    @property
    def text(self) -> str:
        """The words that are for others: its content, or else its refusal; never reasoning given apart."""
        return "".join(self.content) or "".join(self.refusal)

    def add(self, body: object) -> str:
        """Take in a body, or the next piece of a stream, and give the text it adds. Raises ``RetryableError`` if broken."""
        top = _object(body, "the body")
        if (error := top.get("error")) and isinstance(error, Mapping | str):
            raise ErrorResponse.within(cast("object", error))
        self.usage = _usage(top.get("usage")) or self.usage
        self.prompt = _ids(top.get("prompt_token_ids")) or self.prompt
        for choice in _list(top.get("choices")):
            choice = _object(choice, "a choice")
            if choice.get("index") in (0, None):  # of several choices the first is the answer
                self.answered = True
                return self._take(choice)
        return ""

    def _take(self, choice: Mapping[str, Any]) -> str:
        if isinstance(finish := choice.get("finish_reason"), str):
            self.finish = finish
        for name in ("stop_reason", "matched_stop"):
            if name in choice:  # null, a token's id or a stop text; other servers say other things by the same name
                self.names_stop = choice[name] is None or type(choice[name]) is int
                self.stop_text = choice[name] if isinstance(choice[name], str) else None
        self.prompt = _ids(choice.get("prompt_token_ids")) or self.prompt
        self.ids += _ids(choice.get("token_ids")) or []
        self.sampled += _sampled(choice.get("logprobs"))
        message = choice.get("message") or choice.get("delta")
        if not isinstance(message, Mapping):
            return ""
        message = cast("Mapping[str, Any]", message)
        self.reasoned |= any(message.get(name) for name in ("reasoning", "reasoning_content"))
        content, refusal = _text(message.get("content")), _text(message.get("refusal"))
        self.content += [content] if content else []
        self.refusal += [refusal] if refusal else []
        return content if self.content else refusal

    def whole(self, *, stream: bool) -> Completion:
        """Itself, if it is a whole answer; else ``RetryableError`` is raised."""
        if not self.answered:
            raise RetryableError("an answer without choices", wrong_server=True)
        if self.finish in _BROKEN:
            raise RetryableError(f"the server gave up (finish_reason {self.finish})")
        if stream and self.finish is None:
            raise RetryableError("the stream ended before the answer did")
        return self


def reply(completion: Completion, ask: Ask, text: str, *, truncated: bool, tokens: bool) -> Reply:
    """The reply, with its tokens if all that training needs is there and belongs to this very text."""
    return Reply(text, truncated, _tokens(completion, ask, only_text(text)) if tokens else None, completion.usage)


def cut(text: str, stops: Sequence[str], start: int = 0) -> str | None:
    """The text up to the end of the first stop text in it, if there is one at or after ``start``."""
    ends = [at + len(stop) for stop in stops if (at := text.find(stop, start)) >= 0]
    return text[: min(ends)] if ends else None


def open_section(text: str, stop: str) -> bool:
    """Whether the text ends within the section that the stop text, a closing tag, would close."""
    return stop.startswith("</") and text.rfind(f"<{stop[2:]}") > text.rfind(stop)


def _tokens(completion: Completion, ask: Ask, text: str) -> Tokens | None:
    if not completion.prompt or not completion.ids or len(completion.ids) != len(completion.sampled):
        return None
    spelt, starts = decode([piece for _, piece in completion.sampled])
    # What the last token says beyond the text (an end of turn, the rest after a stop text) is not part of the reply.
    if not spelt.startswith(text) or starts[-1] > len(text.encode()):
        return None
    return Tokens.of(
        completion.prompt, completion.ids, [logprob for logprob, _ in completion.sampled], starts, ask.temperature
    )


def _text(content: object) -> str:
    if isinstance(content, list):
        parts = [cast("Mapping[str, Any]", part) for part in cast("list[object]", content) if isinstance(part, Mapping)]
        return "".join(str(part.get("text", "")) for part in parts if part.get("type") == "text")
    return content if isinstance(content, str) else ""


def _usage(value: object) -> Usage | None:
    if not isinstance(value, Mapping):
        return None
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    prompt, sampled, total = (_tally(cast("Mapping[str, Any]", value).get(name)) for name in names)
    if prompt is None and sampled is not None and total is not None:
        prompt = _tally(total - sampled)
    if sampled is None and prompt is not None and total is not None:
        sampled = _tally(total - prompt)
    return None if prompt is None or sampled is None else Usage(prompt, sampled)


def _tally(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 2**40 else None


def _ids(value: object) -> list[int] | None:
    if not isinstance(value, list) or not all(type(id) is int and 0 <= id < 2**31 for id in cast("list[object]", value)):
        return None
    return cast("list[int]", value)


def _sampled(value: object) -> list[tuple[float, bytes]]:
    tokens: list[tuple[float, bytes]] = []
    for entry in _list(cast("Mapping[str, Any]", value).get("content")) if isinstance(value, Mapping) else []:
        token = cast("Mapping[str, Any]", entry) if isinstance(entry, Mapping) else {}
        logprob, piece = token.get("logprob"), token.get("bytes")
        if not isinstance(logprob, int | float) or not math.isfinite(logprob) or not isinstance(piece, list):
            return []
        if not all(type(byte) is int and 0 <= byte < 256 for byte in cast("list[object]", piece)):
            return []
        tokens.append((float(logprob), bytes(cast("list[int]", piece))))
    return tokens


def _list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _object(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise RetryableError(f"{what} is no JSON object", wrong_server=True)
    return cast("Mapping[str, Any]", value)
