"use strict";
/* Traces in files of the reader's disk. They may be cut, huge or made to do harm: each fault is one sentence. */

const SCHEMA = "pellucid-trace/1";
const MOST_BYTES = 2 ** 30, MOST_REPORT = 2 ** 26, MOST_LINE = 2 ** 26;

/** Fields without which a panel could not begin: what each must be. */
const SHAPES = {
  header: { model: "object", tokenizer: "object", engine: "object" }, request: { req: "string", tokens: "array", rendered: "string", params: "object" },
  step: { step: "number", t0_ns: "number", t1_ns: "number", token_budget: "number", seqs: "array", waiting: "array", ns: "object" }, layer: { req: "string", i: "number", layer: "number" },
  sample: { req: "string", i: "number", id: "number", bytes_b64: "string", stages: "array" }, emit: { req: "string", token_range: "array", bytes_b64: "string" },
  kv: { op: "string", block: "number" }, spec: { req: "string", draft: "array" }, mem: { t_ns: "number" }, finish: { req: "string" }, pieces: { bytes_b64: "object" }, finding: { rule: "string" }, end: { dropped: "number" },
};
const kindOf = (value) => (Array.isArray(value) ? "array" : value === null ? "null" : typeof value);

/** JSON lines, the same gzipped, or a report, of which the data are taken. Throws an Error that is a sentence. */
async function readTraceFile(file) {
  const trace = new Trace();
  const begin = new Uint8Array(await file.slice(0, 256).arrayBuffer());
  let stream = file.stream(), isPacked = begin[0] === 0x1f && begin[1] === 0x8b;
  if (/^\s*</.test(new TextDecoder().decode(begin))) {
    if (file.size > MOST_REPORT) throw new Error(t("file_large", { most: bytes(MOST_REPORT) }));
    const found = /<script type="application\/gzip" id="trace">([A-Za-z0-9+/=\s]*)<\/script>/.exec(await file.text());
    if (!found) throw new Error(t("no_trace_file"));
    try { stream = new Blob([fromBase64(found[1].replace(/\s+/g, ""))]).stream(); } catch { throw new Error(t("file_damaged")); }
    trace.isReport = isPacked = true;
  }
  let number = 0;
  await eachLine(isPacked ? stream.pipeThrough(new DecompressionStream("gzip")) : stream, (line, isLast) => {
    number += 1;
    if (line.trim()) takeLine(trace, line, number, isLast);
  });
  if (!trace.header || trace.isEmpty) throw new Error(t("no_trace_file"));
  trace.sort();
  return trace;
}

/** Lines of a stream of bytes; the last is told when it has no end. */
async function eachLine(stream, take) {
  const reader = stream.getReader(), decoder = new TextDecoder();
  let rest = "", count = 0;
  for (;;) {
    let part;
    try { part = await reader.read(); } catch { throw new Error(t("file_damaged")); }
    if (part.done) break;
    count += part.value.length;
    if (count > MOST_BYTES) { await reader.cancel(); throw new Error(t("file_large", { most: bytes(MOST_BYTES) })); }
    const text = decoder.decode(part.value, { stream: true });
    if (!text.includes("\n")) { // a long line is not looked through again with every part
      rest += text;
    } else {
      const lines = (rest + text).split("\n");
      rest = lines.pop();
      for (const line of lines) take(line, false);
    }
    if (rest.length > MOST_LINE) { await reader.cancel(); throw new Error(t("line_long", { most: bytes(MOST_LINE) })); }
  }
  rest += decoder.decode();
  if (rest) take(rest, true);
}

function takeLine(trace, line, number, isLast) {
  let event;
  try { event = parseEvent(line); } catch { throw new Error(t(trace.header && isLast ? "trace_cut" : "line_no_json", { line: number })); }
  const type = event && typeof event === "object" ? event.type : undefined;
  if (!trace.header && (type !== "header" || event.schema !== SCHEMA)) {
    throw new Error(type === "header" && typeof event.schema === "string" && /^pellucid-trace\/\d{1,9}$/.test(event.schema) ? t("other_version", { schema: event.schema, ours: SCHEMA }) : t("no_trace_file"));
  }
  if (typeof type !== "string") throw new Error(t("line_no_event", { line: number }));
  if (trace.header && type === "header") throw new Error(t("second_header", { line: number }));
  for (const [field, kind] of Object.entries((Object.hasOwn(SHAPES, type) && SHAPES[type]) || {})) {
    if (kindOf(event[field]) !== kind) throw new Error(t("line_field", { line: number, field: `${type}.${field}` }));
  }
  try { trace.add(event); } catch { throw new Error(t("line_no_event", { line: number })); }
}
