"""Connections that are too many, or that only hold a place. A real server on loopback, with little patience."""

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from peergrad.serve.connections import server
from tests.runs.killing import PARROT

HALF = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf"


async def echo(request):
    return PlainTextResponse(str(len(await request.body())))


async def much(_):
    return PlainTextResponse("x" * 50_000_000)


@contextlib.contextmanager
def serving(limit, patience_s):
    app = Starlette(routes=[Route("/echo", echo, methods=["POST"]), Route("/much", much)])
    listening = socket.create_server(("127.0.0.1", 0))
    one = server(app, limit, patience_s)
    thread = threading.Thread(target=one.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield listening.getsockname()
    finally:
        one.should_exit = True
        thread.join(60)


def said(address):
    return httpx.post(f"http://{address[0]}:{address[1]}/echo", content=b"whole", timeout=300)


def until(what):
    for _ in range(1200):
        if what():
            return
        time.sleep(0.05)
    raise AssertionError("it never came")


def answers(address):
    with contextlib.suppress(httpx.HTTPError):
        return said(address).status_code == 200
    return False


def refused(address):
    with contextlib.suppress(httpx.HTTPError):
        answer = said(address)
        return answer.status_code == 503 and "as many connections as it can" in answer.text
    return False


def test_too_many_connections_are_refused_and_told_once(caplog):
    with serving(limit=20, patience_s=600) as address, contextlib.ExitStack() as stack:
        until(lambda: answers(address))
        for _ in range(20):
            stack.enter_context(socket.create_connection(address)).sendall(HALF)
        for _ in range(150):  # more than are told why
            stack.enter_context(socket.create_connection(address))
        until(lambda: any("20 connections are open" in message for message in caplog.messages))
        until(lambda: refused(address))
        assert sum("connections are open" in message for message in caplog.messages) == 1
        assert not any("Traceback" in message for message in caplog.messages)
        stack.close()
        until(lambda: answers(address))


@pytest.mark.parametrize("start", [b"", b"POST /echo HT", HALF, b"GET /much HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_who_stops_sending_or_reading_is_cut_off(start):
    with serving(limit=4, patience_s=0.3) as address, contextlib.ExitStack() as stack:
        until(lambda: answers(address))
        slow = [stack.enter_context(socket.create_connection(address)) for _ in range(4)]
        for one in slow:
            one.sendall(start)
        until(lambda: answers(address))  # all places were taken


def test_ctrl_c_has_one_exit_code_and_no_traceback(tmp_path):
    command = ["-c", "from peergrad.cli.main import main; main()", "serve", "--model", str(PARROT), "--port", "0"]
    with subprocess.Popen(
        [sys.executable, *command, "--out", str(tmp_path), "--threads", "1"], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr
        line = next(line for line in process.stderr if "serving" in line)
        port = int(line.rpartition(":")[2].partition(";")[0])
        with socket.create_connection(("127.0.0.1", port)) as one:
            until(lambda: answered(port))
            one.sendall(HALF.replace(b"/echo", b"/api/v1/create_session"))
            for _ in range(2):
                process.send_signal(signal.SIGINT)
            rest = process.stderr.read()
        assert process.wait(300) == 130
        assert "Traceback" not in rest


def answered(port):
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"http://127.0.0.1:{port}/api/v1/healthz", timeout=300).status_code == 200
    return False
