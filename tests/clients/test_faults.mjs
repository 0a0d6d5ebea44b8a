// Failures on purpose, as the official openai and @anthropic-ai/sdk packages for Node meet them.
// Usage: BASE_URL=http://127.0.0.1:8080/v1 node test_faults.mjs
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import OpenAI from "openai";
import Anthropic from "@anthropic-ai/sdk";
import { run } from "./run_tests.mjs";

const baseURL = process.env.BASE_URL;
const DEFAULT = "One two three four five six seven.";
const message = () => [{ role: "user", content: `Hello ${randomUUID()}` }];

async function chat(words, { stream = false, ...options } = {}) {
  const client = new OpenAI({ baseURL, apiKey: "unused", maxRetries: 0, timeout: 30000, ...options });
  const answer = await client.chat.completions.create(
    { model: "fast", messages: message(), stream },
    { headers: { "x-llmsim-fault": words } },
  );
  if (!stream) return answer.choices[0].message.content;
  let text = "";
  for await (const chunk of answer) text += chunk.choices[0].delta.content ?? "";
  return text;
}

const tests = {
  async "a client with two retries survives two failures"() {
    for (const words of ["status=500 retry_after_ms=20", "status=429 retry_after_ms=20", "reset", "close"]) {
      assert.equal(await chat(`${words} first=2`, { maxRetries: 2 }), DEFAULT, words);
    }
    await assert.rejects(chat("status=503 first=2 retry_after_ms=20", { maxRetries: 1 }),
      OpenAI.InternalServerError);
  },
  async "it waits as long as it is told"() {
    // By itself it would come back after half a second at most.
    const began = performance.now();
    assert.equal(await chat("status=429 first=1 retry_after=1s", { maxRetries: 1 }), DEFAULT);
    assert.ok(performance.now() - began >= 950);
  },
  async "no answer trips the timeout"() {
    await assert.rejects(chat("hang", { timeout: 500 }), OpenAI.APIConnectionTimeoutError);
  },
  async "a stalled stream trips the timeout"() {
    // The package's own timeout is for the answer's beginning: a signal is what ends a stream.
    for (const words of ["stall=30s after=3", "stop=3 end=silence"]) {
      const client = new OpenAI({ baseURL, apiKey: "unused", maxRetries: 0 });
      const stream = await client.chat.completions.create(
        { model: "fast", messages: message(), stream: true },
        { headers: { "x-llmsim-fault": words } },
      );
      setTimeout(() => stream.controller.abort(), 500);
      let text = "";
      for await (const chunk of stream) text += chunk.choices[0].delta.content ?? "";
      assert.equal(text, "One two three", words);
    }
  },
  async "a body that breaks off, stalls or fails"() {
    assert.equal(await chat("error_event=openai after=3 first=2", { maxRetries: 2 }), DEFAULT);
    await assert.rejects(chat("error_event=vllm after=3"), OpenAI.InternalServerError);
    await assert.rejects(chat("stop=3 end=close"));
    await assert.rejects(chat("malformed_json after=3"));
    assert.equal(await chat("stall=200ms after=3"), DEFAULT);
  },
  async "an error event and a broken connection raise"() {
    await assert.rejects(chat("error_event=openai after=3", { stream: true }), OpenAI.APIError);
    await assert.rejects(chat("stop=3 end=close", { stream: true }));
    await assert.rejects(chat("malformed_json after=3", { stream: true }));
  },
  async "each status is its exception"() {
    await assert.rejects(chat("status=401"), OpenAI.AuthenticationError);
    await assert.rejects(chat("status=429"), OpenAI.RateLimitError);
    await assert.rejects(chat("status=529"), OpenAI.InternalServerError);
  },
  async "anthropic's client survives an overload"() {
    const client = new Anthropic({ baseURL: baseURL.replace(/\/v1$/, ""), apiKey: "unused", maxRetries: 2 });
    const answer = await client.messages.create(
      { model: "fast", max_tokens: 100, messages: message() },
      { headers: { "x-llmsim-fault": "status=529 first=2 retry_after_ms=20" } },
    );
    assert.equal(answer.content[0].text, DEFAULT);
  },
  async "anthropic's stream fails and breaks off"() {
    const client = new Anthropic({ baseURL: baseURL.replace(/\/v1$/, ""), apiKey: "unused", maxRetries: 0 });
    const read = (words) => client.messages.stream(
      { model: "fast", max_tokens: 100, messages: message() },
      { headers: { "x-llmsim-fault": words } },
    ).finalText();
    assert.equal(await read("stall=200ms after=3"), DEFAULT);
    await assert.rejects(read("error_event=openai after=3"), Anthropic.APIError);
    await assert.rejects(read("stop=3 end=close"));
  },
};

await run("faults, openai and anthropic for Node", tests);
