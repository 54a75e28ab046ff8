// The Python face of the kernels. Every shape is checked here: no call from Python can read or write out of bounds.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "bindings.h"
#include "isa.h"

using namespace pellucid;

NB_MODULE(_native, m) {
  m.doc() = "Compiled kernels; used through pellucid.kernels.native only.";
#ifndef PELLUCID_SANITIZE
  nb::set_leak_warnings(false);  // a thread that the interpreter does not wait for may hold a model at its end: no news to a user
#endif
  amx_state();  // at import, before the first pool starts its threads
  m.def("available_isas", &available_isas);
  m.def("packed_bytes", [](int ggml_type, int64_t rows, int64_t columns) -> size_t {
    const int format = format_index(ggml_type);
    check(format >= 0 && rows >= 0 && columns >= 0, "unknown type or negative size");
    return static_cast<size_t>((rows + kPanelRows - 1) / kPanelRows) * kFormats[format].panel_bytes(columns);
  });
  m.def("unused_instructions", &unused_instructions);
  m.def("emulated_tiles_agree", &emulated_tiles_agree);
  // For tests: the answers are given instead of asked.
  m.def("judge_amx", [](bool processor, bool system, int permission, bool right) {
    const IsaState state = judge_amx({[=] { return processor; }, [=] { return system; }, [=] { return permission; },
                                      [=] { return right; }});
    return std::make_tuple(state.usable, state.note);
  });
  m.def("judge_avxvnni", [](bool processor, bool right) {
    const IsaState state = judge_avxvnni(processor, [=] { return right; });
    return std::make_tuple(state.usable, state.note);
  });
  bind_operations(m);
  bind_sampling(m);
  bind_deep_stack(m);
}
