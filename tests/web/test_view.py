"""The viewer's back end over real HTTP: every route against real folders, filters, search, and what is new while it runs."""

import contextlib
import json
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from peergrad.config import TrainConfig, changed, from_folder, preset
from peergrad.debate.play import Played
from peergrad.debate.transcript import load, read_file
from peergrad.learn.data import advantages, credit
from peergrad.reward.rewards import score
from peergrad.runs.evaluation import read_result
from peergrad.runs.folder import Progress, Run
from peergrad.tasks.base import truth_of
from peergrad.tasks.open import gradable, regrade
from peergrad.terminal.tables import result_text
from peergrad.web.index import Index
from peergrad.web.lines import load_light
from peergrad.web.scoring import FLAGS
from peergrad.web.sources import Source, find
from peergrad.web.tables import table
from tests.commands import peergrad
from tests.helpers import parallel, sequential
from tests.web.conftest import TOKEN, serving, until

_COUNTS = ("self_votes", "malformed", "repeated", "contradictory", "missing", "parse_errors")


def all_rows(server, id, **query):
    rows, offset = [], 0
    while page := server.get(f"debates/{id}", offset=offset, limit=50, **query)["rows"]:
        rows += page
        offset += len(page)
    return rows


def test_the_list_says_what_there_is(server):
    sources = {source["name"].rpartition("view0/")[2]: source for source in server.get("sources")["sources"]}
    assert sorted((name, one["kind"]) for name, one in sources.items()) == [
        ("debates/said.jsonl", "file"),
        ("evals/after", "eval"),
        ("evals/before", "eval"),
        ("runs/parrot", "run"),
    ]
    run = sources["runs/parrot"]
    assert (run["step"], run["steps"], run["status"], run["protocol"], run["agents"]) == (3, 3, "finished", "parallel", 3)
    assert (run["task"], run["debates"], run["updates"]["skipped"]) == ("arithmetic", 11, 0)
    assert [point[0] for point in run["curves"][0]["points"]] == [1, 2, 3]
    after = sources["evals/after"]
    assert (after["status"], after["step"]) == ("finished", 8)
    assert "debate/winner" in {row["name"] for row in after["headline"]}


def test_a_run_has_its_settings_metrics_cost_and_checkpoints(server, made):
    id = server.id("parrot")
    page, metrics = server.get(f"source/{id}"), server.get(f"metrics/{id}")
    assert page["preset"] == "demo-parallel"
    differs = {one["name"]: (one["value"], one["preset"]) for one in page["settings"] if one["differs"]}
    assert differs["steps"] == (3, 10)
    assert "wording" not in differs
    assert [part["name"] for part in page["parts"]] == [
        "eval_000000", "step_000001", "step_000002", "step_000003", "eval_000003",
    ]  # fmt: skip
    assert page["checkpoints"][0]["name"] == "step_000000"
    assert all(one["bytes"] for one in page["checkpoints"])
    logged = [line for line in Run(made / "runs" / "parrot").metrics() if line["phase"] == "train"]
    assert metrics["phases"]["train"]["at"] == [1, 2, 3]
    for name, column in metrics["phases"]["train"]["values"].items():
        assert column == pytest.approx([line.get(name) for line in logged]), name
    drawn = {line["name"] for chart in page["charts"] for line in chart["lines"]}
    assert drawn >= {"replies/readable", "reward/format/mean", "warm/loss"}
    used = {row["name"]: row for row in page["used"]}
    assert used["Self-play"]["sampled"] == sum(line["tokens/sampled"] for line in logged)
    assert (page["rules"]["whose"], page["rules"]["center"]) == ("run", "batch")


def test_the_rows_are_those_of_the_debates(server, made):
    rows = all_rows(server, server.id("said.jsonl"))
    debates = list(read_file(made / "debates" / "said.jsonl"))
    assert [row["id"] for row in rows] == [debate.id for debate in debates]
    for row, debate in zip(rows, debates, strict=True):
        scored = score(debate)
        counts = scored.tally.counts
        assert (row["votes"], row["malformed"], row["unreadable"]) == (
            len(scored.tally.votes),
            counts.malformed,
            counts.parse_errors,
        )
        assert row["sampled_tokens"] == sum(len(turn.tokens.ids_T) for turn in debate.turns)
        assert row["prompt_tokens"] == sum(len(turn.tokens.prompt_T) for turn in debate.turns)
        for round_, answers in enumerate(row["right"]):
            for agent, right in enumerate(answers):
                turn = next(turn for turn in debate.turns if (turn.round, turn.agent) == (round_, agent))
                assert right == ("boxed{4}" in (turn.solution or "")), (row["id"], round_, agent)


def command(*args):
    result = peergrad(*args)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_votes_and_credit_are_those_of_peergrad_score(server, made):
    path, id = made / "debates" / "said.jsonl", server.id("said.jsonl")
    debates = list(read_file(path))
    for index, said in enumerate(command("score", path, "--json")["debates"]):
        page = server.get(f"debate/{id}/debates/{index}")
        valid = [vote for vote in page["votes"] if vote["counts"]]
        assert [vote["index"] for vote in valid] == list(range(len(said["votes"])))
        for vote, theirs in zip(valid, said["votes"], strict=True):
            assert {name: vote[name] for name in theirs} == theirs
        assert {name: page["counts"][name] for name in _COUNTS} == said["counts"]
        for stream, theirs in zip(page["streams"], said["streams"], strict=True):
            assert {name: stream[name] for name in theirs} == theirs
        scored = score(debates[index], truth=truth_of(regrade, gradable)(debates[index]))
        check_credit(page, debates[index], scored, advantages([scored])[0])
        for value, made_of in zip(page["streams"][0]["values"], page["streams"][0]["votes"], strict=True):
            assert (value is None) == (not made_of)


def check_credit(page, debate, scored, centred):
    """The stretches add up to the credit of every token, and cover the reply."""
    for about, turn, credit_T in zip(page["turns"], debate.turns, credit(debate, scored.streams, centred), strict=True):
        shown = [total or 0.0 for _, _, tokens, total, _ in about["credit"] for _ in range(tokens)]
        np.testing.assert_allclose(shown, credit_T, atol=1e-6)
        units = about["text"].encode("utf-16-le")
        pieces = [units[2 * start : 2 * end].decode("utf-16-le") for start, end, *_ in about["credit"]]
        assert "".join(pieces) == turn.text
        for section in about["sections"]:
            start, end = section["inner"]
            assert units[2 * start : 2 * end].decode("utf-16-le").strip() == turn.section(section["name"])
        assert about["tokens"]["logprobs"] == pytest.approx(turn.tokens.logprobs_T.tolist(), abs=1e-4)
        assert [message.text for message in turn.asked] == expanded(page, about)


def expanded(page, turn):
    """The whole prompt of a turn."""
    first, *rest = turn["asked"]
    if "continues" not in first:
        return [message["text"] for message in turn["asked"]]
    earlier = page["turns"][first["continues"]]
    return [*expanded(page, earlier), earlier["text"], *(message["text"] for message in rest)]


def test_zero_is_not_nothing(server):
    """An advantage of 0 is shown as 0; words that no stream is about have none."""
    id = server.id("said.jsonl")
    stretches = [
        one for row in range(10) for turn in server.get(f"debate/{id}/debates/{row}")["turns"] for one in turn["credit"]
    ]
    by_stream = [value for *_, values in stretches for value in values]
    assert None in by_stream
    assert 0.0 in [total for *_, total, _ in stretches] or 0.0 in by_stream
    assert all((total is None) == all(value is None for value in values) for *_, total, values in stretches)


def test_debates_of_a_run_are_scored_in_their_batch(server, own, made, tmp_path):
    """With centring over the batch, as the run's settings say."""
    run = Run(own / "runs" / "parrot")
    (run.path / "debates" / "step_000003.jsonl").write_bytes((made / "debates" / "said.jsonl").read_bytes())
    with serving([run.path], tmp_path / "cache") as other:
        until(lambda: other.get("sources")["sources"][0]["indexed"] == 1)
        until(lambda: not other.library.update())
        id = other.id("parrot")
        learn = from_folder(TrainConfig(), run.path).learn
        debates = list(read_file(run.path / "debates" / "step_000003.jsonl"))
        batch = learn.training_data(debates, truth_of(regrade, gradable), 2)
        for index, (scored, centred) in enumerate(zip(batch.scored, batch.advantages, strict=True)):
            page = other.get(f"debate/{id}/step_000003/{index}")
            assert [stream["advantages"] for stream in page["streams"]] == [list(values) for values in centred]
            if index < 9:
                check_credit(page, debates[index], scored, centred)
        assert page["rules"]["center"] == "batch"


@pytest.mark.parametrize(("form", "cost"), [("graded", -1.0), ("literal", 0.0)])
def test_a_turn_says_what_its_bad_form_cost(tmp_path, form, cost):  # SPEC 3.4
    """By the literal rule only where it ends the debate."""
    run, config = Run(tmp_path / "run"), changed(preset("math"), {"reward": "win_rate", "form": form}, "test")
    run.begin(config, {})
    debates = sequential(2, "N/A", None), parallel(3, ["N/A", None, "N/A"])
    run.save_debates("step_000001", Played(debates, {}))
    with serving([run.path], tmp_path / "cache") as server:
        until(lambda: server.get("sources")["sources"][0]["indexed"] == 1)
        ended, went_on = (server.get(f"debate/{server.id('run')}/step_000001/{index}") for index in range(2))
    assert [turn["step_reward"] for turn in ended["turns"]] == ended["streams"][0]["values"] == [0.0, -1.0]
    assert [turn["step_reward"] for turn in went_on["turns"]] == went_on["streams"][0]["values"] == [0.0, cost, 0.0]


def test_every_vote_says_why_it_does_not_count(server):
    id = server.id("said.jsonl")
    votes = [vote for row in range(9) for vote in server.get(f"debate/{id}/debates/{row}")["votes"]]
    assert {vote["why"] for vote in votes} == {None, "self_vote", "unknown_agent", "repeated"}
    ballot = server.get(f"debate/{id}/debates/9")
    voting = [turn for turn in ballot["turns"] if turn["candidates"]]
    assert [letter for letter, _ in voting[0]["candidates"]] == ["A", "B", "C"]
    letters = {(turn["turn"], letter): agents[0] for turn in voting for letter, agents in turn["candidates"]}
    assert all(
        (vote["a"], vote["b"]) == (letters[vote["turn"], "A"], letters[vote["turn"], "B"]) for vote in ballot["votes"]
    )


def test_grades_say_why(server):
    reasons = {turn["grade"]["reason"] for turn in server.get(f"debate/{server.id('said.jsonl')}/debates/0")["turns"]}
    assert "4 is the answer, 4" in reasons
    assert any(reason.startswith(("no final answer", "5 is not the answer")) for reason in reasons)


def test_filters_sorting_and_paging(server):
    id = server.id("before")
    rows, table = all_rows(server, id), server.get(f"debates/{id}")
    assert len(rows) == table["total"] == table["matched"] > 100
    for flag in FLAGS:
        found = all_rows(server, id, flags=flag)
        assert found == [row for row in rows if flag in row["flags"]]
        assert table["flags"][flag] == len(found)
    both = all_rows(server, id, flags="winner_wrong,right_to_wrong", part="debate")
    assert both == [row for row in rows if {"winner_wrong", "right_to_wrong"} <= {*row["flags"]} and row["part"] == "debate"]
    assert both
    assert all(row["winner_right"] is False for row in both)
    for sort in ("chars", "-chars", "-sampled_tokens", "votes"):
        values = [row[sort.removeprefix("-")] for row in all_rows(server, id, sort=sort)]
        assert values == sorted(values, reverse=sort.startswith("-"))
    for query in ("flags=cute", "sort=luck", "limit=-1", "limit=1000", "offset=x", f"q={'x' * 201}"):
        assert server.ask(f"/api/debates/{id}?{query}", {"Authorization": f"Bearer {'the-token-of-the-tests'}"})[0] == 400


def test_search_finds_what_was_said(server):
    id = server.id("said.jsonl")
    for text, rows in (
        ("zebra CROSSING: äpfel", 9),
        ("GRÜSSE", 0),
        ("grüße, 😀", 9),
        ("number 3?", 1),
        ("I will not say", 9),
    ):
        found = server.get(f"debates/{id}", q=text)
        said = [row for row in found["rows"] if row["snippet"]]
        assert found["matched"] == len(said)
        if text != "I will not say":
            assert found["matched"] == rows, text
        for row in said:
            assert row["snippet"]["hit"].lower() == text.lower()
    snippet = server.get(f"debates/{id}", q="number 3?")["rows"][0]["snippet"]
    assert (snippet["turn"], snippet["before"], snippet["after"]) == (None, "What is 2 + 2, ", "")


def test_the_same_question_at_different_steps(server):
    id = server.id("said.jsonl")
    found = server.get(f"question/{id}", question="q0")
    assert [row["id"] for row in found["rows"]] == ["d/q0", "b"]
    assert found["question"] == "What is 2 + 2, number 0?"
    assert server.get(f"question/{id}", question="../../q")["rows"] == []


def test_two_evaluations_are_compared(server, made):
    a, b = server.id("before"), server.id("after")
    found = server.get(f"compare/{a}/{b}")
    theirs = command("compare", made / "evals" / "before", made / "evals" / "after", "--json")
    assert {row["name"]: row["difference"] for row in found["summary"]} == {
        n: row["difference"] for n, row in theirs["rows"].items()
    }
    assert found["counts"]["shared"] == 8
    order = ["worse", "better", "other", "same"]
    changes = [order.index(question["change"]) for question in found["questions"]]
    assert changes == sorted(changes)
    for question in found["questions"]:
        if question["change"] in ("worse", "better"):
            assert (question["value_b"] > question["value_a"]) == (question["change"] == "better")
    assert found["counts"]["better"] > 0
    same = server.get(f"compare/{a}/{a}", part_a="debate", part_b="debate")
    assert {question["change"] for question in same["questions"]} == {"same"}


def test_rows_of_an_evaluation_have_the_words_and_the_order_of_the_terminal(server, made):
    printed = [re.split("  +", line)[0] for line in result_text(read_result(made / "evals" / "before")).splitlines()]
    result = server.get(f"source/{server.id('before')}")["result"]
    labels = [row["label"] for row in (*result["rows"], *result["shares"])]
    assert [label for label in labels if label in printed] == [line for line in printed if line in labels]
    assert {"majority vote, equal cost", "debate: winner by peer votes", "replies that can be read"} <= {*labels} & {
        *printed
    }


def test_new_lines_are_seen(own, made, tmp_path):
    run, file = Run(own / "runs" / "parrot"), own / "debates" / "said.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:4]))
    with serving([own], tmp_path / "cache") as server:
        until(lambda: server.get(f"debates/{server.id('said.jsonl')}")["total"] == 4)
        cursor = server.get("changes")["cursor"]
        with file.open("ab") as growing:
            growing.write(lines[4] + lines[5][:100])
        until(lambda: server.id("said.jsonl") in server.get("changes", cursor=cursor)["sources"])
        until(lambda: server.get(f"debates/{server.id('said.jsonl')}")["total"] == 5)  # the torn line waits for its end
        with file.open("ab") as growing:
            growing.write(lines[5][100:])
        until(lambda: server.get(f"debates/{server.id('said.jsonl')}")["total"] == 6)
        assert server.get(f"debate/{server.id('said.jsonl')}/debates/5")["row"]["id"] == "d/q5"
        cursor = server.get("changes")["cursor"]
        run.log(Progress(4), "train", {"optim/loss": 7.5, "alarms": []})
        until(lambda: server.id("parrot") in server.get("changes", cursor=cursor)["sources"])
        assert server.get(f"metrics/{server.id('parrot')}")["phases"]["train"]["values"]["optim/loss"][-1] == 7.5
        assert not server.get("changes", cursor=server.get("changes")["cursor"])["list"]
        file.write_bytes(lines[9] + lines[8])  # another file under the same name
        until(lambda: [row["id"] for row in server.get(f"debates/{server.id('said.jsonl')}")["rows"]] == ["b", "d/q8"])
        (own / "debates" / "more.jsonl").write_bytes(lines[0])
        until(lambda: any(source["name"].endswith("more.jsonl") for source in server.get("sources")["sources"]))


def test_a_table_is_of_one_moment(own, tmp_path, monkeypatch):
    """Though all is read again, by somebody else, before each of the questions to the index that it is put together from."""
    file = own / "debates" / "said.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    (source,) = find([file])
    index, other = Index(source, tmp_path), Index(source, tmp_path)
    read = []

    def rewrite(_):
        count = 9 + len(read) % 2
        file.write_bytes(b"".join(lines[-count:]))  # another file under the same name
        read.append(other.refresh())

    @contextlib.contextmanager
    def disturbed():
        with Index.connected(index) as db:
            db.set_trace_callback(rewrite)
            yield db

    monkeypatch.setattr(index, "connected", disturbed)
    for _ in range(2):
        found = table(index, {"limit": "500"})
        assert found["total"] == found["matched"] == len(found["rows"]) > 0
    assert len(read) > 10
    assert all(read)


def test_a_run_that_is_under_way_is_seen_to_be(own, tmp_path):
    run = Run(own / "runs" / "parrot")
    with serving([run.path], tmp_path / "cache") as server, run.locked():
        assert server.get("sources")["sources"][0]["status"] == "running"


def test_a_run_has_as_many_rounds_as_its_protocol(own, tmp_path):
    path = own / "runs" / "parrot" / "config.toml"
    text = path.read_text().replace("max_rounds = 2", "max_rounds = 9")
    for protocol, rounds in (("parallel", 9), ("direct", 2)):  # where max_rounds says nothing: those of its debates
        path.write_text(text.replace('protocol = "parallel"', f'protocol = "{protocol}"'))
        with serving([path.parent], tmp_path / protocol) as server:
            until(lambda rounds=rounds: server.get("sources")["sources"][0]["rounds"] == rounds)  # once debates are read
            assert server.get("sources")["sources"][0]["protocol"] == protocol


def test_alarms_name_the_debates_that_set_them_off(own, tmp_path):
    run = Run(own / "runs" / "parrot")
    run.forget_after(Progress(), lambda _: None)
    (run.path / "debates" / "step_000006.jsonl").write_bytes((own / "debates" / "said.jsonl").read_bytes())
    for step in range(1, 7):
        readable = {"replies/readable": 0.9 if step < 2 else 0.1, "alarms": ["format collapse", "mine"] if step == 6 else []}
        run.log(Progress(step), "train", readable | {"votes/due_turns_with_vote": "odd"})
        if step % 2 == 0:
            right = {"eval/direct/sums/correct": 2 / step, "eval/direct/sums/answers": 90.0}
            run.log(Progress(step), "eval", right | {"alarms": ["fallen answers", "theirs"] if step > 2 else []})
    with serving([run.path], tmp_path / "cache") as server:
        id = server.id("parrot")
        until(lambda: server.get(f"debates/{id}")["flags"]["alarm"])
        collapse, mine, fallen, theirs = server.get(f"alarms/{id}/6")["alarms"]
        assert fallen["seen"] == "right answers alone to 90 held-out questions fell to 33%, from 100% at first"
        assert (theirs["name"], theirs["seen"]) == ("theirs", None)
        assert server.get(f"alarms/{id}/2")["alarms"] == server.get(f"alarms/{id}/5")["alarms"] == []
        assert server.get(f"source/{id}")["alarms"] == [
            {"name": "fallen answers", "first": 4, "last": 6},
            {"name": "theirs", "first": 4, "last": 6},
            {"name": "format collapse", "first": 6, "last": 6},
            {"name": "mine", "first": 6, "last": 6},
        ]
        assert (mine["name"], mine["seen"], mine["debates"]) == ("mine", None, [])
        assert "readable replies fell" in collapse["seen"]
        named = [row["index"] for row in server.get(f"debates/{id}", flags="alarm")["rows"]]
        assert [debate["index"] for debate in collapse["debates"]] == named
        for row in server.get(f"debates/{id}", flags="alarm")["rows"]:
            assert row["unreadable"] or row["votes"] < 24


def test_dropped_debates_are_in_the_table(own, tmp_path):
    (own / "runs" / "parrot" / "debates" / "step_000002.dropped.json").write_text('{"step-2/q9": "the server gave up"}')
    with serving([own / "runs"], tmp_path / "cache") as server:
        id = server.id("parrot")
        until(lambda: server.get(f"debates/{id}", flags="dropped")["rows"])
        (row,) = server.get(f"debates/{id}", flags="dropped")["rows"]
        assert (row["id"], row["dropped"], row["index"], row["part"]) == (
            "step-2/q9",
            "the server gave up",
            None,
            "step_000002",
        )


def test_an_index_is_kept_and_made_again_when_it_must(own, tmp_path):
    (source,) = find([own / "debates" / "said.jsonl"])
    assert Index(source, tmp_path).refresh()
    assert not Index(source, tmp_path).refresh(), "all was read before"
    (kept,) = tmp_path.glob("*.sqlite")
    assert kept.stat().st_size > 10_000
    kept.write_bytes(b"damaged" * 1000)
    assert Index(source, tmp_path).refresh()
    (run,) = [source for source in find([own / "runs"]) if source.kind == "run"]
    assert Index(run, tmp_path).refresh()
    config = run.path / "config.toml"
    config.write_text(config.read_text().replace("lambda_form = 1.0", "lambda_form = 0.0"))
    assert Index(run, tmp_path).refresh(), "other rules, other rows"
    assert not any(path.name.endswith(".sqlite") for path in own.rglob("*"))


def test_an_index_that_is_deleted_under_the_viewer_is_made_again(own, tmp_path):
    cache = tmp_path / "cache"
    with serving([own / "runs", own / "debates"], cache) as server:
        run, said = server.id("parrot"), server.id("said.jsonl")

        def state():
            asked = [server.ask(f"/api/debates/{id}", {"Authorization": f"Bearer {TOKEN}"}) for id in (run, said)]
            assert {status for status, *_ in asked} <= {200, 404}
            return [json.loads(body).get("rows") for _, _, body in asked]

        until(lambda: all(state()) and [len(rows) for rows in state()] == [11, 10])
        before, cursor = state(), server.get("changes")["cursor"]
        shutil.rmtree(cache, ignore_errors=True)  # the indexer makes files in it meanwhile
        until(lambda: state() == before)
        assert set(server.get("changes", cursor=cursor)["sources"]) == {run, said}
        for kept in cache.glob("*.sqlite"):
            kept.write_bytes(b"damaged" * 1000)
        until(lambda: state() == before)
        line = (own / "debates" / "said.jsonl").read_bytes().splitlines(keepends=True)[0]
        with (own / "debates" / "said.jsonl").open("ab") as file:
            file.write(line)
        until(lambda: len(server.get(f"debates/{said}")["rows"]) == 11)


def test_looking_whether_an_index_changed_lets_go_of_no_lock(made, tmp_path):
    """Another process that closes it must see that somebody has it open, or it removes what was not yet written back."""
    (source,) = find([made / "debates" / "said.jsonl"])
    index = Index(source, tmp_path)
    index.refresh()
    (path,) = tmp_path.glob("*.sqlite")
    with index.connected() as db:
        db.execute("SELECT * FROM parts").fetchall()
        assert index.revision
        look = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('SELECT * FROM parts').fetchall()"
        subprocess.run([sys.executable, "-c", f"{look}; db.close()", str(path)], check=True)
        assert Path(f"{path}-wal").exists()
    assert not Path(f"{path}-wal").exists()


def test_a_light_debate_is_the_same_without_tokens(made):
    for line in (made / "debates" / "said.jsonl").read_bytes().splitlines():
        whole, light = load(line), load_light(line, "x")
        assert [turn.used for turn in light.turns] == [turn.used for turn in whole.turns]
        assert asdict(score(light).tally) == asdict(score(whole).tally)
        for turn, other in zip(light.turns, whole.turns, strict=True):
            assert [(one.role, one.text) for one in turn.asked] == [(one.role, one.text) for one in other.asked]
            assert turn.tokens is None


def test_rules_of_somebodys_own_are_not_imported(own, tmp_path):
    path = own / "runs" / "parrot" / "config.toml"
    path.write_text(path.read_text().replace('reward = "streams"', 'reward = "sent:reward"'))
    (own / "sent.py").write_text("raise SystemExit(7)")
    with serving([own / "runs"], tmp_path / "cache") as server:
        rules = server.get(f"source/{server.id('parrot')}")["rules"]
        assert rules["whose"] == "default"
        assert "It trained on sent:reward" in rules["note"]
    path.write_text("agents = [")
    with serving([own / "runs"], tmp_path / "cache") as server:
        page = server.get(f"source/{server.id('parrot')}")
        assert page["preset"] is None
        assert "is not TOML" in page["source"]["problem"]


def test_sources_are_found_where_they_are(made, tmp_path):
    (tmp_path / "questions.jsonl").write_text('{"question": "What?", "answer": "42"}\n')
    (tmp_path / "link").symlink_to(made)
    assert find([tmp_path]) == []
    assert len(find([made, made / "runs"])) == 4
    assert isinstance(find([made / "runs" / "parrot"])[0], Source)
