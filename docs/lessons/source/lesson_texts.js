"use strict";
/* What every lesson says: [English, Chinese]. */
const TEXTS = {
  "lesson": ["lesson", "课程"], "theme": ["Light / dark", "浅色 / 深色"], "table": ["Table", "表格"],
  "as_table": ["The numbers as a table ({n} rows)", "以表格显示数据（{n} 行）"], "rows_cut": ["The first {n} rows; {hidden} more are not shown.", "仅显示前 {n} 行；另有 {hidden} 行未显示。"],
  "badge.measured": ["measured", "实测"], "badge.recomputed": ["recomputed", "重算"], "badge.derived": ["derived", "推导"],
  "badge.measured.title": ["Noted by the engine while it ran", "引擎运行时记录"], "badge.recomputed.title": ["Computed again afterwards from the same data", "事后用同样的数据重新计算"], "badge.derived.title": ["Computed in this page from the numbers of the trace", "由本页根据记录计算"],
  "loading": ["Unpacking the trace…", "正在解压记录…"], "load_failed": ["The trace in this file cannot be read: {why}", "无法读取文件中的记录：{why}"],
  "recorded": ["Recorded from {model}: no picture here is drawn from theory.", "录自 {model} 的真实运行：图中没有一个数字是编的。"],
  "how": ["Predict first, then look. Keys 1 to 9 choose, Enter reveals.", "先预测，再看结果。数字键选择，回车揭晓。"],
  "predict": ["Reveal", "揭晓"], "your_guess": ["Your prediction", "你的预测"], "choose_first": ["Choose an answer first.", "请先选择一个答案。"],
  "right": ["As you predicted.", "与你的预测一致。"], "wrong": ["Not what you predicted. The run shows: {answer}", "与你的预测不同。实际结果：{answer}"], "shown": ["The run shows: {answer}", "实际结果：{answer}"],
  "why": ["Why", "为什么"], "show_all": ["Show everything", "全部展开"], "again": ["Start again", "重新开始"], "progress": ["{done} of {all} answered", "已答 {done} / {all}"],
  "score": ["{right} of {all} predictions came true.", "{all} 个预测中有 {right} 个正确。"], "score_none": ["Everything is shown; nothing was predicted.", "已全部展开；没有作出预测。"],
  "try": ["Do it yourself", "自己动手"], "takeaway": ["What to keep", "要点"],
  "token": ["Token", "词元"], "id": ["id", "编号"], "bytes": ["Bytes", "字节"], "position": ["Position", "位置"], "layer": ["Layer", "层"], "probability": ["Probability", "概率"], "picture": ["Picture", "图示"], "time": ["Time", "时间"],
  "step": ["Step", "步"], "rows": ["Tokens computed", "计算的词元"], "per_token": ["Time per token", "每词元用时"], "text_out": ["Goes out", "送出"], "held": ["Held back", "暂留"], "why_held": ["Why", "原因"], "chosen": ["drawn", "抽中"], "others": ["all others", "其余所有"],
  "held.incomplete UTF-8": ["half a character", "不完整的字符"], "held.possible stop string": ["may become a stop string", "可能是停止字符串"], "nothing": ["nothing", "无"],
  "word": ["Word", "词"], "weight": ["Weight", "权重"], "count": ["Times", "次数"], "special": ["control", "控制"], "looks": ["looks at", "看向"], "cached": ["cached", "已缓存"], "computed": ["computed", "已计算"],
};
