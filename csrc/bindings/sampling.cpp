// The Python face of sampling.
#include "sampling.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "bindings.h"

namespace pellucid {

namespace {

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

void bind_sampling(nb::module_& m) {
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
}

}  // namespace pellucid
