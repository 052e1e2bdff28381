// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "server/http_message.h"

namespace warprow {

// The response to GET /: a page to chat with the model, src/server/web/page.html. It loads nothing from other hosts,
// and its content security policy forbids it.
HttpReply web_page();

// The response to GET /docs: the page src/server/web/docs.html, which shows /openapi.json, under the same policy.
HttpReply docs_page();

// The response to GET /dashboard: the page src/server/web/dashboard.html, which shows /v1/engine/state as it changes, under
// the same policy.
HttpReply dashboard_page();

// The response to GET /openapi.json: src/server/web/openapi.json, which is maintained by hand.
HttpReply openapi_description();

}  // namespace warprow
