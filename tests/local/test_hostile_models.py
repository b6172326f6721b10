"""Model folders and files from elsewhere: nothing in them is run, and none takes more than a little time or memory."""

import copy
import io
import json
import re
import shutil
import struct
import subprocess
import sys

import pytest

from peergrad import EngineError, UserError
from peergrad.debate.types import Message
from peergrad.engines.local.engine import Local
from peergrad.engines.local.fetch.models import resolve
from peergrad.engines.shared.chat import Chat, load_chat
from tests.local.tiny import tokenizer
from tests.runs.killing import PARROT

CODE = "open({marker!r}, 'w').close()\nclass Own: pass\n"


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(PARROT, tmp_path / "model")


def change(path, **fields):
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def refused(folder):
    with pytest.raises(UserError) as caught:
        Local.load_model(str(folder), threads=1)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_code_that_a_model_brings_along_is_never_run(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    marker = tmp_path / "was run"
    (folder / "own.py").write_text(CODE.format(marker=str(marker)))
    names = dict.fromkeys(("AutoConfig", "AutoModelForCausalLM"), "own.Own")
    change(folder / "config.json", auto_map=names, model_type="own-kind", architectures=["Own"])
    assert "needs Python code that it brings along, auto_map, which is never run" in refused(folder)
    shutil.copy(PARROT / "config.json", folder / "config.json")
    change(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.Own", "own.Own"]}, tokenizer_class="Own")
    with pytest.raises(UserError, match=r"never run|can't load the tokenizer"):
        load_chat(str(folder))
    assert not marker.exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_hidden_layers", 0),
        ("num_hidden_layers", -1),
        ("num_hidden_layers", 10**9),
        ("num_hidden_layers", 900),
        ("hidden_size", 10**9),
        ("vocab_size", 4_000_000),
        ("num_attention_heads", "many"),
    ],
)
def test_a_size_that_no_model_has(folder, field, value):
    change(folder / "config.json", **{field: value})
    assert re.search("config.json|has no weights for", refused(folder))


def test_a_config_that_is_too_deep(folder):
    (folder / "config.json").write_text("[" * 100_000)
    assert "config.json that can't be read" in refused(folder)


def test_ids_that_the_model_does_not_have(folder):
    change(folder / "generation_config.json", eos_token_id=[10**12, -5, 10**9])
    assert "tokenizer has ids up to 1000000000" in refused(folder)
    with pytest.raises(UserError, match="the model 10 tokens"):
        Chat(tokenizer()).check_ids(10)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ 1/0 }}", "division by zero"),
        ("{{ range(10**9) }}", "MAX_RANGE|too big"),
        ("{% set many = range(10**5) %}{% for i in many %}{% for j in many %}{% endfor %}{% endfor %}", "does not end"),
        ("{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}", "too much memory"),
        ("{{ 'a'.ljust(10**11) }}", "too much memory"),
        ("{{ 'a' * 10**9 }}", "too much memory"),
        ("{% for i in range(99999) %}{{ messages * 9 }}{% endfor %}", "too much memory"),
    ],
)
def test_a_chat_template_that_fails_is_refused(template, says):
    one = copy.deepcopy(tokenizer())
    one.chat_template = template
    with pytest.raises(UserError, match=says):
        Chat(one)


def test_a_chat_template_that_turns_hostile_later_is_refused_then():
    one = copy.deepcopy(tokenizer())
    late = "{% if messages | length > 40 %}{{ 'a' * 10**9 }}{% endif %}"
    one.chat_template += late
    chat, exchange = Chat(one), [Message("user", "u"), Message("assistant", "a")]
    assert len(chat.prompt([*exchange * 10, Message("user", "u")]))
    with pytest.raises(UserError, match="too much memory"):
        chat.prompt([*exchange * 20, Message("user", "u")])


@pytest.mark.parametrize("template", [{"default": ["x"]}, [{"name": "default", "template": ["x"]}]])
def test_a_chat_template_that_is_no_text_is_refused(folder, template):
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    change(folder / "tokenizer_config.json", chat_template=template)
    with pytest.raises(UserError, match=r"^model: .*chat_template is no text"):
        load_chat(str(folder))


@pytest.mark.parametrize(
    ("ends", "says"), [("echo oh no >&2; exit 1", r"exited with 1 \(oh no\)"), ("kill -9 $$", "was ended by signal 9")]
)
def test_what_ended_the_process_that_renders_is_said(tmp_path, monkeypatch, ends, says):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{ends}\n")
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    one = copy.deepcopy(tokenizer())
    one.chat_template += "{# rendered by a process that ends: " + ends + " #}"
    with pytest.raises(EngineError, match=f"^model: the process that renders its chat template {says}"):
        Chat(one)


def test_a_chat_template_sees_no_key(monkeypatch):
    """It is rendered elsewhere, by a process with none in its environment, and for many dialogues at once."""
    begun, real = [], subprocess.run
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setattr(subprocess, "run", lambda *args, **more: (begun.append(more), real(*args, **more))[1])
    one = copy.deepcopy(tokenizer())
    one.chat_template += "{# not seen before #}"
    chat = Chat(one)
    for length in range(2, 17, 2):
        chat.prompt([Message("system", "s"), *[Message("user", "u"), Message("assistant", "a")] * 8][:length])
    assert len(begun) == 1
    assert "sk-secret" not in str(begun)


def text(value):
    return struct.pack("<Q", len(value)) + value


HUGE = 2**60
HEADERS = {
    "fields": struct.pack("<QQ", 0, HUGE),
    "tensors": struct.pack("<QQ", HUGE, 0),
    "a name": struct.pack("<QQQ", 0, 1, HUGE),
    "an array": struct.pack("<QQ", 0, 1) + text(b"a") + struct.pack("<IIQ", 9, 8, HUGE),
    "an array of bytes": struct.pack("<QQ", 0, 1) + text(b"a") + struct.pack("<IIQ", 9, 0, 2**24) + bytes(2**24),
    "arrays of arrays": struct.pack("<QQ", 0, 1) + text(b"a") + struct.pack("<IIQ", 9, 9, 2) + bytes(64),
}


@pytest.mark.parametrize("what", HEADERS)
def test_a_gguf_that_names_more_than_it_holds(tmp_path, monkeypatch, what):
    monkeypatch.setenv("PEERGRAD_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "one.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<I", 3) + HEADERS[what] + bytes(64))
    with pytest.raises(UserError, match="this GGUF can't be converted \\(its header"):
        resolve(str(path))
