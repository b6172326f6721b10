"""What is sent to clients: results as JSON or as protobuf messages of the tinker package, and errors by HTTP status."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tinker.proto import tinker_public_pb2 as pb

from peergrad.debate.errors import UserError
from peergrad.debate.types import Floats, Ids
from peergrad.engines.local.sample.sampler import Completion
from peergrad.engines.local.train.backward import Gradient

PROTOBUF = "application/x-protobuf"


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


def sample_result(completions: Sequence[Completion], prompt_T: Ids, logprobs_T: Floats | None) -> Result:
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
