"""Training requests as clients send them."""

from __future__ import annotations

import numpy as np
from tinker.proto import tinker_public_pb2 as pb

PROTOBUF = {"Content-Type": "application/x-protobuf"}


def forward_backward(model, number, weight=1.0, first=20, **more):
    """A forward_backward of ten tokens."""
    request = pb.ForwardBackwardRequest(model_id=model, seq_id=number, loss_fn="cross_entropy", **more)
    add(request, weight, first)
    return request.SerializeToString()


def add(request, weight=1.0, first=20):
    """One more sequence."""
    one = request.data.add()
    one.model_input.add().encoded_text.tokens = np.arange(first, first + 10, dtype=np.int32).tobytes()
    for name, dtype, column in (
        ("target_tokens", pb.DTYPE_INT64, np.arange(first + 1, first + 11)),
        ("weights", pb.DTYPE_FLOAT32, np.full(10, weight, np.float32)),
    ):
        one.loss_fn_inputs[name].CopyFrom(pb.Tensor(dense=column.tobytes(), dtype=dtype, shape=[10]))


def optim_step(model, number):
    return {"model_id": model, "seq_id": number, "adam_params": {"learning_rate": 0.01}}
