// SPDX-License-Identifier: Apache-2.0
//! The text library of warprow: tokenizers, chat templates and grammars behind a C ABI (textkit.h).
//!
//! A Hugging Face tokenizer.json runs on the `tokenizers` crate, unchanged. A vocabulary from GGUF metadata has its own
//! small tokenizer here, because it must be ready within milliseconds: the crate's model would first copy every merge
//! into several maps. Chat templates run on `minijinja`, with the Python names and output that they expect. Grammars
//! run on `llguidance`. Templates and grammars are untrusted input, so worker processes render templates and
//! test-compile grammars.

mod abi;
mod byte_level;
mod ebnf;
mod ebnf_greed;
mod ebnf_lark;
mod ebnf_plan;
mod gguf;
mod grammar;
mod grammar_abi;
mod hf;
mod hub_abi;
mod lark_size;
mod merge;
mod pieces;
mod pre_tokenizer;
mod py_json;
mod sentencepiece;
mod spm_config;
mod spm_normalizer;
mod spm_proto;
mod step_watch;
mod str_table;
mod template;
mod trial;
mod worker_host;
mod worker_main;
mod worker_watch;
mod worker_wire;
