"use strict";
/* The four questions a newcomer has, answered in a sentence each, with a way to the panel that has the whole. */

class Summary extends HTMLElement {
  get page() { return this.closest("pl-page"); }

  refresh() {
    const { trace, cursor, sequence } = this.page;
    const held = this.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    if (!sequence || !sequence.request) { this.replaceChildren(); return; }
    const line = (panel, question, answer) => [h("dt", {}, h("a", { href: `#p-${panel}` }, t(question))), h("dd", { "data-about": panel }, answer)];
    this.replaceChildren(h("h2", { class: "small" }, t("in_short")), ...drawn(() => [h("dl", { class: "short" }, line("text", "which_tokens", this.tokens(sequence)), line("sampling", "why_this_word", this.word(trace, sequence, cursor)),
      line("timeline", "where_time", this.time(trace, sequence)), line("emission", "why_stopped", whyStopped(trace, sequence)))]));
    if (held) { const again = this.querySelector(`a[href="${held}"]`); if (again) again.focus({ preventScroll: true }); }
  }

  tokens(sequence) {
    const cached = sequence.prompt.filter((one) => one.cached).length;
    const values = { prompt: show(sequence.prompt.length), cached: show(cached), made: show(sequence.samples.length || (sequence.finish ? sequence.finish.n_output : 0)) };
    return t(sequence.request.cachedUnknown || !cached ? "short.tokens" : "short.tokens_cached", values);
  }

  word(trace, sequence, cursor) {
    const token = sequence.token(cursor.token);
    if (!token) return "–";
    const chip = h("bdi", { class: "mono chip" }, pieceText(token.data));
    if (!token.sample) return [chip, " ", t("short.from_prompt")];
    const { stages, rng } = token.sample;
    if (!stages.length) return [chip, " ", t("short.no_stages")];
    const [first, last] = [stages[0], stages[stages.length - 1]];
    const parts = [t("short.model_gave", { p: percent(number(first.chosen.p)), rank: show(first.chosen.rank) })];
    if (stages.length > 1 && last.alive !== null) parts.push(t("short.after", { stages: stages.slice(1).map((one) => stageName(one.name)).join(language === "zh" ? "、" : ", "), p: percent(number(last.chosen.p)), alive: show(last.alive) }));
    if (rng && rng.u === null) parts.push(t("short.greedy"));
    else if (rng) parts.push(t("short.drawn", { u: show(rng.u, 4) }));
    return [chip, " ", parts.join(SPACE())];
  }

  time(trace, sequence) {
    const { finish } = sequence;
    if (!finish || !finish.ttft_ns) return t("no_ttft");
    const first = firstToken(finish), [name, ns] = first.largest;
    const found = [t("short.ttft", { ttft: ms(first.told) })];
    if (ns > 0) found.push(t("short.largest", { part: t("part." + name), share: percent(ns / first.told) }));
    const later = laterTokens(trace, sequence);
    if (finish.tpot_ns) found.push(t("short.tpot", { tpot: ms(later.told), rate: show(1e9 / later.told, 3) }));
    if (first.isMuch || later.isMuch) found.push(t("short.tracing", { first: ms(first.tracing), share: percent(later.share) }));
    if (finish.preemptions) found.push(t("short.preempted", { n: finish.preemptions }));
    return found.join(SPACE());
  }
}

/** Between sentences: Chinese has none. */
const SPACE = () => (language === "zh" ? "" : " ");
const stageName = (name) => (TEXTS["stage." + name] ? t("stage." + name) : name);

/** Why an answer ended, and at what. */
function whyStopped(trace, sequence) {
  const { finish } = sequence;
  if (!finish) return t("still_running");
  const reason = h("b", {}, TEXTS["reason." + finish.reason] ? t(finish.stop_str ? "reason.stop_string" : "reason." + finish.reason) : String(finish.reason));
  const known = finish.stop_id !== null && finish.stop_id !== undefined;
  const end = known ? [t("by_id"), " ", h("bdi", { class: "mono chip" }, trace.piece(finish.stop_id)), ` (#${finish.stop_id})`] : finish.stop_str ? [h("bdi", { class: "mono chip" }, visible(finish.stop_str))] : null;
  return [t("stopped"), " ", reason, " ", end, finish.error ? [" ", h("bdi", {}, String(finish.error))] : null];
}
customElements.define("pl-summary", Summary);
