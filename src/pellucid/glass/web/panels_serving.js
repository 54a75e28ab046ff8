"use strict";
/* Panels 6–10: what serving did. */

const PARTS = ["tokenize", "queue", "prefill_own", "batch_others", "sample", "emit", "tracing"];

/** Parts of a whole side by side, [name, share, size as text] each, in the colours of their keys. */
function stacked(label, parts) {
  const all = parts.reduce((sum, [, share]) => sum + Math.max(0, share), 0) || 1;
  return h("div", { class: "stacked", role: "img", "aria-label": label }, parts.map(([name, share, size], k) => (share > 0 ? h("span", { class: `part p${k % 8}`, title: `${name} ${size}`, style: { "flex-grow": String(share / all) } }, share / all > 0.2 ? name : "") : null)));
}

class TimelinePanel extends Panel {
  get needsNoSequence() { return true; }
  draw(trace, sequence, cursor) {
    return [sequence ? [this.ttft(sequence), this.intervals(trace, sequence)] : null, this.lanes(trace, cursor, sequence)];
  }

  ttft(sequence) {
    const finish = sequence.finish;
    if (!finish || !finish.ttft_parts || !finish.ttft_ns) return finish && finish.ttft_ns ? facts(fact(t("ttft_of"), ms(finish.ttft_ns), "measured")) : note(t("no_ttft"));
    const parts = Object.entries(finish.ttft_parts).sort((a, b) => (PARTS.indexOf(a[0]) + 99) % 99 - (PARTS.indexOf(b[0]) + 99) % 99);
    const total = finish.ttft_ns;
    const sum = parts.reduce((all, [, ns]) => all + ns, 0);
    const first = firstToken(finish), [largest, ns] = first.largest;
    return [h("h3", {}, t("ttft_of"), " ", h("b", {}, ms(total)), badge("measured")),
      first.isMuch ? note(t("ttft_tracing", { share: percent(first.tracing / total), net: ms(first.net) }), "warn") : null,
      h("p", {}, t(first.isMuch ? "ttft_largest_rest" : "ttft_largest", { part: t("part." + largest), share: percent(ns / first.told) })),
      TEXTS["part_note." + largest] ? note(t("part_note." + largest)) : null,
      stacked(`${t("ttft_of")} ${ms(total)}: ` + parts.map(([name, ns]) => `${t("part." + name)} ${ms(ns)}`).join(", "), parts.map(([name, ns]) => [t("part." + name), ns, ms(ns)])),
      table(t("ttft_table"), [t("colour"), t("part"), t("time"), t("share")], [...parts.map(([name, ns], k) => [h("span", { class: `key p${k % 8}`, "aria-hidden": "true" }), h("span", { "data-part": name }, t("part." + name)), { is: ms(ns), class: "n" }, { is: percent(ns / total), class: "n" }]),
        { attributes: { class: "sum" }, cells: ["", t("sum"), { is: ms(sum), class: "n" }, { is: sum === total ? `= ${t("ttft_of")}` : `≠ ${t("ttft_of")} (${ms(total - sum)})`, class: "n" }] }], { class: "narrow ttft" })];
  }

  lanes(trace, cursor, sequence) {
    if (!trace.steps.length) return note(t("no_steps"));
    const span = this.zoom || 0;
    const at = Math.max(0, trace.steps.findIndex((step) => step.step === cursor.step));
    const first = span ? Math.max(0, Math.min(at - span / 2, trace.steps.length - span)) : 0;
    const shown = span ? trace.steps.slice(first, first + span) : trace.steps;
    const keys = trace.lanes.filter((key) => !span || shown.some((step) => step.seqs.some((one) => sequenceKey(one) === key) || step.waiting.some((one) => key.split("#")[0] === one.req)));
    const arrivals = span ? [] : [...trace.sequences.values()].map((one) => one.request && one.request.arrive_ns).filter((x) => x !== undefined && x !== null);
    const t0 = Math.min(...arrivals, shown[0].t0_ns), t1 = Math.max(shown[shown.length - 1].t1_ns, t0 + 1);
    const W = 1000, LANE = 34, LEFT = 34;
    const x = (ns) => LEFT + ((Math.max(t0, ns) - t0) / (t1 - t0)) * (W - LEFT);
    const lane = new Map(keys.map((key, k) => [key, k]));
    const bare = new Map([...keys].reverse().map((key) => [key.split("#")[0], lane.get(key)]));
    const runs = runsOf(trace, shown, lane, bare, x);
    const rects = runs.map((run) => {
      const [from, to] = [x(run.t0), x(run.t1)], w = Math.max(1, to - from - 0.6), top = run.lane * LANE;
      const title = s("title", {}, `${run.first === run.last ? `${t("step")} ${run.first}` : `${t("steps")} ${run.first}–${run.last}`} · ${run.reason ? `${t("waits")}: ${waitReason(run.reason)}` : `${t("work." + run.work)} · ${run.tokens} ${t("tokens")}`} · ${ms(run.t1 - run.t0)}`);
      if (run.reason) return s("g", { class: "hit" }, title, s("line", { x1: from, x2: Math.max(to, from + 1), y1: 17 + top, y2: 17 + top, class: `waiting ${WAITS.includes(run.reason) ? run.reason : ""}` }));
      return s("g", { class: "hit" }, title, s("rect", { x: from, y: 4 + top + (run.work === "decode" ? 6 : 0), width: w, height: run.work === "decode" ? 14 : 26, class: `work ${run.work}${run.isOther ? " other" : ""}` }),
        w > 16 && run.first === run.last ? s("text", { x: from + w / 2, y: 21 + top, "text-anchor": "middle", class: "worklabel" }, run.work === "prefill" ? `P${w > 40 ? " " + run.tokens : ""}` : run.work === "verify" ? "V" : "D") : null);
    });
    const marks = keys.map((key, k) => {
      const one = trace.sequences.get(key);
      return s("g", {}, s("text", { x: 6, y: 22 + k * LANE, class: one ? "lane" : "lane other" }, trace.letter(key)), s("title", {}, key),
        one && one.request && one.request.arrive_ns >= t0 ? s("path", { d: `M${x(one.request.arrive_ns)} ${2 + k * LANE} v30`, class: "arrive" }) : null);
    });
    const now = trace.stepAt(cursor.step);
    const isIn = now && now.t1_ns >= t0 && now.t0_ns <= t1;
    const svg = s("svg", { viewBox: `0 0 ${W} ${keys.length * LANE + 26}`, class: "wide lanes", role: "img", "aria-label": t("timeline_label", { requests: keys.length, steps: shown.length }) }, rects, marks,
      isIn ? s("rect", { x: x(now.t0_ns) - 1, y: 1, width: Math.max(2, x(now.t1_ns) - x(now.t0_ns)) + 2, height: keys.length * LANE, class: "now" }, s("title", {}, `${t("step")} ${now.step}`)) : null,
      s("text", { x: LEFT, y: keys.length * LANE + 20, class: "tick" }, span ? `${t("step")} ${shown[0].step}` : "0"), s("text", { x: W, y: keys.length * LANE + 20, "text-anchor": "end", class: "tick" }, ms(t1 - t0)));
    svg.addEventListener("click", (event) => {
      const box = svg.getBoundingClientRect();
      const moment = t0 + ((((event.clientX - box.left) / box.width) * W - LEFT) / (W - LEFT)) * (t1 - t0);
      const step = shown.reduce((best, one) => (away(one, moment) < away(best, moment) ? one : best), shown[0]);
      this.page.move({ step: step.step });
    });
    const zoom = h("select", { "aria-label": t("zoom"), "data-key": "zoom" }, [0, 200, 40].map((n) => h("option", { value: n, selected: n === span }, n ? t("zoom_near", { n }) : t("zoom_all"))));
    zoom.addEventListener("change", () => { this.zoom = Number(zoom.value); this.refresh(); });
    const waits = WAITS.filter((reason) => runs.some((run) => run.reason === reason));
    const isOther = keys.some((key) => !trace.sequences.has(key));
    return [h("h3", {}, t("lanes"), badge("measured"), h("label", { class: "sub zoom" }, t("zoom"), " ", zoom)),
      h("p", { class: "legend" }, ["prefill", "decode", "verify"].map((work) => h("span", { class: "entry" }, h("span", { class: `key work ${work}` }), `${t("work." + work)} (${{ prefill: "P", decode: "D", verify: "V" }[work]})`)),
        waits.map((reason) => h("span", { class: "entry" }, h("span", { class: `key wait ${reason}` }), `${t("waits")}: ${waitReason(reason)}`))),
      svg, h("p", { class: "legend" }, keys.map((key) => h("span", { title: key }, h("b", {}, trace.letter(key)), ` ${shortKey(key)}`))), isOther ? note(t("others_note")) : null,
      now ? facts(fact(t("step"), show(now.step)), fact(t("took"), ms(now.t1_ns - now.t0_ns), "measured"), ...Object.entries(now.ns).map(([name, ns]) => fact(TEXTS["phase." + name] ? t("phase." + name) : name, ms(ns), "measured"))) : null,
      sequence ? this.waited(trace, sequence) : null,
      behind(t("lanes"), [t("step"), t("request"), t("work"), t("first_position"), t("tokens"), t("begin"), t("took")], () => laneRows(trace, shown, t0), shown.length)];
  }

  /** What the request waited for, in steps, and how often it was preempted. */
  waited(trace, sequence) {
    const counts = {};
    const name = sequence.key.split("#")[0];
    for (const step of trace.steps) for (const one of step.waiting) if (one.req === name) counts[one.reason] = (counts[one.reason] || 0) + 1;
    const items = Object.entries(counts).map(([reason, n]) => fact(`${t("waits")}: ${waitReason(reason)}`, t(n === 1 ? "one_step" : "n_steps", { n: show(n) }), "measured"));
    const preemptions = sequence.finish && sequence.finish.preemptions;
    if (preemptions) items.push(fact(t("preemptions"), show(preemptions), "measured"));
    return items.length ? facts(...items) : null;
  }

  /** The time of every token after the first, so that the slow ones stand out. */
  intervals(trace, sequence) {
    const times = (sequence.finish && sequence.finish.itl_ns) || [];
    if (times.length < 2) return null;
    const traced = tracedShare(trace, sequence);
    const W = 1000, H = 70, most = Math.max(...times), place = times.indexOf(most);
    const groups = Math.min(times.length, 500), per = times.length / groups, wide = Math.min(40, W / groups);
    const sorted = [...times].sort((a, b) => a - b);
    const bars = Array.from({ length: groups }, (_, k) => Math.max(...times.slice(Math.floor(k * per), Math.max(Math.floor(k * per) + 1, Math.floor((k + 1) * per)))));
    const svg = s("svg", { viewBox: `0 0 ${W} ${H + 18}`, class: "wide", role: "img", "aria-label": t("itl_label", { n: times.length, most: ms(most), median: ms(sorted[times.length >> 1]) }) },
      bars.map((ns, k) => s("rect", { x: k * wide + 0.5, y: H - (ns / most) * (H - 8), width: Math.max(0.6, wide - 1), height: Math.max(1, (ns / most) * (H - 8)), class: ns === most ? "itl most" : "itl" }, s("title", {}, `${t("token")} ${Math.floor(k * per) + 2}: ${ms(ns)}`))),
      s("text", { x: 0, y: H + 14, class: "tick" }, `${t("token")} 2`), s("text", { x: Math.max(120, groups * wide), y: H + 14, "text-anchor": "end", class: "tick" }, String(times.length + 1)));
    svg.addEventListener("click", (event) => {
      const box = svg.getBoundingClientRect();
      const k = Math.floor((((event.clientX - box.left) / box.width) * W) / wide);
      this.page.move({ token: sequence.prompt.length + 1 + Math.min(times.length - 1, Math.floor(k * per)) });
    });
    return [h("h3", {}, t("itl"), badge("measured")), facts(fact(t("median"), ms(sorted[times.length >> 1]), "derived"), fact(t("longest"), ms(most), "measured"), fact(t("longest_at"), show(place + 2))), traced > MUCH_TRACING ? note(t("itl_tracing", { share: percent(traced), net: ms(sorted[times.length >> 1] * (1 - traced)) }), "warn") : null, svg,
      behind(t("itl"), [t("token"), t("took")], () => times.map((ns, k) => [k + 2, { is: ms(ns), class: "n" }]), times.length)];
  }
}

const WAITS = ["max_num_seqs", "kv_blocks", "shared_prompt", "step_full"];
const waitReason = (reason) => (TEXTS["wait." + reason] ? t("wait." + reason) : reason);
const away = (step, moment) => (moment < step.t0_ns ? step.t0_ns - moment : moment > step.t1_ns ? moment - step.t1_ns : 0);

/** Stretches of the same work in a lane: neighbours that a screen could not tell apart are one. */
function runsOf(trace, steps, lane, bare, x) {
  const open = new Map();
  const runs = [];
  const take = (place, found) => {
    const key = `${place} ${found.reason ? "w" : ""}`;
    const last = open.get(key);
    if (last && last.work === found.work && last.reason === found.reason && x(found.t0) - x(last.t1) < 0.8 && x(found.t1) - x(found.t0) < 2) {
      last.t1 = found.t1; last.last = found.last; last.tokens += found.tokens;
      return;
    }
    runs.push(found);
    open.set(key, found);
  };
  for (const step of steps) {
    const times = { t0: step.t0_ns, t1: step.t1_ns, first: step.step, last: step.step };
    for (const seq of step.seqs) {
      const key = sequenceKey(seq), place = lane.get(key);
      if (place !== undefined) take(place, { ...times, lane: place, work: trace.work(step, seq), tokens: seq.n_tok, isOther: !trace.sequences.has(key) });
    }
    for (const one of step.waiting) {
      const place = bare.get(one.req);
      if (place !== undefined) take(place, { ...times, lane: place, reason: one.reason, tokens: 0 });
    }
  }
  return runs;
}

function laneRows(trace, steps, t0) {
  return steps.flatMap((step) => [
    ...step.seqs.map((seq) => [step.step, sequenceKey(seq), t("work." + trace.work(step, seq)), seq.tok0, seq.n_tok, { is: ms(step.t0_ns - t0), class: "n" }, { is: ms(step.t1_ns - step.t0_ns), class: "n" }]),
    ...step.waiting.map((one) => [step.step, one.req, `${t("waits")}: ${waitReason(one.reason)}`, "", "", { is: ms(step.t0_ns - t0), class: "n" }, { is: ms(step.t1_ns - step.t0_ns), class: "n" }])]);
}

class BatchPanel extends Panel {
  get needsNoSequence() { return true; }
  draw(trace, sequence, cursor) {
    if (!trace.steps.length) return note(t("no_steps"));
    const STEPS = 200;
    const at = Math.max(0, trace.steps.findIndex((step) => step.step === cursor.step));
    const first = Math.max(0, Math.min(at - STEPS / 2, trace.steps.length - STEPS));
    const shown = trace.steps.slice(first, first + STEPS);
    const total = (step) => step.seqs.reduce((sum, one) => sum + one.n_tok, 0);
    const most = Math.max(...shown.map(total), 1);
    const budget = Math.max(...shown.map((step) => step.token_budget));
    const present = [...new Set(shown.flatMap((step) => step.seqs.map(sequenceKey)))];
    const W = 1000, H = 150, wide = Math.min(60, W / shown.length);
    const bars = shown.map((step, k) => {
      let y = H;
      return s("g", { class: "hit", "data-step": step.step }, s("title", {}, `${t("step")} ${step.step}: ${step.seqs.map((one) => `${trace.letter(sequenceKey(one))} ${one.n_tok}`).join(", ")} / ${step.token_budget}`),
        s("rect", { x: k * wide, y: 0, width: wide, height: H, class: step.step === cursor.step ? "col now" : "col" }),
        step.seqs.map((one) => {
          const tall = Math.max(3, (one.n_tok / most) * (H - 16));
          y -= tall;
          return [s("rect", { x: k * wide + 1, y, width: Math.max(1, wide - 2), height: Math.max(1, tall - 1), fill: trace.hue(sequenceKey(one)) }),
            tall > 14 && wide > 12 ? s("text", { x: k * wide + wide / 2, y: y + tall / 2 + 4, "text-anchor": "middle", class: "onbar" }, trace.letter(sequenceKey(one))) : null];
        }));
    });
    const svg = s("svg", { viewBox: `0 0 ${W} ${H + 20}`, class: "wide", role: "img", "aria-label": t("batch_label", { n: shown.length }) }, bars,
      s("text", { x: 0, y: H + 16, class: "tick" }, `${t("step")} ${shown[0].step}`), s("text", { x: Math.max(160, shown.length * wide), y: H + 16, class: "tick", "text-anchor": "end" }, String(shown[shown.length - 1].step)), s("text", { x: shown.length * wide > 600 ? W : shown.length * wide + 6, y: 12, class: "tick", "text-anchor": shown.length * wide > 600 ? "end" : "start" }, `${t("tallest")}: ${show(most)} ${t("tokens")}`),
      ...(budget <= most * 1.02 ? [s("line", { x1: 0, x2: shown.length * wide, y1: H - (budget / most) * (H - 16), y2: H - (budget / most) * (H - 16), class: "budget" }, s("title", {}, `${t("budget")} ${budget}`))] : []));
    svg.addEventListener("click", (event) => { const hit = event.target.closest("[data-step]"); if (hit) this.page.move({ step: Number(hit.dataset.step) }); });
    const now = trace.steps[at];
    return [facts(fact(t("step"), show(now.step)), fact(t("tokens"), `${show(total(now))} / ${show(now.token_budget)}`, "measured"), fact(t("budget_used"), percent(total(now) / now.token_budget), "derived"), fact(t("sequences"), show(now.seqs.length), "measured"), fact(t("waits"), show(now.waiting.length), "measured")),
      svg, h("p", { class: "legend" }, present.slice(0, 40).map((key) => h("span", { class: "entry" }, h("span", { class: "key", style: { background: trace.hue(key) } }), h("b", {}, trace.letter(key)), ` ${shortKey(key)}`)), budget <= most * 1.02 ? h("span", { class: "entry" }, h("span", { class: "key line" }), `${t("budget")} ${show(budget)}`) : h("span", {}, t("budget_above", { n: show(budget) }))),
      shown.length < trace.steps.length ? note(t("steps_window", { n: shown.length, hidden: trace.steps.length - shown.length }), "warn") : null,
      behind(t("panel.batch"), [t("step"), t("tokens"), t("budget"), t("request")], () => shown.map((step) => [step.step, total(step), step.token_budget, step.seqs.map((one) => `${sequenceKey(one)}: ${one.n_tok}`).join(", ")]), shown.length)];
  }
}

class KvPanel extends Panel {
  get needsNoSequence() { return true; }
  draw(trace, sequence, cursor) {
    if (!trace.kv.length) return note(t("no_kv"));
    const step = trace.stepAt(cursor.step);
    const until = step ? step.t1_ns : Infinity;
    const blocks = new Map();
    const gone = [];
    const nodes = new Map();
    for (const one of trace.kv) {
      if (one.t_ns > until) continue; // what comes after the cursor's step is not there yet
      if (one.op === "evict") {
        const lost = one.hash ? nodes.get(one.hash) : [...nodes.values()].find((node) => node.block === one.block && !node.isGone);
        if (lost) lost.isGone = true;
        gone.push({ ...one, owners: one.req ? [one.req] : lost ? [...lost.users] : [] });
      } else if (one.op === "preempt") gone.push({ ...one, owners: one.req ? [one.req] : [] });
      else if (one.hash && one.op !== "free") {
        const node = nodes.get(one.hash) || { hash: one.hash, parent: one.parent, users: new Set(), tok0: one.tok0 };
        nodes.set(one.hash, Object.assign(node, { block: one.block, isGone: false }));
        if (one.req) node.users.add(one.req);
      }
      const known = blocks.get(one.block) || { owners: new Set() };
      if (["free", "evict", "preempt"].includes(one.op)) {
        if (one.req) known.owners.delete(one.req);
        if (!one.ref || one.op === "evict") known.owners.clear();
      } else if (one.req) known.owners.add(one.req);
      blocks.set(one.block, { ...known, ref: one.ref, op: one.op, tok0: one.tok0, n: one.n });
    }
    const all = [...blocks].sort((a, b) => a[0] - b[0]);
    const cells = all.slice(0, 1024).map(([block, one]) => {
      const owners = [...one.owners].sort((a, b) => trace.lanes.indexOf(a) - trace.lanes.indexOf(b));
      const label = owners.map((key) => trace.letter(key)).join("") || (one.op === "evict" ? "✕" : "·");
      return h("span", { class: `block${owners.length > 1 ? " shared" : ""}${owners.length ? "" : " empty"}`, style: owners.length ? { "--owner": trace.hue(owners[0]) } : {}, title: `${t("block")} ${block}: ${owners.join(", ") || t("free")} · ref ${one.ref} · ${one.op}` }, owners.length > 3 ? `${owners.length}×` : label);
    });
    const counts = {};
    for (const one of trace.kv) counts[one.op] = (counts[one.op] || 0) + 1;
    const capacity = capacityOf(trace);
    const inUse = all.filter(([, one]) => one.owners.size).length;
    return [facts(capacity ? fact(t("blocks_in_use"), `${show(inUse)} / ${show(capacity)}`, "derived") : null, ...Object.entries(counts).map(([op, n]) => fact(TEXTS["kv." + op] ? t("kv." + op) : op, show(n), "measured"))),
      h("h3", {}, t("blocks_at", { step: step ? step.step : "–" }), badge("derived")),
      h("div", { class: "blocks", role: "img", "aria-label": t("blocks_label", { n: all.length, shared: all.filter(([, one]) => one.owners.size > 1).length }) }, cells),
      h("p", { class: "legend" }, t("blocks_legend")),
      behind(t("panel.kv"), [t("block"), t("owner"), "ref", t("last_op"), t("first_position")], all.map(([block, one]) => [block, [...one.owners].join(", ") || t("free"), one.ref, TEXTS["kv." + one.op] ? t("kv." + one.op) : one.op, one.tok0 ?? ""])),
      all.length > cells.length ? note(t("blocks_cut", { n: show(cells.length), hidden: show(all.length - cells.length) }), "warn") : null,
      nodes.size ? [h("h3", {}, t("prefix_tree"), badge("derived")), this.tree(trace, nodes)] : null,
      gone.length ? [h("h3", {}, t("evictions")), table(t("evictions"), [t("block"), t("last_op"), t("request")], gone.slice(-50).map((one) => [one.block, t("kv." + one.op), one.owners.map((key) => `${trace.letter(key)} ${key}`).join(", ") || "–"]), { class: "narrow" })] : null];
  }

  /** Chains of blocks without a fork are one row; a fork says at which token the prompts part. */
  tree(trace, nodes) {
    const children = new Map();
    for (const node of nodes.values()) {
      const parent = node.parent && nodes.has(node.parent) ? node.parent : null;
      if (!children.has(parent)) children.set(parent, []);
      children.get(parent).push(node);
    }
    const branch = (node, depth) => {
      const chain = [node];
      while ((children.get(chain[chain.length - 1].hash) || []).length === 1 && sameUsers(children.get(chain[chain.length - 1].hash)[0], node)) chain.push(children.get(chain[chain.length - 1].hash)[0]);
      const tail = chain[chain.length - 1];
      const next = children.get(tail.hash) || [];
      const users = [...node.users].sort((a, b) => trace.lanes.indexOf(a) - trace.lanes.indexOf(b));
      return h("li", {}, h("span", { class: "node" }, h("b", {}, users.map((key) => trace.letter(key)).join("+") || "–"), " ", t(chain.length === 1 ? "chain_one" : "chain", { n: chain.length, from: node.tok0 ?? "?" }), " ", h("bdi", { class: "mono" }, this.words(trace, users, node)), tail.isGone ? ` ✕ ${t("kv.evict")}` : ""),
        next.length > 1 ? h("span", { class: "fork" }, t("diverge", { pos: this.divergence(trace, next) })) : null,
        next.length && depth < 60 ? h("ul", {}, next.map((one) => branch(one, depth + 1))) : null);
    };
    return h("ul", { class: "tree" }, (children.get(null) || []).map((node) => branch(node, 0)));
  }

  words(trace, users, node) {
    const sequence = trace.sequences.get(users[0]);
    if (!sequence || node.tok0 === null || node.tok0 === undefined) return "";
    let text = "";
    for (let pos = node.tok0; pos < node.tok0 + 6 && pos < sequence.length; pos += 1) text += sequence.name(pos);
    return text ? `${text}…` : "";
  }

  divergence(trace, nodes) {
    const found = nodes.map((node) => trace.sequences.get([...node.users][0])).filter(Boolean);
    if (found.length < 2 || found[0] === found[1]) return nodes[0].tok0 ?? "?";
    for (let pos = 0; ; pos += 1) {
      const ids = found.map((one) => { const token = one.token(pos); return token ? token.id : null; });
      if (ids.some((id) => id === null || id !== ids[0])) return pos;
    }
  }
}
/** Blocks that fit into the reserved memory. */
function capacityOf(trace) {
  const { model, engine } = trace.header || {};
  const bytes = (engine && engine.kv_cache_memory_bytes) || (trace.mem.length ? trace.mem[0].kv_reserved_bytes : 0);
  return model && engine && model.kv_bytes_per_token && engine.block_size && bytes ? Math.floor(bytes / (model.kv_bytes_per_token * engine.block_size)) : 0;
}
const sameUsers = (a, b) => a.users.size === b.users.size && [...a.users].every((one) => b.users.has(one));

class SpecPanel extends Panel {
  draw(trace, sequence) {
    if (!sequence.specs.length) return note(t("no_spec"));
    const drafted = sequence.specs.reduce((sum, one) => sum + one.draft.length, 0);
    const accepted = sequence.specs.reduce((sum, one) => sum + one.accepted, 0);
    return [facts(fact(t("drafted"), show(drafted), "measured"), fact(t("accepted"), show(accepted), "measured"), fact(t("acceptance"), drafted ? percent(accepted / drafted) : "–", "derived"), fact(t("verify_steps"), show(sequence.specs.length), "measured")),
      table(t("panel.spec"), [t("step"), t("proposer"), t("draft"), t("bonus")], sequence.specs.slice(-300).map((one) => [one.step, one.proposer,
        h("span", { class: "lens" }, one.draft.map((id, k) => h("span", { class: k < one.accepted ? "cand ok" : "cand no" }, k < one.accepted ? "✓ " : "✗ ", h("bdi", {}, k < one.accepted ? trace.piece(id) : h("s", {}, trace.piece(id)))))), h("bdi", { class: "mono" }, trace.piece(one.bonus_id))]))];
  }
}

class MemoryPanel extends Panel {
  get needsNoSequence() { return true; }
  draw(trace, sequence, cursor) {
    const step = trace.stepAt(cursor.step);
    const past = step ? trace.mem.filter((one) => one.t_ns <= step.t1_ns) : [];
    const mem = past[past.length - 1] || trace.mem[trace.mem.length - 1];
    const model = trace.header && trace.header.model;
    const valueDim = model && valueDimOf(model, ((trace.header && trace.header.engine) || {}).kv_cache_dtype);
    const perHead = model && model.n_layers * model.n_kv_heads * (model.head_dim + valueDim);
    const perToken = model && (model.kv_bytes_per_token || 2 * perHead);
    const engine = (trace.header && trace.header.engine) || {};
    const reserved = mem ? mem.kv_reserved_bytes : 0;
    const formula = model ? [h("h3", {}, t("kv_formula"), badge("derived")), h("p", { class: "formula" }, `${model.n_layers} ${t("layers")} × ${model.n_kv_heads} ${t("kv_heads")} × (K ${model.head_dim} + V ${valueDim}) ${t("numbers")} × ${show(perToken / perHead, 6)} ${t("bytes_each")}${engine.kv_cache_dtype ? ` (${engine.kv_cache_dtype}${/^int/.test(engine.kv_cache_dtype) ? t("with_scale") : ""})` : ""} = `, h("b", {}, `${show(perToken)} B`), ` ${t("per_token")}`),
      reserved && perToken ? h("p", { class: "formula" }, `${bytes(reserved)} ${t("reserved")} ÷ ${show(perToken)} B = `, h("b", {}, show(Math.floor(reserved / perToken))), ` ${t("tokens_fit")}`, engine.max_model_len ? ` · ${t("longest_request", { n: show(engine.max_model_len) })}` : "") : null] : null;
    if (!mem) return [formula, note(t("no_mem"))];
    const rest = mem.rss_bytes - mem.weights_bytes - mem.kv_used_bytes - mem.activations_bytes;
    const parts = [["weights", mem.weights_bytes], ["kv_used", mem.kv_used_bytes], ["activations", mem.activations_bytes], ["rest", Math.max(0, rest)]];
    return [formula, h("h3", {}, t("process"), badge("measured")),
      stacked(parts.map(([name, size]) => `${t("mem." + name)} ${bytes(size)}`).join(", "), parts.map(([name, size]) => [t("mem." + name), size, bytes(size)])),
      table(t("panel.memory"), [t("colour"), t("name"), t("size"), t("source")], [
        ...parts.slice(0, 3).map(([name, size], k) => [h("span", { class: `key p${k}`, "aria-hidden": "true" }), t("mem." + name), { is: bytes(size), class: "n" }, badge("measured")]),
        [h("span", { class: "key p3", "aria-hidden": "true" }), t("mem.rest"), { is: bytes(rest), class: "n" }, badge("derived")],
        { attributes: { class: "sum" }, cells: ["", t("mem.rss"), { is: bytes(mem.rss_bytes), class: "n" }, badge("measured")] },
        ["", t("mem.kv_reserved"), { is: bytes(mem.kv_reserved_bytes), class: "n" }, badge("measured")]], { class: "narrow" }), note(t("mem_note"))];
  }
}

/** Numbers of a value in the cache, from what a token takes: of a latent vector (DeepSeek) the value has no rotated part. */
function valueDimOf(model, dtype) {
  const bits = { float32: 32, float16: 16, int16: 16, int8: 8, int4: 4 }[dtype];
  if (!bits || !model.kv_bytes_per_token) return model.head_dim;
  const each = bits / 8 + (dtype === "int4" ? 1 / 16 : 0), scale = dtype.startsWith("int") ? 4 : 0;
  const found = (model.kv_bytes_per_token / (model.n_layers * model.n_kv_heads) - 2 * scale) / each - model.head_dim;
  return Number.isInteger(found) && found > 0 ? found : model.head_dim;
}

/** An element's name → its class, its number, whether it is about the model. The order is that of the page. */
const PANELS = [["text", TextPanel], ["positions", PositionPanel], ["layers", LayerPanel], ["sampling", SamplingPanel], ["emission", EmissionPanel],
  ["timeline", TimelinePanel], ["batch", BatchPanel], ["kv", KvPanel], ["spec", SpecPanel], ["memory", MemoryPanel]];
for (const [name, kind] of PANELS) customElements.define(`pl-${name}`, kind);
