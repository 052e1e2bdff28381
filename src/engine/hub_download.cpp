// SPDX-License-Identifier: Apache-2.0
#include "engine/hub_download.h"

#include "config/env.h"
#include "files/cache_paths.h"
#include "files/hub_name.h"
#include "files/model_alias.h"
#include "text/textkit_call.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <system_error>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kRedraw{100};

// Time-out of a host that sends nothing (HF_HUB_DOWNLOAD_TIMEOUT).
constexpr double kTimeoutS = 10;
constexpr double kLeastTimeoutS = 0.1;
constexpr double kMostTimeoutS = 3600;

bool is_on(const std::string& variable) {
  const std::string value = environment(variable).value_or("0");
  return value == "1" || value == "true" || value == "True" || value == "TRUE" || value == "on" ||
         value == "ON" || value == "yes" || value == "YES";
}

// The token from HF_TOKEN, or the one that the Hub's own tools have stored at a login; "" if there is none.
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

// A progress line on stderr, redrawn if stderr is a terminal.
class DownloadLine {
 public:
  DownloadLine(uint64_t total, const TellUser& tell) : total_(total), tell_(tell) {}
  ~DownloadLine() {
    if (drawn_) {
      tell_("\r\x1b[K");
    }
  }
  DownloadLine(const DownloadLine&) = delete;
  DownloadLine& operator=(const DownloadLine&) = delete;

  // Sets the current file. `before`: bytes of the other files that are already present.
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
    first_ = first_ ? first_ : all;  // earlier bytes do not count for the speed
    const double seconds = std::chrono::duration<double>(now - start_).count();
    tell_(fmt::format(
        "\r\x1b[K{} of {}, {:.0f} MB/s  {}",
        size_text(all),
        size_text(std::max(total_, all)),
        static_cast<double>(all - std::min(*first_, all)) / 1e6 / std::max(seconds, 1e-3),
        file_));
  }

  uint64_t total_;
  const TellUser& tell_;
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
    out.files.push_back({file["name"], file["size"], ""});
  }
  return out;
}

Result<void> fetch_files(const wr_hub_repo& repo,
                         const Listing& listing,
                         uint64_t total,
                         const TellUser& tell) {
  DownloadLine line(total, tell);
  uint64_t before = 0;
  for (const HubFile& file : listing.files) {
    line.begin(file.name, before);
    const wr_hub_file wanted{
        .name = to_textkit(file.name), .size = file.size, .sha256 = to_textkit(file.sha256)};
    TextkitOwned error;
    if (wr_hub_fetch(
            &repo, to_textkit(listing.commit), &wanted, &DownloadLine::tell, &line, error.out()) !=
        0) {
      return fail(ErrorCode::kNotFound, error.str());
    }
    before += file.size;
  }
  return {};
}

Result<void> write_ref(const fs::path& path, const std::string& commit) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  // Replace the file atomically: another process may be reading it.
  const fs::path fresh = fmt::format("{}.{}", path.string(), getpid());
  const bool written = static_cast<bool>(std::ofstream(fresh) << commit << std::flush);
  fs::rename(fresh, path, error);
  if (!written || error) {
    return fail(ErrorCode::kNotFound, fmt::format("cannot write '{}'", path.string()));
  }
  return {};
}

// The Hub's settings from the environment.
struct Hub {
  std::string endpoint = environment("HF_ENDPOINT").value_or("https://huggingface.co");
  std::string token;
  double timeout_s = kTimeoutS;

  [[nodiscard]] wr_hub_repo repo(const HubName& name, const CachePaths& caches) const {
    return {.name = to_textkit(name.repo),
            .revision = to_textkit(name.revision),
            .cache_dir = to_textkit(caches.huggingface_hub),
            .endpoint = to_textkit(endpoint),
            .token = to_textkit(token),
            .timeout_s = timeout_s};
  }
};

Result<Hub> open_hub(const CachePaths& caches) {
  Hub hub;
  hub.token = read_token(caches);
  if (const std::optional<std::string> text = environment("HF_HUB_DOWNLOAD_TIMEOUT")) {
    const char* end = text->data() + text->size();
    const auto [stop, error] = std::from_chars(text->data(), end, hub.timeout_s);
    if (error != std::errc() || stop != end ||
        !(hub.timeout_s >= kLeastTimeoutS && hub.timeout_s <= kMostTimeoutS)) {
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("HF_HUB_DOWNLOAD_TIMEOUT: '{}' is not a number of seconds from {} to {}",
                      *text,
                      kLeastTimeoutS,
                      kMostTimeoutS));
    }
  }
  return hub;
}

uint64_t size_of_all(const std::vector<HubFile>& files) {
  uint64_t sum = 0;
  for (const HubFile& file : files) {
    sum = file.size > UINT64_MAX - sum ? UINT64_MAX : sum + file.size;
  }
  return sum;
}

// The bytes of the repository that earlier downloads have stored, complete and partial files.
uint64_t bytes_in(const fs::path& folder) {
  uint64_t sum = 0;
  std::error_code error;
  for (fs::directory_iterator it(folder, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    std::error_code ignored;
    const uint64_t size = it->file_size(ignored);
    sum += ignored ? 0 : size;
  }
  return sum;
}

// The sizes come from the server. An error before any write if the disk has too little space for them.
Result<void> check_space(uint64_t total, const std::string& folder) {
  std::error_code error;
  fs::path there = fs::absolute(folder, error);
  while (!fs::exists(there, error) && there.has_relative_path()) {
    there = there.parent_path();
  }
  const fs::space_info space = fs::space(there, error);
  const uint64_t has = bytes_in(fs::path(folder) / "blobs");
  if (!error && total > has && total - has > space.available) {
    return fail(ErrorCode::kNotFound,
                fmt::format("the download needs {}, and the disk of '{}' has {} free",
                            size_text(total - has),
                            folder,
                            size_text(space.available)));
  }
  return {};
}

Result<void> download_files(const Hub& hub,
                            const HubName& name,
                            const CachePaths& caches,
                            const Listing& listing,
                            const TellUser& tell) {
  const uint64_t total = size_of_all(listing.files);
  const std::string folder = hub_repo_folder(caches, name);
  if (Result<void> enough = check_space(total, folder); !enough) {
    return enough;
  }
  tell(fmt::format("downloading {}@{} from {}: {} {}, {}, to {}\n",
                   name.repo,
                   name.revision,
                   hub.endpoint,
                   listing.files.size(),
                   listing.files.size() == 1 ? "file" : "files",
                   size_text(total),
                   folder));
  const auto start = Clock::now();
  if (Result<void> fetched = fetch_files(hub.repo(name, caches), listing, total, tell); !fetched) {
    return fetched;
  }
  tell(fmt::format("downloaded in {:.1f} s\n",
                   std::chrono::duration<double>(Clock::now() - start).count()));
  return {};
}

Result<void> download(const Hub& hub,
                      const HubName& name,
                      const CachePaths& caches,
                      WeightFiles weights,
                      const TellUser& tell) {
  Result<Listing> listing = list_files(hub.repo(name, caches));
  if (!listing) {
    return tl::unexpected(listing.error());
  }
  Result<std::vector<HubFile>> chosen = choose_hub_files(listing->files, name, weights);
  if (!chosen) {
    return tl::unexpected(chosen.error());
  }
  listing->files = *std::move(chosen);
  return download_files(hub, name, caches, *listing, tell).and_then([&] {
    return write_ref(fs::path(hub_repo_folder(caches, name)) / "refs" / name.revision,
                     listing->commit);
  });
}

}  // namespace

Result<void> ensure_model(const std::string& model, WeightFiles weights, const TellUser& tell) {
  const CachePaths caches = CachePaths::from_environment();
  const Result<ModelFiles> found = resolve_model(model, caches, weights);
  if (found || found.error().code != ErrorCode::kNotFound) {
    return {};
  }
  const ModelAlias* alias = find_alias(model);
  const std::optional<HubName> name = parse_hub_name(model);
  const bool is_path = fs::path(model).extension() == ".gguf" && (!name || name->quant.empty());
  if (alias == nullptr && (!name || is_path || name->repo.find('/') == std::string::npos)) {
    return {};
  }
  if (is_on("HF_HUB_OFFLINE") || is_on("TRANSFORMERS_OFFLINE")) {
    return fail(ErrorCode::kNotFound,
                found.error().message + "; HF_HUB_OFFLINE forbids a download");
  }
  const Result<Hub> hub = open_hub(caches);
  if (!hub) {
    return tl::unexpected(hub.error());
  }
  const Result<void> done =
      alias != nullptr
          ? download_files(*hub, alias->hub, caches, {alias->hub.revision, {alias->file}}, tell)
          : download(*hub, *name, caches, weights, tell);
  return done.map_error([&](const Error& error) {
    return Error{error.code,
                 fmt::format("{}, and no download: {}", found.error().message, error.message)};
  });
}

}  // namespace warprow
