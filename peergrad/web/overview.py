"""What a run, an evaluation or a transcript is like as a whole: its state, settings, metrics and cost."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from peergrad.config import PRESETS, EvalConfig, TrainConfig, preset
from peergrad.debate.errors import UserError
from peergrad.debate.settings import flat
from peergrad.measure.changes import rows_before_and_after
from peergrad.measure.history import RunHistory, alarm_spans, all_shown, mean, number, total
from peergrad.measure.titles import in_order, share_titles, title
from peergrad.runs.evaluation import read_result
from peergrad.runs.folder import Progress
from peergrad.web import safe
from peergrad.web.app_files import plain
from peergrad.web.scoring import settings_of
from peergrad.web.sources import Source

_CURVES = ("replies/readable", "votes/per_due_turn", "votes/accuracy", "debates/without_signal", "optim/loss")
_MOST_CURVES, _CURVE_POINTS = 6, 60
_GROWING_S = 10.0
_MOST_FACTS, _LONGEST_FACT, _MOST_NAMES = 200, 400, 2_000
_MOST_SPANS = 1_000
_IN_ROUNDS = ("parallel", "sequential")
"""Protocols of which ``max_rounds`` says how long a debate is; others have rounds of their own."""


@dataclass(frozen=True)
class Overview:
    """What is known of a source but for its debates, read when it is asked for; made anew when a file changes.

    What is not ``live`` is for others to look at, later: it says neither where it lay nor what has just been written.
    """

    source: Source
    live: bool = True

    @cached_property
    def facts(self) -> dict[str, Any] | None:
        name = {"run": "run.json", "eval": "eval.json"}.get(self.source.kind)
        return safe.read_object(self.source.path, name) if name else {}

    @cached_property
    def settings(self) -> tuple[TrainConfig | EvalConfig | None, str | None]:
        return settings_of(self.source)

    @cached_property
    def history(self) -> RunHistory:
        return RunHistory.of(_records(self.source, "metrics.jsonl") if self.source.kind == "run" else [])

    @cached_property
    def result(self) -> dict[str, Any] | None:
        with contextlib.suppress(UserError, OSError):
            if self.source.kind == "eval" and safe.entry_of(self.source.path, "result.json"):
                return read_result(self.source.path)
        return None

    @cached_property
    def alarms(self) -> list[dict[str, Any]]:
        return [asdict(span) for span in alarm_spans(self.history)[:_MOST_SPANS]]

    def listed(self, first: Mapping[str, Any] | None, debates: int, indexed: float) -> dict[str, Any]:
        """Its entry in the list. ``first`` is the row of its first debate."""
        config, problem = self.settings
        facts, first = self.facts, first or {}
        debate = config.debate if config else None
        steps = config.learn.steps if isinstance(config, TrainConfig) else (facts or {}).get("asked")
        return {
            "id": self.source.id,
            "kind": self.source.kind,
            "name": self.source.name,
            "path": str(self.source.path) if self.live else self.source.name,
            "status": self._status(),
            "problem": problem if facts is not None else f"{self.source.path}: what it is can't be read",
            "changed": changed_at(self.source),
            "model": _word((facts or {}).get("model")),
            "task": _word((facts or {}).get("task")),
            "protocol": debate.protocol if debate else first.get("protocol"),
            "agents": debate.agents if debate else first.get("agents"),
            "rounds": debate.max_rounds if debate and debate.protocol in _IN_ROUNDS else first.get("rounds"),
            "reward": config.learn.reward.reward if isinstance(config, TrainConfig) else None,
            "step": self.history.steps
            if self.source.kind == "run"
            else len(self.result["questions"])
            if self.result
            else None,
            "steps": steps if isinstance(steps, int) else None,
            "debates": debates,
            "indexed": indexed,
            "alarms": self.alarms,
            "updates": asdict(self.history.updates),
            "curves": self._curves(),
            "headline": [
                {"name": name, "label": title(name)} | dict(zip(("value", "low", "high"), row, strict=True))
                for name, row in self._accuracy()
            ],
            "run": self.source.run,
        }

    def page(self) -> dict[str, Any]:
        """Its page, but for what the index knows."""
        return {
            "facts": list(_flattened(self.facts or {}))[:_MOST_FACTS],
            **self._settings(),
            "changes": [
                {"label": row.label, "before": row.before, "after": row.after, "share": row.share}
                for row in rows_before_and_after(self.history)
            ],
            "used": self._used(),
            "charts": self._charts(),
            "alarms": self.alarms,
            "checkpoints": self._saved("checkpoints", folders=True),
            "skipped": self._saved("skipped", folders=False),
            "result": self._result(),
        }

    def metrics(self, bins: int) -> dict[str, Any]:
        """Every metric by step; of many steps the means of some."""
        phases: dict[str, Any] = {}
        for phase, logged in self.history.phases.items():
            size = max(1, math.ceil(len(logged) / bins))
            groups = [logged[start : start + size] for start in range(0, len(logged), size)]
            at = [group[-1]["warm" if phase == "warm" else "step"] for group in groups]
            names = sorted({name for line in logged for name in line if name not in ("phase", "step", "warm", "alarms")})
            values = {name: [mean(group, name) for group in groups] for name in names[:_MOST_NAMES]}
            known = {name: column for name, column in values.items() if any(value is not None for value in column)}
            phases[phase] = {"at": at, "values": known}
        return {"phases": phases, "alarms": self.alarms}

    def _status(self) -> str:
        if self.facts is None:
            return "damaged"
        if self.live and is_locked(self.source.path / "lock"):
            return "running"
        growing = self.live and is_growing(self.source)
        if self.source.kind == "file":
            return "running" if growing else "finished"
        config, history = self.settings[0], self.history
        if isinstance(config, TrainConfig) and history.steps >= config.learn.steps and (history.train or history.warm):
            return "finished"
        return "finished" if self.result else "running" if growing else "unfinished"

    def _curves(self) -> list[dict[str, Any]]:
        names, logged = self.history.names["train"], self.history.train
        wanted = [*_CURVES[:4], *sorted(name for name in names if name.endswith("/correct")), _CURVES[4]]
        size = max(1, math.ceil(len(logged) / _CURVE_POINTS))
        groups = [logged[start : start + size] for start in range(0, len(logged), size)]
        labels = {shown.name: shown.row or shown.label or shown.name for shown in all_shown(names)}
        curves: list[dict[str, Any]] = []
        for name in [name for name in wanted if name in names][:_MOST_CURVES]:
            points = [[group[-1]["step"], mean(group, name)] for group in groups]
            share = name not in ("votes/per_due_turn", "optim/loss")
            curves.append({"name": name, "label": labels.get(name, name), "share": share, "points": points})
        return curves

    def _settings(self) -> dict[str, Any]:
        """All settings, beside those of the preset that they differ from least."""
        config = self.settings[0]
        if config is None:
            return {"preset": None, "settings": []}
        own, others = flat(config), {name: flat(preset(name)) for name in PRESETS}
        if not isinstance(config, TrainConfig):
            others = {"default": flat(EvalConfig())}
        name = min(others, key=lambda one: sum(others[one].get(setting) != value for setting, value in own.items()))
        settings: list[dict[str, Any]] = []
        for section in fields(config):
            for setting, value in flat(getattr(config, section.name)).items():
                before = others[name].get(setting)
                about = {"value": plain(value), "preset": plain(before), "differs": before != value and setting != "out"}
                settings.append({"section": section.name, "name": setting} | about)
        return {"preset": name if isinstance(config, TrainConfig) else None, "settings": settings}

    def _used(self) -> list[dict[str, Any]]:
        """Updates, debates, tokens and time, by what they were used for."""
        if self.source.kind == "eval":
            return self._eval_cost()
        warm, train, evals = self.history.warm, self.history.train, self.history.evals
        debates, sampled = total(train, "debates/done"), total(train, "tokens/sampled")
        trained, seconds = total(train, "tokens/trained"), total(train, "time/sample_s", "time/train_s")
        rows = [
            ("Warm start", len(warm), None, None, total(warm, "tokens/trained"), total(warm, "time/train_s")),
            ("Self-play", len(train), debates, sampled, trained, seconds),
            ("Evaluation", len(evals), None, None, None, total(evals, "time/eval_s")),
        ]
        names = ("name", "times", "debates", "sampled", "trained", "seconds")
        return [dict(zip(names, row, strict=True)) | {"usd": None} for row in rows if row[1]]

    def _eval_cost(self) -> list[dict[str, Any]]:
        parts: dict[str, dict[str, float]] = {}
        for line in _records(self.source, "time.jsonl"):
            if isinstance(name := line.get("part"), str):
                part = parts.setdefault(name[:80], {"times": 0, "sampled": 0.0, "seconds": 0.0, "usd": 0.0})
                part["times"] += 1
                for column in ("sampled", "seconds", "usd"):
                    part[column] += number(line.get(column)) or 0.0
        return [{"name": name, "debates": None, "trained": None} | part for name, part in parts.items()]

    def _charts(self) -> list[dict[str, Any]]:
        """How metrics are best drawn. Lines of one metric and several tasks are told apart by the task."""
        names, charts = self.history.names, dict[tuple[str, str], dict[str, Any]]()
        for shown in all_shown(names["train"]):
            named = shown.matches(names[shown.phase])[:50] if shown.chart else []
            for name, stars in named:
                if shown.chart is None or not any(
                    number(line.get(name)) is not None for line in self.history.phases[shown.phase]
                ):
                    continue
                label, title = (_filled(text, stars) for text in (shown.label, shown.chart.title))
                several = len(named) > 1 and "{" not in shown.label
                chart = asdict(shown.chart) | {"title": title, "share": shown.chart.share, "lines": []}
                line = {"name": name, "label": f"{label}: {stars[0]}" if several else label, "phase": shown.phase}
                charts.setdefault((shown.chart.group, title), chart)["lines"].append(line)
        return list(charts.values())

    def _saved(self, folder: str, *, folders: bool) -> list[dict[str, Any]]:
        """Checkpoints, or what reproduces updates that were skipped."""
        found: list[dict[str, Any]] = []
        for entry in safe.listing(self.source.path, folder, folders=folders) if self.source.kind == "run" else ():
            at = Progress.of(entry.name if folders else entry.name.partition(".")[0])
            if at and (folders or entry.name.endswith(".npz")):
                held = safe.listing(self.source.path, folder, entry.name) if folders else [entry]
                about = {"name": entry.name, "step": at.step, "warm": at.warm, "bytes": sum(one.size for one in held)}
                found.append(about | {"changed": entry.mtime_ns / 1e9})
        return sorted(found, key=lambda one: (one["step"], one["warm"]))

    def _accuracy(self) -> list[tuple[str, Sequence[float]]]:
        """The ways of answering of an evaluation, in order."""
        accuracy = self.result["accuracy"] if self.result else {}
        return [(name, accuracy[name]) for name in in_order(accuracy)]

    def _result(self) -> dict[str, Any] | None:
        if not (result := self.result):
            return None
        rows = [
            {"name": name, "label": title(name), "value": value, "low": low, "high": high}
            | {"difference": result["difference"].get(name), "tokens": result["tokens"].get(name)}
            for name, (value, low, high) in self._accuracy()
        ]
        titles = share_titles(result["shares"])
        shares = [
            {"name": name, "label": titles.get(name, name)}
            | dict(zip(("value", "low", "high", "of"), result["shares"][name], strict=True))
            for name in titles | result["shares"]
        ]
        dropped = {str(name)[:300]: str(why)[:1000] for name, why in list(result["dropped"].items())[:1000]}
        return {"reference": result["reference"], "rows": rows, "shares": shares, "dropped": dropped}


def changed_at(source: Source, *, growing: bool = False) -> float:
    """When a source last changed, in seconds since 1970. ``growing``: by what is added to while work goes on."""
    if source.kind == "file":
        names: Sequence[tuple[str, ...]] = [()]
    elif growing:
        names = [("metrics.jsonl",)] if source.kind == "run" else [part.path for part in source.parts()]
    else:
        names = [("run.json",), ("eval.json",), ("metrics.jsonl",), ("result.json",)]
    entries = [safe.entry_of(source.path, *name) for name in names]
    return max((entry.mtime_ns / 1e9 for entry in entries if entry), default=0.0)


def is_growing(source: Source) -> bool:
    """Whether something was added just now."""
    return time.time() - changed_at(source, growing=True) < _GROWING_S


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock. We must not try to take it: somebody who begins would be refused."""
    with contextlib.suppress(OSError, ValueError):
        about = os.stat(path, follow_symlinks=False)
        lines = Path("/proc/locks").read_text().splitlines()
        held = [line.split() for line in lines if "FLOCK" in line and "WRITE" in line]
        return any(words[-3].rpartition(":")[2] == str(about.st_ino) for words in held if len(words) >= 8)
    return False


def _records(source: Source, name: str) -> list[dict[str, Any]]:
    """The JSON objects of a log, one a line; lines that were torn are left out."""
    records: list[dict[str, Any]] = []
    for line in (safe.read(source.path, name) or b"").split(b"\n"):
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(record := json.loads(line or b"null"), dict):
                records.append(record)
    return records


def _flattened(value: Any, name: str = "", depth: int = 4) -> list[tuple[str, str | None]]:
    if isinstance(value, dict) and depth:
        below = [(f"{name}.{key}"[-80:] if name else key[:80], one) for key, one in list(value.items())[:_MOST_FACTS]]
        return [row for key, one in below for row in _flattened(one, key, depth - 1)]
    return [(name, value if value is None else str(value)[:_LONGEST_FACT])]


def _filled(template: str, stars: tuple[str, ...]) -> str:
    """A label or title with what the *s stand for. Not ``format``: names come from a file and may hold anything."""
    for index, star in enumerate(stars):
        template = template.replace(f"{{{index}}}", star)
    return template


def _word(value: object) -> str | None:
    return None if value is None else str(value)[:_LONGEST_FACT]
