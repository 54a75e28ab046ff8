"use strict";
/* One lesson: screens one below the other, each with a question; the next one opens when it is answered, so that nothing is told early.
   LESSON = {id, title, intro, keep, commands, facts(trace), screens: [{title, text, before?, ask, choices(facts), answer(facts), after?, why}]}; texts are [English, Chinese],
   {name} in them is a fact, `…` stands for itself in the type of code. */

const inLanguage = (pair) => pair[language === "zh" ? 1 : 0];

/** A text with its facts, its code as elements. */
function rich(pair, facts) {
  const text = inLanguage(pair).replace(/\{(\w+)\}/g, (all, name) => {
    if (!(name in facts)) throw new Error(`the lesson has no fact named ${name}`);
    return typeof facts[name] === "number" ? show(facts[name]) : String(facts[name]);
  });
  return text.split("`").map((part, k) => (k % 2 ? h("bdi", { class: "mono chip" }, part) : part));
}
const plain = (pair, facts) => rich(pair, facts).map((part) => (typeof part === "string" ? part : part.textContent)).join("");

class Lesson extends HTMLElement {
  connectedCallback() {
    this.trace = new Trace();
    this.extra = {};
    this.guesses = new Map(); // screen → the choice made, null where it was only shown
    this.open();
  }

  async open() {
    setTheme(store.get("theme") || "auto");
    this.replaceChildren(h("p", { class: "lesson status", role: "status" }, t("loading")));
    try {
      await unpack(document.getElementById("trace").textContent, (event) => {
        if (event.type === "lesson") Object.assign(this.extra, event); else this.trace.add(event);
      });
      this.facts = LESSON.facts(this.trace, this.extra);
      this.build();
    } catch (error) {
      this.replaceChildren(h("p", { class: "lesson note warn", role: "alert" }, t("load_failed", { why: String(error) })));
      throw error;
    }
    document.addEventListener("keydown", (event) => this.key(event));
    document.body.dataset.ready = "true";
  }

  get shown() { return Math.min(this.guesses.size + 1, LESSON.screens.length); }
  get isDone() { return this.guesses.size === LESSON.screens.length; }

  build() {
    setDocument(inLanguage(LESSON.title));
    const model = this.trace.header.model.id;
    this.replaceChildren(
      topBar(`${t("lesson")} · ${inLanguage(LESSON.title)}`, null, () => this.build()),
      h("main", { class: "lesson" },
        h("h2", {}, inLanguage(LESSON.title)), h("p", { class: "intro" }, rich(LESSON.intro, this.facts)), h("p", { class: "sub" }, t("recorded", { model }), " ", t("how")),
        this.progress(), LESSON.screens.slice(0, this.shown).map((screen, k) => this.screen(screen, k)), this.isDone ? this.ending() : null, this.actions()));
  }

  progress() {
    const [done, all] = [this.guesses.size, LESSON.screens.length];
    return h("div", {}, h("span", { class: "bar progress", "aria-hidden": "true" }, h("i", { style: { width: `${(100 * done) / all}%` } })), h("p", { class: "sub", id: "progress" }, t("progress", { done, all })));
  }

  screen(screen, k) {
    const isAnswered = this.guesses.has(k);
    return h("section", { class: "screen", id: `screen-${k + 1}`, "aria-labelledby": `title-${k + 1}` },
      h("h2", { id: `title-${k + 1}` }, h("span", { class: "num", "aria-hidden": "true" }, String(k + 1)), inLanguage(screen.title)),
      paragraphs(screen.text, this.facts), screen.before ? screen.before(this.trace, this.facts) : null,
      this.question(screen, k, isAnswered), isAnswered ? this.reveal(screen, k) : null);
  }

  question(screen, k, isAnswered) {
    const truth = screen.answer(this.facts);
    const choices = screen.choices(this.facts);
    if (!choices.some(([key]) => key === truth)) throw new Error(`no choice of "${screen.ask[0]}" is the answer ${truth}`);
    const options = choices.map(([key, text], n) => {
      const classes = isAnswered ? `${key === truth ? " true" : ""}${key === this.guesses.get(k) ? " mine" : ""}` : "";
      return h("label", { class: `choice${classes}` }, h("input", { type: "radio", name: `q${k}`, value: key, required: true, disabled: isAnswered, checked: this.guesses.get(k) === key }),
        h("kbd", { "aria-hidden": "true" }, String(n + 1)), h("span", {}, rich(text, this.facts)));
    });
    const form = h("form", { "data-screen": k }, h("fieldset", {}, h("legend", {}, rich(screen.ask, this.facts)), options),
      isAnswered ? null : h("button", { type: "submit", class: "primary" }, t("predict")));
    form.addEventListener("submit", (event) => { event.preventDefault(); this.answer(k, new FormData(form).get(`q${k}`)); });
    return form;
  }

  answer(k, guess) {
    this.guesses.set(k, guess);
    this.build();
    const verdict = this.querySelector(`#screen-${k + 1} .verdict`);
    verdict.focus({ preventScroll: true });
    verdict.scrollIntoView({ block: "center", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  }

  reveal(screen, k) {
    const truth = screen.answer(this.facts);
    const guess = this.guesses.get(k);
    const answer = plain(screen.choices(this.facts).find(([key]) => key === truth)[1], this.facts);
    const isRight = guess === truth;
    const verdict = guess === null ? t("shown", { answer }) : isRight ? t("right") : t("wrong", { answer });
    return h("div", { class: "reveal" }, h("p", { class: `verdict ${guess === null ? "plain" : isRight ? "yes" : "no"}`, tabindex: -1 }, verdict),
      screen.after ? screen.after(this.trace, this.facts) : null, h("div", { class: "why" }, h("h3", {}, t("why")), paragraphs(screen.why, this.facts)));
  }

  ending() {
    const guesses = [...this.guesses].filter(([, guess]) => guess !== null);
    const right = guesses.filter(([k, guess]) => guess === LESSON.screens[k].answer(this.facts)).length;
    return h("section", { class: "screen", id: "ending" }, h("h2", {}, t("takeaway")), h("p", { class: "big", id: "score" }, guesses.length ? t("score", { right, all: guesses.length }) : t("score_none")),
      h("ul", {}, LESSON.keep.map((pair) => h("li", {}, rich(pair, this.facts)))), h("h3", {}, t("try")), h("pre", { class: "command", tabindex: 0 }, LESSON.commands.join("\n")));
  }

  actions() {
    const all = () => { LESSON.screens.forEach((_, k) => { if (!this.guesses.has(k)) this.guesses.set(k, null); }); this.build(); };
    const again = () => { this.guesses.clear(); this.build(); scrollTo(0, 0); };
    return h("div", { class: "actions" }, this.isDone ? null : h("button", { type: "button", id: "show-all", onclick: all }, t("show_all")), this.guesses.size ? h("button", { type: "button", id: "again", onclick: again }, t("again")) : null);
  }

  /** A digit chooses in the question that is open. */
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !/^[1-9]$/.test(event.key)) return;
    const open = this.querySelector(`form[data-screen="${this.guesses.size}"]`);
    const option = open && open.querySelectorAll("input")[Number(event.key) - 1];
    if (!option) return;
    option.checked = true;
    option.focus();
    event.preventDefault();
  }
}

const paragraphs = (pair, facts) => (Array.isArray(pair[0]) ? pair : [pair]).map((one) => h("p", {}, rich(one, facts)));
customElements.define("pl-lesson", Lesson);
