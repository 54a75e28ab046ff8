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

// Both judged once. The first call of `amx_state` asks the kernel for the permission, so it must come before any thread
// is started.
const IsaState& amx_state();
const IsaState& avxvnni_state();
IsaState judge_avxvnni(bool in_processor, const std::function<bool()>& computes_rightly);

// Why faster instructions of this processor are not used; else empty.
std::string unused_instructions();

// Whether the tile kernels, on emulated tiles, pass the try that real ones must pass.
bool emulated_tiles_agree();

}  // namespace pellucid
