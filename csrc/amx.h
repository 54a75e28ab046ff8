// Whether Intel AMX can be used: the processor, the system, its permission, and a try.
#pragma once
#include <functional>

#include "isa_trial.h"

namespace pellucid {

// What there is to know, in the order it is asked; a later question is only asked when the earlier answers allow it.
struct AmxProbe {
  std::function<bool()> in_processor;    // CPUID: tiles, int8 and bfloat16 products, and AVX-512 VNNI beside them
  std::function<bool()> in_system;       // XCR0: the system saves tiles when it switches threads
  std::function<int()> ask_permission;   // 0, or the error number with which the kernel refuses tiles to this process
  std::function<bool()> computes_rightly;
};

IsaState judge_amx(const AmxProbe& probe);

#ifdef PELLUCID_AMX
bool amx_in_processor();
bool amx_in_system();
int ask_amx_permission();
#endif

}  // namespace pellucid
