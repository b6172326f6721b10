"""What servers answer, and what becomes of it (SPEC 1, 3.11, 6.7)."""

import json

import numpy as np
import pytest

from peergrad import EngineError, UserError
from peergrad.debate.types import Reply, Usage
from tests.openai.asking import STOP, an_ask, asked
from tests.openai.server import Response, completion, events

DONE = f"<comparison>N/A{STOP}"
OPEN = "<comparison>N/A"


def answering(*bodies):
    """A server that says these one after another, and then the last one for ever."""
    left = list(bodies)
    return lambda _: Response(left.pop(0) if len(left) > 1 else left[0])


def test_an_answer_with_its_usage():
    (answer,), server = asked(answering(completion(DONE)))
    assert answer == Reply(DONE, usage=Usage(10, 5))
    body = server.requests[0].body
    assert body["model"] == "m"
    assert body["messages"] == [{"role": "user", "content": "?"}]
    assert body["max_tokens"] == 50
    assert body["temperature"] == 0.7
    assert body["stop"] == [STOP]
    assert server.requests[0].path == "/v1/chat/completions"


def test_3_11_text_after_the_stop_text_is_cut():  # SPEC 3.11: a server that ignores stop strings
    (answer,), _ = asked(answering(completion(DONE + " and so on", "length", usage=(10, 50))))
    assert answer == Reply(DONE, truncated=False, usage=Usage(10, 50))


@pytest.mark.parametrize("name", ["stop_reason", "matched_stop"])
def test_3_11_the_stop_text_stays_where_the_server_says_it_stopped(name):  # SPEC 3.11
    (answer,), server = asked(answering(completion(OPEN, **{name: STOP})))
    assert answer.text == DONE
    assert len(server.requests) == 1


def test_a_model_that_ends_without_the_tag_is_not_mended():
    (answer,), server = asked(answering(completion(OPEN, stop_reason=None)))  # vLLM: no stop text was met
    assert answer.text == OPEN
    assert len(server.requests) == 1


def test_a_server_that_cuts_silently_is_sent_no_stop_text():
    """It can't be told whether the model wrote the tag: ask again without stop texts, and cut here from then on."""

    def handle(request):
        said = "I end without it" if "wrong" in request.content.decode() else DONE + "\nmore"
        return Response(completion(said.partition(STOP)[0] if "stop" in request.body else said))

    (first, second, wrong), server = asked(handle, an_ask(), an_ask("again"), an_ask("wrong"))
    assert first.text == second.text == DONE
    assert wrong.text == "I end without it"
    assert ["stop" in request.body for request in server.requests] == [True, False, False, False]


def test_a_server_seen_to_keep_stop_texts_is_believed():
    (first, second), server = asked(answering(completion(DONE), completion(OPEN)), an_ask(), an_ask())
    assert (first.text, second.text) == (DONE, OPEN)
    assert len(server.requests) == 2


@pytest.mark.parametrize(("said", "read"), [(OPEN, DONE), ("nothing of the kind", "nothing of the kind"), (DONE, DONE)])
def test_a_server_may_be_trusted(said, read):
    (answer,), server = asked(answering(completion(said)), stops="trusted")
    assert answer.text == read
    assert len(server.requests) == 1


def test_the_token_limit_truncates():
    (answer,), _ = asked(answering(completion(OPEN, "length")))
    assert answer.truncated
    assert answer.text == OPEN


def test_without_stop_texts_nothing_is_doubted():
    (answer,), server = asked(answering(completion("42")), an_ask(stop=()))
    assert answer.text == "42"
    assert "stop" not in server.requests[0].body
    assert len(server.requests) == 1


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_given_apart_is_not_part_of_the_reply(name):
    (answer,), _ = asked(answering(completion(DONE, message={name: "a secret plan"}, usage=(10, 900))))
    assert answer == Reply(DONE, usage=Usage(10, 900))


def test_a_stop_text_met_while_reasoning_does_not_end_the_reply():
    def handle(request):
        if "stop" in request.body:
            return Response(completion(None, message={"reasoning": "I might say <comparison>"}, stop_reason=STOP))
        return Response(completion(DONE, message={"reasoning": "I might"}))

    (answer,), _ = asked(handle)
    assert answer.text == DONE


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (completion(None, message={"refusal": "I can't help with that."}, stop_reason=None), "I can't help with that."),
        (completion("Half a", "content_filter"), "Half a"),
        (completion(None, "content_filter"), ""),
        (completion("", stop_reason=None), ""),
        (completion(None, "tool_calls", message={"tool_calls": [{"id": "x"}]}), ""),
        (completion([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": DONE}]), DONE),
    ],
)
def test_refusals_filters_and_empty_replies_are_data(body, text):
    (answer,), server = asked(answering(body))
    assert answer.text == text
    assert not answer.truncated
    assert len(server.requests) == 1


def test_of_several_choices_the_first_is_taken():
    body = completion(DONE)
    other = json.loads(json.dumps(body["choices"][0])) | {"index": 1}
    other["message"]["content"] = "the second"
    body["choices"].insert(0, other)
    (answer,), _ = asked(answering(body))
    assert answer.text == DONE


def test_halves_of_surrogate_pairs_are_no_text():
    (answer,), _ = asked(lambda _: Response(json.dumps(completion("\ud800" + DONE)).encode()))
    assert answer.text == "\ufffd" + DONE


def test_a_reply_that_is_streamed_is_the_same():
    pieces = ["<compa", "rison>N/A</comp", "arison> more", " and more"]
    heard = []
    (answer,), server = asked(lambda _: events(pieces), hear=lambda ask, piece: heard.append((ask.turn, piece)))
    assert answer == Reply(DONE, usage=Usage(10, 5))
    assert "".join(piece for _, piece in heard) == DONE
    assert len(heard) == 3
    assert server.requests[0].body["stream_options"] == {"include_usage": True}
    (plain,), _ = asked(answering(completion("".join(pieces))))
    assert plain == answer


def test_what_was_heard_is_taken_back_when_an_attempt_fails():
    broken = [events([DONE[:5]], finish=None, usage=None), events(["<compar", "is"], finish=None, done=False)]
    left = [*broken, events([OPEN], stop_reason=STOP)]
    heard = []
    (answer,), _ = asked(lambda _: left.pop(0), hear=lambda _, piece: heard.append(piece))
    assert answer.text == DONE
    assert heard == [DONE[:5], None, "<compar", "is", None, OPEN, STOP]


def test_a_server_that_does_not_stream_may_be_heard_too():
    heard = []
    (answer,), _ = asked(answering(completion(DONE)), hear=lambda _, piece: heard.append(piece))
    assert answer.text == DONE
    assert heard == [DONE]


def test_an_error_within_a_stream_is_tried_again():
    left = [Response(b'data: {"error": {"message": "overloaded"}}\n\n', headers={"content-type": "text/event-stream"})]
    left.append(events([DONE]))
    (answer,), server = asked(lambda _: left.pop(0), hear=lambda *_: None)
    assert answer.text == DONE
    assert len(server.requests) == 2


PIECES = [b"<comparison>", b"N/A \xc3", b"\xa9", b"</", b"comparison", b">\n"]
TEXT = "<comparison>N/A é</comparison>"


def with_tokens(pieces=PIECES, text=TEXT, **changed):
    drawn = [{"token": "t", "logprob": -0.1 * n, "bytes": list(piece)} for n, piece in enumerate(pieces)]
    choice = {"logprobs": {"content": drawn}, "token_ids": list(range(len(pieces))), "stop_reason": STOP} | changed
    return completion(text, **choice) | {"prompt_token_ids": [7, 8, 9]}


def test_6_7_token_ids_and_logprobs_are_kept_where_given():  # SPEC 6.7
    (answer,), server = asked(answering(with_tokens()), tokens=True)
    assert answer.tokens.prompt_T.tolist() == [7, 8, 9]
    assert answer.tokens.ids_T.tolist() == [0, 1, 2, 3, 4, 5]
    assert np.allclose(answer.tokens.logprobs_T, [0, -0.1, -0.2, -0.3, -0.4, -0.5])
    assert answer.tokens.starts_T.tolist() == [0, 12, 17, 18, 20, 30]
    assert answer.tokens.temperature == 0.7
    assert answer.tokens.sound
    assert server.requests[0].body["return_token_ids"] is True
    assert server.requests[0].body["top_k"] == -1


@pytest.mark.parametrize(
    "body",
    [
        with_tokens(text="other " + TEXT),
        with_tokens(text=TEXT.replace("é", "ü")),
        with_tokens(text=TEXT[:-4], finish="length"),  # the text ends before its last token begins
        with_tokens(token_ids=[1, 2]),
        with_tokens(token_ids=["x"] * 6),
        with_tokens(logprobs=None),
        with_tokens(logprobs={"content": [{"token": "t", "logprob": float("nan"), "bytes": [65]}] * 6}),
        with_tokens() | {"prompt_token_ids": None},
    ],
)
def test_tokens_that_are_not_exactly_those_of_the_text_are_not_kept(body):
    (answer,), _ = asked(answering(body), tokens=True)
    assert answer.tokens is None
    assert answer.usage == Usage(10, 5)


def test_an_end_of_turn_is_a_token_without_text():
    (answer,), _ = asked(answering(with_tokens([*PIECES[:-1], b">", b"<|im_end|>"], stop_reason=None)), tokens=True)
    assert answer.tokens.starts_T.tolist()[-2:] == [30, 31]


def test_tokens_not_asked_for_are_not_kept():
    (answer,), _ = asked(answering(with_tokens()))
    assert answer.tokens is None


def refusing(field, status=400, wording="Unsupported parameter: '{}' is not supported with this model.", param=True):
    def handle(request):
        if field in request.body:
            error = {"message": wording.format(field), "type": "invalid_request_error"} | ({"param": field} if param else {})
            return Response({"error": error}, status)
        return Response(completion(DONE))

    return handle


@pytest.mark.parametrize("field", ["max_tokens", "seed", "stop", "include_stop_str_in_output"])
def test_what_a_server_refuses_is_left_out_and_remembered(field):
    (first, second), server = asked(refusing(field), an_ask(), an_ask())
    assert first.text == second.text == DONE
    assert [field in request.body for request in server.requests] == [True, False, False]
    limits = [request.body.get("max_completion_tokens") for request in server.requests]
    assert limits == ([None, 50, 50] if field == "max_tokens" else [None] * 3)


def test_a_set_of_unexpected_fields_is_understood():
    def handle(request):
        extra = {"include_stop_str_in_output", "no_stop_trim"} & request.body.keys()
        if extra:
            return Response({"detail": f"Unexpected fields in the request: {extra}"}, 422)
        return Response(completion(DONE))

    (answer,), server = asked(handle)
    assert answer.text == DONE
    assert len(server.requests) == 2


def test_a_server_without_usage_in_streams():
    def handle(request):
        if "stream_options" in request.body:
            return Response({"error": {"message": "Unrecognized request argument supplied: stream_options"}}, 400)
        return events([DONE], usage=None)

    (answer,), _ = asked(handle, hear=lambda *_: None)
    assert answer == Reply(DONE)


def test_temperature_refused_is_a_sentence():
    with pytest.raises(UserError, match=r"^send_temperature: "):
        asked(refusing("temperature", wording="Unsupported value: '{}' does not support 0.7 with this model."))
    (answer,), server = asked(refusing("temperature"), send_temperature=False)
    assert answer.text == DONE
    assert "temperature" not in server.requests[0].body


def test_tokens_refused_is_a_sentence():
    with pytest.raises(UserError, match=r"^tokens: "):
        asked(refusing("logprobs", wording="{} is not supported"), tokens=True)


def test_a_bad_request_is_the_settings_fault_until_one_was_answered():
    broken = Response({"error": {"message": "no such thing"}}, 400)
    with pytest.raises(UserError, match="refuses the first request \\(400: no such thing\\)"):
        asked(lambda _: broken)
    left = [Response(completion(DONE)), broken, Response(completion(DONE))]
    (first, second, third), _ = asked(lambda _: left.pop(0), an_ask(), an_ask(), an_ask())
    assert first.text == third.text == DONE
    assert isinstance(second, EngineError)


def test_seeds_name_the_ask():
    _, server = asked(
        answering(completion(DONE)), an_ask(), an_ask(), an_ask(turn=1), an_ask(agent=1), an_ask(debate="e"), seed=3
    )
    seeds = [request.body["seed"] for request in server.requests]
    assert seeds[0] == seeds[1]
    assert len(set(seeds)) == 4
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_a_listeners_failure_is_its_own():
    def hear(_, piece):
        piece.encode("ascii")

    requests = []
    with pytest.raises(UnicodeEncodeError):
        asked(lambda request: requests.append(request) or events(["é" + DONE]), hear=hear)
    assert len(requests) == 1


def test_temperature_0_becomes_a_tiny_one_where_it_is_refused():
    def handle(request):
        if request.body["temperature"] <= 0:
            return Response({"error": {"message": "`temperature` must be strictly positive"}}, 422)
        return Response(completion(DONE))

    (first, second), server = asked(handle, an_ask(temperature=0.0), an_ask(temperature=0.0))
    assert first.text == second.text == DONE
    assert [0 < request.body["temperature"] < 0.01 for request in server.requests] == [False, True, True]
    with pytest.raises(UserError, match=r"^temperature: .*does not take 0.7 \(400: temperature must be at most 0.5\)"):
        asked(refusing("temperature", wording="{} must be at most 0.5"))


def test_content_goes_before_refusal_however_it_comes():
    both = {"content": DONE, "refusal": "no"}
    (whole,), _ = asked(answering(completion(None, message=both)))
    pieces = [{"content": DONE}, {"refusal": "no"}]
    chunks = [{"choices": [{"index": 0, "delta": piece, "finish_reason": "stop"}]} for piece in pieces]
    stream = Response(
        "".join(f"data: {json.dumps(c)}\n\n" for c in chunks).encode(), headers={"content-type": "text/event-stream"}
    )
    (heard,), _ = asked(lambda _: stream, hear=lambda *_: None)
    assert whole.text == heard.text == DONE


def test_a_stop_reason_of_another_meaning_is_not_believed():
    (answer,), server = asked(answering(completion(OPEN, stop_reason="stop"), completion(DONE)))
    assert answer.text == DONE
    assert "stop" not in server.requests[1].body
