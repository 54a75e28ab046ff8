#include "isa_trial.h"

#include <cmath>
#include <cstring>
#include <vector>

namespace pellucid {

namespace {

constexpr int64_t kColumns = 160;
constexpr int kRows = 21;  // a whole tile, and one that is not full

// A panel of arbitrary codes with scales and minima of ordinary size.
std::vector<uint8_t> some_panel(const Format& f) {
  std::vector<uint8_t> panel(f.panel_bytes(kColumns) + 64);
  uint32_t state = 12345;
  for (uint8_t& byte : panel) byte = static_cast<uint8_t>((state = state * 1664525 + 1013904223) >> 24);
  const size_t numbers = f.scales_bytes(kColumns) * (f.affine() ? 2 : 1) / f.scale_bytes();
  for (size_t i = 0; i < numbers; ++i) {
    uint8_t* at = panel.data() + f.codes_bytes(kColumns) + i * f.scale_bytes();
    const float wide = 0.001f * static_cast<float>(i % 29 + 1);
    const uint16_t half = static_cast<uint16_t>(0x2000 + i * 37 % 2048);
    f.wide_scale ? std::memcpy(at, &wide, 4) : std::memcpy(at, &half, 2);
  }
  return panel;
}

std::vector<float> multiply(const Products& products, int format, const std::vector<uint8_t>& panel) {
  const size_t stride = products.row_bytes(kColumns), padded = (kRows + 15) / 16 * 16;
  const size_t scratch = products.scratch_bytes ? products.scratch_bytes(kColumns) : 0;
  std::vector<uint8_t> memory(stride * padded + scratch + 128);
  uint8_t* rows = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64);
  for (int m = 0; m < kRows; ++m) {
    float x[kColumns];
    for (int k = 0; k < kColumns; ++k) x[k] = static_cast<float>((k * 7 + m * 13) % 31 - 15) * 0.25f;
    products.prepare_row(x, kColumns, rows + static_cast<size_t>(m) * stride);
  }
  std::vector<float> out(kRows * kPanelRows);
  if (products.enter) products.enter();
  products.panel[format](panel.data(), kColumns, rows, stride, kRows, out.data(), rows + stride * padded);
  if (products.leave) products.leave();
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

bool nearly(const std::vector<float>& a, const std::vector<float>& b) {
  float largest = 0.0f, apart = 0.0f;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::fmax(largest, std::fabs(b[i]));
    apart = std::fmax(apart, std::isfinite(a[i]) ? std::fabs(a[i] - b[i]) : INFINITY);
  }
  return apart <= 1e-4f * largest;
}

}  // namespace

bool products_agree(const KernelTable& tried, const KernelTable& exact, const KernelTable& fast, bool nearly_fast) {
  for (int format = 0; format < kNumFormats; ++format) {
    if (kFormats[format].is_float()) continue;
    const std::vector<uint8_t> panel = some_panel(kFormats[format]);
    if (!same_bits(multiply(tried.exact, format, panel), multiply(exact.exact, format, panel))) return false;
    const std::vector<float> got = multiply(tried.fast, format, panel), truth = multiply(fast.fast, format, panel);
    if (!(nearly_fast ? nearly(got, truth) : same_bits(got, truth))) return false;
  }
  return true;
}

}  // namespace pellucid
