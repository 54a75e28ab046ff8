"use strict";
const LESSON = {
  id: "mask",
  title: ["The causal mask", "因果掩码"],
  intro: ["In a model every token is a row of numbers that {layers} layers compute anew, one after the other. In each layer a token may take something from other tokens: it looks at them (attention). One rule says at which ones. The sentence: `{sentence}`.",
    "在模型里，每个词元是一行数值，由 {layers} 层依次重新计算。在每一层，词元都可以“看”其他词元，从中取得信息（注意力）。能看哪些，由一条规则决定。例句：`{sentence}`。"],
  facts: (trace) => {
    const [one, last, first] = ["sentence", "last", "first"].map((name) => run(trace, name));
    const [changedLast, changedFirst] = [changedPositions(one, last), changedPositions(one, first)];
    const [event, near] = one.layers.get(0).filter((each) => each.attn && each.attn.length);
    const atNeighbour = tokensOf(one).slice(1).map((_, k) => weightOf(one, k + 1, near.layer, k));
    const it = one.prompt.findIndex((_, pos) => one.name(pos) === "·it");
    const head = one.layer(it, event.layer).attn[0];
    const best = head.idx[head.w.indexOf(Math.max(...head.w))];
    const next = trace.stepsOf("sentence")[1].seqs[0];
    return {
      sentence: one.request.rendered, tokens: one.prompt.length, layers: one.maxLayer + 1, changedLast: changedLast.length, changedFirst: changedFirst.length, lastPosition: changedLast[0], lastWord: one.name(one.prompt.length - 1), otherWord: last.name(last.prompt.length - 1),
      it, layer: event.layer, head: head.head, nearLayer: near.layer, nearHead: near.attn[0].head, nearMean: percent(atNeighbour.reduce((sum, w) => sum + w, 0) / atNeighbour.length), best: one.name(best), weight: percent(Math.max(...head.w)), nextRows: next.n_tok, nextFrom: next.tok0, firstWord: one.name(0), otherFirst: first.name(0), itRow: head.idx.length, firstRow: one.layer(0, event.layer).attn[0].idx.length, allHeads: trace.header.model.n_heads * (one.maxLayer + 1), heads: trace.header.model.n_heads,
      rms: show(one.layer(one.prompt.length - 1, one.maxLayer).resid_rms), otherRms: show(last.layer(last.prompt.length - 1, last.maxLayer).resid_rms),
    };
  },
  screens: [
    {
      title: ["Another last word", "换掉最后一个词"],
      text: ["The sentence has {tokens} tokens. We run it again with `{otherWord}` instead of `{lastWord}` at the end, and compare every token in every layer: four measures of its numbers, to the last bit.",
        "句子有 {tokens} 个词元。把结尾的 `{lastWord}` 换成 `{otherWord}` 再运行一次，比较每个词元在每一层的情况：其数值的四种度量，精确到最后一位。"],
      before: (trace, facts) => tokenRow(tokensOf(run(trace, "sentence")), facts.sentence),
      ask: ["How many tokens get other numbers?", "有多少个词元的数值会变？"],
      choices: () => [["one", ["one: the last", "一个：最后一个"]], ["near", ["the last few: those near it", "最后几个：离得近的"]], ["all", ["all: the sentence means something else now", "全部：整句的意思变了"]]],
      answer: (facts) => (facts.changedLast === 1 ? "one" : facts.changedLast === facts.tokens ? "all" : "near"),
      after: (trace, facts) => differences(run(trace, "sentence"), run(trace, "last"), inLanguage([`Each column is a token, each small box a layer (the first at the bottom); brown is where something changed: ${facts.changedLast} of ${facts.tokens} tokens`, `每列一个词元，每小格一层（最下面是第一层）；棕色表示有变化：${facts.tokens} 个词元中有 ${facts.changedLast} 个`])),
      why: ["A token looks at what stands before it, never at what comes after. `·cat` is computed as if the sentence ended there, so it is the same whatever follows. Only position {lastPosition} changed (the first is 0): the root mean square of its numbers after the last layer is {otherRms} instead of {rms}.",
        "词元只看排在它前面的词元，从不看后面的。计算 `·cat` 时，就当句子到此为止，所以后面接什么它都不变。只有位置 {lastPosition}（从 0 数起）变了：最后一层之后，其数值的均方根从 {rms} 变为 {otherRms}。"],
    },
    {
      title: ["Another first word", "换掉第一个词"],
      text: ["Now the other end: `{otherFirst}` instead of `{firstWord}` at the beginning, nothing else.", "现在换另一头：开头的 `{firstWord}` 换成 `{otherFirst}`，其余不动。"],
      ask: ["How many tokens get other numbers?", "有多少个词元的数值会变？"],
      choices: (facts) => [["one", ["one: the first", "一个：第一个"]], ["two", ["two: the article and its noun", "两个：冠词和它的名词"]], ["all", ["all {tokens}", "全部 {tokens} 个"]]],
      answer: (facts) => (facts.changedFirst === facts.tokens ? "all" : facts.changedFirst === 1 ? "one" : "two"),
      after: (trace, facts) => differences(run(trace, "sentence"), run(trace, "first"), inLanguage([`Brown is where something changed: ${facts.changedFirst} of ${facts.tokens} tokens`, `棕色表示有变化：${facts.tokens} 个词元中有 ${facts.changedFirst} 个`])),
      why: ["All the others stand after it and look back at it. This is why one word at the beginning of a prompt can change the whole answer, and why computed tokens can be used again only up to the first token that differs.",
        "其余词元都排在它后面，都会回头看它。所以提示词开头的一个词就可能改变整个回答；也因此，算好的词元只能重复使用到第一个不同的词元为止。"],
    },
    {
      title: ["Who is “it”?", "“it”指谁？"],
      text: ["A token looks in several ways at once: each layer has {heads} heads, and in each head a token spreads a weight of 1 over the tokens that it may look at. Of all {allHeads} we chose one, head {head} of layer {layer}. There `·it` may look at {itRow} tokens, itself included.", "一个词元同时有多种看法：每层有 {heads} 个注意力头，在每个头里，词元把总和为 1 的权重分给它可以看的词元。我们从全部 {allHeads} 个头中挑了一个：层 {layer}、头 {head}。`·it` 在这里可以看 {itRow} 个词元，包括自己。"],
      ask: ["At which does `·it` look most?", "`·it` 看得最多的是哪个？"],
      choices: () => [["The", ["`The`, the first token", "`The`，第一个词元"]], ["·cat", ["`·cat`, the noun further back", "`·cat`，更远的名词"]], ["·mat", ["`·mat`, the nearer noun", "`·mat`，更近的名词"]], ["·because", ["`·because`, its neighbour", "`·because`，它的邻居"]]],
      answer: (facts) => facts.best,
      after: (trace, facts) => {
        const one = run(trace, "sentence");
        const { idx, w } = one.layer(facts.it, facts.layer).attn[0];
        const ranked = idx.map((key, k) => [one.name(key), number(w[k])]).sort((a, b) => b[1] - a[1]);
        return shares(inLanguage(["Where ·it looked", "·it 看向哪里"]), ranked, t("looks"), t("weight"));
      },
      why: ["{weight} of its weight is on `{best}`. Nobody programmed that; the head came to it by learning to guess the next token. But `·it` cannot see whether `{lastWord}` or `{otherWord}` follows, so it looks here in both sentences. And we chose this head because it shows this; others look elsewhere. One head is a hint, not an explanation.",
        "{weight} 的权重落在 `{best}` 上。没有人编写过这条规则，这个头是在学习猜下一个词元时形成的。不过 `·it` 看不到后面是 `{lastWord}` 还是 `{otherWord}`，所以在两个句子里都看这里。而且我们正是因为这一点才挑了这个头，别的头看别处。单独一个头只是线索，不是解释。"],
    },
    {
      title: ["The triangle", "三角形"],
      text: ["Next come the weights of all tokens in the same head: a row for each token that looks, a column for each that is looked at.", "接下来是同一个头里所有词元的权重：每行是在看的词元，每列是被看的词元。"],
      ask: ["How many tokens may the first token look at?", "第一个词元可以看几个词元？"],
      choices: (facts) => [["none", ["none: nothing stands before it", "零个：前面什么都没有"]], ["itself", ["one: itself", "一个：它自己"]], ["all", ["all {tokens}", "全部 {tokens} 个"]]],
      answer: (facts) => (facts.firstRow === 1 ? "itself" : facts.firstRow ? "all" : "none"),
      after: (trace, facts) => [triangle(run(trace, "sentence"), facts.layer, facts.head), triangle(run(trace, "sentence"), facts.nearLayer, facts.nearHead), badge("recomputed")],
      why: ["The hatched half is the mask: no weight goes there. Every row adds up to 1, and the first has one cell. Look down the column of `{best}`: not only `·it`, most rows look there. So this head may follow the subject of the sentence and know nothing of pronouns. In the second one each token looks at the one before it, with {nearMean} on average.",
        "画斜线的一半就是掩码：那里没有任何权重。每行之和为 1，而第一行只有一格。再看 `{best}` 那一列：不只是 `·it`，多数行都看它。所以这个头也许只是在跟踪句子的主语，对代词一无所知。第二个头里，每个词元都看它前一个词元，平均权重 {nearMean}。"],
    },
    {
      title: ["The next word", "下一个词"],
      text: ["The model has chosen a next token; with it the text has {nextFrom} + 1.", "模型选出了下一个词元；连同它，文本共有 {nextFrom} + 1 个词元。"],
      ask: ["How many tokens must go through the layers to get one more?", "要再得到一个词元，需要让几个词元经过各层？"],
      choices: (facts) => [["one", ["the new one alone", "只有新的那一个"]], ["all", ["all {tokens} and the new one", "全部 {tokens} 个，再加上新的"]], ["none", ["none: the layers have done it already", "零个：各层已经算过了"]]],
      answer: (facts) => (facts.nextRows === 1 ? "one" : "all"),
      after: (trace) => stepLines(trace, run(trace, "sentence")),
      why: ["Nothing before the new token can change, so nothing is computed again. What later tokens need of an earlier one, a key and a value in each layer, is kept. The mask makes this KV cache possible; it is the next lesson.",
        "新词元之前的一切都不会变，所以不必重算。后来的词元需要的东西，即前面每个词元在各层的键（K）和值（V），都留着。正是掩码使这个 KV 缓存成为可能，下一课就讲它。"],
    },
  ],
  keep: [["A token looks at itself and at what stands before it, never at what comes after.", "词元只看自己和排在前面的词元，从不看后面的。"], ["A changed word changes what is computed after it, and nothing before it.", "改一个词，会改变它之后的计算，而之前的丝毫不变。"], ["What cannot change is computed once.", "不会变的，只算一次。"]],
  commands: ["pellucid explain \"The cat sat on the mat because it was tired\" --token 7 --layer 13", "pellucid explain \"The cat sat on the mat because it was tired\" --html mask.html"],
};

/** How much a token looks at another one, in the head that was kept of a layer. */
function weightOf(sequence, pos, layer, key) {
  const { idx, w } = sequence.layer(pos, layer).attn[0];
  const at = idx.indexOf(key);
  return at < 0 ? 0 : number(w[at]);
}

/** Every token's weights in one head. */
function triangle(sequence, layer, head) {
  const names = tokensOf(sequence).map((token) => pieceText(token.data));
  return matrix(inLanguage([`Layer ${layer}, head ${head}: each row looks at the columns`, `层 ${layer}、头 ${head}：每一行看向各列`]), names, names, (i, j) => (j > i ? null : weightOf(sequence, i, layer, j)));
}
