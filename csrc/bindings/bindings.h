// Who tells the module what.
#pragma once
#include <nanobind/nanobind.h>

namespace pellucid {

void bind_operations(nanobind::module_& m);
void bind_sampling(nanobind::module_& m);
void bind_deep_stack(nanobind::module_& m);

}  // namespace pellucid
