"use strict";
const LESSON = {
  id: "mask",
  title: ["The causal mask", "因果掩码"],
  intro: ["Every token is computed through {layers} layers, and in each it may look at others. At whom it may not look is the one rule that makes writing from left to right possible. The sentence: `{sentence}`.",
    "每个词元都要经过 {layers} 层，在每一层可以看其他词元。不能看谁，正是这条规则使从左到右的书写成为可能。例句：`{sentence}`。"],
  facts: (trace) => {
    const [one, last, first] = ["sentence", "last", "first"].map((name) => run(trace, name));
    const [changedLast, changedFirst] = [changedPositions(one, last), changedPositions(one, first)];
    const event = [...one.layers.values()].flat().find((each) => each && each.attn && each.attn.length);
    const it = one.prompt.findIndex((_, pos) => one.name(pos) === "·it");
    const head = one.layer(it, event.layer).attn[0];
    const best = head.idx[head.w.indexOf(Math.max(...head.w))];
    const next = trace.stepsOf("sentence")[1].seqs[0];
    return {
      sentence: one.request.rendered, tokens: one.prompt.length, layers: one.maxLayer + 1, changedLast: changedLast.length, changedFirst: changedFirst.length, lastPosition: changedLast[0], lastWord: one.name(one.prompt.length - 1), otherWord: last.name(last.prompt.length - 1),
      it, layer: event.layer, head: head.head, best: one.name(best), weight: percent(Math.max(...head.w)), nextRows: next.n_tok, nextFrom: next.tok0, firstWord: one.name(0), otherFirst: first.name(0), itRow: head.idx.length, heads: trace.header.model.n_heads,
      rms: show(one.layer(one.prompt.length - 1, one.maxLayer).resid_rms), otherRms: show(last.layer(last.prompt.length - 1, last.maxLayer).resid_rms),
    };
  },
  screens: [
    {
      title: ["Another last word", "换掉最后一个词"],
      text: ["The sentence has {tokens} tokens. We run it again with `{otherWord}` instead of `{lastWord}` at the end, and compare the numbers of every token in every layer.",
        "句子有 {tokens} 个词元。把结尾的 `{lastWord}` 换成 `{otherWord}` 再运行一次，比较每个词元在每一层的数值。"],
      before: (trace) => tokenRow(tokensOf(run(trace, "sentence")), "sentence"),
      ask: ["Of how many tokens do any numbers change?", "有多少个词元的数值会变？"],
      choices: () => [["one", ["one: the last", "一个：最后一个"]], ["near", ["the last few: those near it", "最后几个：离得近的"]], ["all", ["all: the meaning is another", "全部：意思变了"]]],
      answer: (facts) => (facts.changedLast === 1 ? "one" : facts.changedLast === facts.tokens ? "all" : "near"),
      after: (trace, facts) => differences(run(trace, "sentence"), run(trace, "last"), inLanguage([`Each column is a token, each small box a layer (the first at the bottom); brown is where a number changed: ${facts.changedLast} of ${facts.tokens} tokens`, `每列一个词元，每小格一层（最底为第一层）；棕色表示数值改变：${facts.tokens} 个词元中的 ${facts.changedLast} 个`])),
      why: ["A token looks back, never ahead. `·cat` was computed before anybody knew how the sentence ends, and to the last bit it stays what it was. Only position {lastPosition} changed: the size of its last layer's numbers is {otherRms} instead of {rms}.",
        "词元只向后看，从不向前看。`·cat` 在句子如何结束之前就已算好，此后一位都不会变。只有位置 {lastPosition} 变了：最后一层数值的大小从 {rms} 变为 {otherRms}。"],
    },
    {
      title: ["Another first word", "换掉第一个词"],
      text: ["Now the other end: `{otherFirst}` instead of `{firstWord}` at the beginning. Nothing else.", "现在换另一头：开头的 `{firstWord}` 换成 `{otherFirst}`，其余不动。"],
      ask: ["Of how many tokens do numbers change?", "有多少个词元的数值会变？"],
      choices: (facts) => [["one", ["one: the first", "一个：第一个"]], ["two", ["two: the article and its noun", "两个：冠词和它的名词"]], ["all", ["all {tokens}", "全部 {tokens} 个"]]],
      answer: (facts) => (facts.changedFirst === facts.tokens ? "all" : facts.changedFirst === 1 ? "one" : "two"),
      after: (trace, facts) => differences(run(trace, "sentence"), run(trace, "first"), inLanguage([`Brown is where a number changed: ${facts.changedFirst} of ${facts.tokens} tokens`, `棕色表示数值改变：${facts.tokens} 个词元中的 ${facts.changedFirst} 个`])),
      why: ["Everybody looks back at it, and most of them look there a lot. This is why one word in a system prompt changes an answer, and why a cache of computed tokens is worth nothing behind the first token that differs.",
        "后面的每个词元都会回看它，而且看得很多。所以系统提示词里的一个词就能改变回答；也因此，从第一个不同的词元起，已缓存的计算全部作废。"],
    },
    {
      title: ["Who is “it”?", "“it”是谁？"],
      text: ["Each layer has {heads} heads, and in each of them a token spreads a weight of 1 over the tokens that it may look at. In head {head} of layer {layer}, `·it` had {itRow} to look at, itself included.", "每层有 {heads} 个头，在每个头里，一个词元把总和为 1 的权重分给它可以看的词元。在第 {layer} 层第 {head} 个头里，`·it` 可以看 {itRow} 个词元，包括自己。"],
      ask: ["At whom does `·it` look most?", "`·it` 最看重谁？"],
      choices: () => [["The", ["`The`, the first token", "第一个词元 `The`"]], ["·cat", ["`·cat`", "`·cat`"]], ["·mat", ["`·mat`, the nearer noun", "更近的名词 `·mat`"]], ["·because", ["`·because`, its neighbour", "相邻的 `·because`"]]],
      answer: (facts) => facts.best,
      after: (trace, facts) => {
        const one = run(trace, "sentence");
        const { idx, w } = one.layer(facts.it, facts.layer).attn[0];
        const ranked = idx.map((key, k) => [one.name(key), number(w[k])]).sort((a, b) => b[1] - a[1]);
        return shares(inLanguage(["Where ·it looked", "·it 看向何处"]), ranked, t("looks"));
      },
      why: ["{weight} of its weight is on `{best}`. Nobody built a pronoun finder: this head became one by learning to guess the next word. One head of {layers} layers does this here; others look at the neighbour, at the first token, at commas. A single head is a hint, not an explanation.",
        "{weight} 的权重落在 `{best}`。没有人设计“代词查找器”：这个头是在学习猜下一个词的过程中变成这样的。{layers} 层里有许多头，有的看邻居，有的看第一个词元，有的看逗号。单独一个头只是线索，不是解释。"],
    },
    {
      title: ["The triangle", "三角形"],
      text: ["Now the weights of all tokens in the same head: a row for each token that looks, a column for each that is looked at.", "现在看同一个头里所有词元的权重：每行是看的词元，每列是被看的词元。"],
      ask: ["Whom may the first token look at?", "第一个词元可以看谁？"],
      choices: () => [["nobody", ["nobody", "谁也不能看"]], ["itself", ["itself alone", "只能看自己"]], ["all", ["the whole sentence", "整个句子"]]],
      answer: () => "itself",
      after: (trace, facts) => {
        const one = run(trace, "sentence");
        const names = tokensOf(one).map((token) => pieceText(token.data));
        return [matrix(inLanguage([`Layer ${facts.layer}, head ${facts.head}: each row looks at the columns`, `第 ${facts.layer} 层第 ${facts.head} 头：每一行看向各列`]), names, names, (i, j) => {
          if (j > i) return null;
          const { idx, w } = one.layer(i, facts.layer).attn[0];
          const at = idx.indexOf(j);
          return at < 0 ? 0 : number(w[at]);
        }), badge("recomputed")];
      },
      why: ["The hatched half is the mask: those scores are never computed, here as in any engine that writes from left to right. The first row has one cell, so its weight is 1 whatever it holds. Many heads use the first token as a place to look when they have nothing to say.",
        "阴影的一半就是掩码：这些分数从不计算，任何从左到右书写的引擎都如此。第一行只有一格，无论内容如何权重都是 1。许多头在“无话可说”时就看第一个词元。"],
    },
    {
      title: ["The next word", "下一个词"],
      text: ["The model has drawn a new token; the sentence has {nextFrom} + 1 now.", "模型抽取了一个新词元；句子现在有 {nextFrom} + 1 个词元。"],
      ask: ["How many tokens must go through the layers for the one after it?", "为了再下一个词元，需要让几个词元经过各层？"],
      choices: (facts) => [["all", ["all {tokens} and the new one", "全部 {tokens} 个加上新的"]], ["one", ["the new one alone", "只有新的那一个"]], ["none", ["none: it is known already", "零个：已经知道了"]]],
      answer: (facts) => (facts.nextRows === 1 ? "one" : "all"),
      after: (trace) => stepLines(trace, run(trace, "sentence")),
      why: ["Nothing before it can change, so nothing before it is computed again: what others need of a token, its keys and values, is kept. The mask is what makes the KV cache possible, and that is the next lesson.",
        "前面的一切都不会变，所以不必重算：别人需要的东西——键和值——都留着。正是掩码使 KV 缓存成为可能，这就是下一课。"],
    },
  ],
  keep: [["A token looks back and at itself, never ahead.", "词元只看自己和前面，从不看后面。"], ["Changing a word changes everything behind it and nothing before it.", "改一个词，会改变它之后的一切，而不改变之前的任何东西。"], ["Because the past cannot change, it is computed once.", "过去不会改变，所以只算一次。"]],
  commands: ["pellucid explain \"The cat sat on the mat because it was tired\" --token 7 --layer 13", "pellucid explain \"The cat sat on the mat because it was tired\" --html mask.html"],
};
