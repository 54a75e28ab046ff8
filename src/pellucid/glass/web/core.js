"use strict";
/* Small things that every part of the page uses. Text of a model only ever goes through textContent. */

const store = {
  get(key) { try { return localStorage.getItem("pellucid." + key); } catch { return null; } },
  set(key, value) { try { localStorage.setItem("pellucid." + key, value); } catch { /* a page may be denied storage */ } },
};

let language = store.get("language") || ((navigator.language || "en").startsWith("zh") ? "zh" : "en");

/** The text of `key` in the page's language; {names} are replaced. */
function t(key, values = {}) {
  const pair = TEXTS[key];
  const text = pair ? pair[language === "zh" ? 1 : 0] : key;
  return text.replace(/\{(\w+)\}/g, (all, name) => (name in values ? String(values[name]) : all));
}

/** An element: h("td", {class: "n"}, "text", child). Strings become text nodes, never markup. */
function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  return fill(element, attributes, children);
}

/** The same for SVG. */
function s(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "style") for (const [name, it] of Object.entries(value)) element.style.setProperty(name, it);
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Where a number comes from: measured, recomputed or derived; told by word and border, not by colour alone. */
function badge(kind) {
  return h("span", { class: `badge ${kind}`, title: t("badge." + kind + ".title") }, t("badge." + kind));
}

const number = (value) => (typeof value === "string" ? Number(value.replace("Infinity", "Infinity")) : value);

/** A number as people read it; what is not finite keeps its name. */
function show(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value;
  if (!Number.isFinite(value)) return String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e7)) return value.toExponential(2);
  return String(Number(value.toPrecision(digits)));
}
const ms = (ns) => (ns === null || ns === undefined ? "–" : Math.abs(ns) >= 1e10 ? `${show(ns / 1e9, 4)} s` : `${show(ns / 1e6, 4)} ms`);
const percent = (p) => (p >= 0.9995 ? "100 %" : p < 0.0005 && p > 0 ? "<0.1 %" : `${(100 * p).toFixed(1)} %`);
function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let place = 0;
  while (Math.abs(value) >= 1000 && place < 4) { value /= 1000; place += 1; }
  return `${place ? value.toFixed(1) : value} ${units[place]}`;
}

function fromBase64(text) {
  const raw = atob(text || "");
  return Uint8Array.from(raw, (letter) => letter.charCodeAt(0));
}

/** Bytes one after the other. */
function concat(parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) { whole.set(part, at); at += part.length; }
  return whole;
}

const HIDDEN = /[\u0000-\u001f\u007f-\u00a0\u00ad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb]|[\u{e0000}-\u{e0fff}]/gu;

/** Text with what cannot be seen made visible: spaces as ·, controls and direction marks by name. */
function visible(text) {
  return text.replace(HIDDEN, (letter) => {
    const code = letter.codePointAt(0);
    if (letter === "\n") return "↵";
    if (letter === "\r") return "␍";
    if (letter === "\t") return "⇥";
    return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  }).replace(/ /g, "·");
}

/** A token's bytes as text; where they are no whole characters, as ⟨F0 9F⟩. */
function pieceText(data) {
  if (!data.length) return "∅";
  try {
    return visible(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data));
  } catch {
    return `⟨${hex(data)}⟩`;
  }
}
/** A token's id; logprobs have none, which negative numbers stand for. */
const idText = (id) => (id === null || id === undefined || id < 0 ? "–" : String(id));
/** A request's name as there is room for it. */
const shortKey = (key) => (key.length > 22 ? `${key.slice(0, 17)}…${key.includes("#") ? key.slice(key.indexOf("#")) : ""}` : key);

/** An event of one line. Whole numbers beyond what a double holds (seeds) become strings, digit for digit. */
const parseEvent = (line) => JSON.parse(line.replace(/"(seed|value)": ?(-?\d{16,})(?=[,}])/g, '"$1":"$2"'));
const hex = (data) => Array.from(data, (byte) => byte.toString(16).toUpperCase().padStart(2, "0")).join(" ");

/** A table with a caption; cells are text or elements, numbers go right. */
function table(caption, heads, rows, attributes = {}) {
  const cell = (name, value) => {
    const wrapped = value !== null && typeof value === "object" && !(value instanceof Node) && "is" in value ? value : { is: value };
    return h(name, { class: typeof wrapped.is === "number" ? "n" : wrapped.class, scope: name === "th" ? "col" : undefined },
      typeof wrapped.is === "number" ? show(wrapped.is) : wrapped.is);
  };
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `${t("table")}: ${caption}` },
    h("table", attributes,
      h("caption", {}, caption),
      h("thead", {}, h("tr", {}, heads.map((head) => cell("th", capital(head))))),
      h("tbody", {}, rows.map((row) => h("tr", row.attributes || {}, (row.cells || row).map((value) => cell("td", value)))))));
}

/** Parts that are folded away keep open what a reader opened, whatever the cursor does. */
const unfolded = new Set();
function fold(name, summary, ...content) {
  const box = h("details", { open: unfolded.has(name) }, h("summary", { "data-key": `fold-${name}` }, summary), content);
  box.addEventListener("toggle", () => { if (box.open) unfolded.add(name); else unfolded.delete(name); });
  return box;
}

const MOST_ROWS = 1000;

/** The numbers behind a picture, folded away until wanted; `make` gives `count` rows when it is opened. */
function behind(caption, heads, make, count = make.length) {
  const box = fold(`table-${heads.join()}`, t(count === 1 ? "as_table_one" : "as_table", { n: show(count) }));
  let isFilled = false;
  const fillIn = () => {
    if (!box.open || isFilled) return;
    isFilled = true;
    const rows = typeof make === "function" ? make() : make;
    box.append(table(caption, heads, rows.slice(0, MOST_ROWS)));
    if (rows.length > MOST_ROWS) box.append(note(t("rows_cut", { n: show(MOST_ROWS), hidden: show(rows.length - MOST_ROWS) }), "warn"));
  };
  box.addEventListener("toggle", fillIn);
  fillIn();
  return box;
}

const capital = (text) => (/^[a-z]{2,}[ a-z]/.test(text) ? text[0].toUpperCase() + text.slice(1) : text);

/** A labelled value. */
const fact = (name, value, kind) => h("div", { class: "fact" }, h("dt", {}, capital(name)), h("dd", {}, value, kind ? badge(kind) : null));
const facts = (...items) => h("dl", { class: "facts" }, items);
const note = (text, kind = "") => h("p", { class: `note ${kind}` }, text);
const bar = (share) => h("span", { class: "bar", "aria-hidden": "true" }, h("i", { style: { width: `${Math.max(0, Math.min(1, share)) * 100}%` } }));

/** Light, dark, or as the system has it; gives back which. Remembered unless it is "auto". */
function setTheme(theme) {
  const chosen = theme === "auto" ? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light") : theme;
  if (theme !== "auto") store.set("theme", theme);
  document.documentElement.dataset.theme = chosen;
  return chosen;
}

/** The document in the page's language, with its title. */
function setDocument(title) {
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  document.title = `Pellucid · ${title}`;
}

/** The bar at the top: name, what the page is, a line of facts, the buttons for language and theme. */
function topBar(title, facts, speak) {
  const other = language === "zh" ? "en" : "zh";
  return h("header", { class: "top" },
    h("div", { class: "brand" }, h("span", { class: "logo", "aria-hidden": "true" }), h("h1", {}, "Pellucid", h("small", {}, title))),
    facts,
    h("div", { class: "tools" },
      h("button", { type: "button", id: "language", lang: other === "en" ? "en" : "zh-CN", onclick: () => { language = other; store.set("language", other); speak(); document.getElementById("language").focus(); } }, other === "en" ? "English" : "中文"),
      h("button", { type: "button", id: "theme", onclick: () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark") }, t("theme"))));
}
