#include "ops.h"

#include <algorithm>
#include <cstring>

namespace pellucid {

namespace {

uint8_t* align64(std::vector<uint8_t>& buffer, size_t bytes) {
  if (buffer.size() < bytes + 64) buffer.resize(bytes + 64);
  return reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(buffer.data()) + 63) & ~uintptr_t{63});
}

}  // namespace

Runtime::Runtime(int threads, const std::string& isa) : kernels_(choose_kernels(isa)), pool_(threads) {}

std::unique_ptr<PackedMatrix> Runtime::pack(const std::vector<SegmentSource>& sources, int64_t columns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::make_unique<PackedMatrix>(arena_, pool_, sources, columns);
}

void Runtime::embed(const PackedMatrix& table, const int32_t* ids, float scale, Rows out) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto one = [&](int64_t i) {
    const Segment& seg = table.segment_of_row(ids[i]);
    const int64_t row = ids[i] - seg.first_row;
    kernels_.decode_row(kFormats[seg.format], seg.panel(row / kPanelRows), table.columns(),
                        static_cast<int>(row % kPanelRows), scale, out.row(i));
  };
  each_row(out.count, one);
}

void Runtime::rms_norm(Rows x, Norm norm, Rows out) {
  const std::lock_guard<std::mutex> lock(mutex_);
  each_row(x.count, [&](int64_t i) { kernels_.rms_norm_row(x.row(i), norm.weight, norm.eps, x.width, out.row(i)); });
}

void Runtime::rms_norm_add(Rows x, Norm norm, Rows residual) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto one = [&](int64_t i) {
    kernels_.rms_norm_add_row(x.row(i), norm.weight, norm.eps, x.width, residual.row(i));
  };
  each_row(x.count, one);
}

void Runtime::layer_norm(Rows x, const float* weight, const float* bias, float eps, Rows out) {
  const std::lock_guard<std::mutex> lock(mutex_);
  each_row(x.count, [&](int64_t i) { kernels_.layer_norm_row(x.row(i), weight, bias, eps, x.width, out.row(i)); });
}

void Runtime::activate(Rows x, Activation activation, bool gated, Rows out) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto one = [&](int64_t i) {
    kernels_.gate_row(x.row(i), gated ? x.row(i) + out.width : nullptr, activation, out.width, out.row(i));
  };
  each_row(x.count, one);
}

void Runtime::linear(Rows x, Norm norm, const PackedMatrix& w, Rows out) {
  product(x, norm, w, Epilogue::Store, Activation::Silu, out);
}
void Runtime::linear_add(Rows x, const PackedMatrix& w, Rows residual) {
  product(x, {nullptr, 0.0f}, w, Epilogue::Add, Activation::Silu, residual);
}
void Runtime::linear_gated(Rows x, Norm norm, const PackedMatrix& w, Activation activation, Rows out) {
  product(x, norm, w, Epilogue::Gate, activation, out);
}

void Runtime::product(Rows x, Norm norm, const PackedMatrix& w, Epilogue epilogue, Activation activation, Rows out) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (x.count == 0) return;
  const int workers = pool_.size();
  const int64_t k = w.columns();
  const size_t qstride = w.has_int() ? QuantizedRow::bytes(k) : 0;
  const bool need_rows = norm.weight != nullptr;  // normalised rows need a place of their own
  // A row or two are prepared by every worker for itself: cheaper than waiting for each other.
  const bool redundant = x.count <= 2;
  const size_t copies = redundant ? static_cast<size_t>(workers) : 1;
  const size_t qbytes = qstride * static_cast<size_t>(x.count);
  const size_t fcount = need_rows ? static_cast<size_t>(x.count * k) : 0;
  uint8_t* const qbase = align64(quantized_, qbytes * copies);
  if (normalized_.size() < fcount * copies) normalized_.resize(fcount * copies);
  float* const fbase = normalized_.data();

  const auto prepare = [&](int64_t i, uint8_t* q, float* f) {
    const float* row = x.row(i);
    if (need_rows) {
      kernels_.rms_norm_row(row, norm.weight, norm.eps, k, f + i * k);
      row = f + i * k;
    }
    if (qstride) kernels_.quantize_row(row, k, q + static_cast<size_t>(i) * qstride);
  };
  if (!redundant) {
    Shares rows(x.count, workers);
    pool_.run([&](int worker) { rows.each(worker, [&](int64_t i) { prepare(i, qbase, fbase); }); });
  }
  Shares panels(epilogue == Epilogue::Gate ? w.panels() / 2 : w.panels(), workers);
  pool_.run([&](int worker) {
    uint8_t* const q = qbase + (redundant ? static_cast<size_t>(worker) * qbytes : 0);
    float* const f = fbase + (redundant ? static_cast<size_t>(worker) * fcount : 0);
    for (int64_t i = 0; redundant && i < x.count; ++i) prepare(i, q, f);
    const float* frows = need_rows ? f : x.data;
    const size_t fstride = static_cast<size_t>(need_rows ? k : x.stride) * 4;
    panels.each(worker, [&](int64_t p) { finish_panel(w, q, qstride, frows, fstride, p, epilogue, activation, out); });
  });
}

void Runtime::finish_panel(const PackedMatrix& w, const uint8_t* qrows, size_t qstride, const float* frows,
                           size_t fstride, int64_t panel, Epilogue epilogue, Activation activation, Rows out) const {
  constexpr int kBlock = 64;
  alignas(64) float first[kBlock * kPanelRows];
  alignas(64) float second[kBlock * kPanelRows];
  const auto multiply = [&](int64_t p, int64_t row, int count, float* to) -> const Segment& {
    const Segment& seg = w.segment_of_panel(p);
    const bool as_float = kFormats[seg.format].is_float();
    const size_t stride = as_float ? fstride : qstride;
    const uint8_t* rows = (as_float ? reinterpret_cast<const uint8_t*>(frows) : qrows) + static_cast<size_t>(row) * stride;
    kernels_.panel[seg.format](seg.panel(p - seg.first_panel), w.columns(), rows, stride, count, to);
    return seg;
  };
  for (int64_t row = 0; row < out.count; row += kBlock) {
    const int count = static_cast<int>(std::min<int64_t>(kBlock, out.count - row));
    const Segment& seg = multiply(panel, row, count, first);
    const int64_t local = (panel - seg.first_panel) * kPanelRows;
    const int64_t column = seg.first_row + local;
    const int64_t width = std::min<int64_t>(kPanelRows, seg.rows - local);
    if (epilogue == Epilogue::Gate) multiply(panel + w.panels() / 2, row, count, second);
    for (int i = 0; i < count; ++i) {
      float* to = out.row(row + i) + column;
      const float* from = first + i * kPanelRows;
      if (epilogue == Epilogue::Store) {
        std::memcpy(to, from, static_cast<size_t>(width) * 4);
      } else if (epilogue == Epilogue::Add) {
        for (int64_t j = 0; j < width; ++j) to[j] += from[j];
      } else {
        kernels_.gate_row(from, second + i * kPanelRows, activation, width, to);
      }
    }
  }
}

}  // namespace pellucid
