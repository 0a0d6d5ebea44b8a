"""Single fields of OpenAI's, vLLM's and Anthropic's as the official packages for Python send and read
them: those that are typed in the packages, and those that go through `extra_body`.

Usage: test_fields.py BASE_URL, for example http://127.0.0.1:8080/v1
"""

import base64
import struct
import sys
import time
import unittest
import uuid
import warnings

import anthropic
import openai

BASE_URL = sys.argv[1]
DEFAULT = "One two three four five six seven."
OPTIONS = {"max_retries": 0, "timeout": 30}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def user(text):
    return [{"role": "user", "content": text}]


def function(name):
    return {"type": "function", "function": {"name": name, "parameters": CITY}}


class Openai(unittest.TestCase):
    def setUp(self):
        self.openai = openai.OpenAI(base_url=BASE_URL, api_key="unused", **OPTIONS)
        self.addCleanup(self.openai.close)


class Chat(Openai):
    def chat(self, text="anything", **options):
        return self.openai.chat.completions.create(model="fast", messages=user(text), **options)

    def test_the_stop_string_that_was_said(self):
        (choice,) = self.chat(stop=["seven", "e fo"]).choices
        self.assertEqual((choice.message.content, choice.finish_reason), ("One two thre", "stop"))
        self.assertEqual(choice.stop_reason, "e fo")
        *_, last = self.chat(stop=["e fo"], stream=True)
        self.assertEqual(last.choices[0].stop_reason, "e fo")

    def test_allowed_tools_leave_the_others_out(self):
        tools = [function("get_weather"), function("get_time")]
        for name in ("get_weather", "get_time"):
            choice = {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": name}}],
                },
            }
            answer = self.chat("weather?", tools=tools, tool_choice=choice)
            called = {call.function.name for call in answer.choices[0].message.tool_calls}
            self.assertEqual(called, {name})

    def test_usage_in_every_chunk(self):
        options = {"include_usage": True, "continuous_usage_stats": True}
        chunks = list(self.chat(stream=True, stream_options=options))
        counts = [chunk.usage.completion_tokens for chunk in chunks]
        self.assertEqual((counts[0], counts[-1]), (0, 8))
        self.assertEqual(counts, sorted(counts))
        self.assertEqual({chunk.usage.prompt_tokens for chunk in chunks}, {8})
        self.assertEqual(chunks[-1].choices, [])

    def test_the_prompts_scores(self):
        answer = self.chat(extra_body={"prompt_logprobs": 2})
        first, *others = answer.prompt_logprobs
        self.assertIsNone(first)
        # "anything" is one token, with the template's 7 around it.
        self.assertEqual(len(others), 7)
        for entry in others:
            ranks = sorted(score["rank"] for score in entry.values())
            self.assertEqual(ranks[:2], [1, 2])
            self.assertTrue(all(score["logprob"] <= 0 for score in entry.values()))

    def test_ids_of_all_tokens(self):
        answer = self.chat(extra_body={"return_token_ids": True})
        self.assertEqual(len(answer.prompt_token_ids), 8)
        ids = answer.choices[0].token_ids
        self.assertEqual(len(ids), 8)
        chunks = list(self.chat(extra_body={"return_token_ids": True}, stream=True))
        self.assertEqual(chunks[0].prompt_token_ids, answer.prompt_token_ids)
        # The chunks of role and finish have no tokens.
        streamed = [getattr(chunk.choices[0], "token_ids", None) or [] for chunk in chunks]
        self.assertEqual(sum(streamed, []), ids)
        # The ids of what was said, as a prompt.
        again = self.openai.completions.create(model="fast", prompt=ids, echo=True, max_tokens=1)
        self.assertTrue(again.choices[0].text.startswith(DEFAULT), again.choices[0].text)


class Completions(Openai):
    def test_the_stop_string_that_was_said(self):
        answer = self.openai.completions.create(model="fast", prompt="x", stop=" four")
        self.assertEqual(answer.choices[0].text, "One two three")
        self.assertEqual(answer.choices[0].stop_reason, " four")


class Responses(Openai):
    def test_scores_beside_the_text(self):
        ask = {
            "model": "fast", "input": "anything", "top_logprobs": 2,
            "include": ["message.output_text.logprobs"],
        }
        said = self.openai.responses.create(**ask).output[0].content[0]
        self.assertEqual("".join(score.token for score in said.logprobs), DEFAULT)
        for score in said.logprobs:
            self.assertEqual(len(score.top_logprobs), 2)
            self.assertEqual(score.top_logprobs[0].token, score.token)
        events = self.openai.responses.create(**ask, stream=True)
        deltas = [event for event in events if event.type == "response.output_text.delta"]
        tokens = [score.token for event in deltas for score in event.logprobs]
        self.assertEqual(tokens, [score.token for score in said.logprobs])

    def test_the_input_of_a_kept_one_in_pages(self):
        texts = [f"text {at}" for at in range(5)]
        items = [{"role": "user", "content": text} for text in texts]
        kept = self.openai.responses.create(model="fast", input=items)
        # The package asks for the next page by itself.
        listed = self.openai.responses.input_items.list(kept.id, limit=2, order="asc")
        self.assertEqual([item.content[0].text for item in listed], texts)
        newest = self.openai.responses.input_items.list(kept.id)
        self.assertEqual([item.content[0].text for item in newest], texts[::-1])

    def test_only_one_in_the_background_streams_again(self):
        kept = self.openai.responses.create(model="fast", input="anything")
        for call in (
            lambda: list(self.openai.responses.retrieve(kept.id, stream=True)),
            lambda: self.openai.responses.cancel(kept.id),
        ):
            with self.assertRaises(openai.BadRequestError):
                call()

    def test_allowed_tools_leave_the_others_out(self):
        tools = [
            {"type": "function", "name": name, "parameters": CITY, "strict": False}
            for name in ("get_weather", "get_time")
        ]
        choice = {
            "type": "allowed_tools", "mode": "required",
            "tools": [{"type": "function", "name": "get_time"}],
        }
        answer = self.openai.responses.create(
            model="fast", input="weather?", tools=tools, tool_choice=choice
        )
        self.assertEqual([item.name for item in answer.output], ["get_time"])


class Embeddings(Openai):
    def test_base64_in_other_types(self):
        ask = {"model": "fast", "input": "a white whale", "dimensions": 8}
        numbers = self.openai.embeddings.create(**ask, encoding_format="float").data[0].embedding
        for extra, form, error in (
            ({}, "<8f", 1e-6),
            ({"endianness": "big"}, ">8f", 1e-6),
            ({"embed_dtype": "float16"}, "<8e", 1e-3),
        ):
            answer = self.openai.embeddings.create(
                **ask, encoding_format="base64", extra_body=extra
            )
            vector = struct.unpack(form, base64.b64decode(answer.data[0].embedding))
            for one, other in zip(vector, numbers):
                self.assertAlmostEqual(one, other, delta=error, msg=f"{extra}")


class Waits(unittest.TestCase):
    def test_milliseconds_go_before_seconds(self):
        # Both packages would wait for half a second at most if nothing told them to.
        words = {"x-llmsim-fault": "status=429 first=1 retry_after_ms=900"}
        text = f"Hello {uuid.uuid4()}"
        began = time.monotonic()
        with openai.OpenAI(base_url=BASE_URL, api_key="unused", max_retries=1) as one:
            answer = one.chat.completions.create(
                model="fast", messages=user(text), extra_headers=words
            )
        self.assertEqual(answer.choices[0].message.content, DEFAULT)
        with anthropic.Anthropic(
            base_url=BASE_URL.removesuffix("/v1"), api_key="unused", max_retries=1
        ) as one:
            answer = one.messages.create(
                model="fast", max_tokens=99, messages=user(text), extra_headers=words
            )
        self.assertEqual(answer.content[0].text, DEFAULT)
        self.assertGreaterEqual(time.monotonic() - began, 1.75)


class Messages(unittest.TestCase):
    def setUp(self):
        url = BASE_URL.removesuffix("/v1")
        self.anthropic = anthropic.Anthropic(base_url=url, api_key="unused", **OPTIONS)
        self.addCleanup(self.anthropic.close)

    def test_ids_of_calls_are_of_its_kind_and_lead_to_their_results(self):
        tools = [{"name": "get_weather", "input_schema": CITY}]
        ask = {"model": "fast", "max_tokens": 99, "tools": tools, "messages": user("weather?")}
        (call,) = self.anthropic.messages.create(**ask).content
        self.assertTrue(call.id.startswith("toolu_"), call.id)
        with self.anthropic.messages.stream(**ask) as stream:
            streamed = stream.get_final_message().content[0]
        self.assertTrue(streamed.id.startswith("toolu_"), streamed.id)
        self.assertEqual(streamed.input, call.input)

    def test_counting_is_what_the_message_says(self):
        tools = [{"name": "get_weather", "input_schema": CITY}]
        history = [
            *user("weather?"),
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "20 degrees"},
            ]},
        ]
        ask = {"model": "fast", "system": "Be brief.", "tools": tools, "messages": history}
        count = self.anthropic.messages.count_tokens(**ask).input_tokens
        usage = self.anthropic.messages.create(**ask, max_tokens=99).usage
        self.assertEqual(count, usage.input_tokens)

    def test_what_is_left_of_a_limit(self):
        answer = self.anthropic.messages.with_raw_response.create(
            model="fast", max_tokens=9, messages=user("x"),
            extra_headers={"x-llmsim-fault": "rpm=1000 tpm=100000"},
        )
        self.assertEqual(answer.headers["anthropic-ratelimit-requests-limit"], "1000")
        reset = answer.headers["anthropic-ratelimit-tokens-reset"]
        self.assertGreater(time.strptime(reset, "%Y-%m-%dT%H:%M:%SZ").tm_year, 2025)


if __name__ == "__main__":
    warnings.simplefilter("error", ResourceWarning)
    result = unittest.main(argv=["test_fields.py"], exit=False, verbosity=2).result
    failed = len(result.failures) + len(result.errors)
    print(f"fields by openai {openai.__version__} and anthropic {anthropic.__version__} for Python: "
          f"{result.testsRun - failed} passed, {failed} failed", flush=True)
    sys.exit(failed > 0)
