"""onecard chat as a person meets it: in a terminal, with a server and with a model of its own; and in a pipe."""

import fcntl
import json
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import tempfile
import termios
import time
import unittest

import harness

GREEDY = ("--temperature", "0")
PROMPT = "> "


class Terminal:
    """onecard chat on a terminal of 100 columns."""

    def __init__(self, *arguments, **environment):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(harness.args.program, [harness.args.program, "chat", *arguments],
                      {"PATH": "/usr/bin:/bin", "TERM": "xterm", "LANG": "C", **environment})
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        self.shown = ""
        self.code = None

    def _read(self, seconds):
        if not select.select([self.fd], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError:  # the other end is closed
            return None
        self.shown += data.decode(errors="replace")
        return bool(data) or None

    def until(self, pattern):
        """Waits for `pattern`, and returns what came before it; what follows stays for the next call."""
        end = time.monotonic() + harness.PATIENCE
        while True:
            if match := re.search(pattern, self.shown):
                before, self.shown = self.shown[: match.start()], self.shown[match.end():]
                return before
            if self._read(1) is None or time.monotonic() > end:
                raise AssertionError(f"no {pattern!r} in {self.shown!r}")

    def type(self, text):
        os.write(self.fd, text.encode())

    def ask(self, text):
        """Types a line at the prompt; what is shown up to the next prompt, without the echo."""
        self.type(text + "\n")
        self.until(r"\r\n")
        return self.until(r"(?m)^" + re.escape(PROMPT))

    def end(self):
        """The exit code."""
        end = time.monotonic() + harness.PATIENCE
        while self._read(1) is not None:
            if time.monotonic() > end:
                raise AssertionError(f"it does not end: {self.shown!r}")
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def close(self):
        if self.code is None:
            try:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
        os.close(self.fd)


def plain(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "")


class ChatCase(harness.ServerCase):
    def terminal(self, *arguments, **environment):
        terminal = Terminal("--url", self.server.url, *GREEDY, *arguments, **environment)
        self.addCleanup(terminal.close)
        self.greeting = terminal.until(r"(?m)^" + re.escape(PROMPT))
        return terminal


class Talking(ChatCase):
    def test_reasoning_is_dimmed_and_the_answer_is_not(self):
        terminal = self.terminal()
        self.assertIn("/help", self.greeting)
        shown = terminal.ask("What is 12 + 7?")
        whole = self.server.chat("What is 12 + 7?")["choices"][0]["message"]
        self.assertTrue(whole["reasoning_content"])
        dimmed = "".join(re.findall(r"\x1b\[2m(.*?)\x1b\[0m", shown, re.S))
        self.assertEqual(dimmed.replace("\r", ""), whole["reasoning_content"])
        rest = re.sub(r"\x1b\[2m.*?\x1b\[0m", "", shown, flags=re.S)
        self.assertIn(whole["content"], plain(rest))
        self.assertNotIn(whole["reasoning_content"][:20], rest)

    def test_turns_are_remembered_undone_and_forgotten(self):
        terminal = self.terminal("--effort", "none")
        terminal.ask("My name is Alice.")
        self.assertIn("Alice", terminal.ask("What is my name?"))
        self.assertIn("user: My name is Alice.", plain(terminal.ask("/history")))
        terminal.ask("/undo")
        self.assertNotIn("What is my name?", terminal.ask("/history"))
        self.assertIn("Alice", terminal.ask("What is my name?"))
        self.assertIn("Alice", terminal.ask("/retry"))
        terminal.ask("/new")
        self.assertEqual(plain(terminal.ask("/history")).strip(), "")
        self.assertIn("no question yet", terminal.ask("/retry"))

    def test_commands(self):
        terminal = self.terminal("--system", "You are a pirate.")
        self.assertIn("system: You are a pirate.", terminal.ask("/history"))
        terminal.ask("/system You are a nurse.")
        self.assertEqual(plain(terminal.ask("/history")).strip(), "system: You are a nurse.")
        for name in ("/help", "/new", "/system", "/effort", "/temperature", "/retry", "/undo", "/history", "/tools", "/quit"):
            self.assertIn(name, terminal.ask("/help"))
        self.assertIn("Unknown: /nonsense", terminal.ask("/nonsense"))
        self.assertIn("A temperature is a number", terminal.ask("/temperature warm"))
        terminal.ask("/effort none")
        self.assertNotIn("\x1b[2m", terminal.ask("What is 12 + 7?"))
        terminal.type("/quit\n")
        self.assertEqual(terminal.end(), 0)

    def test_a_refusal_is_told_and_the_chat_goes_on(self):
        terminal = self.terminal()
        terminal.ask("/effort enormous")
        self.assertIn("effort", terminal.ask("Hello"))
        terminal.ask("/effort none")
        self.assertNotIn("onecard:", terminal.ask("Hello"))

    def test_control_c_stops_an_answer_and_no_more(self):
        terminal = self.terminal("--effort", "none")
        terminal.type("Tell me a story about a lighthouse keeper in 600 words.\n")
        harness.wait_until(lambda: self.server.num_running() == 1, "it is being answered")
        terminal.type("\x03")
        terminal.until(r"\(stopped\)")
        terminal.until(r"(?m)^" + re.escape(PROMPT))
        self.server.wait_until_idle()
        self.assertTrue(plain(terminal.ask("Who are you?")).strip())

    def test_control_c_gives_up_a_line_and_control_d_leaves(self):
        terminal = self.terminal("--effort", "none")
        terminal.type("never sent")
        terminal.until("never sent")
        terminal.type("\x03")
        terminal.until(r"(?m)^" + re.escape(PROMPT))
        self.assertNotIn("never", terminal.ask("/history"))
        terminal.type("\x04")
        self.assertEqual(terminal.end(), 0)

    def test_a_backslash_joins_lines(self):
        terminal = self.terminal("--effort", "none")
        terminal.type("My name is\\\n")
        terminal.until(r"(?m)^\. ")
        terminal.ask("Alice.")
        self.assertIn("user: My name is\nAlice.", plain(terminal.ask("/history")))

    def test_lines_are_edited_and_recalled(self):
        terminal = self.terminal("--effort", "none")
        terminal.ask("Who are yuo\x7f\x7fou?")
        terminal.ask("\x1b[A!")  # up: the last line, with more behind it
        history = plain(terminal.ask("/history"))
        self.assertIn("user: Who are you?\n", history)
        self.assertIn("user: Who are you?!", history)

    def test_characters_of_several_bytes_can_be_typed_and_erased(self):
        terminal = self.terminal("--effort", "none")
        terminal.ask("/system caf\u00e8\x7f\u00e9 \u6f22\u5b57")
        self.assertIn("system: caf\u00e9 \u6f22\u5b57", plain(terminal.ask("/history")))

    def test_history_is_kept_for_the_next_time_and_for_its_owner_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "history"
            first = self.terminal("--effort", "none", ONECARD_HISTORY_FILE=str(path))
            first.ask("/system You are a nurse.")
            first.type("\x04")
            self.assertEqual(first.end(), 0)
            self.assertEqual(path.stat().st_mode & 0o777, 0o600)
            second = self.terminal("--effort", "none", "--history-file", str(path))
            second.ask("\x1b[A")
            self.assertEqual(plain(second.ask("/history")).strip(), "system: You are a nurse.")


class Tools(ChatCase):
    WEATHER = [{"type": "function", "function": {
        "name": "get_weather", "description": "Get the current weather for a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "City name"}}, "required": ["city"]}}}]

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = str(pathlib.Path(folder.name) / "tools.json")
        pathlib.Path(self.path).write_text(json.dumps(self.WEATHER))

    def test_a_call_is_shown_its_result_asked_for_and_used(self):
        terminal = self.terminal("--tools", self.path)
        terminal.type("What's the weather in Paris right now? Use the tool.\n")
        shown = plain(terminal.until("get_weather says: "))
        self.assertIn('call get_weather {"city": "Paris"}', shown)
        self.assertIn("31", plain(terminal.ask('{"city": "Paris", "temp_c": 31, "sky": "overcast"}')))
        self.assertIn('call get_weather {"city": "Paris"}', plain(terminal.ask("/history")))
        self.assertNotIn("onecard:", terminal.ask("Who are you?"))  # the history is one that the server takes

    def test_a_wrong_file_is_told(self):
        terminal = self.terminal()
        self.assertIn("/no/such", terminal.ask("/tools /no/such"))
        done = subprocess.run([harness.args.program, "chat", "--url", self.server.url, "--tools", "/no/such"], capture_output=True,
                              text=True, stdin=subprocess.DEVNULL, timeout=harness.PATIENCE)
        self.assertEqual(done.returncode, 2)
        self.assertIn("/no/such", done.stderr)


class InProcess(unittest.TestCase):
    def run_chat(self, *arguments, text=""):
        return subprocess.run([harness.args.program, "chat", *arguments], capture_output=True, text=True, input=text,
                              timeout=harness.PATIENCE, env={"PATH": "/usr/bin:/bin"})

    def test_a_model_answers_without_a_server(self):
        done = self.run_chat("--model", harness.args.model, *GREEDY, "--effort", "none", "--message", "Name three primary colors, comma separated.")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("blue", done.stdout.lower())
        self.assertNotIn("\x1b", done.stdout)

    def test_lines_of_a_pipe_are_questions_and_commands(self):
        done = self.run_chat("--model", harness.args.model, *GREEDY, "--effort", "none", text="My name is Alice.\nWhat is my name?\n/history\n")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("user: What is my name?", done.stdout)
        self.assertGreaterEqual(done.stdout.count("Alice"), 3)
        self.assertNotIn(PROMPT, done.stdout)

    def test_what_cannot_be_is_told(self):
        done = self.run_chat("--url", "http://127.0.0.1:9", "--message", "x")
        self.assertEqual(done.returncode, 1)
        self.assertIn("http://127.0.0.1:9/v1/models: no server listens there", done.stderr)
        done = self.run_chat("--model", "/no/such", "--message", "x")
        self.assertEqual(done.returncode, 2)
        self.assertIn("/no/such", done.stderr)

    def test_a_network_that_is_down_is_told(self):
        # A new network namespace has a loopback interface that is down.
        command = ["unshare", "--user", "--map-root-user", "--net", harness.args.program, "chat", "--url", "http://127.0.0.1:8000",
                   "--message", "hi"]
        if subprocess.run([*command[:4], "true"], capture_output=True).returncode != 0:
            self.skipTest("no network namespaces here")
        done = subprocess.run(command, capture_output=True, text=True, timeout=harness.PATIENCE)
        self.assertEqual(done.returncode, 1)
        self.assertIn("ip link set lo up", done.stderr)

    def test_in_a_terminal(self):
        terminal = Terminal("--model", harness.args.model, *GREEDY, "--effort", "none")
        self.addCleanup(terminal.close)
        terminal.until(r"(?m)^" + re.escape(PROMPT))
        self.assertTrue(plain(terminal.ask("Who are you?")).strip())
        terminal.type("/quit\n")
        self.assertEqual(terminal.end(), 0)


if __name__ == "__main__":
    harness.parse_arguments()
    harness.main(globals())
