"""Requests that come as JSON, read and checked. Whoever sends them may send anything."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from peergrad.debate.fields import Field
from peergrad.engines.local.engine import AdamRules
from peergrad.engines.local.sample.sampler import Start
from peergrad.serve.refusals import Missing
from peergrad.serve.store import About

MOST_SAMPLES = 1024
_MOST_STOPS = 64
_MOST_NOTES = 16_384  # characters
_LONGEST_S = 10 * 366 * 24 * 3600  # ten years
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_PATH = re.compile(
    r"tinker://([A-Za-z0-9][A-Za-z0-9_.-]{0,127})/(weights|sampler_weights)/([A-Za-z0-9][A-Za-z0-9_.-]{0,127})"
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a model can take."""

    vocabulary: int
    context: int


@dataclass(frozen=True, slots=True, eq=False)
class Wish:
    """A request to sample, and how many of the prompt's last tokens are to be scored; None: that was not asked for."""

    sampler: str
    number: int
    starts: list[Start]
    scored: int | None


def name(field: Field) -> str:
    """A name that can be a folder's."""
    if not _NAME.fullmatch(field.text()):
        field.wrong(f"{field.shown} is no name; give at most 128 letters, digits, '_', '-' and '.', a letter or digit first")
    return field.text()


def saved(field: Field) -> tuple[str, str, str]:
    """The model, kind and name in the path of a checkpoint."""
    found = _PATH.fullmatch(field.text())
    if not found:
        field.wrong(f"{field.shown} is no checkpoint; give tinker://MODEL/weights/NAME")
    return found[1], found[2], found[3]


def known(base: Field, model: str) -> None:
    """Refuse another model than the one served."""
    if base.text() != model:
        raise Missing(f"there is no model {base.shown} here; this server has {model}")


def about(request: Field, model: str) -> About:
    """What a new policy is to be."""
    known(request["base_model"], model)
    lora = request.get("lora_config", {}).object()
    if request.get("optimizer_config", {}).object().get("type", "adamw").value != "adamw":
        request["optimizer_config"].wrong("this server has Adam alone")
    mlp, attention = (lora.get(part, True).flag() for part in ("train_mlp", "train_attn"))
    if not (mlp or attention):
        lora.wrong("train_mlp and train_attn are both false, which leaves nothing to train")
    return About(model, lora.get("rank", 32).whole(1, 1024), mlp, attention, _notes(request))


def _notes(request: Field) -> dict[str, str]:
    given = request.get("user_metadata", None)
    if given.value is None:
        return {}
    notes = {key: given.get(key).text() for key in given.names()}
    if len(json.dumps(notes)) > _MOST_NOTES:
        given.wrong(f"is too long; give at most {_MOST_NOTES} characters")
    return notes


def seconds(request: Field) -> int | None:
    """How long something is to be kept; None: for ever."""
    ttl = request.get("ttl_seconds", None)
    return None if ttl.value is None else ttl.whole(1, _LONGEST_S)


def adam(request: Field) -> AdamRules:
    """How to make an update; only Adam is there."""
    if "optimizer_params" in request:
        request["optimizer_params"].wrong("this server has Adam alone; send adam_params")
    given = request["adam_params"].object()
    most = given.get("grad_clip_norm", 0.0).number(0)
    betas = [given.get(name, usual).number(0) for name, usual in (("beta1", 0.9), ("beta2", 0.95))]
    if max(betas) >= 1:
        given.wrong("beta1 and beta2 must be below 1")
    return AdamRules(
        lr=given.get("learning_rate", 1e-4).number(0),
        beta1=betas[0],
        beta2=betas[1],
        eps=given.get("eps", 1e-12).number(0),
        weight_decay=given.get("weight_decay", 0.0).number(0),
        **({"max_norm": most} if most else {}),
    )


def wish(request: Field, limits: Limits, ends: frozenset[int], fresh: str) -> Wish:
    """A request to sample. ``fresh`` names the random numbers of one that brings no seed."""
    for unknown in ("topk_prompt_logprobs", "topk_sample_logprobs", "prompt_alt_tokens_k"):
        if request.get(unknown, 0).value:
            request[unknown].wrong("this server gives the log-probabilities of the tokens themselves alone; leave it out")
    if request.get("target_prompt_logprobs", None).value is not None:
        request["target_prompt_logprobs"].wrong("this server does not score other tokens than the prompt's; leave it out")
    tokens = [id for chunk in request["prompt"].object()["chunks"] for id in _text_chunk(chunk, limits.vocabulary)]
    if not 1 <= len(tokens) < limits.context:
        request["prompt"].wrong(f"has {len(tokens)} tokens; give at least 1 and fewer than the context, {limits.context}")
    prompt_T, params = np.array(tokens, np.int32), request["sampling_params"].object()
    if params.get("top_k", -1).value not in (-1, None) or params.get("top_p", 1).value not in (1, None):
        params.wrong("top_k and top_p are not offered: what is trained on must be sampled from the whole distribution")
    stop, token_ends = _stops(params.get("stop", None), ends, limits.vocabulary)
    room = limits.context - len(tokens)
    most, seed = params.get("max_tokens", None), params.get("seed", None)
    wanted = room if most.value is None else min(room, most.whole(1))
    who = fresh if seed.value is None else f"seed {seed.whole(-(2**63), 2**64)}"
    temperature = params.get("temperature", 1.0).number(0)
    starts = [
        Start(prompt_T, wanted, temperature, stop, token_ends, f"{who}\n{index}")
        for index in range(request.get("num_samples", 1).whole(1, MOST_SAMPLES))
    ]
    return Wish(request["sampling_session_id"].text(), request["seq_id"].whole(0), starts, _scored(request, len(tokens)))


def _scored(request: Field, tokens: int) -> int | None:
    if not request.get("prompt_logprobs", None).value:
        return None
    last = request.get("prompt_logprobs_last_n", None)
    return tokens - 1 if last.value is None else min(last.whole(1), tokens - 1)  # nothing comes before the first


def _text_chunk(chunk: Field, vocabulary: int) -> list[int]:
    if chunk.object().get("type", "encoded_text").value != "encoded_text":
        chunk.wrong("this server reads text alone; send chunks of the type encoded_text")
    return chunk["tokens"].wholes(0, vocabulary - 1)


def _stops(given: Field, ends: frozenset[int], vocabulary: int) -> tuple[tuple[str, ...], frozenset[int]]:
    """Texts and tokens that end a reply. None: the model's own; an empty list: nothing, not even those."""
    if given.value is None:
        return (), ends
    if isinstance(given.value, str):
        return _texts([given]), ends
    if not given.items():
        return (), frozenset()
    if len(given.items()) > _MOST_STOPS:
        given.wrong(f"has {len(given.items())} entries; give at most {_MOST_STOPS}")
    if isinstance(given.items()[0], str):
        return _texts(list(given)), ends
    return (), ends | frozenset(given.wholes(0, vocabulary - 1))


def _texts(fields: Sequence[Field]) -> tuple[str, ...]:
    for field in fields:
        if not 1 <= len(field.text()) <= 1000:
            field.wrong("must have 1 to 1000 characters")
    return tuple(field.text().encode("utf-8", "replace").decode() for field in fields)
