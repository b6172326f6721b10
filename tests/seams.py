"""Pyright holds the fakes of the tests against the seams they stand in for. Nothing here runs."""

from __future__ import annotations

from peergrad.debate.sampler import Sampler
from peergrad.learn.trainer import Trainer
from peergrad.runs.watch import Watcher
from tests.bandit import Bandit, BanditSampler
from tests.runs import test_evaluation, test_lost, test_run
from tests.test_faults import Faulty


def trainers(bandit: Bandit) -> list[Trainer]:
    return [bandit]


def samplers(
    bandit: BanditSampler, faulty: Faulty, mortal: test_evaluation.Mortal, poisoned: test_run.PoisonedSampler
) -> list[Sampler]:
    return [bandit, faulty, mortal, poisoned]


def watchers(heard: test_lost.Heard, nobody: test_evaluation.Nobody) -> list[Watcher]:
    return [heard, nobody]
