// The official openai package for Node against a running server.
//
// Usage: BASE_URL=http://127.0.0.1:8080/v1 node test_node.mjs, run beside its node_modules.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { run } from "./run_tests.mjs";

const BASE_URL = process.env.BASE_URL;
const DEFAULT = "One two three four five six seven.";
const QUOTES = 'She said "no\\yes"\nand\tthen 你好 😀 \u2028 end.';

const openai = new OpenAI({ baseURL: BASE_URL, apiKey: "unused", maxRetries: 0, timeout: 30_000 });
const user = (content) => [{ role: "user", content }];
const chat = (content = "anything", options = {}) =>
  openai.chat.completions.create({ model: "fast", messages: user(content), ...options });

async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

async function refused(kind, status, want, call) {
  await assert.rejects(call, (error) => {
    assert.equal(error.constructor, kind, `${error}`);
    assert.equal(error.status, status);
    assert.ok(error.requestID);
    for (const [key, value] of Object.entries(want)) {
      if (value instanceof RegExp) assert.match(error[key], value);
      else assert.equal(error[key], value, key);
    }
    return true;
  });
}

const tests = {
  "a whole answer": async () => {
    const answer = await chat();
    assert.equal(answer.object, "chat.completion");
    assert.equal(answer.model, "fast");
    assert.equal(answer.choices.length, 1);
    assert.equal(answer.choices[0].finish_reason, "stop");
    assert.equal(answer.choices[0].message.role, "assistant");
    assert.equal(answer.choices[0].message.content, DEFAULT);
    assert.equal(answer.usage.prompt_tokens, 8);
    assert.equal(answer.usage.completion_tokens, 8);
    assert.equal(answer.usage.total_tokens, 16);
    assert.equal(answer.usage.prompt_tokens_details.cached_tokens, 0);
    assert.ok(answer._request_id);
  },

  "streamed calls of tools are put together": async () => {
    const parameters = {
      type: "object", properties: { city: { type: "string" } }, required: ["city"],
    };
    const tools = [{ type: "function", function: { name: "get_weather", parameters } }];
    const body = { model: "fast", messages: user("weather in Rome"), tools };
    const stream = openai.chat.completions.stream(body);
    const message = await stream.finalMessage();
    const [call] = message.tool_calls;
    assert.equal(message.content, null);
    assert.equal(call.function.name, "get_weather");
    assert.deepEqual(JSON.parse(call.function.arguments), { city: "Rome", days: 2 });
    const runner = openai.chat.completions.runTools({
      ...body,
      tools: [{ type: "function", function: {
        name: "get_weather", parameters, parse: JSON.parse, function: () => "20 degrees",
      } }],
    });
    assert.equal(await runner.finalContent(), "It is 20 degrees in Oslo.");
  },

  "a required format, several choices and probabilities": async () => {
    const schema = {
      type: "object", properties: { ok: { type: "boolean" } }, required: ["ok"],
      additionalProperties: false,
    };
    const answer = await chat("anything", {
      n: 2, logprobs: true, top_logprobs: 2,
      response_format: { type: "json_schema", json_schema: { name: "x", schema } },
    });
    assert.equal(answer.choices.length, 2);
    for (const { message, logprobs } of answer.choices) {
      assert.equal(typeof JSON.parse(message.content).ok, "boolean");
      assert.equal(logprobs.content.map((it) => it.token).join(""), message.content);
    }
  },

  "a stream is the same text in pieces": async () => {
    for (const model of ["fast", "org/paced", "single"]) {
      const chunks = await collect(await chat("quotes", { model, stream: true }));
      assert.equal(new Set(chunks.map((chunk) => chunk.id)).size, 1);
      const choices = chunks.map((chunk) => chunk.choices[0]);
      assert.equal(choices[0].delta.role, "assistant");
      assert.equal(choices.map((choice) => choice.delta.content ?? "").join(""), QUOTES);
      assert.equal(choices.at(-1).finish_reason, "stop");
      assert.ok(choices.slice(0, -1).every((choice) => choice.finish_reason === null));
      assert.ok(chunks.every((chunk) => chunk.usage == null));
    }
  },

  "usage comes at the end, if asked for": async () => {
    const chunks = await collect(
      await chat("[hundred]", { stream: true, stream_options: { include_usage: true } }),
    );
    const last = chunks.pop();
    assert.deepEqual(last.choices, []);
    assert.equal(last.usage.completion_tokens, 100);
    assert.ok(chunks.every((chunk) => chunk.usage === null));
    assert.equal(chunks.filter((chunk) => chunk.choices[0].delta.content).length, 100);
  },

  "the stream helper puts the answer together": async () => {
    const stream = openai.chat.completions.stream({ model: "fast", messages: user("quotes") });
    let text = "";
    stream.on("content", (delta) => (text += delta));
    const final = await stream.finalChatCompletion();
    assert.equal(text, QUOTES);
    assert.equal(final.choices[0].message.content, QUOTES);
    assert.equal(await stream.finalContent(), QUOTES);
  },

  "limits cut the answer": async () => {
    for (const field of ["max_tokens", "max_completion_tokens"]) {
      const answer = await chat("[hundred]", { [field]: 7 });
      assert.equal(answer.choices[0].finish_reason, "length");
      assert.equal(answer.usage.completion_tokens, 7);
    }
  },

  "a conversation": async () => {
    const hold = async () => {
      const messages = [{ role: "system", content: "You know the classics." }];
      const said = [];
      for (const content of ["Hello!", "Which book has a white whale?", "And now?"]) {
        messages.push({ role: "user", content });
        const answer = await openai.chat.completions.create({ model: "fast", messages });
        messages.push(answer.choices[0].message);
        said.push(answer.choices[0].message.content);
      }
      return said;
    };
    const said = await hold();
    assert.deepEqual(said, [
      "Hi there. What would you like to talk about?",
      "Call me Ishmael.",
      DEFAULT,
    ]);
    assert.deepEqual(await hold(), said);
  },

  "models are listed and retrieved": async () => {
    const names = [];
    for await (const model of openai.models.list()) names.push(model.id);
    assert.deepEqual(names, ["fast", "org/paced", "single", "short"]);
    for (const name of names) assert.equal((await openai.models.retrieve(name)).id, name);
    await refused(OpenAI.NotFoundError, 404, { code: "model_not_found", param: "model" }, () =>
      openai.models.retrieve("gpt-9"),
    );
  },

  "who leaves makes room": async () => {
    for (let round = 0; round < 3; round += 1) {
      const stream = await chat("[long]", { model: "single", stream: true });
      let read = 0;
      for await (const chunk of stream) {
        assert.ok(chunk.id);
        if ((read += 1) === 5) break;
      }
      stream.controller.abort();
      const answer = await chat("anything", { model: "single" });
      assert.equal(answer.choices[0].message.content, DEFAULT);
    }
  },

  "an abort before the answer": async () => {
    const abort = new AbortController();
    const call = openai.chat.completions.create(
      { model: "org/paced", messages: user("[long]") },
      { signal: abort.signal },
    );
    setTimeout(() => abort.abort(), 200);
    await assert.rejects(call, (error) => error instanceof OpenAI.APIUserAbortError);
  },

  "a hundred streams at once": async () => {
    const texts = await Promise.all(
      Array.from({ length: 100 }, async (_, number) => {
        const options = { model: "org/paced", stream: true };
        const chunks = await collect(await chat(number % 2 ? "quotes" : "anything", options));
        return chunks.map((chunk) => chunk.choices[0].delta.content ?? "").join("");
      }),
    );
    texts.forEach((text, number) => assert.equal(text, number % 2 ? QUOTES : DEFAULT));
  },

  "an unknown model": () =>
    refused(
      OpenAI.NotFoundError,
      404,
      { param: "model", code: "model_not_found", type: "invalid_request_error", message: /gpt-9/ },
      () => chat("x", { model: "gpt-9" }),
    ),

  "bad values, streaming or not": async () => {
    const cases = [
      ["messages", "empty_array", { messages: [] }],
      ["temperature", "decimal_above_max_value", { temperature: 2.5 }],
      ["max_tokens", "integer_below_min_value", { max_tokens: 0 }],
      ["messages[0].role", "invalid_value", { messages: [{ role: "robot", content: "x" }] }],
      ["seed", "invalid_type", { seed: 1.5 }],
    ];
    for (const [param, code, options] of cases) {
      for (const stream of [false, true]) {
        await refused(OpenAI.BadRequestError, 400, { param, code }, () =>
          chat("x", { ...options, stream }),
        );
      }
    }
  },

  "a prompt over the context": () =>
    refused(
      OpenAI.BadRequestError,
      400,
      { code: "context_length_exceeded", message: /maximum context length is 64 tokens/ },
      () => chat("word ".repeat(100), { model: "short" }),
    ),

  "a wrong route, method, size and body": async () => {
    await refused(OpenAI.NotFoundError, 404, { code: "unknown_url" }, () =>
      openai.post("/chat/nowhere", { body: {} }),
    );
    await refused(OpenAI.APIError, 405, {}, () => openai.get("/chat/completions"));
    await refused(OpenAI.APIError, 413, {}, () => chat("x".repeat(2_000_000)));
  },

  "the server serves on": async () => {
    assert.equal((await chat()).choices[0].message.content, DEFAULT);
  },
};

await run(`openai for Node ${(await import("openai/version")).VERSION}`, tests);
