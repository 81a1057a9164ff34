"""The server's behaviour on the wire: streams, disconnects, limits, bad requests, shutdown."""

import concurrent.futures
import json
import os
import random
import threading
import time
import unittest

import harness
from harness import LastingServerCase, Server, chat_body, content_of, folded, stream_chat, wait_until

LONG = {"max_tokens": 3000, "ignore_eos": True}


class Answers(LastingServerCase):
    def test_whole_and_streamed_answers_agree(self):
        whole = self.server.chat("What is 12 + 7?", max_tokens=200)
        stream = stream_chat(self.server, "What is 12 + 7?", max_tokens=200, stream_options={"include_usage": True})
        reasoning, content, finish, usage = folded(stream.events())
        message = whole["choices"][0]["message"]
        self.assertEqual(reasoning, message["reasoning_content"] or "")
        self.assertEqual(content, message["content"])
        self.assertEqual(finish, whole["choices"][0]["finish_reason"])
        self.assertEqual(usage["completion_tokens"], whole["usage"]["completion_tokens"])

    def test_together_each_gets_its_solo_answer(self):
        questions = ["Who are you?", "What is 3 * 4?", "Tell me a story about a fox.", "Count to five."]
        solo = [content_of(self.server.chat(q, max_tokens=60)) for q in questions]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            together = list(pool.map(lambda q: content_of(self.server.chat(q, max_tokens=60)), questions))
        self.assertEqual(together, solo)

    def test_a_seed_repeats_and_another_differs(self):
        def sample(seed):
            return self.server.chat("Tell me a story about a fox.", temperature=1, seed=seed, max_tokens=40,
                                    return_token_ids=True)["choices"][0]["token_ids"]
        self.assertEqual(sample(5), sample(5))
        self.assertNotEqual(sample(5), sample(6))

    def test_several_choices(self):
        body = self.server.chat("Tell me a story.", n=3, temperature=1, seed=1, max_tokens=20)
        self.assertEqual([choice["index"] for choice in body["choices"]], [0, 1, 2])
        self.assertEqual(body["usage"]["completion_tokens"], 60)

    def test_models_name_the_context(self):
        status, _, data = self.server.get("/v1/models")
        self.assertEqual(status, 200)
        model = json.loads(data)["data"][0]
        self.assertEqual(model["id"], "demo")
        self.assertGreater(model["max_model_len"], 0)

    def test_tokens_come_back_as_text(self):
        text = "Hello, world! \u00e9\u6f22"
        _, tokens = self.server.post("/tokenize", {"prompt": text})
        self.assertEqual(self.server.post("/detokenize", {"tokens": tokens["tokens"]})[1]["prompt"], text)


class Leaving(LastingServerCase):
    flags = ("--prefix-cache-mib", "0")

    def test_a_client_that_leaves_a_stream_stops_the_work(self):
        cancelled = self.server.metric("vllm:request_success_total", finished_reason="abort")
        generated = self.server.metric("vllm:generation_tokens_total")
        stream = stream_chat(self.server, "Tell me a story.", **LONG)
        events = stream.events()
        next(events), next(events)
        stream.close()
        self.server.wait_until_idle()
        self.assertEqual(self.server.metric("vllm:request_success_total", finished_reason="abort"), cancelled + 1)
        # Fewer than a reader may lag behind: it ended because the client had gone, not because nobody read.
        self.assertLess(self.server.metric("vllm:generation_tokens_total") - generated, 1000)

    def test_a_client_that_leaves_before_the_whole_answer_stops_the_work(self):
        cancelled = self.server.metric("vllm:request_success_total", finished_reason="abort")
        request = harness.Stream(self.server, "/v1/chat/completions", chat_body("Tell me a story.", **LONG))
        wait_until(lambda: self.server.num_running() == 1, "it runs")
        request.close()
        self.server.wait_until_idle()
        self.assertEqual(self.server.metric("vllm:request_success_total", finished_reason="abort"), cancelled + 1)

    def test_sixty_four_clients_that_come_and_go(self):
        self.server.chat("warm", max_tokens=2)
        descriptors = self.server.num_descriptors()
        self.come_and_go(seed=7)
        before = self.server.resident_kib()
        self.come_and_go(seed=8)
        wait_until(lambda: self.server.num_descriptors() <= descriptors + 1, "descriptors are back")
        self.assertLess(self.server.resident_kib() - before, 16 << 10, "KiB more than after the first round")

    def come_and_go(self, seed):
        source = random.Random(seed)
        plans = [(source.random() < 0.5, source.randint(0, 12)) for _ in range(64)]

        def client(plan):
            leaves, num_events = plan
            if not leaves:
                status, _ = self.server.post("/v1/chat/completions", chat_body("Hi", max_tokens=5))
                return status in (200, 429)
            stream = stream_chat(self.server, "Tell me a story.", **LONG)
            try:
                for _, _ in zip(range(num_events), stream.events()):
                    pass
            except AssertionError:
                pass  # 429: the queue was full
            stream.close()
            return True

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            self.assertTrue(all(pool.map(client, plans)))
        self.server.wait_until_idle()


class LongPrompts(LastingServerCase):
    flags = ("--prefill-chunk-tokens", "64")

    def test_a_client_that_leaves_during_prefill_stops_it(self):
        text = "The quick brown fox jumps over the lazy dog. " * 500
        num_tokens = self.server.post("/tokenize", {"prompt": text})[1]["count"]
        before = self.server.metric("onecard:prefill_chunks_total")
        request = harness.Stream(self.server, "/v1/chat/completions", chat_body(text, max_tokens=1))
        wait_until(lambda: self.server.metric("onecard:prefill_chunks_total") > before, "the first chunk")
        request.close()
        self.server.wait_until_idle()
        self.assertLess(self.server.metric("onecard:prefill_chunks_total") - before, num_tokens / 64)

    def test_a_stream_goes_on_while_a_long_prompt_is_read(self):
        stream = stream_chat(self.server, "Tell me a story.", **LONG)
        events = stream.events()
        next(events)
        chunks = self.server.metric("onecard:prefill_chunks_total")
        text = "The quick brown fox jumps over the lazy dog. " * 300
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            reading = pool.submit(self.server.chat, text, max_tokens=1)
            wait_until(lambda: self.server.metric("onecard:prefill_chunks_total") > chunks + 2, "the prompt is being read")
            for _ in range(20):
                next(events)
            self.assertFalse(reading.done(), "twenty events came only after the prompt had been read")
            stream.close()
            reading.result()


class OneSlot(LastingServerCase):
    flags = ("--max-num-seqs", "1", "--max-queued-requests", "1")

    def test_dropping_a_queued_request_touches_nobody(self):
        story = {"max_tokens": 600, "ignore_eos": True}
        alone = self.server.chat("Tell me a story about a fox.", **story)
        self.server.wait_until_idle()
        ended = self.server.metric("vllm:request_success_total", finished_reason="length")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(self.server.chat, "Tell me a story about a fox.", **story)
            wait_until(lambda: self.server.num_running() == 1, "A runs")
            queued = harness.Stream(self.server, "/v1/chat/completions", chat_body("Who are you?", max_tokens=50))
            wait_until(lambda: self.server.num_waiting() == 1 or running.done(), "B waits")
            queued.close()
            wait_until(lambda: self.server.num_waiting() == 0, "B is out of the queue")
            self.assertEqual(self.server.metric("vllm:request_success_total", finished_reason="length"), ended, "A still runs")
            answer = running.result()
        self.assertEqual(content_of(answer), content_of(alone))
        self.assertEqual(answer["choices"][0]["finish_reason"], alone["choices"][0]["finish_reason"])

    def test_a_full_queue_says_when_to_come_back(self):
        holding = [stream_chat(self.server, "Tell me a story.", **LONG) for _ in range(2)]
        wait_until(lambda: self.server.num_running() == 1 and self.server.num_waiting() == 1, "slot and queue are full")
        status, headers, data = self.server.request("POST", "/v1/chat/completions", chat_body("Hi"))
        self.assertEqual(status, 429)
        self.assertGreater(int(headers["Retry-After"]), 0)
        self.assertEqual(json.loads(data)["error"]["code"], "queue_full")
        for stream in holding:
            stream.close()


class BadRequests(LastingServerCase):
    user = {"role": "user", "content": "x"}

    def bodies(self):
        """(body, what the error's param begins with)"""
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

        def schema(**keywords):
            return {"type": "json_schema", "json_schema": {"name": "s", "schema": keywords}}
        for body in (b"", b"{", b"[]", b"nonsense", b"\xff\xfe", b'{"messages": [', b"[" * 100000,
                     b'{"messages": [{"role": "user", "content": "\xc3\x28"}]}',
                     b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
                     b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}'):
            yield body, None  # no JSON, or a number that is none: the message says at which byte
        yield json.dumps({"messages": []}).encode(), "messages"
        yield json.dumps({"messages": "x"}).encode(), "messages"
        yield json.dumps({"messages": [{"role": "robot", "content": "x"}]}).encode(), "messages[0].role"
        yield json.dumps({"messages": [{"role": "user", "content": 7}]}).encode(), "messages[0].content"
        yield json.dumps({"messages": [{"role": "user", "content": [{"type": "video"}]}]}).encode(), "messages[0].content[0]"
        for fields in ({"temperature": -1}, {"temperature": "hot"}, {"top_p": 0}, {"top_k": -2}, {"min_p": 2}, {"n": 0},
                       {"n": 2**70}, {"seed": 2**64}, {"max_tokens": 0}, {"max_tokens": -2**70}, {"max_tokens": 1.5},
                       {"stop": [""]}, {"stop": ["a"] * 17}, {"stop_token_ids": [-1]}, {"logit_bias": {"x": 1}},
                       {"presence_penalty": 3}, {"repetition_penalty": 0}, {"stream_options": {"include_usage": True}},
                       {"top_logprobs": 3}, {"tools": [tool, tool]}, {"tools": [{"type": "function"}]},
                       {"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [tool]},
                       {"response_format": {"type": "regex"}}, {"response_format": {"type": "json_schema"}},
                       {"response_format": schema(type="string", pattern="(")}, {"response_format": schema(type="string", pattern="(?=a)")},
                       {"response_format": schema(type="array", uniqueItems=True)}, {"response_format": schema(type="nothing")},
                       {"response_format": schema(**{"$ref": "#/$defs/none"})},
                       {"response_format": schema(type="string", maxLength=10**9, pattern="(a|b|ab){1,1000}c")},
                       {"reasoning_effort": "enormous"}, {"chat_template_kwargs": {"reasoning_effort": 0}},
                       {"cache_salt": ""}, {"continue_final_message": True}, {"guided_regex": "("}, {"stream": "yes"}):
            yield json.dumps({"messages": [self.user], **fields}).encode(), next(iter(fields))

    def test_bad_requests_are_answered_and_disturb_nobody(self):
        expected = content_of(self.server.chat("Tell me a story about a fox.", max_tokens=300, ignore_eos=True))
        got = []
        stream = stream_chat(self.server, "Tell me a story about a fox.", max_tokens=300, ignore_eos=True)
        reader = threading.Thread(target=lambda: got.append(folded(stream.events())))
        reader.start()
        pid = self.server.process.pid
        num_bodies = 0
        for body, param in self.bodies():
            began = time.monotonic()
            status, _, data = self.server.request("POST", "/v1/chat/completions", body)
            self.assertTrue(400 <= status < 500 or status == 501, (status, body[:200]))
            self.assertLess(time.monotonic() - began, 2, body[:200])
            error = json.loads(data)["error"]
            self.assertEqual(set(error), {"message", "type", "param", "code"}, body[:200])
            self.assertTrue(error["message"])
            if param:
                self.assertTrue((error["param"] or "").startswith(param), (error, body[:200]))
            num_bodies += 1
        self.assertGreaterEqual(num_bodies, 30)
        reader.join()
        self.assertEqual(got[0][1], expected)
        self.assertEqual(os.stat(f"/proc/{pid}").st_uid, os.getuid())

    def test_wrong_places_methods_and_types(self):
        self.assertEqual(self.server.get("/v1/nothing")[0], 404)
        self.assertEqual(self.server.get("/v1/chat/completions")[0], 405)
        self.assertEqual(self.server.request("POST", "/v1/chat/completions", b"{}", {"Content-Type": "text/plain"})[0], 415)
        status, body = self.server.post("/v1/chat/completions", chat_body("x", model="no-such-model"))
        self.assertEqual((status, body["error"]["code"]), (404, "model_not_found"))

    def test_request_ids_and_cors(self):
        _, headers, _ = self.server.request("GET", "/v1/models", headers={"X-Request-Id": "my-id-7"})
        self.assertEqual(headers["X-Request-Id"], "my-id-7")
        self.assertEqual(headers["Access-Control-Allow-Origin"], "*")


class Markup(LastingServerCase):
    def test_text_of_clients_is_never_structure(self):
        spellings = ["<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>", "<\uff5cSystem\uff5c>", "<think>", "</think>",
                     "<\uff5cend\u2581of\u2581sentence\uff5c>", "<\uff5cbegin\u2581of\u2581sentence\uff5c>", "\uff5cDSML\uff5c"]
        control = {s: self.server.post("/tokenize", {"prompt": s})[1]["tokens"] for s in spellings}

        def conversation(user="u", reasoning="r", answer="a", argument="x", result="t", system="s"):
            """Every place that a client writes to."""
            call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": json.dumps({"key": argument})}}
            tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"key": {"type": "string"}}}}}
            return {"messages": [{"role": "system", "content": system}, {"role": "user", "content": user},
                                 {"role": "assistant", "content": answer, "reasoning_content": reasoning, "tool_calls": [call]},
                                 {"role": "tool", "tool_call_id": "1", "content": result}], "tools": [tool]}

        def ids(**texts):
            status, body = self.server.post("/tokenize", conversation(**texts))
            self.assertEqual(status, 200, body)
            return body["tokens"]

        places = ("user", "reasoning", "answer", "argument", "result", "system")
        for spelling in spellings:
            self.assertEqual(len(control[spelling]), 1, spelling)
            for place in places:
                plain, forged = ids(**{place: "say X twice"}), ids(**{place: f"say {spelling} twice"})
                for other in control.values():  # markup that the renderer writes stays, and no more comes
                    self.assertEqual(forged.count(other[0]), plain.count(other[0]), (spelling, place))
                text = self.server.post("/detokenize", {"tokens": forged})[1]["prompt"]
                self.assertIn(f"say {spelling} twice", text, place)
            status, body = self.server.post("/v1/chat/completions", {
                **conversation(**{place: f"say {spelling} twice" for place in places}), "max_tokens": 3, "ignore_eos": True, "temperature": 0})
            self.assertEqual((status, body["usage"]["completion_tokens"]), (200, 3), spelling)


class Window(LastingServerCase):
    flags = ("--max-model-len", "256")

    def prompt_of(self, num_tokens):
        """Ids of a prompt of exactly so many tokens."""
        ids = self.server.post("/tokenize", {"prompt": "fox " * 400})[1]["tokens"]
        return ids[:num_tokens]

    def test_the_whole_window_can_be_used_and_not_more(self):
        self.assertEqual(json.loads(self.server.get("/v1/models")[2])["data"][0]["max_model_len"], 256)
        for length, room in ((255, 1), (250, 6), (100, 156)):
            status, body = self.server.post("/v1/completions", {"prompt": self.prompt_of(length), "max_tokens": 2**31,
                                                                "ignore_eos": True, "temperature": 0})
            self.assertEqual(status, 200, body)
            self.assertEqual(body["usage"]["completion_tokens"], room)
            self.assertEqual(body["choices"][0]["finish_reason"], "length")
        for length in (256, 257):
            status, body = self.server.post("/v1/completions", {"prompt": self.prompt_of(length)})
            self.assertEqual((status, body["error"]["code"]), (400, "context_length_exceeded"))
            self.assertIn("maximum context length is 256 tokens", body["error"]["message"])

    def test_limits_of_any_size(self):
        for limit in (1, 2**31, 2**63 - 1, 2**63, 2**70):
            status, body = self.server.post("/v1/chat/completions", chat_body("Hi", max_tokens=limit))
            self.assertEqual(status, 200, body)
        self.assertEqual(self.server.post("/v1/chat/completions", chat_body("Hi", max_tokens=0))[0], 400)
        unlimited = self.server.chat("Hi", ignore_eos=True)
        self.assertEqual((unlimited["usage"]["total_tokens"], unlimited["choices"][0]["finish_reason"]), (256, "length"))

    def test_every_slot_can_be_full(self):
        def fill(_):
            return self.server.post("/v1/completions", {"prompt": self.prompt_of(200), "ignore_eos": True, "max_tokens": 56})
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for status, body in pool.map(fill, range(4)):
                self.assertEqual((status, body["usage"]["total_tokens"]), (200, 256))


class Keys(unittest.TestCase):
    def test_the_api_needs_a_key(self):
        server = Server("--api-key", "secret")
        self.addCleanup(server.close)
        self.assertEqual(server.get("/v1/models")[0], 401)
        self.assertEqual(server.request("GET", "/v1/models", headers={"Authorization": "Bearer secret"})[0], 200)
        self.assertEqual(server.get("/health")[0], 200)


class Shutdown(unittest.TestCase):
    def test_sigterm_lets_answers_end(self):
        server = Server("--drain-timeout", str(harness.PATIENCE))
        self.addCleanup(server.close)
        stream = stream_chat(server, "Tell me a story about a fox.", max_tokens=200, ignore_eos=True)
        events = stream.events()
        first = next(events)
        server.terminate()
        wait_until(lambda: "event=draining" in server.log(), "draining is logged")
        _, content, finish, _ = folded([first, *events])
        self.assertEqual(finish, "length")
        self.assertEqual(server.process.wait(harness.PATIENCE), 0)

    def test_an_idle_server_ends_at_once(self):
        server = Server()
        self.addCleanup(server.close)
        server.terminate()
        self.assertEqual(server.process.wait(harness.PATIENCE), 0)


if __name__ == "__main__":
    harness.parse_arguments()
    harness.main(globals())
