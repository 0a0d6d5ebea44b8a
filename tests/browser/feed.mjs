// A made-up server: the live page, and a feed of states that a real server reaches rarely or only
// under real stress (sixteen GPUs, a late verdict, names full of markup). The shape is that of
// `GET /ui/data` in docs/metrics.md.
import { createServer } from 'node:http';
import { readFile } from 'node:fs/promises';

const PAGE = new URL('../../server/src/ui/page.html', import.meta.url);
const wave = (t, period, shift = 0) => 0.5 + 0.5 * Math.sin((2 * Math.PI * t) / period + shift);

/** The state at second `t` of a made-up run. */
export function state(t, { gpus = 1, models = ['qwen-mock-batched'], late = false, start = 1764618000, idle = false } = {}) {
  const spread = (p50, factor, samples) => samples === 0 ? { samples, p50: null, p90: null, p99: null }
    : { samples, p50, p90: p50 * (1 + 0.3 * factor), p99: p50 * (1 + 1.1 * factor) };
  return {
    time: start + t, uptime_seconds: t + 400, version: '0.1.0', window_seconds: 60,
    verdict: {
      ok: !late, reason: late ? 'cpu_starved' : 'ok', reasons: late ? ['cpu_starved', 'engine_late'] : [],
      since_seconds: 93, p99_lag_seconds: idle ? null : late ? 0.0183 + 0.004 * wave(t, 40) : 0.0004 + 0.0003 * wave(t, 31),
      threshold_seconds: 0.005, window_seconds: 10, tokens: idle ? 0 : 51200,
    },
    process: {
      cpu_seconds_per_second: { io: 0.31, gpu: 0.06, helper: 0.01, other: 0 }, resident_bytes: 14680064,
      connections: 256, requests_in_flight: idle ? 0 : 256, io_driver: 'io_uring', io_threads: 1,
    },
    gpus: Array.from({ length: gpus * models.length }, (_, index) => {
      const load = idle ? 0 : wave(t, 170, index * 0.9) ** 0.7;
      const running = Math.round(256 * Math.min(1, load * 1.2));
      return {
        model: models[Math.floor(index / gpus)], replica: index % gpus, engine: 'scheduler', running,
        waiting: Math.round(Math.max(0, 60 * (load - 0.8) * 5)), waiting_preempted: load > 0.95 ? 3 : 0, max_running: 256,
        kv_blocks_used: Math.round(38000 * load), kv_blocks_total: 41227, kv_usage: (38000 * load) / 41227,
        preemptions: Math.round(t / 20), preemptions_per_second: load > 0.9 ? 4 * (load - 0.9) * 10 : 0,
        steps_per_second: running ? 48 - 6 * load : 0, step_seconds: running ? 0.0203 + 0.006 * load + 0.0004 * wave(t, 7) : null,
        step_bound: running ? 'memory' : null, batch_tokens: running ? running + 3.2 : null, batch_sequences: running || null,
        prompt_tokens_per_second: 2048 * load, output_tokens_per_second: running * (48 - 6 * load),
        admission_stop: load > 0.8 ? 'sequence_limit' : 'queue_empty', memory_used_bytes: 42949672960,
        memory_total_bytes: 85899345920, compute_utilisation: 0.22 * load, memory_bandwidth_utilisation: 0.93 * Math.min(1, load * 2), busy: 0.9,
      };
    }),
    models: models.map((model) => ({
      model, engine: 'scheduler', running: idle ? 0 : 48, requests: { stop: idle ? 0 : 310, length: idle ? 0 : 12, cancelled: idle ? 0 : 1, error: 0 },
      requests_per_second: idle ? 0 : 4.9 + 3 * wave(t, 50), prompt_tokens_per_second: 2048, output_tokens_per_second: 2285,
      ttft: spread(0.043 + 0.02 * wave(t, 120), 1 + wave(t, 17), idle ? 0 : 294),
      itl: spread(0.021 + 0.005 * wave(t, 170), 0.2 + wave(t, 23), idle ? 0 : 20000),
      lag: spread(0.0003, 1 + wave(t, 19), idle ? 0 : 20000), engine_lag: spread(0.00001, 2, idle ? 0 : 20000),
    })),
  };
}

/** Serves the page, and `past` seconds of the feed at once, then one state each `every` ms. */
export async function serve({ past = 299, every = 1000, port = 0, headers = {}, ...what } = {}) {
  const server = createServer(async (request, response) => {
    if (request.url === '/ui/data') {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      let t = 0;
      const send = () => response.write(`data: ${JSON.stringify(state(t++, what))}\n\n`);
      while (t <= past) send();
      const timer = every ? setInterval(send, every) : null;
      response.on('close', () => clearInterval(timer));
    } else if (request.url === '/') {
      response.writeHead(200, { 'content-type': 'text/html; charset=utf-8', ...headers });
      response.end(await readFile(PAGE));
    } else {
      response.writeHead(404).end();
    }
  });
  await new Promise((ready) => server.listen(port, '127.0.0.1', ready));
  return {
    url: `http://127.0.0.1:${server.address().port}/`,
    close: () => { server.closeAllConnections(); server.close(); },
  };
}
