// Operations that are noted once and run again in one call: a step of few rows would else spend a twentieth of its time
// on calls from Python.
#pragma once
#include <functional>
#include <utility>
#include <vector>

#include "arrays.h"

namespace pellucid {

// Operations on fixed memory, in order, and the Python objects that own the memory.
class Program {
 public:
  void add(std::function<void()> operation) { operations_.push_back(std::move(operation)); }
  void run() const {
    const nb::gil_scoped_release free;
    for (const auto& operation : operations_) operation();
  }

 private:
  std::vector<std::function<void()>> operations_;
};

// A runtime whose operations are noted instead of done while there is a program to note them in.
class NotingRuntime : public Runtime {
 public:
  using Runtime::Runtime;
  Program* noting = nullptr;

  // `operation` takes nothing and is done now, or noted together with the owners of what it uses.
  template <class Operation, class... Owners>
  void submit(Operation operation, const Owners&... owners) {
    if (noting) {
      noting->add([operation, owners...] { operation(); });
      return;
    }
    const nb::gil_scoped_release free;
    operation();
  }
};

// The Python object that owns what a binding was handed by reference.
template <class T>
nb::object owner(const T& instance) {
  return nb::find(instance);
}
template <class T>
nb::object owner(const T* instance) {
  return instance ? nb::find(*instance) : nb::object();
}

}  // namespace pellucid
