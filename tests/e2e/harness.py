"""What end-to-end tests share: a server process on a free port, exact HTTP on sockets, reports.

A test file ends in `harness.main(globals())`; its cases are unittest.TestCase classes. Nothing sleeps to wait: waiting
polls a condition and fails with what it saw after PATIENCE seconds.
"""

import argparse
import atexit
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import unittest
import xml.etree.ElementTree as xml

PATIENCE = 300
SKIP = 77
args = None


def wait_until(condition, what):
    """Polls until `condition()` is true, and returns that value."""
    end = time.monotonic() + PATIENCE
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {PATIENCE} s: {what}")
        time.sleep(0.005)


class Server:
    """onecard serve in a process of its own."""

    def __init__(self, *flags, group=None):
        self.log_path = pathlib.Path(args.work) / f"server-{os.getpid()}-{time.monotonic_ns()}.log"
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [args.program, "serve", "--model", args.model, "--served-model-name", "demo", "--port", "0", *flags],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={"PATH": "/usr/bin:/bin"},
                preexec_fn=group.enter if group else None)
        found = wait_until(self._ready, "event=ready in the log")
        self.url = found.group(1)
        self.port = int(self.url.rsplit(":", 1)[1])

    def _ready(self):
        if self.process.poll() is not None:
            raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.log()}")
        return re.search(r"event=ready .*?url=(\S+)", self.log())

    def log(self):
        return self.log_path.read_text(errors="replace")

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def num_descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def resident_kib(self):
        return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{self.process.pid}/status").read_text()).group(1))

    # One request on a connection of its own.

    def request(self, method, path, body=None, headers=None):
        """(status, headers, body bytes); a dict goes as JSON, bytes go as they are."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            data = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
            connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def get(self, path):
        return self.request("GET", path)

    def post(self, path, body, headers=None):
        status, _, data = self.request("POST", path, body, headers)
        return status, json.loads(data)

    def chat(self, text, **fields):
        """The whole answer of one user message; greedy unless `fields` say otherwise."""
        status, body = self.post("/v1/chat/completions", chat_body(text, **fields))
        assert status == 200, (status, body)
        return body

    def metric(self, name, **labels):
        """The value of a metric, summed over the samples that have these labels."""
        text = self.get("/metrics")[2].decode()
        total, found = 0.0, False
        for line in text.splitlines():
            match = re.match(re.escape(name) + r"\{(.*)\} (\S+)$", line)
            if match and all(f'{key}="{value}"' in match.group(1) for key, value in labels.items()):
                total, found = total + float(match.group(2)), True
        assert found, f"no metric {name} {labels}"
        return total

    def num_running(self):
        return self.metric("vllm:num_requests_running")

    def num_waiting(self):
        return self.metric("vllm:num_requests_waiting")

    def wait_until_idle(self):
        wait_until(lambda: self.num_running() + self.num_waiting() == 0, "no request is left")


def refusal(*flags, group=None):
    """What a server says that ends instead of getting ready."""
    try:
        server = Server(*flags, group=group)
    except AssertionError as ended:
        return str(ended)
    server.close()
    raise AssertionError("the server was not refused:\n" + server.log())


class MemoryGroup:
    """A control group of the kernel with a limit on memory, below the one that this process is in; skips the case where
    the kernel lets none be made. For `with`."""

    def __init__(self, limit_mib):
        self.limit_bytes = limit_mib << 20
        for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
            controllers, path = line.split(":", 2)[1:]
            if controllers == "":
                parent, limit = pathlib.Path("/sys/fs/cgroup" + path), "memory.max"
            elif "memory" in controllers.split(","):
                parent, limit = pathlib.Path("/sys/fs/cgroup/memory" + path), "memory.limit_in_bytes"
            else:
                continue
            self.directory = parent / f"onecard-test-{os.getpid()}-{time.monotonic_ns()}"
            self.limit_path = self.directory / limit
            if self._make(parent):
                return
        raise unittest.SkipTest("no memory control group can be made here")

    def _make(self, parent):
        if not (parent / "cgroup.procs").exists():
            return False
        try:
            self.directory.mkdir()
        except OSError:
            return False
        try:
            if self.limit_path.exists():
                self.limit_path.write_text(str(self.limit_bytes))
                return True
        except OSError:
            pass
        self.directory.rmdir()
        return False

    def enter(self):
        """Called in a child, before its program begins."""
        (self.directory / "cgroup.procs").write_text("0")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        def removed():  # what ended is still there for a moment
            try:
                self.directory.rmdir()
            except OSError:
                return False
            return True
        wait_until(removed, f"{self.directory} is empty")


class ServerCase(unittest.TestCase):
    """Cases that share one server, started with `flags`."""

    flags = ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.flags)
        cls.addClassCleanup(cls.server.close)


class ClientCase(unittest.TestCase):
    """Cases of client packages: all of a process share one server, which wants the key `secret`."""

    server = None

    @classmethod
    def setUpClass(cls):
        if ClientCase.server is None:
            ClientCase.server = Server("--api-key", "secret")
            atexit.register(ClientCase.server.close)


class LastingServerCase(ServerCase):
    """Whatever a case does, the next ordinary request is answered, by the same process."""

    def setUp(self):
        self.server.wait_until_idle()  # an answer can be here before the counters know that it has ended

    def tearDown(self):
        self.server.wait_until_idle()
        self.assertEqual(self.server.chat("Hello", max_tokens=3)["usage"]["completion_tokens"], 3)
        self.assertIsNone(self.server.process.poll())


def chat_body(text, **fields):
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **fields}


def content_of(body):
    return body["choices"][0]["message"]["content"]


class Stream:
    """A request whose answer is read event by event, or left."""

    def __init__(self, server, path, body):
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
        data = json.dumps(body).encode()
        self.socket.sendall(f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
                            f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
        self.file = None

    def events(self):
        """The payloads of the data lines as they come, [DONE] included; also comments, as None."""
        self.file = self.socket.makefile("rb")
        status = self.file.readline()
        assert b" 200 " in status, status
        while self.file.readline().strip():
            pass
        while True:
            size = int(self.file.readline(), 16)
            chunk = self.file.read(size)
            self.file.readline()
            if size == 0:
                return
            for line in chunk.decode().split("\n"):
                if line.startswith("data: "):
                    yield line[6:]
                elif line.startswith(":"):
                    yield None

    def close(self):
        if self.file:
            self.file.close()
        self.socket.close()


def stream_chat(server, text, **fields):
    return Stream(server, "/v1/chat/completions", chat_body(text, stream=True, **fields))


def folded(events):
    """(reasoning, content, finish_reason, usage) of a stream's events, which have to end in [DONE]."""
    reasoning, content, finish, usage, done = "", "", None, None, False
    for data in events:
        if data is None:
            continue
        assert not done, "an event behind [DONE]"
        if data == "[DONE]":
            done = True
            continue
        chunk = json.loads(data)
        assert "error" not in chunk, chunk
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            reasoning += choice["delta"].get("reasoning_content") or ""
            content += choice["delta"].get("content") or ""
            finish = choice["finish_reason"] or finish
    assert done, "the stream has no end marker"
    return reasoning, content, finish, usage


class Report(unittest.TextTestResult):
    """Results in the form of a GoogleTest report."""

    def __init__(self, *parameters):
        super().__init__(*parameters)
        self.root = xml.Element("testsuites")
        self.suites = {}

    def _add(self, test, result, kind=None, message=""):
        suite_name, name = test.id().split(".")[-2:]
        if suite_name not in self.suites:
            self.suites[suite_name] = xml.SubElement(self.root, "testsuite", name=suite_name)
        case = xml.SubElement(self.suites[suite_name], "testcase", classname=suite_name, name=name, status="run", result=result)
        if kind:
            xml.SubElement(case, kind, message=message)

    def addSuccess(self, test):
        super().addSuccess(test)
        self._add(test, "completed")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._add(test, "skipped", "skipped", reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._add(test, "completed", "failure", str(err[1]).split("\n")[0])

    def addError(self, test, err):
        super().addError(test, err)
        self._add(test, "completed", "failure", f"{err[0].__name__}: {err[1]}".split("\n")[0])


def enter_venv(requirements):
    """Goes on in the virtual environment with these packages that scripts/install-deps makes; skips the whole file without it."""
    here = pathlib.Path(__file__).resolve().parent
    home = here.parents[1] / "build/test-venv"
    stamp = home / "installed.txt"
    if not stamp.exists() or stamp.read_text() != (here / requirements).read_text():
        skip(f"packages of {requirements} are not in build/test-venv: run scripts/install-deps --test")
    if pathlib.Path(sys.prefix).resolve() != home:
        os.execv(home / "bin/python", [str(home / "bin/python"), *sys.argv])


def skip(reason):
    print(reason)
    sys.exit(SKIP)


def parse_arguments():
    global args
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True, help="onecard")
    parser.add_argument("--model", required=True, help="directory of the model")
    parser.add_argument("--work", required=True, help="folder for logs")
    parser.add_argument("--report", help="file for the results")
    parser.add_argument("--only", help="run the cases whose name contains this")
    args = parser.parse_args()
    pathlib.Path(args.work).mkdir(parents=True, exist_ok=True)
    if not (pathlib.Path(args.model) / "config.json").exists():
        skip(f"there is no model at {args.model}")


def main(module):
    loader = unittest.TestLoader()
    suite = unittest.TestSuite()
    for item in module.values():
        if isinstance(item, type) and issubclass(item, unittest.TestCase):
            for name in loader.getTestCaseNames(item):
                if not args.only or args.only in name:
                    suite.addTest(item(name))
    result = unittest.TextTestRunner(resultclass=Report, verbosity=2).run(suite)
    if args.report:
        pathlib.Path(args.report).parent.mkdir(parents=True, exist_ok=True)
        xml.ElementTree(result.root).write(args.report)
    sys.exit(0 if result.wasSuccessful() else 1)
