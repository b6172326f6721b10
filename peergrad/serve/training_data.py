"""Training data, parsed from protobuf messages of the tinker package and checked: a client may send anything."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from tinker.proto import tinker_public_pb2 as pb

from peergrad.debate.errors import UserError
from peergrad.debate.fields import nearest
from peergrad.engines.local.model.decoder import Shape
from peergrad.learn.datums import Datum
from peergrad.learn.losses import RATIO_BOUNDS, Bounds, LossName

# What each loss takes besides its targets.
_INPUTS: dict[LossName, tuple[str, ...]] = {
    "cross_entropy": ("weights",),
    "importance_sampling": ("logprobs", "advantages"),
    "ppo": ("logprobs", "advantages"),
    "cispo": ("logprobs", "advantages"),
}
_THRESHOLDS = ("clip_low_threshold", "clip_high_threshold")


@dataclass(frozen=True, slots=True, eq=False)
class TrainingBatch:
    """Data, the loss to compute on it, and the bounds of its ratios for losses that clip them."""

    data: list[Datum]
    loss: LossName
    bounds: Bounds | None


def parse_forward_backward(body: bytes) -> pb.ForwardBackwardRequest:
    """The message in a request's body; its content is not checked yet."""
    request = pb.ForwardBackwardRequest()
    try:
        request.ParseFromString(body)
    except DecodeError as error:
        raise UserError(f"the request is no ForwardBackwardRequest ({error})") from None
    return request


def training_batch(request: pb.ForwardBackwardRequest, shape: Shape) -> TrainingBatch:
    """The batch of a request, checked."""
    loss: LossName | None = next((known for known in _INPUTS if known == request.loss_fn), None)
    if loss is None:
        raise UserError(f"loss_fn: {request.loss_fn!r} is not known here; {nearest(request.loss_fn, tuple(_INPUTS))}")
    if not request.data:
        raise UserError("data: is empty")
    data = [_datum(datum, f"data[{i}]", loss, shape, request.forward_only) for i, datum in enumerate(request.data)]
    return TrainingBatch(data, loss, _bounds(request, loss))


def _bounds(request: pb.ForwardBackwardRequest, loss: LossName) -> Bounds | None:
    defaults = RATIO_BOUNDS.get(loss)
    config = {key: math.nan if value.HasField("text") else value.number for key, value in request.loss_fn_config_v2.items()}
    config = config or dict(request.loss_fn_config)
    for unknown in set(config) - set(_THRESHOLDS if defaults else ()):
        raise UserError(f"loss_fn_config, {unknown}: {loss} takes no such setting here")
    if defaults is None:
        return None
    low, high = (config.get(key, value) for key, value in zip(_THRESHOLDS, defaults, strict=True))
    if not 0 <= low <= high < math.inf:
        raise UserError(f"loss_fn_config: ratios from {low} to {high} are not possible; give numbers, 0 <= low <= high")
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


_DTYPES = {pb.DTYPE_FLOAT32: np.dtype("<f4"), pb.DTYPE_INT64: np.dtype("<i8"), pb.DTYPE_INT32: np.dtype("<i4")}


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
