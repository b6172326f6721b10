"""What travels: requests read and checked, results written. Whoever sends them may send anything.

Requests are JSON, but for training data; results of sampling and training are protobuf messages of the tinker package.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from tinker.proto import tinker_public_pb2 as pb

from peergrad.debate.errors import UserError
from peergrad.debate.fields import Field, nearest
from peergrad.debate.types import Floats, Ids
from peergrad.engines.local.backward import Gradient
from peergrad.engines.local.engine import AdamRules
from peergrad.engines.local.sampler import Sampled, Start
from peergrad.learn.datums import Datum
from peergrad.learn.losses import LossName

PROTOBUF = "application/x-protobuf"
MOST_SAMPLES = 1024
_MOST_STOPS = 64
# What each loss is given besides its targets, and the bounds of its ratios.
_INPUTS: dict[LossName, tuple[str, ...]] = {
    "cross_entropy": ("weights",),
    "importance_sampling": ("logprobs", "advantages"),
    "ppo": ("logprobs", "advantages"),
    "cispo": ("logprobs", "advantages"),
}
_BOUNDS = {"ppo": (0.8, 1.2), "cispo": (0.0, 4.0)}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_PATH = re.compile(
    r"tinker://([A-Za-z0-9][A-Za-z0-9_.-]{0,127})/(weights|sampler_weights)/([A-Za-z0-9][A-Za-z0-9_.-]{0,127})"
)


class Missing(UserError):  # noqa: N818
    """There is no such thing here."""


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to a request, as it is sent."""

    body: bytes
    media: str = "application/json"

    @staticmethod
    def json(**fields: Any) -> Result:
        return Result(json.dumps(fields).encode())


@dataclass(frozen=True, slots=True)
class Limits:
    """What a model can take."""

    vocabulary: int
    context: int


@dataclass(frozen=True, slots=True, eq=False)
class Lesson:
    """Training data, and what is made of it."""

    data: list[Datum]
    loss: LossName


@dataclass(frozen=True, slots=True, eq=False)
class Wish:
    """A request to sample, and how many of the prompt's last tokens are to be scored."""

    sampler: str
    number: int
    starts: list[Start]
    scored: int


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


def _scored(request: Field, tokens: int) -> int:
    if not request.get("prompt_logprobs", None).value:
        return 0
    last = request.get("prompt_logprobs_last_n", None)
    return tokens - 1 if last.value is None else last.whole(1, max(1, tokens - 1))


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


def training(body: bytes) -> pb.ForwardBackwardRequest:
    """A request to compute a loss, as it was sent."""
    request = pb.ForwardBackwardRequest()
    try:
        request.ParseFromString(body)
    except DecodeError as error:
        raise UserError(f"the request is no ForwardBackwardRequest ({error})") from None
    return request


def lesson(request: pb.ForwardBackwardRequest, limits: Limits) -> Lesson:
    """What it asks for, checked."""
    loss: LossName | None = next((known for known in _INPUTS if known == request.loss_fn), None)
    if loss is None:
        raise UserError(f"loss_fn: {request.loss_fn!r} is not known here; {nearest(request.loss_fn, tuple(_INPUTS))}")
    low, high = _BOUNDS.get(loss, (None, None))
    config = {key: value.number for key, value in request.loss_fn_config_v2.items()} or dict(request.loss_fn_config)
    for key, value in config.items():
        bound = {"clip_low_threshold": low, "clip_high_threshold": high}.get(key)
        if bound is None or abs(bound - value) > 1e-6:
            takes = f"this server has {bound} for {loss}" if bound is not None else f"{loss} takes no such setting here"
            raise UserError(f"loss_fn_config, {key}: {value} is not possible; {takes}")
    if not request.data:
        raise UserError("data: is empty")
    data = [_datum(one, f"data[{i}]", loss, limits, request.forward_only) for i, one in enumerate(request.data)]
    return Lesson(data, loss)


def _datum(sent: pb.Datum, where: str, loss: LossName, limits: Limits, forward_only: bool) -> Datum:
    parts: list[np.ndarray] = []
    for chunk in sent.model_input:
        if not chunk.HasField("encoded_text"):
            raise UserError(f"{where}.model_input: this server reads text alone; send chunks of encoded_text")
        parts.append(_numbers(chunk.encoded_text.tokens, np.dtype("<i4"), f"{where}.model_input"))
    inputs_T = np.concatenate(parts) if parts else np.zeros(0, np.int32)
    size, inputs = len(inputs_T), sent.loss_fn_inputs
    if not 1 <= size <= limits.context:
        raise UserError(f"{where}.model_input: has {size} tokens; give 1 to {limits.context}, the context")
    for unknown in set(inputs) - {"target_tokens", *_INPUTS[loss]}:
        raise UserError(f"{where}.loss_fn_inputs.{unknown}: {loss} takes no such input")
    targets_T = _tensor(inputs, "target_tokens", size, where).astype(np.int64)
    for what, ids_T in (("model_input", inputs_T), ("target_tokens", targets_T)):
        if ids_T.min() < 0 or ids_T.max() >= limits.vocabulary:
            raise UserError(f"{where}.{what}: has a token outside of 0 to {limits.vocabulary - 1}")
    columns = {key: _tensor(inputs, key, size, where).astype(np.float32) for key in _INPUTS[loss]}
    nothing = np.zeros(size, np.float32)
    logprobs_T, advantages_T = columns.get("logprobs", nothing), columns.get("advantages", columns.get("weights", nothing))
    # Where there is nothing to learn nothing is computed, unless the log-probabilities are all that is asked for.
    mask_T = np.full(size, forward_only) | (advantages_T != 0) | (logprobs_T != 0)
    return Datum(
        debate="",
        agent=0,
        turns=(),
        inputs_T=inputs_T.astype(np.int32),
        targets_T=targets_T.astype(np.int32),
        logprobs_T=logprobs_T,
        advantages_T=advantages_T,
        mask_T=mask_T.astype(np.float32),
        temperatures_T=np.ones(size, np.float32),
    )


_DTYPES = {pb.DTYPE_FLOAT32: np.dtype("<f4"), pb.DTYPE_INT64: np.dtype("<i8"), pb.DTYPE_INT32: np.dtype("<i4")}


def _tensor(inputs: Any, key: str, size: int, where: str) -> np.ndarray:
    where = f"{where}.loss_fn_inputs.{key}"
    if key not in inputs:
        raise UserError(f"{where}: is missing")
    sent = inputs[key]
    if sent.HasField("sparse_csr") or sent.dtype not in _DTYPES:
        raise UserError(f"{where}: must be dense, of float32 or int64")
    made = _numbers(sent.dense, _DTYPES[sent.dtype], where)
    if len(made) != size or (list(sent.shape) not in ([], [size])):
        raise UserError(f"{where}: has {len(made)} entries of shape {list(sent.shape)}; give one per token, {size}")
    if not np.isfinite(made).all():
        raise UserError(f"{where}: has an entry that is not finite")
    if key == "target_tokens" and made.dtype.kind != "i":
        raise UserError(f"{where}: must be of int64")
    return made


def _numbers(raw: bytes, dtype: np.dtype[Any], where: str) -> np.ndarray:
    if len(raw) % dtype.itemsize:
        raise UserError(f"{where}: its {len(raw)} bytes are no whole numbers of {dtype.itemsize} bytes")
    return np.frombuffer(raw, dtype)


def taught(made: Gradient) -> Result:
    """The loss, and the log-probabilities of the targets."""
    lengths = np.cumsum([0, *(4 * len(one) for one in made.logprobs)], dtype=np.int64)
    column = pb.BatchedTensor(
        data=np.concatenate(made.logprobs).astype("<f4").tobytes(),
        offsets=lengths.astype("<i8").tobytes(),
        dtype=pb.DTYPE_FLOAT32,
    )
    record = pb.ArrayRecord(type_tag="ArrayRecord", fields={"logprobs": column}, num_datums=len(made.logprobs))
    output = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", loss_fn_outputs=[record])
    output.metrics["loss:sum"] = made.loss
    return Result(output.SerializeToString(), PROTOBUF)


def sampled(made: Sequence[Sampled], prompt_T: Ids, scores_T: Floats | None, scored: int) -> Result:
    """What was sampled, and the log-probabilities of the prompt if they were asked for."""
    response = pb.SampleResponse()
    for one in made:
        response.sequences.add(
            stop_reason=pb.STOP_REASON_STOP if one.ended else pb.STOP_REASON_LENGTH,
            tokens=np.array(one.ids, "<i4").tobytes(),
            logprobs=np.array(one.logprobs, "<f4").tobytes(),
        )
    if scores_T is not None:
        shown_T = np.full(len(prompt_T), np.nan, "<f4")
        if scored:
            shown_T[-scored:] = scores_T[-scored:]
        response.prompt_logprobs = shown_T.tobytes()
    return Result(response.SerializeToString(), PROTOBUF)
