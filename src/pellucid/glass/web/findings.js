"use strict";
/* What the doctor found, at the top of a report: the fault, its numbers, what helps, and a way to the place. */

Object.assign(TEXTS, {
  "findings": ["What the doctor found", "诊断结果"], "findings.numbers": ["Numbers", "数值"], "findings.go": ["Show the place", "跳到该处"],
  "severity.error": ["error", "错误"], "severity.warning": ["warning", "警告"], "severity.info": ["note", "提示"],
  "rule.double-bos": ["Double BOS", "重复的 BOS"],
  "rule.missing-bos": ["Missing BOS", "缺少 BOS"],
  "rule.wrong-tokenizer": ["Tokenizer of another model", "分词器属于另一个模型"],
  "rule.never-stops": ["Answers that never stop", "回答不会停止"],
  "rule.positions": ["Positions and scaling", "位置与缩放"],
  "rule.overflow": ["Numbers that overflow", "数值溢出"],
  "rule.sampling": ["Sampling too narrow or wide", "采样过窄或过宽"],
  "rule.strict-penalty": ["Penalty or mask too strict", "惩罚或掩码过严"],
  "rule.slow-ttft": ["Slow first token", "首个词元过慢"],
  "rule.kv-budget": ["KV cache too small", "KV 缓存过小"],
  "rule.near-tie": ["Near ties", "近乎并列"],
  "rule.speculation": ["Speculation out of balance", "投机解码失衡"],
});

/** A title in the page's language; a rule of a later version keeps its name. */
const ruleTitle = (rule) => (TEXTS["rule." + rule] ? t("rule." + rule) : String(rule));

/** Nested evidence → [name, text] pairs. */
function evidencePairs(name, value) {
  if (value === null || value === undefined) return [];
  if (Array.isArray(value)) return [[name, value.slice(0, 12).map((one) => show(one)).join(", ") + (value.length > 12 ? ` … (${value.length})` : "")]];
  if (typeof value === "object") return Object.entries(value).flatMap(([key, one]) => evidencePairs(name ? `${name}.${key}` : key, one));
  return [[name, typeof value === "boolean" ? String(value) : show(value)]];
}

/** All findings as a list; null where there are none. */
function findingsList(page) {
  const found = page.trace.findings;
  if (!found.length) return null;
  return h("section", { class: "findings", "aria-labelledby": "h-findings" },
    h("h2", { id: "h-findings" }, t("findings")),
    h("ul", {}, found.map((one) => h("li", { class: `finding ${one.severity}` }, finding(page, one)))));
}

function finding(page, one) {
  const pairs = evidencePairs("", one.evidence);
  const evidence = one.evidence || {};
  const [position, layer] = [evidence.position, evidence.layer].map((value) => (Number.isInteger(value) ? value : undefined));
  const key = page.trace.keys.find((name) => name === one.req || name.split("#")[0] === one.req);
  const go = key !== undefined && position !== undefined
    ? h("button", { type: "button", onclick: () => page.move({ request: key, token: position, ...(layer === undefined ? {} : { layer }) }) }, t("findings.go")) : null;
  return [
    h("p", {}, h("b", { class: "severity" }, t("severity." + one.severity)), " ", h("b", {}, ruleTitle(one.rule)), one.req === null ? null : h("bdi", { class: "mono chip" }, String(one.req)), go),
    h("p", {}, String(one.explain)),
    one.fix ? h("p", {}, h("b", {}, t("fix") + ": "), String(one.fix)) : null,
    pairs.length ? h("details", {}, h("summary", {}, t("findings.numbers")), h("dl", { class: "facts" }, pairs.map(([name, value]) => h("div", { class: "fact" }, h("dt", {}, name), h("dd", {}, value))))) : null,
  ];
}
