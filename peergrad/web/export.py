"""The viewer's page with its data in it, to be opened without a server: one file, or a folder (docs/reference/view.md)."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any

from peergrad.debate.errors import UserError
from peergrad.runs import files
from peergrad.web.app_files import encode, static_files
from peergrad.web.library import Library, NotFoundError, Shelf
from peergrad.web.sources import Part

_FILE_MB, _FOLDER_MB = 20.0, 1000.0
_FOR_COMPARISONS = 0.25  # of the room, where there are two evaluations
_MOST_ALARMS = 20  # whose debates are in an export
_POLICY = "default-src 'none'; script-src {scripts}; style-src {styles}; img-src data:; base-uri 'none'; form-action 'none'"
_MODE = '<meta name="peergrad-mode" content="live">'
_STYLE = re.compile(r'<link rel="stylesheet" href="static/([\w./-]+)">\n?')
_SCRIPT = re.compile(r'<script (?:defer )?src="static/([\w./-]+)"></script>\n?')


def export_page(paths: Sequence[str | Path], to: Path, max_mb: float | None = None) -> Path:
    """Write a page about what is at these paths to a file that ends in .html, or to a new folder."""
    one_file = to.suffix == ".html"
    if not one_file and to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UserError(f"export: {to} is there already; give a new folder, or a file that ends in .html")
    library = Library(paths, None)
    if not library.shelves:
        raise UserError(f"{paths[0]}: holds no run, evaluation or transcript; give another place")
    budget = (max_mb if max_mb is not None else _FILE_MB if one_file else _FOLDER_MB) * 1e6
    data = _Data(library, budget, tokens=not one_file)
    if one_file:
        files.write(to, data.page(start_of(library)).encode())
    else:
        _write_folder(data, to, start_of(library))
    return to


def page_of(library: Library, max_mb: float, start: str | None = None) -> str:
    """A page about all of a library, as one file."""
    return _Data(library, max_mb * 1e6, tokens=False).page(start or start_of(library))


def start_of(library: Library) -> str:
    """What a page shows first: the only thing there is, or the list."""
    return f"source/{next(iter(library.shelves))}" if len(library.shelves) == 1 else "sources"


@dataclass
class _Data:
    """What goes into an export. ``small`` is needed at once; ``debates`` when they are looked at."""

    library: Library
    budget: float
    tokens: bool
    small: dict[str, bytes] = field(default_factory=dict)
    debates: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shelves = self.library.shelves
        parts = {id: len(shelf.source.parts()) for id, shelf in shelves.items()}
        evals = [id for id, shelf in shelves.items() if shelf.source.kind == "eval"]
        evals = [id for id in evals if parts[id] or shelves[id].overview.result]  # else it has only begun
        alike = len(shelves) == 2 and all(parts[id] == 1 or id in evals for id in shelves)  # such as two transcripts
        pairs = list(permutations(shelves if alike else evals, 2))
        room = self.budget * _FOR_COMPARISONS if pairs else 0.0
        left = self.budget - room
        by_size = sorted(shelves, key=lambda key: sum(part.entry.size for part in shelves[key].index.parts))
        for others, id in zip(range(len(shelves), 0, -1), by_size, strict=True):  # what small ones leave is for large ones
            left -= self._add_debates(id, shelves[id], left / others)
        for key in ("sources", *(f"{page}/{id}" for id in shelves for page in ("source", "metrics"))):
            self.small[key] = encode(self.library.get(key))
        for key in (f"compare/{a}/{b}" for a, b in pairs):  # the first with every other one comes first
            written = encode(self.library.get(key))
            if (room := room - len(written)) < 0:
                break
            self.debates[key] = written

    def _add_debates(self, id: str, shelf: Shelf, budget: float) -> float:
        """Take debates of the most telling parts first, as many as there is room for; returns how much they take."""
        room, every, chosen, texts = budget, shelf.index.parts, set[str](), list[dict[str, Any]]()
        for part in _telling(every, [alarm["first"] for alarm in shelf.overview.alarms]):
            chosen.add(part.name)
            shelf.index.read(part)
            for row in self.library.rows(id, [part.name]):
                if row["problem"] is not None or row["dropped"] is not None:
                    continue
                key = f"debate/{id}/{part.name}/{row['index']}"
                try:
                    debate = self.library.get(key)
                except (UserError, NotFoundError):  # damaged where the index does not look: its row says that it is left out
                    continue
                for turn in debate["turns"] if not self.tokens else ():
                    turn["tokens"] = None
                written = encode(debate)
                budget -= len(written)
                if budget < 0:
                    break
                self.debates[key] = written
                said = [debate["question"]["text"], *(turn["text"] for turn in debate["turns"])]
                said += [debate["verdict"]["text"]] if debate["verdict"] else []
                texts.append({"part": part.name, "index": row["index"], "texts": said})
            if budget < 0:
                break
        for alarm in shelf.overview.alarms[:_MOST_ALARMS]:
            key = f"alarms/{id}/{alarm['first']}"
            found = self.library.get(key)
            shelf.index.mark_alarms(alarm["first"], found["alarms"])
            self.small[key] = encode(found)
        table = self.library.get(f"debates/{id}", {"limit": "0"})
        rows = self.library.rows(id, [part.name for part in every if part.name in chosen])
        self.small[f"debates/{id}"] = encode(table | {"rows": rows, "matched": len(rows)})
        self.debates[f"said/{id}"] = encode({"debates": texts})
        return room - max(0.0, budget)

    def page(self, start: str) -> str:
        """All of it as one file: scripts and styles inline, each allowed by its hash."""
        static = static_files()
        styles, scripts = list[str](), list[str]()
        page = _STYLE.sub(lambda match: _kept(styles, static, match[1]), static["index.html"].decode())
        page = _SCRIPT.sub(lambda match: _kept(scripts, static, match[1]), page)
        policy = _POLICY.format(scripts=_hashes(scripts), styles=_hashes(styles))
        head = _head(policy, start) + "".join(f"<style>{style}</style>\n" for style in styles)
        blocks = "".join(_block(key, value) for key, value in {**self.small, **self.debates}.items())
        body = blocks + "".join(f"<script>{script}</script>\n" for script in scripts)
        return _filled(page, head, body)


def _telling(parts: Sequence[Part], alarms: Sequence[int]) -> Iterator[Part]:
    """The parts of a source, those first that say most: the ends, where alarms begin, then all others from the end."""
    by_kind: dict[str, list[Part]] = {}
    for part in parts:
        by_kind.setdefault(part.kind, []).append(part)
    ends = [part for kind in ("eval", "step") for part in (*by_kind.get(kind, [])[:1], *by_kind.get(kind, [])[-1:])]
    alarmed = [part for part in by_kind.get("step", ()) if part.step in alarms[:_MOST_ALARMS]]
    in_order = parts if parts and parts[0].step is None else reversed(parts)
    yield from {part.name: part for part in (*ends, *alarmed, *in_order)}.values()


def _write_folder(data: _Data, to: Path, start: str) -> None:
    static, named = static_files(), dict[str, str]()
    with files.writing(to):
        (to / "data").mkdir(parents=True)
        for name, content in static.items():
            if name != "index.html":
                (to / "static" / name).parent.mkdir(parents=True, exist_ok=True)
                (to / "static" / name).write_bytes(content)
        for number, (key, value) in enumerate(data.debates.items(), 1):
            named[key] = f"data/{number:06}.js"
            (to / named[key]).write_bytes(b"window.peergradData(%s,%s);\n" % (encode(key), value))
        where = "'self' file:"
        head = _head(_POLICY.format(scripts=where, styles=where), start)
        blocks = "".join(_block(key, value) for key, value in data.small.items())
        blocks += f'<script type="application/json" id="peergrad-files">{_harmless(encode(named))}</script>\n'
        page = static["index.html"].decode()
        scripts = "".join(match[0] for match in _SCRIPT.finditer(page))
        (to / "index.html").write_text(_filled(_SCRIPT.sub("", page), head, blocks + scripts))


def _filled(page: str, head: str, body: str) -> str:
    """The page with what belongs to its head and to the end of its body. Nothing in these is read as a pattern."""
    page = page.replace(_MODE, "")
    before, _, after = page.partition("<head>\n")
    top, _, rest = after.partition("</head>")
    middle, _, end = rest.rpartition("</body>")
    charset, _, others = top.partition("\n")  # must stand first
    return "".join((before, "<head>\n", charset, "\n", head, others, "</head>", middle, body, "</body>", end))


def _head(policy: str, start: str) -> str:
    metas = {"peergrad-mode": "static", "peergrad-start": start}
    named = "".join(f'<meta name="{name}" content="{html.escape(value)}">\n' for name, value in metas.items())
    return f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n{named}'


def _block(key: str, value: bytes) -> str:
    return f'<script type="application/json" data-key="{html.escape(key)}">{_harmless(value)}</script>\n'


def _harmless(value: bytes) -> str:
    """JSON that no parser of HTML can take for the end of its element: brackets stand in strings alone."""
    return value.decode().replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _kept(kept: list[str], static: dict[str, bytes], name: str) -> str:
    text = static[name].decode()
    if re.search(r"</(script|style)|<!--", text, re.IGNORECASE):
        raise ValueError(f"static/{name} can't stand inside a page")
    kept.append(text)
    return ""


def _hashes(texts: Sequence[str]) -> str:
    sums: Callable[[str], bytes] = lambda text: base64.b64encode(hashlib.sha256(text.encode()).digest())  # noqa: E731
    return " ".join(f"'sha256-{sums(text).decode()}'" for text in texts) or "'none'"
