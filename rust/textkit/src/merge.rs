// SPDX-License-Identifier: Apache-2.0
//! Byte-pair merging: joins adjacent symbols until no pair has a key. The pair with the lowest key is first, and of
//! equal keys the leftmost pair. A heap of candidate pairs over a linked list of symbols: O(n log n) in the length of
//! the word.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

struct Symbol {
    start: usize,
    end: usize, // start == end: merged away
    prev: usize,
    next: usize,
}

const NONE: usize = usize::MAX;

/// The lists of one encode call, kept for reuse.
#[derive(Default)]
pub struct Merger {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Reverse<(u32, usize, usize)>>, // key, left symbol, end of the right symbol
}

impl Merger {
    /// Starts with the characters of `text`. `key(start, split, end)` returns the key of the pair text[start..split],
    /// text[split..end]. `emit` gets the remaining symbols, in order.
    pub fn merge(
        &mut self,
        text: &str,
        key: impl Fn(usize, usize, usize) -> Option<u32>,
        mut emit: impl FnMut(&str),
    ) {
        self.symbols.clear();
        self.heap.clear();
        for (start, c) in text.char_indices() {
            let i = self.symbols.len();
            let prev = if i == 0 { NONE } else { i - 1 };
            self.symbols.push(Symbol {
                start,
                end: start + c.len_utf8(),
                prev,
                next: i + 1,
            });
        }
        if let Some(last) = self.symbols.last_mut() {
            last.next = NONE;
        }
        for left in 1..self.symbols.len() {
            self.consider(left - 1, &key);
        }
        while let Some(Reverse((_, left, end))) = self.heap.pop() {
            let right = self.symbols[left].next;
            // A candidate is stale if its left symbol has been merged away or if either symbol has grown.
            let l = &self.symbols[left];
            if l.start == l.end || right == NONE || self.symbols[right].end != end {
                continue;
            }
            let (right_end, right_next) = (self.symbols[right].end, self.symbols[right].next);
            self.symbols[right].end = self.symbols[right].start;
            self.symbols[left].end = right_end;
            self.symbols[left].next = right_next;
            if right_next != NONE {
                self.symbols[right_next].prev = left;
            }
            if self.symbols[left].prev != NONE {
                self.consider(self.symbols[left].prev, &key);
            }
            self.consider(left, &key);
        }
        let mut i = if self.symbols.is_empty() { NONE } else { 0 };
        while i != NONE {
            let s = &self.symbols[i];
            emit(&text[s.start..s.end]);
            i = s.next;
        }
    }

    fn consider(&mut self, left: usize, key: &impl Fn(usize, usize, usize) -> Option<u32>) {
        let l = &self.symbols[left];
        if l.next == NONE {
            return;
        }
        let r = &self.symbols[l.next];
        if let Some(k) = key(l.start, r.start, r.end) {
            self.heap.push(Reverse((k, left, r.end)));
        }
    }
}
