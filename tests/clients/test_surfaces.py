"""The official openai and anthropic packages for Python on everything that is not a chat completion.

Usage: test_surfaces.py BASE_URL KEYED_URL, for example http://127.0.0.1:8080/v1; the server at
KEYED_URL wants the API key "secret".
"""

import json
import math
import sys
import unittest
import warnings

import anthropic
import openai
from pydantic import BaseModel, Field

BASE_URL, KEYED_URL = sys.argv[1:3]
DEFAULT = "One two three four five six seven."
QUOTES = 'She said "no\\yes"\nand\tthen 你好 😀 \u2028 end.'
OPTIONS = {"max_retries": 0, "timeout": 30}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


class Person(BaseModel):
    name: str
    age: int = Field(ge=18, le=99)
    tags: list[str]



class Openai(unittest.TestCase):
    def setUp(self):
        self.openai = openai.OpenAI(base_url=BASE_URL, api_key="unused", **OPTIONS)
        self.addCleanup(self.openai.close)


class Completions(Openai):
    def complete(self, prompt="anything", model="fast", **options):
        return self.openai.completions.create(model=model, prompt=prompt, **options)

    def test_a_whole_answer(self):
        answer = self.complete()
        self.assertEqual(answer.object, "text_completion")
        self.assertTrue(answer.id.startswith("cmpl-"))
        (choice,) = answer.choices
        self.assertEqual((choice.text, choice.finish_reason), (DEFAULT, "stop"))
        self.assertEqual((answer.usage.prompt_tokens, answer.usage.completion_tokens), (1, 8))

    def test_a_stream_is_the_same_text_in_pieces(self):
        for model in ("fast", "org/paced", "single"):
            chunks = list(self.complete("quotes", model=model, stream=True, max_tokens=99))
            self.assertEqual("".join(chunk.choices[0].text for chunk in chunks), QUOTES)
            self.assertEqual(chunks[-1].choices[0].finish_reason, "stop")

    def test_prompts_and_choices(self):
        answer = self.complete(["quotes", "anything"], n=2, max_tokens=99)
        self.assertEqual([choice.index for choice in answer.choices], [0, 1, 2, 3])
        self.assertEqual([choice.text for choice in answer.choices], [QUOTES] * 2 + [DEFAULT] * 2)

    def test_scores(self):
        logprobs = self.complete(logprobs=2, max_tokens=3).choices[0].logprobs
        self.assertEqual(logprobs.tokens, ["One", " two", " three"])
        self.assertEqual(logprobs.text_offset, [0, 3, 7])
        self.assertTrue(all(score < 0 for score in logprobs.token_logprobs))
        self.assertTrue(all(len(top) == 2 for top in logprobs.top_logprobs))

    def test_echo_stop_and_limits(self):
        answer = self.complete("Say: ", echo=True, stop="e fo")
        self.assertEqual(answer.choices[0].text, "Say: One two thre")
        answer = self.complete("[hundred]")
        self.assertEqual(answer.usage.completion_tokens, 16)
        self.assertEqual(answer.choices[0].finish_reason, "length")

    def test_token_ids(self):
        answer = self.complete([[1, 2, 3], [4]], max_tokens=1)
        self.assertEqual(answer.usage.prompt_tokens, 4)
        self.assertEqual(len(answer.choices), 2)

    def test_refusals(self):
        with self.assertRaises(openai.NotFoundError):
            self.complete(model="gpt-9")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete("word " * 100, model="short")
        self.assertEqual(caught.exception.code, "context_length_exceeded")


class Embeddings(Openai):
    def embed(self, text, **options):
        answer = self.openai.embeddings.create(model="fast", input=text, **options)
        return [item.embedding for item in answer.data]

    def test_vectors_are_the_same_in_base64_and_as_numbers(self):
        # The package asks for base64 by itself, and decodes it.
        (binary,) = self.embed("The rest is silence.")
        (numbers,) = self.embed("The rest is silence.", encoding_format="float")
        self.assertEqual(len(binary), 1536)
        self.assertTrue(all(abs(a - b) < 1e-6 for a, b in zip(binary, numbers)))
        self.assertAlmostEqual(math.hypot(*numbers), 1, places=5)

    def test_a_search_finds_the_text_with_the_same_words(self):
        texts = ["a white whale in the sea", "revenue grew by nine percent", "how to bake bread"]
        vectors = self.embed(texts, dimensions=512)
        self.assertEqual({len(vector) for vector in vectors}, {512})
        (query,) = self.embed("Which whale is white?", dimensions=512)
        scores = [sum(a * b for a, b in zip(query, vector)) for vector in vectors]
        self.assertEqual(scores.index(max(scores)), 0)

    def test_usage_and_refusals(self):
        answer = self.openai.embeddings.create(model="fast", input=["one two", "three"])
        self.assertEqual((answer.usage.prompt_tokens, answer.usage.total_tokens), (3, 3))
        self.assertEqual([item.index for item in answer.data], [0, 1])
        with self.assertRaises(openai.BadRequestError):
            self.embed("")


class Responses(Openai):
    def respond(self, text="anything", model="fast", **options):
        return self.openai.responses.create(model=model, input=text, **options)

    def test_a_whole_response(self):
        answer = self.respond(instructions="Be brief.", metadata={"a": "b"})
        self.assertEqual((answer.output_text, answer.status), (DEFAULT, "completed"))
        self.assertEqual((answer.instructions, answer.metadata), ("Be brief.", {"a": "b"}))
        # 8, and the instructions: 3 tokens with 4 around them.
        self.assertEqual((answer.usage.input_tokens, answer.usage.output_tokens), (15, 8))

    def test_a_stream_has_all_events(self):
        for model in ("fast", "org/paced", "single"):
            events = list(self.respond("quotes", model=model, stream=True))
            self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
            self.assertEqual(events[0].type, "response.created")
            deltas = [it.delta for it in events if it.type == "response.output_text.delta"]
            self.assertEqual("".join(deltas), QUOTES)
            self.assertEqual(events[-1].type, "response.completed")
            self.assertEqual(events[-1].response.output_text, QUOTES)

    def test_the_stream_helper_puts_the_response_together(self):
        with self.openai.responses.stream(model="fast", input="quotes") as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_response()
        self.assertIn("response.output_text.delta", kinds)
        self.assertEqual(final.output_text, QUOTES)

    def test_a_limit_leaves_it_incomplete(self):
        answer = self.respond("[hundred]", max_output_tokens=20)
        self.assertEqual(answer.status, "incomplete")
        self.assertEqual(answer.incomplete_details.reason, "max_output_tokens")

    def test_a_conversation_by_its_last_response(self):
        first = self.respond("Hello!")
        self.assertEqual(self.openai.responses.retrieve(first.id), first)
        second = self.respond("Which book has a white whale?", previous_response_id=first.id)
        self.assertEqual(second.output_text, "Call me Ishmael.")
        self.assertGreater(second.usage.input_tokens, first.usage.total_tokens)
        self.openai.responses.delete(first.id)
        with self.assertRaises(openai.NotFoundError):
            self.openai.responses.retrieve(first.id)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.respond(previous_response_id=first.id)
        self.assertEqual(caught.exception.code, "previous_response_not_found")


    def test_tools_and_their_results(self):
        tools = [{"type": "function", "name": "get_weather", "parameters": CITY, "strict": True}]
        first = self.respond("weather?", tools=tools)
        (call,) = first.output
        self.assertEqual((call.type, call.name), ("function_call", "get_weather"))
        self.assertEqual(json.loads(call.arguments), {"city": "Oslo"})
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "20 degrees"}
        second = self.respond([result], tools=tools, previous_response_id=first.id)
        self.assertEqual(second.output_text, "It is 20 degrees in Oslo.")
        with self.openai.responses.stream(model="fast", input="weather?", tools=tools) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_response()
        self.assertIn("response.function_call_arguments.delta", kinds)
        self.assertEqual(final.output[0].arguments, call.arguments)

    def test_a_structured_answer(self):
        answer = self.openai.responses.parse(model="fast", input="anything", text_format=Person)
        self.assertIsInstance(answer.output_parsed, Person)
        chat = self.openai.chat.completions.parse(
            model="fast", messages=[{"role": "user", "content": "x"}], response_format=Person
        )
        self.assertIsInstance(chat.choices[0].message.parsed, Person)

    def test_reasoning_and_refusals(self):
        answer = self.respond("think", reasoning={"summary": "auto"})
        thought, said = answer.output
        self.assertEqual(thought.summary[0].text, "Hm, let me see.")
        self.assertEqual(said.content[0].text, "Yes.")
        self.assertGreater(answer.usage.output_tokens_details.reasoning_tokens, 0)
        events = self.respond("think", reasoning={"summary": "auto"}, stream=True)
        deltas = [it.delta for it in events if it.type == "response.reasoning_summary_text.delta"]
        self.assertEqual("".join(deltas), "Hm, let me see.")
        refused = self.respond("refuse").output[0].content[0]
        self.assertEqual((refused.type, refused.refusal), ("refusal", "I cannot help with that."))


class Messages(unittest.TestCase):
    def setUp(self):
        # The package puts /v1 before its paths itself.
        url = BASE_URL.removesuffix("/v1")
        self.anthropic = anthropic.Anthropic(base_url=url, api_key="unused", **OPTIONS)
        self.addCleanup(self.anthropic.close)

    def ask(self, text="anything", model="fast", max_tokens=1000, **options):
        messages = [{"role": "user", "content": text}]
        return self.anthropic.messages.create(
            model=model, max_tokens=max_tokens, messages=messages, **options
        )

    def test_a_whole_message(self):
        answer = self.ask(system="Be brief.")
        self.assertEqual((answer.type, answer.role, answer.model), ("message", "assistant", "fast"))
        (block,) = answer.content
        self.assertEqual((block.type, block.text), ("text", DEFAULT))
        self.assertEqual(answer.stop_reason, "end_turn")
        self.assertEqual((answer.usage.input_tokens, answer.usage.output_tokens), (15, 8))
        self.assertTrue(answer._request_id)

    def test_the_stream_helper_puts_the_message_together(self):
        for model in ("fast", "org/paced", "single"):
            with self.anthropic.messages.stream(
                model=model, max_tokens=99, messages=[{"role": "user", "content": "quotes"}]
            ) as stream:
                text = "".join(stream.text_stream)
                final = stream.get_final_message()
            self.assertEqual(text, QUOTES)
            self.assertEqual(final.content[0].text, QUOTES)
            self.assertEqual(final.stop_reason, "end_turn")
            self.assertGreater(final.usage.output_tokens, 5)

    def test_events_come_in_their_order(self):
        kinds = [event.type for event in self.ask(stream=True)]
        self.assertEqual(kinds[:2], ["message_start", "content_block_start"])
        self.assertEqual(kinds[-3:], ["content_block_stop", "message_delta", "message_stop"])
        self.assertEqual(kinds.count("content_block_delta"), 8)

    def test_limits_and_stop_sequences(self):
        self.assertEqual(self.ask("[hundred]", max_tokens=7).stop_reason, "max_tokens")
        answer = self.ask(stop_sequences=["e fo"])
        self.assertEqual((answer.stop_reason, answer.stop_sequence), ("stop_sequence", "e fo"))
        self.assertEqual(answer.content[0].text, "One two thre")

    def test_tools_and_their_results(self):
        tools = [{"name": "get_weather", "description": "Tells.", "input_schema": CITY}]
        first = self.ask("weather?", tools=tools)
        self.assertEqual(first.stop_reason, "tool_use")
        (call,) = first.content
        self.assertEqual((call.name, call.input), ("get_weather", {"city": "Oslo"}))
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "20 degrees"}
        second = self.anthropic.messages.create(
            model="fast", max_tokens=99, tools=tools, messages=[
                {"role": "user", "content": "weather?"},
                {"role": "assistant", "content": first.content},
                {"role": "user", "content": [result]},
            ]
        )
        self.assertEqual(second.content[0].text, "It is 20 degrees in Oslo.")
        with self.anthropic.messages.stream(
            model="fast", max_tokens=99, tools=tools,
            messages=[{"role": "user", "content": "weather?"}],
        ) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_message()
        self.assertIn("input_json", kinds)
        self.assertEqual(final.content[0].input, {"city": "Oslo"})
        forced = self.ask(tools=tools, tool_choice={"type": "tool", "name": "get_weather"})
        self.assertEqual(set(forced.content[0].input), {"city"})

    def test_thinking(self):
        answer = self.ask("think", thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000)
        self.assertEqual([block.type for block in answer.content], ["thinking", "text"])
        self.assertEqual(answer.content[0].thinking, "Hm, let me see.")
        self.assertEqual(self.ask("refuse").stop_reason, "refusal")

    def test_tokens_are_counted(self):
        messages = [{"role": "user", "content": "anything"}]
        count = self.anthropic.messages.count_tokens(model="fast", messages=messages)
        self.assertEqual(count.input_tokens, 8)

    def test_refusals(self):
        with self.assertRaises(anthropic.NotFoundError) as caught:
            self.ask(model="claude-9")
        self.assertEqual(caught.exception.body["error"]["type"], "not_found_error")
        self.assertTrue(caught.exception.request_id)
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.ask(extra_body={"temperature": 3})
        self.assertIn("temperature:", caught.exception.message)
        with self.assertRaises(anthropic.RequestTooLargeError):
            self.ask("x" * 2_000_000)


class Keys(unittest.TestCase):
    def test_openai_without_the_key(self):
        for call in (
            lambda it: it.completions.create(model="fast", prompt="x"),
            lambda it: it.embeddings.create(model="fast", input="x"),
            lambda it: it.responses.create(model="fast", input="x"),
            lambda it: it.models.list(),
        ):
            with openai.OpenAI(base_url=KEYED_URL, api_key="wrong", **OPTIONS) as client:
                with self.assertRaises(openai.AuthenticationError) as caught:
                    call(client)
                self.assertEqual(caught.exception.code, "invalid_api_key")
            with openai.OpenAI(base_url=KEYED_URL, api_key="secret", **OPTIONS) as client:
                call(client)

    def test_anthropic_without_the_key(self):
        url = KEYED_URL.removesuffix("/v1")
        ask = {"model": "fast", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
        with anthropic.Anthropic(base_url=url, api_key="wrong", **OPTIONS) as client:
            with self.assertRaises(anthropic.AuthenticationError):
                client.messages.create(**ask)
        for key in ({"api_key": "secret"}, {"auth_token": "secret", "api_key": None}):
            with anthropic.Anthropic(base_url=url, **key, **OPTIONS) as client:
                client.messages.create(**ask)


if __name__ == "__main__":
    warnings.simplefilter("error", ResourceWarning)
    result = unittest.main(argv=["test_surfaces.py"], exit=False, verbosity=2).result
    failed = len(result.failures) + len(result.errors)
    print(f"openai {openai.__version__} and anthropic {anthropic.__version__} for Python: "
          f"{result.testsRun - failed} passed, {failed} failed", flush=True)
    sys.exit(failed > 0)
