// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/api_batch.h"

#include "cli/commands/request_file.h"
#include "server/json_value.h"

#include <chrono>
#include <optional>
#include <utility>
#include <variant>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using Json = nlohmann::ordered_json;

// Interval of checks for a signal while no answer ends.
constexpr std::chrono::milliseconds kNewsGlance{100};

// Reads the next line that is not blank. `number` counts all lines.
bool next_line(std::istream& lines, std::string& text, int64_t& number) {
  while (std::getline(lines, text)) {
    ++number;
    if (!is_blank(text)) {
      return true;
    }
  }
  return false;
}

std::string custom_id_of(const Result<Json>& line) {
  if (!line) {
    return "";
  }
  const auto found = line->find("custom_id");
  return found != line->end() && found->is_string() ? found->get<std::string>() : "";
}

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The request in a line, or an error that says what is wrong with the line.
Result<HttpRequest> read_request(const Json& line) {
  const auto refused = [](const std::string& why) {
    return fail(ErrorCode::kInvalidArgument, why);
  };
  for (const char* field : {"custom_id", "method", "url"}) {
    if (!line.contains(field) || !line[field].is_string()) {
      return refused(fmt::format("{}: must be a text", field));
    }
  }
  HttpRequest request;
  request.method = line["method"];
  request.path = line["url"];
  if (request.method != "POST" || !request.path.starts_with("/v1/")) {
    return refused(fmt::format(
        "method, url: {} {} is no POST of a path under /v1/", request.method, request.path));
  }
  const auto body = line.find("body");
  if (body == line.end() || !body->is_object()) {
    return refused("body: must be an object");
  }
  if (const auto stream = body->find("stream"); stream != body->end() && *stream == true) {
    return refused("body: stream must be false, results are written whole");
  }
  request.body = dump(*body);
  return request;
}

}  // namespace

ApiBatch::Progress ApiBatch::run(std::istream& lines,
                                 const std::function<bool(const Progress&)>& on_progress) {
  while (on_progress(progress_) && !out_.closed()) {
    read_ahead(lines);
    collect();
    write_finished();
    if (window_.empty() && end_of_input_) {
      break;
    }
    if (window_.empty() || window_.front().result.empty()) {
      wait();
    }
  }
  window_.clear();  // aborts running requests, which would otherwise wake a destroyed batch
  on_progress(progress_);
  return progress_;
}

Result<void> ApiBatch::skip(std::istream& lines, const std::vector<std::string>& done) {
  std::string text;
  for (const std::string& found : done) {
    const bool has_line = next_line(lines, text, line_);
    const std::string wanted = has_line ? batch_custom_id(text) : "";
    ++progress_.num_lines;
    if (!has_line || wanted != found) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("-o: its line {} ('{}') is no result of the input's line {} ('{}'); "
                              "name another file",
                              progress_.num_lines,
                              found,
                              line_,
                              wanted));
    }
  }
  return {};
}

void ApiBatch::read_ahead(std::istream& lines) {
  std::string text;
  while (!end_of_input_ && window_.size() < look_ahead_) {
    if (next_line(lines, text, line_)) {
      start(text);
    } else {
      end_of_input_ = true;
    }
  }
}

void ApiBatch::start(const std::string& text) {
  Item& item = window_.emplace_back();
  item.line = line_;
  item.request_id = fmt::format("batch-{}", line_);
  const Result<Json> line = parse_json_object(text);
  item.custom_id = custom_id_of(line);
  if (!line) {
    set_error(item, line.error().message);
    return;
  }
  Result<HttpRequest> request = read_request(*line);
  if (!request) {
    set_error(item, request.error().message);
    return;
  }
  request->request_id = item.request_id;
  Api::Answer answer = api_.handle(*request, [this] {
    const std::scoped_lock lock(mutex_);
    has_news_ = true;
    woken_.notify_one();
  });
  if (const auto* reply = std::get_if<HttpReply>(&answer)) {
    set_reply(item, *reply);
  } else {
    item.generation = std::move(std::get<std::unique_ptr<Generation>>(answer));
  }
}

void ApiBatch::set_reply(Item& item, const HttpReply& reply) {
  progress_.num_failed += reply.status == 200 ? 0 : 1;
  // The body is JSON already, so it is inserted unchanged.
  item.result = fmt::format(
      R"({}{}","custom_id":{},"response":{{"status_code":{},"request_id":"{}","body":{}}},"error":null}})"
      "\n",
      kBatchResultBegin,
      item.line,
      dump(item.custom_id),
      reply.status,
      item.request_id,
      reply.body.empty() ? "null" : reply.body);
}

void ApiBatch::set_error(Item& item, const std::string& message) {
  ++progress_.num_failed;
  const Json error = {{"code", "invalid_request"},
                      {"message", fmt::format("line {}: {}", item.line, message)}};
  item.result = dump({{"id", fmt::format("batch_req_{}", item.line)},
                      {"custom_id", item.custom_id.empty() ? Json() : Json(item.custom_id)},
                      {"response", nullptr},
                      {"error", error}}) +
                "\n";
}

void ApiBatch::collect() {
  for (Item& item : window_) {
    if (!item.generation) {
      continue;
    }
    item.generation->take();
    if (item.generation->finished()) {
      set_reply(item, item.generation->reply());
      item.generation.reset();
    }
  }
}

void ApiBatch::write_finished() {
  while (!window_.empty() && !window_.front().result.empty() &&
         out_.write(window_.front().result)) {
    window_.pop_front();
    ++progress_.num_lines;
  }
}

void ApiBatch::wait() {
  std::unique_lock lock(mutex_);
  woken_.wait_for(lock, kNewsGlance, [this] { return has_news_; });
  has_news_ = false;
}

std::string batch_custom_id(const std::string& line) {
  return custom_id_of(parse_json_object(line));
}

}  // namespace warprow
