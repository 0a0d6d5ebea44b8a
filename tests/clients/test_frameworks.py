"""LiteLLM and LangChain against a running server.

Usage: test_frameworks.py BASE_URL KEYED_URL, as for test_surfaces.py.
"""

import json
import os
import sys
import unittest
import warnings
from importlib.metadata import version

# LiteLLM warns about its own types at length.
warnings.simplefilter("ignore")
# Nothing is fetched: prices of models come with the package.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from pydantic import BaseModel, Field

BASE_URL, KEYED_URL = sys.argv[1:3]
ROOT_URL = BASE_URL.removesuffix("/v1")
DEFAULT = "One two three four five six seven."
QUOTES = 'She said "no\\yes"\nand\tthen 你好 😀 \u2028 end.'


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


class Person(BaseModel):
    """Somebody."""

    name: str
    age: int = Field(ge=18, le=99)


@tool
def get_weather(city: str) -> str:
    """Tells the weather."""
    return f"20 degrees in {city}"


def user(text):
    return [{"role": "user", "content": text}]


class Litellm(unittest.TestCase):
    def ask(self, text="anything", route="openai", model="fast", **options):
        options = {"api_base": BASE_URL, "api_key": "unused", "max_retries": 0} | options
        return litellm.completion(model=f"{route}/{model}", messages=user(text), **options)

    def test_a_chat_on_both_routes(self):
        for route in ("openai", "hosted_vllm"):
            answer = self.ask(route=route)
            self.assertEqual(answer.choices[0].message.content, DEFAULT)
            self.assertEqual(answer.usage.total_tokens, 16)
            chunks = list(self.ask("quotes", route=route, stream=True))
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            self.assertEqual(text, QUOTES)

    def test_anthropics_messages(self):
        answer = self.ask(route="anthropic", api_base=ROOT_URL, max_tokens=99)
        self.assertEqual(answer.choices[0].message.content, DEFAULT)
        chunks = self.ask("quotes", "anthropic", api_base=ROOT_URL, max_tokens=99, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        self.assertEqual(text, QUOTES)

    def test_text_completions_embeddings_and_responses(self):
        options = {"api_base": BASE_URL, "api_key": "unused"}
        text = litellm.text_completion(
            model="text-completion-openai/fast", prompt="anything", **options
        )
        self.assertEqual(text.choices[0].text, DEFAULT)
        vectors = litellm.embedding(model="openai/fast", input=["a b", "c"], **options)
        self.assertEqual([len(item["embedding"]) for item in vectors.data], [1536, 1536])
        response = litellm.responses(model="openai/fast", input="anything", **options)
        self.assertEqual(response.output[0].content[0].text, DEFAULT)

    def test_tools_on_all_routes(self):
        function = {"name": "get_weather", "description": "Tells.", "parameters": CITY}
        tools = [{"type": "function", "function": function}]
        for route, url in (("openai", BASE_URL), ("hosted_vllm", BASE_URL), ("anthropic", ROOT_URL)):
            answer = self.ask("weather?", route, api_base=url, tools=tools, max_tokens=99)
            (call,) = answer.choices[0].message.tool_calls
            self.assertEqual(json.loads(call.function.arguments), {"city": "Oslo"})
            self.assertEqual(answer.choices[0].finish_reason, "tool_calls")
            chunks = list(
                self.ask("weather?", route, api_base=url, tools=tools, max_tokens=99, stream=True)
            )
            whole = litellm.stream_chunk_builder(chunks)
            (call,) = whole.choices[0].message.tool_calls
            self.assertEqual(json.loads(call.function.arguments), {"city": "Oslo"})

    def test_a_structured_answer(self):
        answer = self.ask(response_format=Person)
        Person.model_validate_json(answer.choices[0].message.content)

    def test_errors_become_litellms_own(self):
        with self.assertRaises(litellm.NotFoundError):
            self.ask(model="gpt-9")
        with self.assertRaises(litellm.BadRequestError):
            self.ask(temperature=5)
        with self.assertRaises(litellm.ContextWindowExceededError):
            self.ask("word " * 100, model="short")
        with self.assertRaises(litellm.AuthenticationError):
            self.ask(api_base=KEYED_URL, api_key="wrong")


class Langchain(unittest.TestCase):
    def chat(self, **options):
        options = {"base_url": BASE_URL, "api_key": "unused", "model": "fast", "max_retries": 0} | options
        return ChatOpenAI(**options)

    def test_a_chat_and_its_stream(self):
        answer = self.chat().invoke([SystemMessage("Be brief."), HumanMessage("anything")])
        self.assertEqual(answer.content, DEFAULT)
        self.assertEqual(answer.usage_metadata["output_tokens"], 8)
        stream = self.chat(stream_usage=True).stream("quotes")
        whole = next(stream)
        for chunk in stream:
            whole += chunk
        self.assertEqual(whole.content, QUOTES)
        self.assertGreater(whole.usage_metadata["output_tokens"], 5)

    def test_tools_and_structured_answers_on_both_apis(self):
        for options in ({}, {"use_responses_api": True}):
            chat = self.chat(**options)
            answer = chat.bind_tools([get_weather]).invoke("weather?")
            (call,) = answer.tool_calls
            self.assertEqual((call["name"], call["args"]), ("get_weather", {"city": "Oslo"}))
            for method in ("json_schema", "function_calling"):
                person = chat.with_structured_output(Person, method=method).invoke("anything")
                self.assertIsInstance(person, Person)

    def test_the_responses_api(self):
        chat = self.chat(use_responses_api=True)
        self.assertEqual(chat.invoke("anything").text, DEFAULT)
        self.assertEqual("".join(chunk.text for chunk in chat.stream("quotes")), QUOTES)

    def test_embeddings(self):
        # With the check on, it would fetch a tokenizer from the internet.
        embeddings = OpenAIEmbeddings(
            base_url=BASE_URL, api_key="unused", model="fast", check_embedding_ctx_length=False
        )
        vectors = embeddings.embed_documents(["a b", "c"])
        self.assertEqual([len(vector) for vector in vectors], [1536, 1536])


if __name__ == "__main__":
    litellm.suppress_debug_info = True
    result = unittest.main(
        argv=["test_frameworks.py"], exit=False, verbosity=2, warnings="ignore"
    ).result
    failed = len(result.failures) + len(result.errors)
    print(f"litellm {version('litellm')} and langchain-openai {version('langchain-openai')}: "
          f"{result.testsRun - failed} passed, {failed} failed", flush=True)
    sys.exit(failed > 0)
