"""augur watch: the live page, in Chromium, against runs that grow."""

import fcntl
import http.client
import json
import re
import resource
import shutil
import signal
import socket
import subprocess
import time

import numpy as np
import pytest

import report_runs
from browser import Browser
from conftest import PROGRAM, run_augur
from train_runs import make_policy, small_config, start, wait_for_step


class Server:
    def __init__(self, *runs, flags=()):
        command = [PROGRAM, "watch", *map(str, runs), "--port", "0", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().split()[0]
        self.port = int(re.search(r":(\d+)/", self.url)[1])

    def ask(self, target, method="GET", body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request(method, target, body, headers)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, body

    def close(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout=20)


@pytest.fixture(scope="module")
def browser():
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture
def run(tmp_path):
    """A run of 60 steps, of which 20 are done; `held` as a process that trains would."""
    path = report_runs.make_run(tmp_path / "run", steps=60)
    rng = np.random.default_rng(1)
    responses = [report_runs.response(rng, step, length=12) for step in range(1, 61) for _ in range(2)]
    report_runs.write_lines(path / "tokens.jsonl", responses)
    rest = {}
    for name in ("metrics.jsonl", "points.jsonl", "tokens.jsonl"):
        lines = (path / name).read_text().splitlines(keepends=True)
        first = [line for line in lines if json.loads(line)["step"] <= 20]
        (path / name).write_text("".join(first))
        rest[name] = lines[len(first) :]
    (path / "summary.json").unlink(missing_ok=True)
    lock = open(path / ".lock", "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    path.joinpath("rest.json").write_text(json.dumps(rest))
    yield path
    lock.close()


def grow(run, name, count):
    rest = json.loads((run / "rest.json").read_text())
    with open(run / name, "a") as file:
        file.writelines(rest[name][:count])
    rest[name] = rest[name][count:]
    (run / "rest.json").write_text(json.dumps(rest))


@pytest.fixture
def server(run):
    server = Server(run)
    yield server
    server.close()


def open_live(browser, server):
    browser.call("Page.navigate", url="about:blank")  # the last test's page asks a server that has ended
    wait_for(browser, "location.href === 'about:blank' && document.readyState === 'complete'")
    browser.problems.clear()
    browser.call("Page.navigate", url=server.url)
    wait_for(browser, "document.readyState === 'complete' && typeof RUNS !== 'undefined'")


def wait_for(browser, expression, seconds=60):
    end = time.time() + seconds
    while not browser.ask(f"Boolean({expression})"):
        assert time.time() < end, f"{expression} did not come true; {browser.problems}"
        time.sleep(0.1)


def test_points_appear_and_what_was_chosen_stays(browser, run, server):
    open_live(browser, server)
    reward = "charts.find((h) => h.canvas.getAttribute('aria-label').startsWith('Reward')).chart"
    assert browser.ask(f"{reward}.data.datasets[0].data.length") == 20
    wait_for(browser, "document.querySelectorAll('#responses .tok').length")
    browser.ask("window.mark = 'the same page'")
    browser.ask("document.getElementById('only-masked').click()")
    browser.ask(
        "(() => {const s = document.getElementById('smoothing'); s.value = 0.5; s.dispatchEvent(new Event('input'))})()"
    )
    browser.mouse("#responses .tok:not(.dim)")
    detail = browser.ask("document.getElementById('token-detail').textContent")
    chosen = browser.ask("document.getElementById('token-step').value")
    canvas = f"{reward}.canvas"
    browser.ask(f"window.canvas = {canvas}")
    grow(run, "metrics.jsonl", 5)
    grow(run, "points.jsonl", 5)
    grow(run, "tokens.jsonl", 10)
    wait_for(browser, f"{reward}.data.datasets[0].data.length === 25")
    assert browser.ask("window.mark") == "the same page" and browser.ask(f"window.canvas === {canvas}")
    assert browser.ask("document.getElementById('only-masked').checked")
    assert browser.ask("document.getElementById('smoothing').value") == "0.5"
    assert browser.ask("document.getElementById('token-detail').textContent") == detail
    assert browser.ask("document.getElementById('token-step').value") == chosen
    wait_for(browser, "[...document.getElementById('token-step').options].some((o) => o.value === '25')")
    values = [json.loads(line)["data"]["critic/score/mean"] for line in (run / "metrics.jsonl").open()]
    assert browser.ask("series(RUNS[0], 'critic/score/mean').map((p) => p[1])") == values
    assert browser.problems == []


def test_tokens_of_a_step_are_fetched_when_asked_for(browser, run, server):
    open_live(browser, server)
    wait_for(browser, "document.querySelectorAll('#responses .tok').length")
    browser.ask("document.getElementById('token-step').value = '3'")
    browser.ask("document.getElementById('token-step').dispatchEvent(new Event('change'))")
    wait_for(browser, "RUNS[0].tokens.responses.length && RUNS[0].tokens.responses[0].step === 3")
    expected = [json.loads(line) for line in (run / "tokens.jsonl").open() if json.loads(line)["step"] == 3]
    assert browser.ask("RUNS[0].tokens.responses.map((r) => r.reward)") == [r["reward"] for r in expected]
    for step in range(1, 21):
        answer = json.loads(server.ask(f"/tokens.json?run=0&step={step}")[1])
        assert {r["step"] for r in answer["responses"]} == {step}
    assert json.loads(server.ask("/tokens.json?run=0&step=0")[1]) is None
    assert json.loads(server.ask("/tokens.json?run=0&step=999")[1])["responses"][0]["step"] == 20


def state(server) -> dict:
    return json.loads(server.ask("/runs.json?since=")[1])["runs"][0]["state"]


def test_a_run_that_is_killed_or_moved_shows_so(browser, run, server, tmp_path):
    open_live(browser, server)
    assert state(server)["kind"] == "running" and "step 20 of 60, about " in state(server)["text"]
    (run / ".lock").rename(tmp_path / "held")  # its holder is gone
    (run / ".lock").touch()
    wait_for(browser, "document.querySelector('.state.stopped')")
    assert "step 20 of 60" in browser.ask("document.querySelector('.state').textContent")
    run.rename(tmp_path / "elsewhere")
    wait_for(browser, "document.querySelector('.state.gone')")
    assert browser.ask("series(RUNS[0], 'critic/score/mean').length") == 20  # what was known stays


def test_a_run_in_progress_grows_until_it_is_killed(browser, tmp_path):
    changes = {"train__steps": 100000, "checkpoint__every": 0, "eval__files": "[]"}
    config = small_config(tmp_path, make_policy(tmp_path / "policy"), **changes)
    training = start(config)
    wait_for_step(tmp_path / "run", 2, training)
    server = Server(tmp_path / "run")
    open_live(browser, server)
    steps = "series(RUNS[0], 'critic/score/mean').length"
    first = browser.ask(steps)
    wait_for(browser, f"{steps} > {first}", seconds=60)
    assert "of 100000, about " in browser.ask("document.querySelector('.state.running').textContent")
    training.kill()
    training.communicate()
    wait_for(browser, "document.querySelector('.state.stopped')", seconds=60)
    assert browser.problems == []
    server.close()


def test_several_runs_stand_side_by_side(browser, run, tmp_path):
    report_runs.make_run(tmp_path / "other", steps=30, seed=1)
    server = Server(run, tmp_path / "other")
    open_live(browser, server)
    assert browser.ask("RUNS.map((run) => run.label)") == ["run", "other"]
    assert browser.ask("document.querySelectorAll('.run-card').length") == 2
    assert state(server)["kind"] == "running"
    assert json.loads(server.ask("/runs.json?since=1,1")[1]) == {"runs": [None, None]}
    assert server.close() == 0
    wait_for(browser, "document.getElementById('footer').textContent.includes('has ended')")


def test_only_this_machine_is_answered_and_nothing_else_is_served(run, server):
    listening = subprocess.run(["ss", "-Htln", f"sport = :{server.port}"], capture_output=True, text=True).stdout
    assert not listening or "127.0.0.1:" in listening
    assert server.ask("/")[0] == 200
    foreign = ("", ":80", "evil.example", f"evil.example:{server.port}", f"127.0.0.1.evil.example:{server.port}")
    for host in (*foreign, "localhost.evil.example", f"localhost:{server.port}.evil.example", "127.0.0.1@evil.example"):
        assert server.ask("/", Host=host)[0] == 403
        assert server.ask("/runs.json", Host=host)[0] == 403
    for host in (
        f"localhost:{server.port}",
        "127.0.0.1",
        "LocalHost:9000",
        "[::1]:80",
        "[::1]",
    ):  # of a port that ssh forwards
        assert server.ask("/", Host=host)[0] == 200
    for target in ("/config.yaml", "/../config.yaml", "/%2e%2e/run/config.yaml", "//etc/passwd", "/run/config.yaml"):
        assert server.ask(target)[0] == 404
    for query in ("run=1&step=1", "run=-1&step=1", "run=0", "run=0&step=x", "run=9999999999999999999&step=1"):
        assert server.ask(f"/tokens.json?{query}")[0] == 400
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert server.ask("/", method=method)[0] == 405
        assert server.ask("/", method=method, body=b"steps: 1\n")[0] == 405
    assert server.ask("/", method="HEAD") == (200, b"")
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("flags", [["--token"], ["--host", "0.0.0.0"], ["--host", "LOCALHOST", "--token"]])
def test_a_server_with_a_token_answers_those_that_carry_it(run, flags):
    server = Server(run, flags=flags)
    token = re.fullmatch(r"http://\S+:\d+/\?token=([0-9a-f]{32})", server.url)[1]
    for target in ("/", "/?token=", "/?token=x", f"/?token={token}0", f"/?token={token[:-1]}", f"/?xtoken={token}"):
        assert server.ask(target)[0] == 403
    assert server.ask("/runs.json?since=")[0] == 403 and server.ask("/tokens.json?run=0&step=1")[0] == 403
    assert server.ask(f"/?token={token}")[0] == 200
    assert server.ask(f"/?token={token}", Host="hub.example")[0] == 200  # of a proxy
    version = json.loads(server.ask(f"/runs.json?since=&token={token}")[1])["runs"][0]["version"]
    assert json.loads(server.ask(f"/runs.json?since={version}&token={token}")[1]) == {"runs": [None]}
    assert json.loads(server.ask(f"/tokens.json?token={token}&run=0&step=3")[1])["responses"]
    assert server.close() == 0


def test_tokens_differ_from_server_to_server(run):
    servers = [Server(run, flags=["--token"]) for _ in range(2)]
    assert servers[0].url.split("=")[1] != servers[1].url.split("=")[1]
    for server in servers:
        server.close()


def test_a_page_opened_with_its_token_goes_on(browser, run):
    server = Server(run, flags=["--token"])
    open_live(browser, server)
    wait_for(browser, "document.querySelectorAll('#responses .tok').length")
    grow(run, "metrics.jsonl", 5)
    wait_for(browser, "series(RUNS[0], 'critic/score/mean').length === 25")
    assert browser.problems == []
    server.close()


def test_a_damaged_line_of_tokens_is_left_out(run, server):
    whole = json.loads(server.ask("/tokens.json?run=0&step=20")[1])["responses"]
    with open(run / "tokens.jsonl", "a") as file:
        file.write('{"step":20\n')
    status, body = server.ask("/tokens.json?run=0&step=20")
    assert status == 200 and len(json.loads(body)["responses"]) == len(whole)


def test_more_connections_than_it_may_hold_do_not_end_it(run, server):
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (24, 24))
    crowd = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(40)]
    time.sleep(0.3)
    for connection in crowd:
        connection.close()
    assert server.ask("/")[0] == 200


def test_what_cannot_be_watched_is_named(run, server, tmp_path):
    (tmp_path / "empty").mkdir()
    for arguments, message in [
        ([tmp_path / "nowhere"], "nowhere: does not exist"),
        ([tmp_path / "empty"], "is no run directory and holds none"),
        ([run / "config.yaml"], "is no directory"),
        ([run, "--port", server.port], f"--port {server.port}: Address already in use; choose another port"),
        ([run, "--port", 70000], "--port: Value 70000 not in range"),
        ([run, "--host", "192.0.2.1"], "--host 192.0.2.1: is no address of this machine"),
        ([run, "--host", "no such host"], "--host no such host: is no address and no name of a machine"),
    ]:
        done = run_augur("watch", *arguments, check=False)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and message in done.stderr


def test_a_run_that_begins_again_is_read_anew(run, server):
    shown = json.loads(server.ask("/runs.json?since=")[1])["runs"][0]
    assert shown["metrics"]["steps"][-1] == 20
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "new").write_text("".join(lines[:10]) + lines[10][:40])  # cut off, as a killed process leaves it
    (run / "new").rename(run / "metrics.jsonl")
    shown = json.loads(server.ask(f"/runs.json?since={shown['version']}")[1])["runs"][0]
    assert shown["metrics"]["steps"] == list(range(1, 11))


def test_twenty_thousand_steps_open_quickly_and_stay_small(browser, tmp_path):
    run = tmp_path / "long"
    run.mkdir()
    (run / "config.yaml").write_text(report_runs.config(steps=20000))
    rng = np.random.default_rng(0)
    few = report_runs.metrics(200, rng)
    names = {f"extra/{i}": 0.123456789 * i for i in range(40)}
    rests = [json.dumps(line["data"] | names)[1:] for line in few]
    with open(run / "metrics.jsonl", "w") as file:
        for step in range(1, 20001):
            rest = rests[step % 200].replace('"critic/score/mean"', '"other"')
            file.write(f'{{"step": {step}, "data": {{"critic/score/mean": {step / 20000}, {rest}}}\n')
    token = json.dumps(report_runs.response(rng, 0, length=20))
    with open(run / "tokens.jsonl", "w") as file:
        file.writelines(token.replace('"step": 0', f'"step": {step}', 1) + "\n" for step in range(1, 20001, 5))
    server = Server(run)
    begin = time.time()
    status, page = server.ask("/")
    assert status == 200 and len(page) < 10 << 20
    open_live(browser, server)
    assert browser.ask("charts.length") > 5
    assert time.time() - begin < 20  # 2 s on a machine that does nothing else
    points = browser.ask("series(RUNS[0], 'critic/score/mean')")
    assert 500 <= len(points) <= 2500 and points[-1] == [20000, 1]
    validations = browser.ask("series(RUNS[0], 'val-core/sort/acc/mean@16').length")
    assert validations >= 500
    answer = json.loads(server.ask("/tokens.json?run=0&step=10000")[1])
    assert answer["responses"][0]["step"] == 9996
    server.close()
    shutil.rmtree(run)
