// What the browser tests share: Debian's Chromium through playwright-core, the simulator as a
// process, streams that stay open until told otherwise, and a runner that counts.
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { request } from 'node:http';
import { createServer } from 'node:net';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export const ROOT = new URL('../../', import.meta.url).pathname;
const { chromium } = createRequire(join(ROOT, 'target/browser/'))('playwright-core');

/** The longest that a condition may take to come true on a busy machine. */
export const PATIENCE = 60_000;

/** A browser of its own, which remembers nothing. */
export async function openBrowser() {
  const profile = mkdtempSync(join(tmpdir(), 'llmsim-browser-'));
  const context = await chromium.launchPersistentContext(profile, {
    executablePath: '/usr/bin/chromium',
    headless: true,
    timeout: PATIENCE,
    args: ['--headless', '--no-sandbox', '--disable-gpu', '--no-first-run',
      '--disable-background-networking', '--disable-component-update', '--disable-sync'],
  });
  context.setDefaultTimeout(PATIENCE);
  return {
    /** A page that keeps account of what it complained of and whom it asked. */
    async open(url, { width = 1280, height = 800, colorScheme = 'light' } = {}) {
      const page = await context.newPage();
      page.complaints = [];
      page.asked = [];
      page.on('console', (line) => {
        if (['error', 'warning'].includes(line.type())) page.complaints.push(line.text());
      });
      page.on('pageerror', (error) => page.complaints.push(String(error)));
      page.on('request', (asked) => page.asked.push(asked.url()));
      await page.setViewportSize({ width, height });
      await page.emulateMedia({ colorScheme });
      await page.goto(url);
      return page;
    },
    async close() {
      await context.close();
      rmSync(profile, { recursive: true, force: true });
    },
  };
}

/** A port that was free a moment ago. */
export function freePort() {
  return new Promise((resolve) => {
    const server = createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

/** Starts the simulator and waits until it says that it listens. */
export async function startServer(binary, port, models = join(ROOT, 'tests/browser/models.yml')) {
  const child = spawn(binary, ['--host', '127.0.0.1', '--port', String(port), '--models', models],
    { stdio: ['ignore', 'ignore', 'pipe'] });
  const ended = new Promise((resolve) => child.once('exit', resolve));
  let log = '';
  await new Promise((resolve, reject) => {
    child.stderr.on('data', (text) => {
      log += text;
      if (/listening on http/.test(log)) resolve();
    });
    child.once('exit', () => reject(new Error(`the server did not start:\n${log}`)));
    child.once('error', reject);
  });
  return {
    url: `http://127.0.0.1:${port}/`,
    log: () => log,
    async stop(signal = 'SIGTERM') {
      child.kill(signal);
      return ended;
    },
  };
}

/** Opens a stream and waits for its first bytes; `close` hangs up, `ended` tells of its end. */
export function openStream(url, body) {
  return new Promise((resolve, reject) => {
    const asked = request(new URL('v1/chat/completions', url), {
      method: 'POST', agent: false, headers: { 'content-type': 'application/json' },
    });
    let text = '';
    let end;
    const ended = new Promise((done) => { end = done; });
    asked.on('response', (answer) => {
      answer.setEncoding('utf8');
      answer.on('data', (piece) => { text += piece; });
      answer.on('close', () => end(text));
      answer.on('error', () => {});
      if (answer.statusCode !== 200) reject(new Error(`status ${answer.statusCode}`));
      resolve({ close: () => asked.destroy(), ended });
    });
    asked.on('error', (error) => { end(text); reject(error); });
    asked.end(JSON.stringify({ stream: true, ...body }));
  });
}

/** Every text of the page whose contrast with what is behind it is below WCAG's 4.5. */
export const contrasts = (on) => on.evaluate(() => {
  const channels = (color) => color.match(/[\d.]+/g).map(Number);
  const luminance = (color) => channels(color).slice(0, 3).map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor;
      if ((channels(color)[3] ?? 1) === 1) return color;
    }
    return 'rgb(255, 255, 255)';
  };
  const found = [];
  for (const node of document.body.querySelectorAll('*')) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!own || ['SCRIPT', 'STYLE', 'NOSCRIPT'].includes(node.tagName) || !node.checkVisibility()) continue;
    const [a, b] = [getComputedStyle(node).color, behind(node)].map(luminance);
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) found.push(`${node.tagName}.${node.className}: ${contrast.toFixed(2)}`);
  }
  return found;
});

/** By how many pixels the page is wider than its window. */
export const sideways = (on) => on.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);

/** Runs the tests in order, tells of each, and answers with the exit status. */
export async function run(name, tests) {
  let [passed, failed] = [0, 0];
  for (const [title, test] of Object.entries(tests)) {
    try {
      await test();
      passed += 1;
      console.log(`${title} ... ok`);
    } catch (error) {
      failed += 1;
      console.log(`${title} ... FAILED\n${error.stack ?? error}`);
    }
  }
  console.log(`${name}: ${passed} of ${passed + failed} passed`);
  return failed > 0 ? 1 : 0;
}
