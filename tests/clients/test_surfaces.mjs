// The official openai and anthropic packages for Node on everything that is not a chat completion,
// and the Vercel AI SDK with its providers.
//
// Usage: BASE_URL=http://127.0.0.1:8080/v1 KEYED_URL=... node test_surfaces.mjs, run beside its
// node_modules; the server at KEYED_URL wants the API key "secret".

import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, embedMany, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { run } from "./run_tests.mjs";

// It warns of what it leaves out for models that it does not know.
globalThis.AI_SDK_LOG_WARNINGS = false;

const { BASE_URL, KEYED_URL } = process.env;
const DEFAULT = "One two three four five six seven.";
const QUOTES = 'She said "no\\yes"\nand\tthen 你好 😀 \u2028 end.';

const root = (url) => url.replace(/\/v1$/, "");
const options = { maxRetries: 0, timeout: 30_000 };
const openai = new OpenAI({ baseURL: BASE_URL, apiKey: "unused", ...options });
const anthropic = new Anthropic({ baseURL: root(BASE_URL), apiKey: "unused", ...options });
const user = (content) => [{ role: "user", content }];

// The AI SDK's providers, each in the form of API that it speaks.
const provided = { baseURL: BASE_URL, apiKey: "unused" };
const providers = {
  responses: (model) => createOpenAI(provided).responses(model),
  chat: (model) => createOpenAI(provided).chat(model),
  compatible: (model) =>
    createOpenAICompatible({ name: "sim", includeUsage: true, ...provided })(model),
  messages: (model) => createAnthropic(provided)(model),
};

async function collect(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}

const tests = {
  "text completions, whole and streamed": async () => {
    const answer = await openai.completions.create({ model: "fast", prompt: ["quotes", "x"], max_tokens: 99 });
    assert.deepEqual(answer.choices.map((choice) => choice.text), [QUOTES, DEFAULT]);
    const chunks = await collect(
      await openai.completions.create({ model: "org/paced", prompt: "quotes", max_tokens: 99, stream: true }),
    );
    assert.equal(chunks.map((chunk) => chunk.choices[0].text).join(""), QUOTES);
  },

  "embeddings are decoded from base64": async () => {
    const whole = await openai.embeddings.create({ model: "fast", input: ["a b", "c"], dimensions: 4 });
    const numbers = await openai.embeddings.create({
      model: "fast", input: ["a b", "c"], dimensions: 4, encoding_format: "float",
    });
    whole.data.forEach((item, at) => {
      assert.equal(item.embedding.length, 4);
      item.embedding.forEach((x, k) => assert.ok(Math.abs(x - numbers.data[at].embedding[k]) < 1e-6));
    });
  },

  "a response, whole, streamed and continued": async () => {
    const first = await openai.responses.create({ model: "fast", input: "Hello!" });
    assert.equal(first.output_text, "Hi there. What would you like to talk about?");
    const stream = openai.responses.stream({
      model: "org/paced", input: "quotes", previous_response_id: first.id,
    });
    const events = await collect(stream);
    assert.equal(events.at(-1).type, "response.completed");
    assert.equal((await stream.finalResponse()).output_text, QUOTES);
  },

  "a message, whole and streamed": async () => {
    const ask = { model: "fast", max_tokens: 99, messages: user("quotes") };
    const whole = await anthropic.messages.create(ask);
    assert.equal(whole.content[0].text, QUOTES);
    assert.ok(whole._request_id);
    const stream = anthropic.messages.stream({ ...ask, model: "org/paced" });
    let text = "";
    stream.on("text", (delta) => (text += delta));
    const final = await stream.finalMessage();
    assert.equal(text, QUOTES);
    assert.equal(final.content[0].text, QUOTES);
    assert.equal(final.stop_reason, "end_turn");
    assert.equal(final.usage.output_tokens, whole.usage.output_tokens);
    const count = await anthropic.messages.countTokens({ model: "fast", messages: user("quotes") });
    assert.equal(count.input_tokens, whole.usage.input_tokens);
  },

  "refusals are of the right class": async () => {
    const bad = { model: "gpt-9", max_tokens: 9, messages: user("x") };
    await assert.rejects(anthropic.messages.create(bad), Anthropic.NotFoundError);
    await assert.rejects(
      anthropic.messages.create({ ...bad, model: "fast", temperature: 9 }),
      Anthropic.BadRequestError,
    );
    await assert.rejects(openai.responses.create({ model: "gpt-9", input: "x" }), OpenAI.NotFoundError);
    await assert.rejects(openai.completions.create({ model: "fast", prompt: "" }), OpenAI.BadRequestError);
  },

  "without the key": async () => {
    const wrong = new OpenAI({ baseURL: KEYED_URL, apiKey: "wrong", ...options });
    await assert.rejects(
      wrong.responses.create({ model: "fast", input: "x" }),
      OpenAI.AuthenticationError,
    );
    const ask = { model: "fast", max_tokens: 9, messages: user("x") };
    const asking = (apiKey) =>
      new Anthropic({ baseURL: root(KEYED_URL), apiKey, ...options }).messages.create(ask);
    await assert.rejects(asking("wrong"), Anthropic.AuthenticationError);
    assert.equal((await asking("secret")).type, "message");
  },
};

for (const [name, provider] of Object.entries(providers)) {
  tests[`the AI SDK by ${name}: whole and streamed`] = async () => {
    const call = { prompt: "quotes", maxOutputTokens: 99, maxRetries: 0 };
    const whole = await generateText({ model: provider("fast"), ...call });
    assert.equal(whole.text, QUOTES);
    assert.equal(whole.finishReason, "stop");
    assert.ok(whole.usage.outputTokens > 5);
    const streamed = streamText({ model: provider("org/paced"), ...call });
    assert.equal((await collect(streamed.textStream)).join(""), QUOTES);
    assert.equal(await streamed.finishReason, "stop");
    assert.equal((await streamed.usage).outputTokens, whole.usage.outputTokens);
  };
  tests[`the AI SDK by ${name}: limits and errors`] = async () => {
    const cut = await generateText({
      model: provider("fast"), prompt: "[hundred]", maxOutputTokens: 20, maxRetries: 0,
    });
    assert.equal(cut.finishReason, "length");
    const lost = generateText({ model: provider("gpt-9"), prompt: "x", maxRetries: 0 });
    await assert.rejects(lost, (error) => APICallError.isInstance(error) && error.statusCode === 404);
  };
}

const weather = tool({
  description: "Tells the weather.",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => `20 degrees in ${city}`,
});
const person = z.object({ name: z.string(), age: z.number().int().min(18).max(99) });

for (const name of ["responses", "chat", "compatible", "messages"]) {
  tests[`the AI SDK by ${name}: a tool is called, and its result is answered`] = async () => {
    const call = {
      model: providers[name]("fast"),
      prompt: "What is the weather?",
      tools: { get_weather: weather },
      stopWhen: stepCountIs(3),
      maxRetries: 0,
    };
    const whole = await generateText(call);
    assert.equal(whole.text, "It is 20 degrees in Oslo.");
    assert.equal(whole.steps.length, 2);
    assert.deepEqual(whole.steps[0].toolCalls[0].input, { city: "Oslo" });
    const streamed = streamText(call);
    assert.equal((await collect(streamed.textStream)).join(""), "It is 20 degrees in Oslo.");
  };
  tests[`the AI SDK by ${name}: a structured answer`] = async () => {
    const model = name === "compatible"
      ? createOpenAICompatible({ name: "sim", supportsStructuredOutputs: true, ...provided })("fast")
      : providers[name]("fast");
    const whole = await generateText({
      model, prompt: "anything", output: Output.object({ schema: person }), maxRetries: 0,
    });
    person.parse(whole.output);
  };
}

tests["a message with tools, and a structured response"] = async () => {
  const schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
  const message = await anthropic.messages
    .stream({
      model: "fast", max_tokens: 99, messages: user("weather?"),
      tools: [{ name: "get_weather", input_schema: schema }],
    })
    .finalMessage();
  assert.deepEqual(message.content[0].input, { city: "Oslo" });
  assert.equal(message.stop_reason, "tool_use");
  const response = await openai.responses.create({
    model: "fast", input: "anything",
    text: { format: { type: "json_schema", name: "p", schema: z.toJSONSchema(person) } },
  });
  person.parse(JSON.parse(response.output_text));
};

tests["the AI SDK continues a conversation"] = async () => {
  const model = providers.responses("fast");
  const messages = user("Hello!");
  const first = await generateText({ model, messages, maxRetries: 0 });
  messages.push(...(first.response?.messages ?? first.responseMessages), ...user("And a white whale?"));
  const second = await generateText({ model, messages, maxRetries: 0 });
  assert.equal(second.text, "Call me Ishmael.");
};

tests["the AI SDK by text completions"] = async () => {
  const model = createOpenAI(provided).completion("fast");
  // It writes down who speaks, so the prompt is more than this.
  const call = { model, prompt: "And a white whale?", maxRetries: 0 };
  assert.equal((await generateText(call)).text, "Call me Ishmael.");
  assert.equal((await collect(streamText(call).textStream)).join(""), "Call me Ishmael.");
};

tests["the AI SDK embeds"] = async () => {
  const model = createOpenAI(provided).embedding("fast");
  const { embeddings } = await embedMany({ model, values: ["a b", "c"], maxRetries: 0 });
  assert.deepEqual(embeddings.map((vector) => vector.length), [1536, 1536]);
};

await run("openai, anthropic and the AI SDK for Node", tests);
