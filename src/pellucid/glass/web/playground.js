"use strict";
/* The playground: a chat whose answers are looked into while they come. Talks to nothing but its own server. */

class Api {
  constructor() {
    this.key = "";
    // whose requests are whose: the live trace shows those that were sent with the same name
    this.viewer = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  }

  async fetch(path, options = {}) {
    const headers = { "X-Pellucid-Viewer": this.viewer, ...(options.headers || {}) };
    if (this.key) headers.Authorization = `Bearer ${this.key}`;
    if (options.body !== undefined) headers["Content-Type"] = "application/json";
    const answer = await fetch(path, { ...options, headers, credentials: "omit", body: options.body === undefined ? undefined : JSON.stringify(options.body) });
    if (!answer.ok) {
      let why = `${answer.status}`;
      try { why = (await answer.json()).error.message; } catch { /* no JSON: the status is all there is */ }
      throw Object.assign(new Error(why), { status: answer.status });
    }
    return answer;
  }

  /** The objects of a stream of server-sent events. */
  async *events(path, options) {
    const answer = await this.fetch(path, options);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split(/\r?\n\r?\n/);
      rest = parts.pop();
      for (const part of parts) {
        const data = part.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart()).join("\n");
        if (data && data !== "[DONE]") yield JSON.parse(data);
      }
    }
  }
}

const utf8 = new TextEncoder();
function toBase64(data) { let text = ""; for (const byte of data) text += String.fromCharCode(byte); return btoa(text); }

class Playground {
  constructor(page) {
    this.page = page;
    this.api = new Api();
    this.turns = [];
    this.options = { temperature: 0.7, top_k: 0, top_p: 0.95, min_p: 0, max_tokens: 200 };
    this.models = [];
    this.number = 0;
    this.ids = new Map();
    this.draft = "";
    page.before = () => this.build();
  }

  async start() {
    this.page.build();
    this.say(t("connecting"));
    try {
      this.models = (await (await this.api.fetch("/v1/models")).json()).data;
      this.model = this.models[0].id;
      this.needsKey = false;
      this.page.build();
      this.say(t("ready"));
      this.listen();
    } catch (error) {
      this.needsKey = error.status === 401;
      this.page.build();
      this.say(this.needsKey ? t("key_help") : t("failed", { why: error.message }));
    }
    document.body.dataset.ready = "true";
  }

  say(text) { this.page.status.textContent = text; }

  build() {
    const list = h("div", { class: "turns", role: "log", "aria-label": t("chat"), tabindex: 0 });
    this.list = list;
    this.popup = h("div", {});
    this.hint = h("p", { class: "note", id: "hint" }, t("fork_help"));
    const box = h("textarea", { id: "message", "aria-label": t("message"), placeholder: t("placeholder"), rows: 2 });
    box.value = this.draft;
    box.addEventListener("input", () => { this.draft = box.value; this.typed(); });
    box.addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); this.send(); } });
    this.box = box;
    this.sendButton = h("button", { type: "submit", class: "primary", id: "send", disabled: Boolean(this.controller) || this.needsKey }, t("send"));
    this.stopButton = h("button", { type: "button", id: "stop", disabled: !this.controller, onclick: () => this.controller && this.controller.abort() }, t("stop"));
    const slider = (name, min, max, step) => {
      const value = h("output", {}, show(this.options[name]));
      const input = h("input", { type: "range", min, max, step, value: this.options[name], "aria-label": name });
      input.addEventListener("input", () => { this.options[name] = Number(input.value); value.textContent = show(this.options[name]); });
      return h("label", { class: "slider" }, h("span", {}, name), input, value);
    };
    const models = h("select", { "aria-label": t("model") }, this.models.map((one) => h("option", { value: one.id, selected: one.id === this.model }, one.id)));
    models.addEventListener("change", () => { this.model = models.value; });
    const form = h("form", { class: "compose" }, box, h("div", { class: "buttons" }, this.sendButton, this.stopButton, h("button", { type: "button", onclick: () => { this.turns = []; this.drawTurns(); } }, t("clear"))));
    form.addEventListener("submit", (event) => { event.preventDefault(); this.send(); });
    const whole = h("section", { class: "chat", "aria-label": t("chat") }, this.needsKey ? this.keyForm() : null, list, this.popup, form, this.hint,
      h("details", {}, h("summary", {}, t("settings")), h("div", { class: "sliders" }, this.models.length > 1 ? h("label", {}, t("model"), " ", models) : null, slider("temperature", 0, 2, 0.05), slider("top_k", 0, 100, 1), slider("top_p", 0.05, 1, 0.01), slider("min_p", 0, 0.5, 0.01), slider("max_tokens", 1, 1000, 1))));
    this.drawTurns();
    return whole;
  }

  keyForm() {
    const input = h("input", { type: "password", id: "key", autocomplete: "off", "aria-label": t("api_key") });
    const form = h("form", { class: "row" }, h("label", {}, t("api_key"), " ", input), h("button", { type: "submit", class: "primary" }, t("use_key")));
    form.addEventListener("submit", (event) => { event.preventDefault(); this.api.key = input.value.trim(); this.start(); });
    return form;
  }

  drawTurns() {
    this.list.replaceChildren(...this.turns.map((turn) => this.turn(turn)));
    this.list.scrollTop = this.list.scrollHeight;
  }

  turn(turn) {
    const item = h("div", { class: `turn ${turn.role}` }, h("span", { class: "who" }, turn.role === "user" ? t("you") : t("assistant"), turn.forked ? ` · ${t("forked")}` : ""));
    if (turn.role === "user") item.append(h("bdi", {}, turn.text));
    else item.append(turn.words.length ? h("div", { class: "words" }, turn.prefix ? h("span", {}, turn.prefix) : null, turn.words.map((word, place) => this.word(turn, word, place))) : h("div", { class: "words" }, turn.text));
    if (turn.meta) item.append(h("p", { class: "meta" }, turn.meta));
    return item;
  }

  word(turn, word, place) {
    const title = word.top.slice(0, 8).map((one) => `${percent(Math.exp(one.logprob))}  ${visible(one.token)}${one.token === word.token ? "  ◀" : ""}`).join("\n");
    const button = h("button", { type: "button", class: `word ${Math.exp(word.logprob) < 0.5 ? "unsure" : "sure"}`, title }, word.token);
    button.addEventListener("click", () => this.choose(turn, place));
    return button;
  }

  /** The alternatives of one token, each a button that goes on from it. */
  choose(turn, place) {
    const word = turn.words[place];
    const sequence = this.page.trace.sequences.get(turn.request);
    if (sequence) this.page.move({ request: turn.request, token: sequence.prompt.length + place });
    this.popup.replaceChildren(h("div", { class: "pop", role: "group", "aria-label": t("fork") }, h("b", {}, t("fork_at", { token: visible(word.token) })),
      h("ul", {}, word.top.map((one) => h("li", {}, h("button", { type: "button", onclick: () => this.fork(turn, place, one) }, h("bdi", { class: "mono" }, visible(one.token)), ` ${percent(Math.exp(one.logprob))}`))))));
    this.popup.querySelector("button").focus();
  }

  fork(turn, place, chosen) {
    if (this.controller) return;
    this.popup.replaceChildren();
    const at = this.turns.indexOf(turn);
    const prefix = (turn.prefix || "") + turn.words.slice(0, place).map((one) => one.token).join("") + chosen.token;
    this.turns = this.turns.slice(0, at);
    this.answer(prefix);
  }

  send() {
    const text = this.box.value;
    if (!text.trim() || this.controller || this.needsKey) return;
    this.turns.push({ role: "user", text, words: [] });
    this.box.value = this.draft = "";
    this.answer("");
  }

  messages(prefix) {
    const said = this.turns.map((turn) => ({ role: turn.role, content: turn.text }));
    return prefix ? [...said, { role: "assistant", content: prefix }] : said;
  }

  async answer(prefix) {
    const messages = this.messages(prefix);
    const going = prefix ? { add_generation_prompt: false, continue_final_message: true } : {};
    const request = `chat-${(this.number += 1)}`;
    const turn = { role: "assistant", text: prefix, prefix, words: [], request, forked: Boolean(prefix) };
    this.turns.push(turn);
    this.controller = new AbortController();
    this.sendButton.disabled = true;
    this.stopButton.disabled = false;
    this.drawTurns();
    const live = this.isTraced ? null : new LiveRequest(this.page.trace, request);
    try {
      const prompt = live ? this.tokens(live, { messages, ...going }) : null;
      const began = performance.now();
      let first = null;
      const body = { model: this.model, messages, ...going, stream: true, stream_options: { include_usage: true }, logprobs: true, top_logprobs: 20, ...this.options };
      if (!body.top_k) delete body.top_k;
      if (this.isTraced) body.trace = Math.min(2, this.page.trace.header.level);
      for await (const chunk of this.api.events("/v1/chat/completions", { method: "POST", body, signal: this.controller.signal })) {
        if (chunk.error) throw new Error(chunk.error.message);
        const choice = (chunk.choices || [])[0];
        if (this.isTraced && chunk.id) turn.request = chunk.id;
        if (choice) {
          turn.text += choice.delta.content || "";
          for (const one of (choice.logprobs && choice.logprobs.content) || []) {
            if (first === null) first = performance.now();
            turn.words.push({ token: one.token, logprob: one.logprob, top: one.top_logprobs });
            if (live) live.drew(one, this);
          }
          if (choice.finish_reason) turn.reason = choice.finish_reason;
        }
        if (chunk.usage) turn.usage = chunk.usage;
        this.drawSoon(turn);
      }
      if (prompt) await prompt;
      if (live) live.finish(turn, began, first);
      this.noteTimes(turn, began, first);
    } catch (error) {
      turn.meta = error.name === "AbortError" ? t("reason.abort") : t("failed", { why: error.message });
      if (live) live.finish({ reason: "abort" }, 0, null);
    } finally {
      this.controller = null;
      this.sendButton.disabled = false;
      this.stopButton.disabled = true;
      this.drawTurns();
      const sequence = this.page.trace.sequences.get(turn.request);
      if (sequence) this.page.move({ request: turn.request, token: sequence.prompt.length });
      this.box.focus({ preventScroll: true });
      document.body.dataset.answers = String(Number(document.body.dataset.answers || 0) + 1);
    }
  }

  drawSoon() {
    if (this.isDrawing) return;
    this.isDrawing = true;
    requestAnimationFrame(() => { this.isDrawing = false; this.drawTurns(); this.page.later(); });
  }

  /** The prompt's tokens, for the strip: ids and texts as the tokenizer gives them. */
  async tokens(live, body) {
    const found = await (await this.api.fetch("/tokenize", { method: "POST", body: { model: this.model, ...body, return_token_strs: true } })).json();
    live.prompt(found);
    this.page.later();
  }

  noteTimes(turn, began, first) {
    const usage = turn.usage;
    const all = usage ? usage.prompt_tokens : 0, cached = usage && usage.prompt_tokens_details ? usage.prompt_tokens_details.cached_tokens : 0;
    const parts = [];
    if (first !== null) parts.push(`TTFT ${ms((first - began) * 1e6)}`);
    if (first !== null && usage && usage.completion_tokens > 1) parts.push(`${show((usage.completion_tokens - 1) / ((performance.now() - first) / 1000), 3)} ${t("tokens")}/s`);
    if (turn.reason) parts.push(`${t("stopped")} ${TEXTS["reason." + turn.reason] ? t("reason." + turn.reason) : turn.reason}`);
    if (first !== null && all - cached > 0 && cached < all / 2) this.perToken = (first - began) / (all - cached);
    if (cached) {
      const saved = this.perToken ? t("saved", { cached, all, time: ms(cached * this.perToken * 1e6) }) : t("saved_unknown", { cached, all });
      parts.push(`${saved} (${t("badge.derived")})`);
    }
    turn.meta = parts.join(" · ");
  }

  /** While a message is typed, its prompt is computed ahead. */
  typed() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ahead(), 300);
  }

  ahead() {
    const text = this.box.value;
    if (!text.trim() || this.controller || this.needsKey) return;
    if (!this.socket || this.socket.readyState > 1) {
      const socket = (this.socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/v1/prefill/ws`));
      socket.addEventListener("open", () => socket.send(JSON.stringify({ model: this.model, ...(this.api.key ? { api_key: this.api.key } : {}) })));
      socket.addEventListener("message", (event) => this.prefilled(JSON.parse(event.data)));
      return;
    }
    if (this.socket.readyState === 1) this.socket.send(JSON.stringify({ messages: [...this.messages(""), { role: "user", content: text }] }));
  }

  prefilled(message) {
    if (message.type === "ready") this.ahead();
    else if (message.type === "prefilled") this.hint.textContent = t("typed_ahead", { cached: message.kept_tokens, all: message.prompt_tokens });
  }

  /** The engine's trace of this page's requests, where the server gives it. */
  async listen() {
    const path = document.body.dataset.traces;
    if (!path) { this.say(`${t("ready")} ${t("no_trace")}`); return; }
    try {
      for await (const event of this.api.events(path, {})) {
        if (!this.isTraced) { this.isTraced = true; this.say(t("traced")); }
        this.page.trace.add(event);
        this.page.later();
      }
    } catch { this.isTraced = false; this.say(`${t("ready")} ${t("no_trace")}`); }
  }
}

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
    this.trace.add({ type: "sample", req: this.name, step: this.count, i: 0, id: mine, bytes_b64: toBase64(data), logprob_raw: one.logprob, logprob_final: null, top2_gap: top.length > 1 ? top[0][1] - top[1][1] : null,
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
    const said = new TextDecoder().decode(concat(sequence.emits.map((one) => fromBase64(one.bytes_b64))));
    if (turn.text !== undefined && sequence.emits.length && said !== (turn.text || "").slice(turn.prefix.length)) sequence.emits[sequence.emits.length - 1].bytes_b64 = ""; // its end token is no text
    const details = turn.usage && turn.usage.prompt_tokens_details;
    if (details && this.request.tokens.length) {
      this.request.cachedUnknown = false;
      for (const token of this.request.tokens) token.cached = token.i < details.cached_tokens;
    }
    this.trace.add({ type: "finish", req: this.name, reason: turn.reason || "abort", stop_id: null, stop_str: null, n_output: this.count, ttft_ns: first === null ? null : Math.round((first - began) * 1e6), tpot_ns: first !== null && this.count > 1 ? ((performance.now() - first) * 1e6) / (this.count - 1) : null, itl_ns: [], ttft_parts: null });
  }
}

new Playground(document.querySelector("pl-page")).start();
