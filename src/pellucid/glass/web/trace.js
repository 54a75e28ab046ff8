"use strict";
/* Events of pellucid-trace/1 → what the panels ask for. Takes more events at any time: the playground is live. */

/** In place of a token whose record was lost. */
const utf8Lost = new TextEncoder().encode("\u2026?");

class Sequence {
  constructor(key) {
    this.key = key;
    this.request = null;
    this.samples = [];
    this.emits = [];
    this.specs = [];
    this.finish = null;
    this.layers = new Map();
  }

  get prompt() { return this.request ? this.request.tokens : []; }
  get length() { return this.prompt.length + this.samples.length; }
  /** What went out so far. */
  get text() { return new TextDecoder().decode(concat(this.emits.map((emit) => fromBase64(emit.bytes_b64)))); }
  get maxLayer() { return this._maxLayer ?? -1; }

  /** Token at a position: {pos, id, data, kind, cached, sample}. */
  token(pos) {
    const n = this.prompt.length;
    if (pos < n) {
      const token = this.prompt[pos];
      if (!token) return null;
      return { pos, id: token.id, data: fromBase64(token.bytes_b64), kind: token.kind, cached: token.cached, span: token.span, sample: null };
    }
    const sample = this.samples[pos - n];
    if (!sample) return null;
    if (sample.isLost) return { pos, id: -1, data: utf8Lost, kind: "generated", cached: false, span: null, sample };
    return { pos, id: sample.id, data: fromBase64(sample.bytes_b64), kind: "generated", cached: false, span: null, sample };
  }

  name(pos) {
    const token = this.token(pos);
    return token ? pieceText(token.data) : "–";
  }

  /** A draw goes to its position, whatever came before it; what is missing is a gap. */
  take(sample) {
    const told = sample.place ?? (this.request ? sample.i - this.prompt.length : this.samples.length);
    const place = told < 0 ? this.samples.length : told;
    for (let k = this.samples.length; k < place; k += 1) this.samples.push({ type: "sample", i: this.prompt.length + k, id: -1, bytes_b64: "", logprob_raw: null, logprob_final: null, top2_gap: null, stages: [], rng: null, isLost: true });
    this.samples[place] = sample;
  }

  /** The request is known: draws that came before it find their places. */
  tell(request) {
    this.request = request;
    const samples = this.samples.filter((one) => !one.isLost);
    this.samples = [];
    for (const one of samples) this.take(one);
  }

  /** Whether everything of it is there, as its level has it. */
  get isWhole() {
    const { request, finish } = this;
    return Boolean(request && !request.queued && finish) && (request.level < 2 || (this.samples.length >= finish.n_output && !this.samples.some((one) => one.isLost)));
  }

  layer(pos, layer) { return (this.layers.get(pos) || [])[layer] || null; }
}

class Trace {
  constructor() {
    this.header = null;
    this.sequences = new Map();
    this.steps = [];
    this.kv = [];
    this.mem = [];
    this.findings = [];
    this.end = null;
    this.pieces = new Map();
    this.cut = null;
    this.lost = 0; // records that are missing, whoever they concerned
    this.others = new Map(); // requests of which the trace has nothing but their work → their number
    this._requests = new Map();
    this._places = new Map();
    this._steps = new Map();
  }

  get isEmpty() { return !this.sequences.size; }

  sequence(event) {
    const key = event.index === undefined ? event.req : `${event.req}#${event.index}`;
    let found = this.sequences.get(key);
    if (!found) {
      found = new Sequence(key);
      found.request = this._requests.get(event.req) || null;
      this.sequences.set(key, found);
      this._places.clear();
      const bare = this.sequences.get(event.req);
      if (key !== event.req && bare && !bare.samples.length) this.sequences.delete(event.req);
    }
    return found;
  }

  add(event) {
    switch (event.type) {
      case "header": this.header = event; break;
      case "request": {
        this._requests.set(event.req, event);
        this.others.delete(event.req);
        for (const token of event.tokens) this.pieces.set(token.id, token.bytes_b64);
        for (const one of this.sequences.values()) if (one.key.split("#")[0] === event.req) one.tell(event);
        if (![...this.sequences.values()].some((one) => one.request === event)) this.sequence({ req: event.req }).tell(event);
        break;
      }
      case "step":
        this.steps.push(event);
        this._steps.set(event.step, event);
        for (const one of [...event.seqs, ...event.waiting]) if (!this._requests.has(one.req) && !this.others.has(one.req)) this.others.set(one.req, this.others.size);
        break;
      case "layer": {
        const sequence = this.sequence(event);
        if (!sequence.layers.has(event.i)) sequence.layers.set(event.i, []);
        sequence.layers.get(event.i)[event.layer] = event;
        sequence._maxLayer = Math.max(sequence.maxLayer, event.layer);
        break;
      }
      case "sample":
        this.pieces.set(event.id, event.bytes_b64);
        this.sequence(event).take(event);
        break;
      case "emit": this.sequence(event).emits.push(event); break;
      case "spec": this.sequence(event).specs.push(event); break;
      case "finish": this.sequence(event).finish = event; break;
      case "kv": this.kv.push(event); break;
      case "mem": this.mem.push(event); break;
      case "finding": this.findings.push(event); break;
      case "end": this.end = event; this.lost = Math.max(this.lost, event.dropped || 0); break;
      case "dropped": this.lost += event.records; break;
      case "pieces": for (const [id, data] of Object.entries(event.bytes_b64)) this.pieces.set(Number(id), data); break;
      case "cut": this.cut = event; break;
      default: break; // of a later version
    }
  }

  /** What came in another order than it happened: pages count on it. */
  sort() {
    for (const one of this.sequences.values()) one.samples.sort((a, b) => a.i - b.i);
    this.steps.sort((a, b) => a.step - b.step);
  }

  /** A token id as text; ids whose bytes the trace does not have as #id. */
  piece(id) {
    const data = this.pieces.get(id);
    return data === undefined ? `#${id}` : pieceText(fromBase64(data));
  }

  get keys() { return [...this.sequences.keys()]; }

  stepAt(number) { return this._steps.get(number) || null; }

  /** The lanes of a picture: requests of this trace, then others that shared its steps. */
  get lanes() { return [...this.sequences.keys(), ...this.others.keys()]; }

  place(key) {
    if (!this._places.size) this.keys.forEach((one, k) => { this._places.set(one, k); const bare = one.split("#")[0]; if (!this._places.has(bare)) this._places.set(bare, k); });
    return this._places.get(key);
  }

  /** A letter for each request, so that pictures need no colour: A, B, … Z, A1, …; others in small letters. */
  letter(key) {
    const own = this.place(key);
    const place = own === undefined ? this.others.get(key) || 0 : own;
    return String.fromCharCode((own === undefined ? 97 : 65) + (place % 26)) + (place >= 26 ? Math.floor(place / 26) : "");
  }
  hue(key) {
    const place = this.place(key);
    return place === undefined ? "#5f6773" : ["#4f6bed", "#b8531a", "#0f7b6c", "#a4379b", "#806500", "#b4233c", "#3a7d1e", "#5d5fa8"][place % 8];
  }

  stepsOf(key) { return this.steps.filter((step) => step.seqs.some((one) => sequenceKey(one) === key)); }

  /** What a step did for a sequence: prefill, verify or decode. */
  work(step, seq) {
    const sequence = this.sequences.get(sequenceKey(seq));
    if (!sequence) return seq.n_tok > 1 ? "prefill" : "decode"; // another client's: all that is known of it
    if (sequence.specs.some((spec) => spec.step === step.step)) return "verify";
    return seq.tok0 < sequence.prompt.length && !(seq.n_tok === 1 && seq.tok0 >= sequence.prompt.length) ? "prefill" : "decode";
  }
}

/** The newest `most` of a live trace's steps and block events; of older ones what still tells who holds a block. */
function forget(trace, most) {
  if (trace.steps.length > most) for (const step of trace.steps.splice(0, trace.steps.length - most)) trace._steps.delete(step.step);
  if (trace.mem.length > most) trace.mem.splice(0, trace.mem.length - most);
  if (trace.kv.length <= 4 * most) return;
  const old = trace.kv.splice(0, trace.kv.length - 2 * most);
  const last = new Map();
  for (const one of old) last.set(`${one.block} ${one.req}`, one);
  trace.kv.unshift(...[...last.values()].filter((one) => !["free", "evict", "preempt"].includes(one.op)));
}

/** From so much on, a part of the time that is the tracer's own is told apart: nobody should take it for the model's. */
const MUCH_TRACING = 0.05;

/** The time to the first token: {all, net} with and without the tracer's own, which of them is told, and which other part is the largest. */
function firstToken(finish) {
  const parts = Object.entries(finish.ttft_parts || {});
  const tracing = (finish.ttft_parts && finish.ttft_parts.tracing) || 0;
  const largest = parts.filter(([name]) => name !== "tracing").reduce((best, one) => (one[1] > best[1] ? one : best), ["", 0]);
  const [all, net, isMuch] = [finish.ttft_ns, finish.ttft_ns - tracing, tracing > MUCH_TRACING * finish.ttft_ns];
  return { all, net, tracing, largest, isMuch, told: isMuch ? net : all };
}

/** The time per token after the first: the tracer's share of it, and what is told. */
function laterTokens(trace, sequence) {
  const share = tracedShare(trace, sequence), isMuch = share > MUCH_TRACING;
  const tpot = (sequence.finish && sequence.finish.tpot_ns) || 0;
  return { share, isMuch, told: isMuch ? tpot * (1 - share) : tpot };
}

/** Which share of the steps after a request's prompt the tracer itself took. */
function tracedShare(trace, sequence) {
  let [all, traced] = [0, 0];
  for (const step of trace.stepsOf(sequence.key)) {
    const own = step.seqs.find((one) => sequenceKey(one) === sequence.key);
    if (own.tok0 < sequence.prompt.length) continue;
    all += step.t1_ns - step.t0_ns;
    traced += step.ns.tracing || 0;
  }
  return all ? traced / all : 0;
}

const sequenceKey = (one) => (one.index === undefined ? one.req : `${one.req}#${one.index}`);

/** Lines of base64 gzip → events, each given to `take`. */
async function unpack(text, take) {
  const data = fromBase64(text.replace(/\s+/g, ""));
  const stream = new Blob([data]).stream().pipeThrough(new DecompressionStream("gzip")).pipeThrough(new TextDecoderStream());
  let rest = "";
  const reader = stream.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line) take(parseEvent(line));
  }
  if (rest) take(parseEvent(rest));
}
