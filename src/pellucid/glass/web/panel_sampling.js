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
      h("div", { class: "waterfall", role: "list", tabindex: 0, "aria-label": t("panel.sampling") }, sample.stages.map((stage, place) => this.stage(trace, sample, stage, sample.stages.slice(0, place)))),
      last && isWhole ? this.line(trace, sample, last) : null,
      sample.stages.length ? whatIf(this, trace, sample) : null,
    ];
  }

  /** The draw of the token at the cursor; on a prompt, the first one. */
  sampleAt(sequence, cursor) {
    const place = cursor.token - sequence.prompt.length;
    return sequence.samples[Math.max(0, place)] || null;
  }

  stage(trace, sample, stage, earlier) {
    const listed = new Set(stage.top.map(([id]) => id));
    // stages that only take tokens away keep their order: what was listed and is no longer has been removed
    const before = earlier[earlier.length - 1];
    const now = before && (stage.alive <= stage.top.length || !REORDERING.has(stage.name)) ? before.top.filter(([id]) => !listed.has(id)) : [];
    // and what an earlier stage removed stays in sight, unless a stage brought it back
    const removed = new Map(earlier.slice(1).flatMap((one, k) => (one.alive <= one.top.length || !REORDERING.has(one.name) ? earlier[k].top.filter(([id]) => !one.top.some(([each]) => each === id)) : [])).map((one) => [one[0], one]));
    const gone = [...now, ...[...removed.values()].filter(([id]) => !listed.has(id) && !now.some(([each]) => each === id))];
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

/** Sliders that run the sampler again: on what the trace knows, which is the first tokens and how much the others had together. */
function whatIf(panel, trace, sample) {
  const own = ownSettings(panel.page.sequence);
  if (!panel.whatIf || panel.whatIf.request !== panel.page.cursor.request) panel.whatIf = { request: panel.page.cursor.request, settings: { ...own } };
  const state = panel.whatIf.settings;
  const kept = sample.stages.filter((one) => !FILTERS.has(one.name)); // penalties and constraints stay as they were
  const base = kept[kept.length - 1] || sample.stages[0];
  const output = h("div", { class: "whatif-out", "aria-live": "polite" });
  const run = () => {
    const isOwn = Object.keys(own).every((name) => own[name] === state[name]);
    const now = isOwn && sample.rng && sample.rng.u !== null ? asDrawn(sample) : resample(sample, base, state);
    const picks = sample.rng ? now.picks : [];
    const pick = picks.length === 1 ? picks[0] : undefined; // an id; null: one that the trace does not name
    output.replaceChildren(...[table(t(sample.rng ? "whatif_caption" : "whatif_shares"), [t("token"), kept.length < 2 ? t("before") : stageName(base.name), t("after"), t("picture")], base.top.map(([id, , p]) => {
      const [low, high] = now.shares.get(id) || [0, 0];
      return { attributes: { class: id === pick ? "current" : undefined, "data-id": id, "data-low": low, "data-high": high }, cells: [h("bdi", { class: "mono" }, high ? trace.piece(id) : h("s", {}, trace.piece(id))), { is: percent(number(p)), class: "n" }, { is: high ? between(low, high) : t("removed"), class: "n" }, h("span", {}, bar(low), id === pick ? " ◀" : "")] };
    }), { class: "bars" }),
    pick === null ? note(isOwn ? t("whatif_drawn_beyond", { token: trace.piece(sample.id) }) : t("whatif_beyond"), "warn") : picks.length > 1 ? note(t("whatif_unsure", { tokens: picks.map((id) => (id === null ? t("whatif_another") : trace.piece(id))).join(", ") }), "warn") : null,
    note(t("whatif_note", { rest: percent(Math.max(0, 1 - sumOf(base.top))), n: base.top.length, all: base.alive === null ? "?" : show(base.alive) })),
    kept.length > 1 ? note(t("whatif_kept", { stages: kept.slice(1).map((one) => stageName(one.name)).join(", ") })) : null].filter(Boolean));
    back.disabled = isOwn;
  };
  const slider = (name, least, most, step) => {
    const value = h("output", {}, show(state[name]));
    const input = h("input", { type: "range", min: Math.min(least, own[name]), max: Math.max(most, own[name]), step, value: state[name], "aria-label": name });
    input.addEventListener("input", () => { state[name] = Number(input.value); value.textContent = show(state[name]); run(); });
    return h("label", { class: "slider" }, h("span", {}, name), input, value);
  };
  const sliders = [slider("temperature", 0, 2, 0.01), slider("top_k", 0, 100, 1), slider("top_p", 0.05, 1, 0.01), slider("min_p", 0, 0.5, 0.01)];
  const back = h("button", { type: "button", "data-key": "whatif-own", onclick: () => { panel.whatIf = null; panel.refresh(); } }, t("whatif_own"));
  run();
  const box = h("details", { class: "whatif" }, h("summary", {}, t("whatif"), badge("derived")), h("div", { class: "sliders" }, sliders, back), output);
  box.open = panel.whatIfOpen || false;
  box.addEventListener("toggle", () => { panel.whatIfOpen = box.open; });
  return box;
}

/** What the request asked for; where the trace does not tell, nothing is filtered. */
function ownSettings(sequence) {
  const asked = (sequence && sequence.request && sequence.request.params) || {};
  const of = (name, otherwise) => (asked[name] && typeof asked[name].value === "number" ? asked[name].value : otherwise);
  return { temperature: of("temperature", 1), top_k: Math.max(0, of("top_k", 0)), top_p: of("top_p", 1), min_p: of("min_p", 0) };
}

const sumOf = (top) => top.reduce((sum, one) => sum + number(one[2]), 0);
const between = (low, high) => (percent(low) === percent(high) ? percent(low) : `${percent(low)} – ${percent(high)}`);

/** Untouched sliders: the last stage and the draw, as recorded. */
function asDrawn(sample) {
  const last = sample.stages[sample.stages.length - 1];
  return { shares: new Map(last.top.map(([id, , p]) => [id, [number(p), number(p)]])), picks: [last.top.some(([id]) => id === sample.id) ? sample.id : null] };
}

/**
 * Temperature, min-p, top-k, top-p over the whole vocabulary, the engine's order. All weights are relative to the first
 * token's. What the tokens that are not recorded weigh together is known at the recorded temperatures, and lies within
 * bounds at others; so does what is left after the filters. → {shares: id → [least, most], picks: where u can fall}.
 */
function resample(sample, base, { temperature, top_k: topK, top_p: topP, min_p: minP }) {
  const ids = base.top.map(([id]) => id);
  if (temperature <= 1e-5) return { shares: new Map([[ids[0], [1, 1]]]), picks: [ids[0]] };
  const first = number(base.top[0][1]);
  let weights = base.top.map(([, logit]) => Math.exp((number(logit) - first) / temperature));
  let [least, most] = restOf(sample, base, temperature);
  const smallest = weights[weights.length - 1], num = base.alive === null ? Infinity : base.alive - weights.length;
  if (minP > 0) {
    if (smallest < minP) least = most = 0; else least = 0; // some of the others may be too small
    weights = weights.filter((one) => one >= minP);
  }
  if (topK > 0) {
    const more = topK - weights.length;
    weights = weights.slice(0, topK);
    if (more <= 0) least = most = 0;
    else if (more < num) { least = least * (more / num); most = Math.min(most, more * smallest); }
  }
  const sums = [];
  for (const one of weights) sums.push(one + (sums[sums.length - 1] || 0));
  const whole = sums[sums.length - 1];
  // each end of the bounds → how many recorded tokens top-p keeps, and the weight of all that it keeps
  const cut = (rest, isMost) => {
    if (topP >= 1) return [weights.length, whole + rest];
    const enough = topP * (whole + rest), place = sums.findIndex((sum) => sum >= enough);
    if (place >= 0) return [place + 1, sums[place]];
    return [weights.length, Math.min(whole + rest, isMost ? enough + smallest : enough)];
  };
  const [fewest, low] = cut(least, false), [mostKept, high] = cut(most, true);
  const shares = new Map();
  for (let k = 0; k < mostKept; k += 1) shares.set(ids[k], [k < fewest ? weights[k] / high : 0, weights[k] / low]);
  const at = (u, total) => { const place = sums.findIndex((sum, k) => k < mostKept && u * total < sum); return place < 0 ? weights.length : place; };
  const u = sample.rng ? sample.rng.u : null;
  if (u === null) return { shares, picks: [] };
  const [from, to] = [at(u, low), at(u, high)];
  return { shares, picks: Array.from({ length: to - from + 1 }, (_, k) => (from + k < weights.length ? ids[from + k] : null)) };
}

/** [least, most] weight of the tokens that are not recorded. Their sum at temperature 1 is known, and that none is heavier than the last recorded one. */
function restOf(sample, base, temperature) {
  const num = base.alive === null ? Infinity : base.alive - base.top.length;
  if (num <= 0) return [0, 0];
  const known = sample.stages.find((one) => one.name === "temperature" && Math.abs(number(one.param) - temperature) < 1e-9);
  const exact = temperature === 1 ? base : known;
  if (exact) { const rest = Math.max(0, 1 - sumOf(exact.top)) / number(exact.top[0][2]); return [rest, rest]; }
  const sum = Math.max(0, 1 - sumOf(base.top)) / number(base.top[0][2]);
  const heaviest = Math.exp(number(base.top[base.top.length - 1][1]) - number(base.top[0][1]));
  // x^(1/T) of numbers with a known sum: all alike is one extreme, as uneven as can be the other
  const alike = num === Infinity ? (temperature > 1 ? Infinity : 0) : num * (sum / num) ** (1 / temperature);
  const uneven = sum * heaviest ** (1 / temperature - 1);
  return alike < uneven ? [alike, uneven] : [uneven, alike];
}
