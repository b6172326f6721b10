"""From a Hugging Face folder to a forward pass: ours where we have one for the architecture, else transformers' own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from peergrad.debate.errors import UserError
from peergrad.engines.local.model.decoder import Decoder
from peergrad.engines.local.model.forward import Forward
from peergrad.engines.local.model.hf_model import HFDecoder
from peergrad.engines.local.model.memory import is_out_of_memory
from peergrad.engines.shared.chat import first_line


def load(folder: Path, device: str, dtype: torch.dtype) -> Forward:
    """Load a model to sample from and to train."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # it loads in a second; what takes long is told by ``models``
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(str(folder), dtype=dtype, attn_implementation="eager")
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # no causal model of this type, files missing or damaged, …: each raises in its own way
        raise UserError(
            f"model: transformers can't load {str(folder)!r} as a causal language model ({first_line(error)})"
        ) from None
    try:
        model = model.to(device)
    except (RuntimeError, AssertionError) as error:  # no such device, or none of them here
        if is_out_of_memory(error):
            raise
        raise UserError(f"device: {device!r} can't be used ({first_line(error)}); give cpu, or leave it out") from None
    return forward(model)


def forward(model: Any) -> Forward:
    """The forward pass of a transformers model, which must not be used otherwise any more."""
    return Decoder(model) if Decoder.runs(model) else HFDecoder(model)
