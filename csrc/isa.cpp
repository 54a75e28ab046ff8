#include "isa.h"

#include <stdexcept>

#ifdef PELLUCID_X86
#include <cpuid.h>
#endif

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

#ifdef PELLUCID_HAS_AVXVNNI
bool avxvnni_in_processor() {
#ifdef PELLUCID_EMULATE_AVXVNNI
  return has_avx2();
#else
  unsigned a, b, c, d;
  return has_avx2() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) &&
         (a & 1u << 4);
#endif
}
#endif

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
#ifdef PELLUCID_HAS_AVXVNNI
    {"avxvnni", [] { return avxvnni_state().usable; }, []() -> const KernelTable& { return kAvxVnniKernels; }},
#endif
    {"avx2", has_avx2, []() -> const KernelTable& { return kAvx2Kernels; }},
#endif
    {"generic", [] { return true; }, []() -> const KernelTable& { return kGenericKernels; }},
#ifdef PELLUCID_X86
    {"amx_emulated", has_avx512vnni, amx_emulated_kernels, false},
#endif
};

}  // namespace

const IsaState& amx_state() {
#ifdef PELLUCID_AMX
  static const IsaState state = judge_amx({
      [] { return has_avx512vnni() && amx_in_processor(); },
      amx_in_system,
      ask_amx_permission,
      [] { return products_agree(amx_kernels(), kAvx512VnniKernels, amx_emulated_kernels(), true); },
  });
#else
  static const IsaState state{false, ""};
#endif
  return state;
}

const IsaState& avxvnni_state() {
#ifdef PELLUCID_HAS_AVXVNNI
  static const IsaState state = judge_avxvnni(
      avxvnni_in_processor(), [] { return products_agree(kAvxVnniKernels, kAvx2Kernels, kAvx2Kernels, false); });
#else
  static const IsaState state{false, ""};
#endif
  return state;
}

IsaState judge_avxvnni(bool in_processor, const std::function<bool()>& computes_rightly) {
  if (!in_processor) return {false, ""};
  if (!computes_rightly())
    return {false, "AVX-VNNI is in this processor, but a product computed with it at the start was wrong: avx2 is used"};
  return {true, ""};
}

std::string unused_instructions() {
#ifdef PELLUCID_X86
  if (has_avx512vnni()) return amx_state().note;
#endif
  return avxvnni_state().note;
}

bool emulated_tiles_agree() {
#ifdef PELLUCID_X86
  return has_avx512vnni() && products_agree(amx_emulated_kernels(), kAvx512VnniKernels, amx_emulated_kernels(), true);
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
  const std::string note = name == "avxvnni" ? avxvnni_state().note : unused_instructions();
  throw std::invalid_argument("PELLUCID_ISA is '" + name + "', but this machine and build have: " + known +
                              (note.empty() ? "" : " (" + note + ")"));
}

}  // namespace pellucid
