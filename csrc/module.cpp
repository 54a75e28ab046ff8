// The Python face of the kernels. Every shape is checked here: no call from Python can read or write out of bounds.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>

#include "isa.h"
#include "ops.h"
#include "sampling.h"

namespace nb = nanobind;
using namespace pellucid;

namespace {

using Floats2 = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;
using Floats1 = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints1 = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Longs1 = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints2 = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Bytes1 = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bools1 = nb::ndarray<bool, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void check(bool ok, const char* what) {
  if (!ok) throw std::invalid_argument(what);
}

Rows rows(Floats2& a) {
  check(a.shape(1) <= 1 || a.stride(1) == 1, "rows must be contiguous");
  const int64_t count = static_cast<int64_t>(a.shape(0)), width = static_cast<int64_t>(a.shape(1));
  return {a.data(), count, width, count > 1 ? a.stride(0) : width};
}

Norm norm_of(const std::optional<Floats1>& weight, float eps, int64_t width) {
  if (!weight) return {nullptr, 0.0f};
  check(static_cast<int64_t>(weight->shape(0)) == width, "norm weight has the wrong length");
  return {weight->data(), eps};
}

// One step's arrays, held together so that a layer passes one object instead of six arrays.
struct Step {
  Ints1 positions;
  Longs1 slots;
  Ints1 query_start_loc;
  Ints2 block_table;
  Bools1 nonfinite;
  Runs runs;  // empty: every row is exact
  int64_t blocks_needed = 0;

  Step(Ints1 p, Longs1 s, Ints1 q, Ints2 b, Bools1 n, const std::optional<Bools1>& fast)
      : positions(p), slots(s), query_start_loc(q), block_table(b), nonfinite(n) {
    const size_t t = positions.shape(0), count = query_start_loc.shape(0);
    check(slots.shape(0) == t && nonfinite.shape(0) == t, "positions, slot_mapping and nonfinite must have one entry per row");
    check(count >= 1 && block_table.shape(0) == count - 1, "block_table must have one row per sequence");
    check(query_start_loc.data()[0] == 0 && query_start_loc.data()[count - 1] == static_cast<int32_t>(t),
          "query_start_loc must run from 0 to the number of rows");
    for (size_t i = 0; i + 1 < count; ++i) {
      const int32_t begin = query_start_loc.data()[i], end = query_start_loc.data()[i + 1];
      check(begin <= end && end <= static_cast<int32_t>(t), "query_start_loc must ascend");
      for (int32_t r = begin; r < end; ++r) {
        const int64_t blocks = positions.data()[r] / 16 + 1;
        check(positions.data()[r] >= 0 && blocks <= static_cast<int64_t>(block_table.shape(1)),
              "a position lies outside its block table");
        check(r == begin || positions.data()[r] == positions.data()[r - 1] + 1, "rows of a sequence must be consecutive");
        for (int64_t b = r == begin ? 0 : blocks - 1; b < blocks; ++b) {
          const int64_t block = block_table.data()[i * block_table.shape(1) + static_cast<size_t>(b)];
          check(block >= 0, "block numbers must not be negative");
          blocks_needed = std::max<int64_t>(blocks_needed, block + 1);
        }
        const int64_t slot = slots.data()[r];
        check(slot >= 0, "slots must not be negative");
        blocks_needed = std::max<int64_t>(blocks_needed, slot / 16 + 1);
      }
    }
    if (fast) split(*fast);
  }
  void split(const Bools1& fast) {
    const int64_t count = static_cast<int64_t>(positions.shape(0));
    check(static_cast<int64_t>(fast.shape(0)) == count, "fast_rows must have one entry per row");
    for (int64_t i = 0; i < count; ++i) {
      if (runs.empty() || runs.back().fast != fast.data()[i]) runs.push_back({i, i, fast.data()[i]});
      runs.back().end = i + 1;
    }
  }
  StepView view() const {
    return {positions.data(), slots.data(), query_start_loc.data(), block_table.data(),
            static_cast<int64_t>(positions.shape(0)), static_cast<int64_t>(block_table.shape(0)),
            static_cast<int64_t>(block_table.shape(1))};
  }
};

using Array = nb::ndarray<nb::device::cpu>;

int64_t size(const Array& a, size_t axis) { return static_cast<int64_t>(a.shape(axis)); }

// Keys and values of one layer, as kv_cache/storage.py lays them out.
struct LayerCache {
  Array keys, values, scales, factors;
  KVView view{};
  int64_t blocks;

  // Scales and factors are empty where the type has none.
  LayerCache(Array k, Array v, Array s, Array f) : keys(k), values(v), scales(s), factors(f) {
    check(k.ndim() >= 4 && v.ndim() >= 4, "keys and values must have at least 4 dimensions");
    check(k.dtype() == v.dtype(), "keys and values must have one type");
    const nb::dlpack::dtype half{static_cast<uint8_t>(nb::dlpack::dtype_code::Float), 16, 1};
    view.type = k.dtype() == half                 ? KVType::Float16
                : k.dtype() == nb::dtype<float>() ? KVType::Float32
                : k.dtype() == nb::dtype<int16_t>() ? KVType::Int16
                : k.dtype() == nb::dtype<int8_t>()  ? KVType::Int8
                                                    : KVType::Int4;
    const bool pairs = view.type == KVType::Int16 || view.type == KVType::Int8, nibbles = view.type == KVType::Int4;
    check(!nibbles || k.dtype() == nb::dtype<uint8_t>(), "the KV cache must be float32, float16, int16, int8 or uint8 (int4)");
    check(k.ndim() == (pairs ? 5 : 4) && v.ndim() == k.ndim(), "keys and values must have 4 dimensions, 5 for int16 and int8");
    blocks = size(k, 0);
    view.heads = size(k, 1);
    view.head_dim = size(k, 2) * (pairs || nibbles ? 2 : 1);
    view.value_dim = nibbles ? 2 * size(v, 3) : size(v, 3);
    check(size(v, 0) == blocks && size(v, 1) == view.heads, "keys and values must have the same blocks and heads");
    check(size(k, 3) == kBlockTokens && size(v, 2) == kBlockTokens / (pairs ? 2 : 1), "block_size must be 16");
    check(!pairs || (size(k, 4) == 2 && size(v, 4) == 2), "int16 and int8 lie in pairs");
    for (const int64_t dim : {view.head_dim, view.value_dim})
      check(dim > 0 && dim % 16 == 0 && dim <= kMaxHeadDim, "head_dim must be a multiple of 16, at most 576");
    check(blocks <= 1 || k.stride(0) == v.stride(0), "keys and values must have one block stride");
    const int64_t item = static_cast<int64_t>(k.itemsize());
    view.block_stride = k.stride(0) * item;
    view.keys = static_cast<uint8_t*>(k.data());
    view.values = static_cast<uint8_t*>(v.data());
    view.key_bytes = contiguous_head(k) * item;
    view.value_bytes = contiguous_head(v) * item;
    check(view.coded() == (s.size() > 0 || blocks == 0) && nibbles == (f.size() > 0 || (nibbles && blocks == 0)),
          "integers have scales, int4 has factors, floats have neither");
    if (view.coded()) {
      check(s.dtype() == nb::dtype<float>() && s.ndim() == 4 && size(s, 0) == blocks && size(s, 1) == view.heads &&
                size(s, 2) == 2 && size(s, 3) == kBlockTokens && contiguous_head(s) == 2 * kBlockTokens &&
                (blocks <= 1 || s.stride(0) * 4 == view.block_stride),
            "scales must be float32 [blocks, heads, 2, 16] with the block stride of the keys");
      view.scales = static_cast<float*>(s.data());
    }
    if (nibbles) {
      const int64_t groups = (view.head_dim + view.value_dim) / kFactorGroup;
      check(f.dtype() == nb::dtype<uint8_t>() && f.ndim() == 4 && size(f, 0) == blocks && size(f, 1) == view.heads &&
                size(f, 2) == groups && size(f, 3) == kBlockTokens && contiguous_head(f) == groups * kBlockTokens &&
                (blocks <= 1 || f.stride(0) == view.block_stride),
            "factors must be uint8 [blocks, heads, (dim + value_dim) / 16, 16] with the block stride of the keys");
      view.factors = static_cast<uint8_t*>(f.data());
    }
  }

  // Numbers of one head of a block; a block must be one piece.
  static int64_t contiguous_head(const Array& a) {
    int64_t expected = 1;
    for (size_t axis = a.ndim() - 1; axis > 1; --axis) {
      check(a.stride(axis) == expected || a.shape(axis) == 1, "what belongs to a block must be contiguous");
      expected *= size(a, axis);
    }
    check((a.stride(1) == expected || a.shape(1) == 1) && (a.shape(0) == 1 || a.stride(0) >= expected * size(a, 1)),
          "what belongs to a block must be contiguous");
    return expected;
  }
};

void check_attention(const Rows& qkv, const AttentionShape& shape, const Step& step, const LayerCache& cache) {
  check(shape.heads > 0 && shape.heads % cache.view.heads == 0, "heads must be a multiple of the KV heads");
  check(qkv.width == (shape.heads + cache.view.heads) * cache.view.head_dim + cache.view.heads * cache.view.value_dim,
        "qkv has the wrong width");
  check(qkv.count == static_cast<int64_t>(step.positions.shape(0)), "qkv must have one row per position");
  check(step.blocks_needed <= cache.blocks, "the step names a block outside the cache");
}

Activation activation_of(int kind) {
  check(kind >= 0 && kind <= static_cast<int>(Activation::SwigluClamped), "unknown activation");
  return static_cast<Activation>(kind);
}

void check_product(const Rows& x, const PackedMatrix& w, const Rows& out, int64_t width) {
  check(x.width == w.columns(), "input width must equal the matrix's columns");
  check(out.count == x.count && out.width == width, "output has the wrong shape");
}

const float* bias_of(const std::optional<Floats1>& bias, const PackedMatrix& w) {
  check(!bias || static_cast<int64_t>(bias->shape(0)) == w.rows(), "bias must have one number per row of the matrix");
  return bias ? bias->data() : nullptr;
}

const Runs& runs_of(const Step* step, const Rows& x) {
  static const Runs all_exact;
  if (!step || step->runs.empty()) return all_exact;
  check(step->runs.back().end == x.count, "the step must have one row per input row");
  return step->runs;
}

template <void (Runtime::*OPERATION)(Rows, Norm, Rows)>
void row_norm(Runtime& r, Floats2 x, Floats1 weight, float eps, Floats2 out) {
  const Rows a = rows(x), o = rows(out);
  const Norm norm = norm_of(weight, eps, a.width);
  check(o.count == a.count && o.width == a.width, "output has the wrong shape");
  const nb::gil_scoped_release free;
  (r.*OPERATION)(a, norm, o);
}

// One row of logits and the sampler's limits on it.
int64_t checked_row(const Floats1& logits) {
  const int64_t n = static_cast<int64_t>(logits.shape(0));
  check(n > 0 && n <= kMaxVocabulary, "logits must be one to 2^21 numbers");
  return n;
}

Filters filters_of(double temperature, double log_min_p, int64_t top_k, double top_p, double draw) {
  check(temperature > 0.0 && log_min_p <= 0.0 && top_k >= 0 && top_p > 0.0 && top_p <= 1.0 && draw >= 0.0 && draw < 1.0,
        "a filter's value is out of its range");
  return {temperature, log_min_p, top_k, top_p, static_cast<uint64_t>(draw * 0x1p53)};
}

std::tuple<int64_t, float> draw_token(RowSampler& sampler, Floats1 logits, double temperature, double log_min_p, int64_t top_k,
                                      double top_p, double draw) {
  const int64_t n = checked_row(logits);
  const Filters filters = filters_of(temperature, log_min_p, top_k, top_p, draw);
  const nb::gil_scoped_release free;
  const Drawn drawn = sampler.draw(logits.data(), n, filters);
  return {drawn.id, drawn.largest};
}

// (logits, temperature, log min-p, top-k, top-p, draw) of each row; temperature 0 is the first candidate.
using RowDraw = std::tuple<Floats1, double, double, int64_t, double, double>;

std::vector<std::tuple<int64_t, float>> draw_rows(RowsSampler& sampler, const std::vector<RowDraw>& rows) {
  struct Row {
    const float* logits;
    int64_t n;
    bool greedy;
    Filters filters;
  };
  std::vector<Row> work;
  for (const auto& [logits, temperature, log_min_p, top_k, top_p, draw] : rows) {
    const bool greedy = temperature == 0.0;
    work.push_back({logits.data(), checked_row(logits), greedy,
                    filters_of(greedy ? 1.0 : temperature, log_min_p, top_k, top_p, draw)});
  }
  std::vector<std::tuple<int64_t, float>> out(work.size());
  const nb::gil_scoped_release free;
  sampler.each(static_cast<int64_t>(work.size()), [&](RowSampler& one, int64_t i) {
    const Row& row = work[static_cast<size_t>(i)];
    const Drawn drawn = row.greedy ? one.first(row.logits, row.n) : one.draw(row.logits, row.n, row.filters);
    out[static_cast<size_t>(i)] = {drawn.id, drawn.largest};
  });
  return out;
}

template <class T>
nb::bytes bytes_of(const std::vector<T>& numbers) {
  return nb::bytes(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T));
}

nb::tuple tuple_of(const Survey& survey) {
  return nb::make_tuple(survey.largest, survey.possible, survey.rank, survey.raw.weight, survey.raw.moment,
                        survey.spread.weight, survey.spread.moment, bytes_of(survey.ids), bytes_of(survey.logits),
                        bytes_of(survey.ends));
}

void check_survey(int64_t n, int64_t token, double temperature, int64_t num_top) {
  check(token >= 0 && token < n && temperature > 0.0 && num_top > 0, "an argument of the survey is out of its range");
}

nb::tuple survey_row(RowSampler& sampler, Floats1 logits, int64_t token, double temperature, int64_t num_top) {
  const int64_t n = checked_row(logits);
  check_survey(n, token, temperature, num_top);
  Survey survey;
  {
    const nb::gil_scoped_release free;
    survey = sampler.survey(logits.data(), n, token, static_cast<float>(temperature), num_top);
  }
  return tuple_of(survey);
}

// Surveys of (logits, token, temperature) of each row, made beside what the caller does until it asks for them. The logits
// must not be written to until then.
class RunningSurveys {
 public:
  using Row = std::tuple<Floats1, int64_t, double>;

  RunningSurveys(RowsSampler& sampler, std::vector<Row> rows, int64_t num_top)
      : sampler_(sampler), rows_(std::move(rows)), found_(rows_.size()) {
    for (const auto& [logits, token, temperature] : rows_) check_survey(checked_row(logits), token, temperature, num_top);
    sampler_.begin(2 * static_cast<int64_t>(rows_.size()), [this, num_top](RowSampler& one, int64_t i) {
      const auto& [logits, token, temperature] = rows_[static_cast<size_t>(i / 2)];
      one.survey_half(i % 2 != 0, logits.data(), static_cast<int64_t>(logits.shape(0)), token,
                      static_cast<float>(temperature), num_top, found_[static_cast<size_t>(i / 2)]);
    });
  }
  ~RunningSurveys() { sampler_.end(); }
  RunningSurveys(const RunningSurveys&) = delete;
  RunningSurveys& operator=(const RunningSurveys&) = delete;

  nb::list results() {
    {
      const nb::gil_scoped_release free;
      sampler_.end();
    }
    nb::list out;
    for (size_t i = 0; i < found_.size(); ++i) {
      if (static_cast<float>(std::get<2>(rows_[i])) == 1.0f) found_[i].spread = found_[i].raw;
      out.append(tuple_of(found_[i]));
    }
    return out;
  }

 private:
  RowsSampler& sampler_;
  const std::vector<Row> rows_;
  std::vector<Survey> found_;
};

std::tuple<float, uint64_t, int64_t, std::vector<int32_t>> rank_token(RowSampler& sampler, Floats1 logits, int64_t token,
                                                                      int64_t num_top) {
  const int64_t n = checked_row(logits);
  check(token >= 0 && token < n && num_top >= 0, "the token lies outside the vocabulary");
  const nb::gil_scoped_release free;
  Ranking ranking = sampler.rank(logits.data(), n, token, num_top);
  return {ranking.largest, ranking.total, ranking.rank, std::move(ranking.top)};
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Compiled kernels; used through pellucid.kernels.native only.";
  amx_state();  // at import, before the first pool starts its threads
  m.def("available_isas", &available_isas);
  m.def("packed_bytes", [](int ggml_type, int64_t rows, int64_t columns) -> size_t {
    const int format = format_index(ggml_type);
    check(format >= 0 && rows >= 0 && columns >= 0, "unknown type or negative size");
    return static_cast<size_t>((rows + kPanelRows - 1) / kPanelRows) * kFormats[format].panel_bytes(columns);
  });
  m.def("amx_note", [] { return amx_state().note; });
  m.def("emulated_tiles_agree", &emulated_tiles_agree);
  // For tests: the answers are given instead of asked.
  m.def("judge_amx", [](bool processor, bool system, int permission, bool right) {
    const AmxState state = judge_amx({[=] { return processor; }, [=] { return system; }, [=] { return permission; },
                                      [=] { return right; }});
    return std::make_tuple(state.usable, state.note);
  });

  nb::class_<PackedMatrix>(m, "Matrix")
      .def_prop_ro("rows", &PackedMatrix::rows)
      .def_prop_ro("columns", &PackedMatrix::columns)
      .def_prop_ro("packed_bytes", &PackedMatrix::bytes);

  nb::class_<Step>(m, "Step").def(nb::init<Ints1, Longs1, Ints1, Ints2, Bools1, std::optional<Bools1>>());
  nb::class_<LayerCache>(m, "LayerCache")
      .def(nb::init<Array, Array, Array, Array>(), nb::arg("keys"), nb::arg("values"), nb::arg("scales"),
           nb::arg("factors"));

  m.attr("max_vocabulary") = kMaxVocabulary;
  nb::class_<RowSampler>(m, "RowSampler")
      .def(nb::init<const std::string&>(), nb::arg("isa"))
      .def("draw", &draw_token)
      .def("rank", &rank_token)
      .def("survey", &survey_row);
  nb::class_<RowsSampler>(m, "RowsSampler")
      .def(nb::init<const std::string&, int>(), nb::arg("isa"), nb::arg("threads"))
      .def("draw", &draw_rows)
      .def(
          "survey",
          [](RowsSampler& sampler, std::vector<RunningSurveys::Row> rows, int64_t num_top) {
            return std::make_unique<RunningSurveys>(sampler, std::move(rows), num_top);
          },
          nb::keep_alive<0, 1>());
  nb::class_<RunningSurveys>(m, "RunningSurveys").def("results", &RunningSurveys::results);

  nb::class_<Runtime>(m, "Runtime")
      .def(nb::init<int, const std::string&>(), nb::arg("threads"), nb::arg("isa"))
      .def_prop_ro("isa", &Runtime::isa)
      .def_prop_ro("threads", &Runtime::threads)
      .def_prop_ro("weight_bytes", &Runtime::weight_bytes)
      .def(
          "pack",
          [](Runtime& r, const std::vector<std::tuple<Bytes1, int, int64_t, std::optional<Ints1>, bool>>& parts, int64_t columns) {
            std::vector<SegmentSource> sources;
            for (const auto& [data, type, n, order, mapped] : parts) {
              check(!order || static_cast<int64_t>(order->shape(0)) == n, "row_order must have one entry per row");
              sources.push_back({data.data(), data.size(), type, n, order ? order->data() : nullptr, mapped});
            }
            const nb::gil_scoped_release free;
            return r.pack(sources, columns);
          },
          nb::keep_alive<0, 1>())
      .def("embed",
           [](Runtime& r, const PackedMatrix& table, Ints1 ids, float scale, Floats2 out) {
             const Rows o = rows(out);
             check(o.count == static_cast<int64_t>(ids.shape(0)) && o.width == table.columns(), "output has the wrong shape");
             for (int64_t i = 0; i < o.count; ++i)
               check(ids.data()[i] >= 0 && ids.data()[i] < table.rows(), "a token id lies outside the embedding");
             const nb::gil_scoped_release free;
             r.embed(table, ids.data(), scale, o);
           })
      .def("rms_norm", row_norm<&Runtime::rms_norm>)
      .def("rms_norm_add", row_norm<&Runtime::rms_norm_add>)
      .def(
          "layer_norm",
          [](Runtime& r, Floats2 x, Floats1 weight, std::optional<Floats1> bias, float eps, Floats2 out) {
            const Rows a = rows(x), o = rows(out);
            check(static_cast<int64_t>(weight.shape(0)) == a.width && (!bias || bias->shape(0) == weight.shape(0)),
                  "weight and bias must have one number per column");
            check(o.count == a.count && o.width == a.width, "output has the wrong shape");
            const float* b = bias ? bias->data() : nullptr;
            const nb::gil_scoped_release free;
            r.layer_norm(a, weight.data(), b, eps, o);
          },
          nb::arg("x"), nb::arg("weight"), nb::arg("bias").none(), nb::arg("eps"), nb::arg("out"))
      .def("activate",
           [](Runtime& r, Floats2 x, int kind, bool gated, Floats2 out) {
             const Rows a = rows(x), o = rows(out);
             const Activation activation = activation_of(kind);
             check(gated || activation != Activation::SwigluClamped, "swiglu_clamped needs a gate");
             check(o.count == a.count && a.width == (gated ? 2 : 1) * o.width, "output has the wrong shape");
             const nb::gil_scoped_release free;
             r.activate(a, activation, gated, o);
           })
      .def(
          "linear",
          [](Runtime& r, Floats2 x, std::optional<Floats1> weight, float eps, const PackedMatrix& w, Floats2 out,
             const Step* step, std::optional<Floats1> bias) {
            const Rows a = rows(x), o = rows(out);
            const Norm norm = norm_of(weight, eps, a.width);
            check_product(a, w, o, w.rows());
            const Runs& runs = runs_of(step, a);
            const float* added = bias_of(bias, w);
            const nb::gil_scoped_release free;
            r.linear(a, norm, w, added, o, runs);
          },
          nb::arg("x"), nb::arg("norm").none(), nb::arg("eps"), nb::arg("matrix"), nb::arg("out"), nb::arg("step") = nb::none(),
          nb::arg("bias") = nb::none())
      .def(
          "linear_add",
          [](Runtime& r, Floats2 x, const PackedMatrix& w, Floats2 residual, const Step* step, std::optional<Floats1> bias) {
            const Rows a = rows(x), o = rows(residual);
            check_product(a, w, o, w.rows());
            const Runs& runs = runs_of(step, a);
            const float* added = bias_of(bias, w);
            const nb::gil_scoped_release free;
            r.linear_add(a, w, added, o, runs);
          },
          nb::arg("x"), nb::arg("matrix"), nb::arg("residual"), nb::arg("step") = nb::none(), nb::arg("bias") = nb::none())
      .def(
          "linear_gated",
           [](Runtime& r, Floats2 x, Floats1 weight, float eps, const PackedMatrix& w, int kind, Floats2 out,
              const Step* step) {
             const Rows a = rows(x), o = rows(out);
             const Norm norm = norm_of(weight, eps, a.width);
             const Activation activation = activation_of(kind);
             check(w.rows() % 2 == 0 && (w.segments().size() == 2 ? w.segments()[0].rows == w.segments()[1].rows
                                                                  : w.segments().size() == 1 && w.rows() % 32 == 0),
                   "gate and up must have one size");
             check_product(a, w, o, w.rows() / 2);
             const Runs& runs = runs_of(step, a);
             const nb::gil_scoped_release free;
             r.linear_gated(a, norm, w, activation, o, runs);
           },
          nb::arg("x"), nb::arg("norm"), nb::arg("eps"), nb::arg("matrix"), nb::arg("activation"), nb::arg("out"),
          nb::arg("step") = nb::none())
      .def(
          "rotate_and_store",
          [](Runtime& r, Floats2 qkv, int64_t heads, std::optional<Floats1> q_norm, std::optional<Floats1> k_norm, float eps,
             nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu> cosine,
             nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu> sine, Step& step, LayerCache& cache) {
            const Rows a = rows(qkv);
            const AttentionShape shape{heads, 0, 0.0f};
            check_attention(a, shape, step, cache);
            const int64_t half = static_cast<int64_t>(cosine.shape(1));
            check(static_cast<int64_t>(cosine.shape(0)) == a.count && sine.shape(0) == cosine.shape(0) &&
                      sine.shape(1) == cosine.shape(1) && 2 * half <= cache.view.head_dim,
                  "cosine and sine must be [rows, pairs]");
            const Norm qn = norm_of(q_norm, eps, cache.view.head_dim), kn = norm_of(k_norm, eps, cache.view.head_dim);
            bool* nonfinite = step.nonfinite.data();
            const nb::gil_scoped_release free;
            r.rotate_and_store(a, shape, qn, kn, cosine.data(), sine.data(), half, step.view(), cache.view, nonfinite);
          },
          nb::arg("qkv"), nb::arg("heads"), nb::arg("q_norm").none(), nb::arg("k_norm").none(), nb::arg("eps"),
          nb::arg("cosine"), nb::arg("sine"), nb::arg("step"), nb::arg("cache"))
      .def(
          "attention",
          [](Runtime& r, Floats2 qkv, int64_t heads, int64_t window, float scale, bool causal, Step& step, LayerCache& cache, Floats2 out,
             std::optional<float> softcap, std::optional<Floats1> sinks, std::optional<Floats1> slopes) {
            const Rows a = rows(qkv), o = rows(out);
            const AttentionShape shape{heads, window, scale, causal, softcap.value_or(0.0f), sinks ? sinks->data() : nullptr,
                                       slopes ? slopes->data() : nullptr};
            check_attention(a, shape, step, cache);
            check(window >= 0, "window must not be negative");
            check(!softcap || *softcap > 0, "softcap must be above 0");
            for (const auto& per_head : {sinks, slopes})
              check(!per_head || static_cast<int64_t>(per_head->shape(0)) == heads, "sinks and slopes must have one number per head");
            check(o.count == a.count && o.width == heads * cache.view.value_dim, "output has the wrong shape");
            const nb::gil_scoped_release free;
            r.attention(a, shape, step.view(), cache.view, o);
          },
          nb::arg("qkv"), nb::arg("heads"), nb::arg("window"), nb::arg("scale"), nb::arg("causal"), nb::arg("step"),
          nb::arg("cache"), nb::arg("out"), nb::arg("softcap").none() = nb::none(), nb::arg("sinks").none() = nb::none(),
          nb::arg("slopes").none() = nb::none());
}
