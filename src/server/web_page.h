// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "server/http_message.h"

namespace warprow {

// The answer to GET /: a page to chat with the model, src/server/web/page.html. It loads nothing from
// elsewhere and its policy forbids it.
HttpReply web_page();

// The answer to GET /openapi.json: src/server/web/openapi.json, which is kept by hand.
HttpReply openapi_description();

}  // namespace warprow
