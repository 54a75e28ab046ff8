"use strict";
/* The playground: a chat whose answers are looked into while they come. */

const MOST_STEPS = 5000; // of a live trace are kept

class Playground {
  constructor(page) {
    this.page = page;
    this.api = new Api();
    this.turns = [];
    this.past = new Map(); // request → the conversation that it answered, so that any of them can be forked
    this.options = { temperature: 0.7, top_k: 0, top_p: 0.95, min_p: 0, max_tokens: 200 };
    this.seed = null;
    this.models = [];
    this.number = 0;
    this.ids = new Map();
    this.draft = "";
    this.feed = new TraceFeed(this);
    this.ahead = new TypeAhead(this);
    this.level = Math.min(2, this.mostLevel);
    page.before = () => this.build();
    page.onFork = (request, position, id) => this.forkAt(request, position, id);
    if (this.mostLevel) page.onSave = (request) => this.feed.save(request);
  }

  /** The level up to which this server traces; 0 where it does not. */
  get mostLevel() { return Number(document.body.dataset.level || 0); }

  async start() {
    this.page.build();
    this.say(t("connecting"));
    try {
      await this.findModels();
      this.needsKey = false;
      this.page.build();
      this.say(t("ready"));
      this.feed.follow();
    } catch (error) {
      this.needsKey = error.status === 401;
      this.page.build();
      this.say(this.needsKey ? t(this.api.key ? "key_wrong" : "key_help") : t("failed", { why: error.message }));
      if (this.needsKey && this.api.key) this.page.querySelector("#key").focus();
      if (error.isGone) setTimeout(() => this.start(), 2000);
    }
    document.body.dataset.ready = "true";
  }

  async findModels() {
    this.models = (await (await this.api.fetch("/v1/models")).json()).data;
    if (!this.models.some((one) => one.id === this.model)) this.model = this.models[0].id;
  }

  say(text) { if (this.page.status.textContent !== text) this.page.status.textContent = text; }

  build() {
    this.list = h("div", { class: "turns", role: "log", "aria-live": "off", "aria-label": t("chat"), tabindex: 0 });
    this.popup = h("div", {});
    this.hint = h("p", { class: "note", id: "hint" }, t("fork_help"));
    const box = h("textarea", { id: "message", "aria-label": t("message"), placeholder: t("placeholder"), rows: 2 });
    box.value = this.draft;
    box.addEventListener("input", () => { this.draft = box.value; this.ahead.typed(); });
    box.addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); this.send(); } });
    this.box = box;
    this.sendButton = h("button", { type: "submit", class: "primary", id: "send" }, t("send"));
    this.stopButton = h("button", { type: "button", id: "stop", onclick: () => this.controller && this.controller.abort() }, t("stop"));
    this.clearButton = h("button", { type: "button", id: "clear", onclick: () => { this.turns = []; this.popup.replaceChildren(); this.drawTurns(); this.box.focus(); } }, t("clear"));
    this.enable();
    const form = h("form", { class: "compose" }, box, h("div", { class: "buttons" }, this.sendButton, this.stopButton, this.clearButton));
    form.addEventListener("submit", (event) => { event.preventDefault(); this.send(); });
    this.drawTurns();
    return h("section", { class: "chat", "aria-label": t("chat") }, this.needsKey ? this.keyForm() : null, this.list, this.popup, form, this.hint, this.settings());
  }

  settings() {
    const slider = (name, min, max, step) => {
      const value = h("output", {}, show(this.options[name]));
      const input = h("input", { type: "range", min, max, step, value: this.options[name], "aria-label": name });
      input.addEventListener("input", () => { this.options[name] = Number(input.value); value.textContent = show(this.options[name]); });
      return h("label", { class: "slider" }, h("span", {}, name), input, value, h("small", {}, t("help." + name)));
    };
    const models = h("select", { id: "model", "aria-label": t("model") }, this.models.map((one) => h("option", { value: one.id, selected: one.id === this.model }, one.id)));
    models.addEventListener("change", () => { this.model = models.value; this.ahead.close(); this.feed.startAnew(); this.feed.follow(); });
    const levels = h("select", { id: "level", "aria-label": t("trace_level") }, Array.from({ length: this.mostLevel + 1 }, (_, level) => h("option", { value: level, selected: level === this.level }, t("level." + level))));
    levels.addEventListener("change", () => { this.level = Number(levels.value); });
    const seed = h("input", { type: "number", id: "seed", min: 0, step: 1, value: this.seed ?? "", placeholder: t("seed_empty"), "aria-label": t("seed") });
    seed.addEventListener("input", () => { this.seed = seed.value === "" ? null : Number(seed.value); });
    return fold("settings", t("settings"), h("div", { class: "sliders" }, this.models.length > 1 ? h("label", {}, t("model"), " ", models) : null, this.mostLevel ? h("label", {}, t("trace_level"), " ", levels) : null,
      slider("temperature", 0, 2, 0.05), slider("top_k", 0, 100, 1), slider("top_p", 0.05, 1, 0.01), slider("min_p", 0, 0.5, 0.01), slider("max_tokens", 1, 1000, 1), h("label", { class: "slider" }, h("span", {}, "seed"), seed, h("small", {}, t("help.seed")))));
  }

  keyForm() {
    const input = h("input", { type: "password", id: "key", autocomplete: "off", "aria-label": t("api_key") });
    const form = h("form", { class: "row" }, h("label", {}, t("api_key"), " ", input), h("button", { type: "submit", class: "primary" }, t("use_key")));
    form.addEventListener("submit", (event) => { event.preventDefault(); this.api.key = input.value.trim(); this.start(); });
    return form;
  }

  enable() {
    this.sendButton.disabled = Boolean(this.controller) || Boolean(this.needsKey);
    this.stopButton.disabled = !this.controller;
    this.clearButton.disabled = Boolean(this.controller);
  }

  drawTurns() {
    this.list.replaceChildren(...this.turns.map((turn) => turnView(this, turn)));
    this.list.scrollTop = this.list.scrollHeight;
  }

  /** While an answer comes only its own turn is drawn anew. */
  drawLast() {
    const last = this.turns[this.turns.length - 1];
    if (!last || !this.list.lastChild) { this.drawTurns(); return; }
    const isAtEnd = this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight < 40;
    const held = this.list.lastChild.contains(document.activeElement) ? document.activeElement.dataset.place : undefined;
    this.list.lastChild.replaceWith(turnView(this, last));
    if (held !== undefined) { const again = this.list.lastChild.querySelector(`[data-place="${held}"]`); if (again) again.focus({ preventScroll: true }); }
    if (isAtEnd) this.list.scrollTop = this.list.scrollHeight;
  }

  drawSoon() {
    if (this.isDrawing) return;
    this.isDrawing = true;
    requestAnimationFrame(() => { this.isDrawing = false; this.drawLast(); this.page.later(); });
  }

  /** The alternatives of one token, each a button that goes on from it. */
  choose(turn, word, button) {
    const sequence = this.page.trace.sequences.get(turn.request);
    if (sequence) this.page.move({ request: turn.request, token: sequence.prompt.length + word.place });
    const close = () => { this.popup.replaceChildren(); const again = this.list.querySelector(`[data-turn="${turn.request}"] [data-place="${word.place}"]`); (again || button).focus({ preventScroll: true }); };
    const others = word.top.map((one) => h("li", {}, one.isChosen ? h("span", { class: "cand ok" }, h("bdi", { class: "mono" }, one.shown), ` ${percent(one.p)} ◀`)
      : h("button", { type: "button", class: "cand", disabled: Boolean(this.controller), onclick: () => this.fork(turn, word.place, one) }, h("bdi", { class: "mono" }, one.shown), ` ${percent(one.p)}`)));
    const pop = h("div", { class: "pop", role: "group", "aria-label": t("fork") }, h("b", {}, t("fork_at", { token: word.shown })), h("ul", {}, others), h("button", { type: "button", class: "close", onclick: close }, t("close")));
    pop.addEventListener("keydown", (event) => { if (event.key === "Escape") { event.preventDefault(); close(); } });
    this.popup.replaceChildren(pop);
    this.popup.querySelector("button:not(:disabled)").focus();
  }

  /** Go on from another token. With a trace the ids are known: the prompt's, the answer's so far, the one chosen. */
  fork(turn, place, chosen) {
    if (this.controller) return;
    const sequence = this.page.trace.sequences.get(turn.request);
    if (chosen.id !== undefined && sequence && sequence.request) { this.forkAt(turn.request, sequence.prompt.length + place, chosen.id); return; }
    this.popup.replaceChildren();
    this.turns = this.turns.slice(0, this.turns.indexOf(turn));
    this.answer({ prefix: (turn.prefix || "") + turn.words.slice(0, place).map((one) => one.token).join("") + chosen.token });
  }

  forkAt(request, position, id) {
    const sequence = this.page.trace.sequences.get(request);
    if (this.controller || !sequence || !sequence.request || position < sequence.prompt.length) return;
    const { before, turn } = this.past.get(request) || { before: [], turn: {} };
    const { trace } = this.page;
    const made = sequence.samples.slice(0, position - sequence.prompt.length);
    const ids = [...sequence.prompt.map((one) => one.id), ...made.map((one) => one.id), id];
    if (ids.some((one) => one < 0)) { this.say(t("fork_unknown")); return; }
    const parts = [...made.map((one) => fromBase64(one.bytes_b64)), fromBase64(trace.pieces.get(id))];
    this.popup.replaceChildren();
    this.turns = before.slice();
    this.answer({ ids, prefixBytes: concat([turn.prefixBytes || new Uint8Array(), ...parts]), ends: this.endIds().includes(id) });
  }

  endIds() { return ((this.page.trace.header || {}).tokenizer || {}).eos_ids || []; }

  send() {
    const text = this.box.value;
    if (!text.trim() || this.controller || this.needsKey) return;
    this.turns.push({ role: "user", text, words: [] });
    this.box.value = this.draft = "";
    this.popup.replaceChildren();
    this.answer({});
  }

  /** {path, body, messages}: what is asked for. A fork with ids is a completion of just these ids. */
  asked({ ids, prefix }) {
    const { top_k: topK, ...options } = this.options;
    const body = { model: this.model, stream: true, stream_options: { include_usage: true }, ...options, ...(topK ? { top_k: topK } : {}), ...(this.seed === null ? {} : { seed: this.seed }) };
    if (this.level) body.trace = this.level;
    if (ids) return { path: "/v1/completions", body: { ...body, prompt: ids } };
    const said = this.turns.slice(0, -1).map((turn) => ({ role: turn.role, content: turn.text }));
    const messages = prefix ? [...said, { role: "assistant", content: prefix }] : said;
    const going = { messages, ...(prefix ? { add_generation_prompt: false, continue_final_message: true } : {}) };
    if (this.level < 2) Object.assign(body, { logprobs: true, top_logprobs: 20 });
    return { path: "/v1/chat/completions", body: { ...body, ...going }, going };
  }

  async answer({ prefix = "", ids = null, prefixBytes = null, ends = false }) {
    const start = prefixBytes ? new TextDecoder("utf-8", { ignoreBOM: true }).decode(prefixBytes) : prefix;
    const turn = { role: "assistant", text: start, prefix: start, prefixBytes, words: [], request: `chat-${(this.number += 1)}`, forked: Boolean(ids || prefix), isByText: Boolean(prefix) };
    const before = this.turns.slice();
    this.turns.push(turn);
    this.running = turn;
    this.page.keepUpWith(turn.request);
    this.controller = new AbortController();
    this.ahead.pause();
    this.enable();
    this.drawTurns();
    const live = this.level ? null : new LiveRequest(this.page.trace, turn.request);
    try {
      if (ends) { turn.reason = "stop"; turn.meta = `${t("stopped")} ${t("reason.stop")}`; return; }
      await this.stream(turn, before, this.asked({ ids, prefix }), live);
    } catch (error) {
      turn.meta = error.name === "AbortError" ? t("you_stopped") : t("failed", { why: error.message });
      if (live) live.finish({ reason: "abort" }, 0, null);
    } finally {
      this.controller = this.running = null;
      this.past.set(turn.request, { before, turn });
      this.enable();
      if (this.level) await this.feed.complete(turn).catch((error) => this.say(t("failed", { why: error.message })));
      this.noteTimes(turn);
      this.drawTurns();
      const sequence = this.page.trace.sequences.get(turn.request);
      this.page.keepUpWith(null);
      if (sequence && !ends && this.page.isKeepingUp) this.page.go({ request: turn.request, token: sequence.prompt.length });
      if (!this.list.contains(document.activeElement)) this.box.focus({ preventScroll: true });
      document.body.dataset.answers = String(Number(document.body.dataset.answers || 0) + 1);
    }
  }

  async stream(turn, before, { path, body, going }, live) {
    const prompt = live && going ? this.tokens(live, going) : null;
    turn.began = performance.now();
    for await (const chunk of this.api.events(path, { method: "POST", body, signal: this.controller.signal })) {
      if (chunk.error) throw new Error(chunk.error.message);
      if (this.level && chunk.id && turn.request !== chunk.id) {
        this.past.set(chunk.id, { before, turn });
        this.page.newest = turn.request = chunk.id;
      }
      const choice = (chunk.choices || [])[0];
      if (choice) {
        const text = choice.delta ? choice.delta.content || "" : choice.text || "";
        if (turn.first === undefined && (text || choice.finish_reason)) turn.first = performance.now();
        turn.text += text;
        for (const one of (choice.logprobs && choice.logprobs.content) || []) {
          turn.words.push({ token: one.token, logprob: one.logprob, top: one.top_logprobs });
          if (live) live.drew(one, this);
        }
        if (choice.finish_reason) turn.reason = choice.finish_reason;
      }
      if (chunk.usage) turn.usage = chunk.usage;
      this.drawSoon();
    }
    turn.ended = performance.now();
    if (!turn.reason) throw new Error(t("broken_off"));
    if (prompt) await prompt;
    if (live) live.finish(turn, turn.began, turn.first ?? null);
  }

  /** The prompt's tokens, for the strip: ids and texts as the tokenizer gives them. */
  async tokens(live, body) {
    const found = await (await this.api.fetch("/tokenize", { method: "POST", body: { model: this.model, ...body, return_token_strs: true } })).json();
    live.prompt(found);
    this.page.later();
  }

  /** Times and what the prefix cache saved: the engine's own where it traced, else this browser's. */
  noteTimes(turn) {
    const { usage } = turn;
    if (turn.meta || !usage) return;
    const sequence = this.page.trace.sequences.get(turn.request);
    const finish = this.level && sequence ? sequence.finish : null;
    const all = usage.prompt_tokens, cached = usage.prompt_tokens_details ? usage.prompt_tokens_details.cached_tokens : 0;
    const ttft = finish && finish.ttft_ns ? finish.ttft_ns : turn.first !== undefined ? (turn.first - turn.began) * 1e6 : null;
    const tpot = finish && finish.tpot_ns ? finish.tpot_ns : turn.first !== undefined && usage.completion_tokens > 1 ? ((turn.ended - turn.first) * 1e6) / (usage.completion_tokens - 1) : null;
    const own = finish && finish.ttft_parts ? finish.ttft_parts.prefill_own : ttft;
    // few tokens cost more each than many do: only a prompt of some length says what a token takes
    if (own && all - cached >= 16) this.perToken = own / (all - cached);
    const parts = [ttft === null ? "" : `${t("ttft_of")} ${ms(ttft)}`, tpot ? `${show(1e9 / tpot, 3)} ${t("tokens")}/s` : "", turn.reason ? `${t("stopped")} ${TEXTS["reason." + turn.reason] ? t("reason." + turn.reason) : turn.reason}` : ""];
    if (cached) parts.push(`${this.perToken ? t("saved", { cached, all, time: ms(cached * this.perToken) }) : t("saved_unknown", { cached, all })} (${t("badge.derived")})`);
    turn.meta = parts.filter(Boolean).join(" · ");
    this.hint.textContent = t("fork_help");
  }
}
