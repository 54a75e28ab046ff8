"use strict";
const LESSON = {
  id: "cache",
  title: ["Prefill, decode and the KV cache", "预填充、解码与 KV 缓存"],
  intro: ["A prompt of {prompt} tokens: instructions for a museum guide, then a question. Later, another question after the same instructions. The engine works in steps: each takes some tokens once through all layers, here at most {budget} of them.",
    "一份 {prompt} 个词元的提示词：先是给博物馆导游的说明，然后是一个问题；之后在同样的说明后面再问另一个问题。引擎一步一步地工作：每一步让若干词元把各层走一遍，这里每步最多 {budget} 个。"],
  facts: (trace) => {
    const [cold, warm, alone] = ["cold", "warm", "alone"].map((name) => run(trace, name));
    const steps = trace.stepsOf("cold");
    const own = (step) => step.seqs.find((one) => one.req === "cold");
    const prefill = steps.filter((step) => own(step).tok0 < cold.prompt.length);
    const decode = steps.filter((step) => own(step).tok0 >= cold.prompt.length);
    const sum = (list) => list.reduce((all, step) => all + step.t1_ns - step.t0_ns, 0);
    const { engine, model } = trace.header;
    const perToken = model.kv_bytes_per_token;
    const numbers = 2 * model.n_layers * model.n_kv_heads * model.head_dim;
    const same = (a, b) => a.samples.length === b.samples.length && a.samples.every((one, k) => one.id === b.samples[k].id && one.logprob_raw === b.samples[k].logprob_raw);
    const cached = warm.prompt.filter((one) => one.cached).length;
    const block = engine.block_size;
    const common = cold.prompt.findIndex((one, pos) => !warm.prompt[pos] || warm.prompt[pos].id !== one.id);
    return {
      prompt: cold.prompt.length, budget: steps[0].token_budget, prefillSteps: prefill.length, readMs: show(sum(prefill) / cold.prompt.length / 1e6, 3), writeMs: show(sum(decode) / decode.length / 1e6, 3), ratio: show(sum(decode) / decode.length / (sum(prefill) / cold.prompt.length), 2),
      isReadFaster: sum(prefill) / cold.prompt.length < sum(decode) / decode.length, perToken, numbers, width: Math.round(perToken / numbers), whole: bytes(perToken * cold.prompt.length), perTokenText: bytes(perToken), layers: model.n_layers, block, common, cached, warmPrompt: warm.prompt.length, left: warm.prompt.length - cached,
      coldTtft: ms(cold.finish.ttft_ns), warmTtft: ms(warm.finish.ttft_ns), share: percent(warm.finish.ttft_ns / cold.finish.ttft_ns), shareNumber: warm.finish.ttft_ns / cold.finish.ttft_ns, isSame: same(warm, alone), aloneCached: alone.prompt.filter((one) => one.cached).length, outputs: warm.samples.length, logprob: warm.samples.at(-1).logprob_raw, aloneLogprob: alone.samples.at(-1).logprob_raw, answer: visible(warm.text).replaceAll("·", " "),
    };
  },
  screens: [
    {
      title: ["Before the first token", "第一个词元之前"],
      text: ["The model must read all {prompt} tokens of the prompt before it can write the first token of the answer.", "模型必须先读完提示词的全部 {prompt} 个词元，才能写出回答的第一个词元。"],
      ask: ["How many steps does the reading take?", "读完需要几步？"],
      choices: (facts) => [["1", ["one: all at once", "一步：一次读完"]], [String(facts.prefillSteps), ["{prefillSteps}: at most {budget} at a time", "{prefillSteps} 步：每次最多 {budget} 个"]], ["all", ["{prompt}: one for each token", "{prompt} 步：每个词元一步"]]],
      answer: (facts) => String(facts.prefillSteps),
      after: (trace) => stepLines(trace, run(trace, "cold"), 7),
      why: ["All tokens of a prompt are known, so many go through the layers together: this is prefill (blue). The engine cuts a long prompt into chunks, so that others who wait for their next token are not held up. Then each new token takes a step of its own, as it must be known before the next: decode (green).",
        "提示词的词元都是已知的，所以许多词元可以一起经过各层：这叫预填充（蓝色）。长提示词要分块处理，免得其他请求等下一个词元等太久。之后每个新词元各占一步，因为有了它才能算下一个：这叫解码（绿色）。"],
    },
    {
      title: ["Reading and writing", "读与写"],
      text: ["A step that reads a chunk takes longer than a step that writes one token.", "读一块的一步，比写一个词元的一步用时更长。"],
      ask: ["And for each token: which is faster?", "那么平均到每个词元，哪个更快？"],
      choices: () => [["read", ["reading: many tokens share a step", "读：许多词元共用一步"]], ["same", ["the same: every token goes through the same layers", "一样：每个词元都经过同样的层"]], ["write", ["writing: its steps are short", "写：每一步都很短"]]],
      answer: (facts) => (facts.isReadFaster ? "read" : "write"),
      after: (trace, facts) => table(inLanguage(["Time per token", "每词元用时"]), [inLanguage(["work", "工作"]), right(t("time")), t("picture")], [[inLanguage(["reading (prefill)", "读（预填充）"]), { is: `${facts.readMs} ms`, class: "n" }, bar(Number(facts.readMs) / Number(facts.writeMs))], [inLanguage(["writing (decode)", "写（解码）"]), { is: `${facts.writeMs} ms`, class: "n" }, bar(1)]], { class: "bars" }),
      why: ["Each step reads the weights of all layers from memory. In decode one token pays for that; in prefill a whole chunk shares it. Here writing a token took {ratio} times as long as reading one. Serving many requests at once makes use of the same: their tokens share a step.",
        "每一步都要把各层的全部权重从内存读一遍。解码时由一个词元独自承担，预填充时由整块分担。这里写一个词元的时间是读一个的 {ratio} 倍。同时服务多个请求，利用的也是这一点：它们的词元共用一步。"],
    },
    {
      title: ["What is kept", "留下什么"],
      text: ["So that a token need not be computed again, what later tokens need of it is kept: a key and a value, two lists of numbers, in each of {layers} layers.", "为了不必重算，后来的词元需要的东西都留着：每个词元在 {layers} 层的每一层各有一个键（K）和一个值（V），都是一列数值。"],
      ask: ["How much memory is that for one token of this small model?", "这个小模型的一个词元占多少内存？"],
      choices: () => [["4", ["4 bytes: its id", "4 字节：它的编号"]], ["1k", ["about 1 kB: the numbers of its last layer", "约 1 kB：它在最后一层的数值"]], ["24k", ["over 20 kB: something of every layer", "20 kB 以上：每一层都有"]]],
      answer: (facts) => (facts.perToken > 20_000 ? "24k" : facts.perToken > 500 ? "1k" : "4"),
      after: (trace, facts) => table(inLanguage(["KV cache", "KV 缓存"]), [inLanguage(["of what", "对象"]), right(inLanguage(["size", "大小"]))], [[inLanguage(["one token", "一个词元"]), { is: facts.perTokenText, class: "n" }], [inLanguage([`the prompt, ${facts.prompt} tokens`, `提示词，${facts.prompt} 个词元`]), { is: facts.whole, class: "n" }]]),
      why: ["{numbers} numbers, about {width} bytes each; a large model needs ten times that or more. Memory for this KV cache limits how many requests run at once. That is why it can also be kept in 8 or 4 bits a number, and why it lies in blocks of {block} tokens that requests can share.",
        "共 {numbers} 个数值，每个约 {width} 字节；大模型可达十倍以上。能同时运行多少请求，受这个 KV 缓存所需内存的限制。所以每个数值也可以只用 8 位或 4 位保存；缓存按块存放，每块 {block} 个词元，请求之间可以共享。"],
    },
    {
      title: ["The second question", "第二个问题"],
      text: ["The first answer began after {coldTtft}. Now the other question: the prompt has {warmPrompt} tokens, and the first {common} are the same as before.", "第一个回答在 {coldTtft} 后开始。现在问另一个问题：提示词有 {warmPrompt} 个词元，其中前 {common} 个与之前相同。"],
      ask: ["How soon does the second answer begin?", "第二个回答要多久才开始？"],
      choices: () => [["little", ["after less than a quarter of that time: little is new", "不到四分之一的时间：新内容很少"]], ["half", ["after about half of that time: what is known is read faster", "约一半时间：见过的内容读得更快"]], ["same", ["after about the same time: it has as many tokens", "时间差不多：词元一样多"]]],
      answer: (facts) => (facts.shareNumber < 0.25 ? "little" : facts.shareNumber < 0.75 ? "half" : "same"),
      after: (trace, facts) => [tokenRow(tokensOf(run(trace, "warm")).slice(-(facts.left + 12)), inLanguage(["The end of the prompt; a double line is cached", "提示词的结尾；双线表示已缓存"])), table(inLanguage(["Time to first token", "首词元延迟（TTFT）"]), [inLanguage(["question", "问题"]), right(t("cached")), right(t("computed")), right(t("time"))], [[inLanguage(["first", "第一个"]), 0, facts.prompt, { is: facts.coldTtft, class: "n" }], [inLanguage(["second", "第二个"]), facts.cached, facts.left, { is: facts.warmTtft, class: "n" }]])],
      why: ["After {warmTtft}, {share} of the time: {cached} tokens (double line) were still in the cache, so only {left} had to be computed. Put what stays the same at the beginning of a prompt and what changes at its end.",
        "{warmTtft} 后就开始了，只用了 {share} 的时间：{cached} 个词元（双线）还在缓存里，只需计算 {left} 个。把不变的内容放在提示词开头，变化的放在结尾。"],
    },
    {
      title: ["Not all of them", "不是全部"],
      text: ["{common} tokens were the same, but {cached} came from the cache.", "相同的有 {common} 个，从缓存取得的却是 {cached} 个。"],
      ask: ["Why not {common}?", "为什么不是 {common} 个？"],
      choices: (facts) => [["age", ["the oldest had been thrown out", "最旧的已被丢弃"]], ["block", ["only whole blocks of {block} tokens are shared", "只共享完整的块，每块 {block} 个词元"]], ["check", ["some are computed again as a check", "为了核对，重算了一部分"]]],
      answer: (facts) => (facts.cached === Math.floor(facts.common / facts.block) * facts.block ? "block" : "age"),
      why: ["{cached} is the largest multiple of {block} in {common}. A block is shared when it is full: then nobody writes into it any more, and one look-up finds all of its {block} tokens.",
        "{cached} 是不超过 {common} 的最大的 {block} 的倍数。块写满了才共享：此后再没有人往里写，而且查一次就能找到其中全部 {block} 个词元。"],
    },
    {
      title: ["Is it the same answer?", "回答一样吗？"],
      text: ["The second question once more, from somebody who may not share that cache (another `cache_salt`): all {warmPrompt} tokens are computed.", "再问一次第二个问题，这次提问者不能共享那份缓存（`cache_salt` 不同）：{warmPrompt} 个词元全部要算。"],
      ask: ["How do the two answers differ?", "两个回答有何不同？"],
      choices: () => [["words", ["in a word here and there", "个别词不同"]], ["digits", ["in the last digits of the probabilities", "概率的末几位不同"]], ["same", ["not at all, to the last bit", "完全相同，一位不差"]]],
      answer: (facts) => (facts.isSame ? "same" : "digits"),
      after: (trace, facts) => table(inLanguage(["The last token's logprob (the logarithm of its probability)", "最后一个词元的对数概率（logprob）"]), [inLanguage(["run", "运行"]), right(t("cached")), right("logprob")], [[inLanguage(["from the cache", "用缓存"]), facts.cached, { is: String(facts.logprob), class: "n" }], [inLanguage(["all computed", "全部计算"]), facts.aloneCached, { is: String(facts.aloneLogprob), class: "n" }]]),
      why: ["All {outputs} tokens and their logprobs are the same bits: “{answer}…” This is a promise of the engine, not of the method: where the order of sums depends on what is computed together, a cache changes the last digits, and now and then a word.",
        "全部 {outputs} 个词元及其对数概率逐位相同：“{answer}……”。这是这个引擎的承诺，而不是方法本身的保证：如果求和顺序取决于哪些词元一起计算，用缓存就会改变末几位数字，偶尔还会改变一个词。"],
    },
  ],
  keep: [["Prefill reads many tokens in a step, decode writes one.", "预填充每步读许多词元，解码每步写一个。"], ["The tokens of a step share one reading of the weights; a lone token pays for all of it.", "同一步的词元分担一次权重读取；只有一个词元时，由它独自承担。"], ["What prompts share at their beginning is computed once.", "提示词开头相同的部分只算一次。"], ["A cache must not change an answer; here tests see to that.", "缓存不得改变回答；这里有测试保证。"]],
  commands: ["pellucid explain \"What is the capital of France?\" --chat", "pellucid serve        # then open http://127.0.0.1:8000/ and ask twice"],
};
