// Single fields of OpenAI's, vLLM's and Anthropic's as the official packages for Node send and read
// them.
//
// Usage: BASE_URL=http://127.0.0.1:8080/v1 node test_fields.mjs, run beside its node_modules.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import { run } from "./run_tests.mjs";

const { BASE_URL } = process.env;
const DEFAULT = "One two three four five six seven.";
const root = BASE_URL.replace(/\/v1$/, "");
const options = { apiKey: "unused", maxRetries: 0, timeout: 30_000 };
const openai = new OpenAI({ baseURL: BASE_URL, ...options });
const anthropic = new Anthropic({ baseURL: root, ...options });
const user = (content) => [{ role: "user", content }];
// Members that the package does not know are sent as they are.
const chat = (more = {}) =>
  openai.chat.completions.create({ model: "fast", messages: user("anything"), ...more });
const city = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };

async function collect(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}

const tests = {
  "the stop string that was said": async () => {
    const [choice] = (await chat({ stop: ["seven", "e fo"] })).choices;
    assert.deepEqual([choice.message.content, choice.stop_reason], ["One two thre", "e fo"]);
    const chunks = await collect(await chat({ stop: "e fo", stream: true }));
    assert.equal(chunks.at(-1).choices[0].stop_reason, "e fo");
    const text = await openai.completions.create({ model: "fast", prompt: "x", stop: " four" });
    assert.equal(text.choices[0].stop_reason, " four");
  },

  "allowed tools leave the others out": async () => {
    const tools = ["get_weather", "get_time"].map((name) => ({
      type: "function", function: { name, parameters: city },
    }));
    const allowed = [{ type: "function", function: { name: "get_time" } }];
    const answer = await chat({
      tools,
      tool_choice: { type: "allowed_tools", allowed_tools: { mode: "required", tools: allowed } },
    });
    const called = answer.choices[0].message.tool_calls.map((call) => call.function.name);
    assert.deepEqual(called, ["get_time"]);
  },

  "usage in every chunk": async () => {
    const chunks = await collect(
      await chat({
        stream: true, stream_options: { include_usage: true, continuous_usage_stats: true },
      }),
    );
    const counts = chunks.map((chunk) => chunk.usage.completion_tokens);
    assert.deepEqual([counts[0], counts.at(-1)], [0, 8]);
  },

  "ids and scores of the prompt's tokens": async () => {
    const answer = await chat({ return_token_ids: true, prompt_logprobs: 1 });
    assert.equal(answer.prompt_token_ids.length, 8);
    assert.equal(answer.choices[0].token_ids.length, 8);
    assert.equal(answer.prompt_logprobs.length, 8);
    assert.equal(answer.prompt_logprobs[0], null);
    const chunks = await collect(await chat({ return_token_ids: true, stream: true }));
    const ids = chunks.flatMap((chunk) => chunk.choices[0].token_ids ?? []);
    assert.deepEqual(ids, answer.choices[0].token_ids);
  },

  "scores beside a response's text": async () => {
    const ask = {
      model: "fast", input: "anything", top_logprobs: 1,
      include: ["message.output_text.logprobs"],
    };
    const whole = await openai.responses.create(ask);
    const tokens = whole.output[0].content[0].logprobs.map((score) => score.token);
    assert.equal(tokens.join(""), DEFAULT);
    const events = await collect(await openai.responses.create({ ...ask, stream: true }));
    const deltas = events.filter((event) => event.type === "response.output_text.delta");
    assert.deepEqual(deltas.flatMap((event) => event.logprobs.map((it) => it.token)), tokens);
  },

  "the input of a kept response in pages": async () => {
    const texts = ["a", "b", "c", "d", "e"];
    const input = texts.map((content) => ({ role: "user", content }));
    const { id } = await openai.responses.create({ model: "fast", input });
    const items = await collect(openai.responses.inputItems.list(id, { limit: 2, order: "asc" }));
    assert.deepEqual(items.map((item) => item.content[0].text), texts);
    await assert.rejects(openai.responses.retrieve(id, { stream: true }), OpenAI.BadRequestError);
    await assert.rejects(openai.responses.cancel(id), OpenAI.BadRequestError);
  },

  "an embedding in base64": async () => {
    const ask = { model: "fast", input: "a white whale", dimensions: 8 };
    const numbers = (await openai.embeddings.create({ ...ask, encoding_format: "float" })).data[0];
    const binary = (
      await openai.embeddings.create({ ...ask, encoding_format: "base64", endianness: "big" })
    ).data[0];
    const bytes = Buffer.from(binary.embedding, "base64");
    numbers.embedding.forEach((x, at) => assert.ok(Math.abs(bytes.readFloatBE(4 * at) - x) < 1e-6));
  },

  "milliseconds tell how long to wait": async () => {
    // Both packages would wait for half a second at most if nothing told them to.
    const headers = { "x-llmsim-fault": "status=429 first=1 retry_after_ms=900" };
    const messages = user(`Hello ${randomUUID()}`);
    const retrying = { ...options, maxRetries: 1 };
    const began = performance.now();
    const one = await new OpenAI({ baseURL: BASE_URL, ...retrying }).chat.completions.create(
      { model: "fast", messages }, { headers },
    );
    assert.equal(one.choices[0].message.content, DEFAULT);
    const other = await new Anthropic({ baseURL: root, ...retrying }).messages.create(
      { model: "fast", max_tokens: 99, messages }, { headers },
    );
    assert.equal(other.content[0].text, DEFAULT);
    assert.ok(performance.now() - began >= 1750);
  },

  "a message's calls and their count": async () => {
    const tools = [{ name: "get_weather", input_schema: city }];
    const ask = { model: "fast", tools, messages: user("weather?") };
    const message = await anthropic.messages.create({ ...ask, max_tokens: 99 });
    assert.match(message.content[0].id, /^toolu_/);
    const streamed = await anthropic.messages.stream({ ...ask, max_tokens: 99 }).finalMessage();
    assert.match(streamed.content[0].id, /^toolu_/);
    const count = await anthropic.messages.countTokens(ask);
    assert.equal(count.input_tokens, message.usage.input_tokens);
  },
};

await run("fields by openai and anthropic for Node", tests);
