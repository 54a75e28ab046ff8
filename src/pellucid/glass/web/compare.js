"use strict";
/* Two requests side by side: where they first differ. The order, the words and the numbers are those of glass/compare.py. */

/** One request of a trace: what is compared. */
const sideOf = (trace, key) => ({ trace, sequence: trace.sequences.get(key), key });

const MODEL_FIELDS = ["arch", "n_layers", "vocab", "quant", "weight_bytes"];
const ENGINE_FIELDS = ["kv_cache_dtype", "precision", "isa", "backend", "quantization", "rope_scaling", "rope_theta"];
const LAYER_FIELDS = ["resid_rms", "attn_rms", "mlp_rms", "absmax", "nonfinite"];

/** {kind, names, ours, theirs, position}: the first thing that is not the same; null where there is none. */
function firstDifference(ours, theirs) {
  const found = settingsDiffer(ours, theirs) || promptsDiffer(ours, theirs);
  if (found) return found;
  // a report keeps the numbers of layers as float32, which is how the engine has them
  const isRounded = ours.trace.isReport || theirs.trace.isReport;
  const same = (a, b) => a === b || (isRounded && typeof a === "number" && typeof b === "number" && Math.fround(a) === Math.fround(b));
  const last = Math.min(ours.sequence.length, theirs.sequence.length);
  for (let position = 0; position < last; position += 1) {
    const one = layersDiffer(ours, theirs, position, same) || samplesDiffer(ours, theirs, position + 1);
    if (one) return one;
  }
  return endsDiffer(ours, theirs);
}

const difference = (kind, names, ours, theirs, position = null) => ({ kind, names, ours, theirs, position });
const equal = (a, b) => JSON.stringify(a === undefined ? null : a) === JSON.stringify(b === undefined ? null : b);
const tokenNamed = (side, id) => (id === null ? "none" : `${id} ${side.trace.piece(id)}`);

function settingsDiffer(ours, theirs) {
  const [a, b] = [ours.trace.header || {}, theirs.trace.header || {}];
  for (const name of MODEL_FIELDS) {
    const [x, y] = [(a.model || {})[name], (b.model || {})[name]];
    if (!equal(x, y)) return difference("model", { name }, x, y);
  }
  const [x, y] = [(a.tokenizer || {}).sha256, (b.tokenizer || {}).sha256];
  if (!equal(x, y)) return difference("tokenizer", {}, x, y);
  for (const name of ENGINE_FIELDS) {
    const [one, two] = [(a.engine || {})[name], (b.engine || {})[name]];
    if (!equal(one, two)) return difference("engine", { name }, one, two);
  }
  return null;
}

function promptsDiffer(ours, theirs) {
  const [a, b] = [ours.sequence.prompt, theirs.sequence.prompt];
  for (let position = 0; position < Math.max(a.length, b.length); position += 1) {
    const [x, y] = [a[position], b[position]].map((token) => (token ? token.id : null));
    if (x !== y) return difference("prompt", { position }, tokenNamed(ours, x), tokenNamed(theirs, y), position);
  }
  const others = theirs.sequence.request.params || {};
  const isGreedy = [ours, theirs].every(({ sequence }) => ((sequence.request.params || {}).temperature || {}).value === 0);
  for (const [name, one] of Object.entries(ours.sequence.request.params || {})) {
    if (name === "seed" && isGreedy) continue; // nothing is drawn with it
    const other = (others[name] || {}).value;
    if (!equal(one.value, other)) return difference("parameter", { name }, one.value, other);
  }
  return null;
}

function layersDiffer(ours, theirs, position, same) {
  const [mine, others] = [ours.sequence.layers.get(position), theirs.sequence.layers.get(position)];
  if (!mine || !others) return null;
  for (let layer = 0; layer < Math.min(mine.length, others.length); layer += 1) {
    if (!mine[layer] || !others[layer]) continue;
    for (const field of LAYER_FIELDS) {
      const [a, b] = [mine[layer][field], others[layer][field]];
      if (!same(a, b)) return difference("layer", { field, layer, position }, a, b, position);
    }
  }
  return null;
}

function samplesDiffer(ours, theirs, position) {
  const pair = [ours, theirs].map(({ sequence }) => sequence.samples[position - sequence.prompt.length]);
  if (!pair[0] || !pair[1]) return null;
  for (let k = 0; k < Math.min(...pair.map((one) => one.stages.length)); k += 1) {
    const [a, b] = pair.map((one) => one.stages[k]);
    if (a.name !== b.name) return difference("stages", { position }, a.name, b.name, position);
    const names = { stage: a.name, position };
    if (a.alive !== b.alive) return difference("alive", names, a.alive, b.alive, position);
    if (a.entropy !== b.entropy) return difference("entropy", names, a.entropy, b.entropy, position);
    for (let rank = 0; rank < Math.min(a.top.length, b.top.length); rank += 1) {
      const [[one, , p], [two, , q]] = [a.top[rank], b.top[rank]];
      if (one !== two || p !== q) return difference("candidates", names, `${ours.trace.piece(one)} ${digits6(p)}`, `${theirs.trace.piece(two)} ${digits6(q)}`, position);
    }
  }
  const [u, v] = pair.map((one) => (one.rng ? one.rng.u : null));
  if (u !== v) return difference("random", { position }, u, v, position);
  const [a, b] = pair.map((one) => one.id);
  return a === b ? null : difference("token", { position }, tokenNamed(ours, a), tokenNamed(theirs, b), position);
}

function endsDiffer(ours, theirs) {
  const [a, b] = [ours.sequence.samples.length, theirs.sequence.samples.length];
  if (a !== b) return difference("count", {}, a, b);
  const [x, y] = [ours, theirs].map(({ sequence }) => (sequence.finish ? sequence.finish.reason : null));
  return x === y ? null : difference("reason", {}, x, y);
}

/** The first position at which the tokens differ; null where one is the other's beginning. */
function firstOtherToken(ours, theirs) {
  const last = Math.min(ours.sequence.length, theirs.sequence.length);
  for (let pos = 0; pos < last; pos += 1) if (ours.sequence.token(pos).id !== theirs.sequence.token(pos).id) return pos;
  return null;
}

const digits6 = (value) => (typeof value === "number" ? String(Number(value.toPrecision(6))) : String(value));

/** The difference in words; in English they are the terminal's. */
function differenceText({ kind, names }) {
  return t(`diff.${kind}`, { ...names, field: names.field ? t(`diff.${names.field}`) : "" });
}

/** Pins a request, of this trace or of another file, and shows the first difference from the one at the cursor. */
class ComparePanel extends HTMLElement {
  get page() { return this.closest("pl-page"); }

  refresh() {
    const { page } = this;
    const held = this.contains(document.activeElement) ? document.activeElement.id : null;
    this.replaceChildren(h("h2", { class: "small" }, t("compare")), this.buttons(page), ...(page.pinned && page.sequence ? drawn(() => this.compared(page)) : [h("p", { class: "lead" }, t("compare_help"))]));
    if (held && this.querySelector(`#${held}`)) this.querySelector(`#${held}`).focus({ preventScroll: true });
  }

  buttons(page) {
    const file = h("input", { type: "file", id: "other-file", accept: ".jsonl,.json,.html,.gz", "aria-label": t("open_trace"), class: "visually-hidden", tabindex: -1 });
    file.addEventListener("change", () => { if (file.files[0]) page.openOther(file.files[0]); });
    return h("div", { class: "row wrap" }, h("button", { type: "button", id: "pin", disabled: !page.sequence, onclick: () => page.pin() }, t("pin")),
      h("button", { type: "button", id: "open-other", onclick: () => file.click() }, t("open_trace")), file,
      page.onSave ? h("button", { type: "button", id: "save", disabled: !page.sequence, onclick: () => page.onSave(page.cursor.request.split("#")[0]) }, t("save_trace")) : null,
      page.pinned ? h("button", { type: "button", id: "unpin", onclick: () => page.unpin() }, t("unpin")) : null, page.pinned ? this.choice(page) : null);
  }

  /** Which request of the pinned trace. */
  choice(page) {
    const { trace, key, label } = page.pinned;
    const pick = h("select", { id: "pinned-request", "aria-label": t("pinned") }, trace.keys.map((one) => h("option", { value: one, selected: one === key }, `${trace.letter(one)} · ${shortKey(one)}`)));
    pick.addEventListener("change", () => { page.pinned = { trace, key: pick.value, label }; this.refresh(); });
    return h("label", {}, `${t("pinned")}: `, label ? h("bdi", {}, `${label} `) : null, pick);
  }

  compared(page) {
    const [ours, theirs] = [sideOf(page.trace, page.cursor.request), sideOf(page.pinned.trace, page.pinned.key)];
    if (!theirs.sequence || !theirs.sequence.request || !ours.sequence.request) return [note(t("no_request"))];
    if (ours.trace === theirs.trace && ours.key === theirs.key) return [note(t("same_request"))];
    const found = firstDifference(ours, theirs);
    const heads = [`${t("at_cursor")} (${shortKey(ours.key)})`, `${t("pinned")} (${shortKey(theirs.key)})`];
    if (!found) return [h("p", { class: "big", id: "difference" }, t("no_difference"))];
    const value = (one) => h("bdi", { class: "mono chip" }, one === null || one === undefined ? "–" : typeof one === "string" ? one.split(" ").map(visible).join(" ") : JSON.stringify(one));
    const token = firstOtherToken(ours, theirs);
    const place = found.position ?? token;
    const jump = (id, position, layer) => h("button", { type: "button", id, onclick: () => page.move({ token: position, ...(layer === undefined ? {} : { layer }) }) }, t("jump"));
    return [h("p", { class: "big", id: "difference" }, t("first_difference"), " ", h("b", {}, differenceText(found)), badge("derived"), " ", found.position === null ? null : jump("jump", found.position, found.names.layer)),
      table(t("both_values"), [t("side"), t("value")], [[heads[0], value(found.ours)], [heads[1], value(found.theirs)]], { class: "narrow values" }),
      found.position !== null && token === found.position ? null : h("p", { id: "token-difference" }, token === null ? t("no_other_token") : [t("first_other_token", { position: token }), " ", jump("jump-token", token)]),
      place === null ? null : this.around(ours, theirs, place, heads),
      place === null ? null : this.candidates(ours, theirs, place, heads)].filter(Boolean);
  }

  /** Tokens of both sides around the place. */
  around(ours, theirs, position, heads) {
    const name = (side, pos) => { const token = side.sequence.token(pos); return token ? h("bdi", { class: "mono" }, pieceText(token.data)) : "–"; };
    const id = (side, pos) => { const token = side.sequence.token(pos); return token ? token.id : null; };
    const rows = [];
    for (let pos = Math.max(0, position - 4); pos <= position + 4; pos += 1) {
      const [a, b] = [id(ours, pos), id(theirs, pos)];
      if (a === null && b === null) break;
      rows.push({ attributes: { class: pos === position ? "current" : undefined }, cells: [pos, name(ours, pos), name(theirs, pos), a === b ? "=" : "≠"] });
    }
    return table(t("tokens_around"), [t("position"), ...heads, t("same")], rows, { class: "narrow" });
  }

  candidates(ours, theirs, position, heads) {
    const tops = [ours, theirs].map(({ sequence }) => { const sample = sequence.samples[position - sequence.prompt.length]; return sample && sample.stages.length ? sample.stages[sample.stages.length - 1].top : []; });
    if (!tops[0].length || !tops[1].length) return null;
    const cell = (side, one) => (one ? [h("bdi", { class: "mono" }, side.trace.piece(one[0])), ` ${percent(number(one[2]))}`] : "–");
    return table(t("candidates_both"), [t("rank"), ...heads], tops[0].map((_, k) => [k + 1, h("span", {}, cell(ours, tops[0][k])), h("span", {}, cell(theirs, tops[1][k]))]), { class: "narrow" });
  }
}
customElements.define("pl-compare", ComparePanel);
