"""The page as a file or a folder that opens without a server: the same data, bounded, and nothing in it that acts."""

import base64
import hashlib
import html
import json
import shutil
import sys
from collections import Counter
from dataclasses import replace
from itertools import permutations

import pytest

from peergrad.debate.errors import UserError
from peergrad.debate.play import Played
from peergrad.debate.protocols import Parallel
from peergrad.debate.transcript import dump, load, read_file
from peergrad.debate.types import Question
from peergrad.runs.folder import Progress, Run
from peergrad.web.app_files import encode, static_files
from peergrad.web.export import export_page
from peergrad.web.library import Library
from peergrad.web.report import report, write_report
from tests.commands import peergrad
from tests.helpers import played, short
from tests.web.conftest import PARROT
from tests.web.exported import Page, file_data

ODD = {
    "bidi": "\u202eevil\u202c \u2066x\u2069",
    "zero width": "a\u200bb\u200d\ufeffc\u2060",
    "nul": "a\x00b\x1b[31mred",
    "markup": "</script><script>alert(1)</script><!-- <img src=x onerror=alert(1)> ]]>",
    "surrogates": "a\ud800b\udfffc",
    "long": "x" * 30_000,  # in every section of every turn: a line of megabytes
    "lines": "a\u2028b\u2029c\x85d\r\ne",
    "astral": "😀" * 1000 + "𝔸",
}


def _unnamed(value):
    """Without where the sources of a comparison lie: an export does not say."""
    return value | dict.fromkeys("ab") if "summary" in value else value


def test_one_file_has_what_the_server_gives(made, tmp_path, server):
    path = export_page([made], tmp_path / "page.html")
    page, text = Page(path.read_text()), path.read_text()
    ids = {source["id"]: source for source in page.data["sources"]["sources"]}
    assert page.metas["peergrad-mode"] == "static"
    assert page.metas["peergrad-start"] == "sources"
    for id, source in ids.items():
        rows = page.data[f"debates/{id}"]["rows"]
        assert len(rows) == source["debates"]
        theirs = [row | {"snippet": None} for row in server.get(f"debates/{id}", limit=500)["rows"]]
        assert sorted(rows, key=str) == sorted(theirs, key=str)
        assert source["path"] == source["name"]
        assert page.data[f"metrics/{id}"] == server.get(f"metrics/{id}")
        for ours, theirs in zip(page.data[f"source/{id}"]["settings"], server.get(f"source/{id}")["settings"], strict=True):
            assert ours == theirs or str(theirs["value"])[0] == "/" != ours["value"][0]  # a path
        row = rows[-1]
        debate = server.get(f"debate/{id}/{row['part']}/{row['index']}")
        for turn in debate["turns"]:
            turn["tokens"] = None
        assert page.data[f"debate/{id}/{row['part']}/{row['index']}"] == debate
        said = {(one["part"], one["index"]): one["texts"] for one in page.data[f"said/{id}"]["debates"]}
        assert said[row["part"], row["index"]][1] == debate["turns"][0]["text"]
    # Nothing is fetched, and nothing runs but our own scripts, by their hashes.
    policy = page.metas["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    for script in (*page.scripts, *page.styles):
        assert f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in policy
    assert not any("src" in attributes or "href" in attributes for tag, attributes in page.elements if tag != "link")
    assert text.index("Content-Security-Policy") < text.index("<style>") < text.index("<script")


def test_a_folder_has_it_too(made, tmp_path, server):
    folder = export_page([made / "evals" / "before", made / "evals" / "after"], tmp_path / "page")
    page, (a, b) = Page((folder / "index.html").read_text()), (server.id("before"), server.id("after"))
    assert {key.partition("/")[0] for key in page.files} == {"debate", "said", "compare"}
    for key in (f"debate/{a}/debate/3", f"compare/{a}/{b}", f"compare/{b}/{a}"):
        found, value = file_data((folder / page.files[key]).read_text())
        assert (found, _unnamed(value)) == (key, _unnamed(server.get(key)))
    for name in static_files():
        assert name == "index.html" or (folder / "static" / name).is_file()
    assert "'self' file:" in page.metas["Content-Security-Policy"]
    assert not page.scripts
    with pytest.raises(UserError, match="is there already"):
        export_page([made], folder)


def test_it_does_not_say_where_on_this_machine_things_lie(made, tmp_path):
    home = tmp_path / "home of" / "John Smith"
    shutil.copytree(made, home)
    run = home / "runs" / "parrot"
    settings = (run / "config.toml").read_text()
    (run / "config.toml").write_text(settings.replace("# prompts is not set", f'prompts = "{home}/my words"'))
    (run / "debates" / "step_000002.dropped.json").write_text(json.dumps({"d": f"OSError: '{home}/x' is full"}))
    shutil.copytree(run, home / "runs" / "torn")
    (home / "runs" / "torn" / "config.toml").write_text("[learn]\nsteps = -1\n")
    shutil.copytree(run, home / "runs" / "damaged")
    (home / "runs" / "damaged" / "run.json").write_text("{")
    for path in (home, home / "runs" / "torn"):
        folder = export_page([path], tmp_path / f"{path.name} as a folder")
        texts = [one.read_text() for one in (export_page([path], tmp_path / "page.html"), *folder.rglob("*.html"))]
        texts += [one.read_text() for one in folder.rglob("data/*.js")]
        for place in ("of/John", str(tmp_path), str(PARROT.parent)):  # its model lies there
            assert not any(place in text for text in texts)
    for source in Page(export_page([home], tmp_path / "all.html").read_text()).data["sources"]["sources"]:
        assert source["name"].startswith("John Smith/")
        damage = {"torn": "steps: -1", "damaged": "what it is can't be read", "parrot": "prompts: John Smith/runs/parrot"}
        assert damage.get(source["name"].rpartition("/")[2], "") in (source["problem"] or "")


def test_evaluations_are_compared_whatever_lies_beside_them(made, own, tmp_path, server):
    for name in "xy":
        shutil.copytree(made / "evals" / "after", own / "evals" / name)
    shutil.rmtree(own / "evals" / "y" / "debates")  # its numbers are left
    page = Page(export_page([own], tmp_path / "page.html").read_text())
    order = [source["id"] for source in page.data["sources"]["sources"] if source["kind"] == "eval"]
    compared = [key.split("/")[1:] for key in page.data if key.startswith("compare/")]
    assert compared == [[a, b] for a, b in permutations(order, 2)]
    (y,) = [source["id"] for source in page.data["sources"]["sources"] if source["name"].endswith("/y")]
    numbers = page.data[f"compare/{order[0]}/{y}"]
    assert (numbers["counts"]["shared"], numbers["questions"]) == (0, [])
    assert "debate/winner" in {row["name"] for row in numbers["summary"]}
    tight = Page(export_page([own], tmp_path / "tight.html", max_mb=0.08).read_text())
    kept = [key for key in tight.data if key.startswith("compare/")]
    assert 0 < len(kept) < len(compared)
    assert sum(len(json.dumps(tight.data[key])) for key in kept) < 0.05e6


def test_an_evaluation_that_has_only_begun_is_compared_with_none(own, tmp_path):
    for path in (own / "evals" / "after" / "debates").iterdir():
        path.unlink()
    (own / "evals" / "after" / "result.json").unlink()
    for more in ([], [own / "runs"], [own / "debates"]):
        page = Page(export_page([own / "evals", *more], tmp_path / "page.html").read_text())
        assert not [key for key in page.data if key.startswith("compare/")]


def test_two_transcripts_are_compared(own, tmp_path):
    shutil.copy(own / "debates" / "said.jsonl", own / "debates" / "again.jsonl")
    page = Page(export_page([own / "debates"], tmp_path / "page.html").read_text())
    ids = [source["id"] for source in page.data["sources"]["sources"]]
    assert [key for key in page.data if key.startswith("compare/")] == [f"compare/{a}/{b}" for a, b in permutations(ids)]
    assert page.data[f"compare/{ids[0]}/{ids[1]}"]["counts"]["same"] == 9


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("/home/John Smith/my words", "…/my words"),
        ("full is /home/John Smith/runs/x now", "full is …/x now"),
        ("at /home/John Smith now", "at /~ now"),
        ("no file: '/srv/Alice Doe/my words'", "no file: '…/my words'"),
        ("no file: \"/srv/Alice O'Hara/x\" or '/srv/b c/y'", "no file: \"…/x\" or '…/y'"),
        ("file:///srv/alice/x", "…/x"),
        ("../../alice/runs", "…/runs"),
        ("of ../alice/runs too", "of …/runs too"),
        ("Think. /no_think", "Think. /no_think"),
        ("/no_think", "/no_think"),
        ("and/or 1/2 https://host.example/a/b", "and/or 1/2 https://host.example/a/b"),
    ],
)
def test_of_a_path_the_last_name_is_shown(own, tmp_path, monkeypatch, said, shown):
    monkeypatch.setenv("HOME", "/home/John Smith")
    settings = own / "runs" / "parrot" / "config.toml"
    lines = [line for line in settings.read_text().splitlines() if not line.startswith("model =")]
    lines.insert(lines.index("[engine]") + 1, f"model = {json.dumps(said)}")
    settings.write_text("\n".join(lines))
    page = Page(export_page([settings.parent], tmp_path / "page.html").read_text())
    assert [one["value"] for one in page.only("source")["settings"] if one["name"] == "model"] == [shown]


def test_a_bound_keeps_the_ends(own, tmp_path):
    run = Run(own / "runs" / "parrot")
    said = list(read_file(own / "debates" / "said.jsonl"))
    for step in range(1, 30):
        run.save_debates(f"step_{step:06}", Played(tuple(said), {}))
    path = export_page([run.path], tmp_path / "page.html", max_mb=0.9)
    page = Page(path.read_text())
    assert path.stat().st_size < 0.9e6 + sum(map(len, static_files().values())) + 600_000
    parts = {key.split("/")[2] for key in page.data if key.startswith("debate/")}
    assert {"eval_000000", "eval_000003", "step_000001", "step_000029"} <= parts
    assert "step_000014" not in parts
    assert page.only("debates")["indexed"] < 1
    assert len(page.only("source")["parts"]) == 31


def test_work_grows_with_the_debates_and_no_faster(made, tmp_path):
    line = next((made / "debates" / "said.jsonl").open("rb"))

    def calls(steps):
        """How many functions are called for a folder of so many files."""
        run, count = tmp_path / f"run{steps}", Counter()
        shutil.copytree(made / "runs" / "parrot", run, ignore=shutil.ignore_patterns("debates", "checkpoints", "skipped"))
        (run / "debates").mkdir()
        for step in range(1, steps + 1):
            (run / "debates" / f"step_{step:06}.jsonl").write_bytes(line)
        sys.setprofile(lambda frame, event, what: count.update([event]))
        try:
            export_page([run], tmp_path / f"page{steps}")
        finally:
            sys.setprofile(None)
        return count.total()

    ten, fifty, ninety = map(calls, (10, 50, 90))
    assert ninety - fifty < 1.01 * (fifty - ten)


def test_what_small_sources_leave_is_for_large_ones(made, tmp_path):
    line = next((made / "debates" / "said.jsonl").open("rb"))
    for name, count in (("a", 60), ("b", 1), ("c", 1)):
        (tmp_path / f"{name}.jsonl").write_bytes(count * line)
    paths = [tmp_path / f"{name}.jsonl" for name in "abc"]
    whole = _debates(export_page(paths, tmp_path / "whole.html", max_mb=100))
    room = sum(map(len, whole.values())) * 1.01
    assert len(whole) == 62
    assert _debates(export_page(paths, tmp_path / "tight.html", max_mb=room / 1e6)) == whole


def _debates(path):
    data = Page(path.read_text()).data
    return {key: encode(value) for key, value in data.items() if key.startswith("debate/")}


def test_the_report_is_the_page_about_the_run(own):
    run = Run(own / "runs" / "parrot")
    for step, names in ((4, []), (5, ["format collapse"]), (6, ["format collapse"])):
        run.log(
            Progress(step),
            "train",
            {"optim/loss": float("nan"), "alarms": names, "optim/skipped": 1.0, "optim/updates": 1.0},
        )
    path = write_report(run)
    assert path == run.path / "report.html"
    assert path.read_text() == report(run), "the same folder gives the same page"
    page = Page(path.read_text())
    (source,) = page.data["sources"]["sources"]
    assert page.metas["peergrad-start"] == f"source/{source['id']}"
    assert source["alarms"] == [{"name": "format collapse", "first": 5, "last": 6}]
    assert source["updates"]["skipped"] == 3
    assert page.data[f"metrics/{source['id']}"]["phases"]["train"]["values"]["optim/skipped"][-1] == 1.0
    result = peergrad("report", run.path)
    assert result.stdout.strip() == str(path)
    result = peergrad("view", run.path, "--export", own / "x.html")
    assert result.returncode == 0, result.stderr
    assert (own / "x.html").stat().st_size > 100_000


def test_a_run_that_has_hardly_begun(own):
    run = Run(own / "runs" / "parrot")
    for folder in ("debates", "checkpoints"):
        for path in (run.path / folder).rglob("*.jsonl"):
            path.unlink()
    (run.path / "metrics.jsonl").unlink()
    page = Page(report(run))
    assert page.data["sources"]["sources"][0]["debates"] == 0
    assert page.only("metrics")["phases"]["train"]["values"] == {}


def test_a_notebook_shows_runs_and_debates(own, made):
    debate = next(read_file(made / "debates" / "said.jsonl"))
    for shown, start in ((debate.show(), "debate/"), (Run(own / "runs" / "parrot").show(), "source/")):
        frame = shown._repr_html_()
        assert frame.startswith('<iframe sandbox="allow-scripts"')
        page = Page(html.unescape(frame.partition('srcdoc="')[2].rpartition('"')[0]))
        assert page.metas["peergrad-start"].startswith(start)


@pytest.mark.parametrize("name", ODD)
def test_odd_texts_are_only_texts(tmp_path, name):
    """In every field, over the index, the search, the debate and the export."""
    odd = ODD[name]
    fits = odd.encode("utf-8", "replace").decode().replace("\x00", "?")[:1000]
    question = Question(f"q{odd[:300]}", f"What? {odd}", answer=odd[:500], style="boxed", dataset=odd[:300])
    protocol = Parallel(agents=3, max_rounds=2, max_tokens=10_000_000)

    def votes(ask):
        ballot = f"Agent {(ask.agent + 1) % 3} > Agent {(ask.agent + 2) % 3} {odd}"
        return short(ballot, f"{odd} \\boxed{{{odd[:500]}}}", odd)

    debate = played(protocol, votes, replace(question, id="q"))
    debate = replace(debate, id=f"d{odd[:300]}", question=question)  # a folder that was sent may have any names
    turns = [replace(turn, tokens=None, by=fits if turn.agent == 0 else "") for turn in debate.turns]
    debate = replace(debate, turns=tuple(turns))
    path = tmp_path / "odd.jsonl"
    path.write_bytes(dump(debate).encode() + b"\n")
    library = Library([path], None)
    assert library.update(None)
    (id,) = library.shelves
    table = json.loads(encode(library.get(f"debates/{id}")))
    row = table["rows"][0]
    assert (table["total"], row["problem"], row["votes"]) == (1, None, 3)
    assert row["question"] == f"What? {odd}"[:300]
    page = json.loads(encode(library.get(f"debate/{id}/debates/0")))
    loaded = load(dump(debate))
    assert [turn["text"] for turn in page["turns"]] == [turn.text for turn in loaded.turns]
    assert page["question"]["text"] == question.text
    for turn in page["turns"]:
        units = turn["text"].encode("utf-16-le")
        assert "".join(units[2 * a : 2 * b].decode("utf-16-le") for a, b, *_ in turn["credit"]) == turn["text"]
    word = odd.replace("\ud800", "\ufffd").replace("\udfff", "\ufffd")[:150]
    assert library.get(f"debates/{id}", {"q": word})["matched"] == 1
    assert library.get(f"question/{id}", {"question": question.id})["rows"][0]["id"] == row["id"]
    exported = export_page([path], tmp_path / "page.html")
    shown = Page(exported.read_text(encoding="utf-8"))
    assert shown.only("debates")["rows"] == table["rows"]
    assert len(shown.scripts) == sum(name.endswith(".js") for name in static_files()), "no script but ours"
    assert not any(attribute.startswith("on") for _, attributes in shown.elements for attribute in attributes)


def test_a_line_that_is_too_long_is_named(tmp_path, monkeypatch, made):
    monkeypatch.setattr("peergrad.web.lines.MOST_BYTES", 30_000)
    lines = (made / "debates" / "said.jsonl").read_bytes().splitlines(keepends=True)
    small = dump(load(lines[-1]), thin=True).encode() + b"\n"
    path = tmp_path / "x.jsonl"
    path.write_bytes(small + b'{"id": "' + b"x" * 5_000_000 + b'"}\n' + small)
    library = Library([path], None)
    library.update(None)
    rows = library.get(f"debates/{next(iter(library.shelves))}")["rows"]
    assert [row["flags"] == ["damaged"] for row in rows] == [False, True, False]
    assert "longer than" in rows[1]["problem"]
