#include "amx.h"

#include <cmath>
#include <cstring>
#include <vector>

#ifdef PELLUCID_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#endif

namespace pellucid {

AmxState judge_amx(const AmxProbe& probe) {
  if (!probe.in_processor()) return {false, ""};
  if (!probe.in_system())
    return {false, "AMX is in this processor, but the system does not enable it: avx512vnni is used"};
  if (const int error = probe.ask_permission())
    return {false, "AMX is in this processor, but the kernel refuses it to this process (" + std::string(strerror(error)) +
                       "): avx512vnni is used"};
  if (!probe.computes_rightly())
    return {false, "AMX is in this processor, but a product computed with it at the start was wrong: avx512vnni is used"};
  return {true, ""};
}

#ifdef PELLUCID_AMX

bool amx_in_processor() {
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kBf16) && (d & kTile) && (d & kInt8);
}

bool amx_in_system() {
  constexpr unsigned kXsaveEnabled = 1u << 27, kTileState = 3u << 17;
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & kXsaveEnabled)) return false;
  asm volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  return (a & kTileState) == kTileState;
}

// Linux grants tile state to a process that asks before it starts threads (Documentation/arch/x86/xstate.rst).
int ask_amx_permission() {
  constexpr int kRequest = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0 ? 0 : errno;
}

#endif

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

bool nearly(const std::vector<float>& a, const std::vector<float>& b) {
  float largest = 0.0f, apart = 0.0f;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::fmax(largest, std::fabs(b[i]));
    apart = std::fmax(apart, std::isfinite(a[i]) ? std::fabs(a[i] - b[i]) : INFINITY);
  }
  return apart <= 1e-4f * largest;
}

}  // namespace

bool tiles_agree(const KernelTable& tiles, const KernelTable& rows, const KernelTable& emulated) {
  for (int format = 0; format < kNumFormats; ++format) {
    if (kFormats[format].is_float()) continue;
    const std::vector<uint8_t> panel = some_panel(kFormats[format]);
    const std::vector<float> exact = multiply(tiles.exact, format, panel), truth = multiply(rows.exact, format, panel);
    if (std::memcmp(exact.data(), truth.data(), exact.size() * sizeof(float)) != 0) return false;
    if (!nearly(multiply(tiles.fast, format, panel), multiply(emulated.fast, format, panel))) return false;
  }
  return true;
}

}  // namespace pellucid
