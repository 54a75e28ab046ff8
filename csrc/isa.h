// Which instruction sets this build and this machine have.
#pragma once
#include <string>
#include <vector>

#include "kernel_table.h"

namespace pellucid {

// Names from the fastest to the plainest; the last is always "generic".
std::vector<std::string> available_isas();

// The named table, or the fastest for an empty name. Throws std::invalid_argument naming what there is.
const KernelTable& choose_kernels(const std::string& name);

}  // namespace pellucid
