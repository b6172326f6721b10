"""Lost updates are told of when they happen, counted, and kept so that they can be looked into."""

from __future__ import annotations

import asyncio

from peergrad.learn.losses import LossName
from peergrad.learn.trainer import Fault, StepStats
from peergrad.measure.history import Updates, retried
from peergrad.runs.folder import Progress, Run
from peergrad.runs.skipped import MOST_FILES, Skipped
from peergrad.runs.watch import Watcher


class Lost:
    """What a run lost so far, that of before it went on included."""

    def __init__(self, run: Run, watch: Watcher) -> None:
        self._watch, self._skipped = watch, Skipped(run.path)
        self._so_far = Updates.of(run.metrics())
        watch.updates(self._so_far)

    async def tell(self, at: Progress, stats: StepStats, loss: LossName, lr: float) -> None:
        """Tell of what was lost in the updates of a step, which are ``joined``."""
        before, now = self._so_far, Updates.of([{"phase": "train"} | dict(stats.metrics)])
        self._so_far = before + now
        self._watch.updates(self._so_far)
        step = f"step {at.step}" if at.step else f"warm start {at.warm}"
        for place, fault in enumerate(stats.faults, 1):
            about = {"at": at.name, "why": fault.why, "loss": loss, "lr": lr}
            # Packing may take long, and signals must be heard.
            path = await asyncio.to_thread(self._skipped.keep, at, place, fault.data, about) if fault.data else None
            count = f"{before.skipped + place:,} of {self._so_far.asked:,} so far"
            where = f"what reproduces it is in {path}" if path else self._why_not_kept(fault)
            self._watch.warn(f"{step}: update skipped: {fault.why} ({count}){f'; {where}' if where else ''}")
        if now.retried:
            self._watch.say(f"{step}: {retried(now.retried)} ({self._so_far.retried:,} so far)")

    def _why_not_kept(self, fault: Fault) -> str:
        if not fault.data:
            return ""
        full = len(self._skipped.kept()) >= MOST_FILES
        return f"{self._skipped.path} has {MOST_FILES} such already" if full else "its sequences are too long to keep"
