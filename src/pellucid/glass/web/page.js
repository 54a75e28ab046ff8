"use strict";
/* The page around the panels: one cursor (request, step, token, layer), keys, language, light and dark. */

class Page extends HTMLElement {
  constructor() {
    super();
    this.trace = new Trace();
    this.cursor = { request: null, step: 0, token: 0, layer: 0 };
    this.visible = new Set();
    this.before = null; // what a page puts above the panels
    this.newest = null; // the request whose answer comes in now
    this.isKeepingUp = true; // the cursor goes with what comes, until a hand moves it
    this.pinned = null; // {trace, key, label}: what the request at the cursor is compared with
  }

  connectedCallback() {
    this.applyTheme(store.get("theme") || "auto");
    document.addEventListener("keydown", (event) => this.key(event));
    document.addEventListener("pointerdown", (event) => { this.pressed = event.target; });
    for (const name of ["pointerup", "pointercancel"]) document.addEventListener(name, () => { this.pressed = null; });
    document.addEventListener("dragover", (event) => { if (event.dataTransfer && [...event.dataTransfer.types].includes("Files")) event.preventDefault(); });
    document.addEventListener("drop", (event) => {
      const file = event.dataTransfer && event.dataTransfer.files[0];
      if (file) { event.preventDefault(); this.openOther(file); }
    });
    this.build();
  }

  build() {
    const title = t(document.body.dataset.kind + ".title");
    setDocument(title);
    this.status = h("p", { class: "status", role: "status" });
    this.controls = h("div", { class: "cursor", role: "region", "aria-label": t("cursor") });
    this.watcher = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (entry.isIntersecting) this.visible.add(entry.target); else this.visible.delete(entry.target);
        if (entry.isIntersecting && entry.target.isDirty) entry.target.refresh();
      }
    }, { rootMargin: "300px" });
    this.panels = PANELS.map(([name], k) => {
      const panel = h(`pl-${name}`, { id: `p-${name}`, class: "panel", role: "region", "aria-label": t("panel." + name), "data-name": name, "data-number": k + 1 });
      panel.isDirty = true;
      return panel;
    });
    const head = topBar(title, this.model = h("p", { class: "model" }), () => this.build());
    const nav = h("nav", { "aria-label": t("panels") }, h("ol", {}, PANELS.map(([name]) => h("li", {}, h("a", { href: `#p-${name}` }, h("span", {}, t("panel." + name)))))), h("a", { href: "#compare", class: "extra" }, t("compare")));
    this.summary = h("pl-summary", { class: "panel", role: "region", "aria-label": t("in_short") });
    this.comparison = h("pl-compare", { class: "panel", id: "compare", role: "region", "aria-label": t("compare") });
    const main = h("main", {}, this.status, this.before ? this.before() : null, this.summary, h("p", { class: "keys" }, t("keys")), this.panels, this.comparison);
    this.replaceChildren(h("a", { class: "skip", href: "#p-text" }, t("skip")), head, this.controls, h("div", { class: "body" }, nav, main));
    for (const panel of this.panels) this.watcher.observe(panel);
    this.refresh(true);
  }

  applyTheme(theme) { setTheme(theme); }

  get sequence() { return this.trace.sequences.get(this.cursor.request) || null; }

  /** By hand: from here on the cursor stays, whatever comes. */
  move(change) {
    this.isKeepingUp = false;
    this.go(change);
  }

  /** From now on this request's answer comes in; null: none does. */
  keepUpWith(request) {
    this.newest = request;
    if (request) this.isKeepingUp = true;
    this.later();
  }

  /** To the newest token and step of what comes in; where nothing here is traced, to the newest step. */
  keepUp() {
    if (!this.isKeepingUp || (!this.newest && this.cursor.request)) return;
    const { steps, sequences } = this.trace;
    const sequence = sequences.get(this.newest), before = this.cursor.request;
    if (sequence && sequence.length) this.cursor = { ...this.cursor, request: this.newest, token: sequence.length - 1 };
    if (steps.length) this.cursor = { ...this.cursor, step: steps[steps.length - 1].step };
    if (this.cursor.request !== before) this.comparison.refresh();
  }

  /** Set parts of the cursor; the rest follows where it must. */
  go(change) {
    const cursor = { ...this.cursor, ...change };
    const sequence = this.trace.sequences.get(cursor.request);
    if (!sequence) {
      if (this.trace.stepAt(cursor.step)) { this.cursor = { ...this.cursor, step: cursor.step }; this.follow(); }
      return;
    }
    if (change.request !== undefined && change.token === undefined) cursor.token = Math.min(sequence.prompt.length, Math.max(0, sequence.length - 1));
    cursor.token = Math.max(0, Math.min(Math.max(0, sequence.length - 1), cursor.token));
    cursor.layer = Math.max(0, Math.min(Math.max(0, sequence.maxLayer), cursor.layer));
    if (change.step !== undefined && change.token === undefined) {
      const step = this.trace.stepAt(cursor.step);
      const seq = step && (step.seqs.find((one) => sequenceKey(one) === cursor.request) || null);
      if (seq) cursor.token = Math.min(sequence.length - 1, seq.tok0 + seq.n_tok - 1 + (seq.tok0 + seq.n_tok - 1 >= sequence.prompt.length - 1 ? 1 : 0));
    } else if (change.token !== undefined || change.request !== undefined) {
      const sample = cursor.token >= sequence.prompt.length ? sequence.samples[cursor.token - sequence.prompt.length] : null;
      const step = sample ? sample.step : (this.trace.steps.find((one) => one.seqs.some((seq) => sequenceKey(seq) === cursor.request && seq.tok0 <= cursor.token && cursor.token < seq.tok0 + seq.n_tok)) || {}).step;
      if (step !== undefined) cursor.step = step;
    }
    const isSame = cursor.request === this.cursor.request;
    this.cursor = cursor;
    if (isSame) this.follow(); else this.refresh();
    const current = document.activeElement && document.activeElement.closest && document.activeElement.closest(".strip") ? this.querySelector(".strip .current") : null;
    if (current) { current.focus({ preventScroll: true }); current.scrollIntoView({ block: "nearest", inline: "nearest" }); }
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("input, textarea, select, summary, .scroll, .waterfall, .words, .pop, pre")) return;
    const { token, layer } = this.cursor;
    const moves = { ArrowRight: { token: token + 1 }, ArrowLeft: { token: token - 1 }, ArrowUp: { layer: layer + 1 }, ArrowDown: { layer: layer - 1 } };
    if (event.key === "Home" && event.target.closest(".strip")) moves.Home = { token: 0 };
    if (event.key === "End" && event.target.closest(".strip")) moves.End = { token: Infinity };
    const vertical = event.key === "ArrowUp" || event.key === "ArrowDown";
    if (!moves[event.key] || (vertical && !(this.sequence && this.sequence.layers.size))) return;
    event.preventDefault();
    this.move(moves[event.key]);
  }

  /** Keep the request at the cursor, to compare others with it. */
  pin() {
    this.pinned = { trace: this.trace, key: this.cursor.request, label: "" };
    this.comparison.refresh();
  }

  unpin() {
    this.pinned = null;
    this.comparison.refresh();
    this.comparison.querySelector("#pin").focus({ preventScroll: true });
  }

  /** A trace in a file of the reader's disk: it stays in this page. */
  async openOther(file) {
    try {
      const trace = await readTraceFile(file);
      const mine = this.sequence && this.sequence.request;
      const twin = mine && trace.keys.find((key) => (trace.sequences.get(key).request || {}).rendered === mine.rendered);
      this.pinned = { trace, key: twin || trace.keys[0], label: file.name };
      this.status.textContent = trace.end ? "" : t("no_end");
    } catch (error) {
      this.status.textContent = t("load_failed", { why: error.message });
    }
    this.comparison.refresh();
    this.comparison.scrollIntoView({ block: "nearest" });
  }

  /** Draw anew: what is on screen now, the rest when it comes there. */
  refresh(isAll = false) {
    if (!this.cursor.request && this.trace.keys.length) { this.cursor.request = this.trace.keys[0]; this.go({ request: this.cursor.request }); return; }
    const model = this.trace.header && this.trace.header.model;
    this.model.textContent = model ? [model.id || model.name, model.arch, `${model.n_layers} × ${model.d_model}`, model.quant, model.dtype].filter(Boolean).join(" · ") : "";
    this.drawControls();
    this.summary.refresh();
    this.comparison.refresh();
    for (const panel of this.panels) {
      panel.isDirty = true;
      if (isAll || this.visible.has(panel)) panel.refresh();
    }
    this.catchUp();
  }

  /** The cursor moved within its request: the strip's mark goes at once, panels are drawn after the frame, one a task. */
  follow() {
    for (const strip of this.querySelectorAll(".strip")) markCurrent(strip, this.cursor);
    this.drawControls();
    for (const panel of this.panels) panel.isDirty = true;
    this.movedAt = performance.now();
    if (this.isFollowing) return;
    this.isFollowing = true;
    requestAnimationFrame(() => setTimeout(() => {
      this.summary.refresh();
      this.comparison.refresh();
      this.drawNext();
    }));
  }

  /** The panel in sight that was drawn longest ago, then the next one. */
  drawNext() {
    const late = this.panels.filter((panel) => panel.isDirty && this.visible.has(panel)).sort((a, b) => (a.drawnAt || 0) - (b.drawnAt || 0))[0];
    if (late) { late.refresh(); setTimeout(() => this.drawNext()); return; }
    this.isFollowing = false;
    this.catchUp();
  }

  /** Panels off the screen follow when the browser has nothing else to do: readers and searches find them current. */
  catchUp() {
    if (this.isCatchingUp) return;
    this.isCatchingUp = true;
    setTimeout(() => {
      this.isCatchingUp = false;
      if (performance.now() - (this.movedAt ?? -1000) < 250) { this.catchUp(); return; } // somebody is stepping
      const late = this.panels.find((panel) => panel.isDirty && !this.isHeld(panel));
      if (late) { late.refresh(); this.catchUp(); }
    }, 20);
  }

  /** Whether somebody is using a control in it, or selecting its text: it must not be replaced under the hand. */
  isHeld(panel) {
    if (this.pressed && panel.contains(this.pressed)) return true;
    const active = document.activeElement;
    return Boolean(active && active.matches("input, select, textarea") && panel.contains(active));
  }

  /** Soon, for what comes live: at most a fifth of the time goes into drawing. */
  later() {
    if (this.isWaiting) return;
    this.isWaiting = true;
    setTimeout(() => requestAnimationFrame(() => {
      this.isWaiting = false;
      const began = performance.now();
      this.drawLive();
      this.pause = Math.min(1000, 4 * (performance.now() - began));
    }), this.pause || 0);
  }

  drawLive() {
    this.keepUp();
    if (!this.cursor.request || !this.model.textContent) { this.refresh(); return; }
    this.drawControls();
    this.summary.refresh();
    for (const panel of this.panels) {
      panel.isDirty = true;
      if (this.visible.has(panel) && !this.isHeld(panel)) panel.refresh();
    }
    this.catchUp();
  }

  drawControls() {
    if (this.pressed && this.controls.contains(this.pressed)) return; // a list that is open, a button half pressed
    const held = this.controls.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    const { cursor, trace, sequence } = this;
    const pick = h("select", { "aria-label": t("request"), "data-key": "request" }, trace.keys.map((key) => h("option", { value: key, selected: key === cursor.request }, `${trace.letter(key)} · ${shortKey(key)}`)));
    pick.addEventListener("change", () => this.move({ request: pick.value }));
    const stepper = (name, value, most, go) => h("span", { class: "stepper" }, h("span", { class: "label" }, t(name)),
      h("button", { type: "button", "data-key": name + "-", "aria-label": t("before_" + name), onclick: () => go(-1) }, "‹"), h("output", { id: `at-${name}`, "aria-label": t(name) }, most === null ? "–" : `${show(value)} / ${show(most)}`),
      h("button", { type: "button", "data-key": name + "+", "aria-label": t("next_" + name), onclick: () => go(1) }, "›"));
    const name = sequence ? sequence.name(cursor.token) : "–";
    const steps = trace.steps;
    const place = steps.findIndex((one) => one.step === cursor.step);
    this.controls.replaceChildren(h("label", {}, h("span", { class: "label" }, t("request")), pick),
      stepper("token", cursor.token, sequence ? sequence.length - 1 : 0, (by) => this.move({ token: cursor.token + by })), h("bdi", { class: "mono chip", id: "token-name" }, name),
      stepper("layer", cursor.layer, sequence && sequence.maxLayer >= 0 ? sequence.maxLayer : null, (by) => this.move({ layer: cursor.layer + by })),
      stepper("step", cursor.step, steps.length ? steps[steps.length - 1].step : null, (by) => { const next = steps[Math.max(0, Math.min(steps.length - 1, place + by))]; if (next) this.move({ step: next.step }); }),
      this.newest && !this.isKeepingUp ? h("button", { type: "button", id: "keep-up", "data-key": "keep-up", onclick: () => { this.keepUpWith(this.newest); } }, t("keep_up")) : "",
      trace.lost ? h("span", { class: "note warn", id: "lost" }, t(trace.lost === 1 ? "record_lost" : "records_lost", { n: show(trace.lost) })) : "");
    if (held) { const again = this.controls.querySelector(`[data-key="${held}"]`); if (again) again.focus(); }
  }
}
customElements.define("pl-page", Page);
