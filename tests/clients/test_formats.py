"""Tools, required formats, choices, probabilities and reasoning with the official openai package,
judged by the jsonschema package.

Usage: test_formats.py BASE_URL SCHEMAS, where SCHEMAS is engine/tests/cases/schemas.json
"""

import json
import sys
import unittest
from typing import Literal

import jsonschema
import openai
from pydantic import BaseModel

BASE_URL, SCHEMAS = sys.argv[1:3]

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "get_time"}},
]


class Step(BaseModel):
    explanation: str
    output: float


class Solution(BaseModel):
    steps: list[Step]
    verdict: Literal["right", "wrong"]
    remark: str | None


class Formats(unittest.TestCase):
    def setUp(self):
        self.openai = openai.OpenAI(base_url=BASE_URL, api_key="unused", max_retries=0)
        self.addCleanup(self.openai.close)

    def chat(self, text="anything", **options):
        messages = [{"role": "user", "content": text}]
        return self.openai.chat.completions.create(model="fast", messages=messages, **options)

    def test_every_schema_gets_a_value_that_jsonschema_accepts(self):
        with open(SCHEMAS, encoding="utf-8") as file:
            cases = json.load(file)
        self.assertGreater(len(cases), 36)
        checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
        for case in cases:
            validator = jsonschema.Draft202012Validator(case["schema"], format_checker=checker)
            for seed in range(8):
                wanted = {"name": "x", "schema": case["schema"]}
                answer = self.chat(
                    seed=seed, response_format={"type": "json_schema", "json_schema": wanted}
                )
                content = answer.choices[0].message.content
                with self.subTest(case["name"], seed=seed, content=content):
                    validator.validate(json.loads(content))

    def test_a_pydantic_model_is_parsed(self):
        for seed in range(5):
            answer = self.openai.chat.completions.parse(
                model="fast", seed=seed, response_format=Solution,
                messages=[{"role": "user", "content": "solve"}],
            )
            self.assertIsInstance(answer.choices[0].message.parsed, Solution)
        with self.assertRaises(openai.LengthFinishReasonError):
            self.openai.chat.completions.parse(
                model="fast", max_tokens=3, response_format=Solution,
                messages=[{"role": "user", "content": "solve"}],
            )

    def test_a_schema_that_nothing_satisfies_names_the_place(self):
        schema = {"type": "object", "properties": {"a": {"type": "what"}}}
        wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(response_format=wanted)
        self.assertEqual(
            caught.exception.param, "response_format.json_schema.schema.properties.a.type"
        )

    def test_json_object(self):
        answer = self.chat(response_format={"type": "json_object"})
        self.assertIsInstance(json.loads(answer.choices[0].message.content), dict)

    def test_a_tool_loop_ends(self):
        messages = [{"role": "user", "content": "weather in Rome"}]
        create = self.openai.chat.completions.create
        first = create(model="fast", messages=messages, tools=TOOLS)
        self.assertEqual(first.choices[0].finish_reason, "tool_calls")
        message = first.choices[0].message
        (call,) = message.tool_calls
        self.assertEqual(call.function.name, "get_weather")
        self.assertEqual(json.loads(call.function.arguments), {"city": "Rome", "days": 2})
        messages += [
            message, {"role": "tool", "tool_call_id": call.id, "content": "20 degrees"}
        ]
        second = create(model="fast", messages=messages, tools=TOOLS)
        self.assertEqual(second.choices[0].finish_reason, "stop")
        self.assertIsNone(second.choices[0].message.tool_calls)

    def test_streamed_calls_are_put_together_by_the_helper(self):
        options = {"model": "fast", "tools": TOOLS, "tool_choice": "required"}
        messages = [{"role": "user", "content": "anything"}]
        whole = self.openai.chat.completions.create(messages=messages, **options)
        with self.openai.chat.completions.stream(messages=messages, **options) as stream:
            kinds = [event.type for event in stream]
            streamed = stream.get_final_completion()
        call, same = (it.choices[0].message.tool_calls[0] for it in (whole, streamed))
        self.assertEqual((call.id, call.function.name, call.function.arguments),
                         (same.id, same.function.name, same.function.arguments))
        self.assertIn("tool_calls.function.arguments.done", kinds)

    def test_named_and_required_calls(self):
        for seed in range(10):
            named = self.chat(
                seed=seed, tools=TOOLS,
                tool_choice={"type": "function", "function": {"name": "get_weather"}},
            ).choices[0]
            self.assertEqual(named.finish_reason, "stop")
            arguments = json.loads(named.message.tool_calls[0].function.arguments)
            jsonschema.validate(arguments, WEATHER)
            required = self.chat(seed=seed, tools=TOOLS, tool_choice="required").choices[0]
            self.assertEqual(required.finish_reason, "tool_calls")
        none = self.chat("weather in Rome", tools=TOOLS, tool_choice="none").choices[0]
        self.assertIsNone(none.message.tool_calls)

    def test_several_choices(self):
        answer = self.chat(n=3)
        self.assertEqual([choice.index for choice in answer.choices], [0, 1, 2])
        self.assertEqual(answer.usage.completion_tokens, 24)
        texts = ["", "", ""]
        for chunk in self.chat(n=3, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        self.assertEqual(texts, [choice.message.content for choice in answer.choices])

    def test_probabilities(self):
        choice = self.chat(logprobs=True, top_logprobs=4).choices[0]
        tokens = choice.logprobs.content
        self.assertEqual("".join(token.token for token in tokens), choice.message.content)
        for token in tokens:
            self.assertEqual(bytes(token.bytes).decode(), token.token)
            self.assertEqual(len(token.top_logprobs), 4)

    def test_reasoning(self):
        answer = self.chat("think")
        message = answer.choices[0].message
        self.assertEqual(message.reasoning_content, "Hm, let me see.")
        self.assertEqual(message.content, "Yes.")
        self.assertEqual(answer.usage.completion_tokens_details.reasoning_tokens, 6)


if __name__ == "__main__":
    result = unittest.main(argv=["test_formats.py"], exit=False, verbosity=2).result
    failed = len(result.failures) + len(result.errors)
    print(f"formats, openai for Python {openai.__version__}: "
          f"{result.testsRun - failed} passed, {failed} failed", flush=True)
    sys.exit(failed > 0)
