"""The official anthropic Python client against /v1/messages."""

import asyncio

import harness

if __name__ == "__main__":
    harness.parse_arguments()
    harness.enter_venv("requirements.txt")

import anthropic

QUESTION = [{"role": "user", "content": "What is 12 + 7?"}]
WEATHER = {"name": "get_weather", "description": "Get the current weather for a city",
           "input_schema": {"type": "object", "properties": {"city": {"type": "string", "description": "City name"}}, "required": ["city"]}}


def of_type(message, kind):
    return [block for block in message.content if block.type == kind]


class Anthropic(harness.ClientCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = anthropic.Anthropic(base_url=cls.server.url, api_key="secret", max_retries=0)
        cls.addClassCleanup(cls.client.close)

    def ask(self, messages=None, **fields):
        # temperature is no parameter of the package's newest models; the server obeys it.
        return self.client.messages.create(model="demo", max_tokens=fields.pop("max_tokens", 300), messages=messages or QUESTION,
                                           extra_body={"temperature": 0}, **fields)

    def test_answers_with_thinking_apart(self):
        message = self.ask(thinking={"type": "enabled", "budget_tokens": 1024})
        self.assertEqual((message.role, message.stop_reason), ("assistant", "end_turn"))
        self.assertTrue(of_type(message, "thinking")[0].thinking)
        self.assertIn("19", of_type(message, "text")[0].text)
        self.assertGreater(message.usage.input_tokens + message.usage.cache_read_input_tokens, 0)
        self.assertGreater(message.usage.output_tokens, 0)

    def test_thinking_can_be_switched_off(self):
        message = self.ask(thinking={"type": "disabled"})
        self.assertEqual([block.type for block in message.content], ["text"])

    def test_streams_what_it_answers(self):
        whole = self.ask()
        with self.client.messages.stream(model="demo", max_tokens=300, messages=QUESTION, extra_body={"temperature": 0}) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_message()
        self.assertEqual([(b.type, getattr(b, "text", None) or b.thinking) for b in final.content],
                         [(b.type, getattr(b, "text", None) or b.thinking) for b in whole.content])
        self.assertEqual((final.stop_reason, final.usage.output_tokens), (whole.stop_reason, whole.usage.output_tokens))
        self.assertEqual((kinds[0], kinds[-1]), ("message_start", "message_stop"))

    def test_streams_asynchronously(self):
        async def run():
            async with anthropic.AsyncAnthropic(base_url=self.server.url, api_key="secret", max_retries=0) as client:
                async def ask(n):
                    async with client.messages.stream(model="demo", max_tokens=30,
                                                      messages=[{"role": "user", "content": f"What is {n} + 1?"}]) as stream:
                        return await stream.get_final_message()
                return await asyncio.gather(*(ask(n) for n in range(4)))
        for message in asyncio.run(run()):
            self.assertIn(message.stop_reason, ("end_turn", "max_tokens"))
            self.assertTrue(message.content)

    def test_limits_and_stop_sequences(self):
        self.assertEqual(self.ask(max_tokens=3).stop_reason, "max_tokens")
        message = self.ask([{"role": "user", "content": "Name three primary colors, comma separated."}],
                           thinking={"type": "disabled"}, stop_sequences=[","])
        self.assertEqual((message.stop_reason, message.stop_sequence), ("stop_sequence", ","))

    def test_a_tool_is_called_and_its_result_used(self):
        messages = [{"role": "user", "content": "What's the weather in Paris right now? Use the tool."}]
        first = self.ask(messages, tools=[WEATHER])
        self.assertEqual(first.stop_reason, "tool_use")
        use = of_type(first, "tool_use")[0]
        self.assertEqual((use.name, use.input), ("get_weather", {"city": "Paris"}))
        messages += [{"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in first.content]},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id,
                                                   "content": '{"city":"Paris","temp_c":17,"sky":"overcast"}'}]}]
        second = self.ask(messages, tools=[WEATHER])
        self.assertEqual(second.stop_reason, "end_turn")
        self.assertIn("17", of_type(second, "text")[0].text)

    def test_a_streamed_tool_call_is_put_together(self):
        with self.client.messages.stream(model="demo", max_tokens=300, tools=[WEATHER], extra_body={"temperature": 0}, messages=[
                {"role": "user", "content": "What's the weather in Paris right now? Use the tool."}]) as stream:
            final = stream.get_final_message()
        self.assertEqual([use.input for use in of_type(final, "tool_use")], [{"city": "Paris"}])

    def test_tokens_are_counted_before_they_are_sent(self):
        counted = self.client.messages.count_tokens(model="demo", messages=QUESTION, tools=[WEATHER]).input_tokens
        usage = self.ask(tools=[WEATHER], max_tokens=1).usage
        self.assertEqual(counted, usage.input_tokens + usage.cache_read_input_tokens)

    def test_errors_have_their_classes(self):
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.ask([{"role": "user", "content": "fox " * 20000}])
        self.assertEqual(caught.exception.body["error"]["type"], "invalid_request_error")
        self.assertIn("prompt is too long", caught.exception.body["error"]["message"])
        with self.assertRaises(anthropic.NotFoundError):
            self.client.messages.create(model="other", max_tokens=5, messages=QUESTION)
        with self.assertRaises(anthropic.AuthenticationError):
            anthropic.Anthropic(base_url=self.server.url, api_key="wrong", max_retries=0).messages.create(
                model="demo", max_tokens=5, messages=QUESTION)


if __name__ == "__main__":
    harness.main(globals())
