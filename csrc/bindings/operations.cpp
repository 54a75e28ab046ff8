// The Python face of a decoder's operations. What changes from step to step is read, and checked, when an operation is
// done, since it may be noted in a program and be done many times.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "bindings.h"
#include "program.h"
#include "step.h"

namespace pellucid {

namespace {

using Angles = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OptionalFloats1 = std::optional<Floats1>;

void check_attention(const Rows& qkv, const AttentionShape& shape, const LayerCache& cache) {
  check(shape.heads > 0 && shape.heads % cache.view.heads == 0, "heads must be a multiple of the KV heads");
  check(qkv.width == (shape.heads + cache.view.heads) * cache.view.head_dim + cache.view.heads * cache.view.value_dim,
        "qkv has the wrong width");
}

// The step's arrays, if they fit the rows and the cache.
StepView checked_view(const Step& step, const Rows& qkv, const LayerCache& cache) {
  check(qkv.count == static_cast<int64_t>(step.positions.shape(0)), "qkv must have one row per position");
  check(step.blocks_needed <= cache.blocks, "the step names a block outside the cache");
  return step.view();
}

Activation activation_of(int kind) {
  check(kind >= 0 && kind <= static_cast<int>(Activation::SwigluClamped), "unknown activation");
  return static_cast<Activation>(kind);
}

void check_product(const Rows& x, const PackedMatrix& w, const Rows& out, int64_t width) {
  check(x.width == w.columns(), "input width must equal the matrix's columns");
  check(out.count == x.count && out.width == width, "output has the wrong shape");
}

const float* bias_of(const OptionalFloats1& bias, const PackedMatrix& w) {
  check(!bias || static_cast<int64_t>(bias->shape(0)) == w.rows(), "bias must have one number per row of the matrix");
  return bias ? bias->data() : nullptr;
}

const Runs& runs_of(const Step* step, const Rows& x) {
  static const Runs all_exact;
  if (!step || step->runs.empty()) return all_exact;
  check(step->runs.back().end == x.count, "the step must have one row per input row");
  return step->runs;
}

std::unique_ptr<PackedMatrix> pack(NotingRuntime& r,
                                   const std::vector<std::tuple<Bytes1, int, int64_t, std::optional<Ints1>, bool>>& parts,
                                   int64_t columns) {
  std::vector<SegmentSource> sources;
  for (const auto& [data, type, n, order, mapped] : parts) {
    check(!order || static_cast<int64_t>(order->shape(0)) == n, "row_order must have one entry per row");
    sources.push_back({data.data(), data.size(), type, n, order ? order->data() : nullptr, mapped});
  }
  const nb::gil_scoped_release free;
  return r.pack(sources, columns);
}

void embed(NotingRuntime& r, const PackedMatrix& table, Ints1 ids, float scale, Floats2 out) {
  const Rows o = rows(out);
  check(!r.noting, "embed can not be noted: ids are checked when it is called");
  check(o.count == static_cast<int64_t>(ids.shape(0)) && o.width == table.columns(), "output has the wrong shape");
  for (int64_t i = 0; i < o.count; ++i)
    check(ids.data()[i] >= 0 && ids.data()[i] < table.rows(), "a token id lies outside the embedding");
  const nb::gil_scoped_release free;
  r.embed(table, ids.data(), scale, o);
}

template <void (Runtime::*OPERATION)(Rows, Norm, Rows)>
void row_norm(NotingRuntime& r, Floats2 x, Floats1 weight, float eps, Floats2 out) {
  const Rows a = rows(x), o = rows(out);
  const Norm norm = norm_of(weight, eps, a.width);
  check(o.count == a.count && o.width == a.width, "output has the wrong shape");
  r.submit([&r, a, norm, o] { (r.*OPERATION)(a, norm, o); }, x, weight, out);
}

void layer_norm(NotingRuntime& r, Floats2 x, Floats1 weight, OptionalFloats1 bias, float eps, Floats2 out) {
  const Rows a = rows(x), o = rows(out);
  check(static_cast<int64_t>(weight.shape(0)) == a.width && (!bias || bias->shape(0) == weight.shape(0)),
        "weight and bias must have one number per column");
  check(o.count == a.count && o.width == a.width, "output has the wrong shape");
  const float *w = weight.data(), *b = bias ? bias->data() : nullptr;
  r.submit([&r, a, w, b, eps, o] { r.layer_norm(a, w, b, eps, o); }, x, weight, bias, out);
}

void activate(NotingRuntime& r, Floats2 x, int kind, bool gated, Floats2 out) {
  const Rows a = rows(x), o = rows(out);
  const Activation activation = activation_of(kind);
  check(gated || activation != Activation::SwigluClamped, "swiglu_clamped needs a gate");
  check(o.count == a.count && a.width == (gated ? 2 : 1) * o.width, "output has the wrong shape");
  r.submit([&r, a, activation, gated, o] { r.activate(a, activation, gated, o); }, x, out);
}

void linear(NotingRuntime& r, Floats2 x, OptionalFloats1 weight, float eps, const PackedMatrix& w, Floats2 out, const Step* step,
            OptionalFloats1 bias) {
  const Rows a = rows(x), o = rows(out);
  const Norm norm = norm_of(weight, eps, a.width);
  check_product(a, w, o, w.rows());
  const float* b = bias_of(bias, w);
  r.submit([&r, a, norm, &w, b, o, step] { r.linear(a, norm, w, b, o, runs_of(step, a)); }, x, weight, owner(w), out,
           owner(step), bias);
}

void linear_add(NotingRuntime& r, Floats2 x, const PackedMatrix& w, Floats2 residual, const Step* step, OptionalFloats1 bias) {
  const Rows a = rows(x), o = rows(residual);
  check_product(a, w, o, w.rows());
  const float* b = bias_of(bias, w);
  r.submit([&r, a, &w, b, o, step] { r.linear_add(a, w, b, o, runs_of(step, a)); }, x, owner(w), residual, owner(step), bias);
}

void linear_gated(NotingRuntime& r, Floats2 x, Floats1 weight, float eps, const PackedMatrix& w, int kind, Floats2 out,
                  const Step* step) {
  const Rows a = rows(x), o = rows(out);
  const Norm norm = norm_of(weight, eps, a.width);
  const Activation activation = activation_of(kind);
  const auto& parts = w.segments();
  check(w.rows() % 2 == 0 && (parts.size() == 2 ? parts[0].rows == parts[1].rows : parts.size() == 1 && w.rows() % 32 == 0),
        "gate and up must have one size");
  check_product(a, w, o, w.rows() / 2);
  r.submit([&r, a, norm, &w, activation, o, step] { r.linear_gated(a, norm, w, activation, o, runs_of(step, a)); }, x, weight,
           owner(w), out, owner(step));
}

void rotate_and_store(NotingRuntime& r, Floats2 qkv, int64_t heads, OptionalFloats1 q_norm, OptionalFloats1 k_norm, float eps,
                      Angles cosine, Angles sine, const Step& step, const LayerCache& cache) {
  const Rows a = rows(qkv);
  const AttentionShape shape{heads, 0, 0.0f};
  check_attention(a, shape, cache);
  const int64_t half = static_cast<int64_t>(cosine.shape(1));
  check(static_cast<int64_t>(cosine.shape(0)) == a.count && sine.shape(0) == cosine.shape(0) &&
            sine.shape(1) == cosine.shape(1) && 2 * half <= cache.view.head_dim,
        "cosine and sine must be [rows, pairs]");
  const Norm qn = norm_of(q_norm, eps, cache.view.head_dim), kn = norm_of(k_norm, eps, cache.view.head_dim);
  const float *c = cosine.data(), *s = sine.data();
  r.submit(
      [&r, a, shape, qn, kn, c, s, half, &step, &cache] {
        r.rotate_and_store(a, shape, qn, kn, c, s, half, checked_view(step, a, cache), cache.view, step.nonfinite.data());
      },
      qkv, q_norm, k_norm, cosine, sine, owner(step), owner(cache));
}

void attention(NotingRuntime& r, Floats2 qkv, int64_t heads, int64_t window, float scale, bool causal, const Step& step,
               const LayerCache& cache, Floats2 out, std::optional<float> softcap, OptionalFloats1 sinks,
               OptionalFloats1 slopes) {
  const Rows a = rows(qkv), o = rows(out);
  const AttentionShape shape{heads, window, scale, causal, softcap.value_or(0.0f), sinks ? sinks->data() : nullptr,
                             slopes ? slopes->data() : nullptr};
  check_attention(a, shape, cache);
  check(window >= 0, "window must not be negative");
  check(!softcap || *softcap > 0, "softcap must be above 0");
  for (const auto& per_head : {sinks, slopes})
    check(!per_head || static_cast<int64_t>(per_head->shape(0)) == heads, "sinks and slopes must have one number per head");
  check(o.count == a.count && o.width == heads * cache.view.value_dim, "output has the wrong shape");
  r.submit(
      [&r, a, shape, &step, &cache, o] { r.attention(a, shape, checked_view(step, a, cache), cache.view, o); }, qkv,
      owner(step), owner(cache), out, sinks, slopes);
}

void bind_runtime(nb::module_& m) {
  nb::class_<NotingRuntime>(m, "Runtime")
      .def(nb::init<int, const std::string&>(), nb::arg("threads"), nb::arg("isa"))
      .def_prop_ro("isa", &NotingRuntime::isa)
      .def_prop_ro("threads", &NotingRuntime::threads)
      .def_prop_ro("weight_bytes", &NotingRuntime::weight_bytes)
      .def("note_in", [](NotingRuntime& r, Program* program) { r.noting = program; }, nb::arg("program").none())
      .def("pack", &pack, nb::keep_alive<0, 1>())
      .def("embed", &embed)
      .def("rms_norm", row_norm<&Runtime::rms_norm>)
      .def("rms_norm_add", row_norm<&Runtime::rms_norm_add>)
      .def("layer_norm", &layer_norm, nb::arg("x"), nb::arg("weight"), nb::arg("bias").none(), nb::arg("eps"), nb::arg("out"))
      .def("activate", &activate)
      .def("linear", &linear, nb::arg("x"), nb::arg("norm").none(), nb::arg("eps"), nb::arg("matrix"), nb::arg("out"),
           nb::arg("step") = nb::none(), nb::arg("bias") = nb::none())
      .def("linear_add", &linear_add, nb::arg("x"), nb::arg("matrix"), nb::arg("residual"), nb::arg("step") = nb::none(),
           nb::arg("bias") = nb::none())
      .def("linear_gated", &linear_gated, nb::arg("x"), nb::arg("norm"), nb::arg("eps"), nb::arg("matrix"),
           nb::arg("activation"), nb::arg("out"), nb::arg("step") = nb::none())
      .def("rotate_and_store", &rotate_and_store, nb::arg("qkv"), nb::arg("heads"), nb::arg("q_norm").none(),
           nb::arg("k_norm").none(), nb::arg("eps"), nb::arg("cosine"), nb::arg("sine"), nb::arg("step"), nb::arg("cache"))
      .def("attention", &attention, nb::arg("qkv"), nb::arg("heads"), nb::arg("window"), nb::arg("scale"), nb::arg("causal"),
           nb::arg("step"), nb::arg("cache"), nb::arg("out"), nb::arg("softcap").none() = nb::none(),
           nb::arg("sinks").none() = nb::none(), nb::arg("slopes").none() = nb::none());
}

}  // namespace

void bind_operations(nb::module_& m) {
  nb::class_<PackedMatrix>(m, "Matrix")
      .def_prop_ro("rows", &PackedMatrix::rows)
      .def_prop_ro("columns", &PackedMatrix::columns)
      .def_prop_ro("packed_bytes", &PackedMatrix::bytes);
  nb::class_<Step>(m, "Step")
      .def(nb::init<Ints1, Longs1, Ints1, Ints2, Bools1, std::optional<Bools1>>())
      .def("renew", &Step::renew);
  nb::class_<LayerCache>(m, "LayerCache")
      .def(nb::init<Array, Array, Array, Array>(), nb::arg("keys"), nb::arg("values"), nb::arg("scales"),
           nb::arg("factors"));
  nb::class_<Program>(m, "Program").def(nb::init<>()).def("run", &Program::run);
  bind_runtime(m);
}

}  // namespace pellucid
