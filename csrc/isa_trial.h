// Whether an instruction set can be used: what became of asking, and the try that it must pass.
#pragma once
#include <string>

#include "kernel_table.h"

namespace pellucid {

struct IsaState {
  bool usable;
  std::string note;  // why it is not used where the processor has it; else empty
};

// Whether `tried` gives the exact products that `exact` gives, bit for bit, and the fast ones that `fast` gives: to the bit
// too, or nearly, where tiles add them up.
bool products_agree(const KernelTable& tried, const KernelTable& exact, const KernelTable& fast, bool nearly_fast);

}  // namespace pellucid
