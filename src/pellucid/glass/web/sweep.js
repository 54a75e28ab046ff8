"use strict";
/* The sweep page: answers under many settings, on a map, in a sortable table, and side by side. */

const MEASURES = ["num_tokens", "rep_4", "longest_repeat", "distinct_1", "distinct_2", "mean_logprob", "entropy", "seconds"];
const SURPRISE = 6; // nats that are shown darkest
const LEAST_RUN = 3; // tokens in common that are shown as such

class SweepPage extends HTMLElement {
  constructor() {
    super();
    this.sweep = null;
    this.cells = [];
    this.state = { prompt: 0, pinned: 0, x: "mean_logprob", y: "distinct_2", sort: null, isDown: false, mark: "diff" };
  }

  add(event) {
    if (event.type === "sweep") this.sweep = event;
    else if (event.type === "cell") { event.units = unitsOf(event); this.cells.push(event); }
  }

  start() {
    this.applyTheme(store.get("theme") || "auto");
    this.build();
  }

  applyTheme(theme) { setTheme(theme); }

  build() {
    const { sweep } = this;
    const title = t("sweep.title");
    setDocument(title);
    const machine = [sweep.model, sweep.machine.backend, sweep.machine.isa].filter(Boolean).join(" · ");
    const bar = topBar(title, h("p", { class: "model" }, machine), () => this.build());
    this.live = h("p", { class: "status", role: "status" });
    this.body = h("div", {});
    this.replaceChildren(h("a", { class: "skip", href: "#texts" }, t("sweep.skip")), bar, h("main", { class: "sweep" },
      h("p", { class: "lead" }, t("sweep.lead")), sweep.interrupted ? note(t("sweep.interrupted"), "warn") : null,
      facts(fact(t("sweep.prompts"), show(sweep.prompts.length)), fact(t("sweep.settings"), show(sweep.settings.length)), fact(t("sweep.answers"), show(this.cells.length)),
        fact(t("sweep.tokens"), show(sweep.num_output_tokens), "measured"), fact(t("sweep.seconds"), `${show(sweep.seconds, 3)} s`, "measured"), fact(t("sweep.rate"), show(Math.round(sweep.num_output_tokens / sweep.seconds)), "derived")),
      this.live, this.body, this.groups(), meanings()));
    this.refresh();
  }

  /** Cells of the chosen prompt, in the order of the table. */
  get shown() {
    const { prompt, sort, isDown } = this.state;
    const cells = this.cells.filter((cell) => cell.prompt === prompt);
    if (sort === null) return cells;
    const value = (cell) => (MEASURES.includes(sort) ? cell[sort] : sort === "stop" ? stopText(cell) : sort === "#" ? cell.setting : this.valueOf(cell, sort));
    return cells.sort((a, b) => (isDown ? -1 : 1) * compareValues(value(a), value(b)) || a.setting - b.setting);
  }

  get pinned() {
    const cells = this.cells.filter((cell) => cell.prompt === this.state.prompt);
    return cells.find((cell) => cell.setting === this.state.pinned) || cells[0];
  }

  valueOf(cell, name) {
    const value = this.sweep.settings[cell.setting].values[name];
    return name === "seed" && value === null && this.sweep.settings[cell.setting].values.temperature !== 0 ? cell.seed : value;
  }

  set(change, say = "") {
    Object.assign(this.state, change);
    this.refresh();
    this.live.textContent = say;
  }

  refresh() {
    const held = this.body.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
    const cells = this.shown;
    this.body.replaceChildren(...[this.promptPanel(), this.map(cells), this.numbers(cells), this.texts(cells)].filter(Boolean));
    const again = held && [...this.body.querySelectorAll("[data-key]")].find((one) => one.dataset.key === held);
    if (again) again.focus({ preventScroll: true });
  }

  pick(label, key, options, chosen, take) {
    const select = h("select", { "data-key": key }, options.map(([value, text]) => h("option", { value, selected: String(value) === String(chosen) }, text)));
    select.addEventListener("change", () => take(select.value));
    return h("label", { class: "pick" }, h("span", { class: "label" }, label), " ", select);
  }

  promptPanel() {
    const { prompts } = this.sweep;
    const prompt = prompts[this.state.prompt];
    return section("prompt", t("sweep.prompt"), [
      prompts.length > 1 ? this.pick(t("sweep.prompt"), "prompt", prompts.map((one, k) => [k, `${k + 1} · ${safe(one.text).replace(/\s+/g, " ").slice(0, 70)}`]), this.state.prompt, (k) => this.set({ prompt: Number(k) })) : null,
      h("pre", { class: "text", tabindex: 0 }, h("bdi", {}, safe(prompt.rendered === null ? prompt.text : prompt.rendered))),
      note(t("sweep.prompt_tokens", { n: show(prompt.num_tokens) }))]);
  }

  map(cells) {
    const { x, y } = this.state;
    const options = MEASURES.map((name) => [name, t("m." + name)]);
    const known = cells.filter((cell) => cell[x] !== null && cell[y] !== null);
    const by = this.sweep.varied[0];
    const kinds = by ? [...new Set(cells.map((cell) => JSON.stringify(this.valueOf(cell, by))))] : [];
    return section("map", t("sweep.map"), [
      h("p", { class: "lead" }, t("sweep.map_lead")),
      h("div", { class: "row wrap" }, this.pick(t("sweep.across"), "x", options, x, (name) => this.set({ x: name })), this.pick(t("sweep.up"), "y", options, y, (name) => this.set({ y: name }))),
      known.length ? scatter(known, x, y, (cell) => Math.max(0, kinds.indexOf(JSON.stringify(this.valueOf(cell, by)))) % 8, this.pinned, (cell) => this.pinAt(cell)) : note("–"),
      by ? h("p", { class: "legend" }, t("sweep.colour", { name: settingName(by) }), kinds.map((kind, k) => h("span", { class: "keyed" }, h("span", { class: `key p${k % 8}`, "aria-hidden": "true" }), " ", valueText(JSON.parse(kind))))) : null]);
  }

  pinAt(cell) { this.set({ pinned: cell.setting }, `${t("sweep.pinned")}: ${cell.setting + 1}`); }

  numbers(cells) {
    const { sort, isDown } = this.state;
    const columns = ["#", ...this.sweep.varied, ...MEASURES, "stop"];
    const range = Object.fromEntries(MEASURES.map((name) => [name, extent(cells.map((cell) => cell[name]))]));
    const head = columns.map((name) => {
      const isSorted = sort === name;
      const text = name === "#" ? "#" : name === "stop" ? t("stop") : MEASURES.includes(name) ? t("m." + name) : settingName(name);
      return h("th", { scope: "col", class: name === "stop" ? undefined : "n", "aria-sort": isSorted ? (isDown ? "descending" : "ascending") : "none" },
        h("button", { type: "button", class: "sort", "data-key": `sort-${name}`, title: MEASURES.includes(name) ? t("d." + name) : undefined, onclick: () => this.set({ sort: name, isDown: isSorted ? !isDown : MEASURES.includes(name) }) },
          text, h("span", { class: "arrow", "aria-hidden": "true" }, isSorted ? (isDown ? "▼" : "▲") : "")));
    });
    const rows = cells.map((cell) => {
      const isPinned = cell === this.pinned;
      return h("tr", { class: isPinned ? "pinned" : undefined, "data-setting": cell.setting },
        h("th", { scope: "row", class: "n" }, h("button", { type: "button", class: "pin", "aria-pressed": isPinned ? "true" : "false", "aria-label": t("sweep.pin", { n: cell.setting + 1 }), "data-key": `pin-${cell.setting}`, onclick: () => this.pinAt(cell) }, cell.setting + 1)),
        this.sweep.varied.map((name) => h("td", { class: "n" }, valueText(this.valueOf(cell, name)))),
        MEASURES.map((name) => h("td", { class: "n heatcell", style: { "--shade": share(cell[name], range[name]) } }, measureText(name, cell[name]))),
        h("td", {}, stopText(cell)));
    });
    return section("numbers", t("sweep.numbers"), [h("p", { class: "lead" }, t("sweep.numbers_lead")),
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": t("sweep.table") }, h("table", { class: "cells" }, h("caption", {}, t("sweep.table")), h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)))]);
  }

  texts(cells) {
    const { mark } = this.state;
    const most = Math.max(1, ...this.cells.flatMap((cell) => cell.entropies || []));
    return section("texts", t("sweep.texts"), [h("p", { class: "lead" }, t("sweep.texts_lead")),
      this.pick(t("sweep.mark"), "mark", ["diff", "logprob", "entropy"].map((one) => [one, t("sweep.mark." + one)]), mark, (one) => this.set({ mark: one })),
      note(t("sweep.legend." + mark, { max: show(most, 2) })),
      h("div", { class: "cards" }, cells.map((cell) => this.card(cell, most)))]);
  }

  card(cell, most) {
    const { pinned } = this;
    const isPinned = cell === pinned;
    const same = isPinned ? null : commonPrefix(pinned.units, cell.units);
    const isEqual = !isPinned && same === cell.units.length && same === pinned.units.length;
    const pieces = cell.error !== null ? [h("b", {}, safe(cell.error))] : !cell.units.length ? [h("i", {}, t("sweep.empty"))] : this.marked(cell, pinned, most);
    return h("article", { class: `card${isPinned ? " pinned" : ""}`, "aria-labelledby": `c-${cell.setting}`, "data-setting": cell.setting },
      h("h3", { id: `c-${cell.setting}` }, h("span", { class: "num" }, cell.setting + 1), h("span", {}, this.label(cell))),
      h("p", { class: "sub" }, `${t("m.num_tokens")} ${cell.num_tokens} · ${t("stop")} ${stopText(cell)} · ${t("m.rep_4")} ${measureText("rep_4", cell.rep_4)} · ${t("m.distinct_2")} ${measureText("distinct_2", cell.distinct_2)}`,
        isPinned ? h("b", { class: "chip" }, t("sweep.pinned")) : null),
      h("div", { class: "said", dir: "auto" }, pieces),
      isPinned ? null : h("p", { class: "sub" }, isEqual ? t("sweep.equal") : same ? t("sweep.same", { n: cell.units.slice(0, same).reduce((sum, one) => sum + one.n, 0) }) : ""));
  }

  label(cell) {
    return this.sweep.varied.map((name) => [name, this.valueOf(cell, name)]).filter(([, value]) => value !== null).map(([name, value]) => (name === "preset" ? value : `${settingName(name)} ${valueText(value)}`)).join(" · ");
  }

  marked(cell, pinned, most) {
    const { mark } = this.state;
    if (mark === "diff") {
      if (cell === pinned) return [cell.units.map((one) => one.text).join("")];
      const kept = inCommon(pinned.units, cell.units);
      const runs = [];
      cell.units.forEach((one, k) => {
        const last = runs[runs.length - 1];
        if (last && last.isKept === kept[k]) last.text += one.text; else runs.push({ isKept: kept[k], text: one.text });
      });
      return runs.map((run) => (run.isKept ? h("span", { class: "same" }, run.text) : h("mark", {}, run.text)));
    }
    return cell.units.map((one) => {
      const value = mark === "logprob" ? -one.logprob : one.entropy;
      if (value === null) return one.text;
      const shade = Math.min(1, value / (mark === "logprob" ? SURPRISE : most));
      return h("span", { class: `shaded${mark === "logprob" && one.logprob < Math.log(0.1) ? " unsure" : ""}`, style: { "--shade": shade }, title: mark === "logprob" ? `${t("m.mean_logprob")} ${show(one.logprob, 3)} · ${percent(Math.exp(one.logprob))}` : `${show(value, 3)}` }, one.text);
    });
  }

  groups() {
    const { groups } = this.sweep;
    if (!groups.some((one) => one.num_cells > 1)) return null;
    const names = this.sweep.varied.filter((name) => name !== "seed");
    const hasTogether = groups.some((one) => one.distinct_2_together !== null);
    const rows = groups.map((one) => [...names.map((name) => ({ is: valueText(one.values[name]), class: "n" })), one.num_cells, ...MEASURES.map((name) => ({ is: measureText(name, one.means[name]), class: "n" })),
      ...(hasTogether ? [{ is: measureText("distinct_2", one.distinct_2_together), class: "n" }] : []), { is: `${Math.round(100 * one.stopped)} %`, class: "n" }]);
    return section("groups", t("sweep.groups"), [h("p", { class: "lead" }, t("sweep.groups_lead")),
      table(t("sweep.groups_table"), [...names.map(settingName), t("sweep.answers"), ...MEASURES.map((name) => t("m." + name)), ...(hasTogether ? [t("sweep.together")] : []), t("sweep.stopped")], rows),
      hasTogether ? note(t("sweep.together.title")) : null]);
  }
}
customElements.define("pl-sweep", SweepPage);

function section(name, title, content) {
  return h("section", { id: name, class: "panel", "aria-labelledby": `h-${name}` }, h("h2", { id: `h-${name}` }, title), content);
}

function meanings() {
  return h("details", { class: "panel" }, h("summary", {}, t("sweep.meaning")), h("dl", {}, MEASURES.flatMap((name) => [h("dt", {}, h("b", {}, t("m." + name))), h("dd", {}, t("d." + name))])));
}

/** Text with what is invisible or turns other text round made visible; spaces and line ends stay. */
const safe = (text) => String(text).replace(HIDDEN, (letter) => (letter === "\n" || letter === "\t" ? letter : `⟨U+${letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`));

/** Tokens of a cell's text, those that share a character put together: {key, text, n, logprob, entropy}. */
function unitsOf(cell) {
  const units = [];
  let at = 0;
  for (let k = 0; k < cell.num_tokens;) {
    let end = k + 1, text = null;
    for (let data = []; end <= cell.num_tokens; end += 1) {
      data = [...data, ...fromBase64(cell.pieces[end - 1])];
      try { text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(data)); break; } catch { text = null; }
    }
    if (text === null) { end = k + 1; text = new TextDecoder().decode(fromBase64(cell.pieces[k])); }
    let size = 0;
    while (size < text.length && text[size] === cell.text[at + size]) size += 1;
    if (size) {
      const ids = cell.token_ids.slice(k, end);
      const sum = (list) => (list ? list.slice(k, end).reduce((all, one) => all + number(one), 0) : null);
      units.push({ key: ids.join(" "), text: safe(cell.text.slice(at, at + size)), n: end - k, logprob: sum(cell.logprobs), entropy: cell.entropies ? sum(cell.entropies) / (end - k) : null });
      at += size;
    }
    k = end;
  }
  if (at < cell.text.length) units.push({ key: "rest", text: safe(cell.text.slice(at)), n: 0, logprob: 0, entropy: 0 });
  return units;
}

function commonPrefix(a, b) {
  let k = 0;
  while (k < a.length && k < b.length && a[k].key === b[k].key) k += 1;
  return k;
}

/** For each unit of `b`, whether `a` has it too: their common beginning, then runs of a longest common subsequence. */
function inCommon(a, b) {
  const kept = b.map(() => false);
  const first = commonPrefix(a, b);
  for (let k = 0; k < first; k += 1) kept[k] = true;
  const [rows, columns] = [a.length - first, b.length - first];
  if (rows * columns > 4e6) return kept;
  const width = columns + 1;
  const best = new Uint16Array((rows + 1) * width);
  for (let i = rows - 1; i >= 0; i -= 1) {
    for (let j = columns - 1; j >= 0; j -= 1) {
      best[i * width + j] = a[first + i].key === b[first + j].key ? best[(i + 1) * width + j + 1] + 1 : Math.max(best[(i + 1) * width + j], best[i * width + j + 1]);
    }
  }
  for (let i = 0, j = 0; i < rows && j < columns;) {
    if (a[first + i].key === b[first + j].key) { kept[first + j] = true; i += 1; j += 1; } else if (best[(i + 1) * width + j] >= best[i * width + j + 1]) i += 1; else j += 1;
  }
  for (let k = first; k < kept.length;) { // single words in common are chance
    let end = k;
    while (end < kept.length && kept[end] === kept[k]) end += 1;
    if (kept[k] && end - k < LEAST_RUN) kept.fill(false, k, end);
    k = end;
  }
  return kept;
}

function scatter(cells, x, y, hue, pinned, take) {
  const [W, H, left, bottom] = [760, 380, 66, 50];
  const [xs, ys] = [ticks(extent(cells.map((cell) => cell[x]))), ticks(extent(cells.map((cell) => cell[y])))];
  const at = (value, { low, high }, from, to) => from + ((value - low) / (high - low)) * (to - from);
  const px = (value) => at(value, xs, left + 16, W - 20);
  const py = (value) => at(value, ys, H - bottom - 14, 22);
  const ordered = [...cells.filter((cell) => cell !== pinned), ...cells.filter((cell) => cell === pinned)];
  return s("svg", { viewBox: `0 0 ${W} ${H}`, class: "wide scatter", role: "img", "aria-label": t("sweep.map_label", { x: t("m." + x), y: t("m." + y), n: cells.length }) },
    xs.at.map((value) => s("g", {}, s("line", { x1: px(value), x2: px(value), y1: 12, y2: H - bottom, class: "gridline" }), s("text", { x: px(value), y: H - bottom + 18, "text-anchor": "middle", class: "tick" }, tickText(value)))),
    ys.at.map((value) => s("g", {}, s("line", { x1: left, x2: W - 8, y1: py(value), y2: py(value), class: "gridline" }), s("text", { x: left - 8, y: py(value) + 4, "text-anchor": "end", class: "tick" }, tickText(value)))),
    s("text", { x: (left + W) / 2, y: H - 8, "text-anchor": "middle" }, `${t("m." + x)} →`),
    s("text", { x: 16, y: (H - bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 16 ${(H - bottom) / 2})` }, `${t("m." + y)} →`),
    ordered.map((cell) => s("g", { class: `dot${cell === pinned ? " pinned" : ""}`, transform: `translate(${px(cell[x]).toFixed(1)} ${py(cell[y]).toFixed(1)})`, onclick: () => take(cell) },
      s("title", {}, `${cell.setting + 1}: ${t("m." + x)} ${measureText(x, cell[x])}, ${t("m." + y)} ${measureText(y, cell[y])}`), s("circle", { r: 12, class: `p${hue(cell)}` }), s("text", { y: 4, "text-anchor": "middle" }, cell.setting + 1))));
}

/** Round numbers that cover a range: {low, high, at}. */
function ticks([low, high]) {
  if (high - low < 1e-9) { low -= 0.5; high += 0.5; }
  const raw = (high - low) / 5;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((times) => times * size).find((one) => one >= raw);
  const [first, last] = [Math.floor(low / step + 1e-9), Math.ceil(high / step - 1e-9)];
  return { low: first * step, high: last * step, at: Array.from({ length: last - first + 1 }, (_, k) => (first + k) * step) };
}
const tickText = (value) => String(Number(value.toPrecision(6))).replace("-", "−");

function extent(values) {
  const known = values.filter((value) => value !== null);
  return known.length ? [Math.min(...known), Math.max(...known)] : [0, 1];
}
const share = (value, [low, high]) => (value === null || high <= low ? 0 : (value - low) / (high - low));
const settingName = (name) => (name === "preset" ? t("setting.preset") : name);
const valueText = (value) => (value === null ? "–" : String(value));

function measureText(name, value) {
  if (value === null || value === undefined) return "–";
  if (name === "num_tokens" || name === "longest_repeat") return Number.isInteger(value) ? String(value) : value.toFixed(1);
  return name === "seconds" ? `${value.toFixed(2)} s` : value.toFixed(3);
}

const stopText = (cell) => `${t("end." + cell.finish_reason)}${cell.stop_reason === null ? "" : ` ${safe(JSON.stringify(cell.stop_reason))}`}`;

function compareValues(a, b) {
  if (a === b) return 0;
  if (a === null) return -1;
  if (b === null) return 1;
  return a < b ? -1 : 1;
}

async function openSweep() {
  const page = document.querySelector("pl-sweep");
  try {
    await unpack(document.getElementById("trace").textContent, (event) => page.add(event));
  } catch (error) {
    page.replaceChildren(h("main", {}, note(t("load_failed", { why: String(error) }), "warn")));
    return;
  }
  page.start();
  document.body.dataset.ready = "true";
}
openSweep();
