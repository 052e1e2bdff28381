// SPDX-License-Identifier: Apache-2.0
#include "cli/hub_download.h"

#include "cli/note.h"
#include "config/env.h"
#include "files/cache_paths.h"
#include "files/hub_name.h"
#include "text/textkit_call.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <optional>
#include <string_view>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kRedraw{100};

bool is_on(const std::string& variable) {
  const std::string value = environment(variable).value_or("0");
  return value == "1" || value == "true" || value == "True" || value == "TRUE" || value == "on" ||
         value == "ON" || value == "yes" || value == "YES";
}

// What the Hub's own tools have left after a login, or nothing.
std::string read_token(const CachePaths& caches) {
  if (const std::optional<std::string> token = environment("HF_TOKEN")) {
    return *token;
  }
  const std::optional<std::string> home = environment("HF_HOME");
  const fs::path folder = home ? fs::path(*home) : fs::path(caches.huggingface_hub).parent_path();
  std::string token;
  std::ifstream(environment("HF_TOKEN_PATH").value_or((folder / "token").string())) >> token;
  return token;
}

std::string size_text(uint64_t bytes) {
  constexpr double kMega = 1e6;
  const double mega = static_cast<double>(bytes) / kMega;
  return mega < 1000 ? fmt::format("{:.1f} MB", mega) : fmt::format("{:.2f} GB", mega / 1000);
}

// A line on stderr, redrawn where that is a terminal.
class DownloadLine {
 public:
  explicit DownloadLine(uint64_t total) : total_(total) {}
  ~DownloadLine() {
    if (drawn_) {
      note("\r\x1b[K");
    }
  }
  DownloadLine(const DownloadLine&) = delete;
  DownloadLine& operator=(const DownloadLine&) = delete;

  // The file under way; `before` bytes are there of the others.
  void begin(const std::string& file, uint64_t before) {
    file_ = file;
    before_ = before;
  }
  static void tell(void* self, uint64_t done, uint64_t /*total*/) {
    static_cast<DownloadLine*>(self)->draw(done);
  }

 private:
  void draw(uint64_t done) {
    const Clock::time_point now = Clock::now();
    if (!is_terminal_ || now - last_draw_ < kRedraw) {
      return;
    }
    last_draw_ = now;
    drawn_ = true;
    const uint64_t all = before_ + done;
    first_ = first_ ? first_ : all;  // what an earlier try has brought is no speed of this one
    const double seconds = std::chrono::duration<double>(now - start_).count();
    note("\r\x1b[K{} of {}, {:.0f} MB/s  {}",
         size_text(all),
         size_text(std::max(total_, all)),
         static_cast<double>(all - std::min(*first_, all)) / 1e6 / std::max(seconds, 1e-3),
         file_);
    std::fflush(stderr);
  }

  uint64_t total_;
  uint64_t before_ = 0;
  std::string file_;
  bool is_terminal_ = isatty(STDERR_FILENO) == 1;
  bool drawn_ = false;
  std::optional<uint64_t> first_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_draw_{};
};

struct Listing {
  std::string commit;
  std::vector<HubFile> files;
};

Result<Listing> list_files(const wr_hub_repo& repo) {
  TextkitOwned json;
  TextkitOwned error;
  if (wr_hub_list(&repo, json.out(), error.out()) != 0) {
    return fail(ErrorCode::kNotFound, error.str());
  }
  const nlohmann::json listing = nlohmann::json::parse(json.text());
  Listing out{listing["commit"], {}};
  for (const nlohmann::json& file : listing["files"]) {
    out.files.push_back({file["name"], file["size"]});
  }
  return out;
}

Result<void> fetch_files(const wr_hub_repo& repo, const Listing& listing, uint64_t total) {
  DownloadLine line(total);
  uint64_t before = 0;
  for (const HubFile& file : listing.files) {
    line.begin(file.name, before);
    TextkitOwned error;
    if (wr_hub_fetch(&repo,
                     to_textkit(listing.commit),
                     to_textkit(file.name),
                     &DownloadLine::tell,
                     &line,
                     error.out()) != 0) {
      return fail(ErrorCode::kNotFound, error.str());
    }
    before += file.size;
  }
  return {};
}

Result<void> write_ref(const fs::path& path, const std::string& commit) {
  std::error_code ignored;
  fs::create_directories(path.parent_path(), ignored);
  std::ofstream file(path);
  if (!(file << commit << std::flush)) {
    return fail(ErrorCode::kNotFound, fmt::format("cannot write '{}'", path.string()));
  }
  return {};
}

Result<void> download(const HubName& name, const CachePaths& caches, WeightFiles weights) {
  const std::string endpoint = environment("HF_ENDPOINT").value_or("https://huggingface.co");
  const std::string token = read_token(caches);
  const wr_hub_repo repo{.name = to_textkit(name.repo),
                         .revision = to_textkit(name.revision),
                         .cache_dir = to_textkit(caches.huggingface_hub),
                         .endpoint = to_textkit(endpoint),
                         .token = to_textkit(token)};
  const auto start = Clock::now();
  Result<Listing> listing = list_files(repo);
  if (!listing) {
    return tl::unexpected(listing.error());
  }
  Result<std::vector<HubFile>> chosen = choose_hub_files(listing->files, name, weights);
  if (!chosen) {
    return tl::unexpected(chosen.error());
  }
  listing->files = *std::move(chosen);
  const uint64_t total =
      std::accumulate(listing->files.begin(),
                      listing->files.end(),
                      uint64_t{0},
                      [](uint64_t sum, const HubFile& file) { return sum + file.size; });
  const std::string folder = hub_repo_folder(caches, name);
  note("downloading {}@{} from {}: {} files, {}, to {}\n",
       name.repo,
       name.revision,
       endpoint,
       listing->files.size(),
       size_text(total),
       folder);
  if (Result<void> fetched = fetch_files(repo, *listing, total); !fetched) {
    return fetched;
  }
  note("downloaded in {:.1f} s\n", std::chrono::duration<double>(Clock::now() - start).count());
  return write_ref(fs::path(folder) / "refs" / name.revision, listing->commit);
}

}  // namespace

Result<void> ensure_model(const std::string& model, WeightFiles weights) {
  const CachePaths caches = CachePaths::from_environment();
  const Result<ModelFiles> found = resolve_model(model, caches, weights);
  if (found || found.error().code != ErrorCode::kNotFound) {
    return {};
  }
  const std::optional<HubName> name = parse_hub_name(model);
  const bool is_path = fs::path(model).extension() == ".gguf" && (!name || name->quant.empty());
  if (!name || is_path || name->repo.find('/') == std::string::npos) {
    return {};
  }
  if (is_on("HF_HUB_OFFLINE") || is_on("TRANSFORMERS_OFFLINE")) {
    return fail(ErrorCode::kNotFound,
                found.error().message + "; HF_HUB_OFFLINE forbids a download");
  }
  return download(*name, caches, weights).map_error([&](const Error& error) {
    return Error{error.code,
                 fmt::format("there is no path '{}', and no download: {}", model, error.message)};
  });
}

}  // namespace warprow
