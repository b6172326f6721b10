"""What an engine is, its settings, what it spends, and what every engine does alike.

A ``Sampler`` answers asks; a ``Trainer``, which only some engines have, also learns. ``Engine`` says what must be known of
an engine before it is opened, so that nothing else asks which one it is.
"""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import itertools
import math
import operator
import os
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.sampler import Answer, Batching, Sampler
from peergrad.debate.settings import RESUMABLE, Above, Range
from peergrad.debate.types import Ask, Usage
from peergrad.learn.trainer import StepStats, Trainer

__all__ = ["Answer", "Engine", "EngineError", "Model", "Sampler", "Setup", "StepStats", "Trainer"]


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Who answers."""

    engine: str = "local"
    """Who answers: local, a model in this process; tinker, a service that speaks its protocol; or your own, module:name."""
    base_url: Annotated[str | None, RESUMABLE] = None
    """Where the server is, if not the hosted one: of engine tinker, or of an API that speaks OpenAI's protocol (…/v1)."""
    model: str = "smollm2"
    """An alias (smollm2), a hub id, a folder, a GGUF file, or what was trained before: RUN, RUN@STEP, an adapter's folder;
    where nothing is trained also NAME@URL."""
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
        if not re.fullmatch(r"[A-Z_][A-Z0-9_]*", self.key_env):  # it may be the key itself, so it is not repeated
            raise UserError(
                "key_env: is no name of an environment variable (capitals, digits and _); "
                "give the name, never the key itself"
            )


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


@dataclass(frozen=True, slots=True)
class Spent:
    """Requests that were answered, the tokens they took as their servers counted them, what these cost, and the time."""

    requests: int = 0
    prompt: int = 0
    sampled: int = 0
    usd: float = 0.0
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        return self.prompt + self.sampled

    def plus(self, other: Spent) -> Spent:
        return Spent(*map(operator.add, astuple(self), astuple(other)))

    def less(self, other: Spent) -> Spent:
        return Spent(*map(operator.sub, astuple(self), astuple(other)))


class Meter:
    """Counts what is spent, for one engine or several that share a budget.

    No request is begun once the budget is spent; those under way are finished, so a little more may be spent.

    Example: ``Meter(budget_usd=2.5)``
    """

    def __init__(self, *, budget_tokens: int | None = None, budget_usd: float | None = None) -> None:
        for name, value in (("budget_tokens", budget_tokens), ("budget_usd", budget_usd)):
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise UserError(f"{name}: {value} is not possible; give more than 0, or leave it out for no limit")
        self.budget_tokens, self.budget_usd = budget_tokens, budget_usd
        self.spent = Spent()

    def add(self, usage: Usage | None, price_in: float, price_out: float) -> None:
        """One more request was answered. Prices are per million tokens."""
        tokens = usage or Usage(0, 0)
        usd = (tokens.prompt * price_in + tokens.sampled * price_out) / 1e6
        self.spent = self.spent.plus(Spent(1, tokens.prompt, tokens.sampled, usd))

    @property
    def halted(self) -> str | None:
        """Why nothing more may be spent, or ``None``."""
        if self.budget_tokens is not None and self.spent.tokens >= self.budget_tokens:
            return f"the budget of {self.budget_tokens} tokens is spent; raise budget_tokens to resume"
        if self.budget_usd is not None and self.spent.usd >= self.budget_usd:
            return f"the budget of ${self.budget_usd:g} is spent; raise budget_usd to resume"
        return None


OnText = Callable[[Ask, str | None], None]
"""Told of an ask and of the next piece of its reply; None: what was told of it is void."""


@typing.runtime_checkable
class Model(typing.Protocol):
    """A model that was loaded, or a connection to one."""

    async def sampler_with(self, checkpoint: Path | None) -> Sampler:
        """A sampler of the model with the weights of a checkpoint, or of the model as it is."""
        ...

    async def close(self) -> None:
        """Nothing more will be asked for."""
        ...


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What an engine is opened with: its settings as they are, and who else is concerned."""

    engine: EngineConfig
    update: UpdateConfig | None = None
    """How it is trained; None: it is not."""
    seed: int = 0
    say: Callable[[str], None] = lambda _: None
    """Told of what takes long, such as a download."""
    share: float = 1.0
    """Of a GPU's memory."""
    api: ApiConfig = field(default_factory=ApiConfig)
    meter: Meter | None = None
    """What is spent counts here."""
    on_text: OnText | None = None
    """Told of replies while they come in."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """Where keys are looked up."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What must be known of an engine before it is opened. ``--engine module:name`` takes one of your own.

    Example: ``ECHO = Engine(name="echo", open=lambda setup: Echo(setup.engine.model))``
    """

    name: str
    open: Callable[[Setup], Model]
    """Load a model, or connect to it."""
    open_trainer: Callable[[Setup], Trainer] | None = None
    """The same for a model that is to learn; None: this engine can answer only."""
    scores_tokens: bool = False
    """Its trainers also say how likely tokens are (``Scorer``), which kl and an adaptive learning rate need."""
    check: Callable[[EngineConfig, UpdateConfig], None] = lambda *_: None
    """Refuse settings of a run that this engine can't do."""
    address: Callable[[], str] | None = None
    """Where its service is if no base_url is given; None: it has none, and base_url is the address of an API."""
    default_model: str = ""
    """The model of debates that name none; empty: they must."""
    temperature: float | None = None
    """The one temperature that debates are sampled at, so that they can be learned from; None: any."""
    weights_file: str = ""
    """The file of a checkpoint that tells its weights from others; empty: there are no checkpoints."""
    max_asks: int = 1024
    """Asks that a sampler takes in one call."""
    max_calls: int = 4
    """Calls that a sampler takes at the same time."""
    grace_s: float = 0.0
    """How much later than its own deadline a call is given up, for engines that say themselves why it was missed."""
    queues: bool = False
    """It takes any number of asks at any time, and keeps the deadline by itself."""

    def batching(self, config: EngineConfig) -> Batching:
        """How its samplers are called."""
        return Batching(max_asks=self.max_asks, max_calls=self.max_calls, deadline_s=config.deadline_s + self.grace_s)


def seed_name(ask: Ask, seed: int) -> str:
    """What the random numbers of an ask follow from: the same for the same ask, whoever else is being sampled."""
    return f"{seed}\n{ask.debate}\n{ask.agent}\n{ask.turn}"


def seed_of(ask: Ask, seed: int) -> int:
    """The same as a number. Not all servers take more than 31 bits."""
    name = seed_name(ask, seed).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(name, digest_size=4).digest(), "big") >> 1


def no_logprobs(server: str, why: str = "") -> UserError:
    """What to say where a server can't tell how likely words are, which soft votes are made of."""
    how = "take verdicts, ranking or pairs (head to head: vote_form or judge_form words)"
    return UserError(f"ballot_form: {server} gives no log-probabilities{why}; {how}")


def decode(pieces: Sequence[bytes]) -> tuple[str, list[int]]:
    """The text of a reply from its tokens' bytes, and where each token starts in the text's UTF-8 bytes (SPEC 6.5).

    Tokens may cut characters; bytes that are no character become U+FFFD and the starts follow the text, not the bytes.

    Example: ``decode([b"a", b"\\xc3", b"\\xa9"]) == ("aé", [0, 1, 2])``
    """
    whole = b"".join(pieces)
    with contextlib.suppress(UnicodeDecodeError):  # nearly always the bytes are text, and starts are theirs
        return whole.decode("utf-8"), [0, *itertools.accumulate(map(len, pieces))][: len(pieces)]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text: list[str] = []
    starts: list[int] = []
    length = 0
    for piece in pieces:
        pending = decoder.getstate()[0]
        # A character begun by earlier tokens and not continued by this one turns into U+FFFD.
        broken = piece and not 0x80 <= piece[0] < 0xC0
        starts.append(length + len(pending.decode("utf-8", "replace").encode() if broken else pending))
        text.append(decoder.decode(piece))
        length += len(text[-1].encode("utf-8"))
    text.append(decoder.decode(b"", final=True))
    length += len(text[-1].encode("utf-8"))
    for index in reversed(range(len(pieces))):  # what has no text and comes last starts at the very end
        if pieces[index]:
            break
        starts[index] = length
    return "".join(text), starts


def first_line(error: BaseException) -> str:
    """What an exception says, as part of a sentence."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def too_long(tokens: int, context: int) -> EngineError:
    """What becomes of an ask whose prompt does not fit."""
    return EngineError(f"a prompt of {tokens} tokens does not fit the model's context of {context}")
