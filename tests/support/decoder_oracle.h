// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace warprow::test {

// A decoder-only transformer in plain loops of doubles, written from the papers and independent of our forward. It is
// the reference for layers that no golden file covers.

using Doubles = std::vector<double>;

struct OracleLayer {
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int window = 0;        // visible keys, including the query's own; 0: no window
  int rot_dim = 0;       // leading elements of a head that rope rotates; 0: no rope
  double theta = 0;      // rope's base frequency
  double stretch = 1.0;  // divides rope's frequencies
  double scale = 1.0;
  double soft_cap = 0.0;  // 0: none
  int intermediate = 0;
  bool gelu = false;  // tanh GELU, else SiLU
  double residual_scale = 1.0;
  // What a cache makes of an element of a KV head's keys and values; none: it keeps them.
  std::function<double(double x, int kv_head)> cached_key, cached_value;
  // Matrices are [out, in]. Norm weights are the factors themselves. Empty: the layer has none.
  Doubles input_norm, q, k, v, o, q_norm, k_norm, sinks, attention_post_norm;
  Doubles ffn_norm, gate, up, down, ffn_post_norm;
  Doubles q_bias, k_bias, v_bias;
  Doubles
      output_gate;  // [heads * head_dim, hidden]: the sigmoids of its products multiply attention's output
  std::function<Doubles(const Doubles&)> experts;  // of normed rows, in place of gate, up and down
};

struct OracleModel {
  int hidden = 0;
  int vocab = 0;
  double eps = 1e-6;
  double embed_scale = 1.0;
  Doubles embed, final_norm, head;
  std::vector<OracleLayer> layers;
  std::function<void(Doubles&)> round_inputs;  // of the layers' products; null: not rounded
};

class DecoderOracle {
 public:
  explicit DecoderOracle(const OracleModel& model) : model_(model) {}

  // The residual stream in front of each layer and behind the last one, by token.
  [[nodiscard]] std::vector<std::vector<Doubles>> streams(const std::vector<int32_t>& ids) const {
    std::vector<Doubles> stream;
    for (const int32_t id : ids) {
      Doubles row(size(model_.hidden));
      for (size_t i = 0; i < row.size(); ++i) {
        row[i] = model_.embed_scale * model_.embed[size(id) * row.size() + i];
      }
      stream.push_back(row);
    }
    std::vector<std::vector<Doubles>> streams = {stream};
    for (const OracleLayer& layer : model_.layers) {
      attend(layer, stream);
      feed(layer, stream);
      streams.push_back(stream);
    }
    return streams;
  }

  // Logits [vocab] after each of the ids.
  [[nodiscard]] std::vector<Doubles> logits(const std::vector<int32_t>& ids) const {
    std::vector<Doubles> out;
    const std::vector<std::vector<Doubles>> all = streams(ids);
    for (const Doubles& row : all.back()) {
      out.push_back(times(model_.head, normed(row, model_.final_norm)));
    }
    return out;
  }

 protected:
  static size_t size(int64_t n) { return static_cast<size_t>(n); }

  static Doubles times(const Doubles& w, const Doubles& x) {
    Doubles y(w.size() / x.size());
    for (size_t j = 0; j < y.size(); ++j) {
      for (size_t i = 0; i < x.size(); ++i) {
        y[j] += w[j * x.size() + i] * x[i];
      }
    }
    return y;
  }

  [[nodiscard]] Doubles rounded(Doubles x) const {
    if (model_.round_inputs) {
      model_.round_inputs(x);
    }
    return x;
  }

  [[nodiscard]] Doubles normed(const Doubles& x, const Doubles& weight) const {
    double squares = 0;
    for (const double v : x) {
      squares += v * v;
    }
    const double root = std::sqrt(squares / static_cast<double>(x.size()) + model_.eps);
    Doubles out(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      out[i] = x[i] / root * weight[i];
    }
    return out;
  }

  // The products of a normed row with q, k or v.
  static Doubles projected(const Doubles& w, const Doubles& bias, const Doubles& x) {
    Doubles y = times(w, x);
    for (size_t i = 0; i < bias.size(); ++i) {
      y[i] += bias[i];
    }
    return y;
  }

  static void open_gate(const OracleLayer& layer, const Doubles& x, Doubles& seen) {
    if (layer.output_gate.empty()) {
      return;
    }
    const Doubles gate = times(layer.output_gate, x);
    for (size_t i = 0; i < seen.size(); ++i) {
      seen[i] /= 1.0 + std::exp(-gate[i]);
    }
  }

  void join(const OracleLayer& layer, const Doubles& post_norm, Doubles product, Doubles& x) const {
    if (!post_norm.empty()) {
      product = normed(product, post_norm);
    }
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] += layer.residual_scale * product[i];
    }
  }

  // Head norm, then rope, for every head of a row.
  [[nodiscard]] Doubles placed(const OracleLayer& layer,
                               const Doubles& row,
                               const Doubles& norm,
                               int position) const {
    Doubles out;
    const size_t dim = size(layer.head_dim);
    for (size_t at = 0; at < row.size(); at += dim) {
      Doubles head(row.begin() + static_cast<int64_t>(at),
                   row.begin() + static_cast<int64_t>(at + dim));
      if (!norm.empty()) {
        head = normed(head, norm);
      }
      const size_t half = size(layer.rot_dim / 2);
      for (size_t i = 0; i < half; ++i) {
        const double exponent = 2.0 * static_cast<double>(i) / layer.rot_dim;
        const double angle = position / std::pow(layer.theta, exponent) / layer.stretch;
        const double a = head[i];
        const double b = head[i + half];
        head[i] = a * std::cos(angle) - b * std::sin(angle);
        head[i + half] = b * std::cos(angle) + a * std::sin(angle);
      }
      out.insert(out.end(), head.begin(), head.end());
    }
    return out;
  }

  static Doubles attend_one(const OracleLayer& layer,
                            const Doubles& q,
                            const std::vector<Doubles>& k,
                            const std::vector<Doubles>& v,
                            int position) {
    const size_t dim = size(layer.head_dim);
    Doubles out(q.size());
    const int first = layer.window == 0 ? 0 : std::max(0, position - layer.window + 1);
    for (int h = 0; h < layer.num_heads; ++h) {
      const size_t q_at = size(h) * dim;
      const size_t kv_at = size(h / (layer.num_heads / layer.num_kv_heads)) * dim;
      double total = layer.sinks.empty() ? 0.0 : std::exp(layer.sinks[size(h)]);
      for (int p = first; p <= position; ++p) {
        double score = 0;
        for (size_t i = 0; i < dim; ++i) {
          score += q[q_at + i] * k[size(p)][kv_at + i];
        }
        score *= layer.scale;
        if (layer.soft_cap != 0.0) {
          score = layer.soft_cap * std::tanh(score / layer.soft_cap);
        }
        total += std::exp(score);
        for (size_t i = 0; i < dim; ++i) {
          out[q_at + i] += std::exp(score) * v[size(p)][kv_at + i];
        }
      }
      for (size_t i = 0; i < dim; ++i) {
        out[q_at + i] /= total;
      }
    }
    return out;
  }

  static void keep(const OracleLayer& layer,
                   const std::function<double(double, int)>& cached,
                   Doubles& row) {
    for (size_t i = 0; cached && i < row.size(); ++i) {
      row[i] = cached(row[i], static_cast<int>(i) / layer.head_dim);
    }
  }

  void attend(const OracleLayer& layer, std::vector<Doubles>& stream) const {
    std::vector<Doubles> q;
    std::vector<Doubles> k;
    std::vector<Doubles> v;
    std::vector<Doubles> inputs;
    for (size_t t = 0; t < stream.size(); ++t) {
      const Doubles x = rounded(normed(stream[t], layer.input_norm));
      const auto at = static_cast<int>(t);
      q.push_back(placed(layer, projected(layer.q, layer.q_bias, x), layer.q_norm, at));
      k.push_back(placed(layer, projected(layer.k, layer.k_bias, x), layer.k_norm, at));
      v.push_back(projected(layer.v, layer.v_bias, x));
      inputs.push_back(x);
      keep(layer, layer.cached_key, k.back());
      keep(layer, layer.cached_value, v.back());
    }
    for (size_t t = 0; t < stream.size(); ++t) {
      Doubles seen = attend_one(layer, q[t], k, v, static_cast<int>(t));
      open_gate(layer, inputs[t], seen);
      join(layer, layer.attention_post_norm, times(layer.o, rounded(seen)), stream[t]);
    }
  }

  void feed(const OracleLayer& layer, std::vector<Doubles>& stream) const {
    const double root = std::sqrt(2.0 / std::acos(-1.0));
    for (Doubles& row : stream) {
      const Doubles x = rounded(normed(row, layer.ffn_norm));
      if (layer.experts) {
        join(layer, layer.ffn_post_norm, layer.experts(x), row);
        continue;
      }
      Doubles gate = times(layer.gate, x);
      const Doubles up = times(layer.up, x);
      for (size_t i = 0; i < gate.size(); ++i) {
        const double g = gate[i];
        const double gelu = 0.5 * g * (1.0 + std::tanh(root * (g + 0.044715 * g * g * g)));
        gate[i] = (layer.gelu ? gelu : g / (1.0 + std::exp(-g))) * up[i];
      }
      join(layer, layer.ffn_post_norm, times(layer.down, rounded(gate)), row);
    }
  }

 private:
  const OracleModel& model_;
};

}  // namespace warprow::test
