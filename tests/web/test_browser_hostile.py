"""A folder that somebody sent: 200 texts that try to run, and odd ones, wherever words can be. They stay words."""

import json

import pytest

from tests.commands import peergrad
from tests.helpers import full, short
from tests.web.browser import Viewer, chromium, opened_browser, served
from tests.web.payloads import ODD, SCRIPTS

pytestmark = pytest.mark.skipif(chromium() is None, reason="there is no Chromium here; make browser installs it")

EACH = 8
TEXTS = [*SCRIPTS, *ODD]
CHUNKS = [TEXTS[start : start + EACH] for start in range(0, len(TEXTS), EACH)]


def debate(words, index, agents=3):
    """A debate with these words wherever a line of a transcript can hold any."""
    text = "\n".join(words)
    replies = [text, short(solution=text, evaluation=text), f"<think>{text}</think>" + short("N/A", text)]
    votes = [f"Agent {(seat + 1) % 3} > Agent {(seat + 2) % 3}" for seat in range(agents)]
    replies += [short(f"{votes[0]}\n{text}", text, text), text, full(votes[2], text, text)]
    asked = [{"role": "system", "text": text}, {"role": "user", "text": text}]
    turns = [
        {"agent": at % agents, "text": said, "asked": asked, "by": text[:200] if at % 2 else ""}
        for at, said in enumerate(replies)
    ]
    personas = [{"name": word[:80] or "x", "style": text, "temperature": 1.0} for word in (words * 3)[:3]]
    verdict = {
        "agent": agents,
        "text": f"<evaluation>{text}</evaluation><comparison>Agent 0 > Agent 1</comparison>",
        "asked": asked,
    }
    about = {"id": f"{index} {text}", "question": text, "question_id": f"{index}{text[:500]}", "answer": text[:2000]}
    about |= {"dataset": text[:300], "payload": {text[:300]: text[:300]}, "agents": agents, "protocol": "parallel"}
    return about | {"settings": {"personas": personas}, "turns": turns, "verdict": verdict}


def write_folder(path):
    """A run and a transcript of such debates, with such names for everything that has one."""
    run = path / f"{SCRIPTS[5].replace('/', '')} runs" / SCRIPTS[0].replace("/", "")[:100]
    (run / "debates").mkdir(parents=True)
    lines = [json.dumps(debate(words, index)) for index, words in enumerate(CHUNKS)]
    for step in range(0, len(lines), 12):
        (run / "debates" / f"step_{step // 12 + 1:06}.jsonl").write_text("\n".join(lines[step : step + 12]) + "\n")
    names = {text[:200]: text[:200] for text in TEXTS}
    (run / "debates" / "step_000001.dropped.json").write_text(json.dumps(dict(list(names.items())[:40])))
    facts = {
        "created": SCRIPTS[0],
        "model": SCRIPTS[1] + SCRIPTS[50],
        "task": SCRIPTS[2],
        "seed": SCRIPTS[3],
        "versions": names,
    }
    (run / "run.json").write_text(json.dumps(facts))
    metrics = {f"own/{name}": 1.0 for name in names if name.strip()}
    for step in range(1, 4):
        line = {
            "phase": "train",
            "step": step,
            "warm": 0,
            "replies/readable": 0.5,
            "alarms": [*SCRIPTS[:20], "format collapse"],
        }
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(line | metrics) + "\n")
    (run / "config.toml").write_text(f"preset = {json.dumps(SCRIPTS[7])}\n")
    (run / "checkpoints" / "step_000001").mkdir(parents=True)
    (run / "checkpoints" / "step_000001" / "state.json").write_text("{}")
    other = path / f"{SCRIPTS[5].replace('/', '')}.jsonl"
    other.write_text("\n".join(lines[:2]) + "\n" + '{"id": "<img src=x onerror=window.pwned=1>", torn\n')
    return path


def write_evaluation(path, value):
    """An evaluation with its result, whose questions, rows and reasons have such names."""
    (path / "debates").mkdir(parents=True)
    lines = [json.dumps(debate(words, index)) for index, words in enumerate(CHUNKS[:-1:5])]
    (path / "debates" / "debate.jsonl").write_text("\n".join(lines) + "\n")
    (path / "eval.json").write_text(json.dumps({"model": SCRIPTS[1], "task": SCRIPTS[2], "asked": 8}))
    rows, asked = [text[:200] for text in TEXTS[::6]], [text[:200] for text in SCRIPTS[:8]]
    result = {"task": SCRIPTS[2], "model": SCRIPTS[1], "questions": asked, "hashes": asked, "reference": rows[0], "asked": 8}
    result |= {"values": {name: [value] * 8 for name in rows}, "accuracy": {name: [value, 0.2, 0.8] for name in rows}}
    result |= {"difference": {name: [0.1, 0.0, 0.2] for name in rows}, "shares": {name: [0.5, 0.4, 0.6, 9] for name in rows}}
    result |= {"tokens": dict.fromkeys(rows, 7), "times": {}, "dropped": {name: name for name in rows}}
    settings = dict.fromkeys(("mode", "protocol", "agents", "max_rounds", "cost"), SCRIPTS[3])
    (path / "result.json").write_text(json.dumps(result | {"settings": settings}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = write_folder(tmp_path_factory.mktemp("hostile"))
    for value in (0.25, 0.75):
        write_evaluation(path / f"{SCRIPTS[6].replace('/', '')} {value}", value)
    return path


@pytest.fixture(scope="module")
def exported(folder, tmp_path_factory):
    to = tmp_path_factory.mktemp("exported")
    for page in ("page.html", "page"):
        peergrad("view", folder, "--export", to / page, "--max-mb", "60").check_returncode()
    return to / "page.html", to / "page" / "index.html"


def look_at_everything(viewer):
    """All pages about it; nothing may run, be fetched, or fail."""
    viewer.wait("table.runs")
    if viewer.home.startswith("http"):  # an export has only read what is in it
        viewer.until(lambda: "% read" not in viewer.text())
    run = viewer.page.get_attribute("table.runs a.open", "href").rpartition("/")[2]
    for route in ("#/?sort=-name", f"#/?pick={run}", f"#/source/{run}", f"#/source/{run}/settings?all=1"):
        viewer.go(route, "main h1")
        viewer.check()
    viewer.go(f"#/source/{run}?metric=own", ".chart canvas")
    viewer.page.click(".alarms summary >> nth=0")
    viewer.check()
    for query in ("", "?flags=dropped", "?q=onerror", "?q=%3Cscript%3E", "?q=%00"):
        viewer.go(f"#/source/{run}/debates{query}", ".controls")
        viewer.wait(".found, .empty")
        viewer.check()
    look_at_evaluations(viewer)
    viewer.go("#/", "table.runs")
    viewer.go(f"#/source/{run}/debates", ".found")
    links = viewer.page.eval_on_selector_all("table.debates a.open", "all => all.map((one) => one.hash)")
    links = [link.partition("?")[0] for link in links]
    return run, links


def look_at_evaluations(viewer):
    """Both of them, one by one and question by question."""
    viewer.go("#/", "table.runs")
    table = viewer.page.locator("section", has=viewer.page.locator("h2", has_text="Evaluations"))
    links = [link.get_attribute("href") for link in table.locator("a.open").all()]
    assert len(links) == 2
    for box in table.locator("input").all():
        box.check()
    viewer.page.click("text=Compare question by question")
    viewer.wait("td .change >> nth=7")
    viewer.page.click(".summary summary")
    viewer.check()
    for link in links:
        viewer.go(link, ".interval >> nth=0")
        viewer.page.click("text=questions were dropped")
        viewer.check()


def look_at_debates(viewer, links):
    """All of them in every view; and the texts of some votes, where a reply can be read. Returns how many of these."""
    votes = 0
    for number, link in enumerate(links):
        for view in ("view=credit&stream=gen", "view=raw&find=onerror", "turn=3"):
            viewer.go(f"{link}?{view}", "#turn-5")
        if number % 3 == 0 and viewer.count(".vote"):
            votes += 1
            viewer.page.locator(".vote").first.click()
            viewer.wait("dialog .judged >> nth=1")
            viewer.page.click("dialog .close")
            viewer.wait("dialog", "detached")
        if number % 8 == 0:
            for summary in ("#turn-3 .prompt summary", "#turn-3 .rewards summary"):
                viewer.page.click(summary)
            viewer.page.click("text=Across steps")
            viewer.wait(".diff, .failed, .empty")
        viewer.check()
    return votes


def look_at_the_longest(viewer, run):
    """A line of a million characters is shown to its end."""
    at = len(CHUNKS) - 1
    viewer.go(f"#/source/{run}/debate/step_{at // 12 + 1:06}/{at % 12}?view=raw", "#turn-0 .more")
    viewer.page.click("#turn-0 .more")
    viewer.wait("#turn-0 .more", "detached")
    shown = viewer.page.locator("#turn-0 > .raw .text").text_content()
    assert len(shown) > 1_000_000
    assert shown.endswith("m" * 1000)
    viewer.check()


def test_words_stay_words(folder, exported, tmp_path_factory):
    with opened_browser() as browser, served(folder, cache=tmp_path_factory.mktemp("cache")) as url:
        viewer = Viewer(browser, url)
        run, links = look_at_everything(viewer)
        assert len(links) == len(CHUNKS)
        assert look_at_debates(viewer, links) > 8
        raw = f"#/source/{run}/debate/step_000001/0?view=raw"
        viewer.go(raw, "#turn-0 > .raw")
        assert viewer.page.locator("#turn-0 > .raw .text").text_content() == "\n".join(SCRIPTS[:EACH])
        look_at_the_longest(viewer, run)
        viewer.close()
        for page in exported:
            viewer = Viewer(browser, page.as_uri())
            _, links = look_at_everything(viewer)
            assert links
            assert look_at_debates(viewer, links) > 1
            viewer.close()
