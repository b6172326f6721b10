"""How likely words are, by a server's log-probabilities (SPEC 3.18): the engine, and the commands that vote by it."""

import json
import math

import pytest

from peergrad import EngineError, UserError
from peergrad.debate.errors import Halted
from peergrad.debate.transcript import read_file
from peergrad.engines.base import Meter
from tests.cli.answers import peergrad
from tests.openai.asking import an_ask, chosen
from tests.openai.server import Response, Server, completion, first_tokens

NO_LOGPROBS = "gives no log-probabilities"
INSTEAD = "take verdicts, ranking or pairs"


def saying(**shares):
    """A server whose first token is each of these so likely."""
    return lambda _: Response(completion("Yes", "length", logprobs=logprobs_of(**shares), usage=(10, 1)))


def logprobs_of(**shares):
    return first_tokens(**{token: math.log(share) for token, share in shares.items()})


@pytest.mark.parametrize(
    ("tokens", "options", "shares"),
    [
        ({"Yes": 0.6, "No": 0.2, "Perhaps": 0.2}, ("Yes", "No"), (0.75, 0.25)),
        ({"Yes": 0.3, " Yes": 0.2, "\nY": 0.1, "No": 0.2, "": 0.1, " ": 0.1}, ("Yes", "No"), (0.75, 0.25)),
        ({"Yes,": 0.4, "No.": 0.4, "yes": 0.1, "NO": 0.1}, ("Yes", "No"), (0.5, 0.5)),
        ({"Yes": 0.5, "Not": 0.3, "None": 0.2}, ("Yes", "No"), (1.0, 0.0)),
        ({"B": 0.2, "Answer": 0.5, "A:": 0.1, "C": 0.1, "All": 0.1}, ("A", "B", "C"), (0.25, 0.5, 0.25)),
    ],
)
def test_shares_are_those_of_the_tokens_an_option_may_begin_with(tokens, options, shares):
    (likely,), server = chosen(saying(**tokens), options=options)
    assert likely.shares == pytest.approx(shares)
    assert likely.prompt == 10
    body = server.requests[0].body
    assert {name: body[name] for name in ("max_tokens", "logprobs", "top_logprobs", "temperature")} == {
        "max_tokens": 1,
        "logprobs": True,
        "top_logprobs": 20,
        "temperature": 1.0,
    }
    assert "stop" not in body
    assert "stream" not in body


def test_a_model_that_would_say_neither_costs_its_ask():
    (answer,), _ = chosen(saying(Perhaps=0.9, Answer=0.1))
    assert isinstance(answer, EngineError)
    assert "m at 127.0.0.1" in str(answer)
    assert "would say none of Yes, No" in str(answer)


REFUSALS = {
    "by its name": ({"message": "Unsupported parameter: 'logprobs' is not supported with this model."}, 400),
    "by a parameter": ({"message": "no", "param": "top_logprobs"}, 400),
    "by permission": ({"message": "You are not allowed to request logprobs from this model"}, 403),
    "unquoted": ({"message": "logprobs is not supported"}, 422),
}


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("answered", [False, True])
def test_a_server_that_refuses_log_probabilities_is_a_sentence(refusal, answered):
    message, status = REFUSALS[refusal]
    left = [saying(Yes=1.0)] * answered
    with pytest.raises(UserError, match=f"^ballot_form: .* {NO_LOGPROBS} .*; {INSTEAD}"):
        chosen(lambda r: left.pop()(r) if left else Response({"error": message}, status), an_ask(), an_ask())


BROKEN = [
    None,
    7,
    {"content": None},
    {"content": [{"token": "Yes", "logprob": -0.1}]},
    {"content": [{"top_logprobs": [{"token": "Yes", "logprob": "high"}, {"token": 3, "logprob": -1}, 9]}]},
    {"content": [{"top_logprobs": [{"token": "Yes", "logprob": math.nan}, {"token": "No"}]}]},
]


@pytest.mark.parametrize("logprobs", BROKEN)
def test_a_server_that_gives_none_is_a_sentence(logprobs):
    with pytest.raises(UserError, match=f"^ballot_form: m at .* {NO_LOGPROBS}; {INSTEAD}"):
        chosen(lambda _: Response(completion("Yes", logprobs=logprobs)))


def test_an_answer_without_them_costs_itself_once_others_had_them():
    left = [logprobs_of(Yes=0.5, No=0.5), None]
    answers, _ = chosen(lambda _: Response(completion("Yes", logprobs=left.pop(0))), an_ask(), an_ask())
    assert answers[0].shares == (0.5, 0.5)
    assert isinstance(answers[1], EngineError)


def test_numbers_that_are_no_log_probabilities_do_no_harm():
    top = first_tokens(Yes=1e300, No=-9999.0)
    (likely,), _ = chosen(lambda _: Response(completion("Yes", logprobs=top)))
    assert likely.shares == (1.0, 0.0)


@pytest.mark.parametrize(
    "words",
    ["top_logprobs must be between 0 and 5", "Requested sample logprobs of 20, which is greater than max allowed: 5"],
)
def test_a_server_that_gives_fewer_is_asked_for_fewer(words):
    def handle(request):
        good = request.body["top_logprobs"] <= 5
        return saying(Yes=0.9, No=0.1)(request) if good else Response({"error": {"message": words}}, 400)

    answers, server = chosen(handle, an_ask(), an_ask())
    assert [answer.shares for answer in answers] == [pytest.approx((0.9, 0.1))] * 2
    assert [request.body["top_logprobs"] for request in server.requests] == [20, 5, 5]


def test_they_are_retried_and_paid_for_like_replies():
    left, meter = [Response(b"", 503)], Meter(budget_tokens=11)
    answers, _ = chosen(lambda r: left.pop() if left else saying(Yes=1.0)(r), an_ask(), an_ask(), meter=meter)
    assert answers[0].shares == (1.0, 0.0)
    assert meter.spent.prompt == 10
    assert meter.spent.requests == meter.spent.sampled == 1
    assert isinstance(answers[1], Halted)


def voters(request, *, logprobs=True):
    """Agents that answer 6 or 7, by their seeds, and believe in 7."""
    if "top_logprobs" not in request.body:
        return Response(completion(f"It is \\boxed{{{6 + (request.body['seed'] % 3 == 2)}}}."))
    if not logprobs:
        return Response(completion("Yes", "length"))
    judged = request.body["messages"][-1]["content"]
    yes = 0.9 if "7" in judged else 0.3
    return Response(completion("Yes", "length", logprobs=logprobs_of(Yes=yes, No=1 - yes), usage=(10, 1)))


BALLOT = ["--protocol", "ballot", "--ballot-form", "soft-verdict", "--agents", "4", "--shown", "2", "--style", "boxed"]


def test_a_debate_is_voted_on_by_log_probabilities(tmp_path):
    with Server(voters) as server:
        args = ["debate", "What is 2 + 3?", "--model", f"m@{server.url}", "--out", "one.jsonl", *BALLOT]
        done = peergrad(*args, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (debate,) = read_file(tmp_path / "one.jsonl")
    answers = [debate.question.style.answer(turn.text) for turn in debate.turns[:4]]
    assert len(debate.turns) == 8
    votes = [vote for turn in debate.turns[4:] for vote in turn.parsed.votes]
    assert len(votes) == 4
    worth = [0.9 if answer == "7" else 0.3 for answer in answers]
    for a, verdict, b in votes:
        first, second = worth[a] * (1 - worth[b]), worth[b] * (1 - worth[a])
        assert verdict == pytest.approx((first - second) / (first + second), abs=1e-5)  # by odds (SPEC 3.19)
    assert {*answers} == {"6", "7"}
    assert all(turn.usage.prompt == 20 for turn in debate.turns[4:])


def test_check_measures_a_ballot_by_log_probabilities(tmp_path):
    with Server(voters) as server:
        args = ["check", "--model", f"m@{server.url}", "--task", "arithmetic", "--questions", "3", "--json", *BALLOT[:-2]]
        done = peergrad(*args, cwd=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    assert not json.loads(done.stdout)["dropped"]


@pytest.mark.parametrize("command", [["debate", "What is 2 + 3?", "--style", "boxed"], ["check", "--task", "arithmetic"]])
def test_a_server_without_them_is_one_sentence(command, tmp_path):
    with Server(lambda request: voters(request, logprobs=False)) as server:
        done = peergrad(*command, "--model", f"m@{server.url}", *BALLOT[:-2], cwd=tmp_path)
    assert done.returncode == 2
    assert f"peergrad: ballot_form: m at 127.0.0.1:{server.url.split(':')[2][:-3]} {NO_LOGPROBS}; {INSTEAD}" in done.stderr
    assert "Traceback" not in done.stderr
