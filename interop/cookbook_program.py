"""A program for tinker-cookbook 0.5.8 as anybody might write it: its supervised, DPO and RL loops, on small data of ours.

``interop/cookbook.py`` runs it in an environment of its own. It knows nothing of peergrad: the server's address and a key
come from the environment (``TINKER_BASE_URL``, ``TINKER_API_KEY``). The model's name is a folder, because that is where a
tokenizer is found without a network.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
from collections.abc import Sequence
from pathlib import Path

import chz
import tinker
from tinker_cookbook import renderers
from tinker_cookbook.preference import train_dpo as dpo
from tinker_cookbook.rl import train as rl
from tinker_cookbook.rl.types import Action, ActionExtra, Env, EnvGroupBuilder, RLDataset, RLDatasetBuilder, StepResult
from tinker_cookbook.supervised import train as supervised
from tinker_cookbook.supervised.data import conversation_to_datum
from tinker_cookbook.supervised.types import (
    ChatDatasetBuilder,
    ChatDatasetBuilderCommonConfig,
    SupervisedDataset,
    SupervisedDatasetBuilder,
)
from tinker_cookbook.tokenizer_utils import get_tokenizer

RENDERER = "qwen3_instruct"
GROUPS, GROUP_SIZE = 8, 8
DIED = 9


def renderer(model: str) -> renderers.Renderer:
    return renderers.get_renderer(RENDERER, get_tokenizer(model))


def sums(count: int, seed: int) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    pairs = [(rng.randrange(2, 50), rng.randrange(2, 50)) for _ in range(count)]
    return [(f"What is {a} + {b}?", f"{a} + {b} = {a + b}") for a, b in pairs]


class Sums(SupervisedDataset):
    """Batches of sums with their answers, in the order asked for."""

    def __init__(self, model: str, batches: Sequence[int], die_at: int | None) -> None:
        self._renderer, self._batches, self._die_at = renderer(model), batches, die_at

    def __len__(self) -> int:
        return len(self._batches)

    def set_epoch(self, seed: int = 0) -> None:
        """The order stays."""

    def get_batch(self, index: int) -> list[tinker.Datum]:
        if index == self._die_at:
            os._exit(DIED)  # as hard as kill -9, and at a moment that is known
        rows = sums(8, seed=self._batches[index])
        said = [[{"role": "user", "content": ask}, {"role": "assistant", "content": answer}] for ask, answer in rows]
        return [conversation_to_datum(one, self._renderer, max_length=256) for one in said]


@chz.chz
class SumsBuilder(SupervisedDatasetBuilder):
    model: str
    batches: tuple[int, ...]
    die_at: int | None = None

    def __call__(self) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        return Sums(self.model, self.batches, self.die_at), Sums(self.model, (1000,), None)


class Pairs(Sums):
    """Each sum answered twice: as it should be, and then as it should not."""

    def get_batch(self, index: int) -> list[tinker.Datum]:
        rows = sums(8, seed=self._batches[index])
        both = [(ask, said) for ask, answer in rows for said in (answer, "I do not know.")]
        said = [[{"role": "user", "content": ask}, {"role": "assistant", "content": answer}] for ask, answer in both]
        return [conversation_to_datum(one, self._renderer, max_length=256, reduction="none") for one in said]


@chz.chz
class PairsBuilder(ChatDatasetBuilder):
    batches: tuple[int, ...]

    def __call__(self) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        return Pairs(self.common_config.model_name_for_tokenizer, self.batches, None), None


class Digits(Env):
    """Asked for a sum, the model is paid for the share of its reply that is digits."""

    def __init__(self, renderer: renderers.Renderer, question: str) -> None:
        self._renderer, self._question = renderer, question

    async def initial_observation(self) -> tuple[tinker.ModelInput, list[str] | list[int]]:
        prompt = self._renderer.build_generation_prompt([{"role": "user", "content": self._question}])
        return prompt, self._renderer.get_stop_sequences()

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:  # noqa: ARG002
        message, _ = self._renderer.parse_response(action)
        text = renderers.get_text_content(message)
        share = sum(letter.isdigit() for letter in text) / max(1, len(text))
        return StepResult(
            reward=share, episode_done=True, next_observation=tinker.ModelInput.empty(), next_stop_condition=[]
        )


class DigitsGroup(EnvGroupBuilder):
    def __init__(self, renderer: renderers.Renderer, question: str) -> None:
        self._renderer, self._question = renderer, question

    async def make_envs(self) -> Sequence[Env]:
        return [Digits(self._renderer, self._question) for _ in range(GROUP_SIZE)]


class DigitsData(RLDataset):
    def __init__(self, model: str, batches: int, die_at: int | None) -> None:
        self._renderer, self._batches, self._die_at = renderer(model), batches, die_at

    def __len__(self) -> int:
        return self._batches

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        if index == self._die_at:
            os._exit(DIED)
        return [DigitsGroup(self._renderer, question) for question, _ in sums(GROUPS, seed=index)]


@chz.chz
class DigitsBuilder(RLDatasetBuilder):
    model: str
    batches: int
    die_at: int | None = None

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        return DigitsData(self.model, self.batches, self.die_at), DigitsData(self.model, 1, None)


def supervised_config(asked: argparse.Namespace) -> supervised.Config:
    return supervised.Config(
        log_path=str(asked.log),
        model_name=asked.model,
        recipe_name="peergrad-interop",
        renderer_name=RENDERER,
        dataset_builder=SumsBuilder(model=asked.model, batches=tuple(asked.batches), die_at=asked.die_at),
        learning_rate=5e-3,
        lr_schedule="constant",
        lora_rank=8,
        save_every=2,
        eval_every=2,
        submit_ahead=0,
    )


def dpo_config(asked: argparse.Namespace) -> dpo.Config:
    common = ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=asked.model, renderer_name=RENDERER, max_length=256, batch_size=8
    )
    return dpo.Config(
        log_path=str(asked.log),
        model_name=asked.model,
        recipe_name="peergrad-interop",
        renderer_name=RENDERER,
        dataset_builder=PairsBuilder(common_config=common, batches=tuple(asked.batches)),
        learning_rate=1e-3,
        lr_schedule="constant",
        lora_rank=8,
    )


def rl_config(asked: argparse.Namespace) -> rl.Config:
    modes = {
        "sync": {},
        "stream": {"stream_minibatch_config": rl.StreamMinibatchConfig(groups_per_batch=GROUPS, num_minibatches=2)},
        "async": {"async_config": rl.AsyncConfig(max_steps_off_policy=2, groups_per_batch=GROUPS)},
    }
    return rl.Config(
        log_path=str(asked.log),
        model_name=asked.model,
        recipe_name="peergrad-interop",
        renderer_name=RENDERER,
        dataset_builder=DigitsBuilder(model=asked.model, batches=len(asked.batches), die_at=asked.die_at),
        learning_rate=2e-3,
        max_tokens=16,
        lora_rank=8,
        loss_fn=asked.loss,
        kl_penalty_coef=0.001,
        kl_reference_config=rl.KLReferenceConfig(base_model=asked.model),
        compute_post_kl=True,
        save_every=3,
        rolling_save_every=1,
        eval_every=2,
        **modes[asked.mode],
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("loop", choices=["supervised", "dpo", "rl"])
    parser.add_argument("--model", required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--batches", type=int, nargs="+", required=True, help="the seed of each batch")
    parser.add_argument("--die-at", type=int)
    parser.add_argument("--mode", choices=["sync", "stream", "async"], default="sync")
    parser.add_argument("--loss", default="importance_sampling")
    asked = parser.parse_args()
    if asked.loop == "supervised":
        asyncio.run(supervised.main(supervised_config(asked)))
    elif asked.loop == "dpo":
        dpo.main(dpo_config(asked))
    else:
        asyncio.run(rl.main(rl_config(asked)))


if __name__ == "__main__":
    main()
