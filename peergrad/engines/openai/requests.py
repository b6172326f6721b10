"""A request as a server takes it. Servers differ in what they take; a field that one refuses is not sent to it again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from typing import Any

from peergrad.debate.errors import UserError
from peergrad.debate.types import Ask
from peergrad.engines.base import no_logprobs, seed_of
from peergrad.engines.openai.errors import RejectedRequest

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
STOPS = {"stop", *_KEEP_STOP}
_OPTIONAL = {"max_tokens", "temperature", "seed", "stream_options", *STOPS}
_TOP, _FEWER = 20, 5  # likeliest tokens asked for, and from servers that do not give so many
_TINY = 0.001  # a temperature for servers that call 0 no temperature
# Words of a server that takes such a field, but not this value.
_OTHER_VALUE = re.compile(
    r"must be|should be|strictly|positive|greater than|less than|at (?:most|least)|between|range|m(?:in|ax)imum",
    re.IGNORECASE,
)


def request_body(
    ask: Ask,
    model: str,
    seed: int,
    refused: Set[str],
    *,
    temperature: bool,
    tokens: bool = False,
    stream: bool = False,
    likeliest: bool = False,
) -> dict[str, Any]:
    """The body of a request to a server that refused some fields. ``likeliest``: with the likeliest tokens of each place.

    Messages are sent as they are in the ask, so that what was said before stays a prefix.
    """
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": message.role, "content": message.text} for message in ask.messages],
        "max_completion_tokens" if "max_tokens" in refused else "max_tokens": ask.max_tokens,
        "seed": seed_of(ask, seed),
    }
    if ask.stop:
        body |= {"stop": list(ask.stop)} | _KEEP_STOP
    if tokens:
        body |= _TOKENS
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    body = {name: value for name, value in body.items() if name not in refused}
    if likeliest:
        body |= {"logprobs": True, "top_logprobs": _FEWER if "top_logprobs" in refused else _TOP}
    if temperature:
        body["temperature"] = max(ask.temperature, _TINY if "temperature" in refused else 0.0)
    return body


def refused_fields(body: Mapping[str, Any], rejected: RejectedRequest) -> set[str]:
    """The fields of a request that a server refused and that can be left out, or be sent in another way.

    Raises ``UserError`` where that would not be what was asked for.
    """
    named = {name for name in body if name in rejected.params or _names(rejected.diagnosis, name)}
    if "temperature" in named:
        _check_temperature(body["temperature"], rejected)
    if "top_logprobs" in body and ("logprobs" in rejected.diagnosis or named & {"logprobs", "top_logprobs"}):
        if body["top_logprobs"] == _FEWER or not _OTHER_VALUE.search(rejected.diagnosis):
            raise no_logprobs("this server", f" ({rejected})")
        return {"top_logprobs"}
    if named & _TOKENS.keys():
        raise UserError(f"tokens: this server gives no token ids and log-probabilities ({rejected}); leave tokens out")
    if named & _KEEP_STOP.keys():
        named = (named - {"stop"}) | _KEEP_STOP.keys()
    elif "stop" in named:
        named |= STOPS
    return named & _OPTIONAL


def _check_temperature(temperature: float, rejected: RejectedRequest) -> None:
    """Only a temperature of 0 may be sent as another. Any other is the person's to change."""
    if not _OTHER_VALUE.search(rejected.diagnosis):
        raise UserError(f"send_temperature: this model takes no temperature but its own ({rejected}); set it to false")
    if temperature > 0:
        raise UserError(f"temperature: this model does not take {temperature:g} ({rejected}); give one that it takes")


def _names(message: str, field: str) -> bool:
    """Whether a server's message names a field: quoted, or after a colon."""
    return re.search(rf"(?:['\"`]|: ?){re.escape(field)}\b", message) is not None
