#include "isa.h"

#include <stdexcept>

namespace pellucid {

namespace {

struct Candidate {
  const KernelTable* table;
  bool (*present)();
};

const Candidate kCandidates[] = {
#ifdef PELLUCID_X86
    {&kAvx512VnniKernels,
     [] {
       return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
              __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("f16c") && __builtin_cpu_supports("fma");
     }},
    {&kAvx2Kernels,
     [] {
       return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") && __builtin_cpu_supports("fma");
     }},
#endif
    {&kGenericKernels, [] { return true; }},
};

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Candidate& c : kCandidates)
    if (c.present()) names.emplace_back(c.table->name);
  return names;
}

const KernelTable& choose_kernels(const std::string& name) {
  std::string known;
  for (const Candidate& c : kCandidates) {
    if (!c.present()) continue;
    if (name.empty() || name == c.table->name) return *c.table;
    known += (known.empty() ? "" : ", ") + std::string(c.table->name);
  }
  throw std::invalid_argument("PELLUCID_ISA is '" + name + "', but this machine and build have: " + known);
}

}  // namespace pellucid
