"""Messages of the protocol, as JSON or protobuf: requests, parsed and checked, and results; errors by HTTP status.

A client may send anything.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from tinker.proto import tinker_public_pb2 as pb

from peergrad.debate.errors import UserError
from peergrad.debate.fields import Field, nearest
from peergrad.debate.types import Floats, Ids
from peergrad.engines.local.engine import AdamRules
from peergrad.engines.local.model.decoder import Shape
from peergrad.engines.local.sample.sampler import CompletionRequest
from peergrad.engines.local.sample.scheduler import Job
from peergrad.engines.local.train.backward import Gradient
from peergrad.learn.data import Datum
from peergrad.learn.losses import RATIO_BOUNDS, Bounds, LossName

PROTOBUF = "application/x-protobuf"
MAX_SAMPLES = 1024
_MAX_STOPS = 64
_MAX_NOTES = 16_384  # characters
MAX_NUMBER = 2**62  # of a request, a model or a sampler of a session
_MAX_RATIO = 1e6
# The settings of an update: default, least and most. Beyond these a weight could become infinite or no number at all.
_ADAM = {
    "learning_rate": (1e-4, 0.0, 1.0),
    "beta1": (0.9, 0.0, 0.99999),
    "beta2": (0.95, 0.0, 0.99999),
    "eps": (1e-12, 1e-16, 1.0),
    "weight_decay": (0.0, 0.0, 1.0),
    "grad_clip_norm": (0.0, 0.0, 1e30),
}
_MAX_NORM = 1e15  # the squares of a longer gradient are too large for a float; to Adam its length is nothing
# What each loss takes besides its targets.
_INPUTS: dict[LossName, tuple[str, ...]] = {
    "cross_entropy": ("weights",),
    "importance_sampling": ("logprobs", "advantages"),
    "ppo": ("logprobs", "advantages"),
    "cispo": ("logprobs", "advantages"),
}
_THRESHOLDS = ("clip_low_threshold", "clip_high_threshold")
_DTYPES = {pb.DTYPE_FLOAT32: np.dtype("<f4"), pb.DTYPE_INT64: np.dtype("<i8"), pb.DTYPE_INT32: np.dtype("<i4")}


class NotFoundError(UserError):
    """404: there is no such session, model, sampler, checkpoint or request."""


class GoneError(UserError):
    """410: it existed and was removed."""


class BusyError(Exception):
    """429: the server is at a limit; clients retry."""


@dataclass(frozen=True, slots=True)
class Result:
    """A response: its body, media type and HTTP status."""

    body: bytes
    media: str = "application/json"
    status: int = 200

    @staticmethod
    def json(**fields: Any) -> Result:
        return Result(json.dumps(fields).encode())


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The model that a policy or a checkpoint is of."""

    base_model: str
    rank: int
    train_mlp: bool
    train_attn: bool
    notes: dict[str, str] = field(default_factory=dict[str, str], compare=False, repr=False)
    """The client's own metadata."""


@dataclass(frozen=True, slots=True, eq=False)
class SampleRequest:
    """A client's request: several samples of one prompt.

    ``prompt_logprobs`` is how many of the prompt's last tokens to score; None if the client did not ask for scores.
    """

    sampler: str
    number: int
    samples: list[CompletionRequest]
    prompt_logprobs: int | None


def check_base_model(base: Field, model: str) -> None:
    """Refuse another model than the one that is served."""
    if base.text() != model:
        raise NotFoundError(f"there is no model {base.shown} here; this server has {model}")


def model_info(request: Field, model: str) -> ModelInfo:
    """The policy that a request to create one describes."""
    check_base_model(request["base_model"], model)
    lora = request.get("lora_config", {}).object()
    if request.get("optimizer_config", {}).object().get("type", "adamw").value != "adamw":
        request["optimizer_config"].wrong("this server has Adam alone")
    mlp, attention = (lora.get(part, True).flag() for part in ("train_mlp", "train_attn"))
    if not (mlp or attention):
        lora.wrong("train_mlp and train_attn are both false, which leaves nothing to train")
    return ModelInfo(model, lora.get("rank", 32).whole(1, 1024), mlp, attention, _notes(request))


def _notes(request: Field) -> dict[str, str]:
    metadata = request.get("user_metadata", None)
    if metadata.value is None:
        return {}
    notes = {key: metadata.get(key).text() for key in metadata.names()}
    if len(json.dumps(notes)) > _MAX_NOTES:
        metadata.wrong(f"is too long; give at most {_MAX_NOTES} characters")
    return notes


def adam_rules(request: Field) -> AdamRules:
    """The settings of an update."""
    if "optimizer_params" in request:
        request["optimizer_params"].wrong("this server has Adam alone; send adam_params")
    params = request["adam_params"].object()
    numbers: dict[str, float] = {}
    for name, (default, least, most) in _ADAM.items():
        numbers[name] = params.get(name, default).number(least)
        if numbers[name] > most:
            params[name].wrong(f"{params[name].shown} is not possible; give {most:g} or less")
    lr, clip = numbers.pop("learning_rate"), numbers.pop("grad_clip_norm")
    return AdamRules(lr=lr, max_norm=min(clip or math.inf, _MAX_NORM), **numbers)


def sample_request(request: Field, shape: Shape, end_tokens: frozenset[int], *, default_seed: str) -> SampleRequest:
    """A request to sample. ``default_seed`` is used if the client sends none."""
    for unknown in ("topk_prompt_logprobs", "topk_sample_logprobs", "prompt_alt_tokens_k"):
        if request.get(unknown, 0).value:
            request[unknown].wrong("this server gives the log-probabilities of the tokens themselves alone; leave it out")
    if request.get("target_prompt_logprobs", None).value is not None:
        request["target_prompt_logprobs"].wrong("this server does not score other tokens than the prompt's; leave it out")
    prompt_T, params = _prompt(request["prompt"].object(), shape), request["sampling_params"].object()
    if params.get("top_k", -1).value not in (-1, None) or params.get("top_p", 1).value not in (1, None):
        params.wrong("top_k and top_p are not offered: what is trained on must be sampled from the whole distribution")
    stop, end_tokens = _stops(params.get("stop", None), end_tokens, shape.vocabulary)
    limit, seed = params.get("max_tokens", None), params.get("seed", None)
    room = shape.context - len(prompt_T)
    max_tokens = room if limit.value is None else min(room, limit.whole(1, MAX_NUMBER))
    seed_text = default_seed if seed.value is None else f"seed {seed.whole(-(2**63), 2**64)}"
    temperature = params.get("temperature", 1.0).number(0)
    samples = [
        CompletionRequest(prompt_T, max_tokens, temperature, stop, end_tokens, f"{seed_text}\n{index}")
        for index in range(request.get("num_samples", 1).whole(1, MAX_SAMPLES))
    ]
    scored, last = None, request.get("prompt_logprobs_last_n", None)
    if request.get("prompt_logprobs", None).value:
        scored = len(prompt_T) - 1  # the first token has no context
        scored = scored if last.value is None else min(last.whole(1, MAX_NUMBER), scored)
    return SampleRequest(request["sampling_session_id"].text(), request["seq_id"].whole(0, MAX_NUMBER), samples, scored)


def _prompt(prompt: Field, shape: Shape) -> Ids:
    tokens: list[int] = []
    for chunk in prompt["chunks"]:
        if chunk.object().get("type", "encoded_text").value != "encoded_text":
            chunk.wrong("this server reads text alone; send chunks of the type encoded_text")
        tokens += chunk["tokens"].wholes(0, shape.vocabulary - 1)
    if not 1 <= len(tokens) < shape.context:
        prompt.wrong(f"has {len(tokens)} tokens; give at least 1 and fewer than the context, {shape.context}")
    return np.array(tokens, np.int32)


def _stops(stop: Field, end_tokens: frozenset[int], vocabulary: int) -> tuple[tuple[str, ...], frozenset[int]]:
    """Texts and tokens that end a reply. None: the model's own end tokens; an empty list: nothing, not even those."""
    if stop.value is None:
        return (), end_tokens
    if stop.value == []:
        return (), frozenset()
    texts = [stop] if isinstance(stop.value, str) else list(stop)
    if len(texts) > _MAX_STOPS:
        stop.wrong(f"has {len(texts)} entries; give at most {_MAX_STOPS}")
    if not isinstance(texts[0].value, str):
        return (), end_tokens | frozenset(stop.wholes(0, vocabulary - 1))
    for text in texts:
        if not 1 <= len(text.text()) <= 1000:
            text.wrong("must have 1 to 1000 characters")
    return tuple(text.text().encode("utf-8", "replace").decode() for text in texts), end_tokens


def parse_forward_backward(body: bytes) -> pb.ForwardBackwardRequest:
    """The message in a request's body; its content is not checked yet."""
    try:
        return pb.ForwardBackwardRequest.FromString(body)
    except DecodeError as error:
        raise UserError(f"the request is no ForwardBackwardRequest ({error})") from None


def training_batch(request: pb.ForwardBackwardRequest, shape: Shape) -> tuple[list[Datum], LossName, Bounds | None]:
    """The data of a request, the loss to compute on it, and the bounds of its ratios for losses that clip them."""
    loss: LossName | None = next((known for known in _INPUTS if known == request.loss_fn), None)
    if loss is None:
        raise UserError(f"loss_fn: {request.loss_fn!r} is not known here; {nearest(request.loss_fn, tuple(_INPUTS))}")
    if not request.data:
        raise UserError("data: is empty")
    data = [_datum(datum, f"data[{i}]", loss, shape, request.forward_only) for i, datum in enumerate(request.data)]
    return data, loss, _bounds(request, loss)


def _bounds(request: pb.ForwardBackwardRequest, loss: LossName) -> Bounds | None:
    defaults = RATIO_BOUNDS.get(loss)
    config = {key: math.nan if value.HasField("text") else value.number for key, value in request.loss_fn_config_v2.items()}
    config = config or dict(request.loss_fn_config)
    for unknown in set(config) - set(_THRESHOLDS if defaults else ()):
        raise UserError(f"loss_fn_config, {unknown}: {loss} takes no such setting here")
    if defaults is None:
        return None
    low, high = (config.get(key, value) for key, value in zip(_THRESHOLDS, defaults, strict=True))
    if not 0 <= low <= high <= _MAX_RATIO:
        most = f"0 <= low <= high <= {_MAX_RATIO:g}"
        raise UserError(f"loss_fn_config: ratios from {low} to {high} are not possible; give numbers, {most}")
    return low, high


def _datum(message: pb.Datum, where: str, loss: LossName, shape: Shape, forward_only: bool) -> Datum:
    parts: list[np.ndarray] = []
    for chunk in message.model_input:
        if not chunk.HasField("encoded_text"):
            raise UserError(f"{where}.model_input: this server reads text alone; send chunks of encoded_text")
        parts.append(_numbers(chunk.encoded_text.tokens, np.dtype("<i4"), f"{where}.model_input"))
    inputs_T = np.concatenate(parts) if parts else np.zeros(0, np.int32)
    size, inputs = len(inputs_T), message.loss_fn_inputs
    if not 1 <= size <= shape.context:
        raise UserError(f"{where}.model_input: has {size} tokens; give 1 to {shape.context}, the context")
    for unknown in set(inputs) - {"target_tokens", *_INPUTS[loss]}:
        raise UserError(f"{where}.loss_fn_inputs.{unknown}: {loss} takes no such input")
    targets_T = _tensor(inputs, "target_tokens", size, where).astype(np.int64)
    for name, ids_T in (("model_input", inputs_T), ("target_tokens", targets_T)):
        if ids_T.min() < 0 or ids_T.max() >= shape.vocabulary:
            raise UserError(f"{where}.{name}: has a token outside of 0 to {shape.vocabulary - 1}")
    columns = {key: _tensor(inputs, key, size, where).astype(np.float32) for key in _INPUTS[loss]}
    zeros_T = np.zeros(size, np.float32)
    logprobs_T, advantages_T = columns.get("logprobs", zeros_T), columns.get("advantages", columns.get("weights", zeros_T))
    # Tokens without an advantage are not computed, unless the log-probabilities are all that is asked for.
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


def _tensor(inputs: Any, key: str, size: int, where: str) -> np.ndarray:
    where = f"{where}.loss_fn_inputs.{key}"
    if key not in inputs:
        raise UserError(f"{where}: is missing")
    message = inputs[key]
    if message.HasField("sparse_csr") or message.dtype not in _DTYPES:
        raise UserError(f"{where}: must be dense, of float32 or int64")
    array = _numbers(message.dense, _DTYPES[message.dtype], where)
    shape = list(message.shape)
    if len(array) != size or shape not in ([], [size]):
        raise UserError(f"{where}: has {len(array)} entries of shape {shape}; give one per token, {size}")
    if not np.isfinite(array).all():
        raise UserError(f"{where}: has an entry that is not finite")
    if key == "target_tokens" and array.dtype.kind != "i":
        raise UserError(f"{where}: must be of int64")
    return array


def _numbers(raw: bytes, dtype: np.dtype[Any], where: str) -> np.ndarray:
    if len(raw) % dtype.itemsize:
        raise UserError(f"{where}: its {len(raw)} bytes are no whole numbers of {dtype.itemsize} bytes")
    return np.frombuffer(raw, dtype)


def gradient_result(gradient: Gradient) -> Result:
    """The loss and the log-probabilities of the targets."""
    offsets = np.cumsum([0, *(4 * len(logprobs_T) for logprobs_T in gradient.logprobs)], dtype=np.int64)
    column = pb.BatchedTensor(
        data=np.concatenate(gradient.logprobs).astype("<f4").tobytes(),
        offsets=offsets.astype("<i8").tobytes(),
        dtype=pb.DTYPE_FLOAT32,
    )
    record = pb.ArrayRecord(type_tag="ArrayRecord", fields={"logprobs": column}, num_datums=len(gradient.logprobs))
    output = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", loss_fn_outputs=[record])
    output.metrics["loss:sum"] = gradient.loss
    return Result(output.SerializeToString(), PROTOBUF)


def sample_result(completions: Sequence[Job], prompt_T: Ids, logprobs_T: Floats | None) -> Result:
    """The completions, and the log-probabilities of the prompt's last tokens if they were asked for."""
    response = pb.SampleResponse()
    for completion in completions:
        response.sequences.add(
            stop_reason=pb.STOP_REASON_STOP if completion.ended else pb.STOP_REASON_LENGTH,
            tokens=np.array(completion.ids, "<i4").tobytes(),
            logprobs=np.array(completion.logprobs, "<f4").tobytes(),
        )
    if logprobs_T is not None:
        padded_T = np.full(len(prompt_T), np.nan, "<f4")
        padded_T[len(prompt_T) - len(logprobs_T) :] = logprobs_T
        response.prompt_logprobs = padded_T.tobytes()
    return Result(response.SerializeToString(), PROTOBUF)
