/* SPDX-License-Identifier: Apache-2.0 */
/* Streams an answer through the C interface.
 *
 *   cc generate.c $(pkg-config --cflags --libs warprow) -o generate
 *   ./generate smollm2 '{"prompt": "The capital of France is", "max_tokens": 16, "temperature": 0}' */
#include <stdio.h>
#include <string.h>
#include <warprow.h>

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, warprow_last_error());
  return 1;
}

int main(int argc, char** argv) {
  char settings[1024];
  char body[4096];
  warprow_engine* engine = NULL;
  warprow_queue* queue = NULL;
  uint64_t request = 0;
  warprow_output* output = NULL;
  int status = 1;
  if (argc != 3 || argv[2][0] != '{') {
    fprintf(stderr, "usage: generate MODEL REQUEST\n");
    return 2;
  }
  snprintf(settings, sizeof settings, "{\"model\": \"%s\"}", argv[1]);
  snprintf(body, sizeof body, "{\"stream\": true, %s", argv[2] + 1);

  if (warprow_engine_create(settings, &engine) != WARPROW_OK) {
    status = failed("model");
  } else if (warprow_queue_create(engine, &queue) != WARPROW_OK) {
    status = failed("queue");
  } else if (warprow_queue_submit(queue, body, &request) != WARPROW_OK) {
    status = failed("request");
  } else {
    while (warprow_queue_wait(queue, -1, &output) == WARPROW_OK) { /* until WARPROW_DONE */
      fwrite(output->text, 1, output->text_len, stdout);
      fflush(stdout);
      status = output->finish_reason == WARPROW_FINISH_ERROR ? 1 : 0;
      warprow_output_free(output);
    }
    printf("\n");
  }
  warprow_queue_destroy(queue);
  warprow_engine_destroy(engine);
  return status;
}
