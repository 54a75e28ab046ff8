"use strict";
const LESSON = {
  id: "cache",
  title: ["Prefill, decode and the KV cache", "预填充、解码与 KV 缓存"],
  intro: ["A question of {prompt} tokens, most of them a guide's instructions, on an engine that computes at most {budget} tokens a step. Then a second question behind the same instructions.",
    "一个 {prompt} 个词元的问题，大部分是导游的说明；引擎每步最多计算 {budget} 个词元。然后在同样的说明后面问第二个问题。"],
  facts: (trace) => {
    const [cold, warm, alone] = ["cold", "warm", "alone"].map((name) => run(trace, name));
    const steps = trace.stepsOf("cold");
    const own = (step) => step.seqs.find((one) => one.req === "cold");
    const prefill = steps.filter((step) => own(step).tok0 < cold.prompt.length);
    const decode = steps.filter((step) => own(step).tok0 >= cold.prompt.length);
    const sum = (list) => list.reduce((all, step) => all + step.t1_ns - step.t0_ns, 0);
    const { engine, model } = trace.header;
    const perToken = model.kv_bytes_per_token;
    const same = (a, b) => a.samples.length === b.samples.length && a.samples.every((one, k) => one.id === b.samples[k].id && one.logprob_raw === b.samples[k].logprob_raw);
    const cached = warm.prompt.filter((one) => one.cached).length;
    const block = engine.block_size;
    const common = cold.prompt.findIndex((one, pos) => !warm.prompt[pos] || warm.prompt[pos].id !== one.id);
    return {
      prompt: cold.prompt.length, budget: steps[0].token_budget, prefillSteps: prefill.length, readMs: show(sum(prefill) / cold.prompt.length / 1e6, 3), writeMs: show(sum(decode) / decode.length / 1e6, 3), ratio: show(sum(decode) / decode.length / (sum(prefill) / cold.prompt.length), 2),
      isReadFaster: sum(prefill) / cold.prompt.length < sum(decode) / decode.length, perToken, whole: bytes(perToken * cold.prompt.length), perTokenText: bytes(perToken), layers: model.n_layers, block, common, cached, warmPrompt: warm.prompt.length, left: warm.prompt.length - cached,
      coldTtft: ms(cold.finish.ttft_ns), warmTtft: ms(warm.finish.ttft_ns), share: percent(warm.finish.ttft_ns / cold.finish.ttft_ns), shareNumber: warm.finish.ttft_ns / cold.finish.ttft_ns, isSame: same(warm, alone), aloneCached: alone.prompt.filter((one) => one.cached).length, outputs: warm.samples.length, logprob: warm.samples.at(-1).logprob_raw, aloneLogprob: alone.samples.at(-1).logprob_raw, answer: visible(textOf(warm)).replaceAll("·", " "),
    };
  },
  screens: [
    {
      title: ["Before the first token", "第一个词元之前"],
      text: ["The model must have read all {prompt} tokens of the prompt before it can draw one.", "模型必须先读完提示词的全部 {prompt} 个词元，才能抽取第一个词元。"],
      ask: ["How many steps does that take?", "这需要几步？"],
      choices: (facts) => [["1", ["one", "一步"]], [String(facts.prefillSteps), ["{prefillSteps}", "{prefillSteps} 步"]], ["all", ["{prompt}, one a token", "{prompt} 步，每词元一步"]]],
      answer: (facts) => String(facts.prefillSteps),
      after: (trace) => stepLines(trace, run(trace, "cold"), 7),
      why: ["The tokens of a prompt are known, so many go through the layers together: this is prefill (blue). The engine takes it in chunks so that others, who wait for their next token, are not held up by a long prompt. Then each new token is a step of its own: decode (green).",
        "提示词的词元都是已知的，所以许多词元可以一起经过各层：这叫预填充（蓝色）。引擎把它分块处理，以免别人等待下一个词元时被长提示词耽误。之后每个新词元各占一步：这叫解码（绿色）。"],
    },
    {
      title: ["Reading and writing", "读与写"],
      text: ["Look at the times of those steps: a chunk takes longer than a single token.", "看看这些步的用时：一块比单个词元用时更长。"],
      ask: ["And for one token: which is faster?", "那么平均到每个词元，哪个更快？"],
      choices: () => [["read", ["reading", "读"]], ["same", ["the same: the same layers", "一样：同样的层"]], ["write", ["writing", "写"]]],
      answer: (facts) => (facts.isReadFaster ? "read" : "write"),
      after: (trace, facts) => table(inLanguage(["Time per token", "每词元用时"]), [inLanguage(["work", "工作"]), t("time"), t("picture")], [[inLanguage(["reading (prefill)", "读（预填充）"]), { is: `${facts.readMs} ms`, class: "n" }, bar(Number(facts.readMs) / Number(facts.writeMs))], [inLanguage(["writing (decode)", "写（解码）"]), { is: `${facts.writeMs} ms`, class: "n" }, bar(1)]], { class: "bars" }),
      why: ["For each step all weights must come from memory. In decode one token pays for that; in prefill a whole chunk shares it. Writing a token took {ratio} times as long as reading one. Serving many requests at once uses the same fact: their tokens share the step.",
        "每一步都要把全部权重从内存读一遍。解码时由一个词元承担；预填充时整块分担。写一个词元的时间是读一个的 {ratio} 倍。同时服务多个请求利用的是同一件事：它们的词元分担同一步。"],
    },
    {
      title: ["What is kept", "留下什么"],
      text: ["So that a token need not be computed again, its keys and values stay: in each of {layers} layers, for each head.", "为了不必重算，每个词元的键和值都留下：{layers} 层，每层每个头。"],
      ask: ["How much memory is that for one token of this small model?", "这个小模型的一个词元占多少内存？"],
      choices: () => [["4", ["4 bytes: its id", "4 字节：它的编号"]], ["1k", ["about 1 kB", "约 1 kB"]], ["24k", ["over 20 kB", "20 kB 以上"]]],
      answer: (facts) => (facts.perToken > 20_000 ? "24k" : facts.perToken > 500 ? "1k" : "4"),
      after: (trace, facts) => table(inLanguage(["KV cache", "KV 缓存"]), [inLanguage(["of what", "对象"]), inLanguage(["size", "大小"])], [[inLanguage(["one token", "一个词元"]), facts.perTokenText], [inLanguage([`the prompt, ${facts.prompt} tokens`, `提示词，${facts.prompt} 个词元`]), facts.whole]]),
      why: ["{perTokenText} a token, {whole} for the prompt; a large model needs ten times that and more. That is what limits how many requests run at once, why the cache can be kept in 8 or 4 bits, and why it lives in blocks of {block} tokens that can be shared.",
        "每词元 {perTokenText}，整个提示词 {whole}；大模型是这里的十倍以上。它限制了能同时运行多少请求，所以缓存可以用 8 位或 4 位保存，并放在可共享的块中，每块 {block} 个词元。"],
    },
    {
      title: ["The second question", "第二个问题"],
      text: ["The next request has {warmPrompt} tokens; the first {common} are the same as before. The first answer began after {coldTtft}.", "下一个请求有 {warmPrompt} 个词元，其中前 {common} 个与之前相同。第一次的回答在 {coldTtft} 后开始。"],
      ask: ["After what part of that time does the second answer begin?", "第二个回答在多大比例的时间后开始？"],
      choices: () => [["same", ["about the same: it has as many tokens", "差不多：词元一样多"]], ["half", ["about half", "约一半"]], ["little", ["under a fifth", "不到五分之一"]]],
      answer: (facts) => (facts.shareNumber < 0.2 ? "little" : facts.shareNumber < 0.75 ? "half" : "same"),
      after: (trace, facts) => [tokenRow(tokensOf(run(trace, "warm")).slice(-(facts.left + 12)), inLanguage(["the end of the prompt; a double line is cached", "提示词结尾；双线为已缓存"])), table(inLanguage(["Time to first token", "首词元时间"]), [inLanguage(["question", "问题"]), t("cached"), t("computed"), t("time")], [[inLanguage(["first", "第一次"]), 0, facts.prompt, facts.coldTtft], [inLanguage(["second", "第二次"]), facts.cached, facts.left, facts.warmTtft]])],
      why: ["After {warmTtft}: {share} of it. {cached} tokens were in the cache, only {left} had to be computed. Put what stays the same at the beginning of a prompt and what changes at its end.",
        "{warmTtft} 后开始：占 {share}。{cached} 个词元在缓存里，只需计算 {left} 个。把不变的内容放在提示词开头，变化的放在结尾。"],
    },
    {
      title: ["Not all of them", "并非全部"],
      text: ["{common} tokens were the same, {cached} came from the cache.", "相同的有 {common} 个，从缓存取得 {cached} 个。"],
      ask: ["Why not {common}?", "为什么不是 {common} 个？"],
      choices: (facts) => [["age", ["the oldest had been thrown out", "最旧的已被丢弃"]], ["block", ["only whole blocks of {block} are shared", "只有完整的 {block} 词元块才共享"]], ["check", ["some are computed again to be sure", "为保险重算了一部分"]]],
      answer: (facts) => (facts.cached === Math.floor(facts.common / facts.block) * facts.block ? "block" : "age"),
      why: ["{cached} is the largest multiple of {block} in {common}. A block is shared whole or not at all, which makes finding one a single look-up and keeps requests from writing into each other's.",
        "{cached} 是不超过 {common} 的最大的 {block} 的倍数。块要么整块共享，要么不共享：查找只需一次，请求之间也不会互相写入。"],
    },
    {
      title: ["Is it the same answer?", "答案一样吗？"],
      text: ["The second question once more, for another tenant who may not use that cache: all {warmPrompt} tokens are computed.", "再问一次第二个问题，这次是不能使用该缓存的另一租户：{warmPrompt} 个词元全部重算。"],
      ask: ["How do the two answers differ?", "两个回答有何不同？"],
      choices: () => [["words", ["in a word here and there", "个别词不同"]], ["digits", ["in the last digits of the probabilities", "概率的末几位不同"]], ["same", ["not at all, to the last bit", "完全相同，一位不差"]]],
      answer: (facts) => (facts.isSame ? "same" : "digits"),
      after: (trace, facts) => table(inLanguage(["The last token's logprob", "最后一个词元的对数概率"]), [inLanguage(["run", "运行"]), inLanguage(["cached tokens", "已缓存词元"]), "logprob"], [[inLanguage(["from the cache", "用缓存"]), facts.cached, String(facts.logprob)], [inLanguage(["computed", "重算"]), facts.aloneCached, String(facts.aloneLogprob)]]),
      why: ["All {outputs} tokens and their logprobs are the same bits: “{answer}”. That is a promise of this engine, not of the method: where sums are made in another order for another batch, caching changes last digits, and now and then a word.",
        "全部 {outputs} 个词元及其对数概率逐位相同：“{answer}”。这是本引擎的承诺，而非方法本身的保证：若求和顺序随批次变化，缓存会改变末几位，偶尔也会改变一个词。"],
    },
  ],
  keep: [["Prefill reads many tokens a step, decode writes one.", "预填充每步读许多词元，解码每步写一个。"], ["Many tokens in a step share one look at the weights; a lone token pays for it.", "同一步里的许多词元共用一次权重读取；单独的词元则独自承担。"], ["What prompts share at their beginning is computed once.", "提示词开头相同的部分只算一次。"], ["A cache must not change an answer; here a test holds that.", "缓存不得改变答案；这里有测试保证。"]],
  commands: ["pellucid explain \"What is the capital of France?\" --chat", "pellucid serve        # then open http://127.0.0.1:8000/ and ask twice"],
};
