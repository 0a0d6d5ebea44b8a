"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const page = document.getElementById("page");
  const tip = document.getElementById("tip");
  const SVG = "http://www.w3.org/2000/svg";

  // ---- small helpers -------------------------------------------------------------------------
  const el = (tag, attrs = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(attrs)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };
  const svg = (tag, attrs = {}, text) => {
    const node = document.createElementNS(SVG, tag);
    for (const [key, value] of Object.entries(attrs)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const number = (n, digits = 2) =>
    n === null || n === undefined ? "–"
      // What rounds to zero is zero, not minus zero.
      : n.toLocaleString("en", { maximumFractionDigits: digits, signDisplay: "negative" });
  const time = (ms) => {
    if (ms === null || ms === undefined) return "–";
    return Math.abs(ms) >= 1000 ? number(ms / 1000, 3) + " s" : number(ms) + " ms";
  };
  const hover = (node, text) => {
    node.addEventListener("pointermove", (event) => {
      tip.hidden = false;
      tip.textContent = typeof text === "function" ? text(event) : text;
      tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
      tip.style.top = event.clientY + 14 + "px";
    });
    node.addEventListener("pointerleave", () => { tip.hidden = true; });
  };
  const nice = (max) => {
    if (!(max > 0)) return [0, 1];
    const raw = max / 4;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw);
    const ticks = [];
    for (let t = 0; t < max + step * 0.999; t += step) ticks.push(t);
    return ticks;
  };

  // ---- one chart frame for all ---------------------------------------------------------------
  const W = 1060, LEFT = 70, RIGHT = 70, TOP = 14, BOTTOM = 38;
  const frame = (height, { xTicks, xMax, xMin = 0, xLabel, yTicks, yLabel, xText, yText, y2 }) => {
    const root = svg("svg", { viewBox: `0 0 ${W} ${height}`, role: "img" });
    const x = (v) => LEFT + ((v - xMin) / (xMax - xMin || 1)) * (W - LEFT - RIGHT);
    const yMax = yTicks[yTicks.length - 1] || 1;
    const y = (v) => height - BOTTOM - (v / yMax) * (height - TOP - BOTTOM);
    for (const t of yTicks) {
      root.append(svg("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: y(t), y2: y(t) }));
      root.append(svg("text", { x: LEFT - 8, y: y(t) + 4, "text-anchor": "end" }, (yText || number)(t)));
    }
    for (const t of xTicks) {
      root.append(svg("text", { x: x(t), y: height - BOTTOM + 17, "text-anchor": "middle" }, (xText || number)(t)));
    }
    root.append(svg("text", { x: (LEFT + W - RIGHT) / 2, y: height - 4, "text-anchor": "middle" }, xLabel));
    root.append(svg("text", { x: 14, y: (height - BOTTOM + TOP) / 2, "text-anchor": "middle",
      transform: `rotate(-90 14 ${(height - BOTTOM + TOP) / 2})` }, yLabel));
    let right = null;
    if (y2) {
      const max2 = y2.ticks[y2.ticks.length - 1] || 1;
      right = (v) => height - BOTTOM - (v / max2) * (height - TOP - BOTTOM);
      for (const t of y2.ticks) {
        root.append(svg("text", { x: W - RIGHT + 8, y: right(t) + 4 }, number(t)));
      }
      const middle = (height - BOTTOM + TOP) / 2;
      root.append(svg("text", { x: W - 12, y: middle, "text-anchor": "middle",
        transform: `rotate(90 ${W - 12} ${middle})` }, y2.label));
    }
    return { root, x, y, right, height };
  };
  const line = (points, color, extra = {}) => {
    let path = "", pen = "M";
    for (const [px, py] of points) {
      if (py === null) { pen = "M"; continue; }
      path += `${pen}${px.toFixed(1)} ${py.toFixed(1)}`;
      pen = "L";
    }
    return svg("path", { d: path, fill: "none", stroke: `var(${color})`, "stroke-width": 2,
      "stroke-linejoin": "round", ...extra });
  };
  const legend = (...entries) => el("div", { class: "legend" }, ...entries.map(([color, name]) => {
    const mark = el("i"); mark.style.background = `var(${color})`;
    return el("span", {}, mark, name);
  }));
  const card = (title, note, ...children) => el("section", { class: "card" },
    el("h2", {}, title), el("div", { class: "soft" }, note), ...children);

  // ---- the sections --------------------------------------------------------------------------
  const cell = (f, row, column) => (f.table.find((r) => r.name === row) || { cells: [] }).cells[column];

  const withFailures = (f, row) => (f.table.find((r) => r.name === row) || {}).with_failures;
  const orInfinite = (ms) => ms === null ? "+∞" : time(ms);
  /** A table of texts; the first row is its head. */
  const table = (head, rows) => el("table", {},
    el("thead", {}, el("tr", {}, ...head.map((n) => el("th", {}, n)))),
    el("tbody", {}, ...rows.map((cells) => el("tr", {}, ...cells.map((c) => el("td", {}, c))))));

  const tiles = (f) => {
    const tile = (value, name, bad) => {
      const b = el("b", bad ? { class: "bad" } : {}, value);
      return el("div", { class: "tile" }, b, el("span", {}, name));
    };
    const error = data.selftest;
    return el("div", { class: "tiles" },
      tile(time(cell(f, "TTFT", 2)), "TTFT p50"),
      tile(time(cell(f, "TTFT", 5)), "TTFT p99"),
      tile(time(cell(f, "ITL", 5)), "ITL p99"),
      tile(time(cell(f, "E2E", 5)), "E2E p99"),
      tile(number(f.requests_per_s), "requests/s"),
      tile(number(f.output_tokens_per_s, 0), "output tokens/s"),
      tile(`${number(f.completed)} / ${number(f.planned)}`, "completed of planned"),
      tile(number(f.failed), "failed", f.failed > 0),
      ...(withFailures(f, "TTFT") ? [tile(orInfinite(withFailures(f, "TTFT")[1]), "TTFT p99 with failures", true)] : []),
      ...(f.goodput ? [tile(`${number(f.goodput.per_s)} /s`, `goodput: ${number(f.goodput.share_of_sent * 100, 1)}% of sent`)] : []),
      ...(data.is_virtual ? [] : [error ? tile("± " + time(error.ttft_added.p99_ms), "client's own TTFT error, p99")
            : tile(time(f.loop_lag_p99_ms), "client loop lag p99", f.client_late)]));
  };

  const banner = (f) => {
    if (!f.warnings.length && !f.failures.length) {
      return el("div", { class: "banner" }, data.is_virtual
        ? "No warnings: all requests succeeded. Nothing was sent: this is the engine in virtual time."
        : "No warnings: all requests succeeded and the client kept up.");
    }
    const items = [
      ...f.failures.map(([name, n]) => el("li", {}, `${number(n)} × ${name}`)),
      ...f.warnings.map((w) => el("li", {}, w)),
    ];
    return el("div", { class: "banner " + (f.failed || f.client_late ? "bad" : "warn") },
      "Before believing the rest:", el("ul", {}, ...items));
  };

  const latencyTable = (f) => {
    const names = ["mean", "min", "p50", "p90", "p95", "p99", "max"];
    const anyFailed = f.table.some((r) => r.with_failures);
    const head = el("tr", {}, el("th", {}, "latency"), ...names.map((n) => el("th", {}, n)));
    if (anyFailed) for (const p of ["p50", "p99"]) head.append(el("th", {}, `${p} w/ failed`));
    const rows = f.table.map((r) => {
      const row = el("tr", {}, el("td", {}, r.name + " ", el("small", {}, r.note)),
        ...r.cells.map((c) => el("td", {}, time(c))));
      if (anyFailed) for (const i of [0, 1]) row.append(el("td", {}, r.with_failures ? orInfinite(r.with_failures[i]) : ""));
      return row;
    });
    return card("Latency", f.open
      ? "An open loop: the headline counts from the scheduled send, so waiting for a slot is in it."
      : "A closed loop: a slow server is offered less load, and queueing does not show.",
      el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows)),
      ...(anyFailed ? [el("div", { class: "soft" }, "With failures: each failed request counts as infinitely late.")] : []),
      ...(f.goodput ? [el("div", { class: "soft" }, `Goodput: ${number(f.goodput.good)} of ${number(f.sent)} sent `
        + `(${number(f.goodput.share_of_sent * 100, 1)}%), ${number(f.goodput.per_s)} requests/s, kept ${f.goodput.goals}.`)] : []));
  };

  const serverTable = (f) => {
    if (!f.server.length) return f.server_note ? card("Server", f.server_note) : null;
    const rows = f.server.map((r) => el("tr", {}, el("td", {}, r.name), ...[r.client, r.server,
      r.simulated].map((v) => el("td", {}, time(v))),
      el("td", {}, time(r.delivery) + (r.below_resolution ? " †" : ""))));
    return card("Client and server", "Delivery is client less server: HTTP, network and this client. "
      + "† smaller than what the client adds itself.",
      el("table", {}, el("thead", {}, el("tr", {}, ...["", "client", "server", "simulated", "delivery"]
        .map((n) => el("th", {}, n)))), el("tbody", {}, ...rows)));
  };

  const joinedTable = (f) => f.joined.length ? card("Request by request",
    "Each request here joined with what the server says of the same one. Delivery has both ways of the network in it.",
    table(["", "joined", "p50", "p90", "p99", "max"], f.joined.map((r) => [r.name, number(r.n), ...r.cells.map(time)]))) : null;

  const overTime = (f) => {
    const xMax = f.duration_s;
    const yMax = Math.max(...f.dots.map((d) => d[1]), 0.001);
    const top = frame(280, { xTicks: nice(xMax).filter((t) => t <= xMax), xMax, xLabel: "seconds since the start of the schedule",
      yTicks: nice(yMax), yLabel: "TTFT, ms" });
    for (const [at, ttft, ok] of f.dots) {
      const dot = svg("circle", { cx: top.x(at), cy: top.y(ttft), r: 2.4,
        fill: ok ? "var(--main)" : "var(--bad)", "fill-opacity": 0.45 });
      hover(dot, `scheduled at ${number(at)} s\nTTFT ${time(ttft)}${ok ? "" : "\nfailed later"}`);
      top.root.append(dot);
    }
    top.root.append(line(f.slices.filter((s) => s.p50_ms !== null)
      .map((s) => [top.x(s.at_s), top.y(s.p50_ms)]), "--ink"));
    const rateMax = Math.max(...f.slices.map((s) => Math.max(s.scheduled_per_s, s.done_per_s)), 1);
    const flightMax = Math.max(...f.slices.map((s) => s.in_flight), 1);
    const low = frame(210, { xTicks: nice(xMax).filter((t) => t <= xMax), xMax, xLabel: "seconds since the start of the schedule",
      yTicks: nice(rateMax), yLabel: "requests/s", y2: { ticks: nice(flightMax), label: "in flight" } });
    const area = f.slices.map((s) => `L${low.x(s.at_s).toFixed(1)} ${low.right(s.in_flight).toFixed(1)}`).join("");
    low.root.append(svg("path", { d: `M${low.x(0)} ${low.right(0)}${area}L${low.x(xMax)} ${low.right(0)}Z`,
      fill: "var(--third)", "fill-opacity": 0.18 }));
    low.root.append(line(f.slices.map((s) => [low.x(s.at_s), low.y(s.scheduled_per_s)]), "--second"));
    low.root.append(line(f.slices.map((s) => [low.x(s.at_s), low.y(s.done_per_s)]), "--main"));
    const cover = svg("rect", { x: LEFT, y: TOP, width: W - LEFT - RIGHT, height: 210 - TOP - BOTTOM, fill: "transparent" });
    hover(cover, (event) => {
      const box = low.root.getBoundingClientRect();
      const at = ((event.clientX - box.left) / box.width * W - LEFT) / (W - LEFT - RIGHT) * xMax;
      const s = f.slices.reduce((a, b) => Math.abs(b.at_s - at) < Math.abs(a.at_s - at) ? b : a);
      return `${number(s.at_s)} s\nscheduled ${number(s.scheduled_per_s)}/s\ncompleted ${number(s.done_per_s)}/s\nin flight ${number(s.in_flight, 1)}`;
    });
    low.root.append(cover);
    return card("Over time", "Each dot is a request, placed at its scheduled send.",
      legend(["--main", "TTFT of a request"], ["--ink", "median"], ["--bad", "failed after its first token"]), top.root,
      legend(["--second", "scheduled"], ["--main", "completed"], ["--third", "in flight (right axis)"]), low.root);
  };

  const spectrum = (f) => {
    const axis = (p) => -Math.log10(1 - p / 100);
    const points = f.spectrum.filter((p) => p[1] !== null);
    if (points.length < 2) return null;
    const xMax = axis(points[points.length - 1][0]);
    const marks = [0, 50, 90, 99, 99.9, 99.99].filter((p) => axis(p) <= xMax + 1e-9);
    const failing = points.filter((p) => p[3] !== null);
    const anyFailed = Boolean(withFailures(f, "TTFT"));
    const yMax = Math.max(...points.map((p) => Math.max(p[1], p[2] ?? 0, p[3] ?? 0)));
    const chart = frame(260, { xTicks: marks.map(axis), xMax, xLabel: "percentile (as far as there are values enough)",
      xText: (t) => "p" + number(100 * (1 - 10 ** -t), 3), yTicks: nice(yMax), yLabel: "TTFT, ms" });
    chart.root.append(line(points.map((p) => [chart.x(axis(p[0])), chart.y(p[1])]), "--main"));
    if (f.open) {
      chart.root.append(line(points.filter((p) => p[2] !== null)
        .map((p) => [chart.x(axis(p[0])), chart.y(p[2])]), "--second", { "stroke-dasharray": "6 4" }));
    }
    if (failing.length > 1) {
      chart.root.append(line(failing.map((p) => [chart.x(axis(p[0])), chart.y(p[3])]), "--bad"));
    }
    const cover = svg("rect", { x: LEFT, y: TOP, width: W - LEFT - RIGHT, height: 260 - TOP - BOTTOM, fill: "transparent" });
    hover(cover, (event) => {
      const box = chart.root.getBoundingClientRect();
      const at = ((event.clientX - box.left) / box.width * W - LEFT) / (W - LEFT - RIGHT) * xMax;
      const p = points.reduce((a, b) => Math.abs(axis(b[0]) - at) < Math.abs(axis(a[0]) - at) ? b : a);
      return `p${number(p[0], 3)}\n${time(p[1])}` + (p[2] === null ? "" : `\nraw ${time(p[2])}`)
        + (anyFailed ? `\nwith failures ${orInfinite(p[3])}` : "");
    });
    chart.root.append(cover);
    return card("Percentile spectrum of TTFT",
      (f.open ? "Where the two lines part, requests waited before they were sent." : "")
        + (anyFailed ? " The line with failures ends where it becomes infinite." : ""),
      legend(...(f.open ? [["--main", "from the scheduled send"], ["--second", "raw, from the actual send"]]
        : [["--main", "from the send"]]), ...(anyFailed ? [["--bad", "with failures as infinitely late"]] : [])), chart.root);
  };

  const waterfalls = (f) => {
    if (!f.slowest.length) return null;
    const xMax = Math.max(...f.slowest.map((w) => w.last_ms), 0.001);
    const rowHeight = 24, height = TOP + BOTTOM + rowHeight * f.slowest.length;
    const chart = frame(height, { xTicks: nice(xMax).filter((t) => t <= xMax), xMax,
      xLabel: "ms since the scheduled send", yTicks: [0], yLabel: "", yText: () => "" });
    f.slowest.forEach((w, i) => {
      const y = TOP + i * rowHeight + 5;
      const bar = (from, to, color, opacity = 1) => {
        if (to <= from) return;
        chart.root.append(svg("rect", { x: chart.x(from), y, width: Math.max(chart.x(to) - chart.x(from), 1),
          height: 14, fill: `var(${color})`, "fill-opacity": opacity, rx: 2 }));
      };
      bar(0, w.queue_ms, "--second");
      bar(w.queue_ms, w.first_ms ?? w.last_ms, "--main");
      if (w.first_ms !== null) bar(w.first_ms, w.last_ms, "--third", 0.65);
      if (w.longest_gap_ms > 0) bar(w.longest_gap_at_ms, w.longest_gap_at_ms + w.longest_gap_ms, "--third");
      // The server's instants: scheduled by its engine, and released; the bar's ends are the arrivals.
      const s = w.server;
      for (const [at, color] of s ? [...(s.scheduled_ms ?? []).map((t) => [t, "--ink"]), ...s.released_ms.map((t) => [t, "--bad"])] : []) {
        if (at === null) continue;
        chart.root.append(svg("line", { class: "clock", x1: chart.x(at), x2: chart.x(at), y1: y - 2, y2: y + 16,
          stroke: `var(${color})`, "stroke-width": 1.5 }));
      }
      chart.root.append(svg("text", { x: LEFT - 8, y: y + 12, "text-anchor": "end" }, "#" + w.index));
      const cover = svg("rect", { x: 0, y: y - 5, width: W, height: rowHeight, fill: "transparent" });
      hover(cover, `request ${w.index}, scheduled at ${number(w.scheduled_s)} s\nwaited ${time(w.queue_ms)}`
        + `\nfirst token at ${time(w.first_ms)}\nlast at ${time(w.last_ms)}, ${w.tokens} tokens`
        + `\nlongest gap ${time(w.longest_gap_ms)}\n${w.outcome}`
        + (s ? `\ndelivery of the first token ${time(s.delivery_ms[0])}, of the last ${time(s.delivery_ms[1])}` : ""));
      chart.root.append(cover);
    });
    const told = f.slowest.some((w) => w.server), clock = f.slowest.some((w) => w.server?.scheduled_ms);
    const head = ["request", "waited", ...(told ? ["queued there"] : [])];
    for (const which of ["first", "last"]) {
      head.push(...(clock ? [`${which} scheduled`] : []), ...(told ? [`${which} released`] : []),
        ...(clock && which === "first" ? ["first sent"] : []), `${which} received`, ...(told ? ["delivery"] : []));
    }
    const rows = f.slowest.map((w) => {
      const s = w.server, cells = ["#" + w.index, time(w.queue_ms), ...(told ? [time(s?.queued_ms)] : [])];
      [w.first_ms, w.first_ms === null ? null : w.last_ms].forEach((received, i) => {
        cells.push(...(clock ? [time(s?.scheduled_ms?.[i])] : []), ...(told ? [time(s?.released_ms[i])] : []),
          ...(clock && i === 0 ? [time(s?.first_sent_ms)] : []), time(received), ...(told ? [time(s?.delivery_ms[i])] : []));
      });
      return [...cells, number(w.tokens), w.outcome];
    });
    return card("Slowest requests", "From the scheduled send; the darkest stretch of a decode is its longest gap."
      + (told ? " The server's clock is laid from the actual send: delivery is what was beyond its sending of the first token and its release of the last." : ""),
      legend(["--second", "waited for a slot"], ["--main", "to the first token"], ["--third", "decode"],
        ...(clock ? [["--ink", "scheduled by the engine"]] : []), ...(told ? [["--bad", "released by the server"]] : [])),
      chart.root, table([...head, "tokens", "outcome"], rows));
  };

  const sweepTable = () => {
    const goals = data.levels.some((l) => l.figures?.goodput);
    const head = ["level", "requests/s", "output tokens/s", "TTFT p50", "TTFT p99", "p99 with failures", "E2E p50", "failed",
      ...(goals ? ["goodput/s", "good of sent"] : [])];
    return table(head, data.levels.map((l) => {
      const f = l.figures;
      if (!f) return [l.name, ...head.slice(1).map(() => "–")];
      const failed = withFailures(f, "TTFT"), good = f.goodput;
      return [l.name, number(f.requests_per_s), number(f.output_tokens_per_s, 0), time(cell(f, "TTFT", 2)), time(cell(f, "TTFT", 5)),
        failed ? orInfinite(failed[1]) : time(cell(f, "TTFT", 5)), time(cell(f, "E2E", 2)), number(f.failed),
        ...(goals ? [number(good?.per_s), good ? number(good.share_of_sent * 100, 1) + "%" : "–"] : [])];
    }));
  };

  const sweep = () => {
    const rows = data.levels.map((l, i) => ({ i, name: l.name, x: Number(l.name), f: l.figures }))
      .filter((r) => r.f && Number.isFinite(r.x));
    if (rows.length < 2) return null;
    const xMax = Math.max(...rows.map((r) => r.x));
    const p99 = (r) => cell(r.f, "TTFT", 5), p50 = (r) => cell(r.f, "TTFT", 2);
    const yMax = Math.max(...rows.map((r) => p99(r) ?? 0), 0.001);
    const tokens = Math.max(...rows.map((r) => r.f.output_tokens_per_s), 1);
    const chart = frame(300, { xTicks: rows.map((r) => r.x), xMax, xLabel: data.sweep, yTicks: nice(yMax),
      yLabel: "TTFT, ms", y2: { ticks: nice(tokens), label: "output tokens/s" } });
    const knee = rows.find((r) => r.i === data.knee);
    if (knee) {
      chart.root.append(svg("line", { x1: chart.x(knee.x), x2: chart.x(knee.x), y1: TOP, y2: 300 - BOTTOM,
        stroke: "var(--soft)", "stroke-dasharray": "3 4" }));
      chart.root.append(svg("text", { x: chart.x(knee.x) + 6, y: TOP + 12, class: "ink" }, `knee at ${knee.name}`));
    }
    const series = [["--main", p99, chart.y], ["--second", p50, chart.y],
      ["--third", (r) => r.f.output_tokens_per_s, chart.right]];
    for (const [color, of, y] of series) {
      chart.root.append(line(rows.map((r) => [chart.x(r.x), of(r) === null ? null : y(of(r))]), color));
      for (const r of rows) {
        if (of(r) === null) continue;
        const dot = svg("circle", { cx: chart.x(r.x), cy: y(of(r)), r: 4.5, fill: `var(${color})` });
        hover(dot, `${r.name}\nTTFT p50 ${time(p50(r))}, p99 ${time(p99(r))}\n${number(r.f.output_tokens_per_s, 0)} output tokens/s\n${r.f.failed} failed`
          + (r.f.goodput ? `\ngoodput ${number(r.f.goodput.per_s)}/s` : ""));
        chart.root.append(dot);
      }
    }
    return card("Sweep", "The knee is the level of the greatest power: throughput over mean response time. "
      + "Beyond it latency grows faster than throughput." + (knee ? "" : " This sweep ends before it."),
      legend(["--main", "TTFT p99"], ["--second", "TTFT p50"], ["--third", "output tokens/s (right axis)"]), chart.root,
      sweepTable());
  };

  const foot = () => {
    const facts = data.environment.map(([k, v]) => `${k}: ${v}`).join(" · ");
    const error = data.selftest;
    return card("Command and environment", facts, el("pre", {}, data.command),
      error ? el("p", { class: "soft" }, `Self-test at ${error.concurrency} streams and ${number(error.chunks_per_s, 0)} chunks/s: `
        + `the client adds TTFT p50 ${time(error.ttft_added.p50_ms)}, p99 ${time(error.ttft_added.p99_ms)}; `
        + `ITL error p99 ${time(error.itl_error.p99_ms)}; schedule lag p99 ${time(error.schedule_lag.p99_ms)}.`)
        : el("p", { class: "soft" }, data.is_virtual ? "No client: nothing was sent." : "No self-test in this run."));
  };

  // ---- put together --------------------------------------------------------------------------
  const body = el("div");
  const show = (index) => {
    const level = data.levels[index];
    const parts = [];
    if (level.error) parts.push(el("div", { class: "banner bad" }, level.error));
    if (level.figures) {
      const f = level.figures;
      parts.push(el("p", { class: "soft" }, level.load), tiles(f), banner(f), overTime(f), spectrum(f),
        latencyTable(f), serverTable(f), joinedTable(f), waterfalls(f));
    }
    body.replaceChildren(...parts.filter(Boolean));
    for (const button of document.querySelectorAll("nav button")) {
      button.setAttribute("aria-pressed", String(Number(button.dataset.level) === index));
    }
  };
  document.title = `${data.title} · llmsim-bench`;
  page.replaceChildren(el("h1", {}, data.title), el("div", { class: "soft" }, data.subtitle));
  const curve = data.sweep ? sweep() : null;
  if (curve) page.append(curve);
  if (data.levels.length > 1) {
    const nav = el("nav", { "aria-label": "levels" });
    data.levels.forEach((level, i) => {
      const button = el("button", { "data-level": i, type: "button" }, level.name);
      button.addEventListener("click", () => show(i));
      nav.append(button);
    });
    page.append(nav);
  }
  page.append(body, foot());
  if (data.levels.length) show(data.knee ?? 0);
  document.documentElement.dataset.ready = "yes";
})();
