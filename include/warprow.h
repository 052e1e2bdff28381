/* SPDX-License-Identifier: Apache-2.0 */
/* warprow's C interface: load a model, submit requests, wait for their outputs. docs/c.md has a tour.
 *
 * Names. An engine runs a model. A queue belongs to an engine: requests are submitted to it, and it yields their outputs.
 *
 * Errors. A function that can fail returns a warprow_status. Unless that is WARPROW_OK, warprow_last_error() is one line
 * that names the field, the value and the limit, and no result was written. The exceptions WARPROW_TIMEOUT and
 * WARPROW_DONE are no errors and leave the last error as it was. Nothing is ever thrown through this interface.
 *
 * Threads. All functions may be called from any thread, and several threads may use one engine or queue at a time. A
 * handle must not be used during or after the call that destroys it. Only the logits rules of an engine are called
 * back. The engine has threads of its own, which block no signals and install no handlers.
 *
 * Fork. An engine belongs to the process that made it. In a forked child every call with one of its handles returns
 * WARPROW_FORKED, and the functions that destroy do nothing. A child that was forked before the engine was made may make
 * its own.
 *
 * Texts are UTF-8. JSON texts end with a zero byte. Results that a function allocates say how they are freed.
 *
 * Stability. Within one WARPROW_ABI_VERSION functions, enumerators and members are only added: members at the end of
 * structs, which only the library allocates. Numbers and layouts do not change. Unknown statuses are errors. */
#ifndef WARPROW_H
#define WARPROW_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define WARPROW_API __attribute__((visibility("default")))
#else
#define WARPROW_API
#endif

#define WARPROW_ABI_VERSION 1

/* The library's WARPROW_ABI_VERSION, and its release, such as "0.1.0". */
WARPROW_API uint32_t warprow_abi_version(void);
WARPROW_API const char* warprow_version(void);

typedef int32_t warprow_status;
enum {
  WARPROW_OK = 0,
  WARPROW_INVALID_ARGUMENT = 1, /* a value of the wrong type or out of range */
  WARPROW_NOT_FOUND = 2,        /* a model, file or name that does not exist */
  WARPROW_UNSUPPORTED = 3,      /* valid, but this build or engine cannot do it */
  WARPROW_CORRUPT = 4,          /* a file that contradicts itself or ends early */
  WARPROW_OUT_OF_MEMORY = 5,    /* the model's plan does not fit */
  WARPROW_BUSY = 6,             /* valid, but there is no capacity for it now */
  WARPROW_INTERNAL = 7,         /* a bug of the library, or the engine has failed */
  WARPROW_TIMEOUT = 8,          /* nothing happened within the time */
  WARPROW_DONE = 9,             /* the queue has no request whose outputs are still to come */
  WARPROW_CLOSED = 10,          /* the engine or the queue was closed */
  WARPROW_FORKED = 11           /* the handle belongs to the process that this one was forked from */
};

/* The text of this thread's last error; "" before the first. Valid until the thread's next call that fails. */
WARPROW_API const char* warprow_last_error(void);

/* Frees what a function with a `char**` or `int32_t**` result has allocated. NULL is allowed. */
WARPROW_API void warprow_free(void* memory);

/* ---- Engine ---- */

typedef struct warprow_engine warprow_engine;

/* Loads a model and starts its engine. Blocks until it can run requests.
 *
 * settings_json: an object. Its members are the settings of the command line's engine flags, with - or _:
 *   {"model": "smollm2", "max_model_len": 2048, "kv_cache_memory_bytes": "256MiB", "enable_prefix_caching": false}
 * A value is a text, a number, a boolean, a list, which becomes a text with commas, or an object, which becomes its JSON
 * (speculative_config); null counts as absent. "model" is needed. What is absent comes from WARPROW_... variables of the
 * environment, else it has its default.
 * Chat templates, grammars and ranks run in processes of the warprow binary: the setting worker_binary, else the
 * binary of the same build that is installed with this library. */
WARPROW_API warprow_status warprow_engine_create(const char* settings_json, warprow_engine** engine);

/* A row of logits before its next token is drawn. Valid during the call. */
typedef struct warprow_row_logits {
  const int32_t* token_ids; /* of the request so far: the prompt, then the outputs */
  size_t num_token_ids;
  size_t num_prompt_token_ids;
  float* logits; /* one for each token of the vocabulary; may be written. What is -inf stays so */
  size_t num_logits;
} warprow_row_logits;

/* A rule on logits. It comes after a grammar's mask and before logprobs, other rules and the draw. Returns 0, or
 * another number to fail the request. It is called on a thread of the engine, for one row at a time, for every request
 * and also while the engine warms up; a step waits for it. It must not call functions of the same engine. */
typedef int32_t (*warprow_logits_rule)(void* user, const warprow_row_logits* row);

/* Rules for an engine, in the order in which they apply. */
typedef struct warprow_logits_rules warprow_logits_rules;
WARPROW_API warprow_status warprow_logits_rules_create(warprow_logits_rules** rules);
/* changes_argmax: 0 if the rule never changes which logit is the largest; then greedy requests skip it. `user` is passed
 * on and must be valid until the engine is closed. */
WARPROW_API warprow_status warprow_logits_rules_add(warprow_logits_rules* rules, warprow_logits_rule rule, void* user,
                                                    int32_t changes_argmax);
/* NULL is allowed. Engines that were made with the rules keep them. */
WARPROW_API void warprow_logits_rules_destroy(warprow_logits_rules* rules);

/* As warprow_engine_create, with rules. WARPROW_UNSUPPORTED on a GPU and with several ranks. */
WARPROW_API warprow_status warprow_engine_create_with_rules(const char* settings_json, const warprow_logits_rules* rules,
                                                            warprow_engine** engine);

/* Ends all requests with WARPROW_FINISH_ABORT, stops the engine and gives its memory back, after calls under way in other
 * threads. Queues live on: their remaining outputs can be taken. What else is done with the engine or a queue gets
 * WARPROW_CLOSED. NULL is allowed. */
WARPROW_API void warprow_engine_close(warprow_engine* engine);

/* Closes the engine and frees the handle. NULL is allowed. */
WARPROW_API void warprow_engine_destroy(warprow_engine* engine);

/* What was loaded, as a JSON object: model, architecture, vocab_size, bos_token_id, eos_token_ids, max_model_len,
 * max_num_seqs, max_num_batched_tokens, runner ("generate" or "pooling"). Of a pooling model also pooling_task ("embed"
 * or "classify"), pooled_width, and the names of labels. Free with warprow_free. */
WARPROW_API warprow_status warprow_engine_info(warprow_engine* engine, char** json);

/* The engine's state now, as the server's GET /v1/engine/state. Free with warprow_free. */
WARPROW_API warprow_status warprow_engine_state(warprow_engine* engine, char** json);

/* Sleep gives the memory of weights and KV cache back, after ending all requests. Level 1 keeps the weights in host
 * memory, level 2 drops them. tags: "weights", "kv_cache", or NULL for all. */
WARPROW_API warprow_status warprow_engine_sleep(warprow_engine* engine, int32_t level);
WARPROW_API warprow_status warprow_engine_wake_up(warprow_engine* engine, const char* tag);

/* Forgets every cached prefix. WARPROW_INVALID_ARGUMENT while requests run. */
WARPROW_API warprow_status warprow_engine_reset_prefix_cache(warprow_engine* engine);

enum {
  WARPROW_PAUSE_ABORT = 0, /* requests end with WARPROW_FINISH_ABORT */
  WARPROW_PAUSE_KEEP = 1,  /* they go on afterwards where they were */
  WARPROW_PAUSE_WAIT = 2   /* the call returns when they have ended as they would; new ones wait */
};

/* Runs no step until warprow_engine_resume; new requests wait. mode: WARPROW_PAUSE_... */
WARPROW_API warprow_status warprow_engine_pause(warprow_engine* engine, int32_t mode);
WARPROW_API warprow_status warprow_engine_resume(warprow_engine* engine);

/* Replaces the weights by those of another checkpoint of the same model, in place. Only while the engine is paused.
 * model: as in the settings, on this machine. Requests that were kept go on with the new weights after their tokens so
 * far; cached prefixes are forgotten. WARPROW_INVALID_ARGUMENT if the model is another one, or a tensor has another type
 * or shape; the engine then has its old weights. */
WARPROW_API warprow_status warprow_engine_update_weights(warprow_engine* engine, const char* model);

/* Loads a LoRA adapter from a directory that PEFT saved. The setting enable_lora is needed. Requests may have its name as
 * "model" when the call returns; nothing that runs waits for it. WARPROW_INVALID_ARGUMENT if the name is taken, no place
 * is left (max_cpu_loras) or the adapter does not fit the model. */
WARPROW_API warprow_status warprow_engine_load_adapter(warprow_engine* engine, const char* name, const char* path);
/* New requests may no longer have the name; those that do go on. WARPROW_NOT_FOUND. */
WARPROW_API warprow_status warprow_engine_unload_adapter(warprow_engine* engine, const char* name);
/* A JSON list of {"name", "path"}, in the order of loading. Free with warprow_free. */
WARPROW_API warprow_status warprow_engine_adapters(warprow_engine* engine, char** json);

/* ---- Text ---- */

/* The token ids of a text. add_special: with the tokens that the model's rules put around a text. Free *tokens with
 * warprow_free. */
WARPROW_API warprow_status warprow_tokenize(warprow_engine* engine, const char* text, size_t text_len, int32_t add_special,
                                            int32_t** tokens, size_t* num_tokens);

/* The text of token ids; skip_special: without control tokens. *text_len does not count the zero byte at the end. Free
 * *text with warprow_free. */
WARPROW_API warprow_status warprow_detokenize(warprow_engine* engine, const int32_t* tokens, size_t num_tokens,
                                              int32_t skip_special, char** text, size_t* text_len);

/* A chat as the model's template renders it. request_json: as for warprow_queue_submit, with messages. Free *text with
 * warprow_free. */
WARPROW_API warprow_status warprow_render_chat(warprow_engine* engine, const char* request_json, char** text,
                                               size_t* text_len);

/* ---- Requests ---- */

typedef struct warprow_queue warprow_queue;

/* A queue holds no threads, so every part of a program may have its own. */
WARPROW_API warprow_status warprow_queue_create(warprow_engine* engine, warprow_queue** queue);

/* Cancels the requests of the queue, drops their outputs and frees the handle. NULL is allowed. */
WARPROW_API void warprow_queue_destroy(warprow_queue* queue);

/* Submits a request.
 *
 * request_json: the body of the server's POST /v1/completions, with one prompt (text or a list of token ids), or of
 * POST /v1/chat/completions, with messages; docs/server.md and docs/sampling.md list their members. Differences:
 *   max_tokens  null: as many as the model's length leaves; absent in a completion: 16
 *   stream      true: outputs as they come; else one output for each choice, at its end
 *   echo, stream_options and members that no request has are refused
 *   texts are the model's own: reasoning sections and tool calls are not taken apart
 *   beam_width  N, 1 to 64 or to half of max_logprobs: a beam search. The choices are its N best sequences, best first,
 *               each with one output at the end and with logprobs; length_penalty, 1 unless given. docs/sampling.md says
 *               which fields count
 * Or, for a pooling model, the body of POST /pooling with one input, or of POST /score with one text_1 and one text_2 for
 * a reranker; such a request yields one output, with vectors in place of text.
 * Grammars are compiled and templates rendered before the call returns.
 * request: its number, unique for the queue. */
WARPROW_API warprow_status warprow_queue_submit(warprow_queue* queue, const char* request_json, uint64_t* request);

enum {
  WARPROW_FLOAT32 = 0,
  WARPROW_FLOAT16 = 1,
  WARPROW_BFLOAT16 = 2
};

/* The same, with vectors in place of token ids, as the model's embedding layer would give them. The setting
 * enable_prompt_embeds is needed.
 * request_json: of a completion. Without a prompt the vectors are the prompt; else it is a list of token ids with -1 at
 *   the place of each vector.
 * vectors: [num_vectors, width] of the type, without gaps; width is the model's hidden size. They are copied. */
WARPROW_API warprow_status warprow_queue_submit_embeds(warprow_queue* queue, const char* request_json, const void* vectors,
                                                       int32_t dtype, size_t num_vectors, size_t width,
                                                       uint64_t* request);

/* Ends a request soon: its running choices yield a last output with WARPROW_FINISH_ABORT. A request that has ended is
 * ignored. */
WARPROW_API warprow_status warprow_queue_cancel(warprow_queue* queue, uint64_t request);

/* Ends all waits on the queue, now and later, with WARPROW_CLOSED, and cancels its requests. */
WARPROW_API void warprow_queue_close(warprow_queue* queue);

typedef struct warprow_output warprow_output;

/* Takes the next output, of any request. Waits up to timeout_ms; 0: does not wait; negative: without limit.
 * WARPROW_TIMEOUT, or WARPROW_DONE at once if no request has outputs to come. Outputs of one choice come in order. Those
 * that were not taken yet are joined. Free *output with warprow_output_free. */
WARPROW_API warprow_status warprow_queue_wait(warprow_queue* queue, int64_t timeout_ms, warprow_output** output);

WARPROW_API void warprow_output_free(warprow_output* output);

enum {
  WARPROW_FINISH_NONE = 0,   /* more outputs of the choice follow */
  WARPROW_FINISH_STOP = 1,   /* an end token, a stop token or a stop string */
  WARPROW_FINISH_LENGTH = 2, /* max_tokens, or the model's length */
  WARPROW_FINISH_ABORT = 3,  /* cancelled, or the engine was destroyed or put to sleep */
  WARPROW_FINISH_ERROR = 4   /* warprow_output.error says why */
};

typedef struct warprow_logprob {
  int32_t token_id;
  float logprob;
  int32_t rank; /* 1: the most likely token */
} warprow_logprob;

/* A list of logprobs for each of some tokens. The list of token i is entries[begins[i]] to entries[begins[i + 1] - 1]:
 * first the token itself, then as many of the most likely tokens as were requested, which may contain it again. */
typedef struct warprow_logprobs {
  const warprow_logprob* entries;
  const uint64_t* begins; /* num_tokens + 1 */
  size_t num_tokens;
} warprow_logprobs;

/* What is new of one choice since its last output. Pointers are valid until warprow_output_free. */
struct warprow_output {
  uint64_t request;
  int32_t choice;       /* 0 to num_choices - 1 */
  int32_t num_choices;  /* `n` of the request */
  int32_t finish_reason; /* WARPROW_FINISH_... */
  int32_t is_last;      /* 1: the request yields no further output of any choice */

  const char* text; /* whole characters; a possible stop string is held back. Ends with a zero byte */
  size_t text_len;
  const int32_t* token_ids;
  size_t num_token_ids;
  warprow_logprobs logprobs;        /* of token_ids; empty unless requested */
  warprow_logprobs prompt_logprobs; /* with the first output of choice 0: of all prompt tokens but the first */

  const int32_t* prompt_token_ids; /* with every output */
  size_t num_prompt_token_ids;

  /* With the finish reason: */
  const char* stop_string; /* that ended it, or NULL */
  int32_t stop_token_id;   /* of stop_token_ids, that ended it, or -1 */
  warprow_status error_status;
  const char* error;          /* with WARPROW_FINISH_ERROR, else NULL */
  int32_t num_cached_tokens;  /* of the prompt, found in the prefix cache */
  int32_t num_output_tokens;  /* of the choice, in all its outputs */
  double queue_ms;            /* submission to the first step */
  double prompt_ms;           /* the first step to the first token */
  double output_ms;           /* the first to the last token */

  /* Of a pooling request, with its end: a vector of pooled_width values, or one for each token of the prompt. */
  const float* pooled;
  size_t num_pooled; /* values of all vectors */
  int32_t pooled_width;
};

#ifdef __cplusplus
}
#endif

#endif /* WARPROW_H */
