// Failures on purpose, as the Vercel AI SDK and its providers meet them.
//
// Usage: BASE_URL=http://127.0.0.1:8080/v1 node test_fault_frameworks.mjs, run beside its
// node_modules, against a server with --admin: how long a client waited is read from the times at
// which the server was hit, not from a clock of the test.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, RetryError, generateText, streamText } from "ai";
import { run } from "./run_tests.mjs";

// It warns of what it leaves out for models that it does not know.
globalThis.AI_SDK_LOG_WARNINGS = false;

const { BASE_URL } = process.env;
const ROOT_URL = BASE_URL.replace(/\/v1$/, "");
const DEFAULT = "One two three four five six seven.";

const provided = { baseURL: BASE_URL, apiKey: "unused" };
const providers = {
  responses: createOpenAI(provided).responses("fast"),
  chat: createOpenAI(provided).chat("fast"),
  compatible: createOpenAICompatible({ name: "sim", ...provided })("fast"),
  messages: createAnthropic(provided)("fast"),
};

// When rules with `text` in them were hit, in seconds of the server's clock, in order.
async function hits(text) {
  const { recent } = await (await fetch(`${ROOT_URL}/admin/faults`)).json();
  return recent.filter((hit) => hit.rule.includes(text)).map((hit) => hit.seconds).sort((a, b) => a - b);
}

// A request that nobody has sent before, since attempts are counted for each.
function asked(model, words, { id = randomUUID(), ...options } = {}) {
  return {
    model, prompt: `Hello ${id}`, headers: { "x-llmsim-fault": words }, maxRetries: 0, ...options,
  };
}

const whole = async (...args) => (await generateText(asked(...args))).text;

// What a stream says, and what it ends with.
async function streamed(...args) {
  let text = "";
  const errors = [];
  const { fullStream } = streamText({ ...asked(...args), onError: () => {} });
  try {
    for await (const part of fullStream) {
      if (part.type === "text-delta") text += part.text;
      if (part.type === "error") errors.push(part.error);
      if (part.type === "abort") errors.push(new Error("aborted"));
    }
  } catch (error) {
    errors.push(error);
  }
  return { text, errors };
}

const tests = {
  async "a client with two retries survives two failures, on all APIs"() {
    for (const [name, model] of Object.entries(providers)) {
      for (const words of ["status=500 retry_after_ms=20", "status=429 retry_after_ms=20"]) {
        assert.equal(await whole(model, `${words} first=2`, { maxRetries: 2 }), DEFAULT, name);
      }
      const one = whole(model, "status=503 retry_after_ms=20 first=2", { maxRetries: 1 });
      await assert.rejects(one, RetryError.isInstance);
    }
    // Two failures of the connection.
    assert.equal(await whole(providers.chat, "reset first=2", { maxRetries: 2 }), DEFAULT);
  },

  async "it waits as long as it is told"() {
    const id = randomUUID();
    // By itself it would come back after two seconds, and then after four.
    const words = `status=429 retry_after_ms=300 first=2 contains=${id}`;
    assert.equal(await whole(providers.chat, words, { id, maxRetries: 2 }), DEFAULT);
    const [first, second] = await hits(id);
    assert.ok(second - first >= 0.29 && second - first < 2, `${second - first}`);
  },

  async "each status is an error with its body and headers"() {
    for (const [name, model] of Object.entries(providers)) {
      for (const status of [400, 401, 404, 429, 500, 529]) {
        const words = `status=${status} retry_after=3s message="On purpose."`;
        await assert.rejects(whole(model, words), (error) => {
          assert.ok(APICallError.isInstance(error), `${name} ${error}`);
          assert.equal(error.statusCode, status);
          assert.equal(error.message, "On purpose.");
          assert.equal(error.isRetryable, status === 429 || status >= 500);
          assert.equal(error.responseHeaders["retry-after"], "3");
          return true;
        });
      }
    }
  },

  async "a rate limit is told in headers and then kept"() {
    const id = randomUUID();
    const words = `rpm=1 contains=${id}`;
    const first = await generateText(asked(providers.chat, words, { id }));
    assert.equal(first.response.headers["x-ratelimit-remaining-requests"], "0");
    await assert.rejects(whole(providers.chat, words, { id }), (error) => {
      assert.equal(error.statusCode, 429);
      assert.equal(error.responseHeaders["x-ratelimit-remaining-requests"], "0");
      assert.ok(Number(error.responseHeaders["retry-after"]) > 0);
      return true;
    });
  },

  async "a stalled stream and no answer trip the timeout"() {
    const timeout = () => ({ abortSignal: AbortSignal.timeout(500) });
    await assert.rejects(whole(providers.chat, "hang", timeout()));
    for (const words of ["stall=30s after=3", "stop=3 end=silence"]) {
      const { text, errors } = await streamed(providers.chat, words, timeout());
      assert.equal(text, "One two three", words);
      assert.equal(errors.length, 1, words);
    }
  },

  async "an error in mid-stream surfaces, on all APIs"() {
    for (const [name, model] of Object.entries(providers)) {
      const { text, errors } = await streamed(model, "error_event=openai after=3");
      assert.equal(text, "One two three", name);
      assert.ok(errors.length > 0, name);
    }
  },

  async "a broken connection and broken JSON surface"() {
    for (const words of ["stop=3 end=close", "stop=3 end=reset", "malformed_json after=3"]) {
      const { errors } = await streamed(providers.chat, words);
      assert.ok(errors.length > 0, words);
    }
  },
};

await run("faults, Vercel AI SDK", tests);
