// SPDX-License-Identifier: Apache-2.0
//! Grammars that constrain generation, run by `llguidance` over a trie of the tokenizer's own bytes.
//!
//! Isolation: a matcher is a deep clone of the compiled grammar's first state, so one request's lexer cache, limits or
//! panic never affect another. A grammar is compiled twice: first in a worker process with limits (worker_host.rs),
//! which shows that it is cheap, then in this process, which needs the result.

use crate::abi::{panic_text, Tokenizer};
use crate::ebnf::{self, is_ebnf};
use crate::ebnf_lark::to_lark;
use crate::lark_size::check_expanded;
use crate::pieces::{StrList, KIND_HOLE, KIND_SPECIAL};
use crate::step_watch::watched;
use crate::worker_host::{Failure, Slots, WorkerHost};
use crate::worker_main::{Work, STACK_BYTES};
use crate::worker_wire::{Limits, WorkKind};
use llguidance::api::{ParserLimits, StopReason, TopLevelGrammar};
use llguidance::toktrie::{
    InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv, INVALID_TOKEN,
};
use llguidance::{regex_to_lark, Matcher as LlMatcher, ParserFactory};
use serde_json::{json, Value};
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The trie's own limit is 1024; a longer token is never allowed.
const MAX_TOKEN_BYTES: usize = 1000;
/// Ids share a word with a byte in the trie.
const MAX_VOCAB: usize = (1 << 24) - 2;
const MAX_MESSAGE_BYTES: usize = 400;
/// Limit of remembered grammars that have exceeded a limit, so that a repeated one is refused at no cost.
const MAX_REMEMBERED: usize = 1024;
/// CPU time to compile, after which a grammar counts as slow.
const SLOW_MS: u64 = 150;
/// Generous limits: the vocabulary comes from the operator's model, not from a request.
const SETUP_LIMITS: Limits = Limits {
    cpu_ms: 60_000,
    slow_ms: 0,
    memory_mb: 8192,
};

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

/// The contents of the trie: each token's bytes, and the tokens that may end a text.
struct Words {
    list: StrList,
    eos: Vec<TokenId>,
}

impl Words {
    fn of(tokenizer: &Tokenizer, eos: &[TokenId]) -> Result<Self, String> {
        let pieces = tokenizer.pieces();
        let size = pieces.kinds.len();
        if size == 0 || size > MAX_VOCAB {
            return Err(format!(
                "a grammar needs 1 to {MAX_VOCAB} tokens, not {size}"
            ));
        }
        // A marker byte distinguishes special tokens from text with the same spelling. The byte is not valid UTF-8, so
        // no grammar needs an ordinary token that begins with it.
        let marker = TokTrie::SPECIAL_TOKEN_MARKER;
        let mut list = StrList::default();
        for id in 0..size {
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
            list.push(if usable { &word } else { &[] });
        }
        Ok(Words {
            list,
            eos: eos.to_vec(),
        })
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let number = |n: usize, out: &mut Vec<u8>| out.extend((n as u32).to_le_bytes());
        number(self.eos.len(), &mut out);
        for &id in &self.eos {
            number(id as usize, &mut out);
        }
        for id in 0..self.list.len() {
            number(self.list.get(id).len(), &mut out);
            out.extend(self.list.get(id));
        }
        out
    }

    /// None if `bytes` are not a result of to_bytes.
    fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        fn number(bytes: &mut &[u8]) -> Option<usize> {
            let (number, rest) = bytes.split_first_chunk()?;
            *bytes = rest;
            Some(u32::from_le_bytes(*number) as usize)
        }
        let mut eos = Vec::new();
        for _ in 0..number(&mut bytes)? {
            eos.push(number(&mut bytes)? as TokenId);
        }
        let mut list = StrList::default();
        while !bytes.is_empty() {
            let (word, rest) = number(&mut bytes).and_then(|n| bytes.split_at_checked(n))?;
            list.push(word);
            bytes = rest;
        }
        Some(Words { list, eos })
    }

    fn factory(&self) -> Result<ParserFactory, String> {
        let eos = &self.eos;
        let words: Vec<Vec<u8>> = (0..self.list.len())
            .map(|id| self.list.get(id).to_vec())
            .collect();
        let first = eos.first().copied().unwrap_or(INVALID_TOKEN);
        let mut trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, first), &words);
        if !eos.is_empty() {
            trie = trie.with_eos_tokens(eos);
        }
        let env: TokEnv = Arc::new(Vocabulary { trie });
        let caps = InferenceCapabilities::default();
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&env, caps, &slices).map_err(one_line)?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(factory)
    }
}

struct Vocabulary {
    trie: TokTrie,
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, s: &[u8]) -> Vec<TokenId> {
        self.trie.greedy_tokenize(s)
    }

    /// false, because the library would otherwise search for forced text, which has no limit: one step through a forced
    /// text of a gigabyte takes seconds.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

/// The work of a worker process for a grammar compiler.
pub struct GrammarWork {
    factory: ParserFactory,
}

impl GrammarWork {
    pub fn new(setup: &[u8]) -> Result<Self, String> {
        let words = Words::from_bytes(setup).ok_or("the vocabulary is cut off")?;
        Ok(GrammarWork {
            factory: words.factory()?,
        })
    }
}

impl Work for GrammarWork {
    /// Compiles and returns the number of bytes that the grammar keeps. The worker process ends after this work, so
    /// nothing is freed.
    fn answer(&self, work: &[u8]) -> Result<Vec<u8>, String> {
        let (kind, text) = work.split_first().ok_or("no grammar")?;
        let text = std::str::from_utf8(text).map_err(|e| e.to_string())?;
        let before = heap_bytes();
        let grammar = compile_here(&self.factory, Kind::from_raw((*kind).into())?, text)?;
        std::mem::forget(grammar);
        Ok(heap_bytes().saturating_sub(before).to_le_bytes().to_vec())
    }
}

fn heap_bytes() -> u64 {
    // SAFETY: reads the allocator's counters.
    let info = unsafe { libc::mallinfo2() };
    (info.uordblks + info.hblkhd) as u64
}

/// wr_grammar_limits of textkit.h.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CompileLimits {
    pub cpu_ms: u32,
    pub memory_mb: u32,
    pub kept_mb: u32,
    pub step_ms: u32,
}

pub struct Compiler {
    factory: Arc<ParserFactory>,
    host: WorkerHost,
    limits: CompileLimits,
    remembered: Mutex<VecDeque<(u64, Failure)>>,
    hasher: RandomState,
}

fn limits() -> ParserLimits {
    ParserLimits {
        // With the default one request could use half a gigabyte of lexer states.
        max_lexer_states: 50_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

impl Compiler {
    pub fn new(
        tokenizer: &Tokenizer,
        eos: &[TokenId],
        limits: CompileLimits,
    ) -> Result<Self, String> {
        let words = Words::of(tokenizer, eos)?;
        let slots = Slots {
            all: 4,
            max_wait: Duration::from_secs(10),
            slow: 2,
            keep_workers: false,
        };
        Ok(Compiler {
            factory: Arc::new(words.factory()?),
            host: WorkerHost::new(WorkKind::Grammar, words.to_bytes(), SETUP_LIMITS, slots),
            limits,
            remembered: Mutex::default(),
            hasher: RandomState::new(),
        })
    }

    pub fn compile(&self, kind: Kind, text: &str) -> Result<Grammar, Failure> {
        let name = self.hasher.hash_one((kind as i32, text));
        if let Some(failure) = self.recall(name) {
            return Err(failure);
        }
        let limits = Limits {
            cpu_ms: self.limits.cpu_ms.into(),
            slow_ms: SLOW_MS,
            memory_mb: self.limits.memory_mb.into(),
        };
        let proved = self
            .host
            .run(&[&[kind as u8], text.as_bytes()].concat(), limits)
            .and_then(|answer| self.check_kept(&answer));
        if let Err(failure) = proved {
            self.remember(name, &failure);
            return Err(failure);
        }
        let factory = self.factory.clone();
        let text = text.to_owned();
        let body = move || compile_here(&factory, kind, &text);
        std::thread::Builder::new()
            .name("wr-grammar".into())
            .stack_size(STACK_BYTES)
            .spawn(body)
            .map_err(|e| Failure::Busy(format!("no thread to compile on: {e}")))?
            .join()
            .map_err(|panic| Failure::Panicked(panic_text(panic.as_ref())))?
            .map(|start| Grammar {
                start,
                eos: self.factory.tok_env().tok_trie().eos_tokens().to_vec(),
                step_limit: Duration::from_millis(self.limits.step_ms.into()),
            })
            .map_err(Failure::Refused)
    }

    fn check_kept(&self, answer: &[u8]) -> Result<(), Failure> {
        let kept = answer.try_into().map_or(u64::MAX, u64::from_le_bytes);
        let kept_mb = u64::from(self.limits.kept_mb);
        if kept > kept_mb << 20 {
            return Err(Failure::TooMuch(format!(
                "takes {} MiB of memory once compiled; at most {kept_mb} are given",
                kept >> 20
            )));
        }
        Ok(())
    }

    fn recall(&self, name: u64) -> Option<Failure> {
        let remembered = self.remembered.lock().unwrap_or_else(|e| e.into_inner());
        let found = remembered.iter().find(|(known, _)| *known == name);
        found.map(|(_, failure)| failure.clone())
    }

    fn remember(&self, name: u64, failure: &Failure) {
        if let Failure::TooMuch(_) = failure {
            let mut remembered = self.remembered.lock().unwrap_or_else(|e| e.into_inner());
            remembered.truncate(MAX_REMEMBERED - 1);
            remembered.push_front((name, failure.clone()));
        }
    }
}

fn compile_here(factory: &ParserFactory, kind: Kind, text: &str) -> Result<LlMatcher, String> {
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
            // A position in the translated Lark would mislead the user.
            Some((position, rest)) if from_ebnf && position.starts_with("at ") => rest.to_owned(),
            _ => message,
        }
    })?;
    let start = LlMatcher::new(Ok(parser));
    match start.get_error() {
        Some(message) => Err(one_line(message)),
        None => Ok(start),
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

/// Limits the white space between JSON tokens; a weak model might otherwise write nothing else. A schema may set
/// `x-guidance` itself.
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
    // Parse the regex for the position of an error: the library would report a position in the Lark made of the regex.
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

/// The library's message as one line, without the echoed source, the markers and the traces.
/// The library catches its own panics and returns them as errors; here they are panics again.
fn one_line(error: impl std::fmt::Display) -> String {
    let text = error.to_string();
    if let Some(panic) = text.strip_prefix("panic: ") {
        let message = panic.lines().next().unwrap_or_default();
        std::panic::resume_unwind(Box::new(message.to_owned()));
    }
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

/// A compiled grammar in its initial state.
pub struct Grammar {
    start: LlMatcher,
    eos: Vec<TokenId>,
    step_limit: Duration,
}

impl Grammar {
    pub fn matcher(&self) -> Matcher {
        Matcher {
            inner: self.start.deep_clone().into_cancellable(),
            eos: self.eos.clone(),
            step_limit: self.step_limit,
            stuck: false,
        }
    }
}

pub struct Matcher {
    inner: LlMatcher,
    eos: Vec<TokenId>,
    /// CPU time limit of each call.
    step_limit: Duration,
    /// No token of the vocabulary matches the grammar at this position.
    stuck: bool,
}

impl Matcher {
    /// An independent matcher at the same position. The lexer's caches stay shared.
    pub fn fork(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            eos: self.eos.clone(),
            step_limit: self.step_limit,
            stuck: self.stuck,
        }
    }

    /// Runs `step` and cancels it at the limit. The matcher cannot be used after that.
    fn limited<T>(
        &mut self,
        step: impl FnOnce(&mut Self) -> Result<T, String>,
    ) -> Result<T, String> {
        let limit = self.step_limit;
        let result = match self.inner.cancellation_handle() {
            Some(handle) => watched(limit, handle, || step(self)),
            None => step(self),
        };
        if self.inner.is_cancelled() {
            let ms = limit.as_millis();
            return Err(format!("a step takes more than {ms} ms of processor time"));
        }
        result
    }

    pub fn fill_mask(&mut self, words: &mut [u32]) -> Result<(), String> {
        words.fill(0);
        self.limited(|this| this.fill_mask_unlimited(words))
    }

    fn fill_mask_unlimited(&mut self, words: &mut [u32]) -> Result<(), String> {
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
        // The library does not define the bits past the vocabulary.
        if let Some(last) = words.get_mut(mask.len() / 32) {
            *last &= (1u32 << (mask.len() % 32)) - 1;
        }
        Ok(())
    }

    pub fn accept(&mut self, token: TokenId) -> Result<(), String> {
        self.limited(|this| this.accept_unlimited(token))
    }

    fn accept_unlimited(&mut self, token: TokenId) -> Result<(), String> {
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
