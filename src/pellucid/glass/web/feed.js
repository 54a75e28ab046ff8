"use strict";
/* What comes from the server beside answers: the engine's trace, live, and how much of a typed prompt is computed. */

const pauseFor = (milliseconds) => new Promise((go) => { setTimeout(go, milliseconds); });

class TraceFeed {
  constructor(playground) {
    this.playground = playground;
    this.page = playground.page;
    this.path = document.body.dataset.traces;
    this.turn = 0;
  }

  /** A new engine, or another model: what was traced before belongs to neither. */
  startAnew() {
    this.page.trace = new Trace();
    this.page.cursor = { request: null, step: 0, token: 0, layer: 0 };
    this.playground.past.clear();
    this.page.refresh(true);
  }

  /** Until another call of it: reads the stream, and comes again when it breaks off. */
  async follow() {
    const { playground } = this;
    if (!this.path) { playground.say(`${t("ready")} ${t("no_trace")}`); return; }
    const mine = (this.turn += 1);
    if (this.controller) this.controller.abort();
    let isLost = false;
    while (mine === this.turn) {
      this.controller = new AbortController();
      try {
        for await (const event of playground.api.events(`${this.path}?model=${encodeURIComponent(playground.model)}`, { signal: this.controller.signal })) {
          if (mine !== this.turn) return;
          if (isLost && event.type === "header") { isLost = false; this.startAnew(); }
          if (event.type === "header") playground.say(t("traced"));
          this.take(event);
        }
      } catch (error) {
        if (mine !== this.turn || error.name === "AbortError") return;
        if (error.status === 401) { playground.start(); return; }
        if (error.code === "model_not_loaded") playground.say(t("not_loaded"));
        else playground.say(t("live_lost", { why: error.message }));
        isLost = isLost || Boolean(error.isGone);
      }
      await pauseFor(1000);
      if (isLost && mine === this.turn) await playground.findModels().catch(() => null);
    }
  }

  take(event) {
    this.page.trace.add(event);
    if (event.type === "step") forget(this.page.trace, MOST_STEPS);
    if (event.type === "sample" && this.playground.running && event.req === this.playground.running.request) this.playground.drawSoon();
    else this.page.later();
  }

  /** The end of an answer's trace is there; where the live stream did not bring it, it is asked for. */
  async complete(turn) {
    const name = turn.request;
    const isWhole = () => { const found = this.page.trace.sequences.get(name); return found && found.isWhole; };
    if (name.startsWith("chat-")) return; // it was never begun
    for (let tries = 0; tries < 20 && !isWhole(); tries += 1) await pauseFor(50);
    if (isWhole()) return;
    const text = await (await this.playground.api.fetch(`/v1/traces/${encodeURIComponent(name)}`)).text();
    const { trace } = this.page;
    trace.sequences.delete(name);
    for (const line of text.split("\n")) {
      const event = line ? parseEvent(line) : { type: "end" };
      if (event.type === "dropped") continue; // told by the live stream
      if (event.type === "end" || (event.type === "header" && trace.header) || (event.type === "step" && trace.stepAt(event.step))) continue;
      if (["kv", "mem"].includes(event.type) && trace.steps.length && trace.kv.some((one) => one.t_ns === event.t_ns)) continue;
      trace.add(event);
    }
    trace.steps.sort((a, b) => a.step - b.step);
    this.page.later();
  }

  /** As a file of JSON lines: for `pellucid explain --from`, `pellucid doctor`, or to compare. */
  async save(request) {
    try {
      const answer = await this.playground.api.fetch(`/v1/traces/${encodeURIComponent(request)}`);
      const link = h("a", { href: URL.createObjectURL(await answer.blob()), download: `${request}.jsonl` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    } catch (error) {
      this.playground.say(t("failed", { why: error.message }));
    }
  }
}

/** While a message is typed, its prompt is computed ahead. */
class TypeAhead {
  constructor(playground) { this.playground = playground; }

  typed() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.send(), 300);
  }

  pause() { clearTimeout(this.timer); }

  close() { if (this.socket) this.socket.close(); this.socket = null; }

  send() {
    const { playground } = this;
    const text = playground.box.value;
    if (!text.trim() || playground.controller || playground.needsKey) return;
    if (!this.socket || this.socket.readyState > 1) {
      const socket = (this.socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/v1/prefill/ws`));
      socket.addEventListener("open", () => socket.send(JSON.stringify({ model: playground.model, ...(playground.api.key ? { api_key: playground.api.key } : {}) })));
      socket.addEventListener("message", (event) => this.heard(JSON.parse(event.data)));
    } else if (this.socket.readyState === 1) {
      const said = playground.turns.map((turn) => ({ role: turn.role, content: turn.text }));
      this.socket.send(JSON.stringify({ messages: [...said, { role: "user", content: text }] }));
    }
  }

  heard(message) {
    if (message.type === "ready") this.send();
    else if (message.type === "prefilled" && this.playground.box.value.trim()) this.playground.hint.textContent = t("typed_ahead", { cached: message.kept_tokens, all: message.prompt_tokens });
  }
}
