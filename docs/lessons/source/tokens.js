"use strict";
const LESSON = {
  id: "tokens",
  title: ["Bytes and tokens", "字节与词元"],
  intro: ["A model never sees letters. Text becomes bytes, bytes become tokens, and a token is only a number. Six small texts show what follows from that.",
    "模型从不看到字母。文本先变成字节，字节再合成词元，而词元只是一个编号。下面六段短文本展示由此带来的一切。"],
  facts: (trace) => {
    const count = (name) => run(trace, name).prompt.length;
    const id = (name) => String(run(trace, name).prompt[0].id); // a name, not a quantity
    const llama = run(trace, "llama");
    const user = run(trace, "template");
    return {
      word: count("word"), spaced: count("spaced"), helloId: id("hello"), spacedHelloId: id("hello_spaced"), english: count("english"), chinese: count("chinese"),
      chineseCharacters: [...run(trace, "chinese").request.rendered].length, chineseBytes: new TextEncoder().encode(run(trace, "chinese").request.rendered).length,
      typed: count("typed"), specials: user.prompt.filter((one) => one.kind === "special").length, endId: user.prompt.filter((one) => one.kind === "special")[1].id,
      llamaTokens: llama.samples.length, llamaFirst: hex(fromBase64(llama.samples[0].bytes_b64)), llamaHeld: llama.emits[0].held_bytes, llamaSecond: llama.emits[1].held_bytes,
    };
  },
  screens: [
    {
      title: ["One word", "一个单词"],
      text: ["`strawberry` has ten letters, and an `r` in it three times.", "`strawberry` 有十个字母，其中 `r` 出现三次。"],
      ask: ["As how many tokens does the model read it at the start of a text?", "它位于文本开头时，模型读到几个词元？"],
      choices: () => [["1", ["one", "一个"]], ["3", ["three", "三个"]], ["10", ["ten, one a letter", "十个，每个字母一个"]]],
      answer: (facts) => String(facts.word),
      after: (trace) => tokenRow(tokensOf(run(trace, "word")), "strawberry"),
      why: ["The vocabulary was made by joining the pairs of bytes that are most common in a large text. Common words became one token, others are put together from pieces. The model gets {word} numbers; it can only know that there are three `r` in them if it learned so, as you know how a word is spelled in a language that you only hear.",
        "词表是在大量文本中不断合并最常见的字节对得到的。常见词成为一个词元，其余由片段拼成。模型拿到的是 {word} 个编号；其中有三个 `r`，只有学过才知道——就像一门只听过没见过文字的语言，你并不知道单词怎么拼写。"],
    },
    {
      title: ["A space in front", "前面加一个空格"],
      text: ["Now the same word as it stands inside a sentence: with a space before it.", "现在把同一个词放进句子里：前面有一个空格。"],
      ask: ["How many tokens is `·strawberry` (· is the space)?", "`·strawberry`（· 表示空格）是几个词元？"],
      choices: () => [["4", ["four: the space and the three pieces", "四个：空格加三个片段"]], ["3", ["three, as before", "三个，和之前一样"]], ["1", ["one", "一个"]]],
      answer: (facts) => String(facts.spaced),
      after: (trace) => h("div", { class: "pair" }, tokenRow(tokensOf(run(trace, "word")), "strawberry"), tokenRow(tokensOf(run(trace, "spaced")), "·strawberry")),
      why: ["Words mostly follow a space, so the space was joined to them: `·strawberry` is common enough for a number of its own, `strawberry` without one is not. This is why a prompt that ends in a space so often gives odd answers: the next token would have brought its own.",
        "单词大多跟在空格之后，于是空格被并入词元：`·strawberry` 足够常见，有自己的编号；不带空格的则没有。提示词以空格结尾时回答往往怪异，原因就在这里：下一个词元本来自带空格。"],
    },
    {
      title: ["Twice hello", "两个 Hello"],
      text: ["`Hello` and `·Hello` are one token each.", "`Hello` 和 `·Hello` 各是一个词元。"],
      ask: ["What has the model to tell it that both are the same word?", "模型凭什么知道它们是同一个词？"],
      choices: () => [["near", ["their ids are neighbours", "两个编号相邻"]], ["flag", ["one id and a mark for the space", "同一个编号，外加空格标记"]], ["nothing", ["nothing: two unrelated ids", "什么都没有：两个无关的编号"]]],
      answer: (facts) => (Math.abs(Number(facts.helloId) - Number(facts.spacedHelloId)) > 1 ? "nothing" : "near"),
      after: (trace) => h("div", { class: "pair" }, tokenRow(tokensOf(run(trace, "hello")), "Hello"), tokenRow(tokensOf(run(trace, "hello_spaced")), "·Hello")),
      why: ["#{helloId} and #{spacedHelloId} are two rows of the embedding table. That they end up close to each other is learned from text, like everything else. Upper and lower case, accents and word ends are no different.",
        "#{helloId} 和 #{spacedHelloId} 是嵌入表中的两行。它们彼此接近，和其他一切一样，是从文本中学到的。大小写、重音、词尾也都如此。"],
    },
    {
      title: ["Another script", "另一种文字"],
      text: ["`Hello, world` is {english} tokens for this model, which was trained on English. `你好，世界` says the same in {chineseCharacters} characters.", "对这个以英文训练的模型，`Hello, world` 是 {english} 个词元。`你好，世界` 用 {chineseCharacters} 个字符表达同样的意思。"],
      ask: ["How many tokens is `你好，世界`?", "`你好，世界` 是几个词元？"],
      choices: (facts) => [["5", ["{chineseCharacters}, one a character", "{chineseCharacters} 个，每字一个"]], ["10", ["10", "10"]], [String(facts.chineseBytes), ["{chineseBytes}, one a byte", "{chineseBytes} 个，每字节一个"]]],
      answer: (facts) => String(facts.chinese),
      after: (trace) => [tokenRow(tokensOf(run(trace, "chinese")), "你好，世界", { withBytes: true }), tokenRow(tokensOf(run(trace, "english")), "Hello, world", { withBytes: true })],
      why: ["Each of these characters is three bytes of UTF-8, {chineseBytes} in all. Only a few joins of Chinese bytes are in this vocabulary, so most tokens are parts of a character (dotted). The same sentence costs {chinese} tokens instead of {english}: more time, more memory, less room in the context. A vocabulary made for Chinese has a token for each of these words.",
        "这里每个字符是 UTF-8 的三个字节，共 {chineseBytes} 个字节。词表中的中文合并很少，所以大多数词元只是字符的一部分（虚线）。同一句话要 {chinese} 个词元而不是 {english} 个：更慢、更占内存、上下文更短。为中文设计的词表会让这些词各占一个词元。"],
    },
    {
      title: ["Half a llama", "半只羊驼"],
      text: ["The answer is to be `🦙`: four bytes, which this model writes as {llamaTokens} tokens. The first one drawn is `{llamaFirst}`.", "回答应当是 `🦙`：四个字节，这个模型写成 {llamaTokens} 个词元。先抽中的是 `{llamaFirst}`。"],
      ask: ["What does a client that streams get when the first token is there?", "第一个词元产生时，流式客户端收到什么？"],
      choices: () => [["broken", ["the character � for what is not complete yet", "用 � 表示尚不完整的字符"]], ["nothing", ["nothing yet", "暂时什么都没有"]], ["bytes", ["the bytes that are there", "已有的字节"]]],
      answer: (facts) => (facts.llamaHeld > 0 ? "nothing" : "broken"),
      after: (trace) => emissions(run(trace, "llama"), "🦙"),
      why: ["A token may end inside a character. The engine holds its bytes back ({llamaHeld}, then {llamaSecond} of them) until the character is whole, and then sends it at once. Where an engine does not, emoji and Chinese text show `�` while they stream.",
        "词元可能在字符中间结束。引擎先把这些字节（先 {llamaHeld} 个，再 {llamaSecond} 个）留住，等字符完整后一次送出。不这样做的引擎，在流式输出表情或中文时会出现 `�`。"],
    },
    {
      title: ["Control tokens", "控制词元"],
      text: ["Chats are marked by control tokens: #{endId} is shown as `<|im_end|>` and ends a turn. A user types exactly these ten letters and signs into a message: `Hi<|im_end|>`.", "对话由控制词元标记：#{endId} 显示为 `<|im_end|>`，表示一轮结束。现在用户在消息里逐字输入：`Hi<|im_end|>`。"],
      ask: ["Has the user ended the turn?", "用户的这一轮因此结束了吗？"],
      choices: () => [["yes", ["yes: the text is the token", "是：文本就是该词元"]], ["no", ["no: it stays text", "否：它仍是普通文本"]]],
      answer: (facts) => (facts.typed > 1 ? "no" : "yes"),
      after: (trace) => tokenRow(tokensOf(run(trace, "template")).slice(-16), "Hi<|im_end|>"),
      why: ["What a user writes is never read as control: it became {typed} ordinary tokens, and the real ones (dashed) were set by the chat template. Otherwise anybody could write the model's turn, or a system message, into their own.",
        "用户所写的内容绝不会被当作控制符：它变成 {typed} 个普通词元，真正的控制词元（虚线框）由对话模板放入。否则任何人都能在自己的消息里伪造模型的回合或系统消息。"],
    },
  ],
  keep: [["Tokens are numbers; what they have to do with each other is learned.", "词元只是编号；彼此的关系全靠学习。"], ["A space belongs to the word behind it.", "空格属于它后面的词。"],
    ["Cost is counted in tokens, and scripts that a vocabulary does not know cost more.", "成本按词元计；词表不熟悉的文字更贵。"], ["Text typed by a user is never control.", "用户输入的文本绝不是控制符。"]],
  commands: ["pellucid tokenize \"strawberry\"", "pellucid tokenize \"你好，世界\"", "pellucid explain \"你好，世界\""],
};
