"use strict";
/* Panels 1–3 and 5: what the model saw and computed, and what went out (4 is in panel_sampling.js). Each is a custom element with draw(trace, cursor). */

class Panel extends HTMLElement {
  constructor() { super(); this.isDirty = true; }
  get page() { return this.closest("pl-page"); }

  /** Draw with the page's trace and cursor. */
  refresh() {
    const { trace, cursor } = this.page;
    const sequence = trace.sequences.get(cursor.request);
    this.isDirty = false;
    const held = this.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
    const places = [...this.querySelectorAll(SCROLLED)].map((one) => [one.scrollLeft, one.scrollTop]);
    const content = drawn(() => (sequence || this.needsNoSequence ? this.draw(trace, sequence, cursor) : [note(t("no_request"))]));
    const title = t("panel." + this.dataset.name);
    this.drawnAt = performance.now();
    put(this, [
      h("h2", {}, h("span", { class: "num", "aria-hidden": "true" }, this.dataset.number), title),
      h("p", { class: "lead" }, t("lead." + this.dataset.name)),
      ...[content].flat(3).filter((item) => item !== null && item !== undefined && item !== false)]);
    if (matchMedia("(max-width: 860px)").matches) for (const svg of this.querySelectorAll("svg.wide, svg.dials")) widen(svg);
    this.querySelectorAll(SCROLLED).forEach((one, k) => { if (places[k]) [one.scrollLeft, one.scrollTop] = places[k]; });
    for (const strip of this.querySelectorAll(".strip")) showCurrent(strip);
    if (held) { const again = [...this.querySelectorAll("[data-key]")].find((one) => one.dataset.key === held); if (again) again.focus({ preventScroll: true }); }
  }
}
/** What `draw` gives; a sentence where it trips over a trace that is not as it should be. */
function drawn(draw) {
  try {
    return draw();
  } catch (error) {
    console.error(error);
    return [note(t("panel_failed"), "warn")];
  }
}

/** Give an element these children; those that it has already stay where they are. */
function put(parent, nodes) {
  const kept = new Set(nodes);
  for (const child of [...parent.childNodes]) if (!kept.has(child)) child.remove();
  let at = parent.firstChild;
  for (const node of nodes) if (node === at) at = at.nextSibling; else parent.insertBefore(node, at);
}

/** On a narrow screen a picture keeps its size and scrolls, so that its words can be read. */
function widen(svg) {
  const box = h("div", { class: "scroll picture", tabindex: 0, role: "region", "aria-label": svg.getAttribute("aria-label") });
  svg.replaceWith(h("p", { class: "sideways", "aria-hidden": "true" }, t("sideways")), box);
  box.append(svg);
}

/** Move a strip's mark to the cursor, where it shows that token. */
function markCurrent(strip, cursor) {
  const next = strip.dataset.request === cursor.request ? strip.querySelector(`[data-pos="${cursor.token}"]`) : null;
  const last = strip.querySelector(".current");
  if (!next || next === last) return;
  for (const [option, isCurrent] of [[last, false], [next, true]]) {
    if (!option) continue;
    option.classList.toggle("current", isCurrent);
    option.setAttribute("aria-selected", String(isCurrent));
    option.tabIndex = isCurrent ? 0 : -1;
    if (isCurrent) option.dataset.key = "strip-current"; else delete option.dataset.key;
  }
}

const SCROLLED = ".strip, .scroll, .waterfall, .blocks";

/** Scroll a strip, and nothing else, so that the current token is in it. */
function showCurrent(strip) {
  const current = strip.querySelector(".current");
  if (!current || strip.scrollHeight <= strip.clientHeight) return;
  const [top, bottom] = [current.offsetTop - strip.offsetTop, current.offsetTop - strip.offsetTop + current.offsetHeight];
  if (top < strip.scrollTop) strip.scrollTop = top - 4;
  else if (bottom > strip.scrollTop + strip.clientHeight) strip.scrollTop = bottom - strip.clientHeight + 4;
}

/** Tokens as a strip; arrow keys move the page's cursor. Long ones show a window around the cursor. */
function tokenStrip(page, sequence, { from = 0, to = sequence.length, shade = null, label = t("strip"), keep = null } = {}) {
  const [WINDOW, EDGE] = [300, 40];
  const { cursor } = page;
  let [first, last] = [from, to];
  if (last - first > WINDOW) {
    first = Math.max(from, Math.min(cursor.token - WINDOW / 2, to - WINDOW));
    const known = keep && keep.sequence === sequence && keep.from === from && keep.to === to ? keep.first : null;
    if (known !== null && (cursor.token >= known + EDGE || known === from) && (cursor.token < known + WINDOW - EDGE || known + WINDOW === to)) first = known;
    last = first + WINDOW;
  }
  const hidden = to - from - (last - first);
  const about = hidden > 0 ? note(t("strip_window", { first, last: last - 1, hidden }), "warn") : null;
  if (keep && keep.strip && keep.sequence === sequence && keep.first === first && keep.from === from && keep.to === to && keep.language === language && sequence.request === keep.request) {
    markCurrent(keep.strip, cursor);
    return [keep.strip, about];
  }
  const items = [];
  for (let pos = first; pos < last; pos += 1) {
    const token = sequence.token(pos);
    if (!token) break;
    const isCurrent = pos === cursor.token;
    const name = pieceText(token.data);
    items.push(h("div", {
      class: `tok ${token.kind}${name.startsWith("⟨") && token.kind === "generated" && isPart(token.data) ? " byte" : ""}${token.cached ? " cached" : ""}${isCurrent ? " current" : ""}`,
      role: "option", "aria-selected": isCurrent ? "true" : "false", tabindex: isCurrent ? 0 : -1,
      "data-pos": pos, "data-key": isCurrent ? "strip-current" : undefined,
      "aria-label": `${name} ${idText(token.id)}, ${t("position")} ${pos}${token.cached ? ", " + t("cached") : ""}`,
      title: tokenTitle(page.trace, token, name),
      style: shade && shade(pos) !== null ? { "--shade": shade(pos) } : {},
    }, h("span", { class: "txt" }, h("bdi", {}, name)), " ", h("span", { class: "id" }, idText(token.id))));
  }
  const strip = h("div", { class: "strip", role: "listbox", "aria-label": label, "aria-orientation": "horizontal", "data-request": sequence.key }, items);
  strip.addEventListener("click", (event) => {
    const option = event.target.closest("[data-pos]");
    if (option) page.move({ token: Number(option.dataset.pos) });
  });
  if (keep) Object.assign(keep, { strip, sequence, request: sequence.request, first, from, to, language });
  return [strip, about];
}

/** Whether bytes are no whole characters. */
function isPart(data) {
  try { new TextDecoder("utf-8", { fatal: true }).decode(data); return false; } catch { return true; }
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
      tokenStrip(this.page, sequence, { keep: (this.kept = this.kept || {}) }),
      token ? facts(fact(t("token"), h("bdi", { class: "mono" }, pieceText(token.data))), fact("id", idText(token.id), token.id < 0 ? null : "measured"), fact(t("bytes"), h("span", { class: "mono" }, hex(token.data) || "∅"), "measured"),
        fact(t("kind"), t("kind." + token.kind)), fact(t("position"), show(token.pos), "measured"),
        token.kind === "generated" || request.cachedUnknown ? null : fact(t("work"), token.cached ? t("cached") : t("computed"), "measured")) : null,
      this.alternatives(trace, token),
      fold("rendered", t("rendered"), h("pre", { class: "text", tabindex: 0 }, request.rendered)),
      request.template ? fold("template", t("template"), h("pre", { class: "text", tabindex: 0 }, String(request.template))) : null,
      params.length ? fold("params", t("params", { n: chosen.length }),
        table(t("params_caption"), [t("name"), t("value"), t("source")], params.map(([name, one]) => [name, JSON.stringify(one.value), t("source." + one.source)]))) : null,
    ];
  }

  /** What else might have come, as the model saw it; where a page can go on from one, each is a button. */
  alternatives(trace, token) {
    if (!token || !token.sample || !token.sample.stages.length) return null;
    const { page } = this;
    const item = ([id, , p]) => {
      const content = [h("bdi", { class: "mono" }, trace.piece(id)), h("small", {}, ` ${percent(number(p))}`)];
      const isChosen = id === token.sample.id;
      return h("li", {}, page.onFork && !isChosen ? h("button", { type: "button", class: "cand", "data-key": `alternative-${id}`, title: t("fork"), onclick: () => page.onFork(page.cursor.request, token.pos, id) }, content) : h("span", { class: `cand${isChosen ? " ok" : ""}` }, content, isChosen ? " ◀" : ""));
    };
    return h("div", { class: "alternatives" }, h("h3", {}, t(page.onFork ? "alternatives_fork" : "alternatives"), badge("measured")), h("ul", { class: "lens" }, token.sample.stages[0].top.map(item)));
  }
}

class PositionPanel extends Panel {
  draw(trace, sequence, cursor) {
    const rope = trace.header && trace.header.model && trace.header.model.rope;
    if (!rope) return note(t("no_rope"));
    const engine = trace.header.engine || {};
    const limit = engine.max_model_len || rope.max_pos;
    const meter = (name, max) => max ? h("div", { class: "meterrow" }, h("span", {}, name), h("span", { class: "meter", role: "img", "aria-label": `${cursor.token} / ${max}` }, h("i", { style: { width: `${Math.min(100, (100 * (cursor.token + 1)) / max)}%` } })), h("span", { class: "n" }, `${show(cursor.token)} / ${show(max)}`)) : null;
    const kinds = rope.kinds && rope.kinds.length > 1 ? rope.kinds : null;
    return [
      facts(...(kinds ? [] : this.turning(rope)), fact(t("position"), show(cursor.token), "measured")),
      TEXTS["positions_note." + rope.type] ? note(t("positions_note." + rope.type)) : null,
      rope.type === "alibi" ? this.slopes(trace.header.model.n_heads, cursor) : null,
      meter(t("trained_limit"), rope.orig_ctx), meter(t("model_limit"), rope.max_pos), meter(t("engine_limit"), limit),
      cursor.token >= (rope.orig_ctx || Infinity) ? note(t("beyond_trained"), "warn") : null,
      kinds ? [note(t("kinds_note")), ...kinds.map((one) => this.kind(one, cursor))] : this.dials(rope.inv_freq || [], cursor, t("angles")),
    ];
  }

  turning(rope) {
    if (rope.type === "alibi" || rope.theta === null || rope.theta === undefined) return [fact(t("positions_by"), TEXTS["positions." + rope.type] ? t("positions." + rope.type) : String(rope.type), "measured")];
    return [fact("RoPE", String(rope.type), "measured"), fact("θ", show(rope.theta), "measured"), fact(t("factor"), rope.factor === null ? t("none") : show(rope.factor), "measured")];
  }

  /** Layers that turn alike and see equally far. */
  kind(one, cursor) {
    const isHere = one.layers.includes(cursor.layer), first = one.window ? Math.max(0, cursor.token - one.window + 1) : 0;
    const name = t(one.window ? "local_layers" : "global_layers", { layers: ranges(one.layers) });
    return h("section", { class: "kindof", "aria-label": name },
      h("h3", {}, name, isHere ? h("span", { class: "chip" }, t("layer_here", { layer: cursor.layer })) : null),
      facts(...(one.theta === null ? [fact("RoPE", t("no_turning"), "measured")] : this.turning(one)), fact(t("window"), one.window ? show(one.window) : t("window_all"), "measured"), fact(t("sees"), `${show(first)} – ${show(cursor.token)}`, "derived")),
      this.dials(one.inv_freq || [], cursor, t("angles")));
  }

  /** What ALiBi takes from the score of a key, for each head: its slope times the distance (Press et al. 2022). */
  slopes(heads, cursor) {
    const power = 2 ** Math.floor(Math.log2(heads));
    const of = (head) => (head < power ? 2 ** ((-8 * (head + 1)) / power) : 2 ** ((-4 * (2 * (head - power) + 1)) / power));
    return table(t("alibi_slopes"), [t("head"), t("slope"), t("alibi_first")], Array.from({ length: heads }, (_, head) => [head, of(head), { is: show(-of(head) * cursor.token), class: "n" }]), { class: "narrow alibi" });
  }

  dials(inverse, cursor, caption) {
    if (!inverse.length) return null;
    const angle = (f) => (cursor.token * f) % (2 * Math.PI);
    const dials = inverse.map((f, pair) => {
      const a = angle(f);
      return s("g", { transform: `translate(${14 + (pair % 32) * 27} ${14 + Math.floor(pair / 32) * 30})` }, s("title", {}, `${t("pair")} ${pair}: ${show(a)} rad`),
        s("circle", { r: 10, class: "dial" }), s("line", { x1: 0, y1: 0, x2: show(10 * Math.cos(a)), y2: show(-10 * Math.sin(a)), class: "hand" }));
    });
    return [h("h3", {}, caption, badge("derived")),
      s("svg", { viewBox: `0 0 ${Math.min(32, inverse.length) * 27 + 4} ${Math.ceil(inverse.length / 32) * 30}`, class: "dials", role: "img", "aria-label": t("angles_label", { pos: cursor.token }) }, dials),
      behind(caption, [t("pair"), t("radians_per_position"), t("angle"), t("wavelength")], inverse.map((f, pair) => [pair, f, angle(f), (2 * Math.PI) / f]))];
  }
}

/** Numbers in ascending order as "0–4, 6, 8–9". */
function ranges(numbers) {
  const found = [];
  for (const one of numbers) {
    const last = found[found.length - 1];
    if (last && last[1] === one - 1) last[1] = one; else found.push([one, one]);
  }
  return found.map(([from, to]) => (from === to ? from : `${from}–${to}`)).join(", ");
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
      event && event.moe ? [h("h3", {}, t("experts"), badge("measured")), event.moe.router_entropy === undefined || event.moe.router_entropy === null ? null : facts(fact(t("router_entropy"), show(event.moe.router_entropy), "measured")), table(t("experts"), [t("expert"), t("weight")], event.moe.ids.map((id, k) => [id, event.moe.w[k]]))] : null,
      behind(t("heatmap_table", { metric: t("metric." + metric) }), [t("position"), t("token"), ...Array.from({ length: nLayers }, (_, layer) => `${t("layer")} ${layer}`)],
        () => positions.map((at) => [at, h("bdi", { class: "mono" }, sequence.name(at)), ...Array.from({ length: nLayers }, (_, layer) => { const value = metricOf(sequence.layer(at, layer), metric); return value === null ? "–" : { is: show(value), class: "n" }; })]), positions.length),
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
      h("span", { class: "axis" }, `${t("layer")} 0 · ${t("position")} ${positions[0]} → ${positions[positions.length - 1]}`),
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

class EmissionPanel extends Panel {
  draw(trace, sequence) {
    const finish = sequence.finish;
    const first = finish && finish.ttft_ns ? firstToken(finish) : null, later = laterTokens(trace, sequence);
    const rows = sequence.emits.map((emit) => [`${emit.token_range[0]}–${Math.max(emit.token_range[0], emit.token_range[1] - 1)}`, h("bdi", { class: "mono" }, emit.bytes_b64 ? pieceText(fromBase64(emit.bytes_b64)) : "∅"),
      emit.held_bytes ? `${emit.held_bytes} B` : "–", emit.held_reason ? (TEXTS["held." + emit.held_reason] ? t("held." + emit.held_reason) : emit.held_reason) : "–", { is: ms(emit.t_ns - (sequence.request ? sequence.request.arrive_ns : emit.t_ns)), class: "n" }]);
    const held = sequence.emits.filter((emit) => emit.held_bytes).length;
    const { text } = sequence;
    return [
      finish ? h("p", { class: "big" }, whyStopped(trace, sequence)) : note(t("still_running")),
      facts(fact(t("generated_tokens"), show(finish && finish.n_output !== undefined ? finish.n_output : sequence.samples.length), "measured"), fact(t(first && first.isMuch ? "ttft_net" : "ttft_of"), first ? ms(first.told) : "–", "measured"), fact(t(later.isMuch ? "tpot_net" : "tpot_of"), finish && finish.tpot_ns ? ms(later.told) : "–", "derived"), fact(t("held_times"), show(held), "measured"), finish && finish.preemptions ? fact(t("preemptions"), show(finish.preemptions), "measured") : null),
      text ? h("div", { class: "answer", role: "group", "aria-label": t("answer") }, h("bdi", {}, text)) : null,
      rows.length ? behind(t("emissions"), [t("tokens"), t("text_out"), t("held"), t("why"), t("after_arrival")], rows) : note(t("no_emits")),
    ];
  }
}
