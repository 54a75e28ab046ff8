"use strict";
const LESSON = {
  id: "tokens",
  title: ["Bytes and tokens", "字节与词元"],
  intro: ["A language model never sees letters. Text is bytes; the bytes are joined into pieces from a fixed list, the vocabulary. Such a piece is a token, and all that the model gets is its number (id). Six short texts show what follows from that.",
    "语言模型看不到字母。文本先变成字节，字节再按一张固定的表（词表）拼成片段。这样的片段叫词元，模型拿到的只是它的编号。下面用六段短文本看看这意味着什么。"],
  facts: (trace) => {
    const count = (name) => run(trace, name).prompt.length;
    const id = (name) => String(run(trace, name).prompt[0].id); // a name, not a quantity
    const llama = run(trace, "llama");
    const user = run(trace, "template");
    return {
      word: count("word"), spaced: count("spaced"), helloId: id("hello"), spacedHelloId: id("hello_spaced"), english: count("english"), chinese: count("chinese"),
      chineseCharacters: [...run(trace, "chinese").request.rendered].length, chineseBytes: new TextEncoder().encode(run(trace, "chinese").request.rendered).length,
      typed: count("typed"), endId: user.prompt.filter((one) => one.kind === "special")[1].id,
      llamaTokens: llama.samples.length, llamaFirst: hex(fromBase64(llama.samples[0].bytes_b64)), llamaHeld: llama.emits[0].held_bytes, llamaSecond: llama.emits[1].held_bytes,
    };
  },
  screens: [
    {
      title: ["One word", "一个单词"],
      text: ["`strawberry` has ten letters, and an `r` in it three times.", "`strawberry` 有十个字母，其中 `r` 出现三次。"],
      ask: ["It stands at the start of a text. How many tokens is it?", "它位于文本开头时，是几个词元？"],
      choices: () => [["1", ["one: it is one word", "一个：它是一个单词"]], ["2", ["two: `straw` and `berry`", "两个：`straw` 和 `berry`"]], ["3", ["three: the pieces need not make sense", "三个：片段不必有意义"]], ["10", ["ten: one for each letter", "十个：每个字母一个"]]],
      answer: (facts) => String(facts.word),
      after: (trace) => tokenRow(tokensOf(run(trace, "word")), "strawberry"),
      why: ["The vocabulary was made by joining, over and over, the two neighbours that stand together most often in a large text. Common words became one token, others are put together from pieces, and the pieces need not make sense. The model gets {word} numbers. It does not see three `r` in them; it knows only if it learned so, like somebody who speaks a language but has never seen it written.",
        "词表是这样做成的：在大量文本中一次又一次地合并最常相邻的两个片段。常见词成为一个词元，其余由片段拼成，片段本身不一定有意义。模型拿到的是 {word} 个编号，从中看不出有三个 `r`，除非学过——就像一个会说某种语言、却从未见过其文字的人。"],
    },
    {
      title: ["A space in front", "前面加一个空格"],
      text: ["The same word inside a sentence has a space before it.", "同一个词放在句子中间，前面就有一个空格。"],
      ask: ["How many tokens is `·strawberry` (the dot is the space)?", "`·strawberry`（圆点表示空格）是几个词元？"],
      choices: () => [["1", ["one, the space included", "一个，包括空格"]], ["3", ["three, as before", "三个，和之前一样"]], ["4", ["four: the space and the three pieces", "四个：空格加三个片段"]]],
      answer: (facts) => String(facts.spaced),
      after: (trace) => h("div", { class: "pair" }, tokenRow(tokensOf(run(trace, "word")), "strawberry"), tokenRow(tokensOf(run(trace, "spaced")), "·strawberry")),
      why: ["Most words follow a space, so the space was joined to the word: `·strawberry` is common enough for a number of its own, `strawberry` without a space is not. This is why a prompt that ends in a space often gets odd answers: the next token would have brought its own space.",
        "单词大多跟在空格后面，于是空格被并入单词：`·strawberry` 足够常见，有自己的编号；不带空格的 `strawberry` 则没有。提示词以空格结尾时，回答往往变得奇怪，原因就在这里：下一个词元本来自带空格。"],
    },
    {
      title: ["Hello twice", "两个 Hello"],
      text: ["`Hello` and `·Hello` are one token each.", "`Hello` 和 `·Hello` 各是一个词元。"],
      ask: ["What in these numbers tells the model that both are the same word?", "从编号上，模型凭什么知道它们是同一个词？"],
      choices: () => [["near", ["the two ids are neighbours", "两个编号相邻"]], ["nothing", ["nothing: the two ids are unrelated", "看不出来：两个编号毫无关系"]], ["flag", ["it is one id, with a mark for the space", "编号相同，另加一个空格标记"]]],
      answer: (facts) => (Math.abs(Number(facts.helloId) - Number(facts.spacedHelloId)) > 1 ? "nothing" : "near"),
      after: (trace) => h("div", { class: "pair" }, tokenRow(tokensOf(run(trace, "hello")), "Hello"), tokenRow(tokensOf(run(trace, "hello_spaced")), "·Hello")),
      why: ["#{helloId} and #{spacedHelloId} choose two rows of a table of learned numbers (the embedding table). What the two have in common is learned from text, like everything else. The same goes for upper and lower case, accents and word endings.",
        "#{helloId} 和 #{spacedHelloId} 只是选中一张表（嵌入表）中的两行数字，这些数字是训练出来的。两者有什么共同之处，和其他一切一样，要从文本中学到。大小写、重音符号、词尾变化也是如此。"],
    },
    {
      title: ["Another script", "另一种文字"],
      text: ["For this model, trained on English, `Hello, world` is {english} tokens. `你好，世界` says the same in {chineseCharacters} characters, the comma included.", "这个模型以英文训练，`Hello, world` 对它是 {english} 个词元。`你好，世界` 用 {chineseCharacters} 个字符（含逗号）表达同样的意思。"],
      ask: ["How many tokens is `你好，世界`?", "`你好，世界` 是几个词元？"],
      choices: (facts) => [["meaning", ["{english}: it means the same", "{english} 个：意思相同"]], ["characters", ["{chineseCharacters}: one for each character", "{chineseCharacters} 个：每个字符一个"]], ["pieces", ["{chinese}: most characters are cut", "{chinese} 个：多数字符被切开"]], ["bytes", ["{chineseBytes}: one for each byte", "{chineseBytes} 个：每个字节一个"]]],
      answer: (facts) => (facts.chinese === facts.chineseBytes ? "bytes" : facts.chinese > facts.chineseCharacters ? "pieces" : facts.chinese === facts.chineseCharacters ? "characters" : "meaning"),
      after: (trace) => [tokenRow(tokensOf(run(trace, "chinese")), "你好，世界", { withBytes: true }), tokenRow(tokensOf(run(trace, "english")), "Hello, world", { withBytes: true })],
      why: ["Each of these characters is three bytes in UTF-8, {chineseBytes} in all. This vocabulary joins few Chinese bytes, so most tokens are parts of a character (dotted line). The same greeting costs {chinese} tokens instead of {english}: more time, more memory, less room for other text. The vocabulary of Qwen, made with much Chinese text, has one token for `你好` and one for `世界`.",
        "这里每个字符在 UTF-8 中占三个字节，共 {chineseBytes} 个字节。这张词表很少合并中文的字节，所以多数词元只是字符的一部分（点线）。同一句问候要 {chinese} 个词元而不是 {english} 个：更慢、更占内存，留给其他内容的空间也更少。Qwen 的词表是用大量中文文本做成的，`你好` 和 `世界` 在其中各是一个词元。"],
    },
    {
      title: ["Half a llama", "半只羊驼"],
      text: ["The model must answer `🦙`: four bytes, for this model {llamaTokens} tokens. The client is sent the text while it is written (streaming). The first token is there, the bytes `{llamaFirst}`.", "规定模型必须回答 `🦙`：四个字节，对这个模型是 {llamaTokens} 个词元。客户端边生成边接收文本（流式输出）。第一个词元已经产生，是字节 `{llamaFirst}`。"],
      ask: ["What does the client get now?", "此刻客户端收到什么？"],
      choices: () => [["broken", ["`�`, for what is not complete yet", "`�`，表示尚不完整的字符"]], ["nothing", ["nothing yet", "暂时什么都没有"]], ["bytes", ["these {llamaHeld} bytes", "这 {llamaHeld} 个字节"]]],
      answer: (facts) => (facts.llamaHeld > 0 ? "nothing" : "broken"),
      after: (trace) => emissions(run(trace, "llama"), inLanguage(["What went out, and what was held back", "送出的与暂留的内容"])),
      why: ["A token may end in the middle of a character. The engine holds its bytes back ({llamaHeld}, then {llamaSecond}) until the character is whole, and then sends it. If an engine does not, emoji and Chinese text show `�` while they stream.",
        "词元可能在字符中间结束。引擎把这些字节先留住（先是 {llamaHeld} 个，然后 {llamaSecond} 个），等字符完整了再一次送出。不这样做的引擎，流式输出表情符号或中文时会出现 `�`。"],
    },
    {
      title: ["Control tokens", "控制词元"],
      text: ["In a chat, control tokens mark who speaks: #{endId}, shown as `<|im_end|>`, ends a message. A user types exactly these ten characters into a message: `Hi<|im_end|>`.", "对话靠控制词元标明谁在说话：#{endId} 显示为 `<|im_end|>`，表示一条消息结束。现在用户在消息里逐字输入了这十个字符：`Hi<|im_end|>`。"],
      ask: ["Does the message end there?", "消息在那里就结束了吗？"],
      choices: () => [["yes", ["yes: this text is that token", "是：这段文本就是该词元"]], ["no", ["no: it stays text", "否：它仍是普通文本"]], ["gone", ["no: the engine takes it out", "否：引擎会把它删掉"]]],
      answer: (facts) => (facts.typed > 1 ? "no" : "yes"),
      after: (trace) => tokenRow(tokensOf(run(trace, "template")).slice(-16), "Hi<|im_end|>"),
      why: ["This engine never reads a user's text as control: it became {typed} ordinary tokens. The real control tokens (dashed frame) were set by the chat template. In an engine that does read it, anybody can forge the model's answer or a system message inside their own.",
        "这个引擎绝不把用户的文本当作控制词元：它变成了 {typed} 个普通词元，真正的控制词元（虚线框）由对话模板放入。如果引擎照单全收，任何人都能在自己的消息里伪造模型的回答或系统消息。"],
    },
  ],
  keep: [["For the model a token is a number; how tokens are related is learned.", "对模型来说，词元只是编号；彼此的关系全靠学习。"], ["A space belongs to the word after it.", "空格属于它后面的词。"],
    ["Cost is counted in tokens, and a script that the vocabulary hardly knows costs more.", "成本按词元计；词表不熟悉的文字更贵。"], ["Text typed by a user must never become a control token.", "用户输入的文本绝不能变成控制词元。"]],
  commands: ["pellucid tokenize \"strawberry\"", "pellucid tokenize \" strawberry\"", "pellucid tokenize \"你好，世界\"", "pellucid explain \"你好，世界\""],
};
