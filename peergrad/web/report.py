"""The report of a run: the viewer's page about it as one small file, and the same inside a notebook."""

from __future__ import annotations

import html
import tempfile
from dataclasses import replace
from pathlib import Path

from peergrad.debate.transcript import dump
from peergrad.debate.types import Debate
from peergrad.runs import files
from peergrad.runs.folder import Run
from peergrad.web.export import page_of
from peergrad.web.library import Library

_REPORT_MB = 4.0  # of debates; what else there is takes less than one
_HEIGHT = 720


def write_report(run: Run) -> Path:
    """Write the report to the run's folder."""
    path = run.path / "report.html"
    files.write(path, report(run).encode())
    return path


def report(run: Run) -> str:
    """The page about a run. It can be made at any moment: of its debates it has the first and the last."""
    library = Library([run.path], None)
    library.shelves = {id: shelf for id, shelf in library.shelves.items() if shelf.source.kind == "run"}
    _rename(library, run.path.absolute().name)
    return page_of(library, _REPORT_MB)


def _rename(library: Library, name: str) -> None:
    for shelf in library.shelves.values():
        shelf.source = replace(shelf.source, name=name)


class Inline:
    """A page inside a notebook, in a frame that can reach neither the notebook nor the network."""

    def __init__(self, page: str) -> None:
        self.page = page

    def _repr_html_(self) -> str:
        frame = f'sandbox="allow-scripts" width="100%" height="{_HEIGHT}" frameborder="0"'
        return f'<iframe {frame} srcdoc="{html.escape(self.page)}"></iframe>'


def show(what: Run | Debate) -> Inline:
    """A run or a debate inside a notebook."""
    if isinstance(what, Run):
        return Inline(report(what))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "debate.jsonl"
        path.write_text(dump(what) + "\n", encoding="utf-8")
        library = Library([path], None)
        _rename(library, what.id)
        return Inline(page_of(library, _REPORT_MB, f"debate/{next(iter(library.shelves))}/debates/0"))
