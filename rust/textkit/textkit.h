/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The C ABI of the text library (rust/textkit/src/abi.rs; kept by hand, change both together).
 *
 * Text is (pointer, length) and never needs a terminator; inputs are borrowed for the call. A call
 * that can fail returns 0 for success; otherwise *error holds a message to be freed with
 * wr_textkit_free. It returns WR_INVALID where the input is at fault, WR_BUSY where no worker process
 * can be had for it, and WR_PANIC where the library panicked on it, which is a bug. Every object but wr_matcher is immutable once made: all calls on it may run in
 * several threads at once. No panic leaves this library. */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { WR_INVALID = 1, WR_BUSY = 2, WR_PANIC = 3 };

/* Templates and grammars are run by worker processes: this binary again, with WR_HELPER_ARGUMENT as its
 * first argument. It calls wr_helper_main before main, which never returns. */
#define WR_HELPER_ARGUMENT "--textkit-helper"
#ifdef __cplusplus
[[noreturn]]
#endif
void wr_helper_main(void);
/* Worker processes run the program at this path, which must be built from the same sources, in place of this binary. For
 * processes that are not a warprow binary. The first call decides; returns WR_INVALID if an earlier one named another
 * path. */
int wr_set_helper_program(const char* path);

/* Input text, or text that belongs to an object and lives as long as it does. */
typedef struct {
  const char* data;
  size_t size;
} wr_text;

/* Bytes or ids that the caller owns: free with wr_textkit_free. */
typedef struct {
  void* data;
  size_t size; /* in elements */
  size_t bytes;
} wr_owned;

void wr_textkit_free(wr_owned owned);

typedef struct wr_tokenizer wr_tokenizer;

/* GGUF metadata tokenizer.ggml.*; ids and flags are -1 where the file has none. */
typedef struct {
  wr_text model;
  wr_text pre;
  const wr_text* tokens;
  size_t num_tokens;
  const wr_text* merges;
  size_t num_merges;
  const float* scores; /* num_scores: 0 or num_tokens */
  size_t num_scores;
  const int32_t* types; /* num_types: 0 or num_tokens */
  size_t num_types;
  int64_t bos_id;
  int64_t eos_id;
  int64_t unk_id;
  int32_t add_bos;
  int32_t add_eos;
  int32_t add_space_prefix;
} wr_gguf_vocab;

int wr_tokenizer_from_json(wr_text json, wr_tokenizer** out, wr_owned* error);
int wr_tokenizer_from_gguf(const wr_gguf_vocab* vocab, wr_tokenizer** out, wr_owned* error);
/* model: the content of a SentencePiece tokenizer.model. config, added_tokens: the contents of tokenizer_config.json
 * and added_tokens.json, or empty. */
int wr_tokenizer_from_sentencepiece(
    wr_text model, wr_text config, wr_text added_tokens, wr_tokenizer** out, wr_owned* error);
void wr_tokenizer_free(wr_tokenizer* tokenizer);

/* ids: int32. */
int wr_tokenizer_encode(
    const wr_tokenizer* tokenizer, wr_text text, int add_special, wr_owned* ids, wr_owned* error);

/* Two texts with the tokens around and between them. num_first: the tokens before the second segment; all of them, if the
 * tokenizer has one segment alone. Only of a tokenizer.json. */
int wr_tokenizer_encode_pair(const wr_tokenizer* tokenizer,
                             wr_text a,
                             wr_text b,
                             wr_owned* ids,
                             size_t* num_first,
                             wr_owned* error);

/* The highest id plus one. */
size_t wr_tokenizer_vocab_size(const wr_tokenizer* tokenizer);

enum { WR_TOKEN_NORMAL = 0, WR_TOKEN_SPECIAL = 1, WR_TOKEN_HOLE = 2 };

/* text: as in the vocabulary; bytes: what it decodes to after other tokens. Both live as long as the
 * tokenizer. Returns WR_TOKEN_*; an id outside of the vocabulary is a hole. */
int wr_tokenizer_token(const wr_tokenizer* tokenizer, size_t id, wr_text* text, wr_text* bytes);

/* -1 when no token has this text. */
int64_t wr_tokenizer_find(const wr_tokenizer* tokenizer, wr_text text);

/* Whether one space at the very start of a decoded text is dropped. */
int wr_tokenizer_strips_leading_space(const wr_tokenizer* tokenizer);

typedef struct wr_template wr_template;

/* Of parsing, and of each rendering; long variables raise the first two. */
typedef struct {
  uint32_t cpu_ms;
  uint32_t memory_mb;
  uint32_t output_mb;
} wr_template_limits;

int wr_template_parse(wr_text source,
                      wr_template_limits limits,
                      wr_template** out,
                      wr_owned* error);
/* context: a JSON object with every variable. text: UTF-8 bytes. Waits for a worker process. */
int wr_template_render(const wr_template* tmpl, wr_text context, wr_owned* text, wr_owned* error);
void wr_template_free(wr_template* tmpl);
/* Parses and renders a template once, in a worker process of its own. */
int wr_template_render_once(
    wr_text source, wr_text context, wr_template_limits limits, wr_owned* text, wr_owned* error);
/* For fuzzing: parses and renders once, in a worker process that tries one template after the other. */
int wr_template_try(
    wr_text source, wr_text context, wr_template_limits limits, wr_owned* text, wr_owned* error);

typedef struct wr_grammar_compiler wr_grammar_compiler;
typedef struct wr_grammar wr_grammar;
typedef struct wr_matcher wr_matcher;

enum {
  WR_GRAMMAR_JSON_SCHEMA = 0,
  WR_GRAMMAR_JSON_OBJECT = 1, /* the text is not read */
  WR_GRAMMAR_REGEX = 2,       /* Rust's syntax, matched whole */
  WR_GRAMMAR_LARK = 3,        /* llguidance's variant, or EBNF with ::= */
  WR_GRAMMAR_CHOICE = 4,      /* a JSON list of strings */
};

typedef struct {
  uint32_t cpu_ms;    /* to compile */
  uint32_t memory_mb; /* to compile */
  uint32_t kept_mb;   /* of a compiled grammar, and of each matcher at its beginning */
  uint32_t step_ms;   /* of processor time, for each call with a matcher */
} wr_grammar_limits;

/* Keeps what it needs of the tokenizer, which may be freed before it. eos: ids that may follow a
 * finished text, never text themselves. */
int wr_grammar_compiler_new(const wr_tokenizer* tokenizer,
                            const int32_t* eos,
                            size_t num_eos,
                            wr_grammar_limits limits,
                            wr_grammar_compiler** out,
                            wr_owned* error);
void wr_grammar_compiler_free(wr_grammar_compiler* compiler);

/* Waits for a worker process to compile it first. */
int wr_grammar_compile(const wr_grammar_compiler* compiler,
                       int kind,
                       wr_text text,
                       const wr_grammar** out,
                       wr_owned* error);
/* One more owner of the same grammar; each calls wr_grammar_free. */
const wr_grammar* wr_grammar_share(const wr_grammar* grammar);
void wr_grammar_free(const wr_grammar* grammar);

/* A matcher at the grammar's beginning, independent of all others and of the grammar. One thread at
 * a time. */
int wr_matcher_new(const wr_grammar* grammar, wr_matcher** out, wr_owned* error);
/* A matcher at the same place, to try tokens on. It shares caches with the first: one thread for both
 * at a time. */
int wr_matcher_fork(const wr_matcher* matcher, wr_matcher** out, wr_owned* error);
void wr_matcher_free(wr_matcher* matcher);

/* Bit id % 32 of word id / 32: the token may come next. Words past the vocabulary are 0; all are where no
 * token spells what may come next. */
int wr_matcher_fill_mask(wr_matcher* matcher, uint32_t* words, size_t num_words, wr_owned* error);
/* A refused token leaves the matcher as it was. */
int wr_matcher_accept(wr_matcher* matcher, int32_t token, wr_owned* error);
/* Whether nothing but an end may follow, or the matcher has failed. */
int wr_matcher_is_stopped(const wr_matcher* matcher);

/* A model on the Hugging Face Hub and where it is kept (rust/hub). An empty token is none. Both calls
 * block on the network. */
typedef struct {
  wr_text name; /* org/name */
  wr_text revision;
  wr_text cache_dir;
  wr_text endpoint;
  wr_text token;
  double timeout_s; /* how long a host may say nothing */
} wr_hub_repo;

/* json: {"commit": "...", "files": [{"name": "...", "size": 0}, ...]}, without files in folders of
 * folders. */
int wr_hub_list(const wr_hub_repo* repo, wr_owned* json, wr_owned* error);

/* What is known of a file before it comes. An empty sha256: the hash that the Hub announces counts. */
typedef struct {
  wr_text name;
  uint64_t size;
  wr_text sha256; /* in hex, lower case */
} wr_hub_file;

/* Brings one file of a commit into the cache, from where an earlier call stopped. progress is called
 * within this call, with the bytes there are and those of the whole file. */
typedef void (*wr_hub_progress)(void* context, uint64_t done, uint64_t total);
int wr_hub_fetch(const wr_hub_repo* repo,
                 wr_text commit,
                 const wr_hub_file* file,
                 wr_hub_progress progress,
                 void* context,
                 wr_owned* error);

#ifdef __cplusplus
}
#endif
