"use strict";
const LESSON = {
  id: "sampling",
  title: ["Temperature, top-k and top-p", "温度、top-k 与 top-p"],
  intro: ["A model does not say a word, it gives a probability to every word. Settings change the probabilities, then a random number chooses. The prompt is always `{prompt}`.",
    "模型并不“说”某个词，而是给每个词一个概率。参数改变概率，随机数再做选择。提示词始终是 `{prompt}`。"],
  facts: (trace, extra) => {
    const one = (name) => run(trace, name);
    const top = firstStage(one("plain")).top;
    const [first, second] = [top[0][0], top[1][0]];
    const p = (name, id = first) => percent(probabilityOf(lastStage(one(name)), id));
    const word = (name) => quoted(trace.piece(one(name).samples[0].id)).slice(1, -1);
    const draws = extra.draws;
    const all = draws.reduce((sum, [, times]) => sum + times, 0);
    const times = draws.find(([text]) => visible(text) === trace.piece(first))[1];
    return {
      prompt: one("plain").request.rendered, first: trace.piece(first), second: trace.piece(second), p: p("plain"), pSecond: p("plain", second), vocabulary: firstStage(one("plain")).alive, struck: firstStage(one("plain")).alive - lastStage(one("top_k")).alive, all, times, other: draws.length, once: draws.filter(([, n]) => n === 1).length, draws,
      u: show(number(one("plain").samples[0].rng.u), 4), drawn: word("plain"), cold: p("cold"), coldDrawn: word("cold"), hot: p("hot"), hotDrawn: word("hot"), hotRank: lastStage(one("hot")).chosen.rank + 0, hotRaw: percent(number(firstStage(one("hot")).chosen.p)), hotP: percent(number(lastStage(one("hot")).chosen.p)),
      greedyDrawn: word("greedy"), kRemoved: percent(number(lastStage(one("top_k")).mass_removed)), kAlive: lastStage(one("top_k")).alive, kFirst: p("top_k"), pAlive: lastStage(one("top_p")).alive,
      sureText: one("sure").request.rendered, sureAlive: lastStage(one("sure")).alive, sureWord: word("sure"), sureP: percent(number(firstStage(one("sure")).chosen.p)), greedyU: one("greedy").samples[0].rng.u,
    };
  },
  screens: [
    {
      title: ["A hundred answers", "一百个回答"],
      text: ["This is what the model gives the next token: `{first}` {p}, `{second}` {pSecond}, and something to each of the other tokens of its vocabulary of {vocabulary}. We ask the engine {all} times, each time with another seed, and change nothing.",
        "模型给下一个词元的概率：`{first}` 为 {p}，`{second}` 为 {pSecond}，词表 {vocabulary} 个词元中其余各得一点。我们用不同的种子问引擎 {all} 次，别的都不变。"],
      before: (trace) => stageShares(trace, run(trace, "plain"), firstStage(run(trace, "plain")), inLanguage(["The model's probabilities", "模型的概率"]), 6, false),
      ask: ["How often will the answer be `{first}`?", "回答是 `{first}` 的次数大约是？"],
      choices: () => [["all", ["always: it is the most probable", "每次都是：它最可能"]], ["half", ["about half of the times", "大约一半"]], ["tenth", ["about one time in ten", "大约十分之一"]]],
      answer: (facts) => (facts.times === facts.all ? "all" : facts.times / facts.all > 0.3 ? "half" : "tenth"),
      after: (trace, facts) => table(inLanguage(["What was drawn", "抽到的结果"]), [t("word"), t("count"), t("picture")], facts.draws.filter(([, n]) => n > 1).map(([text, n]) => [h("bdi", { class: "mono" }, visible(text)), n, bar(n / facts.all)]), { class: "bars" }),
      why: ["It came {times} times in {all}. The draw does what the probabilities say, no more: {other} different words came up, {once} of them once. A model that is half sure is wrong half of the time if every draw counts.",
        "{all} 次中出现了 {times} 次。抽取严格按概率进行：共出现 {other} 个不同的词，其中 {once} 个只出现一次。如果每次抽取都算数，一个“一半把握”的模型就有一半会选别的。"],
    },
    {
      title: ["Low temperature", "低温"],
      text: ["Temperature divides the scores before they become probabilities. At 1 the random number u = {u} fell on `{drawn}`. Now temperature 0.5, with the same random number.",
        "温度在分数变成概率之前去除分数。温度为 1 时随机数 u = {u} 落在 `{drawn}`。现在温度为 0.5，随机数不变。"],
      before: (trace, facts) => drawLine(trace, lastStage(run(trace, "plain")), Number(run(trace, "plain").samples[0].rng.u), inLanguage([`Temperature 1: u fell on ${facts.drawn}`, `温度 1：u 落在 ${facts.drawn}`])),
      ask: ["What happens to `{first}`, which had {p}?", "原来为 {p} 的 `{first}` 会怎样？"],
      choices: () => [["half", ["it gets half of that", "变成一半"]], ["up", ["it rises", "上升"]], ["same", ["it stays: the order is the same", "不变：顺序没变"]]],
      answer: (facts) => (parseFloat(facts.cold) > parseFloat(facts.p) ? "up" : "half"),
      after: (trace, facts) => drawLine(trace, lastStage(run(trace, "cold")), Number(run(trace, "cold").samples[0].rng.u), inLanguage([`Temperature 0.5: the same u fell on ${facts.coldDrawn}`, `温度 0.5：同一个 u 落在 ${facts.coldDrawn}`])),
      why: ["Scores divided by a half are doubled, so what was ahead is further ahead: `{first}` now has {cold}. The random number did not move, the borders did: it falls on `{coldDrawn}`.",
        "分数除以 0.5 等于加倍，领先者更加领先：`{first}` 现在有 {cold}。随机数没有动，动的是边界：这次落在 `{coldDrawn}`。"],
    },
    {
      title: ["High temperature", "高温"],
      text: ["Now temperature 1.5, again with u = {u}.", "现在温度为 1.5，仍然是 u = {u}。"],
      ask: ["What comes out?", "会得到什么？"],
      choices: (facts) => [["first", ["`{first}`, the most probable", "最可能的 `{first}`"]], ["drawn", ["`{drawn}`, as at temperature 1", "和温度 1 时一样的 `{drawn}`"]], ["odd", ["a word that nobody drinks", "一个没人会喝的东西"]]],
      answer: (facts) => (facts.hotDrawn === facts.first ? "first" : facts.hotDrawn === facts.drawn ? "drawn" : "odd"),
      after: (trace, facts) => [drawLine(trace, lastStage(run(trace, "hot")), Number(run(trace, "hot").samples[0].rng.u), inLanguage([`Temperature 1.5: u fell on ${facts.hotDrawn}`, `温度 1.5：u 落在 ${facts.hotDrawn}`])), stageShares(trace, run(trace, "hot"), lastStage(run(trace, "hot")), inLanguage(["After temperature 1.5", "温度 1.5 之后"]))],
      why: ["`{hotDrawn}` is number {hotRank} of the list; the model gave it {hotRaw}, the temperature {hotP}. `{first}` fell to {hot}: most of what it lost went to tens of thousands of words with next to nothing each, and together they win often. That is why hot answers are odd rather than bold.",
        "`{hotDrawn}` 排第 {hotRank} 位；模型给它 {hotRaw}，高温给到 {hotP}。`{first}` 降到 {hot}：失去的概率大多流向成千上万个几乎为零的词，合在一起却常常胜出。所以高温的回答是古怪，而不是大胆。"],
    },
    {
      title: ["Temperature zero", "温度为零"],
      text: ["Dividing by zero is not possible; engines give the setting a meaning of its own.", "不能除以零；引擎给这个取值单独规定了含义。"],
      ask: ["What does the random number decide at temperature 0?", "温度为 0 时，随机数决定什么？"],
      choices: () => [["ties", ["between the first two words", "在前两名之间选"]], ["nothing", ["nothing: none is drawn", "什么都不决定：没有抽取"]], ["start", ["where the answer begins", "回答从哪里开始"]]],
      answer: (facts) => (facts.greedyU === null ? "nothing" : "ties"),
      after: (trace) => stageShares(trace, run(trace, "greedy"), firstStage(run(trace, "greedy")), inLanguage(["The first one is taken", "取第一名"]), 4),
      why: ["The most probable token is taken, here `{greedyDrawn}`; no random number is drawn, and seeds do not matter. The answer is the same each time. It is not the model's best text: the most probable next word, again and again, tends to repeat itself.",
        "直接取最可能的词元，这里是 `{greedyDrawn}`；不抽随机数，种子也无关。每次回答都相同。但这不是模型最好的文本：一再取最可能的词往往会自我重复。"],
    },
    {
      title: ["Top-k", "Top-k"],
      text: ["`top_k = 5` keeps the five most probable tokens and strikes out the other {struck}.", "`top_k = 5` 只保留概率最高的五个词元，划掉其余 {struck} 个。"],
      ask: ["How much probability is thrown away?", "丢掉了多少概率？"],
      choices: (facts) => [["most", ["most of it: nearly all tokens are gone", "绝大部分：几乎所有词元都没了"]], ["some", ["about 15 %", "约 15 %"]], ["none", ["under 1 %", "不到 1 %"]]],
      answer: (facts) => (parseFloat(facts.kRemoved) > 50 ? "most" : parseFloat(facts.kRemoved) > 1 ? "some" : "none"),
      after: (trace) => stageShares(trace, run(trace, "top_k"), lastStage(run(trace, "top_k")), inLanguage(["What top-k left", "top-k 之后"])),
      why: ["{kRemoved}. The tail is long and thin. What is left is scaled up to 100 %, so `{first}` has {kFirst} now, and the oddities of a high temperature cannot happen.",
        "{kRemoved}。尾巴又长又细。剩下的重新归一到 100 %，于是 `{first}` 现在有 {kFirst}，高温下的怪词不会再出现。"],
    },
    {
      title: ["Top-p", "Top-p"],
      text: ["`top_p = 0.9` keeps the fewest tokens that together reach 90 %. For the cup of something hot that leaves {pAlive}. Another prompt: `{sureText}`, where the model gives `{sureWord}` {sureP}.",
        "`top_p = 0.9` 保留合计达到 90 % 的最少词元。对“一杯热的……”剩下 {pAlive} 个。换一个提示词：`{sureText}`，模型给 `{sureWord}` {sureP}。"],
      ask: ["How many tokens does the same top-p leave there?", "同样的 top-p 在那里剩下几个？"],
      choices: (facts) => [["same", ["{pAlive}, as it is the same setting", "{pAlive} 个，因为参数相同"]], ["one", ["one", "一个"]], ["five", ["five", "五个"]]],
      answer: (facts) => (facts.sureAlive === 1 ? "one" : facts.sureAlive === facts.pAlive ? "same" : "five"),
      after: (trace) => h("div", { class: "pair" }, stageShares(trace, run(trace, "top_p"), lastStage(run(trace, "top_p")), run(trace, "top_p").request.rendered, 10), stageShares(trace, run(trace, "sure"), lastStage(run(trace, "sure")), run(trace, "sure").request.rendered)),
      why: ["Top-p follows the model: many words where it wavers, one where it knows. Top-k keeps as many in both places. That is why top-p is used more; `min_p` has the same aim and measures against the best token instead.",
        "top-p 随模型而变：犹豫时留得多，确定时只留一个。top-k 在两处留得一样多。所以 top-p 用得更多；`min_p` 目的相同，只是以最可能的词元为基准。"],
    },
  ],
  keep: [["The model gives probabilities; the sampler chooses.", "模型给出概率，采样器做选择。"], ["Temperature moves the borders, the random number stays.", "温度移动边界，随机数不动。"], ["Top-k and top-p cut the tail before the draw; top-p by how sure the model is.", "top-k 和 top-p 在抽取前切掉尾巴；top-p 视模型的把握而定。"], ["The same seed gives the same u: an answer can be had again.", "相同的种子给出相同的 u：回答可以重现。"]],
  commands: ["pellucid explain \"Every morning she drinks a cup of hot\" --seed 2 --temperature 1.5 --max-tokens 1", "pellucid sweep \"Every morning she drinks a cup of hot\" --help"],
};
