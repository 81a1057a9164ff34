"""The official openai Python client against the server."""

import asyncio
import json

import harness

if __name__ == "__main__":
    harness.parse_arguments()
    harness.enter_venv("requirements.txt")

import openai

MESSAGES = [{"role": "user", "content": "What is 12 + 7?"}]

WEATHER = [{"role": "user", "content": "What's the weather in Paris right now? Use the tool."}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "description": "City name"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Get the current weather for a city", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}]
RESULT = '{"city":"Paris","temp_c":31,"sky":"overcast"}'


class OpenAi(harness.ClientCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="secret", max_retries=0)
        cls.addClassCleanup(cls.client.close)

    def test_lists_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["demo"])
        self.assertEqual(self.client.models.retrieve("demo").id, "demo")

    def test_answers(self):
        answer = self.client.chat.completions.create(model="demo", messages=MESSAGES, temperature=0, max_tokens=200)
        self.assertIn(answer.choices[0].finish_reason, ("stop", "length"))
        self.assertTrue(answer.choices[0].message.content or answer.choices[0].message.reasoning_content)
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)

    def test_streams_what_it_answers(self):
        whole = self.client.chat.completions.create(model="demo", messages=MESSAGES, temperature=0, max_tokens=200)
        stream = self.client.chat.completions.create(model="demo", messages=MESSAGES, temperature=0, max_tokens=200,
                                                     stream=True, stream_options={"include_usage": True})
        content, reasoning, finish, usage = "", "", None, None
        for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                content += choice.delta.content or ""
                reasoning += getattr(choice.delta, "reasoning_content", None) or ""
                finish = choice.finish_reason or finish
        self.assertEqual(content, whole.choices[0].message.content)
        self.assertEqual(reasoning, whole.choices[0].message.reasoning_content or "")
        self.assertEqual(finish, whole.choices[0].finish_reason)
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)

    def test_streams_asynchronously(self):
        async def run():
            async with openai.AsyncOpenAI(base_url=self.server.url + "/v1", api_key="secret", max_retries=0) as client:
                async def ask(text):
                    stream = await client.chat.completions.create(
                        model="demo", messages=[{"role": "user", "content": text}], max_tokens=30, stream=True)
                    return [chunk async for chunk in stream]
                return await asyncio.gather(*(ask(f"What is {n} + 1?") for n in range(6)))
        for chunks in asyncio.run(run()):
            self.assertIsNotNone(chunks[-1].choices[0].finish_reason)

    def test_leaving_a_stream_stops_the_work(self):
        stream = self.client.chat.completions.create(model="demo", messages=MESSAGES, max_tokens=4000, stream=True,
                                                     extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        self.server.wait_until_idle()

    def test_log_probabilities(self):
        answer = self.client.chat.completions.create(model="demo", messages=MESSAGES, max_tokens=5, logprobs=True,
                                                     top_logprobs=2)
        content = answer.choices[0].logprobs.content
        self.assertEqual(len(content), answer.usage.completion_tokens)
        self.assertEqual(len(content[0].top_logprobs), 2)

    def test_completions(self):
        answer = self.client.completions.create(model="demo", prompt="Once upon a time", max_tokens=8, temperature=0)
        self.assertTrue(answer.choices[0].text)
        self.assertLessEqual(answer.usage.completion_tokens, 8)

    def test_a_tool_is_called_and_its_result_used(self):
        first = self.client.chat.completions.create(model="demo", messages=WEATHER, tools=TOOLS, temperature=0)
        self.assertEqual(first.choices[0].finish_reason, "tool_calls")
        call = first.choices[0].message.tool_calls[0]
        self.assertEqual((call.function.name, json.loads(call.function.arguments)), ("get_weather", {"city": "Paris"}))
        second = self.client.chat.completions.create(model="demo", tools=TOOLS, temperature=0, messages=[
            *WEATHER, first.choices[0].message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": RESULT}])
        self.assertEqual(second.choices[0].finish_reason, "stop")
        self.assertIn("31", second.choices[0].message.content)

    def test_a_streamed_tool_call_is_put_together(self):
        with self.client.chat.completions.stream(model="demo", messages=WEATHER, tools=TOOLS, temperature=0) as stream:
            for _ in stream:
                pass
            final = stream.get_final_completion()
        self.assertEqual([json.loads(call.function.arguments) for call in final.choices[0].message.tool_calls], [{"city": "Paris"}])

    def test_responses(self):
        tools = [{"type": "function", **FUNCTION}]
        first = self.client.responses.create(model="demo", input=WEATHER, tools=tools, temperature=0)
        self.assertEqual(first.status, "completed")
        call = [item for item in first.output if item.type == "function_call"][0]
        self.assertEqual(json.loads(call.arguments), {"city": "Paris"})
        history = [*WEATHER, *(item.model_dump(exclude_none=True) for item in first.output),
                   {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}]
        with self.client.responses.stream(model="demo", input=history, tools=tools, temperature=0) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
        self.assertEqual((kinds[0], kinds[-1]), ("response.created", "response.completed"))
        self.assertIn("31", final.output_text)

    def test_answers_keep_to_a_schema(self):
        schema = {"name": "place", "strict": True, "schema": {**SCHEMA, "additionalProperties": False}}
        answer = self.client.chat.completions.create(
            model="demo", temperature=0, extra_body={"thinking": {"type": "disabled"}}, max_tokens=200,
            messages=[{"role": "user", "content": "Name a city as JSON."}], response_format={"type": "json_schema", "json_schema": schema})
        self.assertEqual(list(json.loads(answer.choices[0].message.content)), ["city"])

    def test_answers_asynchronously(self):
        async def run():
            async with openai.AsyncOpenAI(base_url=self.server.url + "/v1", api_key="secret", max_retries=0) as client:
                answer = await client.chat.completions.create(model="demo", messages=MESSAGES, temperature=0)
                with self.assertRaises(openai.NotFoundError):
                    await client.chat.completions.create(model="other", messages=MESSAGES)
                return answer
        self.assertIn("19", asyncio.run(run()).choices[0].message.content)

    def test_errors_have_their_classes(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(model="demo", messages=MESSAGES, temperature=5)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.chat.completions.create(model="other", messages=MESSAGES)
        self.assertEqual(caught.exception.code, "model_not_found")
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=self.server.url + "/v1", api_key="wrong", max_retries=0).models.list()
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "fox " * 20000}])
        self.assertEqual(caught.exception.code, "context_length_exceeded")


if __name__ == "__main__":
    harness.main(globals())
