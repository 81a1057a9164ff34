"""Agent packages that nobody here wrote, each in its own tool loop: the model calls a tool, the package runs it, the model
answers with the result. Each through another of the server's APIs."""

import asyncio
import contextlib

import harness

if __name__ == "__main__":
    harness.parse_arguments()
    harness.enter_venv("requirements.txt")

import agents
import anthropic
import openai
import pydantic_ai
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

agents.set_tracing_disabled(True)

WEATHER = "What's the weather in Paris right now? Use the tool."
PRODUCT = "What is 731 * 48? Use the calculator."


class Loop(harness.ClientCase):
    """The tools that the agents are given, and what they were asked."""

    def setUp(self):
        self.asked = []

    def get_weather(self, city: str) -> str:
        """Get the current weather for a city"""
        self.asked.append(city)
        return '{"city":"%s","temp_c":31,"sky":"overcast"}' % city

    def calculator(self, expression: str) -> str:
        """Evaluate an arithmetic expression"""
        self.asked.append(expression)
        a, b = expression.split("*")
        return '{"result":%d}' % (int(a) * int(b))

    def check_weather(self, answer):
        self.assertEqual(self.asked, ["Paris"])
        self.assertIn("31", answer)

    def check_product(self, answer):
        self.assertEqual(self.asked, ["731 * 48"])
        self.assertIn("35088", answer)


class OpenAiAgents(Loop):
    @contextlib.asynccontextmanager
    async def agent(self, model_class, tool):
        async with openai.AsyncOpenAI(base_url=self.server.url + "/v1", api_key="secret", max_retries=0) as client:
            yield agents.Agent(name="helper", model=model_class(model="demo", openai_client=client),
                               tools=[agents.function_tool(tool)], model_settings=agents.ModelSettings(temperature=0))

    async def answer(self, model_class, tool, question):
        async with self.agent(model_class, tool) as agent:
            return (await agents.Runner.run(agent, question)).final_output

    def test_chat_completions(self):
        self.check_weather(asyncio.run(self.answer(agents.OpenAIChatCompletionsModel, self.get_weather, WEATHER)))

    def test_responses(self):
        self.check_weather(asyncio.run(self.answer(agents.OpenAIResponsesModel, self.get_weather, WEATHER)))

    def test_responses_streamed(self):
        async def run():
            async with self.agent(agents.OpenAIResponsesModel, self.calculator) as agent:
                result = agents.Runner.run_streamed(agent, PRODUCT)
                async for _ in result.stream_events():
                    pass
                return result.final_output
        self.check_product(asyncio.run(run()))

    def test_a_second_turn_keeps_the_first(self):
        async def run():
            async with self.agent(agents.OpenAIResponsesModel, self.get_weather) as agent:
                first = await agents.Runner.run(agent, WEATHER)
                return await agents.Runner.run(agent, first.to_input_list() + [{"role": "user", "content": "Who are you?"}])
        self.assertTrue(asyncio.run(run()).final_output)
        self.assertEqual(self.asked, ["Paris"])


class PydanticAi(Loop):
    def agent(self, model, tool):
        agent = pydantic_ai.Agent(model, model_settings={"temperature": 0})
        agent.tool_plain(tool)
        return agent

    @contextlib.asynccontextmanager
    async def openai_model(self):
        async with openai.AsyncOpenAI(base_url=self.server.url + "/v1", api_key="secret", max_retries=0) as client:
            yield OpenAIChatModel("demo", provider=OpenAIProvider(openai_client=client))

    @contextlib.asynccontextmanager
    async def anthropic_model(self):
        async with anthropic.AsyncAnthropic(base_url=self.server.url, api_key="secret", max_retries=0) as client:
            yield AnthropicModel("demo", provider=AnthropicProvider(anthropic_client=client))

    async def answer(self, model, tool, question):
        async with model as opened:
            return (await self.agent(opened, tool).run(question)).output

    def test_chat_completions(self):
        self.check_product(asyncio.run(self.answer(self.openai_model(), self.calculator, PRODUCT)))

    def test_chat_completions_streamed(self):
        async def run():
            async with self.openai_model() as model, self.agent(model, self.get_weather).run_stream(WEATHER) as result:
                return await result.get_output()
        self.check_weather(asyncio.run(run()))

    def test_messages(self):
        self.check_weather(asyncio.run(self.answer(self.anthropic_model(), self.get_weather, WEATHER)))


if __name__ == "__main__":
    harness.main(globals())
