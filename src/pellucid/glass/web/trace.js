"use strict";
/* Events of pellucid-trace/1 → what the panels ask for. Takes more events at any time: the playground is live. */

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
    return { pos, id: sample.id, data: fromBase64(sample.bytes_b64), kind: "generated", cached: false, span: null, sample };
  }

  name(pos) {
    const token = this.token(pos);
    return token ? pieceText(token.data) : "–";
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
    this._requests = new Map();
  }

  sequence(event) {
    const key = event.index === undefined ? event.req : `${event.req}#${event.index}`;
    let found = this.sequences.get(key);
    if (!found) {
      found = new Sequence(key);
      found.request = this._requests.get(event.req) || null;
      this.sequences.set(key, found);
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
        for (const token of event.tokens) this.pieces.set(token.id, token.bytes_b64);
        for (const one of this.sequences.values()) if (one.key.split("#")[0] === event.req) one.request = event;
        this.sequence({ req: event.req }).request = event;
        break;
      }
      case "step": this.steps.push(event); break;
      case "layer": {
        const sequence = this.sequence(event);
        if (!sequence.layers.has(event.i)) sequence.layers.set(event.i, []);
        sequence.layers.get(event.i)[event.layer] = event;
        sequence._maxLayer = Math.max(sequence.maxLayer, event.layer);
        break;
      }
      case "sample":
        this.pieces.set(event.id, event.bytes_b64);
        this.sequence(event).samples.push(event);
        break;
      case "emit": this.sequence(event).emits.push(event); break;
      case "spec": this.sequence(event).specs.push(event); break;
      case "finish": this.sequence(event).finish = event; break;
      case "kv": this.kv.push(event); break;
      case "mem": this.mem.push(event); break;
      case "finding": this.findings.push(event); break;
      case "end": this.end = event; break;
      case "pieces": for (const [id, data] of Object.entries(event.bytes_b64)) this.pieces.set(Number(id), data); break;
      case "cut": this.cut = event; break;
      default: break; // of a later version
    }
  }

  /** A token id as text; ids whose bytes the trace does not have as #id. */
  piece(id) {
    const data = this.pieces.get(id);
    return data === undefined ? `#${id}` : pieceText(fromBase64(data));
  }

  get keys() { return [...this.sequences.keys()]; }

  /** A letter for each request, so that pictures need no colour: A, B, … Z, A1, … */
  letter(key) {
    const place = Math.max(0, this.keys.findIndex((one) => one === key || one.split("#")[0] === key));
    return String.fromCharCode(65 + (place % 26)) + (place >= 26 ? Math.floor(place / 26) : "");
  }
  hue(key) { return ["#4f6bed", "#c2571a", "#0f7b6c", "#a4379b", "#8a6d00", "#b4233c", "#3a7d1e", "#5d5fa8"][Math.max(0, this.keys.findIndex((one) => one === key || one.split("#")[0] === key)) % 8]; }

  stepsOf(key) { return this.steps.filter((step) => step.seqs.some((one) => sequenceKey(one) === key)); }

  /** What a step did for a sequence: prefill, verify or decode. */
  work(step, seq) {
    const sequence = this.sequences.get(sequenceKey(seq));
    if (!sequence) return "decode";
    if (sequence.specs.some((spec) => spec.step === step.step)) return "verify";
    return seq.tok0 < sequence.prompt.length && !(seq.n_tok === 1 && seq.tok0 >= sequence.prompt.length) ? "prefill" : "decode";
  }
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
    for (const line of lines) if (line) take(JSON.parse(line));
  }
  if (rest) take(JSON.parse(rest));
}
