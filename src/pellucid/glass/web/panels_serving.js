"use strict";
/* Panels 6–10: what serving did. */

const PARTS = ["tokenize", "queue", "prefill_own", "batch_others", "sample", "emit", "tracing"];

class TimelinePanel extends Panel {
  draw(trace, sequence, cursor) {
    return [this.ttft(sequence), this.lanes(trace, cursor)];
  }

  ttft(sequence) {
    const finish = sequence.finish;
    if (!finish || !finish.ttft_parts || !finish.ttft_ns) return finish && finish.ttft_ns ? facts(fact("TTFT", ms(finish.ttft_ns), "measured")) : note(t("no_ttft"));
    const parts = Object.entries(finish.ttft_parts).sort((a, b) => (PARTS.indexOf(a[0]) + 99) % 99 - (PARTS.indexOf(b[0]) + 99) % 99);
    const total = finish.ttft_ns;
    let at = 0;
    const sum = parts.reduce((all, [, ns]) => all + ns, 0);
    const largest = parts.reduce((best, one) => (one[1] > best[1] ? one : best), parts[0]);
    return [h("h3", {}, t("ttft_of"), " ", h("b", {}, ms(total)), badge("measured")),
      h("p", {}, t("ttft_largest", { part: t("part." + largest[0]), share: percent(largest[1] / total) })),
      s("svg", { viewBox: "0 0 1000 58", class: "wide", role: "img", "aria-label": `${t("ttft_of")} ${ms(total)}: ` + parts.map(([name, ns]) => `${t("part." + name)} ${ms(ns)}`).join(", ") },
        parts.map(([name, ns], k) => {
          const [x, w] = [(1000 * at) / total, (1000 * Math.max(0, ns)) / total];
          at += ns;
          return s("g", {}, s("title", {}, `${t("part." + name)} ${ms(ns)}`), s("rect", { x, y: 4, width: Math.max(0, w - 1), height: 34, class: `part p${k % 8}` }),
            w > 70 ? s("text", { x: x + w / 2, y: 26, "text-anchor": "middle", class: "partlabel" }, t("part." + name)) : null);
        }), s("text", { x: 0, y: 54, class: "tick" }, "0"), s("text", { x: 1000, y: 54, class: "tick", "text-anchor": "end" }, ms(total))),
      table(t("ttft_table"), [t("colour"), t("part"), t("time"), t("share")], [...parts.map(([name, ns], k) => [h("span", { class: `key p${k % 8}`, "aria-hidden": "true" }), h("span", { "data-part": name }, t("part." + name)), { is: ms(ns), class: "n" }, { is: percent(ns / total), class: "n" }]),
        { attributes: { class: "sum" }, cells: ["", t("sum"), { is: ms(sum), class: "n" }, { is: sum === total ? "= TTFT" : `≠ TTFT (${ms(total - sum)})`, class: "n" }] }], { class: "narrow ttft" })];
  }

  lanes(trace, cursor) {
    if (!trace.steps.length) return note(t("no_steps"));
    const keys = trace.keys;
    const arrivals = [...trace.sequences.values()].map((one) => one.request && one.request.arrive_ns).filter((x) => x !== undefined && x !== null);
    const shown = trace.steps.slice(-2000);
    const t0 = Math.min(...arrivals, shown[0].t0_ns), t1 = Math.max(shown[shown.length - 1].t1_ns, t0 + 1);
    const W = 1000, LANE = 34, LEFT = 34;
    const x = (ns) => LEFT + ((ns - t0) / (t1 - t0)) * (W - LEFT);
    const rows = [];
    const rects = [];
    for (const step of shown) {
      for (const seq of step.seqs) {
        const lane = keys.indexOf(sequenceKey(seq));
        if (lane < 0) continue;
        const work = trace.work(step, seq);
        const w = Math.max(1, x(step.t1_ns) - x(step.t0_ns) - 0.6);
        rects.push(s("g", { class: "hit", "data-step": step.step }, s("title", {}, `${t("step")} ${step.step} · ${t("work." + work)} · ${seq.n_tok} ${t("tokens")} · ${ms(step.t1_ns - step.t0_ns)}`),
          s("rect", { x: x(step.t0_ns), y: 4 + lane * LANE + (work === "decode" ? 6 : 0), width: w, height: work === "decode" ? 14 : 26, class: `work ${work}${step.step === cursor.step ? " now" : ""}` }),
          w > 16 ? s("text", { x: x(step.t0_ns) + w / 2, y: 21 + lane * LANE, "text-anchor": "middle", class: "worklabel" }, work === "prefill" ? `P${w > 40 ? " " + seq.n_tok : ""}` : work === "verify" ? "V" : "D") : null));
        rows.push([step.step, sequenceKey(seq), t("work." + work), seq.tok0, seq.n_tok, { is: ms(step.t0_ns - t0), class: "n" }, { is: ms(step.t1_ns - step.t0_ns), class: "n" }]);
      }
      for (const one of step.waiting) {
        const lane = keys.findIndex((key) => key.split("#")[0] === one.req);
        if (lane < 0) continue;
        rects.push(s("g", {}, s("title", {}, `${t("waits")}: ${one.reason}`), s("line", { x1: x(step.t0_ns), x2: x(step.t1_ns), y1: 17 + lane * LANE, y2: 17 + lane * LANE, class: "waiting" })));
        rows.push([step.step, one.req, `${t("waits")}: ${one.reason}`, "", "", { is: ms(step.t0_ns - t0), class: "n" }, { is: ms(step.t1_ns - step.t0_ns), class: "n" }]);
      }
    }
    const marks = keys.map((key, lane) => {
      const one = trace.sequences.get(key);
      return s("g", {}, s("text", { x: 6, y: 22 + lane * LANE, class: "lane" }, trace.letter(key)), s("title", {}, key),
        one.request ? s("path", { d: `M${x(one.request.arrive_ns)} ${2 + lane * LANE} v30`, class: "arrive" }) : null);
    });
    const now = trace.steps.find((step) => step.step === cursor.step);
    const svg = s("svg", { viewBox: `0 0 ${W} ${keys.length * LANE + 26}`, class: "wide lanes", role: "img", "aria-label": t("timeline_label", { requests: keys.length, steps: trace.steps.length }) }, marks, rects,
      s("text", { x: LEFT, y: keys.length * LANE + 20, class: "tick" }, "0"), s("text", { x: W, y: keys.length * LANE + 20, "text-anchor": "end", class: "tick" }, ms(t1 - t0)));
    svg.addEventListener("click", (event) => { const hit = event.target.closest("[data-step]"); if (hit) this.page.move({ step: Number(hit.dataset.step) }); });
    return [h("h3", {}, t("lanes"), badge("measured")),
      h("p", { class: "legend" }, h("span", { class: "key work prefill" }), t("work.prefill") + " (P)", h("span", { class: "key work decode" }), t("work.decode") + " (D)", h("span", { class: "key work verify" }), t("work.verify") + " (V)", h("span", { class: "key wait" }), t("waits")),
      svg, h("p", { class: "legend" }, keys.map((key) => h("span", {}, h("b", {}, trace.letter(key)), ` ${key}`))),
      now ? facts(fact(t("step"), show(now.step)), ...Object.entries(now.ns).map(([name, ns]) => fact(TEXTS["phase." + name] ? t("phase." + name) : name, ms(ns), "measured"))) : null,
      trace.steps.length > shown.length ? note(t("steps_window", { n: shown.length, hidden: trace.steps.length - shown.length }), "warn") : null,
      behind(t("lanes"), [t("step"), t("request"), t("work"), t("first_position"), t("tokens"), t("begin"), t("took")], rows)];
  }
}

class BatchPanel extends Panel {
  draw(trace, sequence, cursor) {
    if (!trace.steps.length) return note(t("no_steps"));
    const STEPS = 200;
    const at = Math.max(0, trace.steps.findIndex((step) => step.step === cursor.step));
    const first = Math.max(0, Math.min(at - STEPS / 2, trace.steps.length - STEPS));
    const shown = trace.steps.slice(first, first + STEPS);
    const total = (step) => step.seqs.reduce((sum, one) => sum + one.n_tok, 0);
    const most = Math.max(...shown.map(total), 1);
    const W = 1000, H = 150, wide = Math.min(60, W / shown.length);
    const bars = shown.map((step, k) => {
      let y = H;
      return s("g", { class: "hit", "data-step": step.step }, s("title", {}, `${t("step")} ${step.step}: ${step.seqs.map((one) => `${trace.letter(sequenceKey(one))} ${one.n_tok}`).join(", ")} / ${step.token_budget}`),
        s("rect", { x: k * wide, y: 0, width: wide, height: H, class: step.step === cursor.step ? "col now" : "col" }),
        step.seqs.map((one) => {
          const tall = (one.n_tok / most) * (H - 12);
          y -= tall;
          return [s("rect", { x: k * wide + 1, y, width: Math.max(1, wide - 2), height: Math.max(1, tall - 1), fill: trace.hue(sequenceKey(one)) }),
            tall > 14 && wide > 12 ? s("text", { x: k * wide + wide / 2, y: y + tall / 2 + 4, "text-anchor": "middle", class: "onbar" }, trace.letter(sequenceKey(one))) : null];
        }));
    });
    const svg = s("svg", { viewBox: `0 0 ${W} ${H + 20}`, class: "wide", role: "img", "aria-label": t("batch_label", { n: shown.length }) }, bars,
      s("text", { x: 0, y: H + 16, class: "tick" }, `${t("step")} ${shown[0].step}`), s("text", { x: Math.max(160, shown.length * wide), y: H + 16, class: "tick", "text-anchor": "end" }, String(shown[shown.length - 1].step)), s("text", { x: 4, y: 12, class: "tick" }, `${most} ${t("tokens")}`));
    svg.addEventListener("click", (event) => { const hit = event.target.closest("[data-step]"); if (hit) this.page.move({ step: Number(hit.dataset.step) }); });
    const now = trace.steps[at];
    return [facts(fact(t("step"), show(now.step)), fact(t("tokens"), `${show(total(now))} / ${show(now.token_budget)}`, "measured"), fact(t("budget_used"), percent(total(now) / now.token_budget), "derived"), fact(t("sequences"), show(now.seqs.length), "measured"), fact(t("waits"), show(now.waiting.length), "measured")),
      svg, shown.length < trace.steps.length ? note(t("steps_window", { n: shown.length, hidden: trace.steps.length - shown.length }), "warn") : null,
      behind(t("panel.batch"), [t("step"), t("tokens"), t("budget"), t("request")], shown.map((step) => [step.step, total(step), step.token_budget, step.seqs.map((one) => `${sequenceKey(one)}: ${one.n_tok}`).join(", ")]))];
  }
}

class KvPanel extends Panel {
  draw(trace, sequence, cursor) {
    if (!trace.kv.length) return note(t("no_kv"));
    const step = trace.steps.find((one) => one.step === cursor.step);
    const until = step ? step.t1_ns : Infinity;
    const blocks = new Map();
    const gone = [];
    const nodes = new Map();
    for (const one of trace.kv) {
      if (one.hash && !nodes.has(one.hash)) nodes.set(one.hash, { hash: one.hash, parent: one.parent, block: one.block, users: new Set(), tok0: one.tok0, isGone: false });
      if (one.hash && one.req) nodes.get(one.hash).users.add(one.req);
      if (one.t_ns > until) continue;
      if (one.op === "evict" || one.op === "preempt") { gone.push(one); if (one.hash && nodes.has(one.hash)) nodes.get(one.hash).isGone = true; }
      const known = blocks.get(one.block) || { owners: new Set() };
      if (["free", "evict", "preempt"].includes(one.op)) {
        if (one.req) known.owners.delete(one.req);
        if (!one.ref || one.op === "evict") known.owners.clear();
      } else if (one.req) known.owners.add(one.req);
      blocks.set(one.block, { ...known, ref: one.ref, op: one.op, tok0: one.tok0, n: one.n });
    }
    const all = [...blocks].sort((a, b) => a[0] - b[0]);
    const cells = all.slice(0, 1024).map(([block, one]) => {
      const owners = [...one.owners];
      const label = owners.map((key) => trace.letter(key)).join("") || (one.op === "evict" ? "✕" : "·");
      return h("span", { class: `block${owners.length > 1 ? " shared" : ""}${owners.length ? "" : " empty"}`, style: owners.length ? { "--owner": trace.hue(owners[0]) } : {}, title: `${t("block")} ${block}: ${owners.join(", ") || t("free")} · ref ${one.ref} · ${one.op}` }, label.slice(0, 3));
    });
    const counts = {};
    for (const one of trace.kv) counts[one.op] = (counts[one.op] || 0) + 1;
    return [facts(...Object.entries(counts).map(([op, n]) => fact(TEXTS["kv." + op] ? t("kv." + op) : op, show(n), "measured"))),
      h("h3", {}, t("blocks_at", { step: step ? step.step : "–" }), badge("derived")),
      h("div", { class: "blocks", role: "img", "aria-label": t("blocks_label", { n: all.length, shared: all.filter(([, one]) => one.owners.size > 1).length }) }, cells),
      h("p", { class: "legend" }, t("blocks_legend")),
      behind(t("panel.kv"), [t("block"), t("owner"), "ref", t("last_op"), t("first_position")], all.map(([block, one]) => [block, [...one.owners].join(", ") || t("free"), one.ref, TEXTS["kv." + one.op] ? t("kv." + one.op) : one.op, one.tok0 ?? ""])),
      nodes.size ? [h("h3", {}, t("prefix_tree"), badge("derived")), this.tree(trace, nodes)] : null,
      gone.length ? [h("h3", {}, t("evictions")), table(t("evictions"), [t("block"), t("last_op"), t("request")], gone.slice(-50).map((one) => [one.block, t("kv." + one.op), one.req || "–"]))] : null];
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
      const users = [...node.users];
      return h("li", {}, h("span", { class: "node" }, h("b", {}, users.map((key) => trace.letter(key)).join("+") || "–"), " ", t("chain", { n: chain.length, from: node.tok0 ?? "?" }), " ", h("bdi", { class: "mono" }, this.words(trace, users, node)), tail.isGone ? ` ✕ ${t("kv.evict")}` : ""),
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
    const step = trace.steps.find((one) => one.step === cursor.step);
    const past = step ? trace.mem.filter((one) => one.t_ns <= step.t1_ns) : [];
    const mem = past[past.length - 1] || trace.mem[trace.mem.length - 1];
    const model = trace.header && trace.header.model;
    const perToken = model && (model.kv_bytes_per_token || 2 * model.n_layers * model.n_kv_heads * model.head_dim * 2);
    const formula = model ? [h("h3", {}, t("kv_formula"), badge("derived")), h("p", { class: "formula" }, `2 (K, V) × ${model.n_layers} ${t("layers")} × ${model.n_kv_heads} ${t("kv_heads")} × ${model.head_dim} ${t("numbers")} × ${show(perToken / (2 * model.n_layers * model.n_kv_heads * model.head_dim))} ${t("bytes_each")} = `, h("b", {}, `${show(perToken)} B`), ` ${t("per_token")}`)] : null;
    if (!mem) return [formula, note(t("no_mem"))];
    const rest = mem.rss_bytes - mem.weights_bytes - mem.kv_used_bytes - mem.activations_bytes;
    const parts = [["weights", mem.weights_bytes], ["kv_used", mem.kv_used_bytes], ["activations", mem.activations_bytes], ["rest", Math.max(0, rest)]];
    const total = parts.reduce((sum, one) => sum + one[1], 0);
    let at = 0;
    return [formula, h("h3", {}, t("process"), badge("measured")),
      s("svg", { viewBox: "0 0 1000 44", class: "wide", role: "img", "aria-label": parts.map(([name, size]) => `${t("mem." + name)} ${bytes(size)}`).join(", ") }, parts.map(([name, size], k) => {
        const [x, w] = [(1000 * at) / total, (1000 * size) / total];
        at += size;
        return s("g", {}, s("title", {}, `${t("mem." + name)} ${bytes(size)}`), s("rect", { x, y: 4, width: Math.max(0, w - 1), height: 34, class: `part p${k}` }), w > 90 ? s("text", { x: x + w / 2, y: 26, "text-anchor": "middle", class: "partlabel" }, t("mem." + name)) : null);
      })),
      table(t("panel.memory"), [t("colour"), t("name"), t("size"), t("source")], [
        ...parts.slice(0, 3).map(([name, size], k) => [h("span", { class: `key p${k}`, "aria-hidden": "true" }), t("mem." + name), { is: bytes(size), class: "n" }, badge("measured")]),
        [h("span", { class: "key p3", "aria-hidden": "true" }), t("mem.rest"), { is: bytes(rest), class: "n" }, badge("derived")],
        { attributes: { class: "sum" }, cells: ["", t("mem.rss"), { is: bytes(mem.rss_bytes), class: "n" }, badge("measured")] },
        ["", t("mem.kv_reserved"), { is: bytes(mem.kv_reserved_bytes), class: "n" }, badge("measured")]], { class: "narrow" }), note(t("mem_note"))];
  }
}

/** An element's name → its class, its number, whether it is about the model. The order is that of the page. */
const PANELS = [["text", TextPanel], ["positions", PositionPanel], ["layers", LayerPanel], ["sampling", SamplingPanel], ["emission", EmissionPanel],
  ["timeline", TimelinePanel], ["batch", BatchPanel], ["kv", KvPanel], ["spec", SpecPanel], ["memory", MemoryPanel]];
for (const [name, kind] of PANELS) customElements.define(`pl-${name}`, kind);
