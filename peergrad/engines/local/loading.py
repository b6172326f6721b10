"""From a Hugging Face folder to a forward pass: ours where we have one for the architecture, else transformers' own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from peergrad.debate.errors import UserError
from peergrad.engines.local.decoder import Decoder
from peergrad.engines.local.foreign import ForeignDecoder
from peergrad.engines.local.forward import Forward


def load(folder: Path, device: str, dtype: torch.dtype) -> Forward:
    """Load a model to sample from and to train."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # it loads in a second; what takes long is told by ``models``
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(str(folder), dtype=dtype, attn_implementation="eager")
    except (ValueError, ImportError) as error:  # no causal model of this type, its code is not in transformers, …
        why = str(error).strip().splitlines()[0][:200]
        raise UserError(f"model: transformers can't load {str(folder)!r} as a causal language model ({why})") from None
    return forward(model.to(device))


def forward(model: Any) -> Forward:
    """Take over a transformers model, which is not to be used by anybody else any more."""
    return Decoder(model) if Decoder.runs(model) else ForeignDecoder(model)
