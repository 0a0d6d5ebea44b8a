"""Failures on purpose, as the official openai and anthropic packages for Python meet them.

Usage: test_faults.py BASE_URL, for example http://127.0.0.1:8080/v1
"""

import importlib
import sys
import time
import unittest
import uuid
import warnings

import anthropic
import openai

BASE_URL = sys.argv[1]


def of_transports(name):
    """An exception of the packages below the clients: which of them a client uses is its own choice."""
    found = []
    for package in ("httpx", "httpx2"):
        try:
            found.append(getattr(importlib.import_module(package), name))
        except ImportError:
            pass
    return tuple(found)


READ_TIMEOUT = of_transports("ReadTimeout")
TRANSPORT_ERROR = of_transports("TransportError")
DEFAULT = "One two three four five six seven."


def fault(words):
    return {"x-llmsim-fault": words}


def message():
    """A request that nobody has sent before: attempts are counted for each."""
    return [{"role": "user", "content": f"Hello {uuid.uuid4()}"}]


def client(**options):
    options = {"base_url": BASE_URL, "api_key": "unused", "max_retries": 0, "timeout": 30} | options
    return openai.OpenAI(**options)


def chat(words, model="fast", messages=None, **options):
    stream = options.pop("stream", False)
    with client(**options) as one:
        answer = one.chat.completions.create(
            model=model, messages=messages or message(), stream=stream, extra_headers=fault(words)
        )
        if stream:
            return "".join(chunk.choices[0].delta.content or "" for chunk in answer)
        return answer.choices[0].message.content


class Retries(unittest.TestCase):
    def test_a_client_with_two_retries_survives_two_failures(self):
        for words in ("status=500", "status=503", "status=429", "status=408", "status=409",
                      "reset", "close", "queue_full"):
            words += " first=2"
            if "status" in words:
                words += " retry_after_ms=20"
            self.assertEqual(chat(words, max_retries=2), DEFAULT, words)

    def test_one_retry_is_not_enough_for_two_failures(self):
        with self.assertRaises(openai.InternalServerError):
            chat("status=503 first=2 retry_after_ms=20", max_retries=1)

    def test_it_waits_as_long_as_it_is_told(self):
        # By itself it would come back after half a second at most.
        for words in ("retry_after=1s", "retry_after_ms=1000", "retry_after_date=1s"):
            began = time.monotonic()
            self.assertEqual(chat(f"status=429 first=1 {words}", max_retries=1), DEFAULT)
            self.assertGreaterEqual(time.monotonic() - began, 0.95, words)

    def test_it_does_not_retry_what_it_should_not(self):
        # A second attempt would succeed.
        for words, error in (("status=503 should_retry=false", openai.InternalServerError),
                             ("status=400", openai.BadRequestError)):
            with self.assertRaises(error):
                chat(f"{words} first=1", max_retries=2)
        self.assertEqual(chat("status=400 should_retry=true first=1", max_retries=2), DEFAULT)

    def test_anthropics_client_survives_an_overload(self):
        root = BASE_URL.removesuffix("/v1")
        for retries, words in ((2, "status=529 first=2"), (1, "status=429 first=1")):
            with anthropic.Anthropic(base_url=root, api_key="unused", max_retries=retries) as one:
                answer = one.messages.create(
                    model="fast", max_tokens=100, messages=message(),
                    extra_headers=fault(f"{words} retry_after_ms=20"),
                )
                self.assertEqual(answer.content[0].text, DEFAULT)


class Errors(unittest.TestCase):
    def test_each_status_is_its_exception(self):
        for status, error in ((400, openai.BadRequestError), (401, openai.AuthenticationError),
                              (403, openai.PermissionDeniedError), (404, openai.NotFoundError),
                              (409, openai.ConflictError), (422, openai.UnprocessableEntityError),
                              (429, openai.RateLimitError), (500, openai.InternalServerError),
                              (503, openai.InternalServerError)):
            with self.assertRaises(error) as raised:
                chat(f"status={status} message=\"On purpose.\"")
            self.assertEqual(raised.exception.body["message"], "On purpose.")

    def test_anthropics_errors_have_their_shape(self):
        root = BASE_URL.removesuffix("/v1")
        with anthropic.Anthropic(base_url=root, api_key="unused", max_retries=0) as one:
            for status, kind in ((429, "rate_limit_error"), (529, "overloaded_error")):
                with self.assertRaises(anthropic.APIStatusError) as raised:
                    one.messages.create(model="fast", max_tokens=10, messages=message(),
                                        extra_headers=fault(f"status={status}"))
                self.assertEqual(raised.exception.status_code, status)
                self.assertEqual(raised.exception.body["error"]["type"], kind)

    def test_a_rate_limit_is_told_in_headers_and_then_kept(self):
        messages = message()
        words = f"rpm=2 contains={messages[0]['content'].split()[1]}"
        with client() as one:
            for left in ("1", "0"):
                raw = one.chat.completions.with_raw_response.create(
                    model="fast", messages=messages, extra_headers=fault(words)
                )
                self.assertEqual(raw.headers["x-ratelimit-limit-requests"], "2")
                self.assertEqual(raw.headers["x-ratelimit-remaining-requests"], left)
        with self.assertRaises(openai.RateLimitError) as raised:
            chat(words, messages=messages)
        self.assertEqual(raised.exception.code, "rate_limit_exceeded")


class Bodies(unittest.TestCase):
    def test_a_body_that_breaks_off_is_asked_for_again(self):
        for words in ("stop=3 end=close", "stop=3 end=reset", "truncated_event after=3"):
            self.assertEqual(chat(f"{words} first=2", max_retries=2), DEFAULT, words)
            with self.assertRaises(openai.APIConnectionError, msg=words):
                chat(words)

    def test_a_body_that_stalls_trips_the_timeout(self):
        for words in ("stall=30s after=3", "stop=3 end=silence"):
            with self.assertRaises(openai.APITimeoutError, msg=words):
                chat(words, timeout=0.5)
        self.assertEqual(chat("stall=200ms after=3"), DEFAULT)

    def test_an_answer_that_fails_is_an_internal_error(self):
        for words in ("error_event=openai after=3", "error_event=vllm after=3"):
            with self.assertRaises(openai.InternalServerError, msg=words):
                chat(words)
            self.assertEqual(chat(f"{words} first=1", max_retries=1), DEFAULT)

    def test_a_body_that_is_no_json_raises(self):
        for words in ("malformed_json after=3", "stop=3 end=clean"):
            with self.assertRaises((ValueError, openai.APIError), msg=words):
                chat(words)

    def test_anthropics_client_asks_again_for_a_body_that_breaks_off(self):
        root = BASE_URL.removesuffix("/v1")
        for words in ("stop=3 end=close first=2", "error_event=openai after=3 first=2"):
            with anthropic.Anthropic(base_url=root, api_key="unused", max_retries=2) as one:
                answer = one.messages.create(model="fast", max_tokens=100, messages=message(),
                                             extra_headers=fault(words))
                self.assertEqual(answer.content[0].text, DEFAULT)


class Streams(unittest.TestCase):
    def messages(self, words, timeout=30):
        """What Anthropic's client makes of a stream."""
        root = BASE_URL.removesuffix("/v1")
        options = {"base_url": root, "api_key": "unused", "max_retries": 0, "timeout": timeout}
        with anthropic.Anthropic(**options) as one:
            with one.messages.stream(model="fast", max_tokens=100, messages=message(),
                                     extra_headers=fault(words)) as stream:
                return "".join(stream.text_stream)

    def test_anthropics_streams_stall_fail_and_break_off(self):
        self.assertEqual(self.messages("stall=200ms after=3"), DEFAULT)
        with self.assertRaises((anthropic.APITimeoutError, *READ_TIMEOUT)):
            self.messages("stall=30s after=3", timeout=0.5)
        with self.assertRaises(anthropic.APIStatusError) as raised:
            self.messages("error_event=openai after=3")
        self.assertEqual(raised.exception.body["error"]["type"], "api_error")
        for words in ("stop=3 end=close", "stop=3 end=reset"):
            with self.assertRaises((anthropic.APIConnectionError, *TRANSPORT_ERROR)):
                self.messages(words)

    def test_an_error_in_a_response_is_an_event_of_its_own(self):
        with client() as one:
            events = list(one.responses.create(
                model="fast", input=f"Hello {uuid.uuid4()}", stream=True,
                extra_headers=fault("error_event=openai after=3"),
            ))
            self.assertEqual(events[-1].type, "error")
            self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
            self.assertEqual("".join(event.delta for event in events
                                     if event.type == "response.output_text.delta"),
                             "One two three")

    def test_a_stalled_stream_trips_the_timeout(self):
        with self.assertRaises((openai.APITimeoutError, *READ_TIMEOUT)):
            chat("stall=30s after=3", timeout=0.5, stream=True)
        with self.assertRaises((openai.APITimeoutError, *READ_TIMEOUT)):
            chat("stop=3 end=silence", timeout=0.5, stream=True)
        with self.assertRaises(openai.APITimeoutError):
            chat("hang", timeout=0.5)

    def test_a_stall_that_is_shorter_than_the_timeout_costs_nothing(self):
        self.assertEqual(chat("stall=200ms after=3", stream=True), DEFAULT)

    def test_an_error_event_raises(self):
        for style in ("openai", "vllm"):
            with self.assertRaises(openai.APIError):
                chat(f"error_event={style} after=3", stream=True)

    def test_a_broken_connection_raises(self):
        for words in ("stop=3 end=close", "stop=3 end=reset", "truncated_event after=3"):
            with self.assertRaises((openai.APIConnectionError, *TRANSPORT_ERROR)):
                chat(words, stream=True)

    def test_a_clean_end_in_the_middle_goes_unnoticed_but_for_the_words(self):
        self.assertEqual(chat("stop=3 end=clean", stream=True), "One two three")
        self.assertEqual(chat("no_done", stream=True), DEFAULT)


if __name__ == "__main__":
    warnings.simplefilter("error", ResourceWarning)
    program = unittest.main(argv=sys.argv[:1], exit=False)
    result = program.result
    bad = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - bad} passed, {bad} failed")
    sys.exit(bad > 0)
