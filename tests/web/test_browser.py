"""The viewer as a person uses it: every page, filter and key, live, in an exported file and folder, in a real browser."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from importlib import resources
from pathlib import Path
from urllib.parse import quote

import pytest

from peergrad.config import changed, preset
from peergrad.debate.play import Played
from peergrad.debate.transcript import read_file
from peergrad.reward.rewards import score
from peergrad.runs.folder import Run
from peergrad.web.export import export_page
from peergrad.web.scoring import FLAGS
from tests.web.browser import WAIT, Viewer, chromium, opened_browser, served
from tests.web.gallery import write_gallery

pytestmark = pytest.mark.skipif(chromium() is None, reason="there is no Chromium here; make browser installs it")

GOLDEN = Path(__file__).parent.parent / "golden"
PARROT = Path(__file__).parent.parent / "fixtures" / "parrot"


@pytest.fixture(scope="module")
def gallery(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gallery")
    write_gallery(folder, str(PARROT))
    shutil.copytree(GOLDEN, folder / "debates", ignore=shutil.ignore_patterns("*.py", "*.json"), dirs_exist_ok=True)
    cut_off = json.loads((GOLDEN / "worked.jsonl").read_text().splitlines()[0])
    cut_off["turns"][0]["truncated"] = True
    (folder / "debates" / "odd.jsonl").write_text(json.dumps(cut_off) + '\n{"id": "damaged"\n')
    return folder


@pytest.fixture(scope="module")
def exported(gallery):
    """The addresses of the same as one file and as a folder."""
    paths = [gallery / name for name in ("runs", "evals", "debates")]
    for to in ("page.html", "page"):
        export_page(paths, gallery / to)
    return {"file": (gallery / "page.html").as_uri(), "folder": (gallery / "page" / "index.html").as_uri()}


@pytest.fixture(scope="module")
def chrome(gallery, exported):  # what plays debates runs before it: playwright has a loop of its own
    with opened_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def address(gallery, chrome, tmp_path_factory):
    folders = [gallery / name for name in ("runs", "evals", "debates")]
    with served(*folders, cache=tmp_path_factory.mktemp("cache")) as url:
        yield url


@pytest.fixture(scope="module", params=["live", "file", "folder"])
def viewer(request, chrome, address, exported):
    """The page with everything in it: from the server, and from a disk."""
    one = Viewer(chrome, {"live": address, **exported}[request.param])
    one.wait("table.runs")
    one.until(lambda: "% read" not in one.text())
    yield one
    one.close()


@pytest.fixture(scope="module")
def live(chrome, address):
    one = Viewer(chrome, address)
    one.wait("table.runs")
    one.until(lambda: "% read" not in one.text())
    yield one
    one.close()


def ids(viewer):
    """The id of each source by its name."""
    viewer.go("#/", "table.runs")
    links = viewer.page.eval_on_selector_all("a.open", "all => all.map((a) => [a.innerText.trim(), a.hash])")
    return {name.rpartition("/")[2]: hash.split("/")[2] for name, hash in links}


def rows(viewer):
    """The rows of the table of debates."""
    return viewer.page.locator("table.debates tbody tr")


def test_the_list_shows_every_run_evaluation_and_transcript(viewer):
    assert {"peer-votes", "no-judge", "before", "after", "debates.jsonl"} <= set(ids(viewer))
    run = viewer.page.locator("table.runs tr", has_text="peer-votes").inner_text()
    assert all(part in run for part in ("a script, no model", "word-problems", "parallel 3 × 3", "16 of 16"))
    assert "format collapse" in run
    assert "1 of 16" in run  # skipped
    assert viewer.count("table.runs svg.spark") == 6
    viewer.check()


def test_the_list_is_filtered_and_sorted(viewer):
    viewer.go("#/", "table.runs")
    viewer.page.fill("#find", "no-judge script finished")
    viewer.until(lambda: viewer.count("a.open") == 1)
    assert "find=no-judge" in viewer.page.url
    viewer.go("#/?sort=-alarms", "table.runs")
    assert "peer-votes" in viewer.texts("table.runs a.open")[0]
    viewer.page.click("table.runs th:has-text('Alarms') button")
    viewer.until(lambda: "no-judge" in viewer.texts("table.runs a.open")[0])
    assert "sort=alarms" in viewer.page.url
    viewer.check()


def test_two_picked_runs_are_laid_over_each_other(viewer):
    known = ids(viewer)
    for name in ("peer-votes", "no-judge"):
        viewer.page.check(f"input[aria-label$='{name}']")
    viewer.wait(".picked .chart canvas")
    assert set(re.search(r"pick=([^&]*)", viewer.page.url)[1].split("%2C")) == {known["peer-votes"], known["no-judge"]}
    assert [text.rpartition("/")[2] for text in viewer.texts(".picked .legend.large li")] == ["peer-votes", "no-judge"]
    viewer.check()


def test_a_run_has_curves_alarms_costs_and_checkpoints(viewer):
    run = ids(viewer)["peer-votes"]
    viewer.go(f"#/source/{run}", ".chart canvas")
    text = viewer.text()
    assert all(part in text for part in ("Before and after", "What it took", "step_000016", "16 updates, 1 skipped"))
    charts = viewer.count(".chart")
    assert charts > 8
    titles = [" ".join(title.split()) for title in viewer.texts(".chart figcaption b")]
    assert {"Mean reward of each stream", "Reward by seat: gen", "Reward by seat: judge"} <= {*titles}
    viewer.page.click(".alarms summary")
    viewer.wait(".alarms a")
    assert "readable replies fell" in viewer.text(".alarms")
    viewer.go(f"#/source/{run}?smooth=4&log=1&group=Votes", ".chart canvas")
    viewer.until(lambda: viewer.count(".chart") < charts)
    assert "mean of 4" in viewer.text(".controls")
    viewer.go(f"#/source/{run}?metric=grad_norm", ".chart canvas")
    viewer.until(lambda: viewer.texts(".chart figcaption") == ["optim/grad_norm"])
    viewer.check()


def test_one_cursor_reads_all_curves_and_a_click_goes_to_the_step(viewer):
    viewer.go(f"#/source/{ids(viewer)['peer-votes']}", ".chart canvas >> nth=1")
    before = viewer.texts(".chart .legend b")
    plot = viewer.page.locator(".chart .u-over").first
    plot.scroll_into_view_if_needed()
    plot.hover(position={"x": 5, "y": 30})
    viewer.until(lambda: sum(a != b for a, b in zip(before, viewer.texts(".chart .legend b"), strict=True)) > 5)
    plot.click(position={"x": 5, "y": 30})
    viewer.wait("table.debates")
    assert "part=step_000001" in viewer.page.url
    viewer.check()


def test_an_alarm_on_the_axis_leads_to_the_debates_that_set_it_off(viewer):
    viewer.go(f"#/source/{ids(viewer)['peer-votes']}", ".chart canvas")
    first = int(re.search(r"after steps? (\d+)", viewer.text(".alarms"))[1])
    plot = viewer.page.locator(".chart .u-over").first
    plot.scroll_into_view_if_needed()
    plot.click(position={"x": plot.bounding_box()["width"] * (first - 1) / 15, "y": 30})
    viewer.wait(".flag[data-flag=alarm][aria-pressed=true]")
    viewer.until(lambda: rows(viewer).count() == 3)
    assert f"part=step_{first:06}" in viewer.page.url
    viewer.check()


def test_an_alarm_leads_to_the_debates_that_set_it_off(viewer):
    viewer.go(f"#/source/{ids(viewer)['peer-votes']}", ".alarms summary")
    viewer.page.click(".alarms summary")
    viewer.wait(".alarms a")
    step = int(re.search(r"after steps? (\d+)", viewer.text(".alarms"))[1])
    viewer.page.click(".alarms a")
    viewer.wait(".turn.unreadable >> nth=0")
    assert f"/debate/step_{step:06}/" in viewer.page.url
    viewer.check()


def test_settings_say_what_differs_from_the_preset(viewer):
    run = ids(viewer)["peer-votes"]
    viewer.go(f"#/source/{run}/settings", "table.settings")
    assert viewer.texts("table.settings tr.differs th") == ["steps", "batch", "lr"]
    viewer.page.check("text=show all")
    viewer.until(lambda: viewer.count("table.settings tr") > 50)
    viewer.check()


def test_every_filter_leaves_the_debates_it_counts(viewer):
    known, left = ids(viewer), set(FLAGS)
    for name in ("peer-votes", "before.jsonl", "odd.jsonl"):
        table = f"#/source/{known[name]}/debates"
        viewer.go(table, "table.debates")
        if name == "peer-votes":
            viewer.wait(".flag[data-flag=alarm]")  # what set alarms off is found step by step
        shown = viewer.page.eval_on_selector_all(".flag", "all => all.map((one) => one.dataset.flag)")
        for flag in left & set(shown):
            viewer.go(table, f".flag[data-flag={flag}][aria-pressed=false]")
            viewer.page.click(f".flag[data-flag={flag}]")
            viewer.wait(f".flag[data-flag={flag}][aria-pressed=true]")

            def as_counted(flag=flag):
                count = viewer.text(f".flag[data-flag={flag}] b")
                shown = viewer.count(f"table.debates tbody .note-flag.{flag}")
                fits = viewer.count(".found") == 1 and viewer.text(".found").startswith(f"{count} of ")
                return fits and shown == rows(viewer).count() == int(count)

            viewer.until(as_counted)
            assert f"flags={flag}" in viewer.page.url
        left -= set(shown)
    assert not left
    viewer.check()


def test_a_row_says_what_a_debate_was(viewer):
    viewer.go(f"#/source/{ids(viewer)['debates.jsonl']}/debates", "table.debates")
    debates = list(read_file(GOLDEN / "debates.jsonl"))
    for row, debate in zip(viewer.texts("table.debates tbody tr"), debates, strict=True):
        assert f"{debate.protocol.name} {debate.agents} × " in " ".join(row.split())
        if not any(turn.used for turn in debate.turns):
            assert f"{sum(len(turn.text) for turn in debate.turns):,} characters" in row
        malformed = score(debate).tally.counts.malformed
        assert ("Malformed vote" in row) == (malformed > 0)
        assert (f"Malformed vote × {malformed}" in row) == (malformed > 1)
    viewer.check()


def test_a_slider_and_arrows_go_through_the_steps(viewer):
    run = ids(viewer)["peer-votes"]
    viewer.go(f"#/source/{run}/debates?part=step_000004", "table.debates")
    viewer.page.keyboard.press("ArrowRight")
    viewer.until(lambda: "part=step_000005" in viewer.page.url)
    viewer.page.locator("input[aria-label=step]").fill("0")
    viewer.until(lambda: "part=step_000001" in viewer.page.url and rows(viewer).count() == 6)
    viewer.check()


def test_search_finds_what_was_said_and_shows_it_there(viewer):
    run = ids(viewer)["peer-votes"]
    viewer.go(f"#/source/{run}/debates", "table.debates")
    viewer.page.keyboard.press("/")
    viewer.page.keyboard.type("AM SURE it")
    viewer.wait(".snippet mark")
    assert {text.lower() for text in viewer.texts(".snippet mark")} == {"am sure it"}
    viewer.page.locator("a.open").first.click()
    viewer.wait(".turn.target mark")
    viewer.go(f"#/source/{ids(viewer)['odd.jsonl']}/debates?q=17", ".snippet mark")  # beside a line that is damaged
    viewer.until(lambda: rows(viewer).count() == 1)
    viewer.check()


def test_what_is_typed_stays_while_the_page_is_drawn_anew(live):
    live.go(f"#/source/{ids(live)['peer-votes']}/debates", "table.debates")
    live.page.focus("#find")
    live.page.keyboard.type("am ")
    live.page.evaluate("pg.setQuery({ sort: '-votes' })")
    live.wait("th[aria-sort=descending]")
    live.page.keyboard.type("sure")
    live.wait(".snippet mark")
    assert live.page.input_value("#find") == "am sure"
    live.until(lambda: {text.lower() for text in live.texts(".snippet mark")} == {"am sure"})
    live.check()


def test_columns_sort(viewer):
    run = ids(viewer)["peer-votes"]
    for column, index in (("sampled_tokens", 8), ("votes", 6)):
        viewer.go(f"#/source/{run}/debates?part=step_000002&sort=-{column}", "th[aria-sort=descending]")

        def in_order(index=index):
            numbers = [int(text.split()[0]) for text in viewer.texts(f"table.debates tbody tr > :nth-child({index})")]
            return len(numbers) == 6 and numbers == sorted(numbers, reverse=True)

        viewer.until(in_order)
    viewer.check()


def test_keys_go_through_a_table_into_a_debate_and_back(viewer):
    run = ids(viewer)["peer-votes"]
    viewer.go(f"#/source/{run}/debates?part=step_000002", "table.debates")
    for key in ("j", "j", "k", "j", "Enter"):
        viewer.page.keyboard.press(key)
    viewer.wait(".turn")
    assert "/debate/step_000002/1" in viewer.page.url
    viewer.page.keyboard.press("j")
    viewer.wait("#turn-0.target")
    viewer.page.keyboard.press("ArrowRight")
    viewer.until(lambda: "/debate/step_000002/2" in viewer.page.url)
    viewer.page.keyboard.press("?")
    viewer.wait("dialog .keys")
    assert "next turn" in viewer.text("dialog")
    viewer.page.keyboard.press("Escape")
    viewer.wait("dialog", "detached")
    viewer.page.keyboard.press("u")
    viewer.wait("table.debates")
    assert "part=step_000002" in viewer.page.url
    viewer.check()


def test_a_turn_has_its_sections_raw_reply_and_exact_prompt(viewer, gallery):
    run = ids(viewer)["peer-votes"]
    line = json.loads((gallery / "runs/peer-votes/debates/step_000016.jsonl").read_text().splitlines()[0])
    viewer.go(f"#/source/{run}/debate/step_000016/0?view=raw", ".turn")
    assert viewer.page.locator("#turn-4 > .raw .text").text_content() == line["turns"][4]["text"]
    viewer.go(f"#/source/{run}/debate/step_000016/0", ".turn .section.solution")
    debate = next(read_file(gallery / "runs/peer-votes/debates/step_000016.jsonl"))
    answer, right = debate.question.style.answer(debate.turns[4].text), debate.question.answer
    viewer.page.click("#turn-4 .rewards summary")
    said = f"Grade: {answer} {'is' if answer == right else 'is not'} the answer, {right}"
    viewer.until(lambda: said in viewer.text("#turn-4 .rewards"))
    viewer.page.click("#turn-4 .prompt summary")
    viewer.wait("#turn-4 .message.assistant")
    last = viewer.page.locator("#turn-4 .message .text").last.text_content()
    assert last == line["turns"][4]["asked"][-1]["text"]
    roles = [text.lower() for text in viewer.texts("#turn-4 .message > b")]
    assert roles == ["system", "user", "assistant", "user"]
    viewer.check()


def test_every_token_says_how_likely_it_was(viewer, gallery):
    run = ids(viewer)["peer-votes"]
    line = json.loads((gallery / "runs/peer-votes/debates/step_000016.jsonl").read_text().splitlines()[0])
    viewer.go(f"#/source/{run}/debate/step_000016/0?view=credit&tokens=1", "#turn-4 .credit >> nth=0")
    if "page.html" in viewer.home:  # a file is to be small: it has none, and offers none
        assert "how likely" not in viewer.text(".controls")
        return
    titles = viewer.page.eval_on_selector_all("#turn-4 .token", "all => all.map((one) => one.title)")
    logprobs = line["turns"][4]["tokens"]["logprobs"]
    shown = [float(title.split()[3].rstrip(",").replace("−", "-")) for title in titles]
    assert shown == pytest.approx(logprobs, abs=0.001)
    assert viewer.page.locator("#turn-4 .text.raw").text_content() == line["turns"][4]["text"]
    viewer.check()


def test_a_debate_prints_whole_and_without_controls(live):
    live.go(f"#/source/{ids(live)['peer-votes']}/debate/step_000016/0", ".turn")
    live.page.emulate_media(media="print")
    hidden = [live.page.locator(one).first.is_visible() for one in (".top", ".controls", ".turn", ".matrix")]
    left = live.page.eval_on_selector_all(".turn", "all => all.map((one) => one.getBoundingClientRect().left)")
    live.page.emulate_media(media="screen")
    assert hidden == [False, False, True, True]
    assert len(set(left)) == 1


def test_a_link_to_a_turn_and_to_a_vote_survive_a_reload(live, address):
    run = ids(live)["peer-votes"]
    live.go(f"#/source/{run}/debate/step_000016/2?view=raw", ".turn")
    live.page.click("#turn-5 .anchor")
    live.wait("#turn-5.target")
    live.page.click(".matrix .cell >> nth=0")
    live.wait("dialog .judged >> nth=1")
    said, where = live.text("dialog"), live.page.url
    assert "turn=5" in where
    assert "vote=" in where
    live.page.reload()
    live.wait("dialog .judged >> nth=1")
    assert live.text("dialog") == said
    live.page.keyboard.press("Escape")
    live.wait("dialog", "detached")
    assert live.page.locator("#turn-5.target > .raw").count() == 1
    live.check()


def test_the_texts_of_a_vote_stand_as_its_voter_saw_them(viewer):
    golden = ids(viewer)["debates.jsonl"]
    viewer.go(f"#/source/{golden}/debate/debates/7", ".matrix")  # a ballot: letters
    transcript = [json.loads(line) for line in (GOLDEN / "debates.jsonl").read_text().splitlines()][7]
    key = viewer.page.locator(".matrix .cell").first.get_attribute("data-vote")
    turn, a, b = map(int, re.split("[->=]", key))
    shown = [agents[0] for agents in transcript["turns"][turn]["candidates"]]
    viewer.page.click(f".cell[data-vote='{key}']")
    viewer.wait("dialog .judged >> nth=1")
    expected = [f"{'ABC'[shown.index(agent)]}: Agent {agent}" for agent in sorted((a, b), key=shown.index)]
    assert viewer.texts("dialog .judged header b") == expected
    viewer.page.click("dialog .close")
    viewer.wait("dialog", "detached")
    viewer.go(f"#/source/{golden}/debate/debates/0", ".cell[data-vote='7-0>3']")  # numbers, those after the voter first
    viewer.page.click(".cell[data-vote='7-0>3']")
    viewer.wait("dialog .judged >> nth=1")
    assert viewer.texts("dialog .judged header b") == ["Agent 3", "Agent 0"]
    viewer.page.click("dialog .close")
    viewer.wait("dialog", "detached")
    viewer.check()


def test_soft_votes_say_who_found_what_how_likely(viewer):
    viewer.go(f"#/source/{ids(viewer)['debates.jsonl']}/debate/debates/9", ".matrix.shares")
    turns = [json.loads(line) for line in (GOLDEN / "debates.jsonl").read_text().splitlines()][9]["turns"]
    answers = [re.findall(r"boxed\{(.+)\}", turn["text"])[-1] for turn in turns if "candidates" not in turn]
    read = """(all) => all.map((row) => [row.cells[0].innerText,
        [...row.cells].map((cell) => cell.querySelector("[data-share]")?.dataset.share ?? null)])"""
    shown = viewer.page.eval_on_selector_all(".matrix.shares tbody tr", read)
    expected = {}
    for turn in turns:
        for (agent, *_), line in zip(turn.get("candidates", ()), turn["text"].splitlines(), strict="candidates" in turn):
            expected[agent, turn["agent"]] = float(line.split()[1])
    found = {}
    for agent, (heading, cells) in enumerate(shown):
        assert heading.startswith(f"Agent {agent}: {answers[agent]} ")
        found |= {(agent, by): float(share) for by, share in enumerate(cells[1:-1]) if share is not None}
    assert found == expected
    assert viewer.text("#turn-5 .chosen").count("%") == 3
    viewer.page.click(".pairwise summary")
    viewer.wait(".pairwise .cell >> nth=0")
    viewer.check()


def test_each_vote_that_was_written_opens_itself(viewer):
    """One that was said before, and two that contradict each other, are about the same two agents as another."""
    viewer.go(f"#/source/{ids(viewer)['debates.jsonl']}/debate/debates/0", "#turn-8 .vote")
    for turn in (7, 8):
        for chip in viewer.page.locator(f"#turn-{turn} .vote").all():
            chip.click()
            viewer.wait("dialog")
            said, void = chip.inner_text().strip(" ✓✗"), "void" in chip.get_attribute("class")
            assert viewer.text("dialog h2").endswith(f"votes {said}")
            assert ("It does not count" in viewer.text("dialog")) == void
            viewer.page.click("dialog .close")
            viewer.wait("dialog", "detached")
    assert viewer.count("#turn-7 .vote.void") + viewer.count("#turn-8 .vote.void") > 2
    viewer.check()


def test_a_score_of_an_agent_is_told_by_its_votes(chrome, tmp_path):
    debates = list(read_file(GOLDEN / "worked.jsonl"))
    run, config = Run(tmp_path / "run"), changed(preset("math"), {"reward": "win_rate"}, "test")
    run.begin(config, {})
    run.save_debates("step_000001", Played(tuple(debates), {}))
    one = Viewer(chrome, export_page([run.path], tmp_path / "page.html").as_uri())
    one.wait(".tabs")
    page = one.page.url.partition("#")[2]
    for index, debate in enumerate(debates):
        one.go(f"#{page}/debate/step_000001/{index}", ".agents")
        one.until(lambda debate=debate: debate.id in one.text(".head"))
        one.page.click(".agents + .rewards summary")
        scored = score(debate, config.learn.reward)
        stream = scored.streams[0]
        assert (stream.name, stream.unit) == ("win_rate", "agent")
        told = one.page.locator(".agents + .rewards .why").all()
        for agent, (shown, votes) in enumerate(zip(told, stream.votes, strict=True)):
            sign = "−" if stream.values[agent] < 0 else "+"
            assert shown.inner_text().startswith(f"Agent {agent}: win_rate {sign}{abs(stream.values[agent]):.3f}")
            about = [scored.tally.all_votes[index] for index in votes]
            said = [f"{vote.a} {'=' if vote.tied else '>'} {vote.b}" for vote in about]
            assert shown.locator("li b").all_inner_texts() == said
            effects = [text.endswith(" for it") for text in shown.locator("li").all_inner_texts()]
            assert effects == [not vote.tied and vote.a == agent for vote in about]
            lost = sum(turn.parsed.error is not None for turn in debate.turns if turn.agent == agent)
            assert (f"−{lost} for {lost} unreadable repl" in shown.inner_text()) == (lost > 0)
    one.check()
    one.close()


def test_the_same_question_at_other_steps_differs_by_words(viewer):
    run = ids(viewer)["peer-votes"]
    viewer.go(f"#/source/{run}/debate/step_000016/5", ".turn")
    viewer.page.click("text=Across steps")
    viewer.wait(".diff ins >> nth=0")
    assert viewer.count(".strip li") > 16
    assert viewer.count(".diff del") > 0
    viewer.page.keyboard.press("k")
    viewer.until(lambda: "b=step_000016" in viewer.page.url)
    viewer.check()


def test_two_evaluations_question_by_question(viewer):
    viewer.go("#/", "table.runs")
    for name in ("before", "after"):
        viewer.page.check(f"input[aria-label$='{name}']")
    viewer.page.click("text=Compare question by question")
    viewer.wait("tr.change-better >> nth=0")
    assert viewer.text(".summary summary").startswith("debate: winner by peer votes")
    order = ["▼ worse", "▲ better", "◆ another answer", "= the same"]
    changes = [order.index(one) for one in viewer.texts("td .change")]
    assert len(changes) == 12
    assert changes == sorted(changes)
    viewer.page.click("button:has-text('better')")
    viewer.until(lambda: set(viewer.texts("td .change")) == {"▲ better"})
    assert "change=better" in viewer.page.url
    viewer.page.locator("a.open").first.click()
    viewer.wait(".turn")
    viewer.page.click(".top a:has-text('before')")
    viewer.wait(".interval >> nth=0")
    viewer.check()


@pytest.mark.parametrize("to", [None, "page.html", "page"])
def test_two_transcripts_question_by_question(chrome, address, gallery, tmp_path, to):
    home, names = address, ("before", "debates")
    if to:
        page = export_page([gallery / "debates" / f"{name}.jsonl" for name in names], tmp_path / to)
        home = (page if page.is_file() else page / "index.html").as_uri()
    one = Viewer(chrome, home)
    one.wait("a.open >> nth=1")
    for name in names:
        one.page.check(f"input[aria-label$='{name}.jsonl']")
    one.page.click("text=Compare question by question")
    one.wait("td .change >> nth=1")
    assert "2 questions in both" in one.text()
    one.page.locator("a.open").first.click()
    one.wait(".turn >> nth=0")
    one.check()
    one.close()


def test_pages_fit_a_phone_and_the_dark(chrome, address):
    one = Viewer(chrome, address, width=390, height=800, dark=True)
    known = ids(one)
    run, evals = known["peer-votes"], f"{known['before']}/{known['after']}"
    pages = ["#/", f"#/source/{run}", f"#/source/{run}/settings", f"#/source/{run}/debates", f"#/compare/{evals}"]
    pages += [
        f"#/source/{run}/debate/step_000004/0",
        f"#/source/{run}/question/word-problems-1",
        f"#/source/{known['after']}",
    ]
    for page in pages:
        one.go(page, "main h1")
        assert one.page.evaluate("document.documentElement.scrollWidth") <= 390, page
    one.check()
    one.close()


BOTH = [(False, 1280), (True, 390)]
OTHERS = [pytest.param(True, 1280, marks=pytest.mark.slow), pytest.param(False, 390, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("dark", "width"), [*BOTH, *OTHERS])
def test_axe_finds_nothing_in_the_way_of_anybody(chrome, address, dark, width):
    """Names of controls, contrast, order of headings, landmarks, tables: every rule of axe-core, on every page."""
    axe = resources.files(pytest.importorskip("axe_playwright_python")).joinpath("axe.min.js").read_text()
    one = Viewer(chrome, address, dark=dark, width=width)
    known = ids(one)
    run, golden, evals = known["peer-votes"], known["debates.jsonl"], f"{known['before']}/{known['after']}"
    pages = {
        "#/": "table.runs",
        f"#/?pick={run},{known['no-judge']}": ".picked canvas",
        f"#/source/{run}": ".chart canvas",
        f"#/source/{run}/settings": "table.settings",
        f"#/source/{run}/debates?q=sure": ".snippet",
        f"#/source/{run}/debate/step_000016/0": ".matrix",
        f"#/source/{run}/debate/step_000016/0?view=credit&tokens=1": ".token",
        f"#/source/{run}/question/word-problems-1": ".diff",
        f"#/source/{known['after']}": ".interval",
        f"#/source/{golden}/debate/debates/7": ".matrix",
        f"#/source/{golden}/debate/debates/9": ".matrix.shares",
        f"#/source/{golden}/debate/debates/0?vote=7-0>3": "dialog .judged",
        f"#/compare/{evals}": "td .change",
        "#/nowhere": ".failed",
    }
    for page, ready in pages.items():
        one.go("#/", "table.runs")
        one.go(page, f"{ready} >> nth=0")
        one.page.evaluate(axe)
        found = one.page.evaluate("axe.run({ resultTypes: ['violations'] })")  # of what is well, all nodes are much to send
        assert len(found["passes"]) > 10
        assert not [(rule["id"], rule["nodes"][0]["html"][:200]) for rule in found["violations"]], page
    one.check()
    one.close()


def test_curves_stand_out_from_what_is_behind_them(live):
    """Axe does not look into a canvas. 3 to 1 is what WCAG 2.2 (1.4.11) asks of lines."""
    for scheme in ("dark", "light"):
        live.page.emulate_media(color_scheme=scheme)
        read = "(names) => names.map((name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim())"
        *lines, paper, panel = live.page.evaluate(read, [*(f"--s{index}" for index in range(6)), "--paper", "--panel"])
        assert len({*lines}) == 6
        assert min(contrast(line, behind) for line in lines for behind in (paper, panel)) > 3


def contrast(*colours):
    """Of two colours, as WCAG defines it."""
    light = []
    for colour in colours:
        digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
        parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        light.append(0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05)
    return max(light) / min(light)


def test_the_keyboard_is_enough(chrome, address):
    """From the list to the texts of a vote and back, by Tab, Enter and Escape; what has the focus can be seen to have it."""
    one = Viewer(chrome, address)
    one.wait("table.runs")

    def tab_to(selector):
        for _ in range(400):
            one.page.keyboard.press("Tab")
            if one.page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
                assert one.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
                return
        raise AssertionError(f"Tab does not reach {selector}")

    def skip():
        one.page.evaluate("document.activeElement.blur()")
        tab_to(".skip")
        one.page.keyboard.press("Enter")
        assert one.page.evaluate("document.activeElement.id") == "content"

    ways = [("table.runs a.open", ".chart canvas"), (".tabs a[href$=debates]", "table.debates"), ("a.open", ".matrix")]
    for selector, ready in ways:
        skip()
        tab_to(selector)
        one.page.keyboard.press("Enter")
        one.wait(f"{ready} >> nth=0")
    tab_to(".matrix .cell")
    cell = one.page.evaluate("document.activeElement.dataset.vote")
    one.page.keyboard.press("Enter")
    one.wait("dialog .judged >> nth=1")
    assert one.page.evaluate("document.activeElement.closest('dialog') !== null")
    one.page.keyboard.press("Escape")
    one.wait("dialog", "detached")
    assert one.page.evaluate("document.activeElement.dataset.vote") == cell
    one.check()
    one.close()


def test_a_run_that_grows_is_followed(chrome, gallery, tmp_path):
    whole, growing = gallery / "runs" / "no-judge", tmp_path / "runs" / "growing"
    lines = (whole / "metrics.jsonl").read_text().splitlines(keepends=True)
    shutil.copytree(
        whole, growing, ignore=lambda folder, names: [n for n in names if n > "step_000005" and n.startswith("step_")]
    )
    (growing / "metrics.jsonl").write_text("".join(lines[:6]))
    with served(growing, cache=tmp_path / "cache") as url:
        one = Viewer(chrome, url)
        one.wait("table.runs")
        assert "5 of 16" in one.text("table.runs")
        run = one.page.get_attribute("a.open", "href").rpartition("/")[2]
        one.go(f"#/source/{run}", ".chart canvas")
        with (growing / "metrics.jsonl").open("a") as file:
            file.write("".join(lines[6:8]))
        one.until(lambda: "7 of 16" in one.text(".head"))
        one.until(lambda: "at 7" in one.page.get_attribute(".chart .plot", "aria-label"))
        one.go(f"#/source/{run}/debates?part=step_000006", "main h1")
        shutil.copy(whole / "debates" / "step_000006.jsonl", growing / "debates")
        one.until(lambda: rows(one).count() == 6)
        one.check()
        one.close()


def test_a_training_is_followed_while_it_trains(chrome, tmp_path):
    run = tmp_path / "run"
    parrot = Path(__file__).parent.parent / "fixtures" / "parrot"
    small = {"steps": 400, "batch": 2, "rank": 2, "threads": 1, "warm-steps": 0, "eval-questions": 0, "eval-debates": 0}
    flags = [word for name, value in small.items() for word in (f"--{name}", str(value))]
    command = [
        sys.executable,
        "-m",
        "peergrad",
        "train",
        "--preset",
        "demo-parallel",
        "--model",
        str(parrot),
        "--out",
        str(run),
    ]
    environ = os.environ | {"PYTHONPATH": str(parrot.parents[2])}
    with subprocess.Popen(
        [*command, *flags, "--max-tokens", "24"], env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as training:
        try:
            while not Run(run).exists or not Run(run).metrics():
                assert training.poll() is None
                time.sleep(0.05)
            with served(run, cache=tmp_path / "cache") as url:
                one = Viewer(chrome, url)
                one.wait("table.runs")
                one.go("#/source/" + one.page.get_attribute("a.open", "href").rpartition("/")[2], ".head .status")

                def step():
                    return int(re.search(r"(\d+) of 400", one.text(".head"))[1])

                first = step()
                assert "running" in one.text(".head")
                one.until(lambda: step() > first + 1)
                training.terminate()
                assert training.wait(120) == 143
                one.until(lambda: step() == len(Run(run).metrics()))
                one.until(lambda: "unfinished" in one.text(".head"))
                one.check()
                one.close()
        finally:
            training.kill()


def test_the_first_page_is_small(chrome, address):
    one = Viewer(chrome, address)
    one.wait("table.runs")
    sent = one.page.evaluate("performance.getEntries().reduce((sum, one) => sum + (one.transferSize ?? 0), 0)")
    assert 20_000 < sent < 200_000
    one.close()


def test_an_address_that_leads_nowhere_says_so(viewer):
    for route in ("#/nowhere", "#/source/0000000000000000", f"#/source/{ids(viewer)['peer-votes']}/debate/step_000001/99"):
        viewer.go(route, ".failed")
    viewer.go(f"#/source/{quote('<b>x</b>')}/debate/x/y?turn=1&vote=2", ".failed")
    viewer.wrong.clear()  # a browser reports the status 404 of what it fetched
    viewer.check()


def test_a_notebook_shows_a_run_and_a_debate(chrome, gallery, tmp_path):
    """In a frame that has no address of its own."""
    run, debate = Run(next((gallery / "runs").iterdir())), next(read_file(gallery / "debates" / "worked.jsonl"))
    for shown, found, link in ((run.show(), "Before and after", "Debates"), (debate.show(), "Round 1", "")):
        path = tmp_path / "notebook.html"
        path.write_text(f"<!doctype html><meta charset=utf-8>{shown._repr_html_()}", "utf-8")
        page = chrome.new_page()
        page.goto(path.as_uri())
        frame = page.frame_locator("iframe")
        frame.get_by_text(found).first.wait_for(timeout=WAIT)
        if link:  # it is followed inside the frame
            frame.get_by_role("link", name=link, exact=True).first.click()
            frame.get_by_text(found).first.wait_for(state="detached", timeout=WAIT)
            frame.locator("table").first.wait_for(timeout=WAIT)
        page.close()
