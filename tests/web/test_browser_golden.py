"""What the page shows of votes, rewards and credit is what `peergrad score` says, read off the page itself."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from peergrad.debate.transcript import read_file
from peergrad.reward.rewards import score
from tests.web.browser import Viewer, chromium, opened_browser, served

pytestmark = pytest.mark.skipif(chromium() is None, reason="there is no Chromium here; make browser installs it")

GOLDEN = Path(__file__).parent.parent / "golden"
FILES = [GOLDEN / name for name in ("worked.jsonl", "debates.jsonl", "before.jsonl")]

# Everything of a debate that is on the page, read from what a person sees or points at.
READ = """() => ({
  cells: [...document.querySelectorAll(".matrix .cell[data-vote]")].map((one) => [one.dataset.vote, one.textContent.trim()]),
  rewards: [...document.querySelectorAll(".turn")].map((turn) => [...turn.querySelectorAll(".reward")].map(
    (one) => [one.dataset.stream, one.dataset.value, one.dataset.advantage, one.querySelector("b").innerText])),
  credit: [...document.querySelectorAll(".turn")].map((turn) => [...turn.querySelectorAll(".text.raw > .credit")].map(
    (one) => [one.dataset.credit, one.textContent, one.className])),
  why: [...document.querySelectorAll(".turn")].map((turn) => [...turn.querySelectorAll("div.why")].map(
    (one) => [...one.querySelectorAll("li b")].map((vote) => vote.textContent))),
})"""


@pytest.fixture(scope="module")
def viewer(tmp_path_factory):
    with opened_browser() as browser, served(*FILES, cache=tmp_path_factory.mktemp("cache")) as url:
        one = Viewer(browser, url, height=1200)
        one.wait("a.open")
        one.until(lambda: "% read" not in one.text())
        yield one
        one.close()


def scored(file):
    said = subprocess.run([sys.executable, "-m", "peergrad", "score", str(file), "--json"], capture_output=True, check=True)
    return json.loads(said.stdout)["debates"]


def number(text):
    return None if text in ("none", None) else float(text)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_votes_rewards_and_credit_are_those_of_peergrad_score(viewer, file):
    viewer.go("#/", "a.open")
    link = viewer.page.locator("a.open", has_text=file.name).get_attribute("href")
    for index, (debate, expected) in enumerate(zip(read_file(file), scored(file), strict=True)):
        route = f"{link.removesuffix('/debates')}/debate/debates/{index}"
        viewer.go(f"{route}?view=credit", f".turn >> nth={len(debate.turns) - 1}")
        viewer.until(lambda name=debate.id: name in viewer.text(".head"))
        viewer.until(lambda: "Credit" in viewer.texts("[aria-pressed=true]"))
        page = viewer.page.evaluate(READ)
        assert sorted(page["cells"]) == sorted(cells(expected["votes"]))
        by_turn = [stream for stream in expected["streams"] if stream["unit"] == "turn"]
        for turn, shown in enumerate(page["rewards"]):
            assert [name for name, *_ in shown] == [stream["name"] for stream in by_turn]
            for stream, (_, value, advantage, text) in zip(by_turn, shown, strict=True):
                assert number(value) == stream["values"][turn]
                assert number(advantage) == pytest.approx(stream["advantages"][turn])
                assert text == signed(stream["values"][turn])
        made = score(debate)
        for turn, shown in enumerate(page["why"]):
            of_turns = [stream for stream in made.streams if stream.unit == "turn"]
            assert shown == [[said(made.tally.all_votes[one]) for one in stream.votes[turn]] for stream in of_turns]
        for turn, shown in zip(debate.turns, page["credit"], strict=True):
            assert "".join(text for _, text, _ in shown) == turn.text
            check_credit(turn, shown, by_turn, debate.turns.index(turn))
        for stream in by_turn:
            viewer.page.click(f".controls button:text-is('{stream['name']}')")
            viewer.wait(f".controls button:text-is('{stream['name']}')[aria-pressed=true]")
            for turn, shown in zip(debate.turns, viewer.page.evaluate(READ)["credit"], strict=True):
                check_credit(turn, shown, [stream], debate.turns.index(turn))
    viewer.check()


def cells(votes):
    """A cell of the matrix for each valid vote of a turn; soft ones with their strength."""
    for vote in votes:
        strength = vote.get("strength", 1.0)
        tie = vote["op"] == "=" or strength == 0
        soft = "" if strength == 1.0 or vote["op"] == "=" else f"{strength:.2f}"
        said = f"{vote['a']} {'=' if tie else '>'} {vote['b']}"
        yield [f"{vote['turn']}-{vote['a']}{vote['op']}{vote['b']}", " ".join(filter(None, (said, soft)))]


def said(vote):
    return f"{vote.a} {'=' if vote.tied else '>'} {vote.b}"


def signed(value):
    return "–" if value is None else f"{'−' if value < 0 else '+'}{abs(value):.2f}"


SECTIONS = {"gen": ("solution", "evaluation"), "judge": ("comparison",)}


def check_credit(turn, shown, streams, index):
    """The sum on every stretch: of each of these streams that is about its words, the advantage; else none."""
    at = 0
    for credit, text, look in shown:
        middle, at = at + len(text) // 2, at + len(text)
        if not text or turn.chosen:
            continue
        section = next((one.name for one in turn.parsed.sections if one.start <= middle < one.end), None)
        if turn.contract is None and section is None:
            section = "solution"
        about = [one for one in streams if one["name"] == "format" or section in SECTIONS[one["name"]]]
        values = [one["advantages"][index] for one in about if one["advantages"][index] is not None]
        assert number(credit) == (pytest.approx(sum(values)) if values else None), (text, section)
        kind = "none" if not values else "zero" if abs(sum(values)) < 1e-12 else "plus" if sum(values) > 0 else "minus"
        assert kind in look
