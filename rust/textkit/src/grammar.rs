// SPDX-License-Identifier: Apache-2.0
//! Grammars that constrain generation, run by `llguidance` over a trie of the tokenizer's own bytes.
//!
//! Isolation: a matcher is a deep clone of the compiled grammar's first state, so one request's lexer
//! cache, limits or panic never reach another's. Compilation runs on a thread of its own, with a large
//! stack, and is given up after a time limit.

use crate::abi::Tokenizer;
use crate::ebnf::{self, is_ebnf};
use crate::ebnf_lark::to_lark;
use crate::lark_size::check_expanded;
use crate::pieces::{KIND_HOLE, KIND_SPECIAL};
use llguidance::api::{ParserLimits, StopReason, TopLevelGrammar};
use llguidance::toktrie::{
    InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv, INVALID_TOKEN,
};
use llguidance::{regex_to_lark, Matcher as LlMatcher, ParserFactory};
use serde_json::{json, Value};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{mpsc, Arc};
use std::time::Duration;

/// The trie's own limit is 1024; a longer token is never allowed.
const MAX_TOKEN_BYTES: usize = 1000;
/// Ids share a word with a byte in the trie.
const MAX_VOCAB: usize = (1 << 24) - 2;
/// The library's parsers recurse with the depth of their input.
const COMPILE_STACK_BYTES: usize = 64 << 20;
/// Compilations past their time limit that may still run before new ones are refused.
const MAX_ABANDONED: usize = 2;
const MAX_MESSAGE_BYTES: usize = 400;

#[repr(i32)]
#[derive(Clone, Copy)]
pub enum Kind {
    JsonSchema = 0,
    JsonObject = 1,
    Regex = 2,
    Lark = 3,
    Choice = 4,
}

impl Kind {
    pub fn from_raw(raw: i32) -> Result<Self, String> {
        Ok(match raw {
            0 => Kind::JsonSchema,
            1 => Kind::JsonObject,
            2 => Kind::Regex,
            3 => Kind::Lark,
            4 => Kind::Choice,
            _ => return Err(format!("unknown kind of grammar: {raw}")),
        })
    }
}

struct Vocabulary {
    trie: TokTrie,
}

impl Vocabulary {
    fn new(tokenizer: &Tokenizer, eos: &[TokenId]) -> Result<Self, String> {
        let pieces = tokenizer.pieces();
        let size = pieces.kinds.len();
        if size == 0 || size > MAX_VOCAB {
            return Err(format!(
                "a grammar needs 1 to {MAX_VOCAB} tokens, not {size}"
            ));
        }
        // A marker byte tells special tokens from text that is spelled the same. It is in no UTF-8,
        // so an ordinary token that begins with it is never wanted.
        let marker = TokTrie::SPECIAL_TOKEN_MARKER;
        let words: Vec<Vec<u8>> = (0..size)
            .map(|id| {
                let special = pieces.kinds[id] == KIND_SPECIAL || eos.contains(&(id as TokenId));
                let word = if pieces.kinds[id] == KIND_HOLE {
                    Vec::new()
                } else if special {
                    [&[marker], pieces.texts.get(id)].concat()
                } else {
                    pieces.bytes.get(id).to_vec()
                };
                let usable = word.len() <= MAX_TOKEN_BYTES
                    && (special || word.first().is_none_or(|&b| b != marker));
                if usable {
                    word
                } else {
                    Vec::new()
                }
            })
            .collect();
        let info = TokRxInfo::new(size as u32, eos.first().copied().unwrap_or(INVALID_TOKEN));
        let mut trie = TokTrie::from(&info, &words);
        if !eos.is_empty() {
            trie = trie.with_eos_tokens(eos);
        }
        Ok(Vocabulary { trie })
    }
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, s: &[u8]) -> Vec<TokenId> {
        self.trie.greedy_tokenize(s)
    }

    /// Else the library would look for text that must come next, which has no bound: one step through a
    /// forced text of a gigabyte takes seconds.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

pub struct Compiler {
    factory: Arc<ParserFactory>,
    abandoned: Arc<AtomicUsize>,
    max_compile_time: Duration,
}

fn limits() -> ParserLimits {
    ParserLimits {
        // The default would allow one request half a gigabyte of lexer states.
        max_lexer_states: 50_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

impl Compiler {
    pub fn new(
        tokenizer: &Tokenizer,
        eos: &[TokenId],
        max_compile_time: Duration,
    ) -> Result<Self, String> {
        let env: TokEnv = Arc::new(Vocabulary::new(tokenizer, eos)?);
        let caps = InferenceCapabilities::default();
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&env, caps, &slices).map_err(one_line)?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(Compiler {
            factory: Arc::new(factory),
            abandoned: Arc::default(),
            max_compile_time,
        })
    }

    pub fn compile(&self, kind: Kind, text: &str) -> Result<Grammar, String> {
        if self.abandoned.load(Ordering::Relaxed) >= MAX_ABANDONED {
            return Err("busy with grammars that take too long; try again later".into());
        }
        let (sender, receiver) = mpsc::sync_channel(0);
        let factory = self.factory.clone();
        let abandoned = self.abandoned.clone();
        let text = text.to_owned();
        let work = move || {
            let panicked = Err("the grammar library failed".into());
            let body = std::panic::AssertUnwindSafe(|| compile_here(&factory, kind, &text));
            let result = std::panic::catch_unwind(body).unwrap_or(panicked);
            // A channel without a buffer: the send fails if, and only if, the caller has given up and
            // has counted this compilation as abandoned.
            if sender.send(result).is_err() {
                abandoned.fetch_sub(1, Ordering::Relaxed);
            }
        };
        std::thread::Builder::new()
            .name("wr-grammar".into())
            .stack_size(COMPILE_STACK_BYTES)
            .spawn(work)
            .map_err(|e| format!("no thread to compile on: {e}"))?;
        receiver
            .recv_timeout(self.max_compile_time)
            .unwrap_or_else(|_| {
                self.abandoned.fetch_add(1, Ordering::Relaxed);
                Err(format!(
                    "too complex: not compiled within {} ms",
                    self.max_compile_time.as_millis()
                ))
            })
    }
}

fn compile_here(factory: &ParserFactory, kind: Kind, text: &str) -> Result<Grammar, String> {
    let from_ebnf = matches!(kind, Kind::Lark) && is_ebnf(text);
    let source = match kind {
        Kind::JsonSchema => TopLevelGrammar::from_json_schema(read_schema(text)?),
        Kind::JsonObject => {
            TopLevelGrammar::from_json_schema(bounded_whitespace(json!({"type": "object"})))
        }
        Kind::Regex => regex_grammar(text)?,
        Kind::Lark if from_ebnf => lark_grammar(to_lark(&ebnf::read(text)?)?)?,
        Kind::Lark => lark_grammar(text.to_owned())?,
        Kind::Choice => regex_grammar(&choice_regex(text)?)?,
    };
    let parser = factory.create_parser(source).map_err(|e| {
        let message = one_line(e);
        match message.split_once(": ") {
            // A position in the translation would mislead.
            Some((position, rest)) if from_ebnf && position.starts_with("at ") => rest.to_owned(),
            _ => message,
        }
    })?;
    let start = LlMatcher::new(Ok(parser));
    match start.get_error() {
        Some(message) => Err(one_line(message)),
        None => Ok(Grammar {
            start,
            eos: factory.tok_env().tok_trie().eos_tokens().to_vec(),
        }),
    }
}

fn read_schema(text: &str) -> Result<Value, String> {
    let schema: Value = serde_json::from_str(text).map_err(|e| format!("not JSON: {e}"))?;
    match schema {
        Value::Object(_) => Ok(bounded_whitespace(schema)),
        Value::Bool(_) => Ok(schema),
        _ => Err("a JSON schema is an object or a boolean".into()),
    }
}

/// Runs of whitespace between JSON's tokens have an end, or a weak model writes nothing else. A schema
/// may set `x-guidance` itself.
fn bounded_whitespace(mut schema: Value) -> Value {
    let Some(object) = schema.as_object_mut() else {
        return schema;
    };
    let options = object.entry("x-guidance").or_insert_with(|| json!({}));
    if let Some(options) = options.as_object_mut() {
        let chosen = ["whitespace_flexible", "whitespace_pattern"];
        if !chosen.iter().any(|key| options.contains_key(*key)) {
            let pattern = json!(r"[\x20\x0A\x0D\x09]{1,32}");
            options.insert("whitespace_pattern".into(), pattern);
        }
    }
    schema
}

fn regex_grammar(regex: &str) -> Result<TopLevelGrammar, String> {
    // For the position: the library would report one inside a grammar that it makes of the regex.
    regex_syntax::ast::parse::Parser::new()
        .parse(regex)
        .map_err(|e| {
            let at = e.span().start;
            format!("at {}({}): {}", at.line, at.column, e.kind())
        })?;
    let lark = format!("start: /{}/", regex_to_lark(regex, ""));
    Ok(TopLevelGrammar::from_lark(lark))
}

fn lark_grammar(lark: String) -> Result<TopLevelGrammar, String> {
    check_expanded(&lark)?;
    Ok(TopLevelGrammar::from_lark(lark))
}

fn choice_regex(text: &str) -> Result<String, String> {
    let choices: Vec<String> =
        serde_json::from_str(text).map_err(|e| format!("not a JSON list of strings: {e}"))?;
    if choices.is_empty() {
        return Err("no choices".into());
    }
    if choices.iter().any(String::is_empty) {
        return Err("a choice is empty".into());
    }
    let escaped: Vec<String> = choices.iter().map(|c| regex_syntax::escape(c)).collect();
    Ok(format!("(?:{})", escaped.join("|")))
}

/// The library's message without its echo of the source, its marks and its traces.
fn one_line(error: impl std::fmt::Display) -> String {
    let text = error.to_string();
    let text = text.split("\n<").next().unwrap_or_default();
    let numbered = text.starts_with(|c: char| c.is_ascii_digit());
    let located = numbered || text.starts_with("at ");
    let lines = text.lines().take(if located { 1 } else { usize::MAX });
    let mut line = lines.map(str::trim).collect::<Vec<_>>().join(" ");
    if numbered {
        line.insert_str(0, "at ");
    }
    if line.len() > MAX_MESSAGE_BYTES {
        let mut end = MAX_MESSAGE_BYTES;
        while !line.is_char_boundary(end) {
            end -= 1;
        }
        line.truncate(end);
        line.push_str("...");
    }
    line
}

/// A compiled grammar at its beginning.
pub struct Grammar {
    start: LlMatcher,
    eos: Vec<TokenId>,
}

impl Grammar {
    pub fn matcher(&self) -> Matcher {
        Matcher {
            inner: self.start.deep_clone(),
            eos: self.eos.clone(),
            stuck: false,
        }
    }
}

pub struct Matcher {
    inner: LlMatcher,
    eos: Vec<TokenId>,
    /// No token of the vocabulary spells what may come next.
    stuck: bool,
}

impl Matcher {
    /// A matcher at the same place, which goes its own way. The lexer's caches stay shared.
    pub fn fork(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            eos: self.eos.clone(),
            stuck: self.stuck,
        }
    }

    pub fn fill_mask(&mut self, words: &mut [u32]) -> Result<(), String> {
        words.fill(0);
        let mask = match self.inner.compute_mask_or_eos() {
            Ok(mask) => mask,
            Err(error) => {
                let message = one_line(error);
                self.stuck = message == StopReason::NoExtensionBias.to_string();
                return if self.stuck { Ok(()) } else { Err(message) };
            }
        };
        let count = words.len().min(mask.as_slice().len());
        words[..count].copy_from_slice(&mask.as_slice()[..count]);
        // Past the vocabulary the library promises nothing.
        if let Some(last) = words.get_mut(mask.len() / 32) {
            *last &= (1u32 << (mask.len() % 32)) - 1;
        }
        Ok(())
    }

    pub fn accept(&mut self, token: TokenId) -> Result<(), String> {
        if let Some(message) = self.inner.get_error() {
            return Err(one_line(message));
        }
        let ends = self.eos.contains(&token);
        if self.inner.is_stopped() {
            if ends {
                return Ok(());
            }
            return Err(format!("token {token} follows the end of the grammar"));
        }
        let vocab_size = self
            .inner
            .tok_env()
            .map_err(one_line)?
            .tok_trie()
            .vocab_size();
        let allowed = (token as usize) < vocab_size
            && ((ends && self.is_accepting())
                || self.inner.validate_tokens(&[token]).map_err(one_line)? == 1);
        if !allowed {
            return Err(format!("token {token} is not allowed by the grammar"));
        }
        self.inner.consume_token(token).map_err(one_line)
    }

    fn is_accepting(&mut self) -> bool {
        self.inner.is_accepting().unwrap_or(false)
    }

    pub fn is_stopped(&self) -> bool {
        self.inner.is_stopped() && !self.stuck
    }
}
