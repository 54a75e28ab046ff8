"use strict";
/* The page around the panels: one cursor (request, step, token, layer), keys, language, light and dark. */

class Page extends HTMLElement {
  constructor() {
    super();
    this.trace = new Trace();
    this.cursor = { request: null, step: 0, token: 0, layer: 0 };
    this.visible = new Set();
    this.before = null; // what a page puts above the panels
  }

  connectedCallback() {
    this.applyTheme(store.get("theme") || "auto");
    document.addEventListener("keydown", (event) => this.key(event));
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
      const panel = h(`pl-${name}`, { id: `p-${name}`, class: "panel", role: "region", "aria-labelledby": `h-${name}`, "data-name": name, "data-number": k + 1 });
      panel.isDirty = true;
      return panel;
    });
    const head = topBar(title, this.model = h("p", { class: "model" }), { speak: () => this.build(), flip: () => this.applyTheme(this.theme === "dark" ? "light" : "dark") });
    const nav = h("nav", { "aria-label": t("panels") }, h("ol", {}, PANELS.map(([name]) => h("li", {}, h("a", { href: `#p-${name}` }, t("panel." + name))))));
    const main = h("main", {}, this.status, this.before ? this.before() : null, h("p", { class: "keys" }, t("keys")), this.panels);
    this.replaceChildren(h("a", { class: "skip", href: "#p-text" }, t("skip")), head, this.controls, h("div", { class: "body" }, nav, main));
    for (const panel of this.panels) this.watcher.observe(panel);
    this.refresh(true);
  }

  applyTheme(theme) { this.theme = setTheme(theme); }

  get sequence() { return this.trace.sequences.get(this.cursor.request) || null; }

  /** Set parts of the cursor; the rest follows where it must. */
  move(change) {
    const cursor = { ...this.cursor, ...change };
    const sequence = this.trace.sequences.get(cursor.request);
    if (!sequence) return;
    if (change.request !== undefined && change.token === undefined) cursor.token = Math.min(sequence.prompt.length, Math.max(0, sequence.length - 1));
    cursor.token = Math.max(0, Math.min(Math.max(0, sequence.length - 1), cursor.token));
    cursor.layer = Math.max(0, Math.min(Math.max(0, sequence.maxLayer), cursor.layer));
    if (change.step !== undefined && change.token === undefined) {
      const step = this.trace.steps.find((one) => one.step === cursor.step);
      const seq = step && (step.seqs.find((one) => sequenceKey(one) === cursor.request) || null);
      if (seq) cursor.token = Math.min(sequence.length - 1, seq.tok0 + seq.n_tok - 1 + (seq.tok0 + seq.n_tok - 1 >= sequence.prompt.length - 1 ? 1 : 0));
    } else if (change.token !== undefined || change.request !== undefined) {
      const sample = cursor.token >= sequence.prompt.length ? sequence.samples[cursor.token - sequence.prompt.length] : null;
      const step = sample ? sample.step : (this.trace.steps.find((one) => one.seqs.some((seq) => sequenceKey(seq) === cursor.request && seq.tok0 <= cursor.token && cursor.token < seq.tok0 + seq.n_tok)) || {}).step;
      if (step !== undefined) cursor.step = step;
    }
    this.cursor = cursor;
    this.refresh();
    const current = document.activeElement && document.activeElement.closest && document.activeElement.closest(".strip") ? this.querySelector(".strip .current") : null;
    if (current) { current.focus({ preventScroll: true }); current.scrollIntoView({ block: "nearest", inline: "nearest" }); }
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("input, textarea, select, summary, .scroll, .waterfall, pre")) return;
    const { token, layer } = this.cursor;
    const moves = { ArrowRight: { token: token + 1 }, ArrowLeft: { token: token - 1 }, ArrowUp: { layer: layer + 1 }, ArrowDown: { layer: layer - 1 } };
    if (event.key === "Home" && event.target.closest(".strip")) moves.Home = { token: 0 };
    if (event.key === "End" && event.target.closest(".strip")) moves.End = { token: Infinity };
    const vertical = event.key === "ArrowUp" || event.key === "ArrowDown";
    if (!moves[event.key] || (vertical && !(this.sequence && this.sequence.layers.size))) return;
    event.preventDefault();
    this.move(moves[event.key]);
  }

  /** Draw anew: what is on screen now, the rest when it comes there. */
  refresh(isAll = false) {
    if (!this.cursor.request && this.trace.keys.length) { this.cursor.request = this.trace.keys[0]; this.move({ request: this.cursor.request }); return; }
    const model = this.trace.header && this.trace.header.model;
    this.model.textContent = model ? [model.id || model.name, model.arch, `${model.n_layers} × ${model.d_model}`, model.quant, model.dtype].filter(Boolean).join(" · ") : "";
    this.drawControls();
    for (const panel of this.panels) {
      panel.isDirty = true;
      if (isAll || this.visible.has(panel)) panel.refresh();
    }
    this.catchUp();
  }

  /** Panels off the screen follow when the browser has nothing else to do: readers and searches find them current. */
  catchUp() {
    if (this.isCatchingUp) return;
    this.isCatchingUp = true;
    setTimeout(() => {
      this.isCatchingUp = false;
      const late = this.panels.find((panel) => panel.isDirty);
      if (late) { late.refresh(); this.catchUp(); }
    }, 20);
  }

  later() {
    if (this.isWaiting) return;
    this.isWaiting = true;
    requestAnimationFrame(() => { this.isWaiting = false; this.refresh(); });
  }

  drawControls() {
    const held = this.controls.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    const { cursor, trace, sequence } = this;
    const pick = h("select", { "aria-label": t("request"), "data-key": "request" }, trace.keys.map((key) => h("option", { value: key, selected: key === cursor.request }, `${trace.letter(key)} · ${key}`)));
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
      stepper("step", cursor.step, steps.length ? steps[steps.length - 1].step : null, (by) => { const next = steps[Math.max(0, Math.min(steps.length - 1, place + by))]; if (next) this.move({ step: next.step }); }));
    if (held) { const again = this.controls.querySelector(`[data-key="${held}"]`); if (again) again.focus(); }
  }
}
customElements.define("pl-page", Page);
