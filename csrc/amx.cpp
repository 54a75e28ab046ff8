#include "amx.h"

#include <cstring>

#ifdef PELLUCID_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#endif

namespace pellucid {

IsaState judge_amx(const AmxProbe& probe) {
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

}  // namespace pellucid
