// SPDX-License-Identifier: Apache-2.0
#include "comm/shared_host_group.h"

#include "comm/shared_slots.h"

#include <algorithm>
#include <cstring>

namespace warprow {
namespace {

constexpr size_t kSlotBytes = 64 << 10;

// A slot holds the length of the rank's whole string and the next piece of it.
constexpr size_t kPiece = kSlotBytes - sizeof(uint64_t);

class SharedHostGroup final : public HostGroup {
 public:
  SharedHostGroup(GroupPlace place,
                  std::byte* memory,
                  AbortFlag& abort,
                  std::chrono::milliseconds patience)
      : HostGroup(place, abort, patience), slots_(memory, place, kSlotBytes), waiting_(abort) {}

  std::vector<std::string> exchange(const std::string& mine) override {
    std::vector<std::string> all(static_cast<size_t>(place().size));
    const auto last = deadline();
    size_t longest = 0;
    size_t at = 0;
    do {
      slots_.turn();
      if (!slots_.claim(waiting_, last)) {
        refuse(late());
      }
      const uint64_t length = mine.size();
      std::byte* slot = slots_.slot(place().rank);
      std::memcpy(slot, &length, sizeof(length));
      if (at < mine.size()) {
        std::memcpy(slot + sizeof(length), mine.data() + at, std::min(kPiece, mine.size() - at));
      }
      slots_.publish();
      for (int32_t rank = 0; rank < place().size; ++rank) {
        if (rank != place().rank && !slots_.wait_for(rank, waiting_, last)) {
          refuse(late());
        }
        longest = std::max(longest, append(slots_.slot(rank), all[static_cast<size_t>(rank)]));
      }
      at += kPiece;
    } while (at < longest);
    return all;
  }

 private:
  // Adds the slot's piece of a rank's string; returns the length of the whole.
  static size_t append(const std::byte* slot, std::string& to) {
    uint64_t length = 0;
    std::memcpy(&length, slot, sizeof(length));
    to.append(reinterpret_cast<const char*>(slot + sizeof(length)),
              std::min(kPiece, static_cast<size_t>(length) - to.size()));
    return static_cast<size_t>(length);
  }

  [[nodiscard]] std::vector<int32_t> late() const {
    std::vector<int32_t> ranks;
    for (int32_t rank = 0; rank < place().size; ++rank) {
      if (rank != place().rank && !slots_.arrived(rank)) {
        ranks.push_back(rank);
      }
    }
    return ranks;
  }

  SharedSlots slots_;
  Waiting waiting_;
};

}  // namespace

size_t shared_host_group_bytes(int32_t size) { return SharedSlots::bytes(size, kSlotBytes); }

std::unique_ptr<HostGroup> make_shared_host_group(GroupPlace place,
                                                  std::byte* memory,
                                                  AbortFlag& abort,
                                                  std::chrono::milliseconds patience) {
  return std::make_unique<SharedHostGroup>(place, memory, abort, patience);
}

}  // namespace warprow
