"""A run as a plain folder (docs/reference/run.md) that may be cut off at any moment."""

from __future__ import annotations

import hashlib
import importlib
import math
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peergrad.debate.errors import UserError
from peergrad.debate.fields import read_json
from peergrad.debate.play import Played
from peergrad.debate.transcript import dump, read_file
from peergrad.debate.types import Debate
from peergrad.learn.curriculum import Outcomes
from peergrad.measure.history import Updates
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

    @property
    def eval_name(self) -> str:
        """The name of the debates of an evaluation here."""
        return f"eval_{self.name}" if self.warm else f"eval_{self.step:06}"

    @staticmethod
    def of(name: str) -> Progress | None:
        """The progress of such a name, or of a file's whose name begins so; None: it is none."""
        match = re.fullmatch(r"(warm|step)_(\d{6,})(\..*)?", name)
        return Progress(**{match[1]: int(match[2])}) if match else None


def metrics_line(at: Progress, phase: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """A line of ``metrics.jsonl``. A number that is not finite becomes null: JSON has no other word for it."""
    finite = {n: None if isinstance(v, float) and not math.isfinite(v) else v for n, v in metrics.items()}
    return {"phase": phase, "step": at.step, "warm": at.warm} | finite


def _is_metric(name: str, value: object) -> bool:
    """Whether ``log`` may have written it: a number, what kind of line it is, or the names of alarms."""
    if name == "alarms":
        return isinstance(value, list) and all(isinstance(alarm, str) for alarm in value)
    return name == "phase" or value is None or isinstance(value, int | float)


def _metrics_sum(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Run(WorkFolder):
    """Reads and writes one run folder."""

    noun, facts_name, subfolders = "run", "run.json", ("debates", "checkpoints")

    @staticmethod
    def open(path: Path | str, warn: Warn = lambda _: None) -> Run:
        """A run that exists."""
        run = Run(path, warn)
        if not run.exists:
            raise UserError(f"{path}: is no run; give the folder that `peergrad train` wrote to")
        files.refuse_links(run.path)
        return run

    @staticmethod
    def any_debates(path: Path, warn: Warn = lambda _: None) -> Iterator[Debate]:
        """The debates of a run's training, or of a transcript file; without prompts and tokens."""
        if path.is_dir():
            yield from (debate for _, debate in Run.open(path, warn).debates(thin=True))
        else:
            yield from Run.transcript(path, thin=True)

    @staticmethod
    def transcript(path: Path, *, thin: bool = False) -> Iterator[Debate]:
        """The debates of a transcript file, which may be one of a run."""
        if Run(path.parent.parent).exists:
            files.refuse_links(path.parent.parent)
        return read_file(path, thin=thin)

    def show(self) -> Any:
        """The viewer's page about the run, inside a notebook."""
        # By name: this room does not import the one that shows it.
        return importlib.import_module("peergrad.web.report").show(self)

    # Metrics and debates

    def log(self, at: Progress, phase: str, metrics: Mapping[str, Any]) -> None:
        """Add a line to ``metrics.jsonl``."""
        self._add("metrics.jsonl", metrics_line(at, phase, metrics))

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``, each once; what is no such line, or no metric in one, is left out."""
        lines = [line for line in self._logged("metrics.jsonl") if line.get("phase") in ("train", "warm", "eval")]
        metrics = [{name: value for name, value in line.items() if _is_metric(name, value)} for line in lines]
        return list({(line["phase"], line["step"], line["warm"]): line for line in metrics if "warm" in line}.values())

    @property
    def learned_nothing(self) -> bool:
        """Whether all steps so far left the weights as they were: no update was made, or every one was skipped."""
        updates = Updates.of(lines := self.metrics())
        return any(line["phase"] == "train" for line in lines) and updates.total == updates.skipped

    def check_metrics(self, at: Progress, checkpoint: Path) -> None:
        """Warn of metrics that are not those from before a checkpoint was saved: they decide what alarms go by."""
        kept = read_json(checkpoint / "state.json").get("metrics")  # checkpoints of before do not say
        path = self.path / "metrics.jsonl"
        held = path.read_bytes() if path.exists() else b""
        lines = self.metrics()
        steps = {line["step"] for line in lines if line["phase"] == "train"}
        size = kept.get("bytes") if isinstance(kept, dict) else None
        changed = kept is not None and _metrics_sum(held[: size if isinstance(size, int) else 0]) != kept
        if changed or held.count(b"\n") != len(lines) or not steps.issuperset(range(1, at.step + 1)):
            self.warn(f"{path}: was changed since {at.name} was saved; curves and alarms go by what can be read of it")

    def log_outcomes(self, at: Progress, outcomes: Outcomes) -> None:
        """Add the questions of a step, and what came of each, to ``outcomes.jsonl``."""
        self._add("outcomes.jsonl", {"step": at.step, "outcomes": dict(outcomes)})

    def outcomes(self, steps: int) -> list[Outcomes]:
        """The questions of each of so many steps; of one that can't be read, none."""
        lines = {line["step"]: line.get("outcomes") for line in self._logged("outcomes.jsonl")}
        of_step = [found if isinstance(found := lines.get(step), dict) else {} for step in range(1, steps + 1)]
        return [{id: share if isinstance(share, float) else None for id, share in one.items()} for one in of_step]

    def _add(self, name: str, line: Mapping[str, Any]) -> None:
        files.append(self.path / name, json_bytes(line) + b"\n")

    def _logged(self, name: str) -> list[dict[str, Any]]:
        """The lines of a log that say at what progress they were added."""
        lines = read_records(self.path / name)
        return [line for line in lines if type(line.get("step")) is int and type(line.get("warm", 0)) is int]

    def save_debates(self, name: str, played: Played) -> None:
        """Save the debates of a step (``step_000001``) or of an evaluation."""
        dropped = self.path / "debates" / f"{name}.dropped.json"
        dropped.unlink(missing_ok=True)  # of debates that were not saved to the end
        if played.dropped:
            files.write(dropped, json_bytes(played.dropped))
        content = b"".join(dump(debate).encode() + b"\n" for debate in played.debates)
        # First, so that debates that were not saved to the end have another one. `sha256sum -c` reads it, too.
        checksum = f"{hashlib.sha256(content).hexdigest()}  {name}.jsonl\n"
        files.write(self.path / "debates" / f"{name}.sha256", checksum.encode())
        files.write(self.path / "debates" / f"{name}.jsonl", content)

    def saved_debates(self, name: str) -> Played | None:
        """What was saved under this name, if it is whole."""
        path = self.path / "debates" / f"{name}.jsonl"
        dropped = path.with_name(f"{name}.dropped.json")
        try:
            debates = tuple(read_file(path)) if path.exists() else ()
            if len({debate.id for debate in debates}) < len(debates):
                raise UserError(f"{path}: has a debate twice")
            checksum = path.with_suffix(".sha256")  # debates of before have none
            if debates and checksum.exists() and not checksum.read_bytes().startswith(_sha256(path).encode()):
                raise UserError(f"{path}: was changed since it was saved")
            reasons = read_json(dropped) if debates and dropped.exists() else {}
        except UserError as error:
            self.warn(f"{error}; sampling these debates again")
            return None
        return Played(debates, reasons) if debates else None

    def debates(self, pattern: str = "step_*", *, thin: bool = False) -> Iterator[tuple[str, Debate]]:
        """Every saved debate that can be read, with the name of its file, in order; ``thin``: without prompts and tokens."""
        for path in sorted((self.path / "debates").glob(f"{pattern}.jsonl")):
            try:
                for debate in read_file(path, thin=thin):
                    yield path.stem, debate
            except UserError as error:
                self.warn(str(error))

    def skipped_updates(self) -> dict[Path, Progress]:
        """The saved files of updates that were skipped, and the step of each."""
        return {path: at for path in sorted((self.path / "skipped").glob("*.npz")) if (at := Progress.of(path.name))}

    # Checkpoints

    async def checkpoint(self, at: Progress, save: Callable[[Path], Awaitable[None]]) -> None:
        """Save all that is needed to resume from here. The folder has its name only once it is whole."""
        with files.new_folder(self.path / "checkpoints" / at.name) as folder:
            await save(folder)
            sums = {file.name: _sha256(file) for file in sorted(folder.iterdir())}
            metrics = self.path / "metrics.jsonl"
            state = {"step": at.step, "warm": at.warm, "sha256": sums}
            state["metrics"] = _metrics_sum(metrics.read_bytes() if metrics.exists() else b"")
            (folder / "state.json").write_bytes(json_bytes(state, indent=2))

    def checkpoints(self) -> list[Progress]:
        """What there are checkpoints of, oldest first; whether they are whole is seen when they are loaded."""
        entries = (self.path / "checkpoints").glob("*_*")
        return sorted(at for entry in entries if (at := Progress.of(entry.name)) and at.name == entry.name)

    def folder(self, at: Progress) -> Path:
        """Where a checkpoint lies; raises ``UserError`` if it is not whole."""
        folder = self.path / "checkpoints" / at.name
        if at not in (there := self.checkpoints()):
            steps = ", ".join(str(one.step) for one in there if not one.warm)
            raise UserError(f"step: {self.path} has no checkpoint of step {at.step}; there are {steps or 'none'}")
        sums = read_json(folder / "state.json").get("sha256")
        there = {file.name for file in folder.iterdir() if not file.name.startswith(".")}
        if not isinstance(sums, dict) or there != {*sums, "state.json"}:
            raise UserError(f"{folder}: is damaged or incomplete: it does not hold the files that its state.json lists")
        for name, sum_ in sums.items():
            if not (folder / name).is_file() or _sha256(folder / name) != sum_:
                raise UserError(f"{folder / name}: is damaged")
        return folder

    def newest(self) -> tuple[Progress, Path] | None:
        """The newest checkpoint that is whole. Damaged ones are named and passed over."""
        for at in reversed(self.checkpoints()):
            try:
                return at, self.folder(at)
            except UserError as error:
                self.warn(f"{error}; resuming from the one before")
        return None

    def forget_after(self, at: Progress, forget: Callable[[Path], None], ahead: int = 0) -> None:
        """Drop what was done after a checkpoint and will now be done again: metrics, checkpoints, debates, skipped updates.
        ``forget`` is told of each checkpoint before.

        The debates of the very next step stay, and of as many more as were sampled ahead: by these weights or older ones.
        """
        for name, lines in (("metrics.jsonl", self.metrics()), ("outcomes.jsonl", self._logged("outcomes.jsonl"))):
            if (self.path / name).exists():
                before = [line for line in lines if Progress(line["step"], line.get("warm", 0)) <= at]
                files.write(self.path / name, b"".join(json_bytes(line) + b"\n" for line in before))
        for file in (self.path / "debates").glob("step_*"):
            if (debated := Progress.of(file.name)) and debated.step > at.step + 1 + ahead:
                files.unlink(file)
        for file, lost_at in self.skipped_updates().items():
            if lost_at > at:
                files.unlink(file)
        for later in self.checkpoints():
            if later > at:
                folder = self.path / "checkpoints" / later.name
                forget(folder)
                files.remove(folder)

    def thin_checkpoints(self, every: int, forget: Callable[[Path], None], newest: int = 2) -> None:
        """Remove checkpoints but the first, every so many, and the newest few. ``forget`` is told of each before."""
        for at in self.checkpoints()[1:-newest]:
            if at.step == 0 or every == 0 or at.step % every:
                folder = self.path / "checkpoints" / at.name
                forget(folder)
                files.remove(folder)
