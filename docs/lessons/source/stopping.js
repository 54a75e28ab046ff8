"use strict";
const LESSON = {
  id: "stopping",
  title: ["Why it stopped", "为什么停下"],
  intro: ["An answer can end in many ways, and clients see only `stop` or `length`. The engine always knows which it was. Most runs here ask: {question}",
    "回答可以因多种原因结束，而客户端只看到 `stop` 或 `length`。引擎总是知道究竟是哪一种。这里的大多数运行都在问：{question}"],
  facts: (trace) => {
    const one = (name) => run(trace, name);
    const end = one("end");
    const text = (name) => textOf(one(name));
    const held = one("held").emits.find((emit) => emit.held_bytes);
    const release = one("held").emits[one("held").emits.indexOf(held) + 1];
    return {
      question: "What is the capital of France?", answer: text("end"), endPiece: trace.piece(end.finish.stop_id), endId: end.finish.stop_id, endP: percent(number(firstStage(end, end.samples.length - 1).chosen.p)), cutText: text("cut"), cutN: one("cut").finish.n_output, cutReason: one("cut").finish.reason,
      stringText: text("string"), stringReason: one("string").finish.reason, stringStop: one("string").finish.stop_str, stringTokens: one("string").finish.n_output, heldText: text("held"), heldBytes: held.held_bytes, released: visible(new TextDecoder().decode(fromBase64(release.bytes_b64))), heldStop: one("held").finish.stop_id,
      choiceText: text("choice"), choiceTokens: one("choice").finish.n_output, choiceRaw: percent(number(firstStage(one("choice")).chosen.p)), choiceBest: trace.piece(firstStage(one("choice")).top[0][0]), choiceBestP: percent(number(firstStage(one("choice")).top[0][2])), choiceStopId: one("choice").finish.stop_id, choiceReason: one("choice").finish.reason,
      windowPrompt: one("window").prompt.length, windowN: one("window").finish.n_output, windowReason: one("window").finish.reason, window: one("window").prompt.length + one("window").finish.n_output, leftN: one("left").finish.n_output, leftReason: one("left").finish.reason,
      maxLen: trace.header.engine.max_model_len,
    };
  },
  screens: [
    {
      title: ["The model ends it", "模型自己结束"],
      text: ["No limit was set. The answer was “{answer}” and then nothing more.", "没有设置任何限制。回答是“{answer}”，然后就没有了。"],
      ask: ["How does a model end an answer?", "模型怎样结束回答？"],
      choices: () => [["dot", ["with a full stop", "用句号"]], ["token", ["by drawing a token that means the end", "抽取一个表示结束的词元"]], ["low", ["when no word is probable enough", "没有词足够可能时"]]],
      answer: (facts) => (facts.endId === null ? "dot" : "token"),
      after: (trace) => tokenRow(generated(run(trace, "end")), inLanguage(["what was drawn", "抽取的词元"])),
      why: ["The end is a token like any other: `{endPiece}` (#{endId}) had {endP} after the full stop, and was drawn. It is not part of the text. With another draw the answer would have gone on; a model that never gives the end much probability rambles.",
        "结束也是一个词元：句号之后 `{endPiece}`（#{endId}）的概率是 {endP}，并被抽中。它不属于文本。换一次抽取，回答可能继续；若模型总不给结束词元较高概率，就会喋喋不休。"],
    },
    {
      title: ["The limit", "上限"],
      text: ["Now `max_tokens` is {cutN}. The text is “{cutText}”.", "现在 `max_tokens` 为 {cutN}。文本是“{cutText}”。"],
      ask: ["Did the model know that it had to be brief?", "模型知道自己必须简短吗？"],
      choices: () => [["yes", ["yes, so it chose short words", "知道，所以选了短词"]], ["no", ["no, it was cut off", "不知道，是被截断的"]]],
      answer: (facts) => (facts.answer.startsWith(facts.cutText) && facts.cutReason === "length" ? "no" : "yes"),
      after: (trace) => emissions(run(trace, "cut"), inLanguage(["What went out before the limit", "到上限为止送出的内容"])),
      why: ["Its tokens are those of the first run, to the last bit; the engine simply drew no fifth. The reason is `length`. To get a brief answer, ask for one; `max_tokens` is a guard against cost.",
        "它的词元与第一次运行逐位相同；引擎只是没有抽第五个。原因是 `length`。想要简短的回答，就在提示里要求；`max_tokens` 只是防止费用失控的护栏。"],
    },
    {
      title: ["A stop string", "停止字符串"],
      text: ["Now `stop` is `{stringStop}`, and there is no other limit.", "现在 `stop` 是 `{stringStop}`，没有其他限制。"],
      ask: ["What text does the client get?", "客户端得到什么文本？"],
      choices: (facts) => [["without", ["“{stringText}”", "“{stringText}”"]], ["with", ["“{stringText}{stringStop}”", "“{stringText}{stringStop}”"]], ["all", ["“{answer}”", "“{answer}”"]]],
      answer: (facts) => (facts.stringText.includes(facts.stringStop) ? "with" : "without"),
      after: (trace) => emissions(run(trace, "string"), inLanguage(["What went out before the stop string", "到停止字符串为止送出的内容"])),
      why: ["The stop string ends the answer and is not part of it. Its token was drawn (and counts as one of {stringTokens}), but never sent. Clients see the same `{stringReason}` as when the model ended by itself; the engine's trace names the string.",
        "停止字符串结束回答，但不属于回答。它的词元已经抽取（计入 {stringTokens} 个），但从未送出。客户端看到的 `{stringReason}` 与模型自己结束时相同；引擎的记录会写明是哪个字符串。"],
    },
    {
      title: ["It might have been", "差一点"],
      text: ["Now `stop` is `Paris,·` with a comma and a space. The model draws `·Paris`: so far it could still become the stop string.", "现在 `stop` 是 `Paris,·`，带逗号和空格。模型抽到 `·Paris`：到此为止它仍可能变成停止字符串。"],
      ask: ["What goes out at that moment?", "此刻送出什么？"],
      choices: () => [["all", ["`·Paris`", "`·Paris`"]], ["space", ["the space alone", "只有空格"]], ["none", ["nothing", "什么都没有"]]],
      answer: (facts) => (facts.heldBytes === 5 ? "space" : facts.heldBytes > 5 ? "none" : "all"),
      after: (trace) => emissions(run(trace, "held"), inLanguage(["What went out, and what was held back", "送出的与暂留的内容"])),
      why: ["The space cannot belong to the stop string and goes; the {heldBytes} bytes of `Paris` are held back. Then a full stop comes instead of a comma, and `{released}` goes out together. An engine that sends first has to take text back, or shows half a stop string.",
        "空格不可能属于停止字符串，先送出；`Paris` 的 {heldBytes} 个字节被暂留。接着来的是句号而不是逗号，于是 `{released}` 一起送出。先送后查的引擎要么得收回文本，要么会露出半个停止字符串。"],
    },
    {
      title: ["The form is complete", "形式已经完整"],
      text: ["Asked “Is Paris in France?”, the answer must be one of `yes` and `no` (a structured output). The model would rather have said `{choiceBest}` ({choiceBestP}). It said `{choiceText}`.",
        "问“Is Paris in France?”，回答必须是 `yes` 或 `no`（结构化输出）。模型更想说 `{choiceBest}`（{choiceBestP}），但它说了 `{choiceText}`。"],
      ask: ["What ended this answer?", "是什么结束了这个回答？"],
      choices: () => [["token", ["the end token, drawn next", "随后抽到的结束词元"]], ["form", ["the form was complete", "形式已经完整"]], ["limit", ["a limit of one token", "一个词元的上限"]]],
      answer: (facts) => (facts.choiceReason === "stop" && facts.choiceStopId === null ? "form" : facts.choiceReason === "length" ? "limit" : "token"),
      after: (trace) => h("div", { class: "pair" }, stageShares(trace, run(trace, "choice"), firstStage(run(trace, "choice")), inLanguage(["The model", "模型"]), 5), stageShares(trace, run(trace, "choice"), lastStage(run(trace, "choice")), inLanguage(["What the form allows", "形式允许的"]), 5)),
      why: ["Tokens that cannot lead to `yes` or `no` were struck out before the draw: from {choiceRaw}, `{choiceText}` rose to the top. After it nothing more is allowed, so the engine stops at once, {choiceTokens} token in all, instead of paying for an end token.",
        "凡是不可能通向 `yes` 或 `no` 的词元，在抽取前就被划掉：`{choiceText}` 从 {choiceRaw} 升到第一。之后不再允许任何内容，引擎立即停止，总共 {choiceTokens} 个词元，不必再为结束词元付费。"],
    },
    {
      title: ["The end of the page", "写满了"],
      text: ["This engine serves {maxLen} tokens in all, prompt and answer together. A prompt of {windowPrompt} tokens counts “One, two, three, four,” and the end token is forbidden.", "这个引擎总共只服务 {maxLen} 个词元，包括提示词和回答。{windowPrompt} 个词元的提示词“One, two, three, four,”，并且禁止结束词元。"],
      ask: ["What happens?", "会发生什么？"],
      choices: () => [["slide", ["the oldest tokens fall out, it goes on", "最旧的词元被丢掉，继续写"]], ["length", ["it stops, with `length`", "停下，原因是 `length`"]], ["error", ["it ends with an error", "以错误结束"]]],
      answer: (facts) => (facts.windowReason === "length" ? "length" : facts.windowReason === "error" ? "error" : "slide"),
      after: (trace) => h("p", { class: "answer" }, h("bdi", {}, textOf(run(trace, "window")))),
      why: ["{windowPrompt} + {windowN} = {window}: no room is left, and nothing is dropped without a word. A client that reads `length` here and in the second screen cannot tell one from the other; the trace can.",
        "{windowPrompt} + {windowN} = {window}：没有空间了，也不会悄悄丢掉任何东西。客户端在这里和第二屏看到的都是 `length`，分不清；记录可以。"],
    },
    {
      title: ["The client leaves", "客户端离开"],
      text: ["The same counting, but the client closes the connection after a few tokens.", "还是数数，但客户端在几个词元后断开了连接。"],
      ask: ["What does the engine do?", "引擎会做什么？"],
      choices: () => [["end", ["it writes to the end, for the log", "写到结束，留作日志"]], ["stop", ["it stops and frees the memory", "停下并释放内存"]], ["wait", ["it waits for the client to return", "等客户端回来"]]],
      answer: (facts) => (facts.leftReason === "abort" ? "stop" : "end"),
      after: (trace) => tokenRow(generated(run(trace, "left")), inLanguage(["what had been drawn", "已抽取的词元"])),
      why: ["After {leftN} tokens the request was ended as `{leftReason}`; its blocks of the KV cache were free before the next step. Others get that time at once.",
        "{leftN} 个词元之后请求以 `{leftReason}` 结束；在下一步之前，它的 KV 块已经释放，时间立即让给别人。"],
    },
  ],
  keep: [["The end is a token that is drawn like any other.", "结束是一个像其他词元一样被抽取的词元。"], ["`max_tokens` cuts; it does not make brief.", "`max_tokens` 只会截断，不会让回答变简短。"], ["Text that may become a stop string is held back, nothing else is.", "可能变成停止字符串的文本会被暂留，其他都不会。"], ["Every end has a reason, and the trace has it in full.", "每次结束都有原因，记录里写得清清楚楚。"]],
  commands: ["pellucid explain \"What is the capital of France?\" --chat --temperature 0", "pellucid explain \"What is the capital of France?\" --chat --temperature 0 --stop Paris"],
};
