// SPDX-License-Identifier: Apache-2.0
//! The text library of warprow: tokenizers, chat templates and grammars behind a C ABI (textkit.h).
//!
//! A Hugging Face tokenizer.json runs on the `tokenizers` crate, as it is. A vocabulary out of GGUF
//! metadata has its own small tokenizer here, because it must be ready within milliseconds: the
//! crate's model would copy every merge into several maps first. Chat templates run on `minijinja`,
//! with the names and the output of Python that they are made for. Grammars run on `llguidance`. Both
//! are written by strangers, so templates are rendered, and grammars tried, in worker processes.

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
mod step_watch;
mod str_table;
mod template;
mod trial;
mod worker_host;
mod worker_main;
mod worker_wire;
