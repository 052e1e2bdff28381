// SPDX-License-Identifier: Apache-2.0
//! The C ABI; textkit.h documents each function.

use crate::gguf::{GgufTokenizer, Vocab};
use crate::hf::HfTokenizer;
use crate::pieces::{Pieces, StrList, KIND_HOLE};
use crate::sentencepiece::SpTokenizer;
use crate::template::{ChatTemplate, TemplateLimits};
use crate::trial::{render_once, try_template};
use crate::worker_host::{set_program, Failure};
use std::ffi::{c_char, CStr};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::slice;
use std::sync::Arc;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Text {
    data: *const u8,
    size: usize,
}

impl Text {
    /// SAFETY: the caller of the C function keeps pointer and length valid during the call.
    unsafe fn bytes<'a>(self) -> &'a [u8] {
        array(self.data, self.size)
    }

    pub unsafe fn utf8<'a>(self, what: &str) -> Result<&'a str, String> {
        std::str::from_utf8(self.bytes()).map_err(|_| format!("{what} is not UTF-8"))
    }

    fn borrow(bytes: &[u8]) -> Self {
        Text {
            data: bytes.as_ptr(),
            size: bytes.len(),
        }
    }
}

/// SAFETY: as Text::bytes. A null pointer is an empty array.
pub unsafe fn array<'a, T>(data: *const T, count: usize) -> &'a [T] {
    if data.is_null() || count == 0 {
        return &[];
    }
    slice::from_raw_parts(data, count)
}

#[repr(C)]
pub struct Owned {
    data: *mut u8,
    size: usize,
    bytes: usize,
}

impl Owned {
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self::from_boxed(bytes.into_boxed_slice())
    }

    pub fn from_ids(ids: Vec<u32>) -> Self {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_ne_bytes()).collect();
        let count = ids.len();
        Owned {
            size: count,
            ..Self::from_bytes(bytes)
        }
    }

    fn from_boxed(bytes: Box<[u8]>) -> Self {
        let size = bytes.len();
        Owned {
            data: Box::into_raw(bytes).cast(),
            size,
            bytes: size,
        }
    }
}

#[no_mangle]
pub unsafe extern "C" fn wr_textkit_free(owned: Owned) {
    if !owned.data.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(
            owned.data,
            owned.bytes,
        )));
    }
}

#[no_mangle]
pub unsafe extern "C" fn wr_set_helper_program(path: *const c_char) -> i32 {
    i32::from(!set_program(CStr::from_ptr(path).to_owned()))
}

pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_default()
}

fn panic_message(text: &str) -> String {
    format!("internal error of the text library: {text}")
}

/// Runs `body`. The return value is 1 for a failure and 3 for a panic; the error message says why.
pub unsafe fn guarded(error: *mut Owned, body: impl FnOnce() -> Result<(), String>) -> i32 {
    guarded_work(error, || body().map_err(Failure::Refused))
}

/// As guarded. The return value is 2 if the input is valid but no worker process is free.
pub unsafe fn guarded_work(error: *mut Owned, body: impl FnOnce() -> Result<(), Failure>) -> i32 {
    let (code, message) = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(Failure::Refused(message) | Failure::TooMuch(message))) => (1, message),
        Ok(Err(Failure::Panicked(message))) => (3, panic_message(&message)),
        Ok(Err(Failure::Busy(message))) => (2, message),
        Err(panic) => (3, panic_message(&panic_text(panic.as_ref()))),
    };
    *error = Owned::from_bytes(message.into_bytes());
    code
}

/// Shared with the grammar compilers made from it.
pub enum Tokenizer {
    Hf(Box<HfTokenizer>),
    Gguf(Box<GgufTokenizer>),
    Sp(Box<SpTokenizer>),
}

impl Tokenizer {
    pub fn pieces(&self) -> &Pieces {
        match self {
            Tokenizer::Hf(t) => &t.pieces,
            Tokenizer::Gguf(t) => &t.pieces,
            Tokenizer::Sp(t) => &t.pieces,
        }
    }
}

#[repr(C)]
pub struct GgufVocab {
    model: Text,
    pre: Text,
    tokens: *const Text,
    num_tokens: usize,
    merges: *const Text,
    num_merges: usize,
    scores: *const f32,
    num_scores: usize,
    types: *const i32,
    num_types: usize,
    bos_id: i64,
    eos_id: i64,
    unk_id: i64,
    add_bos: i32,
    add_eos: i32,
    add_space_prefix: i32,
}

unsafe fn copy_list(texts: &[Text]) -> StrList {
    let bytes = texts.iter().map(|t| t.size).sum();
    let mut list = StrList::with_capacity(texts.len(), bytes);
    for text in texts {
        list.push(text.bytes());
    }
    list
}

#[no_mangle]
pub unsafe extern "C" fn wr_tokenizer_from_json(
    json: Text,
    out: *mut *mut Tokenizer,
    error: *mut Owned,
) -> i32 {
    guarded(error, || {
        let tokenizer = HfTokenizer::new(json.bytes())?;
        *out = Arc::into_raw(Arc::new(Tokenizer::Hf(Box::new(tokenizer)))).cast_mut();
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn wr_tokenizer_from_gguf(
    vocab: *const GgufVocab,
    out: *mut *mut Tokenizer,
    error: *mut Owned,
) -> i32 {
    guarded(error, || {
        let v = &*vocab;
        let id = |id: i64| u32::try_from(id).ok();
        let flag = |f: i32| if f < 0 { None } else { Some(f != 0) };
        let tokenizer = GgufTokenizer::new(Vocab {
            model: v.model.utf8("tokenizer.ggml.model")?,
            pre: v.pre.utf8("tokenizer.ggml.pre")?,
            tokens: copy_list(array(v.tokens, v.num_tokens)),
            merges: copy_list(array(v.merges, v.num_merges)),
            scores: array(v.scores, v.num_scores),
            types: array(v.types, v.num_types),
            bos: id(v.bos_id),
            eos: id(v.eos_id),
            unk: id(v.unk_id),
            add_bos: flag(v.add_bos),
            add_eos: flag(v.add_eos),
            add_space_prefix: flag(v.add_space_prefix),
        })?;
        *out = Arc::into_raw(Arc::new(Tokenizer::Gguf(Box::new(tokenizer)))).cast_mut();
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn wr_tokenizer_from_sentencepiece(
    model: Text,
    config: Text,
    added_tokens: Text,
    out: *mut *mut Tokenizer,
    error: *mut Owned,
) -> i32 {
    guarded(error, || {
        let tokenizer = SpTokenizer::new(model.bytes(), config.bytes(), added_tokens.bytes())?;
        *out = Arc::into_raw(Arc::new(Tokenizer::Sp(Box::new(tokenizer)))).cast_mut();
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn wr_tokenizer_free(tokenizer: *mut Tokenizer) {
    if !tokenizer.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Arc::from_raw(tokenizer))));
    }
}

#[no_mangle]
pub unsafe extern "C" fn wr_tokenizer_encode(
    tokenizer: *const Tokenizer,
    text: Text,
    add_special: i32,
    ids: *mut Owned,
    error: *mut Owned,
) -> i32 {
    guarded(error, || {
        let encoded = match &*tokenizer {
            Tokenizer::Hf(t) => t.encode(text.bytes(), add_special != 0)?,
            Tokenizer::Gguf(t) => t.encode(text.bytes(), add_special != 0),
            Tokenizer::Sp(t) => t.encode(text.bytes(), add_special != 0),
        };
        *ids = Owned::from_ids(encoded);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn wr_tokenizer_encode_pair(
    tokenizer: *const Tokenizer,
    a: Text,
    b: Text,
    ids: *mut Owned,
    num_first: *mut usize,
    error: *mut Owned,
) -> i32 {
    guarded(error, || {
        let Tokenizer::Hf(t) = &*tokenizer else {
            return Err("pairs of texts need a tokenizer.json".to_string());
        };
        let (encoded, first) = t.encode_pair(a.bytes(), b.bytes())?;
        *ids = Owned::from_ids(encoded);
        *num_first = first;
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn wr_tokenizer_vocab_size(tokenizer: *const Tokenizer) -> usize {
    (*tokenizer).pieces().kinds.len()
}

#[no_mangle]
pub unsafe extern "C" fn wr_tokenizer_token(
    tokenizer: *const Tokenizer,
    id: usize,
    text: *mut Text,
    bytes: *mut Text,
) -> i32 {
    let pieces = (*tokenizer).pieces();
    let Some(&kind) = pieces.kinds.get(id) else {
        *text = Text::borrow(&[]);
        *bytes = Text::borrow(&[]);
        return KIND_HOLE as i32;
    };
    *text = Text::borrow(pieces.texts.get(id));
    *bytes = Text::borrow(pieces.bytes.get(id));
    kind as i32
}

#[no_mangle]
pub unsafe extern "C" fn wr_tokenizer_find(tokenizer: *const Tokenizer, text: Text) -> i64 {
    let find = || match &*tokenizer {
        Tokenizer::Hf(t) => std::str::from_utf8(text.bytes())
            .ok()
            .and_then(|s| t.find(s)),
        Tokenizer::Gguf(t) => t.find(text.bytes()),
        Tokenizer::Sp(t) => t.find(text.bytes()),
    };
    catch_unwind(AssertUnwindSafe(find))
        .ok()
        .flatten()
        .map_or(-1, i64::from)
}

#[no_mangle]
pub unsafe extern "C" fn wr_tokenizer_strips_leading_space(tokenizer: *const Tokenizer) -> i32 {
    (*tokenizer).pieces().strip_leading_space as i32
}

#[no_mangle]
pub unsafe extern "C" fn wr_template_parse(
    source: Text,
    limits: TemplateLimits,
    out: *mut *mut ChatTemplate,
    error: *mut Owned,
) -> i32 {
    guarded_work(error, || {
        let source = source.utf8("the template").map_err(Failure::Refused)?;
        let template = ChatTemplate::new(source, limits)?;
        *out = Box::into_raw(Box::new(template));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn wr_template_render(
    template: *const ChatTemplate,
    context: Text,
    text: *mut Owned,
    error: *mut Owned,
) -> i32 {
    guarded_work(error, || {
        *text = Owned::from_bytes((*template).render(context.bytes())?);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn wr_template_try(
    source: Text,
    context: Text,
    limits: TemplateLimits,
    text: *mut Owned,
    error: *mut Owned,
) -> i32 {
    guarded_work(error, || {
        let source = source.utf8("the template").map_err(Failure::Refused)?;
        *text = Owned::from_bytes(try_template(source, context.bytes(), limits)?);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn wr_template_render_once(
    source: Text,
    context: Text,
    limits: TemplateLimits,
    text: *mut Owned,
    error: *mut Owned,
) -> i32 {
    guarded_work(error, || {
        let source = source.utf8("the template").map_err(Failure::Refused)?;
        *text = Owned::from_bytes(render_once(source, context.bytes(), limits)?);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn wr_template_free(template: *mut ChatTemplate) {
    if !template.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(template))));
    }
}
