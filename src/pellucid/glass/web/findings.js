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

/** What each rule finds and what helps, in Chinese: the doctor's own sentences, with their numbers, are English and stand below. */
const RULES_ZH = {
  "double-bos": ["提示词开头有多个 BOS；模型训练时只有一个，回答会不同。", "若分词器会自动添加 BOS，就不要写进提示词或模板。"],
  "missing-bos": ["提示词开头没有（正确的）BOS，与模型训练时不符，回答会变差。", "让分词器添加 BOS，或检查 bos_token_id 与 add_bos_token。"],
  "wrong-tokenizer": ["分词器与权重不匹配。", "使用该模型自带的分词器文件。"],
  "never-stops": ["回答没有在应停之处停止：结束词元缺失、被忽略或未到达。", "设置 stop_token_ids、stop 或 max_tokens，并检查 eos_token_id。"],
  "positions": ["位置超出训练长度，或缩放设置不正确。", "缩短请求，或检查 RoPE 缩放。"],
  "overflow": ["计算中出现非有限值，或超出 float16 的范围。", "检查权重文件；以级别 3 记录可找到最先出错的层。"],
  "sampling": ["采样设置过窄或过宽：结果几乎不变，或近乎随机。", "调整 temperature、top_k、top_p、min_p。"],
  "strict-penalty": ["惩罚或约束一再去掉模型想说的大部分概率。", "减弱惩罚，或放宽约束。"],
  "slow-ttft": ["首个词元来得慢；最大的部分见下。", "从最大的部分着手：缩短提示词、利用前缀缓存，或减少同时的请求。"],
  "kv-budget": ["KV 缓存不够大：请求需要等待、被抢占或无法容纳。", "增大 KV 缓存，或减小 max_model_len、max_num_seqs。"],
  "near-tie": ["前两个候选几乎并列：另一个引擎可能给出不同的回答。", "比较对数概率，而不是文本。"],
  "speculation": ["投机解码的草稿几乎总被拒绝或总被接受。", "调整草稿长度，或关闭投机解码。"],
};

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
  const own = language === "zh" ? RULES_ZH[one.rule] : undefined;
  const [position, layer] = [evidence.position, evidence.layer].map((value) => (Number.isInteger(value) ? value : undefined));
  const key = page.trace.keys.find((name) => name === one.req || name.split("#")[0] === one.req);
  const go = key !== undefined && position !== undefined
    ? h("button", { type: "button", onclick: () => page.move({ request: key, token: position, ...(layer === undefined ? {} : { layer }) }) }, t("findings.go")) : null;
  return [
    h("p", {}, h("b", { class: "severity" }, t("severity." + one.severity)), " ", h("b", {}, ruleTitle(one.rule)), one.req === null ? null : h("bdi", { class: "mono chip" }, String(one.req)), go),
    own ? h("p", {}, own[0]) : null,
    own ? h("p", {}, h("b", {}, t("fix") + "："), own[1]) : null,
    h("p", { class: own ? "sub" : undefined, lang: "en" }, String(one.explain)),
    one.fix ? h("p", { class: own ? "sub" : undefined, lang: "en" }, own ? null : h("b", {}, t("fix") + ": "), String(one.fix)) : null,
    pairs.length ? h("details", {}, h("summary", {}, t("findings.numbers")), h("dl", { class: "facts" }, pairs.map(([name, value]) => h("div", { class: "fact" }, h("dt", {}, name), h("dd", {}, value))))) : null,
  ];
}
