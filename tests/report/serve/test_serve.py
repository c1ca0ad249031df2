"""The dashboard as a browser and as a stranger meet it: a real server on a loopback port."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing, contextmanager

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from browser import browser  # noqa: F401
from gradient_flow.cli.main import main
from gradient_flow.cli.serve import serve
from gradient_flow.errors import ConfigError, RunFileError
from gradient_flow.record.run_writer import RunWriter
from gradient_flow.report import live_run
from gradient_flow.report.data import page_data
from gradient_flow.report.serve import live_runs
from gradient_flow.report.serve.access import Access
from gradient_flow.report.serve.app import application
from gradient_flow.report.serve.run_ids import RunFolder, id_of, path_of
from gradient_flow.report.serve.server import DashboardServer

PATIENCE = 30.0
HOSTILE = "<img src=x onerror=alert(1)>"


def write_run(folder, steps=5, started="2026-01-01T00:00:00+00:00", end=True, every=1):
    writer = RunWriter(
        folder, {"started": started, "settings": {"every": 1}, "parameters": [parameter("w"), parameter(HOSTILE)]}
    )
    for step in range(1, steps + 1):
        writer.write(
            {"kind": "step", "step": step, "time": step / 10, "norm": 1.0 + step % 3, "nan_count": 0, "loss": 1 / step}
        )
        if step % every == 0:
            writer.write(layers(step))
    if end:
        writer.write({"kind": "end", "steps": steps, "status": "stable", "message": "Fine."})
    writer.close()
    return folder


def parameter(name):
    return {"name": name, "shape": [2, 2], "dtype": "float32"}


def layers(step):
    record = {
        "kind": "look",
        "step": step,
        "rows": None,
        "norm": [1.0, 2.0],
        "sum": [0.5, 0.5],
        "sum_abs": [1.0, 1.0],
    }
    record |= {"min": [-1.0, -1.0], "max": [1.0, 1.0], "update_ratio": [1e-3, 1e-3]}
    return record | dict.fromkeys(("zeros", "near_zero", "very_large", "nan", "inf", "neg_inf"), 0)


@contextmanager
def served(path, **settings):
    """A server in a thread of this process; it ends with the block, streams or not."""
    server = DashboardServer(path, port=0, **settings)
    ready = threading.Event()
    thread = threading.Thread(target=server.serve, args=(ready.set,))
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        yield server
    finally:
        server.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the server did not end"


def ask(server, path, method="GET", headers=None):
    """Status, headers and body; the path goes out as it is written here."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    try:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def get(server, path, **more):
    status, _, body = ask(server, path, **more)
    assert status == 200, body
    return json.loads(body)


def until(condition):
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.05)
    return found


class Stream:
    """Server-sent events, one after another."""

    def __init__(self, server, path):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        self.connection.request("GET", path)
        self.answer = self.connection.getresponse()
        assert self.answer.getheader("content-type").startswith("text/event-stream")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.answer.close()
        self.connection.close()

    def next(self):
        """Name and data of the next event; a comment counts as one, and the end of the stream is two Nones."""
        event, data = None, None
        while (line := self.answer.readline().decode()) not in ("", "\n"):
            name, _, value = line.rstrip("\n").partition(": ")
            if name == "data":
                data = json.loads(value)
            else:
                event = value if name == "event" else "comment"
        return event, data

    def first(self, wanted):
        while (found := self.next())[0] != wanted:
            assert found[0] is not None, f"the stream ended without {wanted}"
        return found[1]


@pytest.fixture
def folder(tmp_path):
    runs = tmp_path / "runs"
    write_run(runs / "a", 5, "2026-01-01T00:00:00+00:00")
    write_run(runs / "sweep" / f"lr 0.1 {HOSTILE}".replace("/", "_"), 7, "2026-01-03T00:00:00+00:00")
    write_run(runs / "ü~%2F-x", 9, "2026-01-02T00:00:00+00:00", end=False)
    return runs


# ---- what is served ------------------------------------------------------------------------------


def test_every_run_is_listed_and_opens_under_its_id(folder):
    with served(folder) as server:
        runs = get(server, "/api/runs")["runs"]
        assert [(run["name"], run["last_step"], run["status"]) for run in runs] == [
            (f"sweep/lr 0.1 {HOSTILE}", 7, "finished"),
            ("ü~%2F-x", 9, "running"),
            ("a", 5, "finished"),
        ]
        for run in runs:
            page = get(server, f"/api/run/{run['id']}")
            expected = page_data(folder / run["name"])
            assert page == json.loads(json.dumps(expected))
            layer = get(server, f"/api/run/{run['id']}/layer?name=%3Cimg%20src%3Dx%20onerror%3Dalert%281%29%3E")
            assert layer["name"] == HOSTILE
            assert layer["stats"]["norm"] == [2.0] * run["last_step"]
        until(lambda: all(run["level"] for run in get(server, "/api/runs")["runs"]))


def test_a_folder_that_is_a_run_is_that_run(folder):
    for path in (folder / "a", folder / "a" / "run.jsonl"):
        with served(path) as server:
            assert [(run["id"], run["name"]) for run in get(server, "/api/runs")["runs"]] == [(".", "a")]
            for way in ("/api/run/-", "/api/run/", "/api/run/."):
                assert get(server, way)["run"]["name"] == "a"
            assert get(server, "/api/run/-/layer?name=w")["stats"]["norm"] == [1.0] * 5


def test_a_page_may_ask_for_less(folder):
    with served(folder) as server:
        page = get(server, "/api/run/a?columns=2&cells=1")
        assert (len(page["series"]["step"]), len(page["layers"]["step"])) == (2, 1)
        for wrong in ("columns=0", "columns=many", "cells=-1", "columns=1e9"):
            status, _, body = ask(server, f"/api/run/a?{wrong}")
            assert status == 422
            assert "integer" in json.loads(body)["error"]
        assert ask(server, "/api/run/a/layer?name=nothing")[0] == 404


def test_the_page_and_every_answer_carry_the_headers_that_keep_them_in(folder):
    with served(folder) as server:
        for path in ("/", "/api/runs", "/api/run/a", "/nothing"):
            status, headers, body = ask(server, path)
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["cache-control"] == "no-store"
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert "server" not in headers
            assert status == (404 if path == "/nothing" else 200)
            if path == "/":
                assert b"default-src 'none'" in body, "the policy of the page itself"
                assert headers["content-type"].startswith("text/html")


def test_what_cannot_be_read_says_why_and_does_not_hide_the_others(folder):
    for name, content in (("new", b'{"kind":"header","format":99}\n'), ("empty", b""), ("other", b"a,b\n1,2\n")):
        (folder / name).mkdir()
        (folder / name / "run.jsonl").write_bytes(content)
    with served(folder) as server:
        listed = {run["name"]: run for run in get(server, "/api/runs")["runs"]}
        assert len(listed) == 6
        for name, said in (
            ("new", "Upgrade gradient-flow"),
            ("empty", "no complete record"),
            ("other", "not a run file"),
        ):
            assert listed[name]["status"] == "unknown"
            assert said in listed[name]["message"]
            for way in ("", "/layer?name=w"):
                status, _, body = ask(server, f"/api/run/{name}{way}")
                assert status == 422
                assert said in json.loads(body)["error"]
            with Stream(server, f"/api/run/{name}/events") as stream:
                assert said in stream.first("problem")["error"]


def test_the_list_knows_the_last_step_behind_long_and_torn_lines(tmp_path):
    writer = RunWriter(
        tmp_path / "runs" / "long", {"started": "2026", "settings": {}, "parameters": [parameter("x" * 200_000)]}
    )
    writer.write({"kind": "step", "step": 41, "time": 4.1, "norm": 1.0})
    writer.write({"kind": "look", "step": 41, "rows": None, "norm": [0.123456] * 200_000})
    writer.close()
    with writer.path.open("ab") as file:
        file.write(b'{"kind":"step","step":42,"ti')
    with served(tmp_path / "runs") as server:
        (run,) = get(server, "/api/runs")["runs"]
    assert (run["last_step"], run["seconds"], run["started"]) == (41, 4.1, "2026")


def test_a_thousand_runs_are_listed_from_their_first_and_last_lines(tmp_path):
    for run in range(1000):
        target = tmp_path / "runs" / f"sweep{run % 10}" / f"run{run}"
        target.mkdir(parents=True)
        head = (
            b'{"kind":"header","format":1,"started":"2026-01-01T00:%02d:%02d","settings":{},"parameters":[]}\n'
            % divmod(run, 60)
        )
        (target / "run.jsonl").write_bytes(head + b'{"kind":"step","step":%d,"time":1.5,"norm":1.0}\n' % (run + 1))
    with served(tmp_path / "runs") as server:
        runs = get(server, "/api/runs")["runs"]
        assert [run["last_step"] for run in runs] == list(range(1000, 0, -1)), "the newest first"
        assert len({run["id"] for run in runs}) == 1000


def test_only_some_runs_are_kept_open(tmp_path, monkeypatch):
    monkeypatch.setattr(live_runs, "MOST_OPEN", 2)
    for name in "abcd":
        write_run(tmp_path / name)
    live = live_runs.LiveRuns(RunFolder(tmp_path))
    held = live.digest("a")
    for name in "bcd":
        live.digest(name)
    assert set(live._open) == {"a", "c", "d"}
    assert live.digest("a") is held, "what a stream still holds is not read twice"


def test_serving_writes_nothing(folder):
    def state():
        files = sorted(folder.rglob("*"))
        return [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in files]

    before = state()
    with served(folder) as server:
        for run in get(server, "/api/runs")["runs"]:
            get(server, f"/api/run/{run['id']}")
        until(lambda: all(run["level"] for run in get(server, "/api/runs")["runs"]))
    assert state() == before


# ---- who may ask, and for what -------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["a", "a b/c", "ü", "..x", "-", "%2e", "~41", "a/" + HOSTILE.replace("/", ""), ".hidden/x"]
)
def test_ids_are_plain_and_stand_for_one_path(name):
    assert path_of(id_of(name)) == name
    assert set(id_of(name)) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.~")
    assert id_of(name)[0] not in ".-"


def test_nothing_outside_the_folder_is_served(folder, tmp_path):
    outside = write_run(tmp_path / "outside")
    (folder / "link").symlink_to(outside, target_is_directory=True)
    (folder / "inner").mkdir()
    (folder / "inner" / "run.jsonl").symlink_to(outside / "run.jsonl")
    (folder / "here").symlink_to(folder / "a", target_is_directory=True)
    tries = [
        "..",
        "../outside",
        "..%2Foutside",
        "%2E%2E%2Foutside",
        "..%5Coutside",
        "~2E~2E~2Foutside",
        "a~2F..~2F..~2Foutside",
    ]
    tries += [
        id_of(str(outside)),
        f"%2F{outside}",
        str(outside),
        "link",
        "inner",
        "a%00",
        "~00",
        "a~2Frun.jsonl",
        "~FF",
    ]
    with served(folder) as server:
        for run_id in tries:
            for rest in ("", "/layer?name=w", "/events"):
                status, _, body = ask(server, f"/api/run/{run_id}{rest}")
                assert status in (307, 400, 404), (run_id, body)
                assert b"norm" not in body
        assert {run["name"] for run in get(server, "/api/runs")["runs"]}.isdisjoint({"link", "inner", "here"})
        assert get(server, "/api/run/here")["run"]["last_step"] == 5, "a link that stays inside may be asked for"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_reading_only(folder, method):
    with served(folder) as server:
        for path in ("/", "/api/runs", "/api/run/a"):
            status, headers, _ = ask(server, path, method)
            assert (status, headers["allow"]) == (405, "GET, HEAD")
        assert ask(server, "/", "HEAD")[::2] == (200, b"")


def test_a_foreign_name_for_this_machine_is_refused(folder):
    with served(folder) as server:
        foreign = ("evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example", "")
        for host in (*foreign, "[::1].evil.com", "[::1].evil.com:80", "[::1]:80.evil.com", "[::1", "localhost:80:80"):
            assert ask(server, "/api/runs", headers={"Host": host})[0] == 403, host
        for host in ("localhost", f"localhost:{server.port}", "127.0.0.1:1", "[::1]:80", "[::1]"):
            assert ask(server, "/api/runs", headers={"Host": host})[0] == 200, host


def test_a_websocket_is_refused_without_a_traceback(folder, capfd):
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    with served(folder) as server:
        for path in ("/", "/api/run/a/events"):
            assert 400 <= ask(server, path, headers=upgrade)[0] < 500
        assert get(server, "/api/runs")["runs"]
    assert "Traceback" not in "".join(capfd.readouterr())


def test_a_websocket_is_refused_also_where_no_library_for_it_is_installed(folder):
    live = live_runs.LiveRuns(RunFolder(folder))
    client = TestClient(Access(application(live), host="127.0.0.1", token=None), base_url="http://localhost")
    assert client.get("/api/runs", headers={"Upgrade": "WebSocket"}).status_code == 400
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/"):
        pass


def test_another_address_needs_the_token(folder):
    with served(folder, host="0.0.0.0") as server:
        assert len(server.token) >= 32
        assert server.token in server.url
        for path in ("/", "/api/runs", "/api/run/a", "/api/run/a/events"):
            for wrong in (
                "",
                "?token=",
                "?token=x",
                f"?token={server.token}x",
                f"?token={server.token[:-1]}",
                "?token=%C3%BC",
            ):
                assert ask(server, path + wrong)[0] == 401, path + wrong
        assert ask(server, "/api/runs", headers={"Authorization": "Bearer nothing"})[0] == 401
        assert ask(server, "/api/runs", headers={"Authorization": f"Basic {server.token}"})[0] == 401
        assert get(server, f"/api/runs?token={server.token}")["runs"]
        assert get(server, "/api/runs", headers={"Authorization": f"Bearer {server.token}"})["runs"]
        assert get(server, f"/api/runs?token={server.token}", headers={"Host": "gpu-box.example"})["runs"]
    with served(folder, host="0.0.0.0") as other:
        assert other.token != server.token


def test_a_token_may_be_chosen_and_holds_on_loopback_too(folder):
    with served(folder, token="open sesame") as server:
        assert ask(server, "/api/runs")[0] == 401
        assert get(server, "/api/runs?token=open%20sesame")["runs"]
        assert server.url.endswith("/?token=open%20sesame")
    with closing(DashboardServer(folder, port=0)) as server:
        assert server.token is None
    with pytest.raises(ConfigError, match="must not be empty"):
        DashboardServer(folder, port=0, token="")


# ---- news ----------------------------------------------------------------------------------------

WRITER = """
import sys, time
from gradient_flow.record.run_writer import RunWriter
writer = RunWriter(sys.argv[1], {"settings": {}, "parameters": []})
for step in range(1, 6):
    input()
    writer.write({"kind": "step", "step": step, "time": 0.0, "norm": 1.0})
    print(step, flush=True)
writer.write({"kind": "end", "steps": 5, "status": "stable", "message": "Done."})
"""


def test_growth_is_told_while_another_process_writes(tmp_path):
    write_run(tmp_path / "runs" / "other")
    command = [sys.executable, "-c", WRITER, str(tmp_path / "runs" / "new")]
    with (
        served(tmp_path / "runs") as server,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writing,
    ):
        until(lambda: any(run["name"] == "new" for run in get(server, "/api/runs")["runs"]))
        with Stream(server, "/api/run/new/events") as stream:
            assert stream.next()[0] == "comment"
            for step in range(1, 6):
                writing.stdin.write("\n")
                writing.stdin.flush()
                assert int(writing.stdout.readline()) == step
                while (told := stream.first("changed"))["last_step"] != step:
                    assert told["last_step"] in (None, step - 1), "nothing is told before it happens"
                assert get(server, "/api/run/new")["series"]["step"] == list(range(1, step + 1))
            assert stream.first("ended")["last_step"] == 5
        assert get(server, "/api/run/new")["run"]["status"] == "finished"


def test_a_long_run_is_read_on_in_the_background_and_that_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(live_run, "SAMPLE", 5)
    monkeypatch.setattr(live_run, "LONG", 10)
    folder = write_run(tmp_path / "run", 300)
    with served(folder) as server:
        early = get(server, "/api/run/-")
        assert len(early["layers"]["step"]) == 5
        assert not early["truth"]["complete"]
        with Stream(server, "/api/run/-/events") as stream:
            assert stream.first("ended")["last_step"] == 300
        assert get(server, "/api/run/-") == json.loads(json.dumps(page_data(folder)))


def test_the_verdict_of_a_long_run_is_told_before_all_of_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(live_run, "SAMPLE", 5)
    monkeypatch.setattr(live_run, "LONG", 10)
    go = threading.Event()
    read_some = live_run.LiveRun.read_some

    def slow(self):
        assert go.wait(PATIENCE)
        read_some(self)

    monkeypatch.setattr(live_run.LiveRun, "read_some", slow)
    folder = write_run(tmp_path / "run", 300)
    with served(folder) as server:
        truth = get(server, "/api/run/-")["truth"]
        assert not truth["judged"]
        with Stream(server, f"/api/run/-/events?size={truth['size']}&judged=false&complete=false") as stream:
            assert not stream.first("changed")["complete"]
            truth = get(server, "/api/run/-")["truth"]
            assert truth["judged"]
            assert not truth["complete"]
            go.set()
            assert stream.first("changed")["complete"]


def test_what_a_page_shows_already_is_no_news(tmp_path):
    folder = write_run(tmp_path / "run", 5)
    with served(folder) as server:
        truth = get(server, "/api/run/-")["truth"]
        assert truth["judged"]
        assert truth["complete"]
        assert truth["size"] == (folder / "run.jsonl").stat().st_size
        with Stream(server, f"/api/run/-/events?size={truth['size']}&judged=true&complete=true") as stream:
            assert [stream.next()[0] for _ in range(2)] == ["comment", "ended"]
        for less in (f"size={truth['size'] - 1}&judged=true&complete=true", f"size={truth['size']}&judged=true"):
            with Stream(server, f"/api/run/-/events?{less}") as stream:
                assert [stream.next()[0] for _ in range(3)] == ["comment", "changed", "ended"]
        with Stream(server, "/api/run/-/events?size=many") as stream:
            assert [stream.next()[0] for _ in range(2)] == ["comment", "ended"]


def test_the_list_does_not_read_the_run_that_the_first_page_waits_for(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "run", 5)
    begun, go = threading.Event(), threading.Event()
    update = live_run.LiveRun.update

    def slow(self):
        begun.set()
        assert go.wait(PATIENCE)
        return update(self)

    read = []

    def none_made(files, _workers):
        read.extend(files)
        yield from ()

    monkeypatch.setattr(live_run.LiveRun, "update", slow)
    monkeypatch.setattr(live_runs, "make_digests", none_made)
    live = live_runs.LiveRuns(RunFolder(folder))
    live.facts()
    live.prepare()
    assert begun.wait(PATIENCE)
    live._judge_listed()
    assert read == []
    go.set()
    until(lambda: not live._preparing)
    live._judge_listed()
    assert read == [str(folder / "run.jsonl")]


def test_a_run_that_has_just_begun_is_waited_for(tmp_path):
    (tmp_path / "run.jsonl").touch()
    with served(tmp_path) as server, Stream(server, "/api/run/-/events") as stream:
        assert "no complete record yet" in stream.first("problem")["error"]
        write_run(tmp_path, 4)
        assert stream.first("ended")["last_step"] == 4


def test_open_streams_do_not_keep_the_server_from_ending(folder):
    with ExitStack() as stack:
        with served(folder) as server:
            streams = [stack.enter_context(Stream(server, "/api/run/a/events")) for _ in range(3)]
            assert [stream.first("ended")["last_step"] for stream in streams] == [5] * 3
            streams[0].connection.close()
        assert streams[1].next() == (None, None)


# ---- the command ---------------------------------------------------------------------------------


def test_the_command_prints_its_address_and_ends_on_ctrl_c(folder):
    command = [sys.executable, "-u", "-m", "gradient_flow", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        said = []
        for line in process.stdout:
            said.append(line)
            if "Ctrl-C" in line:
                break
        assert said[0].startswith("Serving 3 runs")
        port = int(said[2].strip().removeprefix("http://127.0.0.1:").removesuffix("/"))
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
            connection.request("GET", "/api/runs", headers={"Connection": "close"})
            assert connection.getresponse().read()
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(PATIENCE) == 0, rest
    assert rest.strip() == "Stopped."


def test_wrong_usage_is_explained(folder, tmp_path):
    def told(*arguments):
        result = CliRunner().invoke(serve, [str(argument) for argument in arguments])
        assert result.exit_code == 2, result.output
        return " ".join(result.output.split())

    assert "does not exist" in told(tmp_path / "nothing")
    (tmp_path / "file.txt").touch()
    assert "is not a folder" in told(tmp_path / "file.txt")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"`port` {port} cannot be used" in told(folder, "--port", port)
    assert "is not an address of this machine" in told(folder, "--host", "no.such.host.invalid")
    assert "Invalid value for '--port'" in told(folder, "--port", 70000)


def test_without_a_port_the_next_free_one_is_taken(folder):
    with closing(DashboardServer(folder)) as first, closing(DashboardServer(folder)) as second:
        assert first.port != second.port


def test_a_missing_extra_names_the_command_that_installs_it(folder, monkeypatch):
    for name in [
        name
        for name in sys.modules
        if name.startswith("gradient_flow.report.serve.") or name.split(".")[0] == "uvicorn"
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = CliRunner().invoke(main, ["serve", str(folder)])
    assert result.exit_code == 2
    assert re.search(r'pip install "starlette\S*" "uvicorn\S*"', result.output)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(RunFileError, match="does not exist"):
        DashboardServer(tmp_path / "nothing")


# ---- in a browser --------------------------------------------------------------------------------

TRAINING = """
import sys, time, torch
import gradient_flow as gf
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
with gf.watch(model, optimizer, run=sys.argv[1]) as flow:
    for step in range(int(sys.argv[2])):
        loss = model(torch.randn(16, 4)).square().mean()
        loss.backward()
        flow.log(loss=loss.item())
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)
"""


def test_the_page_grows_while_a_script_trains(browser, tmp_path):  # noqa: F811
    runs = tmp_path / "runs"
    write_run(runs / "before", 40)
    write_run(runs / HOSTILE.replace("/", "_"), 30)
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    command = [sys.executable, str(script), str(runs / "training"), "100"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with served(runs) as server, subprocess.Popen(command, env=environment) as training:
        file = runs / "training" / "run.jsonl"  # a first step stands in it
        until(lambda: file.exists() and b'"step"' in file.read_bytes())
        until(lambda: get(server, "/api/run/training")["series"]["step"])
        browser.open(f"{server.url}#run=training")
        loaded = browser.js("return performance.timeOrigin")

        def last_step():
            return browser.js("return GF.state.data.run.last_step")

        early = last_step()
        later = browser.wait(lambda: last_step() > early and last_step(), "more steps are shown")
        browser.wait(lambda: last_step() > later, "and more again")
        assert training.wait(PATIENCE) == 0
        browser.wait(lambda: last_step() == 100, "all steps are shown")
        browser.wait(lambda: browser.js("return GF.state.data.run.status") == "finished", "the end is shown")
        assert browser.js("return performance.timeOrigin") == loaded, "the page was never loaded again"
        assert browser.complaints() == []
        assert all(url.startswith((server.url, "data:")) for url in browser.requests())


def test_runs_are_filtered_and_laid_over_each_other(browser, tmp_path):  # noqa: F811
    for name, steps in (("small", 20), ("large", 40), (HOSTILE.replace("/", "_"), 30)):
        write_run(tmp_path / "runs" / name, steps)

    def names():
        return [element.text for element in browser.all("#runs-table tbody th button")]

    with served(tmp_path / "runs") as server:
        browser.open(server.url, ready=False)
        browser.wait(lambda: len(names()) == 3, "all runs are listed")
        assert HOSTILE.replace("/", "_") in names(), "a name is text"
        browser.find("#runs-filter").send_keys("mal")
        browser.wait(lambda: names() == ["small"], "the filter holds")
        browser.js(
            "const box = document.querySelector('#runs-filter'); box.value = ''; box.dispatchEvent(new Event('input'))"
        )
        browser.wait(lambda: len(names()) == 3, "all again")
        for row in browser.all("#runs-table tbody input[type=checkbox]")[:]:
            row.click()
        browser.wait(lambda: len(browser.all("#compare-issues [data-run]")) == 3, "three runs are compared")
        assert browser.find("#compare").is_displayed()
        assert len(browser.all("#compare-charts figure")) == 2, "norm and loss"
        browser.all("#runs-table tbody th button")[names().index("large")].click()
        browser.wait(lambda: browser.js("return GF.state.data && GF.state.data.run.name") == "large", "a run is opened")
        assert browser.complaints() == []
