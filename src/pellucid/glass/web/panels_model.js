"use strict";
/* Panels 1–5: what the model saw, computed and chose. Each is a custom element with draw(trace, cursor). */

class Panel extends HTMLElement {
  constructor() { super(); this.isDirty = true; }
  get page() { return this.closest("pl-page"); }

  /** Draw with the page's trace and cursor. */
  refresh() {
    const { trace, cursor } = this.page;
    const sequence = trace.sequences.get(cursor.request);
    this.isDirty = false;
    const held = this.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
    let content;
    try {
      content = sequence || this.needsNoSequence ? this.draw(trace, sequence, cursor) : [note(t("no_request"))];
    } catch (error) {
      content = [note(t("panel_failed"), "warn")];
      console.error(error);
    }
    const title = t("panel." + this.dataset.name);
    this.replaceChildren(
      h("h2", { id: `h-${this.dataset.name}` }, h("span", { class: "num", "aria-hidden": "true" }, this.dataset.number), title),
      h("p", { class: "lead" }, t("lead." + this.dataset.name)),
      ...[content].flat(3).filter((item) => item !== null && item !== undefined && item !== false));
    if (held) { const again = [...this.querySelectorAll("[data-key]")].find((one) => one.dataset.key === held); if (again) again.focus({ preventScroll: true }); }
  }
}

/** Tokens as a strip; arrow keys move the page's cursor. Long ones show a window around the cursor. */
function tokenStrip(page, sequence, { from = 0, to = sequence.length, shade = null, label = t("strip") } = {}) {
  const WINDOW = 600;
  const { cursor } = page;
  let [first, last] = [from, to];
  if (last - first > WINDOW) {
    first = Math.max(from, Math.min(cursor.token - WINDOW / 2, to - WINDOW));
    last = first + WINDOW;
  }
  const items = [];
  for (let pos = first; pos < last; pos += 1) {
    const token = sequence.token(pos);
    if (!token) break;
    const isCurrent = pos === cursor.token;
    const name = pieceText(token.data);
    items.push(h("div", {
      class: `tok ${token.kind}${token.cached ? " cached" : ""}${isCurrent ? " current" : ""}`,
      role: "option", "aria-selected": isCurrent ? "true" : "false", tabindex: isCurrent ? 0 : -1,
      "data-pos": pos, "data-key": isCurrent ? "strip-current" : undefined,
      "aria-label": `${name} ${idText(token.id)}, ${t("position")} ${pos}${token.cached ? ", " + t("cached") : ""}`,
      title: tokenTitle(page.trace, token, name),
      style: shade && shade(pos) !== null ? { "--shade": shade(pos) } : {},
    }, h("span", { class: "txt" }, h("bdi", {}, name)), " ", h("span", { class: "id" }, idText(token.id))));
  }
  const strip = h("div", { class: "strip", role: "listbox", "aria-label": label, "aria-orientation": "horizontal" }, items);
  strip.addEventListener("click", (event) => {
    const option = event.target.closest("[data-pos]");
    if (option) page.move({ token: Number(option.dataset.pos) });
  });
  const hidden = to - from - (last - first);
  return [strip, hidden > 0 ? note(t("strip_window", { first, last: last - 1, hidden }), "warn") : null];
}

function tokenTitle(trace, token, name) {
  const lines = [`${name}  #${idText(token.id)}  ${hex(token.data)}`];
  if (token.sample && token.sample.stages.length) {
    lines.push(t("alternatives") + ":");
    for (const [id, , p] of token.sample.stages[0].top.slice(0, 6)) lines.push(`  ${percent(p)}  ${trace.piece(id)}${id === token.sample.id ? "  ◀" : ""}`);
  }
  return lines.join("\n");
}

class TextPanel extends Panel {
  draw(trace, sequence, cursor) {
    const token = sequence.token(cursor.token);
    const request = sequence.request;
    if (!request) return note(t("no_request"));
    const cached = request.tokens.filter((one) => one.cached).length;
    const params = Object.entries(request.params || {});
    const chosen = params.filter(([, one]) => one.source !== "default");
    return [
      facts(fact(t("prompt_tokens"), show(request.tokens.length), "measured"), request.cachedUnknown ? null : fact(t("cached_tokens"), show(cached), "measured"),
        fact(t("generated_tokens"), show(sequence.samples.length), "measured")),
      h("p", { class: "legend" }, h("span", { class: "tok special" }, t("kind.special")), h("span", { class: "tok byte" }, t("kind.byte")),
        h("span", { class: "tok cached" }, t("cached")), h("span", { class: "tok generated" }, t("kind.generated"))),
      tokenStrip(this.page, sequence),
      token ? facts(fact(t("token"), h("bdi", { class: "mono" }, pieceText(token.data))), fact("id", idText(token.id), token.id < 0 ? null : "measured"), fact(t("bytes"), h("span", { class: "mono" }, hex(token.data) || "∅"), "measured"),
        fact(t("kind"), t("kind." + token.kind)), fact(t("position"), show(token.pos), "measured"),
        token.kind === "generated" || request.cachedUnknown ? null : fact(t("work"), token.cached ? t("cached") : t("computed"), "measured")) : null,
      h("details", {}, h("summary", {}, t("rendered")), h("pre", { class: "text", tabindex: 0 }, request.rendered)),
      request.template ? h("details", {}, h("summary", {}, t("template")), h("pre", { class: "text", tabindex: 0 }, String(request.template))) : null,
      params.length ? h("details", {}, h("summary", {}, t("params", { n: chosen.length })),
        table(t("params_caption"), [t("name"), t("value"), t("source")], params.map(([name, one]) => [name, JSON.stringify(one.value), t("source." + one.source)]))) : null,
    ];
  }
}

class PositionPanel extends Panel {
  draw(trace, sequence, cursor) {
    const rope = trace.header && trace.header.model && trace.header.model.rope;
    if (!rope) return note(t("no_rope"));
    const engine = trace.header.engine || {};
    const limit = engine.max_model_len || rope.max_pos;
    const inverse = rope.inv_freq || [];
    const angle = (f) => { const a = (cursor.token * f) % (2 * Math.PI); return a; };
    const dials = inverse.map((f, pair) => {
      const a = angle(f);
      return s("g", { transform: `translate(${14 + (pair % 32) * 27} ${14 + Math.floor(pair / 32) * 30})` }, s("title", {}, `${t("pair")} ${pair}: ${show(a)} rad`),
        s("circle", { r: 10, class: "dial" }), s("line", { x1: 0, y1: 0, x2: show(10 * Math.cos(a)), y2: show(-10 * Math.sin(a)), class: "hand" }));
    });
    const meter = (name, max) => max ? h("div", { class: "meterrow" }, h("span", {}, name), h("span", { class: "meter", role: "img", "aria-label": `${cursor.token} / ${max}` }, h("i", { style: { width: `${Math.min(100, (100 * (cursor.token + 1)) / max)}%` } })), h("span", { class: "n" }, `${show(cursor.token)} / ${show(max)}`)) : null;
    return [
      facts(fact("RoPE", String(rope.type), "measured"), fact("θ", show(rope.theta), "measured"), fact(t("factor"), rope.factor === null ? t("none") : show(rope.factor), "measured"),
        fact(t("position"), show(cursor.token), "measured")),
      meter(t("trained_limit"), rope.orig_ctx), meter(t("model_limit"), rope.max_pos), meter(t("engine_limit"), limit),
      cursor.token >= (rope.orig_ctx || Infinity) ? note(t("beyond_trained"), "warn") : null,
      inverse.length ? [h("h3", {}, t("angles"), badge("derived")),
        s("svg", { viewBox: `0 0 ${Math.min(32, inverse.length) * 27 + 4} ${Math.ceil(inverse.length / 32) * 30}`, class: "dials", role: "img", "aria-label": t("angles_label", { pos: cursor.token }) }, dials),
        behind(t("angles"), [t("pair"), t("radians_per_position"), t("angle"), t("wavelength")], inverse.map((f, pair) => [pair, f, angle(f), (2 * Math.PI) / f]))] : null,
    ];
  }
}

const METRICS = ["resid_rms", "attn_rms", "mlp_rms", "share"];
function metricOf(event, metric) {
  if (!event) return null;
  if (metric !== "share") return number(event[metric]);
  const [a, m] = [number(event.attn_rms), number(event.mlp_rms)];
  return m + a ? m / (a + m) : 0;
}

class LayerPanel extends Panel {
  draw(trace, sequence, cursor) {
    if (!sequence.layers.size) return note(t("no_layers"));
    const page = this.page;
    const positions = [...sequence.layers.keys()].sort((a, b) => a - b);
    const nLayers = sequence.maxLayer + 1;
    const metric = this.metric || "resid_rms";
    const pos = positions.includes(cursor.token) ? cursor.token : positions.reduce((best, one) => (Math.abs(one - cursor.token) < Math.abs(best - cursor.token) ? one : best), positions[0]);
    const select = h("select", { "aria-label": t("metric"), "data-key": "metric" }, METRICS.map((one) => h("option", { value: one, selected: one === metric }, t("metric." + one))));
    select.addEventListener("change", () => { this.metric = select.value; this.refresh(); });
    const event = sequence.layer(pos, cursor.layer);
    return [
      h("div", { class: "row" }, h("label", {}, t("metric"), " ", select), badge(metric === "share" ? "derived" : "measured")),
      this.heatmap(sequence, positions, nLayers, metric, pos, cursor.layer),
      note(t("heat_help")),
      pos !== cursor.token ? note(t("row_not_traced", { pos }), "warn") : null,
      h("h3", {}, t("layer_at", { layer: cursor.layer, pos }), " ", h("bdi", { class: "mono chip" }, sequence.name(pos))),
      event ? facts(fact(t("metric.resid_rms"), show(event.resid_rms), "measured"), fact(t("metric.attn_rms"), show(event.attn_rms), "measured"),
        fact(t("metric.mlp_rms"), show(event.mlp_rms), "measured"), fact(t("absmax"), show(event.absmax), "measured"), fact(t("nonfinite"), show(event.nonfinite), "measured")) : null,
      h("div", { class: "cols" }, this.attention(sequence, event), this.lens(trace, sequence, pos, nLayers, cursor.layer)),
      event && event.moe ? [h("h3", {}, t("experts"), badge("measured")), table(t("experts"), [t("expert"), t("weight")], event.moe.ids.map((id, k) => [id, event.moe.w[k]]))] : null,
      behind(t("layers_table", { pos }), [t("layer"), t("metric.resid_rms"), t("metric.attn_rms"), t("metric.mlp_rms"), t("absmax"), t("nonfinite")],
        Array.from({ length: nLayers }, (_, layer) => sequence.layer(pos, layer)).filter(Boolean).map((one) => [one.layer, one.resid_rms, one.attn_rms, one.mlp_rms, one.absmax, one.nonfinite])),
    ];
  }

  heatmap(sequence, positions, nLayers, metric, current, layer) {
    const cell = Math.max(2, Math.min(22, Math.floor(960 / positions.length)));
    const tall = Math.max(6, Math.min(16, Math.floor(420 / nLayers)));
    const [width, height] = [positions.length * cell, nLayers * tall];
    const canvas = h("canvas", { width, height, role: "img", "aria-label": t("heat_label", { layers: nLayers, tokens: positions.length, metric: t("metric." + metric) }), class: "heat" });
    const context = canvas.getContext("2d");
    const values = positions.map((pos) => Array.from({ length: nLayers }, (_, l) => metricOf(sequence.layer(pos, l), metric)));
    const scale = (x) => (metric === "share" ? x : Math.log(Math.max(x, 1e-9)));
    const known = values.flat().filter((x) => x !== null && Number.isFinite(x)).map(scale).sort((a, b) => a - b);
    const [low, high] = [known[0] ?? 0, known[known.length - 1] ?? 1];
    values.forEach((column, x) => column.forEach((value, l) => {
      const y = (nLayers - 1 - l) * tall;
      if (value === null) return;
      context.fillStyle = Number.isFinite(value) ? heatColour(high > low ? (scale(value) - low) / (high - low) : 0.5) : "#ff00aa";
      context.fillRect(x * cell, y, cell > 3 ? cell - 1 : cell, tall - 1);
    }));
    const x = positions.indexOf(current);
    context.lineWidth = 2;
    context.strokeStyle = "#fff"; context.strokeRect(x * cell, (nLayers - 1 - layer) * tall - 1, cell, tall + 1);
    context.strokeStyle = "#000"; context.strokeRect(x * cell - 2, (nLayers - 1 - layer) * tall - 3, cell + 4, tall + 5);
    canvas.addEventListener("click", (event) => {
      const box = canvas.getBoundingClientRect();
      const column = Math.floor(((event.clientX - box.left) / box.width) * positions.length);
      const row = Math.floor(((event.clientY - box.top) / box.height) * nLayers);
      this.page.move({ token: positions[Math.max(0, Math.min(positions.length - 1, column))], layer: Math.max(0, Math.min(nLayers - 1, nLayers - 1 - row)) });
    });
    const back = (y) => (metric === "share" ? y : Math.exp(y));
    return h("div", { class: "heatbox" }, h("span", { class: "axis" }, `${t("layer")} ${nLayers - 1} ↑`),
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": t("heatmap") }, canvas),
      h("span", { class: "axis" }, `0 · ${t("position")} ${positions[0]} → ${positions[positions.length - 1]}`),
      h("div", { class: "scale" }, show(back(low), 3), h("span", { class: "ramp", "aria-hidden": "true" }), show(back(high), 3), metric === "share" ? "" : ` · ${t("log_scale")}`));
  }

  attention(sequence, event) {
    if (!event || !event.attn || !event.attn.length) return h("div", {}, h("h3", {}, t("attention")), note(t("no_attention")));
    const heads = event.attn;
    const head = this.head === undefined || this.head >= heads.length ? "mean" : this.head;
    const select = h("select", { "aria-label": t("head"), "data-key": "head" }, h("option", { value: "mean", selected: head === "mean" }, t("mean_heads")), heads.map((one) => h("option", { value: one.head, selected: one.head === head }, `${t("head")} ${one.head}`)));
    select.addEventListener("change", () => { this.head = select.value === "mean" ? undefined : Number(select.value); this.refresh(); });
    const weights = new Map();
    let other = 0;
    for (const one of head === "mean" ? heads : [heads.find((each) => each.head === head)]) {
      const share = head === "mean" ? 1 / heads.length : 1;
      one.idx.forEach((key, k) => weights.set(key, (weights.get(key) || 0) + share * one.w[k]));
      other += share * one.other;
    }
    const ranked = [...weights].sort((a, b) => b[1] - a[1]).slice(0, 16);
    const beyond = [...weights].slice().sort((a, b) => b[1] - a[1]).slice(16).reduce((sum, one) => sum + one[1], other);
    return h("div", {}, h("h3", {}, t("attention"), badge("recomputed")), h("label", {}, t("head"), " ", select),
      table(t("attention_caption"), [t("key_token"), t("position"), t("weight"), t("picture")], [
        ...ranked.map(([key, w]) => [h("bdi", { class: "mono" }, sequence.name(key)), key, w, bar(w)]), [t("other_keys"), "", beyond, bar(beyond)]], { class: "bars" }));
  }

  lens(trace, sequence, pos, nLayers, current) {
    const layers = Array.from({ length: nLayers }, (_, layer) => sequence.layer(pos, layer));
    if (!layers.some((one) => one && one.lens)) return h("div", {}, h("h3", {}, t("lens")), note(t("no_lens")));
    return h("div", {}, h("h3", {}, t("lens"), badge("recomputed")),
      table(t("lens_caption"), [t("layer"), t("lens_top"), t("entropy")], layers.map((one, layer) => one && one.lens ? {
        attributes: { class: layer === current ? "current" : undefined, "aria-current": layer === current ? "true" : undefined },
        cells: [layer, h("span", { class: "lens" }, one.lens.ids.map((id, k) => h("span", { class: "cand", style: { "--shade": one.lens.p[k] } }, h("bdi", {}, trace.piece(id)), " ", h("small", {}, percent(one.lens.p[k]))))), one.lens.entropy] } : null).filter(Boolean).reverse()));
  }
}

/** 0…1 → a colour that gets lighter evenly (dark blue, violet, orange, pale yellow). */
function heatColour(x) {
  const stops = [[18, 20, 74], [86, 38, 140], [184, 55, 121], [245, 125, 60], [252, 226, 150]];
  const at = Math.max(0, Math.min(0.9999, x)) * 4;
  const [a, b] = [stops[Math.floor(at)], stops[Math.floor(at) + 1]];
  return `rgb(${a.map((v, k) => Math.round(v + (b[k] - v) * (at % 1))).join(",")})`;
}

class SamplingPanel extends Panel {
  draw(trace, sequence, cursor) {
    const sample = this.sampleAt(sequence, cursor);
    if (!sequence.samples.length) return note(t("no_samples"));
    if (!sample) return note(t("not_drawn"));
    const last = sample.stages[sample.stages.length - 1];
    const isWhole = Boolean(sample.rng);
    return [
      h("p", { class: "big" }, t("chose"), " ", h("bdi", { class: "mono chip" }, trace.piece(sample.id)), " ", t("at_position", { pos: sequence.prompt.length + sequence.samples.indexOf(sample) })),
      facts(fact(t("logprob_raw"), show(sample.logprob_raw), "measured"), sample.logprob_final === null ? null : fact(t("logprob_final"), show(sample.logprob_final), "measured"), fact(t("top2_gap"), show(sample.top2_gap), "measured"),
        sample.rng ? fact("u", sample.rng.u === null ? t("greedy") : show(sample.rng.u, 8), "measured") : null, sample.rng ? fact(t("seed"), String(sample.rng.seed), "measured") : null),
      h("div", { class: "waterfall", role: "list", tabindex: 0, "aria-label": t("panel.sampling") }, sample.stages.map((stage, place) => this.stage(trace, sample, stage, sample.stages[place - 1]))),
      last && isWhole ? this.line(trace, sample, last) : null,
      sample.stages.length ? whatIf(this, trace, sample) : null,
    ];
  }

  /** The draw of the token at the cursor; on a prompt, the first one. */
  sampleAt(sequence, cursor) {
    const place = cursor.token - sequence.prompt.length;
    return sequence.samples[Math.max(0, place)] || null;
  }

  stage(trace, sample, stage, before) {
    const listed = new Set(stage.top.map(([id]) => id));
    const gone = before && stage.alive <= stage.top.length ? before.top.filter(([id]) => !listed.has(id)) : [];
    const row = ([id, logit, p], isGone) => h("li", { class: `${id === sample.id ? "chosen" : ""}${isGone ? " gone" : ""}`, title: `#${idText(id)} logit ${show(logit)}` },
      h("bdi", { class: "mono" }, isGone ? h("s", {}, trace.piece(id)) : trace.piece(id)), h("span", { class: "n" }, isGone ? t("removed") : percent(p)), isGone ? null : bar(p), id === sample.id ? h("span", { class: "mark", "aria-label": t("chosen") }, "◀") : null);
    const name = TEXTS["stage." + stage.name] ? t("stage." + stage.name) : stage.name;
    return h("div", { class: "stage", role: "listitem" }, h("h3", {}, name, stage.param === null || stage.param === undefined ? null : h("small", {}, " ", typeof stage.param === "object" ? JSON.stringify(stage.param).slice(0, 60) : show(stage.param))),
      stage.alive === null ? h("p", { class: "sub" }, t("logprobs_only"), badge("measured")) : h("p", { class: "sub" }, h("b", {}, show(stage.alive)), " ", t("alive"), h("br"), t("entropy"), " ", h("b", {}, show(stage.entropy, 3)), h("br"), t("mass_removed"), " ", h("b", {}, percent(number(stage.mass_removed) || 0)), " ", badge("measured")),
      h("ol", {}, stage.top.map((one) => row(one, false)), gone.map((one) => row(one, true))),
      stage.chosen && !listed.has(sample.id) ? h("p", { class: "sub" }, "… ", h("bdi", { class: "mono" }, trace.piece(sample.id)), ` ${percent(stage.chosen.p)}, ${t("rank")} ${stage.chosen.rank}`) : null);
  }

  line(trace, sample, last) {
    const u = sample.rng ? sample.rng.u : null;
    let at = 0;
    const parts = last.top.map(([id, , p], k) => { const x = at; at += p; return { id, x, p, k }; });
    const W = 1000;
    return h("figure", {}, h("figcaption", {}, t("cumulative"), badge("measured")),
      s("svg", { viewBox: `0 0 ${W} 64`, class: "wide", role: "img", "aria-label": u === null ? t("greedy_line") : t("u_line", { u: show(u, 6), token: trace.piece(sample.id) }) },
        parts.map(({ id, x, p, k }) => s("g", {}, s("title", {}, `${trace.piece(id)} ${percent(p)}`), s("rect", { x: x * W, y: 18, width: Math.max(0.5, p * W - 1), height: 28, class: id === sample.id ? "seg on" : `seg s${k % 2}` }),
          p > 0.04 ? s("text", { x: (x + p / 2) * W, y: 37, "text-anchor": "middle", class: id === sample.id ? "seglabel on" : "seglabel" }, trace.piece(id).slice(0, Math.floor(p * 90))) : null)),
        at < 0.999 ? s("rect", { x: at * W, y: 18, width: (1 - at) * W, height: 28, class: "seg rest" }) : null,
        u === null ? null : s("g", { class: "udraw" }, s("line", { x1: u * W, x2: u * W, y1: 10, y2: 52 }), s("text", { x: u * W, y: 9, "text-anchor": u > 0.9 ? "end" : u < 0.1 ? "start" : "middle" }, `u = ${show(u, 5)}`)),
        s("text", { x: 0, y: 62, class: "tick" }, "0"), s("text", { x: W, y: 62, "text-anchor": "end", class: "tick" }, "1")));
  }
}

/** Sliders that run the sampler again on the recorded logits. */
function whatIf(panel, trace, sample) {
  const state = panel.whatIf || (panel.whatIf = { temperature: 1, top_k: 0, top_p: 1, min_p: 0 });
  const raw = sample.stages[0];
  const output = h("div", { class: "whatif-out", "aria-live": "polite" });
  const run = () => {
    const rest = Math.max(0, 1 - raw.top.reduce((sum, one) => sum + one[2], 0));
    const drawn = resample(raw.top, state);
    const u = sample.rng ? sample.rng.u : null;
    let at = 0, pick = drawn[0] ? drawn[0].id : null;
    for (const one of drawn) { if (u === null || state.temperature <= 1e-5) break; at += one.p; if (u < at) { pick = one.id; break; } pick = one.id; }
    if (!sample.rng) pick = null; // how it was drawn is not known here
    output.replaceChildren(table(t(sample.rng ? "whatif_caption" : "whatif_shares"), [t("token"), t("before"), t("after"), t("picture")], raw.top.map(([id, , p]) => {
      const now = drawn.find((one) => one.id === id);
      return { attributes: { class: id === pick ? "current" : undefined }, cells: [h("bdi", { class: "mono" }, now ? trace.piece(id) : h("s", {}, trace.piece(id))), { is: percent(p), class: "n" }, { is: now ? percent(now.p) : t("removed"), class: "n" }, h("span", {}, bar(now ? now.p : 0), id === pick ? " ◀" : "")] };
    }), { class: "bars" }), note(t("whatif_note", { rest: percent(rest), n: raw.top.length })));
  };
  const slider = (name, min, max, step) => {
    const value = h("output", {}, show(state[name]));
    const input = h("input", { type: "range", min, max, step, value: state[name], "aria-label": name });
    input.addEventListener("input", () => { state[name] = Number(input.value); value.textContent = show(state[name]); run(); });
    return h("label", { class: "slider" }, h("span", {}, name), input, value);
  };
  run();
  const box = h("details", { class: "whatif" }, h("summary", {}, t("whatif"), badge("derived")),
    h("div", { class: "sliders" }, slider("temperature", 0, 2, 0.05), slider("top_k", 0, raw.top.length, 1), slider("top_p", 0.05, 1, 0.01), slider("min_p", 0, 0.5, 0.01)), output);
  box.open = panel.whatIfOpen || false;
  box.addEventListener("toggle", () => { panel.whatIfOpen = box.open; });
  return box;
}

/** [[id, logit, p], …], highest first → [{id, p}] after temperature, top-k, top-p, min-p in the engine's order. */
function resample(top, { temperature, top_k: topK, top_p: topP, min_p: minP }) {
  if (temperature <= 1e-5) return top.slice(0, 1).map(([id]) => ({ id, p: 1 }));
  const first = number(top[0][1]);
  let kept = top.map(([id, logit]) => ({ id, p: Math.exp((number(logit) - first) / temperature) }));
  if (topK > 0) kept = kept.slice(0, topK);
  const norm = () => { const sum = kept.reduce((all, one) => all + one.p, 0); kept = kept.map(({ id, p }) => ({ id, p: p / sum })); };
  norm();
  if (topP < 1) { let sum = 0; const out = []; for (const one of kept) { out.push(one); sum += one.p; if (sum >= topP) break; } kept = out; norm(); }
  if (minP > 0) { const least = minP * kept[0].p; kept = kept.filter((one) => one.p >= least); norm(); }
  return kept;
}

class EmissionPanel extends Panel {
  draw(trace, sequence) {
    const finish = sequence.finish;
    const n = sequence.prompt.length;
    const rows = sequence.emits.map((emit) => [`${emit.token_range[0]}–${Math.max(emit.token_range[0], emit.token_range[1] - 1)}`, h("bdi", { class: "mono" }, emit.bytes_b64 ? pieceText(fromBase64(emit.bytes_b64)) : "∅"),
      emit.held_bytes ? `${emit.held_bytes} B` : "–", emit.held_reason ? (TEXTS["held." + emit.held_reason] ? t("held." + emit.held_reason) : emit.held_reason) : "–", { is: ms(emit.t_ns - (sequence.request ? sequence.request.arrive_ns : emit.t_ns)), class: "n" }]);
    const held = sequence.emits.filter((emit) => emit.held_bytes).length;
    const text = new TextDecoder().decode(concat(sequence.emits.map((emit) => fromBase64(emit.bytes_b64))));
    return [
      finish ? h("p", { class: "big" }, t("stopped"), " ", h("b", {}, TEXTS["reason." + finish.reason] ? t("reason." + finish.reason) : String(finish.reason)), " ",
        finish.stop_id !== null && finish.stop_id !== undefined ? [t("by_id"), " ", h("bdi", { class: "mono chip" }, trace.piece(finish.stop_id)), ` (#${finish.stop_id})`] : finish.stop_str ? [t("by_string"), " ", h("bdi", { class: "mono chip" }, visible(finish.stop_str))] : null) : note(t("still_running")),
      facts(fact(t("generated_tokens"), show(finish && finish.n_output !== undefined ? finish.n_output : sequence.samples.length), "measured"), fact("TTFT", finish ? ms(finish.ttft_ns) : "–", "measured"), fact("TPOT", finish ? ms(finish.tpot_ns) : "–", "derived"), fact(t("held_times"), show(held), "measured")),
      text ? h("div", { class: "answer", role: "group", "aria-label": t("answer") }, h("bdi", {}, text)) : null,
      rows.length ? behind(t("emissions"), [t("tokens"), t("text_out"), t("held"), t("why"), t("after_arrival")], rows) : note(t("no_emits")),
    ];
  }
}

function concat(parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) { whole.set(part, at); at += part.length; }
  return whole;
}
