"""How likely words are, by a service's log-probabilities (SPEC 3.18)."""

import asyncio

import numpy as np
import pytest
from starlette.responses import Response
from tinker.proto.tinker_public_pb2 import SampleResponse

from peergrad import EngineError, UserError
from peergrad.debate.types import Ask, Message
from peergrad.engines.local.engine import Local
from peergrad.engines.local.model.lora import LoraRules
from tests.tinker.proxy import Proxy
from tests.tinker.test_wire import MODEL, datum, engine

QUESTIONS = ["Is 2 + 3 = 5? Answer Yes or No.", "Is 7 right?", "A or B?"]
OPTIONS = [("Yes", "No"), ("A", "B", "C")]


def ask(text):
    return Ask("d", 0, 0, 0, (Message("user", text),), (), max_tokens=8, temperature=0.3)


async def shares(sampler, options):
    return np.array([likely.shares for likely in await sampler.choose([ask(text) for text in QUESTIONS], options)])


def test_3_18_shares_are_the_local_engines(server):  # SPEC 3.18
    far, here = engine(server.url), Local.load_model(MODEL, threads=1, lora=LoraRules(rank=4, alpha=32.0))
    data = [datum(length, np.random.default_rng(3)) for length in (40, 25)]

    async def go():
        before = await here.sampler()
        for model in (far, here):
            await model.step(data, "importance_sampling", 1e-2)
        for options in OPTIONS:
            there, local = await shares(await far.sampler(), options), await shares(await here.sampler(), options)
            assert there.sum(1) == pytest.approx(1)
            assert np.abs(there - local).max() < 1e-3
            assert np.abs(there - await shares(before, options)).max() > 1e-2  # of the weights as they are now
        base = await far.sampler_with(None)
        assert np.abs(await shares(base, OPTIONS[0]) - await shares(before, OPTIONS[0])).max() < 1e-3
        (likely,) = await base.choose([ask("?")], ("Yes", "No"))
        assert likely.prompt == 2 * (len(far.chat.prompt(ask("?").messages)) + 1)

    asyncio.run(go())


def test_what_can_not_be_chosen_between_is_an_error(server):
    async def go():
        sampler = await engine(server.url).sampler_with(None)
        with pytest.raises(EngineError, match="Yes, Yes sir begin with the same token"):
            await sampler.choose([ask("?")], ("Yes", "Yes sir"))
        long, short = await sampler.choose([ask("word " * 3000), ask("?")], ("Yes", "No"))
        assert "does not fit the model's context of 2048" in str(long)
        assert sum(short.shares) == pytest.approx(1)

    asyncio.run(go())


def test_a_service_that_gives_none_is_a_sentence(server):
    proxy = Proxy(server.url)

    async def without(path, request, forward):
        answer = await forward()
        if path != "retrieve_future" or answer.media_type != "application/x-protobuf":
            return answer
        response = SampleResponse.FromString(answer.body)
        response.ClearField("prompt_logprobs")
        return Response(response.SerializeToString(), media_type=answer.media_type)

    proxy.fault = without

    async def go():
        await (await engine(proxy.url).sampler_with(None)).choose([ask("?")], ("Yes", "No"))

    with pytest.raises(UserError, match=r"^ballot_form: 127.* gives no log-probabilities; take verdicts, ranking or pairs"):
        asyncio.run(go())
    proxy.close()
