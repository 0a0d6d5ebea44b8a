"""The official openai package for Python against a running server.

Usage: test_python.py BASE_URL, for example http://127.0.0.1:8080/v1
"""

import asyncio
import sys
import time
import unittest
import warnings

import openai

BASE_URL = sys.argv[1]
DEFAULT = "One two three four five six seven."
QUOTES = 'She said "no\\yes"\nand\tthen 你好 😀 \u2028 end.'


def client(**options):
    options = {"base_url": BASE_URL, "api_key": "unused", "max_retries": 0, "timeout": 30} | options
    return openai.OpenAI(**options)


def user(text):
    return [{"role": "user", "content": text}]


class Answers(unittest.TestCase):
    def setUp(self):
        self.openai = client()
        self.addCleanup(self.openai.close)

    def chat(self, text="anything", model="fast", **options):
        return self.openai.chat.completions.create(model=model, messages=user(text), **options)

    def test_a_whole_answer(self):
        answer = self.chat()
        self.assertEqual(answer.object, "chat.completion")
        self.assertTrue(answer.id.startswith("chatcmpl-"))
        self.assertEqual(answer.model, "fast")
        self.assertLess(abs(answer.created - time.time()), 60)
        (choice,) = answer.choices
        self.assertEqual(choice.index, 0)
        self.assertEqual(choice.finish_reason, "stop")
        self.assertEqual(choice.message.role, "assistant")
        self.assertEqual(choice.message.content, DEFAULT)
        self.assertIsNone(choice.message.tool_calls)
        self.assertIsNone(choice.message.refusal)
        usage = answer.usage
        # "anything" is one token, with the template's 4 around it and 3 behind it.
        self.assertEqual(usage.prompt_tokens, 8)
        # Seven words and the full stop.
        self.assertEqual(usage.completion_tokens, 8)
        self.assertEqual(usage.total_tokens, 16)
        self.assertEqual(usage.prompt_tokens_details.cached_tokens, 0)
        self.assertEqual(usage.completion_tokens_details.reasoning_tokens, 0)
        self.assertTrue(answer._request_id)

    def test_a_stream_is_the_same_text_in_pieces(self):
        for model in ("fast", "org/paced", "single"):
            chunks = list(self.chat("quotes", model=model, stream=True))
            self.assertEqual({chunk.id for chunk in chunks}, {chunks[0].id})
            self.assertEqual({chunk.model for chunk in chunks}, {model})
            self.assertEqual({chunk.created for chunk in chunks}, {chunks[0].created})
            self.assertEqual({chunk.object for chunk in chunks}, {"chat.completion.chunk"})
            self.assertTrue(all(len(chunk.choices) == 1 for chunk in chunks))
            deltas = [chunk.choices[0].delta for chunk in chunks]
            self.assertEqual((deltas[0].role, deltas[0].content), ("assistant", ""))
            self.assertTrue(all(delta.role is None for delta in deltas[1:]))
            self.assertEqual("".join(delta.content or "" for delta in deltas), QUOTES)
            reasons = [chunk.choices[0].finish_reason for chunk in chunks]
            self.assertEqual(reasons[-1], "stop")
            self.assertTrue(all(reason is None for reason in reasons[:-1]))
            self.assertTrue(all(chunk.usage is None for chunk in chunks))
            whole = self.chat("quotes", model=model).choices[0].message.content
            self.assertEqual(whole, QUOTES)

    def test_one_chunk_per_token_and_usage_at_the_end(self):
        chunks = list(self.chat(
            "[hundred]", model="org/paced", stream=True, stream_options={"include_usage": True}
        ))
        *rest, last = chunks
        self.assertEqual(last.choices, [])
        self.assertEqual(last.usage.completion_tokens, 100)
        self.assertTrue(all(chunk.usage is None for chunk in rest))
        self.assertEqual(sum(bool(chunk.choices[0].delta.content) for chunk in rest), 100)

    def test_the_stream_helper_puts_the_answer_together(self):
        with self.openai.chat.completions.stream(model="fast", messages=user("quotes")) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion()
        self.assertIn("content.delta", kinds)
        self.assertIn("content.done", kinds)
        self.assertEqual(final.choices[0].message.content, QUOTES)
        self.assertEqual(final.choices[0].finish_reason, "stop")

    def test_limits_cut_the_answer(self):
        for field in ("max_tokens", "max_completion_tokens"):
            answer = self.chat("[hundred]", **{field: 7})
            self.assertEqual(answer.choices[0].finish_reason, "length")
            self.assertEqual(answer.usage.completion_tokens, 7)
        both = self.chat("[hundred]", max_tokens=3, max_completion_tokens=5)
        self.assertEqual(both.usage.completion_tokens, 5)

    def test_vllms_fields_in_the_extra_body(self):
        answer = self.chat(max_tokens=50, extra_body={"ignore_eos": True, "top_k": 20})
        self.assertEqual(answer.usage.completion_tokens, 50)
        self.assertEqual(answer.choices[0].finish_reason, "length")
        answer = self.chat(extra_body={"min_tokens": 20})
        self.assertEqual(answer.usage.completion_tokens, 20)
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        answer = self.chat(extra_body={"some_gateways_own_field": {"a": 1}})
        self.assertEqual(answer.choices[0].message.content, DEFAULT)

    def test_a_stop_string_cuts_the_answer(self):
        for stop in ("e fo", ["nothing", "e fo"]):
            answer = self.chat(stop=stop)
            self.assertEqual(answer.choices[0].message.content, "One two thre")
            self.assertEqual(answer.choices[0].finish_reason, "stop")
            # The token that completes it counts.
            self.assertEqual(answer.usage.completion_tokens, 4)

    def test_a_conversation(self):
        def hold():
            messages = [{"role": "system", "content": "You know the classics."}]
            said, prompts = [], []
            for text in ("Hello!", "Which book has a white whale?", "And now?"):
                messages.append({"role": "user", "content": text})
                answer = self.openai.chat.completions.create(model="fast", messages=messages)
                message = answer.choices[0].message
                messages.append(message)
                said.append(message.content)
                prompts.append(answer.usage.prompt_tokens)
            return said, prompts

        said, prompts = hold()
        self.assertEqual(said, [
            "Hi there. What would you like to talk about?", "Call me Ishmael.", DEFAULT
        ])
        self.assertEqual(prompts, sorted(prompts))
        self.assertEqual((said, prompts), hold())

    def test_the_seed_decides_and_is_repeatable(self):
        rolls = {seed: self.chat("roll", seed=seed).choices[0].message.content for seed in range(40)}
        self.assertGreater(len(set(rolls.values())), 3)
        for seed, roll in rolls.items():
            self.assertEqual(self.chat("roll", seed=seed).choices[0].message.content, roll)

    def test_text_parts_are_joined(self):
        parts = [{"type": "text", "text": "quo"}, {"type": "text", "text": "tes"}]
        answer = self.openai.chat.completions.create(
            model="fast", messages=[{"role": "user", "content": parts}]
        )
        self.assertEqual(answer.choices[0].message.content, QUOTES)

    def test_headers_tell_the_request_and_the_time(self):
        raw = self.openai.chat.completions.with_raw_response.create(
            model="fast", messages=user("x"), extra_headers={"X-Request-Id": "mine-1"}
        )
        self.assertEqual(raw.headers["x-request-id"], "mine-1")
        self.assertTrue(raw.headers["openai-processing-ms"].isdigit())
        self.assertEqual(raw.headers["content-type"], "application/json")
        self.assertEqual(raw.headers["access-control-allow-origin"], "*")
        self.assertEqual(raw.parse().id, "chatcmpl-mine-1")
        first, second = self.chat(), self.chat()
        self.assertNotEqual(first._request_id, second._request_id)
        self.assertNotEqual(first.id, second.id)

    def test_models_are_listed_and_retrieved(self):
        names = [model.id for model in self.openai.models.list()]
        self.assertEqual(names, ["fast", "org/paced", "single", "short"])
        for name in names:
            model = self.openai.models.retrieve(name)
            self.assertEqual((model.id, model.object), (name, "model"))
        self.assertEqual(self.openai.models.retrieve("short").max_model_len, 64)
        with self.assertRaises(openai.NotFoundError) as caught:
            self.openai.models.retrieve("gpt-9")
        self.assertEqual(caught.exception.code, "model_not_found")

    def test_who_leaves_makes_room(self):
        # The model serves one request at a time: 50,000 tokens would block it for minutes.
        for _ in range(3):
            stream = self.chat("[long]", model="single", stream=True)
            read = [next(stream) for _ in range(5)]
            self.assertEqual(len(read), 5)
            stream.close()
            answer = self.chat(model="single")
            self.assertEqual(answer.choices[0].message.content, DEFAULT)

    def test_a_hundred_streams_at_once(self):
        async def one(openai_, number):
            text = "quotes" if number % 2 else "anything"
            stream = await openai_.chat.completions.create(
                model="org/paced", messages=user(text), stream=True
            )
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
            return "".join(pieces)

        async def all_of_them():
            async with openai.AsyncOpenAI(
                base_url=BASE_URL, api_key="unused", max_retries=0, timeout=60
            ) as openai_:
                return await asyncio.gather(*(one(openai_, number) for number in range(100)))

        self.assertEqual(asyncio.run(all_of_them()), [DEFAULT, QUOTES] * 50)

    def test_a_timeout_of_the_client_is_its_own(self):
        with self.assertRaises(openai.APITimeoutError):
            self.openai.with_options(timeout=0.3).chat.completions.create(
                model="org/paced", messages=user("[long]")
            )
        self.assertEqual(self.chat().choices[0].message.content, DEFAULT)


class Refusals(unittest.TestCase):
    def setUp(self):
        self.openai = client()
        self.addCleanup(self.openai.close)

    def refused(self, kind, status, param, code, words, **request):
        request = {"model": "fast", "messages": user("x")} | request
        for stream in ({}, {"stream": True}):
            with self.assertRaises(kind) as caught:
                self.openai.chat.completions.create(**(request | stream))
            error = caught.exception
            self.assertIs(type(error), kind)
            self.assertEqual(error.status_code, status)
            self.assertEqual(error.param, param)
            self.assertEqual(error.code, code)
            self.assertEqual(error.type, "invalid_request_error")
            self.assertIn(words, error.message)
            self.assertTrue(error.request_id)

    def test_an_unknown_model(self):
        self.refused(openai.NotFoundError, 404, "model", "model_not_found", "gpt-9", model="gpt-9")

    def test_a_missing_model(self):
        self.refused(
            openai.BadRequestError, 400, None, None, "you must provide a model", model=""
        )

    def test_bad_values(self):
        bad = openai.BadRequestError
        self.refused(bad, 400, "messages", "empty_array", "messages", messages=[])
        self.refused(
            bad, 400, "temperature", "decimal_above_max_value", "<= 2", temperature=2.5
        )
        self.refused(bad, 400, "max_tokens", "integer_below_min_value", ">= 1", max_tokens=0)
        self.refused(bad, 400, "n", "integer_below_min_value", ">= 1", n=0)
        self.refused(
            bad, 400, "messages[0].role", "invalid_value", "'user'",
            messages=[{"role": "robot", "content": "x"}],
        )
        self.refused(
            bad, 400, "messages[0].content", "invalid_type", "an integer",
            messages=[{"role": "user", "content": 5}],
        )
        self.refused(
            bad, 400, "messages[0].content[0].type", "invalid_value", "image_url",
            messages=[{"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": "https://example.org/x.png"}}
            ]}],
        )

    def test_options_without_a_stream(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.openai.chat.completions.create(
                model="fast", messages=user("x"), stream_options={"include_usage": True}
            )
        self.assertEqual(caught.exception.param, "stream_options")

    def test_a_prompt_over_the_context(self):
        self.refused(
            openai.BadRequestError, 400, "messages", "context_length_exceeded",
            "This model's maximum context length is 64 tokens", model="short",
            messages=user("word " * 100),
        )
        self.refused(
            openai.BadRequestError, 400, "messages", "context_length_exceeded",
            "This model's maximum context length is 64 tokens", model="short", max_tokens=60,
        )

    def status(self, status, kind, call):
        with self.assertRaises(kind) as caught:
            call()
        self.assertIs(type(caught.exception), kind)
        self.assertEqual(caught.exception.status_code, status)
        self.assertIn("message", caught.exception.body)
        return caught.exception

    def test_an_unknown_route(self):
        error = self.status(
            404, openai.NotFoundError,
            lambda: self.openai.post("/chat/nowhere", cast_to=object, body={}),
        )
        self.assertEqual(error.code, "unknown_url")

    def test_a_wrong_method(self):
        error = self.status(
            405, openai.APIStatusError,
            lambda: self.openai.get("/chat/completions", cast_to=object),
        )
        self.assertIn("POST", error.response.headers["allow"])

    def test_a_body_over_the_limit(self):
        self.status(
            413, openai.APIStatusError,
            lambda: self.openai.chat.completions.create(
                model="fast", messages=user("x" * 2_000_000)
            ),
        )

    def test_a_body_that_is_no_json(self):
        for content_type, status, kind in (
            ("application/json", 400, openai.BadRequestError),
            ("text/plain", 415, openai.APIStatusError),
        ):
            self.status(
                status, kind,
                lambda content_type=content_type: self.openai.post(
                    "/chat/completions", cast_to=object, content=b"hello",
                    options={"headers": {"Content-Type": content_type}},
                ),
            )

    def test_the_server_serves_on(self):
        for _ in range(20):
            with self.assertRaises(openai.BadRequestError):
                self.openai.chat.completions.create(model="fast", messages=[])
        answer = self.openai.chat.completions.create(model="fast", messages=user("x"))
        self.assertEqual(answer.choices[0].message.content, DEFAULT)


if __name__ == "__main__":
    warnings.simplefilter("error", ResourceWarning)
    result = unittest.main(argv=["test_python.py"], exit=False, verbosity=2).result
    failed = len(result.failures) + len(result.errors)
    print(f"openai for Python {openai.__version__}: "
          f"{result.testsRun - failed} passed, {failed} failed", flush=True)
    sys.exit(failed > 0)
