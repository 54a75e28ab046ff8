// A thread whose stack has a given size. Python's own threads take theirs from a setting of the whole process, which
// another thread may change, or start a thread by, at the same moment.
#include <nanobind/nanobind.h>
#include <pthread.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>

#include "bindings.h"

namespace nb = nanobind;

namespace {

// `argument`: the work, owned. It does not raise: nobody would hear of it.
void* run(void* argument) {
  const nb::gil_scoped_acquire gil;
  const std::unique_ptr<nb::callable> work(static_cast<nb::callable*>(argument));
  (*work)();
  return nullptr;
}

void start_thread(nb::callable work, size_t stack_bytes) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  int error = pthread_attr_setstacksize(&attributes, stack_bytes);
  auto owned = std::make_unique<nb::callable>(std::move(work));
  pthread_t thread;
  if (error == 0) error = pthread_create(&thread, &attributes, &run, owned.get());
  pthread_attr_destroy(&attributes);
  if (error != 0)
    throw std::runtime_error("no thread with a stack of " + std::to_string(stack_bytes >> 20) +
                             " MiB: " + std::generic_category().message(error));
  owned.release();  // NOLINT: the thread's now
}

}  // namespace

void pellucid::bind_deep_stack(nb::module_& m) { m.def("start_thread", &start_thread, nb::arg("work"), nb::arg("stack_bytes")); }
