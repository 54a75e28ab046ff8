"use strict";
/* The report: everything it shows is in the file. */

async function openReport() {
  const page = document.querySelector("pl-page");
  page.before = () => reportHead(page);
  page.build();
  page.status.textContent = t("loading");
  try {
    await unpack(document.getElementById("trace").textContent, (event) => page.trace.add(event));
  } catch (error) {
    page.status.textContent = t("load_failed", { why: String(error) });
    return;
  }
  page.trace.sort();
  page.trace.isReport = true;
  page.build();
  document.body.dataset.ready = "true";
}

/** What a reader must know first: findings, and what is not there. */
function reportHead(page) {
  const { trace } = page;
  const items = [];
  if (trace.header && trace.header.redacted) items.push(note(t("redacted"), "warn"));
  if (trace.cut) for (const [what, n] of Object.entries(trace.cut.dropped)) items.push(note(t("cut." + what, { n, kept: trace.cut.kept[what] ?? "" }), "warn"));
  if (!trace.end) items.push(note(t("no_end"), "warn"));
  if (trace.end && trace.end.dropped) items.push(note(t("dropped", { n: trace.end.dropped }), "warn"));
  items.push(findingsList(page));
  return h("div", { class: "notes" }, items);
}
openReport();
