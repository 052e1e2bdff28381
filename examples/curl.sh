#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The HTTP API with curl. Start a server first: ./dev run serve smollm2
# Usage: examples/curl.sh [URL]     default http://127.0.0.1:8000
set -euo pipefail

url=${1:-${WARPROW_URL:-http://127.0.0.1:8000}}

# post PATH: sends the JSON on standard input. --no-buffer shows the events of a stream as they come.
post() {
  curl --silent --show-error --fail-with-body --no-buffer "$url$1" --header 'Content-Type: application/json' --data @-
  echo
}

echo '== models'
curl --silent --show-error --fail-with-body "$url/v1/models"
echo

echo '== completion'
post /v1/completions <<'JSON'
{"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
JSON

echo '== chat'
post /v1/chat/completions <<'JSON'
{"messages": [{"role": "user", "content": "What is gravity? One sentence."}], "max_tokens": 48, "temperature": 0}
JSON

echo '== chat, streamed'
post /v1/chat/completions <<'JSON'
{"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 12, "temperature": 0,
 "stream": true, "stream_options": {"include_usage": true}}
JSON

echo '== structured output: a JSON schema'
post /v1/chat/completions <<'JSON'
{"messages": [{"role": "user", "content": "Describe the city of Paris as JSON."}], "max_tokens": 96, "temperature": 0,
 "response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": {
   "type": "object",
   "properties": {"name": {"type": "string", "maxLength": 20}, "inhabitants": {"type": "integer"}},
   "required": ["name", "inhabitants"], "additionalProperties": false}}}}
JSON

echo '== structured output: a regex'
post /v1/completions <<'JSON'
{"prompt": "A phone number: ", "max_tokens": 16, "temperature": 0, "structured_outputs": {"regex": "[0-9]{3}-[0-9]{4}"}}
JSON

echo '== tools: the model must call one'
post /v1/chat/completions <<'JSON'
{"messages": [{"role": "user", "content": "What is the weather in Rome?"}], "max_tokens": 64, "temperature": 0,
 "tools": [{"type": "function", "function": {
   "name": "get_weather", "description": "The weather of a city.",
   "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}},
                  "required": ["city"], "additionalProperties": false}}}],
 "tool_choice": "required", "parallel_tool_calls": false}
JSON
