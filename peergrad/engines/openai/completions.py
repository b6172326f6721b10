"""Reading what a server answers, whole or as it comes in (SPEC 1, 3.11, 6.7). Nothing in it is taken on trust."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from peergrad.debate.quote import only_text
from peergrad.debate.types import Ask, Tokens, Usage
from peergrad.engines.base import OnText, decode
from peergrad.engines.openai.requests import ErrorResponse, RetryableError, objects
from peergrad.engines.shared.servers import Secrets

_BROKEN = ("error", "abort")  # finish reasons of a server that gave up


@dataclass
class Completion:
    """What came of one request, gathered from its body or from the pieces of a stream."""

    content: list[str] = field(default_factory=list)  # in pieces: joining each to the others takes quadratic time
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
    likeliest: list[tuple[float, str]] = field(default_factory=list)
    """Log-probability and text of the likeliest tokens at the first place, from servers that were asked for them."""

    @property
    def text(self) -> str:
        """The words that are for others: its content, or else its refusal; never reasoning given apart."""
        return "".join(self.content) or "".join(self.refusal)

    def add(self, body: object) -> str:
        """Take in a body, or the next piece of a stream, and give the text it adds. Raises ``RetryableError`` if broken."""
        if not isinstance(body, Mapping):
            raise RetryableError("the body is no JSON object", wrong_server=True)
        if (error := body.get("error")) and isinstance(error, Mapping | str):
            raise ErrorResponse.within(error)
        self.usage = _usage(body.get("usage")) or self.usage
        self.prompt = _ids(body.get("prompt_token_ids")) or self.prompt
        for choice in objects(body.get("choices")):
            if choice.get("index") in (0, None):  # of several choices the first is the answer
                self.answered = True
                return self._add_choice(choice)
        return ""

    def _add_choice(self, choice: Mapping[str, Any]) -> str:
        if isinstance(finish := choice.get("finish_reason"), str):
            self.finish = finish
        for name in ("stop_reason", "matched_stop"):
            if name in choice:  # null, a token's id or a stop text; other servers say other things by the same name
                self.names_stop = choice[name] is None or type(choice[name]) is int
                self.stop_text = choice[name] if isinstance(choice[name], str) else None
        self.prompt = _ids(choice.get("prompt_token_ids")) or self.prompt
        self.ids += _ids(choice.get("token_ids")) or []
        self.sampled += _sampled(choice.get("logprobs"))
        self.likeliest = self.likeliest or _likeliest(choice.get("logprobs"))
        message = choice.get("message") or choice.get("delta")
        if not isinstance(message, Mapping):
            return ""
        self.reasoned |= any(message.get(name) for name in ("reasoning", "reasoning_content"))
        content, refusal = _text(message.get("content")), _text(message.get("refusal"))
        self.content += [content] if content else []
        self.refusal += [refusal] if refusal else []
        return content if self.content else refusal

    def check_whole(self, *, stream: bool) -> None:
        """Raise ``RetryableError`` unless this is a whole answer."""
        if not self.answered:
            raise RetryableError("an answer without choices", wrong_server=True)
        if self.finish in _BROKEN:
            raise RetryableError(f"the server gave up (finish_reason {self.finish})")
        if stream and self.finish is None:
            raise RetryableError("the stream ended before the answer did")

    def tokens(self, ask: Ask, text: str) -> Tokens | None:
        """The tokens of the reply, if all that training needs is there and belongs to this very text."""
        if not self.prompt or not self.ids or len(self.ids) != len(self.sampled):
            return None
        spelt, starts = decode([piece for _, piece in self.sampled])
        # What the last token says beyond the text (an end of turn, the rest after a stop text) is not part of the reply.
        if not spelt.startswith(text) or starts[-1] > len(text.encode()):
            return None
        return Tokens.of(self.prompt, self.ids, [logprob for logprob, _ in self.sampled], starts, ask.temperature)

    def likely(self, options: Sequence[str]) -> list[float]:
        """How likely each option is, by the likeliest first tokens: those that begin it, or are it and a sign after it.

        So ``" Yes"``, ``"Y"`` and ``"Yes,"`` count for Yes, but ``"Answer"`` does not count for A.
        """
        tokens = [(math.exp(min(0.0, logprob)), text.lstrip()) for logprob, text in self.likeliest]
        return [sum(share for share, text in tokens if text and _begins(text, option)) for option in options]


def _begins(text: str, option: str) -> bool:
    rest = text.removeprefix(option)
    return option.startswith(text) or (rest != text and not rest[0].isalnum())


class ListenerError(Exception):
    """The listener failed, not the server. Its cause is what it raised."""


class ReplyStream:
    """The reply to one ask, on its way to a listener. In the end the pieces since the last ``None`` are exactly its text."""

    def __init__(self, ask: Ask, on_text: OnText, secrets: Secrets) -> None:
        self._ask, self._on_text, self._secrets = ask, on_text, secrets
        self._reach = max(map(len, ask.stop), default=1) - 1  # how far back a stop text may have begun
        self._sent: list[str] = []
        self._held = ""  # may turn out to be a secret
        self._tail = ""  # the end of what was sent
        self._stopped = False

    def add(self, piece: str) -> None:
        """Pass the next piece on, but for what comes after a stop text and what may turn out to be a secret."""
        if self._stopped or not piece:
            return
        text = self._secrets.hide(self._held + piece)
        end = len(text) - self._secrets.secret_start(text)
        text, self._held = text[:end], text[end:]
        seen = self._tail + text
        until_stop = cut(seen, self._ask.stop)
        self._stopped = until_stop is not None
        self._send((until_stop or seen)[len(self._tail) :])
        self._tail = seen[max(0, len(seen) - self._reach) :]

    def finish(self, text: str) -> None:
        """The whole reply is there."""
        if not text.startswith("".join(self._sent)):
            self.restart()
        self._send(text[len("".join(self._sent)) :])

    def restart(self) -> None:
        """Another attempt is made: what was sent is void."""
        sent, self._sent = self._sent, []
        self._held, self._tail, self._stopped = "", "", False
        if sent:
            self._call(None)

    def _send(self, text: str) -> None:
        if text:
            self._sent.append(only_text(text))
            self._call(self._sent[-1])

    def _call(self, piece: str | None) -> None:
        try:
            self._on_text(self._ask, piece)
        except Exception as error:
            raise ListenerError from error


def cut(text: str, stops: Sequence[str]) -> str | None:
    """The text up to the end of the first stop text in it, if there is one."""
    ends = [at + len(stop) for stop in stops if (at := text.find(stop)) >= 0]
    return text[: min(ends)] if ends else None


def open_section(text: str, stop: str) -> bool:
    """Whether the text ends within the section that the stop text, a closing tag, would close."""
    return stop.startswith("</") and text.rfind(f"<{stop[2:]}") > text.rfind(stop)


def _text(content: object) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in objects(content) if part.get("type") == "text")
    return content if isinstance(content, str) else ""


def _usage(value: object) -> Usage | None:
    if not isinstance(value, Mapping):
        return None
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    prompt, sampled, total = (_count(value.get(name)) for name in names)
    if prompt is None and sampled is not None and total is not None:
        prompt = _count(total - sampled)
    if sampled is None and prompt is not None and total is not None:
        sampled = _count(total - prompt)
    return None if prompt is None or sampled is None else Usage(prompt, sampled)


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 2**40 else None


def _ids(value: object) -> list[int] | None:
    return value if isinstance(value, list) and all(type(id) is int and 0 <= id < 2**31 for id in value) else None


def _sampled(value: object) -> list[tuple[float, bytes]]:
    tokens: list[tuple[float, bytes]] = []
    for token in objects(value.get("content")) if isinstance(value, Mapping) else []:
        logprob, piece = token.get("logprob"), token.get("bytes")
        if not isinstance(logprob, int | float) or not math.isfinite(logprob):
            return []
        if not isinstance(piece, list) or not all(type(byte) is int and 0 <= byte < 256 for byte in piece):
            return []
        tokens.append((float(logprob), bytes(piece)))
    return tokens


def _likeliest(value: object) -> list[tuple[float, str]]:
    first = objects(value.get("content"))[:1] if isinstance(value, Mapping) else []
    tokens = [(token.get("logprob"), token.get("token")) for place in first for token in objects(place.get("top_logprobs"))]
    return [
        (float(logprob), text)
        for logprob, text in tokens
        if isinstance(text, str) and isinstance(logprob, int | float) and math.isfinite(logprob)
    ]
