// The HTML report of llmsim-bench in a real browser, made by a short run against the simulator.
//
// Usage: node tests/browser/test_report.mjs SERVER_BINARY BENCH_BINARY
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { contrasts, freePort, openBrowser, run, sideways, startServer } from './browser.mjs';

const [server = 'target/release/llmsimulator', bench = 'target/release/llmsim-bench'] = process.argv.slice(2);
const LABEL = '</script><script>window.wasRun = 1</script>';
const folder = mkdtempSync(join(tmpdir(), 'llmsim-report-'));
const [html, json] = ['report.html', 'report.json'].map((name) => join(folder, name));

const simulator = await startServer(server, await freePort());
await promisify(execFile)(bench, ['--url', simulator.url, '--model', 'qwen-mock-batched',
  '--rate', '10', '--requests', '40', '--input-tokens', '64', '--max-tokens', '20', '--warmup', '0',
  '--goodput', 'ttft:1000', '--label', LABEL, '--html', html, '--format', 'json', '--output', json, '--no-progress'],
{ maxBuffer: 1 << 26 });
await simulator.stop();

const figures = JSON.parse(readFileSync(json, 'utf8'));
const [level] = figures.levels;
const browser = await openBrowser();
const page = await browser.open(pathToFileURL(html).href);

/** The figure that a tile shows: its number, in milliseconds if it is a time. */
const tile = async (name) => {
  const text = await page.locator('.tile').filter({ hasText: name }).locator('b').innerText();
  const [, number, unit] = text.replaceAll(',', '').match(/^(?:± )?([\d.]+) ?(m?s)?/);
  return Number(number) * (unit === 's' ? 1000 : 1);
};
const near = (shown, exact, digits = 2) =>
  assert.ok(Math.abs(shown - exact) <= 0.5 * 10 ** -digits + 1e-6 + (exact >= 1000 ? 0.5 : 0), `${shown}, not ${exact}`);

const status = await run('report', {
  'the headline figures are those of the JSON result': async () => {
    const at = (name, percent) => level.latency_ms[name].percentiles[percent];
    near(await tile('TTFT p50'), at('ttft', 'p50'));
    near(await tile('TTFT p99'), at('ttft', 'p99'));
    near(await tile('ITL p99'), at('itl', 'p99'));
    near(await tile('E2E p99'), at('e2e', 'p99'));
    near(await tile('requests/s'), level.throughput.requests_per_s);
    near(await tile('output tokens/s'), level.throughput.output_tokens_per_s, 0);
    assert.equal(await page.locator('.tile').filter({ hasText: 'completed of planned' }).locator('b').innerText(), '40 / 40');
    assert.equal(await tile('failed'), 0);
  },

  'the charts are drawn': async () => {
    // A dot per request that had a first token, all inside their chart.
    const dots = await page.locator('svg').first().locator('circle').evaluateAll((all) =>
      all.map((dot) => [Number(dot.getAttribute('cx')), Number(dot.getAttribute('cy'))]));
    assert.equal(dots.length, 40);
    const [, , width, height] = (await page.locator('svg').first().getAttribute('viewBox')).split(' ').map(Number);
    assert.ok(dots.every(([x, y]) => x > 0 && x < width && y > 0 && y < height));
    const paths = await page.locator('svg path').evaluateAll((all) => all.map((path) => path.getAttribute('d')));
    assert.ok(paths.length >= 4, `${paths.length} lines`);
    assert.ok(paths.every((path) => path.startsWith('M') && !/NaN|undefined|Infinity/.test(path)), paths.join('\n'));
    assert.ok(await page.locator('svg').count() >= 4);
  },

  'each request is joined with the clock of the server': async () => {
    const joined = page.locator('section').filter({ has: page.locator('h2', { hasText: 'Request by request' }) });
    const rows = await joined.locator('tbody tr').evaluateAll((all) =>
      all.map((row) => [...row.cells].map((cell) => cell.innerText)));
    assert.equal(rows.length, 5);
    for (const [name, count] of rows) assert.equal(count, '40', name);
    // A request that was received was released before, and scheduled before that.
    const slowest = page.locator('section').filter({ has: page.locator('h2', { hasText: 'Slowest requests' }) });
    const heads = await slowest.locator('th').allInnerTexts();
    const ms = (text) => parseFloat(text.replaceAll(',', '')) * (/ s$/.test(text) ? 1000 : 1);
    const cells = await slowest.locator('tbody tr').evaluateAll((all) =>
      all.map((row) => [...row.cells].map((cell) => cell.innerText)));
    assert.ok(cells.length > 0);
    for (const which of ['first', 'last']) {
      const places = ['scheduled', 'released', 'received'].map((what) => heads.indexOf(`${which} ${what}`));
      assert.ok(places.every((place) => place > 0), heads.join(', '));
      for (const row of cells) {
        const [scheduled, released, received] = places.map((place) => ms(row[place]));
        assert.ok(scheduled <= released + 0.01 && released <= received + 1.01, row.join(', '));
      }
    }
    assert.ok(await slowest.locator('svg .clock').count() > 0);
  },

  'goodput is that of the JSON result': async () => {
    const { good, share_of_sent: share } = level.goodput;
    const shown = await page.locator('body').innerText();
    assert.ok(shown.includes(`Goodput: ${good} of 40 sent (${Number((share * 100).toFixed(1))}%)`));
  },

  'a chart tells its figures where it is pointed at': async () => {
    await page.locator('svg circle').first().hover();
    await page.locator('#tip').filter({ hasText: /TTFT [\d.,]+ m?s/ }).waitFor({ state: 'visible' });
  },

  'what the command line said stays text': async () => {
    assert.equal(await page.evaluate('window.wasRun'), undefined);
    assert.ok((await page.locator('body').innerText()).includes(LABEL));
  },

  'nothing is fetched, and nothing complained': async () => {
    assert.deepEqual(page.asked, [pathToFileURL(html).href]);
    assert.deepEqual(page.complaints, []);
  },

  'light and dark are both readable': async () => {
    for (const colorScheme of ['light', 'dark']) {
      await page.emulateMedia({ colorScheme });
      assert.deepEqual(await contrasts(page), [], colorScheme);
    }
  },

  'no width scrolls sideways': async () => {
    for (const width of [360, 768, 1280]) {
      await page.setViewportSize({ width, height: 800 });
      assert.ok(await sideways(page) <= 0, `at ${width}`);
    }
  },
});

await browser.close();
rmSync(folder, { recursive: true });
process.exit(status);
