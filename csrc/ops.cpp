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

// Rows times a matrix, and what becomes of the products.
struct Runtime::Product {
  Rows x;
  Norm norm;
  const PackedMatrix& w;
  Epilogue epilogue;
  Activation activation;
  Rows out;
  const float* bias;  // [matrix rows], or nullptr
  const Products& kernels;
  int64_t panels() const { return epilogue == Epilogue::Gate ? w.panels() / 2 : w.panels(); }
  bool tiles() const { return kernels.enter && x.count >= kTileRows; }
  Product part(const Run& run, const Products& with) const {
    const int64_t count = run.end - run.begin;
    return {{x.row(run.begin), count, x.width, x.stride}, norm, w, epilogue, activation,
            {out.row(run.begin), count, out.width, out.stride}, bias, with};
  }
};

// Rows in the kernels' form and scratch memory: one copy for all workers, or one for each.
struct Runtime::Prepared {
  uint8_t* rows;
  float* normalized;
  uint8_t* scratch;
  size_t row_stride, copy_bytes;     // 0: the matrix takes no prepared rows
  size_t float_stride, copy_floats;  // in numbers; 0: the rows are taken as they are
  size_t scratch_bytes;
  Prepared for_worker(int worker, bool own_rows) const {
    Prepared p = *this;
    const size_t w = static_cast<size_t>(worker);
    p.scratch += w * scratch_bytes;
    if (own_rows) {
      p.rows += w * copy_bytes;
      p.normalized += w * copy_floats;
    }
    return p;
  }
};

namespace {

// Tile registers are a thread's own: set up for its share of one product, and given back after it.
class TileSession {
 public:
  TileSession(const Products& kernels, bool tiles) : kernels_(tiles ? &kernels : nullptr) {
    if (kernels_) kernels_->enter();
  }
  ~TileSession() {
    if (kernels_) kernels_->leave();
  }
  TileSession(const TileSession&) = delete;

 private:
  const Products* kernels_;
};

// Writes or adds one row of a panel's products, then their biases; nearly all have the full width, which the compiler
// then knows.
inline void put(float* __restrict to, const float* __restrict from, const float* __restrict bias, int64_t width, bool add) {
  const auto each = [&](int64_t count) {
    if (add)
      for (int64_t j = 0; j < count; ++j) to[j] += from[j];
    else
      for (int64_t j = 0; j < count; ++j) to[j] = from[j];
    if (bias)
      for (int64_t j = 0; j < count; ++j) to[j] += bias[j];
  };
  if (width == kPanelRows)
    each(kPanelRows);
  else
    each(width);
}

constexpr int64_t kBlock = 64;  // rows that a kernel takes at once

}  // namespace

void Runtime::linear(Rows x, Norm norm, const PackedMatrix& w, const float* bias, Rows out, const Runs& runs) {
  products({x, norm, w, Epilogue::Store, Activation::Silu, out, bias, kernels_.exact}, runs);
}
void Runtime::linear_add(Rows x, const PackedMatrix& w, const float* bias, Rows residual, const Runs& runs) {
  products({x, {nullptr, 0.0f}, w, Epilogue::Add, Activation::Silu, residual, bias, kernels_.exact}, runs);
}
void Runtime::linear_gated(Rows x, Norm norm, const PackedMatrix& w, Activation activation, Rows out, const Runs& runs) {
  products({x, norm, w, Epilogue::Gate, activation, out, nullptr, kernels_.exact}, runs);
}

void Runtime::products(const Product& call, const Runs& runs) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (runs.empty() && call.x.count > 0) product(call);
  for (const Run& run : runs) {
    // A few rows would leave a tile empty, and cost no more when computed exactly.
    const bool fast = run.fast && (!kernels_.fast.enter || run.end - run.begin >= kTileRows);
    product(call.part(run, fast ? kernels_.fast : kernels_.exact));
  }
}

void Runtime::product(const Product& call) {
  // A block's activations stay in the nearest caches while the panels pass by; the larger the matrix, the more rows
  // must share what is read from memory, or what floats of two bytes are made into.
  constexpr size_t kSmallMatrix = 4 << 20;
  const int64_t block = call.tiles() || !call.w.has_int() || call.w.bytes() > kSmallMatrix ? kBlock : 16;
  if (call.x.count >= 2 * block * pool_.size())
    many_rows(call, block);
  else
    few_rows(call);
}

Runtime::Prepared Runtime::prepared(const Product& call, size_t copies, int64_t rows) {
  const PackedMatrix& w = call.w;
  const int64_t k = w.columns();
  const bool used = w.has_int() || call.kernels.prepares_for_floats;
  // Tile kernels read whole tiles of rows.
  const size_t count = static_cast<size_t>(call.tiles() ? (rows + 15) / 16 * 16 : rows);
  Prepared p;
  p.row_stride = used ? call.kernels.row_bytes(k) : 0;
  p.copy_bytes = p.row_stride * count;
  p.float_stride = call.norm.weight ? static_cast<size_t>(k) : 0;
  p.copy_floats = p.float_stride * count;
  p.scratch_bytes = call.tiles() && call.kernels.scratch_bytes ? call.kernels.scratch_bytes(k) : 0;
  p.rows = align64(prepared_, p.copy_bytes * copies);
  if (normalized_.size() < p.copy_floats * copies) normalized_.resize(p.copy_floats * copies);
  p.normalized = normalized_.data();
  p.scratch = align64(scratch_, p.scratch_bytes * static_cast<size_t>(pool_.size()));
  return p;
}

// Row `row` of the call becomes row `at` of the prepared ones.
void Runtime::prepare_row(const Product& call, const Prepared& to, int64_t row, int64_t at) const {
  const int64_t k = call.w.columns();
  const float* from = call.x.row(row);
  if (to.float_stride) {
    float* normalized = to.normalized + static_cast<size_t>(at) * to.float_stride;
    kernels_.rms_norm_row(from, call.norm.weight, call.norm.eps, k, normalized);
    from = normalized;
  }
  if (to.row_stride) call.kernels.prepare_row(from, k, to.rows + static_cast<size_t>(at) * to.row_stride);
}

// Workers share the panels, so that weights are read once.
void Runtime::few_rows(const Product& call) {
  const int workers = pool_.size();
  const int64_t count = call.x.count;
  // A row or two are prepared by every worker for itself: cheaper than waiting for each other.
  const bool redundant = count <= 2;
  const Prepared common = prepared(call, redundant ? static_cast<size_t>(workers) : 1, count);
  if (!redundant) {
    Shares rows(count, workers);
    pool_.run([&](int worker) { rows.each(worker, [&](int64_t i) { prepare_row(call, common, i, i); }); });
  }
  Shares panels(call.panels(), workers);
  pool_.run([&](int worker) {
    const Prepared mine = common.for_worker(worker, redundant);
    for (int64_t i = 0; redundant && i < count; ++i) prepare_row(call, mine, i, i);
    const TileSession session(call.kernels, call.tiles());
    panels.each(worker, [&](int64_t p) { finish_panel(call, mine, p, 0, count); });
  });
}

// Workers share the rows, block by block, and prepare their own.
void Runtime::many_rows(const Product& call, int64_t block) {
  const int workers = pool_.size();
  const int64_t count = call.x.count;
  const Prepared all = prepared(call, static_cast<size_t>(workers), block);
  Shares blocks((count + block - 1) / block, workers);
  pool_.run([&](int worker) {
    const Prepared mine = all.for_worker(worker, true);
    const TileSession session(call.kernels, call.tiles());
    blocks.each(worker, [&](int64_t b) {
      const int64_t begin = b * block, end = std::min(begin + block, count);
      for (int64_t i = begin; i < end; ++i) prepare_row(call, mine, i, i - begin);
      for (int64_t p = 0; p < call.panels(); ++p) finish_panel(call, mine, p, begin, end - begin);
    });
  });
}

// Row `begin` of the call is the first of the prepared ones; takes `count` of these from `at` on.
void Runtime::multiply(const Product& call, const Prepared& rows, int64_t panel, int64_t begin, int64_t at, int count,
                       float* out) const {
  const Segment& seg = call.w.segment_of_panel(panel);
  const uint8_t* from = rows.rows;
  size_t stride = rows.row_stride;
  if (kFormats[seg.format].is_float() && !call.kernels.prepares_for_floats) {
    from = reinterpret_cast<const uint8_t*>(rows.float_stride ? rows.normalized : call.x.row(begin));
    stride = (rows.float_stride ? rows.float_stride : static_cast<size_t>(call.x.stride)) * sizeof(float);
  }
  call.kernels.panel[seg.format](seg.panel(panel - seg.first_panel), call.w.columns(),
                                 from + static_cast<size_t>(at) * stride, stride, count, out, rows.scratch);
}

// Sixteen columns of the output for `count` rows from row `begin` on, which is the first of the prepared ones.
void Runtime::finish_panel(const Product& call, const Prepared& rows, int64_t panel, int64_t begin, int64_t count) const {
  alignas(64) float first[kBlock * kPanelRows];
  alignas(64) float second[kBlock * kPanelRows];
  const Segment& seg = call.w.segment_of_panel(panel);
  const int64_t local = (panel - seg.first_panel) * kPanelRows;
  const int64_t column = seg.first_row + local;
  const int64_t width = std::min<int64_t>(kPanelRows, seg.rows - local);
  for (int64_t at = 0; at < count; at += kBlock) {
    const int n = static_cast<int>(std::min<int64_t>(kBlock, count - at));
    // What will be written lies apart: asked for now, it is there when the products are.
    for (int i = 0; i < n; ++i) __builtin_prefetch(call.out.row(begin + at + i) + column, 1, 3);
    multiply(call, rows, panel, begin, at, n, first);
    if (call.epilogue == Epilogue::Gate) {
      multiply(call, rows, panel + call.panels(), begin, at, n, second);
      kernels_.gate_row(first, second, call.activation, n * kPanelRows, first);
    }
    for (int i = 0; i < n; ++i)
      put(call.out.row(begin + at + i) + column, first + i * kPanelRows, call.bias ? call.bias + column : nullptr, width,
          call.epilogue == Epilogue::Add);
  }
}

}  // namespace pellucid
