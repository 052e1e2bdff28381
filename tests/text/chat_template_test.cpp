// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template.h"

#include "tests/support/sanitizers.h"
#include "tests/support/source_path.h"
#include "tests/text/repeat.h"
#include "tests/text/text_test_support.h"

#include <ctime>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::repeat;

OrderedJson chat(std::initializer_list<std::pair<const char*, const char*>> turns) {
  OrderedJson messages = OrderedJson::array();
  for (const auto& [role, content] : turns) {
    messages.push_back({{"role", role}, {"content", content}});
  }
  return messages;
}

ChatTemplate parse(const std::string& source) {
  return value_or_throw(
      ChatTemplate::parse({source, "", {{"bos_token", "<s>"}, {"eos_token", "</s>"}}}));
}

std::string render(const std::string& source, const ChatRequest& request) {
  const auto text = parse(source).render(request);
  return text ? *text : "error: " + text.error().message;
}

// Renders `source` with the variables of `json` and no messages.
std::string eval(const std::string& source, const char* json = "{}") {
  ChatRequest request;
  request.variables = OrderedJson::parse(json);
  return render(source, request);
}

TEST(ChatTemplate, ChatMl) {
  const std::string source =
      "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
      "message['content'] + '<|im_end|>' + "
      "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif "
      "%}";
  ChatRequest request{.messages = chat({{"system", "Be kind."}, {"user", "Hi"}})};
  EXPECT_EQ(render(source, request),
            "<|im_start|>system\nBe "
            "kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  request.add_generation_prompt = false;
  EXPECT_EQ(render(source, request),
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n");
}

TEST(ChatTemplate, Llama3Style) {
  const std::string source =
      "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
      "'<|start_header_id|>' + "
      "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if "
      "loop.index0 == 0 %}"
      "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}";
  EXPECT_EQ(render(source, {.messages = chat({{"user", "  Hi \n"}})}),
            "<s><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>");
}

TEST(ChatTemplate, MistralStyle) {
  const std::string source =
      "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != "
      "(loop.index0 % 2 == 0) %}"
      "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') "
      "}}{% endif %}"
      "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
      "{% else %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}";
  EXPECT_EQ(render(source, {.messages = chat({{"user", "a"}, {"assistant", "b"}, {"user", "c"}})}),
            "<s>[INST] a [/INST]b</s>[INST] c [/INST]");
  const auto refused = parse(source).render({.messages = chat({{"assistant", "a"}})});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused.error().message,
            "chat template: Conversation roles must alternate user/assistant/user/assistant/...");
}

TEST(ChatTemplate, NamespaceAndLoopControls) {
  EXPECT_EQ(
      eval("{% set ns = namespace(n=0) %}{% for i in range(10) %}{% if i == 2 %}{% continue %}{% "
           "endif %}"
           "{% if i == 5 %}{% break %}{% endif %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}"),
      "8");
  EXPECT_EQ(eval("{% for x in xs[::-1] %}{{ loop.index }}{{ x }}{{ ',' if not loop.last }}{% "
                 "endfor %}|{{ xs[-1] }}"
                 "|{{ xs[1:] }}",
                 R"({"xs": ["a", "b", "c"]})"),
            "1c,2b,3a|c|['b', 'c']");
}

TEST(ChatTemplate, WhiteSpaceOfBlocks) {
  EXPECT_EQ(eval("a\n  {% if true %}\n  b\n  {% endif %}\nc\n"), "a\n  b\nc");
  EXPECT_EQ(eval("a \n {%- if true -%} \n b {%- endif %}\n\nc\n\n"), "ab\nc\n");
  EXPECT_EQ(eval("{% generation %}\nx\n{% endgeneration %}\ny"), "x\ny");
}

TEST(ChatTemplate, JsonAsPythonWritesIt) {
  const char* const vars =
      R"({"v": {"z": "<a href='x'>&", "a": [1, 2.0, true, null], "é": "\u00e9\n"}})";
  EXPECT_EQ(eval("{{ v | tojson }}", vars),
            "{\"z\": \"<a href='x'>&\", \"a\": [1, 2.0, true, null], \"é\": \"é\\n\"}");
  EXPECT_EQ(eval("{{ v.a | tojson(indent=4) }}", vars),
            "[\n    1,\n    2.0,\n    true,\n    null\n]");
  EXPECT_EQ(
      eval("{{ v | tojson(sort_keys=true, ensure_ascii=true, separators=(',', ':')) }}", vars),
      "{\"a\":[1,2.0,true,null],\"z\":\"<a href='x'>&\",\"\\u00e9\":\"\\u00e9\\n\"}");
}

TEST(ChatTemplate, PythonStrings) {
  EXPECT_EQ(eval("{{ 'a-b-c'.split('-')[-1] }}{{ ' x '.strip() }}{{ 'ab'.startswith('a') }}{{ "
                 "'abc'.replace('b', '') }}"
                 "{{ 'A'.lower() }}{{ 'xxaxx'.strip('x') }}{{ 'tt'.title() }}"),
            "cxTrueacaaTt");
  EXPECT_EQ(
      eval("{{ true }} {{ none }} {{ 1.0 }} {{ d }} {{ missing }}|", R"({"d": {"k": [1, "a'b"]}})"),
      "True None 1.0 {'k': [1, \"a'b\"]} |");
  EXPECT_EQ(eval("{{ 'x' is sequence }} {{ d is mapping }} {{ d.items() | list }}",
                 R"({"d": {"items": 1}})"),
            "True True [['items', 1]]");
}

TEST(ChatTemplate, Date) {
  char today[32];
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  std::strftime(today, sizeof today, "%d %b %Y", &parts);
  EXPECT_EQ(eval("{{ strftime_now('%d %b %Y') }}"), today);
}

TEST(ChatTemplate, ErrorsNameTheLine) {
  const auto broken = ChatTemplate::parse({"a\n{% if %}", "", {}});
  ASSERT_FALSE(broken);
  EXPECT_EQ(broken.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(broken.error().message.substr(0, 23), "chat template: line 2: ");
  EXPECT_EQ(eval("{{ raise_exception('') }}"),
            "error: chat template: raise_exception is called with an empty message");
  const auto half = ChatTemplate::parse({"{%}", "", {}});
  ASSERT_FALSE(half);
  EXPECT_EQ(half.error().message.substr(0, 23), "chat template: line 1: ");
  EXPECT_EQ(eval("x\n\n{{ missing.field }}").substr(0, 30), "error: chat template: line 3: ");
  ChatRequest request;
  request.messages = "hello";
  EXPECT_EQ(render("x", request), "error: messages must be a list");
  request.messages = OrderedJson::array({"hello"});
  EXPECT_EQ(render("x", request), "error: every message must be an object with role and content");
}

TEST(ChatTemplate, ARequestsOwnTemplate) {
  ChatRequest request;
  request.messages = {{{"role", "user"}, {"content", {{{"type", "text"}, {"text", "Hi"}}}}}};
  request.variables["mood"] = "good";
  const NamedTokens tokens = {{"bos_token", "<s>"}};
  const auto render = [&](const char* source) {
    request.chat_template = source;
    return ChatTemplate::render_own(request, tokens);
  };
  EXPECT_EQ(value_or_throw(render("{{ bos_token }}{{ messages[0].content }} {{ mood }}")),
            "<s>Hi good");
  EXPECT_EQ(value_or_throw(render("{{ messages[0].content[0].text }}!")), "Hi!");
  const auto refusal = [&](const char* source) {
    const auto rendered = render(source);
    EXPECT_FALSE(rendered) << source;
    return rendered ? Error{} : rendered.error();
  };
  EXPECT_EQ(refusal("{{ raise_exception('no') }}").message, "chat_template: no");
  EXPECT_EQ(refusal("{% if %}").message.rfind("chat_template: line 1: ", 0), 0U);
  EXPECT_EQ(
      refusal("{% for i in range(20000) %}{% for j in range(20000) %}{% endfor %}{% endfor %}")
          .code,
      ErrorCode::kInvalidArgument);
  EXPECT_EQ(value_or_throw(render("a")), "a") << "after one that broke a limit";
}

// A template is an untrusted program. The error names the exceeded limit, and the next rendering works normally.
TEST(ChatTemplate, LimitsAreNamed) {
  const std::string loops =
      repeat("{% for i in range(1000) %}", 8) + "x" + repeat("{% endfor %}", 8);
  const std::string doubling =
      "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor "
      "%}{{ n.s }}";
  const std::string recursion = "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}";
  const std::pair<std::string, std::string> cases[] = {
      {loops, "fuel|processor time"},
      {doubling, "MiB of memory"},
      {"{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor "
       "%}",
       "memory"},
      {"{{ 'x'.ljust(10**12) }}", "memory"},
      {"{{ 'x'.rjust(10**15) }}", "memory"},
      {"{{ 'x' * 10**12 }}", "memory|large|MiB"},
      {"{{ [1, [2]] | tojson(indent=10**12) }}", "memory"},
      {"{{ 'x\ny' | indent(10**12) }}", "memory|MiB"},
      {"{{ 'x' | center(10**12) }}", "memory|MiB|unknown filter"},
      {"{{ ('x' * 10000).replace('x', 'y' * 1000000) }}", "memory"},
      {"{% for i in range(100000) %}{{ 'x' * 10000 }}{% endfor %}", "MiB|range"},
      {recursion, "recursion|stack"},
  };
  for (const auto& [source, expected] : cases) {
    const std::string text = render(source, {});
    EXPECT_TRUE(text.starts_with("error: ")) << source << "\n" << text.substr(0, 100);
#if !WR_ASAN && !WR_TSAN  // sanitizers have no limit on memory
    EXPECT_THAT(text, ::testing::ContainsRegex(expected)) << source;
#endif
  }
  EXPECT_EQ(eval("{{ 'a' ~ 'b' }}"), "ab");
}

#if !WR_ASAN && !WR_TSAN  // sanitizers have no limit on memory
TEST(ChatTemplate, ALimitBrokenOnceHarmsNoLaterRendering) {
  const ChatTemplate mixed = parse("{% if big %}{{ 'x'.ljust(10**12) }}{% else %}small{% endif %}");
  ChatRequest big;
  big.variables["big"] = true;
  for (int i = 0; i < 5; ++i) {
    const auto broken = mixed.render(big);
    ASSERT_FALSE(broken);
    EXPECT_EQ(broken.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(mixed.render({}), "small");
  }
}
#endif

TEST(ChatTemplate, DepthIsRefusedWhenItIsParsed) {
  const std::string cases[] = {
      "{{ " + repeat("(", 100'000) + "1" + repeat(")", 100'000) + " }}",
      "{{ " + repeat("[", 100'000) + repeat("]", 100'000) + " }}",
      "{{ " + repeat("-", 1'000'000) + "1 }}",
      "{{ " + repeat("not ", 1'000'000) + "1 }}",
      "{{ x" + repeat("|string", 1'000'000) + " }}",
      "{{ 1" + repeat("+1", 1'000'000) + " }}",
      "{{ x" + repeat(".y", 1'000'000) + " }}",
      repeat("{% if x %}", 100'000) + repeat("{% endif %}", 100'000),
  };
  for (const std::string& source : cases) {
    const auto parsed = ChatTemplate::parse({source, "", {}});
    if (parsed) {  // deep, but within the parser's limit
      const auto text = parsed->render({});
      EXPECT_TRUE(text || text.error().code == ErrorCode::kInvalidArgument) << source.substr(0, 20);
    } else {
      EXPECT_EQ(parsed.error().code, ErrorCode::kUnsupported) << source.substr(0, 20);
      EXPECT_TRUE(parsed.error().message.starts_with("chat template: ")) << parsed.error().message;
    }
  }
}

TEST(ChatTemplate, LongMessagesAreNoHarm) {
  const std::string source =
      "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}\n{% endfor %}";
  const std::string text = repeat("0123456789", 800'000);
  EXPECT_EQ(render(source, {.messages = chat({{"user", text.c_str()}})}), "<|user|>" + text + "\n");
  OrderedJson many = OrderedJson::array();
  for (int i = 0; i < 20'000; ++i) {
    many.push_back({{"role", "user"}, {"content", "Hi"}});
  }
  EXPECT_EQ(render(source, {.messages = many}).size(), 20'000 * 11);
}

TEST(ChatTemplate, ManyThreadsAtOnce) {
  const ChatTemplate one = parse("{{ messages[0].content }}");
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 12; ++thread) {
    threads.emplace_back([&one, thread] {
      for (int i = 0; i < 50; ++i) {
        const std::string text = fmt::format("{} {}", thread, i);
        EXPECT_EQ(one.render({.messages = chat({{"user", text.c_str()}})}), text);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(ChatTemplate, PartsBecomeTextWhereTheTemplateWantsText) {
  ChatRequest request;
  request.messages = OrderedJson::parse(
      R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])");
  EXPECT_EQ(render("{{ messages[0].content }}", request), "a\nb");
  EXPECT_EQ(render("{% set c = messages[0]['content'] %}{% for p in c %}[{{ p.text }}]{% endfor %}",
                   request),
            "[a][b]");
}

TEST(ChatTemplate, ToolsAndTheirVariant) {
  const auto both = value_or_throw(ChatTemplate::parse({"plain", "{{ tools[0].name }}", {}}));
  ChatRequest request;
  EXPECT_EQ(*both.render(request), "plain");
  request.tools = OrderedJson::parse(R"([{"name": "f"}])");
  EXPECT_EQ(*both.render(request), "f");
  // Arguments given as JSON text reach the template as a mapping.
  request.messages = OrderedJson::parse(
      R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{\"b\": 1, \"a\": 2}"}}]}])");
  EXPECT_EQ(render("{{ messages[0].tool_calls[0].function.arguments | tojson }}", request),
            R"({"b": 1, "a": 2})");
}

uint64_t fnv1a(std::string_view text) {
  uint64_t h = 0xCBF29CE484222325U;
  for (const char c : text) {
    h = (h ^ static_cast<uint8_t>(c)) * 0x100000001B3U;
  }
  return h;
}

// With a date in place of each call of strftime_now with one format. By hand: gcc 12 warns inside of std::regex when it
// builds with sanitizers.
std::string with_fixed_date(std::string text) {
  constexpr std::string_view kCall = "strftime_now(";
  for (size_t at = text.find(kCall); at != text.npos; at = text.find(kCall, at + 1)) {
    const size_t format = at + kCall.size();
    const char quote = format < text.size() ? text[format] : '\0';
    const size_t end = quote == '\'' || quote == '"' ? text.find(quote, format + 1) : text.npos;
    if (end != text.npos && text.compare(end + 1, 1, ")") == 0) {
      text.replace(at, end + 2 - at, "'26 Jul 2024'");
    }
  }
  return text;
}

// Templates with Jinja2's texts for conversations (make_template_vectors.py). Dates are replaced by one date.
void expect_jinja2_texts(const std::string& dir, const char* hashes_of, int least) {
  const auto vectors =
      OrderedJson::parse(test::read_file(test::source_path("tests/text/template_vectors.json")));
  int compared = 0;
  for (const auto& [name, hashes] : vectors[hashes_of].items()) {
    const ChatTemplate chat_template = parse(with_fixed_date(test::read_file(dir + "/" + name)));
    for (const auto& [conversation, hash] : hashes.items()) {
      const OrderedJson& c = vectors["conversations"][conversation];
      ChatRequest request;
      request.messages = c["messages"];
      request.tools = c.value("tools", OrderedJson());
      request.variables = c.value("variables", OrderedJson::object());
      request.add_generation_prompt = c.value("add_generation_prompt", true);
      const auto text = chat_template.render(request);
      EXPECT_EQ(text ? fmt::format("{:016x}", fnv1a(*text)) : "error", hash.get<std::string>())
          << name << " " << conversation << ": " << (text ? *text : text.error().message);
      ++compared;
    }
  }
  EXPECT_GT(compared, least);
}

TEST(ChatTemplate, CollectionEqualsJinja2) {
  const std::string dir = test::vocab_dir() + "/templates";
  if (!std::filesystem::exists(dir)) {
    GTEST_SKIP() << dir << " is absent: tools/fetch_vocab_vectors.sh brings it";
  }
  expect_jinja2_texts(dir, "hashes", 600);
}

TEST(ChatTemplate, ConstructsEqualJinja2) {
  expect_jinja2_texts(test::source_path("tests/text/templates"), "own", 15);
}

}  // namespace
}  // namespace warprow
