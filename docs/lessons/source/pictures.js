"use strict";
/* What a lesson shows of a trace. Each function gives elements back; every picture has its numbers in words or in a table. */

/** A run's sequence by its name; a lesson that names one that was not recorded fails at once. */
function run(trace, name) {
  const sequence = trace.sequences.get(name);
  if (!sequence) throw new Error(`the trace has no run named ${name}`);
  return sequence;
}
const tokensOf = (sequence) => sequence.prompt.map((_, pos) => sequence.token(pos));
const generated = (sequence) => sequence.samples.map((_, k) => sequence.token(sequence.prompt.length + k));
const firstStage = (sequence, k = 0) => sequence.samples[k].stages[0];
const lastStage = (sequence, k = 0) => sequence.samples[k].stages.at(-1);
const probabilityOf = (stage, id) => { const found = stage.top.find((one) => one[0] === id); return found ? number(found[2]) : null; };

/** As on a telephone: the picture is drawn for that width, or its words could not be read. */
const isNarrow = () => innerWidth < 640;

/** Tokens side by side, with their ids and, if wanted, their bytes. */
function tokenRow(tokens, label, { withBytes = false } = {}) {
  return h("ul", { class: "tokens", "aria-label": label }, tokens.map((token) => h("li", { class: `tok ${token.kind}${token.cached ? " cached" : ""}` },
    h("bdi", { class: "txt" }, pieceText(token.data)), h("span", { class: "id" }, `${token.id < 0 ? "" : "#"}${idText(token.id)}`), withBytes ? h("span", { class: "hex" }, hex(token.data)) : null)));
}

/** The head of a column of numbers. */
const right = (text) => ({ is: capital(text), class: "n" });

/** Shares with bars: [[name, share, mark?], …]. */
function shares(caption, rows, head = t("token"), measure = t("probability")) {
  return table(caption, [head, right(measure), t("picture")], rows.map(([name, share, mark]) => ({ attributes: mark ? { class: "current" } : {}, cells: [h("bdi", { class: "mono" }, name, mark ? ` ◀ ${mark}` : ""), { is: percent(share), class: "n" }, bar(share)] })), { class: "bars" });
}

/** The most probable tokens of a stage, with the one that was drawn if it may be told yet. */
function stageShares(trace, sequence, stage, caption, most = 6, isMarked = true) {
  const drawn = isMarked ? sequence.samples[0].id : null;
  const top = stage.top.slice(0, most);
  const rows = top.map(([id, , p]) => [trace.piece(id), number(p), id === drawn ? t("chosen") : ""]);
  if (isMarked && !top.some(([id]) => id === drawn)) rows.push([trace.piece(drawn), number(stage.chosen.p), t("chosen")]);
  const rest = 1 - rows.reduce((sum, one) => sum + one[1], 0);
  if (rest > 0.0005) rows.push([t("others"), rest]);
  return shares(caption, rows);
}

/** Probabilities side by side from 0 to 1, and where u falls. */
function drawLine(trace, sequence, label) {
  const width = isNarrow() ? 360 : 720, stage = lastStage(sequence), u = Number(sequence.samples[0].rng.u);
  let at = 0;
  const parts = stage.top.map(([id, , p], k) => {
    const from = at;
    at += number(p);
    const isHit = u >= from && u < at;
    const name = trace.piece(id);
    return s("g", {}, s("title", {}, `${name} ${percent(number(p))}`), s("rect", { class: `seg s${k % 2}${isHit ? " on" : ""}`, x: show(width * from, 6), y: 14, width: show(Math.max(0, width * number(p)), 6), height: 30 }),
      number(p) * width > 8 * name.length ? s("text", { class: `seglabel${isHit ? " on" : ""}`, x: show(width * (from + number(p) / 2), 6), y: 33, "text-anchor": "middle" }, name) : null);
  });
  return h("figure", {}, s("svg", { viewBox: `0 0 ${width} 62`, class: "wide", role: "img", "aria-label": label },
    parts, at < 0.9995 ? s("rect", { class: "seg rest", x: show(width * at, 6), y: 14, width: show(width * (1 - at), 6), height: 30 }) : null,
    width * (1 - at) > 110 ? s("text", { x: width - 6, y: 33, "text-anchor": "end" }, t("others")) : null,
    s("g", { class: "udraw" }, s("line", { x1: show(width * u, 6), x2: show(width * u, 6), y1: 6, y2: 52 }), s("text", { x: show(Math.min(width - 70, width * u + 5), 6), y: 61 }, `u = ${show(u, 4)}`))),
    h("figcaption", {}, label));
}

/** Pieces of text as the client gets them. */
function emissions(sequence, caption) {
  const name = (emit) => { const token = sequence.token(emit.token_range[1] - 1); return token ? pieceText(token.data) : "–"; };
  return table(caption, [t("token"), t("text_out"), t("held")], sequence.emits.map((emit) => [h("bdi", { class: "mono" }, name(emit)), emit.bytes_b64 ? h("bdi", { class: "mono chip" }, pieceText(fromBase64(emit.bytes_b64))) : t("nothing"),
    emit.held_bytes ? t("held_bytes", { n: emit.held_bytes, why: t("held." + emit.held_reason) }) : "–"]));
}

/** Rows by columns, shaded by a number from 0 to 1; null is a cell that cannot be. */
function matrix(caption, rows, columns, value) {
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, h("table", { class: "matrix" }, h("caption", {}, caption),
    h("thead", {}, h("tr", {}, h("td", {}), columns.map((name) => h("th", { scope: "col" }, h("bdi", { class: "mono" }, name))))),
    h("tbody", {}, rows.map((name, i) => h("tr", {}, h("th", { scope: "row" }, h("bdi", { class: "mono" }, name)), columns.map((_, j) => { const w = value(i, j); return w === null ? h("td", { class: "never" }, "—") : h("td", { style: { "--shade": Math.round(1000 * w) / 1000 } }, w.toFixed(2)); }))))));
}

/** Layers by positions: where two runs computed other numbers. */
function differences(one, two, label) {
  const layers = one.maxLayer + 1;
  const positions = one.prompt.length;
  const [wide, tall, under] = isNarrow() ? [34, 7, 62] : [54, 9, 20]; // names stand upright where there is little room
  const cells = [];
  for (let pos = 0; pos < positions; pos += 1) for (let layer = 0; layer < layers; layer += 1) {
    const isSame = hasSameRow(one, two, pos, layer);
    cells.push(s("rect", { class: isSame ? "same" : "changed", x: pos * wide, y: (layers - 1 - layer) * tall, width: wide - 2, height: tall - 1 }));
  }
  const names = tokensOf(two).map((token, pos) => {
    const [x, y] = isNarrow() ? [pos * wide + wide / 2 + 3, layers * tall + 4] : [pos * wide + wide / 2 - 1, layers * tall + 14];
    return s("text", { x, y, "text-anchor": isNarrow() ? "end" : "middle", transform: isNarrow() ? `rotate(-90 ${x} ${y})` : null }, pieceText(token.data));
  });
  return h("figure", {}, s("svg", { viewBox: `0 0 ${positions * wide} ${layers * tall + under}`, class: "wide", role: "img", "aria-label": label }, cells, names), h("figcaption", {}, label));
}
const NORMS = ["resid_rms", "attn_rms", "mlp_rms", "absmax"];
const hasSameRow = (one, two, pos, layer) => NORMS.every((name) => one.layer(pos, layer)[name] === two.layer(pos, layer)[name]);
/** Positions of which some layer differs. */
const changedPositions = (one, two) => one.prompt.map((_, pos) => pos).filter((pos) => Array.from({ length: one.maxLayer + 1 }, (_, layer) => hasSameRow(one, two, pos, layer)).includes(false));

/** Steps of a run, one line each: how long, how many tokens. */
function stepLines(trace, sequence, most = 8) {
  const steps = trace.stepsOf(sequence.key).slice(0, most).map((step) => ({ took: step.t1_ns - step.t0_ns, one: step.seqs.find((seq) => sequenceKey(seq) === sequence.key) }));
  const longest = Math.max(...steps.map((step) => step.took));
  return h("div", { class: "steps", role: "list" }, steps.map(({ took, one }, k) => h("div", { class: `line ${one.tok0 < sequence.prompt.length ? "prefill" : "decode"}`, role: "listitem" }, h("span", {}, t("step_n", { n: k + 1 })), bar(took / longest),
    h("span", {}, `${one.n_tok} × ${t("token").toLowerCase()} · ${ms(took)}`))));
}
