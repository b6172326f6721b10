"""A request as a server takes it. Servers differ in what they take; a field that one refuses is not sent to it again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from peergrad.debate.errors import UserError
from peergrad.debate.types import Ask
from peergrad.engines.openai.errors import RejectedRequest
from peergrad.engines.shared.sampling import seed_of

_KEEP_STOP = {"include_stop_str_in_output": True, "no_stop_trim": True}  # vLLM's and SGLang's word for the same
# Nothing may stand between the model's distribution and the token drawn but the temperature (SPEC 6.7).
_TOKENS = {
    "logprobs": True,
    "return_token_ids": True,
    "return_prompt_token_ids": True,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
_TINY = 0.001  # a temperature for servers that call 0 no temperature
# Words of a server that takes temperatures, but not this one.
_OTHER_VALUE = re.compile(
    r"must be|should be|strictly|positive|greater than|less than|at (?:most|least)|between|range|m(?:in|ax)imum",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class ServerFields:
    """The fields of a request that a server is known to take."""

    limit: str = "max_tokens"
    seed: bool = True
    stop: bool = True
    keep_stop: bool = True
    stream_usage: bool = True
    least_temperature: float = 0.0

    def request(self, ask: Ask, model: str, seed: int, *, temperature: bool, tokens: bool, stream: bool) -> dict[str, Any]:
        """The body of a request. Messages are sent as they are in the ask, so that what was said before stays a prefix."""
        body: dict[str, Any] = {
            "model": model,
            "messages": [{"role": message.role, "content": message.text} for message in ask.messages],
            self.limit: ask.max_tokens,
        }
        if temperature:
            body["temperature"] = max(ask.temperature, self.least_temperature)
        if self.seed:
            body["seed"] = seed_of(ask, seed)
        if ask.stop and self.stop:
            body["stop"] = list(ask.stop)
            if self.keep_stop:
                body |= _KEEP_STOP
        if tokens:
            body |= _TOKENS
        if stream:
            body["stream"] = True
            if self.stream_usage:
                body["stream_options"] = {"include_usage": True}
        return body

    def without_rejected(self, body: Mapping[str, Any], rejected: RejectedRequest) -> ServerFields | None:
        """The fields without those that a server rejected; ``None`` if it did not name one that can be left out.

        Raises ``UserError`` where leaving it out would not be what was asked for.
        """
        named = {name for name in body if name in rejected.params or _names(rejected.diagnosis, name)}
        fields = self
        if "temperature" in named:
            fields = replace(fields, least_temperature=_least_temperature(body["temperature"], rejected))
        if named & _TOKENS.keys():
            raise UserError(f"tokens: this server gives no token ids and log-probabilities ({rejected}); leave tokens out")
        if "max_tokens" in named:
            fields = replace(fields, limit="max_completion_tokens")
        if "seed" in named:
            fields = replace(fields, seed=False)
        if named & _KEEP_STOP.keys():
            fields = replace(fields, keep_stop=False)
        elif "stop" in named:
            fields = replace(fields, stop=False)
        if "stream_options" in named:
            fields = replace(fields, stream_usage=False)
        return fields if fields != self else None

    def both(self, other: ServerFields) -> ServerFields:
        """What both take: requests under way at the same time may each have met a refusal."""
        return ServerFields(
            limit=max(self.limit, other.limit, key=len),
            seed=self.seed and other.seed,
            stop=self.stop and other.stop,
            keep_stop=self.keep_stop and other.keep_stop,
            stream_usage=self.stream_usage and other.stream_usage,
            least_temperature=max(self.least_temperature, other.least_temperature),
        )


def _least_temperature(temperature: float, rejected: RejectedRequest) -> float:
    """The least temperature of a server that refused 0. Any other is the person's to change."""
    if not _OTHER_VALUE.search(rejected.diagnosis):
        raise UserError(f"send_temperature: this model takes no temperature but its own ({rejected}); set it to false")
    if temperature > 0:
        raise UserError(f"temperature: this model does not take {temperature:g} ({rejected}); give one that it takes")
    return _TINY


def _names(message: str, field: str) -> bool:
    """Whether a server's message names a field: quoted, or after a colon."""
    return re.search(rf"(?:['\"`]|: ?){re.escape(field)}\b", message) is not None
