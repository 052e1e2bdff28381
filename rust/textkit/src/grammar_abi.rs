// SPDX-License-Identifier: Apache-2.0
//! The C ABI of grammars; textkit.h documents each function.

use crate::abi::{array, guarded, guarded_work, Owned, Text, Tokenizer};
use crate::grammar::{CompileLimits, Compiler, Grammar, Kind, Matcher};
use crate::worker_host::Failure;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

#[no_mangle]
pub unsafe extern "C" fn wr_grammar_compiler_new(
    tokenizer: *const Tokenizer,
    eos: *const i32,
    num_eos: usize,
    limits: CompileLimits,
    out: *mut *mut Compiler,
    error: *mut Owned,
) -> i32 {
    guarded(error, || {
        let tokenizer = &*tokenizer;
        let size = tokenizer.pieces().kinds.len();
        let eos = array(eos, num_eos)
            .iter()
            .map(|&id| match u32::try_from(id) {
                Ok(id) if (id as usize) < size => Ok(id),
                _ => Err(format!("end token {id} is not in the vocabulary of {size}")),
            })
            .collect::<Result<Vec<u32>, String>>()?;
        let compiler = Compiler::new(tokenizer, &eos, limits)?;
        *out = Box::into_raw(Box::new(compiler));
        Ok(())
    })
}

/// SAFETY: `object` came from Box::into_raw, or is null.
unsafe fn free<T>(object: *mut T) {
    if !object.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(object))));
    }
}

#[no_mangle]
pub unsafe extern "C" fn wr_grammar_compiler_free(compiler: *mut Compiler) {
    free(compiler);
}

#[no_mangle]
pub unsafe extern "C" fn wr_grammar_compile(
    compiler: *const Compiler,
    kind: i32,
    text: Text,
    out: *mut *const Grammar,
    error: *mut Owned,
) -> i32 {
    guarded_work(error, || {
        let kind = Kind::from_raw(kind).map_err(Failure::Refused)?;
        let text = text.utf8("the grammar").map_err(Failure::Refused)?;
        let grammar = (*compiler).compile(kind, text)?;
        *out = Arc::into_raw(Arc::new(grammar));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn wr_grammar_share(grammar: *const Grammar) -> *const Grammar {
    if !grammar.is_null() {
        Arc::increment_strong_count(grammar);
    }
    grammar
}

#[no_mangle]
pub unsafe extern "C" fn wr_grammar_free(grammar: *const Grammar) {
    if !grammar.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Arc::from_raw(grammar))));
    }
}

#[no_mangle]
pub unsafe extern "C" fn wr_matcher_new(
    grammar: *const Grammar,
    out: *mut *mut Matcher,
    error: *mut Owned,
) -> i32 {
    guarded(error, || {
        *out = Box::into_raw(Box::new((*grammar).matcher()));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn wr_matcher_fork(
    matcher: *const Matcher,
    out: *mut *mut Matcher,
    error: *mut Owned,
) -> i32 {
    guarded(error, || {
        *out = Box::into_raw(Box::new((*matcher).fork()));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn wr_matcher_free(matcher: *mut Matcher) {
    free(matcher);
}

#[no_mangle]
pub unsafe extern "C" fn wr_matcher_fill_mask(
    matcher: *mut Matcher,
    words: *mut u32,
    num_words: usize,
    error: *mut Owned,
) -> i32 {
    guarded(error, || {
        if num_words == 0 {
            return Ok(());
        }
        (*matcher).fill_mask(std::slice::from_raw_parts_mut(words, num_words))
    })
}

#[no_mangle]
pub unsafe extern "C" fn wr_matcher_accept(
    matcher: *mut Matcher,
    token: i32,
    error: *mut Owned,
) -> i32 {
    guarded(error, || (*matcher).accept(token as u32))
}

#[no_mangle]
pub unsafe extern "C" fn wr_matcher_is_stopped(matcher: *const Matcher) -> i32 {
    catch_unwind(AssertUnwindSafe(|| (*matcher).is_stopped())).is_ok_and(|is| is) as i32
}
