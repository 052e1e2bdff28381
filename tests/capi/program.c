/* SPDX-License-Identifier: Apache-2.0 */
/* A program in C11 over the installed header: tests/capi/install_test.py builds it through pkg-config and through CMake.
 *
 * usage: program MODEL     prints the token ids of a greedy answer, and ends with 0 if everything else was as it must be */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>
#include <warprow.h>

#define CHECK(condition)                                                                         \
  do {                                                                                           \
    if (!(condition)) {                                                                          \
      fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #condition, warprow_last_error());         \
      return 1;                                                                                  \
    }                                                                                            \
  } while (0)

static int refuses(const char* settings, warprow_status status, const char* text) {
  warprow_engine* engine = NULL;
  CHECK(warprow_engine_create(settings, &engine) == status);
  CHECK(engine == NULL);
  CHECK(strstr(warprow_last_error(), text) != NULL);
  return 0;
}

static int check_text(warprow_engine* engine) {
  int32_t* tokens = NULL;
  size_t num_tokens = 0;
  char* text = NULL;
  size_t text_len = 0;
  CHECK(warprow_tokenize(engine, "Hello world", 11, 0, &tokens, &num_tokens) == WARPROW_OK);
  CHECK(num_tokens == 2);
  CHECK(warprow_detokenize(engine, tokens, num_tokens, 0, &text, &text_len) == WARPROW_OK);
  CHECK(text_len == 11 && strcmp(text, "Hello world") == 0);
  warprow_free(text);
  tokens[0] = -1;
  CHECK(warprow_detokenize(engine, tokens, num_tokens, 0, &text, &text_len) == WARPROW_INVALID_ARGUMENT);
  warprow_free(tokens);
  const char* chat = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}";
  CHECK(warprow_render_chat(engine, chat, &text, &text_len) == WARPROW_OK);
  CHECK(strstr(text, "Hi") != NULL && text_len == strlen(text));
  warprow_free(text);
  return 0;
}

/* A greedy answer, whole or in parts; its ids are printed. */
static int answer(warprow_queue* queue, const char* body, int is_stream, int prints) {
  uint64_t request = 0;
  warprow_output* output = NULL;
  int num_outputs = 0;
  int num_tokens = 0;
  CHECK(warprow_queue_submit(queue, body, &request) == WARPROW_OK);
  for (int done = 0; !done; ++num_outputs) {
    CHECK(warprow_queue_wait(queue, -1, &output) == WARPROW_OK);
    CHECK(output->request == request && output->choice == 0 && output->num_choices == 1);
    CHECK(output->num_prompt_token_ids == 5 && output->error == NULL);
    CHECK(output->text[output->text_len] == '\0');
    CHECK(output->logprobs.num_tokens == output->num_token_ids);
    for (size_t i = 0; i < output->num_token_ids; ++i) {
      const warprow_logprob own = output->logprobs.entries[output->logprobs.begins[i]];
      CHECK(own.token_id == output->token_ids[i] && own.rank == 1 && own.logprob <= 0);
      if (prints) {
        printf("%s%" PRId32, num_tokens == 0 ? "" : ",", output->token_ids[i]);
      }
      ++num_tokens;
    }
    done = output->is_last;
    CHECK(done == (output->finish_reason != WARPROW_FINISH_NONE));
    CHECK(!done || (output->finish_reason == WARPROW_FINISH_LENGTH && output->num_output_tokens == num_tokens));
    warprow_output_free(output);
  }
  CHECK(is_stream ? num_outputs > 1 : num_outputs == 1);
  CHECK(warprow_queue_wait(queue, -1, &output) == WARPROW_DONE);
  return 0;
}

static int check_cancel(warprow_queue* queue) {
  uint64_t request = 0;
  warprow_output* output = NULL;
  CHECK(warprow_queue_submit(queue, "{\"prompt\": \"One\", \"max_tokens\": null, \"ignore_eos\": true}", &request) == WARPROW_OK);
  CHECK(warprow_queue_wait(queue, 0, &output) == WARPROW_TIMEOUT);
  CHECK(warprow_queue_cancel(queue, request) == WARPROW_OK);
  CHECK(warprow_queue_cancel(queue, 999) == WARPROW_OK);
  CHECK(warprow_queue_wait(queue, -1, &output) == WARPROW_OK);
  CHECK(output->finish_reason == WARPROW_FINISH_ABORT && output->is_last);
  warprow_output_free(output);
  return 0;
}

static int check_refusals(warprow_queue* queue) {
  static const struct {
    const char* body;
    const char* text;
  } kCases[] = {
      {"{\"prompt\": \"x\", \"temperature\": -1}", "temperature"},
      {"{\"prompt\": [\"x\", \"y\"]}", "prompt"},
      {"{\"prompt\": \"x\", \"colour\": 1}", "colour"},
      {"{\"max_tokens\": 1}", "prompt"},
      {"{\"prompt\": \"x\", \"model\": \"another\"}", "another"},
      {"no JSON", "JSON"},
  };
  uint64_t request = 0;
  for (size_t i = 0; i < sizeof kCases / sizeof kCases[0]; ++i) {
    CHECK(warprow_queue_submit(queue, kCases[i].body, &request) != WARPROW_OK);
    CHECK(strstr(warprow_last_error(), kCases[i].text) != NULL);
  }
  CHECK(warprow_queue_submit(queue, "{\"prompt\": \"x\", \"echo\": true}", &request) == WARPROW_UNSUPPORTED);
  CHECK(warprow_queue_submit(queue, NULL, &request) == WARPROW_INVALID_ARGUMENT);
  return 0;
}

/* A vector between two ids; tests/python/llm_test.py compares the answers of vectors and ids. */
static int check_embeds(warprow_queue* queue) {
  enum { kWidth = 576, kNoType = 7 };
  static float row[kWidth];
  const char* body = "{\"prompt\": [504, -1, 314], \"max_tokens\": 2, \"ignore_eos\": true}";
  uint64_t request = 0;
  warprow_output* output = NULL;
  CHECK(warprow_queue_submit_embeds(queue, body, NULL, WARPROW_FLOAT32, 1, kWidth, &request) == WARPROW_INVALID_ARGUMENT);
  CHECK(warprow_queue_submit_embeds(queue, body, row, kNoType, 1, kWidth, &request) == WARPROW_INVALID_ARGUMENT);
  CHECK(warprow_queue_submit_embeds(queue, body, row, WARPROW_FLOAT32, 0, kWidth, &request) == WARPROW_INVALID_ARGUMENT);
  CHECK(warprow_queue_submit_embeds(queue, body, row, WARPROW_FLOAT32, 2, kWidth / 2, &request) == WARPROW_INVALID_ARGUMENT);
  CHECK(strstr(warprow_last_error(), "prompt_embeds: ") != NULL);
  CHECK(warprow_queue_submit_embeds(queue, body, row, WARPROW_FLOAT32, 1, kWidth, &request) == WARPROW_OK);
  row[0] = 1; /* they were copied */
  CHECK(warprow_queue_wait(queue, -1, &output) == WARPROW_OK);
  CHECK(output->request == request && output->is_last && output->num_token_ids == 2);
  CHECK(output->num_prompt_token_ids == 3 && output->prompt_token_ids[1] == -1);
  warprow_output_free(output);
  return 0;
}

static int check_fork(warprow_engine* engine, warprow_queue* queue) {
  const pid_t child = fork();
  if (child == 0) {
    uint64_t request = 0;
    const int good = warprow_queue_submit(queue, "{\"prompt\": \"x\"}", &request) == WARPROW_FORKED;
    warprow_queue_destroy(queue);
    warprow_engine_destroy(engine);
    _exit(good ? 0 : 1);
  }
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  return 0;
}

/* A request's blocks are given back a moment after its last output. */
static int check_reset(warprow_engine* engine) {
  warprow_status status = warprow_engine_reset_prefix_cache(engine);
  for (int i = 0; i < 1000 && status == WARPROW_INVALID_ARGUMENT; ++i) {
    usleep(10000);
    status = warprow_engine_reset_prefix_cache(engine);
  }
  CHECK(status == WARPROW_OK);
  return 0;
}

int main(int argc, char** argv) {
  char settings[4096];
  warprow_engine* engine = NULL;
  warprow_queue* queue = NULL;
  warprow_queue* idle = NULL;
  warprow_output* output = NULL;
  uint64_t request = 0;
  char* json = NULL;
  if (argc != 2) {
    return 2;
  }
  CHECK(warprow_abi_version() == WARPROW_ABI_VERSION && strlen(warprow_version()) > 0);
  CHECK(strcmp(warprow_last_error(), "") == 0);
  CHECK(refuses("{\"model\": \"no-such-model\"}", WARPROW_NOT_FOUND, "no-such-model") == 0);
  CHECK(refuses("{\"model\": \"x\", \"colour\": 1}", WARPROW_INVALID_ARGUMENT, "colour") == 0);
  CHECK(refuses("{\"model\": \"x\", \"block_size\": 17}", WARPROW_INVALID_ARGUMENT, "block_size: 17") == 0);
  CHECK(refuses("{}", WARPROW_INVALID_ARGUMENT, "model") == 0);
  CHECK(refuses("[]", WARPROW_INVALID_ARGUMENT, "JSON object") == 0);

  snprintf(settings, sizeof settings, "{\"model\": \"%s\", \"kv_cache_memory_bytes\": \"64MiB\", \"max-model-len\": 512, \"enable_prompt_embeds\": true}", argv[1]);
  CHECK(warprow_engine_create(settings, &engine) == WARPROW_OK);
  CHECK(warprow_engine_info(engine, &json) == WARPROW_OK && strstr(json, "\"max_model_len\":512") != NULL);
  warprow_free(json);
  CHECK(warprow_engine_state(engine, &json) == WARPROW_OK && json[0] == '{');
  warprow_free(json);
  CHECK(check_text(engine) == 0);
  CHECK(warprow_queue_create(engine, &queue) == WARPROW_OK);
  CHECK(warprow_queue_wait(queue, -1, &output) == WARPROW_DONE);
  CHECK(answer(queue, "{\"prompt\": \"The capital of France is\", \"max_tokens\": 8, \"temperature\": 0, \"logprobs\": 2}", 0, 1) == 0);
  CHECK(answer(queue, "{\"prompt\": [504, 3575, 282, 4649, 314], \"max_tokens\": 8, \"temperature\": 0, \"logprobs\": 0, \"stream\": true}", 1, 0) == 0);
  CHECK(check_cancel(queue) == 0);
  CHECK(check_refusals(queue) == 0);
  CHECK(check_embeds(queue) == 0);
  CHECK(check_fork(engine, queue) == 0);
  CHECK(check_reset(engine) == 0);
  CHECK(warprow_engine_sleep(engine, 3) == WARPROW_INVALID_ARGUMENT);

  /* What runs ends with the engine; the queue outlives it. */
  CHECK(warprow_queue_submit(queue, "{\"prompt\": \"One\", \"max_tokens\": null, \"ignore_eos\": true}", &request) == WARPROW_OK);
  CHECK(warprow_queue_create(engine, &idle) == WARPROW_OK);
  warprow_queue_close(idle);
  CHECK(warprow_queue_submit(idle, "{\"prompt\": \"x\"}", &request) == WARPROW_CLOSED);
  CHECK(warprow_queue_wait(idle, -1, &output) == WARPROW_CLOSED);
  warprow_engine_close(engine);
  CHECK(warprow_engine_info(engine, &json) == WARPROW_CLOSED);
  warprow_engine_destroy(engine);
  CHECK(warprow_queue_wait(queue, -1, &output) == WARPROW_OK);
  CHECK(output->finish_reason == WARPROW_FINISH_ABORT);
  warprow_output_free(output);
  CHECK(warprow_queue_submit(queue, "{\"prompt\": \"x\"}", &request) == WARPROW_CLOSED);
  warprow_queue_destroy(queue);
  warprow_queue_destroy(idle);
  warprow_queue_destroy(NULL);
  warprow_engine_destroy(NULL);
  warprow_output_free(NULL);
  printf("\n");
  return 0;
}
