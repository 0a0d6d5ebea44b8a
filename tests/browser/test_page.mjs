// The live page in a real browser: what it shows against what was done to the server.
//
// Usage: node tests/browser/test_page.mjs SERVER_BINARY
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { contrasts, freePort, openBrowser, openStream, run, sideways, startServer } from './browser.mjs';
import { serve, state } from './feed.mjs';

const binary = process.argv[2] ?? 'target/release/llmsimulator';
const browser = await openBrowser();
const port = await freePort();
let server = await startServer(binary, port);
const page = await browser.open(server.url);

// Other first words for each, or the prefix cache would hold their prompts once.
const prompt = (index, tokens) => [{ role: 'user', content: `${index} ${'word '.repeat(tokens)}` }];
const stream = (model, index, tokens, more = {}) => openStream(server.url,
  { model, messages: prompt(index, tokens), ignore_eos: true, max_tokens: 3000, ...more });
const open = (count, model, tokens, from = 0) =>
  Promise.all(Array.from({ length: count }, (_, index) => stream(model, from + index, tokens)));

/** The text of one figure of a GPU or model, as a reader sees it. */
const figureOf = (key, metric) => `[data-key="${key}"] [data-metric="${metric}"]`;
const read = (selector, on = page) => on.locator(selector).first().innerText();
/** Waits until the text fits the pattern. */
const see = async (selector, pattern, on = page) => {
  await on.waitForFunction(([where, what]) => [...document.querySelectorAll(where)].some((node) =>
    node.checkVisibility() && (what instanceof RegExp ? what.test(node.innerText) : node.innerText.includes(what))),
  [selector, pattern]).catch(async (error) => {
    const shown = await on.locator(selector).allInnerTexts();
    throw new Error(`${selector} should say ${pattern}, but says ${JSON.stringify(shown)}`, { cause: error });
  });
};
const BATCHED = 'qwen-mock-batched 0';
const batch = `${figureOf(BATCHED, 'batch')} .figure`;
const queue = `${figureOf(BATCHED, 'queue')} .figure`;
const kv = `${figureOf(BATCHED, 'kv')} .figure`;
const percentOf = async (selector) => Number.parseFloat(await read(selector));
const onMadeUp = async (what, view, test) => {
  const feed = await serve(what);
  const on = await browser.open(feed.url, view);
  try {
    await see('#link-text', /^Live$/, on);
    await test(on, feed);
    assert.deepEqual(on.complaints, []);
  } finally {
    await on.close();
    feed.close();
  }
};

const background = (on) => on.evaluate(() => getComputedStyle(document.body).backgroundColor);

const tests = {
  'failures on purpose are counted and told, and not mentioned before': async () => {
    await see('#link-text', /^Live$/);
    assert.equal(await page.locator('#faults').isVisible(), false);
    const answer = await fetch(`${server.url}v1/chat/completions`, {
      method: 'POST', headers: { 'x-llmsim-fault': 'status=418' },
      body: JSON.stringify({ model: 'qwen-mock-batched', messages: prompt('f', 1) }),
    });
    assert.equal(answer.status, 418);
    await see('[data-fault="status qwen-mock-batched"]', /1/);
    await see('#fault-hits', /status=418, qwen-mock-batched/);
  },
  'a server without requests says how to send one': async () => {
    await see('#link-text', /^Live$/);
    await see('#verdict-word', /^Nothing to judge$/);
    await see('#empty', /No requests yet/);
    const command = await read('#curl');
    assert.ok(command.includes(`${server.url}v1/chat/completions`), command);
    // The command works as it stands.
    const answer = execFileSync('bash', ['-c', command], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });
    assert.ok(answer.trimEnd().endsWith('data: [DONE]'), answer);
    await page.locator('#empty').waitFor({ state: 'hidden' });
    await see(figureOf('qwen-mock-batched', 'requests'), /\b1 (stop|length)\b/);
  },

  'every model has a row, whatever its engine': async () => {
    for (const [key, engine] of [[BATCHED, 'scheduler'], ['tight 0', 'scheduler'], ['qwen-mock 0', 'fixed rate'], ['tiny-mock 0', 'instant']]) {
      await see(`[data-key="${key}"]`, engine);
    }
    await see(figureOf('tiny-mock 0', 'kv'), /–[\s\S]*no KV cache/);
    await see('[data-fact="driver"]', /(io_uring|epoll|legacy|poll)\S*, \d+ threads?/);
  },

  'the batch is the number of open streams, and the KV cache fills and empties': async () => {
    const five = await open(5, 'qwen-mock-batched', 800);
    await see(batch, /^5$/);
    assert.equal(await read(queue), '0');
    await see('[data-fact="in-flight"]', /\b5$/);
    // Five prompts of 800 tokens are 250 blocks of the 749 that can be used.
    await page.waitForFunction((at) => parseFloat(document.querySelector(at).textContent) >= 33, kv);
    const first = await percentOf(kv);
    await page.waitForFunction(([at, was]) => parseFloat(document.querySelector(at).textContent) > was, [kv, first]);
    await see(figureOf(BATCHED, 'step'), /\d ms[\s\S]*\/s, (memory|compute|host|fixed|communication)-bound/);
    await see('#verdict-word', /^(On time|Late)$/);
    five.forEach((one) => one.close());
    await see(batch, /^0$/);
    await see(kv, /^0 %$/);
    await see(figureOf('qwen-mock-batched', 'requests'), /\b5 cancelled\b/);
  },

  'above max_num_sequences the queue grows, and says why': async () => {
    const eleven = await open(11, 'qwen-mock-batched', 100, 20);
    await see(batch, /^8$/);
    await see(queue, /^3$/);
    await see(figureOf(BATCHED, 'queue'), /sequence limit/);
    await see(figureOf(BATCHED, 'batch'), /of 8/);
    // Eight tokens a step, about 50 steps a second: the page may be a second behind, not wrong.
    await page.waitForFunction((at) => parseFloat(document.querySelector(at).textContent) > 50,
      `${figureOf(BATCHED, 'tokens')} .figure`);
    // A step takes 14 ms and more, so nobody can have seen a token sooner.
    const median = await read(`${figureOf('qwen-mock-batched', 'itl')} .p50`);
    assert.match(median, /^[\d.]+ m?s$/);
    assert.ok(median.endsWith(' s') || Number.parseFloat(median) > 10, median);
    eleven.forEach((one) => one.close());
    await see(batch, /^0$/);
    await see(queue, /^0$/);
  },

  'preemptions are those that the metrics count': async () => {
    const shown = `${figureOf('tight 0', 'preemptions')} .figure`;
    const four = await Promise.all([0, 1, 2, 3].map((index) => stream('tight', index, 200, { max_tokens: 700 })));
    await see(shown, /^[1-9]/);
    four.forEach((one) => one.close());
    await see(`${figureOf('tight 0', 'batch')} .figure`, /^0$/);
    await see(`${figureOf('tight 0', 'queue')} .figure`, /^0$/);
    const metrics = await (await fetch(new URL('metrics', server.url))).text();
    const [, count] = metrics.match(/^vllm:num_preemptions_total\{[^}]*model_name="tight"[^}]*\} (\S+)$/m);
    await see(shown, new RegExp(`^${Number(count).toLocaleString('en')}$`));
  },

  'a server that goes away is missed, and found again': async () => {
    await server.stop('SIGKILL');
    await see('#link-text', /^No connection since \d/);
    assert.ok(await page.locator('#link').evaluate((node) => node.classList.contains('lost')));
    // What was seen last stays readable.
    assert.equal(await read(batch), '0');
    server = await startServer(binary, port);
    await see('#link-text', /^Live; the server was restarted$/);
    const two = await open(2, 'qwen-mock-batched', 50, 60);
    await see(batch, /^2$/);
    two.forEach((one) => one.close());
    await see(batch, /^0$/);
  },

  'the page asks only this server, and only for the feed': async () => {
    const origin = new URL(server.url).origin;
    assert.deepEqual([...new Set(page.asked)].filter((url) => !url.startsWith('data:')).sort(), [`${origin}/`, `${origin}/ui/data`]);
  },

  'nothing complained but the lost connection': async () => {
    const others = page.complaints.filter((line) => !/ERR_(CONNECTION_REFUSED|CONNECTION_RESET|INCOMPLETE_CHUNKED_ENCODING|EMPTY_RESPONSE)/.test(line));
    assert.deepEqual(others, []);
  },

  'light and dark are both readable': async () => {
    const seen = [];
    for (const colorScheme of ['light', 'dark']) {
      await page.emulateMedia({ colorScheme });
      seen.push(await background(page));
      assert.deepEqual(await contrasts(page), [], colorScheme);
    }
    assert.notEqual(seen[0], seen[1]);
    await page.emulateMedia({ colorScheme: 'light' });
  },

  'no width scrolls sideways': async () => {
    for (const width of [320, 390, 768, 1024, 1280, 1920]) {
      await page.setViewportSize({ width, height: 800 });
      assert.ok(await sideways(page) <= 0, `at ${width}`);
    }
  },

  'a late server is called late, with the reason, in words, a sign and the title': async () => {
    await onMadeUp({ late: true, every: 0 }, {}, async (on) => {
      assert.equal(await read('#verdict-word', on), 'Late');
      const why = await read('#verdict-why', on);
      assert.match(why, /did not get a processor/);
      assert.match(why, /at most [\d.]+ ms late over the last 10 s; 5 ms is allowed/);
      assert.match(await on.title(), /^⚠ /);
      const late = await on.locator('#verdict-icon').getAttribute('d');
      assert.deepEqual(await contrasts(on), []);
      await onMadeUp({ every: 0 }, { colorScheme: 'dark' }, async (good) => {
        assert.equal(await read('#verdict-word', good), 'On time');
        assert.match(await read('#verdict-why', good), /at most [\d.]+ µs late/);
        assert.notEqual(await good.locator('#verdict-icon').getAttribute('d'), late);
        assert.deepEqual(await contrasts(good), []);
      });
    });
  },

  'looking back shows every figure as it was': async () => {
    const what = { every: 0, past: 299 };
    await onMadeUp(what, {}, async (on) => {
      const at = (t) => String(state(t, what).gpus[0].running);
      assert.equal(await read(batch, on), at(299));
      const slider = on.getByRole('slider', { name: 'Look back' });
      await slider.focus();
      for (let press = 0; press < 40; press += 1) await on.keyboard.press('ArrowLeft');
      assert.equal(await read(batch, on), at(259));
      await see('#when', /−40 s$/, on);
      await on.keyboard.press('End');
      await see('#when', /^now$/, on);
      // Pointing does the same: the middle of a chart is two and a half minutes ago.
      await on.locator(`${figureOf(BATCHED, 'kv')} svg`).hover();
      await see('#when', /−(149|150|151) s$/, on);
      await on.mouse.move(0, 0);
      assert.equal(await read(batch, on), at(299));
    });
  },

  'charts are drawn to the scale that they name': async () => {
    await onMadeUp({ every: 0 }, {}, async (on) => {
      const line = await on.locator(`${figureOf(BATCHED, 'batch')} .l0`).getAttribute('d');
      assert.equal(await read(`${figureOf(BATCHED, 'batch')} .scale`, on), '300');
      const heights = [...line.matchAll(/[ML][\d.]+ ([\d.]+)/g)].map(([, y]) => Number(y));
      assert.equal(heights.length, 300);
      // The highest batch, 256 of a scale of 300 that takes 96 of 100 units.
      assert.ok(Math.abs(Math.min(...heights) - (100 - 96 * 256 / 300)) < 0.1, `${Math.min(...heights)}`);
      for (const id of ['ttft', 'itl', 'lag']) {
        for (const part of ['l0', 'l1', 'l2']) {
          const drawn = await on.locator(`${figureOf('qwen-mock-batched', id)} .${part}`).getAttribute('d');
          assert.ok(drawn.length > 1000, `${id} ${part}`);
        }
      }
    });
  },

  'sixteen GPUs fit, and nothing jumps while they change': async () => {
    await onMadeUp({ gpus: 16, every: 50 }, { colorScheme: 'dark' }, async (on) => {
      assert.equal(await on.locator('#gpu-rows article').count(), 16);
      const layout = () => on.evaluate(() => [...document.querySelectorAll('article, article [data-metric], .chart, .facts div, section')]
        .map((node) => { const box = node.getBoundingClientRect(); return [box.x, box.y, box.width, box.height].join(' '); }));
      const before = await layout();
      const time = () => on.evaluate('events.at(-1).time');
      const began = await time();
      await on.waitForFunction((was) => events.at(-1).time > was + 100, began);
      assert.deepEqual(await layout(), before);
      const height = await on.locator('#gpus').evaluate((node) => node.getBoundingClientRect().height);
      assert.ok(height < 1100, `${height} pixels`);
      const cut = await on.evaluate(() => [...document.querySelectorAll('.value, .thirds span')]
        .filter((node) => node.scrollWidth > node.clientWidth + 1).map((node) => node.textContent));
      assert.deepEqual(cut, []);
      assert.ok(await on.evaluate('events.length') <= 301);
      await on.setViewportSize({ width: 360, height: 740 });
      assert.ok(await sideways(on) <= 0);
    });
  },

  'a name full of markup and quotes stays a name': async () => {
    const name = `<img src=x onerror=document.title=1>'"$(touch /nowhere)\` ${'long'.repeat(40)}`;
    await onMadeUp({ models: [name], idle: true, every: 0 }, { width: 390 }, async (on) => {
      await see('h3', name, on);
      assert.equal(await on.locator('img').count(), 0);
      assert.equal(await on.title(), 'llmsimulator');
      assert.ok(await sideways(on) <= 0);
      const command = await read('#curl', on);
      // A shell hands the name on as it is.
      const shown = execFileSync('bash', ['-c', `curl() { printf '%s' "\${@: -1}"; }\n${command}`], { encoding: 'utf8' });
      assert.equal(JSON.parse(shown).model, name);
    });
  },

  'a reader who hears the page is told of the verdict and the connection': async () => {
    await page.setViewportSize({ width: 1280, height: 800 });
    assert.equal(await page.getByRole('status').count(), 2);
    await page.getByRole('slider', { name: 'Look back' }).waitFor();
    for (const name of ['Simulated GPUs', 'Models: requests and latency']) {
      await page.getByRole('region', { name }).waitFor();
    }
    await page.getByRole('article', { name: 'qwen-mock-batched' }).first().waitFor();
    assert.equal(await page.locator('dd').count(), await page.locator('dt').count());
  },
};

const status = await run('live page', tests);
await browser.close();
await server.stop();
process.exit(status);
