// The pictures in docs/: the live page and the report of the load generator, of a real run.
//
// Usage: node tests/browser/screenshots.mjs SERVER_BINARY BENCH_BINARY
import { execFile } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, dirname, join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { ROOT, freePort, openBrowser, startServer } from './browser.mjs';

const [server = 'target/release/llmsimulator', bench = 'target/release/llmsim-bench'] = process.argv.slice(2);
const execute = promisify(execFile);
const folder = mkdtempSync(join(tmpdir(), 'llmsim-pictures-'));
const docs = (name) => join(ROOT, 'docs', name);

// Two replicas whose batch, queue and cache a moderate load fills.
const models = join(folder, 'models.yml');
writeFileSync(models, `
version: 1
hardware:
  h100-80gb: { hbm_gib: 80, memory_bandwidth_gbps: 3000, peak_tflops: 989 }
models:
  - name: qwen-mock-batched
    replicas: 2
    context_length: 2048
    engine: scheduler
    hardware: h100-80gb
    weights: { parameters_billion: 7.6, bytes_per_parameter: 2 }
    kv_cache: { bytes_per_token: 57344, block_size: 16, num_gpu_blocks_override: 720 }
    scheduler: { max_batch_tokens: 2048, max_num_sequences: 24 }
    latency: { scheduler_overhead_ms: 14 }
    efficiency: { compute: 0.6, memory: 0.8 }
  - name: qwen-mock
    context_length: 32768
    engine: fixed_rate
    performance: { prefill_tokens_per_second: 100000, decode_tokens_per_second: 50 }
`);
const simulator = await startServer(server, await freePort(), models);
const browser = await openBrowser();
const wide = await browser.open(simulator.url, { width: 1280 });
const phone = await browser.open(simulator.url, { width: 390, height: 844, colorScheme: 'dark' });

// Called by its name, as the report will tell.
const environment = { ...process.env, PATH: `${resolve(dirname(bench))}${delimiter}${process.env.PATH}` };
const load = (model, stages, more = []) => execute('llmsim-bench', ['--url', simulator.url, '--model', model,
  '--load', stages, '--input-tokens', '400', '--max-tokens', '260', '--range-ratio', '0.5', '--seed', '1',
  '--ignore-eos', '--no-progress', '--warmup', '0', ...more],
{ maxBuffer: 1 << 26, cwd: folder, env: environment });
const report = join(folder, 'report.html');
await Promise.all([
  load('qwen-mock-batched', 'ramp 1->7 50s; hold 20s; spike 13 15s; ramp 6->3 30s; hold 130s', ['--html', 'report.html']),
  load('qwen-mock', 'ramp 1->4 100s; hold 140s', ['--no-selftest']),
  (async () => {
    // After the spike, as soon as the server is on time.
    for (const [page, name, clip] of [[wide, 'live-page.png'],
      [phone, 'live-page-phone-dark.png', { x: 0, y: 0, width: 390, height: 1120 }]]) {
      await page.bringToFront();
      await page.waitForFunction(() => events.length > 130 && events.at(-1).gpus[0].running > 0
        && document.getElementById('verdict-word').textContent === 'On time', undefined, { timeout: 300_000 });
      await page.screenshot({ path: docs(name), fullPage: true, clip });
    }
  })(),
]);
await simulator.stop();
const page = await browser.open(pathToFileURL(report).href, { width: 1280 });
await page.screenshot({ path: docs('bench-report.png'), fullPage: true });
await browser.close();
rmSync(folder, { recursive: true });
