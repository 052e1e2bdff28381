// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: any tokenizer.model is refused or encodes any text; a text's ids lie in the vocabulary, and streaming
// decodes them as at once. The first two bytes are the length of the model; the text follows it.
#include "base/check.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace warprow;
  constexpr size_t kHead = 2;
  if (size < kHead) {
    return 0;
  }
  const std::string_view rest(reinterpret_cast<const char*>(data) + kHead, size - kHead);
  const size_t length = std::min<size_t>(data[0] | data[1] << 8U, rest.size());
  const auto made = Tokenizer::from_sentencepiece(rest.substr(0, length), "", "", "fuzz");
  if (!made) {
    return 0;
  }
  const std::vector<TokenId> ids = made->encode(rest.substr(length), true);
  Detokenizer streamed(*made, {.skip_special = false});
  std::string all;
  for (const TokenId id : ids) {
    WR_CHECK(id >= 0 && id < made->vocab_size());
    all += streamed.push(id);
  }
  all += streamed.flush();
  WR_CHECK(all == made->decode(ids, false));
  return 0;
}
