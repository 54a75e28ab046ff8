// Which instruction sets this build and this machine have.
#pragma once
#include <string>
#include <vector>

#include "amx.h"
#include "kernel_table.h"

namespace pellucid {

// Names from the fastest to the plainest, "generic"; then "amx_emulated", which is only for tests.
std::vector<std::string> available_isas();

// The named table, or the fastest for an empty name. Throws std::invalid_argument naming what there is.
const KernelTable& choose_kernels(const std::string& name);

// Judged once; the first call asks the kernel for the permission, so it must come before any thread is started.
const AmxState& amx_state();

// Whether the tile kernels, on emulated tiles, pass the try that real ones must pass.
bool emulated_tiles_agree();

}  // namespace pellucid
