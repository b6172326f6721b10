"""A run as a plain folder (docs/reference/run.md) that may be cut off at any moment, and loggers of its metrics."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import re
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from peergrad.debate.errors import UserError
from peergrad.debate.play import Played
from peergrad.debate.transcript import dump, read_file
from peergrad.debate.types import Debate
from peergrad.learn.curriculum import Outcomes
from peergrad.runs import files
from peergrad.runs.files import Warn, WorkFolder, json_bytes, read_records


@dataclass(frozen=True, slots=True, order=True)
class Progress:
    """How far a run is: updates of the self-play; before its first one, updates of the warm start."""

    step: int = 0
    warm: int = 0

    @property
    def name(self) -> str:
        """The name of its checkpoint."""
        return f"warm_{self.warm:06}" if self.warm else f"step_{self.step:06}"

    @staticmethod
    def of(name: str) -> Progress | None:
        """The progress of such a name; None: it is none."""
        match = re.fullmatch(r"(warm|step)_(\d{6,})", name)
        return Progress(**{match[1]: int(match[2])}) if match else None


def metrics_line(at: Progress, phase: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """A line of ``metrics.jsonl``. A number that is not finite becomes null: JSON has no other word for it."""
    finite = {n: None if isinstance(v, float) and not math.isfinite(v) else v for n, v in metrics.items()}
    return {"phase": phase, "step": at.step, "warm": at.warm} | finite


class Run(WorkFolder):
    """Reads and writes one run folder."""

    noun, facts_name, subfolders = "run", "run.json", ("debates", "checkpoints")

    @staticmethod
    def open(path: Path, warn: Warn = lambda _: None) -> Run:
        """A run that exists."""
        run = Run(path, warn)
        if not run.exists:
            raise UserError(f"{path}: is no run; give the folder that `peergrad train` wrote to")
        return run

    @staticmethod
    def any_debates(path: Path, warn: Warn = lambda _: None) -> Iterator[Debate]:
        """The debates of a run's training, or of a transcript file; without prompts and tokens."""
        if path.is_dir():
            yield from (debate for _, debate in Run.open(path, warn).debates(thin=True))
        else:
            yield from read_file(path, thin=True)

    def show(self) -> Any:
        """The viewer's page about the run, inside a notebook."""
        # By name: this room does not import the one that shows it.
        return importlib.import_module("peergrad.web.report").show(self)

    # Metrics and debates

    def log(self, at: Progress, phase: str, metrics: Mapping[str, Any]) -> None:
        """Add a line to ``metrics.jsonl``."""
        files.append(self.path / "metrics.jsonl", json_bytes(metrics_line(at, phase, metrics)) + b"\n")

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``; a torn one is left out."""
        lines = [line for line in read_records(self.path / "metrics.jsonl") if "phase" in line]
        return [line for line in lines if all(isinstance(line.get(name), int) for name in ("step", "warm"))]

    def log_outcomes(self, at: Progress, outcomes: Outcomes) -> None:
        """Add the questions of a step, and what came of each, to ``outcomes.jsonl``."""
        files.append(self.path / "outcomes.jsonl", json_bytes({"step": at.step, "outcomes": dict(outcomes)}) + b"\n")

    def outcomes(self, steps: int) -> list[Outcomes]:
        """The questions of each of so many steps; of one that can't be read, none."""
        lines = {line.get("step"): line.get("outcomes") for line in read_records(self.path / "outcomes.jsonl")}
        of_step = [found if isinstance(found := lines.get(step), dict) else {} for step in range(1, steps + 1)]
        return [{id: share if isinstance(share, float) else None for id, share in one.items()} for one in of_step]

    def save_debates(self, name: str, played: Played) -> None:
        """Save the debates of a step (``step_000001``) or of an evaluation."""
        dropped = self.path / "debates" / f"{name}.dropped.json"
        dropped.unlink(missing_ok=True)  # of debates that were not saved to the end
        if played.dropped:
            files.write(dropped, json_bytes(played.dropped))
        lines = [dump(debate).encode() + b"\n" for debate in played.debates]
        files.write(self.path / "debates" / f"{name}.jsonl", b"".join(lines))

    def saved_debates(self, name: str) -> Played | None:
        """What was saved under this name, if it is whole."""
        path = self.path / "debates" / f"{name}.jsonl"
        dropped = path.with_name(f"{name}.dropped.json")
        try:
            debates = tuple(read_file(path)) if path.exists() else ()
            reasons = files.read_object(dropped) if debates and dropped.exists() else {}
        except UserError as error:
            self._warn(f"{error}; sampling these debates again")
            return None
        return Played(debates, reasons) if debates else None

    def debates(self, pattern: str = "step_*", *, thin: bool = False) -> Iterator[tuple[str, Debate]]:
        """Every saved debate that can be read, with the name of its file, in order; ``thin``: without prompts and tokens."""
        for path in sorted((self.path / "debates").glob(f"{pattern}.jsonl")):
            try:
                for debate in read_file(path, thin=thin):
                    yield path.stem, debate
            except UserError as error:
                self._warn(str(error))

    def skipped_updates(self) -> dict[Path, Progress]:
        """The saved files of updates that were skipped, and the step of each."""
        paths = sorted((self.path / "skipped").glob("*.npz"))
        return {path: at for path in paths if (at := Progress.of(re.sub(r"\.\d+$", "", path.stem)))}

    # Checkpoints

    async def checkpoint(self, at: Progress, save: Callable[[Path], Awaitable[None]]) -> None:
        """Save all that is needed to resume from here. The folder has its name only once it is whole."""
        final = self.path / "checkpoints" / at.name
        temporary = final.with_name(f".{at.name}.part")
        with files.writing(final):
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            await save(temporary)
            sums = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(temporary.iterdir())}
            (temporary / "state.json").write_bytes(json_bytes({"step": at.step, "warm": at.warm, "sha256": sums}, indent=2))
        files.publish(temporary, final)

    def checkpoints(self) -> list[Progress]:
        """What there are checkpoints of, oldest first; whether they are whole is seen when they are loaded."""
        return sorted(at for entry in (self.path / "checkpoints").glob("*_*") if (at := Progress.of(entry.name)))

    def folder(self, at: Progress) -> Path:
        """Where a checkpoint lies; raises ``UserError`` if it is not whole."""
        folder = self.path / "checkpoints" / at.name
        if at not in (there := self.checkpoints()):
            steps = ", ".join(str(one.step) for one in there if not one.warm)
            raise UserError(f"step: {self.path} has no checkpoint of step {at.step}; there are {steps or 'none'}")
        try:
            state = json.loads((folder / "state.json").read_bytes())
            for name, sum_ in state["sha256"].items():
                if Path(name).name != name or not (folder / name).is_file():  # a folder that was sent may name anything
                    raise ValueError(name)
                if hashlib.sha256((folder / name).read_bytes()).hexdigest() != sum_:
                    raise UserError(f"{folder / name}: is damaged")
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"{folder}: is damaged or incomplete") from None
        return folder

    def newest(self) -> tuple[Progress, Path] | None:
        """The newest checkpoint that is whole. Damaged ones are named and passed over."""
        for at in reversed(self.checkpoints()):
            try:
                return at, self.folder(at)
            except UserError as error:
                self._warn(f"{error}; resuming from the one before")
        return None

    def forget_after(self, at: Progress, ahead: int = 0) -> None:
        """Drop what was done after a checkpoint and will now be done again: metrics, checkpoints, debates, skipped updates.

        The debates of the very next step stay, and of as many more as were sampled ahead: by these weights or older ones.
        """
        lines = [line for line in self.metrics() if Progress(line["step"], line["warm"]) <= at]
        files.write(self.path / "metrics.jsonl", b"".join(json_bytes(line) + b"\n" for line in lines))
        if (outcomes := self.path / "outcomes.jsonl").exists():
            steps = [
                line for line in read_records(outcomes) if isinstance(line.get("step"), int) and line["step"] <= at.step
            ]
            files.write(outcomes, b"".join(json_bytes(line) + b"\n" for line in steps))
        for file in (self.path / "debates").glob("step_*"):
            debated = Progress.of(file.name.removesuffix(".jsonl").removesuffix(".dropped.json"))
            if debated and debated.step > at.step + 1 + ahead:
                files.unlink(file)
        for file, lost_at in self.skipped_updates().items():
            if lost_at > at:
                files.unlink(file)
        for later in self.checkpoints():
            if later > at:
                files.remove(self.path / "checkpoints" / later.name)

    def thin_checkpoints(self, every: int, forget: Callable[[Path], None], newest: int = 2) -> None:
        """Remove checkpoints but the first, every so many, and the newest few. ``forget`` is told of each before."""
        for at in self.checkpoints()[1:-newest]:
            if at.step == 0 or every == 0 or at.step % every:
                folder = self.path / "checkpoints" / at.name
                forget(folder)
                files.remove(folder)


# Metrics elsewhere: a logger that fails never stops a run


class Logger(NamedTuple):
    """Takes numbers by step."""

    name: str
    log: Callable[[int, Mapping[str, float]], None]
    close: Callable[[], None]


def open_loggers(names: Sequence[str], run: Path, config: Mapping[str, Any]) -> list[Logger]:
    """The loggers asked for; a missing library, or one that can't start, is said before anything is trained."""
    settings, opened = {key: str(value) for key, value in config.items()}, list[Logger]()
    for name in names:
        try:
            if name == "tensorboard":
                opened.append(_tensorboard(run, settings))
            else:  # wandb, and trackio, which has the same functions
                tracker: Any = importlib.import_module(name).init(project="peergrad", name=run.name, config=settings)
                opened.append(Logger(name, lambda step, numbers, to=tracker: to.log({**numbers}, step=step), tracker.finish))
        except ImportError:
            raise UserError(
                f"log_to: {name} is not installed; pip install {name}, or leave it out: files are always written"
            ) from None
        except Exception as error:  # whatever such a library may raise: no key, no network, no space
            raise UserError(f"log_to: {name} can't start ({type(error).__name__}: {error}); or leave it out") from None
    return opened


class Loggers:
    """Several loggers. One that fails is told of once and left out from then on: a run never stops for it."""

    def __init__(self, loggers: Sequence[Logger], warn: Callable[[str], None]) -> None:
        self._loggers, self._warn = list(loggers), warn

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._each(lambda logger: logger.log(step, metrics))

    def close(self) -> None:
        self._each(lambda logger: logger.close())

    def _each(self, do: Callable[[Logger], None]) -> None:
        for logger in list(self._loggers):
            try:
                do(logger)
            except Exception as error:  # as above
                self._loggers.remove(logger)
                self._warn(f"{logger.name} failed ({error}); going on without it")


def _tensorboard(run: Path, config: Mapping[str, str]) -> Logger:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(run / "tensorboard"))
    writer.add_text("config", "\n".join(f"    {name} = {value}" for name, value in config.items()))

    def log(step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)

    return Logger("tensorboard", log, writer.close)
