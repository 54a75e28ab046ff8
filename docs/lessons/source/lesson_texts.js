"use strict";
/* What every lesson says: [English, Chinese]. */
const TEXTS = {
  "lesson": ["lesson", "课程"], "theme": ["Light / dark", "浅色 / 深色"], "table": ["Table", "表格"],
  "badge.recomputed": ["recomputed", "重算"], "badge.recomputed.title": ["Computed again afterwards from the same data", "事后用同样的数据重新计算"],
  "loading": ["Unpacking the trace…", "正在解压记录…"], "load_failed": ["The trace in this file cannot be read: {why}", "无法读取文件中的记录：{why}"],
  "recorded": ["Recorded from runs of {model}: every number in the pictures is theirs.", "录自 {model} 的真实运行：图中每个数字都来自这些运行。"],
  "how": ["Predict first, then look. Keys 1 to 9 choose, Enter reveals.", "先预测，再看结果。按数字键选择，按回车揭晓。"],
  "predict": ["Reveal", "揭晓"],
  "right": ["As you predicted.", "与你的预测一致。"], "wrong": ["Not what you predicted. The run shows: {answer}", "与你的预测不同。实际结果：{answer}"], "shown": ["The run shows: {answer}", "实际结果：{answer}"],
  "why": ["Why", "为什么"], "show_all": ["Show everything", "全部展开"], "again": ["Start again", "重新开始"], "progress": ["{done} of {all} answered", "已答 {done} / {all}"],
  "score": ["{right} of {all} predictions came true.", "{all} 个预测中有 {right} 个正确。"], "score_none": ["Everything is shown; nothing was predicted.", "已全部展开；没有作出预测。"],
  "try": ["Do it yourself", "自己动手"], "takeaway": ["What to keep", "要点"],
  "token": ["Token", "词元"], "probability": ["Probability", "概率"], "picture": ["Picture", "图示"], "time": ["Time", "时间"],
  "step_n": ["Step {n}", "第 {n} 步"], "text_out": ["Goes out", "送出"], "held": ["Held back", "暂留"], "held_bytes": ["{n} bytes: {why}", "{n} 字节：{why}"], "chosen": ["chosen", "选中"], "others": ["all others", "其余所有"],
  "held.incomplete UTF-8": ["part of a character", "不完整的字符"], "held.possible stop string": ["may become a stop string", "可能成为停止字符串"], "nothing": ["nothing", "无"],
  "word": ["Word", "词"], "weight": ["Weight", "权重"], "count": ["Times", "次数"], "looks": ["looks at", "看向"], "cached": ["cached", "已缓存"], "computed": ["computed", "新计算"],
};
