// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/serve_load.h"

#include "cli/api_event.h"
#include "cli/flags/server_flags.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

namespace warprow {
namespace {

using Clock = HttpClient::Clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The state of a running load: prompts that have arrived and wait, and running requests.
class LoadRun {
 public:
  LoadRun(HttpClient& client,
          const ServeLoad& load,
          const std::vector<ServePrompt>& prompts,
          const std::function<void(int64_t, int64_t)>& on_progress)
      : client_(client),
        load_(load),
        prompts_(prompts),
        on_progress_(on_progress),
        arrivals_(arrival_times(
            static_cast<int64_t>(prompts.size()), load.request_rate, load.burstiness, load.seed)),
        times_(prompts.size()) {
    records_.requests.resize(prompts.size());
  }

  ServeRecords run() {
    start_ = Clock::now();
    take_arrivals();
    client_.run();
    records_.duration_s = seconds_since(start_);
    return std::move(records_);
  }

 private:
  // Queues the prompts that are due and schedules itself for the next arrival.
  void take_arrivals() {
    const double now = seconds_since(start_);
    while (next_ < prompts_.size() && arrivals_[next_] <= now) {
      waiting_.push_back(next_++);
    }
    if (next_ < prompts_.size()) {
      const std::chrono::duration<double> delay(arrivals_[next_]);
      client_.at(start_ + std::chrono::ceil<Clock::duration>(delay), [this] { take_arrivals(); });
    }
    send_waiting();
  }

  void send_waiting() {
    while (!waiting_.empty() &&
           (load_.max_concurrency == 0 || num_running_ < load_.max_concurrency)) {
      const size_t index = waiting_.front();
      waiting_.pop_front();
      records_.max_concurrent = std::max(records_.max_concurrent, ++num_running_);
      send(index);
    }
  }

  void send(size_t index) {
    ServeRecord& record = records_.requests[index];
    const Clock::time_point sent = Clock::now();
    record.start_s = std::chrono::duration<double>(sent - start_).count();
    AnswerTimes& times = times_[index];
    HttpCall call;
    call.method = "POST";
    call.path = load_.endpoint;
    call.body = request_body(load_, prompts_[index]).dump();
    call.on_piece = [&times, sent, &record](std::string_view piece) {
      times.read(piece, seconds_since(sent), record);
      return true;
    };
    call.on_end = [this, &record](const Result<HttpAnswer>& answer) { finish(record, answer); };
    client_.start(std::move(call));
  }

  void finish(ServeRecord& record, const Result<HttpAnswer>& answer) {
    if (!answer) {
      record.error = answer.error().message;
    } else if (answer->status != 200) {
      record.error = refusal_text(*answer);
    } else if (record.error.empty() && record.ttft_s == 0) {
      record.error = "an answer without a single event";
    }
    ++num_done_;
    num_tokens_ += record.num_output_tokens;
    --num_running_;
    on_progress_(num_done_, num_tokens_);
    send_waiting();
  }

  HttpClient& client_;
  const ServeLoad& load_;
  const std::vector<ServePrompt>& prompts_;
  const std::function<void(int64_t, int64_t)>& on_progress_;
  std::vector<double> arrivals_;  // seconds after start_
  std::vector<AnswerTimes> times_;
  Clock::time_point start_;
  ServeRecords records_;
  size_t next_ = 0;             // index of the next prompt to arrive
  std::deque<size_t> waiting_;  // arrived, not sent
  int64_t num_running_ = 0;
  int64_t num_done_ = 0;
  int64_t num_tokens_ = 0;
};

}  // namespace

nlohmann::json request_body(const ServeLoad& load, const ServePrompt& prompt) {
  const bool is_chat = load.endpoint.find("chat") != std::string::npos;
  const bool has_messages =
      prompt.prompt.is_array() && !prompt.prompt.empty() && prompt.prompt.front().is_object();
  nlohmann::json body = {{"model", load.model},
                         {"max_tokens", prompt.output_len},
                         {"temperature", 0},
                         {"stream", true},
                         {"stream_options", {{"include_usage", true}}}};
  if (is_chat && has_messages) {
    body["messages"] = prompt.prompt;
  } else if (is_chat) {
    body["messages"] = nlohmann::json::array({{{"role", "user"}, {"content", prompt.prompt}}});
  } else {
    body["prompt"] = prompt.prompt;
  }
  if (load.ignore_eos) {
    body["ignore_eos"] = true;
  }
  body.update(load.extra_body);
  return body;
}

void AnswerTimes::read(std::string_view piece, double now_s, ServeRecord& record) {
  events_.feed(piece, [&](std::string_view data) { read_event(data, now_s, record); });
}

void AnswerTimes::read_event(std::string_view data, double now_s, ServeRecord& record) {
  const std::optional<ApiEvent> event = read_api_event(data);
  if (!event) {
    return;  // [DONE]
  }
  record.error += event->error;
  record.num_input_tokens = event->num_prompt_tokens.value_or(record.num_input_tokens);
  record.num_output_tokens = event->num_output_tokens.value_or(record.num_output_tokens);
  if (!event->has_choice) {
    return;
  }
  record.latency_s = now_s;
  const bool has_more = !event->text.empty() || !event->reasoning.empty() || event->has_tool_calls;
  const bool is_end = !event->finish_reason.empty();
  if (!has_more && (is_end ? num_pieces_ > 0 : event->has_role)) {
    return;
  }
  record.text += event->reasoning + event->text;
  if (++num_pieces_ == 1) {
    record.ttft_s = now_s;
  } else {
    record.itls_s.push_back(now_s - last_s_);
  }
  last_s_ = now_s;
  record.num_output_tokens = std::max(record.num_output_tokens, num_pieces_);
}

ServeRecords run_serve_load(HttpClient& client,
                            const ServeLoad& load,
                            const std::vector<ServePrompt>& prompts,
                            const std::function<void(int64_t, int64_t)>& on_progress) {
  return LoadRun(client, load, prompts, on_progress).run();
}

}  // namespace warprow
