"""The settings of engines: who answers, how an API is asked, what is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from peergrad.debate.bounds import RESUMABLE, Above, Range
from peergrad.engines.shared.addresses import check_variable


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Who answers."""

    engine: str = "local"
    """Who answers: local, a model in this process; tinker, a service that speaks its protocol; or your own, module:name."""
    base_url: Annotated[str | None, RESUMABLE] = None
    """Where the server is, if not the hosted one: of engine tinker, or of an API that speaks OpenAI's protocol (…/v1)."""
    model: str = "smollm2"
    """An alias (smollm2), a hub id, a folder, or a GGUF file; to evaluate also a run, an adapter, or NAME@URL."""
    device: Annotated[str | None, RESUMABLE] = None
    """Where it runs, such as cpu or cuda; unset, a GPU if there is one."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Precision of the base model; unset, float32 on a CPU and bfloat16 on a GPU."""
    threads: Annotated[int | None, Range(1, 1024), RESUMABLE] = None
    """CPU threads; unset, one per core."""
    kv_gb: Annotated[float | None, Above(0), RESUMABLE] = None
    """Memory for keys and values while sampling, in GiB; unset, 4 on a CPU and what a GPU has room for."""
    max_rows: Annotated[int | None, Range(1), RESUMABLE] = None
    """How many replies are sampled at the same moment, at most; unset, 64 on a CPU and what a GPU has room for."""
    deadline_s: Annotated[float, Above(0), RESUMABLE] = 1800.0
    """A sampler call that takes longer costs the debates it holds up; no service is waited for longer."""


@dataclass(frozen=True, kw_only=True)
class ApiConfig:
    """A model behind an API that speaks OpenAI's protocol, at base_url. Keys come from the environment alone."""

    key_env: Annotated[str, RESUMABLE] = "OPENAI_API_KEY"
    """The environment variable that holds the key; a server of your own may need none."""
    max_concurrent: Annotated[int, Range(1), RESUMABLE] = 16
    """Requests under way at the same time."""
    timeout_s: Annotated[float, Above(0), RESUMABLE] = 300.0
    """How long one request may take."""
    retries: Annotated[int, Range(0), RESUMABLE] = 6
    """How often a request is tried again that failed by no fault of its own."""
    stops: Literal["exact", "trusted"] = "exact"
    """A server that cuts stop texts off without saying so is sent none (exact), or taken at its word (trusted)."""
    send_temperature: bool = True
    """False for models that take none but their own."""
    price_in: Annotated[float, RESUMABLE] = 0.0
    """US dollars per million tokens read."""
    price_out: Annotated[float, RESUMABLE] = 0.0
    """US dollars per million tokens sampled."""
    server_keys: Annotated[tuple[str, ...], RESUMABLE] = ()
    """HOST=VARIABLE, the variable with another server's key; the key in key_env goes to the first server only."""
    budget_tokens: Annotated[int | None, Range(1), RESUMABLE] = None
    """Stop, keeping what is done, when so many tokens are spent."""
    budget_usd: Annotated[float | None, Above(0), RESUMABLE] = None
    """Stop, keeping what is done, when so much money is spent; needs the prices."""

    def __post_init__(self) -> None:
        check_variable(self.key_env)


@dataclass(frozen=True, kw_only=True)
class UpdateConfig:
    """What is trained, and how an update is made."""

    rank: Annotated[int, Range(1, 4096)] = 32
    """Rank of the LoRA adapter that is trained."""
    alpha: Annotated[float, Above(0)] = 32.0
    """Its scale is alpha / rank."""
    train_tokens: Annotated[int | None, Range(1), RESUMABLE] = None
    """Tokens of a micro-batch, halved when memory runs out; unset, 4096 on a CPU and what a GPU has room for."""
    max_grad_norm: Annotated[float, Above(0)] = 1.0
    """Gradients longer than this are scaled down to it."""
