#include "isa.h"

#include <stdexcept>

namespace pellucid {

namespace {

struct Candidate {
  const char* name;
  bool (*present)();
  const KernelTable& (*table)();
  bool chosen_unasked = true;
};

#ifdef PELLUCID_X86

bool has_avx512vnni() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("f16c") &&
         __builtin_cpu_supports("fma");
}

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") && __builtin_cpu_supports("fma");
}

// Everything as on avx512vnni, but the products on tiles.
KernelTable with_tiles(const char* name, const Products& exact, const Products& fast) {
  KernelTable table = kAvx512VnniKernels;
  table.name = name;
  table.fast = fast;
  table.exact = exact;
  const Products& rows = kAvx512VnniKernels.exact;
  table.exact.row_bytes = rows.row_bytes;
  table.exact.prepare_row = rows.prepare_row;
  for (int i = 0; i < kNumFormats; ++i)
    if (!table.exact.panel[i]) table.exact.panel[i] = rows.panel[i];
  return table;
}

const KernelTable& amx_emulated_kernels() {
  static const KernelTable table = with_tiles("amx_emulated", kAmxEmulatedExact, kAmxEmulatedFast);
  return table;
}

#ifdef PELLUCID_AMX
const KernelTable& amx_kernels() {
  static const KernelTable table = with_tiles("amx", kAmxExact, kAmxFast);
  return table;
}
#endif

#endif

const Candidate kCandidates[] = {
#ifdef PELLUCID_X86
#ifdef PELLUCID_AMX
    {"amx", [] { return amx_state().usable; }, amx_kernels},
#endif
    {"avx512vnni", has_avx512vnni, []() -> const KernelTable& { return kAvx512VnniKernels; }},
    {"avx2", has_avx2, []() -> const KernelTable& { return kAvx2Kernels; }},
#endif
    {"generic", [] { return true; }, []() -> const KernelTable& { return kGenericKernels; }},
#ifdef PELLUCID_X86
    {"amx_emulated", has_avx512vnni, amx_emulated_kernels, false},
#endif
};

}  // namespace

const AmxState& amx_state() {
#ifdef PELLUCID_AMX
  static const AmxState state = judge_amx({
      [] { return has_avx512vnni() && amx_in_processor(); },
      amx_in_system,
      ask_amx_permission,
      [] { return tiles_agree(amx_kernels(), kAvx512VnniKernels, amx_emulated_kernels()); },
  });
#else
  static const AmxState state{false, ""};
#endif
  return state;
}

bool emulated_tiles_agree() {
#ifdef PELLUCID_X86
  return has_avx512vnni() && tiles_agree(amx_emulated_kernels(), kAvx512VnniKernels, amx_emulated_kernels());
#else
  return false;
#endif
}

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Candidate& c : kCandidates)
    if (c.present()) names.emplace_back(c.name);
  return names;
}

const KernelTable& choose_kernels(const std::string& name) {
  std::string known;
  for (const Candidate& c : kCandidates) {
    if (!c.present()) continue;
    if (name.empty() ? c.chosen_unasked : name == c.name) return c.table();
    known += (known.empty() ? "" : ", ") + std::string(c.name);
  }
  throw std::invalid_argument("PELLUCID_ISA is '" + name + "', but this machine and build have: " + known +
                              (amx_state().note.empty() ? "" : " (" + amx_state().note + ")"));
}

}  // namespace pellucid
