"""Failures on purpose, as LiteLLM and LangChain meet them.

Usage: test_fault_frameworks.py BASE_URL, of a server with --admin: how long a client waited is read
from the times at which the server was hit, not from a clock of the test.
"""

import json
import os
import sys
import unittest
import urllib.request
import uuid
import warnings
from importlib.metadata import version

# LiteLLM warns about its own types at length.
warnings.simplefilter("ignore")
# Nothing is fetched: prices of models come with the package.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
import openai
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

BASE_URL = sys.argv[1]
ROOT_URL = BASE_URL.removesuffix("/v1")
DEFAULT = "One two three four five six seven."


def unique():
    """A message that nobody has sent before: attempts are counted for each."""
    return f"Hello {uuid.uuid4()}"


def fault(words):
    return {"x-llmsim-fault": words}


def hits(text):
    """When rules with `text` in them were hit, in seconds of the server's clock, in order."""
    with urllib.request.urlopen(f"{ROOT_URL}/admin/faults") as answer:
        recent = json.load(answer)["recent"]
    return sorted(hit["seconds"] for hit in recent if text in hit["rule"])


class Litellm(unittest.TestCase):
    def ask(self, words, text=None, route="openai", **options):
        url = ROOT_URL if route == "anthropic" else BASE_URL
        options = {"api_base": url, "api_key": "unused", "max_retries": 0, "timeout": 30} | options
        return litellm.completion(
            model=f"{route}/fast", messages=[{"role": "user", "content": text or unique()}],
            max_tokens=100, extra_headers=fault(words), **options
        )

    def read(self, words, **options):
        chunks = self.ask(words, stream=True, **options)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    def test_a_client_with_two_retries_survives_two_failures(self):
        for words in ("status=500", "status=503", "status=429", "reset", "close"):
            wait = " retry_after_ms=20" if "status" in words else ""
            text = unique()
            answer = self.ask(f"{words}{wait} first=2 contains={text[6:]}", text, max_retries=2)
            self.assertEqual(answer.choices[0].message.content, DEFAULT, words)
            self.assertEqual(len(hits(text[6:])), 2, words)

    def test_the_router_survives_two_failures_and_waits_as_long_as_it_is_told(self):
        parameters = {"model": "openai/fast", "api_base": BASE_URL, "api_key": "unused"}
        models = [{"model_name": "any", "litellm_params": parameters | {"max_retries": 0}}]
        router = litellm.Router(model_list=models, num_retries=2, disable_cooldowns=True)
        text = unique()
        answer = router.completion(
            model="any", messages=[{"role": "user", "content": text}],
            extra_headers=fault(f"status=429 retry_after=1s first=2 contains={text[6:]}"),
        )
        self.assertEqual(answer.choices[0].message.content, DEFAULT)
        first, second = hits(text[6:])
        self.assertGreaterEqual(second - first, 0.99)

    def test_each_status_is_litellms_own_exception(self):
        for status, error in ((400, litellm.BadRequestError), (401, litellm.AuthenticationError),
                              (404, litellm.NotFoundError), (429, litellm.RateLimitError),
                              (500, litellm.InternalServerError)):
            for route in ("openai", "anthropic"):
                with self.assertRaises(error, msg=f"{status} {route}"):
                    self.ask(f"status={status}", route=route)
        with self.assertRaises(litellm.ServiceUnavailableError):
            self.ask("status=503")

    def test_rate_limit_headers_are_passed_on(self):
        text = unique()
        words = f"rpm=2 contains={text[6:]}"
        answer = self.ask(words, text)
        headers = answer._hidden_params["additional_headers"]
        self.assertEqual(int(headers["x-ratelimit-limit-requests"]), 2)
        self.assertEqual(int(headers["x-ratelimit-remaining-requests"]), 1)
        self.ask(words, text)
        with self.assertRaises(litellm.RateLimitError) as raised:
            self.ask(words, text)
        told = raised.exception.litellm_response_headers or raised.exception.response.headers
        self.assertEqual(told["x-ratelimit-remaining-requests"], "0")

    def test_a_stalled_stream_and_no_answer_trip_the_timeout(self):
        with self.assertRaises(litellm.Timeout):
            self.ask("hang", timeout=0.5)
        with self.assertRaises((litellm.Timeout, litellm.APIConnectionError)):
            self.read("stall=30s after=3", timeout=0.5)

    def test_an_error_in_mid_stream_raises(self):
        for words in ("error_event=openai after=3", "error_event=vllm after=3"):
            with self.assertRaises(openai.APIError, msg=words):
                self.read(words)
        with self.assertRaises(openai.APIError):
            self.read("error_event=openai after=3", route="anthropic")

    def test_a_broken_connection_raises(self):
        for words in ("stop=3 end=close", "stop=3 end=reset", "truncated_event after=3"):
            with self.assertRaises(openai.APIError, msg=words):
                self.read(words)


class Langchain(unittest.TestCase):
    def chat(self, words, **options):
        options = {"max_retries": 0, "timeout": 30} | options
        return ChatOpenAI(base_url=BASE_URL, api_key="unused", model="fast",
                          default_headers=fault(words), **options)

    def test_a_client_with_two_retries_survives_two_failures(self):
        for options in ({}, {"use_responses_api": True}):
            for words in ("status=500 retry_after_ms=20", "reset", "close"):
                chat = self.chat(f"{words} first=2", max_retries=2, **options)
                self.assertEqual(chat.invoke(unique()).text, DEFAULT, words)

    def test_it_waits_as_long_as_it_is_told(self):
        text = unique()
        words = f"status=429 retry_after=1s first=2 contains={text[6:]}"
        self.assertEqual(self.chat(words, max_retries=2).invoke(text).content, DEFAULT)
        first, second = hits(text[6:])
        self.assertGreaterEqual(second - first, 0.99)

    def test_a_runnables_own_retry_survives_two_failures(self):
        chat = self.chat("status=503 first=2").with_retry(
            retry_if_exception_type=(openai.APIError,), wait_exponential_jitter=False,
            stop_after_attempt=3,
        )
        self.assertEqual(chat.invoke(unique()).content, DEFAULT)

    def test_a_stalled_stream_and_no_answer_trip_the_timeout(self):
        with self.assertRaises(openai.APITimeoutError):
            self.chat("hang", timeout=0.5).invoke(unique())
        with self.assertRaises(Exception) as raised:
            list(self.chat("stall=30s after=3", timeout=0.5).stream(unique()))
        self.assertIn("Timeout", type(raised.exception).__name__)

    def test_an_error_in_mid_stream_raises(self):
        for words in ("error_event=openai after=3", "error_event=vllm after=3"):
            with self.assertRaises(openai.APIError, msg=words):
                list(self.chat(words).stream(unique()))

    def test_a_rate_limit_is_its_exception(self):
        text = unique()
        chat = self.chat(f"rpm=1 contains={text[6:]}")
        chat.invoke(text)
        with self.assertRaises(openai.RateLimitError) as raised:
            chat.invoke(text)
        headers = raised.exception.response.headers
        self.assertEqual(headers["x-ratelimit-remaining-requests"], "0")
        self.assertGreater(int(headers["retry-after"]), 0)

    def test_embeddings_are_retried(self):
        embeddings = OpenAIEmbeddings(
            base_url=BASE_URL, api_key="unused", model="fast", check_embedding_ctx_length=False,
            max_retries=2, default_headers=fault("status=500 retry_after_ms=20 first=2"),
        )
        self.assertEqual(len(embeddings.embed_query(unique())), 1536)


if __name__ == "__main__":
    litellm.suppress_debug_info = True
    result = unittest.main(argv=sys.argv[:1], exit=False, warnings="ignore").result
    failed = len(result.failures) + len(result.errors)
    print(f"faults, litellm {version('litellm')} and langchain-openai "
          f"{version('langchain-openai')}: {result.testsRun - failed} passed, {failed} failed",
          flush=True)
    sys.exit(failed > 0)
