"use strict";
const LESSON = {
  id: "stopping",
  title: ["Why it stopped", "为什么停下"],
  intro: ["An answer can end in many ways, but a client is told little more than `stop` or `length`. The engine knows which it was. Most runs here ask: “{question}”",
    "回答可以因多种原因结束，而客户端大多只被告知 `stop` 或 `length`。引擎知道究竟是哪一种。这里多数运行问的是：“{question}”"],
  facts: (trace) => {
    const one = (name) => run(trace, name);
    const end = one("end");
    const text = (name) => one(name).text;
    const held = one("held").emits.find((emit) => emit.held_bytes);
    const release = one("held").emits[one("held").emits.indexOf(held) + 1];
    return {
      question: "What is the capital of France?", answer: text("end"), endPiece: trace.piece(end.finish.stop_id), endId: end.finish.stop_id, endP: percent(number(firstStage(end, end.samples.length - 1).chosen.p)), cutText: text("cut"), cutN: one("cut").finish.n_output, cutReason: one("cut").finish.reason,
      stringText: text("string"), stringShown: visible(text("string")), stringLast: trace.piece(one("string").samples.at(-1).id), answerShown: visible(text("end")), stringReason: one("string").finish.reason, stringStop: one("string").finish.stop_str, stringTokens: one("string").finish.n_output, heldBytes: held.held_bytes, released: visible(new TextDecoder().decode(fromBase64(release.bytes_b64))),
      choiceText: text("choice"), choiceRaw: percent(number(firstStage(one("choice")).chosen.p)), choiceBest: trace.piece(firstStage(one("choice")).top[0][0]), choiceBestP: percent(number(firstStage(one("choice")).top[0][2])), choiceStopId: one("choice").finish.stop_id, choiceReason: one("choice").finish.reason,
      windowPrompt: one("window").prompt.length, windowN: one("window").finish.n_output, windowReason: one("window").finish.reason, window: one("window").prompt.length + one("window").finish.n_output, leftN: one("left").finish.n_output, leftReason: one("left").finish.reason,
      maxLen: trace.header.engine.max_model_len,
    };
  },
  screens: [
    {
      title: ["The model ends it", "模型自己结束"],
      text: ["No limit was set. The answer was “{answer}”, and then nothing more came.", "没有设置任何限制。回答是“{answer}”，之后就什么也没有了。"],
      ask: ["How does a model end an answer?", "模型怎样结束回答？"],
      choices: () => [["dot", ["with a full stop at the end of a sentence", "用句末的句号"]], ["low", ["it does not: the engine stops when no word is probable enough", "它不结束：没有哪个词足够可能时，引擎就停下"]], ["token", ["with a token that means the end", "用一个表示结束的词元"]]],
      answer: (facts) => (facts.endId === null ? "dot" : "token"),
      after: (trace) => tokenRow(generated(run(trace, "end")), inLanguage(["What was chosen", "选出的词元"])),
      why: ["The end is a token like any other: `{endPiece}` (#{endId}) had {endP} after the full stop and was chosen. It is not part of the text. These runs always take the most probable token; with random draws the answer would sometimes go on. A model that seldom makes the end probable rambles.",
        "结束也是一个词元：句号之后，`{endPiece}`（#{endId}）的概率是 {endP}，于是被选中。它不属于文本。这些运行总取最可能的词元；如果随机抽取，回答有时会继续下去。很少给结束词元高概率的模型，就会没完没了。"],
    },
    {
      title: ["The limit", "上限"],
      text: ["The same question, with `max_tokens` = {cutN}.", "同一个问题，但 `max_tokens` = {cutN}。"],
      ask: ["What comes out?", "会得到什么？"],
      choices: (facts) => [["brief", ["a brief answer: “Paris.”", "一个简短的回答：“Paris.”"]], ["cut", ["the first answer, cut off: “{cutText}”", "第一个回答的开头，被截断：“{cutText}”"]], ["whole", ["the sentence to its end: {cutN} is where it may stop", "整句话：{cutN} 个之后才可以停"]]],
      answer: (facts) => (facts.cutText === facts.answer ? "whole" : facts.answer.startsWith(facts.cutText) && facts.cutReason === "length" ? "cut" : "brief"),
      after: (trace) => emissions(run(trace, "cut"), inLanguage(["What went out before the limit", "到上限为止送出的内容"])),
      why: ["The model never learns of the limit: it chose the same tokens as before, and the engine stopped after {cutN}. The client is told `{cutReason}`. To get a brief answer, ask for one in the prompt; `max_tokens` only guards against cost.",
        "模型根本不知道有上限：它选的词元和之前一样，只是引擎在 {cutN} 个之后停了。客户端被告知 `{cutReason}`。想要简短的回答，要在提示词里提出；`max_tokens` 只用来防止费用失控。"],
    },
    {
      title: ["A stop string", "停止字符串"],
      text: ["Again without a limit, but with a stop string, a text at which the answer is to end: `stop` = `{stringStop}`.", "还是没有上限，但设了停止字符串，即遇到这段文本就结束：`stop` = `{stringStop}`。"],
      ask: ["What text does the client get?", "客户端得到什么文本？"],
      choices: (facts) => [["without", ["`{stringShown}`", "`{stringShown}`"]], ["with", ["`{stringShown}{stringStop}`", "`{stringShown}{stringStop}`"]], ["all", ["`{answerShown}`: the sentence is finished first", "`{answerShown}`：先把句子写完"]]],
      answer: (facts) => (facts.stringText.includes(facts.stringStop) ? "with" : "without"),
      after: (trace) => emissions(run(trace, "string"), inLanguage(["What went out before the stop string", "到停止字符串为止送出的内容"])),
      why: ["The stop string ends the answer and is not part of it. The model wrote the token `{stringLast}`, one of {stringTokens} that are counted, but only its space was sent. The client is told `{stringReason}`, as when the model ends by itself; the engine's trace names the string.",
        "停止字符串使回答结束，但不属于回答。模型写出了词元 `{stringLast}`，它计入 {stringTokens} 个词元，但只送出了其中的空格。客户端被告知 `{stringReason}`，与模型自己结束时相同；引擎的记录则写明了是哪个字符串。"],
    },
    {
      title: ["Almost", "差一点"],
      text: ["Now `stop` is `Paris,·`, with a comma and a space (the dot). The model has just written the token `{stringLast}`.", "现在 `stop` 是 `Paris,·`，带逗号和空格（圆点）。模型刚写出词元 `{stringLast}`。"],
      ask: ["What of it is sent at that moment?", "此刻送出其中的什么？"],
      choices: () => [["all", ["all of it: it is not the stop string", "全部：它不是停止字符串"]], ["none", ["nothing: a token is sent whole", "什么都没有：词元要整个送出"]], ["space", ["the space: it cannot begin the stop string", "只有空格：它不属于停止字符串"]]],
      answer: (facts) => (facts.heldBytes === 5 ? "space" : facts.heldBytes > 5 ? "none" : "all"),
      after: (trace) => emissions(run(trace, "held"), inLanguage(["What went out, and what was held back", "送出的与暂留的内容"])),
      why: ["The space cannot belong to the stop string and is sent. The {heldBytes} bytes of `Paris` are held back: a comma and a space may follow. A full stop comes instead, so `{released}` is sent together. An engine that sends first shows half a stop string, or must take text back.",
        "空格不可能属于停止字符串，所以送出。`Paris` 的 {heldBytes} 个字节被暂留，因为后面可能是逗号和空格。结果来的是句号，于是 `{released}` 一起送出。先送后查的引擎要么露出半个停止字符串，要么就得收回文本。"],
    },
    {
      title: ["Yes or no", "只许 yes 或 no"],
      text: ["Asked “Is Paris in France? Answer yes or no.”, the answer must be exactly `yes` or `no` (a structured output). It was `{choiceText}`.",
        "问的是“Is Paris in France? Answer yes or no.”，并规定回答只能是 `yes` 或 `no`（结构化输出）。回答是 `{choiceText}`。"],
      ask: ["What ended this answer?", "是什么结束了这个回答？"],
      choices: () => [["form", ["nothing more was allowed", "之后不许再有任何内容"]], ["token", ["the end token, which the model chose next", "模型随后选出的结束词元"]], ["limit", ["a limit of one token", "一个词元的上限"]]],
      answer: (facts) => (facts.choiceReason === "stop" && facts.choiceStopId === null ? "form" : facts.choiceReason === "length" ? "limit" : "token"),
      after: (trace) => h("div", { class: "pair" }, stageShares(trace, run(trace, "choice"), firstStage(run(trace, "choice")), inLanguage(["What the model wanted", "模型想说的"]), 5), stageShares(trace, run(trace, "choice"), lastStage(run(trace, "choice")), inLanguage(["What is allowed", "允许的"]), 5)),
      why: ["After `{choiceText}` the answer is complete, so the engine stops at once and saves the end token. Before that it struck out every token that cannot lead to `yes` or `no`: from {choiceRaw}, `{choiceText}` rose to the top. The model's own first choice was `{choiceBest}` ({choiceBestP}). Such a rule can turn an answer round, so allow the words in the form that the model would write.",
        "写出 `{choiceText}` 之后回答就完整了，引擎立即停止，省下了结束词元。在此之前，凡是不能通向 `yes` 或 `no` 的词元都被划掉，于是 `{choiceText}` 从 {choiceRaw} 升到第一。模型自己的首选是 `{choiceBest}`（{choiceBestP}）。可见这种限制可能把回答颠倒过来，所以要允许模型习惯的写法。"],
    },
    {
      title: ["The end of the page", "写满了"],
      text: ["This engine was started with a context of {maxLen} tokens, prompt and answer together. The prompt is “One, two, three, four,”, {windowPrompt} tokens. There is no `max_tokens`, and the engine is told not to stop at the end token (`ignore_eos`).", "这个引擎启动时设定的上下文是 {maxLen} 个词元，提示词和回答合计。提示词是“One, two, three, four,”，{windowPrompt} 个词元。没有设 `max_tokens`，还要求引擎遇到结束词元也不停（`ignore_eos`）。"],
      ask: ["What happens when the context is full?", "上下文写满时会怎样？"],
      choices: () => [["slide", ["the oldest tokens are dropped, and it goes on", "丢掉最旧的词元，继续写"]], ["length", ["it stops; the client is told `length`", "停下；客户端被告知 `length`"]], ["error", ["the request fails with an error", "请求以错误告终"]]],
      answer: (facts) => (facts.windowReason === "length" ? "length" : facts.windowReason === "error" ? "error" : "slide"),
      after: (trace) => h("p", { class: "answer" }, h("bdi", {}, run(trace, "window").text)),
      why: ["{windowPrompt} + {windowN} = {window}: no room is left, and this engine drops nothing without a word. The client reads `length`, as with `max_tokens` above; only the numbers of tokens tell which limit it was.",
        "{windowPrompt} + {windowN} = {window}：没有空间了，而这个引擎不会悄悄丢掉任何内容。客户端看到的是 `length`，与上面的 `max_tokens` 一样；究竟是哪个上限，只能从词元数看出来。"],
    },
    {
      title: ["The client leaves", "客户端离开"],
      text: ["The same prompt, but after a few tokens the client is gone.", "同样的提示词，但几个词元之后客户端断开了。"],
      ask: ["What does the engine do?", "引擎会做什么？"],
      choices: () => [["end", ["it writes on to the end: the request was accepted", "写到结束：请求已经接受了"]], ["wait", ["it pauses until the client comes back", "暂停，等客户端回来"]], ["stop", ["it stops and frees the memory", "停下并释放内存"]]],
      answer: (facts) => (facts.leftReason === "abort" ? "stop" : "end"),
      after: (trace) => tokenRow(generated(run(trace, "left")), inLanguage(["What had been chosen", "已选出的词元"])),
      why: ["After {leftN} tokens the request ended as `{leftReason}`, and its blocks of the KV cache were free before another step. Nobody is there to read more, so the time goes to other requests.",
        "{leftN} 个词元之后，请求以 `{leftReason}` 结束，不用再走一步，它的 KV 缓存块就已释放。没有人再读下去，时间就让给其他请求。"],
    },
  ],
  keep: [["The end is a token that is chosen like any other.", "结束也是一个词元，和其他词元一样被选出。"], ["`max_tokens` cuts an answer off; it does not make it brief.", "`max_tokens` 只会截断回答，不会让它变简短。"], ["Text that may still become a stop string is held back, and no more than that.", "可能成为停止字符串的文本会被暂留，但不会多留。"], ["There are seven reasons here and two words for the client; the trace tells more.", "原因有七种，告诉客户端的只有两个词；记录里有更多。"]],
  commands: ["pellucid explain \"What is the capital of France?\" --chat --temperature 0", "pellucid explain \"What is the capital of France?\" --chat --temperature 0 --stop Paris"],
};
