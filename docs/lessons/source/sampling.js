"use strict";
const LESSON = {
  id: "sampling",
  title: ["Temperature, top-k and top-p", "温度、top-k 与 top-p"],
  intro: ["A model does not say the next word. It gives a probability to every token (a word or a piece of one); settings change the probabilities, then a random number chooses. The text to go on with (the prompt): `{prompt}`.",
    "模型并不直接说出下一个词，而是给每个词元（一个词或词的一部分）一个概率；参数改变这些概率，再由随机数做选择。要续写的文本（提示词）是：`{prompt}`。"],
  facts: (trace, extra) => {
    const one = (name) => run(trace, name);
    const top = firstStage(one("plain")).top;
    const [first, second] = [top[0][0], top[1][0]];
    const p = (name, id = first) => percent(probabilityOf(lastStage(one(name)), id));
    const word = (name) => trace.piece(one(name).samples[0].id);
    const small = (stage) => `${show(100 * number(stage.chosen.p), 2)} %`;
    const draws = extra.draws;
    const all = draws.reduce((sum, [, times]) => sum + times, 0);
    const times = draws.find(([text]) => visible(text) === trace.piece(first))[1];
    return {
      prompt: one("plain").request.rendered, first: trace.piece(first), second: trace.piece(second), p: p("plain"), pSecond: p("plain", second), vocabulary: firstStage(one("plain")).alive, struck: firstStage(one("plain")).alive - lastStage(one("top_k")).alive, all, times, other: draws.length, once: draws.filter(([, n]) => n === 1).length, draws,
      u: show(number(one("plain").samples[0].rng.u), 4), drawn: word("plain"), cold: p("cold"), coldDrawn: word("cold"), hot: p("hot"), hotDrawn: word("hot"), hotRank: lastStage(one("hot")).chosen.rank, hotRaw: small(firstStage(one("hot"))), hotP: small(lastStage(one("hot"))), hotTail: `${Math.round(100 * (1 - number(one("hot").samples[0].rng.u)))} %`,
      greedyDrawn: word("greedy"), kRemoved: percent(number(lastStage(one("top_k")).mass_removed)), kFirst: p("top_k"), pAlive: lastStage(one("top_p")).alive,
      sureText: one("sure").request.rendered, sureAlive: lastStage(one("sure")).alive, sureWord: word("sure"), sureP: percent(number(firstStage(one("sure")).chosen.p)), greedyU: one("greedy").samples[0].rng.u,
    };
  },
  screens: [
    {
      title: ["A hundred answers", "一百个回答"],
      text: ["The model gives `{first}` {p}, `{second}` {pSecond}, and something to each of the other tokens of its vocabulary of {vocabulary}. We ask {all} times. Only the seed, where the random numbers begin, is another each time.",
        "模型给 `{first}` 的概率是 {p}，给 `{second}` 的是 {pSecond}，词表 {vocabulary} 个词元中的其余各得一点。我们问 {all} 次，每次只换种子，也就是随机数的起点。"],
      before: (trace) => stageShares(trace, run(trace, "plain"), firstStage(run(trace, "plain")), inLanguage(["The model's probabilities", "模型的概率"]), 6, false),
      ask: ["How often will the answer be `{first}`?", "有多少次会回答 `{first}`？"],
      choices: () => [["all", ["always: it is the most probable", "每次都是：它最可能"]], ["half", ["about half of the times: that is its share", "大约一半：它的概率就这么大"]], ["rarely", ["rarely: there are {vocabulary} tokens to choose from", "很少：可选的词元有 {vocabulary} 个"]]],
      answer: (facts) => (facts.times === facts.all ? "all" : facts.times / facts.all > 0.3 ? "half" : "rarely"),
      after: (trace, facts) => table(inLanguage(["What was drawn", "抽到的结果"]), [t("word"), right(t("count")), t("picture")], facts.draws.filter(([, n]) => n > 1).map(([text, n]) => [h("bdi", { class: "mono" }, visible(text)), n, bar(n / facts.all)]), { class: "bars" }),
      why: ["It came {times} times in {all}. The draw follows the probabilities: the likeliest word is only the likeliest. {other} different words came up, {once} of them once (those are not in the table).",
        "{all} 次中出现了 {times} 次。抽取是按概率来的，最可能并不等于一定。共出现 {other} 个不同的词，其中 {once} 个只出现一次（未列入表中）。"],
    },
    {
      title: ["Low temperature", "低温"],
      text: ["Tokens lie side by side from 0 to 1, each as wide as its probability; the random number u = {u} falls on one of them. At temperature 1 that was `{drawn}`. Temperature divides the model's scores before they become probabilities. Now it is 0.5, and u is the same.",
        "把词元从 0 到 1 依次排开，概率越大占得越宽；随机数 u = {u} 落在其中一个上。温度为 1 时落在 `{drawn}`。模型先给出分数，分数除以温度之后才变成概率。现在温度为 0.5，u 不变。"],
      before: (trace, facts) => drawLine(trace, run(trace, "plain"), inLanguage([`Temperature 1: u fell on ${facts.drawn}`, `温度 1：u 落在 ${facts.drawn}`])),
      ask: ["What happens to `{first}`, which had {p}?", "原来为 {p} 的 `{first}` 会怎样？"],
      choices: () => [["up", ["it rises: it was ahead", "上升：它本来就领先"]], ["half", ["it is halved, as the temperature is", "减半：温度减半了"]], ["same", ["it stays: the order is the same", "不变：顺序没有变"]]],
      answer: (facts) => (parseFloat(facts.cold) > parseFloat(facts.p) ? "up" : "half"),
      after: (trace, facts) => drawLine(trace, run(trace, "cold"), inLanguage([`Temperature 0.5: the same u fell on ${facts.coldDrawn}`, `温度 0.5：同一个 u 落在 ${facts.coldDrawn}`])),
      why: ["Scores divided by 0.5 are doubled, and so is every lead: `{first}` now has {cold}. The random number did not move, the borders did: it falls on `{coldDrawn}`.",
        "分数除以 0.5 就是加倍，领先的幅度也随之加倍：`{first}` 现在有 {cold}。随机数没有动，动的是边界：这次落在 `{coldDrawn}`。"],
    },
    {
      title: ["High temperature", "高温"],
      text: ["Now temperature 1.5, again with u = {u}.", "现在温度为 1.5，仍然是 u = {u}。"],
      ask: ["On what does it fall?", "这次落在哪里？"],
      choices: (facts) => [["first", ["`{first}`, as at temperature 0.5", "`{first}`，与温度 0.5 时相同"]], ["drawn", ["`{drawn}`, as at temperature 1", "`{drawn}`，与温度 1 时相同"]], ["far", ["some token far down the list", "排在很后面的某个词元"]]],
      answer: (facts) => (facts.hotDrawn === facts.first ? "first" : facts.hotDrawn === facts.drawn ? "drawn" : "far"),
      after: (trace, facts) => [drawLine(trace, run(trace, "hot"), inLanguage([`Temperature 1.5: u fell on ${facts.hotDrawn}`, `温度 1.5：u 落在 ${facts.hotDrawn}`])), stageShares(trace, run(trace, "hot"), lastStage(run(trace, "hot")), inLanguage(["After temperature 1.5", "温度 1.5 之后"]))],
      why: ["`{hotDrawn}` is number {hotRank} of the list; it had {hotRaw} and now has {hotP}. `{first}` fell to {hot}. What the leaders lost went to the long tail: about {hotTail} now lie beyond number {hotRank}, in tokens with next to nothing each, and together they win often. That is why hot answers are odd rather than inventive.",
        "`{hotDrawn}` 排第 {hotRank} 位，原来有 {hotRaw}，现在有 {hotP}。`{first}` 降到 {hot}。领先者失去的概率流向了长长的尾巴：现在第 {hotRank} 位之后约有 {hotTail}，每个词元几乎为零，合在一起却常常中选。所以高温的回答多半是古怪，而不是有创意。"],
    },
    {
      title: ["Temperature zero", "温度为零"],
      text: ["Nothing can be divided by zero, so engines give temperature 0 a meaning of its own.", "除数不能为零，所以引擎给温度 0 单独规定了含义。"],
      ask: ["What does the random number decide then?", "这时随机数决定什么？"],
      choices: () => [["two", ["whether it is the first or the second of the list", "取第一名还是第二名"]], ["off", ["the token, as at 1: zero is “off”", "和温度 1 时一样决定词元：0 就是“关闭”"]], ["nothing", ["nothing: none is drawn", "什么都不决定：根本不抽随机数"]]],
      answer: (facts) => (facts.greedyU === null ? "nothing" : facts.greedyDrawn === facts.drawn ? "off" : "two"),
      after: (trace) => stageShares(trace, run(trace, "greedy"), firstStage(run(trace, "greedy")), inLanguage(["The first of the list is taken", "取第一名"]), 4),
      why: ["The most probable token is taken, here `{greedyDrawn}` (this is called greedy). The seed does not matter, and this engine answers the same each time. It need not be the model's best text: always the most probable next token tends to end in repetition.",
        "直接取最可能的词元，这里是 `{greedyDrawn}`（这叫贪心解码）。种子不起作用，这个引擎每次的回答都相同。但这未必是模型最好的文本：总取最可能的词元，往往会陷入重复。"],
    },
    {
      title: ["Top-k", "Top-k"],
      text: ["`top_k = 5` keeps the five most probable tokens and strikes out the other {struck}.", "`top_k = 5` 只保留概率最高的五个词元，划掉其余 {struck} 个。"],
      ask: ["How much probability is thrown away at temperature 1?", "温度为 1 时，丢掉了多少概率？"],
      choices: (facts) => [["most", ["most of it: nearly all tokens are gone", "绝大部分：几乎所有词元都被划掉了"]], ["some", ["about 15 %: much of it is in the first five", "约 15 %：概率大多集中在前五个"]], ["none", ["under 1 %: the others have next to nothing", "不到 1 %：其余的几乎没有概率"]]],
      answer: (facts) => (parseFloat(facts.kRemoved) > 50 ? "most" : Math.round(parseFloat(facts.kRemoved)) === 15 ? "some" : "none"),
      after: (trace) => stageShares(trace, run(trace, "top_k"), lastStage(run(trace, "top_k")), inLanguage(["What top-k left", "top-k 之后剩下的"])),
      why: ["{kRemoved}: the tail is long but thin. What is left is scaled up to 100 %, so `{first}` has {kFirst} now. With this, a high temperature cannot reach into the tail any more.",
        "{kRemoved}：尾巴很长，但很细。剩下的按比例放大到 100 %，于是 `{first}` 现在有 {kFirst}。这样一来，温度再高也够不着尾巴了。"],
    },
    {
      title: ["Top-p", "Top-p"],
      text: ["`top_p = 0.9` keeps, from the top of the list, as few tokens as together reach 90 %. For the cup of something hot that is {pAlive}. Another prompt is `{sureText}`; there the model gives `{sureWord}` {sureP}.",
        "`top_p = 0.9` 从第一名开始保留，合计达到 90 % 为止。对“一杯热的……”要保留 {pAlive} 个。换一个提示词：`{sureText}`，这里模型给 `{sureWord}` 的概率是 {sureP}。"],
      ask: ["How many tokens does the same top-p keep there?", "同样的 top-p 在那里保留几个？"],
      choices: (facts) => [["one", ["one: `{sureWord}` alone", "一个：只有 `{sureWord}`"]], ["none", ["none: {sureP} is more than 90 %", "零个：{sureP} 超过了 90 %"]], ["same", ["{pAlive}: the setting is the same", "{pAlive} 个：参数相同"]]],
      answer: (facts) => (facts.sureAlive === 1 ? "one" : facts.sureAlive === facts.pAlive ? "same" : "none"),
      after: (trace) => h("div", { class: "pair" }, stageShares(trace, run(trace, "top_p"), lastStage(run(trace, "top_p")), run(trace, "top_p").request.rendered, 10), stageShares(trace, run(trace, "sure"), lastStage(run(trace, "sure")), run(trace, "sure").request.rendered)),
      why: ["Top-p follows the model: many tokens where it wavers, one where it is sure. Top-k keeps the same number in both places. `min_p` has the same aim as top-p: it strikes out what has less than a given part of the best token's probability.",
        "top-p 随模型而变：犹豫时留得多，有把握时只留一个；top-k 在两处留得一样多。`min_p` 与 top-p 目的相同：概率低于最可能词元的一定比例，就划掉。"],
    },
  ],
  keep: [["The model gives probabilities; the sampler chooses.", "模型给出概率，采样器做选择。"], ["Temperature moves the borders; the random number stays.", "温度移动的是边界，随机数不动。"], ["Top-k and top-p cut the tail off before the draw; where top-p cuts depends on how sure the model is.", "top-k 和 top-p 在抽取前切掉尾巴；top-p 切在哪里，要看模型有多大把握。"], ["The same seed gives the same random numbers, so an answer can be had again.", "相同的种子给出相同的随机数，所以回答可以重现。"]],
  commands: ["pellucid explain \"Every morning she drinks a cup of hot\" --seed 2 --temperature 1.5 --max-tokens 1", "pellucid sweep \"Every morning she drinks a cup of hot\" --temperature 0,0.5,1,1.5 --seed 1,2,3 --max-tokens 1"],
};
