// SPDX-License-Identifier: Apache-2.0
#include "cli/chat/line_reader.h"

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <histedit.h>
#include <iostream>
#include <string_view>

namespace warprow {
namespace {

constexpr int kHistoryLines = 1000;

class PlainReader : public LineReader {
 public:
  Outcome read(std::string& line) override {
    return std::getline(std::cin, line) ? Outcome::kLine : Outcome::kEnd;
  }
};

// Owns: libedit's editor and history.
class TerminalReader : public LineReader {
 public:
  explicit TerminalReader(const char* prompt) : prompt_(prompt) {
    // libedit decodes multi-byte characters by the locale. Without a locale the input is still UTF-8.
    if (std::setlocale(LC_CTYPE, "") == nullptr ||
        std::string_view(std::setlocale(LC_CTYPE, nullptr)) == "C") {
      std::setlocale(LC_CTYPE, "C.UTF-8");
    }
    editor_.reset(el_init("warprow", stdin, stderr, stderr));
    history_.reset(history_init());
    HistEvent event;
    history(history_.get(), &event, H_SETSIZE, kHistoryLines);
    history(history_.get(), &event, H_SETUNIQUE, 1);
    el_set(editor_.get(), EL_CLIENTDATA, this);
    el_set(editor_.get(), EL_PROMPT, &TerminalReader::prompt_of);
    el_set(editor_.get(), EL_EDITOR, "emacs");
    el_set(editor_.get(), EL_HIST, history, history_.get());
    el_set(editor_.get(), EL_BIND, "^R", "em-inc-search-prev", nullptr);
    el_source(editor_.get(), nullptr);  // the user's ~/.editrc
  }

  Outcome read(std::string& line) override {
    int length = 0;
    errno = 0;
    const char* text = el_gets(editor_.get(), &length);
    if (text == nullptr || length <= 0) {
      if (errno == EINTR) {
        el_reset(editor_.get());
        return Outcome::kSignal;
      }
      return Outcome::kEnd;
    }
    line.assign(text, static_cast<size_t>(length));
    while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) {
      line.pop_back();
    }
    if (!line.empty()) {
      HistEvent event;
      history(history_.get(), &event, H_ENTER, line.c_str());
    }
    return Outcome::kLine;
  }

 private:
  struct FreeEditor {
    void operator()(EditLine* editor) const { el_end(editor); }
  };
  struct FreeHistory {
    void operator()(History* lines) const { history_end(lines); }
  };

  // libedit's interface takes a char*, but only reads it.
  static char* prompt_of(EditLine* editor) {
    TerminalReader* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return self->prompt_.data();
  }

  std::string prompt_;
  std::unique_ptr<History, FreeHistory> history_;
  std::unique_ptr<EditLine, FreeEditor> editor_;  // uses history_, so it is destroyed first
};

}  // namespace

std::unique_ptr<LineReader> make_terminal_reader(const char* prompt) {
  return std::make_unique<TerminalReader>(prompt);
}

std::unique_ptr<LineReader> make_plain_reader() { return std::make_unique<PlainReader>(); }

}  // namespace warprow
