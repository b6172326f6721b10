"""Results as they are sent: JSON, or protobuf messages of the tinker package."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tinker.proto import tinker_public_pb2 as pb

from peergrad.debate.types import Floats, Ids
from peergrad.engines.local.sample.sampler import Sampled
from peergrad.engines.local.train.backward import Gradient

PROTOBUF = "application/x-protobuf"


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to a request, as it is sent."""

    body: bytes
    media: str = "application/json"

    @staticmethod
    def json(**fields: Any) -> Result:
        return Result(json.dumps(fields).encode())


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


def sampled(made: Sequence[Sampled], prompt_T: Ids, scores_T: Floats | None) -> Result:
    """What was sampled, and the log-probabilities of the prompt's last tokens if they were asked for."""
    response = pb.SampleResponse()
    for one in made:
        response.sequences.add(
            stop_reason=pb.STOP_REASON_STOP if one.ended else pb.STOP_REASON_LENGTH,
            tokens=np.array(one.ids, "<i4").tobytes(),
            logprobs=np.array(one.logprobs, "<f4").tobytes(),
        )
    if scores_T is not None:
        shown_T = np.full(len(prompt_T), np.nan, "<f4")
        shown_T[len(prompt_T) - len(scores_T) :] = scores_T
        response.prompt_logprobs = shown_T.tobytes()
    return Result(response.SerializeToString(), PROTOBUF)
