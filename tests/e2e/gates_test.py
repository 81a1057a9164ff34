"""onecard gates: against a scripted server whose faults it has to find, and against the demo model."""

import http.server
import json
import re
import subprocess
import threading
import unittest

import harness

NAMES = ["load", "chat", "reasoning", "tools", "context", "speed",
         "chat", "reasoning", "tools", "speed", "context 10%", "context 50%", "context 90%"]


def gates(url, *flags):
    """(exit code, report) of one call."""
    done = subprocess.run([harness.args.program, "gates", "--url", url, "--json", *flags], capture_output=True, text=True,
                          timeout=harness.PATIENCE)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def outcomes(report, outcome):
    return {("" if gate["set"] == "original" else "other ") + gate["name"] for gate in report["gates"] if gate["outcome"] == outcome}


class Perfect(http.server.BaseHTTPRequestHandler):
    """Answers every gate as it should; `faults` spoil it."""

    protocol_version = "HTTP/1.1"
    context = 4096
    faults = frozenset()

    def log_message(self, *_):
        pass

    def reply(self, body, status=200):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if "broken models" in self.faults:
            return self.reply({"data": []})
        self.reply({"data": [{"id": "m", "max_model_len": None if "no context" in self.faults else self.context}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/v1/token/encode":
            return self.reply({"count": len(body["text"]) // 4})
        self.server.bodies.append(body)
        if "refusing" in self.faults:
            return self.reply({"error": {"message": "the dog ate it"}}, 400)
        message, prompt_tokens, finish = self.answer(body)
        if not body.get("stream"):
            return self.reply({"choices": [{"message": message, "finish_reason": finish}], "usage": {"prompt_tokens": prompt_tokens}})
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        for piece in () if "silent" in self.faults else message["content"].split(" "):
            self.wfile.write(f"data: {json.dumps({'choices': [{'delta': {'content': piece + ' '}}]})}\n\n".encode())
        if "cut" not in self.faults:
            self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def answer(self, body):
        question = body["messages"][0]["content"]
        message = {"role": "assistant", "content": "Red, yellow, blue", "reasoning_content": "I think."}
        prompt_tokens, finish = len(question) // 4, "stop"
        if product := re.search(r"(\d+) [*x] (\d+)", question):
            message["content"] = str(int(product[1]) * int(product[2]) + ("wrong product" in self.faults))
            if "no reasoning" in self.faults:
                message["reasoning_content"] = None
            if "leaked reasoning" in self.faults:
                message["content"] = "<think>so</think>" + message["content"]
        elif city := re.search(r"weather in (\w+)", question):
            if body["messages"][-1]["role"] == "tool":
                assert body["messages"][1]["tool_calls"][0]["id"] == body["messages"][2]["tool_call_id"] == "c1"
                degrees = json.loads(body["messages"][2]["content"])["temp_c"]
                message["content"] = "It is mild." if "ignored result" in self.faults else f"It is {degrees} degrees."
            elif "no call" not in self.faults:
                name = "London" if "wrong city" in self.faults else city[1].upper()
                arguments = "{not json" if "broken arguments" in self.faults else json.dumps({"city": name})
                message.update(content=None, tool_calls=[{"id": "c1", "type": "function",
                                                          "function": {"name": "get_weather", "arguments": arguments}}])
                finish = "tool_calls"
        elif code := re.search(r"vault is (\d+)", question):
            far = len(question) - code.start() > 600
            message["content"] = "00000" if far and "short memory" in self.faults else code[1]
            if "truncated" in self.faults:
                prompt_tokens //= 2
        elif "word" in question:
            message["content"] = "Once upon a time " * 50
        elif "endless" in self.faults:
            finish = "length"
        elif "one color" in self.faults:
            message["content"] = "Red"
        return message, prompt_tokens, finish


class Verdicts(unittest.TestCase):
    """What each gate asks for: a server that has one fault fails exactly the gates that should see it."""

    CASES = {
        "nothing wrong": set(),
        "wrong product": {"reasoning", "other reasoning"},
        "no reasoning": {"reasoning", "other reasoning"},
        "leaked reasoning": {"reasoning", "other reasoning"},
        "no call": {"tools", "other tools"},
        "wrong city": {"tools", "other tools"},
        "broken arguments": {"tools", "other tools"},
        "ignored result": {"tools", "other tools"},
        "endless": {"chat", "other chat"},
        "one color": {"other chat"},  # the first gate takes any text
        "short memory": {"other context 10%", "other context 50%", "other context 90%"},  # the first has the code at the end
        "truncated": {"context", "other context 10%", "other context 50%", "other context 90%"},
        "no context": {"context", "other context 10%", "other context 50%", "other context 90%"},
        "silent": {"speed", "other speed"},
        "cut": {"speed", "other speed"},
    }

    def serve(self, *faults):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Faulty", (Perfect,), {"faults": frozenset(faults)}))
        server.bodies = []
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.url = f"http://127.0.0.1:{server.server_port}"
        return server

    def test_each_fault_is_seen_by_its_gates(self):
        for fault, wanted in self.CASES.items():
            with self.subTest(fault):
                self.serve(fault)
                code, report = gates(self.url)
                self.assertEqual(outcomes(report, "failed"), wanted)
                self.assertEqual(outcomes(report, "not_run"), set())
                self.assertEqual((code, report["passed"]), (1, False) if wanted else (0, True))
                self.assertEqual([gate["name"] for gate in report["gates"]], NAMES)

    def test_too_slow_is_too_slow(self):
        self.serve()
        self.assertEqual(outcomes(gates(self.url, "--min-tok-s", "1e12")[1], "failed"), {"speed", "other speed"})

    def test_what_is_asked_is_what_the_gates_say(self):
        server = self.serve()
        gates(self.url, "--no-paraphrased", "--seed", "7")
        texts = [body["messages"][0]["content"] for body in server.bodies]
        self.assertEqual(texts[:4], ["Name three primary colors, comma separated.", "What is 17 * 23? Reply with only the number.",
                                     *2 * ["What's the weather in Paris right now? Use the tool."]])
        num_lines = int(0.85 * Perfect.context / 24)
        archive = " ".join(f"Line {i}: the archive notes that shipment {7 * i % 997} left dock {i % 13} on schedule." for i in range(num_lines))
        self.assertEqual(texts[4], archive + " The access code for the vault is 58213. Anything else is routine.\n\n"
                                             "What is the access code for the vault? Reply with only the code.")
        self.assertEqual(texts[5:], ["Write a detailed 600-word story about a lighthouse keeper."])
        for body in server.bodies:
            self.assertEqual(body["temperature"], 0.8 if body.get("stream") else 0.6)
            self.assertEqual(body["seed"], 7)
            self.assertNotIn("max_tokens", body)

    def test_the_code_stands_where_the_name_says(self):
        server = self.serve()
        gates(self.url, *(f"--gate=context {place}%" for place in (10, 50, 90)))
        for body, place in zip(server.bodies, (0.1, 0.5, 0.9)):
            text = body["messages"][0]["content"]
            self.assertAlmostEqual(text.index("The access code") / len(text), place, delta=0.02)

    def test_repeats_count_and_all_have_to_pass(self):
        server = self.serve("wrong product")
        _, report = gates(self.url, "--repeat", "3", "--no-paraphrased", "--gate", "reasoning", "--seed", "5")
        self.assertEqual([(gate["name"], gate["runs"], gate["runs_passed"]) for gate in report["gates"]], [("load", 1, 1), ("reasoning", 3, 0)])
        self.assertEqual([body["seed"] for body in server.bodies], [5, 6, 7])

    def test_a_server_that_refuses_is_quoted(self):
        self.serve("refusing")
        code, report = gates(self.url, "--gate", "chat")
        self.assertEqual(code, 1)
        self.assertIn("the dog ate it", report["gates"][1]["found"])

    def test_without_a_server_nothing_else_is_run(self):
        self.serve("broken models")
        for url in (self.url, "http://127.0.0.1:9"):
            code, report = gates(url)
            self.assertEqual((code, outcomes(report, "failed"), len(outcomes(report, "not_run"))), (1, {"load"}, 12))

    def test_wrong_calls(self):
        for flags in (["--url", "ftp://x"], ["--gate", "nonsense"], ["--scale", "12"], ["--scale", "x"], ["--repeat", "0"]):
            done = subprocess.run([harness.args.program, "gates", *flags], capture_output=True, text=True, timeout=harness.PATIENCE)
            self.assertEqual((done.returncode, done.stdout), (2, ""), flags)
            self.assertIn(flags[0].strip("-"), done.stderr)

    def test_the_picture_names_what_failed_and_what_it_means(self):
        self.serve("wrong city")
        done = subprocess.run([harness.args.program, "gates", "--url", self.url, "--no-paraphrased"], capture_output=True, text=True,
                              timeout=harness.PATIENCE)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r'(?m)^  FAIL  tools +\d+\.\d s  get_weather \{"city": "London"\}$')
        self.assertIn("wanted: get_weather is called with Paris, then 17 in the answer", done.stdout)
        self.assertIn("; not: recall from afar: the code stands in the last words", done.stdout)
        self.assertIn("[###.##] 5 of 6 gates passed", done.stdout)
        self.assertNotIn("\x1b", done.stdout)


class Demo(harness.ServerCase):
    """The demo model passes every gate, the deep-planted ones too."""

    def test_the_gates_at_the_full_window(self):
        code, report = gates(self.server.url, "--seed", "4", "--min-tok-s", "1")      # the load of this machine decides nothing
        found = json.dumps(report["gates"], indent=1)
        self.assertEqual([gate["name"] for gate in report["gates"]], NAMES)
        self.assertEqual(outcomes(report, "failed"), set(), found)
        self.assertEqual(code, 0)
        for gate in report["gates"]:
            if gate["name"].startswith("context"):
                self.assertGreaterEqual(gate["figures"]["prompt_tokens"], 0.6 * report["scale_tokens"])
                self.assertLessEqual(gate["figures"]["prompt_tokens"], report["scale_tokens"])


if __name__ == "__main__":
    harness.parse_arguments()
    harness.main(globals())
