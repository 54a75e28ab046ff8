"use strict";
/* What the panels show where the server gives no trace. */

const utf8 = new TextEncoder();
function toBase64(data) { let text = ""; for (const byte of data) text += String.fromCharCode(byte); return btoa(text); }

/** Events made of an answer's logprobs, where the server gives no trace. */
class LiveRequest {
  constructor(trace, name) {
    this.trace = trace;
    this.name = name;
    this.count = 0;
    this.began = performance.now();
    this.request = { type: "request", req: name, arrive_ns: Math.round(this.began * 1e6), template: null, rendered: "", params: {}, tokens: [], cachedUnknown: true };
    trace.add(this.request);
  }

  prompt({ tokens, token_strs: texts }) {
    this.request.tokens = tokens.map((id, i) => ({ i, id, bytes_b64: toBase64(utf8.encode(texts[i])), span: null, kind: /^<[^<>]+>$/.test(texts[i]) ? "special" : "normal", pos: i, cached: false }));
    this.request.rendered = texts.join("");
    for (const token of this.request.tokens) this.trace.pieces.set(token.id, token.bytes_b64);
  }

  drew(one, playground) {
    const id = (entry) => this.idOf(playground, entry);
    const data = new Uint8Array(one.bytes || []);
    const top = one.top_logprobs.map((entry) => [id(entry), entry.logprob, Math.exp(entry.logprob)]);
    const mine = id(one);
    const rank = top.findIndex(([each]) => each === mine) + 1;
    this.trace.add({ type: "sample", req: this.name, step: this.count, i: this.request.tokens.length + this.count, place: this.count, id: mine, bytes_b64: toBase64(data), logprob_raw: one.logprob, logprob_final: null, top2_gap: top.length > 1 ? top[0][1] - top[1][1] : null,
      stages: [{ name: "logprobs", param: null, alive: null, entropy: null, mass_removed: null, top, chosen: { logit: one.logprob, p: Math.exp(one.logprob), rank } }], rng: null });
    this.trace.add({ type: "emit", req: this.name, t_ns: Math.round(performance.now() * 1e6), token_range: [this.count, this.count + 1], bytes_b64: toBase64(data), held_bytes: 0, held_reason: null });
    this.count += 1;
  }

  /** Logprobs have no ids: tokens are told apart by their bytes, as negative numbers. */
  idOf(playground, entry) {
    const key = (entry.bytes || []).join(",");
    if (!playground.ids.has(key)) {
      const id = -1 - playground.ids.size;
      playground.ids.set(key, id);
      this.trace.pieces.set(id, toBase64(new Uint8Array(entry.bytes || [])));
    }
    return playground.ids.get(key);
  }

  finish(turn, began, first) {
    const sequence = this.trace.sequences.get(this.name);
    if (!sequence) return; // the trace began anew meanwhile
    const said = sequence.text;
    if (turn.text !== undefined && sequence.emits.length && said !== (turn.text || "").slice((turn.prefix || "").length)) sequence.emits[sequence.emits.length - 1].bytes_b64 = ""; // its end token is no text
    const details = turn.usage && turn.usage.prompt_tokens_details;
    if (details && this.request.tokens.length) {
      this.request.cachedUnknown = false;
      for (const token of this.request.tokens) token.cached = token.i < details.cached_tokens;
    }
    this.trace.add({ type: "finish", req: this.name, reason: turn.reason || "abort", stop_id: null, stop_str: null, n_output: this.count, ttft_ns: first === null ? null : Math.round((first - began) * 1e6), tpot_ns: first !== null && this.count > 1 ? ((performance.now() - first) * 1e6) / (this.count - 1) : null, itl_ns: [], ttft_parts: null });
  }
}
