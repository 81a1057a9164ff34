"""What a server has to survive, and what it has to give back: many connections, slow and huge requests, conversations that
reuse each other's prefixes, a limit on memory."""

import asyncio
import json
import pathlib
import re
import subprocess
import unittest

import harness
from harness import LastingServerCase, Server, chat_body, wait_until


class WarmServerCase(LastingServerCase):
    """The first request has been: what it makes for good is there before a case counts."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server.chat("Hello", max_tokens=2)


async def http_request(port, head, body=b"", pause=None):
    """The answer's status and bytes, or 0 when the connection ends without one. `pause`: awaited before the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head)
        if pause:
            await pause
        writer.write(body)
        await writer.drain()
        answer = await reader.read()
        return (int(answer.split(b" ", 2)[1]) if answer else 0), answer
    except ConnectionError:
        return 0, b""
    finally:
        writer.close()


def post_head(path, length, *headers):
    lines = [f"POST {path} HTTP/1.1", "Host: test", "Content-Type: application/json", "Connection: close", *headers]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


class ManyConnections(WarmServerCase):
    flags = ("--max-num-seqs", "4", "--max-queued-requests", "60", "--prefix-cache-mib", "0")

    def test_five_hundred_connections_share_four_slots(self):
        self.connect_and_ask()
        before = self.server.resident_kib()
        self.connect_and_ask()
        self.assertLess(self.server.resident_kib() - before, 16 << 10, "KiB more than after the first round")

    def connect_and_ask(self):
        descriptors = self.server.num_descriptors()
        body = json.dumps(chat_body("Hi", max_tokens=2)).encode()

        async def run():
            ready = asyncio.Event()
            tasks = [asyncio.create_task(http_request(self.server.port, post_head("/v1/chat/completions", len(body)), body,
                                                      ready.wait())) for _ in range(500)]
            await asyncio.to_thread(wait_until, lambda: self.server.num_descriptors() >= descriptors + 498, "all are connected")
            ready.set()
            return await asyncio.gather(*tasks)
        answers = asyncio.run(run())
        statuses = [status for status, _ in answers]
        self.assertEqual(set(statuses) - {200, 429}, set())
        self.assertGreaterEqual(statuses.count(200), 60)
        for status, answer in answers:
            if status == 429:
                self.assertIn(b"\r\nRetry-After: ", answer)
        self.server.wait_until_idle()
        wait_until(lambda: self.server.num_descriptors() <= descriptors + 1, "descriptors are back")


class SlowClients(WarmServerCase):
    flags = ("--header-timeout", "2", "--body-timeout", str(harness.PATIENCE))

    def test_requests_that_never_end_are_cut_off_and_hold_nobody_up(self):
        descriptors = self.server.num_descriptors()

        async def dribble(first):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
            ended = asyncio.ensure_future(reader.read())
            try:
                writer.write(first)
                while not ended.done():  # a byte now and then must not buy more time
                    writer.write(b"x")
                    await asyncio.wait([ended], timeout=0.2)
                return ended.exception() is None and ended.result() == b""
            except ConnectionError:
                return True
            finally:
                ended.cancel()
                writer.close()

        async def run():
            bodies = [asyncio.create_task(dribble(post_head("/v1/chat/completions", 10**7) + b'{"a": "')) for _ in range(100)]
            await asyncio.to_thread(wait_until, lambda: self.server.num_descriptors() >= descriptors + 98, "all are connected")
            headers = [asyncio.create_task(dribble(b"GET /health HTTP/1.1\r\nX-Slow: ")) for _ in range(100)]
            answer = await asyncio.to_thread(self.server.chat, "Hello", max_tokens=3)
            self.assertEqual(answer["usage"]["completion_tokens"], 3)
            self.assertTrue(all(await asyncio.gather(*headers)))  # these have had their two seconds
            self.assertFalse(any(task.done() for task in bodies))
            for task in bodies:
                task.cancel()
            await asyncio.gather(*bodies, return_exceptions=True)
        asyncio.run(run())
        wait_until(lambda: self.server.num_descriptors() <= descriptors + 1, "descriptors are back")


class HugeRequests(WarmServerCase):
    # One thread: the allocator keeps for every thread what its largest request needed.
    flags = ("--max-body-mib", "1", "--prefix-cache-mib", "0", "--http-threads", "1")

    def throw(self):
        """Every kind once; the statuses."""
        async def endless_chunks():
            reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
            writer.write(post_head("/v1/chat/completions", None, "Transfer-Encoding: chunked"))
            try:
                for _ in range(64):
                    writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
                    await writer.drain()
            except ConnectionError:
                pass
            answer = await reader.read()
            writer.close()
            return int(answer.split(b" ", 2)[1])

        async def run():
            port, path = self.server.port, "/v1/chat/completions"
            nested = b'{"messages": ' + b"[" * 500000
            wide = b'{"messages": [' + b"0," * 250000 + b"0]}"
            keys = json.dumps({"messages": [{"role": "user", "content": "x"}], "logit_bias": {str(i): 1 for i in range(60000)}})
            schema = '{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "response_format": {"type": "json_schema", ' \
                     '"json_schema": {"name": "n", "schema": ' + '{"type":"array","items":' * 2000 + "{}" + "}" * 2000 + "}}}"
            text = json.dumps(chat_body("fox " * 200000)).encode()
            return [(await http_request(port, b"GET /health HTTP/1.1\r\nX-Big: " + b"x" * 2000000 + b"\r\n\r\n"))[0],
                    (await http_request(port, b"GET /health HTTP/1.1\r\n" + b"A: b\r\n" * 100000 + b"\r\n"))[0],
                    (await http_request(port, post_head(path, 10**12)))[0],
                    (await http_request(port, post_head(path, 2000000), b"x" * 2000000))[0],
                    await endless_chunks(),
                    *[(await http_request(port, post_head(path, len(body)), body))[0]
                      for body in (nested, wide, keys.encode(), schema.encode(), text)]]
        return asyncio.run(run())

    def test_bombs_are_refused_and_leave_nothing_behind(self):
        descriptors = self.server.num_descriptors()
        expected = [431, 431, 413, 413, 413, 400, 400, 400, 400, 400]
        for _ in range(2):
            self.assertEqual(self.throw(), expected)
        before = self.server.resident_kib()
        for _ in range(4):
            self.throw()
        self.assertLess(self.server.resident_kib() - before, 16 << 10, "KiB more than after the first rounds")
        wait_until(lambda: self.server.num_descriptors() <= descriptors + 1, "descriptors are back")


class Conversations(WarmServerCase):
    """Each prompt is the one before, its answer, and something new; the reference server keeps nothing."""
    flags = ("--prefill-chunk-tokens", "64")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.cold = Server("--prefix-cache-mib", "0")
        cls.addClassCleanup(cls.cold.close)

    def ask(self, server, prompt, **fields):
        status, body = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": True,
                                                       "return_token_ids": True, **fields})
        self.assertEqual(status, 200, body)
        return body["choices"][0]["token_ids"], body["usage"]

    def ids(self, text):
        return self.server.post("/tokenize", {"prompt": text})[1]["tokens"]

    def rows_computed(self):
        self.server.wait_until_idle()  # counters of a step are shown when it is over
        return self.server.metric("onecard:computed_tokens_total")

    def test_turns_compute_what_is_new_alone(self):
        prompts = [self.ids("Once there was a fox who asked many questions. " * 30), self.ids("The old sailor counted his coins. " * 30)]
        new, cached_before = [], [0, 0]
        for turn in range(4):
            for who in range(2):  # the other conversation stands between any two turns
                prompt = prompts[who]
                rows = self.rows_computed()
                answer, usage = self.ask(self.server, prompt)
                cached = usage["prompt_tokens_details"]["cached_tokens"]
                # The last token that was sampled is never computed.
                self.assertEqual(self.rows_computed() - rows, len(prompt) - cached + len(answer) - 1)
                if turn > 0:
                    # All but what is new and the last token of the answer before.
                    self.assertEqual(cached, len(prompt) - len(new) - 1)
                    self.assertGreater(cached, cached_before[who])
                cached_before[who] = cached
                cold, cold_usage = self.ask(self.cold, prompt)
                self.assertEqual(answer, cold)
                self.assertEqual(cold_usage["prompt_tokens_details"]["cached_tokens"], 0)
                prompts[who] = prompt + answer
            new = self.ids(f" And then, on day {turn}, something else happened.")
            prompts = [prompt + new for prompt in prompts]

    def test_a_salt_keeps_prefixes_apart(self):
        prompt = self.ids("A secret that nobody else may find by its timing. " * 20)
        def cached(**fields):
            return self.ask(self.server, prompt, **fields)[1]["prompt_tokens_details"]["cached_tokens"]
        self.assertEqual(cached(cache_salt="a"), 0)
        self.assertEqual(cached(cache_salt="b"), 0)
        self.assertEqual(cached(), 0)
        self.assertEqual(cached(cache_salt="a"), len(prompt) - 1)

    def test_choices_share_one_reading_of_the_prompt(self):
        prompt = self.ids("Seven choices, one prompt. " * 40)
        rows = self.rows_computed()
        status, body = self.server.post("/v1/completions", {"prompt": prompt, "n": 4, "max_tokens": 5, "ignore_eos": True})
        self.assertEqual((status, body["usage"]["completion_tokens"]), (200, 20))
        self.assertEqual(self.rows_computed() - rows, len(prompt) - 1 + 4 * 5)

    def test_prompt_log_probabilities_agree_with_the_answers_own(self):
        # A token's probability is the same whether it was sampled or read.
        prompt = self.ids("Once upon a time there was")
        _, body = self.server.post("/v1/completions", {"prompt": prompt, "max_tokens": 12, "temperature": 0, "logprobs": 3,
                                                       "ignore_eos": True, "return_token_ids": True})
        sampled = body["choices"][0]
        _, body = self.server.post("/v1/completions", {"prompt": prompt + sampled["token_ids"], "max_tokens": 0, "echo": True,
                                                       "logprobs": 3})
        read = body["choices"][0]["logprobs"]
        self.assertEqual(len(read["tokens"]), len(prompt) + 12)
        for got, expected in zip(read["token_logprobs"][len(prompt):], sampled["logprobs"]["token_logprobs"]):
            self.assertAlmostEqual(got, expected, delta=2e-3)


class Deterministic(WarmServerCase):
    flags = ("--deterministic",)

    def test_answers_without_a_seed_repeat(self):
        def sample(**fields):
            return self.server.chat("Tell me a story.", temperature=1.5, max_tokens=48, return_token_ids=True, **fields)
        once, again = sample(n=2), sample(n=2)
        ids = [choice["token_ids"] for choice in once["choices"]]
        self.assertEqual([choice["token_ids"] for choice in again["choices"]], ids)
        self.assertNotEqual(ids[0], ids[1])  # choices differ among themselves


class MemoryLimit(unittest.TestCase):
    """The plan is refused below what it needs, and kept to above."""
    flags = ("--max-num-seqs", "32", "--prefix-cache-mib", "8")

    def test_the_plan_is_refused_or_kept_to(self):
        server = Server(*self.flags)
        self.addCleanup(server.close)
        needed = int(re.search(r"event=plan needed_mib=(\d+)", server.log()).group(1))
        server.close()

        said = harness.refusal(*self.flags, "--host-limit-mib", str(needed * 9 // 10))
        self.assertIn("the server ended with 1:", said)
        self.assertRegex(said, r"memory: \d+ MiB are needed .* and there are \d+ MiB \(--host-limit-mib\); --max-model-len \d+ would fit")

        limit = needed * 21 // 20 + 1
        server = Server(*self.flags, "--host-limit-mib", str(limit))
        self.addCleanup(server.close)
        prompt = server.post("/tokenize", {"prompt": "fox " * 600})[1]["tokens"]
        for _ in range(2):
            status, body = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 4, "n": 32, "ignore_eos": True})
            self.assertEqual(status, 200, body)
        peak = int(re.search(r"VmHWM:\s+(\d+)", pathlib.Path(f"/proc/{server.process.pid}/status").read_text()).group(1))
        self.assertLessEqual(peak >> 10, limit)


class ControlGroup(unittest.TestCase):
    """The kernel's own limit, for each command that plans: below the plan a sentence, and above it enough."""

    def setUp(self):
        with harness.MemoryGroup(64):  # or the case is skipped as a whole
            pass

    def commands(self):
        model, tokens = ["--model", harness.args.model], ",".join(["5"] * 600)
        token_file = pathlib.Path(harness.args.work) / "group-tokens.txt"
        token_file.write_text(tokens)
        slots = ["--max-num-seqs", "8", "--prefix-cache-mib", "8"]
        return {"serve": slots,
                "chat": [*model, "--message", "Hi", "--max-tokens", "3", *slots],
                "logits": [*model, "--tokens", tokens, "--positions", "all"],
                "compare": [harness.args.model, harness.args.model, "--tokens-file", str(token_file)]}

    def run_in(self, group, command):
        return subprocess.run([harness.args.program, command, *self.commands()[command]], capture_output=True, text=True,
                              timeout=harness.PATIENCE, check=False, env={"PATH": "/usr/bin:/bin"}, preexec_fn=group.enter)

    def refused(self, command, limit_mib):
        """MiB that are needed, of a run that has to be refused."""
        with harness.MemoryGroup(limit_mib) as group:
            if command == "serve":
                ended, _, text = harness.refusal(*self.commands()[command], group=group).partition("\n")
                self.assertEqual(ended, "the server ended with 1:")
            else:
                done = self.run_in(group, command)
                self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
                text = done.stderr
        said = [line for line in text.splitlines() if " level=info " not in line]
        self.assertEqual(len(said), 1, text)
        match = re.fullmatch(r"onecard: memory: (\d+) MiB are needed \(weights .*\), and there are (\d+) MiB \((.*)\); "
                             r"(.+ \d+|no context length) would fit", said[0])
        self.assertTrue(match, said)
        self.assertLessEqual(int(match.group(2)), limit_mib)
        self.assertEqual(match.group(3), str(group.limit_path))
        return int(match.group(1))

    def test_what_does_not_fit_is_refused_and_what_fits_runs(self):
        for command in self.commands():
            with self.subTest(command):
                needed = self.refused(command, 64)  # the program alone is counted with so much
                self.refused(command, needed * 9 // 10)
                with harness.MemoryGroup(needed * 21 // 20 + 1) as group:
                    if command == "serve":
                        self.check_full_server(group)
                    else:
                        done = self.run_in(group, command)
                        self.assertEqual(done.returncode, 0, done.stderr)

    def check_full_server(self, group):
        server = Server(*self.commands()["serve"], group=group)
        try:
            prompt = server.post("/tokenize", {"prompt": "fox " * 1200})[1]["tokens"]
            for _ in range(2):
                status, body = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 4, "n": 8, "ignore_eos": True})
                self.assertEqual(status, 200, body)
        finally:
            server.close()


if __name__ == "__main__":
    harness.parse_arguments()
    harness.main(globals())
