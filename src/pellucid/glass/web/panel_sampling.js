"use strict";
/* Panel 4: from scores to one token. */

const REORDERING = new Set(["logit_bias", "logits_processors", "repetition_penalty", "frequency_penalty", "presence_penalty"]);

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
    // stages that only take tokens away keep their order: what was listed and is no longer has been removed
    const gone = before && (stage.alive <= stage.top.length || !REORDERING.has(stage.name)) ? before.top.filter(([id]) => !listed.has(id)) : [];
    const row = ([id, logit, p], isGone) => h("li", { class: `${id === sample.id ? "chosen" : ""}${isGone ? " gone" : ""}`, title: `#${idText(id)} logit ${show(logit)}` },
      h("bdi", { class: "mono" }, isGone ? h("s", {}, trace.piece(id)) : trace.piece(id)), h("span", { class: "n" }, isGone ? t("removed") : percent(p)), isGone ? null : bar(p), id === sample.id ? h("span", { class: "mark", "aria-label": t("chosen") }, "◀") : null);
    return h("div", { class: "stage", role: "listitem" }, h("h3", {}, stageName(stage.name), stage.param === null || stage.param === undefined ? null : h("small", {}, " ", typeof stage.param === "object" ? JSON.stringify(stage.param).slice(0, 60) : show(stage.param))),
      stage.alive === null ? h("p", { class: "sub" }, t("logprobs_only"), badge("measured")) : h("p", { class: "sub" }, h("b", {}, show(stage.alive)), " ", t("alive"), h("br"), t("entropy"), " ", h("b", {}, show(stage.entropy, 3)), h("br"), t("mass_removed"), " ", h("b", {}, percent(number(stage.mass_removed) || 0)), " ", badge("measured")),
      h("ol", {}, stage.top.map((one) => row(one, false)), gone.map((one) => row(one, true))),
      stage.chosen && !listed.has(sample.id) ? h("p", { class: "sub" }, "… ", h("bdi", { class: "mono" }, trace.piece(sample.id)), ` ${percent(stage.chosen.p)}, ${t("rank")} ${stage.chosen.rank}`) : null);
  }

  line(trace, sample, last) {
    const u = sample.rng ? sample.rng.u : null;
    let at = 0;
    const parts = last.top.map(([id, , p], k) => { const x = at; at += p; return { id, x, p, k }; });
    const W = 1000;
    return h("figure", {}, h("figcaption", {}, t(u === null ? "greedy_caption" : "cumulative"), badge("measured")),
      s("svg", { viewBox: `0 0 ${W} 64`, class: "wide", role: "img", "aria-label": u === null ? t("greedy_line") : t("u_line", { u: show(u, 6), token: trace.piece(sample.id) }) },
        parts.map(({ id, x, p, k }) => s("g", {}, s("title", {}, `${trace.piece(id)} ${percent(p)}`), s("rect", { x: x * W, y: 18, width: Math.max(0.5, p * W - 1), height: 28, class: id === sample.id ? "seg on" : `seg s${k % 2}` }),
          trace.piece(id).length * 8.5 < p * W - 6 ? s("text", { x: (x + p / 2) * W, y: 37, "text-anchor": "middle", class: id === sample.id ? "seglabel on" : "seglabel" }, trace.piece(id)) : null)),
        at < 0.999 ? s("rect", { x: at * W, y: 18, width: (1 - at) * W, height: 28, class: "seg rest" }) : null,
        u === null ? null : s("g", { class: "udraw" }, s("line", { x1: u * W, x2: u * W, y1: 10, y2: 52 }), s("text", { x: u * W, y: 9, "text-anchor": u > 0.9 ? "end" : u < 0.1 ? "start" : "middle" }, `u = ${show(u, 5)}`)),
        s("text", { x: 0, y: 62, class: "tick" }, "0"), s("text", { x: W, y: 62, "text-anchor": "end", class: "tick" }, "1")));
  }
}

const FILTERS = new Set(["temperature", "min_p", "top_k", "top_p"]);

/** Sliders that run the sampler again on the recorded logits. */
function whatIf(panel, trace, sample) {
  const asked = (panel.page.sequence && panel.page.sequence.request && panel.page.sequence.request.params) || {};
  const start = (name, otherwise) => (asked[name] && typeof asked[name].value === "number" ? asked[name].value : otherwise);
  const state = panel.whatIf || (panel.whatIf = { temperature: start("temperature", 1), top_k: Math.max(0, Math.min(sample.stages[0].top.length, start("top_k", 0))), top_p: start("top_p", 1), min_p: start("min_p", 0) });
  const base = sample.stages.filter((one) => !FILTERS.has(one.name)).pop() || sample.stages[0]; // penalties and constraints are kept
  const raw = base;
  const output = h("div", { class: "whatif-out", "aria-live": "polite" });
  const run = () => {
    const rest = Math.max(0, 1 - raw.top.reduce((sum, one) => sum + one[2], 0));
    const drawn = resample(raw.top, state);
    const u = sample.rng ? sample.rng.u : null;
    let at = 0, pick = drawn[0] ? drawn[0].id : null;
    for (const one of drawn) { if (u === null || state.temperature <= 1e-5) break; at += one.p; if (u < at) { pick = one.id; break; } pick = one.id; }
    if (!sample.rng) pick = null; // how it was drawn is not known here
    output.replaceChildren(table(t(sample.rng ? "whatif_caption" : "whatif_shares"), [t("token"), base.name === "raw" || base.name === "logprobs" ? t("before") : stageName(base.name), t("after"), t("picture")], raw.top.map(([id, , p]) => {
      const now = drawn.find((one) => one.id === id);
      return { attributes: { class: id === pick ? "current" : undefined, "data-id": id, "data-p": now ? now.p : 0 }, cells: [h("bdi", { class: "mono" }, now ? trace.piece(id) : h("s", {}, trace.piece(id))), { is: percent(p), class: "n" }, { is: now ? percent(now.p) : t("removed"), class: "n" }, h("span", {}, bar(now ? now.p : 0), id === pick ? " ◀" : "")] };
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

/** [[id, logit, p], …], highest first → [{id, p}] after temperature, min-p, top-k, top-p: the engine's order. */
function resample(top, { temperature, top_k: topK, top_p: topP, min_p: minP }) {
  if (temperature <= 1e-5) return top.slice(0, 1).map(([id]) => ({ id, p: 1 }));
  const first = number(top[0][1]);
  let kept = top.map(([id, logit]) => ({ id, p: Math.exp((number(logit) - first) / temperature) }));
  const norm = () => { const sum = kept.reduce((all, one) => all + one.p, 0); kept = kept.map(({ id, p }) => ({ id, p: p / sum })); };
  if (minP > 0) { const least = minP * kept[0].p; kept = kept.filter((one) => one.p >= least); }
  if (topK > 0) kept = kept.slice(0, topK);
  norm();
  if (topP < 1) { let sum = 0; const out = []; for (const one of kept) { out.push(one); sum += one.p; if (sum >= topP) break; } kept = out; norm(); }
  return kept;
}
