"""A policy small enough to see through: its solution is one token, drawn from a table of choices.

It is a real Trainer: it samples at the temperature asked, and learns by the losses' own gradients.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from pathlib import Path

import numpy as np

from peergrad.debate.types import Reply, Tokens
from peergrad.learn.losses import cispo, cross_entropy, importance_sampling, ppo
from peergrad.learn.trainer import StepStats, optim_metrics

LOSSES = {"importance_sampling": importance_sampling, "ppo": ppo, "cispo": cispo}
LOSSES["cross_entropy"] = lambda logprobs_T, _, weights_T, mask_T: cross_entropy(logprobs_T, weights_T)
PROMPT = 1000


def log_softmax(logits, temperature):
    scaled = logits / (temperature or 1e-6)
    scaled = scaled - scaled.max()
    return scaled - np.log(np.exp(scaled).sum())


class Bandit:
    """Chooses among ``solutions``; ``vote(ask)`` writes the comparison. ``log`` says in which order things happened.

    ``lost(number, data)`` decides whether the update of that number, from 1, is skipped: with these faults, or ``None``: it
    is made. ``again(number)`` says how many micro-batches it pretends to have computed again.
    """

    context = 10_000

    def __init__(self, solutions, vote, *, seed=0):
        self.solutions, self.vote, self.seed = solutions, vote, seed
        self.logits = np.zeros(len(solutions))
        self.updates = 0
        self.log = []
        self.poison = False
        self.lost, self.again = lambda number, data: None, None
        self.asked = []
        self.order = asyncio.Lock()

    async def sampler(self):
        async with self.order:
            self.log.append(("sampler", self.updates))
            return BanditSampler(self, self.logits.copy(), self.updates)

    async def step(self, data, loss, lr):
        self.log.append(("step asked for", self.updates))
        async with self.order:
            return await self._step(data, loss, lr)

    async def _step(self, data, loss, lr):
        self.log.append(("step begins", self.updates))
        self.asked.append((tuple(data), loss, lr))
        faults = self.lost(len(self.asked), data)
        await asyncio.sleep(0.02)
        grad, value, all_logprobs = np.zeros_like(self.logits), 0.0, []
        for datum in data:
            logprobs_T = np.zeros(len(datum))
            chosen = np.flatnonzero((datum.mask_T > 0) & (datum.targets_T < len(self.logits)))
            for t in chosen:
                logprobs_T[t] = log_softmax(self.logits, datum.temperatures_T[t])[datum.targets_T[t]]
            result = LOSSES[loss](logprobs_T, datum.logprobs_T, datum.advantages_T, datum.mask_T)
            value += result.value
            for t in chosen:
                temperature = datum.temperatures_T[t]
                dlogits = -np.exp(log_softmax(self.logits, temperature)) / temperature
                dlogits[datum.targets_T[t]] += 1 / temperature
                grad += result.grad_T[t] * dlogits
            all_logprobs.append((logprobs_T, datum))
        columns = zip(*((new_T, datum.logprobs_T, datum.mask_T) for new_T, datum in all_logprobs), strict=True)
        stats = optim_metrics(*(np.concatenate(column) for column in columns))
        if self.again:
            stats["optim/retried"] = float(self.again(len(self.asked)))
        if self.poison or faults is not None:
            value = float("nan")
        self.log.append(("step ends", self.updates))
        if not np.isfinite(value) or not np.isfinite(grad).all():
            return StepStats(value, float("nan"), skipped=True, metrics=stats, faults=faults or ())
        norm = float(np.linalg.norm(grad))
        self.logits -= lr * grad / max(1.0, norm)
        self.updates += 1
        return StepStats(value, norm, metrics=stats)

    def tokens(self, ask, text):
        return Tokens.of([PROMPT], [0], [0.0], [0])

    async def save(self, path: Path):
        (path / "bandit.json").write_text(json.dumps([self.logits.tolist(), self.updates]))

    async def load(self, path: Path, *, optimizer: bool = True):
        logits, self.updates = json.loads((path / "bandit.json").read_text())
        self.logits = np.array(logits)

    def forget(self, path: Path):
        pass

    async def close(self, *, failed=False):
        pass


class BanditSampler:
    def __init__(self, owner, logits, version):
        self.owner, self.logits, self.version = owner, logits, version

    async def sample(self, asks):
        self.owner.log.append(("sampling", self.version))
        await asyncio.sleep(0.001)
        return [self.reply(ask) for ask in asks]

    def reply(self, ask):
        rng = np.random.default_rng([self.owner.seed, self.version, zlib.crc32(ask.debate.encode()), ask.turn])
        logprobs = log_softmax(self.logits, ask.temperature)
        choice = int(rng.choice(len(logprobs), p=np.exp(logprobs)))
        body = f"<solution>{self.owner.solutions[choice]}</solution>"
        tail = f"<evaluation>x</evaluation><comparison>{self.owner.vote(ask)}</comparison>"
        starts, ids = [0, len(body), len(body) + len("<evaluation>x</evaluation>")], [choice, 900, 901]
        prompt = [PROMPT, *(0 for _ in range(5 * ask.turn))]
        tokens = Tokens.of(prompt, ids, [logprobs[choice], 0.0, 0.0], starts, ask.temperature)
        return Reply(body + tail, tokens=tokens)
