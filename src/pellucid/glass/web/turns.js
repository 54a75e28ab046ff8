"use strict";
/* The turns of the chat: an answer is its tokens, each a button that shows its alternatives. */

/** Tokens of an answer, as they are read: {place, text, shown, p, top}. Pieces of one character are one word. */
function wordsOf(playground, turn) {
  const { trace } = playground.page;
  const sequence = trace.sequences.get(turn.request);
  if (!sequence || !sequence.samples.length || !sequence.samples[0].stages.length || turn.words.length) {
    return turn.words.map((one, place) => ({ place, text: one.token, shown: visible(one.token), p: Math.exp(one.logprob),
      top: one.top.map((each) => ({ token: each.token, shown: visible(each.token), p: Math.exp(each.logprob), isChosen: each.token === one.token })) }));
  }
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  const ends = playground.endIds();
  const words = [];
  let begun = null;
  const add = (place, text, shown) => {
    const sample = sequence.samples[begun];
    words.push({ place: begun, text, shown, isEnd: ends.includes(sequence.samples[place].id), p: number(sample.stages.length ? sample.stages[0].chosen.p : 0),
      top: sample.stages.length ? sample.stages[0].top.map(([id, , p]) => ({ id, shown: trace.piece(id), p: number(p), isChosen: id === sample.id })) : [] });
    begun = null;
  };
  sequence.samples.forEach((sample, place) => {
    const data = fromBase64(sample.bytes_b64);
    const text = decoder.decode(data, { stream: true });
    if (begun === null) begun = place;
    if (!text && data.length) return; // the rest of the character comes
    add(place, text, begun === place ? pieceText(data) : visible(text));
  });
  if (begun !== null) add(sequence.samples.length - 1, "\u2026", pieceText(fromBase64(sequence.samples[begun].bytes_b64))); // its end has not come
  return words;
}

function turnView(playground, turn) {
  const item = h("div", { class: `turn ${turn.role}`, "data-turn": turn.request },
    h("span", { class: "who" }, turn.role === "user" ? t("you") : t("assistant"), turn.forked ? ` · ${t(turn.isByText ? "forked_text" : "forked")}` : ""));
  if (turn.role === "user") item.append(h("bdi", {}, turn.text));
  else {
    const words = wordsOf(playground, turn);
    const box = h("div", { class: "words", dir: "auto" }, turn.prefix ? h("span", { class: "prefix" }, turn.prefix) : null,
      words.length ? words.flatMap((word, k) => wordView(playground, turn, word, k === 0)) : turn.text.slice((turn.prefix || "").length));
    if (!words.length && turn === playground.running && turn.text === turn.prefix) box.append(h("span", { class: "sub" }, t("waiting_for_first")));
    box.addEventListener("keydown", (event) => walk(event, box));
    item.append(box);
  }
  if (turn.meta) item.append(h("p", { class: "meta" }, turn.meta));
  return item;
}

function wordView(playground, turn, word, isFirst) {
  const title = word.top.slice(0, 8).map((one) => `${percent(one.p)}  ${one.shown}${one.isChosen ? "  ◀" : ""}`).join("\n");
  const space = !word.isEnd && /^ (?=[^ \n])/.test(word.text) ? " " : ""; // beside the button, where a line may end
  const button = h("button", { type: "button", class: `word ${word.p < 0.5 ? "unsure" : "sure"}${word.isEnd ? " end" : ""}`, title, tabindex: isFirst ? 0 : -1, "data-place": word.place }, word.isEnd ? word.shown : word.text.slice(space.length));
  button.addEventListener("click", () => playground.choose(turn, word, button));
  return space ? [space, button] : [button];
}

/** One tab stop for an answer; arrow keys go from token to token. */
function walk(event, box) {
  const words = [...box.querySelectorAll(".word")];
  const at = words.indexOf(event.target);
  const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: words.length - 1 }[event.key];
  if (at < 0 || next === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  event.stopPropagation();
  const to = words[Math.max(0, Math.min(words.length - 1, next))];
  for (const one of words) one.tabIndex = one === to ? 0 : -1;
  to.focus();
}
